"""What a file of `kind: claims` may hold: every key with its form and its description, written once.

The reader (`ledger.py`) and the JSON Schema (`schema_claims.py`) both read these tables; docs/claims.md tells them to
people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from dpbench.claims.claim import BOUND_VERDICTS, KINDS, VERDICTS


@dataclass(frozen=True)
class Key:
    """A key: what stands under it, and whether it has to be there. The reader and the schema know what each form is.

    `name` is text that fits NAME, `choice` one of `choices`, `ids` a name or a list of them, `texts` a text or a list,
    `published` nested tables and lists of printed numbers, `paths` dotted places in them by name.
    """

    about: str
    form: str = "text"
    required: bool = False
    choices: tuple[str, ...] = ()


NAME = r"[a-z0-9][a-z0-9_-]*"
NUMBER_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"  # of printed numbers, as expressions and functions know them
DIGITS = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"  # of printed numbers
PLAIN: Mapping[str, tuple[TypeAdapter[Any], str]] = {  # forms that are values of YAML, and what is expected, in words
    "at": (TypeAdapter(dict[Literal["epsilon", "delta", "order"], float]), "such as {delta: 1e-5}"),
    "flag": (TypeAdapter(bool), "true or false"),
    "ids": (TypeAdapter(str | Annotated[list[str], Field(min_length=1)]), "a list of ids"),
    "mapping": (TypeAdapter(dict[str, Any]), "`key: value` lines"),
    "paths": (TypeAdapter(dict[str, str]), "`name: place` lines"),
    "texts": (TypeAdapter(str | list[str]), "a list of texts"),
}
QUANTITIES = ("epsilon", "delta", "mu", "noise_multiplier")
BOUNDS = (("delta", "epsilon"), ("mu",), ("rdp",))  # what a bound may print, in the order of the letters
UNJUDGED = ("utility", "comparison")  # kinds that may wait for their runs with verdict not_run
ALL_VERDICTS = tuple(dict.fromkeys((*VERDICTS, *BOUND_VERDICTS)))

TOP: Mapping[str, Key] = {
    "kind": Key("what the file holds", "choice", True, ("claims",)),
    "paper": Key("short name such as bu2020; with the ids it makes the names of the claims", "name", True),
    "title": Key("title of the paper or model card"),
    "source": Key("where it can be read"),
    "published": Key("tables of printed numbers by name, with the digits that are printed", "published"),
    "claims": Key("the printed statements", "claims", True),
    "coverage": Key("every place of the source with its claims, or why it has none", "coverage"),
    "mistakes": Key("what is printed, what is true, and what to do instead", "mistakes"),
}
CLAIM: Mapping[str, Key] = {
    "id": Key("small letters, digits, - and _; with the paper it is the claim's name", "name", True),
    "place": Key("table and row, equation, theorem, page", required=True),
    "kind": Key("what is claimed", "choice", True, tuple(KINDS)),
    "says": Key("the statement in your words"),
    "printed": Key("the printed number, or numbers by name, with the digits that are printed", "printed"),
    "text": Key("what is printed where it is no number"),
    "verdict": Key("what you hold to be right", "choice", True, ALL_VERDICTS),
    "because": Key("why, in one sentence", required=True),
    "events": Key("what is released, as in files of kind: events", "events"),
    "quantity": Key("what a number from events is", "choice", choices=QUANTITIES),
    "accountant": Key("which accountant gives a number from events", "accountant"),
    "at": Key("the δ, ε or order at which it holds", "at"),
    "attained": Key("whether a pair of datasets attains the events' pair under what is really released", "flag"),
    "by": Key("what judges it: file:name in the paper's folder, or package.module:name"),
    "parameters": Key("what that takes", "mapping"),
    "published": Key("numbers of the tables under `published` that it takes: name and dotted place", "paths"),
    "holds": Key("what judges it where arithmetic does: an expression over printed numbers and `published`"),
    "runs": Key("the run specs that judge a utility claim", "texts"),
}
COVERED: Mapping[str, Key] = {
    "place": Key("equation, lemma, table row or line of the source", required=True),
    "claims": Key("the ids of its claims", "ids"),
    "no_claim": Key("why it has none"),
}
MISTAKE: Mapping[str, Key] = {
    "title": Key("the mistake in a few words", required=True),
    "printed": Key("what is printed", required=True),
    "true": Key("what is true", required=True),
    "demonstration": Key("a command that shows it in seconds", required=True),
    "instead": Key("what to do instead", required=True),
    "claims": Key("the ids of the claims that it rests on", "ids"),
}
