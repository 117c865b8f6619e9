"""What all verbs share: an option, and streams that may be closed or full."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import click

from dpbench.errors import DpbenchError, visible

Verb = Callable[..., Any]

allow_code = click.option(
    "--allow-code", is_flag=True, help="Load the code that files name as package.module:factory; trust them first."
)


THREADS = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Torch's threads on the CPU; no part of a run's key. Default: 1 for small work, else torch's own number.",
)


def with_executor(verb: Verb) -> Verb:
    """The options `--executor` and `--address`; the verb gets `ray`, a cluster or None."""

    @click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        is_eager=True,
        help="Who works: this machine, or the workers of a Ray cluster (pip install 'dpbench[ray]').",
    )
    @click.option(
        "--address",
        metavar="HOST:PORT",
        help="Of a running Ray cluster, or auto; default $RAY_ADDRESS, else one of this machine's processors.",
    )
    @functools.wraps(verb)
    def with_ray(*args: Any, executor: str, address: str | None, **options: Any) -> Any:
        from dpbench.training.workers import Ray

        if address is not None and executor != "ray":
            raise DpbenchError(f"--address {address}: is for --executor ray")
        return verb(*args, ray=Ray(address) if executor == "ray" else None, **options)

    return with_ray


def checked_device(context: click.Context, _parameter: click.Parameter, device: str | None) -> str | None:
    """A device that is here, as torch names it; with a Ray cluster it is there, and not looked for here."""
    if device is None or device == "cpu":
        return device
    import torch

    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise DpbenchError(f"--device {device}: expected cpu, cuda or cuda:n")
    if context.params.get("executor") == "ray":
        return kind  # Ray says which
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
