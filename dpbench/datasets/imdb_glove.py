"""IMDb with every word as its GloVe vector: the output of the frozen embedding of dpis2022's network.

The reviews, their words and their numbers are those of `imdb` with `preprocessing: dpis2022`: 80 places, the 20,000
most common words. Every number becomes the vector of length 100 of its word (Section 5.2: an embedding of 100 units
with GloVe's parameters, frozen), so that the model needs no embedding layer, as the paper trains none.

The paper does not say which GloVe. Here: glove.6B (Wikipedia 2014 and Gigaword 5, lower case), the only published one
with vectors of length 100 for written text. Padding, start, rare words and words that GloVe lacks are zeros, as in
Keras's example for this dataset. GloVe was trained on other, public texts, so it costs no privacy.

The bits of the result follow from those of the three files, whose SHA-256 are pinned; `sha256` names those and this
preprocessing instead of the 1.6 GB that come out. The SHA-256 of the archive is the one that several projects pin.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import (
    Array,
    Dataset,
    DatasetCorrupt,
    DatasetMissing,
    FileSource,
    RemoteFile,
    data_folder,
    fetch_command,
    in_memory,
    read_content,
    sha256_of,
)
from dpbench.datasets.imdb import WORD_INDEX
from dpbench.datasets.imdb import dataset as imdb
from dpbench.errors import DpbenchError

NUMERICS = 1

MEMBER = "glove.6B.100d.txt"
WIDTH = 100
GLOVE = RemoteFile(
    path="glove/glove.6B.zip",
    urls=("https://nlp.stanford.edu/data/glove.6B.zip", "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip"),
    sha256="617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    size=862_182_613,
    unpacked_path=f"glove/{MEMBER}",
    unpacked_sha256="95dde4dfd627ab26608d33e76d1195ec059734bd29089ea52cadb08d07c64544",
)
_NUMBERS = imdb(preprocessing="dpis2022")
_IDENTITY = f"imdb_glove {NUMERICS} {_NUMBERS.sha256} {GLOVE.unpacked_sha256}"


@dataclass(frozen=True)
class ImdbGloveSource(FileSource):
    """The IMDb reviews as vectors; see the module."""

    name: str = "imdb_glove"
    title: str = "IMDb film reviews, good or bad, as GloVe vectors"
    files: tuple[RemoteFile, ...] = (*_NUMBERS.files, GLOVE)
    train_size: int = _NUMBERS.train_size
    test_size: int = _NUMBERS.test_size
    classes: int = _NUMBERS.classes
    input_shape: tuple[int, ...] = (*_NUMBERS.input_shape, WIDTH)
    sha256: str = hashlib.sha256(_IDENTITY.encode()).hexdigest()
    tuned: str = _NUMBERS.tuned
    licence: str = f"reviews: {_NUMBERS.licence}; GloVe: PDDL 1.0"
    citation: str = (
        f"{_NUMBERS.citation}; J. Pennington, R. Socher, C. D. Manning, GloVe: global vectors for word representation,"
        " EMNLP 2014"
    )
    url: str = "https://nlp.stanford.edu/projects/glove/"
    real: bool = True

    def load(self, folder: Path | None = None) -> Dataset:
        """Read and verify the files and look the words up: inputs (N, 80, 100) float32, targets (N,) int64; 1.6 GB.

        Raises DatasetMissing with the command that gets the files, DatasetCorrupt with both hashes.
        """
        import torch

        place = data_folder(folder)
        if absent := self.missing(place):
            raise DatasetMissing(self.name, absent, place)
        numbers = _NUMBERS.load(place)
        ranks = json.loads(read_content(self.name, WORD_INDEX, place))
        table = torch.from_numpy(vectors_of(ranks, _NUMBERS.words, _lines(self.name, place)))
        train, test = (table[inputs.long()] for inputs in (numbers.train_inputs, numbers.test_inputs))
        return in_memory(self, train, numbers.train_targets, test, numbers.test_targets)


def vectors_of(ranks: Mapping[str, int], words: int, lines: Iterable[bytes], width: int = WIDTH) -> Array:
    """The table (words, width) float32 of the vectors by word number 3 + rank; zeros where there is none.

    Raises DpbenchError for a line of a wanted word that is no vector of that width.

    >>> vectors_of({"the": 1, "film": 2}, 6, [b"film 0.5 -1\\n", b"unknown 1 1\\n"], width=2)[5].tolist()
    [0.5, -1.0]
    """
    numbers = {word.encode(): rank + 3 for word, rank in ranks.items() if rank + 3 < words}
    table = np.zeros((words, width), np.float32)
    for line in lines:
        word, *values = line.rstrip().split(b" ")
        if (number := numbers.get(word)) is not None:
            if len(values) != width:
                named = word.decode(errors="replace")
                raise DpbenchError(f"GloVe: {named!r} has {len(values)} numbers: expected {width}")
            table[number] = np.array(values, dtype=np.float64)
    return table


def _lines(dataset: str, folder: Path) -> list[bytes]:
    """The lines of the verified text, from the archive or unpacked."""
    found = GLOVE.locate(folder)
    if found is None:
        raise DatasetMissing(dataset, [GLOVE], folder)
    again = f"get it again with: {fetch_command(dataset, folder)}"
    if found != folder / GLOVE.path:
        return read_content(dataset, GLOVE, folder).splitlines()
    if (digest := sha256_of(found)) != GLOVE.sha256:
        raise DatasetCorrupt(dataset, str(found), "SHA-256", GLOVE.sha256, digest, again)
    try:
        with zipfile.ZipFile(found) as archive:
            return archive.read(MEMBER).splitlines()
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetCorrupt(dataset, str(found), "content", f"a whole archive with {MEMBER}", error, again) from error


def dataset() -> ImdbGloveSource:
    """The source.

    >>> dataset().input_shape
    (80, 100)
    """
    return ImdbGloveSource()
