"""What `dpbench account`, `calibrate` and `certify` have in common: bad input, help, words, and their page."""

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
from dpbench.cli import cli
from dpbench.cli.answer_lines import error_bar, figure, guarantee_table, in_order
from dpbench.events import Composition, SampledGaussian
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate, Guarantee, No
from dpbench.privacy.releases import Said, releases
from dpbench.privacy.shuffling import of_shuffled
from dpbench.privacy.statement import statement, warnings
from tests.cli.asking import ROOT, ROW_1, SMALL, UNLIKE, call

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
