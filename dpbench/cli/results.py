"""`dpbench report` and `dpbench diff`: the report again from the records, and two folders of records side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpbench.cli.options import allow_code, say_error
from dpbench.cli.training import SPECS, out_option
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.tasks import METRICS

if TYPE_CHECKING:
    from rich.table import Table

    from dpbench.store.differences import Difference


@click.command()
@SPECS
@out_option("Folder whose records are shown.")
@click.option("--open", "open_it", is_flag=True, help="Open the report in a browser.")
@allow_code
def report(specs: tuple[Path, ...], out: Path, open_it: bool, allow_code: bool) -> int:
    """Write report.html, report.tex and the CSV files again from the records; needs no network and trains nothing.

    SPECS (without any, the folder specs/ if there is one) say what is printed beside the records' numbers.

    \b
    Examples:
      dpbench report
      dpbench report specs/bu2020 --out reports/published
    """
    from dpbench.cli.console import Watch
    from dpbench.conformance import read_conformance
    from dpbench.job import write_reports
    from dpbench.judging.claims.summary import claims_report
    from dpbench.plan.known import about
    from dpbench.plan.planning import Choices, Plan, resolve_all
    from dpbench.spec.loading import load_specs
    from dpbench.store.records import Store
    from dpbench.store.speed import read_speed

    store = Store(out)
    contents = store.read()
    runs = contents.runs or contents.failures or contents.damaged
    if not runs and all(read(out) is None for read in (claims_report, read_conformance, read_speed)):
        raise DpbenchError(f"{out}: there are no records here; make some with: dpbench run specs/ --out {out}")
    paths = list(specs) or [Path("specs")] * Path("specs").is_dir()
    try:
        given = load_specs(paths, allow_code) if paths else ()
        made = Plan(tuple(resolve_all(about(given, contents.runs), Choices())), ()) if paths else None
    except ProblemsError as error:  # the records are complete without the specs
        given, made = (), None
        click.echo(f"{error}\nThe report shows what the records say of their specs.", err=True)
    with Watch("parts") as watch:
        written = write_reports(store, made, allow_code, specs=given, contents=contents, progress=watch)
    for path in written:
        click.echo(f"wrote {path}")
    if open_it:
        click.launch(str(written[0]))
    return 0


_MOST_NAMED = 5
Gate = Mapping[str, float] | None
_GATE = (
    "Exit with 1 if a run is `different`, or absent from the second or worse by more than N: `accuracy=N`, `rmse=N`,"
    " `perplexity=N`."
)


def _gates(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[Gate, ...]:
    """By how much a metric may become worse, in its unit; None where nothing may differ."""
    found: list[Gate] = []
    for text in given:
        name, _, number = text.partition("=")
        try:
            most = None if text == "different" else float(number)
        except ValueError:
            most = math.nan
        if (name, text) != ("different", "different") and (name not in METRICS or not 0 <= (most or 0) < math.inf):
            names = " or ".join(f"{metric}=N" for metric in METRICS)
            raise click.BadParameter(f"{text!r}: expected different, or {names} with a number in its unit, such as 1")
        found.append(None if most is None else {name: most})
    return tuple(found)


@click.command()
@click.argument("first", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("second", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per difference.")
@click.option("--fail-if", "gates", multiple=True, metavar="GATE", callback=_gates, help=_GATE)
def diff(first: Path, second: Path, as_json: bool, gates: tuple[Gate, ...]) -> int:
    """Compare two folders of records: results, times, environments, and what is only in one.

    \b
    Examples:
      dpbench diff reports /tmp/other
      dpbench diff baseline reports --fail-if accuracy=1    # in CI
    """
    from dpbench.cli.console import console, emit
    from dpbench.store.differences import diff as compare
    from dpbench.store.records import Store

    contents = [Store(folder).read() for folder in (first, second)]
    for one in (one for side in contents for one in side.damaged):
        click.echo(f"not used: {one.message}", err=True)
    sides = [side.runs for side in contents]
    for folder, runs in zip((first, second), sides, strict=True):
        if not runs:
            raise DpbenchError(f"{folder}: there are no records here; name a folder that `dpbench run --out` wrote")
    measured = sorted({run.result.metric.name for runs in sides for run in runs})
    for name in (name for gate in gates for name in gate or ()):
        if name not in measured:
            raise DpbenchError(f"--fail-if {name}=N: no run here has that metric; the runs have {', '.join(measured)}")
    found = compare(*sides)
    if as_json:
        for row in found:
            emit("difference", **row.to_json())
    else:
        console().print(_table(found))
    failed = [row for row in found if any(row.fails(most) for most in gates)]
    for row in failed[:_MOST_NAMED]:
        say_error(f"--fail-if: {row.title}: {row.in_words}")
    if len(failed) > _MOST_NAMED:
        say_error(f"--fail-if: and {len(failed) - _MOST_NAMED} more runs")
    return 1 if failed else 0


def _table(found: Sequence[Difference]) -> Table:
    """One row for each run of either side."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    for name in ("metric A", "metric B", "change", "seconds A", "seconds B"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what differs", overflow="fold")
    for row in found:
        changes = {**row.configuration, **row.environment}
        words = [f"{key}: {a} -> {b}" for key, (a, b) in changes.items() if key != "format"]
        if "format" in row.configuration:
            one, other = (1 if number is None else number for number in row.configuration["format"])
            words.insert(0, f"key format {one} -> {other}: different formats are never the same run")
        words += [f"code of {name}" for name in row.sources]
        only = {"only_a": ["only in A"], "only_b": ["only in B"]}.get(row.matched, [])
        metric = METRICS[row.metric]
        form = f"{metric.name} {{:.{metric.decimals}f}}{' ' * bool(metric.unit)}{metric.unit}"
        table.add_row(
            row.title,
            _cell(row.measured_a, form),
            _cell(row.measured_b, form),
            _cell(row.change, f"{{:+.{metric.decimals}f}}"),
            _cell(row.seconds_a, "{:.1f}"),
            _cell(row.seconds_b, "{:.1f}"),
            "; ".join([*only, *words]) or ("nothing" if row.same_result else "the result"),
        )
    return table


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
