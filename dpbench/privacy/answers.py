"""What accountants answer, as data: estimates and guarantees, what curves and accountants offer, and their limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Protocol, runtime_checkable

from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition

__all__ = [
    "PROMISES",
    "Accountant",
    "Estimate",
    "Guarantee",
    "GuaranteeKind",
    "No",
    "PrivacyCurve",
    "Yes",
    "check_delta",
    "check_epsilon",
]

GuaranteeKind = Literal["exact", "certified", "upper_bound", "lower_bound", "approximation", "measured", "claimed"]
KINDS: tuple[str, ...] = ("exact", "certified", "upper_bound", "lower_bound", "approximation", "measured", "claimed")
PROMISES = ("exact", "certified", "upper_bound")  # the kinds on which one may rely, if the ledger is true
FAILURES = (DpbenchError, ArithmeticError, MemoryError)  # errors with which an accountant has no answer


@dataclass(frozen=True)
class Estimate:
    """A number and what is known about the true one.

    The truth is at least `lower` and at most `upper` where these are given; None means that nothing is claimed on
    that side. An upper bound has `upper == value`, an approximation neither. `reason` says why a value is infinite, or
    what a finite one must not be shown without.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    reason: str | None = None

    @property
    def relative_error(self) -> float | None:
        """The greater distance to the two ends, relative to the value; None unless both ends are known."""
        if self.lower is None or self.upper is None or not math.isfinite(self.value):
            return None
        width = max(self.upper - self.value, self.value - self.lower)
        if width == 0:
            return 0.0
        return width / abs(self.value) if self.value else None

    @property
    def safe(self) -> float:
        """The end that a promise of privacy may use: `upper` where it is known, else the value."""
        return self.value if self.upper is None else self.upper


@dataclass(frozen=True)
class Yes:
    """The accountant's theorem covers this composition. True in a condition."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class No:
    """The accountant refuses this composition; `reason` is one sentence. False in a condition."""

    reason: str

    def __bool__(self) -> bool:
        return False


@runtime_checkable
class PrivacyCurve(Protocol):
    """δ as a function of ε and back, for one composition and one neighbouring relation."""

    @property
    def kind(self) -> GuaranteeKind:
        """What the answers are: exact, an upper bound, an approximation, ..."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation for which the answers hold."""
        ...

    @property
    def mu(self) -> float | None:
        """μ where the composition is (or is taken to be) μ-GDP; None where that does not make sense."""
        ...

    def delta(self, epsilon: float) -> Estimate:
        """δ in [0, 1] at `epsilon` >= 0. Raises DpbenchError for any other epsilon."""
        ...

    def epsilon(self, delta: float) -> Estimate:
        """ε in [0, inf] at `delta` in (0, 1). Raises DpbenchError for any other delta."""
        ...


@runtime_checkable
class Accountant(Protocol):
    """One way to account. It refuses what it cannot bound; it never warns and goes on."""

    @property
    def name(self) -> str:
        """Its name in the catalog."""
        ...

    @property
    def kind(self) -> GuaranteeKind:
        """The kind of its curves."""
        ...

    def supports(self, composition: Composition) -> Yes | No:
        """Whether its theorem covers the composition, and if not, why."""
        ...

    def curve(self, composition: Composition) -> PrivacyCurve:
        """The privacy curve. Raises DpbenchError with the reason where `supports` says no."""
        ...


@dataclass(frozen=True)
class Guarantee:
    """What one accountant says of one composition: ε at a given δ, or δ at a given ε.

    Either `epsilon`, `kind`, `adjacency` and `curve` are there, or `refused` holds the reason why not. Where δ was
    asked for, `delta_at` is the answer with its ends, `delta` its value and `epsilon` the number that was given.
    `seconds` is the wall time of the answer. `curve` answers for every other δ or ε. `version` is the accountant's:
    its package and number (`catalog.Entry.version`).
    """

    accountant: str
    kind: GuaranteeKind | None
    adjacency: Adjacency | None
    delta: float | None
    epsilon: Estimate | None
    mu: float | None
    refused: str | None
    seconds: float
    curve: PrivacyCurve | None = field(default=None, repr=False, compare=False)
    delta_at: Estimate | None = None
    version: str | None = None

    @property
    def answer(self) -> Estimate | None:
        """The number that was asked for: `delta_at` where δ was, else `epsilon`; None where refused."""
        return None if self.refused else self.delta_at or self.epsilon

    def to_json(self) -> dict[str, Any]:
        """Plain data without infinities: an infinite or missing number is null, with its `reason`.

        `delta_lower` and `delta_upper` are there only where δ was asked for.
        """
        epsilon = self.epsilon or Estimate(math.nan)
        answer = self.answer or Estimate(math.nan)
        ends = self.delta_at and {"delta_lower": self.delta_at.lower, "delta_upper": self.delta_at.upper}
        return {
            "accountant": self.accountant,
            "version": self.version,
            "kind": self.kind,
            "adjacency": self.adjacency,
            "delta": self.delta,
            "epsilon": _finite(epsilon.value),
            "epsilon_lower": _finite(epsilon.lower),
            "epsilon_upper": _finite(epsilon.upper),
            "relative_error": answer.relative_error,
            "mu": _finite(self.mu),
            "refused": self.refused,
            "reason": self.refused or answer.reason,
            "seconds": self.seconds,
        } | (ends or {})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def no_answer(
    name: str,
    reason: str,
    seconds: float,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    version: str | None = None,
) -> Guarantee:
    """A guarantee without a number, for a question that gave δ or ε, and why."""
    given = None if epsilon is None else Estimate(epsilon, epsilon, epsilon)
    return Guarantee(name, None, None, delta, given, None, reason, seconds, version=version)


def check_delta(delta: float) -> float:
    """`delta` as a float. Raises DpbenchError unless it is a number above 0 and below 1."""
    found = as_real(delta)
    if not 0 < found < 1:
        raise DpbenchError(f"delta = {delta!r}: expected a number above 0 and below 1")
    return found


def check_epsilon(epsilon: float | None) -> float:
    """`epsilon` as a float. Raises DpbenchError unless it is a finite number, 0 or more."""
    found = as_real(epsilon)
    if not 0 <= found < math.inf:
        raise DpbenchError(f"epsilon = {epsilon!r}: expected a finite number, 0 or more")
    return found


def as_real(value: object) -> float:
    """A number of Python or NumPy as a float, infinite where it is too large; NaN for a bool and all else.

    >>> as_real(2), as_real(10**400), as_real(True), as_real("1")
    (2.0, inf, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    number: Any = value
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number of Python or NumPy, `least` or more.

    >>> is_whole(3, 1), is_whole(3.0, 1), is_whole(True, 1)
    (True, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
