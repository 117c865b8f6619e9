"""DP-LSSGD: the smoothing against the dense inverse, what it does to noise and signal, its ledger, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.mechanisms.presets import dp_lssgd, noisy_sgd
from dpbench.step.mechanism import step
from dpbench.step.updates.laplacian_sgd import LaplacianSgd

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (1, 2, 3, 4, 5, 8, 97, 128, 251, 650)  # primes, powers of two, a model's number of parameters
WEIGHTS = (1e-3, 1.0, 10.0, 1e4)


def dense(size: int, weight: float) -> Tensor:
    """A = I − sL entry by entry: every parameter gives s to each of its two neighbours on the circle."""
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for at in range(size):
        matrix[at, at] += 1 + 2 * weight
        for neighbour in ((at - 1) % size, (at + 1) % size):
            matrix[at, neighbour] -= weight
    return matrix


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("size", SIZES)
def test_smoothing_is_the_dense_inverse(size: int, weight: float) -> None:
    """float64 to rounding.

    A transform of length P is off by some 10·log2(P) roundings of the vector's length (primes by Bluestein's three
    transforms), and the divisor is 1 or more. The solution by elimination is off by cond(A) = 1 + 4s times P roundings
    at most, and of its length, which is at most that of g.
    """
    generator = torch.Generator().manual_seed(size)
    for kind in range(3):
        gradient_P = torch.randn(size, generator=generator, dtype=torch.float64)
        if kind == 1:  # one large entry
            gradient_P = gradient_P * 1e-8 + 1e8 * (torch.arange(size) == size // 2)
        elif kind == 2:  # a constant stays as it is: every row of A sums to 1
            gradient_P = torch.full((size,), 3.0, dtype=torch.float64)
        expected_P = torch.linalg.solve(dense(size, weight), gradient_P)
        found_P = LaplacianSgd(weight).smoothed(gradient_P)
        roundings = 30 * math.log2(size + 1) + (1 + 4 * weight) * size
        assert float((found_P - expected_P).norm()) <= roundings * 2.0**-53 * float(gradient_P.norm())
        # The residual does not depend on how well the other solution is known.
        back_P = dense(size, weight) @ found_P
        limit = (1 + 4 * weight) * (30 * math.log2(size + 1) + 4) * 2.0**-53
        assert float((back_P - gradient_P).norm()) <= limit * float(gradient_P.norm())
        if kind == 2:
            assert torch.allclose(found_P, gradient_P, rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_float32_is_float64_up_to_rounding(size: int) -> None:
    """The roundings of two transforms, as above, of float32."""
    gradient_P = torch.randn(size, generator=torch.Generator().manual_seed(size))
    found_P, exact_P = (LaplacianSgd(2.0).smoothed(one) for one in (gradient_P, gradient_P.double()))
    assert found_P.dtype == torch.float32
    assert float((found_P - exact_P).norm()) <= 30 * math.log2(size + 1) * 2.0**-24 * float(gradient_P.norm())


def test_the_variance_of_the_noise_is_that_of_the_formula() -> None:
    """The squared row norm of A⁻¹, which is what smoothing leaves of independent noise of variance 1."""
    for size, weight in ((1, 1.0), (2, 1.0), (7, 0.5), (64, 3.0)):
        rows = torch.linalg.inv(dense(size, weight)).square().sum(1)
        angle_K = math.pi * torch.arange(size, dtype=torch.float64) / size
        expected = float((1 + 4 * weight * angle_K.sin().square()).pow(-2).mean())
        assert torch.allclose(rows, torch.full_like(rows, expected), rtol=1e-12, atol=0)
        assert expected <= 1


def test_a_step_is_noisy_sgd_s_smoothed_and_so_is_its_ledger() -> None:
    """The same released gradient; without weight it is NoisySGD bit for bit."""
    net, stack = linear_network(5, 3), hyperparameters([1, 2], 0.5)
    generator = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(20, 5, generator=generator), torch.randint(3, (20,), generator=generator)
    theta_RP = torch.randn(2, net.size, generator=generator)
    begun = noisy_sgd().start(theta_RP, stack, inputs, targets)
    plain, _ = step(noisy_sgd(), net, begun, stack, inputs, targets, 20)
    made: Any = dp_lssgd(smoothing_weight=2.0)
    after, _ = step(made, net, begun, stack, inputs, targets, 20)
    moved_RP = vmap(made.optimizer.smoothed)(plain.theta_RP - theta_RP)
    assert torch.allclose(after.theta_RP - theta_RP, moved_RP, rtol=0, atol=1e-5)
    assert not torch.allclose(after.theta_RP, plain.theta_RP, rtol=0, atol=1e-2)
    still, _ = step(dp_lssgd(smoothing_weight=0.0), net, begun, stack, inputs, targets, 20)
    assert torch.equal(still.theta_RP, plain.theta_RP)
    assert made.released(after, stack) == noisy_sgd().released(plain, stack)
    asked: dict[str, Any] = {"sampling_rate": 0.1, "noise_multiplier": 1.3, "steps": 7}
    assert made.ledger(**asked) == noisy_sgd().ledger(**asked)
    plain_one: Any = noisy_sgd()
    assert replace(made, optimizer=plain_one.optimizer) == plain_one, "nothing else differs"


def test_the_gradient_of_the_regularisation_is_smoothed_too() -> None:
    made: Any = dp_lssgd(smoothing_weight=2.0, regularisation=0.5)
    theta_P, gradient_P = torch.tensor([1.0, -2.0, 4.0]).double(), torch.tensor([0.5, 0.25, -1.0]).double()
    moved_P, _ = made.optimizer(theta_P, {}, gradient_P, torch.tensor(0.1).double(), torch.tensor(0.0))
    wanted_P = theta_P - float(torch.tensor(0.1)) * torch.linalg.solve(dense(3, 2.0), gradient_P + 0.5 * theta_P)
    assert torch.allclose(moved_P, wanted_P, rtol=0, atol=1e-14)
    with pytest.raises(DpbenchError, match=r"regularisation = -1: expected a finite number, 0 or more"):
        dp_lssgd(regularisation=-1)


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_a_bad_weight_is_one_sentence(weight: float) -> None:
    with pytest.raises(DpbenchError, match=r"smoothing_weight = .*: expected a finite number, 0 or more"):
        dp_lssgd(smoothing_weight=weight)
