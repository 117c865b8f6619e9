"""Downloading and checking the files of a dataset. `fetch` is the only function that uses the network.

A download ends at the pinned size and takes its name only when its SHA-256 is the pinned one; a broken or interrupted
one leaves no file, and what a killed one left goes with the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from dpbench.atomic import clean_folder, writing
from dpbench.datasets._base import (
    DatasetCorrupt,
    DatasetSource,
    Folder,
    RemoteFile,
    data_folder,
    find_missing,
)
from dpbench.errors import DpbenchError

Progress = Callable[[str, int, int], None]
"""Called while a file arrives: its path inside the data folder, bytes so far, bytes in all."""

_CHUNK = 1 << 16
_TIMEOUT_SECONDS = 30


class DownloadFailed(DpbenchError):
    """No mirror gave the published file; `reasons` holds one line per URL that was tried."""

    def __init__(self, dataset: str, file: RemoteFile, target: Path, reasons: tuple[str, ...]) -> None:
        self.dataset, self.file, self.target, self.reasons = dataset, file, target, reasons
        super().__init__(
            f"dataset {dataset!r}: {file.path} could not be downloaded\n"
            + "".join(f"  {reason}\n" for reason in reasons)
            + f"try again later, or put the published file (SHA-256 {file.sha256}) at {target} by hand"
        )


@dataclass(frozen=True)
class FileStatus:
    """What `check` found for one file: `ok`, `missing`, or `corrupt` with the expected and the found SHA-256.

    `place` is the file, or where it should be; `found` is "" unless a file was read. A dataset without files has one
    status, that of its contents, with `path` "(contents)".
    """

    path: str
    place: str
    state: Literal["ok", "missing", "corrupt"]
    expected: str
    found: str = ""


def check(source: DatasetSource, folder: Folder = None) -> tuple[FileStatus, ...]:
    """The status of every file of a dataset, by its SHA-256; nothing is downloaded or changed.

    A dataset without files is loaded instead and its content hash compared.

    >>> from dpbench.datasets import find_dataset
    >>> [status.state for status in check(find_dataset("digits"))]
    ['ok']
    """
    if not source.files:
        return (_contents(source),)
    place = data_folder(folder)
    return tuple(_status(file, place) for file in source.files)


def _contents(source: DatasetSource) -> FileStatus:
    try:
        found = source.load(None).sha256
    except DatasetCorrupt as error:
        return FileStatus("(contents)", error.place, "corrupt", error.expected, error.found)
    return FileStatus("(contents)", "embedded", "ok", source.sha256, found)


def _status(file: RemoteFile, folder: Path) -> FileStatus:
    found = file.locate(folder)
    if found is None:
        return FileStatus(file.path, str(folder / file.path), "missing", file.sha256)
    pinned, digest = file.pinned_sha256(found), file.digest(found)
    return FileStatus(file.path, str(found), "ok" if digest == pinned else "corrupt", pinned, digest)


def fetch(source: DatasetSource, folder: Folder = None, progress: Progress | None = None) -> tuple[Path, ...]:
    """Download the files of a dataset that are missing or corrupt; returns the files that were written.

    Mirrors are tried in order until one gives a file with the pinned SHA-256. A corrupt published file is replaced;
    a corrupt unpacked file stays, and the published file beside it is used instead. Raises DownloadFailed if no mirror
    gives the file, DpbenchError if the folder cannot be written.
    """
    place = data_folder(folder)
    due = [file for file in source.files if _status(file, place).state != "ok"]
    written = []
    for file in due:
        target = place / file.path
        clean_folder(target.parent)
        with writing(target, "--data") as stream:
            _download(source.name, file, stream, target, progress)
        written.append(target)
    return tuple(written)


def _download(dataset: str, file: RemoteFile, stream: IO[bytes], target: Path, progress: Progress | None) -> None:
    """Write the published file to the stream, from the first mirror that has it."""
    import requests.exceptions
    from pooch import HTTPDownloader

    # "identity": a mirror that offers the .gz as a transfer encoding would have it unpacked on the way
    get = HTTPDownloader(chunk_size=_CHUNK, timeout=_TIMEOUT_SECONDS, headers={"Accept-Encoding": "identity"})
    reasons = []
    for url in file.urls:
        arriving = _Arriving(stream, file, progress)
        try:
            get(url, arriving, None)
        except _TooLong:
            reasons.append(f"{url}: it sends more than the {file.size} bytes of the published file, and was cut off")
        except (requests.exceptions.RequestException, ValueError) as error:  # ValueError: a malformed header
            reasons.append(f"{url}: {_one_line(error)}")
        else:
            found = arriving.sha256.hexdigest()
            if found == file.sha256:
                return
            reasons.append(f"{url}: SHA-256 expected {file.sha256}, found {found} ({arriving.size} bytes)")
    raise DownloadFailed(dataset, file, target, tuple(reasons))


class _TooLong(Exception):
    """A server sends more than the published file."""


class _Arriving:
    """What pooch writes a download to: counts, hashes, tells the progress, and ends at the pinned size."""

    def __init__(self, stream: IO[bytes], file: RemoteFile, progress: Progress | None) -> None:
        self._stream, self._file, self._progress = stream, file, progress
        self.size, self.sha256 = 0, hashlib.sha256()
        stream.seek(0)
        stream.truncate()

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self._file.size:
            raise _TooLong
        self.sha256.update(chunk)
        self._stream.write(chunk)
        if self._progress is not None:
            self._progress(self._file.path, self.size, self._file.size)

    def flush(self) -> None:
        """Called after every chunk; the stream is flushed when it is complete."""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def missing_bytes(source: DatasetSource, folder: Folder = None) -> int:
    """How many bytes `fetch` would have to download, going by which files exist."""
    return sum(file.size for file in find_missing(source.files, folder))
