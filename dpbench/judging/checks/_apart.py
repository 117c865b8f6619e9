"""Work done in a process of its own, so that nothing it remembers reaches what comes after it."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Failed(Exception):
    """What the other process raised, in words, or that it died."""


def apart(work: Callable[[], Result]) -> Result:
    """The result of `work`, done in a copy of this process (`fork`), on one thread. Raises Failed where it raises.

    A number that it notes down in a module, an object or a file that it holds open is gone afterwards. Where a process
    cannot be copied (no `fork`, or CUDA is in use) the work is done here, and what it remembers stays.

    >>> noted: list[int] = []
    >>> apart(lambda: noted.append(1)), noted
    (None, [])
    """
    if not hasattr(os, "fork") or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return work()
    _imported()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the copy starts none
        child = os.fork()
    if child == 0:
        _answer(work, write)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read()
    finally:
        os.waitpid(child, 0)
    if not told:
        raise Failed("the process that looked at it died")
    done, result = torch.load(io.BytesIO(told), weights_only=False)
    if not done:
        raise Failed(result)
    found: Result = result
    return found


@cache
def _imported() -> None:
    """Have torch import what it imports at its first gradient of a batch: every copy would have to again."""
    torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(1, 1))


def _answer(work: Callable[[], Result], write: int) -> None:
    """In the copy: do the work, write the answer, end."""
    try:
        torch.set_num_threads(1)  # threads of the original are not in the copy: waiting for one would last for ever
        buffer = io.BytesIO()
        try:
            torch.save((True, work()), buffer)
        except BaseException as error:  # noqa: BLE001 - told to the original, which raises it
            buffer = io.BytesIO()
            torch.save((False, f"{type(error).__name__}: {error}"), buffer)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(buffer.getvalue())
    finally:
        os._exit(0)
