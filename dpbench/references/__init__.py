"""References: one file per event, the definition itself at high precision, independent of the fast code."""
