"""One training step: sample, gradient and clip, noise, update, as stages that a pipeline puts together."""
