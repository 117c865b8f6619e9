"""YAML as people write it: every value with its place in the file, every mistake collected instead of raised.

The rules are those of the YAML 1.2 core schema (`1e-5` is a number, `yes` is text), PyYAML finds the tokens. Tags are
refused, keys that stand twice are reported, and aliases may not blow a small file up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from dpbench.errors import Problem

LARGEST_FILE = 1 << 20  # bytes
LARGEST_TREE = 100_000  # values after all aliases are written out
DEEPEST = 40  # lists and mappings inside one another

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_NOT_A_NUMBER = re.compile(r"\.(?:nan|NaN|NAN)")
_MOST_DIGITS = 300  # a whole number of that length still fits in a float


@dataclass(frozen=True, order=True)
class Place:
    """Where something is written: line and column count from 1; `path` is `training.clip_norm` or `rows[2].label`."""

    line: int
    column: int
    path: str

    def under(self, key: str) -> str:
        """The path of `key` inside what stands here."""
        return f"{self.path}.{key}" if self.path else key


@dataclass(frozen=True)
class Scalar:
    """A single value; `text` is what was written, digit for digit, without quotation marks."""

    place: Place
    value: bool | int | float | str | None
    text: str


@dataclass(frozen=True)
class Listing:
    """A list of values."""

    place: Place
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Entry:
    """The value under a key, and where the key stands."""

    key: Place
    value: Node


@dataclass(frozen=True)
class Table:
    """A mapping from keys, always read as text, to values, in the order of the file."""

    place: Place
    entries: Mapping[str, Entry] = field(default_factory=dict)

    def get(self, key: str) -> Node | None:
        """The value under `key`, or None."""
        entry = self.entries.get(key)
        return entry.value if entry else None


Node = Scalar | Listing | Table


@dataclass(frozen=True)
class Document:
    """What one file holds; `root` is None where nothing could be read, and `problems` says why."""

    file: str
    root: Node | None
    problems: tuple[Problem, ...]


def plain(node: Node) -> Any:
    """The value alone, as None, bool, int, float, str, list and dict.

    >>> plain(parse("{rate: 1e-5, on: yes}", "demo.yaml").root)
    {'rate': 1e-05, 'on': 'yes'}
    """
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    return {key: plain(entry.value) for key, entry in node.entries.items()}


def read(path: Path) -> Document:
    """The document in a file. Never raises for what the file holds or for a file that cannot be read."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        return Document(file, None, (Problem(file, 0, 0, "", f"cannot be read: {error.strerror or error}"),))
    if len(raw) > LARGEST_FILE:
        message = f"larger than {LARGEST_FILE // 1024} KiB; expected a short YAML file"
        return Document(file, None, (Problem(file, 1, 1, "", message, "split it into several files"),))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", errors="replace")
        line, column = _position(before, len(before))
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        return Document(file, None, (Problem(file, line, column, "", message, "save the file as UTF-8"),))
    return parse(text, file)


def parse(text: str, file: str) -> Document:
    """The document that `text` holds; `file` is only named in the problems.

    >>> document = parse("steps: 10\\nsteps: 20", "demo.yaml")
    >>> print(document.problems[0])
    demo.yaml:2:1: steps: the key 'steps' stands twice (first in line 1) (delete one of the two)
    """
    reader = _Reader(text, file)
    root = reader.document()
    return Document(file, root, tuple(reader.problems))


class _Stop(Exception):
    """Nothing more of this file can be read; the reason is already among the problems."""


@dataclass(frozen=True)
class _Sized:
    """A node and how many values it stands for once aliases are written out."""

    node: Node
    size: int


class _Reader:
    """Builds nodes from PyYAML's events."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.problems: list[Problem] = []
        self.anchors: dict[str, _Sized | None] = {}  # None while the anchored value is still being read
        self.size = 0
        self.events: Iterator[Any] = iter(())

    def document(self) -> Node | None:
        try:
            self.events = yaml.parse(self.text, Loader=yaml.SafeLoader)
            next(self.events)  # the start of the stream
            event = next(self.events)
            if isinstance(event, yaml.StreamEndEvent):
                self._problem(Place(1, 1, ""), "the file is empty", "start it with `kind: run`")
                return None
            found = self._node(next(self.events), "", 0)
            next(self.events)  # the end of the document
            after = next(self.events)
            if not isinstance(after, yaml.StreamEndEvent):
                message = "a second document starts here (`---`); expected one document in a file"
                self._problem(self._place(after, ""), message, "move it into a file of its own")
        except _Stop:
            return None
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
            return None
        except yaml.reader.ReaderError as error:
            line, column = _position(self.text, error.position)
            message = f"the character U+{error.character:04X} is not allowed in YAML"
            self._problem(Place(line, column, ""), message, "delete it")
            return None
        except (ValueError, OverflowError) as error:
            # PyYAML hands the digits of `"\\U..."` to chr() unchecked; it does not say where they stand.
            found_at = re.search(r"\\U[0-9a-fA-F]{8}", self.text)
            line, column = _position(self.text, found_at.start() if found_at else 0)
            self._problem(Place(line, column, ""), f"not a character: {error}", "Unicode ends at \\U0010FFFF")
            return None
        root = found.node
        if isinstance(root, Scalar) and root.value is None:
            self._problem(Place(1, 1, ""), "the file is empty", "start it with `kind: run`")
            return None
        return root

    def _node(self, event: Any, path: str, depth: int) -> _Sized:
        place = self._place(event, path)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), place)
        if event.tag is not None:
            hint = "delete the tag; quote a value to make it text"
            self._problem(place, f"the tag {event.tag!r} is not allowed; expected a plain value", hint)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if depth > DEEPEST:
            self._problem(replace(place, path=""), f"more than {DEEPEST} lists and mappings inside one another")
            raise _Stop
        if isinstance(event, yaml.ScalarEvent):
            found = _Sized(self._scalar(event, place), 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            found = self._listing(place, depth)
        else:
            found = self._table(place, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = found
        return found

    def _alias(self, name: str, place: Place) -> _Sized:
        found = self.anchors.get(name)
        if found is not None:
            self._count(place, found.size)
            return found
        if name in self.anchors:
            self._problem(place, f"the alias '*{name}' stands inside the value that it repeats")
        else:
            hint = "quote a text that starts with *"
            self._problem(place, f"the alias '*{name}' has no anchor '&{name}' before it", hint)
        raise _Stop

    def _count(self, place: Place, size: int) -> None:
        self.size += size
        if self.size > LARGEST_TREE:
            hint = "split it, or use fewer aliases"
            self._problem(place, f"the file stands for more than {LARGEST_TREE} values", hint)
            raise _Stop

    def _scalar(self, event: Any, place: Place) -> Scalar:
        self._count(place, 1)
        text: str = event.value
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            self._problem(place, "half a surrogate pair is not text", "write the character itself")
            text = text.encode("utf-8", errors="replace").decode()
        if event.style is not None:  # quoted or a block
            return Scalar(place, text, text)
        if _WHOLE.fullmatch(text) and len(text) > _MOST_DIGITS:
            self._problem(place, f"a number of {len(text)} digits; expected at most {_MOST_DIGITS}")
            return Scalar(place, text, text)
        value = resolve(text)
        if isinstance(value, float) and math.isinf(value) and not _INFINITE.fullmatch(text):
            self._problem(place, f"{text} is too large for a number", "write .inf for infinity")
        return Scalar(place, value, text)

    def _listing(self, place: Place, depth: int) -> _Sized:
        self._count(place, 1)
        items: list[Node] = []
        size = 1
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found = self._node(event, f"{place.path}[{len(items)}]", depth + 1)
            items.append(found.node)
            size += found.size
        return _Sized(Listing(place, tuple(items)), size)

    def _table(self, place: Place, depth: int) -> _Sized:
        self._count(place, 1)
        entries: dict[str, Entry] = {}
        size = 1
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            name = self._key(event, place, depth)
            key = self._place(event, place.under(_shown_key(name)))
            found = self._node(next(self.events), key.path, depth + 1)
            size += found.size
            if name == "<<" and event.style is None:
                hint = "write the keys out, or repeat the whole value with an alias"
                self._problem(key, "merge keys (`<<`) are not read", hint)
            elif name in entries:
                first = entries[name].key.line
                self._problem(key, f"the key {name!r} stands twice (first in line {first})", "delete one of the two")
            else:
                entries[name] = Entry(key, found.node)
        return _Sized(Table(place, entries), size)

    def _key(self, event: Any, place: Place, depth: int) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            at = self._place(event, place.path)
            hint = "quote text that starts with [, { or *"
            self._problem(at, "a key is a list, a mapping or an alias; expected a word", hint)
            raise _Stop
        found = self._node(event, place.path, depth + 1).node
        assert isinstance(found, Scalar)
        return found.text

    def _place(self, event: Any, path: str) -> Place:
        return Place(event.start_mark.line + 1, event.start_mark.column + 1, path)

    def _problem(self, place: Place, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self.file, place.line, place.column, place.path, message, hint))

    def _syntax(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        last = self.text.rstrip("\n").count("\n") + 1
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if line > last:
            line, column = last, len(self.text.rstrip("\n").split("\n")[-1]) + 1
        opened = error.context_mark.line + 1 if error.context_mark else line
        message, hint = _in_plain_words(str(error.context or ""), str(error.problem or error), opened)
        self._problem(Place(line, column, ""), message, hint)


def resolve(text: str) -> bool | int | float | str | None:
    """What an unquoted word means in the YAML 1.2 core schema.

    >>> [resolve(text) for text in ("1e-5", "0x1F", ".inf", "true", "on", "1_000", "~")]
    [1e-05, 31, inf, True, 'on', '1_000', None]
    """
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _WHOLE.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return -math.inf if text.startswith("-") else math.inf
    if _NOT_A_NUMBER.fullmatch(text):
        return math.nan
    return text


def _position(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def _shown_key(name: str) -> str:
    shown = name if name.isprintable() else name.encode("unicode_escape").decode()
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _in_plain_words(context: str, problem: str, opened: int) -> tuple[str, str]:
    """PyYAML's message as a person would say it, and what to do; `opened` is the line where the construct began."""
    if "'\\t' that cannot start" in problem:
        return "a tab stands where YAML wants spaces", "indent with spaces"
    if "mapping values are not allowed" in problem:
        return "a ':' stands where no key can be", "check the indentation, and quote text that holds ': '"
    if "sequence entries are not allowed" in problem:
        return "a '- ' stands where no list can be", "start the list on a line of its own"
    if "could not find expected ':'" in problem:
        return "a line that is neither `key: value` nor a list item", "put ': ' after the key"
    if "flow sequence" in context:
        return f"the list opened with '[' in line {opened} is not closed, or a comma is missing", "add ']' or ','"
    if "flow mapping" in context:
        return f"the mapping opened with '{{' in line {opened} is not closed, or a comma is missing", "add '}' or ','"
    if "quoted scalar" in context and ("end of stream" in problem or "document separator" in problem):
        return f"the quotation mark opened in line {opened} is not closed", "close it"
    if "expected <block end>" in problem:
        return f"does not line up with the block that starts in line {opened}", "check indentation and brackets"
    if "that cannot start any token" in problem:
        character = problem.removeprefix("found character ").split(" that")[0]
        return f"a value cannot start with {character}", "quote the value"
    text = f"{context}: {problem}" if context else problem
    return f"not YAML: {text}".replace("\n", " "), "see https://yaml.org/spec/1.2.2/"
