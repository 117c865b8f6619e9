"""Specs that come with dpbench are found by name from any folder; what lies in the folder itself comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.errors import ProblemsError
from dpbench.spec.loading import load_specs
from dpbench.spec.shipped import groups, own_name, shipped

NAMES = tuple(shipped())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_spec_of_the_checkout_has_a_name() -> None:
    top = Path(__file__).parents[2] / "specs"
    files = {path.relative_to(top).with_suffix("").as_posix() for path in top.rglob("*.yaml")}
    assert files == {name for name in NAMES if "/" in name}
    assert set(groups()) == {path.name for path in top.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_its_path_with_a_slash_or_a_suffix_too(name: str) -> None:
    place = shipped()[name]
    expected = load_specs([place])
    given = [f"{name}/"] if place.is_dir() else [f"{name}.yaml"]
    for way in (name, *given):
        assert load_specs([Path(way)]) == expected
    assert {own_name(spec.file).partition(f"specs/{name}")[0] for spec in expected} <= {""}


SPEC = """
kind: run
name: mine
dataset: digits
model: mlp
mechanism: non_private
budget: none
training: {batch_size: 64, epochs: 1, learning_rate: 0.1}
"""


def test_a_path_of_that_name_takes_precedence(elsewhere: Path) -> None:
    (elsewhere / "quickstart").mkdir()
    (elsewhere / "quickstart" / "a.yaml").write_text(SPEC, encoding="utf-8")
    (elsewhere / "reduced").write_text(SPEC.replace("mine", "other"), encoding="utf-8")
    assert [spec.name for spec in load_specs([Path("quickstart"), Path("reduced")])] == ["mine", "other"]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("quickstrat", "did you mean quickstart, which comes with dpbench?"),
        ("Quickstart", "did you mean quickstart, which comes with dpbench?"),
        ("specs/quickstart", "did you mean quickstart, which comes with dpbench?"),
        ("specs/bu2020/table1.yaml", "did you mean bu2020/table1, which comes with dpbench?"),
        ("bu2020/tabel1", "did you mean bu2020/table1, which comes with dpbench?"),
        ("specs/", "`dpbench init` makes a folder specs with what comes with dpbench"),
        ("mine", f"with dpbench come {', '.join(groups())}"),
        ("mine.yaml", ""),
        ("/nowhere/at/all.yaml", ""),
    ],
)
def test_what_is_neither_says_what_may_have_been_meant(given: str, hint: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        load_specs([Path(given)])
    (problem,) = caught.value.problems
    assert (problem.file, problem.message) == (str(Path(given)), "there is no such file or folder")
    assert problem.hint == hint
