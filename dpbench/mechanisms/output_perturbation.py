"""Output perturbation (Wu et al. 2017, Algorithms 1 and 2): permutation SGD, then noise on its last parameters alone.

| paper | here |
| --- | --- |
| m | N; in `decreasing` and `square_root`, as printed for b = 1, the steps of a pass |
| k, b | passes and batch size: epochs, batch_size |
| η_t | learning_rate times the factor of `schedule` |
| L, β | `step/logistic.py`, from clip_norm, the largest norm of an input |
| γ | regularisation λ, of (λ/2)‖W‖² for all parameters, biases included |
| Δ_2 | `sensitivity` |

One permutation is drawn before training, and every pass takes its batches from it in that order; the last batch of a
pass may be smaller, and is divided by b too. The parameters on the way are private: they are in `State.private`, the
state's parameters stay the initial ones, and the last step releases the last parameters with Gaussian noise of the
deviation noise_multiplier·Δ in every entry.

**Neighbours** differ in one record that is replaced by another (`replace_one`), as in the paper; N is public. An added
record would move all later ones to other batches. **Ledger**: one Gaussian event, whose noise multiplier is the
deviation over Δ. **Sensitivity** (docs/convex.md): where the Hessian lies between λ and β + λ a step of size η makes
the distance of two points at most ρ = max(|1 − ηλ|, |1 − η(β + λ)|) times as large, and ρ <= 1 for η <= 2/(β + λ). A
step whose batch has the replaced record adds 2Lη/b: the regularisation of both is the same and drops out, so that,
unlike in the paper, no projection is needed. With the steps T_j in which position j of a pass comes,
Δ = max_j Σ_{t∈T_j} (2Lη_t/b)·Π_{s>t} ρ_s. For λ = 0, constant steps and k whole passes that is 2kLη/b, as in the
paper's Corollary 1; with the steps of Algorithm 2 it is at most 2L/(λmb).

All is computed in float64, and each input is clipped in the pass that uses it. The theorem is about exact arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition
from dpbench.mechanisms._at_the_end import after, check_radius, letting_go, planned, so_far, view
from dpbench.step import logistic
from dpbench.step.functional import Network, finite_runs
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, Setting, State, refuse_changed
from dpbench.step.stages import gaussian_noise

NUMERICS = 1

Numbers = NDArray[np.float64]
Schedule = Literal["constant", "decreasing", "square_root", "strongly_convex"]
ROUNDED_UP = 1 + 1e-9  # of the sensitivity: sums and products of at most 10^6 terms in float64
ADJACENCY: Adjacency = "replace_one"


@dataclass(frozen=True)
class OutputPerturbation:
    """A mechanism that acts at the end. `exponent` is c in m^c, for `decreasing` and `square_root`."""

    schedule: Schedule = "constant"
    regularisation: float = 0.0
    exponent: float = 0.5
    private: ClassVar[bool] = True
    spends_budget: ClassVar[bool] = False
    acts_at_end: ClassVar[bool] = True
    secure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise DpbenchError(f"schedule = {self.schedule!r}: expected one of {', '.join(get_args(Schedule))}")
        if not 0 <= self.regularisation < math.inf:
            raise DpbenchError(f"regularisation = {self.regularisation!r}: expected a finite number, 0 or more")
        if self.schedule == "strongly_convex" and self.regularisation == 0:
            raise DpbenchError(
                "regularisation = 0: without it the objective is not strongly convex; expected a number above 0, or"
                " another schedule"
            )
        if not 0 <= self.exponent < 1:
            raise DpbenchError(f"exponent = {self.exponent!r}: expected a number from 0 to 1, 1 excluded")

    def lipschitz(self, radius: float) -> float:
        """L of the loss without regularisation."""
        return logistic.lipschitz(radius)

    def smoothness(self, radius: float) -> float:
        """β of the loss without regularisation."""
        return logistic.smoothness(radius)

    def refuse_model(self, module: nn.Module) -> None:
        """Raise DpbenchError for a model that is no logistic regression."""
        logistic.refuse_model(module)

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError for numbers that the theorem does not cover."""
        setting.expect_cross_entropy("output_perturbation")
        batch = setting.sampling_rate * setting.examples
        if abs(batch - round(batch)) > 1e-6 or batch < 0.5:
            raise DpbenchError(
                f"sampling_rate = {setting.sampling_rate:g}: makes {batch:g} of {setting.examples} examples; expected a"
                " whole number, so give batch_size"
            )
        radius = check_radius(setting)
        rate = setting.learning_rate
        first = self._size(setting, 0)
        most = 2 / (self.smoothness(radius) + self.regularisation)
        if not 0 < first <= most * (1 + 1e-12):
            raise DpbenchError(
                f"learning_rate = {rate:g}: makes a first step of size {first:.6g}, and the theorem needs 2/(β + λ) ="
                f" {most:.6g} or less with clip_norm = {radius:g}; expected a learning_rate of"
                f" {most * rate / first if first > 0 else most:.6g} or less"
            )

    def factors(self, learning_rate: float, t_T: Numbers, in_pass: int) -> Numbers:
        """The size of the steps t (T,), which count from 1, over the learning rate; `in_pass` is m.

        1 (`constant`), 1/(t + m^c) (`decreasing`), 1/(√t + m^c) (`square_root`), each of a learning rate of 2/β in the
        paper, and min(1, 1/(ηλt)) (`strongly_convex`: Algorithm 2, where η is 1/β).
        """
        found: Numbers = np.ones_like(t_T)
        if self.schedule == "decreasing":
            found = 1 / (t_T + in_pass**self.exponent)
        elif self.schedule == "square_root":
            found = 1 / (np.sqrt(t_T) + in_pass**self.exponent)
        elif self.schedule == "strongly_convex":
            found = np.minimum(1.0, 1 / (learning_rate * self.regularisation * t_T))
        return found

    def sensitivity(self, setting: Setting) -> float:
        """Δ: how far one replaced record moves the last parameters; an upper bound.

        >>> made = OutputPerturbation()
        >>> round(made.sensitivity(Setting(100, 0.1, 30, 0.5, clip_norm=1.0)), 6)  # 2kLη/b = 2·3·2·0.5/10
        0.6
        """
        assert setting.clip_norm is not None
        batch, in_pass = _passes(setting.sampling_rate, setting.examples)
        t_T = np.arange(1, setting.steps + 1, dtype=np.float64)
        size_T = setting.learning_rate * self.factors(setting.learning_rate, t_T, in_pass)
        weak, strong = self.regularisation, self.smoothness(setting.clip_norm) + self.regularisation
        factor_T = np.maximum(np.abs(1 - size_T * weak), np.abs(1 - size_T * strong))
        # Π_{s>t} ρ_s: of the last step 1
        later_T = np.append(np.cumprod(factor_T[:0:-1])[::-1], 1.0)
        moved_T = 2 * self.lipschitz(setting.clip_norm) * size_T / batch * later_T
        return float(np.bincount(np.arange(setting.steps) % in_pass, moved_T).max()) * ROUNDED_UP

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """One Gaussian event of the last parameters, however many steps."""
        del sampling_rate  # no subsampling is accounted for
        return planned(noise_multiplier, steps, ADJACENCY)

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        """Nothing before the last step."""
        return so_far(state, hyper, ADJACENCY)

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": "shuffled",
            "adjacency": ADJACENCY,
            "privacy_unit": "one training example",
            "normalisation": "batch size; the number of examples is public",
            "clipped": "inputs",
            "released": "the last parameters; those on the way are private and not evaluated",
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        """The initial parameters, and the order of the records."""
        del inputs
        step_R = torch.zeros(len(theta_RP), dtype=torch.int64, device=theta_RP.device)
        bits_RN = randomness.uniform_bits(hyper.keys_RS, randomness.SAMPLE, step_R, len(targets))
        private = {"iterate_RP": theta_RP.double(), "order_RN": bits_RN.argsort(dim=1, stable=True)}
        return State(theta_RP, {"clip_norm_R": hyper.clip_norm_R.clone()}, step_R, private)

    def refuse_state(self, state: State, start: State, hyper: Hyperparameters, examples: int) -> None:
        """Raise DpbenchError for another clip norm or order of the records."""
        del hyper, examples
        refuse_changed(state, start, ("clip_norm_R", "order_RN"))

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """The inputs, clipped as in training."""
        return view(state, inputs)

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """One step of SGD, which releases nothing; the last step releases the last parameters."""
        self.refuse_model(net.module)
        settings = [_setting(hyper, run, len(targets)) for run in range(len(state.step_R))]
        device = state.theta_RP.device

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        index_RB, mask_RB = _places(state, settings)
        iterate_RP, radius_R = state.private["iterate_RP"], hyper.clip_norm_R
        total_RP = torch.zeros_like(iterate_RP)
        losses, shortened = [], []
        for start in range(0, index_RB.shape[1], chunk):
            part_RB, filled_RB = index_RB[:, start : start + chunk], mask_RB[:, start : start + chunk]
            seen = self.seen(inputs[part_RB], radius_R)
            sum_RP, loss_RB = logistic.summed_gradient(net, iterate_RP, seen, targets[part_RB], filled_RB)
            total_RP = total_RP + sum_RP
            losses.append(loss_RB)
            shortened.append(filled_RB & (inputs[part_RB].double().flatten(2).norm(dim=2) > radius_R[:, None]))
        batch_R = column([_passes(one.sampling_rate, one.examples)[0] for one in settings])
        size_R = column([self._size(one, int(at)) for one, at in zip(settings, state.step_R, strict=True)])
        gradient_RP = total_RP / batch_R[:, None] + self.regularisation * iterate_RP
        iterate_RP = iterate_RP - size_R[:, None] * gradient_RP

        ends = [run for run, one in enumerate(settings) if int(state.step_R[run]) + 1 == one.steps]
        noisy_EP = None
        if ends:
            of = torch.tensor(ends, device=device)
            deviation_E = hyper.noise_multiplier_R[of] * column([self.sensitivity(settings[run]) for run in ends])
            noisy_EP = gaussian_noise(iterate_RP[of], deviation_E, hyper.keys_RS[of], state.step_R[of], runs=ends)
        observed = Observed(
            drawn_R=mask_RB.sum(1),
            loss_R=torch.cat(losses, 1).sum(1),
            clipped_R=torch.cat(shortened, 1).sum(1),
            finite_R=finite_runs(total_RP) & finite_runs(iterate_RP),
        )
        released = letting_go(ends, noisy_EP, state.theta_RP, hyper, ADJACENCY)
        return released, Kept(observed, {**state.private, "iterate_RP": iterate_RP})

    def seen(self, inputs: Tensor, radius_R: Tensor) -> Tensor:
        """What a step computes with for the inputs (R, B, ...)."""
        return logistic.clipped(inputs, radius_R)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        """The released parameters in the last step; before it the initial ones."""
        del rate_R
        return after(state, released)

    def _size(self, setting: Setting, step: int) -> float:
        """The size of the step after `step` steps."""
        in_pass = _passes(setting.sampling_rate, setting.examples)[1]
        return setting.learning_rate * float(self.factors(setting.learning_rate, np.array([step + 1.0]), in_pass)[0])


def _passes(rate: float, examples: int) -> tuple[int, int]:
    """The batch size and the number of steps of a pass."""
    batch = max(1, round(rate * examples))
    return batch, math.ceil(examples / batch)


def _setting(hyper: Hyperparameters, run: int, examples: int) -> Setting:
    """The numbers of one run of a stack."""
    return Setting(
        examples,
        float(hyper.sampling_rate_R[run]),
        int(hyper.steps_R[run]),
        float(hyper.learning_rate_R[run]),
        float(hyper.clip_norm_R[run]),
    )


def _places(state: State, settings: list[Setting]) -> tuple[Tensor, Tensor]:
    """The examples of this step's batches, and which places are filled: two tensors (R, B)."""
    passes = [_passes(one.sampling_rate, one.examples) for one in settings]
    device, examples = state.theta_RP.device, settings[0].examples
    batch_R = torch.tensor([batch for batch, _ in passes], device=device)
    first_R = state.step_R % torch.tensor([in_pass for _, in_pass in passes], device=device) * batch_R
    along_B = torch.arange(int(batch_R.max()), device=device)
    place_RB = first_R[:, None] + along_B
    mask_RB = (along_B < batch_R[:, None]) & (place_RB < examples)
    # An empty place repeats the first of the batch, so that no other record is read.
    place_RB = torch.where(mask_RB, place_RB, first_R[:, None])
    return state.private["order_RN"].gather(1, place_RB), mask_RB


mechanism = OutputPerturbation
