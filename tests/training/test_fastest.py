"""The engine that a spec leaves open: measured, told in the record, kept by a checkpoint, and nothing else changes."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpbench.clipping import ghost, loop, vmap
from dpbench.clipping.rules.automatic import rule as automatic
from dpbench.errors import DpbenchError
from dpbench.job import run as run_job
from dpbench.job import write_reports
from dpbench.judging.check_tools.problems import batch, small_network
from dpbench.mechanisms.presets import dplis, noisy_sgd
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import load_specs
from dpbench.step.functional import network
from dpbench.store.reading import digest
from dpbench.store.records import Store
from dpbench.training import fastest
from dpbench.training.fastest import Chosen
from dpbench.training.loop import Execution, Interrupted, numbers_of_a_place
from tests.training.test_train import losses, runs_of, trained

SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [16], activation: tanh}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 64, steps: 40, learning_rate: 0.25, clip_norm: 1.0}
seeds: 1
"""


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    vmap: float,
    ghost: float | None,
    compiled: float | None = None,
    compiles: bool = True,
) -> Chosen:
    """What is chosen if a sum takes so many seconds; None: the engine refuses, or torch cannot compile."""

    def engine(seconds: float | None) -> Callable[..., None]:
        def clipping(*_: Any) -> None:
            assert seconds is not None, "refused"
            time.sleep(seconds)

        return clipping

    named = {"vmap": engine(vmap), "ghost": engine(ghost)}

    class Compiled:
        refusal = "" if compiled is not None else "no compiler"

        def __init__(self, _: Any) -> None:
            assert compiles

        def __call__(self, *_: Any) -> None:
            time.sleep(compiled or 0.0)

    monkeypatch.setattr(fastest, "Compiled", Compiled)
    monkeypatch.setattr(fastest, "find", lambda _, name: SimpleNamespace(load=lambda: named[name]))
    net = network(nn.Linear(2, 3))
    return fastest.fastest(
        noisy_sgd(), net, torch.zeros(2, net.size), torch.zeros(2), torch.tensor(0), 5, steps, lambda _: 5, compiles
    )


def test_the_fastest_is_chosen_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, 10**6, 0.02, 0.002).engine == "ghost"
    assert chosen(monkeypatch, 10**6, 0.002, 0.02).engine == "vmap"
    about_equal = chosen(monkeypatch, 10**6, 0.02, 0.018)
    assert (about_equal.engine, set(about_equal.seconds)) == ("vmap", {"vmap", "ghost", "plain", "vmap compiled"})
    short = chosen(monkeypatch, 10, 0.02, 0.002)  # it repeats bit for bit
    assert (short.engine, set(short.seconds)) == ("vmap", {"vmap"})
    assert chosen(monkeypatch, 10**6, 0.02, None).engine == "vmap"


def test_compiling_is_tried_for_long_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 minutes, of 20 ms a step at least."""
    long = chosen(monkeypatch, 45_000, 0.02, 0.02, 0.005)
    assert (long.engine, set(long.seconds)) == ("vmap compiled", {"vmap", "ghost", "plain", "vmap compiled"})
    assert long.made is not None
    assert chosen(monkeypatch, 45_000, 0.02, 0.02, 0.019).engine == "vmap"
    refused = chosen(monkeypatch, 45_000, 0.02, 0.02, None)
    assert (refused.engine, refused.seconds["vmap compiled"]) == ("vmap", "no compiler")
    for other in (chosen(monkeypatch, 20_000, 0.02, 0.02, 0.0), chosen(monkeypatch, 45_000, 0.02, 0.02, 0.0, False)):
        assert (other.engine, set(other.seconds)) == ("vmap", {"vmap", "ghost", "plain"})


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@needs_compiler
@pytest.mark.parametrize("runs", [1, 2])
def test_the_compiled_sum_is_that_of_the_loop(runs: int) -> None:
    """Two full chunks and a rest, with empty places, of examples of very different sizes; the bound is float32's.

    A gradient of 6 features is a sum of few products; the sum has at most 12 terms of size C or less, each off by about
    100 roundings of 6e-8: 12 * 6e-6 = 7e-5 of C in all. Norms are relative to their size.
    """
    net = small_network()
    theta_RP = torch.randn(runs, net.size, generator=torch.Generator().manual_seed(1))
    examples = batch(torch.Generator().manual_seed(2), runs, 12)
    examples = replace(examples, inputs=examples.inputs.float())
    clip_R = torch.linspace(0.5, 1.0, runs).double()
    engine = vmap.Compiled(net)
    expected = loop.clipping(net, theta_RP, examples, clip_R, 5)
    for _ in range(2):
        found = engine(net, theta_RP, examples, clip_R, 5)
        assert not engine.refusal
        assert torch.allclose(found.sum_RP, expected.sum_RP, rtol=0, atol=7e-5)
        assert torch.allclose(found.norm_RB, expected.norm_RB, rtol=1e-5, atol=1e-7)
        assert torch.allclose(found.loss_RB, expected.loss_RB, rtol=1e-5, atol=1e-6)
    weight = automatic().weight
    other = engine(net, theta_RP, examples, clip_R, 5, weight)  # which is not compiled, and not forgotten
    assert torch.equal(other.sum_RP, vmap.clipping(net, theta_RP, examples, clip_R, 5, weight).sum_RP)


def test_what_torch_cannot_compile_is_computed_all_the_same() -> None:
    class Breaks(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(input)

    net = network(Breaks(6, 4))
    theta_RP = torch.ones(1, net.size)
    examples = batch(torch.Generator().manual_seed(2), 1, 10)
    examples = replace(examples, inputs=examples.inputs.float())
    engine, clip_R = vmap.Compiled(net), torch.ones(1).double()
    found = engine(net, theta_RP, examples, clip_R, 5)
    assert torch.equal(found.sum_RP, vmap.clipping(net, theta_RP, examples, clip_R, 5).sum_RP)
    assert "graph_break" in engine.refusal or "Unsupported" in engine.refusal
    assert "recurrent layers" in vmap.Compiled(network(nn.LSTM(2, 2))).refusal  # which would take many minutes


@needs_compiler
def test_a_compiled_run_is_the_same_run_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    usual = losses(trained([run], execution=Execution(engine="vmap"))[run.key])
    execution = Execution(engine="vmap compiled", places_per_call=20)
    whole = trained([run], execution=execution)[run.key]
    assert (whole.engine, whole.tried) == ("vmap compiled", {})
    assert losses(whole) == pytest.approx(usual, rel=1e-4)  # rounding, see test_train.py
    done: list[int] = []
    with pytest.raises(Interrupted):
        trained(
            [run],
            execution=execution,
            checkpoints=tmp_path / "kept",
            watch=lambda p: done.append(p.done),
            stop=lambda: len(done) >= 17,
        )
    resumed = trained([run], execution=Execution(places_per_call=20), checkpoints=tmp_path / "kept")[run.key]
    assert resumed.engine == "vmap compiled"
    assert losses(resumed) == losses(whole)


@pytest.mark.parametrize("mechanism", [noisy_sgd(), dplis(smoothing_samples=3)], ids=["plain", "smoothed"])
def test_wide_layers_take_ghost(mechanism: Any) -> None:
    """By a factor of ten and more on the machines of today, so that the choice is no matter of luck."""
    net = network(nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)))
    theta_RP = torch.randn(1, net.size, generator=torch.Generator().manual_seed(0)) / 30
    example, target = torch.zeros(784), torch.tensor(0)

    def chunk(engine: Any) -> int:
        return Execution().chunk(1, numbers_of_a_place(engine, net, example, target))

    assert numbers_of_a_place(vmap.clipping, net, example, target, 10) == net.size  # one gradient, the mean
    kept = numbers_of_a_place(ghost.clipping, net, example, target)
    assert numbers_of_a_place(ghost.clipping, net, example, target, 10) == 10 * kept
    state = torch.random.get_rng_state()
    found = fastest.fastest(mechanism, net, theta_RP, example, target, 64, 10**6, chunk)
    assert found.engine == "ghost", found
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_record_says_what_was_used_and_a_named_engine_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())  # it takes seconds
    monkeypatch.setattr("dpbench.training.loop.fastest", lambda *_: Chosen("ghost", {"vmap": 0.5, "ghost": 0.1}))
    found = {}
    for name, mechanism in (("open", "noisy_sgd"), ("named", "{name: noisy_sgd, parameters: {clipping: loop}}")):
        (tmp_path / f"{name}.yaml").write_text(SPEC.replace("noisy_sgd", mechanism))
        (run,) = make_plan(load_specs([tmp_path / f"{name}.yaml"]), Store(tmp_path), Choices(device="cpu")).runs
        assert run.engine == {"clipping": "fastest" if name == "open" else "loop"}
        run_job([tmp_path / f"{name}.yaml"], out=tmp_path / name, choices=Choices(device="cpu"))
        found[name] = json.loads(Store(tmp_path / name).run_path(run.key).read_text())
    assert found["open"]["run_key"] == found["named"]["run_key"]
    assert found["open"]["environment"]["engine"] == {"clipping": "ghost"}
    assert found["open"]["environment"]["tried_engines"] == {"vmap": 0.5, "ghost": 0.1}
    assert found["named"]["environment"]["engine"] == {"clipping": "loop"}
    assert "tried_engines" not in found["named"]["environment"]
    run_job([tmp_path / "named.yaml"], out=tmp_path / "told", choices=Choices(device="cpu"), engine="vmap")
    told = json.loads(Store(tmp_path / "told").run_path(run.key).read_text())
    assert told["environment"]["engine"] == {"clipping": "vmap"}
    with pytest.raises(DpbenchError, match="engine = gost: expected one of ghost, loop, vmap, vmap compiled"):
        run_job([tmp_path / "named.yaml"], out=tmp_path / "told", engine="gost")
    curves = [[point["test_loss"] for point in one["curve"]] for one in found.values()]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)  # rounding, see test_train.py


def test_what_was_fastest_is_remembered_and_shown_by_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By model, size of the stack, steps and code; not where nothing was compared. The report has it with the time."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    answers = [Chosen("vmap", {"vmap": 0.3}), Chosen("ghost", {"vmap": 0.5, "ghost": 0.3, "plain": 0.1})]
    asked: list[str] = []

    def answer(*_: Any) -> Chosen:
        asked.append("")
        return answers[len(asked) - 1]

    monkeypatch.setattr("dpbench.training.loop.fastest", answer)
    spec = tmp_path / "one.yaml"
    spec.write_text(SPEC)

    def trained_in(name: str) -> Any:
        run_job([spec], out=tmp_path / name, choices=Choices(device="cpu"))
        (path,) = Store(tmp_path / name).records_folder.iterdir()
        return json.loads(path.read_text())["environment"]

    def planned() -> str:
        (run,) = make_plan(load_specs([spec]), Store(tmp_path / "none"), Choices(device="cpu")).runs
        return run.reason

    assert planned() == "no record yet"
    trained_in("untried")
    assert planned() == "no record yet"
    first = trained_in("first")
    chunk = first["chunk"]
    assert planned() == f"no record yet; ghost, {chunk} at a time, 3.0 × the plain pass"
    page = write_reports(Store(tmp_path / "first"))[0].read_text()
    assert f"ghost, {chunk} at a time, 3.0 × the plain pass" in page
    again = trained_in("again")
    assert len(asked) == 2
    assert [one["engine"] for one in (first, again)] == [{"clipping": "ghost"}] * 2
    assert again["tried_engines"] == first["tried_engines"] == answers[1].seconds
    assert again["chunk"] == chunk
    spec.write_text(SPEC.replace("steps: ", "steps: 1"))  # other work
    assert planned() == "no record yet"
    spec.write_text(SPEC)
    cache = tmp_path / "cache" / "plan.json"
    content = json.loads(cache.read_text())
    (known,) = content["engines"].values()
    for wrong in ({"engine": "gost"}, {"chunk": 0}, {"seconds": {"ghost": -1.0}}, {"seconds": 3}):
        forged = {**content, "engines": dict.fromkeys(content["engines"], known | wrong)}
        cache.write_text(json.dumps({**forged, "digest": digest(forged)}))
        answers.append(Chosen("vmap", {"vmap": 0.3}))
        assert trained_in(str(wrong)[:12])["engine"] == {"clipping": "vmap"}


def test_a_checkpoint_keeps_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    answers = iter([Chosen("ghost"), Chosen("ghost")])
    monkeypatch.setattr("dpbench.training.loop.fastest", lambda *_: next(answers))
    whole = trained([run])[run.key]
    done: list[int] = []
    with pytest.raises(Interrupted):
        trained([run], checkpoints=tmp_path / "kept", watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 17)
    resumed = trained([run], checkpoints=tmp_path / "kept")[run.key]  # a third measurement would raise
    assert resumed.engine == "ghost"
    assert losses(resumed) == losses(whole)
    (path,) = (tmp_path / "kept").iterdir()
    told: list[str] = []
    content = path.read_bytes()
    assert b'"engine": "ghost"' in content
    forge(path, content.replace(b'"engine": "ghost"', b'"engine": "no_eng"'))
    monkeypatch.setattr("dpbench.training.loop.fastest", lambda *_: Chosen("vmap"))
    again = trained([run], checkpoints=tmp_path / "kept", anew=lambda _, why: told.append(why))[run.key]
    assert "engine = 'no_eng': expected one of" in told[0]
    assert again.engine == "vmap"


def forge(path: Path, content: bytes) -> None:
    """Write a checkpoint with its SHA-256 made to fit."""
    head, _, rest = content.partition(b"\n")
    body = rest.partition(b"\n")[2]
    path.write_bytes(head + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def test_out_of_memory_halves_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same step again with less at a time, down to one place; what is no lack of memory is raised as it is."""
    (run,) = runs_of(tmp_path, SPEC)
    whole = trained([run])[run.key]
    clipping, seen = vmap.clipping, []

    def little(most: int, words: str) -> Callable[..., Any]:
        def limited(net: Any, theta_RP: Any, examples: Any, clip_R: Any, chunk: int, *rest: Any) -> Any:
            seen.append(chunk)
            if chunk > most:
                raise RuntimeError(words)
            return clipping(net, theta_RP, examples, clip_R, chunk, *rest)

        return limited

    monkeypatch.setattr(
        vmap, "clipping", little(20, "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
    )
    told = trained([run], execution=Execution(places_per_call=100, engine="vmap"))[run.key]
    assert (seen[:4], told.chunk) == ([100, 50, 25, 12], 12)
    assert losses(told) == pytest.approx(losses(whole), rel=1e-4)
    monkeypatch.setattr(vmap, "clipping", little(0, "CUDA out of memory. Tried to allocate 2 TiB"))
    with pytest.raises(DpbenchError, match="out of memory with one example of each run at a time"):
        trained([run], execution=Execution(places_per_call=4, engine="vmap"))
    monkeypatch.setattr(vmap, "clipping", little(0, "shapes do not fit"))
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$"):
        trained([run], execution=Execution(engine="vmap"))
