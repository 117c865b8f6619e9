"""Decorators for the functions in `judging/papers/` that judge claims.

docs/claims.md ("Writing a judge") says what a function returns under each decorator, and where its arguments come
from. A claim whose judge does not take one of its printed numbers is refused when it is read. `control` is the negative
control: a mapping with other values of some arguments, or a sequence of them, each of which has to change the verdict.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from dpbench.errors import DpbenchError
from dpbench.judging.claims.bounds import Known, as_printed, compare, shown_end
from dpbench.judging.claims.claim import Claim, Judgement, own_path
from dpbench.judging.claims.grammar import DIGITS
from dpbench.judging.claims.search import Range, smallest

__all__ = ["CannotRun", "Shown", "bound", "formula", "grid", "inequality", "number", "shown"]

RESULTS = "results"  # an argument: what the seeds of the claim's rows gave, by label
Change = Mapping[str, Any]
_AGREE = 1e-6  # two routes may differ by that, relative to the number or to a unit of the last printed place


def grid(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Settings: every combination of some values, the last name the fastest.

    >>> grid(a=[1, 2], b=["x"])
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def place_of(function: Callable[..., Any]) -> str:
    """File and line of a function, from the folder that holds the package."""
    code = inspect.unwrap(function).__code__
    return f"{own_path(code.co_filename)}:{code.co_firstlineno}"


class CannotRun(DpbenchError):
    """What a judge needs is not here, such as a dataset or a library: the claim is not run, for this reason."""


@dataclass(frozen=True)
class Judge(ABC):
    """A decorated function; it can be called as before.

    `pair` names the datasets or distributions, for the evidence; `false_alarm` is the probability that a true claim is
    refuted by chance; `name` is the printed number that the decorator compares by itself, if any.
    """

    function: Callable[..., Any]
    control: Change | Sequence[Change] = ()
    pair: str = ""
    false_alarm: float = 0.0
    name: str = ""

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.function(*values, **named)

    @property
    def place(self) -> str:
        """File and line of the function, from the folder that holds the package."""
        return place_of(self.function)

    @functools.cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names that it takes."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def reads(self) -> tuple[str, ...]:
        """The printed numbers that it can read: its arguments, and what its kind compares."""
        return (*self.arguments, self.name)

    @property
    def controls(self) -> tuple[Change, ...]:
        """The negative controls."""
        return (self.control,) if isinstance(self.control, Mapping) else tuple(self.control)

    def judge(self, claim: Claim, certified: bool = False, change: Change | None = None) -> Judgement:
        """The verdict on a claim; `change` has other values of some arguments, for negative controls."""
        found = self._judged(claim, {**self._named(claim, certified), **(change or {})}, certified)
        evidence = {"pair": self.pair, **found.evidence} if self.pair else found.evidence
        return replace(found, evidence=evidence, false_alarm=self.false_alarm)

    def _named(self, claim: Claim, certified: bool = False) -> dict[str, Any]:
        numbers = {**claim.published, **claim.printed, "certified": certified}
        return {**{name: numbers[name] for name in self.arguments if name in numbers}, **claim.parameters}

    @abstractmethod
    def _judged(self, claim: Claim, named: dict[str, Any], certified: bool) -> Judgement:
        """The same, its arguments by name."""

    def more_controls(self, claim: Claim) -> Iterator[tuple[str, Judgement]]:  # noqa: ARG002
        """Controls that the kind brings itself: what each is, and its judgement."""
        yield from ()


@dataclass(frozen=True)
class Number(Judge):
    """Undecided where the routes disagree, else whether the first rounds to what is printed."""

    name: str = "value"

    def _judged(self, claim: Claim, named: dict[str, Any], certified: bool) -> Judgement:  # noqa: ARG002
        if self.name not in claim.printed:
            raise DpbenchError(f"{claim.name}: a computed number needs one printed value, such as `printed: 0.83`")
        printed, found = claim.printed[self.name], self.function(**named)
        found = found if isinstance(found, Mapping) else {"definition": found}
        routes = {name: float(value) for name, value in found.items()}
        first = next(iter(routes.values()))
        evidence = {**claim.parameters, "value": first}
        if any(abs(other - first) > _AGREE * max(abs(first), printed.unit) for other in routes.values()):
            reason = f"the routes give {' and '.join(map(repr, routes.values()))}"
            return Judgement("undecided", reason, first, evidence, routes)
        return as_printed(printed, first, "the definition", evidence, routes)


@dataclass(frozen=True)
class Bound(Judge):
    """As a bound from events. `name` is the printed number that is compared with the truth.

    `attained`: a pair of datasets attains the lower end under what is released (a claim's own `attained:` goes first).
    `second`: the second route computes the same "value", or a "lower" bound, which only has to lie below the upper end.
    A function with an argument `certified` has to prove its interval where `certified` is true.
    """

    name: str = "epsilon"
    attained: bool = True
    second: Literal["value", "lower"] = "value"

    def _judged(self, claim: Claim, named: dict[str, Any], certified: bool) -> Judgement:
        lower, upper, *rest = map(float, self.function(**named))
        attained = self.attained if claim.attained is None else claim.attained
        route = "certified" if certified and "certified" in self.arguments else "definition"
        routes: dict[str, Any] = {route: [lower, upper]}
        evidence = {**claim.parameters, "lower": lower, "upper": upper, "attained": attained}
        verdict, reason = compare(Known(lower, upper, route, attained), claim.printed[self.name], attained, self.name)
        for other in rest:
            routes["second route"] = other
            slack = 1e-6 * max(abs(lower), abs(other))
            if other > upper + slack or (self.second == "value" and other < lower - slack):
                reason = f"two routes disagree: [{lower!r}, {upper!r}] and {other!r}"
                return Judgement("undecided", reason, None, evidence, routes)
        return Judgement(verdict, reason, shown_end(verdict, lower, upper), evidence, routes)


@dataclass(frozen=True)
class Formula(Judge):
    """Holds where every relative error is at most 10^−`digits`, relative to `scale` where given (for a value near 0).

    `settings` has the source's own among them; texts in it that are numbers become mpmath numbers of `precision`
    digits. The corrected formula, where the function returns one, has to be right.
    """

    settings: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    digits: float = 12
    scale: float | None = None
    precision: int = 40

    def _judged(self, claim: Claim, named: dict[str, Any], certified: bool) -> Judgement:  # noqa: ARG002
        return self._verdict(self._values(named), self.scale)

    def _values(self, named: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], tuple[Any, ...]]]:
        """Every setting with the values there: as printed, by definition, corrected."""
        import mpmath

        def number(value: Any) -> Any:
            return mpmath.mpf(value) if isinstance(value, str) and re.fullmatch(DIGITS, value) else value

        with mpmath.workdps(self.precision):
            return [
                (setting, tuple(self.function(**{name: number(value) for name, value in {**setting, **named}.items()})))
                for setting in self.settings
            ]

    def _verdict(self, values: Sequence[tuple[Mapping[str, Any], tuple[Any, ...]]], scale: float | None) -> Judgement:
        allowed = 10.0**-self.digits
        errors = [_error(found[0], found[1], scale) for _, found in values]
        worst = max(range(len(values)), key=lambda place: errors[place])
        setting, (printed, true, *rest) = values[worst]
        wrong = sum(error > allowed for error in errors)
        evidence: dict[str, Any] = {
            "settings": len(values),
            "wrong_at": wrong,
            "worst_relative_error": errors[worst],
            "worst_at": {name: _plain(value) for name, value in setting.items()},
            "printed_there": _plain(printed),
            "definition_there": _plain(true),
            "allowed": allowed,
        }
        routes: dict[str, Any] = {"definition": _plain(true)}
        if rest:
            corrected = max(_error(found[2], found[1], scale) for _, found in values)
            evidence["worst_relative_error_when_corrected"] = corrected
            routes["corrected formula"] = _plain(rest[0])
            if corrected > allowed:
                reason = f"the corrected formula is off as well, by {corrected:.2g}: the definition is in doubt"
                return Judgement("undecided", reason, None, evidence, routes)
        if not wrong:
            reason = f"equal to the definition at {len(values)} settings, the worst relative error {errors[worst]:.1e}"
            return Judgement("holds", reason, errors[worst], evidence, routes)
        reason = (
            f"not the definition at {wrong} of {len(values)} settings, the worst relative error {errors[worst]:.3g}"
        )
        return Judgement("refuted", reason, errors[worst], evidence, routes)

    def more_controls(self, claim: Claim) -> Iterator[tuple[str, Judgement]]:
        values = self._values(self._named(claim))
        if all(len(found) > 2 for _, found in values):
            yield "the corrected formula", self._verdict([(s, (v[2], v[1])) for s, v in values], self.scale)
        elif claim.verdict == "holds":
            off = 1 + 10 * 10.0**-self.digits
            yield "ten units of the last digit", self._verdict([(s, (v[0] * off, v[1])) for s, v in values], None)


@dataclass(frozen=True)
class Inequality(Judge):
    """Refuted at a counterexample, undecided where its enclosure does not confirm it, else holds as searched.

    `domain` has (low, high) or (low, high, "log" or "whole") by name; `settings` are the source's own. A point refutes
    where the margin is below −`tolerance`, the numerical error of the margin (derive it). `enclosure` takes the same
    arguments and gives (lower, upper) of the margin in certified arithmetic; then only an upper end below 0 refutes.
    `obligations` are what the proof needs, for the reader. `examples` points are tried at first.

    >>> @inequality(domain={"x": (-1, 3), "n": (1, 9, "whole")}, settings=[{"x": 0.5, "n": 2}], control={"less": 0.1})
    ... def bernoulli(x, n, less=0.0):
    ...     return (1 + x) ** n - 1 - n * x - less
    >>> claim = Claim("demo", "one", "here", "inequality", "", "holds", "")
    >>> bernoulli.judge(claim).verdict, bernoulli.judge(claim, change=bernoulli.control).verdict
    ('holds', 'refuted')
    """

    domain: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    settings: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    tolerance: float = 1e-12
    enclosure: Callable[..., tuple[float, float]] | None = None
    obligations: Sequence[str] = ()
    examples: int = 150

    def _judged(self, claim: Claim, named: dict[str, Any], certified: bool) -> Judgement:  # noqa: ARG002
        domain = {name: Range(*place) for name, place in self.domain.items() if name not in named}
        settings = [{name: value for name, value in one.items() if name not in named} for one in self.settings]
        for name, place in domain.items():
            for value in (one[name] for one in settings if not place.low <= one.get(name, place.low) <= place.high):
                reason = f"the source's own setting {name} = {value!r} lies outside the searched domain"
                return Judgement("undecided", reason)
        margin_of = functools.partial(self.function, **named)
        point, margin, tried = smallest(margin_of, domain, settings, -self.tolerance, self.examples)
        evidence: dict[str, Any] = {
            "domain": {name: [place.low, place.high] for name, place in domain.items()},
            "points": tried,
            "smallest_margin": margin,
            "at": point,
        }
        if self.obligations:
            evidence["obligations"] = list(self.obligations)
        where = ", ".join(f"{name} = {value:.6g}" for name, value in point.items() if isinstance(value, int | float))
        if margin >= -self.tolerance:
            reason = f"holds at {tried} searched points, the smallest margin {margin:.3g} at {where}"
            return Judgement("holds", reason, margin, evidence)
        routes: dict[str, Any] = {"float64": margin}
        if self.enclosure is not None:
            lower, upper = self.enclosure(**{**point, **named})
            routes["certified"] = [float(lower), float(upper)]
            if not upper < 0:
                reason = f"the counterexample {where} is not confirmed: its margin lies in [{lower:.3g}, {upper:.3g}]"
                return Judgement("undecided", reason, margin, evidence, routes)
        return Judgement("refuted", f"fails at {where}: the margin is {margin:.6g}", margin, evidence, routes)


@dataclass(frozen=True)
class Shown:
    """What a demonstration found; `holds` is None where it could not decide."""

    holds: bool | None
    reason: str
    value: float | str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    routes: Mapping[str, Any] = field(default_factory=dict)
    plot: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Demonstration(Judge):
    """The function follows the printed text, never dpbench's implementation of the mechanism."""

    def _judged(self, claim: Claim, named: dict[str, Any], certified: bool) -> Judgement:  # noqa: ARG002
        found: Shown = self.function(**named)
        verdict = "undecided" if found.holds is None else "holds" if found.holds else "refuted"
        return Judgement(verdict, found.reason, found.value, found.evidence, found.routes, found.plot)


_Kind = TypeVar("_Kind", bound=Judge)


def _decorator(kind: type[_Kind]) -> Callable[..., Callable[[Callable[..., Any]], _Kind]]:
    return lambda **options: lambda function: kind(function, **options)


number = _decorator(Number)
bound = _decorator(Bound)
formula = _decorator(Formula)
inequality = _decorator(Inequality)
shown = _decorator(Demonstration)


def _error(value: Any, true: Any, scale: float | None) -> float:
    difference = abs(value - true)
    size = abs(true) if scale is None else scale
    return 0.0 if difference == 0 else float(difference / size) if size else float("inf")


def _plain(value: Any) -> Any:
    """A JSON value: a float where it is a number."""
    if isinstance(value, bool | int | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
