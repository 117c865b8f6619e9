"""What a file of `kind: claims` may hold: every key with its form and its description, written once.

Keys of claims, coverage and mistakes stand beside the fields of their classes in `claim.py`. The reader (`reading.py`)
and the JSON Schema (`cli/schemas.py`) both use these tables; docs/claims.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from dpbench.judging.claims.claim import Claim, Covered, Key, Mistake

NAME = r"[a-z0-9][a-z0-9_-]{0,79}"  # two of them make the name of a file
NUMBER_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"  # of printed numbers: a name of an expression and of an argument
DIGITS = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"  # of printed numbers
LEAST, MOST, LONGEST = 1e-300, 1e300, 60  # of printed numbers: what doubles hold, also after a factor; characters
EXPECTED_NUMBER = f"expected 0, or a number from {LEAST:g} to {MOST:g} of at most {LONGEST} characters"
PLAIN: Mapping[str, tuple[TypeAdapter[Any], str]] = {  # forms of plain YAML values, and what is expected, in words
    "at": (TypeAdapter(dict[Literal["epsilon", "delta", "order"], float]), "such as {delta: 1e-5}"),
    "compares": (
        TypeAdapter(Annotated[list[dict[Literal["higher", "lower", "metric", "by"], str]], Field(min_length=1)]),
        "a list such as [{higher: 'no privacy', lower: 'NoisySGD'}]",
    ),
    "flag": (TypeAdapter(bool), "true or false"),
    "ids": (TypeAdapter(str | Annotated[list[str], Field(min_length=1)]), "a list of ids"),
    "mapping": (TypeAdapter(dict[str, Any]), "`key: value` lines"),
    "paths": (TypeAdapter(dict[str, str]), "`name: place` lines"),
    "texts": (TypeAdapter(str | list[str]), "a list of texts"),
}
BOUNDS = (("delta", "epsilon"), ("mu",), ("rdp",))  # what a bound may print, in the order of the letters
UNJUDGED = ("utility", "comparison")  # kinds that may wait for their runs with verdict not_run

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
CLAIM, COVERED, MISTAKE = (
    {one.name: one.metadata["key"] for one in fields(kind) if "key" in one.metadata}
    for kind in (Claim, Covered, Mistake)
)


def is_number(text: str) -> bool:
    """Whether digits are those of a number that is judged: `EXPECTED_NUMBER`.

    >>> [is_number(text) for text in ("0.83", "2e-5", "0.00", "1e400", "1e-999999999", "0e-999999999")]
    [True, True, True, False, False, False]
    """
    digits, _, exponent = text.lower().partition("e")
    if len(text) > LONGEST or len(exponent.lstrip("+-")) > 3:  # as a fraction, it would fill the memory
        return False
    return not digits.strip("+-0.") or LEAST <= abs(float(text)) <= MOST
