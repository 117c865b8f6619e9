"""What calling shuffled batches Poisson would hide: three numbers, and the sentence with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dpbench.events import Composition, Event
from dpbench.privacy.answers import Estimate
from dpbench.privacy.calibration import covering
from dpbench.privacy.formatting import bound, number

__all__ = ["Shuffled", "of_shuffled"]


@dataclass(frozen=True)
class Shuffled:
    """ε at one δ, or δ at one ε, of shuffled batches: as if Poisson (no guarantee), and between which bounds it lies.

    `poisson` is None where no accountant answers for Poisson sampling.
    """

    asked: str
    letter: str
    poisson: Estimate | None
    poisson_by: str
    lower: float
    upper: float

    @property
    def refuted(self) -> bool:
        """Whether explicit data show more than Poisson sampling would have."""
        return self.poisson is not None and self.lower > self.poisson.safe

    def sentence(self) -> str:
        """The three numbers, the valid ones rounded to the safe side.

        >>> from dpbench.events import SampledGaussian
        >>> epoch = Composition(((SampledGaussian(0.01, 1.0, "zero_out", "shuffled"), 100),))
        >>> print(of_shuffled(epoch, delta=1e-5).sentence().partition(" ε ")[2].partition(" Poisson")[0])
        at δ = 1e-5 is at most 4.378, without amplification by sampling, and at least 4.063, by explicit data.
        """
        said = (
            f"The batches are shuffled. {self.letter} at {self.asked} is at most {bound(self.upper, 'upper_bound')},"
            f" without amplification by sampling, and at least {bound(self.lower, 'lower_bound')}, by explicit data."
        )
        if self.poisson is None:
            return said
        why = "they reveal more" if self.refuted else "no proof gives it for them"
        return (
            f"{said} Poisson sampling at the same rates, noise and steps would have"
            f" {bound(self.poisson.safe, 'upper_bound')} ({self.poisson_by}), which is not valid for these batches:"
            f" {why}."
        )


def of_shuffled(
    composition: Composition, *, delta: float | None = None, epsilon: float | None = None
) -> Shuffled | None:
    """The numbers at `delta`, or else at `epsilon`; None where the accountant `shuffled` has no answer."""
    from dpbench.privacy.accounting import account

    asked: dict[str, Any] = {"epsilon": epsilon} if delta is None else {"delta": delta}
    if not any(getattr(event, "sampler", None) == "shuffled" for event, _ in composition.parts):
        return None
    [found] = account(composition, accountants=["shuffled"], **asked)
    if found.answer is None:
        return None
    as_poisson = Composition(tuple((_poisson(event), count) for event, count in composition.parts))
    by, poisson = "", None
    for by, _ in covering(as_poisson):
        [answer] = account(as_poisson, accountants=[by], **asked)
        poisson = answer.answer
        if poisson is not None:
            break
    name, letter, value = ("ε", "δ", epsilon) if delta is None else ("δ", "ε", delta)
    shown = f"{name} = {number(value)}"
    return Shuffled(shown, letter, poisson, by, found.answer.lower or 0.0, found.answer.safe)


def _poisson(event: Event) -> Event:
    """The same step with Poisson sampling."""
    shuffled: Any = event
    return replace(shuffled, sampler="poisson") if getattr(event, "sampler", None) == "shuffled" else event
