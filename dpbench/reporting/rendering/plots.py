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

ACCURACY = "Test accuracy, %"
MANY_ROWS = 8  # above this, bands would hide each other
Level = tuple[float, float | None, float | None, str]


@dataclass(frozen=True)
class Drawn:
    """A figure and its legend: (series style, text)."""

    figure: Figure
    legend: tuple[tuple[int, str], ...]


def section_figures(report: Report, section: Section) -> list[Drawn]:
    """Accuracy against ε, against seconds and against epochs, where there is something to show."""
    found = []
    accountant = section.headline
    private = [(style, row) for style, row in enumerate(section.rows) if _epsilon(row, accountant) is not None]
    if accountant is not None and private:
        rows = [row for _, row in private]
        levels = _levels([report.row(row_id) for row_id in section.baselines])
        figure = Figure(
            id=f"{section.id}-epsilon",
            title=f"{section.name}: accuracy against ε",
            description=_epsilon_sentence(rows, accountant, levels),
            x_label=_epsilon_label(rows, accountant),
            y_label=ACCURACY,
            series=_courses(
                private, lambda step: step.epsilon.get(accountant, 0.0), lambda row: _epsilon(row, accountant) or 0.0
            ),
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
    rows: Sequence[tuple[int, Row]], place: Callable[[CurveLine], float], end: Callable[[Row], float] | None = None
) -> tuple[Series, ...]:
    """The course of each row (by its style), with a band where there are few rows.

    `end`: where a row ends, by default at its last step; where it is given, steps that lie at 0 are left out.
    """
    found = []
    for style, row in rows:
        line = []
        for step in row.curve:
            x, several = place(step), step.accuracy.count > 1 and len(rows) <= MANY_ROWS
            if end is None or 0 < x < math.inf:
                band = (step.accuracy.least, step.accuracy.most) if several else (None, None)
                line.append(Point(x, step.accuracy.mean, *band))
        found.append(Series(style, tuple(line), _end(row, end(row) if end else place(row.curve[-1]))))
    return tuple(found)


def claim_figure(record: VerdictRecord) -> Drawn:
    """The curve that a claim's evidence holds: {x, x_label, y_label, lines: {name: values}}."""
    plot = record.plot or {}
    lines: dict[str, Sequence[float]] = plot["lines"]
    series = tuple(
        Series(style, tuple(Point(float(x), float(y)) for x, y in zip(plot["x"], values, strict=True)))
        for style, values in enumerate(lines.values())
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
    """Accuracy against ε of all specs that train one model on one dataset: one joined series per spec."""
    rows = [report.row(row_id) for row_id in comparison.rows]
    accountant = comparison.headline
    levels = _levels([row for row in rows if not row.facts.private])
    series: list[Series] = []
    shown: list[Row] = []
    legend = []
    for name in dict.fromkeys(row.context.name for row in rows):
        placed = [(x, row) for row in rows if row.context.name == name and (x := _epsilon(row, accountant)) is not None]
        if placed:
            placed.sort(key=lambda pair: pair[0])
            legend.append((len(series), name))
            series.append(Series(len(series), (), tuple(_end(row, x)[0] for x, row in placed), joined=True))
            shown += [row for _, row in placed]
    if not series or accountant is None:
        return []
    figure = Figure(
        id=f"{comparison.id}-epsilon",
        title=f"{comparison.dataset}, {comparison.model}: accuracy against ε of every spec",
        description=_epsilon_sentence(shown, accountant, levels),
        x_label=_epsilon_label(shown, accountant),
        y_label=ACCURACY,
        series=tuple(series),
        levels=levels,
        logarithmic=True,
        width=440,
        height=310,
        room=0.15,
    )
    return [Drawn(figure, tuple(legend))]


def _epsilon(row: Row, accountant: str | None) -> float | None:
    value = row.epsilon(accountant)
    return value if value is not None and 0 < value < math.inf else None


def _end(row: Row, x: float) -> tuple[Point, ...]:
    """The last epoch with its interval, then the printed accuracy where the two may be compared."""
    ours = Point(x, row.accuracy.mean, row.accuracy.low, row.accuracy.high)
    published = row.context.published
    if row.barred or published is None or published.accuracy_percent is None:
        return (ours,)
    return (ours, Point(x, published.accuracy_percent.value, hollow=True))


def _levels(baselines: Sequence[Row]) -> tuple[Level, ...]:
    """The best two baselines; more lines would only fill the figure."""
    best = sorted(baselines, key=lambda row: -row.accuracy.mean)[:2]
    return tuple(
        (row.accuracy.mean, row.accuracy.least, row.accuracy.most, f"not private: {percent(row.accuracy.mean)} %")
        for row in best
    )


def _epsilon_label(rows: Sequence[Row], accountant: str) -> str:
    deltas = dict.fromkeys(line.delta for row in rows if (line := row.guarantee(accountant)))
    at = f" at δ = {number(next(iter(deltas)))}" if len(deltas) == 1 and None not in deltas else ""
    kinds = dict.fromkeys(line.said or "" for row in rows if (line := row.guarantee(accountant)))
    return f"ε{at} by {accountant} ({', '.join(kinds)})"


def _epsilon_sentence(rows: Sequence[Row], accountant: str, levels: Sequence[Level]) -> str:
    parts = [
        f"{row.full_title}: {plus_minus(row.accuracy)} % at ε = {bound(row.epsilon(accountant))}"
        + (" (unchecked)" if row.unchecked else "")
        for row in rows
    ] + [text for *_, text in levels]
    return f"Test accuracy against ε by {accountant}. " + "; ".join(parts) + "."
