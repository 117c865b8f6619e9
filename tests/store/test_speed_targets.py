"""The targets of speed: what lines of speed.json say of them, and how the report shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.job import write_reports
from dpbench.store.records import Store
from dpbench.store.speed import Speed, StepLine, SumLine, read_speed, write_speed
from dpbench.store.speed_targets import MODELS, TARGETS, Judged, judged, operator_words

REPORTS = Path(__file__).parents[2] / "reports"
MNIST = MODELS[0]
OPERATORS = (("aten::bmm", 0.5), ("aten::mul", 0.125))


def sums(seconds: dict[str, float], *, places: int = 256, made: str = "2026-11-02", **more: object) -> list[SumLine]:
    """Lines of the MNIST model, with their ratios as `dpbench bench` makes them."""
    torch, plain = seconds.get("torch"), seconds.get("plain")
    line = SumLine("mnist", "tfp_cnn", 26010, "", places, places, "data", "cpu", "a CPU", 1, made=made)
    found = []
    for name, value in seconds.items():
        ratios = {"of_torch": torch and value / torch, "of_plain": plain and value / plain}
        peak = {"torch": 400, "ghost": 120}.get(name, 100)
        made_of = {"engine": name, "seconds": value, "peak_bytes": peak, "operators": OPERATORS} | ratios | more
        found.append(replace(line, **made_of))  # type: ignore[arg-type]
    return found


def step(label: str, seconds: float, runs: int = 1, **more: object) -> StepLine:
    name = {"name": "bu2020-table1", "dataset": "mnist", "model": "tfp_cnn", "made": "2026-11-02", "engine": "vmap",
            "parameters": 26010} | more  # fmt: skip
    return StepLine(  # type: ignore[misc]
        label=label, run_key=label, device=str(name.pop("device", "cpu")),
        device_name=str(name.pop("device_name", "a machine")),
        threads=1, runs=runs, batch=256.0, epoch_steps=234.375, baseline="plain", seconds=seconds,
        **name,
    )  # fmt: skip


def of(speed: Speed, text: str) -> Judged:
    (found,) = [one for one in judged(speed) if one.target.text == text]
    return found


SECONDS = {"torch": 1.0, "plain": 1.25, "plain compiled": 0.5, "vmap": 1.5, "ghost": 2.0, "jl 1": 1.9, "jl 10": 6.0,
           "opacus hooks": 3.0, "opacus ghost": 2.25}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value", "verdict"),
    [
        ("MNIST CNN, 256: exact clipping", 1.5, "missed"),
        ("MNIST CNN, 256: JL, r = 1", 1.9, "met"),
        ("MNIST CNN, 256: JL, r = 10", 6.0, "missed"),
        ("MNIST CNN, 256: without privacy", 1.25, "missed"),
        ("MNIST CNN, 256: ahead of Opacus's fastest way", 1.5, "met"),
        ("MNIST CNN, 256: peak memory of ghost", 1.2, "met"),
    ],
)
def test_a_target_is_judged_by_torch_s_own_step(text: str, value: float, verdict: str) -> None:
    found = of(Speed(sums=tuple(sums(SECONDS))), text)
    assert found.found is not None
    assert (found.found.value, found.verdict) == (pytest.approx(value), verdict)


def test_older_lines_are_judged_by_the_plain_pass() -> None:
    """Which is then no measure of itself; and the newest table of a machine with one thread counts."""
    lines = sums({name: value for name, value in SECONDS.items() if name != "torch"})
    newer = sums(SECONDS, device_name="four threads")
    speed = Speed(sums=(*lines, *(replace(line, threads=4) for line in newer)))
    exact = of(speed, "MNIST CNN, 256: exact clipping").found
    assert exact is not None
    assert (exact.value, exact.way, exact.over) == (pytest.approx(1.2), "vmap", "plain")
    assert of(speed, "MNIST CNN, 256: without privacy").verdict == "not measured"
    later = sums({"torch": 1.0, "ghost": 1.1}, made="2026-11-03", device_name="another CPU")
    found = of(Speed(sums=(*later, *lines)), "MNIST CNN, 256: exact clipping").found
    assert found is not None
    assert found.said == "ghost over torch, another CPU, 2026-11-03"


def test_a_ratio_is_never_made_of_two_processes() -> None:
    """A way that was measured later, without the baseline, has no ratio."""
    lines = [line for line in sums(SECONDS) if line.engine != "vmap"]
    alone = sums({"vmap": 0.1})
    found = of(Speed(sums=(*lines, *alone)), "MNIST CNN, 256: exact clipping").found
    assert found is not None
    assert (found.value, found.way) == (2.0, "ghost")


def stacks(**more: object) -> list[StepLine]:
    """Stacks of eight runs of the three models, measured in turn with one run alone, and one with JL."""
    cifar = {"dataset": "cifar10", "model": "papernot_cnn", "parameters": 623146} | more
    return [
        step("a", 7.0, 8, alone_seconds=1.0, alone_engine="ghost", **more),
        step("b", 9.0, 8, **cifar | {"alone_seconds": 1.0}),
        step("c", 9.0, 8, alone_seconds=1.25, **cifar | {"engine": "jvp run by run"}),
        step("d", 8.0, 8, alone_seconds=1.0, dataset="imdb", model="imdb_lstm", **more | {"parameters": 598274}),
    ]


def test_a_stack_is_judged_by_its_slowest_row() -> None:
    target = "a stack on a CPU: a run's step over the same run alone"
    older = step("b", 99.0, 8, alone_seconds=1.0, dataset="cifar10", parameters=623146, made="2026-11-01")
    found = of(Speed((*stacks(), older)), target)
    assert found.found is not None
    assert (found.found.value, found.verdict) == (9 / 8, "missed")
    assert "bu2020-table1, b, 8 runs" in found.found.said
    for least in range(4):
        others = tuple(line for at, line in enumerate(stacks()) if at != least)
        assert of(Speed(others), target).verdict == ("met" if least == 1 else "not measured"), "its model has two rows"
    apart = tuple(replace(line, alone_seconds=None) for line in stacks())
    alone = tuple(replace(line, runs=1, seconds=1.0) for line in apart)
    assert of(Speed((*apart, *alone)), target).verdict == "not measured", "measured at two times"


def test_two_networks_of_one_name_are_two() -> None:
    """dpis2022's network for CIFAR-10 has other layers than jl2021's, which the target is about."""
    lines = sums(SECONDS, places=64, dataset="cifar10", model="papernot_cnn", parameters=605226)
    assert of(Speed(sums=tuple(lines)), "CIFAR-10 CNN, 64: exact clipping").verdict == "not measured"
    lines = sums(SECONDS, places=64, dataset="cifar10", model="papernot_cnn", parameters=623146)
    assert of(Speed(sums=tuple(lines)), "CIFAR-10 CNN, 64: exact clipping").verdict == "met"


def test_targets_of_a_gpu_need_its_lines() -> None:
    cpu = Speed((step("plain", 1.0, 10), step("a", 2.0, 10)), sums=tuple(sums(SECONDS)))
    assert {one.verdict for one in judged(cpu) if one.target.text.startswith("H200")} == {"not measured"}
    here = {"device": "cuda", "device_name": "NVIDIA H200"}
    rows = (step("plain", 0.01, 10, **here), step("a", 0.012, 10, **here))
    opacus = sums({"torch": 0.005, "opacus hooks": 0.02, "opacus ghost": 0.01}, device_name="NVIDIA H200")
    gpu = Speed(rows, sums=tuple(replace(line, device="cuda") for line in opacus))
    stack = of(gpu, "H200, MNIST CNN: a stack of ten")
    assert stack.found is not None
    assert (stack.found.value, stack.verdict) == (pytest.approx(1.2), "met")
    ahead = of(gpu, "H200, MNIST CNN, 256: runs × steps a second over Opacus")
    assert ahead.found is not None
    assert (ahead.found.value, ahead.verdict) == (pytest.approx(10 / 0.012 * 0.01), "missed")
    table = of(gpu, "H200: bu2020's Table 1, ten seeds, in minutes (from the rate of its steps)")
    assert table.found is not None
    assert table.found.value == pytest.approx(350 * 60_000 / 256 * 10 * 0.0012 / 60, rel=1e-4)
    assert of(gpu, "MNIST CNN, 256: exact clipping").verdict == "not measured"
    another = replace(gpu, lines=tuple(replace(line, device_name="NVIDIA T4") for line in rows))
    assert of(another, "H200, MNIST CNN: a stack of ten").verdict == "not measured"


def test_the_report_shows_every_target_and_where_the_time_of_missed_ones_goes(tmp_path: Path) -> None:
    write_speed(tmp_path, Speed(sums=tuple(sums(SECONDS, commit="0123456789abcdef-dirty"))))
    again = read_speed(tmp_path)
    assert again is not None
    assert (again.sums[0].operators, again.sums[0].of_torch) == (OPERATORS, 1.0)
    html = write_reports(Store(tmp_path))[0].read_text()
    for target in TARGETS:
        assert target.text.replace("'", "&#39;") in html
    assert "MNIST CNN, 256: exact clipping, vmap: aten::bmm 50 %, aten::mul 12 %" in html
    assert "MNIST CNN, 256: JL, r = 1, " not in html
    assert "2026-11-02, commit 0123456789 with uncommitted changes" in html


def test_sums_without_the_plain_way_are_shown_without_its_ratios(tmp_path: Path) -> None:
    write_speed(tmp_path, Speed(sums=tuple(sums({"ghost": 2.0}))))
    assert ">ghost</th>" in write_reports(Store(tmp_path))[0].read_text()


def test_the_operators_of_a_compiled_way_are_those_of_the_way_itself() -> None:
    (line,) = sums({"vmap compiled": 1.5})
    assert operator_words(line) == "of vmap, not compiled: aten::bmm 50 %, aten::mul 12 %"
    older = replace(line, operators=(("## Call CompiledFxGraph fcims ##", 0.38), ("aten::bmm", 0.25)))
    assert operator_words(older) == "compiled code 38 %, aten::bmm 25 %"


def test_what_is_published_can_be_read_and_judged() -> None:
    published = read_speed(REPORTS)
    assert published is not None
    assert {one.found.over for one in judged(published) if one.found and isinstance(one.found.line, SumLine)}
    assert of(published, "MNIST CNN, 256: JL, r = 1").verdict in ("met", "missed")
