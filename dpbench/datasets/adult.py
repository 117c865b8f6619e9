"""Adult: does a person earn more than 50,000 dollars a year, from the US census of 1994, in LIBSVM's binary form a9a.

Each of 123 features is 0 or 1: intervals of the six numbers, values of the eight categories (Platt 1998). The intervals
are quintiles of the records where a number allows it, which no ledger covers. A line is `label index:1 ...`, the label
+1 (class 1, above 50,000) or -1, the indices counted from 1.

Preparations, by the parameter `preparation`:

| | `bu2020` (default) | `bu2020_code` | `libsvm` |
| --- | --- | --- | --- |
| training records | 29,305 of the 32,561 in `a9a` | the first 29,305 in `a9a` | the 32,561 in `a9a` |
| test records | the other 3,256, drawn at random | its last 3,256 | the 16,281 in `a9a.t` |

bu2020 says that 10 % of the 32,561 examples are drawn at random. It names no seed: the draw is ours, the first 3,256 of
a random order (NumPy's RandomState(0), whose numbers never change). Its published code takes the last tenth of its file
instead; `bu2020_code` does so with `a9a`. Which tenth is tested moves an accuracy of 84 % by a standard error of 0.64
points, √(0.84·0.16/3256), more than the seeds do. Every part keeps the order of the file. Some records of the two parts
have equal features, as they do in the whole.

The SHA-256 of both files were computed from files with the md5 sums known for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dpbench.datasets._base import Array, Arrays, DatasetCorrupt, FileSource, RemoteFile, read_content

NUMERICS = 1

Preparation = Literal["bu2020", "bu2020_code", "libsvm"]
FEATURES = 123
HELD_OUT = 3_256

_PLACE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
TRAIN = RemoteFile(
    path="adult/a9a",
    urls=(f"{_PLACE}a9a",),
    sha256="f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    size=2_329_875,
)
TEST = RemoteFile(
    path="adult/a9a.t",
    urls=(f"{_PLACE}a9a.t",),
    sha256="1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    size=1_164_628,
)


@dataclass(frozen=True)
class AdultSource(FileSource):
    """Adult under one of its preparations; see the module.

    `shared_records` is the number of different training inputs that occur among the test inputs too.
    """

    preparation: Preparation
    files: tuple[RemoteFile, ...]
    train_size: int
    test_size: int
    sha256: str
    shared_records: int
    name: str = "adult"
    title: str = "Adult: income above 50,000 dollars, binary features of LIBSVM's a9a"
    classes: int = 2
    input_shape: tuple[int, ...] = (FEATURES,)
    tuned: str = "the published intervals of the six numbers are quantiles of the records"
    licence: str = "CC BY 4.0"
    citation: str = (
        "B. Becker, R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20; prepared by J. Platt,"
        " 1998, and published by C.-C. Chang, C.-J. Lin, LIBSVM, 2011"
    )
    url: str = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#a9a"
    real: bool = True

    def arrays(self, place: Path) -> Arrays:
        parts = [parse(read_content(self.name, file, place), self.name, file.path) for file in self.files]
        if self.preparation == "libsvm":
            return *parts[0], *parts[1]
        inputs, targets = parts[0]
        train, test = split(len(targets), HELD_OUT)
        if self.preparation == "bu2020_code":
            train, test = np.split(np.arange(len(targets)), [self.train_size])
        return inputs[train], targets[train], inputs[test], targets[test]


def parse(content: bytes, dataset: str, file: str) -> tuple[Array, Array]:
    """Features (N, 123) float32 and classes (N,) int64 of a file in LIBSVM's format.

    Raises DatasetCorrupt with the line.

    >>> inputs, targets = parse(b"-1 3:1 11:1\\n+1 1:1\\n", "adult", "a9a")
    >>> targets.tolist(), inputs.sum(1).tolist(), inputs[0, 2].item()
    ([0, 1], [2.0, 1.0], 1.0)
    """
    lines = content.split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    inputs, targets = np.zeros((len(lines), FEATURES), np.float32), np.zeros(len(lines), np.int64)
    for number, line in enumerate(lines):
        label, *pairs = line.split() or [b""]
        try:
            targets[number] = {b"+1": 1, b"-1": 0}[label]
            for pair in pairs:
                index, value = pair.split(b":")
                if value != b"1" or not 1 <= int(index) <= FEATURES:
                    raise ValueError
                inputs[number, int(index) - 1] = 1
        except (KeyError, ValueError):
            expected = f"+1 or -1, then index:1 with indices from 1 to {FEATURES}"
            advice = "the file is not the published one; replace it"
            found = line[:60].decode(errors="replace")
            raise DatasetCorrupt(dataset, file, f"line {number + 1}", expected, found, advice) from None
    return inputs, targets


def split(count: int, held_out: int) -> tuple[Array, Array]:
    """Places of the training and the test records, each ascending: the first `held_out` of a random order are tested.

    >>> [part.tolist() for part in split(6, 2)]
    [[0, 1, 3, 4], [2, 5]]
    """
    order = np.random.RandomState(0).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


_SOURCES: dict[str, AdultSource] = {
    "bu2020": AdultSource(
        "bu2020",
        (TRAIN,),
        32_561 - HELD_OUT,
        HELD_OUT,
        "bfd0a629c0c4e9f5b8e38c8a329ff08c6ef11fd3f610bc85039d9d0b11ff962b",
        891,
    ),
    "bu2020_code": AdultSource(
        "bu2020_code",
        (TRAIN,),
        32_561 - HELD_OUT,
        HELD_OUT,
        "a04fc59aa0546da0ba57f62a5564b0a9f60c341dae4197988122875d7b751d13",
        910,
    ),
    "libsvm": AdultSource(
        "libsvm",
        (TRAIN, TEST),
        32_561,
        16_281,
        "92b452f81dc1ad44cce77ac5a1b48b7d6eacf262289253ea5ded5568ce5b4c25",
        3383,
    ),
}


def dataset(*, preparation: Preparation = "bu2020") -> AdultSource:
    """Adult as a source. Raises ValueError for an unknown preparation.

    >>> dataset().train_size, dataset(preparation="libsvm").test_size
    (29305, 16281)
    """
    if preparation not in _SOURCES:
        raise ValueError(f"preparation = {preparation!r}: expected one of {', '.join(get_args(Preparation))}")
    return _SOURCES[preparation]
