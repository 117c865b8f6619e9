"""Remarks 3 and 4, Theorem 7, Table 1 and Section 6: the rates, their choices of τ, and their comparisons.

| paper | here |
| --- | --- |
| n, m, ε, k, τ | `records`, `dimensions`, `epsilon`, `noisy`, `tau` |

Constants are 1 and logarithms are left out, as the paper leaves them out. Theorem 3 at excess e reads then
(τ + 1)((1 + 1/τ) e + 1/n²) + 1/(τn) with e = m/(n²ε²) (DP-SGD) or km/(n³ε²) (PIDP-SGD) and E[L*] = 1/n.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range


def _theorem_3(tau: float, excess: float, records: float) -> float:
    return float((tau + 1) * ((1 + 1 / tau) * excess + 1 / records**2) + 1 / (tau * records))


_SIZES = {
    "records": Range(10, 1e6, "log"),
    "dimensions": Range(9, 1e5, "log"),
    "epsilon": Range(0.01, 3, "log"),
}
_OWN = (
    {"records": 45222.0, "dimensions": 100.0, "epsilon": 3.0},
    {"records": 70000.0, "dimensions": 40.0, "epsilon": 0.01},
)


def _remark_4_margin(records: float, dimensions: float, epsilon: float, tau: float, last: float = 1.0) -> float:
    """1 − Theorem 3 over four times the printed sum m/(τn²ε²) + τm/(n²ε²) + 1/(τn)."""
    excess = dimensions / (records * epsilon) ** 2
    printed = excess / tau + tau * excess + last / (tau * records)
    return 1 - _theorem_3(tau, excess, records) / (4 * printed)


remark_4_sum = Inequality(
    _remark_4_margin,
    {**_SIZES, "tau": Range(1e-3, 1e5, "log")},
    tuple({**own, "tau": 1.0} for own in _OWN),
    lambda **point: _remark_4_margin(**point, last=0.0),
    tolerance=1e-9,
    obligations=("m at least epsilon squared: the dropped term tau/n^2 is then below tau m/(n epsilon)^2",),
    examples=80,
)


def _remark_4_minimum(records: float, dimensions: float, epsilon: float, power: float = 1.5) -> float:
    """1 − the best of τ = 1 and τ = sqrt(n) ε/sqrt(m), over eight times the printed minimum."""
    excess = dimensions / (records * epsilon) ** 2
    taus = (1.0, math.sqrt(records / dimensions) * epsilon)
    found = min(_theorem_3(tau, excess, records) for tau in taus)
    first = excess + 1 / records
    second = math.sqrt(dimensions) / (records**power * epsilon) + dimensions**1.5 / (records**2.5 * epsilon**3)
    return float(1 - found / (8 * min(first, second)))


remark_4_minimum = Inequality(
    _remark_4_minimum,
    _SIZES,
    _OWN,
    lambda **point: _remark_4_minimum(**point, power=2.5),
    tolerance=1e-9,
    obligations=("E[L*] at most a constant over n", "m at least epsilon squared", "Theorem 1's rate, which is refuted"),
    examples=80,
)


def _theorem_7_terms(records: float, dimensions: float, epsilon: float, noisy: float) -> tuple[float, float, float]:
    product = noisy * dimensions
    return (
        product / (records**3 * epsilon**2) + 1 / records,
        product / (records**2.5 * epsilon**2) + 1 / records**1.5,
        product**1.5 / (records**2 * epsilon**3) + epsilon / (math.sqrt(product) * records),
    )


def _theorem_7_margin(records: float, dimensions: float, epsilon: float, share: float, third: float = 1.0) -> float:
    """1 − Theorem 3 at the three τ over eight times each printed term; the smallest of the three."""
    noisy = max(1.0, share * records)
    excess = noisy * dimensions / (records**3 * epsilon**2)
    taus = (1.0, math.sqrt(records), records * epsilon / math.sqrt(noisy * dimensions))
    terms = list(_theorem_7_terms(records, dimensions, epsilon, noisy))
    terms[2] *= third
    found = [_theorem_3(tau, excess, records) for tau in taus]
    return min(1 - value / (8 * term) for value, term in zip(found, terms, strict=True))


theorem_7_rate = Inequality(
    _theorem_7_margin,
    {**_SIZES, "share": Range(0, 1)},
    tuple({**own, "share": 0.1} for own in _OWN),
    lambda **point: _theorem_7_margin(**point, third=0.01),
    tolerance=1e-9,
    obligations=(
        "Theorem 6's rate, which is refuted",
        "E[L*] at most a constant over n",
        "k m at least epsilon squared",
    ),
    examples=80,
)


def _third_power(records: Any, product: Any, epsilon: Any) -> Any:
    """e/τ at τ = nε/sqrt(km), with e = km/(n³ε²): the quotient of its two parts, in mpmath."""
    import mpmath

    tau = mpmath.mpf(records) * epsilon / mpmath.sqrt(product)
    return product / (mpmath.mpf(records) ** 3 * mpmath.mpf(epsilon) ** 2) / tau


def _third_printed(power: int) -> Any:
    import mpmath

    return lambda records, product, epsilon: (
        mpmath.mpf(product) ** 1.5 / (mpmath.mpf(records) ** power * mpmath.mpf(epsilon) ** 3)
    )


theorem_7_third = Formula(
    _third_printed(2),
    _third_power,
    tuple({"records": n, "product": 5000, "epsilon": epsilon} for n in (1000, 45222) for epsilon in (0.5, 3)),
    twin=_third_printed(3),
    corrected=_third_printed(4),
)


def _best(records: Fraction, dimensions: Fraction, epsilon: Fraction, noisy: Fraction | None) -> float:
    """The printed minimum, of PIDP-SGD where `noisy` is given, else of DP-SGD."""
    n, m, e = float(records), float(dimensions), float(epsilon)
    if noisy is not None:
        return min(_theorem_7_terms(n, m, e, float(noisy)))
    return float(min(m / (n * e) ** 2 + 1 / n, math.sqrt(m) / (n**1.5 * e) + m**1.5 / (n**2.5 * e**3)))


def _better(noisy_share: Fraction, records: int, dimensions: int) -> Shown:
    """The two printed minima at ε = 1, square roots exact: n and m are squares of squares."""
    n, m = Fraction(records), Fraction(dimensions)
    root_n, root_m = Fraction(math.isqrt(records)), Fraction(math.isqrt(dimensions))
    k = noisy_share * n
    plain = min(m / n**2 + 1 / n, root_m / (n * root_n) + m * root_m / (n**2 * root_n))
    lower_third = k * m / n**2  # (km)^1.5 >= km, since km >= 1
    own = min(k * m / n**3 + 1 / n, k * m / (n**2 * root_n) + 1 / (n * root_n), lower_third)
    doubles = _best(n, m, Fraction(1), k) / _best(n, m, Fraction(1), None)
    routes = {"rationals, at least": float(own / plain), "doubles": doubles}
    agree = (own <= plain) == (doubles <= 1)
    reason = f"with k/n = {noisy_share} PIDP-SGD's printed rate is {doubles:.4g} times that of DP-SGD"
    evidence = {"records": records, "dimensions": dimensions, "noisy_share": float(noisy_share)}
    return Shown(own <= plain if agree else None, reason, doubles, evidence, routes)


theorem_7_better = Demonstration(
    lambda: _better(Fraction(1, 2), 10**6, 10**4), twin=lambda: _better(Fraction(1, 10**6), 10**6, 10**4)
)


def _remark_3(records: int, epsilon: float, power: int = 1) -> Shown:
    """Noise energies summed with weights (1 − x)^i against T times the noise, x = μ/L, T = ⌈2 ln n / x⌉, σ² ∝ T."""
    ratios = {}
    for size in (records, records**2, records**4):
        steps = math.ceil(2 * math.log(size) * 10)
        geometric = math.fsum(0.9**i for i in range(steps))
        ratios[str(size)] = steps / geometric / math.log(size) ** power
    spread = max(ratios.values()) / min(ratios.values())
    low, high = min(ratios.values()), max(ratios.values())
    reason = f"T over the geometric sum is ln(n)^{power} times {low:.4g} to {high:.4g}"
    return Shown(spread < 1.01, reason, spread, {"ratio_over_power_of_log": ratios, "epsilon": epsilon})


remark_3 = Demonstration(lambda: _remark_3(100, 1.0), twin=lambda: _remark_3(100, 1.0, power=2))


def _factor_over_wang(log_multiplies: bool) -> Shown:
    """The rates km ln(n)/(n³ε²) (Theorem 6) and m ln²(n)/(n²ε²) (Remark 3): their ratio against the stated factor."""
    errors, again = [], []
    for records, noisy in ((10**3, 10), (10**5, 10**4)):
        log = math.log(records)
        ratio = noisy * log / records**3 / (log**2 / records**2)
        stated = noisy * log / records if log_multiplies else noisy / (records * log)
        errors.append(stated / ratio)
        again.append(log**2 if log_multiplies else 1.0)
    routes = {"ratio of the rates": errors, "ln squared": again}
    agree = all(abs(a / b - 1) < 1e-12 for a, b in zip(errors, again, strict=True))
    right = all(abs(error - 1) < 1e-9 for error in errors)
    reason = "the ratio is k/(n ln n)" if right else f"the stated factor is {errors[1]:.4g} times the ratio at n = 10^5"
    return Shown(right if agree else None, reason, errors[1], {}, routes)


factor_over_wang = Demonstration(lambda: _factor_over_wang(True), twin=lambda: _factor_over_wang(False))


def _smaller_margin(records: float, share: float, log: float = 0.0) -> float:
    """1 − the ratio of Theorem 6's rate to Theorem 1's, k/n < 1."""
    noisy = share * records
    return float(1 - noisy / records * math.log(records) ** log)


theorem_6_smaller = Inequality(
    _smaller_margin,
    {"records": Range(10, 1e6, "log"), "share": Range(0, 0.999)},
    ({"records": 45222.0, "share": 0.5},),
    lambda **point: _smaller_margin(**point, log=1.0),
    examples=30,
)


def _strongly_convex(share: float, faster: bool = False) -> Shown:
    """At m = ε² (best for DP-SGD's second term) the ratio to m/(n²ε²) + 1/n, times sqrt(n)."""
    scaled = {}
    for records in (10**4, 10**6, 10**8):
        ratio = (1 / records**1.5 + 1 / records**2.5) / (1 / records**2 + 1 / records)
        scaled[str(records)] = ratio * records ** (1.0 if faster else 0.5) * share
    steady = max(scaled.values()) / min(scaled.values()) < 1.01
    return Shown(steady, f"the ratio is 1/sqrt(n) times {scaled}", scaled[str(10**6)], {"scaled_ratio": scaled})


strongly_convex_factor = Demonstration(lambda: _strongly_convex(1.0), twin=lambda: _strongly_convex(1.0, faster=True))


def _noisy_factor(log: bool = False) -> Shown:
    """PIDP-SGD over DP-SGD where the noise dominates: m = n² ε², k = n/100, so m/(nε)² = 1 is far above 1/n."""
    scaled = {}
    for records in (10**4, 10**6, 10**8):
        noisy = records // 100
        ratio = _best(Fraction(records), Fraction(records) ** 2, Fraction(1), Fraction(noisy)) / _best(
            Fraction(records), Fraction(records) ** 2, Fraction(1), None
        )
        scaled[str(records)] = ratio * records / noisy * (math.log(records) if log else 1)
    steady = max(scaled.values()) / min(scaled.values()) < 1.02
    return Shown(steady, f"the ratio is k/n times {scaled}", scaled[str(10**6)], {"scaled_ratio": scaled})


noisy_factor = Demonstration(_noisy_factor, twin=lambda: _noisy_factor(log=True))


def _convex_margin(records: float, dimensions: float, epsilon: float, root: float = 0.5) -> float:
    """1 − our printed minimum over twice sqrt(m)/(nε) + n^(−root), where the latter's first term is at most 1."""
    own = min(
        dimensions / (records * epsilon) ** 2 + 1 / records,
        math.sqrt(dimensions) / (records**1.5 * epsilon) + dimensions**1.5 / (records**2.5 * epsilon**3),
    )
    first = math.sqrt(dimensions) / (records * epsilon)
    other = first * (1 if root == 0.5 else 0) + 1 / records**root
    return 1.0 if first > 1 else float(1 - own / (2 * other))


convex_comparison = Inequality(
    _convex_margin,
    _SIZES,
    _OWN,
    lambda **point: _convex_margin(**point, root=2.0),
    obligations=("only where sqrt(m) is at most n epsilon; beyond it both bounds are vacuous and the order turns",),
    examples=60,
)


def _complexity(n_at_most_m: bool) -> Shown:
    """n·m against m² per round, R rounds, as the remark compares them."""
    pairs = [(n, m) for n in (10, 100, 1000) for m in (10, 100, 1000) if (n <= m) == n_at_most_m]
    better = all(n * m <= m * m for n, m in pairs)
    return Shown(better, f"n m is at most m^2 at {len(pairs)} pairs: {better}", float(len(pairs)))


remark_8_rival = Demonstration(lambda: _complexity(True), twin=lambda: _complexity(False))


def _inverse_cost(records: int, dimensions: int) -> Shown:
    """Multiplications of one round: Hessian n m², elimination m³/3, one product m² per record; against n m²."""
    hessian, inverse, products = records * dimensions**2, dimensions**3 / 3, records * dimensions**2
    ratio = (hessian + inverse + products) / (records * dimensions**2)
    if records >= dimensions:
        return Shown(True, f"{ratio:.3g} times n m^2", ratio)
    reason = f"{ratio:.3g} times n m^2 with n < m and a direct inverse; low-rank solvers for such Hessians avoid that"
    return Shown(None, reason, ratio, {"records": records, "dimensions": dimensions})


remark_8_complexity = Demonstration(_inverse_cost, twin=lambda records, dimensions: _inverse_cost(dimensions, records))
