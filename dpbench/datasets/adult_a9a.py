"""Adult as LIBSVM's a9a: 123 indicators of the census, is the income above 50,000 dollars a year?

J. Platt's preparation (1998) of UCI's Adult, with its published split: numbers are in fifths, each an indicator, and
categories one indicator each, so that a record has 123 inputs, at most 14 of them 1. Every record is then shortened to
length 1 (L2), as methods that need bounded inputs want; with 14 indicators they are 1/sqrt(14), else a little more. The
fifths were taken from the data when they were published; what they reveal is in no ε.

For the 45,222 records that pidp2021 uses see `adult_complete`, which are UCI's own columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import Array, Arrays, DatasetCorrupt, FileSource, RemoteFile, read_content
from dpbench.datasets._table import shortened

NUMERICS = 1

INPUTS = 123
_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
TRAIN = RemoteFile(
    path="adult/a9a",
    urls=(f"{_PAGE}/binary/a9a",),
    sha256="f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    size=2_329_875,
)
TEST = RemoteFile(
    path="adult/a9a.t",
    urls=(f"{_PAGE}/binary/a9a.t",),
    sha256="1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    size=1_164_628,
)


@dataclass(frozen=True)
class AdultA9aSource(FileSource):
    """Adult as a9a; see the module."""

    name: str = "adult_a9a"
    title: str = "Adult (census income) as LIBSVM's a9a, records of length 1"
    files: tuple[RemoteFile, ...] = (TRAIN, TEST)
    train_size: int = 32_561
    test_size: int = 16_281
    classes: int = 2
    input_shape: tuple[int, ...] = (INPUTS,)
    sha256: str = "9d83974102afcb5c7b0c2cd3b9c768215baceb2aea4e35566da83b7fde9b3da5"
    licence: str = "CC BY 4.0 (UCI Adult)"
    citation: str = (
        "B. Becker, R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20; C.-C. Chang,"
        " C.-J. Lin, LIBSVM: a library for support vector machines, ACM TIST 2(3), 2011"
    )
    url: str = f"{_PAGE}/binary.html#a9a"
    real: bool = True
    shared_records: int = 3_383  # test records that are equal to a training record, each once

    def arrays(self, place: Path) -> Arrays:
        parts = [parse_libsvm(read_content(self.name, file, place), INPUTS, self.name) for file in self.files]
        (train_inputs, train_targets), (test_inputs, test_targets) = parts
        return shortened(train_inputs), train_targets, shortened(test_inputs), test_targets


def parse_libsvm(content: bytes, inputs: int, dataset: str) -> tuple[Array, Array]:
    """Values (N, inputs) float64 and classes (N,) int64 of lines such as `-1 3:1 11:0.5`.

    Class 1 is +1, and positions count from 1. Raises DatasetCorrupt for another line.

    >>> [part.tolist() for part in parse_libsvm(b"+1 2:1 \\n-1 1:0.5\\n", 2, "demo")]
    [[[0.0, 1.0], [0.5, 0.0]], [1, 0]]
    """
    lines = content.decode("ascii", errors="replace").splitlines()
    values, targets = np.zeros((len(lines), inputs)), np.empty(len(lines), np.int64)
    for number, line in enumerate(lines):
        label, *pairs = line.split() or [""]
        try:
            targets[number] = {"-1": 0, "+1": 1, "1": 1}[label]
            for pair in pairs:
                place, _, value = pair.partition(":")
                if not 1 <= int(place) <= inputs:
                    raise ValueError(f"position {place}")
                values[number, int(place) - 1] = float(value)
        except (KeyError, ValueError) as error:
            expected = f"-1 or +1, then pairs of a position from 1 to {inputs} and a value"
            raise DatasetCorrupt(dataset, f"line {number + 1}", "content", expected, error, "get it again") from error
    return values, targets


dataset = AdultA9aSource()
