"""`dpbench account`, `calibrate` and `certify` as a person and a program use them."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpbench import account as ask
from dpbench.catalog import catalog
from dpbench.cli import cli, main
from dpbench.cli.answer_lines import error_bar, figure, guarantee_table, in_order, outwards
from dpbench.errors import DpbenchError
from dpbench.events import Composition, SampledGaussian, from_json
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate, Guarantee, No
from dpbench.privacy.releases import Said, releases
from dpbench.privacy.shuffling import of_shuffled
from dpbench.privacy.statement import statement, warnings

ROOT = Path(__file__).parents[2]
TRAINING = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
ROW_1 = "--n 60000 --batch 256 --sigma 1.3 --epochs 15 --delta 1e-5"
SMALL = "--sampling-rate 0.01 --steps 100 --sigma 1 --delta 1e-5"
UNLIKE = """\
kind: events
events:
  - {event: sampled_gaussian, sampling_rate: 0.01, noise_multiplier: 2, count: 500}
  - {event: gaussian, noise_multiplier: 20, count: 2}
"""
KEYS = {"accountant", "epsilon", "delta", "kind", "relative_error", "seconds"}


def call(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the program."""
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(line))
    assert isinstance(caught.value.code, int)
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def shown(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    status, out, err = call(f"{line} --json", capsys)
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def not_a_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


class TestAccount:
    def test_every_accountant_of_the_catalog_shows_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = call(f"account {ROW_1}", capsys)
        assert status == 0
        for name in catalog("accountants"):
            assert re.search(rf"\b{name}\b", out)
        assert "≈ 0.834512" in out
        assert "approximation" in out

    def test_the_paragraph_for_reviewers(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = call(f"account {ROW_1}", capsys)
        text = " ".join(out.split())
        for said in (
            *("δ = 1e-5", "q = 256/60000 = 0.00426667", "σ = 1.3", "T = ⌈15 · 60000 / 256⌉ = ⌈3515.625⌉ = 3516"),
            *("one record added or removed", "Poisson sampling", "Not covered", "hyperparameters", "floating-point"),
            *("shuffles", "(ε = 0."),
        ):
            assert said in text

    def test_json_is_one_object_with_the_library_s_numbers(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = call(f"account {ROW_1} --json", capsys)
        data = json.loads(out, parse_constant=not_a_number)
        assert from_json(data["composition"]) == TRAINING
        assert all(set(one) >= KEYS for one in data["guarantees"])
        by_name = {one["accountant"]: one for one in data["guarantees"]}
        for one in ask(TRAINING, delta=1e-5):
            expected = one.to_json() | {"seconds": 0}
            assert by_name[one.accountant] | {"seconds": 0} == expected
        assert by_name["rdp"]["relative_error"] is None
        assert "differential privacy" in data["statement"]

    def test_steps_that_were_not_rounded(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The printed 1.19 of the paper: T = 3515.625, which nobody takes, so it is an approximation."""
        by_name = {one["accountant"]: one for one in shown(f"account {ROW_1}", capsys)["guarantees"]}
        rounded, paper = by_name["moments"], by_name["moments, T=3515.625"]
        assert paper["kind"] == "approximation"
        assert rounded["kind"] == "upper_bound"
        assert paper["epsilon"] < rounded["epsilon"]
        assert round(paper["epsilon"], 2) == 1.19
        whole = shown(f"account {SMALL}", capsys)["guarantees"]
        assert not [one for one in whole if "T=" in one["accountant"]]

    def test_delta_at_an_epsilon(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = shown(f"account {SMALL} --epsilon 0.5 --accountant rdp --accountant gdp_clt", capsys)
        composition = Composition(((SampledGaussian(0.01, 1.0), 100),))
        at_delta, at_epsilon = data["guarantees"][:2], data["guarantees"][2:]
        assert [one["accountant"] for one in data["guarantees"]] == ["rdp", "gdp_clt"] * 2
        assert all(one["delta"] == 1e-5 for one in at_delta)
        for one in at_epsilon:
            curve = load_accountant(one["accountant"]).curve(composition)
            assert one["delta"] == curve.delta(0.5).value
            assert one["epsilon"] == 0.5
        alone = shown("account --sampling-rate 0.01 --steps 100 --sigma 1 --epsilon 0.5 --accountant rdp", capsys)
        assert alone["guarantees"][0]["delta"] == at_epsilon[0]["delta"]

    def test_infinite_epsilon_is_null_with_a_reason(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = "account --sampling-rate 0.5 --steps 3 --sigma 1e-200 --delta 1e-5 --accountant rdp"
        [one] = shown(line, capsys)["guarantees"]
        assert one["epsilon"] is None
        assert one["reason"]
        assert one["refused"] is None
        _, out, _ = call(line, capsys)
        assert "∞" in out

    @pytest.mark.parametrize(
        "line",
        [
            "--event gaussian --sigma 4 --steps 20 --delta 1e-5",
            "--event laplace --sigma 20 --count 10 --delta 1e-6",
            "--event discrete_pair --first 0.75,0.25 --second 0.25,0.75 --delta 1e-6",
            "--event confident_gnmax --threshold 300 --selection-noise 200 --answer-noise 40 --delta 1e-6",
            "--event ConfidentGNMax --threshold 300 --selection-noise 200 --answer-noise 40 --votes 900,20,3"
            " --not-answered --delta 1e-6",
            "--event group --group-size 3 --sampling-rate 0.01 --steps 10 --sigma 2 --delta 1e-5",
            "--sampling-rate 256/60000 --epochs 1 --sigma 1 --delta 1e-5",
            "--n 6e4 --batch 256 --steps 1e3 --sigma 1 --delta 1e-5",
        ],
    )
    def test_other_events(self, line: str, capsys: pytest.CaptureFixture[str]) -> None:
        [one] = shown(f"account {line} --accountant rdp", capsys)["guarantees"]
        assert one["refused"] is None
        assert 0 < one["epsilon"] < math.inf

    def test_random_sensitivity_is_refused_with_the_reason(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = "account --event random_sensitivity_gaussian --projections 5 --sampling-rate 0.01 --steps 10 --sigma 1"
        status, out, err = call(f"{line} --delta 1e-5 --json --accountant rdp --accountant gdp_clt", capsys)
        by_name = {one["accountant"]: one for one in json.loads(out)["guarantees"]}
        assert "heavy tail" in by_name["rdp"]["refused"]
        assert by_name["gdp_clt"]["epsilon"] is None
        assert status == 2
        assert "none of the accountants asked" in err

    def test_groups(self, capsys: pytest.CaptureFixture[str]) -> None:
        generic = shown(f"account {SMALL} --group-size 3 --accountant rdp", capsys)
        assert generic["group_size"] == 3
        [expected] = ask(Composition(((SampledGaussian(0.01, 1.0), 100),)), delta=1e-5, accountants="rdp", group_size=3)
        assert generic["guarantees"][0]["epsilon"] == expected.epsilon.value  # type: ignore[union-attr]
        _, out, _ = call(f"account {SMALL} --group-size 3 --accountant rdp", capsys)
        assert "a group of 3 records" in " ".join(out.split())

    def test_a_file_of_unlike_releases(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "events.yaml"
        path.write_text(
            "kind: events\nevents:\n"
            "  - {event: sampled_gaussian, sampling_rate: 0.01, noise_multiplier: 1, count: 50}\n"
            "  - {event: gaussian, noise_multiplier: 20}\n"
        )
        data = shown(f"account {path} --delta 1e-5 --accountant rdp", capsys)
        assert [part["count"] for part in data["composition"]["parts"]] == [50, 1]
        status, _, err = call(f"account {path} --sigma 1 --delta 1e-5", capsys)
        assert status == 2
        assert "describes the releases already" in err

    def test_adaptive_parameters_leave_the_filters(self, capsys: pytest.CaptureFixture[str]) -> None:
        for one in shown(f"account {SMALL} --adaptive", capsys)["guarantees"]:
            assert (one["refused"] is None) == ("filter" in one["accountant"])

    @pytest.mark.parametrize("question", ["--delta 1e-5", "--epsilon 2", "--delta 1e-5 --epsilon 2 --curve"])
    @pytest.mark.parametrize("how", ["--sampling-rate 0.01 --steps 100 --sigma 1 --adaptive", "FILE"])
    def test_no_number_of_adaptive_parameters_stands_without_its_reservation(
        self, tmp_path: Path, how: str, question: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "adaptive.yaml"
        event = "{event: sampled_gaussian, sampling_rate: 0.01, noise_multiplier: 1, count: 100}"
        path.write_text(f"kind: events\nadaptive: true\nevents:\n  - {event}\n")
        how = how.replace("FILE", str(path))
        data = shown(f"account {how} {question}", capsys)
        assert "fixed before the first release" in data["reservation"]
        status, out, _ = call(f"account {how} {question}", capsys)
        assert status == 0
        blocks = out.split("accountant  ")[1:]
        assert len(blocks) == len(re.findall("--delta|--epsilon", question))
        for block in blocks:
            line = next(line for line in block.splitlines() if line.startswith("rdp_filter"))
            assert "upper bound *" in line
            assert "* The smallest budget that would have admitted" in block
        if "--curve" in question:
            assert re.search(r"\* The smallest budget[^≤]*?\n\n *ε +≤ rdp_filter \*", out)
        refused, _, err = call(f"account {how} {question} --trade-off", capsys)
        assert refused == 2
        assert "--trade-off: there is none" in err
        fixed = how.replace(" --adaptive", "")
        if fixed != how:
            assert shown(f"account {fixed} {question}", capsys)["reservation"] is None
            assert "*" not in call(f"account {fixed} {question}", capsys)[1]

    @pytest.mark.parametrize("find", ["noise_multiplier", "steps", "sampling_rate", "epochs"])
    def test_what_is_calibrated_for_adaptive_parameters_is_no_promise(
        self, find: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = {"noise_multiplier": "--sigma 1", "steps": "--steps 100", "sampling_rate": "--sampling-rate 0.01"}
        rest = " ".join(text for name, text in given.items() if name != {"epochs": "steps"}.get(find, find))
        line = f"calibrate --find {find} {rest} --epsilon 2 --delta 1e-5 --accountant rdp_filter"
        assert shown(line, capsys)["promise"] is True
        data = shown(f"{line} --adaptive", capsys)
        assert data["promise"] is False
        assert "fixed before the first release" in data["reservation"]
        assert "But later parameters depend" in call(f"{line} --adaptive", capsys)[1]

    def test_nor_is_what_is_recalibrated(self, capsys: pytest.CaptureFixture[str]) -> None:
        rest = (
            "--recalibrate rdp_filter --accountant rdp_filter --sampling-rate 0.01 --steps 100 --sigma 1 --delta 1e-5"
        )
        data = shown(f"calibrate {rest} --adaptive", capsys)
        assert data["promise"] is False
        assert "fixed before the first release" in data["reservation"]
        out = call(f"calibrate {rest} --adaptive", capsys)[1]
        assert "promised" not in out
        assert "But later parameters depend" in out

    @pytest.mark.parametrize("question", ["--delta 1e-5", "--epsilon 1", "--delta 1e-5 --group-size 2"])
    def test_no_data_dependent_number_stands_without_its_reservation(
        self, question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def once(line: str) -> str:
            return re.sub(r"\s+", " ", call(line, capsys)[1])

        votes = "--event confident_gnmax --threshold 200 --selection-noise 150 --answer-noise 40 --votes 225,25"
        line = f"account {votes} --steps 100 {question} --accountant rdp_data_dependent --accountant rdp --curve"
        data = shown(line, capsys)
        reasons = {one["accountant"]: one["reason"] for one in data["guarantees"]}
        assert "private itself" in reasons["rdp_data_dependent"]
        assert reasons["rdp"] is None
        assert "depends on private data itself" in data["statement"]
        words = "rdp_data_dependent: depends on the votes, so that it is private itself"
        assert once(f"{line} --plot {tmp_path / 'curve.svg'}").count(words) == 2
        assert words in re.sub(r"(<[^>]*>|\s)+", " ", (tmp_path / "curve.svg").read_text("utf-8"))
        find = f"calibrate {votes} --find steps --epsilon 1 --delta 1e-5 --accountant"
        assert "private itself" in shown(f"{find} rdp_data_dependent", capsys)["guarantees"][0]["reason"]
        assert words in once(f"{find} rdp_data_dependent")
        assert "private itself" not in once(f"{find} rdp")

    def test_a_curve_as_table_and_as_points(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = shown(f"account {SMALL} --curve --points 5 --accountant rdp", capsys)
        [curve] = data["curve"]
        curve_of = load_accountant("rdp").curve(Composition(((SampledGaussian(0.01, 1.0), 100),)))
        assert len(curve["points"]) == 5
        assert all(point["delta"] == curve_of.delta(point["epsilon"]).value for point in curve["points"])
        _, out, _ = call(f"account {SMALL} --curve --accountant rdp", capsys)
        assert re.search(r"^ *ε +.*≤ rdp", out, re.MULTILINE)

    @pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
    def test_a_figure(self, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / f"curve.{suffix}"
        status, out, _ = call(f"account {SMALL} --accountant rdp --accountant gdp_clt --plot {path}", capsys)
        assert status == 0
        assert f"wrote {path}" in out
        head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
        assert path.read_bytes().startswith(head)
        if suffix == "svg":
            text = re.sub("<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
            assert "gdp_clt (approximation)" in text
            assert "$" not in text  # an exponent that was not typeset

    def test_a_figure_that_cannot_be_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        status, _, err = call(f"account {SMALL} --accountant rdp --plot {tmp_path}/nowhere/curve.png", capsys)
        assert status == 2
        assert "cannot be written" in err

    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_nothing_is_cut_off(self, width: int) -> None:
        """Rich fits tables to the terminal by cutting cells; here a column is left out where there is no room."""
        environment = os.environ | {"COLUMNS": str(width), "PYTHONIOENCODING": "utf-8", "TERM": "xterm"}
        script = "import sys; sys.stdout.isatty = lambda: True; from dpbench.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", script, "account", *shlex.split(f"{ROW_1} --curve --epsilon 1")]
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        out = re.sub(r"\x1b\[[0-9;]*m", "", out)
        assert max(len(line.rstrip()) for line in out.splitlines()) <= width
        assert ("0.22729" in out) == (width >= 80)  # μ
        assert "…" not in out


class TestRefusals:
    def test_no_answer_at_all_is_status_2_with_every_reason(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, err = call(
            "account --sampling-rate 0.1 --steps 3 --sigma 1 --sampler shuffled --adjacency add_or_remove --delta 1e-5",
            capsys,
        )
        assert status == 2
        assert err.strip() == "none of the accountants asked covers these releases; their reasons are listed"
        assert "shuffled" in out

    def test_one_that_fails_stands_among_the_refusals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Fails:
            kind = "upper_bound"

            def __init__(self, name: str, error: Exception) -> None:
                self.name, self.error = name, error

            def supports(self, _composition: Composition) -> Any:
                return load_accountant("rdp").supports(TRAINING)

            def curve(self, _composition: Composition) -> Any:
                raise self.error

        planted = {
            "rdp": Fails("rdp", ZeroDivisionError("by zero")),
            "gdp_clt": Fails("gdp_clt", DpbenchError("no digits left")),
        }
        monkeypatch.setattr("dpbench.privacy.accounting.load_accountant", planted.__getitem__)
        questions: list[dict[str, Any]] = [{"delta": 1e-5}, {"epsilon": 1.0}]
        for question in questions:
            first, second = ask(TRAINING, accountants=["rdp", "gdp_clt"], **question)
            assert first.refused == "its arithmetic does not reach this corner (ZeroDivisionError: by zero)"
            assert second.refused == "no digits left"
            assert first.answer is second.answer is None
            assert first.to_json()["reason"] == first.refused
        programming_error = Fails("rdp", TypeError("a fault of the accountant"))
        monkeypatch.setattr("dpbench.privacy.accounting.load_accountant", lambda _: programming_error)
        (found,) = ask(TRAINING, delta=1e-5, accountants=["rdp"])
        assert "TypeError: a fault of the accountant" in str(found.refused)

    def test_a_plug_in_that_cannot_be_loaded_does_not_stop_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = load_accountant

        def broken(name: str) -> Any:
            if name == "basic":
                raise DpbenchError("accountant 'basic': cannot load it")
            return honest(name)

        monkeypatch.setattr("dpbench.privacy.accounting.load_accountant", broken)
        by_name = {one.accountant: one for one in ask(TRAINING, delta=1e-5)}
        assert by_name["basic"].refused == "accountant 'basic': cannot load it"
        assert by_name["rdp"].answer is not None
        with pytest.raises(DpbenchError, match="cannot load it"):
            ask(TRAINING, delta=1e-5, accountants=["basic"])

    @pytest.mark.parametrize("question", [{}, {"delta": 1e-5, "epsilon": 1.0}])
    def test_both_or_neither(self, question: dict[str, Any]) -> None:
        with pytest.raises(DpbenchError, match="give either delta, to ask for epsilon, or epsilon, to ask for delta"):
            ask(TRAINING, **question)

    @pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf, True, "1"])
    def test_a_bad_epsilon(self, epsilon: Any) -> None:
        with pytest.raises(DpbenchError, match=r"^epsilon = .*: expected a finite number, 0 or more$"):
            ask(TRAINING, epsilon=epsilon)


BAD = [
    ("account", "give --delta, to ask for ε"),
    ("account --delta 1e-5", "--n and --batch, or --sampling-rate"),
    ("account --n 60000 --batch 256 --epochs 15 --delta 1e-5", "--noise-multiplier is missing"),
    ("account --n 60000 --batch 256 --epochs 15 --delta 1e-5 --sigma 0", "expected a number above 0"),
    ("account --n 60000 --batch 256 --epochs 15 --delta 1e-5 --sigma -1", "expected a number above 0"),
    ("account --n 60000 --batch 256 --epochs 15 --delta 1e-5 --sigma nan", "noise_multiplier = nan: expected a number"),
    ("account --n 60000 --batch 256 --epochs 15 --delta 1e-5 --sigma one", "'one' is not a valid float"),
    ("account --n 60000 --batch 60001 --epochs 15 --delta 1e-5 --sigma 1", "--batch 60001: expected at most --n"),
    ("account --n 60000 --batch 0 --epochs 15 --delta 1e-5 --sigma 1", "--batch 0: expected a whole number"),
    ("account --n 1.5 --batch 1 --epochs 15 --delta 1e-5 --sigma 1", "'1.5': expected a whole number"),
    ("account --n 1e99 --batch 1 --epochs 15 --delta 1e-5 --sigma 1", "'1e99': expected a whole number"),
    ("account --sampling-rate 1.5 --steps 3 --delta 1e-5 --sigma 1", "--sampling-rate 1.5: expected a number from 0"),
    ("account --sampling-rate -0.1 --steps 3 --delta 1e-5 --sigma 1", "--sampling-rate -0.1: expected a number from"),
    ("account --sampling-rate nan --steps 3 --delta 1e-5 --sigma 1", "--sampling-rate nan: expected a number from 0"),
    ("account --sampling-rate 0.1 --steps 3.5 --delta 1e-5 --sigma 1", "'3.5': expected a whole number"),
    ("account --sampling-rate 0.1 --steps nan --delta 1e-5 --sigma 1", "'nan': expected a whole number"),
    ("account --sampling-rate 0.1 --steps -3 --delta 1e-5 --sigma 1", "steps = -3: expected a whole number"),
    ("account --sampling-rate 0.1 --steps 3 --epochs 3 --delta 1e-5 --sigma 1", "say the same twice"),
    ("account --sampling-rate 0.1 --n 100 --batch 3 --steps 3 --delta 1e-5 --sigma 1", "say the same twice"),
    ("account --sampling-rate 0.1 --steps 3 --sigma 1 --delta 0", "delta = 0.0: expected a number above 0 and below 1"),
    ("account --sampling-rate 0.1 --steps 3 --sigma 1 --delta 1", "delta = 1.0: expected a number above 0 and below 1"),
    ("account --sampling-rate 0.1 --steps 3 --sigma 1 --delta nan", "delta = nan: expected a number above 0"),
    ("account --sampling-rate 0.1 --steps 3 --sigma 1 --epsilon -1", "epsilon = -1.0: expected a finite number"),
    ("account --sampling-rate 0.1 --steps 3 --sigma 1 --epsilon inf", "epsilon = inf: expected a finite number"),
    (f"account {SMALL} --accountant rpd", "did you mean 'rdp'?"),
    (f"account {SMALL} --accountant gdp", "none of the accountants asked covers these releases"),
    (f"account {SMALL} --event gausian", "did you mean 'gaussian'?"),
    (f"account {SMALL} --event laplace", "--sampling-rate: Laplace takes every record"),
    (f"account {SMALL} --projections 3", "--projections: SampledGaussian has no projections"),
    (f"account {SMALL} --adjacency near", "adjacency = 'near': expected one of add_or_remove"),
    (f"account {SMALL} --group-size 0", "group_size = 0: expected a whole number, 1 or more"),
    (f"account {SMALL} --plot curve.gif", "expected a file that ends in .png, .svg or .pdf"),
    ("account --event discrete_pair --first 0.5,x --second 1,0 --delta 1e-5", "expected a list of numbers"),
    ("account --event discrete_pair --first 0.5,0.6 --second 1,0 --delta 1e-5", "sum to 1 within 1e-12"),
    ("account nothing.yaml --delta 1e-5", "does not exist"),
    ("calibrate --n 60000 --batch 256 --epochs 15 --epsilon 1", "--delta is missing"),
    ("calibrate --n 60000 --batch 256 --epochs 15 --delta 1e-5", "--epsilon is missing"),
    ("calibrate --n 60000 --batch 256 --epochs 15 --delta 1e-5 --epsilon 0", "expected a finite number above 0"),
    ("calibrate --n 60000 --batch 256 --epochs 15 --delta 2 --epsilon 1", "expected a number above 0 and below 1"),
    ("calibrate --n 60000 --batch 256 --epochs 15 --delta 1e-5 --epsilon 1 --sigma 1", "is what is looked for"),
    ("calibrate --n 600 --batch 6 --epochs 1 --delta 1e-5 --epsilon 1 --find steps --sigma 1", "the same as --steps"),
    ("calibrate --batch 6 --epochs 1 --delta 1e-5 --epsilon 1 --find batch --sigma 1", "is what is looked for"),
    ("calibrate --epochs 1 --delta 1e-5 --epsilon 1 --find batch --sigma 1", "--n is missing"),
    ("calibrate --event gaussian --sigma 1 --delta 1e-5 --epsilon 1 --find sampling_rate", "has no sampling_rate"),
    ("calibrate --sampling-rate 0.1 --steps 9 --delta 1e-5 --epsilon 1 --find rate_factor", "use --find sampling_rate"),
    ("calibrate nothing.yaml --delta 1e-5 --epsilon 1", "does not exist"),
    ("calibrate --event gaussian --sigma 1 --delta 1e-5 --epsilon 1 --find epochs", "is not sampled; use --find steps"),
    (
        "calibrate --n 600 --batch 6 --epochs 1 --delta 1e-5 --epsilon 1 --sampler shuffled --adjacency add_or_remove",
        "cannot calibrate with",
    ),
    (f"calibrate {SMALL} --recalibrate rdp --epsilon 1", "--epsilon does not go with --recalibrate"),
    ("calibrate --sampling-rate 0.01 --steps 9 --delta 1e-5 --recalibrate rdp", "--sigma is missing"),
    ("certify --sampling-rate 0.01 --steps 9 --sigma 1", "give either --delta, to enclose ε, or --epsilon"),
    (f"certify {SMALL} --epsilon 1", "give either --delta, to enclose ε, or --epsilon"),
    ("certify --sampling-rate 0.01 --steps 9 --sigma 0 --delta 1e-5", "expected a number above 0"),
    (f"certify {SMALL} --sampler shuffled", "shuffled"),
    (f"certify {SMALL} --group-size 3", "--group-size goes with --event group"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_input_is_one_sentence(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(line, capsys)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert len(err) < 400


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


class TestProgram:
    def test_a_real_process(self) -> None:
        command = [sys.executable, "-m", "dpbench", "account", *shlex.split(ROW_1), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        by_name = {one["accountant"]: one for one in json.loads(done.stdout)["guarantees"]}
        assert round(by_name["gdp_clt"]["epsilon"], 2) == 0.83

    def test_a_real_process_with_bad_input(self) -> None:
        command = [sys.executable, "-m", "dpbench", "account", *shlex.split(ROW_1), "--steps", "3"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1

    @pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C of another process is POSIX's signal")
    def test_ctrl_c_ends_with_130(self) -> None:
        """Interrupted while an accountant that never ends is at work."""
        script = (
            "import signal, sys, time, dpbench.privacy.accountants.rdp as rdp\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
            "def forever(*_):\n"
            "    print('working', flush=True)\n"
            "    time.sleep(60)\n"
            "rdp.RdpAccountant.curve = forever\n"
            "from dpbench.cli import main\n"
            f"main(['account', *{shlex.split(SMALL)!r}, '--accountant', 'rdp'])\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in err

    @pytest.mark.parametrize("verb", ["account", "calibrate", "certify"])
    def test_the_examples_of_help_run(
        self, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("events.yaml").write_text(UNLIKE)
        text = (cli.commands[verb].help or "").partition("Examples:")[2].replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        assert len(lines) >= 4
        for line in lines:
            assert line.startswith(f"dpbench {verb} ")
            status, out, err = call(line.removeprefix("dpbench "), capsys)
            assert (status, err) == (0, ""), line
            assert out

    def test_help_names_every_option_with_examples(self) -> None:
        for verb in ("account", "calibrate", "certify"):
            found = CliRunner().invoke(cli, [verb, "--help"])
            assert found.exit_code == 0
            assert f"dpbench {verb} --n 60000" in found.output
            assert "--noise-multiplier, --sigma" in found.output

    def test_accounting_needs_neither_torch_nor_scipy_nor_pydantic(self) -> None:
        code = (
            "import sys; from dpbench.cli import main\n"
            f"try: main(['account', *{shlex.split(SMALL)!r}, '--accountant', 'rdp'])\n"
            "except SystemExit: pass\n"
            "print([m for m in ('torch', 'scipy', 'pydantic', 'matplotlib') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_import_is_quick(self) -> None:
        """Half a second is asked for; the best of three, since other work may be under way."""
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "from dpbench import account, calibrate"], check=True)
            times.append(time.perf_counter() - start)
        assert min(times) < 0.5 or os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


class TestWords:
    def test_numbers_have_the_digits_they_deserve(self) -> None:
        assert figure(Estimate(0.8645433, 0.8645432, 0.8645434), "exact") == "= 0.8645433"
        assert figure(Estimate(2.0000001, None, 2.0000001), "upper_bound") == "≤ 2.00001"
        assert figure(Estimate(math.inf, None, math.inf), "upper_bound") == "≤ ∞"
        assert figure(Estimate(0.0, 0.0, 0.0), "exact") == "= 0"
        assert error_bar(Estimate(1.0, 1 - 2e-12, 1 + 1e-12)) == "± 2e-12"
        assert error_bar(Estimate(1.0, None, 1.0)) == ""

    def test_exact_answers_come_first_and_approximations_last(self) -> None:
        def made(name: str, kind: Any, value: float) -> Guarantee:
            return Guarantee(name, kind, "add_or_remove", 1e-5, Estimate(value), None, None, 0.1)

        refused = Guarantee("none", None, None, 1e-5, None, None, "because", 0.1)
        given = [made("d", "approximation", 0.1), refused, made("c", "upper_bound", 3.0), made("b", "upper_bound", 2.0)]
        given.append(made("a", "exact", 1.0))
        assert [one.accountant for one in in_order(given)] == ["a", "b", "c", "d", "none"]
        assert guarantee_table(given, "ε").row_count == 4

    def test_an_approximation_is_never_the_promise(self) -> None:
        found = releases(Said(sampling_rate=0.01, steps=100, noise_multiplier=1.0))
        both = ask(found.composition, delta=1e-5, accountants=["gdp_clt", "rdp"])
        assert "by the accountant rdp (upper bound)" in statement(found, both)
        assert "promises anything" in statement(found, both[:1])
        assert "has an answer" in statement(found, [])

    @pytest.mark.parametrize("question", ["--delta 1e-5", "--epsilon 2"])
    def test_of_shuffled_batches_it_says_what_calling_them_poisson_would_hide(
        self, question: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The three numbers of Python, the neighbours zero-out; and for Poisson sampling nothing of it."""
        training = f"account --n 600 --batch 60 --epochs 2 --sigma 1 {question} --json"
        status, out, _ = call(f"{training} --sampler shuffled --accountant shuffled", capsys)
        assert status == 0
        text = json.loads(out)["statement"]
        composition = Composition(((SampledGaussian(0.1, 1.0, "zero_out", "shuffled"), 20),))
        asked = {question.split()[0].strip("-"): float(question.split()[1])}
        found = of_shuffled(composition, **asked)
        assert found is not None
        assert found.refuted
        assert found.sentence() in text
        assert "replaced by one without any effect" in text
        poisson = Composition(((SampledGaussian(0.1, 1.0, "zero_out"), 20),))
        [truth] = ask(poisson, accountants=["exact"], **asked)
        assert found.poisson == truth.answer
        assert truth.answer is not None
        assert found.lower > truth.answer.safe
        _, out, _ = call(f"{training} --accountant exact", capsys)
        assert "shuffled. " not in json.loads(out)["statement"]
        assert of_shuffled(poisson, **asked) is None

    def test_of_shuffled_batches_fewer_epochs_than_said_are_a_warning(self, capsys: pytest.CaptureFixture[str]) -> None:
        """100 records in batches of 60: ten passes of a loader are 20 batches, and 10·100/60 are 17, of nine epochs."""
        ask_ = "account --n 100 --batch 60 --sigma 2 --delta 1e-5 --sampler shuffled --accountant shuffled --json"
        warned = {}
        for said in ("--epochs 10", "--steps 20", "--epochs 4"):
            status, out, _ = call(f"{ask_} {said}", capsys)
            assert status == 0
            data = json.loads(out)
            warned[said] = data["warnings"]
            assert all(text in data["statement"] for text in data["warnings"])
        assert warned == {
            "--epochs 10": ["17 steps begin 9 shuffled epochs of 2 batches, not 10; for 10 whole ones give --steps 20"],
            "--steps 20": [],
            "--epochs 4": [],
        }
        assert not warnings(releases(Said(examples=100, batch=60, epochs=10, noise_multiplier=2.0)), [])
        made = "calibrate --n 100 --batch 60 --epochs 10 --delta 1e-5 --epsilon 5 --sampler shuffled --json"
        status, out, _ = call(made, capsys)
        assert status == 0
        assert json.loads(out)["warnings"] == warned["--epochs 10"]

    def test_of_shuffled_batches_no_pair_is_claimed(self) -> None:
        said = Said(sampling_rate=0.01, steps=5, noise_multiplier=1.0, parameters={"sampler": "shuffled"})
        assert "pairs of distributions" not in statement(releases(said), [])

    def test_what_is_special_is_said(self) -> None:
        jl = Said(event="random_sensitivity_gaussian", sampling_rate=0.01, steps=5, noise_multiplier=1.0)
        found = releases(Said(**{**vars(jl), "parameters": {"projections": 4}, "adaptive": True}))
        text = statement(found, [])
        assert "need not attain them" in text
        assert "depend on earlier outputs" in text
        query = {"threshold": 300.0, "selection_noise": 200.0, "answer_noise": 40.0, "votes": (140, 20)}
        text = statement(releases(Said(event="confident_gnmax", parameters=query)), [])
        assert "depends on private data" in text
        assert "140" not in text  # votes are private, and what is stated is published


PAGE = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line}
)


class TestPage:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_its_commands_run(
        self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        [events] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
        Path("events.yaml").write_text(events)
        program, line = command.split(" ", 1)
        assert program == "dpbench"
        status, out, err = call(line, capsys)
        assert (status, err) == (0, "")
        assert out

    @pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    def test_its_python_runs(self, code: str, capsys: pytest.CaptureFixture[str]) -> None:
        exec(compile(code, "accounting.md", "exec"), {})
        assert capsys.readouterr().out

    def test_it_tells_of_every_accountant(self) -> None:
        for name in catalog("accountants"):
            assert f"`{name}`" in PAGE


def test_refusals_are_refusals() -> None:
    assert isinstance(load_accountant("rdp").supports(Composition((), adaptive=True)), No)
