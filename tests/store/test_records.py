"""Internal: whose unfinished file may be removed, and whether the code that ran is a commit.

Records are written whole or not at all, read back as they were, and a bad file harms no other.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench import atomic
from dpbench.atomic import clean_folder, write_bytes, writing
from dpbench.errors import DpbenchError
from dpbench.store import provenance, records
from dpbench.store.provenance import code_hash, environment
from dpbench.store.records import NewerRecord, Store, finite, restored
from dpbench.store.shapes import RunRecord, run_record
from tests.store.record_samples import failure_json, run_json

ROOT = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_run_is_read_back_as_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    data = run_json(seed=3)
    data["own_note"] = {"kept": True}  # further keys of the writer stay in the file
    path = store.write_run(data)
    assert path == tmp_path / "records" / f"{data['run_key']}.json"
    (record,) = store.read().runs
    assert store.existing() == {data["run_key"]: data | {"digest": record.digest}}
    assert record.seed == 3
    assert record.curve[-1].test_accuracy == data["result"]["test_accuracy"]
    assert record.context.name == "quick"
    assert names(tmp_path) == [path.name]


def test_a_typed_record_can_be_written_too(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    data = run_json(context={"published": {"mu": {"text": "0.23", "value": 0.23, "half_unit": 0.005}}})
    first.write_run(data)
    (record,) = first.read().runs
    assert isinstance(record, RunRecord)
    second.write_run(record)
    (again,) = second.read().runs
    assert replace(again, digest=record.digest) == record  # the file of the first has keys that the type has not


def test_failures_are_no_results_and_a_success_removes_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    failure = failure_json(seed=4)
    store.write_failure(failure)
    assert store.existing() == {}
    assert store.read().runs == ()
    assert [one.error for one in store.read().failures] == ["not finite"]
    store.write_run(run_json(seed=4))
    assert run_json(seed=4)["run_key"] == failure["run_key"]
    assert store.read().failures == ()
    assert not store.failure_path(failure["run_key"]).exists()


def test_a_failure_after_a_success_is_shown_and_an_older_one_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run, failure = run_json(seed=4), failure_json(seed=4)
    store.write_run(run)
    for stamp, shown in (("2026-11-20T00:00:00+00:00", 0), ("2026-11-22T00:00:00+00:00", 1)):
        store.write_failure(failure | {"environment": {"time_utc": stamp}})
        assert len(store.read().failures) == shown
        assert len(store.read().runs) == 1


def test_published_records_count_and_own_records_come_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    published, own = run_json(seed=1, seconds=5.0), run_json(seed=1, seconds=7.0)
    store.write_run(published)
    store.published_folder.parent.mkdir()
    store.records_folder.rename(store.published_folder)
    assert list(store.existing()) == [published["run_key"]]
    store.write_run(own)
    assert store.existing()[own["run_key"]]["own_seconds"] == 7.0
    assert [run.own_seconds for run in store.read().runs] == [7.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ('{"schema_version": 1, "ty', "not JSON"),
        ("[1, 2]", "expected a JSON object"),
        ("\x00" * 100, "not JSON"),
        ('{"schema_version": 3, "type": "run"}', "schema_version = 3: this dpbench reads up to 2"),
        ('{"schema_version": 0, "type": "run"}', "schema_version = 0: this dpbench reads 1, 2"),
        ('{"schema_version": 1, "type": "run"}', "run_key: field required"),
        ('{"schema_version": 1, "type": "audit"}', "type = 'audit': expected 'run'"),
    ],
)
def test_a_damaged_file_is_named_and_harms_no_other(tmp_path: Path, content: str, message: str) -> None:
    store = Store(tmp_path)
    good = run_json()
    store.write_run(good)
    bad = store.records_folder / f"{'e' * 64}.json"
    bad.write_text(content, encoding="utf-8")
    found = store.read()
    assert [run.run_key for run in found.runs] == [good["run_key"]]
    assert [item.path for item in found.damaged] == [bad]
    assert str(bad) in found.damaged[0].message
    assert message in found.damaged[0].message
    assert list(store.existing()) == [good["run_key"]]
    if "reads up to" in message:
        with pytest.raises(NewerRecord, match="e" * 64):  # it is somebody's result: no run may take its place
            store.refused("e" * 64)
    else:
        assert message in store.refused("e" * 64)


def _without(data: dict[str, Any], *path: str) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copy


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: _without(d, "context", "name"), "context.name"),
        (lambda d: _without(d, "result", "test_accuracy"), "exactly one of test_accuracy"),
        (lambda d: _without(d, "resolved", "steps"), "steps = None"),
        (lambda d: d | {"result": {"test_accuracy": 95.0}}, "result.test_accuracy"),
        (lambda d: d | {"result": {"test_accuracy": math.nan}}, "result.test_accuracy"),
        (lambda d: d | {"seed": "3"}, "seed"),
        (lambda d: d | {"seconds": "many"}, "seconds"),
        (lambda d: d | {"run_key": "../../escape"}, "run_key"),
        (lambda d: d | {"resolved": d["resolved"] | {"model": "mlp"}}, "model = 'mlp'"),
    ],
)
def test_what_is_no_record_is_not_written(tmp_path: Path, change: Any, where: str) -> None:
    with pytest.raises(DpbenchError) as caught:
        Store(tmp_path).write_run(change(run_json()))
    assert where in str(caught.value)
    assert names(tmp_path) == []


def test_a_renamed_record_is_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write_run(run_json())
    path.rename(path.with_name(f"{'a' * 64}.json"))
    (damaged,) = store.read().damaged
    assert "expected its file name" in damaged.message


def test_numbers_that_are_not_finite_are_null_with_a_reason_and_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    data = run_json()
    data["curve"][0]["train_loss"] = math.inf
    data["curve"][1]["train_loss"] = math.nan
    path = store.write_run(data)
    text = path.read_text(encoding="utf-8")
    written = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert written["curve"][0]["train_loss"] is None
    assert written["curve"][0]["train_loss_reason"] == "infinite"
    (record,) = store.read().runs
    assert record.curve[0].train_loss == math.inf
    assert math.isnan(record.curve[1].train_loss or 0.0)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), plain, max_size=4))
def test_finite_and_restored_are_inverse(value: dict[str, Any]) -> None:
    text = json.dumps(finite(value), allow_nan=False)
    assert repr(restored(json.loads(text))) == repr(value)  # repr: nan equals itself


# Full and closed disks. Root ignores file modes, so errors are injected where the system would raise them.

ERRORS = [
    (errno.ENOSPC, "the disk (or your quota) is full"),
    (errno.EDQUOT, "the disk (or your quota) is full"),
    (errno.EACCES, "the folder cannot be written"),
    (errno.EROFS, "the folder cannot be written"),
    (errno.EIO, "check the folder"),
]


@pytest.mark.parametrize("place", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize(("number", "advice"), ERRORS)
def test_an_error_of_the_disk_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int, advice: str
) -> None:
    store = Store(tmp_path)
    earlier = run_json(seconds=5.0)
    path = store.write_run(earlier)
    before = path.read_bytes()
    reached = []

    def fail(*_: Any, **__: Any) -> Any:
        reached.append(place)
        raise OSError(number, os.strerror(number))

    class Full:
        """A file whose disk is full after the first bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.close()

        def write(self, content: bytes) -> int:
            self.file.write(content[:10])
            self.file.flush()
            return fail()  # type: ignore[no-any-return]

    real_open = Path.open
    if place == "open":
        monkeypatch.setattr(Path, "open", fail)
    elif place == "write":
        monkeypatch.setattr(Path, "open", lambda self, mode: Full(real_open(self, mode)))
    elif place == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DpbenchError) as caught:
        store.write_run(run_json(seconds=7.0))
    monkeypatch.undo()
    assert reached == [place]
    message = str(caught.value)
    assert str(path) in message
    assert advice in message
    assert "\n" not in message
    assert path.read_bytes() == before
    assert names(tmp_path) == [path.name], "something half-written was left"


def test_a_failing_first_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DpbenchError):
        Store(tmp_path).write_run(run_json())
    assert names(tmp_path) == []


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("I am a file", encoding="utf-8")
    with pytest.raises(DpbenchError, match="a file stands where the folder"):
        Store(tmp_path / "out").write_run(run_json())
    assert names(tmp_path) == ["out"]


def test_ctrl_c_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with writing(tmp_path / "a.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX's")
def test_a_real_limit_of_the_file_size(tmp_path: Path) -> None:
    """The kernel itself refuses: nothing is patched."""
    code = f"""
        import resource, sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tests.store.record_samples import run_json
        from dpbench.store.records import Store
        from dpbench.errors import DpbenchError
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            Store(Path({str(tmp_path)!r})).write_run(run_json())
        except DpbenchError as error:
            print(error)
            sys.exit(7)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert "File too large" in done.stdout
    assert "is full" in done.stdout
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX's")
def test_a_writer_killed_at_random_moments_loses_nothing_finished(tmp_path: Path) -> None:
    """Ten writers in a row, each killed at a random moment of its work.

    A writer prints a seed once its record is on the disk. It is killed within the time of two writes, measured on
    this machine, after its third: so the moment falls anywhere in a write, however slow the machine is.
    """
    code = f"""
        import itertools, sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tests.store.record_samples import run_json
        from dpbench.store.records import Store
        store = Store(Path({str(tmp_path)!r}))
        print("ready", flush=True)
        for seed in itertools.count(int(sys.argv[1])):
            store.write_run(run_json(seed=seed, epochs=200))
            print(seed, flush=True)
    """
    draw = random.Random(20261121)
    finished: list[int] = []
    strays = 0
    for turn in range(10):
        command = [sys.executable, "-c", textwrap.dedent(code), str(100_000 * turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            begin = time.perf_counter()
            first = [process.stdout.readline() for _ in range(3)]
            time.sleep(draw.uniform(0, 2 / 3) * (time.perf_counter() - begin))
            process.send_signal(signal.SIGKILL)
            later = process.stdout.read().split("\n")[:-1]  # what follows the last newline may be half a number
        finished += [int(line) for line in [*first, *later]]
        strays += sum(path.name.endswith(".tmp") for path in (tmp_path / "records").glob(".*"))
        contents = Store(tmp_path).read()
        assert contents.damaged == ()
        assert {run.seed for run in contents.runs} >= set(finished)
    assert len(finished) >= 30
    removed = Store(tmp_path).clean()
    assert len(removed) <= strays
    assert not [name for name in names(tmp_path) if not name.endswith(".json")]


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX's")
@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
def test_a_writer_killed_at_the_worst_moment_leaves_the_earlier_record(tmp_path: Path, place: str) -> None:
    """Random moments seldom fall between two system calls; here the writer kills itself there."""
    store = Store(tmp_path)
    path = store.write_run(run_json(seconds=5.0))
    before = path.read_bytes()
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tests.store.record_samples import run_json
        from dpbench import atomic
        from dpbench.store.records import Store
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
        if {place!r} == "write":
            with atomic.writing(Path({str(path)!r})) as file:
                file.write(b'{{"schema_version": 1, "half')
                file.flush()
                die()
        elif {place!r} == "fsync":
            os.fsync = die
        else:
            Path.replace = die
        Store(Path({str(tmp_path)!r})).write_run(run_json(seconds=7.0))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(names(tmp_path)) == 2, "the writer did not get as far as a temporary file"
    assert path.read_bytes() == before
    assert store.read().damaged == ()
    assert [run.own_seconds for run in store.read().runs] == [5.0]
    assert len(store.clean()) == 1
    assert names(tmp_path) == [path.name]


def test_strays_are_ignored_and_only_dead_writers_are_cleaned(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass  # its number now belongs to nobody
    here = atomic._place()
    dead = tmp_path / f".{'a' * 64}.json.{here}-{process.pid}-01234567.tmp"
    alive = tmp_path / f".{'b' * 64}.json.{here}-{os.getpid()}-01234567.tmp"
    elsewhere = tmp_path / f".{'c' * 64}.json.{'0' * 8}-{process.pid}-01234567.tmp"
    forgotten = tmp_path / f".{'d' * 64}.json.{'0' * 8}-{process.pid}-89abcdef.tmp"
    foreign = tmp_path / ".notes.tmp"
    for path in (dead, alive, elsewhere, forgotten, foreign):
        path.write_text("{", encoding="utf-8")
    os.utime(forgotten, (time.time() - 2 * 86400,) * 2)
    assert set(clean_folder(tmp_path)) == {dead, forgotten}
    assert set(names(tmp_path)) == {alive.name, elsewhere.name, foreign.name}
    assert clean_folder(tmp_path / "absent") == ()


def test_the_next_writer_cleans(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.records_folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    stray = store.records_folder / f".x.json.{atomic._place()}-{process.pid}-01234567.tmp"
    stray.write_text("{", encoding="utf-8")
    assert store.read() == records.Contents((), (), ())
    store.write_run(run_json())
    assert not stray.exists()


def test_write_bytes_replaces_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.bin"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file.bin"]


# Provenance


def test_environment_is_plain_json_and_loads_torch_only_on_request() -> None:
    code = (
        "import json, sys; from dpbench.store.provenance import environment; found = environment();"
        "assert 'torch' not in sys.modules and found['torch'] is None; print(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert {"commit", "dirty", "dpbench", "python", "torch", "device", "threads", "platform", "time_utc"} <= set(found)
    assert environment(with_torch=True)["threads"] >= 1


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_commit_and_dirty_flag(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    assert provenance._git_state(package) == (None, None)
    _git(tmp_path, "init", "-q")
    assert provenance._git_state(package) == (None, None), "the package is not tracked by this checkout"
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert provenance._git_state(package) == (commit, False)
    (tmp_path / "report.json").write_text("{}", encoding="utf-8")
    assert provenance._git_state(package) == (commit, False), "what lies beside the package does not make it dirty"
    (package / "new.py").write_text("", encoding="utf-8")
    assert provenance._git_state(package) == (commit, True)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes a module's source and gives its hash."""
    monkeypatch.syspath_prepend(str(tmp_path))
    count = 0

    def hash_of(source: str, encoding: str = "utf-8") -> str:
        nonlocal count
        count += 1
        (tmp_path / f"some_module_{count}.py").write_bytes(source.encode(encoding))
        return code_hash(f"some_module_{count}")

    return hash_of


BASE = '''\
"""What it is for."""

import math


class Thing:
    """A thing."""

    size = 3

    def area(self, scale=2.0):
        """Its area.

        Twice as much as one thinks.
        """
        text = """kept

        as it is  # not a comment
        """
        if scale > 1:  # big
            return math.pi * self.size ** 2 * scale, f"{scale!r:>10} # {'x'}"
        return 0, text
'''


@pytest.mark.parametrize(
    "same",
    [
        BASE,
        BASE.replace('"""What it is for."""\n', ""),
        BASE.replace('"""What it is for."""', "'''Something ''' 'else, in two pieces'"),
        BASE.replace("  # big", ""),
        BASE.replace("\n\n\nclass", "\n# a comment\n\nclass"),
        BASE.replace("        Twice as much as one thinks.\n", "        Zweimal so viel, wie man denkt: ä ö ü ∞.\n"),
        BASE.replace("self, scale=2.0", "\n        self,\n        scale = 2.0  # default\n    "),
        BASE.replace("math.pi * self.size ** 2", "math.pi*self.size**2"),
        BASE.replace("\n", "\r\n"),
        BASE.rstrip("\n"),
        BASE.replace("size = 3", "size = 3   "),
        BASE.replace("return 0, text", "return 0, \\\n            text"),
        "\ufeff" + BASE,
    ],
)
def test_code_hash_ignores_what_is_not_code(module: Any, same: str) -> None:
    assert module(same) == module(BASE)


@pytest.mark.parametrize(
    "other",
    [
        BASE.replace("size = 3", "size = 4"),
        BASE.replace("kept\n\n", "kept\n"),
        BASE.replace("# not a comment", "# another comment"),
        BASE.replace("# {'x'}", "# {'y'}"),
        BASE.replace("        return 0, text", "            return 0, text"),
        BASE.replace("return 0", "return0"),
        BASE.replace("size = 3", "size = 3\n    'not a docstring'"),
        BASE.replace("import math\n", "import math\nimport cmath\n"),
    ],
)
def test_code_hash_sees_what_is_code(module: Any, other: str) -> None:
    assert module(other) != module(BASE)


def test_code_hash_is_pinned() -> None:
    """The same on every supported Python: CI runs this on each of them."""
    text = provenance.normalise_source(BASE.encode())
    assert text.split("\n")[:5] == [
        "import math",
        "class Thing:",
        "\tsize=3",
        "\tdef area(self,scale=2.0):",
        '\t\ttext="""kept',
    ]
    import hashlib

    pinned = "49486c31cedcd81af82ac5923db7cb7ad30a82df0b2d48f83d065da843a95eb9"
    assert hashlib.sha256(text.encode()).hexdigest() == pinned


def test_code_hash_of_another_encoding_and_of_nothing(module: Any) -> None:
    latin = "# -*- coding: latin-1 -*-\nname = 'ä'\n"
    assert module(latin, "latin-1") == module("name = 'ä'\n")
    with pytest.raises(DpbenchError, match="no_such_module_at_all"):
        code_hash("no_such_module_at_all")
    with pytest.raises(DpbenchError, match="expected a module with a source file"):
        code_hash("sys")


def test_code_hash_counts_columns_in_characters(module: Any) -> None:
    """The syntax tree counts bytes: letters beyond ASCII before a docstring on its own line must not hide it."""
    assert module("class Größe: 'one'; size = 'ä'\n") == module("class Größe: 'another'; size = 'ä'\n")
    assert module("class Größe: 'one'; size = 'ä'\n") != module("class Größe: 'one'; size = 'ö'\n")


def test_typed_records_are_plain_data_inside() -> None:
    record = run_record(run_json())
    assert run_record(asdict(record)) == record
