"""JSON files of an OUT folder: read with limits, and signed with a digest of their content.

Anybody may have put a file there. What cannot be a file of dpbench raises DpbenchError with one sentence.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpbench.atomic import read_text
from dpbench.errors import DpbenchError

DEEPEST = 64  # levels of lists and objects; a record has some ten
LARGEST = 2**63  # of whole numbers
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises DpbenchError for what is no regular file, too large, or no plain JSON object.

    Refused are: more than `DEEPEST` levels, numbers that a double does not hold or whole ones from 2^63 on, NaN, a key
    that occurs twice, and control characters in texts.
    """
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise DpbenchError(f"{path}: damaged, not JSON ({error}); remove it and run again") from error


def parse_json(text: str) -> dict[str, Any]:
    """The JSON object that a text holds, with the limits of `read_json`. Raises ValueError for any other text.

    >>> parse_json('{"a": 1e999}')
    Traceback (most recent call last):
    ValueError: the number 1e999 is no double
    """
    try:
        found = json.loads(
            text, parse_int=_whole, parse_float=_double, parse_constant=_no_number, object_pairs_hook=_object
        )
        if not isinstance(found, dict):
            raise ValueError("expected a JSON object")
        _check_texts(found)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from None
    return found


def digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object as canonical JSON, without its key `digest`.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1, "digest": "any"})
    True
    """
    content = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def signed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object with printable texts and its digest."""
    content = _printable(data)
    return {**content, "digest": digest(content)}


def check_digest(path: Path, data: Mapping[str, Any]) -> None:
    """Raise DpbenchError where the digest is not that of the content."""
    if data.get("digest") != digest(data):
        raise DpbenchError(f"inconsistent: {path}: its digest is not that of its content; it was changed")


def printable(text: str) -> str:
    """A text without what a terminal obeys or UTF-8 does not hold: such characters are written as escapes.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value


def _whole(text: str) -> int:
    number = int(text) if len(text) <= 20 else LARGEST
    if abs(number) >= LARGEST:
        raise ValueError(f"the number {text[:20]}{'...' * (len(text) > 20)} is too large")
    return number


def _double(text: str) -> float:
    number = float(text) if len(text) <= 400 else math.inf
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]}{'...' * (len(text) > 20)} is no double")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {printable(twice)[:40]!r} occurs twice")
    return found


def _check_texts(found: Any) -> None:
    """Raise ValueError for a text with control characters, RecursionError below `DEEPEST` levels."""
    level = [found]
    for _ in range(DEEPEST):
        texts = [key for value in level if isinstance(value, dict) for key in value]
        texts += [value for value in level if isinstance(value, str)]
        if _UNPRINTABLE.search(" ".join(texts)):
            text = next(filter(_UNPRINTABLE.search, texts))
            raise ValueError(f"control characters in the text {printable(text[:40])!r}")
        nested = (
            value.values() if isinstance(value, dict) else value for value in level if isinstance(value, dict | list)
        )
        level = [item for items in nested for item in items]
        if not level:
            return
    raise RecursionError
