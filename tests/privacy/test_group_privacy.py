"""The generic bound for groups: the formula, its inverse, where it rises again, and the truth for two records."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench import account
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, GroupSampledGaussian, SampledGaussian
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate, No, PrivacyCurve
from dpbench.privacy.groups import GroupCurve, check_group, group_curve


def gaussian(mu: float, accountant: str = "gdp") -> Any:
    """The curve of a Gaussian release that is μ-GDP."""
    return load_accountant(accountant).curve(Composition(((Gaussian(1 / mu), 1),)))


def formula(curve: Any, group_size: int, epsilon: float) -> float:
    """δ(ε/g) · Σ e^(iε/g), term by term."""
    single = epsilon / group_size
    return float(curve.delta(single).safe) * math.fsum(math.exp(i * single) for i in range(group_size))


class Tail:
    """δ(ε) = (1 + ε)^−3 / 10: so heavy a tail that the product rises."""

    kind: Any = "exact"
    adjacency: Any = "add_or_remove"
    mu = None

    def delta(self, epsilon: float) -> Estimate:
        value = (1 + epsilon) ** -3 / 10
        return Estimate(value, value, value)

    def epsilon(self, delta: float) -> Estimate:
        value = max((10 * delta) ** (-1 / 3) - 1, 0.0)
        return Estimate(value, value, value)


@given(st.floats(0.05, 3.0), st.integers(2, 20), st.floats(0.0, 30.0))
@settings(max_examples=100, deadline=None)
def test_delta_is_the_formula_or_less(mu: float, group_size: int, epsilon: float) -> None:
    """Rounded up by 1e-12; less only where a smaller ε gives less."""
    one = gaussian(mu)
    found = GroupCurve(one, group_size).delta(epsilon)
    assert found.upper == found.value <= 1
    assert found.value <= formula(one, group_size, epsilon) * (1 + 1e-10) + 1e-300


@given(st.floats(0.05, 2.0), st.integers(2, 8), st.floats(-12, -2))
@settings(max_examples=100, deadline=None)
def test_epsilon_is_the_inverse_from_the_safe_side(mu: float, group_size: int, power: float) -> None:
    """At ε the formula is at most δ (rounding: 1e-10 relative), 1e-6 below it is more."""
    one, delta = gaussian(mu), 10.0**power
    epsilon = GroupCurve(one, group_size).epsilon(delta).value
    assert formula(one, group_size, epsilon) <= delta * (1 + 1e-10)
    if epsilon > 0:
        assert formula(one, group_size, epsilon * (1 - 1e-6)) > delta


def test_it_bounds_what_two_gaussian_records_really_cost() -> None:
    """A Gaussian mechanism moves by 2 for two records: exactly 2μ-GDP. The generic bound is above, but not absurd."""
    one, two = gaussian(0.3), gaussian(0.6)
    bound = GroupCurve(one, 2)
    for delta in (1e-3, 1e-5, 1e-9):
        assert two.epsilon(delta).value < bound.epsilon(delta).value < 1.5 * two.epsilon(delta).value
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        assert two.delta(epsilon).value < bound.delta(epsilon).value


def test_a_pure_bound_is_multiplied() -> None:
    """Basic composition of Laplace at b = 20 ten times is (0.5, 0)-private, so a group of 3 is (1.5, 0)-private."""
    from dpbench.events import Laplace

    [found] = account(Composition(((Laplace(20.0), 10),)), delta=1e-9, accountants="basic", group_size=3)
    assert found.epsilon is not None
    assert found.epsilon.value == pytest.approx(1.5, rel=1e-6)
    assert found.kind == "upper_bound"


def test_where_the_product_rises_the_smallest_value_so_far_counts() -> None:
    curve = GroupCurve(Tail(), 4)
    deltas = [curve.delta(epsilon).value for epsilon in (0.0, 1.0, 4.0, 20.0, 60.0)]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(deltas))
    assert deltas[-1] < 1 < formula(Tail(), 4, 60.0)
    truth = min(formula(Tail(), 4, place / 1000) for place in range(20000))
    assert deltas[-1] == pytest.approx(truth, rel=1e-5)


def test_where_no_epsilon_does_it_says_so() -> None:
    found = GroupCurve(Tail(), 4).epsilon(1e-6)
    assert found.value == math.inf
    assert found.reason is not None
    assert "groups" in found.reason or "records" in found.reason


def test_kinds() -> None:
    approximation = group_curve(gaussian(0.3, "gdp_clt"), 3)
    assert isinstance(approximation, GroupCurve)
    assert approximation.kind == "approximation"
    assert approximation.delta(1.0).upper is None
    assert isinstance(approximation, PrivacyCurve)
    assert isinstance(group_curve(replace(gaussian(0.3), kind="lower_bound"), 3), No)


def test_a_group_of_one_is_one_record() -> None:
    one = gaussian(0.7)
    assert GroupCurve(one, 1).delta(1.0).value == pytest.approx(one.delta(1.0).value, rel=1e-11)
    alone = account(Gaussian(2.0), delta=1e-5, accountants="rdp")
    assert account(Gaussian(2.0), delta=1e-5, accountants="rdp", group_size=1)[0].epsilon == alone[0].epsilon


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3"])
def test_a_bad_size_is_one_sentence(size: Any) -> None:
    with pytest.raises(DpbenchError, match=r"^group_size = .*: expected a whole number, 1 or more$"):
        account(Gaussian(1.0), delta=1e-5, group_size=size)


def test_groups_of_groups_are_refused() -> None:
    composition = Composition(((GroupSampledGaussian(0.01, 1.0, 2), 5), (SampledGaussian(0.01, 1.0), 5)))
    with pytest.raises(DpbenchError, match="speaks of groups already"):
        account(composition, delta=1e-5, group_size=3)
    assert check_group(composition, 1) == 1


def test_it_starts_from_the_safe_end_of_what_is_known() -> None:
    class Unsure:
        kind, adjacency, mu = "exact", "add_or_remove", None

        def delta(self, epsilon: float) -> Estimate:
            value = math.exp(-10 * (1 + epsilon))
            return Estimate(value, value / 2, 2 * value)

    found = GroupCurve(Unsure(), 2).delta(1.0).value  # type: ignore[arg-type]
    assert found == pytest.approx(2 * math.exp(-15) * (1 + math.exp(0.5)), rel=1e-10)
