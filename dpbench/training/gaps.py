"""Trains the convex runs of specs and measures their optimality gaps: how far each ends above the true optimum.

The gap is F(θ) − min F on the training data, F the mean loss with L2 regularisation (`step/optimum.py`). It is computed
from private data without noise: a diagnostic that no ledger knows of, and no record holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from torch import nn

from dpbench.errors import DpbenchError
from dpbench.plan.planning import Choices, Run, build_mechanism, dataset_source, make_plan, model_builder
from dpbench.plan.runs import Plan
from dpbench.spec.loading import Spec
from dpbench.step import logistic
from dpbench.step.mechanism import acts_at_end
from dpbench.step.optimum import Optimum, Problem
from dpbench.store.records import Store
from dpbench.training.loop import Execution, on_threads, train, usual_threads


@dataclass(frozen=True)
class Gap:
    """The gap of one run, or why there is none.

    `optimum` is the least F, to within `error` and rounding; `radius` the norm to which inputs are clipped in F, None
    where they are not.
    """

    name: str
    label: str
    seed: int
    regularisation: float
    radius: float | None = None
    gap: float | None = None
    optimum: float | None = None
    error: float | None = None
    refusal: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gaps(specs: Sequence[Spec], choices: Choices, store: Store, regularisation: float | None = None) -> Iterator[Gap]:
    """The gap of each chosen run, trained anew. `regularisation` is λ of F; None: the mechanism's own.

    Raises DpbenchError for a model that is no logistic regression, and where there is no λ above 0; ProblemsError like
    `make_plan`.
    """
    plan: Plan = make_plan(specs, store, choices)
    solved: dict[tuple[Any, ...], tuple[Problem, Optimum]] = {}
    asked = {id(run.spec): weight_of(run, regularisation) for run in plan.runs}
    for _, group in groupby(plan.runs, lambda run: id(run.spec)):
        runs = list(group)
        weight = asked[id(runs[0].spec)]
        if runs[0].action == "skip":
            yield from (_line(run, weight, refusal=run.reason) for run in runs)
            continue
        yield from _of_spec(runs, weight, choices, solved)


def weight_of(run: Run, regularisation: float | None) -> float:
    """λ of a run's F. Raises DpbenchError where its model is none, or there is no λ above 0."""
    spec, mechanism = run.spec, build_mechanism(run.spec)
    try:
        logistic.refuse_model(_module(run))
    except DpbenchError as error:
        raise DpbenchError(f"{run.title}: {error}") from error
    found = getattr(mechanism, "regularisation", 0.0) if regularisation is None else regularisation
    if not found > 0:
        raise DpbenchError(
            f"{run.title}: {spec.mechanism.name} has no regularisation, without which the optimum may lie at infinity;"
            " give --regularisation"
        )
    return float(found)


def _of_spec(
    runs: Sequence[Run], weight: float, choices: Choices, solved: dict[tuple[Any, ...], tuple[Problem, Optimum]]
) -> Iterator[Gap]:
    """The gaps of the runs of one spec, which differ in their seeds."""
    first = runs[0]
    source, mechanism = dataset_source(first.spec), build_mechanism(first.spec)
    data = source.load(choices.data)
    linear = next(layer for layer in _module(first).modules() if isinstance(layer, nn.Linear))
    radius = first.clip_norm if acts_at_end(mechanism) else None
    key = (source.name, str(first.spec.dataset.parameters), radius, weight, linear.bias is None)
    if key not in solved:
        bias = linear.bias is not None
        problem = Problem(data.train_inputs, data.train_targets, linear.out_features, weight, radius, bias)
        solved[key] = problem, problem.optimum()
    problem, best = solved[key]
    examples = first.sampling_rate * first.examples * len(runs)
    build = model_builder(first.spec, source)
    with on_threads(usual_threads(first.spec, examples, first.device)):
        for outcome in train(runs, data, mechanism, build, Execution(first.device)):
            if outcome.parameters_P is None:
                yield _line(outcome.run, weight, radius, refusal=outcome.error)
                continue
            gap = problem.gap(outcome.parameters_P.double().numpy())
            yield _line(outcome.run, weight, radius, gap=gap, optimum=best.value, error=best.error)


def _module(run: Run) -> nn.Module:
    return model_builder(run.spec, dataset_source(run.spec))()


def _line(run: Run, weight: float, radius: float | None = None, **found: Any) -> Gap:
    return Gap(run.spec.name, run.spec.label, run.seed, weight, radius, **found)
