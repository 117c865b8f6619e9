"""Stacks as tasks of Ray: on the processors of this machine, or on those of a cluster that is running.

The driver is the process that was started; it alone writes records, and it keeps the checkpoints: workers send theirs,
so they need no folder in common with it. A stack whose worker is lost is given to another one with its checkpoints, in
two halves, one after the other, where Ray ended the worker for want of memory.
All that workers say goes through one actor, `Mailbox`, which tells them in turn whether to stop.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbench.atomic import write_bytes
from dpbench.errors import DpbenchError
from dpbench.plan.parts import dataset_source
from dpbench.plan.planning import Run, Stack
from dpbench.plan.stacks import MOST_PER_STACK
from dpbench.store.provenance import code_hash, environment
from dpbench.store.reading import read_json
from dpbench.store.records import Store, restored
from dpbench.training.loop import Interrupted, Outcome, Progress, failure
from dpbench.training.stack import How, keep, record_of, trained
from dpbench.training.workers import Cluster, Ray, WorkerLackedMemoryError, WorkerLostError, connected

GRACE = 15.0  # seconds for workers to save what they have begun, where a failure ends the work
EVERY = 0.5  # seconds between two messages of a stack about its progress
MOST_LOSSES = 3  # workers that a stack may lose one after the other without a new checkpoint or outcome


@dataclass(frozen=True)
class _Message:
    """What a worker says of stack `number`, given to it as the `attempt`-th: a `kind` and what belongs to it."""

    number: int
    attempt: int
    kind: str
    content: Any = None


class Mailbox:
    """Between the workers and the driver."""

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._stopping = False

    def tell(self, message: _Message) -> bool:
        """For workers. Returns whether they must stop."""
        self._messages.append(message)
        return self._stopping

    def take(self) -> list[_Message]:
        """For the driver: what has come since the last call."""
        taken, self._messages = self._messages, []
        return taken

    def stop(self) -> None:
        """For the driver: from now on every worker is told to stop."""
        self._stopping = True


class _Worker:
    """The side of the worker: a store of its own in a temporary folder, whose files it sends to the driver."""

    def __init__(self, number: int, attempt: int, tell: Callable[[_Message], bool], folder: Path) -> None:
        self._number, self._attempt, self._tell = number, attempt, tell
        self.store = Store(folder)
        self.stopping = False
        self._last, self._sent = time.monotonic(), self._stamps()

    def say(self, kind: str, content: Any = None) -> None:
        self.stopping |= self._tell(_Message(self._number, self._attempt, kind, content))

    def watch(self, progress: Progress) -> None:
        """Called after every step."""
        if time.monotonic() - self._last >= EVERY:
            self.send_checkpoints()
            self.say("progress", progress)
            self._last = time.monotonic()

    def send_checkpoints(self) -> None:
        """Those that were written since the last call."""
        now = self._stamps()
        new = {path.stem: path.read_bytes() for path, stamp in now.items() if self._sent.get(path) != stamp}
        self._sent = now
        if new:
            self.say("checkpoints", new)

    def _stamps(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.store.checkpoints_folder.glob("*.pt")}


def _work(
    number: int, attempt: int, runs: Sequence[Run], how: How, given: Mapping[str, bytes], halved: str, mailbox: Any
) -> None:
    """What a worker does with a stack: as `stack.trained`, with everything told to the driver."""
    import ray

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for key, content in given.items():
            write_bytes(store.checkpoint_path(key), content)
        worker = _Worker(number, attempt, lambda message: bool(ray.get(mailbox.tell.remote(message))), store.out)
        worker.say("begins")
        with contextlib.suppress(Interrupted):
            _refuse_other_code(runs)
            _refuse_absent_data(runs[0], how)
            for outcome, path in trained(
                runs,
                how,
                None if how.smoke else store,
                environment(with_torch=True),
                watch=worker.watch,
                anew=lambda run, why: worker.say("anew", (run.key, why.replace(f"{folder}/", ""))),
                stop=lambda: worker.stopping,
                halved=halved,
            ):
                record = None if path is None else restored(read_json(path))
                worker.say("ended", (outcome.run.key, outcome, record))
            return
        worker.send_checkpoints()


def _refuse_other_code(runs: Sequence[Run]) -> None:
    """Raise DpbenchError where this machine has other code than the driver, whose hashes the records would carry."""
    for run in runs:
        other = [name for name, digest in run.sources.items() if code_hash(name) != digest]
        if other:
            raise DpbenchError(
                f"this worker has another {', '.join(other)} than the machine that plans;"
                " install the same dpbench on all of them"
            )


def _refuse_absent_data(run: Run, how: How) -> None:
    """Raise DpbenchError where this machine lacks the dataset, before a checkpoint is taken for the cause."""
    source = dataset_source(run.spec)
    if source.missing(how.data):
        raise DpbenchError(f"this worker has no {run.spec.dataset.name} in its folder of datasets (--data)")


@dataclass
class _Task:
    """A stack in Ray: its runs that have not ended, and how often its worker was lost since it last had news.

    `done` of the `steps` of all its runs are known to be done; those of a run that has ended are, however it ended.
    At most `at_once` runs are `given` to a worker; `halved` is what their records say where a worker that had more of
    them was ended for want of memory.
    """

    stack: Stack
    runs: dict[str, Run]
    steps: int
    attempt: int = 0
    losses: int = 0
    begun: bool = False
    done: int = 0
    given: tuple[str, ...] = ()
    at_once: int = MOST_PER_STACK
    halved: str = ""


def trained_on_ray(
    stacks: Sequence[Stack],
    how: How,
    store: Store,
    ray: Ray,
    *,
    watch: Callable[[Progress], None] = lambda _: None,
    begins: Callable[[Stack, int], None] = lambda _stack, _number: None,
    anew: Callable[[Run, str], None] = lambda _run, _why: None,
    again: Callable[[Stack, str], None] = lambda _stack, _why: None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[tuple[Outcome, Path | None], None, None]:
    """Train all stacks on a cluster: every outcome as soon as its run ends, and the file that keeps it.

    `watch` gets the steps of all stacks together, `begins` a stack and its number (from 1) when a worker takes it,
    `again` why a stack is given to another worker. Raises Interrupted when `stop` became true before all had ended,
    with what the workers have saved in the store; DpbenchError where the cluster is not there or has no such device.
    """
    with connected(ray) as cluster:
        for gpu in {_on_gpu(stack) for stack in stacks}:
            if not cluster.most_cpus(gpu):
                of = "GPU beside a processor; use --device cpu" if gpu else "processor"
                raise DpbenchError(f"no machine of the Ray cluster has a {of}")
        yield from _Driver(cluster, stacks, how, store, watch, begins, anew, again).work(stop)


class _Driver:
    """The side of the driver."""

    def __init__(
        self,
        cluster: Cluster,
        stacks: Sequence[Stack],
        how: How,
        store: Store,
        watch: Callable[[Progress], None],
        begins: Callable[[Stack, int], None],
        anew: Callable[[Run, str], None],
        again: Callable[[Stack, str], None],
    ) -> None:
        self._cluster, self._store = cluster, store
        self._how = replace(how, data=None if how.data is None else how.data.absolute())  # workers are elsewhere
        self._watch, self._begins, self._anew, self._again = watch, begins, anew, again
        self._tasks = [_Task(one, {run.key: run for run in one.runs}, self._steps(one.runs)) for one in stacks]
        self._mailbox = cluster.actor(Mailbox)
        self._running: dict[Any, int] = {}  # tasks of Ray to the numbers of their stacks

    def work(self, stop: Callable[[], bool]) -> Generator[tuple[Outcome, Path | None], None, None]:
        """Until every task has ended."""
        stopping = False
        try:
            for number in range(len(self._tasks)):
                self._submit(number)
            while self._running:
                if stop() and not stopping:
                    stopping = True
                    self._stop()
                ended = self._cluster.ended(tuple(self._running), EVERY / 2)
                for message in self._cluster.result(self._mailbox.take.remote()):
                    yield from self._heard(message)
                for reference in ended:
                    yield from self._ended(self._running.pop(reference), reference, stopping)
        except GeneratorExit:  # a run failed and no other is wanted
            self._stop()
            self._wait()
            raise
        finally:
            if self._running:  # the driver has an error, or a worker did not end in time
                self._stop()
        if stopping and any(task.runs for task in self._tasks):
            raise Interrupted("interrupted; what the workers have saved is kept")

    def _steps(self, runs: Iterable[Run]) -> int:
        return sum(min(2, run.steps) if self._how.smoke else run.steps for run in runs)

    def _submit(self, number: int) -> None:
        task = self._tasks[number]
        task.attempt, task.begun, task.given = task.attempt + 1, False, tuple(task.runs)[: task.at_once]
        due = [task.runs[key] for key in task.given]
        runs = [replace(run, device="cuda") if _on_gpu(task.stack) else run for run in due]
        files = {} if self._how.smoke else {key: self._store.checkpoint_path(key) for key in task.given}
        given = {key: path.read_bytes() for key, path in files.items() if path.is_file()}
        threads = min(self._how.threads_of(task.stack.runs), self._cluster.most_cpus(_on_gpu(task.stack)))
        options = {"num_cpus": threads, "num_gpus": int(_on_gpu(task.stack)), "max_retries": 0}
        how = replace(self._how, threads=threads)
        called = number, task.attempt, runs, how, given, task.halved, self._mailbox
        reference = self._cluster.submit(_work, options, *called)
        self._running[reference] = number

    def _stop(self) -> None:
        """Workers save and end; what has not begun does not begin."""
        self._cluster.result(self._mailbox.stop.remote())
        for reference, number in self._running.items():
            if not self._tasks[number].begun:
                self._cluster.cancel(reference)

    def _wait(self) -> None:
        """For workers that were told to stop: what they send within GRACE is kept, and nobody else hears of it."""
        until = time.monotonic() + GRACE
        while self._running and time.monotonic() < until:
            ended = self._cluster.ended(tuple(self._running), EVERY / 2)
            for message in self._cluster.result(self._mailbox.take.remote()):
                for _ in self._heard(message):
                    pass
            for reference in ended:
                del self._running[reference]

    def _heard(self, message: _Message) -> Generator[tuple[Outcome, Path | None], None, None]:
        task = self._tasks[message.number]
        if message.attempt != task.attempt:
            return  # of a worker that is lost
        if message.kind == "begins":
            task.begun = True
            self._begins(self._given(task), message.number + 1)
        elif message.kind == "progress":
            waiting = self._steps(run for key, run in task.runs.items() if key not in task.given)
            self._left(task, message.content.total - message.content.done + waiting)
        elif message.kind == "checkpoints":
            task.losses = 0
            for key, content in message.content.items():
                if key in task.runs:
                    write_bytes(self._store.checkpoint_path(key), content)
        elif message.kind == "anew":
            self._anew(task.runs[message.content[0]], message.content[1])
        else:
            task.losses = 0
            key, outcome, record = message.content
            run = task.runs.pop(key)
            self._left(task, self._steps(task.runs.values()))
            yield replace(outcome, run=run), None if record is None else keep(record, run, self._store)

    def _ended(self, number: int, reference: Any, stopping: bool) -> Generator[tuple[Outcome, Path | None], None, None]:
        """A task of Ray is over: as it should be, or its worker is gone or could not begin."""
        task, why = self._tasks[number], self._cluster.error(reference)
        if stopping:
            return
        if why is not None:
            if self._goes_on(task, why):
                self._submit(number)
                return
            yield from self._failed(task, why)
        if task.runs and not self._given(task).runs:  # of a stack that goes on in parts
            task.losses = 0
            self._submit(number)

    def _failed(self, task: _Task, why: Exception) -> Generator[tuple[Outcome, Path | None], None, None]:
        """The runs that a worker had fail; their checkpoints stay, for it is the worker that failed."""
        for run in self._given(task).runs:
            outcome, path = replace(failure(run, why), stack=task.halved), None
            if not self._how.smoke:
                path = self._store.write_failure(record_of(outcome, environment(with_torch=True)))
            del task.runs[run.key]
            self._left(task, self._steps(task.runs.values()))
            yield outcome, path

    def _goes_on(self, task: _Task, why: Exception) -> bool:
        """Whether what a worker had is given to another one; half of it where it lacked memory.

        With `randomness: secure` a lack of memory is the end: another draw would favour small batches.
        """
        given, task.losses = self._given(task), task.losses + 1
        lacked = isinstance(why, WorkerLackedMemoryError)
        if lacked and any(run.spec.randomness == "secure" for run in given.runs):
            return False
        if lacked and len(given.runs) > 1:
            task.at_once, task.losses = (len(given.runs) + 1) // 2, 0
            task.halved = f"halved: the worker of {len(given.runs)} runs was ended for want of memory"
            self._again(given, f"{why}; its runs go on in halves")
            return True
        if isinstance(why, WorkerLostError) and task.losses < MOST_LOSSES:
            self._again(given, str(why))
            return True
        return False

    @staticmethod
    def _given(task: _Task) -> Stack:
        """What a worker has of a stack, without the runs that have ended."""
        return Stack(tuple(task.runs[key] for key in task.given if key in task.runs))

    def _left(self, task: _Task, steps: int) -> None:
        """At most so many steps of a stack are left: `watch` is told, once a worker has taken the stack."""
        task.done = max(task.done, task.steps - steps)
        if task.begun:
            done, total = sum(one.done for one in self._tasks), sum(one.steps for one in self._tasks)
            self._watch(Progress(done, total, sum(len(one.runs) for one in self._tasks if one.begun)))


def _on_gpu(stack: Stack) -> bool:
    return stack.runs[0].device.startswith("cuda")
