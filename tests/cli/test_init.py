"""`dpbench init` lays out what comes with dpbench and overwrites nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpbench.cli import main
from dpbench.spec.shipped import shipped, shipped_folder


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["init", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_that_comes_with_dpbench(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert files(here / "specs") == files(shipped_folder())
    assert "dpbench plan specs/quickstart" in capsys.readouterr().out.replace("\\", "/")
    assert call() == 0
    assert capsys.readouterr().out.startswith(
        f"0 of {len(files(shipped_folder()))} files written to specs (all are there);"
    )


def test_only_what_is_named_and_the_example_exists(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mine", "--only", "bu2020/table1", "--only", "reduced") == 0
    assert {name.partition("/")[0] for name in files(here / "mine")} == {"bu2020", "reduced"}
    assert Path(capsys.readouterr().out.rpartition("dpbench plan ")[2].strip()).is_file()


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "another file": lambda path: path.write_text("mine"),
    "an empty file": lambda path: path.touch(),
    "a folder": lambda path: path.mkdir(),
    "a link to a file": lambda path: (path.with_name("x").write_text("x"), path.symlink_to("x")),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_is_there_stays(obstacle: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = here / "specs" / "quickstart" / "dpis.yaml"
    place.parent.mkdir(parents=True)
    try:
        OBSTACLES[obstacle](place)
    except OSError as error:
        pytest.skip(f"no links here: {error}")  # Windows without the right to make them
    before = (place.is_symlink(), place.is_dir(), place.is_file() and place.read_bytes())
    assert call() == 0
    assert (place.is_symlink(), place.is_dir(), place.is_file() and place.read_bytes()) == before
    assert not (place.parent / "nothing").exists()
    assert f"kept {place.relative_to(here)}, which differs" in capsys.readouterr().out
    assert len(files(here / "specs")) >= len(files(shipped_folder())) - 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--only", "quickstrat"),
            "--only quickstrat: no spec of that name comes with dpbench; did you mean 'quickstart'?",
        ),
        (("--only", "bu2020/table5"), "did you mean 'bu2020/table4'?"),
        (("taken",), "taken is no folder: name another one"),
        (("taken/below",), "taken"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "taken").touch()
    assert call(*arguments) == 2
    assert said in capsys.readouterr().err
    assert files(here) == {"taken": b""}


def test_every_name_can_be_laid_out(here: Path) -> None:
    for name, place in shipped().items():
        assert call(name.replace("/", "-"), "--only", name) == 0
        found = files(here / name.replace("/", "-"))
        assert found
        assert all(name in one for one in found), place
