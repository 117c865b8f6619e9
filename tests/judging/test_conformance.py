"""Accountants against the stored enclosures, two-sided; and that a wrong accountant is found out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpbench import conformance
from dpbench.catalog import catalog
from dpbench.cli import cli
from dpbench.conformance import Answers, classify, hold, read_conformance, summarise, write_conformance
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian
from dpbench.judging.enclosures import TABLES, Point, read_points
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    No,
    PrivacyCurve,
    Yes,
)

POINTS = read_points([TABLES])
SLOW = ("lattice",)  # seconds per curve: every point only in CI's stage of conformance
KINDS = {name: load_accountant(name).kind for name in catalog("accountants")}


def is_too_deep(point: Point) -> bool:
    """Where the interval of `exact` may be wider than what is compared here."""
    return point.regime == "tiny_delta" and point.upper < 1e-19


def test_all_tables_are_read() -> None:
    assert len(POINTS) >= 900
    assert {point.table for point in POINTS} == {path.stem for path in TABLES.glob("*.json")}
    assert all(point.lower <= point.upper for point in POINTS)


@pytest.mark.parametrize("table", sorted({point.table for point in POINTS}))
@pytest.mark.parametrize("name", [name for name in KINDS if name not in SLOW])
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_an_accountant_at_stored_points(name: str, table: str, every: int) -> None:
    """Promises are kept at every point; an exact accountant is right at every point that it does not refuse.

    But for those of one composition, of which the test below says how many they may be.
    """
    found = list(hold([name], [point for point in POINTS if point.table == table][::every]))
    assert [one for one in found if one.verdict == "crashes"] == []
    allowed = ("sound", "refuses") if KINDS[name] == "exact" else ("sound", "loose", "refuses")
    if KINDS[name] != "approximation":
        beyond = [held for held in found if held.verdict not in allowed]
        assert [held for held in beyond if held.verdict != "loose" or not is_too_deep(held.point)] == []


# Of shuffled batches no δ is known, only two bounds: tests/privacy/accountants/test_shuffled.py holds them.
@pytest.mark.parametrize("name", [name for name in KINDS if name not in (*SLOW, "rdp_data_dependent", "shuffled")])
def test_no_accountant_refuses_everything(name: str) -> None:
    assert any(one.verdict != "refuses" for one in hold([name], POINTS[::20]))


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_accountant_at_some_stored_points(name: str) -> None:
    """CI holds it against all of them by `dpbench conform`, a seventh a day."""
    found = list(hold([name], POINTS[::111]))
    assert [held for held in found if held.verdict not in ("sound", "loose", "refuses")] == []
    assert any(held.verdict == "sound" for held in found)


def test_exact_answers_on_every_certified_point() -> None:
    """Except three points of one composition, at δ = 1e-20 and less between the bulk and rare large losses.

    There its interval is wider than what is compared here, or it refuses ε.
    """
    points = [point for point in POINTS if point.table == "certified"]
    found = list(hold(["exact"], points))
    beyond = [one for one in found if one.verdict != "sound"]
    assert len(beyond) <= 3
    assert all(is_too_deep(held.point) for held in beyond)
    assert {held.verdict for held in beyond} <= {"refuses", "loose"}


TRUTH = load_accountant("gdp").curve(Composition(((Gaussian(1.0), 1),)))


@dataclass(frozen=True)
class _Planted:
    """An accountant whose answers are those of `gdp`, changed by two functions of (what was asked, the truth)."""

    kind: GuaranteeKind
    of_delta: Callable[[float, float], float] = lambda _, delta: delta
    of_epsilon: Callable[[float, float], float] = lambda _, epsilon: epsilon
    name: str = "planted"

    def supports(self, composition: Composition) -> Yes | No:
        return load_accountant("gdp").supports(composition)

    def curve(self, composition: Composition) -> PrivacyCurve:
        return _PlantedCurve(load_accountant("gdp").curve(composition), self)  # type: ignore[return-value]


@dataclass(frozen=True)
class _PlantedCurve:
    real: PrivacyCurve
    planted: _Planted
    adjacency: str = "add_or_remove"
    mu: None = None

    @property
    def kind(self) -> GuaranteeKind:
        return self.planted.kind

    def delta(self, epsilon: float) -> Estimate:
        return Estimate(self.planted.of_delta(epsilon, self.real.delta(epsilon).value))

    def epsilon(self, delta: float) -> Estimate:
        return Estimate(self.planted.of_epsilon(delta, self.real.epsilon(delta).value))


def _points(*epsilons: float) -> list[Point]:
    """Narrow enclosures of one Gaussian release with σ = 1."""
    found = []
    for epsilon in epsilons:
        delta = TRUTH.delta(epsilon)
        assert delta.lower is not None
        assert delta.upper is not None
        lower, upper = delta.lower * (1 - 1e-14), delta.upper * (1 + 1e-14)
        found.append(Point("demo", "plain", Composition(((Gaussian(1.0), 1),)), epsilon, lower, upper, 1e-9))
    return found


def _verdicts(planted: Any, monkeypatch: pytest.MonkeyPatch, *epsilons: float) -> list[str]:
    monkeypatch.setattr(conformance, "load_accountant", lambda _name: planted)
    judged = list(hold(["planted"], _points(*(epsilons or (0.5, 1.0, 2.0, 4.0)))))
    line = summarise(judged).lines[0]
    found = [one.verdict for one in judged]
    assert line.findings == {verdict: found.count(verdict) for verdict in conformance.VERDICTS if verdict in found}
    assert bool(line.unsound) == ("unsound" in found)
    assert all(one.reason for one in judged if one.verdict not in ("sound", "loose"))
    return found


PROMISED: tuple[GuaranteeKind, ...] = ("exact", "certified", "upper_bound")
ALL_KINDS: tuple[GuaranteeKind, ...] = (*PROMISED, "approximation")


class TestPlanted:
    """Each direction of each question, wrong alone, gets the right verdict, whatever kind the accountant states."""

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_the_truth_is_sound(self, kind: GuaranteeKind, monkeypatch: pytest.MonkeyPatch) -> None:
        assert _verdicts(_Planted(kind), monkeypatch, 0.0, 1e-9, 1e-3, 0.5, 1.0, 4.0, 20.0, 38.0) == ["sound"] * 8

    @pytest.mark.parametrize("kind", ALL_KINDS)
    @pytest.mark.parametrize("factor", [0.5, 0.98])
    def test_epsilon_too_low_where_delta_is_right(
        self, kind: GuaranteeKind, factor: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        planted = _Planted(kind, of_epsilon=lambda _, epsilon: factor * epsilon)
        assert _verdicts(planted, monkeypatch) == ["unsound"] * 4

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_delta_too_low_where_epsilon_is_right(self, kind: GuaranteeKind, monkeypatch: pytest.MonkeyPatch) -> None:
        """An approximation is judged by its ε; its δ contradicts it."""
        expected = "inconsistent" if kind == "approximation" else "unsound"
        planted = _Planted(kind, of_delta=lambda _, delta: delta / 2)
        assert _verdicts(planted, monkeypatch, 0.5, 4.0, 8.0, 20.0) == [expected] * 4  # δ down to 2e-91

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_what_is_too_high_is_loose_by_that_much(self, kind: GuaranteeKind, monkeypatch: pytest.MonkeyPatch) -> None:
        def above(_: float, epsilon: float) -> float:
            return 1.5 * epsilon

        inverse = _Planted(kind, lambda epsilon, _: TRUTH.delta(epsilon / 1.5).value, above)
        only_epsilon = _Planted("upper_bound" if kind == "approximation" else kind, of_epsilon=above)
        for planted in (inverse, only_epsilon):
            assert _verdicts(planted, monkeypatch) == ["loose"] * 4
            assert all(one.excess == pytest.approx(0.5, abs=1e-6) for one in hold(["planted"], _points(0.5, 1.0, 2.0)))
        exact = _Planted("exact", of_epsilon=lambda _, epsilon: epsilon * (1 + 1e-7))
        assert _verdicts(exact, monkeypatch) == ["loose"] * 4

    @pytest.mark.parametrize("kind", ALL_KINDS)
    @pytest.mark.parametrize("where", ["delta", "epsilon", "both"])
    @pytest.mark.parametrize("value", [math.nan, -1.0])
    def test_what_is_no_answer_is_a_crash(
        self, kind: GuaranteeKind, where: str, value: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = {f"of_{name}": lambda _, __: value for name in ("delta", "epsilon") if where in (name, "both")}
        assert _verdicts(_Planted(kind, **wrong), monkeypatch) == ["crashes"] * 4
        assert _verdicts(_Planted(kind, of_delta=lambda _, __: 1.5), monkeypatch) == ["crashes"] * 4

    def test_a_nan_among_right_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        planted = _Planted("exact", of_epsilon=lambda delta, epsilon: math.nan if delta < 1e-2 else epsilon)
        assert _verdicts(planted, monkeypatch, 0.5, 1.0, 4.0) == ["sound", "sound", "crashes"]

    @pytest.mark.parametrize("kind", PROMISED)
    def test_delta_that_rises(self, kind: GuaranteeKind, monkeypatch: pytest.MonkeyPatch) -> None:
        """δ is never too low, and ε is right: but beyond ε = 1.5 δ is larger than before."""
        planted = _Planted(kind, of_delta=lambda epsilon, delta: 0.9 if epsilon > 1.5 else delta)
        assert _verdicts(planted, monkeypatch, 0.5, 1.0, 2.0)[2] == "non_monotone"

    @pytest.mark.parametrize("kind", PROMISED)
    def test_epsilon_that_rises(self, kind: GuaranteeKind, monkeypatch: pytest.MonkeyPatch) -> None:
        """ε is never too low, and δ is right: but at the larger δ it is larger."""
        planted = _Planted(kind, of_epsilon=lambda delta, epsilon: 9.0 if delta > 0.1 else epsilon)
        assert _verdicts(planted, monkeypatch, 4.0, 2.0, 1.0)[2] == "non_monotone"

    @pytest.mark.parametrize("kind", [*PROMISED, "approximation"])
    def test_a_pair_that_contradicts_itself(self, kind: GuaranteeKind, monkeypatch: pytest.MonkeyPatch) -> None:
        """No answer is too low, but δ(ε(δ)) is twice δ."""
        planted = _Planted(kind, of_delta=lambda _, delta: 2 * delta)
        assert _verdicts(planted, monkeypatch, 1.0, 2.0, 4.0) == ["inconsistent"] * 3
        slightly = _Planted(kind, of_delta=lambda _, delta: delta * (1 + (1e-2 if kind == "upper_bound" else 2e-2)))
        assert _verdicts(slightly, monkeypatch, 1.0, 2.0, 4.0) == ["inconsistent"] * 3

    def test_stated_errors_count_for_the_accountant(self) -> None:
        """δ at the upper end of ε, at its lower end, is not above δ: no contradiction."""
        point = _points(1.0)[0]
        exact = TRUTH.epsilon(0.12)
        found = Answers(TRUTH.delta(1.0), back=(0.12, Estimate(0.121, 0.1199, 0.122)))
        assert classify("exact", found, point) == ("sound", "")
        stated = Answers(TRUTH.delta(1.0), back=(0.12, Estimate(0.121, 0.1201, 0.122)))
        assert classify("exact", stated, point)[0] == "inconsistent"
        assert exact.upper is not None

    def test_a_value_below_the_truth_whose_interval_reaches_it_is_loose(self) -> None:
        """Guarantees use the interval's upper end; if that is too low as well, the answer is unsound."""
        point, low = _points(1.0)[0], TRUTH.delta(1.0).value * (1 - 1e-6)
        for upper, verdict in ((low * (1 + 2e-6), "loose"), (low * (1 + 0.5e-6), "unsound")):
            found = Answers(Estimate(low, low * (1 - 2e-6), upper))
            assert classify("exact", found, point)[0] == verdict
            assert classify("upper_bound", found, point)[0] == "unsound"
        below = (point.lower, Estimate(1 - 1e-6, 1 - 2e-6, 1 + 1e-6))
        assert classify("exact", Answers(TRUTH.delta(1.0), below=below), point)[0] == "loose"

    @pytest.mark.parametrize(
        ("error", "verdict"), [(ZeroDivisionError("planted"), "refuses"), (KeyError("planted"), "crashes")]
    )
    def test_errors(self, error: Exception, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(_: float, __: float) -> float:
            raise error

        for wrong in ({"of_delta": fails}, {"of_epsilon": fails}):
            assert _verdicts(_Planted("exact", **wrong), monkeypatch) == [verdict] * 4

    @pytest.mark.parametrize("kind", ["exact", "upper_bound"])
    @pytest.mark.parametrize(("factor", "verdict"), [(1.0, "sound"), (1 - 3e-9, "unsound"), (1 + 3e-9, "loose")])
    def test_an_error_of_three_in_a_thousand_million_is_found(
        self, kind: GuaranteeKind, factor: float, verdict: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """δ changed by a factor, and ε with it; a bound that is loose by so little is sound."""

        def back(delta: float, _: float) -> float:
            return TRUTH.epsilon(delta / factor).value if delta < factor else 0.0

        planted = _Planted(kind, lambda _, delta: delta * factor, back)
        expected = "sound" if kind == "upper_bound" and factor > 1 else verdict
        assert _verdicts(planted, monkeypatch, 1.0) == [expected]

    def test_wide_enclosures_are_judged_by_their_own_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between the ends of [δ(2), δ(0.5)] the truth is open: at ε = 1 an ε from 0.5 to 2 may be true, not 0.4."""
        lower, upper = TRUTH.delta(2.0).value, TRUTH.delta(0.5).value
        point = Point("demo", "wide", Composition(((Gaussian(1.0), 1),)), 1.0, lower, upper, 0.0)
        monkeypatch.setattr(conformance, "load_accountant", lambda _name: planted)
        for factor, verdict in ((1.0, "sound"), (0.6, "sound"), (0.45, "unsound"), (1.9, "sound"), (2.1, "loose")):
            planted = _Planted(
                "exact",
                lambda epsilon, _, factor=factor: TRUTH.delta(epsilon / factor).value,
                lambda _, epsilon, factor=factor: epsilon * factor,
            )
            (one,) = hold(["planted"], [point])
            assert one.verdict == verdict, factor


def test_approximations_are_called_what_they_are() -> None:
    point = Point("demo", "plain", Composition(()), 1.0, 0.1, 0.1, 1e-9)

    def answers(epsilon: float) -> Answers:
        return Answers(Estimate(0.1), (0.1, Estimate(epsilon)), (0.1, Estimate(epsilon)))

    for epsilon, approximation, bound in ((0.98, "unsound", "unsound"), (0.999, "sound", "unsound")):
        assert classify("approximation", answers(epsilon), point)[0] == approximation
        assert classify("upper_bound", answers(epsilon), point)[0] == bound
    assert (
        classify("upper_bound", answers(1.2), point)[0] == classify("approximation", answers(1.2), point)[0] == "loose"
    )
    for delta, verdict in ((0.09, "unsound"), (0.0999, "sound"), (0.2, "loose")):  # where ε could not be asked for
        assert classify("approximation", Answers(Estimate(delta)), point)[0] == verdict


def test_the_record_is_written_and_read_again(tmp_path: Path) -> None:
    found = summarise(hold(["gdp_clt", "rdp"], POINTS[:30]), {"time_utc": "2026-01-01"})
    write_conformance(tmp_path, found)
    assert read_conformance(tmp_path) == found
    assert read_conformance(tmp_path / "nothing") is None
    again = summarise(hold(["rdp"], POINTS[:10]), {"time_utc": "2026-01-02"}).beside(found)
    assert {line.accountant: line.made for line in again.lines} == {"gdp_clt": "2026-01-01", "rdp": "2026-01-02"}
    assert found.beside(None) == found


def test_the_verb_ends_with_one_for_a_broken_promise(tmp_path: Path) -> None:
    arguments = ["conform", str(TABLES / "gaussian.json"), "--out", str(tmp_path)]
    for name, status in (("gdp", 0), ("gdp_clt", 0)):
        result = CliRunner().invoke(cli, [*arguments, "--accountant", name], standalone_mode=False)
        assert (result.exception, result.return_value) == (None, status)
    off = json.loads((TABLES / "gaussian.json").read_text(encoding="utf-8"))
    for point in off["points"]:  # a table that says more than the truth: every promise is broken
        point["both"] = {"lower": "0.999", "upper": "1"}
    (tmp_path / "off.json").write_text(json.dumps(off), encoding="utf-8")
    arguments[1] = str(tmp_path / "off.json")
    result = CliRunner().invoke(cli, [*arguments, "--accountant", "gdp"], standalone_mode=False)
    assert result.return_value == 1
    with pytest.raises(DpbenchError, match="there is no such file or folder"):
        read_points([tmp_path / "none"])
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DpbenchError, match="expected a table of type reference_table"):
        read_points([tmp_path / "bad.json"])
