"""A mechanism composed of stages: sample, prepare, augment, smooth, clip (rule and engine), noise, update, average.

docs/mechanisms.md describes the presets; their table is `dpbench/mechanisms/presets.py`. A mechanism that is not such a
chain of stages implements `step.mechanism.Mechanism` itself. Shapes: R runs, B batch, P parameters, N examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from dpbench.errors import DpbenchError, lacks_memory
from dpbench.events import Composition, Event
from dpbench.step.clipped_sum import Clipped, ClippedSum, Draw, Examples, clip_weight, one_by_one
from dpbench.step.functional import Network, augmented, finite_runs, smoothed
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, Setting, State, refuse_changed
from dpbench.step.stages import (
    AdaptiveClipping,
    Augmentation,
    Average,
    Noise,
    OwnSum,
    Preparation,
    Rule,
    Sampling,
    Smoothing,
    Update,
    Weights,
    gaussian_noise,
)

NUMERICS = 1

AVERAGE = "average_RP"  # the name of the averaged parameters in the state's memory
LEAST_NOISE = 1e-3  # below it ε means nothing: one step alone has about 10^6
MOST_STRETCHES = 1000  # different amounts of noise in one ledger; each is an event of its own to every accountant


@dataclass(frozen=True)
class Pipeline:
    """A batch, a weighted sum of gradients, Gaussian noise, division by the expected batch size, an update.

    The gradient is (Σ_{i∈B_t} w_i g_i + N(0, σ²C²)) / (qN), with batch B_t and the rule's weights w_i. The papers
    divide by |B_t|; that number is random and private and would change the sensitivity, so qN is used. `noise` None is
    training without privacy, without a ledger. `engine` computes the sum of a rule with weights. `run_by_run`: a rule
    with its own sum gets the runs of a stack one after the other, which training chooses where it is faster.
    """

    sample: Sampling
    rule: Rule
    noise: Noise | None
    optimizer: Update
    engine: ClippedSum | None = None
    preparation: Preparation | None = None
    smoothing: Smoothing | None = None
    average: Average | None = None
    augmentation: Augmentation | None = None
    run_by_run: bool = False

    def __post_init__(self) -> None:
        name = type(self.rule).__name__
        absent = [member for member in ("event", "divisor", "facts") if not callable(getattr(self.rule, member, None))]
        if absent:
            raise DpbenchError(f"clip: the rule {name} has no method {absent[0]!r} (docs/own_mechanism.md)")
        update, kept = type(self.optimizer).__name__, getattr(self.optimizer, "memory", None)
        if not callable(self.optimizer) or not isinstance(kept, tuple):
            raise DpbenchError(f"update: {update} needs a tuple `memory`, and to be called")
        weights, own_sum = hasattr(self.rule, "weight"), hasattr(self.rule, "summed")
        if weights == own_sum:
            raise DpbenchError(f"clip: the rule {name} needs one of `weight` and `summed`, and not both")
        if own_sum and self.engine is not None:
            raise DpbenchError(f"engine: {name} computes its sum itself; expected no engine")
        if weights and self.engine is None:
            raise DpbenchError(f"engine: {name} needs one; expected an engine, such as vmap")
        if self.smoothing is not None and self.noise is None:
            raise DpbenchError("smooth: its scale is a multiple of the noise; expected noise, or `smooth: none`")
        if isinstance(self.rule, AdaptiveClipping) and self.noise is None:
            raise DpbenchError(f"clip: {name} moves the clip norm by a noisy count; expected noise, such as constant")
        if self.noise is not None:
            event = self.event(1.0, 1.0)  # a rule without an event raises
            sampler = getattr(event, "sampler", self.sample.sampler)
            if sampler != self.sample.sampler:
                raise DpbenchError(
                    f"clip: the event of {name} has the sampler {sampler}; expected {self.sample.sampler}"
                )

    @property
    def private(self) -> bool:
        return self.noise is not None

    @property
    def refuted(self) -> str:
        """Why no ε may be stated of it, as its rule says; "" where one may."""
        return str(getattr(self.rule, "refuted", ""))

    @property
    def secure(self) -> bool:
        """Whether all its noise comes from `gaussian_noise`, and its batches can be drawn without keys."""
        prepared = self.preparation is None or bool(getattr(self.preparation, "secure", False))
        return prepared and bool(getattr(self.sample, "secure", True))

    @property
    def spends_budget(self) -> bool:
        return False

    @property
    def places_of_a_record(self) -> int:
        """At how many parameters a step takes each record's gradient: K with a smoothed loss."""
        return int(getattr(self.smoothing, "smoothing_samples", 1))

    @property
    def work(self) -> float:
        """About how many times the work of NoisySGD a step is: each view and shift is a pass, a projection a part."""
        views = getattr(self.augmentation, "views", 1)
        shifts = getattr(self.smoothing, "smoothing_samples", 1)
        projections = getattr(self.rule, "projections", 0)
        part = 0.1 if getattr(self.rule, "way", "") == "layers" else 0.3
        return float(views * shifts * (1 + part * projections))

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if a stage cannot work with these numbers."""
        stages: tuple[Any, ...] = (self.sample, self.preparation, self.smoothing, self.rule, self.noise, self.optimizer)
        for stage in (*stages, self.average, self.augmentation):
            if hasattr(stage, "check"):
                stage.check(setting)

    def event(self, rate: float, noise_multiplier: float) -> Event:
        """The event of one step; `noise_multiplier` is relative to the clip norm.

        A record more moves every later batch of a shuffled epoch. So the neighbours of those are `zero_out`: the record
        that a rule may add is replaced by one that adds nothing.
        """
        event = self.rule.event(rate, noise_multiplier, self.sample.sampler)
        if self.sample.sampler == "shuffled" and event.adjacency == "add_or_remove":
            return replace(event, adjacency="zero_out")
        return event

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """The preparation's events, then one for each step.

        Raises DpbenchError if a step has almost no noise, or if the noise changes more than MOST_STRETCHES times.
        """
        if self.noise is not None and noise_multiplier:
            factors = [factor for factor, _ in islice(self.noise.stretches(sampling_rate, steps), MOST_STRETCHES + 1)]
            least = min(factors, default=1.0)
            if least < 1 and 0 <= noise_multiplier * least < LEAST_NOISE:
                raise DpbenchError(
                    f"noise_decay: leaves a noise multiplier of {noise_multiplier * least:.3g} in some epoch: expected"
                    f" {LEAST_NOISE:g} or more; take a smaller noise_decay or fewer epochs"
                )
            if len(factors) > MOST_STRETCHES:
                raise DpbenchError(
                    f"noise: changes more than {MOST_STRETCHES:,} times in {steps:,} steps, too often to be accounted"
                    " for; take fewer epochs, or constant noise"
                )
        return self._composition(sampling_rate, noise_multiplier, steps)

    def _composition(self, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """The ledger of so many steps, however little noise: what has run is never refused."""
        if self.noise is None:
            return None
        if not noise_multiplier:
            raise ValueError(f"noise_multiplier = {noise_multiplier!r}: expected a number above 0")
        parts = [] if self.preparation is None else list(self.preparation.releases)
        stretches = self.noise.stretches(sampling_rate, steps)
        parts += ((self.event(sampling_rate, noise_multiplier * factor), count) for factor, count in stretches)
        return Composition(tuple(parts))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        numbers = zip(
            hyper.sampling_rate_R.tolist(), hyper.noise_multiplier_R.tolist(), state.step_R.tolist(), strict=True
        )
        return tuple(self._composition(rate, sigma, steps) for rate, sigma, steps in numbers)

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": self.sample.sampler,
            "adjacency": self.event(1.0, 1.0).adjacency if self.private else None,
            "privacy_unit": "one training example" if self.private else None,
            **self.rule.facts(),
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        del targets  # nothing is released of them before the first step
        memory = {name: torch.zeros_like(theta_RP) for name in self.optimizer.memory}
        if isinstance(self.rule, AdaptiveClipping):
            memory["clip_scale_R"] = torch.ones_like(hyper.clip_norm_R)
        if self.average is not None:
            memory[AVERAGE] = theta_RP
        if self.preparation is not None:
            memory |= self.preparation.start(hyper.keys_RS, inputs)
        return State(theta_RP, memory, torch.zeros(len(theta_RP), dtype=torch.int64, device=theta_RP.device))

    def refuse_state(self, state: State, start: State, hyper: Hyperparameters, examples: int) -> None:
        """Raise DpbenchError for other statistics of the preparation, or a clip norm that the rule cannot reach."""
        del hyper, examples
        moved = {*self.optimizer.memory, AVERAGE, "clip_scale_R"}
        refuse_changed(state, start, sorted(start.memory.keys() - moved))
        scale_R = state.memory.get("clip_scale_R")
        if scale_R is not None and not bool((scale_R > 0).all()):
            raise DpbenchError(f"its clip_scale_R = {float(scale_R.min()):g}: expected a number above 0")

    def evaluated(self, state: State) -> Tensor:
        """The parameters (R, P) to evaluate: the average, if a stage says so."""
        return state.theta_RP if self.average is None else state.memory[AVERAGE]

    def clip_norm(self, state: State, hyper: Hyperparameters) -> Tensor:
        """C of the step after this state, float64 (R,): that of the run, unless the rule moves it."""
        if isinstance(self.rule, AdaptiveClipping):
            return hyper.clip_norm_R * state.memory["clip_scale_R"]
        return hyper.clip_norm_R

    def gradient_share(self, state: State, hyper: Hyperparameters, examples: int) -> Tensor:
        """The noise multiplier of the step over that of its gradient alone, float64 (R,), 1 or less.

        It is below 1 where the event tells of a count as well.
        """
        if not isinstance(self.rule, AdaptiveClipping):
            return torch.ones_like(hyper.noise_multiplier_R)
        multiplier_R = self._multiplier(state, hyper)
        share_R = self.rule.count_share(multiplier_R, hyper.sampling_rate_R * examples)
        return (1 - share_R.square()).sqrt()

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        if self.preparation is None:
            return None
        return self.preparation(state.memory, inputs.expand(len(state.step_R), *inputs.shape))

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """The noisy mean gradient of one batch of each run."""
        rate_R, count = hyper.sampling_rate_R, len(targets)
        known = {} if hyper.places is None else {"places": hyper.places}  # samplers of others may not take them
        batch = self.sample(hyper.keys_RS, state.step_R, rate_R, count, **known)
        seen = inputs[batch.index_RB]
        if self.preparation is not None:
            seen = self.preparation(state.memory, seen)
        draw = Draw(hyper.keys_RS, state.step_R, batch.index_RB, rate_R, count, hyper.groups)
        if self.augmentation is not None:
            seen, net = self.augmentation(draw, seen), augmented(net)
        # Where the size of the batch is known ahead, the step is to wait for nothing.
        examples = Examples(seen, targets[batch.index_RB], batch.mask_RB, looks=hyper.places is None)
        clip_R = self.clip_norm(state, hyper)
        multiplier_R = self._multiplier(state, hyper)
        # Without noise (σ = 0) the clip norm may be infinite.
        deviation_R = torch.where(multiplier_R > 0, multiplier_R * clip_R, torch.zeros_like(clip_R))
        shifts_by_run = self._shifts(draw, hyper, deviation_R, net.size, state.theta_RP.dtype)
        clipped = self._smoothed_sum(shifts_by_run, draw, net, state.theta_RP, examples, clip_R, chunk)
        drawn_R = batch.mask_RB.sum(1)
        # An empty batch sums to 0, whatever stood in its places; 0·∞ is not 0.
        sum_RP = torch.where(drawn_R[:, None] > 0, clipped.sum_RP, torch.zeros_like(clipped.sum_RP))
        total_RP = sum_RP
        values: dict[str, Tensor] = {}
        if self.noise is not None:
            if isinstance(self.rule, AdaptiveClipping):
                count_R = self.rule.count(clipped.norm_RB, clip_R, batch.mask_RB)
                total_RP, noisy_R = self._with_count(sum_RP, count_R, deviation_R, state, hyper, count)
                values["below_R"] = noisy_R / (rate_R * count) + 0.5
            else:
                total_RP = gaussian_noise(total_RP, deviation_R, hyper.keys_RS, state.step_R)
        mean_RP = total_RP / (rate_R * count).to(total_RP.dtype)[:, None]
        divisor_R = self.rule.divisor(rate_R, count)
        if divisor_R is not None:
            mean_RP = mean_RP * (rate_R * count / divisor_R)[:, None].to(mean_RP.dtype)
        loss_RB = torch.where(batch.mask_RB, clipped.loss_RB, torch.zeros_like(clipped.loss_RB))
        observed = Observed(
            drawn_R=drawn_R,
            loss_R=loss_RB.double().sum(1),
            clipped_R=(batch.mask_RB & (clipped.norm_RB > clip_R[:, None])).sum(1),
            finite_R=finite_runs(sum_RP),
        )
        return Released(mean_RP, partial(self._events, state, hyper), values), Kept(observed)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        """The optimizer's step, for every run. Raises like `optimised`."""
        theta_RP, kept = optimised(self.optimizer, state, rate_R, released.gradient_RP)
        if isinstance(self.rule, AdaptiveClipping):
            kept["clip_scale_R"] = self.rule.moved(state.memory["clip_scale_R"], released.values["below_R"])
        if self.average is not None:
            kept[AVERAGE] = self.average(state.memory[AVERAGE], theta_RP, state.step_R)
        return replace(state, theta_RP=theta_RP, memory={**state.memory, **kept}, step_R=state.step_R + 1)

    def _multiplier(self, state: State, hyper: Hyperparameters) -> Tensor:
        """The noise multiplier of the step, float64 (R,)."""
        if self.noise is None:
            return torch.zeros_like(hyper.noise_multiplier_R)
        return hyper.noise_multiplier_R * self.noise.factor(state.step_R, hyper.sampling_rate_R)

    def _with_count(
        self,
        sum_RP: Tensor,
        count_R: Tensor,
        deviation_R: Tensor,
        state: State,
        hyper: Hyperparameters,
        examples: int,
    ) -> tuple[Tensor, Tensor]:
        """The sum (R, P) and the count (R,) with their noise: one release, as one vector of noise σC in every entry.

        With c = σ/(2σ_b) and a = (1 − c²)^½ the vector (a·S, 2cC·D) changes by at most (a² + c²)^½·C = C.
        """
        assert isinstance(self.rule, AdaptiveClipping)
        clip_R = self.clip_norm(state, hyper)
        share_R = self.rule.count_share(self._multiplier(state, hyper), hyper.sampling_rate_R * examples)
        first_R1 = self.gradient_share(state, hyper, examples)[:, None].to(sum_RP.dtype)
        # In units of C; of an infinite one, which has no noise, in units of 1.
        last_R1 = (2 * share_R * torch.where(clip_R.isfinite(), clip_R, 1.0))[:, None].to(sum_RP.dtype)
        whole_RQ = torch.cat([first_R1 * sum_RP, last_R1 * count_R[:, None].to(sum_RP.dtype)], 1)
        noisy_RQ = gaussian_noise(whole_RQ, deviation_R, hyper.keys_RS, state.step_R)
        return noisy_RQ[:, :-1] / first_R1, (noisy_RQ[:, -1:] / last_R1)[:, 0].double()

    def _shifts(
        self, draw: Draw, hyper: Hyperparameters, deviation_R: Tensor, size: int, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """The shifts (K, P) of each run in turn; nothing where the loss is not smoothed."""
        for run in range(len(deviation_R) if self.smoothing is not None else 0):
            of = slice(run, run + 1)
            assert self.smoothing is not None
            shifts_1KP = self.smoothing.shifts(draw.runs(of), hyper.learning_rate_R[of], deviation_R[of], size, dtype)
            if shifts_1KP is not None:
                yield shifts_1KP[0]

    def _smoothed_sum(
        self,
        shifts_by_run: Iterable[Tensor],
        draw: Draw,
        net: Network,
        theta_RP: Tensor,
        examples: Examples,
        clip_R: Tensor,
        chunk: int,
    ) -> Clipped:
        """The sum of the loss, smoothed if a stage says so: run by run, as each has its own shifts (K, P)."""
        parts = []
        for run, shifts_KP in enumerate(shifts_by_run):
            of = slice(run, run + 1)
            shifted = smoothed(net, shifts_KP)
            parts.append(self._sum(draw.runs(of), shifted, theta_RP[of], examples.runs(of), clip_R[of], chunk))
        return Clipped.joined(parts) if parts else self._sum(draw, net, theta_RP, examples, clip_R, chunk)

    def _sum(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        if isinstance(self.rule, OwnSum):
            summed = self.rule.summed
            if not self.run_by_run:
                return summed(draw, net, theta_RP, examples, clip_R, chunk)

            def of_run(of: slice, own: Examples) -> Clipped:
                return summed(draw.runs(of, own.mask_RB.shape[1]), net, theta_RP[of], own, clip_R[of], chunk)

            return one_by_one(examples, of_run)
        assert isinstance(self.rule, Weights)
        assert self.engine is not None
        # An engine of another package may know clipping alone.
        if self.rule.weight is clip_weight:
            return self.engine(net, theta_RP, examples, clip_R, chunk)
        return self.engine(net, theta_RP, examples, clip_R, chunk, self.rule.weight)

    def _events(self, state: State, hyper: Hyperparameters, run: int) -> tuple[Event, ...]:
        """The last event of the ledger after this step."""
        rate, sigma = float(hyper.sampling_rate_R[run]), float(hyper.noise_multiplier_R[run])
        ledger = self._composition(rate, sigma, int(state.step_R[run]) + 1)
        return () if ledger is None else (ledger.parts[-1][0],)


def optimised(optimizer: Update, state: State, rate_R: Tensor, gradient_RP: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply an update, written for one run, to a stack: the new parameters (R, P) and the update's memory.

    Raises DpbenchError for whatever it raises but a lack of memory, for results of another form, and where it writes
    into what it is given.
    """
    given = (state.theta_RP, gradient_RP, *state.memory.values())
    versions = [value._version for value in given]
    name = type(optimizer).__name__
    try:
        memory = {key: state.memory[key] for key in optimizer.memory}
        theta_RP, kept = vmap(optimizer)(
            state.theta_RP, memory, gradient_RP, rate_R.to(state.theta_RP.dtype), state.step_R.double()
        )
        new = {"the parameters": (theta_RP, state.theta_RP)}
        new |= {f"memory {key!r}": (kept[key], memory[key]) for key in memory}
        wrong = next((what for what, (one, old) in new.items() if (one.shape, one.dtype) != (old.shape, old.dtype)), "")
        extra = sorted(kept.keys() - memory.keys())
    except Exception as error:
        if lacks_memory(error):  # training goes on with less at a time
            raise
        text = " ".join(str(error).split())
        raise DpbenchError(
            f"update {name} stops with {type(error).__name__}: {text}; an update is written for one run, with theta_P"
            " and gradient_P of shape (P,), without `if` on their values, and returns new parameters and a mapping of"
            " its memory"
        ) from error
    if wrong or extra:
        what = f"{wrong} in another shape or type" if wrong else f"{extra[0]!r}, which is not in its `memory`"
        raise DpbenchError(
            f"update {name} returns {what}; expected the parameters and its memory, each as it was given"
        )
    if [value._version for value in given] != versions:
        raise DpbenchError(f"update {name} writes into what it is given: compute new tensors, not in place")
    return theta_RP, kept
