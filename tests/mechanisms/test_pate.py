"""Internal: each record of PATE has one teacher; the law of its answers, its ledger, its student, what it refuses.

That one record changes one teacher, that the values let out have the noise and the reach of their events, and that the
student sees them alone is what the checks look at, here for the shipped mechanism, in test_planted.py for its faults.
Statistical tests have a false alarm of at most 1e-9; seeds are fixed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpbench import run
from dpbench.catalog import catalog, find
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import ConfidentGNMax
from dpbench.judging.check_tools.problems import hyperparameters, small_network
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks.philox_vectors import gauss
from dpbench.judging.faults.votes import ensemble
from dpbench.mechanisms._pate_votes import counted_votes, owners
from dpbench.mechanisms.pate import NOT_ANSWERED, NOTHING_ANSWERED, Pate, mechanism
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, make_plan
from dpbench.privacy.accounting import account
from dpbench.randomness import NOISE, table
from dpbench.spec.loading import load_specs
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, State, step, with_public
from dpbench.store.records import Store
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted, train
from tests.references import votes as exact

pytestmark = pytest.mark.usefixtures("one_thread")

N = 30
SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [8], activation: tanh}}
mechanism:
  name: pate
  parameters: {teachers: 10, threshold: 5, public_examples: 40, labels: 20, teacher_steps: 5}
budget: {delta: 1e-4, noise_multiplier: 2.0}
training: {batch_size: 8, steps: 8, learning_rate: 0.2}
seeds: 2
"""


def problem(mechanism: Pate, dtype: torch.dtype = torch.float64) -> tuple[Pate, Network, Tensor, Tensor]:
    """The mechanism with public inputs, a network, inputs and targets of N examples."""
    net, generator = small_network(), torch.Generator().manual_seed(4)
    features = int(net.shapes[0][1][1])
    public = torch.randn(mechanism.public_examples, features, generator=generator).to(dtype)
    inputs = torch.randn(N, features, generator=generator).to(dtype)
    return with_public(mechanism, public), net, inputs, torch.randint(3, (N,), generator=generator)


def stack(*runs: int) -> Hyperparameters:
    rates, sigmas, lengths = [0.3, 0.2, 0.5], [0.7, 0.4, 1.0], [0.1, 0.3, 0.2]
    numbers = {"sampling_rate": rates, "noise_multiplier": sigmas, "learning_rate": lengths}
    return hyperparameters(list(runs), steps=6, **{name: [of[r] for r in runs] for name, of in numbers.items()})


def trained(mechanism: Pate, runs: tuple[int, ...], steps: int = 6, chunk: int = 100) -> State:
    mechanism, net, inputs, targets = problem(mechanism)
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state = mechanism.start(theta_P.repeat(len(runs), 1), stack(*runs), inputs, targets)
    for _ in range(steps):
        state, _ = step(mechanism, net, state, stack(*runs), inputs, targets, chunk)
    return state


# Partition


def test_a_record_has_one_teacher_whoever_else_is_there() -> None:
    """The first 999 of 1000 records keep theirs; counts over records and runs are uniform, records independent."""
    keys_RS = table(range(40))
    owner_RN = owners(keys_RS, 1000, 7)
    assert torch.equal(owners(keys_RS, 999, 7), owner_RN[:, :-1])
    counts = torch.bincount(owner_RN.flatten(), minlength=7).numpy()
    assert counts.sum() == 40_000
    assert stats.chisquare(counts).pvalue > 1e-9
    pairs = torch.bincount((7 * owner_RN[:, ::2] + owner_RN[:, 1::2]).flatten(), minlength=49).numpy()
    assert stats.chisquare(pairs).pvalue > 1e-9
    assert len({tuple(row) for row in owner_RN.tolist()}) == 40


def test_counts_of_votes_are_those_of_every_teacher_alone() -> None:
    made, net, inputs, targets = problem(ensemble())
    hyper = stack(0, 1)
    theta_RP = torch.randn(2, net.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    teachers_RTP = made.trained(net, theta_RP, hyper, inputs, targets, 100)
    assert teachers_RTP.shape == (2, 4, net.size)
    assert made.public is not None
    for chunk in (1, 7, 100):
        found_RQC = counted_votes(net, teachers_RTP, made.public, chunk)
        for run_ in range(2):
            for query in range(made.queries):
                votes = [0] * found_RQC.shape[2]
                for teacher in range(4):
                    named = {n: v[0] for n, v in net.split(teachers_RTP[run_, teacher : teacher + 1]).items()}
                    votes[int(net.outputs(named, made.public[query : query + 1]).argmax())] += 1
                assert found_RQC[run_, query].tolist() == votes


def test_a_teacher_learns_from_its_own_records_alone() -> None:
    """With one record, however often it is drawn, the steps are those of gradient descent on it."""
    made, net, inputs, targets = problem(ensemble())
    hyper = stack(0)
    owner_N = made.owners(hyper, N)[0]
    theta_RP = torch.randn(1, net.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = owner_N == 2
    one = int(mine.nonzero()[0])
    same, label = inputs.clone(), targets.clone()
    same[mine], label[mine] = inputs[one], targets[one]
    found_P = made.trained(net, theta_RP, hyper, same, label, 100)[0, 2]
    theta_P = theta_RP[0].clone()
    for _ in range(made.teachers.steps):
        theta_P.requires_grad_(True)
        named = {name: value[0] for name, value in net.split(theta_P[None]).items()}
        loss = net.example_loss(named, inputs[one], targets[one])
        (gradient_P,) = torch.autograd.grad(loss, theta_P)
        theta_P = (theta_P - made.teachers.learning_rate * gradient_P).detach()
    # Three steps in float64 on gradients of some size 10, averaged over eight equal places.
    assert float((found_P - theta_P).abs().max()) < 1e-12


# Answers


def test_the_aggregator_line_by_line() -> None:
    """Checks, then answers for the first `labels` that pass; the noise is recomputed number by number."""
    made = ensemble(threshold=9.0, above_teachers=True, labels=3)
    votes_QC = torch.tensor([[12, 1, 2], [2, 9, 4], [5, 5, 5], [0, 1, 14]] * 3)
    hyper = hyperparameters([3, 8], noise_multiplier=[1.0, 4.0])
    labels_RQ = made.aggregated(votes_QC.expand(2, -1, -1), hyper)
    for at, sigma in enumerate((1.0, 4.0)):
        draw = [gauss(hyper.keys_RS[at].tolist(), NOISE, 0, i) for i in range(12 + 9)]
        expected, slot = [NOT_ANSWERED] * 12, 0
        for query, counts in enumerate(votes_QC.tolist()):
            if slot < 3 and max(counts) + made.selection_ratio * sigma * draw[query] >= 9.0:
                noisy = [count + sigma * draw[12 + 3 * slot + c] for c, count in enumerate(counts)]
                expected[query], slot = max(range(3), key=noisy.__getitem__), slot + 1
        assert labels_RQ[at].tolist() == expected
        assert slot == 3


@pytest.mark.parametrize("votes", [(40, 8, 2), (18, 17, 15)])
def test_the_law_of_the_answers_is_that_of_the_reference(votes: tuple[int, ...]) -> None:
    """No answer and every class of 6000 runs, against probabilities integrated elsewhere, with ten digits."""
    runs = 6000
    made = ensemble(threshold=30.0, above_teachers=True, selection_ratio=4.0, queries=1, labels=1)
    hyper = hyperparameters(range(runs), noise_multiplier=5.0)
    found = made.aggregated(torch.tensor([[list(votes)]]).expand(runs, -1, -1), hyper)[:, 0]
    law = [float(p) for p in exact.outcomes(ConfidentGNMax(30.0, 20.0, 5.0, votes=votes), 10)]
    seen = np.array([int((found == label).sum()) for label in (NOT_ANSWERED, 0, 1, 2)])
    assert seen.sum() == runs
    common = np.array(law) * runs > 5
    assert (
        stats.chisquare(seen[common], np.array(law)[common] * seen[common].sum() / np.array(law)[common].sum()).pvalue
        > 1e-9
    )
    for count, p in zip(seen[~common], np.array(law)[~common], strict=True):
        assert stats.binom.sf(count - 1, runs, p) > 1e-9


# The ledger


def test_the_ledger_is_every_query_and_the_most_answers() -> None:
    made = mechanism(teachers=250, threshold=200, selection_ratio=5.0, public_examples=4000, labels=1323)
    ledger = made.ledger(sampling_rate=0.1, noise_multiplier=40.0, steps=7)
    assert ledger is not None
    assert ledger.parts == (
        (ConfidentGNMax(200.0, 200.0, 40.0, answered=False), 2677),
        (ConfidentGNMax(200.0, 200.0, 40.0), 1323),
    )
    full = mechanism(teachers=250, threshold=200, public_examples=40).ledger(
        sampling_rate=0.1, noise_multiplier=4.0, steps=7
    )
    assert full is not None
    assert [count for _, count in full.parts] == [40]
    for sigma in (None, 0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier"):
            made.ledger(sampling_rate=0.1, noise_multiplier=sigma, steps=3)


def test_its_epsilon_is_that_of_one_gaussian_in_two_ways() -> None:
    """4000 checks and 1323 answers are one Gaussian of μ² = 4000/200² + 2·1323/40² (Dong et al., Corollary 2).

    Against dplis2021's Table 13: its 7.44 for these counts is above the moments' 7.23, and both above the truth.
    """
    made = mechanism(teachers=250, threshold=200, selection_ratio=5.0, public_examples=4000, labels=1323)
    ledger = made.ledger(sampling_rate=0.1, noise_multiplier=40.0, steps=7)
    assert ledger is not None
    found = {one.accountant: one.epsilon for one in account(ledger, delta=1e-5, accountants=["exact", "rdp"])}
    assert found["exact"] is not None
    assert found["rdp"] is not None
    mu = math.sqrt(4000 / 200**2 + 2 * 1323 / 40**2)
    epsilon = found["exact"].value
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-9)
    rho = mu**2 / 2
    assert epsilon < found["rdp"].value < rho + 2 * math.sqrt(rho * math.log(1e5)) < 7.24


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_the_law_of_all_labels_keeps_to_the_ledger(epsilon: float) -> None:
    """Two queries and one answer: every outcome's probability, for votes and for one teacher who votes otherwise.

    The first query that passes is answered. The probabilities are integrated with ten digits (tests/references/votes).
    """
    here, there = ((6, 2, 0), (3, 3, 2)), ((5, 3, 0), (2, 4, 2))

    def law(votes: tuple[tuple[int, ...], ...]) -> list[float]:
        events = [ConfidentGNMax(5.0, 4.0, 2.0, votes=counts) for counts in votes]
        first, second = ([float(p) for p in exact.outcomes(event, 10)] for event in events)
        return [first[0] * second[0], *first[1:], *(first[0] * p for p in second[1:])]

    one, other = law(here), law(there)
    assert sum(one) == pytest.approx(1, abs=1e-9)
    made = mechanism(teachers=8, threshold=5, selection_ratio=2.0, public_examples=2, labels=1)
    ledger = made.ledger(sampling_rate=0.5, noise_multiplier=2.0, steps=1)
    assert ledger is not None
    (bound,) = account(ledger, epsilon=epsilon, accountants=["exact"])
    assert bound.delta_at is not None
    for p, q in ((one, other), (other, one)):
        delta = sum(max(0.0, a - math.exp(epsilon) * b) for a, b in zip(p, q, strict=True))
        assert delta <= bound.delta_at.value
    assert epsilon > 0.1 or delta > 0


@pytest.mark.parametrize(
    "check",
    ["teacher_partition", pytest.param("mechanism_releases", marks=pytest.mark.long), "mechanism_replay"],
)
def test_it_passes_the_checks(check: str) -> None:
    made = catalog("mechanisms")["pate"].load()(teachers=6, threshold=3.0, public_examples=20, labels=10)
    found: Any = find("checks", check).load()
    subject = Subject("mechanisms", "pate", made)
    assert found.applies(subject)
    assert found(subject, seed=1).verdict == "holds"


# A run


def test_it_is_the_same_alone_in_a_stack_and_in_pieces() -> None:
    """Labels bit for bit; parameters up to the rounding of float64 over six steps of gradients below 100."""
    made = ensemble(smoothing_samples=2, halfway_factor=0.1)
    together = trained(made, (0, 1, 2))
    assert len({tuple(row) for row in together.memory["labels_RQ"].tolist()}) > 1
    for chunk in (1, 7):
        pieces = trained(made, (0, 1, 2), chunk=chunk)
        assert torch.equal(pieces.memory["labels_RQ"], together.memory["labels_RQ"])
        assert float((pieces.theta_RP - together.theta_RP).abs().max()) < 1e-11
    for at in range(3):
        alone = trained(made, (at,))
        assert torch.equal(alone.memory["labels_RQ"][0], together.memory["labels_RQ"][at])
        assert float((alone.theta_RP[0] - together.theta_RP[at]).abs().max()) < 1e-11


class Silent(Pate):
    """Its teachers may not be asked."""

    def counted(self, *_: Any) -> Tensor:
        raise AssertionError("asked again")


def test_teachers_are_asked_once_and_a_run_that_joins_later_is_asked_alone() -> None:
    made, net, inputs, targets = problem(ensemble())
    first = trained(ensemble(), (0, 1), steps=1)
    silent = Silent(**{one.name: getattr(made, one.name) for one in dataclasses.fields(made)})
    state, _ = step(silent, net, first, stack(0, 1), inputs, targets, 100)
    whole = trained(ensemble(), (0, 1), steps=2)
    assert torch.equal(state.theta_RP, whole.theta_RP)
    # A run at its third step together with one at its start.
    late, early = whole.take(torch.tensor([0])), trained(ensemble(), (1,), steps=0)
    memory = {name: torch.cat([late.memory[name], early.memory[name]]) for name in late.memory}
    both = State(torch.cat([late.theta_RP, early.theta_RP]), memory, torch.cat([late.step_R, early.step_R]))
    assert [len(one.parts) for one in made.released(both, stack(0, 1)) if one is not None] == [2, 0]
    after, _ = step(made, net, both, stack(0, 1), inputs, targets, 100)
    assert torch.equal(after.memory["labels_RQ"], whole.memory["labels_RQ"])


def test_what_a_step_says_is_what_the_ledger_gets() -> None:
    made, net, inputs, targets = problem(ensemble())
    state = trained(ensemble(), (0, 1), steps=0)
    for number in range(2):
        released, _ = made.release(net, state, stack(0, 1), inputs, targets, 100)
        ledger = made.ledger(sampling_rate=0.3, noise_multiplier=0.7, steps=6)
        assert ledger is not None
        said = [event for event, count in ledger.parts for _ in range(count)] if number == 0 else []
        assert list(released.events(0)) == said
        state, _ = step(made, net, state, stack(0, 1), inputs, targets, 100)
        assert made.released(state, stack(0, 1))[0] == ledger


def test_the_student_s_gradient_is_the_mean_over_shifted_parameters() -> None:
    """By hand from the labels: with every label the same and a batch of every place, batches do not matter."""
    made, net, inputs, targets = problem(
        ensemble(smoothing_samples=3, smoothing_deviation=0.3, queries=1, labels=1, threshold=-50.0)
    )
    hyper = stack(0)
    state = trained(dataclasses.replace(made, public=None), (0,), steps=0)
    released, kept = made.release(net, state, hyper, inputs, targets, 100)
    label = released.values["labels_RQ"][0, 0]
    assert made.public is not None
    total_P, losses = torch.zeros(net.size, dtype=torch.float64), 0.0
    for shift_RP in made._shifts(hyper.keys_RS, state, net.size):
        theta_P = (state.theta_RP + shift_RP)[0].requires_grad_(True)
        named = {name: value[0] for name, value in net.split(theta_P[None]).items()}
        loss = net.example_loss(named, made.public[0], label)
        total_P += torch.autograd.grad(loss, theta_P)[0] / 3
        losses += float(loss.detach()) / 3
    assert float((released.gradient_RP[0] - total_P).abs().max()) < 1e-13
    assert float(kept.observed.loss_R[0]) == pytest.approx(9 * losses, rel=1e-12)  # 0.3 · 30 places
    assert int(kept.observed.drawn_R[0]) == 9


def test_the_learning_rate_drops_in_the_middle() -> None:
    made, net, inputs, targets = problem(ensemble(halfway_factor=0.1))
    factors = []
    for number in range(6):
        state = dataclasses.replace(trained(ensemble(), (0,), steps=1), step_R=torch.tensor([number]))
        factors.append(float(made.release(net, state, stack(0), inputs, targets, 100)[0].values["rate_factor_R"]))
    assert factors == [1.0, 1.0, 1.0, 0.1, 0.1, 0.1]


def test_a_run_without_an_answer_stops_and_says_why() -> None:
    made, net, inputs, targets = problem(ensemble(threshold=50.0, above_teachers=True))
    state = trained(ensemble(), (0,), steps=0)
    _, seen = step(made, net, state, stack(0), inputs, targets, 100)
    assert seen.stopped == {0: NOTHING_ANSWERED}


# From a spec


def outcomes(folder: Path, change: Any = lambda data: data, **more: Any) -> dict[int, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(SPEC)
    runs = make_plan(load_specs([folder / "spec.yaml"]), Store(folder / "out"), Choices(device="cpu")).runs
    spec = runs[0].spec
    source = dataset_source(spec)
    data, build = change(source.load(None)), model_builder(spec, source)
    found = train(runs, data, build_mechanism(spec), build, Execution(), **more)
    return {one.run.seed: one for one in found}


def test_the_queries_are_not_measured_and_their_targets_not_used(tmp_path: Path) -> None:
    plain = outcomes(tmp_path / "a")[0].result

    def relabelled(data: Any) -> Any:
        targets = data.test_targets.clone()
        targets[:40] = (targets[:40] + 1) % 10
        return dataclasses.replace(data, test_targets=targets)

    other = outcomes(tmp_path / "b", relabelled)[0].result
    assert plain["facts"]["test_examples"] == 320
    for point, same in zip(plain["curve"], other["curve"], strict=True):
        assert {**point, "seconds": 0} == {**same, "seconds": 0}

    def other_rest(data: Any) -> Any:
        targets = data.test_targets.clone()
        targets[40:] = 3
        return dataclasses.replace(data, test_targets=targets)

    moved = outcomes(tmp_path / "c", other_rest)[0].result
    share = 320 * moved["result"]["test_accuracy"]
    assert share == pytest.approx(round(share), abs=1e-9)
    assert moved["result"]["test_loss"] != plain["result"]["test_loss"]


def test_a_resumed_run_asks_nobody_and_ends_as_the_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept, steps = outcomes(tmp_path / "a"), tmp_path / "kept", []

    def stop() -> bool:
        steps.append(0)
        return len(steps) > 3

    with pytest.raises(Interrupted):
        outcomes(tmp_path / "b", stop=stop, checkpoints=kept)
    monkeypatch.setattr(Pate, "counted", Silent.counted)
    resumed = outcomes(tmp_path / "b", checkpoints=kept)
    for seed in (0, 1):
        assert resumed[seed].result is not None, resumed[seed].error
        assert resumed[seed].result["resumed"] is True
        assert resumed[seed].result["result"] == whole[seed].result["result"]
        assert resumed[seed].result["ledger"] == whole[seed].result["ledger"]


def test_the_whole_job_with_its_record(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace("seeds: 2", "seeds: 1\naccountants: [exact, rdp_data_dependent]"))
    assert run([tmp_path / "spec.yaml"], out=tmp_path / "out").exit_status == 0
    read = Store(tmp_path / "out").read()
    (record,) = read.runs
    assert record.facts.test_examples == 320
    again = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices())
    assert [one.action for one in again.runs] == ["exists"]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (row,) = [row for section in report["sections"] for row in section["rows"]]
    assert row["facts"]["privacy_unit"] == "one training example"
    asked = {line["accountant"]: line for line in row["guarantees"]}
    assert asked["rdp_data_dependent"]["epsilon"] is None, "a run shows no data-dependent ε: it keeps no votes"
    assert asked["rdp_data_dependent"]["refused"].startswith("votes = None")
    assert asked["exact"]["epsilon"] > 0
    assert all("votes" not in part or part["votes"] is None for part in record.ledger["parts"])


# What it refuses


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"teachers": 1}, "teachers = 1: expected a whole number, 2 or more"),
        ({"threshold": 51}, "threshold = 51: above the 50 votes"),
        ({"threshold": math.nan}, "threshold = nan: expected a finite number"),
        ({"selection_ratio": 0.0}, "selection_ratio = 0.0: expected a finite number above 0"),
        ({"public_examples": 0}, "public_examples = 0: expected a whole number, 1 or more"),
        ({"queries": 101}, "queries = 101: expected at most public_examples = 100"),
        ({"queries": 0}, "queries = 0: expected a whole number, 1 or more"),
        ({"labels": 101}, "labels = 101: expected at most queries = 100"),
        ({"smoothing_samples": -1}, "smoothing_samples = -1: expected a whole number, 0 or more"),
        ({"smoothing_deviation": 0.0}, "smoothing_deviation = 0.0: expected a finite number above 0"),
        ({"teacher_steps": 0}, "teacher_steps = 0: expected a whole number, 1 or more"),
        ({"teacher_learning_rate": math.inf}, "teacher_learning_rate = inf: expected a finite number above 0"),
        ({"votes_licence": "MIT"}, "votes_file: missing"),
    ],
)
def test_parameters_that_are_not_valid(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(DpbenchError, match=words):
        mechanism(**wrong)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("teachers: 10", "teachers: 1438", "teachers = 1438: more than the 1437 private examples"),
        ("public_examples: 40", "public_examples: 360", "leaves none of the 360 test examples"),
        ("learning_rate: 0.2}", "learning_rate: 0.2, clip_norm: 1}", "pate clips nothing; leave it out"),
        ("noise_multiplier: 2.0", "noise_multiplier: 0", "noise_multiplier"),
        ("noise_multiplier: 2.0", "noise_multiplier: -1", "noise_multiplier"),
        ("threshold: 5", "threshold: 11", "above the 10 votes"),
        ("batch_size: 8", "sampling_rate: 0.0001", "a batch_size of 1 or more"),
    ],
)
def test_mistakes_of_a_spec_are_said_before_training(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SPEC
    (tmp_path / "spec.yaml").write_text(SPEC.replace(old, new))
    with pytest.raises(ProblemsError, match=words):
        make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices(device="cpu"))
