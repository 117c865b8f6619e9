"""A user's own dataset: from arrays, by a factory, and as the how-to page tells it."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpbench.datasets import (
    Dataset,
    DatasetCorrupt,
    DatasetMissing,
    check,
    content_hash,
    describe,
    find_dataset,
    from_arrays,
    summary,
)
from dpbench.errors import DpbenchError

PROJECT = Path(__file__).resolve().parents[2]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tiny(**changes: Any) -> Any:
    arrays: dict[str, Any] = {
        "train_inputs": np.linspace(0, 1, 12).reshape(4, 3),
        "train_targets": [0, 1, 0, 1],
        "test_inputs": torch.ones(2, 3, requires_grad=True),
        "test_targets": torch.tensor([1, 0], dtype=torch.int32),
    }
    return from_arrays("tiny", **(arrays | changes))


def test_from_arrays_is_a_source() -> None:
    source = tiny(real=False)
    assert (source.train_size, source.test_size, source.input_shape, source.classes) == (4, 2, (3,), 2)
    loaded = source.load(None)
    assert loaded.sha256 == source.sha256 == source.load().sha256
    assert not loaded.real
    assert loaded.train_inputs.dtype == torch.float32
    loaded.train_inputs.zero_()
    assert source.load(None).sha256 == source.sha256
    assert summary(source)["state"] == "embedded"
    assert tiny(classes=5).classes == 5
    assert [status.state for status in check(source)] == ["ok"]


def test_from_arrays_copies() -> None:
    inputs = np.zeros((4, 3), np.float32)
    source = tiny(train_inputs=inputs)
    inputs += 1
    assert float(source.load(None).train_inputs.max()) == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_inputs": np.zeros((4, 3), np.uint8)}, "train_inputs has dtype uint8: expected floating point"),
        ({"train_inputs": np.zeros(4)}, r"train_inputs has shape \(4,\)"),
        ({"train_inputs": np.zeros((0, 3)), "train_targets": np.zeros(0, int)}, "at least one record"),
        ({"train_inputs": [[1.0], [1.0, 2.0]]}, "train_inputs is not an array"),
        ({"test_inputs": np.full((2, 3), np.nan)}, "test_inputs holds values that are not finite"),
        ({"test_inputs": np.full((2, 3), 1e300)}, "test_inputs holds values that are not finite"),
        ({"test_inputs": np.zeros((2, 4))}, r"test_inputs have records of shape \(4,\): expected \(3,\)"),
        ({"train_targets": [0, 1, 0]}, r"train_targets has shape \(3,\): expected \(4,\)"),
        ({"train_targets": [0, 1, 0, -1]}, "train_targets holds -1"),
        ({"train_targets": [0.0, 1, 0, 1]}, "train_targets has dtype float64: expected integers"),
        ({"classes": 1}, "classes = 1: expected more than the largest target, 1"),
        ({"train_targets": [0.5] * 4, "test_inputs": np.zeros((2, 3), int)}, "train_targets.*; test_inputs"),
    ],
)
def test_from_arrays_names_the_mistake(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DpbenchError, match=f"dataset 'tiny': .*{message}"):
        tiny(**changes)


def test_dataset_checks_its_tensors() -> None:
    loaded = find_dataset("digits").load(None)
    good = {name: getattr(loaded, name) for name in ("train_inputs", "train_targets", "test_inputs", "test_targets")}
    for name, value in (
        ("train_inputs", loaded.train_inputs.double()),
        ("train_targets", loaded.train_targets[:-1]),
        ("test_inputs", loaded.test_inputs.reshape(-1, 64)),
        ("test_targets", loaded.test_targets.float()),
    ):
        with pytest.raises(DpbenchError, match="expected"):
            Dataset(name="d", task="classification", classes=10, sha256="", real=True, **(good | {name: value}))


OWN = """
from dataclasses import replace

import torch
from dpbench.datasets import Dataset, content_hash, from_arrays


def made(records: int = 4):
    return from_arrays("made", torch.zeros(records, 2), [0, 1] * (records // 2), torch.ones(2, 2), [0, 1], real=False)


def tensors():
    return made().load(None)


def wrong_hash():
    return replace(made().load(None), sha256="0" * 64)


def nothing():
    return 3


ready = made(records=2)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_dpbench_data.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_dpbench_data", None)


@pytest.mark.usefixtures("own")
def test_a_factory_makes_a_dataset() -> None:
    assert find_dataset("own_dpbench_data:made", {"records": 8}).train_size == 8
    assert find_dataset("own_dpbench_data:ready").train_size == 2
    source = find_dataset("own_dpbench_data:tensors")
    assert source.sha256 == find_dataset("own_dpbench_data:made").sha256 == source.load(None).sha256
    assert (source.name, source.real) == ("made", False)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("own_dpbench_data:made", {"rows": 3}, r"'rows'; its parameters are \(records: 'int' = 4\)|records: int = 4"),
        ("own_dpbench_data:ready", {"rows": 3}, "takes no parameters: remove rows = 3"),
        (
            "own_dpbench_data:nothing",
            {},
            "is an object of type int: expected a Dataset, or a source with the members .*from_arrays",
        ),
        ("own_dpbench_data:wrong_hash", {}, "its sha256 = '0{64}', but content_hash of its tensors is"),
        ("own_dpbench_data:absent", {}, "cannot load own_dpbench_data:absent"),
        ("digts", {}, "did you mean 'digits'"),
    ],
)
def test_a_wrong_factory_is_explained(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(DpbenchError, match=message):
        find_dataset(name, parameters)


def test_the_how_to_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PROJECT / "docs" / "own_dataset.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", page, re.DOTALL)
    assert code
    for module, text in code:
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {module for module, _ in code} == {"my_data", "my_table"}
    named = re.findall(r'^dataset: \{name: "([\w.]+:[\w.]+)"(?:, parameters: \{(\w+): (\d+)\})?', page, re.MULTILINE)
    assert named
    for name, parameter, value in named:
        source = find_dataset(name, {parameter: int(value)} if parameter else None)
        assert source.load(None).sha256 == source.sha256
        assert source.name in describe(source)
    _try_the_table(find_dataset("my_table:table"), tmp_path)
    for module, _ in code:
        sys.modules.pop(module, None)


def _try_the_table(documented: Any, folder: Path) -> None:
    """The page's source for a file, on a table made here: absent, damaged, then read."""
    rows = [[index / 8, index / 4, 1.0, 0.5, index % 3] for index in range(100)]
    content = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
    file = replace(documented.files[0], sha256=sha256(content), size=len(content))
    inputs = np.array(rows, np.float32)[:, :4]
    targets = np.array([row[4] for row in rows], np.int64)
    digest = content_hash(inputs[:80], targets[:80], inputs[80:], targets[80:])
    source = replace(documented, files=(file,), sha256=digest)
    with pytest.raises(DatasetMissing, match="dpbench data fetch my_table --data"):
        source.load(folder)
    (folder / file.path).parent.mkdir()
    (folder / file.path).write_bytes(content[1:])
    with pytest.raises(DatasetCorrupt, match=sha256(content[1:])):
        source.load(folder)
    (folder / file.path).write_bytes(content)
    loaded = source.load(folder)
    assert (loaded.sha256, len(loaded.test_targets)) == (digest, documented.test_size)
    with pytest.raises(DatasetCorrupt, match="content SHA-256"):
        replace(source, sha256="0" * 64).load(folder)
