"""`dpbench bench`: time and memory of clipped sums on the models of specs, by every way, measured on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpbench.cli.options import THREADS, allow_code, checked_device
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.spec.loading import Spec
    from dpbench.store.records import Damaged
    from dpbench.store.speed import Speed, SumLine


SUITES = {  # tables by name, each in stacks of so many runs
    "gpu": (
        ("bu2020/table1", 1),
        ("bu2020/table1", 10),
        ("jl2021/table2", 1),
        ("jl2021/table3", 1),
        ("jl2021/table4", 1),
        ("jl2021/table5", 1),
    )
}
WIDTH = 190  # of the table of steps in a pipe or a file: no column is cut off


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise DpbenchError(f"--projections {text}: expected whole numbers, 1 or more, with commas between")
    return numbers


@click.command()
@click.argument("specs", nargs=-1, metavar="[SPECS]...", type=click.Path(path_type=Path))
@click.option("--batch", "places", type=click.IntRange(min=1), default=32, show_default=True, help="Examples in a sum.")
@click.option(
    "--engine", "engines", multiple=True, metavar="NAME", help="Only this one, such as ghost, 'jl 5' or 'opacus hooks'."
)
@click.option(
    "--projections",
    default="1,5,30",
    show_default=True,
    metavar="LIST",
    callback=_numbers,
    help="Numbers of JL projections.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Only specs whose name, label or file name matches.")
@click.option("--device", default="cpu", show_default=True, callback=checked_device, help="cpu or cuda[:n].")
@click.option(
    "--chunk",
    "--places-per-call",
    "chunk",
    type=click.IntRange(min=1),
    help="Batch places per call (default: what training chooses).",
)
@THREADS
@click.option(
    "--calls", type=click.IntRange(min=1), default=5, show_default=True, help="Calls of each; the median counts."
)
@click.option("--steps", "whole_steps", is_flag=True, help="Whole training steps of every row.")
@click.option("--runs", type=click.IntRange(min=1), default=1, show_default=True, help="With --steps: runs of a stack.")
@click.option(
    "--suite",
    type=click.Choice(sorted(SUITES)),
    help="Whole steps of the tables that tell of a GPU, where they are due.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=8.0,
    show_default=True,
    help="With --suite: begin no further table after so long; the same command goes on.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of datasets (else $DPBENCH_DATA, else a cache).")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="reports",
    show_default=True,
    help="Its speed.json keeps what is measured.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@allow_code
def bench(
    specs: tuple[Path, ...],
    only: tuple[str, ...],
    whole_steps: bool,
    suite: str | None,
    minutes: float,
    as_json: bool,
    allow_code: bool,
    **options: Any,
) -> int:
    """Measure seconds and peak memory of one clipped sum by every clipping engine, on every model of SPECS.

    Beside them: the plain backward pass without clipping, eager and by torch's compiler, and Opacus where it is
    installed (pip install opacus). All are called in turn; the time is the median of the calls. Compiling takes up to
    a minute a model, minutes for a loop over time. Where a dataset is absent, inputs are zeros. What cannot handle a
    model says why. SPECS are files, folders or names (default: quickstart). OUT/speed.json keeps the lines, and the
    report has a chapter of them.

    With --steps, whole steps of every row of SPECS as training takes them, in stacks of --runs: beside the row without
    privacy, what is printed, and what the machine would need for the operations of a plain step alone. --batch,
    --engine and --projections do not count there: a spec says what they are.

    \b
    Examples:
      dpbench bench quickstart --batch 64
      dpbench bench bu2020/table1 --batch 256 --threads 1 --json > speed.jsonl
      dpbench bench specs/jl2021 --engine ghost --engine 'jl 10' --projections 10 --device cuda
      dpbench bench jl2021/table2 --steps
      dpbench bench bu2020/table1 --steps --runs 8 --threads 1
      dpbench bench --suite gpu --device cuda --minutes 8
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence torch's profiler, which counts the memory
    from dpbench.plan.planning import chosen_by
    from dpbench.spec.loading import load_specs
    from dpbench.training.bench import measure

    if suite is not None:
        if specs or only:
            raise DpbenchError(f"--suite {suite}: names its tables itself; leave SPECS and --only out")
        return _suite(SUITES[suite], minutes, as_json, options)
    found_specs = load_specs(list(specs or (Path("quickstart"),)), allow_code)
    chosen = [spec for spec in found_specs if chosen_by(spec, only)]
    if not chosen:
        raise DpbenchError(f"--only {' '.join(only)}: no spec has such a name or label")
    out, runs = options.pop("out"), options.pop("runs")
    if whole_steps:
        return _whole_steps(chosen, out, runs, as_json, options)
    return _sums(measure(chosen, **options, watch=_say_working), out, as_json)


def _sums(lines: Iterator[SumLine], out: Path, as_json: bool) -> int:
    """Keep and show the sums of each model as soon as all ways are measured."""
    from dpbench.store.speed import Speed

    damaged: list[Damaged] = []
    for _, group in groupby(lines, lambda one: one.of_table):
        found = []
        for one in group:
            found.append(one)
            if as_json:
                click.echo(json.dumps(one.to_json(), ensure_ascii=False))
        if not as_json:
            _show(found)
        path = _kept(Speed(sums=tuple(found)), out, damaged)
        if not as_json:
            click.echo(f"wrote {path}\n")
    return _told(damaged)


def _kept(found: Speed, out: Path, damaged: list[Damaged]) -> Path:
    """OUT/speed.json with these lines beside the others that are there."""
    from dpbench.store.provenance import environment
    from dpbench.store.speed import own_speed, write_speed

    return write_speed(out, replace(found, environment=environment(with_torch=True)).beside(own_speed(out, damaged)))


def _told(damaged: Sequence[Damaged]) -> int:
    for one in damaged:
        click.echo(f"not used: {one.message}", err=True)
    return 0


def _suite(tables: Sequence[tuple[str, int]], minutes: float, as_json: bool, options: dict[str, Any]) -> int:
    """Measure the tables that OUT has no lines of on this device; what there is no time for is named."""
    from dpbench.spec.loading import load_specs
    from dpbench.store.provenance import device_name
    from dpbench.store.speed import own_speed

    begun, worked, left = time.monotonic(), False, []
    out: Path = options.pop("out")
    del options["runs"]
    for table, runs in tables:
        specs = load_specs([Path(table)])
        known = own_speed(out, [])
        where = (device_name(options["device"]), runs)
        there = (
            {(one.name, one.label) for one in known.lines if (one.device_name, one.runs) == where} if known else set()
        )
        if {(spec.name, spec.label) for spec in specs} <= there:
            click.echo(f"{table}, {runs} runs at once: measured already")
        elif worked and time.monotonic() - begun > 60 * minutes:
            left.append(f"{table} ({runs} runs at once)")
        else:
            worked = True
            _whole_steps(specs, out, runs, as_json, options)
    if left:
        click.echo(f"left: {', '.join(left)}; the same command goes on", err=True)
    return 0


def _whole_steps(specs: Sequence[Spec], out: Path, runs: int, as_json: bool, options: dict[str, Any]) -> int:
    """Measure, keep and show them; a row is kept as soon as all of its spec are measured."""
    from dpbench.store.speed import Speed
    from dpbench.training.whole_steps import measure_steps

    names = {"device": "device", "data": "data", "chunk": "places_per_call", "threads": "threads", "calls": "steps"}
    chosen = {name: options[option] for option, name in names.items()}
    damaged: list[Damaged] = []
    for _, group in groupby(specs, lambda spec: spec.name):
        lines = tuple(measure_steps(list(group), **chosen, runs=runs, watch=_say_working))
        found = Speed(lines)
        path = _kept(found, out, damaged)
        if as_json:
            for line in lines:
                click.echo(json.dumps(line.to_json(), ensure_ascii=False))
        else:
            _show_steps(found)
            click.echo(f"wrote {path}\n")
    return _told(damaged)


def _show_steps(found: Speed) -> None:
    from rich.table import Table

    from dpbench.cli.console import console, say, time_words
    from dpbench.privacy.formatting import duration

    out = console()
    out.width = out.width if sys.stdout.isatty() else max(out.width, WIDTH)
    say(out, f"whole steps: {found.tables()[0][0]}")
    table = Table("row", box=None, pad_edge=False, header_style="bold")
    for title in ("engine", "a step", "from", "to", "of plain", "of floor", "records/s", "steps/s", "epoch", "printed"):
        table.add_column(title, justify="right", no_wrap=title != "engine")
    table.add_column("peak memory", justify="right", no_wrap=True)
    for line in found.lines:
        if line.refusal:
            continue
        times = (time_words(value or 0.0) for value in (line.seconds, line.fastest, line.slowest))
        plain, seconds = found.baseline_of(line), line.seconds or 0.0
        table.add_row(
            line.label or line.name,
            line.engine,
            *times,
            f"{seconds / plain.seconds:.2f}" if plain is not None and plain.seconds else "",
            f"{seconds / line.floor:.1f}" if line.floor else "",
            f"{line.examples_per_second or 0.0:,.0f}",
            f"{line.runs_steps_per_second or 0.0:,.3g}",
            duration(line.epoch_seconds or 0.0),
            f"{line.printed_seconds} s" if line.printed_seconds else "",
            f"{(line.peak_bytes or 0) / 2**20:,.1f} MiB",
        )
    out.print(table)
    for line in found.lines:
        if line.refusal:
            say(out, f"{line.label or line.name} refuses: {line.refusal}", 2)


def _show(lines: Sequence[SumLine]) -> None:
    """Times, times relative to the plain backward pass, examples of a call and peak memory; then why ways refused."""
    from rich.table import Table

    from dpbench.cli.console import console, say, time_words

    out = console()
    say(out, lines[0].title)
    table = Table("way", box=None, pad_edge=False, header_style="bold")
    for name in ("median", "from", "to", "of plain", "of compiled", "examples/s", "at a time", "peak memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in lines:
        if one.refusal is None:
            times = (time_words(value or 0.0) for value in (one.seconds, one.fastest, one.slowest))
            relative = (f"{value:.2f}" if value else "" for value in (one.of_plain, one.of_plain_compiled))
            memory = f"{(one.peak_bytes or 0) / 2**20:,.1f} MiB"
            table.add_row(one.engine, *times, *relative, f"{one.examples_per_second:,.0f}", str(one.chunk), memory)
    out.print(table)
    for one in lines:
        if one.refusal is not None:
            say(out, f"{one.engine} refuses: {one.refusal}", 2)


def _say_working(model: str, engine: str) -> None:
    """The engine at work, as a line on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{model}: {engine} ...", end="", file=sys.stderr, flush=True)
