"""δ(ε) and ε(δ) of one direction: the lines of `_inversion`, planned again where they do not serve, and the root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._chain import SHARED, chained
from dpbench.accountants._contour import Transform
from dpbench.accountants._inversion import PARITY, Inversion, TooLong, TooWide, invert, invert_at
from dpbench.accountants._loss_leaf import UNIT, Floats
from dpbench.accountants._spans import Spans

PROMISED, SMALLEST = 1e-9, 1e-12  # the relative and the absolute error that an answer should have at most
_UNTOLD = 1e-15
_FLOOR = math.log(1e-18)  # below this an absolute error of 1e-12 is safe by far
_CLOSE = 2e-11  # relative error of δ up to which lines planned for another ε serve
_NEAR = 1e-11  # the same for an error of ε relative to ε
_WORTH_A_SPAN, WORTH_A_CHAIN = 6, 24  # ε
_MOST_REVERSED = 10.0  # ε up to which one direction's lines may tell of the other's δ
_MOST_SHARED = 1 << 16  # nodes of all lines of a span
_AT_ONCE = 64
_AT_MOST = 0.01  # error relative to δ from which on lines tell nothing
_LITTLE = 1e-14  # an error that is little enough whatever δ is
_NO_USE = 0.01  # relative error of δ from which on lines do not even show the way to the root
_SAME = 1e-3  # relative change of δ: lines planned this close are as good as those planned for the very ε
_PULLED, _APART = 20.0, 2.0  # ε over the loss's deviation, and over the ε without large losses, of a guess in doubt
_MOST_SEARCHED = 1 << 19  # nodes of all lines in the search of one root
_PLANS, _STEPS = 16, 80


@dataclass(frozen=True)
class Value:
    """A number and a bound of its absolute error."""

    value: float
    error: float


@dataclass
class Direction:
    """δ(ε) and ε(δ) of one direction."""

    transform: Transform
    _lowest: Inversion | None = field(default=None, repr=False)  # the lines of the lowest ε that was asked for

    def bound(self, epsilon: float) -> float:
        """The logarithm of the Chernoff bound of δ(ε); −∞ beyond the largest loss."""
        if epsilon >= self.transform.largest_loss:
            return -math.inf
        return float(self.transform.ladder(epsilon).chernoff(epsilon).min())

    def bounds(self, epsilons: Sequence[float]) -> list[float]:
        """`bound` at ascending ε."""
        largest = self.transform.largest_loss
        inside = [epsilon for epsilon in epsilons if epsilon < largest]
        found = self.transform.ladder(inside[-1]).log_bound(np.array(inside)).tolist() if inside else []
        return found + [-math.inf] * (len(epsilons) - len(inside))

    def delta(self, epsilon: float) -> Value:
        """δ(ε) with its error."""
        return self.deltas([epsilon])[0]

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε, with their errors: lines serve as many ε as they may."""
        largest = self.transform.largest_loss
        inside = np.array([one for one in epsilons if one < largest], dtype=np.float64)
        answers = _Answers(inside)
        spans = Spans(self.transform, inside) if len(inside) > 1 else None
        while not answers.known.all():
            first = answers.first
            self._chained(answers, spans)
            if answers.known[first]:
                continue
            if spans is None or not self._span(answers, spans):
                self._alone(answers, spans.target(first) if spans is not None else None)
            if spans is not None:
                spans.seen(first, answers.first, answers.values)
        return answers.settled() + [Value(0.0, 0.0)] * (len(epsilons) - len(inside))

    def _chained(self, answers: _Answers, spans: Spans | None, long: bool = False) -> None:
        """δ at all ε without answer by one chain of parts, unless there is no use in trying that.

        `long` says that one line for the first of them is known not to come to its end soon.
        """
        places = np.flatnonzero(~answers.known)
        if not answers.chains or len(places) < WORTH_A_CHAIN or spans is None:
            return
        target = spans.target(answers.first)
        if target is None and answers.first > 0:
            return
        answers.chains = False
        try:
            told = spans.log_delta[places], spans.lost[places]
            found = chained(self.transform, answers.epsilons[places], told, target, long)
        except ArithmeticError:  # each ε alone may take fewer points
            return
        if found is None:  # one line may serve the first ε, and none the next
            answers.chains = not long
            return
        served = places[found.told]
        answers.values[served], answers.errors[served] = found.values[found.told], found.errors[found.told]
        answers.known[served] = True
        if answers.known[places[0]] and places[0] == 0:
            self._lowest = self._lowest or found.lines

    def reversed(self, epsilons: Sequence[float]) -> list[Value] | None:
        """δ of the other direction at these ε >= 0: 1 − e^ε + e^ε δ(−ε), by lines that are known already.

        The error is large where δ is small, or far from what the lines were made for. None where no lines are known.
        """
        if self._lowest is None or not epsilons:
            return None
        at = np.array(epsilons, dtype=np.float64)
        grown = np.expm1(np.minimum(at, _MOST_REVERSED))
        with np.errstate(over="ignore", invalid="ignore"):  # far from what the lines were made for
            value, _, error = self._lowest.at(-np.minimum(at, _MOST_REVERSED))
            found = (1 + grown) * value - grown
            wrong = (1 + grown) * error + 4 * UNIT * (1 + 2 * grown)
        untold = (at > _MOST_REVERSED) | ~np.isfinite(found)
        found[untold], wrong[untold] = 0.0, math.inf
        return [Value(*pair) for pair in zip(found.tolist(), wrong.tolist(), strict=True)]

    def _span(self, answers: _Answers, spans: Spans) -> bool:
        """δ at the first ε without answer and at more, by lines planned for all of them; false where none are."""
        first = answers.first
        for least, whole in ((-math.inf, True), (-math.inf, False), (PARITY, False)):
            if whole and len(answers.known) < WORTH_A_CHAIN:
                continue
            aim, count = spans.aim(first, least)
            if count < _WORTH_A_SPAN:
                return False
            try:
                lines = invert_at(self.transform, aim, _MOST_SHARED, whole)
            except TooWide:
                continue
            except TooLong:  # a chain may serve more than split lines do
                self._chained(answers, spans, True)
                if answers.known[first]:
                    return True
                continue
            except ArithmeticError:  # each alone may take fewer
                spans.useless()
                return False
            if lines is None:
                return False
            answers.serve(lines, first, first + count, SHARED)
            if answers.known[first]:
                self._lowest = self._lowest or lines
                return True
            if not whole:  # split lines may tell more than one of the whole
                self._lowest = self._lowest or lines
                spans.failed()
                return False
        return False

    def _alone(self, answers: _Answers, target: float | None) -> None:
        """δ at the first ε without answer, whose logarithm is about `target`, and at all others that lines serve."""
        place = answers.first
        first = float(answers.epsilons[place])
        try:
            lines = self._planned(first, target)
        except ArithmeticError:
            if target is not None:  # which may be far off
                return self._alone(answers, None)
            # no lines with nodes few enough: no more is known than the Chernoff bound
            return answers.set(place, 0.0, math.exp(min(self.bound(first), 0.0)))
        if lines is None:
            return answers.set(place, 0.0, math.ulp(0.0))
        value, _, error = lines(first)
        if target is not None and error > max(SHARED * value, _LITTLE):
            return self._alone(answers, None)
        self._lowest = self._lowest or lines
        answers.set(place, value, error)
        # more than that where no other lines would do better; and where these tell no more than that δ is little
        told = value > 0 and error <= _AT_MOST * value
        share = max(SHARED, 4 * error / value) if told else SHARED
        return answers.serve(lines, place + 1, len(answers.known), share, 0.0 if told or error > _LITTLE else error)

    def _planned(self, epsilon: float, target: float | None = None) -> Inversion | None:
        """The lines for this ε, with its own δ as the target; None where δ is below every double."""
        best: Inversion | None = None
        least = math.inf
        for _ in range(6):
            try:
                found = invert(self.transform, epsilon, target)
            except ArithmeticError:
                if best is None:
                    raise
                break  # the lines of the larger target tell what can be told
            if found is None:
                return None
            value, _, error = found(epsilon)
            if best is None or error < least:
                best, least = found, error
            if value > 0 and (math.log(value) > found.log_target - 3 or error <= _CLOSE * value):
                break
            if found.log_target < _FLOOR and value <= error:
                break
            target = math.log(value) if value > error else found.log_target - 8
        return best

    def _guesses(self, log_delta: float) -> tuple[float, float]:
        """About ε(δ), and the saddle point's guess: less where large losses that do not occur pull that one far up."""
        guess = max(self.transform.guess_epsilon(log_delta), 0.0)
        if guess > _PULLED * self.transform.spread:
            try:
                bulk = self.transform.swapped.guess_epsilon(log_delta)  # the same releases, and no large losses
            except ArithmeticError:  # its loss has hardly any width
                return guess, guess
            if guess > _APART * bulk > 0:
                return min(guess, max(bulk, self.transform.guess_jump(log_delta))), guess
        return guess, guess

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta, with its error."""
        ceiling = self.transform.largest_loss
        if ceiling <= 0:
            return Value(0.0, 0.0)
        epsilon, other = self._guesses(log_delta)
        search = _Search(self.transform, log_delta, ceiling, other)
        for _ in range(_PLANS):
            epsilon = min(epsilon, ceiling * (1 - 1e-6))
            try:
                following, finished = search.from_lines(epsilon)
            except ArithmeticError:  # no lines with nodes few enough
                if epsilon >= min(other, ceiling * (1 - 1e-6)):
                    break
                following, finished = other, None
            epsilon = following
            if finished is not None:
                return finished
            if search.nodes > _MOST_SEARCHED:
                break
        low, high = search.certain
        if math.isinf(high):
            high = self.transform.most_epsilon(log_delta)
        if math.isinf(high):
            raise ArithmeticError(f"no root found for log delta = {log_delta:.6g}")
        return Value((low + high) / 2, (high - low) / 2)  # the lines tell no more than that it lies between these two


class _Answers:
    """δ at ascending ε, as far as it is known."""

    def __init__(self, epsilons: Floats) -> None:
        self.epsilons = epsilons
        self.values, self.errors = np.zeros(len(epsilons)), np.zeros(len(epsilons))
        self.known = np.zeros(len(epsilons), dtype=np.bool_)
        self.chains = True  # whether there may be use in one

    @property
    def first(self) -> int:
        """The number of the first ε without answer."""
        return int(np.argmin(self.known)) if not self.known.all() else len(self.known)

    def set(self, place: int, value: float, error: float) -> None:
        """The answer at one ε."""
        self.values[place], self.errors[place], self.known[place] = value, error, True

    def serve(self, lines: Inversion, start: int, stop: int, share: float, least: float = 0.0) -> None:
        """Answers where these lines have an error of at most `least`, or `share` relative to δ; then no more."""
        for low in range(start, stop, _AT_ONCE):
            places = np.arange(low, min(low + _AT_ONCE, stop))
            places = places[~self.known[places]]
            if not len(places):
                continue
            value, _, error = lines.at(self.epsilons[places])
            good = error <= np.maximum(share * value, least)
            if not good.any():
                return
            places = places[good]
            self.values[places], self.errors[places], self.known[places] = value[good], error[good], True

    def settled(self) -> list[Value]:
        """All answers."""
        return [_settled(value, error) for value, error in zip(self.values.tolist(), self.errors.tolist(), strict=True)]


@dataclass
class _Search:
    """Newton's method for δ(ε) = e^log_delta, on lines planned where needed.

    The root is looked for between `low` and `high`, and lies between those that are `certain`.
    """

    transform: Transform
    log_delta: float
    high: float
    other: float  # a second guess, for where the lines of the first tell nothing
    low: float = -1.0
    nodes: int = 0
    certain: tuple[float, float] = (0.0, math.inf)

    def __post_init__(self) -> None:
        self.certain = (0.0, self.high)

    def from_lines(self, start: float) -> tuple[float, Value | None]:
        """Newton's steps on the lines planned for `start`: where to plan the next ones, or the root."""
        target = math.exp(self.log_delta)
        lines = invert(self.transform, start, self.log_delta)
        if lines is None:  # δ there is below every double
            self._is_below(start)
            return self._between(), None
        self.nodes += sum(len(piece.sums.z) for piece in lines.pieces)
        epsilon, last = start, math.inf
        for _ in range(_STEPS):
            value, slope, error = lines(epsilon)
            if value - error > target:
                self.low, self.certain = max(self.low, epsilon), (max(self.certain[0], epsilon), self.certain[1])
            elif value + error < target:
                self._is_below(epsilon)
                if epsilon == 0:
                    return 0.0, Value(0.0, 0.0)
            left_out = float(lines.left_out(np.array([epsilon]))[0])
            if not slope < 0 or not error - left_out <= _NO_USE * max(value, target):
                if epsilon == start:
                    return self._astray(epsilon, value, error), None
                return self._inside(epsilon), None
            change = math.log(value / target) * value / slope if value > 0 else epsilon / 2
            if abs(change) <= 4e-15 * epsilon or (abs(change) >= last and error >= abs(value - target)):
                break
            following = self._inside(epsilon - change)
            if following == epsilon:
                break
            epsilon, last = following, abs(change)
        close = error <= max(_CLOSE * target, _NEAR * epsilon * abs(slope))
        if close or abs(epsilon - start) * abs(slope) <= _SAME * value:
            return epsilon, Value(epsilon, (error + abs(value - target)) / abs(slope) + 4 * UNIT * epsilon)
        if error > target:  # what was left out counts at the lower ε: its own root is the better guess
            guesses = [one.transform.guess_epsilon(self.log_delta) for one in lines.dropped if not one.mirrored]
            epsilon = self._inside(max([epsilon, *(guess for guess in guesses if guess < start)]))
        return epsilon, None

    def _is_below(self, epsilon: float) -> None:
        """The root is below this ε, for certain."""
        self.high = min(self.high, epsilon)
        self.certain = (self.certain[0], min(self.certain[1], epsilon))

    def _inside(self, epsilon: float) -> float:
        """This ε, or one between the bounds of the root where it lies beyond one."""
        if epsilon <= self.low:
            return self._between()
        if epsilon <= 0:
            return 0.0
        return epsilon if epsilon < self.high else self._between()

    def _between(self) -> float:
        low = max(self.low, 0.0)
        if math.isinf(self.high):
            return 2 * low + 2.0**-40
        return math.sqrt(low * self.high) if low > 0 else self.high / 4

    def _astray(self, epsilon: float, value: float, error: float) -> float:
        """Where to go on when not even the lines planned for this ε tell δ there: δ may be far below the target."""
        if value + error >= math.exp(self.log_delta) and error < value:
            self.low = max(self.low, epsilon)
        elif epsilon < self.other < self.high:
            return self.other
        else:
            self.high = min(self.high, epsilon)
        return self._between()


def _settled(value: float, error: float) -> Value:
    if error >= value / 2 and value + error < _UNTOLD:
        return Value(0.0, value + error)  # noise: far below what a line can tell here
    return Value(max(value, 0.0), error)
