"""Scattering features of a dataset of pictures: a fixed wavelet transform, independent of the data.

A picture of C channels and sides H × W becomes (K·C, H/2^J, W/2^J) features, K = 1 + JL + L²J(J − 1)/2 for depth J and
L angles: 81 for J = 2 and L = 8, the setting of Oyallon and Mallat 2015 and of Tramèr and Boneh 2021. MNIST gives
81×7×7, CIFAR-10 243×8×8 (channel c's features stand at 81c to 81c + 80, as in the latter's code). Each record is
transformed alone, so the features cost no privacy; standardising them does: `step/preparations/channel_statistics.py`.

The transform is kymatio's (Andreux et al., Kymatio: scattering transforms in Python, JMLR 2020), an optional package.
It is computed once, on the GPU where there is one (one core needs 4 ms a MNIST picture, 18 ms a CIFAR-10 one), and kept
beside the data in `scattering/` (MNIST 1.1 GB, CIFAR-10 3.7 GB), four .npy files and, written last, an index with their
SHA-256; they are mapped into memory when read, and a damaged file is named and computed again. Where the data folder
cannot be written it is kept in the user's cache. Features of data that come inside a package are computed anew every
time, and nothing is written.

`sha256` names what determines the features: the content hash of the source, depth, angles, and the transform's
version. It is not a hash of their bits, because the last bits of a Fourier transform differ between machines (about
1e-7 where features are about 0.02); a kept file is verified by a hash of its bits.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbench.atomic import clean_folder, write_text, writing
from dpbench.catalog import of_a_file
from dpbench.datasets._base import (
    Array,
    Dataset,
    DatasetCorrupt,
    DatasetMissing,
    DatasetSource,
    RemoteFile,
    data_folder,
    in_memory,
    sha256_of,
)
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from torch import Tensor

NUMERICS = 1

KYMATIO = "0.3"  # the version that computes the features
INSTALL = f"pip install 'kymatio=={KYMATIO}.*'"  # what the extra `scattering` asks for
PICTURES = 256  # at a time
PARTS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
INDEX = "features.json"


@dataclass(frozen=True)
class ScatteringSource:
    """The features of the pictures of `of`; see the module."""

    of: DatasetSource
    depth: int
    angles: int
    name: str = "scattering"

    # Facts that are those of the pictures; `files_of` is the dataset for `dpbench data fetch`.
    files, files_of = property(attrgetter("of.files")), property(attrgetter("of.name"))
    train_size, test_size = property(attrgetter("of.train_size")), property(attrgetter("of.test_size"))
    classes, real = property(attrgetter("of.classes")), property(attrgetter("of.real"))
    licence, url = property(attrgetter("of.licence")), property(attrgetter("of.url"))

    @property
    def title(self) -> str:
        return f"Scattering features (depth {self.depth}, {self.angles} angles) of {self.of.title}"

    @property
    def input_shape(self) -> tuple[int, ...]:
        channels, height, width = self.of.input_shape
        return channels * paths(self.depth, self.angles), height >> self.depth, width >> self.depth

    @property
    def determined_by(self) -> dict[str, Any]:
        """What determines the features; `sha256` is its hash."""
        return {
            "source": self.of.sha256,
            "depth": self.depth,
            "angles": self.angles,
            "transform": f"kymatio {KYMATIO} Scattering2D, order 2, float32",
            "numerics": NUMERICS,
        }

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.determined_by, sort_keys=True).encode()).hexdigest()

    @property
    def shared_records(self) -> int:
        """How many test records are training records, which the pictures' source declares."""
        return int(getattr(self.of, "shared_records", 0))

    @property
    def citation(self) -> str:
        return (
            f"{self.of.citation}; E. Oyallon, S. Mallat, Deep roto-translation scattering for object classification,"
            " CVPR 2015; M. Andreux et al., Kymatio: scattering transforms in Python, JMLR 21(60), 2020"
        )

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:
        """The files of the pictures that are not in the folder."""
        return self.of.missing(folder)

    def obstacle(self, folder: Path | None = None) -> str | None:
        """Why the features cannot be computed here, with a command that helps; None if they exist or can be."""
        if self.files and (self._folder(data_folder(folder)) / INDEX).is_file():
            return None
        return transform_obstacle()

    def load(self, folder: Path | None = None) -> Dataset:
        """The features: inputs (N, K·C, H/2^J, W/2^J) float32, targets (N,) int64.

        Raises DatasetMissing or DatasetCorrupt of the pictures, DpbenchError when kymatio is not installed or neither
        the data folder nor the user's cache can be written.
        """
        import torch

        place = data_folder(folder)
        if absent := self.missing(place):
            raise DatasetMissing(self.of.name, absent, place)
        kept = None if not self.files else kept_features(self._folder(place))
        if kept is None:
            if (obstacle := transform_obstacle()) is not None:
                raise DpbenchError(f"dataset {self.name!r}: {obstacle}")
            kept = self._computed(place)
        return in_memory(self, *map(torch.from_numpy, kept))

    def _folder(self, place: Path) -> Path:
        """Where the features are kept: beside the data, or in the user's cache where that cannot be written."""
        name = f"{self.of.name}-{self.sha256[:16]}"
        beside = place / "scattering" / name
        above = next(parent for parent in (beside, *beside.parents) if parent.exists())
        if (beside / INDEX).exists() or os.access(above, os.W_OK):
            return beside
        import pooch

        return Path(pooch.os_cache("dpbench")) / "scattering" / name

    def _computed(self, place: Path) -> tuple[Array, ...]:
        data = self.of.load(place)
        parts: dict[str, tuple[tuple[int, ...], str, Callable[[], Iterator[Array]]]] = {}
        for part, inputs, targets in (
            ("train", data.train_inputs, data.train_targets),
            ("test", data.test_inputs, data.test_targets),
        ):
            shape = len(inputs), *self.input_shape
            parts[f"{part}_inputs"] = shape, "<f4", partial(self._pieces, inputs)
            parts[f"{part}_targets"] = (len(targets),), "<i8", partial(iter, [targets.numpy()])
        if not self.files:
            return tuple(np.concatenate(list(pieces())) for _, _, pieces in parts.values())
        folder = self._folder(place)
        keep_features(folder, parts)
        kept = kept_features(folder)
        if kept is None:
            advice = "the written files are corrupt; name another folder with --data"
            raise DatasetCorrupt(self.name, str(folder), "content", "what was just written", "something else", advice)
        return kept

    def _pieces(self, inputs: Tensor) -> Iterator[Array]:
        """The features of some pictures, `PICTURES` at a time."""
        import torch
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

        device = "cuda" if torch.cuda.is_available() else "cpu"
        transform = ScatteringTorch2D(self.depth, tuple(inputs.shape[2:]), self.angles).to(device)
        with torch.no_grad():
            for start in range(0, len(inputs), PICTURES):
                piece = transform(inputs[start : start + PICTURES].contiguous().to(device))
                if not bool(piece.isfinite().all()):
                    what = "the features", "finite numbers", "others"
                    raise DatasetCorrupt(self.name, f"picture {start} or after", *what, "check the pictures")
                yield piece.reshape(len(piece), *self.input_shape).cpu().numpy()


def kept_features(folder: Path) -> tuple[Array, ...] | None:
    """The four arrays, mapped into memory; None if there are none, or if a file is damaged.

    A warning names the damaged file, with both hashes; the caller computes the features again.
    """
    index = folder / INDEX
    if not index.is_file():
        return None
    try:
        hashes = json.loads(index.read_text(encoding="utf-8"))
        expected = {part: str(hashes[part]) for part in PARTS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{index} is corrupt ({error}): the features are computed again", stacklevel=2)
        return None
    for part, digest in expected.items():
        path = folder / f"{part}.npy"
        found = sha256_of(path) if path.is_file() else "no file"
        if found != digest:
            warnings.warn(
                f"{path} is corrupt: SHA-256 expected {digest}, found {found}: the features are computed again",
                stacklevel=2,
            )
            return None
    return tuple(np.load(folder / f"{part}.npy", mmap_mode="c", allow_pickle=False) for part in PARTS)


def keep_features(folder: Path, parts: dict[str, tuple[tuple[int, ...], str, Callable[[], Iterator[Array]]]]) -> None:
    """Write each part, given as its shape, its dtype and its pieces, one after another; then the index.

    Raises DpbenchError when the folder cannot be written; then there is no index, and nothing counts as kept.
    """
    clean_folder(folder)
    (folder / INDEX).unlink(missing_ok=True)
    hashes = {}
    for part, (shape, dtype, pieces) in parts.items():
        path = folder / f"{part}.npy"
        with writing(path) as file:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in pieces():
                file.write(np.ascontiguousarray(piece, dtype=dtype).tobytes())
        hashes[part] = sha256_of(path)
    write_text(folder / INDEX, json.dumps(hashes, indent=1) + "\n")


def transform_obstacle() -> str | None:
    """Why kymatio's transform cannot run here, with a command that helps; None if it can."""
    if importlib.util.find_spec("kymatio") is None:
        return f"scattering features need the package kymatio, which is not installed: {INSTALL}"
    version = importlib.metadata.version("kymatio")
    if not f"{version}.".startswith(f"{KYMATIO}."):
        return f"scattering features need kymatio {KYMATIO}, found {version}: {INSTALL}"
    return None


def paths(depth: int, angles: int) -> int:
    """K, the number of features of one place: one average, JL of the first order, L²J(J − 1)/2 of the second.

    >>> paths(2, 8)
    81
    """
    return 1 + depth * angles + angles**2 * depth * (depth - 1) // 2


def dataset(
    *, of: str = "digits", depth: int = 2, angles: int = 8, of_parameters: dict[str, Any] | None = None
) -> ScatteringSource:
    """`of` names a dataset of pictures (digits, mnist, fashion_mnist, cifar10, ...), `of_parameters` are its own.

    Raises DpbenchError when it is not known, or its sides are not multiples of 2^depth.

    >>> dataset(of="mnist").input_shape
    (81, 7, 7)
    """
    from dpbench.datasets import find_dataset

    for name, value in (("depth", depth), ("angles", angles)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DpbenchError(f"{name} = {value!r}: expected a whole number, 1 or more")
    if of == "scattering" or of_a_file(of) or of.endswith("datasets.scattering:dataset"):
        raise DpbenchError(f"of = {of!r}: expected a dataset of pictures")
    source = find_dataset(of, of_parameters)
    side = 2**depth
    shape = tuple(source.input_shape)
    if len(shape) != 3 or shape[1] % side or shape[2] % side:
        raise DpbenchError(
            f"of = {of!r}: its records have shape {shape}; expected pictures (channels, height, width) whose sides are"
            f" multiples of 2^depth = {side}"
        )
    return ScatteringSource(source, depth, angles)
