"""A run with a watch at its door (`letting_out`), and the same run on other data that is told what the first let out.

Both have the same seeds, hence the same coins, and the second one the same released past: whatever differs between
them comes from the data alone. Letters: R runs, N examples, P parameters.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.events import Composition, Event
from dpbench.judging.checks._problems import batch, has_field, hyperparameters
from dpbench.step.functional import Network, network
from dpbench.step.letting_out import watched
from dpbench.step.pipeline import Hyperparameters, State
from dpbench.step.stages import Batch, filled

CONTIGUOUS, SPREAD = 120, 60  # steps from the first on, then as many at random places of the rest, and the last
OWN_CONTIGUOUS = 60  # of a mechanism that cannot begin in the middle, because it spends a budget
EXAMPLES, FEATURES, CLASSES = 16, 6, 4
HOW_TO_PASS = "draw noise by stages.gaussian_noise, or hand the noisy value to letting_out.let_out"
RATES, CLIP_NORMS, NOISES = (1.0, 0.5, 0.25), (0.5, 0.1, 1.0), (1.0, 2.0, 0.7)


class Elsewhere(Exception):
    """Two runs with the same released past do not release the same things: in number, in shape or of which runs."""


class Stopped(Exception):
    """A run had to stop (a budget that is spent, a bound below what is allowed): says which, when and why."""


@dataclass(frozen=True)
class LetOut:
    """What one run of the stack let out at once: flat, without its noise and with it; and the noise's deviation."""

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
    """The start (`step` None) or one step: what was let out, call by call, and the state after it."""

    step: int | None
    calls: tuple[Call, ...]
    before: State | None
    after: State

    def of(self, run: int) -> list[LetOut]:
        """What one run of the stack let out, in order."""
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
    chunk: int = EXAMPLES  # places of the batch that are worked on at once

    def course(self, steps: Sequence[int], told: Sequence[Moment] | None = None) -> Iterator[Moment]:
        """The start, then the steps of these numbers. `told`: what is handed out in place of what this run releases.

        Raises Elsewhere where the releases are not those of `told`, Stopped where a run has to stop.
        """
        noted: list[Call] = []
        expected: list[Call] = []

        def watch(exact: Tensor, noisy: Tensor, deviation_R: Tensor, runs: Sequence[int] | None) -> Tensor:
            here = Call(exact, noisy, deviation_R, None if runs is None else tuple(runs))
            noted.append(here)
            if told is None:
                return noisy
            if len(noted) > len(expected):
                raise Elsewhere("it releases more on other data")
            there = expected[len(noted) - 1]
            if there.runs != here.runs or there.noisy.shape != here.noisy.shape:
                raise Elsewhere("what it releases has another shape on other data")
            return there.noisy

        def look(number: int, act: Any) -> tuple[Any, tuple[Call, ...]]:
            noted.clear()
            expected[:] = [] if told is None else told[number].calls
            with watched(watch):
                result = act()
            if told is not None and len(noted) != len(expected):
                raise Elsewhere("it releases less on other data")
            return result, tuple(noted)

        start = (self.theta_RP, self.stack, self.inputs, self.targets)
        state, calls = look(0, lambda: self.mechanism.start(*start))
        yield Moment(None, calls, None, state)
        for number, step in enumerate(steps, 1):
            before: State = dataclasses.replace(state, step_R=torch.full_like(state.step_R, step))
            given = (self.net, before, self.stack, self.inputs, self.targets, self.chunk)
            (state, seen), calls = look(number, partial(self.mechanism.step, *given))
            for place, reason in seen.stopped.items():
                raise Stopped(f"run {place} stopped at step {step}: {reason}")
            yield Moment(step, calls, before, state)


def record(world: World, steps: Sequence[int]) -> tuple[list[Moment], str | None]:
    """The course of a run, up to where it had to stop if it had to, and then why."""
    told: list[Moment] = []
    try:
        for moment in world.course(steps):
            told.append(moment)
    except Stopped as error:
        return told, str(error)
    return told, None


def replay(world: World, steps: Sequence[int], told: Sequence[Moment]) -> Iterator[tuple[Moment, Moment]]:
    """The recorded course beside that on other data. Raises Elsewhere, also where this one has to stop."""
    try:
        yield from zip(told, world.course(steps[: len(told) - 1], told), strict=True)
    except Stopped as error:
        raise Elsewhere(str(error)) from error


def added(mechanism: Any, moment: Moment, stack: Hyperparameters) -> list[list[Event]]:
    """The events by which each run's ledger grew at this moment. Raises ValueError where what stood there changed."""
    after = mechanism.released(moment.after, stack)
    before = [None] * len(after) if moment.before is None else mechanism.released(moment.before, stack)
    return [_grown(earlier, later) for earlier, later in zip(before, after, strict=True)]


def _grown(before: Composition | None, after: Composition | None) -> list[Event]:
    parts = () if after is None else after.parts
    earlier = sum(count for _, count in before.parts) if before is not None else 0
    if before is not None and after is not None and merged(after.prefix(earlier)) != merged(before):
        raise ValueError("the ledger of what was released already is another one after the step")
    found: list[Event] = []
    for event, count in parts:
        skipped = min(count, earlier)
        earlier -= skipped
        found += [event] * (count - skipped)
    return found


def merged(composition: Composition) -> list[tuple[Event, int]]:
    """Its events in order, neighbours that are the same one in one entry."""
    found: list[tuple[Event, int]] = []
    for event, count in composition.parts:
        if found and found[-1][0] == event:
            found[-1] = (event, found[-1][1] + count)
        elif count:
            found.append((event, count))
    return found


def steps_to_look_at(mechanism: Any, planned: int, seed: int) -> list[int]:
    """The first steps, some at random places of the rest, and the last.

    A mechanism that spends a budget is looked at from its first step to the last of a plan of at most OWN_CONTIGUOUS.
    """
    if mechanism.spends_budget:
        return list(range(planned_for(mechanism, planned)))
    first = list(range(min(planned, CONTIGUOUS)))
    rest = range(len(first), planned - 1)
    chosen = sorted(random.Random(seed).sample(rest, min(SPREAD, len(rest))))
    return first + chosen + [planned - 1] * (planned > len(first))


def planned_for(mechanism: Any, planned: int) -> int:
    """The planned length with which a mechanism is looked at."""
    return min(planned, OWN_CONTIGUOUS) if mechanism.spends_budget else planned


def problem(mechanism: Any, seed: int, planned: int, hidden: int = 9) -> World:
    """A network of two layers, parameters of a stack of three runs that differ in q, C and σ, and data; all float64.

    No bias: an input of zeros has a gradient of exactly zero; and none has a kink.
    """
    generator = torch.Generator().manual_seed(seed)
    first, last = nn.Linear(FEATURES, hidden, bias=False), nn.Linear(hidden, CLASSES, bias=False)
    net = network(nn.Sequential(first, nn.Tanh(), last))
    drawn = batch(generator, 1, EXAMPLES, FEATURES, CLASSES, filled=2.0)
    theta_RP = torch.randn(len(RATES), net.size, generator=generator, dtype=torch.float64)
    seeds = range(seed * 31, seed * 31 + len(RATES))
    numbers = {"clip_norm": CLIP_NORMS, "noise_multiplier": NOISES}
    stack = hyperparameters(seeds, RATES, learning_rate=0.05, steps=planned, **numbers)
    return World(mechanism, net, theta_RP, stack, drawn.inputs[0].tanh(), drawn.targets[0])


def with_last(world: World, kind: int) -> World:
    """The world with a hostile last record: a huge one, an ordinary one, or another one's opposite."""
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
    """The world in which the last record is not there; N stays, for it is public to most.

    Where the sampler can be replaced it is never drawn; its inputs are zeros, so it adds nothing to any sum of
    gradients or of statistics.
    """
    mechanism, inputs = world.mechanism, world.inputs.clone()
    if has_field(mechanism, "sample"):
        mechanism = dataclasses.replace(mechanism, sample=_Without(mechanism.sample))
    inputs[-1] = 0
    return dataclasses.replace(world, mechanism=mechanism, inputs=inputs)
