"""Verdicts are about the printed algorithm: its batches, its neighbours, and its output."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpbench.events import SampledGaussian
from dpbench.judging.claims.bounds import shown_end
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.reading import PAPERS, read_claims
from dpbench.judging.papers.bu2020.last_iterate import SETTINGS, TAILS, Design, design, linear_delta
from dpbench.judging.papers.bu2020.rows import ROWS
from dpbench.judging.papers.jl2021.algorithms import microbatch_noise

CLAIMS = {claim.name: claim for file in read_claims([PAPERS]).files for claim in file.claims}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("jl2021.epsilon-mnist-outer", "unsound"),
        ("jl2021.epsilon-mnist-outer-poisson", "sound"),
        ("jl2021.theorem-4-1", "refuted"),
        ("jl2021.theorem-4-1-poisson", "holds"),
        ("jl2021.intro-microbatch-noise", "refuted"),
        ("jl2021.intro-microbatch-noise-replaced", "holds"),
        ("jl2021.intro-user-level", "refuted"),
        ("dpis2022.definition-2-1", "refuted"),
        ("bu2020.alg1-as-printed", "unsound"),
    ],
)
def test_verdicts_on_what_is_printed(name: str, verdict: str) -> None:
    assert CLAIMS[name].verdict == verdict  # test_verdicts.py judges it


# ---- bu2020: Algorithm 1 gives out the last iterate ----

SMALL = Design(0.1, 4000, 0.5, move=1.1, width=200, cells=20, margin=6.0, batch=220)


def target(used: Design, theta: np.ndarray) -> np.ndarray:
    """τ(θ), for θ = (a, w, c)."""
    near = used.move / 2 * np.round(theta[0] / (used.move / 2))
    counts = used.spacing * np.round(theta[1 + used.width :] / used.spacing)
    reading = (theta[0] - near) / np.sqrt(np.mean(theta[1 : 1 + used.width] ** 2))
    counts[np.searchsorted(used.edges, reading)] += used.spacing
    return np.concatenate([[near - used.move / 2], np.zeros(used.width), counts])


def loss(used: Design, theta: np.ndarray, special: bool) -> float:
    """Of a record x = 0, or of z."""
    return float(np.sum((theta - target(used, theta)) ** 2) / 2) - used.move * float(theta[0]) * special


def gradient(used: Design, theta: np.ndarray, special: bool) -> np.ndarray:
    """Of the same, away from the boundaries of the cells."""
    found = theta - target(used, theta)
    found[0] -= used.move * special
    return found


def noisy_sgd(used: Design, steps: int, special: bool, rng: np.random.Generator) -> tuple[np.ndarray, list[float]]:
    """The printed Algorithm 1 with R = η = 1: θ_T, and the readings on the way, which nobody sees."""
    theta, readings = np.concatenate([[0.0], np.full(used.width, used.noise), np.zeros(used.cells)]), []
    for _ in range(steps):
        drawn = int(rng.binomial(used.records, used.rate))
        gradients = [(drawn, gradient(used, theta, False))]
        if special and rng.random() < used.rate:
            gradients.append((1, gradient(used, theta, True)))
        size = sum(number for number, _ in gradients)
        clipped = sum(number * g / max(1.0, float(np.linalg.norm(g))) for number, g in gradients)
        assert all(np.linalg.norm(g) < 1 for _, g in gradients)
        theta = theta - (clipped + used.sigma * rng.standard_normal(theta.size)) / size
        near = used.move / 2 * round(theta[0] / (used.move / 2))
        readings.append((theta[0] - near) / math.sqrt(float(np.mean(theta[1 : 1 + used.width] ** 2))))
    return theta, readings


def test_the_last_iterate_holds_every_reading() -> None:
    assert SMALL.room()
    assert SMALL.failure(300) < 1e-4
    theta, readings = noisy_sgd(SMALL, 300, True, np.random.default_rng(1))
    counted = np.round(theta[1 + SMALL.width :] / SMALL.spacing).astype(int)
    cells = np.searchsorted(SMALL.edges, [0.0, *readings[:-1]])  # the reading of the start is 0
    assert counted.tolist() == np.bincount(cells, minlength=SMALL.cells).tolist()


def test_what_is_unsound_is_shown_for_the_last_iterate() -> None:
    """A bound that is broken only by all iterates together is refuted, not unsound: the algorithm outputs one."""
    shown = {(row.rate, row.sigma, row.whole_steps) for row in SETTINGS}
    for claim in CLAIMS.values():
        if claim.paper != "bu2020" or claim.verdict != "unsound" or (claim.by or "").startswith("last_iterate:"):
            continue
        if claim.events is not None:
            ((event, count),) = claim.events.parts
            assert isinstance(event, SampledGaussian)
            assert (event.sampling_rate, event.noise_multiplier, count) in shown, claim.name
        else:
            assert claim.by == "limit:gdp_in_the_tail"
            row, epsilon = claim.parameters["row"], claim.parameters["epsilon"]
            assert SETTINGS[row] == ROWS[row], claim.name
            assert TAILS[row] == epsilon, claim.name


def test_its_gradient_is_that_of_a_loss() -> None:
    theta, _ = noisy_sgd(SMALL, 5, False, np.random.default_rng(2))
    for special in (False, True):
        for place in (0, 1, 150, SMALL.width + 3, SMALL.width + SMALL.cells):
            step = np.zeros(theta.size)
            step[place] = 1e-7
            slope = (loss(SMALL, theta + step, special) - loss(SMALL, theta - step, special)) / 2e-7
            assert slope == pytest.approx(gradient(SMALL, theta, special)[place], abs=1e-6)


def test_readings_have_the_law_that_is_composed() -> None:
    """With z in every batch and in none; false alarm below 1e-6 (eight deviations of each of 40 counts)."""
    often = replace(SMALL, rate=0.999999, records=400)
    steps = 2000
    for special, shift in ((False, 0.0), (True, often.move / often.sigma)):
        _, readings = noisy_sgd(often, steps, special, np.random.default_rng(3))
        seen = np.bincount(np.searchsorted(often.edges, readings), minlength=often.cells)
        law = often.law(shift)
        assert law.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.all(np.abs(seen - steps * law) < 8 * np.sqrt(steps * law) + 8)


def test_laws_of_readings_are_those_of_student() -> None:
    from scipy.stats import nct, t

    used = Design(256 / 60000, 60000, 1.3)
    assert np.cumsum(used.law(0.0))[:-1] == pytest.approx(t.cdf(used.edges, used.width), abs=1e-11)
    assert np.cumsum(used.law(0.8))[:-1] == pytest.approx(nct.cdf(used.edges, used.width, 0.8), abs=1e-9)


def test_a_linear_loss_shows_less_and_a_design_without_room_is_refused() -> None:
    assert linear_delta(ROWS[0], 0.722) == pytest.approx(1e-5, rel=1e-2)
    with pytest.raises(ValueError, match="no room"):
        design(256 / 60000, 60000, 1.3, 1.9, 1e-12)


# ---- jl2021: batches of fixed size, microbatches ----


def test_a_fixed_batch_with_the_new_record_has_one_of_the_others_less() -> None:
    records = [-1, -1, -1, -1, 1]
    sums = [sum(batch) for batch in itertools.combinations(records, 3)]
    assert Fraction(sums.count(-1), len(sums)) == Fraction(3, len(records))
    assert set(sums) == {-1, -3}  # twice the clip norm apart; without the record every sum is -3


def test_one_large_step_alone_breaks_the_epsilon_of_fixed_batches() -> None:
    """8 epochs, in clip norms: "some step is above τ" has more than δ at ε = 1.5, which rounds to 2."""
    from scipy.stats import norm

    rate, sigma, steps = 256 / 60000, 1.3, 1875
    lost = []
    for threshold in np.linspace(3.0, 8.0, 101):
        without = float(norm.sf(threshold / sigma))
        present = (1 - rate) * without + rate * float(norm.sf((threshold - 2) / sigma))
        some = -math.expm1(steps * math.log1p(-present))
        lost.append(some - math.exp(1.5) * -math.expm1(steps * math.log1p(-without)))
    assert max(lost) > 1e-5
    found = judge(CLAIMS["jl2021.epsilon-mnist-outer"])
    assert found.evidence["lower"] == pytest.approx(3.4755, abs=1e-3)


def test_no_record_moves_a_microbatch_further_than_the_judge_says() -> None:
    rng = np.random.default_rng(4)
    for setting in microbatch_noise.settings:
        size = setting["size"]
        without = np.clip(rng.normal(-1, 3, (2000, size - 1)).mean(axis=1), -1, 1)
        moved = np.abs(rng.choice([-1, 1], 2000) - without).max()
        assert microbatch_noise(**setting, replaced=False)[1] == 2 * size >= moved * size


def test_no_bound_is_judged_that_no_text_prints() -> None:
    assert [name for name, claim in CLAIMS.items() if claim.kind == "bound" and "Figure 6" in claim.place] == []


# ---- dpis2022: the least batch that breaks the promise ----


@pytest.mark.parametrize(("epsilon", "batch"), [(0.5, 7500), (1.0, 3334), (2.0, 1396), (3.0, 834), (4.0, 556)])
def test_the_least_batch_that_breaks_the_promise(epsilon: float, batch: int) -> None:
    claim = CLAIMS[f"dpis2022.whole-run-{epsilon:g}".replace("0.5", "0-5")]
    for size, verdict in ((batch, "unsound"), (batch - 1, "undecided")):
        assert judge(replace(claim, parameters={**claim.parameters, "batch": size})).verdict == verdict


def test_a_number_without_an_upper_end_is_shown_by_its_lower_one() -> None:
    assert shown_end("unsound", 1.5, math.inf) == 1.5
