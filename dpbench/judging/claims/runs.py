"""Utility claims: printed results of a table against the records of the runs of its specs.

A claim names its specs under `runs` and the labels of the rows that carry its numbers under `rows`. Every such row is
compared as in the report (`judging/reproduction.py`); the claim is refuted where one of its numbers is, and holds where
all of them were compared and hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dpbench.judging.claims.claim import Claim, Judgement
from dpbench.judging.reproduction import metric_verdict
from dpbench.spec.keys import Spec
from dpbench.spec.loading import load_specs
from dpbench.spec.shipped import found_shipped
from dpbench.store.records import Store
from dpbench.tasks import Metric
from dpbench.verdicts import Verdict

OTHER = "the spec has changed since these runs"


@dataclass(frozen=True)
class Trained:
    """What a record says that a claim needs: whose run it is, its setting, and its result in the metric's unit."""

    file: str
    label: str
    seed: int
    result: float
    metric: Metric
    resolved: Mapping[str, Any]
    examples: int | None
    reduced: str | None
    real: bool


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
            result=run.result.shown,
            metric=run.result.metric,
            resolved=run.resolved,
            examples=run.facts.examples,
            reduced=run.context.reduced,
            real=run.facts.dataset_real,
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
    if not claim.rows or not runs:
        return Judgement("not_run", judged + "; there is no record of it" * bool(claim.rows))
    found = [
        (spec.label, _verdict(spec, [run for run in runs if (run.file, run.label) == (file, spec.label)]))
        for file, place in places.items()
        for spec in load_specs([place] if place else [])
        if any(fnmatchcase(spec.label, pattern) for pattern in claim.rows)
    ]
    return _together(judged, [(label, verdict) for label, verdict in found if verdict is not None])


def _place(run: str, file: str) -> Path | None:
    """The spec's file: from the working folder, from the folders above the claims file, or among those that ship."""
    tops = [Path(), *(Path(file).resolve().parents if file else ())]
    places = [top / run for top in tops] + [found_shipped(Path(run.removeprefix("specs/")))]
    return next((place for place in places if place.is_file()), None)


def _verdict(spec: Spec, runs: Sequence[Trained]) -> Verdict | None:
    """The verdict on the printed result of one row; None where it prints none."""
    published = spec.published
    if published is None or published.result is None:
        return None
    metric, printed = published.result
    kept = {run.seed: run for run in runs if _is_of(spec, run)}
    barred = OTHER if runs and not kept else None
    for run in kept.values():
        barred = barred or (run.reduced and f"this setting is reduced ({run.reduced})")
        barred = barred or (None if run.real else "the data are synthetic")
    results = [run.result for run in kept.values() if run.metric == metric]
    return metric_verdict(spec.label, results, printed, published.averaged_over, metric=metric, barred=barred)


def _is_of(spec: Spec, run: Trained) -> bool:
    """Whether a record has the numbers that the spec states; what the spec leaves to calibration is not compared."""
    training, resolved, size = spec.training, run.resolved, run.examples
    steps, rate = training.steps, training.sampling_rate
    if training.batch_size is not None and size:
        rate = training.batch_size / size
    if training.epochs is not None and rate:
        steps = math.ceil(training.epochs / rate - 1e-9)
    noise = None if spec.budget is None else spec.budget.noise_multiplier
    stated = {
        "sampling_rate": rate,
        "steps": steps,
        "learning_rate": training.learning_rate,
        "clip_norm": training.clip_norm,
        "noise_multiplier": noise,
    }
    chosen = {name: getattr(spec, name).name for name in ("dataset", "model", "mechanism")}
    return all(
        value is None or math.isclose(value, resolved.get(name) or 0.0) for name, value in stated.items()
    ) and all(resolved[name]["name"] == value for name, value in chosen.items())


def _together(judged: str, found: Sequence[tuple[str, Verdict]]) -> Judgement:
    """The verdict on a claim whose rows have these verdicts."""
    if not found:
        return Judgement("not_run", f"{judged}; its rows print no accuracy")
    counts = Counter[str](verdict.verdict for _, verdict in found)
    compared = len(found) - counts["not_run"]
    evidence = {label or "result": verdict.reason for label, verdict in found if verdict.reason != "no finished run"}
    if not compared:
        why = next(iter(evidence.values()), "no record of them")
        return Judgement("not_run", f"{judged}; {why}", evidence=evidence)
    words = {"holds": "hold", "refuted": "are refuted", "undecided": "are undecided", "not_run": "were not compared"}
    parts = [f"{counts[name]} {word}" for name, word in words.items() if counts[name]]
    verdict = "refuted" if counts["refuted"] else "holds" if counts["holds"] == len(found) else "undecided"
    chance = 1 - math.prod(1 - one.false_alarm for _, one in found)
    reason = f"{judged}: of {len(found)} printed results {', '.join(parts)}"
    return Judgement(verdict, reason, compared, evidence, false_alarm=round(chance, 12))
