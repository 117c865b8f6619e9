"""A regression from spec to report: records that agree with themselves, verdicts, `diff`, CSV, figures, mistakes."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

import dpbench
from dpbench.cli import main
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.judging.reproduction import metric_verdict
from dpbench.plan.planning import Choices, make_plan
from dpbench.reporting.collect import collect
from dpbench.reporting.page import render
from dpbench.reporting.rendering.exports import records_csv, rows_csv, tables_latex
from dpbench.spec.keys import Printed
from dpbench.spec.loading import load_specs
from dpbench.store.agreement import disagreement
from dpbench.store.differences import diff
from dpbench.store.records import Store
from dpbench.store.shapes import RunRecord
from dpbench.tasks import METRICS

SPEC = """\
kind: run
name: numbers
source: a test
dataset: diabetes
model: {name: mlp, parameters: {hidden: []}}
mechanism: noisy_sgd
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 64, steps: 4, learning_rate: 0.1, clip_norm: 1.0}
seeds: 2
published: {test_rmse: 0.55}
"""
CLASSES = SPEC.replace("dataset: diabetes", "dataset: digits").replace("published: {test_rmse: 0.55}\n", "")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of a regression, of classes measured by RMSE, and of the same classes measured as usual."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "one.yaml").write_text(SPEC)
    (folder / "two.yaml").write_text(CLASSES.replace("name: numbers", "name: stars") + "metric: rmse\n")
    (folder / "three.yaml").write_text(CLASSES.replace("name: numbers", "name: classes"))
    dpbench.run(sorted(folder.glob("*.yaml")), out=folder / "out", choices=Choices(device="cpu"))
    return folder / "out"


def records(out: Path) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in sorted(Store(out).read().runs, key=lambda run: run.seed):
        found.setdefault(run.context.name, []).append(run)
    return found


def raw(out: Path, name: str) -> dict[str, Any]:
    files = (json.loads(file.read_text()) for file in sorted((out / "records").glob("*.json")))
    data: dict[str, Any] = next(one for one in files if one["context"]["name"] == name)
    return data


def test_a_run_is_measured_by_the_metric_of_its_task(out: Path) -> None:
    found = records(out)
    assert {name: len(runs) for name, runs in found.items()} == {"numbers": 2, "stars": 2, "classes": 2}
    metrics = {name: {run.result.metric.name for run in runs} for name, runs in found.items()}
    assert metrics == {"numbers": {"rmse"}, "stars": {"rmse"}, "classes": {"accuracy"}}
    for run in found["numbers"]:
        assert run.result.test_loss is not None
        assert run.result.shown == pytest.approx(math.sqrt(run.result.test_loss), rel=1e-14)
        assert (run.facts.task, run.facts.parameters) == ("regression", 11)
    # the metric changes no training, and only what is unusual is in the key
    for one, other in zip(found["stars"], found["classes"], strict=True):
        assert one.resolved["metric"] == "rmse"
        assert not {"loss", "metric"} & set(other.resolved)
        assert one.run_key != other.run_key
    assert {"loss", "metric"} & set(found["numbers"][0].resolved) == set()


def test_naming_the_usual_changes_no_key(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    plain = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path), Choices(device="cpu"))
    (tmp_path / "spec.yaml").write_text(SPEC + "loss: squared_error\nmetric: rmse\n")
    named = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path), Choices(device="cpu"))
    assert [run.key for run in plain.runs] == [run.key for run in named.runs]


CHANGES: dict[str, tuple[str, Any, str]] = {
    "another rmse": ("numbers", lambda d: d["result"].update(test_rmse=0.1), "result.test_rmse = 0.1"),
    "both": ("numbers", lambda d: [p.update(test_rmse=0.1) for p in [d["result"], *d["curve"]]], "makes"),
    "accuracy": (
        "numbers",
        lambda d: [(p.pop("test_rmse"), p.update(test_accuracy=0.9)) for p in [d["result"], *d["curve"]]],
        "result has no test_rmse, the metric of its run",
    ),
    "task": ("numbers", lambda d: d["facts"].update(task="classification"), "but its dataset is for regression"),
    "metric": ("stars", lambda d: d["resolved"].update(metric="perplexity"), "run_key is that of another run"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_that_contradicts_its_metric_is_found(out: Path, change: str) -> None:
    name, edit, said = CHANGES[change]
    data = raw(out, name)
    assert disagreement(data) == ""
    edit(data)
    assert said in disagreement(data)


def test_two_metrics_or_none_make_no_record(out: Path, tmp_path: Path) -> None:
    for edit in (lambda d: d["result"].update(test_accuracy=0.5), lambda d: d["result"].pop("test_rmse")):
        data = raw(out, "numbers")
        data.pop("digest")
        edit(data)
        with pytest.raises(DpbenchError, match="exactly one of test_accuracy, test_rmse, test_perplexity"):
            Store(tmp_path).write_run(data)


def test_the_report_shows_each_metric_in_its_unit(out: Path) -> None:
    report = collect(Store(out).read().runs)
    rows = {section.name: section.rows[0] for section in report.sections}
    row = rows["numbers"]
    assert (row.metric.label, row.reached) == ("Test RMSE", row.figures)
    verdict = row.metric_verdict
    assert verdict is not None
    assert (verdict.check, verdict.evidence["printed"]) == ("printed_rmse", "0.55")
    assert "percentage" not in verdict.reason
    assert rows["classes"].reached.endswith(" %")
    assert {one.metric_name for one in report.comparisons} <= {"accuracy", "rmse"}
    page = render(report)
    for text in ("Test RMSE", "RMSE against ε", "Test accuracy, %", "Accuracy against ε", row.figures):
        assert text in page, text
    lines = {line["spec"]: line for line in csv.DictReader(io.StringIO(rows_csv(report)))}
    assert float(lines["numbers"]["rmse_mean_measured"]) == row.measured.mean
    assert (lines["numbers"]["rmse_printed"], lines["numbers"]["accuracy_percent_mean_measured"]) == ("0.55", "")
    assert float(lines["classes"]["accuracy_percent_mean_measured"]) == rows["classes"].measured.mean
    assert lines["numbers"]["rmse_verdict"] == verdict.verdict
    shown = [line["test_rmse"] for line in csv.DictReader(io.StringIO(records_csv(report))) if line["test_rmse"]]
    assert len(shown) == 4
    assert "RMSE & " in tables_latex(report)


def test_diff_knows_that_a_smaller_error_is_better(out: Path) -> None:
    before = raw(out, "numbers")
    worse = json.loads(json.dumps(before))
    worse["result"]["test_rmse"] += 0.2
    (row,) = diff([before], [worse])
    assert (row.metric, round(row.change or 0, 9)) == ("rmse", 0.2)
    assert row.fails({"rmse": 0.1})
    assert not row.fails({"rmse": 0.3})
    assert not row.fails({"accuracy": 0.0})
    (back,) = diff([worse], [before])
    assert not back.fails({"rmse": 0.0})
    assert "rmse" in row.in_words
    other = raw(out, "classes") | {"context": before["context"], "seed": before["seed"]}
    (changed,) = diff([before], [other])
    assert changed.change is None
    assert changed.fails({"accuracy": 100.0})
    assert changed.fails({"rmse": 100.0})
    assert changed.in_words.startswith("another metric, accuracy")
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(out), str(out), "--fail-if", "rmse=0", "--fail-if", "accuracy=0"])
    assert ended.value.code == 0


def test_a_printed_error_is_judged_in_its_own_unit() -> None:
    found = metric_verdict("row", [0.91, 0.92, 0.915], Printed.of("0.915"), None, metric=METRICS["rmse"])
    assert (found.check, found.verdict) == ("printed_rmse", "holds")
    assert "ours 0.915, printed 0.915: a difference of +0.000;" in found.reason
    assert metric_verdict("row", [0.95, 0.951], Printed.of("0.915"), 10, metric=METRICS["rmse"]).verdict == "refuted"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds: 2", "seeds: 2\nloss: cross_entropy", "expected squared_error, for the dataset is for regression"),
        ("seeds: 2", "seeds: 2\nmetric: accuracy", "expected rmse"),
        ("seeds: 2", "seeds: 2\nloss: hinge", "expected 'cross_entropy' or 'squared_error'"),
        ("test_rmse", "test_accuracy_percent", "the metric of this run is rmse; expected test_rmse"),
        ("test_rmse: 0.55", "test_rmse: -1", "above 0"),
    ],
)
def test_what_does_not_fit_is_a_mistake_of_the_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace(old, new))
    with pytest.raises(ProblemsError) as caught:
        load_specs([tmp_path / "spec.yaml"])
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("mechanism", "training"),
    [
        ("pate", "{batch_size: 20, steps: 2, learning_rate: 0.1}"),
        ("output_perturbation", "{batch_size: 20, steps: 2, learning_rate: 0.1, clip_norm: 1}"),
        ("objective_perturbation", "{sampling_rate: 1, steps: 1, learning_rate: 1, clip_norm: 1}"),
    ],
)
def test_a_mechanism_of_cross_entropy_alone_refuses_another_loss(tmp_path: Path, mechanism: str, training: str) -> None:
    spec = SPEC.replace("noisy_sgd", mechanism).replace("{name: mlp, parameters: {hidden: []}}", "logistic")
    lines = [f"training: {training}" if line.startswith("training") else line for line in spec.splitlines()]
    (tmp_path / "spec.yaml").write_text("\n".join(lines) + "\n")
    with pytest.raises(ProblemsError, match=f"loss = squared_error: {mechanism} trains with cross-entropy alone"):
        make_plan(load_specs([tmp_path / "spec.yaml"]), tmp_path / "out", Choices(device="cpu"))


def test_a_squared_error_of_classes_has_one_output(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(CLASSES + "loss: squared_error\n")
    dpbench.run([tmp_path / "spec.yaml"], out=tmp_path / "out", choices=Choices(device="cpu", seeds=1))
    (run,) = Store(tmp_path / "out").read().runs
    assert (run.facts.parameters, run.result.metric.name) == (65, "rmse")
    assert run.resolved["loss"] == "squared_error"
