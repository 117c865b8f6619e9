"""What training does where memory does not suffice: the same work again with less at a time."""

from __future__ import annotations

import torch

from dpbench.errors import DpbenchError, visible

_SAID = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "could not create a memory")


class OutOfMemory(DpbenchError):
    """Memory does not suffice for one place of each run at a time."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that there was too little memory.

    >>> lacks_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")), lacks_memory(RuntimeError("shape"))
    (True, False)
    """
    words = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfMemory) or (
        isinstance(error, RuntimeError) and any(said in words for said in _SAID)
    )


def smaller(places: int, error: BaseException) -> int:
    """Half the places after a call that found no memory. Raises OutOfMemory where it was one place, else the error."""
    if not lacks_memory(error):
        raise error
    if places == 1:
        raise OutOfMemory(
            f"out of memory with one example of each run at a time ({visible(str(error).splitlines()[0])}): the model"
            " needs more than the device has"
        ) from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return places // 2
