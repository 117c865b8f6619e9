"""Randomness: normals and Poisson batches. A million normals in s seconds are 10⁶/s normals per second."""

from __future__ import annotations

import time

import torch

from . import imported, seeds

timer = time.process_time  # on one thread: what else the machine does counts less
repeat = (5, 20, 2.0)  # samples per process: at least, at most, and the seconds after which to stop


class Normals:
    """A million normals for one run, and as many for sixteen together."""

    params = ((1, 16),)
    param_names = ("runs",)

    def setup(self, runs: int) -> None:
        torch.set_num_threads(1)
        self.randomness = imported("randomness")
        self.seed_R, self.step_R = seeds(runs), torch.zeros(runs, dtype=torch.int64)

    def time_a_million_normals(self, runs: int) -> None:
        self.randomness.normal(self.seed_R, self.randomness.NOISE, self.step_R, 1_000_000 // runs)


class CompiledNormals(Normals):
    """The same after torch has compiled the generator, as it does where a stack draws very many."""

    def setup(self, runs: int) -> None:
        super().setup(runs)
        compile_words = getattr(self.randomness, "compile_words", None)
        if compile_words is None:
            raise NotImplementedError("nothing is compiled in this commit")
        if refused := compile_words():
            raise NotImplementedError(refused)
        self.time_a_million_normals(runs)  # another number of runs is another shape to compile

    def teardown(self, *_: int) -> None:
        # `asv run --python=same` measures `Normals` in this process, too; an earlier commit has nothing to forget.
        getattr(self.randomness, "forget_compiled", lambda: None)()


class Poisson:
    """The batches of one step: 256 of 60,000 examples are expected for each run."""

    params = ((1, 16),)
    param_names = ("runs",)

    def setup(self, runs: int) -> None:
        torch.set_num_threads(1)
        self.sample = imported("step.samplers.poisson").PoissonSampler()
        self.seed_R, self.step_R = seeds(runs), torch.zeros(runs, dtype=torch.int64)
        self.rate_R = torch.full((runs,), 256 / 60000, dtype=torch.float64)

    def time_sample(self, runs: int) -> None:
        del runs  # `setup` has made the seeds of that many
        self.sample(self.seed_R, self.step_R, self.rate_R, 60_000)
