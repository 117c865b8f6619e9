"""Texts as records of a language model: words, their numbers, and one record for each word that is to be predicted.

A word is what scikit-learn's CountVectorizer takes: two or more letters, digits or underscores, in lower case; so `I`
and `a` are none. Its number is 2 + its rank in a dictionary, 1 where the dictionary lacks it; 0 is padding. A record's
inputs are the numbers of the `places` words before the one to be predicted, in its line, with zeros in front; its class
is the number of that word. The dictionary comes from a public text alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpbench.datasets._base import Array, FileSource

PADDING, UNKNOWN, FIRST = 0, 1, 2
MOST_NUMBERS = 1 << 26  # of the inputs of all records

_WORD = re.compile(r"\w\w+")
Line = Sequence[str]


class WordSource(FileSource):
    """A `FileSource` of records of words: what follows from the dictionary's size, the places and their origin."""

    words: int
    places: int
    determined_by: Mapping[str, Any]

    @property
    def classes(self) -> int:
        return self.words + FIRST

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.places,)

    @property
    def sha256(self) -> str:
        """The hash of what determines the records."""
        return hashlib.sha256(json.dumps(self.determined_by, sort_keys=True).encode()).hexdigest()


def words_of(line: str) -> list[str]:
    """The words of a line.

    >>> words_of("Don't tell me: I knew.")
    ['don', 'tell', 'me', 'knew']
    """
    return _WORD.findall(line.lower())


def ranked(lines: Iterable[Line]) -> list[str]:
    """All words, the most common first, those of equal count in the order of the alphabet.

    >>> ranked([["be", "or", "not"], ["be"]])
    ['be', 'not', 'or']
    """
    counts = Counter(word for line in lines for word in line)
    return sorted(counts, key=lambda word: (-counts[word], word))


def numbers_of(ranking: Sequence[str], words: int) -> dict[str, int]:
    """The numbers of the `words` most common words.

    >>> numbers_of(["be", "not", "or"], 2)
    {'be': 2, 'not': 3}
    """
    return {word: FIRST + rank for rank, word in enumerate(ranking[:words])}


def chosen(line: Line, most: int | None) -> Sequence[int]:
    """The places of a line, 0 to its words − 1, whose words are predicted: all, or `most` that are evenly apart.

    Where they begin is drawn by the hash of the line, so that the choice depends on no other line.

    >>> len(chosen(["to", "be", "or", "not"], 1)), list(chosen(["to", "be"], None))
    (1, [0, 1])
    """
    count = len(line)
    if most is None or most >= count:
        return range(count)
    start = int.from_bytes(hashlib.sha256(" ".join(line).encode()).digest()[:8], "big") % count
    return sorted((start + step * count // most) % count for step in range(most))


def records(
    lines: Sequence[Line], numbers: Mapping[str, int], places: int, most: int | None = None
) -> tuple[Array, Array]:
    """The inputs (N, places) float32 and classes (N,) int64 of lines, `most` records of each.

    >>> inputs, classes = records([["to", "be", "or"]], {"to": 2, "be": 3}, 2)
    >>> inputs.tolist(), classes.tolist()
    ([[0.0, 0.0], [0.0, 2.0], [2.0, 3.0]], [2, 3, 1])
    """
    flat: list[int] = []
    starts: list[int] = []
    for line in lines:
        starts += [len(flat) + place for place in chosen(line, most)]
        flat += [PADDING] * places + [numbers.get(word, UNKNOWN) for word in line]
    found = np.lib.stride_tricks.sliding_window_view(np.array(flat, np.int64), places + 1)[starts]
    return found[:, :-1].astype(np.float32), np.ascontiguousarray(found[:, -1])


def size_of(lines: Iterable[Line], most: int | None = None) -> int:
    """How many records lines give.

    >>> size_of([["to", "be"], ["or", "not", "to"]], 2)
    4
    """
    return sum(len(line) if most is None else min(most, len(line)) for line in lines)
