"""Rényi accounting: log moments against their definitions with 50 digits, the search over orders, both conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
from dpbench.privacy.accountants import rdp
from dpbench.privacy.accountants.rdp import lowest_order
from dpbench.privacy.accountants.renyi.events import log_moment
from dpbench.privacy.accountants.renyi.orders import (
    group_by_quadrature,
    replaced_by_quadrature,
    sampled_at_whole_order,
    sampled_by_quadrature,
    without_replacement_at_whole_order,
)
from dpbench.privacy.answers import No

noises = st.floats(0.3, 1000.0)
rates = st.floats(1e-7, 1.0)
counts = st.integers(1, 10**6)
deltas = st.floats(-30, -0.5).map(lambda power: 10.0**power)
epsilons = st.floats(0.0, 50.0)
orders = st.floats(-4, 3).map(lambda power: 1 + 10.0**power)
events = st.one_of(st.builds(Gaussian, noises), st.builds(SampledGaussian, rates, noises))
compositions = st.lists(st.tuples(events, counts), min_size=1, max_size=4).map(lambda parts: Composition(tuple(parts)))
Real = mpmath.mpf


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def renyi_log_moments(rate: float, noise: float, order: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """log A_α and log B_α from the definition of the Rényi divergence, integrated with 50 digits.

    A = ∫ p (m/p)^α for remove and B = ∫ m (p/m)^α for add, p = N(0, σ²), m = (1−q) p + q N(1, σ²). The trapezoidal
    sum of an analytic function converges like e^(−2πd/h), with d the height of the nearest singularity: A has none
    and falls off like a Gaussian (error e^(−2π²σ²/h²)), B's stand where m = 0, at height πσ². With
    h = min(σ/3, πσ²/20) both errors are below e^−125 = 1e-54. Whatever q, the integrands peak between −α (add, q near
    1) and α (remove), and 17σ beyond they have fallen by e^−144 = 1e-62.
    """
    with mpmath.workdps(60):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        step = min(s / 3, mpmath.pi * s**2 / 20)
        add = remove = mpmath.mpf(0)
        reach = math.ceil((order + 17 * s) / step)
        for k in range(-reach, reach + 1):
            x = k * step
            density = mpmath.exp(-(x**2) / (2 * s**2))
            ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))
            remove += density * ratio**order
            add += density * ratio ** (1 - order)
        scale = step / (s * mpmath.sqrt(2 * mpmath.pi))
        return mpmath.log(scale * remove), mpmath.log(scale * add)


LOG_MOMENTS = [
    (rate, noise, order)
    for rate, noise in ((256 / 60000, 1.3), (1e-7, 0.8), (0.1, 0.3), (0.5, 2.0), (0.01, 20.0), (0.999, 1.0))
    for order in (2, 3, 8, 40)
]


class TestWholeOrders:
    @pytest.mark.parametrize(("rate", "noise", "order"), LOG_MOMENTS)
    def test_leaf_is_the_larger_divergence_of_both_directions(self, rate: float, noise: float, order: int) -> None:
        """1e-11: the logarithms of the terms are below 1e4 or cancel against nothing, so each carries at most
        a few times 1e4 · 2^-53 = 1e-12 of absolute error, and log A inherits it relatively."""
        remove, add = renyi_log_moments(rate, noise, order)
        assert add <= remove * (1 + mpmath.mpf(10) ** -40)
        found = rdp.log_moment(SampledGaussian(rate, noise), order)
        assert abs(found - remove) <= 1e-11 * remove

    def test_the_reference_has_its_fifty_digits(self) -> None:
        """At q = 1 both directions are the Gaussian's closed form."""
        remove, add = renyi_log_moments(1.0, 0.7, 9)
        with mpmath.workdps(60):
            truth = 9 * 8 / (2 * mpmath.mpf(0.7) ** 2)
            assert abs(remove / truth - 1) < mpmath.mpf(10) ** -48
            assert abs(add / truth - 1) < mpmath.mpf(10) ** -48

    @pytest.mark.parametrize(("rate", "noise"), [(0.01, 1000.0), (1e-7, 1000.0), (0.3, 5.0)])
    def test_leaf_at_the_highest_order(self, rate: float, noise: float) -> None:
        """log C(16384, k) is a difference of numbers near 1.4e5, each to 3e-11: log A to 1e-10 relative."""
        order = rdp.HIGHEST_ORDER
        with mpmath.workdps(40):
            q, s = mpmath.mpf(rate), mpmath.mpf(noise)
            total, binomial = mpmath.mpf(0), (1 - q) ** order
            for k in range(order + 1):
                total += binomial * mpmath.exp(mpmath.mpf(k * k - k) / (2 * s**2))
                binomial *= q * (order - k) / ((1 - q) * (k + 1))
            truth = mpmath.log(total)
        assert abs(rdp.log_moment(SampledGaussian(rate, noise), order) - truth) <= 1e-10 * truth

    def test_gaussian_leaf(self) -> None:
        assert rdp.log_moment(Gaussian(2.0), 5) == 5 * 4 / (2 * 2.0**2)

    @given(rates, noises, st.integers(2, 300))
    @settings(max_examples=60, deadline=None)
    def test_rate_one_is_the_gaussian_and_no_rate_exceeds_it(self, rate: float, noise: float, order: int) -> None:
        gaussian = rdp.log_moment(Gaussian(noise), order)
        assert rdp.log_moment(SampledGaussian(1.0, noise), order) == gaussian
        assert rdp.log_moment(SampledGaussian(rate, noise), order) <= gaussian * (1 + 1e-11)

    def test_extreme_noise_neither_overflows_nor_vanishes(self) -> None:
        assert rdp.log_moment(SampledGaussian(0.1, 1e-200), 2) == math.inf
        assert rdp.log_moment(Gaussian(5e-324), 2) == math.inf
        assert rdp.log_moment(SampledGaussian(0.0, 1e-200), 2) == 0.0
        assert 0.0 < rdp.log_moment(SampledGaussian(0.1, 1e100), 2) < 1e-199


def by_pieces(integrand: Callable[[Real], Real], low: float, high: float, width: float) -> Real:
    """∫ by Gauss-Legendre on pieces of `width`: another rule than the trapezoidal sums of the code under test."""
    pieces = max(math.ceil((high - low) / width), 1)
    ends = [low + (high - low) * Real(k) / pieces for k in range(pieces + 1)]
    return mpmath.fsum(mpmath.quad(integrand, [a, b], method="gauss-legendre") for a, b in pairwise(ends))


def sampled_moment(rate: float, noise: float, order: float) -> Real:
    """log A_α of the sampled Gaussian at a real order, from E over N(0, σ²) of the ratio to the power α.

    17 deviations beyond the outermost peak, at α, the integrand has fallen by e^−144; the singularities stand πσ² off
    the real line, so pieces of half that width converge fast.
    """
    with mpmath.workdps(50):
        q, s, a = Real(rate), Real(noise), Real(order)

        def integrand(x: Real) -> Real:
            return mpmath.exp(-(x**2) / (2 * s**2)) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))) ** a

        whole = by_pieces(integrand, -17 * s, a + 17 * s, min(4 * noise, 1.5 * noise**2))
        return mpmath.log(whole / (s * mpmath.sqrt(2 * mpmath.pi)))


def both_directions(first: Callable[[Real], Real], second: Callable[[Real], Real], order: float, ends: tuple) -> Real:
    """The larger of log ∫ Q (P/Q)^α and log ∫ P (Q/P)^α for two densities."""
    with mpmath.workdps(50):
        a = Real(order)
        low, high, width = ends
        one = by_pieces(lambda x: first(x) ** a * second(x) ** (1 - a), low, high, width)
        other = by_pieces(lambda x: second(x) ** a * first(x) ** (1 - a), low, high, width)
        return mpmath.log(max(one, other))


def normal(centre: float, noise: float) -> Callable[[Real], Real]:
    return lambda x: mpmath.npdf(x, centre, Real(noise))


CORNERS = [(256 / 60000, 1.3), (1e-7, 0.3), (1e-7, 0.8), (0.99, 0.3), (0.99, 1.0), (0.1, 0.5), (0.02, 20.0)]


class TestRealOrders:
    @pytest.mark.parametrize(("rate", "noise"), CORNERS)
    @pytest.mark.parametrize("order", [1.01, 1.5, 2.7])
    def test_leaf_against_fifty_digits(self, rate: float, noise: float, order: float) -> None:
        """1e-10 is asked for; the sums promise 1e-12 (moment_error), and that is what is held to here."""
        truth = sampled_moment(rate, noise, order)
        assert abs(log_moment(SampledGaussian(rate, noise), order) / truth - 1) <= 1e-12

    @pytest.mark.parametrize(("rate", "noise"), [(256 / 60000, 1.3), (0.02, 20.0)])
    def test_leaf_at_a_higher_order(self, rate: float, noise: float) -> None:
        truth = sampled_moment(rate, noise, 23.35)
        assert abs(log_moment(SampledGaussian(rate, noise), 23.35) / truth - 1) <= 1e-12

    @pytest.mark.parametrize("order", [1.0001, 1.01, 3.3])
    def test_much_noise(self, order: float) -> None:
        """At σ = 1000 A_α − 1 is near q²α(α−1)/2σ²; the relative digits of it survive."""
        truth = sampled_moment(0.02, 1000.0, order)
        assert abs(log_moment(SampledGaussian(0.02, 1000.0), order) / truth - 1) <= 1e-12

    @given(rates.filter(lambda rate: rate < 1), noises, st.integers(2, 60))
    @settings(max_examples=60, deadline=None)
    def test_the_sum_and_the_integral_agree_at_whole_orders(self, rate: float, noise: float, order: int) -> None:
        """Two routes, the published sum and the integral, each good to 1e-12."""
        by_sum = sampled_at_whole_order(rate, 1 / noise**2 / 2, order)
        by_integral = sampled_by_quadrature(rate, noise, float(order))
        assert by_integral == pytest.approx(by_sum, rel=3e-12, abs=0)

    @given(rates, noises, orders, orders)
    @settings(max_examples=60, deadline=None)
    def test_divergence_grows_with_the_order(self, rate: float, noise: float, one: float, other: float) -> None:
        event = SampledGaussian(rate, noise)
        low, high = sorted((one, other))
        assert log_moment(event, low) / (low - 1) <= log_moment(event, high) / (high - 1) * (1 + 1e-11)

    @given(rates, noises, orders)
    @settings(max_examples=60, deadline=None)
    def test_it_lies_between_nothing_and_the_gaussian(self, rate: float, noise: float, order: float) -> None:
        event = SampledGaussian(rate, noise)
        assert 0 < log_moment(event, order) <= log_moment(Gaussian(noise), order) * (1 + 1e-11)
        assert log_moment(SampledGaussian(rate / 2, noise), order) <= log_moment(event, order) * (1 + 1e-11)
        assert log_moment(SampledGaussian(rate, noise * 1.1), order) <= log_moment(event, order) * (1 + 1e-11)

    @pytest.mark.parametrize("rate", [1e-3, 1e-7, 1e-15, 1e-100, 5e-324])
    def test_small_rates_vanish_quadratically(self, rate: float) -> None:
        """A_α − 1 -> q² α(α−1)/2 (e^(1/σ²) − 1) + O(q³); nothing underflows to 0."""
        moment = log_moment(SampledGaussian(rate, 1.0), 2.5)
        assert moment > 0
        if 1e-40 < rate < 1e-6:
            assert moment == pytest.approx(rate**2 * 2.5 * 1.5 / 2 * math.expm1(1.0), rel=1e-5)

    def test_where_too_many_nodes_are_needed_the_chord_is_above(self) -> None:
        """At σ = 0.001 the strip is 3e-6 high: log A_α is convex, so the chord between whole orders bounds it."""
        event = SampledGaussian(0.1, 1e-3)
        assert sampled_by_quadrature(0.1, 1e-3, 2.5) is None
        low, middle, high = (log_moment(event, order) for order in (2, 2.5, 3))
        assert middle == pytest.approx((low + high) / 2, rel=1e-12)


class TestOtherEvents:
    @pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
    @pytest.mark.parametrize("order", [1.01, 2.0, 7.5, 60.0])
    def test_laplace(self, scale: float, order: float) -> None:
        def density(centre: int) -> Callable[[Real], Real]:
            return lambda x: mpmath.exp(-abs(x - centre) / Real(scale)) / (2 * Real(scale))

        with mpmath.workdps(50):
            a, b = Real(order), Real(scale)
            p, q = density(0), density(1)
            middle = by_pieces(lambda x: p(x) ** a * q(x) ** (1 - a), 0, 1, min(30 * scale / order, 1))
            # left of 0 the ratio is e^(1/b), right of 1 it is e^(−1/b), and each tail weighs 1/2
            tails = mpmath.exp((a - 1) / b) / 2 + mpmath.exp(-(a - 1) / b) * mpmath.exp(-1 / b) / 2
            truth = mpmath.log(middle + tails)
        assert abs(log_moment(Laplace(scale), order) / truth - 1) <= 1e-12

    @given(
        st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)), min_size=2, max_size=6),
        orders.filter(lambda order: order < 100),
    )
    @settings(max_examples=60, deadline=None)
    def test_discrete_pairs(self, weights: list[tuple[float, float]], order: float) -> None:
        """What is meant are the doubles divided by their exact sum; where P is next to Q only absolute digits are."""
        totals = [math.fsum(column) for column in zip(*weights, strict=True)]
        first, second = (tuple(x / totals[k] for x in column) for k, column in enumerate(zip(*weights, strict=True)))
        with mpmath.workdps(50):
            one, other = ([Real(x) / mpmath.fsum(values) for x in values] for values in (first, second))
            a = Real(order)
            truth = max(
                mpmath.log(mpmath.fsum(p**a * q ** (1 - a) for p, q in zip(x, y, strict=True)))
                for x, y in ((one, other), (other, one))
            )
        assert (
            float(abs(log_moment(DiscretePair(first, second), order) - truth)) <= 1e-12 * float(truth) + 1e-28 * order
        )

    def test_two_nearly_equal_laws_keep_their_digits(self) -> None:
        first, second = (0.5 + 2.0**-30, 0.5 - 2.0**-30), (0.5, 0.5)
        with mpmath.workdps(50):
            truth = mpmath.log(mpmath.fsum(Real(p) ** 3 / Real(q) ** 2 for p, q in zip(first, second, strict=True)))
        assert log_moment(DiscretePair(first, second), 3.0) == pytest.approx(float(truth), rel=1e-12)

    @pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 0.7), (0.97, 1.0), (1e-6, 0.5), (0.2, 20.0)])
    @pytest.mark.parametrize("order", [1.01, 2.0, 5.5])
    def test_poisson_sampling_under_replacement(self, rate: float, noise: float, order: float) -> None:
        with mpmath.workdps(50):
            q = Real(rate)
            densities = [
                lambda x, c=centre: (1 - q) * normal(0, noise)(x) + q * normal(c, noise)(x) for centre in (1, -1)
            ]
            reach = 2 * order + 16 * noise
            truth = both_directions(*densities, order, (-reach, reach, min(3 * noise, noise**2 / (1 + order / 9))))
        event = SampledGaussian(rate, noise, adjacency="replace_one")
        assert abs(log_moment(event, order) / truth - 1) <= 1e-12

    @pytest.mark.parametrize(("rate", "noise", "size"), [(0.01, 1.0, 4), (0.3, 0.8, 2), (0.9, 1.5, 3), (0.2, 20.0, 5)])
    @pytest.mark.parametrize("order", [1.01, 2.0, 4.5])
    def test_groups(self, rate: float, noise: float, size: int, order: float) -> None:
        with mpmath.workdps(50):
            q = Real(rate)
            weights = [mpmath.binomial(size, k) * q**k * (1 - q) ** (size - k) for k in range(size + 1)]
            reach = size * (order + 1) + 16 * noise
            truth = both_directions(
                lambda x: mpmath.fsum(w * normal(k, noise)(x) for k, w in enumerate(weights)),
                normal(0, noise),
                order,
                (-reach, reach, min(3 * noise, noise**2 / (1 + order / 9))),
            )
        assert abs(log_moment(GroupSampledGaussian(rate, noise, size), order) / truth - 1) <= 1e-12

    @given(rates, noises, orders.filter(lambda order: order < 60))
    @settings(max_examples=40, deadline=None)
    def test_a_group_of_one_is_a_record(self, rate: float, noise: float, order: float) -> None:
        alone = log_moment(SampledGaussian(rate, noise), order)
        assert log_moment(GroupSampledGaussian(rate, noise, 1), order) == pytest.approx(alone, rel=3e-12, abs=0)

    def test_rate_one(self) -> None:
        assert log_moment(GroupSampledGaussian(1.0, 2.0, 3), 4) == 4 * 3 * 9 / (2 * 4)
        for sampler in ("poisson", "without_replacement"):
            event = SampledGaussian(1.0, 2.0, "replace_one", sampler)
            assert log_moment(event, 4) == 4 * 3 * 4 / (2 * 4)
        assert group_by_quadrature(1 - 1e-12, 2.0, 3, 4.0) == pytest.approx(4 * 3 * 9 / 8, rel=1e-9)
        assert replaced_by_quadrature(1 - 1e-12, 2.0, 4.0) == pytest.approx(4 * 3 * 4 / 8, rel=1e-9)

    @pytest.mark.parametrize(("rate", "noise"), [(0.01, 2.0), (0.001, 4.0), (0.5, 3.0), (0.02, 0.5)])
    @pytest.mark.parametrize("order", [2, 3, 12])
    def test_without_replacement_is_theorem_9(self, rate: float, noise: float, order: int) -> None:
        with mpmath.workdps(50):
            g, precision = Real(rate), 4 / Real(noise) ** 2  # a replaced record moves the sum by 2

            def base(j: int) -> Real:
                return j * precision / 2

            total = g**2 * mpmath.binomial(order, 2) * min(4 * mpmath.expm1(base(2)), 2 * mpmath.exp(base(2)))
            for j in range(3, order + 1):
                total += 2 * g**j * mpmath.binomial(order, j) * mpmath.exp((j - 1) * base(j))
            truth = min(mpmath.log1p(total), (order - 1) * base(order))
        event = SampledGaussian(rate, noise, "replace_one", "without_replacement")
        assert abs(log_moment(event, order) / truth - 1) <= 1e-12

    def test_without_replacement_bounds_a_pair_of_datasets(self) -> None:
        """Two datasets of records −1 and 1 whose sums' laws are binomial: their divergence must stay below the bound.

        n = 8, batches of 2 at σ = 2: one record 1 among −1s, replaced by −1. Sums: 2·(−1), or 0 where it is drawn.
        """
        event = SampledGaussian(0.25, 2.0, "replace_one", "without_replacement")
        for order in (1.5, 2.0, 6.0):
            with mpmath.workdps(30):
                truth = both_directions(
                    lambda x: (3 * normal(-2, 2.0)(x) + normal(0, 2.0)(x)) / 4, normal(-2, 2.0), order, (-40, 40, 2.0)
                )
            assert log_moment(event, order) >= truth
        assert without_replacement_at_whole_order(0.25, 1.0, 2) == pytest.approx(log_moment(event, 2))

    def test_confident_gnmax_is_two_gaussians(self) -> None:
        answered, unanswered = (ConfidentGNMax(300, 200, 40, answered=answer) for answer in (True, False))
        assert log_moment(unanswered, 5) == pytest.approx(log_moment(Gaussian(200), 5), rel=1e-15)
        assert log_moment(answered, 5) / 4 == pytest.approx(5 / (2 * 200**2) + 5 / 40**2, rel=1e-14)

    @pytest.mark.parametrize(
        ("event", "words"),
        [
            (RandomSensitivityGaussian(0.01, 1.0, 5), "heavy tail"),
            (DiscretePair((0.5, 0.5), (1.0, 0.0)), "possible under one distribution only"),
            (GroupSampledGaussian(0.01, 1.0, 300), "group_size = 300"),
            (GroupSampledGaussian(0.01, 1.0, 3, "replace_one"), "'replace_one'"),
            (GroupSampledGaussian(0.01, 1.0, 3, sampler="shuffled"), "shuffled"),
            (RandomSensitivityGaussian(0.01, 1.0, 3, sampler="shuffled"), "shuffled"),
            (SampledGaussian(0.01, 1.0, "replace_one", "shuffled"), "shuffled"),
            (SampledGaussian(0.01, 1.0, "zero_out", "without_replacement"), "'without_replacement'"),
        ],
    )
    def test_what_has_no_proven_moment_is_refused(self, event: Event, words: str) -> None:
        answer = rdp.accountant.supports(times(event, 2))
        assert isinstance(answer, No)
        assert words in answer.reason
        with pytest.raises(DpbenchError):
            log_moment(event, 2.0)


class TestBound:
    @given(compositions, deltas, st.sampled_from(rdp.CONVERSIONS))
    @settings(max_examples=40, deadline=None)
    def test_no_other_order_gives_a_smaller_epsilon(
        self, composition: Composition, delta: float, conversion: rdp.Conversion
    ) -> None:
        """Against whole orders to 100, a sample beyond, and real ones near the one found.

        `moment_error` and the search's own tolerance leave 1e-8: the value is flat around the best order.
        """
        curve = rdp.RdpAccountant(conversion=conversion).curve(composition)
        estimate, best = curve.epsilon_and_order(delta)
        near = [1 + (best - 1) * factor for factor in (0.9, 0.99, 0.999, 1.001, 1.01, 1.1)]
        for order in {*map(float, range(2, 100)), *near, best, 1.001, 1.1, 300.0, 5000.0, float(rdp.HIGHEST_ORDER)}:
            with mpmath.workdps(30):
                moment, a = Real(curve.log_moment(order)), Real(order)
                # Canonne et al., as printed for δ: e^((α−1)(τ−ε)) / (α−1) · (1−1/α)^α, solved for ε
                term = a * mpmath.log(1 - 1 / a) - mpmath.log(a - 1) if conversion == "canonne" else 0
                epsilon = (moment - mpmath.log(delta) + term) / (a - 1)
            if order <= rdp.HIGHEST_ORDER and mpmath.isfinite(epsilon):
                size = float((moment + 50) / (a - 1))
                assert estimate.value <= max(epsilon, 0) + 1e-8 * float(abs(epsilon)) + 1e-9 * size
                if order == best:
                    assert estimate.value >= epsilon

    @given(compositions, epsilons)
    @example(
        Composition(((Gaussian(8.0), 1), (Gaussian(10.0), 1), (Gaussian(97.0), 11252), (Gaussian(533.0), 11258))), 43.5
    )
    @settings(max_examples=40, deadline=None)
    def test_no_other_order_gives_a_smaller_delta(self, composition: Composition, epsilon: float) -> None:
        curve = rdp.accountant.curve(composition)
        estimate, best = curve.delta_and_order(epsilon)
        near = [1 + (best - 1) * factor for factor in (0.9, 0.99, 0.999, 1.001, 1.01, 1.1)]
        for order in {*map(float, range(2, 100)), *near, best, 1.001, 1.1, 300.0, 5000.0}:
            with mpmath.workdps(30):
                moment, a = Real(curve.log_moment(order)), Real(order)
                exponent = moment - (a - 1) * Real(epsilon)
                log_delta = exponent - mpmath.log(a - 1) + a * mpmath.log(1 - 1 / a)
            # the exponent is a difference of these two, each rounded in the last place; the search adds its own
            slack = 1e-7 + 1e-9 * float(moment + (a - 1) * epsilon)
            # and the last place of a δ below the normal doubles, 1e-5 of it in the example, by which it is rounded up
            slack += math.ulp(estimate.value) / estimate.value if estimate.value > 0 else 0.0
            if estimate.value > 0 and math.isfinite(slack) and order <= rdp.HIGHEST_ORDER:
                assert math.log(estimate.value) <= max(log_delta, math.log(math.ulp(0.0))) + slack

    @pytest.mark.parametrize("centre", [1.0003, 1.07, 1.9, 2.0, 2.4, 17.3, 5000.6, 16383.2, 16383.8])
    def test_the_search_finds_the_bottom_of_any_valley(self, centre: float) -> None:
        """log² has one valley; the search's tolerance in log(α − 1) is 3e-7. Steep on one side, flat on the other."""
        for steep in (1.0, 50.0):

            def valley(order: float, steep: float = steep) -> float:
                away = math.log((order - 1) / (centre - 1))
                return 1 + (steep if away > 0 else 1.0) * away**2

            order, value = lowest_order(valley, rdp.HIGHEST_ORDER)
            assert order - 1 == pytest.approx(centre - 1, rel=1e-4)
            assert value == pytest.approx(1.0, abs=1e-8)

    def test_at_its_ends_the_search_stops(self) -> None:
        assert lowest_order(lambda order: -order, 2**14) == (2**14, -(2**14))
        order, _ = lowest_order(lambda order: order, 2**14)
        assert 1 < order < 1 + 1e-5

    @given(compositions, deltas)
    @settings(max_examples=30, deadline=None)
    def test_the_newer_conversion_is_never_worse(self, composition: Composition, delta: float) -> None:
        newer = rdp.accountant.curve(composition).epsilon(delta).value
        assert newer <= rdp.RdpAccountant(conversion="classical").curve(composition).epsilon(delta).value * (1 + 1e-8)

    @given(st.floats(0.5, 1000.0), deltas)
    @settings(max_examples=60, deadline=None)
    def test_the_classical_epsilon_of_a_gaussian_is_its_closed_form(self, noise: float, delta: float) -> None:
        """min over α of α/2σ² + log(1/δ)/(α−1) is 1/2σ² + √(2 log(1/δ))/σ, at α = 1 + σ √(2 log(1/δ))."""
        depth = math.sqrt(-2 * math.log(delta))
        if 1 + noise * depth < rdp.HIGHEST_ORDER - 1:
            epsilon = rdp.RdpAccountant(conversion="classical").curve(times(Gaussian(noise), 1)).epsilon(delta).value
            assert epsilon == pytest.approx(1 / (2 * noise**2) + depth / noise, rel=1e-9)

    def test_real_orders_gain_where_the_best_is_below_two(self) -> None:
        """ε in the hundreds asks for orders next to 1: whole ones alone give 237, the closed form 184."""
        mu, delta = 15.0, 1e-5
        truth = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
        epsilon = rdp.RdpAccountant(conversion="classical").curve(times(Gaussian(1 / mu), 1)).epsilon(delta).value
        assert epsilon == pytest.approx(truth, rel=1e-9)
        assert mu**2 - math.log(delta) > truth * 1.25

    def test_an_unknown_conversion_is_one_sentence(self) -> None:
        with pytest.raises(DpbenchError, match=r"^conversion = 'tight': expected one of canonne, classical$"):
            rdp.RdpAccountant(conversion="tight")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "event",
        [
            Laplace(2.0),
            DiscretePair((0.6, 0.4), (0.4, 0.6)),
            GroupSampledGaussian(0.01, 1.0, 3),
            SampledGaussian(0.01, 1.0, "replace_one"),
            SampledGaussian(0.01, 4.0, "replace_one", "without_replacement"),
            ConfidentGNMax(300, 200, 40),
        ],
    )
    def test_every_event_has_a_falling_curve_that_inverts(self, event: Event) -> None:
        curve = rdp.accountant.curve(times(event, 50))
        values = [curve.delta(epsilon).value for epsilon in (0.1, 0.5, 1.0, 3.0, 10.0)]
        assert all(after <= before for before, after in pairwise(values))
        for delta in (1e-3, 1e-8):
            assert curve.delta(curve.epsilon(delta).value).value == pytest.approx(delta, rel=1e-5)

    def test_a_bound_never_underflows_to_zero(self) -> None:
        assert rdp.accountant.curve(times(Gaussian(10.0), 1)).delta(1000.0).value > 0

    def test_too_little_noise_gives_infinity_with_a_reason(self) -> None:
        curve = rdp.accountant.curve(times(SampledGaussian(0.1, 1e-200), 1))
        assert curve.epsilon(1e-5).value == math.inf
        assert curve.epsilon(1e-5).reason
        assert curve.delta(10.0).value == 1.0

    @pytest.mark.parametrize(("rate", "noise"), [(0.02, 0.3), (0.02, 1000.0), (1.0, 1000.0), (1.0, 0.3)])
    def test_it_answers_down_to_1e_30(self, rate: float, noise: float) -> None:
        """Sampling only helps, so ε is at most what the classical conversion gives for the Gaussian at its best real
        order 1 + √(2 log(1/δ))/μ, μ²/2 + μ √(2 log(1/δ)), but for rounding of the order (5 % allowed; the newer
        conversion gains more than that). At q = 1 the order found lies near that one."""
        epsilon, order = rdp.accountant.curve(times(SampledGaussian(rate, noise), 1)).epsilon_and_order(1e-30)
        mu = 1 / noise
        assert 0 < epsilon.value <= mu**2 / 2 + mu * math.sqrt(2 * math.log(1e30)) * 1.05
        if rate == 1.0:
            best = 1 + math.sqrt(2 * math.log(1e30)) / mu
            assert abs(order - best) <= 1 + 0.1 * best
