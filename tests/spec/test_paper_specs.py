"""The papers' specs: their printed numbers against the ledgers' own transcription, and what they cover.

The specs and the ledgers of claims were written down from the papers apart; a wrong digit in either fails here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpbench.catalog import catalog
from dpbench.datasets import data_folder
from dpbench.judging.coverage import coverage
from dpbench.judging.papers.dplis2021.budgets import epsilon
from dpbench.plan.planning import Choices, Plan, make_plan
from dpbench.spec.loading import Spec, load_specs
from dpbench.store.records import Store

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "specs"
PAPERS = ("bu2020", "jl2021", "dpis2022", "dplis2021", "pidp2021")
DATASETS = ("MNIST", "FMNIST", "CIFAR-10", "IMDb")
TABLES = ("coverage", "published")  # of a file of claims, beside the claims
FILES = sorted(file for paper in PAPERS for file in (SPECS / paper).glob("*.yaml"))

# Every table and figure: the files that hold it, or why there is nothing to train, or what is missing.
COVERED: Mapping[str, Mapping[str, tuple[str, ...] | str]] = {
    file.paper: {
        item.place: item.specs or item.untrained or f"missing: {item.missing}"
        for item in file.items
        if not item.place.startswith("Section")
    }
    for file in coverage()
}


@cache
def ledger(paper: str) -> Mapping[str, Any]:
    """The claims of a paper by their id, read without dpbench, numbers as their texts."""
    text = (ROOT / "dpbench" / "judging" / "papers" / paper / "claims.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)
    tables = {name: document.get(name) for name in TABLES}
    return {**tables, **{claim["id"]: claim for claim in document["claims"]}}


def accuracies(specs: list[Spec]) -> dict[str, list[str | None]]:
    """The printed accuracies by what stands before the last word of the label, in the order of the file."""
    found: dict[str, list[str | None]] = {}
    for spec in specs:
        name = re.sub(r"[ ,]+(a_E = |k = |C\*/C_1 = |lambda = )?[\d.]+$", "", spec.label)
        printed = spec.published.accuracy_percent if spec.published else None
        found.setdefault(name, []).append(printed.text if printed else None)
    return found


def told(text: str, separator: str) -> dict[str, list[str]]:
    """`name number number ...` parts of a claim's text."""
    parts = [part.strip().rsplit(": ")[-1].split() for part in text.split(separator)]
    return {words[0]: [word for word in words[1:] if re.fullmatch(r"[\d.]+", word)] for words in parts}


def seconds(specs: list[Spec]) -> list[str]:
    times = [spec.published.seconds_per_epoch for spec in specs if spec.published]
    return [time.text for time in times if time]


def disagreements(folder: Path) -> Iterator[str]:
    """Where the specs of a folder like specs/ and the ledgers print different numbers."""

    def specs(paper: str, name: str) -> list[Spec]:
        return list(load_specs([folder / paper / f"{name}.yaml"]))

    def same(where: str, ours: object, theirs: object) -> Iterator[str]:
        if ours != theirs:
            yield f"{where}: the specs print {ours}, the ledger {theirs}"

    claims = ledger("dpis2022")
    short = {"HF": "DP-SGD-HF", "TS": "DP-SGD-TS", "Decay": "DP-SGD-Decay"}
    for name in ("mnist", "fmnist", "cifar10", "imdb"):
        rows = {short.get(key, key): value for key, value in told(claims[f"table-3-{name}"]["text"], ";").items()}
        yield from same(f"table 3 {name}", accuracies(specs("dpis2022", f"table3_{name}")), rows)
        dpis, *rivals = rows.values()
        published = {"dpis": dpis, "rivals": list(map(list, zip(*rivals, strict=True)))}
        yield from same(f"table 3 {name}, published", claims["published"]["table_3"][name], published)
    adaptive, plain = claims["table-4"]["text"].split(";")
    rows = {f"{name}, DPIS+AC": values for name, values in told(adaptive, ",").items()}
    fixed = re.findall(r"[\d. ]+", plain.split(":")[1])
    rows |= {f"{name}, DPIS\\AC": values.split() for name, values in zip(DATASETS, fixed, strict=True)}
    yield from same("table 4", accuracies(specs("dpis2022", "table4")), rows)
    for number in (5, 6, 7):
        rows = told(claims[f"table-{number}"]["text"], ",")
        yield from same(f"table {number}", accuracies(specs("dpis2022", f"table{number}")), rows)
    rows = {name.lower().replace("-", ""): row for name, row in told(claims["table-6"]["text"], ",").items()}
    yield from same("table 6, published", claims["published"]["table_6"], rows)
    table8 = specs("dpis2022", "table8")
    for name, (best, near, far) in told(claims["table-8"]["text"], ",").items():
        yield from same(f"table 8 {name}", accuracies(table8)[name], [None, None, best, None, None])
        yield from same(f"table 8 {name}", f"{name} {near} and {far}" in (table8[0].tuned or ""), True)
    rows = told(claims["non-private"]["text"].replace(" (scattering features)", ""), ",")
    yield from same("non-private", accuracies(specs("dpis2022", "non_private")), rows)

    claims = ledger("bu2020")
    for number in (1, 2, 3, 4):
        table = specs("bu2020", f"table{number}")
        text = claims["table4-rmse" if number == 4 else f"table{number}-accuracy"]["text"]
        told_first = re.findall(r"[\d.]+", text)[: {1: 6, 3: 3}.get(number, 2)]
        ours = [one.published.rmse if number == 4 else one.published.accuracy_percent for one in table if one.published]
        yield from same(f"bu table {number}", [one.text for one in ours if one], told_first)
        private = [spec.published for spec in table if spec.published and spec.budget]
        for row, printed in enumerate(private, 1):
            row_id = f"table1-row{row}" if number == 1 else f"table{number}"
            stated = printed.mu, printed.epsilon["gdp_clt"], printed.epsilon["moments"]
            theirs = [claims[f"{row_id}-{name}"]["printed"] for name in ("mu", "epsilon-clt", "epsilon-moments")]
            yield from same(f"bu {row_id}", [one.text for one in stated if one], theirs)

    claims = ledger("dplis2021")
    for number in (2, 11):
        printed = claims["published"][f"table_{number}"]
        names = ("CIFAR-10 CNN tanh",) if number == 11 else ("MNIST MLP", "MNIST CNN", "CIFAR-10 MLP", "CIFAR-10 CNN")
        theirs = {
            f"{name} {key}": printed[key][4 * at : 4 * at + 4]
            for at, name in enumerate(names)
            for key in ("none", "r10", "best")
        }
        table = specs("dplis2021", f"table{number}")
        yield from same(f"dplis table {number}", accuracies(table), theirs)
        budgets = [spec.published.epsilon["moments"].text for spec in table if spec.published]
        yield from same(
            f"dplis table {number}, epsilon", budgets, ["1.99", "5.01", "7.01", "10.00"] * (len(table) // 4)
        )
        text = claims["tables-6-7-8-radii" if number == 2 else "table-11-accuracies"]["text"]
        radii = re.findall(r"\d+", text.split("Table 6")[-1].split(".")[0] if number == 2 else text.split("R_best")[1])
        ours = [f"{spec.mechanism.parameters['smoothing_radius']:g}" for spec in table if " best " in spec.label]
        yield from same(f"dplis table {number}, R_best", ours, radii)

    texts = dict(
        zip((6, 7, 8), re.findall(r"Table [678] ([\d ;]+)", claims["tables-6-7-8-radii"]["text"]), strict=True)
    )
    for number, names, of_radii in (
        (3, ("CIFAR-100", "PubFig83", "CelebA1000"), 7),
        (5, ("MLP", "LSTM"), 8),
    ):
        printed, table = claims["published"][f"table_{number}"], specs("dplis2021", f"table{number}")
        budgets = [f"0.{digits}" for digits in (55, 60, 65)] * len(names)
        if number == 3:
            budgets = [one for row in claims["published"]["table_3_header"].values() for one in row]
        count = len(budgets) // len(names)
        theirs = [
            (f"{name} {key} {budget}", result, budget)
            for at, name in enumerate(names)
            for key in ("none", "r10", "best")
            for result, budget in zip(
                *(column[count * at : count * at + count] for column in (printed[key], budgets)), strict=True
            )
        ]
        ours = [
            (spec.label, spec.published.result[1].text, spec.published.epsilon["moments"].text)
            for spec in table
            if spec.published and spec.published.result
        ]
        yield from same(f"dplis table {number}", ours, theirs)
        radii = [f"{spec.mechanism.parameters['smoothing_radius']:g}" for spec in table if " best " in spec.label]
        yield from same(f"dplis table {number}, R_best", radii, re.findall(r"\d+", texts[of_radii]))

    printed = claims["published"]["table_9"]
    theirs = [number for pair in zip(printed["none"], printed["smoothed"], strict=True) for number in pair]
    ours = [spec.published.sharpness for spec in specs("dplis2021", "table9") if spec.published]
    yield from same("dplis table 9", [number.text for number in ours if number], theirs)

    claims = ledger("jl2021")
    for number in (2, 3, 5):
        times = re.findall(r"[\d.]+", claims[f"table{number}"]["text"])
        yield from same(f"jl table {number}", seconds(specs("jl2021", f"table{number}")), times)
    cnn, alexnet, memory = (re.findall(r"[\d.]+", part) for part in claims["table4"]["text"].split(";"))
    table4 = specs("jl2021", "table4")
    yield from same("jl table 4", seconds(table4), cnn + alexnet)
    shares = [spec.published.memory_percent for spec in table4 if spec.published]
    yield from same("jl table 4, memory", [share.text for share in shares if share], memory)
    for figure, claim in (("figure4", "epsilon-cifar"), ("figure5", "epsilon-imdb")):
        (printed,) = [spec.published for spec in specs("jl2021", figure) if spec.published]
        accuracy = printed.accuracy_percent
        assert accuracy is not None
        yield from same(figure, accuracy.text, claims[figure]["text"].split(" %")[0])
        yield from same(figure, printed.epsilon["exact"].text, claims[claim]["printed"]["epsilon"])
    told_here = claims["mnist-parameters"]["printed"]
    names = ("batch", "learning_rate", "epochs", "sigma", "clip_norm")
    theirs = tuple(float(told_here[name]) for name in names)
    ours = {_numbers(spec) for spec in specs("jl2021", "figure3") if spec.budget}
    yield from same("figure 3", ours, {theirs})


def _of_pate(table: list[Spec], printed: Any) -> Iterator[str]:
    """Where Table 12's accuracies or Table 13's queries, answers and sigmas differ."""
    rows = {f"{s} {kind}": printed["table_12"][f"{kind}_{s}"] for s in (40, 80, 100) for kind in ("none", "smoothed")}
    if accuracies(table) != rows:
        yield f"dplis table 12: the specs print {accuracies(table)}, the ledger {rows}"
    settings = [spec.mechanism.parameters for spec in table]
    theirs = [
        list(map(int, one))
        for one in zip(*(printed["table_13"][name] * 6 for name in ("queries", "labels")), strict=True)
    ]
    if [[one["queries"], one["labels"]] for one in settings] != theirs:
        yield "dplis table 13: the specs have other queries or answers than the ledger"
    for spec, one in zip(table, settings, strict=True):
        sigma = float(spec.label.split()[0])
        if spec.budget is None or (spec.budget.noise_multiplier, one["selection_ratio"] * sigma) != (sigma, 200):
            yield f"dplis table 13, {spec.label}: expected sigma_2 of the label and sigma_1 = 200"


def _numbers(spec: Spec) -> tuple[float | None, ...]:
    training, budget = spec.training, spec.budget
    sigma = budget.noise_multiplier if budget else None
    return (training.batch_size, training.learning_rate, training.epochs, sigma, training.clip_norm)


def test_printed_numbers_are_those_of_the_ledgers() -> None:
    assert list(disagreements(SPECS)) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("bu2020/table1.yaml", "gdp_clt: 2.32", "gdp_clt: 2.23"),
        ("bu2020/table2.yaml", "84.5}", "84.6}"),
        ("bu2020/table3.yaml", "moments: 15.24", "moments: 15.42"),
        ("bu2020/table3.yaml", "85.4}", "84.5}"),
        ("bu2020/table4.yaml", "test_rmse: 0.915", "test_rmse: 0.916"),
        ("bu2020/table4.yaml", "mu: 1.94", "mu: 1.49"),
        ("dpis2022/table3_cifar10.yaml", "62.2, averaged", "62.3, averaged"),
        ("dpis2022/table3_imdb.yaml", "68.3, averaged", "68.30, averaged"),
        ("dpis2022/table4.yaml", "98.5}", "98.6}"),
        ("dpis2022/table6.yaml", "86.8}", "86.7}"),
        ("dpis2022/table8.yaml", "61.7 and", "61.8 and"),
        ("dpis2022/non_private.yaml", "71.0", "71"),
        ("jl2021/table3.yaml", "13931", "13391"),
        ("jl2021/table4.yaml", "memory_percent: 75", "memory_percent: 57"),
        ("jl2021/figure4.yaml", "exact: 5.55", "exact: 5.5"),
        ("jl2021/figure3.yaml", "learning_rate: 0.25", "learning_rate: 0.2"),
        ("dplis2021/table2.yaml", "94.78", "94.87"),
        (
            "dplis2021/table2.yaml",
            "93.92, averaged_over: 1, epsilon: {moments: 5.01",
            "93.92, averaged_over: 1, epsilon: {moments: 5.10",
        ),
        ("dplis2021/table2.yaml", "smoothing_radius: 40", "smoothing_radius: 30"),
        ("dplis2021/table11.yaml", "58.07", "58.7"),
        ("dplis2021/table3.yaml", "54.53", "55.43"),
        ("dplis2021/table3.yaml", "moments: 6.06", "moments: 6.6"),
        ("dplis2021/table3.yaml", "smoothing_radius: 15", "smoothing_radius: 12"),
        ("dplis2021/table5.yaml", "2909.73", "2909.37"),
        ("dplis2021/table9.yaml", "49.6169", "49.6196"),
    ],
)
def test_a_wrong_digit_is_found(tmp_path: Path, file: str, right: str, wrong: str) -> None:
    for paper in PAPERS:
        shutil.copytree(SPECS / paper, tmp_path / paper)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert right in text
    (tmp_path / file).write_text(text.replace(right, wrong, 1), encoding="utf-8")
    assert len(list(disagreements(tmp_path))) == 1


NUMBERED = {  # how many tables and figures each paper prints
    "bu2020": (4, 4),
    "dpis2022": (8, 1),
    "dplis2021": (13, 7),
    "jl2021": (5, 8),
    "pidp2021": (1, 2),
}


@pytest.mark.parametrize("paper", COVERED)
def test_every_table_and_figure_is_covered(paper: str) -> None:
    """Those that the paper prints; the ledger's own list names no other, and every file of specs is named."""
    tables, figures = NUMBERED[paper]
    printed = {f"Table {number + 1}" for number in range(tables)} | {
        f"Figure {number + 1}" for number in range(figures)
    }
    part = r"(?<=\d)( \([a-f]\)-\([a-f]\)|[ab]|, row .+)$"  # panels of a figure, a row of a table
    whole = {re.sub(part, "", place) for place in COVERED[paper]}
    assert whole == printed
    places = " ".join(entry["place"] for entry in ledger(paper)["coverage"])
    named = {" ".join(found) for found in re.findall(r"(Table|Figure) (\d+)(?! \(of )", places)}
    assert named == printed
    (file,) = [file for file in coverage() if file.paper == paper]
    files = {f"specs/{paper}/{name}.yaml" for item in file.items for name in item.specs}
    assert files == {path.relative_to(ROOT).as_posix() for path in (SPECS / paper).glob("*.yaml")}
    assert all((SPECS / "reduced" / f"{name}.yaml").is_file() for item in file.items for name in item.reduced)
    assert {claim for item in file.items for claim in item.claims} <= set(ledger(paper))


def test_every_kind_of_short_schedule_is_named() -> None:
    named = {name for file in coverage() for item in file.items for name in item.reduced}
    assert named == {path.stem for path in (SPECS / "reduced").glob("*.yaml")}


def test_no_claim_names_a_spec_that_is_not_there() -> None:
    runs = {
        run
        for paper in COVERED
        for key, claim in ledger(paper).items()
        if key not in TABLES
        for run in claim.get("runs", ())
    }
    assert not [run for run in runs if not (ROOT / run).is_file()]


@pytest.mark.parametrize("paper", COVERED)
def test_the_rows_that_a_claim_names_print_a_number(paper: str) -> None:
    claims = [claim for key, claim in ledger(paper).items() if key not in TABLES and "rows" in claim]
    for claim in claims:
        assert claim["verdict"] == "not_run"
        found = [spec for run in claim["runs"] for spec in load_specs([ROOT / run])]
        printing = [spec.label for spec in found if spec.published and spec.published.results]
        patterns = [claim["rows"]] if isinstance(claim["rows"], str) else claim["rows"]
        for pattern in patterns if found else ():
            assert any(fnmatchcase(label, pattern) for label in printing), (claim["id"], pattern)


@pytest.mark.parametrize("paper", COVERED)
def test_every_file_of_specs_judges_a_claim(paper: str) -> None:
    runs = {run for key, claim in ledger(paper).items() if key not in TABLES for run in claim.get("runs", ())}
    files = {path.relative_to(ROOT).as_posix() for path in (SPECS / paper).glob("*.yaml")}
    of_other_claims = "specs/dpis2022/figure1.yaml"  # figure-1-*
    assert files - runs <= {of_other_claims, "specs/dplis2021/brown.yaml"}  # the latter's weights start table5


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_says_where_it_comes_from_and_what_was_filled_in(file: Path) -> None:
    for spec in load_specs([file]):
        assert spec.name == f"{file.parent.name}-{file.stem.replace('_', '-')}"
        assert spec.source
        assert spec.tuned
        assert any(
            word in spec.tuned
            for word in ("ours", "Filled in", "unsaid", "is not said", "as in figure5.yaml", "Algorithm 3")
        )
        assert spec.reduced is None
        on_a_cpu = ("bu2020-table2", "pidp2021-figure1", "pidp2021-figure2", "pidp2021-non-private")
        assert spec.needs == (() if spec.name in on_a_cpu else ("gpu",))
        assert spec.budget is None or spec.budget.delta == (1e-6 if spec.dataset.name == "movielens" else 1e-5)


def test_the_steps_of_dplis_are_the_most_that_the_printed_epsilon_allows() -> None:
    """By Rényi moments at whole orders, the paper's accountant; the paper prints no number of steps."""
    sizes, seen = {"mnist": (256, 60_000), "cifar10": (256, 50_000), "next_word": (64, 700_000)}, set()
    for spec in load_specs([SPECS / "dplis2021"]):
        if spec.mechanism.name == "pate" or spec.dataset.name in ("brown", "features") or spec.budget is None:
            continue
        budget = spec.label.split(",")[0].split()[-1]
        budget = "10.00" if spec.name.endswith("figure7") else budget
        assert spec.training.steps is not None
        batch, examples = sizes[spec.dataset.name]
        seen.add((batch / examples, spec.training.steps, float(budget)))
        assert spec.training.batch_size == batch
        assert spec.budget.noise_multiplier == 1.1
        if spec.dataset.name == "next_word":
            assert spec.dataset.parameters["if_absent"]["train"] == examples
    assert len(seen) == 11
    for rate, steps, printed in seen:
        assert epsilon(rate, 1.1, steps)[0] <= printed < epsilon(rate, 1.1, steps + 1)[0]


def test_the_steps_of_the_transfer_settings_are_those_that_their_bounds_infer() -> None:
    """By the claims, which tell a row's five ε as those of one run after equal stretches of whole epochs."""
    claims = ledger("dplis2021")
    specs = [spec for spec in load_specs([SPECS / "dplis2021"]) if spec.dataset.name == "features"]
    assert len({spec.name for spec in specs}) == 3
    for spec in specs:
        name, budget = (
            spec.label.split(",")[0].split()[0].lower().replace("-", ""),
            spec.label.split(",")[0].split()[-1],
        )
        (event,) = claims[f"table-3-{name}-bound-{budget.replace('.', '-')}"]["events"]
        settings = claims[f"table-1-{name}"]["printed"]
        assert spec.budget is not None
        assert spec.budget.noise_multiplier == float(event["noise_multiplier"])
        assert spec.training.steps == int(event["count"])
        rate = f"{spec.training.batch_size:g}/{spec.dataset.parameters['if_absent']['train']}"
        assert rate == event["sampling_rate"]
        assert spec.training.learning_rate == float(settings["rate"])
        assert spec.published is None or spec.published.epsilon["moments"].text == budget


def test_the_noise_of_the_private_size_is_two_per_cent_of_it() -> None:
    """Section 5.3 and Table 2; a number of the spec, since it must not follow the data."""
    sizes = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000, "imdb_glove": 25_000}
    specs = [spec for spec in load_specs([SPECS / "dpis2022"]) if spec.mechanism.name == "dpis"]
    assert len(specs) > 100
    for spec in specs:
        examples = sizes[spec.dataset.parameters.get("of", spec.dataset.name)]
        parameters = spec.mechanism.parameters
        assert parameters["size_noise"] == parameters["sum_noise"] == 0.02 * examples
        assert spec.training.clip_norm == pytest.approx(100 * parameters["norm_floor"])


def _planned(paths: list[Path], out: Path, **choices: Any) -> Plan:
    return make_plan(load_specs(paths), Store(out), Choices(seeds=1, **choices))


def test_without_data_everything_is_skipped_with_the_command(tmp_path: Path) -> None:
    plan = _planned([SPECS / paper for paper in PAPERS], tmp_path / "out", data=tmp_path / "none")
    assert {run.action for run in plan.runs} == {"skip"}
    for run in plan.runs:
        own = run.spec.dataset.name in ("features", "next_word")  # files that the user brings
        assert re.search("is not there: .*own_dataset" if own else "dpbench data fetch|pip install", run.reason)


@pytest.mark.data
def test_with_data_only_the_gpu_is_missing(tmp_path: Path) -> None:
    folder = data_folder()
    figure3, figure1 = SPECS / "jl2021" / "figure3.yaml", SPECS / "dpis2022" / "figure1.yaml"
    plan = _planned([figure3], tmp_path, data=folder, device="cpu")
    if any("absent" in run.reason for run in plan.runs):
        pytest.skip(f"MNIST is not in {folder} (set DPBENCH_DATA)")
    assert {run.action for run in plan.runs} == {"train"}
    for run in _planned([figure3, figure1], tmp_path, data=folder).runs:
        assert run.action == "train" or re.search("needs a GPU|data fetch|pip install", run.reason)


def test_every_mechanism_has_a_quickstart() -> None:
    used = {spec.mechanism.name for spec in load_specs([SPECS / "quickstart"])}
    assert used == set(catalog("mechanisms"))
