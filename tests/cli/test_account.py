"""`dpbench account` as a person and a program use it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpbench import account as ask
from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.events import Composition, ConfidentGNMax, SampledGaussian, from_json
from dpbench.privacy.accounting import load_accountant
from tests.cli.asking import KEYS, ROW_1, SMALL, TRAINING, call, not_a_number, shown


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

    def test_votes_of_many_queries_come_from_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        query = "--event confident_gnmax --threshold 150 --selection-noise 40 --answer-noise 20"
        ask = "--delta 1e-5 --accountant rdp --accountant rdp_data_dependent"
        file = tmp_path / "votes.npy"
        np.save(file, np.array([[240, 10], [130, 120], [10, 240]]))
        data = shown(f"account {query} --votes {file} {ask}", capsys)
        written = ConfidentGNMax(150.0, 40.0, 20.0, votes=(240, 10))
        together = Composition(((written, 2), (replace(written, votes=(130, 120)), 1)))
        for one in data["guarantees"]:
            curve = load_accountant(one["accountant"]).curve(together)
            assert one["epsilon"] == curve.epsilon(1e-5).value
        assert data["releases"].startswith("3 invocations of ConfidentGNMax")
        assert "1 invocation" not in data["statement"]  # how many queries had the same votes is private as well
        assert not re.search(r"\b(240|130|120)\b", json.dumps(data))
        assert [part["count"] for part in data["composition"]["parts"]] == [3]
        for wrong, words in (
            (np.ones((2, 2)), "expected whole numbers of shape"),
            (np.ones(3, int), "of shape .3,."),
            (np.array([[240, 130], [10, 120], [5, 5]]), "do not add up to one number of teachers"),  # transposed
            (np.zeros((3, 2), int), "do not add up to one number of teachers"),
            (np.array([[3, -1], [1, 1]]), "counts outside of 0 to"),
        ):
            np.save(file, wrong)
            assert re.search(words, " ".join(call(f"account {query} --votes {file} {ask}", capsys)[2].split()))
        for content in (b"no array", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00\x10\x00{'shape': (10     "):
            file.write_bytes(content)
            assert "cannot be read" in call(f"account {query} --votes {file} {ask}", capsys)[2]
        with file.open("wb") as archive:
            np.savez(archive, np.array([[240, 10]]))
        assert "is an archive" in call(f"account {query} --votes {file} {ask}", capsys)[2]
        np.save(file, np.array([[240, 10]]))
        said = call(f"account {query} --votes {file} --steps 3 {ask}", capsys)[2]
        assert "a row for each query; leave --steps" in " ".join(said.split())

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
