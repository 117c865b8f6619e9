"""Rules: how much one record may add to the sum of a step, with the event of that. One file each."""
