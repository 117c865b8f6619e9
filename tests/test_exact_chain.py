"""Whole curves by chains of parts: against the same points one by one, and the parts against the definition."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpbench.accountants import _chain, _direction
from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import Direction
from dpbench.accountants._inversion import Piece, Task, TooLong, invert_at
from dpbench.accountants._leaf_family import Family
from dpbench.accountants._loss_leaf import sampled_leaf
from dpbench.accountants._plan import Aim
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.accountants.lattice.accountant import accountant as lattice
from dpbench.accounting import Estimate, No
from dpbench.events import Composition, GroupSampledGaussian, SampledGaussian

RARE = [
    (Composition(((SampledGaussian(4.06e-6, 0.515), 2_040_000),)), 2.0),
    (Composition(((SampledGaussian(3.25e-7, 0.906), 8_530_000),)), 0.017),
    (Composition(((SampledGaussian(1.26e-6, 0.56), 1_360_000), (SampledGaussian(2e-6, 0.6), 300_000))), 0.3),
]


FEW = [
    (Composition(((SampledGaussian(0.0415, 0.369), 10),)), 70.0),
    (Composition(((SampledGaussian(0.0474, 0.355), 59),)), 95.0),
    (Composition(((SampledGaussian(0.00659, 0.865), 13),)), 6.2),
    (Composition(((SampledGaussian(0.123, 0.435), 50),)), 72.0),
    (Composition(((SampledGaussian(0.00116, 4.43), 10), (SampledGaussian(0.00944, 1.38), 74))), 0.98),
]


def exact(composition: Composition) -> ExactCurve:
    curve = accountant.curve(composition)
    assert isinstance(curve, ExactCurve)
    return curve


def apart(first: Estimate, second: Estimate) -> bool:
    assert None not in (first.lower, first.upper, second.lower, second.upper)
    return bool(first.lower > second.upper * (1 + 1e-13) or second.lower > first.upper * (1 + 1e-13))  # type: ignore[operator]


@pytest.mark.parametrize(("composition", "top"), RARE + FEW)
def test_a_chain_tells_what_every_point_tells_alone(
    composition: Composition, top: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []
    chained = _chain.chained

    def counted(*asked: object) -> object:
        found: _chain.Answers | None = chained(*asked)  # type: ignore[arg-type]
        served.append(0 if found is None else int(found.told.sum()))
        return found

    monkeypatch.setattr(_direction, "chained", counted)
    epsilons = [top * place / 99 for place in range(100)]
    whole = exact(composition).deltas(epsilons)
    assert sum(served) >= 100  # chains have told it
    for place in (0, 1, 7, 23, 42, 58, 77, 99):
        alone = exact(composition).delta(epsilons[place])
        assert not apart(whole[place], alone), (epsilons[place], whole[place], alone)
        assert whole[place].reason is None


def test_a_chain_without_one_of_its_parts_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the largest losses are left out."""
    parts = _chain._parts

    def lame(*asked: object) -> object:
        found = parts(*asked)  # type: ignore[arg-type]
        return found if found is None else (found[0][1:], found[1])

    monkeypatch.setattr(_chain, "_parts", lame)
    composition, top = RARE[0]
    epsilons = [top * place / 99 for place in range(100)]
    whole = exact(composition).deltas(epsilons)
    assert apart(whole[77], exact(composition).delta(epsilons[77]))


@pytest.mark.parametrize("power", [0.5, 3.0, 20.0])
def test_what_lies_beyond_a_far_window_is_on_the_grid(power: float) -> None:
    """E[e^(power·ρ) (1 − Φ((cut − t)/width))] by mpmath, for a cut where the density itself is below 1e-39."""
    rate, sigma, cut = 0.003, 1.7, 13.4
    whole = Family([sampled_leaf(rate, sigma, "remove")], np.ones(1))
    band = whole.band(whole.within(np.array([cut])), None)
    assert band is not None
    found = float(band[0].growth(np.array([power - 1]))[0][0, 0])  # M(z) of the remove direction has w = z + 1
    line, error = band[0].line(power - 1, np.array([0.0]))
    width = float(whole.width[0])
    with mpmath.workdps(30):

        def integrand(t: mpmath.mpf) -> mpmath.mpf:
            ratio = mpmath.log(1 - rate + rate * mpmath.exp(t / sigma - 1 / (2 * mpmath.mpf(sigma) ** 2)))
            return mpmath.npdf(t) * mpmath.exp(power * ratio) * mpmath.ncdf((t - cut) / width)

        truth = float(mpmath.log(mpmath.quad(integrand, [cut + step * 0.25 for step in range(-20, 80)])))
    assert found == pytest.approx(truth, abs=1e-9)
    assert abs(line[0, 0].real - truth) <= error[0, 0] + 1e-12


def test_a_difference_to_next_to_nothing_is_the_whole() -> None:
    """Millions of releases of which thousands lie beyond the window: the near part is e^−1700."""
    leaf = sampled_leaf(1.26e-7, 0.895, "remove")
    everything = Transform(((leaf, 9_740_000),))
    everything.ladder(0.005)
    whole = everything.split(2.0**23, (np.array([5.435]),))[1]
    left, near = whole.split(2.0**26, (np.array([3.574]),))
    u = np.linspace(0.0, 2000.0, 16)
    assert near.evaluate(512.0, u)[0].real.max() < -700
    found, error = left.evaluate(512.0, u)
    # what both leave out alike: the losses in the window's complement, all but certain to occur
    truth, wrong = whole.evaluate(512.0, u)
    assert (np.abs(found.real - truth.real) <= error + wrong).all()
    assert np.abs(left.at(np.array([512.0])).log_moment[0] - truth[0].real) < 1e-6


def test_aliases_of_a_part_of_little_mass_keep_their_bound() -> None:
    """Periods so short that aliases are all but the bound: the sum is off by them, and by no more."""
    leaf = sampled_leaf(2.11e-5, 0.562, "remove")
    whole = Transform(((leaf, 49_289),))
    whole.ladder(2.0)
    cuts = whole.cuts(1024.0, 4.0)
    assert cuts is not None
    part, _ = whole.split(1024.0, cuts)
    epsilon = np.array([1.0, 1.5])
    plan = part.plan(Aim((1.0, 1.5), (-20.0, -22.0)), 1024.0)
    assert plan is not None
    sums = part.sums(plan)
    truth = Piece(Task(part, plan, False), sums)(epsilon)[0]
    for shorter in (0.15, 0.3, 0.5):
        period = plan.period * shorter
        few = part.sums(type(plan)(plan.real, period, plan.nodes * shorter, plan.aim, plan.log_lost, plan.ladder))
        short = type(plan)(plan.real, period, plan.nodes * shorter, plan.aim, plan.log_lost, plan.ladder)
        value, _, error = Piece(Task(part, short, False), few)(epsilon)
        off = np.abs(value - truth)
        assert (off <= error).all()
        bound = np.exp(plan.ladder.log_alias(plan.real, period, epsilon))
        certain = math.exp(-plan.real * period) / -math.expm1(-plan.real * period)
        assert (bound <= certain).all()  # never worse than δ <= 1
    assert (off > 0).any()


def test_one_direction_keeps_lines_for_the_other() -> None:
    """The chain's lines of the lowest ε tell the other direction's δ, as lines that are planned alone do."""
    composition, top = RARE[0]
    remove = exact(composition).ways[0]
    assert isinstance(remove, Direction)
    epsilons = [top * place / 99 for place in range(100)]
    remove.deltas(epsilons)
    add = exact(composition).ways[1]
    assert isinstance(add, Direction)
    known = remove.reversed(epsilons[:3])
    assert known is not None
    for epsilon, value in zip(epsilons[:3], known, strict=True):
        alone = add.delta(epsilon)
        assert abs(value.value - alone.value) <= value.error + alone.error


@pytest.mark.parametrize(
    ("parts", "epsilon"),
    [
        (((SampledGaussian(0.3, 0.4562), 3), (SampledGaussian(0.999999999, 18.603), 2)), 8.0),
        (((SampledGaussian(1.0, 8.4757, "replace_one"), 2), (SampledGaussian(0.01, 25.62, "replace_one"), 100)), 0.1),
        (((SampledGaussian(0.3, 0.3), 2),), 20.0),  # beyond the largest loss of the add direction
        (((SampledGaussian(0.3, 0.3), 2),), 60.0),
    ],
)
def test_corners_where_a_part_is_all_but_nothing(
    parts: tuple[tuple[SampledGaussian, int], ...], epsilon: float
) -> None:
    """Rates next to 1, replaced records at rate 1, ε beyond the largest loss: next to `lattice`, from below."""
    composition = Composition(parts)
    found, bound = exact(composition).delta(epsilon), lattice.curve(composition).delta(epsilon).value
    assert found.reason is None
    assert bound * (1 - 1e-5) <= found.value <= bound


def test_a_group_beyond_doubles_is_refused_in_a_sentence() -> None:
    """C(2000, 1000) has 600 digits."""
    answer = accountant.supports(Composition(((GroupSampledGaussian(0.01, 1.0, 2000), 10),)))
    assert isinstance(answer, No)
    assert "group_size = 2000" in answer.reason


def test_families_without_a_window_stay_whole_beside_others() -> None:
    """The difference and the near part make the whole, though one family has no window at that height."""
    whole = Transform(((sampled_leaf(0.00116, 4.43, "remove"), 10), (sampled_leaf(0.00944, 1.38, "remove"), 74)))
    assert whole.cuts(256.0, 8.0) is None
    cuts = whole.cuts(256.0, 8.0, True)
    assert cuts is not None
    apart_from, near = whole.split(256.0, cuts)
    assert [family.cut is None or not np.isfinite(family.cut).any() for family in near.families] == [True, False]
    u = 0.7 * np.arange(150.0)
    (difference, its), (kept, theirs), (total, wrong) = (one.evaluate(8.0, u) for one in (apart_from, near, whole))
    summed = np.exp(difference) + np.exp(kept)
    error = np.abs(np.exp(difference)) * its + np.abs(np.exp(kept)) * theirs + np.abs(np.exp(total)) * wrong
    assert (np.abs(summed - np.exp(total)) <= 4 * error + 1e-15 * np.abs(summed)).all()
    points = np.geomspace(0.1, 40.0, 30)
    logs = [one.at(points).log_moment for one in (apart_from, near, whole)]
    assert np.abs(np.logaddexp(logs[0], logs[1]) - logs[2]).max() < 1e-9


def test_one_line_of_the_whole_is_refused_where_it_does_not_end() -> None:
    few, many = (
        Transform(((sampled_leaf(*parts, "remove"), n),)) for parts, n in (((0.0474, 0.355), 59), ((0.01, 1.0), 999))
    )
    with pytest.raises(TooLong):
        invert_at(few, Aim((0.0, 80.0)), whole=True)
    alone, lines = (invert_at(many, Aim((0.5, 1.0)), whole=whole) for whole in (False, True))
    assert alone is not None
    assert lines is not None
    assert len(lines.pieces) == 1
    assert lines(0.7)[0] == pytest.approx(alone(0.7)[0], rel=1e-11)


@pytest.mark.parametrize(("composition", "top", "most"), [(*FEW[0], 8000), (*FEW[2], 4500), (*FEW[4], 1000)])
def test_curves_take_few_nodes(
    composition: Composition, top: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one line went to the end of every window they took up to three times as many."""
    nodes: list[int] = []
    sums = Transform.sums

    def counted(self: Transform, *asked: object) -> object:
        found = sums(self, *asked)  # type: ignore[arg-type]
        nodes.append(len(found.z))
        return found

    monkeypatch.setattr(Transform, "sums", counted)
    exact(composition).deltas([top * place / 199 for place in range(200)])
    assert sum(nodes) <= most, sum(nodes)


def test_a_chain_may_begin_where_lines_no_longer_serve() -> None:
    """At the last of the ε, with δ known at their first: the same answers as of a chain from 0 on."""
    composition, top = FEW[1]
    direction = exact(composition).ways[0]
    assert isinstance(direction, Direction)
    epsilons = top * np.arange(100) / 99
    told = direction.transform.served(epsilons)
    whole = _chain.chained(direction.transform, epsilons, told, None, True)
    assert whole is not None
    assert whole.told.all()
    some = slice(60, 100)
    part = _chain.chained(
        direction.transform, epsilons[some], (told[0][some], told[1][some]), math.log(whole.values[60]), True
    )
    assert part is not None
    assert part.told.all()
    apart = np.abs(part.values - whole.values[some])
    assert (apart <= part.errors + whole.errors[some]).all()
