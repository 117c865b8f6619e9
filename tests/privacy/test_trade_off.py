"""The trade-off function against closed forms, against its own directions, and through the command line."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from scipy import integrate, optimize, stats

from dpbench.cli import cli
from dpbench.errors import DpbenchError
from dpbench.events import Composition, DiscretePair, Event, Gaussian, SampledGaussian
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.trade_off import smallest_mu, tangent_mu, total_variation, trade_off, trade_off_table

ROW_1 = (SampledGaussian(256 / 60000, 1.3), 3516)


def curve(*parts: tuple[Event, int], accountant: str = "exact"):  # type: ignore[no-untyped-def]
    return load_accountant(accountant).curve(Composition(parts))


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_gaussian_has_the_closed_form(alpha: float) -> None:
    found = trade_off(curve((Gaussian(2.0), 9)), alpha)
    expected = stats.norm.cdf(stats.norm.ppf(1 - alpha) - 1.5)
    assert found.value == pytest.approx(expected, rel=1e-8, abs=1e-12)


def _neyman_pearson(rate: float, sigma: float, alpha: float) -> tuple[float, float]:
    """One sampled mechanism: f of P against Q and of Q against P by the likelihood-ratio test, without any curve.

    The ratio of (1 − q) N(0) + q N(1) to N(0) rises in x, so both tests are thresholds.
    """

    def remove(threshold: float) -> tuple[float, float]:  # errors of rejecting the mixture below, and N(0) above it
        mixture = (1 - rate) * stats.norm.cdf(threshold / sigma) + rate * stats.norm.cdf((threshold - 1) / sigma)
        return float(mixture), float(stats.norm.sf(threshold / sigma))

    at = optimize.brentq(lambda t: remove(t)[0] - alpha, -60 * sigma, 60 * sigma, xtol=1e-14)
    first = remove(at)[1]  # P = the mixture is the null hypothesis
    at = optimize.brentq(lambda t: remove(t)[1] - alpha, -60 * sigma, 60 * sigma, xtol=1e-14)
    return first, remove(at)[0]


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.4, 0.8])
def test_the_directions_of_one_sampled_release_are_those_of_neyman_and_pearson(alpha: float) -> None:
    found = curve((SampledGaussian(0.2, 0.7), 1))
    remove, add = _neyman_pearson(0.2, 0.7, alpha)
    assert trade_off(found, alpha, "remove").value == pytest.approx(remove, abs=1e-9)
    assert trade_off(found, alpha, "add").value == pytest.approx(add, abs=1e-9)
    assert trade_off(found, alpha).value <= min(remove, add) + 1e-12


def test_the_hull_is_convex_lies_below_both_and_is_its_own_inverse() -> None:
    found = curve((SampledGaussian(0.05, 0.9), 400))
    alphas = [0.0, 0.02, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 1.0]
    table = trade_off_table(found, alphas)
    assert table.remove is not None
    assert table.add is not None
    values = [one.value for one in table.both]
    points = list(zip(alphas, values, strict=True))
    for (a, before), (b, here), (c, after) in zip(points, points[1:], points[2:], strict=False):
        assert here <= before + (after - before) * (b - a) / (c - a) + 1e-10
    for both, remove, add in zip(table.both, table.remove, table.add, strict=True):
        assert both.value <= min(remove.value, add.value) + 1e-10
    for alpha, beta in zip(alphas[1:-1], values[1:-1], strict=True):
        assert trade_off(found, beta).value == pytest.approx(alpha, abs=1e-7)
        # add is the inverse of remove
        assert trade_off(found, trade_off(found, alpha, "remove").value, "add").value == pytest.approx(alpha, abs=1e-7)
    # somewhere the hull is strictly below both: that is why it is taken after composing
    assert (
        max(min(r.value, a.value) - b.value for b, r, a in zip(table.both, table.remove, table.add, strict=True)) > 1e-6
    )
    least = min(alpha + value for alpha, value in zip(alphas, values, strict=True))
    assert 1 - table.total_variation.value <= least + 1e-12


def test_randomised_response_is_a_polygon() -> None:
    """P = (3/4, 1/4), Q its mirror: f has its corner at (1/4, 1/4)."""
    found = curve((DiscretePair((0.75, 0.25), (0.25, 0.75)), 1))
    for alpha, beta in ((0.0, 1.0), (0.125, 0.625), (0.25, 0.25), (0.625, 0.125), (1.0, 0.0)):
        assert trade_off(found, alpha).value == pytest.approx(beta, abs=1e-9)
    assert total_variation(found).value == pytest.approx(0.5, abs=1e-12)


def test_an_upper_bound_gives_a_lower_bound_of_the_trade_off() -> None:
    exact, bound = curve(ROW_1), curve(ROW_1, accountant="rdp")
    for alpha in (0.05, 0.5):
        assert trade_off(bound, alpha).value <= trade_off(exact, alpha).value
    with pytest.raises(DpbenchError, match="has no separate directions"):
        trade_off(bound, 0.5, "remove")


def test_total_variation_is_that_of_the_densities() -> None:
    found = total_variation(curve((SampledGaussian(0.3, 0.8), 1)))
    area = integrate.quad(
        lambda x: 0.3 * abs(stats.norm.pdf(x, 1, 0.8) - stats.norm.pdf(x, 0, 0.8)) / 2, -9, 10, limit=200
    )
    assert found.value == pytest.approx(area[0], abs=1e-9)


def test_the_tangent_gaussian() -> None:
    found = curve((Gaussian(2.0), 9))
    assert tangent_mu(found, delta=1e-5).value == pytest.approx(1.5, rel=1e-9)
    assert smallest_mu(found, points=7)[0] == pytest.approx(1.5, rel=1e-9)
    sampled = curve(ROW_1)
    touching = tangent_mu(sampled, delta=1e-5)
    assert touching.lower is not None
    assert touching.upper is not None
    assert touching.lower <= touching.value <= touching.upper
    gaussian = load_accountant("gdp").curve(Composition(((Gaussian(1 / touching.value), 1),)))
    assert gaussian.epsilon(1e-5).value == pytest.approx(sampled.epsilon(1e-5).value, rel=1e-9)
    largest, at = smallest_mu(sampled, 1e-12)
    assert largest >= touching.value
    assert 0 <= at <= sampled.epsilon(1e-12).value


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, True, "much"])
def test_bad_alphas_are_refused(alpha: float) -> None:
    with pytest.raises(DpbenchError, match="expected a type I error, from 0 to 1"):
        trade_off(curve((Gaussian(1.0), 1)), alpha)


def test_tangent_mu_needs_one_place() -> None:
    with pytest.raises(DpbenchError, match="give either epsilon or delta"):
        tangent_mu(curve((Gaussian(1.0), 1)))


def test_the_command_line_prints_the_trade_off() -> None:
    arguments = ["account", "--sampling-rate", "0.01", "--steps", "99", "--sigma", "1", "--delta", "1e-5"]
    arguments += ["--trade-off", "--accountant", "exact", "--accountant", "rdp"]
    shown = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert shown.exception is None
    assert "type II error" in shown.stdout
    found = json.loads(CliRunner().invoke(cli, [*arguments, "--json"], standalone_mode=False).stdout)
    exact = found["trade_off"]["exact"]
    assert exact["alpha"][0] == 0
    assert len(exact["both"]) == len(exact["remove"]) == len(exact["add"]) == len(exact["alpha"])
    assert found["trade_off"]["rdp"]["remove"] is None
    assert 0 < exact["total_variation"] < 1
    assert exact["tangent_mu"] > 0
