"""Files that are no files, texts that paint, endless numbers, streams that are closed: one sentence, and a status."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import dpbench
from dpbench.catalog import closest
from dpbench.cli import cli, main
from dpbench.errors import DpbenchError, visible
from dpbench.plan.planning import Choices
from dpbench.spec.loading import load_specs
from dpbench.spec.yaml_loader import LARGEST_FILE, parse

SPEC = """\
kind: run
name: one
dataset: digits
model: logistic
mechanism: noisy_sgd
budget: {noise_multiplier: 1.5, delta: 1e-4}
training: {batch_size: 256, steps: 2, learning_rate: 0.5, clip_norm: 1.0}
"""
READERS: dict[str, Callable[[str], list[str]]] = {  # every verb that is given a file
    "run": lambda path: ["run", path],
    "plan": lambda path: ["plan", path],
    "check": lambda path: ["check", path],
    "bench": lambda path: ["bench", path],
    "verify": lambda path: ["verify", path],
    "account": lambda path: ["account", path, "--delta", "1e-5"],
    "calibrate": lambda path: ["calibrate", path, "--epsilon", "1", "--delta", "1e-5"],
    "certify": lambda path: ["certify", path, "--delta", "1e-5"],
    "conform": lambda path: ["conform", path],
}
HUGE = "9" * 5000


def status(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status of the program and what it says on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.fixture(params=["pipe", "socket", "device", "huge file"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "odd.yaml"
    if request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(tmp_path)  # the name of a socket is short
            listening.bind("odd.yaml")
            yield path
        return
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("#" * (17 * LARGEST_FILE))
    yield path


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are no paths there")
@pytest.mark.parametrize("verb", READERS)
def test_what_is_no_file_is_refused_and_not_read(
    verb: str, no_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(no_file.parent)
    code, said = status(capsys, *READERS[verb](str(no_file)))
    assert code == 2
    assert "odd.yaml" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "more",
    [
        "seeds: 10000\ngrid: {training.clip_norm: [1, 2]}\n",
        "rows:\n  - {label: a, seeds: 6000}\n  - {label: b, seeds: 6000}\n",
        "seeds: 5000\nzip: {training.clip_norm: [1, 2, 3], training.learning_rate: [1, 2, 3]}\n",
        f"seeds: {list(range(10001))}\n",
    ],
)
def test_settings_times_seeds_are_capped(more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC + more)
    code, said = status(capsys, "plan", str(tmp_path / "spec.yaml"))
    assert (code, "expected at most 10,000" in said) == (2, True)


def test_seeds_of_the_command_line_are_capped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    code, said = status(capsys, "plan", str(tmp_path / "spec.yaml"), "--seeds", "1000000000")
    assert (code, "expected at most 10,000" in said) == (2, True)


@pytest.mark.parametrize("number", [HUGE, f'"{HUGE}"', f"-{HUGE}", f"{HUGE}.0", f"0x{HUGE}", f'"{HUGE}/{HUGE}"'])
def test_endless_numbers_in_files_are_mistakes(number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace("steps: 2", f"steps: {number}"))
    assert status(capsys, "plan", str(tmp_path / "spec.yaml"))[0] == 2
    event = f"{{event: sampled_gaussian, sampling_rate: {number}, noise_multiplier: {number}, count: {number}}}"
    (tmp_path / "events.yaml").write_text(f"kind: events\nevents: [{event}]\n")
    assert status(capsys, "account", str(tmp_path / "events.yaml"), "--delta", "1e-5")[0] == 2


@pytest.mark.parametrize("option", ["--n", "--batch", "--steps", "--sampling-rate", "--sigma", "--votes", "--first"])
def test_endless_numbers_of_the_command_line_are_mistakes(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(capsys, "account", option, HUGE, "--delta", "1e-5")[0] == 2
    assert status(capsys, "plan", "--seeds", HUGE)[0] == 2


@pytest.mark.parametrize("character", ["\\e", "\\0", "\\u202e", "\\u2066", "\\u009b", "\\u2028", "\\r"])
def test_control_characters_in_texts_are_mistakes_and_never_shown(character: str) -> None:
    """A newline or a tab is text; what starts a colour, or turns the direction, is not."""
    for text in (f'tuned: "a{character}b"', f'"a{character}": 1', f'rows: [{{label: "x{character}"}}]'):
        problems = parse(text, "f.yaml").problems
        assert any("control character" in one.message for one in problems)
        assert all(visible(str(one)) == str(one) for one in problems)
    assert parse('tuned: "a\\nb\\tc"', "f.yaml").problems == ()


def test_control_characters_of_names_of_files_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = status(capsys, "plan", "\x1b[31mred\u202e.yaml")
    assert code == 2
    assert "\\x1b[31mred\\u202e.yaml" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("2>&-", 0, ""),
        (">/dev/full", 1, "No space left on device"),
        (">&-", 2, "standard output is closed"),
        (">/dev/full 2>/dev/full", 1, ""),
        (">&- 2>&-", 2, ""),
        ("| true", 1, ""),
    ],
)
def test_streams_that_cannot_be_written(redirected: str, code: int, said: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(dpbench.__file__).parents[1])}
    command = f"set -o pipefail; '{sys.executable}' -m dpbench list models datasets {redirected}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("MNIST", ["mnist", "fashion_mnist"], "mnist"),
        ("Fashion-MNIST", ["mnist", "fashion_mnist"], "fashion_mnist"),
        ("lr", ["learning_rate", "steps"], "learning_rate"),
        ("bs", ["batch_size"], "batch_size"),
        ("eps", ["epochs", "epsilon"], "epsilon"),
        ("sigma", ["noise_multiplier"], "noise_multiplier"),
        ("C", ["clip_norm", "c_one"], "clip_norm"),
        ("Adam", ["adam", "noisy_adam"], "adam"),
        ("Adam", ["noisy_adam", "dp_adam_jl"], "noisy_adam"),
        ("DP-SGD", ["noisy_sgd", "dp_sgd_jl"], "noisy_sgd"),
        ("qqq", ["rdp"], ""),
    ],
)
def test_what_was_meant(given: str, known: list[str], meant: str) -> None:
    assert closest(given, known) == meant


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("dataset: digits", "dataset: MNIST", "did you mean 'mnist'?"),
        ("learning_rate: 0.5", "lr: 0.5", "did you mean 'learning_rate'?"),
        ("batch_size: 256", "bs: 256", "did you mean 'batch_size'?"),
        ("noise_multiplier: 1.5", "sigma: 1.5", "did you mean 'noise_multiplier'?"),
        ("clip_norm: 1.0", "C: 1.0", "did you mean 'clip_norm'?"),
        ("kind: run", "kind: run\nlr: 1", "did you mean 'learning_rate'? it belongs under 'training'"),
        ("kind: run", "kind: run\ngrid: {lr: [1, 2]}", "did you mean 'training.learning_rate'?"),
        ("mechanism: noisy_sgd", "mechanism: DP-SGD", "did you mean 'noisy_sgd'?"),
    ],
)
def test_short_forms_in_a_spec(before: str, after: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace(before, after))
    with pytest.raises(DpbenchError) as caught:
        load_specs([tmp_path / "spec.yaml"])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("account", "--eps", "1"), "did you mean --epsilon?"),
        (("account", "--lr", "1"), "no such option '--lr'"),
        (("Plan",), "did you mean plan?"),
        (("data", "check", "MNIST"), "did you mean 'mnist'?"),
        (("account", "--accountant", "RDP", "--sigma", "1", "--event", "gaussian", "--delta", "1e-5"), "'rdp'"),
    ],
)
def test_short_forms_on_the_command_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, words = status(capsys, *arguments)
    assert (code, said in words) == (2, True)


def test_list_names_papers() -> None:
    shown = CliRunner().invoke(cli, ["list", "papers"], standalone_mode=False).stdout
    assert "bu2020: Bu, Dong, Long, Su: Deep Learning with Gaussian Differential Privacy" in shown
    legend = CliRunner().invoke(cli, ["list", "updates"], standalone_mode=False).stdout.partition("papers\n")[2]
    assert [line.split(":")[0].strip() for line in legend.splitlines()] == ["bu2020", "jl2021"]


def test_diff_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, rate, seeds in (("a", "0.5", 2), ("b", "0.5", 2), ("worse", "1e-9", 2), ("fewer", "0.5", 1)):
        (tmp_path / "spec.yaml").write_text(SPEC.replace("0.5", rate) + f"seeds: {seeds}\n")
        dpbench.run([tmp_path / "spec.yaml"], out=tmp_path / side, choices=Choices(device="cpu"))

    def gate(first: str, second: str, *conditions: str) -> tuple[int, str]:
        options = [part for one in conditions for part in ("--fail-if", one)]
        return status(capsys, "diff", str(tmp_path / first), str(tmp_path / second), *options)

    assert gate("a", "b", "different", "accuracy=0") == (0, "")
    assert gate("a", "worse") == (0, "")
    code, said = gate("a", "worse", "accuracy=1")
    assert (code, len(said.splitlines()), "--fail-if: one seed 0: accuracy" in said) == (1, 2, True)
    assert gate("worse", "a", "accuracy=1")[0] == 0  # it became better
    assert gate("worse", "a", "different")[0] == 1
    assert "learning_rate" in gate("worse", "a", "different")[1]
    assert gate("a", "fewer", "accuracy=100") == (1, "--fail-if: one seed 1: only in the first folder\n")
    assert gate("fewer", "a", "accuracy=0")[0] == 0
    for wrong in ("accuracy", "accuracy=-1", "accuracy=x", "accuracy=nan", "different=1", "speed=1"):
        assert gate("a", "b", wrong)[0] == 2
    code, said = gate("a", "worse", "accuracy=100", "rmse=0.1")
    assert (code, "--fail-if rmse=N: no run here has that metric; the runs have accuracy" in said) == (2, True)
