"""Each release of a run, whatever it is of, has the noise that its event in the ledger says.

Sums of gradients, counts, sums of norms, statistics of the inputs: all leave by `letting_out.let_out`, which is told
the value without noise and the noise's deviation s. An event with noise multiplier m says that one record moves the
value by at most s/m. Two worlds are compared, with and without a hostile record, the second told all that the first
released: at every step both stand at the same parameters, clipping bounds and sums, though these were chosen while the
run went on. The network is not linear. Held are, release by release and in the ledger's order:

- as many values leave as the ledger gets events;
- without the record the value moves by at most s/m. Without chance; for an event of random sensitivity, where it is
  (r·(s/m/move)² is never less than a chi-square with r degrees of freedom), by the law;
- the noise, in units of s, is standard normal, new at every release, step and run.

A count of the records is released when the run starts; there the second world has one record less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats

from dpbench.checks import _statistics as statistics
from dpbench.checks._subject import Subject, certain, statistical
from dpbench.checks._worlds import (
    Elsewhere,
    LetOut,
    Moment,
    World,
    added,
    planned_for,
    problem,
    record,
    replay,
    steps_to_look_at,
    with_last,
    without_last,
)
from dpbench.events import Event, Gaussian, RandomSensitivityGaussian, SampledGaussian
from dpbench.pipeline import Knobs
from dpbench.verdicts import Verdict

SOURCE = "An event of noise multiplier m: one record moves what is released by at most the noise's deviation over m"
ROUNDING = 1e-9  # relative, float64 and sums of 16 gradients
SHORT = 25  # steps with each of the other hostile records


@dataclass
class _Found:
    """What the looks have gathered: the first thing that is wrong, what could not be looked at, and figures."""

    wrong: str | None = None
    unseen: str | None = None
    worst: float = 0.0
    releases: int = 0
    chi_squares: dict[int, list[float]] = field(default_factory=dict)
    noises: dict[int, list[np.ndarray[Any, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class MechanismReleases:
    """Subject: kind `mechanisms`, private. `planned` is the length of the run; see `_worlds.steps_to_look_at`.

    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    false_alarm: float = statistics.FALSE_ALARM
    planned: int = 100

    def applies(self, subject: Any) -> bool:
        return isinstance(subject, Subject) and subject.kind == "mechanisms" and bool(subject.value.private)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        found = _Found()
        mechanism = subject.value
        planned = planned_for(mechanism, self.planned)
        steps = steps_to_look_at(mechanism, planned, seed)
        for kind, looked in ((0, steps), (1, steps[:SHORT]), (2, steps[:SHORT])):
            net, theta_RP, stack, inputs, targets = problem(seed + 1000 * kind, planned)
            data = with_last(inputs, targets, kind)
            told, stopped = record(World(mechanism, *data), net, theta_RP, stack, looked)
            found.unseen = found.unseen or stopped
            try:
                others = without_last(mechanism, *data)
                for moment, other in replay(others, net, theta_RP, stack, looked, told):
                    _compare(found, moment, other, added(mechanism, moment, stack))
                    if found.wrong is not None:
                        break
            except Elsewhere as error:
                found.wrong = found.wrong or f"with all releases the same, {error}"
            if hasattr(mechanism, "size") and not found.wrong:
                _count(found, mechanism, theta_RP, stack, data)
            if kind == 0:
                _gather(found, told)
        evidence = {
            "steps": len(steps),
            "planned": planned,
            "releases": found.releases,
            "largest_move_over_stated": found.worst,
        }
        name = "mechanism_releases"
        if found.wrong is not None:
            return certain(name, subject, found.wrong, evidence, holds="", source=SOURCE)
        if found.unseen is not None:
            return Verdict(name, subject.name, "undecided", found.unseen, evidence, 0.0, SOURCE)
        p, tests = statistics.smallest(_p_values(found))
        about = "moves of all releases against their events; the law and independence of their noise"
        return statistical(
            name, subject, p, evidence | {"tests": tests}, false_alarm=self.false_alarm, about=about, source=SOURCE
        )


def _compare(found: _Found, moment: Moment, other: Moment, grown: Sequence[Sequence[Event]]) -> None:
    """Hold what left at one moment in both worlds against the events that the ledger got."""
    place = "at the start" if moment.step is None else f"at step {moment.step}"
    for run, events in enumerate(grown):
        with_it, without = moment.of(run), other.of(run)
        if len(with_it) > len(events):
            found.wrong = f"{place} {len(with_it)} values are released, and the ledger tells {len(events)}"
            return
        if len(with_it) < len(events):
            found.unseen = (
                f"{place} {len(events) - len(with_it)} of {len(events)} releases did not pass `let_out`; draw noise by"
                " stages.gaussian_noise, or hand the noisy value to letting_out.let_out"
            )
            return
        for number, (one, less, event) in enumerate(zip(with_it, without, events, strict=True)):
            _move(found, one, less, event, f"{place} release {number + 1} of {len(events)} ({type(event).__name__})")


def _move(found: _Found, one: LetOut, less: LetOut, event: Event, what: str) -> None:
    if (
        not isinstance(event, Gaussian | SampledGaussian | RandomSensitivityGaussian)
        or event.adjacency != "add_or_remove"
        or getattr(event, "sampler", "poisson") != "poisson"
    ):
        found.unseen = f"{what}: only Gaussian releases, Poisson samples and add_or_remove are looked at"
        return
    found.releases += 1
    stated = one.deviation / event.noise_multiplier
    move = float((one.exact - less.exact).norm())
    if not (torch.isfinite(one.exact).all() and torch.isfinite(one.noisy).all()):
        found.wrong = found.wrong or f"{what} is not finite"
    elif not abs(one.deviation - less.deviation) <= ROUNDING * one.deviation:
        found.wrong = found.wrong or f"{what}: its noise is another one without one record"
    elif isinstance(event, RandomSensitivityGaussian):
        if move > 0:
            share = event.projections * (stated / move) ** 2
            found.chi_squares.setdefault(event.projections, []).append(share)
    else:
        ratio = move / stated if stated > 0 else (np.inf if move > 0 else 0.0)
        found.worst = max(found.worst, min(ratio, 1e300))
        # Rounding goes with the size of the sums, not with that of their difference.
        limit = stated * (1 + ROUNDING) + ROUNDING * float(one.exact.norm())
        if not move <= limit or not one.deviation > 0:
            found.wrong = found.wrong or (
                f"{what}: one record moves it by {ratio:.6g} times what its event and its noise of {one.deviation:.6g}"
                " allow"
            )


def _count(found: _Found, mechanism: Any, theta_RP: torch.Tensor, stack: Knobs, data: Any) -> None:
    """The start with all records, and with one less; the batches have the same expected size."""
    inputs, targets = data
    number = len(targets)
    fewer = dataclasses.replace(stack, sampling_rate_R=stack.sampling_rate_R * number / (number - 1))
    full = next(World(mechanism, inputs, targets).course(None, theta_RP, stack, []))  # type: ignore[arg-type]
    less = World(mechanism, inputs[:-1], targets[:-1]).course(None, theta_RP, fewer, [], [full])  # type: ignore[arg-type]
    try:
        other = next(less)
    except Elsewhere as error:
        found.wrong = f"at the start, with all releases the same, {error}"
        return
    _compare(found, full, other, added(mechanism, full, stack))
    for name, value in full.after.memory.items():
        if value.shape == other.after.memory[name].shape and not torch.allclose(
            value.double(), other.after.memory[name].double(), rtol=1e-9, atol=0, equal_nan=True
        ):
            found.wrong = found.wrong or f"the start's {name} is another one with a record less, all releases the same"


def _gather(found: _Found, told: Sequence[Moment]) -> None:
    """The noise of every release in units of its deviation, by how many numbers it has: (R, numbers) at each moment."""
    runs = len(told[0].after.step_R)
    for moment in told:
        for run in range(runs):
            for one in moment.of(run):
                noise = ((one.noisy - one.exact) / one.deviation).numpy() if one.deviation > 0 else np.zeros(1)
                found.noises.setdefault(noise.size, []).append(noise)


def _p_values(found: _Found) -> Iterator[Any]:
    """Law and independence of the noise, by kinds of releases; the bound of random sensitivities."""
    for projections, shares in found.chi_squares.items():
        yield stats.chi2.cdf(sum(shares), projections * len(shares))
    for size, rows in found.noises.items():
        noise_MK = np.stack(rows)
        yield statistics.chi_square_p((noise_MK**2).sum(), noise_MK.size)
        yield statistics.normal_p(noise_MK.sum() / np.sqrt(noise_MK.size))
        yield statistics.distribution_p(noise_MK, stats.norm.cdf)
        yield statistics.chi_square_p((noise_MK**2).sum(1), size)
        # Between releases that stand some moments apart: the same run's are three rows apart.
        for distance in {1, 2, 3, 6, len(noise_MK) // 2} - {0}:
            if len(noise_MK) >= 2 * distance:
                yield statistics.correlation_p(*statistics.apart(noise_MK, distance, axis=0))
        # Any two releases at all: the inner product of independent normal vectors, in units of one vector's length.
        if size > 8:
            length_M = np.linalg.norm(noise_MK, axis=1)
            inner_MM = noise_MK @ noise_MK.T / length_M[:, None]
            np.fill_diagonal(inner_MM, 0.0)
            yield statistics.normal_p(inner_MM[np.tril_indices(len(inner_MM), -1)])


check = MechanismReleases()
