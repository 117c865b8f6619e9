"""Features that were made beforehand, for example by a network trained on public data: an .npz file of four arrays.

The file holds `train_inputs`, `train_targets`, `test_inputs` and `test_targets`, as `numpy.savez` writes them: inputs
floating-point numbers of shape (records, ...), not scaled any more, targets whole numbers from 0. Nothing in it is
executed: arrays of Python objects (pickles) are refused. docs/own_dataset.md shows how to make one.

ε covers the training on these features alone. So each record's features must be made of that record and of public
data; `pretrained_on` says of which, and the report shows it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from dpbench.catalog import FilePath, Note
from dpbench.datasets._arrays import AbsentSource, ArraysSource, file_state, from_arrays, read_own
from dpbench.datasets._base import Array
from dpbench.errors import DpbenchError

NUMERICS = 1

Sizes = Mapping[Literal["train", "test", "width", "classes"], Annotated[int, Field(ge=1)]]
PARTS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
MOST_BYTES = 1 << 33  # of the file, and of its arrays, which are read into memory
SMALL, MOST_TIMES = 1 << 28, 100  # arrays above so many bytes have at most so many times those of the file


def dataset(
    *,
    file: Annotated[str, FilePath()],
    pretrained_on: Annotated[str, Field(min_length=1), Note()],
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64}|any)$"), Note()] = "any",
    licence: Annotated[str, Note()] = "not stated",
    real: bool = True,
    if_absent: Annotated[Sizes | None, Note()] = None,
) -> ArraysSource | AbsentSource:
    """The four arrays of a file as a dataset: inputs (N, ...) float32, targets (N,) int64.

    `file` is a path from the spec's folder, `pretrained_on` what the features were made with and whether that is
    public, `sha256` the hash of the file, so that another one is refused. With `if_absent` runs are planned with these
    sizes and skipped while the file is absent, and a file of other sizes is refused. Raises DpbenchError where the file
    is absent, another one, or does not hold the four arrays.
    """
    path = Path(file)
    if if_absent is not None:
        if set(if_absent) != set(get_args(get_args(Sizes)[0])):
            raise DpbenchError("if_absent: expected four sizes, {train: ..., test: ..., width: ..., classes: ...}")
        sizes = if_absent["train"], if_absent["test"], if_absent["classes"], (if_absent["width"],)
        if not path.exists():
            why = f"{path.name} is not there: make the features (docs/own_dataset.md)"
            return AbsentSource("features", f"The features of {path.name}", *sizes, why)
    digest, source = _read(str(path), file_state(path), pretrained_on, licence, real)
    if sha256 not in ("any", digest):
        raise DpbenchError(f"sha256 = {sha256}: the file {path.name} has {digest}")
    found = source.train_size, source.test_size, source.classes, source.input_shape
    if if_absent is not None and found != sizes:
        words = "training records, test records, classes and numbers of a record"
        raise DpbenchError(f"{path.name}: has {found} {words}; expected {sizes}, as if_absent says")
    return source


@lru_cache(maxsize=2)
def _read(file: str, _state: tuple[int, int], pretrained_on: str, licence: str, real: bool) -> tuple[str, ArraysSource]:
    """The hash of a file and its arrays."""
    path = Path(file)
    content = read_own(path, MOST_BYTES)
    arrays = _arrays(content, path.name)
    source = from_arrays(
        "features",
        *(arrays[part] for part in PARTS),
        real=real,
        title=f"The features of {path.name}",
        licence=licence,
        tuned=f"the features were made with {pretrained_on} (licence: {licence}); what that gives away is in no ε",
    )
    return hashlib.sha256(content).hexdigest(), source


def _arrays(content: bytes, name: str) -> dict[str, Array]:
    expected = f"expected the arrays {', '.join(PARTS)}, as numpy.savez writes them"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {member.filename.removesuffix(".npy"): member.file_size for member in archive.infolist()}
        if set(members) != set(PARTS):
            raise DpbenchError(f"{name}: has {', '.join(sorted(members)) or 'nothing'}; {expected}")
        size = sum(members.values())
        if size > (most := min(MOST_BYTES, max(SMALL, MOST_TIMES * len(content)))):
            raise DpbenchError(
                f"{name}: its arrays have {size:,} bytes; expected at most {most:,}, as a file of {len(content):,} may"
                " unpack to (numpy.savez does not pack)"
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return {part: found[part] for part in PARTS}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DpbenchError(f"{name}: cannot be read ({reason}); {expected}") from error
