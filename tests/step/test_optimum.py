"""The optimum of logistic regression against scikit-learn's, its certificate, gaps, and the verb that measures them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dpbench.cli import main
from dpbench.errors import DpbenchError
from dpbench.step import logistic
from dpbench.step.functional import network
from dpbench.step.optimum import GRADIENT_NORM, Problem

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


def test_the_verb_measures_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """λ from the mechanism or from the option; more noise ends further above the optimum."""
    spec = written(tmp_path, "{name: output_perturbation, parameters: {regularisation: 0.05}}")
    code, out, _ = said(capsys, "gap", spec, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["seed"] for line in lines]) == (0, [0, 1, 2])
    assert len({line["optimum"] for line in lines}) == 1
    assert all(line["gap"] > 0 and line["error"] < 1e-18 and line["radius"] == 1.0 for line in lines)
    assert {line["regularisation"] for line in lines} == {0.05}
    code, out, _ = said(capsys, "gap", spec, "--seeds", "2")
    assert code == 0
    assert "not released" in " ".join(out.split())
    louder = written(tmp_path, "{name: output_perturbation, parameters: {regularisation: 0.05}}")
    Path(louder).write_text(Path(louder).read_text().replace("noise_multiplier: 1.0", "noise_multiplier: 100.0"))
    _, out, _ = said(capsys, "gap", louder, "--json", "--seeds", "1")
    assert json.loads(out)["gap"] > 2 * lines[0]["gap"]


def test_the_verb_takes_other_mechanisms_with_a_regularisation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = written(tmp_path, "noisy_sgd")
    code, _, error = said(capsys, "gap", spec)
    assert code == 2
    assert "give --regularisation" in error
    code, out, _ = said(capsys, "gap", spec, "--regularisation", "0.1", "--json", "--seeds", "1")
    line = json.loads(out)
    assert (code, line["radius"], line["regularisation"]) == (0, None, 0.1)
    assert line["gap"] > 0
    code, _, error = said(capsys, "gap", written(tmp_path, "noisy_sgd", "{name: mlp}"), "--regularisation", "1")
    assert code == 2
    assert "expected logistic regression" in error
