"""Internal: memory of one sum, and Opacus's, which `dpbench bench` prints.

`dpbench bench` and `dpbench list`: what engines cost and refuse, and what there is to name.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dpbench.catalog import build as build_rule
from dpbench.catalog import catalog, find
from dpbench.cli import cli
from dpbench.clipping import loop
from dpbench.clipping._measure import peak_bytes
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import batch
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import initial_parameters, network
from dpbench.store.provenance import environment
from dpbench.store.speed import SumLine, commit_of, read_speed
from dpbench.training._opacus import WAYS, opacus
from dpbench.training._operators import Operators
from dpbench.training._torch_step import torch_step
from dpbench.training.bench import engine_names, measure

pytestmark = pytest.mark.usefixtures("one_thread")

SPECS = Path(__file__).parents[2] / "specs"
SPEC = """
kind: run
name: {name}
dataset: {dataset}
model: {model}
mechanism: noisy_sgd
budget: {{noise_multiplier: 1.0, delta: 1e-5}}
training: {{batch_size: 64, steps: 2, learning_rate: 0.1, clip_norm: 1.0}}
seeds: 1
"""


def write(folder: Path, name: str = "one", dataset: str = "digits", model: str = "mlp") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(SPEC.format(name=name, dataset=dataset, model=model))
    return file


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("table", "model", "places"), [("bu2020/table1", "tfp_cnn", 256), ("dpis2022/table3_cifar10", "papernot_cnn", 64)]
)
def test_ghost_keeps_little_more_than_the_plain_pass(table: str, model: str, places: int) -> None:
    """At most 1.3 times its memory; nothing is kept of one call while the next one works."""
    of_model = next(spec for spec in load_specs([SPECS / f"{table}.yaml"]) if spec.model.name == model)
    plain, of_ghost = measure([of_model], places=places, engines=("plain", "ghost"), calls=1, data=Path("nowhere"))
    assert plain.peak_bytes is not None
    assert of_ghost.peak_bytes is not None
    assert of_ghost.peak_bytes <= 1.3 * plain.peak_bytes


def test_every_engine_is_measured_once_per_model(tmp_path: Path) -> None:
    """Two specs of one model are measured together; jl with each number of projections."""
    files = [write(tmp_path), write(tmp_path, "two"), write(tmp_path, "three", model="logistic")]
    names = [name for name in engine_names((2,)) if "compiled" not in name]  # which takes a quarter of a minute each
    assert {"torch", "plain", "jl 2", *catalog("clipping")} == {*names} - {*WAYS}
    assert ({*WAYS} <= {*names}) == (importlib.util.find_spec("opacus") is not None)
    found = list(measure(load_specs(files), places=5, projections=(2,), engines=names, calls=3))
    assert [(one.model, one.engine) for one in found] == [
        (model, name) for model in ("mlp", "logistic") for name in names
    ]
    for one in found:
        assert one.refusal is None, one
        assert one.seconds is not None
        assert one.peak_bytes is not None
        assert one.fastest is not None
        assert one.slowest is not None
        assert 0 < one.fastest <= one.seconds <= one.slowest
        assert one.of_plain is not None
        assert (one.of_plain == 1.0) == (one.engine == "plain")
        assert one.of_torch is not None
        assert (one.of_torch == 1.0) == (one.engine == "torch")
        assert one.commit == commit_of(environment())
        shares = [share for _, share in one.operators]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1
        assert one.of_plain_compiled is None
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
    found = list(measure(specs, places=3, engines=("plain", "ghost", "loop", "vmap"), calls=1))
    refused = {one.engine: one.refusal for one in found if one.refusal}
    assert set(refused) == {"ghost"}
    assert "cumsum" in str(refused["ghost"])
    assert {one.engine for one in found if one.seconds is not None} == {"plain", "loop", "vmap"}


def test_plain_and_vmap_by_torch_s_compiler(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    names = ("plain", "plain compiled", "vmap compiled")
    found = list(measure(load_specs([write(tmp_path)]), places=8, chunk=4, engines=names, calls=1))
    assert [(one.engine, one.refusal, one.chunk) for one in found] == [
        ("plain", None, 4), ("plain compiled", None, 8), ("vmap compiled", None, 4)
    ]  # fmt: skip
    assert all(one.of_plain and one.of_plain_compiled for one in found)
    named = [[name for name, _ in one.operators] for one in found]
    (alone,) = measure(load_specs([write(tmp_path)]), places=8, chunk=4, engines=names[2:], calls=1)
    named.append([name for name, _ in alone.operators])
    assert all(of and not any("Compiled" in name for name in of) for of in named), "operators, not code"


MODELS: dict[str, tuple[tuple[int, ...], int]] = {
    "tfp_cnn": ((1, 28, 28), 10),
    "papernot_cnn": ((3, 32, 32), 10),
    "imdb_lstm": ((12,), 2),
}


@pytest.mark.parametrize("model", MODELS)
def test_torch_s_own_step_has_the_gradients_of_the_plain_pass(model: str) -> None:
    """Of the models of the targets; a sum of three examples in float32."""
    shape, classes = MODELS[model]
    build = partial(find("models", model).load(), shape, classes)
    net, theta_RP = network(build()), initial_parameters(build, 3)[None]
    draw = torch.Generator().manual_seed(4)
    inputs = torch.randint(50, (1, 3, *shape), generator=draw).float()
    examples = Examples(inputs, torch.tensor([[1, 0, 1]]), torch.ones(1, 3, dtype=torch.bool))
    plain: Any = build_rule("rules", "none")
    expected = net.split(plain.summed(None, net, theta_RP, examples, torch.ones(1), 3).sum_RP)
    call = torch_step(net, theta_RP, examples)
    for _ in range(2):  # a second call begins anew
        found = {name: value.grad for name, value in call().named_parameters() if value.grad is not None}
        assert set(found) == set(expected)
        for name in found:
            assert torch.allclose(found[name], expected[name][0], rtol=1e-4, atol=1e-5), name


def test_what_torch_alone_cannot_train_is_a_sentence() -> None:
    class Odd(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).detach()

    net = network(Odd(6, 4))
    examples = batch(torch.Generator().manual_seed(2), 1, 3, filled=1.0)
    call = torch_step(net, torch.zeros(1, net.size), replace(examples, inputs=examples.inputs.float()))
    with pytest.raises(DpbenchError, match="the module does not run by torch alone"):
        call()


def test_the_operators_that_take_the_time_are_named() -> None:
    """An operator's time is without that of those which it calls: `matmul` calls `mm`, which does the work."""
    seen, large = Operators(torch.device("cpu")), torch.ones(700, 700)
    seen.begin()
    torch.matmul(large, large)
    (first, share), *others = seen.end()
    assert first == "aten::mm"
    assert share > 0.5
    assert share + sum(part for _, part in others) == pytest.approx(1, abs=0.01)
    assert "aten::matmul" in dict(others)


@pytest.mark.parametrize("way", WAYS)
def test_opacus_computes_the_sum_of_the_loop(way: str) -> None:
    """So that the times compare the same work. Opacus adds 1e-6 to norms: a relative 1e-5 for those above 0.1."""
    pytest.importorskip("opacus")
    net = network(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)))
    theta_RP = torch.randn(1, net.size, generator=torch.Generator().manual_seed(1))
    examples = batch(torch.Generator().manual_seed(2), 1, 12, filled=1.0)
    examples = replace(examples, inputs=examples.inputs.float())
    expected = loop.clipping(net, theta_RP, examples, torch.tensor([0.3]).double(), 12)
    assert float(expected.norm_RB.max()) > 0.3, "some are clipped"
    call = opacus(way, net, theta_RP, examples, 0.3)
    for _ in range(2):
        found_P = torch.cat([value.flatten() for value in call()])
        assert torch.allclose(found_P, expected.sum_RP[0], rtol=0, atol=1e-4 * float(expected.sum_RP.abs().max()))


def test_without_the_data_the_inputs_are_zeros_and_it_says_so(tmp_path: Path) -> None:
    found = invoke("bench", str(write(tmp_path, dataset="mnist", model="logistic")), "--data", str(tmp_path / "none"),
                   "--engine", "vmap", "--batch", "2", "--calls", "1", "--out", str(tmp_path))  # fmt: skip
    assert found.return_value == 0, found.output
    told = " ".join(found.output.split())
    assert "inputs of zeros (the data are absent)" in told
    assert "7,850 parameters, one sum of 2 examples" in told


def test_torch_s_profiler_says_nothing(tmp_path: Path) -> None:
    """Of memory from before it began, it warned on standard error."""
    command = ["bench", str(write(tmp_path)), "--engine", "torch", "--calls", "1", "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "dpbench", *command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_json_has_a_line_per_measurement_and_all_are_kept_and_shown(tmp_path: Path) -> None:
    """A way that is measured again takes the place of its earlier line; the others stay."""

    def measured(*engines: str) -> list[dict[str, Any]]:
        named = [word for engine in engines for word in ("--engine", engine)]
        found = invoke("bench", str(write(tmp_path)), *named, "--calls", "1", "--json", "--out", str(tmp_path / "out"))
        return [json.loads(line) for line in found.stdout.splitlines()]

    lines = measured("vmap", "plain")
    assert [line["engine"] for line in lines] == ["vmap", "plain"]
    assert set(lines[0]) == set(SumLine.__dataclass_fields__)
    (again,) = measured("vmap")
    kept = read_speed(tmp_path / "out")
    assert kept is not None
    assert [(line.engine, line.seconds) for line in kept.sums] == [
        ("plain", lines[1]["seconds"]),
        ("vmap", again["seconds"]),
    ]
    assert invoke("report", "--out", str(tmp_path / "out")).return_value == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "mlp on digits: 4,810 parameters, one sum of 32 examples" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--engine", "ghots"],
            "engine 'ghots': expected one of torch, plain, plain compiled, ghost, loop",
        ),
        (["--projections", "0"], "--projections 0: expected whole numbers, 1 or more, with commas between"),
        (["--projections", "a"], "--projections a: expected whole numbers"),
        (["--device", "gpu"], "--device gpu: expected cpu, cuda or cuda:n"),
        (["--batch", "5000", "--engine", "vmap"], "batch = 5000: larger than the 1437 examples of digits"),
        (["--only", "none*"], "--only none*: no spec has such a name or label"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    found = invoke("bench", str(write(tmp_path)), *arguments)
    assert isinstance(found.exception, DpbenchError)
    assert message in str(found.exception)


def test_the_peak_counts_what_is_held_at_once() -> None:
    """1 MiB made and kept while another is made: two; one after the other: one."""
    cpu = torch.device("cpu")
    together = peak_bytes(lambda: torch.ones(2**18) + torch.ones(2**18), cpu)
    in_turn = peak_bytes(lambda: (torch.ones(2**18), None)[1] or torch.ones(2**18), cpu)
    assert 3 * 2**20 <= together < 4 * 2**20
    assert 2**20 <= in_turn < 3 * 2**20


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
