"""Clipping at a private quantile: the joint release against the ledger, the path of the clip norm, what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.clipping.rules.quantile import FURTHEST, PrivateQuantile
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import batch, hyperparameters, reference, small_network
from dpbench.judging.checks.philox_vectors import gauss, uniform
from dpbench.mechanisms.pipeline import mechanism as pipeline
from dpbench.mechanisms.presets import quantile_clipping_sgd
from dpbench.randomness import NOISE, SAMPLE
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, Released, Setting, State, step, updated
from dpbench.step.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("one_thread")

N, RATES, CLIPS, SIGMAS = 12, [0.3, 0.6, 1.0], [1.0, 0.05, 3.0], [1.0, 0.3, 2.0]


def data() -> tuple[Network, Tensor, Tensor, Tensor]:
    drawn = batch(torch.Generator().manual_seed(1), 1, N)
    net = small_network()
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return net, theta_P.repeat(3, 1), drawn.inputs[0].tanh(), drawn.targets[0]


def mixed() -> Hyperparameters:
    return hyperparameters([5, 6, 9], RATES, clip_norm=CLIPS, noise_multiplier=SIGMAS)


@dataclass(frozen=True)
class Taken:
    before: State
    released: Released
    after: State


def course(made: Pipeline, stack: Hyperparameters, count: int) -> Iterator[Taken]:
    """Steps that move the clip norm, with fixed parameters."""
    net, theta_RP, inputs, targets = data()
    state = made.start(theta_RP, stack, inputs, targets)
    for _ in range(count):
        released, kept = made.release(net, state, stack, inputs, targets, N)
        after = replace(updated(made, state, stack, released, kept), theta_RP=theta_RP)
        yield Taken(state, released, after)
        state = after


def by_hand(stack: Hyperparameters, run: int, at: int, clip: float) -> tuple[Tensor, float]:
    """S (P,) and D of a step, one example at a time."""
    net, theta_RP, inputs, targets = data()
    seed, rate = stack.keys_RS[run].tolist(), float(stack.sampling_rate_R[run])
    drawn = [i for i in range(N) if uniform(seed, SAMPLE, at, i) < math.floor(rate * 2**53)]
    one = Examples(inputs[drawn][None], targets[drawn][None], torch.ones(1, len(drawn), dtype=torch.bool))
    found = reference(net, theta_RP[:1], one, torch.tensor([clip], dtype=torch.float64))
    return found.sum_RP[0], sum(0.5 if norm <= clip else -0.5 for norm in found.norm_RB[0].tolist())


@pytest.mark.parametrize("noise", ["constant", {"name": "decaying", "parameters": {"noise_decay": 0.3}}])
@pytest.mark.parametrize("count_noise", [None, 1.1, 40.0])
def test_sum_and_count_together_are_the_one_gaussian_of_the_ledger(noise: Any, count_noise: float | None) -> None:
    """The deviations are read off the released values, and one record changes sum and count by (C, ½).

    Noise is what remains after sum and count by hand are taken off, over the normals of plain Python. 1e-9: sums of at
    most 12 gradients, 10^4 roundings of float64, and normals that agree to 1e-13; the smallest normal is above 1e-4.
    """
    rule = {"name": "quantile", "parameters": {} if count_noise is None else {"count_noise": count_noise}}
    made, stack = pipeline(clip=rule, noise=noise), mixed()
    clips = set()
    for at, taken in enumerate(course(made, stack, 2)):
        for run in range(3):
            expected = RATES[run] * N
            clip = CLIPS[run] * float(taken.before.memory["clip_scale_R"][run])
            clips.add(clip)
            sum_P, count = by_hand(stack, run, at, clip)
            normals = [gauss(stack.keys_RS[run].tolist(), NOISE, at, i) for i in range(len(sum_P) + 1)]
            noise_P = taken.released.gradient_RP[run] * expected - sum_P
            of_gradient = float(noise_P @ torch.tensor(normals[:-1]).double()) / sum(z * z for z in normals[:-1])
            rest_P = noise_P - of_gradient * torch.tensor(normals[:-1], dtype=torch.float64)
            assert float(rest_P.abs().max()) < 1e-6 * of_gradient, "noise of one deviation, from the stated stream"
            of_count = ((float(taken.released.values["below_R"][run]) - 0.5) * expected - count) / normals[-1]
            (event,) = taken.released.events(run)
            joint = math.hypot(clip / of_gradient, 0.5 / of_count)
            assert joint == pytest.approx(1 / event.noise_multiplier, rel=1e-6)
            assert of_gradient > clip * event.noise_multiplier
            usual = max(expected / 20, event.noise_multiplier)
            assert of_count == pytest.approx(usual if count_noise is None else count_noise, rel=1e-6)
    assert len(clips) == 6, "the clip norms moved"


def test_the_clip_norm_moves_as_in_the_paper() -> None:
    """C_{t+1} = C_t·exp(−η(b̃ − γ)), one number at a time; and it is kept as released values make it."""
    made, stack = quantile_clipping_sgd(target_quantile=0.7, quantile_rate=0.5), mixed()
    clip = list(CLIPS)
    for taken in course(made, stack, 5):
        assert made.clip_norm(taken.before, stack).tolist() == pytest.approx(clip, rel=1e-13)
        below = taken.released.values["below_R"].tolist()
        clip = [c * math.exp(-0.5 * (b - 0.7)) for c, b in zip(clip, below, strict=True)]
        assert made.clip_norm(taken.after, stack).tolist() == pytest.approx(clip, rel=1e-13)


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("first", [1e-3, 50.0])
def test_it_finds_the_quantile_of_the_norms(target: float, first: float) -> None:
    """q = 1 and hardly any noise: from far below and from far above, as many norms are below C as are wanted.

    log C rises by at most 0.5γ while the share is too small and falls by at most 0.5(1 − γ) while it is too large, so
    from when it first passes the right place it stays within 0.5 of it. 100 steps go further than the way there.
    """
    made = quantile_clipping_sgd(target_quantile=target, quantile_rate=0.5)
    stack = hyperparameters([1, 2, 3], 1.0, clip_norm=first, noise_multiplier=1e-6)
    *_, last = course(made, stack, 100)
    net, theta_RP, inputs, targets = data()
    whole = Examples(inputs[None], targets[None], torch.ones(1, N, dtype=torch.bool))
    norms = reference(net, theta_RP[:1], whole, torch.tensor([math.inf], dtype=torch.float64)).norm_RB[0]
    for clip in made.clip_norm(last.after, stack).tolist():
        low, high = (float((norms <= clip * math.exp(turn)).double().mean()) for turn in (-0.5, 0.5))
        assert low <= target <= high


def test_without_noise_it_is_finite_and_the_clip_norm_still_moves() -> None:
    """σ = 0 of the checks: sum and count as they are, also with an infinite clip norm, which stays."""
    for clip, moves in ((1.0, True), (math.inf, False)):
        stack = hyperparameters([1, 2, 3], RATES, clip_norm=clip, noise_multiplier=0.0)
        made = quantile_clipping_sgd()
        for at, taken in enumerate(course(made, stack, 3)):
            assert bool(taken.released.gradient_RP.isfinite().all())
            for run in range(3):
                _, count = by_hand(stack, run, at, float(made.clip_norm(taken.before, stack)[run]))
                below = count / (RATES[run] * N) + 0.5
                assert float(taken.released.values["below_R"][run]) == pytest.approx(below, rel=1e-12, abs=1e-12)
        assert bool((made.clip_norm(taken.after, stack) != clip).all()) is moves


def test_the_clip_norm_stays_within_its_bounds() -> None:
    """An expected batch of 10^-6 makes the noisy share huge: C goes to its bounds, and no further."""
    stack = hyperparameters([1, 2, 3], 1e-7, clip_norm=2.0, noise_multiplier=1.0)
    scales = [taken.after.memory["clip_scale_R"] for taken in course(quantile_clipping_sgd(), stack, 8)]
    found = set(torch.cat(scales).tolist())
    assert found <= {FURTHEST, 1 / FURTHEST, 1.0}
    assert len(found) > 1


def test_more_noise_on_the_count_is_less_on_the_gradient() -> None:
    """σ_g falls towards σ, as 1/σ_g² = 1/σ² − 1/(2σ_b)²; the default is a twentieth of the batch, or σ."""
    one = torch.ones(1, dtype=torch.float64)
    for count_noise in (0.51, 1.0, 50.0):
        share = PrivateQuantile(count_noise=count_noise).count_share(one, 1000 * one)
        assert share.item() == pytest.approx(1 / (2 * count_noise), rel=1e-15)
    assert PrivateQuantile().count_share(one, 1000 * one).item() == pytest.approx(1 / 100, rel=1e-15)
    assert PrivateQuantile().count_share(one, 10 * one).item() == pytest.approx(1 / 2, rel=1e-15)
    made = quantile_clipping_sgd(count_noise=0.625)
    state = State(torch.zeros(1, 1), {"clip_scale_R": one}, torch.zeros(1, dtype=torch.int64))
    assert made.gradient_share(state, hyperparameters([1]), 100).item() == pytest.approx(0.6, rel=1e-15)


def test_too_little_noise_on_the_count_is_refused_before_training_and_in_a_step() -> None:
    made = quantile_clipping_sgd(count_noise=0.5)
    words = r"^count_noise = 0.5: with the noise multiplier 1 the count alone .*; expected more than 0.5$"
    with pytest.raises(DpbenchError, match=words):
        made.check(Setting(100, 0.1, 10, 0.1, 1.0, noise_multiplier=1.0))
    made.check(Setting(100, 0.1, 10, 0.1, 1.0, noise_multiplier=0.999))
    net, theta_RP, inputs, targets = data()
    stack = hyperparameters([1, 2, 3])
    with pytest.raises(DpbenchError, match=words):
        step(made, net, made.start(theta_RP, stack, inputs, targets), stack, inputs, targets, 5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target_quantile": 1.5}, "target_quantile = 1.5: expected a number from 0 to 1"),
        ({"target_quantile": math.nan}, "target_quantile = nan: expected a number from 0 to 1"),
        ({"quantile_rate": 0.0}, "quantile_rate = 0.0: expected a number above 0"),
        ({"quantile_rate": True}, "quantile_rate = True: expected a number above 0"),
        ({"count_noise": 0.0}, "count_noise = 0.0: expected a number above 0"),
        ({"count_noise": math.inf}, "count_noise = inf: expected a number above 0"),
    ],
)
def test_parameters_outside_their_ranges_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DpbenchError, match=f"^{words}$"):
        quantile_clipping_sgd(**given)


def test_without_noise_it_is_refused() -> None:
    words = r"^clip: PrivateQuantile moves the clip norm by a noisy count; expected noise, such as constant$"
    with pytest.raises(DpbenchError, match=words):
        pipeline(clip="quantile", noise="none")
