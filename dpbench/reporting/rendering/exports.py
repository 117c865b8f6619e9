"""A report as CSV (one line per row, one per record, unrounded) and as LaTeX tables (booktabs, one per spec)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpbench.privacy.formatting import bound, number, words
from dpbench.reporting.contents import GuaranteeLine, Report, Row, Section
from dpbench.reporting.rendering.view import metrics, weights
from dpbench.spec.keys import Printed, Published
from dpbench.tasks import METRICS, Metric

_SIGNS = {"ε": "varepsilon", "δ": "delta", "μ": "mu", "σ": "sigma", "±": "pm", "∞": "infty", "≤": "leq", "≥": "geq"}
_NAMES = {"\\": "backslash", "^": "asciicircum", "~": "asciitilde", "<": "less", ">": "greater", "|": "bar"}
_LATEX = {
    **{sign: f"$\\{name}$" for sign, name in _SIGNS.items()},
    **{sign: f"\\text{name}{{}}" for sign, name in {**_NAMES, '"': "quotedbl"}.items()},
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{chr(code): " " for code in range(32)},
    "−": "$-$",
    "·": r"$\cdot$",
    "–": "--",
    "[": "{[}",  # at the start of a row it would be an argument of the \\\\ before
    "*": "{*}",
}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf")
_LATEX_PATTERN = re.compile("|".join(map(re.escape, _LATEX)))


def rows_csv(report: Report) -> str:
    """One line per configuration; per accountant its ε, kind, μ, what was printed and the verdict."""
    names = list(dict.fromkeys(name for row in report.rows() for name in _accountants(row)))
    metrics = [metric for metric in METRICS.values() if any(row.metric == metric for row in report.rows())]
    others = list(dict.fromkeys(one.check for row in report.rows() for one in row.other_verdicts))
    return _csv(
        [_row_cells(section, row, names, metrics, others) for section in report.sections for row in section.rows]
    )


def records_csv(report: Report) -> str:
    """One line per record."""
    names = [name for name in METRICS if any(record.metric_name == name for record in report.records)]
    lines = []
    for record in report.records:
        measured = {METRICS[name].key: record.measured if name == record.metric_name else None for name in names}
        cells = {**vars(record), **measured, "stale": " ".join(record.stale)}
        lines.append({name: cells[name] for name in cells if name not in ("measured", "metric_name", "row")})
    return _csv(lines)


def tables_latex(report: Report) -> str:
    """A file to \\input: one table per spec. Needs the packages booktabs and, for accented text, an UTF-8 engine."""
    head = (
        "% Written by dpbench. In the preamble: \\usepackage{booktabs} and \\usepackage[T1]{fontenc}\n"
        "% Metrics are measured: means over seeds at the last epoch with their 95 % confidence intervals.\n"
    )
    return head + "\n".join(_table(section) for section in report.sections if section.rows)


def latex(text: str) -> str:
    """Text in which nothing is a command any more.

    >>> latex("50% of A_1 & B")
    '50\\\\% of A\\\\_1 \\\\& B'
    """
    return _LATEX_PATTERN.sub(lambda found: _LATEX[found[0]], text)


def _accountants(row: Row) -> Iterable[str]:
    """The accountants that answered, then those whose number is only printed."""
    yield from (line.accountant for line in row.guarantees)
    if row.context.published:
        yield from row.context.published.epsilon


def _row_cells(
    section: Section, row: Row, names: Sequence[str], metrics: Sequence[Metric], others: Sequence[str]
) -> dict[str, Any]:
    context, published = row.context, row.context.published or Published()
    found, spread = row.metric_verdict, row.verdict("printed_accuracy_deviation")
    ends = row.verdict("printed_accuracy_range")
    evidence: Mapping[str, Any] = found.evidence if found else {}
    cells: dict[str, Any] = {
        "spec": section.name,
        "label": row.label,
        "variant": row.variant,
        "source": section.source,
        **vars(row.settings),
        "delta": context.delta,
        "target_epsilon": context.target_epsilon,
        **{name: " ".join(map(str, getattr(row, name))) for name in ("seeds", "failed_seeds", "stale_seeds")},
        "reduced": context.reduced,
        "checked": row.checked and row.checked.verdict,
        "checked_reason": row.checked and row.checked.reason,
        **{name: value for metric in metrics for name, value in _metric_cells(row, metric).items()},
        "accuracy_deviation_percent_printed": published.accuracy_deviation_percent,
        "accuracy_deviation_verdict": spread and spread.verdict,
        "accuracy_lowest_percent_printed": published.accuracy_lowest_percent,
        "accuracy_highest_percent_printed": published.accuracy_highest_percent,
        "accuracy_range_verdict": ends and ends.verdict,
        "printed_averaged_over": published.averaged_over,
        "prediction_low_95": evidence.get("low"),
        "prediction_high_95": evidence.get("high"),
        **{f"{metric.name}_verdict": found and found.verdict if row.metric == metric else None for metric in metrics},
        **{
            f"{metric.name}_verdict_reason": found and found.reason if row.metric == metric else None
            for metric in metrics
        },
        "seconds_mean_measured": row.seconds.mean,
        "seconds_per_epoch_measured": row.seconds_per_epoch,
        "seconds_per_epoch_printed": published.seconds_per_epoch,
        "memory_percent_printed": published.memory_percent,
        "stated_epsilon_printed": published.stated_epsilon,
    }
    for check in others:
        other, name = row.verdict(check), check.removeprefix("printed_")
        cells |= {
            f"{name}_mean": other and other.evidence.get("mean"),
            f"{name}_printed": other and other.evidence["printed"],
            f"{name}_verdict": other and other.verdict,
        }
    for name in names:
        line, verdict = row.guarantee(name), row.verdict("printed_epsilon", name)
        cells |= {
            f"epsilon_{name}": line and line.epsilon,
            f"epsilon_{name}_kind": _kind(line),
            f"epsilon_{name}_lower": line and line.lower,
            f"epsilon_{name}_upper": line and line.upper,
            f"epsilon_{name}_refused": line and line.refused,
            f"mu_{name}": line and line.mu,
            f"mu_{name}_kind": _kind(line) if line and line.mu is not None else None,
            f"epsilon_{name}_printed": published.epsilon.get(name),
            f"epsilon_{name}_verdict": verdict and verdict.verdict,
        }
    shown = ("private", "privacy_unit", "adjacency", "sampler", "normalisation", "generator", "dataset_real")
    return cells | {name: getattr(row.facts, name) for name in shown} | {"tuned": context.tuned}


def _metric_cells(row: Row, metric: Metric) -> dict[str, Any]:
    """What was measured by a metric and what is printed for it, in its unit; empty for a row of another metric."""
    ours = row.measured if row.metric == metric else None
    return {
        f"{metric.column}_mean_measured": ours and ours.mean,
        f"{metric.column}_deviation": ours and ours.deviation,
        f"{metric.column}_low_95": ours and ours.low,
        f"{metric.column}_high_95": ours and ours.high,
        f"{metric.column}_printed": row.printed if ours else None,
    }


def _kind(line: GuaranteeLine | None) -> str | None:
    """The kind of a number as it stands beside it."""
    if line is None or line.kind is None:
        return None
    return f"{line.kind} (unchecked)" if line.unchecked else line.kind


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    if lines:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in line.items()} for line in lines)
    return file.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Printed):
        value = value.text
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return harmless(value) if isinstance(value, str) else "" if value is None else value


def harmless(text: str) -> str:
    """A cell of a CSV file that no spreadsheet takes for a formula: an apostrophe stands before what begins as one.

    Numbers stay as they are. A carriage return, which would end the line, becomes a line feed, which is quoted.

    >>> harmless("=1+1"), harmless("-0.5"), harmless("row 1")
    ("'=1+1", '-0.5', 'row 1')
    """
    formula = text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)
    return "'" * formula + text.replace("\r", "\n")


def _table(section: Section) -> str:
    names = list(dict.fromkeys(name for row in section.rows for name in _accountants(row)))
    has_mu = any(line.mu is not None for row in section.rows for line in row.guarantees)
    has_printed, measured = any(row.printed for row in section.rows), metrics(section.rows)
    titles = [f"{metric.noun} ({metric.unit})" if metric.unit else metric.noun for metric in measured]
    head = [("Configuration", ""), ("Seeds", ""), (" or ".join(titles), "measured")]
    head += [("Verdict", "")] if has_printed else []
    for name in names:
        kinds = dict.fromkeys(line.said for row in section.rows if (line := row.guarantee(name)) and line.said)
        head.append(
            (f"ε {name}", ", ".join(kinds) or ("withheld" if any(row.withheld for row in section.rows) else "claimed"))
        )
    head += [("μ", "")] if has_mu else []
    lines = [" & ".join(latex(title) for title, _ in head) + r" \\"]
    lines.append(" & ".join(rf"\scriptsize {latex(note)}" if note else "" for _, note in head) + r" \\")
    lines.append(r"\midrule")
    for row in section.rows:
        published, verdict = row.context.published or Published(), row.metric_verdict
        cells = [row.title, str(len(row.seeds)), _beside(row.figures, row.printed)]
        if has_printed:
            cells.append(words(verdict.verdict) if verdict else "–")
        for name in names:
            line = row.guarantee(name)
            stated = bound(line.epsilon, line.kind) if line and line.epsilon is not None else ""
            ours = stated if line and line.kind == "claimed" else _shown(row, stated)
            cells.append(_beside(ours, published.epsilon.get(name)))
        if has_mu:
            ours = _shown(row, next((bound(line.mu) for line in row.guarantees if line.mu is not None), ""))
            cells.append(_beside(ours, published.mu))
        lines.append(" & ".join(map(latex, cells)) + r" \\")
    caption = (
        f"{section.name}: test {' or '.join(metric.title for metric in measured)} over seeds and privacy guarantees"
    )
    deltas = dict.fromkeys(row.context.delta for row in section.rows if row.context.delta is not None)
    if deltas:
        caption += " at δ = " + " or ".join(map(number, deltas))
    if has_printed:
        caption += "; in parentheses what the source prints"
    caption += "." + (f" Source: {section.source}." if section.source else "")
    caption += "".join(f" Initial weights: {text}." for text in weights(section.rows))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{latex(caption)}}}\smallskip",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _shown(row: Row, ours: str) -> str:
    """A number of the row's ledger; nothing where it is withheld."""
    return "withheld" if row.withheld else f"{ours} (unchecked)" if ours and row.unchecked else ours


def _beside(ours: str, claimed: Printed | None) -> str:
    """Our number with what is printed in parentheses."""
    return " ".join(filter(None, [ours, f"({claimed.text})" if claimed else ""])) or "–"
