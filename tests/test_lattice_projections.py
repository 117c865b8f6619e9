"""The lattice accountant for random sensitivities: its density, what lies beyond its ends, and stored enclosures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from dpbench.accountants._lattice_projections import (
    LOW,
    log_bessel,
    log_density,
    mass_above,
    mass_below,
    random_sensitivity_law,
)
from dpbench.accountants.lattice import accountant
from dpbench.events import Composition, RandomSensitivityGaussian, SampledGaussian, from_json

TABLE = Path(__file__).parent / "references" / "random_sensitivity_gaussian.json"
POINTS = [
    point
    for point in json.loads(TABLE.read_text(encoding="utf-8"))["points"]
    if "epsilon" in point and sum(part["count"] for part in point["composition"]["parts"]) > 1
]


def times(event: RandomSensitivityGaussian | SampledGaussian, count: int) -> Composition:
    return Composition(((event, count),))


class TestDensity:
    @pytest.mark.parametrize("order", [1.0, 3.0, 10.5, 59.5, 60.5, 100.0])
    def test_the_bessel_function_against_forty_digits(self, order: float) -> None:
        """1e-12 for SciPy's at moderate orders; Debye's series from 60 on leaves 4e-10."""
        for x in (0.5 * order, order, 3.0 * order):
            with mpmath.workdps(40):
                truth = float(mpmath.log(mpmath.besselk(order, x)))
            found = float(log_bessel(order, np.array([x]))[0])
            assert found == pytest.approx(truth, rel=1e-12, abs=1e-9)

    @pytest.mark.parametrize(
        ("noise", "projections", "s"), [(1.0, 4, 0.7), (0.5, 3, -2.0), (3.0, 9, 0.1), (2.0, 1, 5.0)]
    )
    def test_it_is_the_integral_over_z(self, noise: float, projections: int, s: float) -> None:
        """E over G = χ²_r/r of the normal density with mean −1/(2σ²G) and variance 1/(σ²G)."""
        with mpmath.workdps(25):
            half = mpmath.mpf(projections) / 2

            def integrand(t: mpmath.mpf) -> mpmath.mpf:
                g = mpmath.exp(t)
                weight = (half * g) ** half * mpmath.exp(-half * g) / mpmath.gamma(half)
                return weight * mpmath.npdf(s, -1 / (2 * noise**2 * g), 1 / (noise * mpmath.sqrt(g)))

            truth = float(mpmath.log(mpmath.quad(integrand, mpmath.linspace(-40, 5, 46))))
        assert float(log_density(noise, projections, np.array([s]))[0]) == pytest.approx(truth, abs=1e-10)

    @pytest.mark.parametrize("projections", [1, 5, 200])
    def test_masses_beyond_the_ends(self, projections: int) -> None:
        """With the trapezoidal rule between them all is 1, or more by Z's rounded tail; and e^s p(s) = p(−s)."""
        event = RandomSensitivityGaussian(0.1, 1.5, projections)
        s = np.linspace(-50.0, 30.0, 160001)
        inside = float(np.exp(log_density(1.5, projections, s)).sum() * (s[1] - s[0]))
        assert 1 - 1e-9 <= mass_below(event, -50.0) + inside + mass_above(event, 30.0) <= 1 + 1e-6
        moved = log_density(1.5, projections, s) + s
        assert moved == pytest.approx(log_density(1.5, projections, -s), abs=1e-9)

    @pytest.mark.parametrize("rate", [0.01, 0.7, 1.0])
    @pytest.mark.parametrize("direction", [0, 1])
    def test_the_law_holds_all_the_mass(self, rate: float, direction: int) -> None:
        """At least 1, in all, and hardly more."""
        law = random_sensitivity_law(RandomSensitivityGaussian(rate, 1.0, 5), direction, 16.0)
        (branch,) = law.branches
        x = np.linspace(branch.low, branch.high, 400001)
        inside = float(np.exp(branch.log_density(x)).sum() * (x[1] - x[0]))
        assert inside + law.infinite + float(np.exp(law.log_masses).sum()) == pytest.approx(1.0, abs=1e-6)
        assert branch.low == LOW or rate == 1
        levels = branch.loss(x[1000:-1000:4000])
        assert branch.loss(branch.position(levels)) == pytest.approx(levels, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("point", POINTS, ids=lambda found: f"{found['composition']['parts'][0]} {found['epsilon']}")
def test_it_is_above_the_stored_enclosures_and_close(point: dict[str, Any]) -> None:
    """Never below; within 5 % of the upper end where δ is above 1e-6 (the enclosures themselves are up to 8 % wide)."""
    both = point["both"]
    found = accountant.curve(from_json(point["composition"])).delta(float(point["epsilon"]))
    assert found.upper == found.value
    assert found.value >= float(both["lower"])
    if float(both["upper"]) > 1e-6 and len(point["composition"]["parts"]) == 1:
        assert found.value <= 1.1 * float(both["upper"])


def test_epsilon_inverts_delta_and_tends_to_the_sampled_gaussian() -> None:
    curve = accountant.curve(times(RandomSensitivityGaussian(0.02, 1.0, 2000), 100))
    plain = accountant.curve(times(SampledGaussian(0.02, 1.0), 100)).epsilon(1e-4).value
    found = curve.epsilon(1e-4).value
    assert plain < found < 1.1 * plain
    assert curve.delta(found).value <= 1e-4 * (1 + 1e-3)
    few = accountant.curve(times(RandomSensitivityGaussian(0.02, 1.0, 9), 100)).epsilon(1e-4).value
    assert found < few < math.inf
