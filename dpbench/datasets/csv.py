"""Anybody's table, as comma-separated values: named columns, a record in each row, a class or a number to predict.

The first line names the columns. A column of `features` holds numbers unless `categorical` names it; then it becomes
one input for each category. What is left as the spec's own numbers and lists (`scale`, `categorical: {column: values}`,
`classes`) is public and costs no privacy: each record is prepared alone. What is left to the data (the categories of a
column, the classes of the target) depends on all records; ε does not cover it, and `tuned` says so in the report.
Nothing is standardised here: a mean and a deviation of the data would be releases. The preparation
`channel_statistics` (mechanism `normalised_sgd`) releases them with noise, and its events are in the ledger.

| parameter | meaning |
| --- | --- |
| file | the table, as text in UTF-8; a path from the spec's folder |
| target | the column of the class, or of the number |
| task | classification (the default), or regression: the target is a number |
| features | the columns of the inputs, in their order; by default all others |
| categorical | columns of words: a list, or a mapping from each to its values or to `from_data` |
| classes | the values of the target, in their order; by default those that occur, sorted |
| scale | a mapping from columns to [low, high]: (x − low) / (high − low), cut to [0, 1]; a numeric target may be one |
| record_norm | a record longer than this (L2) is shortened to it |
| test | the share of test records, or a column that says `train` or `test` |
| split_seed | which records are test records, if `test` is a share |
| delimiter | what stands between cells |
| real | false for a synthetic table |
"""

from __future__ import annotations

import codecs
import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dpbench.catalog import FilePath, suggestion
from dpbench.datasets._arrays import ArraysSource, file_state, from_arrays, read_own
from dpbench.datasets._base import Array
from dpbench.datasets._table import SHOWN, Categories, Column, Mistakes, Numbers, fill, joined, rows_of, split
from dpbench.errors import DpbenchError

NUMERICS = 1

MOST_BYTES = 1 << 28  # of a table, which is read into memory
MOST_NUMBERS = 1 << 26  # of the cells, and of the inputs: less than 2 GiB with all copies on the way
MOST_COLUMNS = 100_000
MOST_CLASSES = 1000
MUCH = 10  # an input larger than this is far beyond those that are scaled to [0, 1]
PARTS = ("train", "test")
_PIECE = 1 << 20  # bytes decoded at once

Word = str | int | float
Words = tuple[Word, ...]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def dataset(
    *,
    file: Annotated[str, FilePath()],
    target: str,
    features: tuple[str, ...] = (),
    categorical: tuple[str, ...] | Mapping[str, Words | Literal["from_data"]] = (),
    task: Literal["classification", "regression"] = "classification",
    classes: Words = (),
    scale: Mapping[str, tuple[float, float]] | Literal["none"] = "none",
    record_norm: Positive | Literal["none"] = "none",
    test: Annotated[float, Field(gt=0, lt=1)] | str = 0.2,
    split_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    delimiter: str = ",",
    real: bool = True,
) -> ArraysSource:
    """The table as a dataset: inputs (N, D) float32, targets (N,) int64, or float32 of a regression; the
    module has a table of the parameters.

    Raises DpbenchError with one sentence where the file is none, or no table, or a parameter does not fit it.
    """
    path = Path(file)
    options = {
        "target": target,
        "features": list(features),
        "categorical": dict(categorical) if isinstance(categorical, Mapping) else list(categorical),
        "task": task,
        "classes": list(classes),
        "scale": {} if scale == "none" else dict(scale),
        "record_norm": None if record_norm == "none" else record_norm,
        "test": test,
        "split_seed": split_seed,
        "delimiter": delimiter,
        "real": real,
    }
    return _made(str(path), file_state(path), json.dumps(options))


@lru_cache(maxsize=2)
def _made(file: str, _state: tuple[int, int], options: str) -> ArraysSource:
    path, given = Path(file), json.loads(options)
    content = read_own(path, MOST_BYTES)
    try:
        return _Table(content, **given).source(path.name)
    except DpbenchError as error:
        raise DpbenchError(f"{path.name}: {error}") from error


class _Table:
    """One reading of a table: its header, then its columns."""

    def __init__(self, content: bytes, *, delimiter: str, **options: Any) -> None:
        self.given = options
        if len(delimiter) != 1 or delimiter in '\r\n"':
            raise DpbenchError(f"delimiter = {delimiter!r}: expected one character, such as , or ;")
        self.rows = rows_of(_text(content), delimiter)
        self.header = self._header(delimiter)
        self.place = {name: place for place, name in enumerate(self.header)}
        self.split_column = options["test"] if isinstance(options["test"], str) else ""
        self.features = self._features()
        self.of_words = set(options["categorical"])
        self.columns = [self._column(name) for name in self.features]
        self.target = self._target(options["target"])

    def source(self, file: str) -> ArraysSource:
        """The two parts as arrays, hashed."""
        mistakes, width = Mistakes(), len(self.header)
        parts = Categories(self.split_column, PARTS)
        wanted = [(self.place[column.name], column) for column in (*self.columns, self.target)]
        wanted += [(self.place[self.split_column], parts)] if self.split_column else []
        count = fill(self.rows, wanted, width, mistakes, MOST_NUMBERS)
        if count == 0:
            raise DpbenchError("has a header and no row; expected one row for each record")
        if mistakes.found:
            raise DpbenchError(mistakes.sentence())
        self._spelled_twice()
        targets, classes = self._numbers() if isinstance(self.target, Numbers) else self._classes(self.target, count)
        self._constant()
        self._not_too_wide(count)
        train, test = self._parts(count, parts)
        if len(train) > 1 and (targets[train] == targets[train[0]]).all():
            same = "number" if isinstance(self.target, Numbers) else "class"
            raise DpbenchError(f"target = {self.target.name!r}: every training row has the same {same}")
        norm = self.given["record_norm"]
        inputs = joined(self.columns, math.inf if norm is None else norm)
        made = from_arrays(
            "csv",
            *(inputs[train], targets[train], inputs[test], targets[test]),
            real=self.given["real"],
            classes=classes,
            task=self.given["task"],
            title=f"The table {file}: {', '.join(self.features[:4])}{', ...' * (len(self.features) > 4)}"
            f" for {self.target.name}",
            tuned=self._tuned(),
        )
        return replace(made, warning=self._warning(train))

    def _header(self, delimiter: str) -> list[str]:
        first = next(self.rows, None)
        if first is None:
            raise DpbenchError("is empty; expected a line with the names of the columns, then one row for each record")
        names = list(first[1])
        if "" in names:
            raise DpbenchError(
                f"column {names.index('') + 1} has no name; name it in the first line"
                " (pandas writes such a column for its index: to_csv(..., index=False) does not)"
            )
        if len(names) > MOST_COLUMNS:
            raise DpbenchError(f"has {len(names):,} columns; expected at most {MOST_COLUMNS:,}")
        if twice := _twice(names):
            raise DpbenchError(f"the first line has {min(twice)!r} twice; expected different names of columns")
        if len(names) < 2:
            raise DpbenchError(
                f"has one column, {names[0]!r}; expected cells separated by {delimiter!r} (the parameter delimiter)"
            )
        return names

    def _all_known(self) -> None:
        """Raises DpbenchError that names every column that the table does not have."""
        given = self.given
        named = [("target", given["target"]), *[("test", self.split_column)] * bool(self.split_column)]
        named += [(parameter, name) for parameter in ("features", "categorical", "scale") for name in given[parameter]]
        wrong: dict[str, str] = {}
        for parameter, name in named:
            if name not in self.place:
                wrong.setdefault(name, f"{parameter} = {name!r}: the table has no such column")
        if wrong:
            shown = [text + suggestion(name, self.header) for name, text in islice(wrong.items(), SHOWN)]
            raise DpbenchError("; ".join(shown) + f"; and {len(wrong) - SHOWN:,} more" * (len(wrong) > SHOWN))

    def _features(self) -> list[str]:
        self._all_known()
        target = self.given["target"]
        kept_out = {target: "the target", self.split_column: "the column of the split"}
        named: list[str] = self.given["features"] or [name for name in self.header if name not in kept_out]
        twice = set(_twice(named))
        for name in named:
            if name in kept_out or name in twice:
                why = f"is {kept_out[name]}" if name in kept_out else "is named twice"
                raise DpbenchError(f"features = {name!r}: {why}; expected each column of the inputs once")
        if target == self.split_column or not named:
            raise DpbenchError(f"target = {target!r}: is the column of the split, or the only one; expected another")
        inputs = set(named)
        for parameter in ("categorical", "scale"):
            scaled = {target} if parameter == "scale" and self.given["task"] == "regression" else set()
            for name in self.given[parameter]:
                if name == target and name not in scaled:
                    also = " (bounds of a target are for task: regression)" if parameter == "scale" else ""
                    raise DpbenchError(f"{parameter} = {name!r}: is the target; expected columns of the inputs{also}")
                if name not in inputs | scaled:
                    raise DpbenchError(f"{parameter} = {name!r}: is no column of the inputs; add it to features")
        return named

    def _target(self, name: str) -> Column:
        classes = self._words("classes", self.given["classes"])
        if self.given["task"] != "regression":
            return Categories(name, classes)
        if classes:
            raise DpbenchError("classes: a regression has none; leave them out, or the task")
        return replace(self._bounded(name), words="a target of words is for classification: delete task: regression")

    def _column(self, name: str) -> Column:
        categorical = self.given["categorical"]
        if name in self.of_words:
            if name in self.given["scale"]:
                raise DpbenchError(f"scale = {name!r}: is categorical; expected a column of numbers")
            values = categorical[name] if isinstance(categorical, Mapping) else "from_data"
            listed = () if values == "from_data" else self._words(f"categorical: {name}", values)
            if values != "from_data" and not listed:
                raise DpbenchError(f"categorical: {name}: has no values; list them, or write from_data")
            return Categories(name, listed)
        return self._bounded(name)

    def _bounded(self, name: str) -> Numbers:
        bounds = self.given["scale"].get(name)
        if bounds is None:
            return Numbers(name)
        low, high = bounds
        if not (math.isfinite(high - low) and low < high):
            raise DpbenchError(f"scale = {name!r}: [{low}, {high}]: expected two finite numbers, the lower one first")
        return Numbers(name, low, high)

    def _words(self, parameter: str, values: Sequence[Word]) -> tuple[str, ...]:
        words = tuple(str(value) for value in values)
        if twice := _twice(words):
            raise DpbenchError(f"{parameter}: has {twice[0]!r} twice; expected different values")
        return words

    def _parts(self, count: int, parts: Categories) -> tuple[Array, Array]:
        if self.split_column:
            codes, _ = parts.codes()
            train, test = np.flatnonzero(codes == 0), np.flatnonzero(codes == 1)
        else:
            train, test = split(count, round(self.given["test"] * count), self.given["split_seed"])
        for part, rows in zip(PARTS, (train, test), strict=True):
            if not len(rows):
                raise DpbenchError(f"test = {self.given['test']!r}: leaves no {part} record of {count:,}")
        return train, test

    def _classes(self, target: Categories, count: int) -> tuple[Array, int]:
        targets, classes = target.codes()
        name, found = target.name, len(np.unique(targets))
        if found < 2:
            only = classes[targets[0]]
            raise DpbenchError(f"target = {name!r}: every row has the class {only!r}; expected two or more")
        if not target.categories and (found > MOST_CLASSES or (found > 20 and found > count / 2)):
            raise DpbenchError(
                f"target = {name!r}: has {found:,} different values in {count:,} rows, such as {classes[0]!r};"
                " expected classes: choose another column, list them under classes, or write task: regression for a"
                " column of numbers"
            )
        return targets, len(classes)

    def _numbers(self) -> tuple[Array, None]:
        targets = self.target.inputs()[:, 0]
        if (targets == targets[0]).all():
            within = " within its bounds under scale" if self.target.name in self.given["scale"] else ""
            raise DpbenchError(f"target = {self.target.name!r}: every row has the same number{within}")
        return targets, None

    def _spelled_twice(self) -> None:
        """Raises DpbenchError for a category or class that is written in two ways."""
        for column in (*self.columns, self.target):
            if isinstance(column, Categories) and (pair := column.spelled_twice()) is not None:
                what = "classes" if column is self.target else "categorical"
                raise DpbenchError(
                    f"column {column.name!r}: {pair[0]!r} and {pair[1]!r} would be two {_KINDS[what]}; write one of"
                    f" them throughout, or list all values under {what}, in quotation marks, if they differ"
                )

    def _constant(self) -> None:
        """Raises DpbenchError with all columns that have one value."""
        found = []
        for column in self.columns:
            values = column.inputs() if isinstance(column, Numbers) else column.codes()[0]
            if not (values == values[0]).all():
                continue
            what = ": it tells no record from another; leave it out of features"
            if isinstance(column, Numbers) and not (np.concatenate(column.parts) == column.parts[0][0]).all():
                what = f" within its bounds {self.given['scale'][column.name]}: give wider ones, or leave it out"
            found.append(f"column {column.name!r} is constant{what}")
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise DpbenchError("; ".join(found[:SHOWN]) + more)

    def _not_too_wide(self, count: int) -> None:
        """Raises DpbenchError where the categories make more inputs than memory holds."""
        widths = {column.name: len(column.known) for column in self.columns if isinstance(column, Categories)}
        inputs = sum(widths.values()) + len(self.columns) - len(widths)
        if count * inputs > MOST_NUMBERS:
            widest = max(widths, key=lambda name: widths[name], default=self.features[0])
            raise DpbenchError(
                f"{count:,} records of {inputs:,} inputs are too many; leave out columns such as {widest!r}, which has"
                f" {widths.get(widest, 1):,} categories"
            )

    def _unseen(self, train: Array) -> str:
        """The classes that no training row has."""
        if not isinstance(self.target, Categories):
            return ""
        codes, classes = self.target.codes()
        none = [repr(one) for number, one in enumerate(classes) if not (codes[train] == number).any()]
        return f"no training row has the class {', '.join(none[:SHOWN])}{', ...' * (len(none) > SHOWN)}" if none else ""

    def _warning(self, train: Array) -> str:
        """Columns that hide the others, because every record is clipped to one length, and the like."""
        wide = [one for one in self.columns if isinstance(one, Numbers) and math.isinf(one.low)]
        wide = [one for one in wide if np.abs(one.inputs()).max() > MUCH]
        many = [one for one in self.columns if isinstance(one, Categories) and not one.categories]
        many = [one for one in many if len(one.known) > sum(map(len, one.parts)) / 2]
        parts = [f"numbers beyond {MUCH} without bounds under scale hide the others: {_names(wide)}"] if wide else []
        far = isinstance(self.target, Numbers) and np.abs(self.target.inputs()).max() > MUCH
        parts += [f"the target {self.target.name!r} exceeds {MUCH}: give its bounds under scale"] if far else []
        if isinstance(self.target, Categories) and not self.target.categories:
            classes = self.target.known
            if len(classes) > 20 and all(re.fullmatch(r"-?\d+(\.\d*)?", word) for word in classes):
                numbers = f"each of the {len(classes)} numbers of {self.target.name!r} is a class"
                parts.append(f"{numbers}; task: regression predicts a number")
        codes = {one.name: one.inputs() if isinstance(one, Numbers) else one.codes()[0] for one in self.columns}
        same = [one for one in self.columns if (codes[one.name][train] == codes[one.name][train[0]]).all()]
        parts += [unseen] if (unseen := self._unseen(train)) else []
        parts += [f"columns with one value in all training rows teach nothing: {_names(same)}"] if same else []
        parts += [f"columns with a category for almost every record tell them apart: {_names(many)}"] if many else []
        return "; ".join(parts)

    def _tuned(self) -> str:
        found = [one.name for one in self.columns if isinstance(one, Categories) and not one.categories]
        parts = [f"the categories of {', '.join(found)}"] if found else []
        unlisted = isinstance(self.target, Categories) and not self.target.categories
        parts += [f"the classes of {self.target.name}"] if unlisted else []
        return f"{' and '.join(parts)} are those that occur in the table" if parts else ""


_KINDS = {"classes": "classes", "categorical": "categories"}


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(repr(one.name) for one in columns)


def _twice(words: Sequence[str]) -> list[str]:
    """What occurs more than once, in the order of the first."""
    return [word for word, count in Counter(words).items() if count > 1]


def _text(content: bytes) -> io.TextIOWrapper:
    """The lines of a file; it is decoded piece by piece, since a text of its length takes several times its bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(content), _PIECE):
        kept = len(decoder.getstate()[0])  # bytes of a letter that the last piece has cut
        try:
            decoder.decode(content[start : start + _PIECE], final=start + _PIECE >= len(content))
        except UnicodeDecodeError as error:
            place = start - kept + error.start
            raise DpbenchError(f"is not text in UTF-8 (byte {place}); save it as CSV in UTF-8") from error
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
