"""The exact accountant: ε per regime of the certified table, whole curves, unlike releases, calibration, import."""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
import time
from typing import Any

from . import imported
from .accountants import DELTA, accountant, training
from .accuracy import EVERY, points

timer = time.process_time  # on one thread: what else the machine does counts less

REGIMES = (
    *("ordinary", "million_steps", "tiny_rate", "large_rate", "little_noise", "much_noise", "tiny_delta"),
    *("epsilon_near_zero", "large_epsilon", "sparse_hits", "crossover", "unlike_releases", "few_steps"),
)
LEAST, MOST = 1e-31, 0.99  # δ at which ε is asked for


@functools.cache
def questions(regime: str, every: int = EVERY) -> list[tuple[Any, float]]:
    """Compositions and δ of one regime, of one stored point in so many."""
    events = imported("events")
    return [
        (events.from_json(point["composition"]), min(float(point["upper"]), MOST))
        for point in points(every)
        if point["regime"] == regime and float(point["upper"]) > LEAST
    ]


def seconds(asked: Any, composition: Any, delta: float) -> float:
    """Processor time of one ε on a new curve, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = timer()
        asked.curve(composition).epsilon(delta)
        best = min(best, timer() - start)
    return best


class Regime:
    """One ε, both directions, on a new curve: the median and the worst over the stored points of a regime."""

    params = (REGIMES,)
    param_names = ("regime",)
    timeout = 300

    def setup(self, regime: str) -> None:
        self.work = questions(regime)
        self.asked = accountant("exact", self.work[0][0])
        self.asked.curve(training(1.3)).epsilon(DELTA)

    def track_median(self, regime: str) -> float:
        del regime  # `setup` has made its questions
        return statistics.median(seconds(self.asked, *question) for question in self.work)

    def track_worst(self, regime: str) -> float:
        del regime
        return max(seconds(self.asked, *question) for question in self.work)

    track_median.unit = track_worst.unit = "seconds"  # type: ignore[attr-defined]


class Curve:
    """δ at 200 ε of one training, on a new curve."""

    def setup(self) -> None:
        self.asked = accountant("exact", training(1.3))
        self.epsilons = [1.73 * place / 199 for place in range(200)]
        if not hasattr(self.asked.curve(training(1.3)), "deltas"):
            raise NotImplementedError("no whole curves in this commit")

    def time_two_hundred_points(self) -> None:
        self.asked.curve(training(1.3)).deltas(self.epsilons)


class Curves:
    """δ at 200 ε up to twice that of a stored point, on a new curve: median and worst of all points of a regime."""

    params = (REGIMES,)
    param_names = ("regime",)
    timeout = 300
    unit = "seconds"

    def setup(self, regime: str) -> None:
        work = questions(regime, 1)
        self.asked = accountant("exact", work[0][0])
        if not hasattr(self.asked.curve(training(1.3)), "deltas"):
            raise NotImplementedError("no whole curves in this commit")
        self.work = []
        for composition, delta in work:
            try:
                top = 2 * self.asked.curve(composition).epsilon(delta).value
            except imported("errors").DpbenchError:  # a refusal at this δ, and no curve to ask for
                continue
            self.work.append((composition, [top * place / 199 for place in range(200)]))

    def track_two_hundred_points(self, regime: str) -> float:
        del regime  # `setup` has made its questions
        return statistics.median(self._seconds(*question) for question in self.work)

    def track_worst_two_hundred_points(self, regime: str) -> float:
        del regime
        return max(self._seconds(*question) for question in self.work)

    def _seconds(self, composition: Any, epsilons: list[float]) -> float:
        best = float("inf")
        for _ in range(3):
            start = timer()
            curve = self.asked.curve(composition)
            found = curve.deltas(epsilons) if hasattr(curve, "deltas") else [curve.delta(one) for one in epsilons]
            best = min(best, timer() - start)
            assert len(found) == len(epsilons)
        return best


class Unlike:
    """ε of 400 releases that all differ, at a small and at a large sampling rate, on a new curve."""

    params = ([256 / 60000, 0.1],)
    param_names = ("sampling_rate",)

    def setup(self, rate: float) -> None:
        events = imported("events")
        self.work = events.Composition(
            tuple((events.SampledGaussian(rate, 0.5 + 1.5 * step / 399), 1) for step in range(400))
        )
        self.asked = accountant("exact", self.work)

    def time_four_hundred(self, rate: float) -> None:
        del rate  # `setup` has used it
        self.asked.curve(self.work).epsilon(DELTA)


class Import:
    """What a person waits for before the first ε: `timeraw` would count Python's own start too."""

    def track_import(self) -> float:
        """Seconds to import the accounting part and its exact accountant, without torch, the best of three."""
        imported("catalog")
        accounting = imported("privacy.accounting").__name__
        program = (
            "import time, sys; start = time.perf_counter();"
            f"import {accounting}, dpbench.catalog; dpbench.catalog.find('accountants', 'exact').load();"
            "print(time.perf_counter() - start); assert 'torch' not in sys.modules"
        )
        command = [sys.executable, "-c", program]
        return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3))

    track_import.unit = "seconds"  # type: ignore[attr-defined]
