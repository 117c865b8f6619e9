"""A stack is one tensor program: sixteen runs dispatch about as many operators as two, not eight times as many.

One run alone takes no run axis, and fewer operators. On a CPU training may take a stack run by run (`fastest.py`).

Counted below autograd and vmap, so that a fallback that loops over runs or examples would show. Without chance.

The table holds the operators of a step of every pipeline mechanism, as a GPU would get them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpbench.clipping import loop
from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.mechanisms.presets import noisy_adam, noisy_sgd
from dpbench.models import mlp, tfp_cnn
from dpbench.step.functional import initial_parameters, network
from dpbench.step.mechanism import Mechanism
from dpbench.step.mechanism import step as one_step
from dpbench.step.pipeline import Pipeline
from tests.contracts.test_mechanisms import MECHANISMS as EVERY
from tests.training.test_waits import CASES, Looks, made_with, step_on_meta

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = 32
FACTOR = 1.5


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that are dispatched inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operators(
    mechanism: Mechanism,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    runs: int,
    *,
    rate: float = 1.0,
    chunk: int = 8,
) -> int:
    """The operators of one step of a stack."""
    net = network(build())
    inputs = torch.rand(EXAMPLES, *shape, generator=torch.Generator().manual_seed(0))
    targets: Tensor = torch.arange(EXAMPLES) % 10
    theta_RP = torch.stack([initial_parameters(build, run) for run in range(runs)])
    state = mechanism.start(theta_RP, hyperparameters(range(runs), rate), inputs, targets)
    with Count() as count:
        one_step(mechanism, net, state, hyperparameters(range(runs), rate), inputs, targets, chunk)
    return sum(count.seen.values())


MECHANISMS: dict[str, Pipeline] = {"noisy_sgd": noisy_sgd(), "noisy_adam": noisy_adam()}
MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp.model, (1, 8, 8)),
    "tfp_cnn": (tfp_cnn.model, (1, 28, 28)),
}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sixteen_runs_cost_no_more_operators_than_two(mechanism: str, model: str, activation: str) -> None:
    """The same chunk, and the same number of chunks: q = 1, so that every batch has the same size."""
    factory, shape = MODELS[model]

    def build() -> nn.Module:
        return factory(shape, 10, activation=activation)

    one, two, sixteen = (operators(MECHANISMS[mechanism], build, shape, runs) for runs in (1, 2, 16))
    assert one > 100, "the step was counted"
    assert one <= two
    assert sixteen < FACTOR * two, (two, sixteen)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_random_batches_too(mechanism: str) -> None:
    """q = 1/2: the largest of sixteen batches is longer, but one chunk holds it."""
    factory, shape = MODELS["mlp"]

    def build() -> nn.Module:
        return factory(shape, 10)

    counts = [operators(MECHANISMS[mechanism], build, shape, runs, rate=0.5, chunk=EXAMPLES) for runs in (2, 16)]
    assert counts[1] < FACTOR * counts[0], counts


def test_the_count_finds_an_engine_that_loops() -> None:
    """A planted fault: the yardstick engine goes through runs and examples one by one."""
    factory, shape = MODELS["mlp"]

    def build() -> nn.Module:
        return factory(shape, 10)

    mechanism = noisy_sgd(clipping="loop")
    assert mechanism.engine is loop.clipping
    one, sixteen = (operators(mechanism, build, shape, runs) for runs in (1, 16))
    assert sixteen > 10 * one


# Operators of one step on torch's `meta` device: three runs, eight places in two chunks, a linear layer.
# To renew the table, print it with `python -m tests.training.test_stack_operators`.
STEPS_OF: dict[tuple[str, str], int] = {
    ("automatic_sgd", "vmap"): 601,
    ("automatic_sgd", "ghost"): 696,
    ("decaying_sgd", "vmap"): 621,
    ("decaying_sgd", "ghost"): 716,
    ("dp_adam_jl", ""): 1038,
    ("dp_lssgd", "vmap"): 615,
    ("dp_lssgd", "ghost"): 710,
    ("dp_sgd_jl", ""): 1101,
    ("dplis", "vmap"): 3292,
    ("dplis", "ghost"): 3817,
    ("microbatched_sgd", ""): 964,
    ("noisy_adam", "vmap"): 617,
    ("noisy_adam", "ghost"): 712,
    ("noisy_sgd", "vmap"): 605,
    ("noisy_sgd", "ghost"): 700,
    ("non_private", ""): 355,
    ("normalised_sgd", "vmap"): 1029,
    ("normalised_sgd", "ghost"): 1124,
    ("pidp_sgd", "vmap"): 607,
    ("pidp_sgd", "ghost"): 702,
    ("pipeline", ""): 1475,
    ("quantile_clipping_sgd", "vmap"): 669,
    ("quantile_clipping_sgd", "ghost"): 764,
    ("shuffled_sgd", "vmap"): 623,
    ("shuffled_sgd", "ghost"): 718,
}
PIPELINES = [case for case in CASES if isinstance(EVERY[case[0]], Pipeline)]


def operators_on_meta(name: str, engine: str) -> int:
    """The operators of one step of a stack without values, as a GPU gets them: it takes no empty place for filled."""
    with Count() as count, Looks():
        step_on_meta(made_with(name, engine), linear_network(6, 2), (6,))
    return sum(count.seen.values())


@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_a_large_batch_in_one_call_sends_no_more_operators_than_a_small_one(engine: str) -> None:
    """Ten runs of the size that a GPU is to be judged by: `ghost` forms all at once there, not what caches hold."""
    counts = []
    for places in (8, 272):
        with Count() as count, Looks():
            net = network(tfp_cnn.model((1, 28, 28), 10))
            step_on_meta(made_with("noisy_sgd", engine), net, (1, 28, 28), 10, places, chunk=places)
        counts.append(sum(count.seen.values()))
    assert counts[1] == counts[0], counts


def test_the_table_has_every_pipeline_mechanism_and_no_other() -> None:
    assert [*STEPS_OF] == PIPELINES, "print the table again, as it says"


@pytest.mark.parametrize("case", PIPELINES, ids=[" ".join(case).strip() for case in PIPELINES])
def test_a_step_sends_no_more_operators_than_the_table_says(case: tuple[str, str]) -> None:
    """At most a tenth more."""
    assert operators_on_meta(*case) <= 1.1 * STEPS_OF[case], "print the table again, as it says, if that is intended"


if __name__ == "__main__":
    for case in PIPELINES:
        print(f"    {case}: {operators_on_meta(*case)},".replace("'", '"'))
