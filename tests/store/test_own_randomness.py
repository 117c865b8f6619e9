"""Internal: which streams of randomness two runs share is seen in their keys alone.

Which runs share batches and noise, and what the key of a run holds. Keys are 64 bits: no two are equal by chance.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import dpbench
from dpbench.catalog import Entry, Later, catalog, find
from dpbench.cli import progress, results
from dpbench.clipping import vmap
from dpbench.errors import ProblemsError
from dpbench.events import Composition, SampledGaussian
from dpbench.job import run
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, Plan, Run, context, make_plan
from dpbench.privacy.accounting import account
from dpbench.randomness import INIT, STREAMS
from dpbench.reporting.collect import collect
from dpbench.spec.loading import Choice, load_specs
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import initial_parameters, network
from dpbench.step.mechanism import step as one_step
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.stages import gaussian_noise
from dpbench.store import run_key
from dpbench.store.differences import diff
from dpbench.store.provenance import code_with_imports
from dpbench.store.records import Store
from dpbench.training.courses import hyperparameters
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted, train
from tests.store.record_samples import run_json

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [16]}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.5}
training: {batch_size: 96, steps: 4, learning_rate: 0.5, clip_norm: 1.0}
seeds: 1
"""
CHANGES = [
    ("hidden: [16]", "hidden: [16], activation: tanh"),
    ("noisy_sgd", "noisy_adam"),
    ("noisy_sgd", "{name: dp_sgd_jl, parameters: {projections: 2}}"),
    ("noise_multiplier: 1.5", "noise_multiplier: 1.500001"),
    ("noise_multiplier: 1.5", "epsilon: 3"),
    ("batch_size: 96", "batch_size: 97"),
    ("steps: 4", "steps: 5"),
    ("learning_rate: 0.5", "learning_rate: 0.25"),
    ("clip_norm: 1.0", "clip_norm: 2.0"),
]


def plan_of(folder: Path, *texts: str, **choices: Any) -> Plan:
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.yaml").write_text(text.replace("name: small", f"name: small{number or ''}"))
    return make_plan(load_specs([folder], allow_code=True), Store(folder / "out"), Choices(device="cpu", **choices))


def drawn(runs: Sequence[Run]) -> tuple[Any, Any]:
    """The first batches of the runs at one rate, and their noise of deviation 1."""
    keys_RS, step_R = hyperparameters(runs, torch.device("cpu")).keys_RS, torch.zeros(len(runs), dtype=torch.int64)
    batch = PoissonSampler()(keys_RS, step_R, torch.full((len(runs),), 0.5, dtype=torch.float64), 500)
    noise_RP = gaussian_noise(torch.zeros(len(runs), 50), torch.ones(len(runs)).double(), keys_RS, step_R)
    return [row[mask].tolist() for row, mask in zip(batch.index_RB, batch.mask_RB, strict=True)], noise_RP


def test_runs_of_one_seed_that_differ_in_one_number_share_no_batch_and_no_noise(tmp_path: Path) -> None:
    runs = plan_of(tmp_path, SPEC, *(SPEC.replace(*change) for change in CHANGES)).runs
    assert len({one.key for one in runs}) == len(runs) == 1 + len(CHANGES)
    batches, noise_RP = drawn(runs)
    for one, other in itertools.combinations(range(len(runs)), 2):
        assert batches[one] != batches[other]
        assert not bool((noise_RP[one] == noise_RP[other]).any())
    keys_RS = hyperparameters(runs, torch.device("cpu")).keys_RS
    assert len(set(keys_RS[:, INIT].tolist())) == 1, "initial parameters are those of the seed"
    others = keys_RS[:, INIT + 1 :].flatten().tolist()
    assert len(set(others)) == len(runs) * (len(STREAMS) - 1)


def test_two_released_models_give_no_clipped_sum_away(tmp_path: Path) -> None:
    """The attack: same seed, data and start, another σ; what the first steps differ by is then (σ₁ − σ₂)·C·z."""
    runs = plan_of(tmp_path, SPEC, SPEC.replace("noise_multiplier: 1.5", "noise_multiplier: 1.0")).runs
    source = dataset_source(runs[0].spec)
    build = model_builder(runs[0].spec, source)
    net, data, mechanism = network(build()), source.load(None), build_mechanism(runs[0].spec)
    theta_RP = initial_parameters(build, 0).repeat(2, 1)
    hyper = hyperparameters(runs, torch.device("cpu"))
    state = mechanism.start(theta_RP, hyper, data.train_inputs, data.train_targets)
    after, _ = one_step(mechanism, net, state, hyper, data.train_inputs, data.train_targets, 200)
    sum_RP = (theta_RP - after.theta_RP) / 0.5 * 96
    guessed_P = sum_RP[0] - 3 * (sum_RP[0] - sum_RP[1])  # Σ + 1.5 z and Σ + z give Σ
    batch = PoissonSampler()(hyper.keys_RS[:1], state.step_R[:1], hyper.sampling_rate_R[:1], len(data.train_targets))
    examples = (data.train_inputs[batch.index_RB], data.train_targets[batch.index_RB], batch.mask_RB)
    true_P = vmap.clipping(net, theta_RP[:1], Examples(*examples), torch.ones(1).double(), 200).sum_RP[0]
    assert float((guessed_P - true_P).norm()) > float(true_P.norm())


def test_common_runs_share_and_say_so(tmp_path: Path) -> None:
    texts = [SPEC.replace(*change) + "randomness: common\n" for change in CHANGES[3:]]
    runs = plan_of(tmp_path, SPEC + "randomness: common\n", *texts).runs
    assert len({one.key for one in runs}) == len(runs)
    batches, noise_RP = drawn(runs)
    assert all(batch == batches[0] for batch in batches)
    assert bool((noise_RP == noise_RP[0]).all())
    (own,) = plan_of(tmp_path / "own", SPEC).runs
    assert drawn([own])[0][0] != batches[0]
    summary = run([tmp_path / "0.yaml"], out=tmp_path / "out")
    assert summary.exit_status == 0
    (record,) = Store(tmp_path / "out").read().runs
    assert "may not be released together" in str(record.facts.generator)
    assert any("may not be released together" in notice.text for notice in collect([record]).notices)


def test_a_run_draws_the_same_alone_and_in_any_company(tmp_path: Path) -> None:
    runs = plan_of(tmp_path, SPEC.replace("seeds: 1", "seeds: 3"), SPEC.replace("steps: 4", "steps: 5")).runs
    batches, noise_RP = drawn(runs)
    for at, one in enumerate(runs):
        alone = drawn([one])
        assert alone[0][0] == batches[at]
        assert torch.equal(alone[1][0], noise_RP[at])


@pytest.mark.parametrize(("sigma", "joint", "added"), [(1.3, 1.608, 1.252), (0.8, 7.07, 3.17), (0.6, 20.2, 7.69)])
def test_what_common_batches_cost(sigma: float, joint: float, added: float) -> None:
    """Two models with common Poisson batches and independent noise: one record moves the pair of sums by √2 at most.

    So the pair is one release of sensitivity √2 in a sampled batch: σ/√2. Their ledgers know of 2T separate steps.
    """
    q, steps = 256 / 60000, 3516
    together = Composition(((SampledGaussian(q, sigma / math.sqrt(2)), steps),))
    apart = Composition(((SampledGaussian(q, sigma), 2 * steps),))
    for composition, printed in ((together, joint), (apart, added)):
        (found,) = account(composition, delta=1e-5, accountants=["exact"])
        assert found.epsilon is not None
        digits = len(f"{printed}".split(".")[1])
        assert round(found.epsilon.value, digits) == printed


# The key


@pytest.mark.parametrize("name", sorted(catalog("mechanisms")))
def test_no_engine_is_keyed(name: str) -> None:
    entry = find("mechanisms", name)
    engines = sorted(catalog("clipping"))
    choices = {"clipping": engines, "engine": engines, "way": ["jvp", "vjp", "layers"]}
    known = run_key.full_parameters(entry, {})
    named = run_key.chosen("mechanisms", Choice(name))
    for parameter, values in choices.items():
        if parameter in known:
            assert parameter not in named["parameters"]
            for value in values:
                choice = Choice(name, {parameter: value})
                assert run_key.chosen("mechanisms", choice) == named
                assert run_key.engine(entry, choice.parameters)[parameter] == value
    of_a_file = {"votes_file", "votes_licence", "votes_made_from"}  # its hash is in the key
    marked = inspect.signature(entry.load(), eval_str=True).parameters.values()
    later = {
        one.name for one in marked if any(isinstance(of, Later) for of in getattr(one.annotation, "__metadata__", ()))
    }
    assert later <= {"augment", "average", "regularisation"}, "runs without these keep their keys"
    assert set(named["parameters"]) == set(known) - set(choices) - of_a_file - later


def test_how_a_stage_computes_is_recorded_and_not_keyed() -> None:
    chains: list[dict[str, Any]] = [{"clip": "jl"}, {"clip": {"name": "jl", "parameters": {"way": "vjp"}}}]
    one, other = (run_key.chosen("mechanisms", Choice("pipeline", chain)) for chain in chains)
    assert one == other
    assert [run_key.engine(find("mechanisms", "pipeline"), chain)["way"] for chain in chains] == ["layers", "vjp"]


@pytest.mark.parametrize("name", sorted(catalog("mechanisms")))
def test_the_key_names_no_module(name: str) -> None:
    spec_entries = [find("models", "mlp"), find("mechanisms", name)]
    text = json.dumps([run_key.versions(spec_entries), run_key.chosen("mechanisms", Choice(name))])
    assert "dpbench" not in text
    assert ".py" not in text
    assert set(run_key.versions(spec_entries)) == {*run_key.CORE, "model", "mechanism"}


def test_rows_that_differ_in_their_engine_are_one_run(tmp_path: Path) -> None:
    rows = "rows:\n" + "".join(
        f"- {{label: {name}, mechanism: {{name: noisy_sgd, parameters: {{clipping: {name}}}}}}}\n"
        for name in ("ghost", "loop", "vmap")
    )
    plan = plan_of(tmp_path, SPEC.replace("mechanism: noisy_sgd\n", "") + rows)
    assert len({one.key for one in plan.runs}) == 1
    assert [len(stack.runs) for stack in plan.stacks] == [1]
    assert plan.runs[0].reason == "no record yet"
    assert "the same run as small [ghost] seed 0" in plan.runs[1].reason
    assert "clipping = ghost" in plan.runs[1].reason
    summary = run([tmp_path], out=tmp_path / "out")
    (record,) = Store(tmp_path / "out").read().runs
    assert record.environment["engine"] == {"clipping": "ghost"}
    again = make_plan(load_specs([tmp_path]), Store(tmp_path / "out"), Choices())
    assert [one.action for one in again.runs] == ["exists"] * 3
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    shown = {row["label"]: row for section in report["sections"] for row in section["rows"]}
    assert set(shown) == {"ghost", "loop", "vmap"}
    assert summary.exit_status == 0
    rows_of = {row.label: row for row in collect([record], contexts={record.run_key: contexts(again)}).rows()}
    assert rows_of["ghost"].seconds_per_epoch is not None
    assert rows_of["loop"].seconds_per_epoch is None
    assert rows_of["loop"].other_engine == "clipping = ghost"


def contexts(plan: Plan) -> list[dict[str, Any]]:
    return [context(one) for one in plan.runs]


def test_moved_code_changes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mechanism, two of its stages, model and a file of the core under other names."""
    package = Path(dpbench.__path__[0])
    (before,) = plan_of(tmp_path / "before", SPEC).runs
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copy(package / "mechanisms" / "presets.py", tmp_path / "moved_mechanism.py")
    shutil.copy(package / "clipping" / "rules" / "flat.py", tmp_path / "moved_rule.py")
    shutil.copy(package / "step" / "updates" / "sgd.py", tmp_path / "moved_update.py")
    shutil.copy(package / "models" / "mlp.py", tmp_path / "moved_model.py")
    shutil.copy(package / "step" / "stages.py", tmp_path / "moved_stages.py")
    moved = {
        "noisy_sgd": "moved_mechanism:noisy_sgd",
        "flat": "moved_rule:rule",
        "sgd": "moved_update:update",
        "mlp": "moved_model:model",
    }

    def found(kind: str, name: str) -> Entry:
        return Entry(kind, name, moved[name], "dpbench") if name in moved else find(kind, name)

    for module in ("dpbench.store.run_key", "dpbench.plan.planning"):
        monkeypatch.setattr(f"{module}.find", found)
    monkeypatch.setattr(run_key, "CORE", {**run_key.CORE, "stages": ("moved_stages",)})
    monkeypatch.setattr(run_key, "CORE_MODULES", run_key.CORE_MODULES - {"dpbench.step.stages"} | {"moved_stages"})
    (after,) = plan_of(tmp_path / "after", SPEC).runs
    assert after.key == before.key
    assert {place.partition(":")[0] for place in moved.values()} | {"moved_stages"} <= set(after.sources)
    (tmp_path / "moved_stages.py").write_text((tmp_path / "moved_stages.py").read_text() + "\nNUMERICS = 2\n")
    monkeypatch.delitem(sys.modules, "moved_stages")
    (raised,) = plan_of(tmp_path / "after", SPEC).runs
    assert raised.key != before.key


OWN = """
from torch import nn

NUMERICS = 1


def model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes%s))
"""


def test_what_comes_from_outside_is_known_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the module is called: two with a factory and a version of one name are two models."""
    monkeypatch.syspath_prepend(tmp_path)
    texts = []
    for name, more in (("outside_one", ""), ("outside_two", ", bias=False"), ("outside_three", "")):
        (tmp_path / f"{name}.py").write_text(OWN % more + f"# {name}\n")
        texts.append(SPEC.replace("{name: mlp, parameters: {hidden: [16]}}", f'"{name}:model"'))
    one, two, three = plan_of(tmp_path / "specs", *texts).runs
    assert one.key != two.key
    assert one.key == three.key
    assert "outside" not in json.dumps(run_key.plain(one.resolved))


LAYOUTS = {
    "beside": ("used", "{top}_user", {"{top}_user": "import {top}_used as used", "{top}_used": ""}),
    "in one package": (
        "used",
        "{top}.user",
        {"{top}.__init__": "", "{top}.user": "from . import used", "{top}.used": ""},
    ),
    "indirectly": (
        "deep",
        "{top}.user",
        {
            "{top}.__init__": "",
            "{top}.user": "from .between import used",
            "{top}.between": "from {top}.parts import deep as used",
            "{top}.parts.__init__": "",
            "{top}.parts.deep": "",
        },
    ),
    "the package itself": ("__init__", "{top}.user", {"{top}.__init__": "", "{top}.user": "import {top} as used"}),
}
ROLES = {
    "model": (
        "{name: mlp, parameters: {hidden: [16]}}",
        """
from torch import nn
def made(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    %s
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, bias=used.GAIN > 0))
""",
    ),
    "mechanism": (
        "noisy_sgd",
        """
from dpbench.mechanisms.presets import noisy_sgd
def made(*, part: float = 1.0):
    %s
    return noisy_sgd()
""",
    ),
    "update": (
        "noisy_sgd",
        """
from dpbench.step.updates.sgd import Sgd
%s
made = Sgd
""",
    ),
    "clipping": (
        "noisy_sgd",
        """
from dpbench.clipping import vmap
%s
made = vmap.clipping
""",
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_code_from_outside_is_known_with_all_that_it_imports_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, role: str
) -> None:
    """A change of a helper is another run and names the helper as changed; a comment is none, nor is another name."""
    monkeypatch.syspath_prepend(tmp_path)
    helper, user, files = LAYOUTS[layout]
    instead, code = ROLES[role]

    def written(top: str) -> tuple[str, Path]:
        for name, imports in files.items():
            path = tmp_path / (name.format(top=top).replace(".", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = imports.format(top=top)
            path.write_text(code % text if "user" in name else text + "\n")
        (place,) = [
            path for path in tmp_path.rglob("*.py") if path.stem.endswith(helper) and "parts/__" not in str(path)
        ]
        place.write_text("GAIN = 5.0\n" + place.read_text())
        return f"{user.format(top=top)}:made", place

    def planned(name: str, folder: str = "specs") -> Run:
        chosen = {
            "clipping": f'{{name: noisy_sgd, parameters: {{clipping: "{name}"}}}}',
            "update": f'{{name: pipeline, parameters: {{update: "{name}"}}}}',
        }
        return plan_of(tmp_path / folder, SPEC.replace(instead, chosen.get(role, f'"{name}"'))).runs[0]

    name, path = written(tmp_path.name.replace("-", "_"))
    first = planned(name)
    path.write_text("# what it is for\n" + path.read_text())
    again = planned(name)
    assert (again.key, again.sources) == (first.key, first.sources)
    path.write_text(path.read_text().replace("5.0", "6.0"))
    other = planned(name)
    assert other.key != first.key
    changed = [module for module, code in first.sources.items() if other.sources[module] != code]
    assert len(changed) == 1
    assert changed[0].endswith(helper) or helper == "__init__"
    path.write_text(path.read_text().replace("6.0", "5.0"))
    assert planned(name).key == first.key


def test_a_package_under_another_name_is_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = set()
    for top in ("outside_a", "outside_b"):
        (tmp_path / top).mkdir()
        (tmp_path / top / "__init__.py").write_text("")
        (tmp_path / top / "used.py").write_text("GAIN = 5.0\n")
        (tmp_path / top / "user.py").write_text(ROLES["model"][1] % "from . import used")
        text = SPEC.replace(ROLES["model"][0], f'"{top}.user:made"')
        keys.add(plan_of(tmp_path / "specs", text).runs[0].key)
    assert len(keys) == 1


def test_two_helpers_that_change_places_are_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing.py").write_text("import changing_one\nimport changing_two\ndef model(): ...\n")
    found = set()
    for one, two in ((1, 2), (2, 1)):
        (tmp_path / "changing_one.py").write_text(f"GAIN = {one}\n")
        (tmp_path / "changing_two.py").write_text(f"GAIN = {two}\n")
        found.add(run_key.chosen("models", Choice("changing:model"))["name"])
    assert len(found) == 2


def test_an_environment_below_the_folder_is_not_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project often keeps its virtual environment beside its modules."""
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "somebody_elses.py").write_text("")
    (tmp_path / "my_code.py").write_text("import somebody_elses\nimport my_part\n")
    (tmp_path / "my_part.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert code_with_imports("my_code") == ("my_code", "my_part")


# Fresh from the operating system


def secure(folder: Path) -> Run:
    return plan_of(folder, SPEC + "randomness: secure\n").runs[0]


def losses(one: Run, **more: Any) -> list[float]:
    source = dataset_source(one.spec)
    go = partial(train, [one], source.load(None), build_mechanism(one.spec), model_builder(one.spec, source))
    (outcome,) = go(Execution(), **more)
    assert outcome.result is not None
    return [point["test_loss"] for point in outcome.result["curve"]]


def test_a_secure_run_never_comes_again_and_says_that_no_seed_is_kept(tmp_path: Path) -> None:
    one = secure(tmp_path)
    assert losses(one) != losses(one)
    assert run([tmp_path], out=tmp_path / "out").exit_status == 0
    (record,) = Store(tmp_path / "out").read().runs
    assert "no seed of batches or noise is kept" in str(record.facts.generator)
    assert record.ledger is not None
    assert record.resolved["randomness"] == "secure"


def test_a_secure_run_does_not_go_on_with_other_noise(tmp_path: Path) -> None:
    """Interrupted, it leaves no place to go on from, and the summary says so."""
    one = secure(tmp_path)
    steps = itertools.count()
    with pytest.raises(Interrupted):
        losses(one, checkpoints=tmp_path / "kept", stop=lambda: next(steps) > 1)
    assert not (tmp_path / "kept").exists()
    steps = itertools.count()
    summary = run([tmp_path], out=tmp_path / "out", stop=lambda: next(steps) > 1)
    assert summary.exit_status == 130
    assert "1 start again" in progress.summary_text(summary, "dpbench run")
    assert not list((tmp_path / "out" / "checkpoints").glob("*.pt"))


STATISTICS = {"normalised_sgd": {"statistics_noise_multiplier": 1.0, "mean_bound": 1.0, "square_bound": 1.0}}


@pytest.mark.parametrize(
    "name", ["normalised_sgd", "dp_sgd_jl", "microbatched_sgd", "decaying_sgd", "quantile_clipping_sgd"]
)
def test_mechanisms_of_stages_may_be_secure(name: str) -> None:
    assert find("mechanisms", name).load()(**STATISTICS.get(name, {})).secure


def test_a_mechanism_with_noise_of_its_own_may_not_be_secure(tmp_path: Path) -> None:
    text = SPEC.replace("noisy_sgd", "dpis").replace("noise_multiplier: 1.5", "epsilon: 8")
    with pytest.raises(ProblemsError, match="randomness = secure: dpis"):
        plan_of(tmp_path, text + "randomness: secure\n")


# Records of the first format


def old(**more: Any) -> dict[str, Any]:
    data = run_json("small", **more)
    data["resolved"] = {key: value for key, value in data["resolved"].items() if key not in ("format", "randomness")}
    return data | {"run_key": run_key.run_key(data["resolved"])}


def test_records_of_the_first_format_stand_apart_and_say_so(tmp_path: Path) -> None:
    first, second = old(), run_json("small", accuracy=0.9)
    second["run_key"] = "2" * 64
    store = Store(tmp_path / "out")
    store.write_run(first)
    assert store.read().damaged == ()
    (planned,) = plan_of(tmp_path, SPEC).runs
    assert planned.action == "train"
    assert "there is one of an older format" in planned.reason
    found = collect([first, second])
    assert [len(section.rows) for section in found.sections] == [2]
    assert any("older format than 2" in notice.text and "1 of 2 records" in notice.text for notice in found.notices)
    (row,) = diff([first], [second])
    assert row.matched == "name"
    assert row.configuration["format"] == (None, 2)
    console = Console(width=300, record=True)
    console.print(results._table(diff([first], [second])))
    assert "key format 1 -> 2: different formats are never the same run" in console.export_text()
