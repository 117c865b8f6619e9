"""A vocabulary of subwords built from texts, and texts as numbers of subwords, as TensorFlow Datasets 1.x and 2.x do.

The rule, from that library's SubwordTextEncoder, restated:
- Tokens: a text is cut into runs of word characters and runs of others. A single space after a token is dropped and
  the token ends with "_" for it. A "_" of the text itself is written \\&undsc.
- A token is cut greedily: from its beginning always the longest piece of the vocabulary, else one character.
- Building: from an empty vocabulary, four times: cut all tokens by it; count every prefix, of at most 20 characters,
  of what follows each cut to the token's end, times the token's count; from long to short, take a piece whose count
  is at least `least_count` and take its count away from all its prefixes. Pieces are sorted by count, then by
  themselves, both descending. Pieces of one byte are left out: all 256 bytes have numbers of their own.
- Numbers: 0 is padding, then the pieces from 1, then the bytes. A character in no piece is its UTF-8 bytes.

The library searches for the least count that gives about the number of subwords that was asked for. For the IMDb
training texts and 2^13 that search ends at 186 and gives 8,185 numbers, the size that jl2021's parameter count needs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

_UNDERSCORE = "\\&undsc"
_LONGEST = 20
_PASSES = 4
_RUNS = re.compile(r"(\W+)")
_ESCAPED = re.compile(f"({re.escape(_UNDERSCORE)})")


def tokens(text: str) -> list[str]:
    r"""The tokens of a text; nothing is lost but single spaces, which become a "_" at the end.

    >>> tokens("It's a_b,  no.")
    ['It', "'", 's_', 'a\\&undscb', ',  ', 'no', '.']
    """
    pieces = [run for part in _ESCAPED.split(text) for run in ([part] if part == _UNDERSCORE else _RUNS.split(part))]
    pieces = [piece for piece in pieces if piece]
    found, at = [], 0
    while at < len(pieces):
        spaced = at + 1 < len(pieces) and pieces[at + 1] == " "
        end = "_" if spaced else ""
        if pieces[at] == _UNDERSCORE:  # the text itself holds the escape: its two halves stay apart
            found += [_UNDERSCORE[:2], _UNDERSCORE[2:] + end]
        else:
            found.append(pieces[at].replace("_", _UNDERSCORE) + end)
        at += 2 if spaced else 1
    return found


def build_vocabulary(texts: Iterable[str], least_count: int) -> list[str]:
    """The pieces of a vocabulary by the rule above, in the order of their numbers; slow: seconds per megabyte.

    >>> build_vocabulary(["aba aba aba"], 2)
    ['aba_']
    """
    counts = Counter(token for text in texts for token in tokens(text))
    vocabulary: list[str] = []
    for _ in range(_PASSES):
        known, longest = set(vocabulary), _longest(vocabulary)
        prefixes: defaultdict[str, int] = defaultdict(int)
        for token, count in counts.items():
            start = 0
            for piece in _cut(token, known, longest):
                for end in range(start + 1, min(len(token), start + _LONGEST) + 1):
                    prefixes[token[start:end]] += count
                start += len(piece)
        vocabulary = _chosen(prefixes, least_count)
    return vocabulary


def _chosen(prefixes: dict[str, int], least_count: int) -> list[str]:
    frequent = [piece for piece, count in prefixes.items() if count >= least_count and len(piece.encode()) > 1]
    taken = []
    # pieces of one length do not change each other's counts, so their order does not matter
    for piece in sorted(frequent, key=len, reverse=True):
        count = prefixes[piece]
        if count >= least_count:
            taken.append((count, piece))
            for end in range(1, len(piece)):
                prefixes[piece[:end]] -= count
    return [piece for _, piece in sorted(taken, reverse=True)]


def _longest(vocabulary: Sequence[str]) -> int:
    return max(len(_UNDERSCORE), max(map(len, vocabulary), default=1))


def _cut(token: str, known: set[str] | dict[str, int], longest: int) -> Iterator[str]:
    start = 0
    while start < len(token):
        for end in range(min(len(token), start + longest), start, -1):
            piece = token[start:end]
            if piece in known or piece == _UNDERSCORE:
                break
        yield piece  # of one character where nothing longer is known
        start = end


class SubwordEncoder:
    """Texts as numbers of a vocabulary's pieces. `size` counts padding, pieces and bytes.

    Raises ValueError for a piece that mixes word characters with others, since texts would have to be cut around it.

    >>> encoder = SubwordEncoder(["ab_", "a"])
    >>> encoder.size, encoder.encode("ab ac")
    (259, [1, 2, 102])
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        others = [piece for piece in vocabulary if piece != _UNDERSCORE]
        mixed = [piece for piece in others if len(list(filter(None, _RUNS.split(piece)))) > 1]
        if mixed:
            raise ValueError(f"vocabulary holds {mixed[0]!r}: expected pieces of word characters or of others only")
        self._numbers = {piece: number for number, piece in enumerate(vocabulary, 1)}
        self._bytes = 1 + len(vocabulary)
        self._longest = _longest(vocabulary)
        self._cache: dict[str, list[int]] = {}
        self.size = self._bytes + 256

    def encode(self, text: str, last: int | None = None) -> list[int]:
        """The numbers of a text, or its `last` ones only (then only its last tokens are cut)."""
        found = tokens(text)
        numbers = [number for token in (found if last is None else found[-last:]) for number in self._token(token)]
        return numbers if last is None else numbers[-last:]

    def _token(self, token: str) -> list[int]:
        if token not in self._cache:
            pieces = _cut(token, self._numbers, self._longest)
            self._cache[token] = [number for piece in pieces for number in self._piece(piece)]
        return self._cache[token]

    def _piece(self, piece: str) -> list[int]:
        if piece == _UNDERSCORE or piece == "_":  # an underscore of the text, and a space that stands alone
            return [self._bytes + ord("_" if piece == _UNDERSCORE else " ")]
        if piece in self._numbers:
            return [self._numbers[piece]]
        return [self._bytes + byte for byte in piece.encode()]
