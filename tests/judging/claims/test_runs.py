"""Utility claims against records: what a table's rows say together, and what does not count."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.datasets import find_dataset
from dpbench.judging.claims.claim import Claim
from dpbench.judging.claims.judging import Choice, verify
from dpbench.judging.claims.record import VerdictRecord
from dpbench.judging.claims.runs import OTHER, Trained, judge_runs, trained
from dpbench.judging.reproduction import Seed
from dpbench.spec.loading import load_specs
from dpbench.store.records import Store
from dpbench.store.run_key import FORMAT, chosen
from dpbench.tasks import METRICS
from tests.store.record_samples import run_json

ROOT = Path(__file__).parents[3]
FILE = "specs/bu2020/table1.yaml"
DIGEST = find_dataset("mnist").sha256
ROWS = {  # learning rate, clip norm, noise, epochs, printed
    "row 1": (0.25, 1.5, 1.3, 15, 95.0),
    "row 2": (0.15, 1.0, 1.1, 60, 96.6),
    "row 3": (0.25, 1.5, 0.7, 45, 97.0),
    "row 4": (0.25, 1.5, 0.6, 62, 97.6),
    "row 5": (0.25, 1.5, 0.55, 68, 97.8),
    "row 6": (0.25, 1.5, 0.5, 100, 98.0),
}
CLAIM = Claim("mine", "one", "here", "utility", "", "not_run", "", runs=(FILE,), rows=("*",), file=str(ROOT / "x.yaml"))


def run(label: str, seed: int, result: float, resolved: dict[str, Any] | None = None, **changed: Any) -> Trained:
    rate, clip, noise, epochs, _ = ROWS[label]
    settings = {
        "format": FORMAT,
        "dataset": {"name": "mnist", "parameters": {}, "sha256": DIGEST},
        "model": {"name": "tfp_cnn", "parameters": {"activation": "relu"}},
        "mechanism": {"name": "noisy_sgd", "parameters": {}},
        "sampling_rate": 256 / 60000,
        "steps": math.ceil(epochs * 60000 / 256),
        "learning_rate": rate,
        "clip_norm": clip,
        "noise_multiplier": noise,
    }
    return replace(
        Trained(FILE, label, seed, Seed(result), METRICS["accuracy"], settings | (resolved or {}), None, True),
        **changed,
    )


def table(seeds: int = 3, **shift: float) -> list[Trained]:
    """Runs of every row around its printed number, some rows shifted (`row_2=-3`)."""
    return [
        run(label, seed, ROWS[label][-1] + 0.1 * (seed - 1) + shift.get(label.replace(" ", "_"), 0.0))
        for label in ROWS
        for seed in range(seeds)
    ]


def test_a_table_holds_when_all_of_it_came_out() -> None:
    found = judge_runs(CLAIM, table())
    assert found.verdict == "holds"
    assert "of 6 printed results 6 hold" in found.reason
    assert found.false_alarm == pytest.approx(1 - 0.95**6)
    assert set(found.evidence) == set(ROWS)


@pytest.mark.parametrize(
    ("runs", "verdict", "words"),
    [
        (table(row_2=-3.0), "refuted", "5 hold, 1 are refuted"),
        (table(seeds=1), "undecided", "6 are undecided"),
        ([one for one in table() if one.label != "row 4"], "undecided", "5 hold, 1 were not compared"),
        ([], "not_run", "no record"),
        ([replace(one, reduced="2 epochs") for one in table()], "not_run", "this setting is reduced (2 epochs)"),
        ([replace(one, real=False) for one in table()], "not_run", "synthetic"),
    ],
)
def test_what_rows_say_together(runs: list[Trained], verdict: str, words: str) -> None:
    found = judge_runs(CLAIM, runs)
    assert found.verdict == verdict
    assert words in found.reason


@pytest.mark.parametrize(
    "resolved",
    [
        {"noise_multiplier": 1.2},
        {"learning_rate": 0.1},
        {"clip_norm": 1.0},
        {"steps": 3515},
        {"sampling_rate": 255 / 60000},
        {"mechanism": {"name": "noisy_adam", "parameters": {}}},
        {"mechanism": {"name": "noisy_sgd", "parameters": {"statistics_noise_multiplier": 8.0}}},
        {"dataset": {"name": "digits", "parameters": {}, "sha256": DIGEST}},
        {"dataset": {"name": "mnist", "parameters": {}, "sha256": "0" * 64}},
        {"dataset": {"name": "mnist", "parameters": {"part": "half"}, "sha256": DIGEST}},
        {"model": {"name": "mlp", "parameters": {"activation": "relu"}}},
        {"model": {"name": "tfp_cnn", "parameters": {"activation": "tanh"}}},
        {"model": {"name": "tfp_cnn", "parameters": {"activation": "relu"}, "weights": {"sha256": "0" * 64}}},
        {"loss": "squared_error"},
        {"noise_multiplier": None},
    ],
)
def test_runs_of_another_setting_do_not_count(resolved: dict[str, Any]) -> None:
    claim = replace(CLAIM, rows=("row 1",))
    assert judge_runs(claim, [run("row 1", seed, 95.0 + 0.1 * seed) for seed in range(3)]).verdict == "holds"
    found = judge_runs(claim, [run("row 1", seed, 95.0 + 0.1 * seed, resolved) for seed in range(3)])
    assert found.verdict == "not_run"
    assert OTHER in found.reason


CALIBRATED = """
kind: run
name: mine
source: a paper, Table 1
dataset: digits
model: logistic
mechanism: MECHANISM
training: {sampling_rate: 0.5, steps: 3, learning_rate: 0.1CLIP}
published: {test_accuracy_percent: 90.0}
budget: BUDGET
seeds: 1
"""


@pytest.mark.parametrize(
    ("budget", "noise", "target", "counts"),
    [
        ("{epsilon: 3, delta: 1e-4}", 1.1, (3.0, 1e-4, "exact"), True),
        ("{epsilon: 3, delta: 1e-4}", 1.1, (3.0, 1e-4, "rdp"), True),
        ("{epsilon: 3, delta: 1e-4}", 1.1, (2.0, 1e-4, "exact"), False),
        ("{epsilon: 3, delta: 1e-4}", 1.1, (3.0, 1e-5, "exact"), False),
        ("{epsilon: 3, delta: 1e-4, calibrate_with: rdp}", 1.1, (3.0, 1e-4, "rdp"), True),
        ("{epsilon: 3, delta: 1e-4, calibrate_with: rdp}", 1.1, (3.0, 1e-4, "exact"), False),
        ("{epsilon: 3, delta: 1e-4}", 1.1, (None, None, None), False),
        ("none", None, (None, None, None), True),
        ("none", 1.1, (None, None, None), False),
    ],
)
def test_runs_of_another_budget_do_not_count(
    tmp_path: Path,
    budget: str,
    noise: float | None,
    target: tuple[float | None, float | None, str | None],
    counts: bool,
) -> None:
    name, clip = ("non_private", None) if budget == "none" else ("noisy_sgd", 1.0)
    text = (
        CALIBRATED.replace("BUDGET", budget)
        .replace("MECHANISM", name)
        .replace("CLIP", f", clip_norm: {clip}" if clip else "")
    )
    (tmp_path / "mine.yaml").write_text(text)
    (spec,) = load_specs([tmp_path / "mine.yaml"])
    resolved = {
        "format": FORMAT,
        "dataset": {"name": "digits", "parameters": {}, "sha256": find_dataset("digits").sha256},
        "model": chosen("models", spec.model, skip=2),
        "mechanism": chosen("mechanisms", spec.mechanism),
        "sampling_rate": 0.5,
        "steps": 3,
        "learning_rate": 0.1,
        "clip_norm": clip,
        "noise_multiplier": noise,
    }
    rows = [
        Trained("mine.yaml", "", seed, Seed(89.5 + seed), METRICS["accuracy"], resolved, None, True, target)
        for seed in (0, 1)
    ]
    claim = replace(CLAIM, runs=("mine.yaml",), file=str(tmp_path / "claims.yaml"))
    assert judge_runs(claim, rows).verdict == ("holds" if counts else "not_run")
    others = [replace(one, file="other.yaml") for one in rows]
    known = counts and target[2] == {"none": None}.get(budget, "rdp" if "rdp" in budget else "exact")
    assert judge_runs(claim, others).verdict == ("holds" if known else "not_run")


def test_runs_of_older_code_count_and_are_called_stale() -> None:
    claim, numerics = replace(CLAIM, rows=("row 1",)), {"numerics": {"step": 0}}
    found = judge_runs(claim, [run("row 1", seed, 95.0 + 0.1 * seed, numerics) for seed in range(3)])
    assert found.verdict == "holds"
    assert "3 of its runs are stale" in found.evidence["row 1"]


def test_only_the_rows_that_a_claim_names_count() -> None:
    runs = table(row_2=-3.0)
    assert judge_runs(replace(CLAIM, rows=("row 2",)), runs).verdict == "refuted"
    assert judge_runs(replace(CLAIM, rows=("row [13456]",)), runs).verdict == "holds"


def test_records_of_a_claim_without_a_number_to_compare_leave_it_undecided() -> None:
    """It was run, so it is not `not_run`."""
    claim = replace(CLAIM, rows=(), verdict="not_run")
    found = judge_runs(claim, table())
    assert (found.verdict, f"; {len(table())} of its runs have a record" in found.reason) == ("undecided", True)
    assert judge_runs(claim, [replace(one, real=False) for one in table()]).verdict == "not_run"
    assert judge_runs(claim, ()).verdict == "not_run"
    assert judge_runs(replace(claim, verdict=""), table()).verdict == "not_run", "of somebody who states none"
    (one, *_) = table()
    other = judge_runs(claim, [one, replace(one, seed=999)])
    assert "; 1 of its runs has a record" in other.reason, "seeds that the spec does not have are not its runs"
    assert judge_runs(replace(claim, runs=()), table()).verdict == "not_run"


def test_a_claim_that_prints_no_number_of_its_rows_says_so() -> None:
    claim = replace(CLAIM, runs=("specs/pidp2021/non_private.yaml",))
    assert "its rows print no result" in judge_runs(claim, table()).reason


def compared(higher: str, lower: str, runs: list[Trained], **one: str) -> str:
    claim = replace(CLAIM, rows=(), compares=({"higher": higher, "lower": lower, **one},))
    return judge_runs(claim, runs).verdict


def test_one_row_gives_more_than_another() -> None:
    runs = table()
    assert compared("row 2", "row 1", runs) == "holds"
    assert compared("row 1", "row 2", runs) == "refuted"
    assert compared("row 2", "row 1", table(row_2=-1.6)) == "undecided"
    assert compared("row 2", "row 1", runs, by="1.6") == "holds"
    assert compared("row 2", "row 1", runs, by="0.1") == "refuted"
    assert compared("row 2", "row 1", table(seeds=1)) == "not_run"
    for lost in ({"reduced": "short"}, {"real": False}, {"resolved": runs[0].resolved | {"steps": 1}}):
        assert compared("row 2", "row 1", [replace(one, **lost) for one in runs]) == "not_run"


def test_runs_of_other_files_count_where_they_are_of_the_setting() -> None:
    """Not where a default may be another one there, and what is wrong with them is no reason against a row."""
    elsewhere = [replace(one, file="specs/other.yaml") for one in table()]
    assert judge_runs(CLAIM, elsewhere).verdict == "holds"
    changed = [replace(one, resolved=one.resolved | {"steps": 1}) for one in elsewhere]
    found = judge_runs(CLAIM, changed)
    assert found.verdict == "not_run"
    assert OTHER not in found.reason
    assert OTHER in judge_runs(CLAIM, [replace(one, file=FILE) for one in changed]).reason
    tried = [replace(one, seed=999, reduced="a try") for one in elsewhere]
    assert judge_runs(CLAIM, [*table(), *tried]).verdict == "holds"
    assert compared("row 2", "row 1", [*table(), *tried]) == "holds"


def test_rows_of_one_label_cannot_be_compared() -> None:
    twice = replace(CLAIM, rows=(), runs=(*CLAIM.runs, *CLAIM.runs), compares=({"higher": "row 2", "lower": "row 1"},))
    assert judge_runs(twice, table()).verdict == "holds"  # the same file is read once
    other = replace(twice, runs=(FILE, "specs/bu2020/table2.yaml", "specs/bu2020/table3.yaml"))
    found = judge_runs(other, table())
    assert (found.verdict, "two of its rows have the same label" in found.reason) == ("not_run", True)


def test_the_whole_curve_is_compared(tmp_path: Path) -> None:
    """Of records: the same end, reached earlier."""
    for seed in range(3):
        for label, first in (("early", 0.9), ("late", 0.5)):
            record = run_json("mine", label, seed, accuracy=0.95, epochs=2)
            record["curve"][0]["test_accuracy"] = first + 0.001 * seed
            Store(tmp_path).write_run(record)
    found = {run.label: run.gave.curve for run in trained(tmp_path) if run.seed == 1}
    assert [round(shown, 9) for _, shown in found["early"]] == [90.1, 95.0]
    curves = {"row 2": found["early"], "row 1": found["late"]}
    runs = [replace(one, gave=replace(one.gave, curve=curves.get(one.label, ()))) for one in table(row_1=50)]
    assert compared("row 2", "row 1", runs) == "refuted"  # by the result
    assert compared("row 2", "row 1", runs, metric="along_training") == "holds"


def test_a_metric_is_compared_in_place_of_the_result() -> None:
    def metrics(sharpness: float) -> dict[str, float]:
        return {"sharpness": sharpness, "sharpness (reach = 0.1)": 9 - sharpness, "sharpness_2": 0.0}

    gaps = {"row 1": 3.0, "row 2": 5.0}
    runs = [
        replace(one, gave=replace(one.gave, metrics=metrics(gaps.get(one.label, 0) + 0.1 * one.seed)))
        for one in table(row_1=50)  # by the result it is the other way round
    ]
    assert compared("row 2", "row 1", runs) == "refuted"
    assert compared("row 2", "row 1", runs, metric="sharpness") == "holds"
    assert compared("row 2", "row 1", runs, metric="sharp") == "not_run"


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("holds", True), ("undecided", True), ("not_run", True), ("refuted", True), ("crashes", False)],
)
def test_a_claim_that_was_not_run_may_come_to_a_verdict(verdict: str, expected: bool) -> None:
    (found,) = verify([ROOT / "dpbench/judging/papers/bu2020"], Choice(names=("bu2020.figure4-top",))).verdicts
    assert isinstance(found, VerdictRecord)
    assert replace(found, verdict=verdict).as_expected is expected


def test_published_records_judge_the_table_that_they_are_of(tmp_path: Path) -> None:
    """Through the front door, with the records that came with the project."""
    shutil.copytree(ROOT / "reports" / "published" / "records", tmp_path / "published" / "records")
    if not trained(tmp_path):
        pytest.skip("no records came with the project")
    folder = [ROOT / "dpbench/judging/papers/bu2020"]
    (found,) = verify(folder, Choice(names=("bu2020.table1-accuracy",)), out=tmp_path).verdicts
    assert found.verdict != "not_run"
    assert "row 1" in found.evidence
    assert found.judge.startswith("dpbench/judging/claims/runs.py:")
    (shared,) = verify(
        [ROOT / "dpbench/judging/papers/dplis2021"], Choice(names=("dplis2021.table-10-mnist-mlp",)), out=tmp_path
    ).verdicts
    assert "deviates by" in shared.evidence["MNIST MLP none 5.01: printed_accuracy_deviation"], (
        "runs of Table 2 are those of Table 10"
    )
    (other,) = verify(folder, Choice(names=("bu2020.table1-accuracy",)), out=tmp_path / "empty").verdicts
    assert other.verdict == "not_run"
