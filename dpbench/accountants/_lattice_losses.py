"""The law of the privacy loss of one release, in the form that the lattice needs: smooth branches and atoms.

A branch is a stretch of real outputs x with a density under P and a loss L(x) that is monotone in x, with its inverse.
Atoms are losses of positive probability. `infinite` is the probability under P of outcomes that Q never gives.
Direction 0 is remove (P is with the record), direction 1 is add. Nothing here is discretised yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpbench.accountants._hinges import (
    Floats,
    confident_mu,
    group_position,
    group_weights,
    replaced_position,
)
from dpbench.accountants._pair_losses import PairLosses
from dpbench.events import (
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
)

_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_LARGE = 600.0  # log of a double
REACH = 42.0  # standard deviations on either side: beyond lies e^-880 of the mass
Function = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Branch:
    """Outputs x in [low, high] with `log_density` under P and the monotone `loss`; `position` is its inverse.

    `scale` is the length over which density and loss change: no quadrature may step farther than a part of it.
    """

    log_density: Function
    loss: Function
    position: Function
    low: float
    high: float
    scale: float


@dataclass(frozen=True)
class LossLaw:
    """The loss of one release under P: branches, atoms (losses and log masses) and the mass of infinite loss.

    `anchor` is a loss that should lie on the lattice: an atom, or where most outputs are. `gap` is the distance of a
    lattice that holds all atoms, None where there are none or they fit no lattice. `highest` bounds finite losses.
    Beyond `highest_tilt` the tilted peak leaves the branches (no δ above e^-800 needs that), or sits on the last atom.
    """

    branches: tuple[Branch, ...]
    atoms: Floats
    log_masses: Floats
    infinite: float
    anchor: float
    gap: float | None
    highest: float
    symmetric: bool = False
    highest_tilt: float = math.inf


_NONE = np.empty(0)


def up_to(law: LossLaw, cut: float) -> LossLaw:
    """The sub-law of the finite losses up to `cut`; the mass of infinite loss is left out."""
    branches = []
    for branch in law.branches:
        ends = branch.loss(np.array([branch.low, branch.high]))
        if ends.min() >= cut:
            continue
        low, high = branch.low, branch.high
        if ends.max() > cut:
            edge = float(np.clip(branch.position(np.array([cut]))[0], low, high))
            low, high = (low, edge) if ends[1] > ends[0] else (edge, high)
        branches.append(replace(branch, low=low, high=high))
    held = law.atoms <= cut
    limit = min(700 / cut, law.highest_tilt if len(law.atoms) else math.inf)  # at twice the cut e^-1400 is left
    return replace(
        law,
        branches=tuple(branches),
        atoms=law.atoms[held],
        log_masses=law.log_masses[held],
        infinite=0.0,
        highest=min(law.highest, cut),
        highest_tilt=limit,
    )


def loss_law(event: Event, direction: int, reach: float = 64.0) -> LossLaw:
    """The law of one release in direction 0 (remove) or 1 (add). Heavy tails count as infinite from `reach` on."""
    if isinstance(event, Gaussian | ConfidentGNMax):
        noise = event.relative_noise if isinstance(event, Gaussian) else 1 / confident_mu(event)
        return _sampled_law(1.0, noise, direction)
    if isinstance(event, Laplace):
        return _laplace_law(1 / event.relative_noise)
    if isinstance(event, DiscretePair):
        return _discrete_law(event, direction)
    if isinstance(event, GroupSampledGaussian):
        return _group_law(event, direction)
    if isinstance(event, RandomSensitivityGaussian):
        from dpbench.accountants._lattice_projections import random_sensitivity_law  # which stands on this module

        return random_sensitivity_law(event, direction, reach)
    rate, noise = event.sampling_rate, event.noise_multiplier
    if event.sampler == "without_replacement":
        return _fixed_size_law(rate, noise / 2)
    if event.adjacency == "replace_one":
        return _replaced_law(rate, noise)
    return _sampled_law(rate, noise, direction)


def log_ratio(rate: float, s: Floats) -> Floats:
    """log(1 − q + q e^s) without overflow, to its own relative digits: a release is counted up to a million times.

    >>> [float(f"{value:.12g}") for value in log_ratio(1e-9, np.array([0.0, 2.0, 3000.0]))]
    [0.0, 6.38905607852e-09, 2979.27673416]
    """
    if rate == 1:
        return s
    near = rate * np.expm1(np.minimum(s, _LARGE))
    close = (near > -0.5) & (s < _LARGE)
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + s)
    return np.asarray(np.where(close, np.log1p(np.where(close, near, 0.0)), far))


def _mixture_loss(rate: float, noise: float, x: Floats) -> Floats:
    """log(1 − q + q e^((2x−1)/(2σ²)))."""
    return log_ratio(rate, (2 * x - 1) / (2 * noise * noise))


def _mixture_position(rate: float, noise: float, loss: Floats) -> Floats:
    """The inverse: σ² log((e^L − 1 + q)/q) + 1/2."""
    if rate == 1:
        return noise * noise * loss + 0.5
    with np.errstate(divide="ignore"):  # -inf at the loss log(1 − q), where the position is at infinity
        small = np.log1p(np.expm1(np.minimum(loss, 1.0)) / rate)
    large = loss - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, 1.0)))
    result: Floats = noise * noise * np.where(loss > 1, large, small) + 0.5
    return result


def _log_normal(noise: float, x: Floats) -> Floats:
    return -x * x / (2 * noise * noise) - (_LOG_ROOT_TWO_PI + math.log(noise))


def _log_mixture(rate: float, noise: float, x: Floats) -> Floats:
    return _log_normal(noise, x) + _mixture_loss(rate, noise, x)


def _sampled_branch(rate: float, noise: float, direction: int) -> Branch:
    low, high, scale = -REACH * noise, 1 + REACH * noise, min(noise, 8 * noise * noise)
    loss = partial(_mixture_loss, rate, noise)
    position = partial(_mixture_position, rate, noise)
    if direction:
        return Branch(
            partial(_log_normal, noise),
            lambda x: -loss(x),
            lambda level: position(-level),
            low,
            high,
            scale,
        )
    return Branch(partial(_log_mixture, rate, noise), loss, position, low, high, scale)


def _sampled_law(rate: float, noise: float, direction: int) -> LossLaw:
    branch = _sampled_branch(rate, noise, direction)
    highest = -math.log1p(-rate) if direction and rate < 1 else math.inf
    anchor = float(branch.loss(np.zeros(1))[0])
    limit = math.inf if highest < math.inf else _tilt_limit(noise)
    return LossLaw((branch,), _NONE, _NONE, 0.0, anchor, None, highest, rate == 1, limit)


def _tilt_limit(noise: float, shift: float = 1.0) -> float:
    """A tilt λ moves the peak by at most λ `shift` towards the larger losses."""
    return (REACH - 2) * noise / shift


def _replaced_law(rate: float, noise: float) -> LossLaw:
    """(1−q) N(0) + q N(1) against (1−q) N(0) + q N(−1): symmetric under x -> −x."""
    loss = partial(_mixture_loss, rate, noise)
    branch = Branch(
        partial(_log_mixture, rate, noise),
        lambda x: loss(x) - loss(-x),
        lambda level: replaced_position(level, rate, noise),
        -1 - REACH * noise,
        1 + REACH * noise,
        min(noise, 8 * noise * noise),
    )
    return LossLaw((branch,), _NONE, _NONE, 0.0, 0.0, None, math.inf, True, _tilt_limit(noise, 2.0))


def _fixed_size_law(rate: float, half: float) -> LossLaw:
    """The dominating pair of fixed-size sampling: remove above loss 0, add below, and an atom at 0 between.

    Both branches are x > 1/2, where the ratio of N(1, (σ/2)²) to N(0, (σ/2)²) is above 1.
    """
    remove, add = _sampled_branch(rate, half, 0), _sampled_branch(rate, half, 1)
    branches = tuple(Branch(b.log_density, b.loss, b.position, 0.5, b.high, b.scale) for b in (remove, add))
    atom = (1 - rate) * math.erf(0.5 / half / math.sqrt(2))  # (1−q) (1 − 2Φ(−1/(2·σ/2)))
    atoms, masses = (np.zeros(1), np.log([atom])) if atom > 0 else (_NONE, _NONE)
    return LossLaw(branches, atoms, masses, 0.0, 0.0, None, math.inf, True, _tilt_limit(half))


def _group_law(event: GroupSampledGaussian, direction: int) -> LossLaw:
    members, log_weights = group_weights(event)
    noise, size = event.noise_multiplier, event.group_size

    def loss(x: Floats) -> Floats:
        exponents = (members * x[..., None] - members**2 / 2) / noise**2
        near = np.expm1(np.minimum(exponents, _LARGE)) @ np.exp(log_weights)  # weights have the sum 1
        close = (near > -0.5) & (exponents.max(axis=-1) < _LARGE)
        far = np.logaddexp.reduce(log_weights + exponents, axis=-1)
        return np.asarray(np.where(close, np.log1p(np.where(close, near, 0.0)), far))

    def position(level: Floats) -> Floats:
        return group_position(level, event)

    low, high, scale = -REACH * noise, size + REACH * noise, min(noise, 8 * noise * noise / size)
    if direction:
        branch = Branch(
            partial(_log_normal, noise), lambda x: -loss(x), lambda level: position(-level), low, high, scale
        )
        highest = -float(log_weights[0]) if members[0] == 0 else math.inf
    else:
        branch = Branch(lambda x: _log_normal(noise, x) + loss(x), loss, position, low, high, scale)
        highest = math.inf
    limit = math.inf if highest < math.inf else _tilt_limit(noise, size)
    return LossLaw((branch,), _NONE, _NONE, 0.0, float(branch.loss(np.zeros(1))[0]), None, highest, False, limit)


def _laplace_law(width: float) -> LossLaw:
    """Under P atoms 1/2 at 1/b and e^(−1/b)/2 at −1/b; between, L itself serves as x: density e^((L − 1/b)/2) / 4."""
    atoms = np.array([-width, width])
    log_masses = np.array([-width - math.log(2), -math.log(2)])
    branch = Branch(
        lambda x: (x - width) / 2 - math.log(4),
        lambda x: x,
        lambda level: level,
        -width,
        width,
        min(1.0, width / 16),
    )
    return LossLaw((branch,), atoms, log_masses, 0.0, -width, 2 * width, width, True, 100 / width)


def _discrete_law(event: DiscretePair, direction: int) -> LossLaw:
    found = PairLosses.of(event, direction)
    losses, masses, infinite = found.losses, found.masses, found.infinite
    anchor = float(losses[0]) if len(losses) else 0.0
    highest = float(losses[-1]) if len(losses) else -math.inf
    # beyond, all but e^-60 of a release's tilted mass lies on its largest loss
    steep = (60 - math.log(float(masses.min()))) / float(np.diff(losses).min()) if len(losses) > 1 else 1.0
    return LossLaw((), losses, np.log(masses), infinite, anchor, common_gap(losses), highest, False, steep)


def common_gap(losses: Floats) -> float | None:
    """The step of the coarsest lattice that holds all `losses` to 1e-12 of their spread, of 4096 cells at most."""
    distances = np.diff(losses)
    if not len(distances):
        return None
    spread = float(losses[-1] - losses[0])
    step = float(distances[0])
    for distance in distances[1:]:
        rest = float(distance)
        while rest > 1e-11 * spread:
            step, rest = rest, math.fmod(step, rest)
            if step - rest < 1e-11 * spread:
                rest = 0.0
    cells = round(spread / step)
    if not 1 <= cells <= 4096:
        return None
    step = spread / cells
    steps = (losses - losses[0]) / step
    return step if np.all(np.abs(steps - np.round(steps)) <= 1e-12 * cells) else None
