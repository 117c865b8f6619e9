"""Laplace releases by line integrals: against sums, averages, certified enclosures, and with planted faults."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpbench.accountants import _kinks, _laplace_line
from dpbench.accountants._atoms import AtomicCurve, atomic_curve
from dpbench.accountants._atoms_laplace import LaplaceSum
from dpbench.accountants._contour import Transform
from dpbench.accountants._density_line import Density
from dpbench.accountants._kinks import Kinks, Part
from dpbench.accountants._leaves import leaves
from dpbench.accountants._line_side import LineSide, line_side
from dpbench.accountants._mixed import Closed, side
from dpbench.accountants._unlike import Either, MixedCurve
from dpbench.accountants.exact.accountant import accountant
from dpbench.certified import certify_many
from dpbench.events import Composition, DiscretePair, Event, Gaussian, Laplace, SampledGaussian

UNEVEN = DiscretePair((0.5, 0.37, 0.13), (0.21, 0.3, 0.49))
TELLING = DiscretePair((0.001, 0.599, 0.4), (0.0, 0.4, 0.6))


def of(*parts: tuple[Event, int]) -> Composition:
    return Composition(parts)


def meets(found: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    return found[1] <= other[2] and other[1] <= found[2]


def sum_ends(noise: float, count: int, epsilon: float) -> tuple[float, float, float]:
    """δ by conditioning on how many outputs fall between the means, with its ends."""
    law = LaplaceSum(noise, count)
    low, high = law.delta(epsilon + law.loss_error), law.delta(epsilon - law.loss_error)
    return law.delta(epsilon), (1 - law.mass_error) * low, (1 + law.mass_error) * high


@pytest.mark.parametrize(("noise", "count"), [(0.06, 7), (0.5, 30), (1.0, 1), (3.0, 2), (5.0, 100), (300.0, 90)])
def test_equal_releases_against_their_sum(noise: float, count: int) -> None:
    """Between atoms, next to them, on them, and next to the largest loss."""
    line, top = line_side([(noise, count)]), count / noise
    places = [0.0, 0.013 * top, 0.2 * top, 0.41 * top, 0.9 * top, top * (1 - 1e-7)]
    places += [
        (2 * k - count) / noise * (1 + apart) for k in range(count // 2 + 1, count, 20) for apart in (-1e-6, 0, 1e-6)
    ]
    for epsilon in places:
        found = line.delta(epsilon)
        assert meets(found, sum_ends(noise, count, epsilon)), epsilon
        assert found[2] - found[1] <= max(1e-10 * found[0], 1e-13)


@pytest.mark.parametrize(
    "scales",
    [
        [(2.0, 1), (5.0, 1)],
        [(3.0, 4), (2.0, 3), (5.0, 5)],
        [(0.1, 3), (1.7, 9)],
        [(216.0, 14), (6.03, 2), (0.236, 5)],
        [(10.0, 20), (5.0, 10), (40.0, 30)],
    ],
)
@pytest.mark.parametrize("mu", [0.0, 0.05, 1.0])
def test_unlike_scales_against_averages(scales: list[tuple[float, int]], mu: float) -> None:
    """The other route averages polynomials over one scale's law after the other."""
    line, other = line_side(scales, mu=mu), side(Closed(Gaussian(1 / mu), 0) if mu else None, scales, None)
    top = sum(count / noise for noise, count in scales)
    for epsilon in (0.0, 0.021 * top, 0.17 * top, 0.43 * top, 0.77 * top):
        found = line.delta(epsilon)
        assert meets(found, other.delta(epsilon)), epsilon
        assert found[2] - found[1] <= max(1e-10 * found[0], 1e-13)


@pytest.mark.parametrize(
    ("event", "count"),
    [(SampledGaussian(0.01, 1.0), 1000), (SampledGaussian(0.3, 3.0), 5), (SampledGaussian(0.004, 0.7), 2000)],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_densities_against_averages(event: Event, count: int, direction: str) -> None:
    scales = [(8.0, 4), (3.0, 2)]
    transform = Transform(tuple((leaf, count) for leaf in leaves(event, direction)))
    curve = accountant.curve(of((event, count), *((Laplace(noise), number) for noise, number in scales)))
    assert isinstance(curve, MixedCurve)
    (one,) = curve.one_way(direction).sides
    assert isinstance(one, Either)
    assert one.other is not None
    line = line_side(scales, density=Density(transform))
    for epsilon in (0.0, 0.31, 1.2, 2.9):
        found = line.delta(epsilon)
        assert meets(found, one.other.delta(epsilon)), epsilon
        assert found[2] - found[1] <= max(1e-9 * found[0], 1e-12)


@pytest.mark.parametrize(
    ("composition", "epsilons", "deltas"),
    [
        (of((Laplace(2.0), 5), (Laplace(3.1), 4), (Laplace(0.7), 2)), (0.0, 0.5, 2.2, 4.9), (1e-3, 1e-8)),
        (of((Laplace(1.0), 3), (UNEVEN, 4)), (0.0, 3.0, 6.0), (1e-3,)),
        (of((Laplace(4.0), 6), (TELLING, 3), (Laplace(9.0), 3)), (0.1, 1.7), (0.01, 0.004)),
        (of((Laplace(30.0), 9)), (0.0, 0.1, 0.2999), (1e-2, 1e-4)),
        (of((Gaussian(30.0), 2), (Laplace(6.0), 5)), (0.0, 0.5), (1e-3,)),
    ],
    ids=["three scales", "pair", "infinite losses", "equal", "narrow gaussian"],
)
def test_against_certified_enclosures(
    composition: Composition, epsilons: tuple[float, ...], deltas: tuple[float, ...]
) -> None:
    proofs = certify_many(composition, epsilons=epsilons, deltas=deltas)
    curve = accountant.curve(composition)
    answers = [*(curve.delta(epsilon) for epsilon in epsilons), *(curve.epsilon(delta) for delta in deltas)]
    for answer, proof in zip(answers, proofs, strict=True):
        assert answer.reason is None
        assert answer.lower is not None
        assert answer.upper is not None
        assert answer.lower <= proof.upper
        assert proof.lower <= answer.upper
        assert answer.value == pytest.approx(proof.value, rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("mu", [0.0215, 0.3])
def test_a_narrow_gaussian_beside_a_wide_law(mu: float) -> None:
    """δ falls from 1 − e^ε to 0 within a few μ of 0, a thousandth of the law's width: by averages and by the line.

    Against Gauss-Hermite quadrature over the Gaussian's loss: 53 releases have no atom to speak of.
    """
    noise, count, epsilon = 0.105, 53, 416.3
    law = LaplaceSum(noise, count)
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    losses = mu * mu / 2 + mu * nodes
    truth = (
        sum(weight * law.delta(epsilon - loss) for weight, loss in zip(weights, losses, strict=True)) / weights.sum()
    )
    for found in (line_side([(noise, count)], mu=mu), side(Closed(Gaussian(1 / mu), 0), [(noise, count)], None)):
        value, lower, upper = found.delta(epsilon)
        assert value == pytest.approx(truth, rel=1e-10)
        assert lower <= truth * (1 + 1e-12)
        assert truth * (1 - 1e-12) <= upper


@pytest.mark.parametrize(("order", "tau"), [(0, -3.3), (0, 0.4), (1, 7.7), (5, -12.2), (9, 20.9)])
def test_the_cuts_by_quadrature(order: int, tau: float) -> None:
    """ψ_n from its definition at 30 digits, relative to the powers d^−n that it is the difference of."""
    with mpmath.workdps(30):
        d = mpmath.mpf(0.2)

        def inside(v: mpmath.mpf) -> mpmath.mpf:
            fallen = mpmath.erfc((v - 3) * mpmath.mpf(5.8) / 2) / 2
            return mpmath.re(mpmath.expj(v * tau) * mpmath.mpc(d, v) ** (-order - 2)) * fallen

        whole = mpmath.mpf(tau) ** (order + 1) * mpmath.exp(-d * tau) / mpmath.factorial(order + 1) if tau > 0 else 0
        truth = float(whole - mpmath.quad(inside, mpmath.linspace(0, 5, 40)) / mpmath.pi)
    piece = math.floor(tau)
    rows = _kinks._cuts()[piece + _kinks.REACH][:, order]
    found = float(np.polynomial.chebyshev.chebval(2 * (tau - piece) - 1, rows))
    assert abs(found - truth) <= 3e-15 * 0.2**-order


@pytest.mark.parametrize("scales", [[(10.0, 50)], [(20.0, 30), (7.1, 12)], [(0.3, 20)]])
def test_epsilon_inverts_delta(scales: list[tuple[float, int]]) -> None:
    line = line_side(scales)
    for delta in (0.2, 1e-3, 1e-9, 1e-28):
        value, lower, upper = line.epsilon(delta)
        assert lower <= value <= upper
        assert line.delta(value)[0] == pytest.approx(delta, rel=1e-10)
        assert line.delta(lower)[1] >= delta
        assert line.delta(upper)[2] <= delta
        assert upper - lower <= 1e-9 * value


def test_epsilon_where_delta_is_large() -> None:
    line = line_side([(10.0, 50), (3.0, 2)])
    at_nothing = line.delta(0.0)[0]
    assert line.epsilon(min(1.1 * at_nothing, 0.999)) == (0.0, 0.0, 0.0)
    low = line.epsilon(0.99999 * at_nothing)[0]
    assert 0 < low < 1e-4
    assert line.delta(low)[0] == pytest.approx(0.99999 * at_nothing, rel=1e-12)
    assert line.epsilon(1e-300)[0] <= 50 / 10 + 2 / 3


def test_whole_curves_are_their_points() -> None:
    for composition in (of((Laplace(5.0), 40)), of((Laplace(5.0), 40), (Laplace(3.0), 7))):
        top = 8.0 + 7 / 3
        epsilons = [top * place / 60 for place in range(62)]
        curve = accountant.curve(composition)
        assert isinstance(curve, AtomicCurve | MixedCurve)
        alone = [accountant.curve(composition).delta(epsilon) for epsilon in epsilons]
        for one, other in zip(curve.deltas(epsilons), alone, strict=True):
            assert one.lower is not None
            assert other.upper is not None
            assert one.lower <= other.upper
            assert one.value == pytest.approx(other.value, rel=1e-9, abs=1e-25)


def test_the_order_of_questions_does_not_matter() -> None:
    first, second = line_side([(10.0, 50), (7.0, 3)]), line_side([(10.0, 50), (7.0, 3)])
    epsilons = [0.1, 3.0, 0.0, 1.0]
    assert [first.delta(one) for one in epsilons] == [second.delta(one) for one in epsilons[::-1]][::-1]


def test_many_releases_add_up() -> None:
    """20,000 releases of which 7,000 have a scale that differs by one unit in the last place."""
    alone = accountant.curve(of((Laplace(100.0), 20_000))).delta(3.0)
    parted = accountant.curve(of((Laplace(100.0), 13_000), (Laplace(np.nextafter(100.0, 101.0)), 7000))).delta(3.0)
    assert alone.reason is None
    assert alone.value == pytest.approx(parted.value, rel=1e-10)


def test_too_many_atoms_are_bounded() -> None:
    """Where no atoms are put back the error says what they may come to: against the same with all of them."""
    scales = [(100.0, 60), (70.3, 50), (31.7, 40)]
    whole = line_side(scales).delta(0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kinks, "_MOST_NEAR", 0)
        bounded = line_side(scales).delta(0.5)
    assert bounded[2] - bounded[1] > 10 * (whole[2] - whole[1])
    assert bounded[1] <= whole[0] <= bounded[2]
    assert bounded[0] != whole[0]


class TestFaults:
    """A planted fault leads away from the truth by more than the stated error."""

    scales = ((10.0, 20), (5.0, 10))

    def wrong(self, epsilon: float = 1.0) -> bool:
        scales = list(self.scales)
        return not meets(LineSide(line_side(scales).releases).delta(epsilon), side(None, scales, None).delta(epsilon))

    def test_without_a_fault(self) -> None:
        assert not self.wrong()

    def test_bends_are_not_put_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def none(_: Kinks, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros(len(epsilon)), np.zeros(len(epsilon))

        monkeypatch.setattr(Kinks, "__call__", none)
        assert self.wrong()

    def test_atoms_at_the_upper_end_are_counted_wrongly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sound = Part.laplace

        def odd(width: float, count: int, log_odds: float) -> Part:
            part = sound(width, count, log_odds)
            return Part(part.places, part.masses, part.ups + 1, part.dropped)

        monkeypatch.setattr(Part, "laplace", odd)
        assert self.wrong()

    def test_the_period_is_too_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_laplace_line, "_NEGLIGIBLE", 8.0)
        monkeypatch.setattr(_laplace_line.Line, "_choose_period", lambda _: (3.0, 0.0))
        assert self.wrong()


def test_equal_releases_go_by_the_line() -> None:
    (line,) = atomic_curve(of((Laplace(5.0), 40))).sides
    assert isinstance(line, LineSide)
