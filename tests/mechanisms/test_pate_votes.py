"""Internal: PATE's votes of a file: what is read and refused, and that the hash, not the place, is in a run's key."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import Composition
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.faults.votes import ensemble
from dpbench.mechanisms._pate_votes import hash_of
from dpbench.mechanisms.pate import mechanism
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import Choice, load_specs
from dpbench.step.mechanism import Setting
from dpbench.store.records import Store
from dpbench.store.run_key import chosen
from tests.mechanisms.test_pate import SPEC, problem

pytestmark = pytest.mark.usefixtures("one_thread")


def counts(path: Path, array: Any, **named: Any) -> dict[str, Any]:
    """A file of votes and the parameters that name it."""
    if named:
        np.savez(path, **named)
    else:
        np.save(path, array, allow_pickle=True)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "votes_file": str(path),
        "votes_sha256": sha256,
        "votes_licence": "Apache 2.0",
        "votes_made_from": "a test",
        "teachers": 10,
        "threshold": 5,
        "public_examples": 3,
    }


GOOD = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [1, 1, 8]])


@pytest.mark.parametrize("packed", [False, True])
def test_votes_of_a_file_are_counted_as_they_are(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("votes.npz" if packed else "votes.npy")
    made = mechanism(**counts(path, GOOD, **({"votes": GOOD} if packed else {})))
    hyper = hyperparameters([1, 2], noise_multiplier=0.1)
    _, net, inputs, targets = problem(ensemble())
    votes_RQC = made.counted(net, torch.zeros(2, net.size), hyper, inputs, targets, 10)
    assert votes_RQC.tolist() == [GOOD[:3].tolist()] * 2
    assert made.aggregated(votes_RQC, hyper).tolist() == [[0, 1, 2]] * 2  # the noise is a hundredth of a gap
    assert "one record changes one teacher's vote" in made.facts()["votes"]


@pytest.mark.parametrize(
    ("array", "change", "words"),
    [
        (GOOD, {"votes_sha256": "0" * 64}, "votes_sha256 = 0000.* has "),
        (GOOD, {"votes_file": "elsewhere.npy"}, "cannot be read"),
        (GOOD, {"votes_licence": None}, "votes_licence: missing"),
        (GOOD, {"public_examples": 5}, "queries = 5: the file .* has the votes of 4"),
        (GOOD, {"teachers": 11}, "query 0 has the counts .*add up to teachers = 11"),
        (np.array([[11, -1], [5, 5], [5, 5]]), {}, "query 0 has the counts"),
        (np.array([[2**62, 2**62, 2**62, 2**62 + 10]] * 3), {}, "query 0 has the counts"),  # adds up to 10 mod 2^64
        (GOOD.astype(float), {}, "holds float64"),
        (GOOD[0], {}, "of shape"),
        (np.array([{}], dtype=object), {}, "cannot be read"),
    ],
)
def test_files_that_hold_no_counts(tmp_path: Path, array: Any, change: dict[str, Any], words: str) -> None:
    made = mechanism(**{**counts(tmp_path / "votes.npy", array), **change})
    with pytest.raises(DpbenchError, match=words):
        made._from_file()


def test_a_file_that_unpacks_to_more_than_memory_holds_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "votes.npz"
    np.savez_compressed(path, np.zeros((1 << 25) + 1, np.int64))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    made = mechanism(**{**counts(tmp_path / "x.npy", GOOD), "votes_file": str(path), "votes_sha256": found})
    with pytest.raises(DpbenchError, match="unpacked 268,435,"):
        made._from_file()


def test_votes_of_other_classes_than_the_data_are_refused_before_training(tmp_path: Path) -> None:
    made = mechanism(**counts(tmp_path / "votes.npy", GOOD))
    setting = Setting(100, 0.1, 5, 0.5, noise_multiplier=1.0, test_examples=50)
    made.check(replace(setting, classes=3))
    with pytest.raises(DpbenchError, match="votes of 3 classes; expected those of the 10 classes"):
        made.check(replace(setting, classes=10))


@pytest.mark.parametrize(("name", "value"), [("smoothing_samples", 10**9), ("teacher_batch_size", 10**9)])
def test_sizes_that_no_memory_holds_are_refused(name: str, value: int) -> None:
    with pytest.raises(DpbenchError, match=f"{name} = {value}"):
        mechanism(**{name: value}).check(Setting(100, 0.1, 5, 0.5, noise_multiplier=1.0, test_examples=500))


def test_the_hash_of_the_votes_is_in_the_key_and_their_place_is_not(tmp_path: Path) -> None:
    one, other = (counts(tmp_path / name, GOOD) for name in ("a.npy", "b.npy"))
    assert chosen("mechanisms", Choice("pate", one)) == chosen("mechanisms", Choice("pate", other))
    changed = counts(tmp_path / "c.npy", GOOD[::-1].copy())
    assert chosen("mechanisms", Choice("pate", one)) != chosen("mechanisms", Choice("pate", changed))


def test_a_run_whose_votes_are_absent_is_skipped_and_says_what_they_are(tmp_path: Path) -> None:
    """Before anybody has the file nobody knows its hash; when it is there, the hash is asked for."""
    path = tmp_path / "votes.npy"
    given = f"{{votes_file: {path}, votes_licence: unknown, votes_made_from: the teachers of somebody"
    more = "teachers: 10, threshold: 5, public_examples: 3}"
    start, _, end = SPEC.partition("  parameters:")
    spec = f"{start}  parameters: {given}, {more}\n{end.partition(chr(10))[2]}"
    (tmp_path / "spec.yaml").write_text(spec)

    def planned() -> Any:
        return make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices(device="cpu")).runs[0]

    one = planned()
    assert one.action == "skip"
    assert "the teachers of somebody" in one.reason
    assert one.epsilon is not None
    np.save(path, np.pad(GOOD, ((0, 0), (0, 7))))  # the digits have ten classes
    with pytest.raises(ProblemsError, match=hashlib.sha256(path.read_bytes()).hexdigest()):
        planned()
    (tmp_path / "spec.yaml").write_text(spec.replace("{votes_file", f"{{votes_sha256: {hash_of(path)}, votes_file"))
    assert planned().action == "train"


def test_the_ledger_of_a_file_needs_no_file() -> None:
    """A stored run is read where the file is not."""
    made = mechanism(votes_sha256="0" * 64)
    ledger = made.ledger(sampling_rate=0.1, noise_multiplier=1.0, steps=1)
    assert isinstance(ledger, Composition)
    with pytest.raises(DpbenchError, match="votes_file: missing"):
        made._from_file()
