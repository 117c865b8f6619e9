"""CIFAR-10: 60,000 colour pictures of ten kinds of things, 32 x 32 pixels, as `cifar-10-python.tar.gz` or unpacked.

The published split: 50,000 training records in five files, 10,000 test records in one. A file is a pickle of a
dictionary whose b"data" holds one row of 3,072 bytes per picture, all red pixels row by row, then green, then blue,
and whose b"labels" holds the classes.

Preprocessings, by the parameter `preprocessing`:
- `unit` (default): value / 255 as float32 in [0, 1]. For jl2021 and for Papernot et al. 2021. jl2021 says
  only that it uses neither augmentation nor pre-training: this scaling is ours.
- `imagenet`: of that, (value - mean) / deviation per channel with ImageNet's constants, means 0.485, 0.456, 0.406
  and deviations 0.229, 0.224, 0.225. Tramèr and Boneh 2021 do so before their scattering network (said by their
  published code, not by their text), and dpis2022 follows their steps. The constants are public and cost nothing.

The SHA-256 of the six unpacked files was computed from files whose md5 are those that torchvision publishes; the
SHA-256 of the archive is the one that Keras publishes, and was not computed here.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dpbench.datasets._archive import ArchiveFile
from dpbench.datasets._base import Array, Arrays, DatasetCorrupt, FileSource, RemoteFile

NUMERICS = 1

Preprocessing = Literal["unit", "imagenet"]

_BATCHES = (
    ("data_batch_1", "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
    ("data_batch_2", "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
    ("data_batch_3", "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
    ("data_batch_4", "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
    ("data_batch_5", "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
    ("test_batch", "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
)
_CONTENTS: dict[str, str] = {
    "unit": "6d963c762ca5783516e0167aaba2349b4f1d9403631b4055093e9bd5a42520a0",
    "imagenet": "44fe4956d73734277bff61f150accfeb4eaab36099305c48ade07ddf4fbc7cc0",
}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

ARCHIVE = ArchiveFile(
    path="cifar-10-python.tar.gz",
    urls=(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/cifar-10-python.tar.gz",
    ),
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    size=170_498_071,
    unpacked_path="cifar-10-batches-py",
    unpacked_sha256="d0c3655cee08cd03d0e0484a490b6bbc26de716e747fa2c5afdc886b105f0069",
    members="data_batch_[1-5]|test_batch",
    needed=tuple(name for name, _ in _BATCHES),
    pinned=_BATCHES,
)


@dataclass(frozen=True)
class Cifar10Source(FileSource):
    """CIFAR-10 under one of its preprocessings; see the module."""

    preprocessing: Preprocessing
    sha256: str
    name: str = "cifar10"
    title: str = "CIFAR-10 colour pictures of ten classes"
    files: tuple[RemoteFile, ...] = (ARCHIVE,)
    train_size: int = 50_000
    test_size: int = 10_000
    classes: int = 10
    input_shape: tuple[int, ...] = (3, 32, 32)
    licence: str = "no formal licence; free for research"
    citation: str = (
        "A. Krizhevsky, Learning multiple layers of features from tiny images, technical report, University of"
        " Toronto, 2009"
    )
    url: str = "https://www.cs.toronto.edu/~kriz/cifar.html"
    real: bool = True

    def arrays(self, place: Path) -> Arrays:
        contents = ARCHIVE.contents(self.name, place)
        parts = [parse_batch(content, dataset=self.name, file=name) for name, content in contents.items()]
        pixels, targets = (np.concatenate(arrays) for arrays in zip(*parts[:5], strict=True))
        return scale(pixels, self.preprocessing), targets, scale(parts[5][0], self.preprocessing), parts[5][1]


class _ArraysOnly(pickle.Unpickler):
    """Makes NumPy arrays and plain values, and refuses every other name, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module.split(".")[0] != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[name]


def parse_batch(content: bytes, *, dataset: str, file: str) -> tuple[Array, Array]:
    """Pixels (N, 3, 32, 32) uint8 and labels (N,) int64 of one file; raises DatasetCorrupt with what is wrong."""
    advice = "the file is not the published one; replace it"
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DatasetCorrupt(dataset, file, "content", "a pickled dictionary of arrays", error, advice) from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3072):
        expected = f"{(len(labels), 3072)} of uint8"
        raise DatasetCorrupt(dataset, file, "data", expected, f"{pixels.shape} of {pixels.dtype}", advice)
    if labels.dtype.kind not in "iu" or not 0 <= int(labels.min(initial=0)) <= int(labels.max(initial=0)) <= 9:
        raise DatasetCorrupt(dataset, file, "labels", "integers from 0 to 9", f"others ({labels.dtype})", advice)
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def scale(pixels: Array, preprocessing: Preprocessing) -> Array:
    """Pixels 0..255 (N, 3, H, W) as float32, each operation rounded once, so that the bits are the same everywhere.

    >>> scale(np.full((1, 3, 1, 1), 255, np.uint8), "unit").ravel().tolist()
    [1.0, 1.0, 1.0]
    """
    values: Array = np.divide(pixels, np.float32(255), dtype=np.float32)
    if preprocessing == "imagenet":
        shape = (1, 3, 1, 1)
        values -= np.array(_MEAN, np.float32).reshape(shape)
        values /= np.array(_DEVIATION, np.float32).reshape(shape)
    return values


def dataset(*, preprocessing: Preprocessing = "unit") -> Cifar10Source:
    """CIFAR-10 as a source. Raises ValueError for an unknown preprocessing.

    >>> dataset().input_shape
    (3, 32, 32)
    """
    if preprocessing not in _CONTENTS:
        raise ValueError(f"preprocessing = {preprocessing!r}: expected one of {', '.join(get_args(Preprocessing))}")
    return Cifar10Source(preprocessing, _CONTENTS[preprocessing])
