"""The engine that a spec leaves open: measured, told in the record, kept by a checkpoint, and nothing else changes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpbench.clipping import ghost, vmap
from dpbench.errors import DpbenchError
from dpbench.job import run as run_job
from dpbench.job import write_reports
from dpbench.mechanisms.presets import dplis, noisy_sgd
from dpbench.plan.planning import Choices, make_plan
from dpbench.reporting.collect import collect
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Clipped, RunByRun
from dpbench.step.functional import network
from dpbench.store.reading import digest
from dpbench.store.records import Store
from dpbench.training import fastest
from dpbench.training.execution import Execution, numbers_of_a_place, places_of_a_call
from dpbench.training.fastest import Chosen
from dpbench.training.loop import Interrupted
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


BOTH = ("vmap", "ghost", "plain")
WAYS = (*BOTH, "vmap run by run", "ghost run by run")


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    vmap: float,
    ghost: float | None,
    compiled: float | None = None,
    compiles: bool = True,
    alone: float = 0.02,
    places: int = 5,
    each: float = 0.0,
) -> Chosen:
    """What is chosen if a sum of two runs takes so many seconds; None: the engine refuses, or torch cannot compile.

    `alone`: seconds of one run's sum; `each`: seconds more for each place of a call.
    """

    def engine(seconds: float | None) -> Callable[..., Clipped]:
        def clipping(_net: Any, theta_RP: torch.Tensor, examples: Any, _clip: Any, chunk: int) -> Clipped:
            assert seconds is not None, "refused"
            time.sleep((seconds if len(theta_RP) > 1 else alone) + each * min(chunk, examples.mask_RB.shape[1]))
            return Clipped(theta_RP, theta_RP, theta_RP)

        return clipping

    named = {"vmap": engine(vmap), "ghost": engine(ghost)}

    class Compiled:
        refusal = "" if compiled is not None else "no compiler"

        def __init__(self, *_: Any) -> None:
            assert compiles

        def __call__(self, *_: Any) -> None:
            time.sleep(compiled or 0.0)

    monkeypatch.setattr(fastest, "Compiled", Compiled)
    monkeypatch.setattr(fastest, "find", lambda _, name: SimpleNamespace(load=lambda: named[name]))
    net = network(nn.Linear(2, 3))
    return fastest.fastest(
        noisy_sgd(),
        net,
        torch.zeros(2, net.size),
        torch.zeros(2),
        torch.tensor(0),
        places,
        steps,
        lambda _: 64,
        compiles=compiles,
    )


def test_the_fastest_is_chosen_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, 10**6, 0.02, 0.002).engine == "ghost"
    assert chosen(monkeypatch, 10**6, 0.002, 0.02).engine == "vmap"
    about_equal = chosen(monkeypatch, 10**6, 0.02, 0.018)
    assert (about_equal.engine, set(about_equal.seconds)) == ("vmap", {*WAYS, "vmap compiled"})
    long_and_short = chosen(monkeypatch, 1_000, 0.02, 0.002)
    assert (long_and_short.engine, set(long_and_short.seconds)) == ("ghost", {*BOTH})
    short = chosen(monkeypatch, 10, 0.02, 0.002)  # it repeats bit for bit
    assert (short.engine, set(short.seconds)) == ("vmap", {"vmap"})
    assert chosen(monkeypatch, 10**6, 0.02, None).engine == "vmap"


def test_an_engine_that_cannot_take_the_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a user's, which `ghost` refuses when it is asked for the numbers of a place."""

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bi,oi->bo", x, self.weight)

    net, one = network(Sums()), (torch.ones(2), torch.tensor(0))
    with pytest.raises(DpbenchError, match="ghost"):
        numbers_of_a_place(ghost.clipping, net, *one)
    monkeypatch.setattr(fastest, "SHORT", 0.0)
    theta_RP = torch.ones(2, net.size)

    def chunk(of: Any) -> int:
        return places_of_a_call(Execution(), 2, of, net, one, 5)

    for engines, expected in ((("vmap", "ghost"), "vmap"), (("ghost", "vmap"), "vmap"), (("ghost",), "ghost")):
        found = fastest.fastest(noisy_sgd(), net, theta_RP, *one, 5, 100, chunk, engines=engines)
        assert "ghost" not in found.seconds
        assert found.engine.partition(" ")[0] == expected


def test_a_stack_on_a_cpu_goes_run_by_run_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every engine that is not far slower than the best one, and not in short work."""
    found = chosen(monkeypatch, 4_000, 0.02, 0.02, alone=0.005)
    assert (found.engine, set(found.seconds)) == ("vmap run by run", {*WAYS})
    other = chosen(monkeypatch, 4_000, 0.05, 0.02, alone=0.005)
    assert (other.engine, set(other.seconds)) == ("ghost run by run", {*BOTH, "ghost run by run"})
    assert chosen(monkeypatch, 4_000, 0.02, 0.02, alone=0.015).engine == "vmap"
    assert set(chosen(monkeypatch, 100, 0.02, 0.02, alone=0.005).seconds) == {"vmap"}


def test_run_by_run_the_calls_are_as_large_as_for_one_run() -> None:
    net = network(nn.Linear(2, 3))
    engine = fastest.engine_named("ghost run by run", net)
    assert isinstance(engine, RunByRun)
    assert engine.engine is ghost.clipping
    one = torch.zeros(2), torch.tensor(0)
    calls = [places_of_a_call(Execution(places_per_call=40), 8, of, net, one, 5) for of in (engine, ghost.clipping)]
    assert calls == [40, 5]


def test_measuring_takes_a_small_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of it, and what is under way then."""
    monkeypatch.setattr(fastest, "SHARE", 0.0)
    assert set(chosen(monkeypatch, 4_000, 0.02, 0.02, alone=0.005).seconds) == {*BOTH}
    monkeypatch.setattr(fastest, "SHARE", 1e-4)
    assert set(chosen(monkeypatch, 4_000, 0.02, 0.02, alone=0.005).seconds) == {*BOTH, "vmap run by run"}


def test_less_at_a_time_is_taken_while_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves from the batch on, down to a few places; the seconds are those of what is taken."""
    found = chosen(monkeypatch, 4_000, 0.005, None, places=40, each=0.001)
    assert (found.engine, found.chunk) == ("vmap", 5)
    assert 0.01 <= float(found.seconds["vmap"]) < 0.015
    assert chosen(monkeypatch, 4_000, 0.02, None, places=40, each=0.00002).chunk is None
    assert chosen(monkeypatch, 4_000, 0.02, None, places=7, each=0.1).chunk is None
    assert chosen(monkeypatch, 10, 0.005, None, places=40, each=0.001).chunk is None


@pytest.mark.parametrize("engine", ["vmap", "ghost"])
def test_runs_of_a_stack_are_the_same_run_by_run(tmp_path: Path, engine: str) -> None:
    runs = runs_of(tmp_path, SPEC.replace("seeds: 1", "seeds: 3"))
    whole, apart = (trained(runs, execution=Execution(engine=name)) for name in (engine, f"{engine} run by run"))
    for key, outcome in apart.items():
        assert outcome.engine == f"{engine} run by run"
        assert losses(outcome) == pytest.approx(losses(whole[key]), rel=1e-4)  # rounding, see test_train.py


def test_compiling_is_tried_for_long_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 minutes, of 20 ms a step at least."""
    long = chosen(monkeypatch, 45_000, 0.02, 0.02, 0.005)
    assert (long.engine, set(long.seconds)) == ("vmap compiled", {*WAYS, "vmap compiled"})
    assert long.made is not None
    assert chosen(monkeypatch, 45_000, 0.02, 0.02, 0.019).engine == "vmap"
    refused = chosen(monkeypatch, 45_000, 0.02, 0.02, None)
    assert (refused.engine, refused.seconds["vmap compiled"]) == ("vmap", "no compiler")
    for other in (chosen(monkeypatch, 20_000, 0.02, 0.02, 0.0), chosen(monkeypatch, 45_000, 0.02, 0.02, 0.0, False)):
        assert (other.engine, set(other.seconds)) == ("vmap", {*WAYS})


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
    assert "plain" in found.seconds  # of the loss itself
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_record_says_what_was_used_and_a_named_engine_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())  # it takes seconds
    monkeypatch.setattr(
        "dpbench.training.fastest.fastest", lambda *_, **_more: Chosen("ghost", {"vmap": 0.5, "ghost": 0.1})
    )
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
    with pytest.raises(
        DpbenchError,
        match="engine = gost: expected one of ghost, loop, vmap, vmap compiled, vmap run by run, ghost run by run",
    ):
        run_job([tmp_path / "named.yaml"], out=tmp_path / "told", engine="gost")
    curves = [[point["test_loss"] for point in one["curve"]] for one in found.values()]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)  # rounding, see test_train.py


def test_an_engine_that_a_spec_names_may_go_run_by_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a stack on a CPU; no other is tried; record and plan tell it, and the report takes it for the named one."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    tried: list[Any] = []

    def answer(
        _mechanism: Any, _net: Any, theta_RP: torch.Tensor, *_: Any, compiles: bool, engines: Any, **_more: Any
    ) -> Chosen:
        tried.append((len(theta_RP), compiles, engines))
        if len(theta_RP) == 1:
            return Chosen("ghost", {"ghost": 0.1})
        return Chosen("ghost run by run", {"ghost": 0.4, "ghost run by run": 0.3, "plain": 0.1})

    monkeypatch.setattr("dpbench.training.fastest.fastest", answer)
    spec = tmp_path / "one.yaml"
    text = SPEC.replace("noisy_sgd", "{name: noisy_sgd, parameters: {clipping: ghost}}")
    spec.write_text(text.replace("seeds: 1", "seeds: 2"))
    for name in ("first", "again"):
        run_job([spec], out=tmp_path / name, choices=Choices(device="cpu"))
    assert tried == [(2, False, ("ghost",))]
    found = Store(tmp_path / "again").read().runs
    assert [one.environment["engine"] for one in found] == [{"clipping": "ghost run by run"}] * 2
    (row,) = collect(found).rows()
    assert row.other_engine is None
    plan = make_plan(load_specs([spec]), Store(tmp_path / "none"), Choices(device="cpu"))
    assert "ghost run by run, " in plan.runs[0].reason
    spec.write_text(text)  # one run
    run_job([spec], out=tmp_path / "alone", choices=Choices(device="cpu"))
    assert [one.environment["engine"] for one in Store(tmp_path / "alone").read().runs] == [{"clipping": "ghost"}]
    assert tried[1:] == [(1, False, ("ghost",))]


def test_what_was_fastest_is_remembered_and_shown_by_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By model, size of the stack, steps and code; not where nothing was compared. The report has it with the time."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    answers = [
        Chosen("vmap", {"vmap": 0.3}),
        Chosen("ghost", {"vmap": 0.5, "ghost": 0.3, "plain": 0.1}, chunk=9),
        Chosen("vmap", {}),
    ]
    asked: list[str] = []

    def answer(*_: Any, **_more: Any) -> Chosen:
        asked.append("")
        return answers[len(asked) - 1]

    monkeypatch.setattr("dpbench.training.fastest.fastest", answer)
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
    assert first["chunk"] == 9
    assert planned() == "no record yet; ghost, 9 at a time, 3.0 × the plain pass"
    page = write_reports(Store(tmp_path / "first"))[0].read_text()
    assert "ghost, 9 at a time, 3.0 × the plain pass" in page
    again = trained_in("again")
    assert len(asked) == 2
    assert [one["engine"] for one in (first, again)] == [{"clipping": "ghost"}] * 2
    assert again["tried_engines"] == first["tried_engines"] == answers[1].seconds
    assert again["chunk"] == 9
    with monkeypatch.context() as other:
        other.setenv("CXX", "absent")  # no compiler is another question, too
        assert planned() == "no record yet"
    run_job([spec], out=tmp_path / "threads", choices=Choices(device="cpu"), threads=2)  # another question
    assert len(asked) == 3
    run_job([spec], out=tmp_path / "told", choices=Choices(device="cpu"), places_per_call=20)
    (told,) = Store(tmp_path / "told").read().runs
    assert (len(asked), told.environment["engine"], told.environment["chunk"]) == (3, {"clipping": "ghost"}, 20)
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


OWN_MODEL = """
import torch
def built(shape, classes):
    layers = torch.nn.Linear(64, %d), torch.nn.Tanh(), torch.nn.Linear(%d, classes)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)
"""


def test_what_was_fastest_is_remembered_of_a_model_of_ones_own_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    asked: list[str] = []

    def answer(*_: Any, **_more: Any) -> Chosen:
        asked.append("")
        return Chosen("ghost", {"vmap": 0.5, "ghost": 0.3, "plain": 0.1}, chunk=9)

    monkeypatch.setattr("dpbench.training.fastest.fastest", answer)
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, width in (("ours_1", 16), ("ours_2", 16), ("ours_3", 20)):
        (tmp_path / f"{name}.py").write_text(OWN_MODEL % (width, width))
        spec = tmp_path / f"{name}.yaml"
        spec.write_text(SPEC.replace("{name: mlp, parameters: {hidden: [16], activation: tanh}}", f"'{name}:built'"))
        for out in ("once", "twice")[: 2 if name == "ours_1" else 1]:
            run_job([spec], out=tmp_path / name / out, choices=Choices(device="cpu"), allow_code=True)
    assert len(asked) == 2, "the second file is the first one's code"


def test_a_checkpoint_keeps_engine_and_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(tmp_path, SPEC)
    answers = iter([Chosen("ghost", chunk=7), Chosen("ghost", chunk=7)])
    monkeypatch.setattr("dpbench.training.fastest.fastest", lambda *_, **_more: next(answers))
    whole = trained([run])[run.key]
    done: list[int] = []
    with pytest.raises(Interrupted):
        trained([run], checkpoints=tmp_path / "kept", watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 17)
    resumed = trained([run], checkpoints=tmp_path / "kept")[run.key]  # a third measurement would raise
    assert (resumed.engine, resumed.chunk, whole.chunk) == ("ghost", 7, 7)
    assert losses(resumed) == losses(whole)
    (other,) = runs_of(tmp_path, SPEC.replace("seeds: 1", "seeds: [1]"))
    apart = trained([run, other], checkpoints=tmp_path / "kept")  # in another stack with the chunk of that
    assert [one.chunk == 7 for one in apart.values()] == [False, False]
    (path,) = (tmp_path / "kept").glob(f"{run.key}*")
    told: list[str] = []
    content = path.read_bytes()
    assert b'"engine": "ghost"' in content
    forge(path, content.replace(b'"engine": "ghost"', b'"engine": "no_eng"'))
    monkeypatch.setattr("dpbench.training.fastest.fastest", lambda *_, **_more: Chosen("vmap"))
    again = trained([run], checkpoints=tmp_path / "kept", anew=lambda _, why: told.append(why))[run.key]
    assert "engine = 'no_eng': expected one of" in told[0]
    assert again.engine == "vmap"
    forge(path, content.replace(b'"chunk": [7, 1]', b'"chunk": [0, 1]'))
    trained([run], checkpoints=tmp_path / "kept", anew=lambda _, why: told.append(why))
    assert "chunk = [0, 1]: expected places of a call and runs of the stack" in told[1]


def test_a_stack_of_views_may_go_run_by_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`augment`: the first engine is tried with views of the example, in the stack and run by run, and no other."""
    monkeypatch.setattr(fastest, "SHORT", 0.0)
    text = SPEC.replace(
        "noisy_sgd",
        "{name: pipeline, parameters: {augment: {name: crop_and_flip, parameters: {views: 2, padding: 1}}}}",
    )
    runs = runs_of(tmp_path, text.replace("seeds: 1", "seeds: 2"))
    (one, other) = trained(runs).values()
    assert set(one.tried) == {"vmap", "vmap run by run", "plain"}
    whole = trained(runs, execution=Execution(engine="vmap"))
    for outcome in (one, other):
        assert losses(outcome) == pytest.approx(losses(whole[outcome.run.key]), rel=1e-4)  # rounding, see test_train.py


def forge(path: Path, content: bytes) -> None:
    """Write a checkpoint with its SHA-256 made to fit."""
    head, _, rest = content.partition(b"\n")
    body = rest.partition(b"\n")[2]
    path.write_bytes(head + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


CHANGING = """
import os, torch
class Layer(torch.nn.Linear):
    def forward(self, x):
        return torch.einsum("bi,oi->bo", x, self.weight) if "ODD" in os.environ else super().forward(x)
def built(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), Layer(64, classes))
"""


def test_an_engine_that_is_remembered_and_no_longer_takes_the_model_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a model of one's own depends on besides its code is no part of the question."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    answers = iter([Chosen("ghost", {"vmap": 0.5, "ghost": 0.3, "plain": 0.1}), Chosen("vmap", {"vmap": 0.5})])
    monkeypatch.setattr("dpbench.training.fastest.fastest", lambda *_, **_more: next(answers))
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ours_changing.py").write_text(CHANGING)
    spec = tmp_path / "one.yaml"
    spec.write_text(SPEC.replace("{name: mlp, parameters: {hidden: [16], activation: tanh}}", "'ours_changing:built'"))
    for out, engine in (("first", "ghost"), ("then", "vmap")):
        run_job([spec], out=tmp_path / out, choices=Choices(device="cpu"), allow_code=True)
        assert [one.environment["engine"] for one in Store(tmp_path / out).read().runs] == [{"clipping": engine}]
        monkeypatch.setenv("ODD", "1")
