"""Runs work in a separate process, so that it leaves no state behind."""

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
    """The exception of the other process, in words, or that it died."""


def apart(work: Callable[[], Result]) -> Result:
    """The result of `work`, run in a copy of this process (`fork`) on one thread. Raises Failed if `work` raises.

    What it stores in modules and objects is lost afterwards. Where the process cannot be copied (no `fork`, or CUDA is
    in use) the work runs here and its stored state stays.

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
            answer = pipe.read()
    finally:
        os.waitpid(child, 0)
    if not answer:
        raise Failed("the process of the check died")
    done, result = torch.load(io.BytesIO(answer), weights_only=False)
    if not done:
        raise Failed(result)
    found: Result = result
    return found


@cache
def _imported() -> None:
    """Import what torch imports at its first gradient of a batch, so that not every copy has to."""
    torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(1, 1))


def _answer(work: Callable[[], Result], write: int) -> None:
    """In the copy: do the work, write the answer, end."""
    try:
        torch.set_num_threads(1)  # the copy has no threads of the original: waiting for one would never end
        buffer = io.BytesIO()
        try:
            torch.save((True, work()), buffer)
        except BaseException as error:  # noqa: BLE001 - sent to the original, which raises it
            buffer = io.BytesIO()
            torch.save((False, f"{type(error).__name__}: {error}"), buffer)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(buffer.getvalue())
    finally:
        os._exit(0)
