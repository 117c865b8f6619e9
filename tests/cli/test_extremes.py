"""The command line with numbers at the ends of doubles and beyond: an answer, or one sentence and status 2."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from dpbench.cli import cli
from dpbench.cli.answer_lines import error_bar, figure
from dpbench.errors import DpbenchError
from dpbench.privacy.answers import Estimate
from dpbench.privacy.event_files import COUNT_TEXT
from dpbench.privacy.releases import Said, rate, releases
from dpbench.privacy.statement import statement

STEPS = ["--sampling-rate", "0.01", "--steps", "99", "--sigma", "1"]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "1e-400", "0.5e-9999"])
def test_rates_with_giant_exponents_are_refused_at_once(text: str) -> None:
    """They would fill the memory as fractions, and 1e-400 would be rate 0: no privacy loss at all."""
    with pytest.raises(DpbenchError, match="expected a number from 0 to 1"):
        rate(text)


def test_counts_of_files_have_short_exponents() -> None:
    import re

    assert re.fullmatch(COUNT_TEXT, "15*60000/256")
    assert re.fullmatch(COUNT_TEXT, "1e6")
    assert not re.fullmatch(COUNT_TEXT, "1e999999999")


def test_more_steps_than_doubles_hold_are_one_short_sentence() -> None:
    for said in (
        Said(examples=10**18, batch=3, epochs=1e308, noise_multiplier=1.0),
        Said(sampling_rate="1e-300", epochs=1e300, noise_multiplier=1.0),
    ):
        with pytest.raises(DpbenchError, match=r"^steps = [0-9.e+]{1,12}: expected at most 2\^53"):
            releases(said)


@pytest.mark.parametrize("epsilon", ["5e-324", "1e-310", "1.7e308"])
@pytest.mark.parametrize("more", [[], ["--points", "5"]])
def test_curves_around_the_smallest_and_the_largest_epsilon(epsilon: str, more: list[str]) -> None:
    found = _run("account", *STEPS, "--epsilon", epsilon, "--accountant", "rdp", "--curve", "--json", *more)
    assert found.exception is None
    assert len(json.loads(found.stdout)["curve"][0]["points"]) >= 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--event", "gaussian", "--sigma", "inf", "--trade-off"],
        ["--event", "gaussian", "--sigma", "1e-200", "--trade-off"],
        ["--event", "discrete_pair", "--first", "1,0", "--second", "0,1", "--trade-off", "--curve"],
    ],
)
def test_infinities_are_null_in_json(arguments: list[str]) -> None:
    found = _run("account", *arguments, "--delta", "1e-5", "--json")
    assert found.exception is None
    assert "Infinity" not in found.stdout
    json.loads(found.stdout)


@pytest.mark.parametrize("name", [":", "..:x", ":x"])
def test_what_is_no_name_of_a_module_is_one_sentence(name: str) -> None:
    found = _run("account", *STEPS, "--delta", "1e-5", "--accountant", name)
    assert isinstance(found.exception, DpbenchError)


def test_an_empty_event_is_no_sampled_gaussian() -> None:
    assert isinstance(_run("account", *STEPS, "--delta", "1e-5", "--event", "").exception, DpbenchError)


@pytest.mark.parametrize(
    ("estimate", "shown", "bar"),
    [
        (Estimate(0.86454019122456, 0.86454019122455, 0.86454019122457), "= 0.8645401912", "± 3e-11"),
        (Estimate(1.0, 1 - 1.25e-9, 1.0), "= 1.00000000", "± 2e-9"),
        (Estimate(3797.1269, 3797.1262, 3797.1275), "= 3797.127", "± 0.0008"),
        (Estimate(0.5, 0.5, 0.5), "= 0.5000000000", "± 0"),
        (Estimate(0.0, 0.0, 5e-324), "= 0", "± 5e-324"),
    ],
)
def test_the_printed_error_bar_reaches_both_ends_from_the_printed_number(
    estimate: Estimate, shown: str, bar: str
) -> None:
    """The bar was that of the number in full, rounded to the nearest: 0.8645401912 ± 1e-14 did not hold the truth."""
    assert (figure(estimate, "exact"), error_bar(estimate)) == (shown, bar)


def test_the_promise_does_not_round_the_given_number_down() -> None:
    from dpbench.privacy.accounting import account

    found = releases(Said(sampling_rate=0.01, steps=100, noise_multiplier=1.0))
    answers = account(found.composition, delta=1.23456123e-5, accountants=["rdp"])
    assert "δ = 1.23456123e-5)" in statement(found, answers)
    answers = account(found.composition, epsilon=1.23456123, accountants=["rdp"])
    assert "(ε = 1.23456123, " in statement(found, answers)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sampling-rate", "5e-324", "--sigma", "1", "--steps", "10"], "too close to a single point"),
        (["--sampling-rate", "0.01", "--sigma", "1e-5", "--steps", "10"], "too little noise to certify"),
        (["--sampling-rate", "0.01", "--sigma", "1", "--steps", "9e15"], "too large for a proof"),
        (["--event", "discrete_pair", "--first", "1,0", "--second", "0,1"], "no finite epsilon was found"),
    ],
)
def test_what_cannot_be_proven_is_one_sentence(arguments: list[str], sentence: str) -> None:
    found = _run("certify", *arguments, "--delta", "1e-5")
    assert isinstance(found.exception, DpbenchError)
    assert sentence in str(found.exception)


@pytest.mark.parametrize("arguments", [["--sigma", "1e200"], ["--sigma", "1e3", "--steps", "9e15"]])
def test_balls_with_giant_exponents_are_proven_at_once(arguments: list[str]) -> None:
    """Their ends as fractions had 10^17 digits."""
    found = _run("certify", "--event", "gaussian", *arguments, "--delta", "1e-5", "--json")
    assert found.exception is None
    (guarantee,) = json.loads(found.stdout)["guarantees"]
    assert guarantee["epsilon_lower"] <= guarantee["epsilon_upper"]
    assert _run("certify", *STEPS, "--epsilon", "1e300").exception is None
