"""The comparison of two commits' speed: what it reads, what it excuses; and asv's benchmarks still run."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import compare_speed
from tests.compare_speed import Accepted, excused, main, newly_accepted, parse_accepted, parse_slower

# As `asv continuous` of asv 0.6 prints it.
TABLE = """
| Change   | Before [5e18f59f] <base>   | After [ba5e0000] <head>   |   Ratio | Benchmark (Parameter)               |
|----------|----------------------------|---------------------------|---------|-------------------------------------|
| +        | 10.0±0.1ms                 | 20.5±0.3ms                |    2.05 | draws.Poisson.time_sample(16)       |
| !        | 9.54±0.1ms                 | failed                    |  n/a    | planning.Plan.time_load_specs       |
| -        | 30.0±1ms                   | 10.0±0.1ms                |    0.33 | draws.Normals.time_a_million_normals |

SOME BENCHMARKS HAVE CHANGED SIGNIFICANTLY.
PERFORMANCE DECREASED.
"""
SLOWER = {"draws.Poisson.time_sample(16)": 2.05, "planning.Plan.time_load_specs": float("inf")}


def test_slower_benchmarks_are_read_from_the_table() -> None:
    assert parse_slower(TABLE) == SLOWER
    assert parse_slower("BENCHMARKS NOT SIGNIFICANTLY CHANGED.") == {}


def test_accepted_lines_cover_names_with_brackets_and_stars_up_to_their_factor() -> None:
    exact = Accepted(1.6, "accountants.Account.time_account('rdp', [1, 2])", "more digits")
    assert exact.covers("accountants.Account.time_account('rdp', [1, 2])", 1.6)
    assert not exact.covers("accountants.Account.time_account('rdp', [1, 2])", 1.61)
    assert not exact.covers("accountants.Account.time_account('rdp', 1)", 1.5)
    starred = Accepted(2.1, "draws.Poisson.*", "53 bits")
    assert excused(SLOWER, [starred]) == {"draws.Poisson.time_sample(16)": starred}
    # a failure is never excused: its ratio is infinite
    assert not Accepted(1e9, "*", "anything").covers(
        "planning.Plan.time_load_specs", SLOWER["planning.Plan.time_load_specs"]
    )


def test_the_file_that_is_there_can_be_read() -> None:
    text = (Path(__file__).parents[1] / compare_speed.ACCEPTED).read_text(encoding="utf-8")
    parse_accepted(text)
    example = next(line for line in text.splitlines() if line.startswith("#   1.6"))
    assert parse_accepted(example.removeprefix("#"))[0].benchmark == "draws.Poisson.time_sample(*"


@pytest.mark.parametrize("line", ["1.5 name", "name # reason", "0.9 name # reason", "1.5 # reason", "1.5 name #"])
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"line 2.*expected `FACTOR"):
        parse_accepted(f"# fine\n{line}\n")


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two commits; the second accepts a slowdown, the first had accepted another."""
    path = tmp_path / compare_speed.ACCEPTED
    path.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    text, commits = "", []
    for line in ("2.5  planning.*  # old\n", "2.5  draws.*  # new\n"):
        text += line
        path.write_text(text, encoding="utf-8")
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run(["git", *names, "commit", "-q", "-m", "x"], check=True)
        commits.append(subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip())
        (tmp_path / compare_speed.PASSED).write_text(f"# why\n{commits[0]}\n", encoding="utf-8")
    return commits[0], commits[1]


def test_a_line_counts_only_where_it_is_new(history: tuple[str, str]) -> None:
    base, head = history
    assert [line.benchmark for line in newly_accepted(base, head)] == ["draws.*"]
    assert newly_accepted(head, head) == ()


def measured(*answers: dict[str, float]) -> tuple[Any, list[dict[str, Any]]]:
    """A stand-in for `measure` that gives these answers in turn, and the list of what it was asked."""
    asked: list[dict[str, Any]] = []
    left = iter(answers)

    def measure(base: str, head: str, **options: Any) -> dict[str, float]:
        asked.append({"base": base, "head": head, **options})
        return next(left)

    return measure, asked


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        ([{}], 0, "nothing is slower"),
        ([{"training.A.time_step(1)": 2.0}, {}], 0, "nothing is slower"),  # not slower when measured again
        ([{"training.A.time_step(1)": 2.0}, {"training.A.time_step(1)": 1.9}], 1, "SLOWER: training.A.time_step(1)"),
        ([{"draws.A.time_b": 2.0}, {"draws.A.time_b": 2.0}], 0, "accepted (new): draws.A.time_b"),
        ([{"draws.A.time_b": 3.0}, {"draws.A.time_b": 3.0}], 1, "SLOWER: draws.A.time_b"),
        ([{"planning.A.time_b": 2.0}, {"planning.A.time_b": 2.0}], 1, "SLOWER: planning.A.time_b"),
    ],
)
def test_verdicts(
    history: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[dict[str, float]],
    status: int,
    said: str,
) -> None:
    measure, asked = measured(*answers)
    monkeypatch.setattr(compare_speed, "measure", measure)
    assert main([]) == status
    assert said in capsys.readouterr().out
    assert [(request["base"], request["head"], request["rounds"]) for request in asked] == [
        (history[0], "HEAD", 4),
        (history[0], "HEAD", 8),
    ][: len(answers)]


@pytest.mark.parametrize("text", ["", "# nothing\n", "1234567\n", "HEAD\nHEAD\n"])
def test_a_commit_that_is_not_there_is_no_success(
    text: str, history: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    del history
    Path(compare_speed.PASSED).write_text(text, encoding="utf-8")
    assert main([]) == 2
    assert "expected one commit of this clone" in capsys.readouterr().err


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 2)])
def test_a_clone_without_history_passes_only_where_it_is_not_ci(
    ci: str,
    status: int,
    history: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del history
    subprocess.run(["git", "clone", "-q", "--depth", "1", tmp_path.as_uri(), tmp_path / "shallow"], check=True)
    monkeypatch.chdir(tmp_path / "shallow")
    monkeypatch.setenv("CI", ci)
    assert main([]) == status
    captured = capsys.readouterr()
    assert ("nothing is compared" in captured.out, "expected one commit of this clone" in captured.err) == (
        status == 0,
        status == 2,
    )


# A benchmark of 5 ms, and how asv measures commits with the Python at hand, so that nothing is installed.
SMALL = {
    "work.py": """
        import time

        def work():
            time.sleep(0.005)
    """,
    "benchmarks/__init__.py": "",
    "benchmarks/waiting.py": """
        import os
        import sys

        class Work:
            def setup(self):
                sys.path.insert(0, os.path.join(os.environ["ASV_ENV_DIR"], "project"))

            def time_work(self):
                from work import work

                work()
    """,
    "asv.conf.json": """
        {
            "version": 1,
            "project": "small",
            "repo": ".",
            "branches": ["main"],
            "dvcs": "git",
            "plugins": [".at_hand"],
            "environment_type": "at_hand",
            "benchmark_dir": "benchmarks",
            "build_command": [],
            "install_command": [],
            "uninstall_command": []
        }
    """,
    "at_hand.py": """
        import os
        import sys

        from asv.environment import Environment

        class AtHand(Environment):
            tool_name = "at_hand"

            def __init__(self, conf, python, requirements, variables):
                self._requirements = requirements
                super().__init__(conf, python, requirements, variables)

            def check_presence(self):
                return os.path.isdir(self._path)

            def _setup(self):
                os.makedirs(self._path)

            def find_executable(self, executable):
                return sys.executable

            def run(self, arguments, **options):
                return self.run_executable("python", arguments, **options)
    """,
    compare_speed.ACCEPTED: "# none\n",
    compare_speed.PASSED: "# the first\n",
}


@pytest.mark.long
def test_a_planted_slowdown_fails_is_accepted_where_listed_and_is_over_in_the_next_commit(tmp_path: Path) -> None:
    """By asv itself and the command line, in a repository of three commits: 5 ms, 10 ms, 10 ms and the line."""
    checkout = tmp_path / "small"
    home = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}  # where asv keeps what it knows of the machine
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | home
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")

    def called(*command: str | Path) -> tuple[int, str]:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def commit() -> str:
        for command in (("add", "."), (*identity, "commit", "-q", "-m", "x")):
            assert called("git", *command)[0] == 0
        return called("git", "rev-parse", "HEAD")[1].strip()

    def compared(*commits: str) -> tuple[int, str]:
        status, said = called(sys.executable, compare_speed.__file__, *commits)
        return status, said.splitlines()[-1] if status == 0 else said

    for name, text in SMALL.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    assert called("git", "init", "-q", "-b", "main")[0] == 0
    (checkout / ".git" / "info" / "exclude").write_text("env\nresults\n__pycache__\n", encoding="utf-8")
    fast = commit()
    assert called(sys.executable, "-m", "asv", "machine", "--yes")[0] == 0

    (checkout / "work.py").write_text((checkout / "work.py").read_text().replace("0.005", "0.010"), encoding="utf-8")
    (checkout / compare_speed.PASSED).write_text(f"{fast}\n", encoding="utf-8")
    slow = commit()
    status, said = compared()
    assert status == 1, said
    ratio = re.search(r"^SLOWER: waiting\.Work\.time_work, (\d\.\d+) times$", said, re.M)
    assert ratio is not None, said
    assert 1.6 < float(ratio[1]) < 2.4

    (checkout / compare_speed.ACCEPTED).write_text("2.4  waiting.*  # worth it\n", encoding="utf-8")
    commit()
    assert compared() == (0, "nothing else is slower than 1.3 times")
    assert compared(slow) == (0, "nothing is slower")


def test_the_commit_that_passed_is_one_before_this() -> None:
    root = Path(__file__).parents[1]
    lines = (root / compare_speed.PASSED).read_text(encoding="utf-8").splitlines()
    (commit,) = [line for line in lines if not line.startswith("#")]
    assert re.fullmatch("[0-9a-f]{40}", commit)
    asked = ["git", "-C", str(root), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() != "false":
        pytest.skip("this is no clone with its history")
    subprocess.run(["git", "-C", root, "merge-base", "--is-ancestor", commit, "HEAD"], check=True)


def test_an_asv_that_fails_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any, **__: Any) -> dict[str, float]:
        raise RuntimeError("asv ended with status 2")

    monkeypatch.setattr(compare_speed, "measure", broken)
    assert main(["HEAD", "HEAD"]) == 2
    assert "status 2" in capsys.readouterr().err


def benchmarks() -> Iterator[Any]:
    """Every benchmark of tests/speed as asv finds it: by default every method, and of every class both ends of the
    parameters, the first by one method and the last by another where it has two; else all.
    """
    for file in sorted((Path(__file__).parent / "speed").glob("[!_]*.py")):
        module = importlib.import_module(f"tests.speed.{file.stem}")
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and not name.startswith("_") and kind.__module__ == module.__name__:
                kinds = ("time", "peakmem", "track", "timeraw")
                methods = [one for one, _ in inspect.getmembers(kind, inspect.isfunction) if one.split("_")[0] in kinds]
                every = list(itertools.product(*getattr(kind, "params", ())))
                for place, method in enumerate(methods):
                    ends = (0, len(every) - 1) if len(methods) == 1 else (place % 2 * (len(every) - 1),)
                    for at, values in enumerate(every):
                        marks = [] if at in ends else [pytest.mark.long]
                        label = f"{file.stem}.{name}.{method}{values or ''}"
                        yield pytest.param(kind, method, values, id=label, marks=marks)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("kind", "method", "values"), list(benchmarks()))
def test_asv_benchmarks_run(kind: type, method: str, values: tuple[Any, ...]) -> None:
    """Once each, without asv, so that a benchmark does not rot unseen; those of whole processes give their code."""
    benchmark = kind()
    try:
        benchmark.setup(*values) if hasattr(benchmark, "setup") else None
        answer = getattr(benchmark, method)(*values)
        if method.startswith("track"):
            assert answer > 0
        if method.startswith("timeraw"):
            compile(inspect.cleandoc(answer), "<timeraw>", "exec")
    finally:
        if hasattr(benchmark, "teardown"):
            benchmark.teardown()


def test_what_a_commit_does_not_have_is_skipped() -> None:
    from tests.speed import imported

    with pytest.raises(NotImplementedError, match=r"dpbench\.privacy\.accountants\.not_yet"):
        imported("privacy.accountants.not_yet")
    assert imported("events").Composition


def test_a_module_is_found_by_its_earlier_names() -> None:
    """The latest first; a room's name stands for all that lies in it."""
    from tests.speed import EARLIER, called

    assert list(called("step.mechanism")) == ["step.mechanism", "step.pipeline", "pipeline"]
    assert list(called("clipping.rules.jl")) == ["clipping.rules.jl", "clipping._jl"]
    assert list(called("privacy.accountants.rdp")) == ["privacy.accountants.rdp", "accountants.rdp"]
    assert list(called("events")) == ["events"]
    package = Path(compare_speed.__file__).parents[1] / "dpbench"
    for name in EARLIER:
        place = package / name.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), f"dpbench.{name} is not there"
