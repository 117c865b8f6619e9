"""What a reader's own runs say first: the figure of all mechanisms, what has no promise, and what came with dpbench."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from dpbench.catalog import Entry, catalog
from dpbench.conformance import Conformance, Line
from dpbench.job import run as run_job
from dpbench.job import write_reports
from dpbench.plan.planning import Choices
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate
from dpbench.privacy.formatting import bound
from dpbench.reporting.collect import MOST_CURVE_POINTS, collect
from dpbench.reporting.contents import Report
from dpbench.reporting.page import render, write_report
from dpbench.reporting.rendering.exports import harmless, records_csv, rows_csv, tables_latex
from dpbench.reporting.rendering.figures import Figure, Point, Series, draw
from dpbench.reporting.rendering.plots import comparison_figures, section_figures
from dpbench.store.records import Store
from tests.reporting.loose_ends import loose_ends
from tests.store.record_samples import example, printed, run_json

ROOT = Path(__file__).parents[2]
SPEC = """
kind: run
name: fresh
dataset: digits
model: {name: mlp, parameters: {hidden: [16]}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 64, epochs: 2, learning_rate: 0.5, clip_norm: 1.0}
seeds: 1
"""
ADAPTIVE = [
    {"event": "Gaussian", "noise_multiplier": 30.0, "adjacency": "add_or_remove", "count": 2},
    {
        "event": "SampledGaussian",
        "sampling_rate": 0.01,
        "noise_multiplier": 3.0,
        "adjacency": "add_or_remove",
        "sampler": "poisson",
        "count": 100,
    },
]


def mixed() -> Report:
    """Five specs on one dataset and model that share no accountant, two of them without a promise, and a baseline."""

    def spec(name: str, accountants: list[str], **others: Any) -> list[dict[str, Any]]:
        return [run_json(name, seed=seed, context={"accountants": accountants}, **others) for seed in range(2)]

    adaptive = spec("adaptive", ["rdp_filter"])
    for run in adaptive:
        run["ledger"] = {"adaptive": True, "parts": ADAPTIVE}
    theirs = [{**run, "checked": None} for run in spec("theirs", ["exact"])]
    for run in theirs:
        run["resolved"]["mechanism"] = {"name": "theirs:made", "parameters": {}}
    return collect(
        [
            *spec("tight", ["exact", "rdp", "gdp_clt"]),
            *spec("bounded", ["rdp"], sigma=1.1),
            *adaptive,
            *spec("guessed", ["gdp_clt"]),
            *theirs,
            *spec("plain", [], sigma=None, accuracy=0.99),
        ]
    )


@pytest.fixture(scope="module")
def report() -> Report:
    return mixed()


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render(report)


@pytest.fixture(scope="module")
def papers() -> tuple[Report, str]:
    """A report of two papers' worth of made-up records, and its page."""
    found = collect(*example())
    return found, render(found)


def first_part(html: str) -> str:
    """The page before its first chapter."""
    return html[html.index("<main>") : html.index("<h2")]


def hover_texts(html: str) -> list[str]:
    """What the figures of a piece of page say where the pointer rests."""
    pictures = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", html, re.DOTALL)
    return [
        str(title.text)
        for picture in pictures
        for group in ElementTree.fromstring(picture).iter("g")
        for title in group.findall("title")
    ]


def test_one_figure_shows_every_mechanism_at_its_tightest_promise(report: Report, page: str) -> None:
    said = hover_texts(first_part(page))
    rows = {row.context.name: row for row in report.rows()}
    for name, accountant in (("tight", "exact"), ("bounded", "rdp"), ("adaptive", "rdp_filter")):
        line = rows[name].promised
        assert line is not None
        assert line.accountant == accountant
        assert line.safe == min(other.safe for other in rows[name].guarantees if other.promise)
        (text,) = [text for text in said if text.startswith(f"{name}: ")]
        assert f"ε = {bound(line.epsilon, line.kind)}" in text
    assert not [text for text in said if text.startswith(("guessed", "theirs"))]
    assert "not private: 99.00 %" in first_part(page)


def test_a_better_row_on_another_model_is_named_below_the_figure_and_one_seed_is_said() -> None:
    rows = [run_json(name, accuracy=0.9) for name in ("one", "two")] + [
        run_json("better", dataset="other", accuracy=0.97)
    ]
    html = first_part(render(collect(rows)))
    below = " ".join(re.sub(r"<[^>]*>", "", html[html.index("Not in this figure") :]).split())
    assert below.startswith("Not in this figure, for their model or dataset is another: better (97.00 % at ε = 0.86")
    assert "at best 90.00 % (one seed)" in html
    assert "Not in this figure" not in first_part(render(collect(rows[:2])))
    assert "(one seed)" not in first_part(render(collect([run_json(seed=seed) for seed in range(2)])))


def test_a_model_that_has_learned_nothing_is_told_of() -> None:
    """One class for all records would be as accurate; of other metrics and of old records nothing is said."""
    single = float(torch.tensor(222 / 300, dtype=torch.float32))  # an accuracy may have been computed in float32
    for share, accuracy, told in ((0.74, single, True), (0.74, 0.7401, False), (None, 0.1, False)):
        run = run_json("mine", "a", 0, accuracy=accuracy, facts={"most_frequent": share})
        (row,) = collect([run]).rows()
        assert row.nothing_learned == ("no better than the most frequent class alone, 74.00 %" if told else "")
        assert ("most frequent class" in first_part(render(collect([run])))) is told


def test_rows_that_differ_in_a_file_have_its_hash_cut() -> None:
    """Two tables under one name: whole hashes would fill the line."""
    runs = [run_json("mine", "a", 0, accuracy=0.9) for _ in range(2)]
    for run, digit in zip(runs, "ab", strict=True):
        run["run_key"] = digit * 64
        run["resolved"] = run["resolved"] | {"dataset": run["resolved"]["dataset"] | {"sha256": digit * 64}}
    titles = [row.title for row in collect(runs).rows()]
    assert sorted(titles) == [f"a · dataset.sha256 = {digit * 8}" for digit in "ab"]


def test_the_best_row_without_privacy_stands_beside_the_best_private_one() -> None:
    """And how many of the other intervals overlap with its own, 91 ± 0.25."""
    private = [
        run_json("mine", label, seed, accuracy=mean + spread * (seed - 1), sigma=sigma)
        for label, mean, spread, sigma in (("a", 0.91, 0.001, 1.3), ("b", 0.9095, 0.0, 1.4), ("c", 0.85, 0.0, 1.5))
        for seed in range(3)
    ]
    plain = [run_json(name, sigma=None, accuracy=mean) for name, mean in (("worse", 0.92), ("better", 0.95))]
    report = collect([*private, *plain])
    text = " ".join(re.sub(r"<[^>]*>", "", first_part(render(report))).split())
    assert (
        "(mine · a); the 95 % interval of 1 of the other 2 overlaps with it; promised ε of the rows that have one:"
        " 0.702 – 0.865; 95.00 % without privacy." in text
    )
    assert [report.row(row_id).context.name for row_id in report.comparisons[0].baselines] == ["better", "worse"]
    assert "how accurate is training at its ε" in text  # three rows of one mechanism


def test_rows_stand_as_in_their_file_and_a_grid_has_its_label() -> None:
    labels = ["zinc, epsilon=1", "zinc, epsilon=3", "acid, epsilon=1", "acid, epsilon=3"]
    records = []
    for number, label in enumerate(labels, 1):
        record = run_json("mine", label, context={"number": number}, sigma=1.0 + number)
        record["resolved"]["mechanism"]["name"] = "noisy_sgd" if label.startswith("zinc") else "noisy_adam"
        records.append(record)
    report = collect(reversed(records))
    assert [row.label for row in report.rows()] == labels
    assert [name for name, _ in report.comparisons[0].series] == ["mine · zinc", "mine · acid"]
    alike = [
        run_json("mine", f"{word}, epsilon=1", sigma=sigma) for word, sigma in (("a", 1.0), ("b", 1.1), ("c", 1.2))
    ]
    for record in alike[1:]:
        record["resolved"]["mechanism"]["name"] = "noisy_adam"
    assert [name for name, _ in collect(alike).comparisons[0].series] == ["mine · a, epsilon=1", "mine · epsilon=1"]
    alike.append(run_json("mine", "d, epsilon=1", sigma=1.3))
    assert [name for name, _ in collect(alike).comparisons[0].series] == ["mine: noisy_sgd", "mine: noisy_adam"]
    records[0]["context"]["number"] = 0  # an older record
    assert [row.label for row in collect(records).rows()] == sorted(labels)
    (drawn,) = comparison_figures(report, report.comparisons[0])
    assert [one.aside for one in drawn.figure.series] == [-2.5, 2.5]  # else the bars of one ε hide each other


def test_runs_that_two_specs_share_are_drawn_once() -> None:
    shared, other = run_json("one", "a", sigma=1.0), run_json("one", "b", sigma=2.0)
    again = [{**shared, "context": {**shared["context"], "name": "two"}}]
    contexts = {shared["run_key"]: [shared["context"], again[0]["context"]]}
    report = collect([shared, other], contexts=contexts)
    assert [section.name for section in report.sections] == ["one", "two"]
    (comparison,) = report.comparisons
    assert sum(len(rows) for _, rows in comparison.series) == 2
    contexts[shared["run_key"]][1] = {**again[0]["context"], "delta": 1e-7}  # another promise of the same run
    (comparison,) = collect([shared, other], contexts=contexts).comparisons
    assert sum(len(rows) for _, rows in comparison.series) == 3


def test_a_spec_of_many_rows_on_several_datasets_has_a_panel_for_each() -> None:
    records = []
    for dataset in ("mnist", "fashion_mnist"):
        for label, mechanism in (("sgd", "noisy_sgd"), ("adam", "noisy_adam")):
            for sigma in (1.0, 2.0, 4.0):
                one = run_json("many", f"{dataset} {label}, {sigma}", sigma=sigma, dataset=dataset)
                one["resolved"]["mechanism"]["name"] = mechanism
                records.append(one)
    report = collect(records)
    (section,) = report.sections
    panels = [one.figure for one in section_figures(report, section) if "against ε" in one.figure.title]
    assert {one.title.split(", ")[1] for one in panels} == {"mnist", "fashion_mnist"}
    for panel in panels:
        assert [len(one.points) for one in panel.series] == [3, 3], "a joined line of each mechanism"
        assert all(one.joined for one in panel.series)
    assert len({one.id for one in panels}) == 2
    paper = {"accuracy_percent": printed("95.0"), "epsilon": {}}
    clipped = [{**one, "resolved": {**one["resolved"], "clip_norm": 0.1 + at}} for at, one in enumerate(records)]
    told = [{**one, "context": {**one["context"], "published": paper}} for one in records]
    for others in (clipped, told):  # rows that differ in more than the noise, and rows with printed results
        report = collect(others)
        found = [one.figure for one in section_figures(report, report.sections[0])]
        (figure,) = [one for one in found if "against ε" in one.title]
        assert len(figure.series) == len(records)
    few = collect(records[:6])
    (section,) = few.sections
    (figure,) = [one.figure for one in section_figures(few, section) if "against ε" in one.figure.title]
    assert figure.title == "many: accuracy against ε"


@pytest.mark.parametrize("epsilons", [(1.0, 3.0, 8.0), (0.5,), (1.0, 1.01, 8.0)])
def test_the_figure_names_the_epsilons_of_the_runs_and_cuts_no_curve_at_the_top(epsilons: tuple[float, ...]) -> None:
    points = tuple(Point(x, 90.0) for x in epsilons)
    course = tuple(Point(x, y) for x, y in ((0.3, 20.0), (0.4, 97.0), (0.5, 90.0)))  # its best is not its last
    against = Series(0, (), points)
    drawn = draw(Figure("a", "", "", "x", "y", (against,), logarithmic=True))
    ticks = {float(text) for text in re.findall(r"<text[^>]*>([\d.]+)</text>", drawn)}
    assert (set(epsilons) <= ticks) == (1.01 not in epsilons)  # where they would overlap: round numbers
    svg = ElementTree.fromstring(draw(Figure("b", "", "", "x", "y", (Series(0, course, course[-1:], says="course"),))))
    (line,) = [group for group in svg.iter("g") if [title.text for title in group.findall("title")] == ["course"]]
    (path,) = line.iter("path")
    (frame,) = [next(g.iter("path")) for g in svg.iter("g") if g.get("id") == "b-patch_2"]
    heights = [[float(y) for y in re.findall(r"[ML] ?-?[\d.]+ (-?[\d.]+)", one.attrib["d"])] for one in (path, frame)]
    assert min(heights[0]) > min(heights[1])


def test_what_has_no_promise_stands_below_the_figure_with_its_reason(report: Report, page: str) -> None:
    html = first_part(page)
    below = " ".join(re.sub(r"<[^>]*>", "", html[html.index("Not in the figure") :]).split())
    for row in report.rows():
        assert (row.full_title in below) == (row.no_promise is not None)
        assert row.no_promise is None or row.no_promise in below
    assert "guessed: gdp_clt: approximation" in below
    assert "theirs: unchecked: " in below


@pytest.mark.parametrize("findings", [{"unsound": 2}, {"crashes": 1}, {"inconsistent": 3}])
def test_an_accountant_that_fails_conform_promises_nothing(findings: dict[str, int]) -> None:
    line = Line("exact", "exact", "a_table", 9, findings, None, None, None)
    (row,) = collect([run_json()], conformance=Conformance((line,))).rows()
    assert row.promised is not None
    assert row.promised.accountant == "rdp"
    html = render(collect([run_json()], conformance=Conformance((line,))))
    assert "fails conform" in html
    assert f"{next(iter(findings.values()))} points {next(iter(findings))}" in html
    fine = Line("exact", "exact", "a_table", 9, {"sound": 9, "loose": 1}, None, None, None)
    (row,) = collect([run_json()], conformance=Conformance((fine,))).rows()
    assert row.promised is not None
    assert row.promised.accountant == "exact"


class TooLow:
    """An accountant of another package that answers half of what `rdp` says."""

    name = "toolow"
    kind = "upper_bound"

    def supports(self, composition: Any) -> Any:
        return load_accountant("rdp").supports(composition)

    def curve(self, composition: Any) -> Any:
        true = load_accountant("rdp").curve(composition)

        class Half:
            kind, adjacency, mu = true.kind, true.adjacency, true.mu
            delta = staticmethod(true.delta)

            def epsilon(self, delta: float) -> Estimate:
                return Estimate(true.epsilon(delta).value / 2, None, true.epsilon(delta).value / 2)

        return Half()


TOO_LOW = TooLow()


def test_another_package_s_bound_below_the_truth_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("accountants", "toolow", f"{__name__}:TOO_LOW", "their-package")
    monkeypatch.setitem(catalog("accountants"), "toolow", entry)
    (row,) = collect([run_json(context={"accountants": ["toolow"]})]).rows()
    assert row.promised is None
    assert "withdrawn" in str(row.no_promise)
    assert "exact (exact) 0.86" in str(row.no_promise)


def test_what_came_with_the_project_stands_apart_below_and_warns_of_nothing_above() -> None:
    """Its records are stale, dirty, of one seed and refuted; the reader's are none of that."""
    printed = {"epsilon": {"gdp_clt": {"text": "9.0", "value": 9.0, "half_unit": 0.05}}}
    given = run_json("given", context={"published": printed}, sources={"dpbench.errors": "0" * 64})
    given["environment"] = given["environment"] | {"dirty": True}
    own = [run_json("own", seed=seed) for seed in range(2)]
    report = collect([given, *own], shipped={given["run_key"]})
    assert [(section.name, section.shipped) for section in report.sections] == [("own", False), ("given", True)]
    assert report.part(shipped=True).notices
    assert report.part(shipped=False).notices == ()
    html = render(report)
    assert "given" not in re.sub(r"<[^>]*>", "", first_part(html))
    assert "notices" not in re.sub(r"<style>.*?</style>", "", first_part(html))
    places = [html.index(f'id="{name}"') for name in ("results", "spec-1", "shipped", "spec-2")]
    assert places == sorted(places)
    assert [record.shipped for record in report.records] == [False, False, True]


def test_a_record_in_published_is_shipped_until_there_is_one_of_the_reader(tmp_path: Path) -> None:
    both, alone = run_json("both"), run_json("alone")
    for folder, runs in ((tmp_path, [both]), (tmp_path / "published", [both, alone])):
        for run in runs:
            Store(folder).write_run(run)
    write_reports(Store(tmp_path))
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert {one["name"]: one["shipped"] for one in data["sections"]} == {"both": False, "alone": True}


def test_without_own_runs_the_page_says_how_to_begin() -> None:
    run = run_json()
    text = render(collect([run], shipped={run["run_key"]}))
    assert "No run of your own has finished yet" in text
    assert "dpbench run specs/quickstart" in text
    assert '<a href="#shipped">' in text


def test_times_are_those_of_the_run_and_not_of_its_stack() -> None:
    """The stack's clock ends at 300 s, of which the run took 20."""
    run = run_json("one", epochs=3, seconds=300.0)
    run |= {"seconds": 300.0, "own_seconds": 20.0, "stack_runs": 15}
    report = collect([run])
    (row,) = report.rows()
    assert row.seconds.mean == 20.0
    assert [point.seconds for point in row.curve] == pytest.approx([20 / 3, 40 / 3, 20.0])
    text = re.sub(r"<[^>]*>", " ", re.sub(r"<script>.*", "", render(report), flags=re.DOTALL))
    assert "20 s" in text
    assert "5 min" not in text
    (line,) = csv.DictReader(io.StringIO(records_csv(report)))
    assert (float(line["seconds"]), float(line["own_seconds"])) == (300.0, 20.0)


def test_every_point_of_every_figure_says_its_values(papers: tuple[Report, str]) -> None:
    report, html = papers
    said = hover_texts(html)
    for row in report.rows():
        assert [text for text in said if text.startswith(f"{row.title}: {row.measured.mean:.2f}")], row.id
    assert "row 1: printed 95.0 %" in said


class Calls:
    """What was said of progress."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def __call__(self, what: str, done: int, of: int) -> None:
        self.seen.append((what, done, of))


def test_epsilon_along_training_is_asked_a_bounded_number_of_times() -> None:
    """Forty different ledgers have a point each, four hundred have none; progress counts every row."""
    for rows, most in ((4, 10), (MOST_CURVE_POINTS, 1), (3 * MOST_CURVE_POINTS, 0)):
        context = {"accountants": ["gdp_clt"]}
        runs = [run_json("spec", f"row {i}", sigma=1 + i / 100, epochs=20, context=context) for i in range(rows)]
        calls = Calls()
        report = collect(runs, progress=calls)
        assert calls.seen == [("accounting", number + 1, rows) for number in range(rows)]
        points = [sum(bool(point.epsilon) for point in row.curve) for row in report.rows()]
        assert max(points) <= most
        assert sum(points) <= MOST_CURVE_POINTS
        assert (min(points) > 0) == (most > 0)


def test_progress_of_a_page_counts_its_figures() -> None:
    calls = Calls()
    render(collect([run_json("one", epochs=2), run_json("two", epochs=2)]), progress=calls)
    assert [(done, of) for _, done, of in calls.seen] == [(1, 3), (2, 3), (3, 3)]


# The page as a whole


@pytest.mark.parametrize(
    "broken",
    ['<a href="#nowhere">x</a>', '<i id="a"></i><i id="a"></i>', "<p>{row-1.value}</p>", "<p>{{ x }}</p>"],
)
def test_a_loose_end_is_found(broken: str) -> None:
    assert loose_ends(broken)


@pytest.mark.parametrize("with_own", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_page_of_the_shipped_records_and_of_a_fresh_run_has_no_loose_end(tmp_path: Path, with_own: bool) -> None:
    shutil.copytree(ROOT / "reports" / "published", tmp_path / "published")
    if with_own:
        (tmp_path / "specs.yaml").write_text(SPEC)
        run_job([tmp_path / "specs.yaml"], out=tmp_path, choices=Choices(device="cpu"))
    else:
        write_reports(Store(tmp_path))
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert loose_ends(html) == []
    assert "Came with the project" in html
    assert ("No run of your own" in html) == (not with_own)


def test_every_example_and_the_empty_page_have_no_loose_end(page: str, papers: tuple[Report, str]) -> None:
    for html in (page, papers[1], render(collect([])), render(collect([], example()[1]))):
        assert loose_ends(html) == []


def test_a_small_number_does_not_break_after_its_hyphen() -> None:
    """Wherever it stands in a text of the page, and never in an attribute or a figure."""
    label = "delta=1e-5"
    html = render(collect([run_json("spec", label), run_json("other", label)]))
    body = re.sub(r"<(style|script|svg|title|option)\b.*?</\1>", "", html, flags=re.DOTALL)
    whole = '<span class="nowrap">1e-5</span>'
    assert body.count(whole) > 5
    assert "1e-5" not in re.sub(r"<[^>]*>", "", body.replace(whole, ""))


def test_the_legend_says_what_is_from_the_record_and_what_is_computed() -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", render(collect([run_json()]))).split())
    assert "from the record Accuracies, losses, seconds and the environment" in text
    assert "ε, μ and every verdict on a run are computed anew" in text
    assert "Verdicts on claims and accountants are from the files" in text


# Exports


FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "-", "+x", "-0.5.1", "--1")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_any_csv_file_is_a_formula(text: str, tmp_path: Path) -> None:
    words = {"source": text, "tuned": text, "file": text, "reduced": text}
    facts = {"privacy_unit": text, "generator": text, "normalisation": text}
    around = {"device": text, "device_name": text, "commit": text, "time_utc": text}
    run = run_json(text, text, context=words, facts=facts, environment=around)
    run["resolved"]["model"]["name"] = text
    write_report(collect([run]), tmp_path)
    files = sorted(tmp_path.glob("*.csv"))
    assert len(files) == 2
    for path in files:
        with path.open(encoding="utf-8", newline="") as file:
            cells = [cell for line in csv.reader(file) for cell in line]
        assert "'" + text.replace("\r", "\n") in cells
        for cell in cells:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")) or float(cell) is not None


@pytest.mark.parametrize("text", ["-0.5", "+3", "-1e-5", "-.5", "-inf", "1.0", "row 1", "", "'=1"])
def test_numbers_and_plain_texts_stay(text: str) -> None:
    assert harmless(text) == text


def test_negative_numbers_are_numbers_in_the_file() -> None:
    (line,) = csv.DictReader(io.StringIO(rows_csv(collect([run_json(label="-0.5")]))))
    assert line["label"] == "-0.5"


def test_the_latex_table_names_initial_weights() -> None:
    start = {
        "file": "start.pt",
        "sha256": "a" * 64,
        "licence": "MIT",
        "pretrained_on": "public pictures",
        "frozen": ["first.weight"],
    }
    text = tables_latex(collect([run_json(context={"weights": start})]))
    assert "Initial weights: start.pt, trained on public pictures (licence: MIT; frozen: first.weight" in text
    assert "Initial weights" not in tables_latex(collect([run_json()]))
