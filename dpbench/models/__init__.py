"""Models: one file each; a factory that returns a torch module."""
