"""Street View House Numbers: cropped digits of house numbers, 32 x 32 colour pixels, as MATLAB files (`*_32x32.mat`).

The published split: 73,257 training and 26,032 test records; 531,131 more, easier ones in `extra_32x32.mat`, which
`extra: true` puts behind the training records (as the PATE papers train their teachers; 7.4 GB as float32). Pixels are
value / 255 as float32 in [0, 1]. The files call the digit 0 class 10; here it is class 0.

The files were not at hand. Their SHA-256 are those that several projects publish, and `sha256` names them and this
preparation, from which the bits follow (each value is divided once). How many test records are training records is not
known here.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbench.datasets._base import (
    Array,
    Dataset,
    DatasetCorrupt,
    DatasetMissing,
    FileSource,
    RemoteFile,
    data_folder,
    in_memory,
    read_content,
)

NUMERICS = 1

PAGE = "http://ufldl.stanford.edu/housenumbers"
TRAIN = RemoteFile(
    path="svhn/train_32x32.mat",
    urls=(f"{PAGE}/train_32x32.mat",),
    sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    size=182_040_794,
)
TEST = RemoteFile(
    path="svhn/test_32x32.mat",
    urls=(f"{PAGE}/test_32x32.mat",),
    sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    size=64_275_384,
)
EXTRA = RemoteFile(
    path="svhn/extra_32x32.mat",
    urls=(f"{PAGE}/extra_32x32.mat",),
    sha256="a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    size=1_329_278_602,
)


@dataclass(frozen=True)
class SvhnSource(FileSource):
    """The house numbers; see the module."""

    files: tuple[RemoteFile, ...] = (TRAIN, TEST)  # the test records second
    train_size: int = 73_257
    name: str = "svhn"
    title: str = "Street View House Numbers, colour pictures of ten digits"
    test_size: int = 26_032
    classes: int = 10
    input_shape: tuple[int, ...] = (3, 32, 32)
    licence: str = "no formal licence; for non-commercial use only"
    citation: str = (
        "Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng, Reading digits in natural images with"
        " unsupervised feature learning, NIPS workshop on deep learning, 2011"
    )
    url: str = f"{PAGE}/"
    real: bool = True

    @property
    def determined_by(self) -> dict[str, Any]:
        """What determines the arrays; `sha256` is its hash."""
        return {"files": [file.sha256 for file in self.files], "pixels": "value / 255, float32", "numerics": NUMERICS}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.determined_by, sort_keys=True).encode()).hexdigest()

    def load(self, folder: Path | None = None) -> Dataset:
        """Read and verify the files: inputs (N, 3, 32, 32) float32 in [0, 1], targets (N,) int64.

        Raises DatasetMissing with the command that gets the files, DatasetCorrupt for another file or content.
        """
        import torch

        place = data_folder(folder)
        if absent := self.missing(place):
            raise DatasetMissing(self.name, absent, place)
        parts = [parse_mat(read_content(self.name, file, place), self.name, file.path) for file in self.files]
        test_inputs, test_targets = parts.pop(1)
        train_inputs, train_targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        sizes = (len(train_targets), len(test_targets))
        if sizes != (self.train_size, self.test_size):
            expected = (self.train_size, self.test_size)
            raise DatasetCorrupt(self.name, "the loaded data", "records", expected, sizes, "please report this")
        arrays = (train_inputs, train_targets, test_inputs, test_targets)
        return in_memory(self, *map(torch.from_numpy, arrays))


def parse_mat(content: bytes, dataset: str, file: str) -> tuple[Array, Array]:
    """Pixels (N, 3, 32, 32) float32 in [0, 1] and digits (N,) int64 of one file; X is (32, 32, 3, N), y is (N, 1).

    Raises DatasetCorrupt for what is no such file.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    advice = "the file is not the published one; replace it"
    try:
        found = loadmat(io.BytesIO(content), variable_names=["X", "y"])
        pixels, labels = np.asarray(found["X"]), np.asarray(found["y"]).ravel()
    except (MatReadError, KeyError, ValueError, TypeError, OSError, NotImplementedError, zlib.error) as error:
        raise DatasetCorrupt(dataset, file, "content", "a MATLAB file with X and y", error, advice) from error
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
        expected = f"{(32, 32, 3, len(labels))} of uint8"
        raise DatasetCorrupt(dataset, file, "X", expected, f"{pixels.shape} of {pixels.dtype}", advice)
    if labels.dtype.kind not in "iu" or not 1 <= int(labels.min(initial=1)) <= int(labels.max(initial=1)) <= 10:
        raise DatasetCorrupt(dataset, file, "y", "whole numbers from 1 to 10", f"others ({labels.dtype})", advice)
    pictures = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return np.divide(pictures, np.float32(255), dtype=np.float32), labels.astype(np.int64) % 10


def dataset(*, extra: bool = False) -> SvhnSource:
    """The source; with `extra`, the 531,131 further records stand behind the training records.

    >>> dataset(extra=True).train_size
    604388
    """
    return SvhnSource((TRAIN, TEST, EXTRA), 604_388) if extra else SvhnSource()
