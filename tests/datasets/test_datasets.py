"""Internal: a file that is not what was published is refused at its first wrong byte.

Datasets: the idx parser, files on disk, downloads from a local server, and messages.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbench.datasets import (
    DatasetCorrupt,
    DatasetMissing,
    DownloadFailed,
    RemoteFile,
    check,
    content_hash,
    data_folder,
    describe,
    fetch,
    find_dataset,
    state,
)
from dpbench.datasets._idx import IdxSource, idx_files, parse_idx
from dpbench.errors import DpbenchError


def sha256(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def idx(values: np.ndarray[Any, Any]) -> bytes:
    """An idx file, written here from the format's description."""
    return (
        bytes([0, 0, 8, values.ndim])
        + b"".join(struct.pack(">I", side) for side in values.shape)
        + values.astype(np.uint8).tobytes()
    )


@dataclass
class Small:
    """A dataset of the shape of MNIST, made of a few records: its arrays, its files and its source."""

    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    unpacked: list[bytes] = field(default_factory=list)
    packed: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(7)
        for size in (5, 3):
            self.arrays.append(generator.integers(0, 256, (size, 2, 3), dtype=np.uint8))
            self.arrays.append(generator.integers(0, 10, size, dtype=np.uint8))
        self.unpacked = [idx(array) for array in self.arrays]
        self.packed = [gzip.compress(content, mtime=0) for content in self.unpacked]

    def source(self, mirrors: tuple[str, ...] = ()) -> IdxSource:
        inputs = [(array / np.float32(255)).astype(np.float32)[:, None] for array in self.arrays[::2]]
        targets = [array.astype(np.int64) for array in self.arrays[1::2]]
        return IdxSource(
            name="small",
            title="Small pictures",
            files=idx_files(
                "Small/raw",
                mirrors,
                tuple((sha256(content), len(content)) for content in self.packed),
                tuple(sha256(content) for content in self.unpacked),
            ),
            sha256=content_hash(inputs[0], targets[0], inputs[1], targets[1]),
            licence="none",
            citation="nobody",
            url="http://localhost/",
            train_size=5,
            test_size=3,
            input_shape=(1, 2, 3),
            real=False,
        )

    def write(self, folder: Path, *, packed: bool = True) -> None:
        for file, gz, raw in zip(self.source().files, self.packed, self.unpacked, strict=True):
            target = folder / (file.path if packed else file.unpacked_path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gz if packed else raw)


SMALL = Small()


# ---- the idx format


@st.composite
def idx_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    count = int(np.prod(shape))
    return np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.uint8).reshape(shape)


@given(idx_arrays())
def test_idx_round_trip(values: np.ndarray[Any, Any]) -> None:
    parsed = parse_idx(idx(values), values.shape, dataset="d", file="f")
    assert parsed.dtype == np.uint8
    np.testing.assert_array_equal(parsed, values)


@given(idx_arrays(), st.data())
def test_idx_damage_is_named(values: np.ndarray[Any, Any], data: st.DataObject) -> None:
    content = bytearray(idx(values))
    header = 4 + 4 * values.ndim
    kind = data.draw(st.sampled_from(["cut", "longer", "header"]))
    if kind == "cut":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    elif kind == "longer":
        content += data.draw(st.binary(min_size=1, max_size=9))
    else:
        content[data.draw(st.integers(0, header - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DatasetCorrupt, match=r"dataset 'd': some/file is corrupt: .* expected .*, found "):
        parse_idx(bytes(content), values.shape, dataset="d", file="some/file")


@given(st.binary(max_size=40), st.lists(st.integers(0, 5), max_size=3))
def test_idx_of_anything_parses_or_says_why(content: bytes, shape: list[int]) -> None:
    try:
        parsed = parse_idx(content, tuple(shape), dataset="d", file="f")
    except DatasetCorrupt:
        return
    assert idx(parsed) == content


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "magic number"),
        (b"\x1f\x8b\x08\x00", "magic number"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x02\x01\x02", "magic number"),
        (b"\x00\x00\x08\x01\x00\x00", "length in bytes expected 10, found 6"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x01\x02\x03", r"dimensions expected \(2,\), found \(3,\)"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02\x01", "length in bytes expected 10, found 9"),
    ],
)
def test_idx_messages(content: bytes, what: str) -> None:
    with pytest.raises(DatasetCorrupt, match=what):
        parse_idx(content, (2,), dataset="d", file="f")


# ---- files on disk


@pytest.mark.parametrize("packed", [True, False])
def test_reads_packed_and_unpacked_files(tmp_path: Path, packed: bool) -> None:
    SMALL.write(tmp_path, packed=packed)
    source = SMALL.source()
    assert source.missing(tmp_path) == ()
    assert state(source, tmp_path) == "present"
    loaded = source.load(tmp_path)
    assert loaded.input_shape == (1, 2, 3)
    # x / 255 in float32 is within half an ulp (2^-25) of the fraction; times 255 it is within 2^-17 of the integer
    np.testing.assert_allclose(loaded.train_inputs.numpy()[:, 0] * 255.0, SMALL.arrays[0], rtol=0, atol=2**-16)
    assert loaded.test_targets.tolist() == SMALL.arrays[3].tolist()
    assert float(loaded.train_inputs.max()) <= 1.0
    assert [status.state for status in check(source, tmp_path)] == ["ok"] * 4


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3), st.booleans(), st.data())
def test_any_damaged_byte_is_found(tmp_path: Path, which: int, packed: bool, data: st.DataObject) -> None:
    folder = tmp_path / str(packed)
    SMALL.write(folder, packed=packed)
    source = SMALL.source()
    file = source.files[which]
    path = folder / (file.path if packed else file.unpacked_path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    with pytest.raises(DatasetCorrupt) as caught:
        source.load(folder)
    error = caught.value
    pinned = file.sha256 if packed else file.unpacked_sha256
    assert (error.place, error.expected, error.found) == (str(path), pinned, sha256(content))
    for part in (str(path), pinned, sha256(content), f"dpbench data fetch small --data {folder}"):
        assert part in str(error)
    status = check(source, folder)[which]
    assert (status.state, status.expected, status.found) == ("corrupt", pinned, sha256(content))


def test_missing_files_are_named_with_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    SMALL.write(folder)
    source = SMALL.source()
    (folder / source.files[1].path).unlink()
    assert source.missing(folder) == (source.files[1],)
    assert state(source, folder) == "incomplete"
    with pytest.raises(DatasetMissing) as caught:
        source.load(folder)
    assert caught.value.command == f"dpbench data fetch small --data '{folder}'"
    assert caught.value.command in str(caught.value)
    assert "Small/raw/train-labels-idx1-ubyte.gz" in str(caught.value)
    assert "train-images" not in str(caught.value)
    assert [status.state for status in check(source, folder)] == ["ok", "missing", "ok", "ok"]
    text = describe(source, folder)
    assert "1 of 4 files" in text
    assert caught.value.command in text
    with pytest.raises(DatasetMissing, match="no such folder"):
        source.load(tmp_path / "absent")


def test_a_right_hash_on_a_broken_file_is_still_an_error(tmp_path: Path) -> None:
    """A wrong pin cannot let broken contents through: gzip, idx format, labels and content hash are checked too."""
    SMALL.write(tmp_path)
    source = SMALL.source()
    path = tmp_path / source.files[1].path

    def pinned(content: bytes) -> IdxSource:
        path.write_bytes(content)
        file = replace(source.files[1], sha256=sha256(content))
        return replace(source, files=(source.files[0], file, *source.files[2:]))

    good = SMALL.packed[1]
    wrong_check_sum = good[:-8] + bytes([good[-8] ^ 1]) + good[-7:]
    for content in (b"no gzip", good[:-4], good[: len(good) // 2], wrong_check_sum):
        with pytest.raises(DatasetCorrupt, match="a whole gzip file"):
            pinned(content).load(tmp_path)
    with pytest.raises(DatasetCorrupt, match="dimensions"):
        pinned(gzip.compress(idx(np.zeros(4)))).load(tmp_path)
    with pytest.raises(DatasetCorrupt, match="labels expected 0 to 9, found 10"):
        pinned(gzip.compress(idx(np.array([0, 1, 10, 2, 3])))).load(tmp_path)
    with pytest.raises(DatasetCorrupt, match="content SHA-256"):
        pinned(gzip.compress(idx((SMALL.arrays[1] + 1) % 10))).load(tmp_path)


def test_unreadable_files_give_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL.write(tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DpbenchError, match=r"cannot read .*train-images.*: Permission denied"):
        SMALL.source().load(tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DpbenchError, match=r"cannot read .*train-images.*: Permission denied"):
        check(SMALL.source(), tmp_path)
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DpbenchError, match=r"cannot look for .*train-images.*: Permission denied"):
        SMALL.source().missing(tmp_path)


def test_parameters_are_refused_by_name() -> None:
    with pytest.raises(DpbenchError, match="'digits' takes no parameters: remove size = 3"):
        find_dataset("digits", {"size": 3})


def test_data_folder_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPBENCH_DATA", str(tmp_path / "variable"))
    assert data_folder(tmp_path / "option") == tmp_path / "option"
    assert data_folder() == tmp_path / "variable"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder("~/here") == tmp_path / "here"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("DPBENCH_DATA")
        else:
            monkeypatch.setenv("DPBENCH_DATA", unset)
        assert "dpbench" in data_folder().name
        assert data_folder().is_absolute()


def test_load_uses_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL.write(tmp_path)
    monkeypatch.setenv("DPBENCH_DATA", str(tmp_path))
    source = SMALL.source()
    assert source.missing() == ()
    assert source.load().sha256 == source.sha256


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a\\b", ""])
def test_a_file_stays_inside_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="inside the data folder"):
        RemoteFile(path, (), "0" * 64, 1)


def test_a_file_needs_a_whole_hash() -> None:
    with pytest.raises(ValueError, match="64 lower-case"):
        RemoteFile("a", (), "abc", 1)
    with pytest.raises(ValueError, match="both or neither"):
        RemoteFile("a", (), "0" * 64, 1, unpacked_path="b")


# ---- downloads


class Server:
    """A server on this machine: the first part of a path says how it is answered."""

    def __init__(self) -> None:
        self.stalled, self.go_on = threading.Event(), threading.Event()
        self.sent = 0
        self.requests: list[str] = []
        self.encodings: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                outer.encodings.append(self.headers["Accept-Encoding"])
                kind, name = unquote(self.path).strip("/").split("/")
                names = [Path(file.path).name for file in SMALL.source().files]
                if kind == "gone" or name not in names:
                    self.send_error(404)
                    return
                content = SMALL.packed[names.index(name)]
                if kind == "bad":
                    content = content[:-1] + bytes([content[-1] ^ 1])
                self.send_response(200)
                if kind in ("short", "stalls", "good", "bad", "longer than it says"):
                    self.send_header("Content-Length", str(len(content)))
                if kind == "unpacks":  # some bytes on the way, 64 MiB behind
                    self.send_header("Content-Encoding", "gzip")
                    content = gzip.compress(bytes(1 << 26))
                self.end_headers()
                self.send(kind, content)

            def send(self, kind: str, content: bytes) -> None:
                self.wfile.write(content[: len(content) // 2] if kind in ("short", "stalls") else content)
                self.wfile.flush()
                if kind == "stalls":
                    outer.stalled.set()
                    outer.go_on.wait()
                if kind in ("longer", "longer than it says"):
                    self.wfile.write(b"x")
                with contextlib.suppress(OSError):  # until the client has enough
                    while kind == "endless" and outer.sent < 1 << 30:
                        outer.sent += self.wfile.write(bytes(1 << 16))

            def log_message(self, *_: Any) -> None:
                """Keep the output of the tests clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def mirrors(self, *kinds: str) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{self._server.server_port}/{quote(kind)}/" for kind in kinds)

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_fetch_gets_every_file_and_then_nothing(tmp_path: Path, server: Server) -> None:
    source = SMALL.source(server.mirrors("good"))
    calls: list[tuple[str, int, int]] = []
    written = fetch(source, tmp_path, progress=lambda *call: calls.append(call))
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [file.path for file in source.files]
    assert files_in(tmp_path) == sorted(file.path for file in source.files)
    assert source.load(tmp_path).sha256 == source.sha256
    for file in source.files:
        done = [now for path, now, total in calls if path == file.path and total == file.size]
        assert done == sorted(done)
        assert done[-1] == file.size
    # a mirror must not unpack the .gz on the way
    assert set(server.encodings) == {"identity"}
    server.requests.clear()
    assert fetch(source, tmp_path) == ()
    assert server.requests == []


LIES = ("gone", "bad", "short", "longer", "longer than it says", "endless", "unpacks")


@pytest.mark.parametrize("lie", LIES)
def test_no_more_than_the_published_file_is_written_and_nothing_stays(tmp_path: Path, server: Server, lie: str) -> None:
    source = SMALL.source(server.mirrors(lie))
    largest = max(file.size for file in source.files)

    def small(*_: Any) -> None:
        assert all((tmp_path / name).stat().st_size <= largest for name in files_in(tmp_path))

    if lie == "longer than it says":  # what is past the stated length is not read
        fetch(source, tmp_path, progress=small)
        assert files_in(tmp_path) == sorted(file.path for file in source.files)
        return
    with pytest.raises(DownloadFailed) as caught:
        fetch(source, tmp_path, progress=small)
    assert files_in(tmp_path) == []
    if lie in ("longer", "endless", "unpacks"):
        size = source.files[0].size
        assert f"it sends more than the {size} bytes of the published file, and was cut off" in str(caught.value)
    assert server.sent < 1 << 25  # what lay in buffers when the connection was closed


@pytest.mark.skipif(sys.platform == "win32", reason="what a killed process left goes only after a day on Windows")
def test_what_a_killed_download_left_goes_with_the_next(tmp_path: Path, server: Server) -> None:
    files = SMALL.source(server.mirrors("stalls")).files
    code = (
        "import sys; from pathlib import Path; from types import SimpleNamespace\n"
        "from dpbench.datasets import RemoteFile, fetch\n"
        f"fetch(SimpleNamespace(name='small', files={files!r}), Path(sys.argv[1]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    assert server.stalled.wait(60)
    process.kill()
    process.wait()
    assert len(files_in(tmp_path)) == 1
    server.go_on.set()
    source = SMALL.source(server.mirrors("good"))
    fetch(source, tmp_path)
    assert files_in(tmp_path) == sorted(file.path for file in source.files)


@pytest.mark.parametrize("first", [lie for lie in LIES if lie != "longer than it says"])
def test_fetch_goes_on_to_the_next_mirror(tmp_path: Path, server: Server, first: str) -> None:
    source = SMALL.source(server.mirrors(first, "good"))
    fetch(source, tmp_path)
    assert len(server.requests) == 8
    assert source.load(tmp_path).sha256 == source.sha256
    assert files_in(tmp_path) == sorted(file.path for file in source.files)


def test_fetch_goes_on_where_nobody_listens(tmp_path: Path, server: Server) -> None:
    source = SMALL.source(("http://127.0.0.1:9/", "nonsense://host/", *server.mirrors("good")))
    fetch(source, tmp_path)
    assert source.missing(tmp_path) == ()


def test_fetch_that_fails_says_why_and_leaves_nothing(tmp_path: Path, server: Server) -> None:
    source = SMALL.source(server.mirrors("gone", "bad", "short"))
    with pytest.raises(DownloadFailed) as caught:
        fetch(source, tmp_path)
    message, file = str(caught.value), source.files[0]
    assert len(caught.value.reasons) == 3
    for url in file.urls:
        assert url in message
    assert "404" in caught.value.reasons[0]
    bad = SMALL.packed[0][:-1] + bytes([SMALL.packed[0][-1] ^ 1])
    assert f"expected {file.sha256}, found {sha256(bad)}" in caught.value.reasons[1]
    assert f"put the published file (SHA-256 {file.sha256}) at {tmp_path / file.path} by hand" in message
    assert files_in(tmp_path) == []
    assert [path.name for path in (tmp_path / "Small/raw").iterdir()] == []


def test_fetch_replaces_a_corrupt_file_only_by_a_good_one(tmp_path: Path, server: Server) -> None:
    SMALL.write(tmp_path)
    path = tmp_path / SMALL.source().files[2].path
    path.write_bytes(b"broken")
    with pytest.raises(DownloadFailed):
        fetch(SMALL.source(server.mirrors("bad")), tmp_path)
    assert path.read_bytes() == b"broken"
    assert fetch(SMALL.source(server.mirrors("good")), tmp_path) == (path,)
    assert path.read_bytes() == SMALL.packed[2]


def test_fetch_mends_a_corrupt_unpacked_file(tmp_path: Path, server: Server) -> None:
    SMALL.write(tmp_path, packed=False)
    source = SMALL.source(server.mirrors("good"))
    (tmp_path / source.files[0].unpacked_path).write_bytes(b"broken")
    assert fetch(source, tmp_path) == (tmp_path / source.files[0].path,)
    assert source.load(tmp_path).sha256 == source.sha256
    assert {status.state for status in check(source, tmp_path)} == {"ok"}


def test_fetch_interrupted_leaves_nothing(tmp_path: Path, server: Server) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(SMALL.source(server.mirrors("good")), tmp_path, progress=interrupt)
    assert files_in(tmp_path) == []


def test_fetch_onto_a_full_disk(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DpbenchError, match=r"cannot write .*train-images.*No space left on device.*--data"):
        fetch(SMALL.source(server.mirrors("good")), tmp_path)
    assert files_in(tmp_path) == []


def test_fetch_into_something_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DpbenchError, match=r"cannot write .*file/Small/raw/train-images"):
        fetch(SMALL.source(), tmp_path / "file")


def test_fetch_of_an_embedded_dataset_does_nothing(tmp_path: Path) -> None:
    assert fetch(find_dataset("digits"), tmp_path) == ()
    assert files_in(tmp_path) == []


# ---- digits


def test_digits_are_the_images_of_scikit_learn_split_by_the_documented_rule() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    row = [index for digit in range(10) for index in range(1797) if labels[index] == digit]
    test = sorted(index for place, index in enumerate(row) if place % 5 == 0)
    train = [index for index in range(1797) if index not in set(test)]
    loaded = find_dataset("digits").load(None)
    assert loaded.train_targets.tolist() == labels[train].tolist()
    assert loaded.test_targets.tolist() == labels[test].tolist()
    # a sixteenth is exact in float32
    np.testing.assert_array_equal(loaded.train_inputs.numpy().reshape(-1, 64) * 16, pixels[train])
    np.testing.assert_array_equal(loaded.test_inputs.numpy().reshape(-1, 64) * 16, pixels[test])
    of_all, of_test = Counter(labels.tolist()), Counter(labels[test].tolist())
    assert all(abs(of_test[digit] - of_all[digit] / 5) < 1 for digit in range(10))


def test_changed_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets

    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    pixels[0, 0] += 1
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda **_: (pixels, labels))
    source = find_dataset("digits")
    with pytest.raises(DatasetCorrupt, match=f"content SHA-256 expected {source.sha256}, found .*\n.*scikit-learn"):
        source.load(None)
    (status,) = check(source)
    assert (status.state, status.expected) == ("corrupt", source.sha256)
    assert status.found not in {"", source.sha256}


# ---- the published datasets, where they are at hand


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "train_counts"),
    [
        # the class sizes that are published with MNIST; Fashion-MNIST has 6,000 of each class
        ("mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("fashion_mnist", [6000] * 10),
    ],
)
def test_published_files(name: str, train_counts: list[int], tmp_path: Path) -> None:
    source = find_dataset(name)
    if source.missing(data_folder()):
        pytest.skip(f"{name} is not in {data_folder()} (set DPBENCH_DATA)")
    assert isinstance(source, IdxSource)
    loaded = source.load(data_folder())
    assert torch.bincount(loaded.train_targets).tolist() == train_counts
    parts = (loaded.train_inputs, loaded.train_targets, loaded.test_inputs, loaded.test_targets)
    for file, values in zip(source.files, parts, strict=True):
        found = file.locate(data_folder())
        assert found is not None
        content = found.read_bytes()
        raw = gzip.decompress(content) if found.suffix == ".gz" else content
        integers = (values * 255).round() if values.dtype == torch.float32 else values
        header = len(raw) - values.numel()
        assert raw[header:] == integers.to(torch.uint8).numpy().tobytes()
        target = tmp_path / file.unpacked_path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
    assert source.load(tmp_path).sha256 == loaded.sha256


# ---- quick to look at


def test_listing_imports_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys\n"
        "from dpbench.catalog import catalog, of_a_file\n"
        "from dpbench.datasets import describe, find_dataset\n"
        "for name in catalog('datasets'): print(of_a_file(name) or describe(find_dataset(name)))\n"
        "print([name for name in ('torch', 'sklearn', 'scipy', 'requests') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.splitlines()[-1] == "[]"
    for name in ("digits", "mnist", "fashion_mnist"):
        assert re.search(rf"^{name} \(", run.stdout, re.MULTILINE)
