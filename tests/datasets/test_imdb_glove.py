"""Internal: vectors are made from two files of gigabytes, for which small ones stand in.

IMDb as GloVe vectors: words to vectors, what is absent or corrupt, and the archive read as it is published.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.datasets import DatasetCorrupt, DatasetMissing, imdb_glove
from dpbench.datasets.imdb import WORD_INDEX
from dpbench.errors import DpbenchError

RANKS = {"the": 1, "film": 2, "lost": 3, "rare": 9}
TEXT = b"the 1 2\nfilm 0.5 -1\nother 7 7\nrare 3 3\n"


@dataclass(frozen=True)
class _Texts:
    """Stands for the reviews as numbers; four of them."""

    words: int = 7

    def load(self, folder: Path) -> Any:
        del folder
        numbers = torch.tensor([[0.0, 1.0, 4.0], [2.0, 5.0, 6.0]])
        targets = torch.tensor([0, 1])
        return _Loaded(numbers, targets, numbers.flip(0), targets)


@dataclass(frozen=True)
class _Loaded:
    train_inputs: torch.Tensor
    train_targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with GloVe of width 2 packed as published and an index of four words; hashes and width fit them."""
    path = tmp_path / imdb_glove.GLOVE.path
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.6B.50d.txt", "the 0\n")
        archive.writestr(imdb_glove.MEMBER, TEXT)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    glove = replace(imdb_glove.GLOVE, sha256=digest, unpacked_sha256=hashlib.sha256(TEXT).hexdigest())
    index = tmp_path / WORD_INDEX.path
    index.parent.mkdir(parents=True)
    index.write_text(json.dumps(RANKS))
    words = replace(WORD_INDEX, sha256=hashlib.sha256(index.read_bytes()).hexdigest())
    made = imdb_glove.vectors_of
    monkeypatch.setattr(imdb_glove, "GLOVE", glove)
    monkeypatch.setattr(imdb_glove, "WORD_INDEX", words)
    monkeypatch.setattr(imdb_glove, "_NUMBERS", _Texts())
    monkeypatch.setattr(imdb_glove, "vectors_of", lambda ranks, words, lines: made(ranks, words, lines, width=2))
    return tmp_path


def _source() -> Any:
    return imdb_glove.ImdbGloveSource(files=(WORD_INDEX, imdb_glove.GLOVE))


EXPECTED = [[[0, 0], [0, 0], [1, 2]], [[0, 0], [0.5, -1], [0, 0]]]  # padding, start, the; rare, film, lost


def test_every_number_becomes_the_vector_of_its_word(small: Path) -> None:
    found = _source().load(small)
    assert found.train_inputs.tolist() == EXPECTED
    assert found.test_inputs.tolist() == EXPECTED[::-1]
    assert found.train_inputs.dtype == torch.float32


def test_the_text_may_lie_there_unpacked(small: Path) -> None:
    (small / imdb_glove.GLOVE.path).unlink()
    (small / imdb_glove.GLOVE.unpacked_path).write_bytes(TEXT)
    assert _source().load(small).train_inputs.tolist() == EXPECTED


def test_a_corrupt_archive_is_named_with_both_hashes(small: Path) -> None:
    path = small / imdb_glove.GLOVE.path
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(DatasetCorrupt) as caught:
        _source().load(small)
    assert imdb_glove.GLOVE.sha256 in str(caught.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in str(caught.value)


def test_an_archive_without_the_text_is_named(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small / imdb_glove.GLOVE.path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.6B.50d.txt", "the 0\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(imdb_glove, "GLOVE", replace(imdb_glove.GLOVE, sha256=digest))
    with pytest.raises(DatasetCorrupt, match=imdb_glove.MEMBER):
        _source().load(small)


def test_absent_files_are_told_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match=r"dpbench data fetch imdb_glove --data "):
        imdb_glove.dataset().load(tmp_path)


def test_a_vector_of_another_length_is_told() -> None:
    with pytest.raises(DpbenchError, match="'the' has 1 numbers: expected 2"):
        imdb_glove.vectors_of(RANKS, 7, [b"the 1"], width=2)


def test_the_model_sees_vectors_and_has_the_papers_parameters() -> None:
    from dpbench.models.dpis_rnn import model

    source = imdb_glove.dataset()
    assert source.input_shape == (80, 100)
    assert sum(p.numel() for p in model(source.input_shape, source.classes).parameters()) == 20_946
