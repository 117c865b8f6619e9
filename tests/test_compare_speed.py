"""The comparison of two commits' speed: what it reads, what it excuses; and asv's benchmarks still run."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import subprocess
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
