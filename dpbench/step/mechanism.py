"""A step of training: `release` computes noisy values from the data, `update` changes the parameters by these alone.

`step` calls both and passes to `update` the released values and nothing else that depends on the data.
Shapes: R runs, B batch, P parameters, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.step.functional import Network

NUMERICS = 1


@dataclass(frozen=True)
class Hyperparameters:
    """What may differ between the runs of one stack: tensors (R,), `steps_R` int64, the others float64.

    `keys_RS` is the table of `randomness.keys`, int64 (R, S), or (R, 0) for runs with `randomness: secure`.
    `clip_norm_R` is inf without clipping. `noise_multiplier_R` is relative to the clip norm, and 0 without noise.
    `steps_R` is the planned number of steps. `epsilon_R` and `delta_R` are the budget of a mechanism that chooses its
    noise while it runs; NaN for the others. `places` is a number of places that no batch of the next step exceeds, and
    `groups` the same of its microbatches (`Draw`), for stages that then need not wait for the device; None where they
    are not known.
    """

    keys_RS: Tensor
    sampling_rate_R: Tensor
    learning_rate_R: Tensor
    clip_norm_R: Tensor
    noise_multiplier_R: Tensor
    steps_R: Tensor
    epsilon_R: Tensor
    delta_R: Tensor
    places: int | None = None
    groups: tuple[int, int] | None = None

    def take(self, index: Tensor) -> Hyperparameters:
        return self.each(lambda value: value[index])

    def each(self, function: Callable[[Tensor], Tensor]) -> Hyperparameters:
        """The same with the function of each tensor."""
        changed: Any = {name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class State:
    """The state of the runs of a stack after `step_R` steps.

    `memory` and `private` map names to tensors with first axis R. `memory` depends on the data through released values
    only: the tensors (R, P) of the update, and earlier released values. `private` is what a mechanism keeps about
    records and never releases; the update does not see it.
    """

    theta_RP: Tensor
    memory: Mapping[str, Tensor]
    step_R: Tensor
    private: Mapping[str, Tensor] = field(default_factory=dict)

    def take(self, index: Tensor | slice) -> State:
        memory, private = ({name: value[index] for name, value in kept.items()} for kept in (self.memory, self.private))
        return State(self.theta_RP[index], memory, self.step_R[index], private)


@dataclass(frozen=True)
class Observed:
    """Diagnostics of one step, (R,) each. They have no noise and must not reach the update.

    Number of examples drawn, sum of their losses, how many were clipped, and whether the sum of gradients was finite.
    `stopped` maps the place of a run that must stop to the reason, one sentence; that run fails.
    """

    drawn_R: Tensor
    loss_R: Tensor
    clipped_R: Tensor
    finite_R: Tensor
    stopped: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Released:
    """The noisy values of one step: all that the update gets.

    `gradient_RP` is the noisy estimate of the mean gradient; `values` are further released tensors with first axis R.
    `events(run)` gives the events of these values, in the ledger's order; () for a mechanism that is not private.
    """

    gradient_RP: Tensor
    events: Callable[[int], tuple[Event, ...]]
    values: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """What the update does not get: the state's new `private`, and diagnostics."""

    observed: Observed
    private: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """The numbers of one planned run, for `Mechanism.check` before anything runs.

    `examples` is N. `clip_norm`, `noise_multiplier`, `epsilon` and `delta` are None if the spec gives none;
    `test_examples`, `classes` and `input_shape`, the shape of a record's inputs, are of the dataset, None where they
    are not known. `loss` is what is trained.
    """

    examples: int
    sampling_rate: float
    steps: int
    learning_rate: float
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    test_examples: int | None = None
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    loss: str = "cross_entropy"

    def expect_cross_entropy(self, mechanism: str) -> None:
        """Raise DpbenchError for any other loss: a mechanism that knows this one alone."""
        if self.loss != "cross_entropy":
            raise DpbenchError(
                f"loss = {self.loss}: {mechanism} trains with cross-entropy alone; expected a dataset of classes and"
                " loss: cross_entropy, or another mechanism"
            )


class Mechanism(Protocol):
    """How one step of training is computed, and the events of what it releases.

    It may have six more members. `acts_at_end = True` says that only the last step releases anything, and that the
    parameters stay as they began until then (`acts_at_end`). `refuse_model(module)` raises DpbenchError, with one
    sentence, for a model that its proof does not cover; it is called before training. `refuted` says why no ε may be
    stated of one of dpbench's own, which runs what a paper prints; "" where one may. `refuse_state(state, start, hyper,
    examples)` raises DpbenchError for the state of one run, from a file, to which no steps lead from `start`: what
    follows from the start and from other values of the state is computed again, above all all that noise depends on.
    `prepare(net, state, inputs, targets)` computes once, before a run's first step, what needs the model and the data:
    the new `private`, and by place in the stack the reason why a run is refused. It is called when a run resumes, too.
    `work` is about how many times the work of NoisySGD a step is (default 1), for the plan's estimate of time.
    `more_operations(parameters, examples, batch, steps)` adds what a step does besides, such as a Hessian.
    """

    @property
    def private(self) -> bool: ...

    @property
    def spends_budget(self) -> bool:
        """Whether it chooses its noise while it runs, from a budget (ε, δ); its ledger is known only afterwards."""
        ...

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError with one sentence if it cannot run with these numbers."""
        ...

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """The events of a whole run, for the accountant; None if it is not private or spends a budget."""
        ...

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        """The events of each run so far; None if the mechanism is not private."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Facts for a reviewer: sampler, adjacency, normalisation and so on, as JSON values."""
        ...

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        """The state before the first step. The ledger holds the events of what is released here."""
        ...

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """What each run's network gets for `inputs` (B, ...): (R, B, ...), or None for the inputs themselves."""
        ...

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """The part of a step that reads the data, for every run of the stack.

        `chunk`, batch places per call, does not change the result.
        """
        ...

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        """The state after a step, from the released values alone; `state.private` is empty here.

        `rate_R` are the learning rates, float64.
        """
        ...


def public_examples(mechanism: object) -> int:
    """How many of the first test examples a mechanism takes as public inputs, without their targets; 0 for most.

    Such a mechanism has a number `public_examples` and a method `with_public(inputs)`, which returns it with them.
    Nothing is measured on these examples but what it says of them: with a method `released_labels(state)`, the class
    that each of the first Q of them got in each run, (R, Q), below 0 where it got none.
    """
    return int(getattr(mechanism, "public_examples", 0))


def with_public(mechanism: Any, inputs: Tensor) -> Any:
    """The mechanism with its public inputs, the first of `inputs`; itself if it takes none."""
    count = public_examples(mechanism)
    return mechanism.with_public(inputs[:count]) if count else mechanism


def acts_at_end(mechanism: Mechanism) -> bool:
    """Whether only the last step of a run releases anything; what it has computed before is private.

    It keeps its parameters in `State.private`, and the last step, the one to `steps_R`, releases them by `release`. Its
    runs are evaluated at their end alone, because before it there is nothing to evaluate but the initial parameters.
    """
    return bool(getattr(mechanism, "acts_at_end", False))


def refuse_other(made: object, name: str) -> None:
    """Raise DpbenchError for an object that is no `Mechanism`; `name` is its name in the spec.

    A method `step`, which mechanisms once had, is refused because nothing would call it.
    """
    kind = type(made).__name__
    if not isinstance(getattr(made, "private", None), bool):
        raise DpbenchError(f"{name} returns a {kind} without `private`; expected a mechanism")
    parts = ("check", "ledger", "released", "facts", "start", "view", "release", "update")
    absent = [part for part in parts if not callable(getattr(made, part, None))]
    if hasattr(made, "step") or absent:
        what = "a method `step`" if hasattr(made, "step") else f"no method {absent[0]!r}"
        raise DpbenchError(
            f"{name}: {kind} has {what}; expected a mechanism, whose step is `release`, then `update(released)`"
            " (docs/own_mechanism.md)"
        )


def step(
    mechanism: Mechanism,
    net: Network,
    state: State,
    hyper: Hyperparameters,
    inputs: Tensor,
    targets: Tensor,
    chunk: int,
) -> tuple[State, Observed]:
    """One step of every run of the stack."""
    released, kept = mechanism.release(net, state, hyper, inputs, targets, chunk)
    return updated(mechanism, state, hyper, released, kept), kept.observed


def prepared(
    mechanism: Mechanism, net: Network, state: State, inputs: Tensor, targets: Tensor
) -> tuple[State, Mapping[int, str]]:
    """The state after the mechanism's `prepare`, if it has one, and why runs are refused, by place in the stack."""
    prepare: Callable[..., tuple[Mapping[str, Tensor], Mapping[int, str]]] | None = getattr(mechanism, "prepare", None)
    if prepare is None:
        return state, {}
    private, refused = prepare(net, state, inputs, targets)
    return replace(state, private=private), refused


def updated(mechanism: Mechanism, state: State, hyper: Hyperparameters, released: Released, kept: Kept) -> State:
    """The second half of a step: the update, which does not see `private`; the new `private` is set afterwards.

    It gets no events either: what they are made of may lie behind them.
    """
    after = mechanism.update(replace(state, private={}), hyper.learning_rate_R, replace(released, events=_no_events))
    return replace(after, private=kept.private)


def refuse_changed(state: State, start: State, names: Iterable[str]) -> None:
    """Raise DpbenchError where tensors of the start that no step changes are others: `theta`, or a name in the state.

    A relative difference of 1e-6 may come from another device.
    """
    for name in names:
        found, expected = (
            one.theta_RP if name == "theta" else {**one.memory, **one.private}[name] for one in (state, start)
        )
        expected, real = expected.to(found.device), found.is_floating_point()
        if not (torch.allclose(found, expected, rtol=1e-6, atol=0.0) if real else torch.equal(found, expected)):
            raise DpbenchError(f"its {name} are not those of the start, which no step changes")


def evaluated(mechanism: Mechanism, state: State) -> Tensor:
    """The parameters (R, P) to evaluate: those of the state, unless the mechanism has others, such as an average."""
    found: Callable[[State], Tensor] | None = getattr(mechanism, "evaluated", None)
    return state.theta_RP if found is None else found(state)


def _no_events(run: int) -> tuple[Event, ...]:
    raise DpbenchError(f"run {run}: an update gets released values and no events")
