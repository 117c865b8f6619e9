"""A mechanism that acts at the end releases its last parameters alone, with noise that one replaced record calls for.

Logistic regressions are trained on pairs of data sets of N records that differ in one of them, in both orders, with
the same random numbers. `let_out` shows the last parameters without their noise. Deterministic:

- the two differ by at most s/m, for noise of the deviation s and an event with the noise multiplier m;
- before the last step nothing is released: no value passes `let_out`, parameters and memory stay, the ledger is empty;
- the last step lets out one value for each event, and with the same values the parameters are the same on other data.

The pairs: two records that push the same scores in opposite directions, at parameters that are sure of both, which is
as far as two gradients can be apart; many records in one direction with targets in balance, where the loss is curved
most and too large steps grow; and random records, very long ones among them, in batches that do not divide N. Every
learning rate is tried that the mechanism takes and the theorem may allow: the largest one, and a tenth of it.
Statistical: the noise, in units of s, is standard normal and new for every run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.events import Gaussian
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.check_tools.worlds import Call, Elsewhere, Moment, World, added
from dpbench.step.functional import network
from dpbench.step.mechanism import Setting, acts_at_end
from dpbench.verdicts import Verdict

# float64: parameters of a size of some 10 Δ, after 40 steps of some 400 terms each, 2·10^5 roundings of 1.1e-16.
ROUNDING = 1e-9
CLIP_NORMS, NOISES = (1.0, 0.3, 3.0), (1.0, 2.0, 0.7)
RUNS = len(CLIP_NORMS)


@dataclass(frozen=True)
class Case:
    """A data set, the records that may take the place of one of its own, and what is trained on it: q and T."""

    inputs: Tensor
    targets: Tensor
    others: tuple[tuple[int, Tensor, int], ...]  # a place, an input and a target
    theta_RP: Tensor
    rate: float
    steps: int


@dataclass(frozen=True)
class OutputSensitivity(Check):
    """Subject: kind `mechanisms`, private, that acts at the end and adds all its noise there.

    >>> check(Subject.of("mechanisms", "output_perturbation"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = "Wu et al. 2017, Algorithms 1 and 2: noise that is relative to the sensitivity of the last parameters"
    false_alarm: float = statistics.FALSE_ALARM
    draws: int = 60

    def looks_at(self, value: Any) -> bool:
        return bool(value.private) and acts_at_end(value) and not getattr(value, "perturbs_objective", False)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Train on some fifty pairs of data sets, and `draws` runs for the noise."""
        mechanism = subject.value
        worst, pairs = 0.0, 0
        for case in _cases(seed):
            for share in (1.0, 0.1):
                world = _world(mechanism, case, share, seed)
                if world is None:
                    return self.undecided(subject, "no learning rate from 1e-9 to 1e9 is accepted", {})
                for place, other, target in case.others:
                    inputs, targets = case.inputs.clone(), case.targets.clone()
                    inputs[place], targets[place] = other, target
                    there = dataclasses.replace(world, inputs=inputs, targets=targets)
                    for one, two in ((world, there), (there, world)):
                        ratio, wrong = _compare(one, two, case.steps)
                        worst, pairs = max(worst, ratio), pairs + 1
                        if wrong is not None:
                            return self.refuted(subject, wrong, {"largest_move_over_stated": worst})
        evidence = {"pairs": pairs, "largest_move_over_stated": worst}
        noise_RP = _noise(mechanism, seed, self.draws)
        about = "moves of the last parameters against their noise; the law and independence of this noise"
        return self.statistical(subject, _p_values(noise_RP), evidence, about)


def _cases(seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    features = 4
    # The scores of classes 0 and 1 are far apart at both records, in opposite order: p is e_0 at one, e_1 at the other.
    along, across = torch.eye(features, dtype=torch.float64)[:2]
    one, two = along + 1e-3 * across, along - 1e-3 * across
    weight_CF = torch.zeros(3, features, dtype=torch.float64)
    weight_CF[0], weight_CF[1] = 1e6 * across, -1e6 * across
    weight_CF[2] = -1e9 * along
    sure_P = torch.cat([weight_CF.flatten(), torch.zeros(3, dtype=torch.float64)])
    still = torch.stack([10 * one, 10 * two, 10 * one])
    # The first class at its own record has no gradient, so the others leave the parameters alone.
    for steps in (1, 3, 7):
        targets = torch.tensor([0, 1, 0])
        inputs = still.clone()
        inputs[0] = 10 * one
        pushed = targets.clone()
        pushed[0] = 1
        yield Case(inputs, pushed, ((0, 10 * two, 0),), sure_P.repeat(RUNS, 1), 1 / 3, steps)
    balanced = (10 * along).repeat(400, 1)
    halves = torch.arange(400) % 2
    zero_RP = torch.zeros(RUNS, 2 * (features + 1), dtype=torch.float64)
    yield Case(balanced, halves, ((0, -10 * along, 0), (0, 10 * along, 1)), zero_RP, 1.0, 40)
    drawn = torch.randn(12, features, generator=generator, dtype=torch.float64)
    drawn[::3] *= 1e3
    labels = torch.randint(3, (12,), generator=generator)
    theta_RP = torch.randn(RUNS, 3 * (features + 1), generator=generator, dtype=torch.float64)
    others = tuple((place, (-2.0) ** place * drawn[place - 1], int(labels[place] + 1) % 3) for place in (0, 5, 11))
    for rate in (5 / 12, 1.0):
        yield Case(drawn, labels, others, theta_RP, rate, 30)


def _world(mechanism: Any, case: Case, share: float, seed: int) -> World | None:
    """The case with `share` of the largest learning rate that the mechanism takes; None where it takes none."""
    features, size = case.inputs.shape[1], case.theta_RP.shape[1]
    net = network(nn.Linear(features, size // (features + 1)))
    rates = [_largest(mechanism, Setting(len(case.targets), case.rate, case.steps, 1.0, clip)) for clip in CLIP_NORMS]
    if not all(rates):
        return None
    stack = hyperparameters(
        range(31 * seed, 31 * seed + RUNS),
        case.rate,
        learning_rate=[share * rate for rate in rates],
        clip_norm=CLIP_NORMS,
        noise_multiplier=NOISES,
        steps=case.steps,
    )
    return World(mechanism, net, case.theta_RP, stack, case.inputs, case.targets, chunk=len(case.targets))


def _largest(mechanism: Any, setting: Setting) -> float:
    """The largest learning rate up to 1e9 that the mechanism takes, to 1e-6; 0 where it takes none above 1e-9."""

    def taken(rate: float) -> bool:
        try:
            mechanism.check(dataclasses.replace(setting, learning_rate=rate, noise_multiplier=1.0))
        except DpbenchError:
            return False
        return True

    low, high = math.log(1e-9), math.log(1e9)
    if not taken(math.exp(low)):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if taken(math.exp(middle)) else (low, middle)
    return math.exp(low)


def _compare(world: World, other: World, steps: int) -> tuple[float, str | None]:
    """How far the released value moves over what is stated, the largest of the runs; and what is wrong, or None."""
    recorded = list(world.course(range(steps)))
    wrong = _early(world, recorded[:-1]) or _late(world, recorded[-1])
    if wrong is not None:
        return 0.0, wrong
    there = list(other.course(range(steps)))
    worst = 0.0
    for run, events in enumerate(added(world.mechanism, recorded[-1], world.stack)):
        (one,), (two,) = recorded[-1].of(run), there[-1].of(run)
        (event,) = events
        assert isinstance(event, Gaussian)  # `_late` has looked
        stated = one.deviation / event.noise_multiplier
        move = float((one.exact - two.exact).norm())
        worst = max(worst, move / stated)
        if not move <= stated * (1 + ROUNDING):
            return worst, (
                f"another record moves the last parameters by {move / stated:.6g} times what their event and their"
                f" noise of {one.deviation:.6g} allow, after {steps} steps with learning_rate"
                f" {float(world.stack.learning_rate_R[run]):.6g}"
            )
        if one.deviation != two.deviation:
            return worst, "the deviation of the noise changes with a record"
        if not torch.allclose(one.noisy - one.exact, two.noisy - two.exact, rtol=0, atol=1e-6 * one.deviation):
            return worst, "the noise changes with a record"
    try:
        again = list(other.course(range(steps), recorded))
    except Elsewhere as error:
        return worst, f"with equal released values, {error}"
    for left, right in zip(recorded, again, strict=True):
        if not _same(left, right):
            return worst, "the parameters or the memory differ on other data, with equal released values"
    return worst, None


def _early(world: World, recorded: Sequence[Moment]) -> str | None:
    """What is released before the last step, or None."""
    begun = recorded[0].after
    for moment in recorded:
        place = "at the start" if moment.step is None else f"at step {moment.step}"
        if moment.calls or any(moment.said):
            return f"{place} a value is released, and the mechanism says that only the last step releases any"
        if not torch.equal(moment.after.theta_RP, begun.theta_RP):
            return f"{place} the parameters have moved, and the mechanism says that only the last step releases any"
        if any(ledger is None or ledger.parts for ledger in world.mechanism.released(moment.after, world.stack)):
            return f"{place} the ledger is not empty"
    return None


def _late(world: World, last: Moment) -> str | None:
    """What is wrong with the events of the last step, or None."""
    stack = world.stack
    numbers = zip(
        stack.sampling_rate_R.tolist(), stack.noise_multiplier_R.tolist(), stack.steps_R.tolist(), strict=True
    )
    plans = [world.mechanism.ledger(sampling_rate=q, noise_multiplier=s, steps=steps) for q, s, steps in numbers]
    if list(world.mechanism.released(last.after, stack)) != plans:
        return "the events of a whole run are not the planned ones"
    for run, events in enumerate(added(world.mechanism, last, stack)):
        if list(last.said[run]) != events:
            return "the last step does not say what the ledger gets"
        if len(events) != 1 or len(last.of(run)) != 1:
            return f"the last step has {len(events)} events and {len(last.of(run))} values; expected one of each"
        if not isinstance(events[0], Gaussian) or events[0].adjacency != "replace_one" or events[0].moved != 1:
            return f"{events[0]}: expected a Gaussian event for replace_one, relative to the sensitivity"
        if not last.of(run)[0].deviation > 0:
            return "the last parameters are released without noise"
    return None


def _same(one: Moment, other: Moment) -> bool:
    left, right = ({"": moment.after.theta_RP, **moment.after.memory} for moment in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _noise(mechanism: Any, seed: int, draws: int) -> Any:
    """The noise of so many runs of two steps, in units of its deviation (R, P)."""
    net = network(nn.Linear(10, 8))
    inputs, targets = torch.linspace(-1, 1, 120, dtype=torch.float64).reshape(12, 10), torch.arange(12) % 8
    stack = hyperparameters(range(97 * seed, 97 * seed + draws), 0.5, learning_rate=1e-6, steps=2)
    world = World(mechanism, net, torch.zeros(draws, net.size, dtype=torch.float64), stack, inputs, targets)
    calls: list[Call] = [call for moment in world.course(range(2)) for call in moment.calls]
    return np.concatenate([((call.noisy - call.exact) / call.deviation_R[:, None]).numpy() for call in calls])


def _p_values(noise_RP: Any) -> Iterator[Any]:
    yield statistics.chi_square_p((noise_RP**2).sum(), noise_RP.size)
    yield statistics.chi_square_p((noise_RP**2).sum(1), noise_RP.shape[1])
    yield statistics.chi_square_p((noise_RP**2).sum(0), len(noise_RP))
    yield statistics.normal_p(noise_RP.sum() / np.sqrt(noise_RP.size))
    yield statistics.distribution_p(noise_RP, stats.norm.cdf)
    for axis in (0, 1):
        for distance in (1, 2, noise_RP.shape[axis] // 2):
            yield statistics.correlation_p(*statistics.apart(noise_RP, distance, axis=axis))


check = OutputSensitivity()
