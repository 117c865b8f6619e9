"""Metrics of trained parameters that a spec names under `metrics:`, one file each."""
