"""The JSON Schema of files of `kind: events`, for editors: made from what the events check and the reader matches.

Types, limits and words come from `events.PARAMETERS`, the keys from the fields of each event, names and numbers that
are written as text from the patterns of `releases.py` and `event_files.py`. That probabilities sum to 1, and that a
fraction is a rate, is left to the reader.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from dpbench import __version__
from dpbench.event_files import COUNT_TEXT, KEYS
from dpbench.events import EVENTS, PARAMETERS, Values
from dpbench.releases import RATE_TEXT, SHORT, snake_case, spellings

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EXAMPLE: Schema = {
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
        "description": f"Unlike releases one after another (dpbench {__version__}).",
        "type": "object",
        "properties": properties,
        "required": ["kind", "events"],
        "additionalProperties": False,
        "examples": [_EXAMPLE],
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
        schema = _value(PARAMETERS[slot.name])
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


def _value(values: Values) -> Schema:
    if values.form == "flag":
        return {"type": "boolean"}
    if values.form == "name":
        return {"enum": list(values.choices)}
    schema: Schema = {"type": "integer" if values.form == "whole" else "number"}
    limits = {"minimum": values.least, "exclusiveMinimum": values.above, "maximum": values.most}
    schema |= {key: limit for key, limit in limits.items() if limit is not None}
    return schema if values.length is None else {"type": "array", "items": schema, "minItems": values.length}
