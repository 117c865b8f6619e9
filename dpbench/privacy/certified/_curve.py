"""δ(ε) and ε(δ) of one direction, as balls: by which method, and with more work where it was too little."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from flint import arb

from dpbench.errors import DpbenchError
from dpbench.privacy.certified._bent import BentTransform, bent_transform, can_bend
from dpbench.privacy.certified._contour import (
    SMALLEST,
    Ball,
    Exponents,
    Plan,
    Transform,
    plan_right,
    plan_strip,
    transform,
)
from dpbench.privacy.certified._exact_sums import (
    Pairs,
    atoms_and_laplace_delta,
    atoms_delta,
    atoms_epsilon,
    gaussian_delta,
    single_delta,
)
from dpbench.privacy.certified._factors import AtomsFactor, GaussianFactor, LaplaceFactor
from dpbench.privacy.certified._jl import JlFactor
from dpbench.privacy.certified._mixture import Mixture, positive
from dpbench.privacy.certified._numbers import ball_of, ends, log_fraction, spend, working_bits
from dpbench.privacy.certified._sides import Side

ROUNDS = 7
FEW = 4  # sampled mechanisms for which a bent contour is tried first
ATOM_DIGITS = 12.0  # that ε of finite pairs alone has at least: fewer cost as much
MANY_NODES = 5000  # of a straight line; beyond, a bent one is tried


@dataclass
class Curve:
    """One direction of a composition. Keeps the transforms that it has computed."""

    side: Side
    progress: Callable[[str], None] | None = None
    transforms: list[Transform | BentTransform] = field(default_factory=list)
    exponents: Exponents = field(init=False)
    found: dict[Fraction, tuple[Fraction, Fraction]] = field(default_factory=dict)
    exact: dict[Fraction, tuple[Fraction, Fraction, Ball]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exponents = Exponents(self.side.parts)
        self.closed, self.method = _closed(self.side)
        self.strip = not self.closed and math.isinf(self.exponents(1.0))

    def delta(self, epsilon: Fraction, log_target: float | None, digits: float) -> Ball:
        """δ(ε) within e^log_target, or where that is None within 10^−digits of itself, as far as possible."""
        if self.closed is not None:
            return self._closed_delta(epsilon, log_target, digits)
        at = float(epsilon)
        if not self.ceiling(epsilon):
            return Ball(arb(0))
        guess = log_target
        if not self.strip:
            enough = SMALLEST if log_target is None else log_target
            _, chernoff = self.exponents.saddle(at, enough)
            if chernoff < enough:
                return self._chernoff(epsilon, enough)
        else:
            chernoff = self._known_size(epsilon)
        if guess is None:
            guess = chernoff - 2 - digits * math.log(10)
        found: Ball | None = None
        for _ in range(ROUNDS):
            ball = self._with_target(epsilon, guess)
            if found is None or ball.value.rad() < found.value.rad():
                found = ball
            if _log(found.value.rad()) <= (guess if log_target is None else log_target) + 1:
                if log_target is not None or not found.value > 0:
                    wanted = guess - 12
                else:
                    wanted = _log(found.value.lower()) - digits * math.log(10)
                if log_target is not None or _log(found.value.rad()) <= wanted:
                    break
                guess = min(wanted - 0.7, guess - 1)
            else:
                guess -= 2
        assert found is not None
        return found

    def _known_size(self, epsilon: Fraction) -> float:
        """log δ where no Chernoff bound exists: from a first, coarse ball."""
        target = -16.0
        for _ in range(4):
            value = self._with_target(epsilon, target).value
            if value > 0:
                return _log(value.mid())
            target *= 2
        return target

    def _with_target(self, epsilon: Fraction, log_target: float) -> Ball:
        """From a transform that is good enough, or else from a new one."""
        for known in self.transforms:
            with working_bits(known.bits):
                ball = self._all_of(known.delta(ball_of(epsilon)))
            if _log(ball.value.rad()) <= log_target + 1:
                return ball
        fresh = self._fresh(float(epsilon), log_target)
        self.transforms.append(fresh)
        with working_bits(fresh.bits):
            return self._all_of(fresh.delta(ball_of(epsilon)))

    def _fresh(self, at: float, log_target: float) -> Transform | BentTransform:
        """On a straight line, or where that takes many nodes, on a bent one if there is one."""
        plans = [known.plan for known in self.transforms if isinstance(known, Transform)]
        planner = plan_strip if self.strip else plan_right
        parts = self.side.parts
        plan: Plan | None = None
        refused: DpbenchError | None = None
        releases = sum(count for _, count in parts)
        bendable = can_bend(parts)
        if not bendable or releases > FEW:
            try:
                plan = planner(parts, self.exponents, at, log_target, plans[-1] if plans else None)
            except DpbenchError as error:
                refused = error
        if bendable and (plan is None or plan.count > MANY_NODES):
            with contextlib.suppress(DpbenchError):
                return bent_transform(parts, at, log_target, self.progress)
        if refused is not None:
            raise refused
        if plan is None:
            plan = planner(parts, self.exponents, at, log_target, plans[-1] if plans else None)
        return transform(parts, plan, plan.bits + releases.bit_length() + 16, self.progress)

    def _all_of(self, ball: Ball) -> Ball:
        """δ lies in [0, 1]; infinite losses add their probability (in the strip the integral holds them already)."""
        value = ball.value if self.strip else ball.value + self.side.infinite()
        return replace(ball, value=value)

    def _largest(self) -> Any | None:
        """A ball of the finite losses' supremum; None where there is none, or losses are infinite."""
        losses = [(factor.largest_loss(), count) for factor, count in self.side.parts]
        if self.side.finite or any(loss is None for loss, _ in losses):
            return None
        return sum((count * loss for loss, count in losses), arb(0))

    def largest_loss(self) -> Fraction | None:
        """A proven bound of the finite losses' supremum; None where there is none."""
        with working_bits(128):
            largest = self._largest()
            return None if largest is None else ends(largest)[1]

    def ceiling(self, epsilon: Fraction) -> Fraction:
        """A proven bound that costs nothing: δ(ε) <= 1 − e^(ε − L) with L the largest loss; 1 where there is none."""
        with working_bits(128):
            largest = self._largest()
            if largest is None:
                return Fraction(1)
            beyond = ball_of(epsilon) - largest
            return Fraction(0) if ends(beyond)[0] >= 0 else max(ends(1 - beyond.exp())[1], Fraction(0))

    def _chernoff(self, epsilon: Fraction, enough: float) -> Ball:
        """[0, B] with Chernoff's bound B = M(a) e^(−aε) a^a (1+a)^(−1−a) in balls, plus the infinite losses."""
        a, _ = self.exponents.saddle(float(epsilon), enough)
        with working_bits(128):
            line = arb(a)
            bound = (-line * ball_of(epsilon)).exp() * (line * line.log() - (1 + line) * (1 + line).log()).exp()
            for factor, count in self.side.parts:
                bound *= factor.upper(line) ** count
            top = positive(bound)
            value = top / 2 + arb(0, positive(top / 2)) + self.side.infinite()
            return Ball(value, tail=float(top), nodes=1, bits=128)

    def _closed_delta(self, epsilon: Fraction, log_target: float | None, digits: float) -> Ball:
        """A closed form, in more and more bits until the radius is small enough."""
        assert self.closed is not None
        bits = int(digits * 3.33) + 80
        value = arb(0)
        for _ in range(16):
            spend((bits / 100) ** 2)
            with working_bits(bits):
                found = self.closed(ball_of(epsilon))
                if found is not None:
                    value = found
                    small = _log(value.rad()) <= -2000 or (log_target is not None and _log(value.rad()) <= log_target)
                    if value.is_exact() or small or value.rel_accuracy_bits() >= digits * 3.33 + 3:
                        return Ball(value, rounding=float(value.rad()), bits=bits)
            bits *= 2
        return Ball(value if found is not None else arb(0.5, 0.5), rounding=float(value.rad()), bits=bits)

    def epsilon(self, delta: Fraction, digits: float) -> tuple[Fraction, Fraction, Ball]:
        """Proven ends of the smallest ε >= 0 with δ(ε) <= `delta`; and the ball of δ at the upper end."""
        log_delta = log_fraction(delta)
        atoms = _atoms(self.side)
        if atoms:
            if delta not in self.exact or digits > ATOM_DIGITS:
                lower, upper, value, bits = atoms_epsilon(atoms, delta, max(digits, ATOM_DIGITS))
                rounding = float(arb(value.rad()).upper())
                self.exact[delta] = lower, upper, Ball(value, rounding=rounding, bits=bits)
            return self.exact[delta]
        if self.closed is None and not self.strip and self.exponents.saddle(0.0, log_delta - 1)[1] <= log_delta:
            ball = self._chernoff(Fraction(0), log_delta - 1)
            if _surely_at_most(ball, delta):
                return Fraction(0), Fraction(0), ball
        if delta not in self.found:
            self.found[delta] = self._search(delta, log_delta, self._first_upper(log_delta, delta))
        guess, high = self.found[delta]
        wanted = Fraction(10) ** -math.ceil(digits)
        for extra in range(ROUNDS):
            slope = self._slope(guess, delta)
            width = max(guess * wanted, wanted / 1000) / 4
            log_target = min(log_delta - 2, math.log(-slope) + log_fraction(width) - 1.4) if slope else log_delta - 30
            log_target -= extra
            guess = self._newton(guess, delta, slope, log_target, digits, high)
            radius = width
            for _ in range(8):
                lower, upper = max(guess - radius, Fraction(0)), guess + radius
                above = self.delta(upper, log_target, digits)
                if lower > 0 and not _surely_above(self.delta(lower, log_target, digits), delta):
                    if _surely_at_most(self.delta(Fraction(0), log_delta - 3, 3.0), delta):
                        return Fraction(0), Fraction(0), above
                elif _surely_at_most(above, delta):
                    break
                radius *= 4
            else:
                continue
            if lower == 0 and _surely_at_most(self.delta(Fraction(0), log_delta - 6, 3.0), delta):
                return lower, lower, above
            if upper - lower <= max(wanted * upper, wanted / 1000) or extra == ROUNDS - 1:
                return lower, upper, above
        raise DpbenchError(
            f"delta = {float(delta)!r}: no enclosure of epsilon was reached; ask for fewer digits, or give epsilon"
        )

    def _first_upper(self, log_delta: float, delta: Fraction) -> Fraction:
        """Some ε where δ is surely at most `delta`."""
        if self.strip or self.closed is not None:
            high = Fraction(1)
        else:
            high = Fraction(self.exponents.epsilon(log_delta)) + Fraction(1, 10**12)
        for _ in range(60):
            if _surely_at_most(self.delta(high, log_delta - 8, 4.0), delta):
                return high
            high *= 2
        raise DpbenchError(
            f"delta = {float(delta)!r}: no finite epsilon was found; the probability of an infinite loss may be larger"
        )

    def _search(self, delta: Fraction, log_delta: float, high: Fraction) -> tuple[Fraction, Fraction]:
        """Secant steps of log δ within a bisection, on midpoints: ε to about 1e-5 of itself, and some ε above it."""
        low, first = Fraction(0), high
        asked = False
        guess = high
        for _ in range(100):
            ball = self.delta(guess, log_delta - 8, 4.0)
            mid = _mid(ball)
            if mid > delta:
                low = guess
            else:
                high = guess
            slope = self._slope(guess, delta)
            step = -_log_ratio(mid, delta) * float(mid) / slope if slope and mid > 0 else math.inf
            if high - low < Fraction(1, 10**5) * high or high < Fraction(1, 10**16):
                break
            good = math.isfinite(step) and low < guess + Fraction(step) < high
            if not good and low == 0 and not asked:  # is ε = 0 enough?
                asked = True
                if _mid(self.delta(low, log_delta - 3, 4.0)) <= delta:
                    return low, first
            guess = _rounded(guess + Fraction(step) if good else (low + high) / 2)
            if good and abs(step) < 1e-6 * float(guess):
                break
        return guess, first

    def _newton(
        self, guess: Fraction, delta: Fraction, slope: float, log_target: float, digits: float, high: Fraction
    ) -> Fraction:
        """Newton's steps on midpoints, with a slope in doubles: as many digits as the balls have."""
        for _ in range(12):
            ball = self.delta(guess, log_target, 0.0 if self.closed is None else digits)
            miss = _mid(ball) - delta
            if slope == 0 or abs(miss) <= ends(ball.value.rad())[1]:
                break
            guess = min(max(_rounded(guess - miss / Fraction(slope), max(ball.bits, 64)), Fraction(0)), high)
        return guess

    def _slope(self, epsilon: Fraction, delta: Fraction) -> float:
        """dδ/dε near ε in doubles."""
        at = float(epsilon)
        if self.transforms:
            slope = self.transforms[-1].slope(at)
            if slope < 0:
                return slope
        step = max(at, 1e-9) * 1e-6
        log_target = log_fraction(delta) - 25
        left = self.delta(Fraction(at) - Fraction(step) if at > step else Fraction(at), log_target, 16.0)
        right = self.delta(Fraction(at) + Fraction(step), log_target, 16.0)
        span = step * (2 if at > step else 1)
        return min(float(_mid(right) - _mid(left)) / span, 0.0)


def _atoms(side: Side) -> list[tuple[Pairs, int]]:
    """The finite pairs with their counts where there is nothing else; otherwise empty."""
    found: list[tuple[Pairs, int]] = [(f.pairs, times) for f, times in side.parts if isinstance(f, AtomsFactor)]
    return found if len(found) == len(side.parts) else []


def _closed(side: Side) -> tuple[Callable[[Any], Any] | None, str]:
    """A closed form or an exact sum where the parts allow one, and the method's name."""
    parts = side.parts
    kinds = {type(factor) for factor, _ in parts}
    if not parts:
        return (lambda epsilon: 0 * epsilon), "nothing is revealed"
    first, count = parts[0]
    if isinstance(first, GaussianFactor):
        gaussian = first
        return (lambda epsilon: gaussian_delta(gaussian.squared_mu, epsilon)), "closed form of the Gaussian"
    factors = _atoms(side)
    if factors:
        return (lambda epsilon: atoms_delta(factors, epsilon)), "exact sum over the atoms"
    if kinds <= {AtomsFactor, LaplaceFactor}:
        scales = [(factor.scale, times) for factor, times in parts if isinstance(factor, LaplaceFactor)]
        pairs = [(factor.pairs, times) for factor, times in parts if isinstance(factor, AtomsFactor)]
        return (lambda epsilon: atoms_and_laplace_delta(pairs, scales, epsilon) + side.infinite()), "residues"
    if len(parts) == 1 and count == 1 and isinstance(first, JlFactor):
        return first.single_delta, "direct integral of one mechanism"
    if len(parts) == 1 and count == 1 and isinstance(first, Mixture):
        mixture = first
        if mixture.largest == 1 and mixture.direction != "replace":
            return (
                lambda epsilon: single_delta(
                    mixture.balls(), arb(mixture.noise_multiplier), mixture.direction, epsilon
                ),
                "closed form of one mechanism",
            )
    return None, "contour integral"


def _log(exact: Any) -> float:
    """log of an exact non-negative ball, in doubles; −inf for 0."""
    with working_bits(53):
        return float(arb(exact).log()) if exact > 0 else -math.inf


def _log_ratio(a: Fraction, b: Fraction) -> float:
    return log_fraction(a / b)


def _mid(ball: Ball) -> Fraction:
    return ends(ball.value.mid())[0]


def _surely_at_most(ball: Ball, delta: Fraction) -> bool:
    return bool(ball.value.is_finite()) and ends(ball.value)[1] <= delta


def _surely_above(ball: Ball, delta: Fraction) -> bool:
    return bool(ball.value.is_finite()) and ends(ball.value)[0] > delta


def _rounded(value: Fraction, bits: int = 60) -> Fraction:
    """A dyadic number near the fraction, so that numbers stay short."""
    if value == 0:
        return value
    shift = bits - (value.numerator.bit_length() - value.denominator.bit_length())
    scaled = value * Fraction(2) ** shift
    return Fraction(round(scaled)) / Fraction(2) ** shift
