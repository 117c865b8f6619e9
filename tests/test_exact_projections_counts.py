"""Random sensitivity where hits are few: large losses on their own line, against paths, definitions and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.accountants._projections import HeavyDirection, heavy_directions
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_jumps import Jumps
from dpbench.accountants._projections_path import make_path
from dpbench.accountants._projections_rare import Rare
from dpbench.accountants._projections_shares import Row
from dpbench.accountants._projections_single import log_single
from dpbench.accountants._projections_windows import Losses, Window, cut
from dpbench.accountants.exact.accountant import accountant
from dpbench.accountants.lattice.projections import log_density
from dpbench.events import Composition, Event, Gaussian, RandomSensitivityGaussian, SampledGaussian

FEW = [  # event, count, δ: answered with a bracket, or with few digits, once
    (RandomSensitivityGaussian(0.000257, 1.118, 285), 70, 4.356e-14),
    (RandomSensitivityGaussian(0.0004527, 1.135, 995), 129, 8.52e-29),
    (RandomSensitivityGaussian(8.84e-05, 1.379, 156), 4, 1.621e-24),
    (RandomSensitivityGaussian(1.6107e-07, 0.4269, 356), 16607, 4.892e-19),
    (RandomSensitivityGaussian(0.001634, 0.8357, 1282), 17, 1.437e-07),
    (RandomSensitivityGaussian(1.9167e-06, 1.6192, 3363), 16, 4.524e-28),
    (RandomSensitivityGaussian(5.4267e-07, 1.1259, 177088), 2274, 2e-29),
    (RandomSensitivityGaussian(0.2302, 719.5, 57), 5, 3.215e-27),
]


def ways(*parts: tuple[Event, int]) -> tuple[HeavyDirection, ...]:
    found = heavy_directions(parts)
    assert found is not None
    return found


def counted(
    event: RandomSensitivityGaussian, count: int, remove: bool, epsilon: float, log: float, share: float
) -> Jumps:
    parts = ((event.sampling_rate, Law(event.noise_multiplier, event.projections), count),)
    return Jumps(parts, 0.0, remove, epsilon, log, share)


@pytest.mark.parametrize(("event", "count", "delta"), FEW)
def test_few_hits_are_told_wherever_windows_lie(event: RandomSensitivityGaussian, count: int, delta: float) -> None:
    answer = accountant.curve(Composition(((event, count),))).epsilon(delta)
    assert answer.reason is None
    values = []
    for share in (0.8, 1.0, 1.3):
        value, _, error = counted(event, count, True, answer.value, math.log(delta), share)(answer.value)
        values.append((value, error))
        assert value <= delta * (1 + 1e-9) + error
        assert error < 1e-8 * delta
    for value, error in values[1:]:
        assert abs(value - values[0][0]) <= error + values[0][1]


@pytest.mark.parametrize(
    ("event", "count", "epsilon"),
    [
        (RandomSensitivityGaussian(0.000105, 1.881, 43), 92, 2.282),
        (RandomSensitivityGaussian(1.6107e-07, 0.4269, 356), 16607, 7.33),
        (RandomSensitivityGaussian(3.826e-05, 604.5, 107), 16607, 1.764e-05),  # add was unsound by 2e-9 of δ here
        (RandomSensitivityGaussian(0.01558, 189.9, 9267), 469922, 0.2358),  # and by 1e-10 here
        (RandomSensitivityGaussian(0.00387, 692.9, 14), 28184, 0.003343),
    ],
)
def test_counting_and_paths_meet_within_their_errors(
    event: RandomSensitivityGaussian, count: int, epsilon: float
) -> None:
    met = 0
    for way in ways((event, count)):
        if epsilon >= way.transform.largest_loss:
            continue
        found, value, error = Rare(way.transform).delta(epsilon, way.bound(epsilon))
        for lost in (4.0, 9.0):
            try:
                with np.errstate(all="ignore"):
                    other, _, wrong = make_path(way.transform, epsilon, lost)(epsilon)
            except ArithmeticError:
                continue
            assert abs(other - value) <= error + wrong
            met += error + wrong < 1e-5 * value
        assert found(epsilon)[0] == value
    assert met


def test_unlike_releases_are_counted_together() -> None:
    parts = (
        (RandomSensitivityGaussian(0.001, 1.2, 40), 30),
        (SampledGaussian(0.003, 1.5), 20),
        (RandomSensitivityGaussian(0.0005, 2.0, 200), 100),
    )
    (way, _) = ways(*parts)
    laws = tuple((e.sampling_rate, Law(e.noise_multiplier, getattr(e, "projections", None)), n) for e, n in parts)
    values = [Jumps(laws, 0.0, True, 0.5, -22.0, share)(0.5) for share in (0.7, 1.0, 1.6)]
    for value, _, error in values[1:]:
        assert abs(value - values[0][0]) <= error + values[0][2]
        assert error < 1e-9 * value
    assert way.delta(0.5).value == pytest.approx(values[0][0], rel=1e-9)


def test_two_releases_are_one_integral_of_a_single_ones_closed_form() -> None:
    """δ(ε) = ∫ first(s) δ_1(ε − log R(s)) ds, by Gauss's rule on the real line, with a density found another way."""
    q, sigma, r, epsilon = 0.002, 0.9, 20, 0.6
    event, law = RandomSensitivityGaussian(q, sigma, r), Law(sigma, r)

    def single(at: float) -> float:
        if at >= 0:
            return math.exp(log_single(q, law, at, 0))
        return -math.expm1(at) + math.exp(at) * math.exp(log_single(q, law, -at, 1))

    nodes, weights = np.polynomial.legendre.leggauss(12)
    tail, near = 12 * 1.3 ** np.arange(1, 20), np.geomspace(1e-4, 2, 40)
    place = math.log1p(math.expm1(epsilon) / q)  # where the loss is ε; single losses are about q
    marks = np.unique(np.concatenate([-tail, np.linspace(-12, 12, 120), tail, place - near, place + near]))
    half, middle = np.diff(marks)[:, None] / 2, ((marks[1:] + marks[:-1]) / 2)[:, None]
    s, weight = (middle + half * nodes).ravel(), (half * weights).ravel()
    loss = np.log1p(q * np.expm1(np.minimum(s, 600.0)))
    mass = weight * np.exp(log_density(sigma, r, s) + loss)
    truth = math.fsum(m * single(epsilon - x) for m, x in zip(mass, loss, strict=True) if m > 1e-22)
    value, _, error = counted(event, 2, True, epsilon, math.log(truth), 1.0)(epsilon)
    assert value == pytest.approx(truth, rel=1e-8)
    assert error < 1e-9 * value


@pytest.mark.parametrize(("fault", "share"), [("middle", 1.0), ("tiny", 1.0), ("ends", 0.6), ("large", 0.6)])
def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch, fault: str, share: float) -> None:
    event, count, delta = FEW[0]
    epsilon = accountant.curve(Composition(((event, count),))).epsilon(delta).value

    def miss() -> float:
        return abs(counted(event, count, True, epsilon, math.log(delta), share)(epsilon)[0] / delta - 1)

    assert miss() < 1e-7
    if fault == "ends":
        monkeypatch.setattr(Jumps, "_at_ends", lambda *_: (0.0, 0.0, 0.0))
    else:
        name = f"log_{fault}"
        honest = getattr(Window, name)
        monkeypatch.setattr(Window, name, lambda self, x: honest(self, x) - 1e-3)
    try:
        missed = miss()
    except ArithmeticError:
        missed = math.inf
    assert missed > 1e-6


def test_a_row_of_exponents_is_what_they_are_one_by_one() -> None:
    window = cut(Losses(0.001, Law(1.3, 12), True), 50, 0.4, -20.0)
    row = Row(3.0, 1.7, 45)
    for share, less_one in (
        (window.small_share([2.0, complex(2.0, 80.0)]), True),
        (window.large_share([-3.0, complex(-3.0, 80.0)]), False),
    ):
        fast, wrong = share.sums(row, less_one)
        slow, more = share.sums(row.values(), less_one)
        assert np.all(np.abs(fast - slow) <= wrong + more)
        assert np.all(np.abs(fast - slow) <= 1e-11 * np.abs(slow).max())


def test_many_whole_releases_are_told_to_nine_digits() -> None:
    """The error of each counted two hundred thousand times."""
    answer = accountant.curve(Composition(((RandomSensitivityGaussian(1.0, 0.763156, 2), 204343),))).epsilon(2.1326e-7)
    assert answer.reason is None


@pytest.mark.parametrize(("event", "count"), [(RandomSensitivityGaussian(0.2858, 199.6, 299), 6)])
def test_delta_at_zero_of_few_releases(event: RandomSensitivityGaussian, count: int) -> None:
    """Was between 0 and its bound. Both directions have the same δ(0)."""
    values = [way.delta(0.0) for way in ways((event, count))]
    assert all(value.error < 1e-9 * value.value for value in values)
    assert abs(values[0].value - values[1].value) <= values[0].error + values[1].error


def test_a_gaussian_beside_it_stays_in_the_transform() -> None:
    (way, _) = ways((RandomSensitivityGaussian(0.002, 1.0, 60), 40), (Gaussian(30.0), 1))
    parts = ((0.002, Law(1.0, 60), 40),)
    values = [Jumps(parts, 30.0**-2, True, 0.5, -16.0, share)(0.5) for share in (0.8, 1.0, 1.4)]
    for value, _, error in values[1:]:
        assert abs(value - values[0][0]) <= error + values[0][2]
    assert way.delta(0.5).value == pytest.approx(values[0][0], rel=1e-9)


@pytest.mark.parametrize("remove", [True, False])
def test_delta_is_bounded_by_what_single_releases_differ(remove: bool) -> None:
    """Total variation adds up at most; where no route tells δ(0), its bound was a million times as large."""
    event = RandomSensitivityGaussian(1e-7, 1000.0, 1)
    way = ways((event, 30))[0 if remove else 1]
    single = math.exp(log_single(1e-7, Law(1000.0, 1), 0.0, 0))
    assert way.bound(0.0) <= math.log(30 * single) + 1e-8
    answer = way.delta(0.0)
    assert answer.value + answer.error <= 30 * single * (1 + 1e-8)
    honest = ways((RandomSensitivityGaussian(0.05, 2.0, 5), 4), (Gaussian(4.0), 1))[0 if remove else 1]
    assert math.log(honest.delta(0.0).value) < honest.bound(0.0)
