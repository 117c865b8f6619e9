"""A few equal releases to a group or of a replaced record: against stored enclosures, closed forms and other routes."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import Direction
from dpbench.accountants._few_direction import FewDirection
from dpbench.accountants._few_pair import Pair
from dpbench.accountants._few_releases import few
from dpbench.accountants._hinges import group_weights, log_hinge
from dpbench.accountants._leaves import leaves
from dpbench.accountants._one_release import SingleCurve, single_curve
from dpbench.accountants._projections_single import log_release
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.events import (
    Composition,
    Event,
    GroupSampledGaussian,
    RandomSensitivityGaussian,
    SampledGaussian,
    from_json,
)

GROUP = GroupSampledGaussian(0.01, 1.0, 4)
REPLACED = SampledGaussian(0.01, 1.0, adjacency="replace_one")
ONE = SampledGaussian(0.01, 1.0)
WAYS = ("remove", "add")


def pair(event: SampledGaussian | GroupSampledGaussian, way: str) -> Pair:
    size = event.group_size if isinstance(event, GroupSampledGaussian) else 1
    members, logs = group_weights(GroupSampledGaussian(event.sampling_rate, event.noise_multiplier, size))
    kind = "replace" if event.adjacency == "replace_one" else way
    return Pair(tuple(int(k) for k in members), tuple(logs.tolist()), event.noise_multiplier, kind)


def few_log(event: SampledGaussian | GroupSampledGaussian, count: int, way: str, epsilon: float) -> tuple[float, float]:
    logs, errors = few(pair(event, way), count).log_delta(np.array([epsilon]))
    return float(logs[0]), float(errors[0])


def curve_of(event: Event, count: int) -> ExactCurve:
    curve = accountant.curve(Composition(((event, count),)))
    assert isinstance(curve, ExactCurve)
    return curve


def stored() -> list[dict[str, object]]:
    found = []
    for name in ("group_sampled_gaussian", "sampled_gaussian_replace_one", "sampled_gaussian"):
        table = json.loads((Path(__file__).parent / "references" / f"{name}.json").read_text())
        for point in table["points"]:
            parts = from_json(point["composition"]).parts
            if len(parts) == 1 and 2 <= parts[0][1] <= 4:
                found.append(point)
    return found


STORED = stored()


def test_there_are_stored_points_of_all_kinds() -> None:
    assert len(STORED) >= 9


@pytest.mark.parametrize("number", range(len(STORED)))
@pytest.mark.parametrize("way", WAYS)
def test_stored_points_of_both_directions(number: int, way: str) -> None:
    point = STORED[number]
    ((event, count),) = from_json(point["composition"]).parts  # type: ignore[arg-type]
    assert isinstance(event, SampledGaussian | GroupSampledGaussian)
    log, error = few_log(event, count, way, float(point["epsilon"]))  # type: ignore[arg-type]
    lower, upper = (float(point[way][end]) for end in ("lower", "upper"))  # type: ignore[index]
    assert error < 1e-9
    assert lower * (1 - 1e-15) <= math.exp(log) * (1 + error)
    assert math.exp(log) * (1 - error) <= upper * (1 + 1e-15)


@pytest.mark.parametrize("event", [GROUP, REPLACED, GroupSampledGaussian(1e-4, 0.5, 2), SampledGaussian(0.3, 3.0)])
@pytest.mark.parametrize("way", WAYS)
def test_one_release_is_the_closed_form(event: SampledGaussian | GroupSampledGaussian, way: str) -> None:
    """The places of which the integrals are made, and their losses, are those of `_hinges`."""
    one = pair(event, way)
    x = np.linspace(-6, 6, 41) * event.noise_multiplier
    loss, slope = one.loss(x)
    assert np.all(slope > 0)
    expected = log_hinge(event, loss, WAYS.index(way))
    kept = np.isfinite(expected) & (np.abs(loss) > 1e-13)
    assert kept.sum() > 20
    assert np.allclose(one.log_hinge(x)[kept], expected[kept], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("event", [GROUP, REPLACED])
@pytest.mark.parametrize("way", WAYS)
def test_tails_and_curve_are_of_one_pair(event: SampledGaussian | GroupSampledGaussian, way: str) -> None:
    """δ at ε = loss(x) is P(X > x) − e^ε Q(X > x); above and below are all there is."""
    one, x = pair(event, way), np.linspace(-2.0, 4.0, 13)
    first, second = np.exp(one.log_above(x)), np.exp(one.log_above(x, second=True))
    assert np.allclose(first - np.exp(one.loss(x)[0]) * second, np.exp(one.log_hinge(x)), rtol=0, atol=1e-14)
    assert np.allclose(first + np.exp(one.log_below(x)), 1, rtol=1e-13)
    assert np.allclose(second + np.exp(one.log_below(x, second=True)), 1, rtol=1e-13)


def test_a_rarely_drawn_record_far_out_has_no_jump() -> None:
    """Where the record's own part of P outweighs its tail without it: δ falls smoothly."""
    places = np.linspace(29.5, 29.9, 41)
    logs, _ = few(pair(SampledGaussian(2.3e-6, 0.22, adjacency="replace_one"), "remove"), 2).log_delta(places)
    assert np.abs(np.diff(logs, n=2)).max() < 1e-3


@pytest.mark.parametrize("event", [GROUP, REPLACED, GroupSampledGaussian(0.3, 2.0, 3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.5])
def test_two_releases_by_another_quadrature(event: SampledGaussian | GroupSampledGaussian, epsilon: float) -> None:
    """E_P[F_1(ε − loss)] by adaptive quadrature of the closed form in x, its ends and bends given."""
    one = pair(event, "remove")

    def integrand(x: float) -> float:
        place = np.array([x])
        rest = np.array([epsilon - float(one.loss(place)[0][0])])
        return math.exp(float(one.log_density(place)[0]) + float(log_hinge(event, rest, 0)[0]))

    expected, _ = quad(integrand, -12.0, 20.0, epsabs=0, epsrel=1e-10, limit=2000, points=list(range(-11, 20)))
    log, error = few_log(event, 2, "remove", epsilon)
    assert error < 1e-9
    assert math.exp(log) == pytest.approx(expected, rel=3e-9)


@pytest.mark.parametrize(
    ("event", "count", "epsilon", "room"),
    [
        (ONE, 2, 0.01, 1e-10),
        (ONE, 3, 1.24, 1e-10),
        (ONE, 5, 0.01, 1e-10),
        (SampledGaussian(0.3, 2.0), 7, 3.0, 1e-10),
        (GroupSampledGaussian(0.2, 4.0, 3), 2, 0.6, 1e-10),
        (GroupSampledGaussian(0.2, 4.0, 3), 4, 2.5, 1e-10),
        (REPLACED, 2, 0.01, 1e-10),
        (REPLACED, 3, 1.5, 1e-9),
        (SampledGaussian(1e-3, 2.0, adjacency="replace_one"), 3, 1e-3, 1e-9),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_lines_agree_where_they_are_sharp(
    event: SampledGaussian | GroupSampledGaussian, count: int, epsilon: float, room: float, way: str
) -> None:
    """Another route altogether: each other's errors cover the difference."""
    lines = Direction(Transform(tuple((leaf, count) for leaf in leaves(event, way)))).delta(epsilon)
    log, error = few_log(event, count, way, epsilon)
    value = math.exp(log)
    assert error < room
    assert abs(value - lines.value) <= lines.error + value * error + 1e-100
    if way == "remove" and lines.error < 1e-10 * value:
        assert value == pytest.approx(lines.value, rel=1e-9)


@pytest.mark.parametrize("event", [GROUP, REPLACED, GroupSampledGaussian(1e-4, 0.5, 2)])
def test_more_releases_reveal_more(event: Event) -> None:
    counts = (1, 2, 3, 4)
    for epsilon in (0.0, 0.3, 2.0):
        deltas = [accountant.curve(Composition(((event, count),))).delta(epsilon) for count in counts]
        assert all(before.upper is not None and after.lower is not None for before, after in pairwise(deltas))
        assert all(before.value < after.value for before, after in pairwise(deltas))


@pytest.mark.parametrize(
    "event", [GROUP, REPLACED, GroupSampledGaussian(1e-6, 0.7, 2), GroupSampledGaussian(0.9, 5.0, 8)]
)
@pytest.mark.parametrize("delta", [1e-1, 1e-5, 1e-10, 1e-30])
def test_epsilon_is_the_root_of_delta(event: Event, delta: float) -> None:
    curve = curve_of(event, 2)
    assert isinstance(curve.ways[0], FewDirection)
    found = curve.epsilon(delta)
    assert found.reason is None
    assert found.lower is not None
    assert found.upper is not None
    if found.value == 0:
        assert curve.delta(0.0).value <= delta
        return
    assert curve.delta(found.value).value == pytest.approx(delta, rel=1e-10)
    assert found.upper - found.lower <= 2e-9 * found.value
    assert curve.delta(found.lower * (1 - 1e-9)).value > delta > curve.delta(found.upper * (1 + 1e-9)).value


def test_many_epsilons_are_each_one_alone() -> None:
    curve, places = curve_of(GROUP, 2), [0.0, 1e-9, 0.03, 0.5, 1.0, 5.0, 20.0]
    for together, place in zip(curve.deltas(places), places, strict=True):
        assert together.value == pytest.approx(curve_of(GROUP, 2).delta(place).value, rel=1e-12)
        assert together.reason is None


def test_at_zero_both_directions_are_one() -> None:
    for count in (2, 3):
        there, back = (few_log(GROUP, count, way, 0.0) for way in WAYS)
        assert there[0] == pytest.approx(back[0], abs=1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("epsilon", [0.02, 0.3, 2.0])
def test_below_zero_the_directions_meet(way: str, epsilon: float) -> None:
    """δ(−ε) = 1 − e^−ε + e^−ε δ'(ε), δ' of the other direction."""
    other = WAYS[1 - WAYS.index(way)]
    for count in (2, 3):
        here = math.exp(few_log(GROUP, count, way, -epsilon)[0])
        there = math.exp(few_log(GROUP, count, other, epsilon)[0])
        assert here == pytest.approx(-math.expm1(-epsilon) + math.exp(-epsilon) * there, rel=1e-10)


def test_a_group_of_one_is_one_record() -> None:
    for count in (2, 3, 5):
        for epsilon in (0.0, 0.01, 0.5, 3.0):
            one = curve_of(ONE, count).delta(epsilon)
            group = math.exp(few_log(GroupSampledGaussian(0.01, 1.0, 1), count, "remove", epsilon)[0])
            assert group == pytest.approx(one.value, rel=1e-9)


def test_everybody_drawn_is_a_gaussian() -> None:
    """q = 1: two releases of a group of g are one Gaussian with μ = g √2 / σ."""
    from dpbench.accountants._hinges import log_gaussian

    for epsilon in (0.0, 0.5, 4.0):
        log, error = few_log(GroupSampledGaussian(1.0, 3.0, 2), 2, "remove", epsilon)
        assert error < 1e-9
        assert log == pytest.approx(float(log_gaussian(np.array([epsilon]), 2 * math.sqrt(2) / 3)[0]), abs=1e-10)


@pytest.mark.parametrize("rate", [1e-15, 1e-9, 1e-4])
def test_small_rates(rate: float) -> None:
    """To first order in q the losses add: δ(0) = g q E[(f(x) + f(y))₊] over N(0, 1), f(x) = e^(x − 1/2) − 1."""
    x = np.arange(-8.0, 9.0, 0.01)
    weight = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * 0.01
    f = np.expm1(x - 0.5)
    expected = 3 * rate * float(weight @ np.maximum(np.add.outer(f, f), 0.0) @ weight)
    found = curve_of(GroupSampledGaussian(rate, 1.0, 3), 2).delta(0.0)
    assert found.reason is None
    assert found.value == pytest.approx(expected, rel=1e-3, abs=0.0)


def test_other_events_go_another_way() -> None:
    assert not isinstance(curve_of(ONE, 2).ways[0], FewDirection)
    assert not isinstance(curve_of(GROUP, 11).ways[0], FewDirection)


def test_one_release_is_told_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to δ(0) the search went through every binary order down to 1e-16: 120 values, a quarter of a second."""
    event = GroupSampledGaussian(0.5, 100.0, 2)
    curve = single_curve(event, "add_or_remove")
    asked = []
    honest = SingleCurve._log
    monkeypatch.setattr(SingleCurve, "_log", lambda self, epsilon: asked.append(epsilon) or honest(self, epsilon))
    for share in (1 - 1e-15, 0.9, 1e-6):
        delta = share * math.exp(honest(curve, 0.0))
        asked.clear()
        found = curve.epsilon(delta)
        assert len(asked) < 60
        assert found.lower is not None
        assert found.upper is not None
        assert honest(curve, found.upper) <= math.log(delta) <= honest(curve, found.lower) + 1e-15


def test_one_direction_of_one_jl_release_is_its_own() -> None:
    """It was the larger of both."""
    event = RandomSensitivityGaussian(0.1, 1.0, 5)
    remove, add = (single_curve(event, "add_or_remove").one_way(way).delta(0.5).value for way in ("remove", "add"))
    assert remove == pytest.approx(math.exp(log_release(event, 0.5, 0)), rel=1e-12)
    assert add == pytest.approx(math.exp(log_release(event, 0.5, 1)), rel=1e-12)
    assert add < 0.9 * remove
