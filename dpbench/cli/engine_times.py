"""`dpbench engines`: time and memory of clipping on the models of specs, by every engine, measured on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpbench.cli.options import allow_code
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.training.engines import EngineCost


THREADS = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Torch's threads on the CPU; no part of a run's key. Default: 1 for small work, else torch's own number.",
)


def checked_device(_context: click.Context, _parameter: click.Parameter, device: str | None) -> str | None:
    """A device that is here, as torch names it."""
    if device is None or device == "cpu":
        return device
    import torch

    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise DpbenchError(f"--device {device}: expected cpu, cuda or cuda:n")
    if int(number or 0) >= torch.cuda.device_count():
        raise DpbenchError(f"--device {device}: torch sees {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return device


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
@click.option("--engine", "engines", multiple=True, metavar="NAME", help="Only this one, such as ghost or 'jl 5'.")
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
@click.option("--places-per-call", "chunk", type=click.IntRange(min=1), help="Chunk (default: what training chooses).")
@THREADS
@click.option("--calls", type=click.IntRange(min=1), default=3, show_default=True, help="Calls; the fastest counts.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of datasets (else $DPBENCH_DATA, else a cache).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@allow_code
def engines(specs: tuple[Path, ...], only: tuple[str, ...], as_json: bool, allow_code: bool, **options: Any) -> int:
    """Measure seconds and peak memory of one clipped sum by every clipping engine, on every model of SPECS.

    Times are relative to the plain backward pass without clipping. Where a dataset is absent, inputs are zeros. An
    engine that cannot handle a model says why. SPECS are files, folders or names (default: quickstart).

    \b
    Examples:
      dpbench engines quickstart --batch 64
      dpbench engines specs/jl2021 --engine ghost --engine 'jl 10' --projections 10 --device cuda
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence torch's profiler, which counts the memory
    from dpbench.plan.planning import chosen_by
    from dpbench.spec.loading import load_specs
    from dpbench.training.engines import measure

    found_specs = load_specs(list(specs or (Path("quickstart"),)), allow_code)
    chosen = [spec for spec in found_specs if chosen_by(spec, only)]
    if not chosen:
        raise DpbenchError(f"--only {' '.join(only)}: no spec has such a name or label")
    found = []
    for one in measure(chosen, **options, watch=_say_working):
        found.append(one)
        if as_json:
            click.echo(json.dumps(one.to_json(), ensure_ascii=False))
    if not as_json:
        _show(found)
    return 0


def _show(found: Sequence[EngineCost]) -> None:
    """Time, time relative to the plain backward pass, examples of a call and peak memory; then why engines refused."""
    from rich.table import Table

    from dpbench.cli.console import console, say, time_words
    from dpbench.training.engines import PLAIN

    out = console()
    for (dataset, model), group in groupby(found, lambda one: (one.dataset, one.model)):
        lines = list(group)
        first = lines[0]
        inputs = "" if first.inputs == "data" else ", inputs of zeros (the data are absent)"
        threads = f"{first.threads} thread{'s' if first.threads > 1 else ''}"
        say(
            out,
            f"{model} on {dataset}: {first.parameters:,} parameters, one sum of {first.places} examples,"
            f" {first.device}, {threads}{inputs}",
        )
        yardstick = next((one.seconds for one in lines if one.engine == PLAIN), None)
        table = Table("engine", box=None, pad_edge=False, header_style="bold")
        for name in ("time", "of plain", "at a time", "peak memory"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in lines:
            if one.seconds is not None and one.peak_bytes is not None:
                relative = f"{one.seconds / yardstick:.1f}" if yardstick else ""
                memory = f"{one.peak_bytes / 2**20:,.1f} MiB"
                table.add_row(one.engine, time_words(one.seconds), relative, str(one.chunk), memory)
        out.print(table)
        for one in lines:
            if one.refusal is not None:
                say(out, f"{one.engine} refuses: {one.refusal}", 2)
        out.print()


def _say_working(model: str, engine: str) -> None:
    """The engine at work, as a line on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{model}: {engine} ...", end="", file=sys.stderr, flush=True)
