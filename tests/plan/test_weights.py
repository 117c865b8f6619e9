"""Initial weights from a file: what is frozen stays, what is absent is drawn, the key knows it, mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.catalog import find
from dpbench.cli import main
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.models import mlp
from dpbench.plan.parts import dataset_source, model_builder
from dpbench.plan.planning import Choices, context, make_plan, resolve
from dpbench.spec.loading import load_specs
from dpbench.step.functional import evaluate, initial_parameters, network, trained
from dpbench.store.records import Store

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: fine-tuned
dataset: digits
model: {name: mlp, parameters: {hidden: [8]}}
mechanism: {name: MECHANISM}
weights: {file: start.pt, licence: MIT, pretrained_on: "small numerals, public"MORE}
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 64, epochs: 1, learning_rate: 0.1, clip_norm: 1.0}
seeds: 1
"""


def written(folder: Path, more: str = "", names: tuple[str, ...] = (), mechanism: str = "noisy_sgd") -> Any:
    """The spec, beside a file with some of the model's weights (all of them by default)."""
    torch.manual_seed(7)
    state = find("models", "mlp").load()((1, 8, 8), 10, hidden=(8,)).state_dict()
    torch.save({name: value for name, value in state.items() if name in names or not names}, folder / "start.pt")
    file = folder / "spec.yaml"
    file.write_text(SPEC.replace("MORE", more).replace("MECHANISM", mechanism))
    (spec,) = load_specs([file])
    return spec


def built(spec: Any) -> torch.nn.Module:
    return model_builder(spec, dataset_source(spec))()


def test_the_model_starts_at_the_file_and_the_rest_at_the_seed(tmp_path: Path) -> None:
    spec = written(tmp_path, names=("1.weight", "1.bias"))
    given = torch.load(tmp_path / "start.pt", weights_only=True)
    build = model_builder(spec, dataset_source(spec))
    one, other = (network(build()).split(initial_parameters(build, seed)[None]) for seed in (0, 1))
    assert torch.equal(one["1.weight"][0], given["1.weight"])
    assert torch.equal(one["1.weight"], other["1.weight"])
    assert not torch.equal(one["3.weight"], other["3.weight"])


@pytest.mark.parametrize("mechanism", ["noisy_sgd", "noisy_sgd, parameters: {clipping: ghost}"])
def test_frozen_parameters_stay_and_are_not_trained(mechanism: str, tmp_path: Path) -> None:
    spec = written(tmp_path, ', frozen: ["1.*"]', mechanism=mechanism)
    module = built(spec)
    assert list(trained(module)) == ["3.weight", "3.bias"]
    assert network(module).size == 8 * 10 + 10
    with pytest.raises(SystemExit, match="0"):
        main(["run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), "--device", "cpu"])
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "records").glob("*.json"))
    assert record["facts"]["parameters"] == 90
    assert record["context"]["weights"]["licence"] == "MIT"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "trained on small numerals, public (licence: MIT; frozen: 1.bias, 1.weight" in page


def test_the_key_knows_the_file_and_what_is_frozen(tmp_path: Path) -> None:
    def key(more: str = "", names: tuple[str, ...] = ()) -> str:
        return resolve(written(tmp_path, more, names), [0])[0].key

    whole = key()
    assert key() == whole
    assert len({whole, key(', frozen: ["1.*"]'), key(names=("1.weight",))}) == 3
    same = (', frozen: ["1.*"]', ', frozen: ["1.weight", "1.bias"]', ', frozen: ["1.*", "1.*"]')
    assert len({key(one) for one in same}) == 1
    text = (tmp_path / "spec.yaml").read_text().replace("MIT", "Apache-2.0")
    (tmp_path / "spec.yaml").write_text(text)
    written(tmp_path)  # the whole file again
    assert key() == whole


MISTAKES = {
    ', frozen: ["features.*"]': "no parameter of the model",
    ', frozen: ["3.*"]': "which the file does not hold",
    f", sha256: {'ab' * 32}": "the file start.pt has",
}


@pytest.mark.parametrize("more", MISTAKES)
def test_what_does_not_fit_is_one_sentence(more: str, tmp_path: Path) -> None:
    spec = written(tmp_path, more, names=("1.weight", "1.bias"))
    with pytest.raises(DpbenchError, match=MISTAKES[more]):
        resolve(spec, [0])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"1.weight": torch.zeros(3, 3)}, "has the shape"),
        ({"first.weight": torch.zeros(8, 64)}, "which the model has not"),
        ({"1.weight": torch.full((8, 64), torch.nan)}, "not finite"),
        ({"1.weight": torch.full((8, 64), 1e300, dtype=torch.float64)}, "not finite"),
        ({"1.weight": torch.zeros(8, 64, dtype=torch.int64)}, "is of type torch.int64"),
        ({"1.weight": torch.zeros(8, 64, dtype=torch.complex64)}, "is of type torch.complex64"),
        ({"1.weight": torch.zeros(8, 64).to_sparse()}, "no plain tensor"),
        ({"1.weight": torch.zeros(1).expand(10**7, 10**6)}, "has the shape"),
        ([torch.zeros(3)], "holds a list"),
        ({}, "holds a dict"),
    ],
)
def test_a_file_of_something_else_is_one_sentence(content: Any, words: str, tmp_path: Path) -> None:
    spec = written(tmp_path)
    torch.save(content, tmp_path / "start.pt")
    with pytest.raises(DpbenchError, match=words):
        resolve(spec, [0])


def test_a_file_that_is_absent_is_told_at_its_place(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "start.pt").unlink()
    with pytest.raises(ProblemsError, match=r"weights.file: found 'start.pt'; there is no such file"):
        load_specs([tmp_path / "spec.yaml"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a file of weights"])
def test_a_file_that_cannot_be_read_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    spec = written(tmp_path)
    (tmp_path / "start.pt").write_bytes(content)
    with pytest.raises(DpbenchError, match="cannot be read"):
        resolve(spec, [0])


def test_a_file_of_weights_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.write_text, (tmp_path / "ran", "code"))

    spec = written(tmp_path)
    torch.save({"1.weight": Evil()}, tmp_path / "start.pt")
    with pytest.raises(DpbenchError, match="cannot be read"):
        resolve(spec, [0])
    assert not (tmp_path / "ran").exists()


class HalfFrozen(torch.nn.Module):
    """A model that freezes a layer itself; `same` decides whether every build has the same one."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 8), torch.nn.Linear(8, 10)
        self.first.requires_grad_(False)
        if same:
            torch.nn.init.constant_(self.first.weight, 0.1)
            torch.nn.init.constant_(self.first.bias, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))


def test_a_model_may_freeze_its_own_parameters_if_no_seed_is_needed() -> None:
    from dpbench.plan.probe import try_model

    try_model(lambda: HalfFrozen(True), (1, 8, 8), 10)
    with pytest.raises(DpbenchError, match="are filled at random"):
        try_model(lambda: HalfFrozen(False), (1, 8, 8), 10)


def test_a_file_that_changes_after_the_plan_is_refused(tmp_path: Path) -> None:
    spec = written(tmp_path)
    source = dataset_source(spec)
    planned = model_builder(spec, source)
    planned()
    torch.save({"1.weight": torch.zeros(8, 64)}, tmp_path / "start.pt")
    with pytest.raises(DpbenchError, match="another file than when the run was planned"):
        planned()


def test_a_run_whose_file_goes_while_it_trains_is_kept(tmp_path: Path) -> None:
    spec = written(tmp_path)
    (run,) = resolve(spec, [0])
    (tmp_path / "start.pt").unlink()
    assert context(run)["weights"]["sha256"] == run.resolved["model"]["weights"]["sha256"]


def test_a_relative_path_is_that_of_the_specs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    (spec,) = load_specs([Path("spec.yaml")])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resolve(spec, [0])


WARM = """
kind: run
name: warm
dataset: digits
model: {name: mlp, parameters: {hidden: [8]}}
mechanism: MECHANISM
budget: BUDGET
training: {batch_size: 64, steps: 3, learning_rate: 0.1}
seeds: 1
rows:
  - {label: "first, of two"}
  - {label: second, training: {learning_rate: 0.2}}
"""
OPTIONS = ("--device", "cpu")


def warmed(folder: Path, *options: str, mechanism: str = "non_private", budget: str = "none") -> int:
    """The status of training the first row of the spec above with `--weights-to`."""
    text = WARM.replace("MECHANISM", mechanism).replace("BUDGET", budget)
    (folder / "warm.yaml").write_text(
        text if budget == "none" else text.replace("rate: 0.1", "rate: 0.1, clip_norm: 1")
    )
    place = ("--out", str(folder / "out"), "--weights-to", str(folder / "kept"))
    with pytest.raises(SystemExit) as status:
        main(["run", str(folder / "warm.yaml"), *place, *OPTIONS, *options])
    return int(str(status.value.code))


def test_a_spec_starts_from_the_last_weights_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They give the loss that its record states, whatever the seed."""
    assert warmed(tmp_path, "--only", "first*") == 0
    (file,) = (tmp_path / "kept").iterdir()
    assert file.name == "warm-first-of-two-seed0.pt"
    assert f"Weights: {file}" in capsys.readouterr().out
    written(tmp_path)
    (tmp_path / "start.pt").write_bytes(file.read_bytes())
    (spec,) = load_specs([tmp_path / "spec.yaml"])
    theta_P = initial_parameters(model_builder(spec, dataset_source(spec)), 5)
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "records").glob("*.json"))
    data = dataset_source(spec).load()
    loss, _ = evaluate(network(built(spec)), theta_P[None], data.test_inputs, data.test_targets, 500)
    assert loss.item() == pytest.approx(record["result"]["test_loss"], rel=1e-6)  # float32, another order of sums
    assert not torch.equal(theta_P, initial_parameters(lambda: mlp.model((1, 8, 8), 10, hidden=(8,)), 0))


def test_weights_that_cannot_be_kept_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = {"mechanism": "noisy_sgd", "budget": "{noise_multiplier: 1, delta: 1e-4}"}
    assert warmed(tmp_path, **private) == 2
    assert "--weights-to: warm [first, of two] seed 0 is private, and no weights of such a run are kept" in (
        capsys.readouterr().err
    )
    assert warmed(tmp_path, "--smoke") == 0
    assert not (tmp_path / "kept").exists()
    assert warmed(tmp_path) == 0
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert warmed(tmp_path, "--only", "second") == 2
    assert "warm [second] seed 0 has a record, so it is not trained; add --force" in capsys.readouterr().err


def test_absent_weights_are_skipped_where_the_spec_says_what_makes_them(tmp_path: Path) -> None:
    spec = written(tmp_path, ', made_by: "dpbench run warm.yaml"')
    here = resolve(spec, [0])[0].key
    (tmp_path / "start.pt").unlink()
    (run,) = make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices()).runs
    assert (run.action, run.key != here) == ("skip", True)
    assert run.reason == "the weights start.pt are not there; make them: dpbench run warm.yaml"
    spec = written(tmp_path)
    assert resolve(spec, [0])[0].key == here  # what makes them is in no key
    (tmp_path / "start.pt").unlink()
    with pytest.raises(ProblemsError, match="there is no such file beside the spec"):
        load_specs([tmp_path / "spec.yaml"])
