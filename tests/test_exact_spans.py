"""Whole curves of the exact accountant: lines that serve ranges of ε, against single answers and certified ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpbench.accountants import _spans
from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import SHARED, Direction
from dpbench.accountants._inversion import invert_at
from dpbench.accountants._loss_leaf import sampled_leaf
from dpbench.accountants._plan import Aim
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.certified import certify_many
from dpbench.events import Composition, SampledGaussian, from_json

TABLE = Path(__file__).parent / "references" / "certified.json"
POINTS = json.loads(TABLE.read_text(encoding="utf-8"))["points"]
REGIMES = sorted({point["regime"] for point in POINTS})


def curve_of(composition: Composition) -> ExactCurve:
    found = accountant.curve(composition)
    assert isinstance(found, ExactCurve)
    return found


def asked(point: dict[str, Any], count: int) -> tuple[Composition, list[float]]:
    """A stored composition, and so many ε from 0 to twice the stored one."""
    composition = from_json(point["composition"])
    top = 2 * float(point["epsilon"]) or 1.0
    return composition, [top * place / (count - 1) for place in range(count)]


@pytest.mark.parametrize("regime", REGIMES)
def test_a_curve_is_its_points(regime: str) -> None:
    """Every answer of many lies within both error bars of the one alone, and is as accurate as a curve should be."""
    points = [point for point in POINTS if point["regime"] == regime]
    for point in points[:: max(1, len(points) // 3)]:
        composition, epsilons = asked(point, 100)
        if not isinstance(accountant.curve(composition), ExactCurve):
            continue
        answers = curve_of(composition).deltas(epsilons)
        for epsilon, answer in list(zip(epsilons, answers, strict=True))[1::14]:
            alone = curve_of(composition).delta(epsilon)
            assert answer.lower is not None
            assert answer.upper is not None
            assert alone.lower is not None
            assert alone.upper is not None
            assert answer.lower <= alone.upper
            assert alone.lower <= answer.upper
            if alone.value > 1e-31 and alone.upper - alone.value <= 1e-10 * alone.value:
                assert answer.upper - answer.value <= 1e-9 * answer.value


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "epsilons"),
    [
        (256 / 60000, 1.3, 3516, (0.1, 0.9, 1.9, 2.6)),
        (0.123, 0.435, 50, (0.5, 30.0, 70.0)),
        (2.11e-5, 0.562, 49289, (0.05, 0.4, 2.0)),
    ],
    ids=["ordinary", "little noise", "sparse hits"],
)
def test_a_curve_against_certified_enclosures(
    rate: float, noise: float, steps: int, epsilons: tuple[float, ...]
) -> None:
    composition = Composition(((SampledGaussian(rate, noise), steps),))
    many = sorted({*epsilons, *np.linspace(0.0, 1.1 * epsilons[-1], 80).tolist()})
    found = dict(zip(many, curve_of(composition).deltas(many), strict=True))
    for epsilon, proof in zip(epsilons, certify_many(composition, epsilons=epsilons), strict=True):
        answer = found[epsilon]
        assert answer.lower is not None
        assert answer.upper is not None
        assert answer.lower <= float(proof.upper)
        assert answer.upper >= float(proof.lower)
        middle = (float(proof.lower) + float(proof.upper)) / 2
        assert abs(answer.value - middle) <= 1e-9 * middle + float(proof.upper) - float(proof.lower)


def test_lines_serve_both_ends_of_their_range_and_all_between() -> None:
    transform = Transform(((sampled_leaf(256 / 60000, 1.3, "remove"), 3516),))
    alone = Direction(Transform(transform.parts))
    ends = (0.2, 1.2)
    lines = invert_at(transform, Aim(ends, tuple(math.log(alone.delta(end).value) for end in ends)))
    assert lines is not None
    at = np.linspace(*ends, 9)
    value, _, error = lines.at(at)
    assert (error <= SHARED * value).all()
    for epsilon, one, wrong in zip(at.tolist(), value.tolist(), error.tolist(), strict=True):
        truth = alone.delta(epsilon)
        assert abs(one - truth.value) <= wrong + truth.error


def test_a_dip_of_the_transform_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """|M| of three hits falls far while these turn, and rises again: the fault of stopping there moves δ unseen."""
    leaf = sampled_leaf(0.026, 0.353, "remove")
    aim = Aim((45.20130653266358, 123.22), (-18.5523825, -66.6599))
    truth = Direction(Transform(((leaf, 119),))).delta(aim.epsilons[0])

    def missed() -> float:
        lines = invert_at(Transform(((leaf, 119),)), aim)
        assert lines is not None
        value, _, error = lines(aim.epsilons[0])
        return abs(value - truth.value) / (error + truth.error)

    assert missed() <= 1
    monkeypatch.setattr("dpbench.accountants._inversion._MANY_NODES", (1500,))
    assert missed() <= 1
    monkeypatch.setattr(Transform, "_risen", lambda *_: -math.inf)
    assert missed() > 1


def test_one_direction_tells_of_the_other() -> None:
    leaves = [sampled_leaf(0.0474, 0.355, way) for way in ("remove", "add")]
    first, other = (Direction(Transform(((leaf, 59),))) for leaf in leaves)
    assert first.reversed([0.5]) is None
    first.delta(0.0)
    found = first.reversed([0.0, 0.3, 0.5, 30.0])
    assert found is not None
    for epsilon, value in zip((0.0, 0.3, 0.5), found, strict=False):
        truth = other.delta(epsilon)
        assert value.error < 1e-10 * value.value
        assert abs(value.value - truth.value) <= value.error + truth.error
    assert found[-1].error == math.inf
    assert first.reversed([]) is None


def test_wrong_estimates_cost_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans far too long, and slopes that are never believed, give the same curve."""
    composition = Composition(((SampledGaussian(1.18e-5, 1.19), 10**6),))
    epsilons = np.linspace(0.0, 0.1, 40).tolist()
    honest = curve_of(composition).deltas(epsilons)
    monkeypatch.setattr(_spans, "_LOST_AT_ENDS", math.log(1e-6))
    monkeypatch.setattr(_spans, "_AGREE", -1.0)
    monkeypatch.setattr(_spans, "_FARTHEST", 40.0)
    for one, two in zip(honest, curve_of(composition).deltas(epsilons), strict=True):
        assert one.upper is not None
        assert two.upper is not None
        assert abs(one.value - two.value) <= one.upper - one.value + two.upper - two.value
        assert two.upper - two.value <= max(1e-9 * two.value, 1e-12)
