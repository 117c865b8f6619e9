"""Which figures a report has, and what stands in them: rows of a report to points, nothing computed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpbench.judging.claims.record import VerdictRecord
from dpbench.privacy.formatting import bound, number
from dpbench.reporting.comparisons import comparisons
from dpbench.reporting.contents import Comparison, CurveLine, GuaranteeLine, Report, Row, Section
from dpbench.reporting.rendering.figures import Figure, Point, Series
from dpbench.reporting.rendering.view import by
from dpbench.tasks import METRICS, Metric

MANY_ROWS = 8  # above this, bands would hide each other
_BESIDE = 5.0  # between the points of two lines at one ε, in points of 1/72 inch
Level = tuple[float, float | None, float | None, str]


@dataclass(frozen=True)
class Drawn:
    """A figure and its legend: (series style, text); `note` stands below that."""

    figure: Figure
    legend: tuple[tuple[int, str], ...]
    caption: str = ""
    note: str = ""


def section_figures(report: Report, section: Section) -> list[Drawn]:
    """Each metric against ε, against seconds and against epochs, where there is something to show."""
    metrics = dict.fromkeys(row.metric_name for row in section.rows)
    return [figure for name in metrics for figure in _figures(report, section, METRICS[name])]


def _figures(report: Report, section: Section, metric: Metric) -> list[Drawn]:
    """Those of the rows with one metric. ε is promised; only where no row has such a one, another."""
    found = []
    panels = _panels(report, section, metric)
    styled = [(style, row) for style, row in enumerate(section.rows) if row.metric_name == metric.name]
    other = "" if section.rows[0].metric_name == metric.name else f"-{metric.name}"
    promised = [(style, row) for style, row in styled if row.promised]
    private = [pair for pair in promised or styled if epsilon_of(pair[1]) is not None]
    if panels:
        found += panels
    elif private:
        rows = [row for _, row in private]
        baselines = map(report.row, section.baselines)
        levels = _levels([row for row in baselines if row.metric_name == metric.name])
        figure = Figure(
            id=f"{section.id}-epsilon{other}",
            title=f"{section.name}: {metric.title} against ε",
            description=_epsilon_sentence(metric, rows, levels),
            x_label=epsilon_label(rows),
            y_label=metric.label,
            series=_courses(private, lambda step: next(iter(step.epsilon.values()), 0.0), against_epsilon=True),
            levels=levels,
            logarithmic=True,
        )
        titles = [name for name, _ in _with_neighbours([(row.title, [row]) for row in rows])]
        legend = tuple(zip((style for style, _ in private), titles, strict=True))
        found.append(Drawn(figure, legend, f"{metric.noun} against ε"))
    drawn = [(style, row) for style, row in styled if row.curve]
    axes: tuple[tuple[str, str, Callable[[CurveLine], float]], ...] = (
        ("time", "Training time, s", lambda step: step.seconds),
        ("epoch", "Epochs", lambda step: step.epoch),
    )
    for name, label, place in axes if drawn else ():
        ends = [f"{row.title}: {metric.text(row.measured.mean)} at {place(row.curve[-1]):.4g}" for _, row in drawn]
        against = f"against {label.lower()}"
        figure = Figure(
            id=f"{section.id}-{name}{other}",
            title=f"{section.name}: {metric.title} {against}",
            description=f"Test {metric.title} along training {against}; where each ends: {'; '.join(ends)}.",
            x_label=label,
            y_label=metric.label,
            series=_courses(drawn, place),
            room=1.6,
        )
        found.append(
            Drawn(
                figure,
                tuple((style, row.title) for style, row in drawn),
                f"{metric.noun} {against.removesuffix(', s')}",
            )
        )
    return found


def _panels(report: Report, section: Section, metric: Metric) -> list[Drawn]:
    """A figure for each dataset and model of a section with many rows of several, its mechanisms as lines.

    None where rows have printed results, or differ in more than ε: then every row is a line of its own.
    """
    rows = [row for row in section.rows if row.metric_name == metric.name]
    if len(rows) <= MANY_ROWS or len({(row.settings.dataset, row.settings.model) for row in rows}) == 1:
        return []
    if any(row.printed for row in rows) or _differ(rows):
        return []
    found = []
    baselines = [report.row(row_id) for row_id in section.baselines]
    for one in comparisons([replace(section, rows=tuple(rows))], every=True):
        subject = one.dataset, one.model
        alike = [row.id for row in baselines if (row.settings.dataset, row.settings.model) == subject]
        panel = replace(one, id=f"{section.id}-{one.id}", baselines=tuple(alike))
        for drawn in comparison_figures(report, panel):
            title = f"{section.name}, {', '.join(subject)}: {metric.title} against ε"
            found.append(Drawn(replace(drawn.figure, title=title), drawn.legend, ", ".join(subject)))
    return found


def _differ(rows: Sequence[Row]) -> bool:
    """Whether rows of one dataset, model and mechanism differ in more than the noise."""
    kinds: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        subject = row.settings.dataset, row.settings.model, row.settings.mechanism
        kinds.setdefault(subject, set()).add(repr({**vars(row.settings), "noise_multiplier": None}))
    return any(len(some) > 1 for some in kinds.values())


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
            x, several = place(step), step.measured.count > 1 and len(rows) <= MANY_ROWS
            if not against_epsilon or 0 < x < math.inf:
                band = (step.measured.least, step.measured.most) if several else (None, None)
                line.append(Point(x, step.measured.mean, *band))
        end = epsilon_of(row) if against_epsilon else place(row.curve[-1])
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
    return Drawn(figure, tuple(enumerate(lines)), f"{plot['y_label']} against {plot['x_label']}")


def comparison_figures(report: Report, comparison: Comparison) -> list[Drawn]:
    """Accuracy against the tightest promised ε of every row that trains one model on one dataset.

    Hollow points stand at an ε that is only claimed.
    """
    levels = _levels([report.row(row_id) for row_id in comparison.baselines])
    series: list[Series] = []
    shown: list[Row] = []
    legend = []
    named = _with_neighbours([(name, [report.row(row_id) for row_id in ids]) for name, ids in comparison.series])
    for style, (name, of) in enumerate(named):
        rows = [row for row in of if row.promised and epsilon_of(row)]
        points = [_end(row, epsilon_of(row) or 0.0, _says(row))[0] for row in rows]
        claimed = [_claimed(row, line) for row in of if not row.promised for line in row.guarantees if _claims(line)]
        for text, some in ((name, points), (f"{name}: ε as claimed, not proven", claimed)):
            if some:
                some.sort(key=lambda point: point.x)
                series.append(Series(style, (), tuple(some), joined=True, says=text))
                legend.append((style, text))
        shown += rows
    if not series:
        return []
    sentence = _epsilon_sentence(comparison.metric, shown, levels)
    hollow = "; ".join(point.says for one in series for point in one.points if point.hollow)
    middle = (len(series) - 1) / 2
    beside = min(_BESIDE, _BESIDE * 6 / len(series))
    series = [replace(one, aside=beside * (place - middle)) for place, one in enumerate(series)]
    figure = Figure(
        id=f"{comparison.id}-epsilon",
        title=f"{comparison.dataset}, {comparison.model}: {comparison.metric.title} against ε of every mechanism",
        description=sentence + f" Hollow: {hollow}." * bool(hollow),
        x_label=epsilon_label(shown),
        y_label=comparison.metric.label,
        series=tuple(series),
        levels=levels,
        logarithmic=True,
        width=460,
        height=300,
        room=0.15,
    )
    return [Drawn(figure, tuple(legend))]


def epsilon_of(row: Row) -> float | None:
    """The ε that figures show, where a logarithmic axis can."""
    value = row.shown.epsilon if row.shown else None
    return value if value is not None and 0 < value < math.inf else None


def _claims(line: GuaranteeLine) -> bool:
    return line.kind == "claimed" and line.epsilon is not None and 0 < line.epsilon < math.inf


def _claimed(row: Row, line: GuaranteeLine) -> Point:
    """Where a row ended, at an ε that is only claimed."""
    epsilon = line.epsilon or 0.0
    return replace(_end(row, epsilon, f"{row.full_title}: {row.reached} at ε = {epsilon:g} (claimed)")[0], hollow=True)


def _says(row: Row) -> str:
    """A row in words: what it reached, and at which ε by whom."""
    line = row.shown
    at = "" if line is None else f" at ε = {bound(line.epsilon, line.kind)} ({by(line)})"
    return f"{row.full_title}: {row.reached}{at}"


def _end(row: Row, x: float, says: str = "") -> tuple[Point, ...]:
    """The last epoch with its interval, then the printed value where the two may be compared."""
    says = says or f"{row.title}: {row.reached} at {x:.4g}"
    ours = Point(x, row.measured.mean, row.measured.low, row.measured.high, says=says)
    printed = row.printed
    if row.barred or printed is None:
        return (ours,)
    unit = " ".join(filter(None, [printed.text, row.metric.unit]))
    return (ours, Point(x, printed.value, hollow=True, says=f"{row.title}: printed {unit}"))


def _levels(baselines: Sequence[Row]) -> tuple[Level, ...]:
    """The best two baselines; more lines would only fill the figure."""
    best = sorted(baselines, key=lambda row: row.metric.first(row.measured.mean))[:2]
    return tuple(
        (*(one.mean, one.least, one.most), f"not private: {row.metric.text(one.mean)}")
        for row in best
        for one in [row.measured]
    )


def _neighbours(row: Row) -> str | None:
    return row.shown.adjacency or "add_or_remove" if row.shown else None


def _with_neighbours(named: Sequence[tuple[str, list[Row]]]) -> list[tuple[str, list[Row]]]:
    """The names of lines, with what neighbours are where the ε of a figure are of several kinds."""
    kinds = [{_neighbours(row) for row in rows} - {None} for _, rows in named]
    several = len(set[str | None]().union(*kinds)) > 1
    said = ["/".join(sorted(str(one).replace("_", " ") for one in some)) for some in kinds]
    return [
        (f"{name} ({says})" if several and says else name, rows) for (name, rows), says in zip(named, said, strict=True)
    ]


def epsilon_label(rows: Sequence[Row]) -> str:
    """The axis of ε: at which δ and by which accountants; of which neighbours, if they are the same for all rows."""
    lines = [row.shown for row in rows if row.shown]
    if not lines:
        return "ε, as claimed"
    if len({_neighbours(row) for row in rows if row.shown}) > 1:
        lines = [replace(line, adjacency=None) for line in lines]
    deltas = dict.fromkeys(line.delta for line in lines)
    at = f" at δ = {number(next(iter(deltas)))}" if len(deltas) == 1 and None not in deltas else ""
    return f"ε{at} ({', '.join(dict.fromkeys(map(by, lines)))})"


def _epsilon_sentence(metric: Metric, rows: Sequence[Row], levels: Sequence[Level]) -> str:
    said = "; ".join([*map(_says, rows), *(text for *_, text in levels)])
    return f"Test {metric.title} against ε.{f' {said}.' if said else ''}"
