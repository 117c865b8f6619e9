"""A figure of privacy curves as a file: δ(ε) of every accountant on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.privacy.formatting import words

FORMATS = ("png", "svg", "pdf")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6bb1")
_PROMISES, _OTHERS = ("-", (0, (6, 1.5, 1, 1.5))), ((0, (2, 1.5)), (0, (1, 2)))
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpbench",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
}


@dataclass(frozen=True)
class Curve:
    """One accountant's δ at each ε; None where it has no answer there."""

    name: str
    kind: str
    deltas: Sequence[float | None]


def check_path(path: Path) -> None:
    """Raises DpbenchError unless the ending names a format that can be drawn and the folder exists."""
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise DpbenchError(f"--plot {path}: expected a file that ends in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise DpbenchError(f"--plot {path}: cannot be written: there is no folder {path.parent}")


def save(path: Path, title: str, epsilons: Sequence[float], curves: Sequence[Curve]) -> None:
    """Draw the curves into a file: promises as full lines, approximations dotted, the legend in the order given.

    Raises DpbenchError for an unknown ending and for a file that cannot be written.
    """
    check_path(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_RC):
        canvas = Figure(figsize=(7.2, 4.6), layout="constrained")
        axes = canvas.add_subplot()
        for place, curve in enumerate(curves):
            points = [(x, y) for x, y in zip(epsilons, curve.deltas, strict=True) if y is not None and y > 0]
            styles = _OTHERS if curve.kind == "approximation" else _PROMISES
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=_COLOURS[place % len(_COLOURS)],
                linestyle=styles[place // len(_COLOURS) % len(styles)],
                label=f"{curve.name} ({words(curve.kind)})",
            )
        axes.set_yscale("log")
        shown = [delta for curve in curves for delta in curve.deltas if delta is not None and delta > 0]
        if shown:
            # A curve that falls off a cliff would leave the others no room.
            axes.set_ylim(max(min(shown), 1e-30) / 2, min(2.0, 2 * max(shown)))
        axes.set_xlim(min(epsilons), max(epsilons) if max(epsilons) > min(epsilons) else math.nextafter(1, 2))
        axes.set_xlabel("ε")
        axes.set_ylabel("δ")
        axes.set_title(title, fontsize=10, loc="left", wrap=True)
        if curves:
            axes.legend(fontsize=8, frameon=False)
        metadata = {"Date": None, "Creator": None} if path.suffix.lower() == ".svg" else None
        try:
            canvas.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise DpbenchError(f"--plot {path}: cannot be written: {error.strerror or error}") from None
