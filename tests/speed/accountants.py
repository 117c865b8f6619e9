"""Accountants: ε of twenty trainings, of one training whose steps differ, and the noise for a target ε."""

from __future__ import annotations

import time
from typing import Any

from . import imported, names

timer = time.process_time  # on one thread: what else the machine does counts less
repeat = (5, 20, 2.0)  # samples per process: at least, at most, and the seconds after which to stop

RATE, STEPS, DELTA = 256 / 60000, 3516, 1e-5  # row 1 of Table 1 in Bu et al. 2020
RELEASES = ("alike", "unlike")
# these cover releases that are not sampled, or need votes: nothing to measure on a training
ELSEWHERE = ("analytic_gaussian", "classical_gaussian", "gdp", "rdp_data_dependent", "shuffled")
TRAINERS = [name for name in names("accountants") if name not in ELSEWHERE]
QUICK = [name for name in TRAINERS if name != "lattice"]  # one answer of which takes a second


def training(noise: float) -> Any:
    """The releases of one training."""
    events = imported("events")
    return events.Composition(((events.SampledGaussian(RATE, noise), STEPS),))


def workload(releases: str) -> list[Any]:
    """`alike`: twenty trainings of different noise, as a plan has them; `unlike`: one of 400 steps that all differ."""
    if releases == "alike":
        return [training(1.0 + 0.05 * number) for number in range(20)]
    events = imported("events")
    return [events.Composition(tuple((events.SampledGaussian(0.01, 1.0 + step / 400), 1) for step in range(400)))]


def accountant(name: str, composition: Any) -> Any:
    """The accountant. Raises NotImplementedError, a skip, where the commit has none or it refuses the composition."""
    imported(f"privacy.accountants.{name}")
    found = imported("privacy.accounting").load_accountant(name)
    answer = found.supports(composition)
    if not answer:
        raise NotImplementedError(f"{name} refuses: {answer.reason}")
    return found


class Row1:
    """ε at δ = 1e-5 of one training, by every accountant, the slow one included."""

    params = (TRAINERS,)
    param_names = ("accountant",)

    def setup(self, name: str) -> None:
        self.work = training(1.3)
        self.asked = accountant(name, self.work)

    def time_epsilon(self, name: str) -> None:
        del name
        self.asked.curve(self.work).epsilon(DELTA)


class Account:
    """ε at δ = 1e-5."""

    params = (QUICK, RELEASES)
    param_names = ("accountant", "releases")

    def setup(self, name: str, releases: str) -> None:
        self.work = workload(releases)
        accountant(name, self.work[0])
        self.account = imported("privacy.accounting").account

    def time_account(self, name: str, releases: str) -> None:
        del releases  # `setup` has made them
        for composition in self.work:
            self.account(composition, delta=DELTA, accountants=[name])


class Calibrate:
    """The noise multiplier for ε = 3 at δ = 1e-5."""

    params = (QUICK,)
    param_names = ("accountant",)

    def setup(self, name: str) -> None:
        accountant(name, training(1.0))
        self.calibrate = imported("privacy.calibration").calibrate

    def time_calibrate(self, name: str) -> None:
        self.calibrate(training, epsilon=3.0, delta=DELTA, accountant=name)
