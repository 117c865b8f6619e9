"""Statistics over seeds, verdicts on printed numbers, the report's rows, and differences between two folders."""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.errors import DpbenchError
from dpbench.events import from_json
from dpbench.judging.reproduction import (
    deviation_interval,
    deviation_verdict,
    metric_verdict,
    number_verdict,
    prediction_interval,
    range_verdict,
    spread,
)
from dpbench.privacy.accounting import account
from dpbench.reporting.collect import MOST_CURVE_POINTS, collect
from dpbench.spec.keys import Printed
from dpbench.store.differences import diff
from dpbench.store.records import Damaged
from tests.store.record_samples import example, failure_json, printed, run_json

PAPER = {"accuracy_percent": printed("95.0"), "averaged_over": 10, "mu": printed("0.23")}


# Two-sided 95 % quantiles of Student's t from printed tables (three decimals), by degrees of freedom.
TABLE = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 30: 2.042}


@pytest.mark.parametrize("degrees", TABLE)
def test_intervals_against_a_printed_table(degrees: int) -> None:
    """Values −1 and 1 about 95 in turn: mean and deviation are known in closed form; the table has three decimals."""
    count = degrees + 1
    values = [95.0 + (1 if i % 2 else -1) for i in range(count)]
    mean = 95.0 if count % 2 == 0 else 95.0 - 1 / count
    square = sum((v - mean) ** 2 for v in values) / degrees
    found = spread(values)
    assert found.mean == pytest.approx(mean, abs=1e-12)
    assert found.deviation == pytest.approx(math.sqrt(square), rel=1e-12)
    assert found.half_width is not None
    # the table is rounded to 0.0005 of at least 1.96
    assert found.half_width == pytest.approx(TABLE[degrees] * math.sqrt(square / count), rel=0.0005 / 1.96)
    low, high = prediction_interval(values, runs=10, half_unit=0.05)
    expected = TABLE[degrees] * math.sqrt(square * (1 / count + 1 / 10))
    assert (high - low) / 2 - 0.05 == pytest.approx(expected, rel=0.0005 / 1.96)


def test_a_printed_range_lies_apart_as_often_as_is_said() -> None:
    """Counted over all orders of which runs are ours: 2/C(m + n, n) of the ways to choose, ties aside."""
    ends = Printed.of("1.0"), Printed.of("5.0")
    for ours in (2, 3, 5):
        values = list(range(5 + ours))
        chosen = list(itertools.combinations(values, ours))
        apart = 0
        for mine in chosen:
            theirs = [one for one in values if one not in mine]
            pair = Printed.of(f"{min(theirs)}.00"), Printed.of(f"{max(theirs)}.00")
            found = range_verdict("row", list(map(float, mine)), pair, 5)
            lies_apart = max(mine) < min(theirs) or min(mine) > max(theirs)
            apart += lies_apart
            if ours > 2:
                assert found.verdict == ("refuted" if lies_apart else "holds")
                assert found.false_alarm == pytest.approx(2 / len(chosen))
            else:
                assert found.verdict == "undecided"
        assert apart == 2
    assert range_verdict("row", [5.049, 6.0, 7.0], ends, 5).verdict == "holds"  # 5.0 may have been 5.05
    assert range_verdict("row", [5.06, 6.0, 7.0], ends, 5).verdict == "refuted"
    assert range_verdict("row", [0.94, 0.5, 0.2], ends, 5).verdict == "refuted"
    assert range_verdict("row", [], ends, 5).verdict == "not_run"
    assert "of two runs (how many is not stated)" in range_verdict("row", [7.0] * 8, ends, None).reason
    assert range_verdict("row", [9.0] * 5, ends, 5, barred="synthetic").verdict == "not_run"


def test_the_prediction_interval_covers_as_often_as_it_says() -> None:
    """4000 papers with true numbers: 95 % of the printed means (before rounding) must lie inside.

    The number of misses is binomial(4000, 0.05): mean 200, deviation 13.8. Fewer than 120 or more than 290 have a
    probability below 1e-6 in all by Chernoff's bound, exp(-4000 KL(edge / 4000, 0.05)) each, which the test computes.
    So a correct interval fails with probability at most 1e-6 (and the seed is fixed).
    """

    def divergence(a: float, b: float) -> float:
        return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))

    papers, low, high = 4000, 120, 290
    assert sum(math.exp(-papers * divergence(edge / papers, 0.05)) for edge in (low, high)) < 1e-6
    draw = random.Random(1)
    misses = 0
    for _ in range(papers):
        ours = [draw.gauss(95.0, 0.3) for _ in range(4)]
        theirs = sum(draw.gauss(95.0, 0.3) for _ in range(10)) / 10
        first, last = prediction_interval(ours, runs=10)
        misses += not first <= theirs <= last
    assert low <= misses <= high


# Upper 97.5 % points of Fisher's F from printed tables (two decimals), by degrees of freedom of both variances.
FISHER = {(4, 4): 9.60, (1, 4): 12.22, (4, 9): 4.72, (9, 4): 8.90}


@pytest.mark.parametrize(("first", "second"), FISHER)
def test_deviations_against_a_printed_table(first: int, second: int) -> None:
    """The lower point of F(a, b) is one over the upper one of F(b, a)."""
    values = [95.0 + i for i in range(second + 1)]
    ours = spread(values).deviation
    assert ours is not None
    low, high = deviation_interval(values, runs=first + 1)
    assert (high / ours) ** 2 == pytest.approx(FISHER[first, second], abs=0.005)
    if (second, first) in FISHER:
        ratio = (low / ours) ** 2 * (first + 1) / first
        assert 1 / ratio == pytest.approx(FISHER[second, first], abs=0.005)


def test_a_printed_deviation() -> None:
    """Ours is 0.2: five further runs print from 0.2·(4/5/9.605)^½ = 0.0577 to 0.2·9.605^½ = 0.6198, and half a unit."""
    values = [95.0, 95.2, 94.8, 95.2, 94.8]
    assert spread(values).deviation == pytest.approx(0.2)

    def verdict(text: str, runs: int | None = 5, seeds: int = 5) -> str:
        return deviation_verdict("row", values[:seeds], Printed.of(text), runs).verdict

    assert [verdict(text) for text in ("0.058", "0.6198", "0.057", "0.63")] == ["holds", "holds", "refuted", "refuted"]
    assert [verdict("0.05"), verdict("0.6")] == ["refuted", "holds"]  # 0.05 may stand for 0.055
    assert [verdict("0.69"), verdict("0.69", None)] == ["refuted", "holds"]  # of two runs, as far as one knows
    assert verdict("0.69", 1) == "holds"  # as a stored record may say
    assert verdict("0.2", 5, 1) == "undecided"
    assert verdict("0.2", 5, 0) == "not_run"
    assert deviation_verdict("row", values, Printed.of("0.2"), 5, barred="reduced").verdict == "not_run"
    with pytest.raises(ValueError, match="two or more"):
        deviation_interval(values, 1)


def test_the_interval_of_a_deviation_covers_as_often_as_it_says() -> None:
    """Whichever denominator the paper has: at most 5 % of 4,000 papers miss, and about 3.5 to 4.8 % do.

    The interval covers both denominators, so that one tail is below 2.5 % for each. More than 290 misses have a
    probability below 1e-6 where 5 % miss (see above), and so have fewer than 70 where 3.5 % do (140, deviation 11.6).
    """
    draw, papers = random.Random(3), 4000
    for denominator in (4, 5):
        misses = 0
        for _ in range(papers):
            ours, theirs = ([draw.gauss(95.0, 0.3) for _ in range(5)] for _ in range(2))
            printed_deviation = (spread(theirs).deviation or 0.0) * math.sqrt(4 / denominator)
            low, high = deviation_interval(ours, 5)
            misses += not low <= printed_deviation <= high
        assert 70 < misses < 290


def test_a_wrong_paper_is_refuted() -> None:
    """Power: a printed mean that is 1.5 points too high (five of our deviations) is refuted in most of 200 papers."""
    draw = random.Random(2)
    refuted = 0
    for _ in range(200):
        ours = [draw.gauss(95.0, 0.3) for _ in range(5)]
        verdict = metric_verdict("row", ours, Printed.of("96.5"), 10)
        refuted += verdict.verdict == "refuted"
    assert refuted > 180


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8), st.integers(1, 20), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_the_interval_contains_our_mean_and_shrinks_with_more_runs(values: list[float], runs: int, unit: float) -> None:
    low, high = prediction_interval(values, runs, unit)
    assert low <= spread(values).mean <= high
    tighter = prediction_interval(values, runs + 1, unit)
    assert low - 1e-9 <= tighter[0]
    assert tighter[1] <= high + 1e-9


@pytest.mark.parametrize(("values", "runs", "message"), [([95.0], 1, "two or more"), ([95.0, 96.0], 0, "1 or more")])
def test_no_interval_from_nothing(values: list[float], runs: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prediction_interval(values, runs)
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_the_widening_by_half_a_unit_decides_at_its_edge() -> None:
    """Equal seeds: the interval is the half unit alone, so 95.05 still rounds to what is printed and 95.06 does not."""
    printed_95 = Printed.of("95.0")
    assert metric_verdict("row", [95.05, 95.05], printed_95, 10).verdict == "holds"
    assert metric_verdict("row", [94.95, 94.95], printed_95, 10).verdict == "holds"
    assert metric_verdict("row", [95.06, 95.06], printed_95, 10).verdict == "refuted"
    assert metric_verdict("row", [95.06, 95.06], Printed.of("95"), 10).verdict == "holds"


def test_what_cannot_be_decided_or_compared() -> None:
    number = Printed.of("95.0")
    one = metric_verdict("row", [96.2], number, 10)
    assert (one.verdict, one.evidence["difference"]) == ("undecided", pytest.approx(1.2))
    assert "+1.20 percentage points" in one.reason
    assert one.false_alarm == 0
    barred = metric_verdict("row", [95.0, 95.1], number, 10, barred="this setting is reduced (2 epochs)")
    assert barred.verdict == "not_run"
    assert "2 epochs" in barred.reason
    assert "difference" not in barred.evidence
    assert metric_verdict("row", [], number, 10).verdict == "not_run"


def test_an_unknown_number_of_runs_is_taken_as_one() -> None:
    values = [95.0, 95.2, 95.4]
    known = metric_verdict("row", values, Printed.of("95.0"), 10)
    unknown = metric_verdict("row", values, Printed.of("95.0"), None)
    assert unknown.evidence["high"] > known.evidence["high"]
    assert "not stated" in unknown.reason
    assert known.false_alarm == 0.05


@pytest.mark.parametrize(
    ("ours", "text", "verdict"),
    [
        (0.834511, "0.83", "holds"),
        (0.835, "0.83", "holds"),  # on the edge both neighbours are roundings
        (0.835, "0.84", "holds"),
        (0.8351, "0.83", "refuted"),
        (0.8249, "0.83", "refuted"),
        (0.825, "0.83", "holds"),
        (12.5, "12", "holds"),
        (12.5, "13", "holds"),
        (12.51, "12", "refuted"),
        (2.0, "2.00", "holds"),
        (2.006, "2.00", "refuted"),
        (1049.0, "1.0e3", "holds"),  # a unit of the last printed digit is 100
        (1051.0, "1.0e3", "refuted"),
        (math.inf, "2.00", "refuted"),
        (math.nan, "2.00", "refuted"),
    ],
)
def test_rounding_to_the_printed_digits(ours: float, text: str, verdict: str) -> None:
    assert number_verdict("printed_epsilon", "row", ours, Printed.of(text)).verdict == verdict


@given(st.integers(-4, 3), st.integers(1, 9999), st.floats(-0.4999, 0.4999))
@settings(max_examples=200, deadline=None)
def test_every_value_that_rounds_to_the_print_holds(exponent: int, digits: int, shift: float) -> None:
    text = f"{digits}e{exponent}"
    unit = 10.0**exponent
    assert number_verdict("c", "s", (digits + shift) * unit, Printed.of(text)).verdict == "holds"
    beyond = (digits + math.copysign(1 - abs(shift) / 2, shift)) * unit
    assert number_verdict("c", "s", beyond, Printed.of(text)).verdict == "refuted"


def test_an_enclosure_wider_than_the_digit_decides_nothing() -> None:
    number = Printed.of("0.83")
    assert number_verdict("c", "s", 0.834, number, lower=0.830, upper=0.8349).verdict == "holds"
    assert number_verdict("c", "s", 0.834, number, lower=0.830, upper=0.8400).verdict == "undecided"
    assert number_verdict("c", "s", 0.850, number, lower=0.845, upper=0.8550).verdict == "refuted"


def test_another_way_of_rounding_is_named() -> None:
    assert "rounded up" in number_verdict("c", "s", 2.3202, Printed.of("2.33")).reason
    assert "cut off" in number_verdict("c", "s", 2.3298, Printed.of("2.32")).reason
    assert "after the last" not in number_verdict("c", "s", 2.36, Printed.of("2.32")).reason


# The report


def test_rows_are_configurations_over_seeds() -> None:
    runs = [run_json("b", "row 10", seed, accuracy=0.95 + seed / 100) for seed in (2, 0, 1)]
    runs += [run_json("b", "row 9", 0, sigma=1.1), run_json("a", "", 5, sigma=None)]
    found = collect(runs)
    assert [(section.name, [row.label for row in section.rows]) for section in found.sections] == [
        ("a", [""]),
        ("b", ["row 9", "row 10"]),
    ]
    row = found.sections[1].rows[1]
    assert row.seeds == (0, 1, 2)
    assert row.measured.mean == pytest.approx(96.0)
    assert row.measured.deviation == pytest.approx(1.0)
    # t at two degrees of freedom is 4.3027 (closed form: sqrt(2 · 0.95² / (1 − 0.95²)))
    assert row.measured.half_width == pytest.approx(math.sqrt(2 * 0.95**2 / (1 - 0.95**2) / 3))
    assert len(found.records) == len(runs)
    assert {line.run_key for line in found.records} == {run["run_key"] for run in runs}
    assert found.sections[0].rows[0].guarantees == ()


def test_guarantees_are_the_accountants_own() -> None:
    run = run_json()
    (row,) = collect([run]).sections[0].rows
    names = [line.accountant for line in row.guarantees]
    assert names[:3] == ["exact", "rdp", "gdp_clt"]
    answers = account(from_json(run["ledger"]), delta=1e-5, accountants=names)
    for line, theirs in zip(row.guarantees, answers, strict=True):
        assert line.accountant == theirs.accountant
        assert line.epsilon == (theirs.epsilon.value if theirs.epsilon else None)
        assert (line.kind, line.mu, line.refused) == (theirs.kind, theirs.mu, theirs.refused)


def test_epsilon_along_the_curve_is_that_of_the_releases_so_far() -> None:
    run = run_json(context={"accountants": ["rdp"]})
    (row,) = collect([run]).sections[0].rows
    assert len(row.curve) == 15
    for point, line in zip(run["curve"], row.curve, strict=True):
        (theirs,) = account(from_json(run["ledger"]).prefix(point["releases"]), delta=1e-5, accountants=["rdp"])
        assert theirs.epsilon is not None
        assert line.epsilon == {"rdp": theirs.epsilon.value}
    assert row.curve[-1].epsilon["rdp"] == row.epsilon("rdp")
    spent = [line.epsilon["rdp"] for line in row.curve]
    assert spent == sorted(spent)


def test_a_long_curve_is_accounted_for_at_some_points_the_last_included() -> None:
    (row,) = collect([run_json(epochs=120, context={"accountants": ["gdp_clt"]})]).sections[0].rows
    accounted = [line for line in row.curve if line.epsilon]
    assert len(row.curve) == 120
    assert len(accounted) <= MOST_CURVE_POINTS
    assert row.curve[-1].epsilon


def test_verdicts_on_a_paper() -> None:
    published = PAPER | {"epsilon": {"gdp_clt": printed("0.83"), "rdp": printed("1.19"), "moments": printed("1.19")}}
    runs = [
        run_json(seed=seed, accuracy=accuracy, context={"published": published, "source": "A paper"})
        for seed, accuracy in enumerate((0.9494, 0.9512, 0.9503))
    ]
    (row,) = collect(runs).sections[0].rows
    accuracy = row.verdict("printed_accuracy")
    assert accuracy is not None
    assert (accuracy.verdict, accuracy.source) == ("holds", "A paper")
    # Values of Table 1, row 1 of Bu et al. 2020: μ = 0.23 and ε = 0.83 by the central limit theorem.
    for check, name, expected in (
        ("printed_mu", "gdp_clt", "holds"),
        ("printed_epsilon", "gdp_clt", "holds"),
        ("printed_epsilon", "rdp", "refuted"),
    ):
        verdict = row.verdict(check, name)
        assert verdict is not None
        assert verdict.verdict == expected, verdict.reason
    moments = row.verdict("printed_epsilon", "moments")
    assert moments is not None
    if row.guarantee("moments") is None:
        assert moments.verdict == "not_run"
        assert "not in the catalog" in moments.reason


def test_an_accountant_that_only_the_paper_names_is_asked_too() -> None:
    published = {"epsilon": {"gdp_clt": printed("0.83")}}
    (row,) = collect([run_json(context={"accountants": ["rdp"], "published": published})]).sections[0].rows
    assert [(line.accountant, line.requested) for line in row.guarantees] == [("rdp", True), ("gdp_clt", False)]
    assert row.verdict("printed_epsilon", "gdp_clt").verdict == "holds"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"context": {"published": PAPER, "reduced": "2 of 15 epochs"}}, "2 of 15 epochs"),
        ({"context": {"published": PAPER}, "facts": {"dataset_real": False}}, "synthetic"),
    ],
)
def test_reduced_and_synthetic_runs_never_stand_beside_a_paper(change: dict[str, Any], reason: str) -> None:
    found = collect([run_json(seed=seed, **change) for seed in range(3)])
    assert found.counts() == {"holds": 0, "refuted": 0, "undecided": 0, "not_run": 2}
    assert all(reason in verdict.reason for verdict in found.verdicts())
    assert any(reason in notice.text for notice in found.notices)


def test_an_unknown_accountant_and_a_ledger_that_cannot_be_read_are_refusals() -> None:
    run = run_json(context={"accountants": ["rdp", "nonesuch"]})
    broken = run_json(label="broken")
    broken["ledger"] = {"parts": [{"event": "Laplace", "count": 3}]}
    first, second = collect([run, broken]).sections[0].rows
    assert "nonesuch" in str(next(line for line in first.guarantees + second.guarantees if line.refused).refused)
    assert all(
        "cannot be read" in str(line.refused)
        for row in (first, second)
        for line in row.guarantees
        if row.label == "broken"
    )


def test_a_spec_that_changed_gives_two_rows_and_only_the_present_one_is_compared() -> None:
    old = [run_json(label="row 1", seed=s, learning_rate=0.1, context={"published": PAPER}) for s in range(3)]
    new = [run_json(label="row 1", seed=s, learning_rate=0.25, context={"published": PAPER}) for s in range(3)]
    found = collect(old + new, contexts={run["run_key"]: run["context"] for run in new})
    present, past = found.sections[0].rows
    assert (present.variant, past.variant) == ("learning_rate = 0.25", "learning_rate = 0.1")
    assert present.verdict("printed_accuracy").verdict == "holds"  # type: ignore[union-attr]
    assert past.verdict("printed_accuracy").verdict == "not_run"  # type: ignore[union-attr]
    assert "the spec has changed" in str(past.barred)
    assert len(found.records) == 6


def test_contexts_of_today_replace_recorded_ones_and_a_run_may_serve_two_specs() -> None:
    run = run_json("old name", "old label")
    first = run["context"] | {"name": "one", "label": "row 1", "published": PAPER}
    second = run["context"] | {"name": "two", "label": ""}
    found = collect([run], contexts={run["run_key"]: [first, second]})
    assert [section.name for section in found.sections] == ["one", "two"]
    assert [line.run_key for line in found.records] == [run["run_key"]]
    assert len(list(found.verdicts())) == 2
    assert [s.name for s in collect([run], contexts={run["run_key"]: first}).sections] == ["one"]


def test_the_order_of_the_contexts_is_the_order_of_the_report() -> None:
    runs = [run_json("z", "b"), run_json("a", ""), run_json("z", "a")]
    found = collect(runs, contexts={run["run_key"]: run["context"] for run in runs})
    assert [(s.name, [row.label for row in s.rows]) for s in found.sections] == [("z", ["b", "a"]), ("a", [""])]


def test_failures_are_shown_and_counted_in_no_mean() -> None:
    runs = [run_json(label="row 1", seed=s, accuracy=0.9) for s in range(2)]
    failures = [failure_json(label="row 1", seed=7), failure_json("alone")]
    found = collect(runs, failures, damaged=[Damaged(None, "x bad")])  # type: ignore[arg-type]
    (row,) = next(section for section in found.sections if section.name == "quick").rows
    assert row.seeds == (0, 1)
    assert row.failed_seeds == (7,)
    assert row.measured.mean == pytest.approx(90)
    alone = next(section for section in found.sections if section.name == "alone")
    assert alone.rows == ()
    assert len(alone.failures) == 1
    assert len(found.records) == 2
    texts = " ".join(notice.text for notice in found.notices)
    assert "2 runs failed" in texts
    assert "x bad" in texts


def test_stale_and_dirty_records_are_noticed() -> None:
    runs = [run_json(seed=0, versions={"step": 0}), run_json(seed=1, environment={"dirty": True})]
    found = collect(runs)
    assert [line.stale for line in found.records] == [("step: version 0, now version 1",), ()]
    assert [row.stale_seeds for row in found.rows()] == [(0,), ()]  # another version is another configuration
    texts = [notice.text for notice in found.notices]
    assert any("1 of 2 records" in text and "stale" in text for text in texts)
    assert any("1 of 2 records" in text and "dirty" in text for text in texts)
    assert len(found.environments) == 2


def test_baselines_and_comparisons_join_specs_of_the_same_task() -> None:
    records, failures = example()
    found = collect(records, failures)
    (comparison,) = found.comparisons
    assert comparison.dataset == "digits"
    assert [name for name, _ in comparison.series] == ["noisy Adam", "noisy SGD"]
    assert [found.row(row_id).context.name for row_id in comparison.baselines] == ["non-private"]
    quick = [section for section in found.sections if section.name.startswith("noisy")]
    assert all(found.row(row_id).context.name == "non-private" for s in quick for row_id in s.baselines)
    assert all(len(section.baselines) == 1 for section in quick)
    paper = next(section for section in found.sections if section.name == "table 1")
    assert paper.baselines == ()
    # The figures use a promise where there is one, though the approximation is smaller.
    line = paper.rows[0].shown
    assert line is not None
    assert line.kind in ("exact", "certified", "upper_bound")
    assert found.expected_false_alarms() == pytest.approx(0.05 * 3)


def test_a_report_is_plain_json() -> None:
    records, failures = example()
    records[0]["curve"][0]["train_loss"] = math.inf
    data = json.loads(json.dumps(collect(records, failures).to_json(), allow_nan=False))
    assert data["schema_version"] == 1
    assert len(data["records"]) == len(records)


def test_what_is_no_record_is_refused_by_name() -> None:
    with pytest.raises(DpbenchError, match="resolved: field required"):
        collect([{"run_key": "a" * 64}])


# Differences


def test_diff_matches_by_key_then_by_name() -> None:
    same = run_json("s", "row 1", 0, accuracy=0.95)
    again = json.loads(json.dumps(same)) | {"seconds": 90.0, "environment": same["environment"] | {"threads": 8}}
    again["result"]["test_accuracy"] = 0.96
    before, after = run_json("s", "row 2", 0, learning_rate=0.1), run_json("s", "row 2", 0, learning_rate=0.2)
    only_a, only_b = run_json("s", "row 3", 0), run_json("s", "row 3", 1)
    found = diff([only_a, same, before], [only_b, after, again])
    assert [(row.matched, row.label, row.seed) for row in found] == [
        ("run_key", "row 1", 0),
        ("name", "row 2", 0),
        ("only_a", "row 3", 0),
        ("only_b", "row 3", 1),
    ]
    first, second, third, fourth = found
    assert first.change == pytest.approx(1.0)
    assert (first.seconds_a, first.seconds_b) == (160.0, 90.0)
    assert first.environment == {"threads": (2, 8)}
    assert first.configuration == {}
    assert second.configuration == {"learning_rate": (0.1, 0.2)}
    assert (third.measured_b, third.change, fourth.measured_a) == (None, None, None)
    assert json.dumps([row.to_json() for row in found], allow_nan=False)


def test_diff_of_a_folder_with_itself_is_empty_of_differences() -> None:
    runs = [run_json(seed=seed) for seed in range(3)]
    later = [run | {"environment": run["environment"] | {"time_utc": "2027-01-01T00:00:00+00:00"}} for run in runs]
    found = diff(runs, later)
    assert [row.matched for row in found] == ["run_key"] * 3
    assert all(not row.environment and not row.sources and row.same_result for row in found)


def test_diff_names_code_that_changed() -> None:
    run = run_json()
    (row,) = diff([run], [run | {"sources": {"dpbench.errors": "0" * 64, "dpbench.new": "1" * 64}}])
    assert row.sources == ("dpbench.errors", "dpbench.new")
