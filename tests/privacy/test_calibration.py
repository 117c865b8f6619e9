"""Calibration: the least noise, the most steps, the largest rate and batch for a target, checked from both sides."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import mpmath
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpbench.errors import DpbenchError
from dpbench.events import Composition, ConfidentGNMax, DiscretePair, Gaussian, Laplace, SampledGaussian
from dpbench.privacy import calibration
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate, No
from dpbench.privacy.calibration import recalibrate
from dpbench.privacy.composition import steps_from_epochs
from dpbench.privacy.scaling import noise_scaled, rates_scaled, repeated
from dpbench.privacy.search import LARGEST, SMALLEST, grid_number, largest_number, largest_whole, smallest_noise

# Most tests here are about the search, with an accountant that answers fast for everything.
calibrate = partial(calibration.calibrate, accountant="rdp")
solve = partial(calibration.solve, accountant="rdp")
largest_steps = partial(calibration.largest_steps, accountant="rdp")
largest_rate = partial(calibration.largest_rate, accountant="rdp")
largest_batch = partial(calibration.largest_batch, accountant="rdp")
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

        found = smallest_noise(attained, 1.0, "a test").value
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
        found = smallest_noise(lambda noise: 0.0 if noise >= threshold else math.inf, 1.0, "a test")
        assert (found.value, found.neighbour) == (threshold, below(threshold))

    def test_a_function_that_is_not_monotone_still_ends_at_a_true_edge(self) -> None:
        def attained(noise: float) -> float:
            return (2 + math.sin(40 * math.log(noise))) / noise

        found = smallest_noise(attained, 0.01, "a test").value
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
        at, short = (load_accountant("gdp").curve(Composition(((Gaussian(s), 1),))) for s in (noise, below(noise)))
        assert at.delta(target).value <= delta * (1 + 1e-9)
        assert short.delta(target).value >= delta * (1 - 1e-9)

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

    def test_a_target_that_promises_nothing_is_refused_at_once(self) -> None:
        with pytest.raises(DpbenchError, match=r"^epsilon = 1e\+300: expected at most 1e\+06"):
            calibrate(Gaussian, epsilon=1e300, delta=1e-5, accountant="exact")

    @pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, "1e-5"])
    def test_a_bad_delta_is_one_sentence(self, delta: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^delta = .*: expected a number above 0 and below 1$"):
            calibrate(Gaussian, epsilon=1.0, delta=delta)

    def test_an_unknown_accountant_is_one_sentence(self) -> None:
        with pytest.raises(DpbenchError, match="did you mean 'rdp'"):
            calibrate(Gaussian, epsilon=1.0, delta=1e-5, accountant="rpd")


def above(number: float) -> float:
    """The next larger number of six significant digits, by decimal arithmetic."""
    decimal = Decimal(repr(number))
    return float(decimal + Decimal(1).scaleb(decimal.adjusted() - 5))


class TestLargest:
    @given(st.integers(1, 2**40), st.floats(0.2, 4.0))
    @settings(max_examples=100)
    def test_the_last_whole_number_that_meets_the_target(self, last: int, power: float) -> None:
        def attained(number: float) -> float:
            return 1.0 if number <= last else float(number / last) ** power

        found = largest_whole(attained, 1.0, 2**53, "a test", "steps")
        assert (found.value, found.neighbour) == (last, last + 1)
        assert isinstance(found.value, int)

    @given(st.floats(2e-12, 0.9999), st.floats(0.2, 4.0))
    @settings(max_examples=100)
    def test_the_last_number_of_six_digits_that_meets_the_target(self, root: float, power: float) -> None:
        def attained(rate: float) -> float:
            return math.exp(power * math.log(rate / root))

        found = largest_number(attained, 1.0, 1.0, "a test", "sampling rate")
        assert found.neighbour == above(found.value)
        assert attained(found.value) <= 1.0 < attained(above(found.value))

    def test_a_limit_that_meets_the_target_has_no_neighbour(self) -> None:
        assert largest_number(lambda _: 0.5, 1.0, 1.0, "a test", "rate").value == 1.0
        assert largest_number(lambda _: 0.5, 1.0, 1.0, "a test", "rate").neighbour is None
        found = largest_whole(lambda _: 0.5, 1.0, 1000, "a test", "batch")
        assert (found.value, found.neighbour) == (1000, None)

    def test_nothing_meets_the_target(self) -> None:
        with pytest.raises(DpbenchError, match=r"out of reach: a test gives epsilon = 2 with steps = 1;"):
            largest_whole(lambda _: 2.0, 1.0, 1000, "a test", "steps")
        with pytest.raises(DpbenchError, match=r"out of reach: a test still gives epsilon = 2 with rate = 1e-12;"):
            largest_number(lambda _: 2.0, 1.0, 1.0, "a test", "rate")

    @given(accountants, rates, st.floats(0.6, 20.0), targets, deltas)
    @settings(max_examples=40, deadline=None)
    def test_steps(self, accountant: str, rate: float, noise: float, target: float, delta: float) -> None:
        """The last T meets the target and T + 1 misses it, by an accountant asked anew."""
        event = SampledGaussian(rate, noise)
        assume(epsilon_of(accountant, Composition(((event, 1),)), delta) <= target)
        most = largest_steps(event, epsilon=target, delta=delta, accountant=accountant)
        assert epsilon_of(accountant, Composition(((event, most),)), delta) <= target
        assert epsilon_of(accountant, Composition(((event, most + 1),)), delta) > target

    def test_steps_of_a_composition_and_of_a_function(self) -> None:
        event = SampledGaussian(0.01, 1.0)
        single = largest_steps(event, epsilon=2.0, delta=1e-5)
        pairs = largest_steps(Composition(((event, 2),)), epsilon=2.0, delta=1e-5)
        assert pairs == single // 2
        function = largest_steps(lambda steps: Composition(((event, steps),)), epsilon=2.0, delta=1e-5)
        assert function == single

    @given(accountants, st.floats(0.8, 5.0), st.integers(1, 10**4), targets, deltas)
    @settings(max_examples=40, deadline=None)
    def test_rate(self, accountant: str, noise: float, steps: int, target: float, delta: float) -> None:
        def make(rate: float) -> Composition:
            return Composition(((SampledGaussian(rate, noise), steps),))

        assume(epsilon_of(accountant, make(1e-12), delta) <= target)  # a bound by moments has a floor
        rate = largest_rate(make, epsilon=target, delta=delta, accountant=accountant)
        assert epsilon_of(accountant, make(rate), delta) <= target
        assert rate == 1.0 or epsilon_of(accountant, make(above(rate)), delta) > target

    def test_batch_with_epochs_fixed(self) -> None:
        def make(batch: int) -> Composition:
            return Composition(((SampledGaussian(batch / 60000, 1.3), steps_from_epochs(15, 60000, batch)),))

        batch = largest_batch(make, examples=60000, epsilon=1.0, delta=1e-5)
        assert epsilon_of("rdp", make(batch), 1e-5) <= 1.0 < epsilon_of("rdp", make(batch + 1), 1e-5)
        assert largest_batch(make, examples=100, epsilon=1.0, delta=1e-5) == 100

    def test_epochs(self) -> None:
        """The largest number of epochs of six digits: one more unit makes a step too many."""

        def make(epochs: float) -> Composition:
            return Composition(((SampledGaussian(256 / 60000, 1.3), steps_from_epochs(epochs, 60000, 256)),))

        found = solve("epochs", make, epsilon=1.0, delta=1e-5, accountant="gdp_clt")
        assert found.neighbour == above(found.value)
        assert found.neighbour_attained is not None
        assert found.attained.value <= 1.0 < found.neighbour_attained.value
        assert make(found.neighbour).parts[0][1] == make(found.value).parts[0][1] + 1

    def test_no_limit_is_an_error(self) -> None:
        with pytest.raises(DpbenchError, match="sets no limit"):
            largest_steps(SampledGaussian(0.0, 1.0), epsilon=1.0, delta=1e-5)


PAIR = DiscretePair((0.501, 0.499), (0.5, 0.5))
sequences = st.lists(
    st.tuples(
        st.one_of(
            st.builds(SampledGaussian, st.floats(1e-4, 0.2), st.floats(0.7, 5.0)),
            st.builds(Gaussian, st.floats(3.0, 50.0)),
            st.builds(Laplace, st.floats(5.0, 50.0)),
            st.just(PAIR),
        ),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=4,
).map(lambda parts: Composition(((SampledGaussian(0.01, 1.0), 10), *parts)))  # something that is sampled and has noise


class TestUnlikeReleases:
    """One number for the whole sequence: it meets the target, its neighbour does not, by an accountant asked anew."""

    @given(sequences, st.floats(0.5, 20.0), deltas)
    @settings(max_examples=30, deadline=None)
    def test_a_factor_on_the_noise(self, sequence: Composition, target: float, delta: float) -> None:
        assume(epsilon_of("rdp", noise_scaled(sequence, LARGEST), delta) < target)  # what stays as it is may cost more
        found = solve("noise_factor", lambda c: noise_scaled(sequence, c), epsilon=target, delta=delta)
        assert found.neighbour == below(found.value)
        assert epsilon_of("rdp", noise_scaled(sequence, found.value), delta) <= target
        assert epsilon_of("rdp", noise_scaled(sequence, below(found.value)), delta) > target

    @given(sequences, st.floats(0.5, 20.0), deltas)
    @settings(max_examples=30, deadline=None)
    def test_repetitions(self, sequence: Composition, target: float, delta: float) -> None:
        assume(epsilon_of("rdp", sequence, delta) <= target)
        found = solve("repetitions", lambda times: repeated(sequence, times), epsilon=target, delta=delta)
        assert isinstance(found.value, int)
        assert epsilon_of("rdp", repeated(sequence, found.value), delta) <= target
        assert epsilon_of("rdp", repeated(sequence, found.value + 1), delta) > target

    @given(sequences, st.floats(0.5, 20.0), deltas)
    @settings(max_examples=30, deadline=None)
    def test_a_factor_on_the_rates(self, sequence: Composition, target: float, delta: float) -> None:
        """The neighbour misses the target, or would be a sampling rate above 1."""
        assume(epsilon_of("rdp", rates_scaled(sequence, 1e-12), delta) <= target)
        found = solve("rate_factor", lambda c: rates_scaled(sequence, c), epsilon=target, delta=delta)
        assert found.neighbour == above(found.value)
        assert epsilon_of("rdp", rates_scaled(sequence, found.value), delta) <= target
        largest = max(event.sampling_rate for event, _ in sequence.parts if isinstance(event, SampledGaussian))
        if largest * above(found.value) <= 1:
            assert epsilon_of("rdp", rates_scaled(sequence, above(found.value)), delta) > target
        else:
            assert found.neighbour_attained is not None
            assert "expected a number from 0 to 1" in (found.neighbour_attained.reason or "")

    def test_the_transform_finds_what_a_closed_form_gives(self) -> None:
        """Gaussians σ_i, T_i are one of μ = √Σ T_i/σ_i²: a factor c makes μ/c, so c = μ · σ(ε, δ) of one invocation."""
        sequence = Composition(((Gaussian(20.0), 100), (Gaussian(5.0), 7)))
        mu = math.sqrt(100 / 400 + 7 / 25)
        factor = calibrate(lambda c: noise_scaled(sequence, c), epsilon=1.0, delta=1e-5, accountant="exact")
        edge = calibrate(Gaussian, epsilon=1.0, delta=1e-5, accountant="gdp") * mu  # off by at most a unit of its own
        assert abs(factor - edge) <= 1e-5 * mu + 1e-5

    def test_every_noise_moves_and_nothing_else(self) -> None:
        query = ConfidentGNMax(threshold=300.0, selection_noise=200.0, answer_noise=40.0)
        given = Composition(((query, 2), (PAIR, 3), (SampledGaussian(0.1, 2.0), 4)), adaptive=True)
        moved = noise_scaled(given, 0.5)
        assert moved.adaptive
        assert moved.parts == (
            (ConfidentGNMax(threshold=300.0, selection_noise=100.0, answer_noise=20.0), 2),
            (PAIR, 3),
            (SampledGaussian(0.1, 1.0), 4),
        )
        assert rates_scaled(given, 0.5).parts == (*given.parts[:2], (SampledGaussian(0.05, 2.0), 4))
        assert [count for _, count in repeated(given, 3).parts] == [6, 9, 12]

    def test_nothing_to_move_is_one_sentence(self) -> None:
        with pytest.raises(DpbenchError, match=r"^none of these mechanisms has a noise, so that a factor on it"):
            noise_scaled(Composition(((PAIR, 3),)), 2.0)
        with pytest.raises(DpbenchError, match="has a sampling rate"):
            rates_scaled(Composition(((Gaussian(1.0), 3),)), 2.0)
        with pytest.raises(DpbenchError, match="sets no limit"):
            solve("repetitions", lambda times: repeated(Composition(()), times), epsilon=1.0, delta=1e-5)
        fixed = Composition(((DiscretePair((0.9, 0.1), (0.1, 0.9)), 9), (Gaussian(1.0), 1)))
        with pytest.raises(DpbenchError, match=r"out of reach: .* with noise factor 1e\+09"):
            solve("noise_factor", lambda c: noise_scaled(fixed, c), epsilon=1.0, delta=1e-5)


def cost(composition: Composition) -> float:
    """What grows with every number of `MAKERS` but noise, and falls with that."""
    ((event, count),) = composition.parts
    assert isinstance(event, SampledGaussian)
    return event.sampling_rate * count**0.5 / event.noise_multiplier


def refuse_beyond(monkeypatch: pytest.MonkeyPatch, most: float, how: str) -> list[bool]:
    """`rdp` under the name of `fragile`, without an answer above that cost; returns where it refused."""
    rdp, real = load_accountant("rdp"), load_accountant
    asked: list[bool] = []

    class Fragile:
        name, kind, first = "fragile", "upper_bound", True

        def supports(self, composition: Composition) -> Any:
            first, self.first = self.first, False  # whether it is the right accountant at all
            refused = how == "says no" and not first and cost(composition) > most * (1 + 1e-9)
            return No("planted") if refused else rdp.supports(composition)

        def curve(self, composition: Any) -> Any:
            asked.append(cost(composition) > most * (1 + 1e-9))
            if asked[-1] and how == "raises":
                raise ZeroDivisionError("planted")
            curve: Any = rdp.curve(composition)
            return Nan(curve) if asked[-1] else curve

    monkeypatch.setattr(
        "dpbench.privacy.calibration.load_accountant", lambda name: Fragile() if name == "fragile" else real(name)
    )
    return asked


class Nan:
    """A curve whose ε is no number."""

    def __init__(self, curve: Any) -> None:
        self.kind, self.adjacency, self.mu = curve.kind, curve.adjacency, None

    def epsilon(self, _delta: float) -> Estimate:
        return Estimate(math.nan)


class TestSolve:
    def test_both_sides_of_the_edge_are_told(self) -> None:
        found = solve("noise_multiplier", training(0.01, 1000), epsilon=1.0, delta=1e-5, accountant="rdp")
        assert found.neighbour_attained is not None
        assert found.attained.safe <= 1.0 < found.neighbour_attained.safe
        assert found.neighbour == below(found.value)
        assert found.promise
        assert found.seconds > 0
        assert not solve("noise_multiplier", Gaussian, epsilon=1.0, delta=1e-5, accountant="gdp_clt").promise

    def test_a_target_that_the_theorem_is_not_about_is_refused(self) -> None:
        """In place of the noise of ε = 1, which meets a larger target, too."""
        target = {"delta": 1e-5, "accountant": "classical_gaussian"}
        assert calibration.solve("noise_multiplier", Gaussian, epsilon=1.0, **target).value == 4.84481
        with pytest.raises(DpbenchError, match=r"epsilon = 2: .* up to 1 only; use `analytic_gaussian`$"):
            calibration.solve("noise_multiplier", Gaussian, epsilon=2.0, **target)
        assert calibration.solve("noise_multiplier", Gaussian, epsilon=2.0, group_size=2, **target).attained.safe <= 2
        with pytest.raises(DpbenchError, match=r"epsilon = 1\.5: "):
            calibration.solve("noise_multiplier", Gaussian, epsilon=3.0, group_size=2, **target)

    def test_groups_need_more_noise_and_the_bound_is_kept(self) -> None:
        alone = solve("noise_multiplier", Gaussian, epsilon=1.0, delta=1e-5, accountant="rdp").value
        found = solve("noise_multiplier", Gaussian, epsilon=1.0, delta=1e-5, accountant="rdp", group_size=3)
        assert found.value > 2.5 * alone
        assert found.kind == "upper_bound"

    MAKERS: ClassVar[dict[str, Any]] = {
        "noise_multiplier": lambda noise: Composition(((SampledGaussian(0.01, noise), 100),)),
        "noise_factor": lambda factor: Composition(((SampledGaussian(0.01, factor), 100),)),
        "steps": lambda steps: Composition(((SampledGaussian(0.01, 1.0), steps),)),
        "epochs": lambda epochs: Composition(((SampledGaussian(0.01, 1.0), math.ceil(100 * epochs)),)),
        "sampling_rate": lambda rate: Composition(((SampledGaussian(rate, 1.0), 100),)),
        "batch": lambda batch: Composition(((SampledGaussian(batch / 10**6, 1.0), 100),)),
    }

    @pytest.mark.parametrize("how", ["raises", "says no", "answers nan"])
    @pytest.mark.parametrize("find", MAKERS)
    def test_a_refusal_beside_the_answer_is_no_failure(
        self, find: str, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An accountant that refuses beyond some point, where it still meets the target: the message names both."""
        make, whole = self.MAKERS[find], find in ("steps", "batch")
        edge = solve(find, make, epsilon=1.0, delta=1e-5).value
        last = edge // 2 if whole else 2 * edge if "noise" in find else edge / 2
        refuse_beyond(monkeypatch, cost(make(last)), how)
        with pytest.raises(DpbenchError, match=r"planted|no number") as raised:
            solve(find, make, epsilon=1.0, delta=1e-5, accountant="fragile")
        message = str(raised.value)
        numbers = re.search(rf"{find} = (\S+) meets epsilon = 1 .* and the next, (\S+), it refuses", message)
        assert numbers
        meets, refused = (int(text) if whole else float(text) for text in numbers.groups())
        limit = cost(make(last)) * (1 + 1e-9)
        assert cost(make(meets)) <= limit < cost(make(refused))
        assert "--accountant (rdp, lattice" in message

    @pytest.mark.parametrize("find", MAKERS)
    def test_a_refusal_far_from_the_answer_is_passed_over(self, find: str, monkeypatch: pytest.MonkeyPatch) -> None:
        make = self.MAKERS[find]
        known = solve(find, make, epsilon=1.0, delta=1e-5)
        far = known.value * 1.02 if "noise" not in find else known.value / 1.02
        asked = refuse_beyond(monkeypatch, cost(make(math.ceil(far) if find in ("steps", "batch") else far)), "raises")
        found = solve(find, make, epsilon=1.0, delta=1e-5, accountant="fragile")
        assert (found.value, found.neighbour) == (known.value, known.neighbour)
        assert found.neighbour_attained is not None
        assert 1.0 < found.neighbour_attained.value < math.inf
        assert any(asked), "it refused somewhere on the way"

    @pytest.mark.parametrize("find", MAKERS)
    def test_refused_everywhere_is_not_out_of_reach(self, find: str, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse_beyond(monkeypatch, -1.0, "raises")
        with pytest.raises(DpbenchError, match=r"is known to meet epsilon = 1, and it refuses .*planted"):
            solve(find, self.MAKERS[find], epsilon=1.0, delta=1e-5, accountant="fragile")

    def test_an_infinite_answer_misses_the_target(self) -> None:
        """Randomized response with an output that only one dataset has: ε is infinite from the second release on."""
        pair = DiscretePair((0.9, 0.1, 0.0), (0.1, 0.9 - 1e-6, 1e-6))
        found = solve(
            "steps", lambda steps: Composition(((pair, steps),)), epsilon=9.0, delta=1.5e-6, accountant="exact"
        )
        assert found.value == 1
        assert found.neighbour_attained is not None
        assert found.neighbour_attained.value == math.inf

    def test_an_accountant_that_changes_its_mind_is_found_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[float, int] = {}

        class Fickle:
            name, kind, adjacency, mu = "fickle", "upper_bound", "add_or_remove", None

            def supports(self, composition: Composition) -> Any:
                return load_accountant("rdp").supports(composition)

            def curve(self, composition: Any) -> Any:
                self.noise = composition.parts[0][0].noise_multiplier
                return self

            def epsilon(self, _delta: float) -> Estimate:
                asked[self.noise] = asked.get(self.noise, 0) + 1
                return Estimate(asked[self.noise] / self.noise, None, asked[self.noise] / self.noise)

        monkeypatch.setattr("dpbench.privacy.calibration.load_accountant", lambda _: Fickle())
        with pytest.raises(DpbenchError, match="gave two answers"):
            solve("noise_multiplier", Gaussian, epsilon=0.5, delta=1e-5, accountant="fickle")

    def test_an_unknown_search_is_one_sentence(self) -> None:
        with pytest.raises(DpbenchError, match=r"^find = 'noise': expected one of noise_multiplier, steps"):
            solve("noise", Gaussian, epsilon=1.0, delta=1e-5)


def central_limit_delta(epsilon: mpmath.mpf, mu: mpmath.mpf) -> mpmath.mpf:
    """Equation (3.2) of Bu et al. 2020."""
    return mpmath.ncdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)


class TestRecalibrate:
    @pytest.mark.parametrize(("noise", "epochs"), [(1.3, 20), (0.7, 45), (1.1, 60)])
    def test_equations_3_3_and_3_4_at_thirty_digits(self, noise: float, epochs: float) -> None:
        """(3.3) solved for μ̃ and (3.4) for σ̃ with mpmath; here by a search over numbers of six digits, rounded up."""
        rate, steps, delta = 256 / 60000, steps_from_epochs(epochs, 60000, 256), 1e-5
        found = recalibrate(training(rate, steps), noise, delta=delta)
        with mpmath.workdps(30):
            epsilon = mpmath.mpf(load_accountant("moments").curve(training(rate, steps)(noise)).epsilon(delta).value)
            mu = mpmath.findroot(
                lambda mu: mpmath.log(central_limit_delta(epsilon, mu) / delta), (0.1, 3.0), solver="anderson"
            )
            sigma = 1 / mpmath.sqrt(mpmath.log1p(mu**2 / (mpmath.mpf(rate) ** 2 * steps)))
            assert below(found.recalibrated.value) < sigma <= found.recalibrated.value
            # one unit of σ̃'s sixth digit is at most 1e-5 of it, and |d log μ / d log σ| < 5 for σ > 0.6
            assert abs(found.recalibrated_mu - mu) < 5e-5 * mu
        assert found.recalibrated.value < noise
        assert found.mu is not None
        assert found.recalibrated_mu is not None
        assert found.mu < found.recalibrated_mu

    def test_figure_4_of_the_paper(self) -> None:
        """Printed: σ = 1.3 and σ̃ = 1.06, both (1.34, 1e-5) at epoch 20, by MA and CLT. σ̃ comes out, 1.0560. Of the
        two ε the CLT's at the printed σ̃ rounds to 1.34; the moments accountant's at σ = 1.3 is 1.3498, so the printed
        1.34 cuts the digits off rather than rounding them."""
        found = recalibrate(training(256 / 60000, 4688), 1.3, delta=1e-5)
        assert round(found.recalibrated.value, 2) == 1.06
        assert math.floor(100 * found.epsilon) / 100 == 1.34
        assert round(epsilon_of("gdp_clt", training(256 / 60000, 4688)(1.06), 1e-5), 2) == 1.34

    def test_what_the_limit_theorem_saves_is_no_promise(self) -> None:
        """An upper bound at σ̃ is above what was given: less noise costs something."""
        found = recalibrate(training(256 / 60000, 4688), 1.3, delta=1e-5)
        assert not found.recalibrated.promise
        assert epsilon_of("rdp", training(256 / 60000, 4688)(found.recalibrated.value), 1e-5) > found.epsilon

    def test_a_refusal_is_passed_on(self) -> None:
        with pytest.raises(DpbenchError, match=r"^accountant 'moments' gives no epsilon at noise multiplier 1: "):
            recalibrate(lambda noise: SampledGaussian(0.1, noise, sampler="shuffled"), 1.0, delta=1e-5)


SHUFFLED = SampledGaussian(0.1, 2.0, sampler="shuffled")


class TestWithoutAnAccountant:
    """The tightest promise that answers: exact, lattice, rdp, then the others."""

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (training(0.01, 100), "exact"),
            (lambda noise: Composition(((Gaussian(noise), 3),)), "exact"),
            (lambda noise: Composition(((SampledGaussian(0.01, noise), 10), (Laplace(20.0), 1))), "lattice"),
            (lambda noise: Composition(((SampledGaussian(0.01, noise), 10),), adaptive=True), "rdp_filter"),
        ],
        ids=["sampled", "gaussian", "mixed", "adaptive"],
    )
    def test_the_first_that_covers_the_releases_answers(self, make: Any, expected: str) -> None:
        found = calibration.solve("noise_multiplier", make, epsilon=3.0, delta=1e-5)
        assert found.accountant == expected
        assert expected in found.because
        assert found.attained.safe <= 3.0
        named = calibration.solve("noise_multiplier", make, epsilon=3.0, delta=1e-5, accountant=expected)
        assert (found.value, found.version) == (named.value, named.version)

    def test_where_none_covers_the_refusal_says_why(self) -> None:
        with pytest.raises(DpbenchError, match="shuffled"):
            calibration.calibrate(lambda _: SHUFFLED, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("hint", [0.5, 1.51306, 1.51305, 1.51307, 1e-6, 1e9, 2.0000001, math.nan, math.inf, -1.0])
def test_a_hint_changes_no_answer(hint: float) -> None:
    """Whatever a cache holds: a wrong number is not taken, the right one is confirmed by two questions."""
    asked = {"epsilon": 1.0, "delta": 1e-5}
    alone = solve("noise_multiplier", training(0.01, 1000), **asked)
    found = solve("noise_multiplier", training(0.01, 1000), **asked, hint=hint)
    assert (found.value, found.neighbour, found.attained) == (alone.value, alone.neighbour, alone.attained)
    assert (found.asked == 2) == (hint == alone.value)
