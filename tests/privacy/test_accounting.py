"""Accounting: the central-limit accountant against its definition, what it shares with `rdp`, and `account`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dpbench import account
from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, Gaussian, RandomSensitivityGaussian, SampledGaussian
from dpbench.privacy import accounting
from dpbench.privacy.accountants import gdp_clt, rdp
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import (
    Accountant,
    Estimate,
    Guarantee,
    No,
    PrivacyCurve,
    Yes,
)
from dpbench.privacy.composition import steps_from_epochs

noises = st.floats(0.3, 1000.0)
rates = st.floats(1e-7, 1.0)
counts = st.integers(1, 10**6)
deltas = st.floats(-30, -0.5).map(lambda power: 10.0**power)
epsilons = st.floats(0.0, 50.0)
events = st.one_of(st.builds(Gaussian, noises), st.builds(SampledGaussian, rates, noises))
compositions = st.lists(st.tuples(events, counts), min_size=1, max_size=4).map(lambda parts: Composition(tuple(parts)))
both = pytest.mark.parametrize("accountant", [rdp.accountant, gdp_clt.accountant], ids=lambda found: found.name)


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def gaussian_log_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """log δ(ε; μ) straight from (3.2) with 120 digits, so that the difference keeps 50 and more."""
    with mpmath.workdps(120):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        high = mpmath.erfc((e / m - m / 2) / mpmath.sqrt(2)) / 2
        low = mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2
        return mpmath.log(high - mpmath.exp(e) * low)


# Tables 1-4 of Bu et al. 2020: p, σ, epochs, δ, printed μ, printed ε of the CLT column
PRINTED = [
    pytest.param(256 / 60000, 1.3, 15, 1e-5, "0.23", "0.83", id="table 1, row 1"),
    pytest.param(256 / 60000, 1.1, 60, 1e-5, "0.57", "2.32", id="table 1, row 2"),
    pytest.param(256 / 60000, 0.7, 45, 1e-5, "1.13", "5.07", id="table 1, row 3"),
    pytest.param(256 / 60000, 0.6, 62, 1e-5, "2.00", "9.98", id="table 1, row 4"),
    pytest.param(256 / 60000, 0.55, 68, 1e-5, "2.76", "14.98", id="table 1, row 5"),
    pytest.param(256 / 60000, 0.5, 100, 1e-5, "4.78", "31.12", id="table 1, row 6"),
    pytest.param(256 / 29305, 0.55, 18, 1e-5, "2.03", "10.20", id="table 2"),
    pytest.param(512 / 25000, 0.56, 9, 1e-5, "2.07", "10.43", id="table 3"),
    pytest.param(1 / 80, 0.6, 20, 1e-6, "1.94", "10.61", id="table 4"),
]
# Whole steps, rounded up: at Table 3 the 440th step lifts ε from 10.434 (439.45 steps) to 10.442.
PRINTED_BUT_FOR_WHOLE_STEPS = {(512 / 25000, 0.56): "10.44"}


def gdp_of(mu: float) -> Any:
    """The curve of a Gaussian release that is μ-GDP, whose own μ may differ from this in the last digit."""
    return gdp_clt.accountant.curve(times(Gaussian(1 / mu), 1))


class TestCentralLimit:
    @pytest.mark.parametrize(("rate", "noise", "epochs", "delta", "mu", "epsilon"), PRINTED)
    def test_the_papers_numbers_come_out(
        self, rate: float, noise: float, epochs: int, delta: float, mu: str, epsilon: str
    ) -> None:
        """The paper's T is epochs / p, not rounded."""
        event = SampledGaussian(rate, noise)
        unrounded = gdp_of(math.sqrt(epochs / rate * gdp_clt.squared_mu(event)))
        assert f"{unrounded.mu:.2f}" == mu
        assert f"{unrounded.epsilon(delta).value:.2f}" == epsilon
        whole = gdp_clt.accountant.curve(times(event, math.ceil(Fraction(epochs) / Fraction(rate).limit_denominator())))
        assert f"{whole.mu:.2f}" == mu
        assert f"{whole.epsilon(delta).value:.2f}" == PRINTED_BUT_FOR_WHOLE_STEPS.get((rate, noise), epsilon)

    @pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 0.99, 1.0, 1.01, 3.0, 12.0, 30.0, 100.0])
    @pytest.mark.parametrize("depth", [-3.0, -0.5, 0.0, 0.4, 2.0, 6.0, 11.8, 36.0])
    def test_delta_against_fifty_digits(self, mu: float, depth: float) -> None:
        """ε = μ²/2 + depth · μ, so that δ is about Φ(−depth); 11.8 is near 1e-31, 36 near 1e-283.

        a = ε/μ − μ/2 carries rounding of order (ε/μ) 2^-53, which enters log δ times |a|: at most 86 · 36 · 1e-16.
        """
        curve = gdp_of(mu)
        epsilon = max(mu * mu / 2 + depth * mu, 0.0)
        truth = gaussian_log_delta(epsilon, curve.mu)
        ours = curve.delta(epsilon).value
        assert abs(mpmath.log(mpmath.mpf(ours)) - truth) <= 1e-12

    @given(st.floats(-4, 1.5).map(lambda power: 10.0**power), deltas)
    @example(25.0, 1e-30)  # ε in the hundreds
    @example(1e-4, 1e-30)
    @settings(max_examples=100, deadline=None)
    def test_epsilon_against_fifty_digits(self, mu: float, delta: float) -> None:
        """One Newton step with 120 digits from our ε says how far the true root is: 1e-12 relative.

        Near ε = 0 the error is absolute: ε is a difference of numbers of size μ, with rounding near 1e-15 μ.
        """
        curve = gdp_of(mu)
        mu, epsilon = curve.mu, curve.epsilon(delta).value
        if epsilon == 0.0:
            assert gaussian_log_delta(0.0, mu) <= math.log(delta) + 1e-13
            return
        with mpmath.workdps(60):
            excess = gaussian_log_delta(epsilon, mu) - mpmath.log(mpmath.mpf(delta))
            e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
            low = mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2
            slope = -mpmath.exp(e - gaussian_log_delta(epsilon, mu)) * low
            assert abs(excess / slope) <= 1e-12 * epsilon + 1e-14 * mu

    @given(compositions)
    @settings(max_examples=50, deadline=None)
    def test_unlike_releases_add_their_squares(self, composition: Composition) -> None:
        with mpmath.workdps(50):
            square = mpmath.mpf(0)
            for event, count in composition.parts:
                precision = 1 / mpmath.mpf(event.noise_multiplier) ** 2
                if isinstance(event, SampledGaussian) and event.sampling_rate < 1:
                    square += count * mpmath.mpf(event.sampling_rate) ** 2 * mpmath.expm1(precision)
                else:
                    square += count * precision
            truth = mpmath.sqrt(square)
        # e^x of x = 1/σ² <= 11.2 turns two roundings of x into 2.5e-15 relative; the rest is a few 1e-16
        assert gdp_clt.accountant.curve(composition).mu == pytest.approx(float(truth), rel=1e-14)

    def test_a_full_batch_is_the_exact_gaussian(self) -> None:
        """Our choice at p = 1, where (3.1) does not apply: μ = √T/σ, the paper's section 2."""
        for event in (Gaussian(2.0), SampledGaussian(1.0, 2.0)):
            assert gdp_clt.accountant.curve(times(event, 64)).mu == 4.0

    def test_where_doubles_end_epsilon_is_infinite(self) -> None:
        """δ at ε(1e-5) = 2e52 was 0.5."""
        curve = gdp_clt.accountant.curve(times(SampledGaussian(0.01, 0.09), 1000))
        assert curve.epsilon(1e-5).value == math.inf
        assert "no noise" in str(curve.epsilon(1e-5).reason)
        near = gdp_clt.accountant.curve(times(SampledGaussian(0.01, 0.15), 1000))  # mu = 1.4e9
        assert near.delta(near.epsilon(1e-5).value).value == pytest.approx(1e-5, rel=1e-3)

    def test_it_refuses_neighbours_by_replacement(self) -> None:
        answer = gdp_clt.accountant.supports(times(SampledGaussian(0.1, 1.0, adjacency="replace_one"), 3))
        assert isinstance(answer, No)
        assert "'replace_one'" in answer.reason

    def test_it_always_calls_itself_an_approximation_and_claims_no_bound(self) -> None:
        curve = gdp_clt.accountant.curve(times(Gaussian(2.0), 64))
        assert curve.kind == gdp_clt.accountant.kind == "approximation"
        assert curve.epsilon(1e-5).upper is None

    @pytest.mark.parametrize("noise", [0.037, 1e-3, 1e-200])
    def test_overflow_of_the_exponential_is_infinity_with_a_reason(self, noise: float) -> None:
        """e^(1/σ²) leaves the doubles below σ = 0.0376."""
        curve = gdp_clt.accountant.curve(times(SampledGaussian(1e-3, noise), 10))
        assert curve.mu == math.inf
        assert curve.epsilon(1e-5).value == math.inf
        assert "mu exceeds 1e+12" in str(curve.epsilon(1e-5).reason)
        assert curve.delta(1e6).value == 1.0

    @pytest.mark.parametrize("mu", [6e-309, 1e-300, 1e-160, 1e150, 1e200, 1e308])
    def test_any_double_is_answered(self, mu: float) -> None:
        curve = gdp_of(mu)
        for delta in (5e-324, 1e-5, 1 - 1e-16):
            assert curve.epsilon(delta).value >= 0
        for epsilon in (0.0, 1e-300, 1.0, 1e300):
            assert 0 <= curve.delta(epsilon).value <= 1


@both
class TestBothAccountants:
    @given(compositions, st.lists(epsilons, min_size=2, max_size=5))
    @settings(max_examples=40, deadline=None)
    def test_delta_decreases(self, accountant: Accountant, composition: Composition, at: list[float]) -> None:
        curve = accountant.curve(composition)
        values = [curve.delta(epsilon).value for epsilon in sorted(at)]
        assert all(0 <= value <= 1 for value in values)
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(values))

    @given(compositions, deltas)
    @settings(max_examples=60, deadline=None)
    def test_delta_inverts_epsilon(self, accountant: Accountant, composition: Composition, delta: float) -> None:
        curve = accountant.curve(composition)
        epsilon = curve.epsilon(delta).value
        assume(math.isfinite(epsilon))
        back = curve.delta(epsilon).value
        if epsilon == 0.0:
            assert back <= delta * (1 + 1e-12)
        else:
            # |d log δ / dε| is at most α − 1 < 16384, or about (ε/μ)/μ for a Gaussian: rounding of ε enters by it
            slope = 16384 if curve.mu is None else epsilon / curve.mu**2 + 12 / curve.mu
            rounding = 4e-15 * slope * epsilon
            assert math.log(back) <= math.log(delta) + 1e-10 + rounding
            # `rdp` asks at a δ that is smaller by 1e-9 + 1e-10·|log δ|, and two of its searches differ by at most that.
            less = 2 * (1e-9 + 1e-10 * abs(math.log(delta)))
            assert math.log(back) >= math.log(delta) - less - rounding

    @given(events, st.integers(0, 10**6), st.integers(0, 10**6), deltas)
    @settings(max_examples=40, deadline=None)
    def test_releases_in_two_parts_are_their_sum(
        self, accountant: Accountant, event: Event, first: int, second: int, delta: float
    ) -> None:
        apart = accountant.curve(Composition(((event, first), (event, second))))
        together = accountant.curve(times(event, first + second))
        assert apart.epsilon(delta) == together.epsilon(delta)
        assert apart.delta(1.0) == together.delta(1.0)

    @given(noises, counts, deltas)
    @settings(max_examples=40, deadline=None)
    def test_rate_one_equals_the_gaussian(self, accountant: Accountant, noise: float, count: int, delta: float) -> None:
        sampled = accountant.curve(times(SampledGaussian(1.0, noise), count))
        assert sampled.epsilon(delta) == accountant.curve(times(Gaussian(noise), count)).epsilon(delta)

    @pytest.mark.parametrize(
        ("event", "expected"),
        [
            (SampledGaussian(0.1, 1.0, adjacency="replace_one", sampler="shuffled"), "shuffled"),
            (SampledGaussian(0.1, 1.0, sampler="shuffled"), "shuffled"),
            (RandomSensitivityGaussian(0.1, 1.0, 5), "RandomSensitivityGaussian"),
            (SampledGaussian(0.1, 1.0, sampler="without_replacement"), "Poisson sampling"),
        ],
    )
    def test_refusals_name_the_cause(self, accountant: Accountant, event: Event, expected: str) -> None:
        answer = accountant.supports(times(event, 3))
        assert isinstance(answer, No)
        assert expected in answer.reason
        with pytest.raises(DpbenchError, match="refuses"):
            accountant.curve(times(event, 3))

    def test_adaptive_parameters_are_refused(self, accountant: Accountant) -> None:
        answer = accountant.supports(Composition(((Gaussian(1.0), 1),), adaptive=True))
        assert isinstance(answer, No)
        assert "filter" in answer.reason

    def test_a_plain_gaussian_keeps_its_own_neighbouring_relation(self, accountant: Accountant) -> None:
        composition = times(Gaussian(1.0, adjacency="replace_one"), 3)
        assert accountant.supports(composition)
        assert accountant.curve(composition).adjacency == "replace_one"


class TestAccount:
    def test_every_accountant_answers_or_says_why_not(self) -> None:
        guarantees = account(SampledGaussian(0.01, 1.0), delta=1e-5)
        assert [guarantee.accountant for guarantee in guarantees] == list(catalog("accountants"))
        for guarantee in account(SampledGaussian(0.01, 1.0, sampler="shuffled"), delta=1e-5):
            if guarantee.accountant in ("rdp", "gdp_clt"):
                assert guarantee.refused
                assert guarantee.epsilon is None
                assert guarantee.to_json()["reason"] == guarantee.refused

    def test_a_single_event_is_one_release(self) -> None:
        event = SampledGaussian(0.01, 1.0)
        [alone] = account(event, delta=1e-5, accountants=["rdp"])
        [composed] = account(times(event, 1), delta=1e-5, accountants=["rdp"])
        assert alone.epsilon == composed.epsilon

    def test_the_answer_says_what_it_is(self) -> None:
        [bound] = account(times(SampledGaussian(0.01, 1.0), 100), delta=1e-5, accountants=["rdp"])
        assert (bound.kind, bound.adjacency, bound.mu, bound.refused) == ("upper_bound", "add_or_remove", None, None)
        assert bound.epsilon is not None
        assert bound.epsilon.upper == bound.epsilon.value
        assert bound.curve is not None
        assert bound.curve.delta(bound.epsilon.value).value == pytest.approx(1e-5, rel=1e-9)
        assert bound.seconds > 0

    def test_json_has_no_infinities(self) -> None:
        for guarantee in account(SampledGaussian(0.5, 1e-200), delta=1e-5, accountants=["rdp", "gdp_clt"]):
            data = json.loads(json.dumps(guarantee.to_json(), allow_nan=False))
            assert data["epsilon"] is None
            assert data["reason"]
            assert data["refused"] is None
            assert {"accountant", "epsilon", "delta", "kind", "relative_error", "seconds"} <= set(data)

    def test_json_keeps_the_numbers(self) -> None:
        estimate = Estimate(2.0, 1.5, 2.25)
        guarantee = Guarantee("some", "certified", "add_or_remove", 1e-5, estimate, 0.5, None, 0.1)
        assert guarantee.to_json() == {
            "accountant": "some",
            "kind": "certified",
            "adjacency": "add_or_remove",
            "delta": 1e-5,
            "epsilon": 2.0,
            "epsilon_lower": 1.5,
            "epsilon_upper": 2.25,
            "relative_error": 0.25,
            "mu": 0.5,
            "refused": None,
            "reason": None,
            "seconds": 0.1,
            "version": None,
        }

    def test_yes_and_no_are_true_and_false(self) -> None:
        assert Yes()
        assert not No("because")

    def test_relative_error_is_unknown_without_both_ends(self) -> None:
        assert Estimate(1.0, None, 1.0).relative_error is None
        assert Estimate(0.0, 0.0, 0.0).relative_error == 0.0
        assert Estimate(1.0).safe == 1.0
        assert Estimate(1.0, 0.5, 1.25).safe == 1.25

    def test_an_unknown_accountant_is_named_with_a_suggestion(self) -> None:
        with pytest.raises(DpbenchError, match="did you mean 'gdp_clt'"):
            account(Gaussian(1.0), delta=1e-5, accountants=["gdp_ctl"])

    def test_one_name_may_stand_alone(self) -> None:
        assert [found.accountant for found in account(Gaussian(1.0), delta=1e-5, accountants="rdp")] == ["rdp"]

    def test_what_is_no_accountant_is_said_to_be_none(self) -> None:
        with pytest.raises(DpbenchError, match="expected an object with name, kind, supports"):
            load_accountant("dpbench.privacy.composition:merge")

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, True, "1e-5"])
    def test_a_bad_delta_is_one_sentence(self, delta: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^delta = .*: expected a number above 0 and below 1$"):
            account(Gaussian(1.0), delta=delta)

    def test_importing_it_imports_no_heavy_package(self) -> None:
        heavy = ("numpy", "scipy", "torch")
        code = f"import sys, dpbench.privacy.accounting; print([m for m in {heavy} if m in sys.modules])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "[]"

    def test_accounting_needs_neither_torch_nor_scipy(self) -> None:
        code = (
            "import sys; from dpbench import account, calibrate; from dpbench.events import Gaussian;"
            "account(Gaussian(1.0), delta=1e-5, accountants=['rdp', 'gdp_clt']);"
            "calibrate(Gaussian, epsilon=1.0, delta=1e-5);"
            "print([m for m in ('scipy', 'torch') if m in sys.modules])"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "[]"


class TestSteps:
    @pytest.mark.parametrize(
        ("epochs", "examples", "batch", "steps"),
        [(15, 60000, 256, 3516), (60, 60000, 256, 14063), (1, 256, 256, 1), (0, 10, 1, 0), (0.1, 1000, 1, 100)],
    )
    def test_known_numbers(self, epochs: float, examples: int, batch: int, steps: int) -> None:
        assert steps_from_epochs(epochs, examples, batch) == steps

    @given(st.decimals(0, 10**4, places=3), st.integers(1, 10**7), st.integers(1, 10**5))
    def test_it_is_the_ceiling_of_the_written_number(self, epochs: Any, examples: int, batch: int) -> None:
        steps = steps_from_epochs(float(epochs), examples, batch)
        assert steps - 1 < Fraction(epochs) * examples / batch <= steps

    @pytest.mark.parametrize("epochs", [-1, math.nan, math.inf, True, "15"])
    def test_bad_epochs(self, epochs: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^epochs = .*: expected a finite number, 0 or more$"):
            steps_from_epochs(epochs, 100, 10)

    @pytest.mark.parametrize("value", [0, -5, 2.5, True, "60000"])
    def test_bad_counts(self, value: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^examples = .*: expected a whole number, 1 or more$"):
            steps_from_epochs(1, value, 10)
        with pytest.raises(DpbenchError, match=r"^batch_size = .*: expected a whole number, 1 or more$"):
            steps_from_epochs(1, 100, value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "more memory"),
        (ZeroDivisionError("by zero"), "its arithmetic does not reach"),
        (IndexError("far"), "IndexError: far"),
        (DpbenchError("so"), "so"),
    ],
)
def test_an_accountant_that_fails_for_a_reason_leaves_the_others_their_answers(error: Exception, words: str) -> None:
    def fails() -> PrivacyCurve | No:
        raise error

    found = accounting.guarantee("somebody", fails, delta=1e-5)
    assert found.epsilon is None
    assert words in str(found.refused)


def test_a_mistake_in_an_accountant_is_named_as_one() -> None:
    def fails() -> PrivacyCurve | No:
        raise TypeError("what was\nmistaken")

    found = accounting.guarantee("somebody", fails, delta=1e-5)
    assert "a mistake in its code stopped it (TypeError: what was mistaken)" in str(found.refused)


def test_every_answer_carries_its_accountants_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals too; one of a file has the hash of that file, which changes with it."""
    from dpbench.catalog import Entry

    found = account(SampledGaussian(0.01, 1.0), delta=1e-5)
    assert all(one.version and one.version.startswith("dpbench ") for one in found)
    assert {one.to_json()["version"] for one in found} == {one.version for one in found}
    monkeypatch.syspath_prepend(tmp_path)
    versions = set()
    for number, text in enumerate(("x = 1", "x = 2")):
        (tmp_path / f"mine_{number}.py").write_text(text)
        name = f"mine_{number}:x"
        versions.add(Entry("accountants", name, name, "spec").version)
    assert len(versions) == 2
    assert all(version.startswith("code ") for version in versions)
