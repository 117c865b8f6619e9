"""What published accountants refuse: samplers, neighbours, events, adaptive parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.events import (
    Adjacency,
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.answers import (
    GuaranteeKind,
    No,
    Yes,
    as_real,
)
from dpbench.privacy.composition import MOST_RELEASES, adaptive_refusal, as_composition, common_adjacency

Sampled = SampledGaussian | RandomSensitivityGaussian | GroupSampledGaussian


def support(composition: Composition, refusal: Callable[[Event], str | None], theorem: str | None) -> Yes | No:
    """Yes where `refusal` has nothing against any event, all share one neighbouring relation, and nothing is shuffled.

    `refusal` gives the reason why one event is not covered, or None. `theorem` names the composition theorem that
    takes parameters as fixed beforehand; None means that adaptive parameters are covered.
    """
    for event, _ in composition.parts:
        reason = shuffled_refusal(event) or refusal(event)
        if reason is not None:
            return No(reason)
    if common_adjacency(composition) is None:
        return No("the parts name different neighbouring relations, so that no one guarantee holds; use a single one")
    adaptive = None if theorem is None else adaptive_refusal(composition, theorem)
    return Yes() if adaptive is None else No(adaptive)


def shuffled_refusal(event: Event) -> str | None:
    """Why shuffled batches are refused, whatever their rate; None for every other sampler."""
    if isinstance(event, Sampled) and event.sampler == "shuffled":
        return (
            "sampler = 'shuffled': the analysis needs Poisson sampling, where every record takes part independently of"
            " all others, and the shuffled batches of an epoch depend on each other; sample that way instead, or ask"
            " the accountant 'shuffled'"
        )
    return None


def poisson_refusal(event: Sampled) -> str | None:
    """Why a sampled event is refused by an analysis of Poisson sampling under add-or-remove; None where it is not.

    Zero-out has the same pairs: the record without effect is drawn or not and moves no sum.
    """
    if event.sampler != "poisson":
        return (
            f"sampler = {event.sampler!r}: the analysis needs Poisson sampling, where every record takes part"
            " independently of all others; sample that way, or choose an accountant for this sampler"
        )
    if event.adjacency not in ("add_or_remove", "zero_out"):
        return (
            f"adjacency = {event.adjacency!r}: the analysis of the sampled Gaussian is for neighbours that"
            " differ by one record added, removed or zeroed; describe it that way, or choose another accountant"
        )
    return None


def poisson_gaussian_refusal(event: Event) -> str | None:
    """Why an event is neither a Gaussian nor a Poisson-sampled one under add-or-remove; None where it is.

    A plain Gaussian is accepted under any neighbouring relation, for its event has the sensitivity under its own.
    Sampling at rate 0 or 1 is no exception: an event that names another sampler describes other code.
    """
    if isinstance(event, Gaussian):
        return None
    if isinstance(event, SampledGaussian):
        return poisson_refusal(event)
    return not_covered(event, "Gaussian and SampledGaussian")


def not_covered(event: Event, covered: str) -> str:
    """The reason that refuses a type of event; `covered` lists those that are not refused."""
    return f"no bound for the event {type(event).__name__}: covers {covered} only; choose another accountant"


def refuse(answer: Yes | No, accountant: str) -> None:
    """Raise DpbenchError with the reason where the answer is no."""
    if isinstance(answer, No):
        raise DpbenchError(f"accountant {accountant!r} refuses: {answer.reason}")


@dataclass(frozen=True)
class Published:
    """An accountant that consists of a condition and of a curve for what meets it."""

    name: str
    kind: GuaranteeKind
    covers: Callable[[Composition], Yes | No]
    make: Callable[[Composition], Any]

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for what its theorem does not cover."""
        return self.covers(composition)

    def curve(self, composition: Composition) -> Any:
        """The curve, of the accountant's kind. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return self.make(composition)


@dataclass(frozen=True)
class PublishedUnrounded(Published):
    """A published accountant that also takes a fractional T of one event, as papers do that do not round T."""

    make_for: Callable[[Event, float], Any]

    def curve_for(self, event: Event, releases: float) -> Any:
        """The curve of `releases` from 0 to 2^53, whole or not, of one event. Raises DpbenchError as `curve` does."""
        if not 0 <= as_real(releases) <= MOST_RELEASES:
            raise DpbenchError(f"releases = {releases!r}: expected a number from 0 to 2^53")
        refuse(self.supports(as_composition(event)), self.name)
        return self.make_for(event, as_real(releases))


def adjacency_of(composition: Composition) -> Adjacency:
    """The neighbouring relation of a composition that `support` has accepted. Raises DpbenchError where none is common.

    >>> adjacency_of(Composition(((Gaussian(1.0, adjacency="replace_one"), 2),)))
    'replace_one'
    """
    adjacency = common_adjacency(composition)
    if adjacency is None:
        raise DpbenchError("the parts name different neighbouring relations, so that no one guarantee holds")
    return adjacency


def reveals_nothing(event: Event) -> bool:
    """Whether the mechanism is independent of the data: infinite noise, no record ever sampled, or two equal laws.

    >>> reveals_nothing(SampledGaussian(0.0, 1.0)), reveals_nothing(Laplace(2.0))
    (True, False)
    """
    if isinstance(event, Gaussian | Laplace):
        return event.noise_multiplier == float("inf")
    if isinstance(event, DiscretePair):
        return event.first == event.second
    if isinstance(event, ConfidentGNMax):
        return event.selection_noise == float("inf") and (not event.answered or event.answer_noise == float("inf"))
    return event.noise_multiplier == float("inf") or event.sampling_rate == 0
