"""Output and objective perturbation with one thing wrong: a constant, the clipping, the noise, what gets out early."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dpbench.mechanisms.objective_perturbation import ObjectivePerturbation
from dpbench.mechanisms.output_perturbation import OutputPerturbation
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, Kept, Released, Setting, State


@dataclass(frozen=True)
class HalfLipschitz(OutputPerturbation):
    """Takes half of L."""

    def lipschitz(self, radius: float) -> float:
        return super().lipschitz(radius) / 2


@dataclass(frozen=True)
class OneRecord(OutputPerturbation):
    """Takes the gradient of one record where two differ: Lη/b for 2Lη/b."""

    def sensitivity(self, setting: Setting) -> float:
        return super().sensitivity(setting) / 2


@dataclass(frozen=True)
class WithoutBias(OutputPerturbation):
    """Forgets that the bias has a gradient too."""

    def lipschitz(self, radius: float) -> float:
        return super().lipschitz(radius) * radius / math.hypot(radius, 1)


@dataclass(frozen=True)
class LargeSteps(OutputPerturbation):
    """Takes steps of up to 4/β: half of β is believed."""

    def smoothness(self, radius: float) -> float:
        return super().smoothness(radius) / 2


@dataclass(frozen=True)
class OnePass(OutputPerturbation):
    """Accounts for the last pass alone."""

    def sensitivity(self, setting: Setting) -> float:
        in_pass = -(-setting.examples // max(1, round(setting.sampling_rate * setting.examples)))
        return super().sensitivity(dataclasses.replace(setting, steps=min(setting.steps, in_pass)))


@dataclass(frozen=True)
class StrongerThanItIs(OutputPerturbation):
    """Believes that every step contracts, without regularisation."""

    def sensitivity(self, setting: Setting) -> float:
        return OutputPerturbation(self.schedule, 0.5, self.exponent).sensitivity(setting)


@dataclass(frozen=True)
class Unclipped(OutputPerturbation):
    """Computes with the inputs as they are."""

    def seen(self, inputs: Tensor, radius_R: Tensor) -> Tensor:
        del radius_R
        return inputs.double()


@dataclass(frozen=True)
class Early(OutputPerturbation):
    """The state's parameters are those of the way, without noise."""

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        released, kept = super().release(net, state, hyper, inputs, targets, chunk)
        values = dict(released.values)
        on_R1 = ~values["ended_R"][:, None]
        values["parameters_RP"] = values["parameters_RP"] + on_R1 * kept.private["iterate_RP"].to(state.theta_RP.dtype)
        values["ended_R"] = values["ended_R"] | True
        return replace(released, values=values), kept


@dataclass(frozen=True)
class HalfNoise(OutputPerturbation):
    """Takes half of the noise back after it was let out, with the exact parameters at hand."""

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        released, kept = super().release(net, state, hyper, inputs, targets, chunk)
        values = dict(released.values)
        exact_RP = kept.private["iterate_RP"].to(state.theta_RP.dtype)
        off_RP = (values["parameters_RP"] - exact_RP) * values["ended_R"][:, None]
        values["parameters_RP"] = values["parameters_RP"] - off_RP / 2
        return replace(released, values=values), kept


ENDING: Mapping[str, OutputPerturbation] = {
    "half of the Lipschitz constant": HalfLipschitz(),
    "one gradient where two differ": OneRecord(),
    "the bias forgotten": WithoutBias(),
    "steps above 2/β": LargeSteps(),
    "one pass accounted for": OnePass(),
    "contraction without regularisation": StrongerThanItIs(),
    "inputs as they are": Unclipped(),
    "parameters on the way": Early(),
    "half of the noise taken back": HalfNoise(),
}

# Noise in the objective


@dataclass(frozen=True)
class HalfObjectiveLipschitz(ObjectivePerturbation):
    """Takes half of L."""

    def lipschitz(self, radius: float) -> float:
        return super().lipschitz(radius) / 2


@dataclass(frozen=True)
class LessNoise(ObjectivePerturbation):
    """b has a fifth less noise than the ledger says."""

    def deviation(self, noise_multiplier: float, radius: float) -> float:
        return 0.8 * super().deviation(noise_multiplier, radius)

    def least_regularisation(self, noise_multiplier: float, radius: float, examples: int) -> float:
        return super().least_regularisation(noise_multiplier, radius, examples) / 0.8**2


@dataclass(frozen=True)
class LittleRegularisation(ObjectivePerturbation):
    """Takes half of the regularisation that the proof needs."""

    def least_regularisation(self, noise_multiplier: float, radius: float, examples: int) -> float:
        return super().least_regularisation(noise_multiplier, radius, examples) / 2


@dataclass(frozen=True)
class LongInputs(ObjectivePerturbation):
    """Computes with the inputs as they are."""

    def seen(self, inputs: Tensor, radius: float) -> Tensor:
        del radius
        return inputs.double()


PERTURBED: Mapping[str, ObjectivePerturbation] = {
    "half of the Lipschitz constant": HalfObjectiveLipschitz(),
    "a fifth less noise": LessNoise(),
    "half of the regularisation": LittleRegularisation(),
    "inputs as they are": LongInputs(),
}
