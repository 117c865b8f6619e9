"""`dpbench calibrate` and `dpbench certify` as a person and a program use them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpbench import account as ask
from dpbench.catalog import catalog
from dpbench.cli.answer_lines import outwards
from dpbench.events import SampledGaussian, from_json
from tests.cli.asking import KEYS, ROW_1, UNLIKE, call, shown


class TestCalibrate:
    def test_the_noise_meets_the_target_and_its_neighbour_does_not(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = "calibrate --n 60000 --batch 256 --epochs 15 --epsilon 1 --delta 1e-5"
        data = shown(line, capsys)
        [attained] = data["guarantees"]
        assert set(attained) >= KEYS
        assert attained["epsilon"] <= 1.0 < data["neighbour_attained"]["epsilon"]
        expected = "exact" if "exact" in catalog("accountants") else "rdp"
        assert attained["accountant"] == expected
        composition = from_json(data["composition"])
        assert composition.parts == ((SampledGaussian(256 / 60000, data["value"]), 3516),)
        [again] = ask(composition, delta=1e-5, accountants=expected)
        assert again.epsilon is not None
        assert again.epsilon.value == attained["epsilon"]
        _, out, _ = call(line, capsys)
        assert f"σ = {data['value']}" in out
        assert f"σ = {data['neighbour']} fails" in out

    @pytest.mark.parametrize(
        ("find", "options"),
        [
            ("steps", "--n 60000 --batch 256"),
            ("epochs", "--n 60000 --batch 256"),
            ("epochs", "--sampling-rate 0.01"),
            ("sampling_rate", "--steps 3516"),
            ("sampling_rate", "--epochs 15"),
            ("batch", "--n 60000 --epochs 15"),
            ("batch", "--n 60000 --steps 1000"),
        ],
    )
    def test_what_else_can_be_looked_for(self, find: str, options: str, capsys: pytest.CaptureFixture[str]) -> None:
        data = shown(f"calibrate --find {find} {options} --sigma 1.3 --epsilon 1 --delta 1e-5 --accountant rdp", capsys)
        assert data["find"] == find
        assert data["guarantees"][0]["epsilon"] <= 1.0 < data["neighbour_attained"]["epsilon"]
        [again] = ask(from_json(data["composition"]), delta=1e-5, accountants="rdp")
        assert again.epsilon is not None
        assert again.epsilon.value == data["guarantees"][0]["epsilon"]
        assert isinstance(data["value"], int if find in ("steps", "batch") else float)

    @pytest.mark.parametrize(
        ("find", "same", "first"),
        [
            ("noise_factor", ("sampling_rate",), "smallest factor on every noise"),
            ("repetitions", ("sampling_rate", "noise_multiplier"), "most repetitions of the whole sequence"),
            ("rate_factor", ("noise_multiplier",), "largest factor on every sampling rate"),
        ],
    )
    @pytest.mark.parametrize("accountant", [None, "rdp"])
    def test_a_file_moves_as_a_whole(
        self,
        find: str,
        same: tuple[str, ...],
        first: str,
        accountant: str | None,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "events.yaml"
        path.write_text(UNLIKE)
        line = f"calibrate {path} --epsilon 2 --delta 1e-5" + (f" --accountant {accountant}" if accountant else "")
        line += "" if find == "noise_factor" else f" --find {find}"
        data = shown(line, capsys)
        assert data["find"] == find
        [attained] = data["guarantees"]
        assert attained["accountant"] == (accountant or "exact")
        composition = from_json(data["composition"])
        [again] = ask(composition, delta=1e-5, accountants=attained["accountant"])
        assert again.epsilon is not None
        assert again.epsilon.value == attained["epsilon"] <= 2.0 < data["neighbour_attained"]["epsilon"]
        for name in same:
            assert getattr(composition.parts[0][0], name) == getattr(SampledGaussian(0.01, 2.0), name)
        times = data["value"] if find == "repetitions" else 1
        assert [count for _, count in composition.parts] == [500 * times, 2 * times]
        assert first in call(line, capsys)[1]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--find steps", "holds a sequence, which moves as a whole; use one of noise_factor, repetitions"),
            ("--sigma 3", "--noise-multiplier: "),
            ("--recalibrate moments", "--recalibrate does not go with a file"),
            ("--accountant gdp", "cannot calibrate with accountant 'gdp'"),
        ],
    )
    def test_what_no_file_has_is_one_sentence(
        self, options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "events.yaml"
        path.write_text(UNLIKE)
        status, out, err = call(f"calibrate {path} --epsilon 2 --delta 1e-5 {options}", capsys)
        assert (status, out) == (2, "")
        assert message in err
        assert "Traceback" not in err

    def test_an_approximation_promises_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = "calibrate --sampling-rate 0.01 --steps 1000 --epsilon 1 --delta 1e-5 --accountant gdp_clt"
        assert shown(line, capsys)["promise"] is False
        assert "the true ε may be larger than 1" in call(line, capsys)[1]

    def test_recalibration_gives_the_printed_noise(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Bu et al. 2020, figure 4: σ = 1.3 for 20 epochs, σ̃ = 1.06."""
        line = "calibrate --recalibrate moments --sigma 1.3 --n 60000 --batch 256 --epochs 20 --delta 1e-5"
        data = shown(line, capsys)
        assert round(data["value"], 2) == 1.06
        assert data["given"]["noise_multiplier"] == 1.3
        assert data["guarantees"][0]["accountant"] == "gdp_clt"
        promised = data["guarantees"][1]
        assert promised["kind"] != "approximation"
        assert promised["epsilon"] > data["guarantees"][0]["epsilon"]
        _, out, _ = call(line, capsys)
        assert "in place of σ = 1.3" in out
        assert "may be larger" in out


class TestCertify:
    def test_the_first_row_of_the_paper(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = shown(f"certify {ROW_1}", capsys)
        [one] = data["guarantees"]
        assert set(one) >= KEYS
        assert one["kind"] == data["certificate"]["kind"] == "certified"
        assert one["epsilon_lower"] == data["certificate"]["lower"]
        assert 0.86453 <= one["epsilon_lower"] <= one["epsilon_upper"] <= 0.86456
        assert one["relative_error"] <= 1e-9

    def test_what_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = call("certify --sampling-rate 0.01 --steps 10 --sigma 1 --epsilon 0.5", capsys)
        assert status == 0
        assert re.search(r"^δ at ε = 0.5 is in \[\d.*, \d.*\]", out)
        for word in ("relative width", "direction", "precision", "radius", "time", "proven"):
            assert word in " ".join(out.split())

    def test_a_group_is_certified_as_such(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = "--event group --group-size 3 --sampling-rate 0.01 --steps 10 --sigma 2 --delta 1e-5"
        data = shown(f"certify {line} --digits 4", capsys)
        [exact] = shown(f"account {line} --accountant exact", capsys)["guarantees"]
        assert data["guarantees"][0]["epsilon_lower"] <= exact["epsilon"] <= data["guarantees"][0]["epsilon_upper"]
        assert "every group of 3 records that are all there or all absent" in data["statement"]
        assert "differ in 3 records, all added or all removed" in data["statement"]

    def test_what_is_shown_is_rounded_outwards(self) -> None:
        assert outwards("0.12345678", "0.12345999") == ("0.1234567", "0.1234600")
        assert outwards("9.44809263668768485E-7", "9.44809263679196203E-7") == (
            "9.44809263668e-7",
            "9.44809263680e-7",
        )
        assert outwards("0.5", "0.5") == ("0.5", "0.5")
        assert outwards("0", "1E-300")[0] == "0e-301"
