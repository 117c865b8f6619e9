"""Calls that do not depend on each other, in processes of their own: on this machine, or as tasks of a Ray cluster.

`spread` is for calls that give one result each; training, which has more to say while it runs, uses `connected`
(on_ray.py). Ray is an extra: pip install 'dpbench[ray]'.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from dpbench.errors import DpbenchError, visible

PATIENCE = 10.0  # seconds for the first answer of a cluster


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: `address` of a running one ("auto" finds that of this machine); None makes one of this machine.

    What is made is shut down with the work. The environment variable RAY_ADDRESS counts where there is no `address`.
    """

    address: str | None = None


def spread(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], workers: int = 1, ray: Ray | None = None
) -> Generator[Any, None, None]:
    """The results of `function(*call)` for every call, as they end; in turn, in this process, for one worker.

    With `ray` every call is a task on one CPU, repeated where its worker is lost, and `workers` does not count. Other
    processes import `function` by its name. The first error ends the work and is raised.

    >>> list(spread(pow, [(2, 3), (3, 2)]))
    [8, 9]
    """
    if ray is not None:
        yield from _in_cluster(function, calls, ray)
    elif workers == 1 or len(calls) < 3:
        yield from (function(*call) for call in calls)
    else:
        yield from _in_processes(function, calls, workers)


def _in_processes(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], workers: int
) -> Generator[Any, None, None]:
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet)
    try:
        for future in as_completed([pool.submit(function, *call) for call in calls]):
            yield future.result()
    except BaseException:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _quiet() -> None:
    """Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_cluster(function: Callable[..., Any], calls: Sequence[Sequence[Any]], ray: Ray) -> Generator[Any, None, None]:
    with connected(ray) as cluster:
        waiting = [cluster.submit(function, {"num_cpus": 1}, *call) for call in calls]
        try:
            while waiting:
                ended = cluster.ended(waiting, None)
                waiting = [one for one in waiting if one not in ended]
                for one in ended:
                    yield cluster.result(one)
        finally:
            for one in waiting:
                cluster.cancel(one)


def _called(paths: Sequence[str], function: Callable[..., Any], *arguments: Any) -> Any:
    """The only function that Ray knows, for it would send another one with every task; on the caller's import path."""
    sys.path += [path for path in paths if path not in sys.path]
    return function(*arguments)


class WorkerLostError(DpbenchError):
    """A worker ended before its task: killed, out of memory, or its machine is gone."""


class WorkerLackedMemoryError(WorkerLostError):
    """Ray ended a worker because its machine had too little memory left."""


class Cluster:
    """A connection to Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._called = ray.remote(_called)
        self._nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def most_cpus(self, gpu: bool) -> int:
        """The processors of one machine, of those with a GPU if `gpu`; 0 where there is none."""
        return max((int(node.get("CPU", 0)) for node in self._nodes if not gpu or node.get("GPU", 0) >= 1), default=0)

    def actor(self, kind: type) -> Any:
        """An object of a class, in a process of its own on the machine of the caller."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return self._ray.remote(kind).options(num_cpus=0, scheduling_strategy=here).remote()

    def submit(self, function: Callable[..., Any], options: dict[str, Any], *arguments: Any) -> Any:
        """A task, which starts when the resources in its options are free."""
        return self._called.options(**options).remote(sys.path, function, *arguments)

    def ended(self, tasks: Sequence[Any], seconds: float | None) -> list[Any]:
        """Those that have ended by now; waits for the first one, at most so many seconds."""
        ready, _ = self._ray.wait(list(tasks), num_returns=1, timeout=seconds)
        more, _ = self._ray.wait(list(tasks), num_returns=len(tasks), timeout=0)
        return list(more) if ready else []

    def result(self, task: Any) -> Any:
        """What a task or a call of an actor returned. Raises what it raised, or WorkerLostError."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            why = visible(str(error).splitlines()[0].partition(" This can happen")[0])
            lacked = isinstance(error, self._ray.exceptions.OutOfMemoryError)
            raise (WorkerLackedMemoryError if lacked else WorkerLostError)(f"its worker was lost: {why}") from error

    def error(self, task: Any) -> Exception | None:
        """What `result` raises, which may be anything; None where it raises nothing."""
        try:
            self.result(task)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def cancel(self, task: Any) -> None:
        """A task that has not started does not start; one that has is interrupted."""
        self._ray.cancel(task)


@contextmanager
def connected(ray: Ray) -> Iterator[Cluster]:
    """A connection to a cluster, closed at the end; one that stands already is used and stays.

    Raises DpbenchError where Ray is not installed or the cluster does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it warns where this is not set
    try:
        import ray as library
    except ImportError as error:
        raise DpbenchError("--executor ray: Ray is not installed; pip install 'dpbench[ray]'") from error
    if library.is_initialized():
        yield Cluster(library)
        return
    address = ray.address or os.environ.get("RAY_ADDRESS") or "local"
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "//" not in host:
            socket.create_connection((host, int(port)), PATIENCE).close()  # Ray itself tries for many minutes
        at_sigterm = signal.getsignal(signal.SIGTERM)
        library.init(address=address, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        why = visible(str(error).strip().splitlines()[0])
        if "InvalidAuthToken" in str(error.__cause__ or error.__context__):
            why += "; it asks for a token: RAY_AUTH_MODE=token, with its head's ~/.ray/auth_token on this machine"
        raise DpbenchError(f"--address {address}: no Ray cluster answers ({why})") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, at_sigterm)  # Ray ends the program there, and what the caller does is lost
    # Of a lost machine Ray would print the last log, on the caller's standard output.
    within: Any = library._private.worker
    printer, within.print_to_stdstream = getattr(within, "print_to_stdstream", None), lambda *_, **__: None
    try:
        yield Cluster(library)
    finally:
        within.print_to_stdstream = printer
        library.shutdown()
