"""PIDP-SGD: the branch of Algorithm 1 as printed, both noises of Theorem 5, and what a record says of its ε."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

import dpbench
from dpbench import events
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import batch, hyperparameters, reference, small_network
from dpbench.judging.checks.philox_vectors import gauss, uniform
from dpbench.judging.papers.pidp2021.neighbours import Run, largest_passing
from dpbench.mechanisms.pidp_sgd import PidpSgd, mechanism
from dpbench.mechanisms.pipeline import Regularised
from dpbench.mechanisms.presets import noisy_sgd
from dpbench.plan.planning import Choices, make_plan
from dpbench.privacy.accounting import account
from dpbench.randomness import ESTIMATE, NOISE, SAMPLE
from dpbench.reporting.collect import collect
from dpbench.reporting.guarantees import Accounts, guarantees
from dpbench.reporting.notices import notices
from dpbench.reporting.rendering.plots import comparison_figures
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Setting, State, prepared
from dpbench.step.mechanism import step as one_step
from dpbench.step.updates.sgd import Sgd
from dpbench.store.agreement import disagreement
from dpbench.store.records import Store

pytestmark = pytest.mark.usefixtures("one_thread")
N = 12
SETTING = Setting(examples=1000, sampling_rate=0.1, steps=50, learning_rate=0.1, clip_norm=1.0, epsilon=3, delta=1e-5)


def printed(**parameters: Any) -> PidpSgd:
    made = mechanism(variant="as_printed", **{"regularisation": 0.5, "damping": 2.0, "rounds": 2} | parameters)
    assert isinstance(made, PidpSgd)
    return made


def data() -> tuple[Network, Tensor, Tensor]:
    drawn = batch(torch.Generator().manual_seed(1), 1, N, features=2, classes=2)
    return small_network(2, 3, 2), drawn.inputs[0].tanh(), drawn.targets[0]


def begin(made: PidpSgd, runs: int = 2) -> tuple[State, Any]:
    net, inputs, targets = data()
    stack = hyperparameters(
        range(3, 3 + runs), [0.5, 0.3, 0.9][:runs], clip_norm=[1.0, 0.4, 2.0][:runs], steps=6, epsilon=3.0, delta=1e-4
    )
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return made.start(theta_P.repeat(runs, 1), stack, inputs, targets), stack


# The branch switched off


def test_without_the_branch_it_is_noisy_sgd_on_the_regularised_loss() -> None:
    plain = noisy_sgd()
    assert mechanism(regularisation=0.0) == plain
    assert mechanism(regularisation=0.3) == replace(plain, optimizer=Regularised(Sgd(), 0.3))
    assert mechanism(regularisation=0.3) == noisy_sgd(regularisation=0.3)
    theta_P, gradient_P = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.25])
    moved_P, kept = Regularised(Sgd(), 0.5)(theta_P, {}, gradient_P, torch.tensor(0.1), torch.tensor(0.0))
    assert moved_P.tolist() == pytest.approx([1 - 0.1 * (0.5 + 0.5), -2 - 0.1 * (0.25 - 1.0)])
    assert kept == {}


# Algorithm 1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-5), (3.0, 2e-5), (1.0, 0.02)])
def test_threshold_and_noises_are_those_of_the_judged_algorithm(epsilon: float, delta: float) -> None:
    """Against the judges of the paper's claims, which test lines 10 and 11 as printed and form σ_(c) on their own.

    There r = 1, G = 2, ζ = 1, and c' is the printed 2.83, above 2√2 by a share of 6e-4.
    """
    made, n = printed(regularisation=1.0, damping=0.0, rounds=7, radius=1.0), 45222
    hyper = hyperparameters([1], 1 / n, clip_norm=2.0, steps=n, epsilon=epsilon, delta=delta)
    largest = float(largest_passing(0.75 * epsilon, delta / 2))
    assert float(made.threshold(hyper)) == pytest.approx(largest, rel=1e-12)
    judged = Run(n, epsilon, delta, "2.83", rounds=7)
    deviation = float(judged.deviation(mpmath.log(mpmath.mpf("1.25") * 7 / (delta / 2)), mpmath.mpf))
    assert float(made.decision_noise(hyper, n)) == pytest.approx(deviation * 2 * math.sqrt(2) / 2.83, rel=1e-12)
    sigma = 2.0 * 2.0 * math.sqrt(n * math.log(2 / delta)) / (n * 0.75 * epsilon)  # c = 2, G = 2: equation (2)
    assert float(2.0 * made.gradient_noise(hyper)) == pytest.approx(sigma, rel=1e-12)
    assert printed(rounds=4).round_steps(hyper).tolist() == [-(-n // 4)]


def summed(theta_P: Tensor, records: list[int], bound: float = math.inf) -> Tensor:
    """The sum of some records' gradients, each clipped to `bound`, one backward pass at a time."""
    net, inputs, targets = data()
    part = Examples(inputs[records][None], targets[records][None], torch.ones(1, len(records), dtype=torch.bool))
    return reference(net, theta_P[None], part, torch.tensor([bound], dtype=torch.float64)).sum_RP[0]


def inverse_hessian(theta_P: Tensor, curvature: float) -> Tensor:
    """From central differences of gradients, inverted."""
    everyone, unit_PP = list(range(N)), torch.eye(len(theta_P), dtype=torch.float64)
    rows = [summed(theta_P + 1e-5 * one, everyone) - summed(theta_P - 1e-5 * one, everyone) for one in unit_PP]
    return (torch.stack(rows) / 2e-5 / N + curvature * unit_PP).inverse()


def by_hand(
    made: PidpSgd, state: State, stack: Any, run: int, start_P: Tensor, inverse_PP: Tensor
) -> tuple[Tensor, int, int]:
    """The noisy gradient of one run's step in plain Python, how many records were drawn, and how many passed."""
    seed, at, rate = stack.keys_RS[run].tolist(), int(state.step_R[run]), float(stack.sampling_rate_R[run])
    clip, size = float(stack.clip_norm_R[run]), len(start_P)
    drawn = [i for i in range(N) if uniform(seed, SAMPLE, at, i) < math.floor(rate * 2**53)]
    error = (2 * made.smoothness * clip + made.third_derivative * clip**2 / made.curvature) / 2
    error /= (made.curvature * N) ** 2
    epsilon, delta = float(stack.epsilon_R[run]), float(stack.delta_R[run])
    noise = 2 * math.sqrt(2) * clip * made.rounds * math.sqrt(math.log(1.25 * made.rounds / (delta / 2)))
    noise /= N * made.curvature * epsilon / 4
    passed = 0
    for place, record in enumerate(drawn):
        move_P = 2 * (inverse_PP @ summed(start_P, [record], clip) / N + error)
        normals = [gauss(seed, ESTIMATE, at, place * size + i) for i in range(size)]
        largest = float((move_P + noise * torch.tensor(normals, dtype=torch.float64)).abs().max())
        passed += largest <= 2 * made.radius * (delta / 2) * (1 + math.exp(-0.75 * epsilon))
    total_P = summed(state.theta_RP[run], drawn, clip) if drawn else torch.zeros(size, dtype=torch.float64)
    sigma = made.noise_constant * rate * math.sqrt(6 * math.log(2 / delta)) / (0.75 * epsilon)
    share = (len(drawn) - passed) / len(drawn) if drawn else 0.0
    normals = [gauss(seed, NOISE, at, i) for i in range(size)]
    noisy_P = total_P + sigma * clip * share * torch.tensor(normals, dtype=torch.float64)
    return noisy_P / (rate * N), len(drawn), passed


def test_step_is_algorithm_1_as_printed() -> None:
    """Six steps in two rounds; 1e-7 for central differences of second derivatives.

    The radius is chosen so that some records pass and others do not; the influences are those of the round's start.
    """
    made = printed(radius=1.5e4)
    net, inputs, targets = data()
    state, stack = begin(made)
    drawn, passed, start_RP, inverses = torch.zeros(2), torch.zeros(2), state.theta_RP, []
    for step in range(6):
        if step in (0, 3):
            start_RP = state.theta_RP
            inverses = [inverse_hessian(start_P, made.curvature) for start_P in start_RP]
        released, kept = made.release(net, state, stack, inputs, targets, 5)
        assert not kept.observed.stopped
        for run in range(2):
            expected_P, some, silent = by_hand(made, state, stack, run, start_RP[run], inverses[run])
            assert float((released.gradient_RP[run] - expected_P).abs().max()) < 1e-7
            drawn[run] += some
            passed[run] += silent
        state, _ = one_step(made, net, state, stack, inputs, targets, 5)
    shares = [one["without_noise"] for one in made.measured(state)]
    assert shares == [float(one) for one in (passed.double() / drawn.double())]
    assert 0 < sum(shares) < 2, "some records passed, others did not"


def test_it_is_the_same_alone_in_a_stack_with_either_solver_and_after_a_resume() -> None:
    """float64: conjugate gradients are off by 1e-10, which moves no decision here; the rest by rounding alone."""
    net, inputs, targets = data()
    ends: dict[str, State] = {}
    for solver in ("dense", "conjugate_gradients"):
        made = printed(radius=1.5e4, solver=solver)
        state, stack = begin(made, 3)
        assert ("factor_RPP" in state.private) == (solver == "dense")
        alone, own = state.take(torch.tensor([1])), stack.take(torch.tensor([1]))
        for _ in range(6):
            state, _ = one_step(made, net, state, stack, inputs, targets, 5)
            alone, _ = one_step(made, net, alone.take(torch.tensor([0])), own, inputs, targets, N)
        assert float((alone.theta_RP[0] - state.theta_RP[1]).abs().max()) < 1e-9
        assert torch.equal(alone.private["silent_R"], state.private["silent_R"][1:2])
        ends[solver] = state
    first, second = ends.values()
    assert torch.equal(first.private["silent_R"], second.private["silent_R"])
    assert float((first.theta_RP - second.theta_RP).abs().max()) < 1e-8


@pytest.mark.parametrize("solver", ["dense", "conjugate_gradients"])
def test_a_run_without_a_positive_definite_hessian_stops(solver: str) -> None:
    made = printed(damping=0.0, regularisation=1e-6, solver=solver)
    net, inputs, targets = data()
    state, stack = begin(made)
    for _ in range(3):
        state, seen = one_step(made, net, state, stack, 3 * inputs, targets, N)
        if seen.stopped:
            break
    assert all("not positive definite" in reason for reason in seen.stopped.values())
    assert seen.stopped


@pytest.mark.parametrize("solver", ["dense", "conjugate_gradients"])
def test_hessians_are_taken_before_the_first_step_and_once(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared is what the first round would have had; other runs of the stack are not refused."""
    made = printed(solver=solver)
    net, inputs, targets = data()
    state, stack = begin(made)
    theta_RP = torch.stack([3 * state.theta_RP[0], state.theta_RP[1]])
    larger, smaller = (1 / float(torch.linalg.eigvalsh(inverse_hessian(one, 9.0))[-1]) - 9 for one in theta_RP)
    assert smaller < larger - 0.01
    between = replace(made, regularisation=-(smaller + larger) / 2, damping=0.0)
    mixed = between.start(theta_RP, stack, inputs, targets)
    ready, refused = prepared(between, net, mixed, inputs, targets)
    assert list(refused) == [1]
    assert "not positive definite" in refused[1]
    assert ("its least eigenvalue is -" in refused[1]) == (solver == "dense")
    assert ready.memory is mixed.memory

    plain, _ = one_step(made, net, state, stack, inputs, targets, N)
    ready, refused = prepared(made, net, state, inputs, targets)
    assert not refused
    forms = []
    monkeypatch.setattr("dpbench.mechanisms.pidp_sgd.hessian", lambda *given: forms.append(given))
    after, seen = one_step(made, net, ready, stack, inputs, targets, N)
    assert not forms
    assert not seen.stopped
    assert torch.equal(after.theta_RP, plain.theta_RP)
    assert all(torch.equal(value, plain.private[name]) for name, value in after.private.items())


@pytest.mark.parametrize("solver", ["dense", "conjugate_gradients"])
def test_a_damping_that_is_too_small_is_told_before_training(solver: str, tmp_path: Path) -> None:
    """From a spec. The row beside it, with enough of it, trains; so does the same as a stack."""
    row = "{variant: as_printed, damping: DAMPING, solver: SOLVER}".replace("SOLVER", solver)
    model = "model: {name: mlp, parameters: {hidden: [4]}}"
    spec = SPEC.replace("{variant: as_printed, radius: 1e9}", row).replace("model: logistic", model)
    for damping, status in (("1e-6", 1), ("2", 0)):
        (tmp_path / "spec.yaml").write_text(spec.replace("DAMPING", damping).replace("seeds: 1", "seeds: 2"))
        done = dpbench.run([tmp_path / "spec.yaml"], out=tmp_path / damping, choices=Choices(only=("*printed*",)))
        assert done.exit_status == status
        contents = Store(tmp_path / damping).read()
        assert len(contents.runs) == (0 if status else 2)
        told = [one.error for one in contents.failures]
        assert len(told) == (2 if status else 0)
        assert all(one.startswith("before training: the Hessian is not positive definite") for one in told)


# Bad numbers, before training


@pytest.mark.parametrize(
    ("parameters", "changed", "message"),
    [
        ({"regularisation": 0.0, "damping": 0.0}, {}, r"regularisation = 0: the Hessian may be singular"),
        ({"regularisation": 1e-300, "damping": 0.0}, {}, r"regularisation \+ damping = 1e-300: lost in the rounding"),
        ({}, {"clip_norm": None}, r"clip_norm = None: expected a finite number"),
        ({"rounds": 1}, {"epsilon": 5.0}, r"epsilon = 5: leaves epsilon_2/R = 1\.25 .* holds up to 1"),
        ({}, {"epsilon": math.inf}, r"epsilon = inf: leaves epsilon_2/R = inf"),
        ({}, {"delta": 1e-308}, r"delta = 1e-308: .* too small"),
        ({"rounds": 51}, {}, r"rounds = 51: expected at most the 50 steps"),
        ({}, {"epsilon": None, "noise_multiplier": 1.0}, r"budget: .* expected epsilon and delta"),
        ({}, {"loss": "squared_error"}, r"loss = squared_error: pidp_sgd, .* trains with cross-entropy alone"),
    ],
)
def test_numbers_that_the_theorem_does_not_cover_are_refused(
    parameters: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    printed().check(SETTING)
    with pytest.raises(DpbenchError, match=message) as caught:
        printed(**parameters).check(replace(SETTING, **changed))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("regularisation", -0.1),
        ("damping", math.inf),
        ("rounds", 0),
        ("rounds", 1.5),
        ("radius", 0.0),
        ("decision_share", 1.0),
        ("noise_constant", 0.0),
        ("smoothness", 0.0),
        ("third_derivative", math.nan),
        ("solver", "lissa"),
        ("variant", "equation_7"),
    ],
)
def test_bad_parameters(name: str, value: Any) -> None:
    with pytest.raises(DpbenchError, match=f"{name} = .*: expected"):
        mechanism(**{"variant": "as_printed"} | {name: value})


def test_a_loss_that_need_not_be_convex_needs_damping() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    with pytest.raises(DpbenchError, match=r"damping = 0: the model is no logistic regression.*expected damping"):
        printed(damping=0.0).refuse_model(network)
    printed().refuse_model(network)
    printed(damping=0.0).refuse_model(nn.Linear(3, 2))


def test_the_plan_counts_the_hessian(tmp_path: Path) -> None:
    model = "model: {name: mlp, parameters: {hidden: [60]}}"
    row = "as_printed, damping: 2, solver: dense, radius"
    (tmp_path / "spec.yaml").write_text(SPEC.replace("model: logistic", model).replace("as_printed, radius", row))
    plan = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path), Choices(device="cpu"))
    off, printed = (next(run for run in plan.runs if run.spec.label == label) for label in ("off", "printed"))
    parameters, examples = 64 * 60 + 60 + 60 * 10 + 10, printed.examples
    assert off.estimate is not None
    assert printed.estimate is not None
    assert printed.estimate > 30 * examples * parameters**2 / 3e10 > 5 * off.estimate
    assert printed.estimate < 2 * 30 * examples * parameters**2 / 3e10


# What is said of ε


def test_no_accountant_gives_a_finite_epsilon_for_the_branch() -> None:
    made = printed()
    net, inputs, targets = data()
    state, stack = begin(made)
    assert made.ledger(sampling_rate=0.5, noise_multiplier=None, steps=6) is None
    state, _ = one_step(made, net, state, stack, inputs, targets, N)
    for ledger in made.released(state, stack):
        assert ledger is not None
        assert events.from_json(events.to_json(ledger)) == ledger
        answers = account(ledger, delta=1e-4)
        assert answers
        assert all(one.epsilon is None or math.isinf(one.epsilon.value) for one in answers)
        without = events.Composition(ledger.parts[1:])
        assert any(one.epsilon is not None and one.epsilon.value < 1e3 for one in account(without, delta=1e-4))


SPEC = """
kind: run
name: branch
dataset: digits
model: logistic
training: {batch_size: 64, steps: 4, learning_rate: 0.1, clip_norm: 1.0}
budget: {epsilon: 3, delta: 1e-4}
accountants: [exact, lattice, rdp]
rows:
  - label: "off"
    mechanism: pidp_sgd
  - label: printed
    mechanism: {name: pidp_sgd, parameters: {variant: as_printed, radius: 1e9}}
seeds: 1
"""


def test_a_record_and_the_report_show_the_epsilon_as_claimed_and_the_branch(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    done = dpbench.run([file], out=tmp_path / "out", choices=Choices(seeds=1))
    assert done.exit_status == 0
    contents = Store(tmp_path / "out").read()
    assert not contents.damaged, "what a record says agrees with itself"
    found = {one.context.label: one for one in contents.runs}
    assert found["off"].facts.claimed_by is None
    assert found["off"].facts.without_noise is None
    assert found["printed"].facts.claimed_by == "pidp2021, Theorem 5"
    assert found["printed"].facts.without_noise == 1.0
    data = json.loads(Store(tmp_path / "out").run_path(found["printed"].run_key).read_text())
    assert disagreement(data) == ""
    shows, step = data["ledger"]["parts"]
    curve = [{**point, "releases": None} for point in data["curve"]]
    for parts in ([step], [shows, {**step, "count": 3}], [shows, {**step, "noise_multiplier": 9.0}]):
        forged = {**data, "curve": curve, "ledger": {**data["ledger"], "parts": parts}}
        assert disagreement(forged).startswith("its ledger is not the one that pidp_sgd has")
    forged = {**data, "facts": {**data["facts"], "claimed_by": "somebody"}}
    assert "facts.claimed_by = somebody" in disagreement(forged)
    report = collect(contents.runs, (), ())
    rows = {row.label: row for section in report.sections for row in section.rows}
    promised = rows["off"].promised
    assert promised is not None
    assert promised.accountant == "exact"
    assert promised.safe == pytest.approx(3, rel=1e-3)
    row = rows["printed"]
    assert row.promised is row.shown is None
    claimed = row.guarantee("pidp2021, Theorem 5")
    assert claimed is not None
    assert (claimed.kind, claimed.epsilon, claimed.promise) == ("claimed", 3.0, False)
    others = [line for line in row.guarantees if line is not claimed]
    assert {line.accountant for line in others} == {"exact", "lattice", "rdp"}
    assert all(line.epsilon is None or math.isinf(line.epsilon) for line in others)
    page = (tmp_path / "out" / "report.html").read_text()
    (stepwise,) = account(events.from_json({**data["ledger"], "parts": [step]}), delta=1e-4, accountants=["exact"])
    assert stepwise.epsilon is not None
    assert claimed.with_noise == pytest.approx(stepwise.epsilon.value, rel=1e-6)
    assert f"ε if every step had its noise (exact)</dt><dd>{stepwise.epsilon.value:.3g} (printed)" in page
    answer = {**shows, "first": [0.75, 0.25], "second": [0.25, 0.75]}  # private by itself: it may not be left out
    other = replace(found["printed"], ledger={**data["ledger"], "parts": [answer, step]})
    assert guarantees([other], other.context, Accounts())[-1].with_noise is None
    (section,) = report.sections
    for with_noise, more in ((2.9, "at most what is claimed."), (3.1, f"more than is claimed in {row.full_title}.")):
        lines = tuple(replace(line, with_noise=with_noise) if line is claimed else line for line in row.guarantees)
        texts = [
            one.text for one in notices([replace(section, rows=(replace(row, guarantees=lines),))], [], [], [], {})
        ]
        assert any(f"If every step had its noise, the exact ε would be {more}" in text for text in texts)
    (drawn,) = comparison_figures(report, report.comparisons[0])
    solid, hollow = drawn.figure.series
    assert [(point.x, point.hollow) for point in solid.points] == [(pytest.approx(3, rel=1e-3), False)]
    assert [(point.x, point.y, point.hollow) for point in hollow.points] == [(3.0, row.measured.mean, True)]
    assert drawn.legend[1][1].endswith(": ε as claimed, not proven")
    assert "Drawn records that met no noise</dt><dd>100.00 % (printed)" in page
    assert "refuted: noise_scale: records of little influence meet no noise (printed)" in page
    assert "holds: a mechanism of dpbench: covered by the contract tests of its source (off)" in page
    every_export_shows_only_the_claim(tmp_path / "out")


def every_export_shows_only_the_claim(out: Path) -> None:
    name = "pidp2021, Theorem 5"
    with (out / "report.csv").open(newline="", encoding="utf-8") as lines:
        [row] = [line for line in csv.DictReader(lines) if line["label"] == "printed"]
    assert (row["checked"], row[f"epsilon_{name}"], row[f"epsilon_{name}_kind"]) == ("refuted", "3.0", "claimed")
    assert not row["epsilon_exact"]
    contents = json.loads((out / "report.json").read_text(encoding="utf-8"))
    [printed] = [one for one in contents["sections"][0]["rows"] if one["label"] == "printed"]
    assert {(one["accountant"], one["kind"]) for one in printed["guarantees"] if one["epsilon"]} == {(name, "claimed")}
    assert printed["checked"]["verdict"] == "refuted"
    tex = (out / "report.tex").read_text(encoding="utf-8")
    [line] = [line for line in tex.splitlines() if line.startswith("printed &")]
    assert line.endswith("& withheld & withheld & withheld & 3.000 \\\\")
    assert r"\scriptsize claimed" in tex


def test_networks_with_many_parameters_use_conjugate_gradients() -> None:
    net = network(nn.Linear(600, 2))
    stack = hyperparameters([1])
    state = printed().start(torch.zeros(1, net.size), stack, torch.zeros(3, 600), torch.zeros(3).long())
    assert "factor_RPP" not in state.private
