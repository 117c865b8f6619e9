"""δ(ε) of one direction with releases of random sensitivity: an integral along a path around the cut of M.

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
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_panels import GAUSS, POINTS, panel_nodes, roughness
from dpbench.accountants._projections_transform import GROWTH, TILT, UNITS, HeavyTransform

_TARGET = 1e-13  # what one panel may miss, relative to δ
_ENDS = 37.0  # e^−37 is below 1e-16
_ROUNDS = 24
_MOST_PANELS = 4000
LOST = 9.0  # log of what rounding may grow by
_UPHILL = 8.0  # log of what the integrand on the ray may exceed that at its foot by
_SHORT = 2.0  # an edge up to here is not dearer than a ray


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


def departure(transform: HeavyTransform, epsilon: float, lost: float = LOST) -> tuple[float, float, float, bool]:
    """Where the path leaves the real line, log of the integrand's size there, log δ(ε) to a digit, and whether
    the path ends there. Rounding grows by e^lost at most."""
    ladder = transform.ladder()
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
    if transform.cut and len(ended) and x[ended[0]] < _SHORT:
        return float(x[ended[0]]), float(line[ended[0]]), min(log_delta, 0.0), True
    width = place / math.sqrt(max(curve, 0.5))
    if transform.cut:  # nearer to 0 the edge costs less, and rounding a little more
        early = np.flatnonzero(line[: best + 1] + np.log(x[: best + 1]) < min(log_delta + lost, -1.0))
        place = min(float(x[early[0]]), place) if len(early) else place
    return place, width, min(log_delta, 0.0), False


def make_path(transform: HeavyTransform, epsilon: float, lost: float = LOST) -> Path:
    """Nodes for δ near ε. Raises ArithmeticError where these take too many."""
    place, width, log_delta, ended = departure(transform, epsilon, lost)
    scale = math.exp(max(log_delta, -700.0))
    pieces = []
    if transform.cut:
        edge = _edge(transform, place, epsilon, scale)
        if edge is not None:
            if ended:
                last = float(edge.log_moment[np.argmax(edge.z.real)].real)
                edge = replace(edge, end=complex(place), beyond=last + math.log(place))
            pieces.append(edge)
            scale = max(scale, edge(epsilon)[0])
    if not ended or not pieces:
        pieces.append(_ray(transform, place, width, epsilon, scale))
    return Path(tuple(pieces))


def _edge(transform: HeavyTransform, end: float, epsilon: float, scale: float) -> Nodes | None:
    ladder = transform.ladder()
    inside = np.flatnonzero(ladder.x <= end)
    x, log_moment = ladder.x[inside], ladder.log_moment[inside]
    angle = ladder.angle(len(inside) - 1) if len(inside) else x
    with np.errstate(divide="ignore"):
        mass = log_moment - x * epsilon - np.log1p(x) + np.log(np.sin(np.minimum(angle, 1.5)))
    if not len(x) or mass.max() < math.log(scale) - _ENDS:
        return None
    first = x[max(int(np.flatnonzero(mass > mass.max() - _ENDS)[0]) - 1, 0)]
    # x = end · t²: powers of √x, which the tail has, are powers of t. The first panel begins at 0, since the ladder
    # does not: of a tail like √x that ends at 1/ε its lowest x would leave out a share of √(ε · x)
    low = math.sqrt(first / end)
    places = [k / 2 for k in range(1, 2 * UNITS)]
    while places[-1] < end:
        places.append(places[-1] * math.exp(GROWTH))
    marks = {0.0, low, 1.0, *(share for share in (math.sqrt(place / end) for place in places) if low < share < 1)}
    t = 0.5
    while t > low:
        marks.add(t)
        t /= 2
    ordered = np.array(sorted(marks))

    def at(shares: Complex) -> tuple[Complex, Complex]:
        return np.asarray(end * shares.real**2 + 0j), np.asarray(2 * end * shares + 0j)

    return _gathered(transform, at, ordered[:-1] + 0j, ordered[1:] + 0j, epsilon, scale, end, True)


def _ray(transform: HeavyTransform, start: float, width: float, epsilon: float, scale: float) -> Nodes:
    side = TILT if epsilon >= transform.atom else -TILT
    along = complex(side, 1.0)
    log_allowed = math.log(scale) - _ENDS

    def at(lengths: Complex) -> tuple[Complex, Complex]:
        return np.asarray(start + lengths.real * along), np.full_like(lengths, along)

    foot = np.array([complex(start)])
    with np.errstate(all="ignore"):
        lowest = transform.log_moment(foot, start)[0] - foot * epsilon - np.log(foot) - np.log1p(foot)
    highest = float(lowest.real[0])
    marks = [0.0, min(width, start)]
    if not 0 < marks[1] < math.inf:
        raise ArithmeticError("the path does not see the bulk of the loss")
    while True:
        probe = marks[-1] * np.array([0.6, 0.75, 0.9, 1.0])
        z, _ = at(np.asarray(probe + 0j))
        size = (transform.log_moment(z, start)[0] - z * epsilon - np.log(z) - np.log1p(z)).real.max()
        if not size < highest + _UPHILL:  # tilted into where M is large: no bound of what is left out, nor of rounding
            raise ArithmeticError("the path goes uphill")
        if size + math.log(marks[-1]) < log_allowed or len(marks) > 120:
            break
        marks.append(2 * marks[-1])
    ends = np.array(marks) + 0j
    found = _gathered(transform, at, ends[:-1], ends[1:], epsilon, scale, start, False)
    beyond = float(transform.log_moment(z, start)[0].real.max()) + math.log(marks[-1])
    return replace(found, end=complex(z[-1]), beyond=beyond)


def _gathered(
    transform: HeavyTransform,
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
        log_moment, error = transform.log_moment(z, start)
        exponent = log_moment - z * epsilon - np.log(z) - np.log1p(z)
        terms = (np.exp(exponent) * slope / math.pi).reshape(-1, POINTS)
        size = np.abs(terms)
        if edge:
            terms = np.asarray(terms.imag + 0j, dtype=np.complex128)
            size = np.abs(terms)
        noise = (size * (error + UNIT * (8 + np.abs(z) * epsilon + np.abs(log_moment))).reshape(-1, POINTS)).max(axis=1)
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


def _miss(tail: Floats, whole: Floats, edge: bool) -> Floats:
    """What Gauss's rule misses, by the last Legendre coefficients: about their square where the integrand is analytic
    far and wide (to be safe their power 3/2), and as much as they are on the edge, which has branch points."""
    return tail if edge else np.asarray(tail * np.sqrt(np.minimum(tail / np.maximum(whole, 1e-300), 1.0)))


def _second_difference(places: Floats, values: Floats, index: int) -> float:
    if not 0 < index < len(values) - 1:
        return 1.0
    step = float(places[index + 1] - places[index - 1]) / 2
    return float(values[index + 1] - 2 * values[index] + values[index - 1]) / step**2
