"""References: independent of the fast code, right where the truth is known; and the accountants are held to them."""

from __future__ import annotations

import ast
import itertools
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from scipy import integrate, stats

import dpbench.references
from dpbench.catalog import catalog
from dpbench.events import (
    EVENTS,
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
from dpbench.privacy.accounting import account
from dpbench.references.gaussian import reference as gaussian
from dpbench.references.sampled_gaussian import reference as sampled

FILES = sorted(Path(dpbench.references.__path__[0]).glob("*.py"))


def covers(reference: Any, subject: Any) -> bool:
    """Whether a reference accepts a subject; it refuses others by a ValueError."""
    try:
        reference.delta(subject, 0.1, 5, cells=64)
    except ValueError:
        return False
    return True


ALLOWED = {"flint", "mpmath", "dpbench.events", "dpbench.references"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_reference_imports_nothing_of_the_fast_code(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [str(node.module)]
        else:
            continue
        for name in names:
            own = any(name == allowed or name.startswith(f"{allowed}.") for allowed in ALLOWED)
            assert own or name.partition(".")[0] in sys.stdlib_module_names, name


REFERENCES: dict[str, Any] = {name: entry.load() for name, entry in catalog("references").items()}
FIXED = SampledGaussian(0.1, 2.0, adjacency="replace_one", sampler="without_replacement")
REPLACED = SampledGaussian(0.1, 1.5, adjacency="replace_one")
EXAMPLES: tuple[Event, ...] = (  # every event, under the neighbouring relations and samplers that have a reference
    Gaussian(1.5),
    SampledGaussian(0.1, 1.5),
    REPLACED,
    FIXED,
    RandomSensitivityGaussian(0.1, 1.5, 10),
    GroupSampledGaussian(0.1, 1.5, 3),
    Laplace(1.5),
    DiscretePair((0.6, 0.3, 0.1), (0.3, 0.3, 0.4)),
    ConfidentGNMax(threshold=300.0, selection_noise=4.0, answer_noise=3.0),
)
COVERED = [
    pytest.param(name, event, id=f"{name}-{type(event).__name__}-{event.adjacency}")
    for name, event in itertools.product(REFERENCES, EXAMPLES)
    if covers(REFERENCES[name], event) and (name != "unlike" or isinstance(event, SampledGaussian | Laplace))
]  # `unlike` takes its laws from the others: two of them are enough
SIDES: tuple[Literal["remove", "add"], ...] = ("remove", "add")


def test_the_catalog_finds_them() -> None:
    assert {"gaussian", "sampled_gaussian", "laplace", "unlike"} <= set(REFERENCES)


def test_every_event_has_a_reference_and_every_reference_an_event() -> None:
    names, events = zip(*(given.values for given in COVERED), strict=True)
    assert set(names) == set(REFERENCES)
    assert set(events) == set(EXAMPLES)
    assert {type(event).__name__ for event in EXAMPLES} == set(EVENTS)


def test_no_reference_covers_shuffled_batches_or_parameters_chosen_on_the_way() -> None:
    shuffled = SampledGaussian(0.1, 1.5, sampler="shuffled")
    for reference, event in itertools.product(REFERENCES.values(), EXAMPLES):
        assert not covers(reference, shuffled)
        assert not covers(reference, Composition(((event, 2),), adaptive=True))


@pytest.mark.parametrize(("name", "event"), COVERED)
def test_one_release_is_a_hockey_stick(name: str, event: Event) -> None:
    """Narrow, from 1 − e^ε upward, falling and convex in e^ε; directions are each other's reverse."""
    reference = REFERENCES[name]
    levels = (-3.0, -1.0, -0.1, 0.0, 0.1, 0.5, 2.0)
    curve = reference.curve(event)
    for way, back in (SIDES, SIDES[::-1]):
        found = [curve.delta(level, 15, direction=way) for level in levels]
        assert all(each.relative_width < 1e-14 for each in found)
        values = [float(each.lower) for each in found]
        assert all(max(0.0, -math.expm1(x)) - 1e-15 <= value <= 1 for x, value in zip(levels, values, strict=True))
        assert values == sorted(values, reverse=True)
        points = list(zip(map(math.exp, levels), values, strict=True))
        for (a, u), (b, v), (c, w) in zip(points, points[1:], points[2:], strict=False):
            assert v <= (u * (c - b) + w * (b - a)) / (c - a) + 1e-15
        for level, value in zip(levels, values, strict=True):
            reverse = float(curve.delta(-level, 15, direction=back).lower)
            assert value == pytest.approx(-math.expm1(level) + math.exp(level) * reverse, rel=1e-11, abs=1e-14)


@pytest.mark.parametrize(("name", "event"), COVERED)
def test_one_release_by_its_densities(name: str, event: Event) -> None:
    """The Arb enclosure, and the definition's integral or sum in mpmath, to thirteen digits."""
    for way, epsilon in itertools.product(SIDES, (0.0, 0.4)):
        found = REFERENCES[name].delta(event, epsilon, 20, direction=way)
        integral = REFERENCES[name].quadrature(event, epsilon, 15, direction=way)
        slack = integral / 10**13
        assert found.lower - slack <= integral <= found.upper + slack


@pytest.mark.parametrize(("name", "event"), COVERED)
def test_more_releases_and_larger_epsilon(name: str, event: Event) -> None:
    """δ grows with the number of releases; ε of δ is δ's inverse; a coarse and a fine lattice agree."""
    reference = REFERENCES[name]
    one, coarse, fine = (
        reference.delta((event, count), 0.3, 12, cells=cells, direction="remove")
        for count, cells in ((1, 64), (3, 128), (3, 512))
    )
    assert one.lower < fine.upper
    assert coarse.overlaps(fine)
    assert event is FIXED or fine.relative_width < 0.1
    found = reference.epsilon(event, 1e-2, 6)
    assert reference.delta(event, found.lower, 12).upper >= Decimal("0.01") * (1 - Decimal("1e-12"))
    assert reference.delta(event, found.upper, 12).lower <= Decimal("0.01") * (1 + Decimal("1e-12"))


@pytest.mark.parametrize(("name", "event"), [given for given in COVERED if given.values[1] is not FIXED])
def test_divergences_grow_with_the_order_and_bound_delta(name: str, event: Event) -> None:
    """D_α is infinite or grows in α, and δ(ε) <= e^{(α−1)(D_α − ε)}, Markov's bound."""
    for way in SIDES:
        found = [REFERENCES[name].renyi(event, order, 5, direction=way) for order in (1.5, 3)]
        assert 0 < found[0] <= found[1]
        if found[1].is_finite():
            known = REFERENCES[name].delta(event, 1.0, 12, direction=way)
            assert float(known.lower) <= math.exp(2 * (float(found[1]) - 1.0))


@pytest.mark.parametrize("rate", [1e-7, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 50.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 4.0])
def test_one_release_by_two_routes(rate: float, sigma: float, epsilon: float) -> None:
    """The Arb enclosure, and the definition's integral by mpmath's quadrature, to twenty digits."""
    event = SampledGaussian(rate, sigma)
    for direction in ("remove", "add"):
        enclosure = sampled.delta(event, epsilon, digits=25, direction=direction)
        integral = sampled.quadrature(event, epsilon, digits=25, direction=direction)
        slack = integral / 10**20
        assert enclosure.lower - slack <= integral <= enclosure.upper + slack


@pytest.mark.parametrize("count", [2, 30])
def test_a_composition_of_gaussians_is_one_gaussian(count: int) -> None:
    """The lattice knows nothing of that; sampling at q = 1 goes through it as any other rate does."""
    event = SampledGaussian(1.0, 8.0)
    for epsilon in (0.1, 0.5):
        exact = gaussian.delta(Gaussian(8.0 / math.sqrt(count)), epsilon, digits=12)
        found = sampled.delta((event, count), epsilon, cells=4096)
        assert found.overlaps(exact)
        assert found.relative_width < 0.05


@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.1, 1.0, 0.5), (0.01, 0.6, 1.0), (0.5, 2.0, 0.2)])
def test_two_releases_by_direct_integration(rate: float, sigma: float, epsilon: float) -> None:
    """δ of two releases, remove direction: E over the first of δ₁(ε − its loss), δ₁ by thresholds; to 1e-9."""

    def density(x: float) -> float:
        return float((1 - rate) * stats.norm.pdf(x, 0, sigma) + rate * stats.norm.pdf(x, 1, sigma))

    def loss(x: float) -> float:
        return math.log1p(rate * math.expm1((2 * x - 1) / (2 * sigma**2)))

    def one(eps: float) -> float:
        inside = 1 + math.expm1(eps) / rate  # the likelihood ratio N(1)/N(0) at which the loss equals eps
        if inside <= 0:
            return -math.expm1(eps)  # the loss is above eps everywhere
        x = sigma**2 * math.log(inside) + 0.5
        above_p = (1 - rate) * stats.norm.sf(x, 0, sigma) + rate * stats.norm.sf(x, 1, sigma)
        return float(above_p - math.exp(eps) * stats.norm.sf(x, 0, sigma))

    edge = sigma**2 * math.log(1 + math.expm1(epsilon) / rate) + 0.5
    pieces = sorted({-10 * sigma, 0.0, 1.0, edge, 1 + 12 * sigma})
    direct = math.fsum(
        integrate.quad(lambda x: density(x) * one(epsilon - loss(x)), a, b, epsabs=0, epsrel=1e-10, limit=400)[0]
        for a, b in itertools.pairwise(pieces)
    )
    found = sampled.delta((SampledGaussian(rate, sigma), 2), epsilon, direction="remove", cells=8192)
    assert float(found.lower) <= direct * (1 + 1e-9)
    assert float(found.upper) >= direct * (1 - 1e-9)
    assert found.relative_width < 0.01


def test_a_finer_lattice_is_narrower_and_agrees() -> None:
    subject = (SampledGaussian(0.05, 1.0), 20)
    coarse, fine = (sampled.delta(subject, 1.0, cells=cells) for cells in (512, 4096))
    assert coarse.overlaps(fine)
    assert fine.relative_width < coarse.relative_width / 4


def test_renyi_of_a_gaussian() -> None:
    """Order α of N(0, σ²) against N(1, σ²) is α / (2σ²)."""
    assert float(gaussian.renyi(Gaussian(2.0), 8)) == pytest.approx(1.0, rel=1e-15)


UNLIKE = Composition(((SampledGaussian(0.02, 1.0), 40), (Gaussian(6.0), 3), (SampledGaussian(0.3, 3.0), 5)))


@pytest.mark.parametrize(
    "releases",
    [
        Composition(((SampledGaussian(0.01, 1.0), 60),)),
        Composition(((SampledGaussian(0.2, 2.0), 30),)),
        Composition(((Gaussian(4.0), 10),)),
        UNLIKE,
    ],
    ids=["rare", "frequent", "always", "unlike"],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_no_upper_bound_lies_below_the_truth(releases: Composition, delta: float) -> None:
    for guarantee in account(releases, delta=delta):
        if guarantee.kind in ("upper_bound", "exact", "certified"):
            assert guarantee.epsilon is not None
            truth = sampled.delta(releases, guarantee.epsilon.safe, cells=1024)
            assert float(truth.lower) <= delta
            if guarantee.accountant in ("rdp", "exact"):
                lower = sampled.delta(releases, guarantee.epsilon.safe / 3, cells=1024)
                assert float(lower.upper) > delta  # and it is no idle bound


def test_the_first_row_of_the_paper_is_not_what_its_limit_theorem_says() -> None:
    """Table 1, row 1 of Bu et al. (2020) prints ε = 0.83 at δ = 1e-5 by the central limit theorem."""
    releases = (SampledGaussian(256 / 60000, 1.3), 3516)
    truth = sampled.delta(releases, 0.835, cells=8192)  # 0.83 with half a unit of its last digit
    assert float(truth.lower) > 1e-5
