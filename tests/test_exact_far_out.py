"""Curves far out, and averages that would take too long: what a second look at chains and Laplace lines has found."""

from __future__ import annotations

import numpy as np

from dpbench.accountants._contour import Transform
from dpbench.accountants._leaves import leaves
from dpbench.accountants._plan import Aim
from dpbench.accountants._unlike import MixedCurve
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.events import Composition, Laplace, SampledGaussian


def test_a_chain_whose_near_parts_are_nothing_loses_no_digits() -> None:
    """log A + g took −4e7 and as much again: the error of a chain did not contain what one ε alone tells."""
    event = SampledGaussian(0.44257076014272984, 25.774683691717346)
    transform = Transform(tuple((leaf, 1_164_672) for leaf in leaves(event, "remove")))
    cuts = tuple(np.full(len(family.sigma), -8.492) for family in transform.families)
    apart, near = transform.split(2048.0, cuts)
    u = np.linspace(0.0, 0.5, 8)
    value, error = apart.evaluate(1.374, u)
    whole, wrong = transform.evaluate(1.374, u)
    assert near.at(np.array([1.374])).log_moment[0] < -1e7
    assert (np.abs(value - whole) <= error + wrong).all()
    assert (error < 4e-8).all()


def test_a_point_in_both_ladders_is_there_once() -> None:
    """Else it seems to bound its own aliases, and τ is far too small next to a wall."""
    event = SampledGaussian(2.440900262073692e-07, 8.83138146891118)
    transform = Transform(tuple((leaf, 47_550) for leaf in leaves(event, "remove")))
    coarse = transform.ladder(0.0)
    for index in (3, 8, 13):
        points = transform.refined(coarse, index).points
        assert (np.diff(points) > 1e-6 * points[:-1]).all()


def test_a_line_bounds_its_aliases_where_its_target_is_far_too_large() -> None:
    event = SampledGaussian(2.440900262073692e-07, 8.83138146891118)
    transform = Transform(tuple((leaf, 47_550) for leaf in leaves(event, "remove")))
    for epsilon in (1.7e-5, 1e-3):
        plan = transform.plan(Aim((epsilon,), (-2.0,)))
        assert plan is not None
        found = plan.ladder.log_alias(plan.real, plan.period, np.array([epsilon]))
        assert found[0] <= -2.0 + plan.aim.precision + 0.7


def test_an_average_that_takes_too_much_work_leaves_the_ends_of_the_line() -> None:
    """Few sparse releases beside Laplace: the ends are wide and say so, and contain what Laplace alone tells."""
    parts = (SampledGaussian(1.2168e-05, 1.369, "replace_one"), 100), (Laplace(6.405, "replace_one"), 1)
    composition = Composition(((SampledGaussian(0.00059213, 4.84, "replace_one"), 1), *parts))
    curve = accountant.curve(composition)
    assert isinstance(curve, MixedCurve)
    found = curve.epsilon(1e-5)
    assert found.reason is not None
    assert found.lower is not None
    assert found.upper is not None
    alone = accountant.curve(Composition(((Laplace(6.405, "replace_one"), 1),))).epsilon(1e-5)
    assert found.lower <= 1.01 * alone.value
    assert alone.value <= found.upper


def test_a_curve_far_out_is_as_sure_as_its_points() -> None:
    event = SampledGaussian(1.4757837804548676e-06, 34.197549306499475)
    curve = accountant.curve(Composition(((event, 111),)))
    assert isinstance(curve, ExactCurve)
    found = curve.deltas(np.linspace(0.0, 2e-4, 60).tolist())
    assert all(one.reason is None for one in found)
