"""Internal: a later chapter of the report takes a template and a line.

The report as a file: what must stand in it, that nothing in it can act, and its exports.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dpbench.errors import DpbenchError
from dpbench.privacy.formatting import bound, duration, number, seeds
from dpbench.reporting import page as pages
from dpbench.reporting.collect import collect
from dpbench.reporting.contents import Report
from dpbench.reporting.page import render, write_report
from dpbench.reporting.rendering.exports import latex, records_csv, rows_csv, tables_latex
from dpbench.reporting.rendering.figures import Figure, Point, Series, draw
from tests.store.record_samples import example, failure_json, printed, run_json

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}]]>--><svg onload=alert(2)> $\\frac{1}{2}$ ε"
VOID = {"meta", "link", "br", "img", "input", "hr", "path", "use", "area", "base", "col", "embed", "source", "wbr"}


class Page(HTMLParser):
    """Every element with its attributes, the text outside style and script, and whether all tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]].append(data)
        else:
            self.text.append(data)


@pytest.fixture(scope="module")
def report() -> Report:
    return collect(*example())


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return render(report)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_tag_is_closed_and_every_id_is_its_own(page: Page) -> None:
    assert page.wrong == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"])[1:] for tag, a in page.elements if str(a.get("href", "")).startswith("#")]
    assert set(targets) <= set(ids)
    labelled = [a["aria-labelledby"] for _, a in page.elements if a.get("aria-labelledby")]
    assert {name for names in labelled for name in str(names).split()} <= set(ids)


def test_one_line_per_record_of_every_seed(report: Report, page: Page) -> None:
    lines = [
        attributes["data-record"] for tag, attributes in page.elements if tag == "tr" and "data-record" in attributes
    ]
    records, _ = example()
    assert sorted(map(str, lines)) == sorted(record["run_key"] for record in records)
    assert len(lines) == len(report.records)


def test_nothing_asks_for_anything_and_the_policy_forbids_it(page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            assert name not in ("src", "srcset", "style", "action"), f"{tag} {name}"
            if name == "href":
                assert str(value).startswith("#")
    (policy,) = [str(a["content"]) for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag, contents in page.raw.items():
        (content,) = ["".join(contents)]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert "url(" not in content
        assert "@import" not in content


def test_the_reviewers_facts_and_every_kind_of_number_are_there(html: str, page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    for expected in (
        "one training example",
        "add or remove one record",
        "Poisson sampling",
        "expected batch size 256",
        "learning rate and clip norm, as the paper gives them",
        "Philox 4x32-10: benchmark grade",
        "26010 parameters",
        "upper bound",
        "approximation",
        "measured",
        "claimed",
        "As set",
        "0.00426667",
        "not private: 95.90 %",
        "Bu, Dong, Long, Su 2020",
        "the gradient of step 17: not finite",
        "7.10",
        "2.13.0+cpu",
    ):
        assert expected in text, expected
    assert html.count("<caption>") == html.count("<table")
    headers = [attributes for tag, attributes in page.elements if tag == "th"]
    assert headers
    assert all(attributes.get("scope") in ("row", "col") for attributes in headers)


def test_numbers_in_the_page_are_those_of_the_report(report: Report, page: Page) -> None:
    text = " ".join(page.text)
    for row in report.rows():
        if row.measured.half_width is not None:
            assert f"{row.measured.mean:.2f} ± {row.measured.half_width:.2f}" in text
        for line in row.guarantees:
            assert bound(line.epsilon, line.kind) in text
    counts = report.counts()
    assert re.search(rf"{counts['holds']}\s*✓ printed numbers\s+hold", re.sub(r"\s+", " ", text))


def test_figures_have_a_text_alternative_and_series_that_differ_without_colour(page: Page, html: str) -> None:
    pictures = [attributes for tag, attributes in page.elements if tag == "svg" and attributes.get("role") == "img"]
    assert len(pictures) == 3 + 3 + 2 + 3 + 1  # three for each private spec, two for the other, one comparison
    assert all(attributes.get("aria-labelledby") for attributes in pictures)
    assert "row 1: 95.13 ± 0.17 % at ε = " in html
    assert "font-family" not in html.partition("</style>")[2]


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    published = {"accuracy_percent": printed("95.0"), "epsilon": {HOSTILE: printed("1.0")}}
    words = {"source": HOSTILE, "tuned": HOSTILE, "file": HOSTILE, "reduced": HOSTILE, "published": published}
    runs = [
        run_json(HOSTILE, HOSTILE, seed, context=words, facts={"privacy_unit": HOSTILE, "generator": HOSTILE})
        for seed in range(2)
    ]
    runs.append(run_json(HOSTILE, "plain", 0, sigma=None, environment={"device_name": HOSTILE, "commit": HOSTILE}))
    runs.append(run_json("other", HOSTILE, 0))
    failures = [failure_json(HOSTILE, HOSTILE, 1, HOSTILE)]
    found = collect(runs, failures)
    text = render(found)
    page = Page(text)
    assert page.wrong == []
    assert "<script>alert" not in text
    assert "<svg onload" not in text
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "49" not in re.findall(r"alert\(1\)</script>\"'&(\S+)", "".join(page.text))
    assert "".join(page.text).count(HOSTILE) > 10
    assert len([a for _, a in page.elements if "data-record" in a]) == len(runs)
    rows = list(csv.DictReader(io.StringIO(rows_csv(found))))
    assert rows[0]["label"] == HOSTILE
    assert_latex(tables_latex(found))
    assert len(write_report(found, tmp_path)) == 5


def test_an_empty_folder_gives_a_page_that_says_so() -> None:
    page = Page(render(collect([])))
    assert page.wrong == []
    assert "No run has finished yet" in " ".join(page.text)
    only_failed = Page(render(collect([], [failure_json()])))
    assert only_failed.wrong == []
    assert "No run of this spec has finished." in " ".join(only_failed.text)


def test_odd_values_render() -> None:
    """One seed, one point, an infinite loss, no delta, no noise to speak of, many rows, an unknown environment."""
    run = run_json(epochs=1, accuracy=1.0)
    run["curve"][0]["test_loss"] = run["result"]["test_loss"] = float("inf")
    bare = run_json("bare", facts={"privacy_unit": None, "generator": None}, context={"delta": None})
    bare["environment"], bare["curve"] = {}, []
    many = [run_json("many", f"epsilon={i}", 0, sigma=0.5 + i / 10, epochs=3) for i in range(20)]
    page = Page(render(collect([run, bare, *many])))
    assert page.wrong == []
    assert "not stated" in " ".join(page.text)


# Exports


def assert_latex(text: str) -> None:
    """Braces and environments balance, and every line of a table has as many cells as its table has columns."""
    bare = re.sub(r"\\[{}&%#$_\\]", "", text.replace(r"\\", ""))
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    for table in re.findall(r"\\begin{tabular}{(.*?)}(.*?)\\end{tabular}", text, re.S):
        columns, body = table
        lines = [line for line in body.split("\n") if line.endswith(r" \\")]
        assert len(lines) >= 3
        for line in lines:
            assert re.sub(r"\\&", "", line).count("&") == len(columns) - 1, line
            assert not re.match(r"\s*[\[*]", line), "would be an argument of the \\\\ before"
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}")


def test_latex_has_a_table_per_spec_and_parses(report: Report) -> None:
    text = tables_latex(report)
    assert text.count(r"\toprule") == len(report.sections)
    assert_latex(text)
    assert r"95.13 $\pm$ 0.17 (95.0)" in text
    assert r"0.8345 (0.83)" in text


@pytest.mark.parametrize("character", [*'\\{}$&#%_^~<>|"[*\n\t\x07', "ε", "±", "∞", "–"])
def test_latex_leaves_no_special_character_bare(character: str) -> None:
    escaped = latex(f"a{character}b")
    assert escaped.startswith("a")
    assert escaped.endswith("b")
    assert escaped != f"a{character}b"
    assert len(re.sub(r"\\text[a-z]+{}|\\[{}&%#$_]|\$\\[a-z]+\$|{.}| |-", "", escaped)) == 2


def test_printed_times_stand_beside_measured_ones_and_are_not_judged() -> None:
    """80 s over 3516 steps of 256 of 60,000 examples are 5.33 s an epoch; another machine's 434 s judge nothing."""
    numbers = {"seconds_per_epoch": printed("434"), "memory_percent": printed("38")}
    found = collect([run_json(context={"source": "Table 2", "published": numbers})])
    (row,) = csv.DictReader(io.StringIO(rows_csv(found)))
    assert (row["seconds_per_epoch_printed"], row["memory_percent_printed"]) == ("434", "38")
    assert float(row["seconds_per_epoch_measured"]) == pytest.approx(80 / (3516 * 256 / 60000))
    assert "5.3 s an epoch; printed 434 s on the source's machine, 38 % of its memory" in render(found)
    assert not found.sections[0].rows[0].verdicts


def test_csv_has_a_line_per_row_and_per_record_unrounded(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(rows_csv(report))))
    expected = list(report.rows())
    assert len(rows) == len(expected)
    for line, row in zip(rows, expected, strict=True):
        assert float(line["accuracy_percent_mean_measured"]) == row.measured.mean
        assert line["label"] == row.label
        for guarantee in row.guarantees:
            assert float(line[f"epsilon_{guarantee.accountant}"]) == guarantee.epsilon
            assert line[f"epsilon_{guarantee.accountant}_kind"] == guarantee.kind
    paper = next(line for line in rows if line["label"] == "row 3")
    assert (paper["accuracy_percent_printed"], paper["accuracy_verdict"]) == ("97.0", "refuted")
    assert paper["epsilon_moments_printed"] == "7.10"
    assert float(paper["epsilon_moments"]) == pytest.approx(7.10, abs=0.005)
    records = list(csv.DictReader(io.StringIO(records_csv(report))))
    assert [line["run_key"] for line in records] == [record.run_key for record in report.records]
    assert records[0]["test_accuracy_percent"] == repr(report.records[0].measured)


# Writing


def test_the_files_are_written_and_written_again(tmp_path: Path) -> None:
    report = collect([run_json(epochs=2)])
    for _ in range(2):
        paths = write_report(report, tmp_path / "new" / "folder")
        names = ["report.html", "report.csv", "records.csv", "report.tex", "report.json"]
        assert [path.name for path in paths] == names
        assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(p.name for p in paths)


def test_a_full_disk_leaves_the_earlier_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path, *_) = write_report(collect([]), tmp_path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DpbenchError, match="No space left on device"):
        write_report(collect([run_json(epochs=2)]), tmp_path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 5


def test_the_same_report_gives_the_same_bytes(report: Report, html: str) -> None:
    assert render(report) == html


def test_importing_the_report_loads_neither_matplotlib_nor_jinja_nor_torch() -> None:
    heavy = ("matplotlib", "jinja2", "torch", "scipy")
    code = f"import sys, dpbench.reporting.page; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_later_chapter_is_a_template_and_a_line(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from jinja2 import ChoiceLoader, FileSystemLoader

    (tmp_path / "chapter_audits.html").write_text("<p>{{ report.records|length }} audited</p>", encoding="utf-8")
    original = pages._environment

    def with_folder() -> Any:
        environment = original()
        assert environment.loader is not None
        environment.loader = ChoiceLoader([environment.loader, FileSystemLoader(tmp_path)])
        return environment

    chapter = pages.Chapter("audits", "Audits", lambda _: True)
    monkeypatch.setattr(pages, "_environment", with_folder)
    monkeypatch.setattr(pages, "CHAPTERS", (*pages.CHAPTERS, chapter))
    text = render(report)
    assert '<h2 id="audits">Audits</h2>' in text
    assert f"<p>{len(report.records)} audited</p>" in text
    assert '<a href="#audits">Audits</a>' in text


# Figures and numbers


def test_a_figure_is_clean_svg_with_the_values_at_their_places() -> None:
    points = (Point(1.0, 90.0, 89.0, 91.0), Point(4.0, 95.0, hollow=True))
    figure = Figure("f", HOSTILE, HOSTILE, "ε $x$ & <b>", "y", (Series(0, points, points), Series(9, (), points)))
    root = ElementTree.fromstring(draw(figure))
    tags = {element.tag for element in root.iter()}
    assert tags <= {"svg", "g", "path", "use", "defs", "text", "title", "desc", "clipPath", "rect", "tspan"}
    for element in root.iter():
        assert not {"style", "class"} & set(element.attrib)
        for name, value in element.attrib.items():
            assert not re.search(r"#[0-9a-f]{6}", value) or name == "href", f"{name}={value}: a colour of its own"
            if name == "id":
                assert value.startswith("f-")
    assert root.find("title").text == HOSTILE  # type: ignore[union-attr]
    assert "ε $x$ & <b>" in [element.text for element in root.iter("text")]
    colours = {element.attrib.get("stroke") for element in root.iter()}
    assert {"var(--s0)", "var(--s1)"} <= colours


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1.23401, "upper_bound", "1.235"),
        (1.23, "upper_bound", "1.230"),  # the double nearest to 1.23 lies below it
        (1.1, "upper_bound", "1.101"),  # and that nearest to 1.1 above
        (1.23499, "lower_bound", "1.234"),
        (1.23451, "approximation", "1.235"),
        (1.23449, "approximation", "1.234"),
        (0.00012341, "upper_bound", "0.0001235"),
        (123456.0, "upper_bound", "123500"),
        (9.9999, "upper_bound", "10.00"),
        (0.0, "upper_bound", "0"),
        (float("inf"), "upper_bound", "∞"),
        (None, None, "–"),
        (float("nan"), None, "–"),
    ],
)
def test_bounds_are_rounded_on_the_safe_side(value: float | None, kind: str | None, expected: str) -> None:
    assert bound(value, kind) == expected


def test_small_formats() -> None:
    assert number(1e-5) == "1e-5"
    assert number(1e20) == "1e20"
    assert number(0.0042666666) == "0.00426667"
    assert duration(59.7) == "1 min 0 s"
    assert duration(3599.9) == "1 h 0 min"
    assert seeds((3, 0, 1, 7, 8)) == "0, 1, 3, 7, 8"


def test_a_ledger_of_endlessly_many_different_events_is_not_asked() -> None:
    """Accountants take time for every one of them; a file may hold a hundred thousand."""
    part = {"event": "Gaussian", "noise_multiplier": 1.0, "count": 1}
    parts = [part | {"noise_multiplier": 1 + number / 1e6} for number in range(4000)]
    report = collect([run_json(ledger={"adaptive": False, "parts": parts})])
    (row,) = report.rows()
    assert {line.epsilon for line in row.guarantees} == {None}
    assert all("4,000 different events" in str(line.refused) for line in row.guarantees)


def test_every_epsilon_of_the_page_says_which_code_computed_it() -> None:
    report = collect([run_json()])
    (row,) = report.rows()
    lines = [line for line in row.guarantees if line.epsilon is not None]
    assert lines
    for line in lines:
        assert f'title="{line.accountant}: dpbench ' in render(report)
        assert str(line.version).startswith("dpbench ")
