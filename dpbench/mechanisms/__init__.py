"""Mechanisms: one file each, composed of the stages sample, gradient, clip, noise, update."""
