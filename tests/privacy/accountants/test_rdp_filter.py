"""The Rényi filter for adaptive sequences, and PATE's data-dependent bound, against their formulas with 50 digits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpbench
from dpbench.errors import DpbenchError
from dpbench.events import (
    Composition,
    ConfidentGNMax,
    Event,
    Gaussian,
    RandomSensitivityGaussian,
    SampledGaussian,
    from_json,
)
from dpbench.privacy.accountants import (
    advanced,
    analytic_gaussian,
    basic,
    classical_gaussian,
    gdp,
    moments,
    rdp,
    rdp_data_dependent,
    rdp_filter,
)
from dpbench.privacy.accountants.renyi.events import log_moment
from dpbench.privacy.answers import No

deltas = st.floats(-30, -0.5).map(lambda power: 10.0**power)
Real = mpmath.mpf
TABLE = Path(dpbench.__file__).parent / "references" / "tables" / "confident_gnmax.json"


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


STEP = SampledGaussian(0.01, 2.0)


class TestFilter:
    @given(st.lists(st.tuples(st.floats(1e-4, 0.2), st.floats(0.6, 20.0)), min_size=1, max_size=40), deltas)
    @settings(max_examples=30, deadline=None)
    def test_what_it_has_spent_is_the_accountants_number_within_its_budget(
        self, steps: list[tuple[float, float]], delta: float
    ) -> None:
        budget = rdp_filter.RenyiFilter(2.0, delta)
        for rate, noise in steps:
            event = SampledGaussian(rate, noise)
            before = budget.ledger
            if budget.admits(event):
                budget.spend(event)
            else:
                with pytest.raises(DpbenchError, match=r"^privacy budget exhausted"):
                    budget.spend(event)
                assert budget.ledger == before
        accounted = rdp_filter.accountant.curve(budget.ledger).epsilon(delta).value
        assert budget.epsilon <= 2.0
        assert budget.epsilon == pytest.approx(accounted, rel=1e-10, abs=1e-12)

    def test_it_spends_to_the_last_step_and_not_beyond(self) -> None:
        """The number of equal steps is floor(B / moment) at one order, B from Canonne's conversion with 50 digits."""
        with mpmath.workdps(50):
            a, epsilon, delta = Real(20), Real(1), Real(10) ** -5
            budget = (a - 1) * epsilon + mpmath.log(delta) - (a - 1) * mpmath.log(1 - 1 / a) + mpmath.log(a)
            most = int(mpmath.floor(budget / Real(log_moment(STEP, 20.0))))
        taken = rdp_filter.RenyiFilter(1.0, 1e-5, orders=(20.0,))
        while taken.admits(STEP):
            taken.spend(STEP)
        (part,) = taken.ledger.parts
        assert part == (STEP, most)
        assert not rdp_filter.RenyiFilter(1.0, 1e-5, orders=(20.0,)).admits(STEP, most + 1)
        assert rdp_filter.RenyiFilter(1.0, 1e-5, orders=(20.0,)).admits(STEP, most)

    def test_several_orders_share_delta(self) -> None:
        training = Composition(((STEP, 1000),), adaptive=True)
        orders = (10.0, 20.0, 40.0)
        together = rdp_filter.RdpFilterAccountant(orders=orders).curve(training).epsilon(1e-5).value
        apart = [rdp_filter.RdpFilterAccountant(orders=(order,)).curve(training) for order in orders]
        assert together == pytest.approx(min(curve.epsilon(1e-5 / 3).value for curve in apart), rel=1e-12)
        assert together > min(curve.epsilon(1e-5).value for curve in apart)

    @given(st.floats(1e-4, 0.3), st.floats(0.6, 20.0), st.integers(1, 10**5), deltas)
    @settings(max_examples=30, deadline=None)
    def test_it_never_beats_fixed_parameters(self, rate: float, noise: float, count: int, delta: float) -> None:
        training = times(SampledGaussian(rate, noise), count)
        fixed = rdp.accountant.curve(training).epsilon(delta).value
        assert rdp_filter.accountant.curve(training).epsilon(delta).value >= fixed * (1 - 1e-8)

    def test_a_run_resumes_from_its_ledger(self) -> None:
        first = rdp_filter.RenyiFilter(1.0, 1e-5)
        for event, count in ((STEP, 300), (Gaussian(40.0), 2), (STEP, 100)):
            first.spend(event, count)
        second = rdp_filter.RenyiFilter(1.0, 1e-5)
        for event, count in first.ledger.parts:
            second.spend(event, count)
        assert second.ledger == first.ledger
        assert second.epsilon == first.epsilon

    def test_an_empty_filter_has_spent_nothing(self) -> None:
        empty = rdp_filter.RenyiFilter(0.0, 1e-5)
        empty.spend(Gaussian(math.inf), 5)
        assert empty.epsilon == 0.0
        assert not empty.admits(STEP)

    def test_bad_input_is_one_sentence(self) -> None:
        budget = rdp_filter.RenyiFilter(1.0, 1e-5)
        with pytest.raises(DpbenchError, match="shuffled"):
            budget.admits(SampledGaussian(0.1, 1.0, sampler="shuffled"))
        with pytest.raises(DpbenchError, match="heavy tail"):
            budget.spend(RandomSensitivityGaussian(0.1, 1.0, 3))
        with pytest.raises(DpbenchError, match=r"^count = -1: expected a whole number, 0 or more$"):
            budget.spend(STEP, -1)
        budget.spend(STEP)
        with pytest.raises(DpbenchError, match="different neighbouring relations"):
            budget.admits(Gaussian(5.0, adjacency="replace_one"))
        for orders in ((), (1.0,), (2.0, 2.0), (math.nan,), (1e9,)):
            with pytest.raises(DpbenchError, match=r"^orders = "):
                rdp_filter.RenyiFilter(1.0, 1e-5, orders=orders)
        with pytest.raises(DpbenchError, match=r"^delta = "):
            rdp_filter.RenyiFilter(1.0, 2.0)

    def test_adaptive_sequences_are_its_alone(self) -> None:
        training = Composition(((Gaussian(5.0), 10),), adaptive=True)
        assert rdp_filter.accountant.supports(training)
        for module in (basic, advanced, gdp, moments, rdp, rdp_data_dependent, analytic_gaussian, classical_gaussian):
            answer = module.accountant.supports(Composition(((Gaussian(5.0), 1),), adaptive=True))
            assert isinstance(answer, No)


CONFIDENT = ConfidentGNMax(200, 150, 40, votes=(245, 3, 2))


class TestDataDependent:
    @pytest.mark.parametrize(("log_q", "noise"), [(-30.0, 40.0), (-12.0, 40.0), (-300.0, 40.0), (-8.0, 20.0)])
    @pytest.mark.parametrize("order", [2.0, 10.0, 25.5])
    def test_theorem_6_with_fifty_digits(self, log_q: float, noise: float, order: float) -> None:
        with mpmath.workdps(50):
            q, v, lam = mpmath.exp(Real(log_q)), Real(noise) ** 2, Real(order)
            mu2 = mpmath.sqrt(v * mpmath.log(1 / q))
            mu1 = mu2 + 1
            e1, e2 = mu1 / v, mu2 / v
            expected = lam / v
            limit = mpmath.exp((mu2 - 1) * e2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2
            if lam <= mu1 and q <= limit and q * mpmath.exp(e2) < 1:
                a = (1 - q) / (1 - (q * mpmath.exp(e2)) ** ((mu2 - 1) / mu2))
                b = mpmath.exp(e1) / q ** (1 / (mu1 - 1))
                bound = mpmath.log((1 - q) * a ** (lam - 1) + q * b ** (lam - 1)) / (lam - 1)
                expected = min(expected, bound)
        found = rdp_data_dependent.gaussian_bound(log_q, noise**2, order)
        assert float(abs(found - expected)) <= 1e-12 * float(expected) + 1e-16

    def test_proposition_7(self) -> None:
        votes, noise = (40, 30, 10), 8.0
        with mpmath.workdps(50):
            expected = mpmath.fsum(mpmath.erfc((40 - other) / (2 * Real(noise))) for other in votes[1:]) / 2
        assert math.exp(rdp_data_dependent.log_miss(votes, noise)) == pytest.approx(float(expected), rel=1e-12)
        assert rdp_data_dependent.log_miss((10, 10, 10), 1.0) == pytest.approx(0.0, abs=1e-15)  # the sum is 1
        assert rdp_data_dependent.log_miss((10, 10, 10, 10), 1.0) == 0.0
        assert rdp_data_dependent.log_miss((10**6, 0), 1.0) < -1e11

    def test_it_is_never_above_the_data_independent_bound_and_far_below_where_teachers_agree(self) -> None:
        for votes in ((245, 3, 2), (100, 90, 60), (130, 120, 0)):
            event = ConfidentGNMax(200, 150, 40, votes=votes)
            for order in rdp_data_dependent.ORDERS[::20]:
                assert rdp_data_dependent.log_moment(event, order) <= log_moment(event, order) * (1 + 1e-12)
        sharp = ConfidentGNMax(100, 20, 20, votes=(250, 0))
        assert rdp_data_dependent.log_moment(sharp, 3.0) < 1e-3 * log_moment(sharp, 3.0)

    def test_it_bounds_the_divergence_of_the_outcomes_themselves(self) -> None:
        """Their probabilities and divergences from every neighbour's are integrated with 20 digits (references)."""
        compared = 0
        for entry in json.loads(TABLE.read_text(encoding="utf-8"))["votes"]:
            (event, _) = from_json({"parts": [entry["event"]]}).parts[0]
            for order, divergence in entry["divergence"].items():
                bound = rdp_data_dependent.log_moment(event, float(order)) / (float(order) - 1)
                assert float(divergence) <= bound * (1 + 1e-12)
                assert bound <= log_moment(event, float(order)) / (float(order) - 1) * (1 + 1e-12)
                compared += 1
        assert compared >= 12

    def test_it_is_no_promise_and_wants_votes(self) -> None:
        curve = rdp_data_dependent.accountant.curve(times(CONFIDENT, 100))
        assert curve.kind == "approximation"
        assert curve.epsilon(1e-5).upper is None
        assert curve.delta(1.0).upper is None
        assert 0 < curve.epsilon(1e-5).value < rdp.accountant.curve(times(CONFIDENT, 100)).epsilon(1e-5).value * 1.5
        for event in (ConfidentGNMax(200, 150, 40), Gaussian(1.0)):
            assert isinstance(rdp_data_dependent.accountant.supports(times(event, 1)), No)
