"""Sharpness: against all corners of the box, by the definition; what it refuses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import linear_network, small_network
from dpbench.step.functional import Network
from dpbench.step.sharpness import sharpness

pytestmark = pytest.mark.usefixtures("one_thread")


def problem(classes: int = 2, features: int = 4) -> tuple[Network, Tensor, Tensor, Tensor]:
    """A linear network, so that the loss is convex in its parameters; three runs of them; examples. float64."""
    generator = torch.Generator().manual_seed(4)
    net = linear_network(features, classes)
    theta_RP = torch.randn(3, net.size, generator=generator, dtype=torch.float64)
    inputs = torch.randn(20, features, generator=generator, dtype=torch.float64)
    return net, theta_RP, inputs, torch.randint(classes, (20,), generator=generator)


def loss(theta_P: Tensor, inputs: Tensor, targets: Tensor) -> float:
    """The mean cross-entropy of a linear network, written out."""
    score = inputs @ theta_P.reshape(-1, inputs.shape[1]).T
    return float((score.logsumexp(1) - score[torch.arange(len(targets)), targets]).mean())


@pytest.mark.parametrize("reach", [0.0045, 0.3])
def test_a_convex_loss_against_all_256_corners(reach: float) -> None:
    """A convex function is largest at a corner. The search finds that corner here, and never more than it: 1e-10."""
    net, theta_RP, inputs, targets = problem()
    found_R = sharpness(net, theta_RP, inputs, targets, 7, reach=reach)
    for theta_P, found in zip(theta_RP, found_R.tolist(), strict=True):
        half_P = reach * (theta_P.abs() + 1)
        corners = itertools.product((-1.0, 1.0), repeat=net.size)
        highest = max(loss(theta_P + torch.tensor(signs).double() * half_P, inputs, targets) for signs in corners)
        centre = loss(theta_P, inputs, targets)
        assert found == pytest.approx(100 * (highest - centre) / (1 + centre), rel=1e-10)


def test_it_is_at_least_what_the_gradient_foretells() -> None:
    """100 ε Σ(|θ_i| + 1)|∂_i 𝓛|/(1 + 𝓛) on a convex loss, with one iteration."""
    net, theta_RP, inputs, targets = problem()
    found_R = sharpness(net, theta_RP, inputs, targets, 20, iterations=1)
    for theta_P, found in zip(theta_RP, found_R.tolist(), strict=True):
        residual = (inputs @ theta_P.reshape(2, -1).T).softmax(1)
        residual[torch.arange(20), targets] -= 1
        slope_P = (residual.T @ inputs).flatten() / 20
        centre = loss(theta_P, inputs, targets)
        foretold = 100 * 0.0045 * float(((theta_P.abs() + 1) * slope_P.abs()).sum()) / (1 + centre)
        assert foretold * (1 - 1e-12) <= found <= 1.2 * foretold


def test_it_leaves_a_place_without_a_gradient() -> None:
    """At θ = 0 with each target as often as the other the gradient is zero, but the loss is not flat."""
    net, inputs = linear_network(1, 2), torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    centre = torch.zeros(1, 2, dtype=torch.float64)
    found = sharpness(net, centre, inputs, torch.tensor([0, 1]), 2, reach=1.0)
    highest = (math.log1p(math.exp(2.0)) + math.log1p(math.exp(-2.0))) / 2  # at (1, −1) and (−1, 1)
    assert float(found) == pytest.approx(100 * (highest - math.log(2.0)) / (1 + math.log(2.0)), rel=1e-12)
    moved = sharpness(net, centre + torch.tensor([[0.5, 0.0]]), inputs, torch.tensor([0, 1]), 2, reach=1.0)
    highest = (math.log1p(math.exp(3.0)) + math.log1p(math.exp(-3.0))) / 2  # at (2, −1); at (−1, 1) the gap is 2
    middle = (math.log1p(math.exp(0.5)) + math.log1p(math.exp(-0.5))) / 2
    assert float(moved) == pytest.approx(100 * (highest - middle) / (1 + middle), rel=1e-12)


def test_more_iterations_reach_and_chunks() -> None:
    """Never less with more of them, never negative, and the same in chunks and alone, up to rounding of float64."""
    generator = torch.Generator().manual_seed(5)
    net = small_network()
    theta_RP = torch.randn(3, net.size, generator=generator, dtype=torch.float64)
    inputs = torch.randn(16, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (16,), generator=generator)
    by_iterations = [sharpness(net, theta_RP, inputs, targets, 16, reach=0.2, iterations=n) for n in (1, 3, 10)]
    assert bool((torch.stack(by_iterations).diff(dim=0) >= 0).all())
    assert bool((by_iterations[0] > 0).all())
    assert bool((sharpness(net, theta_RP, inputs, targets, 16, reach=0.02) < by_iterations[0]).all())
    assert torch.allclose(sharpness(net, theta_RP, inputs, targets, 5, reach=0.2), by_iterations[-1], rtol=1e-9)
    for run in range(3):
        alone = sharpness(net, theta_RP[run : run + 1], inputs, targets, 16, reach=0.2)
        assert float(alone) == pytest.approx(float(by_iterations[-1][run]), rel=1e-9)
    doubled = sharpness(net, theta_RP, inputs / 2, targets, 16, reach=0.2, view=lambda x: (2 * x).expand(3, *x.shape))
    assert torch.allclose(doubled, by_iterations[-1], rtol=1e-9)


@pytest.mark.parametrize("wrong", [{"reach": 0.0}, {"reach": math.nan}, {"reach": math.inf}, {"iterations": 0}])
def test_bad_numbers_are_refused(wrong: dict[str, Any]) -> None:
    net, theta_RP, inputs, targets = problem()
    with pytest.raises(DpbenchError, match=rf"{next(iter(wrong))} = .*: expected"):
        sharpness(net, theta_RP, inputs, targets, 7, **wrong)
