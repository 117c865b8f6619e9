"""The settings of Tables 1-4: sampling rate p, noise scale σ, epochs, δ. The paper has T = epochs / p, not rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpbench.events import Composition, SampledGaussian
from dpbench.papers.mathematics import accounted_curve, enclosed_delta, true_curve


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
    def event(self) -> SampledGaussian:
        """One step."""
        return SampledGaussian(self.rate, self.sigma)

    @property
    def releases(self) -> Composition:
        """All steps."""
        return Composition(((self.event, self.whole_steps),))

    @property
    def mu(self) -> float:
        """(3.1)."""
        return self.rate * math.sqrt(self.steps * math.expm1(self.sigma**-2))

    @property
    def true(self) -> Any:
        """The curve of the composition itself, T rounded up, by `exact`."""
        return true_curve(self.releases)

    @property
    def moments(self) -> Any:
        """δ_MA and ε_MA."""
        return accounted_curve("moments", self.event, self.steps)

    @property
    def clt(self) -> Any:
        """δ_CLT and ε_CLT: (3.1) and (3.2)."""
        return accounted_curve("gdp_clt", self.event, self.steps)

    def epsilon(self, by: str) -> float:
        """ε at the row's δ by "true", "moments" or "clt"."""
        return float(getattr(self, by).epsilon(self.delta).value)

    def enclosed(self, epsilon: float, digits: int = 4) -> tuple[float, float]:
        """The certified enclosure of the true δ at ε."""
        return enclosed_delta(self.releases, epsilon, digits)


ROWS = (
    Row("table 1, row 1", 256, 60000, 1.3, 15, 1e-5),
    Row("table 1, row 2", 256, 60000, 1.1, 60, 1e-5),
    Row("table 1, row 3", 256, 60000, 0.7, 45, 1e-5),
    Row("table 1, row 4", 256, 60000, 0.6, 62, 1e-5),
    Row("table 1, row 5", 256, 60000, 0.55, 68, 1e-5),
    Row("table 1, row 6", 256, 60000, 0.5, 100, 1e-5),
    Row("table 2", 256, 29305, 0.55, 18, 1e-5),
    Row("table 3", 512, 25000, 0.56, 9, 1e-5),
    Row("table 4", 1, 80, 0.6, 20, 1e-6),
)


def mnist(sigma: float, epochs: float) -> Row:
    """Training on MNIST with batches of 256 at δ = 1e-5, as in Table 1."""
    return Row(f"sigma {sigma:g}, {epochs:g} epochs", 256, 60000, sigma, epochs, 1e-5)
