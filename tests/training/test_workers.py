"""A Ray cluster that is not there, or goes away: one sentence says so. Nothing here starts a cluster."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpbench.cli import cli
from dpbench.errors import DpbenchError
from dpbench.training.workers import Cluster, Ray, WorkerLackedMemoryError, WorkerLostError, connected, spread


def test_without_ray_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DpbenchError, match=r"Ray is not installed; pip install 'dpbench\[ray\]'"), connected(Ray()):
        pass
    found = CliRunner().invoke(cli, ["run", "--address", "auto", str(tmp_path)], standalone_mode=False)
    assert "--address auto: is for --executor ray" in str(found.exception)


def test_a_cluster_that_asks_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'dpbench[ray]')")

    def init(**_: Any) -> None:
        try:
            raise RuntimeError("Failed to connect to GCS. AuthenticationError: RPC error: InvalidAuthToken: ...")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379") from error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(DpbenchError, match=r"Failed to connect.*asks for a token: RAY_AUTH_MODE=token"):
        list(spread(pow, [(2, 3)], ray=Ray("auto")))


def test_a_lost_machine_is_told_in_short() -> None:
    """Ray goes on for a paragraph about what may have happened."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'dpbench[ray]')")

    class Lost:
        exceptions = ray.exceptions
        error = ray.exceptions.NodeDiedError("Task failed: the node is dead. Node IP: 10.0.0.2. This can happen if ...")

        def get(self, _: Any) -> None:
            raise self.error

    cluster = object.__new__(Cluster)
    cluster._ray = Lost()
    with pytest.raises(WorkerLostError, match=r"^its worker was lost: .*the node is dead. Node IP: 10.0.0.2.$") as lost:
        cluster.result("a task")
    assert not isinstance(lost.value, WorkerLackedMemoryError)
    Lost.error = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.\nMore of it")
    with pytest.raises(WorkerLackedMemoryError, match=r"^its worker was lost: .*running low on memory.$"):
        cluster.result("a task")


def test_an_address_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'dpbench[ray]')")

    def init(**options: Any) -> None:
        raise ConnectionError(f"Could not find any running Ray instance at {options['address']}.\nand more")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(DpbenchError, match=r"--address auto: no Ray cluster answers \(Could not find"):
        list(spread(pow, [(2, 3)], ray=Ray("auto")))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(DpbenchError, match=rf"--address {address}: no Ray cluster answers \(.*refused"):
            list(spread(pow, [(2, 3)], ray=Ray(address)))
