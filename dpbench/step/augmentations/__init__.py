"""Augmentations: views of a record, over which its loss is averaged before its gradient is taken. One file each."""
