"""Calibration: the smallest noise multiplier of six digits that meets a target, checked from both sides."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpbench import calibrate
from dpbench.accountants._gaussian_curve import GaussianCurve
from dpbench.accounting import load_accountant
from dpbench.calibration import LARGEST, SMALLEST, grid_number, smallest_noise
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, SampledGaussian

accountants = st.sampled_from(["rdp", "gdp_clt"])
rates = st.floats(1e-4, 0.5)
steps = st.integers(1, 10**5)
targets = st.floats(0.05, 50.0)
deltas = st.floats(-12, -3).map(lambda power: 10.0**power)


def training(rate: float, count: int) -> Any:
    return lambda noise: Composition(((SampledGaussian(rate, noise), count),))


def epsilon_of(accountant: str, composition: Composition, delta: float) -> float:
    return load_accountant(accountant).curve(composition).epsilon(delta).safe


def needs_no_noise(accountant: str, make: Any, target: float, delta: float) -> bool:
    """Whether δ alone pays for everything, so that there is nothing to calibrate."""
    return epsilon_of(accountant, make(SMALLEST), delta) <= target


def below(number: float) -> float:
    """The next smaller number of six significant digits, by decimal arithmetic."""
    decimal = Decimal(repr(number))
    unit = Decimal(1).scaleb(decimal.adjusted() - 5)
    if decimal == Decimal(1).scaleb(decimal.adjusted()):  # 1, 10, 0.1, ...: the decade below is finer
        unit /= 10
    return float(decimal - unit)


class TestGrid:
    @given(st.integers(-6 * 900000, 9 * 900000))
    def test_neighbours_on_the_grid_are_neighbours_in_six_digits(self, index: int) -> None:
        number = grid_number(index)
        assert len(Decimal(repr(number)).normalize().as_tuple().digits) <= 6
        assert below(number) == grid_number(index - 1) < number

    def test_limits_are_on_the_grid(self) -> None:
        assert grid_number(-6 * 900000) == SMALLEST
        assert grid_number(9 * 900000) == LARGEST


class TestSearch:
    @given(st.floats(2e-6, 9e8), st.floats(0.2, 8.0))
    @settings(max_examples=200)
    def test_it_finds_the_first_number_that_meets_the_target(self, root: float, power: float) -> None:
        """ε = (root/σ)^power meets 1 from σ = root on; at most two calls above bisection of one decade (20)."""
        calls: list[float] = []

        def attained(noise: float) -> float:
            calls.append(noise)
            return math.exp(power * math.log(root / noise))

        found = smallest_noise(attained, 1.0, "a test")
        assert attained(found) <= 1.0 < attained(below(found))
        decades = abs(math.log10(root))
        assert len(set(calls)) <= decades + 3 + 20 + 2

    def test_it_is_quick_where_the_function_is_smooth(self) -> None:
        calls: list[float] = []

        def attained(noise: float) -> float:
            calls.append(noise)
            return math.log1p(3 / noise**2) + 0.1 / noise

        smallest_noise(attained, 0.7, "a test")
        assert len(calls) <= 14  # bisection needs 22

    @pytest.mark.parametrize("threshold", [0.0123457, 1.0, 123.456, 99999.9])
    def test_a_step_function_needs_no_slope(self, threshold: float) -> None:
        assert smallest_noise(lambda noise: 0.0 if noise >= threshold else math.inf, 1.0, "a test") == threshold

    def test_a_function_that_is_not_monotone_still_ends_at_a_true_edge(self) -> None:
        def attained(noise: float) -> float:
            return (2 + math.sin(40 * math.log(noise))) / noise

        found = smallest_noise(attained, 0.01, "a test")
        assert attained(found) <= 0.01 < attained(below(found))

    def test_not_a_number_never_meets_a_target(self) -> None:
        with pytest.raises(DpbenchError, match="out of reach"):
            smallest_noise(lambda _: math.nan, 1.0, "a test")

    def test_out_of_reach(self) -> None:
        with pytest.raises(DpbenchError, match=r"^epsilon = 0.5 is out of reach: a test still gives epsilon = 2 with"):
            smallest_noise(lambda _: 2.0, 0.5, "a test")

    def test_no_noise_needed(self) -> None:
        with pytest.raises(DpbenchError, match=r"^epsilon = 0.5 needs no noise: a test meets it with noise multiplier"):
            smallest_noise(lambda _: 0.0, 0.5, "a test")


class TestCalibrate:
    @given(accountants, rates, steps, targets, deltas)
    @settings(max_examples=60, deadline=None)
    def test_it_inverts_accounting_from_the_safe_side(
        self, accountant: str, rate: float, count: int, target: float, delta: float
    ) -> None:
        """At the number that is returned the target is met, and one unit in the sixth digit less misses it."""
        make = training(rate, count)
        assume(not needs_no_noise(accountant, make, target, delta))
        noise = calibrate(make, epsilon=target, delta=delta, accountant=accountant)
        assert epsilon_of(accountant, make(noise), delta) <= target
        assert epsilon_of(accountant, make(below(noise)), delta) > target

    @given(accountants, rates, steps, targets, deltas, st.floats(1.0, 3.0))
    @settings(max_examples=40, deadline=None)
    def test_it_is_monotone(
        self, accountant: str, rate: float, count: int, target: float, delta: float, more: float
    ) -> None:
        """A larger ε never needs more noise; more steps or a larger rate never less. No tolerance but one grid step:
        rounding of ε near 1e-11 moves the edge by far less than one unit in the sixth digit, but may cross it."""
        kwargs: dict[str, Any] = {"delta": delta, "accountant": accountant}
        assume(not needs_no_noise(accountant, training(rate, count), target * more, delta))
        noise = calibrate(training(rate, count), epsilon=target, **kwargs)
        assert calibrate(training(rate, count), epsilon=target * more, **kwargs) <= noise
        assert calibrate(training(rate, math.ceil(count * more)), epsilon=target, **kwargs) >= below(noise)
        assert calibrate(training(min(rate * more, 0.99), count), epsilon=target, **kwargs) >= below(noise)

    @given(st.floats(0.01, 20.0), deltas)
    @settings(max_examples=40, deadline=None)
    def test_one_gaussian_release_against_its_closed_form(self, target: float, delta: float) -> None:
        """The central-limit accountant is exact for a plain Gaussian, δ(ε; 1/σ): the edge is at that σ."""
        noise = calibrate(Gaussian, epsilon=target, delta=delta, accountant="gdp_clt")
        assert GaussianCurve(1 / noise, "exact").delta(target).value <= delta * (1 + 1e-9)
        assert GaussianCurve(1 / below(noise), "exact").delta(target).value >= delta * (1 - 1e-9)

    def test_only_some_releases_may_depend_on_the_noise(self) -> None:
        def make(noise: float) -> Composition:
            return Composition(((SampledGaussian(0.01, noise), 1000), (Gaussian(10.0), 1)))

        noise = calibrate(make, epsilon=2.0, delta=1e-6)
        assert epsilon_of("rdp", make(noise), 1e-6) <= 2.0 < epsilon_of("rdp", make(below(noise)), 1e-6)

    def test_the_first_row_of_the_paper_comes_back(self) -> None:
        """Figure 4 of Bu et al. 2020: σ = 1.3 for 20 epochs costs as much as σ = 1.06 by the other accountant; here
        calibration to the ε of σ = 1.3 gives 1.3 again."""
        make = training(256 / 60000, 4688)
        for accountant in ("rdp", "gdp_clt"):
            target = epsilon_of(accountant, make(1.3), 1e-5)
            assert calibrate(make, epsilon=target, delta=1e-5, accountant=accountant) == 1.3

    def test_a_fixed_release_may_put_the_target_out_of_reach(self) -> None:
        def make(noise: float) -> Composition:
            return Composition(((SampledGaussian(0.01, noise), 1000), (Gaussian(0.5), 1)))

        with pytest.raises(DpbenchError, match=r"out of reach: accountant 'rdp' at delta = 1e-06 still gives"):
            calibrate(make, epsilon=1.0, delta=1e-6)

    @pytest.mark.parametrize(("rate", "count"), [(0.0, 1000), (0.1, 0)])
    def test_nothing_released_needs_no_noise(self, rate: float, count: int) -> None:
        with pytest.raises(DpbenchError, match="needs no noise"):
            calibrate(training(rate, count), epsilon=1.0, delta=1e-5)

    def test_a_refusal_is_passed_on(self) -> None:
        with pytest.raises(DpbenchError, match=r"^cannot calibrate with accountant 'rdp': sampler = 'shuffled'"):
            calibrate(lambda noise: SampledGaussian(0.1, noise, sampler="shuffled"), epsilon=1.0, delta=1e-5)

    @pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, True, "3"])
    def test_a_bad_epsilon_is_one_sentence(self, epsilon: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^epsilon = .*: expected a finite number above 0$"):
            calibrate(Gaussian, epsilon=epsilon, delta=1e-5)

    @pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, "1e-5"])
    def test_a_bad_delta_is_one_sentence(self, delta: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^delta = .*: expected a number above 0 and below 1$"):
            calibrate(Gaussian, epsilon=1.0, delta=delta)

    def test_an_unknown_accountant_is_one_sentence(self) -> None:
        with pytest.raises(DpbenchError, match="did you mean 'rdp'"):
            calibrate(Gaussian, epsilon=1.0, delta=1e-5, accountant="rpd")
