"""Clipping engines: sums of clipped per-example gradients. One file each."""
