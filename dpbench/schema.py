"""The JSON Schema of run files, for editors: made from the same tables that the loader reads (`grammar/keys.py`).

It knows the names in the catalog, other packages' entry points included, and the parameters of each. What needs the
whole file, the code of a mechanism or the digits of a number is left to `load_specs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import to_jsonable_python

from dpbench import __version__
from dpbench.catalog import catalog
from dpbench.grammar.annotations import Slot
from dpbench.grammar.keys import RUN, SECTIONS, SETTABLE
from dpbench.grammar.names import FOLDERS, OWN_NAME, parameters_taken
from dpbench.grammar.points import CHOICES, NOT_IN_ROWS

Schema = dict[str, Any]
_EITHER = (
    ("budget", "epsilon", "noise_multiplier"),
    ("training", "batch_size", "sampling_rate"),
    ("training", "epochs", "steps"),
)
_EXAMPLE: Schema = {
    "kind": "run",
    "name": "quickstart-noisy-sgd",
    "source": "a first run",
    "dataset": "digits",
    "model": {"name": "mlp", "parameters": {"hidden": [64], "activation": "tanh"}},
    "mechanism": "noisy_sgd",
    "budget": {"delta": 1e-4, "calibrate_with": "rdp"},
    "training": {"batch_size": 256, "epochs": 30, "learning_rate": 1.0, "clip_norm": 1.0},
    "grid": {"budget.epsilon": [1, 3, 8]},
    "seeds": 5,
}
_COMPLETED = (*CHOICES, "budget", "training")  # what grid, zip and rows may complete


def json_schema() -> Schema:
    """The schema of a run file (JSON Schema 2020-12), as plain data.

    Models and mechanisms are imported to learn their parameters. Raises DpbenchError when an entry of the catalog
    cannot be loaded.

    >>> json_schema()["$defs"]["training"]["properties"]["batch_size"]["minimum"]
    1
    """
    shared: dict[str, Schema] = {}
    keys: dict[str, Schema] = {}
    for key, slot in RUN.items():
        if key not in ("grid", "zip", "rows"):
            schema = _key(key, slot)
            shared |= schema.pop("$defs", {}) | {key: schema}
            keys[key] = {"$ref": f"#/$defs/{key}"}
    label: Schema = {"type": ["string", "number", "boolean"], "minLength": 1, "description": "name of the row"}
    changes = {key: value for key, value in keys.items() if key not in NOT_IN_ROWS}
    row = {**_mapping({"label": label, **changes}, "what this row changes"), **_apart("published", "reduced")}
    lists = _lists(keys)
    keys["grid"] = {**lists, **_about(RUN["grid"])}
    keys["zip"] = {**lists, **_about(RUN["zip"])}
    keys["rows"] = {**_list(row, ""), **_about(RUN["rows"])}
    several = _any(*({"required": [key]} for key in ("grid", "zip", "rows")))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dpbench run file",
        "description": f"What to train and how private it is (dpbench {__version__}).",
        **_mapping(keys, ""),
        "required": [key for key, slot in RUN.items() if slot.required and key not in _COMPLETED],
        **_apart("published", "reduced"),
        "if": {"not": several},
        "then": _whole(),
        "examples": [_EXAMPLE],
        "$defs": shared,
    }


def _key(key: str, slot: Slot) -> Schema:
    """The schema of what stands under a key at the top of a run file or in a row."""
    if key in CHOICES:
        return {**_choice(key), **_about(slot)}
    if key in SECTIONS:
        section = {**_mapping({name: _value(inner) for name, inner in SECTIONS[key].items()}, ""), **_pairs(key)}
        if key == "budget":
            section["properties"]["calibrate_with"] |= _name_of("accountants")
            section = _any({"const": "none"}, section)
        if key == "published":
            section["properties"]["epsilon"]["propertyNames"] = {"enum": list(catalog("accountants"))}
        return {**section, **_about(slot)}
    if key == "accountants":
        return {"type": "array", "items": _name_of("accountants"), "uniqueItems": True, **_about(slot)}
    return _value(slot)


def _value(slot: Slot) -> Schema:
    """The schema of a single value, from its annotation."""
    schema = {**slot.adapter.json_schema(), **_about(slot)}
    for part in (schema, *schema.get("anyOf", ())):
        if part.get("type") == "array":
            part["uniqueItems"] = True
    return schema


def _about(slot: Slot) -> Schema:
    schema: Schema = {"description": slot.description or slot.expected}
    if slot.examples:
        schema["examples"] = list(slot.examples)
    if slot.default not in (None, (), "") and not slot.required:
        schema["default"] = [*slot.default] if isinstance(slot.default, tuple) else slot.default
    return schema


def _mapping(properties: Mapping[str, Schema], description: str) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": dict(properties)}
    return {**schema, "description": description} if description else schema


def _list(items: Schema, description: str) -> Schema:
    return {"type": "array", "minItems": 1, "items": items, "description": description}


def _any(*choices: Schema) -> Schema:
    return {"anyOf": list(choices)}


def _apart(one: str, other: str) -> Schema:
    return {"not": {"required": [one, other]}}


def _pairs(section: str) -> Schema:
    """Of two keys that say the same thing, one at most."""
    pairs = [_apart(one, other) for home, one, other in _EITHER if home == section]
    return {"allOf": pairs} if pairs else {}


def _whole() -> Schema:
    """What a file without grid, zip and rows must hold, because nothing else completes it."""
    sections: dict[str, Schema] = {}
    for section in ("budget", "training"):
        required = [name for name, slot in SECTIONS[section].items() if slot.required]
        either = [_any({"required": [one]}, {"required": [two]}) for home, one, two in _EITHER if home == section]
        sections[section] = {"if": {"type": "object"}, "then": {"required": required, "allOf": either}}
    for key in CHOICES:
        sections[key] = {"if": {"type": "object"}, "then": {"required": ["name"]}}
    return {"required": list(_COMPLETED), "properties": sections}


def _name_of(kind: str) -> Schema:
    return _any({"enum": list(catalog(kind))}, {"type": "string", "pattern": OWN_NAME})


def _choice(key: str) -> Schema:
    """A name, or a mapping with the name and the parameters that this name takes."""
    kind = FOLDERS[key]
    name = {**_name_of(kind), "description": f"name of the {key}, or your own as package.module:factory"}
    parameters = {"type": "object", "description": f"parameters of the {key}"}
    rules: list[Schema] = []
    shared: dict[str, Schema] = {}
    for entry in catalog(kind).values():
        taken = parameters_taken(key, entry.load())
        properties = {slot.name: _parameter(entry.name, slot) for slot in taken.slots.values()}
        for schema in properties.values():
            shared |= schema.pop("$defs", {})
        allowed = {**_mapping(properties, f"parameters of {entry.name}"), "additionalProperties": taken.open}
        named = {"properties": {"name": {"const": entry.name}}, "required": ["name"]}
        rules.append({"if": named, "then": {"properties": {"parameters": allowed}}})
    written_out = _mapping({"name": name, "parameters": parameters}, f"the {key} with its parameters")
    return {**_any(name, {**written_out, "allOf": rules}), "$defs": shared}


def _parameter(owner: str, slot: Slot) -> Schema:
    """The schema of a parameter; one that YAML cannot hold, or that pydantic cannot describe, is left open."""
    try:
        schema = slot.adapter.json_schema()
    except (TypeError, PydanticInvalidForJsonSchema):
        schema = {}
    schema["description"] = slot.description or f"parameter of {owner}: {slot.expected}"
    if slot.required:
        return schema
    default = to_jsonable_python(slot.default, fallback=repr)
    try:
        json.dumps(default, allow_nan=False)
    except ValueError:  # JSON has no infinity
        default = repr(slot.default)
    return {**schema, "default": default}


def _lists(keys: Mapping[str, Schema]) -> Schema:
    """Dotted paths to lists of what may stand there."""
    paths: dict[str, Schema] = {}
    for path in SETTABLE:
        section, _, name = path.partition(".")
        item = _value(SECTIONS[section][name]) if name else keys[section]
        if name == "calibrate_with":
            item = {**item, **_name_of("accountants")}
        paths[path] = _list(item, f"values of {path}")
    parameters = rf"^({'|'.join(CHOICES)})\.parameters\.[^.]+$"
    others = {parameters: _list({}, "values of a parameter")}
    return {**_mapping(paths, ""), "patternProperties": others, "minProperties": 1}
