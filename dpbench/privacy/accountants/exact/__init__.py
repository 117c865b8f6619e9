"""The exact accountant; docs/exact.md explains it, `accountant` lists the method for each composition."""
