"""Files of `kind: events`: unlike mechanisms one after another, each with its count.

    kind: events
    adaptive: false                     # whether later parameters depend on earlier outputs
    events:
      - {event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}
      - {event: laplace, noise_multiplier: 20}          # count: 1

The other keys of an event are the parameters of its class in `events.py`; lists and true or false are written as in
YAML. All mistakes of a file are reported at once, with their lines.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpbench.catalog import suggestion
from dpbench.errors import DpbenchError, Problem, ProblemsError
from dpbench.events import Event
from dpbench.privacy.releases import Releases, composed, event, event_class, rate
from dpbench.spec.yaml_loader import Document, Listing, Node, Place, Scalar, Table, parse, plain, read

KEYS = ("kind", "adaptive", "events")
_COUNTED = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE]\+?[0-9]{1,3})?"
COUNT_TEXT = rf"{_COUNTED}(\*{_COUNTED})*(/{_COUNTED})?"  # 15*60000/256, where counts need not be whole
EXAMPLE = "{event: gaussian, noise_multiplier: 1.0, count: 10}"


def load_events(path: Path) -> Releases:
    """The composition that a file describes. Raises ProblemsError with all its mistakes."""
    return _releases(read(path), path)


def parse_events(text: str, file: str = "events.yaml") -> Releases:
    """The composition that a text describes; `file` is only named in the mistakes.

    >>> found = parse_events("{kind: events, events: [{event: gaussian, noise_multiplier: 2, count: 3}]}")
    >>> found.composition.parts
    ((Gaussian(noise_multiplier=2.0, adjacency='add_or_remove', sensitivity=None), 3),)
    """
    return _releases(parse(text, file), Path(file))


def _releases(document: Document, path: Path) -> Releases:
    reader = EventReader(document)
    parts = reader.parts()
    if reader.problems:
        raise ProblemsError(reader.problems)
    return Releases(composed(tuple((made, int(count)) for made, count in parts), reader.adaptive), file=path)


class EventReader:
    """Reads the events of one document and keeps its mistakes; `fractions` allows counts that are not whole."""

    def __init__(self, document: Document, fractions: bool = False) -> None:
        self.file, self.root, self.fractions = document.file, document.root, fractions
        self.problems: list[Problem] = list(document.problems)
        self.adaptive = False

    def add(self, place: Place, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self.file, place.line, place.column, place.path, message, hint))

    def parts(self) -> tuple[tuple[Event, float], ...]:
        """The events of a whole file with their counts."""
        root = self.root
        if root is None:
            return ()
        if not isinstance(root, Table):
            self.add(root.place, "expected `key: value` lines, the first `kind: events`")
            return ()
        kind = root.get("kind")
        if not isinstance(kind, Scalar) or kind.value != "events":
            found = f"found kind: {kind.text}; expected" if isinstance(kind, Scalar) else "expected"
            hint = "`dpbench plan` accounts for files of kind: run" if found != "expected" else ""
            self.add(kind.place if kind else root.place, f"{found} kind: events", hint)
            return ()
        for name, entry in root.entries.items():
            if name not in KEYS:
                self.add(entry.key, f"unknown key {name!r}", suggestion(name, KEYS).removeprefix("; "))
        adaptive = root.get("adaptive")
        if adaptive is not None:
            value = plain(adaptive)
            self.adaptive = value is True
            if not isinstance(value, bool):
                self.add(adaptive.place, f"found {value!r}; expected true or false")
        listing = root.get("events")
        if not isinstance(listing, Listing):
            self.add(listing.place if listing else root.place, "expected `events:` with a list", f"such as [{EXAMPLE}]")
            return ()
        return self.listed(listing)

    def listed(self, listing: Listing) -> tuple[tuple[Event, float], ...]:
        """The events of one list; those with mistakes are left out."""
        found_parts = [self._part(item) for item in listing.items]
        return tuple(part for part in found_parts if part is not None)

    def _part(self, node: Node) -> tuple[Event, float] | None:
        if not isinstance(node, Table):
            self.add(node.place, f"found {plain(node)!r}; expected an event", f"such as {EXAMPLE}")
            return None
        before = len(self.problems)
        name = node.get("event")
        if not isinstance(name, Scalar) or not isinstance(name.value, str):
            self.add(node.place, "the key 'event' is missing or no name", f"such as {EXAMPLE}")
            return None
        try:
            chosen = event_class(name.value)
        except DpbenchError as error:
            message, _, hint = str(error).partition("; ")
            self.add(name.place, message, hint)
            return None
        count = self._count(node)
        given = self._parameters(node, chosen)
        if len(self.problems) > before:
            return None
        try:
            return event(chosen, given), count
        except DpbenchError as error:
            parameter = str(error).partition(" =")[0]
            at = node.entries[parameter].value.place if parameter in node.entries else node.place
            self.add(at, str(error))
            return None

    def _count(self, node: Table) -> float:
        found = node.get("count")
        if found is None:
            return 1
        value = plain(found)
        if self.fractions and isinstance(found, Scalar) and not isinstance(value, bool):
            return self._fraction(found)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e6
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.add(found.place, f"count = {value!r}: expected a whole number, 0 or more")
            return 0
        return value

    def _fraction(self, node: Scalar) -> float:
        """A count such as 3515.625 or 15*60000/256."""
        value = math.nan
        if re.fullmatch(COUNT_TEXT, node.text):
            over, _, under = node.text.partition("/")
            with contextlib.suppress(ValueError, ZeroDivisionError):
                exact = math.prod(map(Fraction, over.split("*"))) / Fraction(under or 1)
                value = exact.numerator if exact.denominator == 1 else float(exact)
        if not 0 <= value < math.inf:
            self.add(node.place, f"count = {node.text}: expected a number, 0 or more, such as 3516 or 15*60000/256")
            return 0
        return value

    def _parameters(self, node: Table, chosen: type[Any]) -> Mapping[str, Any]:
        slots = {slot.name: slot for slot in fields(chosen)}
        given: dict[str, Any] = {}
        for name, entry in node.entries.items():
            if name in ("event", "count"):
                continue
            if name not in slots:
                known = (*slots, "count")
                message = f"{chosen.__name__} has no parameter {name!r}"
                self.add(entry.key, message, suggestion(name, known).removeprefix("; "))
                continue
            value = plain(entry.value)
            if name == "sampling_rate" and isinstance(value, str):
                value = self._rate(entry.value, value)
            given[name] = tuple(value) if isinstance(value, list) else value
        for name, slot in slots.items():
            if name not in node.entries and slot.default is MISSING:
                self.add(node.place, f"{chosen.__name__} needs the parameter {name!r}")
        return given

    def _rate(self, node: Node, text: str) -> float:
        try:
            return float(rate(text))
        except DpbenchError as error:
            self.add(node.place, str(error).removeprefix("--").replace("sampling-rate", "sampling_rate", 1))
            return 0.0
