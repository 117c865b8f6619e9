"""Features from an .npz file: read without running code, pinned where asked, and every mistake in a sentence."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpbench.datasets import find_dataset, from_arrays
from dpbench.datasets.features import PARTS
from dpbench.errors import DpbenchError
from dpbench.plan.planning import Choices, context, make_plan, resolve
from dpbench.spec.loading import load_specs
from dpbench.spec.yaml_loader import parse, plain
from dpbench.store.records import Store
from tests.datasets.small_files import features

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_dataset.md"
SPEC = """
kind: run
name: mine
dataset: {name: features, parameters: {file: features.npz, pretrained_on: "PRETRAINED", licence: MIT}}
model: logistic
mechanism: noisy_sgd
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 4, epochs: 1, learning_rate: 0.1, clip_norm: 1.0}
seeds: 1
"""


class Opened:
    """A pickle of this opens a file."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("opened"),)


def test_the_arrays_of_the_file(tmp_path: Path) -> None:
    """As they are, whether packed or not; the pin is that of the file, the run's hash that of the content."""
    made = features(tmp_path)
    with np.load(made["file"]) as found:
        arrays = {part: found[part] for part in PARTS}
    expected = from_arrays("x", *(arrays[part] for part in PARTS)).sha256
    assert find_dataset("features", made).sha256 == expected
    digest = hashlib.sha256(Path(made["file"]).read_bytes()).hexdigest()
    assert find_dataset("features", {**made, "sha256": digest}).sha256 == expected
    np.savez_compressed(made["file"], **arrays)
    with pytest.raises(DpbenchError, match=f"sha256 = {digest}: the file features.npz has"):
        find_dataset("features", {**made, "sha256": digest})
    assert find_dataset("features", made).sha256 == expected


def test_the_way_to_make_them_that_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code and its parameters, with a network that normalises batches: each record's features are its own."""
    section = PAGE.read_text(encoding="utf-8").partition("## Features that you made")[2].partition("\n## ")[0]
    (code,), (text,) = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "yaml"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "make.py", "exec"), names)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    pictures, classes = torch.rand(300, 1, 5, 5), torch.arange(300) % 3
    names["write_features"](network, (pictures, classes), (pictures[:9], classes[:9]))
    described = plain(parse(text, "page.yaml").root)["dataset"]
    loaded = find_dataset(described["name"], described["parameters"]).load(None)
    assert loaded.train_inputs.shape == (300, 18)
    assert torch.allclose(loaded.train_inputs[:9], loaded.test_inputs, atol=1e-6)  # float32, another number of records
    assert torch.equal(loaded.test_targets, classes[:9])


def test_what_made_them_is_shown_and_is_in_no_key(tmp_path: Path) -> None:
    features(tmp_path)
    keys = set()
    for words in ("ResNet-18, ImageNet-1k, public", "a network of ours"):
        (tmp_path / "spec.yaml").write_text(SPEC.replace("PRETRAINED", words))
        (run,) = resolve(load_specs([tmp_path / "spec.yaml"])[0], [0])
        assert context(run)["tuned"] == (
            f"the features were made with {words} (licence: MIT); what that gives away is in no ε"
        )
        assert run.resolved["dataset"]["parameters"] == {}
        keys.add(run.key)
    assert len(keys) == 1


def content(**changes: Any) -> bytes:
    stream = io.BytesIO()
    arrays = {"train_inputs": np.eye(4), "train_targets": np.arange(4) % 2}
    arrays |= {"test_inputs": np.eye(4)[:2], "test_targets": np.arange(2)}
    np.savez(stream, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return stream.getvalue()


def damaged() -> bytes:
    found = bytearray(content())
    found[found.index(b"NUMPY") + 200] ^= 255
    return bytes(found)


def with_code() -> bytes:
    """The four members, one of them a pickle in the place of an array."""
    stream = io.BytesIO(content(test_targets=None))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("test_targets.npy", pickle.dumps(Opened()))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (b"", r"cannot be read \(File is not a zip file\); expected the arrays train_inputs"),
        (content()[:-30], "cannot be read"),
        (damaged(), "cannot be read .*CRC"),
        (with_code(), "test_targets has dtype .S.*: expected integers"),
        (content(test_targets=np.array([Opened(), 0], object)), "cannot be read .*allow_pickle=False"),
        (content(test_targets=None), "has test_inputs, train_inputs, train_targets; expected the arrays"),
        (content(more=np.eye(2)), "has more, test_inputs, .*; expected the arrays"),
        (content(train_targets=np.arange(4) / 2), "train_targets has dtype float64: expected integers"),
        (content(train_inputs=np.eye(4, dtype=int)), "train_inputs has dtype int64: expected floating point"),
        (content(test_inputs=np.full((2, 4), np.nan)), "holds values that are not finite"),
    ],
    ids=range(10),
)
def test_a_mistake_is_one_sentence(made: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("features.npz").write_bytes(made)
    with pytest.raises(DpbenchError, match=message) as caught:
        find_dataset("features", {"file": "features.npz", "pretrained_on": "public data"})
    assert "\n" not in str(caught.value)
    assert not Path("opened").exists()


def test_a_file_that_unpacks_to_more_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "features.npz").write_bytes(content())
    size = (tmp_path / "features.npz").stat().st_size
    monkeypatch.setattr("dpbench.datasets.features.MOST_BYTES", size)
    made = {"file": str(tmp_path / "features.npz"), "pretrained_on": "public data"}
    assert find_dataset("features", made).train_size == 4
    stream = io.BytesIO()
    np.savez_compressed(stream, train_inputs=np.zeros((4, 99)), train_targets=np.arange(4) % 2,
                        test_inputs=np.zeros((2, 99)), test_targets=np.arange(2))  # fmt: skip
    (tmp_path / "features.npz").write_bytes(stream.getvalue())
    with pytest.raises(DpbenchError, match=r"features.npz: its arrays have [\d,]+ bytes; expected at most"):
        find_dataset("features", made)
    with pytest.raises(DpbenchError, match=r"file = .*gone.npz: cannot be read"):
        find_dataset("features", {**made, "file": str(tmp_path / "gone.npz")})


def test_a_small_file_with_huge_arrays_is_not_unpacked(tmp_path: Path) -> None:
    made = features(tmp_path)
    with np.load(made["file"]) as found:
        arrays = {part: found[part] for part in PARTS}
    np.savez_compressed(made["file"], **arrays | {"train_inputs": np.zeros((1 << 26, 1), np.float32)})
    with pytest.raises(DpbenchError, match=r"its arrays have 268,43.* expected at most 268,435,456, as a file"):
        find_dataset("features", made)


def test_classes_with_gaps_make_no_huge_model() -> None:
    inputs = np.zeros((4, 2))
    with pytest.raises(DpbenchError, match="targets of 8 records hold 10000000: number the classes from 0"):
        from_arrays("x", inputs, [0, 1, 2, 10**7], inputs, [0, 1, 2, 3])


def test_a_file_that_is_still_to_be_made_is_skipped_with_its_sizes(tmp_path: Path) -> None:
    """They plan the runs and are in no key; a file of other sizes is refused."""
    sizes = "{train: 9, test: 3, width: 4, classes: 3}"
    text = SPEC.replace("licence: MIT", f"licence: MIT, if_absent: {sizes}")
    (tmp_path / "spec.yaml").write_text(text)

    def planned() -> Any:
        (run,) = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices()).runs
        return run

    run = planned()
    assert (run.action, run.examples, run.steps) == ("skip", 9, 3)
    assert run.reason == "dataset features: features.npz is not there: make the features (docs/own_dataset.md)"
    with pytest.raises(DpbenchError, match="is not there"):
        find_dataset("features", run.spec.dataset.parameters).load(None)
    features(tmp_path)
    there = planned()
    assert there.action == "train"
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert planned().key == there.key
    for wrong, message in {
        "{train: 8, test: 3, width: 4, classes: 3}": r"has \(9, 3, 3, \(4,\)\) .* expected \(8, 3, 3, \(4,\)\)",
        "{train: 9, test: 3, width: 4}": "expected four sizes",
    }.items():
        (tmp_path / "spec.yaml").write_text(text.replace(sizes, wrong))
        with pytest.raises(DpbenchError, match=message):
            planned()
