"""The optimum of L2-regularised logistic regression on given data, and how far parameters are above it.

F(W) = (1/N)·Σ_i ℓ(W; x_i, y_i) + (λ/2)·‖W‖², ℓ the cross-entropy, biases regularised too (docs/convex.md). All in
float64. Diagnostics: they are computed from private data, without noise, and are in no ledger. scipy's solvers are
imported where they are used first, since every plan reads this file.
Shapes: N examples, F features, C classes, P parameters: the weight (C, F), then the bias (C), as in `nn.Linear`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.step import logistic

if TYPE_CHECKING:
    from scipy.sparse import linalg

Numbers = NDArray[np.float64]
GRADIENT_NORM = 1e-10
MOST_STEPS = 50  # of Newton's method, which squares the error in each


@dataclass(frozen=True, eq=False)
class Problem:
    """The objective on inputs (N, ...), each clipped to the norm `radius` (None: as they are), and targets (N,).

    `tilt_P` is added to the gradient: F has the further term tilt·W (objective perturbation).
    Raises DpbenchError for a regularisation that is not above 0: then the optimum need not exist.

    >>> problem = Problem(torch.eye(4), torch.tensor([0, 1, 0, 1]), 2, regularisation=0.1)
    >>> best = problem.optimum()
    >>> problem.gap(best.parameters_P) == 0 and problem.gap(np.zeros(10)) > 0
    True
    """

    inputs: Tensor
    targets: Tensor
    classes: int
    regularisation: float
    radius: float | None = None
    bias: bool = True
    tilt_P: Numbers | None = None

    def __post_init__(self) -> None:
        if not 0 < self.regularisation < math.inf:
            raise DpbenchError(
                f"regularisation = {self.regularisation!r}: without it the optimum may lie at infinity; expected a"
                " finite number above 0"
            )

    @cached_property
    def _data(self) -> tuple[Numbers, NDArray[np.int64]]:
        """The clipped inputs, with a column of ones for the bias: (N, F + 1); and the targets."""
        radius_1 = torch.tensor([math.inf if self.radius is None else self.radius], dtype=torch.float64)
        flat: Numbers = logistic.clipped(self.inputs.cpu()[None], radius_1)[0].flatten(1).numpy()
        seen = np.concatenate([flat, np.ones((len(flat), 1))], 1) if self.bias else flat
        return np.ascontiguousarray(seen), self.targets.cpu().numpy()

    def value(self, parameters_P: Numbers) -> float:
        """F."""
        return float(self._value_and_gradient(self._columns(parameters_P).ravel())[0])

    def gap(self, parameters_P: Any) -> float:
        """F less its minimum; exact but for rounding and for the optimum's `error`."""
        return self.value(np.asarray(parameters_P, dtype=np.float64)) - self._best.value

    def optimum(self) -> Optimum:
        """The minimum, to a gradient of the norm 1e-10. Raises DpbenchError where that is not reached."""
        return self._best

    @cached_property
    def _best(self) -> Optimum:
        from scipy import optimize
        from scipy.sparse import linalg

        seen_NG, _ = self._data
        start = np.zeros(self.classes * seen_NG.shape[1])
        # First far and cheap, then Newton's method: near the minimum differences of F are below its rounding.
        options = {"maxiter": 2000, "gtol": 1e-6, "ftol": 1e-15, "maxcor": 20}
        found = optimize.minimize(self._value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
        best, taken = np.asarray(found.x, dtype=np.float64), 0
        value, gradient = self._value_and_gradient(best)
        while not np.linalg.norm(gradient) <= GRADIENT_NORM:
            if taken == MOST_STEPS or not np.isfinite(gradient).all():
                norm = np.linalg.norm(gradient)
                raise DpbenchError(
                    f"the optimum: the gradient has the norm {norm:.3g} after {taken} steps of Newton's method;"
                    f" expected {GRADIENT_NORM:g} or less: take more regularisation, or smaller inputs"
                )
            # Inexact steps, to a share of the gradient that falls with it: superlinear.
            share = min(0.01, float(np.linalg.norm(gradient)) ** 0.5)
            way, _ = linalg.cg(self._hessian(best), -gradient, rtol=share, maxiter=10 * best.size)
            best, taken = best + way, taken + 1
            value, gradient = self._value_and_gradient(best)
        last = float(np.linalg.norm(gradient))
        return Optimum(self._parameters(best), value, last, last**2 / (2 * self.regularisation))

    def _columns(self, parameters_P: Numbers) -> Numbers:
        """The parameters as a matrix (C, F + 1), the bias its last column."""
        if not self.bias:
            return parameters_P.reshape(self.classes, -1)
        weight, bias = parameters_P[: -self.classes], parameters_P[-self.classes :]
        return np.concatenate([weight.reshape(self.classes, -1), bias[:, None]], 1)

    def _parameters(self, columns: Numbers) -> Numbers:
        matrix = columns.reshape(self.classes, -1)
        return np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]]) if self.bias else columns

    def _value_and_gradient(self, columns: Numbers) -> tuple[float, Numbers]:
        from scipy.special import log_softmax

        seen_NG, targets_N = self._data
        log_NC = log_softmax(seen_NG @ columns.reshape(self.classes, -1).T, axis=1)
        places = np.arange(len(targets_N))
        loss = -float(log_NC[places, targets_N].mean())
        residual_NC = np.exp(log_NC)
        residual_NC[places, targets_N] -= 1
        gradient = (residual_NC.T @ seen_NG).ravel() / len(targets_N) + self.regularisation * columns
        loss += self.regularisation / 2 * float(columns @ columns)
        if self.tilt_P is None:
            return loss, gradient
        tilt = self._columns(self.tilt_P).ravel()
        return loss + float(tilt @ columns), gradient + tilt

    def _hessian(self, columns: Numbers) -> linalg.LinearOperator:
        from scipy.sparse import linalg
        from scipy.special import log_softmax

        seen_NG, _ = self._data
        p_NC = np.exp(log_softmax(seen_NG @ columns.reshape(self.classes, -1).T, axis=1))

        def product(vector: Numbers) -> Numbers:
            along_NC = seen_NG @ vector.reshape(self.classes, -1).T
            curved_NC = p_NC * (along_NC - (p_NC * along_NC).sum(1, keepdims=True))
            found: Numbers = (curved_NC.T @ seen_NG).ravel() / len(seen_NG) + self.regularisation * vector
            return found

        return linalg.LinearOperator((columns.size, columns.size), matvec=product, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Optimum:
    """The parameters (P,) of the minimum, F there, the norm of its gradient, and how far F may be above the minimum.

    F is λ-strongly convex, so it is at most ‖∇F‖²/(2λ) above: `error`, a bound, but for the rounding of F itself.
    """

    parameters_P: Numbers
    value: float
    gradient_norm: float
    error: float
