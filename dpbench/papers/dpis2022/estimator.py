"""Section 3.2 of DPIS: the weighted estimate of the mean gradient, its second moment and the best probabilities.

Every expectation is over all batches of three records, in exact fractions.

| paper | here |
| --- | --- |
| p(x_i), b·p(x_i) | shares (they sum to 1), inclusion |
| b, N, K | batch, size, gradient sum |
| σ_G² C² d | noise square |
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.dpis2022.enumeration import (
    GRADIENTS,
    NORMS,
    Vector,
    batches,
    expectation,
    inner,
    scaled,
    total,
)

SIZE = len(GRADIENTS)
IMPORTANCE = tuple(norm / sum(NORMS) for norm in NORMS)
SHARES: dict[str, tuple[Fraction, ...]] = {
    "importance": IMPORTANCE,
    "uniform": (Fraction(1, 3),) * 3,
    "other": (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)),
}
MEAN = scaled(total(GRADIENTS), Fraction(1, SIZE))


def _estimate(members: Sequence[int], shares: Sequence[Fraction], batch: Fraction, twice: bool = False) -> Vector:
    """Equation (7) without noise; `twice` divides by b in the weight and again before the sum."""
    weights = [1 / (SIZE * shares[i] * (batch if twice else 1)) for i in members]
    chosen = [scaled(GRADIENTS[i], weight) for i, weight in zip(members, weights, strict=True)]
    return scaled(total(chosen), 1 / batch)


def _mean_estimate(shares: Sequence[Fraction], batch: Fraction, twice: bool = False) -> Vector:
    rates = [batch * share for share in shares]
    return (
        expectation(rates, lambda members: _estimate(members, shares, batch, twice)[0]),
        expectation(rates, lambda members: _estimate(members, shares, batch, twice)[1]),
    )


def _unbiased(twice: bool, batch: Fraction = Fraction(3, 2)) -> Shown:
    found = {name: _mean_estimate(shares, batch, twice) for name, shares in SHARES.items()}
    holds = all(mean == MEAN for mean in found.values())
    shown = tuple(map(float, found["importance"]))
    words = f"the expectation over all batches is {shown}, the mean gradient {tuple(map(float, MEAN))}"
    return Shown(holds, words, shown[1] / float(MEAN[1]), {"expectation": list(shown), "mean": list(map(float, MEAN))})


equation_7 = Demonstration(lambda: _unbiased(False), twin=lambda: _unbiased(True))


def _equal_weighted_norms(power: int) -> Shown:
    squares = {inner(g, g) / (SIZE * p**power) ** 2 for g, p in zip(GRADIENTS, IMPORTANCE, strict=True)}
    one = len(squares) == 1 and squares == {(sum(NORMS) / SIZE) ** 2}
    words = f"the squared norms of the weighted gradients are {sorted(map(float, squares))}; (K/N)² is "
    return Shown(one, words + f"{float((sum(NORMS) / SIZE) ** 2)}", float(sum(NORMS) / SIZE))


weighted_norms = Demonstration(lambda: _equal_weighted_norms(1), twin=lambda: _equal_weighted_norms(2))


def _batch_probabilities(complement: bool) -> Shown:
    """Equation (8): the products sum to 1, give every record its own inclusion, and the expected size is b."""
    batch = Fraction(3, 2)
    inclusion = [batch * share for share in IMPORTANCE]
    members = [chosen for _, chosen in batches(inclusion)]
    weight = {}
    for chosen in members:
        product = Fraction(1)
        for i in range(SIZE):
            if i in chosen:
                product *= inclusion[i]
            elif complement:
                product *= 1 - inclusion[i]
        weight[chosen] = product
    whole = sum(weight.values())
    drawn = [sum(weight[chosen] for chosen in members if i in chosen) for i in range(SIZE)]
    size = sum(len(chosen) * weight[chosen] for chosen in members)
    holds = whole == 1 and drawn == inclusion and size == batch
    evidence = {"total": float(whole), "expected_size": float(size), "batch": float(batch)}
    return Shown(
        holds, f"the probabilities sum to {whole}; the expected size is {size} for b = {batch}", None, evidence
    )


equation_8 = Demonstration(lambda: _batch_probabilities(True), twin=lambda: _batch_probabilities(False))


# ---- the second moment ----


def _moment(weighted: bool, shares: str, batch: str, noise: int) -> Fraction:
    """E‖g̃‖² over all batches; without the weights it is what the first line of the derivation prints."""
    share, size = SHARES[shares], Fraction(batch)

    def square(members: tuple[int, ...]) -> Fraction:
        if weighted:
            found = _estimate(members, share, size)
        else:
            found = scaled(total([GRADIENTS[i] for i in members]), 1 / size)
        return inner(found, found)

    return expectation([size * p for p in share], square) + Fraction(noise) / size**2


def _expanded(shares: str, batch: str, noise: int, pairs: bool = True) -> Fraction:
    """The last line: noise, own terms, and the pairs whose sum does not depend on p."""
    share, size = SHARES[shares], Fraction(batch)
    own = sum((inner(g, g) / p for g, p in zip(GRADIENTS, share, strict=True)), Fraction(0)) / (size * SIZE**2)
    whole = total(GRADIENTS)
    crossed = inner(whole, whole) - (sum((inner(g, g) for g in GRADIENTS), Fraction(0)) if pairs else 0)
    return Fraction(noise) / size**2 + own + crossed / SIZE**2


_MOMENTS: tuple[dict[str, Any], ...] = tuple(
    {"shares": shares, "batch": batch, "noise": noise}
    for shares in SHARES
    for batch, noise in (("3/2", 0), ("1", 7), ("1/2", 2))
)

second_moment = Formula(
    printed=_expanded,
    definition=lambda **setting: _moment(True, **setting),
    settings=_MOMENTS,
    twin=lambda **setting: _expanded(**setting, pairs=False),
)

second_moment_first_line = Formula(
    printed=lambda **setting: _moment(False, **setting),
    definition=lambda **setting: _moment(True, **setting),
    settings=_MOMENTS,
    twin=lambda **setting: _moment(False, **setting) * 2,
    corrected=_expanded,
)


def _objective(with_noise: bool) -> Shown:
    """Equation (9): E‖g̃‖² less the objective must be one number for every p."""
    batch, noise = Fraction(3, 2), Fraction(5)
    left = set()
    for index, (name, shares) in enumerate(SHARES.items()):
        own = sum((inner(g, g) / p for g, p in zip(GRADIENTS, shares, strict=True)), Fraction(0))
        spread = noise * (index + 1)  # σ_G may depend on p
        objective = own / (batch * SIZE**2) + (spread / batch**2 if with_noise else 0)
        left.add(_moment(True, name, "3/2", 0) + spread / batch**2 - objective)
    words = f"what the objective leaves out takes {len(left)} value(s) over {len(SHARES)} choices of p"
    return Shown(len(left) == 1, words, float(len(left)))


equation_9 = Demonstration(lambda: _objective(True), twin=lambda: _objective(False))


def _jensen(first: float, second: float, third: float, p: float, r: float, factor: float) -> float:
    """Σ‖g‖²/p − factor·(Σ‖g‖)², relative to (Σ‖g‖)²; the shares are p, (1−p)r and (1−p)(1−r)."""
    norms, shares = (first, second, third), (p, (1 - p) * r, (1 - p) * (1 - r))
    return sum(g * g / share for g, share in zip(norms, shares, strict=True)) / sum(norms) ** 2 - factor


_NORMS = {"first": Range(0.01, 1), "second": Range(0.01, 1), "third": Range(0.01, 1)}
_SHARES = {"p": Range(0.01, 0.99), "r": Range(0.01, 0.99)}

jensen = Inequality(
    margin=lambda first, second, third, p, r: _jensen(first, second, third, p, r, 1.0),
    domain={**_NORMS, **_SHARES},
    settings=(
        {"first": 0.5, "second": 0.25, "third": 0.25, "p": 0.5, "r": 0.5},
        {"first": 0.2, "second": 0.3, "third": 0.9, "p": 1 / 3, "r": 0.5},
    ),
    twin=lambda first, second, third, p, r: _jensen(first, second, third, p, r, 1.001),
    tolerance=1e-12,
    obligations=("p > 0 wherever the gradient is not 0", "equality where ‖g‖/p is constant"),
    examples=80,
)


def _no_better(first: float, second: float, third: float, p: float, r: float, power: int) -> float:
    """How much larger the own terms are at (p, r) than at p ∝ ‖g‖^power, relative."""
    norms = (first, second, third)
    powers = [g**power for g in norms]
    proposed = sum(g * g / (w / sum(powers)) for g, w in zip(norms, powers, strict=True))
    return _jensen(first, second, third, p, r, 0.0) - proposed / sum(norms) ** 2


optimal_shares = Inequality(
    margin=lambda first, second, third, p, r: _no_better(first, second, third, p, r, 1),
    domain={**_NORMS, **_SHARES},
    settings=jensen.settings,
    twin=lambda first, second, third, p, r: _no_better(first, second, third, p, r, 2),
    tolerance=1e-12,
    obligations=("b·max‖ḡ‖ ≤ K, or else the optimum is no set of probabilities",),
    examples=80,
)

not_above_uniform = Inequality(
    margin=lambda first, second, third: _jensen(first, second, third, 1 / 3, 0.5, 1.0),
    domain=_NORMS,
    settings=({"first": 0.5, "second": 0.5, "third": 0.5}, {"first": 0.1, "second": 0.5, "third": 1.0}),
    twin=lambda first, second, third: _jensen(first, second, third, 1 / 3, 0.5, 1.01),
    tolerance=1e-12,
    obligations=("K is exact: with the released K̃ > K the comparison can turn round (claim both-terms-smaller)",),
    examples=60,
)


def _with_released_sum(excess: Fraction) -> Shown:
    """Equal gradients g e_1 (norm 2, C = 10, N = 4, b = 1) drawn with b‖g‖/K̃, K̃ = (1 + excess)·K, against b/N.

    Second moments of the estimates over all batches; the same to the formula K̃Σ‖g‖/(bN²) + the pairs.
    """
    norm, size, batch = Fraction(2), 4, Fraction(1)
    released = (1 + excess) * norm * size

    def moment(inclusion: Fraction) -> Fraction:
        weight = 1 / (size * inclusion / batch)
        return expectation([inclusion] * size, lambda members: (len(members) * weight * norm / batch) ** 2)

    importance, uniform = moment(batch * norm / released), moment(batch / size)
    pairs = norm**2 * size * (size - 1) / size**2
    by_formula = released * norm * size / (batch * size**2) + pairs
    holds = importance <= uniform and importance == by_formula
    words = f"with K̃ = {float(1 + excess):.3g}·K the second moment is {float(importance):.6g}, under uniform sampling "
    routes = {"enumeration": float(importance), "formula": float(by_formula)}
    evidence = {"importance": float(importance), "uniform": float(uniform), "noise": "equal where K̃ = ÑC"}
    return Shown(holds, words + f"{float(uniform):.6g}", float(importance / uniform), evidence, routes)


both_terms_smaller = Demonstration(
    lambda: _with_released_sum(Fraction(1, 50)), twin=lambda: _with_released_sum(Fraction(0))
)
