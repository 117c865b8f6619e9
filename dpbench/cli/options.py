"""What all verbs share: an option, and streams that may be closed or full."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import click

from dpbench.errors import DpbenchError, visible

allow_code = click.option(
    "--allow-code", is_flag=True, help="Load the code that files name as package.module:factory; trust them first."
)


THREADS = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Torch's threads on the CPU; no part of a run's key. Default: 1 for small work, else torch's own number.",
)


def checked_device(_context: click.Context, _parameter: click.Parameter, device: str | None) -> str | None:
    """A device that is here, as torch names it."""
    if device is None or device == "cpu":
        return device
    import torch

    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise DpbenchError(f"--device {device}: expected cpu, cuda or cuda:n")
    if int(number or 0) >= torch.cuda.device_count():
        raise DpbenchError(f"--device {device}: torch sees {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return device


def with_streams() -> None:
    """See to it that standard error can be written. Raises DpbenchError where standard output is closed.

    The numbers of closed streams are taken first: the next file that is opened would get them, and what a library
    writes to its standard error would stand in that file.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(free)
    closed = sys.stdout is None
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if closed:
        raise DpbenchError("standard output is closed, nothing was done; send it to a file, or to /dev/null")


def say_error(text: str) -> None:
    """A message on standard error, its control characters written out; silent where that cannot be written."""
    try:
        click.echo(visible(text), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
