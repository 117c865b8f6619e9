"""The optimum of logistic regression against scikit-learn's, its certificate, gaps, and the metric of a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import dpbench
from dpbench.cli import main
from dpbench.errors import DpbenchError
from dpbench.plan.planning import Choices
from dpbench.step import logistic
from dpbench.step.functional import network
from dpbench.step.metric import Trained
from dpbench.step.metrics.optimality_gap import OptimalityGap
from dpbench.step.optimum import GRADIENT_NORM, Problem
from dpbench.store.records import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def data(classes: int, examples: int = 60, features: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    inputs = torch.randn(examples, features, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() * (torch.arange(examples) % (classes - 1) + 1)


def objective(problem: Problem, parameters_P: Tensor) -> Tensor:
    """F by PyTorch, float64."""
    weight, bias = parameters_P[: -problem.classes].reshape(problem.classes, -1), parameters_P[-problem.classes :]
    loss = torch.nn.functional.cross_entropy(problem.inputs.double() @ weight.T + bias, problem.targets)
    return loss + problem.regularisation / 2 * parameters_P.square().sum()


@pytest.mark.parametrize("weight", [1.0, 1e-2, 1e-5])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_optimum_has_no_gradient(classes: int, weight: float) -> None:
    """By automatic differentiation of another program; also where the data are separable and only λ holds it back."""
    problem = Problem(*data(classes), classes, weight)
    best = problem.optimum()
    at_P = torch.from_numpy(best.parameters_P)
    gradient_P, value = torch.func.grad_and_value(lambda p: objective(problem, p))(at_P)
    assert best.gradient_norm <= GRADIENT_NORM
    assert float(gradient_P.norm()) <= GRADIENT_NORM + 1e-14 * (1 + float(at_P.norm()))
    assert best.value == pytest.approx(float(value), rel=1e-13)
    assert best.error == best.gradient_norm**2 / (2 * weight)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_optimum_is_scikit_learn_s(classes: int) -> None:
    """Which has no regularised bias, so a column of ones stands for it; 1e-5 for its own, looser tolerance.

    Of two classes it has the difference w of both vectors. At our optimum they are ±w/2, so that (λ/2)(‖w_0‖² + ‖w_1‖²)
    is (λ/4)‖w‖²: half the weight.
    """
    inputs, targets = data(classes)
    seen = np.concatenate([inputs.double().numpy(), np.ones((len(inputs), 1))], 1)
    weight = 0.05 / 2 if classes == 2 else 0.05
    other = LogisticRegression(C=1 / (len(inputs) * weight), fit_intercept=False, tol=1e-10, max_iter=5000)
    other.fit(seen, targets.numpy())
    best = Problem(inputs, targets, classes, 0.05).optimum().parameters_P
    matrix = np.concatenate([best[:-classes].reshape(classes, -1), best[-classes:, None]], 1)
    ours = matrix[1:] - matrix[:1] if classes == 2 else matrix
    assert np.abs(seen @ ours.T - seen @ other.coef_.T).max() < 1e-5


def test_a_gap_is_the_difference_of_two_objectives_and_grows_with_the_distance() -> None:
    """At least (λ/2)·distance², by strong convexity; 1e-12 for rounding of objectives of size 10."""
    problem = Problem(*data(3), 3, 0.02)
    best = problem.optimum()
    assert problem.gap(best.parameters_P) == 0
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 0.1, 3.0):
        at_P = torch.from_numpy(best.parameters_P)
        at_P = at_P + size * torch.randn(at_P.shape, generator=generator, dtype=torch.float64)
        gap = problem.gap(at_P.numpy())
        expected = float(objective(problem, at_P)) - best.value
        assert gap == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert gap >= 0.01 * float(np.square(at_P.numpy() - best.parameters_P).sum()) - 1e-12


def test_parameters_are_those_of_the_model_and_inputs_are_clipped() -> None:
    """The gradient that trains a model vanishes at the optimum, on inputs clipped in the same way, of any shape."""
    inputs, targets = data(3)
    inputs = 5 * inputs.reshape(60, 1, 5)
    problem = Problem(inputs, targets, 3, 0.1, radius=1.5)
    best_P = torch.from_numpy(problem.optimum().parameters_P)
    net = network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3)))
    seen = logistic.clipped(inputs[None], torch.tensor([1.5]))
    filled_RB = torch.ones(1, 60, dtype=torch.bool)
    sum_RP, loss_RB = logistic.summed_gradient(net, best_P[None], seen, targets[None], filled_RB)
    assert float((sum_RP[0] / 60 + 0.1 * best_P).norm()) < 2 * GRADIENT_NORM
    value = float(loss_RB.mean() + 0.05 * best_P.square().sum())
    assert problem.optimum().value == pytest.approx(value, rel=1e-13)
    without = Problem(inputs, targets, 3, 0.1, bias=False).optimum()
    assert without.parameters_P.shape == (15,)


def test_what_has_no_optimum_is_one_sentence() -> None:
    inputs, targets = data(2)
    for weight in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(DpbenchError, match="the optimum may lie at infinity"):
            Problem(inputs, targets, 2, weight)
    with pytest.raises(DpbenchError, match="the gradient has the norm nan"):
        Problem(torch.full_like(inputs, math.nan), targets, 2, 1.0).optimum()


SPEC = """
kind: run
name: small
dataset: digits
model: MODEL
mechanism: MECHANISM
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 7, learning_rate: 0.1, clip_norm: 1.0}
seeds: 3
"""


def written(folder: Path, mechanism: str, model: str = "logistic") -> str:
    (folder / "spec.yaml").write_text(SPEC.replace("MECHANISM", mechanism).replace("MODEL", model))
    return str(folder / "spec.yaml")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, error = capsys.readouterr()
    return int(ended.value.code or 0), out, " ".join(error.split())


def gaps(folder: Path, mechanism: str, metric: str, sigma: float = 1.0) -> list[float]:
    """The gaps of a spec's runs, from its records."""
    spec, out = written(folder, mechanism), folder / f"out-{sigma}-{len(metric)}"
    text = Path(spec).read_text().replace("noise_multiplier: 1.0", f"noise_multiplier: {sigma}")
    Path(spec).write_text(text + f"metrics: [{metric}]\n")
    dpbench.run([Path(spec)], out=out, choices=Choices(device="cpu"))
    runs = sorted(Store(out).read().runs, key=lambda run: run.seed)
    assert [run.seed for run in runs] == [0, 1, 2]
    assert not any(one.failed for run in runs for one in run.result.metrics)
    return [one.value for run in runs for one in run.result.metrics if one.value is not None]


def test_the_metric_is_in_every_record_and_grows_with_the_noise(tmp_path: Path) -> None:
    mechanism = "{name: output_perturbation, parameters: {regularisation: 0.05}}"
    metric = "{name: optimality_gap, parameters: {regularisation: 0.05, radius: 1.0}}"
    quiet, loud = (gaps(tmp_path, mechanism, metric, sigma) for sigma in (1.0, 100.0))
    assert len(set(quiet)) == 3
    assert 0 < max(quiet) < min(loud) / 2


def test_the_metric_is_the_gap_of_the_last_parameters() -> None:
    inputs, targets = data(3)
    net = network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3)))
    theta_RP = torch.randn(1, net.size, generator=torch.Generator().manual_seed(1))
    problem = Problem(inputs, targets, 3, 0.1)
    for _ in range(2):  # the second time the optimum is known
        found = OptimalityGap(regularisation=0.1).measure(Trained(net, theta_RP, inputs, targets, 16))
        assert found == {"records": 60, "value": problem.gap(theta_RP[0].double().numpy())}


@pytest.mark.parametrize(
    ("metric", "model", "mistake"),
    [
        ("optimality_gap", "{name: mlp}", "expected logistic regression"),
        ("{name: optimality_gap, parameters: {regularisation: 0}}", "logistic", "regularisation = 0"),
        ("{name: optimality_gap, parameters: {radius: -1}}", "logistic", "radius = -1"),
    ],
)
def test_before_training_the_metric_refuses(
    metric: str, model: str, mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = written(tmp_path, "noisy_sgd", model)
    Path(spec).write_text(Path(spec).read_text() + f"metrics: [{metric}]\n")
    code, _, error = said(capsys, "plan", spec, "--out", str(tmp_path))
    assert code == 2
    assert mistake in error
