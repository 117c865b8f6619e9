"""Internal: influence functions agree with retraining, numerical derivatives and exact quadratics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import batch, small_network
from dpbench.mechanisms import _influence
from dpbench.models.logistic import model as logistic
from dpbench.step.functional import Network, network

pytestmark = pytest.mark.usefixtures("one_thread")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Logistic:
    """Softmax regression with a ridge λ/2‖θ‖² in NumPy; θ is laid out as in torch: weights (2, d), biases (2,)."""

    features: Array
    labels: NDArray[np.int64]
    ridge: float
    records: int  # n: each record weighs 1/n, whether it is there or not

    def gradient(self, theta: Array) -> Array:
        away = self._probabilities(theta) - np.eye(2)[self.labels]
        parts = [(away.T @ self.features).ravel(), away.sum(0)]
        found: Array = np.concatenate(parts) / self.records + self.ridge * theta
        return found

    def hessian(self, theta: Array) -> Array:
        p = self._probabilities(theta)
        wide = np.hstack([self.features, np.ones((len(self.labels), 1))])
        block = (wide * (p[:, :1] * p[:, 1:])).T @ wide / self.records
        whole = np.block([[block, -block], [-block, block]])  # class by class, its weights and its bias
        d = self.features.shape[1]
        order = [*range(d), *range(d + 1, 2 * d + 1), d, 2 * d + 1]
        return whole[np.ix_(order, order)] + self.ridge * np.eye(len(theta))

    def optimum(self, start: Array) -> Array:
        """By SciPy's root finder; the gradient's norm, over λ, bounds how far it is off."""
        found = optimize.root(self.gradient, start, jac=self.hessian, method="hybr", options={"xtol": 1e-14})
        theta: Array = found.x - np.linalg.solve(self.hessian(found.x), self.gradient(found.x))
        assert np.linalg.norm(self.gradient(theta)) / self.ridge < 1e-12
        return theta

    def _probabilities(self, theta: Array) -> Array:
        d = self.features.shape[1]
        found: Array = special.softmax(self.features @ theta[: 2 * d].reshape(2, d).T + theta[2 * d :], axis=1)
        return found

    def without(self, record: int) -> Logistic:
        kept = np.arange(len(self.labels)) != record
        return Logistic(self.features[kept], self.labels[kept], self.ridge, self.records)


def breast_cancer(ridge: float) -> Logistic:
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    features = features / np.linalg.norm(features, axis=1).max()
    return Logistic(features, labels.astype(np.int64), ridge, len(labels))


def test_influence_is_leave_one_out_retraining_within_the_corrected_bound() -> None:
    """569 real records, each twelfth taken out, and the most influential; everything in float64.

    With s = 1 + max‖x‖² the softmax loss of two classes has G = (2s)^½, L = s/2 and C = (2s)^1.5/(6·3^½): the scores
    move within a range of 2^½ along a unit direction, and the k-th cumulant of a variable in such a range is at most
    range^k times 1/4 (k = 2) or 1/(6·3^½) (k = 3). The loss is convex, so ζ = λ on the whole path.
    """
    problem = breast_cancer(ridge=0.2)
    best = problem.optimum(np.zeros(62))
    net, theta_P = network(logistic((30,), 2)), torch.tensor(best)
    data = torch.tensor(problem.features), torch.tensor(problem.labels)
    slope_NP = _influence.gradients(net, theta_P, *data)
    hessian_PP = _influence.hessian(net, theta_P, *data, problem.ridge)
    assert float((hessian_PP - torch.tensor(problem.hessian(best))).abs().max()) < 1e-14
    move_NP = (torch.cholesky_solve(slope_NP.T, _influence.factor(hessian_PP)).T / problem.records).numpy()

    largest = int(np.linalg.norm(move_NP, axis=1).argmax())
    chosen = sorted({*range(0, problem.records, 12), largest})
    moved = np.array([problem.without(record).optimum(best) - best for record in chosen])
    error = np.linalg.norm(moved - move_NP[chosen], axis=1)
    s = 1 + float((problem.features**2).sum(1).max())
    bound = _influence.error_bound(
        gradient=(2 * s) ** 0.5,
        smoothness=s / 2,
        third=(2 * s) ** 1.5 / (6 * 3**0.5),
        curvature=problem.ridge,
        records=problem.records,
    )
    assert error.max() <= bound
    # The bound tells something: it is below what the optimum moves by, and a wrong sign or factor breaks it.
    size = np.linalg.norm(moved, axis=1)
    assert bound < 0.5 * size.max()
    for wrong in (0.0, -1.0, 2.0):
        assert np.linalg.norm(moved - wrong * move_NP[chosen], axis=1).max() > bound


def problems() -> list[tuple[Network, Tensor, Tensor, Tensor, float]]:
    """A linear and a tanh network, with a λ that makes the Hessian of the second positive definite."""
    found = []
    for net, ridge in ((network(nn.Linear(6, 4)), 0.01), (small_network(), 3.0)):
        drawn = batch(torch.Generator().manual_seed(4), 1, 40)
        theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        found.append((net, theta_P, drawn.inputs[0].tanh(), drawn.targets[0], ridge))
    return found


@pytest.mark.parametrize("number", [0, 1])
def test_dense_and_conjugate_gradients_agree(number: int) -> None:
    """Each is off by at most its residual over the least eigenvalue ζ: 1e-10‖b‖/ζ, and rounding for the dense one."""
    net, theta_P, inputs, targets, ridge = problems()[number]
    slope_NP = _influence.gradients(net, theta_P, inputs, targets)
    hessian_PP = _influence.hessian(net, theta_P, inputs, targets, ridge)
    dense_NP = torch.cholesky_solve(slope_NP.T, _influence.factor(hessian_PP)).T
    found_NP = _influence.conjugate_gradients(net, theta_P, inputs, targets, slope_NP, ridge)
    least, most = (float(torch.linalg.eigvalsh(hessian_PP)[place]) for place in (0, -1))
    rounding = 100 * len(theta_P) * 2.0**-53 * most / least
    allowed_N = (_influence.TOLERANCE + rounding) * slope_NP.norm(dim=1) / least
    assert bool(((found_NP - dense_NP).norm(dim=1) <= allowed_N).all())
    loose_NP = _influence.conjugate_gradients(net, theta_P, inputs, targets, slope_NP, ridge, tolerance=1e-2)
    assert bool(((loose_NP - dense_NP).norm(dim=1) > allowed_N).any()), "the tolerance can be missed"


@pytest.mark.parametrize("number", [0, 1])
def test_products_are_derivatives_of_gradients(number: int) -> None:
    """Central differences of the mean gradient: an error of h² times the third derivative, here about 1e-8."""
    net, theta_P, inputs, targets, ridge = problems()[number]
    vectors_KP = torch.randn(3, net.size, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found_KP = _influence.products(net, theta_P, inputs, targets, vectors_KP, ridge)
    for vector_P, product_P in zip(vectors_KP, found_KP, strict=True):
        ends = [_influence.gradients(net, theta_P + h * vector_P, inputs, targets).mean(0) for h in (1e-5, -1e-5)]
        assert float(((ends[0] - ends[1]) / 2e-5 + ridge * vector_P - product_P).abs().max()) < 1e-8


def test_gradients_are_those_of_single_records() -> None:
    net, theta_P, inputs, targets, _ = problems()[1]
    found_NP = _influence.gradients(net, theta_P, inputs, targets, chunk=7)
    for record in (0, 20, 39):
        leaf_P = theta_P.clone().requires_grad_()
        named = {name: value[0] for name, value in net.split(leaf_P[None]).items()}
        net.example_loss(named, inputs[record], targets[record]).backward()  # type: ignore[no-untyped-call]
        assert leaf_P.grad is not None
        assert float((leaf_P.grad - found_NP[record]).abs().max()) < 1e-14


def test_a_hessian_that_is_not_positive_definite_is_refused() -> None:
    """Softmax without a ridge is flat where all scores move alike; the tanh network has negative curvature."""
    for number in (0, 1):
        net, theta_P, inputs, targets, _ = problems()[number]
        hessian_PP = _influence.hessian(net, theta_P, inputs, targets, 0.0)
        assert float(torch.linalg.eigvalsh(hessian_PP)[0]) < 1e-12
        slope_NP = torch.randn(8, net.size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        least = float(torch.linalg.eigvalsh(hessian_PP)[0])
        with pytest.raises(DpbenchError, match=r"not positive definite.*regularisation.*eigenvalue is -") as caught:
            _influence.factor(hessian_PP - 0.01 * torch.eye(net.size))
        assert float(str(caught.value).rpartition(" ")[2]) == pytest.approx(least - 0.01, rel=0.01)
        with pytest.raises(DpbenchError, match=r"not positive definite"):
            _influence.factor(hessian_PP - 1e-12 * torch.eye(net.size))
        with pytest.raises(DpbenchError, match=r"most negative eigenvalue$"):
            _influence.factor(hessian_PP * torch.nan)
        with pytest.raises(DpbenchError, match=r"not positive definite|conjugate gradients: no solution"):
            _influence.conjugate_gradients(net, theta_P, inputs, targets, slope_NP, -1e-12)


@pytest.mark.parametrize("records", [10, 1000])
def test_quadratics_attain_the_error_bound(records: int) -> None:
    """(h/2)(θ − z)² with weight w beside λθ²/2, in rationals: C = 0, and E over the bound tends to 1 as 1 − O(1/n).

    So half of the paper's constant is enough and cannot be made smaller.
    """
    h, ridge, z = Fraction(1), Fraction(1, 10), Fraction(1)
    theta = {w: (w * h * z / records) / (ridge + w * h / records) for w in (0, 1)}
    slope = h * (theta[1] - z)
    error = abs(theta[0] - theta[1] - slope / (ridge + h / records) / records)
    steepest = max(abs(h * (theta[w] - z)) for w in (0, 1))
    numbers: dict[str, Any] = {"smoothness": float(h), "third": 0.0, "curvature": float(ridge), "records": records}
    bound = _influence.error_bound(gradient=float(steepest), **numbers)
    assert 1 - 30 / records < float(error) / bound <= 1 + 1e-12
    assert math.isclose(bound, float(2 * h * steepest / (ridge * records) ** 2 / 2))
