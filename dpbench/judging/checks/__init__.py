"""Checks: one file each; one property, tested on a subject, gives a verdict."""
