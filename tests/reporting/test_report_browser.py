"""The report in a real browser: no console error, no request, no overflow on a phone, and it prints."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pytest

from dpbench.reporting.collect import collect
from dpbench.reporting.page import write_report
from tests.reporting.chromium import Page, browser, find_chromium
from tests.store.record_samples import example, run_json

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the browser is driven over POSIX pipes")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    found = find_chromium()
    if found is None:
        message = "no Chromium: install the package chromium, or set DPBENCH_CHROMIUM to the browser's path"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with browser(found) as tab:
        yield tab


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, *_ = write_report(collect(*example()), tmp_path_factory.mktemp("report"))
    return path.as_uri()


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Names that want to run, and names that want to be wide."""
    name = "<img src=http://example.org/x onerror=alert(1)><script>alert(1)</script>"
    wide = "w" * 300
    runs = [run_json(name, wide, seed, context={"source": wide, "tuned": wide, "file": wide}) for seed in range(2)]
    runs += [run_json(wide, name, 0), run_json(wide, wide, 1, sigma=None)]
    path, *_ = write_report(collect(runs), tmp_path_factory.mktemp("hostile"))
    return path.as_uri()


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("which", ["report", "hostile_report"])
@pytest.mark.parametrize(("width", "mobile"), [(1280, False), (390, True)])
def test_no_error_no_request_no_overflow(
    page: Page, request: pytest.FixtureRequest, which: str, width: int, mobile: bool
) -> None:
    url = request.getfixturevalue(which)
    page.size(width, 844, mobile=mobile)
    page.open(url)
    assert page.evaluate("document.fonts.ready.then(() => innerWidth)") == width
    assert overflow(page) <= 0
    sideways = (
        "[...document.querySelectorAll('main *')].filter(e => { let p = e; while (p && !p.matches('.scroll, pre'))"
    )
    sideways += " p = p.parentElement; return !p && e.getBoundingClientRect().right > innerWidth + 1 })"
    assert page.evaluate(f"{sideways}.map(e => e.outerHTML.slice(0, 80))") == []
    assert page.complaints() == []
    assert page.requests() == [url]


def test_the_number_of_lines_is_the_number_of_records(page: Page, report: str) -> None:
    page.open(report)
    records, _ = example()
    assert page.evaluate("document.querySelectorAll('tr[data-record]').length") == len(records)
    shown = page.evaluate("[...document.querySelectorAll('tr[data-record]')].map(row => row.dataset.record)")
    assert sorted(shown) == sorted(record["run_key"] for record in records)


def test_the_table_of_records_sorts(page: Page, report: str) -> None:
    page.size(1280, 900)
    page.open(report)
    column = "[...document.querySelectorAll('table.records tbody tr')].map(row => Number(row.cells[4].dataset.value))"
    click = "document.querySelectorAll('table.records th button')[4].click()"
    page.evaluate(click)
    values = page.evaluate(column)
    assert values == sorted(values)
    page.evaluate(click)
    assert page.evaluate(column) == sorted(values, reverse=True)
    assert page.evaluate("document.querySelectorAll('table.records th')[4].ariaSort") == "descending"
    assert page.complaints() == []


def test_the_policy_blocks_what_the_page_does_not_hold(page: Page, report: str) -> None:
    """The other tests could not see a request if the policy were dead: here one is tried, and blocked."""
    page.open(report)
    blocked = page.evaluate(
        "new Promise(done => { document.addEventListener('securitypolicyviolation', e => done(e.violatedDirective));"
        " const i = document.createElement('img'); i.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw=';"
        " document.body.append(i); setTimeout(() => done('nothing'), 5000) })"
    )
    assert blocked == "img-src"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: Page, report: str, scheme: str) -> None:
    """Contrast of 4.5 : 1 (WCAG 2.2, 1.4.3) of every text colour of the style with its back, 3 : 1 of every series."""
    page.size(1280, 900)
    page.scheme(scheme)
    page.open(report)
    names = ["paper", "raised", "ink", "faint", "link", *(f"s{number}" for number in range(8))]
    names += [status + part for status in ("good", "bad", "open", "calm") for part in ("", "-back")]
    script = f"{names!r}.map(n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim())"
    colours = dict(zip(names, page.evaluate(script), strict=True))
    page.scheme("light")

    def luminance(colour: str) -> float:
        found = re.fullmatch(r"#(..)(..)(..)", colour)
        assert found, colour
        parts = [int(part, 16) / 255 for part in found.groups()]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(first: str, second: str) -> float:
        low, high = sorted((luminance(colours[first]), luminance(colours[second])))
        return (high + 0.05) / (low + 0.05)

    assert (luminance(colours["paper"]) > 0.5) == (scheme == "light")
    for text in ("ink", "faint", "link", "good", "bad", "open"):
        assert contrast(text, "paper") >= 4.5, text
    for text in ("ink", "faint", "good", "bad", "open"):
        assert contrast(text, "raised") >= 4.5, text
    for status in ("good", "bad", "open", "calm"):
        assert contrast(status, f"{status}-back") >= 4.5, status
    for number in range(8):
        assert contrast(f"s{number}", "paper") >= 3, number


def test_figures_follow_the_page_colours(page: Page, report: str) -> None:
    page.open(report)
    script = (
        "(() => { const style = getComputedStyle(document.documentElement).getPropertyValue('--s0').trim();"
        " const line = document.querySelector('figure svg path[stroke=\"var(--s0)\"]');"
        " return [style, getComputedStyle(line).stroke] })()"
    )
    wanted, stroke = page.evaluate(script)
    parts = ", ".join(str(int(wanted[i : i + 2], 16)) for i in (1, 3, 5))
    assert stroke == f"rgb({parts})"


def test_it_prints(page: Page, report: str) -> None:
    page.size(1280, 900)
    page.open(report)
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF-")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 3 <= pages <= 20
    assert page.complaints() == []
    # In print nothing may be cut off: no box scrolls, no details are folded, and the tables fit the paper.
    page.send("Emulation.setEmulatedMedia", media="print")
    page.size(696, 1000)  # A4 less its margins, 184 mm at 96 pixels an inch
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every(item => item.open)")
    tables = page.evaluate(
        "[...document.querySelectorAll('table')]"
        ".map(t => [t.caption.textContent, t.offsetWidth, t.parentElement.clientWidth])"
    )
    page.send("Emulation.setEmulatedMedia", media="")
    assert [caption for caption, width, room in tables if width > room + 1] == []


def test_the_keyboard_reaches_every_table_that_scrolls(page: Page, report: str) -> None:
    page.size(390, 844, mobile=True)
    page.open(report)
    boxes = page.evaluate("[...document.querySelectorAll('.scroll')].map(b => [b.tabIndex, b.role, b.ariaLabel])")
    assert boxes
    assert all(index == 0 and role == "region" and label for index, role, label in boxes)


def test_rows_are_filtered_by_dataset_mechanism_and_epsilon(page: Page, report: str) -> None:
    page.size(1280, 900)
    page.open(report)
    rows = "[...document.querySelectorAll('#configurations tbody tr')]"
    fields = "[r.dataset.dataset, r.dataset.mechanism, r.dataset.epsilon === '' ? null : Number(r.dataset.epsilon)]"
    every = page.evaluate(f"{rows}.map(r => {fields})")
    assert len({dataset for dataset, _, _ in every}) > 1

    def shown(**wanted: str) -> list[list[object]]:
        for name in ("[data-filter=dataset]", "[data-filter=mechanism]", "[data-most=epsilon]"):
            value = next((text for key, text in wanted.items() if key in name), "")
            script = f"const i = document.querySelector('[data-filters=configurations] {name}'); i.value = {value!r};"
            page.evaluate(f"(() => {{ {script} i.dispatchEvent(new Event('input')) }})()")
        found: list[list[object]] = page.evaluate(f"{rows}.filter(r => !r.hidden).map(r => {fields})")
        return found

    assert shown(dataset="digits") == [row for row in every if row[0] == "digits"]
    assert shown(mechanism="non_private") == [row for row in every if row[1] == "non_private"]
    some = shown(epsilon="2.5", dataset="digits")
    assert some == [row for row in every if row[0] == "digits" and row[2] is not None and row[2] <= 2.5]
    assert 0 < len(some) < len(every)
    assert shown() == every
    assert page.complaints() == []


def test_the_first_screen_has_the_question_the_figure_and_the_verdicts(page: Page, report: str) -> None:
    page.size(1280, 800)
    page.open(report)
    bottom = "e => e.getBoundingClientRect().bottom"
    for what in (".lead", ".tiles", "main > .beside figure svg", "main > .beside .verdict"):
        assert 0 < page.evaluate(f"({bottom})(document.querySelector({what!r}))") <= 800, what
    assert page.evaluate(f"({bottom})(document.querySelector('.notices') ?? document.body)") > 0
    inside = "document.querySelector('.notices').closest('details')?.open ?? 'shown'"
    cautions = page.evaluate("document.querySelectorAll('main > .notices .caution').length")
    assert cautions == 0, inside


def test_a_small_number_stays_on_one_line_on_a_phone(page: Page, report: str) -> None:
    page.size(390, 844, mobile=True)
    page.open(report)
    script = """[...document.querySelectorAll('body *')].filter(e => !e.closest('svg, script, style, option'))
      .flatMap(e => [...e.childNodes]).filter(n => n.nodeType === 3).flatMap(n =>
        [...n.data.matchAll(/[\\d.]+e-\\d+/g)].map(found => {
          const range = document.createRange();
          range.setStart(n, found.index); range.setEnd(n, found.index + found[0].length);
          return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size; }))"""
    lines = page.evaluate(script)
    assert lines
    assert max(lines) == 1


def test_a_table_wider_than_a_phone_says_that_it_scrolls(page: Page, report: str) -> None:
    page.size(390, 844, mobile=True)
    page.open(report)
    script = (
        "[...document.querySelectorAll('.scroll')].map(b => [b.scrollWidth > b.clientWidth + 1,"
        " getComputedStyle(b, '::before').content])"
    )
    boxes = page.evaluate(script)
    assert any(wide for wide, _ in boxes)
    assert all(("scroll sideways" in content) == wide for wide, content in boxes)


def test_a_link_into_folded_details_opens_them(page: Page, report: str) -> None:
    page.open(report)
    found = page.evaluate(
        "new Promise(done => { const d = document.createElement('details'); d.innerHTML = '<i id=inner></i>';"
        " document.body.append(d); location.hash = 'inner'; setTimeout(() => done(d.open), 300) })"
    )
    assert found is True
