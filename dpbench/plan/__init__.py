"""Specs to a plan: what is to run, and whether a model can be trained as asked."""
