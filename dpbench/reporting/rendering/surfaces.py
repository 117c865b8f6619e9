"""What metrics measured: a contour for a surface of two directions, a line for one, and values against ε."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpbench.judging.claims.record import VerdictRecord
from dpbench.judging.reproduction import Spread
from dpbench.privacy.formatting import bound, words
from dpbench.reporting.contents import MetricLine, Report, Row, Section
from dpbench.reporting.rendering.figures import _FAINT, _INK, _RC, _STAND_INS, Figure, Point, Series, inline_svg
from dpbench.reporting.rendering.plots import Drawn, claim_figure, epsilon_label, epsilon_of
from dpbench.reporting.rendering.view import by
from dpbench.tasks import METRICS

MOST_CONTOURS = 6  # of a spec; the other surfaces are in its records
LEVELS = 9


@dataclass(frozen=True)
class Contour:
    """A surface to draw: the loss at every place of `x` and `y`, None where it is not finite, and dots on it."""

    id: str
    title: str
    description: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    losses: tuple[tuple[float | None, ...], ...]
    x_label: str = "α"
    y_label: str = "β"
    dots: tuple[tuple[float, float], ...] = ()
    marked: tuple[tuple[float, float], ...] = ((0.0, 0.0),)


@dataclass(frozen=True)
class DrawnContour:
    """A contour; its title says whose it is, so legend and caption are empty."""

    figure: Contour
    legend: tuple[tuple[int, str], ...] = ()
    caption: str = ""
    note: str = ""


def surface_figures(report: Report) -> dict[str, list[Drawn | DrawnContour]]:
    """Those of every section, by `metrics-<section>`: values against ε, all lines, then a contour for each row."""
    found: dict[str, list[Drawn | DrawnContour]] = {}
    for section in report.sections:
        figures: list[Drawn | DrawnContour] = []
        figures += _values(section)
        figures += _along(section)
        figures += _lines(section)
        figures += _contours(section)
        if figures:
            found[f"metrics-{section.id}"] = figures
    return found


def claim_figures(record: VerdictRecord) -> Sequence[Drawn | DrawnContour]:
    """What a claim's evidence holds to be drawn: a curve, or a contour with dots for each of the plot's `planes`."""
    plot = record.plot or {}
    if "planes" not in plot:
        return [claim_figure(record)]
    found = []
    for number, (name, plane) in enumerate(plot["planes"].items(), 1):
        contour = Contour(
            id=f"figure-{re.sub(r'[^a-z0-9]+', '-', record.id)}-{number}",
            title=f"{record.id}: {name}",
            description=record.reason,
            x=tuple(plane["x"]),
            y=tuple(plane["y"]),
            losses=tuple(map(tuple, plane["heights"])),
            x_label=plot["x_label"],
            y_label=plot["y_label"],
            dots=tuple((x, y) for x, y in plane["dots"]),
            marked=tuple((x, y) for x, y in plane["marked"]),
        )
        found.append(DrawnContour(contour, caption=name))
    return found


def _surfaces(section: Section, deep: bool) -> list[tuple[int, Row, MetricLine, Mapping[str, Any]]]:
    return [
        (style, row, line, line.surface)
        for style, row in enumerate(section.rows)
        for line in row.metrics
        if line.surface is not None and isinstance(line.surface["losses"][0], list | tuple) == deep
    ]


def _values(section: Section) -> list[Drawn]:
    """Each metric's values against ε, of the rows that train one model on one dataset, where there are two ε.

    Where no ε is promised, as of a refuted mechanism, hollow points stand at the one that the spec asks for.
    """
    groups: dict[tuple[str, str, str], dict[str, list[tuple[float, Row, Spread]]]] = {}
    for row in section.rows:
        for line in row.metrics:
            epsilon = epsilon_of(row) if row.promised else row.context.target_epsilon
            if line.value is not None and epsilon is not None:
                subject = line.name, row.settings.dataset, row.settings.model
                name = row.settings.mechanism + ("" if row.promised else ": ε as claimed, not proven")
                groups.setdefault(subject, {}).setdefault(name, []).append((epsilon, row, line.value))
    found = []
    for number, ((metric, dataset, model), by_name) in enumerate(groups.items(), 1):
        if len({epsilon for points in by_name.values() for epsilon, _, _ in points}) < 2:
            continue
        series = [
            Series(style, (), tuple(_valued(*point) for point in sorted(points, key=_first)), joined=True, says=name)
            for style, (name, points) in enumerate(by_name.items())
        ]
        title = f"{dataset}, {model}: {words(metric)} against ε"
        figure = Figure(
            id=f"metrics-{section.id}-epsilon-{number}",
            title=title,
            description=f"{title}. {'; '.join(point.says for one in series for point in one.points)}.",
            x_label=epsilon_label([row for points in by_name.values() for _, row, _ in points]),
            y_label=words(metric).partition(" (")[0].capitalize(),
            series=tuple(series),
            logarithmic=True,
            whole=True,
        )
        found.append(Drawn(figure, tuple(enumerate(by_name))))
    return found


def _along(section: Section) -> list[Drawn]:
    """Each metric along the training, a line for each row."""
    found = []
    for number, name in enumerate(dict.fromkeys(line.name for row in section.rows for line in row.metrics), 1):
        drawn = [(row, line) for row in section.rows for line in row.metrics if line.name == name and line.along]
        series = [
            Series(
                style, tuple(Point(epoch, one.mean, one.least, one.most) for epoch, one in line.along), says=row.title
            )
            for style, (row, line) in enumerate(drawn)
        ]
        if series:
            title = f"{section.name}: {words(name)} along the training"
            ends = "; ".join(f"{row.title}: {line.along[-1][1].mean:.4g} at the end" for row, line in drawn)
            figure = Figure(
                id=f"metrics-{section.id}-along-{number}",
                title=title,
                description=f"{title}; bands from the lowest to the highest seed. {ends}.",
                x_label="Epoch",
                y_label=words(name).partition(" (")[0].capitalize(),
                series=tuple(series),
                whole=True,
            )
            found.append(Drawn(figure, tuple((style, row.title) for style, (row, _) in enumerate(drawn))))
    return found


def _first(point: tuple[float, Row, Spread]) -> float:
    return point[0]


def _valued(epsilon: float, row: Row, value: Spread) -> Point:
    line = row.promised
    at = f"ε = {epsilon:g} (claimed)" if line is None else f"ε = {bound(line.epsilon, line.kind)} ({by(line)})"
    text = f"{row.full_title}: {value.mean:.4g} at {at}"
    return Point(epsilon, value.mean, value.low, value.high, hollow=line is None, says=text)


def _lines(section: Section) -> list[Drawn]:
    """The loss along one direction, and the metric there, of each split."""
    lines = _surfaces(section, deep=False)
    kinds = [
        (split, *kind)
        for split in dict.fromkeys(_split(surface) for *_, surface in lines)
        for kind in [("losses", ""), *(("metric", name) for name in METRICS)]
    ]
    found: list[Drawn] = []
    for split, of, name in kinds:
        some = [one for one in lines if _split(one[3]) == split and (not name or one[3].get("metric_name") == name)]
        if not some:
            continue
        series: list[Series] = []
        legend = []
        for _, row, line, surface in some:
            text = f"{row.title}, seed {line.surface_seed}"
            earlier = [(f"{text}, step {step}", one) for step, one in line.surfaces_along if of in one]
            for says, one in [*earlier, (text, surface)]:
                style = len(series)
                pairs = zip(one["axis"], one[of], strict=True)
                series.append(Series(style, tuple(Point(x, y) for x, y in pairs if y is not None), says=says))
                legend.append((style, says))
        said = "; ".join(_said(row, line, surface, of) for _, row, line, surface in some)
        what = f"{split} {METRICS[name].title if name else 'loss'}"
        noun = what[:1].upper() + what[1:]
        figure = Figure(
            id=f"metrics-{section.id}-line-{len(found) + 1}",
            title=f"{section.name}: {what} along one direction",
            description=f"{noun} along one filter-normalised direction. {said}.",
            x_label="α",
            y_label=", ".join(filter(None, [noun, METRICS[name].unit if name else ""])),
            series=tuple(series),
            whole=True,
        )
        found.append(Drawn(figure, tuple(legend)))
    return found


def _split(surface: Mapping[str, Any]) -> str:
    return str(surface.get("split", "training"))


def _contours(section: Section) -> list[DrawnContour]:
    found = []
    for number, (_, row, line, surface) in enumerate(_surfaces(section, deep=True)[:MOST_CONTOURS], 1):
        contour = Contour(
            id=f"metrics-{section.id}-contour-{number}",
            title=f"{row.full_title}: {words(line.name)}, seed {line.surface_seed}",
            description=f"Contours of the {_split(surface)} loss along two directions. {_said(row, line, surface)}.",
            x=tuple(surface["axis"]),
            y=tuple(surface["axis"]),
            losses=tuple(tuple(line) for line in surface["losses"]),
        )
        found.append(DrawnContour(contour))
    return found


def _said(row: Row, line: MetricLine, surface: Mapping[str, Any], of: str = "losses") -> str:
    losses = surface[of]
    flat = [x for part in losses for x in (part if isinstance(part, list | tuple) else (part,)) if x is not None]
    middle = losses[len(losses) // 2]
    at = middle[len(losses) // 2] if isinstance(middle, list | tuple) else middle
    centre = "not finite" if at is None else f"{at:.4g}"
    end = f"from {min(flat):.4g} to {max(flat):.4g}" if flat else "not finite"
    return f"{row.title}, seed {line.surface_seed}: {centre} at the trained parameters, {end} around"


def draw_contour(contour: Contour) -> str:
    """The contour as an `<svg>` element, as `figures.draw` makes one."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure as Canvas

    losses = np.array([[np.nan if loss is None else loss for loss in line] for line in contour.losses])
    with mpl.rc_context(_RC):
        width, height = 330.0, 300.0
        canvas = Canvas(figsize=(width / 72, height / 72))
        axes = canvas.add_subplot()
        canvas.subplots_adjust(left=60 / width, right=1 - 14 / width, bottom=42 / height, top=1 - 8 / height)
        known = losses[np.isfinite(losses)]
        if known.size and known.min() < known.max():
            low, high = float(known.min()), float(known.max())
            # Closer where the loss is low: the levels of a bowl lie at equal distances then.
            levels = [low + (high - low) * ((step + 0.5) / LEVELS) ** 2 for step in range(LEVELS)]
            lines = axes.contour(contour.x, contour.y, losses.T, levels=levels, colors=_STAND_INS[0], linewidths=1.1)
            axes.clabel(lines, fontsize=8, fmt="%.3g", colors=_INK)
        if contour.marked:
            axes.plot(*zip(*contour.marked, strict=True), "+", color=_FAINT, markersize=9)
        if contour.dots:
            axes.plot(*zip(*contour.dots, strict=True), "o", color=_STAND_INS[1], markersize=3.2, alpha=0.8)
        axes.set_xlabel(contour.x_label)
        axes.set_ylabel(contour.y_label)
        file = io.StringIO()
        canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline_svg(file.getvalue(), contour.id, contour.title, contour.description, {})
