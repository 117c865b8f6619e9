"""Noise: how the noise multiplier depends on the step. One file each."""
