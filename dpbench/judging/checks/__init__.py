"""Checks: each tests one property of a subject and gives a verdict. One file each."""
