"""Faults of PATE: the shipped mechanism with one line wrong, in the partition, the check, the answers or the ledger.

Shapes: R runs, Q queries, C classes, T teachers, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpbench.events import Composition
from dpbench.mechanisms._pate_votes import Teachers, owners, trained_teachers
from dpbench.mechanisms.pate import Pate
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out
from dpbench.step.mechanism import Hyperparameters
from dpbench.step.updates.sgd import Sgd


def ensemble(kind: type[Pate] = Pate, **wrong: Any) -> Pate:
    """A small PATE of a `kind`.

    >>> ensemble(labels=3).labels
    3
    """
    sound: dict[str, Any] = {
        "optimizer": Sgd(),
        "teachers": Teachers(count=4, steps=3, batch_size=8, learning_rate=0.5),
        "threshold": 2.0,
        "selection_ratio": 1.5,
        "public_examples": 12,
        "queries": 12,
        "labels": 8,
    }
    return kind(**(sound | wrong))


class InTwoParts(Pate):
    """The first record is in two parts."""

    def trained(
        self, net: Network, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> Tensor:
        owner_RN = self.owners(hyper, len(targets))
        owner_RN = torch.cat([owner_RN, (owner_RN[:, :1] + 1) % self.teachers.count], 1)
        twice = torch.cat([inputs, inputs[:1]]), torch.cat([targets, targets[:1]])
        return trained_teachers(self.teachers, owner_RN, net, theta_RP, hyper.keys_RS, *twice, chunk)


class BySize(Pate):
    """The parts are made by the size of the inputs: a changed record moves others to another teacher."""

    def trained(
        self, net: Network, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> Tensor:
        rank_N = inputs.flatten(1).norm(dim=1).argsort().argsort() % self.teachers.count
        owner_RN = rank_N.expand(len(theta_RP), -1).contiguous()
        return trained_teachers(self.teachers, owner_RN, net, theta_RP, hyper.keys_RS, inputs, targets, chunk)


class ByNumber(Pate):
    """The parts are of one size: a record less moves others to another teacher."""

    def owners(self, hyper: Hyperparameters, examples: int) -> Tensor:
        return owners(hyper.keys_RS, examples, 2**20).argsort(dim=1).argsort(dim=1) % self.teachers.count


class WithoutNoise(Pate):
    """The check compares the largest count itself."""

    def _checked(self, largest_RQ: Tensor, deviation_R: Tensor, keys_RS: Tensor, step_R: Tensor) -> Tensor:
        del keys_RS, step_R
        return let_out(largest_RQ, largest_RQ, deviation_R)


class LessNoise(Pate):
    """The check has a tenth of its noise."""

    def _checked(self, largest_RQ: Tensor, deviation_R: Tensor, keys_RS: Tensor, step_R: Tensor) -> Tensor:
        return super()._checked(largest_RQ, deviation_R / 10, keys_RS, step_R)


class TrueLabels(Pate):
    """The answers are drawn, and the student gets the largest counts."""

    def aggregated(self, votes_RQC: Tensor, hyper: Hyperparameters) -> Tensor:
        labels_RQ = super().aggregated(votes_RQC, hyper)
        return torch.where(labels_RQ >= 0, votes_RQC.argmax(2), labels_RQ)


class HalfTold(Pate):
    """The ledger has half of the answers."""

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        halved = replace(self, labels=self.labels // 2)
        return Pate.ledger(halved, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps)


class MoreNoiseTold(Pate):
    """The ledger has twice the noise."""

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        told = None if noise_multiplier is None else 2 * noise_multiplier
        return super().ledger(sampling_rate=sampling_rate, noise_multiplier=told, steps=steps)


SOUND: Mapping[str, Any] = {"an ensemble of teachers": ensemble(), "a smoothed student": ensemble(smoothing_samples=2)}
PARTS: Mapping[str, Any] = {
    "a record in the parts of two teachers": ensemble(InTwoParts),
    "parts by the size of the inputs": ensemble(BySize),
    "parts of one size, whatever the number of records": ensemble(ByNumber),
}
ANSWERS: Mapping[str, Any] = {
    "a threshold without noise": ensemble(WithoutNoise),
    "a tenth of the noise on the threshold": ensemble(LessNoise),
    "half of the answers in the ledger": ensemble(HalfTold),
    "twice the noise in the ledger": ensemble(MoreNoiseTold),
}
LEAKING: Mapping[str, Any] = {
    "the student learns the largest counts": ensemble(TrueLabels),
}
