"""What the stored tables hold: per reference its compositions, and the rules for a point's regime and error budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dpbench.events import (
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.references import (
    confident_gnmax,
    discrete_pair,
    fixed_size_gaussian,
    gaussian,
    group_sampled_gaussian,
    laplace,
    random_sensitivity_gaussian,
    sampled_gaussian,
    sampled_gaussian_replace_one,
    unlike,
)

REGIMES = (
    "ordinary",
    "million_steps",
    "tiny_rate",
    "large_rate",
    "little_noise",
    "much_noise",
    "tiny_delta",
    "epsilon_near_zero",
    "large_epsilon",
    "sparse_hits",
    "heavy_tail",
    "crossover",
    "unlike_releases",
)
Parts = tuple[tuple[Event, int], ...]


@dataclass(frozen=True)
class Entry:
    """One composition: the ε asked for, the δ whose ε are asked for, and the cells of its lattice."""

    parts: Parts
    epsilons: tuple[float, ...] = ()
    deltas: tuple[float, ...] = ()
    cells: int = 1 << 16
    digits: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """One reference's table: its compositions, the events whose Rényi divergences it has, and queries with votes."""

    reference: Any
    entries: tuple[Entry, ...]
    renyi: tuple[tuple[Event, tuple[float, ...]], ...] = ()
    votes: tuple[ConfidentGNMax, ...] = ()


def regime(point: Mapping[str, Any]) -> str:
    """The regime of a point: the first of these rules that applies."""
    parts = point["composition"]["parts"]
    steps = sum(part["count"] for part in parts)
    rates = [part["sampling_rate"] for part in parts if "sampling_rate" in part]
    noises = [part["noise_multiplier"] for part in parts if "noise_multiplier" in part]
    remove, add, both = (Decimal(point[way]["upper"]) for way in ("remove", "add", "both"))
    epsilon = point["epsilon"]
    inclusions = sum(part["count"] * part["sampling_rate"] for part in parts if part.get("sampling_rate", 1) < 0.2)
    between = rates and min(rates) < 1 and epsilon >= 1e-3 and steps > 1
    rules = (
        ("unlike_releases", len(parts) > 1),
        ("heavy_tail", any(part["event"] == "RandomSensitivityGaussian" for part in parts)),
        ("million_steps", steps >= 10**6),
        ("tiny_delta", both < Decimal("1e-20")),
        ("large_epsilon", epsilon >= 20),
        ("epsilon_near_zero", epsilon < 1e-3),
        ("sparse_hits", steps > 1 and 0.1 <= inclusions <= 3),
        ("crossover", bool(between) and add > 0 and Decimal("0.5") < add / remove < 2 and add != remove),
        ("tiny_rate", bool(rates) and min(rates) <= 1e-4),
        ("large_rate", bool(rates) and max(rates) >= 0.5),
        ("little_noise", bool(noises) and min(noises) <= 0.5),
        ("much_noise", bool(noises) and max(noises) >= 20),
    )
    return next((name for name, applies in rules if applies), "ordinary")


def budget(point: Mapping[str, Any]) -> float:
    """The error of δ that the fast exact accountant is allowed: 1e-9 of it, but 1e-12 at least."""
    return max(1e-9 * float(point["both"]["upper"]), 1e-12)


SINGLE_DELTAS = (1e-5, 1e-10, 1e-30)  # taken in turn
DELTAS = (1e-2, 1e-5, 1e-10)
FAR = ((1.0, 0.3, 300.0), (0.01, 0.3, 500.0), (0.5, 1.0, 50.0), (1e-7, 1.0, 3.0))  # rate, noise, ε
FINER = {
    (256 / 60000, 0.7, 10547): 1 << 18,
    (0.001, 0.6, 1000): 1 << 19,
    (0.001, 1.0, 60000): 1 << 19,
}  # else 1 to 10 % wide
REPEATED = (  # rate, noise, count
    (0.01, 1.0, 2),
    (0.01, 1.0, 16),
    (0.01, 1.0, 100),
    (0.01, 1.0, 1000),
    (0.01, 1.0, 10000),
    (256 / 60000, 1.3, 3516),
    (256 / 60000, 0.7, 10547),
    (0.1, 1.0, 10),
    (0.1, 4.0, 1000),
    (0.5, 20.0, 1000),
    (0.99, 5.0, 20),
    (1.0, 2.0, 4),
    (1.0, 30.0, 1000),
    (0.02, 2.5, 500),
    (0.01, 0.3, 10),
    (0.001, 0.6, 1000),
    (0.001, 1.0, 60000),
    (0.01, 1000.0, 10000),
    (1e-5, 0.5, 10000),
)
MIXED: tuple[Parts, ...] = (
    ((SampledGaussian(0.02, 1.0), 40), (Gaussian(6.0), 3), (SampledGaussian(0.3, 3.0), 5)),
    ((SampledGaussian(0.01, 1.5), 200), (SampledGaussian(0.01, 1.2), 200), (SampledGaussian(0.01, 1.0), 200)),
)
MILLION = (  # rate, noise
    (1e-4, 1.0),
    (1e-3, 4.0),
    (1e-2, 50.0),
)


def _sampled() -> Iterator[Entry]:
    rates, noises = (1e-7, 1e-3, 0.01, 0.1, 0.5, 0.99, 1.0), (0.3, 1.0, 10.0, 1000.0)
    for (rate, noise), target in zip(itertools.product(rates, noises), itertools.cycle(SINGLE_DELTAS), strict=False):
        yield Entry(((SampledGaussian(rate, noise), 1),), (0.0,), (target,))
    for rate, noise, epsilon in FAR:
        yield Entry(((SampledGaussian(rate, noise), 1),), (epsilon,))
    smallest = {"smallest": min(DELTAS)}
    for key in REPEATED:
        cells = FINER.get(key, 1 << 17)
        yield Entry(((SampledGaussian(*key[:2]), key[2]),), (), DELTAS, cells, options=smallest)
    for parts in MIXED:
        yield Entry(parts, (), DELTAS, 1 << 17, options=smallest)
    for rate, noise in MILLION:
        yield Entry(((SampledGaussian(rate, noise), 10**6),), (), DELTAS, 1 << 20, options=smallest)
    for rate, noise in itertools.product((1e-7, 1e-5), (0.4, 0.6)):
        yield Entry(((SampledGaussian(rate, noise), 1),), (0.01, 0.3, 2.0))
    for epsilon in (0.001, 0.1, 0.3, 0.5):  # add and remove cross over in T and in ε
        yield Entry(((SampledGaussian(0.3, 3.0), 64),), (epsilon,), (), 1 << 14)


def _gaussian() -> Iterator[Entry]:
    for noise in (0.3, 1.0, 30.0, 1000.0):
        yield Entry(((Gaussian(noise), 1),), (0.0, 1e-6), SINGLE_DELTAS)
    for noise, count in ((5.0, 10), (30.0, 1000), (500.0, 10**6), (3000.0, 10**6), (100.0, 10**6)):
        yield Entry(((Gaussian(noise), count),), (0.0,), (1e-5, 1e-10, 1e-30), digits=6)
    yield Entry(((Gaussian(2.0), 3), (Gaussian(5.0), 10), (Gaussian(40.0), 10**5)), (1.0, 20.0, 100.0))


def _random() -> Iterator[Entry]:
    for r, (rate, noise) in itertools.product((1, 3, 10, 1000), ((0.01, 1.0), (1e-6, 0.5), (0.5, 5.0), (1.0, 2.0))):
        yield Entry(((RandomSensitivityGaussian(rate, noise, r), 1),), (0.0, 0.5, 20.0))
    for rate, noise, r, count, cells in (
        (0.1, 2.0, 1, 2, 1 << 13),
        (0.1, 2.0, 20, 10, 1 << 13),
        (0.01, 1.0, 5, 100, 1 << 15),
        (0.3, 5.0, 3, 20, 1 << 12),
        (1.0, 20.0, 10, 10, 1 << 11),
        (0.01, 1.0, 1000, 100, 1 << 15),
    ):
        options = {"smallest": 1e-7, "largest_epsilon": 5}
        yield Entry(((RandomSensitivityGaussian(rate, noise, r), count),), (0.05, 0.5, 2.0, 5.0), (), cells, 0, options)


def _laplace() -> Iterator[Entry]:
    for scale in (0.1, 0.5, 2.0, 20.0, 1000.0):
        yield Entry(((Laplace(scale), 1),), (0.0, *(float(f"{part / scale:.4g}") for part in (0.3, 0.7))))
    for scale, count in ((2.0, 2), (0.5, 3), (10.0, 16), (20.0, 100), (300.0, 400)):
        largest = count / scale
        yield Entry(((Laplace(scale), count),), tuple(float(f"{part * largest:.4g}") for part in (0, 0.1, 0.3, 0.7)))
    yield Entry(((Laplace(500.0), 10**4),), (), DELTAS, 1 << 17)
    yield Entry(((Laplace(2.0), 3), (Laplace(4.0), 5)), (0.1, 1.0, 2.0), (), 1 << 14)
    yield Entry(((Laplace(10.0), 50), (Laplace(5.0), 10), (Laplace(40.0), 100)), (0.1, 1.0, 3.0), (), 1 << 16)


COINS = (DiscretePair((0.75, 0.25), (0.25, 0.75)), DiscretePair((0.501, 0.499), (0.499, 0.501)))
UNEVEN = DiscretePair((0.5, 0.3, 0.2), (0.2, 0.3, 0.5))
SKEW = DiscretePair((0.6, 0.25, 0.1, 0.05), (0.4, 0.3, 0.2, 0.1))
TELLING = DiscretePair((0.7, 0.2, 0.1, 0.0), (0.5, 0.249, 0.25, 0.001))
ONE_WAY = DiscretePair((0.999, 0.001), (1.0, 0.0))


def _discrete() -> Iterator[Entry]:
    for pair in (*COINS, UNEVEN, SKEW, TELLING, ONE_WAY):
        yield Entry(((pair, 1),), (0.0, 0.1, 0.7))
        yield Entry(((pair, 2),), (0.1, 1.0))
        yield Entry(((pair, 16),), (0.0, 1.0, 5.0))
    yield Entry(((COINS[0], 1000),), (100.0, 600.0, 1000.0))
    yield Entry(((COINS[1], 50000),), (0.05, 1.0, 5.0))
    yield Entry(((UNEVEN, 100),), (1.0, 30.0))
    yield Entry(((COINS[0], 5), (SKEW, 10), (TELLING, 4)), (0.5, 2.0, 8.0))


def _group() -> Iterator[Entry]:
    for rate, noise, size in itertools.product((1e-4, 0.01, 0.5), (0.5, 2.0, 100.0), (2, 16)):
        yield Entry(((GroupSampledGaussian(rate, noise, size), 1),), (0.0,), (1e-5,))
    for rate, noise, size, count in (
        (0.01, 1.0, 4, 2),
        (0.01, 1.0, 4, 100),
        (0.001, 1.0, 2, 1000),
        (0.1, 4.0, 8, 30),
        (0.5, 30.0, 3, 100),
        (1e-4, 2.0, 4, 10**6),
    ):
        cells = 1 << 20 if count == 10**6 else 1 << 15
        yield Entry(((GroupSampledGaussian(rate, noise, size), count),), (), DELTAS, cells)


def _replace_one() -> Iterator[Entry]:
    def event(rate: float, noise: float) -> SampledGaussian:
        return SampledGaussian(rate, noise, adjacency="replace_one")

    for rate, noise in itertools.product((1e-6, 0.01, 0.5, 1.0), (0.4, 1.0, 50.0)):
        yield Entry(((event(rate, noise), 1),), (0.0, 1e-4), (1e-8,))
    for rate, noise, count in (
        (0.01, 1.0, 2),
        (0.01, 1.0, 100),
        (256 / 60000, 1.3, 3516),
        (0.1, 4.0, 100),
        (0.5, 20.0, 100),
        (0.001, 0.8, 1000),
        (1e-3, 10.0, 10**6),
    ):
        cells = 1 << 18 if count == 10**6 else 1 << 16
        yield Entry(((event(rate, noise), count),), (), DELTAS, cells)


def _fixed_size() -> Iterator[Entry]:
    def event(rate: float, noise: float) -> SampledGaussian:
        return SampledGaussian(rate, noise, adjacency="replace_one", sampler="without_replacement")

    for rate, noise in itertools.product((1e-4, 0.01, 0.5, 1.0), (0.8, 4.0)):
        yield Entry(((event(rate, noise), 1),), (0.0, 0.1, 2.0))
    for rate, noise, count in ((0.01, 2.0, 2), (0.01, 2.0, 300), (0.1, 6.0, 30), (0.5, 20.0, 100), (1e-3, 2.0, 1000)):
        yield Entry(((event(rate, noise), count),), (), (1e-2, 1e-5), 1 << 15)


def _gnmax() -> Iterator[Entry]:
    for selection, answer, count in ((200.0, 40.0, 1), (150.0, 40.0, 100), (1500.0, 100.0, 3000), (1000.0, 40.0, 1)):
        yield Entry(((ConfidentGNMax(300, selection, answer), count),), (0.0,), (1e-5, 1e-8), digits=6)
        yield Entry(((ConfidentGNMax(300, selection, answer, answered=False), count),), (0.0, 0.1), (1e-8,), digits=6)
    yield Entry(((ConfidentGNMax(300, 200, 40), 286), (ConfidentGNMax(300, 200, 40, answered=False), 1714)), (2.0, 5.0))


VOTES = tuple(
    ConfidentGNMax(threshold=threshold, selection_noise=selection, answer_noise=answer, votes=votes)
    for threshold, selection, answer, votes in (
        (30.0, 20.0, 5.0, (40, 8, 2)),
        (30.0, 20.0, 5.0, (18, 17, 15)),
        (300.0, 200.0, 40.0, (220, 10, 5, 5)),
        (10.0, 5.0, 2.0, (9, 1)),
    )
)


def _unlike() -> Iterator[Entry]:
    step = SampledGaussian(0.02, 1.0)
    smallest = {"smallest": 1e-9}
    for parts in (
        ((step, 50), (Laplace(8.0), 4)),
        ((step, 50), (GroupSampledGaussian(0.01, 2.0, 4), 30), (Gaussian(8.0), 2)),
        ((Laplace(3.0), 2), (Gaussian(4.0), 3)),
        (
            (SampledGaussian(0.1, 1.0, adjacency="replace_one"), 5),
            (Laplace(8.0, adjacency="replace_one"), 2),
        ),
    ):
        yield Entry(parts, (0.1, 0.5), (1e-3, 1e-6), 1 << 15, options=smallest)
    heavy = ((RandomSensitivityGaussian(0.05, 2.0, 5), 10), (SampledGaussian(0.05, 2.0), 10))
    yield Entry(heavy, (0.1, 0.5, 2.0), (), 1 << 14, options={"smallest": 1e-6, "largest_epsilon": 2})


ORDERS = (1.5, 2.0, 8.0, 64.0)
RENYI = ((0.01, 1.0), (256 / 60000, 1.3), (0.5, 0.5), (1e-6, 2.0), (0.1, 100.0), (1.0, 3.0))
TABLES: dict[str, Table] = {
    "sampled_gaussian": Table(
        sampled_gaussian.reference, tuple(_sampled()), tuple((SampledGaussian(*pair), ORDERS) for pair in RENYI)
    ),
    "gaussian": Table(gaussian.reference, tuple(_gaussian()), ((Gaussian(2.0), ORDERS),)),
    "random_sensitivity_gaussian": Table(
        random_sensitivity_gaussian.reference,
        tuple(_random()),
        tuple((RandomSensitivityGaussian(0.01, 1.0, r), (2.0,)) for r in (1, 10)),
    ),
    "laplace": Table(laplace.reference, tuple(_laplace()), tuple((Laplace(b), ORDERS) for b in (0.2, 2.0, 100.0))),
    "discrete_pair": Table(
        discrete_pair.reference, tuple(_discrete()), tuple((pair, ORDERS) for pair in (*COINS, SKEW, TELLING))
    ),
    "group_sampled_gaussian": Table(
        group_sampled_gaussian.reference,
        tuple(_group()),
        tuple((GroupSampledGaussian(0.01, 2.0, size), (2.0, 8.0)) for size in (1, 4)),
    ),
    "sampled_gaussian_replace_one": Table(
        sampled_gaussian_replace_one.reference,
        tuple(_replace_one()),
        tuple((SampledGaussian(rate, 1.5, adjacency="replace_one"), (2.0, 8.0)) for rate in (0.01, 0.5)),
    ),
    "fixed_size_gaussian": Table(fixed_size_gaussian.reference, tuple(_fixed_size())),
    "confident_gnmax": Table(
        confident_gnmax.reference, tuple(_gnmax()), ((ConfidentGNMax(300, 200, 40), ORDERS),), VOTES
    ),
    "unlike": Table(unlike.reference, tuple(_unlike())),
}
