"""The grammar of specs: YAML with positions, keys and their limits, expansion, names and parameters."""
