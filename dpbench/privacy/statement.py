"""The statement that belongs to an ε: what was released, for which neighbours it holds, and what it does not cover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dpbench.events import (
    Composition,
    ConfidentGNMax,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
    batches_per_epoch,
)
from dpbench.privacy.answers import PROMISES, Guarantee
from dpbench.privacy.composition import common_adjacency
from dpbench.privacy.formatting import bound, no_less, number
from dpbench.privacy.releases import Releases
from dpbench.privacy.shuffling import of_shuffled

_SAMPLERS = {
    "poisson": "Poisson sampling, each record in a batch with probability q independently of all others",
    "without_replacement": "batches of fixed size, drawn anew without replacement",
    "shuffled": "shuffled epochs, cut into batches of one size, each record in one of them",
}
_NEIGHBOURS = {
    "add_or_remove": "datasets that differ in one record added or removed",
    "replace_one": "datasets of equal size that differ in one record replaced by another",
    "zero_out": "datasets that differ in one record replaced by one without any effect",
}
_GROUPS = {  # where the events are about a group of their own
    "add_or_remove": "datasets that differ in {} records, all added or all removed",
    "replace_one": "datasets of equal size that differ in {} records, all replaced by others",
    "zero_out": "datasets that differ in {} records, all replaced by ones without any effect",
}
LISTED = 4  # mechanisms that a description names; further ones are counted


def describe(event: Event, rate_words: str = "") -> str:
    """An event in a line, with the letters of the papers; never the votes, which are private.

    >>> from dpbench.events import SampledGaussian
    >>> describe(SampledGaussian(0.01, 1.0))
    'SampledGaussian (q = 0.01, σ = 1)'
    >>> describe(Gaussian(2.0, "replace_one"))
    'Gaussian (σ = 2, sensitivity = 2)'
    """
    values: dict[str, Any] = vars(event)
    letters = {"sampling_rate": "q", "noise_multiplier": "σ", "projections": "r", "group_size": "g"}
    said = []
    for name, value in values.items():
        if name == "sensitivity":
            value = event.moved if isinstance(event, Gaussian | Laplace) else value
        if name in ("adjacency", "sampler") or value is None:
            continue
        if name == "votes":
            said.append("votes given, not released")
            continue
        shown = number(value) if isinstance(value, float) else str(value)
        if name == "sampling_rate" and rate_words:
            shown = f"{rate_words} = {shown}"
        said.append(f"{letters.get(name, name.replace('_', ' '))} = {shown}")
    return f"{type(event).__name__} ({', '.join(said)})"


def summary(found: Releases) -> str:
    """What is released, in one sentence: every event with its count, q, σ and T.

    >>> from dpbench.privacy.releases import Said, releases
    >>> summary(releases(Said(sampling_rate=0.01, steps=1000, noise_multiplier=1.0)))
    '1,000 invocations of SampledGaussian (q = 0.01, σ = 1)'
    """
    described = [(describe(event, found.rate_words), count) for event, count in found.composition.parts]
    parts = []
    for text, alike in groupby(described, lambda one: one[0]):  # such as queries that differ in their votes alone
        count = sum(one[1] for one in alike)
        parts.append(f"{count:,} invocation{'s' if count != 1 else ''} of {text}")
    if not parts:
        return "nothing is released"
    total = sum(count for _, count in found.composition.parts)
    if len(parts) > LISTED:
        parts = [*parts[: LISTED - 1], f"{len(parts) - LISTED + 1} more kinds of mechanism ({total:,} in all)"]
    text = ", then ".join(parts)
    return f"{text}; T = {found.steps_words} = {total}" if found.steps_words else text


def statement(found: Releases, guarantees: Sequence[Guarantee], group_size: int = 1) -> str:
    """The paragraph: the best promise, the mechanisms, unit, neighbours, sampler, and what is not covered.

    >>> from dpbench.privacy.accounting import account
    >>> from dpbench.privacy.releases import Said, releases
    >>> found = releases(Said(sampling_rate=0.01, steps=100, noise_multiplier=1.0))
    >>> text = statement(found, account(found.composition, delta=1e-5, accountants=["gdp_clt"]))
    >>> text.startswith("No accountant asked here promises anything: approximations may lie below the truth.")
    True
    """
    events = [event for event, _ in found.composition.parts]
    own = _members(events)
    members = group_size * own
    words = [_promise(guarantees, members, own, found.composition.adaptive), f"Released: {summary(found)}."]
    words += [f"Warning: {text}." for text in warnings(found, guarantees)]
    adjacency = common_adjacency(found.composition)
    unit = "one record" if members == 1 else f"a group of {members} records"
    if adjacency is None:
        words.append("The mechanisms name different neighbouring relations, so no one guarantee holds for all.")
    else:
        neighbours = _NEIGHBOURS[adjacency] if own == 1 else _GROUPS[adjacency].format(own)
        words.append(f"Unit of privacy: {unit}. Neighbours: {neighbours}.")
    samplers = dict.fromkeys(getattr(event, "sampler", None) for event in events)
    known = [_SAMPLERS[sampler] for sampler in samplers if sampler is not None]
    words.append(f"Sampler: {'; '.join(known)}." if known else "Sampler: none, every record takes part in each step.")
    words += [_moved(events), *_special(events)]
    if group_size == 1:
        words += _shuffled(found, guarantees)
    return " ".join(word for word in [*words, _not_covered(known, members)] if word)


def _shuffled(found: Releases, guarantees: Sequence[Guarantee]) -> list[str]:
    """What calling shuffled batches Poisson would hide, at the δ or ε that was asked about."""
    asked = next((one for one in guarantees if one.answer is not None), None)
    if asked is None or asked.epsilon is None:
        return []
    at = {"delta": asked.delta} if asked.delta_at is None else {"epsilon": asked.epsilon.value}
    numbers = of_shuffled(found.composition, **at)
    return [] if numbers is None else [numbers.sentence()]


def warnings(found: Releases, guarantees: Sequence[Guarantee]) -> list[str]:
    """What makes a promise worth little, whatever its ε: a δ of 1/N or more, or fewer epochs than were said."""
    best = _best(guarantees)
    delta = next((one.delta for one in guarantees), None) if isinstance(best, str) else best.delta
    return [*([] if delta is None else large_deltas(found, delta)), *fewer_epochs(found)]


def fewer_epochs(found: Releases) -> list[str]:
    """Where the E·N/B steps of E epochs of shuffled batches begin fewer than E of them, as a list of none or one.

    An epoch has ⌈N/B⌉ batches, the last one shorter where B does not divide N.

    >>> from dpbench.privacy.releases import Said, releases
    >>> said = Said(examples=100, batch=60, epochs=10, noise_multiplier=1.0, parameters={"sampler": "shuffled"})
    >>> fewer_epochs(releases(said))
    ['17 steps begin 9 shuffled epochs of 2 batches, not 10; for 10 whole ones give --steps 20']
    """
    if found.said is None or found.said.epochs is None:
        return []
    [(event, steps)] = found.composition.parts
    if getattr(event, "sampler", None) != "shuffled" or not getattr(event, "sampling_rate", 0):
        return []
    batches, asked = batches_per_epoch(event.sampling_rate), math.ceil(found.said.epochs)  # type: ignore[union-attr]
    begun = -(-steps // batches)
    if begun >= asked:
        return []
    return [
        f"{steps:,} steps begin {begun:,} shuffled epochs of {batches:,} batches, not {asked:,}; for {asked:,} whole"
        f" ones give --steps {asked * batches}"
    ]


def large_deltas(found: Releases, delta: float) -> list[str]:
    """`large_delta` of releases whose number of records was said, as a list of none or one."""
    text = large_delta(delta, None if found.said is None else found.said.examples)
    return [] if text is None else [text]


def _members(events: Sequence[Event]) -> int:
    """The group size of the events themselves: the smallest of them."""
    return min((getattr(event, "group_size", 1) for event in events), default=1)


def _moved(events: Sequence[Event]) -> str:
    """How far neighbours move what is released, in clip norms, to which σ is relative."""
    found: dict[str, None] = {}
    for event in events:
        if isinstance(event, Gaussian | Laplace):
            found[f"{number(event.moved)}"] = None
        elif isinstance(event, SampledGaussian):
            found["2" if event.adjacency == "replace_one" else "1"] = None
        elif isinstance(event, GroupSampledGaussian):
            found[f"up to {event.group_size}"] = None
        elif isinstance(event, RandomSensitivityGaussian):
            found[f"(χ²_r / r)^(−1/2), r = {event.projections}, drawn anew at each step"] = None
    if not found:
        return ""
    norms = "clip norm" if list(found) == ["1"] else "clip norms"
    return f"Sensitivity: {', or '.join(found)} {norms}, to which σ is relative."


def _promise(guarantees: Sequence[Guarantee], members: int, own: int, adaptive: bool) -> str:
    """The best promise. Where parameters depend on earlier outputs there is none, and the sentence gives the reason."""
    best = _best(guarantees)
    if isinstance(best, str):
        return f"{best} And {RESERVATION}" if adaptive else best
    if adaptive:
        whom = "" if members == 1 else f" for groups of {members} records"
        return (
            f"No differential privacy is stated{whom}: {RESERVATION} The smallest budget that would have admitted all"
            f" of this is {_pair(best)} by the accountant {best.accountant}{_version(best)}; found afterwards, it is no"
            " promise itself."
        )
    whom = "" if members == 1 else f" for every group of {members} records"
    whom += " that are all there or all absent" if own > 1 else ""
    by = f"by the accountant {best.accountant} ({str(best.kind).replace('_', ' ')})"
    if best.kind == "certified":
        return f"({_pair(best)})-differential privacy{whom}, proven{_version(best, 'by')}."
    return f"({_pair(best)})-differential privacy{whom}, {by}{_version(best)}."


def _version(best: Guarantee, word: str = "of") -> str:
    return "" if best.version is None else f" {word} {best.version}"


RESERVATION = (
    "later parameters depend on earlier outputs, and then only a budget (ε, δ) holds that was fixed before the first"
    " release, where a filter refused every release beyond it."
)


def reserved(composition: Composition) -> str:
    """The reservation beside every number of an adaptive composition; empty where parameters were fixed beforehand.

    >>> reserved(Composition(()))
    ''
    """
    if not composition.adaptive:
        return ""
    return f"* The smallest budget that would have admitted all of this, and no promise: {RESERVATION}"


def large_delta(delta: float, examples: int | None) -> str | None:
    """The warning that belongs to δ >= 1/N, N the number of records; None where δ is smaller or N not known.

    >>> large_delta(1e-3, 1000)
    'δ = 0.001 is 1/N or more (N = 1,000): publishing one random record would satisfy it; take δ well below 1/N'
    >>> large_delta(1e-5, 60000) is None
    True
    """
    if not examples or delta * examples < 1:
        return None
    return (
        f"δ = {number(delta)} is 1/N or more (N = {examples:,}): publishing one random record would satisfy it; take δ"
        " well below 1/N"
    )


def _best(guarantees: Sequence[Guarantee]) -> Guarantee | str:
    """The least answer that is a promise; a sentence where there is none."""
    promised = [one for one in guarantees if one.kind in PROMISES and one.answer is not None]
    if promised:
        return min(promised, key=lambda one: one.answer.safe if one.answer else 0.0)
    if any(one.answer is not None for one in guarantees):
        return "No accountant asked here promises anything: approximations may lie below the truth."
    return "No accountant asked here has an answer."


def _pair(best: Guarantee) -> str:
    assert best.epsilon is not None
    assert best.delta is not None
    if best.delta_at is not None:
        return f"ε = {no_less(best.epsilon.value)}, δ = {bound(best.delta_at.safe, 'upper_bound', 6)}"
    return f"ε = {bound(best.epsilon.safe, 'upper_bound', 6)}, δ = {no_less(best.delta)}"


def _special(events: Sequence[Event]) -> list[str]:
    words = []
    paired = [event for event in events if getattr(event, "sampler", "") != "shuffled"]  # for those no pair is known
    if not all(event.attained for event in paired):
        words.append(
            "The pairs of distributions dominate the mechanism, which need not attain them: the number bounds its ε"
            " from above."
        )
    if any(isinstance(event, ConfidentGNMax) and event.votes is not None for event in events):
        words.append(
            "Votes were given: a data-dependent ε depends on private data itself and is no promise unless it is"
            " released privately."
        )
    return words


def _not_covered(samplers: Sequence[str], group_size: int) -> str:
    left_out = ["the choice of hyperparameters, architecture and stopping time on the same data"]
    if _SAMPLERS["poisson"] in samplers:
        left_out.append("code that shuffles or takes batches of fixed size in place of Poisson sampling")
    left_out.append("whatever else is released about the same data")
    if group_size == 1:
        left_out.append("several records of one person (--group-size)")
    left_out.append("noise in floating-point numbers or from a generator that can be predicted")
    return f"Not covered: {'; '.join(left_out)}."
