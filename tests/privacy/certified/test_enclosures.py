"""Certified enclosures against closed forms, direct integration in mpmath, and each other."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import pytest

from dpbench.errors import DpbenchError
from dpbench.events import (
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.certified import Certificate, certify, certify_many

ROW_1 = SampledGaussian(256 / 60000, 1.3)


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def fraction(value: mpmath.mpf) -> Fraction:
    """An mpf exactly."""
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def overlap(a: Certificate, b: Certificate) -> bool:
    return Fraction(a.lower_text) <= Fraction(b.upper_text) and Fraction(b.lower_text) <= Fraction(a.upper_text)


def gaussian_delta(mu: mpmath.mpf, epsilon: float) -> mpmath.mpf:
    scaled = epsilon / mu
    return mpmath.ncdf(mu / 2 - scaled) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - scaled)


def hockey_stick(p: object, q: object, epsilon: float, cuts: list[float]) -> mpmath.mpf:
    """∫ (p − e^ε q)₊, cut at the zeros of p − e^ε q between `cuts`, so that every piece is smooth."""
    growth = mpmath.exp(epsilon)

    def gain(x: mpmath.mpf) -> mpmath.mpf:
        return p(x) - growth * q(x)  # type: ignore[operator]

    points = [mpmath.mpf(cut) for cut in cuts]
    for a, b in itertools.pairwise(cuts):
        if gain(mpmath.mpf(a)) * gain(mpmath.mpf(b)) < 0:
            points.append(mpmath.findroot(gain, (mpmath.mpf(a), mpmath.mpf(b)), solver="anderson", tol=1e-60))
    points.sort()
    return sum(
        (mpmath.quad(gain, [a, b]) for a, b in itertools.pairwise(points) if gain((a + b) / 2) > 0),
        mpmath.mpf(0),
    )


def test_row_1_of_bu2020() -> None:
    found = certify(times(ROW_1, 3516), delta=1e-5)
    assert 0.86453 < found.lower < found.upper < 0.86456
    assert found.relative_width <= 1e-9
    assert found.direction == "remove"
    assert found.method == "contour integral"
    back = certify(times(ROW_1, 3516), epsilon=found.upper)
    assert back.upper <= 1e-5 * (1 + 1e-9)
    assert certify(times(ROW_1, 3516), epsilon=math.nextafter(found.lower, 0)).lower > 1e-5 * (1 - 1e-15)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 2.0])
@pytest.mark.parametrize("event", [SampledGaussian(0.3, 1.0), GroupSampledGaussian(0.2, 2.0, 3)])
def test_one_release_is_the_integral_of_the_definition(
    event: SampledGaussian | GroupSampledGaussian, epsilon: float
) -> None:
    with mpmath.workdps(25):
        sigma, q = mpmath.mpf(event.noise_multiplier), mpmath.mpf(event.sampling_rate)
        size = event.group_size if isinstance(event, GroupSampledGaussian) else 1

        def centre(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x, 0, sigma)

        def mixture(x: mpmath.mpf) -> mpmath.mpf:
            shares = (math.comb(size, k) * q**k * (1 - q) ** (size - k) for k in range(size + 1))
            return sum(share * mpmath.npdf(x, k, sigma) for k, share in enumerate(shares))

        cuts = [float(sigma) * 0.7 * i for i in range(-20, 24)]
        truth = max(hockey_stick(mixture, centre, epsilon, cuts), hockey_stick(centre, mixture, epsilon, cuts))
        exact = fraction(truth)
    assert certify(event, epsilon=epsilon, digits=9).contains(exact)


def test_two_unlike_releases_against_the_double_integral() -> None:
    epsilon, rates, sigmas = 0.7, (0.3, 0.2), (1.0, 1.5)
    release = Composition(tuple((SampledGaussian(q, s), 1) for q, s in zip(rates, sigmas, strict=True)))
    with mpmath.workdps(20):

        def loss(x: mpmath.mpf, i: int) -> mpmath.mpf:
            return mpmath.log(1 - rates[i] + rates[i] * mpmath.exp((2 * x - 1) / (2 * mpmath.mpf(sigmas[i]) ** 2)))

        def last(rest: mpmath.mpf) -> mpmath.mpf:
            """E_P of (1 − e^(rest − L))₊ for the second release."""
            q, s = mpmath.mpf(rates[1]), mpmath.mpf(sigmas[1])
            level = (mpmath.exp(rest) - (1 - q)) / q
            if level <= 0:
                return 1 - mpmath.exp(rest)
            x = s * mpmath.log(level) + 1 / (2 * s)
            tail = (1 - q) * mpmath.ncdf(-x) + q * mpmath.ncdf(1 / s - x)
            return tail - mpmath.exp(rest) * mpmath.ncdf(-x)

        def outer(x: mpmath.mpf) -> mpmath.mpf:
            q, s = mpmath.mpf(rates[0]), mpmath.mpf(sigmas[0])
            density = (1 - q) * mpmath.npdf(x, 0, s) + q * mpmath.npdf(x, 1, s)
            return density * last(epsilon - loss(x, 0))

        truth = mpmath.quad(outer, mpmath.linspace(-9, 11, 41))
    found = certify(release, epsilon=epsilon, digits=9)
    lower, upper = found.directions["remove"]
    assert lower * (1 - 1e-12) <= truth <= upper * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 40.0])
def test_everything_sampled_is_the_gaussian(epsilon: float) -> None:
    with mpmath.workdps(60):
        truth = fraction(gaussian_delta(mpmath.sqrt(10) / 2, epsilon))
    for event in (SampledGaussian(1.0, 2.0), Gaussian(2.0)):
        assert certify(times(event, 10), epsilon=epsilon, digits=20).contains(truth)


def test_nearly_everything_sampled_is_nearly_the_gaussian() -> None:
    with mpmath.workdps(40):
        truth = float(gaussian_delta(mpmath.mpf(2), 1.0))
    found = certify(times(SampledGaussian(1 - 2**-40, 1.0), 4), epsilon=1.0)
    assert found.lower - 1e-9 < truth < found.upper + 1e-9


@pytest.mark.parametrize("asked", [(3, 8, 16), pytest.param((3, 8, 16, 30), marks=pytest.mark.long)])
def test_nesting_as_digits_grow(asked: tuple[int, ...]) -> None:
    found = [certify(times(ROW_1, 1000), epsilon=0.5, digits=digits) for digits in asked]
    assert all(overlap(a, b) for a in found for b in found)
    widths = [certificate.relative_width for certificate in found]
    assert all(width <= 10.0**-digits for width, digits in zip(widths, asked, strict=True))
    for digits in (6, 12, 25)[: len(asked) - 1]:
        assert certify(times(ROW_1, 1000), delta=1e-7, digits=digits).relative_width <= 10.0**-digits


def test_counts_add_up_and_order_does_not_matter() -> None:
    other = SampledGaussian(0.02, 2.0)
    whole = certify(Composition(((ROW_1, 300), (other, 50))), epsilon=0.3)
    parts = certify(Composition(((ROW_1, 100), (other, 50), (ROW_1, 200))), epsilon=0.3)
    turned = certify(Composition(((other, 50), (ROW_1, 300))), epsilon=0.3)
    assert (whole.lower_text, whole.upper_text) == (parts.lower_text, parts.upper_text)
    assert overlap(whole, turned)


def test_unlike_gaussians_add_up() -> None:
    with mpmath.workdps(40):
        mu = mpmath.sqrt(mpmath.mpf(1) + 3 * mpmath.mpf(4) / 9 + mpmath.mpf(1) / 25 + mpmath.mpf(2) / 49)
        truth = fraction(gaussian_delta(mu, 1.0))
    release = Composition(((Gaussian(1.0), 1), (Gaussian(1.5), 3), (ConfidentGNMax(0.0, 5.0, 7.0), 1)))
    assert certify(release, epsilon=1.0, digits=16).contains(truth)


CORNERS = [
    pytest.param(1e-3, 0.3, 10_000, 1e-5, marks=pytest.mark.long),  # as the sixth, with more work
    (0.01, 1.0, 10_000, 1e-30),
    (0.5, 1000.0, 1_000_000, 1e-5),
    (0.999, 2.0, 100, 1e-5),
    (0.5, 0.3, 3, 1e-5),
    (1e-5, 0.4, 100_000, 1e-10),
    pytest.param(1e-3, 1.0, 1000, 1e-5, marks=pytest.mark.long),  # as row 1 of bu2020
    (0.02, 0.5, 1_000_000, 0.5),
]


@pytest.mark.parametrize(("rate", "noise", "count", "delta"), CORNERS)
def test_corners(rate: float, noise: float, count: int, delta: float) -> None:
    release = times(SampledGaussian(rate, noise), count)
    found = certify(release, delta=delta)
    assert 0 < found.lower < found.upper
    assert found.relative_width <= 1e-9
    above = certify(release, epsilon=found.upper, digits=6)
    assert above.lower <= delta <= above.upper * (1 + 1e-5)


def test_nothing_is_revealed() -> None:
    for event in (SampledGaussian(0.0, 1.0), Gaussian(math.inf), SampledGaussian(0.5, math.inf), Laplace(math.inf)):
        assert certify(times(event, 7), epsilon=0.0).upper == 0.0
        assert certify(times(event, 7), delta=1e-9).upper == 0.0
    assert certify(times(ROW_1, 0), delta=0.1).upper == 0.0
    assert certify(times(SampledGaussian(1e-7, 1000.0), 10), delta=1e-3).upper == 0.0


def test_add_is_exactly_zero_beyond_its_largest_loss() -> None:
    found = certify(times(SampledGaussian(0.1, 1.0), 10), epsilon=1.06)
    assert 10 * -math.log1p(-0.1) < 1.06
    assert found.directions["add"] == (0.0, 0.0)
    assert certify(times(SampledGaussian(0.1, 1.0), 10), epsilon=1.0).directions["add"][1] > 0


def test_far_beyond_the_smallest_double() -> None:
    found = certify(times(SampledGaussian(1e-7, 1000.0), 10**6), epsilon=0.1)
    assert (found.lower, found.upper) == (0.0, 5e-324)


def test_replace_one_against_the_definition() -> None:
    q, epsilon = 0.3, 0.8
    with mpmath.workdps(30):

        def side(sign: int) -> object:
            return lambda x: (1 - mpmath.mpf(q)) * mpmath.npdf(x, 0, 1.2) + mpmath.mpf(q) * mpmath.npdf(x, sign, 1.2)

        truth = fraction(hockey_stick(side(1), side(-1), epsilon, [0.8 * i for i in range(-18, 19)]))
    found = certify(SampledGaussian(q, 1.2, adjacency="replace_one"), epsilon=epsilon, digits=9)
    assert found.contains(truth)
    assert found.direction == "both"


def test_atoms_are_exact_sums() -> None:
    pair = DiscretePair((0.75, 0.25), (0.25, 0.75))
    growth = mpmath.mpf(0)
    with mpmath.workdps(40):
        growth = mpmath.exp(1)
        truth = sum(
            math.comb(5, k) * max(mpmath.mpf(0), 3 ** mpmath.mpf(k) - growth * 3 ** mpmath.mpf(5 - k)) / 4**5
            for k in range(6)
        )
        exact = fraction(truth)
    assert certify(times(pair, 5), epsilon=1.0, digits=20).contains(exact)
    infinite = DiscretePair((0.75, 0.125, 0.125), (0.5, 0.5, 0.0))
    assert certify(times(infinite, 2), epsilon=50.0).lower >= 1 - 0.875**2 - 1e-15
    # with a Gaussian beside it the same atoms pass through the contour: the sum over atoms of shifted Gaussians
    with mpmath.workdps(30):
        log3 = mpmath.log(3)
        mixed = mpmath.mpf("0.75") * gaussian_delta(mpmath.mpf(1), 1.0 - log3)
        mixed += mpmath.mpf("0.25") * gaussian_delta(mpmath.mpf(1), 1.0 + log3)
        exact = fraction(mixed)
    assert certify(Composition(((pair, 1), (Gaussian(1.0), 1))), epsilon=1.0).contains(exact)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_laplace_against_the_definition(count: int) -> None:
    scale, epsilon = 2.0, 0.3
    with mpmath.workdps(30):
        if count == 1:
            truth = 1 - mpmath.exp((mpmath.mpf(epsilon) - 1 / mpmath.mpf(scale)) / 2)
            assert certify(Laplace(scale), epsilon=epsilon, digits=20).contains(fraction(truth))
        # the T-fold law by its characteristic function on another line, with a Gaussian that smooths it: μ = 1
        v = 1 / mpmath.mpf(scale)

        def integrand(u: mpmath.mpf) -> mpmath.mpf:
            z = mpmath.mpc(1.5, u)
            single = ((1 + z) * mpmath.exp(z * v) + z * mpmath.exp(-(1 + z) * v)) / (1 + 2 * z)
            value = single**count * mpmath.exp(z * (z + 1) / 2 - z * epsilon) / (z * (z + 1))
            return value.real / mpmath.pi

        smoothed = fraction(mpmath.quad(integrand, mpmath.linspace(0, 14, 15)))
    mixed = certify(Composition(((Laplace(scale), count), (Gaussian(1.0), 1))), epsilon=epsilon)
    assert mixed.contains(smoothed)
    alone = certify(times(Laplace(scale), count), epsilon=epsilon)
    assert alone.upper < mixed.lower
    discrete = certify(times(Laplace(scale), count), delta=alone.upper)
    assert discrete.lower <= epsilon * (1 + 1e-9)


def test_random_sensitivity_of_one_release_against_the_definition() -> None:
    q, sigma, r, epsilon = 0.3, 1.0, 4, 0.5
    with mpmath.workdps(15):

        def given(z: mpmath.mpf) -> mpmath.mpf:
            """The hockey-stick divergence of remove at sensitivity z, in closed form."""
            level = mpmath.log((mpmath.exp(epsilon) - (1 - q)) / q)
            x = level * sigma / z + z / (2 * sigma)
            tail = (1 - q) * mpmath.ncdf(-x) + q * mpmath.ncdf(z / sigma - x)
            return tail - mpmath.exp(epsilon) * mpmath.ncdf(-x)

        def outer(t: mpmath.mpf) -> mpmath.mpf:
            g = mpmath.exp(t)  # χ²_r / r
            density = (mpmath.mpf(r) / 2 * g) ** (mpmath.mpf(r) / 2) * mpmath.exp(-r * g / 2) / mpmath.gamma(r / 2)
            return density * given(1 / mpmath.sqrt(g))

        truth = float(mpmath.quad(outer, mpmath.linspace(-20, 3, 24)))
    found = certify(RandomSensitivityGaussian(q, sigma, r), epsilon=epsilon, digits=7)
    lower, upper = found.directions["remove"]
    assert lower * (1 - 1e-11) <= truth <= upper * (1 + 1e-11)
    assert found.relative_width <= 1e-6
    assert not found.attained


def test_many_projections_are_nearly_none() -> None:
    plain = certify(times(SampledGaussian(0.02, 1.0), 50), epsilon=0.3, digits=6)
    random = certify(times(RandomSensitivityGaussian(0.02, 1.0, 1000), 50), epsilon=0.3, digits=6)
    assert plain.upper < random.lower < plain.upper * 1.02


def test_many_questions_share_the_work_and_agree() -> None:
    release = times(ROW_1, 3516)
    found = certify_many(release, epsilons=[0.2, 0.8], deltas=[1e-5])
    assert [certificate.quantity for certificate in found] == ["delta", "delta", "epsilon"]
    assert overlap(found[1], certify(release, epsilon=0.8))
    assert overlap(found[2], certify(release, delta=1e-5))
    assert found[0].to_json()["kind"] == "certified"


def test_arbs_precision_is_left_alone() -> None:
    from flint import ctx

    before = ctx.prec
    certify(times(ROW_1, 10), epsilon=0.1, digits=4)
    assert ctx.prec == before


REFUSED = [
    (times(SampledGaussian(0.1, 1.0, sampler="shuffled"), 3), {"epsilon": 1.0}, "shuffled"),
    (times(SampledGaussian(0.1, 1.0, "replace_one", "without_replacement"), 3), {"epsilon": 1.0}, "without_repl"),
    (Composition(((Gaussian(1.0), 1),), adaptive=True), {"epsilon": 1.0}, "earlier outputs"),
    (Composition(((Gaussian(1.0), 1), (Gaussian(1.0, "replace_one"), 1))), {"epsilon": 1.0}, "different neighbour"),
    (times(DiscretePair((0.1,) * 10, tuple((i + 1) / 55 for i in range(10))), 1000), {"epsilon": 1.0}, "at most"),
    (Gaussian(1.0), {}, "neither"),
    (Gaussian(1.0), {"epsilon": 1.0, "delta": 0.1}, "both"),
    (Gaussian(1.0), {"epsilon": -1.0}, "epsilon"),
    (Gaussian(1.0), {"delta": 1.0}, "delta"),
    (Gaussian(1.0), {"epsilon": 1.0, "digits": 0}, "digits"),
    (times(SampledGaussian(0.01, 0.3, "replace_one"), 2), {"epsilon": 1.0}, "single point"),
    (times(SampledGaussian(0.1, 1.0, "zero_out", "without_replacement"), 3), {"epsilon": 1.0}, "without_repl"),
    (RandomSensitivityGaussian(0.1, 1.0, 5000), {"epsilon": 1.0}, "projections"),
    (Composition(((Laplace(1.0), 400), (Laplace(2.0), 400))), {"epsilon": 1.0}, "Laplace"),
    (DiscretePair((0.5, 0.5), (1.0, 0.0)), {"delta": 0.1}, "infinite loss"),
]


@pytest.mark.parametrize(("release", "asked", "word"), REFUSED)
def test_one_clear_sentence(release: Composition | Event, asked: dict[str, float], word: str) -> None:
    with pytest.raises(DpbenchError, match=word):
        certify(release, **asked)  # type: ignore[arg-type]
