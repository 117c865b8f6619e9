"""The default command leaves out parameters, and no test by mistake."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.sampled import EVERY, SLOW, words


@pytest.mark.parametrize("path", sorted(EVERY))
def test_what_is_named_is_a_test(path: str) -> None:
    tree = ast.parse((Path(__file__).parent.parent / path).read_text())
    assert set(EVERY[path]) <= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", sorted(SLOW))
def test_every_word_stands_in_the_id_of_a_test(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _Ids()
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    root = Path(__file__).parent.parent
    options = [
        "--collect-only",
        "-qq",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
        f"--rootdir={root}",
    ]
    pytest.main([*options, "--import-mode=importlib", str(root / path)], plugins=[found])
    ids = {word for name in found.names for word in words(name)}
    assert set(SLOW[path]) <= ids


class _Ids:
    """A plug-in of pytest that keeps the names of what is collected."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.nodeid for item in session.items]
