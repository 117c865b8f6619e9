"""One stack of runs, from its data to its records: what a computer does that is given the stack."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from dpbench.errors import DpbenchError, OutOfMemory, StoreError
from dpbench.plan.cache import Cache, cache_file
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Run, context
from dpbench.plan.stacks import usual_threads
from dpbench.store.provenance import device_name
from dpbench.store.records import Store, objection
from dpbench.training.execution import Execution, give_back_memory, on_threads
from dpbench.training.loop import Interrupted, Outcome, Progress, failure, train
from dpbench.training.memory import told_of_memory

Anew = Callable[[Run, str], None]


@dataclass(frozen=True)
class How:
    """How stacks are trained, whichever computer does it; no part of a run's key, because it must not change results.

    `data`: the folder of datasets; `threads`: torch's, None for `usual_threads`; the others are those of `Execution`.
    `smoke`: two steps of each run, and no files.
    """

    data: Path | None = None
    smoke: bool = False
    places_per_call: int | None = None
    engine: str | None = None
    compiles: bool = True
    threads: int | None = None
    checkpoint_seconds: float = Execution.checkpoint_seconds

    def threads_of(self, runs: Sequence[Run]) -> int:
        """Torch's threads for a stack."""
        examples = sum(one.sampling_rate * one.examples for one in runs)
        return self.threads or usual_threads(runs[0].spec, examples, runs[0].device)


def builder(first: Run) -> Callable[[], nn.Module]:
    """What makes the model of a run."""
    started = first.resolved["model"].get("weights", {}).get("sha256")
    return model_builder(first.spec, dataset_source(first.spec), started)


def trained(
    runs: Sequence[Run],
    how: How,
    store: Store | None,
    facts: Mapping[str, Any],
    *,
    watch: Callable[[Progress], None] = lambda _: None,
    anew: Anew = lambda _run, _why: None,
    stop: Callable[[], bool] = lambda: False,
    halved: str = "",
) -> Generator[tuple[Outcome, Path | None], None, None]:
    """Train the runs of a stack: every outcome as soon as its run ends, and the file that keeps it.

    Without a `store` nothing is written or gone on from. `facts` are the environment of the records, `halved` what
    they say where the runs are a part of a stack. The other three are those of `training.loop.train`, which says what
    is raised.
    """

    steps = {one.key: min(2, one.steps) if how.smoke else one.steps for one in runs}  # that are not known to be done

    def outcomes_of(due: Sequence[Run], anew: Anew, halved: str) -> Generator[Outcome, None, None]:
        """Load what the runs need and train them."""
        first, others = due[0], sum(left for key, left in steps.items() if key not in {one.key for one in due})

        def of_all(progress: Progress) -> None:
            """Tell of the whole stack where it is trained in halves."""
            watch(replace(progress, done=whole - others - progress.total + progress.done, total=whole))

        with told_of_memory():
            yield from train(
                due,
                dataset_source(first.spec).load(how.data),
                build_mechanism(first.spec),
                builder(first),
                Execution(
                    first.device,
                    how.places_per_call,
                    how.engine,
                    compiles=how.compiles,
                    checkpoint_seconds=how.checkpoint_seconds,
                ),
                checkpoints=None if store is None else store.checkpoints_folder,
                smoke=how.smoke,
                watch=of_all,
                anew=anew,
                stop=stop,
                cache=None if how.smoke else Cache(cache_file()),
                stack=halved,
            )

    whole, threads = sum(steps.values()), how.threads_of(runs)
    kept = _kept(runs, outcomes_of, store, {**facts, "tf32": False, "threads": threads}, anew, halved)
    while True:
        with on_threads(threads):  # not while the caller has the outcome
            try:
                found = next(kept)
            except StopIteration:
                give_back_memory()
                return
        steps[found[0].run.key] = 0
        yield found


def _kept(
    runs: Sequence[Run],
    outcomes_of: Callable[[Sequence[Run], Anew, str], Generator[Outcome, None, None]],
    store: Store | None,
    facts: Mapping[str, Any],
    anew: Anew,
    note: str,
) -> Generator[tuple[Outcome, Path | None], None, None]:
    """The outcomes of a stack and the files that keep them; no files without a store.

    A checkpoint may be anybody's, and what it cannot be refused for shows later. So a run that went on from one and
    fails, or whose record contradicts itself, is trained once more from its start; so are those that fell with it.
    A stack that finds too little memory goes on as two halves.
    """
    stacks = [{one.key: one for one in runs}]
    halved = dict.fromkeys(stacks[0], note)  # what is noted of runs whose stack was
    went_on = set() if store is None else {key for key in stacks[0] if store.has_checkpoint(key)}

    def told(one: Run, why: str) -> None:
        went_on.discard(one.key)
        anew(one, why)

    while stacks:
        due, again = stacks.pop(0), dict[str, Run]()
        outcomes = outcomes_of(tuple(due.values()), told, halved.get(next(iter(due)), ""))
        while due:
            spoiled = lacks = False
            try:
                ended = [next(outcomes)]
            except (Interrupted, StoreError, BrokenPipeError):
                raise
            except Exception as error:  # noqa: BLE001 - any other error fails the runs of the stack
                secure = any(one.spec.randomness == "secure" for one in due.values())
                lacks = isinstance(error, OutOfMemory)
                if lacks and len(due) > 1 and not secure:
                    stacks[:0] = _halves(due)
                    halved |= dict.fromkeys(due, f"halved: {len(due)} runs found no memory")
                    break
                ended = [replace(failure(one, error), stack=halved.get(key, "")) for key, one in due.items()]
                spoiled = not lacks and not went_on.isdisjoint(due)
            for outcome in ended:
                one = due.pop(outcome.run.key)
                if store is None:
                    yield outcome, None
                    continue
                record = record_of(outcome, facts)
                wrong = (outcome.error or objection(record)) if one.key in went_on and not lacks else ""
                if wrong or spoiled:
                    store.checkpoint_path(one.key).unlink(missing_ok=True)
                    again[one.key] = one
                    if wrong:
                        told(one, f"gone on from {store.checkpoint_path(one.key)}, it fails: {wrong}")
                else:
                    yield outcome, keep(record, outcome.run, store)
        outcomes.close()
        if due:  # the error is gone, but what it held of the whole stack is garbage that Python has not seen yet
            gc.collect()
        went_on -= again.keys()
        stacks += [again] if again else []


def _halves(due: Mapping[str, Run]) -> list[dict[str, Run]]:
    """Two stacks of the runs of one."""
    runs = list(due.items())
    return [dict(runs[: len(runs) // 2]), dict(runs[len(runs) // 2 :])]


def record_of(outcome: Outcome, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a finished run, or the failure of one that failed, as plain data."""
    run_ = outcome.run
    facts = {**facts, "time_utc": datetime.now(UTC).isoformat(timespec="seconds")}
    if run_.device == "cpu":
        facts |= {"device": "cpu", "device_name": facts.get("processor")}
    elif ":" in run_.device:  # not the first GPU
        facts |= {"device": run_.device, "device_name": device_name(run_.device)}
    facts["engine"] = {
        name: outcome.engine or value if name in ("clipping", "engine", "way") else value
        for name, value in run_.engine.items()
    }
    if outcome.chunk is not None:
        facts["chunk"] = outcome.chunk
    if outcome.memory:
        facts["memory"] = outcome.memory
    if outcome.stack:
        facts["stack"] = outcome.stack
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


def keep(record: Mapping[str, Any], run_: Run, store: Store) -> Path:
    """Write the record of a finished run (and forget its earlier failure), or the failure of one that failed.

    Its checkpoint is removed, unless it lacked memory.
    """
    try:
        path = store.write_failure(record) if "error" in record else store.write_run(record)
        if not str(record.get("error", "")).startswith(OutOfMemory.__name__):  # it goes on where there is more memory
            store.checkpoint_path(run_.key).unlink(missing_ok=True)
        return path
    except DpbenchError as error:
        raise StoreError(str(error)) from error
