"""Utility claims: printed results of a table against the records of the runs of its specs.

A claim names its specs under `runs` and the labels of the rows that carry its numbers under `rows`. Every such row is
compared as in the report (`judging/reproduction.py`); the claim is refuted where one of its numbers is, and holds where
all of them were compared and hold. A claim that prints no number, but that one row gives more than another, names both
under `compares` (`comparisons.py`). A claim about what no spec trains has a judge besides (`by`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dpbench.catalog import FilePath, Note, find, marked
from dpbench.errors import DpbenchError
from dpbench.judging.claims.claim import Claim, Judgement, Printed
from dpbench.judging.claims.comparisons import Pair, judge_pairs, pairs_of
from dpbench.judging.claims.judges import RESULTS, Judge
from dpbench.judging.reproduction import Seed, full_name, result_verdicts
from dpbench.plan.parts import build_mechanism, dataset_source, objective_of, rate_and_steps
from dpbench.spec.keys import Spec
from dpbench.spec.loading import load_specs
from dpbench.spec.shipped import found_shipped
from dpbench.store.check_records import described
from dpbench.store.records import Store
from dpbench.store.run_key import FORMAT, changed_versions, chosen, key_format, plain
from dpbench.tasks import METRICS, Metric, task_of, unusual
from dpbench.verdicts import Verdict, Word

OTHER = "the spec has changed since these runs"
ALONG = "along_training"  # as a metric of a comparison
Named = tuple[str, Spec]  # a row, and its file as a claim names it


@dataclass(frozen=True)
class Trained:
    """What a record says that a claim needs: whose run it is, its setting, and what it gave.

    `target` is the ε that its noise was calibrated to, at which δ and by which accountant.
    """

    file: str
    label: str
    seed: int
    gave: Seed
    metric: Metric
    resolved: Mapping[str, Any]
    reduced: str | None
    real: bool
    target: tuple[float | None, float | None, str | None] = (None, None, None)


def trained(out: Path) -> tuple[Trained, ...]:
    """The finished runs of OUT and OUT/published that were made for a spec; damaged records do not count.

    >>> trained(Path("nowhere"))
    ()
    """
    return tuple(
        Trained(
            file=run.context.file,
            label=run.context.label,
            seed=run.seed,
            gave=Seed.of(run),
            metric=run.result.metric,
            resolved=run.resolved,
            reduced=run.context.reduced,
            real=run.facts.dataset_real,
            target=(run.context.target_epsilon, run.context.delta, run.context.calibrate_with),
        )
        for run in Store(out).read().runs
    )


def judge_runs(claim: Claim, runs: Sequence[Trained]) -> Judgement:
    """The verdict on a claim that training judges; `not_run` where no record has its whole setting."""
    judged = f"judged by training: {', '.join(claim.runs) or 'no run spec yet'}"
    places = {run: _place(run, claim.file) for run in claim.runs}
    missing = [run for run, place in places.items() if place is None]
    if missing:
        return Judgement("not_run", f"{judged}; not written yet: {', '.join(missing)}")
    if not claim.runs:
        return Judgement("not_run", judged)
    if not runs:
        return Judgement("not_run", f"{judged}; there is no record of it")
    if not (claim.rows or claim.compares):
        count = sum(run.seed in named[1].seeds for named in _rows(places) for run in _of(named, runs)[0])
        there = f"{count} of its runs {'has' if count == 1 else 'have'} a record"
        # A claim of somebody who states no verdict has not been thought through: it is no failure.
        verdict: Word = "undecided" if count and claim.verdict else "not_run"
        return Judgement(verdict, f"{judged}; {there}, and the claim names no rows to compare")
    if claim.compares:
        every = _rows(places)
        specs = {spec.label: (file, spec) for file, spec in every}
        if len(specs) < len(every):
            return Judgement("not_run", f"{judged}; two of its rows have the same label, which `compares` cannot tell")
        return _compared(judged, claim, specs, runs)
    chosen = _rows(places, claim.rows)
    return _together(judged, [(named[1].label, verdict) for named in chosen for verdict in _verdicts(named, runs)])


def judge_beside(judge: Judge, runs: Sequence[Trained], claim: Claim, certified: bool = False) -> Judgement:
    """The verdict of a judge on a claim with runs: `not_run` until each of its rows has two seeds with a record.

    The judge gets their results where it has an argument `results`.
    """
    places = {run: _place(run, claim.file) for run in claim.runs}
    missing, chosen = [run for run, place in places.items() if place is None], _rows(places, claim.rows)
    found = {named[1].label: _results(named, "", runs) for named in chosen}
    if missing:
        lacks = f"not written yet: {', '.join(missing)}"
    elif not chosen:
        lacks = "`rows` names none of their rows"
    elif len(found) < len(chosen):
        lacks = "two of these rows have the same label"
    else:
        lacks = next((why for _, why in found.values() if why), "")
    if lacks:
        return Judgement("not_run", f"judged beside {', '.join(claim.runs)}: {lacks}")
    results = {RESULTS: {label: values for label, (values, _) in found.items()}}
    more = results if RESULTS in judge.arguments else {}
    return judge.judge(replace(claim, parameters={**claim.parameters, **more}), certified)


def _place(run: str, file: str) -> Path | None:
    """The spec's file: from the working folder, from the folders above the claims file, or among those that ship."""
    tops = [Path(), *(Path(file).resolve().parents if file else ())]
    places = [top / run for top in tops] + [found_shipped(Path(run.removeprefix("specs/")))]
    return next((place for place in places if place.is_file()), None)


def _rows(places: Mapping[str, Path | None], labels: Sequence[str] = ("*",)) -> list[Named]:
    """The rows of some spec files whose labels fit a pattern."""
    every = [(file, spec) for file, place in places.items() for spec in load_specs([place] if place else [])]
    return [named for named in every if any(fnmatchcase(named[1].label, pattern) for pattern in labels)]


def _compared(judged: str, claim: Claim, specs: Mapping[str, Named], runs: Sequence[Trained]) -> Judgement:
    """The verdict on a claim about pairs of rows."""
    results: dict[tuple[str, str], tuple[list[float], str]] = {}
    pairs = []
    for one in claim.compares:
        metric, by = one.get("metric", ""), Printed(one["by"]) if "by" in one else None
        for labels in pairs_of(tuple(specs), one["higher"], one["lower"]):
            for label in labels:
                if (label, metric) not in results:
                    results[label, metric] = _results(specs[label], metric, runs)
            (higher, why), (lower, why_not) = (results[label, metric] for label in labels)
            pairs.append(Pair(f"{labels[0]} − {labels[1]}", higher, lower, by, why or why_not))
    return judge_pairs(judged, pairs, claim.share == "most")


def _of(named: Named, runs: Sequence[Trained]) -> tuple[list[Trained], str]:
    """The whole runs on real data of a row's setting, one of each seed, whatever spec they were run for.

    And why there is none where some have its label: of the row's own file, or of its setting.
    """
    file, spec = named
    alike = [run for run in runs if run.label == spec.label]
    own = any(run.file == file for run in alike)
    try:
        setting = _setting(spec) if alike else {}
    except DpbenchError as error:  # such as a dataset of a file that is not there
        return [], f"its setting cannot be told ({error})" if own else ""
    kept = [run for run in alike if _is_of(spec, setting, run, run.file == file)]
    if spec.reduced:
        return [], f"this setting is reduced ({spec.reduced})"
    whole = {run.seed: run for run in kept if run.real and not run.reduced}
    if whole or not kept:
        return list(whole.values()), OTHER if own and not kept else ""
    reduced = next((run.reduced for run in kept if run.reduced), None)
    return [], f"this setting is reduced ({reduced})" if reduced else "the data are synthetic"


def _results(named: Named, metric: str, runs: Sequence[Trained]) -> tuple[list[float], str]:
    """What the seeds of a row gave, and why they may not be compared, if so."""
    kept, why = _of(named, runs)
    if why:
        return [], why
    seeds = [run.gave for run in kept]
    values = [one.result for one in seeds]
    if metric == ALONG:
        values = [math.fsum(shown for _, shown in one.curve) / len(one.curve) for one in seeds if one.curve]
    elif metric:
        full = full_name(metric, asked_of(named[1]))
        gave = [one.metrics[full] for one in seeds if full in one.metrics]
        values = [one for one in gave if not isinstance(one, str)]
    few = f"{len(values)} of the seeds of {named[1].label!r} have a record, expected two or more"
    return values, "" if len(values) > 1 else few


def _verdicts(named: Named, runs: Sequence[Trained]) -> list[Verdict]:
    """The verdicts on the printed results of one row."""
    _, spec = named
    published = spec.published
    if published is None or not published.results:
        return []
    kept, why = _of(named, runs)
    metric = published.result[0] if published.result else kept[0].metric if kept else METRICS["accuracy"]
    seeds = [run.gave for run in kept if run.metric == metric]
    found = result_verdicts(spec.label, seeds, published, metric, asked=asked_of(spec), barred=why or None)
    stale = sum(bool(changed_versions(run.resolved)) for run in kept)
    return [replace(one, reason=f"{one.reason}; {stale} of its runs are stale") for one in found] if stale else found


def asked_of(spec: Spec) -> list[str]:
    """The spec's metrics, by their names in records."""
    return [described(one.name, one.parameters) for one in spec.metrics]


def _setting(spec: Spec) -> dict[str, Any]:
    """What a run of the spec resolves, but for the noise that is calibrated. Raises DpbenchError where it cannot."""
    source = dataset_source(spec)
    rate, steps = rate_and_steps(spec, source)
    unkeyed = marked(find("datasets", spec.dataset.name).load(), FilePath, Note)
    parameters = {name: value for name, value in spec.dataset.parameters.items() if name not in unkeyed}
    return {
        "dataset": {"name": spec.dataset.name.rpartition(":")[2], "parameters": parameters, "sha256": source.sha256},
        "model": chosen("models", spec.model, skip=2),
        "mechanism": chosen("mechanisms", spec.mechanism),
        "sampling_rate": rate,
        "steps": steps,
        "learning_rate": spec.training.learning_rate,
        "clip_norm": spec.training.clip_norm,
        "objective": unusual(task_of(source), objective_of(spec, source)),
    }


def _is_of(spec: Spec, setting: Mapping[str, Any], run: Trained, own: bool) -> bool:
    """Whether a record is of the spec's setting; calibrated noise is compared by its target.

    What the spec leaves to a default may be anything in a run of its `own` file: the accountant that calibrates, which
    is `exact` where it covers the mechanism, and the bytes of its weights. No accountant calibrates a mechanism that
    spends the budget itself.
    """
    resolved, budget = run.resolved, spec.budget
    sigma = resolved.get("noise_multiplier")
    if budget is None:
        same = sigma is None and resolved.get("epsilon") is None
    elif budget.noise_multiplier is not None:
        same = _equal(budget.noise_multiplier, sigma)
    else:
        epsilon, delta, by = run.target
        same = _equal(budget.epsilon, epsilon) and _equal(budget.delta, delta)
        free = budget.calibrate_with is None and (own or build_mechanism(spec).spends_budget)
        same &= free or by == (budget.calibrate_with or "exact")
    weights = resolved["model"].get("weights")
    same &= (spec.weights is None) == (weights is None)
    if spec.weights is not None and not (own and spec.weights.sha256 is None):
        same &= (weights or {}).get("sha256") == spec.weights.sha256
    same &= {name: resolved[name] for name in ("loss", "metric") if resolved.get(name)} == setting["objective"]
    numbers = ("sampling_rate", "steps", "learning_rate", "clip_norm")
    same &= all(_equal(setting[name], resolved.get(name)) for name in numbers)
    exact = key_format(resolved) == FORMAT
    return same and all(_same(setting[name], resolved[name], exact) for name in ("dataset", "model", "mechanism"))


def _equal(stated: float | None, recorded: float | None) -> bool:
    return stated == recorded if stated is None or recorded is None else math.isclose(stated, recorded)


def _same(stated: Mapping[str, Any], recorded: Mapping[str, Any], exact: bool) -> bool:
    """Whether two choices are the same; records of an older format (not `exact`) have other parameters besides."""
    one, other = plain(stated.get("parameters") or {}), plain(recorded.get("parameters") or {})
    names = one.keys() | other.keys() if exact else one.keys() & other.keys()
    identity = [(each["name"], each.get("sha256")) for each in (stated, recorded)]
    return identity[0] == identity[1] and all(name in one and one[name] == other.get(name) for name in names)


def _together(judged: str, found: Sequence[tuple[str, Verdict]]) -> Judgement:
    """The verdict on a claim whose rows have these verdicts."""
    if not found:
        return Judgement("not_run", f"{judged}; its rows print no result")
    counts = Counter[str](verdict.verdict for _, verdict in found)
    compared = len(found) - counts["not_run"]
    rows = Counter(label for label, _ in found)
    named = [(f"{label}: {one.check}" if rows[label] > 1 else label or "result", one) for label, one in found]
    evidence = {label: verdict.reason for label, verdict in named if verdict.reason != "no finished run"}
    if not compared:
        why = next(iter(evidence.values()), "no record of them")
        return Judgement("not_run", f"{judged}; {why}", evidence=evidence)
    words = {"holds": "hold", "refuted": "are refuted", "undecided": "are undecided", "not_run": "were not compared"}
    parts = [f"{counts[name]} {word}" for name, word in words.items() if counts[name]]
    verdict = "refuted" if counts["refuted"] else "holds" if counts["holds"] == len(found) else "undecided"
    chance = 1 - math.prod(1 - one.false_alarm for _, one in found)
    reason = f"{judged}: of {len(found)} printed results {', '.join(parts)}"
    return Judgement(verdict, reason, compared, evidence, false_alarm=round(chance, 12))
