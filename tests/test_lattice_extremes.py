"""Lattices at many projections, many releases and large groups: a bound that holds, or a reason."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpbench.accountants._complex import log1p
from dpbench.accountants._hinges import sensitivity_nodes, stirling_rest
from dpbench.accountants._lattice_projections import log_density
from dpbench.accountants.lattice import accountant
from dpbench.accounting import No, account, load_accountant
from dpbench.certified import certify
from dpbench.events import (
    Composition,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)


def _log_density(noise: float, projections: int, s: float) -> float:
    """The formula with the Bessel function, at 40 digits."""
    with mpmath.workdps(40):
        noise_, half, order = mpmath.mpf(noise), mpmath.mpf(projections) / 2, mpmath.mpf(projections + 1) / 2
        alpha, beta = (projections + (noise_ * s) ** 2) / 2, 1 / (8 * noise_**2)
        constant = noise_ / mpmath.sqrt(2 * mpmath.pi) * 2 * mpmath.exp(half * mpmath.log(half) - mpmath.loggamma(half))
        bessel = mpmath.log(mpmath.besselk(order, 2 * mpmath.sqrt(alpha * beta)))
        return float(mpmath.log(constant) - mpmath.mpf(s) / 2 + order / 2 * mpmath.log(beta / alpha) + bessel)


@pytest.mark.parametrize("projections", [1, 5, 118, 119, 120, 200, 1000])
@pytest.mark.parametrize("noise", [0.3, 1.0, 100.0])
def test_the_density_has_its_digits(projections: int, noise: float) -> None:
    for s in (-30.0, -0.1, 0.0, 1.0):
        expected = _log_density(noise, projections, s)
        found = float(log_density(noise, projections, np.array([s]))[0])
        assert found == pytest.approx(expected, abs=1e-12 * max(1.0, abs(expected)))


@pytest.mark.parametrize("projections", [10**4, 10**6, 10**9])
def test_the_density_of_many_projections_sums_to_one(projections: int) -> None:
    s = np.linspace(-30.0, 30.0, 200_001)
    assert float(np.exp(log_density(1.0, projections, s)).sum() * (s[1] - s[0])) == pytest.approx(1.0, abs=1e-11)


@pytest.mark.parametrize("projections", [1, 20, 21, 10**4, 10**9])
def test_the_nodes_of_the_sensitivity_have_its_moments(projections: int) -> None:
    z, weights, left = sensitivity_nodes(projections)
    assert float(weights.sum()) + left == pytest.approx(1.0, abs=1e-12)
    assert float((weights / z**2).sum()) == pytest.approx(1.0, abs=1e-12)


def test_stirling_rest_is_that_of_gamma() -> None:
    for x in (0.5, 9.9, 10.0, 50.0, 1e6):
        with mpmath.workdps(40):
            at = mpmath.mpf(x)
            rest = mpmath.loggamma(at) - (at - 0.5) * mpmath.log(at) + at - mpmath.log(2 * mpmath.pi) / 2
        assert stirling_rest(x) == pytest.approx(float(rest), abs=1e-14)


@pytest.mark.parametrize("projections", [100, 2000, 10**5, 10**9])
def test_many_projections_stay_above_the_exact_answer(projections: int) -> None:
    """At 10^5 projections the bound was below the truth, at 10^15 it was 0."""
    training = Composition(((RandomSensitivityGaussian(0.01, 4.0, projections), 100_000),))
    exact = load_accountant("exact").curve(training).epsilon(1e-5)
    found = accountant.curve(training).epsilon(1e-5).value
    assert exact.upper is not None
    assert exact.upper <= found <= exact.value * (1 + 1e-6)


def test_large_losses_of_many_projections_cost_little() -> None:
    """δ(1) was 0.1: beyond the reach e^-reach stood for the mass of the releases without the record, each time."""
    training = Composition(((RandomSensitivityGaussian(1e-4, 1.0, 100), 10**6),))
    exact = load_accountant("exact").curve(training).delta(1.0)
    found = accountant.curve(training).delta(1.0).value
    assert exact.value <= found <= 2 * exact.value


@pytest.mark.parametrize(
    ("parts", "delta"),
    [
        (((Gaussian(33.191445299152655), 1), (Laplace(23.01318597527412), 1)), 1.0470954331115579e-12),
        (((SampledGaussian(0.8591117280517409, 8.405817508278286), 1), (Gaussian(3.0), 5)), 1.7191400045419365e-16),
        (((Gaussian(0.5325399812296249), 1), (DiscretePair((0.3, 0.7), (0.25, 0.75)), 5)), 1.9514808799798686e-12),
        (((Gaussian(0.8327119636854996), 1), (Laplace(14.800550745804735), 2)), 1.0666345437309837e-07),
    ],
)
def test_few_unlike_releases_stay_above_the_truth(parts: tuple[tuple[Event, int], ...], delta: float) -> None:
    """They were up to 2e-7 below: where a transform is tiny its logarithm had lost its digits."""
    found = accountant.curve(Composition(parts)).epsilon(delta).value
    proven = certify(Composition(parts), delta=delta)
    assert proven.upper <= found <= proven.upper * (1 + 1e-5)


def test_logarithms_of_tiny_transforms_keep_their_digits() -> None:
    z = np.array([1e-9 - 1, 1e-12j - 1, 0.3 - 0.2j - 1, 1e-20 + 1e-30j, -0.4 + 0.1j, -1.0])
    found = log1p(z)
    for got, value in zip(found[:5], z[:5], strict=True):
        with mpmath.workdps(60):
            truth = complex(mpmath.log(1 + mpmath.mpc(value)))
        assert complex(got) == pytest.approx(truth, rel=1e-13, abs=1e-300)
    assert np.isfinite(found).all()


def test_what_is_out_of_reach_is_refused_with_a_reason() -> None:
    for event in (RandomSensitivityGaussian(0.01, 1.0, 10**10), GroupSampledGaussian(0.01, 1.0, 10**18)):
        assert isinstance(accountant.supports(Composition(((event, 10),))), No)
    many = Composition(((SampledGaussian(0.01, 1.0), 9 * 10**15),))
    rare = Composition(((SampledGaussian(1e-12, 0.05), 9 * 10**15),))
    wide = Composition(((RandomSensitivityGaussian(0.01, 1e12, 5), 10),))
    for composition in (many, rare, wide):
        (answer,) = account(composition, delta=1e-5, accountants="lattice")
        assert answer.refused
        assert math.isfinite(answer.seconds)
