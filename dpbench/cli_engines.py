"""`dpbench engines`: what clipping costs on the models of specs, by every engine; measured here and now."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from dpbench.errors import DpbenchError


@click.command()
@click.argument("specs", nargs=-1, metavar="[SPECS]...", type=click.Path(path_type=Path))
@click.option("--batch", "places", type=click.IntRange(min=1), default=32, show_default=True, help="Examples in a sum.")
@click.option("--engine", "engines", multiple=True, metavar="NAME", help="Only this one, such as ghost or 'jl 5'.")
@click.option("--projections", default="1,5,30", show_default=True, metavar="LIST", help="Numbers of JL projections.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Only specs whose name, label or file name matches.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda[:n].")
@click.option("--places-per-call", "chunk", type=click.IntRange(min=1), help="Chunk (default: what training chooses).")
@click.option("--calls", type=click.IntRange(min=1), default=3, show_default=True, help="The fastest of so many.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of datasets (else $DPBENCH_DATA, else a cache).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def engines(
    specs: tuple[Path, ...],
    places: int,
    engines: tuple[str, ...],
    projections: str,
    only: tuple[str, ...],
    device: str,
    chunk: int | None,
    calls: int,
    data: Path | None,
    as_json: bool,
) -> int:
    """Measure seconds and peak memory of one clipped sum by every clipping engine, on every model of SPECS.

    The plain backward pass, without clipping, is the yardstick. Where a dataset is absent its inputs are zeros. An
    engine that cannot take a model says why. SPECS are files or folders (default: specs/quickstart).

    \b
    Examples:
      dpbench engines specs/quickstart --batch 64
      dpbench engines specs/jl2021 --engine ghost --engine 'jl 10' --projections 10 --device cuda
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts the memory, is talkative
    from dpbench.engines import measure
    from dpbench.plan import chosen_by
    from dpbench.spec import load_specs
    from dpbench.terminal_engines import say_working, show

    chosen = [spec for spec in load_specs(list(specs or (Path("specs/quickstart"),))) if chosen_by(spec, only)]
    if not chosen:
        raise DpbenchError(f"--only {' '.join(only)}: no spec has such a name or label")
    found = []
    for one in measure(
        chosen,
        places=places,
        engines=engines,
        projections=_whole_numbers(projections),
        device=_device(device),
        chunk=chunk,
        data=data,
        calls=calls,
        watch=say_working,
    ):
        found.append(one)
        if as_json:
            click.echo(json.dumps(one.to_json(), ensure_ascii=False))
    if not as_json:
        show(found)
    return 0


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise DpbenchError(f"--projections {text}: expected whole numbers, 1 or more, with commas between")
    return numbers


def _device(name: str) -> str:
    import torch

    if name != "cpu" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise DpbenchError(f"--device {name}: there is no such device here; use cpu")
    return name
