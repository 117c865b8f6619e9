"""From specs to a plan: calibrated noise, run keys, stacks, estimated times, and why each run is needed or not."""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpbench.catalog import find
from dpbench.datasets import DatasetSource, data_folder, fetch_command, find_dataset
from dpbench.errors import DpbenchError, Problem, ProblemsError
from dpbench.events import Composition, to_json
from dpbench.plan import trial
from dpbench.plan.cache import Cache, cache_file
from dpbench.plan.trial import try_build, try_network, try_rule
from dpbench.plan.weights import weights_file, weights_key, with_weights
from dpbench.privacy.accounting import account
from dpbench.privacy.calibration import tightest
from dpbench.privacy.composition import steps_from_epochs
from dpbench.privacy.statement import large_delta
from dpbench.spec.loading import Budget, Spec
from dpbench.spec.points import MOST_RUNS
from dpbench.spec.shipped import own_name
from dpbench.store.check_records import SHIPPED, Code, code_of, known, read_checks
from dpbench.store.provenance import code_hash
from dpbench.store.records import Checked, Store
from dpbench.store.run_key import (
    FORMAT,
    chosen,
    code_entries,
    code_modules,
    engine,
    key_format,
    plain,
    run_key,
    shipped,
    version_changes,
    versions,
)

if TYPE_CHECKING:
    from torch import nn

    from dpbench.step.mechanism import Mechanism

__all__ = ["Choices", "Plan", "Run", "Stack", "make_plan"]

MOST_PER_STACK = 16

Action = Literal["train", "exists", "stale", "skip"]


@dataclass(frozen=True)
class Run:
    """One training run: a spec, a seed, and every number that the run depends on.

    `sampling_rate` q, `steps` T, `noise_multiplier` σ relative to `clip_norm` C (None if there is none);
    `epsilon` at the budget's δ (None if it is refused or was not asked for), its kind, the accountant `epsilon_by` that
    calibrated or that the mechanism uses while it runs, its version, and why this one where the spec names none;
    `true_epsilon` by `exact`, where it covers a calibrated run; `spends` is the budget
    (ε, δ) of a mechanism that chooses its noise while it runs, None for the others; `engine` holds the parameters that
    change no result and are no part of the key; `action` and `reason` say what will be done; `estimate` is seconds on
    `device`, None if unknown; `sources` are hashes of the code that is used; `checked` is the stored verdict on the
    mechanism's code, None if it is not private.
    """

    spec: Spec
    seed: int
    key: str
    resolved: Mapping[str, Any]
    examples: int
    sampling_rate: float
    steps: int
    learning_rate: float
    clip_norm: float | None
    noise_multiplier: float | None
    epsilon: float | None
    epsilon_kind: str | None = None
    epsilon_by: str | None = None
    epsilon_version: str | None = None
    epsilon_because: str = ""
    true_epsilon: float | None = None
    spends: tuple[float, float] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    action: Action = "train"
    reason: str = ""
    device: str = "cpu"
    estimate: float | None = None
    checked: Checked | None = SHIPPED

    @property
    def wasted(self) -> float | None:
        """The part of the target ε that calibration left unspent; negative where the true ε exceeds the target.

        None where there is no target, or where `exact` does not cover the run.
        """
        budget = self.spec.budget
        if self.true_epsilon is None or budget is None or budget.epsilon is None:
            return None
        return 1 - self.true_epsilon / budget.epsilon

    @property
    def warning(self) -> str | None:
        """What makes the budget worth little, whatever its ε: a δ of 1/N or more."""
        budget = self.spec.budget
        return None if budget is None else large_delta(budget.delta, self.examples)

    @property
    def title(self) -> str:
        """The run's name for people: spec, row or grid point, seed."""
        return " ".join(filter(None, [self.spec.name, self.spec.label and f"[{self.spec.label}]", f"seed {self.seed}"]))


@dataclass(frozen=True)
class Stack:
    """Runs that are trained together: the same dataset, model and mechanism."""

    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        names = list(dict.fromkeys(run.spec.name for run in self.runs))
        return f"{', '.join(names)} ({len(self.runs)} run{'s' if len(self.runs) != 1 else ''})"


@dataclass(frozen=True)
class Plan:
    """Every run of the given specs, in their order, and the stacks of those that will be trained."""

    runs: tuple[Run, ...]
    stacks: tuple[Stack, ...]


@dataclass(frozen=True)
class Choices:
    """The options of the command line; only `seeds` is part of a run's key."""

    only: tuple[str, ...] = ()
    force: bool = False
    stale: bool = False
    smoke: bool = False
    seeds: tuple[int, ...] | int | None = None
    device: str | None = None  # given by hand; overrides `needs: gpu`
    data: Path | None = None


def make_plan(specs: Sequence[Spec], store: Store, choices: Choices, *, every_epsilon: bool = True) -> Plan:
    """Resolve every run of `specs` and decide what to do with it.

    Without `every_epsilon`, ε at a noise multiplier that a spec gives is computed only for what will be trained.
    Raises ProblemsError with all the specs that cannot be resolved (a budget that cannot be met, a batch larger than
    the data, a model that cannot be built), DpbenchError if `only` matches nothing.
    """
    kept = Cache(cache_file())
    runs = resolve_all(specs, choices, kept)
    before = store.existing()
    gpu = _gpu() if choices.device is None else None
    device = choices.device or gpu or "cpu"
    of_other_versions = {_unversioned(one["resolved"]): one["resolved"] for one in before.values()}
    decided = []
    for run in runs:
        unfinished = store.is_unfinished(run.key)
        older = of_other_versions.get(_unversioned(run.resolved)) if of_other_versions else None
        known = (before.get(run.key), older)
        action, reason = _decide(run, known, choices, has_gpu=bool(gpu), unfinished=unfinished)
        if action == "train" and not choices.smoke and run.key not in before:
            refused = store.refused(run.key)
            reason = f"its record is not used: {refused}" if refused else reason
        decided.append(replace(run, action=action, reason=reason, device=device))
    decided = _explained(decided, before.values())
    problems: list[Problem] = []
    for spec in {id(run.spec): run.spec for run in decided if run.action == "train"}.values():
        with _collecting(problems, spec):
            source, mechanism = dataset_source(spec), build_mechanism(spec)
            build, shape = model_builder(spec, source), tuple(source.input_shape)
            weight = getattr(getattr(mechanism, "rule", None), "weight", None)
            try_network(code_entries(spec), build, shape, source.classes, weight, kept)
            try_rule(mechanism, build, shape, kept)
    kept.write()
    stated = []
    for run in decided:
        with _collecting(problems, run.spec):
            due = run.action == "train"
            run = _with_epsilon(run) if due or every_epsilon else run
            stated.append(_with_truth(run) if due else run)
    if problems:
        raise ProblemsError(problems)
    priced = _priced(with_checks(stated, store.out), before.values(), choices.smoke)
    return Plan(priced, _stacks(priced))


def resolve_all(specs: Sequence[Spec], choices: Choices, kept: Cache | None = None) -> list[Run]:
    """The runs of the specs that are chosen, with their keys; nothing is decided and no model is trained on trial.

    Their ε at noise multipliers that the specs give are not computed yet. Raises like `make_plan`.
    """
    kept = Cache(cache_file()) if kept is None else kept
    problems: list[Problem] = []
    runs: list[Run] = []
    taken = [spec for spec in specs if chosen_by(spec, choices.only)]
    asked = choices.seeds
    count = sum(asked if isinstance(asked, int) else len(asked or spec.seeds) for spec in taken)
    if count > MOST_RUNS:
        raise DpbenchError(f"{count:,} runs at once; expected at most {MOST_RUNS:,}: choose with --only or --seeds")
    for spec in taken:
        with _collecting(problems, spec):
            runs += resolve(spec, _seeds(spec, choices.seeds), kept)
    kept.write()
    if problems:
        raise ProblemsError(problems)
    if choices.only and not runs:
        names = ", ".join(dict.fromkeys(spec.name for spec in specs))
        raise DpbenchError(f"--only {' '.join(choices.only)}: no spec has such a name or label; there are: {names}")
    return runs


def with_checks(runs: Iterable[Run], out: Path) -> tuple[Run, ...]:
    """The runs with what the stored verdicts say of their mechanisms."""
    stored = read_checks(out)
    codes: dict[str, Code] = {}
    found = []
    for run in runs:
        mechanism = run.spec.mechanism
        if shipped({"name": mechanism.name, "parameters": mechanism.parameters}):
            checked = SHIPPED
        else:
            key = json.dumps([mechanism.name, plain(dict(mechanism.parameters))], sort_keys=True, default=repr)
            codes[key] = codes.get(key) or code_of(mechanism.name, mechanism.parameters)
            checked = known(stored, codes[key], run.steps)
        found.append(replace(run, checked=checked if build_mechanism(run.spec).private else None))
    return tuple(found)


@contextmanager
def _collecting(problems: list[Problem], spec: Spec) -> Iterator[None]:
    """Turns any exception into a problem of the spec: a user's model or mechanism may raise anything."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        named = isinstance(error, DpbenchError | ValueError)
        text = str(error) if named else f"{type(error).__name__}: {error}"
        problems.append(Problem(spec.file, spec.line, 1, spec.label, " ".join(text.split())))


def resolve(spec: Spec, seeds: Sequence[int], kept: Cache | None = None) -> list[Run]:
    """The runs of one spec; `kept` remembers calibrated noise. Raises DpbenchError or ValueError with one sentence if
    it cannot be resolved: also where its model cannot be built for its data, but only what will be trained is tried.
    """
    from dpbench.step.mechanism import Setting

    source, budget = dataset_source(spec), spec.budget
    rate, steps = rate_and_steps(spec, source)
    mechanism = build_mechanism(spec)
    sigma: float | None = None
    stated: dict[str, Any] = {}
    spends: tuple[float, float] | None = None
    if mechanism.spends_budget:
        if budget is None or budget.epsilon is None:
            raise DpbenchError(f"budget: {spec.mechanism.name} spends a budget; expected epsilon and delta")
        spends = budget.epsilon, budget.delta
        by = "rdp_filter"
        stated = {"epsilon": budget.epsilon, "epsilon_kind": "upper_bound", "epsilon_by": by}
        stated["epsilon_version"] = find("accountants", by).version
    elif budget is not None:
        sigma, stated = _noise(partial(_ledger, mechanism, rate, steps), budget, spec.mechanism.name, kept or Cache())
    numbers: dict[str, Any] = {
        "sampling_rate": rate,
        "steps": steps,
        "learning_rate": float(spec.training.learning_rate),
        "clip_norm": None if spec.training.clip_norm is None else float(spec.training.clip_norm),
        "noise_multiplier": sigma,
    }
    asked: dict[str, Any] = {} if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}
    mechanism.check(Setting(examples=source.train_size, **numbers, **asked))
    if spec.randomness == "secure" and not getattr(mechanism, "secure", False):
        raise DpbenchError(
            f"randomness = secure: {spec.mechanism.name} does not say that all its noise comes from"
            " stages.gaussian_noise; expected own or common, or another mechanism"
        )
    entries = code_entries(spec)
    try_build(model_builder(spec, source), tuple(source.input_shape), source.classes, kept)
    resolved: dict[str, Any] = {
        "format": FORMAT,
        "dataset": {
            "name": spec.dataset.name.rpartition(":")[2],  # the hash identifies the data
            "parameters": dict(spec.dataset.parameters),
            "sha256": source.sha256,
        },
        "model": chosen("models", spec.model, skip=2) | weights_key(spec, _plain_builder(spec, source)),
        "mechanism": chosen("mechanisms", spec.mechanism),
        "randomness": spec.randomness,
        **numbers,
        **({} if spends is None else asked),
        "numerics": versions(entries),
    }
    common = Run(
        spec=spec,
        seed=0,
        key="",
        resolved=resolved,
        examples=source.train_size,
        **numbers,
        **{"epsilon": None, **stated},
        spends=spends,
        sources={name: code_hash(name) for name in code_modules(entries)},
        engine=engine(entries[1], spec.mechanism.parameters),
    )
    contents = [{**resolved, "seed": seed} for seed in seeds]
    return [replace(common, seed=one["seed"], key=run_key(one), resolved=one) for one in contents]


def rate_and_steps(spec: Spec, source: DatasetSource) -> tuple[float, int]:
    """The sampling rate q and the number of steps T of a spec's runs. Raises DpbenchError for too large a batch."""
    training, examples = spec.training, source.train_size
    batch, epochs = training.batch_size, training.epochs
    if batch is not None and batch > examples:
        raise DpbenchError(f"batch_size = {batch}: larger than the {examples} examples of {source.name}")
    rate = training.sampling_rate if batch is None else batch / examples
    assert rate is not None
    if training.steps is not None:
        return rate, training.steps
    assert epochs is not None
    if batch is not None:
        return rate, steps_from_epochs(epochs, examples, batch)
    return rate, math.ceil(Fraction(repr(epochs)) / Fraction(repr(rate)))


def dataset_source(spec: Spec) -> DatasetSource:
    """The spec's dataset, not loaded."""
    key = (spec.dataset.name, json.dumps(plain(dict(spec.dataset.parameters)), sort_keys=True))
    if key not in _SOURCES:
        _SOURCES[key] = find_dataset(spec.dataset.name, spec.dataset.parameters)
    return _SOURCES[key]


_SOURCES: dict[tuple[str, str], DatasetSource] = {}


def model_builder(spec: Spec, source: DatasetSource, sha256: str | None = None) -> Callable[[], nn.Module]:
    """A function that builds the spec's model anew for the shape and classes of its dataset, with its weights.

    `sha256` is the hash of the weights' file as it was planned; by default that of the file as it is now.
    """
    build = _plain_builder(spec, source)
    if spec.weights is None:
        return build
    found = sha256 or weights_key(spec, build)["weights"]["sha256"]
    return partial(with_weights, build, weights_file(spec), found, spec.weights.frozen)


def _plain_builder(spec: Spec, source: DatasetSource) -> Callable[[], nn.Module]:
    factory = find("models", spec.model.name).load()
    return partial(factory, tuple(source.input_shape), source.classes, **spec.model.parameters)


def build_mechanism(spec: Spec) -> Mechanism:
    """The spec's mechanism with its parameters."""
    mechanism: Mechanism = find("mechanisms", spec.mechanism.name).load()(**spec.mechanism.parameters)
    return mechanism


def context(run: Run) -> dict[str, Any]:
    """Facts about the run's spec for the record and the report; no part of the key."""
    spec, budget = run.spec, run.spec.budget
    fields = ("name", "label", "source", "reduced", "tuned")
    return {
        **{name: getattr(spec, name) for name in fields},
        "file": own_name(spec.file),
        "published": None if spec.published is None else asdict(spec.published),
        "weights": None if spec.weights is None else asdict(spec.weights) | dict(run.resolved["model"]["weights"]),
        "accountants": list(spec.accountants),
        "needs": list(spec.needs),
        "delta": None if budget is None else budget.delta,
        "target_epsilon": None if budget is None else budget.epsilon,
        "calibrate_with": None if budget is None or budget.epsilon is None else run.epsilon_by,
        "engine": dict(run.engine),
    }


def _ledger(mechanism: Mechanism, rate: float, steps: int, sigma: float) -> Composition:
    ledger = mechanism.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=steps)
    if ledger is None:
        raise DpbenchError("budget: expected none, because the mechanism is not private")
    return ledger


_NOISE: dict[str, tuple[float, dict[str, Any]]] = {}  # of budgets met before in this process, by ledger and budget


def _noise(
    ledger: Callable[[float], Composition], budget: Budget, mechanism: str, kept: Cache
) -> tuple[float, dict[str, Any]]:
    """σ and what a run states of its ε: calibrated to the budget's target; at the budget's own σ not yet known."""
    if budget.noise_multiplier is not None:
        sigma = float(budget.noise_multiplier)
        ledger(sigma)  # what is wrong with it is said for every run
        return sigma, {}
    assert budget.epsilon is not None
    key = json.dumps([to_json(ledger(1.0)), asdict(budget)], sort_keys=True)
    if key not in _NOISE:
        found = kept.calibrated(ledger, budget.epsilon, budget.delta, budget.calibrate_with)
        if ledger(found.value) != ledger(found.value):
            raise DpbenchError(
                f"epsilon = {budget.epsilon:g}: the calibrated noise has two ledgers; is the ledger of {mechanism} the"
                " same at every call?"
            )
        _NOISE[key] = (
            found.value,
            {
                "epsilon": found.attained.value,
                "epsilon_kind": found.kind,
                "epsilon_by": found.accountant,
                "epsilon_because": found.because,
                "epsilon_version": found.version,
            },
        )
    return _NOISE[key]


_AT: dict[str, dict[str, Any]] = {}  # what is said of given noise, by ledger and budget


def _with_epsilon(run: Run) -> Run:
    """The run with its ε, if its spec gives the noise."""
    budget = run.spec.budget
    if budget is None or budget.noise_multiplier is None or run.noise_multiplier is None:
        return run
    ledger = _ledger(build_mechanism(run.spec), run.sampling_rate, run.steps, run.noise_multiplier)
    key = json.dumps([to_json(ledger), asdict(budget)], sort_keys=True)
    if key not in _AT:
        because = ""
        if budget.calibrate_with is None:
            answer, because = tightest(ledger, budget.delta)
        else:
            (answer,) = account(ledger, delta=budget.delta, accountants=[budget.calibrate_with])
        stated = {} if answer.epsilon is None else {"epsilon": answer.epsilon.value, "epsilon_kind": answer.kind}
        said = {"epsilon_by": answer.accountant, "epsilon_because": because, "epsilon_version": answer.version}
        _AT[key] = {**stated, **said}
    return replace(run, **_AT[key])


_TRUE: dict[str, float | None] = {}


def _with_truth(run: Run) -> Run:
    """The run with its true ε, if its noise is calibrated and `exact` covers it."""
    budget = run.spec.budget
    if budget is None or budget.epsilon is None or run.noise_multiplier is None:
        return run
    if run.epsilon_by == "exact":
        return replace(run, true_epsilon=run.epsilon)
    ledger = _ledger(build_mechanism(run.spec), run.sampling_rate, run.steps, run.noise_multiplier)
    key = json.dumps([to_json(ledger), budget.delta], sort_keys=True)
    if key not in _TRUE:
        (found,) = account(ledger, delta=budget.delta, accountants=["exact"])
        _TRUE[key] = None if found.epsilon is None else found.epsilon.value
    return replace(run, true_epsilon=_TRUE[key])


def _seeds(spec: Spec, chosen: tuple[int, ...] | int | None) -> tuple[int, ...]:
    """The spec's seeds; `--seeds n` takes the first n, counting on if there are fewer, `--seeds 3,5` exactly those."""
    if chosen is None:
        return spec.seeds
    if not isinstance(chosen, int):
        return chosen
    more = (seed for seed in itertools.count() if seed not in spec.seeds)
    return tuple(itertools.islice(itertools.chain(spec.seeds, more), chosen))


def chosen_by(spec: Spec, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the spec's name, label, `name/label` or file name; no pattern: all do."""
    names = (spec.name, spec.label, f"{spec.name}/{spec.label}", Path(spec.file).stem)
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _decide(
    run: Run,
    known: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    choices: Choices,
    *,
    has_gpu: bool,
    unfinished: bool,
) -> tuple[Action, str]:
    """What to do with a run, and why. `known`: its record, and what the same run by other versions of code resolved."""
    record, older = known
    if not unfinished and not choices.force and not choices.smoke:
        if record is not None:
            return "exists", "has a record"
        if older is not None and not choices.stale:
            changed = ", ".join(version_changes(older.get("numerics") or {}, run.resolved["numerics"]))
            return "stale", f"has a record by other code ({changed}); --stale runs it again"
    source = dataset_source(run.spec)
    missing = source.missing(choices.data)
    if missing:
        # Features of another dataset are computed from its files, which must be fetched.
        named = getattr(source, "files_of", run.spec.dataset.name)
        command = fetch_command(named, data_folder(choices.data))
        return "skip", f"dataset {named} is absent; get it: {command}"
    obstacle: str | None = source.obstacle(choices.data) if hasattr(source, "obstacle") else None
    if obstacle is not None:
        return "skip", f"dataset {run.spec.dataset.name}: {obstacle}"
    if "gpu" in run.spec.needs and not has_gpu and choices.device is None:
        return "skip", "needs a GPU and none was found; --device cpu runs it here"
    if choices.smoke or record is None:
        return "train", "smoke test" if choices.smoke else "its record is stale" if older else "no record yet"
    return "train", "forced" if choices.force else "was interrupted"


def _unversioned(resolved: Mapping[str, Any]) -> str:
    """A resolved run of today's format without the versions of its code, as a string."""
    return json.dumps(plain({key: value for key, value in resolved.items() if key != "numerics"}), sort_keys=True)


def _explained(runs: Sequence[Run], records: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Finds runs that are the same as an earlier one, or that have a record of another key format."""
    apart = {
        (one["context"]["name"], one["context"].get("label", ""), one["seed"])
        for one in records
        if key_format(one["resolved"]) != FORMAT
    }
    first: dict[str, Run] = {}
    explained = []
    for run in runs:
        same = first.setdefault(run.key, run)
        reason = run.reason
        if run.action == "train" and same is not run:
            reason = f"the same run as {same.title}, trained once"
            if run.engine != same.engine:
                reason += f" with {_words(same.engine)}; {_words(run.engine)} is no part of a run's key"
        elif run.action == "train" and (run.spec.name, run.spec.label, run.seed) in apart:
            reason += f" of key format {FORMAT}; there is one of an older format"
        explained.append(replace(run, reason=reason))
    return explained


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


@cache
def _gpu() -> str | None:
    import torch

    return "cuda" if torch.cuda.is_available() else None


def _stacks(runs: Iterable[Run]) -> tuple[Stack, ...]:
    """Runs of the same dataset, model and mechanism, at most MOST_PER_STACK together, alike rates and lengths first."""
    groups: dict[str, dict[str, Run]] = {}
    first: dict[str, Run] = {}
    for run in runs:
        if run.action == "train" and first.setdefault(run.key, run) is run:
            groups.setdefault(_like(run.resolved, run.engine), {})[run.key] = run
    stacks = []
    for group in groups.values():
        ordered = sorted(group.values(), key=lambda run: (run.sampling_rate, run.steps))
        stacks += [Stack(tuple(ordered[i : i + MOST_PER_STACK])) for i in range(0, len(ordered), MOST_PER_STACK)]
    return tuple(stacks)


def _priced(runs: Sequence[Run], records: Iterable[Mapping[str, Any]], smoke: bool) -> tuple[Run, ...]:
    """Estimated seconds of each run to be trained: from similar records on this kind of device, else from its size."""
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in records:
        seconds, steps = record.get("own_seconds"), record["resolved"].get("steps")
        expected = record["facts"].get("expected_batch_size")
        if seconds and steps and expected and {"dataset", "model", "mechanism"} <= set(record["resolved"]):
            made = record.get("environment", {})
            kind = str(made.get("device", "")).split(":")[0]
            like = _like(record["resolved"], made.get("engine", {}))
            measured.setdefault((like, kind), []).append((expected, seconds / steps))
    priced = []
    for run in runs:
        estimate: float | None = None
        if run.action == "train":
            expected = run.sampling_rate * run.examples
            near = measured.get((_like(run.resolved, run.engine), run.device.split(":")[0]), [])
            near = [(b, s) for b, s in near if expected / 2 <= b <= expected * 2]
            if near:
                per_step = sorted(s * expected / b for b, s in near)[len(near) // 2]
            else:
                per_step = _rough_step_seconds(run.spec, expected, run.device)
            estimate = per_step * (min(2, run.steps) if smoke else run.steps)
        priced.append(replace(run, estimate=estimate))
    return tuple(priced)


def _like(resolved: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """What the runs of one stack have in common, as a string."""
    parts = [resolved.get(part) for part in ("dataset", "model", "mechanism", "randomness")]
    return json.dumps(plain([*parts, engine]), sort_keys=True)


def _rough_step_seconds(spec: Spec, expected_batch: float, device: str) -> float:
    """A guess within a factor of about three: three forward passes at a modest rate, and an overhead."""
    rate = 2e12 if device.startswith("cuda") else 2e10
    return 1.5e-3 + 3 * operations(spec) * expected_batch / rate


def operations(spec: Spec) -> int:
    """Floating-point operations of one forward pass of the spec's model for one example."""
    source = dataset_source(spec)
    return trial.operations(model_builder(spec, source), tuple(source.input_shape), source.classes)
