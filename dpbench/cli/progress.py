"""What `dpbench run` and `plan` show: the plan, progress, and the same as lines of JSON."""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from dpbench.cli.console import LINE_SECONDS, Watch, emit
from dpbench.job import Watcher
from dpbench.plan.planning import HAS_A_RECORD, Plan, Run, Stack
from dpbench.privacy.formatting import SIGNS, bound, duration, seeds
from dpbench.tasks import CLASSIFICATION, metric_of

if TYPE_CHECKING:
    from dpbench.job import Summary
    from dpbench.store.shapes import Checked
    from dpbench.training.loop import Outcome, Progress


def outcome_line(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"failed    {outcome.run.title}: {outcome.error}"
    assert outcome.result is not None
    result = outcome.result["result"]
    metric = metric_of(result)
    assert metric is not None
    return f"finished  {outcome.run.title}: {metric.said(metric.scale * result[metric.field])}"


def checked_line(name: str, found: Checked) -> str:
    """The verdict of the checks on a mechanism, and what it means for its ε."""
    means = {"refuted": "its ε is withheld", "unchecked": "its ε is marked as unchecked"}.get(found.verdict)
    return f"{found.verdict:<9} {name}: {found.reason}" + (f"; {means}" if means else "")


class QuietWatcher(Watcher):
    """Shows nothing."""

    every_epsilon = False


class SayingWatcher(QuietWatcher):
    """For people: a line for every event but progress, on standard error; a watch on the report."""

    _report: Watch | None = None
    _plan: Watch | None = None

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)

    def anew(self, run: Run, why: str) -> None:
        self._console.print(f"anew      {run.title}: its checkpoint is not used ({why})")

    def planning(self, what: str, done: int, of: int) -> None:
        if self._plan is None:
            self._plan = Watch("done")
            self._plan.__enter__()
        self._plan(what, done, of)

    def planned(self, plan: Plan) -> None:
        self._end_of_planning()
        self._console.print(plan_line(plan))
        for line in warning_lines(plan):
            self._console.print(line)

    def checking(self, name: str) -> None:
        self._console.print(f"checking {name}")

    def checked(self, name: str, found: Checked) -> None:
        self._console.print(checked_line(name, found))

    def again(self, stack: Stack, why: str) -> None:
        self._console.print(f"again     {stack.title}: {why}; another one goes on")

    def ended(self, outcome: Outcome, path: Path | None) -> None:
        del path
        self._console.print(outcome_line(outcome))

    def reporting(self, what: str, done: int, of: int) -> None:
        if self._report is None:
            self._report = Watch("parts of the report")
            self._report.__enter__()
        self._report(what, done, of)

    def _end_of_planning(self) -> None:
        if self._plan is not None:
            self._plan.__exit__()
            self._plan = None

    def close(self) -> None:
        self._end_of_planning()
        if self._report is not None:
            self._report.__exit__()
            self._report = None


class LineWatcher(SayingWatcher):
    """Without a terminal: also a line when a stack starts, and one every LINE_SECONDS; with `each` one for each run."""

    def __init__(self, *, each: bool = False) -> None:
        super().__init__()
        self._each = each

    def ended(self, outcome: Outcome, path: Path | None) -> None:
        if self._each or outcome.error is not None:
            super().ended(outcome, path)

    def stack(self, stack: Stack, number: int, of: int) -> None:
        self._last = self._begin = time.monotonic()
        self._first: int | None = None
        self._console.print(f"stack {number} of {of}: {stack.title}")

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._first is None or progress.done < self._first:  # work that lacked memory may begin anew
            self._first, self._begin = progress.done, now
        if now - self._last < LINE_SECONDS or progress.done == self._first:
            return
        rate = (progress.done - self._first) / (now - self._begin)
        left = duration((progress.total - progress.done) / rate)
        self._console.print(f"  {progress.done:,} of {progress.total:,} steps, {rate:,.0f} steps/s, {left} left")
        self._last = now


class JsonWatcher(Watcher):
    """One JSON object per line on standard output for every event."""

    def planned(self, plan: Plan) -> None:
        for run in plan.runs:
            emit("planned", **run_facts(run))

    def stack(self, stack: Stack, number: int, of: int) -> None:
        emit("stack", number=number, of=of, runs=[run.key for run in stack.runs])

    def checked(self, name: str, found: Checked) -> None:
        emit("checked", mechanism=name, **vars(found))

    def anew(self, run: Run, why: str) -> None:
        emit("anew", run_key=run.key, title=run.title, reason=why)

    def again(self, stack: Stack, why: str) -> None:
        emit("again", runs=[run.key for run in stack.runs], reason=why)

    def ended(self, outcome: Outcome, path: Path | None) -> None:
        result = None if outcome.result is None else outcome.result["result"]
        place = None if path is None else str(path)
        emit("ended", run_key=outcome.run.key, title=outcome.run.title, result=result, error=outcome.error, file=place)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} steps/s" if task.speed else "")


class BarWatcher(SayingWatcher):
    """For terminals: one bar for the stack at work with its rate and the time left, then one for the report."""

    _bars: Bars | None = None

    def stack(self, stack: Stack, number: int, of: int) -> None:
        self.close()
        self._title = f"[{number}/{of}] {stack.title}"

    def progress(self, progress: Progress) -> None:
        if self._bars is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), _Rate())
            self._bars = Bars(*columns, TimeRemainingColumn(), console=self._console, transient=True)
            # A resumed run starts at its step, so that the rate counts only the steps done now.
            self._bars.add_task(self._title, total=progress.total, completed=progress.done)
            self._bars.start()
        self._bars.update(self._bars.task_ids[0], completed=progress.done)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        super().close()


def run_facts(run: Run) -> dict[str, Any]:
    """A planned run as plain data."""
    budget, epsilon, reason = run.spec.budget, run.epsilon, None
    if run.checked is not None and run.checked.verdict == "refuted":
        epsilon, reason = None, f"withheld, the mechanism is refuted: {run.checked.reason}"
    elif epsilon is not None and math.isinf(epsilon):
        epsilon, reason = None, "infinite"
    same = (
        *("epsilon_kind", "epsilon_by", "epsilon_version", "epsilon_because", "true_epsilon", "wasted", "warning"),
        *("adjacency", "seed", "sampling_rate", "steps", "noise_multiplier", "action", "device"),
    )
    return {
        "run_key": run.key,
        "spec": run.spec.name,
        "label": run.spec.label,
        **{name: getattr(run, name) for name in same},
        "epsilon": epsilon,
        "epsilon_reason": reason,
        "checked": None if run.checked is None else run.checked.verdict,
        "delta": None if budget is None else budget.delta,
        "reason": run.reason,
        "estimated_seconds": run.estimate,
        "loss": run.objective.loss,
        "metric": run.objective.metric,
    }


def plan_line(plan: Plan) -> str:
    due = [run for stack in plan.stacks for run in stack.runs]
    counts: Counter[str] = Counter(run.action for run in plan.runs)
    words = {"exists": "have a record", "stale": "have a stale record", "skip": "are skipped"}
    others = [f"{counts[action]} {text}" for action, text in words.items() if counts[action]]
    about = f" (about {duration(sum(run.estimate or 0.0 for run in due))})" if due else ""
    return f"{len(plan.runs)} run{'s' * (len(plan.runs) != 1)}: {', '.join([f'{len(due)} to train{about}', *others])}"


def plan_table(plan: Plan, width: int) -> Table:
    """One line for all seeds of a row or grid point with the same action and reason; no δ and T in a narrow window."""
    others = 84 if _any_waste(plan) else 76  # columns that stand beside the names
    left_out = {*(("δ", "T") if width < others + 20 else ()), *(("wasted",) if others == 76 else ())}
    name_width = max(22, width - others)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold", min_width=20)  # wrapped by hand, for rich breaks words anywhere
    table.add_column("seeds", overflow="fold")
    for name in ("σ", "ε", "wasted", "δ", "T", "time"):
        if name not in left_out:
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what", no_wrap=True)
    notes = _notes(plan)
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in plan.runs:
        groups.setdefault((run.spec.name, run.spec.label, run.action, run.reason), []).append(run)
    for (name, label, action, reason), runs in groups.items():
        first = runs[0]
        cells = {
            "run": "\n".join(textwrap.wrap(f"{name} [{label}]" if label else name, name_width)),
            "seeds": seeds(tuple(run.seed for run in runs)),
            "σ": "–" if first.noise_multiplier is None else f"{first.noise_multiplier:.6g}",
            "ε": _epsilon(first),
            "wasted": _wasted(first),
            "δ": "–" if first.spec.budget is None else f"{first.spec.budget.delta:g}",
            "T": f"{first.steps:,}",
            "time": duration(sum(run.estimate or 0.0 for run in runs)) if first.estimate else "–",
            "what": f"{action} ({notes[action, reason]})",
        }
        table.add_row(*(cell for column, cell in cells.items() if column not in left_out))
    return table


def _epsilon(run: Run) -> str:
    if run.spec.budget is None:
        return "–"
    if not run.epsilon_kind:
        return f"refused {run.epsilon_by}"
    verdict = "holds" if run.checked is None else run.checked.verdict
    if run.epsilon_kind == "claimed":
        return f"{bound(run.epsilon)} claimed"
    text = f"{SIGNS.get(run.epsilon_kind, '')} {bound(run.epsilon, run.epsilon_kind)} {run.epsilon_by}".strip()
    return {"refuted": "withheld", "unchecked": f"{text}, unchecked"}.get(verdict, text)


def _wasted(run: Run) -> str:
    """The part of the target that the true ε does not reach, in per cent; "over" where it goes beyond."""
    if run.wasted is None:
        return "–"
    return f"{100 * run.wasted:.0f} %" if run.wasted > -0.005 else f"over by {-100 * run.wasted:.0f} %"


def _any_waste(plan: Plan) -> bool:
    """Whether a calibrated run misses its target by a per cent that the table would show."""
    return any(_wasted(run) not in ("–", "0 %") for run in plan.runs)


def plan_notes(plan: Plan) -> list[str]:
    """The reasons that the table's last column refers to by number, what `wasted` means, what is not as usual."""
    found = [f"({number}) {action}: {reason}" for (action, reason), number in _notes(plan).items()]
    if _any_waste(plan):
        found.append("wasted: the part of the target ε that calibration leaves unspent, by the exact accountant.")
    others: dict[tuple[str, str], int] = {}
    for run in plan.runs:
        if run.epsilon_by and run.epsilon_because and run.epsilon_by != "exact":
            why = (run.epsilon_by, run.epsilon_because)
            others[why] = others.get(why, 0) + 1
    found += [
        f"ε by {by} in {count} run{'s' * (count > 1)} without `calibrate_with`: {why}."
        for (by, why), count in others.items()
    ]
    found += _unusual(plan, "neighbours", lambda run: run.adjacency or "add_or_remove", "add_or_remove")
    found += _unusual(plan, "loss", lambda run: run.objective.loss, CLASSIFICATION.loss)
    found += _unusual(plan, "metric", lambda run: run.objective.metric, CLASSIFICATION.metric)
    return [*found, *warning_lines(plan)]


def _unusual(plan: Plan, what: str, of: Callable[[Run], str], usual: str) -> list[str]:
    """A line that says where something is not as usual; none where it is so everywhere.

    It names specs, and of one that has several kinds the rows, or how many where they are more than two.
    """
    rows: dict[str, dict[str, dict[str, None]]] = {}
    for run in plan.runs:
        rows.setdefault(run.spec.name, {}).setdefault(of(run), {})[run.spec.label] = None
    found: dict[str, list[str]] = {}
    for spec, kinds in rows.items():
        count = sum(map(len, kinds.values()))
        for kind, labels in kinds.items():
            some = ", ".join(labels) if len(labels) <= 2 else f"{len(labels)} of {count} rows"
            found.setdefault(kind, []).append(spec if len(kinds) == 1 else f"{spec} [{some}]")
    words = [f"{name.replace('_', ' ')} in {', '.join(specs)}" for name, specs in found.items() if name != usual]
    rest = [f"{usual.replace('_', ' ')} in all others"] if usual in found else []
    return [f"{what}: {'; '.join([*words, *rest])}."] if words else []


def warning_lines(plan: Plan) -> list[str]:
    """Each warning about a budget once, with the specs that it is about; not of runs that are skipped."""
    about: dict[str, dict[str, None]] = {}
    for run in plan.runs:
        if run.warning is not None and run.action != "skip":
            about.setdefault(run.warning, {})[run.spec.name] = None
    return [f"Warning: {', '.join(names)}: {text}." for text, names in about.items()]


def _notes(plan: Plan) -> dict[tuple[str, str], int]:
    found = dict.fromkeys((run.action, run.reason) for run in plan.runs)
    return {note: number for number, note in enumerate(found, 1)}


MOST_RESULTS = 20  # rows that a summary lists
_ABSENT = re.compile(r"dataset (.+) is absent; get it: (dpbench data fetch )(\S+)(.*)")  # what the plan says
_BROUGHT = re.compile(r"dataset \w+: (\S+) is not there: .* \(docs/own_dataset\.md\)")


def summary_text(summary: Summary, command: str) -> str:
    """What was done, what came with the project, what needs data, each failure with its log, and how to go on."""
    due = summary.count("train")
    specs = len({run.spec.name for run in summary.finished})
    done = f"{len(summary.finished)} of {due} runs finished in {duration(summary.seconds)}"
    lines = [f"{done}, of {specs} spec{'s' * (specs > 1)}." if specs else f"{done}." if due else "Nothing to train."]
    lines += warning_lines(summary.plan)
    lines += [f"  {line}" for line in summary.results[:MOST_RESULTS]]
    rest = len(summary.results) - MOST_RESULTS
    lines += [f"  ... and {rest} more in the report"] * (rest > 0)
    there = []
    if summary.count("exists"):
        there.append(f"{summary.count('exists')} runs have a record already (--force runs them again).")
    if summary.shipped:
        there.append(f"{summary.shipped} records came with the project; the report shows them below yours.")
    lines += [" ".join(there)] * bool(there)
    reasons = Counter((run.action, run.reason) for run in summary.plan.runs)
    lines += _needed({reason: count for (action, reason), count in reasons.items() if action == "skip"})
    lines += [
        f"{count} runs: {reason}."
        for (what, reason), count in reasons.items()
        if what == "exists" and reason != HAS_A_RECORD
    ]
    lines += [f"{count} runs stale: {reason}." for (what, reason), count in reasons.items() if what == "stale"]
    for name, found in summary.checks:
        if found.verdict != "holds":
            lines.append(checked_line(name, found))
    for failure in summary.failures:
        log = f"; log: {failure.log}" if failure.log else ""
        lines.append(f"FAILED {failure.run.title}: {failure.error}{log}")
    if summary.interrupted:
        fresh = sum(run.spec.randomness == "secure" for run in summary.unfinished)
        kept = f"{len(summary.unfinished) - fresh} unfinished runs keep their place"
        kept += f"; {fresh} start again, since draws of randomness secure never come again" if fresh else ""
        lines.append(f"Interrupted; {kept}. Go on with: {command}")
    elif summary.unfinished:
        lines.append(f"{len(summary.unfinished)} runs were not reached. Go on with: {command}")
    if summary.report_error:
        lines.append(f"FAILED the report: {summary.report_error}")
    lines += [f"Weights: {path}" for path in summary.weights]
    lines += [f"Report: {path}" for path in summary.report if path.suffix == ".html"]
    return "\n".join(lines)


def _needed(skipped: Mapping[str, int]) -> list[str]:
    """Why runs were skipped (reason to their number): all absent data together, with one command that gets them."""
    absent = {found: count for reason, count in skipped.items() if (found := _ABSENT.fullmatch(reason))}
    lines = []
    if absent:
        names = ", ".join(f"{found[1]} ({count})" for found, count in absent.items())
        lines.append(f"{sum(absent.values())} runs need data that are not here: {names}.")
    for folder in dict.fromkeys((found[2], found[4]) for found in absent):
        here = [found[3] for found in absent if (found[2], found[4]) == folder]
        lines.append(f"Get them, then run again: {folder[0]}{' '.join(here)}{folder[1]}")
    brought = {found: count for reason, count in skipped.items() if (found := _BROUGHT.fullmatch(reason))}
    if brought:
        names = ", ".join(f"{found[1]} ({count})" for found, count in brought.items())
        lines.append(f"{sum(brought.values())} runs need files that you make or bring: {names}: docs/own_dataset.md.")
    others = {reason: n for reason, n in skipped.items() if not (_ABSENT.match(reason) or _BROUGHT.match(reason))}
    return lines + [f"{count} runs skipped: {reason}." for reason, count in others.items()]
