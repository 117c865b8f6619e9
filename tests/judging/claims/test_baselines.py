"""Models of a library beside a table's networks: what they compute, and when their claims are judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpbench.judging.claims.claim import Claim, Printed
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.judges import Shown, shown
from dpbench.judging.claims.reading import PAPERS, read_claims
from dpbench.judging.claims.runs import judge_beside
from dpbench.judging.papers.bu2020 import baselines
from dpbench.judging.papers.bu2020.baselines import PRIVATE, fifth, private_is_better, rmse, rmse_of
from tests.judging.claims.test_runs import CLAIM, table

RATINGS = np.random.RandomState(3)  # NumPy's old generator, as the dataset's draw
MADE = np.array(
    [(user, film, RATINGS.randint(1, 6)) for user in range(30) for film in range(20) if RATINGS.rand() < 0.5]
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    baselines.of_draw.cache_clear()
    monkeypatch.setattr(baselines, "ratings", lambda: (MADE, 200))
    yield
    baselines.of_draw.cache_clear()


@pytest.fixture
def library(made: None) -> None:  # noqa: ARG001
    pytest.importorskip("surprise", reason="the Surprise library is not installed (extra `peers`)")


def neighbours(train: np.ndarray, user: int, film: int) -> float:
    """Ratings of the film by the 40 users most alike, weighted by 1/(1 + mean squared difference of common films)."""
    stars: dict[int, dict[int, int]] = {}
    for one, which, value in train.tolist():
        stars.setdefault(one, {})[which] = value
    if user not in stars or not any(film in rated for rated in stars.values()):
        return float(train[:, 2].mean())
    alike = []
    for rated in stars.values():
        common = rated.keys() & stars[user].keys()
        if film in rated and common:
            apart = np.mean([(rated[one] - stars[user][one]) ** 2 for one in common])
            alike.append((1 / (1 + apart), rated[film]))
    alike = sorted(alike, reverse=True)[:40]
    if not alike:
        return float(train[:, 2].mean())
    return sum(weight * value for weight, value in alike) / sum(weight for weight, _ in alike)


@pytest.mark.usefixtures("library")
def test_user_based_filtering_is_that_of_its_description() -> None:
    """The library's `KNNBasic` with its defaults against the few lines above."""
    train, test = fifth(0)
    expected = [neighbours(train, user, film) - stars for user, film, stars in test.tolist()]
    assert rmse_of("KNNBasic", train, test) == pytest.approx(math.sqrt(np.mean(np.square(expected))), rel=1e-12)


@pytest.mark.usefixtures("library")
def test_the_average_and_the_draws() -> None:
    train, test = fifth(0)
    assert (len(train), len(test)) == (200, len(MADE) - 200)
    mean = sum(stars for _, _, stars in train.tolist()) / 200
    by_hand = math.sqrt(sum((stars - mean) ** 2 for _, _, stars in test.tolist()) / len(test))
    assert rmse_of("average", train, test) == pytest.approx(by_hand)
    other, rest = fifth(1)
    assert sorted(map(tuple, [*other.tolist(), *rest.tolist()])) == sorted(map(tuple, MADE.tolist()))
    assert rest.tolist() != test.tolist()
    assert rmse_of("SVD", train, test, 0) == rmse_of("SVD", train, test, 0) != rmse_of("SVD", train, test, 1)


@pytest.mark.parametrize("model", ["SVD", "NMF", "KNNBasic", "average"])
@pytest.mark.usefixtures("library")
def test_a_printed_error_holds_where_several_draws_give_it(model: str) -> None:
    found = [rmse_of(model, *fifth(number), number) for number in range(3)]
    middle = Printed(f"{sum(found) / 3:.3f}")
    assert rmse.function(value=middle, model=model).holds is True
    apart = Printed(f"{sum(found) / 3 + 10 * (max(found) - min(found)) + 0.1:.3f}")
    assert rmse.function(value=apart, model=model).holds is False
    assert rmse.function(value=middle, model=model).evidence["rmse_of_each_draw"] == found


@pytest.mark.usefixtures("library")
def test_the_private_networks_are_compared_on_the_same_records() -> None:
    theirs = [rmse_of("NMF", *fifth(0), state) for state in range(3)]
    centre = sum(theirs) / 3

    def verdict(shift: float, model: str = "NMF") -> bool | None:
        ours = {PRIVATE: [centre + shift - 0.001, centre + shift + 0.001]}
        return private_is_better.function(results=ours, model=model).holds

    assert [verdict(-2.0), verdict(2.0), verdict(0.0)] == [True, False, None]
    assert verdict(-2.0, "KNNBasic") is True  # it has one value: no initial values are drawn


@pytest.mark.usefixtures("made")
def test_without_the_library_or_the_ratings_a_claim_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(baselines, "import_module", absent)
    claim = Claim("bu2020", "one", "here", "utility", "", "not_run", "", {"value": Printed("0.873")})
    asked = replace(claim, by="baselines:rmse", parameters={"model": "SVD"})
    assert (judge(asked).verdict, judge(asked).as_expected) == ("not_run", True)
    assert judge(asked).reason == "needs the Surprise library: pip install 'dpbench[peers]'"
    monkeypatch.undo()
    monkeypatch.setenv("DPBENCH_DATA", "/nowhere")
    baselines.ratings.cache_clear()
    baselines.of_draw.cache_clear()
    found = judge(replace(asked, parameters={"model": "average"}))
    assert (found.verdict, found.reason.partition(":")[0]) == ("not_run", "needs the ratings")


@shown()
def highest(results: dict[str, list[float]], above: float) -> Shown:
    return Shown(max(map(max, results.values())) > above, ", ".join(results))


@shown()
def without_results(above: float) -> Shown:
    return Shown(above > 0, "")


def test_a_judge_beside_runs_gets_their_results_and_waits_for_them() -> None:
    claim = replace(CLAIM, by="mine:highest", parameters={"above": 97.0}, rows=("row 3", "row 4"))
    found = judge_beside(highest, table(), claim)
    assert (found.verdict, found.reason) == ("holds", "row 3, row 4")
    assert judge_beside(highest, table(row_3=-9, row_4=-9), claim).verdict == "refuted"
    assert judge_beside(without_results, table(), claim).verdict == "holds"
    for runs, words in (([], "0 of the seeds of 'row 3'"), (table(seeds=1), "1 of the seeds of 'row 3'")):
        for one in (highest, without_results):
            waits = judge_beside(one, runs, claim)
            assert waits.verdict == "not_run"
            assert words in waits.reason
    reduced = [replace(one, reduced="2 epochs") for one in table()]
    assert "this setting is reduced (2 epochs)" in judge_beside(highest, reduced, claim).reason
    assert "names none of their rows" in judge_beside(highest, table(), replace(claim, rows=("no such row",))).reason
    gone = replace(claim, runs=("specs/bu2020/no_such.yaml",))
    assert "not written yet: specs/bu2020/no_such.yaml" in judge_beside(highest, table(), gone).reason
    twice = replace(claim, runs=(*claim.runs, "specs/bu2020/../bu2020/table1.yaml"))
    assert "two of these rows have the same label" in judge_beside(highest, table(), twice).reason


@pytest.mark.usefixtures("library")
def test_the_controls_change_the_verdict() -> None:
    """Those of the judges, which no claim runs: the claims' verdicts wait for records."""
    found = [rmse_of("SVD", *fifth(number), number) for number in range(3)]
    claim = Claim("bu2020", "one", "here", "utility", "", "not_run", "", {"value": Printed(f"{sum(found) / 3:.3f}")})
    asked = replace(claim, parameters={"model": "SVD"})
    assert rmse.judge(asked).verdict == "holds"
    assert rmse.judge(asked).false_alarm == 0.05
    ours = {PRIVATE: [0.1, 0.11]}
    better = replace(claim, printed={}, parameters={"model": "NMF", "results": ours})
    assert private_is_better.judge(better).verdict == "holds"
    (control,) = private_is_better.controls
    assert private_is_better.judge(better, change=control).verdict == "refuted"


def test_a_claim_whose_judge_takes_results_needs_rows(tmp_path: Path) -> None:
    text = (PAPERS / "bu2020" / "claims.yaml").read_text(encoding="utf-8")
    start = text.index("  - id: table4-better-than-nmf")
    one = text[start : text.index("  - id: ", start + 9)].replace("    rows: private networks\n", "")
    head = "kind: claims\npaper: bu2020\ntitle: t\nsource: s\nclaims:\n"
    (tmp_path / "claims.yaml").write_text(head + one, encoding="utf-8")
    (problem,) = read_claims([tmp_path / "claims.yaml"], lambda _: True).problems
    assert "takes results: give `runs:` and `rows:`, whose results these are" in str(problem)
