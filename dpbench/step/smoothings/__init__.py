"""Smoothings: means of a record's loss over shifted parameters, of which the gradient is taken. One file each."""
