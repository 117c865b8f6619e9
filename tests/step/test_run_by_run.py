"""Runs of a stack one after the other, by an engine or by a rule with its own sum: the same sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dpbench.catalog import build
from dpbench.clipping import ghost, vmap
from dpbench.clipping.rules.automatic import rule as automatic
from dpbench.judging.check_tools.problems import batch, small_network
from dpbench.randomness import table
from dpbench.step.clipped_sum import Clipped, RunByRun, clip_weight
from dpbench.step.mechanism import Hyperparameters

RUNS, PLACES = 3, 20  # the first run has 11 at most, the last none


@pytest.mark.parametrize("weight", [clip_weight, automatic().weight], ids=["flat", "automatic"])
@pytest.mark.parametrize("engine", [vmap.clipping, ghost.clipping])
def test_run_by_run_is_the_sum_of_the_stack(engine: Any, weight: Any) -> None:
    net = small_network()
    examples = batch(torch.Generator().manual_seed(0), RUNS, PLACES)
    examples.mask_RB[0, 11:], examples.mask_RB[2] = False, False
    examples.inputs[~examples.mask_RB] = torch.nan
    theta_RP = torch.randn(RUNS, net.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    clip_R, made = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), []

    def watched(*given: Any) -> Clipped:
        made.append((len(given[1]), given[2].mask_RB.shape[1], given[4]))
        found: Clipped = engine(*given)
        return found

    found = RunByRun(watched)(net, theta_RP, examples, clip_R, 7, weight)
    assert [call[1] for call in made] == [11, 20, 1], "the places after a run's batch are left out"
    assert {(call[0], call[2]) for call in made} == {(1, 7)}
    whole = engine(net, theta_RP, examples, clip_R, PLACES, weight)
    for name, value in vars(whole).items():
        torch.testing.assert_close(getattr(found, name), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["dp_sgd_jl", "microbatched_sgd"])
def test_a_rule_with_its_own_sum_gives_the_same_run_by_run(name: str) -> None:
    """Draws included, whatever the places after a run's batch hold."""
    net = small_network()
    examples = batch(torch.Generator().manual_seed(0), 1, 40)
    inputs, targets = examples.inputs[0], examples.targets[0]
    theta_RP = torch.randn(RUNS, net.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mechanism, one_R = build("mechanisms", name), torch.ones(RUNS, dtype=torch.float64)
    rate_R = torch.tensor([0.3, 0.6, 0.01], dtype=torch.float64)  # of very different batches
    hyper = Hyperparameters(
        table(range(RUNS)), rate_R, 0.1 * one_R, 0.5 * one_R, 2.0 * one_R, 5 * one_R.long(), one_R, one_R
    )
    state = mechanism.start(theta_RP, hyper, inputs, targets)
    whole, apart = (
        made.release(net, state, hyper, inputs, targets, 7)[0].gradient_RP
        for made in (mechanism, replace(mechanism, run_by_run=True))
    )
    assert whole.abs().max() > 0
    torch.testing.assert_close(apart, whole, rtol=1e-10, atol=1e-10)
