"""Too little memory: the same work with less at a time, a stack in halves, and a record that says so."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.catalog import build
from dpbench.clipping import vmap
from dpbench.errors import DpbenchError, OutOfMemory
from dpbench.job import Watcher
from dpbench.job import run as run_job
from dpbench.models import imdb_lstm
from dpbench.plan import probe
from dpbench.plan.planning import Choices
from dpbench.step.functional import network
from dpbench.step.mechanism import State
from dpbench.step.updates.sgd import Sgd
from dpbench.training import checkpoints, courses, loop
from dpbench.training.execution import Execution, places_of_a_call
from dpbench.training.loop import Interrupted, Progress
from tests.training.test_fastest import SPEC
from tests.training.test_train import losses, runs_of, trained

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
GPU = "CUDA out of memory. Tried to allocate 2 TiB"


def little(monkeypatch: pytest.MonkeyPatch, most: int, words: str, runs: int = 99, after: int = 0) -> list[int]:
    """Memory for so many places and runs in a call of the engine `vmap`; returns the places that were asked for.

    `after` so many calls.
    """
    clipping, asked = vmap.clipping, list[int]()

    def limited(net: Any, theta_RP: Any, examples: Any, clip_R: Any, chunk: int, *rest: Any) -> Any:
        asked.append(chunk)
        if len(asked) > after and (chunk > most or len(theta_RP) > runs):
            raise RuntimeError(words)
        return clipping(net, theta_RP, examples, clip_R, chunk, *rest)

    monkeypatch.setattr(vmap, "clipping", limited)
    return asked


FAULTS = """
import resource, sys
from pathlib import Path
import torch
from tests.training.test_fastest import SPEC
from tests.training.test_train import runs_of, trained
from dpbench.training.bench import measure
from dpbench.training.whole_steps import measure_steps

def faults():
    torch.ones(50_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(50_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
runs = runs_of(Path(sys.argv[1]), SPEC.replace("steps: 40", "steps: 2"))
trained(runs)
kept = faults()
(line,) = measure_steps([runs[0].spec])
assert not line.refusal
profiled = faults()
trained(runs)
list(measure([runs[0].spec], engines=["vmap"], calls=1))
print(before, kept, profiled, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep what is freed")
def test_what_a_step_frees_is_there_for_the_next(tmp_path: Path) -> None:
    """200 MB eight times: without it at least a page fault for each 2 MB, each time; with it at most one or two times,
    where something small that is kept was put into the gap. Under torch's profiler it is given back: there much small
    is put into the gaps, and the process would grow with every tensor."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    before, kept, *profiled = map(int, done.stdout.split())
    assert before > 700
    assert kept < before / 2
    assert min(profiled) > 700


class Seen(Watcher):
    def __init__(self) -> None:
        self.told: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.told.append(progress)

    def enough(self) -> bool:
        return len(self.told) > 2


def records(out: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (out / "records").iterdir()]
    return sorted(found, key=lambda record: int(record["seed"]))


def test_it_halves_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same step again with less at a time, down to one place; what is no lack of memory is raised as it is."""
    (run,) = runs_of(tmp_path, SPEC)
    whole = trained([run])[run.key]
    with monkeypatch.context() as patch:
        asked = little(patch, 20, CPU)
        told = trained([run], execution=Execution(places_per_call=6000, engine="vmap"))[run.key]
    assert (asked[:3], told.chunk) == ([6000, 32, 16], 16)  # a batch has 64 places: half of 6000 would help nothing
    assert told.memory == "from step 0 on, 16 places at a time: more found no memory"
    assert losses(told) == pytest.approx(losses(whole), rel=1e-4)  # rounding, see test_train.py
    for words, error, said in (
        (GPU, DpbenchError, "out of memory with one example of each run at a time"),
        ("shapes do not fit", RuntimeError, r"^shapes do not fit$"),
    ):
        with monkeypatch.context() as patch:
            little(patch, 0, words)
            with pytest.raises(error, match=said):
                trained([run], execution=Execution(places_per_call=4, engine="vmap"))


def test_an_update_may_lack_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    usual, update, called = losses(trained([run])[run.key]), Sgd.__call__, list[int]()

    def limited(*arguments: Any) -> Any:
        called.append(1)
        if len(called) == 3:
            raise torch.OutOfMemoryError(GPU)
        return update(*arguments)

    monkeypatch.setattr(Sgd, "__call__", limited)
    told = trained([run])[run.key]
    assert (told.memory, told.chunk) == ("from step 2 on, 32 places at a time: more found no memory", 32)
    assert losses(told) == pytest.approx(usual, rel=1e-4)  # as above


def test_a_checkpoint_keeps_the_smaller_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    done: list[int] = []
    how: Any = {"execution": Execution(engine="vmap"), "checkpoints": tmp_path / "kept"}
    asked = little(monkeypatch, 20, CPU)
    with pytest.raises(Interrupted):
        trained([run], watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 7, **how)
    asked.clear()
    told = trained([run], **how)[run.key]
    assert set(asked) == {16}
    assert told.memory.startswith("from step 0 on, 16 places at a time")


def test_a_record_says_in_which_steps_less_went_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on in a stack of another size, which has its own chunk; there memory lacks again."""
    run, other = runs_of(tmp_path, SPEC.replace("seeds: 1", "seeds: 2"))
    seen = Seen()
    how: Any = {"execution": Execution(engine="vmap"), "checkpoints": tmp_path / "kept"}
    with monkeypatch.context() as patch:
        little(patch, 20, CPU)
        with pytest.raises(Interrupted):
            trained([run], watch=seen.progress, stop=seen.enough, **how)
    told = trained([run, other], **how)
    assert told[run.key].chunk > 64  # type: ignore[operator]
    assert told[run.key].memory == "from step 0 to 3, 16 places at a time: more found no memory"
    assert told[other.key].memory == ""
    with monkeypatch.context() as patch:
        little(patch, 10, CPU, after=2)
        again = trained([run, other], **how)
    assert again[run.key].memory == f"{told[run.key].memory}; from step 5 on, 8 places at a time: more found no memory"
    assert again[other.key].memory == "from step 2 on, 8 places at a time: more found no memory"


def test_a_run_keeps_the_note_of_its_halved_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("seeds: 1", "seeds: 3"), encoding="utf-8")
    how: Any = {"out": tmp_path / "out", "choices": Choices(device="cpu"), "engine": "vmap"}
    seen = Seen()
    with monkeypatch.context() as patch:
        little(patch, 99_999, GPU, runs=2, after=3)
        assert run_job([spec], watcher=seen, stop=lambda: len(seen.told) > 50, **how).interrupted
    assert not run_job([spec], **how).failures
    found = [
        (one["resumed"], one["environment"].get("stack"), one["environment"].get("memory"))
        for one in records(tmp_path / "out")
    ]
    assert found == [(True, "halved: 3 runs found no memory", None)] * 3


def test_a_stack_goes_on_as_two_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs of which one alone fits: every record is that of the run alone, and says why."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("seeds: 1", "seeds: 3"), encoding="utf-8")
    run_job([spec], out=tmp_path / "usual", choices=Choices(device="cpu"), engine="vmap")
    little(monkeypatch, 99_999, GPU, runs=1)
    seen = Seen()
    ended = run_job([spec], out=tmp_path / "parted", choices=Choices(device="cpu"), engine="vmap", watcher=seen)
    assert not ended.failures
    assert {progress.total for progress in seen.told} == {120}
    assert [progress.done for progress in seen.told] == list(range(1, 121))
    usual, parted = records(tmp_path / "usual"), records(tmp_path / "parted")
    assert [record["stack_runs"] for record in usual] == [3, 3, 3]
    assert [record["stack_runs"] for record in parted] == [1, 1, 1]
    for one, other in zip(usual, parted, strict=True):
        assert other["result"]["test_loss"] == pytest.approx(one["result"]["test_loss"], rel=1e-4)  # as above
        assert "found no memory" in other["environment"]["stack"]
        assert "stack" not in one["environment"]


def test_a_checkpoint_that_finds_no_memory_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves of the stack begin anew, or where their last checkpoint stands."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("seeds: 1", "seeds: 2"), encoding="utf-8")
    how: Any = {"choices": Choices(device="cpu"), "engine": "vmap"}
    run_job([spec], out=tmp_path / "usual", **how)
    write = courses.write_checkpoint

    def limited(path: Path, place: Any, facts: Any, state: Any) -> None:
        if facts["step"] > 4:
            raise MemoryError
        write(path, place, facts, state)

    monkeypatch.setattr(courses, "write_checkpoint", limited)
    for resumed in (False, True):
        seen, out = Seen(), tmp_path / str(resumed)
        if resumed:
            assert run_job([spec], out=out, watcher=seen, stop=seen.enough, **how).interrupted
        with monkeypatch.context() as patch:
            little(patch, 99_999, CPU, runs=1, after=6)
            assert not run_job([spec], out=out, **how).failures
        assert [record["resumed"] for record in records(out)] == [resumed] * 2
        for one, other in zip(records(tmp_path / "usual"), records(out), strict=True):
            assert other["result"]["test_loss"] == pytest.approx(one["result"]["test_loss"], rel=1e-4)  # as above


@pytest.mark.parametrize("at", ["refuse_model", "network", "start", "with_engine"])
def test_a_lack_of_memory_beside_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """It halves the stack, too; of a run alone it is one sentence."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("seeds: 1", "seeds: 2"), encoding="utf-8")
    usual, calls, lacking = getattr(loop, at), list[int](), 1

    def limited(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) <= lacking:
            raise torch.OutOfMemoryError(GPU)
        return usual(*arguments, **more)

    monkeypatch.setattr(loop, at, limited)
    assert not run_job([spec], out=tmp_path / "out", choices=Choices(device="cpu"), engine="vmap").failures
    assert all("found no memory" in record["environment"]["stack"] for record in records(tmp_path / "out"))
    lacking = 99
    ended = run_job([spec], out=tmp_path / "other", choices=Choices(device="cpu"), engine="vmap")
    assert {failure.error for failure in ended.failures} == {
        f"OutOfMemory: out of memory beside the steps of training ({GPU}): the model needs more than the device has"
    }


def test_a_run_that_lacks_memory_alone_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is more memory it goes on, with as many places at a time as any other run."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    for _ in range(2):
        with monkeypatch.context() as patch:
            little(patch, 0, CPU, after=7)
            ended = run_job([spec], out=tmp_path / "out", choices=Choices(device="cpu"), engine="vmap")
        assert "with one example of each run at a time" in ended.failures[0].error
    assert not run_job([spec], out=tmp_path / "out", choices=Choices(device="cpu"), engine="vmap").failures
    (record,) = records(tmp_path / "out")
    assert record["resumed"]
    assert record["environment"]["chunk"] > 64


@pytest.mark.parametrize("at", [(probe.Trial, "differentiated"), (vmap, "clipping")], ids=["model", "engine"])
def test_a_model_that_is_too_large_to_be_tried_is_no_mistake_of_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[Any, str]
) -> None:
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("[16]", "[17]" if at[0] is vmap else "[18]"), encoding="utf-8")  # not tried before

    def lacking(*_: Any) -> Any:
        raise RuntimeError(CPU)

    monkeypatch.setattr(*at, lacking)
    with pytest.raises(OutOfMemory, match=r"^out of memory when the model of small was tried \(.*\): the model needs"):
        run_job([spec], out=tmp_path / "out", choices=Choices(device="cpu"))


def test_a_checkpoint_is_written_without_a_second_copy(tmp_path: Path) -> None:
    state = State(torch.zeros(2, 10**6), {}, torch.ones(2, dtype=torch.int64))
    tracemalloc.start()
    place = checkpoints.Place("0" * 64, {}, 0.1, [2])
    checkpoints.write_checkpoint(tmp_path / "one.pt", place, {"step": 1}, state.take(slice(0, 1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "one.pt").stat().st_size > 4 * 10**6
    assert peak < 10**6


def test_nothing_is_drawn_again_of_secure_randomness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch would be drawn, and the smaller ones be kept: no step of the ledger."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("seeds: 1", "seeds: 2\nrandomness: secure"), encoding="utf-8")
    asked = little(monkeypatch, 20, CPU)
    ended = run_job([spec], out=tmp_path / "out", choices=Choices(device="cpu"), engine="vmap")
    assert len(asked) == 1
    assert len(ended.failures) == 2
    assert all("cannot be drawn again" in str(failure.error) for failure in ended.failures)


def test_another_engine_does_not_take_the_chunk_of_a_checkpoint(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    done: list[int] = []
    with pytest.raises(Interrupted):
        trained(
            [run],
            execution=Execution(engine="ghost", at_once=4),
            checkpoints=tmp_path / "kept",
            watch=lambda p: done.append(p.done),
            stop=lambda: len(done) >= 7,
        )
    told = trained([run], execution=Execution(engine="vmap"), checkpoints=tmp_path / "kept")[run.key]
    assert (told.engine, told.memory) == ("vmap", "")
    assert told.chunk is not None
    assert told.chunk > 64


def test_evaluation_halves_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    whole, evaluate, asked = trained([run])[run.key], loop.evaluate, list[int]()

    def limited(net: Any, theta_RP: Any, inputs: Any, targets: Any, places: int, *rest: Any) -> Any:
        asked.append(places)
        if places > 30:
            raise torch.OutOfMemoryError(GPU)
        return evaluate(net, theta_RP, inputs, targets, places, *rest)

    monkeypatch.setattr(loop, "evaluate", limited)
    told = trained([run])[run.key]
    assert asked[-1] <= 30 < asked[0]
    assert losses(told) == pytest.approx(losses(whole), rel=1e-6)  # the mean of a few hundred float32 losses


def test_the_plain_pass_of_the_lstm_takes_a_batch_in_one_call() -> None:
    """A kernel keeps bytes: counted as numbers they were four times as many."""
    net = network(imdb_lstm.model((150,), 2))
    one = torch.zeros(150), torch.tensor(0)
    assert places_of_a_call(Execution(), 1, build("rules", "none"), net, one, 32) >= 32


def test_what_torch_keeps_of_a_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stack that ended the driver says that little is left: torch has it, and gives it to the next one."""
    free, kept, used = 1 << 30, 3 << 30, 5 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 1 << 40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: used + kept)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: used)
    assert Execution("cuda").chunk(1, 1 << 10) == (free + kept) // 4 // (16 << 10)


def test_the_report_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    little(monkeypatch, 20, CPU)
    run_job([spec], out=tmp_path / "out", choices=Choices(device="cpu"), engine="vmap")
    (record,) = records(tmp_path / "out")
    assert record["environment"]["memory"] == "from step 0 on, 16 places at a time: more found no memory"
    assert "16 places at a time: more found no memory" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
