"""One run in the loop, from its start or from its checkpoint: what is not in tensors, and what a checkpoint must fit.

Letters: R runs of the stack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench import events, randomness
from dpbench.errors import DpbenchError, StoreError
from dpbench.plan.planning import Run
from dpbench.step.functional import Network, initial_parameters
from dpbench.step.mechanism import Hyperparameters, Mechanism, State, acts_at_end, prepared, refuse_changed
from dpbench.store.agreement import metric_disagreement
from dpbench.tasks import METRICS, Objective
from dpbench.training.checkpoints import Place, read_checkpoint, write_checkpoint


@dataclass
class Course:
    """One run in the loop: what is not in tensors."""

    run: Run
    stops: list[int]  # steps after which the run is evaluated; the last is its end
    step: int = 0
    seconds: float = 0.0
    share: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    resumed: bool = False
    drawn: float = 0.0  # since the last evaluation, as `loss` and `clipped`
    loss: float = 0.0
    clipped: float = 0.0
    bad: int = -1  # the first step whose gradient was not finite
    measured: Mapping[str, Any] = field(default_factory=dict)  # facts that the mechanism has counted, at the last point
    engine: str = ""  # the clipping engine, or a rule's way, that training has chosen or was told
    # Places of its batch in one call, and for a stack of how many: where measured, or made fewer for want of memory.
    chunk: tuple[int, int] | None = None
    memory: str = ""  # where it was less for want of memory
    stack: str = ""  # the stack of which it was in a half for want of memory

    @property
    def measured_at(self) -> frozenset[int]:
        """The steps before the end at which the metrics are measured.

        >>> from types import SimpleNamespace
        >>> run = SimpleNamespace(metrics=("sharpness",), metrics_along=3)
        >>> sorted(Course(run, [10, 20, 30, 40, 50, 60, 65]).measured_at)
        [30, 50]
        """
        times = min(self.run.metrics_along, len(self.stops)) if self.run.metrics else 1
        return frozenset(self.stops[math.ceil(len(self.stops) * turn / times) - 1] for turn in range(1, times))


def hyperparameters(runs: Sequence[Run], device: torch.device) -> Hyperparameters:
    """The numbers of the runs of a stack, as tensors (R,)."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return Hyperparameters(
        keys_RS=torch.stack([randomness.keys(run.seed, run.key, run.spec.randomness) for run in runs]).to(device),
        sampling_rate_R=column([run.sampling_rate for run in runs]),
        learning_rate_R=column([run.learning_rate for run in runs]),
        clip_norm_R=column([math.inf if run.clip_norm is None else run.clip_norm for run in runs]),
        noise_multiplier_R=column([run.noise_multiplier or 0.0 for run in runs]),
        steps_R=torch.tensor([run.steps for run in runs], dtype=torch.int64, device=device),
        epsilon_R=column([math.nan if run.spends is None else run.spends[0] for run in runs]),
        delta_R=column([math.nan if run.spends is None else run.spends[1] for run in runs]),
    )


def events_done(mechanism: Mechanism, run: Run, so_far: events.Composition | None) -> int | None:
    """The number of events so far; None if they are not the first ones of the whole run's ledger."""
    if so_far is None:
        return None
    count = sum(number for _, number in so_far.parts)
    if mechanism.spends_budget:  # its ledger consists of the events so far
        return count
    whole = mechanism.ledger(sampling_rate=run.sampling_rate, noise_multiplier=run.noise_multiplier, steps=run.steps)
    return count if whole is not None and whole.prefix(count) == so_far else None


# Checkpoints: one file per run, so that a run can continue in another stack.

_POINT = ("epoch", "step", "releases", "seconds", "train_loss", "clipped_fraction", "test_loss")
_KEPT = ("step", "seconds", "share", "curve", "drawn", "loss", "clipped", "bad")


def _place(run: Run, folder: Path) -> Path | None:
    """The path of a run's checkpoint; None for a run with `randomness: secure`.

    Its random numbers cannot be repeated, so it starts anew after an interruption.
    """
    return None if run.spec.randomness == "secure" else folder / f"{run.key}.pt"


def start(
    course: Course,
    mechanism: Mechanism,
    build: Callable[[], torch.nn.Module],
    folder: Path | None,
    anew: Callable[[Run, str], None],
    inputs: Tensor,
    targets: Tensor,
    aim: Objective,
) -> State:
    """The state of one run (R = 1): its checkpoint where there is a usable one, else its initial parameters."""
    theta_RP = initial_parameters(build, course.run.seed)[None].to(inputs.device)
    hyper = hyperparameters([course.run], inputs.device)
    fresh = mechanism.start(theta_RP, hyper, inputs, targets)
    path = None if folder is None else _place(course.run, folder)
    try:
        kept = None if path is None else read_checkpoint(path, checkpoint_of(course), fresh)
        if kept is not None:
            wrong = next(_disagreements(course, mechanism, hyper, *kept, fresh, len(targets), aim), "")
            if wrong:
                raise DpbenchError(f"{path}: {wrong}")
    except DpbenchError as error:
        anew(course.run, str(error))
        kept = None
    if kept is None:
        return fresh
    facts, state = kept
    for name in _KEPT:
        setattr(course, name, facts[name])
    course.engine, course.memory = facts.get("engine", ""), facts.get("memory", "")
    course.stack = course.stack or facts.get("stack", "")
    course.chunk = None if facts.get("chunk") is None else tuple(facts["chunk"])
    course.resumed = True
    return state


def join(states: list[State], device: torch.device) -> State:
    """One stack of single-run states."""

    def joined(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name].to(device) for part in parts]) for name in parts[0]}

    return State(
        torch.cat([state.theta_RP.to(device) for state in states]),
        joined([state.memory for state in states]),
        torch.cat([state.step_R.to(device) for state in states]),
        joined([state.private for state in states]),
    )


def begun(
    mechanism: Mechanism, net: Network, state: State, inputs: Tensor, targets: Tensor, courses: Sequence[Course]
) -> tuple[State, Mapping[int, str]]:
    """The state of the stack after what the mechanism computes before the first step, and which runs it refuses.

    Its time is time of training.
    """
    begin = time.perf_counter()
    state, refused = prepared(mechanism, net, state, inputs, targets)
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    seconds = time.perf_counter() - begin
    for course in courses:
        course.seconds += seconds
        course.share += seconds / len(courses)
    return state, refused


def _disagreements(
    course: Course,
    mechanism: Mechanism,
    hyper: Hyperparameters,
    facts: Mapping[str, Any],
    state: State,
    fresh: State,
    examples: int,
    aim: Objective,
) -> Iterator[str]:
    """What a checkpoint says otherwise than what can be computed again without training: its writer may be anybody."""
    curve, step = facts["curve"], facts["step"]
    last = curve[-1]["step"] if curve else 0
    drawn, clipped = float(facts["drawn"]), float(facts["clipped"])
    whole = drawn.is_integer() and clipped.is_integer()
    if not (whole and clipped <= drawn <= examples * (step - last)):
        yield f"clipped = {clipped:g}, drawn = {drawn:g}: not those of {step - last} steps"
    if drawn == 0 and facts["loss"] != 0:
        yield f"loss = {facts['loss']:g}: expected 0, since no example was drawn"
    for point in curve:
        yield from filter(None, [_wrong_point(point, course.run, aim), metric_disagreement("its curve", point, aim)])
    try:
        if acts_at_end(mechanism):
            refuse_changed(state, fresh, ("theta",))
        if hasattr(mechanism, "refuse_state"):
            mechanism.refuse_state(state, fresh, hyper, examples)
        mechanism.released(state, hyper)
        own = type(mechanism).__module__.partition(".")[0] == "dpbench"  # the ledger of others may not follow the step
        for point in curve if own else ():
            there = replace(state, step_R=torch.full_like(state.step_R, point["step"]))
            count = events_done(mechanism, course.run, mechanism.released(there, hyper)[0])
            if point["releases"] != count:
                yield f"its curve has {point['releases']} events at step {point['step']}, its mechanism has {count}"
    except DpbenchError as error:
        yield str(error)
    except Exception as error:  # noqa: BLE001 - numbers from a file may be anything
        yield f"its state is none of the mechanism's ({type(error).__name__}: {error})"


def _wrong_point(point: Mapping[str, Any], run: Run, aim: Objective) -> str:
    """What is wrong with an evaluation of a checkpoint's curve, as `loop` writes it; "" where nothing is."""
    expected = {*_POINT, METRICS[aim.metric].field}
    if set(point) - {"metrics"} != expected:
        return f"its curve has {', '.join(sorted(point))}: expected {', '.join(sorted(expected))}"
    losses = [point["test_loss"], 0.0 if point["train_loss"] is None else point["train_loss"]]
    if not all(type(loss) in (int, float) and 0 <= loss < math.inf for loss in losses):
        return f"a loss of its curve at step {point['step']} is no finite number, 0 or more"
    share = point["clipped_fraction"]
    if (share is None) != (point["train_loss"] is None or run.clip_norm is None):
        return f"clipped_fraction = {share!r} of its curve at step {point['step']}: does not fit its train_loss"
    if share is not None and (type(share) not in (int, float) or not 0 <= share <= 1):
        return f"clipped_fraction = {share!r} of its curve: expected a number from 0 to 1"
    return ""


def checkpoint_of(course: Course) -> Place:
    """What a run's checkpoint belongs to."""
    run = course.run
    return Place(run.key, run.sources, run.sampling_rate, course.stops)


def save(courses: list[Course], state: State, folder: Path) -> None:
    """Save the unfinished runs of a stack. Raises StoreError where that cannot be done.

    A run whose gradient was not finite has failed, and says so at its next evaluation: it keeps what it had before.
    One without a step has nothing to keep.
    """
    for at, course in enumerate(courses):
        path = _place(course.run, folder)
        if path is None or course.bad >= 0 or course.step == 0:
            continue
        try:
            facts = {name: getattr(course, name) for name in (*_KEPT, "engine", "chunk", "memory", "stack")}
            write_checkpoint(path, checkpoint_of(course), facts, state.take(slice(at, at + 1)))
        except DpbenchError as error:
            raise StoreError(str(error)) from error
