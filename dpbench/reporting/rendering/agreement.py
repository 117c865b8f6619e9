"""The figures beside a paper's tables and figures: printed against measured results, or what its claims computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpbench.reporting.contents import CoverageLine, Report, Row
from dpbench.reporting.coverage import verdicts_on_results
from dpbench.reporting.rendering.figures import Figure, Point, Series
from dpbench.reporting.rendering.plots import Drawn
from dpbench.reporting.rendering.surfaces import DrawnContour, claim_figures
from dpbench.store.speed import Speed

_DIAGONAL = 5  # the style of the line on which the two are the same


def coverage_figures(report: Report) -> dict[str, list[Drawn | DrawnContour]]:
    """The figures by the id of their line; none where nothing printed was compared and no claim has one."""
    judged = {record.id: record for record in report.claims.verdicts} if report.claims is not None else {}
    found: dict[str, list[Drawn | DrawnContour]] = {}
    for line in report.coverage:
        plotted = [judged[name] for name in line.pictures if name in judged and judged[name].plot is not None]
        figures: list[Drawn | DrawnContour] = [one for record in plotted for one in claim_figures(record)]
        figures += filter(None, (*_results(report, line), _times(report, line)))
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


def _pairs(row: Row) -> Iterator[tuple[str, _Pair]]:
    """What is printed of a row beside ours: its result, the epochs that reach a value, and other metrics."""
    verdicts = verdicts_on_results(row)
    result = [one for one in verdicts if one not in row.other_verdicts][:1]
    for verdict in (*result, *row.other_verdicts):
        evidence, other = verdict.evidence, verdict.check.removeprefix("printed_").replace("_", " ")
        ours = evidence.get("mean", evidence.get("deviation"))
        if ours is None:
            continue
        words = f"{row.title}: {verdict.reason} ({verdict.verdict.replace('_', ' ')})"
        of = row.metric.label if "mean" in evidence else "Standard deviation of the test accuracy, %"
        what = "results"
        if verdict not in result:
            what = "epochs" if other.startswith("epochs") else other
            of = what.capitalize()
        yield what, _Pair(float(evidence["printed"]), ours, evidence.get("low"), evidence.get("high"), words, of)
    if not verdicts and (pair := _sharpness(row)) is not None:
        yield "results", pair


def _sharpness(row: Row) -> _Pair | None:
    """The sharpness that a source prints, which gets no verdict."""
    printed = row.context.published.sharpness if row.context.published else None
    found = next((one.value for one in row.metrics if one.name.startswith("sharpness") and one.value), None)
    if printed is None or found is None:
        return None
    words = f"{row.title}: ours at least {found.mean:.4g}, printed {printed.text}, without a verdict"
    return _Pair(printed.value, found.mean, None, None, words, "Sharpness")  # bars are prediction intervals


def _results(report: Report, line: CoverageLine) -> Iterator[Drawn | None]:
    """The results of what was trained, by the names of their specs; a figure for each kind of number."""
    found: dict[str, dict[str, list[_Pair]]] = {}
    for row in map(report.row, line.rows):
        for what, pair in _pairs(row):
            found.setdefault(what, {}).setdefault(row.context.name, []).append(pair)
    for what, pairs in found.items():
        yield _figure(line, what, pairs, "bar: 95 % prediction interval, where there are two seeds or more")


def _times(report: Report, line: CoverageLine) -> Drawn | None:
    """Seconds of an epoch by `dpbench bench --steps`, by machine."""
    found: dict[str, list[_Pair]] = {}
    speed = report.speed or Speed()
    for machine, steps in speed.tables():
        for one in steps:
            ours, printed = one.epoch_seconds, one.printed_seconds
            if one.name not in line.names or ours is None or not printed:
                continue
            said = f"{one.label}: {ours:.3g} s, printed {printed} s"
            plain, ratio = speed.baseline_of(one), speed.printed_ratio(one)
            if plain is not None and plain.epoch_seconds and ratio is not None and plain is not one:
                said += f"; {ours / plain.epoch_seconds:.3g} times that without privacy, printed {ratio:.3g}"
            pair = _Pair(float(printed), ours, None, None, said, "Seconds of an epoch")
            found.setdefault(machine, []).append(pair)
    note = "the printed times are of the machine of the paper, another one: no verdict follows"
    return _figure(line, "times", found, note, of_another_machine=True)


def _figure(
    line: CoverageLine, what: str, found: Mapping[str, Sequence[_Pair]], note: str, *, of_another_machine: bool = False
) -> Drawn | None:
    """The pairs, by the name of their series; None where there are none. Those of another machine are times."""
    pairs = [pair for several in found.values() for pair in several]
    if not pairs:
        return None
    places = [place for one in pairs for place in (one.printed, one.ours)]
    margin = max(0.06 * (max(places) - min(places)), 0.2 if max(places) > 1 else 0.02)
    same = [min(places) - margin, max(places) + margin]
    if of_another_machine:  # which may be far from here, so the line is as long as the points are wide
        same = [min(one.printed for one in pairs) / 1.5, max(one.printed for one in pairs) * 1.5]
    series = [Series(_DIAGONAL, tuple(Point(x, x) for x in same), says="printed = measured")]
    for style, (name, several) in enumerate(found.items()):
        points = tuple(Point(one.printed, one.ours, one.least, one.most, says=one.said) for one in several)
        series.append(Series(style, (), points, says=name))
    of = " or ".join(dict.fromkeys(one.of for one in pairs))
    against = f"printed against measured {what}"
    figure = Figure(
        id=f"{line.id}-{what.replace(' ', '-')}",
        title=f"{line.paper}, {line.item.place}: {against}",
        description=f"{against.capitalize()} of {line.paper}, {line.item.place}: {'; '.join(x.said for x in pairs)}.",
        x_label=f"{of}, printed{', on another machine' if of_another_machine else ''}",
        y_label="Measured",
        series=tuple(series),
        whole=True,
        logarithmic=of_another_machine,
        steep=of_another_machine,
    )
    return Drawn(figure, tuple((one.style, one.says) for one in series), against, note)
