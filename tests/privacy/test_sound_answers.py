"""Internal: work is counted and bounded, so that no answer takes minutes.

No answer of any accountant is nonsense: ends around values, numbers that are numbers, errors that are sentences.
"""

from __future__ import annotations

import math
import random
import sys
import time
import warnings
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial
from typing import Any

import mpmath
import pytest
from click.testing import CliRunner

from dpbench.cli import cli
from dpbench.cli.capped import Stopped, capped
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
from dpbench.privacy.accountants import _work
from dpbench.privacy.accountants.exact.accountant import accountant as exact
from dpbench.privacy.accounting import account, load_accountant
from dpbench.privacy.answers import (
    Estimate,
    Guarantee,
    PrivacyCurve,
    Yes,
)
from dpbench.privacy.calibration import calibrate
from dpbench.privacy.guards import cross_checked, guarded

QUICK = ("advanced", "analytic_gaussian", "basic", "classical_gaussian", "exact", "gdp", "gdp_clt", "moments",
         "optimal_composition", "rdp", "rdp_data_dependent", "rdp_filter")  # fmt: skip


@pytest.fixture(autouse=True)
def _as_users_have_it() -> Iterator[None]:
    """Warnings of NumPy are warnings here, not the errors that pytest makes of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def response(epsilon: float) -> DiscretePair:
    """Randomized response."""
    less = math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return DiscretePair((1 / (1 + math.exp(-epsilon)), less), (less, 1 / (1 + math.exp(-epsilon))))


def true_epsilon(pair: DiscretePair, count: int, delta: float) -> Any:
    """By all sums of losses in 400 digits: ε at δ of `count` invocations, the worse direction's."""
    with mpmath.workdps(400):
        best = mpmath.mpf(0)
        for first, second in ((pair.first, pair.second), (pair.second, pair.first)):
            sums = [sum(Fraction(value) for value in one) for one in (first, second)]
            p, q = (
                [Fraction(value) / total for value in one] for one, total in zip((first, second), sums, strict=True)
            )
            outcomes = []
            for chosen in combinations_with_replacement(range(len(p)), count):
                times = factorial(count)
                for k in set(chosen):
                    times //= factorial(chosen.count(k))
                outcomes.append((times * math.prod(p[k] for k in chosen), times * math.prod(q[k] for k in chosen)))
            outcomes = [one for one in outcomes if one[0]]
            outcomes.sort(key=lambda one: one[0] / one[1] if one[1] else math.inf, reverse=True)
            over, under = -Fraction(delta), Fraction(0)
            for above, below in outcomes:  # the largest (P(S) − δ)/Q(S) over sets of the largest ratios
                over, under = over + above, under + below
                if over > 0:
                    ratio = mpmath.mpf(over.numerator) / over.denominator
                    best = max(
                        best, mpmath.inf if not under else mpmath.log(ratio * under.denominator / under.numerator)
                    )
        return best


class TestRandomizedResponse:
    @pytest.mark.parametrize("epsilon", [1e-9, 0.1, 3.0, 5.0, 7.0, 36.0, 100.0, 700.0])
    @pytest.mark.parametrize("count", [1, 3, 12])
    def test_it_is_right(self, epsilon: float, count: int) -> None:
        curve = exact.curve(Composition(((response(epsilon), count),)))
        for delta in (1e-100, 1e-12, 1e-5, 0.1, 0.9):
            found, truth = curve.epsilon(delta), true_epsilon(response(epsilon), count, delta)
            assert found.lower is not None
            assert found.upper is not None
            assert found.lower <= truth <= found.upper
            assert found.upper - found.lower <= 1e-12 * max(float(truth), 1e-6 * min(epsilon, 1.0)) + 1e-13 * epsilon

    def test_the_example_of_the_documentation(self) -> None:
        keep, lie = 0.9933071490757153, 0.006692850924284732
        (found,) = account(DiscretePair((keep, lie), (lie, keep)), delta=1e-5, accountants="exact")
        assert found.epsilon is not None
        assert found.epsilon.value == pytest.approx(4.99998993257, rel=1e-11)

    def test_pairs_at_random(self) -> None:
        draw = random.Random(13)
        for _ in range(60):
            pair, count, delta = some_pair(draw), draw.randint(1, 4), 10 ** draw.uniform(-14, -0.2)
            try:
                found = exact.curve(Composition(((pair, count),))).epsilon(delta)
            except DpbenchError:
                continue
            assert found.lower is not None
            assert found.upper is not None
            truth = true_epsilon(pair, count, delta)
            assert found.lower <= truth <= found.upper, (pair, count, delta, truth, found)


def some_pair(draw: random.Random) -> DiscretePair:
    """Outcomes of very unlike probabilities, some with none under one of both."""
    while True:
        kinds = draw.randint(2, 4)
        raw = [[10 ** draw.uniform(-draw.choice([1, 3, 12, 100]), 0) for _ in range(kinds)] for _ in range(2)]
        for one in raw:
            if draw.random() < 0.2:
                one[draw.randrange(kinds)] = 0.0
        first, second = ([value / math.fsum(one) for value in one] for one in raw)
        if abs(math.fsum(first) - 1) < 1e-13 and abs(math.fsum(second) - 1) < 1e-13:
            return DiscretePair(tuple(first), tuple(second))


def some_event(draw: random.Random, kind: str) -> Event:
    rate = draw.choice([10 ** draw.uniform(-6, 0), draw.uniform(0, 1), 1.0, 0.0])
    sigma = draw.choice([10 ** draw.uniform(-3, 2), 10 ** draw.uniform(-0.5, 0.7), 10 ** draw.uniform(-300, 300)])
    if kind == "gaussian":
        return Gaussian(sigma)
    if kind == "sampled":
        return SampledGaussian(rate, sigma)
    if kind == "replaced":
        return SampledGaussian(rate, sigma, adjacency="replace_one")
    if kind == "fixed size":
        return SampledGaussian(rate, sigma, adjacency="replace_one", sampler="without_replacement")
    if kind == "group":
        return GroupSampledGaussian(rate, sigma, draw.choice([1, 2, 5, 29]))
    if kind == "projections":
        return RandomSensitivityGaussian(rate, sigma, draw.choice([1, 2, 5, 40]))
    if kind == "laplace":
        return Laplace(sigma)
    if kind == "gnmax":
        votes = tuple(draw.randint(0, 300) for _ in range(3)) if draw.random() < 0.5 else None
        return ConfidentGNMax(draw.uniform(0, 300), sigma, 10 ** draw.uniform(-2, 2), draw.random() < 0.5, votes)
    return draw.choice([some_pair(draw), response(10 ** draw.uniform(-3, 2.8))])


KINDS = ("gaussian", "sampled", "replaced", "fixed size", "group", "projections", "laplace", "pair", "gnmax")


def some_composition(draw: random.Random, first: str, second: str) -> Composition:
    adjacency = "replace_one" if {first, second} & {"replaced", "fixed size"} else "add_or_remove"
    parts = []
    for kind in (first, second)[: draw.choice([1, 2, 2])]:
        event = some_event(draw, kind)
        fields = vars(event) | {"adjacency": adjacency}
        parts.append((type(event)(**fields), draw.choice([1, 1, 2, 7, int(10 ** draw.uniform(1, 5))])))
    return Composition(tuple(parts))


def sensible(one: Guarantee) -> bool:
    """A refusal in one sentence, or an answer whose value is a number between its ends."""
    if one.refused is not None:
        return bool(one.refused) and "\n" not in one.refused and len(one.refused) < 1000
    answer = one.answer
    assert answer is not None
    ends = [answer.value if end is None else end for end in (answer.lower, answer.upper)]
    most = 1.0 if one.delta_at is not None else math.inf
    if not 0 <= ends[0] <= answer.value <= ends[1] or not answer.value <= most:  # false for nan
        return False
    return not (one.kind == "exact" and math.isinf(ends[1]) and not math.isinf(ends[0]))


def asked_at_random(seed: int, rounds: int, accountants: tuple[str, ...]) -> int:
    draw, answers = random.Random(seed), 0
    for _ in range(rounds):
        composition = some_composition(draw, draw.choice(KINDS), draw.choice(KINDS))
        for question in (
            {"delta": 10 ** draw.uniform(-15, -0.3)},
            {"epsilon": draw.choice([0.0, 10 ** draw.uniform(-6, 4)])},
        ):
            for one in account(composition, accountants=accountants, **question):  # type: ignore[arg-type]
                assert sensible(one), (composition, question, one)
                answers += one.answer is not None
    return answers


def test_every_answer_is_a_number_between_its_ends_or_a_sentence() -> None:
    assert asked_at_random(13, 12, QUICK) > 30


def test_of_the_lattice_too() -> None:
    assert asked_at_random(14, 3, ("lattice",)) > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_many_more(seed: int) -> None:
    assert asked_at_random(100 + seed, 100, (*QUICK, "lattice")) > 250


REVEALS, SOMETIMES = DiscretePair((1.0, 0.0), (0.0, 1.0)), DiscretePair((1e-4, 0.2, 0.7999), (0.0, 0.8, 0.2))
NAMED = [
    (((SampledGaussian(1e-6, 0.15), 1000),), 1e-5),  # was 0.000987 in [0, inf], for 23.09
    (((SampledGaussian(1e-6, 0.01), 1000),), 1e-10),  # ValueError
    (((SampledGaussian(0.0005, 1.28), 1), (REVEALS, 1), (SOMETIMES, 1)), 0.3),  # IndexError
    (((REVEALS, 1), (SOMETIMES, 1)), 0.3),
    (((SampledGaussian(0.0005, 1.28), 1), (SOMETIMES, 1)), 0.3),
]


@pytest.mark.parametrize(("parts", "delta"), NAMED)
def test_what_was_nonsense(parts: tuple[tuple[Event, int], ...], delta: float) -> None:
    (found,) = account(Composition(parts), delta=delta, accountants="exact")
    assert sensible(found)
    if found.epsilon is not None:  # the same where it is asked directly
        assert exact.curve(Composition(parts)).epsilon(delta) == found.epsilon
        return
    with pytest.raises(DpbenchError) as caught:
        exact.curve(Composition(parts)).epsilon(delta)
    assert found.refused is not None
    assert str(caught.value).endswith(found.refused)


@pytest.mark.parametrize(
    "make", [Gaussian, Laplace, lambda v: SampledGaussian(v, 1.0), lambda v: DiscretePair((v, 0), (0, 1))]
)
def test_numbers_beyond_doubles_are_refused_in_a_sentence(make: Any) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        make(10**400)
    with pytest.raises(DpbenchError, match="expected a finite number"):
        account(Gaussian(1.0), epsilon=10**400)


class Planted:
    """An accountant with given answers."""

    name = "planted"

    def __init__(self, answer: Any, kind: Any = "exact", adjacency: Any = "add_or_remove") -> None:
        self.answer, self.kind, self.adjacency, self.mu = answer, kind, adjacency, None

    def supports(self, _composition: Composition) -> Yes:
        return Yes()

    def curve(self, _composition: Composition) -> PrivacyCurve:
        return self

    def delta(self, _epsilon: float) -> Estimate:
        return self.epsilon(0.5)

    def epsilon(self, _delta: float) -> Estimate:
        if isinstance(self.answer, Exception):
            raise self.answer
        found: Estimate = self.answer
        return found


NAN = math.nan
NONSENSE = [
    Estimate(NAN, 0.0, 1.0),
    Estimate(0.5, NAN, 1.0),
    Estimate(0.5, 0.0, NAN),
    Estimate(NAN),
    Estimate(0.000987, 0.0, math.inf),
    Estimate(0.5, 0.1, 100.0),
    Estimate(0.5, 0.6, 0.7),
    Estimate(-0.5, -0.5, -0.5),
    ValueError("cannot convert float NaN to integer"),
    IndexError("index 3 is out of bounds"),
    OverflowError("int too large"),
    FloatingPointError("overflow"),
    RecursionError("too deep"),
    AssertionError(),
    KeyError("x"),
]


@pytest.mark.parametrize("answer", NONSENSE)
@pytest.mark.parametrize("question", [{"delta": 1e-5}, {"epsilon": 1.0}])
def test_nonsense_of_anybody_is_a_refusal(monkeypatch: pytest.MonkeyPatch, answer: Any, question: Any) -> None:
    honest = load_accountant
    monkeypatch.setattr(
        "dpbench.privacy.accounting.load_accountant", lambda n: Planted(answer) if n == "exact" else honest(n)
    )
    found, other = account(Gaussian(1.0), accountants=["exact", "gdp"], **question)
    assert found.answer is None
    assert found.refused
    assert sensible(found)
    assert other.answer is not None


def test_a_curve_that_is_asked_later_is_checked_too() -> None:
    curve = guarded(Planted(Estimate(2.0, 2.0, 2.0)))
    assert curve.epsilon(0.1).value == 2.0
    with pytest.raises(DpbenchError, match=r"outside of \[0, 1\]"):
        curve.delta(1.0)
    with pytest.raises(DpbenchError, match="IndexError"):
        guarded(Planted(IndexError("no"))).deltas([1.0])


def test_calibration_does_not_take_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dpbench.privacy.calibration.load_accountant", lambda _: Planted(Estimate(0.0009, 0.0, math.inf))
    )
    with pytest.raises(DpbenchError, match="no noise_multiplier is known to meet"):
        calibrate(Gaussian, epsilon=1.0, delta=1e-5, accountant="planted")


def answer(kind: Any, *ends: Any, adjacency: Any = "add_or_remove", name: str = "") -> Guarantee:
    name = name or ("exact" if kind == "exact" else "rdp")
    return Guarantee(name, kind, adjacency, 1e-5, Estimate(*ends), None, None, 0.0)


class TestCrossCheck:
    EXACT = answer("exact", 88.4, 88.39, 88.41)

    @pytest.mark.parametrize(
        "other",
        [
            answer("upper_bound", 5.0, None, 5.0),
            answer("certified", 5.0, 4.9, 5.1),
            answer("certified", 90.0, 89.0, 91.0),
            answer("lower_bound", 89.0, 89.0),
            answer("upper_bound", 99.0, 98.0, 99.0),
        ],
    )
    def test_a_contradicted_answer_is_withdrawn_and_both_are_shown(self, other: Guarantee) -> None:
        found, same = cross_checked([self.EXACT, other])
        assert same is other
        assert found.answer is found.curve is found.kind is None
        assert "88.39 to 88.41" in str(found.refused)
        assert other.accountant in str(found.refused)
        assert f"{(other.answer or Estimate(0)).value:.2g}"[:1] in str(found.refused)
        assert found.to_json()["delta"] == 1e-5

    @pytest.mark.parametrize(
        "other",
        [
            answer("upper_bound", 88.41, None, 88.41),
            answer("upper_bound", 88.39 * (1 - 1e-10), None, 88.39 * (1 - 1e-10)),  # rounding
            answer("approximation", 5.0),
            answer("upper_bound", 5.0, None, 5.0, adjacency="replace_one"),
            answer("certified", 88.4, 88.0, 88.5),
        ],
    )
    def test_others_are_not(self, other: Guarantee) -> None:
        assert cross_checked([self.EXACT, other]) == (self.EXACT, other)

    def test_of_an_accountant_of_somebody_else_and_our_own_ours_stays(self) -> None:
        wrong = answer("upper_bound", 5.0, None, 5.0, name="bad:accountant")
        ours, theirs, too = cross_checked([self.EXACT, wrong, answer("exact", 88.4, 88.3, 88.5, name="gdp")])
        assert ours.refused is too.refused is None
        assert "withdrawn" in str(theirs.refused)
        assert "88.39 to 88.41" in str(theirs.refused)

    def test_of_delta(self) -> None:
        given = Estimate(1.0, 1.0, 1.0)
        one = Guarantee("exact", "exact", "add_or_remove", 0.5, given, None, None, 0.0, None, Estimate(0.5, 0.5, 0.5))
        two = Guarantee(
            "rdp", "upper_bound", "add_or_remove", 0.1, given, None, None, 0.0, None, Estimate(0.1, None, 0.1)
        )
        found, _ = cross_checked([one, two])
        assert found.epsilon == given
        assert found.delta_at is found.delta is None
        assert "0.5" in str(found.refused)
        assert "at most 0.1" in str(found.refused)

    def test_account_does_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest, wrong = load_accountant, Planted(Estimate(88.4, 88.39, 88.41))
        monkeypatch.setattr(
            "dpbench.privacy.accounting.load_accountant", lambda n: wrong if n == "exact" else honest(n)
        )
        found = {one.accountant: one for one in account(response(5.0), delta=1e-5)}
        assert "withdrawn" in str(found["exact"].refused)
        assert found["basic"].answer is not None
        shown = CliRunner().invoke(cli, ["account", "--event", "laplace", "--sigma", "1", "--delta", "1e-5"])
        assert shown.exit_code == 0
        assert "withdrawn" in shown.output
        assert "88.41" in shown.output.replace("\n", "")


class TestWork:
    @pytest.mark.parametrize(
        "part",
        [
            (SampledGaussian(0.01, 1.0), 100),
            (SampledGaussian(0.01, 0.003), 3),
            (GroupSampledGaussian(0.038, 0.39, 29), 4),
            (RandomSensitivityGaussian(0.01, 1.0, 5), 100),
            (SampledGaussian(0.01, 1.0, adjacency="replace_one"), 3),
        ],
    )
    def test_it_is_counted_and_bounded(self, monkeypatch: pytest.MonkeyPatch, part: tuple[Event, int]) -> None:
        monkeypatch.setattr(_work, "MOST_WORK", 2e4)
        with pytest.raises(DpbenchError, match=r"more work than one answer may .* try the accountant 'lattice' or"):
            exact.curve(Composition((part,))).epsilon(1e-5)

    @pytest.mark.parametrize(
        ("part", "delta"),
        [
            ((GroupSampledGaussian(0.038, 0.39, 29), 4), 1e-5),  # 12 s
            pytest.param((SampledGaussian(0.0071019, 0.006445), 2), 5.9e-6, marks=pytest.mark.long),  # 18 s
            pytest.param((SampledGaussian(0.015391, 0.00105442), 7), 1.8e-12, marks=pytest.mark.long),  # 68 s
        ],
    )
    def test_what_took_long_ends(self, part: tuple[Event, int], delta: float) -> None:
        start = time.process_time()
        (found,) = account(Composition((part,)), delta=delta, accountants="exact")
        assert sensible(found)
        assert time.process_time() - start < 12  # about five seconds; machines differ

    @pytest.mark.parametrize(
        ("parts", "question"),
        [
            (((Laplace(1000.0), 19986), (Gaussian(0.001), 43580)), 1.5e-7),  # 80 s in lists of Python
            (((GroupSampledGaussian(0.5, 0.001, 200), 2),), 1e-12),  # 30 s and 9 GB
            (((Laplace(348.675), 1), (ConfidentGNMax(5828.5, 6.1036, 0.001), 129197)), 0.5),  # 13 s
            (((SampledGaussian(1e-9, 1e-3), 10**7),), 1e-12),  # 10 s
            (((GroupSampledGaussian(0.5, 0.01, 30), 2),), 1e-6),  # 8 s
        ],
    )
    def test_all_of_it_is_counted(self, parts: tuple[tuple[Event, int], ...], question: float) -> None:
        start = time.process_time()
        (found,) = account(Composition(parts), delta=question, accountants="exact")
        assert sensible(found)
        assert time.process_time() - start < 7


class TestRefusals:
    def test_exact_warns_of_nothing(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for part in (
                (SampledGaussian(1e-9, 1e-3), 10**7),
                (GroupSampledGaussian(0.5, 0.003, 3), 4),
                (SampledGaussian(1e-6, 0.01), 1000),
            ):
                (found,) = account(Composition((part,)), delta=1e-10, accountants="exact")
                assert sensible(found)
                assert "Warning" not in str(found.refused)

    def test_the_lattice_asked_directly_refuses_in_a_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: object) -> float:
            raise ArithmeticError("losses that take 2.4e+08 places of a plan")

        curve = load_accountant("lattice").curve(Composition(((SampledGaussian(0.01, 1.0), 100),)))
        for way in ("_log_delta", "_epsilon"):
            monkeypatch.setattr(type(curve), way, fails)
        for ask in (lambda: curve.delta(1.0), lambda: curve.epsilon(1e-5)):
            with pytest.raises(DpbenchError, match=r"does not reach this corner \(ArithmeticError: losses"):
                ask()

    @pytest.mark.parametrize("beside", [SampledGaussian(0.01, 1.0), GroupSampledGaussian(0.01, 1.0, 3), Laplace(1.0)])
    def test_what_reveals_everything_beside_anything(self, beside: Event) -> None:
        curve = load_accountant("lattice").curve(Composition(((REVEALS, 1), (beside, 3))))
        assert curve.delta(0.0).value == curve.delta(3.0).value == 1.0
        assert curve.epsilon(0.5).value == math.inf


@pytest.mark.skipif(sys.platform != "linux", reason="there is no time limit on other systems: forks are not safe there")
class TestCap:
    def test_a_job_that_takes_too_long_is_stopped_and_the_others_answer(self) -> None:
        found = list(capped([lambda: 1, lambda: time.sleep(60), lambda: 3], 0.5))
        assert found == [1, Stopped("took longer than 0.5 s and was stopped"), 3]

    def test_a_process_that_ends_is_told_of(self) -> None:
        import os

        first, second = capped([lambda: os._exit(1), lambda: 2], 20)
        assert isinstance(first, Stopped)
        assert "ended without an answer" in first.reason
        assert second == 2

    def test_an_error_for_people_comes_through(self) -> None:
        def fails() -> int:
            raise DpbenchError("so")

        with pytest.raises(DpbenchError, match="so"):
            list(capped([fails], 20))

    def test_the_command_line_stops_one_and_shows_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow(Planted):
            def epsilon(self, _delta: float) -> Estimate:
                time.sleep(100)
                raise AssertionError

        honest = load_accountant
        monkeypatch.setattr(
            "dpbench.privacy.accounting.load_accountant", lambda n: Slow(None) if n == "exact" else honest(n)
        )
        start = time.monotonic()
        words = "account --event gaussian --sigma 1 --delta 1e-5 --accountant exact --accountant gdp --seconds 2"
        shown = CliRunner().invoke(cli, words.split())
        assert shown.exit_code == 0
        assert "exact: took longer than 2 s and was stopped; --seconds allows more" in shown.output
        assert "gdp         = 4.377" in shown.output
        assert time.monotonic() - start < 60


def true_gaussian_delta(epsilon: float, mu: Any) -> Any:
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def some_gaussian(draw: random.Random, sigma: float) -> tuple[Event, Any]:
    """A mechanism that is Gaussian in all but name, and its μ² in the digits of mpmath."""
    kind, noise = draw.randrange(5), mpmath.mpf(sigma)
    if kind == 0:
        moved = draw.choice([0.3, 2.0, 5.0])
        return Gaussian(sigma, sensitivity=moved), (moved / noise) ** 2
    if kind == 1:
        return SampledGaussian(1.0, sigma), 1 / noise**2
    if kind == 2:
        return GroupSampledGaussian(1.0, sigma, 7), 49 / noise**2
    if kind == 3:
        return ConfidentGNMax(10.0, sigma, 1.0, answered=False), 1 / noise**2
    other = sigma * draw.uniform(0.1, 10)
    return ConfidentGNMax(10.0, sigma, other), 1 / noise**2 + 2 / mpmath.mpf(other) ** 2


class TestGaussians:
    """However Gaussian steps are written, they are one Gaussian; and beside others their large μ loses no digits."""

    def test_of_all_kinds(self) -> None:
        draw = random.Random(2)
        for _ in range(150):
            with mpmath.workdps(60):
                level = 10 ** draw.uniform(-8, 2)
                parts, squared = [], mpmath.mpf(0)
                for _ in range(draw.randint(1, 4)):
                    (event, one), count = some_gaussian(draw, level * draw.uniform(0.5, 2)), draw.choice([1, 3, 28440])
                    parts.append((event, count))
                    squared += count * one
                mu = mpmath.sqrt(squared)
                curve = exact.curve(Composition(tuple(parts)))
                assert curve.mu == float(mu)
                for place in (-math.inf, -3.0, 0.5, 5.0):
                    epsilon = max(float(squared / 2 + place * mu), 0.0)
                    found, truth = curve.delta(epsilon), true_gaussian_delta(epsilon, mu)
                    assert (found.lower or 0.0) <= truth <= (found.upper or 0.0) + 1e-300, (parts, epsilon)
                delta = 10 ** draw.uniform(-12, -0.1)
                found = exact.curve(Composition(tuple(parts))).epsilon(delta)
                assert found == exact.curve(Composition(tuple(reversed(parts)))).epsilon(delta)
                assert found.lower is not None
                assert found.upper is not None
                assert true_gaussian_delta(found.upper * (1 + 1e-16), mu) <= delta
                assert found.lower == 0 or true_gaussian_delta(found.lower * (1 - 1e-16), mu) >= delta
                assert found.upper - found.lower <= 1e-9 * max(found.value, 1.0)

    @pytest.mark.parametrize("beside", [SampledGaussian(1e-16, 5.0), GroupSampledGaussian(1e-16, 5.0, 3)])
    @pytest.mark.parametrize("mu", [1e3, 1e4, 3e4])
    def test_beside_what_reveals_next_to_nothing(self, mu: float, beside: Event) -> None:
        alone = exact.curve(Composition(((Gaussian(1 / mu), 1),)))
        curve = exact.curve(Composition(((ConfidentGNMax(1.0, 1 / mu, 1.0, answered=False), 1), (beside, 1))))
        pairs = [
            (curve.delta(e), alone.delta(e)) for e in (max(mu * mu / 2 + k * mu, 0.0) for k in (-1e9, -6, -1, 0, 3))
        ]
        pairs += [(curve.epsilon(delta), alone.epsilon(delta)) for delta in (1e-12, 1e-5, 0.5, 0.9)]
        for found, truth in pairs:
            assert found.lower is not None
            assert found.upper is not None
            assert truth.lower is not None
            assert truth.upper is not None
            assert found.lower <= truth.upper
            assert truth.lower <= found.upper
