"""The default command leaves out parameters, and no test by mistake."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.sampled import EVERY


@pytest.mark.parametrize("path", sorted(EVERY))
def test_what_is_named_is_a_test(path: str) -> None:
    tree = ast.parse((Path(__file__).parent.parent / path).read_text())
    assert set(EVERY[path]) <= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
