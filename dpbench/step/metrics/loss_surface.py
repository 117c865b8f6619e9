"""Loss along random directions from trained parameters, normalised by filter (Li et al. 2018, Section 4).

A direction d is standard normal. Each filter of it is scaled to the norm of the same filter of θ:
d_f · ‖θ_f‖ / ‖d_f‖. A filter is what gives one output: the first axis of a parameter of two axes or more. Parameters
of one axis (biases, scales of normalisation) are left where they are, as in the authors' code (its option
`ignore='biasbn'`). The surface is the mean loss at θ + α·d, or at θ + α·d + β·d' for a second direction, and the run's
metric there, such as its accuracy in per cent.

With smoothing (dplis2021, equation (3) and Figure 5) it is the mean of that over K shifted parameters, θ + Δ_j with
Δ_j normal, as DPlis estimates its loss; the same K shifts at every place, which the paper does not say.

The directions and the shifts depend on `seed` alone, so runs of one model are looked at along the same ones.

| paper | here |
| --- | --- |
| K, σ_smooth | smoothing_samples (0: no smoothing), smoothing_deviation |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.step.functional import Network, evaluate
from dpbench.step.metric import Trained, whole
from dpbench.tasks import METRICS

AT_ONCE = 8  # places in one call
MOST_POINTS = 101
OWN_KEY = "loss surface"  # in place of a run's key, so that no run draws the same numbers


@dataclass(frozen=True)
class LossSurface:
    """A `Metric`: the loss, smoothed or not, at `points` values of α from −span to span, along 1 or 2 directions.

    `split` says of which records, the first `records` of training or test.
    Raises DpbenchError for numbers outside their range. Not private.

    >>> LossSurface(directions=1, span=0.8).axis()[0]
    -0.8
    """

    span: float = 1.0
    points: int = 15
    directions: int = 2
    records: int = 1000
    seed: int = 0
    smoothing_samples: int = 0
    smoothing_deviation: float = 0.0
    split: str = "training"

    def __post_init__(self) -> None:
        if isinstance(self.span, bool) or not 0 < self.span < math.inf:
            raise DpbenchError(f"span = {self.span!r}: expected a finite number above 0")
        whole("points", self.points, 3)
        if self.points % 2 == 0 or self.points > MOST_POINTS:
            expected = f"expected an odd number up to {MOST_POINTS}, so that the trained parameters are in the middle"
            raise DpbenchError(f"points = {self.points}: {expected}")
        if self.directions not in (1, 2) or isinstance(self.directions, bool):
            raise DpbenchError(f"directions = {self.directions!r}: expected 1 or 2")
        whole("records", self.records, 1)
        whole("seed", self.seed, 0)
        whole("smoothing_samples", self.smoothing_samples, 0)
        deviation, smoothed = self.smoothing_deviation, self.smoothing_samples > 0
        if isinstance(deviation, bool) or not 0 <= deviation < math.inf or (deviation > 0) != smoothed:
            expected = "expected a finite number above 0 with smoothing_samples of 1 or more, and 0 without"
            raise DpbenchError(f"smoothing_deviation = {deviation!r}: {expected}")

        if self.split not in ("training", "test"):
            raise DpbenchError(f"split = {self.split!r}: expected training or test")

    def axis(self) -> list[float]:
        """The values of α, the middle one 0."""
        half = self.points // 2
        return [self.span * place / half for place in range(-half, half + 1)]

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`surface`; a number that is not finite is None."""
        part, axis = trained.first(self.records, self.split), self.axis()
        ways = [filter_normalised(part.net, part.theta_RP, self.seed, way) for way in range(self.directions)]
        second = axis if self.directions == 2 else [0.0]
        places = [(alpha, beta) for alpha in axis for beta in second]
        at_shifts = [self._found(part, ways, places, shift_RP) for shift_RP in self.shifts(part)]
        found = {}
        for name, several in zip(("losses", "metric"), zip(*at_shifts, strict=True), strict=True):
            means = [sum(values) / len(values) for values in zip(*several, strict=True)]
            shown = [mean if math.isfinite(mean) else None for mean in means]
            rows = [shown[start : start + len(second)] for start in range(0, len(shown), len(second))]
            found[name] = rows if self.directions == 2 else shown
        surface = {"axis": axis, **found, "metric_name": part.net.objective.metric, "split": self.split}
        return {"records": len(part.targets), "surface": surface}

    def shifts(self, part: Trained) -> list[Tensor]:
        """Where the loss is looked at around every place: (1, P) each; the place alone without smoothing."""
        if not self.smoothing_samples:
            return [torch.zeros_like(part.theta_RP)]
        return [
            self.smoothing_deviation * _normal(part.net, part.theta_RP, self.seed, 2 + sample)  # 0, 1: the directions
            for sample in range(self.smoothing_samples)
        ]

    @staticmethod
    def _found(
        part: Trained, ways: list[Tensor], places: list[tuple[float, float]], shift_RP: Tensor
    ) -> tuple[list[float], list[float]]:
        """The mean loss at every place, shifted by so much, and the metric as it is shown."""
        losses: list[float] = []
        measured: list[float] = []
        scale = METRICS[part.net.objective.metric].scale
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            centre_RP = part.theta_RP + shift_RP
            theta_RP = torch.cat([centre_RP + (alpha * ways[0] + beta * ways[-1]) for alpha, beta in some])
            view = _several(part, len(some))
            loss_R, metric_R = evaluate(part.net, theta_RP, part.inputs, part.targets, part.chunk, view)
            losses += loss_R.tolist()
            measured += (scale * metric_R).tolist()
        return losses, measured


def filter_normalised(net: Network, theta_RP: Tensor, seed: int, way: int) -> Tensor:
    """Direction number `way` of a seed, each filter as long as that of the parameters: (1, P)."""
    drawn = net.split(_normal(net, theta_RP, seed, way))
    found = {}
    for name, value in net.split(theta_RP).items():
        if value.dim() < 3:  # a run axis and one more: a bias
            found[name] = torch.zeros_like(value)
            continue
        axes = tuple(range(2, value.dim()))
        longs = [one.square().sum(axes, keepdim=True).sqrt() for one in (value, drawn[name])]
        found[name] = drawn[name] * longs[0] / longs[1]
    return net.join(found)


def _normal(net: Network, theta_RP: Tensor, seed: int, number: int) -> Tensor:
    """Standard normal draw number so much of a seed: (1, P)."""
    keys_RS = randomness.keys(seed, OWN_KEY)[None].to(theta_RP.device)
    step_R = torch.tensor([number], device=theta_RP.device)
    return randomness.normal(keys_RS, randomness.NOISE, step_R, net.size)


def _several(part: Trained, count: int) -> Any:
    """What the network of each of several places gets: the same as that of the one run."""

    def view(inputs: Tensor) -> Tensor | None:
        seen = part.view(inputs)
        return None if seen is None else seen.expand(count, *seen.shape[1:])

    return view


metric = LossSurface
