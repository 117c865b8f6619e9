"""A recorded run, and a replay on other data that gets the noisy values of the recorded run (`letting_out`).

Both have the same seeds, hence the same random numbers, and the replay has the same released values: all differences
come from the data. Letters: R runs, N examples, P parameters.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.events import Composition, ConfidentGNMax, Event
from dpbench.judging.check_tools.problems import batch, fitting, has_field, hyperparameters
from dpbench.judging.check_tools.steps import on_vectors
from dpbench.step.functional import Network, network
from dpbench.step.letting_out import watched
from dpbench.step.mechanism import (
    Hyperparameters,
    Observed,
    Released,
    State,
    prepared,
    public_examples,
    updated,
    with_public,
)
from dpbench.step.stages import Batch, filled

CONTIGUOUS, SPREAD = 120, 60  # the first steps, random later ones, and the last
TEACHER_STEPS = 5
OWN_CONTIGUOUS = 60  # for a mechanism that spends a budget: it cannot begin in the middle
EXAMPLES, FEATURES, CLASSES = 16, 6, 4
HOW_TO_PASS = "draw noise by stages.gaussian_noise, or pass the noisy value through letting_out.let_out"
RATES, CLIP_NORMS, NOISES = (1.0, 0.5, 0.25), (0.5, 0.1, 1.0), (1.0, 2.0, 0.7)


class Elsewhere(Exception):
    """The replay releases other values than the recorded run: in number, in shape or for other runs of the stack."""


class Stopped(Exception):
    """A run had to stop, for example because its budget is spent: says which run, when and why."""


@dataclass(frozen=True)
class LetOut:
    """One value of one run: flat, without its noise and with it, and the noise's standard deviation."""

    exact: Tensor
    noisy: Tensor
    deviation: float


@dataclass(frozen=True)
class Call:
    """The arguments of one `let_out`."""

    exact: Tensor
    noisy: Tensor
    deviation_R: Tensor
    runs: tuple[int, ...] | None


@dataclass(frozen=True)
class Moment:
    """The start (`step` None) or one step: the calls of `let_out`, and the state after it.

    `said`: of each run, the events that the step says it released.
    """

    step: int | None
    calls: tuple[Call, ...]
    before: State | None
    after: State
    said: tuple[tuple[Event, ...], ...] = ()

    def of(self, run: int) -> list[LetOut]:
        """The values of one run of the stack, in order."""
        found = []
        for call in self.calls:
            places = range(len(call.exact)) if call.runs is None else call.runs
            for row, place in enumerate(places):
                if place == run:
                    parts = (call.exact[row].double().flatten(), call.noisy[row].double().flatten())
                    found.append(LetOut(*parts, float(call.deviation_R[row])))
        return found


@dataclass(frozen=True)
class World:
    """A mechanism that trains a stack of networks on a data set."""

    mechanism: Any
    net: Network
    theta_RP: Tensor
    stack: Hyperparameters
    inputs: Tensor
    targets: Tensor
    chunk: int = EXAMPLES  # places of the batch per call

    def course(self, steps: Sequence[int], recorded: Sequence[Moment] | None = None) -> Iterator[Moment]:
        """The start, then the steps of these numbers; the noisy values of `recorded` replace those of this run.

        Raises Elsewhere if these do not match in number, shape and runs, Stopped if a run must stop.
        """
        noted: list[Call] = []
        expected: list[Call] = []

        def watch(exact: Tensor, noisy: Tensor, deviation_R: Tensor, runs: Sequence[int] | None) -> Tensor:
            here = Call(exact, noisy, deviation_R, None if runs is None else tuple(runs))
            noted.append(here)
            if recorded is None:
                return noisy
            if len(noted) > len(expected):
                raise Elsewhere("more values are released on other data")
            there = expected[len(noted) - 1]
            if there.runs != here.runs or there.noisy.shape != here.noisy.shape:
                raise Elsewhere("a released value has another shape on other data")
            return there.noisy

        def look(number: int, act: Any) -> tuple[Any, tuple[Call, ...]]:
            noted.clear()
            expected[:] = [] if recorded is None else recorded[number].calls
            with watched(watch):
                result = act()
            if recorded is not None and len(noted) != len(expected):
                raise Elsewhere("fewer values are released on other data")
            return result, tuple(noted)

        data = (self.inputs, self.targets)

        def begin() -> tuple[State, Mapping[int, str]]:
            return prepared(self.mechanism, self.net, self.mechanism.start(self.theta_RP, self.stack, *data), *data)

        (state, refused), calls = look(0, begin)
        yield Moment(None, calls, None, state)
        for number, step in enumerate(steps, 1):
            for place, reason in refused.items():
                raise Stopped(f"run {place} is refused before training: {reason}")
            before: State = dataclasses.replace(state, step_R=torch.full_like(state.step_R, step))
            (state, released, seen), calls = look(number, partial(self._step, before))
            for place, reason in seen.stopped.items():
                raise Stopped(f"run {place} stopped at step {step}: {reason}")
            yield Moment(step, calls, before, state, tuple(map(released.events, range(len(state.step_R)))))

    def _step(self, before: State) -> tuple[State, Released, Observed]:
        data = (self.inputs, self.targets, self.chunk)
        released, kept = on_vectors(self.mechanism).release(self.net, before, self.stack, *data)
        return updated(self.mechanism, before, self.stack, released, kept), released, kept.observed


def record(world: World, steps: Sequence[int]) -> tuple[list[Moment], str | None]:
    """The moments of a run, and why it stopped early, or None."""
    moments: list[Moment] = []
    try:
        for moment in world.course(steps):
            moments.append(moment)
    except Stopped as error:
        return moments, str(error)
    return moments, None


def replay(world: World, steps: Sequence[int], recorded: Sequence[Moment]) -> Iterator[tuple[Moment, Moment]]:
    """Pairs of recorded and replayed moments. Raises Elsewhere, also if the replay must stop."""
    try:
        yield from zip(recorded, world.course(steps[: len(recorded) - 1], recorded), strict=True)
    except Stopped as error:
        raise Elsewhere(str(error)) from error


def added(mechanism: Any, moment: Moment, stack: Hyperparameters) -> list[list[Event]]:
    """The events that each run's ledger gained at this moment. Raises ValueError if earlier ones changed."""
    after = mechanism.released(moment.after, stack)
    before = [None] * len(after) if moment.before is None else mechanism.released(moment.before, stack)
    return [_grown(earlier, later) for earlier, later in zip(before, after, strict=True)]


def _grown(before: Composition | None, after: Composition | None) -> list[Event]:
    parts = () if after is None else after.parts
    earlier = sum(count for _, count in before.parts) if before is not None else 0
    if before is not None and after is not None and merged(after.prefix(earlier)) != merged(before):
        raise ValueError("the step changed earlier events of the ledger")
    found: list[Event] = []
    for event, count in parts:
        skipped = min(count, earlier)
        earlier -= skipped
        found += [event] * (count - skipped)
    return found


def values_of(events: Sequence[Event]) -> int:
    """How many values are let out for these events: one each, for all queries of Confident-GNMax one or two.

    Those are the largest counts of all queries, and the counts of the answered ones.
    """
    queries = [event for event in events if isinstance(event, ConfidentGNMax)]
    together = bool(queries) + any(event.answered for event in queries)
    return len(events) - len(queries) + together


def merged(composition: Composition) -> list[tuple[Event, int]]:
    """Its events in order; equal neighbours are one entry."""
    found: list[tuple[Event, int]] = []
    for event, count in composition.parts:
        if found and found[-1][0] == event:
            found[-1] = (event, found[-1][1] + count)
        elif count:
            found.append((event, count))
    return found


def steps_to_look_at(mechanism: Any, planned: int, seed: int) -> list[int]:
    """The first steps, random later ones, and the last.

    For a mechanism that spends a budget: all steps of a plan of at most OWN_CONTIGUOUS.
    """
    if mechanism.spends_budget:
        return list(range(planned_for(mechanism, planned)))
    first = list(range(min(planned, CONTIGUOUS)))
    rest = range(len(first), planned - 1)
    chosen = sorted(random.Random(seed).sample(rest, min(SPREAD, len(rest))))
    return first + chosen + [planned - 1] * (planned > len(first))


def planned_for(mechanism: Any, planned: int) -> int:
    """The planned number of steps with which a mechanism is checked."""
    return min(planned, OWN_CONTIGUOUS) if mechanism.spends_budget else planned


def problem(mechanism: Any, seed: int, planned: int, hidden: int = 9) -> World:
    """A network of two layers, parameters of a stack of three runs that differ in q, C and σ, and data; all float64.

    Without biases, so that an input of zeros has gradient 0, and without kinks; of one layer where the mechanism takes
    no other.
    """
    generator = torch.Generator().manual_seed(seed)
    first, last = nn.Linear(FEATURES, hidden, bias=False), nn.Linear(hidden, CLASSES, bias=False)
    net = fitting(mechanism, network(nn.Sequential(first, nn.Tanh(), last)))
    drawn = batch(generator, 1, EXAMPLES, FEATURES, CLASSES, filled=2.0)
    theta_RP = torch.randn(len(RATES), net.size, generator=generator, dtype=torch.float64)
    seeds = range(seed * 31, seed * 31 + len(RATES))
    numbers = {"clip_norm": CLIP_NORMS, "noise_multiplier": NOISES}
    stack = hyperparameters(seeds, RATES, learning_rate=0.05, steps=planned, **numbers)
    if public_examples(mechanism):
        shape = public_examples(mechanism), FEATURES
        if hasattr(mechanism, "teachers"):  # a few steps of each are enough to depend on their records
            few = dataclasses.replace(mechanism.teachers, steps=min(mechanism.teachers.steps, TEACHER_STEPS))
            mechanism = dataclasses.replace(mechanism, teachers=few)
        mechanism = with_public(mechanism, torch.randn(shape, generator=generator, dtype=torch.float64))
    return World(mechanism, net, theta_RP, stack, drawn.inputs[0].tanh(), drawn.targets[0])


def with_last(world: World, kind: int) -> World:
    """The world with an adversarial last record: a huge one, an ordinary one, or the opposite of another one."""
    inputs, targets = world.inputs.clone(), world.targets.clone()
    if kind == 0:
        inputs[-1] *= 1e3
    elif kind == 2:
        inputs[-1], targets[-1] = 3 * inputs[0], (targets[0] + 1) % CLASSES
    return dataclasses.replace(world, inputs=inputs, targets=targets)


@dataclass(frozen=True)
class _Without:
    """A sampler that draws like another one, but never the last example."""

    stage: Any

    @property
    def sampler(self) -> Any:
        return self.stage.sampler

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        drawn = self.stage(keys_RS, step_R, rate_R, examples)
        chosen_RN = torch.zeros(len(keys_RS), examples, dtype=torch.bool)
        run, place = drawn.mask_RB.nonzero(as_tuple=True)
        chosen_RN[run, drawn.index_RB[run, place]] = True
        chosen_RN[:, -1] = False
        return filled(chosen_RN)


def without_last(world: World) -> World:
    """The world without its last record; N, which most mechanisms take as public, is unchanged.

    The record is never drawn, if the sampler can be replaced, and its inputs are zeros, so that it adds nothing to sums
    of gradients or statistics.
    """
    mechanism, inputs = world.mechanism, world.inputs.clone()
    if has_field(mechanism, "sample"):
        mechanism = dataclasses.replace(mechanism, sample=_Without(mechanism.sample))
    inputs[-1] = 0
    return dataclasses.replace(world, mechanism=mechanism, inputs=inputs)
