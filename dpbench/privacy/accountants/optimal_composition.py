"""Optimal composition: the least ε that follows from the ε and δ of the single mechanisms, nothing else being known.

| here | in the source |
| --- | --- |
| releases, `share` | k, δ (of one release) |
| `chosen`, l | i (half of k less ε'/ε), l |

Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776), Theorem 3.3: whatever is (ε, δ)-private is dominated by a randomized
response that reveals the record with probability δ and else answers truly with probability e^ε/(1 + e^ε). k of these
are composed exactly. W_l = C(k, l) e^((k−l)ε)/(1+e^ε)^k is the probability that l of k answers are false, and
V_l = C(k, l) e^(lε)/(1+e^ε)^k the same for the other record; k mechanisms are (ε', 1 − (1−δ)^k (1−δ'))-private with
δ' = max_m Σ_(l <= m) (W_l − e^ε' V_l), and no better statement holds for all of them. Solved for ε' at a given δ':
ε' = max_m log((Σ W_l − δ') / Σ V_l).

**Unlike mechanisms** have the same answer with products of such responses (Murtagh and Vadhan 2016, arXiv:1507.03113,
Theorem 1.5), and computing it is #P-complete in general. Equal mechanisms are counted together here, so that few kinds
are enumerated exactly. Where more than MOST_OUTCOMES would be needed every kind's losses are split between neighbours
of one lattice of about LATTICE points, which keeps both probabilities and raises the curve (`lattice/rounding.py` has
the source), and the lattice's laws are convolved: a bound, but no longer the optimum.

**A bound that falls as δ grows.** The finer of two lattices bounds less if it contains the coarser one. So losses lie
at multiples of a power of two that depends on δ only through the ε_i and `reach`, which both grow as δ falls, and
whether outcomes are enumerated depends on counts and `reach` alone. A lattice between the least and the largest loss
of each δ would move with it, and ε'(δ) would jump up and down by as much as the lattice costs.

Half of δ is split equally over the mechanisms, ε_i = ε_i(δ/2T) by each one's exact curve alone; what the T shares leave
of δ is δ'. The theorem leaves that split free, and what a mechanism is beyond its ε_i and δ_i is not used: the exact
composition of the mechanisms themselves gives less.

Doubles: a logarithm of W or V has a relative error of at most 2^−50 of its largest term, k log k + kε; sums of W are
enlarged and sums of V reduced by that and by their rounding. Both shares of a split are products of exact differences
(1 − e^−x), and a convolution of m positive masses has a relative error of at most (m + 1) 2^−53. A loss has one
rounding, and so has its place between two neighbours, which moves its V alone. Left out are numbers of false answers
farther than t √k from their mean, of probability at most 2 e^(−2t²) (Hoeffding), 2e-20 δ', what the lattice's ends cut
off, and W below the smallest double; all are added, 1e-300 for the last, which is far above what it makes of V.

The bound is never above `basic` or `advanced` by more than rounding:

>>> from dpbench.events import Composition, Laplace
>>> round(accountant.curve(Composition(((Laplace(100.0), 1000),))).epsilon(1e-6).value, 3) < 1.8039
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpbench.events import Composition
from dpbench.privacy.accountants._poisson import Published, adjacency_of, support
from dpbench.privacy.accountants._split_delta import Parts, SplitCurve, least_epsilon, refusal, releases, revealing
from dpbench.privacy.answers import No, Yes

if TYPE_CHECKING:
    from dpbench.privacy.accountants._losses import Floats

MOST_OUTCOMES = 80_000
LATTICE = 4096
MOST_RELEASES = 10**8
_UNIT = 2.0**-50
_LARGEST = 1e300


def least_total(kinds: Sequence[tuple[float, int]], delta: float) -> float:
    """The least ε' >= 0 at `delta` of pure mechanisms (`kinds`: ε_i and how many), rounded up; inf only for ε_i = inf.

    >>> round(least_total([(0.1, 100)], 1e-6), 3) < 100 * 0.1
    True
    >>> abs(least_total([(1.0, 1)], 1e-300) - 1) < 1e-12
    True
    """
    import numpy as np

    together = _together(kinds)
    most = sum(count * epsilon for epsilon, count in together) * (1 + 2.0**-50)
    if most > _LARGEST:  # sums of losses would overflow
        return most
    reach = math.sqrt((46 - math.log(max(delta, 1e-300))) / 2)
    laws = [_answers(epsilon, count, reach) for epsilon, count in together]
    error = math.fsum(wrong for _, _, wrong in laws) + len(laws) * 2.0**-42
    slip = 2 * _UNIT * (1 + math.fsum(float(np.abs(loss).max()) for loss, _, _ in laws))  # of log V alone
    if math.prod(min(count + 1, 2 * reach * math.sqrt(count) + 3) for _, count in together) <= MOST_OUTCOMES:
        losses, log_w, cut = np.zeros(1), np.zeros(1), 0.0
        for loss, log_mass, _ in laws:
            losses = np.add.outer(losses, loss).ravel()
            log_w = np.add.outer(log_w, log_mass).ravel()
    else:
        spread = math.hypot(*(epsilon * math.sqrt(count) for epsilon, count in together))
        width = 4 * reach * spread / LATTICE
        losses, log_w, cut, rounding = _on_a_lattice(laws, width)
        error += rounding
        slip += len(laws) * width * _UNIT
    order = np.argsort(-losses, kind="stable")
    losses, log_w = losses[order], log_w[order]
    error += len(losses) * 2.0**-52
    left_out = len(laws) * (2 * math.exp(-2 * reach * reach) + 1e-300)
    total = (np.cumsum(np.exp(log_w)) + cut) * math.exp(error) + left_out
    first = int(np.argmax(total > delta))
    if not total[first] > delta:
        return 0.0
    log_v = log_w - losses
    scale = float(log_v[: first + 1].max())  # sums from there on matter, and those before are in doubles' reach of it
    sums = np.cumsum(np.exp(np.minimum(log_v - scale, 600.0)))[first:]
    best = float((np.log(total[first:] - delta) - np.log(sums)).max()) - scale + error + slip
    return max(min(best, most), 0.0)


def _answers(epsilon: float, count: int, reach: float) -> tuple[Floats, Floats, float]:
    """Losses (k − 2l) ε and log W_l for every l within `reach` √k of the mean, and the error of log W_l.

    Where lε is above 1000 + k, W_l is below e^−1000, and no error of it matters.
    """
    import numpy as np
    from scipy.special import gammaln

    mean = count / (1 + math.exp(epsilon)) if epsilon < 700 else 0.0
    reach *= math.sqrt(count)
    wrong = np.arange(max(math.floor(mean - reach), 0), min(math.ceil(mean + reach), count) + 1, dtype=np.float64)
    log_choose = gammaln(count + 1) - gammaln(wrong + 1) - gammaln(count - wrong + 1)
    log_mass = log_choose - wrong * epsilon - count * math.log1p(math.exp(-epsilon))
    size = (
        4 * count * math.log(count + 2) + count * min(epsilon, 1.0) + min(float(wrong[-1]) * epsilon, 1e3 + count) + 16
    )
    return (count - 2 * wrong) * epsilon, log_mass, _UNIT * size


def _on_a_lattice(laws: Sequence[tuple[Floats, Floats, float]], width: float) -> tuple[Floats, Floats, float, float]:
    """Losses and log W of the sum of `laws` (losses, log W, anything), the W cut off, and the error of log W.

    Losses are multiples of the least power of two above `width`; LATTICE of them about the mean are kept. A loss at t
    above its lower neighbour gives the upper one, Δ on, (1 − e^−t)/(1 − e^−Δ) of its W, and the lower one the rest.
    """
    import numpy as np

    step = math.ldexp(1.0, math.frexp(width)[1])
    first, mass, cut, error = 0.0, np.ones(1), 0.0, 0.0
    for losses, log_w, _ in laws:
        cells = np.floor(losses / step)
        low = float(cells.min())
        cell, above = (cells - low).astype(np.int64), losses - cells * step
        up = np.expm1(-above) / math.expm1(-step)
        down = np.exp(-above) * np.expm1(above - step) / math.expm1(-step)
        w, size = np.exp(log_w), int(cell.max()) + 2
        law = np.bincount(cell, w * down, size) + np.bincount(cell + 1, w * up, size)
        mass = np.convolve(mass, law)
        start = max(int(np.dot(mass, np.arange(len(mass)))) - LATTICE // 2, 0)
        cut += float(mass[:start].sum() + mass[start + LATTICE :].sum())
        first, mass = first + low + start, mass[start : start + LATTICE]
        error += (len(losses) + size + 64) * 2.0**-52
    kept = np.flatnonzero(mass)
    points: Floats = (first + kept.astype(np.float64)) * step
    log_mass: Floats = np.log(mass[kept])
    return points, log_mass, cut, error


def _together(kinds: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Equal ε merged, with their counts; ε = 0 is dropped."""
    counts: dict[float, int] = {}
    for epsilon, count in kinds:
        if epsilon > 0 and count:
            counts[epsilon] = counts.get(epsilon, 0) + count
    return sorted(counts.items())


def _epsilon(parts: Parts, log_delta: float) -> float:
    """ε' at 1 − (1−δ)/(1−δ_i)^T, what the shares δ_i = δ/2T leave, rounded down."""
    total = releases(parts)
    share = (log_delta - math.log(2) - math.log(total)) * (1 + _UNIT)
    delta, single = math.exp(log_delta), math.exp(share)
    left = -math.expm1(math.log1p(-min(delta, 1 - 2.0**-53)) - total * math.log1p(-single)) * (1 - 2.0**-40)
    kinds = [(least_epsilon(event, share), count) for event, count in parts]
    return least_total(kinds, max(left, 0.0))


def _supports(composition: Composition) -> Yes | No:
    total = releases(composition.parts)
    if total > MOST_RELEASES:
        return No(f"count = {total}: sums over the false answers are computed up to {MOST_RELEASES}; use 'advanced'")
    return support(composition, refusal, "optimal composition")


def _curve(composition: Composition) -> SplitCurve:
    total = releases(composition.parts)
    slack = (total * (4 * math.log(total + 2) + 2) + 1e3) * 2 * _UNIT  # twice the error of log W
    infinite = "the ε of a single mechanism exceeds the largest double"
    return SplitCurve(revealing(composition), adjacency_of(composition), _epsilon, infinite, slack)


accountant = Published("optimal_composition", "upper_bound", _supports, _curve)
