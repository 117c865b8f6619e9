"""What a plan is made of: runs with every number that they depend on, stacks of them, and the user's choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dpbench.privacy.statement import large_delta
from dpbench.spec.keys import Choice
from dpbench.spec.loading import Spec
from dpbench.store.check_records import SHIPPED
from dpbench.store.shapes import Checked
from dpbench.tasks import CLASSIFICATION, Objective

Action = Literal["train", "exists", "stale", "skip"]


@dataclass(frozen=True)
class Run:
    """One training run: a spec, a seed, and every number that the run depends on.

    `sampling_rate` q, `steps` T, `noise_multiplier` σ relative to `clip_norm` C (None if there is none);
    `epsilon` at the budget's δ (None if it is refused or was not asked for), its kind, the accountant `epsilon_by` that
    calibrated or that the mechanism uses while it runs, its version, and why this one where the spec names none;
    `true_epsilon` by `exact`, where it covers a calibrated run; `spends` is the budget (ε, δ) of a mechanism that
    chooses its noise while it runs, None for the others; `engine` holds the parameters that change no result and are no
    part of the key; `action` and `reason` say what will be done; `estimate` is seconds on `device`, None if unknown;
    `sources` are hashes of the code that is used, {} in a plan that only shows; `checked` is the stored verdict on
    the mechanism's code, None if it is not private; `adjacency` says what neighbours are, None likewise; `data_warning`
    what is wrong with the data, "" for most; `metrics` what is measured at its end, for any spec that shares the run;
    `metrics_along` how often, its end included; `objective` is what it trains and what it is measured by.
    """

    spec: Spec
    seed: int
    key: str
    resolved: Mapping[str, Any]
    examples: int
    sampling_rate: float
    steps: int
    learning_rate: float
    clip_norm: float | None
    noise_multiplier: float | None
    epsilon: float | None
    epsilon_kind: str | None = None
    epsilon_by: str | None = None
    epsilon_version: str | None = None
    epsilon_because: str = ""
    true_epsilon: float | None = None
    spends: tuple[float, float] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    action: Action = "train"
    reason: str = ""
    done: int = 0
    device: str = "cpu"
    estimate: float | None = None
    checked: Checked | None = SHIPPED
    adjacency: str | None = None
    data_warning: str = ""
    metrics: tuple[Choice, ...] = ()
    metrics_along: int = 1
    objective: Objective = CLASSIFICATION

    @property
    def wasted(self) -> float | None:
        """The part of the target ε that calibration left unspent; negative where the true ε exceeds the target.

        None where there is no target, or where `exact` does not cover the run.
        """
        budget = self.spec.budget
        if self.true_epsilon is None or budget is None or budget.epsilon is None:
            return None
        return 1 - self.true_epsilon / budget.epsilon

    @property
    def warning(self) -> str | None:
        """What makes the runs worth little, whatever their ε: a δ of 1/N or more, data that are not prepared."""
        budget = self.spec.budget
        delta = None if budget is None else large_delta(budget.delta, self.examples)
        return "; ".join(filter(None, [delta, self.data_warning])) or None

    @property
    def title(self) -> str:
        """The run's name for people: spec, row or grid point, seed."""
        return " ".join(filter(None, [self.spec.name, self.spec.label and f"[{self.spec.label}]", f"seed {self.seed}"]))


@dataclass(frozen=True)
class Stack:
    """Runs that are trained together: the same dataset, model and mechanism."""

    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        names = list(dict.fromkeys(run.spec.name for run in self.runs))
        return f"{', '.join(names)} ({len(self.runs)} run{'s' if len(self.runs) != 1 else ''})"


@dataclass(frozen=True)
class Plan:
    """Every run of the given specs, in their order, and the stacks of those that will be trained."""

    runs: tuple[Run, ...]
    stacks: tuple[Stack, ...]


@dataclass(frozen=True)
class Choices:
    """The options of the command line; only `seeds` is part of a run's key."""

    only: tuple[str, ...] = ()
    force: bool = False
    stale: bool = False
    smoke: bool = False
    seeds: tuple[int, ...] | int | None = None
    device: str | None = None  # given by hand; overrides `needs: gpu`
    data: Path | None = None
