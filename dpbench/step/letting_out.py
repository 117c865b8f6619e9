"""`let_out`: the function that every noisy value of a mechanism passes before it is used.

In training it returns the noisy value unchanged. A check can observe the calls or replace their results (`watched`): it
sees the exact value, the noisy value and the standard deviation of the noise, and it may return the noisy value of
another run. The parameters must then not depend on this run's data in any other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Watch = Callable[[Tensor, Tensor, Tensor, "Sequence[int] | None"], Tensor]
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def let_out(exact: Tensor, noisy: Tensor, deviation_R: Tensor, runs: Sequence[int] | None = None) -> Tensor:
    """Return `noisy`: `exact` plus independent normals of deviation `deviation_R` in every entry; both (R, ...).

    Call it once for each event of the ledger, in the ledger's order. `runs` are the places of the stack that the rows
    belong to, if not all runs release a value; R is then their number.

    >>> import torch
    >>> let_out(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1)).tolist()
    [[1.0, 1.0]]
    """
    watch = _WATCH.get()
    return noisy if watch is None else watch(exact, noisy, deviation_R, runs)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Within this context `watch` gets the arguments of each `let_out`, and its result is returned instead."""
    before = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(before)
