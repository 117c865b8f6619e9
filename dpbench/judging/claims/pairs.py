"""What breaks a bound from events, for a reader who wants to see it: two datasets, their outputs, a set of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.composition import common_adjacency
from dpbench.privacy.statement import describe

_DATASETS = {  # v is a vector of the length to which gradients are clipped
    "add_or_remove": "{} in D and not in D′, and the clipped gradient of each is v in every step",
    "zero_out": "{} whose clipped gradient is v in every step in D, and without any effect in D′",
    "replace_one": "{} whose clipped gradient is v in every step in D, and −v in D′",
}
_OUTPUTS: Mapping[str, str] = {  # by event, and by relation where it matters: along v, divided by the clip norm
    "Gaussian": "N(Δ, σ²) from D, N(0, σ²) from D′",
    "Laplace": "Lap(Δ, σ) from D, Lap(0, σ) from D′",
    "SampledGaussian": "(1−q)·N(0, σ²) + q·N(1, σ²) from D, N(0, σ²) from D′",
    "SampledGaussian replace_one": "(1−q)·N(0, σ²) + q·N(1, σ²) from D, (1−q)·N(0, σ²) + q·N(−1, σ²) from D′",
    "GroupSampledGaussian": "Σ_k Bin(k; g, q)·N(k, σ²) from D, N(0, σ²) from D′",
    "DiscretePair": "`first` from D, `second` from D′",
}
_STEP = 1e-3  # of ε, for the slope of δ: it gives three digits of a probability


def broken_by(composition: Composition, epsilon: float | None, attained: bool) -> dict[str, Any]:
    """Evidence that the composition exceeds a bound: `pair`, `outputs`, and the event at ε with its probabilities.

    `attained`: a pair of datasets attains the events' pair of distributions; else that pair only dominates.

    >>> from dpbench.events import Gaussian
    >>> found = broken_by(Composition(((Gaussian(2.0), 1),)), 1.0, True)
    >>> found["pair"]
    'one record in D and not in D′, and the clipped gradient of each is v in every step; all others have gradient 0'
    >>> found["outputs"]
    '1 of Gaussian (σ = 2, sensitivity = 1): N(Δ, σ²) from D, N(0, σ²) from D′'
    """
    datasets = _datasets(composition) if attained else ""
    unknown = "the claim says that some attain it (`attained: true`)" if attained else "none are known to attain it"
    words = datasets or f"only of distributions, which dominate those of all datasets; {unknown}"
    found: dict[str, Any] = {"pair": words}
    texts = [(f"{count} of {describe(event)}", _outputs(event)) for event, count in composition.parts]
    found["outputs"] = "; ".join(f"{what}: {law}" if law else what for what, law in texts)
    if epsilon is not None and datasets:
        found |= _event(composition, epsilon)
    return found


def _datasets(composition: Composition) -> str:
    """A pair of datasets whose outputs have the events' pair of distributions; "" where none is known."""
    kinds = {type(event).__name__ for event, _ in composition.parts}
    adjacency = common_adjacency(composition)
    if adjacency is None or kinds - set(_OUTPUTS) or not all(event.attained for event, _ in composition.parts):
        return ""
    if kinds == {"DiscretePair"}:
        return "D with the record, D′ without it"
    members = max(getattr(event, "group_size", 1) for event, _ in composition.parts)
    who = "one record" if members == 1 else f"{members} records"
    return f"{_DATASETS[adjacency].format(who)}; all others have gradient 0"


def _outputs(event: Event) -> str:
    kind = type(event).__name__
    return _OUTPUTS.get(f"{kind} {event.adjacency}", _OUTPUTS.get(kind, ""))


def _event(composition: Composition, epsilon: float) -> dict[str, Any]:
    """The outputs S with log P(x)/Q(x) > ε, where P is the law from D or from D′, whichever is worse.

    Then P(S) − e^ε·Q(S) = δ(ε), and Q(S) is minus the slope of δ over e^ε.
    """
    accountant = load_accountant("exact")
    if epsilon < _STEP or not accountant.supports(composition):
        return {"event": f"the outputs whose privacy loss exceeds {epsilon:.6g}"}
    try:
        curve: Any = accountant.curve(composition)
        ways: dict[str, Callable[[float], Any]] = {way: curve.one_way(way).delta for way in ("remove", "add")}
        worse = max(ways, key=lambda way: ways[way](epsilon).value)
        here, below, above = (float(ways[worse](epsilon + step).value) for step in (0, -_STEP, _STEP))
    except (DpbenchError, ArithmeticError):
        return {"event": f"the outputs whose privacy loss exceeds {epsilon:.6g}"}
    other = max(below - above, 0.0) / (2 * _STEP) * math.exp(-epsilon)
    more, less = ("D", "D′") if worse == "remove" else ("D′", "D")
    return {
        "event": f"S: the outputs x of all releases with log p(x)/q(x) > {epsilon:.6g}, p the law from {more},"
        f" q that from {less}",
        "probability_of_S": {more: float(f"{here + math.exp(epsilon) * other:.4g}"), less: float(f"{other:.4g}")},
        f"P(S from {more}) - e^epsilon P(S from {less})": here,
    }
