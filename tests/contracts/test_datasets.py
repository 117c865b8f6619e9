"""The contract that every member of `catalog("datasets")` meets, whoever wrote it.

A member that is made of the user's file gets a small one of `tests/datasets/small_files.py`, by its name there.
A member whose files are not in the data folder (DPBENCH_DATA, or the default), or that says by `obstacle` what else it
lacks, skips the tests that load it. A member whose arrays are computed in floating point declares `determined_by`:
its SHA-256 is that of what determines them.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from dpbench.catalog import catalog, of_a_file
from dpbench.datasets import (
    Dataset,
    DatasetMissing,
    DatasetSource,
    check,
    content_hash,
    data_folder,
    describe,
    find_dataset,
    state,
    summary,
)
from dpbench.tasks import task_of
from tests.datasets.small_files import MADE

NAMES = sorted(catalog("datasets"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `fetch` may open a connection, and no test of this file calls it."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a dataset opened a network connection outside fetch()")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module", params=NAMES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatasetSource:
    name = request.param
    made = find_dataset(name, MADE[name](tmp_path_factory.mktemp(name)) if of_a_file(name) else None)
    assert made.name == name
    return made


@pytest.fixture(scope="module")
def loaded(source: DatasetSource) -> Dataset:
    if missing := source.missing(data_folder()):
        pytest.skip(f"{source.name}: {len(missing)} files are not in {data_folder()} (set DPBENCH_DATA)")
    _skip_if_hindered(source)
    return source.load(data_folder())


def _skip_if_hindered(source: DatasetSource) -> None:
    """A source may say by a function `obstacle` why it cannot be loaded here, with the command that helps."""
    obstacle = source.obstacle(data_folder()) if hasattr(source, "obstacle") else None
    if obstacle is not None:
        pytest.skip(obstacle)


def test_there_is_an_embedded_dataset() -> None:
    assert any(state(find_dataset(name)) == "embedded" for name in set(NAMES) - set(MADE))


def test_declares_itself(source: DatasetSource) -> None:
    assert source.train_size > 0
    assert source.test_size > 0
    assert source.classes == 1 if task_of(source) == "regression" else source.classes >= 2
    assert source.input_shape
    assert all(side > 0 for side in source.input_shape)
    assert re.fullmatch("[0-9a-f]{64}", source.sha256)
    for text in (source.title, source.licence, source.citation):
        assert text.strip()
    assert re.match("https?://", source.url) or source.name in MADE
    assert len({file.path for file in source.files}) == len(source.files)
    for file in source.files:
        assert file.size > 0
        assert all(re.match("https?://", url) for url in file.urls)


def test_numerics_version_is_declared(source: DatasetSource) -> None:
    module = __import__(catalog("datasets")[source.name].module, fromlist=["NUMERICS"])
    assert isinstance(module.NUMERICS, int)
    assert module.NUMERICS >= 1


def test_missing_agrees_with_load(source: DatasetSource, tmp_path: Path) -> None:
    assert source.missing(tmp_path) == source.files
    if not source.files:
        _skip_if_hindered(source)
        assert isinstance(source.load(tmp_path), Dataset)
        return
    with pytest.raises(DatasetMissing) as caught:
        source.load(tmp_path)
    message = str(caught.value)
    assert caught.value.files == source.files
    assert f"dpbench data fetch {getattr(source, 'files_of', source.name)} --data {tmp_path}" in message
    for file in source.files:
        assert file.path in message
    assert list(tmp_path.iterdir()) == []


def test_description_needs_no_data(source: DatasetSource, tmp_path: Path) -> None:
    text = describe(source, tmp_path)
    assert f"{source.train_size:,}" in text
    assert source.licence in text
    facts = json.loads(json.dumps(summary(source, tmp_path)))
    assert facts["state"] == ("missing" if source.files else "embedded")
    assert facts["bytes_to_fetch"] == sum(file.size for file in source.files)
    assert [status.state for status in check(source, tmp_path)] == ["missing"] * len(source.files) or not source.files


def test_shapes_and_types_are_the_declared_ones(source: DatasetSource, loaded: Dataset) -> None:
    assert (loaded.name, loaded.classes, loaded.real) == (source.name, source.classes, source.real)
    assert loaded.task == task_of(source)
    assert loaded.input_shape == source.input_shape
    for inputs, targets, size in (
        (loaded.train_inputs, loaded.train_targets, source.train_size),
        (loaded.test_inputs, loaded.test_targets, source.test_size),
    ):
        assert inputs.shape == (size, *source.input_shape)
        assert inputs.dtype == torch.float32
        assert targets.shape == (size,)
        assert targets.dtype == (torch.float32 if task_of(source) == "regression" else torch.int64)
        assert inputs.device.type == targets.device.type == "cpu"
        assert inputs.is_contiguous()
        assert bool(torch.isfinite(inputs).all())
        assert bool(torch.isfinite(targets).all())
        if task_of(source) == "language_modelling":  # a text need not have every word of its dictionary
            assert 0 < int(targets.min()) <= int(targets.max()) < source.classes  # and 0 is padding
        elif task_of(source) != "regression":  # every class occurs and no other value does
            assert torch.unique(targets).tolist() == list(range(source.classes))


def test_content_hash_is_the_pinned_one(source: DatasetSource, loaded: Dataset) -> None:
    assert loaded.sha256 == source.sha256
    if hasattr(source, "determined_by"):
        text = json.dumps(source.determined_by, sort_keys=True)
        assert hashlib.sha256(text.encode()).hexdigest() == source.sha256
        return
    # computed here anew, by the definition: dtype, shape and little-endian bytes of the four arrays in order
    digest, numbers = hashlib.sha256(), "float32" if task_of(source) == "regression" else "int64"
    for tensor, dtype in (
        (loaded.train_inputs, "float32"),
        (loaded.train_targets, numbers),
        (loaded.test_inputs, "float32"),
        (loaded.test_targets, numbers),
    ):
        digest.update(" ".join([dtype, *map(str, tensor.shape)]).encode() + b"\n")
        digest.update(tensor.numpy().astype(np.dtype(dtype).newbyteorder("<")).tobytes())
    assert digest.hexdigest() == source.sha256


def test_no_test_record_is_a_training_record(source: DatasetSource, loaded: Dataset) -> None:
    """But for the published ones that a source declares, and counts, as `shared_records`; texts begin alike."""
    parts = [loaded.train_inputs, loaded.test_inputs]
    if task_of(source) == "language_modelling":  # few words, or none, stand before many others: those of full length
        parts = [inputs[(inputs > 1).all(1)] for inputs in parts]
    train, test = (
        {hashlib.blake2b(record.tobytes(), digest_size=16).digest() for record in inputs.numpy()} for inputs in parts
    )
    assert len(train & test) == getattr(source, "shared_records", 0)


def test_loads_the_same_twice_into_separate_memory(source: DatasetSource, loaded: Dataset) -> None:
    tensors = (loaded.train_inputs, loaded.train_targets, loaded.test_inputs, loaded.test_targets)
    before = content_hash(*tensors)
    again = source.load(data_folder())
    assert again.sha256 == loaded.sha256
    assert content_hash(again.train_inputs, again.train_targets, again.test_inputs, again.test_targets) == before
    again.train_inputs[0] += 1.0
    again.train_targets[0] = (again.train_targets[0] + 1) % max(2, source.classes)
    assert content_hash(*tensors) == before
    assert before == source.sha256 or hasattr(source, "determined_by")
    if not source.files:
        assert source.load(None).sha256 == source.sha256


def test_every_file_is_checked_as_published(source: DatasetSource, loaded: Dataset) -> None:
    statuses = check(source, data_folder())
    assert loaded.sha256 == source.sha256
    assert [status.state for status in statuses] == ["ok"] * max(1, len(source.files))
    assert all(status.expected == status.found for status in statuses)
