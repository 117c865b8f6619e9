"""What every mechanism must do that releases its parameters at the end alone (`step.mechanism.acts_at_end`).

As `test_mechanisms.py` and `test_mechanism_ledgers.py` for the others: the same alone, in a stack, in chunks and after
a resume; nothing before the last step; a ledger that tells it. How far one record moves what is released, and its
noise, are in the check `output_sensitivity`, which `test_mechanism_ledgers.py` runs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench import events
from dpbench.errors import DpbenchError
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Hyperparameters, Mechanism, Observed, State, acts_at_end, refuse_other, updated
from dpbench.step.mechanism import step as one_step
from tests.contracts.test_mechanisms import MECHANISMS, N, mixed, same, whole
from tests.contracts.test_mechanisms import data as of_others

pytestmark = pytest.mark.usefixtures("one_thread")

every_end_mechanism = pytest.mark.parametrize("name", [name for name, made in MECHANISMS.items() if acts_at_end(made)])
STEPS = 6


def data(dtype: torch.dtype = torch.float64) -> tuple[Network, Tensor, Tensor]:
    """A logistic regression of two classes, inputs and targets of N examples."""
    _, inputs, targets = of_others(dtype)
    return network(nn.Linear(inputs.shape[1], 2)), inputs, targets % 2


def stack(*runs: int, steps: int = STEPS) -> Hyperparameters:
    """Runs that differ in every number; batches of 4, 6 and 2 of 12."""
    found = mixed(*runs)
    rates = torch.tensor([1 / 3, 1 / 2, 1 / 6], dtype=torch.float64)[list(runs)]
    return replace(found, sampling_rate_R=rates, steps_R=torch.full_like(found.steps_R, steps))


def begin(mechanism: Mechanism, hyper: Hyperparameters, dtype: torch.dtype = torch.float64) -> State:
    net, inputs, targets = data(dtype)
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2))
    return mechanism.start(theta_P.to(dtype).repeat(len(hyper.keys_RS), 1), hyper, inputs, targets)


def course(
    mechanism: Mechanism, state: State, hyper: Hyperparameters, count: int, chunk: int = N, inputs: Tensor | None = None
) -> list[tuple[State, Observed]]:
    net, own, targets = data(state.theta_RP.dtype)
    found = []
    for _ in range(count):
        state, seen = one_step(mechanism, net, state, hyper, own if inputs is None else inputs, targets, chunk)
        found.append((state, seen))
    return found


def last(mechanism: Mechanism, state: State, hyper: Hyperparameters, count: int, chunk: int = N) -> State:
    return course(mechanism, state, hyper, count, chunk)[-1][0]


@every_end_mechanism
def test_it_is_a_mechanism(name: str) -> None:
    refuse_other(MECHANISMS[name], name)
    assert MECHANISMS[name].private
    assert "acts_at_end" not in vars(MECHANISMS[name]), "what it is, is no parameter of a spec"


@every_end_mechanism
def test_training_is_the_same_alone_in_a_stack_and_in_chunks(name: str) -> None:
    """float64, six steps of at most 12 examples: 1e-10 for 1e4 roundings of parameters of size 10 or less."""
    mechanism = MECHANISMS[name]
    stacked = last(mechanism, begin(mechanism, stack(0, 1, 2)), stack(0, 1, 2), STEPS)
    assert not torch.equal(stacked.theta_RP, begin(mechanism, stack(0, 1, 2)).theta_RP), "it moved"
    for chunk in (1, 5):
        other = last(mechanism, begin(mechanism, stack(0, 1, 2)), stack(0, 1, 2), STEPS, chunk)
        assert float((other.theta_RP - stacked.theta_RP).abs().max()) < 1e-10
    for run in range(3):
        alone = last(mechanism, begin(mechanism, stack(run)), stack(run), STEPS)
        assert float((alone.theta_RP[0] - stacked.theta_RP[run]).abs().max()) < 1e-10


@every_end_mechanism
def test_more_places_than_examples_change_no_draw_and_no_result(name: str) -> None:
    """As `test_mechanisms.py` asks of the others; the bound is that of the test above."""
    mechanism, hyper = MECHANISMS[name], stack(0, 1, 2)
    padded = replace(hyper, places=N + 4)
    start = begin(mechanism, hyper)
    for (one, seen), (other, again) in zip(
        course(mechanism, start, hyper, STEPS), course(mechanism, start, padded, STEPS), strict=True
    ):
        assert torch.equal(seen.drawn_R, again.drawn_R)
        assert float((one.theta_RP - other.theta_RP).abs().max()) < 1e-10


@every_end_mechanism
def test_runs_of_a_stack_do_not_touch_each_other(name: str) -> None:
    """A run whose parameters are NaN leaves its neighbours as they were, and says so itself."""
    mechanism, hyper = MECHANISMS[name], stack(0, 1, 2)
    good = begin(mechanism, hyper)
    net, inputs, targets = data()
    theta_RP = good.theta_RP.clone()
    theta_RP[1] = math.nan
    bad = mechanism.start(theta_RP, hyper, inputs, targets)
    kept = torch.tensor([0, 2])
    for (one, _), (other, seen) in zip(
        course(mechanism, good, hyper, STEPS), course(mechanism, bad, hyper, STEPS), strict=True
    ):
        assert same(one.take(kept), other.take(kept))
        assert seen.finite_R.tolist() == [True, False, True]
    assert net.size == good.theta_RP.shape[1]


@every_end_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_going_on_from_a_saved_state_is_going_on(name: str, dtype: torch.dtype) -> None:
    """Three steps, a file, three more steps: six steps, bit for bit."""
    mechanism, hyper = MECHANISMS[name], stack(0, 1, 2)
    start = begin(mechanism, hyper, dtype)
    middle = last(mechanism, start, hyper, 3)
    file = io.BytesIO()
    parts = {"theta": middle.theta_RP, "memory": dict(middle.memory), "step": middle.step_R}
    torch.save({**parts, "private": dict(middle.private)}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    back = State(kept["theta"], kept["memory"], kept["step"], kept["private"])
    assert same(last(mechanism, back, hyper, 3), last(mechanism, start, hyper, STEPS))


@every_end_mechanism
def test_a_step_changes_only_what_it_returns(name: str) -> None:
    mechanism, hyper = MECHANISMS[name], stack(0, 1, 2)
    net, inputs, targets = data()
    state = begin(mechanism, hyper)
    copies = {kept: value.clone() for kept, value in whole(state).items()}
    before = torch.get_rng_state()
    after, _ = one_step(mechanism, net, state, hyper, inputs, targets, 5)
    assert all(torch.equal(copies[kept], value) for kept, value in whole(state).items())
    assert torch.equal(before, torch.get_rng_state())
    assert after.step_R.tolist() == [1, 1, 1]
    assert set(whole(after)) == set(whole(state))
    assert all(value.dtype == copies[kept].dtype for kept, value in whole(after).items())


@every_end_mechanism
def test_runs_of_a_stack_end_each_at_its_own_last_step(name: str) -> None:
    """And not before: until then the parameters are those of the beginning, and the ledger is empty."""
    mechanism = MECHANISMS[name]
    ends = [2, 5, 4]
    hyper = replace(stack(0, 1, 2), steps_R=torch.tensor(ends))
    state = begin(mechanism, hyper)
    begun_RP = state.theta_RP
    for number, (after, _) in enumerate(course(mechanism, state, hyper, 5), 1):
        moved = (after.theta_RP != begun_RP).any(1).tolist()
        assert moved == [number >= end for end in ends]
        ledgers = mechanism.released(after, hyper)
        numbers = zip(hyper.sampling_rate_R.tolist(), hyper.noise_multiplier_R.tolist(), strict=True)
        plans = [mechanism.ledger(sampling_rate=q, noise_multiplier=s, steps=9) for q, s in numbers]
        for plan, ledger, end in zip(plans, ledgers, ends, strict=True):
            assert ledger == (plan if number >= end else plan.prefix(0))
    for run, end in enumerate(ends):  # in a stack as alone, where every step is below 1e-10 off
        alone = replace(stack(run), steps_R=torch.tensor([end]))
        found = last(mechanism, begin(mechanism, alone), alone, end)
        assert float((found.theta_RP[0] - after.theta_RP[run]).abs().max()) < 1e-10


@every_end_mechanism
def test_the_update_sees_what_was_released_and_nothing_else(name: str) -> None:
    """In the last step and before it."""
    mechanism, hyper = MECHANISMS[name], stack(0, 1, 2)
    net, inputs, targets = data()
    for done in (2, STEPS - 1):
        state = last(mechanism, begin(mechanism, hyper), hyper, done)
        released, kept = mechanism.release(net, state, hyper, inputs, targets, N)
        after = updated(mechanism, state, hyper, released, kept)
        mechanism.release(net, state, hyper, -inputs, targets.flip(0), N)
        again = mechanism.update(replace(state, private={}), hyper.learning_rate_R, released)
        assert same(again, replace(after, private={}))
        assert [len(released.events(run)) for run in range(3)] == [int(done == STEPS - 1)] * 3


@every_end_mechanism
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_reported(name: str, value: float) -> None:
    mechanism, hyper = MECHANISMS[name], stack(0, 1)
    _, inputs, _ = data()
    seen = [seen for _, seen in course(mechanism, begin(mechanism, hyper), hyper, 3)]
    assert all(one.finite_R.tolist() == [True, True] for one in seen)
    bad = torch.full_like(inputs, value)
    assert course(mechanism, begin(mechanism, hyper), hyper, 1, inputs=bad)[0][1].finite_R.tolist() == [False, False]


@every_end_mechanism
def test_observed_is_possible(name: str) -> None:
    mechanism, hyper = MECHANISMS[name], stack(0, 1, 2)
    for _, seen in course(mechanism, begin(mechanism, hyper), hyper, STEPS):
        assert bool(((seen.clipped_R >= 0) & (seen.clipped_R <= seen.drawn_R) & (seen.drawn_R <= N)).all())
        assert bool(((seen.loss_R > 0) == (seen.drawn_R > 0)).all())
        assert seen.finite_R.dtype == torch.bool
        assert not seen.stopped


@every_end_mechanism
def test_facts_and_ledger_agree(name: str) -> None:
    mechanism = MECHANISMS[name]
    facts = mechanism.facts()
    assert {"sampler", "adjacency", "privacy_unit", "normalisation", "released"} <= set(facts)
    assert not mechanism.spends_budget
    for rate, sigma, count in ((0.01, 1.3, 7), (1.0, 0.5, 1), (256 / 60000, 2.0, 3516)):
        ledger = mechanism.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=count)
        ((event, times),) = ledger.parts
        assert (times, event.adjacency, ledger.adaptive) == (1, facts["adjacency"], False)
        twice = mechanism.ledger(sampling_rate=rate, noise_multiplier=2 * sigma, steps=count).parts[0][0]
        assert twice.noise_multiplier == 2 * event.noise_multiplier
        assert events.from_json(events.to_json(ledger)) == ledger
    assert mechanism.ledger(sampling_rate=0.1, noise_multiplier=1.0, steps=0) == events.Composition(())
    for bad in (None, 0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier"):
            mechanism.ledger(sampling_rate=0.1, noise_multiplier=bad, steps=3)


@every_end_mechanism
def test_a_model_that_its_proof_does_not_cover_is_refused(name: str) -> None:
    """Before training, and in a step as well."""
    mechanism, hyper = MECHANISMS[name], stack(0)
    other, inputs, targets = of_others()
    mechanism.refuse_model(data()[0].module)
    with pytest.raises(DpbenchError, match="expected logistic regression"):
        mechanism.refuse_model(other.module)
    state = mechanism.start(torch.zeros(1, other.size, dtype=torch.float64), hyper, inputs, targets)
    with pytest.raises(DpbenchError, match="expected logistic regression"):
        mechanism.release(other, state, hyper, inputs, targets, N)


def test_there_is_one() -> None:
    found: Mapping[str, Any] = {name: made for name, made in MECHANISMS.items() if acts_at_end(made)}
    assert "output_perturbation" in found
