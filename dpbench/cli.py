"""The command line: one verb per stage, thin."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import dpbench
from dpbench.cli_accounting import account, certify
from dpbench.cli_calibrate import calibrate
from dpbench.cli_check import check
from dpbench.cli_conform import conform
from dpbench.cli_data import data, fetch_files
from dpbench.cli_engines import checked_device, engines
from dpbench.cli_list import list_
from dpbench.cli_verify import verify
from dpbench.errors import DpbenchError, ProblemsError

if TYPE_CHECKING:
    from dpbench.plan import Choices
    from dpbench.runner import Watcher

Verb = Callable[..., Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """The program. Exit status: 0 done, 1 something failed, 2 bad input, 130 after Ctrl-C."""
    try:
        status = cli.main(args=arguments, prog_name="dpbench", standalone_mode=False)
    except DpbenchError as error:
        click.echo(str(error), err=True)
        status = getattr(error, "exit_status", 2)
    except click.ClickException as error:
        _show(error)
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def _show(error: click.ClickException) -> None:
    """One sentence and where to read more; a verb that was called without what it needs shows its help."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if "\n" in message or context is None:
        error.show()
    else:
        click.echo(f"{message.rstrip('.')} (see `{context.command_path} --help`)", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(dpbench.__version__, prog_name="dpbench")
def cli() -> None:
    """Is this ε true, and what did it buy?

    dpbench trains models with differential privacy as YAML specs say, accounts for them, holds the results against
    what was printed, and writes one report.

    \b
    Examples:
      dpbench run specs/                  train what has no record yet, then write reports/report.html
      dpbench plan specs/                 what would run, and why
      dpbench data list                   which datasets are here, and how to get the others
      dpbench report                      write the report again from the records
      dpbench account --n 60000 --batch 256 --sigma 1.3 --epochs 15 --delta 1e-5
    """


_PATH = click.Path(path_type=Path)
_SPECS = click.argument("specs", nargs=-1, type=click.Path(exists=True, path_type=Path))
_ONLY = "Only specs whose name, label or file name matches, such as 'bu2020*'. Repeatable."
_DEVICE = "cpu or cuda[:n]; overrides `needs: gpu`. Default: cuda where there is one, else cpu."
_SMOKE = "Two steps of every run that the data allow; leaves nothing behind."


def _out(help_text: str) -> Callable[[Verb], Verb]:
    return click.option("--out", type=_PATH, default="reports", show_default=True, help=help_text)


def spec_options(verb: Verb) -> Verb:
    """The options that choose runs; the same for `run` and `plan`."""
    seeds = "The first N seeds of each spec, or a list such as 3,5,8."
    options = (
        _SPECS,
        _out("Folder of records, checkpoints and the report."),
        click.option("--data", type=_PATH, help="Folder of datasets (else $DPBENCH_DATA, else a cache folder)."),
        click.option("--only", multiple=True, metavar="PATTERN", help=_ONLY),
        click.option("--seeds", metavar="N|LIST", callback=_seeds, help=seeds),
        click.option("--device", metavar="DEVICE", callback=checked_device, help=_DEVICE),
        click.option("--force", is_flag=True, help="Run again what has a record."),
        click.option("--stale", is_flag=True, help="Run again what has a record made by other code."),
        click.option("--smoke", is_flag=True, help=_SMOKE),
    )
    for option in reversed(options):
        verb = option(verb)
    return verb


def _seeds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...] | int | None:
    if value is None:
        return None
    try:
        numbers = [int(part) for part in value.removesuffix(",").split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r}: expected a number of seeds such as 3, or a list such as 0,1,5") from None
    if "," in value:
        if len(set(numbers)) != len(numbers) or not all(0 <= n < 2**32 for n in numbers):
            raise click.BadParameter(f"{value!r}: expected different whole numbers from 0 to 2^32 - 1")
        return tuple(numbers)
    if numbers[0] < 1:
        raise click.BadParameter(f"{value!r}: expected at least 1 seed (for the seed 0 alone write '0,')")
    return numbers[0]


def _choices(options: dict[str, Any]) -> Choices:
    from dpbench.plan import Choices

    names = ("only", "force", "stale", "smoke", "seeds", "device", "data")
    return Choices(**{name: options[name] for name in names})


def _specs_or_default(specs: tuple[Path, ...]) -> tuple[Path, ...]:
    if specs:
        return specs
    if Path("specs").is_dir():
        return (Path("specs"),)
    raise click.UsageError("name a spec file or a folder of them, such as specs/ (there is no folder specs here)")


@cli.command()
@spec_options
@click.option("--dry-run", is_flag=True, help="Show the plan and stop; the same as `dpbench plan`.")
@click.option("--download", is_flag=True, help="Fetch absent datasets first; without it nothing is downloaded.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first run that fails.")
@click.option(
    "--places-per-call",
    type=click.IntRange(min=1),
    help="Batch places of all runs of a stack per call, when memory is short; changes numbers by rounding only.",
)
@click.option("--log", is_flag=True, help="Lines of progress on standard error where there is no terminal.")
@click.option("-q", "--quiet", is_flag=True, help="Only the summary.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line for every event.")
def run(specs: tuple[Path, ...], **options: Any) -> int:
    """Train what has no record yet, account for it, write the report.

    SPECS are files or folders; without any, the folder specs/. Ctrl-C keeps finished runs and the place of unfinished
    ones; the same command goes on from there.

    \b
    Examples:
      dpbench run specs/
      dpbench run specs/quickstart --seeds 2 --out /tmp/try
      dpbench run specs/bu2020 --device cpu --seeds 1 --data ~/datasets
      dpbench run specs/ --only 'quickstart*' --force
      dpbench run specs/ --smoke
    """
    paths = _specs_or_default(specs)
    if options["dry_run"]:
        return _show_plan(paths, options)
    from dpbench.runner import run as run_job
    from dpbench.terminal import emit, summary_text

    if options["download"]:
        _download_for(paths, options["only"], options["data"])
    with _asked_to_stop() as stop:
        summary = run_job(
            paths,
            out=options["out"],
            choices=_choices(options),
            fail_fast=options["fail_fast"],
            places_per_call=options["places_per_call"],
            watcher=_watcher(options["quiet"], options["as_json"], options["log"]),
            stop=stop,
        )
    if options["as_json"]:
        emit(
            "summary",
            finished=len(summary.finished),
            exists=summary.count("exists"),
            stale=summary.count("stale"),
            skipped=summary.count("skip"),
            failed=[{"run_key": f.run.key, "error": f.error, "log": f.log and str(f.log)} for f in summary.failures],
            unfinished=len(summary.unfinished),
            interrupted=summary.interrupted,
            seconds=round(summary.seconds, 3),
            report=[str(path) for path in summary.report],
            report_error=summary.report_error,
            exit_status=summary.exit_status,
        )
    else:
        click.echo(summary_text(summary, _same_command()))
    return summary.exit_status


@cli.command()
@spec_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
def plan(specs: tuple[Path, ...], **options: Any) -> int:
    """Show every run with its calibrated noise, ε and steps, why it will run or not, and the time it will take.

    \b
    Examples:
      dpbench plan specs/
      dpbench plan specs/bu2020 --device cpu --json
    """
    return _show_plan(_specs_or_default(specs), options)


def _show_plan(paths: tuple[Path, ...], options: dict[str, Any]) -> int:
    from dpbench.plan import make_plan
    from dpbench.records import Store
    from dpbench.spec import load_specs
    from dpbench.terminal import console, emit, plan_line, plan_notes, plan_table, run_facts

    made = make_plan(load_specs(list(paths)), Store(options["out"]), _choices(options))
    if options["as_json"]:
        for one in made.runs:
            emit("planned", **run_facts(one))
    else:
        out = console()
        out.print(plan_table(made))
        for line in [*plan_notes(made), plan_line(made)]:
            out.print(line, soft_wrap=True)
    return 0


@cli.command()
@_SPECS
@_out("Folder whose records are shown.")
@click.option("--open", "open_it", is_flag=True, help="Open the report in a browser.")
def report(specs: tuple[Path, ...], out: Path, open_it: bool) -> int:
    """Write report.html, report.tex and the CSV files again from the records; needs no network and trains nothing.

    SPECS (without any, the folder specs/ if there is one) say what is printed beside the records' numbers.

    \b
    Examples:
      dpbench report
      dpbench report specs/bu2020 --out reports/published
    """
    from dpbench.claims.summary import claims_report
    from dpbench.conformance import read_conformance
    from dpbench.plan import Choices, make_plan
    from dpbench.records import Store
    from dpbench.runner import write_reports
    from dpbench.spec import load_specs

    store = Store(out)
    contents = store.read()
    runs = contents.runs or contents.failures or contents.damaged
    if not runs and claims_report(out) is None and read_conformance(out) is None:
        raise DpbenchError(f"{out}: there are no records here; make some with: dpbench run specs/ --out {out}")
    paths = list(specs) or [Path("specs")] * Path("specs").is_dir()
    try:
        made = make_plan(load_specs(paths), store, Choices(device="cpu")) if paths else None
    except ProblemsError as error:  # the records are whole without the specs
        click.echo(f"{error}\nThe report shows what the records say of their specs.", err=True)
        made = None
    written = write_reports(store, made)
    for path in written:
        click.echo(f"wrote {path}")
    if open_it:
        click.launch(str(written[0]))
    return 0


@cli.command()
@click.argument("first", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("second", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per difference.")
def diff(first: Path, second: Path, as_json: bool) -> int:
    """Compare two folders of records: results, times, environments, and what is only in one.

    \b
    Example:
      dpbench diff reports /tmp/other
    """
    from dpbench.differences import diff as compare
    from dpbench.records import Store
    from dpbench.terminal import console, diff_table, emit

    sides = [Store(folder).read().runs for folder in (first, second)]
    for folder, runs in zip((first, second), sides, strict=True):
        if not runs:
            raise DpbenchError(f"{folder}: there are no records here; name a folder that `dpbench run --out` wrote")
    found = compare(*sides)
    if as_json:
        for row in found:
            emit("difference", **row.to_json())
    else:
        console().print(diff_table(found))
    return 0


@cli.command()
@click.argument("kind", type=click.Choice(["run", "events", "claims"]), default="run")
def schema(kind: str) -> int:
    """Print the JSON Schema of files of a KIND, for your editor: run (specs, the default), events or claims.

    \b
    Example:
      dpbench schema > dpbench.schema.json
      # then write as the first line of a spec:  # yaml-language-server: $schema=dpbench.schema.json
      dpbench schema claims > claims.schema.json
    """
    from dpbench.schema import json_schema
    from dpbench.schema_claims import claims_schema
    from dpbench.schema_events import events_schema

    made = {"run": json_schema, "events": events_schema, "claims": claims_schema}[kind]()
    click.echo(json.dumps(made, indent=2, ensure_ascii=False))
    return 0


for _verb in (account, calibrate, certify, check, conform, data, engines, list_, verify):
    cli.add_command(_verb)


def _download_for(paths: tuple[Path, ...], only: Sequence[str], folder: Path | None) -> None:
    from dpbench.plan import chosen_by, dataset_source
    from dpbench.spec import load_specs

    specs = [spec for spec in load_specs(list(paths)) if chosen_by(spec, only)]
    # By what they are, not by name: two specs may name features of different datasets, and each has its own files.
    for source in {id(source): source for source in map(dataset_source, specs)}.values():
        if source.missing(folder):
            fetch_files(source, folder)


def _watcher(quiet: bool, as_json: bool, log: bool) -> Watcher:
    from dpbench.runner import Watcher
    from dpbench.terminal import BarWatcher, JsonWatcher, LineWatcher

    if as_json:
        return JsonWatcher()
    if quiet:
        return Watcher()
    if sys.stderr.isatty():
        return BarWatcher()
    return LineWatcher() if log else Watcher()


def _same_command() -> str:
    """The command that goes on with this one; what has a record now is not forced again."""
    return shlex.join(["dpbench", *(part for part in sys.argv[1:] if part != "--force")])


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """A function that turns true after the first Ctrl-C (or SIGTERM); the second one ends the program at once."""
    asked = False

    def ask(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        click.echo("\nStopping after this step; press Ctrl-C again to stop at once.", err=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
