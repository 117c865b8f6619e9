"""The comparison with other libraries: which points, what a failing peer looks like, and what the summary says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from tests import compare_peers
from tests.compare_peers import TABLE, Answer, Point, ask, compare, main, ratio, read_points, spread, summary

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="answers are given a memory limit as Linux has it")
POINT = Point("ordinary", ((0.01, 1.0, 100),), 1.0, 1e-5)
OURS = Answer("exact", 0.0, 1.0, 0.002)


def test_the_points_are_spread_over_the_regimes() -> None:
    known = read_points(json.loads(TABLE.read_text(encoding="utf-8")))
    chosen = spread(known, 60)
    assert len(chosen) == len(set(chosen)) == 60
    regimes = {point.regime for point in known}
    assert {point.regime for point in chosen} == regimes
    assert all(point.epsilon > 0 for point in chosen)


def test_exact_answers_in_a_process_of_its_own_and_is_right() -> None:
    point = next(point for point in read_points(json.loads(TABLE.read_text(encoding="utf-8"))) if point.delta > 1e-6)
    answer = ask("exact", 0.0, point, 120.0, 6.0)
    assert answer.failure is None
    assert answer.error(point) < 1e-9
    assert 0 < answer.seconds < 10


def test_a_peer_without_time_or_memory_is_a_failure_and_no_slow_answer() -> None:
    late = ask("exact", 0.0, POINT, 0.01, 6.0)
    assert late.failure == "more than 0.01 s"
    assert late.error(POINT) == float("inf")
    assert ratio(POINT, [OURS, replace(late, library="opacus")]) is None
    starved = ask("exact", 0.0, POINT, 60.0, 0.02)
    assert starved.failure is not None


def test_settings_are_asked_from_coarse_to_fine_until_one_is_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(library: str, setting: float, *_: object) -> Answer:
        asked.append((library, setting))
        return Answer(library, setting, 1.0 + setting / 10, 1.0 / (setting + 0.1))

    monkeypatch.setattr(compare_peers, "ask", answer)
    found = compare(POINT, ["exact", "dp_accounting", "opacus"], 1.0, 1.0)
    assert asked == [("exact", 0.0), ("dp_accounting", 1e-3), ("opacus", 0.1), ("opacus", 0.01), ("opacus", 0.001)]
    assert ratio(POINT, found) == pytest.approx((1 / 0.101) / (1 / 0.1))  # of the two good peers the faster one


def test_the_fastest_good_peer_counts_and_failures_are_counted_apart() -> None:
    good, better = Answer("opacus", 0.01, 1.00001, 0.5), Answer("prv_accountant", 0.01, 1.00001, 0.2)
    wrong, failed = Answer("dp_accounting", 1e-3, 1.1, 0.01), Answer("dp_accounting", 1e-4, None, 0.0, "more than 6 GB")
    assert ratio(POINT, [OURS, wrong, failed, good, better]) == pytest.approx(100.0)
    said = summary([(POINT, [OURS, wrong, failed, good, better]), (POINT, [OURS, wrong, failed])])
    assert "points where no peer reaches 1e-4: 1" in said
    assert "dp_accounting: reaches 1e-4 at 0 of 2 points; 2 without an answer" in said
    assert "/ exact: 100.0" in said


def test_who_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(compare_peers, "compare", lambda _, libraries, *__: [OURS] if libraries == ["exact"] else [])
    assert main(["--points", "2"]) == 0
    printed = capsys.readouterr().out
    for peer in compare_peers.PEERS:
        assert f"{peer} is not installed here" in printed
    assert "2 points; exact: median 2.0 ms" in printed


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--points", "0"]) == 2
    assert "larger than 0" in capsys.readouterr().err
