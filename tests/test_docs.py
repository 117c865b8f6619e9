"""What the documentation says can be typed in: every docstring's example, and README's Python."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import dpbench
from dpbench.store.speed import read_speed

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


def test_the_ratios_of_engines_are_those_of_the_published_speed() -> None:
    """The table of docs/mechanisms.md, and what stands below it."""
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    speed = read_speed(ROOT / "reports" / "published")
    assert speed is not None
    networks = {
        "bu2020's MNIST": (26_010, 256),
        "jl2021's CIFAR-10": (623_146, 64),
        "dpis2022's CIFAR-10": (605_226, 64),
        "jl2021's IMDb": (598_274, 32),
    }
    ways = ("plain compiled", "vmap", "vmap compiled", "ghost", "jl 1", "jl 10", "opacus hooks", "opacus ghost")
    table = text[text.index("| | compiled plain |") :].split("\n\n")[0].splitlines()[2:]
    assert [line[2:].split(" network")[0] for line in table] == list(networks)
    memory, on_cpu = [], [one for one in speed.sums if one.device == "cpu"]
    for line, of in zip(table, networks.values(), strict=True):
        lines = {one.engine: one for one in on_cpu if (one.parameters, one.places) == of}
        ratios = [lines[way].of_plain or 0.0 for way in ways]
        assert line.partition(" | ")[2] == " | ".join(f"{one:.{1 + (one < 10)}f}" for one in ratios) + " |"
        memory.append((lines["ghost"].peak_bytes or 0) / (lines["plain"].peak_bytes or 1))
    *first, last = (f"{one:.2f}" for one in memory)
    assert f"Peak memory of `ghost` is {', '.join(first)} and {last} times" in text
