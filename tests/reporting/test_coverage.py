"""The chapter on the papers' tables and figures: what ran, and what is said of it."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import DpbenchError
from dpbench.judging.claims.judging import Choice, verify
from dpbench.judging.claims.summary import claims_report
from dpbench.judging.coverage import PAPERS, coverage, read_coverage
from dpbench.reporting.collect import collect
from dpbench.reporting.contents import CoverageLine, Report
from dpbench.reporting.coverage import names_in_papers, with_coverage
from dpbench.reporting.page import render
from dpbench.reporting.rendering.agreement import coverage_figures
from dpbench.reporting.rendering.exports import rows_csv
from dpbench.reporting.rendering.figures import Figure
from dpbench.reporting.rendering.surfaces import Contour
from dpbench.spec.loading import load_specs
from dpbench.spec.shipped import shipped
from dpbench.store.speed import Speed, StepLine
from tests.store.record_samples import printed, run_json

ACCURACIES = {"row 1": "95.0", "row 2": "96.6", "row 3": "97.0", "row 4": "97.6", "row 5": "97.8", "row 6": "98.0"}


def record(label: str, seed: int, accuracy: float, **context: Any) -> dict[str, Any]:
    published = {"accuracy_percent": printed(ACCURACIES[label]), "averaged_over": 10, "epsilon": {}}
    found = run_json(
        "bu2020-table1", label, seed, accuracy=accuracy, context={"published": published, "needs": ["gpu"], **context}
    )
    return {**found, "run_key": hashlib.sha256(f"{label} {seed} {accuracy}".encode()).hexdigest()}


def table_1(records: list[dict[str, Any]], **collected: Any) -> tuple[Report, CoverageLine]:
    report = with_coverage(collect(records, **collected))
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("bu2020", "Table 1")]
    return report, line


def rows(labels: Mapping[str, float], seeds: int = 3) -> list[dict[str, Any]]:
    return [record(label, seed, mean + 0.001 * (seed - 1)) for label, mean in labels.items() for seed in range(seeds)]


HELD = {label: float(text) / 100 for label, text in ACCURACIES.items()}


def test_a_table_that_came_out_holds() -> None:
    report, line = table_1(rows(HELD))
    assert (line.verdict, line.reason) == ("holds", "of 6 printed results 6 hold")
    assert (line.configurations, len(line.rows), line.seeds, line.printed) == (6, 6, (3, 3, 10), 6)
    assert line.devices == ("not recorded",) or line.devices
    (figure,) = coverage_figures(report)[line.id]
    same, points = figure.figure.series
    assert [(point.x, round(point.y, 6)) for point in points.points] == [
        (float(text), float(text)) for text in ACCURACIES.values()
    ]
    assert all(point.x == point.y for point in same.line)
    assert line.id in render(report)


@pytest.mark.parametrize(
    ("labels", "seeds", "verdict", "reason"),
    [
        ({**HELD, "row 2": 0.93}, 3, "refuted", "of 6 printed results 5 hold, 1 refuted"),
        ({"row 1": 0.95, "row 2": 0.966}, 3, "undecided", "of 6 printed results 2 hold, 4 not compared"),
        (HELD, 1, "undecided", "of 6 printed results 6 undecided"),
    ],
)
def test_one_verdict_on_a_table(labels: Mapping[str, float], seeds: int, verdict: str, reason: str) -> None:
    _, line = table_1(rows(labels, seeds))
    assert (line.verdict, line.reason) == (verdict, reason)


def deviating(label: str, seed: int) -> dict[str, Any]:
    """A record of Table 10, which prints a deviation and no mean."""
    published = {"accuracy_deviation_percent": printed("0.184"), "averaged_over": 5, "epsilon": {}}
    accuracy = 0.93 + 0.002 * (seed - 1)
    found = run_json("dplis2021-table10", label, seed, accuracy=accuracy, context={"published": published})
    return {**found, "run_key": hashlib.sha256(f"{label} {seed}".encode()).hexdigest()}


def test_a_printed_deviation_is_compared_and_drawn() -> None:
    report = with_coverage(collect([deviating("MNIST MLP none 5.01", seed) for seed in range(3)]))
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("dplis2021", "Table 10")]
    assert (line.verdict, line.reason) == ("undecided", "of 24 printed results 1 hold, 23 not compared")
    (figure,) = coverage_figures(report)[line.id]
    (point,) = figure.figure.series[1].points
    assert (point.x, point.y) == (0.184, pytest.approx(0.2))
    assert figure.figure.x_label == "Standard deviation of the test accuracy, %, printed"
    assert "printed sd 0.184" in render(report)


def test_printed_epochs_and_other_metrics_are_compared_and_drawn_by_themselves() -> None:
    """Beside the accuracy, in the tables, in CSV, and each kind in a figure of its own."""
    published = {
        "accuracy_percent": printed("87.39"),
        "averaged_over": 1,
        "epochs_to_reach": {"80": printed("1")},
        "measured": {"correct_labels": printed("91.66")},
        "stated_epsilon": printed("16.75"),
        "epsilon": {},
    }
    label = "40 16000"
    context = {"published": published}
    records = [run_json("dplis2021-table13", label, seed, accuracy=0.87, context=context) for seed in (0, 1)]
    for seed, record in enumerate(records):
        record["result"]["metrics"] = [{"name": "correct_labels", "records": 5521, "value": 91.0 + seed}]
    report = with_coverage(collect(records))
    (row,) = report.rows()
    assert [(one.check, one.verdict) for one in row.other_verdicts] == [
        ("printed_epochs_to_80", "undecided"),
        ("printed_correct_labels", "holds"),
    ]
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("dplis2021", "Table 13")]
    results, epochs, labels = (one.figure for one in coverage_figures(report)[line.id])
    assert [one.x_label for one in (results, epochs, labels)] == [
        "Test accuracy, %, printed",
        "Epochs, printed",
        "Correct labels, printed",
    ]
    (point,) = labels.series[1].points
    assert (point.x, point.y) == (91.66, 91.5)
    page = " ".join(render(report).split())
    for words in (
        "epochs to 80: 7.5, printed 1",
        "correct labels: 91.50, printed 91.66",
        "the source states 16.75, by an",
    ):
        assert words in page, words
    (cells,) = csv.DictReader(io.StringIO(rows_csv(report)))
    assert (cells["correct_labels_printed"], cells["correct_labels_verdict"]) == ("91.66", "holds")
    assert float(cells["correct_labels_mean"]) == pytest.approx(91.5)
    assert (cells["epochs_to_80_printed"], cells["stated_epsilon_printed"]) == ("1", "16.75")


def test_printed_sharpness_is_drawn_without_a_verdict() -> None:
    records = []
    for seed in range(2):
        published = {"sharpness": printed("0.8626"), "epsilon": {}}
        record = run_json("dplis2021-table9", "MNIST MLP none 1.99", seed, context={"published": published})
        record["result"]["metrics"] = [{"name": "sharpness", "records": 9, "value": 3.0 + 2 * seed}]
        records.append(record)
    report = with_coverage(collect(records))
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("dplis2021", "Table 9")]
    assert line.verdict == ""
    (figure,) = coverage_figures(report)[line.id]
    (point,) = figure.figure.series[1].points
    assert (point.x, point.y, point.low, point.high) == (0.8626, 4.0, None, None)  # bars are prediction intervals
    assert figure.figure.x_label == "Sharpness, printed"
    assert "without a verdict" in point.says


def test_a_figure_that_claims_compute_is_drawn_where_its_line_stands(tmp_path: Path) -> None:
    names = ("dplis2021.figure-2-runs", "dplis2021.figure-2-losses")
    verify([PAPERS / "dplis2021"], Choice(names=names), out=tmp_path)
    report = with_coverage(replace(collect([]), claims=claims_report(tmp_path)))
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("dplis2021", "Figure 2")]
    plain, smoothed, losses = coverage_figures(report)[line.id]
    assert [len(one.figure.dots) for one in (plain, smoothed) if isinstance(one.figure, Contour)] == [100, 100]
    assert plain.caption == "dplis2021, Figure 2: 2c: the loss, and where runs end without smoothing"
    assert [text for _, text in losses.legend] == ["without smoothing", "with smoothing"]
    page = render(report)
    drawn, claims = page.split('<h2 id="claims">')
    for one in (plain, smoothed, losses):
        assert f'id="{one.figure.id}-title"' in drawn
        assert f'id="{one.figure.id}-title"' not in claims  # once, or its anchors would be ambiguous
    assert claims.count(f'Drawn at <a href="#{line.id}">Figure 2</a>') == 2


def test_printed_times_are_drawn_beside_ours_as_those_of_another_machine() -> None:
    def step(label: str, seconds: float, printed_seconds: str, device_name: str = "a CPU") -> StepLine:
        where = ("", "ghost", "cpu", device_name, 1, 1, "cifar10", "papernot_cnn", 9, 256.0, 200.0)
        made = StepLine("jl2021-table2", label, *where, seconds=seconds, printed_seconds=printed_seconds)
        return replace(made, baseline="plain")

    other = step("plain", 0.1, "12", "another CPU")
    lines = (step("plain", 1.0, "12"), step("JL", 4.0, "657"), step("not printed", 1.0, ""), other)
    (record,) = rows({"row 1": 0.95}, 1)  # of another paper, so that there is something to show
    report = with_coverage(replace(collect([record]), speed=Speed(lines)))
    found = coverage_figures(report)
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("jl2021", "Table 2")]
    assert [name for name in found if "jl2021" in name] == [line.id]
    (drawn,) = found[line.id]
    assert isinstance(drawn.figure, Figure)
    same, ours, others = drawn.figure.series
    assert same.line[0].x == same.line[0].y
    assert [(point.x, point.y) for point in ours.points] == [(12.0, 200.0), (657.0, 800.0)]
    assert [(point.x, point.y) for point in others.points] == [(12.0, 20.0)]
    assert ours.points[1].says == "JL: 800 s, printed 657 s; 4 times that without privacy, printed 54.8"
    assert drawn.figure.x_label == "Seconds of an epoch, printed, on another machine"
    assert "no verdict follows" in drawn.note
    assert drawn.note in render(report)


def test_a_refuted_deviation_is_told_where_the_mean_holds() -> None:
    records = [deviating("MNIST MLP none 5.01", seed) for seed in range(3)]
    for record in records:
        more = {"accuracy_percent": printed("93.0"), "accuracy_deviation_percent": printed("0.001")}
        record["context"]["published"] |= more
    report = with_coverage(collect(records))
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("dplis2021", "Table 10")]
    assert line.verdict == "refuted"
    assert "1 hold, 1 refuted" in line.reason


def test_a_short_schedule_is_shown_and_compared_with_nothing() -> None:
    report, line = table_1([record("row 1", 0, 0.5, reduced="1 of 15 epochs")])
    assert (line.rows, len(line.reduced), line.verdict) == ((), 1, "not_run")
    assert coverage_figures(report) == {}
    assert "1 reduced" in render(report)


def test_what_can_be_run_in_place_of_a_missing_figure_is_shown_as_reduced() -> None:
    record = run_json("reduced-dplis2021", "", 0, context={"reduced": "another network"})
    report = with_coverage(collect([record]))
    (line,) = [line for line in report.coverage if (line.paper, line.item.place) == ("dplis2021", "Figure 5")]
    assert line.item.missing
    assert (line.rows, len(line.reduced), line.verdict) == ((), 1, "")
    row = render(report).split(f'<tr id="{line.id}">')[1].split("</tr>")[0]
    assert f"missing</span>: {line.item.missing}" in row
    assert f'<a href="#{line.reduced[0]}">1 reduced</a>' in row
    assert "reduced/dplis2021" in row


def test_the_readers_own_records_come_before_those_of_the_project() -> None:
    theirs = rows({"row 1": 0.90})
    own = rows({"row 1": 0.95})
    _, line = table_1([*theirs, *own], shipped=[one["run_key"] for one in theirs])
    assert line.reason == "of 6 printed results 1 hold, 5 not compared"
    _, line = table_1(theirs, shipped=[one["run_key"] for one in theirs])
    assert line.verdict == "refuted"


def test_every_entry_is_shown_once_there_is_something_to_show() -> None:
    report, _ = table_1(rows({"row 1": 0.95}))
    assert [(line.paper, line.item) for line in report.coverage] == [
        (file.paper, item) for file in coverage() for item in file.items
    ]
    page = render(report)
    for line in report.coverage:
        assert f'<tr id="{line.id}">' in page
    assert with_coverage(collect([])).coverage == ()
    assert 'id="coverage"' not in render(with_coverage(collect([])))


def test_the_names_read_off_the_text_are_those_of_the_specs() -> None:
    files = [
        shipped()[name]
        for file in coverage()
        for item in file.items
        for name in (*(f"{file.paper}/{one}" for one in item.specs), *(f"reduced/{one}" for one in item.reduced))
    ]
    assert names_in_papers() == {spec.name for spec in load_specs(sorted({*files}))}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("{place: Table 1, what: a table}", "expected one of"),
        ("{place: Table 1, what: a table, specs: [a], missing: b}", "expected one of"),
        ("{place: Table 1, what: a table, spec: [a], missing: b}", "items.0.spec"),
        ("{place: Table 1, specs: [a]}", "items.0.what"),
    ],
)
def test_a_mistake_in_a_list_is_named(tmp_path: Path, item: str, words: str) -> None:
    file = tmp_path / "coverage.yaml"
    file.write_text(f"kind: coverage\npaper: mine\ntitle: Mine\nitems:\n  - {item}\n", encoding="utf-8")
    with pytest.raises(DpbenchError, match=words):
        read_coverage(file)


def test_a_table_that_prints_other_numbers_than_results_says_which() -> None:
    """Specs that publish sharpness, times or memory alone stand beside a sentence on what is printed."""
    for file in coverage():
        for item in file.items:
            specs = load_specs([shipped()[f"{file.paper}/{name}"] for name in item.specs])
            published = [spec.published for spec in specs if spec.published is not None]
            if published and not any(one.results for one in published):
                assert item.prints, (file.paper, item.place)
    report, _ = table_1(rows({"row 1": 0.95}))
    said = {(line.paper, line.item.place): line.reason for line in report.coverage}
    assert said["dplis2021", "Table 9"].startswith("it prints sharpness")
    assert said["jl2021", "Table 4"].startswith("it prints times and memory")
