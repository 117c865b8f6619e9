"""Every released value of a run has the sensitivity and the noise of its event in the ledger.

Sums of gradients, counts, sums of norms, statistics of the inputs: all pass `letting_out.let_out`, which gets the exact
value and the standard deviation s of the noise. An event with noise multiplier m says that one record moves the value
by at most s/m. Two runs are compared, with and without an adversarial record; the second gets the noisy values of the
first, so at every step both have the same parameters, clipping bounds and sums. The network is not linear. For every
released value, in the ledger's order:

- `Released.events` of a step is what the ledger gets;
- there is one value for each event; for all queries of Confident-GNMax two, the largest counts and the counts;
- without the record the value moves by at most s/m. For an event of random sensitivity the test is statistical:
  r·(s/m/move)² is never less than a chi-square variable with r degrees of freedom;
- the noise, in units of s, is standard normal and new for every value, step and run;
- the events are those of `ledger` for the plan, if the mechanism has a plan.

This is done for a stack of three runs, for batches in pieces, for one run alone, for a network of more than 1,000
parameters, and with random numbers of the operating system if the mechanism is `secure`.

A count of the records is released at the start; there the second run has one record less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats

from dpbench.events import Composition, ConfidentGNMax, Event, Gaussian, RandomSensitivityGaussian, SampledGaussian
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.check_tools.worlds import (
    CLASSES,
    EXAMPLES,
    HOW_TO_PASS,
    Elsewhere,
    LetOut,
    Moment,
    World,
    added,
    merged,
    planned_for,
    problem,
    record,
    replay,
    steps_to_look_at,
    with_last,
    without_last,
)
from dpbench.step.mechanism import Hyperparameters, acts_at_end
from dpbench.verdicts import Verdict

ROUNDING = 1e-9  # relative, float64 and sums of 16 gradients
SHORT = 25  # steps of each of the other looks
OF_SYSTEM = 1e-3  # share of the false alarms for noise of the operating system, which no seed repeats


@dataclass(frozen=True)
class _Look:
    """An adversarial record (`worlds.with_last`), hidden units, whether one run alone, places per call, randomness."""

    record: int
    hidden: int = 9
    alone: bool = False
    chunk: int = EXAMPLES
    secure: bool = False


LOOKS = (
    _Look(0),
    _Look(1, chunk=3),
    _Look(2),
    _Look(0, alone=True),
    _Look(1, alone=True, hidden=120, chunk=3),
    _Look(0, alone=True, secure=True),
    _Look(2, secure=True),
)


Noises = dict[int, list[np.ndarray[Any, Any]]]  # by the size of a released value


@dataclass
class _Found:
    """The results of all looks: the first fault, what could not be checked, and figures."""

    wrong: str | None = None
    unseen: str | None = None
    worst: float = 0.0
    releases: int = 0
    chi_squares: dict[int, list[float]] = field(default_factory=dict)
    noises: Noises = field(default_factory=dict)
    of_system: Noises = field(default_factory=dict)


@dataclass(frozen=True)
class MechanismReleases(Check):
    """Subject: kind `mechanisms`, private. `planned` is the length of the run; see `worlds.steps_to_look_at`.

    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = "An event of noise multiplier m: one record moves what is released by at most the noise's deviation over m"
    false_alarm: float = statistics.FALSE_ALARM
    planned: int = 100

    def looks_at(self, value: Any) -> bool:
        return bool(value.private) and not acts_at_end(value)  # for that there is `output_sensitivity`

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        found = _Found()
        mechanism = subject.value
        planned = planned_for(mechanism, self.planned)
        steps = steps_to_look_at(mechanism, planned, seed)
        for number, look in enumerate(LOOKS):
            if look.secure and not getattr(mechanism, "secure", False):
                continue
            looked = steps if number == 0 else steps[:SHORT]
            world = with_last(problem(mechanism, seed + 1000 * number, planned, look.hidden), look.record)
            if look.alone:
                place = torch.tensor([number % len(world.theta_RP)])
                world = dataclasses.replace(world, theta_RP=world.theta_RP[place], stack=world.stack.take(place))
            again, moves, worst = world, True, found.worst
            if look.secure:  # with q = 1 both runs have the same batches; only the second is seeded
                always = dataclasses.replace(world.stack, sampling_rate_R=torch.ones_like(world.stack.sampling_rate_R))
                again = dataclasses.replace(world, stack=always)
                world = dataclasses.replace(world, stack=dataclasses.replace(always, keys_RS=always.keys_RS[:, :0]))
                moves = not _draws_more(again, looked[:5])
            recorded, stopped = record(dataclasses.replace(world, chunk=look.chunk), looked)
            found.unseen = found.unseen or stopped
            try:
                others = without_last(dataclasses.replace(again, chunk=look.chunk))
                for moment, other in replay(others, looked, recorded):
                    _compare(found, moment, other, added(mechanism, moment, world.stack), moves)
                    if found.wrong is not None:
                        break
            except Elsewhere as error:
                found.wrong = found.wrong or f"with equal released values, {error}"
            if number == 0 and not stopped:
                found.wrong = found.wrong or _unplanned(mechanism, world.stack, recorded, planned)
            if hasattr(mechanism, "size") and not found.wrong:
                _count(found, world)
            if number not in (1, 2):
                _gather(found.of_system if look.secure else found.noises, recorded)
            if look.secure:
                found.worst = worst  # the evidence does not depend on unseeded draws
            if found.wrong is not None:
                break
        evidence: dict[str, Any] = {"steps": len(steps), "planned": planned, "releases": found.releases}
        evidence["largest_move_over_stated"] = found.worst
        if found.wrong is not None:
            return self.refuted(subject, found.wrong, evidence)
        if found.unseen is not None:
            return self.undecided(subject, found.unseen, evidence)
        about = "moves of all released values against their events; the law and independence of their noise"
        if found.of_system:
            drawn = f"with randomness of the operating system, {about}"
            verdict = self.statistical(subject, _noise_p_values(found.of_system), evidence, drawn, OF_SYSTEM)
            if verdict.verdict == "refuted":
                return verdict
        return self.statistical(subject, _p_values(found), evidence, about, 1 - OF_SYSTEM)


def _compare(
    found: _Found, moment: Moment, other: Moment, grown: Sequence[Sequence[Event]], moves: bool = True
) -> None:
    """Compare the released values of both runs at one moment with the new events of the ledger.

    Without `moves` the two runs have different random numbers, and how far values move is not compared.
    """
    place = "at the start" if moment.step is None else f"at step {moment.step}"
    for run, events in enumerate(grown):
        if moment.step is not None and list(moment.said[run]) != list(events):
            said, told = (" and ".join(map(str, given)) or "nothing" for given in (moment.said[run], events))
            found.wrong = f"{place} run {run} says that it releases {said}, and its ledger gets {told}"
            return
        if any(isinstance(event, ConfidentGNMax) for event in events):
            _votes(found, moment.of(run), other.of(run), events, place, moves)
            continue
        with_it, without = moment.of(run), other.of(run)
        if len(with_it) > len(events):
            found.wrong = f"{place} {len(with_it)} values are released, and the ledger has {len(events)} events"
            return
        if len(with_it) < len(events):
            unseen = f"{place} {len(events) - len(with_it)} of {len(events)} values did not pass `let_out`"
            found.unseen = f"{unseen}; {HOW_TO_PASS}"
            return
        for number, (one, less, event) in enumerate(zip(with_it, without, events, strict=True)):
            what = f"{place} value {number + 1} of {len(events)} ({type(event).__name__})"
            _move(found, one, less, event, what, moves)


# The record is never drawn or its inputs are zeros: away from Poisson batches, without effect in shuffled ones.
COVERED = (("poisson", "add_or_remove"), ("shuffled", "zero_out"))


def _votes(
    found: _Found,
    with_it: Sequence[LetOut],
    without: Sequence[LetOut],
    events: Sequence[Event],
    place: str,
    moves: bool,
) -> None:
    """Compare the two values of all queries of Confident-GNMax, the largest counts and the counts, with their events.

    Counts are in votes, and so is the noise of the event: n largest counts move by √n at most, n histograms by √(2n).
    """
    queries = [event for event in events if isinstance(event, ConfidentGNMax)]
    answered = [event for event in queries if event.answered]
    told = [("selection_noise", queries, math.sqrt(len(queries)), 1)]
    told += [("answer_noise", answered, math.sqrt(2 * len(answered)), CLASSES)] if answered else []
    if len(queries) < len(events) or len(with_it) > len(told):
        found.wrong = f"{place} {len(with_it)} values are released; expected {len(told)}, of queries alone"
        return
    if len(with_it) < len(told):
        found.unseen = f"{place} {len(told) - len(with_it)} of {len(told)} values did not pass `let_out`; {HOW_TO_PASS}"
        return
    for one, less, (name, asked, reach, each) in zip(with_it, without, told, strict=True):
        deviation = getattr(asked[0], name)
        if any(getattr(event, name) != deviation for event in asked):
            found.unseen = f"{place} queries with different {name}: only equal ones can be checked"
        elif one.exact.numel() != each * len(asked):
            found.wrong = f"{place} {one.exact.numel()} counts are released with {name}; expected {each * len(asked)}"
        elif not abs(one.deviation - deviation) <= ROUNDING * deviation:
            found.wrong = (
                f"{place} the noise has the deviation {one.deviation:.6g}, its events have {name} {deviation:.6g}"
            )
        else:
            _move(found, one, less, Gaussian(deviation / reach, asked[0].adjacency), f"{place} {name}", moves)


def _move(found: _Found, one: LetOut, less: LetOut, event: Event, what: str, moves: bool) -> None:
    if (
        not isinstance(event, Gaussian | SampledGaussian | RandomSensitivityGaussian)
        or (getattr(event, "sampler", "poisson"), event.adjacency) not in COVERED
    ):
        found.unseen = (
            f"{what}: only Gaussian noise can be checked, with Poisson samples and add_or_remove or shuffled ones and"
            " zero_out"
        )
        return
    found.releases += 1
    stated = one.deviation / event.noise_multiplier
    move = float((one.exact - less.exact).norm())
    if not (torch.isfinite(one.exact).all() and torch.isfinite(one.noisy).all()):
        found.wrong = found.wrong or f"{what} is not finite"
    elif not abs(one.deviation - less.deviation) <= ROUNDING * one.deviation:
        found.wrong = found.wrong or f"{what}: the deviation of its noise changes without one record"
    elif not moves:
        return
    elif isinstance(event, RandomSensitivityGaussian):
        if move > 0:
            share = event.projections * (stated / move) ** 2
            found.chi_squares.setdefault(event.projections, []).append(share)
    else:
        ratio = move / stated if stated > 0 else (np.inf if move > 0 else 0.0)
        found.worst = max(found.worst, min(ratio, 1e300))
        # Rounding errors depend on the size of the sums, not of their difference.
        limit = stated * (1 + ROUNDING) + ROUNDING * float(one.exact.norm())
        if not move <= limit or not one.deviation > 0:
            found.wrong = found.wrong or (
                f"{what}: one record moves it by {ratio:.6g} times what its event and its noise of {one.deviation:.6g}"
                " allow"
            )


def _count(found: _Found, world: World) -> None:
    """Compare the start with all records and with one less, at the same expected batch size."""
    stack, number = world.stack, len(world.targets)
    fewer = dataclasses.replace(stack, sampling_rate_R=stack.sampling_rate_R * number / (number - 1))
    full = next(world.course([]))
    less = dataclasses.replace(world, stack=fewer, inputs=world.inputs[:-1], targets=world.targets[:-1])
    try:
        other = next(less.course([], [full]))
    except Elsewhere as error:
        found.wrong = f"at the start, with equal released values, {error}"
        return
    _compare(found, full, other, added(world.mechanism, full, stack))
    for name, value in full.after.memory.items():
        if value.shape == other.after.memory[name].shape and not torch.allclose(
            value.double(), other.after.memory[name].double(), rtol=1e-9, atol=0, equal_nan=True
        ):
            found.wrong = found.wrong or f"the start's {name} changes with a record less, with equal released values"


def _unplanned(mechanism: Any, stack: Hyperparameters, recorded: Sequence[Moment], planned: int) -> str | None:
    """How the planned ledger differs from the events so far, or None; without a plan there is nothing to compare.

    Before the first step that is left out the plan begins with these events. At the end both are equal, unless the
    mechanism counts its steps itself: then the events of the steps left out are missing, and it is not compared.
    """
    numbers = zip(stack.sampling_rate_R.tolist(), stack.noise_multiplier_R.tolist(), strict=True)
    plans = [mechanism.ledger(sampling_rate=q, noise_multiplier=sigma, steps=planned) for q, sigma in numbers]
    counts_itself = False
    for number, moment in enumerate(recorded):
        for run, (plan, released) in enumerate(zip(plans, mechanism.released(moment.after, stack), strict=True)):
            if plan is None or released is None:
                continue
            total = _total(released)
            if run == 0 and moment.step is not None:
                counts_itself = counts_itself or (moment.step != number - 1 and total < moment.step + 1)
            last = moment.step == planned - 1
            if counts_itself or merged(plan if last else plan.prefix(total)) == merged(released):
                continue
            place = "at the start" if moment.step is None else f"after step {moment.step}"
            return f"{place} the first {total} events are not the first of the {_total(plan)} planned ones"
    return None


def _draws_more(world: World, steps: Sequence[int]) -> bool:
    """Whether exact values depend on random numbers other than the batch's, which has all examples here."""
    recorded, _ = record(world, steps)
    others = dataclasses.replace(world, stack=dataclasses.replace(world.stack, keys_RS=world.stack.keys_RS ^ 1))
    try:
        for moment, other in replay(others, steps, recorded):
            for one, two in zip(moment.calls, other.calls, strict=True):
                if not torch.allclose(one.exact, two.exact, rtol=ROUNDING, atol=ROUNDING * float(one.exact.norm())):
                    return True
    except Elsewhere:
        return True
    return False


def _total(composition: Composition) -> int:
    return sum(count for _, count in composition.parts)


def _gather(noises: Noises, recorded: Sequence[Moment]) -> None:
    """Add the noise of every released value, in units of its deviation, by the value's size."""
    runs = len(recorded[0].after.step_R)
    for moment in recorded:
        for run in range(runs):
            for one in moment.of(run):
                noise = ((one.noisy - one.exact) / one.deviation).numpy() if one.deviation > 0 else np.zeros(1)
                noises.setdefault(noise.size, []).append(noise)


def _p_values(found: _Found) -> Iterator[Any]:
    """Law and independence of the noise, by the size of the values; the bound of random sensitivities."""
    for projections, shares in found.chi_squares.items():
        yield stats.chi2.cdf(sum(shares), projections * len(shares))
    yield from _noise_p_values(found.noises)


def _noise_p_values(noises: Noises) -> Iterator[Any]:
    for size, rows in noises.items():
        noise_MK = np.stack(rows)
        yield statistics.chi_square_p((noise_MK**2).sum(), noise_MK.size)
        yield statistics.normal_p(noise_MK.sum() / np.sqrt(noise_MK.size))
        yield statistics.distribution_p(noise_MK, stats.norm.cdf)
        yield statistics.chi_square_p((noise_MK**2).sum(1), size)
        # Between values some moments apart; those of the same run are three rows apart.
        for distance in {1, 2, 3, 6, len(noise_MK) // 2} - {0}:
            if len(noise_MK) >= 2 * distance:
                yield statistics.correlation_p(*statistics.apart(noise_MK, distance, axis=0))
        # Any two values: the inner product of independent normal vectors, in units of one vector's length.
        if size > 8:
            length_M = np.linalg.norm(noise_MK, axis=1)
            inner_MM = noise_MK @ noise_MK.T / np.where(length_M > 0, length_M, 1.0)[:, None]
            np.fill_diagonal(inner_MM, 0.0)
            yield statistics.normal_p(inner_MM[np.tril_indices(len(inner_MM), -1)])


check = MechanismReleases()
