"""Whether a record agrees with itself: what can be recomputed without training is recomputed, never believed.

A digest shows accidents and careless edits; whoever means harm computes a new one. So the key, the seed, the curve and
the ledger are held to each other and to the mechanism. What nobody can recompute (accuracy, seconds, environment) is
from the record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any, get_args

from dpbench.catalog import catalog, find, of_a_file
from dpbench.datasets import DatasetSource, find_dataset
from dpbench.errors import DpbenchError
from dpbench.events import Composition, from_json
from dpbench.privacy.accounting import account
from dpbench.spec.keys import Randomness
from dpbench.store.run_key import FORMAT, key_format, plain, run_key, shipped
from dpbench.tasks import METRICS, Objective, objective, task_of, words

MOST_EPOCHS = 1e6  # of a run; a ledger may have an event for each
MOST_EVENTS = 3_300  # different ones in a ledger: dpis has up to three for each of at most 1,000 epochs
_SLACK = 1e-9  # relative, of an ε that the mechanism's own filter has rounded
_ROUNDED = 1e-12  # relative, of a metric that its loss determines: one root or exponential of the same float64
_FACTS = ("adjacency", "sampler", "privacy_unit", "claimed_by")


def disagreement(data: Mapping[str, Any]) -> str:
    """What in a run record (plain data of the right types) contradicts the rest of it; "" where nothing does."""
    return next(_problems(data), "")


def failure_disagreement(data: Mapping[str, Any]) -> str:
    """The same for the record of a failed run, whose writer may add the resolved run."""
    resolved = data.get("resolved")
    if resolved is not None and (not isinstance(resolved, Mapping) or run_key(resolved) != data["run_key"]):
        return "run_key is that of another run"
    if resolved is not None and resolved.get("seed") != data["seed"]:
        return f"seed = {data['seed']}, but it resolved seed = {resolved.get('seed')}"
    return ""


def on_trust(resolved: Mapping[str, Any]) -> bool:
    """Whether the ledger of a private run is from the record.

    Its mechanism is not dpbench's, no longer builds, or chooses its noise while it runs by what it has seen.
    """
    mechanism = _mechanism(_text(resolved["mechanism"]))
    return mechanism is None or (bool(mechanism.spends_budget) and not hasattr(mechanism, "ledger_of_budget"))


def refuted(mechanism: Mapping[str, Any]) -> str:
    """Why no ε may be stated of one of dpbench's own mechanisms with these parameters; "" where one may.

    >>> refuted({"name": "microbatched_sgd", "parameters": {"variant": "as_printed"}})[:21]
    'mechanism_sensitivity'
    """
    return str(getattr(_mechanism(_text(mechanism)), "refuted", ""))


def other_data(resolved: Mapping[str, Any]) -> bool:
    """Whether a record's facts about its data are its own: of no shipped dataset with the content of today."""
    return _source(resolved["dataset"]) is None


def _problems(data: Mapping[str, Any]) -> Iterator[str]:
    resolved, facts, curve = data["resolved"], data["facts"], data["curve"]
    made = run_key(resolved)
    if data["run_key"] != made:
        yield f"run_key is that of another run; what it resolved gives {made}"
    if data["seed"] != resolved.get("seed"):
        yield f"seed = {data['seed']}, but it resolved seed = {resolved.get('seed')}"
    yield from _of_curve(curve, resolved)
    last = curve[-1] if curve else {}
    yield from _of_metric(data)
    for name in (*(metric.field for metric in METRICS.values()), "test_loss"):
        if not _same(data["result"].get(name), last.get(name)):
            yield f"result.{name} = {data['result'].get(name)}, but the curve ends with {last.get(name)}"
    own = data.get("own_seconds")
    if own is not None and own > data["seconds"] * (1 + 1e-6) + 1e-3:
        yield f"own_seconds = {own} exceed the {data['seconds']} seconds of its stack"
    rate, batch, examples = resolved["sampling_rate"], facts.get("expected_batch_size"), facts.get("examples")
    if batch is not None and examples is not None and abs(batch - rate * examples) > 1e-5 * max(1.0, batch):
        yield f"facts.expected_batch_size = {batch}, but {examples} examples at rate {rate} make {rate * examples}"
    randomness = resolved.get("randomness", "common")  # keys of format 1 have none
    if randomness not in get_args(Randomness):
        yield f"randomness = {randomness}: expected {', '.join(get_args(Randomness))}"
    yield from _of_dataset(resolved, facts)
    yield from _of_ledger(data)


def _of_metric(data: Mapping[str, Any]) -> Iterator[str]:
    """Whether the metric is the one of its task, and agrees with the loss that determines it."""
    resolved = data["resolved"]
    source = _source(resolved["dataset"])
    stated = data["facts"].get("task")
    task = stated or "classification" if source is None else task_of(source)
    if stated is not None and stated != task:
        yield f"facts.task = {stated}, but its dataset is for {words(task)}"
    try:
        aim = objective(task, resolved.get("loss"), resolved.get("metric"))
    except DpbenchError as error:
        yield str(error)
        return
    for name, values in (("result", data["result"]), *(("curve", point) for point in data["curve"])):
        wrong = metric_disagreement(name, values, aim)
        if wrong:
            yield wrong
            return


def metric_disagreement(name: str, values: Mapping[str, Any], aim: Objective) -> str:
    """What is wrong with the metric of a result or of a point of a curve: absent, or not what its loss makes."""
    field = METRICS[aim.metric].field
    value, loss = values.get(field), values.get("test_loss")
    if value is None:
        return f"{name} has no {field}, the metric of its run"
    implied = None if loss is None else aim.implied(loss)
    if implied is not None and not math.isclose(value, implied, rel_tol=_ROUNDED):
        return f"{name}.{field} = {value}, but its test_loss = {loss} makes {implied}"
    return ""


def _same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def _of_curve(curve: Sequence[Mapping[str, Any]], resolved: Mapping[str, Any]) -> Iterator[str]:
    steps = [point["step"] for point in curve]
    if not steps or steps[-1] != resolved["steps"]:
        yield f"the curve ends at step {steps[-1] if steps else 0} of {resolved['steps']}"
    if steps and (steps[0] < 1 or any(one >= other for one, other in pairwise(steps))):
        yield "the steps of its curve do not rise"
    for name in ("seconds", "releases"):
        values = [point[name] for point in curve if point.get(name) is not None]
        if any(one > other for one, other in pairwise(values)):
            yield f"{name} of its curve fall"
    for point in curve:
        epoch = point["step"] * resolved["sampling_rate"]
        if not abs(point["epoch"] - epoch) <= 1e-5 + 1e-9 * epoch:
            yield f"epoch {point['epoch']} of its curve is not {epoch:g}, that of step {point['step']}"


def _of_dataset(resolved: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts of a shipped dataset where the content is the same as today's; a mechanism may take test examples."""
    source = _source(resolved["dataset"])
    if source is not None:
        taken = getattr(_mechanism(_text(resolved["mechanism"])), "public_examples", 0)
        measured = source.test_size - taken
        known = {"examples": source.train_size, "test_examples": measured, "dataset_real": source.real}
        for name, value in known.items():
            if facts.get(name) is not None and facts[name] != value:
                yield f"facts.{name} = {facts[name]}, but {source.name} has {value}"


def _source(chosen: Mapping[str, Any]) -> DatasetSource | None:
    """The shipped dataset of a resolved run; None where it is another, or has other content than today's."""
    entry = catalog("datasets").get(str(chosen["name"]))
    if entry is None or entry.origin != "dpbench":
        return None
    try:
        if of_a_file(entry.name):  # a record opens no file that it names
            return None
        source = find_dataset(entry.name, chosen.get("parameters"))
        return source if chosen.get("sha256") == source.sha256 else None
    except Exception:  # noqa: BLE001 - parameters from a file may be anything
        return None


def _of_ledger(data: Mapping[str, Any]) -> Iterator[str]:
    """Whether the ledger is that of the mechanism for (q, σ, T), or within the budget that the mechanism spends."""
    resolved, facts, ledger = data["resolved"], data["facts"], data.get("ledger")
    free = resolved.get("epsilon") is not None and math.isinf(resolved["epsilon"])  # a budget of ε = ∞
    if facts["private"] != (ledger is not None) and not (free and ledger is None):
        yield f"facts.private = {facts['private']}, but it has {'a' if ledger is not None else 'no'} ledger"
    found = None
    if ledger is not None:
        try:
            found = from_json(dict(ledger))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            yield f"its ledger cannot be read ({type(error).__name__}: {error})"
            return
        count, last = sum(number for _, number in found.parts), data["curve"][-1].get("releases")
        if last is not None and last != count:
            yield f"its curve ends with {last} events, its ledger has {count}"
    name = resolved["mechanism"]["name"]
    mechanism = _mechanism(_text(resolved["mechanism"]))
    if mechanism is None:
        if key_format(resolved) == FORMAT and shipped(resolved["mechanism"]):
            yield f"its mechanism {name} cannot be built from its parameters"
        return
    if facts["private"] != mechanism.private:
        yield f"facts.private = {facts['private']}, but {name} is {'' if mechanism.private else 'not '}private"
    stated = mechanism.facts()
    for fact in _FACTS:
        if facts.get(fact) is not None and facts[fact] != stated.get(fact):
            yield f"facts.{fact} = {facts[fact]}, but {name} has {stated.get(fact)}"
    if facts.get("claimed_by") is None and stated.get("claimed_by") is not None:
        yield f"facts has no claimed_by, but nothing else stands for the ε of {name}"
    if facts.get("without_noise") is not None and not hasattr(mechanism, "measured"):
        yield f"facts.without_noise = {facts['without_noise']}, but {name} does not count it"
    if not mechanism.private and resolved.get("noise_multiplier") is not None:
        yield f"noise_multiplier = {resolved['noise_multiplier']}, but {name} adds no noise"
    if mechanism.spends_budget:
        yield from _of_budget(mechanism, resolved, found)
    elif _merged(found) != _merged(_planned(_text(resolved["mechanism"]), *(resolved.get(one) for one in _LEDGER))):
        yield f"its ledger is not the one that {name} has for its rate, noise and steps"
    elif found is not None:
        yield from _of_releases(data["curve"], _text(resolved["mechanism"]), *(resolved.get(one) for one in _LEDGER))


def _of_releases(
    curve: Sequence[Mapping[str, Any]], choice: str, rate: float, sigma: float | None, steps: int
) -> Iterator[str]:
    """The events at each evaluation, where every step has as many: what is spent on the way comes from them."""
    one, two, whole = (_count(_planned(choice, rate, sigma, number)) for number in (1, 2, steps))
    start, each = 2 * one - two, two - one
    for point in curve if start + each * steps == whole else ():
        count, found = start + each * point["step"], point.get("releases")
        if found is not None and found != count:
            yield f"its curve has {found} events at step {point['step']}, its mechanism has {count}"


def _count(ledger: Composition | None) -> int:
    return 0 if ledger is None else sum(number for _, number in ledger.parts)


_LEDGER = ("sampling_rate", "noise_multiplier", "steps")


def _merged(ledger: Composition | None) -> Composition | None:
    """Equal events that follow each other as one part: 2 + 3 times the same is 5 times."""
    if ledger is None:
        return None
    parts = ((event, sum(count for _, count in group)) for event, group in groupby(ledger.parts, lambda part: part[0]))
    return Composition(tuple(parts), ledger.adaptive)


def _of_budget(mechanism: Any, resolved: Mapping[str, Any], ledger: Composition | None) -> Iterator[str]:
    """A mechanism that chooses its noise while it runs: its events depend on the data, and stay within the budget.

    Those of one with `ledger_of_budget` do not depend on the data, and are computed again.
    """
    epsilon, delta = resolved.get("epsilon"), resolved.get("delta")
    if epsilon is None or delta is None:
        yield f"{resolved['mechanism']['name']} spends a budget, and it has none"
    elif hasattr(mechanism, "ledger_of_budget"):
        numbers = {name: resolved.get(name) for name in ("sampling_rate", "steps")}
        try:
            spent = mechanism.ledger_of_budget(**numbers, epsilon=epsilon, delta=delta)
        except (DpbenchError, ValueError, TypeError, ArithmeticError):  # no run has such a budget
            spent = Composition(())
        if _merged(ledger) != _merged(spent):
            yield f"its ledger is not the one that {resolved['mechanism']['name']} has for its rate, budget and steps"
    elif ledger is not None and len({event for event, _ in ledger.parts}) > MOST_EVENTS:
        yield f"its ledger has more than {MOST_EVENTS:,} different events"
    elif ledger is not None and getattr(mechanism, "variant", "proven") == "proven":
        # As printed it may spend more than its budget; the ε of its ledger says so.
        amount = _spent(ledger, delta)
        if amount is None or amount > epsilon * (1 + _SLACK):
            yield f"its ledger spends ε = {amount}, more than its budget of {epsilon}"


@cache
def _spent(ledger: Composition, delta: float) -> float | None:
    (found,) = account(ledger, delta=delta, accountants=["rdp_filter"])
    return None if found.epsilon is None else found.epsilon.safe


def _text(choice: Mapping[str, Any]) -> str:
    return json.dumps(plain(choice), sort_keys=True)


@cache
def _mechanism(choice: str) -> Any:
    """The mechanism of a resolved run; None where it is not dpbench's own, or is not built from these parameters."""
    resolved = json.loads(choice)
    if not shipped(resolved):
        return None
    try:
        return find("mechanisms", resolved["name"]).load()(**(resolved.get("parameters") or {}))
    except Exception:  # noqa: BLE001 - parameters from a file may be anything
        return None


@cache
def _planned(choice: str, rate: float, sigma: float | None, steps: int) -> Composition | None:
    """The ledger by the mechanism; an empty one, which no run has, where it refuses the numbers."""
    try:
        if rate * steps > MOST_EPOCHS:
            return Composition(())
        found: Composition | None = _mechanism(choice).ledger(sampling_rate=rate, noise_multiplier=sigma, steps=steps)
    except (DpbenchError, ValueError, TypeError, ArithmeticError):
        return Composition(())
    return found
