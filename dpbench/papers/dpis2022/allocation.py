"""Section 4.2 of DPIS and Figure 1: how σ_G is chosen per epoch, and the noise multipliers that the text quotes.

| paper | here |
| --- | --- |
| K̃_e/(ÑC) | fill (1 is the worst case) |
| a_E, E, T | first share, epochs, rounds |
| σ_Ge | noise |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from dpbench.claims.computation import Computation
from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.papers.dpis2022.divergences import converted, log_moments

SIZE, DELTA = 60_000, 1e-5
ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)


@cache
def _loss(order: int, batch: int, fill: float, noise: float) -> float:
    return log_moments(order, batch / SIZE / fill, fill / noise)


def epoch_noises(
    fills: Sequence[float],
    first_share: float,
    epsilon: float,
    batch: int = 256,
    rounds: int = 234,
    orders: Sequence[int] = ORDERS,
    remember: bool = True,
) -> tuple[list[float], float]:
    """(σ_G of each epoch, ε at the end): each epoch takes the smallest σ_G whose plan stays within ε.

    In the first `first_share` of the epochs the later ones are planned with fill 1, then with the fill of today. The
    losses of Ñ and K̃ are left out (they are below a thousandth). Without `remember` what was spent is forgotten.
    """
    epochs = len(fills)
    spent = dict.fromkeys(orders, 0.0)
    noises = []
    for epoch, fill in enumerate(fills):
        later = epochs - epoch - 1
        planned_fill = 1.0 if epoch < first_share * epochs - 1e-9 else fill

        def planned(noise: float, fill: float = fill, later: int = later, planned_fill: float = planned_fill) -> float:
            return min(
                converted(
                    order,
                    spent[order] * remember
                    + rounds * (_loss(order, batch, fill, noise) + later * _loss(order, batch, planned_fill, noise)),
                    DELTA,
                )
                for order in orders
            )

        low, high = 0.2, 30.0
        for _ in range(26):
            middle = (low + high) / 2
            low, high = (low, middle) if planned(middle) <= epsilon else (middle, high)
        noises.append(high)
        for order in orders:
            spent[order] += rounds * _loss(order, batch, fill, high)
    return noises, min(converted(order, spent[order], DELTA) for order in orders)


_PATHS: tuple[tuple[float, ...], ...] = (
    (1.0, 0.9, 0.7, 0.6, 0.5),
    (0.3, 0.9, 0.2, 1.0, 0.4),
    (0.2, 0.4, 0.6, 0.8, 1.0),
)


def _rises(first_share: float) -> Shown:
    """The largest step up of σ_G over three paths of K̃/(ÑC), one of which grows; ε₀ = 1, five epochs."""
    largest, where = -1.0, _PATHS[0]
    for path in _PATHS:
        noises, _ = epoch_noises(path, first_share, 1.0, orders=(8, 16, 24))
        step = max(later - earlier for earlier, later in pairwise(noises))
        if step > largest:
            largest, where = step, path
    words = f"the largest step of σ_G from one epoch to the next is {largest:+.4g}, on the fills {where}"
    return Shown(largest <= 1e-6, words, largest, {"path": list(where), "first_share": first_share})


first_phase_never_rises = Demonstration(lambda: _rises(1.0), twin=lambda: _rises(0.0))


def _within(remember: bool) -> Shown:
    """ε at the end over the same paths, a_E = 0.6, ε₀ = 1."""
    worst = max(epoch_noises(path, 0.6, 1.0, orders=(8, 16, 24), remember=remember)[1] for path in _PATHS)
    return Shown(
        worst <= 1 + 1e-6, f"the largest ε at the end is {worst:.8g} for ε₀ = 1", worst, {"paths": len(_PATHS)}
    )


allocation_within_budget = Demonstration(lambda: _within(True), twin=lambda: _within(False))


# ---- the numbers of Figure 1 ----


def dp_sgd_noise(batch: int, epochs: int, epsilon: float) -> float:
    """The σ_G of DP-SGD on FMNIST by Lemmas 2.9 and 2.5, T = |D|/b, the release of Ñ paid; best whole order."""
    rounds, spread = SIZE / batch * epochs, 0.02 * SIZE

    def spent(noise: float) -> float:
        return min(
            converted(order, order / (2 * spread**2) + rounds * _loss(order, batch, 1.0, noise), DELTA)
            for order in range(2, 65)
        )

    low, high = 0.2, 30.0
    for _ in range(34):
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


figure_1_dp_sgd = Computation(dp_sgd_noise)


def _axes(batch: int) -> Shown:
    """σ_G of DP-SGD at the last epoch marked in each panel, against the marks of its σ axis (half a step more)."""
    panels = {0.5: (10, 1.5, 1.85), 1.0: (14, 0.9, 1.35), 4.0: (40, 0.4, 0.9)}
    found = {epsilon: dp_sgd_noise(batch, epochs, epsilon) for epsilon, (epochs, _, _) in panels.items()}
    holds = all(panels[epsilon][1] <= noise <= panels[epsilon][2] for epsilon, noise in found.items())
    words = ", ".join(f"σ = {noise:.4g} at ε = {epsilon:g}" for epsilon, noise in found.items())
    return Shown(holds, f"b = {batch}: {words}", found[4.0], {str(epsilon): noise for epsilon, noise in found.items()})


figure_1_axes = Demonstration(lambda: _axes(256), twin=lambda: _axes(1024))


def _drop(last: float) -> Shown:
    drop = 1 - last / 0.81
    return Shown(0.395 <= drop < 0.505, f"from 0.81 to {last} is a drop of {100 * drop:.1f} %", 100 * drop)


figure_1_drop = Demonstration(lambda: _drop(0.42), twin=lambda: _drop(0.62))


def _last_noise(low: float = 0.02, high: float = 1.0) -> Shown:
    """The constant K̃/(ÑC) that ends at 0.42 after 40 epochs of ε₀ = 4, b = 256, for a_E = 0.8 and 1."""
    needed = {}
    for first_share in (0.8, 1.0):
        below, above = low, high
        for _ in range(6):
            middle = (below + above) / 2
            last = epoch_noises([middle] * 40, first_share, 4.0, orders=(5, 6, 8))[0][-1]
            below, above = (middle, above) if last <= 0.42 else (below, middle)
        needed[f"first share {first_share:g}"] = (below + above) / 2
    words = "the trace of K̃ is not printed; a constant K̃/(ÑC) would have to be " + ", ".join(
        f"{fill:.2g} ({name})" for name, fill in needed.items()
    )
    return Shown(None, words, None, needed)


def _last_above_first(last: float) -> Shown:
    """Whether a σ_G above DP-SGD's can stand at the end of a first phase: at K̃ = ÑC, the worst case, it ends there."""
    most = epoch_noises([1.0] * 40, 1.0, 4.0, orders=(5, 6, 8))[0][-1]
    return Shown(last <= most + 0.005, f"K̃ = ÑC throughout ends at {most:.4g}, nothing ends above; asked: {last}", most)


figure_1_last = Demonstration(_last_noise, twin=lambda: _last_above_first(0.9))


def _second_phase(first_share: float, epochs: int = 40) -> Shown:
    """Epochs of the second phase that Table 2's a_E leaves."""
    left = round((1 - first_share) * epochs)
    return Shown(left > 0, f"a_E = {first_share:g} leaves {left} of {epochs} epochs to the second phase", float(left))


figure_1_second_phase = Demonstration(lambda: _second_phase(1.0), twin=lambda: _second_phase(0.8))
