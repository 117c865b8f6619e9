"""A claim: what somebody printed, where, what to compute to judge it, and the expected verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpbench.events import Composition, Event
from dpbench.verdicts import VERDICTS

KINDS: Mapping[str, str] = {
    "number": "an ε, δ, μ, σ or other number in a table or in the text",
    "bound": "a statement that something is (ε, δ)-DP or μ-GDP",
    "formula": "an equation, density, constant, derivative or identity",
    "inequality": "an inequality, a monotonicity or a limit",
    "algorithm": "a line of pseudocode against what the text or the proof needs of it",
    "comparison": "that one thing is better, cheaper or smaller than another, or by how much",
    "utility": "an accuracy, a perplexity or a time, judged by a run spec",
}
BOUND_VERDICTS = ("sound", "loose", "unsound", "refuted", "undecided", "not_run")
FAVOURABLE = ("holds", "sound", "loose")
QUANTITIES = ("epsilon", "delta", "mu", "noise_multiplier")
_ROOT = Path(__file__).resolve().parents[3]


def own_path(file: str) -> str:
    """A file of the package from the folder that holds the package, others as they are."""
    path = Path(file).resolve()
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else file


def whole_path(file: str) -> Path:
    """The inverse of `own_path`."""
    return _ROOT / file if (_ROOT / file).is_file() else Path(file)


@dataclass(frozen=True)
class Key:
    """A key of a file: what it means, the form of its value, and whether it is required.

    `name` is text that fits NAME, `choice` one of `choices`, `ids` a name or a list of them, `texts` a text or a list,
    `published` nested tables and lists of printed numbers, `paths` dotted places in them by name.
    """

    about: str
    form: str = "text"
    required: bool = False
    choices: tuple[str, ...] = ()


def key(about: str, form: str = "text", required: bool = False, choices: tuple[str, ...] = (), **default: Any) -> Any:
    """A field that a file may give; `default` as in `dataclasses.field`."""
    return field(metadata={"key": Key(about, form, required, choices)}, **default)


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
        assert isinstance(exponent, int)  # the reader has refused infinities
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
    """One printed statement. Where a count of its events is not whole, `events` is None; `counts` has all of them."""

    paper: str
    id: str = key("small letters, digits, - and _; with the paper it is the claim's name", "name", True)
    place: str = key("table and row, equation, theorem, page", required=True)
    kind: str = key("what is claimed", "choice", True, tuple(KINDS))
    says: str = key("the statement in your words")
    verdict: str = key(
        "the expected verdict; without it the computed one is shown, and `verify` fails where it is not favourable",
        "choice",
        choices=tuple(dict.fromkeys(VERDICTS + BOUND_VERDICTS)),
        default="",
    )
    because: str = key("why that verdict is expected, in one sentence", default="")
    printed: Mapping[str, Printed] = key(
        "the printed number, or numbers by name, with the digits that are printed", "printed", default_factory=dict
    )  # one number has the name `value`
    text: str = key("what is printed where it is no number", default="")
    events: Composition | None = key(  # noqa: RUF009 (it makes a field)
        "what is released, as in files of kind: events", "events", default=None
    )
    counts: tuple[tuple[Event, float], ...] = ()
    quantity: str = key("what a number from events is", "choice", choices=QUANTITIES, default="")
    accountant: str = key("which accountant gives a number from events", "accountant", default="")
    at: Mapping[str, float] = key("the δ, ε or order at which it holds", "at", default_factory=dict)
    attained: bool | None = key(
        "whether a pair of datasets attains the events' pair under what is really released", "flag", default=None
    )
    by: str = key("what judges it: file:name in the paper's folder, or package.module:name", default="")
    parameters: Mapping[str, Any] = key("what that takes", "mapping", default_factory=dict)
    published: Mapping[str, Any] = key(
        "numbers of the tables under `published` that it takes: name and dotted place", "paths", default_factory=dict
    )  # here the numbers themselves: one `Printed` or tuples of them
    holds: str = key(
        "what judges it where arithmetic does: an expression over printed numbers and `published`", default=""
    )
    runs: tuple[str, ...] = key("the run specs that judge a utility claim", "texts", default=())
    rows: tuple[str, ...] = key(
        "labels of the rows of `runs` that carry its printed numbers, such as 'MNIST MLP *'", "texts", default=()
    )
    compares: Sequence[Mapping[str, str]] = key(
        "rows of `runs` of which one gives more: {higher: ..., lower: ...}, labels with `*` for the same text in both; "
        "besides, `metric:` (default: the result) and `by:`, the printed difference",
        "compares",
        default=(),
    )
    share: str = key(
        "of which of those pairs it is claimed; default: all", "choice", choices=("all", "most"), default=""
    )
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

    place: str = key("equation, lemma, table row or line of the source", required=True)
    claims: tuple[str, ...] = key("the ids of its claims", "ids", default=())
    no_claim: str = key("why it has none", default="")


@dataclass(frozen=True)
class Mistake:
    """A paper's mistake that matters for privacy: `demonstration` is a command that shows it in seconds.

    The texts may quote verdict records: `{id.value}`, `{id.printed}`, `{id.evidence.name}`.
    """

    title: str = key("the mistake in a few words", required=True)
    claims: tuple[str, ...] = key("the ids of the claims that it rests on", "ids")
    printed: str = key("what is printed", required=True)
    true: str = key("what is true", required=True)
    demonstration: str = key("a command that shows it in seconds", required=True)
    instead: str = key("what to do instead", required=True)


@dataclass(frozen=True)
class ClaimsFile:
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
    """What judging a claim gave: the verdict with its reason and evidence.

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
