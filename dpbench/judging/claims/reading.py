"""Read files of `kind: claims`. Every mistake is reported with its line; claims without mistakes are read all the same.

docs/claims.md explains the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpbench.catalog import catalog, suggestion
from dpbench.errors import DpbenchError, Problem
from dpbench.events import Composition, Event
from dpbench.judging.claims.claim import BOUND_VERDICTS, Claim, ClaimsFile, Covered, Key, Mistake, Printed
from dpbench.judging.claims.controls import controls, leaves
from dpbench.judging.claims.expressions import names_in
from dpbench.judging.claims.grammar import (
    BOUNDS,
    CLAIM,
    COVERED,
    DIGITS,
    EXPECTED_NUMBER,
    LONGEST,
    MISTAKE,
    NAME,
    NUMBER_NAME,
    PLAIN,
    TOP,
    UNJUDGED,
    is_number,
)
from dpbench.judging.claims.judge import is_of_paper, loaded
from dpbench.judging.claims.judges import RESULTS
from dpbench.privacy.composition import MOST_RELEASES
from dpbench.privacy.event_files import EventReader
from dpbench.privacy.releases import composed
from dpbench.spec.trust import Trust, code_in, trust
from dpbench.spec.yaml_loader import Document, Listing, Node, Place, Scalar, Table, plain, read
from dpbench.verdicts import VERDICTS

PAPERS = Path(__file__).resolve().parents[1] / "papers"  # where the papers' own claims lie beside their judges
_SUFFIXES = (".yaml", ".yml")
_KEPT = ("paper", "title", "source", "claims", "coverage", "mistakes")
_EMPTY: Mapping[str, Any] = {  # by form; text where none is named
    **{form: {} for form in ("printed", "published", "paths", "at", "mapping")},
    **dict.fromkeys(("events", "texts", "ids", "claims", "coverage", "mistakes"), ()),
    "flag": None,
}
_MOST_NUMBERS = 300  # that an expression takes
_MOST_SUGGESTIONS = 50  # in a file with more mistakes they would take minutes
_NAMING = ("accountant", "by", "parameters")  # the keys of a claim whose values may name code
_EXAMPLE_EVENT = "[{event: gaussian, noise_multiplier: 1.0, count: 10}]"


@dataclass(frozen=True)
class Read:
    """Some files of claims, and the mistakes in them."""

    files: tuple[ClaimsFile, ...]
    problems: tuple[Problem, ...]


def read_claims(paths: Sequence[Path], chosen: Callable[[Claim], bool] | None = None, allow_code: bool = False) -> Read:
    """Read files and, recursively, folders; in folders, files of other kinds are skipped.

    The judges of the `chosen` claims are loaded, to check that they take every printed number; None loads none. Code
    from outside the papers' folders is a mistake unless `allow_code` or the user's configuration allows it.
    Never raises for what the files hold: claims with mistakes are left out, and the mistakes are returned.

    >>> read_claims([Path("none.yaml")]).problems[0].message
    'there is no such file or folder'
    """
    problems: list[Problem] = []
    files, trusted = [], trust(allow_code)
    for path, named in _files(paths, problems):
        document = read(path)
        root = document.root
        kind = root.get("kind") if isinstance(root, Table) else None
        if not named and root is not None and (not isinstance(kind, Scalar) or kind.value != "claims"):
            continue
        reader = _ClaimsReader(document, chosen, trusted)
        files.append(reader.claims_file())
        problems += reader.problems
    message = "there are no claims in this folder; expected files of `kind: claims`"
    for path in filter(Path.is_dir, paths):
        if not any(path in Path(file.file).parents for file in files):
            problems.append(Problem(str(path), 0, 0, "", message, "docs/claims.md has an example"))
    first: dict[str, Claim] = {}
    for claim in (claim for file in files for claim in file.claims):
        other = first.setdefault(claim.name, claim)
        if other is not claim:
            message = f"{claim.name!r} is already used at {other.file}:{other.line}"
            problems.append(Problem(claim.file, claim.line, claim.column, claim.path, message, ""))

    def unique(file: ClaimsFile) -> ClaimsFile:
        return replace(file, claims=tuple(claim for claim in file.claims if first[claim.name] is claim))

    return Read(tuple(map(unique, files)), tuple(problems))


def _files(paths: Iterable[Path], problems: list[Problem]) -> list[tuple[Path, bool]]:
    """Files with whether they were named themselves."""
    found: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and not file.is_dir())
            found |= {file: False for file in inside if file not in found}
        elif path.exists():
            found[path] = True
        else:
            problems.append(Problem(str(path), 0, 0, "", "there is no such file or folder", ""))
    return list(found.items())


class _ClaimsReader:
    """Reads one document and keeps its mistakes. The method `_form`, else `_plain`, reads a key of that form."""

    def __init__(self, document: Document, chosen: Callable[[Claim], bool] | None, trusted: Trust) -> None:
        self.document, self.file, self.chosen, self.trusted = document, document.file, chosen, trusted
        self.problems: list[Problem] = list(document.problems)
        self.tables: Any = {}  # what stands under `published`
        self.taken: set[str] = set()  # places there that a claim takes
        self.ids: set[str] = set()

    def add(self, node: Node | Place, message: str, hint: str = "") -> None:
        place = node if isinstance(node, Place) else node.place
        self.problems.append(Problem(self.file, place.line, place.column, place.path, message, hint))

    def near(self, name: str, known: tuple[str, ...]) -> str:
        """A suggestion, in a file with few mistakes."""
        return suggestion(name, known) if len(self.problems) < _MOST_SUGGESTIONS else ""

    def claims_file(self) -> ClaimsFile:
        root = self.document.root
        empty = ClaimsFile("", "", "", (), file=self.file)
        if not isinstance(root, Table):
            if root is not None:
                self.add(root, "expected `key: value` lines, the first `kind: claims`")
            return empty
        kind = root.get("kind")
        if not isinstance(kind, Scalar) or kind.value != "claims":
            found = f"found kind: {kind.text}; expected" if isinstance(kind, Scalar) else "expected"
            self.add(kind or root, f"{found} kind: claims")
            return empty
        listing = root.get("claims")
        if not isinstance(listing, Listing) or not listing.items:
            self.add(listing or root, "expected `claims:` with a list of claims")
            return empty
        named = (item.get("id") for item in listing.items if isinstance(item, Table))
        self.ids = {node.text for node in named if isinstance(node, Scalar)}
        return ClaimsFile(
            **{name: value for name, value in self.values(root, TOP).items() if name in _KEPT}, file=self.file
        )

    def values(self, table: Table, keys: Mapping[str, Key]) -> dict[str, Any]:
        """What stands under every key of a table, in the order of `keys`; what is missing or wrong is empty."""
        for name, entry in table.entries.items():
            if name not in keys:
                self.add(entry.key, f"unknown key {name!r}", self.near(name, tuple(keys)).removeprefix("; "))
        found: dict[str, Any] = {}
        for name, key in keys.items():
            node = table.get(name)
            if node is None and key.required:
                self.add(table, f"the key {name!r} is missing")
            value = None if node is None else getattr(self, f"_{key.form}", self._plain)(node, name, key)
            found[name] = _EMPTY.get(key.form, "") if value is None else value
            if name == "paper":
                self.paper = found[name]
        return found

    # ---- what may stand under a key ----

    def _text(self, node: Node, name: str, key: Key) -> str | None:  # noqa: ARG002
        if not isinstance(node, Scalar) or node.value is None or not node.text.strip():
            self.add(node, f"{name}: expected text")
            return None
        return node.text.strip()

    def _name(self, node: Node, name: str, key: Key) -> str | None:
        text = self._text(node, name, key)
        if text is not None and not re.fullmatch(NAME, text):
            self.add(node, f"{name} = {text!r}: expected at most 80 small letters, digits, - and _, such as bu2020")
            return None
        return text

    def _choice(self, node: Node, name: str, key: Key) -> str | None:
        text = self._text(node, name, key)
        if text is not None and text not in key.choices:
            self.add(node, f"{name} = {text!r} is not known{suggestion(text, key.choices)}")
        return text

    def _accountant(self, node: Node, name: str, key: Key) -> str | None:
        text, known = self._text(node, name, key), tuple(catalog("accountants"))
        if text is not None and text not in known and ":" not in text:
            self.add(node, f"accountant {text!r} is not known{suggestion(text, known)}")
        return text

    def _printed(self, node: Node, name: str, key: Key) -> Mapping[str, Printed]:  # noqa: ARG002
        entries = (
            {one: entry.value for one, entry in node.entries.items()} if isinstance(node, Table) else {"value": node}
        )
        numbers = {one: self._digits(entry) for one, entry in entries.items()}
        return {one: number for one, number in numbers.items() if number is not None}

    def _digits(self, node: Node) -> Printed | None:
        text = node.text if isinstance(node, Scalar) else ""
        if not re.fullmatch(DIGITS, text.strip()):
            self.add(node, f"{plain(node)!r}: expected a number with the digits that are printed, such as 0.83")
            return None
        text = text.strip()
        if not is_number(text):
            self.add(node, f"{text if len(text) <= LONGEST else text[:20] + '...'}: {EXPECTED_NUMBER}")
            return None
        return Printed(text)

    def _published(self, node: Node, name: str, key: Key) -> Any:  # noqa: ARG002
        if isinstance(node, Table):
            self.tables = self._numbers(node)
        else:
            self.add(node, "expected `published:` with tables of numbers by name")
        return self.tables

    def _numbers(self, node: Node) -> Any:
        """Nested mappings and tuples of printed numbers; None for what is none."""
        if isinstance(node, Listing):
            return tuple(self._numbers(item) for item in node.items)
        if not isinstance(node, Table):
            return self._digits(node)
        for name, entry in node.entries.items():
            if not re.fullmatch(NUMBER_NAME, name):
                self.add(entry.value, f"{name!r}: expected a name of letters, digits and _")
        return {name: self._numbers(entry.value) for name, entry in node.entries.items()}

    def _plain(self, node: Node, name: str, key: Key) -> Any:
        value, (adapter, expected) = plain(node), PLAIN[key.form]
        try:
            found = adapter.validate_python(value, strict=True)
        except ValidationError:
            self.add(node, f"{name} = {value!r}: expected {expected}")
            return None
        return (found,) if isinstance(found, str) else tuple(found) if isinstance(found, list) else found

    def _events(self, node: Node, name: str, key: Key) -> tuple[tuple[Event, float], ...]:  # noqa: ARG002
        if not isinstance(node, Listing) or not node.items:
            self.add(node, "expected `events:` with a list", f"such as {_EXAMPLE_EVENT}")
            return ()
        reader = EventReader(Document(self.file, None, ()), fractions=True)
        parts = reader.listed(node)
        self.problems += reader.problems
        if sum(count for _, count in parts) > MOST_RELEASES:
            self.add(node, f"more than {MOST_RELEASES} releases")
            return ()
        return parts

    def _ids(self, node: Node, name: str, key: Key) -> tuple[str, ...]:
        values: tuple[str, ...] = self._plain(node, name, key) or ()
        for value in values:
            if value not in self.ids:
                self.add(node, f"there is no claim {value!r}{self.near(value, tuple(self.ids))}")
        return values

    def _listed(self, node: Node, name: str) -> Iterator[Table]:
        if not isinstance(node, Listing):
            self.add(node, f"expected `{name}:` with a list")
            return
        for item in node.items:
            if isinstance(item, Table):
                yield item
            else:
                self.add(item, f"found {plain(item)!r}; expected `key: value` lines")

    def _coverage(self, node: Node, name: str, key: Key) -> tuple[Covered, ...]:  # noqa: ARG002
        found = []
        for table in self._listed(node, name):
            covered = Covered(**self.values(table, COVERED))
            if bool(covered.claims) == bool(covered.no_claim):
                self.add(table, f"{covered.place}: expected either `claims:` or `no_claim:` with the reason")
            found.append(covered)
        return tuple(found)

    def _mistakes(self, node: Node, name: str, key: Key) -> tuple[Mistake, ...]:  # noqa: ARG002
        return tuple(Mistake(**self.values(table, MISTAKE)) for table in self._listed(node, name))

    # ---- claims ----

    def _claims(self, node: Node, name: str, key: Key) -> tuple[Claim, ...]:  # noqa: ARG002
        assert isinstance(node, Listing)  # `claims_file` has checked it
        if not self.paper:  # reported already
            return ()
        before = len(self.problems)
        claims = tuple(claim for claim in map(self._claim, node.items) if claim is not None)
        root = self.document.root
        tables = root.get("published") if isinstance(root, Table) else None
        if tables is not None and len(self.problems) == before:
            for path, entry in _leaves(tables):
                if path not in self.taken:
                    self.add(entry, f"{path!r} is published and no claim takes it")
        return claims

    def _claim(self, node: Node) -> Claim | None:
        if not isinstance(node, Table):
            self.add(node, f"found {plain(node)!r}; expected a claim with id, place and kind")
            return None
        before = len(self.problems)
        for one in (one for key in _NAMING if (named := node.get(key)) for one in code_in(named)):
            refusal = self.trusted.refusal(one.text)
            if refusal is not None and not (one is node.get("by") and is_of_paper(self.paper, one.text)):
                self.add(one, *refusal)
        found = self.values(node, CLAIM)
        counts, paths = found.pop("events"), found.pop("published")
        numbers = {one: self._taken(node, place) for one, place in (paths | self._in_expression(node, found)).items()}
        place = node.place
        claim = Claim(
            paper=self.paper,
            **found,
            events=self._composition(node, counts, found["kind"]),
            counts=counts,
            published=numbers,
            file=self.file,
            line=place.line,
            column=place.column,
            path=place.path,
        )
        if any(map(_lacks, numbers.values())):  # reported already
            return None
        for check in (self._whole, self._takes):
            if len(self.problems) == before:
                check(node, claim)
        return claim if len(self.problems) == before else None

    def _composition(self, node: Table, parts: tuple[tuple[Event, float], ...], kind: str) -> Composition | None:
        """The composition; None where a count is not whole."""
        if not parts:
            return None
        events = node.get("events") or node
        if any(count != int(count) for _, count in parts):
            if kind == "bound":
                self.add(events, "a bound is about a whole number of releases; round the counts up")
            elif len(parts) > 1:
                self.add(events, "a count that is not whole stands for a single event")
            return None
        try:
            return composed(tuple((made, int(count)) for made, count in parts))
        except DpbenchError as error:
            self.add(events, str(error))
            return None

    def _in_expression(self, node: Table, found: Mapping[str, Any]) -> dict[str, str]:
        """The places in `published` that `holds:` names."""
        try:
            names = names_in(found["holds"]) if found["holds"] else ()
        except DpbenchError as error:
            self.add(node.get("holds") or node, str(error))
            return {}
        return {name: name for name in names if name not in found["printed"]}

    def _taken(self, node: Table, place: str) -> Any:
        """The numbers at a dotted place of `published`; None where there are none."""
        found, where = self.tables, node.get("published") or node.get("holds") or node
        for name in place.split("."):
            if not isinstance(found, Mapping) or name not in found:
                known = tuple(found) if isinstance(found, Mapping) else ()
                self.add(where, f"{place!r} is no place in `published`{self.near(name, known)}")
                return None
            found = found[name]
        if isinstance(found, Mapping):
            self.add(where, f"{place!r} holds {', '.join(found)}; name one of them")
            return None
        self.taken.add(place)
        return found

    def _whole(self, node: Table, claim: Claim) -> None:
        """What the kind needs."""
        verdicts = BOUND_VERDICTS if claim.kind == "bound" else VERDICTS
        if claim.verdict and claim.verdict not in verdicts:
            message = f"verdict = {claim.verdict!r}: expected one of {', '.join(verdicts)}"
            self.add(node.get("verdict") or node, message)
        self._compared(node, claim)
        if claim.verdict == "not_run" and claim.kind in UNJUDGED:
            return
        if claim.kind == "utility":
            if not claim.runs:
                self.add(node, "a utility claim needs `runs:`, the run specs that judge it")
            return
        if claim.holds:
            if claim.by or claim.counts or claim.kind == "bound":
                self.add(node.get("holds") or node, "`holds:` judges alone, without `by:` or `events:`, and no bound")
            return
        if not claim.by and not claim.counts:
            message = "nothing says how to judge it: give `events:`, `by:` or `holds:`"
            self.add(node, message, "docs/claims.md has the grammar")
        elif claim.kind in ("number", "bound") and not claim.printed:
            self.add(node, f"a claim of kind {claim.kind} needs `printed:` with the printed digits")
        elif not claim.by and claim.kind not in ("number", "bound"):
            self.add(node, f"a claim of kind {claim.kind} needs `by:`, what judges it")
        elif not claim.by and claim.kind == "number":
            if not claim.quantity or not claim.accountant:
                self.add(node, "a number from events needs `quantity:` and `accountant:`")
            elif tuple(claim.printed) != ("value",):
                self.add(node, "a number is one printed value, such as `printed: 0.83`")
        elif not claim.by and tuple(sorted(claim.printed)) not in BOUNDS:
            self.add(node, "a bound is printed as {epsilon: ..., delta: ...}, as {mu: ...} or as {rdp: ...}")
        for name in ("epsilon", "mu", "rdp") if claim.kind == "bound" else ():
            if name in claim.printed and claim.printed[name].value < 0:
                self.add(node, f"{name} = {claim.printed[name].text}: expected a number, 0 or more")
        if claim.kind == "bound" and "delta" in claim.printed and not 0 < claim.printed["delta"].value < 1:
            self.add(node, f"delta = {claim.printed['delta'].text}: expected a number above 0 and below 1")

    def _compared(self, node: Table, claim: Claim) -> None:
        """Whether `compares:` names two rows, with the same number of `*`, and a number by which they differ."""
        where = node.get("compares") or node
        if claim.compares and (not claim.runs or claim.rows):
            self.add(where, "`compares:` needs `runs:`, the run specs whose rows it names, and no `rows:`")
        for one in claim.compares:
            if not {"higher", "lower"} <= set(one) or one["higher"].count("*") != one["lower"].count("*"):
                self.add(where, "`compares:` needs `higher:` and `lower:`, labels with as many `*` as each other")
            if "by" in one and not (re.fullmatch(DIGITS, one["by"]) and is_number(one["by"])):
                self.add(where, f"by = {one['by']!r}: expected a printed number, such as '0.9'")

    def _takes(self, node: Table, claim: Claim) -> None:
        """Every printed number has to be read by what judges the claim, and every number of `holds:` to matter."""
        if not (claim.holds or claim.by) or self.chosen is None or not self.chosen(claim):
            return
        read, what = names_in(claim.holds) if claim.holds else (), "`holds:`"
        if claim.by:
            try:
                judge = loaded(claim)
            except Exception:  # noqa: BLE001 (judging it says why it cannot be loaded)
                return
            read, what = judge.reads, f"{claim.by} ({judge.place})"
            if RESULTS in judge.arguments and not (claim.runs and claim.rows):
                self.add(node, f"{what} takes {RESULTS}: give `runs:` and `rows:`, whose results these are")
            for name in claim.parameters:
                if name not in judge.arguments:
                    self.add(_entry(node, "parameters", name), f"parameters: {what} takes no {name!r}")
        for key in ("printed", "published"):
            for name in getattr(claim, key):
                if name not in read:
                    message = f"{name!r} is printed and {what} does not read it"
                    self.add(_entry(node, key, name), message, "what is only context is a parameter")
        count = sum(1 for _ in leaves({**claim.printed, **claim.published}))
        if claim.holds and count > _MOST_NUMBERS:  # each of them is changed, and the expression computed anew
            self.add(_entry(node, "holds", ""), f"takes {count} numbers; expected at most {_MOST_NUMBERS} in a claim")
            return
        try:
            for control in controls(claim) if claim.holds else ():
                if not control.changed:
                    self.add(_entry(node, "holds", ""), f"no other number changes the verdict: {control.name}")
        except DpbenchError as error:
            self.add(_entry(node, "holds", ""), str(error))


def _entry(node: Table, key: str, name: str) -> Node:
    """Where a name stands under a key."""
    found = node.get(key)
    return (found.get(name) or found) if isinstance(found, Table) else found or node


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """The numbers and lists of nested tables, by their dotted places."""
    if isinstance(node, Table):
        for name, entry in node.entries.items():
            yield from _leaves(entry.value, f"{path}.{name}" if path else name)
    else:
        yield path, node


def _lacks(numbers: Any) -> bool:
    """Whether a number is missing, alone or in a table."""
    return numbers is None or (isinstance(numbers, tuple) and any(map(_lacks, numbers)))
