"""What a line of `_contour` is for, how it is laid, and the nodes that were summed on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpbench.accountants._ladder import Ladder
from dpbench.accountants._loss_leaf import Complex, Floats

PRECISION = math.log(1e-12)  # of aliases and truncation, relative to δ


@dataclass(frozen=True)
class Aim:
    """The ε that lines shall serve, one or the ends of a range, and log δ there, to which errors are relative.

    `slack` is how much lower log δ may be between the ends than on a straight line, `sharp` another precision
    than the usual one.
    """

    epsilons: tuple[float, ...]
    log_deltas: tuple[float, ...] | None = None
    slack: float = 0.0
    sharp: float | None = None

    @property
    def precision(self) -> float:
        """log of what aliases and truncation may be, relative to δ on the straight line."""
        return (PRECISION if self.sharp is None else self.sharp) - self.slack

    def level(self, real: float) -> float:
        """What the rest of a line may be, without e^(−cε), so that it is negligible at every ε."""
        assert self.log_deltas is not None
        both = zip(self.epsilons, self.log_deltas, strict=True)
        return self.precision + min(log_delta + real * epsilon for epsilon, log_delta in both)

    @property
    def mirrored(self) -> Aim:
        """The same for an integral at −ε that is to be multiplied by e^ε."""
        assert self.log_deltas is not None
        both = zip(self.epsilons, self.log_deltas, strict=True)
        return Aim(
            tuple(-epsilon for epsilon in self.epsilons), tuple(log_delta - epsilon for epsilon, log_delta in both)
        )


@dataclass(frozen=True)
class Plan:
    """A line: its real part c, τ = 2π/h, about how many nodes it takes, and the bounds that τ rests on."""

    real: float
    period: float
    nodes: float
    aim: Aim
    log_lost: float
    ladder: Ladder


@dataclass(frozen=True)
class Sums:
    """The nodes of one line: z, log M there and its error; weights hold h/2π and the factor 2 of pairs."""

    z: Complex
    log_moment: Complex
    error: Floats
    weight: Floats
    rest: float  # log of max |M| over the last nodes, over π U
