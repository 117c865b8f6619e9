"""What checks are made of: subjects, small problems, steps that are looked at, recorded runs, statistics."""
