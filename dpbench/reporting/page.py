"""A report as one self-contained HTML file, as CSV and as LaTeX. Renders; computes nothing.

A chapter of the report is a template and a condition (`CHAPTERS`): to add one, add both. The page forbids itself every
request by its content policy; its only style sheet and script stand inside it, named in the policy by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.atomic import write_text
from dpbench.privacy.formatting import MISSING
from dpbench.reporting.contents import Report
from dpbench.reporting.rendering.agreement import coverage_figures
from dpbench.reporting.rendering.exports import records_csv, rows_csv, tables_latex
from dpbench.reporting.rendering.figures import Figure, draw, swatch
from dpbench.reporting.rendering.plots import Drawn, comparison_figures, section_figures
from dpbench.reporting.rendering.surfaces import Contour, DrawnContour, claim_figures, draw_contour, surface_figures
from dpbench.reporting.rendering.view import FILTERS
from dpbench.store.speed_targets import judged, operator_words

if TYPE_CHECKING:
    from jinja2 import Environment

SYMBOLS: Mapping[str, str] = {
    **dict.fromkeys(("holds", "sound", "loose"), "✓"),
    **dict.fromkeys(("refuted", "unsound"), "✗"),
    "undecided": "?",
    "not_run": "–",
}


@dataclass(frozen=True)
class Chapter:
    """One part of the page: its anchor (and `chapter_<anchor>.html`), its title and when it appears."""

    anchor: str
    title: str
    applies: Callable[[Report], bool]


CHAPTERS: tuple[Chapter, ...] = (
    Chapter("results", "Results", lambda report: bool(report.part(shipped=False).sections)),
    Chapter("coverage", "Tables and figures of the papers", lambda report: bool(report.coverage)),
    Chapter("metrics", "Sharpness, loss surfaces and gaps", lambda report: any(row.metrics for row in report.rows())),
    Chapter("claims", "Claims", lambda report: report.claims is not None),
    Chapter("failures", "Failures", lambda report: bool(report.failures)),
    Chapter("shipped", "Came with the project", lambda report: bool(report.part(shipped=True).sections)),
    Chapter("accountants", "Accountants against enclosures", lambda report: report.conformance is not None),
    Chapter("speed", "Speed", lambda report: report.speed is not None),
    Chapter("records", "All records", lambda report: bool(report.records)),
    Chapter("environment", "Environment", lambda _: True),
    Chapter("legend", "How to read this", lambda _: True),
)
# Markup, and whole elements whose text is none of the page's; or, in the text, a number such as 1e-5, which would break
# after its hyphen.
_MARKUP = re.compile(r"(<(style|script|svg|title|option)\b.*?</\2>|<[^>]*>)|[\d.]+e[-−]\d+", re.DOTALL)
_TEMPLATES = Path(__file__).parent / "rendering" / "templates"


def render(report: Report, progress: Callable[[str, int, int], None] | None = None) -> str:
    """The report as one HTML file that asks for nothing outside itself.

    `progress` is called with what is done, how much of it and of how much.

    >>> from dpbench.reporting.collect import collect
    >>> render(collect([])).startswith("<!doctype html>")
    True
    """
    environment = _environment()
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    wanted: dict[str, Sequence[Drawn | DrawnContour]] = {}
    wanted |= {section.id: section_figures(report, section) for section in report.sections}
    wanted |= {item.id: comparison_figures(report, item) for item in report.comparisons}
    pictures = {name: line for line in report.coverage for name in line.pictures}
    for record in report.claims.verdicts if report.claims is not None else ():
        if record.plot is not None and record.id not in pictures:
            wanted[record.id] = claim_figures(record)
    wanted |= coverage_figures(report)
    wanted |= surface_figures(report)
    figures = {}
    for number, (name, some) in enumerate(wanted.items(), 1):
        figures[name] = _drawn(some)
        if progress is not None:
            progress("drawing", number, len(wanted))
    html = environment.get_template("report.html").render(
        report=report,
        chapters=[chapter for chapter in CHAPTERS if chapter.applies(report)],
        figures=figures,
        pictures=pictures,
        style=style,
        script=script,
        policy=_policy(style, script),
    )
    return _MARKUP.sub(lambda found: found[0] if found[1] else f'<span class="nowrap">{found[0]}</span>', html)


def write_report(report: Report, out: Path, progress: Callable[[str, int, int], None] | None = None) -> list[Path]:
    """Write report.html, report.csv, records.csv, report.tex and report.json into `out`, each whole or not at all.

    Returns their paths, the HTML first; `progress` as for `render`. Raises DpbenchError when `out` cannot be written.
    """
    files = {
        "report.html": render(report, progress),
        "report.csv": rows_csv(report),
        "records.csv": records_csv(report),
        "report.tex": tables_latex(report),
        "report.json": json.dumps(report.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    return [write_text(Path(out) / name, content) for name, content in files.items()]


def _drawn(figures: Sequence[Drawn | DrawnContour]) -> list[dict[str, Any]]:
    from markupsafe import Markup

    # Safe: `draw` builds the element from a tree, so every text in it is escaped.
    return [
        {name: getattr(item, name) for name in ("figure", "legend", "caption", "note")}
        | {"svg": Markup(_svg(item.figure))}
        for item in figures
    ]


def _svg(figure: Figure | Contour) -> str:
    return draw_contour(figure) if isinstance(figure, Contour) else draw(figure)


def _policy(style: str, script: str) -> str:
    """The content security policy: nothing from outside, no inline style or script but the two of these texts."""

    def source(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() + "'"

    own = f"style-src {source(style)}; script-src {source(script)}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {function.__name__: function for function in FILTERS}
    environment.globals |= {"SYMBOLS": SYMBOLS, "MISSING": MISSING, "swatch": swatch}
    environment.globals |= {"speed_targets": judged, "operator_words": operator_words}
    return environment
