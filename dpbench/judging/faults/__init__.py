"""Planted faults: real code with one thing wrong, which the checks must find. `planted.PLANTED` has them all.

None of it is for training.
"""
