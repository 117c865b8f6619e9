"""Numbers for people: rounded on the safe side, and never without saying that something is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

MISSING = "–"
SIGNS = {"upper_bound": "≤", "lower_bound": "≥", "approximation": "≈", "exact": "=", "certified": "="}
_WORDS = {
    "add_or_remove": "add or remove one record",
    "replace_one": "replace one record",
    "zero_out": "zero one record out",
    "poisson": "Poisson sampling",
    "without_replacement": "batches of fixed size, without replacement",
    "shuffled": "shuffled epochs",
}
_ROUNDING = {"upper_bound": ROUND_CEILING, "certified": ROUND_CEILING, "lower_bound": ROUND_FLOOR}


def bound(value: float | None, kind: str | None = None, digits: int = 4) -> str:
    """A guarantee's number to `digits` significant digits: upper bounds are rounded up, lower bounds down.

    >>> bound(1.23412, "upper_bound"), bound(1.23412, "approximation"), bound(float("inf"))
    ('1.235', '1.234', '∞')
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    exact = Decimal(value)
    if not exact:
        return "0"
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = exact.quantize(unit, rounding=_ROUNDING.get(kind or "", ROUND_HALF_EVEN))
    if rounded.adjusted() > exact.adjusted():  # 9.9999 became 10.000: one digit fewer behind the point
        rounded = rounded.quantize(unit.scaleb(1))
    return f"{rounded:f}" if -5 < rounded.adjusted() < 7 else f"{float(rounded):.{digits - 1}e}"


def number(value: float | int | None, digits: int = 6) -> str:
    """A setting: up to `digits` significant digits, without trailing zeros; whole numbers in full.

    >>> number(0.25), number(3516), number(1e-5), number(None)
    ('0.25', '3516', '1e-5', '–')
    """
    if value is None:
        return MISSING
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return str(int(value))
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.{digits}g}").replace("e+", "e")


def no_less(value: float) -> str:
    """A number of a promise that was given: as `number` writes it, in full where that is below it.

    >>> no_less(1e-5), no_less(0.12345678), no_less(0.12345612)
    ('1e-5', '0.123457', '0.12345612')
    """
    text = number(value)
    return text if float(text) >= value else re.sub(r"e-0", "e-", repr(float(value)))


def percent(value: float | None, decimals: int = 2) -> str:
    """A percentage, or a difference of percentages, without its sign %."""
    return MISSING if value is None else f"{value:.{decimals}f}"


def signed(value: float, decimals: int = 2) -> str:
    """A difference with its sign; the minus is the typographic one."""
    return f"{value:+.{decimals}f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Seconds for people.

    >>> duration(75), duration(0.25), duration(7300)
    ('1 min 15 s', '0.25 s', '2 h 1 min')
    """
    if seconds is None:
        return MISSING
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def words(name: str | None) -> str:
    """A name from the data as words: `add_or_remove`, `upper_bound`, `not_run`.

    >>> words("upper_bound"), words("add_or_remove")
    ('upper bound', 'add or remove one record')
    """
    return MISSING if name is None else _WORDS.get(name, name.replace("_", " "))


def seeds(values: tuple[int, ...]) -> str:
    """Seeds with runs of neighbours drawn together.

    >>> seeds((0, 1, 2, 5))
    '0–2, 5'
    """
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts) or MISSING


def off(share: float | None) -> str:
    """How far a number is off: in percent, or as a factor where that is large.

    >>> off(0.045), off(-1e-13), off(2600.0), off(None)
    ('+4.5 %', '0 %', '2.6e+03 times', '–')
    """
    if share is None:
        return MISSING
    if abs(share) < 1e-9:
        return "0 %"
    return f"{100 * share:+.2g} %" if share < 10 else f"{share + 1:.2g} times"


def fact_words(value: Any) -> str:
    """A value of a claim's evidence as text: numbers with twelve digits, lists and mappings written out.

    >>> fact_words({"x": 0.1, "lower": [1, 2.5]})
    'x = 0.1, lower = [1, 2.5]'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {fact_words(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        texts = [fact_words(item) for item in value]
        return "; ".join(texts) if any(isinstance(item, str) for item in value) else f"[{', '.join(texts)}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
