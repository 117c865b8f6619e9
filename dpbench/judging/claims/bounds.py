"""A printed bound, "(ε, δ)-DP", "μ-GDP" or "(α, ε)-RDP", against the truth; docs/claims.md lists the verdicts.

A printed number that is the truth rounded to the nearest is sound, even where the truth lies above it. Without
`certify` the truth is `exact`'s value with its error, else the interval of `lattice`; with it, a proven interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, RandomSensitivityGaussian
from dpbench.judging.claims.claim import Claim, Judgement, Printed
from dpbench.judging.claims.pairs import broken_by
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate, No
from dpbench.privacy.composition import as_composition, common_adjacency, merge
from dpbench.privacy.statement import describe
from dpbench.privacy.supporting_lines import deltas

_LEAST_DELTA = 1e-12  # μ-GDP is compared with the truth where the Gaussian's δ is at least this; plots begin there
_PLACES = 25
_QUADRATURE = 1e-12  # relative error, not proven: the quadrature is asked for fifteen digits


@dataclass(frozen=True)
class Known:
    """What is known of a number: it lies between `lower` and `upper`, by the method `route`."""

    lower: float
    upper: float
    route: str
    attained: bool

    @property
    def middle(self) -> float:
        """The number that is shown."""
        return (self.lower + self.upper) / 2 if math.isfinite(self.upper) else self.lower


def judge_bound(claim: Claim, certified: bool = False) -> Judgement:
    """The verdict on a bound from events."""
    assert claim.events is not None  # the reader has checked it
    if "rdp" in claim.printed:
        return _judge_renyi(claim, claim.events)
    if "mu" in claim.printed:
        return _judge_mu(claim, certified, claim.printed["mu"])
    printed, delta = claim.printed["epsilon"], claim.printed["delta"].value
    known = truth(claim.events, certified, delta=delta)
    attained = known.attained if claim.attained is None else claim.attained
    verdict, reason = compare(known, printed, attained, "epsilon")
    evidence = {"lower": known.lower, "upper": known.upper, "delta": delta, "attained": attained, "by": known.route}
    evidence["releases"] = "; ".join(f"{count} of {describe(event)}" for event, count in claim.events.parts)
    there = _deltas(claim.events, [printed.value]) if printed.value >= 0 else []
    evidence["delta_at_the_printed_epsilon"] = there[0] if there else None
    routes: dict[str, Any] = {known.route: [known.lower, known.upper]}
    if verdict in ("unsound", "refuted"):
        evidence |= broken_by(claim.events, printed.value, attained)
        routes |= _second_route(claim.events, printed.value, delta, certified)
    value = shown_end(verdict, known.lower, known.upper)
    farthest = 1.5 * max(printed.value, known.middle)
    places = [farthest * number / (_PLACES - 1) for number in range(_PLACES)]
    true = _deltas(claim.events, places) if 0 < farthest < math.inf else []
    lines = {"true": true, f"printed: {delta:g} at ε = {printed.text}": [delta] * _PLACES}
    plot = _plot(places, lines, _LEAST_DELTA) if true else None
    return Judgement(verdict, reason, value, evidence, routes, plot)


def _deltas(composition: Composition, places: Sequence[float]) -> list[float]:
    """δ by `exact` at several ε; empty where it has no answer."""
    accountant = load_accountant("exact")
    if not accountant.supports(composition):
        return []
    try:
        return [float(found.value) for found in deltas(accountant.curve(composition), places)]
    except (DpbenchError, ArithmeticError):
        return []


def _plot(places: Sequence[float], lines: Mapping[str, Sequence[float]], least: float) -> dict[str, Any]:
    """Curves of δ over ε for the report."""
    logs = {name: [math.log10(max(value, least)) for value in line] for name, line in lines.items()}
    return {"x": list(places), "x_label": "ε", "y_label": "log10 δ", "lines": logs}


def shown_end(verdict: str, lower: float, upper: float) -> float:
    """The number that is shown for an interval: the middle of a narrow one, else the end that decided the verdict."""
    if math.isfinite(upper) and (upper - lower <= 1e-4 * abs(upper) or verdict == "undecided"):
        return (lower + upper) / 2
    return upper if verdict in ("sound", "loose") else lower


def _second_route(composition: Composition, epsilon: float, delta: float | None, certified: bool) -> dict[str, Any]:
    """A second computation: δ at that ε in ball arithmetic, or `exact`'s ε at δ where the first was certified."""
    if certified:
        try:
            return {"exact": truth(composition, False, delta=delta).middle}
        except DpbenchError:
            return {}
    from dpbench.privacy.certified import certify

    if all(isinstance(event, RandomSensitivityGaussian) for event, _ in composition.parts):
        return {}  # takes minutes; `--certify` is there for it
    try:
        found = certify(composition, epsilon=max(epsilon, 0.0), digits=3)
    except (DpbenchError, ArithmeticError):
        return {}
    where = "the printed epsilon" if delta is not None else f"epsilon = {epsilon:.6g}"
    return {f"certified delta at {where}": [found.lower, found.upper]}


def compare(known: Known, printed: Printed, attained: bool, name: str) -> tuple[str, str]:
    """The verdict and one sentence, for a printed upper bound of a number.

    >>> compare(Known(0.8645, 0.8646, "exact", True), Printed("0.83"), True, "epsilon")[0]
    'unsound'
    >>> compare(Known(0.8645, 0.8646, "exact", True), Printed("0.86"), True, "epsilon")[0]
    'sound'
    >>> compare(Known(0.86454, 0.86455, "exact", True), Printed("1.19"), True, "epsilon")[1]
    'the true epsilon is 0.86455; the printed 1.19 holds and is 37.6 % too large'
    """
    allowed = printed.value + printed.unit * (0.5 + 1e-9)
    shown = f"{known.middle:.5g}" if known.upper - known.lower < 1e-4 * known.upper else f"at least {known.lower:.5g}"
    if known.lower > allowed:
        word = "true" if attained else "dominating pair's"
        return ("unsound" if attained else "refuted"), f"the {word} {name} is {shown}, above the printed {printed.text}"
    if known.upper > allowed:
        return "undecided", f"{name} lies between {known.lower:.6g} and {known.upper:.6g}; printed is {printed.text}"
    if known.upper > printed.value - printed.unit:
        down = ", rounded down" if known.lower > printed.value else ""
        return "sound", f"the true {name} is {known.middle:.6g}{down}"
    # at least this much too large
    excess = 100 * (printed.value / known.upper - 1) if known.upper > 0 else math.inf
    largest = f"{known.middle:.5g}" if known.upper - known.lower < 1e-4 * known.upper else f"at most {known.upper:.5g}"
    return "loose", f"the true {name} is {largest}; the printed {printed.text} holds and is {excess:.1f} % too large"


def as_printed(
    printed: Printed, value: float, by: str, evidence: Mapping[str, Any], routes: Mapping[str, Any] | None = None
) -> Judgement:
    """Whether a number rounds to what is printed."""
    holds = printed.agrees(value)
    reason = f"{by} gives {value:.8g}, {'which rounds to the printed' if holds else 'not'} {printed.text}"
    return Judgement("holds" if holds else "refuted", reason, value, evidence, routes or {})


def truth(
    composition: Composition, certified: bool, *, delta: float | None = None, epsilon: float | None = None
) -> Known:
    """What is known of ε at `delta`, or of δ at `epsilon`. Raises DpbenchError where no accountant answers."""
    attained = all(event.attained for event, count in composition.parts if count)
    refusals = []
    if certified:
        from dpbench.privacy.certified import certify

        try:
            found = certify(composition, delta=delta, epsilon=epsilon)
            return Known(found.lower, found.upper, "certified", attained)
        except (DpbenchError, ArithmeticError) as error:
            refusals.append(f"certify: {error}")
    for name in ("exact", "lattice"):
        accountant = load_accountant(name)
        answer = accountant.supports(composition)
        if isinstance(answer, No):
            refusals.append(f"{name}: {answer.reason}")
            continue
        try:
            curve = accountant.curve(composition)
            estimate: Estimate = curve.epsilon(delta) if delta is not None else curve.delta(epsilon)  # type: ignore[arg-type]
        except (DpbenchError, ArithmeticError) as error:
            refusals.append(f"{name}: {error}")
            continue
        lower = 0.0 if estimate.lower is None else estimate.lower
        upper = math.inf if estimate.upper is None else estimate.upper
        return Known(lower, upper, name, attained)
    raise DpbenchError("no accountant answers for these releases: " + "; ".join(refusals))


def _judge_mu(claim: Claim, certified: bool, printed: Printed) -> Judgement:
    """μ-GDP: δ(ε) may nowhere lie above the δ of one Gaussian release with noise 1/μ.

    Compared on a grid of ε where that δ is at least 1e-12; the worst ε is certified, if that is asked.
    """
    assert claim.events is not None
    most = load_accountant("gdp").curve(as_composition(Gaussian(1 / (printed.value + printed.unit / 2))))
    farthest = most.epsilon(_LEAST_DELTA).value
    found = []
    for number in range(_PLACES):
        epsilon = farthest * number / (_PLACES - 1)
        known, allowed = truth(claim.events, False, epsilon=epsilon), most.delta(epsilon).value
        found.append((math.log(max(known.lower, 1e-300) / allowed), epsilon, allowed, known))
    excess, epsilon, allowed, known = max(found, key=lambda one: one[0])
    routes: dict[str, Any] = {known.route: [known.lower, known.upper]}
    if certified:
        known = truth(claim.events, True, epsilon=epsilon)
        routes[known.route] = [known.lower, known.upper]
        excess = math.log(max(known.lower, 1e-300) / allowed)
    attained = known.attained if claim.attained is None else claim.attained
    evidence = {
        "epsilon": epsilon,
        "delta": known.middle,
        "allowed": allowed,
        "lower": known.lower,
        "upper": known.upper,
        "by": known.route,
        "attained": attained,
        "searched_to_epsilon": farthest,
    }
    lines = {"true": [there.middle for *_, there in found], f"{printed.text}-GDP": [one[2] for one in found]}
    plot = _plot([one[1] for one in found], lines, 1e-300)
    if excess > 1e-9:
        verdict = "unsound" if attained else "refuted"
        evidence |= broken_by(claim.events, epsilon, attained)
        if not certified:
            routes |= _second_route(claim.events, epsilon, None, certified)
        reason = f"at epsilon = {epsilon:.4g} delta is {known.lower:.4g}, above the {allowed:.4g} of {printed.text}-GDP"
    else:
        verdict = "sound" if excess > -0.1 else "loose"
        share = math.exp(excess)
        reason = f"delta is at most {share:.4g} times that of {printed.text}-GDP, closest at epsilon = {epsilon:.4g}"
    return Judgement(verdict, reason, known.middle, evidence, routes, plot)


def _judge_renyi(claim: Claim, releases: Composition) -> Judgement:
    """ε at the order `at: {order: ...}`, against the Rényi divergence, integrated from its definition.

    Divergences of one order add up over releases, in each direction separately. The references integrate by mpmath to
    fifteen digits. Raises DpbenchError for an order that is not above 1 and for releases that no reference covers.
    """
    from dpbench.references.unlike import reference

    printed, order = claim.printed["rdp"], claim.at.get("order", 0.0)
    if not order > 1:
        message = f"an RDP bound needs `at: {{order: ...}}` with an order above 1, got {order!r}"
        raise DpbenchError(f"{claim.name}: {message}")
    if releases.adaptive or common_adjacency(releases) is None:
        raise DpbenchError(f"{claim.name}: expected releases with fixed parameters and one neighbouring relation")
    parts = merge(releases)
    try:
        sums = {
            way: sum(count * float(reference.renyi(event, order, 15, direction=way)) for event, count in parts)
            for way in ("remove", "add")
        }
    except (ValueError, ArithmeticError) as error:
        raise DpbenchError(f"{claim.name}: {error}") from None
    value = max(sums.values())
    attained = all(event.attained for event, _ in releases.parts) if claim.attained is None else claim.attained
    route = "quadrature of the definition"
    known = Known(value * (1 - _QUADRATURE), value * (1 + _QUADRATURE), route, attained)
    verdict, reason = compare(known, printed, attained, f"Rényi divergence of order {order:g}")
    evidence = {"order": order, "lower": known.lower, "upper": known.upper, "attained": attained, **sums}
    if verdict in ("unsound", "refuted"):
        evidence |= broken_by(releases, None, attained)
    routes = {route: value} | _by_moments(parts, order)
    return Judgement(verdict, reason, shown_end(verdict, known.lower, known.upper), evidence, routes)


def _by_moments(parts: Sequence[tuple[Any, int]], order: float) -> dict[str, float]:
    """The divergence by the series of the Rényi accountant, a second computation; empty where it has none."""
    from dpbench.privacy.accountants.renyi.events import log_moment, refusal

    if any(refusal(event) for event, _ in parts):
        return {}
    try:
        return {"series of the moment": sum(count * log_moment(event, order) for event, count in parts) / (order - 1)}
    except (DpbenchError, ArithmeticError, ValueError):
        return {}
