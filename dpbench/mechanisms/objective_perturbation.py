"""Objective perturbation of binary logistic regression (Chaudhuri et al. 2011), with approximate minima (Iyengar 2019).

Released is the minimum W of Σ_i ℓ(W; x_i, y_i) + (Λ/2)·‖W‖² + ⟨b, W⟩ with b ~ N(0, s²) in every entry, plus a little
noise because the minimum is computed and not exact.

| papers | here |
| --- | --- |
| n, Λ | N, which is public, and λN with λ = regularisation, of all parameters, biases included |
| b, its deviation | b, s = L/μ_1 |
| L | `logistic.lipschitz` of clip_norm, the largest norm of an input |
| γ of Iyengar et al., Algorithm 1 | 10^-10·N, the norm of the gradient at the computed minimum |
| σ_2 there | 2γ/(Λμ_2), the deviation of the noise on the computed minimum |

**Proof** (docs/convex.md, line by line). The minimum determines b, so its density is that of b times |det ∇b|. For a
record more or less the privacy loss is a convex function of the softmax p of that record where Λ >= 2s², and so at most
its value at a corner: 0, or the loss of a Gaussian mechanism of sensitivity L and deviation s. So the exact minimum is
μ_1-GDP with μ_1 = L/s: no factor for the determinant, none for a direction that the noise chooses, no split of ε.
The computed minimum is at most γ/Λ away, of each of two neighbours, so that given the exact one it is a Gaussian
mechanism with μ_2. **Ledger**: together one Gaussian event of the noise multiplier 1/μ, μ² = μ_1² + μ_2².

**Against the papers.** Both print a guarantee at one (ε, δ), for which they spend a part of ε on the determinant; here
it costs nothing, but the regularisation has to be 2s²/N at least; less is refused before training. With more than two
classes the noise chooses among several directions, which costs more than a Gaussian: refused.

`training` is `sampling_rate: 1` and `steps: 1`; the learning rate has no effect. The theorem is about exact arithmetic
in all but the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition
from dpbench.mechanisms._at_the_end import after, check_radius, letting_go, planned, so_far, view
from dpbench.step import logistic
from dpbench.step.functional import Network, finite_runs
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, Setting, State, refuse_changed
from dpbench.step.optimum import GRADIENT_NORM, Problem
from dpbench.step.stages import gaussian_noise

NUMERICS = 1

SHARE = 0.01  # μ_2/μ: what the inexact minimum gets of the budget; μ_1 is 0.99995·μ
ADJACENCY: Adjacency = "add_or_remove"


@dataclass(frozen=True)
class ObjectivePerturbation:
    """A mechanism that acts at the end, in its only step."""

    regularisation: float = 0.1
    private: ClassVar[bool] = True
    spends_budget: ClassVar[bool] = False
    acts_at_end: ClassVar[bool] = True
    perturbs_objective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.regularisation < math.inf:
            raise DpbenchError(f"regularisation = {self.regularisation!r}: expected a finite number above 0")

    def lipschitz(self, radius: float) -> float:
        """L of the loss without regularisation."""
        return logistic.lipschitz(radius)

    def deviation(self, noise_multiplier: float, radius: float) -> float:
        """s, the deviation of b."""
        return self.lipschitz(radius) * noise_multiplier / math.sqrt(1 - SHARE**2)

    def least_regularisation(self, noise_multiplier: float, radius: float, examples: int) -> float:
        """2s²/N, the least λ of the proof."""
        return 2 * self.deviation(noise_multiplier, radius) ** 2 / examples

    def refuse_model(self, module: nn.Module) -> None:
        """Raise DpbenchError for a model that is no logistic regression of two classes."""
        logistic.refuse_model(module)
        classes = next(layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear))
        if classes != 2:
            raise DpbenchError(
                f"model: it has {classes} classes, and the proof of objective_perturbation is about two; expected a"
                " dataset of two classes, or output_perturbation"
            )

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError for numbers that the theorem does not cover."""
        setting.expect_cross_entropy("objective_perturbation")
        if setting.steps != 1 or setting.sampling_rate != 1:
            raise DpbenchError(
                f"steps = {setting.steps}, sampling_rate = {setting.sampling_rate:g}: the minimum over all data is"
                " computed in one step; expected steps: 1 and sampling_rate: 1"
            )
        radius = check_radius(setting)
        if not setting.noise_multiplier:
            raise DpbenchError("budget: objective_perturbation needs noise; expected epsilon or a noise_multiplier")
        least = self.least_regularisation(setting.noise_multiplier, radius, setting.examples)
        if not self.regularisation >= least:
            raise DpbenchError(
                f"regularisation = {self.regularisation:g}: with this noise, clip_norm and {setting.examples} examples"
                f" the proof needs {least:.6g} or more; expected that, a smaller clip_norm or a larger epsilon"
            )

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """One Gaussian event of the minimum."""
        del sampling_rate
        return planned(noise_multiplier, steps, ADJACENCY)

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        """Nothing before the last step."""
        return so_far(state, hyper, ADJACENCY)

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": "poisson",
            "adjacency": ADJACENCY,
            "privacy_unit": "one training example",
            "normalisation": "number of examples, which is public",
            "clipped": "inputs",
            "released": "the minimum of the objective with noise in it",
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        """The initial parameters, on which the minimum does not depend."""
        del inputs, targets
        step_R = torch.zeros(len(theta_RP), dtype=torch.int64, device=theta_RP.device)
        return State(theta_RP, {"clip_norm_R": hyper.clip_norm_R.clone()}, step_R)

    def refuse_state(self, state: State, start: State, hyper: Hyperparameters, examples: int) -> None:
        """Raise DpbenchError for another clip norm."""
        del hyper, examples
        refuse_changed(state, start, ("clip_norm_R",))

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """The inputs, clipped as in training."""
        return view(state, inputs)

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """The last step computes and releases the minimum; a step before it does nothing."""
        del chunk
        self.refuse_model(net.module)
        device, runs = state.theta_RP.device, len(state.step_R)
        ended_R = state.step_R + 1 == hyper.steps_R
        sound_R = finite_runs(state.theta_RP) & bool(inputs.isfinite().all())
        noisy_EP = None
        loss_R = torch.zeros(runs, dtype=torch.float64, device=device)
        ends = [run for run in range(runs) if bool(ended_R[run] & sound_R[run])]
        if ends:
            of = torch.tensor(ends, device=device)
            found = [self._minimum(net, state, hyper, run, inputs, targets) for run in ends]
            exact_EP = torch.stack([minimum for minimum, _ in found]).to(device)
            loss_R[of] = torch.tensor([loss for _, loss in found], dtype=torch.float64, device=device)
            deviation_E = 2 * GRADIENT_NORM / self.regularisation * hyper.noise_multiplier_R[of] / SHARE
            place = (hyper.keys_RS[of], state.step_R[of], randomness.NOISE, net.size)
            noisy_EP = gaussian_noise(exact_EP, deviation_E, *place, runs=ends)
        drawn_R = torch.where(ended_R, len(targets), 0)
        norm_N = inputs.double().flatten(1).norm(dim=1)
        observed = Observed(
            drawn_R=drawn_R,
            loss_R=torch.where(ended_R, loss_R, torch.zeros_like(loss_R)),
            clipped_R=torch.where(ended_R, (norm_N > hyper.clip_norm_R[:, None]).sum(1), 0),
            finite_R=sound_R,
        )
        released = letting_go(ends, noisy_EP, state.theta_RP, hyper, ADJACENCY)
        return released, Kept(observed, dict(state.private))

    def seen(self, inputs: Tensor, radius: float) -> Tensor:
        """What the objective has for the inputs (N, ...)."""
        return logistic.clipped(inputs[None], torch.tensor([radius], dtype=torch.float64))[0]

    def _minimum(
        self, net: Network, state: State, hyper: Hyperparameters, run: int, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, float]:
        """The computed minimum (P,) of one run, and the sum of the losses there."""
        of = slice(run, run + 1)
        count, radius = len(targets), float(hyper.clip_norm_R[run])
        normal_1P = randomness.normal(
            hyper.keys_RS[of], randomness.NOISE, state.step_R[of], net.size, dtype=torch.float64
        )
        tilt_P = self.deviation(float(hyper.noise_multiplier_R[run]), radius) * normal_1P[0].cpu().numpy() / count
        bias = any(len(shape) == 1 for _, shape in net.shapes)
        seen = self.seen(inputs.cpu(), radius)
        problem = Problem(seen, targets, 2, self.regularisation, bias=bias, tilt_P=tilt_P)
        best = problem.optimum()
        plain = replace(problem, tilt_P=None)
        weight = self.regularisation / 2 * float(best.parameters_P @ best.parameters_P)
        return torch.from_numpy(best.parameters_P), count * (plain.value(best.parameters_P) - weight)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        """The released parameters in the last step; before it the initial ones."""
        del rate_R
        return after(state, released)


mechanism = ObjectivePerturbation
