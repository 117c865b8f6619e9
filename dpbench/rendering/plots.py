"""Which figures a report has, and what stands in them: rows of an assessment to points, nothing computed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench.assessment import Assessment, Comparison, CurveLine, Row, Section
from dpbench.claims.record import VerdictRecord
from dpbench.rendering.figures import Figure, Point, Series
from dpbench.rendering.formatting import bound, number, percent, plus_minus

ACCURACY = "Test accuracy, %"
MANY_ROWS = 8  # above this, bands would hide each other
Level = tuple[float, float | None, float | None, str]


@dataclass(frozen=True)
class Drawn:
    """A figure and its legend: (series style, text)."""

    figure: Figure
    legend: tuple[tuple[int, str], ...]


def section_figures(assessment: Assessment, section: Section) -> list[Drawn]:
    """Accuracy against ε, against seconds and against epochs, where there is something to show."""
    levels = _levels([assessment.row(row_id) for row_id in section.baselines])
    found = []
    accountant = section.headline
    private = [(style, row) for style, row in enumerate(section.rows) if _epsilon(row, accountant) is not None]
    if accountant is not None and private:
        series = []
        for style, row in private:
            line = tuple(
                _point(step.epsilon[accountant], step)
                for step in row.curve
                if 0 < step.epsilon.get(accountant, 0.0) < math.inf
            )
            series.append(Series(style, _band(line, len(private)), _end(row, _epsilon(row, accountant) or 0.0)))
        rows = [row for _, row in private]
        figure = Figure(
            id=f"{section.id}-epsilon",
            title=f"{section.name}: accuracy against ε",
            description=_epsilon_sentence(rows, accountant, levels),
            x_label=_epsilon_label(rows, accountant),
            y_label=ACCURACY,
            series=tuple(series),
            levels=levels,
            logarithmic=True,
        )
        found.append(Drawn(figure, tuple((style, row.title) for style, row in private)))
    axes: tuple[tuple[str, str, Callable[[CurveLine], float]], ...] = (
        ("time", "Training time, s", lambda step: step.seconds),
        ("epoch", "Epochs", lambda step: step.epoch),
    )
    drawn = [(style, row) for style, row in enumerate(section.rows) if row.curve]
    for name, label, place in axes:
        series = []
        for style, row in drawn:
            line = tuple(_point(place(step), step) for step in row.curve)
            series.append(Series(style, _band(line, len(drawn)), _end(row, place(row.curve[-1]))))
        if series:
            figure = Figure(
                id=f"{section.id}-{name}",
                title=f"{section.name}: accuracy against {label.lower()}",
                description=_course_sentence([row for _, row in drawn], label, place),
                x_label=label,
                y_label=ACCURACY,
                series=tuple(series),
                room=1.6,
            )
            found.append(Drawn(figure, tuple((style, row.title) for style, row in drawn)))
    return found


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


def comparison_figures(assessment: Assessment, comparison: Comparison) -> list[Drawn]:
    """Accuracy against ε of all specs that train one model on one dataset: one joined series per spec."""
    rows = [assessment.row(row_id) for row_id in comparison.rows]
    accountant = comparison.headline
    levels = _levels([row for row in rows if not row.facts.private])
    series: list[Series] = []
    legend: list[tuple[int, str]] = []
    shown: list[Row] = []
    for name in dict.fromkeys(row.context.name for row in rows):
        members = [row for row in rows if row.context.name == name and _epsilon(row, accountant) is not None]
        if members:
            members.sort(key=lambda row: _epsilon(row, accountant) or 0.0)
            points = tuple(_end(row, _epsilon(row, accountant) or 0.0)[0] for row in members)
            legend.append((len(series), name))
            series.append(Series(len(series), (), points, joined=True))
            shown += members
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


def _point(x: float, step: CurveLine) -> Point:
    several = step.accuracy.count > 1
    return Point(
        x, step.accuracy.mean, step.accuracy.least if several else None, step.accuracy.most if several else None
    )


def _band(line: tuple[Point, ...], rows: int) -> tuple[Point, ...]:
    return line if rows <= MANY_ROWS else tuple(Point(point.x, point.y) for point in line)


def _end(row: Row, x: float) -> tuple[Point, ...]:
    """The last epoch with its interval, then the printed accuracy where it may stand beside."""
    ours = Point(x, row.accuracy.mean, row.accuracy.low, row.accuracy.high)
    published = row.context.published
    if row.barred or published is None or published.accuracy_percent is None:
        return (ours,)
    return (ours, Point(x, published.accuracy_percent.value, hollow=True))


def _levels(baselines: Sequence[Row]) -> tuple[Level, ...]:
    """The best two baselines: more lines would say nothing more."""
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
    flags = [" (unchecked)" if row.unchecked else "" for row in rows]
    parts = [
        f"{row.full_title}: {plus_minus(row.accuracy)} % at ε = {bound(row.epsilon(accountant))}{flag}"
        for row, flag in zip(rows, flags, strict=True)
    ] + [text for *_, text in levels]
    return f"Test accuracy against ε by {accountant}. " + "; ".join(parts) + "."


def _course_sentence(rows: Sequence[Row], label: str, place: Callable[[CurveLine], float]) -> str:
    parts = [f"{row.title}: {percent(row.accuracy.mean)} % at {place(row.curve[-1]):.4g}" for row in rows]
    return f"Test accuracy along training against {label.lower()}; where each ends: " + "; ".join(parts) + "."
