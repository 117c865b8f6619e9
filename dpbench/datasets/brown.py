"""The Brown corpus: 500 American texts of 1961, about a million words, for next-word prediction; from `brown.zip`.

A line is a sentence of the corpus without its tags; what is a word, its number and a record: `_words.py`. It is the
public text of dplis2021's language task: a model is trained on it without privacy for a warm start, and the dictionary
of private texts (`next_word`) is made of its words, most common first.

| | printed (Section 5.1) | here |
| --- | --- | --- |
| dictionary | 36,743 words, all that occur twice or more | `words`: by default the 26,103 that do, of 42,396 |
| words before the next | 20 | `places`, 20 |
| what is a word | not stated | as in the published code of the setup that it cites |
| what is tested | not stated | every twentieth sentence, drawn |

No count of words gives 36,743 at two occurrences: with every capital and mark kept apart 30,498 occur twice. It is the
number of outputs in the published code of the setup that the paper follows (Kerrigan, Slack, Tuyls 2020), where they
are the words of a part of the corpus, however rare, and padding. `words: 36741` gives as many outputs.

The SHA-256 of the archive is that of one packaging by NLTK; what an archive in the folder has to be is its 500 texts,
whose common hash is pinned.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from dpbench.datasets._archive import tree_sha256
from dpbench.datasets._arrays import file_state
from dpbench.datasets._base import (
    Dataset,
    DatasetCorrupt,
    DatasetMissing,
    RemoteFile,
    data_folder,
    fetch_command,
    in_memory,
    sha256_of,
)
from dpbench.datasets._table import split
from dpbench.datasets._words import Line, WordSource, numbers_of, ranked, records, words_of
from dpbench.tasks import Task

NUMERICS = 1

TWICE, ALL_WORDS = 26_103, 42_396  # how many words occur twice or more, and at all
TESTED = 20  # of so many sentences one is tested

Words = Annotated[int, Field(ge=1, le=ALL_WORDS)]
Places = Annotated[int, Field(ge=1, le=1000)]


_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)  # the last: encrypted


@dataclass(frozen=True)
class CorpusFile(RemoteFile):
    """The archive; `texts_sha256` is `tree_sha256` of its texts."""

    texts_sha256: str = ""

    def pinned_sha256(self, found: Path) -> str:  # noqa: ARG002 (any packaging of the same texts)
        return self.texts_sha256

    def digest(self, found: Path) -> str:
        try:
            return tree_sha256(_members(found))
        except _UNREADABLE:
            return sha256_of(found)

    def texts(self, dataset: str, folder: Path) -> dict[str, bytes]:
        """The verified texts by their names. Raises DatasetMissing, or DatasetCorrupt with both hashes."""
        found = self.locate(folder)
        if found is None:
            raise DatasetMissing(dataset, [self], folder)
        again = f"get it again with: {fetch_command(dataset, folder)}"
        try:
            texts = _members(found)
        except _UNREADABLE as error:
            raise DatasetCorrupt(dataset, str(found), "content", "a whole zip archive", error, again) from error
        if (digest := tree_sha256(texts)) != self.texts_sha256:
            raise DatasetCorrupt(dataset, str(found), "SHA-256 of its texts", self.texts_sha256, digest, again)
        return texts


def _members(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if re.fullmatch(r"brown/c[a-r]\d\d", name)]
        return {name: opened.read(name) for name in sorted(names)}


FILE = CorpusFile(
    path="text/brown.zip",
    urls=("https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/brown.zip",),
    sha256="d90f7c00b7d26b6447cee1f044a94c75651f28ee75912be48e71f5dc4f7f1d4a",
    size=3_312_250,
    texts_sha256="f8985778d58653f2bf757df3162a58c1f53dc62d1ec3619cb2027fa08bbe71da",
)
LICENCE = "non-commercial use (NLTK's note on its package)"
CITATION = "W. N. Francis, H. Kučera, A standard corpus of present-day edited American English, 1964, revised 1979"


@dataclass(frozen=True)
class BrownSource(WordSource):
    """The sentences as records; see the module."""

    words: int
    places: int
    name: str = "brown"
    title: str = "Brown corpus: the next word of sentences in American English"
    files: tuple[RemoteFile, ...] = (FILE,)
    train_size: int = 939_314
    test_size: int = 48_947
    task: Task = "language_modelling"
    licence: str = LICENCE
    citation: str = CITATION
    url: str = "https://www.nltk.org/nltk_data/"
    real: bool = True

    @property
    def determined_by(self) -> Mapping[str, Any]:  # type: ignore[override]
        """What determines the records; `sha256` is its hash."""
        return {"texts": FILE.texts_sha256, "words": self.words, "places": self.places, "numerics": NUMERICS}

    def load(self, folder: Path | None = None) -> Dataset:
        """Inputs (N, places) float32, whole numbers from 0 to words + 1; targets (N,) int64; a few seconds.

        Raises DatasetMissing with the command that gets the file, DatasetCorrupt with both hashes.
        """
        import torch

        lines, ranking = corpus(data_folder(folder))
        numbers = numbers_of(ranking, self.words)
        parts = (records([lines[at] for at in part], numbers, self.places) for part in parts_of(len(lines)))
        return in_memory(self, *(torch.from_numpy(array) for part in parts for array in part))


def parts_of(sentences: int) -> tuple[Any, Any]:
    """The numbers of the training and of the test sentences."""
    return split(sentences, sentences // TESTED, seed=0)


def corpus(folder: Path) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """The sentences as words, those without any left out, and all words ranked.

    Raises DatasetMissing or DatasetCorrupt.
    """
    return _corpus(folder, file_state(folder / FILE.path))


@lru_cache(maxsize=1)
def _corpus(folder: Path, _state: tuple[int, int]) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    lines = []
    for text in FILE.texts("brown", folder).values():
        for tagged in text.decode().splitlines():
            sentence = " ".join(token.rpartition("/")[0] for token in tagged.split())
            if words := words_of(sentence):
                lines.append(words)
    return tuple(lines), tuple(ranked(lines))


def dataset(*, words: Words = TWICE, places: Places = 20) -> BrownSource:
    """The corpus as a source, with the `words` most common words and the `places` words before the next.

    >>> dataset().classes, dataset(words=36_741).classes
    (26105, 36743)
    """
    return BrownSource(words, places)
