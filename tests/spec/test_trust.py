"""What a file names is imported only where the user allows it: in every verb, wherever in a file the name stands."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dpbench
from dpbench.catalog import Entry
from dpbench.cli import cli
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.job import write_reports
from dpbench.plan.planning import Choices, make_plan
from dpbench.privacy.accounting import load_accountant
from dpbench.spec.loading import load_specs
from dpbench.spec.trust import trust
from dpbench.store.records import Store

SPEC: dict[str, Any] = {
    "kind": "run",
    "name": "one",
    "dataset": "digits",
    "model": "logistic",
    "mechanism": "noisy_sgd",
    "budget": {"noise_multiplier": 1.5, "delta": 1e-4},
    "training": {"batch_size": 256, "steps": 2, "learning_rate": 0.5, "clip_norm": 1.0},
}
OWN = "trap_{}:made"  # a module that leaves a file behind when it is imported
PLACES: dict[str, dict[str, Any]] = {
    "mechanism": {"mechanism": OWN},
    "mechanism with parameters": {"mechanism": {"name": OWN, "parameters": {"x": 1}}},
    "stage": {"mechanism": {"name": "pipeline", "parameters": {"update": OWN}}},
    "stage with parameters": {"mechanism": {"name": "pipeline", "parameters": {"clip": {"name": OWN}}}},
    "engine": {"mechanism": {"name": "noisy_sgd", "parameters": {"clipping": OWN}}},
    "engine of a mechanism without stages": {"mechanism": {"name": "dpis", "parameters": {"clipping": OWN}}},
    "model": {"model": OWN},
    "dataset": {"dataset": OWN},
    "dataset of a dataset": {"dataset": {"name": "scattering", "parameters": {"of": OWN}}},
    "accountants": {"accountants": ["rdp", OWN]},
    "calibration": {"budget": {"epsilon": 3, "delta": 1e-4, "calibrate_with": OWN}},
    "grid": {"grid": {"mechanism": ["noisy_sgd", OWN]}},
    "grid of a stage": {"mechanism": "pipeline", "grid": {"mechanism.parameters.update": ["sgd", OWN]}},
    "zip": {"zip": {"model": ["logistic", OWN]}},
    "row": {"rows": [{"label": "a"}, {"label": "b", "mechanism": OWN}]},
    "misspelt key": {"mechanism": None, "mechansim": OWN},
}
CLAIM = {"id": "c", "place": "here", "kind": "formula", "verdict": "holds", "because": "so", "text": "x"}
CLAIMS: dict[str, dict[str, Any]] = {
    "judge": {"by": OWN},
    "judge's parameter": {"by": "limit:gdp_in_the_tail", "parameters": {"accountant": OWN}},
    "accountant": {"kind": "number", "printed": 1, "quantity": "mu", "accountant": OWN,
                   "events": [{"event": "gaussian", "noise_multiplier": 1.0}]},
    "module without a name": {"by": OWN.partition(":")[0]},
    "two colons": {"by": f"{OWN}:x"},
}  # fmt: skip


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an object whose module writes `sprung` when it is imported."""
    word = f"{tmp_path.name}".replace("-", "_")
    (tmp_path / f"trap_{word}.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\ndef made(**_):\n    raise ValueError\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DPBENCH_CONFIG", raising=False)
    return word


def filled(value: Any, word: str) -> Any:
    return json.loads(json.dumps(value).replace("trap_{}", f"trap_{word}"))


def write(folder: Path, changes: dict[str, Any], word: str) -> Path:
    value = {key: one for key, one in {**SPEC, **changes}.items() if one is not None}
    path = folder / "spec.yaml"
    path.write_text(json.dumps(filled(value, word), indent=1))  # JSON is YAML
    return path


@pytest.mark.parametrize("place", PLACES)
def test_code_in_a_spec_is_refused_with_its_line_before_it_is_imported(place: str, tmp_path: Path, trap: str) -> None:
    path = write(tmp_path, PLACES[place], trap)
    with pytest.raises(ProblemsError) as caught:
        load_specs([path])
    (problem,) = [one for one in caught.value.problems if "is code" in one.message]
    assert f"trap_{trap}:made" in path.read_text().splitlines()[problem.line - 1]
    assert "--allow-code" in problem.hint
    assert f"allow_code: [trap_{trap}]" in problem.hint
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("place", PLACES)
def test_it_is_imported_where_it_is_allowed(place: str, tmp_path: Path, trap: str) -> None:
    """The trap has power: every place of the table leads to the import of what it names."""
    path = write(tmp_path, PLACES[place], trap)
    with contextlib.suppress(DpbenchError):
        made = make_plan(load_specs([path], allow_code=True), Store(tmp_path / "out"), Choices(device="cpu"))
        for name in made.runs[0].spec.accountants:
            load_accountant(name)
    assert (tmp_path / "sprung").exists()
    sys.modules.pop(f"trap_{trap}", None)


def test_the_users_configuration_allows_modules_and_those_below(tmp_path: Path, trap: str) -> None:
    path, config = write(tmp_path, PLACES["mechanism"], trap), tmp_path / "config" / "dpbench" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("allow_code: [somebody]\n")
    with pytest.raises(ProblemsError, match="is code"):
        load_specs([path])
    config.write_text(f"allow_code: [somebody, trap_{trap}]\n")
    with pytest.raises(ProblemsError, match="cannot be built"):
        load_specs([path])
    assert (tmp_path / "sprung").exists()
    sys.modules.pop(f"trap_{trap}", None)


@pytest.mark.parametrize(
    "text", ["allow_code: trap\n", "allow_code: [1]\n", "alow_code: [x]\n", "{", "[]", "allow_code: [x]\nmore: 1\n"]
)
def test_a_broken_configuration_is_refused_with_its_place(
    text: str, tmp_path: Path, trap: str, monkeypatch: Any
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(text)
    monkeypatch.setenv("DPBENCH_CONFIG", str(config))
    with pytest.raises(ProblemsError, match=r"mine\.yaml"):
        load_specs([write(tmp_path, {}, trap)])
    monkeypatch.setenv("DPBENCH_CONFIG", str(tmp_path / "absent.yaml"))
    with pytest.raises(ProblemsError, match=r"absent\.yaml"):
        load_specs([write(tmp_path, {}, trap)])


@pytest.mark.parametrize("claim", CLAIMS)
def test_code_in_a_claim_is_refused_before_it_is_imported(claim: str, tmp_path: Path, trap: str) -> None:
    path = tmp_path / "claims.yaml"
    value = {"kind": "claims", "paper": "bu2020", "claims": [{**CLAIM, **filled(CLAIMS[claim], trap)}]}
    path.write_text(json.dumps(value, indent=1))
    found = dpbench.verify([path])
    told = [problem.message for problem in found.problems] + [verdict.reason for verdict in found.verdicts]
    assert found.exit_status
    assert any("is code" in one or "expected file:name" in one for one in told)
    assert not (tmp_path / "sprung").exists()


def test_every_verb_that_reads_files_refuses_code_and_imports_nothing(
    tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, PLACES["mechanism"], trap)
    value = {"kind": "claims", "paper": "mine", "claims": [{**CLAIM, **filled(CLAIMS["judge"], trap)}]}
    (tmp_path / "claims.yaml").write_text(json.dumps(value))
    verbs = [[verb, "spec.yaml"] for verb in ("run", "plan", "check", "bench")]
    for verb in [*verbs, ["run", "spec.yaml", "--download"], ["verify", "claims.yaml"]]:
        found = CliRunner().invoke(cli, verb, standalone_mode=False)
        assert "is code" in f"{found.exception} {found.output}", verb
        assert isinstance(found.exception, ProblemsError) or found.return_value == 2
        assert not (tmp_path / "sprung").exists()


def test_a_record_names_no_code_that_a_report_loads(tmp_path: Path, trap: str) -> None:
    """Neither an accountant in its context, nor a module among its sources, whose package would be imported."""
    out = tmp_path / "out"
    dpbench.run([write(tmp_path, {}, trap)], out=out, choices=Choices(device="cpu", seeds=1))
    (path,) = (out / "records").glob("*.json")
    package = tmp_path / f"trap_{trap}_package"
    package.mkdir()
    (tmp_path / f"trap_{trap}.py").rename(package / "__init__.py")
    (package / "inner.py").write_text("")
    data = json.loads(path.read_text())
    data["context"]["accountants"] = [f"{package.name}:made"]
    data["sources"][f"{package.name}.inner"] = "0" * 64
    path.write_text(json.dumps(data))
    write_reports(Store(out))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "target", ["os:system", "builtins:exec", "os:path", "subprocess:run.__call__", "functools:partial(x"]
)
def test_what_is_no_class_or_function_in_python_is_not_called(target: str) -> None:
    with pytest.raises(DpbenchError, match=r"expected a class or a function in Python|cannot load"):
        Entry("models", target, target, "spec").load()


def test_a_configuration_that_cannot_be_read_is_one_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system's refusal is made here."""

    def refuse(self: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setenv("DPBENCH_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ProblemsError, match="cannot be read: Permission denied"):
        trust()
