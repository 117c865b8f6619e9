"""Losses with atoms beside others: `exact` refuses in a sentence that names `lattice`, which has an answer."""

from __future__ import annotations

import math

import pytest

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
)
from dpbench.privacy.accountants.exact.accountant import accountant
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import No
from dpbench.privacy.certified import certify_many

RESPONSE = DiscretePair((0.75, 0.25), (0.25, 0.75))
UNEVEN = DiscretePair((0.5, 0.37, 0.13), (0.21, 0.3, 0.49))
TRAINING = SampledGaussian(0.01, 1.0)


def of(*parts: tuple[Event, int]) -> Composition:
    return Composition(parts)


@pytest.mark.parametrize(
    "composition",
    [
        of((Laplace(2.0), 3), (Laplace(3.0), 4)),
        of((Laplace(1.0), 3), (RESPONSE, 4)),
        of((Gaussian(2.0), 3), (RESPONSE, 4)),
        of((Gaussian(2.0), 3), (UNEVEN, 2), (Laplace(4.0), 5)),
        of((TRAINING, 1000), (UNEVEN, 2)),
        of((GroupSampledGaussian(0.05, 1.0, 3), 10), (Laplace(4.0), 1)),
        of((RandomSensitivityGaussian(0.1, 1.0, 5), 3), (RESPONSE, 1)),
    ],
    ids=["two scales", "laplace and pair", "gaussian and pair", "three kinds", "training", "group", "projections"],
)
def test_the_lattice_answers_what_is_refused(composition: Composition) -> None:
    answer = accountant.supports(composition)
    assert isinstance(answer, No)
    assert "beside" in answer.reason
    assert "'lattice'" in answer.reason
    with pytest.raises(DpbenchError, match="refuses"):
        accountant.curve(composition)
    found = load_accountant("lattice").curve(composition).delta(0.5).value
    if any(isinstance(event, RandomSensitivityGaussian) for event, _ in composition.parts):
        assert 0 < found < 1
    else:
        (proof,) = certify_many(composition, epsilons=(0.5,))
        assert proof.lower <= found <= proof.upper * (1 + 1e-4)  # atoms move to the lattice's cells


def test_what_reveals_nothing_costs_nothing() -> None:
    zero_loss = (Laplace(math.inf), 3), (DiscretePair((0.5, 0.5), (0.5, 0.5)), 2), (SampledGaussian(0.0, 1.0), 5)
    for parts in (((TRAINING, 100),), ((Laplace(2.0), 3),), ((RESPONSE, 2), (UNEVEN, 1))):
        alone = accountant.curve(of(*parts)).epsilon(1e-5).value
        assert accountant.curve(of(*zero_loss, *parts)).epsilon(1e-5).value == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    ("composition", "word"),
    [
        (of((Laplace(0.01), 2)), "= 0.01"),
        (of((Laplace(1.0), 10**5)), "count = 100000"),
        (of((UNEVEN, 10**5)), "attainable sums"),
        (of((Laplace(1.0), 1), (Gaussian(1.0, adjacency="zero_out"), 1)), "beside"),
        (of((Gaussian(2.0), 1), (Gaussian(1.0, adjacency="zero_out"), 1)), "neighbouring"),
        (of((RESPONSE, 1), (SampledGaussian(0.1, 1.0, sampler="shuffled"), 1)), "shuffled"),
        (of((RESPONSE, 1), (ConfidentGNMax(300, 40, 40, votes=(100, 50)), 1)), "data-dependent"),
        (Composition(((Gaussian(2.0), 1), (Gaussian(1.0), 1)), adaptive=True), "filter"),
    ],
)
def test_it_says_why_not(composition: Composition, word: str) -> None:
    answer = accountant.supports(composition)
    assert isinstance(answer, No)
    assert word in answer.reason
    with pytest.raises(DpbenchError, match="refuses"):
        accountant.curve(composition)
