"""Models: factories that return a torch module. One file each."""
