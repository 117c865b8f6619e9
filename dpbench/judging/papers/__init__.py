"""Claims of papers and their judges: one folder per paper, with `claims.yaml` and one file of judges per subject.

Every judge starts from a definition (an integral, a sum, a simulation of a printed line) and compares it with what the
paper prints, as printed. Mathematics that several papers need is in `mathematics.py`.
"""
