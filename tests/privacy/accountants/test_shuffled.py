"""Internal: explicit data of shuffled epochs, which no accountant shows alone, and both bounds by their definitions.

What is refused, and what merging sequences would hide. Without chance but for one test, which states its false alarm.
"""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dpbench import account
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, RandomSensitivityGaussian, SampledGaussian
from dpbench.judging.check_tools import statistics
from dpbench.mechanisms.pipeline import mechanism
from dpbench.privacy.accountants._gaussian_curve import GaussianCurve
from dpbench.privacy.accountants._shuffled_data import MOST_EPOCHS, shuffled_data
from dpbench.privacy.accountants.shuffled import accountant
from dpbench.privacy.answers import No
from dpbench.privacy.calibration import solve
from dpbench.privacy.scaling import repeated
from dpbench.randomness import table
from dpbench.references.gaussian import reference as gaussian
from dpbench.step.samplers.shuffled import ShuffledSampler

Grid = NDArray[np.float64]


def steps(rate: float, noise: float, count: int, adjacency: str = "zero_out") -> Composition:
    return Composition(((SampledGaussian(rate, noise, adjacency, "shuffled"), count),))  # type: ignore[arg-type]


# From above


@pytest.mark.parametrize(("epsilon", "epochs"), [(0.5, 1), (3.0, 4), (12.0, 30)])
def test_the_upper_bound_is_one_gaussian_for_each_epoch_begun(epsilon: float, epochs: int) -> None:
    """Against the independent enclosure of as many Gaussian mechanisms; the bound is rounded up by 1e-12 at most."""
    for left_out in (0, 1, 3):
        found = accountant.curve(steps(0.25, 1.5, 4 * epochs - left_out)).delta(epsilon)
        low, high = gaussian.delta((Gaussian(1.5), epochs), epsilon, digits=25).floats()
        assert low <= found.upper == found.value <= high * (1 + 1e-11)


def test_replace_one_moves_a_sum_by_two() -> None:
    one = accountant.curve(steps(0.25, 3.0, 8, "replace_one"))
    assert one.mu == pytest.approx(2 * math.sqrt(2) / 3, rel=1e-15)
    assert one.adjacency == "replace_one"
    assert one.epsilon(1e-5).lower == accountant.curve(steps(0.25, 3.0, 8)).epsilon(1e-5).lower


def masses(centres: list[tuple[float, float]], edges: Grid, noise: float) -> Grid:
    """The mass of each square (C, C) under the mean over equally likely orders, each with its two centres."""
    each = []
    for centre in centres:
        one, other = (np.diff(stats.norm.cdf((edges - middle) / noise)) for middle in centre)
        each.append(np.outer(one, other))
    found: Grid = np.mean(each, 0)
    return found


def epoch_of_two(values: tuple[float, ...], size: int) -> list[tuple[float, float]]:
    """The sums of both batches for each order of the records."""
    return [(sum(order[:size]), sum(order[size:])) for order in itertools.permutations(values)]


@pytest.mark.parametrize("noise", [0.4, 1.5])
@pytest.mark.parametrize(
    ("others", "size", "value"),
    [
        ((-1.0, -1.0, -1.0), 2, 1.0),
        ((-1.0, -1.0, -1.0), 3, 1.0),
        ((0.0, 0.0, 0.0), 2, 1.0),
        ((1.0, -1.0, 0.3), 3, -1.0),
    ],
)
def test_both_bounds_hold_for_two_batches(noise: float, others: tuple[float, ...], size: int, value: float) -> None:
    """δ(ε) of which square the two releases of an epoch with 4 records fall into: never above δ of the releases.

    So the upper bound is above it in both directions. Of the data of the lower bound it is not far below: squares are
    a twentieth of σ wide, and a threshold off by half of that costs about (1/40)²/2 = 3e-4 relative; 2e-3 are allowed.
    """
    edges = np.arange(-5 - 6 * noise, 5 + 6 * noise, noise / 20)
    with_it, without = (masses(epoch_of_two((*others, x), size), edges, noise) for x in (value, 0.0))
    curve = accountant.curve(steps(size / 4, noise, 2))
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        found = curve.delta(epsilon)
        remove, add = (
            float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ((with_it, without), (without, with_it))
        )
        assert max(remove, add) <= found.value
        if set(others) == {-1.0}:
            assert found.lower is not None
            assert 0.3 * remove <= found.lower <= remove * (1 + 2e-3)


@pytest.mark.parametrize(("steps_done", "decay"), [(5, 2.0), (5, 0.5), (8, 1.0)])
def test_noise_that_falls_within_an_epoch(steps_done: int, decay: float) -> None:
    """Batches of two of three records: x = 1 and others 0, by the definition; noise falls inside the second epoch.

    The set is a half-space along the path of the least noise, so its δ is a lower bound of that of the releases.
    """
    rate, made = 2 / 3, mechanism(sample="shuffled", noise={"name": "decaying", "parameters": {"noise_decay": decay}})
    first = 0.7 * math.exp(decay * math.floor((steps_done - 1) * rate))
    ledger = made.ledger(sampling_rate=rate, noise_multiplier=first, steps=steps_done)
    assert ledger is not None
    noises = [event.noise_multiplier for event, count in ledger.parts for _ in range(count)]  # type: ignore[union-attr]
    shares, means = [], []
    for path in itertools.product((0, 1), repeat=-(-steps_done // 2)):
        at = [2 * epoch + place for epoch, place in enumerate(path)]
        shares.append(math.prod((2 / 3, 1 / 3)[place] for place in path))
        means.append([(step in at) / noises[step] for step in range(steps_done)])
    longest = max(means, key=lambda mean: math.hypot(*mean))
    along = np.array(means) @ (np.array(longest) / math.hypot(*longest))
    thresholds = np.linspace(-2, 30, 4001)[:, None]
    with_it = (stats.norm.sf(thresholds - along) * np.array(shares)).sum(1)
    curve = accountant.curve(ledger)
    for epsilon in (0.5, 2.0, 5.0, 10.0, 20.0):
        shown = float((with_it - np.exp(epsilon + stats.norm.logsf(thresholds[:, 0]))).max())
        assert 0 < shown <= curve.delta(epsilon).value


def test_whatever_parts_go_on_with_an_epoch() -> None:
    """Every reading of parts, beginning or going on, counted step by step: μ² is at least the largest of them."""
    generator = np.random.default_rng(3)
    for _ in range(60):
        batches = int(generator.integers(1, 5))
        counts = generator.integers(0, 7, 4).tolist()
        noises = generator.choice([0.5, 1.0, 2.0, math.inf], 4).tolist()
        events = [SampledGaussian(1 / batches, noise, "zero_out", "shuffled") for noise in noises]
        mu = accountant.curve(Composition(tuple(zip(events, counts, strict=True)))).mu
        for begins in itertools.product((False, True), repeat=3):
            total, place, most = 0.0, 0, 0.0
            for count, noise, begin in zip(counts, noises, (True, *begins), strict=True):
                if begin:
                    total, place, most = total + most, 0, 0.0
                for _ in range(count):
                    most, place = max(most, noise**-2), place + 1
                    if place == batches:
                        total, place, most = total + most, 0, 0.0
            assert total + most <= mu**2 * (1 + 1e-12)


def test_no_epoch_is_shown_that_may_have_begun_before() -> None:
    free, other = (
        SampledGaussian(0.5, math.inf, "zero_out", "shuffled"),
        SampledGaussian(0.5, 1.0, "zero_out", "shuffled"),
    )
    for before, lower in ((1, 0.0), (2, shuffled_data(2, 1.0, 1).epsilon(1e-5))):
        assert accountant.curve(Composition(((free, before), (other, 2)))).epsilon(1e-5).lower == lower


# From below


@pytest.mark.parametrize(("batches", "noise"), [(1, 1.0), (2, 0.3), (12, 1.0), (235, 1.3), (10_000, 0.5), (50, 100.0)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 40.0])
def test_one_epoch_is_the_best_threshold(batches: int, noise: float, epsilon: float) -> None:
    """With 130 digits from the definition: the largest P(m > c) − e^ε Q(m > c), or δ of the sum of all batches."""
    with mpmath.workdps(130):
        s = 1 / mpmath.mpf(noise)

        def difference(c: mpmath.mpf) -> mpmath.mpf:
            one, other = (mpmath.ncdf(c) ** (batches - 1) * mpmath.ncdf(c - k * s) for k in (2, 1))
            return (1 - one) - mpmath.exp(epsilon) * (1 - other)

        grid = [mpmath.mpf(x) for x in np.linspace(-4, 2 / noise + 30, 161)]
        place = max(range(1, len(grid) - 1), key=lambda at: difference(grid[at]))
        low, high = grid[place - 1], grid[place + 1]
        for _ in range(40):
            third = (high - low) / 3
            low, high = (
                (low + third, high) if difference(low + third) < difference(high - third) else (low, high - third)
            )
        best = float(max(difference(low), 0))
    found = shuffled_data(batches, noise, 1).delta(epsilon)
    whole = GaussianCurve(1 / (noise * math.sqrt(batches)), "exact").delta(epsilon).value
    assert found <= max(best, whole)
    assert found >= max(best * (1 - 1e-4) - 1e-8, whole * (1 - 1e-9))


@pytest.mark.parametrize(("batches", "noise", "epochs"), [(1, 2.0, 3), (3, 1.0, 2), (20, 0.7, 2)])
def test_some_epochs_are_a_set_of_their_largest_batches(batches: int, noise: float, epochs: int) -> None:
    """Against δ of all that the largest batches show, by quadrature (two epochs) or as one Gaussian (T = 1)."""
    data = shuffled_data(batches, noise, epochs)
    for epsilon in (0.0, 0.5, 2.0):
        if batches == 1:
            truth = GaussianCurve(math.sqrt(epochs) / noise, "exact").delta(epsilon).value
        else:
            c = np.arange(-4.0, 2 / noise + 9, 0.005)
            laws = []
            for k in (2, 1):
                below = stats.norm.cdf(c) ** (batches - 1) * stats.norm.cdf(c - k / noise)
                laws.append(np.outer(*[np.diff(below)] * 2))
            truth = float(np.maximum(laws[0] - math.exp(epsilon) * laws[1], 0).sum())
        assert truth * 0.98 <= data.delta(epsilon) <= truth * (1 + 1e-3)


@pytest.mark.parametrize("epochs", [1, 2, 7, MOST_EPOCHS, 2 * MOST_EPOCHS])
@pytest.mark.parametrize(("batches", "noise"), [(1, 1.0), (1, 1e-3), (235, 1.3), (10**6, 0.4), (7, 1e3)])
def test_the_lower_bound_is_below_the_upper_one_at_corners(batches: int, noise: float, epochs: int) -> None:
    data, above = shuffled_data(batches, noise, epochs), GaussianCurve(math.sqrt(epochs) / noise, "exact")
    for delta in (1e-30, 1e-5, 0.3, 0.999):
        assert 0 <= data.epsilon(delta) <= above.epsilon(delta).value * (1 + 1e-12)
    for epsilon in (0.0, 0.7, 30.0, 1e4, 1e6):
        assert 0 <= data.delta(epsilon) <= above.delta(epsilon).value * (1 + 1e-12)


def test_epsilon_and_delta_are_inverse() -> None:
    data = shuffled_data(100, 0.8, 5)
    for delta in (1e-9, 1e-5, 0.1):
        assert data.delta(data.epsilon(delta)) == pytest.approx(delta, rel=1e-8)


def test_what_runs_shows_as_much() -> None:
    """The sampler and the noise themselves, on the data of the lower bound: false alarm 1e-9 for each of two laws."""
    many, batches, size, noise = 20_000, 5, 4, 0.6
    examples = batches * size
    rate_R = torch.full((many * batches,), 1 / batches, dtype=torch.float64)
    step_R = torch.arange(many * batches)
    drawn = ShuffledSampler()(table([4]).expand(len(step_R), -1), step_R, rate_R, examples)
    inside = ((drawn.index_RB == 0) & drawn.mask_RB).any(1)
    noise_R = noise * torch.randn(len(step_R), generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    for value, times in ((1.0, 2), (0.0, 1)):
        sums_R = -drawn.mask_RB.sum(1).double() + inside * (1 + value) + noise_R
        largest = ((sums_R + size) / noise).reshape(many, batches).amax(1)
        for c in (2.0, 4.0):
            chance = 1 - stats.norm.cdf(c) ** (batches - 1) * stats.norm.cdf(c - times / noise)
            assert float(statistics.binomial_p(int((largest > c).sum()), many, chance)) > 1e-9 / 4


def test_calling_them_poisson_is_shown_to_be_wrong() -> None:
    """A setting of bu2020: the ε of Poisson sampling lies far below what explicit data show."""
    shuffled = steps(256 / 60000, 1.3, 15 * 235)
    poisson = Composition(((SampledGaussian(256 / 60000, 1.3, "zero_out"), 15 * 235),))
    [truth] = account(poisson, delta=1e-5, accountants=["exact"])
    [found] = account(shuffled, delta=1e-5, accountants=["shuffled"])
    assert truth.epsilon is not None
    assert found.epsilon is not None
    assert found.epsilon.lower is not None
    assert 3 * truth.epsilon.value < found.epsilon.lower < found.epsilon.value
    assert found.kind == "upper_bound"


# What it covers


def test_only_whole_epochs_of_the_first_noise_are_shown_and_every_one_begun_is_counted() -> None:
    one, other = SampledGaussian(0.25, 2.0, "zero_out", "shuffled"), SampledGaussian(0.25, 1.0, "zero_out", "shuffled")
    curve = accountant.curve(Composition(((one, 9), (other, 9))))
    assert curve.mu == pytest.approx(math.sqrt(3 / 4 + 3 + (1 - 1 / 4)), rel=1e-15), "the third epoch may go on"
    turned = accountant.curve(Composition(((other, 9), (one, 9))))
    assert turned.mu == pytest.approx(math.sqrt(3 / 4 + 3), rel=1e-15), "more noise: the third epoch has its first"
    whole = accountant.curve(Composition(((one, 8), (other, 9))))
    assert whole.mu == pytest.approx(math.sqrt(2 / 4 + 3), rel=1e-15)
    assert curve.epsilon(1e-5).lower == shuffled_data(4, 2.0, 2).epsilon(1e-5)
    twice = accountant.curve(Composition(((one, 9), (one, 9))))
    assert twice.mu == pytest.approx(math.sqrt(6) / 2, rel=1e-15), "two sequences: six epochs are begun, not five"
    assert accountant.curve(steps(0.25, 2.0, 3)).epsilon(1e-5).lower == 0
    assert accountant.curve(Composition(((one, 8), (Gaussian(2.0, "zero_out"), 1)))).mu == pytest.approx(
        math.sqrt(3) / 2, rel=1e-15
    )


def test_a_repetition_never_shares_an_epoch_with_the_one_before() -> None:
    assert repeated(steps(0.25, 2.0, 8), 3) == steps(0.25, 2.0, 24)
    with pytest.raises(DpbenchError, match=r"repetitions: 9 shuffled batches end within an epoch; .* a multiple of 4$"):
        repeated(steps(0.25, 2.0, 9), 3)


def test_what_reveals_nothing_costs_nothing() -> None:
    for composition in (steps(0.0, 1.0, 5), steps(0.5, math.inf, 5), steps(0.5, 1.0, 0)):
        assert accountant.curve(composition).epsilon(1e-5).value == 0


@pytest.mark.parametrize(
    ("composition", "reason"),
    [
        (steps(0.1, 1.0, 10, "add_or_remove"), "ask about zero_out"),
        (Composition(((SampledGaussian(0.1, 1.0, "zero_out"), 5),)), "none of these mechanisms has shuffled batches"),
        (Composition((*steps(0.1, 1.0, 9).parts, (SampledGaussian(0.1, 1.0, "zero_out"), 5))), "Gaussian"),
        (Composition((*steps(0.1, 1.0, 9).parts, (Gaussian(1.0), 5))), "different neighbouring relations"),
        (
            Composition(((RandomSensitivityGaussian(0.1, 1.0, 5, "zero_out", "shuffled"), 5),)),
            "no bound for the event RandomSensitivityGaussian",
        ),
        (Composition(steps(0.1, 1.0, 9).parts, adaptive=True), "later parameters depend"),
    ],
)
def test_refusals_name_the_cause(composition: Composition, reason: str) -> None:
    answer = accountant.supports(composition)
    assert isinstance(answer, No)
    assert reason in answer.reason


def test_the_noise_for_a_budget_is_that_of_the_upper_bound() -> None:
    made = mechanism(sample="shuffled")
    found = solve(
        "noise_multiplier",
        lambda noise: made.ledger(sampling_rate=0.1, noise_multiplier=noise, steps=20) or Composition(()),
        epsilon=3.0,
        delta=1e-5,
    )
    assert (found.accountant, found.kind) == ("shuffled", "upper_bound")
    assert GaussianCurve(math.sqrt(2) / found.value, "exact").epsilon(1e-5).value == pytest.approx(3.0, rel=1e-5)
