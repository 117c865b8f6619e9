"""The density of a release of random sensitivity and its moments, against mpmath: values and their stated errors."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.accountants._loss_leaf import UNIT
from dpbench.accountants._projections import LOSSES, heavy_directions
from dpbench.accountants._projections_contour import Box
from dpbench.accountants._projections_density import Law, _less_one
from dpbench.accountants._projections_moment import Release
from dpbench.accountants._projections_path import make_path
from dpbench.accountants._projections_rare import Rare
from dpbench.accountants.exact.accountant import accountant
from dpbench.events import Composition, RandomSensitivityGaussian


@pytest.mark.parametrize(("r", "sigma"), [(1, 1.3), (5, 0.7), (14, 3.0), (28, 1.0), (29, 1.0), (60, 8.0), (1000, 1.3)])
def test_the_density_and_its_transform_are_the_bessel_functions_that_they_stand_for(r: int, sigma: float) -> None:
    law, order = Law(sigma, r), mpmath.mpf(r) / 2
    with mpmath.workdps(40):
        for s in (0.3, -2.0, 4 + 0.2j * law.ceiling, 1e6):
            alpha, beta = (r + (sigma * mpmath.mpmathify(s)) ** 2) / 2, 1 / (8 * mpmath.mpf(sigma) ** 2)
            norm = (
                2 * mpmath.exp(order * mpmath.log(order) - mpmath.loggamma(order)) * sigma / mpmath.sqrt(2 * mpmath.pi)
            )
            nu = order + mpmath.mpf(1) / 2
            bessel = mpmath.besselk(nu, 2 * mpmath.sqrt(alpha * beta))
            truth = mpmath.exp(mpmath.mpmathify(s) / 2) * norm * (beta / alpha) ** (nu / 2) * bessel
            found = law.log_even(np.array([s], dtype=np.complex128))[0]
            assert abs(mpmath.exp(complex(found)) / truth - 1) < (3e-13 if abs(s) < 10 else 1e-10)
        for w in (0.5, 2 + 1j, 5 + 0.1j, 8 + 20j):
            exact = mpmath.mpmathify(w)
            y = mpmath.conj(mpmath.sqrt(mpmath.conj(-r * exact * (exact - 1)))) / sigma
            truth = 2 / mpmath.gamma(order) * (y / 2) ** order * mpmath.besselk(order, y)
            value = law.log_plain(np.array([w], dtype=np.complex128), np.array([w - 1], dtype=np.complex128))[0]
            assert abs(mpmath.exp(complex(value)) / truth - 1) < 1e-12


@pytest.mark.parametrize(
    ("rate", "sigma", "r"), [(0.0043, 1.3, 1), (0.0043, 1.3, 30), (0.1, 3.0, 2), (0.9, 2.0, 3), (0.01, 40.0, 7)]
)
def test_unlike_contours_give_the_same_moment(rate: float, sigma: float, r: int) -> None:
    """With the binomial terms taken out on the real line, and along the upright."""
    release = Release(rate, Law(sigma, r))
    for w in (1.2 + 0.05j, 2.2 + 0.3j, 3.3 + 1.5j):
        given_w = np.array([w]), np.array([w - 1])
        real, upright = Box(w.real, w.real, 0.0, w.imag), Box(w.real, w.real, w.imag, 1.2 * w.imag)
        one, wrong = release.log_moment(*given_w, real)
        other, more = release.log_moment(*given_w, upright)
        assert abs(one[0] - other[0]) <= 2 * (wrong[0] + more[0])
        assert wrong[0] + more[0] < 1e-11


def test_moments_of_negative_order_reach_their_limit() -> None:
    """Left of the contour R^w was taken at its limit too early: log H(−174) was 7.25 here, and add unsound by 1e-5."""
    release = Release(0.27070110542722625, Law(49.32612288664989, 10000))
    s = np.linspace(-1.0, 1.0, 20001)
    density = np.exp(release.law.log_even(np.asarray(s, dtype=np.complex128)).real - s) * (s[1] - s[0])
    for w in (-5.0, -174.0, -300.0):
        truth = math.log(float((density * (1 + release.rate * np.expm1(s)) ** w).sum()))
        box = Box(w, w + 1e-9, 0.0, 0.0)
        found, _ = release.log_moment(np.array([w + 0j]), np.array([w - 1 + 0j]), box)
        assert found[0].real == pytest.approx(truth, abs=1e-10)


def test_a_likelihood_ratio_near_one_keeps_its_digits() -> None:
    """log R was a difference of two numbers 200 times as large, and T log H(−80) off by 1.4e-10 beyond its error."""
    release = Release(0.015577900473517923, Law(189.88548371030484, 9267))
    found, wrong = release.log_moment(np.array([-80 + 0j]), np.array([-81 + 0j]), Box(-80.0, -80 + 1e-9, 0.0, 0.0))
    truth = 2.1810415573207012e-05  # mpmath, 30 digits
    assert abs(found[0].real - truth) <= 2 * wrong[0]
    assert wrong[0] < 1e-17


@pytest.mark.parametrize("projections", [1, 2, 3, 8, 17, 29])
def test_moments_near_one_keep_their_digits(projections: int) -> None:
    order = mpmath.mpf(projections) / 2
    with mpmath.workdps(40):
        for y in (1e-6 + 0j, 1e-3 - 1e-3j, -0.9j, 0.99 + 0j, 0.3 - 0.5j):
            at = mpmath.mpc(y)
            truth = complex(2 / mpmath.gamma(order) * (at / 2) ** order * mpmath.besselk(order, at) - 1)
            assert abs(complex(_less_one(projections, np.array([y]))[0]) - truth) < 2e-15 * abs(truth)


def test_densities_far_out_keep_their_digits() -> None:
    """They lost seven of them at large noise, and the integral over them halved its panels without end."""
    sigma, r = 512.439, 34
    with mpmath.workdps(40):
        for s in (-30.0, -5.0, 3.0, 8.0, 60.0):
            alpha, beta, order = (r + (mpmath.mpf(sigma) * s) ** 2) / 2, 1 / (8 * mpmath.mpf(sigma) ** 2), (r + 1) / 2
            half = mpmath.mpf(r) / 2
            constant = mpmath.log(2) + half * mpmath.log(half) - mpmath.loggamma(half) + mpmath.log(sigma)
            truth = constant - mpmath.log(2 * mpmath.pi) / 2 + order / 2 * mpmath.log(beta / alpha) - mpmath.mpf(s) / 2
            truth += mpmath.log(mpmath.besselk(order, 2 * mpmath.sqrt(alpha * beta)))
            found = float(Law(sigma, r).log_even(np.array([abs(s) + 0j]))[0].real) - max(s, 0.0)
            assert abs(found - float(truth)) < 1e-12
    answer = accountant.curve(Composition(((RandomSensitivityGaussian(5.945e-07, sigma, r), 5),))).epsilon(0.17)
    assert answer.value == 0


def log_even(s: complex, sigma: float, r: int) -> mpmath.mpc:
    """log p(s) + s by Bessel's K as the definition has it."""
    s, half = mpmath.mpmathify(s), mpmath.mpf(r) / 2
    alpha, beta = half + (sigma * s) ** 2 / 2, 1 / (8 * mpmath.mpf(sigma) ** 2)
    constant = mpmath.log(2 * sigma / mpmath.sqrt(2 * mpmath.pi)) + half * mpmath.log(half) - mpmath.loggamma(half)
    order = half + mpmath.mpf(1) / 2
    bessel = mpmath.besselk(order, 2 * mpmath.sqrt(alpha * beta))
    return constant + order / 2 * (mpmath.log(beta) - mpmath.log(alpha)) + mpmath.log(bessel) + s / 2


@settings(max_examples=60)
@given(st.floats(math.log(0.2), math.log(3000)), st.floats(0, math.log(400)), st.floats(-8, 8), st.floats(0, 0.6))
def test_a_density_loses_no_more_than_it_says(log_sigma: float, log_r: float, place: float, height: float) -> None:
    """8 units were counted where up to 370 were lost: of 1411 releases 3.2e-15 of δ, and 1.3e-15 stated."""
    sigma, r = math.exp(log_sigma), round(math.exp(log_r))
    law = Law(sigma, r)
    s = np.array([complex(place / sigma + 0.5 / sigma**2, min(height * law.ceiling, 200 / sigma)), 40 * place + 0j])
    found = law.log_even(s)
    lost = law.lost(s, found)
    with mpmath.workdps(30):
        for k, at in enumerate(s):
            wrong = mpmath.mpc(found[k]) - log_even(at, sigma, r)
            turns = mpmath.nint(wrong.imag / (2 * mpmath.pi))
            assert abs(wrong - 2j * mpmath.pi * turns) <= UNIT * lost[k]
    assert lost[0] < 1500


@pytest.mark.parametrize(
    ("w", "truth"),
    [  # by mpmath along another contour, 36 digits
        (25 + 100j, -0.0001406038416236374468115 + 0.00007302885362191783391251j),
        (60 + 250j, -0.0008832766903130642890504 + 0.0004415595593405814582458j),
    ],
)
def test_a_moment_loses_no_more_than_it_says(w: complex, truth: complex) -> None:
    """The first was five times its stated error off, and all of them to the same side."""
    release = Release(0.0023685102142950894, Law(14.670089133604955, 16))
    box = Box(w.real * 0.9, w.real * 1.1, w.imag / 1.3, w.imag * 1.3)
    found, wrong = release.log_moment(np.array([w]), np.array([w - 1]), box)
    assert abs(found[0] - truth) <= wrong[0] + UNIT * abs(truth)
    assert wrong[0] < 2e-15


def test_paths_and_counts_of_large_losses_agree_to_their_errors() -> None:
    """They differed by 1.2 times the sum of both."""
    directions = heavy_directions(((RandomSensitivityGaussian(0.0023685102142950894, 14.670089133604955, 16), 1411),))
    assert directions is not None
    (transform,) = (way.transform for way in directions if way.direction == "remove")
    epsilon = 0.014825536710042636
    _, *counted = Rare(transform).delta(epsilon, min(transform.bound(epsilon), 0.0))
    for lost in LOSSES:
        transform.spent = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            value, _, error = make_path(transform, epsilon, lost)(epsilon)
        assert abs(value - counted[0]) <= error + counted[1]
        assert error < 5e-9 * value


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize(("sigma", "r"), [(0.7, 1), (3.0, 6), (40.0, 50)])
def test_the_line_that_is_taken_out_has_no_mean(rate: float, sigma: float, r: int) -> None:
    """E[R] = 1: with and without it the moment is the same."""
    release = Release(rate, Law(sigma, r))
    w = np.array([-0.5 / rate * min(1.0, sigma) + 0j])
    box = Box(float(w[0].real), float(w[0].real), 0.0, 0.0)
    line = release.contours.contour(box)
    assert line.line is not None
    one, wrong = release.log_moment(w, w - 1, box)
    release.contours._known[box] = replace(line, line=None)
    other, more = release.log_moment(w, w - 1, box)
    assert abs(one[0] - other[0]) <= wrong[0] + more[0]
    assert wrong[0] < more[0]
