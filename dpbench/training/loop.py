"""The training loop: trains a stack of runs as one tensor program and yields one outcome per run.

Nothing in this file changes what a run computes: the arithmetic is in `step/` and the clipping engines. Here are the
order of the steps, timing, evaluation, checkpoints, failures and interruption.
Letters: R runs of the stack, P parameters.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench import events, randomness
from dpbench.catalog import build as build_one
from dpbench.datasets import Dataset
from dpbench.errors import DpbenchError, OutOfMemory, lacks_memory, visible
from dpbench.plan.cache import Cache
from dpbench.plan.planning import Run
from dpbench.plan.probe import refuse_model
from dpbench.step.functional import Network, evaluate, finite_runs, network, trained
from dpbench.step.mechanism import (
    Hyperparameters,
    Mechanism,
    State,
    acts_at_end,
    evaluated,
    public_examples,
    step,
    with_public,
)
from dpbench.step.metric import Metric, Trained
from dpbench.step.stages import most_groups, most_places
from dpbench.store.check_records import described
from dpbench.store.run_key import COMPILED, COMPILED_DRAWS
from dpbench.tasks import METRICS, objective
from dpbench.training.courses import Course, begun, events_done, hyperparameters, join, save, start
from dpbench.training.execution import Execution, keep_freed_memory
from dpbench.training.fastest import ENGINES, chunks, compile_draws, expected_places, with_engine
from dpbench.training.memory import noted, smaller

# Examples times runs of one call of the evaluation: what caches hold of a CPU, a GPU sends few operators.
EVALUATION_PLACES, EVALUATION_PLACES_OF_A_GPU = 500, 1 << 13
MAX_CURVE_POINTS = 100
AHEAD = 64  # steps whose places are computed at once where a step must not wait for the size of its batch
NEVER_WAIT = ("cuda", "meta")  # devices that work while the next operators are sent to them
SMOKE_EXAMPLES = 100  # a smoke test evaluates on no more than these
FEW_COLUMNS = 16  # of a record, up to which each is looked at


@dataclass(frozen=True)
class Progress:
    """Progress of the loop: the steps done by all runs of the stack together, and their total.

    `engine` sums the gradients, or is the way of a rule that does; "" where there is one way. `chunk` places of each
    run's batch are in one call.
    """

    done: int
    total: int
    live: int
    engine: str = ""
    chunk: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How one run ended: `result` (curve, seconds, ...) or `error`; exactly one of them is set.

    `parameters_P` are the last parameters of a run with a result, for diagnostics and `last_weights`. `engine` summed
    the gradients, or is the way of a rule that did, "" where there is one way; `tried`: seconds of a sum of the stack
    by each that was measured, or why torch cannot compile it; `chunk` places of each run's batch were in one call at
    the end. `memory` says where they had to become fewer, `stack` that a stack had to be halved.
    """

    run: Run
    result: Mapping[str, Any] | None = None
    error: str | None = None
    traceback: str = ""
    step: int | None = None
    parameters_P: Tensor | None = None
    engine: str = ""
    tried: Mapping[str, float | str] = field(default_factory=dict)
    chunk: int | None = None
    memory: str = ""
    stack: str = ""


class Interrupted(DpbenchError):
    """Training was interrupted; checkpoints are written."""


def evaluation_steps(sampling_rate: float, steps: int, most: int = MAX_CURVE_POINTS) -> list[int]:
    """The steps that end an epoch (1/q steps each, rounded up) and the last step; thinned to about `most`.

    >>> evaluation_steps(0.25, 10)
    [4, 8, 10]
    """
    epochs = int(round(steps * sampling_rate, 9))
    every = max(1, math.ceil(epochs / most))
    ends = {min(steps, math.ceil(round(e / sampling_rate, 9))) for e in range(every, epochs + 1, every)}
    return sorted(ends | {steps})


def train(
    runs: Sequence[Run],
    data: Dataset,
    mechanism: Mechanism,
    build: Callable[[], torch.nn.Module],
    execution: Execution,
    *,
    checkpoints: Path | None = None,
    smoke: bool = False,
    at_the_end: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
    anew: Callable[[Run, str], None] = lambda _run, _why: None,
    stop: Callable[[], bool] = lambda: False,
    cache: Cache | None = None,
    stack: str = "",
) -> Iterator[Outcome]:
    """Train the runs of one stack; yields each outcome as soon as its run ends.

    `smoke` does two steps of each run and no checkpoint; `at_the_end` evaluates there alone, not as epochs end.
    The caller removes a run's checkpoint after storing its
    outcome; `anew` is told of a run whose checkpoint cannot be used, and why. `cache` remembers which clipping engine
    or way was the fastest; `stack` says of which stack this one is a half. Raises Interrupted when `stop` becomes true,
    with every unfinished run saved under `checkpoints`; OutOfMemory if a step finds too little memory for one place of
    each run, with every run saved where that is possible; DpbenchError if the model or the mechanism cannot be built. A
    lack of memory elsewhere is raised as it is (`memory.told_of_memory`).
    """
    device = torch.device(execution.device)
    if device.type == "cpu":
        keep_freed_memory()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    spec = runs[0].spec
    aim = objective(data.task, spec.loss, spec.metric)
    refuse_model(build, tuple(data.test_inputs.shape[1:]), aim.outputs(data.classes), inputs=data.test_inputs)
    classes = data.test_targets[: public_examples(mechanism)].to(device)  # of the public records
    data, mechanism = _without_public(data, mechanism, device)
    net = network(build(), device, aim)
    _refuse_extremes(net, data.test_inputs)
    inputs, targets = data.train_inputs.to(device), data.train_targets.to(device)
    shown = SMOKE_EXAMPLES if smoke else None
    test = data.test_inputs[:shown].to(device), data.test_targets[:shown].to(device)

    def stops(run: Run) -> list[int]:
        if smoke:
            return [min(2, run.steps)]
        # Before the end of such a mechanism there are only the initial parameters.
        return [run.steps] if at_the_end or acts_at_end(mechanism) else evaluation_steps(run.sampling_rate, run.steps)

    courses = [Course(run, stops(run), stack=stack) for run in runs]
    folder = None if smoke else checkpoints
    starts = (start(course, mechanism, build, folder, anew, inputs, targets, aim) for course in courses)
    state, hyper = join(list(starts), device), hyperparameters(runs, device)
    state, refused = begun(mechanism, net, state, inputs, targets, courses)
    one = data.test_inputs[0].to(device), data.test_targets[0].to(device)
    compiles_draws = execution.compiles and not smoke and device.type == "cpu"  # first: a trial may draw
    not_drawn = compile_draws(mechanism, net.size, runs) if compiles_draws else ""
    mechanism, chosen = with_engine(mechanism, courses, net, state.theta_RP, execution, smoke, one, cache or Cache())
    tried = {**chosen.seconds, **({COMPILED_DRAWS: not_drawn} if not_drawn else {})}
    summing = getattr(mechanism, "engine", None) or getattr(mechanism, "rule", None)
    at_most = chunks(execution, runs, mechanism, net, one)(summing)
    chunk = at_most if chosen.chunk is None else min(at_most, chosen.chunk)
    lacked = any(f" on, {chunk} places" in course.memory for course in courses)
    for course in courses:
        course.memory = noted(course.memory, course.step, chunk if lacked else None)
    total, saved = sum(course.stops[-1] for course in courses), time.monotonic()
    # Drawn, loss and clipped of each run since its last evaluation; checkpoints do not round them in between.
    sums_3R = torch.tensor([[c.drawn, c.loss, c.clipped] for c in courses], dtype=torch.float64, device=device).T
    bad_R = torch.tensor([course.bad for course in courses], dtype=torch.int64, device=device)
    kept = _versions(net, inputs, targets, *test)
    keeps = checkpoints is not None and not smoke
    # By place in the stack: the step at which a run had to stop, and its error.
    stopped = {at: (0, f"before training: {why}") for at, why in refused.items()}
    begin, overdue, counted = time.perf_counter(), False, 0
    lack: OutOfMemory | None = None

    def several(
        state: State, sums_3R: Tensor, bad_R: Tensor, stacks: Sequence[Hyperparameters], again: bool = False
    ) -> tuple[State, Tensor, Tensor, int]:
        """A step with each of these until there is a reason to stop, and how many; `again`: a due checkpoint waits."""
        nonlocal chunk, overdue, counted, lack
        done = 0
        for known in stacks:
            before_R = state.step_R
            while True:
                try:
                    state, seen = step(mechanism, net, state, known, inputs, targets, chunk)
                    break
                except (MemoryError, RuntimeError) as error:  # a step writes into nothing that it is given
                    try:
                        chunk = _fewer(chunk, error, courses, runs)
                    except OutOfMemory as found:
                        lack = found
                        return state, sums_3R, bad_R, done
            sums_3R = sums_3R + torch.stack([seen.drawn_R, seen.loss_R, seen.clipped_R])
            bad_R = torch.where((bad_R < 0) & ~seen.finite_R, before_R, bad_R)
            for place, reason in seen.stopped.items():
                last = courses[place].step
                stopped.setdefault(place, (last, f"stopped at step {last}: {reason}"))
            for course in courses:
                course.step += 1
            counted = max(counted, total - sum(course.stops[-1] - course.step for course in courses))
            watch(Progress(counted, total, len(courses), courses[0].engine, chunk))
            overdue, done = keeps and time.monotonic() - saved > execution.checkpoint_seconds, done + 1
            if stopped or (overdue and not again) or stop():
                break
        return state, sums_3R, bad_R, done

    while courses:
        begin, overdue, number, waits = time.perf_counter(), False, 0, False
        ahead = min(next(s for s in course.stops if s > course.step) - course.step for course in courses)
        while number < ahead and not stopped and not (number and (overdue or stop())):
            before, most = (state, sums_3R, bad_R), min(AHEAD, ahead - number)
            known = None if waits else _known_ahead(mechanism, state, hyper, len(targets), most)
            state, sums_3R, bad_R, done = several(*before, known or [hyper] * most)
            if known is not None and not torch.equal(bad_R, before[2]):
                # Rounding may have spoiled a sum: an engine that does not look makes it NaN. Now it looks, and so it
                # does up to the next evaluation.
                for course in courses:
                    course.step -= done
                stopped.clear()
                waits, lack = True, None
                state, sums_3R, bad_R, done = several(*before, [hyper] * most, again=True)
            if lack is not None:
                for course in courses:  # one place was too much; what goes on finds its own chunk
                    course.chunk, course.memory = None, noted(course.memory, course.step)
                if checkpoints is not None and keeps:  # the halves of the stack go on from here
                    try:
                        _settle(courses, sums_3R, bad_R, time.perf_counter() - begin)
                        save(courses, state, checkpoints)
                    except (MemoryError, RuntimeError) as error:  # else from the last checkpoint, or from the start
                        if not lacks_memory(error):
                            raise
                raise lack
            number += done
        _settle(courses, sums_3R, bad_R, time.perf_counter() - begin)
        ended: list[int] = []
        for at, (last, failed) in stopped.items():
            ended.append(at)
            yield Outcome(courses[at].run, error=failed, step=last)
        # Nobody has stepped where a run is refused before training: what was resumed is evaluated there already.
        due = [at for at, course in enumerate(courses) if number and course.step in course.stops and at not in stopped]
        sums_3R[:, due] = 0.0
        for at, outcome, ledger in _evaluated(due, courses, net, state, hyper, test, mechanism):
            if _versions(net, inputs, targets, *test) != kept:
                raise DpbenchError(
                    "the model changed the data, its parameters or its buffers in place: this run is not valid"
                )
            if outcome is None:
                result = _result(courses[at], net, data, mechanism, len(runs), ledger)
                result["result"]["metrics"] = _measured(
                    courses[at].run, net, state, at, mechanism, (inputs[:shown], targets[:shown]), test, classes
                )
                outcome = Outcome(courses[at].run, result=result, parameters_P=evaluated(mechanism, state)[at].cpu())
            ended.append(at)
            used = courses[at].engine
            if refusal := getattr(getattr(mechanism, "engine", None), "refusal", ""):
                used, tried[COMPILED] = ENGINES[0], refusal
            yield replace(
                outcome, engine=used, tried=tried, chunk=chunk, memory=courses[at].memory, stack=courses[at].stack
            )
        for at in (one for one in due if one not in ended and courses[one].step in courses[one].measured_at):
            seen = inputs[:shown], targets[:shown]
            found = _measured(courses[at].run, net, state, at, mechanism, seen, test, classes)
            courses[at].curve[-1]["metrics"] = found
        if ended:
            keep = [i for i in range(len(courses)) if i not in ended]
            index = torch.tensor(keep, dtype=torch.int64, device=device)
            courses = [courses[i] for i in keep]
            state, hyper, bad_R = state.take(index), hyper.take(index), bad_R[index]
            sums_3R, stopped = sums_3R[:, index], {}
        stopping = bool(courses) and stop()
        if courses and checkpoints is not None and keeps and (stopping or overdue):
            save(courses, state, checkpoints)
            saved = time.monotonic()
        if stopping:
            raise Interrupted("interrupted; every unfinished run is saved, except those with randomness: secure")


def _fewer(chunk: int, error: BaseException, courses: Sequence[Course], runs: Sequence[Run]) -> int:
    """The places of a call after one that found no memory. Raises like `smaller`.

    A step with `randomness: secure` would draw another batch, and so keep it the likelier the smaller it is.
    """
    if lacks_memory(error) and runs[0].spec.randomness == "secure":
        raise OutOfMemory(
            f"out of memory with {chunk} places at a time, and a step with randomness: secure cannot be drawn again;"
            " start anew with a smaller --chunk"
        ) from error
    chunk = smaller(min(chunk, expected_places(runs)), error)
    for course in courses:
        course.chunk = chunk, len(runs)
        course.memory = noted(course.memory, course.step, chunk)
    return chunk


def _known_ahead(
    mechanism: Any, state: State, hyper: Hyperparameters, examples: int, steps: int
) -> list[Hyperparameters] | None:
    """The stack with the sizes of the batches of the next steps; None where a step may look for itself."""
    sample = getattr(mechanism, "sample", None)
    if state.theta_RP.device.type not in NEVER_WAIT or sample is None:
        return None
    given = sample, hyper.keys_RS, state.step_R, hyper.sampling_rate_R, examples, steps
    places = most_places(*given)
    if places is None:
        return None
    groups = most_groups(getattr(mechanism, "rule", None), *given)
    return [replace(hyper, places=one, groups=of) for one, of in zip(places, groups, strict=True)]


def _refuse_extremes(net: Network, inputs: Tensor) -> None:
    """Raise DpbenchError for a model whose outputs are not finite on the test records with the largest inputs.

    They are those with the largest of all and, of records of few columns, of each column: numbers of words, users or
    products that the model has no row for give NaN.
    """
    flat = inputs.flatten(1)
    columns = flat if flat.shape[1] <= FEW_COLUMNS else flat.amax(1, keepdim=True)
    for column, at in enumerate(columns.argmax(0).tolist()):
        with torch.no_grad():
            outputs = net.outputs({**trained(net.module)}, inputs[at][None].to(next(net.module.parameters()).device))
        if not bool(outputs.isfinite().all()):
            largest = float(columns[at, column])
            raise DpbenchError(
                f"the model gives NaN or infinity for a test record with the input {largest:g}; expected a number:"
                f" a model that looks up words or the like needs a row for each of the dataset, {largest:g} included"
            )


def _without_public(data: Dataset, mechanism: Mechanism, device: torch.device) -> tuple[Dataset, Mechanism]:
    """The data without the test examples that the mechanism takes as public inputs, and the mechanism with them."""
    taken = public_examples(mechanism)
    if not taken:
        return data, mechanism
    if taken >= len(data.test_targets):
        raise DpbenchError(f"public_examples = {taken}: leaves none of {len(data.test_targets)} test examples")
    rest = replace(data, test_inputs=data.test_inputs[taken:], test_targets=data.test_targets[taken:])
    return rest, with_public(mechanism, data.test_inputs[:taken].to(device))


def _evaluated(
    due: list[int],
    courses: list[Course],
    net: Network,
    state: State,
    hyper: Hyperparameters,
    test: tuple[Tensor, Tensor],
    mechanism: Mechanism,
) -> Iterator[tuple[int, Outcome | None, events.Composition | None]]:
    """Evaluate the runs that are due and extend their curves; yields those that end, a failure or None, the ledger."""
    if not due:
        return
    index = torch.tensor(due, dtype=torch.int64, device=state.theta_RP.device)
    there, chosen = state.take(index), hyper.take(index)
    places, theta_RP = max(50, _evaluation_places(index.device) // len(due)), evaluated(mechanism, there)
    while True:
        try:
            loss_R, metric_R = evaluate(net, theta_RP, *test, places, lambda x: mechanism.view(there, x))
            break
        except (MemoryError, RuntimeError) as lack:
            places = smaller(min(places, len(test[1])), lack)
    released = mechanism.released(there, chosen)
    if hasattr(mechanism, "measured"):
        for at, counted in zip(due, mechanism.measured(there), strict=True):
            courses[at].measured = counted
    sound_R = finite_runs(there.theta_RP) & loss_R.isfinite()
    figures = zip(due, loss_R.tolist(), metric_R.tolist(), sound_R.tolist(), released, strict=True)
    for at, loss, measured, sound, ledger in figures:
        course = courses[at]
        bad = course.bad
        if bad >= 0:
            yield at, Outcome(course.run, error=f"the gradient of step {bad}: not finite", step=bad), None
        elif not sound:
            error = f"the parameters after step {course.step}: not finite"
            yield at, Outcome(course.run, error=error, step=course.step), None
        else:
            _point(
                course,
                loss,
                {METRICS[net.objective.metric].field: measured},
                events_done(mechanism, course.run, ledger),
            )
            if course.step == course.stops[-1]:
                yield at, None, ledger


def _evaluation_places(device: torch.device) -> int:
    return EVALUATION_PLACES if device.type == "cpu" else EVALUATION_PLACES_OF_A_GPU


def _measured(
    run: Run,
    net: Network,
    state: State,
    at: int,
    mechanism: Mechanism,
    data: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: Tensor,
) -> list[dict[str, Any]]:
    """What the metrics of a run's spec find; one that fails says why, and the run is kept.

    `classes` are those of the public records, which no mechanism gets.
    """
    found = []
    there = state.take(torch.tensor([at], device=state.theta_RP.device)) if run.metrics else state
    theta_RP, places = evaluated(mechanism, there), _evaluation_places(state.theta_RP.device)

    def labels() -> tuple[Tensor, Tensor] | None:
        released = getattr(mechanism, "released_labels", None)
        if released is None:
            return None
        labels_Q = released(there)[0]
        return labels_Q, classes[: len(labels_Q)]

    trained = Trained(net, theta_RP, *data, places, lambda x: mechanism.view(there, x), test, labels)
    for one in run.metrics:
        named = {"name": described(one.name, one.parameters)}
        try:
            metric: Metric = build_one("metrics", {"name": one.name, "parameters": one.parameters})
            found.append({**named, **metric.measure(trained)})
        except Exception as error:  # noqa: BLE001 - whatever a metric raises, the run is trained
            found.append({**named, "failed": visible(f"{type(error).__name__}: {error}".splitlines()[0])})
    return found


def _versions(net: Network, *data: Tensor) -> list[int]:
    """torch's counts of writes into tensors that a model may only read; views share the count."""
    return [value._version for value in (*data, *net.module.parameters(), *net.module.buffers())]


def failure(run: Run, error: BaseException) -> Outcome:
    """The outcome of a run that ended with an exception."""
    text = visible("".join(traceback.format_exception(error)))
    return Outcome(run, error=visible(f"{type(error).__name__}: {error}".splitlines()[0]), traceback=text)


def _settle(courses: list[Course], sums_3R: Tensor, bad_R: Tensor, seconds: float) -> None:
    """Add the time of the last steps to the courses, and copy what the device has counted."""
    begin = time.perf_counter()
    if sums_3R.is_cuda:
        torch.cuda.synchronize(sums_3R.device)
    seconds += time.perf_counter() - begin
    for course, sums, bad in zip(courses, sums_3R.T.tolist(), bad_R.tolist(), strict=True):
        course.seconds += seconds
        course.share += seconds / len(courses)
        course.drawn, course.loss, course.clipped = sums
        course.bad = bad


def _point(course: Course, loss: float, measured: Mapping[str, float], releases: int | None) -> None:
    drawn = course.drawn
    course.curve.append(
        {
            "epoch": round(course.step * course.run.sampling_rate, 6),
            "step": course.step,
            "releases": releases,
            "seconds": round(course.seconds, 4),
            "train_loss": course.loss / drawn if drawn else None,
            "clipped_fraction": course.clipped / drawn if drawn and course.run.clip_norm is not None else None,
            "test_loss": loss,
            **measured,
        }
    )
    course.drawn = course.loss = course.clipped = 0.0


def _result(
    course: Course,
    net: Network,
    data: Dataset,
    mechanism: Mechanism,
    stack_runs: int,
    ledger: events.Composition | None,
) -> dict[str, Any]:
    run, last = course.run, course.curve[-1]
    expected = run.sampling_rate * len(data.train_targets)
    facts = {
        "private": mechanism.private,
        "expected_batch_size": round(expected, 6),
        "examples": len(data.train_targets),
        "test_examples": len(data.test_targets),
        "parameters": net.size,
        "generator": randomness.GRADES[run.spec.randomness],
        "dtype": "float32",
        "dataset_real": data.real,
        "task": data.task,
        "most_frequent": _most_frequent(data),
        **mechanism.facts(),
        **course.measured,
    }
    return {
        "facts": facts,
        "ledger": None if ledger is None else events.to_json(ledger),
        "curve": course.curve,
        "result": {name: last[name] for name in (METRICS[net.objective.metric].field, "test_loss")},
        "seconds": round(course.seconds, 4),
        "own_seconds": round(course.share, 4),
        "stack_runs": stack_runs,
        "resumed": course.resumed,
    }


def _most_frequent(data: Dataset) -> float | None:
    """The share of the most frequent class among the test records, None where they have no classes."""
    if data.task != "classification":
        return None
    return int(data.test_targets.bincount().max()) / len(data.test_targets)
