"""Features that are computed once and kept beside the data: whole or not at all, each file held to its SHA-256.

A folder holds four arrays as .npy files and `features.json`, written last, with their hashes. Reading maps the files
into memory, so that 4 GB of features need no 4 GB of memory; what is changed in memory never reaches the files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpbench.atomic import clean_folder, write_text, writing
from dpbench.datasets._base import sha256_of

Array = np.ndarray[Any, Any]

PARTS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
INDEX = "features.json"


def kept_features(folder: Path) -> tuple[Array, ...] | None:
    """The four arrays, mapped into memory; None where there are none, or where a file is not what was written.

    A file that is there but damaged is named in a warning, with both hashes; the caller computes it again.
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
