"""Datasets: one file each; canonical files in, tensors out."""
