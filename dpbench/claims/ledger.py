"""Files of `kind: claims`, read with every mistake and its line; claims without mistakes are there all the same.

    kind: claims
    paper: mine2026                          # short name; with the ids it makes the names of the claims
    title: My model card
    claims:
      - id: front-page-epsilon
        place: front page
        kind: bound                          # number bound formula inequality algorithm comparison utility
        says: the released model is (0.9, 1e-5)-DP
        printed: {epsilon: 0.9, delta: 1e-5} # with the digits that are printed
        events: [{event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}]
        verdict: sound                       # what you hold to be right
        because: the true epsilon is 0.8645

docs/claims.md tells the keys of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench.catalog import catalog, suggestion
from dpbench.claims.claim import BOUND_VERDICTS, KINDS, VERDICTS, Claim, Covered, Ledger, Mistake, Printed
from dpbench.claims.controls import controls
from dpbench.claims.expressions import names_in
from dpbench.claims.grammar import (
    AT,
    BOUNDS,
    CLAIM,
    COVERED,
    DIGITS,
    MISTAKE,
    NAME,
    NUMBER_NAME,
    QUANTITIES,
    TOP,
    UNJUDGED,
    Key,
    required,
)
from dpbench.claims.judge import what_judges
from dpbench.claims.judges import Judge
from dpbench.compose import MOST_RELEASES
from dpbench.errors import DpbenchError, Problem
from dpbench.event_files import EventReader
from dpbench.events import Composition, Event
from dpbench.grammar.yaml_loader import Document, Listing, Node, Scalar, Table, plain, read
from dpbench.releases import composed

PAPERS = Path(__file__).resolve().parents[1] / "papers"  # where the papers' own claims lie beside their judges
_SUFFIXES = (".yaml", ".yml")
_EXAMPLE_EVENT = "[{event: gaussian, noise_multiplier: 1.0, count: 10}]"


@dataclass(frozen=True)
class Read:
    """The ledgers of some files, and the mistakes in them."""

    ledgers: tuple[Ledger, ...]
    problems: tuple[Problem, ...]


def read_ledgers(paths: Sequence[Path], chosen: Callable[[Claim], bool] | None = None) -> Read:
    """The ledgers of files and folders, searched to the bottom; in folders, files of other kinds are skipped.

    Judges of the `chosen` claims (of all) are loaded, to see that they take every printed number.

    Never raises for what the files hold: claims with mistakes are left out and their mistakes told.

    >>> read_ledgers([Path("none.yaml")]).problems[0].message
    'there is no such file or folder'
    """
    problems: list[Problem] = []
    ledgers = []
    for path, named in _files(paths, problems):
        document = read(path)
        root = document.root
        kind = root.get("kind") if isinstance(root, Table) else None
        if not named and (not isinstance(kind, Scalar) or kind.value != "claims"):
            continue
        reader = _LedgerReader(document, chosen)
        ledgers.append(reader.ledger())
        problems += reader.problems
    first: dict[str, Claim] = {}
    kept = []
    for ledger in ledgers:
        unique = []
        for claim in ledger.claims:
            other = first.setdefault(claim.name, claim)
            if other is claim:
                unique.append(claim)
                continue
            message = f"{claim.name!r} is already used at {other.file}:{other.line}"
            problems.append(Problem(claim.file, claim.line, claim.column, claim.path, message, ""))
        kept.append(Ledger(**{**vars(ledger), "claims": tuple(unique)}))
    return Read(tuple(kept), tuple(problems))


def _files(paths: Iterable[Path], problems: list[Problem]) -> list[tuple[Path, bool]]:
    """Files with whether they were named themselves."""
    found: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            found |= {file: False for file in sorted(path.rglob("*")) if file.suffix in _SUFFIXES and file not in found}
        elif path.exists():
            found[path] = True
        else:
            problems.append(Problem(str(path), 0, 0, "", "there is no such file or folder", ""))
    return list(found.items())


class _LedgerReader:
    """Reads one document and keeps its mistakes."""

    def __init__(self, document: Document, chosen: Callable[[Claim], bool] | None) -> None:
        self.document = document
        self.chosen = chosen
        self.published: Mapping[str, Any] = {}
        self.read: set[str] = set()  # places in `published` that a claim takes
        self.file = document.file
        self.problems: list[Problem] = list(document.problems)
        self.paper = ""

    def add(self, node: Node, message: str, hint: str = "") -> None:
        place = node.place
        self.problems.append(Problem(self.file, place.line, place.column, place.path, message, hint))

    def ledger(self) -> Ledger:
        root = self.document.root
        empty = Ledger("", "", "", (), file=self.file)
        if root is None:
            return empty
        if not isinstance(root, Table):
            self.add(root, "expected `key: value` lines, the first `kind: claims`")
            return empty
        kind = root.get("kind")
        if not isinstance(kind, Scalar) or kind.value != "claims":
            found = f"found kind: {kind.text}; expected" if isinstance(kind, Scalar) else "expected"
            self.add(kind or root, f"{found} kind: claims")
            return empty
        self._known(root, TOP)
        self.paper = self._text(root, "paper", required=True)
        if self.paper and not re.fullmatch(NAME, self.paper):
            self.add(root.get("paper") or root, f"{self.paper!r}: expected a short name such as bu2020")
        listing = root.get("claims")
        if not isinstance(listing, Listing):
            self.add(listing or root, "expected `claims:` with a list")
            return empty
        self.published = self._tables_of_numbers(root)
        claims = tuple(claim for claim in map(self._claim, listing.items) if claim is not None)
        if not self.problems:
            self._all_read(root)
        return Ledger(
            paper=self.paper,
            title=self._text(root, "title"),
            source=self._text(root, "source"),
            claims=claims,
            coverage=tuple(self._coverage(root, listing)),
            mistakes=tuple(self._mistakes(root, listing)),
            file=self.file,
        )

    def _known(self, table: Table, keys: Mapping[str, Key]) -> None:
        for name, entry in table.entries.items():
            if name not in keys:
                place = entry.key
                hint = suggestion(name, tuple(keys)).removeprefix("; ")
                self.problems.append(
                    Problem(self.file, place.line, place.column, place.path, f"unknown key {name!r}", hint)
                )

    def _text(self, table: Table, key: str, required: bool = False) -> str:
        node = table.get(key)
        if node is None:
            if required:
                self.add(table, f"the key {key!r} is missing")
            return ""
        if not isinstance(node, Scalar) or node.value is None or not node.text.strip():
            self.add(node, f"{key}: expected text")
            return ""
        return node.text.strip()

    # ---- claims ----

    def _claim(self, node: Node) -> Claim | None:
        if not isinstance(node, Table):
            self.add(node, f"found {plain(node)!r}; expected a claim with id, place, kind, says, verdict, because")
            return None
        before = len(self.problems)
        self._known(node, CLAIM)
        texts = {key: self._text(node, key, required=True) for key in required(CLAIM)}
        if texts["id"] and not re.fullmatch(NAME, texts["id"]):
            self.add(node.get("id") or node, f"id = {texts['id']!r}: expected small letters, digits, - and _")
        kind = texts["kind"]
        if kind and kind not in KINDS:
            self.add(node.get("kind") or node, f"kind = {kind!r} is not known{suggestion(kind, tuple(KINDS))}")
        verdicts = BOUND_VERDICTS if kind == "bound" else VERDICTS
        if kind in KINDS and texts["verdict"] and texts["verdict"] not in verdicts:
            message = f"verdict = {texts['verdict']!r}: expected one of {', '.join(verdicts)}"
            self.add(node.get("verdict") or node, message)
        parts = self._events(node)
        taken = self._taken(node)
        made = Claim(
            paper=self.paper,
            id=texts["id"],
            place=texts["place"],
            kind=kind,
            says=self._text(node, "says"),
            verdict=texts["verdict"],
            because=texts["because"],
            printed=self._printed(node),
            text=self._text(node, "text"),
            events=self._composition(node, parts),
            counts=parts,
            quantity=self._quantity(node),
            accountant=self._accountant(node),
            at=self._at(node),
            attained=self._attained(node),
            by=self._text(node, "by"),
            parameters=self._mapping(node, "parameters"),
            published=taken or {},
            holds=self._text(node, "holds"),
            runs=self._runs(node),
            file=self.file,
            line=node.place.line,
            column=node.place.column,
            path=node.place.path,
        )
        if taken is None:  # which is told already
            return None
        if len(self.problems) == before:
            self._whole(node, made)
        if len(self.problems) == before and (self.chosen is None or self.chosen(made)):
            self._takes(node, made)
        return made if len(self.problems) == before else None

    def _whole(self, node: Table, claim: Claim) -> None:
        """What the kind needs."""
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
        if not claim.by and claim.events is None and not claim.counts:
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
        if claim.kind == "bound" and "delta" in claim.printed and not 0 < claim.printed["delta"].value < 1:
            self.add(node, f"delta = {claim.printed['delta'].text}: expected a number above 0 and below 1")

    def _takes(self, node: Table, claim: Claim) -> None:
        """Every printed number has to be read by what judges the claim, and every number of `holds:` to matter."""
        if claim.holds:
            read: Iterable[str] = names_in(claim.holds)
            what = "`holds:`"
        elif claim.by:
            try:
                judge = what_judges(claim)
            except Exception:  # noqa: BLE001 (judging it tells why it cannot be loaded)
                return
            if not isinstance(judge, Judge):
                return
            read, what = judge.reads, f"{claim.by} ({judge.place})"
            for name in claim.parameters:
                if name not in judge.arguments:
                    self.add(self._entry(node, "parameters", name), f"parameters: {what} takes no {name!r}")
        else:
            return
        for key in ("printed", "published"):
            for name in getattr(claim, key):
                if name not in read:
                    message = f"{name!r} is printed and {what} does not read it"
                    self.add(self._entry(node, key, name), message, "what is only context is a parameter")
        if claim.holds:
            where = node.get("holds") or node
            try:
                for control in controls(claim):
                    if not control.changed:
                        self.add(where, f"no other number changes the verdict: {control.name}")
            except DpbenchError as error:
                self.add(where, str(error))

    def _entry(self, node: Table, key: str, name: str) -> Node:
        found = node.get(key)
        return (found.get(name) or found) if isinstance(found, Table) else found or node

    # ---- printed numbers ----

    def _tables_of_numbers(self, root: Table) -> Mapping[str, Any]:
        found = root.get("published")
        if found is None:
            return {}
        if not isinstance(found, Table):
            self.add(found, "expected `published:` with tables of numbers by name")
            return {}
        numbers: Mapping[str, Any] = self._numbers(found)
        return numbers

    def _numbers(self, node: Node) -> Any:
        """Nested mappings and tuples of printed numbers."""
        if isinstance(node, Table):
            for name, entry in node.entries.items():
                if not re.fullmatch(NUMBER_NAME, name):
                    self.add(entry.value, f"{name!r}: expected a name of letters, digits and _")
            return {name: self._numbers(entry.value) for name, entry in node.entries.items()}
        if isinstance(node, Listing):
            return tuple(self._numbers(item) for item in node.items)
        return self._digits(node)

    def _at_place(self, node: Node, place: str) -> Any:
        """The numbers at a dotted place of `published`; None where there are none."""
        found: Any = self.published
        for name in place.split("."):
            if not isinstance(found, Mapping) or name not in found:
                known = tuple(found) if isinstance(found, Mapping) else ()
                self.add(node, f"{place!r} is no place in `published`{suggestion(name, known)}")
                return None
            found = found[name]
        if isinstance(found, Mapping):
            self.add(node, f"{place!r} holds {', '.join(found)}; name one of them")
            return None
        self.read.add(place)
        return found

    def _taken(self, node: Table) -> Mapping[str, Any] | None:
        """The numbers of `published` that a claim takes, by its own key and by the names in `holds:`, or None."""
        places: dict[str, tuple[Node, str]] = {}
        found = node.get("published")
        if isinstance(found, Table):
            for name, entry in found.entries.items():
                places[name] = (entry.value, entry.value.text if isinstance(entry.value, Scalar) else "")
        elif found is not None:
            self.add(found, "published: expected `name: place` lines")
        holds = node.get("holds")
        if isinstance(holds, Scalar):
            printed = node.get("printed")
            own = printed.entries if isinstance(printed, Table) else {"value"} if printed is not None else set()
            try:
                places |= {name: (holds, name) for name in names_in(holds.text) if name not in own}
            except DpbenchError as error:
                self.add(holds, str(error))
                return None
        numbers = {name: self._at_place(where, place) for name, (where, place) in places.items()}
        return None if any(map(_lacks, numbers.values())) else numbers

    def _all_read(self, root: Table) -> None:
        """No published number that no claim takes."""

        def unread(path: str, node: Node) -> Iterator[tuple[str, Node]]:
            if isinstance(node, Table):
                for name, entry in node.entries.items():
                    yield from unread(f"{path}.{name}" if path else name, entry.value)
            elif path not in self.read:
                yield path, node

        found = root.get("published")
        for path, node in unread("", found) if found is not None else ():
            self.add(node, f"{path!r} is published and no claim takes it")

    def _printed(self, node: Table) -> Mapping[str, Printed]:
        found = node.get("printed")
        if found is None:
            return {}
        if isinstance(found, Table):
            numbers = {name: self._digits(entry.value) for name, entry in found.entries.items()}
        else:
            numbers = {"value": self._digits(found)}
        return {name: number for name, number in numbers.items() if number is not None}

    def _digits(self, node: Node) -> Printed | None:
        text = node.text if isinstance(node, Scalar) else ""
        if not re.fullmatch(DIGITS, text.strip()):
            self.add(node, f"{plain(node)!r}: expected a number with the digits that are printed, such as 0.83")
            return None
        return Printed(text.strip())

    def _events(self, node: Table) -> tuple[tuple[Event, float], ...]:
        found = node.get("events")
        if found is None:
            return ()
        if not isinstance(found, Listing) or not found.items:
            self.add(found, "expected `events:` with a list", f"such as {_EXAMPLE_EVENT}")
            return ()
        reader = EventReader(Document(self.file, None, ()), fractions=True)
        parts = reader.listed(found)
        self.problems += reader.problems
        if sum(count for _, count in parts) > MOST_RELEASES:
            self.add(found, f"more than {MOST_RELEASES} releases")
            return ()
        return parts

    def _composition(self, node: Table, parts: tuple[tuple[Event, float], ...]) -> Composition | None:
        """The composition; None where a count is not whole."""
        if not parts:
            return None
        if any(count != int(count) for _, count in parts):
            kind = node.get("kind")
            if isinstance(kind, Scalar) and kind.value == "bound":
                self.add(node.get("events") or node, "a bound is about a whole number of releases; round the counts up")
            elif len(parts) > 1:
                self.add(node.get("events") or node, "a count that is not whole stands for a single event")
            return None
        try:
            return composed(tuple((made, int(count)) for made, count in parts))
        except DpbenchError as error:
            self.add(node.get("events") or node, str(error))
            return None

    def _quantity(self, node: Table) -> str:
        text = self._text(node, "quantity")
        if text and text not in QUANTITIES:
            self.add(node.get("quantity") or node, f"quantity = {text!r}: expected one of {', '.join(QUANTITIES)}")
        return text

    def _accountant(self, node: Table) -> str:
        text = self._text(node, "accountant")
        known = tuple(catalog("accountants"))
        if text and text not in known and ":" not in text:
            self.add(node.get("accountant") or node, f"accountant {text!r} is not known{suggestion(text, known)}")
        return text

    def _at(self, node: Table) -> Mapping[str, float]:
        found = self._mapping(node, "at")
        for name, value in found.items():
            if name not in AT or isinstance(value, bool) or not isinstance(value, int | float):
                self.add(node.get("at") or node, f"at = {dict(found)!r}: expected such as {{delta: 1e-5}}")
                return {}
        return {name: float(value) for name, value in found.items()}

    def _attained(self, node: Table) -> bool | None:
        found = node.get("attained")
        if found is None:
            return None
        value = plain(found)
        if not isinstance(value, bool):
            self.add(found, f"attained = {value!r}: expected true or false")
            return None
        return value

    def _mapping(self, node: Table, key: str) -> Mapping[str, Any]:
        found = node.get(key)
        if found is None:
            return {}
        if not isinstance(found, Table):
            self.add(found, f"{key}: expected `key: value` lines")
            return {}
        value: Mapping[str, Any] = plain(found)
        return value

    def _runs(self, node: Table) -> tuple[str, ...]:
        found = node.get("runs")
        if found is None:
            return ()
        values = plain(found)
        values = [values] if isinstance(values, str) else values
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.add(found, f"runs = {values!r}: expected a list of run specs")
            return ()
        return tuple(values)

    # ---- coverage and mistakes ----

    def _ids(self, listing: Listing) -> set[str]:
        texts = [item.get("id") for item in listing.items if isinstance(item, Table)]
        return {node.text for node in texts if isinstance(node, Scalar)}

    def _named(self, node: Table, ids: set[str]) -> tuple[str, ...]:
        found = node.get("claims")
        if found is None:
            return ()
        values = plain(found)
        values = [values] if isinstance(values, str) else values
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            self.add(found, f"claims = {values!r}: expected a list of ids")
            return ()
        for value in values:
            if value not in ids:
                self.add(found, f"there is no claim {value!r}{suggestion(value, tuple(ids))}")
        return tuple(values)

    def _tables(self, root: Table, key: str) -> list[Table]:
        found = root.get(key)
        if found is None:
            return []
        if not isinstance(found, Listing):
            self.add(found, f"expected `{key}:` with a list")
            return []
        for item in found.items:
            if not isinstance(item, Table):
                self.add(item, f"found {plain(item)!r}; expected `key: value` lines")
        return [item for item in found.items if isinstance(item, Table)]

    def _coverage(self, root: Table, listing: Listing) -> Iterable[Covered]:
        ids = self._ids(listing)
        for table in self._tables(root, "coverage"):
            self._known(table, COVERED)
            place = self._text(table, "place", required=True)
            claims, reason = self._named(table, ids), self._text(table, "no_claim")
            if bool(claims) == bool(reason):
                self.add(table, f"{place}: expected either `claims:` or `no_claim:` with the reason")
            yield Covered(place, claims, reason)

    def _mistakes(self, root: Table, listing: Listing) -> Iterable[Mistake]:
        ids = self._ids(listing)
        for table in self._tables(root, "mistakes"):
            self._known(table, MISTAKE)
            found = {key: self._text(table, key, required=True) for key in required(MISTAKE)}
            yield Mistake(claims=self._named(table, ids), **found)


def _lacks(numbers: Any) -> bool:
    """Whether a number is missing, alone or in a table."""
    return numbers is None or (isinstance(numbers, tuple) and any(map(_lacks, numbers)))
