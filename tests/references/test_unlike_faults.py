"""Internal: what is cut off is counted, seen by planting a reference that forgets it.

Planted faults in the references of the other events: each is one that a hasty writer could make, and is caught.

The check that catches a fault passes without it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import flint
import pytest

from dpbench.events import (
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.references import (
    _lattice,
    group_sampled_gaussian,
    laplace,
    random_sensitivity_gaussian,
)
from dpbench.references._enclosure import ball, bits
from dpbench.references._pair import Sampled
from dpbench.references._reference import Reference
from dpbench.references.fixed_size_gaussian import reference as fixed_size
from dpbench.references.group_sampled_gaussian import reference as group
from dpbench.references.random_sensitivity_gaussian import reference as random_sensitivity


def relative(a: Any, b: Any) -> float:
    return float(abs(Fraction(a) - Fraction(b)) / abs(Fraction(b)))


def jl_holds() -> bool:
    event = RandomSensitivityGaussian(0.2, 1.5, 1)
    exact = random_sensitivity.quadrature(event, 2.0, 12, direction="remove")
    found = random_sensitivity.delta(event, 2.0, 12, direction="remove")
    return relative(found.lower, exact) < 1e-10


def test_fault_the_heavy_tail_of_z_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with Z > 8 are left out."""
    assert jl_holds()
    node = random_sensitivity_gaussian._Sums.node

    def cut(self: Any, i: int) -> Any:
        weight, inverse, plain, below = node(self, i)
        return (weight if plain * 2 * 1.5 * math.sqrt(2) < 8 else weight * 0, inverse, plain, below)

    monkeypatch.setattr(random_sensitivity_gaussian._Sums, "node", cut)
    assert not jl_holds()


def test_fault_the_step_of_the_sum_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the sum grows with the step, so a long step cannot give a narrow and wrong enclosure."""
    law = random_sensitivity_gaussian.RandomSensitivity(Fraction(1, 5), Fraction(9, 4), 50)
    with bits(200):
        exact = law.pair("remove").hockey_stick()(flint.arb(1))
        assert exact is not None
        monkeypatch.setattr(math, "cos", lambda _: 1.0)  # only _Sums uses it: the growth in the strip is forgotten
        found = law.pair("remove").hockey_stick()(flint.arb(1))
        assert found is not None
        assert found[0].overlaps(exact[0])
        assert found[0].rad() > exact[0].rad()


def test_fault_mass_above_the_cap_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    event, epsilon = (RandomSensitivityGaussian(0.3, 1.0, 1), 4), 1.0
    assert random_sensitivity.delta(event, epsilon, direction="remove", cells=512).lower > 0
    capped = _lattice._capped

    def dropped(masses: Any, first: int, grid: Any, side: Any) -> Any:
        return (capped(masses, first, grid, "upper")[0], 0) if side == "upper" else capped(masses, first, grid, side)

    monkeypatch.setattr(_lattice, "_capped", dropped)
    with pytest.raises(ValueError, match="expected at most upper"):  # the ends cross
        random_sensitivity.delta(event, epsilon, direction="remove", cells=512)


def test_fault_the_upper_atom_of_laplace_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    lattice = Reference("Laplace", laplace.reference.releases)
    exact = laplace.reference.delta((Laplace(2.0), 4), 1.0, 20)
    assert exact.within(lattice.delta((Laplace(2.0), 4), 1.0, cells=512))
    discretise = _lattice.discretise

    def without_atom(*given: Any) -> Any:
        measure = discretise(*given)
        if measure.side == "lower":
            return measure
        return replace(measure, masses=measure.masses.truncate(measure.masses.length() - 1))

    monkeypatch.setattr(_lattice, "discretise", without_atom)
    with pytest.raises(ValueError, match="expected at most upper"):  # the ends cross
        lattice.delta((Laplace(2.0), 4), 1.0, cells=512)


def test_fault_the_group_has_the_anchor_of_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    event = GroupSampledGaussian(0.1, 2.0, 3)
    exact = group.quadrature(event, 0.3, 15, direction="remove")
    assert relative(group.delta(event, 0.3, 20, direction="remove").lower, exact) < 1e-13
    monkeypatch.setattr(
        group_sampled_gaussian.GroupPair,
        "anchor",
        lambda self: ball(1 - Fraction(1, 10)).log() * (1 if self.direction == "remove" else -1),
    )
    assert relative(group.delta(event, 0.3, 20, direction="remove").lower, exact) > 1e-3


def test_one_direction_composed_is_no_bound_for_fixed_size_batches() -> None:
    """Composing only remove's pair, the worse of the two at every ε >= 0 of one invocation, is below explicit data."""
    rate, variance = Fraction(1, 10), Fraction(4)
    event = SampledGaussian(0.1, 2.0, adjacency="replace_one", sampler="without_replacement")
    upper_of_remove = Reference("SampledGaussian", lambda _: ((Sampled(rate, variance / 4), 40),))
    for epsilon in (0.0, 0.2):
        found = fixed_size.delta((event, 40), epsilon, cells=2048)
        remove = upper_of_remove.delta(event, epsilon, direction="remove", cells=2048)
        add = upper_of_remove.delta(event, epsilon, direction="add", cells=2048)
        assert found.lower >= max(remove.lower, add.lower)
        assert found.upper > max(remove.upper, add.upper)
