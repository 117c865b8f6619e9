"""What `dpbench account`, `calibrate` and `certify` show: tables and sentences, nothing computed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import TYPE_CHECKING

from rich.table import Table

from dpbench.cli.console import time_words
from dpbench.privacy.answers import PROMISES, Estimate, Guarantee
from dpbench.privacy.calibration import Calibrated, Recalibrated
from dpbench.privacy.formatting import SIGNS, bound, no_less, number, words

if TYPE_CHECKING:
    from dpbench.privacy.certified import Certificate

DIGITS = 6  # of bounds and approximations
MOST_DIGITS = 10  # of exact answers


def figure(estimate: Estimate, kind: str | None) -> str:
    """A number with its sign, to the digits that its error allows; upper bounds are rounded up.

    >>> figure(Estimate(0.86454321234567, 0.86454321234, 0.8645432124), "exact")
    '= 0.8645432123'
    >>> figure(Estimate(0.954564, None, 0.954564), "upper_bound")
    '≤ 0.954564'
    """
    text = re.sub(r"e-0+", "e-", bound(estimate.value, kind, _digits(estimate, kind)))
    return f"{SIGNS.get(kind or '', '')} {text}".strip()


def _digits(estimate: Estimate, kind: str | None) -> int:
    error = estimate.relative_error
    if error is None or kind not in ("exact", "certified"):
        return DIGITS
    return MOST_DIGITS if error == 0 else max(1, min(MOST_DIGITS, math.floor(-math.log10(min(error, 1.0))) + 1))


def error_bar(estimate: Estimate, kind: str | None = "exact") -> str:
    """The distance of the number as `figure` shows it from the farther end, rounded up; for a bound the other end.

    So it includes the digits that are not shown.

    >>> error_bar(Estimate(1.0, 0.9375, 1.0)), error_bar(Estimate(1.0, 0.9, 1.0), "upper_bound")
    ('± 0.07', '≥ 0.900000')
    >>> error_bar(Estimate(0.86454019122456, 0.86454019122455, 0.86454019122457))  # shown as 0.8645401912
    '± 3e-11'
    """
    if estimate.lower is None or estimate.upper is None or not math.isfinite(estimate.value):
        return ""
    if kind == "upper_bound":
        return f"≥ {bound(estimate.lower, 'lower_bound', DIGITS)}" if estimate.lower < estimate.value else ""
    if estimate.upper == math.inf:
        return "± ∞"
    with localcontext() as context:
        context.prec = 1200  # doubles and their differences are exact
        shown = Decimal(bound(estimate.value, kind, _digits(estimate, kind)))
        far = max(Decimal(estimate.upper) - shown, shown - Decimal(estimate.lower))
        context.prec, context.rounding = 1, ROUND_CEILING
        return f"± {number(float(f'{+far:.0e}'), 1)}" if far else "± 0"


def in_order(guarantees: Sequence[Guarantee]) -> list[Guarantee]:
    """Exact answers first, then bounds from the tightest on, then approximations, then those without an answer."""
    ranks = {"exact": 0, "certified": 0, "upper_bound": 1, "approximation": 2}

    def place(one: Guarantee) -> tuple[int, float, str]:
        return (ranks.get(one.kind or "", 3), one.answer.value if one.answer else math.inf, one.accountant)

    return sorted(guarantees, key=place)


def guarantee_table(guarantees: Sequence[Guarantee], asked: str, width: int = 100, mark: str = "") -> Table:
    """Accountant, answer, kind, error bar, μ and time of those that answer; `asked` heads the answers.

    `mark` follows every kind and points to a reservation below the table. Where `width` is too small for every column,
    μ, then the time, then the error are left out: no number is ever cut off.
    """
    answering = [one for one in in_order(guarantees) if one.answer is not None]
    columns: list[tuple[str, list[str]]] = [
        ("accountant", [one.accountant for one in answering]),
        (asked, [figure(one.answer, one.kind) for one in answering if one.answer]),
        ("kind", [words(one.kind) + mark for one in answering]),
        ("error", [error_bar(one.answer, one.kind) for one in answering if one.answer]),
        ("μ", ["" if one.mu is None else bound(one.mu, None, 5) for one in answering]),
        ("time", [time_words(one.seconds) for one in answering]),
    ]
    columns = [(name, cells) for name, cells in columns if any(cells)]
    for least in ("μ", "time", "error"):
        needed = sum(max(map(len, (name, *cells))) for name, cells in columns) + 2 * (len(columns) - 1)
        columns = [column for column in columns if column[0] != least or needed <= width]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, _ in columns:
        table.add_column(name, no_wrap=True, justify="right" if name == "time" else "left")
    for place in range(len(answering)):
        table.add_row(*(cells[place] for _, cells in columns))
    return table


def refusals(guarantees: Sequence[Guarantee]) -> dict[str, list[str]]:
    """Why there is no answer, or no finite one: each reason with the accountants that give it."""
    found: dict[str, list[str]] = {}
    for one in guarantees:
        reason = one.refused or (one.answer.reason if one.answer else None)
        if reason:
            found.setdefault(reason, []).append(one.accountant)
    return found


def curve_tables(
    points: Sequence[float], curves: Sequence[tuple[str, str, Sequence[Estimate]]], width: int
) -> Iterator[Table]:
    """δ at each ε, a column per accountant (name, kind, δ), in as many tables as the width requires."""
    cell = max(12, *(len(name) + 2 for name, _, _ in curves)) if curves else 12
    columns = max(1, (width - 12) // (cell + 1))
    for start in range(0, len(curves), columns):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("ε", justify="right", no_wrap=True)
        shown = curves[start : start + columns]
        for name, kind, _ in shown:
            table.add_column(f"{SIGNS.get(kind, '')} {name}", no_wrap=True, min_width=cell - 2)
        for place, epsilon in enumerate(points):
            deltas = (delta_text(values[place], kind) for _, kind, values in shown)
            table.add_row(number(epsilon, 4), *deltas)
        yield table


def delta_text(estimate: Estimate, kind: str | None) -> str:
    """δ to four digits, upper bounds rounded up.

    >>> delta_text(Estimate(0.000123456, None, 0.000123456), "upper_bound"), delta_text(Estimate(0.0), "exact")
    ('0.0001235', '0')
    """
    if estimate.value == 0 or not math.isfinite(estimate.value):
        return bound(estimate.value)
    text = bound(estimate.value, kind, 4)
    return number(float(text), 4)


_UNITS = {
    "noise_multiplier": ("σ", "smallest noise multiplier"),
    "steps": ("T", "most steps"),
    "sampling_rate": ("q", "largest sampling rate"),
    "batch": ("B", "largest expected batch"),
    "epochs": ("E", "most epochs"),
    "noise_factor": ("c", "smallest factor on every noise"),
    "repetitions": ("k", "most repetitions of the whole sequence"),
    "rate_factor": ("c", "largest factor on every sampling rate"),
}


def calibrated_lines(found: Calibrated) -> Iterator[str]:
    """What was found, what it attains, the neighbour that fails, and the time."""
    letter, what = _UNITS[found.find]
    target = f"ε ≤ {no_less(found.epsilon)} at δ = {no_less(found.delta)}"
    yield f"{letter} = {_value(found.value)}    the {what} for {target}"
    by = f"by {found.accountant} ({words(found.kind)})"
    yield f"  attained   {letter} = {_value(found.value)}: ε {figure(found.attained, found.kind)} {by}"
    if found.because:
        yield f"  accountant {found.because}"
    beside = found.neighbour_attained
    if beside is None:
        yield "  neighbour  there is none: the largest possible value meets the target"
    elif beside.reason and not math.isfinite(beside.value):
        yield f"  neighbour  {letter} = {_value(found.neighbour)}: no finite ε ({beside.reason})"
    else:
        yield f"  neighbour  {letter} = {_value(found.neighbour)} fails: ε {figure(beside, found.kind)}"
    yield f"  time       {time_words(found.seconds)}, {found.asked} values asked about"
    if found.kind not in PROMISES:
        yield f"{found.accountant} is an approximation: the true ε may be larger than {number(found.epsilon)}."
        yield from remarks([(found.accountant, [found.attained])])


def remarks(shown: Sequence[tuple[str, Sequence[Estimate]]]) -> Iterator[str]:
    """What the finite answers of an accountant must not be shown without; nothing where there is nothing to say.

    >>> list(remarks([("rdp", [Estimate(1.0)]), ("other", [Estimate(1.0, reason="no promise")])]))
    ['other: no promise.']
    """
    for name, answers in shown:
        said = dict.fromkeys(one.reason for one in answers if one.reason and math.isfinite(one.value))
        yield from (f"{name}: {reason}." for reason in said)


def recalibrated_lines(found: Recalibrated, truth: Guarantee) -> Iterator[str]:
    """σ̃, the ε that it has to meet, μ at σ and at σ̃, and another accountant's ε at σ̃."""
    edge = found.recalibrated
    yield f"σ̃ = {_value(edge.value)}    in place of σ = {_value(found.noise_multiplier)}"
    yield (
        f"  given      σ = {_value(found.noise_multiplier)}: ε = {bound(found.epsilon, 'upper_bound', 6)} at"
        f" δ = {number(found.delta)} by {found.given_by}"
    )
    spent = f"ε {figure(edge.attained, edge.kind)} by {found.spent_by} ({words(edge.kind)})"
    yield f"  spent      σ̃ = {_value(edge.value)}: {spent}"
    if found.mu is not None and found.recalibrated_mu is not None:
        yield f"  μ          {bound(found.mu, None, 5)} at σ, {bound(found.recalibrated_mu, None, 5)} at σ̃"
    if truth.answer is not None:
        promised = f"ε {figure(truth.answer, truth.kind)} by {truth.accountant} ({words(truth.kind)})"
        yield f"  {'budget  ' if edge.adaptive else 'promised'}   σ̃ = {_value(edge.value)}: {promised}"
    if edge.kind not in PROMISES:
        yield f"{found.spent_by} is an approximation: the true ε at σ̃ may be larger than what was given."


def certificate_lines(found: Certificate) -> Iterator[str]:
    """The enclosure, its width and direction, how it was computed, and the parts of its radius."""
    one, other = ("ε", "δ") if found.quantity == "epsilon" else ("δ", "ε")
    lower, upper = outwards(found.lower_text, found.upper_text)
    yield f"{one} at {other} = {number(found.asked)} is in [{lower}, {upper}]"
    yield f"  relative width  {found.relative_width:.1g}"
    sides = [f"{name} [{low:.6g}, {high:.6g}]" for name, (low, high) in found.directions.items()]
    yield f"  direction       {found.direction}" + (f" (of {', '.join(sides)})" if len(sides) > 1 else "")
    yield f"  method          {found.method}" + (f", {found.nodes} nodes" if found.nodes else "")
    yield f"  precision       {found.bits} bits"
    if found.radius:
        shares = [f"{name} {share:.1g}" for name, share in found.radius.items()]
        yield f"  radius of δ     {', '.join(shares)}"
    yield f"  time            {time_words(found.seconds)}"


def outwards(lower: str, upper: str) -> tuple[str, str]:
    """Both ends of an enclosure, rounded outwards to one digit more than the first in which they differ.

    >>> outwards("0.864540191204682297", "0.864540191247908560")
    ('0.864540191204', '0.864540191248')
    """
    low, high = Decimal(lower), Decimal(upper)
    if low >= high:
        return lower, upper
    unit = Decimal(1).scaleb((high - low).adjusted() - 1)
    with localcontext() as context:
        context.prec = 100
        ends = (low.quantize(unit, rounding=ROUND_FLOOR), high.quantize(unit, rounding=ROUND_CEILING))
    return f"{ends[0]:g}", f"{ends[1]:g}"


def _value(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else number(value)
