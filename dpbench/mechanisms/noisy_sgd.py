"""NoisySGD (`001_*`, Algorithm 1): Poisson sampling, per-example clipping, Gaussian noise, gradient descent.

| paper | here |
| --- | --- |
| p | sampling_rate |
| R | clip_norm |
| σ | noise_multiplier (relative to R) |
| η_t | learning_rate (constant) |
| T | steps |
| 1/|I_t| | 1/(pn), see `pipeline.Pipeline` |

Ledger: T sampled Gaussians, add-or-remove neighbours, Poisson sampling.
"""

from __future__ import annotations

from dpbench.catalog import find
from dpbench.step.pipeline import Pipeline
from dpbench.step.stages import Sgd

NUMERICS = 1
ENGINE = ("clipping",)


def mechanism(*, clipping: str = "vmap") -> Pipeline:
    """`clipping` names an engine of the catalog.

    >>> mechanism().ledger(sampling_rate=0.01, noise_multiplier=1.0, steps=10).parts[0][1]
    10
    """
    return Pipeline(clipped_sum=find("clipping", clipping).load(), update=Sgd(), gaussian=True)
