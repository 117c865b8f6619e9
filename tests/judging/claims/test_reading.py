"""Files of `kind: claims`: what they hold, and every mistake with its line while the rest still runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dpbench.events import SampledGaussian
from dpbench.judging.claims.reading import Read, read_claims

HEAD = "kind: claims\npaper: mine\nclaims:\n"
EVENTS = "events: [{event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}]"
GOOD = f"""  - id: front
    place: front page
    kind: bound
    says: it is private
    printed: {{epsilon: 0.87, delta: 1e-5}}
    {EVENTS}
    verdict: sound
    because: it is
"""


def read(folder: Path, text: str) -> Read:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return read_claims([path], lambda _: True, allow_code=True)


def test_a_bound_is_read_with_its_events_and_its_digits(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD + GOOD)
    assert found.problems == ()
    (claim,) = found.files[0].claims
    assert claim.name == "mine.front"
    assert claim.printed["epsilon"].text == "0.87"
    assert claim.events is not None
    assert claim.events.parts == ((SampledGaussian(256 / 60000, 1.3), 3516),)
    assert claim.line == 4


def test_a_count_that_is_not_whole_stands_for_numbers_only(tmp_path: Path) -> None:
    number = GOOD.replace("kind: bound", "kind: number").replace("{epsilon: 0.87, delta: 1e-5}", "1.19")
    number = number.replace("count: 3516", "count: 15*60000/256").replace("sound", "holds")
    number += "    quantity: epsilon\n    accountant: moments\n    at: {delta: 1e-5}\n"
    (claim,) = read(tmp_path, HEAD + number).files[0].claims
    assert claim.events is None
    assert claim.counts[0][1] == 3515.625
    bound = read(tmp_path, HEAD + GOOD.replace("count: 3516", "count: 3515.5"))
    assert "whole number of releases" in bound.problems[0].message


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("kind: bound", "kind: bond"), 6, "'bond' is not known; did you mean 'bound'?"),
        (("    place: front page\n", ""), 4, "the key 'place' is missing"),
        (("epsilon: 0.87", "epsilon: much"), 8, "expected a number with the digits that are printed"),
        (("verdict: sound", "verdict: holds"), 10, "expected one of sound, loose, unsound"),
        (("sampled_gaussian", "sampled_gausian"), 9, "did you mean 'sampled_gaussian'?"),
        (("noise_multiplier: 1.3", "noise_multiplier: -1"), 9, "noise_multiplier = -1"),
        (("count: 3516", "count: many"), 9, "count = many: expected a number"),
        (("delta: 1e-5", "delta: 2"), 4, "expected a number above 0 and below 1"),
        (("    because: it is\n", "    because: it is\n    by: x\n    b: 1\n"), 13, "unknown key 'b'"),
        ((f"    {EVENTS}\n", ""), 4, "nothing says how to judge it"),
        (("id: front", "id: Front Page"), 4, "expected at most 80 small letters"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_the_rest_still_runs(
    tmp_path: Path, change: tuple[str, str], line: int, words: str
) -> None:
    assert change[0] in GOOD
    text = HEAD + GOOD.replace(*change) + GOOD.replace("id: front", "id: other")
    found = read(tmp_path, text)
    assert len(found.problems) == 1, found.problems
    assert found.problems[0].line == line
    assert words in f"{found.problems[0].message} {found.problems[0].hint}"
    assert [claim.id for claim in found.files[0].claims] == ["other"]


def test_unknown_accountants_and_doubled_names_are_reported(tmp_path: Path) -> None:
    extra = "    quantity: epsilon\n    accountant: moment\n"
    found = read(tmp_path, HEAD + GOOD + extra + GOOD + GOOD)
    messages = [problem.message for problem in found.problems]
    assert messages[0] == "accountant 'moment' is not known; did you mean 'moments'?"
    assert messages[1].startswith("'mine.front' is already used at")


def test_coverage_and_mistakes_name_claims_that_exist(tmp_path: Path) -> None:
    text = HEAD + GOOD
    text += (
        "coverage:\n  - {place: page 1, claims: [front]}\n  - {place: page 2, claims: [frond]}\n  - {place: page 3}\n"
    )
    text += "mistakes:\n  - {title: a, claims: [front], printed: b, true: c, demonstration: d}\n"
    found = read(tmp_path, text)
    assert [problem.message for problem in found.problems] == [
        "there is no claim 'frond'; did you mean 'front'?",
        "page 3: expected either `claims:` or `no_claim:` with the reason",
        "the key 'instead' is missing",
    ]
    assert found.files[0].coverage[0].claims == ("front",)


ORDER = """  - id: order
    place: page 2
    kind: comparison
    printed: {factor: 2}
    holds: all(seconds.new <= factor * seconds.old)
    verdict: holds
    because: it is
"""
TABLES = "published: {seconds: {new: [6.6, 38], old: [5.2, 40]}}\n"


def test_published_numbers_are_taken_by_expressions(tmp_path: Path) -> None:
    found = read(tmp_path, TABLES + HEAD + ORDER)
    assert found.problems == ()
    (claim,) = found.files[0].claims
    assert [number.text for number in claim.published["seconds.new"]] == ["6.6", "38"]


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("seconds.old)", "seconds.odd)"), 9, "'seconds.odd' is no place in `published`; did you mean 'old'?"),
        (("* seconds.old", "* 3.0"), 1, "'seconds.old' is published and no claim takes it"),
        (("factor *", "2 *"), 8, "'factor' is printed and `holds:` does not read it"),
        (("<= factor *", "<= factor - factor + 2 *"), 9, "no other number changes the verdict: factor = 2"),
        (("all(seconds.new", "all(print(seconds.new)"), 9, "is not known in expressions"),
        (("38]", "many]"), 1, "expected a number with the digits that are printed"),
    ],
)
def test_every_printed_number_is_read(tmp_path: Path, change: tuple[str, str], line: int, words: str) -> None:
    text = TABLES + HEAD + ORDER
    assert change[0] in text
    problem = read(tmp_path, text.replace(*change)).problems[0]
    assert (problem.line, words in f"{problem.message} {problem.hint}") == (line, True), problem


def test_a_judge_has_to_take_what_is_printed(tmp_path: Path) -> None:
    number = """  - id: ratio
    place: page 2
    kind: number
    printed: {value: 1212.0, batch: 256}
    by: dpbench.judging.papers.bu2020.text:likelihood_ratio
    parameters: {epsilon: 7.10}
    verdict: holds
    because: it is
"""
    problem = read(tmp_path, HEAD + number).problems[0]
    assert (problem.line, problem.message[:22]) == (7, "'batch' is printed and")
    assert read(tmp_path, HEAD + number.replace(", batch: 256", "")).problems == ()
    problem = read(tmp_path, HEAD + number.replace(", batch: 256", "").replace("epsilon:", "eps:")).problems[0]
    assert "takes no 'eps'" in problem.message


def test_folders_skip_other_kinds_and_files_that_are_named_do_not(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("kind: run\n", encoding="utf-8")
    read(tmp_path, HEAD + GOOD)
    assert [file.paper for file in read_claims([tmp_path]).files] == ["mine"]
    assert "found kind: run; expected kind: claims" in read_claims([tmp_path / "run.yaml"]).problems[0].message


EXPRESSION = "  - {id: a, place: p, kind: comparison, printed: {a: 2}, holds: %s}\n"
NUMBERS = ("1e400", "1e-400", "1e999999999", "-1e-999999999", "0e-999999999", "9" * 61, "9" * 5000, ".nan", ".inf")
HOSTILE = {
    **{f"expression {text[:30]}": EXPRESSION % f"'{text} < a'" for text in ("1" + " + 1" * 900, "(" * 150 + "a")},
    **{f"expression {text[:30]}": EXPRESSION % f"'{text} < a'" for text in NUMBERS},
    **{f"power {text}": EXPRESSION % f"'{text} < a'" for text in ("9e299 ** a ** 9", "a * 1e300" + " * 1e300" * 40)},
    "code": EXPRESSION % '\'__import__("os").system("true") < a\'',
    **{f"printed {text[:30]}": GOOD.replace("epsilon: 0.87", f"epsilon: {text}") for text in ("-1", *NUMBERS)},
    **{f"count {text[:30]}": GOOD.replace("count: 3516", f"count: {text}") for text in ("1e18", "-1", *NUMBERS)},
    **{f"noise {text[:30]}": GOOD.replace("1.3", text) for text in ("-1", "0", ".nan", "[1]", "{a: 1}", "os:system")},
    "mu": GOOD.replace("{epsilon: 0.87, delta: 1e-5}", "{mu: -1}"),
    "long name": GOOD.replace("front", "f" * 81, 1),
    "column": EXPRESSION.replace("%s", "sum(t) < a, published: {t: t}")
    + f"published: {{t: [{', '.join(['1'] * 20_000)}]}}\n",
    "keys": GOOD + "".join(f"    claim{number}: 1\n" for number in range(20_000)),
    "tag": GOOD.replace("place: front page", "place: !!python/object/apply:os.system [id]"),
    "alias": GOOD.replace("place: front page", "place: &p [*p]"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_claims_are_mistakes_with_a_line(tmp_path: Path, name: str) -> None:
    begin = time.process_time()
    found = read(tmp_path, HEAD + HOSTILE[name])
    assert time.process_time() - begin < 10
    assert found.problems
    for problem in found.problems:
        assert problem.line > 0
        assert "\n" not in problem.message
        assert len(problem.message) < 6000
    assert [claim.id for file in found.files for claim in file.claims] == []


@pytest.mark.parametrize("paper", ["../../etc", "9" * 300, "", "[mine]", '"a\\nb"', "Mine"])
def test_no_claim_is_judged_whose_name_is_no_name(tmp_path: Path, paper: str) -> None:
    found = read(tmp_path, HEAD.replace("mine", paper) + GOOD)
    assert found.problems
    assert [file.claims for file in found.files] == [()]
