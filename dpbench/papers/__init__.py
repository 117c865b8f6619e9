"""What papers state, as functions: one folder per paper, one file per subject; `specs/claims/` points here by name.

Every function starts from a definition (an integral, a sum, a simulation of a printed line); what a paper prints stands
beside it as the paper prints it.
"""
