"""What the plan and the loop do for a mechanism: its budget, its preparation, its refusals, and its runs that stop."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.catalog import catalog
from dpbench.datasets import Dataset
from dpbench.errors import ProblemsError
from dpbench.events import Event, Gaussian
from dpbench.mechanisms.presets import noisy_sgd
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, Run, make_plan
from dpbench.randomness import INIT, keys
from dpbench.spec.loading import load_specs
from dpbench.step.mechanism import Hyperparameters, Observed, State, acts_at_end
from dpbench.step.pipeline import Pipeline
from dpbench.store.records import Store
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted, Outcome, train

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [8], activation: tanh}}
mechanism: MECHANISM
budget: BUDGET
training: {batch_size: 96, steps: 7, learning_rate: 0.1CLIP}
seeds: 3
"""
OF_ONE_STEP = ("objective_perturbation",)
QUICK = {"dp_sgd_jl": {"projections": 3}, "dp_adam_jl": {"projections": 3}}


def text(
    mechanism: str, *, budget: str = "{delta: 1e-4, noise_multiplier: 1.0}", clip: str = ", clip_norm: 1.0"
) -> str:
    return SPEC.replace("MECHANISM", mechanism).replace("BUDGET", budget).replace("CLIP", clip)


def runs_of(folder: Path, spec: str) -> tuple[Run, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(spec)
    specs = load_specs([folder / "spec.yaml"], allow_code=True)
    return make_plan(specs, Store(folder / "out"), Choices(device="cpu")).runs


def trained(runs: Sequence[Run], mechanism: Any = None, data: Dataset | None = None, **more: Any) -> dict[int, Outcome]:
    """The outcomes by seed."""
    spec = runs[0].spec
    source = dataset_source(spec)
    outcomes = train(
        runs,
        data or source.load(None),
        mechanism or build_mechanism(spec),
        model_builder(spec, source),
        Execution(),
        **more,
    )
    return {outcome.run.seed: outcome for outcome in outcomes}


def curve(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.result is not None, outcome.error
    return list(outcome.result["curve"])


class Wrapped:
    """A mechanism in all but its release: `before` may change the inputs, `after` what is observed."""

    def __init__(
        self,
        inner: Any,
        before: Callable[[State, Hyperparameters, Tensor], Tensor] | None = None,
        after: Callable[[State, Hyperparameters, Observed], Observed] | None = None,
    ) -> None:
        self.inner, self.before, self.after = inner, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def release(
        self, net: Any, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> Any:
        if self.before is not None:
            inputs = self.before(state, hyper, inputs)
        released, kept = self.inner.release(net, state, hyper, inputs, targets, chunk)
        if self.after is not None:
            kept = dataclasses.replace(kept, observed=self.after(state, hyper, kept.observed))
        return released, kept


def seeds(hyper: Hyperparameters) -> list[int]:
    """The seeds of the runs of a stack, by the key of their initial parameters, which hangs on nothing else."""
    by_key = {int(keys(seed)[INIT]): seed for seed in range(20)}
    return [by_key[key] for key in hyper.keys_RS[:, INIT].tolist()]


# Gradients that are not finite, and runs that stop


def every_kind(folder: Path, name: str) -> tuple[tuple[Run, ...], Any]:
    """Three runs of a mechanism of the catalog, with its defaults but where these are slow."""
    built = catalog("mechanisms")[name].load()(**QUICK.get(name, {}))
    parameters = ", ".join(f"{key}: {value}" for key, value in QUICK.get(name, {}).items())
    named = f"{{name: {name}, parameters: {{{parameters}}}}}"
    if not built.private:
        return runs_of(folder, text(named, budget="none", clip="")), built
    budget = "{delta: 1e-4, epsilon: 8}" if built.spends_budget else "{delta: 1e-4, noise_multiplier: 1.0}"
    spec = text(named, budget=budget)
    if acts_at_end(built):  # its proof is about convex losses
        spec = spec.replace("{name: mlp, parameters: {hidden: [8], activation: tanh}}", "logistic")
    if name in OF_ONE_STEP:
        spec = spec.replace("batch_size: 96, steps: 7", "sampling_rate: 1, steps: 1").replace("digits", "digits_parity")
    return runs_of(folder, spec), built


@pytest.mark.parametrize("name", sorted(set(catalog("mechanisms")) - set(OF_ONE_STEP) - {"pate"}))  # own test file
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_ends_its_run_and_names_the_step(tmp_path: Path, name: str, value: float) -> None:
    """Whatever the mechanism. Seeds 0 and 1 see such inputs in step 3, alone and in a stack; seed 2 never does."""

    def spoil(state: State, hyper: Hyperparameters, inputs: Tensor) -> Tensor:
        bad = bool((state.step_R == 3).any()) and set(seeds(hyper)) <= {0, 1}
        return torch.full_like(inputs, value) if bad else inputs

    runs, mechanism = every_kind(tmp_path, name)
    for group in (runs[:2], runs[2:]):
        outcomes = trained(group, Wrapped(mechanism, before=spoil))
        for seed, outcome in outcomes.items():
            if seed == 2:
                assert outcome.error is None
                assert curve(outcome)[-1]["step"] == 7
            else:
                assert outcome.result is None
                assert outcome.error == "the gradient of step 3: not finite"
                assert outcome.step == 3


def stopping(at: Mapping[int, int]) -> Wrapped:
    """NoisySGD whose runs stop: by seed, in which step."""

    def told(state: State, hyper: Hyperparameters, seen: Observed) -> Observed:
        pairs = enumerate(zip(seeds(hyper), state.step_R.tolist(), strict=True))
        return dataclasses.replace(
            seen,
            stopped={place: f"seed {seed} has had enough" for place, (seed, step) in pairs if at.get(seed) == step},
        )

    return Wrapped(noisy_sgd(), after=told)


@pytest.mark.parametrize("at", [{1: 3}, {0: 0}, {2: 6}, {0: 2, 2: 4}, {0: 3, 1: 3}, {0: 1, 1: 1, 2: 1}])
def test_a_run_that_stops_fails_alone(tmp_path: Path, at: dict[int, int]) -> None:
    """The others go on as if nothing had been; float32 sums of other shapes differ by rounding, see test_train.py."""
    runs = runs_of(tmp_path, text("noisy_sgd"))
    outcomes = trained(runs, stopping(at))
    assert sorted(outcomes) == [0, 1, 2], "one outcome for each run"
    for seed, outcome in outcomes.items():
        if seed in at:
            assert outcome.result is None
            assert outcome.error == f"stopped at step {at[seed]}: seed {seed} has had enough"
            assert outcome.step == at[seed]
        else:
            (alone,) = trained([runs[seed]]).values()
            pairs = zip(curve(outcome), curve(alone), strict=True)
            assert all(one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4) for one, other in pairs)


class Refusing(Wrapped):
    """NoisySGD that refuses some seeds before training, and counts how often it is asked and steps."""

    def __init__(self, refused: set[int]) -> None:
        super().__init__(noisy_sgd())
        self.refused, self.asked, self.steps = refused, 0, 0

    def release(self, *given: Any) -> Any:
        self.steps += 1
        return super().release(*given)

    def prepare(self, _net: Any, state: State, *_data: Tensor) -> tuple[Mapping[str, Tensor], Mapping[int, str]]:
        self.asked += 1
        return state.private, dict.fromkeys(self.refused, "a reason")


@pytest.mark.parametrize("refused", [set(), {1}, {0, 2}, {0, 1, 2}])
def test_a_run_may_be_refused_before_training(tmp_path: Path, refused: set[int]) -> None:
    runs = runs_of(tmp_path, text("noisy_sgd"))
    mechanism = Refusing(refused)
    outcomes = trained(runs, mechanism)
    assert sorted(outcomes) == [0, 1, 2], "one outcome for each run"
    assert (mechanism.asked, mechanism.steps) == (1, 0 if len(refused) == 3 else 7)
    for seed, outcome in outcomes.items():
        if seed in refused:
            assert (outcome.result, outcome.error, outcome.step) == (None, "before training: a reason", 0)
        else:
            (alone,) = trained([runs[seed]]).values()
            pairs = zip(curve(outcome), curve(alone), strict=True)
            assert all(one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4) for one, other in pairs)


def test_a_refused_run_leaves_resumed_ones_where_they_were(tmp_path: Path) -> None:
    """Also where they were saved just after an evaluation: nothing is evaluated twice."""
    runs = runs_of(tmp_path, text("noisy_sgd").replace("batch_size: 96", "batch_size: 480"))
    whole = {seed: curve(outcome) for seed, outcome in trained(runs[:2]).items()}
    assert [point["step"] for point in whole[0]] == [3, 6, 7]
    done: list[Any] = []
    with pytest.raises(Interrupted):
        trained(runs[:2], checkpoints=tmp_path / "kept", watch=done.append, stop=lambda: len(done) >= 3)
    resumed = trained(runs, Refusing({2}), checkpoints=tmp_path / "kept")
    assert resumed[2].error == "before training: a reason"
    for seed in (0, 1):
        assert resumed[seed].result is not None
        assert resumed[seed].result["resumed"]
        assert [point["step"] for point in curve(resumed[seed])] == [point["step"] for point in whole[seed]]
        assert [point["train_loss"] for point in curve(resumed[seed])] == pytest.approx(
            [point["train_loss"] for point in whole[seed]], rel=1e-4
        )


def test_a_run_that_stops_keeps_no_checkpoint_of_others(tmp_path: Path) -> None:
    """Interrupted after one run has stopped: the places of the others are kept, and they go on from there."""
    runs, kept = runs_of(tmp_path, text("noisy_sgd")), tmp_path / "checkpoints"
    done: list[int] = []
    ended: list[int] = []
    source = dataset_source(runs[0].spec)
    mechanism: Any = stopping({1: 2})
    outcomes = train(
        runs,
        source.load(None),
        mechanism,
        model_builder(runs[0].spec, source),
        Execution(),
        checkpoints=kept,
        watch=lambda progress: done.append(progress.live),
        stop=lambda: len(done) >= 5,
    )
    with pytest.raises(Interrupted):
        ended += (outcome.run.seed for outcome in outcomes)
    assert ended == [1]
    assert done == [3, 3, 3, 2, 2]
    assert {path.stem for path in kept.iterdir()} == {runs[0].key, runs[2].key}
    resumed = trained([runs[0], runs[2]], checkpoints=kept)
    for seed in (0, 2):
        (alone,) = trained([runs[seed]]).values()
        assert curve(resumed[seed])[-1]["test_loss"] == pytest.approx(curve(alone)[-1]["test_loss"], rel=1e-4)


# Preparation, what evaluation sees, and what is counted as released


@dataclasses.dataclass(frozen=True)
class Shifted:
    """Subtracts a number that it says it has released."""

    by: float

    @property
    def releases(self) -> tuple[tuple[Event, int], ...]:
        return ((Gaussian(50.0), 2),)

    def start(self, keys_RS: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        return {"shift_R": torch.full((len(keys_RS),), self.by, dtype=inputs.dtype)}

    def __call__(self, memory: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return inputs - memory["shift_R"].reshape(-1, *[1] * (inputs.dim() - 1))


def shifted(by: float) -> Pipeline:
    return dataclasses.replace(noisy_sgd(), preparation=Shifted(by))


def test_evaluation_sees_what_training_sees(tmp_path: Path) -> None:
    """To prepare the inputs is to train and to evaluate on prepared data: the same numbers, bit for bit."""
    runs = runs_of(tmp_path, text("noisy_sgd"))
    data = dataset_source(runs[0].spec).load(None)
    ready = dataclasses.replace(data, train_inputs=data.train_inputs - 0.5, test_inputs=data.test_inputs - 0.5)
    prepared, plain, other = trained(runs, shifted(0.5)), trained(runs, data=ready), trained(runs)
    for seed in (0, 1, 2):
        for name in ("test_loss", "test_accuracy", "train_loss"):
            assert [p[name] for p in curve(prepared[seed])] == [p[name] for p in curve(plain[seed])]
        assert curve(prepared[seed])[-1]["test_loss"] != curve(other[seed])[-1]["test_loss"]


def test_a_preparation_is_resumed_with_its_run(tmp_path: Path) -> None:
    """Its statistics are those of the start, which are computed again: a checkpoint with others is not used."""
    runs, kept = runs_of(tmp_path, text("noisy_sgd")), tmp_path / "checkpoints"
    done: list[Any] = []
    with pytest.raises(Interrupted):
        trained(runs[:1], shifted(0.5), checkpoints=kept, watch=lambda p: done.append(p), stop=lambda: len(done) >= 3)
    for shift, used in ((9.0, False), (0.5, True)):
        told: list[str] = []
        resumed = trained(
            runs[:1], shifted(shift), checkpoints=kept, anew=lambda _run, why, told=told: told.append(why)
        )
        whole = trained(runs[:1], shifted(shift))
        assert [p["test_loss"] for p in curve(resumed[0])] == [p["test_loss"] for p in curve(whole[0])]
        assert resumed[0].result is not None
        assert resumed[0].result["resumed"] is used
        assert ["shift_R" in why for why in told] == [True] * (not used)


def test_releases_count_what_stands_before_the_steps(tmp_path: Path) -> None:
    """A point of the curve says how much of the ledger lies behind it; nothing where that is not its beginning."""
    runs = runs_of(tmp_path, text("noisy_sgd"))[:1]
    for mechanism, first in ((noisy_sgd(), 0), (shifted(0.5), 2)):
        (outcome,) = trained(runs, mechanism).values()
        assert [point["releases"] for point in curve(outcome)] == [first + point["step"] for point in curve(outcome)]
        assert outcome.result is not None
        assert sum(part["count"] for part in outcome.result["ledger"]["parts"]) == first + 7

    class Forgetful(Wrapped):
        def released(self, state: Any, hyper: Any) -> Any:
            return tuple(found and found.prefix(1) for found in shifted(0.5).released(state, hyper))

        def ledger(self, **numbers: Any) -> Any:
            return noisy_sgd().ledger(**numbers)

    (outcome,) = trained(runs, Forgetful(noisy_sgd())).values()
    assert {point["releases"] for point in curve(outcome)} == {None}


# A mechanism that spends a budget, and what plan and loop tell it

OWN = """
import dataclasses
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian
from dpbench.mechanisms.presets import noisy_sgd

ASKED = []
SEEN = []


class Spender:
    spends_budget = True

    def __init__(self, most):
        self.inner, self.most = noisy_sgd(), most

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def check(self, setting):
        ASKED.append(setting)
        if setting.steps > self.most:
            raise DpbenchError(f"steps = {setting.steps}: expected at most {self.most}, take fewer")

    def ledger(self, *, sampling_rate, noise_multiplier, steps):
        return None

    def released(self, state, hyperparameters):
        return tuple(Composition(((Gaussian(9.0), 3 * int(step)),), adaptive=True) for step in state.step_R)

    def release(self, net, state, hyperparameters, inputs, targets, chunk):
        SEEN.append(hyperparameters)
        loud = dataclasses.replace(hyperparameters, noise_multiplier_R=0 * hyperparameters.noise_multiplier_R + 1)
        return self.inner.release(net, state, loud, inputs, targets, chunk)


def spender(*, most: int = 100):
    return Spender(most)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module above, importable for this test."""
    (tmp_path / "own_spender.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_spender", raising=False)
    return __import__("own_spender")


def spending(budget: str = "{delta: 1e-4, epsilon: 3}", mechanism: str = '"own_spender:spender"') -> str:
    return text(mechanism, budget=budget)


def test_a_budget_is_handed_through_and_is_part_of_the_key(tmp_path: Path, own: Any) -> None:
    runs = runs_of(tmp_path / "one", spending())
    (setting, *_) = own.ASKED
    assert (setting.epsilon, setting.delta, setting.noise_multiplier) == (3, 1e-4, None)
    assert (setting.steps, setting.clip_norm, setting.learning_rate) == (7, 1.0, 0.1)
    assert setting.sampling_rate * setting.examples == pytest.approx(96, rel=1e-12)
    for run in runs:
        assert run.spends == (3.0, 1e-4)
        assert run.noise_multiplier is None
        assert run.epsilon == 3
        assert run.epsilon_kind == "upper_bound"
        assert (run.resolved["epsilon"], run.resolved["delta"]) == (3, 1e-4)
    others = [
        runs_of(tmp_path / name, spending(budget))
        for name, budget in (("e", "{delta: 1e-4, epsilon: 4}"), ("d", "{delta: 1e-5, epsilon: 3}"))
    ]
    assert len({run.key for group in (runs, *others) for run in group}) == 9


def test_the_loop_tells_the_budget_and_the_length(tmp_path: Path, own: Any) -> None:
    runs = runs_of(tmp_path, spending())
    outcomes = trained(runs)
    hyper = own.SEEN[0]
    assert hyper.steps_R.tolist() == [7] * 3
    assert hyper.epsilon_R.tolist() == [3.0] * 3
    assert hyper.delta_R.tolist() == [1e-4] * 3
    assert hyper.noise_multiplier_R.tolist() == [0.0] * 3
    for outcome in outcomes.values():
        assert [point["releases"] for point in curve(outcome)] == [3 * point["step"] for point in curve(outcome)]
        assert outcome.result is not None
        assert outcome.result["ledger"]["adaptive"] is True
        assert [part["count"] for part in outcome.result["ledger"]["parts"]] == [21]


def test_others_are_told_no_budget(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(state: State, hyper: Hyperparameters, inputs: Tensor) -> Tensor:
        del state
        seen.append(hyper)
        return inputs

    runs = runs_of(tmp_path, text("noisy_sgd"))
    trained(runs, Wrapped(noisy_sgd(), before=note))
    assert seen[0].steps_R.tolist() == [7] * 3
    assert bool(seen[0].epsilon_R.isnan().all())
    assert bool(seen[0].delta_R.isnan().all())
    assert all(run.spends is None and "epsilon" not in run.resolved for run in runs)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spending(budget="{delta: 1e-4, noise_multiplier: 1.0}"), "spends a budget; expected epsilon and delta"),
        (spending(budget="none"), "budget: found none, but own_spender:spender is private"),
        (spending(mechanism='{name: "own_spender:spender", parameters: {most: 6}}'), "steps = 7: expected at most 6"),
    ],
)
def test_what_a_mechanism_refuses_is_a_mistake_of_the_spec(tmp_path: Path, own: Any, spec: str, words: str) -> None:
    """Before any training, in one sentence."""
    assert not own.SEEN
    with pytest.raises(ProblemsError, match=words):
        runs_of(tmp_path / "specs", spec)


@pytest.mark.parametrize("name", sorted(set(catalog("mechanisms")) - {"pate"}))  # which has its own test file
def test_a_record_that_prints_the_number_of_examples_does_not_call_it_private(tmp_path: Path, name: str) -> None:
    """A mechanism that divides by a released number pays for it; what is printed beside it is public, and says so."""
    runs, built = every_kind(tmp_path, name)
    found = trained(runs[:1], built, smoke=True)[runs[0].seed].result
    assert found is not None
    facts = found["facts"]
    data = dataset_source(runs[0].spec).load(None)
    assert facts["examples"] == data.train_targets.shape[0]
    counts = Counter(data.test_targets.tolist())
    assert facts["most_frequent"] == max(counts.values()) / counts.total()
    releases = hasattr(built, "size")
    assert ("N is public in this record" in facts["normalisation"]) == releases
