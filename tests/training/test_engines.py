"""Internal: time and memory of one sum, which `dpbench engines` prints.

`dpbench engines` and `dpbench list`: what engines cost and refuse, and what there is to name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from dpbench.catalog import catalog
from dpbench.cli import cli
from dpbench.clipping._measure import cost
from dpbench.errors import DpbenchError
from dpbench.spec.loading import load_specs
from dpbench.training.engines import EngineCost, engine_names, measure

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: {name}
dataset: {dataset}
model: {model}
mechanism: noisy_sgd
budget: {{noise_multiplier: 1.0, delta: 1e-5}}
training: {{batch_size: 64, steps: 2, learning_rate: 0.1, clip_norm: 1.0}}
"""


def write(folder: Path, name: str = "one", dataset: str = "digits", model: str = "mlp") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(SPEC.format(name=name, dataset=dataset, model=model))
    return file


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


def test_every_engine_is_measured_once_per_model(tmp_path: Path) -> None:
    """Two specs of one model are measured together; jl with each number of projections."""
    files = [write(tmp_path), write(tmp_path, "two"), write(tmp_path, "three", model="logistic")]
    found = list(measure(load_specs(files), places=5, projections=(2,), calls=1))
    names = engine_names((2,))
    assert set(names) == {"plain", "jl 2", *(set(catalog("clipping")) - {"jl"})}
    assert [(one.model, one.engine) for one in found] == [
        (model, name) for model in ("mlp", "logistic") for name in names
    ]
    for one in found:
        assert one.refusal is None, one
        assert one.seconds is not None
        assert one.peak_bytes is not None
        assert one.seconds > 0
        assert one.inputs == "data"
        assert one.places == one.chunk == 5
    assert {one.parameters for one in found if one.model == "mlp"} == {4810}


def test_the_gradients_of_a_chunk_are_what_vmap_holds(tmp_path: Path) -> None:
    """vmap holds one gradient per place, 4 bytes each; ghost never does; a smaller chunk needs less."""
    (spec,) = load_specs([write(tmp_path, model="{name: mlp, parameters: {hidden: [512]}}")])

    def peak(engine: str, chunk: int) -> int:
        (one,) = measure([spec], places=32, engines=[engine], chunk=chunk, calls=1)
        assert one.peak_bytes is not None
        return one.peak_bytes

    per_place = 4 * (64 * 512 + 512 + 512 * 10 + 10)
    assert peak("vmap", 32) >= 32 * per_place
    assert peak("vmap", 4) < 16 * per_place
    assert peak("ghost", 32) < 16 * per_place


def test_a_refusal_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that cannot take a layer says which; the others are measured."""
    (tmp_path / "odd_model.py").write_text(
        "import torch\n"
        "class Odd(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.ones(64, 10))\n"
        "    def forward(self, x):\n"
        "        return torch.cumsum(x.flatten(1) @ self.weight.cumsum(0), 1)\n"
        "def model(input_shape, classes):\n"
        "    return Odd()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    specs = load_specs([write(tmp_path, model="'odd_model:model'")], allow_code=True)
    found = list(measure(specs, places=3, projections=(), calls=1))
    refused = {one.engine: one.refusal for one in found if one.refusal}
    assert set(refused) == {"ghost"}
    assert "cumsum" in str(refused["ghost"])
    assert {one.engine for one in found if one.seconds is not None} == {"plain", "loop", "vmap"}


def test_without_the_data_the_inputs_are_zeros_and_it_says_so(tmp_path: Path) -> None:
    found = invoke("engines", str(write(tmp_path, dataset="mnist", model="logistic")), "--data", str(tmp_path / "none"),
                   "--engine", "vmap", "--batch", "2", "--calls", "1")  # fmt: skip
    assert found.return_value == 0, found.output
    told = " ".join(found.output.split())
    assert "inputs of zeros (the data are absent)" in told
    assert "7,850 parameters, one sum of 2 examples" in told


def test_json_has_a_line_per_measurement(tmp_path: Path) -> None:
    found = invoke("engines", str(write(tmp_path)), "--engine", "vmap", "--engine", "plain", "--calls", "1", "--json")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["engine"] for line in lines] == ["vmap", "plain"]
    assert set(lines[0]) == set(EngineCost.__dataclass_fields__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "ghots"], "engine 'ghots': expected one of plain, ghost, loop, vmap, jl 1, jl 5, jl 30"),
        (["--projections", "0"], "--projections 0: expected whole numbers, 1 or more, with commas between"),
        (["--projections", "a"], "--projections a: expected whole numbers"),
        (["--device", "gpu"], "--device gpu: expected cpu, cuda or cuda:n"),
        (["--batch", "5000", "--engine", "vmap"], "batch = 5000: larger than the 1437 examples of digits"),
        (["--only", "none*"], "--only none*: no spec has such a name or label"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    found = invoke("engines", str(write(tmp_path)), *arguments)
    assert isinstance(found.exception, DpbenchError)
    assert message in str(found.exception)


def test_cost_counts_what_is_held_at_once() -> None:
    """1 MiB made and kept while another is made: two; one after the other: one."""

    def together(*_: Any) -> Any:
        return torch.ones(2**18) + torch.ones(2**18)

    def in_turn(*_: Any) -> Any:
        torch.ones(2**18)
        return torch.ones(2**18)

    nothing: Any = torch.zeros(1)
    assert 3 * 2**20 <= cost(together, nothing, nothing, nothing, nothing, 1, calls=1).peak_bytes < 4 * 2**20
    assert 2**20 <= cost(in_turn, nothing, nothing, nothing, nothing, 1, calls=1).peak_bytes < 2 * 2**20


def test_list_names_every_member_with_its_parameters() -> None:
    lines = [json.loads(line) for line in invoke("list", "--json").stdout.splitlines()]
    for kind in ("mechanisms", "models", "datasets", "clipping", "accountants", "checks"):
        assert {line["name"] for line in lines if line["kind"] == kind} == set(catalog(kind))
    assert all(line["about"] and not line["about"].startswith("cannot be loaded") for line in lines)
    (mlp,) = [line for line in lines if (line["kind"], line["name"]) == ("models", "mlp")]
    assert mlp["parameters"]["hidden"] == {"expected": "a list of whole numbers", "default": "[64]"}
    shown = invoke("list", "models").stdout
    assert "hidden: a list of whole numbers (default [64])" in shown
    assert "noisy_sgd" not in shown


def test_list_of_an_unknown_kind_is_one_sentence() -> None:
    assert "did you mean 'mechanisms'?" in str(invoke("list", "mechanism").exception)
