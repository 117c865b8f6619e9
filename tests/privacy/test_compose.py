"""Composition: counts are added up here and nowhere else."""

from __future__ import annotations

import pytest

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, Gaussian, SampledGaussian
from dpbench.privacy.composition import adaptive_refusal, as_composition, common_adjacency, merge, weighted_sum


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def test_equal_events_are_merged_and_zeros_dropped() -> None:
    one, other = Gaussian(1.0), SampledGaussian(0.1, 1.0)
    composition = Composition(((one, 1), (other, 2), (one, 3), (Gaussian(9.0), 0)))
    assert merge(composition) == ((one, 4), (other, 2))


def test_a_leaf_is_asked_once_for_each_distinct_event() -> None:
    asked: list[Event] = []

    def term(event: Event) -> float:
        asked.append(event)
        return event.noise_multiplier

    composition = Composition(((Gaussian(2.0), 10**6), (Gaussian(3.0), 4), (Gaussian(2.0), 5)))
    assert weighted_sum(composition, term, 0.0) == 2.0 * (10**6 + 5) + 12.0
    assert asked == [Gaussian(2.0), Gaussian(3.0)]


def test_leaves_may_be_arrays_or_complex() -> None:
    assert weighted_sum(times(Gaussian(2.0), 3), lambda event: 1j * event.noise_multiplier, 0j) == 6j


def test_a_single_event_is_a_composition_of_one() -> None:
    assert as_composition(Gaussian(2.0)) == times(Gaussian(2.0), 1)


def test_more_releases_than_a_double_can_count_are_refused() -> None:
    with pytest.raises(DpbenchError, match=r"^count = \d+: expected at most 2\^53 mechanism invocations"):
        merge(Composition(((Gaussian(1.0), 2**53), (Gaussian(2.0), 1))))


def test_neighbouring_relations_are_not_mixed() -> None:
    assert common_adjacency(times(Gaussian(1.0, adjacency="zero_out"), 2)) == "zero_out"
    assert common_adjacency(Composition(((Gaussian(1.0), 1), (Gaussian(1.0, adjacency="zero_out"), 1)))) is None


def test_adaptive_parameters_need_a_theorem() -> None:
    reason = adaptive_refusal(Composition(((Gaussian(1.0), 1),), adaptive=True), "Theorem 1")
    assert reason is not None
    assert "Theorem 1" in reason
