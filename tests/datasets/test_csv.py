"""Internal: rows are read in pieces, and the pieces must not show.

Anybody's table: what its cells become, what a spec and a run's key know of it, and every mistake in a sentence.
"""

from __future__ import annotations

import csv
import html
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

import dpbench.datasets.csv as tables
from dpbench.cli import main
from dpbench.datasets import describe, find_dataset
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import Gaussian, SampledGaussian, from_json
from dpbench.plan.parts import dataset_source
from dpbench.plan.planning import context, resolve
from dpbench.spec.loading import load_specs
from dpbench.store import agreement

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_dataset.md"
HEAD = "x,w,y\n"
ROWS = "".join(f"{number},{'ab'[number % 2]},{number % 2}\n" for number in range(10))


def table(folder: Path, text: str | bytes, **parameters: Any) -> Any:
    file = folder / "table.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return find_dataset("csv", {"file": str(file), "target": "y", **parameters})


def whole(source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of both parts, training first."""
    train_inputs, train_targets, test_inputs, test_targets = source.arrays
    return np.concatenate([train_inputs, test_inputs]), np.concatenate([train_targets, test_targets])


# What cells become


def test_numbers_words_and_classes_by_what_the_spec_says(tmp_path: Path) -> None:
    text = 'part,age,job,"id",y\ntrain, 25 ,cook,7,yes\ntrain,150,"a, b",8,no\n\ntest,-10,cook,9,yes\n'
    source = table(
        tmp_path,
        text,
        features=["job", "age"],
        categorical={"job": ["a, b", "nurse", "cook"]},
        scale={"age": [0, 100]},
        classes=["yes", "no"],
        test="part",
    )
    train_inputs, train_targets, test_inputs, test_targets = source.arrays
    assert train_inputs.tolist() == [[0, 0, 1, 0.25], [1, 0, 0, 1]]
    assert test_inputs.tolist() == [[0, 0, 1, 0]]
    assert (train_targets.tolist(), test_targets.tolist()) == ([0, 1], [0])
    assert source.tuned == ""


def test_what_the_data_decide_is_said(tmp_path: Path) -> None:
    """Words are sorted, numbers among them by value, and `tuned` names the columns that took what occurs."""
    text = "x,w,size,y\n1,b,10,2\n2,a,9,10\n3,b,9,2\n4,a,10,10\n5,a,9,2\n"
    source = table(tmp_path, text, categorical={"w": "from_data", "size": [9, 10]})
    inputs, targets = whole(source)
    assert inputs.shape == (5, 5)
    by_x = {int(row[0]): (row[1:].tolist(), int(target)) for row, target in zip(inputs, targets, strict=True)}
    assert by_x[1] == ([0, 1, 0, 1], 0)  # b, 10; the class 2, which is before 10
    assert by_x[2] == ([1, 0, 1, 0], 1)
    assert source.tuned == "the categories of w and the classes of y are those that occur in the table"
    assert source.tuned in describe(source)
    assert table(tmp_path, text, categorical=["w", "size"], classes=[2, 10]).tuned.startswith(
        "the categories of w, size"
    )


def test_long_records_are_shortened_and_short_ones_stay(tmp_path: Path) -> None:
    inputs, _ = whole(table(tmp_path, "a,b,y\n3,4,0\n0.3,0.4,1\n0,0,0\n6,8,1\n1,0,1\n", record_norm=1.0))
    rows = {tuple(row) for row in np.round(inputs.astype(float), 6).tolist()}
    assert rows == {(0.6, 0.8), (0.3, 0.4), (0.0, 0.0), (1.0, 0.0)}


def test_the_split_is_by_seed_alone(tmp_path: Path) -> None:
    """Other cells, the same rows; both parts keep the order of the table; every row is in one of them."""
    first = table(tmp_path, HEAD + ROWS, features=["x"], test=0.3)
    assert (first.train_size, first.test_size) == (7, 3)
    train, test = (first.arrays[place].ravel().tolist() for place in (0, 2))
    assert train == sorted(train)
    assert test == sorted(test)
    assert sorted(train + test) == list(range(10))
    assert (
        len({tuple(table(tmp_path, HEAD + ROWS, features=["x"], split_seed=seed).arrays[2][:, 0]) for seed in range(9)})
        > 4
    )
    other = HEAD + re.sub(r"(\d+),([ab]),(\d)", lambda row: f"{int(row[1]) + 100},a,{1 - int(row[3])}", ROWS)
    assert (table(tmp_path, other, features=["x"], test=0.3).arrays[2].ravel() - 100).tolist() == test


def test_bits_of_the_split_and_of_the_inputs_stay(tmp_path: Path) -> None:
    """A run's key holds their hash: this one was computed when the dataset was written."""
    source = table(tmp_path, HEAD + ROWS, categorical={"w": ["a", "b"]}, scale={"x": [0, 7]}, record_norm=1.0)
    assert source.sha256 == "20e715dbf82d282a3671741c3a31989a34c63b54b1b81010ceb2058e50b301b1"


def test_more_rows_than_are_put_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = table(tmp_path, HEAD + ROWS, categorical=["w"]).sha256
    monkeypatch.setattr("dpbench.datasets._table.ROWS", 3)
    tables._made.cache_clear()
    assert table(tmp_path, HEAD + ROWS, categorical=["w"]).sha256 == at_once


def test_text_as_other_programs_write_it(tmp_path: Path) -> None:
    """A byte-order mark, Windows's line ends, semicolons, no line end at the end: the same content."""
    plain = table(tmp_path, HEAD + ROWS, categorical=["w"]).sha256
    windows = b"\xef\xbb\xbf" + (HEAD + ROWS).rstrip().replace("\n", "\r\n").encode()
    assert table(tmp_path, windows, categorical=["w"]).sha256 == plain
    assert table(tmp_path, (HEAD + ROWS).replace(",", ";"), delimiter=";", categorical=["w"]).sha256 == plain


NUMBERS = "x,price\n" + "".join(f"{number},{number * 25}\n" for number in range(10))


def test_a_number_is_the_target_of_a_regression(tmp_path: Path) -> None:
    source = table(tmp_path, NUMBERS, target="price", task="regression")
    (inputs, targets), kind = whole(source), source.arrays[1].dtype
    assert (source.task, source.classes, source.tuned, kind) == ("regression", 1, "", np.float32)
    assert (targets == 25 * inputs[:, 0]).all()
    assert "the target 'price' exceeds 10: give its bounds under scale" in source.warning
    scaled = table(tmp_path, NUMBERS, target="price", task="regression", scale={"price": [0, 200], "x": [0, 10]})
    inputs, targets = whole(scaled)
    assert targets.tolist() == np.minimum(np.float32(1.25) * inputs[:, 0], 1).astype(np.float32).tolist()
    assert (targets.max(), scaled.warning) == (1.0, "")


# Mistakes


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("", {}, "table.csv: is empty; expected a line with the names of the columns"),
        (HEAD, {}, "has a header and no row"),
        ("x,x,y\n1,2,0\n", {}, "the first line has 'x' twice"),
        (",x,y\n1,2,0\n", {}, r"column 1 has no name.*index=False"),
        ("x;y\n1;0\n", {}, "has one column, 'x;y'; expected cells separated by ',' .the parameter delimiter"),
        (HEAD + "1,2\n", {}, "line 2: has 2 cells; expected 3"),
        (HEAD + '"1,2,3\n', {}, "line 2: unexpected end of data"),
        (HEAD + ROWS, {"target": "Y"}, "target = 'Y': the table has no such column; did you mean 'y'"),
        (HEAD + ROWS, {}, r"10 cells are no number, the first in line 2, column 'w' \('a'\).*under categorical"),
        (f"{HEAD}1,a,0\n?,,1\nNA,b,0\n", {"categorical": ["w"]}, "3 cells are without a value in.* line 3, column 'x'"),
        ("x,y\n1,0\n2,#N/A\n3,1\n", {}, r"without a value in the file, the first in line 3, column 'y' \('#N/A'\)"),
        (HEAD + "1,None,0\n2,b,1\n", {"categorical": ["w"]}, "1 cell is without a value .* list all of the column.s"),
        (HEAD + "1,a,0\n2,-,1\n3,<NA>,1\n", {"categorical": ["w"]}, "2 cells are without a value in the file"),
        ("x,y\n1,0\n2,1\n3,1.0\n", {}, "column 'y': '1' and '1.0' would be two classes; write one"),
        ("x,y\n1,true\n2,True\n3,false\n", {}, "column 'y': 'true' and 'True' would be two classes"),
        (HEAD + "1,a,0\n2,A,1\n", {"categorical": ["w"]}, "column 'w': 'a' and 'A' would be two categories"),
        ("x,y\n1,0\n1_0,1\ninf,0\n1e999,1\n", {}, "1 cell is no number, .*'1_0'.*; 2 cells are not finite, .* line 4"),
        ("x,y\n1,0\n2,\n", {}, "1 cell is without a value in the file, the first in line 3, column 'y'"),
        ("x,y\n1,0\n2,0\n", {"classes": [1, 0]}, "target = 'y': every row has the class '0'"),
        ("x,y\n1,0\n2,0\n", {}, "target = 'y': every row has the class '0'; expected two or more"),
        ("x,y\n" + "".join(f"{n},{n / 2}\n" for n in range(50)), {}, "has 50 different values.*task: regression"),
        ("x,y\n3,0\n3,1\n3,1\n", {}, "column 'x' is constant: "),
        ("x,y\n3,0\n4,1\n5,1\n", {"scale": {"x": [7, 9]}}, r"column 'x' is constant within its bounds \[7, 9\]: give"),
        ("x,w,y\n3,a,0\n4,a,1\n5,a,1\n", {"categorical": {"w": ["a", "b"]}}, "column 'w' is constant"),
        (HEAD + ROWS, {"categorical": {"w": ["a", "c"]}}, "5 cells are none of the values a, c, the first in line 3"),
        (HEAD + ROWS, {"features": ["x"], "classes": [1, 2]}, "5 cells are none of the values 1, 2"),
        (HEAD + ROWS, {"categorical": {"w": ["a", "a"]}}, "categorical: w: has 'a' twice"),
        (HEAD + ROWS, {"categorical": {"w": []}}, "categorical: w: has no values; list them, or write from_data"),
        (HEAD + ROWS, {"features": ["x"], "scale": {"y": [0, 1]}}, "scale = 'y': is the target"),
        (NUMBERS, {"target": "price", "task": "regression", "classes": [1]}, "classes: a regression has none"),
        (HEAD + ROWS, {"target": "w", "task": "regression"}, r"10 cells are no number, .* column 'w' \('a'\)"),
        ("x,y\n1,4\n2,4\n", {"task": "regression"}, "target = 'y': every row has the same number$"),
        ("x,y\n1,4\n2,5\n", {"task": "regression", "scale": {"y": [0, 1]}}, "the same number within its bounds under"),
        (HEAD + ROWS, {"features": ["x", "y"]}, "features = 'y': is the target"),
        (HEAD + ROWS, {"features": ["x", "x"]}, "features = 'x': is named twice"),
        (HEAD + ROWS, {"features": ["z"]}, "features = 'z': the table has no such column; known: w, x, y"),
        (HEAD + ROWS, {"features": ["x"], "categorical": ["w"]}, "categorical = 'w': is no column of the inputs"),
        (HEAD + ROWS, {"scale": {"x": [-1e308, 1e308]}}, "scale = 'x': .*: expected two finite numbers"),
        (HEAD + ROWS, {"scale": {"x": [3, 3]}}, r"scale = 'x': \[3, 3\]: expected two finite numbers"),
        (HEAD + ROWS, {"scale": {"w": [3, 4]}, "categorical": ["w"]}, "scale = 'w': is categorical"),
        (HEAD + ROWS, {"features": ["x"], "test": "w"}, "10 cells are none of the values train, test"),
        (HEAD + ROWS, {"test": "y"}, "target = 'y': is the column of the split"),
        ("x,w,y\n1,train,0\n2,train,1\n", {"test": "w"}, "test = 'w': leaves no test record of 2"),
        ("x,y\n1,0\n2,1\n", {"test": 0.1}, "test = 0.1: leaves no test record of 2"),
        (HEAD + ROWS, {"delimiter": "||"}, r"delimiter = '\|\|': expected one character"),
        (b"\x1f\x8b\x08", {}, r"is not text in UTF-8 \(byte 1\)"),
        ("x,y\n1e39,0\n2,1\n3,1\n4,0\n", {}, "holds values that are not finite in float32"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(text: str | bytes, parameters: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DpbenchError, match=message) as caught:
        table(tmp_path, text, **parameters)
    assert "\n" not in str(caught.value)
    assert "table.csv: " in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("absent", "No such file"), ("folder", "is a folder"), ("pipe", "is a FIFO"), ("huge", "expected at most 16")],
)
def test_what_is_no_file_of_a_table(kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.csv"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "huge":
        path.write_text(HEAD + ROWS)
        monkeypatch.setattr(tables, "MOST_BYTES", 16)
    with pytest.raises(DpbenchError, match=f"file = .*mine.csv.*{message}"):
        find_dataset("csv", {"file": str(path), "target": "y"})


def test_a_column_of_names_makes_too_many_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before the indicators are made, which would fill the memory."""
    monkeypatch.setattr(tables, "MOST_NUMBERS", 100)
    text = "x,name,y\n" + "".join(f"{number},person {number},{number % 2}\n" for number in range(10))
    with pytest.raises(DpbenchError, match=r"10 records of 11 inputs are too many; .* 'name', which has 10 categories"):
        table(tmp_path, text, categorical=["name"])


# In a spec


SPEC = """
kind: run
name: mine
dataset: {name: csv, parameters: {file: FILE, target: y, features: [x]MORE}}
model: logistic
mechanism: noisy_sgd
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 4, epochs: 1, learning_rate: 0.1, clip_norm: 1.0}
seeds: 1
"""


def spec(folder: Path, file: str = "mine.csv", more: str = "") -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "spec.yaml").write_text(SPEC.replace("FILE", file).replace("MORE", more))
    (found,) = load_specs([folder / "spec.yaml"])
    return found


def test_a_relative_path_starts_at_the_spec_and_the_key_knows_the_content_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, file in ((one, "mine.csv"), (other, "renamed.csv")):
        folder.mkdir()
        (folder / file).write_text(HEAD + ROWS)
    (first,), (second,) = resolve(spec(one), [0]), resolve(spec(other, "renamed.csv"), [0])
    assert first.key == second.key
    assert first.resolved["dataset"]["parameters"] == {"target": "y", "features": ("x",)}
    (absolute,) = resolve(spec(one, str(other / "renamed.csv")), [0])
    assert absolute.key == first.key
    (one / "mine.csv").write_text(HEAD + ROWS.replace("9,b", "9.5,b"))
    (changed,) = resolve(spec(one), [0])  # in the same process
    assert changed.key != first.key
    assert changed.resolved["dataset"]["sha256"] != first.resolved["dataset"]["sha256"]


def test_a_default_that_is_written_out_changes_no_key(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(HEAD + ROWS)
    ((plain,), (same,), (other,)) = (
        resolve(spec(tmp_path, more=more), [0])
        for more in ("", ', split_seed: 0, test: 0.2, delimiter: ",", real: true', ", split_seed: 1")
    )
    assert same.key == plain.key != other.key


@pytest.mark.parametrize(
    ("text", "parameters", "words"),
    [
        (ROWS.replace("9,b", "90000,b"), {"features": ["x"]}, "without bounds under scale hide the others: 'x'"),
        (ROWS.replace("9,b", "90000,b"), {"features": ["x"], "scale": {"x": [0, 9]}}, ""),
        (ROWS, {"features": ["x"]}, ""),
        (re.sub(",[ab],", lambda at: f",w{at.start()},", ROWS), {"categorical": ["w"]}, "almost every record.*: 'w'"),
        (ROWS, {"categorical": ["w"]}, ""),
        (
            "".join(f"{i},a,{i % 25}\n" for i in range(100)),
            {"features": ["x"], "scale": {"x": [0, 99]}},
            "25 numbers of",
        ),
        ("".join(f"{i},a,{i % 20}\n" for i in range(100)), {"features": ["x"], "scale": {"x": [0, 99]}}, ""),
        ("".join(f"{i},a,c{i % 25}\n" for i in range(100)), {"features": ["x"], "scale": {"x": [0, 99]}}, ""),
    ],
)
def test_the_plan_warns_of_columns_that_ruin_the_others(
    tmp_path: Path, text: str, parameters: dict[str, Any], words: str
) -> None:
    warning = table(tmp_path, HEAD + text, **parameters).warning
    assert re.search(words, warning) if words else warning == ""
    (tmp_path / "mine.csv").write_text(HEAD + ROWS.replace("9,b", "90000,b"))
    (run,) = resolve(spec(tmp_path), [0])
    assert "hide the others: 'x'" in str(run.warning)


def test_a_mistake_in_a_spec_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        ProblemsError, match=r"spec.yaml:4:.*dataset 'csv' cannot be built: file = .*mine.csv: cannot be"
    ):
        spec(tmp_path)
    (tmp_path / "mine.csv").write_text(HEAD + ROWS)
    with pytest.raises(
        ProblemsError, match=r"spec.yaml:4:.*test: found 1.5; expected a number above 0 and below 1 or text\n"
    ):
        spec(tmp_path, more=", test: 1.5")
    with pytest.raises(ProblemsError, match=r"spec.yaml:4:.*did you mean"):
        spec(tmp_path, more=", catgorical: [w]")
    with pytest.raises(ProblemsError, match=r"parameters.scale.x: .* constant within its bounds \[20.0, 30.0\]"):
        spec(tmp_path, more=", scale: {x: [20, 30]}")
    (tmp_path / "mine.csv").write_text(HEAD + ROWS.replace("9,b", ",b"))
    with pytest.raises(ProblemsError, match=r"parameters.file: .*mine.csv: 1 cell is without a value in the file"):
        spec(tmp_path, more=", scale: {x: [0, 30]}")  # a matter of the file, not of the column's bounds
    (tmp_path / "mine.csv").write_text(HEAD + "7,a,0\n7,b,1\n")
    with pytest.raises(ProblemsError, match=r"parameters.scale.x: .* column 'x' is constant: it tells no record"):
        spec(tmp_path, more=", scale: {x: [0, 30]}")


def test_a_column_named_like_a_word_takes_no_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,x,y\n1,2,0\n2,,1\n")
    (tmp_path / "spec.yaml").write_text(
        SPEC.replace("FILE", "mine.csv").replace("[x]MORE", "[a, x], scale: {a: [0, 9]}")
    )
    with pytest.raises(ProblemsError, match=r"parameters.file: .* a value in the file, .* column 'x'"):
        load_specs([tmp_path / "spec.yaml"])


def test_what_may_be_codes_is_not_one_value_in_two_spellings(tmp_path: Path) -> None:
    """Nor is what is listed, also where it stands for nothing elsewhere."""
    for pair in (("01", "1"), ("1e5", "100000"), ("9007199254740992", "9007199254740993"), ("1_0", "10")):
        rows = "".join(f"{x},{word},{x % 2}\n" for x, word in enumerate(pair * 3))
        assert table(tmp_path, HEAD + rows, categorical=["w"]).arrays[0].shape[1] == 3
    rows = "".join(f"{x},{word},{x % 2}\n" for x, word in enumerate(("None", "none", "-") * 2))
    assert table(tmp_path, HEAD + rows, categorical={"w": ["None", "none", "-"]}).arrays[0].shape[1] == 4


def test_what_is_the_same_in_all_training_rows_is_told(tmp_path: Path) -> None:
    """What the test rows have is not learned: of the target it is refused, of a column warned."""
    head, parts = "x,w,y,part\n", ["train"] * 4 + ["test"] * 2
    rows = [f"{x},{x % 3},{y}" for x, y in zip((7, 7, 7, 7, 8, 9), (0, 1, 0, 1, 0, 1), strict=True)]
    text = head + "".join(f"{row},{part}\n" for row, part in zip(rows, parts, strict=True))
    warning = table(tmp_path, text.replace("7,1,", "7,2,", 1), test="part", features=["x", "w"]).warning
    assert warning.endswith("columns with one value in all training rows teach nothing: 'x'")
    rows = [f"{x},{x % 3},{y}" for x, y in zip(range(6), (0, 0, 0, 0, 1, 1), strict=True)]
    text = head + "".join(f"{row},{part}\n" for row, part in zip(rows, parts, strict=True))
    with pytest.raises(DpbenchError, match="target = 'y': every training row has the same class"):
        table(tmp_path, text, test="part", features=["x", "w"])
    three = text.replace("4,1,1", "4,1,9").replace("1,1,0", "1,1,1", 1)
    assert table(tmp_path, three, test="part", features=["x", "w"]).warning == "no training row has the class '9'"


@pytest.mark.parametrize(
    ("rows", "parameters", "message"),
    [
        ("7,a,0\n7,b,1\n", {"scale": {"x": [0, 10]}}, "'x' is constant: it tells no record from another"),
        ("7,a,0\n8,b,1\n", {"scale": {"x": [20, 30]}}, r"'x' is constant within its bounds \[20, 30\]"),
        (
            "7,a,0\n7,a,1\n",
            {"features": ["x", "w"], "categorical": ["w"]},
            "'x' is constant: .*; column 'w' is constant:",
        ),
        ("7,a,0\n8,b,1\n", {"features": ["x", "z"], "scale": {"v": [0, 1]}}, "features = 'z': .*; scale = 'v': the"),
        ("7,a,no\n8,b,yes\n", {"task": "regression", "features": ["x"]}, "is for classification: delete task"),
        ("7,a,1\n8,b,2\n", {"features": ["x"], "scale": {"y": [0, 3]}}, r"bounds of a target are for task: regression"),
    ],
)
def test_what_to_do_is_what_helps(tmp_path: Path, rows: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(DpbenchError, match=message):
        table(tmp_path, HEAD + rows, **{"categorical": ["w"] if "features" not in parameters else [], **parameters})


def test_the_verbs_for_data_say_what_it_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["data", "list"])
    assert (
        "csv, features, next_word: made of your own file, which a spec names (docs/own_dataset.md)"
        in capsys.readouterr().out
    )
    for verb in ("list", "fetch", "check"):
        with pytest.raises(SystemExit, match="2"):
            main(["data", verb, "csv"])
        assert "'csv' is made of your own file" in capsys.readouterr().err


def test_what_the_data_decide_stands_beside_what_was_tuned(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(HEAD + ROWS)
    (run,) = resolve(spec(tmp_path), [0])
    assert context(run)["tuned"] == "the classes of y are those that occur in the table"
    (run,) = resolve(spec(tmp_path, more=", classes: [0, 1]"), [0])
    assert context(run)["tuned"] is None


def test_a_run_whose_table_goes_while_it_trains_is_kept(tmp_path: Path) -> None:
    """The arrays of the plan are those that are trained on and recorded."""
    (tmp_path / "mine.csv").write_text(HEAD + ROWS)
    (run,) = resolve(spec(tmp_path), [0])
    (tmp_path / "mine.csv").unlink()
    assert dataset_source(run.spec).load(None).sha256 == run.resolved["dataset"]["sha256"]
    assert context(run)["tuned"]


def test_a_record_opens_no_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> Any:
        raise AssertionError("a file was opened")

    (tmp_path / "mine.csv").write_text(HEAD + ROWS)
    monkeypatch.setattr(tables, "read_own", opened)
    parameters = {"file": str(tmp_path / "mine.csv"), "target": "y"}
    assert agreement.other_data({"dataset": {"name": "csv", "parameters": parameters, "sha256": "0" * 64}})


@pytest.mark.usefixtures("one_thread")
def test_three_classes_standardised_with_private_statistics(tmp_path: Path) -> None:
    """scikit-learn's wines, few parameters: the ledger has the statistics, and what the data decide is said."""
    wine = load_wine()
    rows = [[*numbers, wine.target_names[kind]] for numbers, kind in zip(wine.data, wine.target, strict=True)]
    lines = [",".join(map(str, row)) for row in ([*wine.feature_names, "kind"], *rows)]
    (tmp_path / "wine.csv").write_text("\n".join(lines))
    text = SPEC.replace("file: FILE, target: y, features: [x]MORE", "file: wine.csv, target: kind, record_norm: 1000")
    text = text.replace("noisy_sgd", "{name: pipeline, parameters: {prepare: channel_statistics}}")
    (tmp_path / "spec.yaml").write_text(text.replace("epochs: 1", "steps: 2"))
    with pytest.raises(SystemExit, match="0"):
        main(["run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), "--device", "cpu"])
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "records").glob("*.json"))
    assert record["facts"]["examples"] + record["facts"]["test_examples"] == 178
    statistics, steps = from_json(record["ledger"]).parts
    assert statistics == (Gaussian(8.0), 2)
    assert steps == (SampledGaussian(record["resolved"]["sampling_rate"], 1.0), 2)
    assert record["context"]["tuned"] == "the classes of kind are those that occur in the table"
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert record["context"]["tuned"] in page
    file, warning = record["context"]["of_file"], record["context"]["data_warning"]
    assert file == "The table wine.csv: alcohol, malic_acid, ash, alcalinity_of_ash, ... for kind"
    assert f"<dt>Made of a file</dt><dd>{file}</dd>" in page
    assert re.match("numbers beyond 10 without bounds under scale hide the others: .*'proline'", warning)
    assert f"{warning}." in page


@pytest.mark.usefixtures("one_thread")
def test_the_walk_through_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its table, its spec, its command, with one seed and few epochs: three mechanisms at the same ε, and a figure."""
    section = PAGE.read_text(encoding="utf-8").partition("## Your own table")[2].partition("\n## ")[0]
    (code,), texts = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "yaml"))
    assert ["name: cancer\n" in texts[0], "cancer-plain" in texts[1], "task: regression" in texts[2]] == [True] * 3
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "export.py", "exec"), {})
    assert len(list(csv.reader(Path("cancer.csv").read_text().splitlines()))) == 570
    for name, text in zip(("cancer", "plain", "radius"), texts, strict=True):
        Path(f"{name}.yaml").write_text(text.replace("epochs: 30", "epochs: 3").replace("[0.7, 2, 8]", "[2, 8]"))
    commands = re.findall(r"^dpbench (.*?)(?:  +#.*)?$", section, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["plan", "run"]
    with pytest.raises(SystemExit, match="0"):
        main([*commands[-1].split(), "--device", "cpu", "--seeds", "1"])
    assert "  cancer · noisy SGD, epsilon=2: accuracy " in capsys.readouterr().out
    records = [json.loads(path.read_text()) for path in Path("reports", "records").glob("*.json")]
    assert len({record["resolved"]["mechanism"]["name"] for record in records}) == 3
    budgets = {record["context"]["target_epsilon"] for record in records}
    assert len(records) == 3 * len(budgets)
    assert {record["context"]["calibrate_with"] for record in records} == {"exact"}
    page = Path("reports", "report.html").read_text(encoding="utf-8")
    assert "csv (target = diagnosis" in page
    assert "mean_smoothness" in page  # how its inputs were prepared
    assert "accuracy against ε of every mechanism" in page
    assert re.search(r'<a href="#[^"]*">cancer · private statistics</a>', page), "the legend has the labels"
    with pytest.raises(SystemExit, match="0"):
        main(["run", "plain.yaml", "radius.yaml", "--device", "cpu", "--seeds", "1"])
    said = capsys.readouterr().out
    assert re.search(r"  cancer-plain: accuracy [\d.]+ %, without privacy, 1 seed\n  radius: RMSE 0\.\d+, ε 2", said)


# Hostile tables


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        (",".join(f"c{n}" for n in range(100_001)) + ",y\n", {}, "has 100,002 columns; expected at most 100,000"),
        ("c," * 90_000 + "y\n", {}, "the first line has 'c' twice"),
        (HEAD + "".join(f"{n},w{n},{n % 2}\n" for n in range(9000)), {"categorical": ["w"]}, "'w', which has 9,000"),
        (HEAD + ROWS, {"features": [f"z{n}" for n in range(60_000)]}, "features = 'z0': the table has no such column"),
        (HEAD + ROWS, {"features": ["x"], "classes": ["0", *["1"] * 90_000]}, "classes: has '1' twice"),
        ((HEAD + ROWS).encode() + "é".encode() * (1 << 19) + b"\xff", {}, rf"\(byte {6 + 60 + (1 << 20)}\)"),
    ],
    ids=["columns", "names", "categories", "features", "classes", "text"],
)
def test_a_large_table_costs_no_more_than_its_bytes(
    tmp_path: Path, text: str | bytes, parameters: dict[str, Any], message: str
) -> None:
    """What grew with the square of the columns took minutes, and inputs of 8 GiB were made of a file of 0.3 MB."""
    start = time.process_time()
    with pytest.raises(DpbenchError, match=message):
        table(tmp_path, text, **parameters)
    assert time.process_time() - start < 5  # below one second, where nothing else runs


def test_cells_are_counted_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_NUMBERS", 20)
    with pytest.raises(DpbenchError, match="line 8: there are more than 20 cells up to here"):
        table(tmp_path, HEAD + ROWS, features=["x"])


def test_a_wide_table_is_read_in_pieces_of_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = table(tmp_path, HEAD + ROWS, categorical=["w"])
    monkeypatch.setattr("dpbench.datasets._table.CELLS", 7)
    tables._made.cache_clear()
    assert table(tmp_path, HEAD + ROWS, categorical=["w"]).sha256 == one.sha256
