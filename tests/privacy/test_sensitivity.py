"""σ is relative to the clip norm, under every neighbouring relation: one meaning for all accountants and routes."""

from __future__ import annotations

import json
import math
import shlex
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench import account, calibrate, certify
from dpbench.catalog import catalog
from dpbench.cli import main
from dpbench.errors import DpbenchError
from dpbench.events import (
    ADJACENCIES,
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
    from_json,
    to_json,
)
from dpbench.privacy.accountants.rdp_filter import RenyiFilter
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate
from dpbench.privacy.calibration import largest_steps, solve
from dpbench.privacy.composition import steps_from_epochs
from dpbench.privacy.event_files import parse_events
from dpbench.privacy.releases import Said, releases
from dpbench.privacy.statement import describe, statement
from dpbench.privacy.trade_off import tangent_mu, trade_off
from dpbench.references import gaussian as gaussian_reference
from dpbench.references import laplace as laplace_reference
from dpbench.references import sampled_gaussian as sampled_reference

NAMES = tuple(catalog("accountants"))
SLOW = ("lattice",)  # a second per composition: fewer of them, and one question
PAIR = ((0.75, 0.25), (0.25, 0.75))
DELTA = 1e-5

Parts = tuple[tuple[Event, int], ...]


def same(name: str, first: Parts, second: Parts) -> bool:
    """Whether an accountant that covers both says the same of both, in both directions; False where it covers not."""
    accountant = load_accountant(name)
    both = Composition(first), Composition(second)
    if not all(accountant.supports(composition) for composition in both):
        return False
    one, other = (accountant.curve(composition) for composition in both)
    assert close(one.delta(0.7), other.delta(0.7)), (name, first, second)
    if name not in SLOW:
        assert close(one.epsilon(DELTA), other.epsilon(DELTA)), (name, first, second)
    return True


def close(one: Estimate, other: Estimate) -> bool:
    """Within a thousandth: a sensitivity of 2 in place of 1 is a factor of two in ε."""
    return one.value == other.value or math.isclose(one.value, other.value, rel_tol=1e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", NAMES)
def test_a_gaussian_is_the_sampled_one_at_rate_one(name: str, adjacency: Any) -> None:
    compared = 0
    for sigma, count in ((2.0, 1), (0.7, 1), (30.0, 40)):
        plain, sampled = Gaussian(sigma, adjacency), SampledGaussian(1.0, sigma, adjacency)
        compared += same(name, ((plain, count),), ((sampled, count),))
        if name in SLOW and (sigma, adjacency) != (2.0, "replace_one"):
            continue
        for beside in (Laplace(6.0, adjacency), DiscretePair(*PAIR, adjacency), SampledGaussian(0.1, 2.0, adjacency)):
            compared += same(name, ((plain, count), (beside, 2)), ((sampled, count), (beside, 2)))
    refuses = name in ("rdp_data_dependent", "shuffled") or (
        name in ("moments", "gdp_clt") and adjacency == "replace_one"
    )
    assert (compared == 0) == refuses


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize("name", NAMES)
def test_only_noise_over_sensitivity_counts(name: str, kind: Any) -> None:
    """A replaced record moves a sum by two; any other sensitivity is the same as the other noise."""
    step = SampledGaussian(0.1, 2.0, "replace_one")
    compared = 0
    alone: tuple[Parts, ...] = ((),)
    beside_others = (((step, 2),), ((DiscretePair(*PAIR, "replace_one"), 1),))
    for beside in alone if name in SLOW else (*alone, *beside_others):
        for first, second in (
            (kind(8.0, "replace_one"), kind(4.0, "replace_one", sensitivity=1.0)),
            (kind(8.0, "replace_one"), kind(12.0, "replace_one", sensitivity=3.0)),
            (kind(4.0, "replace_one", sensitivity=0.5), kind(8.0, "replace_one", 1.0)),
        ):
            compared += same(name, ((first, 1), *beside), ((second, 1), *beside))
    for first, second in ((kind(4.0), kind(4.0, "zero_out")), (kind(4.0, "zero_out"), kind(8.0, sensitivity=2.0))):
        neutral: Parts = ((second, 1),)
        compared += same(name, ((first, 1),), neutral)
    assert compared or load_accountant(name).supports(Composition(((kind(8.0), 1),))) is not None


def test_lower_ends_of_fixed_batches_keep_the_sensitivity_of_what_stands_beside() -> None:
    """Pairs of datasets are moved to another relation there, and with them the mechanism beside the batches."""
    batch = SampledGaussian(0.1, 2.0, "replace_one", "without_replacement")
    for kind in (Gaussian, Laplace):
        curves = [
            load_accountant("lattice").curve(Composition(((batch, 3), (one, 1))))
            for one in (kind(8.0, "replace_one"), kind(4.0, "replace_one", sensitivity=1.0))
        ]
        one, other = (curve.delta(0.4) for curve in curves)
        assert one.lower is not None
        assert other.lower is not None
        assert one.lower == pytest.approx(other.lower, rel=1e-9)
        assert 0 < one.lower <= one.value


@settings(max_examples=30, deadline=None)
@given(st.floats(0.3, 50), st.floats(0.1, 10), st.sampled_from(ADJACENCIES))
def test_the_ratio_is_never_rounded_up(noise: float, sensitivity: float, adjacency: Any) -> None:
    for kind in (Gaussian, Laplace):
        event = kind(noise, adjacency, sensitivity)
        assert event.exact_noise == Fraction(noise) / Fraction(sensitivity)
        assert Fraction(event.relative_noise) <= event.exact_noise
        assert event.relative_noise == pytest.approx(noise / sensitivity, rel=3e-16)
        assert kind(math.inf, adjacency, sensitivity).relative_noise == math.inf


class TestProofs:
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_certificates_and_references(self, adjacency: Any) -> None:
        plain, sampled = Gaussian(2.0, adjacency), SampledGaussian(1.0, 2.0, adjacency)
        first, second = (certify(event, delta=DELTA) for event in (plain, sampled))
        assert max(first.lower, second.lower) <= min(first.upper, second.upper)
        delta = certify(plain, epsilon=1.0)
        assert gaussian_reference.reference.delta(plain, 1.0, digits=10).contains(delta.value)

    @pytest.mark.parametrize("sensitivity", [1.0, 3.0, math.sqrt(2), 0.1])
    def test_a_sensitivity_that_is_given_is_taken_exactly(self, sensitivity: float) -> None:
        """The proof holds the ratio as a fraction: it agrees to twenty digits with the reference of that fraction."""
        event = Gaussian(2.0, "replace_one", sensitivity)
        proven = certify(event, epsilon=0.5, digits=20)
        reference = gaussian_reference.reference.delta(event, 0.5, digits=20)
        assert max(proven.lower, float(reference.lower)) <= min(proven.upper, float(reference.upper))
        moved = gaussian_reference.reference.delta(Gaussian(2.0, sensitivity=1.0), 0.5, digits=20)
        assert reference.overlaps(moved) == (sensitivity == 1.0)
        law = sampled_reference.law(Gaussian(2.0, sensitivity=sensitivity))
        assert law is not None
        assert law.variance == (Fraction(2) / Fraction(sensitivity)) ** 2

    def test_laplace(self) -> None:
        proven = certify(Laplace(4.0, "replace_one"), epsilon=0.25)
        assert proven.value == pytest.approx(-math.expm1(-0.125), rel=1e-14)  # 1 − e^((ε − Δ/b)/2), Δ/b = 1/2
        assert laplace_reference.reference.delta(Laplace(4.0, "replace_one"), 0.25, digits=8).contains(proven.value)
        with pytest.raises(DpbenchError, match=r"^cannot certify Laplace: .*ratio is no double"):
            certify(Laplace(4.0, sensitivity=3.0), epsilon=0.25)


class TestWords:
    def test_the_statement_says_which_sensitivity_it_took(self) -> None:
        for adjacency, said in (("add_or_remove", "1 clip norm,"), ("replace_one", "2 clip norms,")):
            for event in ("gaussian", "laplace", "sampled_gaussian"):
                sampled = {"sampling_rate": 1.0} if event == "sampled_gaussian" else {}
                given = Said(event=event, steps=1, noise_multiplier=2.0, parameters={"adjacency": adjacency}, **sampled)
                found = releases(given)
                assert f"Sensitivity: {said} to which σ is relative." in statement(found, [])
        given = Said(event="gaussian", noise_multiplier=2.0, parameters={"adjacency": "replace_one", "sensitivity": 1})
        found = releases(given)
        assert found.composition.parts == ((Gaussian(2.0, "replace_one", 1.0), 1),)
        assert "Sensitivity: 1 clip norm, to which" in statement(found, [])
        assert describe(Gaussian(2.0, "replace_one")) == "Gaussian (σ = 2, sensitivity = 2)"

    def test_a_group_and_random_sensitivity_say_theirs(self) -> None:
        for event, parameters, said in (
            ("group", {"group_size": 3}, "up to 3 clip norms"),
            ("random_sensitivity_gaussian", {"projections": 4}, "(χ²_r / r)^(−1/2), r = 4"),
        ):
            found = releases(Said(event=event, sampling_rate=0.1, steps=1, noise_multiplier=2.0, parameters=parameters))
            assert f"Sensitivity: {said}" in statement(found, [])
        assert "Sensitivity" not in statement(
            releases(Said(event="discrete_pair", parameters={"first": PAIR[0], "second": PAIR[1]})), []
        )

    def test_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        def answer(line: str) -> dict[str, Any]:
            with pytest.raises(SystemExit):
                main(shlex.split(f"{line} --json"))
            found: dict[str, Any] = json.loads(capsys.readouterr().out)
            return found

        line = "account --event gaussian --sigma 2 --adjacency replace_one --delta 1e-5 --accountant exact"
        two, one = answer(line), answer(f"{line} --sensitivity 1")
        sampled = answer(line.replace("--event gaussian", "--sampling-rate 1 --steps 1"))
        assert two["guarantees"][0]["epsilon"] == pytest.approx(4.377178, abs=1e-6)
        assert sampled["guarantees"][0]["epsilon"] == pytest.approx(two["guarantees"][0]["epsilon"], rel=1e-12)
        assert one["guarantees"][0]["epsilon"] == pytest.approx(1.993091, abs=1e-6)
        assert from_json(one["composition"]).parts == ((Gaussian(2.0, "replace_one", 1.0), 1),)
        noise = "calibrate --event gaussian --epsilon 1 --delta 1e-5 --accountant gdp"
        wide = answer(f"{noise} --adjacency replace_one")["value"]
        assert wide == pytest.approx(2 * answer(noise)["value"], rel=1e-5)
        assert answer(f"{noise} --sensitivity 2")["value"] == wide

    @pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1"])
    def test_a_bad_sensitivity_is_one_sentence(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"^sensitivity = .*: expected a "):
            Gaussian(1.0, sensitivity=value)
        with pytest.raises(DpbenchError, match="SampledGaussian has no sensitivity"):
            releases(Said(sampling_rate=0.1, steps=1, noise_multiplier=1.0, parameters={"sensitivity": 1.0}))
        for noise, moved in ((1e-300, 1e300), (1e300, 1e-300)):
            with pytest.raises(ValueError, match=r"over sensitivity .* is a double"):
                Laplace(noise, sensitivity=moved)

    def test_files_of_events_take_it(self) -> None:
        text = "{kind: events, events: [{event: laplace, noise_multiplier: 2, sensitivity: 3}]}"
        assert parse_events(text).composition.parts == ((Laplace(2.0, sensitivity=3.0), 1),)


class TestAdaptive:
    @pytest.mark.parametrize("question", ["--delta 1e-5", "--epsilon 1"])
    def test_no_differential_privacy_is_stated(self, question: str, capsys: pytest.CaptureFixture[str]) -> None:
        line = f"account --sampling-rate 0.01 --steps 100 --sigma 1 {question} --accountant rdp_filter"
        said = []
        for more in ("", " --adaptive"):
            with pytest.raises(SystemExit):
                main(shlex.split(line + more))
            said.append(" ".join(capsys.readouterr().out.split()))
        assert "-differential privacy, by the accountant rdp_filter" in said[0]
        assert ")-differential privacy" not in said[1]
        assert "No differential privacy is stated: later parameters depend on earlier outputs" in said[1]
        assert "fixed before the first release" in said[1]
        assert "it is no promise itself" in said[1]

    def test_calibration_says_what_has_to_enforce_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = "calibrate --sampling-rate 0.01 --steps 10 --epsilon 1 --delta 1e-5 --accountant rdp_filter"
        for more, expected in (("", False), (" --adaptive", True)):
            with pytest.raises(SystemExit):
                main(shlex.split(line + more))
            assert ("where a filter refused" in " ".join(capsys.readouterr().out.split())) == expected
            with pytest.raises(SystemExit):
                main(shlex.split(f"{line}{more} --json"))
            assert (json.loads(capsys.readouterr().out)["reservation"] is not None) == expected


REALS = (np.float64, np.float32, np.float16, np.longdouble)
WHOLES = (np.int64, np.int32, np.uint8)


class TestNumPy:
    """Every number that a person computes with NumPy is taken, and kept as Python's own."""

    @pytest.mark.parametrize("real", REALS)
    def test_real_numbers(self, real: Any) -> None:
        events: list[Event] = [
            Gaussian(real(2), sensitivity=real(0.5)),
            Laplace(real(2)),
            SampledGaussian(real(0.25), real(2)),
            RandomSensitivityGaussian(real(0.25), real(2), 5),
            DiscretePair((real(0.75), real(0.25)), (real(0.25), real(0.75))),
            ConfidentGNMax(real(300), real(200), real(40)),
        ]
        composition = Composition(tuple((event, 2) for event in events))
        assert from_json(json.loads(json.dumps(to_json(composition)))) == composition
        event, delta, epsilon = SampledGaussian(0.25, 2.0), real(2.0**-13), real(0.75)
        for name in NAMES:
            for question in ({"delta": delta}, {"epsilon": epsilon}):
                (one,) = account(event, accountants=name, **question)
                plain = {key: float(value) for key, value in question.items()}
                (other,) = account(event, accountants=name, **plain)
                assert json.dumps(one.to_json() | {"seconds": 0}) == json.dumps(other.to_json() | {"seconds": 0})
        for name in ("exact", "gdp", "rdp", "lattice", "basic", "classical_gaussian", "rdp_filter"):
            curve = load_accountant(name).curve(Composition(((Gaussian(8.0), 1),)))
            assert type(curve.epsilon(delta).value) is type(curve.delta(epsilon).value) is float
            assert curve.epsilon(delta) == curve.epsilon(float(delta))
            assert curve.delta(epsilon) == curve.delta(float(epsilon))
        assert certify(Gaussian(2.0), delta=delta).lower == certify(Gaussian(2.0), delta=float(delta)).lower
        assert calibrate(Gaussian, epsilon=epsilon, delta=delta, accountant="gdp") == calibrate(
            Gaussian, epsilon=float(epsilon), delta=float(delta), accountant="gdp"
        )
        curve = load_accountant("gdp").curve(Composition(((Gaussian(2.0), 1),)))
        assert trade_off(curve, real(0.125)) == trade_off(curve, 0.125)  # type: ignore[arg-type]
        assert tangent_mu(curve, delta=delta) == tangent_mu(curve, delta=float(delta))  # type: ignore[arg-type]
        assert steps_from_epochs(real(1.5), 100, 10) == 15
        assert steps_from_epochs(real(0.1), 1000, 1) == 100 or real is np.longdouble  # what was written, not its double
        assert RenyiFilter(epsilon, delta, orders=(real(20),)).epsilon == 0.0

    @pytest.mark.parametrize("whole", WHOLES)
    def test_whole_numbers(self, whole: Any) -> None:
        assert Gaussian(whole(2)) == Gaussian(2.0)
        event = RandomSensitivityGaussian(0.25, 2.0, whole(5))
        composition = Composition(
            ((event, whole(3)), (ConfidentGNMax(30, 20, 4, votes=(whole(9), whole(1))), whole(1)))
        )
        assert json.loads(json.dumps(to_json(composition)))["parts"][0]["count"] == 3
        assert type(composition.parts[0][1]) is int
        assert steps_from_epochs(whole(2), whole(100), whole(10)) == 20
        (one,) = account(SampledGaussian(0.25, 2.0), delta=1e-5, accountants="rdp", group_size=whole(2))
        assert json.dumps(one.to_json())
        assert largest_steps(Gaussian(20.0), epsilon=whole(1), delta=1e-5, accountant="gdp", most=whole(5)) == 5
        found = solve("steps", lambda steps: Composition(((Gaussian(20.0), np.int64(steps)),)), epsilon=1.0, delta=1e-5)
        assert found.value > 0
        spent = RenyiFilter(5.0, 1e-5)
        spent.spend(Gaussian(20.0), whole(2))
        assert spent.ledger.parts == ((Gaussian(20.0), 2),)
        assert certify(Gaussian(2.0), epsilon=1.0, digits=whole(8)).upper > 0

    @pytest.mark.parametrize("value", [True, np.True_, "2", None, 1 + 0j, np.array([2.0]), np.float64("nan"), 10**400])
    def test_what_is_no_number_stays_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"^noise_multiplier"):
            Gaussian(value)
        with pytest.raises(ValueError, match=r"^count"):
            Composition(((Gaussian(1.0), 1.5 if isinstance(value, int) and value > 1 else value),))
        with pytest.raises(DpbenchError):
            account(Gaussian(1.0), delta=value if value is not None else "1")
