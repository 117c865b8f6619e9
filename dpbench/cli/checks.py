"""`dpbench check`: whether a mechanism does what its ledger says, by all the checks that can look at it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from dpbench.cli.options import allow_code
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.judging.checking import Checkup

_STYLES = {"holds": "green", "refuted": "bold red", "undecided": "yellow", "not_run": "yellow"}


@click.command()
@click.argument("subjects", nargs=-1, metavar="[SPEC | MODULE:FACTORY | NAME]...")
@click.option("--all", "everything", is_flag=True, help="All mechanisms, clipping engines, the sampler, the generator.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter of a MODULE:FACTORY or NAME.")
@click.option(
    "--steps", type=click.IntRange(1), help="Planned length of a run. Default: the spec's, or 200 where there is none."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="All chance comes from it.")
@click.option("--out", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder of records.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line of the table.")
@allow_code
def check(subjects: tuple[str, ...], **options: Any) -> int:
    """Look for a mechanism's faults: noise, sensitivity, sampling, and data that reach the parameters unreleased.

    A SPEC (or a folder of them) is checked with its parameters and planned steps, and its model is probed. Each line
    says what was checked and what was found, with statistic and false-alarm probability; what could not be checked has
    a line as well. A clean table is no proof of privacy: faults of these kinds were looked for on small problems and
    not found. The verdict on a mechanism that dpbench does not ship is kept in OUT/checks; reports withhold the ε of a
    refuted mechanism.

    Exit status: 0 all hold, 1 something is refuted or could not be checked, 2 bad input.

    \b
    Examples:
      dpbench check momentum.yaml
      dpbench check my_mechanisms:noisy_momentum --set beta=0.5 --steps 3000
      dpbench check noisy_sgd --json
      dpbench check --all --seed 7
    """
    from dpbench.cli.console import Watch
    from dpbench.judging.checking import check_mechanism, check_up, everything
    from dpbench.store.check_records import code_of

    if not subjects and not options["everything"]:
        raise DpbenchError("name a spec, a module:factory or a mechanism, or give --all (see `dpbench check --help`)")
    targets = _targets(subjects, options)
    targets += [one for one in everything() if one not in targets] if options["everything"] else []
    found: list[Checkup] = []
    kept: list[Path] = []
    with Watch("checks") as watch:
        for target in targets:
            if isinstance(target, _Model):
                watch(target.title, 0, 1)
                found.append(target.probe())
                watch(target.title, 1, 1)
            elif target.kind != "mechanisms" or code_of(target.name, target.parameters).shipped:
                found.append(check_up(target, seed=options["seed"], progress=watch))
            else:
                what = (target.name, target.parameters, target.planned)
                one, record = check_mechanism(*what, out=options["out"], seed=options["seed"], progress=watch)
                found.append(one)
                kept.append(record.place(options["out"]))
    if options["as_json"]:
        for one in found:
            for line in one.lines:
                click.echo(json.dumps({"kind": one.kind, **line.to_json()}, ensure_ascii=False, default=repr))
            click.echo(json.dumps({**one.to_json(), "lines": len(one.lines)}, ensure_ascii=False, default=repr))
    else:
        _show(found)
        for path in kept:
            click.echo(f"wrote {path}")
    return 0 if all(one.verdict == "holds" for one in found) else 1


@dataclass(frozen=True)
class _Model:
    """A spec's model, to be probed."""

    title: str
    build: Any
    shape: tuple[int, ...]
    classes: int

    def probe(self) -> Any:
        from dpbench.judging.checking import Checkup, Line
        from dpbench.plan.probe import probe_model
        from dpbench.verdicts import Verdict

        lines = []
        for one in probe_model(self.build, self.shape, self.classes):
            verdict = Verdict("model_probe", self.title, one.verdict, one.found, {}, 0.0, "dpbench/plan/probe")
            lines.append(Line(one.what, verdict))
        verdicts = [line.verdict.verdict for line in lines]
        wrong = next((line for line in lines if line.verdict.verdict != "holds"), None)
        together = "refuted" if "refuted" in verdicts else "unchecked" if wrong is not None else "holds"
        reason = "nothing wrong was found" if wrong is None else f"{wrong.looked_at}: {wrong.verdict.reason}"
        return Checkup(self.title, "models", tuple(lines), together, reason)  # type: ignore[arg-type]


def _targets(subjects: Sequence[str], options: Mapping[str, Any]) -> list[Any]:
    """What is to be checked, each once."""
    from dpbench.judging.checking import PLANNED, named

    given = {}
    steps: int | None = options["steps"]
    for text in options["settings"]:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise DpbenchError(f"--set {text}: expected NAME=VALUE, such as beta=0.5")
        given[name] = yaml.safe_load(value)
    targets: list[Any] = []
    for subject in subjects:
        if Path(subject).exists():
            targets += _of_specs(Path(subject), steps, options["allow_code"])
        elif Path(subject).suffix in (".yaml", ".yml"):
            raise DpbenchError(f"{subject}: there is no such file")
        else:
            targets.append(replace(named(subject), parameters=given, planned=steps or PLANNED))
    if given and all(Path(subject).exists() for subject in subjects):
        raise DpbenchError("--set: a spec has its own parameters; give a module:factory or a name")
    return targets


def _of_specs(path: Path, steps: int | None, allow_code: bool) -> list[Any]:
    """Mechanisms and models of specs; a mechanism with the same parameters once, for its longest run."""
    from dpbench.judging.checking import Target
    from dpbench.plan.parts import dataset_source, model_builder, outputs_of, rate_and_steps
    from dpbench.spec.loading import load_specs

    mechanisms: dict[str, Target] = {}
    models: dict[str, _Model] = {}
    for spec in load_specs([path], allow_code):
        source = dataset_source(spec)
        parameters = dict(spec.mechanism.parameters)
        key = json.dumps([spec.mechanism.name, parameters], sort_keys=True, default=repr)
        planned = steps or rate_and_steps(spec, source)[1]
        if key not in mechanisms or mechanisms[key].planned < planned:
            mechanisms[key] = Target("mechanisms", spec.mechanism.name, parameters, planned)
        title = f"{spec.model.name} for {spec.dataset.name}"
        key = json.dumps(
            [title, dict(spec.model.parameters), dict(spec.dataset.parameters)], sort_keys=True, default=repr
        )
        models[key] = _Model(title, model_builder(spec, source), tuple(source.input_shape), outputs_of(spec, source))
    return [*mechanisms.values(), *models.values()]


def _show(found: Sequence[Checkup]) -> None:
    """A table for each subject, then a sentence about each; unchecked and refuted ones last."""
    from rich.table import Table
    from rich.text import Text

    from dpbench.cli.console import console, say
    from dpbench.privacy.formatting import number, words

    out = console()
    for one in found:
        table = Table(box=None, pad_edge=False, header_style="bold", title=one.subject, title_justify="left")
        for name in ("check", "verdict", "subject, and reason", "statistic", "false alarm"):
            table.add_column(name, overflow="fold", no_wrap=name in ("check", "verdict", "statistic"))
        for line in one.lines:
            verdict = line.verdict
            table.add_row(
                Text(verdict.check),
                Text(words(verdict.verdict), style=_STYLES.get(verdict.verdict, "")),
                Text(f"{line.looked_at}: {verdict.reason}"),
                Text(line.statistic),
                Text(number(verdict.false_alarm) if line.statistic.startswith("p") else ""),
            )
        out.print(table)
    for one in sorted(found, key=lambda one: {"holds": 0, "unchecked": 1, "refuted": 2}[one.verdict]):
        steps = f", runs of up to {one.planned} steps" if one.kind == "mechanisms" else ""
        say(out, f"{words(one.kind)} {one.subject}{steps}: {one.verdict}: {one.reason}", 2)
    chance = sum(one.false_alarm for one in found)
    say(
        out,
        f"A true property is refuted by chance with probability {number(chance, 3)} at most, in all lines together.",
        2,
    )
