"""From YAML to a plan: the three files of the quickstart, 35 runs, in a new process and in one that has planned.

In a new process without the cache of calibrations, and with it; never with the user's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from . import imported

# The quickstart as it was first published: a fixed workload, whatever specs/quickstart says today.
COMMON = """
kind: run
name: %s
source: a benchmark
dataset: digits
model: {name: mlp, parameters: {hidden: [64], activation: tanh}}
seeds: 5
"""
PRIVATE = """
budget: {delta: 1e-4, calibrate_with: rdp}
training: {batch_size: 256, epochs: 30, learning_rate: 1.0, clip_norm: 1.0}
grid:
  budget.epsilon: [1, 3, 8]
"""
PUBLIC = """
budget: none
training: {batch_size: 128, epochs: 30, learning_rate: 0.5}
"""
SPECS = {
    "noisy_adam": COMMON % "a" + PRIVATE + "mechanism: {name: noisy_adam, parameters: {bias_correction: true}}\n",
    "noisy_sgd": COMMON % "b" + PRIVATE + "mechanism: noisy_sgd\n",
    "non_private": COMMON % "c" + PUBLIC + "mechanism: {name: non_private, parameters: {optimizer: sgd}}\n",
}
RUNS = 35


class _Quickstart:
    """The specs in a folder of their own."""

    def setup(self) -> None:
        imported("plan.planning")
        self.folder = tempfile.TemporaryDirectory()
        for name, text in SPECS.items():
            (Path(self.folder.name) / f"{name}.yaml").write_text(text, encoding="utf-8")
        self.cache = os.environ.get("DPBENCH_CACHE")
        os.environ["DPBENCH_CACHE"] = str(Path(self.folder.name) / "cache")

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            del os.environ["DPBENCH_CACHE"]
            if self.cache is not None:
                os.environ["DPBENCH_CACHE"] = self.cache
        if hasattr(self, "folder"):
            self.folder.cleanup()


class Plan(_Quickstart):
    """In a process that has planned before: calibrated noise is remembered."""

    timer = time.process_time  # on one thread: what else the machine does counts less
    repeat = (5, 20, 2.0)  # samples per process: at least, at most, and the seconds after which to stop

    def setup(self) -> None:
        super().setup()
        self.spec, self.plan = imported("spec.loading"), imported("plan.planning")
        self.store = imported("store.records").Store(Path(self.folder.name) / "out")
        self.specs = self.spec.load_specs([Path(self.folder.name)])

    def time_load_specs(self) -> None:
        self.spec.load_specs([Path(self.folder.name)])

    def time_make_plan(self) -> None:
        plan = self.plan.make_plan(self.specs, self.store, self.plan.Choices(device="cpu"))
        if len(plan.runs) != RUNS:
            raise ValueError(f"{len(plan.runs)} runs: expected {RUNS}")


class FromNothing(_Quickstart):
    """What a person waits for: a new process, imports included."""

    number = 1  # more would find everything imported
    repeat = (2, 5, 20.0)
    warmup_time = 0

    def timeraw_plan(self) -> str:
        return self.planned("tempfile.mkdtemp(dir=folder)")

    def timeraw_plan_with_a_cache(self) -> str:
        code = self.planned("folder / 'cache'")
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
        return code

    def planned(self, cache: str) -> str:
        plan, records, spec = (imported(name).__name__ for name in ("plan.planning", "store.records", "spec.loading"))
        return f"""
        import os, tempfile
        from pathlib import Path
        folder = Path({self.folder.name!r})
        os.environ["DPBENCH_CACHE"] = str({cache})
        from {plan} import Choices, make_plan
        from {records} import Store
        from {spec} import load_specs
        assert len(make_plan(load_specs([folder]), Store(folder / "out"), Choices(device="cpu")).runs) == {RUNS}
        """

    def timeraw_import_account(self) -> str:
        return "from dpbench import account"

    def timeraw_import_command_line(self) -> str:
        return "import dpbench.cli"
