"""The whole job: load specs, plan, train what is due, keep a record of every run, write the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.atomic import write_bytes
from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.plan.planning import Choices, Plan, Run, Stack, context, make_plan, with_checks
from dpbench.privacy.formatting import bound
from dpbench.spec.loading import Spec, load_specs
from dpbench.spec.trust import trust
from dpbench.store.check_records import code_of, described, read_checks
from dpbench.store.provenance import environment
from dpbench.store.records import Contents, Store
from dpbench.store.run_key import UNNAMED, shipped
from dpbench.store.shapes import Checked
from dpbench.training.workers import Ray

if TYPE_CHECKING:
    from dpbench.reporting.contents import Report
    from dpbench.training.loop import Outcome, Progress
    from dpbench.training.stack import How

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

    def again(self, stack: Stack, why: str) -> None:
        """The worker of these runs was lost, so others go on with them."""

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
    for. `results`: a line for each row of the specs in the report.
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
    results: tuple[str, ...] = ()

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
    ray: Ray | None = None,
    checkpoint_seconds: float = 30.0,
) -> Summary:
    """Train every run of the specs under `paths` that has no record in `out` yet, then write the report.

    Raises ProblemsError for bad specs and DpbenchError for an output folder that cannot be written, before anything
    runs. A run that fails is recorded as a failure and does not stop the others, unless `fail_fast`. With
    `choices.smoke` every run does two steps and nothing is written. `threads`: torch's threads on the CPU; None takes
    one for small work and torch's own number for the rest. `engine`: that clipping engine, whatever the specs say;
    None takes what they name, else the fastest, compiled by torch where `compiles` and it pays. `allow_code`: specs
    (and records in `out`) may name code as `package.module:factory`, which is imported and called. `weights_to`: a
    folder for the last weights of every run, which must be without privacy. `ray`: a cluster that trains, several
    stacks at a time; None trains here. `checkpoint_seconds`: the time between two checkpoints of a stack.

    >>> import dpbench
    >>> summary = dpbench.run(["specs/quickstart"], choices=Choices(smoke=True))  # doctest: +SKIP
    """
    begin = time.monotonic()
    if engine not in (None, *(engines := (*catalog("clipping"), *UNNAMED))):
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
        from dpbench.training.stack import How

        plan, checks = _checked(plan, store, choices, watcher)
        how = How(choices.data, choices.smoke, places_per_call, engine, compiles, threads, checkpoint_seconds)
        with closing(_outcomes(plan, store, how, ray, watcher, stop)) as outcomes:
            finished, failures, interrupted, weights = _work(outcomes, fail_fast, watcher, keeps)
    finally:
        watcher.close()
    done = {one.key for one in finished} | {failure.run.key for failure in failures}
    report: tuple[Path, ...] = ()
    report_error = None
    results: list[str] = []
    if not choices.smoke and not interrupted and (done or _older(Path(out) / "report.html", specs)):
        try:
            report = write_reports(
                store,
                plan,
                allow_code,
                specs=specs,
                progress=watcher.reporting,
                told=lambda report: results.extend(_results(report, plan)),
            )
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
        results=tuple(results),
    )


def _results(report: Report, plan: Plan) -> Iterator[str]:
    """The rows of the plan's runs in words: what they reached over how many seeds, and the ε that they promise."""
    from dpbench.reporting.rendering.view import by

    keys = {one.key for one in plan.runs}
    for section in report.sections:
        for row in section.rows if not section.shipped else ():
            if not keys.isdisjoint(row.run_keys):
                line = row.promised
                at = "without privacy" if not row.facts.private else "no ε is promised"
                if line is not None:
                    at = f"ε {bound(line.epsilon, line.kind)} ({by(line)})"
                seeds = len(row.seeds)
                reached = f"{row.reached} ({row.nothing_learned})" if row.nothing_learned else row.reached
                yield f"{row.full_title}: {row.metric.title} {reached}, {at}, {seeds} seed{'s' * (seeds > 1)}"


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
    told: Callable[[Report], None] = lambda _: None,
) -> tuple[Path, ...]:
    """Assess all records of the store and render them; the plan's specs say what their records are for.

    `specs` and `contents` are files that have been read already, whole: they are not read again.
    `allow_code`: accountants that the records name as `package.module:name` are loaded, otherwise they refuse.
    `progress` is called with the part that is being made, how much of it is done and of how much; `told` with the
    report.
    """
    from dpbench.conformance import read_conformance
    from dpbench.judging.claims.summary import claims_report
    from dpbench.reporting.collect import collect
    from dpbench.reporting.coverage import with_coverage
    from dpbench.reporting.page import write_report
    from dpbench.store.speed import read_speed

    overlay: dict[str, list[dict[str, Any]]] = {}
    for one in plan.runs if plan is not None else ():
        overlay.setdefault(one.key, []).append(context(one))
    contents = contents or store.read()
    damaged = list(contents.damaged)
    checks, conformance = read_checks(store.out, damaged), read_conformance(store.out, damaged)
    speed = read_speed(store.out, damaged)
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
    report = with_coverage(replace(report, claims=claims_report(store.out), speed=speed), specs)
    told(report)
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
    outcomes: Generator[tuple[Outcome, Path | None], None, None], fail_fast: bool, watcher: Watcher, keeps: Path | None
) -> tuple[list[Run], list[Failure], bool, list[Path]]:
    """What finished, what failed, whether it was interrupted, and the files of weights."""
    from dpbench.training.last_weights import keep_weights
    from dpbench.training.loop import Interrupted
    from dpbench.training.stack import builder

    finished: list[Run] = []
    failures: list[Failure] = []
    weights: list[Path] = []
    try:
        for outcome, path in outcomes:
            if outcome.error is None:
                finished.append(outcome.run)
                if keeps is not None:
                    weights.append(keep_weights(outcome, builder(outcome.run), keeps))
            else:
                failures.append(Failure(outcome.run, outcome.error, path))
            watcher.ended(outcome, path)
            if failures and fail_fast:
                break
    except Interrupted:
        return finished, failures, True, weights
    return finished, failures, False, weights


def _outcomes(
    plan: Plan, store: Store, how: How, ray: Ray | None, watcher: Watcher, stop: Callable[[], bool]
) -> Generator[tuple[Outcome, Path | None], None, None]:
    """Of all stacks: one after the other here, or several at a time on a cluster."""
    if ray is not None and plan.stacks:
        from dpbench.training.on_ray import trained_on_ray

        def begins(stack: Stack, number: int) -> None:
            watcher.stack(stack, number, len(plan.stacks))

        yield from trained_on_ray(
            plan.stacks,
            how,
            store,
            ray,
            watch=watcher.progress,
            begins=begins,
            anew=watcher.anew,
            again=watcher.again,
            stop=stop,
        )
        return
    from dpbench.training.stack import trained

    facts = environment(with_torch=True)  # now: a commit during the run changes nothing
    for number, stack in enumerate(plan.stacks, 1):
        watcher.stack(stack, number, len(plan.stacks))
        kept = None if how.smoke else store
        yield from trained(stack.runs, how, kept, facts, watch=watcher.progress, anew=watcher.anew, stop=stop)
