"""`dpbench list` and `dpbench schema`: the names that specs and options accept, for people and for editors."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import click

# what a spec or an option may name, and how many first parameters dpbench passes itself (None: parameters not shown)
KINDS = {
    "mechanisms": 0,
    "models": 2,
    "datasets": 0,
    "samplers": 0,
    "preparations": 0,
    "augmentations": 0,
    "smoothings": 0,
    "rules": 0,
    "noise": 0,
    "updates": 0,
    "averages": 0,
    "clipping": None,
    "metrics": 0,
    "accountants": None,
    "checks": None,
    "papers": None,
}


@click.command("list")
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(kinds: tuple[str, ...], as_json: bool) -> int:
    """List what a spec or an option may name, with its parameters.

    mechanisms, models and datasets for a spec; samplers, preparations, augmentations, smoothings, rules, noise,
    updates, averages and clipping (the engines) as stages of the mechanism `pipeline`; metrics; accountants and checks;
    papers, whose claims `dpbench verify` judges.

    \b
    Examples:
      dpbench list
      dpbench list mechanisms models
    """
    from dpbench.catalog import suggestion
    from dpbench.errors import DpbenchError

    for kind in kinds:
        if kind not in KINDS:
            raise DpbenchError(f"kind {kind!r}{suggestion(kind, KINDS)}")
    papers, told = {one["name"]: one["about"] for one in _papers()}, ""
    for kind in kinds or KINDS:
        members = _papers() if kind == "papers" else _members(kind)
        if as_json:
            for one in members:
                click.echo(json.dumps(one, ensure_ascii=False))
            continue
        click.echo(click.style(kind, bold=True))
        for one in members:
            click.echo(f"  {one['name']}: {one['about']}")
            for name, parameter in one["parameters"].items():
                default = "" if parameter["default"] is None else f" (default {parameter['default']})"
                click.echo(f"      {name}: {parameter['expected']}{default}")
        told += json.dumps(members)
        click.echo()
    named = [name for name in papers if name in told] if "papers" not in (kinds or KINDS) else []
    if named and not as_json:
        click.echo(click.style("papers", bold=True) + "\n" + "\n".join(f"  {one}: {papers[one]}" for one in named))
    return 0


def _papers() -> list[dict[str, Any]]:
    """The papers by the short names of their claims: title, authors, year."""
    from dpbench.judging import papers
    from dpbench.spec.yaml_loader import parse, plain

    found = []
    for file in sorted(Path(papers.__path__[0]).glob("*/claims.yaml")):
        text = file.read_text(encoding="utf-8").partition("\nclaims:")[0].partition("\npublished:")[0]
        root = parse(text, str(file)).root
        said: Any = {} if root is None else plain(root)
        about = f"{said['title']}. {said['source'].partition('. ')[0].rstrip('.')}."
        found.append({"kind": "papers", "name": said["paper"], "origin": "dpbench", "about": about, "parameters": {}})
    return found


def _members(kind: str) -> list[dict[str, Any]]:
    from dpbench.catalog import catalog
    from dpbench.errors import DpbenchError
    from dpbench.spec.annotations import NOTHING, parameters_of

    found = []
    for name, entry in catalog(kind).items():
        parameters: dict[str, Any] = {}
        try:
            loaded = entry.load()
            own = getattr(loaded, "about", "")  # a row of a table, of whose module it is one of many
            about = own or (importlib.import_module(entry.module).__doc__ or "").strip().partition("\n")[0]
            skip = KINDS[kind]
            if skip is not None and callable(loaded):
                for slot in parameters_of(loaded, skip=skip).slots.values():
                    default = None if slot.default is NOTHING else json.dumps(slot.default, default=str)
                    expected = slot.expected
                    if kind == "mechanisms" and slot.name == "clipping":
                        expected, default = " or ".join(catalog("clipping")), "the faster one, measured"
                    parameters[slot.name] = {"expected": expected, "default": default}
        except (DpbenchError, TypeError) as error:
            about = f"cannot be loaded: {error}"
        found.append({"kind": kind, "name": name, "origin": entry.origin, "about": about, "parameters": parameters})
    return found


@click.command()
@click.argument("kind", type=click.Choice(["run", "events", "claims"], case_sensitive=False), default="run")
def schema(kind: str) -> int:
    """Print the JSON Schema of files of a KIND, for your editor: run (specs, the default), events or claims.

    \b
    Example:
      dpbench schema > dpbench.schema.json
      # then write as the first line of a spec:  # yaml-language-server: $schema=dpbench.schema.json
      dpbench schema claims > claims.schema.json
    """
    from dpbench.cli.schemas import claims_schema, events_schema, json_schema

    made = {"run": json_schema, "events": events_schema, "claims": claims_schema}[kind]()
    click.echo(json.dumps(made, indent=2, ensure_ascii=False))
    return 0
