"""Remarks 3, 4 and 8, Theorem 7, Table 1 and Section 6: the rates, their choices of τ, and their comparisons.

n, m, ε, k, τ are `records`, `dimensions`, `epsilon`, `noisy`, `tau`. Constants are 1 and logarithms are left out, as
the paper leaves them out; what "at most" lets a bound be larger by is 4. Theorem 3 at excess e reads then
(τ + 1)((1 + 1/τ) e + 1/n²) + 1/(τn), with E[L*] = 1/n.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.mathematics import by_rows

_FREE = 4.0
_SIZES = {"records": (10, 1e6, "log"), "dimensions": (9, 1e5, "log"), "epsilon": (0.01, 3, "log")}
_OWN = by_rows("records dimensions epsilon", (45222.0, 100.0, 3.0), (70000.0, 40.0, 0.01))


def dp_sgd(n: Any, m: Any, e: Any, power: float = 2) -> Any:
    """Theorem 1's rate, m/(n²ε²)."""
    return m / (n**power * e**2)


def pidp_sgd(n: Any, m: Any, e: Any, k: Any, power: float = 3) -> Any:
    """Theorem 6's rate, km/(n³ε²)."""
    return k * m / (n**power * e**2)


def dp_terms(n: float, m: float, e: float) -> tuple[float, float]:
    """The two printed terms of Remark 4's minimum."""
    return m / (n * e) ** 2 + 1 / n, math.sqrt(m) / (n**1.5 * e) + m**1.5 / (n**2.5 * e**3)


def pidp_terms(n: float, m: float, e: float, k: float) -> tuple[float, float, float]:
    """The three printed terms of Theorem 7's minimum."""
    first, second = k * m / (n**3 * e**2) + 1 / n, k * m / (n**2.5 * e**2) + 1 / n**1.5
    return first, second, (k * m) ** 1.5 / (n**2 * e**3) + e / (math.sqrt(k * m) * n)


# ---- Remarks 3, 4 and 8 ----


@shown(control={"power": 2})
def remark_3(power: int = 1) -> Shown:
    """Noise energies summed with weights (1 − x)^i against T times the noise, x = μ/L = 1/10, T = ⌈2 ln n / x⌉."""
    ratios = {}
    for size in (10**2, 10**4, 10**8):
        steps = math.ceil(20 * math.log(size))
        ratios[str(size)] = steps / math.fsum(0.9**i for i in range(steps)) / math.log(size) ** power
    low, high = min(ratios.values()), max(ratios.values())
    reason = f"T over the geometric sum is ln(n)^{power} times {low:.4g} to {high:.4g}"
    return Shown(high < 1.01 * low, reason, high / low, {"ratio_over_power_of_log": ratios})


@inequality(
    domain={**_SIZES, "tau": (1e-3, 1e5, "log"), "share": (0, 1)},
    settings=[{**own, "tau": 1.0, "share": 0.1} for own in _OWN],
    control={"less": 0.01},
    obligations=[
        "Theorems 1 and 6, which are refuted",
        "E[L*] at most a constant over n",
        "m, for Theorem 7 km, at least epsilon squared: the dropped tau/n^2 is then below tau m/(n epsilon)^2",
    ],
    examples=100,
)
def theorem_3_at(
    records: float, dimensions: float, epsilon: float, tau: float, share: float, statement: str, less: float = 1.0
) -> float:
    """1 − Theorem 3 over what a statement prints; the control has `less` of one printed term.

    Remark 4's sum at every τ, its minimum at the better of τ = 1 and sqrt(n) ε/sqrt(m), and the worst of Theorem 7's
    three terms at τ = 1, sqrt(n) and nε/sqrt(km), with k = `share` n of at least 1.
    """
    noisy = max(1.0, share * records)
    few = statement == "theorem 7"
    excess = pidp_sgd(records, dimensions, epsilon, noisy) if few else dp_sgd(records, dimensions, epsilon)

    def bound(at: float) -> float:
        return float((at + 1) * ((1 + 1 / at) * excess + 1 / records**2) + 1 / (at * records))

    if few:
        taus = (1.0, math.sqrt(records), records * epsilon / math.sqrt(noisy * dimensions))
        *terms, last = pidp_terms(records, dimensions, epsilon, noisy)
        return 1 - max(bound(at) / (_FREE * term) for at, term in zip(taus, (*terms, less * last), strict=True))
    if statement == "sum":
        return float(1 - bound(tau) / (_FREE * (excess / tau + tau * excess + less / (tau * records))))
    first, second = dp_terms(records, dimensions, epsilon)
    best = min(bound(1.0), bound(math.sqrt(records / dimensions) * epsilon))
    return 1 - best / (_FREE * min(first, less * second))


@inequality(
    domain={"records": (1, 1e5, "log"), "dimensions": (1, 1e5, "log")},
    settings=[{"records": 45222.0, "dimensions": 100.0}, {"records": 100.0, "dimensions": 45222.0}],
    obligations=["the rival's cost is quoted, not checked"],
    examples=80,
)
def remark_8_rival(records: float, dimensions: float, power: Printed) -> float:
    """log(m^`power`) − log(nm), R rounds of each, where n is at most m, and the other way round where it is larger."""
    saved = power.value * math.log(dimensions) - math.log(records * dimensions)
    return saved if records <= dimensions else -saved


@shown(control={"records": 10_000, "dimensions": 100})
def remark_8_complexity(records: int, dimensions: int) -> Shown:
    """Multiplications of one round over n m²: Hessian n m², elimination m³/3, one product of m² per record."""
    ratio = (2 * records * dimensions**2 + dimensions**3 / 3) / (records * dimensions**2)
    reason = f"{ratio:.3g} times n m^2"
    if records < dimensions:
        reason += " with n < m and a direct inverse; low-rank solvers for such Hessians avoid that"
    return Shown(True if ratio <= _FREE else None, reason, ratio)


# ---- Theorems 6 and 7 ----


@inequality(
    domain={**_SIZES, "share": (0, 0.999)},
    settings=[{**own, "share": 0.5} for own in _OWN],
    obligations=["the two printed rates; both are refuted"],
    examples=60,
)
def theorem_6_smaller(
    records: float, dimensions: float, epsilon: float, share: float, power: Printed, other: Printed
) -> float:
    """1 − Theorem 6's rate over Theorem 1's with k = `share` n of at least 1, each with its printed power of n."""
    found = pidp_sgd(records, dimensions, epsilon, max(1.0, share * records), power.value)
    return float(1 - found / dp_sgd(records, dimensions, epsilon, other.value))


@formula(settings=grid(records=[1000, 45222], epsilon=["0.5", "3"]))
def theorem_7_third(records: int, epsilon: Any, power: Printed) -> tuple[Any, Any, Any]:
    """(km)^1.5/(n^`power` ε³) at km = 5000; e/τ at τ = nε/sqrt(km) with e = km/(n³ε²); and with the fourth power."""
    product, n = mpmath.mpf(5000), mpmath.mpf(records)
    printed, corrected = (product**1.5 / (n**p * epsilon**3) for p in (power.value, 4))
    return printed, pidp_sgd(n, product, epsilon, 1) / (n * epsilon / mpmath.sqrt(product)), corrected


@shown(control={"share": Fraction(1, 10**6)})
def theorem_7_better(share: Fraction = Fraction(1, 2)) -> Shown:
    """The two printed minima at ε = 1, n = 10⁶, m = 10⁴ and k = `share` n; their roots are rational."""
    n, m, root_n, root_m = map(Fraction, (10**6, 10**4, 10**3, 10**2))
    k = share * n
    plain = min(m / n**2 + 1 / n, root_m / (n * root_n) + m * root_m / (n**2 * root_n))
    lower_third = k * m / n**2  # (km)^1.5 >= km, since km >= 1
    own = min(k * m / n**3 + 1 / n, k * m / (n**2 * root_n) + 1 / (n * root_n), lower_third)
    doubles = min(pidp_terms(1e6, 1e4, 1.0, float(k))) / min(dp_terms(1e6, 1e4, 1.0))
    routes = {"rationals, at least": float(own / plain), "doubles": doubles}
    reason = f"with k/n = {share} PIDP-SGD's printed rate is {doubles:.4g} times that of DP-SGD"
    evidence = {"records": 10**6, "dimensions": 10**4, "epsilon": 1, "noisy_share": float(share)}
    return Shown(own <= plain if (own <= plain) == (doubles <= 1) else None, reason, doubles, evidence, routes)


# ---- Section 6 ----


@formula(settings=[{"records": 10**3, "noisy": 10}, {"records": 10**5, "noisy": 10**4}])
def factor_over_wang(records: int, noisy: int) -> tuple[Any, Any, Any]:
    """The stated k ln(n)/n; Theorem 6's rate with ln(n) over that of [43] with its ln²(n) (Remark 3); k/(n ln n)."""
    n, log = mpmath.mpf(records), mpmath.log(records)
    ratio = pidp_sgd(n, 1, 1, noisy) * log / (dp_sgd(n, 1, 1) * log**2)
    return noisy * log / n, ratio, noisy / (n * log)


@shown()
def best_factor(power: Printed, rival: str) -> Shown:
    """Whether the ratio of two printed rates at ε = 1, times n^`power` or (n/k)^`power`, settles as n grows.

    `strongly_convex`: DP-SGD's minimum over m/(n²ε²) + 1/n, at m = ε²; `dp_sgd`: PIDP-SGD's minimum over DP-SGD's,
    where the noise dominates, m = n²ε² and k = sqrt(n).
    """
    scaled = {}
    for n in (1e4, 1e6, 1e8):
        if rival == "strongly_convex":
            ratio, size = min(dp_terms(n, 1, 1)) / (dp_sgd(n, 1, 1) + 1 / n), n
        else:
            ratio, size = min(pidp_terms(n, n**2, 1, math.sqrt(n))) / min(dp_terms(n, n**2, 1)), math.sqrt(n)
        scaled[f"{n:.0f}"] = ratio * size**power.value
    steady = max(scaled.values()) < 1.02 * min(scaled.values())
    reason = f"the ratio times the power {power.text} is {', '.join(f'{x:.5g}' for x in scaled.values())}"
    return Shown(steady, reason, scaled["1000000"], {"scaled_ratio": scaled})


@inequality(
    domain={"records": (10, 1e6, "log"), "first": (1e-6, 1, "log"), "epsilon": (0.01, 3, "log")},
    settings=[{"records": n, "first": math.sqrt(m) / (n * e), "epsilon": e} for n, m, e in map(dict.values, _OWN)],
    control={"power": 2.0},
    obligations=["sqrt(m) at most n epsilon; beyond it both bounds are vacuous and the order turns"],
    examples=60,
)
def convex_comparison(records: float, first: float, epsilon: float, power: float = 1.0) -> float:
    """1 − the printed minimum over sqrt(m)/(n^`power` ε) + 1/sqrt(n), where sqrt(m)/(nε) is `first`."""
    dimensions = (first * records * epsilon) ** 2
    other = math.sqrt(dimensions) / (records**power * epsilon) + 1 / math.sqrt(records)
    return float(1 - min(dp_terms(records, dimensions, epsilon)) / other)
