"""The loop: alone, in a stack, in pieces or resumed, a run is the same run; failures harm nobody else."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.errors import DpbenchError
from dpbench.job import run as run_job
from dpbench.models import pooled_embedding
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, Run, make_plan
from dpbench.plan.stacks import usual_threads
from dpbench.spec.loading import load_specs
from dpbench.store.records import Store
from dpbench.training.execution import Execution, on_threads
from dpbench.training.loop import Interrupted, Outcome, evaluation_steps, train

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


def test_a_word_that_the_model_has_no_row_for_is_named_before_training(tmp_path: Path) -> None:
    run = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})[0]
    data = dataset_source(run.spec).load(None)
    words = (1000 * data.test_inputs.flatten(1)).round()
    words[:17] = 0  # the model is tried on these
    data = replace(data, train_inputs=(1000 * data.train_inputs.flatten(1)).round(), test_inputs=words)
    largest = int(words.max())
    for rows, refused in ((largest, True), (largest + 1, False)):
        build = partial(pooled_embedding.model, (words.shape[1],), 10, words=rows)
        work = train([run], data, build_mechanism(run.spec), build, Execution(), smoke=True)
        if refused:
            with pytest.raises(DpbenchError, match=f"a test record with the input {largest}; expected a number"):
                next(work)
        else:
            assert next(work).error is None


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


# Checkpoints


def interrupted_at(step: int, run: Run, folder: Path) -> Path:
    """The checkpoint of a run that was interrupted after so many steps."""
    done: list[int] = []
    with pytest.raises(Interrupted):
        trained([run], checkpoints=folder, watch=lambda p: done.append(p.done), stop=lambda: len(done) >= step)
    return folder / f"{run.key}.pt"


def forged(body: bytes, head: bytes) -> bytes:
    """A checkpoint as a hostile author writes it: with the SHA-256 of its content."""
    return head + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


LIES: dict[str, dict[str, Any]] = {
    "step -40": {"step": -40},
    "a step beyond the end": {"step": 40},
    "another step": {"step": 25},
    "a step that is a flag": {"step": True},
    "another run": {"run_key": "0" * 64},
    "other code": {"sources": {}},
    "a curve too long": {"curve": [{"epoch": 1.0, "step": 16, "seconds": 0.1, "test_accuracy": 0.9}] * 3},
    "a curve of texts": {"curve": ["x"]},
    "an accuracy of 7": {"curve": [{"epoch": 1.069, "step": 16, "seconds": 0.0, "test_accuracy": 7.0}]},
    "seconds below zero": {"seconds": -1.0},
    "endless seconds": {"seconds": None, "seconds_reason": "infinite"},
    "a huge tensor": {"tensors": [["theta", "torch.float32", [1, 10**12]]]},
    "another type": {"tensors": [["theta", "torch.float64", [1, 1210]]]},
    "a loss of text": {"loss": "x"},
    "a bad step to come": {"bad": 39},
}


@dataclass(frozen=True)
class Unfinished:
    """A run with its checkpoint after 20 steps, another run's checkpoint, and the undisturbed run's losses."""

    run: Run
    content: bytes
    of_another: bytes
    losses: list[float]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Unfinished:
    folder = tmp_path_factory.mktemp("unfinished")
    run, other = runs_of(folder, SPEC % {"mechanism": "noisy_adam"})[:2]
    path = interrupted_at(20, run, folder / "checkpoints")
    content = path.read_bytes()
    resumed = trained([run], checkpoints=path.parent)[run.key]
    assert resumed.result is not None
    assert resumed.result["resumed"] is True  # as it is, it is used
    return Unfinished(run, content, interrupted_at(20, other, folder / "others").read_bytes(), losses(resumed))


@pytest.mark.parametrize("lie", [*LIES, "nan", "cut", "longer", "flipped", "swapped", "format", "folder", "large"])
def test_a_checkpoint_that_does_not_fit_is_never_used_and_says_so(
    tmp_path: Path, unfinished: Unfinished, lie: str
) -> None:
    """Whoever wrote its digest: the run starts anew, and its result is that of the undisturbed run."""
    run, content = unfinished.run, unfinished.content
    path = tmp_path / f"{run.key}.pt"
    head, _, rest = content.partition(b"\n")
    line, _, data = rest.partition(b"\n")[2].partition(b"\n")
    lies = {
        "nan": forged(line + b"\n" + b"\xff" * 8 + data[8:], head),
        "cut": forged(line + b"\n" + data[:-1], head),
        "longer": forged(line + b"\n" + data + b"\0", head),
        "flipped": content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
        "swapped": unfinished.of_another,
        "format": forged(line + b"\n" + data, b"dpbench checkpoint 2"),
    }
    if lie == "folder":
        path.mkdir()
    elif lie == "large":
        with path.open("wb") as file:
            file.truncate(1 << 34)
    elif lie in LIES:
        path.write_bytes(forged(json.dumps(json.loads(line) | LIES[lie]).encode() + b"\n" + data, head))
    else:
        path.write_bytes(lies[lie])
    told: list[tuple[str, str]] = []
    outcome = trained([run], checkpoints=tmp_path, anew=lambda run, why: told.append((run.key, why)))[run.key]
    assert [key for key, _ in told] == [run.key]
    assert str(path) in told[0][1]
    assert outcome.result is not None
    assert outcome.result["resumed"] is False
    assert losses(outcome) == unfinished.losses


CHILD = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from dpbench.training.execution import Execution
from tests.training.test_train import SPEC, runs_of, trained
(run, *_) = runs_of(Path({folder!r}), {text!r})
print("ready", flush=True)
steps = []
def watch(progress):
    steps.append(progress.done)
    print(progress.done, flush=True)
trained([run], checkpoints=Path({kept!r}), execution=Execution(checkpoint_seconds=0.01), watch=watch)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX's")
def test_a_kill_within_a_long_epoch_loses_only_the_time_since_the_last_checkpoint(tmp_path: Path) -> None:
    """One epoch of 200 steps with one evaluation at its end: what goes on from a checkpoint gives the same record."""
    text = SPEC.replace("batch_size: 96, steps: 40", "sampling_rate: 0.005, steps: 200").partition("grid:")[0]
    text = text % {"mechanism": "noisy_adam"}
    run = runs_of(tmp_path, text)[0]
    assert evaluation_steps(run.sampling_rate, run.steps) == [200]
    kept = tmp_path / "checkpoints"
    code = CHILD.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path), text=text, kept=str(kept))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reached = 0
        for line in process.stdout:
            reached = 0 if line == "ready\n" else int(line)
            if reached >= 60 and (kept / f"{run.key}.pt").exists():
                break
        process.send_signal(signal.SIGKILL)
    assert 60 <= reached < 200
    first: list[int] = []
    resumed = trained([run], checkpoints=kept, watch=lambda p: first.append(p.done))[run.key]
    whole = trained([run])[run.key]
    assert resumed.result is not None
    assert whole.result is not None
    assert resumed.result["resumed"] is True
    assert 2 <= first[0] <= 200, "it went on within the epoch"
    timeless = [{**point, "seconds": 0} for point in resumed.result["curve"]]
    assert timeless == [{**point, "seconds": 0} for point in whole.result["curve"]]  # to the last bit
    assert (resumed.result["ledger"], resumed.result["facts"]) == (whole.result["ledger"], whole.result["facts"])


def test_checkpoints_between_evaluations_change_no_number(tmp_path: Path) -> None:
    run = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})[0]
    often = trained([run], checkpoints=tmp_path / "kept", execution=Execution(checkpoint_seconds=0.0))[run.key]
    whole = trained([run])[run.key]
    assert often.result is not None
    assert whole.result is not None
    assert [p["train_loss"] for p in often.result["curve"]] == [p["train_loss"] for p in whole.result["curve"]]
    assert losses(often) == losses(whole)


def test_small_work_takes_one_thread_and_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    small = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})[0].spec
    before = torch.get_num_threads()
    assert usual_threads(small, 96, "cpu") == 1
    assert usual_threads(small, 1e9, "cpu") == usual_threads(small, 96, "cuda") == before
    with on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_a_record_states_its_threads_and_its_key_does_not(tmp_path: Path) -> None:
    text = (SPEC.partition("grid:")[0] + "seeds: 1\n").replace("steps: 40", "steps: 2") % {"mechanism": "noisy_sgd"}
    (tmp_path / "spec.yaml").write_text(text)
    found = {}
    for threads in (None, 2):
        out = tmp_path / f"out {threads}"
        run_job([tmp_path / "spec.yaml"], out=out, choices=Choices(device="cpu"), threads=threads)
        (record,) = Store(out).read().runs
        found[record.environment["threads"]] = record.run_key
    assert list(found) == [1, 2]
    assert len(set(found.values())) == 1
