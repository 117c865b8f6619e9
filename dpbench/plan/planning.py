"""From specs to a plan: calibrated noise, run keys, stacks, estimated times, and why each run is needed or not."""

from __future__ import annotations

import fnmatch
import inspect
import itertools
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from dpbench.catalog import Entry, FilePath, Note, build, find, marked, of_a_file
from dpbench.datasets import data_folder, fetch_command
from dpbench.errors import DpbenchError, Problem, ProblemsError, lacks_memory, out_of_memory
from dpbench.plan import trial
from dpbench.plan.cache import Cache, cache_file
from dpbench.plan.known import older_of, parts
from dpbench.plan.noise import calibrated, confirmed, epsilon_at, ledger_of
from dpbench.plan.parts import (
    build_mechanism,
    dataset_source,
    model_builder,
    objective_of,
    outputs_of,
    plain_builder,
    rate_and_steps,
    sizes,
)
from dpbench.plan.runs import Action, Choices, Plan, Run, Stack
from dpbench.plan.stacks import priced, stacks, with_engines
from dpbench.plan.trial import try_build, try_mechanism, try_network, try_rule
from dpbench.plan.weights import still_to_make, weights_key
from dpbench.spec.keys import Choice
from dpbench.spec.loading import Spec
from dpbench.spec.points import MOST_RUNS
from dpbench.spec.shipped import own_name
from dpbench.store.check_records import Code, code_of, described, known, of_shipped, read_checks
from dpbench.store.provenance import code_hash
from dpbench.store.records import Store
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
from dpbench.tasks import task_of, unusual

__all__ = ["Choices", "Plan", "Run", "Stack", "make_plan"]

Progress = Callable[[str, int, int], None]  # what is being found, of how many it is known, and of how many in all
Sources = dict[tuple[Entry, ...], dict[str, str]]  # the hashes of the modules that entries of the catalog use


def make_plan(
    specs: Sequence[Spec],
    store: Store,
    choices: Choices,
    *,
    every_epsilon: bool = True,
    with_sources: bool = True,
    kept: Cache | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Resolve every run of `specs` and decide what to do with it.

    With `every_epsilon` the plan is shown: it says ε of every run and believes what earlier plans remembered (`kept`,
    by default the user's cache file). Without, it is run: ε is computed anew for what will be trained and for nothing
    else, and remembered noise is confirmed. A plan that is only shown needs no hashes of code (`with_sources`).
    `progress` is told of every spec whose noise is known.
    Raises ProblemsError with all the specs that cannot be resolved (a budget that cannot be met, a batch larger than
    the data, a model that cannot be built), DpbenchError if `only` matches nothing.
    """
    to_confirm = kept is None and not every_epsilon
    kept = Cache(cache_file()) if kept is None else kept
    runs = resolve_all(specs, choices, kept, progress, with_sources=with_sources)
    planned = {parts(run.resolved) for run in runs}
    before = store.existing(lambda content: (names := parts(content.get("resolved"))) is None or names in planned)
    gpu = _gpu() if choices.device is None else None
    device = choices.device or gpu or "cpu"
    older_of_run = older_of([one["resolved"] for one in before.values()])
    obstacles: dict[int, str | None] = {}  # by the spec: every seed of it meets the same one
    decided = []
    for run in runs:
        unfinished = store.is_unfinished(run.key)
        known = (before.get(run.key), None if run.key in before else older_of_run(run.resolved))
        action, reason = _decided(run, known, choices, unfinished)
        done = store.steps_done(run.key) if unfinished and not (choices.force or choices.smoke) else 0
        if action == "train":
            if id(run.spec) not in obstacles:
                obstacles[id(run.spec)] = _obstacle(run.spec, choices, bool(gpu))
            if (obstacle := obstacles[id(run.spec)]) is not None:
                action, reason = "skip", obstacle
        if action == "train" and not choices.smoke and run.key not in before:
            refused = store.refused(run.key)
            reason = f"its record is not used: {refused}" if refused else reason
        decided.append(replace(run, action=action, reason=reason, done=done, device=device))
    decided = _explained(decided, before.values())
    problems: list[Problem] = []
    due_by_spec = {id(run.spec): run for run in decided if run.action == "train"}.values()
    for spec, measures in ((run.spec, run.metrics) for run in due_by_spec):
        with _collecting(problems, spec):
            if every_epsilon and sizes(spec, kept).parameters > trial.MOST_TRIED:
                continue  # a plan that is shown takes no memory for it
            source, mechanism = dataset_source(spec), build_mechanism(spec)
            made, shape = model_builder(spec, source), tuple(source.input_shape)
            weight = getattr(getattr(mechanism, "rule", None), "weight", None)
            try_network(code_entries(spec), made, shape, outputs_of(spec, source), weight, kept)
            try_rule(mechanism, made, shape, kept)
            metrics = [build("metrics", {"name": one.name, "parameters": one.parameters}) for one in measures]
            for one in (mechanism, *metrics):
                try_mechanism(one, made)
            for metric in metrics:
                getattr(metric, "refuse_mechanism", lambda _: None)(mechanism)
    doubtful = {
        id(run.spec): run
        for run in decided
        if run.action == "exists" and not _of_its_budget(run, before[run.key]["context"])
    }
    if to_confirm and not all(map(_confirmed, [*due_by_spec, *doubtful.values()])):
        # What is remembered is wrong: again without it.
        return make_plan(
            specs,
            store,
            choices,
            every_epsilon=every_epsilon,
            with_sources=with_sources,
            kept=kept.forgotten(),
            progress=progress,
        )
    stated = []
    for done, run in enumerate(decided, 1):
        with kept.written_as_it_goes(), _collecting(problems, run.spec):
            due = run.action == "train"
            given = run.spec.budget is not None and run.spec.budget.epsilon is None
            asked = due or (every_epsilon and given)
            stated.append(_with_epsilon(run, kept if every_epsilon else Cache()) if asked else run)
        if progress is not None:
            progress("ε", done, len(decided))
    if problems:
        raise ProblemsError(problems)
    timed = with_engines(priced(with_checks(stated, store.out), before.values(), choices.smoke, kept), kept)
    kept.write()
    return Plan(timed, stacks(timed))


def resolve_all(
    specs: Sequence[Spec],
    choices: Choices,
    kept: Cache | None = None,
    progress: Progress | None = None,
    *,
    with_sources: bool = False,
) -> list[Run]:
    """The runs of the specs that are chosen, with their keys; nothing is decided and no model is trained on trial.

    Their ε at noise multipliers that the specs give are not computed yet; the hashes of their code only `with_sources`,
    which what will be trained needs. Raises like `make_plan`.
    """
    kept = Cache(cache_file()) if kept is None else kept
    problems: list[Problem] = []
    runs: list[Run] = []
    sources: Sources | None = {} if with_sources else None
    taken = taken_of(specs, choices.only)
    asked = choices.seeds
    count = sum(asked if isinstance(asked, int) else len(asked or spec.seeds) for spec in taken)
    if count > MOST_RUNS:
        raise DpbenchError(f"{count:,} runs at once; expected at most {MOST_RUNS:,}: choose with --only or --seeds")
    for done, spec in enumerate(taken, 1):
        if progress is not None:
            progress("specs", done - 1, len(taken))
        with kept.written_as_it_goes(), _collecting(problems, spec):
            runs += resolve(spec, _seeds(spec, choices.seeds), kept, sources)
    if progress is not None:
        progress("specs", len(taken), len(taken))
    kept.write()
    if problems:
        raise ProblemsError(problems)
    return _with_metrics(runs)


def _with_metrics(runs: Sequence[Run]) -> list[Run]:
    """The runs, each with the metrics that any spec which shares it asks for: it is trained once.

    Its own spec stays as it is, so that the report misses no metric that the spec does not ask for.
    """
    asked: dict[str, list[Choice]] = {}
    along: dict[str, int] = {}
    for run in runs:
        known = asked.setdefault(run.key, [])
        known += [one for one in run.spec.metrics if one not in known]
        along[run.key] = max(along.get(run.key, 1), run.spec.metrics_along)
    return [replace(run, metrics=tuple(asked[run.key]), metrics_along=along[run.key]) for run in runs]


def with_checks(runs: Iterable[Run], out: Path) -> tuple[Run, ...]:
    """The runs with what the stored verdicts say of their mechanisms."""
    stored = read_checks(out)
    codes: dict[str, Code] = {}
    found = []
    built: tuple[Spec, bool] | None = None  # the last spec, and whether its mechanism is private
    for run in runs:
        if built is None or built[0] is not run.spec:
            built = run.spec, build_mechanism(run.spec).private
        mechanism = run.spec.mechanism
        if shipped(choice := {"name": mechanism.name, "parameters": mechanism.parameters}):
            checked = of_shipped(choice)
        else:
            key = json.dumps([mechanism.name, plain(dict(mechanism.parameters))], sort_keys=True, default=repr)
            codes[key] = codes.get(key) or code_of(mechanism.name, mechanism.parameters)
            checked = known(stored, codes[key], run.steps)
        found.append(replace(run, checked=checked if built[1] else None))
    return tuple(found)


@contextmanager
def _collecting(problems: list[Problem], spec: Spec) -> Iterator[None]:
    """Turns any exception into a problem of the spec: a user's model or mechanism may raise anything.

    Raises OutOfMemory for a lack of memory, which is no mistake of the spec.
    """
    try:
        yield
    except Exception as error:
        if lacks_memory(error):
            raise out_of_memory(error, f"when the model of {spec.name} was tried") from error
        named = isinstance(error, DpbenchError | ValueError)
        text = str(error) if named else f"{type(error).__name__}: {error}"
        if text.startswith("input_shape = "):
            text = f"model {spec.model.name} does not take the records of {spec.dataset.name}: {text}"
        problems.append(Problem(spec.file, spec.line, 1, spec.label, " ".join(text.split())))


def resolve(spec: Spec, seeds: Sequence[int], kept: Cache | None = None, sources: Sources | None = None) -> list[Run]:
    """The runs of one spec; `kept` remembers calibrated noise, `sources` hashes of code from one spec to the next.

    Without `sources` the runs do not say which code they use. Raises DpbenchError or ValueError with one sentence if it
    cannot be resolved: also where its model cannot be built for its data, but only what will be trained is tried.
    """
    from dpbench.step.mechanism import Setting

    source, budget = dataset_source(spec, anew=True), spec.budget
    rate, steps = rate_and_steps(spec, source)
    mechanism = build_mechanism(spec)
    sigma: float | None = None
    stated: dict[str, Any] = {}
    spends: tuple[float, float] | None = None
    if mechanism.spends_budget:
        if budget is None or budget.epsilon is None:
            raise DpbenchError(f"budget: {spec.mechanism.name} spends a budget; expected epsilon and delta")
        spends = budget.epsilon, budget.delta
        claimed = mechanism.facts().get("claimed_by")
        by, kind = ("rdp_filter", "upper_bound") if claimed is None else (claimed, "claimed")
        stated = {"epsilon": budget.epsilon, "epsilon_kind": kind, "epsilon_by": by}
        stated["epsilon_version"] = None if claimed is not None else find("accountants", by).version
    elif budget is not None and budget.noise_multiplier is not None:
        sigma = float(budget.noise_multiplier)
        ledger_of(mechanism, rate, steps, sigma)  # what is wrong with it is said for every run
    elif budget is not None:
        sigma, stated = calibrated(partial(ledger_of, mechanism, rate, steps), budget, spec.mechanism.name, kept)
    numbers: dict[str, Any] = {
        "sampling_rate": rate,
        "steps": steps,
        "learning_rate": float(spec.training.learning_rate),
        "clip_norm": None if spec.training.clip_norm is None else float(spec.training.clip_norm),
        "noise_multiplier": sigma,
    }
    asked: dict[str, Any] = {} if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}
    objective = objective_of(spec, source)
    sizes = {"examples": source.train_size, "test_examples": source.test_size, "classes": source.classes}
    shape = tuple(source.input_shape)
    mechanism.check(Setting(**sizes, input_shape=shape, loss=objective.loss, **numbers, **asked))
    if spec.randomness == "secure" and not getattr(mechanism, "secure", False):
        raise DpbenchError(
            f"randomness = secure: {spec.mechanism.name} does not say that all its noise comes from"
            " stages.gaussian_noise; expected own or common, or another mechanism"
        )
    entries = code_entries(spec)
    unkeyed = marked(find("datasets", spec.dataset.name).load(), FilePath, Note)
    try_build(model_builder(spec, source), tuple(source.input_shape), outputs_of(spec, source), kept)
    resolved: dict[str, Any] = {
        "format": FORMAT,
        "dataset": {
            "name": spec.dataset.name.rpartition(":")[2],  # the hash identifies the data
            "parameters": _not_default(spec.dataset, unkeyed),
            "sha256": source.sha256,
        },
        "model": chosen("models", spec.model, skip=2) | weights_key(spec, plain_builder(spec, source)),
        "mechanism": chosen("mechanisms", spec.mechanism),
        "randomness": spec.randomness,
        **unusual(task_of(source), objective),
        **numbers,
        **({} if spends is None else asked),
        "numerics": versions(entries),
    }
    used = tuple(entries)
    if sources is not None and used not in sources:
        sources[used] = {name: code_hash(name) for name in code_modules(entries)}
    common = Run(
        spec=spec,
        seed=0,
        key="",
        resolved=resolved,
        examples=source.train_size,
        **numbers,
        **{"epsilon": None, **stated},
        spends=spends,
        sources={} if sources is None else sources[used],
        engine=engine(entries[1], spec.mechanism.parameters),
        adjacency=mechanism.facts().get("adjacency"),
        data_warning=getattr(source, "warning", ""),
        metrics=spec.metrics,
        metrics_along=spec.metrics_along,
        objective=objective,
    )
    contents = [{**resolved, "seed": seed} for seed in seeds]
    return [replace(common, seed=one["seed"], key=run_key(one), resolved=one) for one in contents]


def _not_default(dataset: Choice, unkeyed: Container[str]) -> dict[str, Any]:
    """A dataset's parameters as the key holds them: of a file of the user's without the signature's defaults."""
    made = find("datasets", dataset.name).load()
    signature = inspect.signature(made).parameters if marked(made, FilePath) else {}
    defaults = {name: one.default for name, one in signature.items() if one.default is not inspect.Parameter.empty}
    given = {name: value for name, value in dataset.parameters.items() if name not in unkeyed}
    return {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}


def _confirmed(run: Run) -> bool:
    """Whether a run's calibrated noise is what the accountant calibrates; True where nothing is calibrated."""
    budget, sigma = run.spec.budget, run.noise_multiplier
    if budget is None or budget.epsilon is None or sigma is None:
        return True
    make = partial(ledger_of, build_mechanism(run.spec), run.sampling_rate, run.steps)
    names = ("epsilon", "epsilon_kind", "epsilon_by", "epsilon_because", "epsilon_version")
    return confirmed(sigma, {name: getattr(run, name) for name in names}, make, budget)


def _of_its_budget(run: Run, of_record: Mapping[str, Any]) -> bool:
    """Whether the context of a run's record says that its noise was calibrated as the run's spec asks.

    Else its key may be that of another run only because the remembered noise is wrong.
    """
    budget = run.spec.budget
    if budget is None or budget.epsilon is None or run.noise_multiplier is None:
        return True
    by = budget.calibrate_with or "exact"  # by default, where it covers the mechanism
    asked = {"target_epsilon": budget.epsilon, "delta": budget.delta, "calibrate_with": by}
    return all(of_record.get(name) == value for name, value in asked.items())


def _with_epsilon(run: Run, kept: Cache) -> Run:
    """The run with its ε if its spec gives the noise, with its true ε if its noise is calibrated."""
    budget, sigma = run.spec.budget, run.noise_multiplier
    if budget is None or sigma is None:
        return run
    if run.epsilon_by == "exact":
        return replace(run, true_epsilon=run.epsilon)
    ledger = ledger_of(build_mechanism(run.spec), run.sampling_rate, run.steps, sigma)
    if budget.epsilon is None:
        return replace(run, **epsilon_at(ledger, budget.delta, budget.calibrate_with, kept))
    return replace(run, true_epsilon=epsilon_at(ledger, budget.delta, "exact", kept)["epsilon"])


def context(run: Run) -> dict[str, Any]:
    """Facts about the run's spec for the record and the report; no part of the key."""
    spec, budget, source = run.spec, run.spec.budget, dataset_source(run.spec)
    fields = ("name", "label", "number", "source", "reduced")
    return {
        **{name: getattr(spec, name) for name in fields},
        "tuned": "; ".join(filter(None, [spec.tuned, getattr(source, "tuned", "")])) or None,
        "file": own_name(spec.file),
        "published": None if spec.published is None else asdict(spec.published),
        "weights": None if spec.weights is None else asdict(spec.weights) | dict(run.resolved["model"]["weights"]),
        "accountants": list(spec.accountants),
        "needs": list(spec.needs),
        "delta": None if budget is None else budget.delta,
        "target_epsilon": None if budget is None else budget.epsilon,
        "calibrate_with": None if budget is None or budget.epsilon is None else run.epsilon_by,
        "engine": dict(run.engine),
        "metrics": [described(one.name, one.parameters) for one in spec.metrics],
        "of_file": source.title if of_a_file(spec.dataset.name) else "",
        "data_warning": run.data_warning,
    }


def _seeds(spec: Spec, chosen: tuple[int, ...] | int | None) -> tuple[int, ...]:
    """The spec's seeds; `--seeds n` takes the first n, counting on if there are fewer, `--seeds 3,5` exactly those."""
    if chosen is None:
        return spec.seeds
    if not isinstance(chosen, int):
        return chosen
    more = (seed for seed in itertools.count() if seed not in spec.seeds)
    return tuple(itertools.islice(itertools.chain(spec.seeds, more), chosen))


HAS_A_RECORD = "has a record"


def chosen_by(spec: Spec, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the spec's name, label, `name/label` or file name; no pattern: all do."""
    names = (spec.name, spec.label, f"{spec.name}/{spec.label}", Path(spec.file).stem)
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def taken_of(specs: Sequence[Spec], patterns: Sequence[str]) -> list[Spec]:
    """The specs that a pattern chooses. Raises DpbenchError for a pattern that matches none of them."""
    for pattern in patterns:
        if not any(chosen_by(spec, [pattern]) for spec in specs):
            part = pattern.strip("*")
            near = next((f"; '*{part}*' takes {one.label!r}" for one in specs if part and part in one.label), "")
            names = ", ".join(dict.fromkeys(spec.name for spec in specs))
            raise DpbenchError(f"--only {pattern}: no spec has such a name or label; there are: {names}{near}")
    return [spec for spec in specs if chosen_by(spec, patterns)]


def _decided(
    run: Run,
    known: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    choices: Choices,
    unfinished: bool,
) -> tuple[Action, str]:
    """What to do with a run, and why. `known`: its record, and what the same run by other versions of code resolved."""
    record, older = known
    if not unfinished and not choices.force and not choices.smoke:
        if record is not None:
            return "exists", _without_metrics(run, record) or HAS_A_RECORD
        if older is not None and not choices.stale:
            changed = ", ".join(version_changes(older.get("numerics") or {}, run.resolved["numerics"]))
            return "stale", f"has a record by other code ({changed}); --stale runs it again"
    if choices.smoke or record is None:
        new = "was interrupted, goes on from there" if unfinished and not choices.force else "no record yet"
        return "train", "smoke test" if choices.smoke else "its record is stale" if older else new
    return "train", "forced" if choices.force else "was interrupted"


def _without_metrics(run: Run, record: Mapping[str, Any]) -> str:
    """Which metrics of those asked for a record does not have, and how to get them; "" where it has all."""
    measured = {one.get("name") for one in (record.get("result") or {}).get("metrics") or ()}
    asked = [described(one.name, one.parameters) for one in run.metrics]
    absent = [name for name in asked if name not in measured]
    return f"has a record without {', '.join(absent)}; --force trains again and measures" if absent else ""


def _obstacle(spec: Spec, choices: Choices, has_gpu: bool) -> str | None:
    """Why a spec's runs cannot be trained here; None if they can."""
    source = dataset_source(spec)
    if source.missing(choices.data):
        # Features of another dataset are computed from its files, which must be fetched.
        named = getattr(source, "files_of", spec.dataset.name)
        return f"dataset {named} is absent; get it: {fetch_command(named, data_folder(choices.data))}"
    obstacle: str | None = source.obstacle(choices.data) if hasattr(source, "obstacle") else None
    if obstacle is not None:
        return f"dataset {spec.dataset.name}: {obstacle}"
    mechanism = build_mechanism(spec)
    obstacle = mechanism.obstacle() if hasattr(mechanism, "obstacle") else None
    if obstacle is not None:
        return f"mechanism {spec.mechanism.name}: {obstacle}"
    if (obstacle := still_to_make(spec)) is not None:
        return obstacle
    if "gpu" in spec.needs and not has_gpu and choices.device is None:
        return "needs a GPU and none was found; --device cpu runs it here"
    return None


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
            elsewhere = same.spec.name != run.spec.name  # without labels and seeds, for one line tells of all alike
            reason = f"the same run as {f'one of {same.spec.name}' if elsewhere else same.title}, trained once"
            if run.engine != same.engine:
                reason += f" with {_words(same.engine)}; {_words(run.engine)} is no part of a run's key"
        elif run.action == "train" and (run.spec.name, run.spec.label, run.seed) in apart:
            reason += f" of key format {FORMAT}; there is one of an older format"
        explained.append(run if reason == run.reason else replace(run, reason=reason))
    return explained


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


@cache
def _gpu() -> str | None:
    import torch

    return "cuda" if torch.cuda.is_available() else None
