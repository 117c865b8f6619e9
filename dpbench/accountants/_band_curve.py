"""δ of a whole curve, band by band: windows that do for all ε together, and lines that serve as many ε as they may.

| here | meaning |
| --- | --- |
| E, X | axes: ε of the curve, real points at which transforms are looked at |
| A, D, ε' | as in `_bands`: all below a level, what lies between two of them, ε less the origin of the losses |

`Bands.split` lays levels for one ε and sums each line to see whether it is the last. Here `_band_levels` has the sums
at real points first: they tell the rounding of every line at every ε, and so which level is low enough for all of
them, and which ε one line serves.

What a line has to tell is relative to an estimate of δ, which decides nothing but the time: an answer's error is that
of its lines, as `_bands` bounds it, and where that is large beside what was found instead, other lines are laid. Where
a line ends is first sought about where a normal integrand would. If further up, at heights close to each other, |D| is
larger again, since losses next to one size turn together, the line is laid anew as `Bands.split` does it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dpbench.accountants._band_levels import MOST_LOST, Levels, Part, long_period
from dpbench.accountants._band_line import Band
from dpbench.accountants._band_split import Lay, Piece
from dpbench.accountants._bands import ENOUGH, PRECISION, Bands
from dpbench.accountants._loss_leaf import UNIT, Floats

_LONGEST = 40  # windows
_LOST = math.log(3e-11)  # rounding relative to δ on a line, at first
_ABOVE_LEAST, _LITTLE = 2.5, 0.7  # log of how much above the least it may be where all lose much, and anywhere
_LOOKED, _BETWEEN = 10, 7  # ε at which a level is looked at, and a line
_PROBES = 8  # points at which a line is looked at before it is summed
_AS_MANY = 40.0  # nodes that would take the time that a line takes without them
_ROUNDS, _SHARED, _FEWEST, _OFF = 3, 5e-10, 4, 0.3  # more lines for so many ε with larger errors and δ that far off
_TOLD = 0.1  # relative error of δ that shows the way
_LEAST, _ROUGHLY, _ROUGHER = 1e-12, 1e-4, 3e-9  # δ below which its own error counts; relative error there, and above


def band_curve(bands: Bands, epsilons: Floats, log_delta: Floats) -> tuple[Floats, Floats]:
    """δ at ascending ε with its error, infinite where nothing is told; `log_delta` is about its logarithm.

    For losses without a largest value. Raises ArithmeticError where the bands have no end, or take too many points.
    """
    at = epsilons - bands.origin
    values, errors = _once(bands, at, _aimed(log_delta))
    for _ in range(_ROUNDS - 1):
        enough = (errors <= _SHARED * values) | ((values < _LEAST) & (errors <= _ROUGHLY * values))
        with np.errstate(divide="ignore", invalid="ignore"):
            known = np.log(values)
            astray = ~enough & (errors <= _TOLD * values) & (known < log_delta - _OFF)
        left = np.flatnonzero(astray)
        if len(left) < _FEWEST:
            break
        log_delta = np.where(astray, known, log_delta)
        value, error = _once(bands, at[left], _aimed(log_delta[left]))
        better = error < errors[left]
        values[left[better]], errors[left[better]] = value[better], error[better]
    return values, errors


def _aimed(log_delta: Floats) -> Floats:
    """log of what errors are relative to: δ, or more where it is so small that its own error counts."""
    result: Floats = np.maximum(log_delta, np.minimum(log_delta + math.log(_ROUGHLY / _ROUGHER), math.log(_LEAST)))
    return result


def _once(bands: Bands, at: Floats, log_delta: Floats) -> tuple[Floats, Floats]:
    """The sum of the bands' integrals and of that of all below them, laid for this log δ."""
    values, errors = np.zeros(len(at)), np.zeros(len(at))
    levels = Levels(bands, at, log_delta)
    looked = np.unique(np.linspace(0, len(at) - 1, _LOOKED).astype(np.intp))
    some = at[looked], log_delta[looked]

    def added(part: Part) -> None:
        bound = part.bounds.chernoff(at)
        matters = bound > log_delta + PRECISION
        left = np.flatnonzero(matters)
        lines = list(_lines(bands, part, at[left], log_delta[left]))
        errors[~matters] += np.exp(bound[~matters])
        for where, piece in lines:
            value, _, error = piece(at[left[where]])
            values[left[where]] += value
            errors[left[where]] += error

    for _ in range(_LONGEST):
        rest = levels.whole()
        if rest.nodes(bands, *some) < math.inf:
            try:
                added(rest)
            except ArithmeticError:  # its lines are too long: fewer losses may have shorter ones
                if bands.added:
                    raise
            else:
                return values, errors + levels.above + 4 * UNIT * np.abs(values)
        if bands.added:
            break
        added(levels.lowered(*some))
    raise ArithmeticError("no level of the losses ends the bands")


def _lines(bands: Bands, part: Part, at: Floats, log_delta: Floats) -> Iterator[tuple[slice, Piece]]:
    """Lines for all these ε, each for as many as it may serve."""
    lost, plans, first = part.lost(at, log_delta), [], 0
    while first < len(at):
        count, place, lay = _plan(bands, part, at[first:], log_delta[first:], lost[first:])
        plans.append((slice(first, first + count), place, lay))
        first += count
    if not plans:
        return
    real, height = (max(getattr(lay, name) for _, _, lay in plans) for name in ("real", "height"))
    known = Band(bands.leaves, part.uppers, part.lowers, real, height)
    for some, place, lay in plans:
        found = bands.laid(part.uppers, part.lowers, part.bounds, part.mass, lay, known)
        if found is not None and part.height(bands, place, lay.level)[1]:
            piece, known = found
            ahead = part.ahead(place, piece.nodes * 2 * math.pi / piece.period)
            if ahead < lay.level + ENOUGH:
                yield some, replace(piece, rest=max(piece.rest, ahead))
                continue
            plain = Lay(lay.real, lay.period, lay.level)
            found = bands.laid(part.uppers, part.lowers, part.bounds, part.mass, plain)
        if found is None:
            raise ArithmeticError("the losses below a band take too many nodes")
        yield some, found[0]


def _plan(bands: Bands, part: Part, at: Floats, log_delta: Floats, lost: Floats) -> tuple[int, int, Lay]:
    """The line for as many of these ε, from the first on, as it may serve: how many these are, and its point."""
    a = part.bounds.points
    start = part.period(at[:1], log_delta[:1])[0]
    short = start * a <= long_period(log_delta[:1])
    lost = np.where(short | ~short.any(), lost, math.inf)
    least = lost.min(axis=1, keepdims=True)
    most = np.maximum(np.maximum(_LOST, least + _LITTLE), np.minimum(least + _ABOVE_LEAST, MOST_LOST))
    served = np.logical_and.accumulate(lost <= np.maximum(most, part.hardly), axis=0).sum(axis=0)
    choice = np.flatnonzero(served)
    if not len(choice):
        raise ArithmeticError("no line of a band serves")
    last = served[choice] - 1
    between = np.linspace(0, int(last.max()), _BETWEEN).astype(np.intp)[1:]
    inside = np.where(between[:, None] <= last, part.period(at[between], log_delta[between])[:, choice], 0.0)
    later = part.period(at[last], log_delta[last])[np.arange(len(choice)), choice]
    period = np.maximum.reduce([start[choice], inside.max(axis=0), later])
    nodes = period * part.heights(bands, log_delta[0] + PRECISION + a * at[0])[choice] / (2 * math.pi)
    best = int(np.argmax((last + 1) / (_AS_MANY + nodes)))
    place, count = int(choice[best]), int(last[best]) + 1
    level = float((log_delta[:count] + a[place] * at[:count]).min()) + PRECISION
    height, _ = part.height(bands, place, level)
    return count, place, Lay(float(a[place]), float(period[best]), level, 0.0, height, _PROBES)
