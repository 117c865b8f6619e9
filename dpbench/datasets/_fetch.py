"""Downloading and checking the files of a dataset. `fetch` is the only function that uses the network.

A download goes to a temporary folder beside its target and is moved into place only when its SHA-256 is the pinned
one, so a broken or interrupted download leaves nothing half-written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpbench.datasets._base import (
    DatasetCorrupt,
    DatasetSource,
    Folder,
    RemoteFile,
    data_folder,
    find_missing,
    sha256_of,
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
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".dpbench-fetch-") as temporary:
                arrived = Path(temporary) / "download"
                _download(source.name, file, arrived, target, progress)
                arrived.replace(target)
        except OSError as error:
            raise DpbenchError(
                f"cannot write {target}: {error.strerror or error}; free space or name another folder with --data"
            ) from error
        written.append(target)
    return tuple(written)


def _download(dataset: str, file: RemoteFile, arrived: Path, target: Path, progress: Progress | None) -> None:
    import requests.exceptions
    from pooch import HTTPDownloader

    # "identity": a mirror that offers the .gz as a transfer encoding would have it unpacked on the way
    options = {"chunk_size": _CHUNK, "timeout": _TIMEOUT_SECONDS, "headers": {"Accept-Encoding": "identity"}}
    reasons = []
    for url in file.urls:
        bar = _Bar(file, progress) if progress is not None else False
        try:
            HTTPDownloader(progressbar=bar, **options)(url, str(arrived), None)
        except (requests.exceptions.RequestException, ValueError) as error:  # ValueError: a malformed header
            reasons.append(f"{url}: {_one_line(error)}")
            continue
        digest = sha256_of(arrived)
        if digest == file.sha256:
            return
        reasons.append(f"{url}: SHA-256 expected {file.sha256}, found {digest} ({arrived.stat().st_size} bytes)")
    raise DownloadFailed(dataset, file, target, tuple(reasons))


class _Bar:
    """A progress bar for pooch that passes the bytes on to a Progress function."""

    total = 0

    def __init__(self, file: RemoteFile, progress: Progress) -> None:
        self._file, self._progress, self._done = file, progress, 0

    def update(self, count: int) -> None:
        # pooch counts whole chunks, so the last one may go past the end
        self._done = min(self._done + count, self._file.size)
        self._progress(self._file.path, self._done, self._file.size)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        """Nothing to close: the caller owns the display."""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def missing_bytes(source: DatasetSource, folder: Folder = None) -> int:
    """How many bytes `fetch` would have to download, going by which files exist."""
    return sum(file.size for file in find_missing(source.files, folder))
