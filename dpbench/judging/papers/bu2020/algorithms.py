"""Algorithms 1 and 2, line by line, against what the privacy analysis of Section 3.1 needs of them.

I and `size` are I_t and |I_t|, vtilde is ṽ_t = (Σ clipped gradients + σR·N(0, I)) / |I_t|.

**The division.** The sum over a Poisson batch has sensitivity R, but both algorithms use that sum over |I_t|, and |I_t|
changes with the record: k gradients +R have the average R, k + 1 of them, one of which is −R, have R (k−1)/(k+1). That
is 2R/(k+1) further down, under noise σR/k or σR/(k+1): in units of the noise 2/σ, not 1/σ. (The bars of |I_t| are lost
in the conversion; I_t is a set, drawn by Poisson sampling, so its size is random.)

What that costs a whole training is in `last_iterate.py`.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb, ctx

from dpbench.judging.claims.judges import Shown, inequality, shown
from dpbench.judging.papers.mathematics import by_rows, clipped, ends, upper_tail


@inequality(
    domain={"x": (-10, 10), "y": (-10, 10), "bound": (0.1, 5, "log")},
    settings=by_rows("x y bound", (-3.0, 0.0, 1.5), (0.5, 0.2, 1.0), (0.0, 9.0, 5.0)),
    control={"divide": True},
    tolerance=1e-14,
    obligations=["records are added or removed, not replaced", "the sum, not the average, gets noise σR"],
    examples=60,
    pair="three records, and one more",
)
def sum_sensitivity(x: float, y: float, bound: float, divide: bool = False) -> float:
    """R less the change of the clipped sum of three others when one record comes; the control takes the average."""
    others = [clipped(v, bound) for v in ((2 * bound, 0.0), (bound, 0.0), (bound, 0.1 * bound))]
    before = [math.fsum(v[i] for v in others) for i in (0, 1)]
    after = [a + b for a, b in zip(before, clipped((x, y), bound), strict=True)]
    if divide:  # in units in which the noise is what it is for the sum of three records
        after = [3 * value / 4 for value in after]
    return 1 - math.dist(before, after) / bound


# ---- dividing by |I_t| ----


@shown(control={"fixed": True}, pair="one update M on 256 gradients +R, and on these with one −R more")
def division_by_batch(fixed: bool = False) -> Shown:
    """Is one update 1/σ-GDP, for row 1's σ?

    The event is an average below a threshold z deviations under the average R: type I error Φ(−z), type II error
    1 − Φ((shift − z·unit)/unit'), in Arb balls; G_{1/σ} at the same level is Φ(z − 1/σ). The control divides by a
    constant: the sum moves by one and the noise stays.
    """
    size = 256
    with ctx.workprec(120):
        sigma, z = arb("1.3"), arb("1.2")
        noise, other = sigma / size, sigma / (size if fixed else size + 1)
        shift = arb(1) / size if fixed else arb(2) / (size + 1)
        missed = upper_tail((shift - z * noise) / other)
        allowed = upper_tail(1 / sigma - z)
        lower, upper = ends(missed - allowed)
        level, error, least = (float(ball.mid()) for ball in (upper_tail(z), missed, allowed))
    mean, deviation = 1 - float(shift.mid()), float(other.mid())
    start = 1 - 1.2 * 1.3 / size
    points = [start, *(start + places * deviation for places in (1, 4, 14))]
    quadrature = float(mpmath.quad(lambda x: mpmath.npdf(x, mean, deviation), points))
    evidence = {
        "level": level,
        "type_II_error": error,
        "least_by_1_over_sigma_gdp": least,
        "difference_enclosed": [lower, upper],
        "probability_of_an_empty_batch": (1 - 256 / 60000) ** 60000,
    }
    reason = f"at level {level:.4g} the type II error is {error:.4g}, where 1/sigma-GDP needs {least:.4g}"
    holds = False if upper < 0 else lower >= -1e-30 or None
    return Shown(holds, reason, error, evidence, {"arb": error, "quadrature": quadrature})


# ---- Algorithm 2: what its lines read ----

ADAM = (  # x: the records, N: noise; what the clipped sum, its noise and its divisor are is the claim adam-average
    "v[t] <- gradient(theta[t], x, I[t])",
    "vbar[t] <- v[t] / max(1, norm(v[t]) / R)",
    "vtilde[t] <- (sum(vbar[t]) + sigma R N[t]) / size(I[t])",
    "m[t] <- beta_1 m[t-1] + (1 - beta_1) vtilde[t]",
    "u[t] <- beta_2 u[t-1] + (1 - beta_2) vtilde[t] vtilde[t]",
    "w[t] <- m[t] / (sqrt(u[t]) + xi)",
    "theta[t+1] <- theta[t] - eta[t] w[t]",
)
_CLEAN = tuple(line.replace("vtilde[t] vtilde[t]", "vbar[t] vbar[t]") for line in ADAM)


@shown(control={"lines": _CLEAN})
def adam_postprocessing(lines: tuple[str, ...] = ADAM) -> Shown:
    """Which of the printed lines read records by another way than ṽ; the control makes u_t of clipped gradients."""
    private, leaks = {"x", "I"}, []
    for line in lines:
        target, _, source = line.partition(" <- ")
        name, read = target.split("[")[0], set(re.findall(r"[a-zA-Z]\w*", source)) & private
        if read and name in ("v", "vbar"):
            private.add(name)
        elif read and name != "vtilde":
            private.add(name)
            leaks.append(f"{name} reads {', '.join(sorted(read))}")
    reason = "; ".join(leaks) if leaks else "m, u, w and θ read ṽ, each other and parameters only"
    return Shown(not leaks, reason, len(leaks), {"lines": list(lines)})


@shown(control={"start": -1})
def adam_start(start: int = 0) -> Shown:
    """Which values the first pass of the loop, t = 0, reads and nothing gives: the inputs name m_0, u_0 and θ_0."""
    given, missing = {f"m[{start}]", f"u[{start}]", "theta[0]", "I[0]", "N[0]", "eta[0]"}, []
    for line in ADAM:
        target, _, source = re.sub(r"\[t([-+]1)?\]", lambda match: f"[{int(match[1] or 0)}]", line).partition(" <- ")
        missing += [name for name in re.findall(r"\w+\[-?\d\]", source) if name not in given]
        given.add(target)
    reason = f"{' and '.join(missing)} are read and never given" if missing else "every value that is read is given"
    return Shown(not missing, reason, None, {"missing": missing})


# ---- the sampler ----


def _divergence(law: dict[tuple[int, int], Fraction], growth: Fraction) -> Fraction:
    """χ² of the mixture over when the record is used, two steps, against N(0, σ² I); growth = e^(1/σ²)."""
    pairs = ((p * q, a[0] * b[0] + a[1] * b[1]) for a, p in law.items() for b, q in law.items())
    return sum((weight * growth**common for weight, common in pairs), Fraction(-1))


_SAMPLERS: dict[str, dict[tuple[int, int], Fraction]] = {
    "poisson": {(a, b): Fraction(1, 4) for a in (0, 1) for b in (0, 1)},
    "shuffled": {(1, 0): Fraction(1, 2), (0, 1): Fraction(1, 2)},
}


@shown(control={"other": "poisson"}, pair="two records in batches of one for one epoch; one record")
def samplers_differ(other: str = "shuffled") -> Shown:
    """Poisson batches with p = 1/2 against another way to make them."""
    growth = Fraction(9, 5)  # near e^(1/1.3²)
    found: dict[str, Any] = {name: _divergence(_SAMPLERS[name], growth) for name in ("poisson", other)}
    difference = found["poisson"] - found[other]
    divergences = {"poisson": str(found["poisson"]), "other": str(found[other])}
    reason = f"the χ² divergences are {divergences['poisson']} and {divergences['other']}"
    return Shown(difference != 0, reason, float(difference), divergences)
