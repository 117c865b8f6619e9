"""CIFAR-10: the batch format, packed and unpacked forms, corrupt files, and what is known of the real pictures."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpbench.datasets import (
    DatasetCorrupt,
    DatasetMissing,
    check,
    cifar10,
    data_folder,
    describe,
    fetch_command,
    find_dataset,
)
from dpbench.datasets.cifar10 import parse_batch, scale

NAMES = [name for name, _ in cifar10.ARCHIVE.pinned]


def batch(seed: int, size: int = 4) -> tuple[np.ndarray[Any, Any], list[int], bytes]:
    """A small file of the format: its pixels, its labels and its bytes."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (size, 3072), dtype=np.uint8)
    labels = [int(label) for label in generator.integers(0, 10, size)]
    return pixels, labels, pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"x"}, protocol=4)


def packed(contents: dict[str, bytes]) -> bytes:
    """A .tar.gz with the top folder of CIFAR-10 and one file that nobody reads."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in {**contents, "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


CONTENTS = {name: batch(seed)[2] for seed, name in enumerate(NAMES)}
PACKED = packed(CONTENTS)
LISTED = "".join(f"{name} {hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(CONTENTS.items()))
SMALL = replace(
    cifar10.ARCHIVE,
    sha256=hashlib.sha256(PACKED).hexdigest(),
    size=len(PACKED),
    unpacked_sha256=hashlib.sha256(LISTED.encode()).hexdigest(),
    pinned=tuple((name, hashlib.sha256(content).hexdigest()) for name, content in CONTENTS.items()),
)


def lay_out(folder: Path, *, unpacked: bool) -> None:
    if not unpacked:
        (folder / SMALL.path).write_bytes(PACKED)
        return
    (folder / SMALL.unpacked_path).mkdir()
    for name, content in CONTENTS.items():
        (folder / SMALL.unpacked_path / name).write_bytes(content)
    (folder / SMALL.unpacked_path / "batches.meta").write_bytes(b"not read")


def source(archive: Any = SMALL) -> Any:
    return replace(find_dataset("cifar10"), files=(archive,))  # type: ignore[type-var]


@pytest.mark.parametrize("unpacked", [False, True])
def test_both_forms_give_the_members(tmp_path: Path, unpacked: bool) -> None:
    lay_out(tmp_path, unpacked=unpacked)
    assert SMALL.contents("cifar10", tmp_path) == CONTENTS
    assert [status.state for status in check(source(), tmp_path)] == ["ok"]


def test_an_incomplete_folder_is_missing_and_the_command_is_named(tmp_path: Path) -> None:
    lay_out(tmp_path, unpacked=True)
    (tmp_path / SMALL.unpacked_path / "data_batch_3").unlink()
    assert SMALL.locate(tmp_path) is None
    with pytest.raises(DatasetMissing) as caught:
        find_dataset("cifar10").load(tmp_path)
    assert fetch_command("cifar10", tmp_path) in str(caught.value)
    assert "170.5 MB" in describe(find_dataset("cifar10"), tmp_path)


@pytest.mark.parametrize("unpacked", [False, True])
def test_a_corrupt_file_is_named_with_both_hashes(tmp_path: Path, unpacked: bool) -> None:
    lay_out(tmp_path, unpacked=unpacked)
    name = "cifar-10-batches-py/data_batch_2" if unpacked else SMALL.path
    content = bytearray((tmp_path / name).read_bytes())
    content[100] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetCorrupt) as caught:
        SMALL.contents("cifar10", tmp_path)
    expected = dict(SMALL.pinned)["data_batch_2"] if unpacked else SMALL.sha256
    for part in (str(tmp_path / name), expected, hashlib.sha256(content).hexdigest()):
        assert part in str(caught.value)
    assert [status.state for status in check(source(), tmp_path)] == ["corrupt"]


def test_a_right_hash_of_a_broken_archive_is_said(tmp_path: Path) -> None:
    broken = replace(SMALL, sha256=hashlib.sha256(PACKED[:-400]).hexdigest())
    (tmp_path / SMALL.path).write_bytes(PACKED[:-400])
    with pytest.raises(DatasetCorrupt, match=r"expected a whole \.tar\.gz"):
        broken.contents("cifar10", tmp_path)


def test_a_batch_is_read_as_written() -> None:
    """Red rows first, then green, then blue; the reference is NumPy's own reshaping of one row."""
    pixels, labels, content = batch(5)
    found, targets = parse_batch(content, dataset="d", file="f")
    assert found.shape == (4, 3, 32, 32)
    assert targets.tolist() == labels
    assert found[2, 1, 3, 7] == pixels[2, 1024 + 3 * 32 + 7]


@pytest.mark.parametrize(
    "value",
    [
        {b"data": np.zeros((2, 3), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0.5, 1.0]},
        {b"labels": [0]},
        [1, 2],
        Counter("ab"),
    ],
)
def test_another_format_is_refused(value: Any) -> None:
    with pytest.raises(DatasetCorrupt, match=r"dataset 'd': f is corrupt"):
        parse_batch(pickle.dumps(value, protocol=4), dataset="d", file="f")


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    with pytest.raises(DatasetCorrupt, match="it names"):
        parse_batch(pickle.dumps(Evil()), dataset="d", file="f")
    assert not (tmp_path / "ran").exists()


def test_imagenet_scaling_is_its_formula() -> None:
    """Against float64: three roundings of values below 3, so at most 3 * 2^-24 * 3 * (1 / 0.224)."""
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(256, 3, 1, 1)
    means, deviations = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    for channel in range(3):
        exact = (pixels[:, channel] / 255.0 - means[channel]) / deviations[channel]
        assert np.abs(scale(pixels, "imagenet")[:, channel] - exact).max() < 9 * 2.0**-24 / 0.224


def test_an_unknown_preprocessing_is_refused() -> None:
    with pytest.raises(ValueError, match="preprocessing = 'raw': expected one of unit, imagenet"):
        find_dataset("cifar10", {"preprocessing": "raw"})


def test_the_real_pictures_are_the_known_ones() -> None:
    """Facts that are published of CIFAR-10: 5,000 and 1,000 of each class, the channels' means, the first labels."""
    found = find_dataset("cifar10")
    if found.missing(data_folder()):
        pytest.skip(f"cifar10 is not in {data_folder()}: {fetch_command('cifar10', data_folder())}")
    loaded = found.load(data_folder())
    assert loaded.train_targets.bincount().tolist() == [5000] * 10
    assert loaded.test_targets.bincount().tolist() == [1000] * 10
    means = loaded.train_inputs.double().mean((0, 2, 3)).tolist()
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=6e-5)
    assert loaded.train_targets[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert loaded.test_targets[:5].tolist() == [3, 8, 8, 0, 6]  # cat, ship, ship, airplane, frog
