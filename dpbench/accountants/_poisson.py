"""What an accountant for Gaussian and Poisson-sampled Gaussian releases has to refuse, in one place."""

from __future__ import annotations

from dpbench.accounting import No, Yes
from dpbench.compose import adaptive_refusal, common_adjacency
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, SampledGaussian


def poisson_gaussian_support(composition: Composition, theorem: str) -> Yes | No:
    """Yes for Gaussian releases and Poisson-sampled ones under add-or-remove, with parameters fixed beforehand.

    `theorem` names the composition theorem in the reason. A plain Gaussian is accepted under any neighbouring
    relation, for its event states the sensitivity under its own; but all parts must share one relation. Sampling at
    rate 0 or 1 is no exception: an event that names another sampler describes other code.
    """
    for event, _ in composition.parts:
        if type(event) not in (Gaussian, SampledGaussian):
            return No(f"no bound for the event {type(event).__name__}: covers Gaussian and SampledGaussian only")
        if isinstance(event, Gaussian):
            continue
        if event.sampler != "poisson":
            return No(
                f"sampler = {event.sampler!r}: the analysis needs Poisson sampling, where every record takes part"
                " independently of all others; sample that way, or choose an accountant for this sampler"
            )
        if event.adjacency != "add_or_remove":
            return No(
                f"adjacency = {event.adjacency!r}: the analysis of the sampled Gaussian is for neighbours that"
                " differ by one record added or removed; state the release that way, or choose another accountant"
            )
    if common_adjacency(composition) is None:
        return No("the parts name different neighbouring relations, so that no one guarantee holds; use a single one")
    reason = adaptive_refusal(composition, theorem)
    return Yes() if reason is None else No(reason)


def refuse(answer: Yes | No, accountant: str) -> None:
    """Raise DpbenchError with the reason where the answer is no."""
    if isinstance(answer, No):
        raise DpbenchError(f"accountant {accountant!r} refuses: {answer.reason}")
