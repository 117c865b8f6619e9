"""A printed ε, δ, μ or σ, computed from its events by the accountant that the source says it used."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.events import Composition
from dpbench.judging.claims.bounds import as_printed
from dpbench.judging.claims.claim import Claim, Judgement
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import No, PrivacyCurve
from dpbench.privacy.composition import as_composition
from dpbench.privacy.statement import describe


def judge_number(claim: Claim, certified: bool = False) -> Judgement:  # noqa: ARG001
    """Whether the accountant's number rounds to what is printed."""
    value = quantity(claim)
    releases = "; ".join(f"{count:.12g} of {describe(event)}" for event, count in claim.counts)
    evidence = {"accountant": claim.accountant, **claim.at, "releases": releases}
    return as_printed(claim.printed["value"], value, claim.accountant, evidence, {claim.accountant: value})


def quantity(claim: Claim) -> float:
    """The number that a claim is about. Raises DpbenchError where the accountant refuses or the question is not whole.

    >>> from dpbench.events import Gaussian
    >>> claim = Claim("demo", "one", "here", "number", "", "holds", "", quantity="mu", accountant="gdp",
    ...               events=as_composition(Gaussian(2.0)), counts=((Gaussian(2.0), 1),))
    >>> quantity(claim)
    0.5
    """
    if claim.quantity == "noise_multiplier":
        return _calibrated(claim)
    curve = _curve(claim)
    if claim.quantity == "mu":
        if curve.mu is None:
            raise DpbenchError(f"{claim.name}: the accountant {claim.accountant!r} has no mu; ask for epsilon or delta")
        return float(curve.mu)
    if claim.quantity == "epsilon":
        return float(curve.epsilon(_at(claim, "delta")).value)
    return float(curve.delta(_at(claim, "epsilon")).value)


def _at(claim: Claim, name: str) -> float:
    if name not in claim.at:
        raise DpbenchError(f"{claim.name}: {claim.quantity} needs `at: {{{name}: ...}}`")
    return claim.at[name]


def _curve(claim: Claim) -> PrivacyCurve:
    accountant = load_accountant(claim.accountant)
    if claim.events is not None:
        answer = accountant.supports(claim.events)
        if isinstance(answer, No):
            raise DpbenchError(f"{claim.name}: {claim.accountant} refuses: {answer.reason}")
        return accountant.curve(claim.events)
    ((event, count),) = claim.counts
    if not hasattr(accountant, "curve_for"):
        message = "takes whole numbers of releases only; round it, or ask moments or gdp_clt"
        raise DpbenchError(f"{claim.name}: count = {count!r}: {claim.accountant} {message}")
    found: PrivacyCurve = accountant.curve_for(event, count)
    return found


def _calibrated(claim: Claim) -> float:
    """The smallest noise multiplier of the events that meets `at`; their own noise is not used."""
    from dpbench.privacy.calibration import solve

    if set(claim.at) != {"epsilon", "delta"}:
        raise DpbenchError(f"{claim.name}: noise_multiplier needs `at: {{epsilon: ..., delta: ...}}`")

    def releases(sigma: float) -> Composition:
        noisy: Any = claim.counts
        parts = [(dataclasses.replace(one, noise_multiplier=sigma), math.ceil(count)) for one, count in noisy]
        return as_composition(Composition(tuple(parts)))

    epsilon, delta = claim.at["epsilon"], claim.at["delta"]
    found = solve("noise_multiplier", releases, epsilon=epsilon, delta=delta, accountant=claim.accountant)
    return float(found.value)
