"""The smallest number of six significant digits that meets a target: a search on the grid of such numbers.

The numbers 100000·10^k ... 999999·10^k are counted through, so the search runs over whole numbers: it only ever asks
about numbers that it could return, and what it returns needs no rounding afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpbench.errors import DpbenchError

DIGITS = 6
_FIRST = 10 ** (DIGITS - 1)
_PER_DECADE = 9 * _FIRST
SMALLEST, LARGEST = 1e-6, 1e9  # noise multipliers beyond these mean a mistake in the target


def grid_number(index: int) -> float:
    """The number of six significant digits with that place in the count; 1.0 has place 0.

    >>> [grid_number(index) for index in (-1, 0, 1, 899999, 900000)]
    [0.999999, 1.0, 1.00001, 9.99999, 10.0]
    """
    decade, place = divmod(index, _PER_DECADE)
    return float(f"{_FIRST + place}e{decade - DIGITS + 1}")


def smallest_noise(attained: Callable[[float], float], target: float, who: str) -> float:
    """The smallest noise multiplier on the grid whose attained ε is at most `target`, and whose lower neighbour fails.

    `attained` gives ε at a noise multiplier and should not increase with it; `who` names the accountant in errors.
    First decades are tried from 1 outwards; between a decade that fails and one that meets the target the ITP method
    (Oliveira and Takahashi 2020, ACM TOMS 47(1): interpolate, truncate, project) closes in on neighbouring numbers,
    on average in about ten calls and never in more than two above bisection. Raises DpbenchError where no noise up to
    1e9 suffices, and where 1e-6 already does.
    """
    asked: dict[int, float] = {}

    def excess(index: int) -> float:
        """log(ε / target): at most 0 where the target is met."""
        if index not in asked:
            asked[index] = attained(grid_number(index))
        if asked[index] <= target:
            return min(math.log(asked[index] / target), 0.0) if asked[index] > 0 else -math.inf
        return max(math.ulp(0.0), math.log(asked[index] / target))  # nan fails, for it does not win here

    last = 0
    while excess(last) > 0:
        if grid_number(last) >= LARGEST:
            raise DpbenchError(
                f"epsilon = {target:g} is out of reach: {who} still gives epsilon = {asked[last]:.6g} with noise"
                f" multiplier {LARGEST:g}; ask for a larger epsilon or delta, fewer steps or a smaller sampling rate"
            )
        last += _PER_DECADE
    first = last - _PER_DECADE
    while excess(first) <= 0:
        if grid_number(first) <= SMALLEST:
            raise DpbenchError(
                f"epsilon = {target:g} needs no noise: {who} meets it with noise multiplier {SMALLEST:g};"
                " check that the composition depends on the noise multiplier and releases anything at all"
            )
        first, last = first - _PER_DECADE, first
    return grid_number(_close_in(excess, first, last))


def _close_in(excess: Callable[[int], float], failing: int, meeting: int) -> int:
    """The meeting end of two neighbours between `failing` (excess > 0) and `meeting` (excess <= 0): ITP."""
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
