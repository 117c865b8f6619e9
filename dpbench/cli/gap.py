"""`dpbench gap`: how far logistic regressions end above their true optimum."""

from __future__ import annotations

import json
import tempfile
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

import click

from dpbench.cli.engine_times import checked_device
from dpbench.cli.options import allow_code

if TYPE_CHECKING:
    from dpbench.training.gaps import Gap

NOT_RELEASED = (
    "Measured from the training data without noise, and not released: to publish a gap of private data costs privacy"
    " that no ledger here knows of."
)


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPECS...", type=click.Path(path_type=Path))
@click.option(
    "--regularisation",
    type=click.FloatRange(min=0, min_open=True),
    help="λ of the objective. Default: the mechanism's.",
)
@click.option("--only", multiple=True, metavar="PATTERN", help="Only specs whose name, label or file name matches.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="The first N seeds of each spec.")
@click.option("--device", default="cpu", show_default=True, callback=checked_device, help="cpu or cuda[:n].")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of datasets (else $DPBENCH_DATA, else a cache).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, one line a run.")
@allow_code
def gap(
    specs: tuple[Path, ...],
    regularisation: float | None,
    only: tuple[str, ...],
    seeds: int | None,
    device: str,
    data: Path | None,
    as_json: bool,
    allow_code: bool,
) -> int:
    """Train the logistic regressions of SPECS and measure their optimality gaps: F at the end less the least F.

    F is the mean loss on the training data plus (λ/2)·‖W‖², biases included; its minimum is solved to a gradient of
    1e-10. Of output_perturbation F has the clipped inputs, as its training. The runs are trained anew and not stored.

    \b
    Examples:
      dpbench gap quickstart --only quickstart-output-perturbation
      dpbench gap mine.yaml --regularisation 1e-3 --seeds 3
    """
    from dpbench.plan.planning import Choices
    from dpbench.spec.loading import load_specs
    from dpbench.store.records import Store
    from dpbench.training.gaps import gaps

    choices = Choices(only=only, seeds=seeds, device=device, data=data)
    found = []
    with tempfile.TemporaryDirectory() as folder:  # no record is looked for, so that every run is trained
        for one in gaps(load_specs(list(specs), allow_code), choices, Store(Path(folder)), regularisation):
            found.append(one)
            if as_json:
                click.echo(json.dumps(one.to_json(), ensure_ascii=False))
    if not as_json:
        _show(found)
    return 1 if any(one.refusal for one in found) else 0


def _show(found: list[Gap]) -> None:
    """One line for each row of a spec: the mean gap of its seeds, and the optimum."""
    from rich.table import Table

    from dpbench.cli.console import console, say

    out = console()
    table = Table("run", "λ", "least F", "gap", "seeds", box=None, pad_edge=False, header_style="bold")
    for (name, label), group in groupby(found, lambda one: (one.name, one.label)):
        lines = list(group)
        values = [one.gap for one in lines if one.gap is not None]
        title = f"{name} [{label}]" if label else name
        if not values:
            say(out, f"{title}: {lines[0].refusal}")
            continue
        spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
        least = f"{lines[0].optimum:.6g}"
        table.add_row(title, f"{lines[0].regularisation:g}", least, f"{mean(values):.4g}{spread}", str(len(values)))
        for one in lines:
            if one.refusal is not None:
                say(out, f"{title} seed {one.seed}: {one.refusal}")
    if table.row_count:
        out.print(table)
    say(out, NOT_RELEASED)
