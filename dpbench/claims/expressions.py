"""`holds: <expression>`: what a source says of its own printed numbers, judged by arithmetic.

    published:
      seconds: {jl: [6.6, 38, 3], sgd: [5.2, 40, 1]}        # a table, with the digits that are printed
    claims:
      - id: at-most-double
        printed: {factor: 2}
        holds: all(seconds.jl <= factor * seconds.sgd)

Names are printed numbers of the claim and dotted places of the tables; columns of equal length are taken row by row.
Known are + - * / **, comparisons, and, or, not, brackets for one entry (`seconds.jl[0]`), and abs, all, any, count,
exp, len, log, max, min, sqrt and sum. Nothing else is, and nothing is executed.

Arithmetic is exact, in the printed digits. A number of a table may have been rounded: an order (<, <=, >, >=) is
refuted only where it fails for every number that rounds to what is printed, else undecided; equality is about the
digits. What the claim itself prints is a statement, and means what it says.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpbench.claims.claim import Claim, Judgement, Printed
from dpbench.errors import DpbenchError


@dataclass(frozen=True)
class Rounded:
    """A number by the printed digits, and the least and the largest that it may be before rounding.

    Or an answer: by the printed digits, whether it is yes for all numbers that round to them, and for some.
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
    found, seen = evaluation.answer(), evaluation.seen
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
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise DpbenchError(f"{text!r} is no expression: {error}") from None


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
            return _exactly(Fraction(ast.get_source_segment(self.text, node) or str(node.value)))
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(ast.unparse(node))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self.at(node.value)[node.slice.value]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _lift(_ARITHMETIC[type(node.op)], self.at(node.left), self.at(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _FLIPS:
            flip = _FLIPS[type(node.op)]
            return _lift(lambda x: Rounded(flip(x.value), flip(x.high), flip(x.low)), self.at(node.operand))
        if isinstance(node, ast.BoolOp):
            function = all if isinstance(node.op, ast.And) else any
            return _lift(lambda *answers: _of_all(function)(answers), *map(self.at, node.values))
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
            return self._compared(node)
        if isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in _FUNCTIONS:
            return _FUNCTIONS[ast.unparse(node.func)]([self.at(value) for value in node.args])
        raise DpbenchError(f"{ast.unparse(node)!r} is not known in expressions; docs/claims.md tells what is")

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
            symbol, compared = _COMPARISONS[type(op)]
            text = f"{ast.unparse(parts[place])} {symbol} {ast.unparse(parts[place + 1])}"
            self.seen[text] = (sides[place], sides[place + 1])
            found.append(_lift(compared, *self.seen[text]))
            rows = found[-1] if isinstance(found[-1], tuple) else ()
            self.fails[text] = [row for row, answer in enumerate(rows, 1) if not _of_all(all)(answer).value]
        return _lift(lambda *answers: _of_all(all)(answers), *found)


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


def _corners(function: Callable[[Any, Any], Any]) -> Callable[[Rounded, Rounded], Rounded]:
    """For a function that rises or falls in each argument on its own."""

    def applied(a: Rounded, b: Rounded) -> Rounded:
        found = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Rounded(function(a.value, b.value), min(found), max(found))

    return applied


def _divided(a: Rounded, b: Rounded) -> Rounded:
    if b.low <= 0 <= b.high:
        return Rounded(a.value / b.value, -math.inf, math.inf)
    return _corners(operator.truediv)(a, b)


def _power(a: Rounded, b: Rounded) -> Rounded:
    if a.low <= 0:
        raise DpbenchError("a power needs a positive number below it")
    return _corners(lambda x, y: float(x) ** float(y))(a, b)


def _ordered(below: Callable[[Any, Any], bool], swapped: bool = False) -> Callable[[Rounded, Rounded], Rounded]:
    def compared(a: Rounded, b: Rounded) -> Rounded:
        a, b = (b, a) if swapped else (a, b)
        return Rounded(below(a.value, b.value), below(a.high, b.low), below(a.low, b.high))

    return compared


def _absolute(x: Rounded) -> Rounded:
    nearest = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Rounded(abs(x.value), nearest, max(-x.low, x.high))


def _flat(values: Any) -> list[Rounded]:
    return [values] if isinstance(values, Rounded) else [entry for value in values for entry in _flat(value)]


def _of_all(function: Callable[[Sequence[Any]], Any]) -> Callable[[Any], Rounded]:
    """For a function of many numbers or answers that does not fall in any of them."""

    def applied(values: Any) -> Rounded:
        found = _flat(values)
        return Rounded(*(function([getattr(one, end) for one in found]) for end in ("value", "low", "high")))

    return applied


def _each(function: Callable[[Rounded], Rounded]) -> Callable[[Any], Any]:
    return lambda values: _lift(function, *values)


def _rising(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return _each(lambda x: Rounded(function(x.value), function(x.low), function(x.high)))


_FLIPS: Mapping[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_ARITHMETIC: Mapping[type[ast.AST], Callable[[Rounded, Rounded], Rounded]] = {
    ast.Add: _corners(operator.add),
    ast.Sub: _corners(operator.sub),
    ast.Mult: _corners(operator.mul),
    ast.Div: _divided,
    ast.Pow: _power,
}
_COMPARISONS: Mapping[type[ast.AST], tuple[str, Callable[[Rounded, Rounded], Rounded]]] = {
    ast.Lt: ("<", _ordered(operator.lt)),
    ast.LtE: ("<=", _ordered(operator.le)),
    ast.Gt: (">", _ordered(operator.lt, swapped=True)),
    ast.GtE: (">=", _ordered(operator.le, swapped=True)),
    ast.Eq: ("==", lambda a, b: _exactly(a.value == b.value)),
}
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "abs": _each(_absolute),
    "all": _of_all(all),
    "any": _of_all(any),
    "count": _of_all(sum),
    "exp": _rising(math.exp),
    "len": lambda values: _exactly(len(_flat(values))),
    "log": _rising(math.log),
    "max": _of_all(max),
    "min": _of_all(min),
    "sqrt": _rising(math.sqrt),
    "sum": _of_all(sum),
}


def _plain(value: Any, ends: bool = False) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry, ends) for entry in value]
    return [float(value.low), float(value.high)] if ends else float(value.value)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    return f"{float(value.value):.4g}"
