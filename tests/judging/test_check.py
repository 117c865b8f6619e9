"""`dpbench check`, and what a stored verdict does to an ε: everywhere it is shown."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpbench.catalog import catalog
from dpbench.cli import cli, main
from dpbench.errors import DpbenchError
from dpbench.judging import checking
from dpbench.judging.checking import Target, check_mechanism, check_up
from dpbench.privacy.formatting import bound
from dpbench.reporting.collect import collect
from dpbench.reporting.page import render
from dpbench.reporting.rendering.exports import rows_csv, tables_latex
from dpbench.store.check_records import code_of, read_checks
from dpbench.store.shapes import Checked, RunRecord, run_record
from tests.store.record_samples import printed, run_json

pytestmark = pytest.mark.usefixtures("one_thread")

MECHANISM = """\
from dpbench.clipping import vmap
from dpbench.clipping.rules.flat import Flat
from dpbench.step.pipeline import Pipeline
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.updates.sgd import Sgd
from {helper} import Part


def made(*, times: float = 1.0) -> Pipeline:
    return Pipeline(PoissonSampler(), Flat(), Part(times), Sgd(), vmap.clipping)
"""
HELPER = """\
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Part:
    times: float

    def factor(self, step_R, rate_R):
        return torch.full_like(rate_R, self.times)

    def stretches(self, rate, steps):
        yield 1.0, steps
"""
OWN_NOISE = """\
from dataclasses import dataclass

import torch

from dpbench.clipping import vmap
from dpbench.clipping.rules.flat import Flat
from dpbench.step.clipped_sum import Examples
from dpbench.step.mechanism import Kept, Observed, Released
from dpbench.step.noise.constant import ConstantNoise
from dpbench.step.pipeline import Pipeline
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.updates.sgd import Sgd


@dataclass(frozen=True)
class Own(Pipeline):
    def release(self, net, state, hyper, inputs, targets, chunk):
        batch = self.sample(hyper.keys_RS, state.step_R, hyper.sampling_rate_R, len(targets))
        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        found = self.engine(net, state.theta_RP, examples, hyper.clip_norm_R, chunk)
        rows = []
        for place, step in enumerate(state.step_R.tolist()):
            mine = torch.Generator().manual_seed(place * 100003 + step)
            rows.append(torch.randn(net.size, generator=mine, dtype=found.sum_RP.dtype))
        scale = (hyper.noise_multiplier_R * hyper.clip_norm_R)[:, None].to(found.sum_RP.dtype)
        noisy = found.sum_RP + torch.where(scale > 0, scale * torch.stack(rows), 0.0)
        gradient = noisy / (hyper.sampling_rate_R * len(targets))[:, None].to(noisy.dtype)
        drawn = batch.mask_RB.sum(1)
        seen = Observed(drawn, found.loss_RB.sum(1), 0 * drawn, found.sum_RP.isfinite().all(1))

        def events(run):
            return (self.event(float(hyper.sampling_rate_R[run]), float(hyper.noise_multiplier_R[run])),)

        return Released(gradient, events), Kept(seen)


def own() -> Own:
    return Own(PoissonSampler(), Flat(), ConstantNoise(), Sgd(), vmap.clipping)
"""
SPEC = """\
kind: run
name: {name}
dataset: digits
model: mlp
mechanism: {{name: "{module}:made", parameters: {{times: {times}}}}}
accountants: [exact, rdp, gdp_clt]
budget: {{noise_multiplier: 1.37, delta: 1e-4}}
training: {{batch_size: 256, steps: 6, learning_rate: 0.5, clip_norm: 1.0}}
seeds: 1
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with somebody's mechanism, its helper module, and one that draws its own noise."""
    name = f"theirs_{tmp_path.name}".replace("-", "_")
    helper = f"{name}_helper"
    (tmp_path / f"{name}.py").write_text(MECHANISM.format(helper=helper))
    (tmp_path / f"{helper}.py").write_text(HELPER)
    (tmp_path / f"{name}_own.py").write_text(OWN_NOISE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / f"{name}.py"


def dpbench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), str(here)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dpbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)


FEW = ("mechanism_releases", "mechanism_replay", "noise_scale")


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the checks that are quick; what the others do is in the contracts."""

    def some(kind: str) -> Any:
        return {name: entry for name, entry in catalog(kind).items() if kind != "checks" or name in FEW}

    monkeypatch.setattr(checking, "catalog", some)


@pytest.fixture
def inside(package: Path, few_checks: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in this process, in the folder of the package: status and standard output."""
    del few_checks
    monkeypatch.chdir(package.parent)

    def called(*arguments: str) -> tuple[int, str]:
        arguments += ("--allow-code",) * (arguments[0] in ("run", "plan", "report", "check"))
        found = CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)
        return found.return_value, found.stdout

    return called


# The verb


@pytest.mark.parametrize("checks", [pytest.param("all", marks=pytest.mark.long), "few"])
def test_every_line_says_what_was_checked_and_found(
    checks: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As a program with all checks, or in this process with the quick ones."""
    if checks == "all":
        done = dpbench("check", "noisy_sgd", "--json", "--steps", "30", cwd=tmp_path)
        status, said = done.returncode, done.stdout
    else:
        status, said = request.getfixturevalue("inside")("check", "noisy_sgd", "--json", "--steps", "30")
    assert status == 0
    *lines, whole = [json.loads(line) for line in said.splitlines()]
    found = {line["check"] for line in lines}
    assert found == set(FEW) if checks == "few" else set(FEW) < found
    for line in lines:
        assert line["verdict"] == "holds"
        assert line["looked_at"]
        assert line["reason"]
        assert (line["false_alarm"] > 0) == ("p" in line["evidence"])
    assert whole["verdict"] == "holds"
    assert 0 < whole["false_alarm"] <= 1e-6
    assert not (tmp_path / "reports").exists(), "what is shipped needs no stored verdict"


def test_half_the_noise_is_refuted_and_the_verdict_kept(package: Path, inside: Any) -> None:
    name = f"{package.stem}:made"
    status, said = inside("check", name, "--set", "times=0.5", "--steps", "20", "--out", "out")
    assert status == 1
    assert "refuted" in said
    assert "one record moves it by 2 times" in " ".join(said.split())
    (kept,) = read_checks(package.parent / "out").values()
    assert (kept.verdict, kept.planned, dict(kept.parameters)) == ("refuted", 20, {"times": 0.5})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a spec"),
        (["noisy_sdg"], "did you mean 'noisy_sgd'"),
        (["absent.yaml"], "no such file"),
        (["no_such_module:made"], "cannot load"),
        (["noisy_sgd", "--set", "clipping"], "expected NAME=VALUE"),
        (["noisy_sgd", "--set", "wrong=1"], "cannot be built"),
        (["math:floor", "--set", "x=1"], "math:floor"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["check", *arguments])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert words in message
    assert "Traceback" not in message


@pytest.mark.usefixtures("few_checks")
def test_what_could_not_be_checked_has_a_line(package: Path) -> None:
    """Noise that the checks cannot observe: neither refuted nor `holds`, so its ε stays unchecked."""
    found = check_up(Target("mechanisms", f"{package.stem}_own:own", planned=10))
    by_name = {line.verdict.check: line.verdict for line in found.lines}
    assert by_name["mechanism_replay"].verdict == by_name["mechanism_releases"].verdict == "undecided"
    assert "let_out" in by_name["mechanism_replay"].reason
    assert found.verdict == "unchecked", found.reason


@pytest.mark.usefixtures("few_checks")
def test_a_check_that_raises_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpbench.judging.checks.mechanism_replay import MechanismReplay

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a mechanism of somebody else")

    monkeypatch.setattr(MechanismReplay, "__call__", broken)
    found = check_up(Target("mechanisms", "noisy_sgd", planned=10))
    assert found.verdict == "unchecked"
    assert "could not be checked: RuntimeError: a mechanism of somebody else" in found.reason


# The hash of the code


def test_the_hash_covers_helper_modules_and_parameters_and_no_comment(package: Path) -> None:
    name, helper = f"{package.stem}:made", package.parent / f"{package.stem}_helper.py"
    first = code_of(name, {"times": 0.5})
    assert not first.shipped
    assert {package.stem, helper.stem, "dpbench.step.pipeline"} <= set(first.modules)
    assert first.hash != code_of(name, {"times": 1.0}).hash
    assert code_of(name, {}).hash == code_of(name, {"times": 1.0}).hash, "a default is a parameter"
    helper.write_text("# a comment\n" + HELPER)
    assert code_of(name, {"times": 0.5}).hash == first.hash
    helper.write_text(HELPER.replace("self.times", "self.times * 1.0001"))
    assert code_of(name, {"times": 0.5}).hash != first.hash


def test_a_shipped_mechanism_with_somebody_s_engine_is_not_shipped(package: Path) -> None:
    assert code_of("noisy_sgd", {"clipping": "ghost"}).shipped
    with pytest.raises(DpbenchError):
        code_of("noisy_sgd", {"clipping": "no such engine"})
    assert not code_of("noisy_sgd", {"clipping": f"{package.stem}:made"}).shipped


# What run does, and every place that shows an ε


def test_run_checks_once_and_every_place_goes_by_the_verdict(package: Path, inside: Any) -> None:
    folder = package.parent
    for name, times in (("short", 0.5), ("whole", 1.0)):
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name, module=package.stem, times=times))
    _, before = inside("plan", "short.yaml", "whole.yaml", "--json", "--device", "cpu", "--out", "out")
    planned = [json.loads(line) for line in before.splitlines()]
    assert [one["checked"] for one in planned] == ["unchecked", "unchecked"]
    epsilon = planned[0]["epsilon"]
    assert epsilon

    status, ran = inside("run", "short.yaml", "whole.yaml", "--json", "--device", "cpu", "--out", "out")
    assert status == 1, ran
    events = [json.loads(line) for line in ran.splitlines()]
    assert [one["verdict"] for one in events if one["event"] == "checked"] == ["refuted", "holds"]
    kept = {json.loads(path.read_text())["verdict"] for path in (folder / "out" / "checks").glob("*.json")}
    assert kept == {"refuted", "holds"}
    _, again = inside("run", "short.yaml", "--json", "--force", "--device", "cpu", "--out", "out")
    assert "checked" not in [json.loads(line)["event"] for line in again.splitlines()], "the verdict was kept"

    _, after = inside("plan", "short.yaml", "whole.yaml", "--json", "--device", "cpu", "--out", "out")
    refuted, holds = [json.loads(line) for line in after.splitlines()]
    assert refuted["epsilon"] is None
    assert "withheld" in refuted["epsilon_reason"]
    assert (holds["epsilon"], holds["checked"]) == (epsilon, "holds")
    table = inside("plan", "short.yaml", "--device", "cpu", "--out", "out")[1]
    assert "withheld" in table
    assert f"{epsilon:.3f}"[:4] not in table

    rows = {
        row["context"]["name"]: row
        for section in json.loads((folder / "out" / "report.json").read_text())["sections"]
        for row in section["rows"]
    }
    assert all(line["epsilon"] is None and "withheld" in line["refused"] for line in rows["short"]["guarantees"])
    assert not any(point["epsilon"] for point in rows["short"]["curve"])
    assert any(line["epsilon"] for line in rows["whole"]["guarantees"])
    with (folder / "out" / "report.csv").open(encoding="utf-8", newline="") as file:
        exact = {row["spec"]: row["epsilon_exact"] for row in csv.DictReader(file)}
    assert exact["short"] == ""
    assert float(exact["whole"]) > 0


def rows(checked: Checked | None, **changes: Any) -> Any:
    """A report of one run of somebody's mechanism."""
    data = run_json(**changes)
    mechanism = {"name": "theirs:made", "parameters": {}}
    run = run_record({**data, "resolved": {**data["resolved"], "mechanism": mechanism}})
    return collect([replace(run, checked=checked)])


def shown(report: Any) -> dict[str, str]:
    return {"html": render(report), "csv": rows_csv(report), "latex": tables_latex(report)}


def test_an_old_record_of_somebody_s_mechanism_is_unchecked() -> None:
    report = rows(None)
    (row,) = report.rows()
    assert row.unchecked
    assert all(line.unchecked for line in row.guarantees if line.epsilon is not None)
    for name, text in shown(report).items():
        assert "unchecked" in text, name


def test_a_run_that_released_something_else_than_planned_has_a_caution() -> None:
    """`train` leaves `releases` empty where the ledger of the plan does not begin with what was released."""
    run = run_record(run_json())
    assert "differs from the planned ledger" not in render(collect([run]))
    last = replace(run.curve[-1], releases=None)
    page = render(collect([replace(run, curve=(*run.curve[:-1], last))]))
    assert "differs from the planned ledger" in page


PRINTED = {"epsilon": {"moments": printed("1.19")}, "mu": printed("0.23"), "accuracy_percent": printed("95.0")}
PRINTED |= {"averaged_over": 1}


def two_specs(checked: Checked | None) -> tuple[Any, Any, Any]:
    """A report of somebody's mechanism in two rows beside a shipped one on the same data, and the row of each."""
    accountants = ["exact", "rdp", "gdp_clt"]
    theirs = []
    for label, sigma in (("one", 1.3), ("two", 1.7)):
        settled = {"published": PRINTED, "accountants": accountants, "target_epsilon": 3.0}
        data = run_json("theirs", label, sigma=sigma, context=settled)
        mechanism = {"name": "theirs:made", "parameters": {}}
        run = run_record({**data, "resolved": {**data["resolved"], "mechanism": mechanism}})
        theirs.append(replace(run, checked=checked))
    ours = run_record(run_json("ours", sigma=1.1, context={"accountants": accountants}))
    report = collect([*theirs, ours])
    assert report.comparisons, "one figure of both"
    of_name = {row.context.name: row for row in report.rows()}
    return report, of_name["theirs"], of_name["ours"]


def pieces(html: str) -> list[str]:
    """What a reader sees as one: the cells, captions and sentences of a page, and the texts of its figures."""
    return re.split(r"</(?:td|th|tr|caption|text|desc|title|li|dd|p|summary)>", html)


def numbers_of(row: Any) -> set[str]:
    """ε and μ of a row as they may be shown: three digits and more."""
    values = [(value, line.kind) for line in row.guarantees for value in (line.epsilon, line.mu) if value is not None]
    assert len(values) > 3
    return {bound(value, kind, 3) for value, kind in values} | {bound(value, None, 4)[:5] for value, _ in values}


@pytest.mark.parametrize("checked", [None, Checked("unchecked", "nobody looked", "a" * 64, 10)])
def test_every_place_that_prints_an_unchecked_number_says_so(checked: Checked | None) -> None:
    """In the page: each cell and sentence, and never in bold. In the exports: each cell, or the cell beside it."""
    report, theirs, ours = two_specs(checked)
    numbers = numbers_of(theirs)
    html = render(report)
    said = [piece for piece in pieces(html) if any(number in piece for number in numbers)]
    assert len(said) > 6
    for piece in said:
        assert "unchecked" in piece, piece
    assert not any(number in bold for bold in re.findall(r"<b>(.*?)</b>", html) for number in numbers)
    assert any(number in bold for bold in re.findall(r"<b>(.*?)</b>", html) for number in numbers_of(ours))

    (table,) = [part for part in tables_latex(report).split(r"\begin{table}") if "theirs: test" in part]
    cells = [cell for line in table.splitlines() for cell in line.split("&")]
    shown_cells = [cell for cell in cells if any(number in cell for number in numbers)]
    assert len(shown_cells) > 3
    assert all("unchecked" in cell for cell in shown_cells)

    for row in csv.DictReader(rows_csv(report).splitlines()):
        names = [name for name in row if re.fullmatch(r"(epsilon|mu)_(exact|rdp|gdp_clt|moments)", name) and row[name]]
        assert len(names) > 3
        for name in names:
            assert ("unchecked" in row[f"{name}_kind"]) == (row["spec"] == "theirs"), name

    data = json.loads(json.dumps(report.to_json()))
    for section in data["sections"]:
        for row in section["rows"]:
            assert all(line["unchecked"] for line in row["guarantees"] if line["epsilon"]) == (
                section["name"] == "theirs"
            )
            assert (row["checked"]["verdict"] == "unchecked") == (section["name"] == "theirs")


def test_a_refuted_row_keeps_its_target_and_what_others_print() -> None:
    report, _, ours = two_specs(Checked("refuted", "half the noise", "a" * 64, 10))
    _, believed, _ = two_specs(None)
    numbers = numbers_of(believed) - numbers_of(ours)
    for name, text in shown(report).items():
        assert not [number for number in numbers if re.search(rf"(?<![\d.]){re.escape(number)}", text)], name
    text = json.dumps(report.to_json())
    assert not [line for line in believed.guarantees if line.epsilon is not None and repr(line.epsilon) in text]
    assert "Target ε" in render(report)
    targets = {row["target_epsilon"] for row in csv.DictReader(rows_csv(report).splitlines())}
    assert targets == {"3.0", ""}
    (section,) = [section for section in report.to_json()["sections"] if section["name"] == "theirs"]
    assert not any(point["epsilon"] for row in section["rows"] for point in row["curve"])


def test_a_refuted_mechanism_shows_no_epsilon_anywhere() -> None:
    holds = rows(Checked("holds", "fine", "a" * 64, 10**6))
    (good,) = holds.rows()
    numbers = {f"{line.epsilon:.4g}" for line in good.guarantees if line.epsilon is not None}
    assert numbers
    assert all("unchecked" not in re.sub(r"<dt>unchecked.*?</dd>", "", text) for text in shown(holds).values())
    report = rows(Checked("refuted", "half the noise", "a" * 64, 10))
    for name, text in shown(report).items():
        for number in numbers:
            assert number not in text, (name, number)
        assert "withheld" in text, name
    assert "half the noise" in render(report)


def test_a_shipped_mechanism_needs_no_verdict() -> None:
    run: RunRecord = run_record(run_json())
    report = collect([run])
    (row,) = report.rows()
    assert row.checked is not None
    assert row.checked.verdict == "holds"
    assert "contract tests" in row.checked.reason


@pytest.mark.usefixtures("few_checks")
def test_a_verdict_holds_for_no_longer_run_than_was_looked_at(package: Path) -> None:
    from dpbench.store.check_records import known

    name = f"{package.stem}:made"
    _, kept = check_mechanism(name, {}, 8)
    code = code_of(name, {})
    assert kept.verdict == "holds"
    assert known({kept.code: kept}, code, 8).verdict == "holds"
    longer = known({kept.code: kept}, code, 9)
    assert longer.verdict == "unchecked"
    assert "up to 8 steps" in longer.reason


def test_a_spec_s_model_is_probed_beside_its_mechanism(package: Path, inside: Any) -> None:
    """A model that mixes the records of a batch: a line of the table and status 1, before any training."""
    module = f"{package.stem}_model"
    (package.parent / f"{module}.py").write_text(
        "import torch\n\n\nclass Mixed(torch.nn.Module):\n"
        "    def __init__(self, shape, classes):\n        super().__init__()\n"
        "        self.last = torch.nn.Linear(shape[-1] ** 2, classes)\n\n"
        "    def forward(self, inputs):\n        return self.last((inputs - inputs.mean(0)).flatten(1))\n\n\n"
        "def model(input_shape, classes):\n    return Mixed(input_shape, classes)\n"
    )
    text = SPEC.format(name="mixed", module=package.stem, times=1.0).replace("model: mlp", f'model: "{module}:model"')
    (package.parent / "mixed.yaml").write_text(text)
    status, said = inside("check", "mixed.yaml", "--json", "--out", "out")
    assert status == 1
    lines = [json.loads(line) for line in said.splitlines()]
    wrong = [line for line in lines if line["kind"] == "models" and line["verdict"] == "refuted"]
    refuted = {line["looked_at"] for line in wrong if "check" in line}
    assert "the records of a batch do not affect each other" in refuted
    (mechanism,) = [line for line in lines if line["kind"] == "mechanisms" and "check" not in line]
    assert (mechanism["verdict"], mechanism["planned"]) == ("holds", 6)
