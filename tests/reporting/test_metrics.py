"""The chapter on sharpness, loss surfaces and optimality gaps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpbench.errors import DpbenchError
from dpbench.reporting.collect import collect
from dpbench.reporting.page import render
from dpbench.reporting.rendering.figures import Figure, Point, Series, draw
from dpbench.reporting.rendering.surfaces import Contour, draw_contour, surface_figures
from tests.store.record_samples import printed, run_json

AXIS = [-1.0, 0.0, 1.0]
BOWL = [[2.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 2.0]]


def record(seed: int, *metrics: dict[str, Any], asked: tuple[str, ...] = (), **context: Any) -> dict[str, Any]:
    found = run_json("flat", "", seed, context={"metrics": list(asked), **context})
    return {**found, "result": {**found["result"], "metrics": list(metrics)}}


def test_a_value_is_a_mean_over_seeds_beside_the_printed_one_without_a_verdict() -> None:
    published = {"sharpness": printed("0.5454"), "epsilon": {}}
    values = (0.5, 0.7)
    records = [
        record(seed, {"name": "sharpness", "records": 1000, "value": value}, published=published)
        for seed, value in enumerate(values)
    ]
    report = collect(records)
    (line,) = next(report.rows()).metrics
    assert line.value is not None
    assert (line.value.mean, line.value.count, line.records) == (pytest.approx(0.6), 2, 1000)
    page = render(report)
    assert "at least 0.6" in page
    assert "0.5454" in page
    assert 'Test accuracy, %<span class="kind">sd over seeds' in page
    assert [verdict.check for verdict in report.verdicts()] == []


def test_values_are_drawn_against_epsilon_of_all_rows_of_one_model_and_dataset() -> None:
    rows = []
    for label, sigma, value in (("loud", 2.0, 0.7), ("quiet", 1.0, 0.2)):
        found = run_json("flat", label, 0, sigma=sigma)
        gap = {"name": "optimality_gap", "records": 9, "value": value}
        rows.append({**found, "result": {**found["result"], "metrics": [gap]}})
    report = collect(rows)
    (figure,) = (one.figure for one in surface_figures(report)["metrics-spec-1"])
    assert isinstance(figure, Figure)
    epsilons = [row.promised.epsilon for row in report.rows() if row.promised]
    (series,) = figure.series
    assert [(point.x, point.y, point.hollow) for point in series.points] == [
        (epsilons[0], 0.7, False),
        (epsilons[1], 0.2, False),
    ]
    page = render(report)
    assert "optimality gap against ε" in page
    assert figure.logarithmic
    assert figure.whole
    assert "at least 0.7" not in page  # only what is a lower bound says so
    assert "metrics-spec-1" not in surface_figures(collect(rows[:1]))  # one ε is no curve


@pytest.mark.parametrize(
    ("heights", "marks"), [((0.01, 20.0), ["0.01", "0.1", "1", "10"]), ((1.0, 2.0), ["1", "2", "3", "4"])]
)
def test_a_wide_range_of_values_has_a_logarithmic_axis(heights: tuple[float, float], marks: list[str]) -> None:
    points = tuple(Point(x, y, -y, y * 2) for x, y in zip((0.1, 1.0), heights, strict=True))
    series = (Series(0, (), points, joined=True),)
    text = draw(Figure("one", "title", "words", "across", "up", series, logarithmic=True, whole=True))
    written = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert [mark for mark in written[written.index("across") + 1 : -1] if float(mark.replace("−", "-")) > 0] == marks


def test_surfaces_are_drawn_of_the_first_seed_that_has_one() -> None:
    one = {"name": "loss_surface (directions = 1)", "records": 9, "surface": {"axis": AXIS, "losses": [3.0, None, 5.0]}}
    two = {"name": "loss_surface", "records": 9, "surface": {"axis": AXIS, "losses": BOWL}}
    report = collect([record(0, one), record(1, one, two)])
    line, contour = surface_figures(report)["metrics-spec-1"]
    assert isinstance(line.figure, Figure)
    assert [(point.x, point.y) for point in line.figure.series[0].line] == [(-1.0, 3.0), (1.0, 5.0)]
    assert isinstance(contour.figure, Contour)
    assert contour.figure.losses == tuple(map(tuple, BOWL))
    assert "seed 1: 0 at the trained parameters, from 0 to 2 around" in contour.figure.description
    assert render(report).count("loss surface, seed 1</") >= 2


@pytest.mark.parametrize("losses", [BOWL, [[1.0] * 3] * 3, [[None] * 3] * 3, [[None, 1.0, 2.0], *BOWL[1:]]])
def test_a_contour_is_clean_svg_whatever_it_holds(losses: list[list[float | None]]) -> None:
    text = draw_contour(Contour("one", "a title", "words", tuple(AXIS), tuple(AXIS), tuple(map(tuple, losses))))
    assert text.startswith("<svg")
    assert "style=" not in text
    assert 'id="one-title"' in text


def test_what_is_asked_and_not_there_says_so() -> None:
    page = render(collect([record(0, asked=("sharpness",), file="specs/mine.yaml")]))
    assert "not measured" in page
    assert "dpbench run specs/mine.yaml --only" in page
    assert 'id="metrics"' not in render(collect([record(0)]))


@pytest.mark.parametrize(
    "surface",
    [
        {"axis": AXIS, "losses": [1.0, 2.0]},
        {"axis": AXIS, "losses": [[1.0, 2.0, 3.0]]},
        {"axis": ["a", 0.0, 1.0], "losses": [1.0, 2.0, 3.0]},
        {"axis": AXIS, "losses": ["<b>", 2.0, 3.0]},
        {"axis": [], "losses": []},
        {"axis": AXIS, "losses": [1.0, 2.0, 3.0], "metric": [1.0, 2.0], "metric_name": "accuracy"},
        {"axis": AXIS, "losses": [1.0, 2.0, 3.0], "metric": BOWL, "metric_name": "accuracy"},
        {"axis": AXIS, "losses": [1.0, 2.0, 3.0], "metric": [1.0, 2.0, 3.0], "metric_name": "<b>"},
        {"axis": AXIS, "losses": [1.0, 2.0, 3.0], "split": "<b>"},
    ],
)
def test_a_surface_of_another_shape_is_refused(surface: dict[str, Any]) -> None:
    with pytest.raises(DpbenchError):
        collect([record(0, {"name": "loss_surface", "surface": surface})])
