"""Peers: one adapter each to another library (optional extras)."""
