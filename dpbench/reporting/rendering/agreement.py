"""Printed against measured results, a figure for each table or figure of a paper that has records."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.reporting.contents import CoverageLine, Report
from dpbench.reporting.coverage import result_verdict
from dpbench.reporting.rendering.figures import Figure, Point, Series
from dpbench.reporting.rendering.plots import Drawn

_DIAGONAL = 5  # the style of the line on which the two are the same


def coverage_figures(report: Report) -> dict[str, list[Drawn]]:
    """The figures by the id of their line; none where nothing printed was compared."""
    found = {line.id: _figure(report, line) for line in report.coverage}
    return {name: [figure] for name, figure in found.items() if figure is not None}


def _figure(report: Report, line: CoverageLine) -> Drawn | None:
    series: list[Series] = []
    legend: list[tuple[int, str]] = []
    said: list[str] = []
    places: list[float] = []
    by_section: dict[str, list[Point]] = {}
    for row in map(report.row, line.rows):
        verdict = result_verdict(row)
        if verdict is None or "mean" not in verdict.evidence:
            continue
        printed, ours = float(verdict.evidence["printed"]), verdict.evidence["mean"]
        low, high = (verdict.evidence.get(end) for end in ("low", "high"))
        half = (high - low) / 2 if low is not None and high is not None else None
        least, most = (None, None) if half is None else (ours - half, ours + half)
        words = f"{row.title}: {verdict.reason} ({verdict.verdict.replace('_', ' ')})"
        by_section.setdefault(row.context.name, []).append(Point(printed, ours, least, most, says=words))
        said.append(words)
        places += [printed, ours]
    if not places:
        return None
    margin = max(0.06 * (max(places) - min(places)), 0.2)
    same = [min(places) - margin, max(places) + margin]
    series.append(Series(_DIAGONAL, tuple(Point(x, x) for x in same), says="printed = measured"))
    legend.append((_DIAGONAL, "printed = measured"))
    for style, (name, points) in enumerate(by_section.items()):
        series.append(Series(style, (), tuple(points), says=name))
        legend.append((style, name))
    figure = Figure(
        id=f"{line.id}-figure",
        title=f"{line.paper}, {line.item.place}: printed against measured",
        description=_sentence(line, said),
        x_label="Printed, %",
        y_label="Measured, %",
        series=tuple(series),
        whole=True,
    )
    return Drawn(figure, tuple(legend))


def _sentence(line: CoverageLine, said: Sequence[str]) -> str:
    return f"Printed against measured results of {line.paper}, {line.item.place}: {'; '.join(said)}."
