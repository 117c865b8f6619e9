"""A step that runs on torch's `meta` device reads no value and mixes no devices, so it never waits for a GPU.

Tensors of that device have shapes and no values: an operator that needs a value on the host raises, and so does one
with a tensor of the CPU. So nothing here measures time. Where a step must look at a value, `Looks` answers and notes
it, so that the rest of the step is tested as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dpbench
from dpbench.catalog import find
from dpbench.events import batches_per_epoch
from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.mechanisms.presets import noisy_sgd
from dpbench.randomness import table
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Mechanism, State
from dpbench.step.mechanism import step as one_step
from dpbench.step.samplers import fixed_size, poisson, shuffled
from dpbench.step.stages import filled, most_places
from dpbench.training import loop
from dpbench.training.fastest import ENGINES
from tests.contracts.test_mechanisms import MECHANISMS
from tests.contracts.test_models import CLASSES, FACTORIES, shape_of
from tests.training.test_train import SPEC, losses, runs_of, trained

RUNS, N, PLACES = 3, 12, 8
META = torch.device("meta")

# Where a step reads values on the host, and for what; all the functions that do.
AT_THE_END = {"mechanisms/_at_the_end.py: letting_go": "which runs have come to their end"}
WAITS: dict[str, dict[str, str]] = {
    "dpis": {
        "mechanisms/dpis.py: Dpis._opened": "which runs begin an epoch",
        "mechanisms/dpis.py: Dpis.release": "which runs take part",
        "step/stages.py: filled": "the size of the batch, which is known only after the rejection",
    },
    "objective_perturbation": AT_THE_END
    | {"mechanisms/objective_perturbation.py: ObjectivePerturbation.release": "the solver works on the CPU"},
    "output_perturbation": AT_THE_END
    | {
        "mechanisms/output_perturbation.py: OutputPerturbation.release": "the step sizes, and which runs have ended",
        "mechanisms/output_perturbation.py: _places": "the largest batch",
        "mechanisms/output_perturbation.py: _setting": "the numbers of each run, for its sensitivity",
    },
}
BREAKS_OFF = ("dpis",)  # its step goes on with the records that passed the rejection, and of none there is no step
# Every mechanism, with each engine that training may choose if it takes one.
CASES = [
    (name, engine)
    for name, made in MECHANISMS.items()
    for engine in (ENGINES if getattr(made, "engine", None) is not None else ("",))
]
every_case = pytest.mark.parametrize(("name", "engine"), CASES, ids=[" ".join(case).strip() for case in CASES])


def made_with(name: str, engine: str) -> Mechanism:
    """The mechanism of a case."""
    made: Any = MECHANISMS[name]
    return replace(made, engine=find("clipping", engine).load()) if engine else made


class Looks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers when a tensor without values is looked at (nothing is found, a number is 1), and notes who looked."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        to_host = name == "_to_copy" and str(kwargs.get("device", META)) == "cpu"
        if not (name in ("nonzero", "_local_scalar_dense") or to_host) or args[0].device != META:
            return func(*args, **kwargs)
        self.places.add(_place())
        if name == "nonzero":
            return torch.empty(0, args[0].dim(), dtype=torch.int64, device=META)
        if to_host:
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return False if args[0].dtype == torch.bool else torch.ones((), dtype=args[0].dtype).item()


def _place() -> str:
    """The innermost function of dpbench that runs now, with its file."""
    house, frame = str(Path(dpbench.__file__).parent) + "/", sys._getframe(1)
    while not frame.f_code.co_filename.startswith(house):
        assert frame.f_back is not None, "called by a test alone"
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(house)}: {frame.f_code.co_qualname.split('.<locals>')[0]}"


def step_on_meta(
    mechanism: Mechanism, net: Network, shape: tuple[int, ...], runs: int = RUNS, places: int = PLACES, chunk: int = 4
) -> tuple[State, Any]:
    """One step of a stack, from its start, without values."""
    net = replace(net, module=net.module.to(META))
    stack = replace(hyperparameters(range(runs)), places=places, groups=(3, 4)).each(lambda value: value.to(META))
    inputs, targets = torch.empty(N, *shape, device=META), torch.empty(N, dtype=torch.int64, device=META)
    state = mechanism.start(torch.empty(runs, net.size, device=META), stack, inputs, targets)
    return one_step(mechanism, net, state, stack, inputs, targets, chunk)


@every_case
def test_a_step_of_every_mechanism_waits_only_where_it_is_said(name: str, engine: str) -> None:
    expected, looks = {*WAITS.get(name, {})}, Looks()
    if (name, engine) == ("dpis", "ghost"):  # which looks where the mechanism does
        expected.add("clipping/ghost.py: _add_part")
    if name in BREAKS_OFF:
        with looks, pytest.raises(NotImplementedError, match="nonzero"):
            step_on_meta(made_with(name, engine), linear_network(6, 2), (6,))
        assert looks.places == expected
        return
    with looks:
        state, seen = step_on_meta(made_with(name, engine), linear_network(6, 2), (6,))
    assert looks.places == expected
    tensors = [state.theta_RP, state.step_R, *state.memory.values(), *state.private.values()]
    tensors += [seen.drawn_R, seen.loss_R, seen.clipped_R, seen.finite_R]
    assert {value.device.type for value in tensors} == {"meta"}
    assert state.theta_RP.shape == (RUNS, 12)


def test_without_an_answer_a_look_raises() -> None:
    """And what is named as waiting exists."""
    assert set(WAITS) <= set(MECHANISMS)
    for name in WAITS:
        with pytest.raises((NotImplementedError, RuntimeError), match=r"meta|no data"):
            step_on_meta(MECHANISMS[name], linear_network(6, 2), (6,))


@pytest.mark.parametrize("runs", [1, RUNS])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", FACTORIES)
def test_a_step_of_every_model_waits_for_nothing(model: str, engine: str, runs: int) -> None:
    shape, looks = shape_of(FACTORIES[model]), Looks()
    with looks:
        state, _ = step_on_meta(made_with("noisy_sgd", engine), network(FACTORIES[model](shape, CLASSES)), shape, runs)
    assert state.theta_RP.device.type == "meta"
    assert not looks.places


def test_a_tensor_of_the_host_and_a_look_at_a_value_are_found() -> None:
    """Two planted faults: otherwise the tests above could not fail."""

    class OnHost(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + torch.ones(4)

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))

    class Looks(OnHost):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T * float(self.weight.detach().sum() > 0)

    for module in (OnHost(), Looks()):
        with pytest.raises((NotImplementedError, RuntimeError)):
            step_on_meta(noisy_sgd(), network(module), (6,), 1)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "poisson": poisson.sampler,
    "fixed_size": fixed_size.sampler,
    "shuffled": shuffled.sampler,
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("rate", [0.0, 1 / 60, 0.25, 0.5, 1.0])
def test_places_computed_ahead_hold_every_batch(name: str, rate: float) -> None:
    """The same examples in the same order, in at least as many places and in less than an eighth more, or 8."""
    sample, keys, first = SAMPLERS[name](), table([3, 4]), torch.tensor([5, 1000])
    rate_R = torch.tensor([rate, rate / 2], dtype=torch.float64)
    ahead = most_places(sample, keys, first, rate_R, 120, 7)
    assert ahead is not None
    for number, places in enumerate(ahead):
        there = (keys, first + number, rate_R, 120)
        own, padded = sample(*there), sample(*there, places)
        most = int(own.mask_RB.sum(1).max())
        assert most <= places < max(1.125 * most, most + 8) or (most == 0 and places == 8)
        for run in range(2):
            assert torch.equal(own.index_RB[run][own.mask_RB[run]], padded.index_RB[run][padded.mask_RB[run]])
            assert set(padded.index_RB[run].tolist()) <= {*own.index_RB[run].tolist()}, "no other example is read"


def test_batches_of_an_epoch_computed_on_the_device_are_the_exact_ones() -> None:
    """For N and b drawn over nine decades, multiples and their neighbours, and for the smallest rates."""
    generator = torch.Generator().manual_seed(0)
    sizes, counts = (10 ** (9 * torch.rand(2, 4000, generator=generator).double())).long().tolist()
    pairs = [
        (b, max(b, min(n // b * b + past, 999 * 10**6))) for b, n in zip(sizes, counts, strict=True) for past in (0, 1)
    ]
    rates = [min(1.0, b / n) for b, n in pairs] + [1.0, 0.5, 1e-300, 5e-324]
    expected = [min(batches_per_epoch(rate), 2**62) for rate in rates]
    assert shuffled.batches_of(torch.tensor([*rates, 0.0], dtype=torch.float64)).tolist() == [*expected, 1]


def test_too_few_places_are_an_error_and_lose_no_example() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        filled(torch.tensor([[True, True, True]]), 2)


def test_a_stack_with_places_known_ahead_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop as it is on a GPU, on the CPU; the tolerance is that of `test_alone_stacked_and_in_pieces_agree`."""
    runs = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})[:3]
    usual = trained(runs)
    taken: list[int | None] = []

    def seen(mechanism: Any, net: Any, state: Any, hyper: Any, *rest: Any) -> Any:
        taken.append(hyper.places)
        return one_step(mechanism, net, state, hyper, *rest)

    monkeypatch.setattr(loop, "NEVER_WAIT", ("cpu",))
    monkeypatch.setattr(loop, "step", seen)
    padded = trained(runs)
    assert len(taken) == 40
    assert all(places is not None and places % 8 == 0 for places in taken)
    for run in runs:
        assert losses(padded[run.key]) == pytest.approx(losses(usual[run.key]), rel=1e-4)
