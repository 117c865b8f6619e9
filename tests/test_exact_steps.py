"""The steps of the transforms' sums: against finer ones, against mpmath's integrals, and where they were too large."""

from __future__ import annotations

import math
import random

import mpmath
import numpy as np
import pytest

from dpbench.accountants import _leaf_strip
from dpbench.accountants._contour import Transform
from dpbench.accountants._inversion import invert
from dpbench.accountants._leaf_family import MIDDLE, NARROW, WIDE, Family
from dpbench.accountants._leaf_grid import Ground, Landscape, Reach
from dpbench.accountants._loss_leaf import UNIT, Floats, sampled_leaf
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.events import Composition, SampledGaussian

SEEDS, EACH = 5, 40


def cases(seed: int) -> list[tuple[Family, float, Floats]]:
    """Windows, bands and the whole of sampled releases, the lines' real parts and nodes."""
    rng, found = random.Random(seed), []
    for _ in range(EACH):
        way, share = rng.choice(("add", "remove")), rng.choice((WIDE, MIDDLE, NARROW))
        leaf = sampled_leaf(10 ** rng.uniform(-8, -0.3), 10 ** rng.uniform(-0.6, 0.9), way)
        whole, height, real = (
            Family([leaf], np.ones(1), share=share),
            10 ** rng.uniform(1, 6),
            10 ** rng.uniform(-1, 2.5),
        )
        cut = whole.near(height, whole.power(real), rng.uniform(4, 20))
        if cut is None or not np.isfinite(cut).all() or cut[0] < -7:
            continue
        near, low = whole.within(cut), rng.choice((0, 1)) * rng.uniform(0, 0.9)
        nodes = height * (low + rng.uniform(0.01, 1) * (1 - low) * np.arange(rng.choice((12, 40, 150))) / 150)
        band = whole.band(near, None)
        assert band is not None
        found += [(near, real, nodes), (band[0], real, nodes)]
    for _ in range(EACH):  # powers of "add" far below 0
        leaf = sampled_leaf(10 ** rng.uniform(-6, -0.3), 10 ** rng.uniform(-0.6, 0.5), "add")
        real = 10 ** rng.uniform(1, 4.5)
        found.append((Family([leaf], np.ones(1)), real, real * 10 ** rng.uniform(-2, 1) * np.arange(40) / 40))
    return found


def apart(family: Family, real: float, nodes: Floats, monkeypatch: pytest.MonkeyPatch) -> float:
    """How far the line is from itself at a quarter of the step, over the errors that both state."""
    part = Landscape.part

    def finer(self: Landscape, reach: Reach, first: int, last: int, step: float) -> Ground:
        return part(self, reach, first, last, step / 4)

    try:
        value, wrong = family.line(real, nodes)
        with monkeypatch.context() as patch:
            patch.setattr(Landscape, "part", finer)
            close, its = family.line(real, nodes)
    except ArithmeticError:  # too far off to be resolved
        return 0.0
    return float((np.abs(np.exp(value - close) - 1) / (wrong + its + 4 * UNIT * np.abs(value))).max())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_finer_steps_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left are roundings, which a step of another size makes anew: no more than both errors say, or hardly."""
    assert max(apart(*case, monkeypatch) for case in cases(seed)) < 2.5


@pytest.mark.parametrize("fault", ["windowed", "_lowering", "_turning"])
def test_steps_that_forget_what_grows_would_be_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = getattr(_leaf_strip, fault)

    def nothing(*asked: object) -> Floats:
        found: Floats = 0 * whole(*asked)
        return found

    monkeypatch.setattr(_leaf_strip, fault, nothing)
    assert max(apart(*case, monkeypatch) for seed in range(SEEDS) for case in cases(seed)) > 1e3


@pytest.mark.parametrize(
    ("rate", "sigma", "real", "share", "height"),
    [
        (0.0034487, 0.36445, 288.8, NARROW, 325.0),
        (0.1017729, 0.54697, 121.3, NARROW, 298.4),
        (5e-4, 0.36, 119.3, WIDE, 239.0),
    ],
)
def test_far_powers_of_add_in_windows_are_the_integral(
    rate: float, sigma: float, real: float, share: float, height: float
) -> None:
    """There e^(wρ) is nothing at the window's edge, but 1 is not; steps made for the former were 1e-8 off."""
    whole = Family([sampled_leaf(rate, sigma, "add")], np.ones(1), share=share)
    near = whole.within(whole.near(height, whole.power(real), 8.0))
    assert near.cut is not None
    cut, width, nodes = float(near.cut[0]), float(near.width[0]), 0.6 * height * np.arange(12) / 12
    value, wrong = near.line(real, nodes)
    with mpmath.workdps(30):
        for place in (0, 5, 11):
            z = mpmath.mpc(real, nodes[place])

            def density(t: mpmath.mpf, z: mpmath.mpc = z) -> mpmath.mpc:
                ratio = mpmath.log1p(rate * mpmath.expm1(t / sigma - mpmath.mpf(1) / (2 * mpmath.mpf(sigma) ** 2)))
                return mpmath.npdf(t) * mpmath.ncdf((cut - t) / width) * mpmath.exp(-z * ratio)

            breaks = [-12, *np.linspace(-6, cut - 8 * width, 30), *np.linspace(cut - 7 * width, cut + 8 * width, 16)]
            truth = mpmath.log(mpmath.quad(density, [mpmath.mpf(float(one)) for one in breaks]))
            off = abs(mpmath.exp(mpmath.mpc(value[0, place]) - truth) - 1)
            assert off <= 10 * (wrong[0, place] + 4 * UNIT), (place, float(off), wrong[0, place])


def test_a_curve_far_out_in_the_other_direction() -> None:
    """Its lines' steps left 2e-7 of δ = 1e-203 out, and told 7e-12."""
    rate, sigma, count, top = 0.00011471333489782656, 0.6559102382280346, 25513, 2.51552
    parts = Composition(((SampledGaussian(rate, sigma), count),))
    curve = accountant.curve(parts)
    assert isinstance(curve, ExactCurve)
    epsilons = [top * place / 79 for place in range(80)]
    told = curve.one_way("add").deltas(epsilons)
    transform = Transform(((sampled_leaf(rate, sigma, "add"), count),))
    seen = 0
    for place in range(4, 80, 5):
        alone = invert(transform, epsilons[place])
        if alone is None or told[place].value < 1e-290:
            continue
        value, _, error = alone(epsilons[place])
        assert abs(told[place].value - value) <= error + told[place].upper - told[place].value + 1e-13 * value
        seen += 1
    assert seen > 4


def test_windows_next_to_each_other_make_the_whole() -> None:
    """What a window holds, and what the band around it does, at nodes of a line: nothing is counted twice."""
    whole = Family([sampled_leaf(1e-4, 0.5, "remove")], np.ones(1))
    near = whole.within(whole.near(900.0, whole.power(3.0), 12.0))
    nodes = 400.0 * np.arange(300) / 300
    band = whole.band(near, None)
    assert band is not None
    total, all_of_it = np.exp(near.line(3.0, nodes)[0]) + np.exp(band[0].line(3.0, nodes)[0]), whole.line(3.0, nodes)[0]
    assert np.abs(total / np.exp(all_of_it) - 1).max() < 1e-13
    assert whole.band(near, None) is band  # made once
    assert math.isfinite(float(near.missing[0]))
