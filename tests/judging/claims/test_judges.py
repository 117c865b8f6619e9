"""Every kind of judge: right claims hold, wrong ones do not, and a judge that cannot run says so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import pytest

from dpbench.events import Composition, ConfidentGNMax, Event, Gaussian, SampledGaussian
from dpbench.judging.claims.bounds import Known, compare, judge_bound
from dpbench.judging.claims.claim import Claim, Printed
from dpbench.judging.claims.controls import below, controls
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.judges import Shown, bound, formula, inequality, number, shown
from dpbench.judging.claims.quantities import judge_number

ROW_1 = SampledGaussian(256 / 60000, 1.3)


def bound_of(verdict: str, count: int = 3516, event: Event = ROW_1, **printed: str) -> Claim:
    numbers = {name: Printed(text) for name, text in printed.items()}
    parts = ((event, count),)
    return Claim("mine", "one", "here", "bound", "", verdict, "", numbers, events=Composition(parts), counts=parts)


@pytest.mark.parametrize(
    ("epsilon", "verdict"), [("0.83", "unsound"), ("0.86", "sound"), ("0.865", "sound"), ("1.19", "loose")]
)
def test_a_bound_is_compared_with_the_truth(epsilon: str, verdict: str) -> None:
    claim = bound_of(verdict, epsilon=epsilon, delta="1e-5")
    for certified in (False, True):
        found = judge_bound(claim, certified)
        assert found.verdict == verdict
        assert found.evidence["lower"] <= 0.8645401912 + 1e-9
        assert found.evidence["upper"] >= 0.8645401912 - 1e-9
    assert all(control.changed for control in controls(claim))


def test_a_pair_that_only_dominates_refutes_but_shows_nothing_unsound() -> None:
    known = Known(2.0, 2.1, "exact", False)
    assert compare(known, Printed("1.0"), False, "epsilon")[0] == "refuted"
    event = ConfidentGNMax(300, 200.0, 40.0)
    assert judge_bound(bound_of("refuted", 10, event, epsilon="0.1", delta="1e-5")).verdict == "refuted"
    explicit = replace(bound_of("unsound", 10, event, epsilon="0.1", delta="1e-5"), attained=True)
    assert judge_bound(explicit).verdict == "unsound"


def test_what_is_not_known_is_undecided() -> None:
    assert compare(Known(0.5, 1.5, "lattice", True), Printed("1.0"), True, "epsilon")[0] == "undecided"


def test_gaussian_differential_privacy_is_a_bound_too() -> None:
    assert judge_bound(bound_of("sound", 4, Gaussian(4.0), mu="0.5")).verdict == "sound"
    assert judge_bound(bound_of("unsound", 4, Gaussian(4.0), mu="0.4")).verdict == "unsound"
    assert judge_bound(bound_of("loose", 4, Gaussian(4.0), mu="0.8")).verdict == "loose"
    assert judge_bound(bound_of("unsound", mu="0.23")).verdict == "unsound"


@pytest.mark.parametrize(("rdp", "verdict"), [("0.0100", "unsound"), ("0.0108", "sound"), ("0.0200", "loose")])
def test_renyi_divergences_are_bounds_too(rdp: str, verdict: str) -> None:
    """Order 2 of a sampled Gaussian: T log(1 + q² (e^(1/σ²) − 1)), in closed form."""
    claim = replace(bound_of(verdict, 1000, SampledGaussian(0.0025, 1.0), rdp=rdp), at={"order": 2.0})
    found = judge(claim)
    assert found.verdict == verdict, found
    true = 1000 * math.log1p(0.0025**2 * math.expm1(1.0))
    assert found.evidence["lower"] <= true <= found.evidence["upper"]
    assert all(control.changed for control in controls(claim))
    assert "needs `at: {order: ...}`" in judge(replace(claim, at={})).reason


def test_a_number_rounds_to_what_is_printed() -> None:
    claim = Claim(
        paper="mine",
        id="moments",
        place="here",
        kind="number",
        says="",
        verdict="holds",
        because="",
        printed={"value": Printed("1.19")},
        counts=((ROW_1, 15 * 60000 / 256),),
        quantity="epsilon",
        accountant="moments",
        at={"delta": 1e-5},
    )
    assert judge_number(claim).verdict == "holds"
    assert [control.changed for control in controls(claim)] == [True, True]
    sigma = replace(claim, quantity="noise_multiplier", accountant="exact", at={"epsilon": 0.86454, "delta": 1e-5})
    sigma = replace(sigma, printed={"value": Printed("1.30")}, counts=((ROW_1, 3516),))
    assert judge_number(sigma).verdict == "holds"
    failed = judge(replace(claim, accountant="rdp"))
    assert failed.verdict == "crashes"
    assert "takes whole numbers of releases only" in failed.reason
    assert not failed.as_expected


def test_a_computation_compares_its_routes() -> None:
    @number()
    def pi(second: float = math.pi) -> dict[str, float]:
        return {"constant": math.pi, "series": second}

    claim = replace(claim_of("holds", value="3.14"), kind="number")
    assert pi.judge(claim).verdict == "holds"
    assert pi.judge(claim_of("holds", value="3.15")).verdict == "refuted"
    assert pi.judge(replace(claim, parameters={"second": 3.2})).verdict == "undecided"
    assert [control.name for control in controls(claim, pi)] == ["value = 3.14, +10 units", "value = 3.14, -10 units"]
    assert all(control.changed for control in controls(claim, pi))


def test_a_truth_is_judged_like_a_bound() -> None:
    @bound(name="mu")
    def truth(sigma: float, second: float = 0.5) -> tuple[float, ...]:
        return 1 / sigma, 1 / sigma, second

    claim = replace(claim_of("sound", mu="0.5"), kind="bound", parameters={"sigma": 2.0})
    assert truth.judge(claim).verdict == "sound"
    unsound = replace(claim, printed={"mu": Printed("0.4")}, verdict="unsound")
    assert truth.judge(unsound).verdict == "unsound"
    assert truth.judge(replace(unsound, attained=False)).verdict == "refuted"
    assert truth.judge(unsound, change={"second": 1.0}).verdict == "undecided"
    for one in (claim, unsound):
        assert [control.changed for control in controls(one, truth)] == [True]


def test_a_delta_has_to_matter_beside_the_truth() -> None:
    """ε is 1e4 times what is printed, at any δ below 1: a judge that does not read δ is found all the same."""

    @bound()
    def read(delta: Printed) -> tuple[float, float]:
        epsilon = 1e4 - math.log10(delta.value)
        return epsilon, epsilon

    @bound()
    def deaf(delta: Printed) -> tuple[float, float]:  # noqa: ARG001
        return 1e4, 1e4

    claim = replace(claim_of("unsound", epsilon="1.0", delta="1e-5"), kind="bound")
    assert [control.changed for control in controls(claim, read)] == [True, True]
    assert [control.changed for control in controls(claim, deaf)] == [True, False]


def sums(n: int, sign: int = 1, printed_sign: int = 1, corrected: bool = False) -> tuple[Any, ...]:
    value = mpmath.mpf(n) * (n + sign * printed_sign) / 2
    right = mpmath.mpf(n) * (n + 1) / 2
    return (value, mpmath.fsum(range(1, n + 1)), *((right,) if corrected else ()))


def test_a_formula_is_held_against_its_definition() -> None:
    judged = formula(settings=({"n": 3}, {"n": 10}), control={"sign": -1})(sums)
    claim = replace(claim_of("holds"), kind="formula")
    assert judged.judge(claim).verdict == "holds"
    found = list(controls(claim, judged))
    assert [control.name for control in found] == ["control sign = -1", "ten units of the last digit"]
    assert all(control.changed for control in found)
    wrong = replace(claim, verdict="refuted", parameters={"printed_sign": -1, "corrected": True})
    refuted = judged.judge(wrong)
    assert refuted.verdict == "refuted"
    assert refuted.evidence["worst_relative_error_when_corrected"] == 0
    assert refuted.routes == {"definition": 6, "corrected formula": 6}
    doubtful = replace(judged, function=lambda n: (*sums(n, -1), mpmath.mpf(0)))
    assert doubtful.judge(claim).verdict == "undecided"


def test_an_inequality_is_searched_and_its_control_is_refuted() -> None:
    def margin(x: float, factor: float = 1.0) -> float:
        return math.exp(x) - 1 - factor * x

    good = inequality(domain={"x": (-2, 2)}, settings=[{"x": 1.0}], control={"factor": 1.01})(margin)
    claim = replace(claim_of("holds"), kind="inequality")
    found = good.judge(claim)
    assert found.verdict == "holds"
    assert found.evidence["domain"] == {"x": [-2, 2]}
    assert [control.changed for control in controls(claim, good)] == [True]
    assert replace(good, domain={"x": (2, 3)}).judge(claim).verdict == "undecided"
    false = replace(claim, parameters={"factor": 1.01})
    proven = replace(good, enclosure=lambda x, factor: (margin(x, factor) - 1e-12, margin(x, factor) + 1e-12))
    assert proven.judge(false).verdict == "refuted"
    unconfirmed = replace(good, enclosure=lambda **_: (-1.0, 1.0))
    assert unconfirmed.judge(false).verdict == "undecided"


def test_a_needle_is_found_by_climbing() -> None:
    """A counterexample that covers a thousandth of the domain."""

    @inequality(domain={"x": (0, 1), "y": (0.1, 100, "log")}, settings=[{"x": 0.9, "y": 50.0}])
    def dip(x: float, y: float) -> float:
        return (x - 0.3) ** 2 + (y - 3.0) ** 2 - 1e-3

    assert dip.judge(claim_of("refuted")).verdict == "refuted"


def claim_of(verdict: str, holds: str = "", **printed: str) -> Claim:
    numbers = {name: Printed(text) for name, text in printed.items()}
    return Claim("mine", "one", "here", "comparison", "", verdict, "", numbers, holds=holds)


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ("a < b", "holds"),
        ("b < a", "refuted"),
        ("a * 1.4 > b", "undecided"),  # 2.5 and 3.5 round to 2 and 3
        ("a + 1 == b", "holds"),
        ("a == b and a < b", "refuted"),
        ("not a == b", "holds"),
        ("2 <= a < b <= sqrt(9)", "holds"),
        ("max(a, b) / min(a, b) > 1.1", "holds"),
    ],
)
def test_expressions_over_printed_numbers(holds: str, verdict: str) -> None:
    claim = claim_of(verdict, holds, a="2", b="3")
    assert judge(replace(claim, printed={}, published=claim.printed)).verdict == verdict


def test_a_number_of_a_column_changes_the_rows_that_fail() -> None:
    column = tuple(map(Printed, ("1", "2", "9")))
    claim = replace(claim_of("refuted", "all(table < 1.5)"), published={"table": column})
    found = judge(claim)
    assert found.evidence["fails_in_rows"] == {"table < 1.5": [2, 3]}
    assert [control.changed for control in controls(claim)] == [True, True, True]
    useless = replace(claim, holds="all(table - table + 3 < 1.5)")
    assert [control.changed for control in controls(useless)] == [False, False, False]


@pytest.mark.parametrize(
    "holds", ["__import__('os')", "a.__class__ == a", "a if a else a", "a + 1", "[a][0] < a", "a / 0 < a"]
)
def test_nothing_else_is_an_expression(holds: str) -> None:
    found = judge(claim_of("holds", holds, a="2"))
    assert found.verdict == "crashes"
    assert "Error" not in found.reason


def test_a_decorated_function_is_judged_by_its_arguments() -> None:
    @shown(control={"rows": 3})
    def fewer(factor: Printed, rows: int = 1) -> Shown:
        return Shown(rows * factor.value < 5, "counted")

    @shown(control={"rows": 2})
    def deaf(factor: Printed, rows: int = 1) -> Shown:  # noqa: ARG001
        return Shown(rows == 1, "counted")

    claim = claim_of("holds", factor="2")
    assert fewer.judge(claim).verdict == "holds"
    assert fewer.judge(claim, change=fewer.controls[0]).verdict == "refuted"
    assert "test_judges.py:" in fewer.place
    for judged, changed in ((fewer, [True, True]), (deaf, [True, False])):
        found = list(controls(replace(claim, by="x:y"), judged))
        assert [control.changed for control in found] == changed


def test_what_judges_has_to_exist_and_to_be_a_judge() -> None:
    claim = Claim("mine", "one", "here", "formula", "", "holds", "", by="nowhere:thing")
    assert "there is no such file" in judge(claim).reason
    assert "expected a function decorated by number" in judge(replace(claim, by="dpbench.errors:DpbenchError")).reason
    assert "there is no such name" in judge(replace(claim, by="dpbench.errors:nothing")).reason


def test_a_printed_zero_and_what_stands_beside_it_can_change_the_verdict() -> None:
    claim = claim_of("holds", "less < more", less="0.0000", more="1.0375")
    assert [control.changed for control in controls(claim)] == [True, True]


@pytest.mark.parametrize(("lower", "unit"), [(0.8645, "1.19"), (3e-7, "1e-5"), (250.0, "300"), (0.05, "1")])
def test_one_unit_below_the_truth_is_below(lower: float, unit: str) -> None:
    found = below(lower, Printed(unit))
    assert 0 < found.value + found.unit / 2 < lower


def test_a_run_spec_that_is_not_written_yet_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "table1.yaml").write_text("kind: run\n", encoding="utf-8")
    runs = ("runs/table1.yaml", "runs/table2.yaml")
    claim = Claim("mine", "one", "here", "utility", "", "not_run", "", runs=runs, file=str(tmp_path / "mine.yaml"))
    found = judge(claim)
    assert found.reason == "judged by training: runs/table1.yaml, runs/table2.yaml; not written yet: runs/table2.yaml"
    written = judge(replace(claim, runs=runs[:1]))
    assert "not written" not in written.reason
