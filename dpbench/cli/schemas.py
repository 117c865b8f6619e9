"""The JSON Schemas of run files, events and claims, for editors: made from the same tables that the readers use.

A run's keys come from `spec/keys.py`, names from the catalog, other packages' entry points included; events from
`events.PARAMETERS` and the fields of each event; claims from `judging/claims/grammar.py`. Only the readers check what
needs the whole file, the code of a mechanism or the digits of a number: that probabilities sum to 1, that the claims
named in coverage exist, that a judge can be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import to_jsonable_python

import dpbench
from dpbench.catalog import KINDS, STAGES, OfKind, catalog
from dpbench.events import EVENTS, PARAMETERS, Values
from dpbench.judging.claims.claim import BOUND_VERDICTS, Key
from dpbench.judging.claims.grammar import (
    BOUNDS,
    CLAIM,
    COVERED,
    DIGITS,
    LONGEST,
    MISTAKE,
    MOST,
    NAME,
    NUMBER_NAME,
    PLAIN,
    TOP,
    UNJUDGED,
)
from dpbench.privacy.event_files import COUNT_TEXT, KEYS
from dpbench.privacy.releases import RATE_TEXT, SHORT, snake_case, spellings
from dpbench.spec.annotations import Slot, of_kind
from dpbench.spec.keys import RUN, SECTIONS, SETTABLE, VALUE
from dpbench.spec.names import FOLDERS, OWN_NAME, parameters_taken
from dpbench.spec.points import CHOICES, NOT_IN_ROWS
from dpbench.verdicts import VERDICTS

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EITHER = (
    ("budget", "epsilon", "noise_multiplier"),
    ("training", "batch_size", "sampling_rate"),
    ("training", "epochs", "steps"),
)
_RUN: Schema = {
    "kind": "run",
    "name": "quickstart-noisy-sgd",
    "source": "a first run",
    "dataset": "digits",
    "model": {"name": "mlp", "parameters": {"hidden": [64], "activation": "tanh"}},
    "mechanism": "noisy_sgd",
    "budget": {"delta": 1e-4},
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
        "$schema": DIALECT,
        "title": "dpbench run file",
        "description": f"What to train and how private it is (dpbench {dpbench.__version__}).",
        **_mapping(keys, ""),
        "required": [key for key, slot in RUN.items() if slot.required and key not in _COMPLETED],
        **_apart("published", "reduced"),
        "if": {"not": several},
        "then": _whole(),
        "examples": [_RUN],
        "$defs": shared,
    }


def _key(key: str, slot: Slot) -> Schema:
    """The schema of what stands under a key at the top of a run file or in a row."""
    if key in CHOICES:
        return {**_named(FOLDERS[key], key), **_about(slot)}
    if key in SECTIONS:
        section = {**_mapping({name: _slot(inner) for name, inner in SECTIONS[key].items()}, ""), **_pairs(key)}
        if key == "budget":
            section["properties"]["calibrate_with"] |= _name_of("accountants")
            section = _any({"const": "none"}, section)
        if key == "published":
            section["properties"]["epsilon"]["propertyNames"] = {"enum": list(catalog("accountants"))}
            section["properties"]["epochs_to_reach"]["propertyNames"] = {"pattern": VALUE}
        return {**section, **_about(slot)}
    if key == "accountants":
        return {"type": "array", "items": _name_of("accountants"), "uniqueItems": True, **_about(slot)}
    if key == "metrics":
        one = _stage(OfKind("metrics"))
        return {"type": "array", "items": one, "$defs": one.pop("$defs"), **_about(slot)}
    return _slot(slot)


def _slot(slot: Slot) -> Schema:
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
    """Of two keys with the same meaning, one at most."""
    pairs = [_apart(one, other) for home, one, other in _EITHER if home == section]
    return {"allOf": pairs} if pairs else {}


def _whole() -> Schema:
    """What a file without grid, zip and rows must hold."""
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


def _named(kind: str, key: str) -> Schema:
    """A name, or a mapping with the name and its parameters; what is shared stands under `$defs`."""
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
    of = of_kind(slot)
    try:
        schema = slot.adapter.json_schema() if of is None else _stage(of)
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


def _stage(of: OfKind) -> Schema:
    """A parameter that names an entry of the catalog."""
    stage = _name_of(of.kind) if of.kind == "clipping" else _named(of.kind, KINDS[of.kind])
    shared = stage.pop("$defs", {}) | {f"stage_{of.kind}": stage}
    ref = {"$ref": f"#/$defs/stage_{of.kind}"}
    return {**(_any({"const": "none"}, ref) if of.none else ref), "$defs": shared}


def _lists(keys: Mapping[str, Schema]) -> Schema:
    """Dotted paths to lists of what may stand there."""
    paths: dict[str, Schema] = {}
    for path in SETTABLE:
        section, _, name = path.partition(".")
        item = _slot(SECTIONS[section][name]) if name else keys[section]
        if name == "calibrate_with":
            item = {**item, **_name_of("accountants")}
        paths[path] = _list(item, f"values of {path}")
    stage = rf"mechanism\.parameters\.({'|'.join(STAGES)})\.parameters\.[^.]+"
    parameters = rf"^(({'|'.join(CHOICES)})\.parameters\.[^.]+|{stage})$"
    others = {parameters: _list({}, "values of a parameter")}
    return {**_mapping(paths, ""), "patternProperties": others, "minProperties": 1}


# ---- kind: events ----


_EVENTS_FILE: Schema = {
    "kind": "events",
    "events": [
        {"event": "sampled_gaussian", "sampling_rate": "256/60000", "noise_multiplier": 1.3, "count": 3516},
        {"event": "laplace", "noise_multiplier": 20},
    ],
}


def events_schema() -> Schema:
    """The schema of a file of `kind: events` (JSON Schema 2020-12), as plain data.

    >>> events_schema()["$defs"]["event"]["required"]
    ['event']
    """
    properties: Schema = {
        "kind": {"const": "events", "description": "what the file holds"},
        "adaptive": {
            "type": "boolean",
            "description": "whether later parameters depend on earlier outputs",
            "default": False,
        },
        "events": {
            "type": "array",
            "items": {"$ref": "#/$defs/event"},
            "description": "the releases, in the order in which they were made",
        },
    }
    assert tuple(properties) == KEYS  # what the reader knows
    return {
        "$schema": DIALECT,
        "title": "dpbench events file",
        "description": f"Unlike releases one after another (dpbench {dpbench.__version__}).",
        "type": "object",
        "properties": properties,
        "required": ["kind", "events"],
        "additionalProperties": False,
        "examples": [_EVENTS_FILE],
        "$defs": {"event": event_schema()},
    }


def event_schema(fractions: bool = False) -> Schema:
    """The schema of one event with its count; `fractions` allows counts that are not whole, as claims may have.

    >>> {"if": ..., "then": ...}.keys() == event_schema()["allOf"][0].keys()
    True
    """
    names = [*map(snake_case, EVENTS), *SHORT, *EVENTS]
    every = [{"pattern": spellings(name)} for name in EVENTS]
    return {
        "type": "object",
        "properties": {
            "event": {
                "type": "string",
                "anyOf": [{"enum": names}, *every],
                "description": "what one release is",
            },
            "count": _count(fractions),
        },
        "required": ["event"],
        "allOf": [
            {
                "if": {
                    "properties": {"event": {"type": "string", "pattern": spellings(name)}},
                    "required": ["event"],
                },
                "then": _parameters(chosen),
            }
            for name, chosen in EVENTS.items()
        ],
    }


def _count(fractions: bool) -> Schema:
    description = "how often it was released, one after the other"
    if fractions:
        kinds = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{COUNT_TEXT}$"}]
        return {"anyOf": kinds, "default": 1, "description": description + "; also as 15*60000/256"}
    return {"type": "integer", "minimum": 0, "default": 1, "description": description}


def _parameters(chosen: type[Any]) -> Schema:
    properties: Schema = {"event": {}, "count": {}}
    required = []
    for slot in fields(chosen):
        schema = _number(PARAMETERS[slot.name])
        if slot.name == "sampling_rate":
            schema = {"anyOf": [schema, {"type": "string", "pattern": f"^{RATE_TEXT}$"}]}
        if slot.default is None:
            schema = {"anyOf": [schema, {"type": "null"}]}
        elif slot.default is not MISSING:
            schema["default"] = slot.default
        else:
            required.append(slot.name)
        properties[slot.name] = {**schema, "description": PARAMETERS[slot.name].about}
    return {"properties": properties, "required": required, "additionalProperties": False}


def _number(values: Values) -> Schema:
    if values.form == "flag":
        return {"type": "boolean"}
    if values.form == "name":
        return {"enum": list(values.choices)}
    schema: Schema = {"type": "integer" if values.form == "whole" else "number"}
    limits = {"minimum": values.least, "exclusiveMinimum": values.above, "maximum": values.most}
    schema |= {key: limit for key, limit in limits.items() if limit is not None}
    return schema if values.length is None else {"type": "array", "items": schema, "minItems": values.length}


# ---- kind: claims ----

_RELEASES = [{"event": "sampled_gaussian", "sampling_rate": "256/60000", "noise_multiplier": 1.3, "count": 3516}]
_CLAIMS_FILE: Schema = {
    "kind": "claims",
    "paper": "mymodel2026",
    "title": "Model card of my model",
    "claims": [
        {
            "id": "front-page",
            "place": "model card, first paragraph",
            "kind": "bound",
            "says": "the weights are (1, 1e-5)-differentially private",
            "printed": {"epsilon": 1.0, "delta": 1e-5},
            "events": _RELEASES,
        }
    ],
}
_SCALAR = ["string", "number", "boolean"]  # YAML reads 3 and true as no text; claims take them as they are written
_TEXT: Schema = {"type": _SCALAR, "pattern": r"\S"}
_ALONE: Schema = {  # a claim with `holds:`
    "not": {"anyOf": [{"required": ["by"]}, {"required": ["events"]}]},
    "properties": {"kind": {"not": {"const": "bound"}}},
}
_NUMBER: Schema = {
    "anyOf": [
        {"type": "number", "minimum": -MOST, "maximum": MOST},
        {"type": "string", "pattern": rf"^\s*{DIGITS}\s*$", "maxLength": LONGEST},
    ]
}


def claims_schema() -> Schema:
    """The schema of a file of `kind: claims` (JSON Schema 2020-12), as plain data.

    >>> claims_schema()["$defs"]["claim"]["required"]
    ['id', 'place', 'kind']
    """
    return {
        "$schema": DIALECT,
        "title": "dpbench claims file",
        "description": f"What is printed, what judges it, and any expected verdict (dpbench {dpbench.__version__}).",
        **_table(TOP),
        "examples": [_CLAIMS_FILE],
        "$defs": {
            "claim": {**_table(CLAIM), "allOf": _rules()},
            "event": event_schema(fractions=True),
            "covered": {**_table(COVERED), "oneOf": [{"required": ["claims"]}, {"required": ["no_claim"]}]},
            "mistake": _table(MISTAKE),
            "published": {
                "type": "object",
                "propertyNames": {"pattern": f"^{NUMBER_NAME}$"},
                "additionalProperties": {"$ref": "#/$defs/numbers"},
            },
            "numbers": {
                "anyOf": [
                    _NUMBER,
                    {"type": "array", "items": {"$ref": "#/$defs/numbers"}},
                    {"$ref": "#/$defs/published"},
                ]
            },
        },
    }


def _table(keys: Mapping[str, Key]) -> Schema:
    properties = {name: {**_form(key), "description": key.about} for name, key in keys.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, key in keys.items() if key.required],
        "additionalProperties": False,
    }


def _form(key: Key) -> Schema:
    if key.form in PLAIN:
        return PLAIN[key.form][0].json_schema()
    forms: dict[str, Schema] = {
        "text": _TEXT,
        "name": {"type": _SCALAR, "pattern": rf"^\s*{NAME}\s*$", "minimum": 0},
        "choice": {"enum": list(key.choices)},
        "accountant": {"anyOf": [{"enum": list(catalog("accountants"))}, {"type": "string", "pattern": ":"}]},
        "printed": {"anyOf": [_NUMBER, {"type": "object", "additionalProperties": _NUMBER}]},
        "events": {"type": "array", "items": {"$ref": "#/$defs/event"}, "minItems": 1},
        "published": {"$ref": "#/$defs/published"},
        "claims": {"type": "array", "items": {"$ref": "#/$defs/claim"}},
        "coverage": {"type": "array", "items": {"$ref": "#/$defs/covered"}},
        "mistakes": {"type": "array", "items": {"$ref": "#/$defs/mistake"}},
    }
    return forms[key.form]


def _rules() -> list[Schema]:
    """What each kind of claim needs, as `_ClaimsReader._whole` checks it."""
    waits = {**_is(verdict=("not_run",), kind=UNJUDGED), "required": ["verdict", "kind"]}
    single: Schema = {
        "anyOf": [_NUMBER, {"type": "object", "required": ["value"], "properties": {"value": {}}, "maxProperties": 1}]
    }
    shapes = [{"type": "object", "required": list(names), "maxProperties": len(names)} for names in BOUNDS]
    judged = [
        _when(
            _is(kind=("number", "bound")),
            {"required": ["printed"], "properties": {"printed": {"minProperties": 1}}},
            {"anyOf": [_is(kind=("utility",)), {"required": ["by"]}]},
        ),
        _when(
            _is(kind=("number",), without="by"),
            {"required": ["quantity", "accountant"], "properties": {"printed": single}},
        ),
        _when(_is(kind=("bound",), without="by"), {"properties": {"printed": {"anyOf": shapes}}}),
    ]
    within: Schema = {"exclusiveMinimum": 0, "exclusiveMaximum": 1}
    values: Schema = {"delta": within, **{name: {"minimum": 0} for name in ("epsilon", "mu", "rdp")}}
    return [
        _when(_is(kind=("bound",)), {"properties": {"verdict": {"enum": list(BOUND_VERDICTS)}}}),
        _when({"not": _is(kind=("bound",))}, {"properties": {"verdict": {"enum": list(VERDICTS)}}}),
        {
            "if": waits,
            "else": {
                "allOf": [
                    _when(_is(kind=("utility",)), {"required": ["runs"], "properties": {"runs": {"minItems": 1}}}),
                    _when(
                        {"not": _is(kind=("utility",))},
                        {"anyOf": [{"required": [key]} for key in ("by", "events", "holds")]},
                    ),
                    _when({"required": ["holds"]}, _ALONE, {"allOf": judged}),
                ]
            },
        },
        _when(_is(kind=("bound",)), {"properties": {"printed": {"properties": values}}}),
    ]


def _is(without: str = "", **values: tuple[str, ...]) -> Schema:
    """That these keys are there with one of these values, and `without` is not."""
    schema: Schema = {
        "properties": {name: {"enum": list(chosen)} for name, chosen in values.items()},
        "required": list(values),
    }
    return {**schema, "not": {"required": [without]}} if without else schema


def _when(condition: Schema, then: Schema, otherwise: Schema | None = None) -> Schema:
    return {"if": condition, "then": then} | ({} if otherwise is None else {"else": otherwise})
