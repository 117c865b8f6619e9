"""Preparations: transforms of the network's inputs, with the events of the statistics they need. One file each."""
