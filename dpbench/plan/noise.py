"""The noise of a planned run and its ε: calibrated to a budget's target, or at the noise multiplier that a spec gives.

Both are remembered from plan to plan (`cache.py`). What a run states of its ε is a dictionary with the names of
`planning.Run`: `epsilon` (None if refused), `epsilon_kind`, `epsilon_by`, `epsilon_because` and `epsilon_version`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dpbench.catalog import find
from dpbench.errors import DpbenchError
from dpbench.events import Composition, to_json
from dpbench.plan.cache import Cache
from dpbench.privacy.accounting import account
from dpbench.privacy.calibration import TIGHTEST, Calibrated, solve, tightest
from dpbench.spec.loading import Budget

if TYPE_CHECKING:
    from dpbench.step.mechanism import Mechanism

Ledger = Callable[[float], Composition]  # the ledger of a run with this noise multiplier


def ledger_of(mechanism: Mechanism, rate: float, steps: int, sigma: float) -> Composition:
    """The events of a whole run. Raises DpbenchError for a mechanism that is not private."""
    ledger = mechanism.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=steps)
    if ledger is None:
        raise DpbenchError("budget: expected none, because the mechanism is not private")
    return ledger


def calibrated(make: Ledger, budget: Budget, mechanism: str, kept: Cache | None) -> tuple[float, dict[str, Any]]:
    """The smallest σ that meets a budget's target ε, and what the run states of its ε.

    Raises DpbenchError where the target cannot be met, and where `make` gives two ledgers for one σ.
    """
    kept = kept or Cache()
    asked = ["calibrated", to_json(make(1.0)), asdict(budget)]
    known = kept.noise(asked)
    if known is None:
        found = _solve(make, budget)
        if make(found.value) != make(found.value):
            raise DpbenchError(
                f"epsilon = {budget.epsilon:g}: the calibrated noise has two ledgers; is the ledger of {mechanism} the"
                " same at every call?"
            )
        known = {"noise_multiplier": found.value, **_stated(found.attained.value, found)}
        if _repeatable(found.accountant, budget.calibrate_with):
            kept.remember_noise(asked, known)
    stated = dict(known)
    return stated.pop("noise_multiplier"), stated


def confirmed(sigma: float, stated: Mapping[str, Any], make: Ledger, budget: Budget) -> bool:
    """Whether `calibrated` gives this σ and states this: the accountant asks at σ and at the next smaller one."""
    try:
        found = _solve(make, budget, hint=sigma)
    except DpbenchError:  # it refuses beside σ
        return False
    return bool(found.value == sigma and _stated(found.attained.value, found) == stated)


def epsilon_at(ledger: Composition, delta: float, accountant: str | None, kept: Cache) -> dict[str, Any]:
    """What is stated of a ledger's ε at `delta`, by the tightest accountant unless one is named."""
    asked = ["given", to_json(ledger), delta, accountant]
    known = kept.noise(asked)
    if known is None:
        because = ""
        if accountant is None:
            answer, because = tightest(ledger, delta)
        else:
            (answer,) = account(ledger, delta=delta, accountants=[accountant])
        known = _stated(None if answer.epsilon is None else answer.epsilon.value, answer, because)
        if _repeatable(answer.accountant, accountant):
            kept.remember_noise(asked, known)
    return dict(known)


def _solve(make: Ledger, budget: Budget, hint: float | None = None) -> Calibrated:
    assert budget.epsilon is not None
    asked: dict[str, Any] = {"epsilon": budget.epsilon, "delta": budget.delta, "accountant": budget.calibrate_with}
    return solve("noise_multiplier", make, hint=hint, **asked)


def _stated(epsilon: float | None, by: Any, because: str = "") -> dict[str, Any]:
    return {
        "epsilon": epsilon,
        "epsilon_kind": None if epsilon is None else by.kind,
        "epsilon_by": by.accountant,
        "epsilon_because": because or getattr(by, "because", ""),
        "epsilon_version": by.version,
    }


def _repeatable(accountant: str, asked: str | None) -> bool:
    """Whether the answer depends on dpbench's code alone, and not on which plug-ins are installed."""
    return find("accountants", accountant).origin == "dpbench" and (asked is not None or accountant in TIGHTEST)
