"""Small losses and few releases, band by band: against integrals of two and three releases, other lines, and limits."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from dpbench.accountants import _band_line
from dpbench.accountants._band_direction import BandDirection, band_direction
from dpbench.accountants._band_leaf import ALL, Leaf, Window
from dpbench.accountants._bands import Bands
from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import Direction, Value
from dpbench.accountants._few_pair import Pair
from dpbench.accountants._few_releases import few
from dpbench.accountants._hinges import group_weights
from dpbench.accountants._leaves import leaves
from dpbench.accountants.exact.accountant import accountant
from dpbench.events import Composition, Event, GroupSampledGaussian, SampledGaussian

WAYS = ("remove", "add")
Sampled = SampledGaussian | GroupSampledGaussian
Parts = tuple[tuple[Event, int], ...]


def pair(event: Sampled, way: str) -> Pair:
    size = event.group_size if isinstance(event, GroupSampledGaussian) else 1
    members, logs = group_weights(GroupSampledGaussian(event.sampling_rate, event.noise_multiplier, size))
    kind = "replace" if event.adjacency == "replace_one" else way
    return Pair(tuple(int(k) for k in members), tuple(logs.tolist()), event.noise_multiplier, kind)


def banded(parts: Parts, way: str) -> BandDirection:
    """The direction by bands whatever else would be as good."""
    transform = Transform(tuple((leaf, count) for event, count in parts for leaf in leaves(event, way)))
    found = band_direction(parts, transform, way)
    assert found is not None
    return found


def bands_delta(parts: Parts, way: str, epsilon: float) -> Value:
    (found,) = banded(parts, way)._split_deltas([epsilon])
    return found


def drawn(number: int, most_noise: float) -> Sampled:
    """An event off every table: groups of up to 50, rates down to 1e-15."""
    source = random.Random(number)
    rate, noise = 10 ** source.uniform(-15, -0.3), 10 ** source.uniform(-0.4, math.log10(most_noise))
    if source.random() < 0.25:
        return SampledGaussian(rate, noise, adjacency="replace_one")
    return GroupSampledGaussian(rate, noise, source.choice([1, 2, 3, 20, 50]))


def placed(event: Sampled, way: str, number: int) -> float:
    """An ε between the losses of a release."""
    one = pair(event, way)
    x = random.Random(-number).uniform(-2, 9) * event.noise_multiplier
    return max(float(one.loss(np.array([x]))[0][0]), 0.0)


@pytest.mark.parametrize("number", range(40))
@pytest.mark.parametrize("way", WAYS)
def test_two_releases_are_the_integral(number: int, way: str) -> None:
    """Another route: E_P[δ_1(ε − loss)] over the line, without a transform. Both errors cover the difference."""
    event = drawn(number, 300.0)
    epsilon = placed(event, way, number)
    if epsilon >= 2 * pair(event, way).largest:
        return
    logs, errors = few(pair(event, way), 2).log_delta(np.array([epsilon]))
    expected, apart = math.exp(float(logs[0])), float(errors[0])
    found = bands_delta(((event, 2),), way, epsilon)
    assert abs(found.value - expected) <= found.error + expected * apart + 1e-40
    assert found.error <= max(1e-9 * expected, 1e-12)


@pytest.mark.parametrize(
    ("event", "count", "epsilon"),
    [
        (GroupSampledGaussian(1e-9, 1.2, 3), 3, 1e-9),
        (GroupSampledGaussian(2.6e-9, 4.6, 2), 3, 5e-9),
        (GroupSampledGaussian(1e-12, 0.6, 20), 3, 3e-11),
        (SampledGaussian(1e-10, 1.5, adjacency="replace_one"), 3, 2e-10),
        (SampledGaussian(1e-15, 2.0), 3, 1e-15),
        (GroupSampledGaussian(7.3e-8, 2.05, 2), 4, 3e-7),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_more_releases_are_the_integral(event: Sampled, count: int, epsilon: float, way: str) -> None:
    found = bands_delta(((event, count),), way, epsilon)
    if epsilon >= count * pair(event, way).largest:
        assert found.value <= found.error
        return
    logs, errors = few(pair(event, way), count).log_delta(np.array([epsilon]))
    expected, apart = math.exp(float(logs[0])), float(errors[0])
    assert expected > 1e-60
    assert found.error < max(1e-9 * expected, 1e-12)
    assert abs(found.value - expected) <= found.error + expected * apart


@pytest.mark.parametrize(
    "parts",
    [
        ((GroupSampledGaussian(0.01, 1.0, 4), 100),),
        ((GroupSampledGaussian(0.004, 1.3, 2), 3516),),
        ((SampledGaussian(1e-3, 2.0, adjacency="replace_one"), 1000),),
        ((GroupSampledGaussian(1e-3, 3.0, 8), 50), (SampledGaussian(0.01, 1.5), 200)),
        ((GroupSampledGaussian(1e-4, 30.0, 30), 1_000_000),),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_lines_of_the_whole_agree(parts: Parts, way: str) -> None:
    """The other contours, whose windows, grids and plans are others, at places where they are sharp."""
    transform = Transform(tuple((leaf, count) for event, count in parts for leaf in leaves(event, way)))
    lines = Direction(transform)
    for times in (0.0, 1.0, 3.0):
        epsilon = times * transform.spread
        if epsilon >= transform.largest_loss:
            continue
        known, found = lines.delta(epsilon), bands_delta(parts, way, epsilon)
        assert known.error < 1e-9 * known.value
        assert abs(found.value - known.value) <= found.error + known.error
        assert found.error < 1e-9 * known.value


@pytest.mark.parametrize("count", [3, 50, 1_000_000])
@pytest.mark.parametrize("noise", [0.5, 2.0, 300.0])
def test_small_rates_are_a_limit(count: int, noise: float) -> None:
    """δ(q x)/q does not depend on q to first order: at 1e-15 as at 1e-10, and both directions differ by as little."""
    values = []
    for rate in (1e-15, 1e-10):
        parts: Parts = ((GroupSampledGaussian(rate, noise, 3), count),)
        # the losses' spread, q √T times that of the likelihood ratio, which heavy tails do not have
        scale = 3 * rate * math.sqrt(count) * math.exp(min(1 / noise**2, 2.0)) / noise
        values += [bands_delta(parts, way, 0.3 * scale).value / rate for way in WAYS]
    assert values[0] > 0
    bulk = 3e-9 * math.sqrt(count) + 1e-9
    assert values[0] == pytest.approx(values[2], rel=3e-6 * math.sqrt(count) if noise < 1 else bulk)
    assert values[1] == pytest.approx(values[3], rel=3e-6 * math.sqrt(count) if noise < 1 else bulk)


def test_at_zero_both_directions_are_one() -> None:
    for number in range(12):
        parts: Parts = ((drawn(number, 300.0), 7), (GroupSampledGaussian(1e-7, 2.0, 5), 400))
        if parts[0][0].adjacency == "replace_one":  # type: ignore[union-attr]
            continue
        there, back = (bands_delta(parts, way, 0.0) for way in WAYS)
        assert abs(there.value - back.value) <= there.error + back.error
        assert there.error < max(1e-9 * there.value, 1e-12)


@pytest.mark.parametrize(
    ("event", "count", "delta"),
    [
        (GroupSampledGaussian(2.6e-4, 263.0, 19), 2, 1e-27),
        (GroupSampledGaussian(1e-15, 1.0, 3), 3, 1e-17),
        (GroupSampledGaussian(2.6e-9, 4.6, 2), 5, 1e-20),
        (GroupSampledGaussian(1e-4, 1.36, 46), 2545, 1e-26),
        (SampledGaussian(1e-15, 100.0), 1000, 1e-25),
        (SampledGaussian(7e-8, 2.2, adjacency="replace_one"), 6, 1e-28),
    ],
)
def test_epsilon_is_the_root_of_delta(event: Event, count: int, delta: float) -> None:
    curve = accountant.curve(Composition(((event, count),)))
    found = curve.epsilon(delta)
    assert found.reason is None
    assert found.lower is not None
    assert found.upper is not None
    assert found.upper - found.lower <= 2e-9 * found.value
    assert curve.delta(found.value).value == pytest.approx(delta, rel=1e-6, abs=0.0)


def test_a_rate_of_nearly_nothing_reveals_nearly_nothing() -> None:
    """What took petabytes is answered: ε is 0 where even δ(0) is smaller."""
    for event in (GroupSampledGaussian(1e-15, 200.0, 2), SampledGaussian(1e-15, 0.5), SampledGaussian(1e-15, 428.0)):
        curve = accountant.curve(Composition(((event, 9),)))
        assert curve.epsilon(1e-9).value == 0
        found = curve.delta(0.0)
        assert found.reason is None
        assert 0 < found.value < 1e-13


def test_panels_resolve_the_transform() -> None:
    """Each sum over panels against one over panels a third as wide: within the rounding that it states."""
    worst = 0.0
    for number in range(60):
        source = random.Random(number)
        leaf = Leaf(pair(drawn(number, 300.0), source.choice(WAYS)), 3.0)
        upper = leaf._window(source.uniform(1, 12))
        lower = leaf._window(upper.cut - source.uniform(0.3, 4)) if source.random() < 0.6 else None
        scale = leaf.range(upper)
        real, turns = source.uniform(0.1, 8) / scale, source.uniform(1, 800) / scale
        coarse = _band_line.part(leaf, real, turns, upper, lower)
        fine = _finer(leaf, real, turns, upper, lower)
        u = np.array([0.0, 0.01, 0.1, 0.3, 0.6, 1.0]) * turns
        (found, wrong), (expected, other) = coarse.line(real, u), fine.line(real, u)
        told = wrong < 0.1
        apart = np.abs(np.expm1((found - expected)[told]))
        worst = max(worst, float((apart / (wrong + other)[told]).max(initial=0.0)))
    assert 0 < worst < 1


def _finer(leaf: Leaf, real: float, turns: float, upper: Window, lower: Window | None) -> _band_line.Part:
    """As `part`, with nodes for three times the turns and the power."""
    s, log_weight = leaf.nodes(3 * real, 3 * turns, upper, lower)
    held = upper.at(s) if lower is None else upper.less(lower, s)
    return _band_line.Part(leaf.moved(s), np.exp(log_weight) * held, leaf.missing(upper), leaf.exponents, lower is None)


def test_a_window_and_the_rest_are_the_whole() -> None:
    leaf = Leaf(pair(GroupSampledGaussian(1e-6, 0.7, 5), "remove"), 3.0)
    s = np.linspace(-8.0, 14.0, 200)
    upper, lower = leaf._window(6.0), leaf._window(3.0)
    assert np.allclose(upper.less(lower, s) + lower.at(s), upper.at(s), rtol=1e-14, atol=1e-300)
    assert np.allclose(ALL.less(upper, s) + upper.at(s), 1.0, rtol=1e-14)


def test_a_coarser_line_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands summed to fewer digits than are promised do not pass for sharp ones: the stated error grows with them."""
    from dpbench.accountants import _bands

    event, epsilon = GroupSampledGaussian(1e-9, 1.2, 3), 1e-9
    exact = math.exp(float(few(pair(event, "remove"), 3).log_delta(np.array([epsilon]))[0][0]))
    monkeypatch.setattr(_bands, "PRECISION", math.log(1e-3))
    direction = Bands([Leaf(pair(event, "remove"), 3.0)])
    value, _, error = (float(one[0]) for one in direction.split(epsilon, math.log(exact))(np.array([epsilon])))
    assert 1e-12 * exact < abs(value - exact) <= error
