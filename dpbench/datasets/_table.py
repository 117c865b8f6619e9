"""Tables as inputs of a network: cells to numbers by bounds and categories that are known beforehand.

A number becomes (x − low) / (high − low), cut to [0, 1]; a category becomes one number for each category, 1 for its
own and 0 for the others. Bounds and categories are arguments, so a record's inputs depend on no other record and cost
no privacy; `Categories` without a list take what occurs, which depends on the data, and its caller says so.

All arithmetic is element by element in float64 and rounded once to float32, so that the bits are the same everywhere.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.datasets._base import Array
from dpbench.errors import DpbenchError

# Of a cell in lower case: no value. What pandas reads as such, and two more.
MISSING = frozenset(
    {"", "-", "?", "#n/a", "#n/a n/a", "#na", "-1.#ind", "-1.#qnan", "-nan", "1.#ind", "1.#qnan"}
    | {"<na>", "n/a", "na", "nan", "none", "null"}
)
ROWS, CELLS = 4096, 1 << 21  # at a time

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")  # as most write it: 01 and 1e5 may be codes

Row = tuple[int, Sequence[str]]  # the line where it ends, and its cells


@dataclass
class Mistakes:
    """Cells that cannot be used: of each kind how many there are, and the one that stands first in the table."""

    found: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def add(self, kind: str, line: int, column: str, cell: str) -> None:
        place = f"line {line}, column {column!r}" + (f" ({cell!r})" if cell else "")
        count, first, its = self.found.get(kind, (0, line, place))
        self.found[kind] = (count + 1, line, place) if line < first else (count + 1, first, its)

    def sentence(self) -> str:
        """All of them in one sentence, "" where there is none."""
        return "; ".join(
            f"{count:,} {'cells are' if count > 1 else 'cell is'} {kind.replace('{}', place)}"
            for kind, (count, _, place) in self.found.items()
        )


MISSED = "without a value in the file, the first in {}: delete or fill those rows, no record is left out silently"
MISSED_WORD = MISSED + "; where it is a category or a class, list all of the column's, in quotation marks"
NO_NUMBER = "no number, the first in {}: numbers have a decimal point; "
OF_INPUTS = "list a column of words under categorical, or leave it out of features"
NOT_FINITE = "not finite, the first in {}: expected finite numbers"
UNKNOWN = "none of the values {words}, the first in {}: list every value that may occur"
SHOWN = 6  # values that a message lists


@dataclass
class Numbers:
    """A column of numbers, one input; between `low` and `high` where they are given."""

    name: str
    low: float = -math.inf
    high: float = math.inf
    parts: list[Array] = field(default_factory=list)
    words: str = OF_INPUTS  # what to do about cells that are no numbers

    def add(self, cells: Sequence[str], lines: Sequence[int], mistakes: Mistakes) -> None:
        try:
            values = np.array(cells).astype(np.float64)
        except ValueError:
            values = np.full(len(cells), np.nan)
        if not np.isfinite(values).all() or "_" in "".join(cells):  # Python reads 1_000 as a number
            values = np.array([self._number(*one, mistakes) for one in zip(cells, lines, strict=True)])
        self.parts.append(values)

    def _number(self, cell: str, line: int, mistakes: Mistakes) -> float:
        if cell.casefold() in MISSING:
            mistakes.add(MISSED, line, self.name, cell)
            return 0.0
        try:
            value = math.nan if "_" in cell else float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            mistakes.add(NO_NUMBER + self.words if math.isnan(value) else NOT_FINITE, line, self.name, cell)
            return 0.0
        return value

    def inputs(self) -> Array:
        """The column (N, 1) float64."""
        values: Array = np.concatenate(self.parts)[:, None]
        if math.isinf(self.low):
            return values
        scaled: Array = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        return scaled


@dataclass
class Categories:
    """A column of words, one input for each category; without `categories` those that occur, sorted."""

    name: str
    categories: tuple[str, ...] = ()
    parts: list[Array] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {category: number for number, category in enumerate(self.categories)}

    def add(self, cells: Sequence[str], lines: Sequence[int], mistakes: Mistakes) -> None:
        codes = np.array([self.known.get(cell, -1) for cell in cells], np.int64)
        for place in np.flatnonzero(codes < 0).tolist():
            cell, line = cells[place], lines[place]
            if cell.casefold() in MISSING:
                mistakes.add(MISSED_WORD if cell else MISSED, line, self.name, cell)
            elif self.categories:
                words = ", ".join(self.categories[:SHOWN]) + ", ..." * (len(self.categories) > SHOWN)
                mistakes.add(UNKNOWN.replace("{words}", words), line, self.name, cell)
            else:
                codes[place] = self.known.setdefault(cell, len(self.known))
        self.parts.append(codes)

    def spelled_twice(self) -> tuple[str, str] | None:
        """Two categories that are one number (1, 1.0), or one word but for its case; None where all differ."""
        found: dict[str, str] = {}
        for word in () if self.categories else self.known:
            same = word.casefold()
            if "." in word and _NUMBER.fullmatch(word):
                same = word.rstrip("0").rstrip(".")
            other = found.setdefault(same, word)
            if other != word:
                return other, word
        return None

    def codes(self) -> tuple[Array, tuple[str, ...]]:
        """The number of each row's category (N,) int64, and the categories: as listed, else sorted."""
        found = np.concatenate(self.parts)
        if self.categories:
            return found, self.categories
        order = in_order(self.known)
        places = np.empty(len(order), np.int64)
        places[[self.known[category] for category in order]] = np.arange(len(order))
        return places[found], tuple(order)

    def inputs(self) -> Array:
        """The indicators (N, categories) float64."""
        codes, categories = self.codes()
        indicators: Array = (codes[:, None] == np.arange(len(categories))).astype(np.float64)
        return indicators


Column = Numbers | Categories


def words(name: str, categories: str) -> Categories:
    """A column of the categories in a text, without spaces inside them.

    >>> words("sex", "Female Male").categories
    ('Female', 'Male')
    """
    return Categories(name, tuple(categories.split()))


def in_order(words: Iterable[str]) -> list[str]:
    """Words sorted as numbers where all of them are numbers, else as text.

    >>> in_order(["10", "9"]), in_order(["10", "9", "none"])
    (['9', '10'], ['10', '9', 'none'])
    """
    listed = sorted(words)
    try:
        return sorted(listed, key=float)
    except ValueError:
        return listed


def rows_of(lines: Iterable[str], delimiter: str) -> Iterator[Row]:
    """The rows of a table of text, cells without spaces around them; empty lines are left out.

    Raises DpbenchError for what is no table: a quotation mark that never ends, a cell longer than a cell may be.
    """
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise DpbenchError(f"line {reader.line_num}: {error}; expected cells separated by {delimiter!r}") from error


def fill(
    rows: Iterable[Row], columns: Sequence[tuple[int, Column]], width: int, mistakes: Mistakes, most: float = math.inf
) -> int:
    """Put the cells of rows into columns, each with its position in a row of `width` cells; the number of rows.

    Raises DpbenchError for a row of another length, and for more than `most` cells.
    """
    count = 0
    lines: list[int] = []
    kept: list[Sequence[str]] = []
    at_once = max(1, min(ROWS, CELLS // width))
    for line, cells in rows:
        if len(cells) != width:
            raise DpbenchError(f"line {line}: has {len(cells)} cells; expected {width}, one for each column")
        if (count + len(kept) + 1) * width > most:
            raise DpbenchError(
                f"line {line}: there are more than {most:,} cells up to here; take fewer rows or columns"
            )
        lines.append(line)
        kept.append(cells)
        if len(kept) == at_once:
            count += _put(kept, lines, columns, mistakes)
            lines, kept = [], []
    return count + (_put(kept, lines, columns, mistakes) if kept else 0)


def _put(
    kept: Sequence[Sequence[str]], lines: Sequence[int], columns: Sequence[tuple[int, Column]], mistakes: Mistakes
) -> int:
    cells = list(zip(*kept, strict=True))
    for position, column in columns:
        column.add(cells[position], lines, mistakes)
    return len(kept)


def joined(columns: Iterable[Column], record_norm: float = math.inf) -> Array:
    """The inputs of columns side by side (N, D) float32; a record longer than `record_norm` (L2) is shortened to it."""
    inputs = np.concatenate([column.inputs() for column in columns], axis=1)
    return shortened(inputs, record_norm)


def shortened(inputs: Array, record_norm: float = 1.0) -> Array:
    """Records (N, D) as float32, each longer one shortened to `record_norm` (L2).

    >>> shortened(np.array([[3.0, 4.0], [0.0, 0.5]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.5]]
    """
    if math.isfinite(record_norm):
        with np.errstate(over="ignore"):  # a norm near 0 leaves zeros
            inputs = inputs / np.maximum(lengths(inputs) / record_norm, 1.0)[:, None]
    with np.errstate(over="ignore"):  # from_arrays reports what is infinite in float32
        found: Array = inputs.astype(np.float32)
    return found


def lengths(inputs: Array) -> Array:
    """The L2 norm of each record (N,), summed from the first input to the last, so that its bits are the same anywhere.

    >>> lengths(np.array([[3.0, 4.0]])).tolist()
    [5.0]
    """
    total = np.zeros(len(inputs))
    for column in inputs.T:
        total += column * column
    return np.sqrt(total)


def split(count: int, test: int, seed: int) -> tuple[Array, Array]:
    """The rows (0 to count − 1) of the training and of the test part, `test` of them, each in the order of the table.

    Test rows are those with the smallest of `count` 64-bit words of Philox with the key `seed`, a generator whose words
    are the same in every version of NumPy. The choice does not look at the data.

    >>> [len(rows) for rows in split(10, 3, seed=0)]
    [7, 3]
    """
    order = np.argsort(np.random.Philox(key=seed).random_raw(count), kind="stable")
    return np.sort(order[test:]), np.sort(order[:test])


def prepared(rows: Iterable[Row], columns: Sequence[Column], width: int, record_norm: float = math.inf) -> Array:
    """The inputs (N, D) float32 of the first `len(columns)` cells of rows of `width` cells.

    Raises DpbenchError for a cell that does not fit its column.

    >>> prepared([(1, ["5", "b", "yes"])], [Numbers("age", 0, 10), Categories("job", ("a", "b"))], 3).tolist()
    [[0.5, 0.0, 1.0]]
    """
    mistakes = Mistakes()
    fill(rows, list(enumerate(columns)), width, mistakes)
    if mistakes.found:
        raise DpbenchError(mistakes.sentence())
    return joined(columns, record_norm)
