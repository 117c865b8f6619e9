"""The texts of the claims: every quotation of a verdict in a mistake is filled, and every demonstration can be run."""

from __future__ import annotations

import fnmatch
import shlex

import pytest

from dpbench.cli import cli
from dpbench.judging.claims.claim import ClaimsFile, Mistake
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.reading import PAPERS, read_claims
from dpbench.judging.claims.summary import filled, unfilled

FILES = read_claims([PAPERS]).files
MISTAKES = [(file, mistake) for file in FILES for mistake in file.mistakes]
IDS = [f"{file.paper}-{number}" for number, (file, _) in enumerate(MISTAKES)]


@pytest.mark.parametrize(("file", "mistake"), MISTAKES, ids=IDS)
def test_every_quotation_is_filled_by_a_verdict(file: ClaimsFile, mistake: Mistake) -> None:
    quoted = {text.strip("{}").split(".")[0] for text in unfilled([mistake])}
    records = {claim.id: judge(claim) for claim in file.claims if claim.id in quoted}
    for text in (mistake.printed, mistake.true, mistake.instead):
        assert unfilled([Mistake("", (), filled(text, records), "", "", "")]) == []
    assert mistake.claims


@pytest.mark.parametrize(("file", "mistake"), MISTAKES, ids=IDS)
def test_every_demonstration_is_a_command_with_options_that_exist(file: ClaimsFile, mistake: Mistake) -> None:
    """The claim that it names is run by the tests of verdicts; here the words have to be right."""
    words = shlex.split(mistake.demonstration)
    assert words[0] == "dpbench"
    verb = cli.commands[words[1]]
    verb.make_context(words[1], words[2:], resilient_parsing=False)
    if words[1] == "verify":
        names = {f"{file.paper}.{claim.id}" for claim in file.claims}
        assert fnmatch.filter(names, words[words.index("--only") + 1])
