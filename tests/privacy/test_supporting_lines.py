"""Trade-off functions hold between their ends, however small they are; each test fails with a coarser search or end."""

from __future__ import annotations

import math

import mpmath
import pytest

from dpbench.errors import DpbenchError
from dpbench.events import Composition, DiscretePair, Gaussian, SampledGaussian
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.supporting_lines import SupportingLines
from dpbench.privacy.trade_off import tangent_mu, trade_off

TRAINING = Composition(((SampledGaussian(0.01, 1.0), 1000),))


def _gaussian(mu: mpmath.mpf, alpha: float) -> mpmath.mpf:
    """Φ(Φ⁻¹(1 − α) − μ), at 60 digits."""
    with mpmath.workdps(60):
        return mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(alpha)) - mu)


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("name", ["gdp", "exact"])
def test_both_ends_hold_where_f_is_tiny_too(name: str, noise: float) -> None:
    curve = load_accountant(name).curve(Composition(((Gaussian(noise), 1),)))
    for alpha in (1e-300, 1e-20, 1e-6, 0.001, 0.05, 0.3, 0.5, 0.9, 0.999, 1 - 1e-9):
        found = trade_off(curve, alpha)
        truth = _gaussian(1 / mpmath.mpf(noise), alpha)
        assert found.lower is not None
        assert found.upper is not None
        assert found.lower <= truth <= found.upper
        if 1e-20 < alpha <= 0.5:
            assert found.value == pytest.approx(float(truth), rel=1e-6)


def test_f_at_zero_is_one_less_the_infinite_losses() -> None:
    exact = load_accountant("exact")
    much = trade_off(exact.curve(Composition(((Gaussian(0.001), 1),))), 0.0)  # δ(700) is 1 here
    assert (much.lower, much.value, much.upper) == (1.0, 1.0, 1.0)
    revealing = trade_off(exact.curve(Composition(((DiscretePair((0.25, 0.75), (0.0, 1.0)), 1),))), 0.0)
    assert revealing.value == pytest.approx(0.75, abs=1e-12)


def test_no_upper_end_comes_from_a_bound_and_no_end_from_an_approximation() -> None:
    bound = trade_off(load_accountant("rdp").curve(TRAINING), 0.05)
    assert bound.upper is None
    assert bound.lower is not None
    assert bound.lower <= trade_off(load_accountant("exact").curve(TRAINING), 0.05).value
    guess = trade_off(load_accountant("gdp_clt").curve(TRAINING), 0.05)
    assert guess.lower is None
    assert guess.upper is None


def test_answers_are_shared_between_all_errors() -> None:
    lines = SupportingLines(*2 * (load_accountant("basic").curve(TRAINING),))
    for alpha in (0.01, 0.02, 0.03, 0.05, 0.07, 0.1):
        lines.highest(alpha)
    assert len(lines.known) < 43 + 6 * 30


@pytest.mark.parametrize("noise", [0.5, 2.0, 100.0])
@pytest.mark.parametrize("delta", [1e-5, 0.01, 0.3])
def test_the_tangent_holds_between_its_ends_also_where_delta_at_zero_is_less(noise: float, delta: float) -> None:
    found = tangent_mu(load_accountant("gdp").curve(Composition(((Gaussian(noise), 1),))), delta=delta)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= 1 / noise <= found.upper
    assert found.upper - found.lower < 1e-7 / noise


def test_bad_errors_of_a_table_are_refused() -> None:
    from dpbench.privacy.trade_off import trade_off_table

    with pytest.raises(DpbenchError, match="expected a type I error"):
        trade_off_table(load_accountant("gdp").curve(Composition(((Gaussian(1.0), 1),))), [0.5, math.nan])
