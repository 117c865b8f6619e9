"""What papers state, and what judges it: one folder per paper, with `claims.yaml` and one file of judges per subject.

Every judge starts from a definition (an integral, a sum, a simulation of a printed line); what a paper prints stands
beside it as the paper prints it. Mathematics that several need is in `mathematics.py`.
"""
