"""The command line as a person uses it: help, mistakes, interruption, crashes, full disks, and going on."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dpbench.datasets
from dpbench.cli import cli, main
from dpbench.cli.progress import plan_table
from dpbench.errors import DpbenchError
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import load_specs
from dpbench.store.records import Store

SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [16]}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 64, epochs: 2, learning_rate: 0.5, clip_norm: 1.0}
seeds: 2
"""
DIVERGES = """
kind: run
name: diverges
dataset: digits
model: mlp
mechanism: non_private
budget: none
training: {batch_size: 64, epochs: 2, learning_rate: 3e38}
seeds: 1
"""


unix = pytest.mark.skipif(sys.platform == "win32", reason="signals, limits and bash are POSIX's")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def start(*arguments: str, cwd: Path, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dpbench", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before
    )


def records(out: Path) -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text()) for path in (out / "records").glob("*.json")}


VERBS = [(name,) for name in cli.commands if name != "data"] + [("data", name) for name in ("list", "fetch", "check")]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_explains_itself(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*verb, "--help") == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"dpbench {' '.join(verb)}" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert dpbench.__version__ in capsys.readouterr().out


def test_help_and_import_stay_light() -> None:
    code = (
        "import sys, dpbench; assert not {'torch', 'scipy'} & set(sys.modules);"
        "from dpbench.cli import cli; assert not {'torch', 'scipy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_then_nothing_to_do_then_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    out = tmp_path / "out"
    common = (str(tmp_path / "spec.yaml"), "--out", str(out))
    assert call("run", *common, "--quiet") == 0
    text = capsys.readouterr().out
    assert "2 of 2 runs finished" in text
    before = {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()}
    assert len(before) == 2
    assert (out / "report.html").exists()

    assert call("run", *common) == 0
    assert "Nothing to train" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()} == before

    (out / "report.html").unlink()
    assert call("report", str(tmp_path / "spec.yaml"), "--out", str(out)) == 0
    assert (out / "report.html").read_text().count("data-record=") == 2

    assert call("plan", *common, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["action"] for line in lines] == ["exists", "exists"]

    assert call("run", *common, "--force", "--seeds", "1,", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["planned", "stack", "ended", "summary"]
    assert events[-1]["finished"] == 1
    assert {path.name for path, time_ in before.items() if path.stat().st_mtime_ns != time_} == {
        f"{events[2]['run_key']}.json"
    }

    assert call("run", *common, "--force", "--out", str(tmp_path / "other"), "--quiet") == 0
    assert call("diff", str(out), str(tmp_path / "other")) == 0
    assert call("diff", str(out), str(tmp_path / "other"), "--json") == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [("", ["plan", "stack"]), ("--log", ["plan", "stack", "run", "run"]), ("-q", []), ("--json", [])],
)
def test_without_a_terminal_a_line_for_every_stack_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, said: list[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert call("run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), *filter(None, [option])) == 0
    lines = capsys.readouterr().err.splitlines()
    begin = {"plan": "2 runs: 2 to train (about ", "stack": "stack 1 of 1: ", "run": "finished  "}
    assert len(lines) == len(said), lines
    assert all(line.startswith(begin[kind]) for line, kind in zip(lines, said, strict=True)), lines


@pytest.mark.parametrize("accountant", ["exact", "rdp"])
@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_plan_fits_the_window_with_its_last_column_and_whole_words(
    tmp_path: Path, width: int, accountant: str
) -> None:
    text = f"{SPEC.replace('name: ', 'name: quite-a-long-name-for-', 1)}grid: {{training.epochs: [1, 2]}}\n"
    text = re.sub("^budget: .*", f"budget: {{epsilon: 3, delta: 1e-4, calibrate_with: {accountant}}}", text, flags=re.M)
    (tmp_path / "spec.yaml").write_text(text)
    made = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices())
    console = Console(width=width, file=io.StringIO())
    console.print(plan_table(made, width))
    assert isinstance(console.file, io.StringIO)
    head, *lines = console.file.getvalue().splitlines()
    assert head.split()[-1] == "what"
    assert ("wasted" in head) == (accountant == "rdp")
    assert [line.rstrip()[-9:] for line in lines].count("train (1)") == 2
    pieces = {word for run in made.runs for word in re.split(r"(?<=-)|\s", run.title)}
    found = {piece for line in lines for piece in re.split(r"(?<=-)|\s", line[: head.index("seeds")].strip())}
    assert found - {""} <= pieces


def test_the_plan_says_which_neighbours_an_epsilon_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    other = SPEC.replace("name: small", "name: shuffled").replace("mechanism: noisy_sgd", "mechanism: shuffled_sgd")
    (tmp_path / "other.yaml").write_text(other)
    assert call("plan", str(tmp_path), "--out", str(tmp_path / "out")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "neighbours: zero out in shuffled; add or remove in all others." in said
    rows = "rows:\n  - {label: one, mechanism: noisy_sgd}\n  - {label: two, mechanism: shuffled_sgd}\n"
    (tmp_path / "both.yaml").write_text(SPEC.replace("name: small", "name: both") + rows)
    assert call("plan", str(tmp_path / "both.yaml"), "--out", str(tmp_path / "out")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "neighbours: zero out in both [two]; add or remove in all others." in said
    (tmp_path / "both.yaml").unlink()
    assert call("plan", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out")) == 0
    assert "neighbours:" not in capsys.readouterr().out
    assert call("plan", str(tmp_path), "--out", str(tmp_path / "out"), "--json") == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert {one["spec"]: one["adjacency"] for one in lines} == {"small": "add_or_remove", "shuffled": "zero_out"}


def test_the_plan_names_a_loss_and_a_metric_that_are_not_the_usual_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    other = SPEC.replace("name: small", "name: squared") + "loss: squared_error\n"
    (tmp_path / "other.yaml").write_text(other)
    assert call("plan", str(tmp_path), "--out", str(tmp_path / "out")) == 0
    said = capsys.readouterr().out.splitlines()
    assert "loss: squared error in squared; cross entropy in all others." in said
    assert "metric: rmse in squared; accuracy in all others." in said
    assert call("plan", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out")) == 0
    assert not re.search("^(loss|metric):", capsys.readouterr().out, re.MULTILINE)
    assert call("plan", str(tmp_path), "--out", str(tmp_path / "out"), "--json") == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert {(one["spec"], one["loss"], one["metric"]) for one in lines} == {
        ("small", "cross_entropy", "accuracy"),
        ("squared", "squared_error", "rmse"),
    }


def test_data_check_goes_on_where_a_dataset_lacks_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(source: Any, folder: Path | None) -> Any:
        if source.name == "cifar10":
            raise DpbenchError("cifar10 needs a package")
        return check(source, folder)

    check = dpbench.datasets.check
    monkeypatch.setattr("dpbench.datasets.check", broken)
    assert call("data", "check", "cifar10", "digits") == 1
    captured = capsys.readouterr()
    assert captured.err == "cifar10 needs a package\n"
    assert captured.out.startswith("ok       digits")


def test_three_typos_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SPEC.replace("digits", "digit").replace("learning_rate", "lerning_rate").replace("noisy_sgd", "noisy_sdg")
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    assert call("run", str(path), "--out", str(tmp_path / "out")) == 2
    message = capsys.readouterr().err
    for line, suggestion in ((4, "digits"), (6, "noisy_sgd"), (8, "learning_rate")):
        (found,) = [row for row in message.splitlines() if row.startswith(f"{path}:{line}:") and suggestion in row]
        assert "did you mean" in found
    assert "Traceback" not in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "nowhere.yaml"),
        ("run", "spec.yaml", "--seeds", "0"),
        ("run", "spec.yaml", "--seeds", "1,1"),
        ("run", "spec.yaml", "--seeds", "many"),
        ("run", "spec.yaml", "--device", "tpu"),
        ("run", "spec.yaml", "--device", "cuda:99"),
        ("run", "spec.yaml", "--only", "nothing"),
        ("run", "spec.yaml", "--frobnicate"),
        ("report", "--out", "empty"),
        ("data", "fetch"),
        ("data", "list", "mnits"),
        ("rum", "spec.yaml"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_clear_sentence(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "empty").mkdir()
    assert call(*arguments) == 2
    text = capsys.readouterr()
    assert "Traceback" not in text.err + text.out
    assert text.err.strip()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "spec.yaml"]


def test_a_failed_run_is_named_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(DIVERGES)
    (tmp_path / "b.yaml").write_text(SPEC)
    out = tmp_path / "out"
    assert call("run", str(tmp_path), "--out", str(out), "--quiet") == 1
    text = capsys.readouterr().out
    assert "2 of 3 runs finished" in text
    (line,) = [row for row in text.splitlines() if row.startswith("FAILED")]
    log = Path(line.rpartition("log: ")[2])
    assert log.parent == out / "failures"
    story = json.loads(log.read_text())
    assert "not finite" in story["error"]
    assert len(records(out)) == 2  # a failure is no result
    assert call("run", str(tmp_path), "--out", str(out), "--quiet") == 1  # and is tried again
    assert "0 of 1 runs finished" in capsys.readouterr().out


def test_fail_fast_stops_and_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(DIVERGES)
    (tmp_path / "b.yaml").write_text(SPEC)
    assert call("run", str(tmp_path), "--out", str(tmp_path / "out"), "--quiet", "--fail-fast") == 1
    text = capsys.readouterr().out
    assert "2 runs were not reached" in text
    assert "Go on with: dpbench" in text


@unix
def test_ctrl_c_keeps_the_place_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace("epochs: 2", "epochs: 120"))
    process = start("run", "spec.yaml", "--out", "out", "--json", cwd=tmp_path)
    assert process.stdout is not None
    while '"event": "stack"' not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["unfinished"] == 2
    assert "Traceback" not in err
    assert len(list((tmp_path / "out" / "checkpoints").glob("*.pt"))) == 2
    assert not list((tmp_path / "out" / "failures").glob("*.json"))
    done = start("run", "spec.yaml", "--out", "out", "--quiet", cwd=tmp_path)
    out, err = done.communicate(timeout=200)
    assert done.returncode == 0, err
    assert {record["resumed"] for record in records(tmp_path / "out").values()} == {True}
    assert not list((tmp_path / "out" / "checkpoints").iterdir())


@unix
@pytest.mark.parametrize("case", ["a file in the way", "full", "no room for a record"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, case: str) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace("epochs: 2", "epochs: 60"))
    (tmp_path / "base").mkdir()
    before, status = None, 2
    if case == "a file in the way":
        (tmp_path / "base" / "out").write_text("")
    else:
        limit = 0 if case == "full" else 5000  # bytes in one file; a record of 60 epochs has more

        def before() -> None:
            import resource  # there is none on Windows

            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        status = 2 if case == "full" else 1  # found before the work, or when the first record is written
    process = start("run", "spec.yaml", "--out", "base/out", "--quiet", cwd=tmp_path, before=before)
    _, err = process.communicate(timeout=200)
    assert process.returncode == status, err
    assert "cannot write" in err
    assert "Traceback" not in err
    assert not [path for path in (tmp_path / "base").rglob("*") if path.is_file() and path.stat().st_size]


@unix
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_killed_at_random_moments_nothing_finished_is_lost(tmp_path: Path, kills: int) -> None:
    text = SPEC.replace("seeds: 2", "seeds: 3") + "grid: {training.epochs: [1, 4, 16, 48, 80]}\n"
    (tmp_path / "spec.yaml").write_text(text)
    out = tmp_path / "out"
    chance = random.Random(kills)
    known: dict[str, dict[str, object]] = {}
    for _ in range(kills):
        process = start("run", "spec.yaml", "--out", "out", "--json", cwd=tmp_path)
        assert process.stdout is not None
        while '"event": "stack"' not in (line := process.stdout.readline()) and line:
            pass
        time.sleep(chance.uniform(0, 2.5))
        process.send_signal(signal.SIGKILL)
        ended, _ = process.communicate(timeout=200)
        ended_runs = {event["run_key"] for event in map(json.loads, ended.splitlines()) if event["event"] == "ended"}
        now = records(out)  # every file is whole: it parses
        assert ended_runs <= set(now)  # what was said to be finished is there
        assert all(now[key] == record for key, record in known.items())
        known = now
    done = start("run", "spec.yaml", "--out", "out", "--quiet", cwd=tmp_path)
    _, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    final = records(out)
    assert len(final) == 15
    assert all(final[key] == record for key, record in known.items())
    assert {path.suffix for path in out.rglob("*") if path.is_file()} <= {".json", ".html", ".csv", ".tex"}


def test_data_list_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("data", "list", "--data", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert "digits (embedded)" in text
    assert "dpbench data fetch mnist" in text
    assert call("data", "check", "digits") == 0
    bad = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"not labels")
    assert call("data", "check", "mnist", "--data", str(tmp_path)) == 1
    text = capsys.readouterr().out
    (line,) = [row for row in text.splitlines() if row.startswith("corrupt")]
    assert len([word for word in line.replace(",", "").split() if len(word) == 64]) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "latin-1", "ascii"])
def test_a_pipe_of_any_encoding_gets_the_same_text(encoding: str) -> None:
    """What a pipe on Windows is, for one: its letters have no ε."""
    command = [sys.executable, "-m", "dpbench", "account", "--event", "gaussian", "--sigma", "5", "--delta", "1e-5"]
    for arguments in (["--accountant", "gdp"], ["--accountant", "gdp", "--json"], ["--accountant", "ε"]):
        environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
        done = subprocess.run([*command, *arguments], capture_output=True, env=environment, check=False)
        assert "ε" in (done.stdout + done.stderr).decode("utf-8")
        assert b"Traceback" not in done.stderr


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema") == 0
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


@unix
def test_a_reader_that_goes_away_is_no_failed_run(tmp_path: Path) -> None:
    """`| head` closes the pipe in the middle: no traceback, and no run is recorded as failed."""
    (tmp_path / "spec.yaml").write_text(SPEC + "grid: {training.epochs: [1, 2, 3, 4, 5, 6, 7, 8]}\n")
    command = f"{sys.executable} -m dpbench run spec.yaml --out out --json | head -n 18"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out" / "failures").glob("*.json"))
    assert len(records(tmp_path / "out")) >= 1


def test_forced_and_interrupted_runs_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The advertised command has no --force: the place kept after the record says that the run is not done."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    common = ("run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), "--quiet")
    assert call(*common) == 0
    (key, _) = records(tmp_path / "out")
    place = tmp_path / "out" / "checkpoints" / f"{key}.pt"
    place.write_bytes(b"a place from an attempt after the record; damaged, so the run starts anew")
    os.utime(place, (time.time() + 5, time.time() + 5))
    capsys.readouterr()
    assert call(*common) == 0
    assert "1 of 1 runs finished" in capsys.readouterr().out
    assert not place.exists()


def test_a_report_that_cannot_be_written_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    assert call("run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), "--quiet") == 1
    text = capsys.readouterr().out
    assert "2 of 2 runs finished" in text
    assert "FAILED the report" in text


@unix
def test_the_readme_names_what_ci_runs() -> None:
    root = Path(__file__).parents[2]
    install = ".venv/bin/pip install -q -c constraints.txt -e '.[test]'"
    command = f"python3 -m venv .venv && {install} && .venv/bin/python -m pytest"
    assert command in (root / "README.md").read_text()
    assert command in (root / ".ci" / "run").read_text().splitlines()
    assert os.access(root / ".ci" / "run", os.X_OK)


def test_the_summary_of_a_fresh_clone_is_six_lines_at_most(tmp_path: Path) -> None:
    """What ran, what came with the project, and what needs data, with one command that gets all of it."""
    from dpbench.cli.progress import summary_text
    from dpbench.job import Summary
    from dpbench.plan.planning import Choices, make_plan
    from dpbench.spec.loading import load_specs
    from dpbench.store.records import Store

    (tmp_path / "spec.yaml").write_text(SPEC)
    names = ("mnist", "fashion_mnist", "cifar10", "imdb")
    models = {"cifar10": "tfp_cnn", "imdb": "imdb_lstm"}
    for name in names:
        text = SPEC.replace("dataset: digits", f"dataset: {name}").replace("name: small", f"name: on-{name}")
        text = re.sub(r"model: .*", f"model: {models.get(name, 'logistic')}", text)
        (tmp_path / f"{name}.yaml").write_text(text)
    for name in ("one", "two"):
        absent = "{train: 100, test: 10, classes: 3, width: 5}"
        data = (
            f"{{name: features, parameters: {{file: {name}.npz, pretrained_on: x, licence: y, if_absent: {absent}}}}}"
        )
        (tmp_path / f"{name}.yaml").write_text(
            SPEC.replace("dataset: digits", f"dataset: {data}").replace(": small", f": {name}")
        )
    specs = load_specs([tmp_path / f"{name}.yaml" for name in ("spec", "one", "two", *names)])
    plan = make_plan(specs, Store(tmp_path / "out"), Choices(data=tmp_path / "none", device="cpu"))
    done = tuple(run for stack in plan.stacks for run in stack.runs)
    summary = Summary(plan=plan, finished=done, seconds=335.0, shipped=18, report=(Path("out/report.html"),))
    lines = summary_text(summary, "dpbench run").splitlines()
    assert len(lines) <= 6
    assert lines[0] == "2 of 2 runs finished in 5 min 35 s, of 1 spec."
    assert "18 records came with the project" in lines[1]
    assert lines[2] == f"8 runs need data that are not here: {', '.join(f'{name} (2)' for name in names)}."
    assert lines[3].endswith(f"dpbench data fetch {' '.join(names)} --data {tmp_path / 'none'}")
    assert lines[4] == "4 runs need files that you make or bring: one.npz (2), two.npz (2): docs/own_dataset.md."
    assert lines[5:] == ["Report: out/report.html"]
