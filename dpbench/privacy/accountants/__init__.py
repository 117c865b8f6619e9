"""Accountants: one file each; from a composition of events to a privacy curve."""
