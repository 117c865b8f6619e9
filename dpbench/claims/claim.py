"""A claim: what somebody printed, where, what to compute to judge it, and the verdict that the ledger holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpbench.events import Composition, Event

KINDS: Mapping[str, str] = {
    "number": "an ε, δ, μ, σ or other number in a table or in the text",
    "bound": "a statement that something is (ε, δ)-DP or μ-GDP",
    "formula": "an equation, density, constant, derivative or identity",
    "inequality": "an inequality, a monotonicity or a limit",
    "algorithm": "a line of pseudocode against what the text or the proof needs of it",
    "comparison": "that one thing is better, cheaper or smaller than another, or by how much",
    "utility": "an accuracy, a perplexity or a time, judged by a run spec",
}
VERDICTS = ("holds", "refuted", "undecided", "not_run")
BOUND_VERDICTS = ("sound", "loose", "unsound", "refuted", "undecided", "not_run")
FAVOURABLE = ("holds", "sound", "loose")
_ROOT = Path(__file__).resolve().parents[2]


def own_path(file: str) -> str:
    """A file of the package from the folder that holds the package, others as they are."""
    path = Path(file).resolve()
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else file


@dataclass(frozen=True)
class Printed:
    """A printed number with its digits: `unit` is one unit of the last printed place.

    >>> Printed("1.30").unit, Printed("2e-5").unit, Printed("256").unit
    (0.01, 1e-05, 1.0)
    """

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    @property
    def unit(self) -> float:
        """One unit of the last printed place."""
        return float(self.unit_text)

    @property
    def unit_text(self) -> str:
        """The same in exact digits.

        >>> Printed("0.83").unit_text
        '0.01'
        """
        exponent = Decimal(self.text).as_tuple().exponent
        assert isinstance(exponent, int)  # the ledger has refused infinities
        return str(Decimal(1).scaleb(exponent))

    def moved(self, units: int) -> Printed:
        """The number that stands `units` of the last place further on.

        >>> Printed("1.30").moved(10).text, Printed("2e-5").moved(-1).text
        ('1.40', '0.00001')
        """
        return Printed(format(Decimal(self.text) + units * Decimal(self.unit_text), "f"))

    def times(self, factor: str) -> Printed:
        """The number times a factor, with as many digits; a whole number stays whole, but for 0.

        >>> Printed("0.83").times("0.1").text, Printed("256").times("0.5").text, Printed("1e-5").times("100").text
        ('0.083', '128', '0.00100')
        """
        number = Decimal(self.text) * Decimal(factor)
        whole = number.to_integral_value() if re.fullmatch(r"[-+]?\d+", self.text) else Decimal(0)
        return Printed(format(whole or number, "f"))

    def agrees(self, value: float) -> bool:
        """Whether `value` rounds to what is printed; a tie may be rounded either way.

        >>> Printed("0.83").agrees(0.8345), Printed("0.83").agrees(0.8645)
        (True, False)
        """
        return abs(value - self.value) <= self.unit * (0.5 + 1e-9)


@dataclass(frozen=True)
class Claim:
    """One printed statement; `grammar.CLAIM` describes the keys.

    | field | |
    | --- | --- |
    | `printed` | numbers by name with their digits; for one number the name is `value` |
    | `events`, `counts` | the releases that it is about; where a count is not whole, `events` is None |
    | `published` | numbers of the source's tables that the judge takes, by name: one `Printed` or tuples of them |
    | `file`, `line`, `column`, `path` | where the ledger has it |
    """

    paper: str
    id: str
    place: str
    kind: str
    says: str
    verdict: str
    because: str
    printed: Mapping[str, Printed] = field(default_factory=dict)
    text: str = ""
    events: Composition | None = None
    counts: tuple[tuple[Event, float], ...] = ()
    quantity: str = ""
    accountant: str = ""
    at: Mapping[str, float] = field(default_factory=dict)
    attained: bool | None = None
    by: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    holds: str = ""
    runs: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    column: int = 0
    path: str = ""

    @property
    def name(self) -> str:
        """`paper.id`."""
        return f"{self.paper}.{self.id}"

    @property
    def shown(self) -> str:
        """What is printed, as text."""
        if self.text or not self.printed:
            return self.text
        if tuple(self.printed) == ("value",):
            return self.printed["value"].text
        return ", ".join(f"{name} = {number.text}" for name, number in self.printed.items())


@dataclass(frozen=True)
class Covered:
    """One place of a paper and its claims, or why it has none."""

    place: str
    claims: tuple[str, ...] = ()
    no_claim: str = ""


@dataclass(frozen=True)
class Mistake:
    """A paper's mistake that matters for privacy: `demonstration` is a command that shows it in seconds.

    The texts may quote judgements: `{id.value}`, `{id.printed}`, `{id.evidence.name}`.
    """

    title: str
    claims: tuple[str, ...]
    printed: str
    true: str
    demonstration: str
    instead: str


@dataclass(frozen=True)
class Ledger:
    """One file of `kind: claims`."""

    paper: str
    title: str
    source: str
    claims: tuple[Claim, ...]
    coverage: tuple[Covered, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Judgement:
    """What judging a claim gave.

    `value` is the number that was computed (or a word for it); `evidence` plain JSON values: numbers, enclosures,
    settings, sample sizes; `routes` the results of each mathematical route by name; `plot` an optional curve
    {x, y, x_label, y_label, lines: {name: [numbers]}}; `false_alarm` the probability that a true claim is refuted by
    chance.
    """

    verdict: str
    reason: str
    value: float | str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    routes: Mapping[str, Any] = field(default_factory=dict)
    plot: Mapping[str, Any] | None = None
    false_alarm: float = 0.0
