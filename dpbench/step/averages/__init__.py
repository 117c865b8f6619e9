"""Averages of the parameters along training, which are evaluated in place of the last ones. One file each."""
