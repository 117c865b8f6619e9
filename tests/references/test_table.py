"""The stored table: its schema is whole, it agrees with itself, and points computed anew overlap the stored ones."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dpbench.events import SampledGaussian, from_json
from dpbench.references._enclosure import Enclosure
from dpbench.references._reference import Which
from dpbench.references.sampled_gaussian import reference

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "sampled_gaussian.json").read_text(encoding="utf-8"))
POINTS: list[dict[str, Any]] = TABLE["points"]
WAYS: tuple[Which, ...] = ("remove", "add", "both")


def single(point: dict[str, Any]) -> bool:
    return sum(int(part["count"]) for part in point["composition"]["parts"]) == 1


def enclosure(entry: dict[str, Any]) -> Enclosure:
    return Enclosure(Decimal(entry["lower"]), Decimal(entry["upper"]), entry["method"])


def test_the_schema_is_whole() -> None:
    assert (TABLE["schema_version"], TABLE["type"], TABLE["event"]) == (1, "reference_table", "SampledGaussian")
    assert set(TABLE["versions"]) == {"python", "python-flint", "flint", "mpmath"}
    assert TABLE["made"]
    assert TABLE["seconds"] > 0
    assert sum(single(point) for point in POINTS) >= 50
    assert sum(not single(point) for point in POINTS) >= 50
    for point in POINTS:
        assert set(point) == {"composition", "epsilon", *WAYS, "seconds", "digits" if single(point) else "cells"}
        assert from_json(point["composition"]).parts
        for way in WAYS:
            extra = {"estimate", "estimate_error"} if way != "both" and not single(point) else set()
            assert set(point[way]) == {"lower", "upper", "relative_width", "method", *extra}
            assert all(isinstance(point[way][end], str) for end in ("lower", "upper"))
    for entry in TABLE["renyi"]:
        assert set(entry) == {"event", "order", "remove", "add", "digits", "seconds"}


def test_it_covers_the_corners() -> None:
    parts = [part for point in POINTS for part in point["composition"]["parts"]]
    sampled = [part for part in parts if part["event"] == "SampledGaussian"]
    rates, noises = ({part[key] for part in sampled} for key in ("sampling_rate", "noise_multiplier"))
    assert {min(rates), max(rates)} == {1e-7, 1.0}
    assert {min(noises), max(noises)} == {0.3, 1000.0}
    assert any(Decimal(0) < enclosure(point["both"]).upper < Decimal("2e-30") for point in POINTS)
    assert max(part["count"] for part in parts) >= 10000


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{len(point['composition']['parts'])}-{point['epsilon']}")
def test_a_point_agrees_with_itself(point: dict[str, Any]) -> None:
    remove, add, both = (enclosure(point[way]) for way in WAYS)
    assert both.lower == max(remove.lower, add.lower)
    assert both.upper == max(remove.upper, add.upper)
    for way, found in zip(WAYS, (remove, add, both), strict=True):
        assert point[way]["relative_width"] == (found.relative_width if found.relative_width < 1e300 else None)
    if single(point):
        assert both.lower == 0 or both.relative_width < 1e-29
    else:
        for way, found in zip(WAYS[:2], (remove, add), strict=True):
            value, error = Decimal(point[way]["estimate"]), Decimal(repr(point[way]["estimate_error"]))
            assert found.lower - error <= value <= found.upper + error


def test_a_handful_computed_anew_overlaps_the_stored() -> None:
    """Other points at every run: all enclosures of one number overlap, whatever the draw and the grid."""
    draw = random.Random()
    handful = draw.sample([point for point in POINTS if single(point)], 8)
    handful += draw.sample([point for point in POINTS if not single(point)], 4)
    for point in handful:
        for way in WAYS:
            found = reference.delta(from_json(point["composition"]), point["epsilon"], 20, direction=way, cells=1024)
            assert found.overlaps(enclosure(point[way])), point


def test_two_divergences_computed_anew_are_the_stored_ones() -> None:
    for entry in random.Random().sample(TABLE["renyi"], 2):
        event = SampledGaussian(entry["event"]["sampling_rate"], entry["event"]["noise_multiplier"])
        for way in WAYS[:2]:
            found, stored = reference.renyi(event, entry["order"], 20, direction=way), Decimal(entry[way])
            assert abs(found - stored) <= stored * Decimal("1e-18"), entry
