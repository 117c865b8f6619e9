"""What torch compiles: sums of full chunks and the bits of random numbers, both only where the work is long."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpbench.clipping import loop, vmap
from dpbench.clipping.rules.automatic import rule as automatic
from dpbench.judging.check_tools.problems import batch, small_network
from dpbench.mechanisms.presets import dp_sgd_jl, dplis, noisy_sgd, non_private
from dpbench.step.clipped_sum import Weight, clip_weight
from dpbench.step.functional import network
from dpbench.training import fastest
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted
from tests.training.test_fastest import SPEC
from tests.training.test_train import losses, runs_of, trained

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@needs_compiler
@pytest.mark.parametrize(
    ("runs", "weight", "others"),
    [
        (1, clip_weight, automatic().weight),
        (2, clip_weight, automatic().weight),
        pytest.param(2, automatic().weight, clip_weight, marks=pytest.mark.long),
    ],
)
def test_the_compiled_sum_is_that_of_the_loop(runs: int, weight: Weight, others: Weight) -> None:
    """With the weight of every rule that has an engine, the clipping one and that of automatic clipping.

    Two full chunks and a rest, with empty places, of examples of very different sizes; the bound is float32's.

    A gradient of 6 features is a sum of few products; the sum has at most 12 terms of size C or less, each off by about
    100 roundings of 6e-8: 12 * 6e-6 = 7e-5 of C in all. Norms are relative to their size.
    """
    net = small_network()
    theta_RP = torch.randn(runs, net.size, generator=torch.Generator().manual_seed(1))
    examples = batch(torch.Generator().manual_seed(2), runs, 12)
    examples = replace(examples, inputs=examples.inputs.float())
    clip_R = torch.linspace(0.5, 1.0, runs).double()
    engine = vmap.Compiled(net, weight)
    expected = loop.clipping(net, theta_RP, examples, clip_R, 5, weight)
    for _ in range(2):
        found = engine(net, theta_RP, examples, clip_R, 5, weight)
        assert not engine.refusal
        assert torch.allclose(found.sum_RP, expected.sum_RP, rtol=0, atol=7e-5)
        assert torch.allclose(found.norm_RB, expected.norm_RB, rtol=1e-5, atol=1e-7)
        assert torch.allclose(found.loss_RB, expected.loss_RB, rtol=1e-5, atol=1e-6)
    other = engine(net, theta_RP, examples, clip_R, 5, others)  # which is not compiled, and not forgotten
    assert torch.equal(other.sum_RP, vmap.clipping(net, theta_RP, examples, clip_R, 5, others).sum_RP)


def test_on_a_gpu_chunks_are_cuda_graphs_that_write_to_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for torch's compiler on a GPU: each call returns the tensors of the first of its size, overwritten."""
    made: dict[int, Any] = {}

    def compiled(function: Any, *, mode: str | None, **_: Any) -> Any:
        def replayed(*given: Any) -> Any:
            found = function(*given)
            kept = made.setdefault(found[1].shape[1], found)
            for old, new in zip((*kept[0].values(), *kept[1:]), (*found[0].values(), *found[1:]), strict=True):
                old.copy_(new)
            return kept

        assert mode == "reduce-overhead"
        return replayed

    class OnGpu(nn.Linear):
        def parameters(self, *_: Any) -> Any:
            return iter([SimpleNamespace(is_cuda=True)])

    monkeypatch.setattr(torch, "compile", compiled)
    net = network(OnGpu(6, 4))
    theta_RP = torch.randn(2, net.size, generator=torch.Generator().manual_seed(1))
    examples = batch(torch.Generator().manual_seed(2), 2, 12)
    examples = replace(examples, inputs=examples.inputs.float())
    clip_R, engine = torch.ones(2).double(), vmap.Compiled(net)
    found = engine(net, theta_RP, examples, clip_R, 5)
    expected = vmap.clipping(net, theta_RP, examples, clip_R, 5)
    assert set(made) == {5, 2}  # two full chunks, and the rest
    for at_once in range(3, 12):
        engine(net, theta_RP, examples, clip_R, at_once)
    assert len(made) == vmap.MOST_SIZES
    assert not engine.refusal
    for name in ("sum_RP", "norm_RB", "loss_RB"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-6)


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


@pytest.mark.long
def test_a_stack_that_shrinks_compiles_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises at the ninth, with an error that is no RuntimeError."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    net = small_network()
    for most, refused in ((vmap.MOST_SIZES, False), (20, True)):
        monkeypatch.setattr(vmap, "MOST_SIZES", most)
        engine = vmap.Compiled(net)
        for runs in range(12, 0, -1):
            theta_RP = torch.ones(runs, net.size)
            examples = batch(torch.Generator().manual_seed(2), runs, 4)
            examples = replace(examples, inputs=examples.inputs.float())
            engine(net, theta_RP, examples, torch.ones(runs).double(), 4)
        assert ("Recompile" in engine.refusal) == refused, engine.refusal


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


def test_a_checkpoint_does_not_compile_where_nothing_is_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    (run,) = runs_of(tmp_path, SPEC)
    done: list[int] = []
    kept = tmp_path / "kept"
    with pytest.raises(Interrupted):
        trained(
            [run],
            execution=Execution(engine="vmap compiled"),
            checkpoints=kept,
            watch=lambda p: done.append(p.done),
            stop=lambda: len(done) >= 7,
        )
    told = [
        trained([run], execution=Execution(compiles=yes), checkpoints=kept)[run.key].engine for yes in (True, False)
    ]
    assert told == ["vmap compiled", "vmap"]


@pytest.mark.parametrize("mechanism", ["noisy_sgd", "automatic_sgd"])
def test_what_is_called_compiled_calls_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    """Also where memory allows more places than a batch has, and with every rule's weight."""
    places = 0

    def compiled(function: Any, **_: Any) -> Any:
        def counted(named: Any, inputs: Any, *rest: Any) -> Any:
            nonlocal places
            places += inputs.shape[1]
            return function(named, inputs, *rest)

        return counted

    (run,) = runs_of(tmp_path, SPEC.replace("noisy_sgd", mechanism))
    usual = trained([run], execution=Execution(engine="vmap"))[run.key]
    monkeypatch.setattr(torch, "compile", compiled)
    told = trained([run], execution=Execution(engine="vmap compiled"))[run.key]
    assert told.engine == "vmap compiled"
    assert places > 0.7 * 64 * run.steps
    assert losses(told) == pytest.approx(losses(usual), rel=1e-4)  # rounding, see test_train.py


@needs_compiler
def test_a_record_says_that_there_is_no_compiler(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    absent = {"CXX": str(tmp_path / "no-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kept")}
    command = [sys.executable, "-m", "dpbench", "run", str(spec), "--device", "cpu", "--engine", "vmap compiled"]
    subprocess.run([*command, "--out", str(tmp_path / "out")], env=os.environ | absent, check=True)
    (path,) = (tmp_path / "out" / "records").iterdir()
    made = json.loads(path.read_text(encoding="utf-8"))["environment"]
    assert made["engine"] == {"clipping": "vmap"}
    assert "no-compiler" in made["tried_engines"]["vmap compiled"]
    assert "; not compiled: " in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("mechanism", "each"),
    [(noisy_sgd(), 1), (dplis(smoothing_samples=3), 4), (dp_sgd_jl(projections=5), 6), (non_private(), 0)],
    ids=["noise", "shifts", "projections", "none"],
)
def test_random_bits_are_compiled_where_a_stack_draws_many(
    monkeypatch: pytest.MonkeyPatch, mechanism: Any, each: int
) -> None:
    called: list[int] = []
    monkeypatch.setattr(fastest, "compile_words", lambda: called.append(1))
    runs: Any = [SimpleNamespace(steps=60), SimpleNamespace(steps=40)]
    monkeypatch.setattr(fastest, "MANY_NORMALS", max(1, each * 10 * 100))
    fastest.compile_draws(mechanism, 10, runs)
    assert len(called) == bool(each)
    monkeypatch.setattr(fastest, "MANY_NORMALS", each * 10 * 100 + 1)
    fastest.compile_draws(mechanism, 10, runs)
    assert len(called) == bool(each)


def test_they_are_not_compiled_in_a_smoke_test_or_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    called: list[int] = []

    def no_compiler() -> str:
        called.append(1)
        return "no C++ compiler"

    monkeypatch.setattr(fastest, "compile_words", no_compiler)
    monkeypatch.setattr(fastest, "MANY_NORMALS", 1)
    trained([run], execution=Execution(compiles=False))
    trained([run], smoke=True)
    assert not called
    told = trained([run])[run.key]
    assert called == [1]
    assert told.tried["compiled draws"] == "no C++ compiler"
