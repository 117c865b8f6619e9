"""Accountants against the stored enclosures, two-sided; and that a wrong accountant is found out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpbench import conformance
from dpbench.accounting import Accountant, Estimate, GuaranteeKind, No, PrivacyCurve, Yes, load_accountant
from dpbench.catalog import catalog
from dpbench.cli import cli
from dpbench.conformance import classify, hold, read_conformance, summarise, write_conformance
from dpbench.enclosures import Point, read_points
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian

TABLES = Path(__file__).parent / "references"
POINTS = read_points([TABLES])
SLOW = ("lattice",)  # seconds per curve: every point only where long tests run
KINDS = {name: load_accountant(name).kind for name in catalog("accountants")}


def test_all_tables_are_read() -> None:
    assert len(POINTS) >= 900
    assert {point.table for point in POINTS} == {path.stem for path in TABLES.glob("*.json")}
    assert all(point.lower <= point.upper for point in POINTS)


@pytest.mark.parametrize("table", sorted({point.table for point in POINTS}))
@pytest.mark.parametrize("name", [name for name in KINDS if name not in SLOW])
def test_an_accountant_at_every_stored_point(name: str, table: str) -> None:
    """Promises are kept at every point; an exact accountant is right at every point that it does not refuse."""
    found = list(hold([name], [point for point in POINTS if point.table == table]))
    assert [held for held in found if held.finding == "crashes"] == []
    allowed = ("sound", "refuses") if KINDS[name] == "exact" else ("sound", "loose", "refuses")
    if KINDS[name] != "approximation":
        assert [held for held in found if held.finding not in allowed] == []


@pytest.mark.parametrize("name", [name for name in KINDS if name not in (*SLOW, "rdp_data_dependent")])
def test_no_accountant_refuses_everything(name: str) -> None:
    assert any(held.finding != "refuses" for held in hold([name], POINTS[::20]))


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.long)])
def test_a_slow_accountant_at_some_or_all_stored_points(name: str, every: int) -> None:
    found = list(hold([name], POINTS[::every]))
    assert [held for held in found if held.finding not in ("sound", "loose", "refuses")] == []
    assert any(held.finding == "sound" for held in found)


def test_exact_answers_on_every_certified_point() -> None:
    points = [point for point in POINTS if point.table == "certified"]
    assert {held.finding for held in hold(["exact"], points)} == {"sound"}


@dataclass(frozen=True)
class _Off:
    """The exact accountant with its δ moved by a factor."""

    factor: float
    name: str = "off"
    kind: GuaranteeKind = "exact"

    def supports(self, composition: Composition) -> Yes | No:
        return load_accountant("gdp").supports(composition)

    def curve(self, composition: Composition) -> PrivacyCurve:
        return _OffCurve(load_accountant("gdp").curve(composition), self.factor)  # type: ignore[return-value]


@dataclass(frozen=True)
class _OffCurve:
    real: PrivacyCurve
    factor: float
    kind: str = "exact"
    adjacency: str = "add_or_remove"
    mu: None = None

    def delta(self, epsilon: float) -> Estimate:
        if self.factor == 0:
            raise ZeroDivisionError("planted")
        return Estimate(self.real.delta(epsilon).value * self.factor)

    def epsilon(self, delta: float) -> Estimate:
        return self.real.epsilon(delta / self.factor) if delta / self.factor < 1 else Estimate(0.0)


@pytest.mark.parametrize(
    ("factor", "finding"), [(1.0, "sound"), (1 - 3e-9, "unsound"), (1 + 3e-9, "loose"), (0.0, "refuses")]
)
def test_an_error_of_three_in_a_thousand_million_is_found(
    factor: float, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point("demo", "plain", Composition(((Gaussian(1.0), 1),)), 1.0, 0.126936737507, 0.126936737508, 1e-9)
    accountant: Accountant = _Off(factor)
    monkeypatch.setattr(conformance, "load_accountant", lambda _name: accountant)
    (held,) = hold(["off"], [point])
    assert held.finding == finding
    line = summarise([held]).lines[0]
    assert line.findings == {finding: 1}
    assert bool(line.unsound) == (finding == "unsound")


def test_approximations_are_called_what_they_are() -> None:
    point = Point("demo", "plain", Composition(()), 1.0, 0.1, 0.1, 1e-9)
    assert classify("approximation", Estimate(0.09), point, -0.02) == "unsound"
    assert classify("approximation", Estimate(0.0999), point, -0.001) == "sound"
    assert classify("upper_bound", Estimate(0.0999), point, -0.001) == "unsound"
    assert classify("upper_bound", Estimate(0.2), point, 0.2) == "loose"


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
