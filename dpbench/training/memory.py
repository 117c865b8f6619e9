"""What training does where memory does not suffice, the same work with less at a time, and what it notes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpbench.errors import lacks_memory, out_of_memory

MOST_NOTES = 8  # of a run, the last ones


def smaller(places: int, error: BaseException) -> int:
    """Half the places after a call that found no memory. Raises OutOfMemory where it was one place, else the error."""
    if not lacks_memory(error):
        raise error
    if places == 1:
        raise out_of_memory(error, "with one example of each run at a time") from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return places // 2


def noted(notes: str, step: int, chunk: int | None = None) -> str:
    """A run's notes where it has `chunk` places at a time from this step on, None if memory bounds them no longer.

    >>> noted(noted("", 0, 16), 7)
    'from step 0 to 7, 16 places at a time: more found no memory'
    """
    if chunk is not None and f" on, {chunk} places" in notes:
        return notes
    kept = [
        one.replace(" on,", f" to {step},") for one in notes.split("; ") if one and f"from step {step} on" not in one
    ]
    if chunk is not None:
        kept.append(f"from step {step} on, {chunk} places at a time: more found no memory")
    return "; ".join(kept[-MOST_NOTES:])


def bounded(notes: str) -> bool:
    """Whether a run has less at a time now, for want of memory."""
    return " on, " in notes


@contextmanager
def told_of_memory() -> Iterator[None]:
    """Raise OutOfMemory for a lack of memory inside the block, where nothing can be done with less at a time."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if lacks_memory(error):
            raise out_of_memory(error, "beside the steps of training") from error
        raise
