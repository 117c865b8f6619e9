"""`dpbench run` and `dpbench plan`: train what has no record yet, or show what would run and why."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpbench.cli.data_files import fetch_files
from dpbench.cli.options import THREADS, Verb, allow_code, checked_device, with_executor

if TYPE_CHECKING:
    from dpbench.job import Watcher
    from dpbench.plan.planning import Choices

_PATH = click.Path(path_type=Path)


def _specs(_context: click.Context, _parameter: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Paths, or names of specs that come with dpbench, of which all are there."""
    from dpbench.errors import ProblemsError
    from dpbench.spec.shipped import absent, found_shipped

    if lost := [absent(path) for path in paths if not found_shipped(path).exists()]:
        raise ProblemsError(lost)
    return paths


SPECS = click.argument("specs", nargs=-1, callback=_specs, type=click.Path(path_type=Path))
_ONLY = "Only specs whose name, label or file name matches, such as 'bu2020*'. Repeatable."
_DEVICE = "cpu or cuda[:n]; overrides `needs: gpu`. Default: cuda where there is one, else cpu."
_WEIGHTS_TO = "Keep the last weights of each run, all without privacy, as a file for the key `weights` of a spec."
_SMOKE = "Two steps of every run that the data allow; leaves nothing behind."


def out_option(help_text: str) -> Callable[[Verb], Verb]:
    return click.option("--out", type=_PATH, default="reports", show_default=True, help=help_text)


def spec_options(verb: Verb) -> Verb:
    """The options that choose runs; the same for `run` and `plan`."""
    seeds = "The first N seeds of each spec, or a list such as 3,5,8."
    options = (
        SPECS,
        out_option("Folder of records, checkpoints and the report."),
        click.option("--data", type=_PATH, help="Folder of datasets (else $DPBENCH_DATA, else a cache folder)."),
        click.option("--only", multiple=True, metavar="PATTERN", help=_ONLY),
        click.option("--seeds", metavar="N|LIST", callback=_seeds, help=seeds),
        click.option("--device", metavar="DEVICE", callback=checked_device, help=_DEVICE),
        click.option("--force", is_flag=True, help="Run again what has a record."),
        click.option("--stale", is_flag=True, help="Run again what has a record made by other code."),
        click.option("--smoke", is_flag=True, help=_SMOKE),
        allow_code,
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
    from dpbench.plan.planning import Choices

    names = ("only", "force", "stale", "smoke", "seeds", "device", "data")
    return Choices(**{name: options[name] for name in names})


def _specs_or_default(specs: tuple[Path, ...]) -> tuple[Path, ...]:
    if specs:
        return specs
    if Path("specs").is_dir():
        return (Path("specs"),)
    raise click.UsageError(
        "name a spec file, a folder of them, or specs that come with dpbench, such as quickstart"
        " (there is no folder specs here; `dpbench init` makes one)"
    )


@click.command()
@spec_options
@click.option("--dry-run", is_flag=True, help="Show the plan and stop; the same as `dpbench plan`.")
@click.option("--download", is_flag=True, help="Fetch absent datasets first; without it nothing is downloaded.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first run that fails.")
@click.option(
    "--chunk",
    "--places-per-call",
    "places_per_call",
    type=click.IntRange(min=1),
    help="Batch places of all runs of a stack per call, by default measured (CPU); changes numbers by rounding only.",
)
@THREADS
@click.option(
    "--engine",
    metavar="NAME",
    help="Clipping engine of every run that takes one (vmap, ghost, loop, 'vmap compiled', 'vmap run by run',"
    " 'ghost run by run'), whatever the specs say;"
    " changes numbers by rounding only. Default: what a spec names, else the fastest.",
)
@click.option(
    "--no-compile", is_flag=True, help="Do not try torch's compiler for work of more than 15 minutes (on a GPU: 5)."
)
@with_executor
@click.option("--weights-to", type=_PATH, metavar="FOLDER", help=_WEIGHTS_TO)
@click.option("--log", is_flag=True, help="Where there is no terminal: also a line for every finished run.")
@click.option("-q", "--quiet", is_flag=True, help="Only the summary, no progress.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line for every event.")
def run(specs: tuple[Path, ...], **options: Any) -> int:
    """Train what has no record yet, account for it, write the report.

    SPECS are files or folders, or names of specs that come with dpbench (`dpbench init --help`); without any, the
    folder specs/. Ctrl-C keeps finished runs and the place of unfinished ones; the same command goes on from there.

    \b
    Examples:
      dpbench run specs/
      dpbench run quickstart --seeds 2 --out /tmp/try
      dpbench run specs/bu2020 --device cpu --seeds 1 --data ~/datasets
      dpbench run specs/ --only 'quickstart*' --force
      dpbench run specs/ --smoke
      dpbench run specs/jl2021 --executor ray --address auto
    """
    paths = _specs_or_default(specs)
    if options["dry_run"]:
        return _show_plan(paths, options)
    from dpbench.cli.console import emit
    from dpbench.cli.progress import summary_text
    from dpbench.job import run as run_job

    if options["download"]:
        _download_for(paths, options)
    with _asked_to_stop() as stop:
        summary = run_job(
            paths,
            out=options["out"],
            choices=_choices(options),
            fail_fast=options["fail_fast"],
            places_per_call=options["places_per_call"],
            engine=options["engine"],
            compiles=not options["no_compile"],
            threads=options["threads"],
            watcher=_watcher(options["quiet"], options["as_json"], options["log"]),
            stop=stop,
            allow_code=options["allow_code"],
            weights_to=options["weights_to"],
            ray=options["ray"],
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
            weights=[str(path) for path in summary.weights],
        )
    else:
        click.echo(summary_text(summary, _same_command()))
    return summary.exit_status


@click.command()
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
    from dpbench.cli.console import Watch, console, emit
    from dpbench.cli.progress import plan_line, plan_notes, plan_table, run_facts
    from dpbench.plan.planning import make_plan
    from dpbench.spec.loading import load_specs
    from dpbench.store.records import Store

    specs = load_specs(list(paths), options["allow_code"])
    with Watch("done") as watch:
        made = make_plan(specs, Store(options["out"]), _choices(options), with_sources=False, progress=watch)
    if options["as_json"]:
        for one in made.runs:
            emit("planned", **run_facts(one))
    else:
        out = console()
        out.print(plan_table(made, out.width))
        for line in [*plan_notes(made), plan_line(made)]:
            out.print(line, soft_wrap=True)
    return 0


def _download_for(paths: tuple[Path, ...], options: dict[str, Any]) -> None:
    from dpbench.plan.parts import dataset_source
    from dpbench.plan.planning import chosen_by
    from dpbench.spec.loading import load_specs

    folder: Path | None = options["data"]
    specs = [one for one in load_specs(list(paths), options["allow_code"]) if chosen_by(one, options["only"])]
    # By what they are, not by name: two specs may name features of different datasets, and each has its own files.
    for source in {id(source): source for source in map(dataset_source, specs)}.values():
        if source.missing(folder):
            fetch_files(source, folder)


def _watcher(quiet: bool, as_json: bool, log: bool) -> Watcher:
    from dpbench.cli.progress import BarWatcher, JsonWatcher, LineWatcher, QuietWatcher

    if as_json:
        return JsonWatcher()
    if quiet:
        return QuietWatcher()
    if sys.stderr.isatty():
        return BarWatcher()
    return LineWatcher(each=log)


def _same_command() -> str:
    """The same command without --force, which goes on where this one stopped."""
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
