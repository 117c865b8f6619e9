"""A hard time limit for the command line: jobs run in another process, which is killed when one takes too long.

The process is a fork, so jobs may be any callables and nothing is imported twice; results are pickled. There is no
limit on other systems than Linux, where forks are not safe.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from dpbench.errors import DpbenchError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Stopped:
    """A job without a result, and the reason."""

    reason: str


def capped(
    jobs: Sequence[Callable[[], Result]], seconds: float, before: Callable[[int], None] | None = None
) -> Iterator[Result | Stopped]:
    """What each job returns, in order; `Stopped` for one that takes longer than `seconds`, or whose process ends.

    `before` is called with the index of each job when it starts. Raises DpbenchError where a job does.

    >>> list(capped([lambda: 1, lambda: 1 + 1], 20))
    [1, 2]
    """
    place = 0
    while place < len(jobs):
        if sys.platform != "linux":
            if before is not None:
                before(place)
            yield jobs[place]()
            place += 1
            continue
        receiver, sender = get_context("fork").Pipe(duplex=False)
        process = get_context("fork").Process(target=_work, args=(jobs[place:], sender), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the threads of NumPy's library
            process.start()
        sender.close()
        try:
            found: Any = None
            while place < len(jobs) and not isinstance(found, Stopped):
                if before is not None:
                    before(place)
                found = _received(receiver, seconds)
                if isinstance(found, DpbenchError):
                    raise found
                yield found
                place += 1
        finally:
            process.kill()
            process.join()
            receiver.close()


def _received(receiver: Connection, seconds: float) -> Any:
    try:
        if not receiver.poll(seconds):
            return Stopped(f"took longer than {seconds:g} s and was stopped")
        return receiver.recv()
    except EOFError:
        return Stopped("its process ended without an answer, perhaps for lack of memory")


def _work(jobs: Sequence[Callable[[], Any]], sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a message; the parent writes one
    warnings.simplefilter("ignore", RuntimeWarning)  # overflow at extreme parameters: the answers are checked
    for job in jobs:
        try:
            found: Any = job()
        except DpbenchError as error:
            found = error
        try:
            sender.send(found)
        except BrokenPipeError:  # the parent reads no more
            break
    sender.close()
    os._exit(0)  # skip the parent's exit handlers and buffers
