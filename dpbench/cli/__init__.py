"""The command line: one verb per stage, thin."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence

import click

from dpbench.catalog import closest
from dpbench.cli.accounting import account, certify
from dpbench.cli.bench import bench
from dpbench.cli.calibration import calibrate
from dpbench.cli.checks import check
from dpbench.cli.claims import verify
from dpbench.cli.conforming import conform
from dpbench.cli.data_files import data
from dpbench.cli.init import init
from dpbench.cli.listing import list_, schema
from dpbench.cli.options import say_error, with_streams
from dpbench.cli.results import diff, report
from dpbench.cli.training import plan, run
from dpbench.errors import DpbenchError

VERBS = (
    run,
    plan,
    report,
    diff,
    init,
    schema,
    account,
    calibrate,
    certify,
    bench,
    check,
    conform,
    data,
    list_,
    verify,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The program. Exit status: 0 done, 1 something failed, 2 bad input, 130 after Ctrl-C."""
    # Reports and plans are hundreds of thousands of objects, nearly all without cycles: Python looks for these less
    # often, and not at the end in all that torch has left.
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
    try:
        with_streams()
        _utf8()
        status = cli.main(args=arguments, prog_name="dpbench", standalone_mode=False)
        sys.stdout.flush()
    except DpbenchError as error:
        say_error(str(error))
        status = getattr(error, "exit_status", 2)
    except click.ClickException as error:
        _show(error)
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say_error("Interrupted.")
        status = 130
    except OSError as error:
        if error.filename is None:  # of a stream: nothing more can be written there, not even at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        where = "standard output" if error.filename is None else error.filename
        say_error(f"{where}: {error.strerror or error}; what was not written there is lost")
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


def _utf8() -> None:
    """Texts hold ε, δ and σ, for which a pipe or a file on Windows has no letters unless it is written in UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(encoding="utf-8")


def _show(error: click.ClickException) -> None:
    """One sentence and where to read more; a verb that was called without what it needs shows its help."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if "\n" in message or context is None:
        error.show()
        return
    option, verb = getattr(error, "option_name", None), getattr(error, "command_name", None)
    names = getattr(context.command, "commands", {}) if verb else [o for p in context.command.params for o in p.opts]
    if wrong := verb or option:
        close = closest(wrong.lstrip("-"), [name.lstrip("-") for name in names])
        hint = f"; did you mean {'' if verb else '--'}{close}?" if close else ""
        message = f"no such {'verb' if verb else 'option'} {wrong!r}{hint}"
    say_error(f"{message.rstrip('.')} (see `{context.command_path} --help`)")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dpbench", prog_name="dpbench")
def cli() -> None:
    """Is this ε true, and what did it buy?

    dpbench trains models with differential privacy as YAML specs say, accounts for them, compares the results with
    what was printed, and writes one report.

    \b
    Examples:
      dpbench run quickstart              train what comes with dpbench and has no record, write reports/report.html
      dpbench init                        a folder specs with all that comes with dpbench, to be edited
      dpbench plan specs/                 what would run, and why
      dpbench data list                   which datasets are here, and how to get the others
      dpbench report                      write the report again from the records
      dpbench account --n 60000 --batch 256 --sigma 1.3 --epochs 15 --delta 1e-5
    """


for _verb in VERBS:
    cli.add_command(_verb)
