"""The loop: alone, in a stack, in pieces or resumed, a run is the same run; failures harm nobody else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.plan.planning import Choices, Run, build_mechanism, dataset_source, make_plan, model_builder
from dpbench.spec.loading import load_specs
from dpbench.store.records import Store
from dpbench.training.loop import Execution, Interrupted, Outcome, evaluation_steps, train

SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [16], activation: tanh}}
mechanism: %(mechanism)s
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 40, learning_rate: 0.5, clip_norm: 1.0}
grid:
  training.learning_rate: [0.25, 0.5]
  training.batch_size: [64, 96]
seeds: 2
"""


def runs_of(folder: Path, text: str) -> tuple[Run, ...]:
    (folder / "spec.yaml").write_text(text)
    specs = load_specs([folder / "spec.yaml"], allow_code=True)
    return make_plan(specs, Store(folder / "out"), Choices(device="cpu")).runs


def trained(runs: Sequence[Run], **options: Any) -> dict[str, Outcome]:
    spec = runs[0].spec
    source = dataset_source(spec)
    execution = options.pop("execution", Execution())
    outcomes = train(runs, source.load(None), build_mechanism(spec), model_builder(spec, source), execution, **options)
    return {outcome.run.key: outcome for outcome in outcomes}


def losses(outcome: Outcome) -> list[float]:
    assert outcome.result is not None
    return [point["test_loss"] for point in outcome.result["curve"]]


@pytest.mark.parametrize(("mechanism", "rates"), [("noisy_sgd", "[0.25, 0.5]"), ("noisy_adam", "[0.005, 0.01]")])
def test_alone_stacked_and_in_pieces_agree(tmp_path: Path, mechanism: str, rates: str) -> None:
    """Rounding may differ between shapes: float32 sums of at most 130 gradients, 40 steps. A relative error of
    6e-8·√130 per step, 40 times over, is 3e-5; it stays below 1e-4 where training is stable, as it is here."""
    runs = runs_of(tmp_path, SPEC.replace("[0.25, 0.5]", rates) % {"mechanism": mechanism})
    assert len(runs) == 8
    together = trained(runs)
    pieces = trained(runs, execution=Execution(places_per_call=56))
    for run in runs[::3]:
        alone = losses(trained([run])[run.key])
        assert losses(together[run.key]) == pytest.approx(alone, rel=1e-4)
        assert losses(pieces[run.key]) == pytest.approx(alone, rel=1e-4)
    seeds = {round(losses(outcome)[-1], 6) for outcome in together.values()}
    assert len(seeds) == 8  # and no two runs are the same run


def test_a_resumed_run_is_the_uninterrupted_run(tmp_path: Path) -> None:
    run = runs_of(tmp_path, SPEC % {"mechanism": "noisy_adam"})[0]
    whole = trained([run])[run.key]
    done: list[int] = []
    kept = tmp_path / "checkpoints"
    with pytest.raises(Interrupted):
        trained([run], checkpoints=kept, watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 17)
    assert [path.stem for path in kept.iterdir()] == [run.key]
    resumed = trained([run], checkpoints=kept)[run.key]
    assert losses(resumed) == losses(whole)  # the same operations on the same shapes: the same bits
    assert resumed.result is not None
    assert whole.result is not None
    assert resumed.result["resumed"] is True
    assert whole.result["resumed"] is False
    for point, same in zip(resumed.result["curve"], whole.result["curve"], strict=True):
        assert point["train_loss"] == pytest.approx(same["train_loss"], rel=1e-12)


def test_runs_interrupted_together_may_go_on_in_other_company(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})
    kept = tmp_path / "checkpoints"
    done: list[int] = []
    with pytest.raises(Interrupted):
        trained(runs[:3], checkpoints=kept, watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 9)
    mixed = trained(runs[1:5], checkpoints=kept)
    for run in runs[1:5]:
        assert losses(mixed[run.key]) == pytest.approx(losses(trained([run])[run.key]), rel=1e-4)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"a place kept", b"PK\x03\x04 cut"])
def test_a_damaged_checkpoint_means_a_new_start(tmp_path: Path, content: bytes) -> None:
    run = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})[0]
    kept = tmp_path / "checkpoints"
    kept.mkdir()
    (kept / f"{run.key}.pt").write_bytes(content)
    outcome = trained([run], checkpoints=kept)[run.key]
    assert outcome.result is not None
    assert outcome.result["resumed"] is False
    assert losses(outcome) == losses(trained([run])[run.key])


def test_a_run_that_diverges_fails_alone(tmp_path: Path) -> None:
    text = SPEC % {"mechanism": "{name: non_private}"}
    text = text.replace("budget: {delta: 1e-4, noise_multiplier: 1.0}", "budget: none").replace(", clip_norm: 1.0", "")
    text = text.replace("[0.25, 0.5]", "[0.25, 3e38]").replace("[64, 96]", "[96]").replace("seeds: 2", "seeds: 1")
    good, bad = runs_of(tmp_path, text)
    outcomes = trained([good, bad])
    assert outcomes[good.key].error is None
    assert losses(outcomes[good.key]) == pytest.approx(losses(trained([good])[good.key]), rel=1e-4)
    failed = outcomes[bad.key]
    assert failed.result is None
    assert failed.error is not None
    assert "not finite" in failed.error
    assert failed.step is not None
    assert failed.step <= 40


def test_smoke_does_two_steps_and_leaves_nothing(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})
    kept = tmp_path / "checkpoints"
    outcomes = trained(runs, checkpoints=kept, smoke=True)
    assert {outcome.result["curve"][-1]["step"] for outcome in outcomes.values() if outcome.result} == {2}
    assert not kept.exists()


def test_runs_of_different_length_share_a_stack(tmp_path: Path) -> None:
    text = SPEC.replace("training.learning_rate: [0.25, 0.5]", "training.steps: [5, 23]") % {"mechanism": "noisy_sgd"}
    runs = runs_of(tmp_path, text)
    together = trained(runs)
    for run in runs[::3]:
        outcome = together[run.key]
        assert outcome.result is not None
        assert outcome.result["curve"][-1]["step"] == run.steps
        assert outcome.result["ledger"]["parts"][0]["count"] == run.steps
        assert losses(outcome) == pytest.approx(losses(trained([run])[run.key]), rel=1e-4)


@given(
    st.one_of(st.floats(1e-4, 1.0), st.integers(1, 5000).map(lambda n: 1 / n)),
    st.integers(1, 20_000),
    st.integers(5, 100),
)
def test_evaluation_steps(rate: float, steps: int, most: int) -> None:
    stops = evaluation_steps(rate, steps, most)
    assert stops[-1] == steps
    assert all(a < b for a, b in itertools.pairwise(stops))
    assert stops[0] >= 1
    assert len(stops) <= most + 2
    every = max(1, math.ceil(int(round(steps * rate, 9)) / most))
    for number, stop in enumerate(stops[:-1], 1):
        # the first step at which `number` times `every` epochs are over
        assert stop * rate >= number * every * (1 - 1e-7)
        assert (stop - 1) * rate < number * every * (1 + 1e-7)
