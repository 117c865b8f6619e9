"""Write the table of certified points: `python -m tests.references.make_certified OUT.json [SECONDS]`.

Every point is a composition, an ε and a proven enclosure of δ(ε) from `dpbench.privacy.certified`, with the regime it
stands for and the error that the exact accountant is allowed there. Where to look (which ε) that accountant says;
what stands there is not. Takes about SECONDS (default 1500) of one core at most: the regimes take turns.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import platform
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flint

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, SampledGaussian, to_json
from dpbench.privacy.accountants.exact.accountant import accountant
from dpbench.privacy.certified import certify_many

SCHEMA_VERSION = 1
DIGITS = 12
WIDEST = 1e-10  # relative: a wider enclosure says too little about an accountant of nine digits
MEMORY = 4 << 30  # bytes
PATIENCE = 12  # seconds for one composition; a harder one is left out
DELTAS = (1e-3, 1e-5, 1e-8, 1e-12)
Setting = tuple[float, float, int]


def budget(value: float) -> float:
    """The error that an exact answer may have: 1e-9 relative, 1e-12 absolute at the least."""
    return max(1e-9 * value, 1e-12)


def between(source: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform, of three digits."""
    return float(f"{math.exp(source.uniform(math.log(low), math.log(high))):.3g}")


def settings(regime: str, source: random.Random) -> tuple[Setting, ...]:
    """Sampling rate, noise multiplier and count of every part of one composition of the regime."""

    def one(rates: tuple[float, float], noises: tuple[float, float], counts: tuple[float, float]) -> Setting:
        return between(source, *rates), between(source, *noises), max(1, round(between(source, *counts)))

    if regime == "million_steps":
        return ((between(source, 1e-5, 1e-2), between(source, 0.5, 10.0), 10**6),)
    if regime == "tiny_rate":
        return (one((1e-7, 1e-5), (0.3, 1.0), (1e6, 1e7)),)
    if regime == "large_rate":
        return (one((0.3, 0.999), (2.0, 50.0), (3, 1e3)),)
    if regime == "little_noise":
        return (one((1e-3, 0.3), (0.3, 0.5), (3, 300)),)
    if regime == "much_noise":
        return (one((1e-2, 1.0), (50.0, 1000.0), (100, 1e6)),)
    if regime == "large_epsilon":
        return (one((0.01, 0.2), (0.4, 1.0), (1e3, 2e4)),)
    if regime == "sparse_hits":
        rate = between(source, 1e-5, 1e-2)
        return ((rate, between(source, 0.35, 0.8), max(2, round(between(source, 0.2, 5.0) / rate))),)
    if regime == "few_steps":
        return (one((1e-3, 0.5), (0.5, 3.0), (2, 30)),)
    if regime == "unlike_releases":
        return tuple(one((1e-3, 0.3), (0.8, 8.0), (10, 500)) for _ in range(source.randint(2, 5)))
    return (one((1e-3, 0.05), (0.6, 3.0), (300, 3e4)),)


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
    "few_steps",
    "crossover",
    "unlike_releases",
)


def composition_of(parts: tuple[Setting, ...], source: random.Random) -> Composition:
    """The mechanisms; unlike ones have a plain Gaussian among them now and then."""
    listed: list[Any] = [(SampledGaussian(rate, noise), count) for rate, noise, count in parts]
    if len(parts) > 1 and source.random() < 0.3:
        listed.append((Gaussian(between(source, 5.0, 30.0)), 2))
    return Composition(tuple(listed))


def places(regime: str, composition: Composition) -> list[float]:
    """Where to look: ε of a few δ, or next to 0, or where add and remove are nearly alike."""
    if regime in ("epsilon_near_zero", "crossover"):
        spread = accountant.curve(composition).epsilon(0.05).value
        return [0.0, float(f"{0.1 * spread:.3g}"), float(f"{0.6 * spread:.3g}")]
    targets = (1e-20, 1e-25, 1e-30) if regime == "tiny_delta" else DELTAS
    found = (accountant.curve(composition).epsilon(target).value for target in targets)
    return sorted({float(f"{epsilon:.4g}") for epsilon in found if epsilon > 0})


def points(seconds: float) -> Iterator[dict[str, Any]]:
    """Points of all regimes in turn, until the time is over."""
    start = time.perf_counter()
    for number, regime in ((number, regime) for number in itertools.count() for regime in REGIMES):
        source = random.Random(f"{regime} {number}")
        composition = composition_of(settings(regime, source), source)
        began = time.perf_counter()
        signal.alarm(PATIENCE)
        try:
            where = places(regime, composition)
            found = certify_many(composition, epsilons=where, digits=DIGITS)
        except (DpbenchError, ArithmeticError, TimeoutError, MemoryError) as error:
            print(f"{regime} {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        finally:
            signal.alarm(0)
        took = (time.perf_counter() - began) / max(1, len(where))
        for epsilon, certificate in zip(where, found, strict=True):
            lower, upper = float(certificate.lower), float(certificate.upper)
            if upper - lower > max(WIDEST * upper, 1e-14):
                continue
            yield {
                "regime": regime,
                "composition": to_json(composition),
                "epsilon": epsilon,
                "lower": str(certificate.lower),
                "upper": str(certificate.upper),
                "direction": certificate.direction,
                "budget": budget(upper),
                "seconds": round(took, 3),
            }
        if time.perf_counter() - start > seconds:
            return


def give_up(_number: int, _frame: object) -> None:
    """What the alarm does."""
    raise TimeoutError(f"more than {PATIENCE} s")


def make(seconds: float) -> dict[str, Any]:
    """The whole table as plain data."""
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, give_up)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return {
        "schema_version": SCHEMA_VERSION,
        "type": "reference_table",
        "event": "SampledGaussian",
        "source": "dpbench.privacy.certified",
        "digits": DIGITS,
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "python-flint": flint.__version__,
            "flint": flint.__FLINT_VERSION__,
        },
        "points": list(points(seconds)),
        "seconds": round(time.perf_counter() - start, 1),
    }


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m tests.references.make_certified OUT.json [SECONDS]")
    table = make(float(sys.argv[2]) if len(sys.argv) == 3 else 1500.0)
    Path(sys.argv[1]).write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
