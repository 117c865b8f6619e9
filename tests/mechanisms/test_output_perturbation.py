"""Output perturbation: its constants, its steps, its sensitivity against plain loops, its runs, and what it refuses.

What every mechanism must do that acts at the end is in `tests/contracts/test_end_mechanisms.py`.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import Composition, Gaussian
from dpbench.job import run as job
from dpbench.judging.check_tools.problems import hyperparameters, reference
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import output_sensitivity
from dpbench.judging.checks.philox_vectors import gauss, uniform
from dpbench.mechanisms.output_perturbation import OutputPerturbation
from dpbench.privacy.accounting import account
from dpbench.randomness import NOISE, SAMPLE
from dpbench.step import logistic
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import evaluate, network
from dpbench.step.mechanism import Setting, State, step
from dpbench.store.records import Store
from tests.training.test_train_mechanisms import curve, runs_of, trained

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "constant, regularised": {"regularisation": 0.1},
    "decreasing": {"schedule": "decreasing", "exponent": 0.25},
    "square_root": {"schedule": "square_root"},
    "strongly_convex": {"schedule": "strongly_convex", "regularisation": 0.2},
}
every_schedule = pytest.mark.parametrize("parameters", SCHEDULES.values(), ids=SCHEDULES)


def most(made: OutputPerturbation, clip: float) -> float:
    """2/(β + λ)."""
    return 2 / ((clip**2 + 1) / 2 + made.regularisation)


# The constants of the loss


def loss(weight_P: Tensor, classes: int, x: Tensor, target: int) -> Tensor:
    """The cross-entropy of one record, of weights with the bias as the last column."""
    scores = weight_P.reshape(classes, -1) @ torch.cat([x, x.new_ones(1)])
    return torch.logsumexp(scores, 0) - scores[target]


@pytest.mark.parametrize("radius", [0.1, 1.0, 7.0])
def test_no_gradient_is_longer_than_l_and_no_curvature_above_beta(radius: float) -> None:
    """By automatic differentiation, for weights of all sizes; both bounds are attained within a thousandth."""
    generator = torch.Generator().manual_seed(1)
    longest = steepest = 0.0
    for turn in range(60):
        classes = 2 + turn % 4
        x = torch.randn(3, generator=generator, dtype=torch.float64)
        x = radius * x / x.norm()
        weight_P = torch.randn(4 * classes, generator=generator, dtype=torch.float64) * 10 ** (turn % 6 - 3)
        if turn == 0:
            weight_P = torch.zeros(8, dtype=torch.float64)
        scores = weight_P.reshape(classes, -1) @ torch.cat([x, x.new_ones(1)])
        target = int(scores.argmin())
        gradient = torch.func.grad(loss)(weight_P, classes, x, target)
        hessian = torch.func.hessian(loss)(weight_P, classes, x, target)
        eigenvalues = torch.linalg.eigvalsh(hessian)
        longest, steepest = max(longest, float(gradient.norm())), max(steepest, float(eigenvalues[-1]))
        assert float(eigenvalues[0]) >= -1e-12 * radius**2 - 1e-12, "convex"
    assert 0.999 * logistic.lipschitz(radius) < longest <= logistic.lipschitz(radius) * (1 + 1e-12)
    assert 0.999 * logistic.smoothness(radius) < steepest <= logistic.smoothness(radius) * (1 + 1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_is_that_of_the_model(bias: bool) -> None:
    """Against one backward pass a record; 1e-10 for some hundred roundings of sums of size 10^3."""
    generator = torch.Generator().manual_seed(2)
    net = network(nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=bias)))
    examples = Examples(
        10 * torch.randn(2, 7, 2, 3, generator=generator, dtype=torch.float64),
        torch.randint(4, (2, 7), generator=generator),
        torch.rand(2, 7, generator=generator) < 0.7,
    )
    theta_RP = torch.randn(2, net.size, generator=generator, dtype=torch.float64)
    expected = reference(net, theta_RP, examples, torch.full((2,), math.inf, dtype=torch.float64))
    data = (examples.inputs, examples.targets, examples.mask_RB)
    sum_RP, loss_RB = logistic.summed_gradient(net, theta_RP, *data)
    assert float((sum_RP - expected.sum_RP).abs().max()) < 1e-10
    assert float((loss_RB - expected.loss_RB).abs().max()) < 1e-10
    spoiled = torch.where(examples.mask_RB[:, :, None, None], examples.inputs, torch.nan)
    again_RP, _ = logistic.summed_gradient(net, theta_RP, spoiled, *data[1:])
    assert torch.equal(again_RP, sum_RP), "an empty place has no influence"


def test_inputs_are_clipped_and_short_ones_left_alone() -> None:
    inputs = torch.tensor([[[3e30, 4e30], [0.3, 0.4], [0.0, 0.0]]]).repeat(2, 1, 1)
    found = logistic.clipped(inputs, torch.tensor([1.0, 0.25]).double())
    assert found.norm(dim=2)[0].tolist() == pytest.approx([1.0, 0.5, 0.0], rel=1e-7)
    assert bool((found.norm(dim=2)[1] <= 0.25 * (1 + 1e-15)).all())
    assert torch.equal(found[0, 1], inputs[0, 1].double())


# Sensitivity


def plain_sensitivity(made: OutputPerturbation, setting: Setting) -> float:
    """The recursion of docs/convex.md, step by step, for the record at each place of a pass."""
    clip, batch = setting.clip_norm or 0.0, round(setting.sampling_rate * setting.examples)
    in_pass = math.ceil(setting.examples / batch)
    lipschitz, beta = math.sqrt(2 * (clip**2 + 1)), (clip**2 + 1) / 2
    worst = 0.0
    for place in range(in_pass):
        moved = 0.0
        for t in range(1, setting.steps + 1):
            size = plain_size(made, setting, t)
            moved *= max(abs(1 - size * made.regularisation), abs(1 - size * (beta + made.regularisation)))
            if (t - 1) % in_pass == place:
                moved += 2 * lipschitz * size / batch
        worst = max(worst, moved)
    return worst


def plain_size(made: OutputPerturbation, setting: Setting, t: int) -> float:
    rate, in_pass = setting.learning_rate, math.ceil(1 / setting.sampling_rate - 1e-9)
    if made.schedule == "decreasing":
        return rate / float(t + in_pass**made.exponent)
    if made.schedule == "square_root":
        return rate / float(math.sqrt(t) + in_pass**made.exponent)
    if made.schedule == "strongly_convex":
        return min(rate, 1 / (made.regularisation * t))
    return rate


@every_schedule
@pytest.mark.parametrize(
    ("examples", "batch", "steps"), [(12, 5, 7), (12, 12, 4), (12, 1, 30), (100, 10, 25), (7, 3, 1)]
)
def test_sensitivity_is_the_recursion(parameters: dict[str, Any], examples: int, batch: int, steps: int) -> None:
    """Rounded up by 1e-9, and no further."""
    made = OutputPerturbation(**parameters)
    for clip in (0.5, 3.0):
        for share in (1.0, 0.1):
            setting = Setting(examples, batch / examples, steps, share * most(made, clip), clip_norm=clip)
            plain = plain_sensitivity(made, setting)
            assert plain < made.sensitivity(setting) <= plain * (1 + 2e-9)


def test_constant_steps_without_regularisation_have_the_closed_form() -> None:
    for passes in (1, 3, 50):
        setting = Setting(100, 0.05, 20 * passes, 0.3, clip_norm=2.0)
        expected = 2 * passes * math.sqrt(10) * 0.3 / 5
        assert OutputPerturbation().sensitivity(setting) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("weak", [0.5, 0.013, 1e-3])
def test_the_steps_of_algorithm_2_stay_below_their_closed_form(weak: float) -> None:
    """2L/(λmb), however many passes, with the learning rate 1/(β + λ); after many passes it is attained."""
    made = OutputPerturbation(schedule="strongly_convex", regularisation=weak)
    closed = 2 * 2.0 / (weak * 20 * 5)
    for passes in (1, 2, 10, 1000):
        setting = Setting(100, 0.05, 20 * passes, 1 / (1 + weak), clip_norm=1.0)
        found = made.sensitivity(setting)
        assert found <= closed * (1 + 2e-9)
    assert found > 0.9 * closed


# What runs


def problem() -> tuple[Any, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = 2 * torch.randn(12, 3, generator=generator)
    return network(nn.Linear(3, 3)), inputs, torch.arange(12) % 3, torch.randn(1, 12, generator=generator)


@every_schedule
def test_it_is_permutation_sgd_with_noise_at_the_end(parameters: dict[str, Any]) -> None:
    """By plain Python, one record and one number at a time. 1e-5 for the parameters in float32, of size 10 or less."""
    made, (net, inputs, targets, theta_RP) = OutputPerturbation(**parameters), problem()
    hyper = hyperparameters([7], 5 / 12, learning_rate=0.2, clip_norm=1.5, noise_multiplier=0.8, steps=8)
    state = made.start(theta_RP, hyper, inputs, targets)
    for _ in range(8):
        state, _ = step(made, net, state, hyper, inputs, targets, 12)
    keys = hyper.keys_RS[0].tolist()
    order = sorted(range(12), key=lambda i: uniform(keys, SAMPLE, 0, i))
    setting = Setting(12, 5 / 12, 8, 0.2, clip_norm=1.5)
    weights = theta_RP[0].double()
    for t in range(1, 9):
        first = (t - 1) % 3 * 5
        total = torch.zeros(12, dtype=torch.float64)
        for i in order[first : first + 5]:
            x = inputs[i].double()
            x = x * min(1.0, 1.5 / float(x.norm()))
            whole = torch.cat([weights[:9].reshape(3, 3), weights[9:, None]], 1)
            score = (whole @ torch.cat([x, x.new_ones(1)])).softmax(0)
            score[targets[i]] -= 1
            total += torch.cat([torch.outer(score, x).flatten(), score])
        weights = weights - plain_size(made, setting, t) * (total / 5 + made.regularisation * weights)
    deviation = 0.8 * plain_sensitivity(made, setting)
    expected = weights + torch.tensor([deviation * gauss(keys, NOISE, 7, i) for i in range(12)])
    assert torch.allclose(state.theta_RP[0].double(), expected, rtol=0, atol=1e-5)
    assert deviation > 0.05


def test_the_batches_of_a_pass_hold_every_record_once_and_every_pass_is_alike() -> None:
    """Read off the gradients of a model without a record in common: each record has an input of its own."""
    inputs, targets = torch.eye(12), torch.zeros(12, dtype=torch.int64)
    net, made = network(nn.Linear(12, 2, bias=False)), OutputPerturbation()
    hyper = hyperparameters([3], 5 / 12, learning_rate=0.2, steps=100)
    state = made.start(torch.zeros(1, net.size), hyper, inputs, targets)
    seen = []
    for _ in range(6):
        before = state.private["iterate_RP"]
        state, observed = step(made, net, state, hyper, inputs, targets, 12)
        moved = (state.private["iterate_RP"] - before).reshape(2, 12)[0].nonzero().flatten().tolist()
        assert int(observed.drawn_R) == len(moved)
        seen.append(moved)
    assert [len(moved) for moved in seen] == [5, 5, 2, 5, 5, 2]
    assert sorted(seen[0] + seen[1] + seen[2]) == list(range(12))
    assert seen[:3] == seen[3:]
    other = made.start(torch.zeros(1, net.size), hyperparameters([4]), inputs, targets)
    assert not torch.equal(other.private["order_RN"], state.private["order_RN"])


def test_evaluation_clips_the_inputs_as_training_does() -> None:
    net, inputs, targets, theta_RP = problem()
    made, hyper = OutputPerturbation(), hyperparameters([1], clip_norm=0.5)
    state: State = made.start(theta_RP, hyper, inputs, targets)
    short = logistic.clipped(inputs[None], torch.tensor([0.5]))[0].float()
    found = evaluate(net, theta_RP, inputs, targets, 5, lambda x: made.view(state, x))
    assert torch.allclose(found[0], evaluate(net, theta_RP, short, targets, 5)[0])
    assert not torch.allclose(found[0], evaluate(net, theta_RP, inputs, targets, 5)[0])


def test_the_ledger_is_one_gaussian_that_the_house_accounts_for() -> None:
    """σ = 3.7304 gives ε = 1 at δ = 1e-5: the analytic Gaussian mechanism (Balle and Wang 2018, Algorithm 1)."""
    ledger = OutputPerturbation().ledger(sampling_rate=0.1, noise_multiplier=3.7304, steps=500)
    assert ledger == Composition(((Gaussian(3.7304, "replace_one", sensitivity=1.0), 1),))
    (found,) = account(ledger, delta=1e-5, accountants=["exact"])
    assert found.epsilon is not None
    assert found.epsilon.value == pytest.approx(1.0, abs=1e-4)
    assert found.adjacency == "replace_one"


# A run


SPEC = """
kind: run
name: small
dataset: digits
model: logistic
mechanism: {name: output_perturbation, parameters: {regularisation: 0.01}}
budget: {delta: 1e-4, epsilon: 3}
training: {batch_size: 64, epochs: 2, learning_rate: 0.5, clip_norm: 1.0}
seeds: 2
"""


def test_a_run_is_evaluated_at_its_end_and_its_record_agrees_with_itself(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert job([tmp_path / "spec.yaml"], out=tmp_path / "out").exit_status == 0
    records = Store(tmp_path / "out").read()
    assert len(records.runs) == 2
    for record in records.runs:
        assert [(point.step, point.releases) for point in record.curve] == [(45, 1)]
        assert record.facts.adjacency == "replace_one"
        assert record.ledger is not None
        ((part,),) = (record.ledger["parts"],)
        assert (part["event"], part["count"]) == ("Gaussian", 1)
    row = json.loads((tmp_path / "out" / "report.json").read_text())["sections"][0]["rows"][0]
    lines = {line["accountant"]: line for line in row["guarantees"]}
    assert lines["exact"]["epsilon"] == pytest.approx(3.0, abs=1e-3)
    assert lines["exact"]["adjacency"] == "replace_one"


def test_an_interrupted_run_goes_on_from_its_private_parameters(tmp_path: Path) -> None:
    """Without noise on the way a run that began anew would give the same, so the checkpoint is looked at as well."""
    from dpbench.training.loop import Interrupted

    runs = runs_of(tmp_path, SPEC)
    whole = trained(runs)
    calls: list[int] = []
    with pytest.raises(Interrupted):
        trained(runs, checkpoints=tmp_path / "kept", stop=lambda: calls.append(1) or len(calls) > 20)  # type: ignore[func-returns-value]
    assert len(list((tmp_path / "kept").glob("*.pt"))) == 2
    again = trained(runs, checkpoints=tmp_path / "kept")
    for seed, outcome in again.items():
        assert outcome.result is not None
        assert outcome.result["resumed"]
        assert curve(outcome)[-1]["test_loss"] == curve(whole[seed])[-1]["test_loss"]


REFUSED = {
    "learning_rate: 0.5": ("learning_rate: 2.5", r"learning_rate = 2.5: makes a first step of size 2.5.* or less"),
    "batch_size: 64": ("sampling_rate: 0.123", "expected a whole number, so give batch_size"),
    "model: logistic": ("model: {name: mlp, parameters: {hidden: [4]}}", "expected logistic regression"),
    "regularisation: 0.01": ("schedule: strongly_convex", "regularisation = 0: without it"),
    "{regularisation: 0.01}": ("{regularisation: -1}", "regularisation = -1"),
    ", parameters: {regularisation: 0.01}": (", parameters: {exponent: 1}", "exponent = 1"),
}


@pytest.mark.parametrize("old", REFUSED)
def test_what_the_theorem_does_not_cover_is_one_sentence_before_training(tmp_path: Path, old: str) -> None:
    new, words = REFUSED[old]
    with pytest.raises(ProblemsError, match=words):
        runs_of(tmp_path, SPEC.replace(old, new))
    runs_of(tmp_path, SPEC)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)),
        nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)),
        nn.Sequential(),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        type("Own", (nn.Linear,), {})(4, 3),
    ],
)
def test_a_model_that_is_no_logistic_regression_is_refused(module: nn.Module) -> None:
    with pytest.raises(DpbenchError, match="expected logistic regression"):
        logistic.refuse_model(module)


def test_frozen_parameters_and_hooks_are_refused() -> None:
    frozen, hooked = nn.Linear(4, 3), nn.Linear(4, 3)
    frozen.bias.requires_grad_(False)
    hooked.register_forward_hook(lambda *_: None)
    for module, words in ((frozen, "frozen"), (hooked, "hooks")):
        with pytest.raises(DpbenchError, match=words):
            logistic.refuse_model(module)


def test_sound_output_perturbation_passes_and_its_neighbours_attain_the_sensitivity() -> None:
    """Two records in opposite directions move the parameters by the whole of Δ after seven steps: it is tight."""
    verdict = output_sensitivity.check(Subject.of("mechanisms", "output_perturbation", regularisation=0.1), seed=2)
    assert verdict.verdict == "holds"
    assert verdict.evidence["largest_move_over_stated"] > 0.999999


def test_a_stack_of_unlike_runs_is_what_each_run_is_alone() -> None:
    """Batch sizes, clip norms and lengths differ; 1e-6 for float32."""
    made, (net, inputs, targets, theta_RP) = OutputPerturbation(), problem()
    numbers: dict[str, Any] = {
        "sampling_rate": [5 / 12, 1 / 12, 1.0],
        "clip_norm": [1.0, 0.2, 5.0],
        "learning_rate": [0.5, 1.0, 0.1],
    }
    hyper = replace(hyperparameters([1, 2, 3], **numbers), steps_R=torch.tensor([6, 4, 5]))
    state = made.start(theta_RP.repeat(3, 1), hyper, inputs, targets)
    for _ in range(6):
        state, _ = step(made, net, state, hyper, inputs, targets, 3)
    for run in range(3):
        part = torch.tensor([run])
        alone = made.start(theta_RP, hyper.take(part), inputs, targets)
        for _ in range(int(hyper.steps_R[run])):
            alone, _ = step(made, net, alone, hyper.take(part), inputs, targets, 12)
        assert torch.allclose(alone.theta_RP[0], state.theta_RP[run], rtol=0, atol=1e-6)
