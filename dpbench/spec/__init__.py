"""The grammar of specs: YAML with places, keys and their limits, expansion, names and parameters."""
