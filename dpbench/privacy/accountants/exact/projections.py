"""Compositions with mechanisms of random sensitivity: one contour for all but their large losses, one for these.

With E and j of each mechanism (`random_sensitivity`), Π E^T is integrated like any other M.

**J** = Π M^T − Π E^T = Π E^T · (Π (1 + j/E)^T − 1) is what large losses add, about as large as their probability, and 0
at z = 0. Its hyperbola crosses the axis between the poles −1 and 0 and may open to the right all the same: along a path
in s that rises to the right, p R^(1+z) falls wherever Re(z s) < 0, and this continues M from Re z < 0 to the upper half
plane, up to the edge of its cut [0, ∞). What is lost are the digits by which T · P(large loss) exceeds δ.

**Error.** As in `contour`, of two evaluations with different windows, nodes and paths, and twice their difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpbench.errors import DpbenchError
from dpbench.events import RandomSensitivityGaussian
from dpbench.privacy.accountants import _complex
from dpbench.privacy.accountants._complex import Complex, Floats
from dpbench.privacy.accountants._work import spend
from dpbench.privacy.accountants.exact.contour import (
    UNIT,
    Nodes,
    Part,
    Path,
    Row,
    Setup,
    Sum,
    first_order,
    moments,
    path,
    walk,
)
from dpbench.privacy.accountants.exact.direction import ContourDirection, Direction, Value
from dpbench.privacy.accountants.exact.random_sensitivity import OUTCOME, Law, Projected, windowed
from dpbench.privacy.accountants.exact.saddle import Saddle
from dpbench.privacy.guards import ELSEWHERE

_TINY = 1e-300
# the paths in z
_LEFTMOST = 0.5
_STEEPEST, _SHARE, _FLATTEST = 0.7, 0.8, 1e-3  # as for E
_ALIAS, _CHUNK = 38.0, 48
_OTHER = 0.87  # the scale of the second evaluation
_SHARED, _VALID = 3.0, 3e-10  # paths are used for another ε up to a loss of e^3 and this relative error
_NEAR = 0.5  # and up to this relative distance, for the window depends on ε
_STEPS = 60
_MOST = 1e4  # ε beyond which windows are too wide
_LEAST = 1e-3  # the least loss that is large
_LOST, _MANY = 1e3, 0.3  # large losses expected: at most so many times δ, and at most so many
_TILT = 24.0  # E's crossing times the loss at the cut, at most: else the window dominates E
_SKETCHED, _STEP = 1e10, 0.05  # the largest s that is looked at to choose paths, and the step in asinh s


def _jumps(setup: Setup, epsilon: float, scale: float) -> Path:
    """The path of J, whose strip lies between the poles −1 and 0, for δ next to `epsilon`."""
    left = min(_LEFTMOST, 2 / max(epsilon, _TINY)) * scale
    sets, slope = [], _STEEPEST
    for part in setup.parts:
        nodes = part.release.nodes(left, scale)
        large = part.release.large(300 / left, scale) if isinstance(part.release, Projected) else None
        for some in (nodes,) if large is None else (nodes, large):
            up = some.losses.real > _TINY
            slope = min(slope, _SHARE * float((some.losses.imag[up] / some.losses.real[up]).min(initial=1.0)))
        sets.append((part, nodes, first_order(nodes, "remove"), large))
    alpha = 0.5 * math.atan(max(slope, _FLATTEST))
    mu, step = 0.85 * left / math.sin(2 * alpha), 2 * math.pi * alpha / _ALIAS

    def laid(v: Floats) -> tuple[Row, Floats]:
        angle = alpha + 1j * v
        z = mu * np.sin(angle) - left
        weight = step / math.pi * mu * np.cos(angle) / (z * (z + 1))
        small, risen = setup.gaussian * z * (z + 1) / 2, np.zeros_like(z)  # log Π E^T and log Π (1 + j/E)^T
        noise, wrong = UNIT * np.abs(small), np.zeros(len(z))
        for part, nodes, first, large in sets:
            one = moments(z, nodes, first)
            small, off = small + part.count * one.log, one.rounding + one.aliasing
            noise = noise + part.count * off
            if large is not None and isinstance(part.release, Projected):
                value, error = _jump(z, large, part.release.masses)
                ratio = value * _complex.exp(-one.log)
                grown = _complex.log1p(ratio)
                risen = risen + part.count * grown
                error = error * np.abs(_complex.exp(-one.log)) + np.abs(ratio) * off
                wrong = wrong + part.count * error * np.abs(_complex.exp(-grown))
        height = np.maximum(small.real, (small + risen).real)
        whole, base = _complex.exp(small + risen - height), _complex.exp(small - height)
        little = np.abs(risen) < 1
        grown = np.where(little, base * _complex.expm1(np.where(little, risen, 0)), whole - base)
        logs = height + np.log(np.abs(grown) + _TINY) - epsilon * z.real + np.log(np.abs(weight))
        row = z, weight, height, grown, np.abs(grown) * noise + wrong * np.abs(whole)
        return row, np.where(np.isfinite(logs), logs, -math.inf)

    z, weight, height, grown, error = walk(laid, step, _CHUNK, slope)
    weight[0] /= 2
    return Path(float(abs(z[0])), z, weight, height, grown, error, 1, step, "nothing")


def _jump(z: Complex, large: Nodes, masses: tuple[float, float, float]) -> tuple[Complex, Floats]:
    """j at these z, with its error."""
    spend(len(z) * len(large.weights))
    pull = np.multiply.outer(z, large.losses)
    terms = np.exp(np.minimum(pull.real, 700.0)) * (1 + _complex.turn(pull.imag)) * large.weights
    sizes = np.abs(terms)
    alternate = terms @ np.where(np.arange(len(large.weights)) % 2, -1.0, 1.0)  # half of S_h − S_2h
    rounding = (sizes * (np.abs(pull) + 2 + np.abs(np.log(np.abs(large.weights) + _TINY)))).sum(axis=1)
    aliasing = np.abs(alternate) ** 2 / np.maximum(sizes.sum(axis=1), _TINY)
    value = terms.sum(axis=1) - masses[0] + masses[1] * _complex.expm1(-OUTCOME * z)
    return value, UNIT * (rounding + 16 * masses[0]) + aliasing


@dataclass(frozen=True)
class Laid:
    """The paths of E and of J, laid for one ε; what is not on them is at most `left`."""

    paths: tuple[Path, ...]
    epsilon: float
    left: float

    def valid_for(self, epsilon: float, most: float) -> bool:
        """Whether at another ε at most e^most is lost, and the window lies about where it should."""
        apart = abs(epsilon - self.epsilon)
        return max(one.crossing for one in self.paths) * apart <= most and apart <= _NEAR * self.epsilon

    def at(self, epsilons: Floats) -> Sum:
        """δ, −dδ/dε and a bound of δ's error."""
        found = [one.at(epsilons) for one in self.paths]
        delta, fall, error = (
            np.sum(row, axis=0) for row in zip(*((f.delta, f.fall, f.error) for f in found), strict=True)
        )
        return Sum(delta, fall, error + self.left)


@dataclass(frozen=True)
class Sketch:
    """One invocation by ascending l: the masses of both laws above each l, and the mean of l² below it."""

    count: int
    losses: Floats
    first: Floats
    second: Floats
    squares: Floats


@dataclass
class ProjectedDirection:
    """The direction remove of mechanisms of random sensitivity, each with rate, law and count, `beside` others."""

    projected: tuple[tuple[float, Law, int], ...]
    beside: Setup
    _sketched: list[Sketch] = field(default_factory=list, repr=False)

    @property
    def largest(self) -> float:
        """The largest loss."""
        return math.inf

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε >= 0, with its error; paths are used for all ε next to their own while errors stay small."""
        found: list[Value] = []
        while len(found) < len(epsilons):
            epsilon = epsilons[len(found)]
            both = self.lay(epsilon, 1.0), self.lay(epsilon, _OTHER)
            near = [other for other in epsilons[len(found) :] if all(one.valid_for(other, _SHARED) for one in both)]
            sums = _compared(both, np.array(near))
            good = sums.error <= _VALID * np.abs(sums.delta)
            good[0] = True
            end = len(good) if good.all() else int(np.argmin(good))
            rows = zip(sums.delta[:end].tolist(), sums.error[:end].tolist(), strict=True)
            found += [Value(max(delta, 0.0), error + max(-delta, 0.0)) for delta, error in rows]
        return found

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta: Newton's method on log δ by log ε, between ends."""
        target, low, high = math.exp(log_delta), 0.0, math.inf
        epsilon, laid, looked = self._guess(log_delta), None, False
        for _ in range(_STEPS):
            if laid is None or not laid.valid_for(epsilon, 1.0):
                laid = self.lay(epsilon, 1.0, log_delta)
            delta, fall, error = _first(laid.at(np.array([epsilon])))
            low, high = (max(low, epsilon), high) if delta > target else (low, min(high, epsilon))
            if epsilon == 0 and delta <= target:
                return Value(0.0, max(delta + error - target, 0.0) / max(fall, _TINY))
            following = -1.0
            if delta > 2 * error and fall > 0:
                change = math.log(delta / target) * delta / fall / max(epsilon, _TINY)
                following = epsilon * math.exp(min(max(change, -3.0), 3.0))
                if abs(change) < max(1e-13, 0.01 * error / fall / max(epsilon, _TINY)):
                    break
            if not low < following < high:
                following = 4 * low + 1e-6 if math.isinf(high) else math.sqrt(low * high) or high / 100
            if low == 0 and following < _LEAST and not looked:  # it may be 0
                looked, following = True, 0.0
            epsilon = following
        both = self.lay(epsilon, 1.0, log_delta), self.lay(epsilon, _OTHER, log_delta)
        delta, fall, error = _first(_compared(both, np.array([epsilon])))
        if not (fall > 0 and error + abs(delta - target) < target / 2):
            raise ArithmeticError(f"the contours give delta only as {delta:.3g} with an error of {error:.3g}")
        return Value(epsilon, (error + abs(delta - target)) / fall + 4 * UNIT * epsilon)

    def lay(self, epsilon: float, scale: float, log_delta: float | None = None) -> Laid:
        """The paths for this ε, where δ is about e^log_delta; another `scale` is another window and other nodes."""
        if epsilon > _MOST:
            raise DpbenchError(
                f"epsilon = {epsilon:.3g}: expected at most {_MOST:g} with random sensitivity; {ELSEWHERE}"
            )
        log_delta = float(self._about(np.array([epsilon]))[0]) if log_delta is None else log_delta
        loss = self._large(epsilon, log_delta) / scale
        heavy = tuple(Part(windowed(rate, law, loss), count) for rate, law, count in self.projected)
        setup = replace(self.beside, parts=heavy + self.beside.parts)
        strip = Saddle(setup, each=False).strip(epsilon)
        share = min(1.0, _TILT / loss / strip.crossing) * scale
        inner = path(replace(setup, taken=strip.taken), strip.crossing * share, strip.reach * share, epsilon, scale)
        # large losses, and the outcome that stands for them in E
        left = 2 * sum(part.count * part.release.masses[0] for part in heavy if isinstance(part.release, Projected))
        if left < 1e-14 * math.exp(log_delta):
            return Laid((inner,), epsilon, left)
        return Laid((inner, _jumps(setup, epsilon, scale)), epsilon, 0.0)

    # ---- estimates, which only choose where the paths lie ----

    def _sketches(self) -> list[Sketch]:
        if not self._sketched:
            for rate, law, count in self.projected:
                x = np.arange(math.asinh(-60 / law.scale), math.asinh(_SKETCHED / law.scale), _STEP)
                _, mixed, losses = Projected(rate, law, "remove").terms(law.scale * np.sinh(x) + 0j)
                first = np.exp(mixed.real) * law.scale * np.cosh(x) * _STEP
                rows = first[::-1].cumsum()[::-1], (first * np.exp(-losses.real))[::-1].cumsum()[::-1]
                squares = np.cumsum(first * losses.real**2)
                ended = [
                    np.append(row, end) for row, end in zip((*rows, squares), (0.0, 0.0, squares[-1]), strict=True)
                ]
                self._sketched.append(Sketch(count, losses.real, *ended))
        return self._sketched

    def _about(self, epsilons: Floats) -> Floats:
        """About log δ: the sum of single mechanisms' δ, and that of a Gaussian of the variance of losses below ε."""
        total, variance = np.zeros_like(epsilons), np.full_like(epsilons, self.beside.gaussian)
        for one in self._sketches():
            index = np.searchsorted(one.losses, epsilons)
            over = one.first[index] - np.exp(np.minimum(epsilons, 700.0)) * one.second[index]
            total = total + one.count * np.maximum(over, 0.0)
            variance = variance + one.count * one.squares[np.searchsorted(one.losses, np.maximum(epsilons, 0.5))]
        for part in self.beside.parts:
            logs, losses = part.release.law(1.0)
            variance = variance + part.count * float(np.exp(logs) @ losses**2)
        deviation = np.sqrt(np.maximum(variance, _TINY))
        x = epsilons / deviation - deviation / 2
        from scipy.special import erfcx

        near, far = (erfcx(np.maximum(at, -20.0) / math.sqrt(2)) / 2 for at in (x, x + deviation))
        gaussian = np.exp(-x * x / 2) * np.maximum(near - far, 0.0)
        return np.asarray(np.log(np.minimum(total + gaussian, 1.0) + _TINY))

    def _guess(self, log_delta: float) -> float:
        """About the ε of this δ."""
        epsilons = np.geomspace(1e-6, 1e9, 600)
        return float(np.exp(np.interp(-log_delta, np.maximum.accumulate(-self._about(epsilons)), np.log(epsilons))))

    def _large(self, epsilon: float, log_delta: float) -> float:
        """The least loss that is large: half of ε, or where larger ones are rare enough."""
        losses = np.geomspace(max(epsilon / 2, _LEAST), 4 * max(epsilon / 2, 0.5), 61)
        many = np.sum([one.count * one.first[np.searchsorted(one.losses, losses)] for one in self._sketches()], axis=0)
        rare = np.flatnonzero(many <= min(_LOST * math.exp(log_delta), _MANY))
        return float(losses[rare[0] if len(rare) else -1])


def _first(found: Sum) -> tuple[float, float, float]:
    return float(found.delta[0]), float(found.fall[0]), float(found.error[0])


def _compared(both: tuple[Laid, Laid], epsilons: Floats) -> Sum:
    """δ by the first; its error is the larger one, and twice what lies between them."""
    first, second = (one.at(epsilons) for one in both)
    error = np.maximum(first.error, second.error) + 2 * np.abs(first.delta - second.delta)
    if not np.isfinite(error).all():
        raise ArithmeticError("the transform of a random sensitivity overflows on the path of its integral")
    return Sum(first.delta, first.fall, error)


def projected_directions(
    releases: Sequence[tuple[RandomSensitivityGaussian, int]], remove: Setup, add: Setup
) -> tuple[Direction, Direction]:
    """Remove and add of a composition of these mechanisms, none of zero loss, beside those of the setups.

    Where nothing is sampled both are one object: the pair is its own reverse. Raises DpbenchError where some mechanisms
    are sampled and others are not, for then both directions have heavy tails.
    """
    laws = tuple(
        (event.sampling_rate, Law(event.noise_multiplier, event.projections), count) for event, count in releases
    )
    whole = [rate == 1 for rate, _, _ in laws]
    removing = ProjectedDirection(laws, remove)
    if all(whole) and not remove.parts:
        return removing, removing
    if any(whole):
        raise DpbenchError(
            "sampling_rate = 1 with random sensitivity: expected no sampled mechanisms beside it, or one rate below 1;"
            f" {ELSEWHERE}"
        )
    parts = tuple(Part(Projected(rate, law, "add"), count) for rate, law, count in laws)
    return removing, ContourDirection(replace(add, parts=parts + add.parts))
