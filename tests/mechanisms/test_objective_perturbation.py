"""Objective perturbation: the privacy loss of its proof, point by point; its minima; its runs; what it refuses.

What every mechanism must do that acts at the end is in `tests/contracts/test_end_mechanisms.py`.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor, nn

from dpbench.errors import ProblemsError
from dpbench.events import from_json
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.checks.philox_vectors import gauss
from dpbench.mechanisms.objective_perturbation import SHARE, ObjectivePerturbation
from dpbench.privacy.accounting import account
from dpbench.randomness import NOISE
from dpbench.step.functional import network
from dpbench.step.mechanism import Setting, step
from dpbench.step.optimum import GRADIENT_NORM
from tests.training.test_train_mechanisms import runs_of, trained

pytestmark = pytest.mark.usefixtures("one_thread")


Numbers = NDArray[np.float64]


def derivatives(at_P: Numbers, inputs: Numbers, targets: Numbers) -> tuple[Numbers, Numbers]:
    """Gradient and Hessian of the sum of cross-entropies of two classes, without a bias, one record at a time.

    The formulas of docs/convex.md, which test_output_perturbation.py holds to automatic differentiation.
    """
    gradient_P, hessian_PP = np.zeros(6), np.zeros((6, 6))
    for x, target in zip(inputs, targets, strict=True):
        p = softmax(at_P.reshape(2, 3) @ x)
        gradient_P += np.kron(p - np.eye(2)[int(target)], x)
        hessian_PP += np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
    return gradient_P, hessian_PP


def density(at_P: Numbers, data: tuple[Numbers, Numbers], deviation: float, weight: float) -> tuple[Numbers, float]:
    """The noise that has its minimum at this place, and the minimum's log density there, but for a constant."""
    gradient_P, hessian_PP = derivatives(at_P, *data)
    noise_P = -(gradient_P + weight * at_P)
    determinant = float(np.linalg.slogdet(hessian_PP + weight * np.eye(6))[1])
    return noise_P, -float(noise_P @ noise_P) / (2 * deviation**2) + determinant


def excesses(weight_over: float, kind: int) -> list[tuple[float, float]]:
    """The privacy loss at many places less its bound in the proof, in both directions; and of which size its terms are.

    `weight_over` is Λ/(2s²). The places are minima for noise of every size and places that are sure of a class. With b
    the noise of the data without the record, g_1 the record's gradient at the corner p = e_c, c the wrong class, and
    u = ⟨b, g_1⟩: losing the record has the loss max(0, (‖g_1‖² − 2u)/2s²); gaining it, with b' its noise, the bound
    max(0, (‖g_1‖² + 2⟨b', g_1⟩)/2s²).
    """
    generator = np.random.default_rng(kind)
    inputs, targets = generator.standard_normal((8, 3)), np.arange(8.0) % 2
    if kind == 0:  # nobody else
        inputs, targets = inputs[:0], targets[:0]
    record = 2 * generator.standard_normal(3)
    deviation = 0.5 if kind % 2 else 3.0
    weight = weight_over * 2 * deviation**2
    corner_P = np.concatenate([record, -record])
    one, more = (inputs, targets), (np.vstack([inputs, record]), np.append(targets, 1))
    found = []
    for turn in range(60):
        at_P = generator.standard_normal(6) * 10 ** (turn % 5 - 2)
        (b_P, without), (c_P, with_it) = (density(at_P, data, deviation, weight) for data in (one, more))
        for noise_P, sign, loss in ((b_P, -2, without - with_it), (c_P, 2, with_it - without)):
            gaussian = float(corner_P @ corner_P + sign * noise_P @ corner_P) / (2 * deviation**2)
            size = float(noise_P @ noise_P + corner_P @ corner_P) / (2 * deviation**2)
            found.append((loss - max(0.0, gaussian), size))
    return found


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("weight_over", [1.0, 1.5, 30.0])
def test_the_privacy_loss_is_at_most_that_of_the_proof(weight_over: float, kind: int) -> None:
    """With the true determinants. Some fifty roundings of float64, of terms that are squares of the noise."""
    assert all(excess <= 50 * 2.0**-53 * size + 1e-12 for excess, size in excesses(weight_over, kind))


def test_with_less_regularisation_the_loss_is_above_it() -> None:
    """So the condition is no mere convenience, and the test above can fail."""
    assert max(excess for kind in range(6) for excess, _ in excesses(0.02, kind)) > 0.05


def test_what_is_released_is_the_minimum_with_the_noise_of_the_ledger() -> None:
    """Its gradient, by automatic differentiation, is the noise that plain Python draws, to the solver's tolerance."""
    made = ObjectivePerturbation(regularisation=0.5)
    net = network(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)))
    generator = torch.Generator().manual_seed(4)
    inputs = 3 * torch.randn(20, 1, 3, generator=generator, dtype=torch.float64)
    targets = torch.arange(20) % 2
    hyper = hyperparameters([6, 9], 1.0, clip_norm=[1.0, 2.0], noise_multiplier=[0.7, 0.4], steps=1)
    state = made.start(torch.zeros(2, 8, dtype=torch.float64), hyper, inputs, targets)
    after, seen = step(made, net, state, hyper, inputs, targets, 20)
    for run, (clip, sigma) in enumerate(((1.0, 0.7), (2.0, 0.4))):
        short = inputs[:, 0] * (clip / inputs[:, 0].norm(dim=1)).clamp_max(1.0)[:, None]
        keys = hyper.keys_RS[run].tolist()
        deviation = math.sqrt(2 * (clip**2 + 1)) * sigma / math.sqrt(1 - SHARE**2)
        noise_P = deviation * torch.tensor([gauss(keys, NOISE, 0, i) for i in range(8)], dtype=torch.float64)
        small = 2 * GRADIENT_NORM / 0.5 * sigma / SHARE
        last_P = torch.tensor([gauss(keys, NOISE, 0, 8 + i) for i in range(8)], dtype=torch.float64)
        at_P = after.theta_RP[run] - small * last_P

        def objective(theta_P: Tensor, short: Tensor = short, noise_P: Tensor = noise_P) -> Tensor:
            scores = short @ theta_P[:6].reshape(2, 3).T + theta_P[6:]
            loss = nn.functional.cross_entropy(scores, targets, reduction="sum")
            return loss + 0.5 * 20 / 2 * theta_P.square().sum() + noise_P @ theta_P

        assert float(torch.func.grad(objective)(at_P).norm()) < 2 * 20 * GRADIENT_NORM
        scores = short @ at_P[:6].reshape(2, 3).T + at_P[6:]
        assert float(seen.loss_R[run]) == pytest.approx(float(nn.functional.cross_entropy(scores, targets)) * 20)
    assert seen.clipped_R.tolist() == [int((inputs.flatten(1).norm(dim=1) > clip).sum()) for clip in (1.0, 2.0)]


def test_both_shares_make_the_whole() -> None:
    """1/μ_1 and 1/μ_2 as they are used, and the least regularisation."""
    made = ObjectivePerturbation(regularisation=0.5)
    sigma = 1.3
    first = 2.0 / made.deviation(sigma, 1.0)
    assert first**2 + (SHARE / sigma) ** 2 == pytest.approx(1 / sigma**2, rel=1e-14)
    least = made.least_regularisation(sigma, 1.0, 100)
    assert least * 100 == pytest.approx(2 * (2 * sigma) ** 2, rel=2e-4)
    ObjectivePerturbation(least).check(Setting(100, 1.0, 1, 1.0, clip_norm=1.0, noise_multiplier=sigma))


SPEC = """
kind: run
name: small
dataset: digits_parity
model: logistic
mechanism: {name: objective_perturbation, parameters: {regularisation: 0.02}}
budget: {delta: 1e-4, epsilon: 3}
training: {sampling_rate: 1, steps: 1, learning_rate: 1, clip_norm: 1.0}
seeds: 2
"""


def test_a_run_learns_and_its_ledger_has_the_epsilon_of_the_plan(tmp_path: Path) -> None:
    """Half of the digits are odd; what is learned is far above that."""
    runs = runs_of(tmp_path, SPEC)
    for outcome in trained(runs).values():
        assert outcome.result is not None
        (point,) = outcome.result["curve"]
        assert (point["step"], point["releases"]) == (1, 1)
        assert point["test_accuracy"] > 0.7
        assert outcome.result["facts"]["adjacency"] == "add_or_remove"
        (found,) = account(from_json(outcome.result["ledger"]), delta=1e-4, accountants=["exact"])
        assert found.epsilon is not None
        assert found.epsilon.value == pytest.approx(3.0, abs=1e-3)


REFUSED = {
    "dataset: digits_parity": ("dataset: digits", "it has 10 classes, and the proof of objective_perturbation"),
    "model: logistic": ("model: mlp", "expected logistic regression"),
    "steps: 1": ("steps: 2", "expected steps: 1 and sampling_rate: 1"),
    "sampling_rate: 1": ("sampling_rate: 0.5", "expected steps: 1 and sampling_rate: 1"),
    "regularisation: 0.02": ("regularisation: 0.001", r"regularisation = 0.001: .* the proof needs 0.0\d+ or more"),
    "{regularisation: 0.02}": ("{regularisation: 0}", "regularisation = 0"),
}


@pytest.mark.parametrize("old", REFUSED)
def test_what_the_proof_does_not_cover_is_one_sentence_before_training(tmp_path: Path, old: str) -> None:
    new, words = REFUSED[old]
    with pytest.raises(ProblemsError, match=words):
        runs_of(tmp_path, SPEC.replace(old, new))
