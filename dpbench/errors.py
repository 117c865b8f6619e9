"""Errors for users: each says what was given, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DpbenchError(Exception):
    """Bad input or an unusable environment; the command line prints it without a traceback and exits with 2."""


class StoreError(DpbenchError):
    """A result or a checkpoint could not be written: the job stops, because what it would compute would be lost."""

    exit_status = 1


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in one file. `line` and `column` count from 1; 0 where no place is known."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f" {self.path}:" if self.path else ""
        return f"{place}:{path} {self.message}" + (f" ({self.hint})" if self.hint else "")


class ProblemsError(DpbenchError):
    """All the mistakes found in the given files, together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(set(problems)))
        count = len(self.problems)
        super().__init__(
            "\n".join([*map(str, self.problems), f"{count} mistake{'s' if count != 1 else ''} found; nothing was run."])
        )
