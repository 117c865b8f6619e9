"""Updates: new parameters from a noisy gradient. One file each; written for one run."""
