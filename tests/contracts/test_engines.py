"""What every mechanism must do that takes a clipping engine: draw the same and train the same with each of them.

With each engine of the catalog, with a stack run by run, and with full chunks through `torch.compile`. As training may
choose any of them, none may change a draw or a result. Without chance; the mechanisms are those of
`test_mechanisms.py`, the engines' sums alone are in `test_clipping.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from dpbench.catalog import catalog
from dpbench.clipping.vmap import Compiled
from dpbench.step.clipped_sum import RunByRun
from dpbench.step.functional import Network
from dpbench.step.mechanism import Observed, State
from dpbench.step.mechanism import step as one_step
from dpbench.training.fastest import weight_of
from tests.contracts.test_mechanisms import MECHANISMS, begin, data, mixed, whole

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, CHUNK = 6, 3
NAMES = [name for name, made in MECHANISMS.items() if getattr(made, "engine", None) is not None]
ENGINES = {name: entry.load() for name, entry in sorted(catalog("clipping").items())}
WAYS = ENGINES | {f"{name} run by run": RunByRun(engine) for name, engine in ENGINES.items()}
every_mechanism = pytest.mark.parametrize("name", NAMES)

# Of one step in float64, with parameters and gradients of size 10 or less. A sum over at most 12 examples of products
# of at most 9 terms in two layers, and their norm over 103 numbers: fewer than 250 roundings, 2^-53 each, and as many
# in what it is compared with. What multiplies such an error: the weight C/γ = 3/0.01 of a small gradient in automatic
# clipping; Adam, by at most 1/sqrt(1 - β2) = 32, since it divides by the root of a mean square of (1 - β2)·g² or more.
LIMIT = 2 * 250 * 2.0**-53 * 300 * 10

Step = tuple[State, State, Observed]  # the state before, the state after, and what was seen


def one_more(name: str, engine: Any, net: Network, state: State, chunk: int) -> tuple[State, Observed]:
    mechanism: Any = replace(MECHANISMS[name], engine=engine)
    _, inputs, targets = data()
    return one_step(mechanism, net, state, mixed(0, 1, 2), inputs, targets, chunk)


@cache
def by_definition(name: str) -> list[Step]:
    """Three unlike runs in a stack, with the engine that takes one example after the other."""
    net = data()[0]
    state, found = begin(MECHANISMS[name], net, mixed(0, 1, 2)), []
    for _ in range(STEPS):
        after, seen = one_more(name, ENGINES["loop"], net, state, 1)
        found.append((state, after, seen))
        state = after
    return found


def is_the_same(name: str, engine: Any, net: Network) -> None:
    """From each state on the way: the batches bit for bit, the next state and the losses up to rounding."""
    for before, expected, told in by_definition(name):
        after, seen = one_more(name, engine, net, before, CHUNK)
        assert torch.equal(seen.drawn_R, told.drawn_R)
        assert torch.equal(seen.clipped_R, told.clipped_R)
        assert float((seen.loss_R - told.loss_R).abs().max()) < LIMIT
        left, right = whole(after), whole(expected)
        assert left.keys() == right.keys()
        for part, value in left.items():
            assert float((value.double() - right[part].double()).abs().max()) < LIMIT, part
        assert float((after.theta_RP - before.theta_RP).abs().max()) > 1e6 * LIMIT, "there was something to compare"


@pytest.mark.parametrize("way", WAYS)
@every_mechanism
def test_every_engine_draws_and_trains_the_same(name: str, way: str) -> None:
    is_the_same(name, WAYS[way], data()[0])


def is_compiled(mechanism: Any) -> bool:
    """Whether `Compiled` has anything to compile: the plain loss."""
    return not any(getattr(mechanism, stage, None) is not None for stage in ("smoothing", "augmentation"))


@every_mechanism
def test_compiled_it_draws_and_trains_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that torch takes from the code, run as it is: what a C++ compiler makes of it is torch's own."""
    graphs: list[Any] = []
    compiled = torch.compile

    def run_as_it_is(graph: Any, inputs: Any) -> Callable[..., Any]:
        del inputs
        graphs.append(graph)
        return graph.forward  # type: ignore[no-any-return]

    def without_a_compiler(function: Any, *, fullgraph: bool, dynamic: bool, mode: str | None) -> Any:
        del mode  # of the usual backend alone
        return compiled(function, backend=run_as_it_is, fullgraph=fullgraph, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", without_a_compiler)
    net = data()[0]
    engine = Compiled(net, weight_of(MECHANISMS[name]))
    is_the_same(name, engine, net)
    assert engine.refusal == ""
    assert bool(graphs) == is_compiled(MECHANISMS[name])
