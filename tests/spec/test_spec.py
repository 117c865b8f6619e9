"""Specs: what a file means, and every mistake of every file at once, each where a person can correct it."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from dpbench.catalog import catalog
from dpbench.errors import Problem, ProblemsError
from dpbench.spec.keys import DEVIATION, HIGHEST, LOWEST
from dpbench.spec.loading import Budget, Choice, Printed, Spec, Training, load_specs
from dpbench.spec.points import MOST_RUNS
from tests.spec.spec_writer import to_yaml

SPECS = Path(__file__).parents[2] / "specs"
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
TRAINING = BASE.splitlines()[-1]


def changed(*changes: tuple[str, str], add: str = "") -> str:
    text = BASE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text + add


def specs_of(folder: Path, text: str) -> tuple[Spec, ...]:
    path = folder / "f.yaml"
    path.write_text(text, encoding="utf-8")
    return load_specs([path], allow_code=True)


def one(folder: Path, text: str) -> Spec:
    (spec,) = specs_of(folder, text)
    return spec


def problems_of(folder: Path, text: str) -> list[Problem]:
    with pytest.raises(ProblemsError) as caught:
        specs_of(folder, text)
    assert all(problem.file == str(folder / "f.yaml") and problem.line > 0 for problem in caught.value.problems)
    return list(caught.value.problems)


def problem_of(folder: Path, text: str) -> Problem:
    problems = problems_of(folder, text)
    assert len(problems) == 1, "\n".join(map(str, problems))
    return problems[0]


# --- what a file means ---


def test_a_file_becomes_one_spec(tmp_path: Path) -> None:
    spec = one(tmp_path, BASE + "seeds: 3\nrandomness: common\naccountants: [rdp]\nneeds: [gpu]\ntuned: by hand\n")
    assert spec == Spec(
        name="base",
        label="",
        file="",
        line=0,
        number=0,
        source="somewhere",
        dataset=Choice("digits"),
        model=Choice("mlp", {"hidden": (64,), "activation": "tanh"}),
        mechanism=Choice("noisy_sgd"),
        budget=Budget(3.0, None, 1e-4, None),
        training=Training(128, None, 30.0, None, 1.0, 1.0),
        seeds=(0, 1, 2),
        accountants=("rdp",),
        randomness="common",
        needs=("gpu",),
        tuned="by hand",
    )
    assert (spec.file, spec.line, spec.number) == (str(tmp_path / "f.yaml"), 2, 1)
    assert isinstance(spec.training.epochs, float)


def test_the_target_spec_expands_to_three(tmp_path: Path) -> None:
    text = changed(("epsilon: 3, ", "")) + "grid: {budget.epsilon: [1, 3, 8]}\nseeds: 5\n"
    specs = specs_of(tmp_path, text)
    assert [(spec.number, spec.label) for spec in specs] == [(1, "epsilon=1"), (2, "epsilon=3"), (3, "epsilon=8")]
    assert [spec.budget and spec.budget.epsilon for spec in specs] == [1.0, 3.0, 8.0]
    assert {spec.seeds for spec in specs} == {(0, 1, 2, 3, 4)}


def test_rows_times_zip_times_grid(tmp_path: Path) -> None:
    add = """\
grid: {training.clip_norm: [1, 2.5], mechanism: [noisy_sgd, {name: noisy_adam, parameters: {beta1: 0.8}}]}
zip: {training.epochs: [10, 20], model.parameters.hidden: [[32], [16, 8]]}
rows:
  - {label: first, training: {learning_rate: 0.5}}
  - {budget: {delta: 1e-5}, model: logistic}
"""
    text = changed(("epochs: 30, ", ""), ("{name: mlp, parameters: {hidden: [64], activation: tanh}}", "mlp")) + add
    problems = problems_of(tmp_path, text)  # the second row's model has no hidden layers
    assert {(problem.line, problem.path) for problem in problems} == {(10, "zip.model.parameters.hidden")}
    specs = specs_of(tmp_path, text.replace(", model: logistic", ""))
    assert len(specs) == 2 * 2 * 2 * 2
    assert specs[0].label == "first, epochs=10, hidden=[32], clip_norm=1, mechanism=noisy_sgd"
    last = specs[-1]
    assert last.label == "row 2, epochs=20, hidden=[16, 8], clip_norm=2.5, mechanism=noisy_adam(beta1=0.8)"
    assert last.model == Choice("mlp", {"hidden": (16, 8)})
    assert last.mechanism == Choice("noisy_adam", {"beta1": 0.8})
    assert last.training.clip_norm == 2.5
    assert last.budget == Budget(3.0, None, 1e-5)
    assert (specs[0].training.learning_rate, last.training.learning_rate) == (0.5, 1.0)
    assert {spec.line for spec in specs} == {12, 13}
    assert len({spec.label for spec in specs}) == 16


def test_a_row_that_names_a_model_starts_afresh(tmp_path: Path) -> None:
    rows = "rows: [{model: {name: logistic}}, {model: {parameters: {hidden: [8]}}}, {model: tfp_cnn, dataset: mnist}]\n"
    models = [spec.model for spec in specs_of(tmp_path, BASE + rows)]
    assert models == [Choice("logistic"), Choice("mlp", {"hidden": (8,), "activation": "tanh"}), Choice("tfp_cnn")]


def test_labels(tmp_path: Path) -> None:
    def labels(add: str) -> list[str]:
        return [spec.label for spec in specs_of(tmp_path, BASE + add)]

    assert labels("") == [""]
    assert labels("grid: {training.epochs: [5]}\n") == [""]
    assert labels("rows: [{seeds: 2}]\n") == [""]
    assert labels("rows: [{label: only}]\n") == ["only"]
    assert labels("rows: [{seeds: 2}, {seeds: 3, label: 7}]\n") == ["row 1", "7"]
    assert labels("grid: {training.epochs: [5], training.clip_norm: [1.0, 2.50]}\n") == [
        "clip_norm=1.0",
        "clip_norm=2.50",
    ]
    assert labels("zip: {training.epochs: [5, 1e1]}\n") == ["epochs=5", "epochs=1e1"]
    two = "grid: {model.parameters.hidden: [[1], [2]], mechanism: [noisy_sgd, noisy_adam]}\n"
    assert labels(two)[0] == "hidden=[1], mechanism=noisy_sgd"


def test_printed_numbers_keep_their_digits(tmp_path: Path) -> None:
    epsilon = "{gdp_clt: 3, moments: 1.19e0}"
    add = f"published: {{test_accuracy_percent: 95.0, averaged_over: 10, mu: 0.230, epsilon: {epsilon}}}\n"
    published = one(tmp_path, BASE + add).published
    assert published is not None
    assert published.accuracy_percent == Printed("95.0", 95.0, 0.05)
    assert published.mu == Printed("0.230", 0.23, 0.0005)
    assert published.epsilon == {"gdp_clt": Printed("3", 3.0, 0.5), "moments": Printed("1.19e0", 1.19, 0.005)}
    assert published.averaged_over == 10


def test_seeds(tmp_path: Path) -> None:
    assert one(tmp_path, BASE).seeds == tuple(range(10))
    assert one(tmp_path, BASE + "seeds: [7, 4294967295, 0]\n").seeds == (7, 4294967295, 0)
    for text, words in (
        ("0", "from 1"),
        ("10001", "10000"),
        ("1.0", "write 1"),
        ("[]", "not empty"),
        ("[1, 2, 1]", "twice"),
        ("[4294967296]", "4294967295"),
        ("[-1]", "from 0"),
        ("true", "found true"),
        ("many", "found 'many'"),
        ("", "found nothing"),
    ):
        assert words in str(problem_of(tmp_path, BASE + f"seeds: {text}\n"))
    many = BASE + f"grid: {{training.epochs: {list(range(1, 1002))}}}\n"
    assert "1,001 settings, with their seeds for 10,010 runs" in str(problem := problem_of(tmp_path, many))
    assert str(problem).endswith("(write seeds: 1)")
    assert len(specs_of(tmp_path, many + "seeds: 9\n")) == 1001
    assert str(problem_of(tmp_path, many + "seeds: 10\n")).endswith("(split it)")


def test_files_and_folders(tmp_path: Path) -> None:
    for name in ("b/z.yml", "b/a.yaml", "a.yaml", ".hidden/x.yaml", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(BASE.replace("name: base", f"name: {path.stem}-{path.parent.name or 'top'}"))
    (tmp_path / "claims.yaml").write_text("kind: claims\nwhatever: [1, 2]\nwhatever: 3\n")
    (tmp_path / "events.yaml").write_text("kind: events\n")
    (tmp_path / "folder.yaml").mkdir()
    found = load_specs([tmp_path, tmp_path / "b", tmp_path / "a.yaml"])
    assert [Path(spec.file).relative_to(tmp_path).as_posix() for spec in found] == ["a.yaml", "b/a.yaml", "b/z.yml"]
    assert [Path(spec.file).name for spec in load_specs([tmp_path / "notes.txt"])] == ["notes.txt"]
    assert load_specs([tmp_path / "claims.yaml"]) == ()


def test_paths_that_hold_nothing_are_mistakes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProblemsError) as caught:
        load_specs([tmp_path / "empty", tmp_path / "absent"])
    assert [problem.message for problem in caught.value.problems] == [
        "there is no such file or folder",
        "no .yaml or .yml file in this folder",
    ]


def test_the_shipped_specs_load_and_survive_a_round_trip(tmp_path: Path) -> None:
    specs = load_specs([SPECS])
    assert {"bu2020-table1", "quickstart-noisy-sgd", "quickstart-non-private"} <= {spec.name for spec in specs}
    for number, spec in enumerate(specs):
        path = tmp_path / f"{number}.yaml"
        path.write_text(to_yaml(spec), encoding="utf-8")
        assert load_specs([path]) == (spec,)


def test_loading_imports_torch_only_when_something_is_validated(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("kind: claims\n")
    code = (
        f"import sys, pathlib, dpbench.spec.loading; dpbench.spec.loading.load_specs([pathlib.Path({str(tmp_path)!r})])"
    )
    check = "; assert 'torch' not in sys.modules, 'torch'; assert 'scipy' not in sys.modules, 'scipy'"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- mistakes ---


def test_all_mistakes_of_all_files_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(changed(("digits", "digts"), ("learning_rate", "leaning_rate")))
    (tmp_path / "b.yaml").write_text("kind: run\n\tname: x\n")
    (tmp_path / "c.yaml").write_text(changed(("name: base", "name: c"), ("tanh", "tahn")) + "seeds: 1\nseeds: 2\n")
    with pytest.raises(ProblemsError) as caught:
        load_specs([tmp_path])
    assert str(caught.value) == (
        f"{tmp_path}/a.yaml:4:10: dataset: unknown dataset 'digts' (did you mean 'digits'?)\n"
        f"{tmp_path}/a.yaml:8:41: training.leaning_rate: unknown key 'leaning_rate' (did you mean 'learning_rate'?)\n"
        f"{tmp_path}/b.yaml:2:1: a tab stands where YAML wants spaces (indent with spaces)\n"
        f"{tmp_path}/c.yaml:5:59: model.parameters.activation: found 'tahn'; expected 'relu' or 'tanh',"
        " or a list of 3: a number, a number, a number"
        " (did you mean 'tanh'?)\n"
        f"{tmp_path}/c.yaml:10:1: seeds: the key 'seeds' stands twice (first in line 9) (delete one of the two)\n"
        "5 mistakes found; nothing was run."
    )


@pytest.mark.parametrize(
    ("before", "after", "path", "words"),
    [
        # ranges and types
        ("learning_rate: 1.0", "learning_rate: §0", "training.learning_rate", "found 0; expected a number above 0"),
        ("learning_rate: 1.0", "learning_rate: §.inf", "training.learning_rate", "a finite number above 0"),
        ("learning_rate: 1.0", "learning_rate: §.nan", "training.learning_rate", "found .nan"),
        ("learning_rate: 1.0", "learning_rate: §'1'", "training.learning_rate", "without quotation marks"),
        ("learning_rate: 1.0", "learning_rate: §true", "training.learning_rate", "found true"),
        ("learning_rate: 1.0", "learning_rate:§", "training.learning_rate", "found nothing"),
        ("clip_norm: 1.0", "clip_norm: §-1", "training.clip_norm", "a number above 0"),
        ("clip_norm: 1.0", "clip_norm: §.inf", "training.clip_norm", "a finite number above 0"),
        ("clip_norm: 1.0", "clip_norm: §.nan", "training.clip_norm", "a number above 0"),
        ("epochs: 30", "epochs: §0", "training.epochs", "a number above 0"),
        ("epochs: 30", "steps: §0", "training.steps", "a whole number, 1 or more"),
        ("epochs: 30", "steps: §1e3", "training.steps", "write 1000"),
        ("epochs: 30", "steps: §1_000", "training.steps", "write 1000"),
        ("batch_size: 128", "batch_size: §0", "training.batch_size", "a whole number, 1 or more"),
        ("batch_size: 128", "batch_size: §1.5", "training.batch_size", "found 1.5"),
        ("batch_size: 128", "batch_size: §1438", "training.batch_size", "at most 1437, the size of digits"),
        ("batch_size: 128", "sampling_rate: §1.1", "training.sampling_rate", "above 0, at most 1"),
        ("batch_size: 128", "sampling_rate: §0", "training.sampling_rate", "above 0, at most 1"),
        ("delta: 1e-4", "delta: §0", "budget.delta", "above 0 and below 1"),
        ("delta: 1e-4", "delta: §1", "budget.delta", "above 0 and below 1"),
        ("epsilon: 3", "epsilon: §-3", "budget.epsilon", "a number above 0"),
        ("epsilon: 3", "noise_multiplier: §0", "budget.noise_multiplier", "a number above 0"),
        ("name: base", "name: §my spec", "name", "letters, digits"),
        ("source: somewhere", "source: §2020", "source", 'write "2020"'),
        ("clip_norm: 1.0}", "clip_norm: 1.0§", "", "the mapping opened with '{' in line 8 is not closed"),
        # exactly one of two
        ("epsilon: 3", "epsilon: 3, §noise_multiplier: 2", "budget.noise_multiplier", "excludes epsilon (line 7)"),
        ("{epsilon: 3, ", "§{", "budget.epsilon", "or noise_multiplier"),
        ("epochs: 30", "epochs: 30, §steps: 3", "training.steps", "excludes epochs"),
        ("{batch_size: 128, epochs: 30, ", "§{batch_size: 128, ", "training.epochs", "or steps (a whole number"),
        ("batch_size: 128", "sampling_rate: 0.1, §batch_size: 128", "training.batch_size", "excludes sampling_rate"),
        ("{batch_size: 128, ", "§{", "training.batch_size", "or sampling_rate (a number"),
        # what is missing
        ("kind: run\n", "§", "", "expected one of run, claims, events"),
        ("kind: run", "kind: §rum", "kind", "did you mean 'run'?"),
        ("kind: run", "§knid: run", "knid", "did you mean 'kind'?"),
        ("kind: run\nname: base\n", "§kind: run\n", "name", "is missing"),
        (BASE, "§" + BASE.replace("dataset: digits\n", ""), "dataset", "is missing"),
        (BASE, "§" + BASE.replace("mechanism: noisy_sgd\n", ""), "mechanism", "is missing"),
        (BASE, "§" + BASE.replace("budget: {epsilon: 3, delta: 1e-4}\n", ""), "budget", "expected none, or a mapping"),
        ("{epsilon: 3, delta: 1e-4}", "§{epsilon: 3}", "budget.delta", "is missing"),
        (TRAINING, "training: §{steps: 9, sampling_rate: 1, clip_norm: 1}", "training.learning_rate", "is missing"),
        (TRAINING, "training: §{steps: 9, sampling_rate: 1, learning_rate: 1}", "training.clip_norm", "is missing"),
        # privacy and mechanism
        ("budget: {epsilon: 3, delta: 1e-4}", "budget: §none", "budget", "noisy_sgd is private"),
        ("noisy_sgd\nbudget: ", "non_private\nbudget: §", "budget", "write `budget: none`"),
        ("budget: {epsilon: 3, delta: 1e-4}", "budget:§", "budget", "found nothing; expected none, or a mapping"),
        # names
        ("digits", "§digit", "dataset", "did you mean 'digits'?"),
        ("mechanism: noisy_sgd", "mechanism: §zebra", "mechanism", "known: "),
        ("name: mlp", "name: §mpl", "model.name", "did you mean 'mlp'?"),
        ("{name: mlp, ", "§{", "model.name", "is missing"),
        ("noisy_sgd", "§5", "mechanism", "expected the name of a mechanism"),
        ("1e-4}", "1e-4, calibrate_with: §rpd}", "budget.calibrate_with", "did you mean 'rdp'?"),
        # parameters, against the signatures
        ("hidden: [64]", "§hiden: [64]", "model.parameters.hiden", "did you mean 'hidden'?"),
        ("hidden: [64]", "hidden: §64", "model.parameters.hidden", "a list of whole numbers (write [64])"),
        ("hidden: [64]", "hidden: [64, §x]", "model.parameters.hidden[1]", "found 'x'; expected a whole number"),
        ("tanh", "§5", "model.parameters.activation", "expected 'relu' or 'tanh'"),
        ("parameters: {", "§parmeters: {", "model.parmeters", "did you mean 'parameters'?"),
        ("name: mlp", "name: mlp, §width: 3", "model.width", "belongs under 'model.parameters'"),
        ("digits", "{name: digits, parameters: {§n: 5}}", "dataset.parameters.n", "no parameter to set"),
        ("noisy_sgd", "{name: noisy_sgd, parameters: {clipping: §no}}", "mechanism.parameters.clipping", "be built"),
        # keys
        ("training:", "§trainnig:", "trainnig", "did you mean 'training'?"),
        ("source:", "§learning_rate: 1\nsource:", "learning_rate", "it belongs under 'training'"),
        ("clip_norm: 1.0", "clip_norm: 1.0, §epsilon: 3", "training.epsilon", "it belongs under 'budget'"),
        ("source:", "§training.steps: 1\nsource:", "training.steps", "dots are for grid and zip"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_problem_at_its_place(
    tmp_path: Path, before: str, after: str, path: str, words: str
) -> None:
    """§ marks the place that the problem must name."""
    marked = changed((before, after))
    problem = problem_of(tmp_path, marked.replace("§", ""))
    upto = marked[: marked.index("§")]
    assert (problem.line, problem.column) == (upto.count("\n") + 1, len(upto) - (upto.rfind("\n") + 1) + 1)
    assert problem.path == path
    assert words in str(problem)


@pytest.mark.parametrize(
    ("add", "place", "words"),
    [
        ("needs: gpu\n", "needs", "write [gpu]"),
        ("randomness: secrue\n", "randomness", "did you mean 'secure'?"),
        ("randomness: fixed\n", "randomness", "expected 'own', 'common', or 'secure'"),
        ("needs: [tpu]\n", "needs[0]", "expected 'gpu'"),
        ("accountants: [rdp, gpd_clt]\n", "accountants[1]", "did you mean 'gdp_clt'?"),
        ("accountants: [rdp, rdp]\n", "accountants[1]", "twice"),
        ("reduced: ''\n", "reduced", "text that is not empty"),
        ("published: {test_accuracy_percent: 101}\n", "published.test_accuracy_percent", "from 0 to 100"),
        ("published: {test_accuracy_percent: '95'}\n", "published.test_accuracy_percent", "without quotation marks"),
        ("published: {mu: 0x3}\n", "published.mu", "decimal digits"),
        ("published: {epsilon: {rpd: 1}}\n", "published.epsilon.rpd", "did you mean 'rdp'?"),
        ("published: {epsilon: {rdp: x}}\n", "published.epsilon.rdp", "a number above 0"),
        (f"published: {{{DEVIATION}: 0.2, averaged_over: 1}}\n", "published.averaged_over", "how many runs"),
        (f"published: {{{DEVIATION}: 0.2}}\nmetric: rmse\n", f"published.{DEVIATION}", "the metric of this run is"),
        (
            f"published: {{{LOWEST}: 93.5, {HIGHEST}: 94, averaged_over: 1}}\n",
            "published.averaged_over",
            "how many runs",
        ),
        (f"published: {{{LOWEST}: 1, {HIGHEST}: 2}}\nmetric: rmse\n", f"published.{LOWEST}", "the metric of this run"),
        (f"published: {{{LOWEST}: 93.5}}\n", f"published.{LOWEST}", "write both"),
        (f"published: {{{LOWEST}: x, {HIGHEST}: 94}}\n", f"published.{LOWEST}", "found 'x'"),
        (f"published: {{{HIGHEST}: 93.5}}\n", f"published.{HIGHEST}", "write both"),
        (f"published: {{{LOWEST}: 93.5, {HIGHEST}: 93.4}}\n", f"published.{LOWEST}", "write both"),
        ("published: {epochs_to_reach: {most: 18}}\n", "published.epochs_to_reach.most", "such as 95"),
        ("published: {epochs_to_reach: {95: soon}}\n", "published.epochs_to_reach.95", "a number above 0"),
        ("published: {epochs_to_reach: 18}\n", "published.epochs_to_reach", "a mapping"),
        ("published: {epochs_to_reach: {101: 18}}\n", "published.epochs_to_reach.101", "such as 95"),
        ("published: {measured: {training_metric: 1}}\n", "published.measured.training_metric", "add `metrics: ["),
        (
            "published: {measured: {training_metric: much}}\nmetrics: [training_metric]\n",
            "published.measured.training_metric",
            "number",
        ),
        ("published: {measured: {sharpness: 1}}\nmetrics: [sharpness]\n", "published.measured.sharpness", "no verdict"),
        ("published: {measured: {accuracy: 1}}\n", "published.measured.accuracy", "write `test_accuracy_percent: ...`"),
        (
            "published: {measured: {training_metric: 1}}\n"
            "metrics: [training_metric, {name: training_metric, parameters: {records: 5}}]\n",
            "published.measured.training_metric",
            "have 2 of the name",
        ),
        ("published: {stated_epsilon: 0}\n", "published.stated_epsilon", "a number above 0"),
        ("published: {averaged_over: 2.0}\n", "published.averaged_over", "write 2"),
        ("published: {accuracy: 2.0}\n", "published.accuracy", "unknown key"),
        ("published: 95.0\n", "published", "a mapping of printed numbers"),
        ("published: {mu: 1}\nreduced: one epoch\n", "reduced", "cannot stand beside published"),
        ("grid: {training.epoch: [1]}\n", "grid.training.epoch", "did you mean 'training.epochs'?"),
        ("grid: {epochs: [1]}\n", "grid.epochs", "did you mean 'training.epochs'?"),
        ("grid: {model.hidden: [[1]]}\n", "grid.model.hidden", "did you mean 'model.parameters.hidden'?"),
        ("grid: {model.name: [mlp]}\n", "grid.model.name", "did you mean 'model'?"),
        ("grid: {seeds: [1]}\n", "grid.seeds", "unknown path 'seeds'"),
        ("grid: {training.epochs: 3}\n", "grid.training.epochs", "write [3]"),
        ("grid: {training.epochs: []}\n", "grid.training.epochs", "a list of values"),
        ("grid: {training.epochs: [3, 4, 3]}\n", "grid.training.epochs[2]", "twice"),
        ("grid: [1]\n", "grid", "a mapping from dotted paths to lists"),
        ("grid: {training.epochs: [1, -1]}\n", "grid.training.epochs[1]", "found -1"),
        ("grid: {model.parameters.hiden: [[1], [2]]}\n", "grid.model.parameters.hiden", "did you mean 'hidden'?"),
        ("zip: {training.epochs: [1, 2], training.clip_norm: [1]}\n", "zip", "training.clip_norm has 1"),
        ("zip: {training.epochs: [1]}\ngrid: {training.epochs: [2]}\n", "grid.training.epochs", "also set by zip"),
        ("rows: [{training: {epochs: 2}}]\ngrid: {training.epochs: [2]}\n", "grid.training.epochs", "rows[0]"),
        ("rows: {epochs: 1}\n", "rows", "a list of mappings"),
        ("rows: [{seeds: 2}, 5]\n", "rows[1]", "a mapping of what this row changes"),
        ("rows: [{training: {clip_nrm: 2}}, {}]\n", "rows[0].training.clip_nrm", "did you mean 'clip_norm'?"),
        ("rows: [{}, {training: {clip_norm: -2}}]\n", "rows[1].training.clip_norm", "found -2"),
        ("rows: [{}, {training.epochs: 2}]\n", "rows[1].training.epochs", "write `training: {epochs: ...}`"),
        ("rows: [{name: x}]\n", "rows[0].name", "name a row with `label`"),
        ("rows: [{label: ''}]\n", "rows[0].label", "one line of text"),
        ("rows: [{label: a}, {label: b}, {label: a}]\n", "rows[2]", "is already used at"),
        ("rows: [{}, {budget: {noise_multiplier: 1}}]\n", "rows[1].budget.noise_multiplier", "or write epsilon in"),
        ("rows: [{}, {mechanism: non_private}]\n", "budget", "non_private is not private"),
    ],
)  # fmt: skip
def test_one_added_mistake_is_one_problem(tmp_path: Path, add: str, place: str, words: str) -> None:
    problem = problem_of(tmp_path, BASE + add)
    assert problem.path == place
    assert problem.line >= 9 or problem.path == "budget"
    assert words in str(problem)


def test_a_mistake_of_many_points_is_told_once(tmp_path: Path) -> None:
    add = "grid: {training.epochs: [1, 2, 3], budget.epsilon: [1, -2, 3]}\nrows: [{seeds: 1}, {seeds: 2}]\n"
    problems = problems_of(tmp_path, changed(("1.0, clip", "fast, clip"), ("delta: 1e-4", "detla: 1e-4")) + add)
    assert [problem.path for problem in problems] == [
        "budget.detla",
        "training.learning_rate",
        "grid.budget.epsilon[1]",
    ]


def test_a_mistake_whose_words_differ_between_points_is_told_once(tmp_path: Path) -> None:
    text = changed(("budget: {epsilon: 3, delta: 1e-4}", "budget: none"), ("mechanism: noisy_sgd\n", ""))
    problem = problem_of(tmp_path, text + "grid: {mechanism: [noisy_sgd, noisy_adam]}\n")
    assert "noisy_sgd is private" in problem.message


def test_what_some_rows_lack_is_told_at_these_rows(tmp_path: Path) -> None:
    text = changed(("epsilon: 3, ", ""), ("epochs: 30, ", ""))
    rows = "rows:\n- {budget: {epsilon: 1}}\n- {seeds: 1}\n- {budget: {noise_multiplier: 1}}\n"
    found = [(problem.line, problem.path) for problem in problems_of(tmp_path, text + rows)]
    assert found == [(8, "training.epochs"), (11, "rows[1].budget.epsilon")]


def test_what_every_row_overrides_is_checked_too(tmp_path: Path) -> None:
    text = changed(("epochs: 30", "epochs: thirty"), ("hidden: [64]", "hiden: [64]"))
    add = "rows: [{training: {epochs: 1}, model: logistic}, {training: {epochs: 2}, model: logistic}]\n"
    assert {problem.path for problem in problems_of(tmp_path, text + add)} == {
        "training.epochs",
        "model.parameters.hiden",
    }


def test_a_path_through_a_value_is_a_mistake(tmp_path: Path) -> None:
    text = changed(("budget: {epsilon: 3, delta: 1e-4}", "budget: none"), ("noisy_sgd", "non_private"))
    problem = problem_of(tmp_path, text + "grid: {budget.epsilon: [1, 2]}\n")
    assert (problem.line, problem.path) == (9, "grid.budget.epsilon")
    assert "budget is 'none' (line 7)" in problem.message


def test_names_are_used_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BASE)
    (tmp_path / "b.yaml").write_text(BASE + "grid: {training.epochs: [1, 2]}\n")  # labels differ: allowed
    (tmp_path / "c.yaml").write_text(changed(("epochs: 30", "epochs: -30")))
    with pytest.raises(ProblemsError) as caught:
        load_specs([tmp_path])
    texts = [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems]
    assert texts[0] == f"c.yaml:2:1: name: the name 'base' is already used at {tmp_path}/a.yaml:2 (choose another name)"
    assert [problem.line for problem in caught.value.problems] == [2, 8]


def test_an_accuracy_stands_beside_one_setting(tmp_path: Path) -> None:
    printed = "published: {test_accuracy_percent: 95.0, mu: 0.2}\n"
    problem = problem_of(tmp_path, BASE + printed + "grid: {training.epochs: [1, 2]}\n")
    assert problem.path == "published.test_accuracy_percent"
    assert "several settings" in problem.message
    rows = "rows: [{published: {test_accuracy_percent: 95.0}}, {published: {test_accuracy_percent: 96.0}}]\n"
    shared = "published: {mu: 0.2, averaged_over: 10}\n"
    specs = specs_of(tmp_path, BASE + shared + rows)
    texts = [
        spec.published.accuracy_percent.text for spec in specs if spec.published and spec.published.accuracy_percent
    ]
    assert texts == ["95.0", "96.0"]
    assert all(spec.published and spec.published.averaged_over == 10 for spec in specs)


def test_printed_numbers_need_a_source(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, changed(("source: somewhere\n", "")) + "published: {mu: 0.2}\n")
    assert (problem.path, problem.line) == ("source", 1)


def test_too_many_settings_are_refused_quickly(tmp_path: Path) -> None:
    values = ", ".join(map(str, range(1, 101)))
    paths = ("training.epochs", "training.clip_norm", "training.learning_rate", "budget.epsilon", "budget.delta")
    grid = "grid:\n" + "".join(f"  {path}: [{values}]\n" for path in paths)
    problems = problems_of(tmp_path, BASE + grid)
    assert any(f"at most {MOST_RUNS:,}" in problem.message for problem in problems)


# --- one's own objects ---


class Whole:
    """Has every method of a mechanism, and none that does anything."""

    def check(self, *_: Any, **__: Any) -> None: ...

    ledger = released = facts = start = view = release = update = check


class Unreleasing(Whole):
    private = True
    release = None  # type: ignore[assignment]


class Stepping(Whole):
    private = True
    step = Whole.check


@dataclass
class OwnMechanism(Whole):
    strength: Annotated[float, Field(gt=0, le=1)]
    mode: Literal["fast", "slow"] = "fast"
    schedule: tuple[float, float] | None = None
    exact: bool = True
    private: bool = True

    def __post_init__(self) -> None:
        if self.strength == 0.5:
            raise ValueError("strength = 0.5: expected anything else")


def own_model(input_shape: tuple[int, ...], classes: int, *, depth: int, **rest: Any) -> None: ...


def unreadable(input_shape: tuple[int, ...], classes: int, depth: Missing = 3) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(**members: Any) -> None:
        module = types.ModuleType("own_package")
        for name, value in members.items():
            setattr(module, name, value)
        monkeypatch.setitem(sys.modules, "own_package", module)

    install(Mechanism=OwnMechanism, model=own_model, unreadable=unreadable, number=5, nothing=None, made=dict)
    return install


@pytest.mark.parametrize(
    ("made", "words"),
    [(Stepping, "Stepping has a method `step`"), (Unreleasing, "Unreleasing has no method 'release'")],
)
def test_what_does_not_release_and_then_update_is_no_mechanism(
    tmp_path: Path, own: Callable[..., None], made: Any, words: str
) -> None:
    own(Mechanism=made)
    problem = problem_of(tmp_path, changed(("noisy_sgd", "'own_package:Mechanism'")))
    assert problem.path == "mechanism"
    assert f"{words}; expected a mechanism, whose step is `release`, then `update(released)`" in str(problem)


@pytest.mark.usefixtures("own")
def test_own_objects_are_held_to_their_signatures(tmp_path: Path) -> None:
    mechanism = "{name: 'own_package:Mechanism', parameters: {strength: 1, schedule: [1, 2.5]}}"
    model = "{name: 'own_package:model', parameters: {depth: 2, other: [1, {a: b}]}}"
    mlp = "{name: mlp, parameters: {hidden: [64], activation: tanh}}"
    spec = one(tmp_path, changed(("noisy_sgd", mechanism), (mlp, model)))
    assert spec.mechanism == Choice("own_package:Mechanism", {"strength": 1.0, "schedule": (1.0, 2.5)})
    assert spec.model == Choice("own_package:model", {"depth": 2, "other": [1, {"a": "b"}]})
    (tmp_path / "again.yaml").write_text(to_yaml(spec))
    assert load_specs([tmp_path / "again.yaml"], allow_code=True) == (spec,)


def test_a_mistake_in_a_stage_has_its_place(tmp_path: Path) -> None:
    text = """kind: run
name: staged
dataset: digits
model: logistic
mechanism:
  name: pipeline
  parameters: {sample: poisson, clip: flat, noise: constant, update: {name: momentum, parameters: {momentum: 3}}}
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 64, steps: 4, learning_rate: 0.1, clip_norm: 1.0}
"""
    (tmp_path / "staged.yaml").write_text(text)
    with pytest.raises(ProblemsError, match=r"staged.yaml:7:\d+: mechanism.parameters.update.parameters.momentum: "):
        load_specs([tmp_path / "staged.yaml"])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("parameters", "path", "words"),
    [
        ("{}", "mechanism.parameters.strength", "is missing; expected a number above 0, at most 1"),
        ("{strength: 2}", "mechanism.parameters.strength", "a number above 0, at most 1"),
        ("{strength: 0.5}", "mechanism.parameters.strength", "cannot be built: strength = 0.5"),
        ("{strength: 1, mode: slwo}", "mechanism.parameters.mode", "did you mean 'slow'?"),
        ("{strength: 1, exact: yes}", "mechanism.parameters.exact", "write true"),
        ("{strength: 1, schedule: [1, 2, 3]}", "mechanism.parameters.schedule", "a list of 2: a number, a number"),
        ("{strength: 1, schedule: [1, a]}", "mechanism.parameters.schedule[1]", "found 'a'; expected a number"),
        ("[1]", "mechanism.parameters", "a mapping from parameters to values"),
    ],
)
def test_own_parameters_that_do_not_fit(tmp_path: Path, parameters: str, path: str, words: str) -> None:
    mechanism = f"{{name: 'own_package:Mechanism', parameters: {parameters}}}"
    problem = problem_of(tmp_path, changed(("noisy_sgd", mechanism)))
    assert problem.path == path
    assert words in str(problem)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("mechanism", "own_package:Mechansim", "did you mean own_package:Mechanism?"),
        ("mechanism", "no_such_package.x:y", "PYTHONPATH"),
        ("mechanism", "own_package:number", "it is a int"),
        ("mechanism", "own_package:nothing", "is None; expected a mechanism"),
        ("mechanism", "own_package:made", "cannot be read"),
        ("mechanism", "own_package:model", "is missing"),
        ("model", "own_package:unreadable", "cannot be read (name 'Missing' is not defined)"),
        ("dataset", "own_package:number", "expected a Dataset, or a source"),
        ("dataset", "own package:x", "unknown dataset"),
        ("dataset", ":x", "unknown dataset"),
    ],
)
def test_own_names_that_lead_nowhere(tmp_path: Path, key: str, name: str, words: str) -> None:
    line = next(line for line in BASE.splitlines() if line.startswith(key))
    problems = problems_of(tmp_path, changed((line, f"{key}: '{name}'")))
    assert {problem.path.split(".")[0] for problem in problems} == {key}
    assert {problem.line for problem in problems} == {BASE.splitlines().index(line) + 1}
    assert any(words in str(problem) for problem in problems)


@pytest.mark.parametrize("statement", ["1 / 0", "raise SystemExit(3)", "def", "import no_such_package"])
def test_whatever_an_import_raises_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    (tmp_path / "breaks_on_import.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    problem = problem_of(tmp_path, changed(("mechanism: noisy_sgd", "mechanism: breaks_on_import:x")))
    assert (problem.line, problem.path) == (6, "mechanism")


def test_a_mechanism_must_say_whether_it_is_private(tmp_path: Path, own: Callable[..., None]) -> None:
    def silent() -> object:
        return object()

    own(silent=silent)
    problem = problem_of(tmp_path, changed(("noisy_sgd", "own_package:silent")))
    assert "without `private`" in problem.message


def test_synthetic_data_never_stand_beside_printed_numbers(tmp_path: Path, own: Callable[..., None]) -> None:
    import numpy as np

    from dpbench.datasets import from_arrays

    def blobs(*, records: int = 300) -> object:
        inputs, targets = np.zeros((records, 2), dtype=np.float32), np.arange(records) % 2
        return from_arrays("blobs", inputs, targets, inputs, targets, real=False)

    own(blobs=blobs)
    text = changed(("digits", "{name: 'own_package:blobs', parameters: {records: 200}}"))
    assert one(tmp_path, text).dataset == Choice("own_package:blobs", {"records": 200})
    problem = problem_of(tmp_path, text + "published: {mu: 0.2}\n")
    assert problem.path == "published"
    assert "is not real" in problem.message
    small = problem_of(tmp_path, text.replace("200", "100"))
    assert (small.path, "at most 100" in small.message) == ("training.batch_size", True)


def test_the_catalog_has_what_these_tests_name() -> None:
    for kind, names in (
        ("mechanisms", {"noisy_sgd", "noisy_adam", "non_private"}),
        ("models", {"mlp", "logistic", "tfp_cnn"}),
        ("datasets", {"digits", "mnist", "fashion_mnist"}),
        ("accountants", {"rdp", "gdp_clt"}),
    ):
        assert names <= set(catalog(kind))


@pytest.mark.parametrize("name", ["x" * 300, "é" * 300, "absent.pt", "/absent/" * 1000, "."])
def test_weights_that_no_file_can_be_are_one_mistake(tmp_path: Path, name: str) -> None:
    found = problem_of(tmp_path, BASE + f"weights: {{file: {name!r}, licence: a, pretrained_on: b}}\n")
    assert (found.path, "there is no such file beside the spec" in found.message) == ("weights.file", True)
