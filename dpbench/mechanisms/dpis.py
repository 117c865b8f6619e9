"""DPIS (dpis2022, Algorithm 1): examples are drawn with probability in proportion to their gradient norm.

| paper | here |
| --- | --- |
| N, Ñ | number of training examples, `size_R` |
| b, C_1, η, T·E | batch_size, clip_norm, learning_rate, steps of the spec |
| ε_0, δ_0 | the budget |
| k, g_L | oversampling, norm_floor |
| a_E | first_share |
| σ_N, σ_K | size_noise (in records), sum_noise (relative to C and C*): fixed beforehand, not shares of N |
| C*/C_1, λ | external_bound, quantile (with adaptive_clipping) |
| K̃_e, C_e, σ_Ge | `sum_R`, `bound_R`, `noise_R` |
| ‖ḡ(x_i)‖, ‖ḡ*(x_i)‖ as last seen | `seen_RN`, `outer_RN` |

One step draws X_q, computes these gradients, accepts X_p and passes (Σ_{X_p} ḡ/(q·p) + N(0, (σ_G·C·Ñ/b)²)) / Ñ to the
update. With q·p = b‖ḡ‖/K̃ every accepted term has norm K̃/b. The expectation is N/Ñ times the mean of the gradients
clipped at min(ĝ, C), which is C except for a norm that grew more than k-fold since it was last seen.

`variant`: `proven` (default) meets the assumptions of the proof in Section 4.1, `as_printed` takes the lines literally,
and `equation_7` lies between. docs/dpis.md lists the differences, and where the code meets each assumption.

Ledger: N, then for each epoch K* (adaptive clipping, from the second on), K and its steps; heterogeneous and adaptively
chosen, so only `rdp_filter` accounts for it (an upper bound). Neighbours: add or remove one record. Public: batch_size,
steps, k, g_L, a_E, C_1, C*, λ, η, σ_N, σ_K. N is not public: Ñ replaces it and is charged. But the record of a run
prints N, and q and T, as for every mechanism: if N is private the record must not be published. ε = ∞ runs without
noise, without the bounds of (12) and without a ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.catalog import build, find
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.mechanisms._dpis_epoch import (
    MOST_EPOCHS,
    Fixed,
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
from dpbench.mechanisms._dpis_state import refuse_history, rows_of, write
from dpbench.mechanisms.presets import ANY, Factory
from dpbench.step.clipped_sum import ClippedSum, Examples
from dpbench.step.functional import Network, finite_runs
from dpbench.step.letting_out import let_out
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, Setting, State, refuse_changed
from dpbench.step.pipeline import optimised
from dpbench.step.stages import Update, filled, gaussian_noise

NUMERICS = 1

RELEASED = "released number of examples; N is public in this record"  # which prints `examples`, q and T
_OF_AN_EPOCH = ("bound_R", "sum_R", "noise_R", "next_R", "history_RHF")  # the memory that K and K* determine
_OF_SIZE, _OF_SUM, _OF_OUTER, _FIRST_COIN = 0, 1, 2, 16  # elements of the stream ESTIMATE


@dataclass(frozen=True)
class Dpis:
    """Importance sampling with noisy N and K; `gaussian` False: without noise, clipping or a ledger."""

    engine: ClippedSum
    optimizer: Update
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

    @property
    def work(self) -> float:
        """A gradient for each record of an oversampled batch, and norms of all records at each epoch."""
        return 2 + 2 * self.oversampling

    def plain(self) -> Dpis:
        """The same mechanism without privacy: importance sampling with the exact N and K."""
        return replace(self, gaussian=False)

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if the proof does not cover the numbers, or no budget is left for gradients."""
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
                f"oversampling = {self.oversampling:g}: with batch_size = {round(batch)} it computes"
                f" {self.oversampling * round(batch):g} gradients of {setting.examples} examples; expected no more than"
                " there are, take a smaller batch_size or oversampling"
            )
        if setting.clip_norm is None or not self.norm_floor < setting.clip_norm < math.inf:
            raise DpbenchError(
                f"clip_norm = {setting.clip_norm}: expected a finite number above norm_floor = {self.norm_floor:g}"
            )
        if setting.epsilon is None or setting.delta is None:
            raise DpbenchError("budget: dpis chooses its noise during training; expected epsilon and delta")
        epochs = math.ceil(setting.steps / max(1, math.floor(setting.examples / batch + 0.5)))
        events = self.fixed.charged(setting.examples, round(batch))
        check_fixed(events, epochs, setting.epsilon, setting.delta)

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """None: the events are known only afterwards (`released`)."""
        del sampling_rate, noise_multiplier, steps
        return None

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        """The events of N, and of the sums and steps of each epoch begun; None for a run without noise (ε = ∞)."""
        found: list[Composition | None] = []
        for at, epsilon in enumerate(hyper.epsilon_R.tolist()):
            if not self.gaussian or math.isinf(epsilon):
                found.append(None)
                continue
            size, batch = (float(state.memory[name][at]) for name in ("size_R", "batch_R"))
            steps = int(state.step_R[at])
            rows = [row for row in rows_of(state.memory["history_RHF"][at]) if row.start < steps]
            found.append(self.fixed.dominating(size, batch).ledger(rows, steps))
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
        """The initial state, with the noisy N (line 3)."""
        del inputs
        runs, count, device = len(theta_RP), len(targets), theta_RP.device
        step_R = torch.zeros(runs, dtype=torch.int64, device=device)
        batch_R = _whole(hyper.sampling_rate_R * count)
        normal_R1 = randomness.normal(hyper.keys_RS, randomness.ESTIMATE, step_R, _OF_SIZE + 1, dtype=torch.float64)
        exact_R, deviation_R = torch.full_like(batch_R, count), self.size_noise * self._noisy(hyper)
        size_R = let_out(exact_R, exact_R + deviation_R * normal_R1[:, 0], deviation_R)
        size_R = torch.where(self._noisy(hyper), torch.maximum(size_R, self.oversampling * batch_R), size_R)
        zero_R = torch.zeros_like(batch_R)
        memory = {name: torch.zeros_like(theta_RP) for name in self.optimizer.memory} | {
            "size_R": size_R,
            "batch_R": batch_R,
            "bound_R": hyper.clip_norm_R.clone() if self.gaussian else torch.full_like(zero_R, math.inf),
            "sum_R": zero_R,
            "noise_R": zero_R.clone(),
            "next_R": step_R.clone(),
            "history_RHF": torch.full((runs, MOST_EPOCHS, 3), -1.0, dtype=torch.float64, device=device),
        }
        private = {"seen_RN": torch.zeros(runs, count, dtype=torch.float64, device=device)}
        if self.adaptive_clipping:
            private["outer_RN"] = torch.zeros_like(private["seen_RN"])
        if not self.rules.emptied:
            private["passed_RN"] = torch.zeros(runs, count, dtype=torch.bool, device=device)
            private["taken_RN"] = torch.zeros_like(private["passed_RN"])
        return State(theta_RP, memory, step_R, private)

    def refuse_state(self, state: State, start: State, hyper: Hyperparameters, examples: int) -> None:
        """Raise DpbenchError for another Ñ or b, or noise that does not follow from the released sums."""
        del examples
        refuse_changed(state, start, ("batch_R", "size_R", *([] if self.adaptive_clipping else ["bound_R"])))
        refuse_history(self.fixed, self._run(state, hyper, 0), state.memory)

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """The inputs as they are."""
        del state, inputs
        return None

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """Lines 7-27 without the update. A run that must stop keeps its state and releases nothing."""
        opened, sound_R, stopped = self._opened(net, state, hyper, inputs, targets, chunk)
        memory, private = opened.memory, dict(opened.private)
        batch_R, bound_R, sum_R = memory["batch_R"], memory["bound_R"], memory["sum_R"]
        noisy_R, count = self._noisy(hyper), len(targets)

        reach_RN = filter_reach(private["seen_RN"], bound_R[:, None], self.oversampling, self.norm_floor)
        filter_RN = filter_probability(reach_RN, batch_R[:, None], sum_R[:, None])
        if self.rules.uncapped:
            over_R = noisy_R & (batch_R * reach_RN.amax(1) > sum_R * (1 + 1e-9))
            for place in over_R.nonzero().flatten().tolist():
                stopped.setdefault(place, "the filter of line 17 is capped, since K̃ is below b times a remembered norm")
        passed_RN = below(randomness.uniform_bits(hyper.keys_RS, randomness.SAMPLE, state.step_R, count), filter_RN)
        if not self.rules.emptied:
            passed_RN = private["passed_RN"] = passed_RN | private["passed_RN"]
        passed = filled(passed_RN)

        looked = Examples(inputs[passed.index_RB], targets[passed.index_RB], passed.mask_RB)
        found = norms(self.engine, net, state.theta_RP, looked, chunk)
        filled_RN = passed_RN.nonzero(as_tuple=True)
        norm_RN, loss_RN = torch.zeros_like(reach_RN), torch.zeros_like(reach_RN)
        norm_RN[filled_RN] = found.norm_RB[passed.mask_RB].double()
        loss_RN[filled_RN] = found.loss_RB[passed.mask_RB].double()
        finite_R = sound_R & finite_runs(norm_RN)
        norm_RN = norm_RN.nan_to_num(0.0, 0.0)
        kept_RN = accepted_norm(norm_RN, reach_RN, bound_R[:, None])
        accept_RN = kept_RN / reach_RN
        coins_RN = randomness.uniform_bits(hyper.keys_RS, randomness.REJECT, state.step_R, count)
        taken_RN = passed_RN & below(coins_RN, accept_RN)
        if not self.rules.emptied:  # an accepted example stays as long as its gradient is not 0
            taken_RN = private["taken_RN"] = taken_RN | (private["taken_RN"] & (kept_RN > 0))

        taken = filled(taken_RN)
        # ḡ/(q·p) = g·(‖ḡ‖/‖g‖)/(q·‖ḡ‖/ĝ) = g·ĝ/(q·‖g‖), of length ĝ/q = max(K̃/b, ĝ); the sum is clipped at that
        weight_RN = torch.where(taken_RN, reach_RN / (filter_RN * norm_RN), torch.zeros_like(norm_RN))
        longest_R = torch.maximum(sum_R / batch_R, self.oversampling * bound_R)
        examples = Examples(inputs[taken.index_RB], targets[taken.index_RB], taken.mask_RB)
        weight_RB = weight_RN.gather(1, taken.index_RB)
        total_RP = weighted_sum(self.engine, net, state.theta_RP, examples, weight_RB, longest_R, chunk)
        finite_R = finite_R & finite_runs(total_RP)
        if self.rules.divided_twice:
            total_RP = total_RP / batch_R[:, None].to(total_RP.dtype)
        if self.gaussian:
            deviation_R = torch.where(
                noisy_R, memory["noise_R"] * bound_R * memory["size_R"] / batch_R, torch.zeros_like(batch_R)
            )
            total_RP = gaussian_noise(total_RP, deviation_R, hyper.keys_RS, state.step_R)
        stopped_R = torch.zeros_like(noisy_R)
        stopped_R[list(stopped)] = True
        gradient_RP = total_RP / memory["size_R"].to(total_RP.dtype)[:, None]
        gradient_RP = _unless(stopped_R, torch.zeros_like(gradient_RP), gradient_RP)

        private["seen_RN"] = torch.where(passed_RN, kept_RN, private["seen_RN"])
        if self.adaptive_clipping:
            outer_RN = torch.minimum(norm_RN, self._external(hyper)[:, None])
            private["outer_RN"] = torch.where(passed_RN, outer_RN, private["outer_RN"])
        values = {name: _unless(stopped_R, state.memory[name], memory[name]) for name in _OF_AN_EPOCH}
        events = partial(self._events, state, opened, hyper, frozenset(stopped))
        released = Released(gradient_RP, events, values | {"stopped_R": stopped_R})
        observed = Observed(
            drawn_R=taken_RN.sum(1),
            loss_R=torch.where(taken_RN, loss_RN, torch.zeros_like(loss_RN)).sum(1),
            clipped_R=(taken_RN & (norm_RN > bound_R[:, None])).sum(1),
            finite_R=finite_R,
            stopped=stopped,
        )
        private = {name: _unless(stopped_R, state.private[name], value) for name, value in private.items()}
        return released, Kept(observed, private)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        """The optimizer's step, and the released values of the epoch; stopped runs keep their state."""
        stopped_R = released.values["stopped_R"]
        theta_RP, kept = optimised(self.optimizer, state, rate_R, released.gradient_RP)
        changed = {name: released.values[name] for name in _OF_AN_EPOCH} | kept
        memory = {name: _unless(stopped_R, state.memory[name], value) for name, value in changed.items()}
        return State(
            _unless(stopped_R, state.theta_RP, theta_RP),
            {**state.memory, **memory},
            _unless(stopped_R, state.step_R, state.step_R + 1),
        )

    def _events(
        self, state: State, opened: State, hyper: Hyperparameters, stopped: frozenset[int], run: int
    ) -> tuple[Event, ...]:
        """The events of one run's step: those of a new epoch, and that of the gradient; none of a stopped run."""
        if run in stopped:
            return ()
        place = torch.tensor([run], device=state.step_R.device)
        before, after = state.take(place), replace(opened, step_R=opened.step_R + 1).take(place)
        ledgers = [self.released(there, hyper.take(place))[0] for there in (before, after)]
        earlier, later = (
            [event for event, count in ledger.parts for _ in range(count)] if ledger else [] for ledger in ledgers
        )
        return tuple(later[len(earlier) :])

    def reach(self, after: State, hyper: Hyperparameters, examples: int) -> Tensor:
        """How far one example may move the gradient estimate, (R,): K̃/(b·Ñ) in the step that led to `after`."""
        del hyper, examples
        memory = after.memory
        return memory["sum_R"] / (memory["batch_R"] * memory["size_R"])

    def size(self, after: State) -> Tensor:
        """The number that replaces N in the estimate, (R,): the noisy Ñ."""
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
        seen_RN = torch.where(began_R1, norm_RN, before.private["seen_RN"])
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
        """The state with new epochs begun where due, whether all norms were finite (R,), and which runs must stop."""
        sound_R = torch.ones(len(state.step_R), dtype=torch.bool, device=state.step_R.device)
        begins = (state.step_R >= state.memory["next_R"]).nonzero().flatten()
        if not len(begins):
            return state, sound_R, {}
        norm_SN = all_norms(self.engine, net, state.theta_RP[begins], inputs, targets, chunk)
        memory = {name: value.clone() for name, value in state.memory.items()}
        private = {name: value.clone() for name, value in state.private.items()}
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
                    outer = self._noised(run, self._outer_sum(private, place), external, normal_RE, place, _OF_OUTER)
                bound = next_bound(self.fixed, run, outer)
                exact = self._summed(run, hyper, place, norm_N, bound)
                opened = open_epoch(self.fixed, run, bound, self._noised(run, exact, bound, normal_RE, place, _OF_SUM))
            except DpbenchError as error:
                stopped[place] = str(error)
                continue
            write(memory, place, len(run.rows), opened)
            private["seen_RN"][place] = norm_N.clamp(max=opened.bound)
            for name in private.keys() & {"passed_RN", "taken_RN"}:
                private[name][place] = False
            if self.adaptive_clipping:
                private["outer_RN"][place] = norm_N.clamp(max=external)
        return replace(state, memory=memory, private=private), sound_R, stopped

    def _run(self, state: State, hyper: Hyperparameters, place: int) -> Run:
        """One run as Python numbers. Raises DpbenchError for a batch size that is not above 0."""
        memory = state.memory
        size, batch, rate = (float(x[place]) for x in (memory["size_R"], memory["batch_R"], hyper.sampling_rate_R))
        if not batch > 0:
            raise DpbenchError(f"batch_size = {batch:g}: expected a number above 0")
        return Run(
            size=size,
            batch_size=batch,
            bound=float(memory["bound_R"][place]),
            steps=int(hyper.steps_R[place]),
            epsilon=float(hyper.epsilon_R[place]) if self.gaussian else math.inf,
            delta=float(hyper.delta_R[place]),
            step=int(state.step_R[place]),
            rounds=rounds_of(size, batch, rate, self.rules),
            rows=rows_of(memory["history_RHF"][place]),
        )

    def _noised(self, run: Run, exact: float, unit: float, normal_RE: Tensor, place: int, element: int) -> float:
        """K or K* of one run plus noise of deviation σ_K·`unit`; unchanged in a run without noise."""
        deviation = self.sum_noise * unit if run.noisy else 0.0
        noise = deviation * float(normal_RE[place, element]) if run.noisy else 0.0
        exact_1, noisy_1, deviation_1 = torch.tensor([[exact], [exact + noise], [deviation]], dtype=torch.float64)
        return float(let_out(exact_1, noisy_1, deviation_1, [place]))

    def _outer_sum(self, private: Mapping[str, Tensor], place: int) -> float:
        """The sum of the norms as last seen, clipped at C*, without noise."""
        return float(private["outer_RN"][place].sum())

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
    """b from its rate: the whole number of the spec, without the rounding error of the division."""
    nearest_R = batch_R.round()
    return torch.where((batch_R - nearest_R).abs() < 1e-6, nearest_R, batch_R)


def _unless(stopped_R: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """`new`, but `old` for stopped runs."""
    return torch.where(stopped_R.reshape(-1, *[1] * (new.dim() - 1)), old, new)


def with_stages(
    *,
    oversampling: float = 5.0,
    first_share: float = 0.8,
    size_noise: float = 100.0,
    sum_noise: float = 100.0,
    norm_floor: float = 0.01,
    adaptive_clipping: bool = False,
    external_bound: float = 4.0,
    quantile: float = 1.0,
    variant: Variant = "proven",
    update: str | dict[str, Any] = "sgd",
    engine: str = "vmap",
) -> Dpis:
    """DPIS (dpis2022, Algorithm 1): examples are drawn with probability in proportion to their gradient norm.

    Raises DpbenchError for parameters that are not valid; `Dpis.check` tests what depends on the data or the plan.

    >>> with_stages(oversampling=3).spends_budget
    True
    """
    return Dpis(
        engine=find("clipping", engine).load(),
        optimizer=build("updates", update),
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


# Takes the update's parameters beside its own: `optimizer` names the update, `clipping` the engine.
mechanism = Factory("dpis", with_stages, {"update": ANY, "engine": "vmap"}, str(with_stages.__doc__))
