"""From records and failures to a report: rows over seeds, guarantees by every accountant, verdicts on what was printed.

All that the report shows is computed here (and in `judging/reproduction.py`); `page` only renders it.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dpbench.catalog import catalog, in_short, of_a_file
from dpbench.conformance import Conformance
from dpbench.judging.reproduction import Seed, number_verdict, result_verdicts, spread
from dpbench.privacy.answers import PROMISES
from dpbench.reporting.comparisons import comparisons, with_baselines
from dpbench.reporting.contents import (
    CurveLine,
    EnvironmentLine,
    GuaranteeLine,
    RecordLine,
    Report,
    Row,
    Section,
    Settings,
)
from dpbench.reporting.guarantees import MU_ACCOUNTANT, Accounts, guarantees
from dpbench.reporting.metrics import metric_lines
from dpbench.reporting.notices import notices
from dpbench.spec.trust import Trust
from dpbench.store.check_records import CheckRecord, of_record, worst
from dpbench.store.differences import flatten
from dpbench.store.provenance import environment
from dpbench.store.records import Damaged, taken_on_trust
from dpbench.store.run_key import COMPILED, changed_versions
from dpbench.store.shapes import Checked, Context, FailureRecord, RunRecord, failure_record, run_context, run_record
from dpbench.store.speed import engine_words
from dpbench.tasks import Metric
from dpbench.verdicts import Verdict

MOST_CURVE_POINTS = 40  # evaluations for which the ε spent so far is computed, over all ledgers of a report
_ENVIRONMENT = ("commit", "dirty", "dpbench", "python", "torch", "device", "device_name", "threads", "platform")

Record = RunRecord | Mapping[str, Any]
Failure = FailureRecord | Mapping[str, Any]
AnyContext = Context | Mapping[str, Any]
Place = tuple[RunRecord, Context]


def collect(
    records: Iterable[Record],
    failures: Iterable[Failure] = (),
    contexts: Mapping[str, AnyContext | Sequence[AnyContext]] | None = None,
    *,
    damaged: Iterable[Damaged] = (),
    checks: Mapping[str, CheckRecord] | None = None,
    stale: Callable[[Mapping[str, Any]], tuple[str, ...]] = changed_versions,
    shipped: Collection[str] = (),
    conformance: Conformance | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    trusted: Trust | None = None,
) -> Report:
    """Group records into sections (specs) and rows (configurations), and judge what the specs say was printed.

    `contexts` (run key to one context, or several where specs share a run) replaces the contexts that the records
    carry, because a spec may have changed its label or its printed numbers since; its order is the report's order.
    `checks` are the stored verdicts on mechanisms, by the hash of their code.
    `stale` maps a resolved run to the versions of code that were raised since. `shipped` are the run keys of records
    that came with the project: they stand in sections of their own, after the reader's. `conformance` is shown, and
    what an accountant got wrong there makes its promises doubtful. `progress` is called with what is done, how much of
    it and of how much. `trusted` says which accountants outside dpbench a record may name (None: none). Records and
    failures may be plain mappings; raises DpbenchError when one does not have a record's shape.

    >>> collect([]).counts()
    {'holds': 0, 'refuted': 0, 'undecided': 0, 'not_run': 0}
    """
    runs = {run.run_key: run for run in map(run_record, records)}
    failed = [failure_record(failure) for failure in failures]
    overlay = {key: _contexts(value) for key, value in (contexts or {}).items()}
    order = {key: number for number, key in enumerate(overlay)}

    places: list[Place] = [
        (run, context) for run in runs.values() for context in overlay.get(run.run_key, [run.context])
    ]
    unnumbered = {context.name for _, context in places if not context.number}
    places.sort(
        key=lambda place: (
            order.get(place[0].run_key, len(order)),
            *_natural(place[1], place[1].name not in unnumbered),
            place[0].seed,
        )
    )
    failed_places = [
        (failure, context) for failure in failed for context in overlay.get(failure.run_key, [failure.context])
    ]
    stale_modules = {run.run_key: stale(run.resolved) for run in runs.values()}
    checked = {run.run_key: of_record(run, checks or {}) for run in runs.values()}
    made = partial(
        _row,
        stale_modules=stale_modules,
        accounted=Accounts(conformance, trusted),
        checked=checked,
        points=MOST_CURVE_POINTS // max(1, _ledgers(places)),
    )

    by_name: dict[tuple[bool, str], tuple[list[Place], list[tuple[FailureRecord, Context]]]] = {}
    for run, context in places:
        by_name.setdefault((run.run_key in shipped, context.name), ([], []))[0].append((run, context))
    for failure, context in failed_places:
        by_name.setdefault((False, context.name), ([], []))[1].append((failure, context))
    total = len({(run.run_key in shipped, context.name, context.label, _configuration(run)) for run, context in places})
    done = itertools.count(1)

    def watched(*row: Any) -> Row:
        made_row = made(*row)
        if progress is not None:
            progress("accounting", next(done), total)
        return made_row

    sections = []
    for number, (theirs, name) in enumerate(sorted(by_name, key=lambda pair: pair[0]), 1):
        section = _section(f"spec-{number}", name, *by_name[theirs, name], overlay, watched)
        sections.append(replace(section, shipped=theirs))
    linked = with_baselines(sections)
    own = [run for run in runs.values() if run.run_key not in shipped]
    given = [run for run in runs.values() if run.run_key in shipped]
    about_given = notices([one for one in linked if one.shipped], given, (), (), stale_modules)
    return Report(
        sections=linked,
        comparisons=comparisons(linked),
        records=_record_lines(places, linked, stale_modules, shipped),
        failures=tuple(failed),
        damaged=tuple(item.message for item in damaged),
        notices=(
            *notices([one for one in linked if not one.shipped], own, failed, damaged, stale_modules),
            *(replace(notice, shipped=True) for notice in about_given),
        ),
        environments=_environments(runs.values()),
        environment=environment(),
        conformance=conformance,
    )


def _ledgers(places: Iterable[Place]) -> int:
    """How many different ledgers the rows of a report have; each row counts with that of one seed."""
    rows = {(context.name, context.label): run.ledger for run, context in places if run.ledger is not None}
    return len({json.dumps(ledger, sort_keys=True) for ledger in rows.values()})


def _contexts(value: AnyContext | Sequence[AnyContext]) -> list[Context]:
    several = [value] if isinstance(value, Context | Mapping) else value
    return [run_context(one) for one in several]


def _natural(
    context: Context, numbered: bool
) -> tuple[list[tuple[int, float, str]], int, list[tuple[int, float, str]]]:
    """Specs by name, their rows as in the file; where that is not known of all, `row 10` after `row 9`."""

    def parts(text: str) -> list[tuple[int, float, str]]:
        found = re.split(r"(\d+(?:\.\d+)?)", text)
        return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(found) if part]

    return parts(context.name), numbered * context.number, parts(context.label)


def _section(
    section_id: str,
    name: str,
    places: Sequence[Place],
    misses: Sequence[tuple[FailureRecord, Context]],
    overlay: Mapping[str, Sequence[Context]],
    made: Callable[[str, Sequence[Place], str, bool, tuple[int, ...]], Row],
) -> Section:
    groups: dict[tuple[str, str], list[Place]] = {}
    for run, context in places:
        groups.setdefault((context.label, _configuration(run)), []).append((run, context))
    rows = []
    for number, ((label, _), members) in enumerate(groups.items(), 1):
        rivals = [others[0][0].resolved for (other, _), others in groups.items() if other == label]
        variant = _variant(members[0][0].resolved, rivals) if len(rivals) > 1 else ""
        current = any(run.run_key in overlay for run, _ in members)
        superseded = not current and any(
            run.run_key in overlay for (other, _), others in groups.items() if other == label for run, _ in others
        )
        failed_seeds = tuple(sorted(failure.seed for failure, context in misses if context.label == label))
        rows.append(made(f"{section_id}-row-{number}", members, variant, superseded, failed_seeds))
    contexts = [context for _, context in places] + [context for _, context in misses]
    return Section(
        id=section_id,
        name=name,
        source=next((context.source for context in contexts if context.source), None),
        file=next((context.file for context in contexts if context.file), ""),
        rows=tuple(rows),
        failures=tuple(failure for failure, _ in misses),
        accountants=_promises_first(rows),
        baselines=(),
    )


def _row(
    row_id: str,
    members: Sequence[Place],
    variant: str,
    superseded: bool,
    failed_seeds: tuple[int, ...],
    stale_modules: Mapping[str, tuple[str, ...]],
    accounted: Accounts,
    checked: Mapping[str, Checked | None],
    points: int,
) -> Row:
    runs = sorted((run for run, _ in members), key=lambda run: run.seed)
    first, context = members[0]
    metric, values = runs[0].result.metric, [run.result.shown for run in runs]
    losses = [run.result.test_loss for run in runs if run.result.test_loss is not None]
    barred = context.reduced and f"this setting is reduced ({context.reduced})"
    if barred is None and not all(run.facts.dataset_real for run in runs):
        barred = "the data are synthetic"
    if barred is None and superseded:
        barred = "the spec has changed since these runs"
    known = worst(checked.get(run.run_key) for run in runs)
    lines = guarantees(runs, context, accounted, known)
    row = Row(
        id=row_id,
        label=context.label,
        variant=variant,
        context=context,
        facts=first.facts,
        settings=_settings(first),
        seeds=tuple(run.seed for run in runs),
        run_keys=tuple(run.run_key for run in runs),
        failed_seeds=failed_seeds,
        measured=spread(values),
        test_loss=spread(losses) if len(losses) == len(runs) and all(map(math.isfinite, losses)) else None,
        seconds=spread([run.seconds if run.own_seconds is None else run.own_seconds for run in runs]),
        guarantees=lines,
        verdicts=_verdicts(metric, [Seed.of(run) for run in runs], context, lines, barred, variant),
        curve=(),
        barred=barred,
        stale_seeds=tuple(run.seed for run in runs if stale_modules.get(run.run_key)),
        checked=known,
        engine=first.environment.get("engine") or {},
        summed_by=_summed_by([run.environment for run in runs]),
        metric_name=metric.name,
        metrics=metric_lines(runs, context),
    )
    return replace(row, curve=_curve(runs, context, row.shown, accounted, points))


def _summed_by(environments: Sequence[Mapping[str, Any]]) -> str:
    """The engine or the way of a rule that training chose, its chunk, its time over the plain pass's, of the first run.

    "" if it is named. Then of every run: why torch did not compile the engine, and what was less for want of memory.
    """
    words: list[str] = []
    for made in environments:
        used, chunk = made.get("engine") or {}, made.get("chunk")
        name = used.get("clipping", used.get("way"))
        found = made.get("tried_engines")
        tried = found if isinstance(found, Mapping) else {}
        if made is environments[0] and tried and isinstance(name, str) and isinstance(chunk, int):
            words.append(engine_words(name, chunk, tried))
        refused = tried.get(COMPILED)
        words += [f"not compiled: {refused}"] if isinstance(refused, str) else []
        words += [note for key in ("memory", "stack") if isinstance(note := made.get(key), str)]
    return "; ".join(dict.fromkeys(words))


def _promises_first(rows: Sequence[Row]) -> tuple[str, ...]:
    """The accountants of a section: those with promises, then approximations, then those that refuse."""
    lines = [line for row in rows for line in row.guarantees]
    lines.sort(key=lambda line: 2 if line.kind is None else 0 if line.kind in PROMISES else 1)
    return tuple(dict.fromkeys(line.accountant for line in lines))


def _configuration(run: RunRecord) -> str:
    """What the seeds of one row share: the resolved run without its seed."""
    return json.dumps({key: value for key, value in run.resolved.items() if key != "seed"}, sort_keys=True)


def _variant(resolved: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> str:
    """How this configuration differs from the others of the same label."""
    flat, others = flatten(resolved), [flatten(rival) for rival in rivals]
    keys = [key for key in flat if key != "seed" and any(other.get(key) != flat[key] for other in others)]
    values = [re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1", str(flat[key])) for key in keys[:3]]  # hashes, cut
    names = [key.removeprefix("numerics.").removeprefix("dpbench.") for key in keys[:3]]
    return ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))


def _settings(run: RunRecord) -> Settings:
    resolved = run.resolved
    rate, steps = float(resolved["sampling_rate"]), int(resolved["steps"])
    return Settings(
        dataset=_described(_in_short(resolved["dataset"])),
        model=_described(resolved["model"]),
        mechanism=_described(resolved["mechanism"]),
        sampling_rate=rate,
        steps=steps,
        epochs=round(rate * steps, 6),
        learning_rate=resolved.get("learning_rate"),
        clip_norm=resolved.get("clip_norm"),
        noise_multiplier=resolved.get("noise_multiplier"),
        prepared=_described(resolved["dataset"]) if of_a_file(str(resolved["dataset"]["name"])) else None,
    )


def _in_short(dataset: Mapping[str, Any]) -> Mapping[str, Any]:
    """A dataset that is made of the user's file: its short parameters, and the hash that tells it from others."""
    if not of_a_file(str(dataset["name"])):
        return dataset
    given = dataset.get("parameters") or {}
    short = {name: value for name, value in given.items() if not isinstance(value, list | Mapping)}
    return {**dataset, "parameters": short | {"data": str(dataset.get("sha256"))[:8]}}


def _described(choice: Mapping[str, Any]) -> str:
    """A choice for people; a code's hash, which names what came from outside, is cut."""
    code, _, name = str(choice["name"]).rpartition(":")
    name = f"{name} (code {code[:8]})" if len(code) == 64 else str(choice["name"])
    parameters = ", ".join(f"{name} = {_value(value)}" for name, value in (choice.get("parameters") or {}).items())
    return f"{name} ({parameters})" if parameters else name


def _value(value: Any) -> str:
    """A parameter for people; the code's hash of a stage is cut as well."""
    if isinstance(value, Mapping) and "name" in value:
        code, _, name = str(value["name"]).rpartition(":")
        value = {**value, "name": f"{name} (code {code[:8]})" if len(code) == 64 else str(value["name"])}
    return in_short(value)


def _verdicts(
    metric: Metric,
    seeds: Sequence[Seed],
    context: Context,
    lines: Sequence[GuaranteeLine],
    barred: str | None,
    variant: str,
) -> tuple[Verdict, ...]:
    published, source = context.published, context.source or ""
    subject = " · ".join(filter(None, [context.name, context.label, variant]))
    found: list[Verdict] = []
    if published is None:
        return ()
    by_name = {line.accountant: line for line in lines}
    found += result_verdicts(subject, seeds, published, metric, asked=context.metrics, source=source, barred=barred)
    numbers = [("printed_mu", MU_ACCOUNTANT, published.mu)] if published.mu else []
    for check, name, number in [*numbers, *(("printed_epsilon", n, p) for n, p in published.epsilon.items())]:
        assert number is not None
        line = by_name.get(name)
        value = None if line is None else line.mu if check == "printed_mu" else line.epsilon
        reason = barred and f"not compared: {barred}"
        if not reason and name not in catalog("accountants"):
            reason = f"accountant {name!r} is not in the catalog"
        elif not reason and line is None:
            reason = "the runs are not private: there is no ledger"
        elif not reason and line is not None and line.refused:
            reason = f"{name} gives no number: {line.refused}"
        elif not reason and value is None:
            reason = f"{name} gives no {check.removeprefix('printed_')}"
        evidence = {"accountant": name, "printed": number.text}
        if reason or value is None or line is None:
            found.append(Verdict(check, subject, "not_run", str(reason), evidence, 0.0, source))
            continue
        certified = check == "printed_epsilon" and line.kind == "certified"
        bounds = {"lower": line.lower, "upper": line.upper} if certified else {}
        verdict = number_verdict(check, subject, value, number, source=source, **bounds)
        reason = f"{name} ({line.said or ''}): {verdict.reason}"
        found.append(replace(verdict, reason=reason, evidence={**verdict.evidence, **evidence}))
    return tuple(found)


def _curve(
    runs: Sequence[RunRecord], context: Context, shown: GuaranteeLine | None, accounted: Accounts, most: int
) -> tuple[CurveLine, ...]:
    """The evaluations that all seeds share; ε at up to `most` of them, the last always among them."""
    by_step = [{point.step: point for point in run.curve} for run in runs]
    steps = [step for step in by_step[0] if all(step in points for points in by_step)]
    chosen = set(steps[::-1][:: math.ceil(len(steps) / most)]) if steps and most else set()
    # The curve has the stack's clock; a run's own time is its share of that.
    whole = [run.curve[-1].seconds if run.curve else 0.0 for run in runs]
    shares = [
        run.own_seconds / seconds if run.own_seconds is not None and seconds > 0 else 1.0
        for run, seconds in zip(runs, whole, strict=True)
    ]
    ledger, delta = runs[0].ledger, context.delta
    lines = []
    for step in steps:
        points = [by[step] for by in by_step]
        seconds = [share * point.seconds for share, point in zip(shares, points, strict=True)]
        first = points[0]
        spent = {}
        if step in chosen and shown and ledger is not None and delta is not None and first.releases is not None:
            line = accounted.line(ledger, delta, shown.accountant, True, first.releases)
            if line.epsilon is not None and math.isfinite(line.epsilon):
                spent[line.accountant] = line.epsilon
        lines.append(
            CurveLine(
                epoch=first.epoch,
                step=step,
                seconds=math.fsum(seconds) / len(seconds),
                measured=spread([point.shown for point in points]),
                train_loss=_mean([point.train_loss for point in points]),
                test_loss=_mean([point.test_loss for point in points]),
                epsilon=spent,
            )
        )
    return tuple(lines)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _record_lines(
    places: Sequence[Place],
    sections: Sequence[Section],
    stale_modules: Mapping[str, tuple[str, ...]],
    shipped: Collection[str],
) -> tuple[RecordLine, ...]:
    """One line per record, even where several specs share it; the reader's own first."""
    rows = [row for section in sections for row in section.rows]
    row_of = {key: row.id for row in reversed(rows) for key in row.run_keys}  # the first of them
    lines: dict[str, RecordLine] = {}
    for run, context in places:
        around = run.environment
        lines.setdefault(
            run.run_key,
            RecordLine(
                run_key=run.run_key,
                name=context.name,
                label=context.label,
                seed=run.seed,
                row=row_of[run.run_key],
                measured=run.result.shown,
                metric_name=run.result.metric.name,
                steps=int(run.resolved["steps"]),
                device=str(around.get("device") or "not recorded"),
                device_name=str(around.get("device_name") or "not recorded"),
                seconds=run.seconds,
                own_seconds=run.own_seconds,
                stack_runs=run.stack_runs,
                commit=around.get("commit"),
                dirty=around.get("dirty"),
                time_utc=str(around.get("time_utc") or ""),
                resumed=run.resumed,
                stale=stale_modules.get(run.run_key, ()),
                reduced=context.reduced,
                shipped=run.run_key in shipped,
                trusted=taken_on_trust(run),
            ),
        )
    return tuple(sorted(lines.values(), key=lambda line: line.shipped))


def _environments(runs: Iterable[RunRecord]) -> tuple[EnvironmentLine, ...]:
    counts = Counter(json.dumps({name: run.environment.get(name) for name in _ENVIRONMENT}) for run in runs)
    return tuple(EnvironmentLine(json.loads(key), count) for key, count in counts.most_common())
