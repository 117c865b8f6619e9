"""Search for the edge between the numbers that meet a target and those that miss it.

Noise and rates are numbers of six significant digits, steps and batches whole numbers. Both are indexed by whole
numbers, and the search runs over the index: it asks only about numbers that it could return, so no rounding follows.
The result meets the target and its neighbour misses it. Where ε is not monotone there may be other edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpbench.errors import DpbenchError

DIGITS = 6
_FIRST = 10 ** (DIGITS - 1)
_PER_DECADE = 9 * _FIRST
SMALLEST, LARGEST = 1e-6, 1e9  # noise multipliers beyond these mean a mistake in the target
LEAST = 1e-12  # of sampling rates and epochs

Attained = Callable[[float], float]


@dataclass(frozen=True)
class Found:
    """The last number that meets the target, its neighbour that misses it, and how many numbers were asked about.

    `neighbour` is None where the numbers end, such as a sampling rate of 1.
    """

    value: float
    neighbour: float | None
    asked: int


def grid_number(index: int) -> float:
    """The number of six significant digits with that index; 1.0 has index 0.

    >>> [grid_number(index) for index in (-1, 0, 1, 899999, 900000)]
    [0.999999, 1.0, 1.00001, 9.99999, 10.0]
    """
    decade, place = divmod(index, _PER_DECADE)
    return float(f"{_FIRST + place}e{decade - DIGITS + 1}")


def grid_index(number: float) -> int | None:
    """The index of a number of the grid between SMALLEST and LARGEST; None for every other number.

    >>> [grid_index(number) for number in (0.999999, 1.0, 10.0, 1.000001, float("nan"))]
    [-1, 0, 900000, None, None]
    """
    if not SMALLEST <= number <= LARGEST:
        return None
    digits, _, exponent = f"{number:.{DIGITS - 1}e}".partition("e")
    index = int(exponent) * _PER_DECADE + int(digits.replace(".", "")) - _FIRST
    return index if grid_number(index) == number else None


class _Asked:
    """How far ε is from its target, by index; each number is asked about once."""

    def __init__(self, attained: Attained, target: float, number: Callable[[int], float]) -> None:
        self.attained, self.target, self.number = attained, target, number
        self.known: dict[int, float] = {}

    def epsilon(self, index: int) -> float:
        if index not in self.known:
            self.known[index] = self.attained(self.number(index))
        return self.known[index]

    def excess(self, index: int) -> float:
        """log(ε / target): at most 0 where the target is met."""
        epsilon = self.epsilon(index)
        if epsilon <= self.target:
            return min(math.log(epsilon / self.target), 0.0) if epsilon > 0 else -math.inf
        return max(math.ulp(0.0), math.log(epsilon / self.target))  # NaN counts as a miss

    def found(self, meeting: int, missing: int | None) -> Found:
        neighbour = None if missing is None else self.number(missing)
        return Found(self.number(meeting), neighbour, len(self.known))


def smallest_noise(
    attained: Attained, target: float, who: str, what: str = "noise multiplier", hint: float | None = None
) -> Found:
    """The smallest noise multiplier on the grid whose attained ε is at most `target`, and whose lower neighbour fails.

    `attained` gives ε at a noise multiplier and should not increase with it; `who` names the accountant in errors,
    `what` the number. Tries decades from 1 outwards, then closes in on the edge, in about ten calls on average; first
    the `hint`, which is the answer if it is found to be one. Raises DpbenchError where no noise up to 1e9 suffices, and
    where 1e-6 already does.

    >>> smallest_noise(lambda noise: 3 / noise, 7.0, "a formula").value
    0.428572
    """
    asked = _Asked(attained, target, grid_number)
    hinted = None if hint is None else grid_index(hint)
    if hinted is not None and asked.excess(hinted) <= 0 < asked.excess(hinted - 1):
        return asked.found(hinted, hinted - 1)
    last = 0
    while asked.excess(last) > 0:
        if grid_number(last) >= LARGEST:
            raise DpbenchError(
                f"epsilon = {target:g} is out of reach: {who} still gives epsilon = {asked.epsilon(last):.6g} with"
                f" {what} {LARGEST:g}; ask for a larger epsilon or delta, fewer steps or a smaller sampling"
                " rate"
            )
        last += _PER_DECADE
    first = last - _PER_DECADE
    while asked.excess(first) <= 0:
        if grid_number(first) <= SMALLEST:
            raise DpbenchError(
                f"epsilon = {target:g} needs no noise: {who} meets it with {what} {SMALLEST:g};"
                f" check that the composition depends on the {what} and releases anything at all"
            )
        first, last = first - _PER_DECADE, first
    edge = _close_in(asked.excess, first, last)
    return asked.found(edge, edge - 1)


def largest_whole(attained: Attained, target: float, most: int, who: str, what: str) -> Found:
    """The largest whole number from 1 to `most` whose attained ε is at most `target`, and whose neighbour above fails.

    Numbers double from 1 until one misses the target. Raises DpbenchError where already 1 does; `what` names the
    number in that error.

    >>> largest_whole(lambda steps: 0.3 * steps**0.5, 2.0, 10**6, "a formula", "steps")
    Found(value=44, neighbour=45, asked=11)
    """
    asked = _Asked(attained, target, lambda index: -index)  # negated, so that larger indices meet the target
    if asked.excess(-1) > 0:
        raise DpbenchError(
            f"epsilon = {target:g} is out of reach: {who} gives epsilon = {asked.epsilon(-1):.6g} with {what} = 1;"
            " ask for a larger epsilon or delta, or more noise"
        )
    meeting = 1
    while meeting < most:
        missing = min(2 * meeting, most)
        if asked.excess(-missing) > 0:
            edge = _close_in(asked.excess, -missing, -meeting)
            return asked.found(edge, edge - 1)
        meeting = missing
    return asked.found(-most, None)


def largest_number(attained: Attained, target: float, most: float, who: str, what: str) -> Found:
    """The largest number on the grid, up to `most` (a power of ten), whose attained ε is at most `target`.

    For sampling rates (up to 1) and epochs; the neighbour above misses the target. Raises DpbenchError where even
    1e-12 misses it; `what` names the number in that error.

    >>> largest_number(lambda rate: 100 * rate, 3.0, 1.0, "a formula", "sampling rate")
    Found(value=0.03, neighbour=0.0300001, asked=12)
    """
    asked = _Asked(attained, target, lambda index: grid_number(-index))  # negated: larger indices meet the target
    first = 0
    while asked.excess(first) <= 0:
        if grid_number(-first) >= most:
            return asked.found(first, None)
        first -= _PER_DECADE
    last = first + _PER_DECADE
    while asked.excess(last) > 0:
        if grid_number(-last) <= LEAST:
            raise DpbenchError(
                f"epsilon = {target:g} is out of reach: {who} still gives epsilon = {asked.epsilon(last):.6g} with"
                f" {what} = {LEAST:g}; ask for a larger epsilon or delta, fewer steps or more noise"
            )
        last += _PER_DECADE
    edge = _close_in(asked.excess, last - _PER_DECADE, last)
    return asked.found(edge, edge - 1)


def _close_in(excess: Callable[[int], float], failing: int, meeting: int) -> int:
    """The meeting end of two neighbours between `failing` (excess > 0) and `meeting` (excess <= 0): ITP.

    Oliveira and Takahashi 2020, ACM TOMS 47(1): interpolate, truncate, project; never more than two calls above
    bisection.
    """
    first_width = meeting - failing
    allowed = math.ceil(math.log2(first_width)) + 1  # bisection's calls and one in reserve
    calls = 0
    while meeting - failing > 1:
        width = meeting - failing
        middle = (failing + meeting) / 2
        high, low = excess(failing), excess(meeting)
        point = middle
        if math.isfinite(high) and math.isfinite(low) and high > low:
            crossing = failing + width * high / (high - low)
            side = math.copysign(1.0, middle - crossing)
            shift = 0.2 / first_width * width**2
            truncated = crossing + side * shift if shift <= abs(middle - crossing) else middle
            radius = max(2.0 ** (allowed - calls - 1) - width / 2, 0.0)
            point = truncated if abs(truncated - middle) <= radius else middle - side * radius
        index = min(max(round(point), failing + 1), meeting - 1)
        calls += 1
        if excess(index) > 0:
            failing = index
        else:
            meeting = index
    return meeting
