"""The settings of Tables 1-4: sampling rate p, noise scale σ, epochs, δ. The paper has T = epochs / p, not rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpbench.events import Composition
from dpbench.judging.papers.mathematics import accounted_curve, enclosed_delta, sampled, true_curve

PAIR = "(1 − p) N(0, σ²) + p N(1, σ²) and N(0, σ²), T times"


@dataclass(frozen=True)
class Row:
    """One private model; `batch` over `records` is p."""

    name: str
    batch: float
    records: int
    sigma: float
    epochs: float
    delta: float

    @property
    def rate(self) -> float:
        """p."""
        return self.batch / self.records

    @property
    def steps(self) -> float:
        """T as the paper has it."""
        return self.epochs * self.records / self.batch

    @property
    def whole_steps(self) -> int:
        """T rounded up: what a training run would do."""
        return math.ceil(self.steps - 1e-9)

    @property
    def releases(self) -> Composition:
        """All steps."""
        return sampled(self.rate, self.sigma, self.whole_steps)

    @property
    def mu(self) -> float:
        """(3.1)."""
        return self.rate * math.sqrt(self.steps * math.expm1(self.sigma**-2))

    def curve(self, by: str) -> Any:
        """δ and ε of the composition itself ("true": T rounded up, `exact`), by "moments", or by (3.1), "gdp_clt"."""
        return true_curve(self.releases) if by == "true" else accounted_curve(by, self.rate, self.sigma, self.steps)

    def delta_at(self, epsilon: float, by: str = "true") -> float:
        """δ at ε."""
        return float(self.curve(by).delta(epsilon).value)

    def epsilon(self, by: str) -> float:
        """ε at the row's δ."""
        return float(self.curve(by).epsilon(self.delta).value)

    def enclosed(self, epsilon: float, digits: int = 4) -> tuple[float, float]:
        """The certified enclosure of the true δ at ε."""
        return enclosed_delta(self.releases, epsilon, digits)


def mnist(sigma: float, epochs: float, name: str = "") -> Row:
    """Training on MNIST with batches of 256 at δ = 1e-5."""
    return Row(name or f"sigma {sigma:g}, {epochs:g} epochs", 256, 60000, sigma, epochs, 1e-5)


_TABLE_1 = ((1.3, 15), (1.1, 60), (0.7, 45), (0.6, 62), (0.55, 68), (0.5, 100))
ROWS = (
    *(mnist(sigma, epochs, f"table 1, row {at}") for at, (sigma, epochs) in enumerate(_TABLE_1, 1)),
    Row("table 2", 256, 29305, 0.55, 18, 1e-5),
    Row("table 3", 512, 25000, 0.56, 9, 1e-5),
    Row("table 4", 1, 80, 0.6, 20, 1e-6),
)
