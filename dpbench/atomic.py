"""Files written whole or not at all, and read only where they are regular files of a stated size.

A file is written to a temporary one in the same folder, flushed to the disk, then renamed.

A reader sees the earlier file or the complete new one, whatever happens to the writer. Temporary files left by killed
processes start with a dot and end in `.tmp`; readers ignore them, and `clean_folder` removes those whose writer is
gone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from dpbench.errors import DpbenchError

SUFFIX = ".tmp"
_NAME = re.compile(r"^\..+\.(?P<place>[0-9a-f]{8})-(?P<pid>[0-9]+)-[0-9a-f]{8}\.tmp$")
_FORGOTTEN_SECONDS = 24 * 3600.0  # after a day, a temporary file from another machine counts as left behind
_FULL = {errno.ENOSPC, errno.EFBIG} | ({errno.EDQUOT} if hasattr(errno, "EDQUOT") else set())
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # file systems that cannot flush a folder


MOST_BYTES = 1 << 24  # of a file of text, by default: a record has some tens of kilobytes
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes; nothing else is opened, so a FIFO does not block.

    Raises DpbenchError with one sentence: absent, no regular file, larger, or not to be read.

    >>> read_bytes(Path("/"))
    Traceback (most recent call last):
    dpbench.errors.DpbenchError: /: is a folder; expected a file
    """
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
            raise DpbenchError(f"{path}: is {kind}; expected a file")
        content = b""
        if status.st_size <= most:
            # Without blocking, for a path that has become a FIFO since; no more than `most` of a file that grows.
            with open(path, "rb", opener=_without_blocking) as file:
                content = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise DpbenchError(f"{path}: cannot be read ({why}); check the path and its permissions") from error
    size = max(status.st_size, len(content))
    if size > most:
        raise DpbenchError(f"{path}: has {size:,} bytes; expected at most {most:,}")
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Like `read_bytes`, for text in UTF-8. Raises DpbenchError for another encoding too."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DpbenchError(f"{path}: is not text in UTF-8 (byte {error.start}); save it as UTF-8") from error


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `content` to `path`, whole or not at all, creating the folder; the file is on the disk on return.

    Raises DpbenchError when the disk is full or the folder cannot be written; then an earlier file of that name is
    untouched and nothing half-written stays behind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "a.txt", b"whole").read_bytes()
    b'whole'
    """
    with writing(path) as file:
        file.write(content)
    return path


def write_text(path: Path, content: str) -> Path:
    """Like `write_bytes`, for text in UTF-8 with its newlines as they are."""
    return write_bytes(path, content.encode("utf-8"))


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[IO[bytes]]:
    """A binary file to write to; it takes the name `path` when the block ends without an error.

    Errors of the operating system, in the block or afterwards, become DpbenchError; any error (Ctrl-C too) removes
    the temporary file. `option` is the one that chooses another folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(Path(folder) / "weights.bin") as file:
    ...         _ = file.write(b"1234")
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['weights.bin']
    """
    temporary = path.with_name(f".{path.name}.{_place()}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # report the first error, not this one
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_error(path, error, option) from error
        raise


def write_error(path: Path, error: OSError, option: str = "--out") -> DpbenchError:
    """The message for a full disk or a folder that cannot be written."""
    why = error.strerror or str(error)
    if error.errno in _FULL:
        advice = f"the disk (or your quota) is full: free some space, or choose another folder with {option}"
    elif error.errno in _CLOSED:
        advice = f"the folder cannot be written: change its permissions, or choose another folder with {option}"
    elif isinstance(error, FileExistsError | NotADirectoryError):
        advice = f"a file stands where the folder {path.parent} should be: move it, or choose another {option}"
    else:
        advice = f"check the folder, or choose another one with {option}"
    return DpbenchError(f"cannot write {path}: {why}; nothing was written there; {advice}")


def clean_folder(folder: Path) -> tuple[Path, ...]:
    """Remove the temporary files that killed writers left in `folder`; those of live writers stay.

    Returns the paths removed. A folder that is absent or cannot be written is left as it is: these files are harmless.
    """
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            found = _NAME.match(path.name)
            if found and _is_left_behind(path, found["place"], int(found["pid"])):
                path.unlink(missing_ok=True)
                removed.append(path)
    return tuple(removed)


def _is_left_behind(path: Path, place: str, pid: int) -> bool:
    if place == _place() and sys.platform != "win32":
        try:
            os.kill(pid, 0)  # signal 0 only asks whether the process exists
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it exists and belongs to somebody else
    return time.time() - path.stat().st_mtime > _FORGOTTEN_SECONDS


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entry, so that the new name survives a power cut, if the file system supports that."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


@cache
def _place() -> str:
    """The scope of a process number: this machine and, on Linux, this container's process namespace."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]
