"""Training without privacy: the same Poisson batches, no clipping, no noise; SGD or Adam.

The counterpart of NoisySGD and NoisyAdam at σ = 0 and C = ∞.
"""

from __future__ import annotations

from typing import Literal

from dpbench.step.pipeline import Pipeline, plain_sum
from dpbench.step.stages import Adam, Sgd

NUMERICS = 1


def mechanism(
    *,
    optimizer: Literal["sgd", "adam"] = "sgd",
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
) -> Pipeline:
    """The last four parameters are Adam's.

    >>> mechanism(optimizer="adam").private
    False
    """
    update = Sgd() if optimizer == "sgd" else Adam(beta1, beta2, offset, bias_correction)
    return Pipeline(clipped_sum=plain_sum, update=update, gaussian=False)
