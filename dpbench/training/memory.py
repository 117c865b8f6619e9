"""What training does where memory does not suffice: the same work again with less at a time."""

from __future__ import annotations

import torch

from dpbench.errors import OutOfMemory, lacks_memory, visible


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
