"""Whole runs of DPIS: the (ε₀, δ₀) promise on explicit datasets, composition, comparison with DP-SGD, and T = |D|/b.

| paper | here |
| --- | --- |
| N, b, T, E | size, batch, rounds, epochs |
| k, σ_N, σ_K | oversampling, 0.02·N |
| K̃/(Ñ C σ_G) | shift |
| α | order |
"""

from __future__ import annotations

import math
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.truth import Truth
from dpbench.compose import as_composition
from dpbench.events import Composition, SampledGaussian
from dpbench.papers.dpis2022.algorithm import capped
from dpbench.papers.dpis2022.divergences import converted, log_moments

DELTA = 1e-5
ORDERS = (*range(2, 13), *range(14, 33, 2), 36, 40, 44, 48, 64)
ROOM = 1.0001  # K̃ = bC + ξ with ξ = bC/10,000


# ---- Section 4.1: the whole algorithm is (ε₀, δ₀)-DP ----


def paper_shift(epsilon: float, batch: int, size: int, rounds: int) -> float:
    """K̃/(ÑCσ_G) for the smallest σ_G that the paper's sum of losses allows, E = 1, K̃ = bC + ξ, whole orders.

    The losses of Ñ, K̃ and K̃* are paid as in (18) and (19); the noise in the gradient only enters by the shift.
    """
    spread = 0.02 * size
    statistics = {order: order / (2 * spread**2) + 2 * log_moments(order, batch / size, 1 / spread) for order in ORDERS}

    def allowed(shift: float) -> bool:
        return any(
            converted(order, paid + rounds * log_moments(order, 1 / ROOM, shift), DELTA) <= epsilon
            for order, paid in statistics.items()
        )

    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def _true_step(epsilon: float, batch: int, size: int, oversampling: float) -> tuple[float, float, int]:
    """(rate, shift, rounds) of what the record z really goes through under σ_G of the paper."""
    rounds = -(-size // batch)
    rate, shift = capped(oversampling, ROOM, paper_shift(epsilon, batch, size, rounds) / ROOM)
    return rate, shift, rounds


def delta_of_capped_run(
    certified: bool, epsilon: float, batch: int, size: int, oversampling: float
) -> tuple[float, float]:
    """From below: δ at ε of the T released gradients of one epoch, K̃ = bC + ξ. A run releases more, up to 1 is left.

    D: N−1 records whose gradient is 0 at every θ (loss ⟨θ, x⟩ with x = 0); D' = D ∪ {z}, x_z = C e_1. K' is then
    N(0, (0.02NC)²), plus C/p_K where z is drawn: below bC but for a chance of 1e-15, so K̃ = bC + ξ under both, and
    that z is in X_p with probability 1/k and moves the sum of (7) by kbC/Ñ, independently in each iteration.
    """
    rate, shift, rounds = _true_step(epsilon, batch, size, oversampling)
    releases = Composition(((SampledGaussian(rate, 1 / shift), rounds),))
    if certified:
        from dpbench.certified import certify

        return certify(releases, epsilon=epsilon).lower - 1e-12, 1.0
    from dpbench.accounting import load_accountant

    estimate = load_accountant("exact").curve(as_composition(releases)).delta(epsilon)
    return (estimate.value if estimate.lower is None else estimate.lower) - 1e-12, 1.0


def threshold_delta(epsilon: float, batch: int, size: int, oversampling: float) -> float:
    """A lower bound of the same δ: the event that the sum of the T outputs exceeds a threshold, in closed form."""
    from scipy.stats import norm

    rate, shift, rounds = _true_step(epsilon, batch, size, oversampling)
    spread = math.sqrt(rounds)
    counts = [math.comb(rounds, j) * rate**j * (1 - rate) ** (rounds - j) for j in range(rounds + 1)]
    best = 0.0
    for step in range(1, 400):
        at = 0.02 * step * spread
        present = math.fsum(weight * norm.sf((at - j * shift) / spread) for j, weight in enumerate(counts))
        best = max(best, present - math.exp(epsilon) * float(norm.sf(at / spread)))
    return best


whole_run = Truth(delta_of_capped_run, name="delta", attained=True, second=threshold_delta, second_is="lower")


# ---- the same promise with little noise in K̃, whatever line 26 means ----


def delta_of_sum(certified: bool, epsilon: float, batch: int, size: int, noise: float) -> tuple[float, float]:
    """δ at ε of the release of K̃ in one epoch; the whole run has no less, so it is the lower end that counts.

    D: records whose gradient is 0; D' = D ∪ {z}, ‖ḡ_z‖ = C. With chance b/N z is in the sample and K' jumps by N/b
    (in units of C), for Ñ = N; (12) keeps what lies between b and N. Lower end: the event K̃ > half the
    jump; from above nothing is said, 1. Raises ValueError where the paper's analysis has no room for ε, or (12) hides
    the jump.
    """
    del certified
    rate, jump, spread = batch / size, size / batch, 0.02 * size
    planned = min(
        converted(order, order / (2 * spread**2) + 2 * log_moments(order, rate, 1 / noise), DELTA) for order in ORDERS
    )
    if planned >= epsilon or jump / 2 <= batch + 1:
        raise ValueError(
            f"K̃ and Ñ take ε = {planned:.3g} of {epsilon:g} by the paper's sum; jump {jump:g}, b = {batch}"
        )
    above = 0.5 * math.erfc(jump / 2 / noise / math.sqrt(2))
    return rate * (1 - above) - math.exp(epsilon) * above, 1.0


def hockey_stick_of_sum(epsilon: float, batch: int, size: int, noise: float) -> float:
    """The same δ, by integrating (p' − e^ε p)₊ over K' above b, and adding the atom at K̃ = bC + ξ where it counts."""
    import mpmath

    rate, jump = mpmath.mpf(batch) / size, mpmath.mpf(size) / batch

    def excess(x: Any) -> Any:
        without = mpmath.npdf(x, 0, noise)
        present = (1 - rate) * without + rate * mpmath.npdf(x, jump, noise)
        return max(present - mpmath.exp(epsilon) * without, mpmath.mpf(0))

    nodes = [batch, *(jump + step * noise for step in (-20, -8, -3, 0, 3, 8, 20))]
    low = mpmath.ncdf((batch - jump) / noise) * rate + mpmath.ncdf(batch / noise) * (1 - rate)
    atom = low - mpmath.exp(epsilon) * mpmath.ncdf(batch / noise)
    return float(mpmath.quad(excess, nodes) + max(atom, mpmath.mpf(0)))


run_with_little_noise = Truth(delta_of_sum, name="delta", attained=True, second=hockey_stick_of_sum)


# ---- composition of losses that depend on what was released ----


def _two_branches(orders: tuple[float, float], epsilon: float = 8.0, tilt: float = 0.1) -> Shown:
    """True δ of a bit with randomized response and then a release that the bit chooses; exact up to 50 digits.

    Branch ± may spend B(α±) − τ₁(α±), B the loss at which equation (2) gives ε; both spend all of it on one outcome
    of loss ε + log(α/(α−1)) in total. Route one sums over the outcomes, route two takes the best of all events.
    """
    import mpmath

    with mpmath.workdps(50):
        plus = mpmath.exp(tilt) / (1 + mpmath.exp(tilt))
        first = ((plus, 1 - plus), (1 - plus, plus))  # (P, Q) of the bit
        outcomes: list[tuple[Any, Any]] = []
        for (p, q), order in zip(first, map(mpmath.mpf, orders), strict=True):
            spent = mpmath.log(sum(a**order * b ** (1 - order) for a, b in first)) / (order - 1)
            allowed = mpmath.exp((order - 1) * (mpmath.mpf(epsilon) - _conversion(order) - spent))
            loss = epsilon + mpmath.log(order / (order - 1)) - mpmath.log(p / q)

            def moment(chance: Any, loss: Any = loss, order: Any = order) -> Any:
                other = chance * mpmath.exp(-loss)
                return chance**order * other ** (1 - order) + (1 - chance) ** order * (1 - other) ** (1 - order)

            low, high = mpmath.mpf(0), mpmath.mpf(1) / 2
            for _ in range(120):
                middle = (low + high) / 2
                low, high = (middle, high) if middle > 0 and moment(middle) <= allowed else (low, middle)
            other = low * mpmath.exp(-loss)
            outcomes += [(p * low, q * other), (p * (1 - low), q * (1 - other))]
        grown = mpmath.exp(mpmath.mpf(epsilon))
        by_outcome = sum(max(a - grown * b, 0) for a, b in outcomes)
        by_event = max(
            sum((a - grown * b for i, (a, b) in enumerate(outcomes) if event >> i & 1), mpmath.mpf(0))
            for event in range(2 ** len(outcomes))
        )
        ratio = float(by_outcome / mpmath.mpf(DELTA))
    words = f"with orders {orders} in the two branches the true delta is {ratio:.6g} times the promised 1e-5"
    routes = {"outcomes": float(by_outcome), "events": float(by_event)}
    evidence = {"ratio": ratio, "epsilon": epsilon, "delta": float(by_outcome), "orders": list(orders)}
    return Shown(ratio <= 1, words, ratio, evidence, routes)


def _conversion(order: Any) -> Any:
    import mpmath

    rest = (order - 1) * mpmath.log(1 - 1 / order) - mpmath.log(order)
    return (-mpmath.log(mpmath.mpf(DELTA)) + rest) / (order - 1)


composition_fixed_order = Demonstration(lambda: _two_branches((3, 3)), twin=lambda: _two_branches((40, 3)))
composition_free_order = Demonstration(lambda: _two_branches((40, 3)), twin=lambda: _two_branches((40, 40)))


# ---- "strictly lower than DP-SGD" ----


def _against_dp_sgd(with_statistics: bool, fill: float) -> Shown:
    """Losses at order 8 of one epoch, N = 60,000, b = 256, σ_G = 0.81 for both, K̃ = fill·ÑC; both Arb and float."""
    from dpbench.papers.dpis2022.divergences import enclosed_renyi

    size, batch, order, noise = 60_000, 256, 8, 0.81
    rounds, spread = size / batch, 0.02 * size
    ours = rounds * enclosed_renyi(order, batch / size / fill, fill / noise)[0]
    theirs = rounds * enclosed_renyi(order, batch / size, 1 / noise)[1]
    floats = [rounds * log_moments(order, batch / size / x, x / noise) for x in (fill, 1.0)]
    statistics = 2 * enclosed_renyi(order, batch / size, 1 / spread)[0]  # by (19); both methods pay for Ñ
    ours, floats[0] = ours + with_statistics * statistics, floats[0] + with_statistics * statistics
    words = f"DPIS spends {ours:.14g} and DP-SGD {theirs:.14g} per epoch at K̃ = {fill:g}·ÑC; K̃ and K̃* take "
    words += f"{statistics:.3g} of it"
    evidence = {"dpis": ours, "dp_sgd": theirs, "statistics": statistics, "fill": fill}
    return Shown(
        ours < theirs, words, ours / theirs, evidence, {"Arb": ours - theirs, "float64": floats[0] - floats[1]}
    )


strictly_lower = Demonstration(lambda: _against_dp_sgd(True, 1.0), twin=lambda: _against_dp_sgd(True, 0.5))


# ---- Section 5.3: T = |D|/b ----


def _rounds_tell(size: int, batch: int, from_size: bool) -> Shown:
    """The number of released gradients for |D| = size and size + 1; from Ñ it is postprocessing."""
    first, second = (-(-n // batch) if from_size else size // batch for n in (size, size + 1))
    words = f"an epoch releases {first} gradients for |D| = {size} and {second} for |D| = {size + 1}, b = {batch}"
    delta = 1.0 if first != second else 0.0
    counted = [sum(1 for _ in range(0, n if from_size else size, batch)) for n in (size, size + 1)]
    evidence = {"first": first, "second": second, "delta_at_every_epsilon": delta}
    return Shown(first == second, words, delta, evidence, {"division": [first, second], "counting": counted})


rounds_of_private_size = Demonstration(
    lambda: _rounds_tell(60_000, 250, True), twin=lambda: _rounds_tell(60_000, 250, False)
)
