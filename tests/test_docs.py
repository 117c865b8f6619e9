"""What the documentation says can be typed in: every docstring's example, and README's Python."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import dpbench

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    found.name for found in pkgutil.walk_packages(dpbench.__path__, "dpbench.") if not found.name.endswith("__main__")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(module), optionflags=flags)
    assert result.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = sum(bool(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert found > 60


def test_the_readme_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    told = {name: (kind, float(value)) for name, kind, value in lines}
    assert told["rdp"][0] == "upper_bound"
    assert 0.999 < told["rdp"][1] <= 1.0
    assert told["gdp_clt"][0] == "approximation"


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in text
