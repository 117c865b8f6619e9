"""dpbench: is this ε true, and what did it buy?

Importing the package imports neither torch nor SciPy; the functions below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["__version__", "account", "calibrate", "certify", "run", "verify"]

if TYPE_CHECKING:
    __version__: str
    from dpbench.job import run
    from dpbench.judging.claims.judging import verify
    from dpbench.privacy.accounting import account
    from dpbench.privacy.calibration import calibrate
    from dpbench.privacy.certified import certify

_HOMES = {
    "account": "dpbench.privacy.accounting",
    "calibrate": "dpbench.privacy.calibration",
    "certify": "dpbench.privacy.certified",
    "run": "dpbench.job",
    "verify": "dpbench.judging.claims.judging",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("dpbench")
        except PackageNotFoundError:  # a checkout that is not installed
            return "unknown"
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dpbench' has no attribute {name!r}")
