"""Which rows the report sets side by side: those without noise of the same task, and one figure for each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from dpbench.reporting.contents import Comparison, Row, Section
from dpbench.tasks import MetricName

Subject = tuple[str, str, MetricName]


def _subject(row: Row) -> Subject:
    return row.settings.dataset, row.settings.model, row.metric_name


def with_baselines(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Each section with the rows, of any section, that train the same model on the same data without noise."""
    linked = []
    for section in sections:
        subjects = {_subject(row) for row in section.rows if row.facts.private}
        linked.append(replace(section, baselines=_baselines(sections, subjects, section.shipped)))
    return tuple(linked)


def _baselines(sections: Sequence[Section], subjects: Collection[Subject], shipped: bool) -> tuple[str, ...]:
    """The rows without noise of these (dataset, model, metric), the best first: of the same origin, else the others."""
    found: dict[bool, list[Row]] = {True: [], False: []}
    for section in sections:
        found[section.shipped] += [row for row in section.rows if not row.facts.private and _subject(row) in subjects]
    rows = found[shipped] or found[not shipped]
    return tuple(row.id for row in sorted(rows, key=lambda row: row.metric.first(row.measured.mean)))


def comparisons(sections: Sequence[Section], *, every: bool = False) -> tuple[Comparison, ...]:
    """One for each (dataset, model, metric) trained with privacy: the reader's own first, the largest of them first.

    But for the first of all, where there is more than one spec to see, or with `every`.
    """
    groups: dict[tuple[bool, Subject], dict[tuple[str, str], list[Row]]] = {}
    seen = set()
    for section in sections:
        for row in section.rows:
            runs = section.shipped, frozenset(row.run_keys), row.context.delta
            if row.facts.private and runs not in seen:  # specs of two figures may train the same
                seen.add(runs)
                series = groups.setdefault((section.shipped, _subject(row)), {})
                series.setdefault((section.name, row.settings.mechanism), []).append(row)
    found: list[Comparison] = []
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), -sum(map(len, item[1].values()))))
    for (shipped, subject), series in ordered:
        baselines = _baselines(sections, {subject}, shipped)
        if found and len(series) == 1 and not baselines and not every:
            continue  # the figure of its own section says the same
        specs = Counter(name for name, _ in series)
        named = []
        labels = [(name, _common_label(rows)) for (name, _), rows in series.items()]
        for ((name, mechanism), rows), common in zip(series.items(), labels, strict=True):
            label = common[1] if labels.count(common) == 1 else ""
            apart = rows[0].full_title if len(rows) == 1 else f"{name} · {label}" if label else f"{name}: {mechanism}"
            named.append((name if specs[name] == 1 else apart, tuple(row.id for row in rows)))
        dataset, model, metric = subject
        number = len(found) + 1
        found.append(Comparison(f"comparison-{number}", dataset, model, tuple(named), baselines, shipped, metric))
    return tuple(found)


def _common_label(rows: Sequence[Row]) -> str:
    """What the labels of a grid's rows have in common, without the parts such as `epsilon=1` in which they differ."""
    first, *others = ([*row.label.split(", "), row.variant] for row in rows)
    return ", ".join(part for part in first if part and all(part in other for other in others))
