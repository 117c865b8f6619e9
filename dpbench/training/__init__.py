"""The training loop, and its clipping engines side by side."""
