"""dpbench: is this ε true, and what did it buy?

Importing the package imports neither torch nor SciPy; the functions below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "account", "calibrate", "certify", "run", "verify"]

if TYPE_CHECKING:
    from dpbench.accounting import account, calibrate
    from dpbench.certified import certify
    from dpbench.claims.judging import verify
    from dpbench.runner import run

_HOMES = {
    "account": "dpbench.accounting",
    "calibrate": "dpbench.accounting",
    "certify": "dpbench.certified",
    "run": "dpbench.runner",
    "verify": "dpbench.claims.judging",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dpbench' has no attribute {name!r}")
