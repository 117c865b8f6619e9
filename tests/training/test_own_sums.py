"""A rule that sums itself in some way (JL): stack and chunk are measured before training, and change no result."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpbench import randomness
from dpbench.clipping.rules.jl import ProjectedSum
from dpbench.job import run as run_job
from dpbench.mechanisms.presets import dp_sgd_jl, non_private
from dpbench.plan.planning import Choices, make_plan
from dpbench.reporting.collect import collect
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Clipped
from dpbench.step.functional import network
from dpbench.store.records import Store
from dpbench.training import fastest
from dpbench.training.execution import Execution
from dpbench.training.fastest import Chosen
from dpbench.training.loop import Interrupted
from tests.training.test_fastest import SPEC, forge
from tests.training.test_train import losses, runs_of, trained

JL = SPEC.replace("noisy_sgd", "{name: dp_sgd_jl, parameters: {projections: 3}}").replace("seeds: 1", "seeds: 3")


def chosen(
    whole: float,
    alone: float,
    steps: int = 10_000,
    each: float = 0.0,
    places: int = 5,
    usual: str = "layers",
    secure: bool = False,
    calls: list[int] | None = None,
) -> Chosen:
    """What is chosen if a sum of two runs takes `whole` seconds, one `alone`, and `each` more a place of a call.

    `calls` gets the number of runs of every call.
    """
    sizes: list[int] = []

    class Slow(ProjectedSum):
        def summed(self, draw: Any, net: Any, theta_RP: Any, examples: Any, clip_R: Any, chunk: int) -> Clipped:
            assert len(draw.keys_RS) == len(theta_RP) == len(clip_R)
            assert net.size == theta_RP.shape[1]
            assert randomness.from_system(draw.keys_RS) == secure
            assert not examples.looks
            if calls is not None:
                calls.append(len(theta_RP))
            sizes.append(examples.mask_RB.shape[1])
            time.sleep((whole if len(theta_RP) > 1 else alone) + each * min(chunk, sizes[-1]))
            return Clipped(theta_RP, examples.mask_RB.double(), examples.mask_RB.double())

    net = network(nn.Linear(2, 3))
    mechanism = replace(dp_sgd_jl(), rule=Slow())
    one = torch.zeros(2), torch.tensor(0)
    found = fastest.fastest(
        mechanism,
        net,
        torch.zeros(2, net.size),
        *one,
        places,
        steps,
        lambda _: 64,
        compiles=False,
        secure=secure,
        engines=(usual,),
    )
    assert set(sizes) <= {places}, "a whole batch, because projections are drawn whatever its size is"
    return found


def test_run_by_run_and_less_at_a_time_are_taken_where_they_are_faster() -> None:
    found = chosen(0.02, 0.005)
    assert (found.engine, set(found.seconds)) == ("layers run by run", {"layers", "layers run by run", "plain"})
    assert chosen(0.02, 0.015, secure=True).engine == "layers"
    for whole, alone, expected in ((0.02, 0.005, "layers run by run"), (0.005, 0.02, "layers")):
        other = chosen(whole, alone, usual="layers run by run")
        assert (other.engine, set(other.seconds)) == (expected, {"layers", "layers run by run", "plain"})
    less = chosen(0.002, 0.02, each=0.0005, places=64)
    assert (less.engine, less.chunk) == ("layers", 4)
    assert set(chosen(0.02, 0.005, steps=100).seconds) == {"layers"}, "short work is not measured further"


def test_a_trial_takes_a_small_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where two sums are more than a twentieth of it, one sum where that is long, none that chooses nothing."""
    calls: list[int] = []
    assert chosen(0.02, 0.005, steps=39, calls=calls) == Chosen("layers")
    assert calls == []
    monkeypatch.setattr(fastest, "SHORT", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(fastest, "LONGEST", 0.01)
        assert chosen(0.02, 0.005, calls=calls) == Chosen("layers")
    assert calls == [2]
    calls.clear()
    found = chosen(0.25, 0.1, steps=40, places=7, calls=calls)  # too few places to be cut
    assert (found.engine, calls) == ("layers run by run", [2, 2, 1, 1, 1, 1])


def test_only_a_pipelines_rule_with_ways_of_its_own_is_asked() -> None:
    assert fastest.own_way(SimpleNamespace(rule=ProjectedSum())) == ""  # a mechanism of another package
    assert [fastest.own_way(one) for one in (dp_sgd_jl(), dp_sgd_jl(way="vjp"), non_private())] == ["layers", "vjp", ""]


@pytest.mark.parametrize(
    ("seeds", "hidden", "memory", "way"),
    [(3, 16, 21, ""), (3, 4096, 21, " run by run"), (3, 4096, 25, ""), (1, 4096, 21, "")],
)
def test_without_a_measurement_large_work_goes_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int, hidden: int, memory: int, way: str
) -> None:
    """Where memory has no room to spare: a batch of 64 with 300,000 parameters."""
    monkeypatch.setattr("dpbench.training.execution.CPU_CALL_BYTES", 1 << memory)
    text = JL.replace("seeds: 3", f"seeds: {seeds}").replace("[16]", f"[{hidden}]").replace("steps: 40", "steps: 1")
    assert {one.engine for one in trained(runs_of(tmp_path, text)).values()} == {f"layers{way}"}


def test_a_stack_is_the_same_run_by_run_and_its_record_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured for real, remembered, shown by the plan, kept by a checkpoint; an engine is no way of this rule."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    runs = runs_of(tmp_path, JL)
    whole, apart = (trained(runs, execution=Execution(engine=name)) for name in ("layers", "layers run by run"))
    for key, outcome in apart.items():
        assert [outcome.engine, whole[key].engine] == ["layers run by run", "layers"]
        assert losses(outcome) == pytest.approx(losses(whole[key]), rel=1e-4)  # rounding, see test_train.py
    monkeypatch.setattr(fastest, "SHORT", 0.0)
    for outcome in trained(runs, execution=Execution(engine="ghost")).values():
        assert set(outcome.tried) == {"layers", "layers run by run", "plain"}
    seconds = {"layers": 0.4, "layers run by run": 0.3, "plain": 0.1}
    answers = [Chosen("layers run by run", seconds, chunk=9)]
    monkeypatch.setattr(fastest, "fastest", lambda *_, **_more: answers.pop())
    spec = tmp_path / "one.yaml"
    spec.write_text(JL)
    for name in ("first", "again"):  # a second measurement would raise
        run_job([spec], out=tmp_path / name, choices=Choices(device="cpu"))
        records = Store(tmp_path / name).read().runs
        assert len(records) == 3
        (row,) = collect(records).rows()
        assert (row.other_engine, row.summed_by) == (None, "layers run by run, 9 at a time, 3.0 × the plain pass")
        for record in records:
            assert record.environment["engine"] == {"way": "layers run by run"}
            assert (record.environment["chunk"], record.environment["tried_engines"]) == (9, seconds)
    plan = make_plan(load_specs([spec]), Store(tmp_path / "none"), Choices(device="cpu"))
    assert plan.runs[0].reason.endswith("layers run by run, 9 at a time, 3.0 × the plain pass")


def test_a_checkpoint_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, done = runs_of(tmp_path, JL), list[int]()
    answers = iter([Chosen("layers run by run", chunk=7)])
    monkeypatch.setattr(fastest, "fastest", lambda *_, **_more: next(answers))
    kept = tmp_path / "kept"
    with pytest.raises(Interrupted):
        trained(runs, checkpoints=kept, watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 17)
    told: list[str] = []
    for outcome in trained(runs, checkpoints=kept, anew=lambda _, why: told.append(why)).values():
        assert (outcome.engine, outcome.chunk) == ("layers run by run", 7)
    assert not told


@pytest.mark.parametrize(
    ("text", "other"), [(JL, "ghost"), (JL, "vjp run by run"), (SPEC, "layers"), (SPEC, "layers run by run")]
)
def test_a_way_of_another_kind_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, other: str
) -> None:
    """From a checkpoint or `--engine`: it is measured as if there were none."""
    runs, done, kept = runs_of(tmp_path, text), list[int](), tmp_path / "kept"
    mine = "layers" if text == JL else "vmap"
    monkeypatch.setattr(fastest, "fastest", lambda *_, **_more: Chosen(mine))
    for outcome in trained(runs, execution=Execution(engine=other)).values():
        assert (outcome.engine, outcome.error) == (mine, None)
    with pytest.raises(Interrupted):
        trained(runs, checkpoints=kept, watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 5)
    for path in kept.iterdir():
        forge(path, path.read_bytes().replace(f'"engine": "{mine}"'.encode(), f'"engine": "{other}"'.encode()))
        assert f'"engine": "{other}"'.encode() in path.read_bytes()
    for outcome in trained(runs, checkpoints=kept).values():
        assert (outcome.engine, outcome.error) == (mine, None)
