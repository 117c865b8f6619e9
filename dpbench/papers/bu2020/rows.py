"""The settings of Tables 1-4: sampling rate p, noise scale σ, epochs, δ. The paper has T = epochs / p, not rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpbench.accounting import load_accountant
from dpbench.events import Composition, SampledGaussian


@dataclass(frozen=True)
class Row:
    """One private model; `batch` over `records` is p."""

    name: str
    batch: int
    records: int
    sigma: float
    epochs: int
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
        return -(-self.epochs * self.records // self.batch)

    @property
    def event(self) -> SampledGaussian:
        """One step."""
        return SampledGaussian(self.rate, self.sigma)

    @property
    def mu(self) -> float:
        """(3.1)."""
        return self.rate * math.sqrt(self.steps * math.expm1(self.sigma**-2))


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


@cache
def true_curve(rate: float, sigma: float, steps: int) -> Any:
    """The curve of the composition itself, by `exact`: both directions, the worse one."""
    return load_accountant("exact").curve(Composition(((SampledGaussian(rate, sigma), steps),)))


@cache
def moments_curve(rate: float, sigma: float, steps: float) -> Any:
    """δ_MA and ε_MA: the moments accountant, for a T that need not be whole."""
    accountant: Any = load_accountant("moments")
    return accountant.curve_for(SampledGaussian(rate, sigma), steps)


@cache
def clt_curve(rate: float, sigma: float, steps: float) -> Any:
    """δ_CLT and ε_CLT: (3.1) and (3.2), for a T that need not be whole."""
    accountant: Any = load_accountant("gdp_clt")
    return accountant.curve_for(SampledGaussian(rate, sigma), steps)
