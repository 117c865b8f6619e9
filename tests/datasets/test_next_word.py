"""Internal: one line moves no other line's records, whatever the words; the corpus in a folder of the test.

Texts as next-word records: windows by hand, a public dictionary, and mistakes in a sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.cli import main
from dpbench.datasets import Dataset, DatasetCorrupt, brown, data_folder, find_dataset
from dpbench.datasets._archive import tree_sha256
from dpbench.datasets._words import records, words_of
from dpbench.datasets.next_word import NextWordSource
from dpbench.errors import DpbenchError
from dpbench.plan.parts import dataset_source
from dpbench.plan.planning import Choices, context, make_plan, resolve
from dpbench.spec.loading import load_specs
from dpbench.store.records import Store

TEXTS = {
    "brown/ca01": b"\n\n\tThe/at Jury's/nn$ half/nn 1/2/cd and/cc The/at-tl half/nn ./.\n\n\n\tA/at ``/`` !/.\n",
    "brown/cr09": b"And/cc the/at rest/nn\n",
}
WORDS = ["to", "be", "or", "not", "that", "is"]
LINES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=7), max_size=6)


@pytest.fixture
def small_brown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with an archive of the corpus' form, whose texts are pinned in place of the real ones."""
    (tmp_path / "data" / "text").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "data" / brown.FILE.path, "w") as archive:
        for name, text in {**TEXTS, "brown/README": b"not/read me/too", "brown/cats.txt": b"ca01 news"}.items():
            archive.writestr(name, text)
    pinned = dataclasses.replace(brown.FILE, texts_sha256=tree_sha256(TEXTS))
    monkeypatch.setattr(brown, "FILE", pinned)
    brown._corpus.cache_clear()
    return tmp_path / "data"


def own(folder: Path, text: str | bytes, **parameters: Any) -> Any:
    """The source of a text of the user's."""
    (folder / "mine.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = find_dataset("next_word", {"file": str(folder / "mine.txt"), **parameters})
    assert isinstance(found, NextWordSource)
    return found


def rows(data: Dataset) -> Counter[tuple[float, ...]]:
    """The training records with their classes, counted."""
    pairs = zip(data.train_inputs.tolist(), data.train_targets.tolist(), strict=True)
    return Counter((*inputs, target) for inputs, target in pairs)


def test_sentences_of_the_corpus_without_tags(small_brown: Path) -> None:
    """A tag stands behind the last slash of a word; a sentence without a word of two letters is left out."""
    lines, ranking = brown.corpus(small_brown)
    assert [list(line) for line in lines] == [["the", "jury", "half", "and", "the", "half"], ["and", "the", "rest"]]
    assert ranking == ("the", "and", "half", "jury", "rest")  # 3, 2, 2, 1, 1


def test_another_archive_is_refused_unless_its_texts_are_the_same(small_brown: Path) -> None:
    path = small_brown / brown.FILE.path
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in reversed(TEXTS.items()):
            archive.writestr(name, text)
    assert brown.FILE.digest(path) == brown.FILE.pinned_sha256(path)
    assert len(brown.corpus(small_brown)[0]) == 2
    for content in (path.read_bytes()[:50], b""):
        path.write_bytes(content)
        assert brown.FILE.digest(path) != brown.FILE.pinned_sha256(path)
        with pytest.raises(DatasetCorrupt, match="a whole zip archive"):
            brown.corpus(small_brown)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("brown/ca01", TEXTS["brown/ca01"])
    with pytest.raises(DatasetCorrupt, match="SHA-256 of its texts"):
        brown.corpus(small_brown)


@pytest.mark.data
def test_the_counts_that_the_file_states() -> None:
    """How many words there are, and which of them occur twice; even with every mark kept they are not 36,743."""
    folder = data_folder()
    if brown.dataset().missing(folder):
        pytest.skip(f"brown: text/brown.zip is not in {folder} (set DPBENCH_DATA)")
    lines, ranking = brown.corpus(folder)
    counts = Counter(word for line in lines for word in line)
    assert len(ranking) == len(counts) == brown.ALL_WORDS
    assert sum(count > 1 for count in counts.values()) == brown.TWICE
    assert min(counts[word] for word in ranking[: brown.TWICE]) == 2
    tokens = Counter(
        token.rpartition("/")[0]
        for text in brown.FILE.texts("brown", folder).values()
        for token in text.decode().split()
    )
    assert sum(count > 1 for count in tokens.values()) == 30_498
    sizes = [sum(len(lines[at]) for at in part) for part in brown.parts_of(len(lines))]
    assert sizes == [brown.dataset().train_size, brown.dataset().test_size]


@settings(max_examples=50, deadline=None)
@given(LINES.filter(bool), st.integers(1, 4))
def test_every_word_with_what_stands_before_it_in_its_line(lines: list[list[str]], places: int) -> None:
    numbers = {"to": 2, "be": 3, "or": 4}
    expected = [
        (
            [0] * max(0, places - at) + [numbers.get(word, 1) for word in line[max(0, at - places) : at]],
            numbers.get(word, 1),
        )
        for line in lines
        for at, word in enumerate(line)
    ]
    inputs, targets = records(lines, numbers, places)
    assert list(zip(inputs.tolist(), targets.tolist(), strict=True)) == expected
    assert (inputs.dtype, targets.dtype) == (np.float32, np.int64)


@settings(max_examples=50, deadline=None)
@given(LINES.filter(lambda lines: len(lines) > 1), st.integers(1, 4), st.data())
def test_a_line_gives_at_most_so_many_records_and_moves_no_others(lines: list[list[str]], most: int, data: Any) -> None:
    """So with `per_line: 1` a line that is added or removed is one record."""
    numbers = {word: 2 + at for at, word in enumerate(WORDS)}

    def counted(some: list[list[str]]) -> Counter[tuple[float, ...]]:
        inputs, targets = records(some, numbers, 3, most)
        return Counter((*row, target) for row, target in zip(inputs.tolist(), targets.tolist(), strict=True))

    at = data.draw(st.integers(0, len(lines) - 1))
    whole, without = counted(lines), counted(lines[:at] + lines[at + 1 :])
    assert not without - whole
    assert (whole - without).total() == min(most, len(lines[at]))


def test_the_unit_of_privacy_is_said(tmp_path: Path, small_brown: Path) -> None:
    """One record for each line by default; else the report says that no line is protected, and the sizes are larger."""
    text = "The jury and\nthe rest of them\nhalf\n"
    line, some, every = (own(tmp_path, text, test=0.34, **more) for more in ({}, {"per_line": 2}, {"per_line": "all"}))
    assert [one.train_size for one in (line, some, every)] == [2, 3, 5]
    assert line.tuned == ""
    assert "protects no line, which gives as many records as 2 at most" in some.tuned
    assert "as many records as words it has" in every.tuned
    assert len({one.sha256 for one in (line, some, every)}) == 3
    assert line.test_size == every.test_size == 3
    assert [len(one.load(small_brown).train_targets) for one in (line, some, every)] == [2, 3, 5]


def test_the_dictionary_is_the_public_one(tmp_path: Path, small_brown: Path) -> None:
    """A word of the text that the corpus lacks is 1, however often it occurs; the classes are those of the corpus."""
    data = own(tmp_path, "secret the secret half\nsecret\n", test=0.5, per_line="all", words=3, places=2).load(
        small_brown
    )
    assert (data.classes, data.task) == (5, "language_modelling")
    text = [*data.train_targets.tolist(), *data.test_targets.tolist()]
    assert sorted(text) == [1, 1, 1, 2, 4]  # secret three times, the, half
    assert own(tmp_path, "nothing known\nhere\n", test=0.5).load(small_brown).train_targets.unique().tolist() == [1]


def test_lines_end_as_on_every_system_and_two_files_are_two_parts(tmp_path: Path, small_brown: Path) -> None:
    (tmp_path / "test.txt").write_text("the rest\n")
    seen = [
        own(tmp_path, text, per_line="all", places=2, test_file=str(tmp_path / "test.txt"))
        for text in (b"The jury\nhalf", b"\xef\xbb\xbfThe jury\r\n\r\nhalf\r\n", b"the, JURY!\rhalf\ra\r")
    ]
    assert [(one.train_size, one.test_size) for one in seen] == 3 * [(3, 2)]
    first, *others = (rows(one.load(small_brown)) for one in seen)
    assert first == Counter([(0, 0, 2), (0, 2, 5), (0, 0, 4)])
    assert others == [first, first]
    assert len({one.sha256 for one in seen}) == 3  # of the file, as of any


def test_words_are_those_of_the_module() -> None:
    assert words_of("I'd say: naïve_1 ÉTÉ, a b c") == ["say", "naïve_1", "été"]


SECRET = "passphrase"
MISTAKES: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "empty": ("", {}, "mine.txt: no line has a word of two or more letters; expected"),
    "no words": ("a b\n! ?\n", {}, "mine.txt: no line has a word"),
    "no text": (f"one\n{SECRET} ".encode() + b"\xff\n", {}, "mine.txt: line 2 is no text in UTF-8; save"),
    "one line": (SECRET, {}, "test = 0.2 leaves no test line of 1; expected more lines"),
    "all tested": (f"{SECRET}\n{SECRET}", {"test": 0.9}, "test = 0.9 leaves no training line of 2"),
    "too many": (
        f"{SECRET} \n" * 70_000,
        {"places": 1000},
        "70,000 words to be predicted are too many; expected at most",
    ),
    "the same": (SECRET, {"test_file": "mine.txt"}, "is the training file too; expected other lines"),
    "absent": (SECRET, {"test_file": "none.txt"}, "test_file = .*none.txt"),
    "half of the sizes": (
        SECRET,
        {"test_file": "none.txt", "if_absent": {"train": 3}},
        "expected both numbers of records",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_without_the_text(name: str, tmp_path: Path) -> None:
    text, parameters, message = MISTAKES[name]
    if "test_file" in parameters:
        parameters = {**parameters, "test_file": str(tmp_path / parameters["test_file"])}
    with pytest.raises(DpbenchError, match=message) as caught:
        own(tmp_path, text, **parameters)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None or SECRET not in repr(caught.value.__cause__)


SPEC = """
kind: run
name: mine
dataset: {name: next_word, parameters: {file: mine.txt, licence: MINE, if_absent: {train: 4000, test: 900}}}
model: {name: next_word_mlp, parameters: {hidden: [8]}}
mechanism: noisy_sgd
budget: {noise_multiplier: 1.0, delta: 1e-5}
training: {batch_size: 40, epochs: 2, learning_rate: 0.1, clip_norm: 1.0}
seeds: 1
"""


def test_an_absent_file_is_skipped_with_the_reason_where_its_sizes_are_given(tmp_path: Path, small_brown: Path) -> None:
    """The plan is of these sizes. Without them it is a mistake. What is told of the file is in no key."""
    (tmp_path / "spec.yaml").write_text(SPEC)

    def planned() -> Any:
        (run,) = make_plan(
            load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices(data=small_brown)
        ).runs
        return run

    run = planned()
    assert (run.action, run.steps, run.examples) == ("skip", 200, 4000)
    assert "mine.txt is not there: bring a text with one line for each record (docs/own_dataset.md)" in run.reason
    with pytest.raises(DpbenchError, match="is not there"):
        find_dataset("next_word", run.spec.dataset.parameters).load(small_brown)
    assert dataset_source(run.spec).missing(small_brown) == ()
    (tmp_path / "mine.txt").write_text("the jury\n" * 100)
    there = planned()
    assert (there.action, there.examples) == ("train", 80)
    assert there.resolved["dataset"]["parameters"] == {}
    (tmp_path / "spec.yaml").write_text(SPEC.replace("MINE", "YOURS").replace("4000", "5000"))
    assert planned().key == there.key
    (tmp_path / "spec.yaml").write_text(re.sub(r", if_absent: {[^}]*}", "", SPEC))
    assert planned().key == there.key
    (spec,) = load_specs([tmp_path / "spec.yaml"])
    assert context(resolve(spec, [0])[0])["tuned"] is None
    (tmp_path / "mine.txt").unlink()
    with pytest.raises(DpbenchError, match=r"file = .*mine\.txt"):
        planned()


def test_the_page_s_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its two files and commands, a few steps on a small corpus of the same form: both private runs start there."""
    words = ["the", "jury", "said", "that", "it", "was", "half", "of", "and", "to"]
    tagged = [" ".join(f"{words[(at * step) % 10]}/x" for step in range(1, 8)) for at in range(60)]
    sentences = {"brown/ca01": "\n".join(tagged).encode()}
    (tmp_path / "data" / "text").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "data" / brown.FILE.path, "w") as archive:
        archive.writestr("brown/ca01", sentences["brown/ca01"])
    monkeypatch.setattr(brown, "FILE", dataclasses.replace(brown.FILE, texts_sha256=tree_sha256(sentences)))
    small = {"train_size": 57 * 7, "test_size": 3 * 7}
    monkeypatch.setattr(brown, "dataset", lambda **given: brown.BrownSource(places=20, **given, **small))
    monkeypatch.setattr("dpbench.plan.parts._SOURCES", {})
    brown._corpus.cache_clear()
    page = (Path(__file__).parents[2] / "docs" / "own_dataset.md").read_text(encoding="utf-8")
    section = page.partition("## Your own text\n")[2].partition("\n## ")[0]
    first, second = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "brown.yaml").write_text(first.replace("steps: 500", "steps: 10"))
    (tmp_path / "mine.yaml").write_text(second.replace("batch_size: 256", "batch_size: 16") + "seeds: 1\n")
    (tmp_path / "mine.txt").write_text("".join(f"The {words[at % 9]} {words[at % 7]}\n" for at in range(40)))
    monkeypatch.chdir(tmp_path)
    _, *commands = (line for line in section.splitlines() if line.startswith("dpbench "))
    for command in commands:
        with pytest.raises(SystemExit, match="0"):
            main([*command.split()[1:], "--data", "data", "--device", "cpu"])
    assert "Weights: brown-seed0.pt" in capsys.readouterr().out
    records = [json.loads(path.read_text()) for path in (tmp_path / "reports" / "records").glob("*.json")]
    found = {one["context"]["label"] or "brown": one for one in records}
    assert set(found) == {"brown", "noisy SGD", "DPlis"}
    digest = hashlib.sha256((tmp_path / "brown-seed0.pt").read_bytes()).hexdigest()
    for name in ("noisy SGD", "DPlis"):
        assert found[name]["resolved"]["model"]["weights"]["sha256"] == digest
        assert found[name]["facts"]["examples"] == 32
        assert found[name]["result"]["test_perplexity"] > 1
