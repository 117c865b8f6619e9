"""Metrics at the end of a run: what they measure, and that they change nothing of the run."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpbench.catalog import build, catalog
from dpbench.cli import main
from dpbench.datasets import find_dataset
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.job import run
from dpbench.mechanisms.pate import Pate
from dpbench.plan.planning import Choices, context, make_plan
from dpbench.reporting.collect import collect
from dpbench.reporting.page import render
from dpbench.spec.loading import load_specs
from dpbench.step.functional import evaluate, network
from dpbench.step.metric import Trained
from dpbench.step.metrics.loss_surface import LossSurface, filter_normalised
from dpbench.step.metrics.sharpness import Sharpness
from dpbench.step.sharpness import sharpness
from dpbench.store.records import Store

SPEC = """kind: run
name: {name}
dataset: digits
model: {{name: mlp, parameters: {{hidden: [8]}}}}
mechanism: noisy_sgd
budget: {{noise_multiplier: 1.0, delta: 1e-4}}
training: {{batch_size: 256, steps: 4, learning_rate: 1.0, clip_norm: 1.0}}
seeds: 2
"""
METRICS = "metrics: [sharpness, {name: loss_surface, parameters: {points: 3, records: 50}}]\n"


def trained(records: int = 40, convex: bool = False) -> Trained:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 4)]
    module = nn.Sequential(*([nn.Flatten(), nn.Linear(36, 4)] if convex else layers))
    net = network(module)
    theta_RP = torch.cat([value.detach().flatten() for value in module.parameters()])[None]
    return Trained(net, theta_RP, torch.randn(records, 1, 6, 6), torch.randint(4, (records,)), 16)


def spec(folder: Path, name: str = "mine", more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name) + more, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted({*catalog("metrics")} - {"correct_labels"}))  # of public records
def test_every_metric_gives_plain_values_and_says_of_how_many_records(name: str) -> None:
    convex = name == "optimality_gap"
    found = build("metrics", {"name": name, "parameters": {"records": 10}}).measure(trained(convex=convex))
    json.dumps(found, allow_nan=False)
    assert found["records"] == 10
    assert ("value" in found) != ("surface" in found)
    assert build("metrics", name).measure(trained(7, convex))["records"] == 7


def test_every_filter_of_a_direction_is_as_long_as_that_of_the_parameters() -> None:
    one = trained()
    places = one.net.split(one.theta_RP)
    for way in (0, 1):
        for name, value in one.net.split(filter_normalised(one.net, one.theta_RP, 3, way)).items():
            if value.dim() == 2:
                assert not value.any()
                continue
            norms = [part[0].flatten(1).norm(dim=1) for part in (value, places[name])]
            torch.testing.assert_close(*norms)
    first, second, other = (filter_normalised(one.net, one.theta_RP, *at) for at in ((3, 0), (3, 1), (4, 0)))
    for a, b in ((first, second), (first, other)):
        assert abs(nn.functional.cosine_similarity(a, b).item()) < 6 / math.sqrt(one.net.size)


def test_a_surface_has_the_loss_at_its_places() -> None:
    one = trained()
    surface = LossSurface(span=0.5, points=5, records=30).measure(one)["surface"]
    ways = [filter_normalised(one.net, one.theta_RP, 0, way) for way in (0, 1)]
    assert surface["axis"] == [-0.5, -0.25, 0.0, 0.25, 0.5]
    for row, alpha in enumerate(surface["axis"]):
        for column, beta in enumerate(surface["axis"]):
            place = one.theta_RP + alpha * ways[0] + beta * ways[1]
            expected = evaluate(one.net, place, one.inputs[:30], one.targets[:30], 7)[0].item()
            assert surface["losses"][row][column] == pytest.approx(expected, rel=1e-5)  # sums of 30 float32 scores
    line = LossSurface(span=0.5, points=5, directions=1, records=30).measure(one)["surface"]
    assert line["losses"] == pytest.approx([row[2] for row in surface["losses"]], rel=1e-5)


def test_a_smoothed_surface_is_the_mean_over_shifted_parameters() -> None:
    one = trained()
    smoothing: dict[str, Any] = {"smoothing_samples": 3, "smoothing_deviation": 0.1}
    several: dict[str, Any] = {"span": 0.5, "points": 3, "directions": 1, "records": 30}
    shifts = LossSurface(**several, **smoothing).shifts(one)
    assert [round(float(shift.std()), 1) for shift in shifts] == [0.1, 0.1, 0.1]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(shifts, 2))
    way, first = filter_normalised(one.net, one.theta_RP, 0, 0), one.first(30)
    expected = []
    for alpha in (-0.5, 0.0, 0.5):
        at = torch.cat([one.theta_RP + shift + alpha * way for shift in shifts])
        expected.append(evaluate(one.net, at, first.inputs, first.targets, 7)[0].mean().item())
    found = LossSurface(**several, **smoothing).measure(one)["surface"]["losses"]
    assert found == pytest.approx(expected, rel=1e-5)  # sums of 30 float32 scores
    assert found[1] != pytest.approx(LossSurface(**several).measure(one)["surface"]["losses"][1], rel=1e-4)


@pytest.mark.parametrize("directions", [1, 2])
def test_a_surface_is_of_the_split_that_is_asked_and_has_its_accuracy(directions: int) -> None:
    """Place by place against one evaluation of its own; a run hands its test records over."""
    one = replace(trained(), test=(torch.randn(20, 1, 6, 6), torch.randint(4, (20,))))
    assert one.test is not None
    asked = LossSurface(directions=directions, points=3, span=0.5, records=15, split="test")
    found = asked.measure(one)
    surface, ways = found["surface"], [filter_normalised(one.net, one.theta_RP, 0, way) for way in range(2)]
    for x, alpha in enumerate((-0.5, 0.0, 0.5)):
        for y, beta in enumerate((-0.5, 0.0, 0.5) if directions == 2 else (0.0,)):
            at = one.theta_RP + alpha * ways[0] + beta * ways[1]
            loss_R, share_R = evaluate(one.net, at, one.test[0][:15], one.test[1][:15], 15)
            here = [surface[name][x][y] if directions == 2 else surface[name][x] for name in ("losses", "metric")]
            assert here == pytest.approx([float(loss_R), 100 * float(share_R)], rel=1e-5)  # float32 losses
    assert (found["records"], surface["split"], surface["metric_name"]) == (15, "test", "accuracy")
    usual = LossSurface(directions=directions, points=3, span=0.5, records=15).measure(one)["surface"]
    assert usual["split"] == "training"
    assert usual["losses"] != surface["losses"]


def test_a_run_measures_its_test_records(tmp_path: Path) -> None:
    """The middle of the surface is the trained model, whose accuracy on all test records is the run's."""
    more = "{directions: 1, points: 3, records: 10000, split: test}"
    path = spec(tmp_path, more=f"metrics: [{{name: loss_surface, parameters: {more}}}]\n")
    run([path], out=tmp_path / "out", choices=Choices(device="cpu"))
    contents = Store(tmp_path / "out").read()
    assert contents.runs
    for one in contents.runs:
        (found,) = one.result.metrics
        assert found.surface is not None
        assert found.surface["losses"][1] == pytest.approx(one.result.test_loss, rel=1e-6)
        assert found.surface["metric"][1] == pytest.approx(100 * one.result.test_accuracy, rel=1e-9)
        assert found.records == one.facts.test_examples
    page = render(collect(contents.runs))
    assert "mine: test loss along one direction" in page
    assert "mine: test accuracy along one direction" in page
    assert "training loss along one" not in page


def test_scaling_the_filters_of_a_network_leaves_its_surface() -> None:
    """What the normalisation is for: ReLU networks that compute the same look the same."""
    one = trained()
    named = one.net.split(one.theta_RP)
    scaled = {name: value * (10.0 if name.startswith("0.") else 1.0) for name, value in named.items()}
    scaled["3.weight"] = scaled["3.weight"] / 10
    other = Trained(one.net, one.net.join(scaled), one.inputs, one.targets, one.chunk)
    first, second = (LossSurface(points=5).measure(each)["surface"]["losses"] for each in (one, other))
    for a, b in zip(first, second, strict=True):
        assert a == pytest.approx(b, rel=1e-4)  # float32, after one factor of 10 and its inverse


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    one = trained()
    huge = Trained(one.net, one.theta_RP * 1e30, one.inputs, one.targets, one.chunk)
    assert None in LossSurface(directions=1).measure(huge)["surface"]["losses"]


def test_sharpness_is_that_of_the_function_on_the_first_records() -> None:
    one = trained()
    expected = sharpness(one.net, one.theta_RP, one.inputs[:25], one.targets[:25], 16, reach=0.01, iterations=3)
    found = Sharpness(reach=0.01, iterations=3, records=25).measure(one)
    assert found == {"records": 25, "value": float(expected[0])}


@pytest.mark.parametrize(
    ("made", "parameters", "words"),
    [
        (Sharpness, {"reach": 0.0}, "reach = 0.0"),
        (Sharpness, {"iterations": 0}, "iterations = 0"),
        (Sharpness, {"records": 0}, "records = 0"),
        (LossSurface, {"split": "validation"}, "split = 'validation': expected training or test"),
        (LossSurface, {"points": 4}, "points = 4: expected an odd number"),
        (LossSurface, {"points": 103}, "points = 103"),
        (LossSurface, {"directions": 3}, "directions = 3"),
        (LossSurface, {"span": math.inf}, "span = inf"),
        (LossSurface, {"records": True}, "records = True"),
        (LossSurface, {"smoothing_samples": -1}, "smoothing_samples = -1"),
        (LossSurface, {"smoothing_samples": 3}, "smoothing_deviation = 0.0"),
        (LossSurface, {"smoothing_deviation": 0.1}, "smoothing_deviation = 0.1"),
        (LossSurface, {"smoothing_samples": 1, "smoothing_deviation": math.nan}, "smoothing_deviation = nan"),
    ],
)
def test_numbers_outside_their_range_are_named(made: Any, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(DpbenchError, match=words):
        made(**parameters)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ("[sharpnes]", "unknown metric 'sharpnes'"),
        ("sharpness", "expected a list of metrics"),
        ("[rmse]", "write `metric: rmse`"),
        ("[{name: sharpness, parameters: {reech: 1}}]", "reech"),
        ("[{name: sharpness, parameters: {records: 0}}]", "records = 0"),
    ],
)
def test_a_mistake_under_metrics_is_reported_before_training(tmp_path: Path, metrics: str, words: str) -> None:
    with pytest.raises(ProblemsError) as error:
        load_specs([spec(tmp_path, more=f"metrics: {metrics}\n")])
    assert words in str(error.value)


def test_a_metric_of_training_records_is_not_that_of_test_records(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="belong under `metrics`"):
        load_specs([spec(tmp_path, more="metric: sharpness\n")])


def test_metrics_are_no_part_of_a_key_and_change_no_result(tmp_path: Path) -> None:
    run([spec(tmp_path, "plain")], out=tmp_path / "plain", choices=Choices(device="cpu"))
    run([spec(tmp_path, "more", METRICS)], out=tmp_path / "more", choices=Choices(device="cpu"))
    plain, more = ({one.run_key: one for one in Store(tmp_path / name).read().runs} for name in ("plain", "more"))
    assert plain.keys() == more.keys()
    for key, one in more.items():
        assert one.result.test_loss == plain[key].result.test_loss
        assert [found.name for found in one.result.metrics] == list(one.context.metrics)
        assert one.result.metrics[0].value is not None
        assert one.result.metrics[1].surface is not None
        assert plain[key].result.metrics == ()
    page = (tmp_path / "more" / "report.html").read_text(encoding="utf-8")
    assert "Measured on private data and not released." in page
    assert "Sharpness and loss surfaces" not in (tmp_path / "plain" / "report.html").read_text(encoding="utf-8")


def test_a_record_without_the_metric_says_not_measured_and_how_to_get_it(tmp_path: Path) -> None:
    path, out = spec(tmp_path), tmp_path / "out"
    run([path], out=out, choices=Choices(device="cpu"))
    asked = spec(tmp_path, more=METRICS)
    summary = run([asked], out=out, choices=Choices(device="cpu"))
    assert summary.count("exists") == 2
    from dpbench.job import write_reports

    write_reports(Store(out), summary.plan)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "not measured" in page
    assert "--force" in page


def test_specs_that_share_a_run_have_it_measured_once_with_all_that_they_ask(tmp_path: Path) -> None:
    first = spec(tmp_path, "first")
    second = spec(tmp_path, "second", "metrics: [sharpness]\n")
    third = spec(tmp_path, "third", "metrics: [{name: sharpness, parameters: {records: 5}}]\n")
    plan = make_plan(load_specs([first, second, third]), Store(tmp_path / "out"), Choices(device="cpu"))
    for one in plan.stacks[0].runs:
        assert [(metric.name, dict(metric.parameters)) for metric in one.metrics] == [
            ("sharpness", {}),
            ("sharpness", {"records": 5}),
        ]
    # The report expects of each spec what it asks for itself.
    asked = {run.spec.name: context(run)["metrics"] for run in plan.runs}
    assert asked == {"first": [], "second": ["sharpness"], "third": ["sharpness (records = 5)"]}
    alone = make_plan(load_specs([first]), Store(tmp_path / "out"), Choices(device="cpu"))
    assert [run.metrics for run in alone.runs] == [()] * len(alone.runs)


def test_a_metric_that_fails_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Sharpness, "measure", fails)
    run([spec(tmp_path, more="metrics: [sharpness]\n")], out=tmp_path / "out", choices=Choices(device="cpu"))
    for one in Store(tmp_path / "out").read().runs:
        assert one.result.metrics[0].failed == "RuntimeError: out of memory"
    assert "failed: RuntimeError: out of memory" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_chapter_shows_the_metric_of_a_regression(tmp_path: Path) -> None:
    path = tmp_path / "regression.yaml"
    text = SPEC.format(name="patients").replace("digits", "diabetes").replace("batch_size: 256", "batch_size: 64")
    path.write_text(text + "metrics: [sharpness]\n", encoding="utf-8")
    run([path], out=tmp_path / "out", choices=Choices(device="cpu"))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    chapter = page[page.index("Measured on private data and not released.") :]
    assert "RMSE" in chapter[: chapter.index("</table>")]
    assert "Test accuracy" not in chapter[: chapter.index("</table>")]


def test_the_training_metric_is_the_run_s_own_on_the_first_records() -> None:
    given = trained()
    _, accuracy_R = evaluate(given.net, given.theta_RP, given.inputs[:12], given.targets[:12], 5)
    found = build("metrics", {"name": "training_metric", "parameters": {"records": 12}}).measure(given)
    assert found == {"records": 12, "value": pytest.approx(100 * float(accuracy_R[0]))}
    with pytest.raises(DpbenchError, match="records = 0: expected a whole number, 1 or more"):
        build("metrics", {"name": "training_metric", "parameters": {"records": 0}})


def test_correct_labels_are_those_of_the_classes_and_no_others() -> None:
    metric, classes_Q = build("metrics", "correct_labels"), torch.tensor([3, 1, 2, 0, 1])
    labelled = replace(trained(), labels=lambda: (torch.tensor([3, -1, 0, -1, 1]), classes_Q))
    assert metric.measure(labelled) == {"records": 3, "value": pytest.approx(200 / 3)}
    with pytest.raises(DpbenchError, match="no query was answered"):
        metric.measure(replace(labelled, labels=lambda: (torch.full((5,), -1), classes_Q)))
    with pytest.raises(DpbenchError, match="no labels of public records were released"):
        metric.measure(trained())


def test_correct_labels_of_pate_are_held_against_the_first_test_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from what the aggregator gave, with the dataset's own classes."""
    text = (Path(__file__).parents[2] / "specs" / "quickstart" / "pate.yaml").read_text(encoding="utf-8")
    (tmp_path / "pate.yaml").write_text(text.replace("seeds: 3", "seeds: [4]"), encoding="utf-8")
    aggregated, given = Pate.aggregated, []

    def watched(*arguments: Any) -> Any:
        given.append(aggregated(*arguments))
        return given[-1]

    monkeypatch.setattr(Pate, "aggregated", watched)
    run([tmp_path / "pate.yaml"], out=tmp_path / "out", choices=Choices(device="cpu"))
    (record,) = Store(tmp_path / "out").read().runs
    (found,) = record.result.metrics
    (labels_RQ,) = given
    classes = find_dataset("digits").load(None).test_targets[:120]
    answered = [(int(one), int(true)) for one, true in zip(labels_RQ[0], classes, strict=True) if one >= 0]
    assert 30 < len(answered) <= 60
    assert (found.records, found.value) == (
        len(answered),
        pytest.approx(100 * sum(one == true for one, true in answered) / len(answered)),
    )


def test_correct_labels_of_another_mechanism_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="this mechanism releases no labels of public records; expected pate"):
        run([spec(tmp_path, more="metrics: [correct_labels]\n")], out=tmp_path / "out", choices=Choices(device="cpu"))


def test_objectives_differ_as_the_gaps_of_logistic_regression_do() -> None:
    """Its optimum is solved for by other code: the difference does not depend on it."""
    first = trained(convex=True)
    second = replace(first, theta_RP=3 * first.theta_RP)
    asked = {"parameters": {"regularisation": 0.05}}
    objective, gap = (build("metrics", {"name": name, **asked}) for name in ("training_objective", "optimality_gap"))
    by = [[one.measure(at)["value"] for at in (first, second)] for one in (objective, gap)]
    assert by[0][1] - by[0][0] == pytest.approx(by[1][1] - by[1][0], rel=1e-5)  # float32 losses
    assert abs(by[0][0] - by[1][0]) > 1e-3, "the least objective is not 0"
    with pytest.raises(DpbenchError, match=r"regularisation = -1\.0: expected a finite number, 0 or more"):
        build("metrics", {"name": "training_objective", "parameters": {"regularisation": -1.0}})


ALONG = "metrics: [training_metric, {name: loss_surface, parameters: {directions: 1, points: 3, records: 50}}]\n"


def test_metrics_along_the_training_change_nothing_and_stand_in_record_and_report(tmp_path: Path) -> None:
    """Eight epochs of six steps and more: at about a third, two thirds, and the end; a curve, and a line for each."""
    longer = [SPEC.replace("steps: 4", "steps: 48").format(name=name) for name in ("plain", "along")]
    for name, text in zip(
        ("plain", "along"), (longer[0] + ALONG, longer[1] + ALONG + "metrics_along: 3\n"), strict=True
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
        run([tmp_path / f"{name}.yaml"], out=tmp_path / name, choices=Choices(device="cpu"))
    records = {
        name: sorted(Store(tmp_path / name).read().runs, key=lambda one: one.seed) for name in ("plain", "along")
    }
    for usual, one in zip(records["plain"], records["along"], strict=True):
        assert one.run_key == usual.run_key
        assert [point.test_loss for point in one.curve] == [point.test_loss for point in usual.curve]
        assert one.result.metrics == usual.result.metrics
        assert not any(point.metrics for point in usual.curve)
        before = [point for point in one.curve if point.metrics]
        assert len(before) == 2
        assert before[-1].step < one.curve[-1].step
        for point in before:
            value, surface = point.metrics
            assert (value.name, value.records) == ("training_metric", 1437)
            assert surface.surface is not None
        assert before[0].metrics != before[1].metrics
    report = collect(records["along"])
    (row,) = report.rows()
    value, surface = row.metrics
    assert [epoch for epoch, _ in value.along] == [records["along"][0].curve[place].epoch for place in (2, 5, 8)]
    ends = [one.result.metrics[0].value or 0.0 for one in records["along"]]
    assert value.along[-1][1].mean == pytest.approx(sum(ends) / 2)
    assert [step for step, _ in surface.surfaces_along] == [point.step for point in before]
    page = render(report)
    assert "along: training metric along the training" in page
    assert f"seed 0, step {before[0].step}" in page


def test_a_run_goes_on_with_what_was_measured_before(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        SPEC.replace("steps: 4", "steps: 48").format(name="one") + ALONG + "metrics_along: 3\n"
    )
    stops = iter([False] * 30 + [True] * 1000)
    asked = [tmp_path / "one.yaml"]
    assert run(asked, out=tmp_path / "cut", choices=Choices(device="cpu"), stop=lambda: next(stops)).interrupted
    for name in ("cut", "whole"):
        run(asked, out=tmp_path / name, choices=Choices(device="cpu"))
    cut, whole = (sorted(Store(tmp_path / name).read().runs, key=lambda one: one.seed) for name in ("cut", "whole"))
    assert all(one.resumed for one in cut)
    assert [[point.metrics for point in one.curve] for one in cut] == [[p.metrics for p in one.curve] for one in whole]


def call(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_a_record_without_a_metric_that_is_asked_for_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is asked for later is not measured, and nobody is left to wonder why."""
    asked = ["run", str(spec(tmp_path)), "--out", str(tmp_path / "out"), "--device", "cpu"]
    call(asked)
    assert "record without" not in capsys.readouterr().out
    spec(tmp_path, more="metrics: [sharpness, training_metric]\n")
    call(asked)
    said = " ".join(capsys.readouterr().out.split())
    assert "2 runs: has a record without sharpness, training_metric; --force trains again and measures." in said
    call([*asked, "--force"])
    capsys.readouterr()
    call(asked)
    assert "record without" not in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["0", "101", "2.5", "often"])
def test_how_often_is_a_whole_number(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ProblemsError, match="metrics_along"):
        load_specs([spec(tmp_path, more=f"{METRICS}metrics_along: {wrong}\n")])
