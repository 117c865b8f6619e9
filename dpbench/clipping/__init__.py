"""Clipping engines: one file each; per-example clipped gradient sums."""
