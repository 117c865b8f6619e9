"""Loss along random directions from trained parameters, normalised by filter (Li et al. 2018, Section 4).

A direction d is standard normal. Each filter of it is scaled to the norm of the same filter of θ:
d_f · ‖θ_f‖ / ‖d_f‖. A filter is what gives one output: the first axis of a parameter of two axes or more. Parameters
of one axis (biases, scales of normalisation) are left where they are, as in the authors' code (its option
`ignore='biasbn'`). The surface is the mean training loss at θ + α·d, or at θ + α·d + β·d' for a second direction.

The directions depend on `seed` alone, so runs of one model are looked at along the same ones.
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

AT_ONCE = 8  # places in one call
MOST_POINTS = 101
OWN_KEY = "loss surface"  # in place of a run's key, so that no run draws the same numbers


@dataclass(frozen=True)
class LossSurface:
    """A `Metric`: the loss at `points` values of α from −span to span, along 1 or 2 directions.

    Raises DpbenchError for numbers outside their range. Not private.

    >>> LossSurface(directions=1, span=0.8).axis()[0]
    -0.8
    """

    span: float = 1.0
    points: int = 15
    directions: int = 2
    records: int = 1000
    seed: int = 0

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

    def axis(self) -> list[float]:
        """The values of α, the middle one 0."""
        half = self.points // 2
        return [self.span * place / half for place in range(-half, half + 1)]

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`surface`; a loss that is not finite is None."""
        part, axis = trained.first(self.records), self.axis()
        ways = [filter_normalised(part.net, part.theta_RP, self.seed, way) for way in range(self.directions)]
        second = axis if self.directions == 2 else [0.0]
        places = [(alpha, beta) for alpha in axis for beta in second]
        losses: list[float | None] = []
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            shifts = [alpha * ways[0] + beta * ways[-1] for alpha, beta in some]
            theta_RP = torch.cat([part.theta_RP + shift for shift in shifts])
            found_R, _ = evaluate(part.net, theta_RP, part.inputs, part.targets, part.chunk, _several(part, len(some)))
            losses += [loss if math.isfinite(loss) else None for loss in found_R.tolist()]
        rows = [losses[start : start + len(second)] for start in range(0, len(losses), len(second))]
        surface = {"axis": axis, "losses": rows if self.directions == 2 else losses}
        return {"records": len(part.targets), "surface": surface}


def filter_normalised(net: Network, theta_RP: Tensor, seed: int, way: int) -> Tensor:
    """Direction number `way` of a seed, each filter as long as that of the parameters: (1, P)."""
    keys_RS = randomness.keys(seed, OWN_KEY)[None].to(theta_RP.device)
    step_R = torch.tensor([way], device=theta_RP.device)
    drawn = net.split(randomness.normal(keys_RS, randomness.NOISE, step_R, net.size))
    found = {}
    for name, value in net.split(theta_RP).items():
        if value.dim() < 3:  # a run axis and one more: a bias
            found[name] = torch.zeros_like(value)
            continue
        axes = tuple(range(2, value.dim()))
        longs = [one.square().sum(axes, keepdim=True).sqrt() for one in (value, drawn[name])]
        found[name] = drawn[name] * longs[0] / longs[1]
    return net.join(found)


def _several(part: Trained, count: int) -> Any:
    """What the network of each of several places gets: the same as that of the one run."""

    def view(inputs: Tensor) -> Tensor | None:
        seen = part.view(inputs)
        return None if seen is None else seen.expand(count, *seen.shape[1:])

    return view


metric = LossSurface
