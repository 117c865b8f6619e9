"""The idx format of MNIST and the datasets published in its shape: strict parser and source.

An idx file is: two zero bytes, a type byte (8 = unsigned byte), a byte with the number of dimensions, each dimension
as a big-endian 32-bit integer, then the values. Source: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of
handwritten digits", section "File formats".
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbench.datasets._base import Array, Arrays, DatasetCorrupt, FileSource, RemoteFile, read_content

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def parse_idx(content: bytes, shape: tuple[int, ...], *, dataset: str, file: str) -> Bytes:
    """The unsigned bytes of an idx file as a read-only array of exactly the given shape.

    `dataset` and `file` are the names for the message. Raises DatasetCorrupt when the magic number, a dimension or
    the length is not what the shape demands.

    >>> parse_idx(b"\\x00\\x00\\x08\\x01\\x00\\x00\\x00\\x02\\x07\\x09", (2,), dataset="d", file="f").tolist()
    [7, 9]
    """

    def expect(what: str, expected: object, found: object) -> None:
        if expected != found:
            raise DatasetCorrupt(dataset, file, what, expected, found, "the file is not the published one; replace it")

    magic = bytes([0, 0, 8, len(shape)])
    expect("magic number (the first four bytes)", magic.hex(), content[:4].hex())
    start = 4 + 4 * len(shape)
    if len(content) < start:
        expect("length in bytes", start + math.prod(shape), len(content))
    expect("dimensions", shape, struct.unpack(f">{len(shape)}I", content[4:start]))
    expect("length in bytes", start + math.prod(shape), len(content))
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def idx_files(
    folder: str, mirrors: tuple[str, ...], published: tuple[tuple[str, int], ...], unpacked: tuple[str, ...]
) -> tuple[RemoteFile, ...]:
    """The four files in the order training images, training labels, test images, test labels.

    `folder` is relative to the data folder; each mirror is a URL that ends with a slash; `published` holds SHA-256
    and size of each .gz, `unpacked` the SHA-256 of each unpacked file.
    """
    return tuple(
        RemoteFile(
            f"{folder}/{part}.gz",
            tuple(f"{mirror}{part}.gz" for mirror in mirrors),
            sha256,
            size,
            f"{folder}/{part}",
            raw,
        )
        for part, (sha256, size), raw in zip(_PARTS, published, unpacked, strict=True)
    )


@dataclass(frozen=True)
class IdxSource(FileSource):
    """Four idx files of grey images; pixels become value / 255 as float32 in [0, 1], without further normalisation.

    TensorFlow Privacy's MNIST tutorial scales in the same way. The mean and the deviation that torchvision's examples
    use are statistics of the private data that no ledger includes.
    """

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    sha256: str
    licence: str
    citation: str
    url: str
    train_size: int = 60_000
    test_size: int = 10_000
    classes: int = 10
    input_shape: tuple[int, ...] = (1, 28, 28)
    real: bool = True

    def arrays(self, place: Path) -> Arrays:
        train = self._part(place, self.files[0], self.files[1], self.train_size)
        return *train, *self._part(place, self.files[2], self.files[3], self.test_size)

    def _part(self, place: Path, images: RemoteFile, labels: RemoteFile, size: int) -> tuple[Array, Array]:
        pixels = self._values(place, images, (size, *self.input_shape[1:])).reshape(size, *self.input_shape)
        targets = self._values(place, labels, (size,))
        if (largest := int(targets.max(initial=0))) >= self.classes:
            raise DatasetCorrupt(
                self.name, labels.path, "labels", f"0 to {self.classes - 1}", largest, "replace the file"
            )
        # one correctly rounded division per pixel, so that the bits are the same on every machine
        return np.divide(pixels, np.float32(255), dtype=np.float32), targets.astype(np.int64)

    def _values(self, place: Path, file: RemoteFile, shape: tuple[int, ...]) -> Bytes:
        return parse_idx(read_content(self.name, file, place), shape, dataset=self.name, file=str(file.locate(place)))
