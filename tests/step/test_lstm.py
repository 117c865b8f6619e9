"""The LSTM as one operator: its values and first derivatives are those of the loop that torch records, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from dpbench.step.lstm import lstm

H = 3


def loop(driven_DNTG: Tensor, weight_DHG: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, step by step."""
    states = []
    for driven_DNG in driven_DNTG.unbind(2):
        enter, forget, candidate, leave = (driven_DNG + state @ weight_DHG).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        state = leave.sigmoid() * cell.tanh()
        states.append(state)
    return torch.stack(states, 2), cell


def problem(*before: int, directions: int = 2, sequences: int = 4, steps: int = 6) -> list[Tensor]:
    """Everything that the operator takes, with further axes in front."""
    generator = torch.Generator().manual_seed(steps)
    shapes = [(directions, sequences, steps, 4 * H), (directions, H, 4 * H), *[(directions, sequences, H)] * 2]
    return [torch.randn(*before, *shape, generator=generator).double().requires_grad_() for shape in shapes]


def same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], given: list[Tensor]) -> None:
    """Equal values, and equal gradients of one random sum of them: sums of at most 10^3 terms, so 1e-11."""
    weights = [torch.randn(value.shape, generator=torch.Generator().manual_seed(9)).double() for value in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    gradients = [
        torch.autograd.grad(sum((w * v).sum() for w, v in zip(weights, values, strict=True)), given)
        for values in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_values_and_gradients_are_those_of_the_loop(directions: int, sequences: int, steps: int) -> None:
    given = problem(directions=directions, sequences=sequences, steps=steps)
    same(lstm(*given), loop(*given), given)


def test_each_of_its_outputs_alone_has_its_gradient() -> None:
    given = problem()
    for at in (0, 1):
        found, expected = (torch.autograd.grad(way(*given)[at].sum(), given) for way in (lstm, loop))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("weights", ["one", "each"])
def test_mapped_over_examples_it_is_that_of_each(weights: str) -> None:
    """Over examples with one weight, and over runs with a weight each; the mapped axis may stand anywhere."""
    of_all = None if weights == "one" else 0
    given = problem(5)
    given[1] = problem(5)[1][0].detach().requires_grad_() if weights == "one" else given[1]
    moved = [given[0].movedim(0, 2), given[1], given[2].movedim(0, 1), given[3]]
    found = vmap(lstm, in_dims=(2, of_all, 1, 0))(*moved)
    expected = [
        loop(given[0][one], given[1] if weights == "one" else given[1][one], given[2][one], given[3][one])
        for one in range(5)
    ]
    same(found, tuple(torch.stack(values) for values in zip(*expected, strict=True)), given)


def test_mapped_over_runs_and_their_examples() -> None:
    driven, _, state, cell = problem(2, 3)
    weight = problem(2)[1]
    found = vmap(vmap(lstm, in_dims=(0, None, 0, 0)))(driven, weight, state, cell)
    each = [[loop(driven[r, b], weight[r], state[r, b], cell[r, b]) for b in range(3)] for r in range(2)]
    expected = tuple(torch.stack([torch.stack([pair[at] for pair in of]) for of in each]) for at in (0, 1))
    same(found, expected, [driven, weight, state, cell])


def test_what_it_is_given_stays_as_it_is() -> None:
    given = problem()
    copies = [value.detach().clone() for value in given]
    states, cell = lstm(*given)
    (states.sum() + cell.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(map(torch.equal, given, copies))
