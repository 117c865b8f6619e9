"""MovieLens 1M: 1,000,209 ratings of 3,706 films by 6,040 users, one to five stars, from `ml-1m.zip` or unpacked.

A record is one rating: the numbers of its user and its film, counted from 0 in the order of the published ids among
those that occur, as float32 (like words); the class is the number of stars less one. Privacy is that of one rating; a
user has many (see the claim bu2020.table4-individual). Timestamps are not read: a file without them is the same here.

bu2020 draws 20 % of the ratings at random as test records and names no seed. The split is that of its published code,
scikit-learn's train_test_split with random state 100: the first 200,042 of a random order (NumPy's RandomState(100))
are tested. Both parts keep the order of the file.

The metric is RMSE by default: bu2020 trains the five classes by cross-entropy and measures the root mean square of the
difference between the mean class Σ_c c·p_c and the class, which is the same as between stars.

The SHA-256 of the archive is the one published by several projects that pin it, and was not computed here; the hash
of the unpacked ratings, without their timestamps, was.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import (
    Array,
    Arrays,
    DatasetCorrupt,
    DatasetMissing,
    FileSource,
    RemoteFile,
    fetch_command,
    read_file,
    sha256_of,
)
from dpbench.tasks import Task

NUMERICS = 1

STATE, HELD_OUT = 100, 200_042
MEMBER = "ml-1m/ratings.dat"


@dataclass(frozen=True)
class RatingsFile(RemoteFile):
    """The published archive; `unpacked_sha256` is that of the ratings without their timestamps."""

    def digest(self, found: Path) -> str:
        if found.name == Path(self.path).name:
            return sha256_of(found)
        return hashlib.sha256(without_timestamps(read_file(found))).hexdigest()

    def ratings(self, dataset: str, folder: Path) -> bytes:
        """The verified lines without their timestamps. Raises DatasetMissing, or DatasetCorrupt with both hashes."""
        found = self.locate(folder)
        if found is None:
            raise DatasetMissing(dataset, [self], folder)
        again = f"get it again with: {fetch_command(dataset, folder)}"
        pinned = self.pinned_sha256(found)
        if found != folder / self.path:
            lines = without_timestamps(read_file(found))
            digest = hashlib.sha256(lines).hexdigest()
            if digest != pinned:
                what = "SHA-256 without timestamps"
                raise DatasetCorrupt(dataset, str(found), what, pinned, digest, again)
            return lines
        if (digest := sha256_of(found)) != pinned:
            raise DatasetCorrupt(dataset, str(found), "SHA-256", pinned, digest, again)
        try:
            with zipfile.ZipFile(found) as archive:
                return without_timestamps(archive.read(MEMBER))
        except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DatasetCorrupt(
                dataset, str(found), "content", f"a whole archive with {MEMBER}", error, again
            ) from error


def without_timestamps(content: bytes) -> bytes:
    """The lines `user::film::stars::timestamp` without the last field.

    >>> without_timestamps(b"1::1193::5::978300760\\n")
    b'1::1193::5\\n'
    """
    return b"".join(b"::".join(line.split(b"::")[:3]) + b"\n" for line in content.splitlines())


FILE = RatingsFile(
    path="ml-1m.zip",
    urls=("https://files.grouplens.org/datasets/movielens/ml-1m.zip",),
    sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    size=5_917_549,
    unpacked_path=MEMBER,
    unpacked_sha256="2dad134c8b493373beed8d2a42e18ec2a93606fd957bd76c0bfbdef5c514b985",
)


@dataclass(frozen=True)
class MovieLensSource(FileSource):
    """MovieLens 1M with the split of bu2020; see the module. `users` and `films` are the numbers of both."""

    name: str = "movielens"
    title: str = "MovieLens 1M: films rated with one to five stars"
    files: tuple[RemoteFile, ...] = (FILE,)
    train_size: int = 800_167
    test_size: int = HELD_OUT
    classes: int = 5
    task: Task = "rating"
    tuned: str = "users and films are numbered as they occur in the ratings, test ratings among them"
    users: int = 6_040
    films: int = 3_706
    input_shape: tuple[int, ...] = (2,)
    sha256: str = "1e8ae2af1fc41734606a1b316d37551778be171e7736caf8953f5e398380d254"
    licence: str = "GroupLens: research only, no redistribution, no commercial use"
    citation: str = (
        "F. M. Harper, J. A. Konstan, The MovieLens datasets: history and context, ACM Transactions on Interactive"
        " Intelligent Systems 5(4), 2015"
    )
    url: str = "https://grouplens.org/datasets/movielens/1m/"
    real: bool = True

    def arrays(self, place: Path) -> Arrays:
        inputs, targets = parse(FILE.ratings(self.name, place), self.name, MEMBER)
        order = np.random.RandomState(STATE).permutation(len(targets))
        test, train = np.sort(order[:HELD_OUT]), np.sort(order[HELD_OUT:])
        return inputs[train], targets[train], inputs[test], targets[test]


def parse(lines: bytes, dataset: str, file: str) -> tuple[Array, Array]:
    """Numbers of users and films (N, 2) float32 and classes (N,) int64 of lines `user::film::stars`.

    Raises DatasetCorrupt for a line of another form, with its number.

    >>> inputs, targets = parse(b"7::30::5\\n2::10::1\\n7::10::3\\n", "movielens", "ratings.dat")
    >>> inputs.tolist(), targets.tolist()
    ([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]], [4, 0, 2])
    """
    advice = "the file is not the published one; replace it"
    try:
        rows = np.array([line.split(b"::") for line in lines.splitlines()]).astype(np.int64)
        good = rows.ndim == 2 and rows.shape[1] == 3 and bool(((rows[:, 2] >= 1) & (rows[:, 2] <= 5)).all())
    except ValueError:
        good = False
    if not good:
        number, line = next((n, one) for n, one in enumerate(lines.splitlines() or [b""], 1) if not _is_rating(one))
        found = line[:60].decode(errors="replace")
        raise DatasetCorrupt(dataset, file, f"line {number}", "user::film::stars with 1 to 5 stars", found, advice)
    numbers = [np.unique(rows[:, column], return_inverse=True)[1].reshape(-1) for column in (0, 1)]
    return np.stack(numbers, 1).astype(np.float32), rows[:, 2] - 1


def _is_rating(line: bytes) -> bool:
    parts = line.split(b"::")
    return len(parts) == 3 and all(part.isdigit() for part in parts) and parts[2] in (b"1", b"2", b"3", b"4", b"5")


dataset = MovieLensSource()
