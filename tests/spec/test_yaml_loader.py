"""Internal: both parsers are asked. YAML as people write it: values, places, duplicates, a problem for each mistake."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest
import yaml

from dpbench.errors import Problem
from dpbench.spec import yaml_loader
from dpbench.spec.yaml_loader import (
    LARGEST_FILE,
    Document,
    Listing,
    Node,
    Scalar,
    Table,
    parse,
    plain,
    read,
    resolve,
)
from tests.spec.spec_writer import Verbatim, dump

SPECS = Path(__file__).parents[2] / "specs"


def root(text: str) -> Node:
    document = parse(text, "f.yaml")
    assert document.problems == ()
    assert document.root is not None
    return document.root


def only_problem(text: str) -> Problem:
    (problem,) = parse(text, "f.yaml").problems
    assert problem.file == "f.yaml"
    return problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-1.5e+3", -1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("+.inf", math.inf),
        ("-.Inf", -math.inf),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        *(
            (word, word)
            for word in ("yes", "no", "on", "off", "y", "1_000", "1:30", "2001-01-01", "e5", "0b1", "none", ".")
        ),
    ],
)
def test_unquoted_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_nan_is_read_and_quoted_numbers_stay_text() -> None:
    table = root("a: .nan\nb: '1e-5'\nc: \"true\"\nd: |\n  7\n")
    assert isinstance(table, Table)
    assert math.isnan(plain(table)["a"])
    assert {key: plain(table)[key] for key in "bcd"} == {"b": "1e-5", "c": "true", "d": "7\n"}


def test_every_value_knows_its_place_and_its_text() -> None:
    table = root("top: 1\ngrid:\n  budget.epsilon: [1, 3.00]\nrows:\n  - {a: {b: x}}\n")
    assert isinstance(table, Table)
    grid = table.get("grid")
    assert isinstance(grid, Table)
    entry = grid.entries["budget.epsilon"]
    assert (entry.key.line, entry.key.column, entry.key.path) == (3, 3, "grid.budget.epsilon")
    assert isinstance(entry.value, Listing)
    item = entry.value.items[1]
    assert isinstance(item, Scalar)
    assert (item.text, item.value) == ("3.00", 3.0)
    assert (item.place.line, item.place.column, item.place.path) == (3, 23, "grid.budget.epsilon[1]")
    rows = table.get("rows")
    assert isinstance(rows, Listing)
    row = rows.items[0]
    assert isinstance(row, Table)
    inside = row.get("a")
    assert isinstance(inside, Table)
    assert inside.entries["b"].value.place.path == "rows[0].a.b"


def test_all_duplicate_keys_are_reported_and_the_first_is_kept() -> None:
    document = parse("a: 1\nb: {c: 1, c: 2}\na: 2\na: 3\n", "f.yaml")
    assert [(problem.line, problem.column, problem.path) for problem in document.problems] == [
        (2, 11, "b.c"),
        (3, 1, "a"),
        (4, 1, "a"),
    ]
    assert "first in line 1" in document.problems[1].message
    assert document.root is not None
    assert plain(document.root) == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n\tb: 1", 2, "tab"),
        ("a: 1\n  b: 2", 2, "':'"),
        ("a: b: c", 1, "':'"),
        ("a: [1,\n  2\nb: 3", 3, "'[' in line 1"),
        ("a: {b: 1\n", 1, "'{' in line 1"),
        ("a: 'x\nb: 1\n", 2, "quotation mark opened in line 1"),
        ("- a\nb: 1", 2, "line up"),
        ("a: @x", 1, "cannot start with '@'"),
        ("a: 1\nb: *x", 2, "no anchor"),
        ("a: &x\n  - *x", 2, "inside the value that it repeats"),
        ("a: 1\nb: !!python/object:os.system x", 2, "tag"),
        ("a: 1\nb: !foo x", 2, "tag"),
        ("a: \x07", 1, "U+0007"),
        ("ok: 1\na: \x00", 2, "U+0000"),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "not a character"),
        ('a: "\\ud800"', 1, "surrogate"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("<<: {a: 1}", 1, "merge keys"),
        ("? [a]\n: 1", 1, "a key is a list"),
        ("%YAML 2.0\n---\na: 1", 1, "not YAML"),
        ("a: 1e999", 1, "too large"),
        ("a: " + "9" * 5000, 1, "5000 digits"),
        ("", 1, "empty"),
        ("# nothing\n", 1, "empty"),
        ("---\n", 1, "empty"),
        ("a: " + "[" * 3000, 1, "inside one another"),
    ],
)
def test_every_kind_of_mistake_is_one_readable_problem(text: str, line: int, words: str) -> None:
    problem = only_problem(text)
    assert problem.line == line
    assert words in problem.message
    assert "\n" not in str(problem)


def test_aliases_are_read_but_may_not_blow_up() -> None:
    assert plain(root("a: &x [1, 2]\nb: *x\n")) == {"a": [1, 2], "b": [1, 2]}
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    problem = only_problem("\n".join(lines))
    assert "stands for more than" in problem.message


def test_files_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "wide.yaml").write_bytes("a: 1".encode("utf-16"))
    (tmp_path / "large.yaml").write_bytes(b"#" * (LARGEST_FILE + 1))
    (tmp_path / "marked.yaml").write_bytes(b"\xef\xbb\xbfa: 1")
    found = {path.name: read(path) for path in sorted(tmp_path.iterdir())}
    (latin,) = found["latin.yaml"].problems
    assert (latin.line, latin.column) == (2, 7)
    assert "0xe9 is not UTF-8" in latin.message
    assert "0xff is not UTF-8" in found["wide.yaml"].problems[0].message
    assert "KiB" in found["large.yaml"].problems[0].hint
    assert found["marked.yaml"].problems == ()
    (folder,) = read(tmp_path).problems
    (absent,) = read(tmp_path / "absent.yaml").problems
    assert "is a folder" in folder.message
    assert "cannot be read" in absent.message


def test_dump_is_read_back() -> None:
    value = {
        "texts": [
            "1e-5",
            "yes",
            "0o7",
            "true",
            "~",
            "",
            " x",
            "a: b",
            "# no",
            "1_000",
            ".inf",
            "*a",
            "é\n",
            "-",
            "1:30",
        ],
        "numbers": [1e-5, 1e300, -0.0, math.inf, -math.inf, 3, -(10**40)],
        "others": [True, False, None, [], {}, {"1": {"deep": [1.5]}}],
    }
    assert plain(root(dump(value))) == value
    repeated = [1, 2]
    assert "&" not in dump({"a": repeated, "b": repeated})
    assert dump({"a": Verbatim("95.00"), "b": Verbatim("7"), "c": Verbatim("1e-5")}) == "a: 95.00\nb: 7\nc: 1e-5\n"


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml")
def test_libyaml_reads_what_pyyaml_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shipped specs with one to three random edits: the same values at the same places, and the same mistakes."""
    texts = [file.read_text(encoding="utf-8")[:600] for file in sorted(SPECS.rglob("*.yaml"))]
    pieces = [
        "\t",
        "\n",
        "- ",
        "---\n",
        "'",
        '"',
        "\\",
        "#",
        "&a ",
        "*a",
        "!!str ",
        "?",
        ": ",
        "{",
        "]",
        "| ",
        "> ",
        "%",
    ]
    pieces += ["\x00", "\x85", "\u2028", "\ufeff", "\U0001f600", "\\U00110000", "<<: ", ",", "  ", "é", "\r", "@"]
    draw, refused = random.Random(5), 0
    for _ in range(300):
        text = draw.choice(texts)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(pieces) + text[at + draw.choice([0, 0, 2]) :]
        found = parse(text, "f.yaml")
        with monkeypatch.context() as without:
            without.setattr(yaml_loader, "_FASTEST", yaml.SafeLoader)
            expected = parse(text, "f.yaml")
        refused += bool(expected.problems)
        assert _without_columns_of_nothing(found) == _without_columns_of_nothing(expected), text
    assert 50 < refused < 290


def _without_columns_of_nothing(document: Document) -> str:
    """A document in words; the two differ by a column in where a value is that is absent."""
    return re.sub(r"column=\d+(, path='[^']*'\), value=None, text='')", r"\1", repr(document))
