"""The one door through which noisy values leave the training data.

Whatever a mechanism releases passes `let_out`: the value with its noise, which is all that may be used afterwards,
beside what it was without and how large the noise is. In training that changes nothing: the noisy value is handed on as
it came. A check may stand at the door (`watched`): it notes what passes, or it hands out what another run let out, and
then nothing else of this run's data may show in the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Watch = Callable[[Tensor, Tensor, Tensor, "Sequence[int] | None"], Tensor]
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def let_out(exact: Tensor, noisy: Tensor, deviation_R: Tensor, runs: Sequence[int] | None = None) -> Tensor:
    """`noisy`, which is `exact` plus independent normals of deviation `deviation_R` in every entry; both (R, ...).

    `runs` are the places of the stack that release something, where not all do; R is then their number. One call for
    each event that the ledger gets, in the ledger's order.

    >>> import torch
    >>> let_out(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1)).tolist()
    [[1.0, 1.0]]
    """
    watch = _WATCH.get()
    return noisy if watch is None else watch(exact, noisy, deviation_R, runs)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Within: `watch` gets the arguments of each `let_out` and gives what is handed on in its place."""
    before = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(before)
