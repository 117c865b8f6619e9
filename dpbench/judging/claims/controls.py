"""Negative controls of a claim: other printed numbers and planted mistakes, each of which has to change the verdict.

Every printed number of a claim is changed, up and down by units of its last place, then by factors, until the verdict
is another one; a favourable verdict has to become an unfavourable one. A number that is computed from events has to
change the verdict ten units above and ten units below. For one number of a column it is enough that an expression fails
in other rows. Where a bound is so far from the truth that no δ changes the verdict, δ has to change the verdict on a
bound just below the truth. The judge's own `control` comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from dpbench.judging.claims.claim import FAVOURABLE, Claim, Judgement, Printed
from dpbench.judging.claims.judge import judge_of, loaded
from dpbench.judging.claims.judges import Judge

_UNITS = (1, -1, 10, -10, 100, -100)
_FACTORS = ("2", "0.5", "10", "0.1", "100", "0.01", "1e4", "1e-4", "1e8", "1e-8", "0")
_FROM_ZERO = (10**6, -(10**6))  # units, where no factor leads away
_JUST_BELOW = 1e-4  # relative
UNDECIDED = ("undecided", "not_run")
_FARTHEST = 1e300  # an end of an interval from here on is not tried

Path = tuple[Any, ...]  # a printed number's name, then its place in a table


@dataclass(frozen=True)
class Control:
    """One control: what was changed, whether the verdict changed with it, and the last judgement in words."""

    name: str
    changed: bool
    found: str


def controls(claim: Claim, judge: Judge | None = None) -> Iterator[Control]:
    """Every control of a claim, judged by `judge` in place of what `by` names where that is given.

    There are none for a claim that is undecided or not run. Without an expected verdict the computed one has to change.

    >>> claim = Claim("demo", "one", "here", "comparison", "", "holds", "", {"a": Printed("2"), "b": Printed("3")},
    ...               holds="a < b")
    >>> [(control.name, control.changed) for control in controls(claim)]
    [('a = 2', True), ('b = 3', True)]
    """
    if claim.verdict in UNDECIDED:
        return
    yield from _Controlled(claim, loaded(claim) if claim.by and judge is None else judge).all()


class _Controlled:
    """One claim with what judges it (None: events or an expression) and its judgement."""

    def __init__(self, claim: Claim, judge: Judge | None) -> None:
        self.judge = judge
        self.claim = claim
        self.found = self._judgement(claim)
        self.claim = replace(claim, verdict=claim.verdict or self.found.verdict)

    def all(self) -> Iterator[Control]:
        if self.claim.verdict in UNDECIDED:
            return
        done: set[str] = set()
        for change in self.judge.controls if self.judge is not None else ():
            moved = {name: Printed(str(value)) for name, value in change.items() if name in self.claim.printed}
            planted = {name: value for name, value in change.items() if name not in moved}
            other = replace(self.claim, printed={**self.claim.printed, **moved})
            name = "control " + ", ".join(f"{name} = {value!r}" for name, value in change.items())
            yield self._compared(name, self._judgement(other, planted))
            done |= set() if planted else set(moved)
        for name, found in self.judge.more_controls(self.claim) if self.judge is not None else ():
            yield self._compared(name, found)
        for path, number in (*leaves(self.claim.printed), *leaves(self.claim.published)):
            if path[0] not in done:
                yield from self.moved(path, number)

    def _judgement(self, claim: Claim, change: Mapping[str, Any] | None = None) -> Judgement:
        return judge_of(claim)[0](claim, False) if self.judge is None else self.judge.judge(claim, change=change)

    def _compared(self, name: str, found: Judgement) -> Control:
        expected = self.claim.verdict
        changed = found.verdict != expected and not (expected in FAVOURABLE and found.verdict in FAVOURABLE)
        return Control(name, changed, f"{found.verdict}: {found.reason}")

    def moved(self, path: Path, number: Printed) -> Iterator[Control]:
        """The controls of one printed number."""
        name = f"{'.'.join(map(str, path))} = {number.text}"
        if self.claim.kind == "number" and self.claim.verdict == "holds" and path == ("value",):
            for units in (10, -10):
                yield self._with(f"{name}, {units:+d} units", path, number.moved(units))
            return
        control = Control(name, False, "nothing was tried")
        for other in self._others(path, number):
            control = self._with(name, path, other)
            if control.changed:
                break
        if not control.changed and (close := self._close(path)) is not None:
            control = next((one for one in close.moved(path, number) if one.changed), control)
        yield control

    def _close(self, path: Path) -> _Controlled | None:
        """For the other numbers of a bound far from the truth: the same bound moved to just below the truth."""
        name, lower = self._compared_number, self.found.evidence.get("lower")
        if self.claim.kind != "bound" or path == (name,) or not isinstance(lower, float) or not lower > 0:
            return None
        printed = Printed(format(Decimal(repr(lower * (1 - _JUST_BELOW))), "f"))
        if printed == self.claim.printed[name]:  # the claim's own
            return None
        close = replace(self.claim, printed={**self.claim.printed, name: printed})
        return _Controlled(replace(close, verdict=self._judgement(close).verdict), self.judge)

    @property
    def _compared_number(self) -> str:
        """The name of the printed number of a bound that is compared with the truth."""
        if self.judge is not None:
            return self.judge.name
        return next((name for name in ("epsilon", "mu", "rdp") if name in self.claim.printed), "")

    def _others(self, path: Path, number: Printed) -> Iterator[Printed]:
        """Other numbers to try: first around the truth as the judgement has it, then units and factors."""
        lower, upper = self.found.evidence.get("lower"), self.found.evidence.get("upper")
        if self.claim.kind == "bound" and path == (self._compared_number,):
            if isinstance(lower, float) and lower > 0 and self.claim.verdict in FAVOURABLE:
                yield below(lower, number)
            if isinstance(upper, float) and 0 < upper < _FARTHEST:
                yield Printed(format(Decimal(repr(upper)) + Decimal(number.unit_text), "f"))
        value = self.found.value
        if self.claim.kind == "number" and isinstance(value, int | float) and math.isfinite(value):
            yield Printed(format(Decimal(repr(float(value))).quantize(Decimal(number.unit_text)), "f"))
        yield from map(number.moved, _UNITS)
        yield from map(number.times, _FACTORS) if number.value else map(number.moved, _FROM_ZERO)

    def _with(self, name: str, path: Path, number: Printed) -> Control:
        first, *rest = path
        if first in self.claim.printed:
            other = replace(self.claim, printed={**self.claim.printed, first: number})
        else:
            table = _set(self.claim.published[first], rest, number)
            other = replace(self.claim, published={**self.claim.published, first: table})
        try:
            found = self._judgement(other)
            control = self._compared(name, found)
            if rest and self.claim.holds:  # one number of a column: the rows in which it fails
                rows = [one.evidence["fails_in_rows"] for one in (found, self.found)]
                return replace(control, changed=control.changed or rows[0] != rows[1])
            return control
        except Exception as error:  # noqa: BLE001 (the judge refuses this number: the next one is tried)
            return Control(name, False, f"{type(error).__name__}: {error}")


def leaves(values: Mapping[str, Any]) -> Iterator[tuple[Path, Printed]]:
    """Every printed number with its place."""

    def inside(path: Path, value: Any) -> Iterator[tuple[Path, Printed]]:
        if isinstance(value, Printed):
            yield path, value
            return
        for place, entry in enumerate(value):
            yield from inside((*path, place), entry)

    for name, value in values.items():
        yield from inside((name,), value)


def _set(value: Any, path: list[Any], number: Printed) -> Any:
    if not path:
        return number
    return tuple(_set(entry, path[1:], number) if place == path[0] else entry for place, entry in enumerate(value))


def below(lower: float, printed: Printed) -> Printed:
    """`lower` less one unit of the last printed place (less a tenth of itself, where that is smaller), rounded down.

    >>> below(0.86454, Printed("1.19")).text, below(0.003, Printed("1")).text
    ('0.8545', '0.002700')
    """
    less = lower - min(printed.unit, lower / 10)
    places = 4 - (math.floor(math.log10(less)) + 1) if less > 0 else 4
    return Printed(format(Decimal(repr(less)).quantize(Decimal(1).scaleb(-places), rounding=ROUND_FLOOR), "f"))
