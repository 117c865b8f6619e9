"""Datasets from arrays of the user's own code: checked, copied and hashed once, returned as tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpbench.atomic import read_bytes
from dpbench.datasets._base import Dataset, RemoteFile, build, content_hash
from dpbench.errors import DpbenchError
from dpbench.tasks import Task, objective

Array = np.ndarray[Any, Any]
LEAST_GAPS = 1000  # targets from here on have at least a record for each class, so that a model of them is not huge


@dataclass(frozen=True, eq=False)
class ArraysSource:
    """A dataset source that holds its four arrays; made by `from_arrays`. `warning`: what the plan warns of, or ""."""

    name: str
    title: str
    classes: int
    sha256: str
    licence: str
    citation: str
    url: str
    real: bool
    arrays: tuple[Array, Array, Array, Array] = field(repr=False)
    tuned: str = ""
    files: tuple[RemoteFile, ...] = ()
    task: Task = "classification"
    warning: str = ""

    @property
    def train_size(self) -> int:
        return len(self.arrays[1])

    @property
    def test_size(self) -> int:
        return len(self.arrays[3])

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.arrays[0].shape[1:])

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:  # noqa: ARG002 (nothing is in a folder)
        """Always empty: the arrays are in memory."""
        return ()

    def load(self, folder: Path | None = None) -> Dataset:  # noqa: ARG002
        """The arrays as tensors of their own memory."""
        advice = "its arrays were changed after from_arrays: call it again"
        train_inputs, train_targets, test_inputs, test_targets = (array.copy() for array in self.arrays)
        return build(self, train_inputs, train_targets, test_inputs, test_targets, advice=advice)


@dataclass(frozen=True)
class AbsentSource:
    """A source whose user's file is not there, with the sizes that a spec gives: runs are planned and then skipped."""

    name: str
    title: str
    train_size: int
    test_size: int
    classes: int
    input_shape: tuple[int, ...]
    absent: str
    task: Task = "classification"
    sha256: str = "0" * 64
    licence: str = "not known: the file is absent"
    citation: str = licence
    url: str = ""
    real: bool = True
    files: tuple[RemoteFile, ...] = ()

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:  # noqa: ARG002 (none is in a folder)
        """Always empty: the user's file is in no data folder."""
        return ()

    def obstacle(self, folder: Path | None = None) -> str:  # noqa: ARG002
        """Why nothing can be trained here."""
        return self.absent

    def load(self, folder: Path | None = None) -> Dataset:  # noqa: ARG002
        """Raises DpbenchError."""
        raise DpbenchError(f"dataset {self.name!r}: {self.absent}")


def from_arrays(
    name: str,
    train_inputs: Any,
    train_targets: Any,
    test_inputs: Any,
    test_targets: Any,
    *,
    real: bool = True,
    classes: int | None = None,
    task: Task = "classification",
    title: str = "",
    licence: str = "not stated",
    citation: str = "not stated",
    url: str = "",
    tuned: str = "",
) -> ArraysSource:
    """A dataset source from four arrays, tensors or nested lists, for use as `package.module:factory` in a spec.

    Inputs are (N, *input_shape) floating-point numbers, kept as float32 and not scaled; targets are (N,) integers from
    0 to classes - 1, where `classes` is by default the largest target plus one, or, with `task="regression"`, numbers,
    which are kept as float32 and not scaled. The arrays are copied. Give `real=False` for synthetic data: their
    results are never compared with a paper's number. `tuned` says what was chosen by looking at the data, and is not
    in ε: the report shows it. Raises DpbenchError that lists all mistakes.

    >>> source = from_arrays("tiny", [[0.0], [1.0]], [0, 1], [[0.5]], [1], real=False)
    >>> source.train_size, source.input_shape, source.classes
    (2, (1,), 2)
    """
    objective(task)
    numbers = task == "regression"
    mistakes: list[str] = []
    given = {
        "train_inputs": _array("train_inputs", train_inputs, mistakes),
        "train_targets": _array("train_targets", train_targets, mistakes),
        "test_inputs": _array("test_inputs", test_inputs, mistakes),
        "test_targets": _array("test_targets", test_targets, mistakes),
    }
    if not mistakes:
        for part in ("train", "test"):
            _check_part(part, given[f"{part}_inputs"], given[f"{part}_targets"], mistakes, numbers)
    if not mistakes:
        shapes = [given[f"{part}_inputs"].shape[1:] for part in ("train", "test")]
        if shapes[0] != shapes[1]:
            mistakes.append(f"test_inputs have records of shape {shapes[1]}: expected {shapes[0]} as in train_inputs")
        largest = 0 if numbers else max(int(given[f"{part}_targets"].max()) for part in ("train", "test"))
        records = sum(len(given[f"{part}_targets"]) for part in ("train", "test"))
        if classes is None and largest >= max(records, LEAST_GAPS):
            mistakes.append(f"targets of {records} records hold {largest}: number the classes from 0, without gaps")
        classes = largest + 1 if classes is None else classes
        if numbers and classes != 1:
            mistakes.append(f"classes = {classes}: expected 1, or to leave it out, for a regression")
        elif largest >= classes:
            mistakes.append(f"classes = {classes}: expected more than the largest target, {largest}")
    if mistakes or classes is None:
        raise DpbenchError(f"dataset {name!r}: " + "; ".join(mistakes))
    kind = np.float32 if numbers else np.int64
    arrays = (
        np.array(given["train_inputs"], np.float32, order="C"),
        np.array(given["train_targets"], kind, order="C"),
        np.array(given["test_inputs"], np.float32, order="C"),
        np.array(given["test_targets"], kind, order="C"),
    )
    return ArraysSource(
        name=name,
        title=title or name,
        classes=classes,
        sha256=content_hash(*arrays),
        licence=licence,
        citation=citation,
        url=url,
        real=real,
        arrays=arrays,
        task=task,
        tuned=tuned,
    )


def file_state(path: Path) -> tuple[int, int]:
    """When a user's file was written, and its size: whether it is to be read again; zeros where there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # read_own words it
        return 0, 0
    return status.st_mtime_ns, status.st_size


def read_own(path: Path, most: int, parameter: str = "file") -> bytes:
    """The content of the user's file that a parameter names. Raises DpbenchError as `atomic.read_bytes` does."""
    try:
        return read_bytes(path, most)
    except DpbenchError as error:
        raise DpbenchError(f"{parameter} = {error}") from error


def _array(name: str, value: Any, mistakes: list[str]) -> Array:
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except ValueError as error:  # rows of different lengths
        mistakes.append(f"{name} is not an array: {error}")
        return np.empty(0)


def _finite(inputs: Array) -> bool:
    with np.errstate(over="ignore"):  # what overflows float32 becomes infinite and is reported
        return bool(np.isfinite(inputs.astype(np.float32)).all())


def _check_part(part: str, inputs: Array, targets: Array, mistakes: list[str], numbers: bool) -> None:
    if inputs.dtype.kind != "f":
        mistakes.append(f"{part}_inputs has dtype {inputs.dtype}: expected floating point (divide pixels by 255)")
    elif inputs.ndim < 2 or len(inputs) == 0:
        mistakes.append(f"{part}_inputs has shape {inputs.shape}: expected (records, ...) with at least one record")
    elif not _finite(inputs):
        mistakes.append(f"{part}_inputs holds values that are not finite in float32")
    if numbers and targets.dtype.kind not in "iuf":
        mistakes.append(f"{part}_targets has dtype {targets.dtype}: expected numbers")
    elif not numbers and targets.dtype.kind not in "iu":
        mistakes.append(f"{part}_targets has dtype {targets.dtype}: expected integers")
    elif targets.shape != inputs.shape[:1]:
        mistakes.append(f"{part}_targets has shape {targets.shape}: expected {inputs.shape[:1]}, one per record")
    elif numbers and not _finite(targets):
        mistakes.append(f"{part}_targets holds values that are not finite in float32")
    elif targets.size and not numbers and int(targets.min()) < 0:
        mistakes.append(f"{part}_targets holds {int(targets.min())}: expected classes from 0")
