"""DP-SGD on inputs that are standardised with private statistics (Tramèr and Boneh 2021, for scattering features).

Once before training the mean and the mean square of every channel over the training data are released with Gaussian
noise; then every input x of channel k, in training and in evaluation, becomes (x − μ_k) / sqrt(v_k + 1e-5) with
v_k = s_k − μ_k², and 0 where the noisy v_k is not above 0. All that is post-processing of the two releases.

| Tramèr and Boneh | here |
| --- | --- |
| noise multiplier of the normalisation, σ_norm (6 or 8) | statistics_noise_multiplier, relative to each bound |
| bounds of the per-example statistics, C1 and C2 | mean_bound, square_bound |
| noise multiplier of the steps | noise_multiplier |
| momentum 0.9 | optimizer: momentum, momentum: 0.9 |

For example i let a_i be the vector of its K channel means (over height and width) and b_i that of its mean squares.
Released are (Σ_i clip(a_i, mean_bound) + N(0, (σ_norm·mean_bound)²)) / N and the same of b_i with square_bound. One
example added moves each sum by at most its bound in L2 norm, N is public, nothing is sampled: two Gaussian events of
noise multiplier σ_norm stand in the ledger before the steps. The noise comes from the stream PREPARATION: element k for
the mean of channel k, K + k for its mean square.

The paper is not among those at hand; its steps are known from its published code, its figures from memory. That code
takes the medians of |a_i| and |b_i| over the private data as bounds, a release that nobody accounts for (it says so
itself); here the bounds are numbers of the spec. docs/mechanisms.md says where those medians lie. Group normalisation
(models `scattering_linear`, `scattering_cnn`) needs no such release.
"""

from __future__ import annotations

from typing import Literal

from dpbench.catalog import find
from dpbench.mechanisms._channel_statistics import ChannelStatistics
from dpbench.mechanisms._updates import named_update
from dpbench.pipeline import Pipeline

NUMERICS = 1
ENGINE = ("clipping",)


def mechanism(
    *,
    statistics_noise_multiplier: float = 8.0,
    mean_bound: float = 1.0,
    square_bound: float = 1.0,
    clipping: str = "vmap",
    optimizer: Literal["sgd", "momentum", "adam"] = "momentum",
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
) -> Pipeline:
    """`clipping` names an engine; `momentum` is heavy ball's, the last four parameters are Adam's.

    >>> [count for _, count in mechanism().ledger(sampling_rate=0.1, noise_multiplier=1.0, steps=30).parts]
    [2, 30]
    """
    update = named_update(
        optimizer, momentum=momentum, beta1=beta1, beta2=beta2, offset=offset, bias_correction=bias_correction
    )
    return Pipeline(
        clipped_sum=find("clipping", clipping).load(),
        update=update,
        gaussian=True,
        preparation=ChannelStatistics(statistics_noise_multiplier, mean_bound, square_bound),
    )
