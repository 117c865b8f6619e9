"""Internal: tests of times leave out the measurement of memory, which takes seconds.

`dpbench bench --steps`: whole steps of rows of specs, kept and shown.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dpbench.catalog import find
from dpbench.cli import cli
from dpbench.clipping import ghost
from dpbench.clipping.rules.none import Unclipped
from dpbench.errors import DpbenchError
from dpbench.job import write_reports
from dpbench.judging.check_tools.problems import batch, small_network
from dpbench.plan.planning import chosen_by
from dpbench.privacy.formatting import number
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import network
from dpbench.store.provenance import environment
from dpbench.store.records import Damaged, Store
from dpbench.store.speed import Speed, StepLine, commit_of, own_speed, read_speed, write_speed
from dpbench.store.speed_targets import MODELS
from dpbench.training import fastest, loop, whole_steps
from dpbench.training.bench import measure
from dpbench.training.fastest import Chosen
from dpbench.training.whole_steps import measure_steps, with_open_engine

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: small
source: a table of nobody
dataset: digits
model: {name: mlp, parameters: {hidden: [256]}}
mechanism: {name: noisy_sgd, parameters: {clipping: ghost}}
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 300, learning_rate: 0.5}
rows:
  - {label: plain, mechanism: non_private, budget: none, published: {seconds_per_epoch: 2}}
  - {label: outer, training: {clip_norm: 1.0}, published: {seconds_per_epoch: 5, memory_percent: 12}}
  - {label: vanilla, mechanism: {name: noisy_sgd, parameters: {clipping: loop}}, training: {clip_norm: 1.0}}
  - {label: open, mechanism: noisy_sgd, training: {clip_norm: 1.0}}
  - {label: short, mechanism: noisy_sgd, training: {clip_norm: 1.0, steps: 1}}
seeds: 1
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepLine]:
    path = tmp_path_factory.mktemp("measured") / "small.yaml"
    path.write_text(SPEC)
    compiled = torch.compile
    with pytest.MonkeyPatch.context() as patch:  # the compiler itself takes a quarter of a minute
        patch.setattr(
            torch, "compile", lambda loss, fullgraph: compiled(loss, fullgraph=fullgraph, backend="aot_eager")
        )
        return {line.label: line for line in measure_steps(load_specs([path]), steps=3, runs=2)}


def test_every_row_is_measured_as_it_is_trained(lines: dict[str, StepLine]) -> None:
    assert list(lines) == ["plain", "outer", "vanilla", "open", "short"]
    assert "one step" in lines["short"].refusal
    lines = {label: line for label, line in lines.items() if label != "short"}
    for label, line in lines.items():
        assert line.seconds is not None
        assert line.fastest is not None
        assert line.slowest is not None
        assert 0 < line.fastest <= line.seconds <= line.slowest
        assert (line.steps, line.runs, line.baseline) == (2 * 3, 2, "plain"), label
        assert line.batch == pytest.approx(96)
        assert line.epoch_seconds == pytest.approx(line.seconds / 2 * line.epoch_steps)
        assert line.runs_steps_per_second == pytest.approx(2 / line.seconds)
    assert {label: line.engine for label, line in lines.items() if label in ("outer", "vanilla")} == {
        "outer": "ghost",
        "vanilla": "loop",
    }
    assert lines["open"].engine in ("vmap", "ghost")
    assert lines["outer"].run_key == lines["vanilla"].run_key  # rows that differ in their engine alone
    assert len({line.key for line in lines.values()}) == 4
    assert all(0 < sum(share for _, share in line.operators) <= 1 for line in lines.values())
    assert {line.commit for line in lines.values()} == {commit_of(environment())}
    assert (lines["outer"].printed_seconds, lines["outer"].printed_memory) == ("5", "12")
    numbers = 18_000  # of the model, about: loop keeps few gradients, ghost none, and a step a few copies of two models
    assert lines["outer"].peak_bytes is not None
    assert 4 * numbers < lines["outer"].peak_bytes < 4 * numbers * 96


def test_a_row_without_privacy_has_a_compiled_step_too(lines: dict[str, StepLine], tmp_path: Path) -> None:
    plain = lines["plain"]
    assert plain.compiled_refusal == ""
    assert plain.compiled_seconds is not None
    assert 0 < plain.compiled_seconds < 60 * (plain.seconds or 0), "compiling itself does not count"
    assert {line.compiled_seconds for label, line in lines.items() if label != "plain"} == {None}
    of_compiled = (lines["outer"].seconds or 0) / plain.compiled_seconds
    write_speed(tmp_path, Speed((plain, lines["outer"])))
    assert f"<td>{number(of_compiled, 3)}</td>" in write_reports(Store(tmp_path))[0].read_text()


def test_a_stack_on_a_cpu_is_measured_in_turn_with_its_first_run_alone(
    spec: Path, lines: dict[str, StepLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("outer", "vanilla", "plain"):
        assert (lines[label].alone_seconds or 0) > 0
        assert lines[label].alone_engine == lines[label].engine
    order, trained = [], whole_steps.train

    def watched(runs: Any, *given: Any, **more: Any) -> Any:
        order.append([run.seed for run in runs])
        return trained(runs, *given, **more)

    monkeypatch.setattr(whole_steps, "train", watched)
    outer = [one for one in load_specs([spec]) if one.label == "outer"]
    (line,) = measure_steps(outer, steps=1, runs=3)
    assert order == [[0, 1, 2], [0], [0, 1, 2], [0], [0, 1, 2]], "the last one measures the memory"
    assert (line.runs, line.alone_seconds is not None) == (3, True)
    (line,) = measure_steps(outer, steps=1)
    assert line.alone_seconds is None, "it is alone"


def test_the_compiled_gradient_is_that_of_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of batches of several sizes, compiled once; what torch cannot compile says so."""
    net = small_network()
    theta_RP = torch.randn(2, net.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rule, calls, compiled = whole_steps.CompiledGradient(), list[int](), torch.compile

    def counted(graph: Any, _: Any) -> Any:
        calls.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda loss, fullgraph: compiled(loss, fullgraph=fullgraph, backend=counted))
    draw: Any = None  # nothing is drawn
    for places in (20, 7, 33):
        examples, none_R = batch(torch.Generator().manual_seed(places), 2, places), torch.ones(2)
        examples.inputs[~examples.mask_RB] = 1.0
        found = rule.summed(draw, net, theta_RP, examples, none_R, 5)
        for name, value in vars(Unclipped().summed(draw, net, theta_RP, examples, none_R, 5)).items():
            torch.testing.assert_close(getattr(found, name), value, rtol=1e-10, atol=1e-10)
    assert calls == [1]
    with pytest.raises(DpbenchError, match="recurrent layers are unrolled in time"):
        whole_steps.CompiledGradient().summed(draw, network(nn.LSTM(3, 2)), theta_RP, examples, none_R, 5)
    calls.clear()
    for hidden in range(10, 24):  # beyond the number of graphs that torch makes of one piece of code by default
        other = small_network(hidden=hidden)
        theta_RP = torch.zeros(1, other.size, dtype=torch.float64)
        whole_steps.CompiledGradient().summed(draw, other, theta_RP, examples.runs(slice(1)), none_R, 5)
    assert len(calls) >= 14


def test_long_loops_over_time_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda loss, **_: loss)  # which would take minutes
    words = Examples(torch.zeros(1, 2, 60, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2))
    draw: Any = None
    for name, places in (("imdb_lstm", 60), ("imdb_two_lstm", 60), ("imdb_two_lstm", 120)):
        net = network(find("models", name).load()((places,), 2, words=5, embedding=2, hidden=2))
        given = draw, net, torch.zeros(1, net.size), replace(words, inputs=words.inputs.repeat(1, 1, places // 60))
        if places * (1 + (name == "imdb_two_lstm")) <= 200:
            assert whole_steps.CompiledGradient().summed(*given, torch.ones(1), 2).sum_RP.isfinite().all()
        else:
            with pytest.raises(DpbenchError, match="240 steps in time, which are unrolled"):
                whole_steps.CompiledGradient().summed(*given, torch.ones(1), 2)


def test_slower_steps_are_seen(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop whose every step waits 0.1 s takes that much longer; its first one, which warms up, does not count."""
    original, taken = loop.step, []

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(0.1 if taken else 1.0)
        taken.append(1)
        return original(*args, **more)

    monkeypatch.setattr(loop, "step", slow)
    monkeypatch.setattr(whole_steps, "ROUNDS", 1)
    (line,) = measure_steps([one for one in load_specs([spec]) if one.label == "outer"], steps=2)
    assert line.seconds is not None
    assert 0.1 <= line.seconds < 0.5
    assert line.floor is not None
    assert 0 < line.floor < 0.1


def test_of_a_large_model_the_peak_is_what_engines_share_and_the_report_says_so(spec: Path, tmp_path: Path) -> None:
    """Each engine keeps less than noise and update do: its own peak is that of a sum."""
    spec.write_text(SPEC.replace("hidden: [256]", "hidden: [1024, 1024]").replace("batch_size: 96", "batch_size: 12"))
    chosen = [one for one in load_specs([spec]) if one.label in ("outer", "vanilla")]
    found = tuple(measure_steps(chosen, steps=1))
    outer, vanilla = (line.peak_bytes or 0 for line in found)
    assert outer == vanilla
    assert 4 < outer / (4 * found[0].parameters) < 5
    of_ghost, of_loop = measure(chosen[:1], places=12, engines=("ghost", "loop"), calls=1)
    assert max(of_ghost.peak_bytes or 0, of_loop.peak_bytes or 0) < outer
    assert of_ghost.peak_bytes != of_loop.peak_bytes
    write_speed(tmp_path, Speed(found))
    assert "what an engine takes itself stands among the sums" in write_reports(Store(tmp_path))[0].read_text()


def test_a_step_of_a_gpu_is_the_mean_over_those_whose_sizes_are_drawn_together(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [whole_steps.steps_of_a_call(device) for device in ("cpu", "cuda", "cuda:1")] == [1, loop.AHEAD, loop.AHEAD]
    monkeypatch.setattr(whole_steps, "steps_of_a_call", lambda _device: 2)
    monkeypatch.setattr(whole_steps, "_peak", lambda _row, _places: (None, ()))  # another matter, and seconds
    original, done = loop.step, []

    def every_other_one_waits(*given: Any) -> Any:
        done.append(time.sleep(0.05 * (len(done) % 2)))
        return original(*given)

    monkeypatch.setattr(loop, "step", every_other_one_waits)
    outer = [one for one in load_specs([spec]) if one.label == "outer"]
    (line,) = measure_steps(outer, steps=2)
    assert (line.steps, len(done)) == (4, 2 * 2 * 3), "two rounds of three calls"
    assert line.fastest is not None
    assert 0.025 <= line.fastest < 0.05, "the mean over a step that waits and one that does not"
    monkeypatch.setattr(loop, "step", original)
    monkeypatch.setattr(whole_steps, "steps_of_a_call", lambda _device: 64)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", None)  # though an epoch has 15 steps
        (line,) = measure_steps(outer, steps=1)
    assert (line.refusal, line.steps) == ("", 2)
    (short,) = [one for one in load_specs([spec]) if one.label == "short"]
    (line,) = measure_steps([replace(short, training=replace(short.training, steps=40))], steps=1)
    assert (line.refusal, line.steps) == ("", 2), "as many as there are"


def test_the_time_of_a_run_alone_is_that_of_a_batch_of_the_expected_size(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few steps the batches are not: what they drew is said by the steps themselves."""
    drawn, step, scaled, scale = [], loop.step, [], whole_steps.at_expected_size

    def counted(*given: Any) -> Any:
        state, seen = step(*given)
        drawn.append(seen.drawn_R.tolist())
        return state, seen

    monkeypatch.setattr(loop, "step", counted)
    monkeypatch.setattr(whole_steps, "_peak", lambda _row, _places: (None, ()))  # another matter, and seconds
    monkeypatch.setattr(
        whole_steps,
        "at_expected_size",
        lambda run, seconds: scaled.append((seconds, scale(run, seconds))) or scaled[-1][1],
    )
    (line,) = measure_steps([one for one in load_specs([spec]) if one.label == "outer"], steps=3, runs=2)
    alone = [of[0] for of in drawn if len(of) == 1]
    assert len(alone) == 2 * 4, "a step that warms up and three that count, twice"
    assert len(set(alone)) > 1
    for (seconds, found), records in zip(scaled, (alone[1:4], alone[5:8]), strict=True):
        assert found == pytest.approx([taken * 96 / count for taken, count in zip(seconds, records, strict=True)])
    assert line.alone_seconds == pytest.approx(statistics.median(scaled[0][1] + scaled[1][1]))


def test_a_model_whose_rows_name_their_engine_has_one_of_an_open_engine(spec: Path) -> None:
    assert [one.label for one in with_open_engine(load_specs([spec]))].count("any engine") == 0, "two leave it open"
    spec.write_text("".join(line for line in SPEC.splitlines(True) if "open" not in line and "short" not in line))
    rows = with_open_engine(load_specs([spec]))
    (row,) = [one for one in rows if one.label == "any engine"]
    assert "clipping" not in row.mechanism.parameters
    assert [one.label for one in with_open_engine(rows)] == [one.label for one in rows], "there is one"


def test_a_row_of_long_steps_is_measured_once(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps in all: two that warm up, one whose time counts, one whose memory counts."""
    monkeypatch.setattr(whole_steps, "ENOUGH", 0.0)
    original, done = loop.step, []
    monkeypatch.setattr(loop, "step", lambda *given: done.append(1) or original(*given))
    (line,) = measure_steps([one for one in load_specs([spec]) if one.label == "outer"], steps=3)
    assert (len(done), line.steps, line.operators) == (4, 1, ())
    assert line.peak_bytes


def test_a_long_step_that_loops_over_time_is_not_profiled(
    spec: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch's profiler keeps 2 kB of each operator: of 18 s of an LSTM it took 15 GB. The row itself is measured."""
    monkeypatch.setattr(whole_steps, "LONGEST_PROFILED", 0.0)
    monkeypatch.setattr(torch.nn.Linear, "loops_over_time", True, raising=False)  # stands for a layer that loops
    monkeypatch.setattr(whole_steps, "Peak", None)
    found = CliRunner().invoke(
        cli, ["bench", str(spec), "--steps", "--only", "*outer", "--calls", "1", "--out", str(tmp_path)]
    )
    assert found.exit_code == 0, found.output
    (line,) = own_speed(tmp_path, []).lines
    assert line.seconds is not None
    assert (line.peak_bytes, line.operators) == (None, ())
    assert "MiB" not in found.stdout


def test_all_rounds_take_the_engine_and_the_chunk_of_the_first(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so do the two steps whose memory is measured; the engine is looked for once."""
    asked: list[Chosen] = [Chosen("ghost", {"ghost": 0.1}, chunk=5)]
    seen: list[int] = []
    clipping = ghost.clipping

    def watched(net: Any, theta_RP: Any, examples: Any, clip_R: Any, chunk: int, *rest: Any) -> Any:
        seen.append(chunk)
        return clipping(net, theta_RP, examples, clip_R, chunk, *rest)

    monkeypatch.setattr(fastest, "fastest", lambda *_, **_more: asked.pop())
    monkeypatch.setattr(ghost, "clipping", watched)
    (line,) = measure_steps([one for one in load_specs([spec]) if one.label == "open"], steps=2, runs=2)
    assert (line.refusal, line.engine, line.chunk, set(seen)) == ("", "ghost", 5, {5})
    assert len(seen) > 2 * whole_steps.ROUNDS


def test_work_that_training_would_compile_is_compiled(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is told that it may try the compiler, as in training."""
    seen: list[bool] = []

    def watched(*_: Any, compiles: bool, **_more: Any) -> Chosen:
        seen.append(compiles)
        return Chosen("ghost", {"ghost": 0.1})

    monkeypatch.setattr(fastest, "fastest", watched)
    (line,) = measure_steps([one for one in load_specs([spec]) if one.label == "open"], steps=1)
    assert (line.refusal, line.engine, seen) == ("", "ghost", [True])


def test_what_cannot_be_trained_is_a_refusal(spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC.replace("dataset: digits", "dataset: mnist"))
    found = list(measure_steps(load_specs([spec]), data=tmp_path))
    assert all("mnist" in line.refusal for line in found)
    assert all(line.seconds is None for line in found)


def test_measurements_are_kept_and_shown(lines: dict[str, StepLine], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = Speed((lines["plain"], lines["outer"]))
    assert read_speed(out) is None
    write_speed(out, first)
    assert read_speed(out) == first
    other = replace(lines["outer"], device_name="another machine", seconds=9.0)
    again = replace(lines["outer"], seconds=1.5)
    damaged: list[Damaged] = []
    write_speed(out, Speed((again, other, lines["vanilla"], lines["short"])).beside(own_speed(out, damaged)))
    found = read_speed(out)
    assert found is not None
    assert [line.label for line in found.lines] == ["plain", "outer", "outer", "vanilla", "short"]
    assert [line.seconds for line in found.lines if line.label == "outer"] == [1.5, 9.0]
    assert found.baseline_of(again) == lines["plain"]
    assert found.baseline_of(other) is None  # on that machine nothing without privacy was measured
    assert found.printed_ratio(again) == 2.5
    assert found.printed_ratio(lines["vanilla"]) is None
    (page, *_) = write_reports(Store(out))
    html = page.read_text()
    assert "Speed of small on another machine, 1 thread, stacks of 2 runs" in html
    assert "at a time" in html
    assert "the run has one step" in html
    content = json.loads((out / "speed.json").read_text())
    content["lines"][0]["seconds"] = 1e-9
    (out / "speed.json").write_text(json.dumps(content))
    assert read_speed(out, damaged) is None
    assert "its digest is not that of its content" in damaged[0].message


def test_a_row_is_kept_before_the_next_ones_memory_is_measured(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is where the system may end the process."""
    peak, begun = whole_steps.Peak, []

    def ended(device: torch.device) -> Any:
        begun.append(device)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return peak(device)

    monkeypatch.setattr(whole_steps, "Peak", ended)
    found = CliRunner().invoke(cli, ["bench", str(spec), "--steps", "--calls", "1", "--out", str(tmp_path / "out")])
    assert found.exit_code != 0
    kept = own_speed(tmp_path / "out", [])
    assert kept is not None
    assert [line.label for line in kept.lines] == ["plain", "outer"]


def test_the_command(spec: Path, tmp_path: Path) -> None:
    command = ["bench", str(spec), "--steps", "--calls", "1", "--only", "*/outer", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "whole steps: small on" in done.output
    assert "outer" in done.output
    assert len(json.loads((tmp_path / "out" / "speed.json").read_text())["lines"]) == 1
    (line,) = json.loads((tmp_path / "out" / "speed.json").read_text())["lines"]
    assert line["baseline"] == "plain", "whatever --only leaves out"
    done = CliRunner().invoke(cli, [*command, "--json"])
    assert json.loads(done.output.splitlines()[-1])["runs_steps_per_second"] > 0


def suite(monkeypatch: pytest.MonkeyPatch, steps: tuple[tuple[str, int], ...], **more: Any) -> list[str]:
    """The command that runs a suite of these tables."""
    of = sys.modules["dpbench.cli.bench"]
    monkeypatch.setitem(of.SUITES, "gpu", of.Suite(more.get("sums", ()), steps, "cuda"))
    return ["bench", "--suite", "gpu", "--device", "cpu", "--calls", "1"]


def test_a_suite_goes_on_where_it_stopped(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is kept as soon as it is measured; a table without a row that has no privacy gets one."""
    kept, rows = SPEC.split("rows:")
    lines = [line for line in rows.splitlines() if "outer" in line or "vanilla" in line]
    spec.write_text("\n".join([kept + "rows:", *lines]))
    out = tmp_path / "out"
    command = [*suite(monkeypatch, ((str(spec), 1), (str(spec), 2))), "--out", str(out)]
    first = CliRunner().invoke(cli, [*command, "--minutes", "0.00001"])
    assert first.exit_code == 0, first.output
    assert f"left: {spec}, outer, 1 run and 5 more; the same command goes on" in first.output
    second = CliRunner().invoke(cli, command)
    assert f"{spec}, without privacy, 1 run: measured already" in second.output
    assert "left" not in second.output
    found = read_speed(out)
    assert found is not None
    assert [(line.label, line.runs) for line in found.lines] == [
        *((label, 1) for label in ("without privacy", "outer", "vanilla")),
        *((label, 2) for label in ("without privacy", "outer", "vanilla", "any engine")),
    ]
    for line in found.lines:
        plain = found.baseline_of(line)
        assert plain is not None
        assert (plain.label, plain.runs) == ("without privacy", line.runs)
    third = CliRunner().invoke(cli, command)
    assert third.output.count("measured already") == 7
    named = CliRunner().invoke(cli, [*command, str(spec)])
    assert "leave SPECS and --only out" in str(named.exception)


def test_a_suite_lists_its_pieces_and_its_device_is_its_own(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.write_text(SPEC.split("rows:")[0].replace("learning_rate: 0.5", "learning_rate: 0.5, clip_norm: 1.0"))
    suite(monkeypatch, ((str(spec), 2),), sums=((str(spec), 16),))
    command = ["bench", "--suite", "gpu", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    listed = CliRunner().invoke(cli, [*command, "--dry-run"])
    assert listed.output.splitlines() == [
        f"{spec}, sums of 16: to be measured",
        f"{spec}, without privacy, 2 runs at once: to be measured",
        f"{spec}, small, 2 runs at once: to be measured",
        f"{spec}, any engine, 2 runs at once: to be measured",
    ]
    refused = CliRunner().invoke(cli, command)
    assert str(refused.exception) == ("--suite gpu: torch sees no GPU here; --device cpu measures the same on the CPU")
    assert not (tmp_path / "out").exists()
    alone = CliRunner().invoke(cli, ["bench", str(spec), "--dry-run"])
    assert "lists the pieces of a suite" in str(alone.exception)


def test_a_suite_measures_the_stacks_of_the_targets_with_their_runs_alone(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack that was measured without its run alone is measured again."""
    of, out = sys.modules["dpbench.cli.bench"], tmp_path / "out"
    monkeypatch.setitem(of.SUITES, "targets", of.Suite((), ((str(spec), 2),), only=("small/outer",)))
    command = ["bench", "--suite", "targets", "--calls", "1", "--out", str(out)]
    assert CliRunner().invoke(cli, command).exit_code == 0
    found = read_speed(out)
    assert found is not None
    assert [(line.label, line.alone_engine) for line in found.lines] == [("outer", "ghost")]
    what = f"{spec}, outer, 2 runs at once: "
    assert CliRunner().invoke(cli, [*command, "--dry-run"]).output == f"{what}measured already\n"
    write_speed(out, Speed((replace(found.lines[0], alone_seconds=None),)))
    assert CliRunner().invoke(cli, [*command, "--dry-run"]).output == f"{what}to be measured\n"


def test_the_rows_of_the_suite_of_targets_are_there() -> None:
    """The three models, and a row with JL."""
    of = sys.modules["dpbench.cli.bench"].SUITES["targets"]
    tables = (with_open_engine(load_specs([Path(table)])) for table, _ in of.steps)
    specs = [one for table in tables for one in table if chosen_by(one, of.only)]
    assert len(specs) == len(of.only)
    assert {one.model.name for one in specs} == {model.name for model in MODELS}
    assert [one.mechanism.name for one in specs].count("dp_sgd_jl") == 1


def test_a_suite_tries_again_what_refused(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec.write_text(SPEC.split("rows:")[0].replace("learning_rate: 0.5", "learning_rate: 0.5, clip_norm: 1.0"))
    command = [*suite(monkeypatch, ((str(spec), 1),)), "--out", str(tmp_path / "out")]

    def fails(*_: Any, **__: Any) -> Any:
        raise DpbenchError("no data")

    with monkeypatch.context() as patch:
        patch.setattr(whole_steps, "train", fails)
        assert "refuses: no data" in CliRunner().invoke(cli, command).output
    again = CliRunner().invoke(cli, command)
    assert "measured already" not in again.output
    found = read_speed(tmp_path / "out")
    assert found is not None
    assert [line.refusal for line in found.lines] == ["", ""]


def test_a_suite_takes_sums_with_all_ways(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpbench.training import bench

    ways = ("torch", "plain", "ghost")
    monkeypatch.setattr(bench, "engine_names", lambda _: ways)
    command = [*suite(monkeypatch, (), sums=((str(spec), 16),)), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(cli, command).exit_code == 0
    found = read_speed(tmp_path / "out")
    assert found is not None
    assert [(line.engine, line.places) for line in found.sums] == [(way, 16) for way in ways]
    assert f"{spec}, sums of 16: measured already\n" in CliRunner().invoke(cli, command).output

    def kept(**changes: Any) -> str:
        """What a dry run says where ghost's line has these changes."""
        *others, of_ghost = found.sums if found is not None else ()
        write_speed(tmp_path / "out", Speed(sums=(*others, replace(of_ghost, **changes))))
        (said,) = CliRunner().invoke(cli, [*command, "--dry-run"]).output.splitlines()
        return said.removeprefix(f"{spec}, sums of 16: ")

    other = kept(commit="0123456789ab-dirty")
    assert other.startswith("measured already, by ")
    assert "commit 0123456789 with changes" in other
    assert kept(engine="loop") == "to be measured", "no line of ghost"
    assert kept(parameters=1) == "to be measured", "another network of the name"
    refused = {"seconds": None, "refusal": "layer Odd: not known"}
    assert kept(**refused) == "measured already"
    assert kept(**refused, commit="0123456789ab") == "to be measured"
    assert kept(seconds=None, refusal="CUDA out of memory. Tried to allocate 2 GiB") == "to be measured"
