"""Mechanisms: the presets, which are chains of stages, and mechanisms with a file of their own."""
