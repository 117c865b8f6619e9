"""Internal: the bounds on aliasing, tails and cuts that every certified interval rests on.

Each bound of a certificate is needed: with one of them planted as zero, the enclosure misses the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from flint import arb

from dpbench.privacy.certified import _contour
from dpbench.privacy.certified._contour import Exponents, plan_right, plan_strip, transform
from dpbench.privacy.certified._exact_sums import gaussian_delta, single_delta
from dpbench.privacy.certified._factors import GaussianFactor
from dpbench.privacy.certified._jl import JlFactor
from dpbench.privacy.certified._mixture import Mixture
from dpbench.privacy.certified._numbers import working_bits

HALF = (Fraction(1, 2), Fraction(1, 2))
EPSILON = 0.4


def zero(*_: Any) -> Any:
    return arb(0)


def truth(factor: GaussianFactor | Mixture) -> Any:
    """The closed form in 300 bits."""
    with working_bits(300):
        if isinstance(factor, GaussianFactor):
            return gaussian_delta(factor.squared_mu, arb(EPSILON))
        return single_delta(factor.balls(), arb(factor.noise_multiplier), factor.direction, arb(EPSILON))


def contained(factor: GaussianFactor | Mixture, planner: Callable[..., Any], target: float, share: float = 1.0) -> bool:
    """Whether the contour's ball, with only a share of the planned nodes, contains the closed form."""
    parts = [(factor, 1)]
    plan = planner(parts, Exponents(parts), EPSILON, target)
    plan = replace(plan, count=max(2, int(plan.count * share)))
    with working_bits(200):
        return bool(transform(parts, plan, 200).delta(arb(EPSILON)).value.contains(truth(factor)))


FACTORS = [GaussianFactor(((1, 1.0),)), Mixture(HALF, 1.0, "remove"), Mixture(HALF, 1.0, "add")]


@pytest.mark.parametrize("planner", [plan_right, plan_strip])
@pytest.mark.parametrize("factor", FACTORS)
def test_the_tail(factor: Any, planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = (0.3, 0.5, 0.7)
    assert all(contained(factor, planner, -12.0, share) for share in shares)
    monkeypatch.setattr(_contour, "tail_bound", zero)
    assert not all(contained(factor, planner, -12.0, share) for share in shares)


@pytest.mark.parametrize("planner", [plan_right, plan_strip])
@pytest.mark.parametrize("factor", FACTORS)
def test_the_aliases(factor: Any, planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = (-4.0, -8.0, -12.0)
    assert all(contained(factor, planner, target) for target in targets)
    monkeypatch.setattr(_contour, "aliasing_bound", zero)
    assert not all(contained(factor, planner, target) for target in targets)


def moments_agree(release: Any, c: float, step: float) -> bool:
    """Whether coarse enclosures of M overlap fine ones at every node."""
    with working_bits(300):
        coarse, _ = release.moments(arb(c), arb(step), 20, 4.0)
        fine, _ = type(release)(*[getattr(release, name) for name in release.__dataclass_fields__]).moments(
            arb(c), arb(step), 20, 90.0
        )
        return all(a.overlaps(b) for a, b in zip(coarse, fine, strict=True))


RELEASES = [
    (Mixture(HALF, 1.0, "remove"), 0.7),
    (Mixture(HALF, 1.0, "add"), 0.7),
    (Mixture(HALF, 0.4, "replace"), 0.7),
    (Mixture((Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)), 2.0, "remove"), 3.0),
    (JlFactor(Fraction(1, 3), 1.0, 5, "remove"), -0.5),
    (JlFactor(Fraction(1, 3), 1.0, 5, "add"), 1.5),
]


@pytest.mark.parametrize(("release", "c"), RELEASES)
def test_the_moments(release: Any, c: float) -> None:
    assert moments_agree(release, c, 0.8)


@pytest.mark.parametrize(("release", "c"), RELEASES[:4])
def test_the_range_of_the_moments(release: Any, c: float, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {name: getattr(Mixture, name) for name in ("outside", "aliasing", "span", "height_and_step")}

    def short(self: Mixture, c: float, digits: float) -> tuple[float, float, float]:
        low, high, top = exact["span"](self, c, digits)
        return low + 0.2 * (high - low), high - 0.2 * (high - low), top

    fine, _ = release.moments(arb(c), arb(1), 2, 90.0)
    monkeypatch.setattr(Mixture, "outside", zero)
    monkeypatch.setattr(Mixture, "aliasing", zero)
    monkeypatch.setattr(Mixture, "span", short)
    coarse, _ = release.moments(arb(c), arb(1), 2, 6.0)
    assert not all(a.overlaps(b) for a, b in zip(coarse, fine, strict=True))


@pytest.mark.parametrize(("release", "c"), RELEASES)
def test_the_bound_holds_at_every_larger_u(release: Any, c: float) -> None:
    for start in (2.0, 15.0) if isinstance(release, Mixture) else (15.0,):
        _, line = release.lift(c, start)
        with working_bits(200):
            bound = release.tail(arb(c), arb(start), line, 25.0)
            for factor in (1.0, 1.37, 3.1, 10.0) if isinstance(release, Mixture) else (1.0, 3.1):
                values, _ = release.moments(arb(c), arb(start * factor), 2, 60.0)
                assert abs(values[1]).lower() <= bound
            assert bound < abs(values[0]).upper()
