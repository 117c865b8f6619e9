"""The figures beside a paper's tables and figures: printed against measured results, or what its claims computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpbench.reporting.contents import CoverageLine, Report, Row
from dpbench.reporting.coverage import verdicts_on_results
from dpbench.reporting.rendering.figures import Figure, Point, Series
from dpbench.reporting.rendering.plots import Drawn
from dpbench.reporting.rendering.surfaces import DrawnContour, claim_figures

_DIAGONAL = 5  # the style of the line on which the two are the same


def coverage_figures(report: Report) -> dict[str, list[Drawn | DrawnContour]]:
    """The figures by the id of their line; none where nothing printed was compared and no claim has one."""
    judged = {record.id: record for record in report.claims.verdicts} if report.claims is not None else {}
    found: dict[str, list[Drawn | DrawnContour]] = {}
    for line in report.coverage:
        plotted = [judged[name] for name in line.pictures if name in judged and judged[name].plot is not None]
        figures: list[Drawn | DrawnContour] = [one for record in plotted for one in claim_figures(record)]
        if (compared := _figure(report, line)) is not None:
            figures.append(compared)
        if figures:
            found[line.id] = [
                replace(one, caption=f"{line.paper}, {line.item.place}: {one.caption}") for one in figures
            ]
    return found


@dataclass(frozen=True)
class _Pair:
    """A printed number beside ours, its interval if there is one, and what is said of them."""

    printed: float
    ours: float
    least: float | None
    most: float | None
    said: str
    of: str  # what they are, with the unit


def _pair(row: Row) -> _Pair | None:
    """The printed result of a row, else the sharpness that a source prints, which gets no verdict."""
    verdicts = verdicts_on_results(row)
    if verdicts:
        verdict, evidence = verdicts[0], verdicts[0].evidence
        ours = evidence.get("mean", evidence.get("deviation"))
        if ours is None:
            return None
        words = f"{row.title}: {verdict.reason} ({verdict.verdict.replace('_', ' ')})"
        of = row.metric.label if "mean" in evidence else "Standard deviation of the test accuracy, %"
        return _Pair(float(evidence["printed"]), ours, evidence.get("low"), evidence.get("high"), words, of)
    printed = row.context.published.sharpness if row.context.published else None
    found = next((one.value for one in row.metrics if one.name.startswith("sharpness") and one.value), None)
    if printed is None or found is None:
        return None
    words = f"{row.title}: ours at least {found.mean:.4g}, printed {printed.text}, without a verdict"
    return _Pair(printed.value, found.mean, None, None, words, "Sharpness")  # bars are prediction intervals


def _figure(report: Report, line: CoverageLine) -> Drawn | None:
    pairs = [(row, pair) for row in map(report.row, line.rows) if (pair := _pair(row)) is not None]
    if not pairs:
        return None
    by_section: dict[str, list[Point]] = {}
    for row, one in pairs:
        point = Point(one.printed, one.ours, one.least, one.most, says=one.said)
        by_section.setdefault(row.context.name, []).append(point)
    places = [place for _, one in pairs for place in (one.printed, one.ours)]
    margin = max(0.06 * (max(places) - min(places)), 0.2 if max(places) > 1 else 0.02)
    same = [min(places) - margin, max(places) + margin]
    series = [Series(_DIAGONAL, tuple(Point(x, x) for x in same), says="printed = measured")]
    legend = [(_DIAGONAL, "printed = measured")]
    for style, (name, points) in enumerate(by_section.items()):
        series.append(Series(style, (), tuple(points), says=name))
        legend.append((style, name))
    of = " or ".join(dict.fromkeys(one.of for _, one in pairs))
    figure = Figure(
        id=f"{line.id}-figure",
        title=f"{line.paper}, {line.item.place}: printed against measured",
        description=_sentence(line, [one.said for _, one in pairs]),
        x_label=f"{of}, printed",
        y_label="Measured",
        series=tuple(series),
        whole=True,
    )
    return Drawn(figure, tuple(legend), "printed against measured")


def _sentence(line: CoverageLine, said: Sequence[str]) -> str:
    return f"Printed against measured results of {line.paper}, {line.item.place}: {'; '.join(said)}."
