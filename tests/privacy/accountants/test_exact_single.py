"""One invocation by `exact`: against normal tails to 60 digits and closed forms, each within its own error."""

from __future__ import annotations

import random
from typing import Any

import mpmath
import pytest

from dpbench import account
from dpbench.events import (
    Composition,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.answers import Estimate

EVENTS: list[Event] = [
    SampledGaussian(0.01, 1.0),
    SampledGaussian(3e-6, 0.3),
    SampledGaussian(0.3, 50_000.0),
    SampledGaussian(0.9999, 1.7, adjacency="zero_out"),
    SampledGaussian(0.01, 0.8, adjacency="replace_one"),
    SampledGaussian(0.4, 3000.0, adjacency="replace_one"),
    GroupSampledGaussian(0.0005648576905059493, 222743.99, 10),
    GroupSampledGaussian(0.05, 0.7, 30),
    GroupSampledGaussian(1.0, 4.0, 3),
]


def of(event: Event) -> Any:
    """Its curve, by the front door."""
    (answer,) = account(event, epsilon=1.0, accountants="exact")
    assert answer.curve is not None, answer.refused
    return answer.curve


def weights(event: Event) -> list[mpmath.mpf]:
    """Of N(0), N(1), ... where the record, or the group, is there."""
    assert isinstance(event, SampledGaussian | GroupSampledGaussian)
    q, size = mpmath.mpf(event.sampling_rate), event.group_size if isinstance(event, GroupSampledGaussian) else 1
    return [mpmath.binomial(size, k) * q**k * (1 - q) ** (size - k) for k in range(size + 1)]


def truth(event: Event, epsilon: float, way: str) -> mpmath.mpf:
    """P(L > ε) − e^ε Q(L > ε) by normal tails beyond the output at which the loss is ε, found by bisection."""
    assert isinstance(event, SampledGaussian | GroupSampledGaussian)
    sigma, parts = mpmath.mpf(event.noise_multiplier), list(enumerate(weights(event)))
    other = [(-k, weight) for k, weight in parts] if event.adjacency == "replace_one" else [(0, mpmath.mpf(1))]
    level = mpmath.mpf(-epsilon if way == "add" else epsilon)

    def ratio(x: mpmath.mpf) -> mpmath.mpf:
        above, below = (
            mpmath.fsum(weight * mpmath.exp((k * x - mpmath.mpf(k * k) / 2) / sigma**2) for k, weight in some)
            for some in (parts, other)
        )
        return mpmath.log(above / below)

    def tail(some: list[tuple[int, mpmath.mpf]], x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.fsum(weight * mpmath.ncdf((k - x) / sigma) for k, weight in some)

    if event.adjacency != "replace_one" and parts[0][1] > 0 and level <= mpmath.log(parts[0][1]):
        return mpmath.mpf(0)
    low, high = -sigma, sigma
    while ratio(low) > level:
        low *= 2
    while ratio(high) < level:
        high *= 2
    for _ in range(190):
        middle = (low + high) / 2
        low, high = (low, middle) if ratio(middle) > level else (middle, high)
    alpha = mpmath.exp(mpmath.mpf(epsilon))
    if way == "add":
        return 1 - tail(other, low) - alpha * (1 - tail(parts, low))
    return tail(parts, low) - alpha * tail(other, low)


def meets(found: Estimate, exact: mpmath.mpf, error: float) -> bool:
    """Whether the truth lies within the bar, and the bar within `error`, relative."""
    assert found.lower is not None
    assert found.upper is not None
    return bool(found.lower <= exact <= found.upper and found.upper - found.lower <= 2 * error * exact + 1e-299)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{type(event).__name__} {event.noise_multiplier}")
def test_delta_is_a_difference_of_normal_tails(event: Event) -> None:
    """δ at ε = 0, where the old bar was 5e5 times too small, at ordinary ε, and far out, where little is left."""
    curve = of(event)
    with mpmath.workdps(60):
        for epsilon in (0.0, 1 / event.noise_multiplier, 2.0):  # type: ignore[union-attr]
            both = max(truth(event, epsilon, way) for way in ("remove", "add"))
            assert both < 1e-35 or meets(curve.delta(epsilon), both, 1e-11), epsilon


def test_laplace_to_the_last_digits_with_a_bar_that_holds() -> None:
    """198 invocations: 1 − e^((ε − w)/2), and w + 2 log(1 − δ), with w the exact fraction that is meant."""
    some = random.Random(0)
    with mpmath.workdps(50):
        for _ in range(198):
            event = Laplace(10 ** some.uniform(-2, 8), sensitivity=some.choice([None, 1.7, 0.3]))
            assert event.exact_noise is not None
            width = mpmath.mpf(event.exact_noise.denominator) / event.exact_noise.numerator
            epsilon, delta = float(width * some.random()), 10 ** some.uniform(-12, -0.01)
            curve = of(event)
            assert meets(curve.delta(epsilon), 1 - mpmath.exp((epsilon - width) / 2), 1e-14)
            found = curve.epsilon(delta)
            assert found.lower <= max(width + 2 * mpmath.log1p(-mpmath.mpf(delta)), 0) <= found.upper
            assert found.upper - found.lower <= 1e-13 * float(width)


@pytest.mark.parametrize("event", [*EVENTS, Gaussian(2.0), Laplace(0.3), RandomSensitivityGaussian(0.01, 1.0, 5)])
def test_epsilon_inverts_delta(event: Event) -> None:
    curve = of(event)
    largest = curve.delta(0.0).value
    for delta in (0.5 * largest, 1e-3 * largest, 1e-9 * largest):
        found = curve.epsilon(delta)
        assert curve.delta(found.lower).upper >= delta >= curve.delta(found.upper).lower
        assert found.upper - found.lower <= 1e-9 * found.value
    assert curve.epsilon(min(1.001 * largest, 0.9999)).value == 0 or largest > 0.99


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_random_sensitivity_is_the_mean_over_its_law(direction: str) -> None:
    """r = 4: χ²_4 has the density u e^(−u/2) / 4, and given it the mechanism is a sampled Gaussian at σ √(u/4)."""
    event, epsilon = RandomSensitivityGaussian(0.5, 1.5, 4), 0.4
    found = of(event).one_way(direction).delta(epsilon)
    with mpmath.workdps(25):
        rate, alpha = mpmath.mpf(0.5), mpmath.exp(mpmath.mpf(0.4))

        def given(u: mpmath.mpf) -> mpmath.mpf:
            mu = 2 / mpmath.sqrt(u) / mpmath.mpf(1.5)
            ratio = (alpha - 1 + rate) / rate if direction == "remove" else rate / (1 / alpha - 1 + rate)
            share = rate if direction == "remove" else 1 - alpha * (1 - rate)
            a = mu / 2 - mpmath.log(ratio) / mu
            return share * (mpmath.ncdf(a) - ratio * mpmath.ncdf(a - mu)) * u * mpmath.exp(-u / 2) / 4

        exact = mpmath.quad(given, [0, 0.05, 0.5, 2, 5, 10, 20, 40, 80, 160])
    assert abs(found.value - exact) <= 1e-12 * exact


def test_noise_that_doubles_cannot_resolve_is_refused() -> None:
    """σ = 1e-9 beside a pair: the output at which the loss is ε lies between two doubles."""
    releases = Composition(((Gaussian(1e-9), 1), (DiscretePair((0.75, 0.25), (0.25, 0.75)), 1)))
    (answer,) = account(releases, delta=1e-5, accountants="exact")
    assert answer.refused is not None
    assert "lattice" in answer.refused


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (RandomSensitivityGaussian(0.0682, 2.079, 3), 8775.5),
        (RandomSensitivityGaussian(1.0, 0.3147, 11), 1262.0),
        (RandomSensitivityGaussian(0.01, 1.0, 1), 1000.0),
    ],
)
def test_random_sensitivity_at_large_epsilon(event: RandomSensitivityGaussian, epsilon: float) -> None:
    """Σ over the law of v = log(χ²_r / r), where the curve of one sensitivity is a step of width 1/√ε."""
    with mpmath.workdps(30):
        half, rate = mpmath.mpf(event.projections) / 2, mpmath.mpf(event.sampling_rate)
        level = mpmath.log((mpmath.expm1(epsilon) + rate) / rate)

        def part(v: mpmath.mpf) -> mpmath.mpf:
            mu = mpmath.exp(-v / 2) / mpmath.mpf(event.noise_multiplier)
            hockey = mpmath.ncdf(mu / 2 - level / mu) - mpmath.exp(level) * mpmath.ncdf(-mu / 2 - level / mu)
            return half**half / mpmath.gamma(half) * mpmath.exp(half * (v - mpmath.exp(v))) * hockey

        step = -2 * mpmath.log(mpmath.sqrt(2 * level) * mpmath.mpf(event.noise_multiplier))  # mu²/2 = level
        near = [step + mpmath.mpf(k) / 10 for k in range(-60, 61)]
        exact = rate * mpmath.quad(part, [step - 160, step - 60, step - 20, *near])
    assert meets(of(event).delta(epsilon), exact, 1e-9)
