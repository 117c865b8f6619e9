"""Table 10 of dplis2021: whether five runs show that smoothing steadies training."""

from __future__ import annotations

from dpbench.claims.claim import Printed
from dpbench.claims.judges import Shown, shown

SETTINGS = ("MNIST 5.01", "MNIST 10.00", "CIFAR-10 5.01", "CIFAR-10 10.00")


@shown()
def deviations_significant(deviations: tuple[Printed, ...], level: float) -> Shown:
    """One-sided tests of equal variances of five normal accuracies, with smoothing (R = 10, R_best) and without.

    With u = r/(1 + r) for a ratio r of variances, F with 4 and 4 degrees of freedom is above r with probability
    1 − u²(3 − 2u). The table has six deviations for each network: none, none, R = 10, R = 10, R_best, R_best.
    """
    values = [number.value for number in deviations]
    chances = {}
    for place, name in enumerate(SETTINGS):
        first = 6 * (place // 2) + place % 2
        for radius, later in (("R = 10", 2), ("R_best", 4)):
            u = values[first] ** 2 / (values[first] ** 2 + values[first + later] ** 2)
            chances[f"{name}, {radius}"] = 1 - u * u * (3 - 2 * u)
    smaller, good = (sum(chance < limit for chance in chances.values()) for limit in (0.5, level))
    reason = f"{smaller} of 8 deviations are smaller; one-sided F tests are below {level:g} for {good} of 8"
    return Shown(True if good == 8 else None if smaller == 8 else False, reason, good, {"p_values": chances})
