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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpbench.claims.claim import Claim, Judgement, Printed
from dpbench.errors import DpbenchError

Exact = Fraction | float


@dataclass(frozen=True)
class Rounded:
    """A number by the printed digits, and the least and the largest that it is before rounding."""

    value: Exact
    low: Exact
    high: Exact


@dataclass(frozen=True)
class Answer:
    """Yes or no by the printed digits; `may`: for some numbers that round to them; `must`: for all of them."""

    value: bool
    may: bool
    must: bool


def judge_expression(claim: Claim) -> Judgement:
    """The verdict on `holds:`, with both sides of every comparison. Raises DpbenchError for what is no such expression.

    >>> numbers = {"more": Printed("13931"), "less": Printed("38"), "factor": Printed("350")}
    >>> claim = Claim("demo", "one", "here", "comparison", "", "holds", "", numbers,
    ...               holds="abs(more / less / factor - 1) <= 0.1")
    >>> found = judge_expression(claim)
    >>> found.verdict, found.reason
    ('holds', 'abs(more / less / factor - 1) <= 0.1: 0.04744 against 0.1')
    """
    seen: dict[str, tuple[Any, Any]] = {}
    found = _Evaluation(claim, seen).answer()
    verdict = "holds" if found.value else "undecided" if found.may else "refuted"
    reason = "; ".join(f"{text}: {_short(left)} against {_short(right)}" for text, (left, right) in seen.items())
    if verdict == "undecided":
        reason += "; rounding may have made the difference"
    evidence = {text: [_plain(left), _plain(right)] for text, (left, right) in seen.items()}
    ends = {text: [_plain(left, ends=True), _plain(right, ends=True)] for text, (left, right) in seen.items()}
    first = next(iter(seen.values()), (None, None))[0]
    value = float(first.value) if isinstance(first, Rounded) else None
    routes = {"the printed digits": evidence, "before rounding": ends}
    return Judgement(verdict, reason, value, {**evidence, "robust_to_rounding": found.must or not found.may}, routes)


def names_in(text: str) -> tuple[str, ...]:
    """The names of an expression, dotted ones whole. Raises DpbenchError where it is no expression.

    >>> names_in("all(seconds.jl <= factor * seconds.sgd)")
    ('seconds.jl', 'factor', 'seconds.sgd')
    """
    return tuple(dict.fromkeys(_names(_parsed(text).body)))


def _parsed(text: str) -> ast.Expression:
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise DpbenchError(f"{text!r} is no expression: {error}") from None


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        children: list[ast.AST] = list(node.args)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield _dotted(node)
        return
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _names(child)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise DpbenchError(f"{ast.unparse(node)!r}: expected a name")


class _Evaluation:
    """Walks one expression; `seen` collects both sides of its comparisons."""

    def __init__(self, claim: Claim, seen: dict[str, tuple[Any, Any]]) -> None:
        self.text, self.claim, self.seen = claim.holds.strip(), claim, seen

    def answer(self) -> Answer:
        try:
            found = self.at(_parsed(self.text).body)
        except (ArithmeticError, ValueError, TypeError, IndexError) as error:
            raise DpbenchError(f"{self.text!r} cannot be computed: {error}") from None
        if not isinstance(found, Answer):
            raise DpbenchError(f"{self.text!r}: expected a comparison, or all(...) or any(...) of a column")
        return found

    def at(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return _exactly(Fraction(ast.get_source_segment(self.text, node) or str(node.value)))
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(_dotted(node))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self.at(node.value)[node.slice.value]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _lift(_ARITHMETIC[type(node.op)], self.at(node.left), self.at(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _lift(lambda x: Rounded(-x.value, -x.high, -x.low), self.at(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _lift(lambda x: Answer(not x.value, not x.must, not x.may), self.at(node.operand))
        if isinstance(node, ast.BoolOp):
            return (_all if isinstance(node.op, ast.And) else _any)([self.at(value) for value in node.values])
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
            return self._compared(node)
        if isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in _FUNCTIONS:
            return _FUNCTIONS[ast.unparse(node.func)]([self.at(value) for value in node.args])
        raise DpbenchError(f"{ast.unparse(node)!r} is not known in expressions; docs/claims.md tells what is")

    def _named(self, name: str) -> Any:
        names = {**self.claim.published, **self.claim.printed}
        if name not in names:
            raise DpbenchError(f"{name!r} is no printed number of this claim")
        return _lift(_rounded if name in self.claim.published else _stated, names[name])

    def _compared(self, node: ast.Compare) -> Any:
        sides = [self.at(side) for side in (node.left, *node.comparators)]
        words = [ast.unparse(side) for side in (node.left, *node.comparators)]
        found = []
        for place, op in enumerate(node.ops):
            symbol, compared = _COMPARISONS[type(op)]
            self.seen[f"{words[place]} {symbol} {words[place + 1]}"] = (sides[place], sides[place + 1])
            found.append(_lift(compared, sides[place], sides[place + 1]))
        return found[0] if len(found) == 1 else _lift(lambda *answers: _all(list(answers)), *found)


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


def _exactly(value: Exact) -> Rounded:
    return Rounded(value, value, value)


def _stated(number: Printed) -> Rounded:
    return _exactly(Fraction(number.text))


def _rounded(number: Printed) -> Rounded:
    value, half = Fraction(number.text), Fraction(number.unit_text) / 2
    return Rounded(value, value - half, value + half)


def _between(function: Callable[[Exact, Exact], Exact], a: Rounded, b: Rounded) -> Rounded:
    """By the corners: the functions here rise or fall in each argument on its own."""
    corners: list[Exact] = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Rounded(function(a.value, b.value), min(corners), max(corners))


def _divided(a: Rounded, b: Rounded) -> Rounded:
    if b.low <= 0 <= b.high:
        return Rounded(a.value / b.value, -math.inf, math.inf)
    return _between(operator.truediv, a, b)


def _power(a: Rounded, b: Rounded) -> Rounded:
    if a.low <= 0 and b.value != 2:
        raise DpbenchError("a power needs a positive number below it")
    found = _between(lambda x, y: float(x) ** float(y), a, b)
    return replace(found, low=min(found.low, 0.0)) if a.low <= 0 else found


def _ordered(below: Callable[[Exact, Exact], bool], swapped: bool = False) -> Callable[[Rounded, Rounded], Answer]:
    def compared(a: Rounded, b: Rounded) -> Answer:
        a, b = (b, a) if swapped else (a, b)
        return Answer(below(a.value, b.value), below(a.low, b.high), below(a.high, b.low))

    return compared


def _equal(a: Rounded, b: Rounded) -> Answer:
    same = a.value == b.value
    return Answer(same, same, same)


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, list | tuple):
        return [values]
    return [entry for value in values for entry in _flat(value)]


def _all(values: Any) -> Answer:
    found = _flat(values)
    return Answer(*(all(getattr(answer, name) for answer in found) for name in ("value", "may", "must")))


def _any(values: Any) -> Answer:
    found = _flat(values)
    return Answer(*(any(getattr(answer, name) for answer in found) for name in ("value", "may", "must")))


def _count(values: Any) -> Rounded:
    found: list[Answer] = _flat(values)
    exactly, least, most = (sum(answers) for answers in zip(*((a.value, a.must, a.may) for a in found), strict=True))
    return Rounded(Fraction(exactly), Fraction(least), Fraction(most))


def _of_all(function: Callable[[list[Exact]], Exact]) -> Callable[[Any], Rounded]:
    def applied(values: Any) -> Rounded:
        found: list[Rounded] = _flat(values)
        ends = [[one.value for one in found], [one.low for one in found], [one.high for one in found]]
        return Rounded(*map(function, ends))

    return applied


def _rising(function: Callable[[Exact], Exact]) -> Callable[[Any], Any]:
    return lambda values: _lift(lambda x: Rounded(function(x.value), function(x.low), function(x.high)), *values)


def _absolute(values: Any) -> Any:
    def absolute(x: Rounded) -> Rounded:
        flipped = Rounded(-x.value, -x.high, -x.low)
        nearest: Exact = x.low if x.low > 0 else flipped.low if x.high < 0 else Fraction(0)
        return Rounded(max(x.value, flipped.value), nearest, max(x.high, flipped.high))

    return _lift(absolute, *values)


_ARITHMETIC: Mapping[type[ast.AST], Callable[[Rounded, Rounded], Rounded]] = {
    ast.Add: lambda a, b: _between(operator.add, a, b),
    ast.Sub: lambda a, b: _between(operator.sub, a, b),
    ast.Mult: lambda a, b: _between(operator.mul, a, b),
    ast.Div: _divided,
    ast.Pow: _power,
}
_COMPARISONS: Mapping[type[ast.AST], tuple[str, Callable[[Rounded, Rounded], Answer]]] = {
    ast.Lt: ("<", _ordered(operator.lt)),
    ast.LtE: ("<=", _ordered(operator.le)),
    ast.Gt: (">", _ordered(operator.lt, swapped=True)),
    ast.GtE: (">=", _ordered(operator.le, swapped=True)),
    ast.Eq: ("==", _equal),
}
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "abs": _absolute,
    "all": _all,
    "any": _any,
    "count": _count,
    "exp": _rising(math.exp),
    "len": lambda values: _exactly(Fraction(len(_flat(values)))),
    "log": _rising(math.log),
    "max": _of_all(lambda numbers: max(numbers)),
    "min": _of_all(lambda numbers: min(numbers)),
    "sqrt": _rising(math.sqrt),
    "sum": _of_all(lambda numbers: sum(numbers, Fraction(0))),
}


def _plain(value: Any, ends: bool = False) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry, ends) for entry in value]
    return [float(value.low), float(value.high)] if ends else float(value.value)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_short, value)) + "]"
    return f"{float(value.value):.4g}"
