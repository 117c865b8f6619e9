"""Records and verdicts to a report."""
