"""Filters of the templates: selections and words, no new numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from dpbench.privacy import formatting
from dpbench.reporting.contents import Comparison, GuaranteeLine, Report, Row, Section
from dpbench.store.check_records import worst
from dpbench.store.shapes import Checked
from dpbench.tasks import Metric


def distinct(rows: Iterable[Row], path: str) -> list[Any]:
    """The distinct values of a dotted attribute, in the order of the rows."""
    return list(dict.fromkeys(reduce(getattr, path.split("."), row) for row in rows))


def kinds(section: Section, accountant: str) -> str:
    """The kinds of an accountant's answers in one section, as words."""
    lines = [row.guarantee(accountant) for row in section.rows]
    found = dict.fromkeys(line.said for line in lines if line is not None and line.said)
    return ", ".join(found) or ("withheld" if any(row.withheld for row in section.rows) else "refuses")


def printed_only(section: Section) -> list[str]:
    """Accountants whose ε is printed by the source and who gave no answer here."""
    names = [name for row in section.rows if row.context.published for name in row.context.published.epsilon]
    return [name for name in dict.fromkeys(names) if name not in section.accountants]


def mu_line(row: Row) -> GuaranteeLine | None:
    """The first guarantee that has a μ."""
    return next((line for line in row.guarantees if line.mu is not None), None)


def by(line: GuaranteeLine) -> str:
    """The kind of an answer and whose it is: `upper bound by rdp`; `exact` alone for the accountant of that name.

    Neighbours other than those of an added or removed record are named: ε of the two kinds are different promises.
    """
    words = line.said or "" if line.accountant == line.kind else f"{line.said} by {line.accountant}"
    usual = line.adjacency in (None, "add_or_remove")
    return words if usual else f"{words}, {str(line.adjacency).replace('_', ' ')}"


def no_promise(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Why rows have no promised ε, and the rows of each reason."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.no_promise is not None:
            found.setdefault(row.no_promise, []).append(row)
    return list(found.items())


def rows_named(row_ids: Iterable[str], report: Report) -> list[Row]:
    """The rows of these ids."""
    return [report.row(row_id) for row_id in row_ids]


def rows_of(comparison: Comparison, report: Report) -> list[Row]:
    """The private rows of a comparison."""
    return rows_named((row_id for _, row_ids in comparison.series for row_id in row_ids), report)


def best(rows: Iterable[Row]) -> Row | None:
    """The row with the best metric among those that have a promised ε."""
    return min((row for row in rows if row.promised), key=lambda row: row.metric.first(row.measured.mean), default=None)


def close_to(rows: Iterable[Row], row: Row) -> int:
    """How many other rows have an interval (of one seed: a number) that overlaps with the row's."""

    def ends(one: Row) -> tuple[float, float]:
        low, high = one.measured.low, one.measured.high
        return (one.measured.mean,) * 2 if low is None or high is None else (low, high)

    low, high = ends(row)
    return sum(below <= high and above >= low for below, above in (ends(one) for one in rows if one.id != row.id))


def checks(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """The verdicts of the checks of mechanisms, and how many mechanisms have each; a mechanism counts at its worst."""
    found: dict[str, list[Checked | None]] = {}
    for row in rows:
        if row.checked is not None:
            found.setdefault(row.settings.mechanism, []).append(row.checked)
    return Counter[str](one.verdict for of_one in found.values() if (one := worst(of_one))).most_common()


def worst_check(rows: Iterable[Row]) -> Checked | None:
    """The worst verdict on the mechanisms of several rows."""
    return worst(row.checked for row in rows)


def metrics(rows: Iterable[Row]) -> list[Metric]:
    """The metrics of several rows, each once."""
    return list({row.metric_name: row.metric for row in rows}.values())


def short_mechanism(row: Row) -> str:
    """The mechanism without its parameters."""
    return row.settings.mechanism.partition(" (")[0]


def from_to(rows: Sequence[Row], what: str) -> str:
    """The lowest to the highest promised `epsilon`, or mean of the metric (`measured`), of rows with one metric."""
    if what == "measured":
        means = sorted(row.measured.mean for row in rows)
        texts = [formatting.percent(mean, rows[0].metric.decimals) for mean in means]
        texts = [rows[0].figures] if len(rows) == 1 else texts
    else:
        lines = sorted((row.promised for row in rows if row.promised), key=lambda line: line.safe)
        texts = [formatting.bound(line.epsilon, line.kind, 3) for line in lines]
    return " – ".join(dict.fromkeys([texts[0], texts[-1]])) if texts else formatting.MISSING


def examples(rows: Sequence[Row]) -> list[str]:
    """Training and test examples, as text."""
    found = [f"{formatting.number(row.facts.examples)} / {formatting.number(row.facts.test_examples)}" for row in rows]
    real = all(row.facts.dataset_real for row in rows)
    return [text if real else f"{text} (synthetic)" for text in dict.fromkeys(found)]


def models(rows: Sequence[Row]) -> list[str]:
    """Models with their number of parameters, as text."""
    found = [(row.settings.model, row.facts.parameters) for row in rows]
    return [f"{name}, {number} parameters" if number else name for name, number in dict.fromkeys(found)]


def without_noise(rows: Sequence[Row]) -> list[str]:
    """Rows whose mechanism left out the noise at times, each with the share of drawn records, in its first seed."""
    found = [(row.title, row.facts.without_noise) for row in rows if row.facts.without_noise is not None]
    return [f"{formatting.percent(100 * share)} % ({title})" for title, share in found]


def with_noise(rows: Sequence[Row]) -> list[str]:
    """Rows with a claimed ε because steps have no noise: the exact ε if every step had its noise."""
    found = [(row.title, line.with_noise) for row in rows for line in row.guarantees if line.with_noise is not None]
    return [f"{formatting.bound(epsilon, 'exact', 3)} ({title})" for title, epsilon in found]


def verdicts_on(rows: Sequence[Row]) -> list[str]:
    """The verdict on each mechanism with its reason, and whose it is where rows have different ones."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.checked is not None:
            found.setdefault(f"{row.checked.verdict}: {row.checked.reason}", []).append(row.title)
    return list(found) if len(found) == 1 else [f"{text} ({', '.join(titles)})" for text, titles in found.items()]


def weights(rows: Sequence[Row]) -> list[str]:
    """Where the parameters started, where not at random: file, what it was trained on, licence, what is frozen."""
    found = [row.context.weights for row in rows if row.context.weights]
    texts = (
        f"{one['file']}, trained on {one['pretrained_on']} (licence: {one['licence']};"
        f" frozen: {', '.join(one['frozen']) or 'nothing'}; SHA-256 {one['sha256'][:12]}); what these data give away"
        " is not in any ε here"
        for one in found
    )
    return list(dict.fromkeys(texts))


def refusals(section: Section) -> list[tuple[str, str]]:
    """(accountant, why) wherever an accountant gave no number, each once."""
    lines = [line for row in section.rows for line in row.guarantees if line.refused]
    return list(dict.fromkeys((line.accountant, str(line.refused)) for line in lines))


def words_or_none(name: str | None) -> str | None:
    """Words for a name from the data; None stays None, which the page shows as missing."""
    return None if name is None else formatting.words(name)


_NAMES = ("bound", "number", "percent", "signed", "duration", "words", "seeds", "off", "fact_words")
FILTERS = (
    *(
        distinct,
        kinds,
        printed_only,
        mu_line,
        by,
        no_promise,
        rows_named,
        rows_of,
        best,
        close_to,
        checks,
        worst_check,
        metrics,
        short_mechanism,
        from_to,
        examples,
        models,
        with_noise,
        without_noise,
        verdicts_on,
        weights,
        refusals,
        words_or_none,
    ),
    *(getattr(formatting, name) for name in _NAMES),
)
