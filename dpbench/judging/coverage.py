"""The tables and figures of the papers: which spec runs each, or what judges it instead, or what is missing.

One line for each in `judging/papers/<paper>/coverage.yaml`; tests hold the lines to the specs that exist.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dpbench.errors import DpbenchError
from dpbench.spec.yaml_loader import plain, read

PAPERS = Path(__file__).resolve().parent / "papers"


@dataclass(frozen=True)
class CoveredItem:
    """One table or figure: `place`, what it shows, and one of `specs`, `untrained` and `missing`.

    `specs` are names of files in specs/<paper>, `reduced` of files in specs/reduced with a short schedule of it,
    or with what can be run of it.
    `untrained` says why nothing is trained, `missing` what would be needed, `prints` what it prints in place of results
    that get a verdict, `left_out` which of its rows no spec has, and why. `claims` are ids of claims that judge what it
    prints besides; those in `compared` are about its curves or rows, and count beside the printed results.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    place: str
    what: str
    specs: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    untrained: str = ""
    missing: str = ""
    prints: str = ""
    left_out: str = ""
    compared: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.specs, self.untrained, self.missing))) != 1:
            raise ValueError(f"{self.place}: expected one of `specs`, `untrained` and `missing`")
        if not set(self.compared) <= set(self.claims):
            raise ValueError(f"{self.place}: `compared` names claims that `claims` does not")


@dataclass(frozen=True)
class CoverageFile:
    """All tables and figures of one paper."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Literal["coverage"]
    paper: str
    title: str
    items: tuple[CoveredItem, ...]


_FILE = TypeAdapter(CoverageFile)


def read_coverage(path: Path) -> CoverageFile:
    """One file of `kind: coverage`. Raises DpbenchError for a file that has a mistake.

    >>> read_coverage(PAPERS / "bu2020" / "coverage.yaml").items[0].specs
    ('table1',)
    """
    document = read(path)
    if document.root is None or document.problems:
        raise DpbenchError(f"{path}: {document.problems[0].message if document.problems else 'is empty'}")
    try:
        # Through JSON, whose lists become tuples even when nothing else is converted.
        return _FILE.validate_json(json.dumps(plain(document.root)), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DpbenchError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def coverage() -> tuple[CoverageFile, ...]:
    """The tables and figures of every paper that dpbench has claims of.

    >>> [file.paper for file in coverage()]
    ['bu2020', 'dpis2022', 'dplis2021', 'jl2021', 'pidp2021']
    """
    return tuple(read_coverage(path) for path in sorted(PAPERS.glob("*/coverage.yaml")))
