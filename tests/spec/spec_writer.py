"""Specs and plain values written as YAML, for round trips: what the package itself never needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from dpbench.spec.keys import PUBLISHED, Weights
from dpbench.spec.loading import Budget, Choice, Printed, Spec, Training
from dpbench.spec.points import CHOICES
from dpbench.spec.yaml_loader import resolve


@dataclass(frozen=True)
class Verbatim:
    """A number that `dump` writes with these digits."""

    text: str


class _Dumper(yaml.SafeDumper):
    """Quotes whatever `resolve` would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's name and signature)
        return True

    def write_verbatim(self, data: Verbatim) -> yaml.ScalarNode:
        tag = "int" if isinstance(resolve(data.text), int) else "float"
        return self.represent_scalar(f"tag:yaml.org,2002:{tag}", data.text)


_FIRST = [*"-+.0123456789"]
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), _FIRST)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"), _FIRST
)
_Dumper.add_representer(Verbatim, _Dumper.write_verbatim)


def dump(value: Any) -> str:
    """YAML text that the loader reads back as the same plain value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def to_yaml(spec: Spec) -> str:
    """A run file for this spec alone, which `load_specs` reads back as an equal spec."""
    document: dict[str, Any] = {"kind": "run", "name": spec.name}
    document |= {"source": spec.source} if spec.source else {}
    for key in CHOICES:
        choice: Choice = getattr(spec, key)
        parameters = to_jsonable_python(dict(choice.parameters))
        document[key] = {"name": choice.name, "parameters": parameters} if parameters else choice.name
    document["budget"] = "none" if spec.budget is None else _given(spec.budget)
    document["training"] = _given(spec.training)
    counted = spec.seeds == tuple(range(len(spec.seeds)))
    document["seeds"] = len(spec.seeds) if counted else list(spec.seeds)
    document |= {"randomness": spec.randomness} if spec.randomness != "own" else {}
    for key in ("accountants", "needs"):
        document |= {key: list(getattr(spec, key))} if getattr(spec, key) else {}
    if spec.published is not None:
        printed = {name: getattr(spec.published, slot.name) for name, slot in PUBLISHED.items()}
        document["published"] = {name: _printed(value) for name, value in printed.items() if value not in (None, {})}
    metrics = [to_jsonable_python({"name": one.name, "parameters": dict(one.parameters)}) for one in spec.metrics]
    document |= {"metrics": metrics} if metrics else {}
    document |= {"metrics_along": spec.metrics_along} if spec.metrics_along != 1 else {}
    if spec.weights is not None:
        document["weights"] = {
            name: list(value) if name == "frozen" else value for name, value in _given(spec.weights).items()
        }
    for key in ("reduced", "tuned", "loss", "metric"):
        document |= {key: getattr(spec, key)} if getattr(spec, key) else {}
    return dump(document | ({"rows": [{"label": spec.label}]} if spec.label else {}))


def _given(section: Budget | Training | Weights) -> dict[str, Any]:
    values = {item.name: getattr(section, item.name) for item in fields(section)}
    return {name: value for name, value in values.items() if value is not None}


def _printed(value: Printed | Mapping[str, Printed] | int) -> Any:
    if isinstance(value, Mapping):
        return {name: _printed(number) for name, number in value.items()}
    return Verbatim(value.text) if isinstance(value, Printed) else value
