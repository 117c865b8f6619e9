"""Training: a step of a stack, in time, memory and dispatched operators; the clipping engines; evaluation.

A step starts from the same state each time, so that it draws the same batch and does the same work in every commit.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import imported, names, seeds

timer = time.process_time  # on one thread: what else the machine does counts less
repeat = (5, 20, 2.0)  # samples per process: at least, at most, and the seconds after which to stop


@cache
def data(model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Training data: the digits for the mlp, and random numbers in the shape of MNIST for the convolutions."""
    if model == "mlp":
        home = imported("datasets")
        home = home if hasattr(home, "find_dataset") else imported("data")  # where it stood before
        digits = home.find_dataset("digits").load(None)
        return digits.train_inputs, digits.train_targets
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2000, 1, 28, 28, generator=generator), torch.randint(10, (2000,), generator=generator)


@cache
def network(model: str, runs: int) -> tuple[Any, torch.Tensor]:
    """The network and the initial parameters of a stack."""
    torch.set_num_threads(1)
    functional = imported("step.functional")
    build = partial(imported(f"models.{model}").model, tuple(data(model)[0].shape[1:]), 10)
    return functional.network(build()), torch.stack([functional.initial_parameters(build, run) for run in range(runs)])


def noisy_sgd() -> Any:
    """What builds the mechanism; in earlier commits it had a module of its own."""
    try:
        return imported("mechanisms.presets").noisy_sgd
    except NotImplementedError:
        return imported("mechanisms.noisy_sgd").mechanism


@cache
def step(model: str, runs: int, batch: int, clipping: str = "vmap", chunk: int | None = None) -> Callable[[], Any]:
    """The first step of NoisySGD of a stack whose runs expect `batch` examples; in chunks as training makes them."""
    inputs, targets = data(model)
    net, theta_RP = network(model, runs)
    mechanism = noisy_sgd()(clipping=clipping)

    def column(value: float) -> torch.Tensor:
        return torch.full((runs,), value, dtype=torch.float64)

    made = imported("step.mechanism").Hyperparameters
    values = {
        "seed_R": seeds(runs),  # in earlier commits
        "keys_RS": seeds(runs),
        "sampling_rate_R": column(batch / len(targets)),
        "learning_rate_R": column(0.25),
        "clip_norm_R": column(1.0),
        "noise_multiplier_R": column(1.0),
        "steps_R": torch.full((runs,), 1000),
        "epsilon_R": column(math.nan),
        "delta_R": column(math.nan),
        "places": None,
        "groups": None,
    }
    hyper = made(**{field.name: values[field.name] for field in fields(made)})  # earlier commits have fewer
    if chunk is None:
        chunk = imported("training.loop").Execution().chunk(runs, net.size)
    known = len(inspect.signature(mechanism.start).parameters) == 1  # so in earlier commits
    start = mechanism.start(theta_RP) if known else mechanism.start(theta_RP, hyper, inputs, targets)
    # in earlier commits a method of the mechanism
    act = mechanism.step if hasattr(mechanism, "step") else partial(imported("step.mechanism").step, mechanism)
    taken = partial(act, net, start, hyper, inputs, targets, chunk)
    taken()  # torch imports and remembers much in its first step
    return taken


class Count(TorchDispatchMode):
    """Counts the operators that are dispatched inside."""

    total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        self.total += 1
        return func(*args, **(kwargs or {}))


class _Step:
    """One step of NoisySGD; `runs` stand in the stack."""

    param_names = ("runs",)
    model = "mlp"
    batch = 256

    def setup(self, runs: int) -> None:
        step(self.model, runs, self.batch)

    def time_step(self, runs: int) -> None:
        step(self.model, runs, self.batch)()

    def peakmem_step(self, runs: int) -> None:
        """The peak of the whole process, about 0.4 GB of which are torch itself."""
        step(self.model, runs, self.batch)()

    def track_operators(self, runs: int) -> int:
        """The whole batch in one chunk, as on a GPU. Free of noise: more operators are a slower step there."""
        taken = step(self.model, runs, self.batch, chunk=10 * self.batch)
        with Count() as count:
            taken()
        return count.total

    track_operators.unit = "operators"


class MlpOnDigits(_Step):
    """The quickstart's model and batch."""

    params = ((1, 16),)


class CnnOnMnistShapes(_Step):
    """The network of Table 1, with a batch that is small enough for a quick benchmark."""

    params = ((1, 4),)
    model = "tfp_cnn"
    batch = 64


class Clipping:
    """A step with each clipping engine: one run, sixteen examples."""

    params = (names("clipping"),)
    param_names = ("clipping",)

    def setup(self, clipping: str) -> None:
        imported(f"clipping.{clipping}")
        step("mlp", 1, 16, clipping)

    def time_step(self, clipping: str) -> None:
        step("mlp", 1, 16, clipping)()


class Evaluation:
    """Loss and accuracy of a stack on 500 examples."""

    params = ((1, 16),)
    param_names = ("runs",)

    def setup(self, runs: int) -> None:
        network("mlp", runs)

    def time_evaluate(self, runs: int) -> None:
        inputs, targets = data("mlp")
        imported("step.functional").evaluate(*network("mlp", runs), inputs[:500], targets[:500], 50)
