"""Claims that one row gives more than another: pairs, Welch's interval, the verdict over all or most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.comparisons import Pair, difference, judge_pairs, pairs_of
from dpbench.judging.claims.reading import read_claims

ABOVE, BELOW, OPEN = ([10.0, 10.1], [1.0, 1.1]), ([1.0, 1.1], [10.0, 10.1]), ([1.0, 9.0], [2.0, 8.5])


def pairs(*values: tuple[list[float], list[float]], lacking: int = 0) -> list[Pair]:
    found = [Pair(f"pair {i}", *each) for i, each in enumerate(values)]
    return found + [Pair(f"lacking {i}", [], [], lacks="no record") for i in range(lacking)]


@pytest.mark.parametrize("sizes", [(2, 2), (10, 3), (2, 30)])
def test_the_interval_is_welch_s(sizes: tuple[int, int]) -> None:
    random = np.random.default_rng(sizes[0])
    one, other = (random.normal(i, 1 + 3 * i, size).tolist() for i, size in enumerate(sizes))
    gap, low, high = difference(one, other, 0.99)
    theirs = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.99)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    assert gap == pytest.approx(np.mean(one) - np.mean(other), rel=1e-12)


def test_an_interval_is_wider_the_more_pairs_there_are() -> None:
    one, other = [3.0, 4.0, 5.0], [0.9, 1.0, 1.1]
    assert judge_pairs("", pairs((one, other))).verdict == "holds"  # t = 5.1 with two degrees of freedom
    assert judge_pairs("", pairs(*[(one, other)] * 20)).verdict == "undecided"


@pytest.mark.parametrize(
    ("given", "lacking", "all_of_them", "most"),
    [
        ([ABOVE, ABOVE], 0, "holds", "holds"),
        ([ABOVE, ABOVE], 1, "undecided", "holds"),
        ([ABOVE, ABOVE, BELOW], 0, "refuted", "holds"),
        ([ABOVE, BELOW], 0, "refuted", "undecided"),
        ([ABOVE, BELOW, BELOW], 0, "refuted", "refuted"),
        ([BELOW], 2, "refuted", "undecided"),
        ([OPEN, ABOVE], 0, "undecided", "undecided"),
        ([], 2, "not_run", "not_run"),
        ([], 0, "not_run", "not_run"),
    ],
)
def test_all_pairs_or_most(
    given: Sequence[tuple[list[float], list[float]]], lacking: int, all_of_them: str, most: str
) -> None:
    assert judge_pairs("", pairs(*given, lacking=lacking)).verdict == all_of_them
    assert judge_pairs("", pairs(*given, lacking=lacking), most=True).verdict == most


@pytest.mark.parametrize(("by", "verdict"), [("9.0", "holds"), ("9", "holds"), ("10", "refuted"), ("-9.0", "refuted")])
def test_a_printed_difference(by: str, verdict: str) -> None:
    found = judge_pairs("", [Pair("pair 0", [10.0, 10.001], [1.0, 1.001], Printed(by))])
    assert found.verdict == verdict
    assert "2 and 2 seeds" in found.evidence["pair 0"]


def test_stars_stand_for_the_same_text() -> None:
    labels = [f"{data} {method}, epsilon={epsilon}" for data in "AB" for method in ("x", "y") for epsilon in (1, 3)]
    assert pairs_of(labels, "* x, epsilon=*", "* y, epsilon=*") == [
        (f"{data} x, epsilon={epsilon}", f"{data} y, epsilon={epsilon}") for data in "AB" for epsilon in (1, 3)
    ]
    assert len(pairs_of(labels, "*, epsilon=1", "*, epsilon=3")) == 4
    assert pairs_of(labels, "A.x, epsilon=1", "A y, epsilon=1") == []  # a point is a point


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("compares: [{higher: a, lower: b}]", "needs `runs:`"),
        ("runs: [a.yaml]\n    rows: a\n    compares: [{higher: a, lower: b}]", "no `rows:`"),
        ("runs: [a.yaml]\n    compares: [{higher: a}]", "needs `higher:` and `lower:`"),
        ("runs: [a.yaml]\n    compares: [{higher: '* a', lower: b}]", "as many"),
        ("runs: [a.yaml]\n    compares: [{higher: a, lower: b, by: some}]", "printed number"),
        ("runs: [a.yaml]\n    compares: [{higher: a, below: b}]", "a list such as"),
        ("runs: [a.yaml]\n    compares: []", "a list such as"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "mine.yaml"
    claim = f"  - id: better\n    place: here\n    kind: utility\n    verdict: not_run\n    {lines}\n"
    file.write_text(f"kind: claims\npaper: mine\nclaims:\n{claim}", encoding="utf-8")
    problems = read_claims([file]).problems
    assert any(words in problem.message for problem in problems)
