"""Errors for users: each says what was given, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DpbenchError", "Problem", "ProblemsError", "StoreError"]

LONGEST = 2000  # characters of the message of one mistake

_NO_MEMORY = "out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "could not create a memory"
# With those of direction and half surrogate pairs.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_control(character: str) -> bool:
    """Whether a character could change what a terminal or a page shows, such as the start of a colour."""
    return _CONTROLS.match(character) is not None


def visible(text: str, but: str = "\n\t") -> str:
    """A text with its control characters written out, but for those of `but`.

    >>> visible("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in but else ascii(found[0])[1:-1], text)


def brief(text: str) -> str:
    """A message of at most about LONGEST characters: what a file holds may be long, and the advice stands at the end.

    >>> len(brief("x" * 10**6)) < 2100
    True
    """
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]} ... [{len(text) - LONGEST:,} characters] ... {text[-LONGEST // 2 :]}"


class DpbenchError(Exception):
    """Bad input or an unusable environment; the command line prints it without a traceback and exits with 2."""


class StoreError(DpbenchError):
    """A result or a checkpoint could not be written: the job stops, because what it would compute would be lost."""

    exit_status = 1


class OutOfMemory(DpbenchError):
    """Memory does not suffice for the least that can be done at a time."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that there was too little memory; torch is not imported for it.

    >>> lacks_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")), lacks_memory(RuntimeError("shape"))
    (True, False)
    """
    words = str(error).lower()
    return (
        isinstance(error, MemoryError | OutOfMemory)
        or type(error).__name__ == "OutOfMemoryError"  # torch's
        or (isinstance(error, RuntimeError) and any(said in words for said in _NO_MEMORY))
    )


def out_of_memory(error: BaseException, when: str) -> OutOfMemory:
    """One sentence about a lack of memory; `error` itself where it is one.

    >>> str(out_of_memory(MemoryError(), "at the start"))
    'out of memory at the start (MemoryError): the model needs more than the device has'
    """
    if isinstance(error, OutOfMemory):
        return error
    said = visible((str(error).splitlines() or [type(error).__name__])[0])
    return OutOfMemory(f"out of memory {when} ({said}): the model needs more than the device has")


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
        return brief(f"{place}:{path} {self.message}" + (f" ({self.hint})" if self.hint else ""))


class ProblemsError(DpbenchError):
    """All the mistakes found in the given files, together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(set(problems)))
        count = len(self.problems)
        super().__init__(
            "\n".join([*map(str, self.problems), f"{count} mistake{'s' if count != 1 else ''} found; nothing was run."])
        )
