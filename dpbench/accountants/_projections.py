"""δ(ε) and ε(δ) of compositions with releases of random sensitivity: an integral along a path around a cut.

| here | meaning |
| --- | --- |
| M(z) | E_P[e^(zL)], the product over the releases (`_projections_moment`), times e^(μ²z(z+1)/2) of the Gaussians |
| edge | the upper edge of M's cut [0, ∞), in the direction remove |

**Add.** M is finite for Re z > 0: δ(ε) = (1/π) Im ∫ M(z) e^(−zε) / (z(z+1)) dz from the saddle c > 0 upwards.

**Remove.** M is infinite for Re z > 0, since P(L > t) falls like a power of t only; M is analytic off [0, ∞). On a line
−1 < Re z < 0 the same integral is δ(ε) − 1. Drawn over 0 to the upper edge of the cut the small arc around 0 gives the
1 back, and what is left is

    δ(ε) = (1/π) Im ∫ M(z) e^(−zε) / (z(z+1)) dz  from 0 along the edge to X, and from there into the upper half plane.

No residue is left, so that nothing cancels: on the edge all but M is real, Im M is the tail, to its own relative
digits, and all terms are positive while its angle is below π. X is where the integrand is least: the saddle of the bulk
of the loss, or before, where the angle of M passes 1 or e^(−xε) has ended the integral.

(So it is for add where releases of random sensitivity are not sampled: their pair is symmetric.)

**The ray.** From there, in both directions, the path is a straight ray, tilted by TILT from the upright to the side
where e^(−z(ε − atom)) falls, the atom being the loss of the releases that do not hit, Σ T log(1 − q) for remove and
its negative for add. So a composition with few hits, whose |M| stays at e^(−hits), takes a few hundred nodes.

**Error.** Gauss's rule on panels halved until their last Legendre coefficients are small; the rule misses about their
square. Added up are what the panels miss, the size of the first panel left out, and Σ |terms| times the error of log M:
on the edge only the imaginary part of the terms, which is where the digits of a tiny δ come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._direction import Value
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_ladder import Ladder, climb
from dpbench.accountants._projections_moment import GAUSS, POINTS, Box, Release, Whole, panel_nodes, roughness
from dpbench.accountants._projections_single import log_single
from dpbench.events import ConfidentGNMax, Event, Gaussian, RandomSensitivityGaussian, SampledGaussian

TILT = 0.2  # tangent
_UNITS, _GROWTH = 24, 0.08  # blocks of the edge are units long up to here, and longer beyond
_TARGET = 1e-13  # what one panel may miss, relative to δ
_ENDS = 37.0  # e^−37 is below 1e-16
_ROUNDS = 24
_SERVES = 3e-11  # relative error of δ up to which a path made for another ε serves
_STEPS = 60
_BUILT = 50.0  # a contour costs as much as so many nodes
_NOTHING = 1e-31  # δ below this is told by its bound
_MOST_LOSS = 1e20
_UNTOLD = 0.01  # relative error of δ from which on ε is not told
_MOST_PANELS = 4000
_LOST = 9.0  # log of what rounding may grow by
_LOSSES = (_LOST, 13.0, 4.0)  # tried until one does well
_WHOLE_LOSSES = (4.0, _LOST, 13.0)  # where nothing is sampled, and long edges cost little
_WELL = 1e-10  # relative error of ε
_SHORT = 2.0  # an edge up to here is not dearer than a ray
_MOST_NOISE = 1e100  # beyond, nothing is revealed that a double could tell
_WORK = 1.2e7  # nodes of paths times nodes of contours: about half a second


@dataclass(frozen=True)
class Nodes:
    """Nodes z of a path, panel by panel, their weights dz/π, log M, its error; `edge` says whether they lie on the cut.

    `end` is where the path was left off, and `beyond` log of |z M| there.
    """

    z: Complex
    weight: Complex
    log_moment: Complex
    error: Floats
    edge: bool
    end: complex = 0j
    beyond: float = -math.inf

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """The integral, its derivative in ε, and a bound of its error."""
        turn = np.log(self.z) + np.log1p(self.z)
        exponent = self.log_moment - self.z * epsilon - turn
        terms = self.weight * np.exp(np.where(exponent.real < 700, exponent, 700.0))
        size = np.abs(terms.imag) if self.edge else np.abs(terms)
        noise = self.error + UNIT * (4 + 2 * np.abs(self.z * epsilon) + np.abs(exponent.real))
        if self.edge:
            noise = noise + 2.0**-43  # of Bessel's J
        kept = terms.imag + 0j if self.edge else terms
        tail, whole = roughness(np.asarray(kept.reshape(-1, POINTS) / GAUSS, dtype=np.complex128))
        missed = 2 * float(_miss(tail, whole, self.edge).sum())
        rest = 0.0
        if self.beyond > -math.inf:
            gone = self.beyond - self.end.real * epsilon - math.log(abs(self.end) * abs(1 + self.end))
            rest = math.exp(min(gone, 700.0))
        total, slope = float(terms.imag.sum()), float((-self.z * terms).imag.sum())
        return total, slope, float((size * noise).sum()) + missed + rest


@dataclass(frozen=True)
class Path:
    """δ(ε) near the ε for which the path was made."""

    pieces: tuple[Nodes, ...]

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """δ(ε), its derivative and a bound of its error."""
        total = slope = error = 0.0
        for piece in self.pieces:
            value, rise, wrong = piece(epsilon)
            total, slope, error = total + value, slope + rise, error + wrong
        return total, slope, error + UNIT * abs(total)


@dataclass
class HeavyDirection:
    """δ(ε) and ε(δ) of one direction. What it remembers never changes an answer."""

    parts: tuple[tuple[Release | Whole, int], ...]
    squared_mu: float
    direction: str
    _ladders: list[Ladder] = field(default_factory=list, repr=False)
    _spent: float = field(default=0.0, repr=False)

    # ---- the transform ----

    @property
    def largest_loss(self) -> float:
        """The supremum of the loss."""
        if self.direction == "remove" or self.squared_mu or any(isinstance(part, Whole) for part, _ in self.parts):
            return math.inf
        return self.atom

    @property
    def atom(self) -> float:
        """The loss where no release hits."""
        sign = 1 if self.direction == "remove" else -1
        return math.fsum(sign * count * part.log_rest for part, count in self.parts if isinstance(part, Release))

    @property
    def cut(self) -> bool:
        """Whether M is infinite for Re z > 0."""
        return self.direction == "remove" or any(isinstance(part, Whole) for part, _ in self.parts)

    def log_moment(self, z: Complex, start: float) -> tuple[Complex, Floats]:
        """log M and its error at nodes of the path that leaves the real line at `start`."""
        remove = self.direction == "remove"
        w, above = (1 + z, z) if remove else (-np.conj(z), -1 - np.conj(z))
        total = np.asarray(self.squared_mu / 2 * w * above, dtype=np.complex128)
        error: Floats = UNIT * np.abs(total)
        leans = TILT if remove == bool((z.real - start).sum() >= 0) else -TILT  # of Re w on the ray
        for box, there in _boxes(w, 1 + start if remove else -start, leans):
            for part, count in self.parts:
                if isinstance(part, Release):
                    self._spend(part.cost(box) * (float(np.count_nonzero(there)) + _BUILT))
                    value, wrong = part.log_moment(w[there], above[there], box)
                    total[there] += count * value
                    error[there] += count * wrong
        total = total if remove else np.conj(total)
        for part, count in self.parts:
            if isinstance(part, Whole):  # symmetric: the same M in both directions
                self._spend(500.0 * len(z))
                value, wrong = part.log_moment(1 + z, z)
                total, error = total + count * value, error + count * wrong
        return total, error

    def _losses(self) -> tuple[float, ...]:
        return _LOSSES if any(isinstance(part, Release) for part, _ in self.parts) else _WHOLE_LOSSES

    def _spend(self, work: float) -> None:
        self._spent += work
        if self._spent > _WORK:
            raise ArithmeticError("the path takes too many nodes")

    def ladder(self) -> Ladder:
        """M on the real line, to a few digits."""
        if not self._ladders:
            with np.errstate(over="ignore", invalid="ignore"):
                self._ladders.append(climb(self.parts, self.squared_mu, self.direction == "remove"))
        return self._ladders[0]

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε); −∞ beyond the largest loss."""
        return -math.inf if epsilon >= self.largest_loss else self.ladder().bound(epsilon)

    # ---- the path ----

    def start(self, epsilon: float, lost: float = _LOST) -> tuple[float, float, float, bool]:
        """Where the path leaves the real line, log of the integrand's size there, log δ(ε) to a digit, and whether
        the path ends there. Rounding grows by e^lost at most."""
        ladder = self.ladder()
        x, log_moment = ladder.x, ladder.log_moment
        line = log_moment - x * epsilon - np.log(x) - np.log1p(x)
        angle = ladder.angle(int(np.argmin(line)))
        allowed = np.flatnonzero(angle > 1.0)
        count = max(int(allowed[0]) if len(allowed) else len(x), 3)
        angle = np.concatenate([angle, np.full(3, math.pi)])
        best = int(np.argmin(line[:count]))
        tail = line[: best + 1] + np.log(x[: best + 1]) + np.log(np.maximum(np.sin(angle[: best + 1]), 1e-320))
        steps = np.gradient(np.log(x))
        edge = float(np.logaddexp.reduce(tail + np.log(steps[: best + 1] / math.pi)))
        curve = _second_difference(np.log(x), line, min(max(best, 1), count - 2))
        place = float(x[best])
        bulk = float(line[best]) + math.log(place) - 0.5 * math.log(2 * math.pi * max(curve, 0.5))
        log_delta = float(np.logaddexp(edge, bulk))
        ended = np.flatnonzero(line[: best + 1] + np.log(x[: best + 1]) < log_delta - _ENDS)
        if self.cut and len(ended) and x[ended[0]] < _SHORT:
            return float(x[ended[0]]), float(line[ended[0]]), min(log_delta, 0.0), True
        width = place / math.sqrt(max(curve, 0.5))
        if self.cut:  # nearer to 0 the edge costs less, and rounding a little more
            early = np.flatnonzero(line[: best + 1] + np.log(x[: best + 1]) < min(log_delta + lost, -1.0))
            place = min(float(x[early[0]]), place) if len(early) else place
        return place, width, min(log_delta, 0.0), False

    def path(self, epsilon: float, lost: float = _LOST) -> Path:
        """Nodes for δ near ε. Raises ArithmeticError where these take too many."""
        place, width, log_delta, ended = self.start(epsilon, lost)
        scale = math.exp(max(log_delta, -700.0))
        pieces = []
        if self.cut:
            edge = self._edge(place, epsilon, scale)
            if edge is not None:
                if ended:
                    last = float(edge.log_moment[np.argmax(edge.z.real)].real)
                    edge = replace(edge, end=complex(place), beyond=last + math.log(place))
                pieces.append(edge)
                scale = max(scale, edge(epsilon)[0])
        if not ended or not pieces:
            pieces.append(self._ray(place, width, epsilon, scale))
        return Path(tuple(pieces))

    def _edge(self, end: float, epsilon: float, scale: float) -> Nodes | None:
        ladder = self.ladder()
        inside = np.flatnonzero(ladder.x <= end)
        x, log_moment = ladder.x[inside], ladder.log_moment[inside]
        angle = ladder.angle(len(inside) - 1) if len(inside) else x
        with np.errstate(divide="ignore"):
            mass = log_moment - x * epsilon - np.log1p(x) + np.log(np.sin(np.minimum(angle, 1.5)))
        if not len(x) or mass.max() < math.log(scale) - _ENDS:
            return None
        first = x[max(int(np.flatnonzero(mass > mass.max() - _ENDS)[0]) - 1, 0)]
        # x = end · t²: powers of √x, which the tail has, are powers of t
        low = math.sqrt(first / end)
        places = [k / 2 for k in range(1, 2 * _UNITS)]
        while places[-1] < end:
            places.append(places[-1] * math.exp(_GROWTH))
        marks = {low, 1.0, *(share for share in (math.sqrt(place / end) for place in places) if low < share < 1)}
        t = 0.5
        while t > low:
            marks.add(t)
            t /= 2
        ordered = np.array(sorted(marks))

        def at(shares: Complex) -> tuple[Complex, Complex]:
            return np.asarray(end * shares.real**2 + 0j), np.asarray(2 * end * shares + 0j)

        return self._gathered(at, ordered[:-1] + 0j, ordered[1:] + 0j, epsilon, scale, end, True)

    def _ray(self, start: float, width: float, epsilon: float, scale: float) -> Nodes:
        side = TILT if epsilon >= self.atom else -TILT
        along = complex(side, 1.0)
        log_allowed = math.log(scale) - _ENDS

        def at(lengths: Complex) -> tuple[Complex, Complex]:
            return np.asarray(start + lengths.real * along), np.full_like(lengths, along)

        marks = [0.0, min(width, start)]
        if not 0 < marks[1] < math.inf:
            raise ArithmeticError("the path does not see the bulk of the loss")
        while True:
            probe = marks[-1] * np.array([0.6, 0.75, 0.9, 1.0])
            z, _ = at(np.asarray(probe + 0j))
            size = (self.log_moment(z, start)[0] - z * epsilon - np.log(z) - np.log1p(z)).real.max()
            if size + math.log(marks[-1]) < log_allowed or len(marks) > 120:
                break
            marks.append(2 * marks[-1])
        ends = np.array(marks) + 0j
        found = self._gathered(at, ends[:-1], ends[1:], epsilon, scale, start, False)
        beyond = float(self.log_moment(z, start)[0].real.max()) + math.log(marks[-1])
        return replace(found, end=complex(z[-1]), beyond=beyond)

    def _gathered(
        self,
        at: Callable[[Complex], tuple[Complex, Complex]],
        starts: Complex,
        ends: Complex,
        epsilon: float,
        scale: float,
        start: float,
        edge: bool,
    ) -> Nodes:
        """Panels halved until they miss little of `scale`, or less than their rounding noise."""
        kept: list[tuple[Complex, Complex, Complex, Floats]] = []
        panels = 0
        for attempt in range(_ROUNDS):
            shares, weight = panel_nodes(starts, ends)
            z, slope = at(shares.ravel())
            log_moment, error = self.log_moment(z, start)
            exponent = log_moment - z * epsilon - np.log(z) - np.log1p(z)
            terms = (np.exp(exponent) * slope / math.pi).reshape(-1, POINTS)
            size = np.abs(terms)
            if edge:
                terms = np.asarray(terms.imag + 0j, dtype=np.complex128)
                size = np.abs(terms)
            noise = (size * (error + UNIT * (8 + np.abs(z) * epsilon + np.abs(log_moment))).reshape(-1, POINTS)).max(
                axis=1
            )
            tail, whole = roughness(terms)
            miss = _miss(tail, whole, edge) * np.abs(ends - starts)
            panels += len(starts)
            rough = (miss > _TARGET * scale / 10) & (tail > 8 * noise)
            if attempt == _ROUNDS - 1 or panels > _MOST_PANELS:
                rough[:] = False
            good = np.repeat(~rough, POINTS)
            kept.append((z[good], (weight.ravel() * slope / math.pi)[good], log_moment[good], error[good]))
            if not rough.any():
                break
            middle = (starts + ends)[rough] / 2
            starts, ends = np.concatenate([starts[rough], middle]), np.concatenate([middle, ends[rough]])
        joined = [np.concatenate([piece[k] for piece in kept]) for k in range(4)]
        return Nodes(joined[0], joined[1], joined[2], joined[3].real, edge)

    # ---- answers ----

    def delta(self, epsilon: float) -> Value:
        """δ(ε) with its error."""
        return self.deltas([epsilon])[0]

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε, with their errors; neighbours share a path while it serves."""
        with np.errstate(over="ignore", invalid="ignore"):  # `_checked` sees to what is not finite
            return self._deltas(epsilons)

    def _deltas(self, epsilons: Sequence[float]) -> list[Value]:
        found: list[Value] = []
        path: Path | None = None
        for epsilon in epsilons:
            if epsilon >= self.largest_loss:
                found.append(Value(0.0, 0.0))
                continue
            value, _, error = path(epsilon) if path is not None else (0.0, 0.0, 1.0)
            most = math.exp(self.bound(epsilon))
            if not error < max(_SERVES * value, 1e-300):
                path, value, error = self._alone(epsilon, most)
            # nothing is known but the bound
            found.append(_checked(max(value, 0.0), error) if error < most else Value(0.0, max(most, math.ulp(0.0))))
        return found

    def _alone(self, epsilon: float, most: float) -> tuple[Path | None, float, float]:
        """A path for this ε, δ there and its error, which is no better than `most` where no path tells."""
        if most < _NOTHING:
            return None, 0.0, most
        best: tuple[Path | None, float, float] = None, 0.0, most
        for lost in self._losses():  # nearer to 0 the path costs less, and loses more to rounding
            self._spent = 0.0
            try:
                path = self.path(epsilon, lost)
            except ArithmeticError:  # too many nodes
                continue
            value, _, error = path(epsilon)
            if error < best[2]:
                best = path, value, error
            if error <= _SERVES * value:
                break
        return best

    def bounds(self, epsilons: Sequence[float]) -> list[float]:
        """`bound` at every ε."""
        return [self.bound(epsilon) for epsilon in epsilons]

    def guess(self, log_delta: float) -> float:
        """ε with δ(ε) about e^log_delta."""
        ceiling = self.largest_loss
        if self.start(0.0)[2] <= log_delta:
            return 0.0
        low, high = 0.0, 1e-3
        while high < ceiling and self.start(high)[2] > log_delta:
            low, high = high, 2 * high
        high = min(high, ceiling)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.start(middle)[2] > log_delta else (low, middle)
            if high - low < 1e-4 * high:
                break
        return (low + high) / 2

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta, with its error."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.largest_loss <= 0:
                return Value(0.0, 0.0)
            certain = [0.0, self.largest_loss]
            best: Value | None = None
            for first, lost in zip((True, False, False), self._losses(), strict=True):
                try:
                    found = self._root(
                        log_delta, lost, certain, self.guess(log_delta) if first else self._hit(log_delta)
                    )
                except ArithmeticError:  # too many nodes, or too much rounding
                    continue
                if best is None or found.error < best.error:
                    best = found
                if best.error <= _WELL * best.value:
                    break
            return self._bracket(log_delta, certain) if best is None else best

    def _root(self, log_delta: float, lost: float, certain: list[float], epsilon: float) -> Value:
        """The root by Newton's method from `epsilon` on; `certain` is told between which two ε it lies for sure."""
        ceiling, target = self.largest_loss, math.exp(log_delta)
        value = slope = error = math.nan
        path: Path | None = None
        touched, last = False, max(epsilon, 1e-300)
        usual = 0.0  # the relative error that the path had where it was made
        for _ in range(_STEPS):
            epsilon = min(epsilon, ceiling * (1 - 1e-9))
            if path is not None:
                value, slope, error = path(epsilon)
            if path is None or not error < max(_SERVES, 2 * usual) * value:
                path = self.path(epsilon, lost)
                value, slope, error = path(epsilon)
                usual = error / value if value > error else 0.0
            if value - error > target:
                certain[0] = max(certain[0], epsilon)
            elif value + error < target:
                certain[1] = min(certain[1], epsilon)
            if epsilon == 0 and value <= target:
                return Value(0.0, max(0.0, (value + error - target) / abs(slope)) if slope else 0.0)
            if not (math.isfinite(value) and math.isfinite(error)):
                break
            if not slope < 0 or value <= error:
                epsilon = (epsilon + certain[0]) / 2 if certain[0] < epsilon else last / 8
                continue
            change = (math.log(value) - log_delta) * value / slope
            moved = max(epsilon - change, epsilon / 8)
            last = epsilon or last
            if change > epsilon and not touched:  # it may be 0
                touched, moved = True, 0.0
            done = abs(moved - epsilon) <= 4e-15 * epsilon or epsilon == moved
            epsilon = moved
            if done:
                break
        value, slope, error = path(epsilon) if path is not None else (math.nan,) * 3
        if not (error < _UNTOLD * value and slope < 0):
            raise ArithmeticError(f"log delta = {log_delta:.6g} is below what this path can tell from its rounding")
        wrong = (error + abs(value - target)) / abs(slope) + 4 * UNIT * epsilon
        return _checked(epsilon, wrong)

    def _bracket(self, log_delta: float, certain: Sequence[float]) -> Value:
        """The middle of where the root lies by the bound of δ and by what one release alone reveals."""
        low, high = 0.0, 1e-3
        while high < certain[1] and self.bound(high) > log_delta:
            low, high = high, 2 * high
            if high > _MOST_LOSS:
                raise ArithmeticError(f"log delta = {log_delta:.6g}: neither a path nor a bound gives an epsilon")
        high = min(high, certain[1])
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.bound(middle) > log_delta else (low, middle)
        low, top = min(certain[0], high), high
        if self._one(low) > log_delta:
            for _ in range(40):
                middle = (low + top) / 2
                low, top = (middle, top) if self._one(middle) > log_delta else (low, middle)
        return Value((low + high) / 2, (high - low) / 2)

    def _hit(self, log_delta: float) -> float:
        """ε with δ(ε) about e^log_delta where one release reaches ε, and the others reveal next to nothing."""
        way = ("remove", "add").index(self.direction)
        low, high = 0.0, 1e-3

        def total(epsilon: float) -> float:
            logs = [
                math.log(n) + log_single(1.0 if isinstance(p, Whole) else p.rate, p.law, epsilon, way)
                for p, n in self.parts
            ]
            return float(np.logaddexp.reduce(np.array(logs)))

        while high < _MOST_LOSS and total(high) > log_delta:
            low, high = high, 2 * high
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle) > log_delta else (low, middle)
        return (low + high) / 2

    def _one(self, epsilon: float) -> float:
        """The logarithm of the largest δ of one release alone."""
        way = ("remove", "add").index(self.direction)
        return max(log_single(1.0 if isinstance(p, Whole) else p.rate, p.law, epsilon, way) for p, _ in self.parts)


def _checked(value: float, error: float) -> Value:
    if not (math.isfinite(value) and math.isfinite(error)):
        raise ArithmeticError("the transform of a random sensitivity overflows on the path of its integral")
    return Value(value, error)


def _miss(tail: Floats, whole: Floats, edge: bool) -> Floats:
    """What Gauss's rule misses, by the last Legendre coefficients: about their square where the integrand is analytic
    far and wide (to be safe their power 3/2), and as much as they are on the edge, which has branch points."""
    return tail if edge else np.asarray(tail * np.sqrt(np.minimum(tail / np.maximum(whole, 1e-300), 1.0)))


def _second_difference(places: Floats, values: Floats, index: int) -> float:
    if not 0 < index < len(values) - 1:
        return 1.0
    step = float(places[index + 1] - places[index - 1]) / 2
    return float(values[index + 1] - 2 * values[index] + values[index - 1]) / step**2


def _boxes(w: Complex, start: float, leans: float) -> list[tuple[Box, NDArray[np.bool_]]]:
    """Blocks of the w of a path that leaves the real line at Re w = `start`, where Re w = start + leans · Im w."""
    found: list[tuple[Box, NDArray[np.bool_]]] = []
    flat = w.imag == 0
    if flat.any():
        ahead = flat & (w.real > 0)
        nearest = np.maximum(np.round(w.real - 1), 0.0)
        for k in np.unique(nearest[ahead & (nearest < _UNITS)]):
            found.append((Box(max(k + 0.5, 1.0), k + 1.5, 0.0, 0.0), ahead & (nearest == k)))
        step = np.floor(np.log(np.maximum(w.real - 0.5, _UNITS) / _UNITS) / _GROWTH)
        for k in np.unique(step[ahead & (nearest >= _UNITS)]):
            low, high = (_UNITS * math.exp(_GROWTH * j) + 0.5 for j in (k, k + 1))
            found.append((Box(low, high, 0.0, 0.0), ahead & (nearest >= _UNITS) & (step == k)))
    below = flat & (w.real <= 0)  # on the edge of other releases
    if below.any():
        found.append((Box(min(start, 0.0), 0.0, 0.0, 0.0), below))
    beyond = max(start - 1, 0.0)
    rising = ~flat
    if rising.any():
        first = min(max(beyond / 4, 0.05), 2.0)
        octave = np.where(w.imag < first, -1.0, np.floor(np.log2(np.maximum(w.imag / first, 1e-9))))
        for k in np.unique(octave[rising]):
            bottom, top = (0.0, first) if k < 0 else (first * 2**k, first * 2 ** (k + 1))
            ends = (start + leans * bottom, start + leans * top)
            found.append((Box(min(ends), max(ends), bottom, top), rising & (octave == k)))
    return found


def heavy_directions(events: Sequence[tuple[Event, int]]) -> tuple[HeavyDirection, ...] | None:
    """The directions of a composition with releases of random sensitivity; None where there is none that tells.

    Of the events only those are expected that `_leaves.support` lets pass.
    """
    squared_mu, heavy = 0.0, False
    sampled: list[tuple[Release | Whole, int]] = []
    whole: list[tuple[Release | Whole, int]] = []
    for event, count in events:
        if isinstance(event, ConfidentGNMax):
            squared_mu += count * (event.selection_noise**-2 + (2 * event.answer_noise**-2 if event.answered else 0.0))
            continue
        assert isinstance(event, Gaussian | SampledGaussian | RandomSensitivityGaussian)
        rate = 1.0 if isinstance(event, Gaussian) else event.sampling_rate
        projections = event.projections if isinstance(event, RandomSensitivityGaussian) else None
        if rate == 0 or event.noise_multiplier > _MOST_NOISE:
            continue
        heavy = heavy or projections is not None
        if rate < 1:
            sampled.append((Release(rate, Law(event.noise_multiplier, projections)), count))
        elif projections is None:
            squared_mu += count * event.noise_multiplier**-2
        else:
            whole.append((Whole(Law(event.noise_multiplier, projections)), count))
    if not heavy:
        return None
    parts = (*sampled, *whole)
    ways = ("remove", "add") if sampled else ("remove",)  # without sampling the pair is symmetric
    return tuple(HeavyDirection(parts, squared_mu, way) for way in ways)
