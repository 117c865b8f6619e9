"""Datasets, the public interface: find one by name, describe it, fetch and check its files, make your own.

Importing this module imports neither torch nor scikit-learn, and only `fetch` uses the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from dpbench.catalog import find
from dpbench.datasets._arrays import ArraysSource, from_arrays
from dpbench.datasets._base import (
    SOURCE_MEMBERS,
    Dataset,
    DatasetCorrupt,
    DatasetMissing,
    DatasetSource,
    Folder,
    RemoteFile,
    build,
    content_hash,
    data_folder,
    fetch_command,
    find_missing,
    read_content,
)
from dpbench.datasets._fetch import DownloadFailed, FileStatus, Progress, check, fetch, missing_bytes
from dpbench.errors import DpbenchError
from dpbench.tasks import task_of

__all__ = [
    "Dataset",
    "DatasetCorrupt",
    "DatasetMissing",
    "DatasetSource",
    "DownloadFailed",
    "FileStatus",
    "Progress",
    "RemoteFile",
    "State",
    "build",
    "check",
    "content_hash",
    "data_folder",
    "describe",
    "fetch",
    "fetch_command",
    "find_dataset",
    "find_missing",
    "from_arrays",
    "read_content",
    "state",
    "summary",
]

State = Literal["embedded", "present", "incomplete", "missing"]


def find_dataset(name: str, parameters: Mapping[str, Any] | None = None) -> DatasetSource:
    """The source of a dataset by its name in the catalog or as `package.module:factory`.

    A factory is called with the parameters and returns a `Dataset` or an object with the members of `DatasetSource`;
    a source itself takes no parameters. Nothing is loaded from the data folder. Raises DpbenchError if the name is
    not known (with a suggestion), a parameter does not fit, or the object is not a dataset.

    >>> find_dataset("digits").train_size
    1437
    """
    given = dict(parameters or {})
    found = find("datasets", name).load()
    if callable(found) and not _is_source(found):
        signature = inspect.signature(found)
        try:
            signature.bind(**given)
        except TypeError as error:
            raise DpbenchError(f"dataset {name!r}: {error}; its parameters are {signature}") from error
        found = found(**given)
    elif given:
        names = ", ".join(f"{parameter} = {value!r}" for parameter, value in given.items())
        raise DpbenchError(f"dataset {name!r} takes no parameters: remove {names}")
    if isinstance(found, Dataset):
        return _wrap(name, found)
    if _is_source(found):
        return cast(DatasetSource, found)
    absent = [member for member in SOURCE_MEMBERS if not hasattr(found, member)]
    raise DpbenchError(
        f"dataset {name!r} is an object of type {type(found).__name__}: expected a Dataset, or a source with"
        f" the members {', '.join(SOURCE_MEMBERS)}; it lacks {', '.join(absent)}"
        " (dpbench.datasets.from_arrays makes a source)"
    )


def _is_source(value: object) -> bool:
    return not isinstance(value, type) and all(hasattr(value, member) for member in SOURCE_MEMBERS)


def _wrap(name: str, dataset: Dataset) -> ArraysSource:
    source = from_arrays(
        dataset.name,
        *(dataset.train_inputs, dataset.train_targets, dataset.test_inputs, dataset.test_targets),
        real=dataset.real,
        classes=dataset.classes,
        task=dataset.task,
    )
    if dataset.sha256 != source.sha256:
        raise DpbenchError(
            f"dataset {name!r}: its sha256 = {dataset.sha256!r}, but content_hash of its tensors is"
            f" {source.sha256!r}: return dpbench.datasets.from_arrays(...), which computes it"
        )
    return source


def state(source: DatasetSource, folder: Folder = None) -> State:
    """The state of a dataset, by which files exist (`check` also reads them).

    `embedded`: needs no folder. `present`: every file is there; `incomplete`: some are; `missing`: none is.
    """
    if not source.files:
        return "embedded"
    absent = len(source.missing(data_folder(folder)))
    if absent == 0:
        return "present"
    return "missing" if absent == len(source.files) else "incomplete"


def summary(source: DatasetSource, folder: Folder = None) -> dict[str, Any]:
    """The facts about a dataset as plain JSON values, without loading it (for `dpbench data list --json`)."""
    place: Path | None = data_folder(folder) if source.files else None
    facts = ("name", "title", "train_size", "test_size", "input_shape", "classes", "real", "licence", "citation", "url")
    return {
        **{name: getattr(source, name) for name in (*facts, "sha256")},
        "task": task_of(source),
        "input_shape": list(source.input_shape),
        "state": state(source, folder),
        "folder": None if place is None else str(place),
        "files": [file.path for file in source.files],
        "missing": [] if place is None else [file.path for file in source.missing(place)],
        "bytes_to_fetch": missing_bytes(source, folder),
    }


def describe(source: DatasetSource, folder: Folder = None) -> str:
    """One short paragraph about a dataset: title, licence, source, folder, and whether its files are present.

    >>> print(describe(find_dataset("digits")).splitlines()[0])
    digits (embedded): Handwritten digits of 8 x 8 pixels, a part of scikit-learn
    """
    facts = summary(source, folder)
    shape = " x ".join(map(str, source.input_shape))
    kind = "real" if source.real else "synthetic"
    lines = [
        f"{source.name} ({facts['state']}): {source.title}",
        f"  {source.train_size:,} training and {source.test_size:,} test records, {kind}; shape {shape};"
        f" {'regression' if task_of(source) == 'regression' else f'{source.classes} classes'}",
        f"  licence: {source.licence}",
        f"  cite: {source.citation}",
    ]
    if tuned := getattr(source, "tuned", ""):
        lines.append(f"  not in ε: {tuned}")
    if source.url:
        lines.append(f"  from: {source.url}")
    if facts["folder"] is not None:
        lines.append(f"  folder: {facts['folder']}")
    if facts["missing"]:
        size = facts["bytes_to_fetch"] / 1e6
        count = f"{len(facts['missing'])} of {len(source.files)} files"
        named = getattr(source, "files_of", source.name)
        lines.append(f"  missing: {count}, {size:.1f} MB: {fetch_command(named, data_folder(folder))}")
    return "\n".join(lines)
