"""Which figures a report has, and what stands in them: rows of a report to points, nothing computed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench.judging.claims.record import VerdictRecord
from dpbench.judging.reproduction import plus_minus
from dpbench.privacy.formatting import bound, number, percent
from dpbench.reporting.contents import Comparison, CurveLine, Report, Row, Section
from dpbench.reporting.rendering.figures import Figure, Point, Series
from dpbench.reporting.rendering.view import by

ACCURACY = "Test accuracy, %"
MANY_ROWS = 8  # above this, bands would hide each other
Level = tuple[float, float | None, float | None, str]


@dataclass(frozen=True)
class Drawn:
    """A figure and its legend: (series style, text)."""

    figure: Figure
    legend: tuple[tuple[int, str], ...]


def section_figures(report: Report, section: Section) -> list[Drawn]:
    """Accuracy against ε, against seconds and against epochs, where there is something to show.

    ε is promised; only where no row has such a one, another.
    """
    found = []
    promised = [(style, row) for style, row in enumerate(section.rows) if row.promised]
    private = [pair for pair in promised or enumerate(section.rows) if _epsilon(pair[1]) is not None]
    if private:
        rows = [row for _, row in private]
        levels = _levels([report.row(row_id) for row_id in section.baselines])
        figure = Figure(
            id=f"{section.id}-epsilon",
            title=f"{section.name}: accuracy against ε",
            description=_epsilon_sentence(rows, levels),
            x_label=_epsilon_label(rows),
            y_label=ACCURACY,
            series=_courses(private, lambda step: next(iter(step.epsilon.values()), 0.0), against_epsilon=True),
            levels=levels,
            logarithmic=True,
        )
        found.append(Drawn(figure, tuple((style, row.title) for style, row in private)))
    drawn = [(style, row) for style, row in enumerate(section.rows) if row.curve]
    axes: tuple[tuple[str, str, Callable[[CurveLine], float]], ...] = (
        ("time", "Training time, s", lambda step: step.seconds),
        ("epoch", "Epochs", lambda step: step.epoch),
    )
    for name, label, place in axes if drawn else ():
        ends = [f"{row.title}: {percent(row.accuracy.mean)} % at {place(row.curve[-1]):.4g}" for _, row in drawn]
        figure = Figure(
            id=f"{section.id}-{name}",
            title=f"{section.name}: accuracy against {label.lower()}",
            description=f"Test accuracy along training against {label.lower()}; where each ends: {'; '.join(ends)}.",
            x_label=label,
            y_label=ACCURACY,
            series=_courses(drawn, place),
            room=1.6,
        )
        found.append(Drawn(figure, tuple((style, row.title) for style, row in drawn)))
    return found


def _courses(
    rows: Sequence[tuple[int, Row]], place: Callable[[CurveLine], float], *, against_epsilon: bool = False
) -> tuple[Series, ...]:
    """The course of each row (by its style), with a band where there are few rows; it ends where the row does.

    Against ε, the row ends at its ε, and steps that lie at 0 are left out.
    """
    found = []
    for style, row in rows:
        line = []
        for step in row.curve:
            x, several = place(step), step.accuracy.count > 1 and len(rows) <= MANY_ROWS
            if not against_epsilon or 0 < x < math.inf:
                band = (step.accuracy.least, step.accuracy.most) if several else (None, None)
                line.append(Point(x, step.accuracy.mean, *band))
        end = _epsilon(row) if against_epsilon else place(row.curve[-1])
        points = _end(row, end or 0.0, _says(row) if against_epsilon else "")
        found.append(Series(style, tuple(line), points, says=row.title))
    return tuple(found)


def claim_figure(record: VerdictRecord) -> Drawn:
    """The curve that a claim's evidence holds: {x, x_label, y_label, lines: {name: values}}."""
    plot = record.plot or {}
    lines: dict[str, Sequence[float]] = plot["lines"]
    series = tuple(
        Series(style, tuple(Point(float(x), float(y)) for x, y in zip(plot["x"], values, strict=True)), says=name)
        for style, (name, values) in enumerate(lines.items())
    )
    figure = Figure(
        id="figure-" + re.sub(r"[^a-z0-9]+", "-", record.id),
        title=f"{record.id}: {plot['y_label']} against {plot['x_label']}",
        description=record.reason,
        x_label=plot["x_label"],
        y_label=plot["y_label"],
        series=series,
        whole=True,
    )
    return Drawn(figure, tuple(enumerate(lines)))


def comparison_figures(report: Report, comparison: Comparison) -> list[Drawn]:
    """Accuracy against the tightest promised ε of every row that trains one model on one dataset."""
    levels = _levels([report.row(row_id) for row_id in comparison.baselines])
    series: list[Series] = []
    shown: list[Row] = []
    legend = []
    for style, (name, row_ids) in enumerate(comparison.series):
        rows = [row for row in map(report.row, row_ids) if row.promised and _epsilon(row)]
        if rows:
            rows.sort(key=lambda row: _epsilon(row) or 0.0)
            points = tuple(_end(row, _epsilon(row) or 0.0, _says(row))[0] for row in rows)
            series.append(Series(style, (), points, joined=True, says=name))
            legend.append((style, name))
            shown += rows
    if not series:
        return []
    figure = Figure(
        id=f"{comparison.id}-epsilon",
        title=f"{comparison.dataset}, {comparison.model}: accuracy against ε of every mechanism",
        description=_epsilon_sentence(shown, levels),
        x_label=_epsilon_label(shown),
        y_label=ACCURACY,
        series=tuple(series),
        levels=levels,
        logarithmic=True,
        width=460,
        height=300,
        room=0.15,
    )
    return [Drawn(figure, tuple(legend))]


def _epsilon(row: Row) -> float | None:
    """The ε that figures show, where a logarithmic axis can."""
    value = row.shown.epsilon if row.shown else None
    return value if value is not None and 0 < value < math.inf else None


def _says(row: Row) -> str:
    """A row in words: what it reached, and at which ε by whom."""
    line = row.shown
    at = "" if line is None else f" at ε = {bound(line.epsilon, line.kind)} ({by(line)})"
    return f"{row.full_title}: {plus_minus(row.accuracy)} %{at}"


def _end(row: Row, x: float, says: str = "") -> tuple[Point, ...]:
    """The last epoch with its interval, then the printed accuracy where the two may be compared."""
    says = says or f"{row.title}: {plus_minus(row.accuracy)} % at {x:.4g}"
    ours = Point(x, row.accuracy.mean, row.accuracy.low, row.accuracy.high, says=says)
    published = row.context.published
    if row.barred or published is None or published.accuracy_percent is None:
        return (ours,)
    printed = published.accuracy_percent
    return (ours, Point(x, printed.value, hollow=True, says=f"{row.title}: printed {printed.text} %"))


def _levels(baselines: Sequence[Row]) -> tuple[Level, ...]:
    """The best two baselines; more lines would only fill the figure."""
    best = sorted(baselines, key=lambda row: -row.accuracy.mean)[:2]
    return tuple(
        (row.accuracy.mean, row.accuracy.least, row.accuracy.most, f"not private: {percent(row.accuracy.mean)} %")
        for row in best
    )


def _epsilon_label(rows: Sequence[Row]) -> str:
    lines = [row.shown for row in rows if row.shown]
    deltas = dict.fromkeys(line.delta for line in lines)
    at = f" at δ = {number(next(iter(deltas)))}" if len(deltas) == 1 and None not in deltas else ""
    return f"ε{at} ({', '.join(dict.fromkeys(map(by, lines)))})"


def _epsilon_sentence(rows: Sequence[Row], levels: Sequence[Level]) -> str:
    return f"Test accuracy against ε. {'; '.join([*map(_says, rows), *(text for *_, text in levels)])}."
