"""Lines of Algorithm 1 that no proof step looks at: the rounds, the added error, the ball, and who meets noise.

Line numbers are those of the conversion, which counts the inputs as line 1; the jumps in line 10 and the references in
Section 5.3 (lines 7, 9 and 10) count one less.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.papers.pidp2021.enclosures import BITS, ends, upper_tail
from dpbench.papers.pidp2021.noise_free_steps import PROOF_CONSTANT, noise_free_probability, printed_passes


def _rounds(continued: bool = False) -> Shown:
    """Lines 3 to 18 without noise: one record z = 1, loss ½(θ − z)², α = ½, R = 3 rounds of T_local = 2 steps.

    Only line 3 sets θ_0 of the local model, so every round as printed starts there again.
    """
    rate, rounds, steps = Fraction(1, 2), 3, 2
    local = {0: Fraction(0)}
    whole = Fraction(0)
    for _ in range(rounds):
        if continued:
            local[0] = whole
        for step in range(steps):
            local[step + 1] = local[step] - rate * (local[step] - 1)
        whole = local[steps]
    expected = 1 - (1 - rate) ** (rounds * steps)
    restarted = 1 - (1 - rate) ** steps
    routes = {"executed": float(whole), "closed form": float(expected if continued else restarted)}
    agree = whole == (expected if continued else restarted)
    reason = f"after {rounds} rounds of {steps} steps theta is {whole}; {rounds * steps} steps give {expected}"
    return Shown(
        whole == expected if agree else None, reason, float(whole), {"one round gives": float(restarted)}, routes
    )


rounds_continue = Demonstration(_rounds, twin=lambda: _rounds(continued=True))


def _error_added(record: int) -> Shown:
    """Line 8 with the exact error E on D = (0, 1), loss ½(θ − z)²: the contribution against the true move."""
    rows = (Fraction(0), Fraction(1))
    best = sum(rows, Fraction(0)) / 2
    influence = (best - rows[record]) / 2
    true = rows[1 - record] - best  # the optimum without the record is the other one
    error = abs(true - influence)
    told = influence + error
    again = influence * 2  # c n/(n − 1) at n = 2
    routes = {"optimum without the record": float(true), "c n/(n - 1)": float(again)}
    reason = f"removing the record moves the optimum by {true}; c + E says {told} (c = {influence}, E = {error})"
    holds = None if again != true else abs(told) >= abs(true)
    return Shown(holds, reason, float(told), {"c": float(influence), "E": float(error)}, routes)


error_added = Demonstration(lambda: _error_added(1), twin=lambda: _error_added(0))


def _leaves_ball(radius: float, deviation: float, projected: bool = False) -> Shown:
    """P(|θ_1| > r) after one noisy step (line 15) at α = 1 from 0, loss ½(θ − z)², z = 0: θ_1 = −b."""
    import mpmath
    from flint import arb, ctx

    if projected:
        return Shown(True, "a projected step stays in the ball", 0.0)
    with ctx.workprec(BITS):
        lower, upper = ends(2 * upper_tail(arb(radius) / arb(deviation)))
    with mpmath.workdps(25):
        again = float(2 * mpmath.quad(lambda x: mpmath.npdf(x, 0, deviation), [radius, radius + 12 * deviation]))
    reason = f"with probability {lower:.4g} the next gradient is larger than the G of the ball"
    agree = abs(again - lower) < 1e-9 * again
    return Shown(
        False if lower > 0 and agree else None, reason, lower, {}, {"balls": [lower, upper], "quadrature": again}
    )


stays_in_ball = Demonstration(
    _leaves_ball, twin=lambda radius, deviation: _leaves_ball(radius, deviation, projected=True)
)


def _who_meets_noise(
    records: int,
    radius: float,
    epsilon_train: float,
    epsilon_choice: float,
    delta_train: float,
    delta_choice: float,
) -> Shown:
    """P(noise) for a record without influence (z = θ̃ = 0) and for the most influential one (|z| = 1), one dimension.

    As printed: lines 8 to 11 with the noise of Theorem 5 (R = 1). "Noise only where the influence is large" needs the
    first below one half and the second above it.
    """
    import mpmath
    from flint import ctx

    setting = (records, radius, epsilon_train, epsilon_choice, delta_train, delta_choice)
    met, again = [], []
    for record in (0.0, 1.0):
        with ctx.workprec(BITS):
            met.append(ends(1 - noise_free_probability(*setting, record=record)))
        with mpmath.workdps(30):
            low, high = mpmath.mpf(0), mpmath.mpf(4 * radius)
            for _ in range(110):
                middle = (low + high) / 2
                passed = printed_passes(middle, radius, mpmath.mpf(epsilon_train), delta_train, mpmath.exp)
                low, high = (middle, high) if passed else (low, middle)
            root = mpmath.sqrt(mpmath.log(mpmath.mpf("1.25") / delta_choice))
            deviation = mpmath.mpf(PROOF_CONSTANT) * (radius + 1) * root / (records * mpmath.mpf(epsilon_choice))
            centre = 2 * (-mpmath.mpf(record) / records + 2 * mpmath.mpf(radius + 1) / records**2)
            silent = mpmath.ncdf((low - centre) / deviation) - mpmath.ncdf((-low - centre) / deviation)
            again.append(float(1 - silent))
    agree = all(abs(one[0] - other) < 1e-9 for one, other in zip(met, again, strict=True))
    without, most = met[0][0], met[1][0]
    ten = 1 - (1 - without) ** 10
    reason = f"a record without influence meets noise in {without:.4g} of its steps, the most influential in {most:.4g}"
    evidence = {"without influence": without, "most influential": most, "without influence, ten dimensions": ten}
    routes = {"balls": [list(one) for one in met], "normal distribution of mpmath": again}
    return Shown(without < 0.5 < most if agree else None, reason, without, evidence, routes)


noise_follows_influence = Demonstration(
    _who_meets_noise, twin=lambda **setting: _who_meets_noise(**{**setting, "epsilon_choice": 1e6})
)


def _split(epsilon: Fraction, quarter: int = 4) -> Fraction:
    """ε₁ + ε₂ where ε₁ = 3ε/4 and 3ε₂ = ε₁."""
    first = 3 * epsilon / quarter
    return first + first / 3


budget_split = Formula(
    _split,
    lambda epsilon: epsilon,
    ({"epsilon": Fraction(1, 100)}, {"epsilon": Fraction(1)}, {"epsilon": Fraction(3)}),
    twin=lambda epsilon: _split(epsilon, quarter=3),
)


def _share(epsilon: Fraction) -> Any:
    return (3 * epsilon / 4) / 3 / epsilon


choice_share = Formula(
    lambda epsilon: Fraction(1, 4),  # noqa: ARG005
    _share,
    ({"epsilon": Fraction(1, 100)}, {"epsilon": Fraction(3)}),
    twin=lambda epsilon: Fraction(1, 3),  # noqa: ARG005
)


def _choice(records: tuple[Fraction, ...], *, private: bool) -> int:
    """T of 1 and 2 by leave-one-out cross-validation, 1 on a tie; loss ½(θ − z)², from 0, rate ½, no noise."""
    if private:
        return 1  # fixed beforehand
    rate, errors = Fraction(1, 2), []
    for steps in (1, 2):
        error = Fraction(0)
        for at, held in enumerate(records):
            rest = records[:at] + records[at + 1 :]
            theta = Fraction(0)
            for _ in range(steps):
                theta -= rate * (theta - sum(rest, Fraction(0)) / len(rest))
            error += (theta - held) ** 2 / 2
        errors.append(error)
    return 1 if errors[0] <= errors[1] else 2


def _choice_again(records: tuple[Fraction, ...]) -> int:
    """The same in closed form: θ after T steps is (1 − 2^−T) times the mean of the others."""
    n, total = len(records), sum(records, Fraction(0))
    errors = [sum(((1 - Fraction(1, 2**steps)) * (total - z) / (n - 1) - z) ** 2 for z in records) for steps in (1, 2)]
    return 1 if errors[0] <= errors[1] else 2


def _cross_validation(fixed: bool = False) -> Shown:
    """Two neighbours whose cross-validated T differ: three ones, and two ones and a minus one."""
    one = Fraction(1)
    neighbours = ((one, one, one), (one, one, -one))
    chosen = [_choice(records, private=fixed) for records in neighbours]
    again = [1, 1] if fixed else [_choice_again(records) for records in neighbours]
    reason = f"one exchanged record changes T from {chosen[0]} to {chosen[1]}: the datasets are told apart for certain"
    if fixed:
        reason = "a T that is fixed beforehand tells nothing"
    routes = {"executed": chosen, "closed form": again}
    return Shown(chosen[0] == chosen[1] if chosen == again else None, reason, None, {"delta": 1.0}, routes)


cross_validation = Demonstration(_cross_validation, twin=lambda: _cross_validation(fixed=True))
