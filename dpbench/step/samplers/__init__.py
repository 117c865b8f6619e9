"""Samplers: which examples are in the batch of a step. One file each."""
