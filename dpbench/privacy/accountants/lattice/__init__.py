"""Privacy loss distributions on a lattice: an upper bound for every event with a proven pair."""
