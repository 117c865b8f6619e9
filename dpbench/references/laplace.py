"""The reference of the Laplace mechanism: Lap(0, b) against Lap(Δ, b), and any number of them.

In units of Δ it is Lap(0, b/Δ) against Lap(1, b/Δ); below, b is that ratio, an exact fraction. One invocation has
δ(ε) = 1 − e^{(ε − 1/b)/2} for |ε| <= 1/b. Up to 400 equal mechanisms have a closed form, enclosed to any number of
digits; more, or unlike ones, go on a lattice whose nodes lie on the atoms.

    >>> import math
    >>> from dpbench.events import Laplace
    >>> reference.delta(Laplace(2.0), 0.25, digits=8).contains(-math.expm1(-0.125))
    True
    >>> reference.delta((Laplace(20.0), 100), 1.0, digits=12).upper
    Decimal('0.0063629682806249227')

One Laplace mechanism, and any number of equal ones in closed form: Lap(0, b) against Lap(1, b), in Arb balls.

With Λ = 1/b the loss is (|x − 1| − |x|)/b. Under P = Lap(0, b) it has the atom Λ with mass ½ (x < 0), the atom −Λ with
mass ½ e^{−Λ} (x > 1) and between them the density ¼ e^{(L−Λ)/2}. Mirrored, x → 1 − x, the pair is its own reverse.
Summing up, H(a) = max(1 − a, 1 − √(a e^{−Λ}), 0).

**T invocations.** Write the density as ¼ e^{−Λ/2} e^{L/2} (1[L < Λ] − 1[L < −Λ]). A choice of i upper atoms, j lower
ones, and, of the other k = T − i − j invocations, m with the second indicator and k − m with the first, puts the k-fold
convolution (v − s)₊^{k−1}/(k−1)! of such indicators at v = (k − 2m)Λ, times e^{s/2}, and the atoms at (i − j)Λ. With
n = j + m the sum of both places is (T − 2n)Λ, the exponentials collect to e^{−nΛ}, and the numbers of choices, with the
factors ½ of an atom and ±¼ of an indicator, are the coefficients of a polynomial. With u_n = (T − 2n)Λ − ε:

    δ(ε) = Σ_{n: u_n > 0} C(T, n) e^{−nΛ} Σ_k c_{nk} F_k(u_n),   Σ_k c_{nk} x^k = (½ − x/4)^n (½ + x/4)^{T−n},
    F_0(u) = 1 − e^{−u},   F_k(u) = ∫_0^u t^{k−1}/(k−1)! e^{−t/2} (1 − e^{t−u}) dt,

by F_k = A_k − e^{−u} B_k with A_k = 2 (A_{k−1} − p_k e^{−u/2}), B_k = 2 (p_k e^{u/2} − B_{k−1}), p_k = u^{k−1}/(k−1)!
and A_0 = B_0 = 1 (integration by parts). Terms cancel; the precision is raised until enough digits are left.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import mpmath
from flint import arb, fmpq, fmpq_poly

from dpbench.events import Event, Laplace
from dpbench.references._enclosure import Ball, Enclosure, ball
from dpbench.references._quadrature import Function, _agreed, _number
from dpbench.references._reference import Closed, reference_of
from dpbench.references._release import Direction, HockeyStick, Releases, Symmetric, refined


@dataclass(frozen=True)
class LaplaceLaw(Symmetric):
    """The law, and the pair in either direction: the scale b > 0, relative to the sensitivity."""

    scale: Fraction

    def largest_loss(self, _direction: Direction) -> Ball | None:
        """1/b."""
        return ball(1 / self.scale)

    def quadrature(self, _direction: Direction, epsilon: Fraction, digits: int) -> Decimal:
        """∫ (p − e^ε q)₊ dx, panels to the left of where the ratio crosses e^ε."""
        with mpmath.workdps(digits + 20):
            b, level = _number(self.scale), _number(epsilon)
            if level >= 1 / b:
                return Decimal(0)
            end = (1 - b * level) / 2 if level > -1 / b else mpmath.mpf("inf")  # p = e^ε q there

            def integrand(x: mpmath.mpf) -> mpmath.mpf:
                p, q = (mpmath.exp(-abs(x - c) / b) / (2 * b) for c in (0, 1))
                return p - mpmath.exp(level) * q

            reach = b * (digits + 25) * mpmath.log(10)

            def integral(growth: mpmath.mpf) -> mpmath.mpf:
                stop = min(end, 1 + reach)
                corners = [-reach, *(x for x in (0, 1) if x < stop), stop]
                pieces = itertools.pairwise(corners)
                return mpmath.fsum(_panelled(integrand, low, high, b * growth) for low, high in pieces)

            return _agreed(integral, digits)

    def renyi(self, _direction: Direction, order: Fraction, digits: int) -> Decimal:
        """log ∫ p^α q^{1−α} dx / (α − 1), in its three pieces; the integrand is largest at 0."""
        with mpmath.workdps(digits + 20 + math.ceil(abs(math.log10(self.scale)) * 2)):
            b, alpha = _number(self.scale), _number(order)
            reach = b * (mpmath.mp.dps + 5) * mpmath.log(10)

            def term(x: mpmath.mpf) -> mpmath.mpf:
                return mpmath.exp((-alpha * abs(x) - (1 - alpha) * (abs(x - 1) - 1)) / b) / (2 * b)

            def integral(growth: mpmath.mpf) -> mpmath.mpf:
                outer = (_panelled(term, low, low + reach, b * growth) for low in (-reach, mpmath.mpf(1)))
                inner = _panelled(term, mpmath.mpf(0), mpmath.mpf(1), b * growth / (2 * alpha - 1))
                return (mpmath.log(mpmath.fsum([*outer, inner])) + (alpha - 1) / b) / (alpha - 1)

            return _agreed(integral, digits)

    def anchor(self) -> Ball:
        """−1/b, the lower atom."""
        return -ball(1 / self.scale)

    def hockey_stick(self) -> HockeyStick:
        """The largest of two lines and a curve; where balls leave two of them, the union of both, and a tangent."""
        width = ball(2 / self.scale)

        def curve(y: Ball) -> tuple[Ball, Ball]:
            a = (y - width / 2).exp()
            height, slope = -((y - width) / 2).expm1(), -(-y / 2).exp() / 2  # √(a e^{−Λ}) = e^{(y − 2Λ)/2}
            if y <= 0:
                return 1 - a, arb(-1)
            if y >= width:
                return arb(0), arb(0)
            if not y > 0:
                height = height.union(1 - a)
            if not y < width:
                height = height.union(arb(0))
            return height, slope

        return curve

    def span(self, _tail: float) -> tuple[float, float]:
        """From one atom to the other."""
        return 0.0, float(2 / self.scale)

    def log_density(self, y: float) -> float:
        """Of X under Q: e^{L/2} of L under P, times e^{−2L}."""
        return -1.5 * y

    def period(self) -> Fraction | None:
        """2/b, between the atoms."""
        return 2 / self.scale


def _panelled(function: Function, low: mpmath.mpf, high: mpmath.mpf, width: mpmath.mpf) -> mpmath.mpf:
    """An integral over panels about so wide."""
    count = int((high - low) / (2 * width)) + 1
    points = [low + (high - low) * mpmath.mpf(i) / count for i in range(count + 1)]
    return mpmath.quad(function, points, method="gauss-legendre")


def equal_releases(law: LaplaceLaw, count: int, epsilon: Fraction, digits: int) -> Enclosure:
    """δ(ε) of `count` equal mechanisms by the closed form; the time grows like count² and more."""
    half, below, above = fmpq(1, 2), fmpq_poly([fmpq(1, 2), fmpq(-1, 4)]), fmpq_poly([fmpq(1, 2), fmpq(1, 4)])
    reach = 1 / law.scale
    places = [n for n in range(count + 1) if (count - 2 * n) * reach > epsilon]  # 0, 1, ... up to some n
    polynomials = [(below**n * above ** (count - n)).coeffs() for n in places]

    def at_precision() -> Ball:
        total, choices = arb(0), 1
        for n, coefficients in enumerate(polynomials):
            u = ball((count - 2 * n) * reach - epsilon)
            falling, rising = (-u * half).exp(), (u * half).exp()
            shrink, power, first, second = (-u).exp(), arb(1), arb(1), arb(1)
            inner = coefficients[0] * (1 - shrink)
            for k in range(1, count + 1):
                first, second = 2 * (first - power * falling), 2 * (power * rising - second)
                inner += coefficients[k] * (first - shrink * second)
                power = power * u / k
            total += choices * ball(-n * reach).exp() * inner
            choices = choices * (count - n) // (n + 1)
        return total

    return refined("closed form of equal Laplace releases", digits, at_precision)


MOST_EQUAL = 400  # mechanisms in closed form: some seconds


def law(event: Event) -> LaplaceLaw | None:
    """The law of one event; None where it has zero loss. Raises ValueError for what is not covered."""
    if not isinstance(event, Laplace):
        raise ValueError(f"event = {event!r}: expected a Laplace")
    return None if event.exact_noise is None else LaplaceLaw(event.exact_noise)


def _close(releases: Releases, _direction: Direction) -> Closed | None:
    ((one, count), *others) = releases
    if others or count > MOST_EQUAL or not isinstance(one, LaplaceLaw):
        return None
    return lambda epsilon, digits: equal_releases(one, count, epsilon, digits)


reference = reference_of("Laplace", law, _close)
