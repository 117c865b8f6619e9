"""Sections 2.2 to 3.3 of DPIS: clipping, the weighted estimate, its second moment, the best probabilities.

Expectations are over all batches of three records, in exact fractions: N = SIZE, K = sum(NORMS), `noise` is σ_G² C² d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.dpis2022.divergences import batches, expectation

GRADIENTS = ((3, 4), (0, 2), (-6, 8))
NORMS = (5, 2, 10)
SIZE = 3
SHARES: dict[str, tuple[Fraction, ...]] = {
    "importance": tuple(Fraction(norm, sum(NORMS)) for norm in NORMS),
    "uniform": (Fraction(1, 3),) * 3,
    "other": (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)),
}
BATCHED = Fraction(3, 2)


def _square(vector: Sequence[Fraction | int]) -> Fraction:
    return sum((Fraction(x) ** 2 for x in vector), Fraction(0))


def _estimate(members: Sequence[int], shares: Sequence[Fraction], batch: Fraction) -> list[Fraction]:
    """Equation (7) without noise."""
    return [sum((GRADIENTS[i][k] / (SIZE * shares[i] * batch) for i in members), Fraction(0)) for k in (0, 1)]


@shown(control={"by_size": True}, pair="gradients (3, 4), (0, 2), (−6, 8), each drawn with b·p, b = 3/2")
def equation_7(by_size: bool = False) -> Shown:
    """Whether the mean of the estimate is that of the gradients, for three choices of p; the control divides by |B|.

    Uniform p is equation (5), and N times that is equation (11). By the probabilities of (8), which have to sum to 1
    and to give the expected size b.
    """
    mean = [Fraction(sum(g[k] for g in GRADIENTS), SIZE) for k in (0, 1)]
    found, holds = {}, True
    for name, shares in SHARES.items():
        drawn = [
            (p, _estimate(chosen, shares, BATCHED), len(chosen)) for p, chosen in batches([BATCHED * p for p in shares])
        ]
        total, size = sum(p for p, _, _ in drawn), sum(p * n for p, _, n in drawn)
        estimate = [sum(p * x[k] * (BATCHED / max(n, 1) if by_size else 1) for p, x, n in drawn) for k in (0, 1)]
        holds = holds and estimate == mean and (total, size) == (1, BATCHED)
        found[name] = {"estimate": list(map(float, estimate)), "total": float(total), "size": float(size)}
    reason = f"the expectations over all batches are {found}, the mean gradient is {list(map(float, mean))}"
    return Shown(holds, reason, None, found)


@formula(
    settings=[{"center": 1, "tilt": 0.5}, {"center": -0.5, "tilt": 1}, {"center": 2, "tilt": -0.25}],
    control={"power": -1},
    precision=25,
)
def importance_identity(center: float, tilt: float, power: int = 1) -> tuple[Any, Any]:
    """E_q[(p/q)^power g] integrated, p = N(0, 1), q = N(center, 1), g(x) = e^{tilt x}; E_p[g] in closed form."""

    weighted = mpmath.quad(
        lambda x: mpmath.npdf(x, center) * (mpmath.npdf(x) / mpmath.npdf(x, center)) ** power * mpmath.exp(tilt * x),
        [-15, center, 15],
    )
    return weighted, mpmath.exp(mpmath.mpf(tilt) ** 2 / 2)


# ---- the second moment ----

_SETTINGS = grid(shares=SHARES, batch=[BATCHED, Fraction(1), Fraction(1, 2)], noise=[0, 7])


def _moment(shares: str, batch: Fraction, noise: int, weighted: bool = True) -> Fraction:
    """E‖g̃‖² over all batches; without weights 1/(N p) it is what the first line of the derivation prints."""
    share = SHARES[shares] if weighted else (Fraction(1, SIZE),) * SIZE  # 1/(N p) = 1
    squares = expectation(
        [batch * p for p in SHARES[shares]], lambda members: _square(_estimate(members, share, batch))
    )
    return squares + noise / batch**2


@formula(settings=_SETTINGS, control={"own_pairs": True})
def second_moment(shares: str, batch: Fraction, noise: int, own_pairs: bool = False) -> tuple[Fraction, Fraction]:
    """The last line of the derivation, and the enumeration; the control lets i = j into the sum over pairs."""
    own = sum((_square(g) / p for g, p in zip(GRADIENTS, SHARES[shares], strict=True)), Fraction(0))
    pairs = _square([sum(g[k] for g in GRADIENTS) for k in (0, 1)]) - (0 if own_pairs else sum(map(_square, GRADIENTS)))
    return noise / batch**2 + (own / batch + pairs) / SIZE**2, _moment(shares, batch, noise)


@formula(settings=_SETTINGS)
def second_moment_first_line(shares: str, batch: Fraction, noise: int) -> tuple[Fraction, Fraction, Fraction]:
    """The first line, without weights; the enumeration; the last line."""
    last, enumerated = second_moment(shares, batch, noise)
    return _moment(shares, batch, noise, weighted=False), enumerated, last


@inequality(
    domain={"first": (0.01, 1), "second": (0.01, 1), "third": (0.01, 1), "p": (0.01, 0.99), "r": (0.01, 0.99)},
    settings=[
        {"first": 0.5, "second": 0.25, "third": 0.25, "p": 0.5, "r": 0.5},
        {"first": 0.2, "second": 0.3, "third": 0.9, "p": 1 / 3, "r": 0.5},
    ],
    control={"power": 2},
    obligations=[
        "p > 0 wherever the gradient is not 0",
        "b·max‖ḡ‖ ≤ K, or else the optimum is no set of probabilities",
        "K is exact: with the released K̃ > K uniform sampling can be better (claim both-terms-smaller)",
    ],
    examples=80,
)
def best_shares(first: float, second: float, third: float, p: float, r: float, power: int = 1) -> float:
    """Σ‖g‖²/p over (Σ‖g‖)²: at least 1 for the shares p, (1−p)r, (1−p)(1−r), and 1 for p ∝ ‖g‖^power."""
    norms, shares = (first, second, third), (p, (1 - p) * r, (1 - p) * (1 - r))
    powers = [norm**power for norm in norms]
    any_shares, proposed = (
        sum(norm**2 / share for norm, share in zip(norms, chosen, strict=True)) / sum(norms) ** 2
        for chosen in (shares, [one / sum(powers) for one in powers])
    )
    return min(any_shares - 1, 1 - proposed, any_shares - proposed)


@shown(control={"excess": Fraction(0)}, pair="four gradients 2·e_1, C = 10, b = 1; K̃ = 1.02·K")
def both_terms_smaller(excess: Fraction = Fraction(1, 50)) -> Shown:
    """Second moments when drawn with b‖g‖/K̃ and with b/N; the noise is the same where K̃ = ÑC.

    Over all batches, and by K̃Σ‖g‖/(bN²) + the pairs.
    """
    norm, size = Fraction(2), 4
    released = (1 + excess) * norm * size

    def moment(rate: Fraction) -> Fraction:
        return expectation([rate] * size, lambda members: (len(members) * norm / (size * rate)) ** 2)

    importance, uniform = moment(norm / released), moment(Fraction(1, size))
    by_formula = released * norm / size + norm**2 * (size - 1) / size
    reason = f"with K̃ = {float(1 + excess):.3g}·K the second moment is {float(importance):.6g}, under uniform sampling "
    routes = {"enumeration": float(importance), "formula": float(by_formula)}
    evidence = {"importance": float(importance), "uniform": float(uniform)}
    holds = importance <= uniform if importance == by_formula else None
    return Shown(holds, reason + f"{float(uniform):.6g}", float(importance / uniform), evidence, routes)


# ---- equations (4): clipping ----


@inequality(
    domain={"x": (-30, 30), "y": (-30, 30), "bound": (0.05, 10, "log")},
    settings=[{"x": 3.0, "y": 4.0, "bound": 1.0}, {"x": 0.3, "y": 0.4, "bound": 1.0}],
    control={"share": 2.0},
    obligations=["C > 0: for a negative C the printed line does not clip at all (see equation (17))"],
    examples=60,
)
def equation_4(x: float, y: float, bound: float, share: float = 1.0) -> float:
    """0 where the printed line, g / max {1, ‖g‖/C}, leaves the norm min(‖g‖, C), else below; relative to C.

    So one record moves a sum of clipped gradients by at most C, and the sum of N norms is at most NC.
    """
    norm = math.hypot(x, y)
    return -abs(norm / max(1.0, norm / (share * bound)) - min(norm, bound)) / bound
