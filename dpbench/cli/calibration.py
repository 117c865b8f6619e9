"""`dpbench calibrate`: the noise, steps, rate or batch for a target (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpbench.cli.releases import (
    delta_option,
    emit,
    facts,
    file_argument,
    group_option,
    in_file,
    json_option,
    release_options,
    said,
)
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.events import Composition
    from dpbench.privacy.answers import Estimate
    from dpbench.privacy.calibration import Calibrated
    from dpbench.privacy.releases import Releases, Said

FINDS = ("noise_multiplier", "steps", "epochs", "sampling_rate", "batch")
FILE_FINDS = ("noise_factor", "repetitions", "rate_factor")


@click.command()
@file_argument
@release_options
@click.option("--epsilon", type=float, help="The target ε.")
@delta_option
@click.option(
    "--find",
    type=click.Choice((*FINDS, *FILE_FINDS), case_sensitive=False),
    metavar="WHAT",
    help="What to look for: noise_multiplier (default), steps, epochs, sampling_rate, batch; of a FILE: noise_factor"
    " (default), repetitions, rate_factor.",
)
@click.option(
    "--accountant", metavar="NAME", help="Default: exact where it answers for the releases, else lattice, else rdp."
)
@group_option
@click.option(
    "--recalibrate",
    metavar="ACCOUNTANT",
    help="Given --sigma: the noise that costs by --accountant (default gdp_clt) what σ costs by this one.",
)
@json_option
def calibrate(file: Path | None, **options: Any) -> int:
    """Find the smallest noise, or the most steps, epochs, rate or batch, for a target (ε, δ).

    The answer is rounded to the safe side, and the accountant is asked again at exactly that number; the next number
    fails the target. For a FILE of `kind: events` all releases change together: the smallest factor on every noise, the
    most repetitions of the whole sequence, or the largest factor on every sampling rate; events without that parameter
    stay as they are. `--recalibrate moments` solves equations (3.3) and (3.4) of Bu, Dong, Long and Su (2020).

    \b
    Examples:
      dpbench calibrate --n 60000 --batch 256 --epochs 15 --epsilon 1 --delta 1e-5
      dpbench calibrate --find steps --sampling-rate 0.01 --sigma 1 \\
          --epsilon 2 --delta 1e-5
      dpbench calibrate --find batch --n 60000 --epochs 15 --sigma 1.3 \\
          --epsilon 1 --delta 1e-5 --accountant rdp
      dpbench calibrate --event laplace --steps 10 --epsilon 1 --delta 1e-6
      dpbench calibrate events.yaml --epsilon 2 --delta 1e-5
      dpbench calibrate events.yaml --find repetitions --epsilon 2 --delta 1e-5
      dpbench calibrate --recalibrate moments --sigma 1.3 --n 60000 --batch 256 \\
          --epochs 20 --delta 1e-5
    """
    if options["delta"] is None:
        raise click.UsageError("--delta is missing")
    if options["recalibrate"] is not None:
        if file is not None:
            raise click.UsageError(f"--recalibrate does not go with a file ({file}): it is about one --sigma")
        return _recalibrate(said(options, options["group_size"])[0], options)
    if options["epsilon"] is None:
        raise click.UsageError("--epsilon is missing: the target")
    if file is not None:
        find = options["find"] or "noise_factor"
        group_size = 1 if options["group_size"] is None else options["group_size"]
        return _calibrate(find, _file_maker(in_file(file, options), find), group_size, options)
    find = options["find"] or "noise_multiplier"
    what, group_size = said(options, options["group_size"])
    return _calibrate(find, _maker(what, find), group_size, options, most=what.examples if find == "batch" else None)


def _calibrate(
    find: str, make: Callable[[Any], Releases], group_size: int, options: dict[str, Any], most: int | None = None
) -> int:
    from dpbench.cli.answer_lines import calibrated_lines
    from dpbench.cli.console import console, say
    from dpbench.privacy.calibration import solve

    found = solve(
        find,
        lambda value: make(value).composition,
        epsilon=options["epsilon"],
        delta=options["delta"],
        accountant=options["accountant"],
        most=most,
        group_size=group_size,
    )
    made = make(found.value)
    from dpbench.privacy.statement import RESERVATION, fewer_epochs, large_deltas, summary

    warnings = [*large_deltas(made, found.delta), *fewer_epochs(made)]
    if options["as_json"]:
        reservation = RESERVATION if made.composition.adaptive else None
        data = facts(made, group_size) | _calibrated_json(found)
        emit(data | {"reservation": reservation, "warnings": warnings})
    else:
        out = console()
        for line in calibrated_lines(found):
            say(out, line)
        say(out, f"Then {summary(made)}.")
        if made.composition.adaptive:
            say(out, f"But {RESERVATION}")
        for warning in warnings:
            say(out, f"Warning: {warning}.")
    return 0


def _maker(what: Said, find: str) -> Callable[[Any], Releases]:
    """A function from the number that is sought to the releases. Raises DpbenchError if that number was given."""
    from dpbench.privacy.releases import needs, option, releases

    if find in FILE_FINDS:
        instead = FINDS[(0, 1, 3)[FILE_FINDS.index(find)]]
        raise DpbenchError(f"--find {find}: it moves the releases of a FILE together; here use --find {instead}")
    same = {"steps": ("steps", "epochs"), "sampling_rate": ("sampling_rate", "batch")}
    for name in next((pair for pair in same.values() if find in pair), (find,)):
        if getattr(what, name) is not None:
            others = ", ".join(other for other in FINDS if other != find)
            what_for = "what is looked for" if name == find else f"the same as {option(find)}, which is looked for"
            raise DpbenchError(f"{option(name)} is {what_for}: leave it out, or use --find ({others})")
    if find in ("noise_multiplier", "sampling_rate") and not needs(what.event, find):
        raise DpbenchError(f"--find {find}: the event {what.event} has no {find}")
    if find in ("epochs", "batch") and not needs(what.event, "sampling_rate"):
        raise DpbenchError(f"--find {find}: the event {what.event} is not sampled; use --find steps")
    if find == "batch" and what.examples is None:
        raise DpbenchError("--n is missing: --find batch needs the number of records")

    def make(value: Any) -> Releases:
        return releases(replace(what, **{find: value}))

    return make


def _file_maker(found: Releases, find: str) -> Callable[[Any], Releases]:
    """A function from the number that is sought to the file's releases. Raises DpbenchError if no file has it."""
    from dpbench.privacy.scaling import noise_scaled, rates_scaled, repeated

    moves: dict[str, Callable[[Composition, Any], Composition]] = {
        "noise_factor": noise_scaled,
        "repetitions": repeated,
        "rate_factor": rates_scaled,
    }
    if find not in moves:
        others = ", ".join(FILE_FINDS)
        raise DpbenchError(f"--find {find}: {found.file} holds a sequence, which moves as a whole; use one of {others}")

    def make(value: Any) -> Releases:
        return replace(found, composition=moves[find](found.composition, value))

    return make


def _calibrated_json(found: Calibrated) -> dict[str, Any]:
    def plain(estimate: Estimate | None) -> dict[str, Any] | None:
        if estimate is None:
            return None
        finite = math.isfinite(estimate.value)
        ends = {"lower": estimate.lower, "upper": estimate.upper} if finite else {"lower": None, "upper": None}
        return {"epsilon": estimate.value if finite else None, **ends, "reason": estimate.reason}

    attained = plain(found.attained) or {}
    guarantee = {
        "accountant": found.accountant,
        "version": found.version,
        "kind": found.kind,
        "delta": found.delta,
        "epsilon": attained["epsilon"],
        "epsilon_lower": attained["lower"],
        "epsilon_upper": attained["upper"],
        "relative_error": found.attained.relative_error,
        "reason": found.attained.reason,
        "seconds": found.seconds,
    }
    return {
        "find": found.find,
        "value": found.value,
        "target": {"epsilon": found.epsilon, "delta": found.delta},
        "neighbour": found.neighbour,
        "neighbour_attained": plain(found.neighbour_attained),
        "promise": found.promise,
        "accountant_because": found.because,
        "asked": found.asked,
        "seconds": found.seconds,
        "guarantees": [guarantee],
    }


def _recalibrate(what: Said, options: dict[str, Any]) -> int:
    from dpbench.cli.answer_lines import recalibrated_lines
    from dpbench.cli.console import console, say
    from dpbench.privacy.calibration import recalibrate, tightest
    from dpbench.privacy.releases import releases
    from dpbench.privacy.statement import RESERVATION

    for name in ("epsilon", "find", "group_size"):
        if options[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with --recalibrate")
    if what.noise_multiplier is None:
        raise click.UsageError("--sigma is missing: the noise whose ε is given by --recalibrate")
    found = recalibrate(
        lambda noise: releases(replace(what, noise_multiplier=noise)).composition,
        what.noise_multiplier,
        delta=options["delta"],
        given_by=options["recalibrate"],
        spent_by=options["accountant"] or "gdp_clt",
    )
    edge = found.recalibrated
    made = releases(replace(what, noise_multiplier=edge.value))
    truth, _ = tightest(made.composition, options["delta"])
    if options["as_json"]:
        given = {"noise_multiplier": found.noise_multiplier, "epsilon": found.epsilon, "accountant": found.given_by}
        data = facts(made, 1) | {"given": given | {"mu": found.mu}, "mu": found.recalibrated_mu}
        data |= _calibrated_json(edge) | {"reservation": RESERVATION if edge.adaptive else None}
        data["guarantees"].append(truth.to_json())
        emit(data)
    else:
        out = console()
        for line in recalibrated_lines(found, truth):
            say(out, line)
        if edge.adaptive:
            say(out, f"But {RESERVATION}")
    return 0
