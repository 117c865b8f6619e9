"""The targets of speed that the project has set itself, and what the lines of speed.json say of each.

Ratios are to the eager step without privacy of the same model, measured in the same process: torch's own step where a
line has it, dpbench's plain pass in older lines. Of several machines the newest measurement counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dpbench.store.run_key import PLAIN
from dpbench.store.speed import TORCH, Speed, StepLine, SumLine

TABLE1_STEPS = 820_312  # of ten seeds of bu2020's Table 1: 350 epochs of 234.375 steps each


@dataclass(frozen=True)
class Found:
    """A measured value, the `way` that has it, what it is `over`, and the line that it is from."""

    value: float
    way: str
    over: str
    line: SumLine | StepLine

    @property
    def said(self) -> str:
        """The way, what it is compared with, the machine and the day, as words."""
        zeros = " (inputs of zeros)" if getattr(self.line, "inputs", "data") == "zeros" else ""
        over = f" over {self.over}" if self.over else ""
        return f"{self.way}{over}{zeros}, {self.line.device_name}, {self.line.made[:10]}"


@dataclass(frozen=True)
class Target:
    """What is to be measured, at most its `bound`, or with `least` at least so much."""

    text: str
    bound: float
    measured: Callable[[Speed], Found | None]
    least: bool = False

    @property
    def bound_words(self) -> str:
        return f"at {'least' if self.least else 'most'} {self.bound:g}"


@dataclass(frozen=True)
class Judged:
    """A target beside what was found; None where nothing was measured."""

    target: Target
    found: Found | None

    @property
    def verdict(self) -> Literal["met", "missed", "not measured"]:
        if self.found is None:
            return "not measured"
        value, bound = self.found.value, self.target.bound
        return "met" if (value >= bound if self.target.least else value <= bound) else "missed"


@dataclass(frozen=True)
class Model:
    """One of the three models of the targets: its dataset, its parameters, and the examples of a sum."""

    title: str
    dataset: str
    name: str
    parameters: int
    places: int

    @property
    def network(self) -> tuple[str, str, int]:
        return self.dataset, self.name, self.parameters


MNIST = Model("MNIST CNN, 256", "mnist", "tfp_cnn", 26_010, 256)
CIFAR = Model("CIFAR-10 CNN, 64", "cifar10", "papernot_cnn", 623_146, 64)  # jl2021's; dpis2022's has other layers
IMDB = Model("BiLSTM on IMDb, 32", "imdb", "imdb_lstm", 598_274, 32)
MODELS = (MNIST, CIFAR, IMDB)
JL_WAYS = {"jvp", "vjp", "layers"}

Table = Mapping[str, SumLine]  # the lines of one model on one machine, by way


def _network(line: SumLine | StepLine) -> tuple[str, str, int]:
    return line.dataset, line.model, line.parameters


def _of_jl(line: StepLine) -> bool:
    return bool(JL_WAYS & {*line.engine.replace(",", "").split()})


def _sums(speed: Speed, model: Model, gpu: bool = False) -> Table:
    """The newest table of the model on a GPU, or on one thread of a CPU; empty where there is none."""
    tables = []
    for _, lines in speed.tables_of_sums():
        one = lines[0]
        here = one.device != "cpu" if gpu else (one.device, one.threads) == ("cpu", 1)
        if here and (_network(one), one.places) == (model.network, model.places):
            tables.append({line.engine: line for line in lines if line.seconds is not None})
    return max(tables, key=lambda table: max((line.made for line in table.values()), default=""), default={})


def _baseline(table: Table) -> str:
    return TORCH if TORCH in table else PLAIN


def _ratio(line: SumLine, baseline: str) -> float | None:
    """To the baseline in the same process; a line that was measured without it has none."""
    return line.of_torch if baseline == TORCH else line.of_plain


def _least(lines: Iterable[SumLine], baseline: str) -> Found | None:
    """The fastest of some lines."""
    found = [Found(value, line.engine, baseline, line) for line in lines if (value := _ratio(line, baseline))]
    return min(found, key=lambda one: one.value, default=None)


def _of_others(name: str) -> bool:
    return name.startswith("opacus")


def _exact(table: Table) -> list[SumLine]:
    """The lines of dpbench's exact clipped sums."""
    return [
        line
        for name, line in table.items()
        if name != TORCH and not name.startswith((PLAIN, "jl ")) and not _of_others(name)
    ]


def exact_clipping(model: Model, speed: Speed) -> Found | None:
    """The fastest engine over the baseline."""
    table = _sums(speed, model)
    return _least(_exact(table), _baseline(table))


def named(model: Model, way: str, speed: Speed) -> Found | None:
    """One way over the baseline."""
    table = _sums(speed, model)
    return _least([table[way]] if way in table else [], _baseline(table))


def non_private(model: Model, speed: Speed) -> Found | None:
    """dpbench's plain pass over torch's own step; None without that, because it is then its own baseline."""
    table = _sums(speed, model)
    return _least([table[PLAIN]], TORCH) if {PLAIN, TORCH} <= set(table) else None


def ahead_of_opacus(model: Model, speed: Speed) -> Found | None:
    """How many times as long Opacus's fastest way takes as the fastest engine."""
    table = _sums(speed, model)
    ours = _least(_exact(table), _baseline(table))
    theirs = _least((line for name, line in table.items() if _of_others(name)), _baseline(table))
    if ours is None or theirs is None:
        return None
    return Found(theirs.value / ours.value, theirs.way, ours.way, ours.line)


def ghost_memory(model: Model, speed: Speed) -> Found | None:
    """Peak memory of `ghost` over that of the plain pass."""
    table = _sums(speed, model)
    ghost, base = table.get("ghost"), table.get(PLAIN)
    if ghost is None or base is None or not (ghost.peak_bytes and base.peak_bytes):
        return None
    return Found(ghost.peak_bytes / base.peak_bytes, ghost.engine, base.engine, ghost)


def cpu_stack(speed: Speed) -> Found | None:
    """The slowest row of a stack on the newest CPU, per run, over the same run alone, measured in turn with it.

    None unless the three models are among the rows, and one with JL.
    """
    rows: dict[tuple[object, ...], StepLine] = {}
    for line in sorted(speed.lines, key=lambda line: line.made):
        if line.device == "cpu" and line.seconds and line.alone_seconds:
            rows[line.name, line.label, line.run_key, line.device_name, line.threads, line.runs] = line
    newest = max(rows.values(), key=lambda line: line.made, default=None)
    lines = [line for line in rows.values() if newest is not None and line.device_name == newest.device_name]
    if not ({model.network for model in MODELS} <= {_network(line) for line in lines} and any(map(_of_jl, lines))):
        return None
    found = [
        Found(
            line.seconds / line.runs / line.alone_seconds,
            f"{line.name}, {line.label or 'its row'}, {line.runs} runs, {line.engine or 'no engine'}",
            f"alone, {line.alone_engine or 'no engine'}",
            line,
        )
        for line in lines
        if line.seconds and line.alone_seconds
    ]
    return max(found, key=lambda one: one.value)


def _stacks_of_ten(speed: Speed, model: Model) -> list[StepLine]:
    """Rows with exact clipping, measured on an H200 in stacks of ten; those of the newest machine."""
    lines = [
        line
        for line in speed.lines
        if (line.device, line.runs, _network(line)) == ("cuda", 10, model.network)
        and line.seconds is not None
        and line.label != line.baseline
        and line.engine
        and not _of_jl(line)
        and "H200" in line.device_name
    ]
    last = max(lines, key=lambda line: line.made, default=None)
    return [line for line in lines if last is not None and line.device_name == last.device_name]


def gpu_stack(model: Model, speed: Speed) -> Found | None:
    """The fastest row in a stack of ten over the row without privacy in a stack as large."""
    found = []
    for line in _stacks_of_ten(speed, model):
        plain = speed.baseline_of(line)
        if plain is not None and plain.seconds and line.seconds:
            found.append(Found(line.seconds / plain.seconds, f"{line.name}, {line.engine}", plain.label, line))
    return min(found, key=lambda one: one.value, default=None)


def gpu_opacus(speed: Speed) -> Found | None:
    """Runs × steps a second of the fastest stack of ten over Opacus's sums a second, which are less than its steps."""
    lines = [line for line in _stacks_of_ten(speed, MNIST) if line.batch == MNIST.places]
    theirs = [line for name, line in _sums(speed, MNIST, gpu=True).items() if _of_others(name)]
    found = [
        Found(
            line.runs / line.seconds * other.seconds, f"{line.name}, {line.engine}", f"one sum of {other.engine}", line
        )
        for line in lines
        for other in theirs
        if line.seconds and other.seconds and line.device_name == other.device_name
    ]
    best = min(theirs, key=lambda line: line.seconds or 0.0, default=None)
    return max((one for one in found if best and best.engine in one.over), key=lambda one: one.value, default=None)


def gpu_table1(speed: Speed) -> Found | None:
    """Minutes of all steps of bu2020's Table 1 with ten seeds, at the mean rate of its rows; without evaluations."""
    lines = [line for line in _stacks_of_ten(speed, MNIST) if line.name == "bu2020-table1"]
    seconds = [line.seconds / line.runs for line in lines if line.seconds]
    if not seconds:
        return None
    minutes = TABLE1_STEPS * sum(seconds) / len(seconds) / 60
    return Found(minutes, f"the rate of {len(seconds)} of its rows, {lines[0].engine}", "", lines[0])


TARGETS = (
    *(
        Target(f"{model.title}: exact clipping", bound, partial(exact_clipping, model))
        for model, bound in zip(MODELS, (1.3, 2.2, 3.5), strict=True)
    ),
    *(
        Target(f"{model.title}: JL, r = {count}", bound, partial(named, model, f"jl {count}"))
        for count, bounds in ((1, (1.9, 2.1)), (10, (5, 8)))
        for model, bound in zip((MNIST, CIFAR), bounds, strict=True)
    ),
    *(Target(f"{model.title}: without privacy", 1.1, partial(non_private, model)) for model in MODELS),
    *(
        Target(f"{model.title}: ahead of Opacus's fastest way", 1.3, partial(ahead_of_opacus, model), least=True)
        for model in MODELS
    ),
    *(Target(f"{model.title}: peak memory of ghost", 1.3, partial(ghost_memory, model)) for model in MODELS),
    Target("a stack on a CPU: a run's step over the same run alone", 1.0, cpu_stack),
    *(
        Target(f"H200, {model.title.partition(',')[0]}: a stack of ten", bound, partial(gpu_stack, model))
        for model, bound in zip(MODELS, (1.3, 1.5, 2), strict=True)
    ),
    Target("H200, MNIST CNN, 256: runs × steps a second over Opacus", 10, gpu_opacus, least=True),
    Target("H200: bu2020's Table 1, ten seeds, in minutes (from the rate of its steps)", 10, gpu_table1),
)


def judged(speed: Speed) -> list[Judged]:
    """Every target, with what these lines say of it.

    >>> {one.verdict for one in judged(Speed())}
    {'not measured'}
    """
    return [Judged(target, target.measured(speed)) for target in TARGETS]


def operator_words(line: SumLine | StepLine) -> str:
    """The operators that take the most of a line's time.

    >>> line = StepLine("", "", "", "", "cpu", "", 1, 1, "", "", 1, 1.0, 1.0, operators=(("aten::bmm", 0.436),))
    >>> operator_words(line)
    'aten::bmm 44 %'
    """
    if not line.operators:
        return "no profile was kept; measure it again"
    of_compiler = [name for name, _ in line.operators if "CompiledFxGraph" in name]
    plain = line.engine.removesuffix(" compiled")
    other = isinstance(line, SumLine) and plain != line.engine and not of_compiler  # older lines are of the code itself
    named = [("compiled code" if name in of_compiler else name, share) for name, share in line.operators]
    words = ", ".join(f"{name} {100 * share:.0f} %" for name, share in named)
    return f"of {plain}, not compiled: {words}" if other else words
