"""Internal: the subwords and numbers of words are those of two published programs, text by text.

IMDb: subwords by their rule, Keras's encoding, padding, corrupt files, and what is known of the real reviews.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.datasets import DatasetCorrupt, DatasetMissing, data_folder, fetch_command, find_dataset, imdb
from dpbench.datasets._subwords import SubwordEncoder, build_vocabulary, tokens
from dpbench.datasets.imdb import pad

TEXTS = st.text(st.sampled_from("ab_ \\&undsc.,é\n"), max_size=30)
PIECES = ["ab_", "ab", "a_", "a", ".", "und", "\\&undsc", "b"]


def spelled(numbers: list[int]) -> str:
    """The text of subword numbers, written here from the meaning of the numbers: pieces, then bytes."""
    found = b""
    for number in numbers:
        if number > len(PIECES):
            found += bytes([number - 1 - len(PIECES)])
        else:
            found += PIECES[number - 1].replace("_", " ").encode()
    return found.decode()


@given(TEXTS)
def test_subwords_spell_the_text(text: str) -> None:
    assert spelled(SubwordEncoder(PIECES).encode(text)) == text


@given(TEXTS, st.integers(1, 12))
def test_the_last_subwords_are_the_last_of_all(text: str, last: int) -> None:
    encoder = SubwordEncoder(PIECES)
    assert encoder.encode(text, last=last) == encoder.encode(text)[-last:]


@given(TEXTS)
def test_tokens_lose_nothing_but_single_spaces(text: str) -> None:
    joined = "".join(token[:-1] + " " if token.endswith("_") else token for token in tokens(text))
    assert joined.replace("\\&undsc", "_") == text.replace("\\&undsc", "_")


def test_a_mixed_piece_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds 'a\.b'"):
        SubwordEncoder(["a.b"])


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=8), st.integers(1, 4))
def test_pieces_are_frequent_and_longer_than_a_byte(words: list[str], least: int) -> None:
    text = " ".join(words)
    counts: Counter[str] = Counter()
    for token in tokens(text):
        counts.update(token[i:j] for i in range(len(token)) for j in range(i + 1, len(token) + 1))
    for piece in build_vocabulary([text], least):
        assert len(piece) > 1
        assert counts[piece] >= least


def test_padding_stands_in_front_and_the_end_is_kept() -> None:
    assert pad([[], [1], [1, 2, 3, 4]], 3).tolist() == [[0, 0, 0], [0, 0, 1], [2, 3, 4]]


def test_keras_words_by_hand() -> None:
    encode = imdb._keras({"it's": 1, "film": 2, "été": 3, "rare": 9}, words=10)
    assert encode("It's a FILM, a (rare)-film!<br />ÉTÉ été\n") == [1, 4, 5, 2, 5, 6]


def test_missing_and_corrupt_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing) as caught:
        find_dataset("imdb").load(tmp_path)
    for part in ("aclImdb_v1.tar.gz", "imdb_word_index.json", fetch_command("imdb", tmp_path)):
        assert part in str(caught.value)
    assert find_dataset("imdb", {"preprocessing": "jl2021"}).missing(tmp_path) == (imdb.ARCHIVE,)
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(b"no")
    with pytest.raises(DatasetCorrupt) as corrupt:
        find_dataset("imdb", {"preprocessing": "jl2021"}).load(tmp_path)
    assert imdb.ARCHIVE.sha256 in str(corrupt.value)
    assert hashlib.sha256(b"no").hexdigest() in str(corrupt.value)


def test_an_unknown_preprocessing_is_refused() -> None:
    with pytest.raises(ValueError, match="preprocessing = 'raw': expected one of dpis2022, jl2021, bu2020"):
        find_dataset("imdb", {"preprocessing": "raw"})


@pytest.fixture(scope="module")
def folder() -> Path:
    if find_dataset("imdb").missing(data_folder()):
        pytest.skip(f"imdb is not in {data_folder()}: {fetch_command('imdb', data_folder())}")
    return data_folder()


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    return {path: content.decode() for path, content in imdb.ARCHIVE.contents("imdb", folder).items()}


def test_lengths_are_those_of_keras_own_copy(texts: dict[str, str], folder: Path) -> None:
    """Published of keras.datasets.imdb: mean lengths 238.71364 and 230.8042, longest 2,494, 2,315, shortest 11, 7."""
    import json

    ranks = json.loads((folder / imdb.WORD_INDEX.path).read_bytes())
    encode = imdb._keras(ranks, 10**9)
    for part, mean, longest, shortest in (("train/", 238.71364, 2494, 11), ("test/", 230.8042, 2315, 7)):
        lengths = np.array([len(encode(text)) for path, text in texts.items() if path.startswith(part)])
        assert len(lengths) == 25_000
        assert (lengths.sum() / 25_000, lengths.max(), lengths.min()) == (
            pytest.approx(mean, abs=1e-9),
            longest,
            shortest,
        )


def test_subwords_are_those_of_the_tutorial(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The data load under their pinned hash, and the tutorial's printed sentence has its printed numbers."""
    made: list[Any] = []

    def build(training: Any, least: int) -> list[str]:
        made.extend(build_vocabulary(training, least))
        return made

    monkeypatch.setattr(imdb, "build_vocabulary", build)
    loaded = find_dataset("imdb", {"preprocessing": "jl2021"}).load(data_folder())
    encoder = SubwordEncoder(made)
    assert encoder.size == 8_185
    assert encoder.encode("Hello TensorFlow.") == [4025, 222, 6307, 2327, 4043, 2120, 7975]
    assert loaded.input_shape == (150,)
    assert 0 <= float(loaded.train_inputs.min()) <= float(loaded.train_inputs.max()) < 8_185
    first = next(text for path, text in texts.items() if path.startswith("train/"))
    assert loaded.train_inputs[0].tolist() == pad([encoder.encode(first)], 150)[0].tolist()
