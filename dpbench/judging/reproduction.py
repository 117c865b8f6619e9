"""Are printed numbers reproduced? Statistics over seeds, and a verdict for each printed number.

A printed accuracy, or other metric, is the mean of m runs of the source; ours are n seeds with mean x̄ and
standard deviation s (n − 1 in its denominator). If all runs are independent draws of one normal distribution,
(printed − x̄) / (s sqrt(1/n + 1/m)) follows Student's t with n − 1 degrees of freedom: x̄ ± t s sqrt(1/n + 1/m)
contains the printed mean with 95 % probability.
A printed standard deviation of m runs is compared by the ratio of variances, which follows Fisher's F with m − 1 and
n − 1 degrees of freedom. Both intervals are widened by half a unit of the last printed digit, because it was rounded.
A printed range, the lowest and the highest of m runs, is refuted where all of ours lie above it or all below: of m + n
exchangeable draws the n last are all the largest or all the smallest with probability 2/C(m + n, n), whatever they
follow. Where that is more than 5 %, it stays undecided.
A printed value of another metric is compared as a mean is, and so is the first epoch e that is seen to reach a value.
The value was reached between two evaluations, at e − u with 0 <= u <= w, the epochs between them; in the source within
the epoch before the printed one, as if it looked once an epoch. Of n numbers in [0, w] the deviation is at most
w sqrt(⌊n/2⌋⌈n/2⌉ / (n(n − 1))): so much is added to s, w to the lower end of the interval and one epoch to the upper
one, which then contain the printed epoch with 95 % probability or more if the e − u are normal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpbench.privacy.formatting import percent
from dpbench.spec.keys import Printed, Published
from dpbench.store.shapes import RunRecord
from dpbench.tasks import METRICS, Metric
from dpbench.verdicts import Verdict

LEVEL = 0.95
_SLACK = 1e-6  # of half a unit: a value on the edge of rounding counts as inside, whatever its last bit


@dataclass(frozen=True)
class Spread:
    """What several seeds gave: mean, sample deviation and the 95 % interval of the mean (None for a single seed).

    `least` and `most` are the lowest and the highest value of a seed.
    """

    count: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    least: float
    most: float

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval: the number behind ±."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def plus_minus(spread: Spread, decimals: int = 2) -> str:
    """Mean ± half the width of the 95 % interval; the mean alone for one seed.

    >>> plus_minus(Spread(5, 95.1, 0.1, 95.0, 95.2, 95.0, 95.3))
    '95.10 ± 0.10'
    """
    half = spread.half_width
    return percent(spread.mean, decimals) + (f" ± {half:.{decimals}f}" if half is not None else "")


def spread(values: Sequence[float], level: float = LEVEL) -> Spread:
    """Mean, deviation and Student's confidence interval of the mean.

    Raises ValueError for no values. Source: any textbook; the values are taken as independent and about normal.

    >>> spread([95.0, 96.0, 97.0]).mean
    96.0
    """
    if not values:
        raise ValueError("values = []: expected at least one")
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Spread(1, mean, None, None, None, mean, mean)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = student(count - 1, level) * deviation / math.sqrt(count)
    return Spread(count, mean, deviation, mean - half, mean + half, min(values), max(values))


def prediction_interval(
    values: Sequence[float], runs: int, half_unit: float = 0.0, level: float = LEVEL
) -> tuple[float, float]:
    """The interval that contains the printed mean of `runs` further runs with probability `level`, given our `values`.

    `half_unit` is half a unit of the last printed digit. Raises ValueError for fewer than two values or runs < 1.

    >>> low, high = prediction_interval([95.0, 96.0, 97.0], runs=10)
    >>> round(low, 3), round(high, 3)
    (93.168, 98.832)
    """
    if len(values) < 2:
        raise ValueError(f"values: {len(values)} given: expected two or more, to estimate the deviation of seeds")
    if runs < 1:
        raise ValueError(f"runs = {runs!r}: expected 1 or more")
    ours = spread(values, level)
    assert ours.deviation is not None
    half = student(ours.count - 1, level) * ours.deviation * math.sqrt(1 / ours.count + 1 / runs) + half_unit
    return ours.mean - half, ours.mean + half


def deviation_interval(
    values: Sequence[float], runs: int, half_unit: float = 0.0, level: float = LEVEL
) -> tuple[float, float]:
    """The interval that contains the printed standard deviation of `runs` further runs with at least that probability.

    Whether `runs` or one less stands in its denominator is rarely printed: the interval covers both. Raises ValueError
    for fewer than two values or runs.

    >>> [round(end, 3) for end in deviation_interval([95.0, 96.0, 97.0, 98.0, 99.0], runs=5)]
    [0.456, 4.9]
    """
    from scipy.special import fdtri

    if len(values) < 2 or runs < 2:
        raise ValueError(f"{len(values)} values, runs = {runs}: expected two or more of each")
    ours = spread(values).deviation
    assert ours is not None
    low, high = (math.sqrt(fdtri(runs - 1, len(values) - 1, p)) for p in ((1 - level) / 2, (1 + level) / 2))
    return ours * low * math.sqrt((runs - 1) / runs) - half_unit, ours * high + half_unit


@dataclass(frozen=True)
class Seed:
    """What one seed of a setting gave: its result and its curve, (epoch, value), in its metric's unit.

    `metrics` are the values of the spec's metrics by name, with their parameters, or why there is none.
    """

    result: float
    curve: Sequence[tuple[float, float]] = ()
    metrics: Mapping[str, float | str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunRecord) -> Seed:
        """What a record holds."""
        metrics: dict[str, float | str] = {
            one.name: one.value if one.value is not None else one.failed or "it gives no number"
            for one in run.result.metrics
        }
        return cls(run.result.shown, tuple((point.epoch, point.shown) for point in run.curve), metrics)

    def reached(self, value: float, metric: Metric) -> tuple[float, float] | None:
        """The first evaluated epoch with this value or a better one, and the one before it; None where none has it.

        >>> Seed(96.0, ((1.0, 93.0), (2.0, 96.0))).reached(95, METRICS["accuracy"])
        (2.0, 1.0)
        """
        before, slack = 0.0, 1e-9 * max(1.0, abs(value))  # 100 times 0.57 is less than 57
        for epoch, shown in self.curve:
            if metric.gain(shown - value) >= -slack:
                return epoch, before
            before = epoch
        return None


def full_name(name: str, asked: Sequence[str]) -> str:
    """The name with parameters of the metric that a spec asks for; the name itself where it asks for none of them.

    >>> full_name("sharpness", ["loss_surface", "sharpness (records = 5)"])
    'sharpness (records = 5)'
    """
    return next((one for one in asked if re.fullmatch(rf"{re.escape(name)}( \(.*\))?", one, re.DOTALL)), name)


def result_verdicts(
    subject: str,
    seeds: Sequence[Seed],
    published: Published,
    metric: Metric,
    *,
    asked: Sequence[str] = (),
    source: str = "",
    barred: str | None = None,
) -> list[Verdict]:
    """The verdicts on what is printed of a setting's results.

    The mean of this metric and how an accuracy spreads, the epochs that reach a value, and other metrics: those that
    the spec has `asked` for, by their names with parameters.
    """
    values = [one.result for one in seeds]
    mean, deviation, runs = published.of(metric), published.accuracy_deviation_percent, published.averaged_over
    found = []
    if mean is not None:
        found.append(metric_verdict(subject, values, mean, runs, metric=metric, source=source, barred=barred))
    if deviation is not None and metric.name == "accuracy":
        found.append(deviation_verdict(subject, values, deviation, runs, source=source, barred=barred))
    if published.accuracy_range is not None and metric.name == "accuracy":
        found.append(range_verdict(subject, values, published.accuracy_range, runs, source=source, barred=barred))
    for text, printed in published.epochs_to_reach.items():
        found.append(epoch_verdict(subject, seeds, text, printed, runs, metric=metric, source=source, barred=barred))
    for name, printed in published.measured.items():
        full = full_name(name, asked)
        gave = [one.metrics[full] for one in seeds if full in one.metrics]
        numbers = [one for one in gave if not isinstance(one, str)]
        lacks = barred
        if seeds and not numbers and barred is None:
            lacks = next(iter(map(str, gave)), "it was not measured: train again with --force")
        digits = max(2, round(-math.log10(2 * printed.half_unit)))
        found.append(_mean_verdict(f"printed_{name}", subject, numbers, printed, runs, digits, "", source, lacks))
    return found


def epoch_verdict(
    subject: str,
    seeds: Sequence[Seed],
    text: str,
    printed: Printed,
    averaged_over: int | None,
    *,
    metric: Metric = METRICS["accuracy"],
    source: str = "",
    barred: str | None = None,
) -> Verdict:
    """The printed first epoch after which the test records have a value of the metric against those of our seeds.

    Undecided where a seed does not reach it, whose epoch is not known, and where the interval holds every epoch of
    the training, so that no printed one could be refuted.
    """
    check = f"printed_epochs_to_{text}"
    found = [at for one in seeds if (at := one.reached(float(text), metric)) is not None]
    epochs = [epoch for epoch, _ in found]
    value = " ".join(filter(None, [text, metric.unit]))
    last = max((epoch for one in seeds for epoch, _ in one.curve), default=0.0)
    if barred is None and seeds and not last:
        barred = "its runs were not evaluated along the training"
    if barred is None and len(found) < len(seeds):
        never = f"{len(seeds) - len(found)} of {len(seeds)} seeds do not reach {value} in {last:.4g} epochs"
        evidence = {"printed": printed.text, "seeds": len(seeds), "reached": epochs}
        return Verdict(check, subject, "undecided", f"printed {printed.text}; {never}", evidence, 0.0, source)
    interval = None
    if (count := len(found)) > 1:
        gap, runs = max(epoch - before for epoch, before in found), averaged_over or 1
        unseen = gap * math.sqrt((count // 2) * ((count + 1) // 2) / (count * (count - 1)))
        more = student(count - 1, LEVEL) * unseen * math.sqrt(1 / count + 1 / runs)
        low, high = prediction_interval(epochs, runs, printed.half_unit)
        interval = max(0.0, low - gap - more), high + 1 + more
    verdict = _mean_verdict(check, subject, epochs, printed, averaged_over, 1, "epochs", source, barred, interval)
    if not epochs or barred is not None:
        return verdict
    verdict = replace(verdict, reason=f"{value}: {verdict.reason}")
    if interval is not None and interval[0] <= 1 and interval[1] >= last:
        reason = f"{verdict.reason}: every epoch of the training, so these seeds tell nothing"
        return replace(verdict, verdict="undecided", reason=reason, false_alarm=0.0)
    return verdict


def range_verdict(
    subject: str,
    values: Sequence[float],
    printed: tuple[Printed, Printed],
    runs: int | None,
    *,
    source: str = "",
    barred: str | None = None,
) -> Verdict:
    """The printed lowest and highest of `runs` accuracies in % (None: two are assumed) against those of our seeds."""
    text = f"{printed[0].text} to {printed[1].text}"
    check, evidence = "printed_accuracy_range", {"printed": text, "seeds": len(values)}
    if barred is not None or not values:
        reason = "no finished run" if barred is None else f"not compared: {barred}"
        return Verdict(check, subject, "not_run", reason, evidence, 0.0, source)
    over, least, most = max(2, runs or 2), min(values), max(values)
    chance = 2 / math.comb(over + len(values), over)
    evidence |= {"least": least, "most": most, "averaged_over": runs}
    stated = f"{over} runs" if runs and runs > 1 else "two runs (how many is not stated)"
    said = f"ours from {least:.2f} to {most:.2f} over {len(values)} seeds, printed {text} of {stated}"
    low, high = (one.value + sign * one.half_unit * (1 + _SLACK) for one, sign in zip(printed, (-1, 1), strict=True))
    if chance > 1 - LEVEL:
        reason = f"{said}; so few runs lie apart in {chance:.0%} of cases"
        return Verdict(check, subject, "undecided", reason, evidence, 0.0, source)
    apart = least > high or most < low
    how = "all of ours lie outside of it on one side" if apart else "they overlap"
    reason = f"{said}; {how} (with equal distributions they lie apart in {chance:.1%} of cases)"
    return Verdict(check, subject, "refuted" if apart else "holds", reason, evidence, chance, source)


def deviation_verdict(
    subject: str,
    values: Sequence[float],
    printed: Printed,
    runs: int | None,
    *,
    source: str = "",
    barred: str | None = None,
) -> Verdict:
    """The printed standard deviation of `runs` accuracies in % (None: two are assumed) against that of our seeds."""
    check, evidence = "printed_accuracy_deviation", {"printed": printed.text, "seeds": len(values)}
    if barred is not None or not values:
        reason = "no finished run" if barred is None else f"not compared: {barred}"
        return Verdict(check, subject, "not_run", reason, evidence, 0.0, source)
    ours = spread(values).deviation
    if ours is None:
        reason = f"printed a deviation of {printed.text}; one seed has none"
        return Verdict(check, subject, "undecided", reason, evidence, 0.0, source)
    over = max(2, runs or 2)
    low, high = deviation_interval(values, over, printed.half_unit)
    evidence |= {"deviation": ours, "averaged_over": runs, "low": low, "high": high, "level": LEVEL}
    holds = low - _SLACK * printed.half_unit <= printed.value <= high + _SLACK * printed.half_unit
    said = f"{over} runs" if runs and runs > 1 else "two runs (how many is not stated)"
    place = f"{'inside' if holds else 'outside'} the 95 % prediction interval for {said}"
    reason = (
        f"ours deviates by {ours:.3f} over {len(values)} seeds, printed {printed.text}; {place},"
        f" {max(0.0, low):.3f} to {high:.3f}"
    )
    return Verdict(check, subject, "holds" if holds else "refuted", reason, evidence, round(1 - LEVEL, 12), source)


def metric_verdict(
    subject: str,
    values: Sequence[float],
    printed: Printed,
    averaged_over: int | None,
    *,
    metric: Metric = METRICS["accuracy"],
    source: str = "",
    barred: str | None = None,
) -> Verdict:
    """The printed metric against our seeds' last-epoch values, both in its unit (accuracy: per cent).

    `barred` says why the two may not be compared (a reduced setting, synthetic data). If the source does not say over
    how many runs it averages, one is assumed, which gives the widest interval.
    """
    check, digits = f"printed_{metric.name}", metric.decimals
    return _mean_verdict(check, subject, values, printed, averaged_over, digits, metric.points, source, barred)


def _mean_verdict(
    check: str,
    subject: str,
    values: Sequence[float],
    printed: Printed,
    averaged_over: int | None,
    digits: int,
    unit: str = "",
    source: str = "",
    barred: str | None = None,
    interval: tuple[float, float] | None = None,
) -> Verdict:
    """A printed mean of runs against the values of our seeds; `unit` is that of a difference.

    `interval` is used in place of the prediction interval of a mean.
    """
    if barred is not None or not values:
        reason = "no finished run" if barred is None else f"not compared: {barred}"
        return Verdict(check, subject, "not_run", reason, {"printed": printed.text}, 0.0, source)
    ours = spread(values)
    difference = ours.mean - printed.value
    evidence = {
        "printed": printed.text,
        "averaged_over": averaged_over,
        "seeds": ours.count,
        "mean": ours.mean,
        "deviation": ours.deviation,
        "difference": difference,
    }
    stated = f"ours {ours.mean:.{digits}f}, printed {printed.text}: a difference of {difference:+.{digits}f}"
    stated += f" {unit}" * bool(unit)
    if ours.count < 2:
        reason = f"{stated}; one seed does not show the deviation of seeds"
        return Verdict(check, subject, "undecided", reason, evidence, 0.0, source)
    runs = averaged_over or 1
    low, high = interval or prediction_interval(values, runs, printed.half_unit)
    evidence |= {"low": low, "high": high, "level": LEVEL}
    holds = low - _SLACK * printed.half_unit <= printed.value <= high + _SLACK * printed.half_unit
    over = "a single run (how many were averaged is not stated)" if averaged_over is None else "a single run"
    over = f"the mean of {runs} runs" if runs > 1 else over
    reason = (
        f"{stated}; {'inside' if holds else 'outside'} the 95 % prediction interval for {over}, {low:.{digits}f}"
        f" to {high:.{digits}f}"
    )
    return Verdict(check, subject, "holds" if holds else "refuted", reason, evidence, round(1 - LEVEL, 12), source)


def number_verdict(
    check: str,
    subject: str,
    value: float,
    printed: Printed,
    *,
    lower: float | None = None,
    upper: float | None = None,
    source: str = "",
) -> Verdict:
    """A printed ε or μ against ours, rounded to the printed digits; a tie may be rounded either way.

    With an enclosure (`lower` and `upper`) the verdict is `undecided` when only part of it rounds to what is printed.

    >>> number_verdict("printed_epsilon", "row 1", 0.8349, Printed.of("0.83")).verdict
    'holds'
    """
    evidence = {"printed": printed.text, "ours": value, "lower": lower, "upper": upper}
    if not math.isfinite(value):
        reason = f"ours is {'infinite' if math.isinf(value) else 'not a number'}, printed {printed.text}"
        return Verdict(check, subject, "refuted", reason, evidence, 0.0, source)
    reach = printed.half_unit * (1 + _SLACK)
    low, high = (value if lower is None else lower), (value if upper is None else upper)
    stated = f"ours {value:.6g}, printed {printed.text}"
    if low >= printed.value - reach and high <= printed.value + reach:
        return Verdict(check, subject, "holds", f"{stated}: the same when rounded", evidence, 0.0, source)
    if low <= printed.value + reach and high >= printed.value - reach:
        reason = f"{stated}: our enclosure, {low:.6g} to {high:.6g}, is too wide to decide the last digit"
        return Verdict(check, subject, "undecided", reason, evidence, 0.0, source)
    gap = value - printed.value
    note = ""
    if abs(gap) < 2 * reach:
        note = f" ({'cut off' if gap > 0 else 'rounded up'} after the last printed digit, ours would be the same)"
    relative = f" ({gap / printed.value:+.1%})" if printed.value else ""
    reason = f"{stated}: a difference of {gap:+.3g}{relative}{note}"
    return Verdict(check, subject, "refuted", reason, evidence, 0.0, source)


def student(degrees: float, level: float) -> float:
    """The two-sided quantile of Student's t: P(|t| <= value) = level."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2))
