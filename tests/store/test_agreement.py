"""What a record says of itself must agree, whoever wrote its digest; any file under OUT harms no other."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpbench.atomic import read_bytes
from dpbench.catalog import find
from dpbench.datasets import find_dataset
from dpbench.errors import DpbenchError
from dpbench.events import to_json
from dpbench.job import write_reports
from dpbench.store.check_records import SHIPPED, CheckRecord, of_record, read_checks, write_check
from dpbench.store.reading import digest, read_json, signed
from dpbench.store.records import Damaged, Store, taken_on_trust
from dpbench.store.run_key import run_key
from dpbench.store.shapes import run_record
from tests.store.record_samples import failure_json, run_json

Change = Callable[[dict[str, Any]], Any]


def rekeyed(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"run_key": run_key(data["resolved"])}


def put(store: Store, data: dict[str, Any], *, forged: bool = True) -> Path:
    """A record file as a hostile author would write it: with the digest of its content, if `forged`."""
    path = store.run_path(data["run_key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(signed(data) if forged else data), encoding="utf-8")
    return path


def private(**changes: Any) -> dict[str, Any]:
    return run_json() | changes


def set_in(*path: Any) -> Change:
    """A change that puts the last of `path` at the place that the others name."""
    *places, last, value = path

    def change(data: dict[str, Any]) -> None:
        inner: Any = data
        for place in places:
            inner = inner[place]
        inner[last] = value

    return change


LIES: dict[str, tuple[Change, str]] = {
    "sigma of the key": (set_in("resolved", "noise_multiplier", 13.0), "run_key is that of another run"),
    "another seed": (set_in("seed", 7), "seed = 7, but it resolved seed = 0"),
    "accuracy": (set_in("result", "test_accuracy", 0.99), "result.test_accuracy = 0.99, but the curve ends with 0.95"),
    "loss": (set_in("result", "test_loss", 0.01), "result.test_loss = 0.01"),
    "sigma of the ledger": (set_in("ledger", "parts", 0, "noise_multiplier", 13.0), "not the one that noisy_sgd has"),
    "a shorter ledger": (set_in("ledger", "parts", 0, "count", 3), "its ledger has 3"),
    "another sampler": (set_in("ledger", "parts", 0, "sampler", "shuffled"), "not the one that noisy_sgd has"),
    "an unknown event": (set_in("ledger", "parts", 0, "event", "Magic"), "its ledger cannot be read"),
    "no ledger": (set_in("ledger", None), "facts.private = True, but it has no ledger"),
    "not private": (set_in("facts", "private", False), "facts.private = False"),
    "another adjacency": (set_in("facts", "adjacency", "zero_out"), "facts.adjacency = zero_out"),
    "another batch": (set_in("facts", "expected_batch_size", 2.0), "facts.expected_batch_size = 2.0"),
    "a cut curve": (lambda data: data["curve"].pop(), "the curve ends at step"),
    "a curve that goes back": (set_in("curve", 3, "step", 1), "the steps of its curve do not rise"),
    "an epoch": (set_in("curve", 3, "epoch", 40.0), "epoch 40.0 of its curve is not"),
    "time that goes back": (set_in("curve", 3, "seconds", 1e6), "seconds of its curve fall"),
    "events spent on the way": (set_in("curve", 3, "releases", 939), "events at step"),
    "another privacy unit": (set_in("facts", "privacy_unit", "one user"), "facts.privacy_unit = one user"),
    "a claim of another mechanism": (set_in("facts", "claimed_by", "a theorem"), "facts.claimed_by = a theorem"),
    "noise that was left out": (set_in("facts", "without_noise", 0.5), "noisy_sgd does not count it"),
    "more time than its stack": (set_in("own_seconds", 1e6), "exceed the"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_contradicts_itself_is_left_out_and_named(tmp_path: Path, lie: str) -> None:
    """With a digest of the changed content, as a hostile author writes it."""
    change, words = LIES[lie]
    store, good, bad = Store(tmp_path), run_json(seed=1), run_json()
    put(store, good)
    change(bad)
    path = put(store, bad)
    contents = store.read()
    assert [run.seed for run in contents.runs] == [1]
    (found,) = contents.damaged
    assert found.message.startswith(f"inconsistent: {path}: ")
    assert words in found.message
    assert list(store.existing()) == [good["run_key"]]
    assert store.refused(bad["run_key"]) == found.message


REKEYED: dict[str, tuple[dict[str, Any], Change, str]] = {
    "noise of what adds none": (
        run_json(sigma=None),
        set_in("resolved", "noise_multiplier", 1.0),
        "noise_multiplier = 1.0, but",
    ),
    "an unknown randomness": (run_json(), set_in("resolved", "randomness", "better"), "better: expected own"),
}


@pytest.mark.parametrize("lie", REKEYED)
def test_a_setting_that_no_run_has_is_left_out_although_its_key_agrees(tmp_path: Path, lie: str) -> None:
    data, change, words = REKEYED[lie]
    data = copy.deepcopy(data)
    change(data)
    put(Store(tmp_path), rekeyed(data))
    contents = Store(tmp_path).read()
    assert contents.runs == ()
    assert words in contents.damaged[0].message


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"name": "digits", "parameters": {}, "sha256": find_dataset("digits").sha256}, ()),
        ({"name": "digits", "parameters": {}, "sha256": "d" * 64}, ("data from the record",)),
        (
            {"name": "digits", "parameters": {"made": "up"}, "sha256": find_dataset("digits").sha256},
            ("data from the record",),
        ),
    ],
)
def test_facts_of_data_that_are_not_those_of_today_are_from_the_record(
    tmp_path: Path, chosen: dict[str, Any], words: tuple[str, ...]
) -> None:
    """A name alone is no data: the content's hash is, and it is known only for what dpbench ships."""
    data = run_json(examples=1437, batch=256, facts={"test_examples": 360})
    data["resolved"]["dataset"] = chosen
    put(Store(tmp_path), rekeyed(data))
    (run,) = Store(tmp_path).read().runs
    assert taken_on_trust(run) == words


def test_the_record_itself_is_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for data in (run_json(), run_json(sigma=None)):
        put(store, data)
    contents = store.read()
    assert contents.damaged == ()
    assert [taken_on_trust(run) for run in contents.runs] == [("data from the record",)] * 2


def test_the_key_that_occurs_twice_is_found_at_once_among_many(tmp_path: Path) -> None:
    """Within the 16 MiB of a record there is room for a million keys: a search of each among all takes hours."""
    place = tmp_path / "many.json"
    place.write_text("{" + "".join(f'"{number}":0,' for number in range(200_000)) + '"z":0,"z":0}', encoding="utf-8")
    begin = time.process_time()
    with pytest.raises(DpbenchError, match="the key 'z' occurs twice"):
        read_json(place)
    assert time.process_time() - begin < 10


def test_a_careless_edit_fails_by_its_digest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write_run(run_json())
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"device": "cpu"', '"device": "cuda"'), encoding="utf-8")
    (found,) = store.read().damaged
    assert found.message.startswith("inconsistent:")
    assert "digest" in found.message


def test_a_record_without_digest_is_read_if_its_format_had_none_and_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, run_json(seed=1) | {"schema_version": 1}, forged=False)
    put(store, run_json(seed=2), forged=False)
    contents = store.read()
    (run,), (found,) = contents.runs, contents.damaged
    assert taken_on_trust(run) == ("no digest", "data from the record")
    assert "digest" in found.message


@pytest.mark.parametrize("version", [0, 1.5, "2", None, True, [2]])
def test_other_formats_are_refused_by_name(tmp_path: Path, version: Any) -> None:
    put(Store(tmp_path), run_json() | {"schema_version": version})
    (found,) = Store(tmp_path).read().damaged
    assert f"schema_version = {version!r}: this dpbench reads 1, 2" in found.message


def test_another_format_of_the_key_is_refused_by_name(tmp_path: Path) -> None:
    data = run_json()
    data["resolved"]["format"] = 7
    put(Store(tmp_path), rekeyed(data))
    (found,) = Store(tmp_path).read().damaged
    assert "format = 7: expected 1 or 2" in found.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: None, ""),
        (set_in("ledger", "parts", 1, "noise_multiplier", 50.0), "its ledger is not the one that pidp_sgd has"),
        (set_in("ledger", "parts", 0, "first", [0.5, 0.5]), "its ledger is not the one that pidp_sgd has"),
        (lambda data: data["facts"].pop("claimed_by"), "facts has no claimed_by"),
        (set_in("facts", "claimed_by", "another theorem"), "facts.claimed_by = another theorem"),
        (set_in("resolved", "epsilon", 1e-320), "its ledger is not the one that pidp_sgd has"),
        (set_in("resolved", "delta", 2.0), "its ledger is not the one that pidp_sgd has"),
    ],
    ids=["itself", "noise", "what it may show", "no claim", "another claim", "no budget", "no delta"],
)
def test_a_ledger_that_follows_from_the_budget_is_recomputed(tmp_path: Path, change: Change, words: str) -> None:
    """That of pidp_sgd as printed: it depends on no record, though its noise is that of a budget."""
    data = run_json(sigma=None, batch=256, examples=60000, steps=100, epochs=1)
    parameters = {"variant": "as_printed", "regularisation": 0.05, "smoothness": 1.0, "third_derivative": 1.0}
    chosen = {"name": "pidp_sgd", "parameters": parameters | {"radius": 1.0}}
    data["resolved"] |= {"mechanism": chosen, "epsilon": 2.0, "delta": 1e-5}
    data["facts"] |= {"private": True, "adjacency": "add_or_remove", "claimed_by": "pidp2021, Theorem 5"}
    made = find("mechanisms", "pidp_sgd").load()(**chosen["parameters"])
    rate = data["resolved"]["sampling_rate"]
    ledger = made.ledger_of_budget(sampling_rate=rate, steps=100, epsilon=2.0, delta=1e-5)
    data["ledger"] = json.loads(json.dumps(to_json(ledger)))
    for point in data["curve"]:
        point["releases"] = point["step"] + 1
    change(data)
    put(Store(tmp_path), rekeyed(data))
    contents = Store(tmp_path).read()
    assert len(contents.runs) == (words == "")
    assert words in (contents.damaged[0].message if contents.damaged else "")


def test_a_budget_spender_keeps_to_its_budget(tmp_path: Path) -> None:
    """The ledger of dpis comes from the run: nobody can recompute it, but it must fit the budget."""
    data = run_json(sigma=None, batch=256, examples=60000, steps=100, epochs=1)
    data["resolved"] |= {"mechanism": {"name": "dpis", "parameters": {}}, "epsilon": 2.0, "delta": 1e-5}
    data["facts"] |= {"private": True, "adjacency": "add_or_remove"}
    events = [{"event": "Gaussian", "noise_multiplier": 100.0, "count": 2}]
    store = Store(tmp_path)
    for sigma, kept in ((2.0, 1), (0.3, 0)):
        step = {"event": "SampledGaussian", "sampling_rate": 0.01, "noise_multiplier": sigma, "count": 100}
        data["ledger"] = {"adaptive": True, "parts": [*events, step]}
        data["curve"][-1]["releases"] = 102
        put(store, rekeyed(data))
        contents = store.read()
        assert len(contents.runs) == kept
        assert all("ledger from the record" in taken_on_trust(run) for run in contents.runs)
        assert all("more than its budget of 2.0" in one.message for one in contents.damaged)


def test_a_ledger_of_others_is_from_the_record(tmp_path: Path) -> None:
    data = run_json()
    data["resolved"]["mechanism"] = {"name": f"{'a' * 64}:mechanism", "parameters": {}}
    put(Store(tmp_path), rekeyed(data))
    (run,) = Store(tmp_path).read().runs
    assert "ledger from the record" in taken_on_trust(run)


def test_no_verdict_of_a_record_stands_above_what_dpbench_ships() -> None:
    refuted = {"verdict": "refuted", "reason": "somebody wrote it"}
    assert of_record(run_record(run_json(checked=refuted)), {}) == SHIPPED


def test_a_failure_of_another_run_is_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_failure(failure_json() | {"seed": 3})
    contents = store.read()
    assert contents.failures == ()
    assert contents.damaged[0].message.startswith("inconsistent:")


def check_record(**changes: Any) -> CheckRecord:
    values: dict[str, Any] = {
        "code": "c" * 64,
        "mechanism": "mine:mechanism",
        "parameters": {},
        "planned": 100,
        "modules": {},
        "verdict": "refuted",
        "reason": "noise_scale: too small",
        "lines": ({"check": "noise_scale", "verdict": "refuted"},),
        "seed": 0,
    }
    return CheckRecord(**{**values, **changes})


@pytest.mark.parametrize("forged", [False, True])
def test_a_verdict_edited_to_holds_is_not_used(tmp_path: Path, forged: bool) -> None:
    write_check(tmp_path, check_record())
    assert read_checks(tmp_path)["c" * 64].verdict == "refuted"
    path = check_record().place(tmp_path)
    data = json.loads(path.read_text(encoding="utf-8")) | {"verdict": "holds"}
    path.write_text(json.dumps(signed(data) if forged else data), encoding="utf-8")
    damaged: list[Damaged] = []
    assert read_checks(tmp_path, damaged) == {}
    assert damaged[0].message.startswith("inconsistent:")


# Any file under OUT

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "binary": bytes(range(256)),
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep lists": b"[" * 10**6,
    "just too deep": b'{"a":' * 70 + b"1" + b"}" * 70,
    "an infinity": b'{"seconds": 1e999}',
    "NaN": b'{"seconds": NaN}',
    "long integer": b'{"steps": ' + b"9" * 4300 + b"}",
    "longer integer": b'{"steps": ' + b"9" * 10**6 + b"}",
    "integer": b'{"seed": 9223372036854775808}',
    "a key twice": b'{"seed": 1, "seed": 2}',
    "control characters": b'{"error": "\\u001b[31m"}',
    "half a surrogate": b'{"error": "\\ud800"}',
    "UTF-16": '{"seed": 1}'.encode("utf-16"),
    "Latin-1": '{"seed": "ä"}'.encode("latin-1"),
    "a list": b"[]",
    "a text": b'"run"',
}


def under_out(out: Path) -> list[Path]:
    """Where a file may stand that `report` reads."""
    key = "f" * 64
    folders = ("records", "published/records", "failures", "checks", "published/checks")
    return [*(out / folder / f"{key}.json" for folder in folders), out / "conformance.json"]


@pytest.mark.parametrize("content", HOSTILE)
def test_any_content_is_one_named_damaged_file(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path)
    store.write_run(run_json())
    places = under_out(tmp_path)
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(HOSTILE[content])
    assert write_reports(store)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 records" in page or "1 record" in page
    assert all(str(place) in page for place in places)
    assert list(store.existing()) == [run_json()["run_key"]]


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs and links are POSIX's")
@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "loop", "dangling", "closed", "large", "growing"])
def test_what_is_no_file_is_never_opened(tmp_path: Path, kind: str) -> None:
    store = Store(tmp_path)
    store.write_run(run_json())
    for place in under_out(tmp_path):
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "folder":
            place.mkdir()
        elif kind == "FIFO":
            os.mkfifo(place)
        elif kind == "device":
            place.symlink_to("/dev/zero")
        elif kind == "loop":
            place.symlink_to(place)
        elif kind == "dangling":
            place.symlink_to(place.with_suffix(".gone"))
        elif kind == "closed":
            place.write_bytes(b"{}")
            place.chmod(0)
        elif kind == "large":
            with place.open("wb") as file:
                file.truncate(1 << 34)
        else:
            place.symlink_to("/proc/kmsg" if not Path("/proc/self/maps").exists() else "/proc/self/maps")
    assert write_reports(store)
    assert [run.run_key for run in store.read().runs] == [run_json()["run_key"]]
    assert len(store.read().damaged) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs are POSIX's")
def test_a_file_where_a_folder_is_expected(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("I am a file", encoding="utf-8")
    os.mkfifo(tmp_path / "failures")
    contents = Store(tmp_path).read()
    assert (contents.runs, contents.failures) == ((), ())
    assert [one.path.name for one in contents.damaged] == ["records", "failures"]


def test_a_file_of_the_largest_size_is_read_and_no_larger_one(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(DpbenchError, match="has 5 bytes; expected at most 4"):
        read_bytes(path, 4)


def test_what_is_signed_is_read_back_and_printable(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    data = signed({"error": "red \x1b[31m, half \ud800, kept\n<b>", "deep": [1.5, None, {"a": "ä"}]})
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    found = read_json(path)
    assert found["digest"] == digest(found)
    assert found["error"] == "red \\x1b[31m, half \\ud800, kept\n<b>"
