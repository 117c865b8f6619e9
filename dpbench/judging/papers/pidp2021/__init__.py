"""Judges of what Kang, Li, Liu and Wang print about PIDP-SGD, from the definitions."""
