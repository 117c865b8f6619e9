"""Which code a file may name: a spec, a claim or a record comes from anybody, and to import what it names runs it.

`package.module:factory` in a file is imported only if the user allows it: with `--allow-code`, in Python with
`allow_code=True`, or for single packages in a file of his own,

    # $DPBENCH_CONFIG, else $XDG_CONFIG_HOME/dpbench/config.yaml, else ~/.config/dpbench/config.yaml
    allow_code: [my_lab, my_accountants]

What he types on the command line or calls from Python, and the entries of installed packages, need no such leave.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpbench.catalog import advice, is_code
from dpbench.errors import Problem, ProblemsError
from dpbench.spec.yaml_loader import Listing, Node, Scalar, Table, read

KEY = "allow_code"


@dataclass(frozen=True)
class Trust:
    """What files may name: `everything`, or these modules with the modules below them."""

    everything: bool = False
    modules: tuple[str, ...] = ()

    def allows(self, module: str) -> bool:
        """Whether a file may name an object of this module.

        >>> Trust(modules=("my_lab",)).allows("my_lab.rules"), Trust(modules=("my_lab",)).allows("my_lab2")
        (True, False)
        """
        return self.everything or any(f"{module}.".startswith(f"{one}.") for one in self.modules)

    def refusal(self, name: str) -> tuple[str, str] | None:
        """What is wrong with a name in a file, and what to do; None where it names no code, or code that is allowed."""
        module = name.partition(":")[0]
        if not is_code(name) or self.allows(module):
            return None
        hint = f"if you trust it: --allow-code (in Python allow_code=True), or `{KEY}: [{module}]` in {config_file()}"
        return f"{name!r} is code, which a file may name only if you allow it; nothing of it was loaded", hint


def trust(allow_code: bool = False) -> Trust:
    """What the user allows. Raises ProblemsError where his configuration is no such file."""
    return Trust(allow_code, _configured())


def code_in(node: Node) -> Iterator[Scalar]:
    """Every text in a node that could name code, wherever it stands: a parameter may name code too."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str) and is_code(node.value):
            yield node
        return
    inside = node.items if isinstance(node, Listing) else [entry.value for entry in node.entries.values()]
    for item in inside:
        yield from code_in(item)


def config_file() -> Path:
    """Where the user's configuration is, if there is one."""
    if given := os.environ.get("DPBENCH_CONFIG"):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "dpbench" / "config.yaml"


def _configured() -> tuple[str, ...]:
    path = config_file()
    try:
        if not path.exists() and not os.environ.get("DPBENCH_CONFIG"):
            return ()
        document = read(path)
    except OSError as error:
        raise ProblemsError([Problem(str(path), 0, 0, "", f"cannot be read: {error.strerror or error}")]) from error
    problems, root = list(document.problems), document.root
    listed = root.get(KEY) if isinstance(root, Table) else None
    names = listed.items if isinstance(listed, Listing) else ()
    modules = [one.value for one in names if isinstance(one, Scalar) and isinstance(one.value, str)]
    known = root.entries if isinstance(root, Table) else {}
    if root is not None and (listed is None or len(modules) < max(1, len(names)) or len(known) > 1):
        wrong = next((entry.key for key, entry in known.items() if key != KEY), (listed or root).place)
        hint = advice(wrong.path, [KEY]) if wrong.path else ""
        message = f"expected `{KEY}: [my_module, ...]` and nothing else in the configuration of dpbench"
        problems.append(Problem(str(path), wrong.line, wrong.column, wrong.path, message, hint))
    if problems:
        raise ProblemsError(problems)
    return tuple(modules)
