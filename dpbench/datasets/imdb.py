"""IMDb: 50,000 film reviews, good or bad, as `aclImdb_v1.tar.gz` or unpacked, turned into numbers of words.

The published split: 25,000 training and 25,000 test reviews, half of each good (class 1), of disjoint sets of films.
Records stand in the order of their paths. Some reviews occur twice, a few in both parts; they stay, as published.

Preprocessings, by the parameter `preprocessing`; inputs are whole numbers as float32:

| | `dpis2022` (default) | `jl2021` |
| --- | --- | --- |
| words | Keras's: ASCII lower case, cut at blanks and !"#$%&()*+,-./:;<=>?@[\\]^_`{|}~ | subwords, `_subwords.py` |
| numbers | 0 padding, 1 start, 2 rare, then 3 + rank by count, below 20,000 | 0 padding, 8,185 in all |
| places | 80 | 150 |
| printed | Section 5.2: 20,000 most common words, padded to 80 | Section 3.3: 8k vocabulary, zero-padded to 150 |
| not stated, ours | zeros in front and the last 80 words kept | zeros in front and the last 150 subwords kept |

`bu2020` is `dpis2022` with numbers below 10,000 and 256 places, as its Section 4.1 prints and its published code does.
That code gives rare words the number 2, as Keras does, where the text says that they are discarded.

The choices not stated are the defaults of Keras's pad_sequences, and dpis2022's are those of its example for this
dataset. The ranks are those that Keras publishes; with them the reviews' lengths are those of Keras's own copy (mean
238.71364 words in training and 230.8042 in testing with the start), to the last digit; the order of records differs.
jl2021 names no vocabulary: its printed parameter count demands 8,185 numbers, which is the size of the subword
vocabulary in the tutorial that it cites. The rule of that library gives exactly this size on these texts, and the
numbers that the tutorial prints for its example sentence.

Both vocabularies depend on the training reviews; the papers do not account for that, and neither does the ledger.

The SHA-256 of the archive is that of TensorFlow Datasets; those of the unpacked reviews and of the word index were
computed here, the latter from a file with the md5 that Keras publishes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dpbench.datasets._archive import ArchiveFile
from dpbench.datasets._base import Array, Arrays, DatasetCorrupt, FileSource, RemoteFile, read_content
from dpbench.datasets._subwords import SubwordEncoder, build_vocabulary

NUMERICS = 1

Preprocessing = Literal["dpis2022", "jl2021", "bu2020"]
Encode = Callable[[str], list[int]]

LEAST_COUNT = 186
"""The least count of a subword, at which the library's search for about 2^13 numbers ends (see `_subwords.py`)."""

ARCHIVE = ArchiveFile(
    path="aclImdb_v1.tar.gz",
    urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    size=84_125_825,
    unpacked_path="aclImdb",
    unpacked_sha256="95da7b54fc4225d19db775308b48b77706fc1608aedce6fb188e2ac5a38757ef",
    members=r"(train|test)/(neg|pos)/\d+_\d+\.txt",
    needed=("train/neg", "train/pos", "test/neg", "test/pos"),
)
WORD_INDEX = RemoteFile(
    path="aclImdb/imdb_word_index.json",
    urls=("https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb_word_index.json",),
    sha256="027313fe9a320280f3bf0fac5baf58c4a683cf39a7ed9c3d3d3912bde4284cf6",
    size=1_641_221,
)


@dataclass(frozen=True)
class ImdbSource(FileSource):
    """The IMDb reviews under one of their preprocessings; see the module. Loading takes ten seconds, subwords a minute.

    `words` is the size of the vocabulary: inputs are whole numbers from 0 to words - 1. `shared_records` is the number
    of different training inputs that occur among the test inputs too.
    """

    preprocessing: Preprocessing
    files: tuple[RemoteFile, ...]
    input_shape: tuple[int, ...]
    words: int
    sha256: str
    shared_records: int = 123
    name: str = "imdb"
    title: str = "IMDb film reviews, good or bad"
    train_size: int = 25_000
    test_size: int = 25_000
    classes: int = 2
    licence: str = "no formal licence; free for research (the word index: Apache 2.0)"
    tuned: str = "the vocabulary is that of the training reviews"
    citation: str = (
        "A. L. Maas, R. E. Daly, P. T. Pham, D. Huang, A. Y. Ng, C. Potts, Learning word vectors for sentiment"
        " analysis, ACL 2011"
    )
    url: str = "https://ai.stanford.edu/~amaas/data/sentiment/"
    real: bool = True

    def arrays(self, place: Path) -> Arrays:
        texts = self._texts(ARCHIVE.contents(self.name, place))
        if self.preprocessing != "jl2021":
            encode = _keras(json.loads(read_content(self.name, WORD_INDEX, place)), self.words)
        else:
            encode = _subwords((text for path, text in texts.items() if path.startswith("train/")), self)
        places = self.input_shape[0]
        return *_part(texts, "train/", encode, places), *_part(texts, "test/", encode, places)

    def _texts(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        sizes = {part: sum(path.startswith(part) for path in contents) for part in ("train/", "test/")}
        if sizes != {"train/": self.train_size, "test/": self.test_size}:
            counts = (self.train_size, self.test_size), tuple(sizes.values())
            raise DatasetCorrupt(self.name, ARCHIVE.unpacked_path, "reviews", *counts, "replace the archive")
        return {path: content.decode() for path, content in contents.items()}


def _part(texts: Mapping[str, str], part: str, encode: Encode, places: int) -> tuple[Array, Array]:
    mine = {path: text for path, text in texts.items() if path.startswith(part)}
    inputs = pad((encode(text) for text in mine.values()), places)
    return inputs, np.array([path.startswith(f"{part}pos/") for path in mine], np.int64)


def pad(records: Iterable[list[int]], places: int) -> Array:
    """Records as rows (N, places) float32: the last `places` numbers of each, zeros in front of what is shorter.

    >>> pad([[5], [1, 2, 3]], 2).tolist()
    [[0.0, 5.0], [2.0, 3.0]]
    """
    rows = [[0] * (places - len(record)) + record[-places:] for record in records]
    return np.array(rows, np.float32)


_SMALL = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})
_BLANKS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def _keras(ranks: Mapping[str, int], words: int) -> Encode:
    """Keras's encoding: words that the index does not hold are left out, those whose number is too large become 2."""

    def encode(text: str) -> list[int]:
        found = [ranks[word] + 3 for word in text.translate(_SMALL).translate(_BLANKS).split(" ") if word in ranks]
        return [1, *(number if number < words else 2 for number in found)]

    return encode


def _subwords(training: Iterable[str], source: ImdbSource) -> Encode:
    encoder = SubwordEncoder(build_vocabulary(training, LEAST_COUNT))
    if encoder.size != source.words:
        sizes = source.words, encoder.size
        raise DatasetCorrupt(source.name, "the subword vocabulary", "size", *sizes, "please report this")
    return lambda text: encoder.encode(text, last=source.input_shape[0])


_SOURCES: dict[str, ImdbSource] = {
    "dpis2022": ImdbSource(
        *("dpis2022", (ARCHIVE, WORD_INDEX), (80,), 20_000),
        sha256="e2d74b7d25ec06c208a3196f72e6a14cd811867ead0c3458ca35e77c2aad0e22",
    ),
    "bu2020": ImdbSource(
        *("bu2020", (ARCHIVE, WORD_INDEX), (256,), 10_000),
        sha256="b1ede249794863c7d8d08d2733ff3e1d76f6ff88618880dba03a7da844c1c315",
    ),
    "jl2021": ImdbSource(
        *("jl2021", (ARCHIVE,), (150,), 8_185),
        sha256="13c17eac481bb360987a2cbcbbe8588430fa878cf2b719c979b23f06566af8b3",
    ),
}


def dataset(*, preprocessing: Preprocessing = "dpis2022") -> ImdbSource:
    """The IMDb reviews as a source. Raises ValueError for an unknown preprocessing.

    >>> [dataset(preprocessing=name).input_shape for name in ("dpis2022", "jl2021", "bu2020")]
    [(80,), (150,), (256,)]
    """
    if preprocessing not in _SOURCES:
        raise ValueError(f"preprocessing = {preprocessing!r}: expected one of {', '.join(get_args(Preprocessing))}")
    return _SOURCES[preprocessing]
