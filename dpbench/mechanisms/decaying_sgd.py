"""DP-SGD whose noise decays exponentially with the epochs (Yu, Liu, Pu, Gursoy and Truex, S&P 2019).

| paper | here |
| --- | --- |
| σ_t = σ_0·e^(−kt), t the epoch | noise_multiplier is σ_0, noise_decay is k; t = ⌊iq⌋ whole epochs before step i |
| C | clip_norm |

Yu et al. is not among the papers at hand; what is said of it is from memory. It offers several schedules (in time,
exponential, by steps, polynomial, by validation accuracy), of which dpis2022 compares with the exponential one,
k in [0.001, 0.01], the Papernot network for pictures and its recurrent network for IMDb (Section 5.1, Table 3).

Ledger: unlike sampled Gaussians, ⌈1/q⌉ or ⌊1/q⌋ steps of each σ_t, in their order. σ_t depends on nothing in the data,
so this is ordinary composition. Yu et al. account by zero-concentrated DP: where the batches of an epoch are disjoint,
1/(2σ_t²) for each epoch; where they are sampled, they use a bound of a weaker notion with q²/σ_t² for each step, as
a sampled Gaussian has no useful bound in zCDP itself. Here every accountant that takes unlike releases can be asked.

The calibrated noise is σ_0: the last epochs run with less.
"""

from __future__ import annotations

from typing import Literal

from dpbench.catalog import find
from dpbench.errors import DpbenchError
from dpbench.events import Event, SampledGaussian, Sampler
from dpbench.step.pipeline import Pipeline
from dpbench.step.stages import DecayingNoise, named_update

NUMERICS = 1
ENGINE = ("clipping",)

LEAST_NOISE = 1e-3  # below it no accountant has an answer that means anything: one step alone has ε of about 10^6


def decayed_release(rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
    """The event of one step. Raises DpbenchError where the noise has decayed away."""
    if 0 <= noise_multiplier < LEAST_NOISE:
        raise DpbenchError(
            f"noise_decay: leaves a noise multiplier of {noise_multiplier:.3g} in some epoch: expected"
            f" {LEAST_NOISE:g} or more; take a smaller noise_decay or fewer epochs"
        )
    return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)


def mechanism(
    *,
    noise_decay: float = 0.01,
    clipping: str = "vmap",
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd",
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
) -> Pipeline:
    """`noise_decay` per epoch, 0 or more; `clipping` names an engine; `momentum` is heavy ball's, the rest Adam's.

    >>> parts = mechanism(noise_decay=0.5).ledger(sampling_rate=0.5, noise_multiplier=2.0, steps=4).parts
    >>> [(round(event.noise_multiplier, 3), count) for event, count in parts]
    [(2.0, 2), (1.213, 2)]
    """
    try:
        noise = DecayingNoise(noise_decay)
    except ValueError as error:
        raise DpbenchError(str(error)) from error
    update = named_update(
        optimizer, momentum=momentum, beta1=beta1, beta2=beta2, offset=offset, bias_correction=bias_correction
    )
    engine = find("clipping", clipping).load()
    return Pipeline(clipped_sum=engine, update=update, gaussian=True, noise=noise, release=decayed_release)
