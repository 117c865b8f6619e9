"""δ(ε) of releases that rarely show anything, band by band of the size of a loss: which bands, and their lines.

| here | meaning |
| --- | --- |
| E, e, ε' | the sum of the losses where nobody is drawn, the excess over it, ε − E |
| b_0 > b_1 > ... | levels; A_j has every release in a window whose |e| is below b_j, about |
| D_j | A_j less A_(j+1): at least one loss lies between |

δ(ε) = E[(1 − e^(ε' − Σe))₊] is that of A_j plus those of D_0 ... D_(j−1), and each is an integral of its own,

    (1/2πi) ∫ D(z) e^(−zε') / (z(z+1)) dz,

at a scale of its own: Re z is some units over b_j, and D falls where z e turns within the windows' edge at b_(j+1). So
the nodes of a band depend on b_j/b_(j+1) alone, and neither on how rare a loss is nor on how many releases there are.

**Where it ends.** Above b_0 lies P-mass that is negligible beside δ. At A_j where its own line is short; where its
sums do not reach ε'; for "add" where they all exceed it: E[(1 − e^(ε' − Σe))₊] is A(0) − e^ε' A(−1) but for
E[(e^(ε' − Σe) − 1)₊], which is negligible.

**Errors.** Aliases: with τ = 2π/h at most |D| e^(−cτ)/(1 − e^(−cτ)) from below, |D| the total variation, and from
above the Chernoff bound at any a > c times e^(−(a−c)τ)/(1 − e^(−(a−c)τ)). Truncation: the largest |D| of the last
nodes, and of some beyond, over πU: as with `_contour` that these tell of all later ones is not proven. Rounding as
`_inversion` counts it. What is dropped: its Chernoff bound, or its mass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpbench.accountants._band_leaf import ALL, Leaf, Window
from dpbench.accountants._band_line import Band, Reals, reals
from dpbench.accountants._band_split import LEAST, Lay, Parity, Piece, Split
from dpbench.accountants._complex import joined
from dpbench.accountants._inversion import Table
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._plan import Sums

_RATIO, _LEAST_RATIO = 6.0, 1.3  # of a level to the next, at most and at least
_FALL = 8.0  # of log p from a level to the next: more would ask for digits that a line does not have
PRECISION = math.log(1e-12)
_LOST, _MOST_LOST = math.log(100.0), math.log(1e5)  # size of the terms over δ from which on a line is dearer; at most
_SHORT, _MOST = 1400, 1 << 11  # nodes of A's own line, and of any
_APART = 1.7  # ratio of the points at which |D| is looked at before its line is summed
ENOUGH, _MORE = 0.7, 5  # log of the rest beyond what is asked for, and a share of the nodes that are added to mend it
_LEVELS, _MOST_CELLS, _MOST_NODES = 80, 1 << 16, 1 << 13  # levels, points of a band and nodes of all: at most
_NOTHING = -1e300
_ROOM = 25.0  # by which a guess may be too low
_RARE = math.log(1e-12)  # mass of losses that a guess leaves out


@dataclass
class Bands:
    """The releases of one direction; the bands that one ε needs."""

    leaves: Sequence[Leaf]
    _reals: dict[tuple[float, float], tuple[Band, Reals]] = field(default_factory=dict, repr=False)

    @property
    def end(self) -> float:
        """E."""
        return math.fsum(leaf.count * leaf.end for leaf in self.leaves)

    @property
    def origin(self) -> float:
        """The sum of the losses that are 0 in every line: E, but for releases whose loss is taken as it is."""
        return math.fsum(leaf.count * leaf.origin for leaf in self.leaves)

    @property
    def added(self) -> bool:
        """Whether losses have a largest value, E."""
        return self.leaves[0].pair.kind == "add"

    def sure(self, epsilon: float) -> float:
        """log of the largest δ of one release at ε: δ is no less."""
        return max(self._floors(epsilon, 0.0))

    def floor(self, epsilon: float) -> float:
        """log of about the largest T δ of one release at ε."""
        return min(max(self._floors(epsilon, 1.0)), 0.0)

    def _floors(self, epsilon: float, power: float) -> list[float]:
        found = [LEAST]
        for leaf in self.leaves:
            s, e, _, _ = leaf.table
            turned = -1.0 if self.added else 1.0
            place = float(np.interp(turned * (epsilon - leaf.end), turned * e, s))
            one = float(leaf.pair.log_hinge(np.array([turned * leaf.pair.sigma * place]))[0])
            found += [one + power * math.log(leaf.count)] if math.isfinite(one) else []
        return found

    def floors(self, epsilons: Floats) -> Floats:
        """log of about the largest T δ of one release at several ε."""
        found: Floats = np.full(len(epsilons), LEAST)
        for leaf in self.leaves:
            s, e, _, _ = leaf.table
            turned = -1.0 if self.added else 1.0
            places = np.interp(turned * (epsilons - leaf.end), turned * e, s)
            logs = leaf.pair.log_hinge(turned * leaf.pair.sigma * places) + math.log(leaf.count)
            found = np.fmax(found, logs)
        result: Floats = np.minimum(found, 0.0)
        return result

    @cached_property
    def spread(self) -> float:
        """The standard deviation of the sum of the losses that are not very rare."""
        return math.sqrt(math.fsum(leaf.count * leaf.variance for leaf in self.leaves))

    def _bulk(self, excess: float, mass: float) -> Reals:
        """The bounds of all losses that are no rarer than that."""
        level = abs(excess) if self.added else self.top(mass)[0]
        windows = [ALL] * len(self.leaves) if self.added else self.windows(level)
        return reals(self.leaves, windows, None, abs(excess) if self.added else math.inf)[1]

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε); 0 where that is not cheap."""
        return self.bounds([epsilon])[0]

    def bounds(self, epsilons: Sequence[float]) -> list[float]:
        """`bound` at ascending ε: sums that reach down to the least excess below E serve all others."""
        if not self.added:
            return [0.0] * len(epsilons)
        at = np.array([epsilon for epsilon in epsilons if epsilon < self.end])
        found: list[float] = []
        if len(at):
            found = self._bulk(float(at[-1]) - self.end, 0.0).chernoff(at - self.origin).tolist()
        return found + [-math.inf] * (len(epsilons) - len(at))

    def guess(self, epsilon: float) -> float:
        """About log δ(ε), by one loss alone or by the saddle point of those that are not too rare."""
        excess = epsilon - self.end
        bounds = self._bulk(excess, _RARE)
        at, level = bounds.saddles
        floor = self.floor(epsilon)
        if len(at) < 2:
            return floor
        saddle = float(np.interp(epsilon - self.origin, at, level))
        # the saddle point knows nothing of rare losses, the floor of many: a guess that is too low costs little
        return floor if saddle < floor + _ROOM else min(saddle, 0.0)

    def guess_epsilon(self, log_delta: float) -> float:
        """About ε with δ(ε) = e^log_delta, by one loss alone or by the saddle point of those that are less rare."""
        found = 0.0
        for leaf in self.leaves:
            s, e, _, _ = leaf.table
            turned = -1.0 if self.added else 1.0
            logs = leaf.pair.log_hinge(turned * leaf.pair.sigma * s) + math.log(leaf.count)
            order = logs[:: int(turned)]
            place = int(np.searchsorted(-order, -log_delta))
            losses = (e + leaf.end)[:: int(turned)]
            found = max(found, float(losses[min(place, len(s) - 1)]))
        end = self.end
        at, level = self._bulk(end * (1 - 1e-9) if self.added else 0.0, log_delta).saddles
        if len(at) > 1:
            found = max(found, float(np.interp(-log_delta, -level, at)) + self.origin)
        return min(found, end * (1 - 1e-6)) if self.added else found

    def split(self, epsilon: float, log_target: float) -> Split:
        """The lines for ε, precise relative to e^log_target."""
        excess, at = epsilon - self.end, epsilon - self.origin
        tolerance = log_target + PRECISION
        level, above = (abs(excess), 0.0) if self.added else self.top(tolerance)
        windows = [ALL] * len(self.leaves) if self.added else self.windows(level)
        pieces: list[Piece | Parity] = []
        dropped: list[Reals] = []
        first_loud: tuple[int, Piece] | None = None
        least = abs(excess) if self.added else math.inf
        for _ in range(_LEVELS):
            own, bounds = reals(self.leaves, windows, None, least)
            if float(bounds.chernoff(np.array([at]))[0]) < tolerance:
                dropped.append(bounds)
                break
            if self.added:
                parity = self._parity(own, level)
                if float(parity.log_rest(np.array([at]))[0]) < tolerance:
                    pieces.append(parity)
                    break
            piece = self._line(windows, None, own, bounds, at, log_target)
            if piece is not None:
                first_loud = first_loud or (len(pieces), piece)
                if piece.lost <= _MOST_LOST:
                    pieces.append(piece)
                    break
            level = self.below(level, windows)
            lower = self.windows(level)
            band, bounds = reals(self.leaves, windows, lower, least)
            if float(bounds.chernoff(np.array([at]))[0]) < tolerance:
                dropped.append(bounds)
            else:
                piece = self._line(windows, lower, band, bounds, at, log_target)
                if piece is None:
                    if first_loud is None:
                        raise ArithmeticError("no level of the losses ends the bands")
                    pieces = [*pieces[: first_loud[0]], first_loud[1]]  # its rounding counts
                    break
                pieces.append(piece)
            windows = lower
            if sum(one.nodes for one in pieces if isinstance(one, Piece)) > _MOST_NODES:
                raise ArithmeticError("the bands of these losses take too many nodes")
        else:
            raise ArithmeticError("no level of the losses ends the bands")
        return Split(self.origin, tuple(pieces), tuple(dropped), above, log_target)

    def top(self, tolerance: float) -> tuple[float, float]:
        """The level beyond which P has next to nothing, and how much."""
        share = math.exp(max(tolerance, -690.0)) / len(self.leaves)
        level = max(leaf.top(share / leaf.count) for leaf in self.leaves)
        windows = self.windows(level)
        both = zip(self.leaves, windows, strict=True)
        return level, min(1.0, math.fsum(leaf.count * leaf.missing(window) for leaf, window in both))

    def below(self, level: float, windows: list[Window]) -> float:
        """The next level: the highest of all releases' own."""
        if self.added:
            return level / _RATIO
        found = [
            leaf.below(window, _RATIO, _FALL)
            for leaf, window in zip(self.leaves, windows, strict=True)
            if not window.all
        ]
        return min(max(found, default=0.0), level / _LEAST_RATIO) if found else level / _RATIO

    def windows(self, level: float) -> list[Window]:
        """Of every release: what has losses below this level, about."""
        return [leaf.window(level) for leaf in self.leaves]

    def _parity(self, own: Band, level: float) -> Parity:
        points = 2.0 ** (np.arange(-8 * 3, 6 * 3 + 1) / 3) / level
        masses, ratios, wrong = 0.0, 0.0, 0.0
        moments = np.zeros(len(points))
        for leaf, near in zip(self.leaves, own.near, strict=True):
            whole = 1 - near.missing if near.near else float(near.weight.sum())
            moved = near.weight * np.expm1(np.minimum(-near.excess, 690.0))
            masses += leaf.count * math.log(whole)
            ratios += leaf.count * math.log1p(float(moved.sum()) / whole)
            wrong += leaf.count * UNIT * (64 + leaf.exponents) * float(np.abs(moved).sum()) / whole
            exponent = np.multiply.outer(points, -near.excess)
            with np.errstate(over="ignore", divide="ignore"):  # points that tell nothing are left out below
                moments = moments + leaf.count * np.log(np.exp(exponent) @ near.weight)
        kept = np.isfinite(moments)
        count = math.fsum(leaf.count for leaf in self.leaves)
        return Parity(masses, ratios, wrong, count, Reals(points[kept], moments[kept], moments[kept]))

    def _line(
        self,
        uppers: list[Window],
        lowers: list[Window] | None,
        rough: Band,
        bounds: Reals,
        excess: float,
        log_target: float,
    ) -> Piece | None:
        """The line of A or of D; None where A's takes too many nodes."""
        if not len(bounds.points):
            return None
        mass = rough.mass()
        real, period, lost = _chosen(bounds, mass, excess, log_target)
        level = log_target + PRECISION + real * excess
        found = self.laid(uppers, lowers, bounds, mass, Lay(real, period, level, lost))
        return None if found is None else found[0]

    def laid(
        self,
        uppers: list[Window],
        lowers: list[Window] | None,
        bounds: Reals,
        mass: float,
        lay: Lay,
        known: Band | None = None,
    ) -> tuple[Piece, Band] | None:
        """The sums of that line, and the nodes of its transform, `known` where these do; None for A's too long line."""
        real, period, level, lost = lay.real, lay.period, lay.level, lay.lost
        most = _SHORT if lowers is None else _MOST
        step = 2 * math.pi / period
        size = float(np.interp(real, bounds.points, bounds.log_moment)) - level
        highest = most * step
        if lowers is None:
            slow = math.fsum(leaf.slow(real, highest, size) for leaf in self.leaves) - math.log(math.pi * highest)
            if slow > level:
                return None
            height = highest
        else:
            height = self.height(uppers, lowers, max(size - math.log(math.pi * real), 8.0))
        height, count = min(lay.height or height, highest), lay.probes
        while True:
            if known is not None and known.real >= real and known.turns >= height:
                band = known
            else:
                band = Band(self.leaves, uppers, lowers, real, height)
            if band.cells > _MOST_CELLS:
                raise ArithmeticError(f"a band of losses needs {band.cells} points")
            probes = height * _APART ** (-np.arange(count, dtype=np.float64)[::-1])
            found = _seen(*band.log_line(real, probes)) - np.log(math.pi * probes)
            late = np.maximum.accumulate(found[::-1])[::-1]  # the most from there on
            low = int((late >= level).sum())
            if low < count - 1:
                break
            if height >= highest:
                if lowers is None:
                    return None
                low = count - 1  # what is left out counts
                break
            height = min(1.5 * height, highest)
        top = float(probes[low])
        if 0 < low < count - 1 and math.isfinite(late[low]):
            share = (late[low - 1] - level) / max(late[low - 1] - late[low], 1e-9)
            top = float(probes[low - 1]) * _APART ** float(np.clip(1.1 * share + 0.05, 0.0, 1.0))
        beyond = float(late[min(low + 1, count - 1)])
        count, blocks = 0, []
        following = min(math.ceil(top / step) + 8, most)
        while True:
            following += -following % 8
            u: Floats = step * np.arange(count, following, dtype=np.float64)
            blocks.append(band.log_line(real, u))
            count = following
            log_moment, error = blocks[-1]
            end = slice(-max(4, min(count // 8, len(u))), None)
            rest = max(float(_seen(log_moment[end], error[end]).max()) - math.log(math.pi * float(u[-1])), beyond)
            if rest < level + ENOUGH or count >= most or u[-1] >= height:
                break
            following = count + max(16, count // _MORE)
        log_moment, error = (np.concatenate(found) for found in zip(*blocks, strict=True))
        u = step * np.arange(count, dtype=np.float64)
        weight = np.full(count, 2 / period)
        weight[0] /= 2
        sums = Sums(joined(np.full(count, real), u), log_moment, error, weight, rest)
        return Piece(Table.of(sums), real, period, rest, mass, bounds, count, lost), band

    def height(self, uppers: list[Window], lowers: list[Window], exponent: float) -> float:
        """Where a band has turned and fallen by e^exponent: for every release that has losses in it."""
        parts = zip(self.leaves, uppers, lowers, strict=True)
        return max(leaf.edge(low, exponent) for leaf, high, low in parts if high != low and not low.all)


def _seen(log_moment: Complex, error: Floats) -> Floats:
    """log |D|; next to nothing where it is rounding alone, which the error has."""
    found: Floats = np.where(error < 0.5, log_moment.real, _NOTHING)
    return found


def _chosen(bounds: Reals, mass: float, excess: float, log_target: float) -> tuple[float, float, float]:
    """Re z, τ, the smallest as far as rounding allows, and log of the terms' size over δ."""
    a = bounds.points
    tolerance = log_target + PRECISION
    ahead = np.maximum(math.log(mass) - tolerance + 0.7, 1.0) / a
    gap = a[None, :] - a[:, None]
    chernoff = bounds.constant - a * excess
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = np.where(gap > 0, np.maximum(chernoff[None, :] - tolerance + 0.7, 1.0) / gap, math.inf).min(axis=1)
    period = np.maximum(np.maximum(ahead, behind), 0.7 / a)
    size = bounds.log_moment - a * excess - np.log1p(a) - log_target
    cost = np.log(period) + 0.5 * np.maximum(size - _LOST, 0.0)
    best = int(np.argmin(cost[:-1])) if len(a) > 1 else 0
    return float(a[best]), float(period[best]), float(size[best])
