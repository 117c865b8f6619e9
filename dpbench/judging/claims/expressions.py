"""`holds: <expression>`: what a source says of its own printed numbers, judged by arithmetic; nothing is executed.

docs/claims.md ("Printed numbers against each other") lists operators and functions. Arithmetic is exact, in the printed
digits. Numbers of tables may have been rounded: a comparison (<, <=, >, >=) that fails in the printed digits is refuted
if it fails for all numbers that round to them, else undecided. Equality compares the digits. The claim's own numbers
are taken as exact.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.judging.claims.claim import Claim, Judgement, Printed
from dpbench.judging.claims.grammar import DIGITS, EXPECTED_NUMBER, is_number

_DEEPEST = 60  # operations inside one another


@dataclass(frozen=True)
class Rounded:
    """A number: by the printed digits, and the smallest and largest that it may be before rounding.

    Or a truth value: by the printed digits, for all numbers that round to them, and for at least one choice of them.
    """

    value: Any
    low: Any
    high: Any


def judge_expression(claim: Claim, certified: bool = False) -> Judgement:  # noqa: ARG001
    """The verdict on `holds:`, with both sides of every comparison. Raises DpbenchError for what is no such expression.

    >>> numbers = {"more": Printed("13931"), "less": Printed("38"), "factor": Printed("350")}
    >>> claim = Claim("demo", "one", "here", "comparison", "", "holds", "", numbers,
    ...               holds="abs(more / less / factor - 1) <= 0.1")
    >>> found = judge_expression(claim)
    >>> found.verdict, found.reason
    ('holds', 'abs(more / less / factor - 1) <= 0.1: 0.04744 against 0.1')
    """
    evaluation = _Evaluation(claim)
    found = evaluation.answer()
    try:
        return _judgement(found, evaluation)
    except OverflowError as error:
        raise DpbenchError(f"{evaluation.text!r} cannot be computed: {error}") from None


def _judgement(found: Rounded, evaluation: _Evaluation) -> Judgement:
    seen = evaluation.seen
    verdict = "holds" if found.value else "undecided" if found.high else "refuted"
    reason = "; ".join(f"{text}: {_short(left)} against {_short(right)}" for text, (left, right) in seen.items())
    if verdict == "undecided":
        reason += "; rounding may have made the difference"
    evidence = {text: [_plain(side) for side in sides] for text, sides in seen.items()}
    ends = {text: [_plain(side, ends=True) for side in sides] for text, sides in seen.items()}
    first = next(iter(seen.values()), (None, None))[0]
    value = float(first.value) if isinstance(first, Rounded) else None
    fails = {text: rows for text, rows in evaluation.fails.items() if rows}
    routes = {"the printed digits": evidence, "before rounding": ends}
    return Judgement(
        verdict,
        reason,
        value,
        {**evidence, "fails_in_rows": fails, "robust_to_rounding": found.low == found.high},
        routes,
    )


def names_in(text: str) -> tuple[str, ...]:
    """The names of an expression, dotted ones whole. Raises DpbenchError where it is no expression.

    >>> names_in("all(seconds.jl <= factor * seconds.sgd)")
    ('seconds.jl', 'factor', 'seconds.sgd')
    """

    def names(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name | ast.Attribute):
            yield ast.unparse(node)
            return
        for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
            yield from names(child)

    return tuple(dict.fromkeys(names(_parsed(text))))


def _parsed(text: str) -> ast.AST:
    shown = repr(text if len(text) <= 200 else f"{text[:200]}...")
    try:
        level: list[ast.AST] = [ast.parse(text.strip(), mode="eval").body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DpbenchError(f"{shown} is no expression: {error or 'nested too deep'}") from None
    found = level[0]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return found
    raise DpbenchError(f"{shown}: more than {_DEEPEST} operations inside one another")


class _Evaluation:
    """Walks one expression; `seen` collects both sides of its comparisons, `fails` the rows in which they fail."""

    def __init__(self, claim: Claim) -> None:
        self.claim, self.text = claim, claim.holds.strip()
        self.seen: dict[str, tuple[Any, Any]] = {}
        self.fails: dict[str, list[int]] = {}

    def answer(self) -> Rounded:
        try:
            found = self.at(_parsed(self.text))
        except (ArithmeticError, ValueError, TypeError, IndexError) as error:
            raise DpbenchError(f"{self.text!r} cannot be computed: {error}") from None
        if not isinstance(found, Rounded) or not isinstance(found.value, bool):
            raise DpbenchError(f"{self.text!r}: expected a comparison, or all(...) or any(...) of a column")
        return found

    def at(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            digits = ast.get_source_segment(self.text, node) or str(node.value)
            if not re.fullmatch(DIGITS, digits) or not is_number(digits):
                raise DpbenchError(f"{digits[:20]} in `holds:`: {EXPECTED_NUMBER}")
            return _exactly(Fraction(digits))
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(ast.unparse(node))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self.at(node.value)[node.slice.value]
        if isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in _OPERATORS:
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
            return _lift(_OPERATORS[type(node.op)], *map(self.at, sides))
        if isinstance(node, ast.BoolOp):
            return _lift(_answer(all if isinstance(node.op, ast.And) else any), *map(self.at, node.values))
        if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
            return self._compared(node)
        if isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in _FUNCTIONS:
            return _FUNCTIONS[ast.unparse(node.func)](*map(self.at, node.args))
        raise DpbenchError(f"{ast.unparse(node)!r} is not known in expressions; docs/claims.md lists what is")

    def _named(self, name: str) -> Any:
        if name in self.claim.published:
            return _lift(_rounded, self.claim.published[name])
        if name not in self.claim.printed:
            raise DpbenchError(f"{name!r} is no printed number of this claim")
        return _exactly(Fraction(self.claim.printed[name].text))

    def _compared(self, node: ast.Compare) -> Any:
        parts = [node.left, *node.comparators]
        sides = [self.at(part) for part in parts]
        found = []
        for place, op in enumerate(node.ops):
            text = ast.unparse(ast.Compare(parts[place], [op], [parts[place + 1]]))
            self.seen[text] = (sides[place], sides[place + 1])
            found.append(_lift(_OPERATORS[type(op)], *self.seen[text]))
            rows = found[-1] if isinstance(found[-1], tuple) else ()
            self.fails[text] = [row for row, answer in enumerate(rows, 1) if not _flat(answer, "value", all)]
        return _lift(_answer(all), *found)


def _lift(function: Callable[..., Any], *values: Any) -> Any:
    """Applied to numbers, or entry by entry to columns of equal length, a single number going with every entry."""
    lengths = {len(value) for value in values if isinstance(value, tuple)}
    if not lengths:
        return function(*values)
    if len(lengths) > 1:
        raise DpbenchError(f"columns of {' and '.join(map(str, sorted(lengths)))} entries cannot be taken row by row")
    return tuple(
        _lift(function, *(value[place] if isinstance(value, tuple) else value for value in values))
        for place in range(lengths.pop())
    )


def _exactly(value: Any) -> Rounded:
    return Rounded(value, value, value)


def _rounded(number: Printed) -> Rounded:
    value, half = Fraction(number.text), Fraction(number.unit_text) / 2
    return Rounded(value, value - half, value + half)


def _monotone(function: Callable[..., Any]) -> Callable[..., Rounded]:
    """For a function that is monotone in each argument: its extremes lie at the corners of the box."""

    def applied(*numbers: Rounded) -> Rounded:
        corners = [function(*corner) for corner in itertools.product(*((one.low, one.high) for one in numbers))]
        return Rounded(function(*(one.value for one in numbers)), min(corners), max(corners))

    return applied


def _divided(a: Rounded, b: Rounded) -> Rounded:
    if b.low <= 0 <= b.high:
        return Rounded(a.value / b.value, -math.inf, math.inf)
    return _monotone(operator.truediv)(a, b)


def _power(a: Rounded, b: Rounded) -> Rounded:
    if a.low <= 0:
        raise DpbenchError("a power needs a positive number below it")
    return _monotone(lambda x, y: float(x) ** float(y))(a, b)


def _absolute(x: Rounded) -> Rounded:
    nearest = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Rounded(abs(x.value), nearest, max(-x.low, x.high))


def _flat(value: Any, end: str, function: Callable[[list[Any]], Any]) -> Any:
    """A function of one end of every number in nested columns."""

    def numbers(value: Any) -> Iterator[Any]:
        if isinstance(value, Rounded):
            yield getattr(value, end)
        else:
            for entry in value:
                yield from numbers(entry)

    return function(list(numbers(value)))


def _answer(function: Callable[[list[Any]], Any]) -> Callable[..., Rounded]:
    """For a function of many numbers or truth values that is nondecreasing in each of them."""
    return lambda *values: Rounded(*(_flat(values, end, function) for end in ("value", "low", "high")))


def _each(function: Callable[[Rounded], Rounded]) -> Callable[..., Any]:
    return lambda *values: _lift(function, *values)


_OPERATORS: Mapping[type[ast.AST], Callable[..., Rounded]] = {
    ast.USub: _monotone(operator.neg),
    ast.Not: _monotone(operator.not_),
    ast.Add: _monotone(operator.add),
    ast.Sub: _monotone(operator.sub),
    ast.Mult: _monotone(operator.mul),
    ast.Div: _divided,
    ast.Pow: _power,
    ast.Lt: _monotone(operator.lt),
    ast.LtE: _monotone(operator.le),
    ast.Gt: _monotone(operator.gt),
    ast.GtE: _monotone(operator.ge),
    ast.Eq: lambda a, b: _exactly(a.value == b.value),
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": _each(_absolute),
    "exp": _each(_monotone(math.exp)),
    "log": _each(_monotone(math.log)),
    "sqrt": _each(_monotone(math.sqrt)),
    **{name: _answer(function) for name, function in (("all", all), ("any", any), ("count", sum))},
    **{name: _answer(function) for name, function in (("len", len), ("max", max), ("min", min), ("sum", sum))},
}


def _plain(value: Any, ends: bool = False) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry, ends) for entry in value]
    return [float(value.low), float(value.high)] if ends else float(value.value)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    return f"{float(value.value):.4g}"
