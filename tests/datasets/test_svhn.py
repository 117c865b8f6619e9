"""Street View House Numbers: small files of the same format, which pixel stands where, and what is no such file."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from dpbench.datasets import DatasetCorrupt, DatasetMissing, RemoteFile, find_dataset, svhn


def made(records: int, **changes: Any) -> bytes:
    generator = np.random.Generator(np.random.Philox(records))
    content = {"X": generator.integers(0, 256, (32, 32, 3, records), np.uint8)}
    content |= {"y": (np.arange(records) % 10 + 1).astype(np.uint8)[:, None]} | changes
    stream = io.BytesIO()
    savemat(stream, {name: value for name, value in content.items() if value is not None}, do_compression=True)
    return stream.getvalue()


def test_pixels_and_digits() -> None:
    pixels = np.zeros((32, 32, 3, 2), np.uint8)
    pixels[5, 7, 2, 1] = 51  # row, column, channel, record
    inputs, targets = svhn.parse_mat(made(2, X=pixels, y=np.array([[10], [3]], np.uint8)), "svhn", "demo.mat")
    assert (inputs.dtype, inputs.shape) == (np.float32, (2, 3, 32, 32))
    assert np.argwhere(inputs).tolist() == [[1, 2, 5, 7]]
    assert inputs[1, 2, 5, 7] == np.float32(0.2)
    assert targets.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "content expected a MATLAB file with X and y"),
        (b"MATLAB 5.0 MAT-file" + bytes(200), "content expected a MATLAB file"),
        (made(20)[:-300], "content expected a MATLAB file"),
        (made(20, y=None), "content expected a MATLAB file"),
        (made(20, X=np.zeros((32, 32, 3, 19), np.uint8)), r"X expected \(32, 32, 3, 20\) of uint8, found"),
        (made(20, X=np.zeros((32, 32, 3, 20))), r"found \(32, 32, 3, 20\) of float64"),
        (made(20, y=np.zeros((20, 1), np.uint8)), "y expected whole numbers from 1 to 10"),
        (made(20, y=np.full((20, 1), 0.5)), "y expected whole numbers from 1 to 10"),
    ],
    ids=range(8),
)
def test_another_content_is_corrupt(content: bytes, message: str) -> None:
    with pytest.raises(DatasetCorrupt, match=message):
        svhn.parse_mat(content, "svhn", "demo.mat")


def test_extra_records_stand_behind_the_training_records(tmp_path: Path) -> None:
    files, sizes = [], (30, 12, 25)  # training, test, extra
    (tmp_path / "svhn").mkdir()
    for file, records in zip((svhn.TRAIN, svhn.TEST, svhn.EXTRA), sizes, strict=True):
        content = made(records)
        (tmp_path / file.path).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(RemoteFile(file.path, file.urls, digest, len(content)))
    small = replace(svhn.dataset(extra=True), files=tuple(files), train_size=55, test_size=12)
    found = small.load(tmp_path)
    assert found.sha256 == small.sha256 != svhn.dataset().sha256
    for records, inputs in ((30, found.train_inputs[:30]), (25, found.train_inputs[30:]), (12, found.test_inputs)):
        assert inputs.numpy().tobytes() == svhn.parse_mat(made(records), "svhn", "x")[0].tobytes()
    with pytest.raises(DatasetCorrupt, match=r"records expected \(56, 12\), found \(55, 12\)"):
        replace(small, train_size=56).load(tmp_path)


def test_which_files_are_needed(tmp_path: Path) -> None:
    for extra, count in ((False, 2), (True, 3)):
        source = find_dataset("svhn", {"extra": extra})
        with pytest.raises(DatasetMissing, match="dpbench data fetch svhn") as caught:
            source.load(tmp_path)
        assert len(caught.value.files) == count
    assert find_dataset("svhn").sha256 != find_dataset("svhn", {"extra": True}).sha256
