"""The parts of a dataset: its files, its source, its arrays in memory, and the errors for missing or corrupt files.

Nothing here uses the network, and importing this module does not import torch.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shlex
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from dpbench.errors import DpbenchError
from dpbench.tasks import Task, objective, task_of

if TYPE_CHECKING:
    from torch import Tensor

Folder = str | os.PathLike[str] | None
Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class RemoteFile:
    """One published file of a dataset and where it lies inside the data folder.

    `path` and `unpacked_path` are relative to the data folder, with forward slashes; `urls` are mirrors in the order
    in which they are tried; `sha256` and `size` (bytes) are those of the published file. If the published file is a
    .gz that is often kept unpacked, `unpacked_path` and `unpacked_sha256` describe the unpacked file.
    """

    path: str
    urls: tuple[str, ...]
    sha256: str
    size: int
    unpacked_path: str = ""
    unpacked_sha256: str = ""

    def __post_init__(self) -> None:
        for path in (self.path, *filter(None, [self.unpacked_path])):
            if not path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\\" in path:
                raise ValueError(f"path = {path!r}: expected a path inside the data folder, with forward slashes")
        for value in (self.sha256, *filter(None, [self.unpacked_sha256])):
            if not re.fullmatch("[0-9a-f]{64}", value):
                raise ValueError(f"sha256 = {value!r}: expected 64 lower-case hexadecimal digits")
        if bool(self.unpacked_path) != bool(self.unpacked_sha256):
            raise ValueError(f"{self.path}: expected both or neither of unpacked_path and unpacked_sha256")

    def locate(self, folder: Path) -> Path | None:
        """The file as it lies in the folder: the published one, else the unpacked one, else None."""
        for path in filter(None, (self.path, self.unpacked_path)):
            try:
                if (folder / path).is_file():
                    return folder / path
            except OSError as error:
                raise DpbenchError(f"cannot look for {folder / path}: {error.strerror or error}") from error
        return None

    def pinned_sha256(self, found: Path) -> str:
        """The SHA-256 that the file found by `locate` must have."""
        return self.sha256 if found.name == PurePosixPath(self.path).name else self.unpacked_sha256

    def digest(self, found: Path) -> str:
        """The SHA-256 of what `locate` found, to be compared with `pinned_sha256`."""
        return sha256_of(found)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset in memory: CPU tensors, ready for training.

    Inputs are (N, *input_shape) float32, targets (N,) int64 in 0..classes-1, or for regression float32, where `classes`
    is 1. `sha256` is `content_hash` of the four
    tensors. `real` is False for synthetic data, whose results are never compared with a paper's number.
    Raises DpbenchError if shapes or dtypes do not fit together.
    """

    name: str
    task: Task
    train_inputs: Tensor = field(repr=False)
    train_targets: Tensor = field(repr=False)
    test_inputs: Tensor = field(repr=False)
    test_targets: Tensor = field(repr=False)
    classes: int
    sha256: str
    real: bool

    def __post_init__(self) -> None:
        objective(self.task)
        kind = "torch.float32" if self.task == "regression" else "torch.int64"
        if self.task == "regression":
            _expect("classes", self.classes, 1)
        for part, inputs, targets in (
            ("train", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            _expect(f"{part}_inputs.dtype", str(inputs.dtype), "torch.float32")
            _expect(f"{part}_targets.dtype", str(targets.dtype), kind)
            _expect(f"{part}_targets.shape", tuple(targets.shape), (len(inputs),))
        _expect("test_inputs.shape[1:]", tuple(self.test_inputs.shape[1:]), self.input_shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record, for example (1, 28, 28): channels, height, width."""
        return tuple(self.train_inputs.shape[1:])


class DatasetSource(Protocol):
    """The facts about a dataset that need no loading, and how to load it.

    A source may also have a `task` (`dpbench.tasks`); without one it is for classification. `classes` is 1 for a
    regression. `files` is () where the data need no folder (embedded in a package, or made by the user's code).
    `sha256` is the `content_hash` of what `load` returns, known beforehand, so that a plan can name a run without
    loading anything.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def files(self) -> tuple[RemoteFile, ...]: ...
    @property
    def train_size(self) -> int: ...
    @property
    def test_size(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def sha256(self) -> str: ...
    @property
    def licence(self) -> str: ...
    @property
    def citation(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def real(self) -> bool: ...

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:
        """The files that are not in the folder. Only tests whether they exist, so it is cheap."""
        ...

    def load(self, folder: Path | None = None) -> Dataset:
        """Read and verify the data. Raises DatasetMissing or DatasetCorrupt; never downloads."""
        ...


SOURCE_MEMBERS = tuple(name for name in vars(DatasetSource) if not name.startswith("_"))


class DatasetMissing(DpbenchError):
    """Files of a dataset are not in the data folder; the message holds the command that gets them."""

    def __init__(self, dataset: str, files: Sequence[RemoteFile], folder: Path) -> None:
        self.dataset, self.files, self.folder = dataset, tuple(files), folder
        self.command = fetch_command(dataset, folder)
        absent = "" if folder.is_dir() else " (no such folder)"
        super().__init__(
            f"dataset {dataset!r} is not in {folder}{absent}: missing "
            + ", ".join(file.path for file in self.files)
            + f"\nget it with: {self.command}\nor name another folder with --data or DPBENCH_DATA"
        )


class DatasetCorrupt(DpbenchError):
    """A file or an array of a dataset differs from the published one: `what` is `found` instead of `expected`."""

    def __init__(self, dataset: str, place: str, what: str, expected: object, found: object, advice: str) -> None:
        self.dataset, self.place, self.what = dataset, place, what
        self.expected, self.found = str(expected), str(found)
        super().__init__(
            f"dataset {dataset!r}: {place} is corrupt: {what} expected {expected}, found {found}\n{advice}"
        )


def data_folder(option: Folder = None) -> Path:
    """The folder where datasets lie: `option` (--data), else the variable DPBENCH_DATA, else the user's cache.

    The layout inside is torchvision's (`MNIST/raw`, `FashionMNIST/raw`, ...). The folder need not exist.

    >>> data_folder("/data").name
    'data'
    """
    chosen = option if option is not None else os.environ.get("DPBENCH_DATA") or None
    if chosen is None:
        import pooch

        chosen = pooch.os_cache("dpbench")
    return Path(chosen).expanduser()


def fetch_command(dataset: str, folder: Path) -> str:
    """The command that downloads a dataset into a folder, quoted for a shell."""
    return f"dpbench data fetch {shlex.quote(dataset)} --data {shlex.quote(str(folder))}"


def content_hash(train_inputs: Any, train_targets: Any, test_inputs: Any, test_targets: Any) -> str:
    """SHA-256 (hexadecimal) of four arrays or CPU tensors: of each its dtype, shape and little-endian bytes, in order.

    >>> import numpy
    >>> a, b = numpy.zeros((2, 3), "float32"), numpy.zeros(2, "int64")
    >>> content_hash(a, b, a, b) == content_hash(a, b, a.reshape(2, 3, 1), b)
    False
    """
    digest = hashlib.sha256()
    for item in (train_inputs, train_targets, test_inputs, test_targets):
        array = np.asarray(item)
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{array.dtype.name} {' '.join(map(str, array.shape))}\n".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def find_missing(files: Sequence[RemoteFile], folder: Folder) -> tuple[RemoteFile, ...]:
    """The files that are neither published nor unpacked in the folder."""
    if not files:
        return ()
    place = data_folder(folder)
    return tuple(file for file in files if file.locate(place) is None)


def read_file(path: Path) -> bytes:
    """All bytes of a file. Raises DpbenchError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DpbenchError(f"cannot read {path}: {error.strerror or error}") from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read piece by piece. Raises DpbenchError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DpbenchError(f"cannot read {path}: {error.strerror or error}") from error


def read_content(dataset: str, file: RemoteFile, folder: Path) -> bytes:
    """The verified content of a file, unpacked where the published form is a .gz with an unpacked form.

    Raises DatasetMissing when it is not there, DatasetCorrupt when its SHA-256 is not the pinned one.
    """
    found = file.locate(folder)
    if found is None:
        raise DatasetMissing(dataset, [file], folder)
    content = read_file(found)
    digest, pinned = hashlib.sha256(content).hexdigest(), file.pinned_sha256(found)
    again = f"get it again with: {fetch_command(dataset, folder)}"
    if digest != pinned:
        raise DatasetCorrupt(dataset, str(found), "SHA-256", pinned, digest, again)
    if not file.unpacked_path or found == folder / file.unpacked_path:
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetCorrupt(dataset, str(found), "content", "a whole gzip file", error, again) from error


def build(
    source: DatasetSource,
    train_inputs: Array,
    train_targets: Array,
    test_inputs: Array,
    test_targets: Array,
    *,
    advice: str,
) -> Dataset:
    """The Dataset of a source from its four arrays, which must not be changed afterwards.

    Raises DatasetCorrupt, with `advice`, if the content hash is not that of the source.
    """
    import torch

    arrays = (train_inputs, train_targets, test_inputs, test_targets)
    digest = content_hash(*arrays)
    if digest != source.sha256:
        raise DatasetCorrupt(source.name, "the loaded data", "content SHA-256", source.sha256, digest, advice)
    return in_memory(source, *map(torch.from_numpy, arrays))


def in_memory(
    source: Any, train_inputs: Tensor, train_targets: Tensor, test_inputs: Tensor, test_targets: Tensor
) -> Dataset:
    """The Dataset of a source from its four tensors, whose hash is not tested."""
    tensors = (train_inputs, train_targets, test_inputs, test_targets)
    return Dataset(source.name, task_of(source), *tensors, source.classes, source.sha256, source.real)


class FileSource:
    """A `DatasetSource` whose data are read from its files by `arrays`."""

    name: str
    files: tuple[RemoteFile, ...]

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:
        """The files that are in the folder neither as published nor unpacked."""
        return find_missing(self.files, folder)

    def load(self, folder: Path | None = None) -> Dataset:
        """Read and verify the files: inputs (N, *input_shape) float32, targets (N,) int64, float32 for regression.

        Raises DatasetMissing with the command that gets the files, DatasetCorrupt with both hashes.
        """
        place = data_folder(folder)
        if absent := self.missing(place):
            raise DatasetMissing(self.name, absent, place)
        advice = "the files are right but were read differently than expected: please report this"
        return build(cast(DatasetSource, self), *self.arrays(place), advice=advice)

    def arrays(self, place: Path) -> Arrays:
        """Inputs and targets of the training part, then of the test part, from files that exist."""
        raise NotImplementedError


def _expect(name: str, value: object, expected: object) -> None:
    if value != expected:
        raise DpbenchError(f"{name} = {value}: expected {expected}")
