"""What judges the claims of jl2021, "Fast differentially private SGD via JL projections" (ICLR 2021 submission)."""
