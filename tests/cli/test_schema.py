"""The JSON Schema for editors: takes every valid file, refuses the obvious mistakes, knows the catalog."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field

from dpbench import catalog as catalog_module
from dpbench.catalog import Entry, catalog
from dpbench.cli import schemas as schema_module
from dpbench.cli.schemas import json_schema
from dpbench.spec import names as spec_catalog
from dpbench.spec.keys import RUN, SECTIONS
from dpbench.spec.loading import load_specs
from dpbench.spec.yaml_loader import parse, plain, read

FILES = sorted((Path(__file__).parents[2] / "specs").rglob("*.yaml"))
SPECS = [path for path in FILES if plain(read(path).root)["kind"] == "run"]
BASE = """\
kind: run
name: base
source: somewhere
dataset: digits
model: {name: mlp, parameters: {hidden: [64], activation: tanh}}
mechanism: noisy_sgd
budget: {epsilon: 3, delta: 1e-4}
training: {batch_size: 128, epochs: 30, learning_rate: 1.0, clip_norm: 1.0}
"""


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema)


def data(text: str) -> Any:
    document = parse(text, "f.yaml")
    assert document.root is not None
    assert document.problems == ()
    return plain(document.root)


def changed(*changes: tuple[str, str]) -> str:
    text = BASE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


def test_it_is_a_json_schema_and_plain_json(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    for example in schema["examples"]:
        assert list(Draft202012Validator(schema).iter_errors(example)) == []


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    references = set()

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            references.update(value for key, value in part.items() if key == "$ref")
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            collect(inner)

    collect(schema)
    assert references
    assert {reference.removeprefix("#/$defs/") for reference in references} <= set(schema["$defs"])


def test_every_key_is_described(schema: dict[str, Any]) -> None:
    assert set(schema["properties"]) == set(RUN)
    for key in RUN:
        found = schema["properties"][key]
        assert (schema["$defs"][key] if "$ref" in found else found)["description"]
    for section, slots in SECTIONS.items():
        shape = schema["$defs"][section]
        properties = (shape if "properties" in shape else shape["anyOf"][1])["properties"]
        assert set(properties) == set(slots)
        assert all(value["description"] for value in properties.values())


def test_it_names_the_catalog_and_its_parameters(schema: dict[str, Any]) -> None:
    text = json.dumps(schema)
    for kind in ("datasets", "models", "mechanisms", "accountants"):
        assert all(f'"{name}"' in text for name in catalog(kind))
    rules = schema["$defs"]["model"]["anyOf"][1]["allOf"]
    (mlp,) = [rule["then"] for rule in rules if rule["if"]["properties"]["name"]["const"] == "mlp"]
    parameters = mlp["properties"]["parameters"]
    words, tempered = parameters["properties"]["activation"]["anyOf"]
    assert words["enum"] == ["relu", "tanh"]
    assert (tempered["type"], tempered["minItems"], tempered["maxItems"]) == ("array", 3, 3)
    assert parameters["properties"]["hidden"]["default"] == [64]
    assert parameters["additionalProperties"] is False


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_shipped_specs_are_valid(path: Path, validator: Draft202012Validator) -> None:
    root = read(path).root
    assert root is not None
    assert [error.message for error in validator.iter_errors(plain(root))] == []


VALID = [
    "",
    "seeds: 3\naccountants: [rdp, 'mine.accounting:exact']\nneeds: [gpu]\ntuned: by hand\nreduced: one epoch\n",
    "randomness: secure\n",
    "seeds: [7, 1]\npublished: {test_accuracy_percent: 95.0, averaged_over: 10, mu: 0.2, epsilon: {moments: 1.19}}\n",
    "grid: {training.clip_norm: [1, 2.5], mechanism: [noisy_sgd, {name: noisy_adam, parameters: {beta1: 0.8}}]}\n",
    "zip: {model.parameters.hidden: [[1], [2, 3]], training.learning_rate: [1, 2e-3]}\n",
    "rows: [{label: 1, training: {epochs: 2}, model: {parameters: {hidden: [1]}}}, {model: logistic, seeds: 2}]\n",
    "rows: [{label: x, published: {mu: 3}}, {reduced: why, budget: {delta: 1e-5}}]\n",
    "grid: {budget.calibrate_with: [rdp, gdp_clt], budget.epsilon: [1, 2]}\n",
    "grid: {training: [{batch_size: 3, steps: 4, learning_rate: 1, clip_norm: 2}], budget: [{epsilon: 1, delta: .1}]}",
]


@pytest.mark.parametrize("add", VALID)
def test_what_loads_is_valid(tmp_path: Path, add: str, validator: Draft202012Validator) -> None:
    """The loader takes each of these files, so the schema must."""
    text = BASE
    if "budget.epsilon" in add:
        text = text.replace("epsilon: 3, ", "")
    text += add
    (tmp_path / "f.yaml").write_text(text.replace(", 'mine.accounting:exact'", ""))
    assert load_specs([tmp_path / "f.yaml"])
    assert [error.message for error in validator.iter_errors(data(text))] == []


def test_a_file_that_rows_complete_is_valid(validator: Draft202012Validator) -> None:
    rows = "rows: [{dataset: digits, mechanism: non_private, budget: none, model: logistic, training: {steps: 1}}]\n"
    assert list(validator.iter_errors(data("kind: run\nname: x\n" + rows))) == []
    assert list(validator.iter_errors(data("kind: run\nname: x\n"))) != []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("kind: run", "kind: rum"),
        ("kind: run\n", ""),
        ("name: base\n", ""),
        ("name: base", "name: my spec"),
        ("source: somewhere", "sorce: somewhere"),
        ("source: somewhere", "source: 3"),
        ("dataset: digits\n", ""),
        ("dataset: digits", "dataset: digts"),
        ("dataset: digits", "dataset: {name: digits, parameters: {n: 3}}"),
        ("name: mlp", "name: mpl"),
        ("name: mlp, ", ""),
        ("hidden: [64]", "hiden: [64]"),
        ("hidden: [64]", "hidden: 64"),
        ("hidden: [64]", "hidden: [a]"),
        ("tanh", "tahn"),
        ("parameters", "parmeters"),
        ("noisy_sgd", "noisy_sdg"),
        ("mechanism: noisy_sgd", "mechanism: [noisy_sgd]"),
        ("budget: {epsilon: 3, delta: 1e-4}", "budget: nothing"),
        ("budget: {epsilon: 3, delta: 1e-4}\n", ""),
        ("epsilon: 3", "epsilon: 3, noise_multiplier: 1"),
        ("epsilon: 3, ", ""),
        ("epsilon: 3", "epsilon: three"),
        ("epsilon: 3", "epsilon: '3'"),
        ("delta: 1e-4", "delta: 1"),
        ("delta: 1e-4", "delta: 1e-4, calibrate_with: rpd"),
        (", delta: 1e-4", ""),
        ("batch_size: 128", "batch_size: 0"),
        ("batch_size: 128", "batch_size: 1.5"),
        ("batch_size: 128", "batch_size: true"),
        ("batch_size: 128", "sampling_rate: 2"),
        ("batch_size: 128", "sampling_rate: 0.1, batch_size: 128"),
        ("batch_size: 128, ", ""),
        ("epochs: 30", "epochs: 30, steps: 1"),
        ("epochs: 30, ", ""),
        ("learning_rate: 1.0, ", ""),
        ("learning_rate", "leaning_rate"),
        ("clip_norm: 1.0", "clip_norm: 0"),
        ("kind: run", "kind: run\nseeds: 0"),
        ("kind: run", "kind: run\nseeds: [1, 1]"),
        ("kind: run", "kind: run\nseeds: [-1]"),
        ("kind: run", "kind: run\nneeds: [tpu]"),
        ("kind: run", "kind: run\nrandomness: fixed"),
        ("kind: run", "kind: run\nneeds: gpu"),
        ("kind: run", "kind: run\naccountants: [rpd]"),
        ("kind: run", "kind: run\npublished: {test_accuracy_percent: 101}"),
        ("kind: run", "kind: run\npublished: {epsilon: {rpd: 1}}"),
        ("kind: run", "kind: run\npublished: {mu: 1}\nreduced: why"),
        ("kind: run", "kind: run\ngrid: {training.epoch: [1]}"),
        ("kind: run", "kind: run\ngrid: {training.epochs: 1}"),
        ("kind: run", "kind: run\ngrid: {training.epochs: [-1]}"),
        ("kind: run", "kind: run\ngrid: {model.hidden: [[1]]}"),
        ("kind: run", "kind: run\nrows: {}"),
        ("kind: run", "kind: run\nrows: [{name: x}]"),
        ("kind: run", "kind: run\nrows: [{training: {clip_nrm: 1}}]"),
        ("kind: run", "kind: run\nrows: [{published: {mu: 1}, reduced: why}]"),
    ],
)
def test_obvious_mistakes_are_not_valid(before: str, after: str, validator: Draft202012Validator) -> None:
    assert list(validator.iter_errors(data(changed((before, after)))))


def test_own_objects_are_valid_by_their_form(validator: Draft202012Validator) -> None:
    own = "{name: 'my_package.models:net', parameters: {anything: [1, {a: b}]}}"
    model = BASE.splitlines()[4].removeprefix("model: ")
    assert list(validator.iter_errors(data(changed((model, own), ("noisy_sgd", "'mine:m'"))))) == []
    for bad in ("mine", "mine:", ":m", "my package:m", "a:b:c"):
        assert list(validator.iter_errors(data(changed(("noisy_sgd", f"'{bad}'")))))


class Schedule:
    """A type that YAML cannot hold."""


def odd_model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    depth: Annotated[int, Field(ge=1, description="number of layers")],
    scale: float = float("inf"),
    schedule: Schedule | None = None,
    **rest: Any,
) -> None: ...


def test_another_packages_entry_is_described_whatever_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("models", "odd", f"{__name__}:odd_model", "another package")
    known = {kind: dict(catalog(kind)) for kind in catalog_module.KINDS}
    known["models"]["odd"] = entry
    for module in (schema_module, spec_catalog):
        monkeypatch.setattr(module, "catalog", known.__getitem__)
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    rules = schema["$defs"]["model"]["anyOf"][1]["allOf"]
    (odd,) = [rule["then"]["properties"]["parameters"] for rule in rules if "odd" in json.dumps(rule["if"])]
    assert odd["properties"]["depth"] == {"type": "integer", "minimum": 1, "description": "number of layers"}
    assert odd["additionalProperties"] is True
    assert "a Schedule or null" in odd["properties"]["schedule"]["description"]


def test_making_the_schema_changes_nothing(schema: dict[str, Any]) -> None:
    kept = copy.deepcopy(schema)
    assert json_schema() == kept
    assert schema == kept
