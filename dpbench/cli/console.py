"""What every verb writes with: paragraphs, JSON lines, progress."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from dpbench.privacy.formatting import duration

LINE_SECONDS = 30.0  # without a terminal: at least this between two lines of progress


def console() -> Console:
    """Standard output: as wide as the terminal, or 100 columns where there is none."""
    return Console(width=None if sys.stdout.isatty() else 100, highlight=False, markup=False, emoji=False)


def say(out: Console, text: str, indent: int = 0) -> None:
    """A paragraph, wrapped between words; lines after the first are indented."""
    lines = textwrap.wrap(text, out.width, subsequent_indent=" " * indent, break_on_hyphens=False)
    out.print("\n".join(lines), soft_wrap=True)


def time_words(seconds: float) -> str:
    """A short time.

    >>> time_words(0.00321), time_words(4.83e-05), time_words(2.0)
    ('3.2 ms', '0.05 ms', '2 s')
    """
    return f"{round(1000 * seconds, 2):.2g} ms" if seconds < 0.0995 else duration(seconds)


def emit(event: str, **facts: Any) -> None:
    """One line of JSON on standard output."""
    print(json.dumps({"event": event, **facts}, default=str, allow_nan=False), flush=True)


class Watch:
    """Progress on standard error: a bar on a terminal, else a line every LINE_SECONDS. `of`: what is counted."""

    def __init__(self, of: str = "points") -> None:
        self._of = of
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} " + of),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()

    def __enter__(self) -> Watch:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, name: str, done: int, of: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=of)
        self._bars.update(self._tasks[name], completed=done)
        if self._bars.disable and time.monotonic() - self._said > LINE_SECONDS:
            print(f"{name}: {done} of {of} {self._of}", file=sys.stderr, flush=True)
            self._said = time.monotonic()
