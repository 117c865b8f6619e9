"""Write a stored table: `python -m tests.references.make_table NAME OUT.json [OLD.json]`, NAME one of `points.TABLES`.

Every point holds enclosures of δ(ε) by direction, from the references alone, the regime it belongs to and the error
that the fast exact accountant is allowed there; compositions of sampled Gaussians also an estimate by nested
quadrature, which is no proof. Points of OLD with the same composition, ε and cells are taken over with their seconds.
Each table holds how long it took; all of them take about twenty minutes of one core, the sampled Gaussian half of it.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flint
import mpmath

from dpbench.events import Composition, ConfidentGNMax, to_json
from dpbench.references.sampled_gaussian import reference as sampled
from tests.references import votes
from tests.references.nested import estimate as estimated
from tests.references.points import TABLES, Entry, Table, budget, regime

SCHEMA_VERSION = 2
DIGITS = 30
DIRECTIONS: tuple[Any, ...] = ("remove", "add", "both")


def _shown(found: Any) -> dict[str, Any]:
    width = found.relative_width
    return {
        "lower": str(found.lower),
        "upper": str(found.upper),
        "relative_width": width if width < 1e300 else None,
        "method": found.method,
    }


def _points(table: Table, entry: Entry) -> list[dict[str, Any]]:
    """One composition's points; the curve's own seconds are shared out."""
    start = time.perf_counter()
    composition = Composition(entry.parts)
    single = sum(count for _, count in entry.parts) == 1
    curve: Any = table.reference.curve(composition, **({} if single else {"cells": entry.cells, **entry.options}))
    wanted = set(entry.epsilons)
    for target in entry.deltas:
        digits = entry.digits or (6 if single else 3)
        rounded = float(f"{float(curve.epsilon(target, digits).upper):.{digits}g}")
        wanted |= {rounded} if rounded > 0 else set()
    shared = (time.perf_counter() - start) / max(1, len(wanted))
    points = []
    for epsilon in sorted(wanted):
        start = time.perf_counter()
        point: dict[str, Any] = {"composition": to_json(composition), "epsilon": epsilon}
        found = {way: curve.delta(epsilon, DIGITS, direction=way) for way in DIRECTIONS}
        point |= {way: _shown(found[way]) for way in DIRECTIONS}
        if table.reference is sampled and not single:
            for way in DIRECTIONS[:2]:
                value = estimated(sampled, composition, epsilon, direction=way)
                point[way] |= {"estimate": str(value.value), "estimate_error": value.error}
        point |= {"digits": DIGITS} if single else {"cells": entry.cells}
        point["seconds"] = round(time.perf_counter() - start + shared, 3)
        points.append(_judged(point))
    return points


def _judged(point: dict[str, Any]) -> dict[str, Any]:
    return point | {"regime": regime(point), "budget": budget(point)}


def _kept(old: Sequence[dict[str, Any]], entry: Entry) -> list[dict[str, Any]]:
    """The old points of this entry, if there are as many as it asks for, made with as many cells; else none."""
    composition = to_json(Composition(entry.parts))
    found = [_judged(point) for point in old if point["composition"] == composition]
    same = all(point.get("cells", entry.cells) == entry.cells for point in found)
    if entry.deltas:
        return found if same and len(found) >= len(entry.epsilons) + 1 else []
    listed = [point for point in found if point["epsilon"] in entry.epsilons]
    return listed if same and len(listed) == len(entry.epsilons) else []


def _renyi(table: Table) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    for event, orders in table.renyi:
        for order in orders:
            start = time.perf_counter()
            values = {way: str(table.reference.renyi(event, order, 20, direction=way)) for way in DIRECTIONS[:2]}
            points.append(
                {"event": to_json(Composition(((event, 1),)))["parts"][0], "order": order}
                | values
                | {"digits": 20, "seconds": round(time.perf_counter() - start, 3)}
            )
    return points


def _votes(events: Sequence[ConfidentGNMax]) -> list[dict[str, Any]]:
    """The outcomes' probabilities, and the divergences from the worst neighbour, of queries whose votes are given."""
    points: list[dict[str, Any]] = []
    for event in events:
        start = time.perf_counter()
        found = [str(value) for value in votes.outcomes(event, 20)]
        worst = {str(order): str(votes.divergence(event, order, 15)) for order in (2, 8, 32)}
        points.append(
            {"event": to_json(Composition(((event, 1),)))["parts"][0], "outcomes": found, "divergence": worst}
            | {"digits": 15, "seconds": round(time.perf_counter() - start, 3)}
        )
    return points


def make(name: str, old: dict[str, Any] | None = None) -> dict[str, Any]:
    """The whole table as plain data."""
    table = TABLES[name]
    points: list[dict[str, Any]] = []
    known: set[tuple[str, float]] = set()
    for entry in table.entries:
        found = (_kept(old["points"], entry) if old else []) or _points(table, entry)
        for point in found:
            key = (json.dumps(point["composition"]), point["epsilon"])
            if key not in known:
                known.add(key)
                points.append(point)
    made: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "type": "reference_table",
        "reference": name,
        "event": table.reference.event,
        "generator": "tests/references/make_table.py",
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "python-flint": flint.__version__,
            "flint": flint.__FLINT_VERSION__,
            "mpmath": mpmath.__version__,
        },
        "points": points,
        "renyi": old["renyi"] if old and old["renyi"] else _renyi(table),
    }
    if table.votes:
        made["votes"] = _votes(table.votes)
    seconds = sum(point["seconds"] for key in ("points", "renyi", "votes") for point in made.get(key, []))
    return made | {"seconds": round(seconds, 1)}


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in TABLES:
        sys.exit(
            f"usage: python -m tests.references.make_table NAME OUT.json [OLD.json], NAME one of {', '.join(TABLES)}"
        )
    before = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")) if len(sys.argv) == 4 else None
    text = json.dumps(make(sys.argv[1], before), indent=1, ensure_ascii=False)
    Path(sys.argv[2]).write_text(text + "\n", encoding="utf-8")
