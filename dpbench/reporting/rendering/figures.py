"""Figures of a report as inline SVG: drawn by matplotlib, then made to follow the page.

The page's style decides fonts and colours (light, dark, print): matplotlib draws in stand-in colours, which become the
style's variables. No `style` attribute, style sheet, script or link is left, so the page's content policy can forbid
them. Series differ in colour, marker and line, so that they can be distinguished without colour.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

SERIES = 8  # distinct styles; more series start again with another line
_MARKERS: Mapping[str, str] = {  # matplotlib's name, and the same shape as a path for legends
    "o": "M4 0A4 4 0 1 0-4 0A4 4 0 1 0 4 0Z",
    "s": "M-3.5-3.5H3.5V3.5H-3.5Z",
    "^": "M0-4.4 4.2 3.4H-4.2Z",
    "D": "M0-4.7 4.7 0 0 4.7-4.7 0Z",
    "v": "M0 4.4 4.2-3.4H-4.2Z",
    "P": "M-1.5-4.3H1.5V-1.5H4.3V1.5H1.5V4.3H-1.5V1.5H-4.3V-1.5H-1.5Z",
    "X": "M-4-2-2-4 0-2 2-4 4-2 2 0 4 2 2 4 0 2-2 4-4 2-2 0Z",
    "*": "M0-5 1.3-1.7 4.8-1.5 2.1.7 3 4.1 0 2.2-3 4.1-2.1.7-4.8-1.5-1.3-1.7Z",
}
_LINES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (5, 1.4, 1, 1.4), (1.2, 1.2))  # full, or dashes and gaps
_STAND_INS = tuple(f"#0{digit}f0f{digit}" for digit in range(SERIES))
_INK, _FAINT, _GRID, _PAPER = "#fa0001", "#fa0002", "#fa0003", "#fa0004"
_COLOURS = {
    **{colour: f"var(--s{number})" for number, colour in enumerate(_STAND_INS)},
    _INK: "var(--ink)",
    _FAINT: "var(--faint)",
    _GRID: "var(--grid)",
    _PAPER: "var(--paper)",
}
_RC: Any = {  # matplotlib's stubs want a literal type that older versions do not have
    "svg.fonttype": "none",
    "svg.hashsalt": "dpbench",
    "text.parse_math": False,
    "font.size": 11.0,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "text.color": _INK,
    "axes.unicode_minus": True,
}


@dataclass(frozen=True)
class Point:
    """One value with its interval, in the axes' units, and what is said of it where the pointer rests on it.

    `hollow`: printed by somebody else, not measured here.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    says: str = ""


@dataclass(frozen=True)
class Series:
    """One row or spec: a line (with a band where intervals are known) and points on top; `style` counts from 0.

    `says`: what the line is. `aside`: how far to the right its points are drawn of their place, in points of 1/72 inch,
    so that those of several series at one place do not hide each other.
    """

    style: int
    line: tuple[Point, ...] = ()
    points: tuple[Point, ...] = ()
    joined: bool = False
    says: str = ""
    aside: float = 0.0


@dataclass(frozen=True)
class Figure:
    """What to draw. `levels`: horizontal reference lines (y, low, high, text), the highest first."""

    id: str
    title: str
    description: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    levels: tuple[tuple[float, float | None, float | None, str], ...] = ()
    logarithmic: bool = False
    width: float = 400.0
    height: float = 270.0
    whole: bool = False  # all of every line, instead of where a training ended; a wide range is drawn logarithmically
    steep: bool = False  # y is drawn logarithmically whatever its range, and x with round ticks
    room: float = 1.0  # how much of the way below the lowest final value is shown, times their range


def draw(figure: Figure) -> str:
    """The figure as an `<svg>` element. Its texts are escaped; its ids start with the figure's own id."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(_RC):
        canvas = Canvas(figsize=(figure.width / 72, figure.height / 72))
        axes = canvas.add_subplot()
        # Margins in points: a layout engine would take longer than the drawing.
        width, height = figure.width, figure.height
        canvas.subplots_adjust(left=58 / width, right=1 - 8 / width, bottom=42 / height, top=1 - 8 / height)
        hover = _Hover()
        for place, (level, low, high, text) in enumerate(figure.levels):
            _draw_level(axes, level, low, high, text, below=place > 0)
        for series in figure.series:
            _draw_series(axes, series, hover)
        axes.locator_params(nbins=7)  # ticks take most of the time
        axes.set_xlabel(figure.x_label)
        axes.set_ylabel(figure.y_label)
        _limits(axes, figure)
        file = io.StringIO()
        canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline_svg(file.getvalue(), figure.id, figure.title, figure.description, hover.texts)


def swatch(style: int) -> Mapping[str, str]:
    """How a series looks in a legend: its colour's variable, a path for its marker and a dash pattern."""
    number, marker, dashes = _look(style)
    text = " ".join(f"{1.5 * part:g}" for part in dashes)
    return {"colour": f"var(--s{number})", "marker": _MARKERS[marker], "dashes": text}


def _look(style: int) -> tuple[int, str, tuple[float, ...]]:
    """Number of the colour, marker and dashes of a series; colours that come again have another marker and line."""
    again = style // SERIES + style
    return style % SERIES, [*_MARKERS][again % SERIES], _LINES[again % len(_LINES)]


class _Hover:
    """The texts that a browser shows where the pointer rests, by the id of what they belong to."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def __call__(self, text: str) -> str | None:
        """The id for an artist that says this; None for no text."""
        if not text:
            return None
        name = f"said-{len(self.texts)}"
        self.texts[name] = text
        return name


def _draw_level(axes: Any, level: float, low: float | None, high: float | None, text: str, *, below: bool) -> None:
    if low is not None and high is not None:
        axes.axhspan(low, high, color=_FAINT, alpha=0.15, linewidth=0)
    axes.axhline(level, color=_FAINT, linestyle=(0, (4, 2)), linewidth=1.1)
    if text:
        axes.annotate(
            text,
            (0.015, level),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3 if below else 3),
            textcoords="offset points",
            ha="left",
            va="top" if below else "bottom",
            fontsize=10,
        )


def _draw_series(axes: Any, series: Series, hover: _Hover) -> None:
    number, marker, dashes = _look(series.style)
    colour = _STAND_INS[number]
    line: Any = {"color": colour, "linestyle": (0, dashes) if dashes else "-", "linewidth": 1.3}
    if series.line:
        xs, ys = [point.x for point in series.line], [point.y for point in series.line]
        axes.plot(xs, ys, **line, alpha=0.85, gid=hover(series.says))
        band = [point for point in series.line if point.low is not None]
        if len(band) > 1:
            lows, highs = [point.low for point in band], [point.high for point in band]
            axes.fill_between([point.x for point in band], lows, highs, color=colour, alpha=0.14, linewidth=0)
    solid = [point for point in series.points if not point.hollow]
    if series.aside:
        from matplotlib.transforms import ScaledTranslation

        line |= {"transform": axes.transData + ScaledTranslation(series.aside / 72, 0, axes.figure.dpi_scale_trans)}
    beside = {name: line[name] for name in ("transform",) if name in line}
    if series.joined and len(solid) > 1:
        axes.plot([p.x for p in solid], [p.y for p in solid], **line, gid=hover(series.says))
    whiskers = [(p.x, p.low, p.high) for p in solid if p.low is not None and p.high is not None]
    if whiskers:  # one line with gaps: drawing takes its time by the number of lines
        xs = [place for x, _, _ in whiskers for place in (x, x, x)]
        ys = [height for _, low, high in whiskers for height in (low, high, math.nan)]
        axes.plot(xs, ys, "_-", color=colour, linewidth=1.6, markersize=6, zorder=4, **beside)
    for point in series.points:
        name = hover(point.says)
        if point.hollow:
            hollow = {"markersize": 8, "markerfacecolor": "none", "markeredgecolor": colour, "zorder": 4}
            axes.plot([point.x], [point.y], "D", gid=name, **hollow, **beside)
            continue
        size = 9.5 if marker == "*" else 6.5  # a star is mostly air
        style = {"markersize": size, "markeredgecolor": _PAPER, "markeredgewidth": 0.7}
        axes.plot([point.x], [point.y], marker, color=colour, zorder=5, gid=name, **style, **beside)


def _limits(axes: Any, figure: Figure) -> None:
    """Show where training ended, not where it began: the first steps may leave the picture at the bottom only.

    Whiskers are shown whole, unless they are over three times as long as the values are apart: those of two or three
    seeds would press everything else together.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    if figure.whole and not figure.logarithmic:
        return
    ends = [p for series in figure.series for p in (series.points or series.line[-1:])]
    values = [p.y for p in ends]
    shown = max(max(values) - min(values), 2.0) if values else 0.0
    for p in ends:
        if p.low is not None and p.high is not None:
            values += [max(p.low, p.y - 3 * shown), min(p.high, p.y + 3 * shown)]
    values += [level[0] for level in figure.levels]
    heights = [p.y for p in ends]
    if figure.whole:
        if heights and min(heights) > 0 and (figure.steep or 100 * min(heights) < max(heights)):
            axes.set_yscale("log", nonpositive="clip")
            axes.set_ylim(min(heights) / 3, max(heights) * 3)
            axes.figure.subplots_adjust(left=62 / figure.width)  # numbers such as 0.001 are wide
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    elif values:
        low, high = min(values), max([*values, *(p.y for series in figure.series for p in series.line)])
        span = max(high - low, 1.0)
        bottom = low - figure.room * max(span, 4.0) - 0.3
        axes.set_ylim(max(-2.0, bottom), min(high + 0.12 * span, 101.5))
    xs = [p.x for p in ends if p.x > 0]
    if figure.logarithmic and xs:
        axes.set_xscale("log")
        axes.set_xlim(min(xs) / 2.2, max(max(xs) * 1.25, min(xs) * 2.5))  # two ticks at least, also for a single ε
        few = max(xs) / min(xs) < 300
        own = sorted({float(f"{x:.2g}") for x in xs})  # places on the axis; the values stand in the table
        apart = len(own) <= 8 and all(b / a > 1.25 for a, b in itertools.pairwise(own))  # the numbers do not overlap
        ticks = (
            FixedLocator(own) if apart and not figure.steep else LogLocator(10, subs=(1.0, 2.0, 5.0) if few else (1.0,))
        )
        axes.xaxis.set_major_locator(ticks)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif xs:
        axes.set_xlim(0, max(xs) * 1.06)


# From matplotlib's file to an element of the page.

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_KEPT = {
    *("fill", "fill-opacity", "fill-rule", "font-size", "opacity", "stroke", "stroke-dasharray", "stroke-dashoffset"),
    *("stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "stroke-opacity", "stroke-width", "text-anchor"),
}
_URL = re.compile(r"url\(#([^)]+)\)")


def inline_svg(text: str, prefix: str, title: str, description: str, hover: Mapping[str, str]) -> str:
    """A whole SVG file as an element for a page: named for screen readers, without styles, links and foreign ids.

    `hover`: titles of elements, by their ids in the file.
    """
    root = ElementTree.fromstring(text)
    plain = _plain(root, prefix)
    assert plain is not None
    for said in [element for element in plain.iter("g") if element.get("id")]:
        if words := hover.get(said.attrib["id"].removeprefix(f"{prefix}-")):
            element = ElementTree.Element("title")
            element.text = words
            said.insert(0, element)
    for name in ("width", "height", "version"):
        plain.attrib.pop(name, None)
    plain.attrib |= {"role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc", "stroke-linejoin": "round"}
    for name, content in (("desc", description), ("title", title)):
        element = ElementTree.Element(name, {"id": f"{prefix}-{name}"})
        element.text = content
        plain.insert(0, element)
    return ElementTree.tostring(plain, encoding="unicode", short_empty_elements=True)


def _plain(element: ElementTree.Element, prefix: str) -> ElementTree.Element | None:
    tag = element.tag.removeprefix(_SVG)
    if tag in ("metadata", "style", "script", "a", "image", "foreignObject"):
        return None
    copy = ElementTree.Element(tag, dict(_attributes(element, prefix)))
    copy.text = element.text if tag in ("text", "tspan") else None
    for child in element:
        kept = _plain(child, prefix)
        if kept is not None:
            copy.append(kept)
    if tag == "defs" and not len(copy):
        return None
    return copy


def _attributes(element: ElementTree.Element, prefix: str) -> Iterable[tuple[str, str]]:
    for name, value in element.attrib.items():
        name = name.removeprefix(_XLINK)
        if name == "style":
            yield from _from_style(value, prefix)
        elif name == "id":
            yield name, f"{prefix}-{value}"
        elif name == "href":
            yield name, f"#{prefix}-{value.removeprefix('#')}"
        elif not name.startswith("{"):
            yield name, _mapped(value, prefix)


def _from_style(style: str, prefix: str) -> Iterable[tuple[str, str]]:
    for part in style.split(";"):
        name, _, value = part.partition(":")
        name, value = name.strip(), value.strip()
        if name == "font":  # the shorthand of older versions of matplotlib; the page chooses the family
            size = re.search(r"([\d.]+)px", value)
            if size:
                yield "font-size", size[1]
        elif name in _KEPT:
            yield name, _mapped(value.removesuffix("px"), prefix)


def _mapped(value: str, prefix: str) -> str:
    return _COLOURS.get(value.lower(), _URL.sub(rf"url(#{prefix}-\1)", value))
