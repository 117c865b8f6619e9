"""Section 3.4 of DPIS: rejection sampling with remembered norms, equations (14) and (15).

| paper | here |
| --- | --- |
| ĝ_t(x) | remembered: k·max(last clipped norm, g_L) |
| ‖g_t(x)‖, ḡ_t(x) | norm, clipped |
| q_t, p_t | filter, acceptance |
| k, b, C, K̃ | oversampling, batch, bound, gradient sum |
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.dpis2022.enumeration import expectation


def _acceptance(filtered: Any, target: Any, constant: Any) -> Any:
    """q times the probability that u, uniform on [0, kq], lies below p̃: the length of an interval over another."""
    import mpmath

    filtered, target, constant = map(mpmath.mpf, (filtered, target, constant))
    top = constant * filtered
    inside = mpmath.quad(lambda u: mpmath.mpf(1) if u <= target else mpmath.mpf(0), [0, min(target, top), top])
    return filtered * inside / top


equation_14 = Formula(
    printed=lambda filtered, target, constant: target / constant,  # noqa: ARG005
    definition=_acceptance,
    settings=(
        {"filtered": 0.25, "target": 0.5, "constant": 4.0},
        {"filtered": 0.125, "target": 0.125, "constant": 5.0},
        {"filtered": 0.5, "target": 0.75, "constant": 3.0},
    ),
    twin=lambda filtered, target, constant: target,  # noqa: ARG005
    digits=12,
)


def _accepted_count(filters: tuple[Fraction, ...], constant: int, capped: bool) -> Shown:
    """Expected acceptances of the plain filter (K_p/k) and of the one with min(kq, 1)."""
    targets = tuple(constant * q * share for q, share in zip(filters, (Fraction(1), Fraction(1, 2)), strict=True))
    plain = sum(q * t / (constant * q) for q, t in zip(filters, targets, strict=True))
    raised = sum(min(constant * q, Fraction(1)) * t / (constant * q) for q, t in zip(filters, targets, strict=True))
    whole = sum(targets)
    holds = plain == whole / constant and whole <= constant and (raised == whole if not capped else raised == plain)
    words = f"plain filter accepts {plain}, K_p/k = {whole / constant}; with min(kq, 1) it accepts {raised} of {whole}"
    return Shown(holds, words, float(plain), {"with_min": float(raised), "K_p": float(whole)})


acceptances = Demonstration(
    lambda: _accepted_count((Fraction(1, 10), Fraction(1, 8)), 5, False),
    twin=lambda: _accepted_count((Fraction(1, 10), Fraction(1, 8)), 5, True),
)


def iteration(norm: Any, remembered: Any, batch: Any, gradient_sum: Any, bound: Any) -> tuple[Any, Any]:
    """Lines 17-23 for one record: (probability to be accepted, norm of its clipped gradient).

    >>> iteration(2.0, 10.0, 8, 100.0, 1.0)
    (0.08, 1.0)
    """
    filtered = min(batch * remembered / gradient_sum, 1)
    clipped = min(norm, remembered, bound)
    return filtered * clipped / remembered, clipped


def _accepted(clipped: float, remembered: float, batch: int, gradient_sum: float) -> float:
    return float(iteration(clipped, remembered, batch, gradient_sum, 1.0)[0])


def _printed_15(clipped: float, remembered: float, batch: int, gradient_sum: float) -> float:
    return batch * min(clipped, remembered, 1.0) / gradient_sum + 0 * remembered


# C = 1; remembered lies between k g_L and k C
_ROOM = tuple(
    {"clipped": clipped, "remembered": remembered, "batch": 256, "gradient_sum": gradient_sum}
    for clipped, remembered in ((1.0, 5.0), (0.25, 5.0), (0.5, 0.75), (1.0, 1.5))
    for gradient_sum in (1280.0, 30000.0, 60000.0)
)

equation_15 = Formula(
    printed=_printed_15,
    definition=_accepted,
    settings=_ROOM,
    twin=lambda clipped, remembered, batch, gradient_sum: (
        _printed_15(clipped, remembered, batch, gradient_sum) / remembered
    ),
    digits=12,
)

# what equation (12) allows: K̃ from bC up
_CROWDED = tuple(
    {"clipped": 1.0, "remembered": 5.0, "batch": 256, "gradient_sum": gradient_sum} for gradient_sum in (257.0, 640.0)
)

equation_15_everywhere = Formula(
    printed=_printed_15,
    definition=_accepted,
    settings=_ROOM + _CROWDED,
    twin=lambda clipped, remembered, batch, gradient_sum: (
        _printed_15(clipped, remembered, batch, gradient_sum) / remembered
    ),
    digits=12,
    corrected=lambda clipped, remembered, batch, gradient_sum: (
        min(clipped, remembered, 1.0) * min(batch / gradient_sum, 1 / remembered)
    ),
)


def _acceptance_margin(norm: float, remembered: float, bound: float, clipped_to_remembered: bool) -> float:
    """1 less the second-round probability ‖ḡ‖/ĝ; without the clip to ĝ it could exceed 1."""
    clipped = min(norm, remembered, bound) if clipped_to_remembered else min(norm, bound)
    return 1 - clipped / remembered


line_22 = Inequality(
    margin=lambda norm, remembered, bound: _acceptance_margin(norm, remembered, bound, True),
    domain={"norm": Range(0, 20), "remembered": Range(0.01, 50, "log"), "bound": Range(0.1, 10, "log")},
    settings=({"norm": 3.0, "remembered": 0.5, "bound": 1.0}, {"norm": 0.1, "remembered": 5.0, "bound": 1.0}),
    twin=lambda norm, remembered, bound: _acceptance_margin(norm, remembered, bound, False),
    tolerance=1e-12,
    obligations=("g_L > 0, so that ĝ is never 0",),
    examples=40,
)


def _expected_sizes(lowest: Fraction, oversampling: int, batch: Fraction) -> Shown:
    """|X_q| and |X_p| for 1,000 records with norms 1/1000 ... 1, nothing changed since the last visit, K̃ = K."""
    norms = [Fraction(i, 1000) for i in range(1, 1001)]
    gradient_sum = sum(norms)
    remembered = [oversampling * max(norm, lowest) for norm in norms]
    filtered = sum(min(batch * far / gradient_sum, Fraction(1)) for far in remembered)
    accepted = sum(
        iteration(norm, far, batch, gradient_sum, Fraction(1))[0] for norm, far in zip(norms, remembered, strict=True)
    )
    expected = oversampling * batch
    holds = abs(filtered / expected - 1) < Fraction(1, 100) and accepted == batch
    words = f"E|X_q| = {float(filtered):.6g} for kb = {expected}, E|X_p| = {float(accepted):.6g} for b = {batch}"
    return Shown(holds, words, float(filtered / expected), {"filtered": float(filtered), "accepted": float(accepted)})


expected_sizes = Demonstration(
    lambda: _expected_sizes(Fraction(1, 100), 5, Fraction(10)),
    twin=lambda: _expected_sizes(Fraction(1, 2), 5, Fraction(10)),
)


def _weighted(norm: Fraction, remembered: Fraction, gradient_sum: Fraction, bound: Fraction, batch: Fraction) -> Shown:
    """The expectation of the weighted gradient of one record, 1/(q p)·ḡ where accepted, against its clipped norm."""
    accepted, clipped = iteration(norm, remembered, batch, gradient_sum, bound)
    found = accepted * clipped / accepted
    filtered = min(batch * remembered / gradient_sum, Fraction(1))
    by_coins = expectation(
        [filtered, clipped / remembered],  # the filter's coin and the acceptance's
        lambda heads: clipped / accepted if len(heads) == 2 else Fraction(0),
    )
    holds = found == min(norm, bound) and by_coins == found
    words = f"one record of norm {norm} contributes {found} on average; clipped to C = {bound} it is {min(norm, bound)}"
    routes = {"probability": float(found), "both coins": float(by_coins)}
    evidence = {"remembered": float(remembered), "accepted": float(accepted)}
    return Shown(holds, words, float(found), evidence, routes)


# K̃ ≥ kbC, and with the cap (K̃ = 1.25 bC, so that q = 1): the weight undoes whatever the probability was
inverse_weights = Demonstration(
    lambda: _weighted(Fraction(1), Fraction(5), Fraction(5, 4) * 8, Fraction(1), Fraction(8)),
    twin=lambda: _weighted(Fraction(1), Fraction(1, 2), Fraction(100), Fraction(1), Fraction(8)),
)

# last seen with a norm of 1/20, now 1: k = 5 lets it come back as 1/4 only
clip_to_remembered = Demonstration(
    lambda: _weighted(Fraction(1), Fraction(5, 20), Fraction(1000), Fraction(1), Fraction(8)),
    twin=lambda: _weighted(Fraction(1), Fraction(5), Fraction(1000), Fraction(1), Fraction(8)),
)


def _gradients_per_epoch(oversampling: int, first_pass: bool) -> Shown:
    """Per-record gradients of one epoch over those of DP-SGD, N = 60,000, b = 250 (T = 240 iterations)."""
    size, batch = 60_000, 250
    rounds = size // batch
    count = (size if first_pass else 0) + rounds * oversampling * batch
    factor = Fraction(count, size)
    holds = factor <= oversampling
    words = f"{count} gradients per epoch where DP-SGD computes {size}: {float(factor):g} times, k = {oversampling}"
    return Shown(holds, words, float(factor), {"per_iteration": oversampling * batch})


overhead = Demonstration(lambda: _gradients_per_epoch(5, True), twin=lambda: _gradients_per_epoch(5, False))
overhead_per_iteration = Demonstration(
    lambda: _gradients_per_epoch(5, False), twin=lambda: _gradients_per_epoch(5, True)
)
