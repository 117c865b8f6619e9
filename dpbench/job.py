"""The whole job: load specs, plan, train what is due, keep a record of every run, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.atomic import write_bytes
from dpbench.catalog import catalog
from dpbench.errors import DpbenchError, StoreError
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, Plan, Run, Stack, context, make_plan, with_checks
from dpbench.spec.loading import Spec, load_specs
from dpbench.spec.trust import trust
from dpbench.store.check_records import code_of, described, read_checks
from dpbench.store.provenance import environment
from dpbench.store.records import Checked, Contents, Store, objection
from dpbench.store.run_key import COMPILED, shipped

if TYPE_CHECKING:
    from torch import nn

    from dpbench.training.loop import Outcome, Progress

__all__ = ["Failure", "Summary", "Watcher", "run"]


class Watcher:
    """Receives the events of a job. Every method does nothing unless it is overridden.

    `every_epsilon`: whether `planned` needs the ε of runs that are not due, which takes seconds where specs are many.
    """

    every_epsilon = True

    def planning(self, what: str, done: int, of: int) -> None:
        """The plan is being made: so much of one part of it is done."""

    def planned(self, plan: Plan) -> None:
        """The plan is made; nothing has run yet."""

    def checking(self, name: str) -> None:
        """The check of a mechanism that is not shipped begins; it takes some seconds."""

    def checked(self, name: str, found: Checked) -> None:
        """The verdict of its checks."""

    def stack(self, stack: Stack, number: int, of: int) -> None:
        """Stack `number` of `of` starts."""

    def progress(self, progress: Progress) -> None:
        """The stack has done a step."""

    def anew(self, run: Run, why: str) -> None:
        """The checkpoint of an unfinished run cannot be used, so the run starts anew."""

    def ended(self, outcome: Outcome, path: Path | None) -> None:
        """A run has ended; `path` is its record or its failure, None in a smoke test."""

    def reporting(self, what: str, done: int, of: int) -> None:
        """The report is being made: so much of one part of it is done."""

    def close(self) -> None:
        """The work is over, or an error ends it."""


@dataclass(frozen=True)
class Failure:
    """A run that failed, the error in one line, and the file with its traceback."""

    run: Run
    error: str
    log: Path | None


@dataclass(frozen=True)
class Summary:
    """What a job did. `unfinished` were due and not reached (interrupted, or stopped by `fail_fast`).

    `shipped`: how many records came with the project, in OUT/published. `weights`: the files that `weights_to` asked
    for.
    """

    plan: Plan
    finished: tuple[Run, ...] = ()
    failures: tuple[Failure, ...] = ()
    unfinished: tuple[Run, ...] = ()
    interrupted: bool = False
    seconds: float = 0.0
    report: tuple[Path, ...] = ()
    report_error: str | None = None
    checks: tuple[tuple[str, Checked], ...] = ()
    shipped: int = 0
    weights: tuple[Path, ...] = ()

    def count(self, action: str) -> int:
        """How many runs; rows of specs that ask for the same one count once."""
        return len({run.key for run in self.plan.runs if run.action == action})

    @property
    def exit_status(self) -> int:
        """0: all that was due finished; 1: something failed, or a mechanism was refuted; 130: interrupted."""
        refuted = any(found.verdict == "refuted" for _, found in self.checks)
        return 130 if self.interrupted else 1 if self.failures or self.report_error or refuted else 0


def run(
    paths: Sequence[str | Path],
    *,
    out: str | Path = "reports",
    choices: Choices | None = None,
    fail_fast: bool = False,
    places_per_call: int | None = None,
    engine: str | None = None,
    compiles: bool = True,
    threads: int | None = None,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
    allow_code: bool = False,
    weights_to: str | Path | None = None,
) -> Summary:
    """Train every run of the specs under `paths` that has no record in `out` yet, then write the report.

    Raises ProblemsError for bad specs and DpbenchError for an output folder that cannot be written, before anything
    runs. A run that fails is recorded as a failure and does not stop the others, unless `fail_fast`. With
    `choices.smoke` every run does two steps and nothing is written. `threads`: torch's threads on the CPU; None takes
    one for small work and torch's own number for the rest. `engine`: that clipping engine, whatever the specs say;
    None takes what they name, else the fastest, compiled by torch where `compiles` and it pays. `allow_code`: specs
    (and records in `out`) may name code as `package.module:factory`, which is imported and called. `weights_to`: a
    folder for the last weights of every run, which must be without privacy.

    >>> import dpbench
    >>> summary = dpbench.run(["specs/quickstart"], choices=Choices(smoke=True))  # doctest: +SKIP
    """
    begin = time.monotonic()
    if engine not in (None, *(engines := (*catalog("clipping"), COMPILED))):
        raise DpbenchError(f"engine = {engine}: expected one of {', '.join(engines)}")
    choices = choices or Choices()
    watcher = watcher or Watcher()
    specs = load_specs([Path(path) for path in paths], allow_code)
    store = Store(Path(out))
    try:
        plan = make_plan(specs, store, choices, every_epsilon=watcher.every_epsilon, progress=watcher.planning)
    except BaseException as error:
        watcher.close()
        if isinstance(error, DpbenchError) and not choices.smoke:
            _try_to_write(Path(out))  # on a full disk torch fails first, with an error that blames the model
        raise
    keeps = None if weights_to is None or choices.smoke else Path(weights_to)
    if keeps is not None:
        from dpbench.training.last_weights import refuse_to_keep

        refuse_to_keep(plan.runs)
    if plan.stacks and not choices.smoke:
        _prepare(store, plan, afresh=choices.force)
    watcher.planned(plan)
    try:
        plan, checks = _checked(plan, store, choices, watcher)
        finished, failures, interrupted, weights = _work(
            plan, store, choices, fail_fast, places_per_call, engine, compiles, threads, watcher, stop, keeps
        )
    finally:
        watcher.close()
    done = {one.key for one in finished} | {failure.run.key for failure in failures}
    report: tuple[Path, ...] = ()
    report_error = None
    if not choices.smoke and not interrupted and (done or _older(Path(out) / "report.html", specs)):
        try:
            report = write_reports(store, plan, allow_code, specs=specs, progress=watcher.reporting)
        except DpbenchError as error:  # the results are written already, and are still reported
            report_error = str(error)
        finally:
            watcher.close()
    return Summary(
        plan=plan,
        finished=tuple(finished),
        failures=tuple(failures),
        unfinished=tuple(one for stack in plan.stacks for one in stack.runs if one.key not in done),
        interrupted=interrupted,
        seconds=time.monotonic() - begin,
        report=report,
        report_error=report_error,
        checks=checks,
        shipped=len(list(store.published_folder.glob("*.json"))),
        weights=tuple(weights),
    )


def _try_to_write(out: Path) -> None:
    """Raise DpbenchError where nothing can be written in `out`, or in the folder that it would be made in."""
    folder = next(one for one in (out, *out.absolute().parents) if one.exists())
    _tried(folder / ".dpbench-try")


def _tried(path: Path) -> None:
    """Write a file and remove it; another run, which tries the same at the same time, may have removed it before."""
    write_bytes(path, 4096 * b"x").unlink(missing_ok=True)


def write_reports(
    store: Store,
    plan: Plan | None = None,
    allow_code: bool = False,
    *,
    specs: Sequence[Spec] = (),
    contents: Contents | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Path, ...]:
    """Assess all records of the store and render them; the plan's specs say what their records are for.

    `specs` and `contents` are files that have been read already, whole: they are not read again.
    `allow_code`: accountants that the records name as `package.module:name` are loaded, otherwise they refuse.
    `progress` is called with the part that is being made, how much of it is done and of how much.
    """
    from dpbench.conformance import read_conformance
    from dpbench.judging.claims.summary import claims_report
    from dpbench.reporting.collect import collect
    from dpbench.reporting.coverage import with_coverage
    from dpbench.reporting.page import write_report

    overlay: dict[str, list[dict[str, Any]]] = {}
    for one in plan.runs if plan is not None else ():
        overlay.setdefault(one.key, []).append(context(one))
    contents = contents or store.read()
    damaged = list(contents.damaged)
    checks, conformance = read_checks(store.out, damaged), read_conformance(store.out, damaged)
    unused = {item.path for item in damaged}
    own = {path.stem for path in store.records_folder.glob("*.json") if path not in unused}
    report = collect(
        contents.runs,
        contents.failures,
        overlay,
        damaged=damaged,
        checks=checks,
        shipped={run.run_key for run in contents.runs} - own,
        conformance=conformance,
        progress=progress,
        trusted=trust(allow_code),
    )
    report = with_coverage(replace(report, claims=claims_report(store.out)), specs)
    return tuple(write_report(report, store.out, progress))


def _older(report: Path, specs: Sequence[Spec]) -> bool:
    """Whether the report is missing, or older than one of the specs."""
    if not report.exists():
        return True
    files = [Path(spec.file) for spec in specs]
    return any(file.stat().st_mtime > report.stat().st_mtime for file in files if file.exists())


def _prepare(store: Store, plan: Plan, *, afresh: bool) -> None:
    """Clean up after killed runs, and check before training that the folders can be written.

    `afresh` deletes the checkpoints of interrupted runs that are trained again.
    """
    store.clean()
    for folder in (store.records_folder, store.failures_folder, store.checkpoints_folder):
        _tried(folder / ".probe")
    for one in plan.runs:
        store.make_way(one.key)
        if one.action == "exists" or (afresh and one.action == "train"):
            store.checkpoint_path(one.key).unlink(missing_ok=True)


def _checked(
    plan: Plan, store: Store, choices: Choices, watcher: Watcher
) -> tuple[Plan, tuple[tuple[str, Checked], ...]]:
    """Check the mechanisms of due runs that are not shipped and have no stored verdict, once for each code."""
    due: dict[str, tuple[Run, Checked]] = {}
    for one in () if choices.smoke else (one for stack in plan.stacks for one in stack.runs):
        if one.checked is not None and not _is_shipped(one):
            code = code_of(one.spec.mechanism.name, one.spec.mechanism.parameters).hash
            if code not in due or due[code][0].steps < one.steps:
                due[code] = one, one.checked
    found: list[tuple[str, Checked]] = []
    for one in plan.runs:  # those that have run before keep their verdict
        has_run = one.action == "exists" and not _is_shipped(one)
        if has_run and one.checked is not None and one.checked.verdict == "refuted":
            title = described(one.spec.mechanism.name, one.spec.mechanism.parameters)
            if (title, one.checked) not in found:
                watcher.checked(title, one.checked)
                found.append((title, one.checked))
    if not due:
        return plan, tuple(found)
    for one, checked in due.values():
        mechanism = one.spec.mechanism
        title = described(mechanism.name, mechanism.parameters)
        if checked.verdict == "unchecked" and checked.planned is None:
            from dpbench.judging.checking import check_mechanism

            watcher.checking(title)
            checked = check_mechanism(mechanism.name, mechanism.parameters, one.steps, out=store.out)[1].checked
            watcher.checked(title, checked)
        found.append((title, checked))
    runs = with_checks(plan.runs, store.out)
    known = {one.key: one.checked for one in runs}
    stacks = (tuple(replace(one, checked=known[one.key]) for one in stack.runs) for stack in plan.stacks)
    return Plan(runs, tuple(map(Stack, stacks))), tuple(found)


def _is_shipped(one: Run) -> bool:
    """Whether a run's mechanism is dpbench's own: it is not checked here, and a refuted variant is no mistake."""
    return shipped({"name": one.spec.mechanism.name, "parameters": one.spec.mechanism.parameters})


def _work(
    plan: Plan,
    store: Store,
    choices: Choices,
    fail_fast: bool,
    places_per_call: int | None,
    engine: str | None,
    compiles: bool,
    threads: int | None,
    watcher: Watcher,
    stop: Callable[[], bool],
    keeps: Path | None,
) -> tuple[list[Run], list[Failure], bool, list[Path]]:
    from dpbench.training.last_weights import keep_weights
    from dpbench.training.loop import Execution, Interrupted, on_threads, train, usual_threads

    def builder(first: Run) -> Callable[[], nn.Module]:
        started = first.resolved["model"].get("weights", {}).get("sha256")
        return model_builder(first.spec, dataset_source(first.spec), started)

    def outcomes_of(runs: Sequence[Run], anew: Anew) -> Generator[Outcome, None, None]:
        """Load what the runs of a stack need and train them."""
        first = runs[0]
        yield from train(
            runs,
            dataset_source(first.spec).load(choices.data),
            build_mechanism(first.spec),
            builder(first),
            Execution(first.device, places_per_call, engine, compiles),
            checkpoints=None if choices.smoke else store.checkpoints_folder,
            smoke=choices.smoke,
            watch=watcher.progress,
            anew=anew,
            stop=stop,
        )

    shared = environment(with_torch=True) | {"tf32": False}  # now: a commit during the run changes nothing
    finished: list[Run] = []
    failures: list[Failure] = []
    weights: list[Path] = []
    for number, stack in enumerate(plan.stacks, 1):
        watcher.stack(stack, number, len(plan.stacks))
        examples = sum(one.sampling_rate * one.examples for one in stack.runs)
        facts = shared | {"threads": threads or usual_threads(stack.runs[0].spec, examples, stack.runs[0].device)}
        kept = _kept(stack.runs, outcomes_of, None if choices.smoke else store, facts, watcher.anew)
        while True:
            try:
                with on_threads(facts["threads"]):
                    outcome, path = next(kept)
            except StopIteration:
                break
            except Interrupted:
                return finished, failures, True, weights
            if outcome.error is None:
                finished.append(outcome.run)
                if keeps is not None:
                    weights.append(keep_weights(outcome, builder(stack.runs[0]), keeps))
            else:
                failures.append(Failure(outcome.run, outcome.error, path))
            watcher.ended(outcome, path)
            if failures and fail_fast:
                kept.close()
                return finished, failures, False, weights
    return finished, failures, False, weights


Anew = Callable[[Run, str], None]


def _kept(
    runs: Sequence[Run],
    outcomes_of: Callable[[Sequence[Run], Anew], Generator[Outcome, None, None]],
    store: Store | None,
    facts: Mapping[str, Any],
    anew: Anew,
) -> Generator[tuple[Outcome, Path | None], None, None]:
    """The outcomes of a stack and the files that keep them; no files without a store.

    A checkpoint may be anybody's, and what it cannot be refused for shows later. So a run that went on from one and
    fails, or whose record contradicts itself, is trained once more from its start; so are those that fell with it.
    """
    from dpbench.training.loop import Interrupted, failure

    due = {one.key: one for one in runs}
    went_on = set() if store is None else {key for key in due if store.has_checkpoint(key)}

    def told(one: Run, why: str) -> None:
        went_on.discard(one.key)
        anew(one, why)

    while due:
        again: dict[str, Run] = {}
        outcomes = outcomes_of(tuple(due.values()), told)
        while due:
            spoiled = False
            try:
                ended = [next(outcomes)]
            except (Interrupted, StoreError, BrokenPipeError):
                raise
            except Exception as error:  # noqa: BLE001 - any error fails the runs of the stack
                ended = [failure(one, error) for one in due.values()]
                spoiled = not went_on.isdisjoint(due)
            for outcome in ended:
                one = due.pop(outcome.run.key)
                if store is None:
                    yield outcome, None
                    continue
                record = _record(outcome, facts)
                wrong = (outcome.error or objection(record)) if one.key in went_on else ""
                if wrong or spoiled:
                    store.checkpoint_path(one.key).unlink(missing_ok=True)
                    again[one.key] = one
                    if wrong:
                        told(one, f"gone on from {store.checkpoint_path(one.key)}, it fails: {wrong}")
                else:
                    yield outcome, _keep(record, outcome.run, store)
        outcomes.close()
        due, went_on = again, set()


def _record(outcome: Outcome, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a finished run, or the failure of one that failed, as plain data."""
    run_ = outcome.run
    facts = {**facts, "time_utc": datetime.now(UTC).isoformat(timespec="seconds")}
    if run_.device == "cpu":
        facts |= {"device": "cpu", "device_name": facts.get("processor")}
    facts["engine"] = {
        name: outcome.engine or value if name in ("clipping", "engine") else value
        for name, value in run_.engine.items()
    }
    if outcome.chunk is not None:
        facts["chunk"] = outcome.chunk
    if outcome.tried:
        facts["tried_engines"] = dict(outcome.tried)
    common: dict[str, Any] = {
        "run_key": run_.key,
        "seed": run_.seed,
        "resolved": dict(run_.resolved),
        "context": context(run_),
        "sources": dict(run_.sources),
        "environment": facts,
    }
    if run_.checked is not None:
        common["checked"] = vars(run_.checked)
    story = {"error": outcome.error, "traceback": outcome.traceback, "step": outcome.step}
    return common | (story if outcome.result is None else dict(outcome.result))


def _keep(record: Mapping[str, Any], run_: Run, store: Store) -> Path:
    """Write the record of a finished run (and forget its earlier failure), or the failure of one that failed."""
    try:
        path = store.write_failure(record) if "error" in record else store.write_run(record)
        store.checkpoint_path(run_.key).unlink(missing_ok=True)
        return path
    except DpbenchError as error:
        raise StoreError(str(error)) from error
