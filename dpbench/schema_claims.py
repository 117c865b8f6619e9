"""The JSON Schema of files of `kind: claims`, for editors: made from the tables that the reader uses.

Keys, forms and words come from `claims/grammar.py`, events from `schema_events.py`. Whether a claim exists that
coverage names, whether ids are unique and whether a judge can be loaded is left to the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpbench import __version__
from dpbench.catalog import catalog
from dpbench.claims.claim import BOUND_VERDICTS, VERDICTS, Key
from dpbench.claims.grammar import BOUNDS, CLAIM, COVERED, DIGITS, MISTAKE, NAME, NUMBER_NAME, PLAIN, TOP, UNJUDGED
from dpbench.schema_events import DIALECT, event_schema

Schema = dict[str, Any]
_EVENTS = [{"event": "sampled_gaussian", "sampling_rate": "256/60000", "noise_multiplier": 1.3, "count": 3516}]
_EXAMPLE: Schema = {
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
            "events": _EVENTS,
            "verdict": "loose",
            "because": "the true epsilon is 0.8645",
        }
    ],
}
_SCALAR = ["string", "number", "boolean"]  # YAML reads 3 and true as no text; the ledger takes them as they are written
_TEXT: Schema = {"type": _SCALAR, "pattern": r"\S"}
_ALONE: Schema = {  # a claim with `holds:`
    "not": {"anyOf": [{"required": ["by"]}, {"required": ["events"]}]},
    "properties": {"kind": {"not": {"const": "bound"}}},
}
_NUMBER: Schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": rf"^\s*{DIGITS}\s*$"}]}


def claims_schema() -> Schema:
    """The schema of a file of `kind: claims` (JSON Schema 2020-12), as plain data.

    >>> claims_schema()["$defs"]["claim"]["required"]
    ['id', 'place', 'kind', 'verdict', 'because']
    """
    return {
        "$schema": DIALECT,
        "title": "dpbench claims file",
        "description": f"What is printed, what judges it, and the verdict held to be right (dpbench {__version__}).",
        **_table(TOP),
        "examples": [_EXAMPLE],
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
    properties = {name: {**_value(key), "description": key.about} for name, key in keys.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, key in keys.items() if key.required],
        "additionalProperties": False,
    }


def _value(key: Key) -> Schema:
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
    """What each kind of claim needs: `_LedgerReader._whole` in other words."""
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
        _when(_is(kind=("bound",)), {"properties": {"printed": {"properties": {"delta": within}}}}),
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
