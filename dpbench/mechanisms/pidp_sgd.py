"""PIDP-SGD (pidp2021, Algorithm 1): noise only for records whose noisy influence on the model is large.

Theorem 5 promises (ε₁ + ε₂, δ₁ + δ₂)-DP for that, and is unsound: a step without noise shows its record exactly,
however small its influence (`pidp2021.theorem-5`, `pidp2021.algorithm-1-silent-step` in its claims.yaml). So there are
two variants:

- `proven`, the default, has the branch switched off: every step has noise, calibrated by an accountant. It is NoisySGD
  on the regularised loss, with its ledger.
- `as_printed` runs Algorithm 1. Its budget sets both noises by Theorem 5, and the ε of the budget is only *claimed*.
  The ledger begins with a pair of distributions that have no outcome in common, so every accountant says that ε is
  infinite, or refuses. The record has the share of the drawn records that met no noise.

| paper | here |
| --- | --- |
| α, T, R, T_local | learning_rate and steps of the spec, `rounds`, `round_steps` |
| G | clip_norm: the paper assumes a Lipschitz loss, here gradients are clipped |
| ε₂/(ε₁ + ε₂), δ₁ = δ₂ | `decision_share` (Section 7: 1/4), half of the budget's δ |
| c, c' | `noise_constant` (not printed; 2 by Abadi et al. 2016, see below), 2√2 |
| r | `radius` |
| ζ | `regularisation` + `damping` (Remark 5) |
| L, C | `smoothness`, `third_derivative` |
| θ̃^(g)_r, H | `round_RP`, `factor_RPP` or conjugate gradients |
| c_t, b^(c), σ_(c), σ | `noisy_RBP`, its noise, `decision_noise`, `gradient_noise` |

**Lines 10 and 11** together let |[c_t]_i| <= 2rδ₁(1 + e^−ε₁) pass in every coordinate i
(`pidp2021.algorithm-1-line-11`). Where the conversion of the paper or its text leave a choice:

- A batch of expected size b replaces the one record; b = 1 is the paper's step, but that Poisson sampling may draw none
  or several. Section 5.3 scales the noise by the share of important records in a batch, and so does this.
- Lines 3, 6 and 18 start every round anew; the text means training to go on, and it does (`algorithm-1-rounds`).
- Line 8 adds the norm E to every coordinate, as printed; E is the corrected bound (`_influence.error_bound`).
- c = 2 follows from the tail bound of Abadi et al. 2016 and the leading term of its lemma on the moments, which asks
  for σ >= G and q < G/(16σ); few settings meet both (`pidp2021.moments-accountant-conditions`). So this noise may cost
  more than ε₁, and more than ε: on KDDCup99 at ε = 3 (σ = 0.66 G) 3.6 with noise at every step. The report states the
  exact ε of that beside the claim.
- Line 9 draws anew at each step, as printed. No line projects onto the ball.
- The regulariser is added in the update; it does not depend on the data (`pipeline.Regularised`).

Shapes: R runs, B batch, P parameters, N examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dpbench import randomness
from dpbench.catalog import build, find
from dpbench.errors import DpbenchError
from dpbench.events import Composition, DiscretePair, Event, SampledGaussian
from dpbench.mechanisms._influence import (
    MOST_DENSE,
    any_direction,
    conjugate_gradients,
    error_bound,
    factor,
    gradients,
    hessian,
)
from dpbench.mechanisms.pipeline import regularised
from dpbench.mechanisms.presets import Factory
from dpbench.step import logistic
from dpbench.step.clipped_sum import ClippedSum, Examples
from dpbench.step.functional import Network, finite_runs
from dpbench.step.letting_out import let_out
from dpbench.step.mechanism import Hyperparameters, Kept, Mechanism, Observed, Released, Setting, State
from dpbench.step.pipeline import Pipeline, optimised
from dpbench.step.stages import Batch, Sampling, Update, gaussian_noise

NUMERICS = 1

Variant = Literal["proven", "as_printed"]
Solver = Literal["auto", "dense", "conjugate_gradients"]
CLAIM = "pidp2021, Theorem 5"
DECISION_CONSTANT = 2 * math.sqrt(2)  # c' of Theorem 5's proof, printed as 2.83
SHOWS_A_RECORD: Event = DiscretePair(first=(1.0, 0.0), second=(0.0, 1.0))
_LEAST_DELTA = 2.0**-1022  # the smallest double with all its digits


@dataclass(frozen=True)
class PidpSgd:
    """Algorithm 1 as printed. Its ledger says that it may show a record; there is no ε."""

    engine: ClippedSum
    optimizer: Update
    sample: Sampling
    regularisation: float
    damping: float
    rounds: int
    radius: float
    decision_share: float
    noise_constant: float
    smoothness: float
    third_derivative: float
    solver: Solver
    variant: Variant = "as_printed"

    private: ClassVar[bool] = True  # it is meant to be, and the checks refute it
    refuted: ClassVar[str] = "noise_scale: records of little influence meet no noise"
    spends_budget: ClassVar[bool] = True
    work: ClassVar[float] = 10.0  # as measured on logistic regressions: all but the Hessian and its inverse

    def more_operations(self, *, parameters: int, examples: int, batch: float, steps: int) -> float:
        """Operations of a step, for the plan's estimate, that grow faster than the model: the Hessian and its inverse.

        A dense Hessian takes about 30·N·P² of them, once in a round (as measured on the networks and the
        logistic regressions of Figure 1), and its triangular solves 4·P² for each record of a batch.
        """
        if self._dense(parameters):
            return parameters**2 * (30.0 * examples * min(self.rounds, steps) / steps + 4 * batch)
        return 100 * 30.0 * examples * parameters * batch  # conjugate gradients: a hundred products for each record

    @property
    def curvature(self) -> float:
        """ζ, a bound of the least eigenvalue of the damped Hessian for a convex loss."""
        return self.regularisation + self.damping

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if influence functions need not exist, or Theorem 5 does not say which noise to add.

        Its constants are those of cross-entropy.
        """
        setting.expect_cross_entropy("pidp_sgd, variant as_printed,")
        if not self.curvature > 0:
            raise DpbenchError(
                "regularisation = 0: the Hessian may be singular, and then influence functions do not exist; expected"
                " a regularisation (or damping) above 0, or variant: proven, which needs none"
            )
        if not self.curvature > 2.0**-52 * self.smoothness:
            raise DpbenchError(
                f"regularisation + damping = {self.curvature:g}: lost in the rounding of a Hessian with eigenvalues up"
                f" to smoothness = {self.smoothness:g}; expected a larger regularisation (or damping)"
            )
        if setting.clip_norm is None or not math.isfinite(setting.clip_norm):
            raise DpbenchError(f"clip_norm = {setting.clip_norm}: expected a finite number, the G of Theorem 5")
        if setting.epsilon is None or setting.delta is None:
            raise DpbenchError("budget: Theorem 5 sets the noise; expected epsilon and delta")
        each = self.decision_share * setting.epsilon / self.rounds
        if not each <= 1:
            raise DpbenchError(
                f"epsilon = {setting.epsilon:g}: leaves epsilon_2/R = {each:g} for the contributions of a round, and"
                " the Gaussian mechanism's theorem (Lemma 3) holds up to 1; expected a smaller epsilon or"
                " decision_share, or more rounds"
            )
        if not setting.delta / 2 / self.rounds >= _LEAST_DELTA:
            raise DpbenchError(
                f"delta = {setting.delta:g}: leaves delta_2/R below {_LEAST_DELTA:.3g}, too small for the noise of the"
                " Gaussian mechanism's theorem (Lemma 3); expected a larger delta, or fewer rounds"
            )
        if self.rounds > setting.steps:
            raise DpbenchError(f"rounds = {self.rounds}: expected at most the {setting.steps} steps")

    def refuse_model(self, module: nn.Module) -> None:
        """Raise DpbenchError for a model that is no logistic regression and has no damping."""
        if self.damping > 0:
            return
        try:
            logistic.refuse_model(module)
        except DpbenchError as error:
            raise DpbenchError(
                "damping = 0: the model is no logistic regression, so its loss need not be convex and its Hessian may"
                " be singular, where influence functions do not exist; expected damping above its most negative"
                " eigenvalue (Remark 5), such as 2, or any above 0 where it is known to be positive definite"
            ) from error

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """None: the noise follows from the budget (`released`)."""
        del sampling_rate, noise_multiplier, steps
        return None

    def ledger_of_budget(
        self, *, sampling_rate: float, steps: int, epsilon: float, delta: float, done: int | None = None
    ) -> Composition:
        """What the branch may show, then a step with Theorem 5's noise for each of the `done` steps (None: all)."""
        sigma = self._sigma(sampling_rate, steps, epsilon, delta)
        step = SampledGaussian(sampling_rate, sigma)
        return Composition(((SHOWS_A_RECORD, 1), (step, steps if done is None else done)))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        numbers = (hyper.sampling_rate_R, hyper.steps_R, hyper.epsilon_R, hyper.delta_R, state.step_R)
        return tuple(
            self.ledger_of_budget(sampling_rate=rate, steps=steps, epsilon=epsilon, delta=delta, done=done)
            for rate, steps, epsilon, delta, done in zip(*(each.tolist() for each in numbers), strict=True)
        )

    def event(self, rate: float, noise_multiplier: float) -> Event:
        """The event of a step as the proof accounts for it, every step having noise."""
        return SampledGaussian(rate, noise_multiplier)

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": "poisson",
            "adjacency": "add_or_remove",
            "privacy_unit": "one training example",
            "normalisation": "expected batch size",
            "variant": self.variant,
            "claimed_by": CLAIM,
        }

    def measured(self, state: State) -> tuple[Mapping[str, Any], ...]:
        """Facts of each run: the share of the drawn records that met no noise, by lines 10 and 11."""
        pairs = zip(state.private["drawn_R"].tolist(), state.private["silent_R"].tolist(), strict=True)
        return tuple({"without_noise": silent / drawn if drawn else None} for drawn, silent in pairs)

    def gradient_noise(self, hyper: Hyperparameters) -> Tensor:
        """σ of Theorem 5 relative to G, for a batch of rate q: c·q·sqrt(T ln(1/δ₁))/ε₁, float64 (R,).

        With q = 1/n and one record it is the printed c·G·sqrt(T ln(1/δ₁))/(nε₁).
        """
        numbers = (hyper.sampling_rate_R, hyper.steps_R, hyper.epsilon_R, hyper.delta_R)
        found = [self._sigma(*one) for one in zip(*(each.tolist() for each in numbers), strict=True)]
        return torch.tensor(found, dtype=torch.float64, device=hyper.delta_R.device)

    def _sigma(self, rate: float, steps: int, epsilon: float, delta: float) -> float:
        return (
            self.noise_constant * rate * math.sqrt(steps * math.log(2 / delta)) / ((1 - self.decision_share) * epsilon)
        )

    def decision_noise(self, hyper: Hyperparameters, examples: int) -> Tensor:
        """σ_(c) of Theorem 5: c'·G·R·sqrt(ln(1.25R/δ₂))/(nζε₂), float64 (R,)."""
        log_R = (2.5 * self.rounds / hyper.delta_R).log()
        scale_R = DECISION_CONSTANT * hyper.clip_norm_R * self.rounds / (examples * self.curvature)
        return scale_R * log_R.sqrt() / (self.decision_share * hyper.epsilon_R)

    def threshold(self, hyper: Hyperparameters) -> Tensor:
        """The largest |[c_t]_i| that lines 10 and 11 let pass: 2rδ₁(1 + e^−ε₁), float64 (R,)."""
        return self.radius * hyper.delta_R * (1 + (-(1 - self.decision_share) * hyper.epsilon_R).exp())

    def round_steps(self, hyper: Hyperparameters) -> Tensor:
        """T_local, int64 (R,): the planned steps over the rounds, rounded up."""
        return (hyper.steps_R + self.rounds - 1) // self.rounds

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        del hyper, inputs
        runs, size = theta_RP.shape
        step_R = torch.zeros(runs, dtype=torch.int64, device=theta_RP.device)
        memory = {name: torch.zeros_like(theta_RP) for name in self.optimizer.memory}
        memory |= {"round_RP": theta_RP.clone()}
        private = {"drawn_R": step_R.clone(), "silent_R": step_R.clone(), "of_round_R": step_R - 1}
        if self._dense(size):
            private["factor_RPP"] = torch.zeros(runs, size, size, dtype=torch.float64, device=theta_RP.device)
        del targets  # nothing is released of them before the first step
        return State(theta_RP, memory, step_R, private)

    def refuse_state(self, state: State, start: State, hyper: Hyperparameters, examples: int) -> None:
        """Raise DpbenchError for another round, or counts of records that so many steps cannot have."""
        del start
        drawn, silent, step = (int(one) for one in (state.private["drawn_R"], state.private["silent_R"], state.step_R))
        expected, found = (step - 1) // int(self.round_steps(hyper)), int(state.private["of_round_R"])
        if found != expected:
            raise DpbenchError(f"its of_round_R = {found}: expected {expected} after {step} steps")
        if not 0 <= silent <= drawn <= examples * step:
            raise DpbenchError(f"its silent_R = {silent}, drawn_R = {drawn}: not those of {step} steps")

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """The inputs as they are."""
        del state, inputs
        return None

    def prepare(
        self, net: Network, state: State, inputs: Tensor, targets: Tensor
    ) -> tuple[Mapping[str, Tensor], Mapping[int, str]]:
        """The first round's Hessians, so that a run without influence functions is refused before training."""
        return self._in_round(net, state, state.private["of_round_R"].clamp_min(0), inputs, targets)

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """Lines 5 to 15 without the update."""
        count, round_R = len(targets), state.step_R // self.round_steps(hyper)
        begins_R = round_R != state.private["of_round_R"]
        round_RP = torch.where(begins_R[:, None], state.theta_RP, state.memory["round_RP"])
        private, stopped = self._in_round(net, state, round_R, inputs, targets)
        batch = self.sample(hyper.keys_RS, state.step_R, hyper.sampling_rate_R, count)
        given = (hyper, private, inputs, targets)
        exact_RBP = torch.stack(
            [self._contributions(net, round_RP[run], batch, run, *given, stopped) for run in range(len(round_R))]
        )
        passes_RB = self._passes(exact_RBP, state.step_R, hyper, count) & batch.mask_RB

        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        clipped = self.engine(net, state.theta_RP, examples, hyper.clip_norm_R, chunk)
        drawn_R, silent_R = batch.mask_RB.sum(1), passes_RB.sum(1)
        sum_RP = torch.where(drawn_R[:, None] > 0, clipped.sum_RP, torch.zeros_like(clipped.sum_RP))
        important_R = (drawn_R - silent_R).double() / drawn_R.clamp_min(1)
        deviation_R = self.gradient_noise(hyper) * hyper.clip_norm_R * important_R
        noisy_RP = gaussian_noise(sum_RP, deviation_R, hyper.keys_RS, state.step_R)
        mean_RP = noisy_RP / (hyper.sampling_rate_R * count).to(noisy_RP.dtype)[:, None]
        loss_RB = torch.where(batch.mask_RB, clipped.loss_RB, torch.zeros_like(clipped.loss_RB))
        observed = Observed(
            drawn_R=drawn_R,
            loss_R=loss_RB.double().sum(1),
            clipped_R=(batch.mask_RB & (clipped.norm_RB > hyper.clip_norm_R[:, None])).sum(1),
            finite_R=finite_runs(sum_RP),
            stopped=stopped,
        )
        private |= {"drawn_R": private["drawn_R"] + drawn_R, "silent_R": private["silent_R"] + silent_R}
        return Released(mean_RP, partial(self._events, hyper), {"round_RP": round_RP}), Kept(observed, private)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        """The optimizer's step; the model at which the round began is one that was released."""
        theta_RP, kept = optimised(self.optimizer, state, rate_R, released.gradient_RP)
        return replace(
            state, theta_RP=theta_RP, memory={**state.memory, **kept, **released.values}, step_R=state.step_R + 1
        )

    def _in_round(
        self, net: Network, state: State, round_R: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[dict[str, Tensor], dict[int, str]]:
        """What is private, with the Hessian's factor of each run whose round begins, and why a run must stop.

        Conjugate gradients keep no factor: they solve one system there, with a part in every direction.
        """
        stopped: dict[int, str] = {}
        private, begins = dict(state.private), (round_R != state.private["of_round_R"]).nonzero().flatten().tolist()
        if not begins:
            return private, stopped
        dense = "factor_RPP" in private
        private["of_round_R"] = round_R
        if dense:
            private["factor_RPP"] = private["factor_RPP"].clone()
        for run in begins:
            given = (net, state.theta_RP[run], inputs, targets)
            try:
                if dense:
                    private["factor_RPP"][run] = factor(hessian(*given, self.curvature))
                else:
                    conjugate_gradients(*given, any_direction(state.theta_RP[run]), self.curvature)
            except DpbenchError as error:
                stopped[run] = str(error)
        return private, stopped

    def _dense(self, size: int) -> bool:
        return self.solver == "dense" or (self.solver == "auto" and size <= MOST_DENSE)

    def _contributions(
        self,
        net: Network,
        theta_P: Tensor,
        batch: Batch,
        run: int,
        hyper: Hyperparameters,
        private: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        stopped: dict[int, str],
    ) -> Tensor:
        """2(c_z + E) of the batch's records at the model where the round began (line 8), float64 (B, P)."""
        mask_B, index_B, clip = batch.mask_RB[run], batch.index_RB[run], float(hyper.clip_norm_R[run])
        found_BP = torch.zeros(len(mask_B), len(theta_P), dtype=torch.float64, device=theta_P.device)
        taken_B = index_B[mask_B]
        if run in stopped or not len(taken_B):
            return found_BP
        slope_KP = gradients(net, theta_P, inputs[taken_B], targets[taken_B])
        slope_KP = slope_KP * (clip / slope_KP.norm(dim=1, keepdim=True).clamp_min(clip))
        try:
            if "factor_RPP" in private:
                moves_KP = torch.cholesky_solve(slope_KP.T, private["factor_RPP"][run]).T
            else:
                moves_KP = conjugate_gradients(net, theta_P, inputs, targets, slope_KP, self.curvature)
        except DpbenchError as error:
            stopped[run] = str(error)
            return found_BP
        away = error_bound(
            gradient=clip,
            smoothness=self.smoothness,
            third=self.third_derivative,
            curvature=self.curvature,
            records=len(targets),
        )
        found_BP[mask_B] = 2 * (moves_KP / len(targets) + away)
        return found_BP

    def _passes(self, exact_RBP: Tensor, step_R: Tensor, hyper: Hyperparameters, examples: int) -> Tensor:
        """Lines 9 to 11: whether a record's noisy contribution lets its step go without noise, (R, B)."""
        runs, places, size = exact_RBP.shape
        deviation_R = self.decision_noise(hyper, examples)
        normal_RBP = randomness.normal(
            hyper.keys_RS, randomness.ESTIMATE, step_R, places * size, dtype=torch.float64
        ).reshape(runs, places, size)
        noisy_RBP = let_out(exact_RBP, exact_RBP + deviation_R[:, None, None] * normal_RBP, deviation_R)
        return noisy_RBP.abs().amax(2) <= self.threshold(hyper)[:, None]

    def _events(self, hyper: Hyperparameters, run: int) -> tuple[Event, ...]:
        return (self.event(float(hyper.sampling_rate_R[run]), float(self.gradient_noise(hyper)[run])),)


def with_stages(
    *,
    variant: Variant = "proven",
    regularisation: float = 0.01,
    damping: float = 0.0,
    rounds: int = 1,
    radius: float = 1.0,
    decision_share: float = 0.25,
    noise_constant: float = 2.0,
    smoothness: float = 0.5,
    third_derivative: float = 0.28,
    solver: Solver = "auto",
    sample: str | dict[str, Any] = "poisson",
    clip: str | dict[str, Any] = "flat",
    noise: str | dict[str, Any] = "constant",
    update: str | dict[str, Any] = "sgd",
    engine: str = "vmap",
) -> Mechanism:
    """PIDP-SGD (pidp2021, Algorithm 1), with noise at every step (`proven`) or only for influential records.

    `smoothness` and `third_derivative` are those of logistic regression of two classes on inputs of norm 1 or less; all
    but `regularisation` concern `as_printed` alone. Raises DpbenchError for parameters that are not valid.

    >>> with_stages().private, with_stages(variant="as_printed").facts()["claimed_by"]
    (True, 'pidp2021, Theorem 5')
    """
    whole = isinstance(rounds, int) and not isinstance(rounds, bool)
    for name, value, good, expected in (
        ("variant", variant, variant in ("proven", "as_printed"), "proven or as_printed"),
        ("damping", damping, 0 <= damping < math.inf, "a finite number, 0 or more"),
        ("rounds", rounds, whole and rounds >= 1, "a whole number, 1 or more"),
        ("radius", radius, 0 < radius < math.inf, "a finite number above 0"),
        ("decision_share", decision_share, 0 < decision_share < 1, "a number from 0 to 1, both excluded"),
        ("noise_constant", noise_constant, 0 < noise_constant < math.inf, "a finite number above 0"),
        ("smoothness", smoothness, 0 < smoothness < math.inf, "a finite number above 0"),
        ("third_derivative", third_derivative, 0 <= third_derivative < math.inf, "a finite number, 0 or more"),
        ("solver", solver, solver in ("auto", "dense", "conjugate_gradients"), "auto, dense or conjugate_gradients"),
    ):
        if not good:
            raise DpbenchError(f"{name} = {value!r}: expected {expected}")
    optimizer = regularised(build("updates", update), regularisation)
    sampling: Sampling = build("samplers", sample)
    clipping: ClippedSum = find("clipping", engine).load()
    if variant == "proven":
        return Pipeline(sampling, build("rules", clip), build("noise", noise), optimizer, clipping)
    return PidpSgd(
        engine=clipping,
        optimizer=optimizer,
        sample=sampling,
        regularisation=regularisation,
        damping=damping,
        rounds=rounds,
        radius=radius,
        decision_share=decision_share,
        noise_constant=noise_constant,
        smoothness=smoothness,
        third_derivative=third_derivative,
        solver=solver,
    )


mechanism = Factory(
    "pidp_sgd",
    with_stages,
    {"sample": "poisson", "clip": "flat", "noise": "constant", "update": "sgd", "engine": "vmap"},
    str(with_stages.__doc__),
)
