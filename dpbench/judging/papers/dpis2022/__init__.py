"""DPIS (Wei, Bao, Xiao, Yang, CCS 2022): private SGD whose batches are drawn by importance."""
