"""The options that describe releases, the same for `account`, `calibrate` and `certify`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import click

if TYPE_CHECKING:
    from dpbench.privacy.releases import Releases, Said

Verb = Callable[..., Any]
MOST_VOTES = 10**6  # of a class, in a file
SAID = ("n", "batch", "epochs", "sampling_rate", "steps", "noise_multiplier")
PARAMETERS = (
    *("adjacency", "sensitivity", "sampler", "projections", "first", "second"),
    *("threshold", "selection_noise", "answer_noise", "answered", "votes"),
)


def whole(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """A whole number as people write it: 60000, 6e4 or 60_000."""
    if value is None:
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number.adjusted() > 18 or number != number.to_integral_value():
        raise click.BadParameter(f"{value!r}: expected a whole number such as 60000 or 6e4")
    return int(number)


def listed(kind: type, example: str) -> Callable[[click.Context, click.Parameter, str | None], tuple[Any, ...] | None]:
    """Values of that type with commas between them."""

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[Any, ...] | None:
        try:
            return None if value is None else tuple(kind(part) for part in value.removesuffix(",").split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r}: expected a list of {example}") from None

    return read


numbers = listed(float, "numbers such as 0.75,0.25")
counts = listed(int, "whole numbers such as 140,20,10, or a file FILE.npy")


def votes(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[Any, ...] | None:
    """The votes of one query, or a tuple of them for each row of a file that ends in `.npy`."""
    if value is None or not value.endswith(".npy"):
        return counts(context, parameter, value)
    import numpy as np

    try:
        found = np.load(value, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, TokenError, BadZipFile) as error:
        raise click.BadParameter(f"{value} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not isinstance(found, np.ndarray):
        raise click.BadParameter(f"{value} is an archive; expected one array, as numpy.save writes it")
    if found.ndim != 2 or found.dtype.kind not in "iu" or not len(found) or found.shape[1] < 2:
        raise click.BadParameter(
            f"{value} holds {found.dtype} of shape {found.shape}; expected whole numbers of shape (queries, classes)"
        )
    if found.min() < 0 or found.max() > MOST_VOTES:
        raise click.BadParameter(f"{value} holds counts outside of 0 to {MOST_VOTES:,}")
    sums = found.sum(axis=1)
    if sums.min() != sums.max() or sums.max() == 0:
        raise click.BadParameter(
            f"{value}: its rows do not add up to one number of teachers; expected a row for each query, a column for"
            " each class"
        )
    return tuple(map(tuple, found.tolist()))


file_argument = click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]"
)
delta_option = click.option("--delta", type=float, help="δ, such as 1e-5.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, numbers in full.")
group_option = click.option(
    "--group-size",
    callback=whole,
    metavar="G",
    help="Size of the groups of records: by the event, else by the generic bound.",
)


def release_options(verb: Verb) -> Verb:
    """Add the options; the verb gets them as keyword arguments, None where one was not given."""
    for option in reversed(
        [
            click.option("--n", callback=whole, metavar="N", help="Number of records N."),
            click.option("--batch", callback=whole, metavar="N", help="Expected batch size B; q = B/N."),
            click.option("--epochs", type=float, help="Passes over the data; T = ⌈epochs·N/B⌉, rounded up."),
            click.option("--sampling-rate", metavar="Q", help="q, such as 0.01 or 256/60000, in place of --batch."),
            click.option(
                "--steps", "--count", callback=whole, metavar="T", help="Number of releases, in place of --epochs."
            ),
            click.option(
                "--noise-multiplier",
                "--sigma",
                type=float,
                metavar="SIGMA",
                help="σ (of laplace, b), relative to the clip norm.",
            ),
            click.option(
                "--event",
                metavar="NAME",
                help="What one step releases: sampled_gaussian (default), gaussian, random_sensitivity_gaussian,"
                " group_sampled_gaussian (or group), laplace, discrete_pair, confident_gnmax.",
            ),
            click.option("--adjacency", metavar="NAME", help="add_or_remove (default), replace_one or zero_out."),
            click.option(
                "--sensitivity",
                type=float,
                metavar="S",
                help="For gaussian and laplace, in clip norms. Default: 2 for replace_one, else 1.",
            ),
            click.option("--sampler", metavar="NAME", help="poisson (default), without_replacement or shuffled."),
            click.option("--projections", callback=whole, metavar="N", help="r of random_sensitivity_gaussian."),
            click.option("--first", callback=numbers, metavar="P,P", help="P(x) of each outcome (discrete_pair)."),
            click.option("--second", callback=numbers, metavar="P,P", help="Q(x) of each outcome (discrete_pair)."),
            click.option("--threshold", type=float, help="For confident_gnmax."),
            click.option("--selection-noise", type=float, help="σ₁, for confident_gnmax."),
            click.option("--answer-noise", type=float, help="σ₂, for confident_gnmax."),
            click.option("--answered/--not-answered", default=None, help="For confident_gnmax."),
            click.option(
                "--votes",
                callback=votes,
                metavar="N,N|FILE.npy",
                help="Votes of all classes (confident_gnmax): of one query, or an array (queries, classes).",
            ),
            click.option("--adaptive", is_flag=True, help="Later parameters depend on earlier outputs."),
        ]
    ):
        verb = option(verb)
    return verb


def said(options: Mapping[str, Any], group_size: int | None = None) -> tuple[Said, int]:
    """The given options, and the group size for the generic bound (1 if the event has its own groups)."""
    from dpbench.privacy.releases import Said, needs

    event = "SampledGaussian" if options["event"] is None else options["event"]
    parameters = {name: options[name] for name in PARAMETERS if options.get(name) is not None}
    if group_size is not None and needs(event, "group_size"):
        parameters["group_size"] = group_size
        group_size = None
    given = {("examples" if name == "n" else name): options[name] for name in SAID}
    adaptive = options["adaptive"]
    return Said(event=event, parameters=parameters, adaptive=adaptive, **given), 1 if group_size is None else group_size


def described(options: Mapping[str, Any], file: Path | None, group_size: int | None) -> tuple[Releases, int]:
    """The releases of the file or of the options. Raises DpbenchError for a mistake, and if both describe them."""
    from dpbench.privacy.releases import releases

    if file is None:
        what, group = said(options, group_size)
        return releases(what), group
    return in_file(file, options), 1 if group_size is None else group_size


def in_file(file: Path, options: Mapping[str, Any]) -> Releases:
    """The releases of a file of `kind: events`. Raises DpbenchError for its mistakes, and if options describe any."""
    from dpbench.errors import DpbenchError
    from dpbench.privacy.event_files import load_events
    from dpbench.privacy.releases import option

    for name in (*SAID, "event", *PARAMETERS, "adaptive"):
        if options[name] not in (None, False):
            raise DpbenchError(f"{option(name)}: {file} describes the releases already; leave one of the two out")
    return load_events(file)


def facts(found: Releases, group_size: int) -> dict[str, Any]:
    """The releases, for JSON."""
    from dpbench.events import ConfidentGNMax, to_json
    from dpbench.privacy.releases import is_array
    from dpbench.privacy.statement import summary

    composition = found.composition
    if found.said is not None and is_array(found.said.parameters.get("votes")):  # private, and read from a file
        event, _ = composition.parts[0]
        assert isinstance(event, ConfidentGNMax)
        count = sum(count for _, count in composition.parts)
        composition = replace(composition, parts=((replace(event, votes=None), count),))
    return {"releases": summary(found), "composition": to_json(composition), "group_size": group_size}


def emit(data: dict[str, Any]) -> None:
    """One JSON object on standard output. JSON has no infinity: infinite noise, or an infinite μ, is null."""
    click.echo(json.dumps(_without_infinities(data), indent=2, allow_nan=False, ensure_ascii=False))


def _without_infinities(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _without_infinities(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_infinities(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
