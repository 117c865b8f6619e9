"""Internal: the weighted loss of dpis is the squared error, too.

Losses and metrics other than cross-entropy and accuracy: by their definitions, in every engine and kind of rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.catalog import catalog, find
from dpbench.clipping.rules.none import Unclipped
from dpbench.datasets import find_dataset
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.models import collaborative_filtering, mlp, pooled_embedding
from dpbench.randomness import table
from dpbench.step import losses
from dpbench.step.clipped_sum import Draw, Examples
from dpbench.step.functional import Network, evaluate, initial_parameters, network, smoothed
from dpbench.step.mechanism import step
from dpbench.tasks import METRICS, Objective, objective

pytestmark = pytest.mark.usefixtures("one_thread")

REGRESSION, RATING = objective("regression"), objective("rating")


def double(net: Network) -> Network:
    return replace(net, module=net.module.double())


def problem(runs: int = 2, places: int = 5) -> tuple[Network, Tensor, Examples]:
    """A small regression in float64: a network with one output, parameters (R, P), targets far from its outputs."""
    net = double(network(mlp.model((3,), 1, hidden=(4,), activation="tanh"), objective=REGRESSION))
    generator = torch.Generator().manual_seed(3)
    theta_RP = 0.5 * torch.randn(runs, net.size, generator=generator, dtype=torch.float64)
    inputs = torch.randn(runs, places, 3, generator=generator, dtype=torch.float64)
    targets = 3 * torch.randn(runs, places, generator=generator)
    mask_RB = torch.ones(runs, places, dtype=torch.bool)
    mask_RB[0, 2] = False
    return net, theta_RP, Examples(inputs, targets, mask_RB)


def by_hand(net: Network, theta_P: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Gradient and value of (f(x) - y)², by the chain rule with torch's derivative of the output alone."""
    leaf = theta_P.clone().requires_grad_()
    named = {name: value[0] for name, value in net.split(leaf[None]).items()}
    output = torch.func.functional_call(net.module, named, (x[None],))[0, 0]
    (slope_P,) = torch.autograd.grad(output, leaf)
    apart = float(output.detach()) - float(y)
    return 2 * apart * slope_P, apart**2


@pytest.mark.parametrize("name", sorted(catalog("clipping")))
def test_every_engine_clips_gradients_of_the_squared_error(name: str) -> None:
    """float64: sums of five terms of size at most 1, at most 10^4 roundings."""
    net, theta_RP, examples = problem()
    clip_R = torch.ones(2, dtype=torch.float64)
    found = find("clipping", name).load()(net, theta_RP, examples, clip_R, 2)
    for run in range(2):
        total_P = torch.zeros(net.size, dtype=torch.float64)
        for place in range(5):
            if not examples.mask_RB[run, place]:
                continue
            gradient_P, loss = by_hand(net, theta_RP[run], examples.inputs[run, place], examples.targets[run, place])
            norm = float(gradient_P.norm())
            total_P += gradient_P * min(1.0, 1 / norm)
            assert float(found.norm_RB[run, place]) == pytest.approx(norm, rel=1e-9)
            assert float(found.loss_RB[run, place]) == pytest.approx(loss, rel=1e-9)
        assert float((found.sum_RP[run] - total_P).abs().max()) <= 1e4 * 2.0**-53 * 5


def test_without_clipping_the_sum_is_that_of_the_squared_error() -> None:
    net, theta_RP, examples = problem()
    draw = Draw(table([0, 1]), torch.zeros(2, dtype=torch.int64), torch.arange(5).repeat(2, 1), torch.ones(2), 5)
    found = Unclipped().summed(draw, net, theta_RP, examples, torch.ones(2), 2)
    for run in range(2):
        parts = [
            by_hand(net, theta_RP[run], examples.inputs[run, place], examples.targets[run, place])[0]
            for place in range(5)
            if examples.mask_RB[run, place]
        ]
        assert torch.allclose(found.sum_RP[run], torch.stack(parts).sum(0), rtol=1e-10, atol=1e-12)


MECHANISMS: dict[str, dict[str, Any]] = {
    "noisy_sgd": {"clipping": "ghost"},
    "dp_sgd_jl": {"projections": 3},
    "microbatched_sgd": {},
    "quantile_clipping_sgd": {},
    "dplis": {"smoothing_radius": 0.1, "smoothing_samples": 2},
}


def test_a_smoothed_loss_is_a_squared_error() -> None:
    net, theta_RP, examples = problem(runs=1)
    one = smoothed(net, torch.zeros(1, net.size, dtype=torch.float64))
    named = {key: value[0] for key, value in net.split(theta_RP).items()}
    plain = net.example_loss(named, examples.inputs[0, 0], examples.targets[0, 0])
    assert torch.equal(one.example_loss(named, examples.inputs[0, 0], examples.targets[0, 0]), plain)
    assert float(plain) == pytest.approx(
        by_hand(net, theta_RP[0], examples.inputs[0, 0], examples.targets[0, 0])[1], rel=1e-12
    )


def test_evaluation_by_definition() -> None:
    """RMSE of a regression, RMSE of mean classes, perplexity and accuracy, whatever the chunk; float64 up to 1e-12."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(11, 3, generator=generator)
    numbers, classes = torch.randn(11, generator=generator), torch.randint(5, (11,), generator=generator)
    one, five = mlp.model((3,), 1, hidden=(4,)), mlp.model((3,), 5, hidden=(4,))
    for module, targets, chosen in (
        (one, numbers, REGRESSION),
        (one, classes, Objective("squared_error", "rmse")),
        (five, classes, RATING),
        (five, classes, objective("language_modelling")),
        (five, classes, objective("classification")),
    ):
        net = network(module, objective=chosen)
        theta_RP = torch.stack([0.5 * torch.randn(net.size, generator=generator) for _ in range(2)])
        for chunk in (1, 4, 50):
            loss_R, metric_R = evaluate(net, theta_RP, inputs, targets, chunk)
            assert loss_R.dtype == metric_R.dtype == torch.float64
            for run in range(2):
                named = {name: value[run] for name, value in net.split(theta_RP).items()}
                out = torch.func.functional_call(module, named, (inputs,)).detach().double()
                if chosen.loss == "squared_error":
                    each = [(float(o) - float(y)) ** 2 for o, y in zip(out[:, 0], targets, strict=True)]
                    loss, metric = math.fsum(each) / 11, math.sqrt(math.fsum(each) / 11)
                else:
                    p = torch.exp(out) / torch.exp(out).sum(1, keepdim=True)
                    loss = -sum(math.log(float(p[i, y])) for i, y in enumerate(classes.tolist())) / 11
                    mean = [sum(c * float(p[i, c]) for c in range(5)) for i in range(11)]
                    squares = [(m - y) ** 2 for m, y in zip(mean, classes.tolist(), strict=True)]
                    right = sum(int(row.argmax()) == y for row, y in zip(out, classes.tolist(), strict=True))
                    metric = {
                        "rmse": math.sqrt(math.fsum(squares) / 11),
                        "perplexity": math.exp(loss),
                        "accuracy": right / 11,
                    }[chosen.metric]
                assert float(loss_R[run]) == pytest.approx(loss, rel=1e-5)
                assert float(metric_R[run]) == pytest.approx(metric, rel=1e-5)
                implied = chosen.implied(float(loss_R[run]))
                assert implied is None or implied == pytest.approx(float(metric_R[run]), rel=1e-14)


def test_a_uniform_guess_has_the_perplexity_of_the_number_of_words() -> None:
    loss_R, metric_R = evaluate(
        network(nn.Linear(2, 7), objective=objective("language_modelling")),
        torch.zeros(1, 21),
        torch.ones(3, 2),
        torch.tensor([0, 3, 6]),
        2,
    )
    assert float(metric_R) == pytest.approx(7.0, rel=1e-14)
    assert float(loss_R) == pytest.approx(math.log(7), rel=1e-14)
    assert losses.measured("perplexity", torch.tensor([1e4], dtype=torch.float64), 1).item() == math.inf


@pytest.mark.parametrize("mechanism", sorted(MECHANISMS))
def test_every_kind_of_rule_learns_a_regression(mechanism: str) -> None:
    """A hundred steps with hardly any noise on a linear problem: the loss falls to a tenth."""
    subject = find("mechanisms", mechanism).load()(**MECHANISMS[mechanism])
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 3, generator=generator)
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5])
    net = network(mlp.model((3,), 1, hidden=()), objective=REGRESSION)
    theta_RP = torch.zeros(1, net.size)
    hyper = hyperparameters([0], 0.5, learning_rate=0.1, clip_norm=1.0, noise_multiplier=1e-3, steps=150)
    state = subject.start(theta_RP, hyper, inputs, targets)
    before, _ = evaluate(net, state.theta_RP, inputs, targets, 40)
    for _ in range(150):
        state, _ = step(subject, net, state, hyper, inputs, targets, 8)
    after, rmse = evaluate(net, state.theta_RP, inputs, targets, 40)
    assert float(after) < 0.1 * float(before)
    assert float(rmse) == pytest.approx(math.sqrt(float(after)), rel=1e-14)


def test_dpis_weighs_the_squared_error() -> None:
    from dpbench.mechanisms._dpis_rules import weighted_sum

    net, theta_RP, examples = problem(runs=1)
    weight_RB = torch.tensor([[1.0, 2.0, 0.5, 3.0, 1.0]], dtype=torch.float64)
    engine = find("clipping", "vmap").load()
    found = weighted_sum(engine, net, theta_RP, examples, weight_RB, torch.tensor([1e9], dtype=torch.float64), 5)
    parts = [
        weight_RB[0, at] * by_hand(net, theta_RP[0], examples.inputs[0, at], examples.targets[0, at])[0]
        for at in range(5)
        if examples.mask_RB[0, at]
    ]
    assert torch.allclose(found[0], torch.stack(parts).sum(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("module", ["ncf", "pooled"])
def test_networks_of_tables_have_the_same_sum_in_every_engine(module: str) -> None:
    """Embeddings looked up: `ghost` needs no gradient of the table for an example, and agrees with `loop`."""
    if module == "ncf":
        net = double(network(collaborative_filtering.model((2,), 5, users=7, items=6), objective=RATING))
        numbers = torch.tensor([[0, 0], [6, 5], [3, 3], [3, 1]])
    else:
        net = double(network(pooled_embedding.model((4,), 2, words=9), objective=objective("classification")))
        numbers = torch.tensor([[0, 0, 1, 1], [8, 2, 2, 0], [3, 3, 3, 3], [1, 2, 3, 4]])
    targets = torch.tensor([0, 1, 1, 0])
    theta_P = torch.cat([p.detach().flatten() for p in net.module.parameters()])
    theta_1P = (theta_P + 0.3 * torch.randn(net.size, generator=torch.Generator().manual_seed(2)))[None].double()
    examples = Examples(numbers[None].double(), targets[None], torch.ones(1, 4) > 0)
    clip = torch.tensor([0.5], dtype=torch.float64)
    sums = [find("clipping", name).load()(net, theta_1P, examples, clip, 3) for name in sorted(catalog("clipping"))]
    assert len(sums) >= 3
    for found in sums[1:]:
        assert torch.allclose(found.sum_RP, sums[0].sum_RP, rtol=1e-9, atol=1e-12)
        assert torch.allclose(found.norm_RB, sums[0].norm_RB, rtol=1e-9)


def test_parameters_of_the_networks_of_bu2020() -> None:
    """Counted by the text of Section 4.1: tables, weights and biases; the paper prints no counts."""
    sizes = [len(initial_parameters(build, 0)) for build in (
        lambda: mlp.model((123,), 2, hidden=(16,)),
        lambda: pooled_embedding.model((256,), 2),
        lambda: collaborative_filtering.model((2,), 5),
    )]  # fmt: skip
    users, films = find_dataset("movielens").users, find_dataset("movielens").films  # type: ignore[attr-defined]
    assert sizes == [123 * 16 + 16 + 16 * 2 + 2, 160_000 + 17 * 16 + 17 * 2, (users + films) * 15 + 25 * 5 + 5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("regression", "cross_entropy"), "loss = cross_entropy: expected squared_error"),
        (("classification", "squared_error", "accuracy"), "metric = accuracy: expected rmse"),
        (("language_modelling", None, "rmse"), "metric = rmse: expected perplexity or accuracy"),
        (("clustering",), "task = 'clustering': expected one of classification"),
    ],
)
def test_what_does_not_fit_is_said(given: tuple[str, ...], said: str) -> None:
    with pytest.raises(DpbenchError, match=said):
        objective(*given)


def test_smaller_is_better_but_for_accuracy() -> None:
    best = {name: min((1.0, 2.0), key=metric.first) for name, metric in METRICS.items()}
    assert best == {"accuracy": 2.0, "rmse": 1.0, "perplexity": 1.0}
    assert [METRICS[name].gain(-0.5) for name in ("accuracy", "rmse")] == [-0.5, 0.5]
