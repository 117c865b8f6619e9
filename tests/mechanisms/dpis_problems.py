"""Small problems, states and runs that the tests of DPIS have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpbench.judging.checks._problems import batch, reference, small_network
from dpbench.mechanisms.dpis import Dpis, mechanism
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network
from dpbench.step.pipeline import Hyperparameters, State

N = 12


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
        state, seen = dpis.step(net, state, stack, inputs, targets, chunk)
        assert not seen.stopped
    return state


def forced(state: State, **memory: Any) -> State:
    """The state with some of its memory replaced, in the middle of an epoch that does not end."""
    new = {name: torch.as_tensor(value, dtype=state.memory[name].dtype) for name, value in memory.items()}
    new = {name: value.expand_as(state.memory[name]).clone() for name, value in new.items()}
    new["next_R"] = torch.full_like(state.step_R, 10**9)
    return replace(state, memory={**state.memory, **new})


def same(one: State, other: State) -> bool:
    pairs = [(one.theta_RP, other.theta_RP), (one.step_R, other.step_R)]
    pairs += [(one.memory[name], other.memory[name]) for name in one.memory]
    return set(one.memory) == set(other.memory) and all(torch.equal(a, b) for a, b in pairs)


def clipped_gradients(net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor, bound: float) -> Tensor:
    """Every example's clipped gradient (N, P), by ordinary backward passes."""
    each = Examples(inputs[:, None], targets[:, None], torch.ones(len(targets), 1, dtype=torch.bool))
    bound_N = torch.full((len(targets),), bound, dtype=torch.float64)
    return reference(net, theta_P.expand(len(targets), -1), each, bound_N).sum_RP
