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
