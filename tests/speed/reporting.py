"""From 1,000 records to the report, in a new process: those of 100 runs of two steps, each said to be of ten seeds.

They are made once in a process, by the commit that is measured.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from functools import cache
from pathlib import Path

from . import imported

SPEC = """
kind: run
name: many
source: a benchmark
dataset: digits
model: logistic
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 64, steps: 2, learning_rate: 0.1, clip_norm: 1.0}
grid:
  budget.noise_multiplier: [0.6, 0.8, 1.0, 1.5, 2.0]
  training.learning_rate: [0.05, 0.1, 0.2, 0.5, 1.0]
  training.clip_norm: [0.1, 0.3, 1.0, 3.0]
seeds: 1
"""
SEEDS = 10
RECORDS = 1000


@cache
def folder() -> str:
    """The folder of the records, and of a cache of its own; removed at the end."""
    job, records, keys = (imported(name) for name in ("job", "store.records", "store.run_key"))
    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    spec = Path(kept.name) / "many.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    before = os.environ.get("DPBENCH_CACHE")
    os.environ["DPBENCH_CACHE"] = str(Path(kept.name) / "cache")
    try:
        job.run([spec], out=Path(kept.name) / "out")
    finally:
        del os.environ["DPBENCH_CACHE"]
        if before is not None:
            os.environ["DPBENCH_CACHE"] = before
    store = records.Store(Path(kept.name) / "out")
    for path in list(store.records_folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for seed in range(1, SEEDS):
            resolved = record["resolved"] | {"seed": seed}
            store.write_run(record | {"run_key": keys.run_key(resolved), "seed": seed, "resolved": resolved})
    made = len(list(store.records_folder.glob("*.json")))
    if made != RECORDS:
        raise ValueError(f"{made} records: expected {RECORDS}")
    return kept.name


class Report:
    """What a person waits for after `dpbench report`: a new process, imports included."""

    number = 1  # more would find everything imported
    repeat = (1, 3, 20.0)
    warmup_time = 0

    def setup(self) -> None:
        self.folder = folder()

    def timeraw_report(self) -> str:
        return f"""
        import csv, os, sys
        from contextlib import redirect_stdout
        from pathlib import Path
        folder = Path({self.folder!r})
        os.environ["DPBENCH_CACHE"] = str(folder / "cache")
        from dpbench.cli import cli
        with redirect_stdout(sys.stderr):  # asv reads the time from the output
            assert not cli.main(["report", "--out", str(folder / "out")], standalone_mode=False)
        with (folder / "out" / "records.csv").open(encoding="utf-8", newline="") as file:
            assert len(list(csv.DictReader(file))) == {RECORDS}
        """
