"""Anybody's text for next-word prediction: a file with one line for each comment, message or sentence.

The dictionary is that of the Brown corpus (`brown`), which is public: none of these words decides what is in it, and a
word that it lacks is one number. What is a word, its number and a record: `_words.py`. Each line is prepared alone.

A record is one word to be predicted with the `places` words before it in its line. ε protects a record: so with
`per_line: 1`, the default, it protects a line, with `per_line: n` a line is a group of n records (`dpbench account
--help` has ε for groups), and with `per_line: all` one word and what stands before it, and a line as a group of as many
records as it has words. Test lines give all their records. If a person wrote several lines, ε protects each of them.

dplis2021 takes all. Its ε of 0.55 to 0.65 are below that of one step where its 10,000 comments are the records (claims
dplis2021.table-5-epsilon-*), and in the published code of the setup that it cites each word is a record. Why a record
has one word, and no line is a record with many: then one sum over a line's words would be clipped, its metric would
have to count words, and long lines would be clipped most; `per_line: 1` protects the same with the loss as it is.

| parameter | meaning |
| --- | --- |
| file | the text in UTF-8; a path from the spec's folder |
| test_file | another one with the test lines; by default a share of the lines is tested |
| test, split_seed | that share, and which lines it is; the choice looks at no word |
| per_line | how many records a training line gives at most, or `all` |
| places | how many words before the next are seen |
| words | the size of the dictionary |
| if_absent | the records, `{train: ..., test: ...}`, with which runs are planned and skipped while the file is absent |
| licence, real | told to readers; false for a synthetic text |
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dpbench.catalog import FilePath, Note
from dpbench.datasets import brown
from dpbench.datasets._arrays import AbsentSource, file_state, read_own
from dpbench.datasets._base import (
    Dataset,
    DatasetMissing,
    RemoteFile,
    data_folder,
    in_memory,
)
from dpbench.datasets._table import split
from dpbench.datasets._words import FIRST, MOST_NUMBERS, Line, WordSource, numbers_of, records, size_of, words_of
from dpbench.errors import DpbenchError
from dpbench.tasks import Task

NUMERICS = 1

MOST_BYTES = 1 << 28  # of a text, which is read into memory
Lines = tuple[Line, ...]
Sizes = Mapping[Literal["train", "test"], Annotated[int, Field(ge=1)]]


@dataclass(frozen=True, eq=False)
class NextWordSource(WordSource):
    """The lines of a user's text as words; the dictionary is read from the data folder. See the module."""

    train_lines: Lines = field(repr=False)
    test_lines: Lines = field(repr=False)
    places: int
    words: int
    per_line: int | None
    title: str
    licence: str
    real: bool
    determined_by: Mapping[str, Any]
    name: str = "next_word"
    files: tuple[RemoteFile, ...] = (brown.FILE,)
    files_of: str = "brown"
    task: Task = "language_modelling"
    citation: str = f"the text: not stated; its dictionary: {brown.CITATION}"
    url: str = ""

    @property
    def train_size(self) -> int:
        return size_of(self.train_lines, self.per_line)

    @property
    def test_size(self) -> int:
        return size_of(self.test_lines)

    @property
    def tuned(self) -> str:
        """The unit of privacy, where it is smaller than a line."""
        if self.per_line == 1:
            return ""
        many = "words it has" if self.per_line is None else f"{self.per_line} at most"
        return f"ε is for one word and those before it; it protects no line, which gives as many records as {many}"

    def load(self, folder: Path | None = None) -> Dataset:
        """Inputs (N, places) float32, whole numbers from 0 to words + 1; targets (N,) int64.

        Raises DatasetMissing or DatasetCorrupt of the Brown corpus.
        """
        import torch

        place = data_folder(folder)
        if absent := self.missing(place):
            raise DatasetMissing(self.files_of, absent, place)
        numbers = numbers_of(brown.corpus(place)[1], self.words)
        train = records(self.train_lines, numbers, self.places, self.per_line)
        test = records(self.test_lines, numbers, self.places)
        return in_memory(self, *map(torch.from_numpy, (*train, *test)))


def dataset(
    *,
    file: Annotated[str, FilePath()],
    test_file: Annotated[str, FilePath()] = "",
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    split_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    per_line: Annotated[int, Field(ge=1)] | Literal["all"] = 1,
    places: brown.Places = 20,
    words: brown.Words = brown.TWICE,
    if_absent: Annotated[Sizes | None, Note()] = None,
    licence: Annotated[str, Note()] = "not stated",
    real: bool = True,
) -> NextWordSource | AbsentSource:
    """The text as a source; the module has a table of the parameters.

    Raises DpbenchError with one sentence, which holds none of the text, where a file is absent, no text in UTF-8, or
    has too few or too many words.
    """
    paths = [Path(one) for one in (file, test_file) if one]
    if file == test_file:
        raise DpbenchError(
            f"test_file = {paths[0].name}: is the training file too; expected other lines, or no test_file"
        )
    lost = next((path for path in paths if not path.exists()), None)
    if if_absent is not None and lost is not None:
        if set(if_absent) != {"train", "test"}:
            raise DpbenchError("if_absent: expected both numbers of records, {train: ..., test: ...}")
        why = f"{lost.name} is not there: bring a text with one line for each record (docs/own_dataset.md)"
        sizes = if_absent["train"], if_absent["test"], words + FIRST
        return AbsentSource("next_word", f"The text {lost.name}", *sizes, (places,), why, "language_modelling")
    digests, train, tested = _read(tuple(map(str, paths)), tuple(map(file_state, paths)), test, split_seed)
    most = None if per_line == "all" else per_line
    count = size_of(train, most) + size_of(tested)
    if count * places > MOST_NUMBERS:
        raise DpbenchError(
            f"{paths[0].name}: {count:,} words to be predicted are too many; expected at most"
            f" {MOST_NUMBERS // places:,} with places = {places}: take fewer lines"
        )
    identity = {
        "text": digests,
        "split": "by file" if test_file else [test, split_seed],
        "per_line": per_line,
        "places": places,
        "words": words,
        "dictionary": brown.FILE.texts_sha256,
        "numerics": NUMERICS,
    }
    return NextWordSource(
        train,
        tested,
        places=places,
        words=words,
        per_line=most,
        title=f"The text {' and '.join(path.name for path in paths)}: the next word",
        licence=f"{licence}; dictionary: {brown.LICENCE}",
        real=real,
        determined_by=identity,
    )


@lru_cache(maxsize=2)
def _read(
    files: tuple[str, ...], _state: tuple[tuple[int, int], ...], test: float, split_seed: int
) -> tuple[list[str], Lines, Lines]:
    """The hashes of the files, and their training and test lines as words; lines without a word are left out."""
    found = [_lines(Path(file), "test_file" if at else "file") for at, file in enumerate(files)]
    digests = [digest for digest, _ in found]
    if len(found) == 2:
        return digests, found[0][1], found[1][1]
    lines, name = found[0][1], Path(files[0]).name
    train, tested = split(len(lines), round(test * len(lines)), split_seed)
    if not len(train) or not len(tested):
        part = "test" if len(train) else "training"
        raise DpbenchError(f"{name}: test = {test} leaves no {part} line of {len(lines):,}; expected more lines")
    return digests, tuple(lines[at] for at in train), tuple(lines[at] for at in tested)


def _lines(path: Path, parameter: str) -> tuple[str, Lines]:
    """The hash of a file, and its lines as words."""
    content = read_own(path, MOST_BYTES, parameter)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DpbenchError(f"{path.name}: line {line} is no text in UTF-8; save the file as UTF-8") from None
    lines = tuple(words for line in re.split(r"\r\n|\r|\n", text) if (words := words_of(line)))
    if not lines:
        raise DpbenchError(
            f"{path.name}: no line has a word of two or more letters; expected a text with one line for each record"
        )
    return hashlib.sha256(content).hexdigest(), lines
