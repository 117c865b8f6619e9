"""Theorem 5 and equation (2) against explicit neighbours.

**Theorem 5**: what the steps without noise (line 12 of Algorithm 1) give away.

| paper | here |
| --- | --- |
| n, T = T_local R, R | `records`, `steps`, `rounds` |
| r, G, L, C, ζ | 1, 2, 1, 0, 1 |
| ε₁ + ε₂, ε₂ / (ε₁ + ε₂), δ₁ = δ₂ | `epsilon`, `choice`, `delta` / 2 |
| c_z, E, b^(c), σ_(c), c' | influence, its error bound, decision noise, its deviation, `constant` |

The loss is ½(θ − z)² with data |z| <= 1 and parameters |θ| <= 1, so a gradient is at most 2. The start is θ̃ = 0 and
the learning rate is α = 1/L = 1.

Neighbours: D holds `records` − 1 zeros and one 1, D' holds only zeros. A step that chooses the 1 and adds no noise
moves θ by −α(θ − 1) exactly; from D' that value has probability 0, because its noise-free steps move by −αθ and its
noisy steps have a density. Each iterate is released (the paper's own attacker, Section 3.2). So δ(ε) is, for every ε,
at least P(some step chooses the 1 and adds no noise) = 1 − (1 − p/n)^T, with p the probability of lines 9 to 11, and
that number in the limit of large ε; both runs agree until the 1 is chosen, so it is at most 1 − (1 − 1/n)^T. Lines 9
and 10 draw their noise anew at each step, and with R = 1 the influence stays that of θ̃, so p is the same at each step.

The decision noise is in proportion to G R sqrt(ln(1.25 R/δ₂))/ζ, so p and with it δ are what they are at these G, ζ and
R only: more rounds, a larger G or a ζ below the least curvature (here both are 1) make them smaller. With R > 1 the
influence is that of the model at the round's start, taken at its largest, |θ − z| = 2, where p is smallest.

**Equation (2)**, the noise σ = c G √(T ln(1/δ)) / (n ε) that Theorems 1, 5 and 6 take from the moments accountant, at
T = ⌈ln n⌉; c is `constant`. With the linear loss ℓ(θ, z) = zθ, |z| <= 1 (so G = 1), D holds one 1 among zeros
and D' holds zeros. The released iterates reveal the increments z_t + b, independent draws of (1 − 1/n) N(0, σ²) +
(1/n) N(1, σ²) from D and of N(0, σ²) from D'. The event "some increment is above 1/2" bounds δ(ε) from below; coupling
both runs until the 1 is chosen bounds it by 1 − (1 − 1/n)^T from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb, ctx
from scipy.special import erfc

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, shown
from dpbench.judging.papers.mathematics import ends, largest, normal_mass, upper_tail

_LINEAR = "n − 1 records 0 and one 1, against n records 0, with the loss zθ; the event: some increment is above 1/2"
_ZEROS = "n − 1 zeros and one 1, against n zeros, with the loss ½(θ − z)²; "
_STEP = _ZEROS + "the event: some step moves θ by θ − 1 exactly"


def passes(influence: Any, epsilon: Any, delta: Any) -> bool:
    """Lines 10 and 11 as printed, r = 1: whether a step with the noisy contribution goes without noise."""
    growth = epsilon.exp() if isinstance(epsilon, arb) else mpmath.exp(epsilon)
    top, spent = 2 * growth * delta, abs(influence) * (growth - 1)
    return bool(spent < top and top / (top - spent) <= growth**2)  # the logarithm taken off both sides


def largest_passing(epsilon: Any, delta: Any) -> Any:
    """The largest |c| that lines 10 and 11 let pass at r = 1, by bisection of the printed tests."""
    return largest(lambda c: passes(c, mpmath.mpf(epsilon), mpmath.mpf(delta)), mpmath.mpf(0), 8 * mpmath.mpf(delta))


@dataclass(frozen=True)
class Run:
    """The setting of a run, and p for a record z: P(|2(c_z + E) + b| <= 2δ₁(1 + e^−ε₁)).

    Line 11 is 1 − (κ − 1)|c|/(2κδ₁) >= κ^−2 with κ = e^ε₁, that is |c| <= 2δ₁(1 + 1/κ); line 10 allows more.
    """

    records: int
    epsilon: float
    delta: float
    constant: str
    choice: float = 0.25
    rounds: int = 1

    def deviation(self, logarithm: Any, of: Any) -> Any:
        """σ_(c) from ln(1.25 R/δ₂), in the numbers that `of` makes."""
        return of(self.constant) * 2 * self.rounds * logarithm**0.5 / (self.records * of(self.choice * self.epsilon))

    def centre(self, record: float, of: Any) -> Any:
        """2(c_z + E)."""
        away = of(record) + (0 if self.rounds == 1 else 1)
        return 2 * (-away / self.records + 4 / of(self.records) ** 2)

    def noise_free(self, record: float = 1.0) -> Any:
        """The ball of p, at the precision in force."""
        room = arb(self.delta) * (1 + (-arb((1 - self.choice) * self.epsilon)).exp())
        deviation = self.deviation((arb("1.25") * self.rounds / arb(self.delta / 2)).log(), arb)
        centre = self.centre(record, arb)
        return upper_tail((-room - centre) / deviation) - upper_tail((room - centre) / deviation)

    def noise_free_again(self, record: float = 1.0) -> Any:
        """p by bisection of the printed test and an integral of the normal density."""
        low = largest_passing((1 - self.choice) * self.epsilon, self.delta / 2)
        logarithm = mpmath.log(mpmath.mpf("1.25") * self.rounds / mpmath.mpf(self.delta / 2))
        centre = self.centre(record, mpmath.mpf)
        return normal_mass(-low - centre, low - centre, 0, self.deviation(logarithm, mpmath.mpf))


def _first_choices(records: int, steps: int) -> float:
    """P(some step chooses one record), as a sum over the step that first does."""
    return math.fsum(math.exp(step * math.log1p(-1 / records)) / records for step in range(steps))


@bound(name="delta", pair=_STEP)
def theorem_5(
    epsilon: Printed,
    delta: Printed,
    constant: Printed,
    records: int,
    steps: int,
    choice: float = 0.25,
    rounds: int = 1,
    one_draw: bool = False,
) -> tuple[float, float, float]:
    """P(some step chooses the 1 without noise), P(some step chooses the 1), and the first with the other p.

    `one_draw` is the reading of Remark 9: line 9 draws once per record and keeps its noise, so the 1 passes always or
    never, and the same set has probability p (1 − (1 − 1/n)^T) from D and 0 from D'; again as a sum over first choices.
    """
    run = Run(records, epsilon.value, delta.value, constant.text, choice, rounds)
    with ctx.workprec(256), mpmath.workdps(40):
        p, other, chosen = run.noise_free(), run.noise_free_again(), 1 - (1 - arb(1) / records) ** steps
        if one_draw:
            seen, again = p * chosen, other * _first_choices(records, steps)
        else:
            seen, again = 1 - (1 - p / records) ** steps, -mpmath.expm1(steps * mpmath.log1p(-other / records))
        return ends(seen)[0], ends(chosen)[1], float(again)


@bound(name="delta", second="lower", pair=_ZEROS + "the event: the last model is not 0")
def theorem_5_final_model(
    epsilon: Printed, delta: Printed, constant: Printed, records: int, steps: int
) -> tuple[float, float, float]:
    """δ(ε) from below where only the last model is released; α = ½ from θ̃ = 0. From above δ is at most 1.

    Without noise a run from D' stays at 0, and a run from D ends above 0 once it has chosen the 1. So P(S) is at least
    P(no step noisy, 1 chosen) and Q(S) at most P'(some step noisy). Again by a union bound, in doubles:
    1 − (1 − 1/n)^T less (1 + e^ε) T times the largest chance of a noisy step.
    """
    run = Run(records, epsilon.value, delta.value, constant.text)
    with ctx.workprec(256):
        zero = run.noise_free(0.0)
        others = zero * (records - 1) / records
        seen = (others + run.noise_free(1.0) / records) ** steps - others**steps
        lower = ends(seen - arb(epsilon.value).exp() * (1 - zero**steps))[0]
    room = delta.value * (1 + math.exp(-0.75 * epsilon.value)) - 2 / records - 8 / records**2
    noisy = erfc(room / run.deviation(math.log(2.5 / delta.value), float) / math.sqrt(2))
    chosen = -math.expm1(steps * math.log1p(-1 / records))
    return lower, 1.0, float(chosen - (1 + math.exp(epsilon.value)) * steps * noisy)


@bound(name="delta", pair="n zeros, against n − 1 zeros and one `record`; the event: some iterate is not 0")
def naturally_private(
    epsilon: Printed, delta: Printed, records: int, steps: int, record: float
) -> tuple[float, float, float]:
    """δ for all ε where every step goes without noise: there is no decision noise, and all records pass in balls.

    Each run is then deterministic but for the choice of records, and one that ever chooses `record` leaves the zeros.
    Exact: 1 − (1 − 1/n)^T; again as a sum over the first choice. Where a record does not pass nothing is shown.
    """
    run = Run(records, 0.0, 0.0, "0")
    with ctx.workprec(256):
        centres = [run.centre(z, arb) for z in (0.0, record)]
        all_pass = all(passes(one, arb(epsilon.value), arb(delta.value)) for one in centres)
    exact = float(1 - (1 - Fraction(1, records)) ** steps)
    return (exact if all_pass else 0.0), exact, _first_choices(records, steps)


@shown(control={"epsilon": 4e6}, pair="a record without influence, z = θ̃ = 0, and the most influential, z = 1")
def noise_follows_influence(records: int, epsilon: float, delta: float, constant: Printed) -> Shown:
    """P(noise) for both in one dimension; "only where the influence is large" needs one half between them."""
    run = Run(records, epsilon, delta, constant.text)
    with ctx.workprec(256), mpmath.workdps(30):
        (without, _), (most, _) = balls = [ends(1 - run.noise_free(record)) for record in (0.0, 1.0)]
        again = [float(1 - run.noise_free_again(record)) for record in (0.0, 1.0)]
    agree = max(abs(without - again[0]), abs(most - again[1])) < 1e-9
    reason = f"a record without influence meets noise in {without:.4g} of its steps, the most influential in {most:.4g}"
    evidence = {"without influence, ten dimensions": 1 - (1 - without) ** 10, "epsilon": epsilon, "delta": delta}
    routes = {"balls": balls, "bisection and integral": again}
    return Shown(without < 0.5 < most if agree else None, reason, without, evidence, routes)


# ---- equation (2) ----


def _steps(records: int) -> int:
    return math.ceil(math.log(records))


def _shown_delta(records: int, constant: float, epsilon: float, delta: float) -> float:
    """A lower end of P(S) − e^ε Q(S), in balls."""
    with ctx.workprec(256):
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


@bound(name="delta", second="lower", pair=_LINEAR)
def equation_2(epsilon: Printed, delta: Printed, records: int, constant: float) -> tuple[float, float, float]:
    """δ at ε of the noise that (2) gives for ε and δ."""
    setting = (records, constant, epsilon.value, delta.value)
    with ctx.workprec(256):
        chosen = 1 - (1 - arb(1) / records) ** _steps(records)
    return _shown_delta(*setting), ends(chosen)[1], _shown_again(*setting)


@shown(control={"constant_over_records": 10.0}, pair=_LINEAR)
def equation_2_constant(epsilon: float, constant_over_records: float) -> Shown:
    """δ = 1/n², T = ⌈ln n⌉: whether σ with a constant that grows like n still fails, at larger and larger n."""
    sizes = (10**4, 10**5, 10**6, 10**8)
    settings = [(n, constant_over_records * n, epsilon, float(n) ** -2) for n in sizes]
    found, again = ([by(*one) / one[3] for one in settings] for by in (_shown_delta, _shown_again))
    fails = min(*found, *again) > 1
    reason = f"even c = {constant_over_records:g} n fails at every n tried: no constant does for all n"
    routes = {"delta over the promised one, balls": found, "the same by another event": again}
    evidence = {"records": sizes, "epsilon": epsilon, "delta": "1/n^2", "steps": "ceil(ln n)"}
    return Shown(not fails, reason if fails else "these events show no violation", found[2], evidence, routes)


@shown(control={"enough": True})
def moments_conditions(
    records: Sequence[int], constant: float, epsilon: float, delta: float, enough: bool = False
) -> Shown:
    """What the moments accountant asks, σ >= G, at T = ⌈ln n⌉ and σ from (2); the control takes enough steps."""
    needed = [(n * epsilon / constant) ** 2 / math.log(1 / delta) for n in records]
    steps = [math.ceil(least) if enough else _steps(n) for n, least in zip(records, needed, strict=True)]
    deviations = [
        constant * math.sqrt(number * math.log(1 / delta)) / (n * epsilon)
        for n, number in zip(records, steps, strict=True)
    ]
    squares = [number / least for number, least in zip(steps, needed, strict=True)]
    largest_one, holds = max(deviations), min(deviations) >= 1
    reason = "sigma is at least G" if holds else f"sigma is at most {largest_one:.3g} G, the lemma needs at least G"
    routes = {"noise over G": deviations, "its square: T over the steps that sigma >= G needs": squares}
    evidence = {"records": list(records), "steps that sigma >= G needs": needed, "c": constant, "epsilon": epsilon}
    return Shown(holds, reason, largest_one, evidence, routes)
