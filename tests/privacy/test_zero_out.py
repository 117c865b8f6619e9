"""Zero-out neighbours under Poisson sampling: the pair that events name is what explicit datasets release."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from dpbench import certify
from dpbench.catalog import catalog
from dpbench.events import Adjacency, Composition, GroupSampledGaussian, RandomSensitivityGaussian, SampledGaussian
from dpbench.privacy.accounting import load_accountant

Sampled = SampledGaussian | GroupSampledGaussian | RandomSensitivityGaussian
Law = dict[float, float]  # from the noise-free sum to its probability


def released(values: tuple[float, ...], rate: float) -> Law:
    """The noise-free sums of a dataset, every subset counted with its probability: the sampler by definition."""
    law: Law = defaultdict(float)
    for drawn in itertools.product((False, True), repeat=len(values)):
        law[math.fsum(itertools.compress(values, drawn))] += math.prod(
            rate if included else 1 - rate for included in drawn
        )
    return law


def delta_of(first: Law, second: Law, noise: float, epsilon: float) -> float:
    """P(A) − e^ε Q(A) for two mixtures of N(v, σ²), with A = {p > e^ε q} between its crossings.

    Crossings are bisected to 1e-13 and enter squared; two of them within 0.01 σ would be overlooked, together worth
    less than 1e-7 of what is compared, and never too much: any A gives a lower bound.
    """

    def excess(x: float) -> float:
        def density(law: Law) -> float:
            return math.fsum(weight * math.exp(-(((x - value) / noise) ** 2) / 2) for value, weight in law.items())

        return density(first) - math.exp(epsilon) * density(second)

    def mass(law: Law, low: float, high: float) -> float:
        def below(x: float, value: float) -> float:
            return math.erfc((value - x) / (noise * math.sqrt(2))) / 2

        return math.fsum(weight * (below(high, value) - below(low, value)) for value, weight in law.items())

    low = min(*first, *second) - 9 * noise
    cells = math.ceil((max(*first, *second) + 9 * noise - low) / (0.01 * noise))
    points = [low + 0.01 * noise * place for place in range(cells + 1)]
    ends = [low, *(_crossing(excess, a, b) for a, b in pairwise(points) if excess(a) * excess(b) < 0), points[-1]]
    inside = [(a, b) for a, b in pairwise(ends) if excess((a + b) / 2) > 0]
    return math.fsum(mass(first, a, b) - math.exp(epsilon) * mass(second, a, b) for a, b in inside)


def _crossing(function: Callable[[float], float], low: float, high: float) -> float:
    sign = math.copysign(1.0, function(low))
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if sign * function(middle) > 0 else (low, middle)
    return (low + high) / 2


# Members of the group have effect 1 (clipped norm 1, aligned) in one dataset and 0 in the other, where they are drawn
# all the same; one more record is in both. Its effect is nothing where the pair is attained.
CASES = [
    (SampledGaussian(0.3, 0.8, "zero_out"), 1),
    (GroupSampledGaussian(0.3, 0.8, 3, "zero_out"), 3),
]


@pytest.mark.parametrize(("event", "members"), CASES)
@pytest.mark.parametrize("epsilon", [0.1, 0.7])
def test_explicit_datasets_attain_the_pair(
    event: SampledGaussian | GroupSampledGaussian, members: int, epsilon: float
) -> None:
    """The worse direction of the enumerated laws is the certified δ of the event: so `attained` is true."""
    present = released((*[1.0] * members, 0.0), event.sampling_rate)
    zeroed = released((*[0.0] * members, 0.0), event.sampling_rate)
    worse = max(
        delta_of(present, zeroed, event.noise_multiplier, epsilon),
        delta_of(zeroed, present, event.noise_multiplier, epsilon),
    )
    proven = certify(Composition(((event, 1),)), epsilon=epsilon, digits=9)
    assert worse == pytest.approx((proven.lower + proven.upper) / 2, rel=1e-8)
    assert event.attained


@pytest.mark.parametrize(("event", "members"), CASES)
def test_other_datasets_stay_below(event: SampledGaussian | GroupSampledGaussian, members: int) -> None:
    """Members that are not aligned, or a record beside them that moves the sum, reveal no more."""
    proven = certify(Composition(((event, 1),)), epsilon=0.5, digits=9)
    for values, other in ((([1.0] * members), 0.8), ([1.0, -0.5, 0.7][:members], 0.0)):
        present = released((*values, other), event.sampling_rate)
        zeroed = released((*[0.0] * members, other), event.sampling_rate)
        for sides in ((present, zeroed), (zeroed, present)):
            assert delta_of(*sides, event.noise_multiplier, 0.5) <= proven.upper * (1 + 1e-8)


@pytest.mark.parametrize("adjacency", ["add_or_remove", "replace_one", "zero_out"])
@pytest.mark.parametrize("sampler", ["poisson", "without_replacement", "shuffled"])
def test_what_is_not_attained(adjacency: Adjacency, sampler: str) -> None:
    """Fixed-size batches tie the others' draws to the record's; replaced groups and JL attain nothing proven."""
    poisson = sampler == "poisson"
    assert SampledGaussian(0.1, 1.0, adjacency, sampler).attained == poisson  # type: ignore[arg-type]
    group = GroupSampledGaussian(0.1, 1.0, 3, adjacency, sampler)  # type: ignore[arg-type]
    assert group.attained == (poisson and adjacency != "replace_one")
    assert not RandomSensitivityGaussian(0.1, 1.0, 5, adjacency, sampler).attained  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(catalog("accountants")))
@pytest.mark.parametrize(
    "event",
    [
        SampledGaussian(0.02, 1.1),
        SampledGaussian(1.0, 3.0),
        GroupSampledGaussian(0.02, 1.5, 3),
        RandomSensitivityGaussian(0.02, 1.5, 4),
    ],
    ids=str,
)
def test_every_accountant_says_of_zero_out_what_it_says_of_add_or_remove(name: str, event: Sampled) -> None:
    """The pairs are the same, so who covers one covers the other, with the same numbers under its own name."""
    accountant = load_accountant(name)
    one = Composition(((event, 20),))
    other = Composition(((replace(event, adjacency="zero_out"), 20),))
    assert bool(accountant.supports(one)) is bool(accountant.supports(other))
    if accountant.supports(one):
        added, zeroed = accountant.curve(one), accountant.curve(other)
        assert (added.adjacency, zeroed.adjacency) == ("add_or_remove", "zero_out")
        assert added.kind == zeroed.kind
        assert added.epsilon(1e-5) == zeroed.epsilon(1e-5)
        assert added.delta(0.5) == zeroed.delta(0.5)
