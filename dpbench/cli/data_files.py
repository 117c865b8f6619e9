"""The verbs of `dpbench data`: list, fetch and check the files of datasets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from dpbench.cli.options import say_error
from dpbench.errors import DpbenchError

Verb = Callable[..., Any]


@click.group()
def data() -> None:
    """Datasets: which are here, get them, check them.

    \b
    Examples:
      dpbench data list
      dpbench data fetch mnist --data ~/datasets
      dpbench data check
    """


def data_options(verb: Verb) -> Verb:
    verb = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")(verb)
    place = "Folder of datasets (else $DPBENCH_DATA, else a cache folder)."
    verb = click.option("--data", "folder", type=click.Path(path_type=Path), help=place)(verb)
    return click.argument("names", nargs=-1)(verb)


@data.command("list")
@data_options
def data_list(names: tuple[str, ...], folder: Path | None, as_json: bool) -> int:
    """Say of each dataset what it is, whether it is here, and how to get it.

    \b
    Example:
      dpbench data list --data ~/datasets
    """
    from dpbench.cli.console import emit
    from dpbench.datasets import describe, summary

    for source in _sources(names):
        if as_json:
            emit("dataset", **summary(source, folder))
        else:
            click.echo(describe(source, folder) + "\n")
    own = _of_files()
    if own and not names and not as_json:
        click.echo(f"{', '.join(own)}: made of your own file, which a spec names (docs/own_dataset.md)")
    return 0


@data.command("fetch")
@data_options
def data_fetch(names: tuple[str, ...], folder: Path | None, as_json: bool) -> int:
    """Download the files of the named datasets that are missing or corrupt, and verify their SHA-256.

    \b
    Example:
      dpbench data fetch mnist fashion_mnist --data ~/datasets
    """
    if not names:
        raise click.UsageError("name the datasets to fetch, such as: dpbench data fetch mnist")
    from dpbench.cli.console import emit

    for source in _sources(names):
        for path in fetch_files(source, folder):
            emit("fetched", dataset=source.name, file=str(path)) if as_json else click.echo(f"fetched {path}")
        if not as_json:
            click.echo(f"{source.name} is complete")
    return 0


@data.command("check")
@data_options
def data_check(names: tuple[str, ...], folder: Path | None, as_json: bool) -> int:
    """Read every file of the datasets and verify its SHA-256. Exit status 1 when one is corrupt or absent.

    \b
    Example:
      dpbench data check mnist
    """
    from dataclasses import asdict

    from dpbench.cli.console import emit
    from dpbench.datasets import check

    wrong = False
    for source in _sources(names):
        try:
            found = check(source, folder)
        except DpbenchError as error:  # a package is absent; the other datasets are still checked
            say_error(str(error))
            wrong = True
            continue
        for status in found:
            wrong |= status.state in ("corrupt", "missing")
            if as_json:
                emit("file", dataset=source.name, **asdict(status))
            else:
                hashes = (
                    f": expected SHA-256 {status.expected}, found {status.found}" if status.state == "corrupt" else ""
                )
                click.echo(f"{status.state:<8} {source.name}: {status.place}{hashes}")
    return 1 if wrong else 0


def _sources(names: Sequence[str]) -> list[Any]:
    from dpbench.catalog import catalog
    from dpbench.datasets import find_dataset

    if own := set(names) & set(_of_files()):
        raise DpbenchError(
            f"dataset {min(own)!r} is made of your own file, which a spec names; there is nothing to get"
        )
    return [find_dataset(name) for name in (names or sorted(set(catalog("datasets")) - set(_of_files())))]


def _of_files() -> list[str]:
    """The datasets that are made of the user's file."""
    from dpbench.catalog import catalog, of_a_file

    return [name for name in catalog("datasets") if of_a_file(name)]


def fetch_files(source: Any, folder: Path | None) -> tuple[Path, ...]:
    """Fetch with a bar for each file where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from dpbench.datasets import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(path: str, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = bars.add_task(path, total=total)
            bars.update(tasks[path], completed=done, total=total)

        fetched: tuple[Path, ...] = fetch(source, folder, progress)
        return fetched
