"""Stacks on a Ray cluster of two workers: what comes of them is what comes of this process, whatever is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dpbench.catalog import catalog
from dpbench.cli import cli
from dpbench.conformance import hold, summarise
from dpbench.errors import DpbenchError
from dpbench.job import Summary, Watcher
from dpbench.job import run as run_job
from dpbench.judging.claims.judging import PAPERS, Choice, verify
from dpbench.judging.claims.record import VerdictRecord
from dpbench.judging.enclosures import TABLES, read_points
from dpbench.plan.planning import Choices, Run, Stack
from dpbench.spec.shipped import shipped_folder
from dpbench.store.records import Store
from dpbench.training.loop import Outcome, Progress
from dpbench.training.workers import Cluster, Ray, WorkerLackedMemoryError, WorkerLostError, connected, spread

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Choices(device="cpu")
SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [8], activation: tanh}}
mechanism: {name: noisy_sgd, parameters: {clipping: vmap}}
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 250, learning_rate: 0.5, clip_norm: 1.0}
seeds: 3
---
kind: run
name: other
dataset: digits
model: logistic
mechanism: {name: noisy_adam, parameters: {clipping: vmap}}
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 60, learning_rate: 0.01, clip_norm: 1.0}
seeds: 2
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two processors of this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'dpbench[ray]')")
    os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    at_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    signal.signal(signal.SIGTERM, at_sigterm)
    yield ray
    ray.shutdown()


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | Path]:
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())  # it takes seconds
    paths: list[str | Path] = []
    for number, text in enumerate(SPEC.split("---")):
        paths.append(tmp_path / f"spec{number}.yaml")
        Path(paths[-1]).write_text(text)
    return paths


class Seen(Watcher):
    """What a job has told, and one thing to do when it tells of progress."""

    def __init__(self, act: Any = lambda: None) -> None:
        self.told: list[str] = []
        self.last = Progress(0, 0, 0)
        self.act = act

    def stack(self, stack: Stack, number: int, of: int) -> None:
        self.told.append(f"stack {number} of {of}: {stack.title}")

    def progress(self, progress: Progress) -> None:
        assert self.last.done <= progress.done <= progress.total
        self.last = progress
        self.act()

    def anew(self, run: Run, why: str) -> None:
        self.told.append(f"anew {run.title}: {why}")

    def again(self, stack: Stack, why: str) -> None:
        self.told.append(f"again {stack.title}: {why}")

    def ended(self, outcome: Outcome, path: Path | None) -> None:
        self.told.append(f"ended {outcome.run.title} {path}")


def figures(out: Path) -> dict[str, Any]:
    """All records of a folder without what time and machine they took."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            timely = ("seconds", "own_seconds", "stack_runs", "resumed", "environment", "digest")
            return {name: plain(item) for name, item in value.items() if name not in timely}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return {path.name: plain(json.loads(path.read_text())) for path in Store(out).records_folder.glob("*.json")}


def started_here(process: int) -> bool:
    """Whether a process comes from this one: tests beside it have a cluster of their own."""
    while process > 1 and process != os.getpid():
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return process == os.getpid()


def workers_at_work() -> list[int]:
    """The processes that train for Ray in the cluster of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::_called") and started_here(int(path.parent.name)):
            found.append(int(path.parent.name))
    return found


def lose(worker: int) -> int:
    os.kill(worker, signal.SIGKILL)
    return worker


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found by /proc")
@pytest.mark.usefixtures("cluster")
def test_one_of_two_workers_that_is_killed_changes_no_record(specs: list[str | Path], tmp_path: Path) -> None:
    for path, steps in zip(specs, ("250", "60"), strict=True):  # so long that both are at work at the same time
        Path(path).write_text(Path(path).read_text().replace(f"steps: {steps}", "steps: 600"))
    assert not run_job(specs, choices=Choices(device="cpu", smoke=True), ray=Ray()).failures  # both workers are up
    expected = run_job(specs, out=tmp_path / "here", choices=HERE)
    assert len(expected.finished) == 5
    killed: list[int] = []
    out = tmp_path / "there"

    def kill() -> None:
        """One worker, as soon as the driver has the checkpoints of both."""
        at_work = workers_at_work()
        if not killed and len(at_work) == 2 and len(list(Store(out).checkpoints_folder.glob("*.pt"))) == 5:
            killed.append(lose(at_work[0]))

    watcher = Seen(kill)
    found = run_job(specs, out=out, choices=HERE, ray=Ray(), watcher=watcher, checkpoint_seconds=0.1)
    assert (len(found.finished), found.failures, found.exit_status) == (5, (), 0)
    assert killed
    assert len([line for line in watcher.told if line.startswith("again")]) == 1
    assert figures(out) == figures(tmp_path / "here")
    records = [json.loads(path.read_text()) for path in Store(out).records_folder.glob("*")]
    resumed = {record["resolved"]["model"]["name"] for record in records if record["resumed"]}
    assert len(resumed) == 1, "only the stack of the worker that was killed"
    assert not list(Store(out).checkpoints_folder.glob("*.pt"))
    titles = [line.split(": ")[0] for line in watcher.told if line.startswith("stack")]
    assert (set(titles), len(titles)) == ({"stack 1 of 2", "stack 2 of 2"}, 3)
    assert (watcher.last.done, watcher.last.total) == (5 * 600, 5 * 600)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found by /proc")
@pytest.mark.usefixtures("cluster")
def test_a_stack_whose_worker_lacked_memory_goes_on_in_two_halves(
    specs: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed here, and Ray's word for it changed; the halves go on from its checkpoints."""
    one, result, killed = Path(specs[0]), Cluster.result, list[int]()
    one.write_text(one.read_text().replace("steps: 250", "steps: 600"))
    assert not run_job([one], choices=Choices(device="cpu", smoke=True), ray=Ray()).failures  # a worker is up
    assert len(run_job([one], out=tmp_path / "here", choices=HERE).finished) == 3
    out = tmp_path / "there"

    def for_want_of_memory(cluster: Cluster, task: Any) -> Any:
        try:
            return result(cluster, task)
        except WorkerLostError as error:
            raise WorkerLackedMemoryError(str(error)) from error

    def kill() -> None:
        at_work = workers_at_work()
        if not killed and at_work and len(list(Store(out).checkpoints_folder.glob("*.pt"))) == 3:
            killed.append(lose(at_work[0]))

    monkeypatch.setattr(Cluster, "result", for_want_of_memory)
    watcher = Seen(kill)
    found = run_job([one], out=out, choices=HERE, ray=Ray(), watcher=watcher, checkpoint_seconds=0.1)
    assert killed
    assert (len(found.finished), found.failures) == (3, ())
    there, here = figures(out), figures(tmp_path / "here")
    assert there.keys() == here.keys()
    for key, record in there.items():  # a stack of another size rounds otherwise
        losses = [[point["test_loss"] for point in one["curve"]] for one in (record, here[key])]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    records = [json.loads(path.read_text()) for path in Store(out).records_folder.glob("*")]
    assert sorted(record["stack_runs"] for record in records) == [1, 2, 2]
    assert {record["environment"]["stack"] for record in records} == {
        "halved: the worker of 3 runs was ended for want of memory"
    }
    assert all(record["resumed"] for record in records)
    assert [line.split(": ")[0] for line in watcher.told if line.startswith("stack")] == ["stack 1 of 1"] * 3
    (why,) = [line for line in watcher.told if line.startswith("again")]
    assert why.endswith("its runs go on in halves")
    assert (watcher.last.done, watcher.last.total) == (3 * 600, 3 * 600)

    killed.clear()
    one.write_text(one.read_text() + "randomness: secure\n")  # another draw would favour small batches
    watcher = Seen(lambda: None if killed else killed.append(lose(workers_at_work()[0])))
    found = run_job([one], out=out, choices=HERE, ray=Ray(), watcher=watcher)
    assert killed
    assert [("its worker was lost" in failure.error) for failure in found.failures] == [True] * 3
    assert not [line for line in watcher.told if line.startswith("again")]
    assert (watcher.last.done, watcher.last.total) == (3 * 600, 3 * 600)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_an_interruption_keeps_what_is_done(specs: list[str | Path], tmp_path: Path) -> None:
    run_job(specs, out=tmp_path / "here", choices=HERE)
    asked: list[bool] = []
    out = tmp_path / "there"
    stopped = run_job(
        specs, out=out, choices=HERE, ray=Ray(), watcher=Seen(lambda: asked.append(True)), stop=lambda: bool(asked)
    )
    assert (stopped.interrupted, stopped.exit_status) == (True, 130)
    assert {run.spec.name for run in stopped.unfinished} >= {"small"}
    kept = {path.stem for path in Store(out).checkpoints_folder.glob("*.pt")}
    assert kept
    assert kept <= {run.key for run in stopped.unfinished}
    rest = run_job(specs, out=out, choices=HERE)  # here, from the checkpoints that workers have sent
    assert len(rest.finished) == len(stopped.unfinished)
    assert figures(out) == figures(tmp_path / "here")


@pytest.mark.long
@pytest.mark.usefixtures("cluster", "specs")
def test_every_mechanism_gives_the_records_that_it_gives_here(tmp_path: Path) -> None:
    """All specs of the quickstart, of few steps; the engine and the chunk are named, or they would be measured."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    for path in (shipped_folder() / "quickstart").glob("*.yaml"):
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        for training in (one["training"] for one in (spec, *spec.get("rows", ())) if "training" in one):
            if training.pop("epochs", None) or training.get("steps", 1) > 1:
                training["steps"] = 6
        for name, values in spec.get("grid", {}).items():
            spec["grid"][name] = values[:1]
        if path.stem == "pate":
            spec["mechanism"]["parameters"]["teacher_steps"] = 6
        (folder / path.name).write_text(yaml.safe_dump(spec), encoding="utf-8")
    choices = Choices(device="cpu", seeds=2)
    watcher = Seen()
    here, there = (
        run_job([folder], out=tmp_path / out, choices=choices, engine="vmap", places_per_call=128, **options)
        for out, options in (("here", {}), ("there", {"ray": Ray(), "watcher": watcher}))
    )
    assert (here.failures, there.failures) == ((), ())
    assert len(there.finished) == len(there.plan.runs)
    expected = figures(tmp_path / "here")
    assert {record["resolved"]["mechanism"]["name"] for record in expected.values()} >= set(catalog("mechanisms")) - {
        "pipeline"
    }
    assert figures(tmp_path / "there") == expected
    assert watcher.last.done == watcher.last.total > 0


def failing(tmp_path: Path, **options: Any) -> Summary:
    (tmp_path / "bad.yaml").write_text(
        SPEC.split("---")[0].replace("learning_rate: 0.5", "learning_rate: 3e38").replace("seeds: 3", "seeds: 1")
    )
    return run_job([tmp_path / "bad.yaml"], out=tmp_path / "out", choices=HERE, **options)


@pytest.mark.long
@pytest.mark.usefixtures("cluster", "specs")
def test_a_failure_is_recorded_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = failing(tmp_path).failures
    (found,) = failing(tmp_path, ray=Ray(), fail_fast=True).failures
    assert found.error == expected.error
    assert found.log is not None
    assert json.loads(found.log.read_text())["error"] == expected.error
    monkeypatch.setattr("dpbench.plan.planning.code_hash", lambda _: "0" * 64)  # the driver's code is other code
    checkpoint = Store(tmp_path / "out").checkpoint_path(found.run.key)
    checkpoint.write_bytes(b"of an earlier time")
    (other,) = failing(tmp_path, ray=Ray()).failures
    assert "this worker has another dpbench" in other.error
    assert checkpoint.exists()  # the run has not failed, the worker has


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_the_first_failure_ends_the_work_and_the_others_keep_their_place(
    specs: list[str | Path], tmp_path: Path
) -> None:
    """No checkpoint is due while the other stack works, so those that are there were asked for."""
    long, bad = map(Path, specs)
    long.write_text(long.read_text().replace("steps: 250", "steps: 5000"))
    bad.write_text(bad.read_text().replace("learning_rate: 0.01", "learning_rate: 3e38").replace("60", "600"))
    assert not run_job([long], choices=Choices(device="cpu", smoke=True), ray=Ray()).failures  # a worker is up
    found = run_job(specs, out=tmp_path / "out", choices=HERE, ray=Ray(), fail_fast=True, checkpoint_seconds=999.0)
    assert len(found.failures) == 1
    working = {run.key for run in found.unfinished if run.spec.name == "small"}
    assert len(working) == 3
    assert {path.stem for path in Store(tmp_path / "out").checkpoints_folder.glob("*.pt")} >= working


@pytest.mark.long
@pytest.mark.usefixtures("cluster", "specs")
def test_workers_that_die_again_and_again_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a spec's file is found by workers as by the driver; here it ends every worker."""
    (tmp_path / "deadly.py").write_text(
        textwrap.dedent("""
        import os, pathlib
        from dpbench.mechanisms.presets import noisy_sgd

        def mechanism():
            if pathlib.Path("/proc/self/cmdline").read_bytes().startswith(b"ray::"):
                os._exit(3)
            return noisy_sgd()
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "deadly.yaml").write_text(
        SPEC.split("---")[1].replace("{name: noisy_adam, parameters: {clipping: vmap}}", "deadly:mechanism")
    )
    watcher = Seen()
    found = run_job(
        [tmp_path / "deadly.yaml"],
        out=tmp_path / "out",
        choices=Choices(device="cpu", smoke=True),
        ray=Ray(),
        watcher=watcher,
        allow_code=True,
    )
    assert len(found.failures) == 2
    assert all("its worker was lost" in failure.error for failure in found.failures)
    assert len([line for line in watcher.told if line.startswith("again")]) == 2


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_smoke_writes_nothing(specs: list[str | Path], tmp_path: Path) -> None:
    watcher = Seen()
    choices = Choices(device="cpu", smoke=True)
    found = run_job(specs, out=tmp_path / "out", choices=choices, ray=Ray(), watcher=watcher)
    assert len(found.finished) == 5
    assert (watcher.last.done, watcher.last.total) == (10, 10)  # of steps that are over before a worker tells of them
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_claims_and_tables_are_judged_as_here() -> None:
    points = read_points((TABLES,))[::240]
    names = ("exact", "gdp_clt")
    here, there = (
        {(one.accountant, one.point.epsilon, one.point.table): (one.verdict, one.value) for one in judged}
        for judged in (hold(names, points), hold(names, points, ray=Ray()))
    )
    assert here == there
    assert summarise(hold(names, points, workers=2), {}).points == len(points)
    choice = Choice(papers=("bu2020",), kinds=("inequality",))
    verdicts = [verify((PAPERS,), choice, ray=one).verdicts for one in (None, Ray())]
    assert [one.verdict for one in verdicts[0]] == [one.verdict for one in verdicts[1]]
    assert verdicts[0]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found by /proc")
@pytest.mark.usefixtures("cluster")
def test_claims_are_certified_as_here_though_a_worker_is_lost() -> None:
    choice = Choice(papers=("bu2020",), kinds=("bound",), names=("bu2020.table1-row[34]-*",))
    killed: list[int] = []

    def kill(record: VerdictRecord | None, done: int, of: int) -> None:
        if record is not None and done < of and not killed:
            killed.extend(lose(worker) for worker in workers_at_work()[:1])

    here = verify((PAPERS,), choice, certified=True)
    there = verify((PAPERS,), choice, certified=True, ray=Ray(), progress=kill)
    assert killed
    assert all(one.certified for one in here.verdicts)
    plain = [
        [{name: value for name, value in one.to_json().items() if name not in ("seconds", "date")} for one in of]
        for of in (here.verdicts, there.verdicts)
    ]
    assert plain[0] == plain[1]
    assert [one["verdict"] for one in plain[0]] == 2 * ["unsound", "loose", "unsound"]


@pytest.mark.long
def test_ray_leaves_signals_to_the_driver() -> None:
    """Otherwise SIGTERM ends the program at once, and what workers have done since their last checkpoint is lost."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'dpbench[ray]')")
    code = """
import signal
from dpbench.training.workers import Ray, connected
def handler(*_): pass
both = signal.SIGTERM, signal.SIGINT
for one in both:
    signal.signal(one, handler)
with connected(Ray()):
    assert [signal.getsignal(one) for one in both] == [handler, handler]
print("kept")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "kept\n", done.stderr


@pytest.mark.usefixtures("cluster")
def test_errors_of_calls_are_raised() -> None:
    for options in ({"workers": 1}, {"workers": 2}, {"ray": Ray()}):
        assert sorted(spread(pow, [(2, 3), (3, 2), (1, 1)], **options)) == [1, 8, 9]
        with pytest.raises(ZeroDivisionError):
            list(spread(divmod, [(1, 1), (1, 0), (2, 1)], **options))


@pytest.mark.usefixtures("cluster")
def test_a_call_whose_worker_is_lost_is_made_again(tmp_path: Path) -> None:
    marker = tmp_path / "lost"

    def squared(number: int) -> int:
        if number == 3 and not marker.exists():
            marker.touch()
            os._exit(3)
        return number**2

    assert sorted(spread(squared, [(number,) for number in range(5)], ray=Ray())) == [0, 1, 4, 9, 16]
    assert marker.exists()


@pytest.mark.usefixtures("cluster")
def test_ray_prints_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a lost machine it would print the last log on standard output, by this function of its own."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'dpbench[ray]')")
    from ray._private import worker

    printer = worker.print_to_stdstream
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connected(Ray()):
        worker.print_to_stdstream({"lines": ["a log"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert worker.print_to_stdstream is printer
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.usefixtures("cluster")
def test_a_gpu_is_asked_of_the_cluster(
    specs: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not of the machine that plans."""
    with pytest.raises(DpbenchError, match="no machine of the Ray cluster has a GPU"):
        run_job(specs, out=tmp_path / "out", choices=Choices(device="cuda"), ray=Ray())
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(cli, ["run", str(specs[0]), "--device", "cuda:1", "--executor", "ray"])
    assert "of the Ray cluster has a GPU" in str(found.exception)
