"""Every claim has its expected verdict, and every false version of it is caught."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dpbench.judging.claims.claim import Claim, ClaimsFile
from dpbench.judging.claims.controls import controls
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.reading import PAPERS, read_claims
from dpbench.privacy.formatting import fact_words

ROOT = Path(__file__).parents[3]
FILES = read_claims([PAPERS]).files
CLAIMS = [claim for file in FILES for claim in file.claims]
CONVERTED = {
    "bu2020": "001_b2435100e387a3a7.txt",
    "jl2021": "004_5f94c762a1b54246.txt",
    "dpis2022": "000_3c742e58e3bc341a.txt",
    "dplis2021": "003_ef165dfbded38a0f.txt",
    "pidp2021": "002_eec4695c78c4c14c.txt",
}
TEXTS = ROOT.parent / "shared" / "papers"
NUMBERED = re.compile(
    r"\b(Theorem|Lemma|Proposition|Definition|Corollary|Algorithm|Table|Figure|Fig\.|Assumption|Remark)\s+"
    r"([A-Z]?\.?\d+(?:\.\d+)?)"
)


UNFILLED = re.compile(r"\{[a-z][a-z0-9_-]+(\.[\w.-]+)?\}")  # {front-page.value}, {epsilon}; the sets of papers differ
ONLY_READ = {  # what is printed contradicts itself: reading it is the evidence
    "bu2020.adam-start",
    "dpis2022.line-12",
    "dpis2022.figure-1-second-phase",
    "dpis2022.only-size-replaced",
}


def test_the_claims_have_no_mistakes_and_are_all_there() -> None:
    read = read_claims([PAPERS], lambda _: True)  # seconds: it changes every number of every claim
    assert [str(problem) for problem in read.problems] == []
    assert read.files == FILES
    assert {file.paper for file in FILES} >= set(CONVERTED)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_verdict_is_the_expected_one(claim: Claim) -> None:
    found = judge(claim)
    assert found.verdict == claim.verdict, found.reason
    numbers = {**found.evidence, **found.routes}
    texts = [found.place, found.says, found.because, found.reason, *numbers, *map(fact_words, numbers.values())]
    assert [text for text in texts if UNFILLED.search(text)] == []


def test_every_claim_of_the_papers_states_its_verdict_and_why() -> None:
    assert [claim.name for claim in CLAIMS if not (claim.verdict and claim.because)] == []


def see_that_every_control_changes_the_verdict(claim: Claim) -> None:
    found = list(controls(claim))
    assert found or claim.verdict in ("undecided", "not_run")
    assert [control for control in found if not control.changed] == []


JUDGED = [claim for claim in CLAIMS if claim.verdict != "not_run" or claim.counts]


@pytest.mark.parametrize("claim", JUDGED[::6], ids=lambda claim: claim.name)
def test_other_printed_numbers_change_the_verdict(claim: Claim) -> None:
    see_that_every_control_changes_the_verdict(claim)


@pytest.mark.long
@pytest.mark.parametrize("claim", [JUDGED[k] for k in range(len(JUDGED)) if k % 6], ids=lambda claim: claim.name)
def test_printed_numbers_of_the_other_claims_change_the_verdict(claim: Claim) -> None:
    see_that_every_control_changes_the_verdict(claim)


def test_utilities_say_what_judges_them() -> None:
    assert [claim.name for claim in CLAIMS if claim.kind == "utility" and not (claim.runs or claim.text)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.paper)
def test_every_claim_has_a_place_in_the_coverage(file: ClaimsFile) -> None:
    covered = {name for place in file.coverage for name in place.claims}
    assert {claim.id for claim in file.claims} - covered == set()
    places = Counter(place.place for place in file.coverage)
    assert [place for place, number in places.items() if number > 1] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.paper)
def test_everything_that_the_paper_numbers_is_covered(file: ClaimsFile) -> None:
    path = TEXTS / CONVERTED.get(file.paper, "none")
    if not path.is_file():
        pytest.skip("the papers' texts do not lie beside this checkout")
    text = path.read_text(encoding="utf-8")
    numbered = {f"{word.replace('Fig.', 'Figure')} {number.rstrip('.')}" for word, number in NUMBERED.findall(text)}
    places = " ; ".join(place.place for place in file.coverage)
    known = {f"{word} {number.rstrip('.')}" for word, number in NUMBERED.findall(places.replace("Fig.", "Figure"))}
    missing = {name for name in numbered if name not in known}
    assert missing == set(), sorted(missing)


@pytest.mark.parametrize(
    "claim",
    [c for c in CLAIMS if c.kind == "bound" and not c.by and "epsilon" in c.printed and c.verdict == "unsound"],
    ids=lambda claim: claim.name,
)
def test_an_unsound_bound_is_broken_on_the_lattice_too(claim: Claim) -> None:
    """Another mathematical route: discretised losses, rounded down, convolved in whole numbers (the references)."""
    from dpbench.references.unlike import reference

    assert claim.events is not None
    epsilon, delta = claim.printed["epsilon"].value, claim.printed["delta"].value
    for cells in (1 << 13, 1 << 16, 1 << 18):
        lower = max(
            float(reference.delta(claim.events, epsilon, cells=cells, direction=way).lower) for way in ("remove", "add")
        )
        if lower > delta:
            return
    pytest.fail(f"{claim.name}: the lattice's lower end {lower!r} does not exceed {delta!r}")


@pytest.mark.parametrize(
    "claim", [c for c in CLAIMS if c.verdict in ("unsound", "refuted")], ids=lambda claim: claim.name
)
def test_what_is_refuted_stands_on_two_routes(claim: Claim) -> None:
    found = judge(claim)
    assert len(found.routes) >= 2 or claim.name in ONLY_READ, sorted(found.routes)
