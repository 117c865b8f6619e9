"""Reads YAML with the position of every value; collects all mistakes instead of raising the first.

The rules are those of the YAML 1.2 core schema (`1e-5` is a number, `yes` is text); PyYAML finds the tokens. Tags are
refused, duplicate keys are reported, and the number of values that aliases produce is limited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dpbench.atomic import read_bytes
from dpbench.errors import DpbenchError, Problem, is_control, visible

LARGEST_FILE = 1 << 20  # bytes
LARGEST_TREE = 100_000  # values after all aliases are written out
DEEPEST = 40  # lists and mappings inside one another

_WORDS: tuple[tuple[re.Pattern[str], bool | float | None], ...] = (
    (re.compile(r"null|Null|NULL|~|"), None),
    (re.compile(r"true|True|TRUE"), True),
    (re.compile(r"false|False|FALSE"), False),
    (re.compile(r"\+?\.(?:inf|Inf|INF)"), math.inf),
    (re.compile(r"-\.(?:inf|Inf|INF)"), -math.inf),
    (re.compile(r"\.(?:nan|NaN|NAN)"), math.nan),
)
_WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
MOST_DIGITS = 300  # a whole number of that length still fits in a float


@dataclass(frozen=True, order=True)
class Place:
    """A position in a file: line and column count from 1; `path` is `training.clip_norm` or `rows[2].label`."""

    line: int
    column: int
    path: str

    def under(self, key: str) -> str:
        """The path of `key` inside this value."""
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
    """The value of a key, and the position of the key."""

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
    """The content of one file; `root` is None if it could not be read, and `problems` says why."""

    file: str
    root: Node | None
    problems: tuple[Problem, ...]


def plain(node: Node) -> Any:
    """The value without positions, as None, bool, int, float, str, list and dict.

    >>> plain(parse("{rate: 1e-5, on: yes}", "demo.yaml").root)
    {'rate': 1e-05, 'on': 'yes'}
    """
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    return {key: plain(entry.value) for key, entry in node.entries.items()}


def read(path: Path) -> Document:
    """The document in a file. Never raises, whatever the file contains and if it cannot be read."""
    file = str(path)
    try:
        raw = read_bytes(path, LARGEST_FILE)
    except DpbenchError as error:
        hint = f"YAML files of at most {LARGEST_FILE // 1024} KiB are read"
        return Document(file, None, (Problem(file, 0, 0, "", str(error).removeprefix(f"{path}: "), hint),))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", errors="replace")
        at = _position(before, len(before))
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        return Document(file, None, (Problem(file, at.line, at.column, "", message, "save the file as UTF-8"),))
    return parse(text, file)


def parse(text: str, file: str) -> Document:
    """The document in `text`; `file` is used only in the problems.

    >>> document = parse("steps: 10\\nsteps: 20", "demo.yaml")
    >>> print(document.problems[0])
    demo.yaml:2:1: steps: the key 'steps' stands twice (first in line 1) (delete one of the two)
    """
    reader = _Reader(text, file, _FASTEST if _ALIKE.fullmatch(text) else yaml.SafeLoader)
    root = reader.document()
    if reader.syntax and reader.loader is not yaml.SafeLoader:  # whose words for what is wrong are those known here
        reader = _Reader(text, file, yaml.SafeLoader)
        root = reader.document()
    return Document(file, root, tuple(reader.problems))


_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML was built with it
# libyaml takes more than PyYAML where tabs, question marks, marks of byte order and odd ends of lines stand.
_ALIKE = re.compile("[\n\x20-\x3e\x40-\x7e\xa0-\u2027\u2030-\ud7ff]*")


class _Stop(Exception):
    """The rest of this file cannot be read; the reason is already among the problems."""


class _Reader:
    """Builds nodes from PyYAML's events; `syntax` says whether they ended in an error of the syntax."""

    def __init__(self, text: str, file: str, loader: Any) -> None:
        self.text, self.file, self.loader = text, file, loader
        self.syntax = False
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node | None] = {}  # None while the anchored value is still being read
        self.size = 0
        self.events: Iterator[Any] = iter(())

    def document(self) -> Node | None:
        root: Node | None = None
        try:
            self.events = yaml.parse(self.text, Loader=self.loader)
            next(self.events)  # the start of the stream
            if not isinstance(next(self.events), yaml.StreamEndEvent):
                root = self._node(next(self.events), "", 0)
                next(self.events)  # the end of the document
                after = next(self.events)
                if not isinstance(after, yaml.StreamEndEvent):
                    message = "a second document starts here (`---`); expected one document in a file"
                    self._problem(_place(after, ""), message, "move it into a file of its own")
        except _Stop:
            return None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            self.syntax = True
            self._syntax(error)
            return None
        if root is None or (isinstance(root, Scalar) and root.value is None):
            self._problem(Place(1, 1, ""), "the file is empty", "start it with `kind: run`")
            return None
        return root

    def _node(self, event: Any, path: str, depth: int) -> Node:
        place = _place(event, path)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), place)
        if event.tag is not None:
            hint = "delete the tag; quote a value to make it text"
            self._problem(place, f"the tag {event.tag!r} is not allowed; expected a plain value", hint)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if depth > DEEPEST:
            self._stop(replace(place, path=""), f"more than {DEEPEST} lists and mappings inside one another")
        self._count(place, 1)
        if isinstance(event, yaml.ScalarEvent):
            found: Node = self._scalar(event, place)
        elif isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event_ := next(self.events), yaml.SequenceEndEvent):
                items.append(self._node(event_, f"{path}[{len(items)}]", depth + 1))
            found = Listing(place, tuple(items))
        else:
            found = self._table(place, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = found
        return found

    def _alias(self, name: str, place: Place) -> Node:
        found = self.anchors.get(name)
        if found is None and name in self.anchors:
            self._stop(place, f"the alias '*{name}' stands inside the value that it repeats")
        if found is None:
            hint = "quote a text that starts with *"
            self._stop(place, f"the alias '*{name}' has no anchor '&{name}' before it", hint)
        self._count(place, _size(found))
        return found

    def _count(self, place: Place, size: int) -> None:
        self.size += size
        if self.size > LARGEST_TREE:
            hint = "split it, or use fewer aliases"
            self._stop(place, f"the file stands for more than {LARGEST_TREE} values", hint)

    def _scalar(self, event: Any, place: Place) -> Scalar:
        text: str = event.value
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            self._problem(place, "half a surrogate pair is not text", "write the character itself")
            text = text.encode("utf-8", errors="replace").decode()
        if (found := next(filter(is_control, text), "")) and found not in "\n\t":
            hint = "delete it: it could change what a terminal or a page shows"
            self._problem(place, f"the text holds the control character U+{ord(found):04X}", hint)
            text = visible(text)
        if event.style:  # quoted or a block
            return Scalar(place, text, text)
        if _WHOLE.fullmatch(text) and len(text) > MOST_DIGITS:
            self._problem(place, f"a number of {len(text)} digits; expected at most {MOST_DIGITS}")
            return Scalar(place, text, text)
        value = resolve(text)
        if isinstance(value, float) and math.isinf(value) and not text.lower().endswith(".inf"):
            self._problem(place, f"{text} is too large for a number", "write .inf for infinity")
        return Scalar(place, value, text)

    def _table(self, place: Place, depth: int) -> Table:
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                hint = "quote text that starts with [, { or *"
                self._stop(_place(event, place.path), "a key is a list, a mapping or an alias; expected a word", hint)
            word = self._node(event, place.path, depth + 1)
            assert isinstance(word, Scalar)
            name = word.text
            key = _place(event, place.under(_shown_key(name)))
            found = self._node(next(self.events), key.path, depth + 1)
            if name == "<<" and not event.style:
                hint = "write the keys out, or repeat the whole value with an alias"
                self._problem(key, "merge keys (`<<`) are not read", hint)
            elif name in entries:
                first = entries[name].key.line
                self._problem(key, f"the key {name!r} stands twice (first in line {first})", "delete one of the two")
            else:
                entries[name] = Entry(key, found)
        return Table(place, entries)

    def _problem(self, place: Place, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self.file, place.line, place.column, place.path, message, hint))

    def _stop(self, place: Place, message: str, hint: str = "") -> NoReturn:
        self._problem(place, message, hint)
        raise _Stop

    def _syntax(self, error: Exception) -> None:
        if isinstance(error, yaml.reader.ReaderError) and isinstance(error.character, int):
            message = f"the character U+{error.character:04X} is not allowed in YAML"
            self._problem(_position(self.text, error.position), message, "delete it")
            return
        if not isinstance(error, yaml.MarkedYAMLError):
            # PyYAML passes the digits of `"\\U..."` to chr() unchecked and gives no position.
            found_at = re.search(r"\\U[0-9a-fA-F]{8}", self.text)
            at = _position(self.text, found_at.start() if found_at else 0)
            self._problem(at, f"not a character: {error}", "Unicode ends at \\U0010FFFF")
            return
        mark = error.problem_mark or error.context_mark
        last = self.text.rstrip("\n").count("\n") + 1
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if line > last:
            line, column = last, len(self.text.rstrip("\n").split("\n")[-1]) + 1
        opened = error.context_mark.line + 1 if error.context_mark else line
        text = ": ".join(filter(None, [error.context, error.problem])) or str(error)
        message, hint = _in_plain_words(text, opened)
        self._problem(Place(line, column, ""), message, hint)


def resolve(text: str) -> bool | int | float | str | None:
    """The value of an unquoted word in the YAML 1.2 core schema.

    >>> [resolve(text) for text in ("1e-5", "0x1F", ".inf", "true", "on", "1_000", "~")]
    [1e-05, 31, inf, True, 'on', '1_000', None]
    """
    for pattern, value in _WORDS:
        if pattern.fullmatch(text):
            return value
    if _WHOLE.fullmatch(text) and len(text) <= MOST_DIGITS:  # Python reads no number of 4,300 digits
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _place(event: Any, path: str) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1, path)


def _position(text: str, offset: int) -> Place:
    before = text[:offset]
    return Place(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, "")


def _size(node: Node) -> int:
    """The number of values in a node with aliases expanded."""
    if isinstance(node, Scalar):
        return 1
    inside = node.items if isinstance(node, Listing) else [entry.value for entry in node.entries.values()]
    return 1 + sum(map(_size, inside))


def _shown_key(name: str) -> str:
    shown = name if name.isprintable() else name.encode("unicode_escape").decode()
    return shown if len(shown) <= 60 else shown[:57] + "..."


# PyYAML's messages in plain words, and what to do; {line} is where the construct began.
_SYNTAX = (
    ("'\\t' that cannot start", "a tab stands where YAML wants spaces", "indent with spaces"),
    (
        "mapping values are not allowed",
        "a ':' stands where no key can be",
        "check the indentation, and quote text that holds ': '",
    ),
    ("sequence entries are not allowed", "a '- ' stands where no list can be", "start the list on a line of its own"),
    ("could not find expected ':'", "a line that is neither `key: value` nor a list item", "put ': ' after the key"),
    (
        "flow sequence",
        "the list opened with '[' in line {line} is not closed, or a comma is missing",
        "add ']' or ','",
    ),
    (
        "flow mapping",
        "the mapping opened with '{{' in line {line} is not closed, or a comma is missing",
        "add '}' or ','",
    ),
    ("found unexpected end of stream", "the quotation mark opened in line {line} is not closed", "close it"),
    ("found unexpected document separator", "the quotation mark opened in line {line} is not closed", "close it"),
    (
        "expected <block end>",
        "does not line up with the block that starts in line {line}",
        "check indentation and brackets",
    ),
)


def _in_plain_words(text: str, opened: int) -> tuple[str, str]:
    """PyYAML's context and problem in plain words, and what to do."""
    for said, message, hint in _SYNTAX:
        if said in text:
            return message.format(line=opened), hint
    character = re.search(r"found character (.*) that cannot start any token", text)
    if character:
        return f"a value cannot start with {character[1]}", "quote the value"
    return f"not YAML: {text}".replace("\n", " "), "see https://yaml.org/spec/1.2.2/"
