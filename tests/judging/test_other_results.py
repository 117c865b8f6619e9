"""Printed epochs that reach a value, and printed values of other metrics, against what seeds gave."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from dpbench.judging.reproduction import Seed, epoch_verdict, result_verdicts
from dpbench.spec.keys import Printed, Published
from dpbench.tasks import METRICS
from dpbench.verdicts import Verdict


def reaches(*epochs: int | None, last: int = 70, every: int = 1) -> list[Seed]:
    """Seeds whose accuracy rises from 90 to 96 % in these epochs, None: never, looked at in every so many."""
    looked = range(every, last + 1, every)
    return [
        Seed(96.0, tuple((float(k), 96.0 if epoch and k >= epoch else 90.0) for k in looked), {}) for epoch in epochs
    ]


def test_a_printed_epoch_is_compared_with_those_that_reach_the_value() -> None:
    """16 and 16, deviation 0: the values were reached in (15, 16]. Worked out by hand with t = 12.706.

    The unseen deviation is at most 1/√2, √(1/2 + 1) times t of it 11.00: from 16 − 11.00 − 1 − 0.5 = 3.50 to
    16 + 11.00 + 1 + 0.5 = 28.50.
    """

    def verdict(text: str, seeds: list[Seed], value: str = "95", runs: int | None = 1) -> Verdict:
        return epoch_verdict("row", seeds, value, Printed.of(text), runs)

    found = verdict("18", reaches(16, 16))
    assert (found.check, found.verdict) == ("printed_epochs_to_95", "holds")
    assert [found.evidence[end] for end in ("low", "high")] == pytest.approx([3.496, 28.504], abs=0.001)
    assert found.reason.startswith("95 %: ours 16.0, printed 18: a difference of -2.0 epochs; inside the 95 %")
    assert [verdict(text, reaches(16, 16)).verdict for text in ("4", "3", "28", "29")] == [  # of 70 epochs
        "holds",
        "refuted",
        "holds",
        "refuted",
    ]
    assert verdict("30", reaches(16, 16, every=2)).verdict == "holds"  # looked at half as often
    nothing = verdict("18", reaches(16, 16, last=20))
    assert (nothing.verdict, nothing.evidence["low"] > 1) == ("holds", True)
    nothing = verdict("18", reaches(10, 20))
    assert (nothing.verdict, nothing.evidence["low"], nothing.evidence["high"] > 70) == ("undecided", 0.0, True)
    assert nothing.reason.endswith("every epoch of the training, so these seeds tell nothing")
    assert verdict("18", reaches(70, 70, 70, every=70)).verdict == "undecided"  # looked at once, at the end
    barely = [Seed(57.0, ((1.0, 50.0), (2.0, 100 * 0.57), (3.0, 60.0)))] * 2
    assert verdict("2", barely, value="57").evidence["mean"] == 2.0  # 100 times 0.57 is less than 57
    without = verdict("18", [Seed(95.0), Seed(96.0)])
    assert (without.verdict, without.reason) == (
        "not_run",
        "not compared: its runs were not evaluated along the training",
    )
    never = verdict("18", reaches(16, None, None))
    assert never.verdict == "undecided"
    assert "printed 18; 2 of 3 seeds do not reach 95 % in 70 epochs" in never.reason
    assert verdict("18", reaches(16)).verdict == "undecided"
    assert verdict("18", reaches(16, 17), value="97").verdict == "undecided"  # no seed has 97 %
    assert verdict("1", reaches(16, 16), value="90").verdict == "holds"  # in the first epoch, exactly
    assert verdict("18", []).verdict == "not_run"
    barred = epoch_verdict("row", reaches(9, 9), "95", Printed.of("70"), 1, barred="synthetic")
    assert (barred.verdict, barred.reason) == ("not_run", "not compared: synthetic")
    rmse = [Seed(0.9, ((1.0, 1.1), (2.0, 0.95), (3.0, 0.9))), Seed(0.9, ((1.0, 1.1), (2.0, 0.96), (3.0, 0.9)))]
    assert epoch_verdict("row", rmse, "0.95", Printed.of("2"), 1, metric=METRICS["rmse"]).evidence["mean"] == 2.5


@pytest.mark.parametrize("deviation", [0.05, 0.5, 3.0])
def test_the_interval_of_an_epoch_covers_at_least_as_often_as_it_says(deviation: float) -> None:
    """1000 papers that look once an epoch, at true times: at most 5 % outside, 83 has probability 1e-5 (binomial)."""
    draw, misses = random.Random(2), 0
    for _ in range(1000):
        true = 20 + draw.random()
        *ours, theirs = (math.ceil(draw.gauss(true, deviation)) for _ in range(5))
        misses += epoch_verdict("row", reaches(*ours), "95", Printed.of(str(theirs)), 1).verdict == "refuted"
    assert misses < 83


def test_every_printed_result_of_a_setting_gets_a_verdict() -> None:
    published = Published(
        accuracy_percent=Printed.of("96"),
        averaged_over=1,
        epochs_to_reach={"95": Printed.of("16"), "96": Printed.of("17")},
        measured={name: Printed.of("91.38") for name in ("correct_labels", "training_metric", "loss_surface")},
    )
    asked = ["correct_labels", "training_metric (records = 5)", "loss_surface"]
    two = enumerate(reaches(16, 17))
    others = {"training_metric": 91.0, "training_metric (records = 6)": 91.0, "loss_surface": "it gives no number"}
    seeds = [replace(one, metrics={"correct_labels": 91.0 + k, **others}) for k, one in two]
    found = result_verdicts("row", seeds, published, METRICS["accuracy"], asked=asked)
    assert {one.check: one.verdict for one in found} == {
        "printed_accuracy": "holds",
        "printed_epochs_to_95": "holds",
        "printed_epochs_to_96": "holds",
        "printed_correct_labels": "holds",
        "printed_training_metric": "not_run",  # measured with other parameters
        "printed_loss_surface": "not_run",
    }
    assert len(found) == published.results
    assert "train again with --force" in found[-2].reason
    assert found[-1].reason == "not compared: it gives no number"
    far = [replace(one, metrics={"correct_labels": 10.0 + k / 10}) for k, one in enumerate(seeds)]
    assert result_verdicts("row", far, published, METRICS["accuracy"])[3].verdict == "refuted"
