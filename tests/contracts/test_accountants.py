"""What every accountant owes, whoever wrote it: each test runs over every member of the catalog."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import mpmath
import pytest

from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.events import ADJACENCIES, Composition, Gaussian, SampledGaussian
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import (
    KINDS,
    Accountant,
    Estimate,
    No,
    PrivacyCurve,
    Yes,
)
from dpbench.privacy.composition import common_adjacency

NAMES = sorted(catalog("accountants"))
PROMISING = ("exact", "certified", "upper_bound")  # kinds whose upper end may never lie below the truth


def times(event: Gaussian | SampledGaussian, count: int) -> Composition:
    return Composition(((event, count),))


TRAINING = times(SampledGaussian(256 / 60000, 1.3), 3516)
SILENT = {
    "nothing released": Composition(()),
    "count 0": times(SampledGaussian(0.1, 0.3), 0),
    "rate 0": times(SampledGaussian(0.0, 0.3), 10**6),
    "infinite noise": times(SampledGaussian(0.5, math.inf), 10**6),
    "infinite noise, not sampled": times(Gaussian(math.inf), 10**6),
}
ORDINARY = {
    "training": TRAINING,
    "one step": times(SampledGaussian(0.1, 1.0), 1),
    "a million steps": times(SampledGaussian(1e-4, 0.8), 10**6),
    "little noise": times(SampledGaussian(0.01, 0.3), 100),
    "much noise": times(SampledGaussian(0.2, 1000.0), 1000),
    "tiny rate": times(SampledGaussian(1e-7, 1.0), 10**6),
    "rate 1": times(SampledGaussian(1.0, 5.0), 10),
    "gaussian": times(Gaussian(4.0), 20),
    "unlike releases": Composition(
        ((SampledGaussian(0.01, 1.0), 500), (SampledGaussian(0.02, 1.5), 100), (Gaussian(20.0), 1))
    ),
}
PURE = ("training", "gaussian", "unlike releases")
UNUSUAL = {
    "replace one": times(SampledGaussian(0.01, 1.0, adjacency="replace_one"), 100),
    "zero out": times(SampledGaussian(0.01, 1.0, adjacency="zero_out"), 100),
    "without replacement": times(SampledGaussian(0.01, 1.0, sampler="without_replacement"), 100),
    "shuffled": times(SampledGaussian(0.01, 1.0, sampler="shuffled"), 100),
    "shuffled at rate 1": times(SampledGaussian(1.0, 1.0, sampler="shuffled"), 100),
    "shuffled, zero out": times(SampledGaussian(0.04, 1.0, adjacency="zero_out", sampler="shuffled"), 100),
    "gaussian, replace one": times(Gaussian(2.0, adjacency="replace_one"), 3),
    "two neighbouring relations": Composition(((Gaussian(2.0), 3), (Gaussian(2.0, adjacency="replace_one"), 3))),
    "adaptive": replace(TRAINING, adaptive=True),
}
ALL = SILENT | ORDINARY | UNUSUAL
EPSILONS = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 12.0, 40.0, 300.0)
DELTAS = (1e-30, 1e-12, 1e-8, 1e-5, 1e-3, 0.1, 0.6)


@pytest.fixture(params=NAMES)
def accountant(request: pytest.FixtureRequest) -> Accountant:
    return load_accountant(request.param)


CURVES: dict[tuple[str, Composition], PrivacyCurve] = {}


def shared(accountant: Accountant, composition: Composition) -> PrivacyCurve:
    """One curve for all tests of this file, so that what it remembers is worked out once.

    That it answers like a new one, whatever was asked before, is `test_it_is_pure`.
    """
    key = (accountant.name, composition)
    if key not in CURVES:
        CURVES[key] = accountant.curve(composition)
    return CURVES[key]


def supported(accountant: Accountant, compositions: Iterable[Composition]) -> list[Composition]:
    return [composition for composition in compositions if accountant.supports(composition)]


def well_formed(estimate: Estimate, kind: str) -> bool:
    """Ends enclose the value, an upper bound is its own upper end, an exact answer knows its error."""
    lower = -math.inf if estimate.lower is None else estimate.lower
    upper = math.inf if estimate.upper is None else estimate.upper
    if not lower <= estimate.value <= upper:
        return False
    if kind == "upper_bound":
        return estimate.upper == estimate.value
    if kind == "lower_bound":
        return estimate.lower == estimate.value
    if kind in ("exact", "certified"):
        return estimate.lower is not None and estimate.upper is not None
    return True


@pytest.mark.parametrize("name", NAMES)
def test_the_catalog_knows_it_by_its_name(name: str) -> None:
    accountant = load_accountant(name)
    assert accountant.name == name
    assert accountant.kind in KINDS


@pytest.mark.parametrize("case", ALL)
def test_it_says_yes_or_no_with_a_reason_and_keeps_to_it(accountant: Accountant, case: str) -> None:
    composition = ALL[case]
    answer = accountant.supports(composition)
    assert isinstance(answer, Yes | No)
    if isinstance(answer, No):
        assert answer.reason.strip()
        assert "\n" not in answer.reason
        with pytest.raises(DpbenchError) as caught:
            accountant.curve(composition)
        assert answer.reason in str(caught.value)
        return
    curve = accountant.curve(composition)
    assert isinstance(curve, PrivacyCurve)
    assert curve.kind in KINDS
    assert curve.adjacency in ADJACENCIES
    assert curve.adjacency == common_adjacency(composition)
    assert curve.mu is None or curve.mu >= 0


def test_it_supports_something(accountant: Accountant) -> None:
    assert supported(accountant, ALL.values())


def test_one_guarantee_never_spans_two_neighbouring_relations(accountant: Accountant) -> None:
    assert not accountant.supports(ALL["two neighbouring relations"])


def test_an_accountant_for_poisson_sampling_refuses_shuffled_batches(accountant: Accountant) -> None:
    if accountant.supports(TRAINING):
        for case in ("shuffled", "shuffled at rate 1"):
            answer = accountant.supports(UNUSUAL[case])
            assert isinstance(answer, No)
            assert "shuffled" in answer.reason


def test_delta_falls_from_at_most_one_to_at_least_zero(accountant: Accountant) -> None:
    for composition in supported(accountant, ALL.values()):
        curve = shared(accountant, composition)
        deltas = [curve.delta(epsilon) for epsilon in EPSILONS]
        assert all(well_formed(delta, curve.kind) for delta in deltas)
        values = [delta.value for delta in deltas]
        assert all(0 <= value <= 1 for value in values)
        # the accuracy that an exact answer promises (DECISIONS: 1e-9 relative, 1e-12 absolute at the least)
        assert all(after <= before * (1 + 1e-9) + 1e-12 for before, after in pairwise(values))


def told(curve: PrivacyCurve, delta: float) -> Estimate | None:
    """ε at `delta`; None where an exact accountant refers a δ below 1e-25 to the lattice."""
    try:
        return curve.epsilon(delta)
    except DpbenchError as refusal:
        if curve.kind == "exact" and delta < 1e-25 and "lattice" in str(refusal):
            return None
        raise


def test_epsilon_falls_with_delta_and_is_never_negative(accountant: Accountant) -> None:
    for composition in supported(accountant, ALL.values()):
        curve = shared(accountant, composition)
        epsilons = [epsilon for delta in DELTAS if (epsilon := told(curve, delta)) is not None]
        assert len(epsilons) >= len(DELTAS) - 1
        assert all(well_formed(epsilon, curve.kind) for epsilon in epsilons)
        values = [epsilon.value for epsilon in epsilons]
        assert min(values) >= 0
        assert all(after <= before * (1 + 1e-9) + 1e-12 for before, after in pairwise(values))


def test_epsilon_and_delta_invert_each_other(accountant: Accountant) -> None:
    """At 1e-6: ε is good to 1e-9 relative, and d log ε / d log δ is below 1000 where δ is between 1e-30 and 0.5."""
    tried = 0
    for composition in supported(accountant, ORDINARY.values()):
        curve = shared(accountant, composition)
        for epsilon in EPSILONS[1:]:
            delta = curve.delta(epsilon).value
            if 1e-30 < delta < 0.5:
                tried += 1
                found = told(curve, delta)
                assert found is None or found.value == pytest.approx(epsilon, rel=1e-6)
    if supported(accountant, [TRAINING]):
        assert tried >= 10


@pytest.mark.parametrize("case", [*PURE, *(pytest.param(c, marks=pytest.mark.long) for c in ORDINARY if c not in PURE)])
def test_it_is_pure(accountant: Accountant, case: str) -> None:
    """The same question has the same answer to the last bit: again, after others, and on a new curve.

    The first of the curves has answered what the tests before this one asked, where they ran in this process.
    """
    for composition in supported(accountant, [ORDINARY[case]]):
        curve = shared(accountant, composition)
        first = (curve.epsilon(1e-6), curve.delta(1.0), curve.epsilon(1e-12))
        other = accountant.curve(composition)
        assert (other.epsilon(1e-12), other.delta(1.0), other.epsilon(1e-6)) == first[::-1]
        assert (curve.epsilon(1e-6), curve.delta(1.0), curve.epsilon(1e-12)) == first


@pytest.mark.parametrize("case", SILENT)
def test_what_reveals_nothing_costs_nothing(accountant: Accountant, case: str) -> None:
    if accountant.supports(SILENT[case]):
        curve = accountant.curve(SILENT[case])
        assert [curve.epsilon(delta).value for delta in DELTAS] == [0.0] * len(DELTAS)
        assert [curve.delta(epsilon).value for epsilon in (0.0, 1.0)] == [0.0, 0.0]


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf, True, "1e-5", None])
def test_a_bad_delta_gives_one_clear_sentence(accountant: Accountant, value: Any) -> None:
    curve = accountant.curve(supported(accountant, ALL.values())[-1])
    with pytest.raises(DpbenchError, match=r"^delta = .*: expected a number above 0 and below 1$"):
        curve.epsilon(value)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1", None])
def test_a_bad_epsilon_gives_one_clear_sentence(accountant: Accountant, value: Any) -> None:
    curve = accountant.curve(supported(accountant, ALL.values())[-1])
    with pytest.raises(DpbenchError, match=r"^epsilon = .*: expected a finite number, 0 or more$"):
        curve.delta(value)


STEPS = [times(SampledGaussian(0.01, 1.0), steps) for steps in (1, 2, 10, 11, 1000, 1001, 10**6)]
RATES = [times(SampledGaussian(rate, 1.2), 100) for rate in (0.0, 1e-7, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0)]
NOISES = [times(SampledGaussian(0.01, s), 500) for s in (math.inf, 1000.0, 100.0, 9.0, 3.0, 1.01, 1.0, 0.5, 0.3)]


LADDERS = {"steps": STEPS, "rates": RATES, "noises": NOISES}


def assert_monotone(accountant: Accountant, ladder: list[Composition], delta: float) -> None:
    """ε grows with steps, rate and precision: the truth does, and so must what claims to bound or equal it."""
    rungs = supported(accountant, ladder)
    answers = [told(accountant.curve(rung), delta) for rung in rungs]
    values = [answer.value for answer in answers if answer is not None]
    assert len(values) >= len(rungs) - 1
    # "exact" is good to 1e-9 relative, so two neighbours may cross by twice that
    assert all(low <= high * (1 + 2e-9) for low, high in pairwise(values)), values


@pytest.mark.parametrize(
    ("ladder", "delta"),
    [
        ("steps", 1e-5),
        ("rates", 1e-30),
        ("noises", 1e-5),
        *(pytest.param(*one, marks=pytest.mark.long) for one in (("steps", 1e-30), ("rates", 1e-5), ("noises", 1e-30))),
    ],
)
def test_epsilon_grows_with_steps_rate_and_precision(accountant: Accountant, ladder: str, delta: float) -> None:
    if accountant.kind in PROMISING:
        assert_monotone(accountant, LADDERS[ladder], delta)


def true_one_step_delta(rate: float, noise: float, epsilon: float) -> mpmath.mpf:
    """δ(ε) of one Poisson-sampled Gaussian, the worse of both directions, from the Neyman-Pearson lemma.

    With p = N(0, σ²), m = (1−q) p + q N(1, σ²), the ratio m/p = 1 − q + q e^((2x−1)/(2σ²)) grows with x. Remove:
    m(S) − e^ε p(S) is greatest on S = {m/p > e^ε} = {x > x*}. Add: p(S) − e^ε m(S) is greatest on
    {m/p < e^−ε} = {x < x*}, which is empty once e^−ε <= 1 − q.
    """
    with mpmath.workdps(60):
        q, s, e = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(epsilon)

        def threshold(ratio: mpmath.mpf) -> mpmath.mpf:
            return s**2 * mpmath.log((ratio - 1 + q) / q) + mpmath.mpf(1) / 2

        def above(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        x = threshold(mpmath.exp(e))
        remove = (1 - q) * above(x / s) + q * above((x - 1) / s) - mpmath.exp(e) * above(x / s)
        add = mpmath.mpf(0)
        if mpmath.exp(-e) > 1 - q:
            x = threshold(mpmath.exp(-e))
            add = above(-x / s) - mpmath.exp(e) * ((1 - q) * above(-x / s) + q * above((1 - x) / s))
        return max(remove, add)


def true_gaussian_delta(noise: float, count: int, epsilon: float) -> mpmath.mpf:
    """δ(ε) of `count` Gaussian releases: that of N(0, 1) against N(μ, 1) with μ = √count / σ."""
    with mpmath.workdps(60):
        mu = mpmath.sqrt(count) / mpmath.mpf(noise)
        e = mpmath.mpf(epsilon)
        high = mpmath.erfc((e / mu - mu / 2) / mpmath.sqrt(2)) / 2
        low = mpmath.erfc((e / mu + mu / 2) / mpmath.sqrt(2)) / 2
        return high - mpmath.exp(e) * low


ONE_STEP = [
    (rate, noise, epsilon)
    for rate in (1e-7, 1e-3, 0.05, 0.5, 0.99)
    for noise in (0.3, 1.0, 4.0, 30.0)
    for epsilon in (0.0, 0.01, 0.3, 1.0, 4.0, 11.0)
]
MANY_STEPS = [
    (noise, count, epsilon)
    for noise, count in ((0.3, 1), (1.0, 1), (5.0, 10), (40.0, 1000), (1000.0, 10**6))
    for epsilon in (0.0, 0.1, 1.0, 3.0, 10.0, 25.0)
]


def assert_near_the_truth(curve: PrivacyCurve, epsilon: float, truth: mpmath.mpf) -> None:
    """No bound below the truth, no enclosure beside it, no exact value farther off than 1e-9 relative."""
    claimed = curve.delta(epsilon)
    assert claimed.upper is None or claimed.upper >= truth, f"unsound: delta({epsilon}) = {claimed}, truth {truth}"
    assert claimed.lower is None or claimed.lower <= truth, f"unsound: delta({epsilon}) = {claimed}, truth {truth}"
    if curve.kind in ("exact", "certified"):
        assert abs(claimed.value - truth) <= max(1e-9 * truth, 1e-12)
    if curve.kind in PROMISING and 1e-300 < truth < 1:
        attained = curve.epsilon(float(truth) * (1 + 1e-15))
        # the truth says that ε is at least `epsilon` at that δ; rounding δ moves ε by less than 1e-9
        assert attained.safe >= epsilon * (1 - 1e-9) - 1e-9


def assert_sound(accountant: Accountant) -> None:
    for rate, noise, epsilon in ONE_STEP:
        composition = times(SampledGaussian(rate, noise), 1)
        if accountant.supports(composition):
            truth = true_one_step_delta(rate, noise, epsilon)
            assert_near_the_truth(accountant.curve(composition), epsilon, truth)
    for noise, count, epsilon in MANY_STEPS:
        truth = true_gaussian_delta(noise, count, epsilon)
        for event in (Gaussian(noise), SampledGaussian(1.0, noise)):
            if accountant.supports(times(event, count)):
                assert_near_the_truth(accountant.curve(times(event, count)), epsilon, truth)


def test_no_bound_is_below_the_truth(accountant: Accountant) -> None:
    assert_sound(accountant)


@dataclass(frozen=True)
class Planted:
    """A promising accountant with one fault: it answers for another composition than it was asked about."""

    honest: Accountant
    fault: Callable[[Composition], Composition]

    @property
    def name(self) -> str:
        return self.honest.name

    @property
    def kind(self) -> Any:
        return self.honest.kind

    def supports(self, composition: Composition) -> Yes | No:
        return self.honest.supports(composition)

    def curve(self, composition: Composition) -> PrivacyCurve:
        return self.honest.curve(self.fault(composition))


def _noisier(composition: Composition) -> Composition:
    return Composition(tuple((replace(e, noise_multiplier=e.noise_multiplier * 2), n) for e, n in composition.parts))


def _odd_counts_halved(composition: Composition) -> Composition:
    return Composition(tuple((e, n // 2 if n % 2 else n) for e, n in composition.parts))


def test_the_contract_catches_a_bound_that_is_too_low() -> None:
    with pytest.raises(AssertionError, match="unsound"):
        assert_sound(Planted(load_accountant("rdp"), _noisier))


def test_the_contract_catches_what_is_not_monotone() -> None:
    with pytest.raises(AssertionError):
        assert_monotone(Planted(load_accountant("rdp"), _odd_counts_halved), STEPS, 1e-5)


def test_the_truth_of_one_step_meets_the_gaussian_at_rate_one() -> None:
    """The two closed forms of this file were derived apart; at q = 1 they are the same number."""
    for noise, epsilon in ((0.5, 0.0), (1.0, 1.0), (3.0, 0.7)):
        one, other = true_one_step_delta(1.0, noise, epsilon), true_gaussian_delta(noise, 1, epsilon)
        assert abs(one - other) <= mpmath.mpf(10) ** -50
