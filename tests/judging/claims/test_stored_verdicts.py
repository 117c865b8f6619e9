"""Files under OUT/verdicts: what was edited, damaged or is stale is named and left out; no exit status rests on it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.errors import DpbenchError
from dpbench.judging.claims.claim import Claim
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.judging import verify
from dpbench.judging.claims.reading import PAPERS, read_claims
from dpbench.judging.claims.record import key_of, read_verdicts, write_verdict
from dpbench.judging.claims.summary import ClaimsReport, claims_report, unfilled, write_claims_file
from dpbench.reporting.collect import collect
from dpbench.reporting.page import render
from dpbench.store.reading import signed
from tests.reporting.loose_ends import loose_ends

CARD = """kind: claims
paper: mine
title: A model card
claims:
  - id: false
    place: page 1
    kind: bound
    printed: {epsilon: 0.83, delta: 1e-5}
    events: [{event: gaussian, noise_multiplier: 4}]
  - id: true
    place: page 2
    kind: comparison
    printed: {a: 2, b: 3}
    holds: a < b
coverage:
  - {place: page 1, claims: ["false"]}
  - {place: page 2, claims: ["true"]}
mistakes:
  - title: too small
    claims: ["false"]
    printed: epsilon {false.printed}
    true: epsilon {false.value}, between {false.evidence.lower} and {false.evidence.upper}
    demonstration: dpbench verify --only mine.false
    instead: print {false.value}
"""
FALSE = "verdicts/mine.false.json"


@pytest.fixture
def card(tmp_path: Path) -> Path:
    path = tmp_path / "card.yaml"
    path.write_text(CARD, encoding="utf-8")
    return path


@pytest.fixture
def out(card: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    assert [one.verdict for one in verify([card], certified=True, out=folder).verdicts] == ["unsound", "holds"]
    assert report_of(folder).left_out == ()
    return folder


def report_of(folder: Path) -> ClaimsReport:
    found = claims_report(folder)
    assert found is not None
    return found


def page_of(found: ClaimsReport) -> str:
    return render(replace(collect([]), claims=found))


def edit(path: Path, change: Callable[[dict[str, Any]], object], forged: bool = False) -> None:
    """Change a JSON file; a forger computes its digest anew."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(signed(data) if forged else data), encoding="utf-8")


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return value + "x"
    return value + 1 if isinstance(value, int | float) else [*value, "x"] if isinstance(value, list) else {"x": 1}


KEYS = sorted(judge(Claim("mine", "x", "p", "utility", "")).to_json())


@pytest.mark.parametrize("key", KEYS)
def test_every_edited_value_is_named_and_left_out(out: Path, key: str) -> None:
    edit(out / FALSE, lambda data: data.__setitem__(key, other(data.get(key))))
    found = report_of(out)
    assert [record.id for record in found.verdicts] == ["mine.true"]
    (sentence,) = found.left_out
    assert re.fullmatch(rf"inconsistent: {out}/{FALSE}: \S.*", sentence)
    page = page_of(found)
    assert sentence in page
    assert 'id="claim-mine.false"' not in page


def test_the_papers_own_file_is_checked_too(out: Path) -> None:
    edit(out / "verdicts/papers/mine.json", lambda data: data["mistakes"][0].__setitem__("true", "nothing"))
    found = report_of(out)
    assert found.verdicts == ()
    assert any(text.startswith(f"inconsistent: {out}/verdicts/papers/mine.json") for text in found.left_out)
    page_of(found)


@pytest.mark.parametrize("forged", [False, True])
def test_no_exit_status_rests_on_an_edited_verdict(card: Path, out: Path, forged: bool) -> None:
    edit(out / FALSE, lambda data: data.update(verdict="sound", reason="it is"), forged)
    found = verify([card], certified=True, out=out)
    assert found.exit_status == 1
    assert found.verdicts[0].verdict == "unsound"
    assert found.resumed == 0
    assert read_verdicts(out).records["mine.false"].verdict == "unsound"
    edit(out / FALSE, lambda data: data.update(verdict="sound", reason="it is"), forged)
    assert verify([card], out=out).exit_status == 1
    assert read_verdicts(out).records["mine.false"].verdict == "unsound"


def test_a_proof_that_is_taken_from_a_file_is_named_with_its_claim(card: Path, out: Path) -> None:
    found = verify([card], certified=True, out=out)
    assert [bool(one.trusted) for one in found.verdicts] == [True, False]
    assert f"is taken from {out}/{FALSE}" in found.verdicts[0].trusted
    assert verify([card], certified=True, out=out, force=True).resumed == 0


def test_verdicts_of_other_claims_and_other_code_are_stale(card: Path, out: Path) -> None:
    edit(out / FALSE, lambda data: data.update(code="0" * 64), forged=True)
    assert report_of(out).left_out[0].startswith(f"stale: {out}/{FALSE}: the code that judges it has changed")
    assert verify([card], certified=True, out=out).resumed == 0
    card.write_text("# read again\n" + CARD, encoding="utf-8")
    assert report_of(out).left_out == ()
    card.write_text(CARD.replace("0.83", "0.84"), encoding="utf-8")
    found = report_of(out)
    assert [record.id for record in found.verdicts] == ["mine.true"]
    assert found.left_out[0].startswith(f"stale: {out}/{FALSE}: the claim has changed in {card}")
    card.unlink()
    assert len(report_of(out).verdicts) == 2


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def forged(**values: Any) -> Callable[[Path], None]:
    return lambda path: edit(path, lambda data: data.update(values), forged=True)


def written(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


PLANE = {"x": [0, 1], "y": [0, 1, 2], "heights": [[0, 1, 2], [1, 2, 3]], "dots": [[0.5, 0.5]], "marked": []}
DAMAGE: dict[str, Callable[[Path], object]] = {
    "FIFO": fifo,
    "folder": folder,
    "device": linked,
    "empty": written(""),
    "nested": written('{"a":' * 100_000),
    "no object": written("[1, 2]"),
    "long number": written('{"schema_version": ' + "9" * 5000 + "}"),
    "huge": written(" " * (1 << 25)),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:300]),
    "old": forged(schema_version=1),
    "another type": forged(type="run"),
    "another claim": forged(id="mine.true"),
    "a path": forged(id="../../mine.false", paper="../../mine"),
    "verdict": forged(verdict="perfect"),
    "kind": forged(kind=["bound"]),
    "evidence": forged(evidence=[1]),
    "value": forged(value={"x": 1}),
    "certified": forged(certified="yes"),
    "runs": forged(runs=3),
    "plot": forged(plot={"x": [1, 2], "lines": {"a": [1]}, "x_label": "", "y_label": ""}),
    **{
        f"plane, {name}": forged(plot={"x_label": "", "y_label": "", "planes": planes})
        for name, planes in {
            "none": {},
            "no mapping": [PLANE],
            "its heights": {"a": {**PLANE, "heights": [[1, 2]]}},
            "its dots": {"a": {**PLANE, "dots": [[1, 2, 3]]}},
            "a key": {"a": {**PLANE, "z": []}},
            "one place wide": {"a": {**PLANE, "x": [0], "heights": [[0, 1, 2]]}},
            "not a number": {"a": {**PLANE, "x": [0, "1"]}},
        }.items()
    },
    "unknown": forged(extra=1),
    "control": lambda path: path.write_text(path.read_text().replace('"reason": "', '"reason": "\\u001b[31m')),
}


OF_ANY_FILE = list(DAMAGE)[: list(DAMAGE).index("another claim")]


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((FALSE, damage) for damage in DAMAGE), *(("verdicts/papers/mine.json", damage) for damage in OF_ANY_FILE)],
)
def test_no_file_stops_the_report_or_verify(card: Path, out: Path, name: str, damage: str) -> None:
    DAMAGE[damage](out / name)
    begin = time.monotonic()
    found = report_of(out)
    assert time.monotonic() - begin < 5
    assert "mine.false" not in {record.id for record in found.verdicts}
    (sentence, *_) = [text for text in found.left_out if name in text]
    assert "\n" not in sentence
    assert len(sentence) < 400 + len(str(out))
    page_of(found)
    if damage == "folder":  # nothing can be written in its place
        with pytest.raises(DpbenchError, match=r"\Acannot write [^\n]*\Z"):
            verify([card], out=out)
    else:
        assert verify([card], out=out).exit_status == 1


def test_markup_in_texts_stays_text(card: Path, out: Path) -> None:
    script = "</script><script>alert(1)</script>"
    card.write_text(CARD.replace("place: page 1\n    kind", f"place: {script}\n    says: {script}\n    kind"))
    verify([card], out=out)
    assert script not in page_of(report_of(out))
    assert script.replace("<", "&lt;").replace(">", "&gt;") in page_of(report_of(out))


def test_a_plane_is_drawn_with_its_dots(out: Path) -> None:
    forged(plot={"x_label": "across", "y_label": "along", "planes": {"2c: ends": PLANE}})(out / FALSE)
    found = report_of(out)
    assert found.left_out == ()
    page = page_of(found)
    assert "<figcaption>2c: ends</figcaption>" in page
    assert re.search(r">across<.*>along<", page, re.DOTALL)
    (picture,) = re.findall(r"<figcaption>2c: ends</figcaption>(<svg.*?</svg>)", page, re.DOTALL)
    assert ">0.2<" in picture, "both axes are numbers, also where nothing is marked"


def test_the_page_says_when_and_from_where(out: Path) -> None:
    found = report_of(out)
    day = found.verdicts[0].date[:10]
    words = re.sub(r"<[^>]*>", "", page_of(found))
    assert f"mine was judged by dpbench verify on {day}." in words
    assert f"from the files of {out}/verdicts" in words


FILES = read_claims([PAPERS]).files


@pytest.mark.parametrize("every", [7, 1, 10**6])
def test_no_dead_anchor_and_no_unfilled_place_where_some_claims_are_judged(tmp_path: Path, every: int) -> None:
    """Every k-th claim of the papers has a record; what it says does not matter here."""
    for file in FILES:
        write_claims_file(tmp_path, file)
        for claim in file.claims[::every]:
            facts = {name: getattr(claim, name) for name in ("paper", "place", "kind", "says", "because")}
            verdict = replace(judge(replace(claim, by="", holds="1 < 2", counts=(), kind="comparison")), **facts)
            write_verdict(tmp_path, replace(verdict, key=key_of(claim)))
    found = report_of(tmp_path)
    assert found.left_out == ()
    assert len(found.verdicts) == sum(len(file.claims[::every]) for file in FILES)
    assert [text for paper in found.papers for text in unfilled(paper.mistakes)] == []
    page = page_of(found)
    assert len(re.findall(r'href="#(claim[^"]*)"', page)) > 1
    assert loose_ends(page.replace("D ∪ {z}", "")) == []  # a set with one record, as dpis2022 prints it
