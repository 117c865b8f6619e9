"""`dpbench verify`: exit status, choices, JSON lines, records that are resumed, and the chapter of the report."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scipy.stats import norm

from dpbench.cli import cli, main
from dpbench.errors import DpbenchError
from dpbench.judging.claims.judging import Choice
from dpbench.judging.claims.judging import verify as judged
from dpbench.judging.claims.record import VerdictRecord, read_verdicts
from dpbench.judging.claims.summary import claims_report, filled

CLAIMS = """kind: claims
paper: mine
title: A model card
claims:
  - id: sound
    place: page 1
    kind: bound
    printed: {epsilon: 0.87, delta: 1e-5}
    events: [{event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}]
    verdict: sound
    because: the true epsilon is 0.8645
  - id: unsound
    place: page 2
    kind: bound
    printed: {epsilon: 0.83, delta: 1e-5}
    events: [{event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}]
    verdict: unsound
    because: the central limit theorem is no bound
  - id: mu
    place: page 2
    kind: number
    printed: 0.23
    quantity: mu
    accountant: gdp_clt
    events: [{event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}]
    verdict: holds
    because: equation (3.1)
coverage:
  - {place: page 1, claims: [sound]}
  - {place: page 2, claims: [unsound, mu]}
  - {place: page 3, no_claim: because it is empty}
mistakes:
  - title: The number is too small
    claims: [unsound]
    printed: epsilon {unsound.printed}
    true: epsilon {unsound.value}, between {unsound.evidence.lower} and {unsound.evidence.upper}
    demonstration: dpbench verify --only mine.unsound --evidence
    instead: use the exact accountant
"""


ROOT = Path(__file__).parents[3]
CARD = re.sub(r" +(verdict|because): .*\n", "", CLAIMS)  # the same, and nobody has guessed a verdict


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(CLAIMS, encoding="utf-8")
    return path


def verify(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["verify", "--workers", "1", *map(str, arguments)], standalone_mode=False)
    assert result.exception is None, result.exception
    assert result.return_value == status
    return result


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_claim_is_one_line_of_json(claims: Path, tmp_path: Path) -> None:
    found = objects(verify(claims, "--json", "--out", tmp_path / "out"))
    assert [(one["id"], one["verdict"]) for one in found] == [
        ("mine.sound", "sound"),
        ("mine.unsound", "unsound"),
        ("mine.mu", "holds"),
    ]
    assert {"id", "paper", "place", "kind", "verdict", "printed", "value", "seconds"} <= set(found[0])
    assert found[1]["printed"] == "epsilon = 0.83, delta = 1e-5"
    assert found[1]["value"] == pytest.approx(0.8645401912, abs=1e-9)


def test_a_pipe_is_wide_enough_for_what_is_printed(claims: Path, tmp_path: Path) -> None:
    name = "a-claim-with-a-name-as-long-as-the-longest-ones"
    claims.write_text(CLAIMS.replace("id: sound", f"id: {name}").replace("claims: [sound]", f"claims: [{name}]"))
    assert f"mine.{name}  bound   epsilon = 0.87, delta = 1e-5  " in verify(claims, "--out", tmp_path / "out").stdout


def test_a_verdict_that_changed_ends_with_one_either_way(claims: Path, tmp_path: Path) -> None:
    for change in (("verdict: sound", "verdict: unsound"), ("verdict: unsound", "verdict: sound")):
        claims.write_text(CLAIMS.replace(*change, 1), encoding="utf-8")
        result = verify(claims, "--out", tmp_path / "out", status=1)
        assert "1 not as expected" in result.stdout
    claims.write_text(CLAIMS.replace("accountant: gdp_clt", "accountant: rdp"), encoding="utf-8")
    result = verify(claims, "--out", tmp_path / "out", status=1)
    assert f"{claims}:19: mine.mu: crashes, expected holds" in " ".join(result.stdout.split())
    claims.write_text(CLAIMS.replace("count: 3516}", "sampler: shuffled, count: 3516}", 1), encoding="utf-8")
    result = verify(claims, "--out", tmp_path / "out", status=1)
    assert f"{claims}:5: mine.sound: crashes" in " ".join(result.stdout.split())
    assert "mine.unsound bound" in " ".join(result.stdout.split())


def test_a_card_without_verdicts_is_told_the_truth(claims: Path, tmp_path: Path) -> None:
    claims.write_text(CARD, encoding="utf-8")
    out = tmp_path / "out"
    result = verify(claims, "--out", out, status=1)
    said = " ".join(result.stdout.split())
    assert f"{claims}:10: mine.unsound: unsound: the true epsilon is 0.86454, above the printed 0.83" in said
    assert "of 3 without a stated verdict 1 is not confirmed." in said
    assert [(one["verdict"], one["held"]) for one in objects(verify(claims, "--json", "--out", out, status=1))] == [
        ("sound", ""),
        ("unsound", ""),
        ("holds", ""),
    ]
    found = claims_report(out)
    assert found is not None
    assert [record.as_expected for record in found.verdicts] == [True, False, True]
    claims.write_text(CARD.replace("epsilon: 0.83", "epsilon: 1.83"), encoding="utf-8")
    verify(claims, "--out", out)  # loose: true, and too large
    refuted = CARD.replace("printed: 0.23", "printed: 0.24")
    claims.write_text(refuted.replace("epsilon: 0.83", "epsilon: 1.83"), encoding="utf-8")
    verify(claims, "--out", out, status=1)


VERDICTS = {"holds": 0, "sound": 0, "loose": 0, "not_run": 0, "refuted": 1, "unsound": 1, "undecided": 1, "crashes": 1}


@pytest.mark.parametrize(("verdict", "status"), VERDICTS.items())
def test_every_verdict_that_nobody_expected_ends_as_documented(claims: Path, verdict: str, status: int) -> None:
    found = judged([claims], Choice(names=("mine.sound",)))
    records = tuple(replace(record, verdict=verdict, held="") for record in found.verdicts)
    assert replace(found, verdicts=records).exit_status == status


@pytest.mark.parametrize(
    "printed",
    [
        "{epsilon: 0.83, delta: 1e-5}",
        "{mu: 0.1}",
        "{rdp: 0.02}\n    at: {order: 8}",
    ],
)
def test_an_unsound_bound_shows_datasets_event_and_two_routes(claims: Path, tmp_path: Path, printed: str) -> None:
    claims.write_text(CARD.replace("{epsilon: 0.83, delta: 1e-5}", printed), encoding="utf-8")
    only = (claims, "--only", "mine.unsound", "--out", tmp_path / "out")
    (found,) = objects(verify(*only, "--json", status=1))
    evidence = found["evidence"]
    assert evidence["pair"].startswith("one record in D and not in D′")
    assert "(1−q)·N(0, σ²) + q·N(1, σ²) from D, N(0, σ²) from D′" in evidence["outputs"]
    assert len(found["routes"]) == 2
    file, line = found["judge"].split(":")
    assert (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].startswith("def judge")
    shown = " ".join(verify(*only, "--evidence", status=1).stdout.split())
    for words in (evidence["pair"], evidence["outputs"], f"judged by: {found['judge']}"):
        assert words in shown


def test_the_event_that_breaks_a_bound_has_the_probabilities_it_says(claims: Path, tmp_path: Path) -> None:
    """One release of the plain Gaussian: S is a half-line, and its probabilities are two tails."""
    release = "{event: gaussian, noise_multiplier: 2}"
    text = re.sub(r"\{event: .*\}", release, CARD.replace("epsilon: 0.83, delta: 1e-5", "epsilon: 0.7, delta: 0.01"))
    claims.write_text(text, encoding="utf-8")
    (found,) = objects(verify(claims, "--only", "mine.unsound", "--json", "--out", tmp_path / "out", status=1))
    start = 0.7 * 2**2 + 0.5  # log p(x)/q(x) = (x − 1/2)/σ² > ε
    chances = {"D": norm.sf((start - 1) / 2), "D′": norm.sf(start / 2)}
    assert found["evidence"]["probability_of_S"] == {name: pytest.approx(p, rel=1e-3) for name, p in chances.items()}
    assert chances["D"] - math.exp(0.7) * chances["D′"] > 0.01


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty.yaml", ""),
        ("run.yaml", "kind: run\n"),
        ("none.yaml", "kind: claims\npaper: mine\nclaims: []\n"),
        ("", ""),
    ],
)
def test_no_claims_end_with_two_and_a_sentence(tmp_path: Path, name: str, text: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text(text, encoding="utf-8") if name else None
    for path in {folder / name, folder}:
        result = verify(path, "--out", tmp_path / "out", status=2)
        assert result.stdout == ""
        assert re.match(rf"{folder}\S*: \S.*(expected|empty)", result.stderr)
        assert result.stderr.splitlines()[-1] == "1 mistake found."


@pytest.mark.usefixtures("claims")
def test_a_broken_file_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(CLAIMS[: CLAIMS.index("256/60000")], encoding="utf-8")
    result = verify(tmp_path, "--json", "--out", tmp_path / "out", status=2)
    assert f"{tmp_path / 'broken.yaml'}:" in result.stderr
    assert len(objects(result)) == 3


def test_a_bad_file_ends_with_two_and_the_rest_still_runs(claims: Path, tmp_path: Path) -> None:
    claims.write_text(CLAIMS.replace("accountant: gdp_clt", "accountant: gdp_ctl"), encoding="utf-8")
    result = verify(claims, "--json", "--out", tmp_path / "out", status=2)
    assert f"{claims}:24:17" in result.stderr
    assert "did you mean 'gdp_clt'?" in result.stderr
    assert [one["id"] for one in objects(result)] == ["mine.sound", "mine.unsound"]


def test_claims_are_chosen_by_paper_kind_and_name(claims: Path) -> None:
    def names(choice: Choice) -> list[str]:
        return [record.id for record in judged([claims], choice).verdicts]

    assert names(Choice(kinds=("number",))) == ["mine.mu"]
    assert names(Choice(names=("mine.*sound",))) == ["mine.sound", "mine.unsound"]
    for choice, words in (
        (Choice(papers=("mime",)), "--paper mime: there are no claims of it here; did you mean 'mine'?"),
        (Choice(kinds=("bond",)), "--kind bond: expected one of number, bound"),
        (Choice(names=("nothing",)), "--only nothing: no claim has such a name"),
    ):
        with pytest.raises(DpbenchError) as caught:
            judged([claims], choice)
        assert str(caught.value).startswith(words)


def test_certified_verdicts_are_resumed_and_not_replaced_by_weaker_ones(claims: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[str] = []

    def stop_after_the_first(record: VerdictRecord | None, done: int, total: int) -> None:
        seen.append(f"{done} of {total}")
        if record is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged([claims], certified=True, out=out, progress=stop_after_the_first)
    assert seen == ["0 of 3", "1 of 3"]
    again = judged([claims], certified=True, out=out)
    assert again.resumed == 1
    assert judged([claims], certified=True, out=out).resumed == 2  # the number has no proof to resume
    assert judged([claims], certified=True, out=out, force=True).resumed == 0
    judged([claims], out=out)
    kept = read_verdicts(out).records["mine.unsound"]
    assert kept.certified
    assert kept.evidence["lower"] <= 0.86454019122 <= kept.evidence["upper"] + 1e-9
    claims.write_text(CLAIMS.replace("noise_multiplier: 1.3", "noise_multiplier: 1.31"), encoding="utf-8")
    assert judged([claims], certified=True, out=out).resumed == 0


def test_several_processes_give_the_same(claims: Path) -> None:
    alone, together = judged([claims], workers=1).verdicts, judged([claims], workers=2).verdicts
    assert [(one.id, one.verdict, one.value) for one in alone] == [(one.id, one.verdict, one.value) for one in together]


def test_the_report_has_the_claims_the_mistakes_and_the_coverage(claims: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    verify(claims, "--out", out)
    found = claims_report(out)
    assert found is not None
    (paper,) = found.papers
    assert (paper.claims, paper.missing) == (3, 0)
    assert "between 0.86454 and 0.86454" in paper.mistakes[0].true
    assert filled("{nothing.value}", {}) == "{nothing.value}"
    with pytest.raises(SystemExit) as ended:
        main(["report", "--out", str(out), str(claims)])
    assert ended.value.code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in (
        "The number is too small",
        "no claim: because it is empty",
        'id="claim-mine.unsound"',
        "A model card",
    ):
        assert words in page
    assert 'data-verdict="unsound"' in page
    record = read_verdicts(out).records["mine.unsound"]
    assert record.plot is not None
    curve = dict(zip(record.plot["x"], record.plot["lines"]["true"], strict=True))
    assert min(curve) == 0 < 0.8645 < max(curve)
    assert all(here > there for here, there in zip(list(curve.values()), list(curve.values())[1:], strict=False))
    assert page.count('id="figure-mine-') >= 2
