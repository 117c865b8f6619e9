"""The privacy loss distribution of one mechanism invocation: densities on branches, atoms, and infinite losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpbench.privacy.accountants._losses import Floats

NONE: Floats = np.empty(0)
Function = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Branch:
    """Outputs x in [low, high] with `log_density` under P and the monotone `loss`.

    `scale` is the length over which density and loss change: no quadrature may step farther than a part of it.
    """

    log_density: Function
    loss: Function
    low: float
    high: float
    scale: float


@dataclass(frozen=True)
class LossLaw:
    """The loss of one invocation under P: branches, atoms (losses and log masses) and the mass of infinite loss.

    `highest` bounds finite losses. Beyond `highest_tilt` the tilted peak leaves the branches (no δ above e^-800 needs
    that), or sits on the last atom.
    """

    branches: tuple[Branch, ...]
    atoms: Floats
    log_masses: Floats
    infinite: float = 0.0
    highest: float = math.inf
    highest_tilt: float = math.inf
