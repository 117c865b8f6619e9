"""What every mechanism must do: compute what it says, draw the same alone and in a stack, resume, stay finite.

That it releases what its ledger says is in `test_mechanism_ledgers.py`. Everything here is without chance. What a
mechanism does not inherit follows from what it is (`told_by_a_release`, `is_algorithm_1`), never from its name.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench import events
from dpbench.catalog import STAGES, catalog
from dpbench.clipping.rules.none import Unclipped
from dpbench.judging.check_tools.problems import batch, hyperparameters, linear_network, reference, small_network
from dpbench.judging.check_tools.steps import (
    OwnSteps,
    Step,
    can_be_shown,
    has_event,
    sample_event,
    shown,
    shuffled,
    views,
)
from dpbench.judging.checks.philox_vectors import gauss, uniform
from dpbench.mechanisms.presets import noisy_adam, noisy_sgd, non_private
from dpbench.randomness import NOISE, SAMPLE, SMOOTHING
from dpbench.step.clipped_sum import Clipped, Draw, Examples, Weight
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, Mechanism, Observed, State, acts_at_end, public_examples, updated
from dpbench.step.mechanism import step as one_step
from dpbench.step.pipeline import Pipeline, optimised
from dpbench.step.stages import Rule, Weights, scales_every_gradient

pytestmark = pytest.mark.usefixtures("one_thread")

# Parameters with which there is more to see, or that make a small problem quick; else a mechanism's own defaults.
PARAMETERS: dict[str, dict[str, Any]] = {
    "decaying_sgd": {"noise_decay": 0.05, "optimizer": "adam"},
    "dp_adam_jl": {"projections": 2, "noise_decay": 0.05},
    "dp_sgd_jl": {"projections": 5},
    "dpis": {"oversampling": 1.0, "size_noise": 2.0, "sum_noise": 2.0},
    "dplis": {"smoothing_samples": 3},
    "pipeline": {  # stages that no preset puts together
        "prepare": {"name": "channel_statistics", "parameters": {"mean_bound": 0.5}},
        "clip": {"name": "jl", "parameters": {"projections": 3}},
        "noise": {"name": "decaying", "parameters": {"noise_decay": 0.05}},
        "update": {"name": "momentum", "parameters": {"momentum": 0.5}},
    },
}
EVERY: dict[str, Any] = {
    name: entry.load()(**PARAMETERS.get(name, {})) for name, entry in sorted(catalog("mechanisms").items())
}
# What needs public inputs releases nothing after its first step: tests/mechanisms/test_pate.py asks the same of it.
MECHANISMS = {name: mechanism for name, mechanism in EVERY.items() if not public_examples(mechanism)}
N = 12


def told_by_a_release(mechanism: Any) -> bool:
    """Poisson batches, and one event that tells of each step: all but those with steps of their own (`OwnSteps`)."""
    return hasattr(mechanism, "sample") and mechanism.sample.sampler == "poisson" and has_event(mechanism)


def is_algorithm_1(mechanism: Any) -> bool:
    """Whether a step is that of NoisySGD: its event says that one example moves the sum by C and no more.

    The factor of a gradient may be another one (`own_weight`).
    """
    if not isinstance(mechanism, Pipeline):
        return False
    return not mechanism.private or sample_event(mechanism) == events.SampledGaussian(1.0, 1.0)


def own_weight(mechanism: Any) -> Weight | None:
    """The factor of a gradient by its norm, of a rule that scales those below the clip norm too; else None."""
    rule = getattr(mechanism, "rule", None)
    return rule.weight if scales_every_gradient(rule) and isinstance(rule, Weights) else None


def named(holds: Any) -> list[str]:
    """Those that release something in every step; for the others there is `test_end_mechanisms.py`."""
    return [name for name, mechanism in MECHANISMS.items() if not acts_at_end(mechanism) and holds(mechanism)]


every_mechanism = pytest.mark.parametrize("name", named(lambda _: True))
every_poisson_mechanism = pytest.mark.parametrize("name", named(told_by_a_release))
every_algorithm_1 = pytest.mark.parametrize("name", named(is_algorithm_1))


def data(dtype: torch.dtype = torch.float64) -> tuple[Network, Tensor, Tensor]:
    """A network, inputs and targets of N examples."""
    drawn = batch(torch.Generator().manual_seed(1), 1, N)
    return small_network(), drawn.inputs[0].tanh().float().to(dtype), drawn.targets[0]


def begin(mechanism: Mechanism, net: Network, stack: Hyperparameters, dtype: torch.dtype = torch.float64) -> State:
    """The same random parameters for every run."""
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2))
    _, inputs, targets = data(dtype)
    return mechanism.start(theta_P.to(dtype).repeat(len(stack.keys_RS), 1), stack, inputs, targets)


def steps(
    mechanism: Mechanism, state: State, stack: Hyperparameters, count: int, chunk: int = N
) -> Iterator[tuple[State, Observed]]:
    net, inputs, targets = data(state.theta_RP.dtype)
    for _ in range(count):
        state, seen = one_step(mechanism, net, state, stack, inputs, targets, chunk)
        yield state, seen


def last(mechanism: Mechanism, state: State, stack: Hyperparameters, count: int, chunk: int = N) -> State:
    return [state, *(after for after, _ in steps(mechanism, state, stack, count, chunk))][-1]


def same(one: State, other: State) -> bool:
    """Bit for bit."""
    left, right = whole(one), whole(other)
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


def whole(state: State) -> dict[str, Tensor]:
    """All the tensors of a state."""
    private = {f"private {name}": value for name, value in state.private.items()}
    return {"theta": state.theta_RP, "step": state.step_R, **state.memory, **private}


# Three runs that differ in every hyperparameter.
MIXED: dict[str, Any] = {
    "seeds": [5, 6, 9],
    "sampling_rate": [0.3, 0.6, 0.1],
    "learning_rate": [0.1, 0.02, 0.5],
    "clip_norm": [1.0, 0.2, 3.0],
    "noise_multiplier": [1.0, 0.3, 2.0],
}


def mixed(*runs: int) -> Hyperparameters:
    chosen: dict[str, Any] = {name: [values[run] for run in runs] for name, values in MIXED.items()}
    return hyperparameters(**chosen)


# The same alone, in a stack, in chunks, after a resume


@every_mechanism
def test_draws_are_the_same_alone_and_in_a_stack(name: str) -> None:
    """Batches and noise bit for bit: with one class there are no gradients, and the parameters move by noise alone.

    Where draws depend on gradients (dpis) rounding may move them: tests/mechanisms/test_dpis_run.py says more.
    """
    mechanism, net = MECHANISMS[name], linear_network(16, 1)
    inputs, targets = torch.linspace(-1, 1, 16 * N).reshape(N, 16), torch.zeros(N, dtype=torch.int64)
    state = stacked = mechanism.start(torch.ones(3, net.size), mixed(0, 1, 2), inputs, targets)
    alone = [state.take(torch.tensor([run])) for run in range(3)]
    for _ in range(6):
        stacked, seen = one_step(mechanism, net, stacked, mixed(0, 1, 2), inputs, targets, 5)
        for run in range(3):
            alone[run], own = one_step(mechanism, net, alone[run], mixed(run), inputs, targets, 5)
            assert torch.equal(own.drawn_R[0], seen.drawn_R[run])
            assert same(alone[run], stacked.take(torch.tensor([run])))


@every_mechanism
def test_training_is_the_same_alone_in_a_stack_and_in_chunks(name: str) -> None:
    """float64: six steps differ by rounding alone.

    A gradient of at most 12 examples and 100 terms is off by about 1e3 roundings of its size; SGD adds them up over
    six steps; Adam divides by the root of a mean square that is at least (1−β2)·g², so it multiplies a relative error
    by at most 1/sqrt(1−β2) = 32. In all 6·1e3·32·1.1e-16 = 2e-11 of the steps taken, which are below 10.
    """
    mechanism = MECHANISMS[name]
    net, _, _ = data()
    stacked = last(mechanism, begin(mechanism, net, mixed(0, 1, 2)), mixed(0, 1, 2), 6)
    for chunk in (1, 5):
        other = last(mechanism, begin(mechanism, net, mixed(0, 1, 2)), mixed(0, 1, 2), 6, chunk)
        assert float((other.theta_RP - stacked.theta_RP).abs().max()) < 2e-10
    for run in range(3):
        alone = last(mechanism, begin(mechanism, net, mixed(run)), mixed(run), 6)
        assert float((alone.theta_RP[0] - stacked.theta_RP[run]).abs().max()) < 2e-10
        assert not torch.equal(alone.theta_RP, begin(mechanism, net, mixed(run)).theta_RP), "it moved"


@every_mechanism
def test_more_places_than_examples_change_no_draw_and_no_result(name: str) -> None:
    """As on a GPU, where the places of a batch are known ahead (`places`). The bound is that of the test above."""
    mechanism = MECHANISMS[name]
    net, _, _ = data()
    padded = replace(mixed(0, 1, 2), places=N + 4)
    start = begin(mechanism, net, mixed(0, 1, 2))
    for (one, seen), (other, again) in zip(
        steps(mechanism, start, mixed(0, 1, 2), 6), steps(mechanism, start, padded, 6), strict=True
    ):
        assert torch.equal(seen.drawn_R, again.drawn_R)
        assert float((one.theta_RP - other.theta_RP).abs().max()) < 2e-10


@every_mechanism
def test_runs_of_a_stack_do_not_touch_each_other(name: str) -> None:
    """A run whose parameters are NaN leaves its neighbours as they were, bit for bit.

    Where a mechanism finds its batches by looking at gradients the NaN run has another batch than before, so the
    stack's tensors have another shape: then up to rounding of float64 over three steps, 1e-9, and the draws exactly.
    """
    mechanism = MECHANISMS[name]
    net, _, _ = data()
    good = begin(mechanism, net, mixed(0, 1, 2))
    theta_RP = good.theta_RP.clone()
    theta_RP[1] = math.nan
    bad = replace(good, theta_RP=theta_RP)
    for (one, before), (other, seen) in zip(
        steps(mechanism, good, mixed(0, 1, 2), 3), steps(mechanism, bad, mixed(0, 1, 2), 3), strict=True
    ):
        kept = torch.tensor([0, 2])
        if isinstance(mechanism, OwnSteps):
            left, right = (whole(state.take(kept)) for state in (one, other))
            assert all(torch.allclose(left[k].double(), right[k].double(), rtol=0, atol=1e-9) for k in left)
            assert torch.equal(before.drawn_R[kept], seen.drawn_R[kept])
        else:
            assert same(one.take(kept), other.take(kept))
        assert seen.finite_R[kept].all()


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_going_on_from_a_saved_state_is_going_on(name: str, dtype: torch.dtype) -> None:
    """Three steps, a file, three more steps: six steps, bit for bit."""
    mechanism = MECHANISMS[name]
    net, _, _ = data()
    start = begin(mechanism, net, mixed(0, 1, 2), dtype)
    middle = last(mechanism, start, mixed(0, 1, 2), 3)
    file = io.BytesIO()
    parts = {"theta": middle.theta_RP, "memory": dict(middle.memory), "step": middle.step_R}
    torch.save({**parts, "private": dict(middle.private)}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    back = State(kept["theta"], kept["memory"], kept["step"], kept["private"])
    assert same(last(mechanism, back, mixed(0, 1, 2), 3), last(mechanism, start, mixed(0, 1, 2), 6))


@every_mechanism
def test_a_step_changes_only_what_it_returns(name: str) -> None:
    mechanism = MECHANISMS[name]
    net, inputs, targets = data()
    stack = mixed(0, 1, 2)
    state = begin(mechanism, net, stack)
    memory, private = ({n: v.clone() for n, v in kept.items()} for kept in (state.memory, state.private))
    copy = State(state.theta_RP.clone(), memory, state.step_R.clone(), private)
    before = torch.get_rng_state()
    after, _ = one_step(mechanism, net, state, stack, inputs, targets, 5)
    assert same(state, copy)
    assert torch.equal(before, torch.get_rng_state())
    assert after.step_R.tolist() == [1, 1, 1]
    assert set(whole(after)) == set(whole(state))
    numbers = [[v for v in vars(one).values() if v is not None] for one in (stack, mixed(0, 1, 2))]
    assert all(torch.equal(a, b) for a, b in zip(*numbers, strict=True))


# What a step computes


def plain_gradients(mechanism: Any, step: Step, stack: Hyperparameters) -> Tensor:
    """The noisy gradient by plain Python: Philox on whole numbers, one example and one coordinate at a time."""
    net, inputs, targets = data()
    seen_RN = views(mechanism, step.before, inputs)
    rows = []
    for run in range(len(stack.keys_RS)):
        seed, at, rate = stack.keys_RS[run].tolist(), int(step.before.step_R[run]), float(stack.sampling_rate_R[run])
        drawn = [i for i in range(N) if uniform(seed, SAMPLE, at, i) < math.floor(rate * 2**53)]
        theta_1P = step.before.theta_RP[run : run + 1]
        clip = float(step.clip_norms()[run]) if mechanism.private else math.inf
        spread = float(step.multipliers()[run]) * clip if mechanism.private else 0.0
        places_KP = theta_1P + plain_shifts(mechanism, seed, at, rate, float(stack.learning_rate_R[run]), spread)
        one_by_one = plain_mean(net, places_KP, seen_RN[run, drawn], targets[drawn])
        scaled = own_weight(mechanism) or (lambda norm, clip: min(1.0, clip / norm))
        bound = torch.tensor(clip, dtype=torch.float64)
        total = sum((g * scaled(norm, bound) for g, norm, _ in one_by_one), torch.zeros(net.size).double())
        if mechanism.private:
            deviation = float(step.deviation()[run]) * rate * N
            noise = [deviation * gauss(seed, NOISE, at, i) for i in range(net.size)]
            total = total + torch.tensor(noise, dtype=torch.float64)
        rows.append(total / (rate * N))
    return torch.stack(rows)


def plain_shifts(mechanism: Any, seed: list[int], at: int, rate: float, learning: float, deviation: float) -> Tensor:
    """The shifts of the parameters (K, P) of a smoothed loss, one number at a time; one of zero for another loss."""
    size, smoothing = data()[0].size, getattr(mechanism, "smoothing", None)
    if smoothing is None:
        return torch.zeros(1, size, dtype=torch.float64)
    scale = smoothing.smoothing_radius * learning / (rate * N) * deviation
    count = smoothing.smoothing_samples * size
    numbers = [scale * gauss(seed, SMOOTHING, at, i) for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(-1, size)


def plain_mean(net: Network, places_KP: Tensor, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each example the mean over the places of its gradient (P,), the norm of that mean, and the mean loss."""
    whole_K = torch.full((len(places_KP),), math.inf, dtype=torch.float64)
    found = []
    for one, target in zip(inputs, targets, strict=True):
        alone = Examples(
            one.expand(len(places_KP), 1, *one.shape), target.expand(len(places_KP), 1), whole_K[:, None] > 0
        )
        each = reference(net, places_KP, alone, whole_K)
        found.append((each.sum_RP.mean(0), each.sum_RP.mean(0).norm(), each.loss_RB.mean()))
    return found


@every_algorithm_1
def test_step_is_the_algorithm(name: str) -> None:
    """The gradient that reaches the update is that of Algorithm 1, with the noise that the ledger gives for the step.

    1e-9: gradients of a norm up to 4·3/(0.1·12) = 10, 10^4 roundings of float64, and normals that agree to 1e-13.
    """
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    net, inputs, targets = data()
    state = begin(mechanism, net, stack)
    for step in shown(mechanism, net, state.theta_RP, stack, inputs, targets, 4):
        expected_RP = plain_gradients(mechanism, step, stack)
        assert float((step.gradient_RP - expected_RP).abs().max()) < 1e-9 * (1 + float(expected_RP.abs().max()))


@every_mechanism
def test_the_update_gets_what_is_shown(name: str) -> None:
    """With the state's memory, the rate and the step: what the checks see is what moves the parameters."""
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    net, inputs, targets = data()
    assert can_be_shown(mechanism), "the checks must be able to look inside: see dpbench/judging/check_tools/steps.py"
    state = begin(mechanism, net, stack)
    (step,) = shown(mechanism, net, state.theta_RP, stack, inputs, targets, 1)
    theta_RP, memory = optimised(mechanism.optimizer, state, stack.learning_rate_R, step.gradient_RP)
    after, _ = one_step(mechanism, net, state, stack, inputs, targets, N)
    assert torch.equal(after.theta_RP, theta_RP)
    assert set(memory) == set(mechanism.optimizer.memory)
    assert all(torch.equal(after.memory[kept], value) for kept, value in memory.items())
    assert after.step_R.tolist() == [1, 1, 1]


@every_mechanism
def test_the_update_sees_what_was_released_and_nothing_else(name: str) -> None:
    """No state that is private, and nothing that the mechanism has seen of other data since."""
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    net, inputs, targets = data()
    state = last(mechanism, begin(mechanism, net, stack), stack, 2)
    released, kept = mechanism.release(net, state, stack, inputs, targets, N)
    assert not kept.observed.stopped
    after = updated(mechanism, state, stack, released, kept)
    mechanism.release(net, state, stack, -inputs, targets.flip(0), N)
    again = mechanism.update(replace(state, private={}), stack.learning_rate_R, released)
    assert same(again, replace(after, private={}))
    assert after.private is kept.private
    assert set(after.private) == set(state.private)


@pytest.mark.parametrize(
    ("noisy", "plain"),
    [
        (noisy_sgd(), non_private()),
        (noisy_adam(), non_private(optimizer="adam")),
        (noisy_adam(bias_correction=True), non_private(optimizer="adam", bias_correction=True)),
        (noisy_sgd(clipping="loop"), non_private()),
    ],
)
def test_without_noise_and_clipping_it_is_the_non_private_one(noisy: Pipeline, plain: Pipeline) -> None:
    """σ = 0 and C = ∞; the limit of `test_training_is_the_same_alone_in_a_stack_and_in_chunks`."""
    assert noisy.optimizer == plain.optimizer
    net, _, _ = data()
    stack = replace(
        mixed(0, 1, 2), clip_norm_R=torch.full((3,), math.inf).double(), noise_multiplier_R=torch.zeros(3).double()
    )
    ends = [last(m, begin(m, net, stack), stack, 6).theta_RP for m in (noisy, plain)]
    assert float((ends[0] - ends[1]).abs().max()) < 2e-10


@every_mechanism
def test_every_mechanism_without_noise_and_clipping_is_its_plain_one(name: str) -> None:
    """As above, for members of the catalog that are not known here.

    A pipeline's counterpart has an ordinary backward pass; others say what theirs is (`plain`). Where examples enter
    with random weights there is none: that the weights are right is in `mechanism_inclusion`. Nor is there one where
    gradients of every norm are scaled: `test_step_is_the_algorithm` looks at their sum.
    """
    mechanism = MECHANISMS[name]
    if own_weight(mechanism) is not None:
        assert is_algorithm_1(mechanism)
        return
    if isinstance(mechanism, Pipeline) and not hasattr(mechanism.rule, "most_weight"):
        plain: Any = replace(mechanism, rule=Unclipped(), engine=None, noise=None, smoothing=None)
    elif hasattr(mechanism, "plain"):
        plain = mechanism.plain()
    else:
        assert isinstance(mechanism, Pipeline), "say what the mechanism is without privacy: `plain`"
        return
    net, _, _ = data()
    stack = hyperparameters([1, 2], 1 / 3, clip_norm=math.inf, noise_multiplier=0.0, epsilon=math.inf)
    ends = [last(m, begin(m, net, stack), stack, 4).theta_RP for m in (mechanism, plain)]
    assert float((ends[0] - ends[1]).abs().max()) < 2e-10
    assert not torch.equal(ends[0], begin(mechanism, net, stack).theta_RP), "it moved"


@pytest.mark.parametrize("name", named(lambda mechanism: not shuffled(mechanism)))  # whose batches are never empty
def test_empty_batches_are_finite(name: str) -> None:
    """Nothing is drawn in any step; a private mechanism still adds its noise, the others stand still."""
    mechanism = MECHANISMS[name]
    net, _, _ = data()
    stack = hyperparameters([1, 2], 1e-7, clip_norm=0.02, noise_multiplier=1.0)
    start = begin(mechanism, net, stack)
    for after, seen in steps(mechanism, start, stack, 5):
        assert seen.drawn_R.tolist() == [0, 0]
        assert seen.loss_R.tolist() == [0, 0]
        assert seen.clipped_R.tolist() == [0, 0]
        assert seen.finite_R.tolist() == [True, True]
        assert bool(after.theta_RP.isfinite().all())
        moved = (after.theta_RP != start.theta_RP).any(1)
        assert moved.tolist() == [mechanism.private] * 2


# What a step reports


@every_mechanism
def test_observed_is_possible(name: str) -> None:
    """No more drawn than there are, no more clipped than drawn, losses of those drawn; no run stops."""
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    net, inputs, targets = data()
    state = begin(mechanism, net, stack)
    for _ in range(4):
        state, seen = one_step(mechanism, net, state, stack, inputs, targets, 5)
        assert bool(((seen.clipped_R >= 0) & (seen.clipped_R <= seen.drawn_R) & (seen.drawn_R <= N)).all())
        assert bool(((seen.loss_R > 0) == (seen.drawn_R > 0)).all())
        assert not seen.stopped


@every_poisson_mechanism
def test_observed_counts_and_losses(name: str) -> None:
    """Drawn, clipped and the loss against the definition, run by run; 1e-9 for rounding in float64."""
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    net, inputs, targets = data()
    state = begin(mechanism, net, stack)
    for _ in range(4):
        before, clip_R = state, stack.clip_norm_R
        if hasattr(mechanism, "clip_norm"):
            clip_R = mechanism.clip_norm(before, stack)
        seen_RN = views(mechanism, before, inputs)
        state, seen = one_step(mechanism, net, state, stack, inputs, targets, 5)
        for run in range(3):
            seed, rate = stack.keys_RS[run].tolist(), float(stack.sampling_rate_R[run])
            drawn = [i for i in range(N) if uniform(seed, SAMPLE, int(before.step_R[run]), i) < int(rate * 2**53)]
            assert int(seen.drawn_R[run]) == len(drawn)
            deviation = float(stack.noise_multiplier_R[run] * clip_R[run])
            shifts_KP = plain_shifts(
                mechanism, seed, int(before.step_R[run]), rate, float(stack.learning_rate_R[run]), deviation
            )
            truth = plain_mean(net, before.theta_RP[run] + shifts_KP, seen_RN[run, drawn], targets[drawn])
            losses = sum(float(loss) for _, _, loss in truth)
            assert float(seen.loss_R[run]) == pytest.approx(losses, rel=1e-9, abs=1e-12)
            if mechanism.private and is_algorithm_1(mechanism):
                clipped = sum(float(norm) > float(clip_R[run]) for _, norm, _ in truth)
                assert int(seen.clipped_R[run]) == clipped


@every_mechanism
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_reported(name: str, value: float) -> None:
    """In the run that has one, and in the step that has one; q = 1, so that bad examples are drawn by all."""
    mechanism, stack = MECHANISMS[name], hyperparameters([1, 2], 1.0)
    net, inputs, targets = data()
    bad = inputs.clone()
    bad[:, 2] = value
    state, seen = one_step(mechanism, net, begin(mechanism, net, stack), stack, inputs, targets, 5)
    assert seen.finite_R.tolist() == [True, True]
    assert seen.finite_R.dtype == torch.bool
    _, seen = one_step(mechanism, net, state, stack, bad, targets, 5)
    assert seen.finite_R.tolist() == [False, False]
    theta_RP = state.theta_RP.clone()
    theta_RP[1, -1] = value  # the bias of the last score
    _, seen = one_step(mechanism, net, replace(state, theta_RP=theta_RP), stack, inputs, targets, 5)
    assert seen.finite_R.tolist() == [True, False]


@dataclass(frozen=True)
class Spoiled:
    """A rule whose sum is that without clipping, with one entry of the second run's replaced; else as another one."""

    rule: Rule
    place: int
    value: float

    def event(self, rate: float, noise_multiplier: float, sampler: events.Sampler) -> events.Event:
        return self.rule.event(rate, noise_multiplier, sampler)

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        return self.rule.divisor(rate_R, examples)

    def facts(self) -> Mapping[str, Any]:
        return self.rule.facts()

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        found = Unclipped().summed(draw, net, theta_RP, examples, clip_R, chunk)
        found.sum_RP[1, self.place] = self.value
        return found


@pytest.mark.parametrize("name", [name for name, found in MECHANISMS.items() if isinstance(found, Pipeline)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_entry_that_is_not_finite_is_reported(name: str, value: float) -> None:
    """Wherever in the sum it stands, and for its own run alone."""
    net, inputs, targets = data()
    for place in (0, 1, net.size // 2, net.size - 1):
        rule = Spoiled(MECHANISMS[name].rule, place, value)
        mechanism = replace(MECHANISMS[name], rule=rule, engine=None, smoothing=None)
        _, seen = one_step(mechanism, net, begin(mechanism, net, mixed(0, 1, 2)), mixed(0, 1, 2), inputs, targets, N)
        assert seen.finite_R.tolist() == [True, False, True]


@every_poisson_mechanism
def test_an_example_that_is_not_drawn_has_no_influence(name: str) -> None:
    """Example 0 is drawn by no run and has a gradient that is not finite, though its inputs are finite (3e38).

    In a stack the shorter batches have empty places. The same run alone, without empty places, is untouched, too.
    """
    mechanism = MECHANISMS[name]
    _, inputs, targets = data(torch.float32)
    net = linear_network(6, 4)
    inputs = torch.cat([torch.full_like(inputs[:1], 3e38), inputs])
    targets = torch.cat([targets[:1], targets])
    wanted = [s for s in range(500) if uniform(s, SAMPLE, 0, 0) >= 2**52]
    stack = hyperparameters(wanted[:4], 0.5)
    state = mechanism.start(10 * begin(mechanism, net, stack, torch.float32).theta_RP, stack, inputs, targets)
    _, seen = one_step(mechanism, net, state, stack, inputs, targets, len(targets))
    assert len(set(seen.drawn_R.tolist())) > 1, "batches of different sizes"
    for run in range(4):
        part = torch.tensor([run])
        _, alone = one_step(mechanism, net, state.take(part), stack.take(part), inputs, targets, len(targets))
        assert alone.finite_R.tolist() == [True]
    assert seen.finite_R.tolist() == [True] * 4


def test_only_pate_needs_public_inputs() -> None:
    assert set(EVERY) - set(MECHANISMS) == {"pate"}


def test_catalog_has_the_presets_and_their_versions() -> None:
    assert {"non_private", "noisy_sgd", "noisy_adam"} <= set(MECHANISMS)
    entries = [entry for kind in ("mechanisms", *STAGES.values()) for entry in catalog(kind).values()]
    for entry in entries:
        module: Any = __import__(entry.module, fromlist=["NUMERICS"])
        assert isinstance(module.NUMERICS, int), f"{entry.module} must declare its numerics version"
