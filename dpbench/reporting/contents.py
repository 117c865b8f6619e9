"""What a report shows, as frozen data: every number is already computed; `to_json` gives plain data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from dpbench.conformance import Conformance
from dpbench.judging.claims.summary import ClaimsReport
from dpbench.judging.coverage import CoveredItem
from dpbench.judging.reproduction import Spread, plus_minus
from dpbench.privacy.answers import PROMISES
from dpbench.spec.keys import Printed, Published
from dpbench.store.records import finite
from dpbench.store.run_key import BY_RUN, FASTEST
from dpbench.store.shapes import Checked, Context, Facts, FailureRecord
from dpbench.store.speed import Speed
from dpbench.tasks import METRICS, Metric, MetricName
from dpbench.verdicts import VERDICTS, Verdict


@dataclass(frozen=True)
class GuaranteeLine:
    """ε at δ and μ by one accountant; `refused` says why there is none. `requested`: the spec asked for it.

    `unchecked`: no check has tested whether the mechanism does what its ledger says. `doubt`: what the accountant got
    wrong when it was held against enclosures. `version`: the accountant's. `remark`: what shuffled batches have to say.
    `with_noise`: of an ε that is only claimed because some steps have no noise, the exact ε if all of them had theirs.
    """

    accountant: str
    kind: str | None
    adjacency: str | None
    delta: float | None
    epsilon: float | None
    lower: float | None
    upper: float | None
    mu: float | None
    refused: str | None
    requested: bool = True
    unchecked: bool = False
    doubt: str | None = None
    version: str | None = None
    remark: str | None = None
    with_noise: float | None = None

    @property
    def said(self) -> str | None:
        """The kind as it is shown beside the number; None where there is no number."""
        if self.kind is None:
            return None
        doubts = ["unchecked"] * self.unchecked + ["its accountant fails conform"] * (self.doubt is not None)
        return ", ".join([self.kind.replace("_", " "), *doubts])

    @property
    def promise(self) -> bool:
        """Whether the number is a guarantee: its kind is a promise, and neither mechanism nor accountant is doubted."""
        return self.kind in PROMISES and not self.unchecked and self.doubt is None

    @property
    def safe(self) -> float:
        """The end of ε on which one may rely; infinite where there is no number."""
        ends = (self.upper, self.epsilon)
        return next((end for end in ends if end is not None), math.inf)


@dataclass(frozen=True)
class CurveLine:
    """One evaluation along training, over the seeds: the metric in its unit, seconds, losses, ε spent by accountant.

    `seconds` are those of the stack's clock times the run's own share of them; ε is that of the row's figures.
    """

    epoch: float
    step: int
    seconds: float
    measured: Spread
    train_loss: float | None
    test_loss: float | None
    epsilon: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """The resolved configuration of a row, for people. `epochs` is T·q; `prepared` how a user's file became data."""

    dataset: str
    model: str
    mechanism: str
    sampling_rate: float
    steps: int
    epochs: float
    learning_rate: float | None
    clip_norm: float | None
    noise_multiplier: float | None
    prepared: str | None = None


@dataclass(frozen=True)
class MetricLine:
    """What a metric of a spec found over the seeds of a row: a value, or the surface of one seed.

    Both None: no record has it, or it `failed`. Measured on private data; covered by no ε. `along`: (epoch, value) of
    the evaluations that all seeds share, the end among them; `surfaces_along`: (step, surface) before it, of that seed.
    """

    name: str
    value: Spread | None = None
    surface: Mapping[str, Any] | None = None
    surface_seed: int | None = None
    records: int = 0
    failed: str = ""
    along: tuple[tuple[float, Spread], ...] = ()
    surfaces_along: tuple[tuple[int, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True)
class Row:
    """One configuration over its seeds.

    `variant` distinguishes rows of one label when the spec changed between runs; `barred` says why nothing printed is
    compared with it; `engine` is what the runs were computed with. `measured` is in its metric's unit (accuracy:
    per cent), seconds are per run.
    `checked`: what is known of the mechanism's code, the worst of the seeds; None where the row is not private.
    `summed_by`: the clipping engine that training chose, or the way of a rule that sums itself, in words; "" where it
    had no choice.
    """

    id: str
    label: str
    variant: str
    context: Context
    facts: Facts
    settings: Settings
    seeds: tuple[int, ...]
    run_keys: tuple[str, ...]
    failed_seeds: tuple[int, ...]
    measured: Spread
    test_loss: Spread | None
    seconds: Spread
    guarantees: tuple[GuaranteeLine, ...]
    verdicts: tuple[Verdict, ...]
    curve: tuple[CurveLine, ...]
    barred: str | None = None
    stale_seeds: tuple[int, ...] = ()
    checked: Checked | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    summed_by: str = ""
    metric_name: MetricName = "accuracy"
    metrics: tuple[MetricLine, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric of the row's runs."""
        return METRICS[self.metric_name]

    @property
    def other_verdicts(self) -> list[Verdict]:
        """The verdicts on what is printed besides its own result: epochs that reach a value, and other metrics."""
        published = self.context.published or Published()
        names = [*(f"epochs_to_{value}" for value in published.epochs_to_reach), *published.measured]
        return [one for one in self.verdicts if one.check.removeprefix("printed_") in names]

    @property
    def figures(self) -> str:
        """Mean ± half the width of its interval, without the unit."""
        return plus_minus(self.measured, self.metric.decimals)

    @property
    def reached(self) -> str:
        """The same with the unit."""
        return " ".join(filter(None, [self.figures, self.metric.unit]))

    @property
    def nothing_learned(self) -> str:
        """That one class for all records would be as accurate; "" where the runs are better, or it is not known."""
        share = self.facts.most_frequent
        if share is None or self.metric_name != "accuracy":
            return ""
        alone = share * self.metric.scale
        if self.measured.mean > alone * (1 + 1e-6):  # what float32 may round
            return ""
        return f"no better than the most frequent class alone, {self.metric.text(alone)}"

    @property
    def printed(self) -> Printed | None:
        """What the source prints for the metric."""
        published = self.context.published
        return None if published is None else published.of(self.metric)

    @property
    def metric_verdict(self) -> Verdict | None:
        """The verdict on that."""
        return self.verdict(f"printed_{self.metric_name}")

    @property
    def withheld(self) -> bool:
        """Whether a check refuted the mechanism, so that no ε is stated."""
        return self.checked is not None and self.checked.verdict == "refuted"

    @property
    def unchecked(self) -> bool:
        """Whether no check has tested the mechanism."""
        return self.checked is not None and self.checked.verdict == "unchecked"

    @property
    def promised(self) -> GuaranteeLine | None:
        """The tightest finite ε that is promised."""
        lines = [line for line in self.guarantees if line.promise and line.safe < math.inf]
        return min(lines, key=lambda line: line.safe, default=None)

    @property
    def shown(self) -> GuaranteeLine | None:
        """The line of the row's own figures: the tightest promise, else the smallest finite ε of the others.

        Never one that is only claimed.
        """
        computed = [line for line in self.guarantees if line.kind != "claimed"]
        lines = [line for line in computed if line.epsilon is not None and line.epsilon < math.inf]
        return self.promised or min(lines, key=lambda line: line.safe, default=None)

    @property
    def no_promise(self) -> str | None:
        """Why no ε is promised; None where one is, or where the row is not private."""
        if not self.facts.private or self.promised is not None:
            return None
        if self.checked is not None and self.checked.verdict != "holds":
            word = "withheld, the mechanism is refuted" if self.withheld else "unchecked"
            return f"{word}: {self.checked.reason}"
        reasons = [
            f"{line.accountant}: {line.refused or (line.said if line.safe < math.inf else 'infinite')}"
            for line in self.guarantees
        ]
        return "; ".join(reasons) or "its records hold no ledger"

    @property
    def title(self) -> str:
        """The label with its variant, or the spec's name where there is only one row."""
        return " · ".join(filter(None, [self.label or self.context.name, self.variant]))

    @property
    def other_engine(self) -> str | None:
        """The engine of the runs, in words, where the spec asks for another one, whose time is not known."""
        asked = {name: value for name, value in self.context.engine.items() if value != FASTEST}
        used = {name: BY_RUN.get(one, one) for name, one in self.engine.items()}
        if not used or asked.items() <= used.items():
            return None
        return ", ".join(f"{name} = {value}" for name, value in self.engine.items())

    @property
    def seconds_per_epoch(self) -> float | None:
        """Measured training time over the epochs T·q, on this machine; None if another engine was used."""
        if self.other_engine:
            return None
        return self.seconds.mean / (self.settings.sampling_rate * self.settings.steps)

    @property
    def full_title(self) -> str:
        """Spec, label and variant."""
        return " · ".join(filter(None, [self.context.name, self.label, self.variant]))

    def guarantee(self, accountant: str | None) -> GuaranteeLine | None:
        """The line of that accountant."""
        return next((line for line in self.guarantees if line.accountant == accountant), None)

    def epsilon(self, accountant: str | None) -> float | None:
        """ε by that accountant, None where there is none."""
        line = self.guarantee(accountant)
        return None if line is None else line.epsilon

    def verdict(self, check: str, accountant: str | None = None) -> Verdict | None:
        """The verdict on one printed number of this row."""
        wanted = (check, accountant)
        return next((one for one in self.verdicts if (one.check, one.evidence.get("accountant")) == wanted), None)


@dataclass(frozen=True)
class Section:
    """All rows of one spec.

    `baselines`: ids of the rows, of any section, that train the same model on the same data without noise.
    `shipped`: these records came with the project, in OUT/published.
    """

    id: str
    name: str
    source: str | None
    file: str
    rows: tuple[Row, ...]
    failures: tuple[FailureRecord, ...]
    accountants: tuple[str, ...]
    baselines: tuple[str, ...]
    shipped: bool = False


@dataclass(frozen=True)
class Comparison:
    """Every private row with one metric, model and dataset, at its tightest promised ε, and the baselines.

    `series`: (name, ids of the rows) for each spec, and for each mechanism where a spec has several. `baselines`: ids
    of the rows without noise: the reader's own, else those that came with the project.
    """

    id: str
    dataset: str
    model: str
    series: tuple[tuple[str, tuple[str, ...]], ...]
    baselines: tuple[str, ...]
    shipped: bool = False
    metric_name: MetricName = "accuracy"

    @property
    def metric(self) -> Metric:
        """The metric of its rows."""
        return METRICS[self.metric_name]


@dataclass(frozen=True)
class RecordLine:
    """One record, for the table of all records. `stale` names the versions of code that were raised since.

    `trusted` names what other records are held to and this one is not, such as `no digest`.
    """

    run_key: str
    name: str
    label: str
    seed: int
    row: str
    measured: float
    steps: int
    device: str
    device_name: str
    seconds: float
    own_seconds: float | None
    stack_runs: int
    commit: str | None
    dirty: bool | None
    time_utc: str
    resumed: bool
    stale: tuple[str, ...]
    reduced: str | None
    shipped: bool = False
    trusted: tuple[str, ...] = ()
    metric_name: MetricName = "accuracy"

    @property
    def reached(self) -> str:
        """What was measured, with its unit."""
        return METRICS[self.metric_name].text(self.measured)


@dataclass(frozen=True)
class CoverageLine:
    """A table or figure of a paper, and what ran of it; `item` says which specs run it, or why none does.

    `names` are those of its specs, `configurations` their settings, `rows` the ids of the rows of those that ran whole,
    `reduced` of those that ran on a shorter schedule. `seeds`: the fewest and the most of a row, and how many the spec
    asks for. `verdict` is on all printed results together, for the `reason`; `claims`: names and verdicts ("" before
    they are judged) of what else judges it.
    """

    paper: str
    title: str
    item: CoveredItem
    names: tuple[str, ...] = ()
    configurations: int = 0
    rows: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    seeds: tuple[int, int, int] | None = None
    devices: tuple[str, ...] = ()
    printed: int = 0
    verdict: str = ""
    reason: str = ""
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """Its anchor in the page."""
        return f"coverage-{self.paper}-{self.item.place.lower().replace(' ', '-').replace('.', '-')}"

    @property
    def ran_whole(self) -> bool:
        """Whether every configuration of its specs has a row."""
        return bool(self.rows) and len(self.rows) >= self.configurations

    @property
    def pictures(self) -> tuple[str, ...]:
        """The claims whose evidence, drawn, is this figure: those of a figure for which nothing is trained."""
        drawn = self.item.untrained and self.item.place.startswith("Figure")
        return tuple(name for name, _ in self.claims) if drawn else ()


@dataclass(frozen=True)
class EnvironmentLine:
    """An environment in which records were made, and how many."""

    facts: Mapping[str, Any]
    records: int


@dataclass(frozen=True)
class Notice:
    """Something that limits the trust in the numbers; `level` is `problem` or `caution`.

    `shipped`: it is about records that came with the project.
    """

    level: str
    text: str
    anchor: str = ""
    shipped: bool = False


@dataclass(frozen=True)
class Report:
    """Everything that one report shows."""

    sections: tuple[Section, ...]
    comparisons: tuple[Comparison, ...]
    records: tuple[RecordLine, ...]
    failures: tuple[FailureRecord, ...]
    damaged: tuple[str, ...]
    notices: tuple[Notice, ...]
    environments: tuple[EnvironmentLine, ...]
    environment: Mapping[str, Any]
    claims: ClaimsReport | None = None
    conformance: Conformance | None = None
    speed: Speed | None = None
    coverage: tuple[CoverageLine, ...] = ()
    schema_version: int = 1
    type: str = "assessment"

    def rows(self) -> Iterator[Row]:
        """Every row of every section."""
        for section in self.sections:
            yield from section.rows

    @cached_property
    def by_id(self) -> Mapping[str, Row]:
        """Every row by its id."""
        return {row.id: row for row in self.rows()}

    def row(self, row_id: str) -> Row:
        """The row of that id."""
        return self.by_id[row_id]

    def part(self, shipped: bool) -> Report:
        """The same report of the reader's own records alone, or of those alone that came with the project."""
        parts = ("sections", "comparisons", "records", "notices")
        kept: dict[str, Any] = {
            name: tuple(one for one in getattr(self, name) if one.shipped is shipped) for name in parts
        }
        return replace(self, **kept, failures=() if shipped else self.failures)

    def verdicts(self) -> Iterator[Verdict]:
        """Every verdict of every row."""
        for row in self.rows():
            yield from row.verdicts

    def counts(self) -> dict[str, int]:
        """How many verdicts there are of each word, zeros included."""
        return dict.fromkeys(VERDICTS, 0) | Counter[str](verdict.verdict for verdict in self.verdicts())

    def expected_false_alarms(self) -> float:
        """How many true printed numbers are refuted by chance on average, if all of them are true."""
        return sum(verdict.false_alarm for verdict in self.verdicts() if verdict.verdict in ("holds", "refuted"))

    def to_json(self) -> dict[str, Any]:
        """Plain data; a number that is not finite is null beside its reason."""
        data: dict[str, Any] = finite(asdict(self))
        return data
