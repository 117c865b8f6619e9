"""The papers' claims that training judges: what they compare is there, and records of any spec count for them."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from dpbench.datasets import find_dataset
from dpbench.judging.claims.claim import Claim
from dpbench.judging.claims.comparisons import pairs_of
from dpbench.judging.claims.reading import read_claims
from dpbench.judging.claims.runs import Trained, judge_runs
from dpbench.judging.coverage import PAPERS
from dpbench.judging.reproduction import Seed
from dpbench.mechanisms.pidp_sgd import CLAIM
from dpbench.spec.keys import Spec
from dpbench.spec.loading import load_specs
from dpbench.store.run_key import FORMAT, chosen
from dpbench.tasks import METRICS

ROOT = Path(__file__).parents[3]
CLAIMS = [claim for file in read_claims([PAPERS]).files for claim in file.claims if claim.runs]
UNJUDGED = "Not judged from records: "


def specs_of(claim: Claim) -> list[Spec]:
    return [spec for run in claim.runs for spec in load_specs([ROOT / run])]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_compares_rows_that_are_there_or_says_why_it_does_not(claim: Claim) -> None:
    if claim.because.startswith(UNJUDGED):
        assert not claim.rows
        assert not claim.compares
        return
    assert claim.rows or claim.compares, f"expected rows, compares or a `because` that begins with {UNJUDGED!r}"
    specs = specs_of(claim)
    labels = [spec.label for spec in specs]
    for pattern in claim.rows:
        rows = [spec for spec in specs if fnmatchcase(spec.label, pattern)]
        assert any(spec.published and spec.published.results for spec in rows), pattern
    for one in claim.compares:
        pairs = pairs_of(labels, one["higher"], one["lower"])
        assert pairs, one
        assert all(Counter(labels)[label] == 1 for pair in pairs for label in pair), one


def test_the_list_of_claims_is_whole() -> None:
    assert {"dplis2021.table-9-values", "dplis2021.trained-models-flatter", "bu2020.figure4-bottom"} <= {
        claim.name for claim in CLAIMS
    }


SPENDS = """
kind: run
name: mine
source: a paper, Figure 1
dataset: digits
model: logistic
mechanism: {name: pidp_sgd, parameters: {variant: as_printed}}
training: {sampling_rate: 0.01, steps: 3, learning_rate: 0.1, clip_norm: 1.0}
published: {test_accuracy_percent: 90.0}
budget: {epsilon: 1, delta: 1e-4}
seeds: 1
"""


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        ((1.0, 1e-4, CLAIM), "holds"),
        ((2.0, 1e-4, CLAIM), "not_run"),
        ((1.0, 1e-5, CLAIM), "not_run"),
    ],
)
def test_runs_that_spend_their_budget_count_for_another_spec(
    tmp_path: Path, target: tuple[float, float, str], verdict: str
) -> None:
    """No accountant calibrates them, so that none has to be the one of the spec."""
    (tmp_path / "mine.yaml").write_text(SPENDS, encoding="utf-8")
    (spec,) = load_specs([tmp_path / "mine.yaml"])
    resolved: dict[str, Any] = {
        "format": FORMAT,
        "dataset": {"name": "digits", "parameters": {}, "sha256": find_dataset("digits").sha256},
        "model": chosen("models", spec.model, skip=2),
        "mechanism": chosen("mechanisms", spec.mechanism),
        "sampling_rate": 0.01,
        "steps": 3,
        "learning_rate": 0.1,
        "clip_norm": 1.0,
        "noise_multiplier": None,
        "epsilon": target[0],
        "delta": target[1],
    }
    rows = [
        Trained("other.yaml", "", seed, Seed(89.5 + seed), METRICS["accuracy"], resolved, None, True, target)
        for seed in (0, 1)
    ]
    claim = Claim(
        "mine",
        "one",
        "here",
        "utility",
        "",
        "not_run",
        "",
        runs=("mine.yaml",),
        rows=("*",),
        file=str(tmp_path / "claims.yaml"),
    )
    assert judge_runs(claim, rows).verdict == verdict
