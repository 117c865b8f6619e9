"""What ran of every table and figure of the papers: rows of a report by the specs that the papers' lists name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from dpbench.judging.coverage import CoveredItem, coverage
from dpbench.reporting.contents import CoverageLine, Report, Row
from dpbench.spec.keys import Spec
from dpbench.spec.loading import load_specs
from dpbench.spec.shipped import shipped
from dpbench.verdicts import Verdict

_OF_SETTINGS = ("printed_epsilon", "printed_mu")  # what no training can change; claims judge these


def with_coverage(report: Report, read: Sequence[Spec] = ()) -> Report:
    """The report with a line for each table and figure; without lines where it holds nothing of any paper.

    `read`: specs of files that have been read already, all that a file holds.
    """
    if report.claims is None and names_in_papers().isdisjoint(section.name for section in report.sections):
        return report  # without reading every spec of the papers, which takes seconds
    files: dict[Path, list[Spec]] = {}
    for file, specs in groupby(read, key=lambda spec: spec.file):
        files.setdefault(Path(file).resolve(), []).extend(specs)
    found = tuple(_lines(report, files))
    ran = any(line.rows or line.reduced for line in found)
    return replace(report, coverage=found) if ran or report.claims is not None else report


def names_in_papers() -> set[str]:
    """The names of the specs, of those that come with dpbench, that the papers' lists name; read off their text."""
    listed = {
        name
        for file in coverage()
        for item in file.items
        for name in (*(f"{file.paper}/{one}" for one in item.specs), *(f"reduced/{one}" for one in item.reduced))
    }
    texts = (path.read_text(encoding="utf-8") for name, path in shipped().items() if name in listed)
    return {name for text in texts for name in re.findall(r"^name: *(\S+)", text, re.MULTILINE)}


def verdicts_on_results(row: Row) -> list[Verdict]:
    """The verdicts on the printed results of a row, such as its accuracy and how much it deviates."""
    return [one for one in row.verdicts if one.check not in _OF_SETTINGS]


@dataclass(frozen=True)
class _Ran:
    """The rows of a report by spec and label, the reader's own before those that came with the project."""

    rows: Mapping[str, Mapping[str, Row]]
    devices: Mapping[str, str]
    files: dict[Path, list[Spec]]  # read so far

    def specs(self, name: str) -> Sequence[Spec]:
        """The specs of a file that comes with dpbench; a package without its specs shows what it has."""
        path = shipped().get(name)
        if path is None:
            return ()
        if path.resolve() not in self.files:
            self.files[path.resolve()] = list(load_specs([path]))
        return self.files[path.resolve()]

    def of(self, spec: str) -> list[Row]:
        return list(self.rows.get(spec, {}).values())


def _lines(report: Report, files: dict[Path, list[Spec]]) -> Iterable[CoverageLine]:
    rows: dict[str, dict[str, Row]] = {}
    for section in sorted(report.sections, key=lambda section: section.shipped):
        for row in section.rows:
            current = rows.setdefault(section.name, {})
            if row.label not in current or (current[row.label].barred and not row.barred):
                current[row.label] = row
    devices = {
        line.run_key: line.device_name if line.device_name != "not recorded" else line.device for line in report.records
    }
    ran = _Ran(rows, devices, files)
    judged = {record.id: record.verdict for record in report.claims.verdicts} if report.claims is not None else {}
    for file in coverage():
        for item in file.items:
            line = CoverageLine(file.paper, file.title, item)
            names = [f"{file.paper}.{claim}" for claim in item.claims]
            line = replace(line, claims=tuple((name, judged.get(name, "")) for name in names))
            yield _with_runs(line, ran) if item.specs or item.reduced else line


def _with_runs(line: CoverageLine, ran: _Ran) -> CoverageLine:
    specs = [spec for name in line.item.specs for spec in ran.specs(f"{line.paper}/{name}")]
    whole: list[Row] = []
    short: list[Row] = []
    names = tuple(dict.fromkeys(spec.name for spec in specs))
    for name in names:
        for row in ran.of(name):
            (short if row.context.reduced else whole).append(row)
    short += _shortened(line.item, specs, ran)
    results = {(spec.name, spec.label): spec.published.results for spec in specs if spec.published}
    prints = sum(results.values())
    shown = whole or short
    asked = max((len(spec.seeds) for spec in specs), default=0)
    seeds = [len(row.seeds) for row in shown]
    found = [one for row in whole for one in verdicts_on_results(row)]
    compared = [verdict for name, verdict in line.claims if name.partition(".")[2] in line.item.compared]
    verdict, reason = _together(found, prints, bool(whole), line.item.prints, compared)
    return replace(
        line,
        names=names,
        configurations=len(specs),
        rows=tuple(row.id for row in whole),
        reduced=tuple(row.id for row in short),
        seeds=(min(seeds), max(seeds), asked) if seeds else None,
        devices=tuple(dict.fromkeys(ran.devices[key] for row in shown for key in row.run_keys)),
        printed=prints,
        verdict=verdict,
        reason=reason,
    )


def _shortened(item: CoveredItem, specs: Sequence[Spec], ran: _Ran) -> list[Row]:
    """The rows of the reduced specs that train on a dataset of this table or figure; all where no spec is of it."""
    datasets = tuple({spec.dataset.name for spec in specs})
    rows = [
        row
        for name in item.reduced
        for spec in dict.fromkeys(one.name for one in ran.specs(f"reduced/{name}"))
        for row in ran.of(spec)
    ]
    return [row for row in rows if row.settings.dataset.startswith(datasets or "")]


def _together(
    verdicts: Sequence[Verdict], printed: int, ran: bool, besides: str = "", compared: Sequence[str] = ()
) -> tuple[str, str]:
    """One verdict on `printed` results: refuted if one is, holds if all are compared and hold, else undecided.

    `besides`: what is printed in place of results; `compared`: verdicts of claims about curves or rows, which count.
    """
    if besides:
        return "", f"it prints {besides}"
    verdict, reason = _on_results(verdicts, printed, ran)
    if not compared:
        return verdict, reason
    words = {"holds": "hold", "refuted": "refuted", "undecided": "undecided"}
    counts = Counter(one if one in words else "not judged" for one in compared)
    parts = [f"{count} {words.get(one, one)}" for one, count in counts.items()]
    reason += f"; of {len(compared)} claim{'s' * (len(compared) > 1)} about its curves or rows {', '.join(parts)}"
    whole = {verdict, *compared}
    if "refuted" in whole:
        return "refuted", reason
    return (verdict if whole == {"holds"} or verdict == "not_run" else "undecided"), reason


def _on_results(verdicts: Sequence[Verdict], printed: int, ran: bool) -> tuple[str, str]:
    """The verdict on the printed results alone."""
    if not printed:
        return "", "it prints no result to compare" if ran else ""
    counts = Counter[str](verdict.verdict for verdict in verdicts)
    compared = counts["holds"] + counts["refuted"] + counts["undecided"]
    words = {"holds": "hold", "refuted": "refuted", "undecided": "undecided"}
    parts = [f"{counts[name]} {word}" for name, word in words.items() if counts[name]]
    parts += [f"{printed - compared} not compared"] * (printed > compared)
    if not compared:
        return "not_run", f"{printed} printed result{'s' * (printed > 1)}"
    reason = f"of {printed} printed result{'s' * (printed > 1)} {', '.join(parts)}"
    if counts["refuted"]:
        return "refuted", reason
    return ("holds" if counts["holds"] == printed else "undecided"), reason
