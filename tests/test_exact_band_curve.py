"""Whole curves of rare releases by bands: against certified enclosures, the same points one by one, and other sums."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from dpbench.accountants import _band_curve, _band_levels
from dpbench.accountants._band_curve import band_curve
from dpbench.accountants._band_direction import BandDirection
from dpbench.accountants._band_levels import Levels, Part
from dpbench.accountants._band_line import Band
from dpbench.accountants._band_split import Piece
from dpbench.accountants._bands import Bands
from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.accounting import Estimate
from dpbench.events import Composition, Event, GroupSampledGaussian, SampledGaussian

Parts = tuple[tuple[Event, int], ...]

GENTLE: Parts = ((SampledGaussian(1.75e-8, 2.99), 2_670_000),)
HEAVY: Parts = ((SampledGaussian(5.2e-8, 0.97), 1_500_000),)
HEAVIEST: Parts = ((SampledGaussian(1.34e-8, 0.52), 2_280_000),)
FEWER: Parts = ((SampledGaussian(1.1e-8, 1.01), 28_000),)
GROUPS: Parts = ((GroupSampledGaussian(3e-7, 1.6, 3), 40_000),)
UNLIKE: Parts = ((SampledGaussian(2e-7, 1.1), 20_000), (SampledGaussian(5e-7, 2.0), 50_000))
REPLACED: Parts = ((SampledGaussian(3e-8, 0.8, adjacency="replace_one"), 5000),)
CERTIFIED: list[tuple[Parts, float, float, float]] = [
    (GENTLE, 1e-5, 7.943975139600313e-07, 7.943975139690258e-07),
    (GENTLE, 3.5e-5, 4.59088625307407e-10, 4.590886253110238e-10),
    (HEAVY, 1e-4, 5.565082794749006e-06, 5.56508279479376e-06),
    (HEAVY, 3.6e-4, 4.178712927110691e-10, 4.1787129271438773e-10),
    (HEAVIEST, 2e-4, 3.6865507984939308e-06, 3.6865507985409716e-06),
    (GROUPS, 2e-4, 2.887272411931582e-06, 2.8872724119548e-06),
    (UNLIKE, 3e-4, 7.528700802915139e-11, 7.528700802976645e-11),
    (((SampledGaussian(1.26e-7, 0.895), 9_740_000),), 2.9e-3, 1.8697056475952281e-10, 1.8697056476100884e-10),
]


def exact(parts: Parts) -> ExactCurve:
    curve = accountant.curve(Composition(parts))
    assert isinstance(curve, ExactCurve)
    return curve


def way(parts: Parts, number: int = 0) -> BandDirection:
    found = exact(parts).ways[number]
    assert isinstance(found, BandDirection)
    return found


def apart(first: Estimate, second: Estimate) -> bool:
    assert None not in (first.lower, first.upper, second.lower, second.upper)
    return bool(first.lower > second.upper * (1 + 1e-13) or second.lower > first.upper * (1 + 1e-13))  # type: ignore[operator]


def levels(parts: Parts, top: float, lowest: float) -> tuple[Levels, Floats, Floats]:
    direction = way(parts)
    at, log_delta = np.linspace(0.0, top, 9) - direction._bands.origin, np.linspace(-12.0, lowest, 9)
    return Levels(direction._bands, at, log_delta), at, log_delta


@pytest.mark.parametrize(("parts", "epsilon", "lower", "upper"), CERTIFIED)
def test_a_curve_is_within_what_is_certified(parts: Parts, epsilon: float, lower: float, upper: float) -> None:
    """Ends that `dpbench certify` has proven: among 50 ε, and the error is what was promised."""
    epsilons = [2 * epsilon * place / 50 for place in range(51)]
    found = exact(parts).deltas(epsilons)[25]
    assert found.reason is None
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= upper
    assert found.upper >= lower
    assert found.upper - found.lower <= 2e-9 * found.value


@pytest.mark.parametrize(
    ("parts", "top"),
    [
        (GENTLE, 5e-5),
        (HEAVY, 8e-4),
        (HEAVIEST, 3e-3),
        (FEWER, 2e-5),
        (GROUPS, 6e-4),
        (UNLIKE, 1e-3),
        (REPLACED, 6e-5),
    ],
)
def test_a_curve_tells_what_every_point_tells_alone(parts: Parts, top: float) -> None:
    epsilons = [top * place / 59 for place in range(60)]
    whole = exact(parts).deltas(epsilons)
    for place in (0, 1, 9, 20, 31, 44, 59):
        alone = exact(parts).delta(epsilons[place])
        assert not apart(whole[place], alone), (epsilons[place], whole[place], alone)
        assert whole[place].reason is None


def test_random_curves_tell_what_points_tell_alone() -> None:
    source = random.Random(11)
    for _ in range(10):
        rate, noise = 10 ** source.uniform(-8.5, -6), 10 ** source.uniform(-0.3, 0.6)
        parts: Parts = ((SampledGaussian(rate, noise), int(10 ** source.uniform(1.2, 6.5))),)
        curve = exact(parts)
        if not isinstance(curve.ways[0], BandDirection):
            continue
        top = 2 * curve.epsilon(curve.delta(0.0).value * 10 ** -source.uniform(1, 6)).value
        whole = curve.deltas([top * place / 39 for place in range(40)])
        for place in source.sample(range(40), 4):
            assert not apart(whole[place], exact(parts).delta(top * place / 39)), (parts, place)


@pytest.mark.parametrize("shift", [-6.0, -2.0, 2.0, 6.0])
def test_a_wrong_estimate_costs_time_and_nothing_else(shift: float) -> None:
    direction, epsilons = way(HEAVY), np.linspace(0.0, 6e-4, 40)
    rough = direction._rough(epsilons)
    values, errors = band_curve(direction._bands, epsilons, rough)
    others, wrong = band_curve(direction._bands, epsilons, np.minimum(rough + shift, 0.0))
    assert (np.abs(values - others) <= errors + wrong).all()
    assert (np.minimum(errors, wrong) <= np.maximum(1e-9 * values, np.minimum(1e-4 * values, 1e-16))).all()


def test_coarser_lines_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines laid for fewer digits than promised do not pass for sharp ones: the stated error grows with them."""
    direction, epsilons = way(HEAVY), np.linspace(0.0, 3e-4, 30)
    rough = direction._rough(epsilons)
    values, errors = band_curve(direction._bands, epsilons, rough)
    for module in (_band_curve, _band_levels):
        monkeypatch.setattr(module, "PRECISION", math.log(1e-5))
    others, wrong = band_curve(direction._bands, epsilons, rough)
    assert np.abs(others / values - 1).max() > 1e-9
    assert (np.abs(values - others) <= errors + wrong).all()


def test_a_curve_without_its_bands_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: large losses are left out."""
    epsilons = [8e-4 * place / 59 for place in range(60)]
    lines, truth = _band_curve._lines, exact(HEAVY).delta(epsilons[30])

    def lame(bands: Bands, part: Part, at: Floats, log_delta: Floats) -> Iterator[tuple[slice, Piece]]:
        return iter(()) if part.lowers is not None else lines(bands, part, at, log_delta)

    monkeypatch.setattr(_band_curve, "_lines", lame)
    assert apart(exact(HEAVY).deltas(epsilons)[30], truth)


@pytest.mark.parametrize("parts", [HEAVY, HEAVIEST, GROUPS, UNLIKE, REPLACED])
def test_sums_over_even_steps_are_those_over_panels(parts: Parts) -> None:
    """log A and log D at real points by another rule, wherever they are used."""
    found, at, log_delta = levels(parts, 3e-4, -40.0)
    worst = 0.0
    for _ in range(4):
        whole, band = found.whole(), found.lowered(at, log_delta)
        for part in (whole, band):
            for low, high in ((0, -30), (-30, -12), (-12, None)):
                points = part.bounds.points[low:high]
                if not len(points):
                    continue
                panels = Band(found.bands.leaves, part.uppers, part.lowers, float(points[-1]), 0.0)
                _, moment = panels.log_at(points)
                wrong = np.abs(moment - part.bounds.log_moment[low:high]) / (1 + 1e-4 * np.abs(moment))
                worst = max(worst, float(wrong.max()))
    assert worst < 1e-3


@pytest.mark.parametrize("parts", [GENTLE, HEAVY, HEAVIEST, FEWER])
def test_what_is_seen_beyond_a_line_is_a_bound(parts: Parts) -> None:
    """|A| and |D| at the heights that are looked at, by the sums of a line."""
    found, at, log_delta = levels(parts, 3e-4, -40.0)
    for _ in range(3):
        for part in (found.whole(), found.lowered(at, log_delta)):
            for place in (len(part.bounds.points) // 3, len(part.bounds.points) // 2):
                real = float(part.bounds.points[place])
                end = 3 / math.sqrt(float(part.bulk[place]))
                u = end * _band_levels._AHEAD
                line = Band(found.bands.leaves, part.uppers, part.lowers, real, float(u[-1]))
                moment, error = line.log_line(real, u)
                seen = (moment.real - np.log(math.pi * u))[error < 0.1]
                assert seen.max(initial=-math.inf) <= part.ahead(place, end) + 0.1


@pytest.mark.parametrize("parts", [HEAVY, GROUPS, UNLIKE])
def test_bounds_of_many_are_those_of_each(parts: Parts) -> None:
    """The Chernoff bounds of the direction whose losses have a largest value: no less than δ, and about as low."""
    direction, epsilons = way(parts, 1), [2e-4 * place / 9 for place in range(10)]
    many = direction._bands.bounds(epsilons)
    for epsilon, bound in zip(epsilons, many, strict=True):
        assert bound == pytest.approx(direction._bands.bound(epsilon), abs=1e-6)
        assert direction.delta(epsilon).value <= math.exp(bound) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("parts", "log_deltas"),
    [
        (((SampledGaussian(0.0001927560917184429, 27.612034944835642), 2),), (-12, -8)),
        (((SampledGaussian(0.0001234205433413357, 11.817195231406364), 16),), (-12, -6)),
        (((SampledGaussian(0.00039870367473115716, 6.96406047556999), 2),), (-12, -5)),
        (((GroupSampledGaussian(0.016976784967004152, 1.4861793287146703, 2), 3),), (-10, -8)),
    ],
)
def test_windows_in_which_nothing_is_left_stop_no_curve(parts: Parts, log_deltas: tuple[int, ...]) -> None:
    """An index beyond an empty array, a root of −1e-30, and the square of 0/0 once."""
    for log_delta in log_deltas:
        top = 2 * exact(parts).epsilon(10.0**log_delta).value
        epsilons = [top * place / 39 for place in range(40)]
        for epsilon, told in list(zip(epsilons, exact(parts).deltas(epsilons), strict=True))[::9]:
            alone = exact(parts).delta(epsilon)
            assert told.lower is not None
            assert told.upper is not None
            assert alone.lower is not None
            assert alone.upper is not None
            assert told.lower <= alone.upper
            assert alone.lower <= told.upper
