"""NoisyAdam (`001_*`, Algorithm 2): NoisySGD's noisy gradient, Adam's update.

The paper's β1, β2, ξ are beta1, beta2, offset; m_0 and u_0 are 0; the other letters are in `noisy_sgd`.

Ledger: as NoisySGD's; the update is post-processing. The paper prints no bias correction; `bias_correction` adds it.
"""

from __future__ import annotations

from dpbench.catalog import find
from dpbench.step.pipeline import Pipeline
from dpbench.step.stages import Adam

NUMERICS = 1
ENGINE = ("clipping",)


def mechanism(
    *,
    clipping: str = "vmap",
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
) -> Pipeline:
    """`clipping` names an engine of the catalog.

    >>> mechanism().update.beta2
    0.999
    """
    engine = find("clipping", clipping).load()
    return Pipeline(clipped_sum=engine, update=Adam(beta1, beta2, offset, bias_correction), gaussian=True)
