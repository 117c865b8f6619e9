"""Write the stored table of the sampled Gaussian: `python -m tests.references.make_table OUT.json`.

Every point holds enclosures of δ(ε) by direction, from `dpbench.references.sampled_gaussian` alone; compositions also
an estimate by nested quadrature, which is no proof. Takes nine minutes of one core.
"""

from __future__ import annotations

import datetime
import itertools
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import flint
import mpmath

from dpbench.events import Composition, Event, Gaussian, SampledGaussian, to_json
from dpbench.references._enclosure import Enclosure
from dpbench.references._reference import Curve, Which
from dpbench.references.sampled_gaussian import reference

SCHEMA_VERSION = 1
DIGITS = 30
CELLS = 1 << 17
FINER = {
    (256 / 60000, 0.7, 10547): 1 << 18,
    (0.001, 0.6, 1000): 1 << 19,
    (0.001, 1.0, 60000): 1 << 19,
}  # else 1 to 10 % wide
DIRECTIONS: tuple[Which, ...] = ("remove", "add", "both")
RATES = (1e-7, 1e-3, 0.01, 0.1, 0.5, 0.99, 1.0)
NOISES = (0.3, 1.0, 10.0, 1000.0)
SINGLE_DELTAS = (1e-5, 1e-10, 1e-30)  # taken in turn
FAR = ((1.0, 0.3, 300.0), (0.01, 0.3, 500.0), (0.5, 1.0, 50.0), (1e-7, 1.0, 3.0))  # rate, noise, ε
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
MIXED: tuple[tuple[tuple[Event, int], ...], ...] = (
    ((SampledGaussian(0.02, 1.0), 40), (Gaussian(6.0), 3), (SampledGaussian(0.3, 3.0), 5)),
    ((SampledGaussian(0.01, 1.5), 200), (SampledGaussian(0.01, 1.2), 200), (SampledGaussian(0.01, 1.0), 200)),
)
REPEATED_DELTAS = (1e-2, 1e-5, 1e-10)
ORDERS = (1.5, 2.0, 8.0, 64.0)
RENYI = ((0.01, 1.0), (256 / 60000, 1.3), (0.5, 0.5), (1e-6, 2.0), (0.1, 100.0), (1.0, 3.0))


def _shown(found: Enclosure) -> dict[str, Any]:
    width = found.relative_width
    return {
        "lower": str(found.lower),
        "upper": str(found.upper),
        "relative_width": width if width < 1e300 else None,
        "method": found.method,
    }


def _point(
    composition: Composition, epsilon: float, curve: Curve, cells: int = 0, shared: float = 0.0
) -> dict[str, Any]:
    """One point; `cells` is the curve's, and `shared` the part of the curve's own seconds that falls on it."""
    start = time.perf_counter()
    single = sum(count for _, count in composition.parts) == 1
    point: dict[str, Any] = {"composition": to_json(composition), "epsilon": epsilon}
    for direction in DIRECTIONS:
        point[direction] = _shown(curve.delta(epsilon, DIGITS, direction=direction))
    if not single:
        for direction in DIRECTIONS[:2]:
            found = reference.estimate(composition, epsilon, direction=direction)
            point[direction] |= {"estimate": str(found.value), "estimate_error": found.error}
    point |= {"digits": DIGITS} if single else {"cells": cells}
    point["seconds"] = round(time.perf_counter() - start + shared, 3)
    return point


def _single_points() -> list[dict[str, Any]]:
    points = []
    for (rate, noise), target in zip(itertools.product(RATES, NOISES), itertools.cycle(SINGLE_DELTAS), strict=False):
        event = SampledGaussian(rate, noise)
        composition, curve = Composition(((event, 1),)), reference.curve(event)
        points.append(_point(composition, 0.0, curve))
        middle = float(f"{float(curve.epsilon(target).upper):.6g}")
        if middle > 0:
            points.append(_point(composition, middle, curve))
    for rate, noise, epsilon in FAR:
        event = SampledGaussian(rate, noise)
        points.append(_point(Composition(((event, 1),)), epsilon, reference.curve(event)))
    return points


def _repeated_points() -> list[dict[str, Any]]:
    points = []
    repeated = [(((SampledGaussian(*key[:2]), key[2]),), FINER.get(key, CELLS)) for key in REPEATED]
    for parts, cells in (*repeated, *((parts, CELLS) for parts in MIXED)):
        composition = Composition(parts)
        start = time.perf_counter()
        curve = reference.curve(composition, smallest=min(REPEATED_DELTAS), cells=cells)
        rounded = (float(f"{float(curve.epsilon(target, 3).upper):.3g}") for target in REPEATED_DELTAS)
        wanted = sorted({epsilon for epsilon in rounded if epsilon > 0})
        shared = (time.perf_counter() - start) / max(1, len(wanted))
        points += [_point(composition, epsilon, curve, cells, shared) for epsilon in wanted]
    return points


def _renyi_points() -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    ways: tuple[Which, ...] = DIRECTIONS[:2]
    for (rate, noise), order in itertools.product(RENYI, ORDERS):
        event, start = SampledGaussian(rate, noise), time.perf_counter()
        values = {way: str(reference.renyi(event, order, direction=way)) for way in ways}
        points.append(
            {"event": to_json(Composition(((event, 1),)))["parts"][0], "order": order}
            | values
            | {"digits": 25, "seconds": round(time.perf_counter() - start, 3)}
        )
    return points


def make() -> dict[str, Any]:
    """The whole table as plain data."""
    start = time.perf_counter()
    table = {
        "schema_version": SCHEMA_VERSION,
        "type": "reference_table",
        "event": reference.event,
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "python-flint": flint.__version__,
            "flint": flint.__FLINT_VERSION__,
            "mpmath": mpmath.__version__,
        },
        "points": _single_points() + _repeated_points(),
        "renyi": _renyi_points(),
    }
    return table | {"seconds": round(time.perf_counter() - start, 1)}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.references.make_table OUT.json")
    Path(sys.argv[1]).write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
