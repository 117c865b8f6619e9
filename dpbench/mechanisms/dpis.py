"""DPIS (`000_*`, Algorithm 1): examples are drawn by importance, with probability in proportion to their gradient norm.

| paper | here |
| --- | --- |
| N, Ñ | number of training examples, `size_R` |
| b, C_1, η, T·E | batch_size, clip_norm, learning_rate, steps of the spec |
| ε_0, δ_0 | the budget |
| k, g_L | oversampling, norm_floor |
| a_E | first_share |
| σ_N, σ_K | size_noise (in records), sum_noise (relative to C and C*): numbers fixed beforehand, not shares of N |
| C*/C_1, λ | external_bound, quantile (with adaptive_clipping) |
| K̃_e, C_e, σ_Ge | `sum_R`, `bound_R`, `noise_R` |
| ‖ḡ(x_i)‖, ‖ḡ*(x_i)‖ as last seen | `seen_RN`, `outer_RN` |

One step draws X_q, looks at those gradients, accepts X_p and hands (Σ_{X_p} ḡ/(q·p) + N(0, (σ_G·C·Ñ/b)²)) / Ñ to
the update. With q·p = b‖ḡ‖/K̃ every accepted gradient has length K̃/b. The mean is N/Ñ times that of the gradients
clipped at min(ĝ, C), which is C except for a norm that grew more than k-fold since it was last looked at.

**Variants.** `proven` (default) is what the proof of Section 4.1 needs. `as_printed` takes the lines literally;
`equation_7` too, but with the weights of (7) and fresh samples, which the proof takes for granted. What differs:

| place | printed | proven |
| --- | --- | --- |
| (12) | K̃ >= bC + ξ: below kbC line 17 is capped and a record moves the sum by up to kC > K̃/b | K̃ >= kbC |
| (11), (19), line 13 | a sampled sum over p_K, charged as if it moved by C | all norms: a Gaussian, sensitivity C |
| line 5 | X_q and X_p only grow during an epoch (`as_printed`) | fresh in every iteration |
| line 26 | 1/b before the sum and inside q·p (`as_printed`): 1/b of the mean | equation (7) |
| line 28, (19) | K* is a sum over all N, charged with amplification b/Ñ | a Gaussian, sensitivity C* |
| Section 5.3 | epochs of |D|/b steps | epochs of Ñ/b steps |

The printed variants choose σ_G by the printed charges; their ledger holds events that dominate what they release, so
that the ε of a finished run shows what the charges hide (the number of releases, |D|/b per epoch, is still taken as
public there). In all variants K* is released when the next epoch begins (the printed line also releases it after the
last one, for nothing), C <= g_L stops the run (line 29 may give a negative bound), and the orders of the accountant
are fixed beforehand (Section 4.1 leaves open when its order is chosen).

**The same run elsewhere.** The coins depend on seed, step and example alone. What they are held against depends on
norms, which rounding moves: alone, in a stack, in other chunks, by another engine or on another device a draw is the
same unless its coin lies between the two probabilities. The rest, as of all mechanisms, agrees up to rounding.

**What the proof needs, line by line, and where it is enforced.**

| line | needs | where |
| --- | --- | --- |
| 1 | θ_0 does not depend on the data | `functional.initial_parameters`: a seed alone |
| 2, 15 | σ_N, σ_K fixed beforehand; σ_G from released numbers alone | parameters; `_dpis_epoch.open_epoch` |
| 3, (18) | sensitivity 1, σ_N not a function of N | `start`; Ñ is raised to kb, which is public |
| 4, 6 | numbers of steps and epochs public | planned steps of the run, stopped after them; epochs of Ñ/b steps |
| 7-13, (11) | every norm at most C: one record moves K by C | `_opened`: norms clipped at C before the sum |
| (12) | bC <= K̃ for Lemma 3.1, kbC <= K̃ for (15) | `_dpis_rules.bounded_sum`; checked again in each step |
| 10-11 | g_L < C, so that ĝ <= kC | `check`, then `_dpis_epoch.next_bound` in each epoch |
| 16-18 | independent coins with probability q <= 1, rounded down | `_dpis_rules.below`, checked in `step` |
| 21-22 | p <= 1: clip at min(ĝ, C) before | `_dpis_rules.accepted_norm` |
| 24-25 | norms remembered are never released but through K and K* | `State.memory`; the ledger and θ do not hold them |
| 26, (20) | one record moves the sum by K̃/b, rate <= bC/K̃ | `_dpis_epoch`, first lines: why this pair dominates |
| 26 | the same in floating point, whatever the model | `_dpis_rules.weighted_sum` clips what it adds, at max(K̃/b, kC) |
| 28, (16) | ‖ḡ*‖ <= C*, C* public | `step` and `_opened`: clipped at external_bound·C_1 |
| 29, (17) | C_{e+1} from released numbers, above 0 | `_dpis_epoch.next_bound` |
| total τ | each release fits before it is made; orders, budget fixed | `RenyiFilter`; `gradient_noise` reserves |

Ledger: N, then of each epoch K* (adaptive clipping, from the second on), K and its steps; heterogeneous and adaptively
chosen, so that only `rdp_filter` may account for it (an upper bound). Neighbours: add or remove one record. Public:
batch_size, steps, k, g_L, a_E, C_1, C*, λ, η, σ_N, σ_K. Not N: Ñ stands in its place and is charged. In a record N is
public, as for every mechanism: it is printed, and q and T follow from it. Where N is private the charge for Ñ is needed
and the record may not be published. ε = ∞ runs without noise, the bounds of (12) and a ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.catalog import find
from dpbench.errors import DpbenchError
from dpbench.events import Composition
from dpbench.mechanisms._dpis_epoch import (
    MOST_EPOCHS,
    Fixed,
    Opened,
    Row,
    Run,
    check_fixed,
    next_bound,
    open_epoch,
    rounds_of,
)
from dpbench.mechanisms._dpis_rules import (
    VARIANTS,
    Rules,
    Variant,
    accepted_norm,
    all_norms,
    below,
    filter_probability,
    filter_reach,
    norms,
    weighted_sum,
)
from dpbench.step.clipped_sum import ClippedSum, Examples
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out
from dpbench.step.pipeline import Hyperparameters, Observed, Setting, State
from dpbench.step.stages import Update, filled, gaussian_noise, named_update

NUMERICS = 1
ENGINE = ("clipping",)

RELEASED = "released number of examples; N is public in this record"  # which prints `examples`, q and T
_OF_SIZE, _OF_SUM, _OF_OUTER, _FIRST_COIN = 0, 1, 2, 16  # elements of the stream ESTIMATE


@dataclass(frozen=True)
class Dpis:
    """Importance sampling with private N and K; `gaussian` False: without noise, clipping or a ledger."""

    engine: ClippedSum
    update: Update
    oversampling: float = 5.0
    first_share: float = 0.8
    size_noise: float = 100.0
    sum_noise: float = 100.0
    norm_floor: float = 0.01
    adaptive_clipping: bool = False
    external_bound: float = 4.0
    quantile: float = 1.0
    variant: Variant = "proven"
    gaussian: bool = True

    def __post_init__(self) -> None:
        for name, good, expected in (
            ("oversampling", 1 <= self.oversampling < math.inf, "a finite number, 1 or more"),
            ("first_share", 0 <= self.first_share <= 1, "a number from 0 to 1"),
            ("size_noise", 0 < self.size_noise < math.inf, "a finite number above 0, in records"),
            ("sum_noise", 0 < self.sum_noise < math.inf, "a finite number above 0, relative to the clip norm"),
            ("norm_floor", 0 < self.norm_floor < math.inf, "a finite number above 0"),
            ("external_bound", 0 < self.external_bound < math.inf, "a finite number above 0, relative to clip_norm"),
            ("quantile", 0 < self.quantile < math.inf, "a finite number above 0"),
            ("variant", self.variant in VARIANTS, "one of " + ", ".join(VARIANTS)),
        ):
            if not good:
                raise DpbenchError(f"{name} = {getattr(self, name)!r}: expected {expected}")

    @property
    def rules(self) -> Rules:
        return VARIANTS[self.variant]

    @property
    def fixed(self) -> Fixed:
        shares = (self.oversampling, self.first_share, self.size_noise, self.sum_noise, self.norm_floor)
        return Fixed(*shares, self.quantile if self.adaptive_clipping else None, self.rules)

    @property
    def private(self) -> bool:
        return self.gaussian

    @property
    def spends_budget(self) -> bool:
        return self.gaussian

    def plain(self) -> Dpis:
        """The counterpart without privacy: importance sampling with the exact N and K."""
        return replace(self, gaussian=False)

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError for numbers that the proof does not cover, or that leave no budget for gradients."""
        if not self.gaussian:
            return
        batch = setting.sampling_rate * setting.examples
        if abs(batch - round(batch)) > 1e-6 or batch < 0.5:
            raise DpbenchError(
                f"sampling_rate = {setting.sampling_rate:g}: makes {batch:g} of {setting.examples} examples; dpis needs"
                " a batch_size, a whole number that does not depend on the data"
            )
        if self.oversampling * round(batch) > setting.examples:
            raise DpbenchError(
                f"oversampling = {self.oversampling:g}: with batch_size = {round(batch)} it looks at"
                f" {self.oversampling * round(batch):g} of {setting.examples} examples in a step; expected no more than"
                " there are, take a smaller batch_size or oversampling"
            )
        if setting.clip_norm is None or not self.norm_floor < setting.clip_norm < math.inf:
            raise DpbenchError(
                f"clip_norm = {setting.clip_norm}: expected a finite number above norm_floor = {self.norm_floor:g}"
            )
        if setting.epsilon is None or setting.delta is None:
            raise DpbenchError("budget: dpis chooses its noise while it runs; expected epsilon and delta")
        epochs = math.ceil(setting.steps / max(1, math.floor(setting.examples / batch + 0.5)))
        releases = self.fixed.charged(setting.examples, round(batch))
        check_fixed(releases, epochs, setting.epsilon, setting.delta)

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """None: what is released is known afterwards (`released`)."""
        del sampling_rate, noise_multiplier, steps
        return None

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        """N, and of each epoch begun its sums and its steps; None for a run without noise (ε = ∞)."""
        found: list[Composition | None] = []
        for at, epsilon in enumerate(hyper.epsilon_R.tolist()):
            if not self.gaussian or math.isinf(epsilon):
                found.append(None)
                continue
            size, batch = (float(state.memory[name][at]) for name in ("size_R", "batch_R"))
            rows = _rows(state.memory["history_RHF"][at])
            found.append(self.fixed.dominating(size, batch).ledger(rows, int(state.step_R[at])))
        return tuple(found)

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": "poisson",
            "adjacency": "add_or_remove" if self.gaussian else None,
            "privacy_unit": "one training example" if self.gaussian else None,
            "normalisation": RELEASED if self.gaussian else "number of examples",
            "variant": self.variant,
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        """The initial state; N is released here (line 3)."""
        del inputs
        runs, count, device = len(theta_RP), len(targets), theta_RP.device
        step_R = torch.zeros(runs, dtype=torch.int64, device=device)
        batch_R = _whole(hyper.sampling_rate_R * count)
        normal_R1 = randomness.normal(hyper.keys_RS, randomness.ESTIMATE, step_R, _OF_SIZE + 1, dtype=torch.float64)
        exact_R, deviation_R = torch.full_like(batch_R, count), self.size_noise * self._noisy(hyper)
        size_R = let_out(exact_R, exact_R + deviation_R * normal_R1[:, 0], deviation_R)
        size_R = torch.where(self._noisy(hyper), torch.maximum(size_R, self.oversampling * batch_R), size_R)
        zero_R = torch.zeros_like(batch_R)
        memory = {name: torch.zeros_like(theta_RP) for name in self.update.memory} | {
            "size_R": size_R,
            "batch_R": batch_R,
            "bound_R": hyper.clip_norm_R.clone() if self.gaussian else torch.full_like(zero_R, math.inf),
            "sum_R": zero_R,
            "noise_R": zero_R.clone(),
            "next_R": step_R.clone(),
            "seen_RN": torch.zeros(runs, count, dtype=torch.float64, device=device),
            "history_RHF": torch.full((runs, MOST_EPOCHS, 3), -1.0, dtype=torch.float64, device=device),
        }
        if self.adaptive_clipping:
            memory["outer_RN"] = torch.zeros_like(memory["seen_RN"])
        if not self.rules.emptied:
            memory["passed_RN"] = torch.zeros(runs, count, dtype=torch.bool, device=device)
            memory["taken_RN"] = torch.zeros_like(memory["passed_RN"])
        return State(theta_RP, memory, step_R)

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """The inputs as they are."""
        del state, inputs
        return None

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        """Lines 7-27. A run that has to stop keeps its state and releases nothing."""
        opened, sound_R, stopped = self._opened(net, state, hyper, inputs, targets, chunk)
        memory = dict(opened.memory)
        batch_R, bound_R, sum_R = memory["batch_R"], memory["bound_R"], memory["sum_R"]
        noisy_R, count = self._noisy(hyper), len(targets)

        reach_RN = filter_reach(memory["seen_RN"], bound_R[:, None], self.oversampling, self.norm_floor)
        filter_RN = filter_probability(reach_RN, batch_R[:, None], sum_R[:, None])
        if self.rules.uncapped:
            over_R = noisy_R & (batch_R * reach_RN.amax(1) > sum_R * (1 + 1e-9))
            for place in over_R.nonzero().flatten().tolist():
                stopped.setdefault(place, "the filter of line 17 is capped, since K̃ is below b times a remembered norm")
        passed_RN = below(randomness.uniform_bits(hyper.keys_RS, randomness.SAMPLE, state.step_R, count), filter_RN)
        if not self.rules.emptied:
            passed_RN = memory["passed_RN"] = passed_RN | memory["passed_RN"]
        passed = filled(passed_RN)

        looked = Examples(inputs[passed.index_RB], targets[passed.index_RB], passed.mask_RB)
        found = norms(self.engine, net, state.theta_RP, looked, chunk)
        filled_RN = passed_RN.nonzero(as_tuple=True)
        norm_RN, loss_RN = torch.zeros_like(reach_RN), torch.zeros_like(reach_RN)
        norm_RN[filled_RN] = found.norm_RB[passed.mask_RB].double()
        loss_RN[filled_RN] = found.loss_RB[passed.mask_RB].double()
        finite_R = sound_R & norm_RN.isfinite().all(1)
        norm_RN = norm_RN.nan_to_num(0.0, 0.0)
        kept_RN = accepted_norm(norm_RN, reach_RN, bound_R[:, None])
        accept_RN = kept_RN / reach_RN
        coins_RN = randomness.uniform_bits(hyper.keys_RS, randomness.REJECT, state.step_R, count)
        taken_RN = passed_RN & below(coins_RN, accept_RN)
        if not self.rules.emptied:  # whoever was accepted once stays, as long as it has a gradient to weigh
            taken_RN = memory["taken_RN"] = taken_RN | (memory["taken_RN"] & (kept_RN > 0))

        taken = filled(taken_RN)
        # ḡ/(q·p) = g·(‖ḡ‖/‖g‖)/(q·‖ḡ‖/ĝ) = g·ĝ/(q·‖g‖), of length ĝ/q = max(K̃/b, ĝ); the sum is clipped at that
        weight_RN = torch.where(taken_RN, reach_RN / (filter_RN * norm_RN), torch.zeros_like(norm_RN))
        longest_R = torch.maximum(sum_R / batch_R, self.oversampling * bound_R)
        examples = Examples(inputs[taken.index_RB], targets[taken.index_RB], taken.mask_RB)
        weight_RB = weight_RN.gather(1, taken.index_RB)
        total_RP = weighted_sum(self.engine, net, state.theta_RP, examples, weight_RB, longest_R, chunk)
        finite_R = finite_R & total_RP.isfinite().all(1)
        if self.rules.divided_twice:
            total_RP = total_RP / batch_R[:, None].to(total_RP.dtype)
        if self.gaussian:
            deviation_R = torch.where(
                noisy_R, memory["noise_R"] * bound_R * memory["size_R"] / batch_R, torch.zeros_like(batch_R)
            )
            total_RP = gaussian_noise(total_RP, deviation_R, hyper.keys_RS, state.step_R)
        gradient_RP = total_RP / memory["size_R"].to(total_RP.dtype)[:, None]

        memory["seen_RN"] = torch.where(passed_RN, kept_RN, memory["seen_RN"])
        if self.adaptive_clipping:
            outer_RN = torch.minimum(norm_RN, self._external(hyper)[:, None])
            memory["outer_RN"] = torch.where(passed_RN, outer_RN, memory["outer_RN"])
        theta_RP, updated = self.update(
            state.theta_RP,
            {n: memory[n] for n in self.update.memory},
            gradient_RP,
            hyper.learning_rate_R,
            state.step_R,
        )
        after = State(theta_RP, memory | updated, state.step_R + 1)
        observed = Observed(
            drawn_R=taken_RN.sum(1),
            loss_R=torch.where(taken_RN, loss_RN, torch.zeros_like(loss_RN)).sum(1),
            clipped_R=(taken_RN & (norm_RN > bound_R[:, None])).sum(1),
            finite_R=finite_R,
            stopped=stopped,
        )
        return _frozen(state, after, stopped), observed

    def reach(self, after: State, hyper: Hyperparameters, examples: int) -> Tensor:
        """How far one example may move what the update gets, (R,): K̃/(b·Ñ), as of the step that led to `after`."""
        del hyper, examples
        memory = after.memory
        return memory["sum_R"] / (memory["batch_R"] * memory["size_R"])

    def size(self, after: State) -> Tensor:
        """What stands for N in the estimate, (R,): the released Ñ."""
        return after.memory["size_R"]

    def inclusion(
        self,
        before: State,
        after: State,
        net: Network,
        hyper: Hyperparameters,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """The probability q·p (R, N) with which each example was in the sum of the step from `before` to `after`."""
        del hyper
        norm_RN = all_norms(self.engine, net, before.theta_RP, inputs, targets, len(targets))
        began_R1 = (before.step_R >= before.memory["next_R"])[:, None]
        bound_R1 = after.memory["bound_R"][:, None]
        seen_RN = torch.where(began_R1, norm_RN, before.memory["seen_RN"])
        reach_RN = filter_reach(seen_RN, bound_R1, self.oversampling, self.norm_floor)
        filter_RN = filter_probability(reach_RN, after.memory["batch_R"][:, None], after.memory["sum_R"][:, None])
        return filter_RN * accepted_norm(norm_RN, reach_RN, bound_R1) / reach_RN

    def _noisy(self, hyper: Hyperparameters) -> Tensor:
        return ~hyper.epsilon_R.isinf() if self.gaussian else torch.zeros_like(hyper.epsilon_R, dtype=torch.bool)

    def _external(self, hyper: Hyperparameters) -> Tensor:
        if self.gaussian:
            return self.external_bound * hyper.clip_norm_R
        return torch.full_like(hyper.clip_norm_R, math.inf)

    def _opened(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Tensor, dict[int, str]]:
        """The state with new epochs begun where due, whether all norms were finite (R,), and who has to stop."""
        sound_R = torch.ones(len(state.step_R), dtype=torch.bool, device=state.step_R.device)
        begins = (state.step_R >= state.memory["next_R"]).nonzero().flatten()
        if not len(begins):
            return state, sound_R, {}
        norm_SN = all_norms(self.engine, net, state.theta_RP[begins], inputs, targets, chunk)
        memory = {name: value.clone() for name, value in state.memory.items()}
        normal_RE = randomness.normal(
            hyper.keys_RS, randomness.ESTIMATE, state.step_R, _OF_OUTER + 1, dtype=torch.float64
        )
        stopped: dict[int, str] = {}
        for place, norm_N in zip(begins.tolist(), norm_SN, strict=True):
            sound_R[place] = norm_N.isfinite().all()
            norm_N = norm_N.nan_to_num(0.0, 0.0)
            external = float(self._external(hyper)[place])
            try:
                run = self._run(state, hyper, place)
                outer = 0.0
                if self.adaptive_clipping and run.rows:
                    outer = self._let_out(run, self._outer_sum(memory, place), external, normal_RE, place, _OF_OUTER)
                bound = next_bound(self.fixed, run, outer)
                exact = self._summed(run, hyper, place, norm_N, bound)
                opened = open_epoch(self.fixed, run, bound, self._let_out(run, exact, bound, normal_RE, place, _OF_SUM))
            except DpbenchError as error:
                stopped[place] = str(error)
                continue
            _write(memory, place, len(run.rows), opened, norm_N)
            if self.adaptive_clipping:
                memory["outer_RN"][place] = norm_N.clamp(max=external)
        return replace(state, memory=memory), sound_R, stopped

    def _run(self, state: State, hyper: Hyperparameters, place: int) -> Run:
        """One run in plain numbers. Raises DpbenchError for a batch size that is not above 0."""
        memory = state.memory
        size, batch, rate = (float(x[place]) for x in (memory["size_R"], memory["batch_R"], hyper.sampling_rate_R))
        if not batch > 0:
            raise DpbenchError(f"batch_size = {batch:g}: expected a number above 0, dpis has no weights without one")
        return Run(
            size=size,
            batch_size=batch,
            bound=float(memory["bound_R"][place]),
            steps=int(hyper.steps_R[place]),
            epsilon=float(hyper.epsilon_R[place]) if self.gaussian else math.inf,
            delta=float(hyper.delta_R[place]),
            step=int(state.step_R[place]),
            rounds=rounds_of(size, batch, rate, self.rules),
            rows=_rows(memory["history_RHF"][place]),
        )

    def _let_out(self, run: Run, exact: float, unit: float, normal_RE: Tensor, place: int, element: int) -> float:
        """K or K* of one run with its noise, σ_K times `unit`; as it is in a run without noise."""
        deviation = self.sum_noise * unit if run.noisy else 0.0
        noise = deviation * float(normal_RE[place, element]) if run.noisy else 0.0
        exact_1, noisy_1, deviation_1 = torch.tensor([[exact], [exact + noise], [deviation]], dtype=torch.float64)
        return float(let_out(exact_1, noisy_1, deviation_1, [place]))

    def _outer_sum(self, memory: Mapping[str, Tensor], place: int) -> float:
        """The sum of the norms as last seen, clipped at C*; without its noise."""
        return float(memory["outer_RN"][place].sum())

    def _summed(self, run: Run, hyper: Hyperparameters, place: int, norm_N: Tensor, bound: float) -> float:
        """The sum of the norms, clipped at `bound`; as printed by (11), over a sample and divided by p_K."""
        clipped_N = norm_N.clamp(max=bound)
        if not self.rules.sampled_sum or not run.noisy:
            return float(clipped_N.sum())
        share = min(1.0, run.batch_size / run.size)
        seed_1, step_1 = hyper.keys_RS[place : place + 1], torch.tensor([run.step], device=clipped_N.device)
        bits_N = randomness.uniform_bits(seed_1, randomness.ESTIMATE, step_1, len(clipped_N), first=_FIRST_COIN)[0]
        return float(clipped_N[below(bits_N, torch.full_like(clipped_N, share))].sum()) / share


def _whole(batch_R: Tensor) -> Tensor:
    """b from its rate: the whole number that the spec gave, without the rounding of the division."""
    nearest_R = batch_R.round()
    return torch.where((batch_R - nearest_R).abs() < 1e-6, nearest_R, batch_R)


def _rows(history_HF: Tensor) -> tuple[Row, ...]:
    """The epochs of one run; empty rows start at -1."""
    return tuple(Row(int(start), rate, multiplier) for start, rate, multiplier in history_HF.tolist() if start >= 0)


def _write(memory: dict[str, Tensor], place: int, row: int, opened: Opened, norm_N: Tensor) -> None:
    """Put what holds in the new epoch into the (cloned) memory of one run."""
    memory["bound_R"][place] = opened.bound
    memory["sum_R"][place] = opened.gradient_sum
    memory["noise_R"][place] = opened.noise
    memory["next_R"][place] = opened.following
    memory["seen_RN"][place] = norm_N.clamp(max=opened.bound)
    numbers = [opened.row.start, opened.row.rate, opened.row.multiplier]
    memory["history_RHF"][place, row] = torch.tensor(numbers, dtype=torch.float64)
    for name in ("passed_RN", "taken_RN"):
        if name in memory:
            memory[name][place] = False


def _frozen(before: State, after: State, stopped: Mapping[int, str]) -> State:
    """The state after a step, in which stopped runs stand where they stood."""
    if not stopped:
        return after
    held_R = torch.zeros(len(before.step_R), dtype=torch.bool, device=before.step_R.device)
    held_R[list(stopped)] = True

    def chosen(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(held_R.reshape(-1, *[1] * (new.dim() - 1)), old, new)

    memory = {name: chosen(before.memory[name], value) for name, value in after.memory.items()}
    return State(chosen(before.theta_RP, after.theta_RP), memory, chosen(before.step_R, after.step_R))


def mechanism(
    *,
    oversampling: float = 5.0,
    first_share: float = 0.8,
    size_noise: float = 100.0,
    sum_noise: float = 100.0,
    norm_floor: float = 0.01,
    adaptive_clipping: bool = False,
    external_bound: float = 4.0,
    quantile: float = 1.0,
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd",
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
    clipping: str = "vmap",
    variant: Variant = "proven",
) -> Dpis:
    """The table above has the paper's letters; `clipping` names the engine that gives the norms.

    Raises DpbenchError for numbers that make no DPIS; what depends on the data or the plan is in `Dpis.check`.

    >>> mechanism(oversampling=3).spends_budget
    True
    """
    update = named_update(
        optimizer, momentum=momentum, beta1=beta1, beta2=beta2, offset=offset, bias_correction=bias_correction
    )
    return Dpis(
        engine=find("clipping", clipping).load(),
        update=update,
        oversampling=oversampling,
        first_share=first_share,
        size_noise=size_noise,
        sum_noise=sum_noise,
        norm_floor=norm_floor,
        adaptive_clipping=adaptive_clipping,
        external_bound=external_bound,
        quantile=quantile,
        variant=variant,
    )
