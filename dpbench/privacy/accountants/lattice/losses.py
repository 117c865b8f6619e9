"""Privacy loss distributions of single mechanism invocations: smooth branches and atoms, not yet discretised.

A branch is a stretch of real outputs x with a density under P and a loss L(x) that is monotone in x. Atoms are losses
of positive probability. Direction 0 is remove (P is with the record), direction 1 is add.

| event | outputs x | loss |
| --- | --- | --- |
| Gaussian, sampled Gaussian | under N(0, σ²) or the mixture | ± log(1 − q + q e^((2x−1)/2σ²)) |
| Poisson, replace one | under (1−q) N(0, σ²) + q N(1, σ²) | the same at x less that at −x |
| group of g | under N(0, σ²) or the mixture | ± log Σ_k Bin(k; g, q) e^((2kx−k²)/2σ²) |
| fixed-size batches, replace one | x > 1/2 of either direction at σ/2 | as sampled Gaussian; an atom at 0 |
| Laplace | the loss itself: density e^((L − 1/b)/2) / 4 | atoms e^(−1/b)/2 at −1/b and 1/2 at 1/b |
| discrete pair | | atoms |
| random sensitivity | `projections` | |

**Fixed-size batches.** Zhu, Dong and Wang 2022 (arXiv:2106.08567), Theorem 11: if (P, Q) dominates the base mechanism
under replace-one, then after sampling without replacement at rate q every ordered pair of neighbours lies below
H_α((1−q) Q + q P ‖ Q) for α >= 1 and below H_α(P ‖ (1−q) P + q Q) for α < 1. With P = N(2, σ²), Q = N(0, σ²) (a
replaced record moves the sum by up to two clip norms) both meet at α = 1, where each is q times the total variation,
and the slope there jumps up by (1−q) (1 − 2Φ(−1/σ)) >= 0. So the joined curve is convex and decreasing, from 1 at
α = 0 with slope −1: by their Proposition 8 a pair with this curve exists, with an atom of that mass at loss 0.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dpbench.events import (
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.accountants._losses import Floats, PairLosses, group_log_ratio, log_binomials, log_ratio
from dpbench.privacy.accountants.lattice.law import NONE, Branch, Function, LossLaw
from dpbench.privacy.accountants.lattice.projections import random_sensitivity_law

REACH = 42.0  # standard deviations on either side: beyond lies e^-880 of the mass


def loss_law(event: Event, direction: int, reach: float) -> LossLaw:
    """The law of one invocation in direction 0 (remove) or 1 (add). Heavy tails count as infinite from `reach` on."""
    if isinstance(event, Gaussian):
        return _sampled(1.0, event.relative_noise, direction)
    if isinstance(event, Laplace):
        return _laplace(1 / event.relative_noise)
    if isinstance(event, DiscretePair):
        return _discrete(event, direction)
    if isinstance(event, RandomSensitivityGaussian):
        return random_sensitivity_law(event, direction, reach)
    assert isinstance(event, SampledGaussian | GroupSampledGaussian)  # Confident-GNMax has become a Gaussian
    rate, noise = event.sampling_rate, event.noise_multiplier
    if isinstance(event, GroupSampledGaussian):
        size = event.group_size
        highest = -float(log_binomials(size, rate)[0])
        return _against_normal(partial(group_log_ratio, rate, noise, size), noise, size, highest, direction)
    if event.sampler == "without_replacement":
        return _fixed_size(rate, noise / 2)
    return _replaced(rate, noise) if event.adjacency == "replace_one" else _sampled(rate, noise, direction)


def _mixture_loss(rate: float, noise: float, x: Floats) -> Floats:
    return log_ratio(rate, (2 * x - 1) / (2 * noise * noise))


def _log_normal(noise: float, x: Floats) -> Floats:
    return -x * x / (2 * noise * noise) - (math.log(2 * math.pi) / 2 + math.log(noise))


def _sampled(rate: float, noise: float, direction: int) -> LossLaw:
    highest = -math.log1p(-rate) if rate < 1 else math.inf
    return _against_normal(partial(_mixture_loss, rate, noise), noise, 1, highest, direction)


def _against_normal(ratio: Function, noise: float, size: int, highest: float, direction: int) -> LossLaw:
    """A mixture of N(k, σ²), k = 0 ... `size`, and N(0, σ²), whose log ratio is `ratio`, never below −`highest`.

    A tilt λ moves the peak by at most λ `size` towards the larger losses.
    """
    low, high, scale = -REACH * noise, size + REACH * noise, min(noise, 8 * noise * noise / size)
    steep = (REACH - 2) * noise / size
    if direction:
        branch = Branch(partial(_log_normal, noise), lambda x: -ratio(x), low, high, scale)
        return LossLaw((branch,), NONE, NONE, highest=highest, highest_tilt=math.inf if highest < math.inf else steep)
    branch = Branch(lambda x: _log_normal(noise, x) + ratio(x), ratio, low, high, scale)
    return LossLaw((branch,), NONE, NONE, highest_tilt=steep)


def _replaced(rate: float, noise: float) -> LossLaw:
    """(1−q) N(0) + q N(1) against (1−q) N(0) + q N(−1): symmetric under x -> −x."""
    ratio = partial(_mixture_loss, rate, noise)
    end, scale = 1 + REACH * noise, min(noise, 8 * noise * noise)
    branch = Branch(lambda x: _log_normal(noise, x) + ratio(x), lambda x: ratio(x) - ratio(-x), -end, end, scale)
    return LossLaw((branch,), NONE, NONE, highest_tilt=(REACH - 2) * noise / 2)


def _fixed_size(rate: float, half: float) -> LossLaw:
    """The dominating pair of fixed-size batches: remove above loss 0, add below, and an atom at 0 between.

    Both branches are x > 1/2, where the ratio of N(1, (σ/2)²) to N(0, (σ/2)²) is above 1.
    """
    sides = [_sampled(rate, half, direction).branches[0] for direction in (0, 1)]
    branches = tuple(Branch(side.log_density, side.loss, 0.5, side.high, side.scale) for side in sides)
    atom = (1 - rate) * math.erf(0.5 / half / math.sqrt(2))  # (1−q) (1 − 2Φ(−1/(2·σ/2)))
    return LossLaw(branches, np.zeros(1), np.log([atom]), highest_tilt=(REACH - 2) * half)


def _laplace(width: float) -> LossLaw:
    branch = Branch(lambda x: (x - width) / 2 - math.log(4), lambda x: x, -width, width, min(1.0, width / 16))
    log_masses = np.array([-width - math.log(2), -math.log(2)])
    return LossLaw((branch,), np.array([-width, width]), log_masses, highest=width, highest_tilt=100 / width)


def _discrete(event: DiscretePair, direction: int) -> LossLaw:
    found = PairLosses.of(event, direction)
    losses, masses = found.losses, found.masses
    highest = float(losses[-1]) if len(losses) else -math.inf
    # beyond, all but e^-60 of a mechanism's tilted mass lies on its largest loss
    steep = (60 - math.log(float(masses.min()))) / float(np.diff(losses).min()) if len(losses) > 1 else 1.0
    return LossLaw((), losses, np.log(masses), found.infinite, highest, steep)
