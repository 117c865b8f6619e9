"""The mechanism of random sensitivity by numerical integration: another variable, other panels, no proof.

Integrals are over the length s = √W of r standard normal coordinates (Z = √r / s), with the chi density
s^{r−1} e^{−s²/2} 2^{1−r/2} / Γ(r/2). Nothing is shared with the Arb route; nothing is proved: each integral is taken
with two different sets of panels or steps, which must agree to the digits asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb

from dpbench.references._enclosure import Ball, ball, bits
from dpbench.references._quadrature import _agreed, _number

Number = Any


def _density(projections: int) -> Callable[[Number], Number]:
    r = mpmath.mpf(projections)
    constant = (1 - r / 2) * mpmath.log(2) - mpmath.loggamma(r / 2)
    return lambda s: mpmath.exp((r - 1) * mpmath.log(s) - s * s / 2 + constant)


def hockey_stick(
    rate: Fraction, variance: Fraction, projections: int, direction: str, epsilon: Fraction, digits: int
) -> Decimal:
    """δ(ε) of one invocation: the chi density times the sampled Gaussian's δ at sensitivity z, by panels in s."""
    with mpmath.workdps(digits + 20):
        q, sigma, level = _number(rate), mpmath.sqrt(_number(variance)), _number(epsilon)
        side = 1 if direction == "remove" else -1
        inside = (mpmath.exp(side * level) - 1 + q) / q  # N(z)/N(0) at the end of S
        if inside <= 0:
            return Decimal(0) if direction == "add" else Decimal(mpmath.nstr(1 - mpmath.exp(level), digits + 5))
        log_ratio, density = mpmath.log(inside), _density(projections)

        def given(s: Number) -> Number:
            z = mpmath.sqrt(projections) / s
            t = sigma * sigma * log_ratio / z + z / 2
            nothing, moved = (mpmath.erfc(side * (t - c) / (sigma * mpmath.sqrt(2))) / 2 for c in (0, z))
            if direction == "remove":
                return q * (moved - inside * nothing)
            return nothing - mpmath.exp(level) * ((1 - q) * nothing + q * moved)

        def integrand(v: Number) -> Number:  # v = log s
            s = mpmath.exp(v)
            return density(s) * s * given(s)

        # the integrand falls on both sides of its peak, at least like e^{rv} to the left
        step, peak = mpmath.mpf(1) / (2 * mpmath.sqrt(projections)), mpmath.log(projections) / 2
        for way in (-step, step):
            while integrand(peak + way) > integrand(peak):
                peak += way
        unit, ends = integrand(peak), [peak, peak]
        for i, way in ((0, -step), (1, step)):
            while integrand(ends[i]) > unit * mpmath.mpf(10) ** -(digits + 10):
                ends[i] += way

        def integral(growth: Number) -> Number:
            count = int((ends[1] - ends[0]) * growth / (4 * step)) + 1
            points = [ends[0] + (ends[1] - ends[0]) * mpmath.mpf(i) / count for i in range(count + 1)]
            return unit * mpmath.quad(lambda v: integrand(v) / unit, points, method="gauss-legendre")

        return _agreed(integral, digits)


def renyi_add(rate: Fraction, variance: Fraction, projections: int, order: Fraction, digits: int) -> Decimal:
    """D_α of N(0) against the mixture, Z released: trapezoidal sums over x/σ and log s, in Arb's faster numbers."""
    lost = (digits + 12) * math.log(10)
    with mpmath.workdps(digits + 20), bits(64 + math.ceil(lost / math.log(2))):
        q, sigma, alpha, r = ball(rate), ball(variance).sqrt(), ball(order), arb(projections)
        reach, small = math.sqrt(2 * lost), arb(10) ** -(digits + 6)
        constant = (1 - r / 2) * arb(2).log() - (r / 2).lgamma()

        def growth(z: Ball, fine: float) -> Ball:
            """∫ φ ((m/φ)^{1−α} − 1) dt at sensitivity z; the integrand has poles at height πσ/z."""
            if z > 4 * reach * sigma:  # N(z) is beyond reach: m/φ = 1 − q
                return ((1 - alpha) * (-q).log1p()).expm1()
            count = math.ceil(reach * fine * (1 + float((z / sigma).mid()) / 4))
            step, total = arb(reach) / count, arb(0)
            drift, fall = z / sigma, z * z / (2 * sigma * sigma)
            for i in range(-count, count + 1):
                t = i * step
                change = q * (drift * t - fall).expm1()
                total += (-t * t / 2).exp() * ((1 - alpha) * change.log1p()).expm1()
            return total * step / (2 * arb.pi()).sqrt()

        def divergence(fine: Number) -> Number:
            scale, total = 1 / (12 * arb(float(fine)) * r.sqrt()), arb(0)
            for first, sign in ((0, 1), (1, -1)):
                i = first
                while True:
                    s = (r.log() / 2 + sign * i * scale).exp()
                    part = (r * s.log() - s * s / 2 + constant).exp() * scale * growth(r.sqrt() / s, 10 * float(fine))
                    total = (total + part).mid()
                    if i > 3 and abs(part) < small * abs(total) * scale:
                        break
                    i += 1
            return mpmath.mpf((total.log1p() / (alpha - 1)).mid().str(digits + 15, radius=False))

        return _agreed(divergence, digits, steps=(1, mpmath.mpf(4) / 3))
