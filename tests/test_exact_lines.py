"""The exact accountant's parts: lines as matrix products, windows, families of like releases, whole curves.

Each part is held against the same thing done another way: one node at a time, without windows, one release at a time,
one ε at a time.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest

from dpbench.accountants import _complex, _contour, _leaf_turns
from dpbench.accountants._contour import Transform, families
from dpbench.accountants._direction import Direction
from dpbench.accountants._leaf_family import Family
from dpbench.accountants._leaves import leaves
from dpbench.accountants._loss_leaf import sampled_leaf
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.compose import merge
from dpbench.events import Composition, GroupSampledGaussian, SampledGaussian, from_json

TABLE = Path(__file__).parent / "references" / "certified.json"
SEVERAL = [sampled_leaf(rate, sigma, "remove") for rate, sigma in ((0.01, 1.0), (0.012, 1.1), (0.02, 0.9))]


def family(*parts: tuple[float, float], direction: str = "remove") -> Family:
    return Family([sampled_leaf(rate, sigma, direction) for rate, sigma in parts], np.ones(len(parts)))


def test_turning_is_accurate_relative_to_its_own_size() -> None:
    """A few units in the last place, for tiny angles, near multiples of π and for large angles."""
    angles = np.concatenate([np.geomspace(1e-300, 1e6, 400), math.pi * np.arange(1.0, 50.0)])
    found = _complex.turn(angles)
    with mpmath.workdps(60):
        for angle, value in zip(angles.tolist(), found.tolist(), strict=True):
            truth = mpmath.expj(mpmath.mpf(angle)) - 1
            assert abs(value - truth) <= 8 * 2.0**-53 * abs(truth)


def test_complex_functions_do_not_cancel() -> None:
    values = np.array([1e-18 + 1e-17j, 1e-9 - 2e-9j, 0.3 + 2j, -0.4 - 0.1j, 2.0 + 40j])
    with mpmath.workdps(40):
        for function, truth in ((_complex.expm1, mpmath.expm1), (_complex.log1p, lambda v: mpmath.log(1 + v))):
            for value, got in zip(values.tolist(), function(values).tolist(), strict=True):
                exact = complex(truth(mpmath.mpc(value)))
                assert abs(got - exact) <= 1e-14 * abs(exact)
        for value, got in zip(values.tolist(), _complex.exp(values).tolist(), strict=True):
            assert abs(got - complex(mpmath.exp(mpmath.mpc(value)))) <= 1e-14 * abs(got)
        for value, got in zip(values.tolist(), _complex.log(values).tolist(), strict=True):
            assert abs(got - complex(mpmath.log(mpmath.mpc(value)))) <= 1e-14 * abs(got)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_line_as_a_product_of_matrices_is_its_nodes_one_by_one(direction: str) -> None:
    like = family((0.01, 1.0), (0.012, 1.1), (1e-6, 0.95), direction=direction)
    nodes = 0.31 * np.arange(600.0)
    together, error = like.line(3.0, nodes)
    for place in (0, 1, 7, 24, 25, 26, 333, 599):
        alone, wrong = like.line(3.0, nodes[place : place + 1])
        assert (np.abs(together[:, place] - alone[:, 0]) <= error[:, place] + wrong[:, 0]).all()
        # a millionth: the smallest loss keeps its digits
        assert np.abs(together[2, place] - alone[2, 0]) <= 1e-9 * np.abs(alone[2, 0])


def test_a_wrong_product_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the row sums of e^(iuρ) − 1 are left out."""
    like, nodes = family((0.01, 1.0)), 0.31 * np.arange(600.0)
    honest = like.line(3.0, nodes)[0]
    product = _leaf_turns._product

    def lame(ratio: np.ndarray, tilted: np.ndarray, start: np.ndarray, within: np.ndarray) -> tuple[object, object]:
        value, size = product(ratio, tilted, start, within)
        return value - value[:, :, :1], size

    monkeypatch.setattr(_leaf_turns, "_product", lame)
    assert np.abs(like.line(3.0, nodes)[0] - honest).max() > 1e-3


def test_many_releases_are_the_sum_of_single_ones() -> None:
    like, points = Family(SEVERAL, np.array([1.0, 5.0, 2.0])), np.geomspace(0.1, 30.0, 9)
    u = 0.7 * np.arange(40.0)
    for number, leaf in enumerate(SEVERAL):
        alone = Family([leaf], np.ones(1))
        for many, one in zip(like.growth(points), alone.growth(points), strict=True):
            assert many[number] == pytest.approx(one[0], rel=1e-9, abs=1e-15)
        assert np.abs(like.line(4.0, u)[0][number] - alone.line(4.0, u)[0][0]).max() < 1e-13


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_high_up_the_window_changes_nothing(direction: str) -> None:
    like = family((1e-3, 0.6), (2e-3, 0.7), direction=direction)
    u = 3000.0 + 5.0 * np.arange(16.0)
    cut = like.near(float(u[0]), like.power(2.0), math.log(1e4))
    assert cut is not None
    assert np.isfinite(cut).all()
    whole, error = like.line(2.0, u)
    within, wrong = like.within(cut).line(2.0, u)
    assert (np.abs(whole - within) <= error + wrong + 1e-16).all()
    none = like.near(1e-3, like.power(2.0), 0.0)
    assert none is not None
    assert not np.isfinite(none).any()  # low down there is none


def test_a_window_and_its_band_are_the_whole() -> None:
    like, points = family((1e-3, 0.6)), np.geomspace(0.2, 20.0, 7)
    near = like.within(np.array([3.0]))
    band = like.band(near, None)
    assert band is not None
    whole = np.logaddexp(near.growth(points)[0], band[0].growth(points)[0])
    assert whole == pytest.approx(like.growth(points)[0], rel=1e-9, abs=1e-13)


def unlike(count: int) -> Composition:
    return Composition(tuple((SampledGaussian(0.01, 0.8 * (1 + k / count)), 1) for k in range(count)))


def test_unlike_releases_in_families_are_those_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together = accountant.curve(unlike(12)).epsilon(1e-6)
    monkeypatch.setattr(
        _contour, "families", lambda parts: tuple(Family([leaf], np.array([float(count)])) for leaf, count in parts)
    )
    alone = accountant.curve(unlike(12)).epsilon(1e-6)
    assert together.value == pytest.approx(alone.value, rel=1e-11)


def test_four_hundred_unlike_releases_make_a_few_families() -> None:
    parts = tuple((leaves(event, "remove")[0], count) for event, count in unlike(400).parts)
    found = families(parts)
    assert len(found) <= 4
    assert sum(len(one.leaves) for one in found) == 400


COMPOSITIONS = [
    Composition(((SampledGaussian(256 / 60000, 1.3), 3516),)),
    Composition(((SampledGaussian(2e-4, 0.5), 8000),)),
    Composition(((SampledGaussian(0.03, 1.7), 300), (GroupSampledGaussian(0.01, 2.0, 2), 50))),
    Composition(((SampledGaussian(0.02, 2.0, adjacency="replace_one"), 300),)),
]


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_a_whole_curve_is_its_points(composition: Composition) -> None:
    top = 2 * accountant.curve(composition).epsilon(1e-5).value
    points = [top * place / 40 for place in range(41)]
    curve = accountant.curve(composition)
    assert isinstance(curve, ExactCurve)
    found = curve.deltas(points)
    for epsilon, answer in list(zip(points, found, strict=True))[::5]:
        alone = accountant.curve(composition).delta(epsilon)
        bars = [(one.upper or 0.0) - one.value for one in (answer, alone)]
        assert abs(answer.value - alone.value) <= sum(bars) + 1e-300
        assert answer.reason is None
    shuffled = curve.deltas([points[7], points[3], points[7]])
    assert shuffled[0] == shuffled[2]
    assert shuffled[1].value == pytest.approx(found[3].value, rel=1e-9)
    assert curve.deltas([]) == []


def test_lines_that_no_longer_serve_say_so() -> None:
    """Far from the ε that they were planned for, the bound of their aliases is the error."""
    from dpbench.accountants._inversion import invert

    transform = Transform(((sampled_leaf(256 / 60000, 1.3, "remove"), 3516),))
    lines = invert(transform, 2.0)
    assert lines is not None
    truth = Direction(Transform(transform.parts)).delta(0.2)
    value, _, error = lines(0.2)
    assert error > 1e-9 * value
    assert abs(value - truth.value) <= error + truth.error


def test_a_period_too_short_shows_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault of a short period moves the value by less than the error bar that then goes with it."""
    from dpbench.accountants._inversion import invert

    honest = Transform.plan
    transform = Transform(((sampled_leaf(256 / 60000, 1.3, "remove"), 3516),))
    truth = Direction(Transform(transform.parts)).delta(0.8)

    def short(self: Transform, *arguments: object) -> object:
        plan = honest(self, *arguments)  # type: ignore[arg-type]
        return plan and replace(plan, period=plan.period / 3)

    monkeypatch.setattr(Transform, "plan", short)
    lines = invert(transform, 0.8)
    assert lines is not None
    value, _, error = lines(0.8)
    assert 1e-9 * truth.value < abs(value - truth.value) <= error


def test_where_lines_cannot_tell_the_error_says_so() -> None:
    """One large jump in 72 tiny releases, at δ = 1e-12: no line of a dense grid tells ε, and none is made up."""
    event, target = SampledGaussian(1.615855911e-07, 0.67385934), 1.249e-12
    lines = Direction(Transform(((sampled_leaf(event.sampling_rate, event.noise_multiplier, "remove"), 72),)))
    told = lines.epsilon(math.log(target))
    assert told.error > 1e-3 * told.value
    # the bands tell, within what the lines leave open; one release that hits is enough for δ
    answer = accountant.curve(Composition(((event, 72),))).epsilon(target)
    assert answer.reason is None
    assert abs(answer.value - told.value) <= told.error
    assert answer.value > accountant.curve(Composition(((event, 1),))).epsilon(target).value


def convolved(rate: float, sigma: float, steps: int, epsilon: float, reach: float, up: int) -> float:
    """δ(ε) of the remove direction from losses on a grid up to ±reach, rounded up or down, by the fast transform."""
    from scipy.special import ndtr

    cells = 1 << 21
    width = 2 * reach / cells
    above = np.expm1(-reach + width * np.arange(cells + 1)) + rate
    x = np.where(above > 0, sigma**2 * np.log(np.maximum(above, 1e-300) / rate) + 0.5, -np.inf)
    right = (1 - rate) * ndtr(-x / sigma) + rate * ndtr((1 - x) / sigma)
    left = (1 - rate) * ndtr(x / sigma) + rate * ndtr((x - 1) / sigma)
    mass = np.where(right[:-1] < 0.5, right[:-1] - right[1:], left[1:] - left[:-1])
    summed = np.fft.irfft(np.fft.rfft(mass) ** steps, cells)
    loss = -reach * steps + width * (np.arange(cells) + steps * up)
    loss = np.mod(loss + reach, 2 * reach) - reach
    kept = np.maximum(summed, 0) * -np.expm1(np.minimum(epsilon - loss, 0.0))
    return float(kept.sum()) + steps * float(right[-1])


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "reach"),
    [(4.6146741e-05, 1.11071808, 7, 4.24e-11, 0.08), (5.11267e-06, 0.77155, 16, 8.338e-11, 0.3)],
)
def test_few_tiny_releases_are_their_convolution(
    rate: float, sigma: float, steps: int, delta: float, reach: float
) -> None:
    """A large loss of one release beside a tiny bulk: nested windows reach it, and a convolution agrees."""
    answer = accountant.curve(Composition(((SampledGaussian(rate, sigma), steps),))).epsilon(delta)
    assert answer.reason is None
    high, low = (convolved(rate, sigma, steps, answer.value, reach, up) for up in (1, 0))
    assert low < delta < high < 1.01 * low


def test_releases_without_sampling_have_a_closed_form() -> None:
    """w(w − 1)/(2σ²), against the quadrature of a release that is sampled almost surely."""
    points, u = np.geomspace(0.1, 20.0, 7), 0.3 * np.arange(30.0)
    for direction in ("remove", "add"):
        plain, nearly = family((1.0, 1.7), direction=direction), family((1 - 1e-15, 1.7), direction=direction)
        assert plain.landscape.linear
        for ours, theirs in zip(plain.growth(points)[:3], nearly.growth(points)[:3], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-8)
        difference = plain.line(3.0, u)[0] - nearly.line(3.0, u)[0]
        assert np.abs(np.expm1(difference)).max() < 1e-9


def test_a_table_of_terms_is_their_sum_one_by_one() -> None:
    """Many ε by a product of matrices, against every term with an exponential of its own."""
    from dpbench.accountants._inversion import invert

    for composition, epsilon in ((COMPOSITIONS[0], 0.8), (COMPOSITIONS[1], 6.0)):
        (event, count), *_ = composition.parts
        lines = invert(Transform(((leaves(event, "remove")[0], count),)), epsilon)
        assert lines is not None
        for piece in lines.pieces:
            several = epsilon * np.array([0.9, 1.0, 1.1])
            sums = piece.sums
            terms = sums.weight * np.exp(
                sums.log_moment - np.log(sums.z * (1 + sums.z)) - np.multiply.outer(several, sums.z)
            )
            value, slope, error = piece(several)
            assert (np.abs(value - terms.real.sum(axis=1)) <= error).all()
            assert slope == pytest.approx(-(sums.z * terms).real.sum(axis=1), rel=1e-9)


def test_the_stored_points_tell_how_far_the_estimate_is_too_large() -> None:
    """Against the certified enclosures: never too small (test_exact), too large by less than 1e4 in the median."""
    over = []
    for point in json.loads(TABLE.read_text(encoding="utf-8"))["points"]:
        composition = from_json(point["composition"])
        lower, upper = float(point["lower"]), float(point["upper"])
        answer = accountant.curve(composition).delta(point["epsilon"])
        assert answer.upper is not None
        middle = (lower + upper) / 2
        error = max(abs(answer.value - middle), 1e-16 * middle, upper - lower)
        over.append((answer.upper - answer.value) / error)
        assert merge(composition)
    print(f"median overestimate of the error: {np.median(over):.3g}, largest {max(over):.3g}")
    assert float(np.median(over)) < 1e4


@pytest.mark.parametrize(
    ("weights", "event"),
    [
        ((0.8, 0.2), SampledGaussian(0.2, 4.0)),
        ((0.99, 0.01), SampledGaussian(0.01, 1.0)),
        ((0.5, 0.5), SampledGaussian(0.5, 10.0)),
        ((0.8**3, 3 * 0.8**2 * 0.2, 3 * 0.8 * 0.2**2, 0.2**3), GroupSampledGaussian(0.2, 4.0, 3)),
    ],
    ids=str,
)
def test_far_powers_of_add_are_the_definition_integrated(
    weights: tuple[float, ...], event: SampledGaussian | GroupSampledGaussian
) -> None:
    """log M at real powers of a thousand and more, where the integrand's top lies far to the left of all noise.

    A grid that ended at −9.5 σ lost it: δ 1.5e-5 too small at 8e-44 (q = 0.2, σ = 4, T = 4), with a bar of 1e-12. The
    sum here takes 2·10^5 cells of a smooth integrand; 1e-9 is left for the roundings of exponents up to 10^4.
    """
    steps = 4
    (way,) = accountant.curve(Composition(((event, steps),))).one_way("add").ways
    assert isinstance(way, Direction)
    ladder = way.transform.ladder(0.99 * way.transform.largest_loss)
    assert ladder.points[-1] > 1e3
    x, cell = np.linspace(-80 * event.noise_multiplier, 20 * event.noise_multiplier, 200_001, retstep=True)
    shifts = np.arange(len(weights))
    terms = np.outer(shifts, x) / event.noise_multiplier**2 - shifts[:, None] ** 2 / (2 * event.noise_multiplier**2)
    loss = -np.log1p((np.array(weights)[:, None] * np.expm1(terms)).sum(axis=0))
    for point, told in zip(ladder.points.tolist(), ladder.log_moment.tolist(), strict=True):
        if point <= 1e4:
            exponent = point * loss - x * x / (2 * event.noise_multiplier**2)
            top = exponent.max()
            mass = np.exp(exponent - top).sum() * cell / (event.noise_multiplier * math.sqrt(2 * math.pi))
            assert told == pytest.approx(steps * (top + math.log(mass)), rel=1e-12, abs=1e-9)
