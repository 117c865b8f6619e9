"""Flat clipping at a private quantile of the norms, which follows them during the run (Andrew et al. 2021).

Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with Adaptive Clipping, NeurIPS 2021,
Algorithm 1 and Theorem 1, with records in the place of users; the paper was not at hand, its letters are from memory.

| paper | here |
| --- | --- |
| C_0, C_t | clip_norm of the spec; that times `clip_scale_R` of the state |
| γ, η_C | target_quantile, quantile_rate |
| σ_b | count_noise, in records; by default a twentieth of the expected batch, as in the paper, and σ at least |
| z, z_Δ | the noise multiplier σ of the ledger, and σ_g of the gradient alone |
| b̃_t | `below_R`, the noisy share of gradients of norm C_t or less |

A step sums S, the gradients clipped to C_t, and D = Σ(1[norm ≤ C_t] − ½), and releases S + N(0, (σ_g C_t)²) and
D + N(0, σ_b²). Then C_{t+1} = C_t·exp(−η_C(b̃_t − γ)) with b̃_t = D̃/(qN) + ½, which needs no count of the batch.

Event: one record changes S by at most C_t and D by exactly ½. Divided by their deviations the two are one vector that
changes by at most (σ_g⁻² + (2σ_b)⁻²)^½ = 1/σ: one sampled Gaussian with the noise multiplier σ, and not two. So given σ
(from the budget) and σ_b, σ_g = (σ⁻² − (2σ_b)⁻²)^(−½), and the ledger is that of flat clipping. C_t is made of released
values, so steps compose as usual. It needs σ < 2σ_b; at σ_b = σ, the least default, σ_g is 1.155 σ.

Beyond the paper: C_t stays within a factor `FURTHEST` of the first one, so that a count of little more than noise makes
no clip norm of zero or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.events import Event, SampledGaussian, Sampler
from dpbench.step.clipped_sum import clip_weight
from dpbench.step.mechanism import Setting

NUMERICS = 1
FURTHEST = 1e6
OF_THE_BATCH = 1 / 20


@dataclass(frozen=True)
class PrivateQuantile:
    """An `AdaptiveClipping`. Raises DpbenchError for parameters outside their ranges.

    `target_quantile` is γ, from 0 to 1; `quantile_rate` is η_C, above 0; `count_noise` is σ_b in records, None for the
    larger of qN/20 and σ.

    >>> PrivateQuantile(quantile_rate=0.2).moved(torch.tensor([1.0]), torch.tensor([0.5])).item()
    1.0
    """

    target_quantile: float = 0.5
    quantile_rate: float = 0.2
    count_noise: float | None = None
    weight = staticmethod(clip_weight)

    def __post_init__(self) -> None:
        _refuse("target_quantile", self.target_quantile, 0 <= _number(self.target_quantile) <= 1, "from 0 to 1")
        _refuse("quantile_rate", self.quantile_rate, 0 < _number(self.quantile_rate) < math.inf, "above 0")
        if self.count_noise is not None:
            _refuse("count_noise", self.count_noise, 0 < _number(self.count_noise) < math.inf, "above 0")

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if the count would have too little noise for the noise multiplier of the budget."""
        if setting.noise_multiplier is not None:
            self._refuse_little_noise(setting.noise_multiplier)

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        """The event of the sum and the count together."""
        return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        del rate_R, examples
        return None

    def facts(self) -> Mapping[str, Any]:
        clip_norm = "the first one; then a private quantile of the norms, within the noise multiplier"
        return {"normalisation": "expected batch size", "clip_norm": clip_norm}

    def count(self, norm_RB: Tensor, clip_R: Tensor, mask_RB: Tensor) -> Tensor:
        """D, float64 (R,)."""
        below_RB = norm_RB <= clip_R[:, None].to(norm_RB.dtype)
        return (mask_RB * (below_RB.double() - 0.5)).sum(1)

    def count_share(self, multiplier_R: Tensor, expected_R: Tensor) -> Tensor:
        """σ/(2σ_b), float64 (R,), below 1: its square is the count's part of 1/σ². Of σ = 0 it is ½.

        `expected_R` is qN. Raises DpbenchError where it would be 1 or more.
        """
        noise_R = torch.maximum(expected_R * OF_THE_BATCH, multiplier_R)
        if self.count_noise is not None:
            self._refuse_little_noise(float(multiplier_R.max()))
            noise_R = torch.full_like(noise_R, self.count_noise)
        return torch.where(multiplier_R > 0, multiplier_R / (2 * noise_R), 0.5)

    def moved(self, scale_R: Tensor, below_R: Tensor) -> Tensor:
        """C_{t+1} over the first clip norm, from C_t over it and b̃_t; float64 (R,)."""
        factor_R = torch.exp(-self.quantile_rate * (below_R - self.target_quantile))
        return (scale_R * factor_R).clamp(1 / FURTHEST, FURTHEST)

    def _refuse_little_noise(self, noise_multiplier: float) -> None:
        if self.count_noise is not None and not noise_multiplier < 2 * self.count_noise:
            raise DpbenchError(
                f"count_noise = {self.count_noise:g}: with the noise multiplier {noise_multiplier:g} the count alone"
                f" would spend a step's whole budget; expected more than {noise_multiplier / 2:g}"
            )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _refuse(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise DpbenchError(f"{name} = {value!r}: expected a number {expected}")


rule = PrivateQuantile
