"""What training does where memory does not suffice: the same work again with less at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpbench.errors import lacks_memory, out_of_memory


def smaller(places: int, error: BaseException) -> int:
    """Half the places after a call that found no memory. Raises OutOfMemory where it was one place, else the error."""
    if not lacks_memory(error):
        raise error
    if places == 1:
        raise out_of_memory(error, "with one example of each run at a time") from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return places // 2


@contextmanager
def told_of_memory() -> Iterator[None]:
    """Raise OutOfMemory for a lack of memory inside the block, where nothing can be done with less at a time."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if lacks_memory(error):
            raise out_of_memory(error, "beside the steps of training") from error
        raise
