"""Internal: the inequalities that every certified interval rests on.

Every inequality of docs/certified.md, in the code that bounds, against direct sums at random parameters.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import acb, arb
from numpy.typing import NDArray

from dpbench.privacy.certified._bent import Bend
from dpbench.privacy.certified._contour import aliasing_bound, log_chernoff_factor, tail_bound
from dpbench.privacy.certified._factors import LaplaceFactor
from dpbench.privacy.certified._jl import JlFactor
from dpbench.privacy.certified._mixture import Mixture
from dpbench.privacy.certified._numbers import working_bits

Numbers = NDArray[Any]
ROUNDING = 1e-9  # of the direct sums in doubles, relative


def between(random: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def log_upper(value: Any) -> float:
    """log of the upper end of a ball."""
    return float(arb(value.upper()).log()) if value > 0 else -math.inf


def log_sum(terms: Numbers) -> float:
    return float(np.logaddexp.reduce(terms))


def drawn(random: np.random.Generator) -> tuple[Mixture, float]:
    """A mechanism and c: q from 1e-9 to 1, σ from 0.3 to 20, c from 0.01 to 200, or in the strip."""
    q, sigma = between(random, 1e-9, 0.999), between(random, 0.3, 20)
    direction = random.choice(["remove", "add", "replace"])
    size = 1 if direction == "replace" else int(random.choice([1, 1, 2, 5]))
    rate = Fraction(q)
    weights = tuple(math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1))
    c = between(random, 0.01, 200) if random.random() < 0.8 else -float(random.uniform(0.02, 0.98))
    return Mixture(weights, sigma, direction), c


def log_ratio(release: Mixture, s: Numbers) -> Numbers:
    """log R at complex places with 0 <= |Im s| < π/g, by the definition."""
    shrink = 0.5 / release.noise_multiplier**2
    terms = np.array(
        [math.log(b) + k * s - k * (k - 1) * shrink for k, b in enumerate(map(float, release.weights)) if b]
    )
    top = terms.real.max(axis=0)
    return top + np.log(np.exp(terms - top).sum(axis=0))


def log_integrand(release: Mixture, s: Numbers, c: float, u: float) -> Numbers:
    """log |p R^(...)| at complex places, by the definitions of section 3."""
    sigma = release.noise_multiplier
    z = complex(c, u)
    if release.direction == "add":  # the conjugate is what the code sums
        power = -z.conjugate() * log_ratio(release, s)
    else:
        power = (1 + z) * log_ratio(release, s)
    if release.direction == "replace":
        power = power - z * log_ratio(release, -s - 1 / sigma**2)
    return -(sigma**2) * (s + 0.5 / sigma**2) ** 2 / 2 + power + math.log(sigma / math.sqrt(2 * math.pi))


class TestSection2:
    def test_the_chernoff_factor(self) -> None:
        random = np.random.default_rng(1)
        for _ in range(300):
            a = between(random, 1e-3, 1e4)
            x = np.exp(random.uniform(-20, 6, 300))
            assert np.all(np.log(-np.expm1(-x)) - a * x <= log_chernoff_factor(a) + 1e-12)
            assert math.log(1 / (1 + a)) + a * math.log(a / (1 + a)) == pytest.approx(log_chernoff_factor(a), rel=1e-9)

    def test_the_aliases(self) -> None:
        """Σ over m ≠ 0 of e^(−mcτ) |δ(ε − mτ) − [c < 0]| of a Gaussian, term by term."""
        random = np.random.default_rng(2)
        for _ in range(60):
            mu, epsilon = between(random, 0.1, 6), float(random.uniform(0, 8))
            step, right = between(random, 0.02, 1.5), random.random() < 0.5
            c = between(random, 0.05, 5) if right else -float(random.uniform(0.05, 0.95))
            with mpmath.workdps(40):
                tau = 2 * mpmath.pi / mpmath.mpf(step)
                total = mpmath.mpf(0)
                for m in [k for k in range(-12, 13) if k]:
                    t = epsilon - m * tau
                    delta = mpmath.ncdf(mu / 2 - t / mu) - mpmath.exp(t) * mpmath.ncdf(-mu / 2 - t / mu)
                    total += mpmath.exp(-m * c * tau) * abs(delta - (0 if right else 1))
                known = float(mpmath.log(total)) if total else -math.inf
            beyond = c * (1 + between(random, 0.1, 4)) if right else c
            with working_bits(128):
                above = (arb(mu) ** 2 * beyond * (arb(beyond) + 1) / 2).exp() if right else None
                bound = aliasing_bound(arb(c), arb(step), arb(epsilon), arb(beyond), above)
            assert known <= log_upper(bound) + ROUNDING

    def test_the_tail(self) -> None:
        random = np.random.default_rng(3)
        for _ in range(100):
            c = between(random, 0.01, 200) if random.random() < 0.5 else -float(random.uniform(0.01, 0.99))
            step, count = between(random, 1e-3, 10), int(random.integers(1, 200))
            z = c + 1j * step * np.arange(count, count + 20_000)
            total = step / math.pi * float((1 / np.abs(z * (z + 1))).sum())
            with working_bits(100):
                assert total <= float(tail_bound(arb(1), arb(step), arb(step) * count)) * (1 + ROUNDING)


class TestSections3And4:
    def test_the_sector(self) -> None:
        """cos(gθ/2) R(Re s) <= |R(s)| <= R(Re s), 0 <= arg R(s) <= gθ."""
        random = np.random.default_rng(4)
        for _ in range(200):
            release, _ = drawn(random)
            s = random.uniform(-60, 60, 200)
            theta = random.uniform(0, 0.999 * math.pi / release.largest, 200)
            lifted, plain = log_ratio(release, s + 1j * theta), log_ratio(release, s + 0j).real
            assert np.all(lifted.real <= plain + ROUNDING)
            assert np.all(lifted.real >= plain + np.log(np.cos(release.largest * theta / 2)) - ROUNDING)
            assert np.all((lifted.imag >= -ROUNDING) & (lifted.imag <= release.largest * theta + ROUNDING))

    def test_what_the_sum_leaves_out(self) -> None:
        """Wherever the range is cut, between the peak and the mean too: nodes at any height and u, and the integral."""
        random = np.random.default_rng(5)
        for _ in range(250):
            release, c = drawn(random)
            width, side = 1 / release.noise_multiplier, int(random.choice([-1, 1]))
            low, high, _ = release.span(c, 20.0)
            edge = float(random.uniform(low - 3 * width, high + 3 * width))
            top = float(random.uniform(0, 0.9)) * math.pi / (2 * release.largest)
            step = width * between(random, 0.002, 2)
            with working_bits(100):
                nodes = log_upper(release.outside(arb(edge), side, arb(c), arb(top), arb(step)))
                whole = log_upper(release.outside(arb(edge), side, arb(c), arb(top), None))
            reach = (high - edge if side > 0 else edge - low) + 10 * width
            places = edge + side * step * np.arange(max(int(reach / step), 1))
            for height in (0.0, top * random.random(), top):
                u = random.choice([0.0, between(random, 0.1, 100)])
                log_nodes = log_sum(log_integrand(release, places + 1j * height, c, u).real) + math.log(step)
                assert log_nodes <= nodes + ROUNDING
                fine = edge + side * np.linspace(0, max(reach, width), 4001)
                values = log_integrand(release, fine + 1j * height, c, u).real
                smaller = np.minimum(values[1:], values[:-1])  # below the integral: log |f| has no valley so narrow
                log_whole = log_sum(smaller) + math.log(abs(fine[1] - fine[0]))
                assert log_whole <= whole + ROUNDING

    def test_the_aliases_in_s(self) -> None:
        """Lifted sums with a coarse step against one so fine that it has no aliases."""
        random = np.random.default_rng(6)
        tested = 0
        for _ in range(300):
            release, c = drawn(random)
            sigma = release.noise_multiplier
            low, high, top = release.span(c, 45.0)
            y = float(random.uniform(0.2, 0.9)) * min(math.pi / (2 * release.largest), 3 / sigma)
            h = 2 * math.pi * y / (between(random, 2.0, 12.0) + 2 * (y * sigma) ** 2)
            u = float(random.choice([0.0, between(random, 0.1, 30)]))
            fine = min(h / 3, 0.02 / sigma, 0.02 / max(1.0, u))
            if (high - low) / fine > 100_000:
                continue

            def total(
                height: float, h: float, u: float, release: Mixture = release, c: float = c, low: float = low,
                high: float = high, top: float = top,
            ) -> complex:  # fmt: skip
                places = np.arange(low, high, h) + 1j * height
                return complex(np.exp(log_integrand(release, places, c, u) - top).sum() * h)

            with working_bits(100):
                try:
                    bound = float(release.aliasing(arb(abs(total(y, h, 0.0))), arb(c), arb(h), arb(y)).upper())
                except AssertionError:  # too coarse, and refused
                    continue
            tested += 1
            assert abs(total(y, h, u) - total(0.0, fine, u)) <= bound + 1e-8 * abs(total(0.0, fine, 0.0))
        assert tested > 50


class TestSection6:
    def test_along_the_contour(self) -> None:
        """B(U) bounds |M(c + iu)| for every u >= U, whichever contour was chosen."""
        random = np.random.default_rng(7)
        for _ in range(15):
            release, c = drawn(random)
            low, high, top = release.span(c, 40.0)
            u = between(random, 0.3, 20)
            _, line = release.lift(c, u)
            with working_bits(100):
                bound = log_upper(release.tail(arb(c), arb(u), line, 25.0))
            for factor in (1.0, 1.1, 2.3, 7.0):
                h = min(0.02 / release.noise_multiplier, 0.02 / max(1.0, u * factor))
                if (high - low) / h > 300_000:
                    continue
                values = np.exp(log_integrand(release, np.arange(low, high, h) + 0j, c, u * factor) - top)
                assert abs(values.sum()) * h <= math.exp(min(bound - top, 600.0)) + 1e-11 * np.abs(values).sum() * h


class TestSection6a:
    @staticmethod
    def bends(random: np.random.Generator, count: int) -> list[tuple[Bend, float]]:
        """Contours for which the assumptions are proven, with a κ of the wedge."""
        found: list[tuple[Bend, float]] = []
        while len(found) < count:
            q, slope = between(random, 1e-9, 0.999), float(random.uniform(0.05, 0.9))
            bend = Bend(Fraction(q), between(random, 0.3, 5), math.log1p(-q) + between(random, 1e-3, 8), 0.0, slope)
            reach = float(random.uniform(0.05, 1)) * (bend.level - math.log1p(-q))
            bend = Bend(bend.rate, bend.noise, bend.level, bend.zero + math.log(math.expm1(reach)), slope)
            kappa = slope * float(random.uniform(0.1, 0.95))
            with working_bits(100):
                try:
                    bend.check(arb(kappa))
                except AssertionError:
                    continue
            found.append((bend, kappa))
        return found

    @staticmethod
    def log_ratio(bend: Bend, t: Numbers) -> Numbers:
        """log R along the ray by continuity, from its derivative's sign: unwrapped arguments of R itself."""
        s = bend.start + t * (1 + 1j * bend.slope)
        q, shift = float(bend.rate), np.maximum(s.real, 0)
        scaled = (1 - q) * np.exp(-shift) + q * np.exp(s - shift)
        return np.log(np.abs(scaled)) + shift + 1j * np.unwrap(np.angle(scaled))

    def test_the_inequality_w(self) -> None:
        """κ(log|R| − e) <= arg R along the ray, R(Re s) at least |R|, and arg R >= 0."""
        for bend, kappa in self.bends(np.random.default_rng(8), 150):
            t = np.linspace(0, 60, 60_001)
            found = self.log_ratio(bend, t)
            assert np.all(kappa * (found.real - bend.level) <= found.imag + ROUNDING)
            assert np.all(found.imag >= -ROUNDING)
            with np.errstate(over="ignore"):
                real = np.logaddexp(math.log1p(-float(bend.rate)), math.log(bend.rate) + bend.start + t)
            assert np.all(found.real <= real + ROUNDING)

    def test_what_the_ends_leave_out(self) -> None:
        """∫ |p R e^(z (log R − e))| beyond both ends, z anywhere on the middle hyperbola."""
        random = np.random.default_rng(9)
        for bend, kappa in self.bends(random, 60):
            corner = between(random, 0.05, 20)
            first = corner + between(random, 0.05, 5)
            low, run = bend.ends(float(random.uniform(3, 20)), first)
            with working_bits(100):
                bound = log_upper(bend.outside(low, run, arb(corner), arb(first)))
            u = between(random, 0.01, 50)
            c = float(random.uniform(corner, first + kappa * u))
            shift, sigma = 0.5 / bend.noise**2, bend.noise
            constant = math.log(sigma / math.sqrt(2 * math.pi))
            h = 0.002 / sigma
            left = low - h * np.arange(1, 10_000)
            size = np.logaddexp(math.log1p(-float(bend.rate)), math.log(bend.rate) + left)
            terms = -(sigma**2) * (left + shift) ** 2 / 2 + size + c * (size - bend.level)
            total = np.exp(log_sum(terms) + constant + math.log(h))
            t = np.arange(0, run + 10 / sigma, h)
            found = self.log_ratio(bend, t)
            height = bend.slope * t
            ray = -(sigma**2) * ((bend.start + t + shift) ** 2 - height**2) / 2 + found.real
            ray += c * (found.real - bend.level) - u * found.imag + math.log(math.hypot(1, bend.slope))
            total += np.exp(log_sum(ray[t >= run][1:]) + constant + math.log(h))
            assert math.log(total) <= bound + ROUNDING

    def test_the_hyperbolas(self) -> None:
        """∫ |dz|/|z(z+1)| <= π/(c' cos α'), the wedge, and the sum of what the last node leaves out."""
        random = np.random.default_rng(10)
        for _ in range(100):
            corner, scale, angle = between(random, 0.05, 20), between(random, 0.05, 50), between(random, 0.01, 0.39)
            tilt = angle * float(random.uniform(0, 2))
            w = np.linspace(-25, 25, 50_001)
            c = corner + scale * math.sin(tilt) * np.cosh(w)
            u = scale * math.cos(tilt) * np.sinh(w)
            z = c + 1j * u
            length = np.abs(np.diff(z)) / np.maximum(np.abs(z * (z + 1))[1:], np.abs(z * (z + 1))[:-1])
            start = corner + scale * math.sin(tilt)
            assert length.sum() <= math.pi / (start * math.cos(tilt))
            assert np.all(c >= start * (1 - ROUNDING))
            assert np.all(c <= start + math.tan(2 * angle) * np.abs(u) + ROUNDING * c)
            step, count = between(random, 0.001, 0.3), int(random.integers(1, 60))
            nodes = step * np.arange(count, 4000)
            nodes = nodes[nodes < 300]
            z = corner + scale * np.sin(angle + 1j * nodes)
            total = scale * step / math.pi * (np.abs(np.cos(angle + 1j * nodes)) / np.abs(z * (z + 1))).sum()
            first = step * count
            bound = step * math.cosh(first) / math.sinh(first) ** 2 + 1 / math.sinh(first)
            assert total <= bound / (math.pi * scale * math.cos(angle) ** 2) * (1 + ROUNDING)


def test_the_moments_of_laplace() -> None:
    """Section 8: two atoms and a density between them."""
    random = np.random.default_rng(11)
    for _ in range(40):
        scale = between(random, 0.02, 20)
        c = between(random, 0.01, 50) if random.random() < 0.5 else -float(random.uniform(0.05, 0.45))
        with working_bits(150), mpmath.workdps(25):
            values, _ = LaplaceFactor(scale).moments(arb(c), arb(between(random, 0.1, 5)), 1, 10.0)
            v = 1 / mpmath.mpf(scale)
            cuts = mpmath.linspace(0, 1, 9)
            inner = mpmath.quad(lambda x, v=v, c=c: v / 2 * mpmath.exp(-v * x + c * v * (1 - 2 * x)), cuts)
            truth = mpmath.exp(c * v) / 2 + mpmath.exp(-v - c * v) / 2 + inner
            assert abs(mpmath.mpf(str(values[0].real.mid().str(25, radius=False))) / truth - 1) < 1e-14


class TestSection9:
    @staticmethod
    def drawn(random: np.random.Generator) -> tuple[JlFactor, float]:
        direction = random.choice(["remove", "add"])
        c = -float(random.uniform(0.05, 0.95)) if direction == "remove" else between(random, 0.01, 20)
        rate = Fraction(between(random, 1e-6, 0.99))
        if direction == "remove" and random.random() < 0.2:
            rate = Fraction(1)
        return JlFactor(rate, between(random, 0.3, 10), int(random.choice([1, 2, 5, 30, 200])), direction), c

    @staticmethod
    def log_density(factor: JlFactor, s: Numbers) -> Numbers:
        """log of p(s) e^(s/2), or of its bound with s² − y² in place of s², by a sum over log G: 9.1 and 9.2."""
        r, sigma = factor.projections, factor.noise_multiplier
        logs = np.linspace(math.log(1e-14), math.log(60 + 200 / r), 3001)
        g = np.exp(logs)
        prior = r / 2 * math.log(r / 2) - math.lgamma(r / 2) + r / 2 * logs - r * g / 2 + math.log(logs[1] - logs[0])
        body = math.log(sigma / math.sqrt(2 * math.pi)) + logs / 2 - 1 / (8 * sigma**2 * g)
        return np.logaddexp.reduce(prior + body - sigma**2 * np.asarray(s)[:, None] * g / 2, axis=1)

    def test_the_law_and_the_lifted_one(self) -> None:
        random = np.random.default_rng(12)
        for _ in range(60):
            factor, _ = self.drawn(random)
            sigma = factor.noise_multiplier
            s = float(random.uniform(-8, 8)) / sigma
            y = float(random.uniform(0, 0.9)) * math.sqrt(factor.projections) / sigma
            square = s * s - y * y
            with working_bits(120):
                plain, lifted = factor.bessel_part(arb(s) ** 2), factor.bessel_part(arb(square))
                there = abs(factor.bessel_part((arb(s) + 0) ** 2 - arb(y) ** 2 + 2 * arb(s) * arb(y) * acb(0, 1)))
            first, second = self.log_density(factor, np.array([s * s, square]))
            assert log_upper(plain) == pytest.approx(first, abs=1e-7)
            assert log_upper(lifted) == pytest.approx(second, abs=1e-7)
            assert log_upper(there) <= log_upper(lifted) + ROUNDING

    def test_what_the_sum_leaves_out(self) -> None:
        """|p (R^w − (1−q)^w)| beyond every edge, at any height and u: nodes and integral."""
        random = np.random.default_rng(13)
        for _ in range(12):
            factor, c = self.drawn(random)
            sigma, q = factor.noise_multiplier, float(factor.rate)
            top = float(random.uniform(0, 0.95)) * min(math.pi / 2, math.sqrt(factor.projections) / (2 * sigma))
            u, step = between(random, 0.1, 100), between(random, 0.003, 0.5) / sigma
            kappa = float(factor.kappa(c))
            side = int(random.choice([-1, 1]))
            with working_bits(80):
                pieces = factor.pieces(side, c, top, abs(kappa) + u, step)
            y = top * random.random()
            places = side * step * np.arange(1500)
            w, lifted = complex(kappa, u), places + 1j * y
            if q == 1:
                log_power = kappa * places - u * y
            else:  # (1−q)^w (e^(w log(1 + ρ)) − 1)
                odds = math.log(q) - math.log1p(-q)
                near = np.log1p(np.exp(np.minimum(lifted.real, 600) + 1j * y + odds))
                v = w * np.where(lifted.real < 600, near, lifted + odds)
                log_power = np.where(
                    v.real > 30, v.real, np.log(np.abs(np.expm1(np.minimum(v.real, 30) + 1j * v.imag)) + 1e-300)
                )
                log_power += kappa * math.log1p(-q)
            values = self.log_density(factor, places**2 - y * y) - places / 2 + log_power
            for piece in random.choice(np.array(pieces, dtype=object), 4):
                beyond = values[side * places >= abs(piece.edge)]
                if len(beyond):
                    assert log_sum(beyond) + math.log(step) <= log_upper(piece.outside) + 1e-6

    def test_the_aliases(self) -> None:
        """Lifted sums with a coarse step against the integral on the real line."""
        random = np.random.default_rng(14)
        for _ in range(7):
            factor, c = self.drawn(random)
            if factor.direction == "remove":
                c = min(c, -0.4)  # at most e^(−0.4 s) is left to the right
            sigma, r, q, kappa = factor.noise_multiplier, factor.projections, float(factor.rate), float(factor.kappa(c))
            y = float(random.uniform(0.3, 0.9)) * min(math.pi / 2, math.sqrt(r) / (2 * sigma))
            h = 2 * math.pi * y / between(random, 1.0, 8.0)
            w, reach = complex(kappa, between(random, 0.1, 5)), 40 / (1 - max(kappa, 0.0))

            def summed(s: Numbers, density: Numbers, q: float = q, w: complex = w) -> complex:
                limit = (1 - q) ** w if q < 1 else 0
                return complex(
                    (s[1] - s[0]).real * np.sum(density * (np.exp(w * np.log(1 - q + q * np.exp(s))) - limit))
                )

            lifted = h * np.arange(-int(40 / h), int(reach / h)) + 1j * y
            fine = np.linspace(-40, reach, 4001)
            with working_bits(64):
                bound = float(factor.aliasing(arb(c), arb(h), arb(y)).upper())
                bent = [complex(factor.bessel_part(acb(s.real, s.imag) ** 2).mid()) * np.exp(-s / 2) for s in lifted]
            plain = np.exp(self.log_density(factor, fine**2) - fine / 2)
            off = abs(summed(lifted, np.array(bent)) - summed(fine, plain))
            assert off <= bound * (1 + 1e-6) + (1e-6 if q < 1 else 40**-r)  # q = 1: what 40 to the left leave out
