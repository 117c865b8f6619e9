"""The ledgers' own texts: every quotation of a verdict in a mistake is filled, and every demonstration can be run."""

from __future__ import annotations

import fnmatch
import shlex

import pytest

from dpbench.cli import cli
from dpbench.judging.claims.claim import Ledger, Mistake
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.ledger import PAPERS, read_ledgers
from dpbench.judging.claims.summary import filled, unfilled

LEDGERS = read_ledgers([PAPERS]).ledgers
MISTAKES = [(ledger, mistake) for ledger in LEDGERS for mistake in ledger.mistakes]
IDS = [f"{ledger.paper}-{number}" for number, (ledger, _) in enumerate(MISTAKES)]


@pytest.mark.parametrize(("ledger", "mistake"), MISTAKES, ids=IDS)
def test_every_quotation_is_filled_by_a_verdict(ledger: Ledger, mistake: Mistake) -> None:
    quoted = {text.strip("{}").split(".")[0] for text in unfilled([mistake])}
    records = {claim.id: judge(claim) for claim in ledger.claims if claim.id in quoted}
    for text in (mistake.printed, mistake.true, mistake.instead):
        assert unfilled([Mistake("", (), filled(text, records), "", "", "")]) == []
    assert mistake.claims


@pytest.mark.parametrize(("ledger", "mistake"), MISTAKES, ids=IDS)
def test_every_demonstration_is_a_command_with_options_that_exist(ledger: Ledger, mistake: Mistake) -> None:
    """The claim that it names is run by the tests of verdicts; here the words have to be right."""
    words = shlex.split(mistake.demonstration)
    assert words[0] == "dpbench"
    verb = cli.commands[words[1]]
    verb.make_context(words[1], words[2:], resilient_parsing=False)
    if words[1] == "verify":
        names = {f"{ledger.paper}.{claim.id}" for claim in ledger.claims}
        assert fnmatch.filter(names, words[words.index("--only") + 1])
