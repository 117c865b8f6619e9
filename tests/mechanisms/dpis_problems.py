"""Small problems, states and runs that the tests of DPIS have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpbench.judging.check_tools.problems import batch, reference, small_network
from dpbench.mechanisms.dpis import Dpis, mechanism
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, State
from dpbench.step.mechanism import step as one_step

N = 12
VARIANTS = ("as_printed", "equation_7", "proven")


def small(**parameters: Any) -> Dpis:
    return mechanism(**{"oversampling": 2.0, "size_noise": 5.0, "sum_noise": 30.0, **parameters})


def problem(dtype: torch.dtype = torch.float64, count: int = N) -> tuple[Network, Tensor, Tensor]:
    drawn = batch(torch.Generator().manual_seed(1), 1, count)
    return small_network(), drawn.inputs[0].tanh().to(dtype), drawn.targets[0]


def parameters(net: Network, runs: int, dtype: torch.dtype = torch.float64) -> Tensor:
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2))
    return theta_P.to(dtype).repeat(runs, 1)


def begin(dpis: Dpis, stack: Hyperparameters, dtype: torch.dtype = torch.float64) -> State:
    net, inputs, targets = problem(dtype)
    return dpis.start(parameters(net, len(stack.keys_RS), dtype), stack, inputs, targets)


def go(dpis: Dpis, state: State, stack: Hyperparameters, count: int, chunk: int = N) -> State:
    net, inputs, targets = problem(state.theta_RP.dtype)
    for _ in range(count):
        state, seen = one_step(dpis, net, state, stack, inputs, targets, chunk)
        assert not seen.stopped
    return state


def put(state: State, **values: Any) -> State:
    """The state with some of what it remembers replaced, released or private."""
    assert values.keys() <= state.memory.keys() | state.private.keys()

    def kept(old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        new = {name: torch.as_tensor(value, dtype=old[name].dtype) for name, value in values.items() if name in old}
        return {**old, **{name: value.expand_as(old[name]).clone() for name, value in new.items()}}

    return replace(state, memory=kept(state.memory), private=kept(state.private))


def forced(state: State, **values: Any) -> State:
    """The same in the middle of an epoch that does not end."""
    return put(state, next_R=10**9, **values)


def same(one: State, other: State) -> bool:
    if set(one.memory) != set(other.memory) or set(one.private) != set(other.private):
        return False
    pairs = [(one.theta_RP, other.theta_RP), (one.step_R, other.step_R)]
    pairs += [(one.memory[name], other.memory[name]) for name in one.memory]
    pairs += [(one.private[name], other.private[name]) for name in one.private]
    return all(torch.equal(a, b) for a, b in pairs)


def clipped_gradients(net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor, bound: float) -> Tensor:
    """Every example's clipped gradient (N, P), by ordinary backward passes."""
    each = Examples(inputs[:, None], targets[:, None], torch.ones(len(targets), 1, dtype=torch.bool))
    bound_N = torch.full((len(targets),), bound, dtype=torch.float64)
    return reference(net, theta_P.expand(len(targets), -1), each, bound_N).sum_RP
