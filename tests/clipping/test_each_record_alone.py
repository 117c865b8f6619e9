"""Internal: pieces of a pass that are made small, so that one record lies in several.

Whatever the model does with a batch, one record moves a noise-free sum by no more than its ledger says.

The models are hostile: they mix the records of a batch, stand at the kinks of their ReLUs, where rounding chooses
between two gradients, are another network at every call, or are given records whose gradients cancel. Every engine and
every private mechanism of the catalog is tried. Without chance, but for projections: their law is that of
Z = (χ²_r/r)^(−1/2), and a bound of Z that fails with the stated probability is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpbench import randomness
from dpbench.catalog import catalog
from dpbench.clipping.rules import jl
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.checks.clipping_sensitivity import rounding
from dpbench.mechanisms import dpis
from dpbench.mechanisms.presets import dp_sgd_jl
from dpbench.plan.trial import try_clipping
from dpbench.step.clipped_sum import Draw, Examples
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Hyperparameters, State, acts_at_end
from dpbench.step.stages import filled
from tests.clipping.gradients import stepped

pytestmark = pytest.mark.usefixtures("one_thread")

N, TIME, WIDTH, RUNS = 9, 3, 4, 5


class Mixing(nn.Module):
    """Two layers, and between them something that looks along the axis of the batch; inputs (B, T·I)."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.mix = nn.Linear(TIME * WIDTH, 6), nn.Linear(6, 3), mix

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.last(self.mix(torch.tanh(self.first(inputs))))
        return scores


class Sequences(nn.Module):
    """A recurrent layer that takes the batch for time: `batch_first` is forgotten."""

    def __init__(self, layer: type[nn.RNN | nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layer, self.last = layer(WIDTH, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, _ = self.layer(inputs.reshape(-1, TIME, WIDTH))
        scores: Tensor = self.last(hidden[:, -1])
        return scores


class OverTheBatch(nn.Module):
    """The same mistake by hand, so that every engine takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(TIME * WIDTH, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        state, states = torch.zeros(6, dtype=inputs.dtype), []
        for seen in self.first(inputs).unbind(0):
            state = torch.tanh(seen + self.again(state))
            states.append(state)
        scores: Tensor = self.last(torch.stack(states))
        return scores


def by_hand(value: Tensor) -> Tensor:
    return (value - value.mean(0)) / (value.var(0, unbiased=False) + 1e-5).sqrt()


def batch_norm(value: Tensor) -> Tensor:
    """Two channels of three places, so that torch takes a batch of one."""
    return F.batch_norm(value.reshape(-1, 2, 3), None, None, training=True).reshape(-1, 6)


MIXING: dict[str, Callable[[], nn.Module]] = {
    "an honest one": lambda: Mixing(lambda value: value),
    "statistics by hand": lambda: Mixing(by_hand),
    "F.batch_norm": lambda: Mixing(batch_norm),
    "centred": lambda: Mixing(lambda value: 5 * (value - value.mean(0))),
    "softmax(0)": lambda: Mixing(lambda value: 20 * value * value.softmax(0)),
    "cumsum(0)": lambda: Mixing(lambda value: value.cumsum(0)),
    "largest": lambda: Mixing(lambda value: value * value.abs().amax()),
    "shuffled": lambda: Mixing(lambda value: value + 3 * value.roll(1, 0)),
    "odd or even": lambda: Mixing(lambda value: value * (-1) ** len(value)),
    "recurrent by hand": OverTheBatch,
}
FUSED: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: Sequences(nn.RNN),
    "LSTM": lambda: Sequences(nn.LSTM),
    "GRU": lambda: Sequences(nn.GRU),
}  # torch's vmap does not take them: engines that look at operators one by one do


def built(build: Callable[[], nn.Module]) -> tuple[Network, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build()
    theta_P = torch.cat([value.detach().flatten() for value in module.parameters()])
    return network(module), 2 * theta_P


def data(count: int = N) -> tuple[Tensor, Tensor]:
    """Records of very different sizes; the last is the largest."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(count, TIME * WIDTH, generator=generator) * torch.linspace(-3, 2, count).exp()[:, None]
    return inputs, torch.randint(3, (count,), generator=generator)


def allowed(places: int, parameters: int) -> float:
    one, many = rounding(torch.float32, places, parameters)
    return 1 + one + 2 * many


# Engines


@pytest.mark.parametrize(
    ("engine", "name"),
    [(e, m) for e in sorted(catalog("clipping")) for m in [*MIXING, *FUSED] if e != "vmap" or m in MIXING],
)
def test_one_record_moves_the_sum_of_an_engine_by_the_clip_norm(engine: str, name: str) -> None:
    """Each of the records is left out in turn; four places at a time."""
    net, theta_P = built({**MIXING, **FUSED}[name])
    inputs, targets = data()
    clipping = catalog("clipping")[engine].load()
    clip = 0.03

    def total(kept: list[int], chunk: int) -> Tensor:
        examples = Examples(inputs[kept][None], targets[kept][None], torch.ones(1, len(kept), dtype=torch.bool))
        found: Tensor = clipping(net, theta_P[None], examples, torch.tensor([clip]).double(), chunk).sum_RP[0]
        return found.double() / clip

    whole = total(list(range(N)), 4)
    moved = [float((total([i for i in range(N) if i != out], 4) - whole).norm()) for out in range(N)]
    assert max(moved) > 0.5, "records are clipped: there is something to see"
    assert max(moved) <= allowed(N, net.size)


class Unlike(nn.Module):
    """Numbers whose squares vanish in float32, before a long gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2000, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = 1e16 * self.last(1e-24 * inputs)
        return scores


@pytest.mark.parametrize("engine", sorted(catalog("clipping")))
def test_a_norm_does_not_vanish_with_the_squares_of_an_input(engine: str) -> None:
    net, theta_P = network(Unlike()), torch.zeros(4000)
    examples = Examples(torch.ones(1, 1, 2000), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0)
    clip = 1e-9
    found = catalog("clipping")[engine].load()(net, theta_P[None], examples, torch.tensor([clip]).double(), 1)
    assert float(found.sum_RP.double().norm()) / clip == pytest.approx(1, rel=1e-4)


# Mechanisms


def released_sums(mechanism: Any, net: Network, theta_P: Tensor, stack: Hyperparameters, drawn: list[int]) -> Tensor:
    """What one step adds up of the records that are drawn, (R, P), in units of what one may move it by."""

    @dataclasses.dataclass(frozen=True)
    class These:
        sampler: Any = "poisson"

        def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Any:
            del step_R, rate_R
            chosen = torch.zeros(len(keys_RS), examples, dtype=torch.bool)
            chosen[:, drawn] = True
            return filled(chosen)

    inputs, targets = data()
    forced = dataclasses.replace(mechanism, sample=These())
    state = forced.start(theta_P.expand(len(stack.keys_RS), -1), stack, inputs, targets)
    step = stepped(forced, net, state, stack, inputs, targets, N)
    assert not step.seen.stopped
    return step.gradient_RP.double() / step.reach()[:, None]


PARAMETERS: dict[str, dict[str, Any]] = {
    "dp_sgd_jl": {"projections": 400},
    "dp_adam_jl": {"projections": 400},
    "dpis": {"oversampling": 2.0},
    "microbatched_sgd": {"microbatch_size": 3},
    "normalised_sgd": {"statistics_noise_multiplier": 1e-6},
}
# Those that act at the end compute with the inputs of a linear layer, and let no other model pass.
BUILT = {name: entry.load()() for name, entry in sorted(catalog("mechanisms").items())}
CLIPPING = {name: made for name, made in BUILT.items() if getattr(made, "clips", True) and not acts_at_end(made)}
LARGEST_Z = 1.4  # with r = 400: P(χ²_400 < 400/1.96) < 1e-14


@pytest.mark.parametrize("name", ["an honest one", "statistics by hand", "softmax(0)", "odd or even"])
@pytest.mark.parametrize("mechanism", [m for m, made in CLIPPING.items() if made.private and m != "dpis"])
def test_one_record_moves_the_sum_of_a_mechanism_by_what_its_event_says(mechanism: str, name: str) -> None:
    net, theta_P = built(MIXING[name])
    made = catalog("mechanisms")[mechanism].load()(**PARAMETERS.get(mechanism, {}))
    stack = hyperparameters([1, 2, 3], 1.0, clip_norm=0.03, noise_multiplier=0.0)
    whole_RP = released_sums(made, net, theta_P, stack, list(range(N)))
    limit = allowed(N, net.size) * (LARGEST_Z if "jl" in mechanism else 1)
    for out in range(N):
        left_RP = released_sums(made, net, theta_P, stack, [i for i in range(N) if i != out])
        assert float((left_RP - whole_RP).norm(dim=1).max()) <= limit


# DPIS: its own draws, so a record is left out at the end of the data


def middle(
    made: dpis.Dpis, theta_RP: Tensor, stack: Hyperparameters, inputs: Tensor, targets: Tensor, **numbers: float
) -> State:
    """In the middle of an epoch, without noise; what was released before is the same whatever the data."""
    state = made.start(theta_RP, stack, inputs, targets)
    put = {"noise_R": 0.0, "next_R": 10**9, **numbers}
    assert put.keys() <= state.memory.keys() | state.private.keys()
    memory, private = (
        {name: torch.full_like(value, put[name]) if name in put else value for name, value in kept.items()}
        for kept in (state.memory, state.private)
    )
    return dataclasses.replace(state, memory=memory, private=private)


OF_DPIS = [("proven", engine, name) for engine in sorted(catalog("clipping")) for name in [*MIXING, *FUSED]]
OF_DPIS = [(variant, engine, name) for variant, engine, name in OF_DPIS if engine != "vmap" or name in MIXING]
OF_DPIS += [(variant, "vmap", name) for variant in ("equation_7", "as_printed") for name in list(MIXING)[:3]]


@pytest.mark.parametrize(("variant", "engine", "name"), OF_DPIS)
def test_one_record_moves_the_sum_of_dpis_by_what_the_ledger_says(variant: Any, engine: str, name: str) -> None:
    net, theta_P = built({**MIXING, **FUSED}[name])
    clip, batch_size, oversampling = 0.03, 2, 2.0
    made = dpis.mechanism(oversampling=oversampling, norm_floor=1e-3, clipping=engine, variant=variant)
    fill = 0.5 if made.rules.uncapped else 0.3  # K̃ as a share of N·C; 0.3: the filter is capped
    stack = hyperparameters(range(RUNS), batch_size / N, clip_norm=clip)
    limit = allowed(N, net.size) * max(1.0, oversampling * batch_size / (fill * N))
    inputs, targets = data()
    moved, taken = [], 0
    for last in (0, 4, 8):
        order = [i for i in range(N) if i != last] + [last]
        sums = []
        for count in (N, N - 1):
            numbers = {"size_R": 20, "batch_R": batch_size, "sum_R": fill * N * clip, "seen_RN": clip}
            kept = inputs[order[:count]], targets[order[:count]]
            state = middle(made, theta_P.expand(RUNS, -1), stack, *kept, **numbers)
            step = stepped(made, net, state, stack, *kept, 4)
            assert not step.seen.stopped
            taken += int(step.seen.drawn_R.sum())
            sums.append(step.gradient_RP.double() / step.reach()[:, None])
        moved.append((sums[0] - sums[1]).norm(dim=1))
    worst = float(torch.stack(moved).max())
    assert taken > 30
    assert worst > 0.9 / (batch_size if made.rules.divided_twice else 1), "drawn records reach the bound"
    assert worst <= limit


# Kinks: what is measured on one side and summed on the other


class Kink(nn.Module):
    """A ReLU that stands at 0 up to rounding, behind it a long gradient; beside it a short one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.short = nn.Linear(300, 1, bias=False), nn.Linear(1, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        score = 1e3 * torch.relu(self.first(inputs))
        return torch.cat([score, -score], -1) + self.short(inputs[:, :1])


def at_the_kink(count: int) -> tuple[Network, Tensor, Tensor, Tensor]:
    """Records whose hidden number is a sum of 300 terms that cancel up to rounding."""
    net, theta_P = built(Kink)
    weight = net.split(theta_P[None])["first.weight"][0].double()
    inputs = torch.randn(count, 300, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    inputs -= inputs @ weight.T @ torch.linalg.pinv(weight).T
    return net, theta_P, inputs.float(), torch.ones(count, dtype=torch.int64)


@pytest.mark.parametrize("engine", sorted(catalog("clipping")))
def test_at_a_kink_one_record_moves_the_sum_of_an_engine_by_the_clip_norm_if_it_is_computed_alone(engine: str) -> None:
    """One place at a time, all records at their kinks; with more, the others may turn to their other gradient."""
    net, theta_P, inputs, targets = at_the_kink(16)
    clipping = catalog("clipping")[engine].load()

    def total(kept: list[int]) -> Tensor:
        examples = Examples(inputs[kept][None], targets[kept][None], torch.ones(1, len(kept), dtype=torch.bool))
        found: Tensor = clipping(net, theta_P[None], examples, torch.tensor([0.1]).double(), 1).sum_RP[0]
        return found.double() / 0.1

    whole = total(list(range(16)))
    moved = [float((total([i for i in range(16) if i != out]) - whole).norm()) for out in range(16)]
    assert 0.9 < max(moved) <= allowed(16, net.size)


@pytest.mark.parametrize("engine", sorted(catalog("clipping")))
def test_at_a_kink_dpis_rules_nothing_longer_than_its_bound(engine: str) -> None:
    """Norms and sum are taken over other numbers of records, so that rounding differs."""
    net, theta_P, inputs, targets = at_the_kink(64)
    made = dpis.mechanism(oversampling=2.0, norm_floor=0.1, clipping=engine)
    stack = hyperparameters(range(RUNS), 16 / 64, clip_norm=1.0)
    numbers = {"size_R": 64, "batch_R": 16, "sum_R": 32, "seen_RN": 0.5}
    state = middle(made, theta_P.expand(RUNS, -1), stack, inputs, targets, **numbers)
    step = stepped(made, net, state, stack, inputs, targets, 21)
    length_R = step.gradient_RP.double().norm(dim=1) / step.reach()
    assert int(step.seen.drawn_R.min()) > 0
    assert bool((length_R <= step.seen.drawn_R * allowed(64, net.size)).all())


@pytest.mark.parametrize("way", ["jvp", "vjp", "layers"])
@pytest.mark.parametrize("together", [1, 5, 8, 64])
def test_at_a_kink_the_gradients_are_summed_whose_projections_were_taken(
    monkeypatch: pytest.MonkeyPatch, way: Any, together: int
) -> None:
    """However few places the memory allows; no gradient is longer in the sum than C·Z."""
    net, theta_P, inputs, targets = at_the_kink(64)
    made = dp_sgd_jl(projections=400, way=way)
    widest = jl._widest(net, net.split(theta_P[None]), Examples(inputs[None], targets[None], torch.ones(1, 64)))
    monkeypatch.setattr(jl, "_TANGENTS", {"cpu": together * 401 * widest})
    stack = hyperparameters([1], 1.0, clip_norm=1e-3, noise_multiplier=0.0)
    state = made.start(theta_P[None], stack, inputs, targets)
    step = stepped(made, net, state, stack, inputs, targets, 64)
    length = float(step.gradient_RP.double().norm() / step.reach()[0])
    assert length <= 64 * LARGEST_Z


# Another network at another call: what one pass has measured says nothing about what a second one would sum


class Changing(nn.Module):
    """A gradient a thousand times as long at some calls, by a factor or by a ReLU that turns to its other side."""

    def __init__(self, how: str, period: int, phase: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(TIME * WIDTH, 6), nn.Linear(6, 3)
        self.how, self.period, self.phase, self.calls = how, period, phase, 0

    def forward(self, inputs: Tensor) -> Tensor:
        other, self.calls = self.calls % self.period == self.phase, self.calls + 1
        hidden = torch.tanh(self.first(inputs))
        if self.how == "kink":
            short: Tensor = self.last(hidden) + 1e3 * torch.relu(self.last(hidden).abs() * (1 if other else -1))
            return short
        scores: Tensor = self.last(hidden * (1e3 if other else 1))
        return scores


CHANGING = [(how, period, phase) for how in ("factor", "kink") for period in (2, 3) for phase in range(period)]


def longest(mechanism: Any, how: str, period: int, phase: int, **numbers: float) -> float:
    """The length of what one step adds up, over what one record may move it by and the number of records."""
    net, theta_P = built(lambda: Changing(how, period, phase))
    inputs, targets = data()
    stack = hyperparameters(range(RUNS), 1.0, clip_norm=0.03, noise_multiplier=0.0)
    state = mechanism.start(theta_P.expand(RUNS, -1), stack, inputs, targets)
    if numbers:
        state = middle(mechanism, theta_P.expand(RUNS, -1), stack, inputs, targets, **numbers)
    step = stepped(mechanism, net, state, stack, inputs, targets, N)
    assert not step.seen.stopped
    assert int(step.seen.drawn_R.min()) > 0
    return float((step.gradient_RP.double().norm(dim=1) / step.reach() / step.seen.drawn_R).max())


@pytest.mark.parametrize(("how", "period", "phase"), CHANGING)
@pytest.mark.parametrize("engine", sorted(catalog("clipping")))
def test_an_engine_clips_in_the_call_that_it_sums(engine: str, how: str, period: int, phase: int) -> None:
    """One record, and nine in one part and in parts."""
    inputs, targets = data()
    for count, chunk in ((1, 1), (N, N), (N, 4)):
        net, theta_P = built(lambda: Changing(how, period, phase))
        examples = Examples(inputs[None, -count:], targets[None, -count:], torch.ones(1, count) > 0)
        clip_R = torch.tensor([0.03]).double()
        found = catalog("clipping")[engine].load()(net, theta_P[None], examples, clip_R, chunk)
        assert float(found.sum_RP.double().norm()) / 0.03 <= count * allowed(N, net.size)


@pytest.mark.parametrize(("how", "period", "phase"), CHANGING)
@pytest.mark.parametrize(
    ("mechanism", "parameters"),
    [
        *((m, PARAMETERS.get(m, {})) for m, made in CLIPPING.items() if made.private),
        ("dp_sgd_jl", {"projections": 400, "way": "vjp"}),
        *(("dpis", {"clipping": engine, "oversampling": 2.0}) for engine in sorted(catalog("clipping"))),
    ],
)
def test_a_mechanism_clips_in_the_call_that_it_sums(
    mechanism: str, parameters: dict[str, Any], how: str, period: int, phase: int
) -> None:
    made = catalog("mechanisms")[mechanism].load()(**parameters)
    numbers = {"size_R": N, "batch_R": 2, "sum_R": 0.5 * N * 0.03, "seen_RN": 0.03} if mechanism == "dpis" else {}
    most = LARGEST_Z if "jl" in mechanism else 1
    assert longest(made, how, period, phase, **numbers) <= most * allowed(N, 200)


class Swapping(nn.Module):
    """Takes its two layers in another order at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last, self.calls = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), nn.Linear(4, 2), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        scores: Tensor = self.last(self.layers[self.calls % 2](torch.tanh(self.layers[1 - self.calls % 2](inputs))))
        return scores


def test_ghost_refuses_a_model_that_uses_its_parameters_otherwise_at_another_call() -> None:
    net, theta_P = built(Swapping)
    examples = Examples(torch.ones(1, 3, 4), torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3) > 0)
    with pytest.raises(DpbenchError, match="differently in different calls"):
        catalog("clipping")["ghost"].load()(net, theta_P[None], examples, torch.ones(1).double(), 3)


# Cancelling: a gradient is short, what it is a sum of is not


class Positions(nn.Module):
    """One layer at four positions and the mean over these; inputs (B, 4·8)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.last = kind, nn.Linear(8, 2, bias=False)
        self.first = nn.Linear(8, 8, bias=False) if kind == "linear" else nn.Conv1d(8, 8, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        places = inputs.reshape(-1, 4, 8)
        hidden = self.first(places) if self.kind == "linear" else self.first(places.mT).mT
        scores: Tensor = self.last(torch.tanh(hidden.mean(1)))
        return scores


class Signs(nn.Module):
    """The same word with one sign and with the other; words and signs (B, 2·4)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(5, 8), nn.Linear(8, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        words, signs = inputs.unflatten(-1, (2, 4)).unbind(-2)
        scores: Tensor = self.last(torch.tanh((self.words(words.long()) * signs[..., None]).mean(-2)))
        return scores


def cancelling(kind: str, size: float, exact: bool) -> tuple[Network, Tensor, Tensor]:
    """Sixteen records of ordinary size; the one in the middle is replaced by one that cancels, `size` as large."""
    generator = torch.Generator().manual_seed(6)
    net, theta_P = built(Signs if kind == "words" else lambda: Positions(kind))
    row = torch.randn(4, 8, generator=generator)
    row = size * (torch.tensor([1.0, -1, 1, -1])[:, None].expand(4, 8) if exact else row - row.mean(0))
    inputs = torch.randn(16, 32, generator=generator)
    if kind == "words":
        inputs = torch.cat([torch.randint(5, (16, 4), generator=generator), inputs[:, :4]], 1)
        row = torch.cat([torch.ones(4), row[:, 0]])
    inputs[8] = row.flatten()
    return net, theta_P, inputs


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("kind", ["linear", "convolution", "words"])
@pytest.mark.parametrize("engine", sorted(catalog("clipping")))
def test_a_record_whose_gradient_cancels_moves_the_sum_by_the_clip_norm(
    engine: str, kind: str, size: float, exact: bool
) -> None:
    """1e-4: `ghost` leaves to rounding what is up to 2^8 clip norms long, so 2^8 · 2^-24 and a few such errors."""
    net, theta_P, inputs = cancelling(kind, size, exact)

    def total(kept: list[int]) -> Tensor:
        targets = torch.zeros(1, len(kept), dtype=torch.int64)
        examples = Examples(inputs[None, kept], targets, torch.ones(1, len(kept)) > 0)
        found: Tensor = (
            catalog("clipping")[engine].load()(net, theta_P[None], examples, torch.tensor([1e-3]), 16).sum_RP
        )
        return found.double() / 1e-3

    moved = total(list(range(16))) - total([i for i in range(16) if i != 8])
    assert float(moved.norm()) <= 1 + 1e-4
    assert float(total([8]).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("kind", ["linear", "convolution", "words"])
@pytest.mark.parametrize("way", ["jvp", "vjp", "layers"])
def test_a_record_whose_gradient_cancels_moves_a_weighted_sum_by_z_clip_norms(
    way: Any, kind: str, size: float, exact: bool
) -> None:
    """The second run, in which nothing cancels, stays what it is beside the first."""
    net, theta_P, inputs = cancelling(kind, size, exact)
    plain = inputs.clone()
    plain[8] = plain[7]

    def total(kept: list[int], *stack: Tensor) -> Tensor:
        runs = len(stack)
        examples = Examples(
            torch.stack([of[kept] for of in stack]),
            torch.zeros(runs, len(kept), dtype=torch.int64),
            torch.ones(runs, len(kept)) > 0,
        )
        zero_R, rate_R = torch.zeros(runs, dtype=torch.int64), torch.ones(runs, dtype=torch.float64)
        draw = Draw(randomness.table(range(runs)), zero_R, torch.tensor([kept] * runs), rate_R, 16)
        clip_R, rule = torch.full((runs,), 1e-3), jl.ProjectedSum(400, way)
        return rule.summed(draw, net, theta_P.expand(runs, -1), examples, clip_R, 16).sum_RP / 1e-3

    everything = list(range(16))
    both = total(everything, inputs, plain).double()
    moved = both - total([i for i in everything if i != 8], inputs, plain).double()
    assert float(moved[0].norm()) <= LARGEST_Z
    assert torch.equal(both[1], total(everything, plain, plain).double()[1])


# An operator whose own backward pass takes the axis of the runs for that of the records


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_a_prelu_in_a_stack_of_runs(engine: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 2))

    net, theta_P = built(build)
    theta_2P = torch.stack([theta_P, -theta_P])
    inputs = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    targets, mask_RB = torch.tensor([[0, 1, 1], [1, 0, 1]]), torch.ones(2, 3) > 0
    clipping = catalog("clipping")[engine].load()
    stacked = clipping(net, theta_2P, Examples(inputs, targets, mask_RB), torch.full((2,), 0.1).double(), 3)
    for run in (slice(0, 1), slice(1, 2)):
        examples = Examples(inputs[run], targets[run], mask_RB[run])
        alone = catalog("clipping")["loop"].load()(net, theta_2P[run], examples, torch.full((1,), 0.1).double(), 1)
        assert torch.allclose(stacked.sum_RP[run], alone.sum_RP, atol=1e-6)
    try_clipping([catalog("clipping")[engine]], build, (4,))
