"""Internal: an enclosure overlaps another one of the same number, and what is stored is read as one.

The stored tables: their schema is whole, they agree with themselves, and points computed anew overlap the stored.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from dpbench.events import EVENTS, Composition, ConfidentGNMax, from_json
from dpbench.judging.enclosures import TABLES as STORED
from dpbench.references._enclosure import Enclosure
from dpbench.references._reference import Which
from tests.references import votes
from tests.references.points import REGIMES, TABLES, budget, regime

STORED: dict[str, dict[str, Any]] = {
    name: json.loads((STORED / f"{name}.json").read_text(encoding="utf-8")) for name in TABLES
}
POINTS = [(name, point) for name, table in STORED.items() for point in table["points"]]
WAYS: tuple[Which, ...] = ("remove", "add", "both")
# Points computed anew, of one invocation and of several: fewer of the slower ones, where long tests run as many of all.
ANEW = {"random_sensitivity_gaussian": (2, 0), "fixed_size_gaussian": (5, 1), "unlike": (5, 1)}


def single(point: dict[str, Any]) -> bool:
    return sum(int(part["count"]) for part in point["composition"]["parts"]) == 1


def enclosure(entry: dict[str, Any]) -> Enclosure:
    return Enclosure(Decimal(entry["lower"]), Decimal(entry["upper"]), entry["method"])


def identity(given: Any) -> str:
    name, point = given
    return f"{name}-{point['regime']}-{point['epsilon']}"


@pytest.mark.parametrize("name", TABLES)
def test_the_schema_is_whole(name: str) -> None:
    table = STORED[name]
    assert (table["schema_version"], table["type"], table["reference"]) == (2, "reference_table", name)
    assert table["event"] == TABLES[name].reference.event
    assert table["generator"] == "tests/references/make_table.py"
    assert set(table["versions"]) == {"python", "python-flint", "flint", "mpmath"}
    assert table["made"]
    assert table["seconds"] > 0
    for point in table["points"]:
        kind = "digits" if single(point) else "cells"
        assert set(point) == {"composition", "epsilon", *WAYS, "seconds", "regime", "budget", kind}
        assert from_json(point["composition"]).parts
        estimated = name == "sampled_gaussian" and not single(point)
        for way in WAYS:
            extra = {"estimate", "estimate_error"} if way != "both" and estimated else set()
            assert set(point[way]) == {"lower", "upper", "relative_width", "method", *extra}
            assert all(isinstance(point[way][end], str) for end in ("lower", "upper"))
    for entry in table["renyi"]:
        assert set(entry) == {"event", "order", "remove", "add", "digits", "seconds"}


def test_every_listed_composition_is_there() -> None:
    for name, table in TABLES.items():
        stored = [from_json(point["composition"]) for point in STORED[name]["points"]]
        assert {Composition(entry.parts) for entry in table.entries} == set(stored)


def test_every_regime_has_ten_points() -> None:
    counts = Counter(point["regime"] for _, point in POINTS)
    assert set(counts) == set(REGIMES)
    assert min(counts.values()) >= 10, counts
    assert len(POINTS) >= 300


def test_it_covers_the_corners() -> None:
    parts = [part for _, point in POINTS for part in point["composition"]["parts"]]
    assert {part["event"] for part in parts} == set(EVENTS)
    sampled = [part for part in parts if part["event"] == "SampledGaussian"]
    rates, noises = ({part[key] for part in sampled} for key in ("sampling_rate", "noise_multiplier"))
    assert {min(rates), max(rates)} == {1e-7, 1.0}
    assert {min(noises), max(noises)} == {0.3, 1000.0}
    assert any(Decimal(0) < enclosure(point["both"]).upper < Decimal("2e-30") for _, point in POINTS)
    assert max(part["count"] for part in parts) >= 10**6


@pytest.mark.parametrize("given", POINTS, ids=identity)
def test_a_point_agrees_with_itself(given: tuple[str, dict[str, Any]]) -> None:
    name, point = given
    remove, add, both = (enclosure(point[way]) for way in WAYS)
    assert both.lower == max(remove.lower, add.lower)
    assert both.upper == max(remove.upper, add.upper)
    assert (point["regime"], point["budget"]) == (regime(point), budget(point))
    for way, found in zip(WAYS, (remove, add, both), strict=True):
        assert point[way]["relative_width"] == (found.relative_width if found.relative_width < 1e300 else None)
    if single(point):
        assert both.lower == 0 or both.relative_width < 1e-29
    elif name == "sampled_gaussian":
        for way, found in zip(WAYS[:2], (remove, add), strict=True):
            value, error = Decimal(point[way]["estimate"]), Decimal(repr(point[way]["estimate_error"]))
            assert found.lower - error <= value <= found.upper + error


@pytest.mark.parametrize("name", TABLES)
def test_delta_falls_along_the_stored_points(name: str) -> None:
    """Of one composition: a smaller ε never has a certainly smaller δ."""
    points = sorted(STORED[name]["points"], key=lambda point: (json.dumps(point["composition"]), point["epsilon"]))
    for here, there in itertools.pairwise(points):
        if here["composition"] == there["composition"]:
            for way in WAYS:
                assert enclosure(here[way]).upper >= enclosure(there[way]).lower


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("anew", [ANEW, pytest.param({}, marks=pytest.mark.long)], ids=["few", "more"])
def test_a_handful_computed_anew_overlaps_the_stored(name: str, anew: dict[str, tuple[int, int]]) -> None:
    """Other points at every run: all enclosures of one number overlap, whatever the draw and the grid."""
    draw, reference = random.Random(), TABLES[name].reference
    once = [point for point in STORED[name]["points"] if single(point)]
    often = [point for point in STORED[name]["points"] if not single(point)]
    alone, together = anew.get(name, (5, 3))
    handful = draw.sample(once, min(len(once), alone)) + draw.sample(often, min(len(often), together))
    for point in handful:
        for way in WAYS[:2]:
            if enclosure(point[way]).upper > Decimal("1e-30") or single(point):
                subject = from_json(point["composition"])
                found = reference.delta(subject, point["epsilon"], 20, direction=way, cells=1024)
                assert found.overlaps(enclosure(point[way])), point


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.renyi])
def test_divergences_computed_anew_are_the_stored_ones(name: str) -> None:
    for entry in random.Random().sample(STORED[name]["renyi"], 2):
        event = from_json({"parts": [entry["event"]]}).parts[0][0]
        for way in WAYS[:2]:
            stored = Decimal(entry[way])
            found = TABLES[name].reference.renyi(event, entry["order"], 15, direction=way)
            assert found == stored or abs(found - stored) <= stored * Decimal("1e-13"), entry


def test_the_outcomes_of_given_votes_are_the_stored_ones() -> None:
    for entry in STORED["confident_gnmax"]["votes"]:
        (event, _) = from_json({"parts": [entry["event"]]}).parts[0]
        stored = [Decimal(value) for value in entry["outcomes"]]
        assert isinstance(event, ConfidentGNMax)
        assert abs(sum(stored, Decimal(0)) - 1) < Decimal("1e-18")
        found = votes.outcomes(event, 12)
        assert all(abs(new - old) < old * Decimal("1e-11") for new, old in zip(found, stored, strict=True))
