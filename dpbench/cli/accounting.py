"""The verbs that ask how private a training is: `dpbench account` and `dpbench certify`."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpbench.cli.releases import (
    delta_option,
    described,
    emit,
    facts,
    file_argument,
    group_option,
    json_option,
    release_options,
    whole,
)
from dpbench.cli.trade_off_curve import show_trade_offs, trade_off
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.events import Composition
    from dpbench.privacy.answers import Estimate, Guarantee, PrivacyCurve
    from dpbench.privacy.certified import Certificate
    from dpbench.privacy.releases import Releases

MOST_SECONDS = 1e6
_LONGER = "--seconds allows more"
TABLE_POINTS, PLOT_POINTS = 20, 101  # most rows of the table, points of the figure
SHORTEST, LONGEST = 1e-300, 1e300  # the range of the largest ε of a curve


@click.command()
@file_argument
@release_options
@delta_option
@click.option("--epsilon", type=float, help="Ask for δ at this ε, in place of --delta or beside it.")
@click.option("--accountant", "accountants", multiple=True, metavar="NAME", help="Only this one. Repeatable.")
@group_option
@click.option("--curve", is_flag=True, help="δ(ε) as a table.")
@click.option("--trade-off", is_flag=True, help="Type II against type I errors, total variation, tangent Gaussian.")
@click.option("--points", type=click.IntRange(2, 10_000), help="Points of the curve.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw δ(ε): .png, .svg or .pdf.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, MOST_SECONDS, min_open=True),
    default=120.0,
    show_default=True,
    help="An accountant that takes longer is stopped.",
)
@json_option
def account(file: Path | None, **options: Any) -> int:
    """Say how private a training is, by every accountant that covers it, and why the others do not.

    Releases are described by options, or by a FILE of `kind: events` for unlike ones. Only answers of the kinds
    exact, certified and upper bound are promises. T is rounded up from epochs; --steps gives it.

    \b
    Examples:
      dpbench account --n 60000 --batch 256 --sigma 1.3 --epochs 15 --delta 1e-5
      dpbench account --sampling-rate 0.01 --steps 99 --sigma 1 --epsilon 2 --json
      dpbench account --sampling-rate 0.01 --steps 999 --sigma 1 --delta 1e-5 \\
          --curve --plot curve.svg
      dpbench account --event random_sensitivity_gaussian --projections 5 \\
          --sampling-rate 0.01 --steps 999 --sigma 1 --delta 1e-5
      dpbench account --event gaussian --sigma 4 --steps 20 --delta 1e-5
      dpbench account --event group --group-size 3 --sampling-rate 0.01 \\
          --steps 999 --sigma 2 --delta 1e-5
      dpbench account --event laplace --sigma 20 --steps 10 --delta 1e-6
      dpbench account --event confident_gnmax --threshold 300 \\
          --selection-noise 200 --answer-noise 40 --steps 10 --delta 1e-6
      dpbench account --event discrete_pair --first 0.75,0.25 --second 0.25,0.75 \\
          --delta 1e-6
      dpbench account events.yaml --delta 1e-5 --accountant rdp
    """
    delta, epsilon = options["delta"], options["epsilon"]
    if delta is None and epsilon is None:
        raise click.UsageError("give --delta, to ask for ε, or --epsilon, to ask for δ, or both")
    if options["plot"] is not None:
        from dpbench.reporting.rendering.curves import check_path

        check_path(options["plot"])
    found, group_size = described(options, file, options["group_size"])
    if options["trade_off"] and found.composition.adaptive:
        raise DpbenchError(
            "--trade-off: there is none where later parameters depend on earlier outputs: only one budget (ε, δ) that"
            " was fixed before the first release holds, and no curve of them; leave the option out"
        )
    questions: list[dict[str, float]] = []
    questions += [{"delta": delta}] if delta is not None else []
    questions += [{"epsilon": epsilon}] if epsilon is not None else []
    _check_questions(questions)
    seconds: float = options["seconds"]
    answers = [_asked(found, options["accountants"] or None, group_size, seconds, **one) for one in questions]
    asked = answers[0]
    if group_size == 1:
        answers = [(*many, *_unrounded(found, many, **one)) for many, one in zip(answers, questions, strict=True)]
    end = _end(answers, epsilon)
    points = _points(end, options["points"]) if options["points"] else _round_points(end)
    if options["plot"] is not None:
        drawn = _points(end, options["points"] or PLOT_POINTS)
        _plot(options["plot"], found, _curves(found, asked, group_size, drawn, seconds), drawn)
    curves = _curves(found, asked, group_size, points, seconds) if options["curve"] else []
    offs = _trade_offs(found, asked, group_size, seconds) if options["trade_off"] else {}
    if options["as_json"]:
        data = facts(found, group_size) | {"guarantees": [one.to_json() for many in answers for one in many]}
        if options["curve"]:
            data["curve"] = _curve_json(curves, points)
        if options["trade_off"]:
            data["trade_off"] = offs
        from dpbench.privacy.statement import reserved, statement, warnings

        data["warnings"] = warnings(found, answers[0])
        data["reservation"] = reserved(found.composition).removeprefix("* ") or None
        data["statement"] = statement(found, answers[0], group_size)
        emit(data)
    else:
        _show_account(found, questions, answers, group_size)
        if options["curve"]:
            _show_curve(curves, points, found.composition)
        if options["trade_off"]:
            show_trade_offs(offs)
        if options["plot"] is not None:
            click.echo(f"wrote {options['plot']}")
    if all(one.answer is None for one in answers[0]):
        raise DpbenchError("none of the accountants asked covers these releases; their reasons are listed")
    return 0


def _check_questions(questions: Sequence[dict[str, float]]) -> None:
    from dpbench.privacy.answers import check_delta, check_epsilon

    for question in questions:
        for name, value in question.items():
            check_delta(value) if name == "delta" else check_epsilon(value)


def _unrounded(found: Releases, guarantees: Sequence[Guarantee], **question: float) -> list[Guarantee]:
    """Answers for a T that is not whole, as papers print that did not round it, by accountants that accept one."""
    from dpbench.catalog import find
    from dpbench.privacy.accounting import guarantee, load_accountant

    steps = found.unrounded_steps
    if steps is None or steps.denominator == 1:
        return []
    answers = []
    for name in [one.accountant for one in guarantees if one.answer is not None]:
        accountant: Any = load_accountant(name)
        if hasattr(accountant, "curve_for"):
            make_curve = partial(accountant.curve_for, found.composition.parts[0][0], float(steps))
            version = find("accountants", name).version
            answers.append(guarantee(f"{name}, T={float(steps):.10g}", make_curve, version=version, **question))
    return answers


def _show_account(
    found: Releases,
    questions: Sequence[dict[str, float]],
    answers: Sequence[Sequence[Guarantee]],
    group_size: int,
) -> None:
    from dpbench.cli.answer_lines import guarantee_table, refusals
    from dpbench.cli.console import console, say
    from dpbench.privacy.formatting import number
    from dpbench.privacy.statement import reserved, statement

    out = console()
    reservation = reserved(found.composition)
    for place, (question, guarantees) in enumerate(zip(questions, answers, strict=True)):
        name, value = next(iter(question.items()))
        asked = f"ε at δ = {number(value)}" if name == "delta" else f"δ at ε = {number(value)}"
        asked += f", groups of {group_size}" if group_size > 1 else ""
        if place:
            out.print()
        table = guarantee_table(guarantees, asked, out.width, mark=" *" if reservation else "")
        if table.row_count:
            out.print(table)
            if reservation:
                say(out, reservation, indent=2)
        else:
            say(out, f"{asked}: no accountant has an answer.")
    without = refusals(answers[0])
    if without:
        out.print("\nRefused, or with a reservation:")
    for reason, names in without.items():
        say(out, f"  {', '.join(names)}: {reason}", indent=4)
    out.print()
    say(out, statement(found, answers[0], group_size))


def _end(answers: Sequence[Sequence[Guarantee]], epsilon: float | None) -> float:
    """The largest ε of the curve: twice the ε that was asked about, or twice the smallest promised one."""
    if epsilon:
        return min(max(2 * epsilon, SHORTEST), LONGEST)
    values = [one.epsilon.safe for one in answers[0] if one.epsilon is not None and one.answer is not None]
    finite = [value for value in values if 0 < value < math.inf]
    return min(max(2 * min(finite), SHORTEST), LONGEST) if finite else 10.0


def _points(end: float, count: int) -> list[float]:
    """Evenly spaced from 0 to `end`, rounded to six digits, so that a table shows the exact points."""
    points = [float(f"{end * place / (count - 1):.6g}") for place in range(count)]
    return sorted(set(points))


def _round_points(end: float) -> list[float]:
    """Multiples of a round number from 0 to `end` or a little beyond, about 15 of them."""
    decade = 10.0 ** math.floor(math.log10(end / TABLE_POINTS))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade * TABLE_POINTS >= end)
    return [float(f"{place * step:.6g}") for place in range(math.ceil(end / step) + 1)]


def _asked(
    found: Releases, names: Sequence[str] | None, group_size: int, seconds: float, **question: float
) -> tuple[Guarantee, ...]:
    """The answers of `privacy.accounting.account`, but an accountant that takes more than `seconds` is stopped."""
    from dpbench.catalog import find
    from dpbench.cli.capped import Stopped, capped
    from dpbench.privacy.accounting import to_ask
    from dpbench.privacy.answers import no_answer
    from dpbench.privacy.guards import cross_checked

    jobs = to_ask(found.composition, accountants=names, group_size=group_size, **question)
    answers: list[Guarantee] = []
    with _at_work() as progress:
        before = (lambda place: progress(jobs[place][0])) if progress is not None else None
        for (name, _), one in zip(jobs, capped([_without_curve(job) for _, job in jobs], seconds, before), strict=True):
            if isinstance(one, Stopped):
                version = find("accountants", name).version
                answers.append(no_answer(name, f"{one.reason}; {_LONGER}", seconds, version=version, **question))
            else:
                answers.append(one)
    return cross_checked(answers)


def _without_curve(job: Callable[[], Guarantee]) -> Callable[[], Guarantee]:
    return lambda: replace(job(), curve=None)  # not every curve can be pickled


def _of_each(
    found: Releases,
    guarantees: Sequence[Guarantee],
    group_size: int,
    seconds: float,
    ask: Callable[[Guarantee, PrivacyCurve], Any],
) -> list[tuple[Guarantee, Any]]:
    """What `ask` returns for each accountant that answered and its curve, or `Stopped`."""
    from dpbench.cli.answer_lines import in_order
    from dpbench.cli.capped import Stopped, capped
    from dpbench.privacy.accounting import curve_or_refusal, load_accountant
    from dpbench.privacy.answers import No

    answering = [one for one in in_order(guarantees) if one.answer is not None]

    def job(one: Guarantee) -> Any:
        try:
            curve = curve_or_refusal(load_accountant(one.accountant), found.composition, group_size)
            return Stopped(curve.reason) if isinstance(curve, No) else ask(one, curve)
        except DpbenchError as error:
            return Stopped(str(error))

    return list(zip(answering, capped([partial(job, one) for one in answering], seconds), strict=True))


def _curves(
    found: Releases, guarantees: Sequence[Guarantee], group_size: int, points: Sequence[float], seconds: float
) -> list[tuple[Guarantee, list[Estimate]]]:
    """δ at each point by every accountant that answered."""
    from dpbench.cli.capped import Stopped
    from dpbench.privacy.answers import Estimate

    answers = _of_each(found, guarantees, group_size, seconds, lambda _, curve: _deltas(curve, points))
    return [
        (one, [Estimate(math.nan, reason=rows.reason)] * len(points) if isinstance(rows, Stopped) else rows)
        for one, rows in answers
    ]


def _trade_offs(
    found: Releases, guarantees: Sequence[Guarantee], group_size: int, seconds: float
) -> dict[str, dict[str, Any]]:
    from dpbench.cli.capped import Stopped

    answers = _of_each(found, guarantees, group_size, seconds, trade_off)
    return {one.accountant: {"refused": had.reason} if isinstance(had, Stopped) else had for one, had in answers}


def _deltas(curve: PrivacyCurve, points: Sequence[float]) -> list[Estimate]:
    """δ at each point; NaN with the reason where the accountant gives none."""
    from dpbench.privacy.answers import Estimate

    together = getattr(curve, "deltas", None)  # some curves answer for many ε at once, and much faster
    if together is not None:
        with contextlib.suppress(DpbenchError):  # then one by one below, which says where
            return list(together(points))
    found = []
    for epsilon in points:
        try:
            found.append(curve.delta(epsilon))
        except DpbenchError as error:
            found.append(Estimate(math.nan, reason=str(error)))
    return found


def _curve_json(curves: Sequence[tuple[Guarantee, list[Estimate]]], points: Sequence[float]) -> list[dict[str, Any]]:
    found = []
    for one, deltas in curves:
        rows = [
            {
                "epsilon": epsilon,
                "delta": delta.value if math.isfinite(delta.value) else None,
                "lower": delta.lower,
                "upper": delta.upper,
                "reason": delta.reason,
            }
            for epsilon, delta in zip(points, deltas, strict=True)
        ]
        found.append({"accountant": one.accountant, "kind": one.kind, "points": rows})
    return found


def _show_curve(
    curves: Sequence[tuple[Guarantee, list[Estimate]]], points: Sequence[float], composition: Composition
) -> None:
    from dpbench.cli.answer_lines import curve_tables, remarks
    from dpbench.cli.console import console, say
    from dpbench.privacy.statement import reserved

    out = console()
    reservation = reserved(composition)
    mark = " *" if reservation else ""
    shown = [(one.accountant + mark, one.kind or "", deltas) for one, deltas in curves]
    if reservation and shown:
        out.print()
        say(out, reservation, indent=2)
    for table in curve_tables(points, shown, out.width):
        out.print()
        out.print(table)
    for line in remarks([(one.accountant, deltas) for one, deltas in curves]):
        say(out, line)


def _plot(
    path: Path, found: Releases, curves: Sequence[tuple[Guarantee, list[Estimate]]], points: Sequence[float]
) -> None:
    from dpbench.cli.answer_lines import remarks
    from dpbench.privacy.statement import reserved, summary
    from dpbench.reporting.rendering.curves import Curve, save

    reservation = reserved(found.composition)
    said = [summary(found), *([reservation] if reservation else [])]
    said += [line.removesuffix(".") for line in remarks([(one.accountant, deltas) for one, deltas in curves])]
    drawn = [
        Curve(
            one.accountant + (" *" if reservation else ""),
            one.kind or "",
            [None if math.isnan(delta.value) else delta.value for delta in deltas],
        )
        for one, deltas in curves
    ]
    save(path, ". ".join(said), points, drawn)


@click.command()
@file_argument
@release_options
@delta_option
@click.option("--epsilon", type=float, help="Enclose δ at this ε, in place of --delta.")
@click.option("--digits", type=click.IntRange(2, 60), default=10, show_default=True, help="Digits asked for.")
@click.option("--group-size", callback=whole, metavar="G", help="Records of the group, for --event group.")
@json_option
def certify(file: Path | None, digits: int, **options: Any) -> int:
    """Prove how private a training is: an interval that contains ε (or δ), rounding errors included.

    The interval is computed in ball arithmetic from the definition; no step of it is an estimate.

    \b
    Examples:
      dpbench certify --n 60000 --batch 256 --sigma 1.3 --epochs 15 --delta 1e-5
      dpbench certify --sampling-rate 0.01 --steps 99 --sigma 1 --epsilon 2 --json
      dpbench certify --event group --group-size 3 --sampling-rate 0.01 \\
          --steps 99 --sigma 2 --delta 1e-5
      dpbench certify --event laplace --sigma 20 --steps 10 --delta 1e-6
      dpbench certify events.yaml --delta 1e-5
    """
    from dpbench.cli.answer_lines import certificate_lines
    from dpbench.cli.console import console, say
    from dpbench.privacy.answers import Estimate, Guarantee
    from dpbench.privacy.statement import statement

    delta, epsilon = options["delta"], options["epsilon"]
    if (delta is None) == (epsilon is None):
        raise click.UsageError("give either --delta, to enclose ε, or --epsilon, to enclose δ")
    _check_questions([{"delta": delta} if delta is not None else {"epsilon": epsilon}])
    found, generic = described(options, file, options["group_size"])
    if options["group_size"] is not None and (file is not None or generic != 1):
        raise click.UsageError(
            "--group-size goes with --event group; `dpbench account` has the generic bound for others"
        )
    certificate = _proven(found.composition, delta=delta, epsilon=epsilon, digits=digits)
    estimate = certificate.estimate()
    if certificate.quantity == "epsilon":
        asked: dict[str, Any] = {"delta": delta, "epsilon": estimate}
    else:
        asked = {"delta": estimate.value, "epsilon": Estimate(epsilon, epsilon, epsilon), "delta_at": estimate}
    guarantee = Guarantee(
        accountant="certified",
        kind="certified",
        adjacency=certificate.adjacency,
        mu=None,
        refused=None,
        seconds=certificate.seconds,
        version=certificate.version,
        **asked,
    )
    if options["as_json"]:
        data = {"guarantees": [guarantee.to_json()], "certificate": certificate.to_json()}
        emit(facts(found, 1) | data | {"statement": statement(found, [guarantee])})
    else:
        out = console()
        for line in certificate_lines(certificate):
            say(out, line, indent=18)
        out.print()
        say(out, statement(found, [guarantee]))
    return 0


def _proven(composition: Composition, **question: Any) -> Certificate:
    """The certificate; a terminal shows which part is being computed."""
    from dpbench import certify as prove

    with _at_work() as progress:
        return prove(composition, progress=progress, **question)


@contextlib.contextmanager
def _at_work() -> Iterator[Callable[[str], None] | None]:
    """A function that shows on the terminal what is being done; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
