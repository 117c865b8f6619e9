"""`dpbench bench`: time and memory of clipped sums on the models of specs, by every way, measured on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpbench.cli.options import THREADS, allow_code, checked_device
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.spec.loading import Spec
    from dpbench.store.records import Damaged
    from dpbench.store.speed import Speed, StepLine, SumLine


@dataclass(frozen=True)
class Suite:
    """Specs whose first model is measured by sums of so many examples, then tables by whole steps of so many runs.

    Of the tables the rows that `only` names, `name/label`; without it all.
    """

    sums: tuple[tuple[str, int], ...]
    steps: tuple[tuple[str, int], ...]
    device: str = "cpu"
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """What is measured and kept at once: a model's sums, or a row's steps; `kept`: its lines, where it is done."""

    what: str
    kept: tuple[SumLine | StepLine, ...]
    measure: Callable[[], object]


TARGET_MODELS = (("bu2020/table1", 256), ("jl2021/table2", 64), ("jl2021/table3", 32))
PROJECTIONS = (1, 10)  # of JL, in the sums of a suite
SUITES = {
    "gpu": Suite(
        TARGET_MODELS,
        (
            ("bu2020/table1", 10),  # stacks of ten first, by which the targets are judged
            ("jl2021/table2", 10),
            ("jl2021/table3", 10),
            ("bu2020/table1", 1),
            ("jl2021/table2", 1),
            ("jl2021/table3", 1),
            ("jl2021/table4", 1),
            ("jl2021/table5", 1),
        ),
        device="cuda",
    ),
    "targets": Suite(
        TARGET_MODELS,
        (("bu2020/table1", 8), ("jl2021/table2", 8), ("jl2021/table3", 8)),
        only=(
            "bu2020-table1/row 1",
            "jl2021-table2/any engine",
            "jl2021-table2/DP-SGD-JL(1), Tensorflow",
            "jl2021-table3/any engine",
        ),
    ),
}


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
@click.option("--device", show_default="cpu; cuda with --suite gpu", callback=checked_device, help="cpu or cuda[:n].")
@click.option(
    "--chunk",
    "--places-per-call",
    "chunk",
    type=click.IntRange(min=1),
    help="Batch places per call (default: with --steps what training chooses, else what memory allows).",
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
    help="What the targets of speed are judged by, on a GPU or on one thread of a CPU, where it is due.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=8.0,
    show_default=True,
    help="With --suite: begin no further model or row after so long; the same command goes on.",
)
@click.option("--dry-run", is_flag=True, help="With --suite: list its models and rows, and what is left; then stop.")
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
    dry_run: bool,
    as_json: bool,
    allow_code: bool,
    **options: Any,
) -> int:
    """Measure seconds and peak memory of one clipped sum by every clipping engine, on every model of SPECS.

    Beside them: torch's own step of the module, dpbench's plain pass without clipping, eager and by torch's compiler,
    and Opacus where it is installed (pip install opacus). All are called in turn; the time is the median of the calls.
    Compiling takes up to a minute a model, minutes for a loop over time. Where a dataset is absent, inputs are zeros.
    What cannot handle a model says why. SPECS are files, folders or names (default: quickstart). OUT/speed.json keeps
    the lines, and the report has a chapter of them, with the targets of speed and what was measured of each.

    With --steps, whole steps of every row of SPECS as training takes them, in stacks of --runs (work of 15 minutes or
    more, on a GPU of 5, tries torch's compiler): beside the row without privacy, eager and compiled, what is printed,
    and what the machine would need for the operations of a plain step alone; on a CPU the first run of a stack is
    measured alone, too. --batch, --engine and --projections do not count there: a spec says what they are.

    With --suite, sums of the targets' three models and whole steps of tables, one model or row after the other, each
    kept at once; what is kept already, by whatever commit, is left out, what refused is tried again. --suite gpu needs
    a GPU; with --device cpu it measures the same on a CPU, which judges no target of a GPU.

    \b
    Examples:
      dpbench bench quickstart --batch 64
      dpbench bench bu2020/table1 --batch 256 --threads 1 --json > speed.jsonl
      dpbench bench specs/jl2021 --engine ghost --engine 'jl 10' --projections 10 --device cuda
      dpbench bench jl2021/table2 --steps
      dpbench bench bu2020/table1 --steps --runs 8 --threads 1
      dpbench bench --suite targets --threads 1
      dpbench bench --suite gpu --dry-run
      dpbench bench --suite gpu --minutes 8
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence torch's profiler, which counts the memory,
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # and what it says of memory from before
    from dpbench.plan.planning import taken_of
    from dpbench.spec.loading import load_specs
    from dpbench.training.bench import measure

    if suite is not None:
        if specs or only:
            raise DpbenchError(f"--suite {suite}: names its tables itself; leave SPECS and --only out")
        options["device"] = options["device"] or _device_of(suite, dry_run)
        return _suite(SUITES[suite], None if dry_run else minutes, as_json, options)
    if dry_run:
        raise DpbenchError("--dry-run: lists the pieces of a suite; name one, such as --suite gpu")
    options["device"] = options["device"] or "cpu"
    found_specs = load_specs(list(specs or (Path("quickstart"),)), allow_code)
    taken = taken_of(found_specs, only)
    out, runs = options.pop("out"), options.pop("runs")
    if whole_steps:
        return _whole_steps(taken, out, runs, as_json, options, found_specs)
    return _sums(measure(taken, **options, watch=_say_working), out, as_json)


def _sums(lines: Iterator[SumLine], out: Path, as_json: bool) -> int:
    """Keep and show the sums of each model as soon as all ways are measured."""
    from dpbench.cli.bench_tables import show_sums, show_targets
    from dpbench.store.speed import Speed

    damaged: list[Damaged] = []
    for _, group in groupby(lines, lambda one: one.of_table):
        found = []
        for one in group:
            found.append(one)
            if as_json:
                click.echo(json.dumps(one.to_json(), ensure_ascii=False))
        if not as_json:
            show_sums(found)
            show_targets(Speed(sums=tuple(found)))
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


def _device_of(suite: str, dry_run: bool) -> str:
    """The device that a suite is for. Raises DpbenchError where it is to be measured and there is none."""
    device = SUITES[suite].device
    if device != "cpu" and not dry_run:
        import torch

        if not torch.cuda.is_available():
            raise DpbenchError(f"--suite {suite}: torch sees no GPU here; --device cpu measures the same on the CPU")
    return device


def _suite(suite: Suite, minutes: float | None, as_json: bool, options: dict[str, Any]) -> int:
    """Measure the pieces of the suite that this machine has not measured; without `minutes` list them all."""
    from dpbench.cli.bench_tables import show_targets
    from dpbench.store.speed import Speed, own_speed

    out, begun, left, worked = options.pop("out"), time.monotonic(), [], False
    damaged: list[Damaged] = []
    options.pop("runs")
    for piece in _pieces(suite, own_speed(out, damaged) or Speed(), out, as_json, options):
        if piece.kept:
            click.echo(f"{piece.what}: measured already{_by_others(piece.kept)}", err=as_json)
        elif minutes is None:
            click.echo(f"{piece.what}: to be measured", err=as_json)
        elif worked and time.monotonic() - begun > 60 * minutes:
            left.append(piece.what)
        else:
            worked = True
            piece.measure()
    if not as_json and minutes is not None:
        show_targets(own_speed(out, damaged) or Speed())
    if left:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        click.echo(f"left: {left[0]}{others}; the same command goes on", err=True)
    return _told(damaged)


def _pieces(suite: Suite, known: Speed, out: Path, as_json: bool, options: dict[str, Any]) -> Iterator[Piece]:
    """All pieces of the suite, in their order."""
    from dpbench.plan.parts import sizes
    from dpbench.plan.planning import chosen_by
    from dpbench.plan.stacks import usual_threads
    from dpbench.spec.loading import load_specs
    from dpbench.store.provenance import device_name
    from dpbench.training.bench import engine_names, measure
    from dpbench.training.whole_steps import with_open_engine, with_plain

    here, threads = device_name(options["device"]), options["threads"]
    for table, places in suite.sums:
        spec = load_specs([Path(table)])[0]
        network = spec.dataset.name, spec.model.name, sizes(spec).parameters
        of = *network, places, here, threads or usual_threads(spec, places, options["device"])
        there = {
            one.engine: one
            for one in known.sums
            if (one.dataset, one.model, one.parameters, one.places, one.device_name, one.threads) == of
            and (one.seconds is not None or _lasts(one))
        }
        ways = engine_names(PROJECTIONS)
        kept = tuple(there[way] for way in ways) if {*ways} <= {*there} else ()
        chosen = options | {"places": places, "projections": PROJECTIONS, "engines": ()}
        lines = measure([spec], **chosen, watch=_say_working)
        yield Piece(f"{table}, sums of {places}", kept, partial(_sums, lines, out, as_json))
    for table, runs in suite.steps:
        rows = with_plain(load_specs([Path(table)]))
        rows = with_open_engine(rows) if runs > 1 else rows
        measured = {
            (one.name, one.label): one
            for one in known.lines
            if (one.device_name, one.runs) == (here, runs) and threads in (None, one.threads) and not one.refusal
            if one.runs == 1 or one.device != "cpu" or one.alone_seconds is not None
        }
        for row in (one for one in rows if chosen_by(one, suite.only)):
            what = f"{table}, {row.label or row.name}, {runs} run{'s at once' if runs > 1 else ''}"
            steps = partial(_whole_steps, [row], out, runs, as_json, options, rows, of_suite=True)
            line = measured.get((row.name, row.label))
            yield Piece(what, (line,) if line else (), steps)


def _lasts(line: SumLine) -> bool:
    """Whether a way would refuse again: it did so by this commit, and not for want of memory."""
    from dpbench.errors import lacks_memory

    refusal = line.refusal or ""
    memory = lacks_memory(RuntimeError(refusal)) or refusal.startswith("MemoryError")
    return bool(refusal) and not memory and line.commit == _commit()


def _by_others(lines: Sequence[SumLine | StepLine]) -> str:
    """The commits that measured these lines, where they are not all of this one."""
    commits = {line.commit for line in lines}
    if commits == {_commit()}:
        return ""
    words = (
        f"commit {one[:10]}{' with changes' * one.endswith('-dirty')}" if one else "unknown code" for one in commits
    )
    return f", by {' and '.join(sorted(words))}"


def _commit() -> str:
    from dpbench.store.provenance import environment
    from dpbench.store.speed import commit_of

    return commit_of(environment())


def _whole_steps(
    specs: Sequence[Spec],
    out: Path,
    runs: int,
    as_json: bool,
    options: dict[str, Any],
    table: Sequence[Spec],
    of_suite: bool = False,
) -> int:
    """Measure, keep and show them; a row is kept as soon as its memory is measured, which is after the steps of all.

    `table`: all rows of their files, among which stand the rows without privacy.
    """
    from dpbench.cli.bench_tables import show_steps, show_targets
    from dpbench.store.speed import Speed, own_speed
    from dpbench.training.whole_steps import measure_steps

    names = {"device": "device", "data": "data", "chunk": "places_per_call", "threads": "threads", "calls": "steps"}
    chosen = {name: options[option] for option, name in names.items()}
    damaged: list[Damaged] = []
    for _, group in groupby(specs, lambda spec: spec.name):
        found = Speed()
        for line in measure_steps(list(group), **chosen, runs=runs, table=table, watch=_say_working):
            found = replace(found, lines=(*found.lines, line))
            path = _kept(found, out, damaged)
            if as_json:
                click.echo(json.dumps(line.to_json(), ensure_ascii=False))
        if not as_json:
            show_steps(found, own_speed(out, damaged) or found)
            if not of_suite:
                show_targets(found)
            click.echo(f"wrote {path}\n")
    return _told(damaged)


def _say_working(model: str, engine: str) -> None:
    """The engine at work, as a line on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{model}: {engine} ...", end="", file=sys.stderr, flush=True)
