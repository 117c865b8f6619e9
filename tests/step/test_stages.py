"""The stages: Poisson sampling to the last bit, noise, and the updates against torch and against plain Python.

The statistics of sampling are in the check `sampler_inclusion` (false alarm 1e-9 for each of the two fixed seeds) and
in one test here (1e-9); everything else is without chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import sampler_inclusion
from dpbench.judging.checks.philox_vectors import uniform
from dpbench.step.mechanism import State
from dpbench.step.noise.constant import ConstantNoise
from dpbench.step.noise.decaying import DecayingNoise
from dpbench.step.pipeline import optimised
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.stages import Noise, Update, filled, gaussian_noise
from dpbench.step.updates.adam import Adam
from dpbench.step.updates.momentum import Momentum
from dpbench.step.updates.sgd import Sgd

pytestmark = pytest.mark.usefixtures("one_thread")
quick = settings(derandomize=True, deadline=None, max_examples=80)
RATE = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5, 2.0**-53, 5e-324, 1 - 2.0**-53, 256 / 60000])


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Poisson sampling


@pytest.mark.parametrize("seed", [0, 77])
def test_sampling_follows_its_law(seed: int) -> None:
    verdict = sampler_inclusion.check(Subject("samplers", "poisson", PoissonSampler()), seed=seed)
    assert verdict.verdict == "holds", verdict
    assert verdict.false_alarm == 1e-9


def test_size_of_a_paper_batch() -> None:
    """256 of 60,000 in 60 steps: every size and their sum; false alarm 1e-9.

    The sum of all sizes is binomial with 60·60,000 trials; each size is binomial with 60,000.
    """
    steps = torch.arange(60)
    batch = PoissonSampler()(randomness.table([4]).expand(60, -1), steps, column(256 / 60000).expand(60), 60_000)
    assert sampler_inclusion.malformed(batch, 60_000) is None
    sizes = batch.mask_RB.sum(1).numpy()
    found = [statistics.binomial_p(sizes, 60_000, 256 / 60000)]
    p, _ = statistics.smallest([*found, statistics.binomial_p(sizes.sum(), 60 * 60_000, 256 / 60000)])
    assert p > statistics.FALSE_ALARM
    assert len(set(sizes.tolist())) > 10, "the size is random"


@quick
@given(RATE)
@example(2.0**-54)
@example(0.1)
@example(0.9999999999999999)
def test_threshold_is_the_floor(rate: float) -> None:
    """In when the bits are below ⌊q·2^53⌋, that number computed with fractions."""
    threshold = math.floor(Fraction(rate) * 2**53)
    bits = [b for b in (0, threshold - 1, threshold, threshold + 1, 2**53 - 1) if 0 <= b < 2**53]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "uniform_bits", lambda *_: torch.tensor([bits]))
        batch = PoissonSampler()(randomness.table([0]), torch.tensor([0]), column(rate), len(bits))
    assert batch.index_RB[batch.mask_RB].tolist() == [i for i, b in enumerate(bits) if b < threshold]


@quick
@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**40), RATE), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_batches_are_the_definition(runs: list[tuple[int, int, float]], examples: int) -> None:
    """Stacks with different q: exactly the examples whose bits, by plain whole numbers, are below the threshold."""
    keys_RS, step_R = randomness.table(run[0] for run in runs), torch.tensor([run[1] for run in runs])
    batch = PoissonSampler()(keys_RS, step_R, column(*[rate for _, _, rate in runs]), examples)
    expected = [
        [i for i in range(examples) if uniform(seed, randomness.SAMPLE, step, i) < math.floor(Fraction(q) * 2**53)]
        for seed, step, q in runs
    ]
    assert [row[mask].tolist() for row, mask in zip(batch.index_RB, batch.mask_RB, strict=True)] == expected
    assert sampler_inclusion.malformed(batch, examples) is None
    assert batch.mask_RB.shape[1] == max(1, *map(len, expected)), "the largest batch drawn, at least 1"
    first_RB = batch.index_RB[:, :1].expand_as(batch.index_RB)
    assert torch.equal(batch.index_RB[~batch.mask_RB], first_RB[~batch.mask_RB]), "no example that was not drawn"
    assert all(drawn or first == 0 for drawn, first in zip(expected, first_RB[:, 0].tolist(), strict=True))


def test_no_buffer_cuts_an_unlikely_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """q = 1e-6 and yet every example drawn: all 5,000 are there."""
    monkeypatch.setattr(randomness, "uniform_bits", lambda seed, _, __, n: torch.zeros(len(seed), n, dtype=torch.int64))
    batch = PoissonSampler()(randomness.table([0, 1]), torch.arange(2), column(1e-6, 0.0), 5000)
    assert batch.index_RB[0].tolist() == list(range(5000))
    assert batch.mask_RB[0].all()
    assert not batch.mask_RB[1].any(), "0 is not below a threshold of 0"


def test_an_example_more_leaves_the_others_draws_alone() -> None:
    """Neighbouring data: with the same q, the batch of N + 1 examples is that of N, and perhaps the new one."""
    keys_RS, step_R, rate_R = randomness.table(range(50)), torch.arange(50), column(0.3).expand(50)
    fewer, more = (PoissonSampler()(keys_RS, step_R, rate_R, n) for n in (40, 41))
    for run in range(50):
        left, right = (b.index_RB[run][b.mask_RB[run]].tolist() for b in (fewer, more))
        assert left == [i for i in right if i < 40]


@quick
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=5))
def test_filled_keeps_every_example(rows: list[list[bool]]) -> None:
    batch = filled(torch.tensor(rows))
    expected = [[i for i, chosen in enumerate(row) if chosen] for row in rows]
    assert [row[mask].tolist() for row, mask in zip(batch.index_RB, batch.mask_RB, strict=True)] == expected
    assert sampler_inclusion.malformed(batch, 5) is None


# Noise


@quick
@given(
    st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.floats(0, 1e6), st.sampled_from([torch.float32, torch.float64])
)
def test_noise_is_added_once_with_its_deviation(seed: int, step: int, deviation: float, dtype: torch.dtype) -> None:
    given_RP = torch.linspace(-3, 3, 14).reshape(2, 7).to(dtype)
    keys_RS, step_R = randomness.table([seed, seed]), torch.tensor([step, step])
    found = gaussian_noise(given_RP, column(0.0, deviation), keys_RS, step_R)
    z = randomness.normal(keys_RS, randomness.NOISE, step_R, 7, dtype=dtype)
    assert found.dtype == dtype
    assert torch.equal(found[0], given_RP[0])
    assert torch.equal(found[1], given_RP[1] + torch.tensor(deviation, dtype=dtype) * z[1])


# Updates


def adam_in_plain_python(
    gradients: list[list[float]], rate: float, beta1: float, beta2: float, offset: float, correct: bool
) -> list[float]:
    """Algorithm 2 of bu2020, one number at a time; with `correct` Kingma and Ba's correction."""
    theta, m, u = [0.5] * len(gradients[0]), [0.0] * len(gradients[0]), [0.0] * len(gradients[0])
    for turn, gradient in enumerate(gradients, start=1):
        for i, g in enumerate(gradient):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            u[i] = beta2 * u[i] + (1 - beta2) * g * g
            w, v = (m[i] / (1 - beta1**turn), u[i] / (1 - beta2**turn)) if correct else (m[i], u[i])
            theta[i] -= rate * w / (math.sqrt(v) + offset)
    return theta


def run_update(update: Update, gradients: list[list[float]], rates: list[float], dtype: torch.dtype) -> Tensor:
    """The parameters of a stack that differs in its rates, from 0.5 on, as the pipeline moves them."""
    theta_RP = torch.full((len(rates), len(gradients[0])), 0.5, dtype=dtype)
    memory = {name: torch.zeros_like(theta_RP) for name in update.memory}
    for step, gradient in enumerate(gradients):
        state = State(theta_RP, memory, torch.full((len(rates),), step))
        gradient_RP = torch.tensor(gradient, dtype=dtype).expand_as(theta_RP)
        theta_RP, memory = optimised(update, state, column(*rates), gradient_RP)
    return theta_RP


GRADIENTS = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), min_size=1, max_size=8)


@quick
@given(
    GRADIENTS,
    st.floats(1e-4, 1),
    st.floats(0, 0.99),
    st.floats(0, 0.9999),
    st.sampled_from([1e-8, 1e-3]),
    st.booleans(),
)
def test_adam_against_plain_python(
    gradients: list[list[float]], rate: float, beta1: float, beta2: float, offset: float, correct: bool
) -> None:
    """float64; 1e-12 of the sizes that are added up: a few roundings per step, at most 8 steps, |step| ≤ rate·10^4."""
    found = run_update(Adam(beta1, beta2, offset, correct), gradients, [rate, rate / 3], torch.float64)
    for run, own in enumerate((rate, rate / 3)):
        expected = adam_in_plain_python(gradients, own, beta1, beta2, offset, correct)
        size = 1 + own * 8 / math.sqrt(1 - beta2) * 10
        assert found[run].tolist() == pytest.approx(expected, rel=0, abs=1e-12 * size)


def test_adam_defaults_are_those_of_the_paper_without_correction() -> None:
    update = Adam()
    assert (update.beta1, update.beta2, update.offset, update.bias_correction) == (0.9, 0.999, 1e-8, False)
    first = run_update(update, [[2.0, -2.0, 0.0]], [0.1], torch.float64)[0].tolist()
    # m = 0.2, u = 0.004: a first step of 0.1·0.2/sqrt(0.004) = 0.316, not the 0.1 of corrected Adam.
    assert first == pytest.approx([0.5 - 0.02 / math.sqrt(0.004), 0.5 + 0.02 / math.sqrt(0.004), 0.5], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("beta1", "beta2", "offset"), [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-3), (0.0, 0.99, 1e-8)])
def test_corrected_adam_is_torchs(dtype: torch.dtype, beta1: float, beta2: float, offset: float) -> None:
    """30 steps. Each step is at most about `rate` in size and off by a few units of rounding: 30·10·u·(rate + |θ|)."""
    generator = torch.Generator().manual_seed(5)
    gradients = (torch.randn(30, 6, generator=generator) * torch.tensor([1e-4, 0.01, 0.1, 1, 10, 1e3])).tolist()
    leaf = torch.full((6,), 0.5, dtype=dtype, requires_grad=True)
    theirs = torch.optim.Adam([leaf], lr=0.05, betas=(beta1, beta2), eps=offset)
    for gradient in gradients:
        leaf.grad = torch.tensor(gradient, dtype=dtype)
        theirs.step()
    ours = run_update(Adam(beta1, beta2, offset, bias_correction=True), gradients, [0.05], dtype)[0]
    limit = 30 * 10 * torch.finfo(dtype).eps * (0.05 + float(leaf.detach().abs().max()))
    assert float((ours - leaf.detach()).abs().max()) <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_is_torchs(dtype: torch.dtype) -> None:
    """Ours rounds η·g and then the difference, torch may fuse them: one rounding of η·g and of θ per step, 30 steps."""
    generator = torch.Generator().manual_seed(6)
    gradients = torch.randn(30, 4, generator=generator).tolist()
    leaf = torch.full((4,), 0.5, dtype=dtype, requires_grad=True)
    theirs = torch.optim.SGD([leaf], lr=0.3)
    for gradient in gradients:
        leaf.grad = torch.tensor(gradient, dtype=dtype)
        theirs.step()
    ours = run_update(Sgd(), gradients, [0.3], dtype)[0]
    assert float((ours - leaf.detach()).abs().max()) <= 30 * torch.finfo(dtype).eps * (1 + 0.3 * 4 + 0.5)


@quick
@given(GRADIENTS, st.floats(0, 10))
def test_sgd_against_plain_python(gradients: list[list[float]], rate: float) -> None:
    theta = [0.5] * 3
    for gradient in gradients:
        theta = [t - rate * g for t, g in zip(theta, gradient, strict=True)]
    assert run_update(Sgd(), gradients, [rate], torch.float64)[0].tolist() == theta


@pytest.mark.parametrize("update", [Sgd(), Momentum(0.7), Adam(), Adam(bias_correction=True)])
def test_updates_are_pure_and_per_run(update: Update) -> None:
    """Inputs stay as they were; a run in a stack, at its own step and rate, moves as it does alone, bit for bit.

    Alone: in a stack of one, and as the update is written, without the axis of the runs.
    """
    generator = torch.Generator().manual_seed(8)
    theta_RP, gradient_RP = torch.randn(2, 3, 5, generator=generator)
    memory = {name: torch.rand(3, 5, generator=generator) for name in update.memory}
    rate_R, step_R = column(0.1, 0.5, 2.0), torch.tensor([0, 7, 100])
    kept = {"theta": theta_RP.clone(), "gradient": gradient_RP.clone(), **{n: v.clone() for n, v in memory.items()}}
    state = State(theta_RP, memory, step_R)
    whole, stored = optimised(update, state, rate_R, gradient_RP)
    assert all(torch.equal(kept[n], v) for n, v in {"theta": theta_RP, "gradient": gradient_RP, **memory}.items())
    assert set(stored) == set(update.memory)
    for run in range(3):
        part = torch.tensor([run])
        alone, own = optimised(update, state.take(part), rate_R[part], gradient_RP[part])
        assert torch.equal(alone[0], whole[run])
        assert all(torch.equal(own[n][0], stored[n][run]) for n in update.memory)
        rate, step = rate_R[run].to(theta_RP.dtype), step_R[run].double()
        alone, own = update(theta_RP[run], {n: v[run] for n, v in memory.items()}, gradient_RP[run], rate, step)
        assert torch.equal(alone, whole[run])
        assert all(torch.equal(own[n], stored[n][run]) for n in update.memory)


def of_a_whole_stack(
    update: Update, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same updates written for a stack, as they were once: keys of stored runs stand for these."""
    rate_R1 = rate_R[:, None].to(theta_RP.dtype)
    if isinstance(update, Sgd):
        return theta_RP - rate_R1 * gradient_RP, {}
    if isinstance(update, Momentum):
        velocity_RP = update.momentum * memory["velocity_P"] + gradient_RP
        return theta_RP - rate_R1 * velocity_RP, {"velocity_P": velocity_RP}
    assert isinstance(update, Adam)
    first_RP = update.beta1 * memory["first_P"] + (1 - update.beta1) * gradient_RP
    second_RP = update.beta2 * memory["second_P"] + (1 - update.beta2) * gradient_RP * gradient_RP
    m_RP, u_RP = first_RP, second_RP
    if update.bias_correction:
        turn_R = (step_R + 1).double()
        m_RP = first_RP / (1 - update.beta1**turn_R)[:, None].to(first_RP.dtype)
        u_RP = second_RP / (1 - update.beta2**turn_R)[:, None].to(first_RP.dtype)
    return theta_RP - rate_R1 * m_RP / (u_RP.sqrt() + update.offset), {"first_P": first_RP, "second_P": second_RP}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("update", [Sgd(), Momentum(0.7), Adam(), Adam(0.8, 0.99, 1e-3, True)])
def test_mapped_over_the_runs_an_update_is_what_it_was_for_a_stack(update: Update, dtype: torch.dtype) -> None:
    """Bit for bit over 40 steps, so that no version of the numerics goes up."""
    generator = torch.Generator().manual_seed(9)
    rate_R, start = column(0.1, 0.003, 1 / 3), torch.randn(3, 17, generator=generator).to(dtype)
    mapped = plain = (start, {name: torch.zeros_like(start) for name in update.memory})
    for number in range(40):
        gradient_RP = (torch.randn(3, 17, generator=generator) * torch.logspace(-4, 4, 17)).to(dtype)
        step_R = torch.tensor([number, number + 3, 1000 + number])
        mapped = optimised(update, State(*mapped, step_R), rate_R, gradient_RP)
        plain = of_a_whole_stack(update, *plain, gradient_RP, rate_R, step_R)
        assert torch.equal(mapped[0], plain[0])
        assert set(mapped[1]) == set(plain[1])
        assert all(torch.equal(value, plain[1][name]) for name, value in mapped[1].items())


@dataclass(frozen=True)
class Own:
    """An update whose one line is given."""

    line: Callable[[Tensor, dict[str, Tensor], Tensor, Tensor, Tensor], Any]
    memory: tuple[str, ...] = ("kept_P",)

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        found = self.line(theta_P, dict(memory), gradient_P, rate, step)
        return found if isinstance(found, tuple) else (found, dict(memory))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (lambda theta, _m, g, rate, _s: theta - rate[:, None] * g, "Own stops with IndexError: .*written for one run"),
        (lambda theta, _m, g, _r, _s: theta if g.sum() > 0 else -theta, "Own stops with RuntimeError: .*without `if`"),
        (lambda theta, m, _g, _r, _s: theta - m["velocity_P"], "Own stops with KeyError: 'velocity_P'"),
        (lambda theta, _m, g, rate, _s: theta.sub_(rate * g), "Own writes into what it is given: .* not in place"),
        (lambda theta, m, g, rate, _s: theta - rate * m["kept_P"].add_(g), "Own writes into what it is given"),
        (lambda theta, _m, g, rate, _s: theta - rate * g.mul_(2), "Own writes into what it is given"),
    ],
)
def test_what_is_no_update_of_one_run_is_one_clear_sentence(line: Any, words: str) -> None:
    state = State(torch.ones(2, 3), {"kept_P": torch.zeros(2, 3)}, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DpbenchError, match=words):
        optimised(Own(line), state, column(0.1, 0.2), torch.ones(2, 3))


# Noise schedules


@pytest.mark.parametrize("schedule", [ConstantNoise(), DecayingNoise(0.0), DecayingNoise(0.07)])
@pytest.mark.parametrize(("rate", "count"), [(0.01, 1000), (256 / 60000, 3516), (1.0, 5), (0.3, 0), (1e-7, 10)])
def test_the_noise_that_runs_is_the_noise_of_the_ledger(schedule: Noise, rate: float, count: int) -> None:
    """Step by step; exponentials of two libraries agree to a few units in the last place."""
    told = [factor for factor, times in schedule.stretches(rate, count) for _ in range(times)]
    assert len(told) == count
    ran = schedule.factor(torch.arange(count), torch.full((count,), rate, dtype=torch.float64))
    assert ran.dtype == torch.float64
    assert ran.tolist() == pytest.approx(told, rel=1e-15)


def test_decaying_noise_is_the_formula() -> None:
    """σ_0·e^(−kt), t whole epochs (Yu et al. 2019)."""
    factor_R = DecayingNoise(0.5).factor(torch.tensor([0, 3, 4, 11]), torch.full((4,), 0.25).double())
    assert factor_R.tolist() == pytest.approx([1.0, 1.0, math.exp(-0.5), math.exp(-1.0)], rel=1e-15)


@pytest.mark.parametrize("decay", [-0.1, math.nan, math.inf, "fast", True])
def test_a_bad_decay_is_refused(decay: Any) -> None:
    with pytest.raises(DpbenchError, match=r"^noise_decay = .*: expected a finite number, 0 or more$"):
        DecayingNoise(decay)
