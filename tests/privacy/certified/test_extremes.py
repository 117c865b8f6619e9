"""Internal: a proof that would take too long is refused by counted work.

Whatever is asked, `certify` answers with finite ends or refuses in one sentence; and what is quick stays exact.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from fractions import Fraction

import pytest

from dpbench.errors import DpbenchError
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
from dpbench.privacy.certified import certify
from dpbench.privacy.certified._numbers import granted, hold, spend, working_bits


def randomized_response(epsilon: float) -> DiscretePair:
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    return DiscretePair((share, 1 - share), (1 - share, share))


def epsilon_of_sums(event: DiscretePair, count: int, delta: Fraction) -> float | None:
    """ε of P against Q by sorting all sequences of outcomes, in fractions; None where there is no finite one."""
    laws = [[Fraction(value) for value in law] for law in (event.first, event.second)]
    laws = [[value / sum(law) for value in law] for law in laws]
    pairs = list(zip(*laws, strict=True))
    outcomes = [
        (math.prod((p for p, _ in chosen), start=Fraction(1)), math.prod((q for _, q in chosen), start=Fraction(1)))
        for chosen in itertools.product(pairs, repeat=count)
    ]
    outcomes = sorted((pair for pair in outcomes if any(pair)), key=lambda pair: pair[1] / (pair[0] + pair[1]))
    if sum((max(p - q, Fraction(0)) for p, q in outcomes), Fraction(0)) <= delta:
        return 0.0
    if sum((p for p, q in outcomes if not q), Fraction(0)) > delta:
        return None
    p_sum = q_sum = Fraction(0)
    for place, (p, q) in enumerate(outcomes):
        p_sum, q_sum = p_sum + p, q_sum + q
        next_p, next_q = outcomes[place + 1] if place + 1 < len(outcomes) else (Fraction(0), Fraction(1))
        if q_sum and next_q and p_sum - next_p / next_q * q_sum >= delta:
            return math.log((p_sum - delta) / q_sum)
    return None


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 0.3])
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 5.0, 7.0, 7.0001, 10.0, 20.0, 30.0])
def test_randomized_response_has_all_its_digits(epsilon: float, delta: float) -> None:
    event = randomized_response(epsilon)
    for count in (1, 3, 10):
        found = certify(Composition(((event, count),)), delta=delta)
        assert found.relative_width <= 1e-10
        truth = epsilon_of_sums(event, count, Fraction(delta))
        other = epsilon_of_sums(DiscretePair(event.second, event.first), count, Fraction(delta))
        assert truth is not None
        assert other is not None
        assert found.lower * (1 - 1e-13) <= max(truth, other) <= found.upper * (1 + 1e-13)


def test_random_pairs_against_sorted_sums() -> None:
    draw = random.Random(3)
    answered = 0
    for _ in range(60):
        size, count = draw.choice([2, 3, 4]), draw.choice([1, 2, 3])
        laws = [[draw.random() ** 3 for _ in range(size)] for _ in range(2)]
        if draw.random() < 0.3:
            laws[1][0] = 0.0
        event = DiscretePair(*(tuple(value / sum(law) for value in law) for law in laws))
        delta = 10 ** draw.uniform(-9, -0.3)
        truths = [
            epsilon_of_sums(pair, count, Fraction(delta)) for pair in (event, DiscretePair(event.second, event.first))
        ]
        if None in truths:
            with pytest.raises(DpbenchError, match="probability of an infinite loss"):
                certify(Composition(((event, count),)), delta=delta)
            continue
        found = certify(Composition(((event, count),)), delta=delta)
        answered += 1
        truth = max(value for value in truths if value is not None)
        assert found.lower * (1 - 1e-13) <= truth <= found.upper * (1 + 1e-13)
        assert found.upper - found.lower <= max(1e-10 * truth, 1e-13)
    assert answered > 20


def test_an_epsilon_that_ends_at_a_kink() -> None:
    """δ = P(L = ∞) exactly: the largest finite loss, log 2."""
    pair = DiscretePair((0.25, 0.5, 0.25), (0.0, 0.25, 0.75))
    found = certify(pair, delta=0.25)
    assert found.directions["remove"][0] <= math.log(2) <= found.directions["remove"][1]
    assert found.relative_width <= 1e-10


SIGMAS = (5e-324, 1e-200, 1e-3, 1e200)
RATES = (1e-200, 0.5)


def extremes() -> list[tuple[Event, int]]:
    """Every kind of event at the ends of its parameters."""
    draw = random.Random(5)
    found: list[tuple[Event, int]] = []
    for sigma in SIGMAS:
        found += [(Gaussian(sigma), 3), (Laplace(sigma), 3)]
        for rate in RATES:
            count = draw.choice([1, 2, 100, 2**50])
            found.append((SampledGaussian(rate, sigma), count))
            found.append((SampledGaussian(rate, sigma, "replace_one"), count))
            found.append((GroupSampledGaussian(rate, sigma, draw.choice([2, 64])), count))
            found.append((RandomSensitivityGaussian(rate, sigma, draw.choice([1, 5, 2000])), count))
    for law in ((1.0, 0.0), (1e-300, 1.0), (1 - 2**-53, 2**-53)):
        found += [(DiscretePair(law, law[::-1]), count) for count in (1, 100)]
    return found


@pytest.mark.parametrize("question", [{"delta": 1e-5}, {"epsilon": 1.0}, {"delta": 1e-300}, {"epsilon": 1e300}])
def test_extremes_are_answered_or_refused(question: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback, no NaN, no end that is infinite, and no more work than was granted."""
    monkeypatch.setattr("dpbench.privacy.certified._answer.granted", lambda: granted(3e4))
    for event, count in extremes():
        for composition in (Composition(((event, count),)), Composition(((event, count), (Laplace(1.0), 2)))):
            try:
                found = certify(composition, digits=3, **question)
            except DpbenchError:
                continue
            assert 0 <= found.lower <= found.upper < math.inf
            assert math.isfinite(found.value)


def test_work_is_counted() -> None:
    with granted(10.0):
        spend(9.0)
        with granted(5.0), pytest.raises(DpbenchError, match="ten seconds"):
            spend(6.0)
        spend(1.0)
        with pytest.raises(DpbenchError, match="ten seconds"):
            spend(1.0)
    spend(1e12)


@pytest.mark.parametrize(
    "releases",
    [
        Composition(((SampledGaussian(0.01, 1.0), 1000),)),  # 6,000 nodes, 10,000 powers, 2,500 bits: minutes, 2.7 GB
        Composition(((Gaussian(1e6), 30), (GroupSampledGaussian(0.001, 1e6, 64), 100))),  # minutes of planning
    ],
)
def test_what_would_take_minutes_is_refused_with_what_to_do(
    releases: Composition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpbench.privacy.certified._answer.granted", lambda: granted(1e6))
    before = time.process_time()
    with pytest.raises(DpbenchError, match="over ten seconds; ask `dpbench account`, or for a larger delta"):
        certify(releases, delta=1e-300)
    assert time.process_time() - before < 5  # a tenth of what one answer may take is about half a second


def test_numbers_that_would_fill_the_memory_are_refused() -> None:
    with working_bits(2000):
        hold(1e5)
        with pytest.raises(DpbenchError, match="1 GB of memory; ask `dpbench account`"):
            hold(1e6)


def test_an_infinite_loss_beside_laplace() -> None:
    """Two laws that share no outcome are always distinguished: δ = 1, whatever stands beside them."""
    disjoint = DiscretePair((1.0, 0.0), (0.0, 1.0))
    assert certify(Composition(((disjoint, 1), (Laplace(1.0), 1))), epsilon=3.0).lower == 1.0
    with pytest.raises(DpbenchError):
        certify(Composition(((disjoint, 1), (Laplace(1.0), 1))), delta=0.1)
