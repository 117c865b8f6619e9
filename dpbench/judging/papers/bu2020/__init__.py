"""What judges the claims of Bu, Dong, Long and Su, Deep Learning with Gaussian Differential Privacy (2020)."""
