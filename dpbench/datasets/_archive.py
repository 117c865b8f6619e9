"""A dataset published as one .tar.gz: the archive and the unpacked folder can both be read, and are verified."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dpbench.datasets._base import DatasetCorrupt, DatasetMissing, RemoteFile, fetch_command, read_file, sha256_of
from dpbench.errors import DpbenchError


@dataclass(frozen=True)
class ArchiveFile(RemoteFile):
    """A published .tar.gz whose only top folder is `unpacked_path`.

    `members` is a regular expression; members whose whole path inside the top folder matches are read. `needed` are
    paths inside the unpacked folder; it counts as present only if they exist. `unpacked_sha256` is `tree_sha256` of the
    members that are read. `pinned` holds the SHA-256 of single members, so that the message can name a corrupt one.
    """

    members: str = ".*"
    needed: tuple[str, ...] = ()
    pinned: tuple[tuple[str, str], ...] = ()

    def locate(self, folder: Path) -> Path | None:
        """The archive, else the unpacked folder if all `needed` paths exist, else None."""
        archive, unpacked = folder / self.path, folder / self.unpacked_path
        try:
            if archive.is_file():
                return archive
            return unpacked if all((unpacked / path).exists() for path in self.needed) else None
        except OSError as error:
            raise DpbenchError(f"cannot look for {archive}: {error.strerror or error}") from error

    def digest(self, found: Path) -> str:
        """The SHA-256 of the archive, or `tree_sha256` of the unpacked folder."""
        return sha256_of(found) if found.is_file() else tree_sha256(self._unpacked(found))

    def contents(self, dataset: str, folder: Path) -> dict[str, bytes]:
        """The verified members by their path inside the top folder, in the order of their paths.

        Raises DatasetMissing, or DatasetCorrupt with both hashes.
        """
        found = self.locate(folder)
        if found is None:
            raise DatasetMissing(dataset, [self], folder)
        again = f"get the archive again with: {fetch_command(dataset, folder)}"
        if found.is_file():
            if (digest := sha256_of(found)) != self.sha256:
                raise DatasetCorrupt(dataset, str(found), "SHA-256", self.sha256, digest, again)
            try:
                return self._packed(found)
            except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
                raise DatasetCorrupt(dataset, str(found), "content", "a whole .tar.gz", error, again) from error
        contents = self._unpacked(found)
        for path, expected in self.pinned:
            if (digest := hashlib.sha256(contents.get(path, b"")).hexdigest()) != expected:
                raise DatasetCorrupt(dataset, str(found / path), "SHA-256", expected, digest, again)
        if (digest := tree_sha256(contents)) != self.unpacked_sha256:
            raise DatasetCorrupt(dataset, str(found), "SHA-256 of its files", self.unpacked_sha256, digest, again)
        return contents

    def _packed(self, archive: Path) -> dict[str, bytes]:
        top, found = f"{PurePosixPath(self.unpacked_path)}/", {}
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = member.name.removeprefix("./").removeprefix(top)
                if member.isfile() and re.fullmatch(self.members, path):
                    stream = tar.extractfile(member)
                    found[path] = stream.read() if stream is not None else b""
        return dict(sorted(found.items()))

    def _unpacked(self, folder: Path) -> dict[str, bytes]:
        try:
            paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        except OSError as error:
            raise DpbenchError(f"cannot read {folder}: {error.strerror or error}") from error
        wanted = [path for path in paths if re.fullmatch(self.members, path)]
        return {path: read_file(folder / path) for path in wanted if (folder / path).is_file()}


def tree_sha256(contents: dict[str, bytes]) -> str:
    """SHA-256 (hexadecimal) of the lines "path, a space, SHA-256 of the content", in the order of the paths.

    >>> tree_sha256({"b": b"2", "a": b"1"}) == tree_sha256({"a": b"1", "b": b"2"}) != tree_sha256({"a": b"12"})
    True
    """
    lines = [f"{path} {hashlib.sha256(content).hexdigest()}\n" for path, content in sorted(contents.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
