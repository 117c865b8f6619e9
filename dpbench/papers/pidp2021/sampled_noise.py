"""Equation (2), the noise of DP-SGD that Theorems 1, 5 and 6 take from the moments accountant, at few steps.

| paper | here |
| --- | --- |
| n, T | `records`, ⌈ln n⌉, the T = O(log n) of Theorems 1 and 6 |
| c, G, σ | `constant`, 1, c √(T ln(1/δ)) / (n ε) |

Neighbours: with the linear loss ℓ(θ, z) = zθ, |z| <= 1 (so G = 1), D holds one 1 among zeros and D' holds zeros. The
released iterates tell the increments z_t + b, independent draws of (1 − 1/n) N(0, σ²) + (1/n) N(1, σ²) from D and of
N(0, σ²) from D'. The event "some increment is above 1/2" bounds δ(ε) from below; coupling both runs until the 1 is
chosen bounds it by 1 − (1 − 1/n)^T from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import mpmath
from flint import arb, ctx

from dpbench.claims.claim import Printed
from dpbench.claims.judges import Shown, bound, shown
from dpbench.papers.mathematics import ends, normal_mass, upper_tail

_BITS = 256
_PAIR = "n − 1 records 0 and one 1, against n records 0, with the loss zθ; the event: some increment is above 1/2"


def _steps(records: int) -> int:
    return math.ceil(math.log(records))


def _shown_delta(records: int, constant: float, epsilon: float, delta: float) -> float:
    """A lower end of P(S) − e^ε Q(S), in balls."""
    with ctx.workprec(_BITS):
        spread = arb(_steps(records)) * (1 / arb(delta)).log()
        half = arb(records) * arb(epsilon) / (2 * arb(constant) * spread.sqrt())
        above = upper_tail(half)
        with_record = 1 - (1 - above + (2 * above - 1) / records) ** _steps(records)
        without = 1 - (1 - above) ** _steps(records)
        return ends(with_record - arb(epsilon).exp() * without)[0]


def _shown_again(records: int, constant: float, epsilon: float, delta: float) -> float:
    """A lower bound by another event, "some increment is above 3/4", with the density integrated."""
    with mpmath.workdps(40):
        spread = _steps(records) * mpmath.log(1 / mpmath.mpf(delta))
        deviation = mpmath.mpf(constant) * mpmath.sqrt(spread) / (records * mpmath.mpf(epsilon))
        above = [normal_mass(mpmath.mpf("0.75"), mpmath.inf, mean, deviation) for mean in (0, 1)]
        missed = (1 - mpmath.mpf(1) / records) * (1 - above[0]) + (1 - above[1]) / records
        seen = 1 - missed ** _steps(records)
        return float(seen - mpmath.exp(epsilon) * (1 - (1 - above[0]) ** _steps(records)))


@bound(name="delta", second="lower", pair=_PAIR)
def equation_2(epsilon: Printed, delta: Printed, records: int, constant: float) -> tuple[float, float, float]:
    """δ at ε of the noise that (2) gives for ε and δ."""
    setting = (records, constant, epsilon.value, delta.value)
    with ctx.workprec(_BITS):
        chosen = 1 - (1 - arb(1) / records) ** _steps(records)
    return _shown_delta(*setting), ends(chosen)[1], _shown_again(*setting)


@shown(control={"constant_over_records": 10.0}, pair=_PAIR)
def equation_2_constant(epsilon: float, constant_over_records: float) -> Shown:
    """δ = 1/n², T = ⌈ln n⌉: whether σ with a constant that grows like n still fails, at larger and larger n."""
    found, again = {}, {}
    for records in (10**4, 10**5, 10**6, 10**8):
        delta = float(records) ** -2
        setting = (records, constant_over_records * records, epsilon, delta)
        found[str(records)], again[str(records)] = _shown_delta(*setting) / delta, _shown_again(*setting) / delta
    fails = min(*found.values(), *again.values()) > 1
    reason = f"even c = {constant_over_records:g} n fails at every n tried: no constant does for all n"
    routes = {"delta over the promised one, balls": found, "the same by another event": again}
    evidence = {"constant_over_n": constant_over_records, "epsilon": epsilon, "delta": "1/n^2", "steps": "ceil(ln n)"}
    return Shown(not fails, reason if fails else "these events show no violation", found["1000000"], evidence, routes)


@shown(control={"enough": True})
def moments_conditions(
    records: Sequence[int], constant: float, epsilon: float, delta: float, enough: bool = False
) -> Shown:
    """What the moments accountant asks, σ >= G, at T = ⌈ln n⌉ and σ from (2); the control takes enough steps."""
    deviations, exact, needed = {}, {}, {}
    for n in records:
        least = (n * epsilon / constant) ** 2 / math.log(1 / delta)
        steps = math.ceil(least) if enough else _steps(n)
        deviations[str(n)] = constant * math.sqrt(steps * math.log(1 / delta)) / (n * epsilon)
        square = Fraction(constant) ** 2 * steps / (n * Fraction(epsilon)) ** 2  # only the logarithm is not rational
        exact[str(n)], needed[str(n)] = float(square * Fraction(-math.log(delta))), least
    largest, holds = max(deviations.values()), min(deviations.values()) >= 1
    reason = "sigma is at least G" if holds else f"sigma is at most {largest:.3g} G, where the lemma needs at least G"
    routes = {"noise over G": deviations, "its square, in rationals": exact}
    evidence = {"steps that sigma >= 1 needs": needed, "c": constant, "epsilon": epsilon}
    return Shown(holds, reason, largest, evidence, routes)
