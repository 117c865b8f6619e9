"""Checks of every answer: one that fails them, and every error of an accountant, becomes a refusal of one sentence.

`accounting.curve_or_refusal` puts a `GuardedCurve` around the curve of every accountant, those of other packages
included; the curves of `exact` check their own answers as well, since they are often asked directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dpbench.catalog import find_origin
from dpbench.errors import DpbenchError
from dpbench.events import Adjacency
from dpbench.privacy.answers import Estimate, Guarantee, GuaranteeKind, PrivacyCurve, no_answer

ELSEWHERE = "try the accountant 'lattice' or `dpbench certify`"
_USELESS, _SMALL = 0.5, 1e-8  # an error of half the value is no answer, unless it is below the second
_MISTAKES = (TypeError, AttributeError, NameError, KeyError, NotImplementedError, ImportError)  # most often bugs
_APART, _TINY = 1e-9, 1e-12  # relative and, for ε, absolute: the rounding of a bound


def in_a_sentence(error: Exception) -> str:
    """Why there is no answer: an accountant's own words, or what was raised.

    >>> in_a_sentence(IndexError("index 3 is out of bounds"))
    'its arithmetic does not reach this corner (IndexError: index 3 is out of bounds)'
    """
    if isinstance(error, DpbenchError):
        return str(error)
    if isinstance(error, MemoryError):
        return "this takes more memory than there is"
    raised = ": ".join(text for text in (type(error).__name__, " ".join(str(error).split())) if text)
    if isinstance(error, _MISTAKES):
        return f"a mistake in its code stopped it ({raised}); please report it with what was asked"
    return f"its arithmetic does not reach this corner ({raised})"


def checked(found: Estimate, kind: GuaranteeKind, most: float) -> Estimate:
    """`found`, checked: its value lies in [0, `most`] and between its ends, which are close for an exact answer.

    Raises DpbenchError with what was found for anything else: for what is no number, and for exact answers whose upper
    end is infinite or whose bar is half as large as the value (and above 1e-8).

    >>> from dpbench.privacy.answers import Estimate
    >>> checked(Estimate(0.25, 0.25, 0.25), "exact", 1.0).value
    0.25
    """
    lower = found.value if found.lower is None else found.lower
    upper = found.value if found.upper is None else found.upper
    shown = f"{found.value:.9g} between {lower:.9g} and {upper:.9g}"
    if math.isnan(found.value) or math.isnan(lower) or math.isnan(upper):
        raise DpbenchError(f"the answer is no number ({shown}); ask another accountant")
    if not 0 <= found.value <= most:
        raise DpbenchError(f"the answer lies outside of [0, {most:g}] ({shown}); ask another accountant")
    if not lower <= found.value <= upper:
        raise DpbenchError(f"the answer lies outside of its own ends ({shown}); ask another accountant")
    open_end = upper == math.inf and lower < math.inf and (kind in ("exact", "certified") or found.value < math.inf)
    wide = kind == "exact" and max(upper - found.value, found.value - lower) > max(_USELESS * found.value, _SMALL)
    if open_end or wide:
        raise DpbenchError(f"the error is too large here ({shown}); {ELSEWHERE}")
    return found


class GuardedCurve:
    """A privacy curve whose answers are checked; all other attributes are the curve's own.

    Raises DpbenchError for an answer that `checked` rejects, and in place of every other error.
    """

    def __init__(self, curve: PrivacyCurve) -> None:
        self.curve = curve

    @property
    def kind(self) -> GuaranteeKind:
        """Of the curve."""
        return self.curve.kind

    @property
    def adjacency(self) -> Adjacency:
        """Of the curve."""
        return self.curve.adjacency

    @property
    def mu(self) -> float | None:
        """Of the curve."""
        return self.curve.mu

    def delta(self, epsilon: float) -> Estimate:
        """δ in [0, 1] at `epsilon`."""
        return checked(called(lambda: self.curve.delta(epsilon)), self.kind, 1.0)

    def epsilon(self, delta: float) -> Estimate:
        """ε in [0, inf] at `delta`."""
        return checked(called(lambda: self.curve.epsilon(delta)), self.kind, math.inf)

    def deltas(self, epsilons: Sequence[float]) -> list[Estimate]:
        """δ at every one of `epsilons`: together where the curve has a way, which may be much faster."""
        together: Callable[[Sequence[float]], list[Estimate]] | None = getattr(self.curve, "deltas", None)
        if together is None:
            return [self.delta(epsilon) for epsilon in epsilons]
        return [checked(found, self.kind, 1.0) for found in called(lambda: together(epsilons))]

    def __getattr__(self, name: str) -> Any:
        if name == "curve":  # not there yet while it is being copied
            raise AttributeError(name)
        return getattr(self.curve, name)


class GuardedWays(GuardedCurve):
    """A guarded curve that also has one curve per direction."""

    def one_way(self, direction: str) -> GuardedCurve:
        """The curve of one direction alone, `remove` or `add`."""
        curve: Any = self.curve
        return guarded(called(lambda: curve.one_way(direction)))


def guarded(curve: PrivacyCurve) -> GuardedCurve:
    """The curve with a guard around it; its own kind, directions and other attributes stay."""
    if isinstance(curve, GuardedCurve):
        return curve
    return GuardedWays(curve) if hasattr(curve, "one_way") else GuardedCurve(curve)


def called(ask: Callable[[], Any]) -> Any:
    """What `ask` returns. Raises DpbenchError in place of every other error."""
    try:
        return ask()
    except DpbenchError:
        raise
    except Exception as error:  # a bug of one accountant may not cost the answers of the others
        raise DpbenchError(in_a_sentence(error)) from error


def cross_checked(guarantees: Sequence[Guarantee]) -> tuple[Guarantee, ...]:
    """The same answers to one question, without those that others contradict: these become refusals.

    Every promise has an upper end and some answers a lower one. Two answers whose ends are apart by more than 1e-9
    relative contradict each other: the exact one of them is withdrawn, with both in its reason; but where only one
    accountant is dpbench's own, the other one is withdrawn. Approximations claim nothing on either side, and answers
    for another neighbouring relation are not compared.
    """
    return tuple(_withdrawn(one, [other for other in guarantees if _yields(one, other)]) for one in guarantees)


def _yields(one: Guarantee, other: Guarantee) -> bool:
    """Whether `one` is withdrawn where the two contradict each other."""
    own, its = (find_origin("accountants", name) == "dpbench" for name in (one.accountant, other.accountant))
    return its if own != its else one.kind == "exact"


def _withdrawn(exact: Guarantee, others: Sequence[Guarantee]) -> Guarantee:
    own = _ends(exact)
    for other in others:
        if other is exact or own is None or other.adjacency != exact.adjacency:
            continue
        its = _ends(other)
        if its is not None and (_above(own[0], its[1], exact) or _above(its[0], own[1], exact)):
            why = (
                f"withdrawn, for two answers contradict each other: {exact.accountant} says {_between(own)},"
                f" {other.accountant} ({_kind(other)}) {_between(its)}"
            )
            given = {"delta": exact.delta}
            if exact.delta_at is not None and exact.epsilon is not None:
                given = {"epsilon": exact.epsilon.value}
            return no_answer(exact.accountant, why, exact.seconds, version=exact.version, **given)
    return exact


def _kind(one: Guarantee) -> str:
    return (one.kind or "").replace("_", " ")


def _ends(one: Guarantee) -> tuple[float, float] | None:
    """Between what the truth lies according to a promise or a lower bound; None where nothing is claimed."""
    answer = one.answer
    if answer is None or one.kind not in ("exact", "certified", "upper_bound", "lower_bound"):
        return None
    lower, upper = answer.lower, answer.upper
    if one.kind == "upper_bound":
        upper = answer.safe
    elif one.kind == "lower_bound":
        lower = answer.value if lower is None else lower
    return 0.0 if lower is None else lower, math.inf if upper is None else upper


def _above(lower: float, upper: float, exact: Guarantee) -> bool:
    """Whether a lower end lies above an upper one by more than rounding; next to 0, ε may be 1e-12 off."""
    return lower > upper + (_APART * upper + (_TINY if exact.delta_at is None else 0.0) if upper < math.inf else 0.0)


def _between(ends: tuple[float, float]) -> str:
    lower, upper = ends
    if lower == upper:
        return f"{upper:.10g}"
    if lower == 0:
        return f"at most {upper:.10g}"
    return f"at least {lower:.10g}" if upper == math.inf else f"{lower:.10g} to {upper:.10g}"
