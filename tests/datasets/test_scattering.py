"""Internal: a record's features are its own, in whatever pieces they are made.

Scattering features: their shape, their values by another route, the cache beside the data, and what is refused.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpbench.cli import training
from dpbench.datasets import Dataset, DatasetMissing, RemoteFile, find_dataset, scattering
from dpbench.datasets.scattering import INDEX, PARTS, kept_features
from dpbench.errors import DpbenchError
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import load_specs
from dpbench.store.records import Store

pytestmark = pytest.mark.usefixtures("one_thread")

needs_kymatio = pytest.mark.skipif(scattering.transform_obstacle() is not None, reason=scattering.INSTALL)


@dataclass(frozen=True)
class Pictures:
    """Random pictures that count as files of a folder, so that their features are kept there."""

    sha256: str = "ab" * 32
    channels: int = 2
    name: str = "pictures"
    title: str = "Random pictures"
    files: tuple[RemoteFile, ...] = (RemoteFile("pictures.bin", ("https://example.org/p",), "0" * 64, 4),)
    train_size: int = 9
    test_size: int = 4
    classes: int = 3
    licence: str = "none"
    citation: str = "none"
    url: str = "https://example.org/"
    real: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.channels, 8, 12

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:
        assert folder is not None
        return () if (folder / "pictures.bin").exists() else self.files

    def load(self, folder: Path | None = None) -> Dataset:
        assert folder is not None
        (folder / "read").touch()
        generator = torch.Generator().manual_seed(self.channels)
        parts = [torch.rand(n, *self.input_shape, generator=generator) for n in (self.train_size, self.test_size)]
        train, test = torch.arange(self.train_size) % 3, torch.arange(self.test_size) % 3
        return Dataset(self.name, "classification", parts[0], train, parts[1], test, 3, self.sha256, False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures.bin").touch()
    return tmp_path


def source(**more: Any) -> scattering.ScatteringSource:
    return scattering.ScatteringSource(Pictures(**more), depth=2, angles=4)


# What the features are


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        ({}, (81, 2, 2)),
        ({"of": "mnist"}, (81, 7, 7)),
        ({"of": "fashion_mnist"}, (81, 7, 7)),
        ({"of": "cifar10", "of_parameters": {"preprocessing": "imagenet"}}, (243, 8, 8)),
        ({"of": "cifar10", "depth": 1, "angles": 6}, (21, 16, 16)),
        ({"of": "mnist", "depth": 1}, (9, 14, 14)),
    ],
)
def test_shape_is_known_without_loading(parameters: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert find_dataset("scattering", parameters).input_shape == shape


@needs_kymatio
def test_features_of_a_constant_picture_are_its_average_alone() -> None:
    """Wavelets have mean 0: of each channel only the first feature is not 0, up to 1e-6 for float32.

    The average is off by 3e-5 of itself, since kymatio's low-pass filter sums up to that much more than 1.
    """
    found = np.concatenate(list(source()._pieces(torch.full((3, 2, 8, 12), 0.75))))
    assert found.shape == (3, *source().input_shape)
    channels = found.reshape(3, 2, -1, 2, 3)
    assert np.abs(channels[:, :, 0] - 0.75).max() < 1e-4
    assert np.abs(channels[:, :, 1:]).max() < 1e-6


@needs_kymatio
def test_first_order_features_by_a_plain_convolution() -> None:
    """|x ⋆ ψ| ⋆ φ by NumPy's Fourier transform, with kymatio's filters, of a picture that is padded already.

    1e-5 for float32. The second order is the same operation on these.
    """
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    transform = ScatteringTorch2D(1, (8, 8), 4, pre_pad=True)
    generator = torch.Generator().manual_seed(0)
    height, width = transform._M_padded, transform._N_padded
    picture = torch.rand(1, 1, height, width, generator=generator)
    found = transform(picture)[0, 0].double().numpy()
    x = np.fft.fft2(picture[0, 0].double().numpy())
    low = np.asarray(transform.phi["levels"][0]).squeeze()
    for angle in range(4):
        wave = np.asarray(transform.psi[angle]["levels"][0]).squeeze()
        envelope = np.abs(np.fft.ifft2(x * wave))
        smooth = np.fft.ifft2(np.fft.fft2(envelope) * low).real[::2, ::2]
        rows, columns = found.shape[1:]
        inner = smooth[1 : 1 + rows, 1 : 1 + columns]
        assert np.abs(found[1 + angle] - inner).max() < 1e-5


@needs_kymatio
def test_each_record_is_transformed_alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """In pieces of 2 as in one: no record's features depend on another; 1e-6 for the order of float32 sums."""
    whole = next(iter(source()._pieces(source().of.load(folder).train_inputs)))
    monkeypatch.setattr(scattering, "PICTURES", 2)
    parts = np.concatenate(list(source()._pieces(source().of.load(folder).train_inputs)))
    assert parts.shape == whole.shape == (9, *source().input_shape)
    assert np.abs(parts - whole).max() < 1e-6


@needs_kymatio
def test_channels_stand_one_after_another(folder: Path) -> None:
    """The features of a channel alone are a block of the whole's."""
    inputs = source().of.load(folder).train_inputs
    whole = next(iter(source()._pieces(inputs)))
    single = scattering.ScatteringSource(Pictures(channels=1), 2, 4)
    paths = scattering.paths(2, 4)
    for channel in range(2):
        alone = next(iter(single._pieces(inputs[:, channel : channel + 1])))
        assert np.abs(whole[:, channel * paths : (channel + 1) * paths] - alone).max() < 1e-6


def test_hash_names_what_determines_the_features() -> None:
    first = source()
    others = [
        replace(first, depth=1),
        replace(first, angles=6),
        replace(first, of=Pictures(sha256="cd" * 32)),
    ]
    assert len({first.sha256, *(other.sha256 for other in others)}) == 4
    assert first.sha256 == source().sha256


# The cache


def loaded(folder: Path) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return source().load(folder)


@needs_kymatio
def test_features_are_computed_once_and_kept(folder: Path) -> None:
    first = loaded(folder)
    (folder / "read").unlink()
    second = loaded(folder)
    assert not (folder / "read").exists(), "the pictures were not read again"
    for part in PARTS:
        assert torch.equal(getattr(first, part), getattr(second, part))
    second.train_inputs[0] += 1  # in memory alone
    assert torch.equal(loaded(folder).train_inputs, first.train_inputs)
    (kept,) = (folder / "scattering").iterdir()
    assert sorted(path.name for path in kept.iterdir()) == sorted([INDEX, *(f"{part}.npy" for part in PARTS)])


@needs_kymatio
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_file_is_named_and_computed_again(folder: Path, part: str, how: str) -> None:
    first = loaded(folder)
    (kept,) = (folder / "scattering").iterdir()
    path = kept / f"{part}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # `first` is mapped from the file, and keeps it
    if how != "gone":
        path.write_bytes(bytes(content if how == "flipped" else content[:-5]))
    with pytest.warns(UserWarning, match=f"{part}.npy is corrupt: SHA-256 expected .* computed again"):
        again = source().load(folder)
    assert torch.equal(getattr(first, part), getattr(again, part))
    assert torch.equal(getattr(loaded(folder), part), getattr(first, part))


@needs_kymatio
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps(dict.fromkeys(PARTS, 3))])
def test_a_damaged_index_is_named_and_computed_again(folder: Path, text: str) -> None:
    first = loaded(folder)
    (kept,) = (folder / "scattering").iterdir()
    (kept / INDEX).write_text(text)
    with pytest.warns(UserWarning, match="is corrupt"):
        assert torch.equal(source().load(folder).train_inputs, first.train_inputs)


@needs_kymatio
def test_what_was_interrupted_does_not_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of the test pictures leaves no index; the next load computes all of them."""

    def stop(self: Any, inputs: Any) -> Any:
        if len(inputs) == self.test_size:
            raise KeyboardInterrupt
        yield np.zeros((len(inputs), *self.input_shape), np.float32)

    with monkeypatch.context() as patch:
        patch.setattr(scattering.ScatteringSource, "_pieces", stop)
        with pytest.raises(KeyboardInterrupt):
            source().load(folder)
    (kept,) = (folder / "scattering").iterdir()
    assert kept_features(kept) is None
    assert float(loaded(folder).train_inputs.abs().max()) > 0


@needs_kymatio
def test_a_folder_that_cannot_be_written_is_left_alone(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's cache takes its place (root may write anywhere, so the answer of the system is replaced)."""
    import pooch

    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(pooch, "os_cache", lambda _: cache)
    loaded(folder)
    assert not (folder / "scattering").exists()
    assert len(list((cache / "scattering").iterdir())) == 1


@needs_kymatio
def test_embedded_data_leave_nothing_behind(tmp_path: Path) -> None:
    data = find_dataset("scattering").load(tmp_path)
    assert data.train_inputs.shape == (1437, 81, 2, 2)
    assert list(tmp_path.iterdir()) == []
    assert data.sha256 == find_dataset("scattering").sha256


# What is absent or refused


SPEC = (
    "kind: run\nname: features\ndataset: {{name: scattering, parameters: {{of: {of}}}}}\n"
    "model: {{name: scattering_linear, parameters: {{groups: 27}}}}\n"
    "mechanism: noisy_sgd\nbudget: {{noise_multiplier: 1.0, delta: 1e-4}}\n"
    "training: {{batch_size: 256, epochs: 1, learning_rate: 1.0, clip_norm: 1.0}}\nseeds: 1\n"
)


def planned(tmp_path: Path, of: str) -> Any:
    (tmp_path / "spec.yaml").write_text(SPEC.format(of=of))
    choices = Choices(device="cpu", data=tmp_path / "data")
    (run,) = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), choices).runs
    return run


def test_absent_pictures_skip_the_spec_with_the_command_that_gets_them(tmp_path: Path) -> None:
    run = planned(tmp_path, "mnist")
    assert run.action == "skip"
    assert f"dataset mnist is absent; get it: dpbench data fetch mnist --data {tmp_path / 'data'}" in run.reason
    with pytest.raises(DatasetMissing, match="dpbench data fetch mnist"):
        find_dataset("scattering", {"of": "mnist"}).load(tmp_path)


def test_absent_kymatio_skips_the_spec_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", _without_kymatio(__import__("importlib.util").util.find_spec))
    run = planned(tmp_path, "digits")
    assert run.action == "skip"
    assert "pip install 'kymatio==0.3.*'" in run.reason
    with pytest.raises(DpbenchError, match=r"pip install 'kymatio==0\.3\.\*'"):
        find_dataset("scattering").load(tmp_path)


def _without_kymatio(find: Any) -> Any:
    return lambda name, *rest: None if name == "kymatio" else find(name, *rest)


def test_another_kymatio_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: object())
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.30.1")
    assert "found 0.30.1" in (scattering.transform_obstacle() or "")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.3.7")
    assert scattering.transform_obstacle() is None


def test_parameters_of_the_pictures_go_through_a_spec(tmp_path: Path) -> None:
    run = planned(tmp_path, "cifar10, of_parameters: {preprocessing: imagenet}")
    assert run.resolved["dataset"]["parameters"] == {"of": "cifar10", "of_parameters": {"preprocessing": "imagenet"}}
    assert run.resolved["dataset"]["sha256"] != find_dataset("scattering", {"of": "cifar10"}).sha256
    assert "dpbench data fetch cifar10" in run.reason


def test_download_gets_the_files_of_every_dataset_that_features_are_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two specs name the same dataset, `scattering`, of different pictures; nothing is downloaded in this test."""
    for of in ("mnist", "fashion_mnist"):
        (tmp_path / f"{of}.yaml").write_text(SPEC.format(of=of).replace("name: features", f"name: {of}"))
    asked: list[str] = []
    monkeypatch.setattr(training, "fetch_files", lambda source, _: asked.append(source.files_of))
    options = {"only": (), "data": tmp_path / "data", "allow_code": False}
    training._download_for((tmp_path / "mnist.yaml", tmp_path / "fashion_mnist.yaml"), options)
    assert sorted(asked) == ["fashion_mnist", "mnist"]


@needs_kymatio
def test_embedded_pictures_are_planned(tmp_path: Path) -> None:
    assert planned(tmp_path, "digits").action == "train"


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"of": "imdb"}, r"of = 'imdb': its records have shape \(.*\); expected pictures"),
        ({"of": "mnist", "depth": 3}, "sides are multiples of 2.depth = 8"),
        ({"of": "minst"}, "did you mean 'mnist'"),
        ({"of": "scattering"}, "expected a dataset of pictures"),
        (
            {"of": "csv", "of_parameters": {"file": "absent.csv", "target": "y"}},
            "of = 'csv': expected a dataset of",
        ),
        ({"depth": 0}, "depth = 0: expected a whole number, 1 or more"),
        ({"angles": 1.5}, "angles = 1.5: expected a whole number, 1 or more"),
        ({"of": "mnist", "of_parameters": {"x": 1}}, "takes no parameters"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], match: str) -> None:
    with pytest.raises(DpbenchError, match=match):
        find_dataset("scattering", parameters)
