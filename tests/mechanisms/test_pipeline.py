"""Stages that compose in a spec: presets are pipelines, a mistake has its place, a step hides what is private."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.catalog import catalog, find
from dpbench.clipping.rules.flat import Flat
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import SampledGaussian
from dpbench.judging.check_tools.subject import Subject
from dpbench.mechanisms.pipeline import mechanism as pipeline
from dpbench.mechanisms.presets import PRESETS
from dpbench.plan.planning import resolve
from dpbench.randomness import table
from dpbench.spec.loading import load_specs
from dpbench.step.functional import initial_parameters, network
from dpbench.step.mechanism import Hyperparameters, State, step
from dpbench.step.pipeline import Pipeline
from dpbench.store.check_records import code_of, shipped

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: composed
dataset: digits
model: {name: mlp, parameters: {hidden: [8]}}
mechanism: MECHANISM
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 64, epochs: 1, learning_rate: 0.1, clip_norm: 1.0}
seeds: 1
"""


def specs(folder: Path, mechanism: str, more: str = "", budget: str = "") -> Any:
    file = folder / "spec.yaml"
    text = SPEC.replace("MECHANISM", mechanism) + more
    if budget:
        text = text.replace("{noise_multiplier: 1.0, delta: 1e-4}", budget)
    file.write_text(text)
    return load_specs([file], allow_code=True)


def mistakes(folder: Path, mechanism: str, more: str = "", budget: str = "") -> list[tuple[str, str]]:
    with pytest.raises(ProblemsError) as caught:
        specs(folder, mechanism, more, budget)
    return [(problem.path, problem.message + problem.hint) for problem in caught.value.problems]


def key(folder: Path, mechanism: str) -> str:
    (spec,) = specs(folder, mechanism)
    return resolve(spec, [0])[0].key


def trained(made: Any, steps: int = 4) -> State:
    """A few steps of a stack of two runs."""
    generator = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(40, 3, generator=generator), torch.randint(2, (40,), generator=generator)
    net = network(torch.nn.Linear(3, 2))
    theta_RP = torch.stack([initial_parameters(lambda: torch.nn.Linear(3, 2), seed) for seed in (1, 2)])
    two = torch.ones(2, dtype=torch.float64)
    hyper = Hyperparameters(
        table([5, 6]), 0.3 * two, 0.2 * two, 0.7 * two, two, torch.full((2,), steps), two * torch.nan, two * torch.nan
    )
    if not made.private:
        hyper = replace(hyper, clip_norm_R=two * torch.inf, noise_multiplier_R=0 * two)
    state = made.start(theta_RP, hyper, inputs, targets)
    for _ in range(steps):
        state, _ = step(made, net, state, hyper, inputs, targets, 16)
    return state


IN_FULL: dict[str, dict[str, Any]] = {
    "noisy_sgd": {},
    "noisy_adam": {"update": "adam"},
    "non_private": {"clip": "none", "noise": "none"},
    "decaying_sgd": {"noise": {"name": "decaying", "parameters": {"noise_decay": 0.01}}},
    "automatic_sgd": {"clip": "automatic"},
    "shuffled_sgd": {"sample": "shuffled"},
    "quantile_clipping_sgd": {"clip": "quantile"},
    "microbatched_sgd": {"clip": "microbatch"},
    "dp_lssgd": {"update": "laplacian_sgd"},
    "dplis": {"smooth": "gaussian"},
    "dp_sgd_jl": {"clip": {"name": "jl", "parameters": {"projections": 30}}},
    "dp_adam_jl": {"clip": "jl", "update": {"name": "adam", "parameters": {}}},
}


@pytest.mark.parametrize("name", sorted(IN_FULL))
def test_a_preset_is_the_pipeline_of_its_stages(name: str) -> None:
    preset, written = find("mechanisms", name).load()(), pipeline(**IN_FULL[name])
    one, other = trained(preset), trained(written)
    assert torch.equal(one.theta_RP, other.theta_RP)
    if written.private:
        asked = {"sampling_rate": 0.3, "noise_multiplier": 1.0, "steps": 4}
        assert preset.ledger(**asked) == written.ledger(**asked)


def test_every_preset_is_compared_or_prepares() -> None:
    assert set(PRESETS) - set(IN_FULL) == {"normalised_sgd"}


@pytest.mark.parametrize("update", sorted(catalog("updates")))
@pytest.mark.parametrize("clip", ["automatic", "flat", "jl", "microbatch", "quantile"])
def test_every_rule_goes_with_every_update(clip: str, update: str) -> None:
    made = pipeline(clip=clip, update=update, noise="decaying")
    state = trained(made)
    assert bool(state.theta_RP.isfinite().all())
    assert state.step_R.tolist() == [4, 4]


def test_stages_of_a_spec(tmp_path: Path) -> None:
    (spec,) = specs(tmp_path, "{name: pipeline, parameters: {update: {name: momentum, parameters: {momentum: 0.5}}}}")
    assert spec.mechanism.parameters == {"update": {"name": "momentum", "parameters": {"momentum": 0.5}}}
    made = pipeline(**spec.mechanism.parameters)
    assert made.optimizer.momentum == 0.5


def test_grids_and_rows_reach_into_stages(tmp_path: Path) -> None:
    more = """
rows:
- {label: a}
- {label: b, mechanism: {parameters: {update: {name: momentum}}}}
grid:
  mechanism.parameters.clip.parameters.projections: [5, 10]
"""
    mechanism = "{name: pipeline, parameters: {clip: jl, update: {name: adam, parameters: {beta1: 0.5}}}}"
    found = [spec.mechanism.parameters for spec in specs(tmp_path, mechanism, more)]
    assert [one["clip"]["parameters"]["projections"] for one in found] == [5, 10, 5, 10]
    assert found[0]["update"] == {"name": "adam", "parameters": {"beta1": 0.5}}
    assert found[2]["update"] == "momentum"  # starts afresh: no beta1 of Adam is left


MISTAKES = {
    "{name: pipeline, parameters: {update: adm}}": ("mechanism.parameters.update", "did you mean 'adam'?"),
    "{name: pipeline, parameters: {clip: {name: jl, parameters: {projection: 3}}}}": (
        "mechanism.parameters.clip.parameters.projection",
        "did you mean 'projections'?",
    ),
    "{name: pipeline, parameters: {clip: {name: jl, parameters: {projections: 0.5}}}}": (
        "mechanism.parameters.clip.parameters.projections",
        "expected a whole number",
    ),
    "{name: pipeline, parameters: {clip: {projections: 3}}}": (
        "mechanism.parameters.clip.projections",
        "it belongs under 'mechanism.parameters.clip.parameters'",
    ),
    "{name: pipeline, parameters: {update: [sgd]}}": ("mechanism.parameters.update", "expected the name of an update"),
    "{name: pipeline, parameters: {clipp: flat}}": ("mechanism.parameters.clipp", "did you mean 'clip'?"),
    "{name: pipeline, parameters: {clip: none}}": ("mechanism.parameters.clip", "without bound"),
    "{name: pipeline, parameters: {clip: jl, engine: ghost}}": ("mechanism.parameters.engine", "expected no engine"),
    "{name: pipeline, parameters: {engine: {name: ghost, parameters: {a: 1}}}}": (
        "mechanism.parameters.engine.parameters.a",
        "takes no parameters",
    ),
    "{name: pipeline, parameters: {update: {name: momentum, parameters: {momentum: 1.5}}}}": (
        "mechanism.parameters.update.parameters.momentum",
        "expected a number from 0 to 1",
    ),
}


@pytest.mark.parametrize("mechanism", MISTAKES)
def test_a_mistake_in_a_stage_is_reported_at_its_place(mechanism: str, tmp_path: Path) -> None:
    place, words = MISTAKES[mechanism]
    found = mistakes(tmp_path, mechanism)
    assert any(path == place and words in message for path, message in found), found


def test_without_noise_there_is_no_budget(tmp_path: Path) -> None:
    mechanism = "{name: pipeline, parameters: {noise: none, update: adam}}"
    (spec,) = specs(tmp_path, mechanism, budget="none")
    assert resolve(spec, [0])[0].epsilon is None
    assert any("is not private" in message for _, message in mistakes(tmp_path, mechanism))


def test_the_key_knows_stages_and_no_engine(tmp_path: Path) -> None:
    plain = key(tmp_path, "pipeline")
    same = (
        "{name: pipeline, parameters: {update: sgd}}",
        "{name: pipeline, parameters: {update: {name: sgd}, clip: {name: flat, parameters: {}}}}",
        "{name: pipeline, parameters: {engine: ghost}}",
    )
    assert {key(tmp_path, one) for one in same} == {plain}
    assert key(tmp_path, "{name: pipeline, parameters: {update: momentum}}") != plain
    for name in ("pipeline", "noisy_sgd"):  # the parameter is younger than keys that are in use
        weak = f"{{name: {name}, parameters: {{regularisation: WEIGHT}}}}"
        assert key(tmp_path, weak.replace("WEIGHT", "0")) == key(tmp_path, name)
        assert key(tmp_path, weak.replace("WEIGHT", "1e-3")) != key(tmp_path, name)
    jl = "{name: pipeline, parameters: {clip: {name: jl, parameters: {way: WAY}}}}"
    assert key(tmp_path, jl.replace("WAY", "jvp")) == key(tmp_path, jl.replace("WAY", "vjp"))


OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Half:
    share: float = 0.5
    memory = ()
    def __call__(self, theta_P, memory, gradient_P, rate, step):
        return theta_P - self.share * rate * gradient_P, {}
"""


def test_a_stage_of_ones_own_is_in_the_key_and_in_the_hash_of_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_half.py").write_text(OWN)
    (tmp_path / "own_third.py").write_text(OWN.replace("0.5", "0.3"))
    first, second = ({"update": f"own_{name}:Half"} for name in ("half", "third"))
    assert not shipped({"name": "pipeline", "parameters": first})
    assert not shipped({"name": "pipeline", "parameters": {"update": {"name": "0123abcd:Half", "parameters": {}}}})
    laundered = {
        "clip": {"name": "dpbench.catalog:build", "parameters": {"kind": "updates", "choice": "own_half:Half"}}
    }
    assert not shipped({"name": "pipeline", "parameters": laundered})
    assert shipped({"name": "pipeline", "parameters": {"update": {"name": "adam", "parameters": {}}, "noise": "none"}})
    one, other = code_of("pipeline", first), code_of("pipeline", second)
    assert not one.shipped
    assert one.hash != other.hash
    assert "own_half" in one.modules
    names = (
        '{name: pipeline, parameters: {update: "own_half:Half"}}',
        '{name: pipeline, parameters: {update: "own_third:Half"}}',
    )
    assert len({key(tmp_path, name) for name in names}) == 2


@dataclass(frozen=True)
class Branching:
    """An update that looks at a value, which one run may do and a stack may not."""

    memory: tuple[str, ...] = ()

    def __call__(self, theta_P: Any, memory: Any, gradient_P: Any, rate: Any, step: Any) -> Any:
        del memory, step
        return (theta_P if gradient_P.sum() > 0 else theta_P - rate * gradient_P), {}


@dataclass(frozen=True)
class InPlace:
    memory: tuple[str, ...] = ()

    def __call__(self, theta_P: Any, memory: Any, gradient_P: Any, rate: Any, step: Any) -> Any:
        del memory, step
        return theta_P.sub_(rate * gradient_P), {}


@pytest.mark.parametrize(("update", "words"), [(Branching(), "for one run"), (InPlace(), "not in place")])
def test_an_update_that_cannot_be_mapped_is_one_sentence(update: Any, words: str) -> None:
    made = replace(pipeline(), optimizer=update)
    with pytest.raises(DpbenchError, match=words):
        trained(made)


def test_the_event_of_a_step_is_what_the_ledger_grows_by() -> None:
    made = pipeline(noise={"name": "decaying", "parameters": {"noise_decay": 0.2}})
    whole = made.ledger(sampling_rate=0.5, noise_multiplier=2.0, steps=6)
    assert whole is not None
    flat = [event for event, count in whole.parts for _ in range(count)]
    net, one = network(torch.nn.Linear(2, 2)), torch.ones(1, dtype=torch.float64)
    hyper = Hyperparameters(table([1]), 0.5 * one, one, one, 2 * one, torch.tensor([6]), one, one)
    data = torch.randn(8, 2), torch.zeros(8, dtype=torch.int64)
    state = made.start(torch.zeros(1, net.size), hyper, *data)
    for number in range(6):
        released, _ = made.release(net, state, hyper, *data, 8)
        assert released.events(0) == (flat[number],)
        state, _ = step(made, net, state, hyper, *data, 8)


@dataclass(frozen=True)
class Odd:
    """An update that gives back something else than it was given."""

    what: str
    memory: tuple[str, ...] = ("velocity_P",)

    def __call__(self, theta_P: Any, memory: Any, gradient_P: Any, rate: Any, step: Any) -> Any:
        given = dict(memory)
        forms = {
            "extra": lambda: (theta_P, {**given, "count": step}),
            "double": lambda: (theta_P.double(), given),
            "shorter": lambda: (theta_P[:-1], given),
            "nothing": lambda: None,
            "forgets": lambda: (theta_P, {}),
            "typo": lambda: gradient_P.nosuch(rate),
        }
        return forms[self.what]()


@pytest.mark.parametrize("what", ["extra", "double", "shorter", "nothing", "forgets", "typo"])
def test_what_an_update_gives_back_is_checked(what: str) -> None:
    with pytest.raises(DpbenchError, match="update Odd"):
        trained(replace(pipeline(), optimizer=Odd(what)))


@dataclass(frozen=True)
class Elsewhere(Flat):
    """A rule whose event is that of another sampler."""

    def event(self, rate: float, noise_multiplier: float, sampler: Any) -> Any:
        del sampler
        return SampledGaussian(rate, noise_multiplier, "replace_one", "without_replacement")


class NoFacts:
    def weight(self, norm: Any, clip: Any) -> Any:
        return clip / norm

    def event(self, rate: float, noise_multiplier: float, sampler: Any) -> Any:
        return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)

    def divisor(self, rate_R: Any, examples: int) -> None: ...


@pytest.mark.parametrize(
    ("rule", "words"), [(Elsewhere(), "has the sampler without_replacement"), (NoFacts(), "no method 'facts'")]
)
def test_a_rule_that_is_none_is_one_sentence(rule: Any, words: str) -> None:
    with pytest.raises(DpbenchError, match=words):
        replace(pipeline(), rule=rule)


@dataclass(frozen=True)
class Twice:
    """Clipped gradients that are added twice, and divided by 2qN; `noise` is by what the event divides σ."""

    noise: float = 2.0

    def weight(self, norm: Any, clip: Any) -> Any:
        return 2 / (norm / clip).clamp_min(1.0)

    def event(self, rate: float, noise_multiplier: float, sampler: Any) -> Any:
        return SampledGaussian(rate, noise_multiplier / self.noise, "add_or_remove", sampler)

    def divisor(self, rate_R: Any, examples: int) -> Any:
        return 2 * rate_R * examples

    def facts(self) -> dict[str, str]:
        return {"normalisation": "twice the expected batch size"}


@pytest.mark.parametrize("check", ["mechanism_inclusion", "mechanism_sensitivity", "noise_scale", "gradient_unbiased"])
def test_a_rule_with_a_divisor_and_an_event_of_its_own_holds(check: str) -> None:
    made = replace(pipeline(), rule=Twice())
    verdict = find("checks", check).load()(Subject("mechanisms", "twice", made), seed=0)
    assert verdict.verdict == "holds", verdict


def test_the_same_rule_with_the_event_of_flat_clipping_is_refuted() -> None:
    made = replace(pipeline(), rule=Twice(noise=1.0))
    verdict = find("checks", "mechanism_sensitivity").load()(Subject("mechanisms", "twice", made), seed=0)
    assert verdict.verdict == "refuted"


def test_microbatches_go_with_poisson_sampling_alone() -> None:
    with pytest.raises(DpbenchError, match="with Poisson sampling"):
        pipeline(clip="microbatch", sample="fixed_size")


def test_the_code_that_every_step_uses_is_in_the_hash_of_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_fifth.py").write_text(OWN)
    modules = code_of("pipeline", {"update": "own_fifth:Half"}).modules
    for name in ("step.mechanism", "step.samplers.poisson", "clipping.rules.flat", "mechanisms.pipeline"):
        assert f"dpbench.{name}" in modules
    assert "dpbench.step.samplers.poisson" in code_of("noisy_sgd", {}).modules


@dataclass(frozen=True)
class Remembering(Pipeline):
    """Notes which state its update is given."""

    def update(self, state: State, rate_R: Any, released: Any) -> State:
        assert state.private == {}
        with pytest.raises(DpbenchError, match="no events"):
            released.events(0)
        return super().update(state, rate_R, released)


def test_the_update_does_not_see_what_is_private() -> None:
    made = Remembering(**vars(pipeline()))
    state = trained(made)
    assert state.private == {}
    assert isinstance(made.event(0.1, 1.0), SampledGaussian)


# Of shipped specs: names, parameters and versions go into a key, and moving or rewriting code may change none of them.
KEYS = {
    "decaying_sgd.yaml": "1999b7dbc26416bef9de72d0841cb41b7592a0919290524c18c36ac54609a869",
    "dp_adam_jl.yaml": "5e364ca759b37b6583a46951e59c7ce5e0560c3bd83840505c1c8eb1178f8f4c",
    "dp_sgd_jl.yaml": "3fe4e7432f8dba1c0cd83cf26ccaf593a2c73f1d4dfaf79ddf98a1e7fcc970f4",
    "dpis.yaml": "49288bfb228794376a89cbcbc9017ef878411f53660e4fa31c5eb34f8d0db365",
    "microbatched_sgd.yaml": "3fb942c0fd47ef9ba5b086c98b174e05530136922f82a19845d20705e444e6af",
    "noisy_adam.yaml": "dc0ee6ebd0266aa816a476182c40e9d944c1f536eee0348bdb896c68c06359e6",
    "noisy_sgd.yaml": "aa9178b22911597c21ff5bc777440d5f515f7c3c7b375f3e2885fbd6a3bf463e",
    "non_private.yaml": "3f3791b547b9e5873e196f7f451ef95af0d23b012f610b97e15317dd60ce6c98",
    "normalised_sgd.yaml": "9b22611d331065acd18ce77494537f66f069bbe117c192bdc51bcb6709f8ffba",
    "tempered_sigmoid.yaml": "5df2f5466b0482fc5969d75200b2d779042820b1c291b8ac9b073a9a8d15c86d",
}


def test_keys_of_shipped_specs_stay() -> None:
    root = Path(__file__).parents[2]
    for file, expected in KEYS.items():
        spec = load_specs([root / "specs" / "quickstart" / file])[0]
        assert resolve(spec, spec.seeds[:1])[0].key == expected, file
