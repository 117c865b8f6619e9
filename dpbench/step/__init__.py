"""One training step: sampling, gradients and clipping, noise, update: the stages of a pipeline."""
