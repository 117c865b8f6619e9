"""The exact accountant where losses with atoms meet densities, other scales or each other, by four other routes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr

from dpbench.accountants._atoms_laplace import LaplaceSum
from dpbench.accountants._laplace_law import LaplaceLaw
from dpbench.accountants._mixed import Closed, Contours, Nothing, WithLaplace
from dpbench.accountants._pieces import Pieces
from dpbench.accountants._unlike import Either, MixedCurve, is_mixed
from dpbench.accountants.exact.accountant import accountant
from dpbench.accounting import No
from dpbench.certified import certify_many
from dpbench.errors import DpbenchError
from dpbench.events import (
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
    from_json,
)

RESPONSE = DiscretePair((0.75, 0.25), (0.25, 0.75))
UNEVEN = DiscretePair((0.5, 0.37, 0.13), (0.21, 0.3, 0.49))
TELLING = DiscretePair((0.001, 0.599, 0.4), (0.0, 0.4, 0.6))
TRAINING = SampledGaussian(0.01, 1.0)
STORED = [
    point
    for point in json.loads((Path(__file__).parent / "references" / "unlike.json").read_text())["points"]
    if is_mixed(from_json(point["composition"]))
]


def of(*parts: tuple[Event, int]) -> Composition:
    return Composition(parts)


@pytest.mark.parametrize("number", range(len(STORED)))
def test_stored_points_both_ways(number: int) -> None:
    point = STORED[number]
    curve = accountant.curve(from_json(point["composition"]))
    assert isinstance(curve, MixedCurve)
    for way in ("remove", "add", "both"):
        found = (curve if way == "both" else curve.one_way(way)).delta(point["epsilon"])
        assert found.reason is None
        assert float(point[way]["lower"]) <= found.value <= float(point[way]["upper"])


def test_there_are_stored_points_of_three_neighbourhoods() -> None:
    assert len(STORED) >= 12


@pytest.mark.parametrize(
    ("composition", "epsilons", "delta"),
    [
        (of((Laplace(2.0), 3), (Laplace(3.0), 4)), (0.0, 0.3, 2.2, 2.8), 1e-3),
        (of((Laplace(1.0), 3), (RESPONSE, 4)), (0.0, 3.0, 6.0), 1e-3),
        (of((Gaussian(2.0), 3), (RESPONSE, 4)), (0.0, 3.0, 6.0), 1e-10),
        (of((Gaussian(1000.0), 3), (Laplace(1.0), 2)), (0.3, 1.0, 1.99), 1e-3),
        (of((Gaussian(2.0), 3), (TELLING, 2), (Laplace(4.0), 5)), (0.3, 3.0), 0.01),
        (of((TRAINING, 1000), (UNEVEN, 2)), (0.0, 3.0), 1e-5),
    ],
    ids=["two scales", "laplace and pair", "gaussian and pair", "nearly atoms", "three kinds", "training and pair"],
)
def test_against_certified_enclosures(composition: Composition, epsilons: tuple[float, ...], delta: float) -> None:
    proofs = certify_many(composition, epsilons=epsilons, deltas=(delta,))
    curve = accountant.curve(composition)
    assert isinstance(curve, MixedCurve)
    answers = [*(curve.delta(epsilon) for epsilon in epsilons), curve.epsilon(delta)]
    together = curve.deltas(epsilons)
    for answer, proof in [*zip(answers, proofs, strict=True), *zip(together, proofs, strict=False)]:
        assert answer.lower is not None
        assert answer.upper is not None
        assert answer.lower <= proof.upper
        assert proof.lower <= answer.upper
        assert answer.reason is None
        assert answer.value == pytest.approx(proof.value, rel=1e-9, abs=1e-12)


def test_against_the_reference_on_a_lattice() -> None:
    from dpbench.references.unlike import reference

    composition = of((SampledGaussian(0.1, 1.0), 3), (UNEVEN, 2), (Laplace(4.0), 2))
    curve = accountant.curve(composition)
    for epsilon in (0.2, 1.5):
        truth = reference.delta(composition, epsilon, cells=1024)
        assert truth.relative_width < 1e-2
        assert float(truth.lower) <= curve.delta(epsilon).value <= float(truth.upper)


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("scale", "sigma", "epsilon"), [(1.0, 1.0, 0.0), (0.5, 2.0, 1.0), (3.0, 0.7, 2.0)])
def test_one_laplace_and_one_gaussian_by_the_integral_over_outputs(scale: float, sigma: float, epsilon: float) -> None:
    def inside(x: float) -> float:
        loss = (abs(x) - abs(x - 1)) / scale
        return math.exp(-abs(x - 1) / scale) / (2 * scale) * gaussian_delta(epsilon - loss, 1 / sigma)

    truth = sum(
        quad(inside, low, high, epsabs=0, epsrel=1e-12)[0]
        for low, high in ((-45 * scale, 0.0), (0.0, 1.0), (1.0, 1 + 45 * scale))
    )
    found = accountant.curve(of((Laplace(scale), 1), (Gaussian(sigma), 1))).delta(epsilon).value
    assert found == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
def test_one_pair_and_one_sampled_release_by_the_integral(direction: str, epsilon: float) -> None:
    rate, sigma = 0.3, 0.8
    truth = 0.0
    for p, q in zip(UNEVEN.first, UNEVEN.second, strict=True):

        def gain(x: float, p: float = p, q: float = q) -> float:
            base = math.exp(-x * x / (2 * sigma**2))
            mixture = (1 - rate) * base + rate * math.exp(-((x - 1) ** 2) / (2 * sigma**2))
            above, below = (p * mixture, q * base) if direction == "remove" else (q * base, p * mixture)
            return (above - math.exp(epsilon) * below) / math.sqrt(2 * math.pi) / sigma

        grid = np.linspace(-9 * sigma, 1 + 9 * sigma, 400)
        signs = [gain(float(x)) > 0 for x in grid]
        ends = [float(grid[0]), float(grid[-1])]
        ends += [float(brentq(gain, grid[k], grid[k + 1], xtol=1e-15)) for k in range(399) if signs[k] != signs[k + 1]]
        for low, high in zip(sorted(ends)[:-1], sorted(ends)[1:], strict=True):
            truth += max(quad(gain, low, high, epsabs=1e-15, epsrel=1e-12)[0], 0.0)
    curve = accountant.curve(of((UNEVEN, 1), (SampledGaussian(rate, sigma), 1)))
    assert isinstance(curve, MixedCurve)
    assert curve.one_way(direction).delta(epsilon).value == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize(("noise", "count"), [(2.0, 1), (1.0, 7), (0.05, 3), (0.5, 60), (20.0, 200)])
def test_the_law_of_laplace_against_its_closed_form(noise: float, count: int) -> None:
    law, closed = LaplaceLaw(noise, count), LaplaceSum(noise, count)
    for share in (-0.5, 0.0, 0.01, 0.2, 0.6):
        epsilon = share * count / noise
        (value,), (error,) = WithLaplace(Nothing(), law)(np.array([epsilon]))
        truth = closed.delta(epsilon)
        assert abs(value - truth) <= error + closed.mass_error * truth
        assert error <= max(1e-10 * truth, 1e-13)


class TestPieces:
    def test_they_are_the_curve_within_their_error(self) -> None:
        curve = Closed(SampledGaussian(0.2, 1.0), 0)
        pieces = Pieces(curve, 1.0)
        places = np.random.default_rng(0).uniform(-8, 8, 4000)
        (values, errors), (truth, _) = pieces(places), curve(places)
        assert (np.abs(values - truth) <= errors).all()
        assert (errors <= np.maximum(1e-9 * truth, 1e-30)).all()

    def test_a_bend_is_an_end(self) -> None:
        pieces = Pieces(Nothing(), 1.0)
        places = np.linspace(-1, 1, 333)
        assert np.abs(pieces(places)[0] - Nothing()(places)[0]).max() < 1e-14
        assert 0.0 in pieces.ends(-0.9, 0.9)


class TestInvariance:
    PARTS = ((UNEVEN, 2), (SampledGaussian(0.05, 1.2), 20), (Laplace(3.0), 2), (RESPONSE, 1))

    def test_order_and_merging(self) -> None:
        whole = accountant.curve(of(*self.PARTS)).delta(0.7).value
        assert accountant.curve(of(*self.PARTS[::-1])).delta(0.7).value == pytest.approx(whole, rel=1e-11)
        split = of(*((event, 1) for event, count in self.PARTS for _ in range(count)))
        assert accountant.curve(split).delta(0.7).value == pytest.approx(whole, rel=1e-11)

    def test_what_reveals_nothing_costs_nothing(self) -> None:
        silent = (Laplace(math.inf), 3), (DiscretePair((0.5, 0.5), (0.5, 0.5)), 2), (SampledGaussian(0.0, 1.0), 5)
        for parts in (((TRAINING, 100),), ((Laplace(2.0), 3),), ((Gaussian(1.0), 1), (RESPONSE, 1))):
            alone = accountant.curve(of(*parts)).epsilon(1e-5).value
            assert accountant.curve(of(*silent, *parts)).epsilon(1e-5).value == pytest.approx(alone, rel=1e-12)

    def test_the_worse_direction_counts(self) -> None:
        curve = accountant.curve(of((TELLING, 1), (TRAINING, 300)))
        assert isinstance(curve, MixedCurve)
        ways = [curve.one_way(way).delta(0.3).value for way in ("remove", "add")]
        assert ways[0] != pytest.approx(ways[1], rel=1e-3)
        assert curve.delta(0.3).value == max(ways)

    def test_more_is_never_less(self) -> None:
        alone = accountant.curve(of((TRAINING, 300))).delta(0.5).value
        one, two = (accountant.curve(of((TRAINING, 300), (Laplace(5.0), n))).delta(0.5).value for n in (1, 2))
        assert alone < one < two


@pytest.mark.parametrize(
    "composition",
    [
        of((Laplace(2.0), 3), (Laplace(3.0), 4), (Laplace(5.0), 2)),
        of((Gaussian(2.0), 3), (TELLING, 2), (Laplace(4.0), 5)),
        of((TRAINING, 1000), (UNEVEN, 2), (Laplace(5.0), 3)),
    ],
    ids=["three scales", "three kinds", "training"],
)
def test_a_whole_curve_is_its_points(composition: Composition) -> None:
    """Many ε at once, out of order and twice, beside single answers of a new curve each."""
    curve = accountant.curve(composition)
    assert isinstance(curve, MixedCurve)
    epsilons = [2.5, *np.linspace(0.0, 3.0, 40).tolist(), 2.5]
    found = curve.deltas(epsilons)
    assert found[0] == found[-1]
    assert curve.deltas([]) == []
    for epsilon, answer in list(zip(epsilons, found, strict=True))[::6]:
        alone = accountant.curve(composition).delta(epsilon)
        bars = [max((one.upper or 0.0) - one.value, one.value - (one.lower or 0.0)) for one in (answer, alone)]
        assert abs(answer.value - alone.value) <= sum(bars)
        assert answer.reason is None
    with pytest.raises(DpbenchError, match="epsilon"):
        curve.deltas([0.5, -1.0])


def test_epsilon_inverts_delta() -> None:
    curve = accountant.curve(of((TRAINING, 1000), (RESPONSE, 3), (Laplace(4.0), 3)))
    for delta in (0.5, 1e-3, 1e-9):
        found = curve.epsilon(delta)
        assert found.reason is None
        assert curve.delta(found.value).value == pytest.approx(delta, rel=1e-9)
    assert curve.epsilon(0.999).value == 0.0


def test_infinite_losses() -> None:
    curve = accountant.curve(of((TELLING, 3), (Gaussian(2.0), 2)))
    mass = 1 - (1 - 0.001) ** 3
    assert curve.delta(60.0).value == pytest.approx(mass, rel=1e-12)
    never = curve.epsilon(mass / 2)
    assert never.value == math.inf
    assert never.reason is not None
    assert math.isfinite(curve.epsilon(2 * mass).value)
    everything = accountant.curve(of((DiscretePair((1.0, 0.0), (0.0, 1.0)), 1), (Gaussian(2.0), 2)))
    assert everything.delta(3.0).value == 1.0


def test_forgetting_the_other_direction_below_0_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: δ below 0 from the same direction. A certified enclosure finds it."""
    composition = of((TRAINING, 1000), (UNEVEN, 2))
    (proof,) = certify_many(composition, epsilons=(1.0,))

    def averaged() -> tuple[float, float, float]:
        curve = accountant.curve(composition)
        assert isinstance(curve, MixedCurve)
        routes = [one.other for one in curve.sides if isinstance(one, Either) and one.other is not None]
        value, lower, upper = (max(column) for column in zip(*(one.delta(1.0) for one in routes), strict=True))
        return value, lower, upper

    sound = Contours.__call__
    assert proof.contains(averaged()[0])
    monkeypatch.setattr(
        Contours, "__call__", lambda self, epsilon: sound(Contours(self.forward, self.forward), epsilon)
    )
    _, lower, upper = averaged()
    assert upper < proof.lower or lower > proof.upper


class TestSupport:
    @pytest.mark.parametrize(
        ("composition", "word"),
        [
            (of((Laplace(1.0), 1), (RandomSensitivityGaussian(0.1, 1.0, 5), 3)), "RandomSensitivityGaussian"),
            (of((Laplace(0.01), 1), (Gaussian(1.0), 3)), "= 0.01"),
            (of((Laplace(1.0), 10**5), (Gaussian(1.0), 3)), "count = 100000"),
            (of(*((Laplace(1.0 + k), 1) for k in range(9))), "9 Laplace scales"),
            (of((UNEVEN, 10**5), (Gaussian(1.0), 1)), "attainable sums"),
            (of((Laplace(1.0), 1), (Gaussian(1e-9), 1)), "mu = 1e"),
            (of((Laplace(1.0), 1), (Gaussian(1.0, adjacency="zero_out"), 1)), "neighbouring"),
            (of((RESPONSE, 1), (SampledGaussian(0.1, 1.0, sampler="shuffled"), 1)), "shuffled"),
            (of((RESPONSE, 1), (ConfidentGNMax(300, 40, 40, votes=(100, 50)), 1)), "data-dependent"),
            (Composition(((Laplace(1.0), 1), (Gaussian(1.0), 1)), adaptive=True), "filter"),
        ],
    )
    def test_it_says_why_not(self, composition: Composition, word: str) -> None:
        answer = accountant.supports(composition)
        assert isinstance(answer, No)
        assert word in answer.reason
        with pytest.raises(DpbenchError, match="refuses"):
            accountant.curve(composition)

    @pytest.mark.parametrize(
        "event", [GroupSampledGaussian(0.05, 1.0, 3), ConfidentGNMax(300, 40, 10), SampledGaussian(1.0, 2.0)]
    )
    def test_every_density_is_covered(self, event: Event) -> None:
        """Beside a pair δ lies between that of the event alone and the sum of both."""
        alone = accountant.curve(of((event, 4))).delta(0.2).value
        mixed = accountant.curve(of((event, 4), (RESPONSE, 1))).delta(0.2)
        assert mixed.reason is None
        assert alone < mixed.value < alone + accountant.curve(of((RESPONSE, 1))).delta(0.0).value + 0.3
