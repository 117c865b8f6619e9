"""The exact accountant; docs/exact.md says how it works, `accountant` which method serves which events."""
