"""Measures whole training steps of every row of specs: sampling, clipped sum, noise and update, as the loop takes them.

The loop itself runs (`training.loop.train`) and is stopped after some steps, so engine, chunk and order are those of
training. Rows are measured in turn, twice, so that what else the machine does falls on all of them; one whose step
takes more than a minute once, and its operators are not told apart. A row without privacy is measured a second time
with its gradient by torch's compiler, which training does not take; beside a stack on a CPU its first run alone.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench.clipping._measure import Peak
from dpbench.clipping.rules.none import Unclipped
from dpbench.clipping.vmap import not_compiled
from dpbench.datasets import Dataset
from dpbench.errors import DpbenchError
from dpbench.plan.parts import build_mechanism, dataset_source, sizes
from dpbench.plan.planning import Run, resolve
from dpbench.plan.stacks import usual_threads
from dpbench.spec.keys import Choice
from dpbench.spec.loading import Printed, Published, Spec
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network
from dpbench.step.recurrent import loops
from dpbench.store.provenance import device_name, environment
from dpbench.store.run_key import FASTEST
from dpbench.store.speed import StepLine, commit_of
from dpbench.training._operators import Operators, Shares
from dpbench.training.courses import hyperparameters
from dpbench.training.execution import Execution, give_back_memory, on_threads
from dpbench.training.fastest import compile_draws
from dpbench.training.loop import AHEAD, Interrupted, Progress, train
from dpbench.training.stack import builder

WITHOUT_PRIVACY = "without privacy"
OPEN_ENGINE = "any engine"
ROUNDS = 2
MOST_UNROLLED = 200  # steps of loops over time that are compiled: 150 take some minutes
ENOUGH = 60.0  # seconds of a row in a round after which no further step is begun, once one is measured
LONGEST_PROFILED = 10.0  # seconds of a step that loops over time: torch's profiler takes up to 0.8 GB for each second


@dataclass(frozen=True)
class CompiledGradient(Unclipped):
    """The rule `none` by torch's compiler: run by run, the whole batch in one call, whatever its size.

    Raises DpbenchError for a model that is not compiled, and for a stack on a GPU, which goes whole otherwise.
    """

    made: dict[str, Callable[..., Tensor]] = field(default_factory=dict)  # the loss of a batch, of the first network

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        del draw, clip_R, chunk
        if refusal := not_compiled(net.module) or _too_long(net.module, examples.inputs.shape[-1]):
            raise DpbenchError(refusal)
        if theta_RP.device.type != "cpu" and len(theta_RP) > 1:
            raise DpbenchError("a stack on a GPU is not compiled: measure single runs (--runs 1)")
        if not self.made:

            def batch(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, mask_B: Tensor) -> Tensor:
                return net.example_losses(named, inputs, targets) * mask_B

            self.made["loss"] = torch.compile(batch, fullgraph=True)
        sums, losses = [], []
        for run in range(len(theta_RP)):
            leaves = {name: value[run].detach().requires_grad_() for name, value in net.split(theta_RP).items()}
            given = [value[run] for value in (examples.inputs, examples.targets, examples.mask_RB)]
            for value in given:
                torch._dynamo.mark_dynamic(value, 0)
            # Of each row a graph, though all have the same code; beyond the limit torch would raise.
            with (
                torch.enable_grad(),
                torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000),
            ):
                loss_B = self.made["loss"](leaves, *given)
                found = torch.autograd.grad(loss_B.sum(), tuple(leaves.values()), materialize_grads=True)
            sums.append(net.join({name: value[None] for name, value in zip(leaves, found, strict=True)}))
            losses.append(loss_B.detach())
        loss_RB = torch.stack(losses)
        return Clipped(torch.cat(sums), torch.zeros_like(loss_RB), loss_RB)


def _too_long(module: torch.nn.Module, places: int) -> str:
    """Why a loop over time is not compiled; "" where it is short."""
    steps = places * loops(module)
    if steps <= MOST_UNROLLED:
        return ""
    return f"{steps} steps in time, which are unrolled: to compile more than {MOST_UNROLLED} takes many minutes"


@dataclass
class _Row:
    """A row of a spec: its runs, and the seconds of its steps so far."""

    line: StepLine
    runs: tuple[Run, ...]
    data: Dataset | None = None
    seconds: list[float] = field(default_factory=list)
    chosen: str = ""  # the engine, where the spec leaves it open
    compiled: list[float] = field(default_factory=list)  # seconds of the same steps with `gradient`
    gradient: CompiledGradient = field(default_factory=CompiledGradient)
    alone: _Row | None = None  # the first run of a stack on a CPU

    @property
    def long(self) -> bool:
        return bool(self.seconds) and min(self.seconds) > ENOUGH


def measure_steps(
    specs: Sequence[Spec],
    *,
    device: str = "cpu",
    runs: int = 1,
    steps: int = 4,
    data: Path | None = None,
    places_per_call: int | None = None,
    threads: int | None = None,
    table: Sequence[Spec] = (),
    watch: Callable[[str, str], None] = lambda _model, _what: None,
) -> Iterator[StepLine]:
    """The seconds of one step of every row, in stacks of so many `runs` (seeds), and its peak memory; in their order.

    `steps` are measured in each of two rounds, after one that warms up; a row whose steps are long takes fewer. A row
    that cannot be trained here (its dataset is absent, the model does not fit) has a refusal. `table`: all rows of the
    specs' files, among which stand the rows without privacy; by default the specs.
    """
    made = environment(with_torch=True)
    rows = _rows(specs, table or specs, device, device_name(device), runs, threads)
    for row in rows:
        row.line = replace(row.line, made=str(made["time_utc"]), commit=commit_of(made))
    for row in rows if device == "cpu" else ():  # before any is measured, because it holds for the whole process
        compile_draws(build_mechanism(row.runs[0].spec), row.line.parameters, row.runs)
    speeds: dict[int, tuple[float, float]] = {}
    for number in range(ROUNDS):
        for row in rows:
            if row.long:
                continue
            watch(row.line.name, f"{row.line.label or row.line.name}, round {number + 1} of {ROUNDS}")
            if not row.line.refusal:
                _round(row, data, places_per_call, steps)
            plain = type(getattr(build_mechanism(row.runs[0].spec), "rule", None)) is Unclipped
            if plain and not (row.line.refusal or row.line.compiled_refusal):
                watch(row.line.name, f"{row.line.label or row.line.name}, compiled, round {number + 1} of {ROUNDS}")
                _compiled_round(row, places_per_call, steps)
            if row.alone is not None and not row.line.refusal:
                watch(row.line.name, f"{row.line.label or row.line.name}, alone, round {number + 1} of {ROUNDS}")
                row.alone.data, before = row.data, len(row.alone.seconds)
                _round(row.alone, data, places_per_call, steps)
                row.alone.seconds[before:] = at_expected_size(row.alone.runs[0], row.alone.seconds[before:])
    for row in rows:
        if row.line.refusal:
            yield row.line
            continue
        watch(row.line.name, f"{row.line.label or row.line.name}, memory")
        with on_threads(row.line.threads):
            if row.line.threads not in speeds:
                speeds[row.line.threads] = _machine(device)
            peak, operators = _peak(row, places_per_call)
        yield replace(
            row.line,
            steps=len(row.seconds),
            seconds=statistics.median(row.seconds),
            fastest=min(row.seconds),
            slowest=max(row.seconds),
            floor=_floor(row, *speeds[row.line.threads]),
            compiled_seconds=statistics.median(row.compiled) if row.compiled else None,
            alone_seconds=statistics.median(row.alone.seconds) if row.alone and row.alone.seconds else None,
            alone_engine=row.alone.line.engine if row.alone else "",
            peak_bytes=peak,
            operators=operators,
        )


def with_plain(specs: Sequence[Spec]) -> list[Spec]:
    """The specs, and in front of each model's first one a row without privacy, where its file has none."""
    plain = {_model(spec) for spec in specs if not build_mechanism(spec).private}
    found = []
    for spec in specs:
        of = _model(spec)
        if of not in plain:
            plain.add(of)
            training = replace(spec.training, clip_norm=None)
            other = replace(spec, label=WITHOUT_PRIVACY, mechanism=Choice("non_private", {}), training=training)
            found.append(replace(other, budget=None, published=None, accountants=(), metrics=()))
        found.append(spec)
    return found


def with_open_engine(specs: Sequence[Spec]) -> list[Spec]:
    """The specs, and after each model's last one a row whose clipping engine is open, where all of its file name one.

    It is the first row that names one, so it has the same run key: an engine is no part of it.
    """
    named: dict[tuple[str, str], Spec] = {}
    opened = {_model(spec) for spec in specs if FASTEST in resolve(spec, [0])[0].engine.values()}
    last = {_model(spec): at for at, spec in enumerate(specs)}
    for spec in specs:
        if "clipping" in spec.mechanism.parameters:
            named.setdefault(_model(spec), spec)
    found = []
    for at, spec in enumerate(specs):
        found.append(spec)
        of = _model(spec)
        if last[of] == at and of in named and of not in opened:
            mechanism = named[of].mechanism
            rest = {name: value for name, value in mechanism.parameters.items() if name != "clipping"}
            other = replace(named[of], label=OPEN_ENGINE, mechanism=Choice(mechanism.name, rest), published=None)
            found.append(other)
    return found


def _model(spec: Spec) -> tuple[str, str]:
    return spec.name, str(spec.model)


def _baselines(specs: Sequence[Spec]) -> dict[tuple[str, str], str]:
    """The label of the last row without privacy up to each row, of the same file and model; by name and label."""
    found: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], str] = {}
    for spec in specs:
        of = _model(spec)
        if not build_mechanism(spec).private:
            last[of] = spec.label
        found[spec.name, spec.label] = last.get(of, "")
    return found


def _rows(
    specs: Sequence[Spec], table: Sequence[Spec], device: str, device_name: str, runs: int, threads: int | None
) -> list[_Row]:
    found, baselines = [], _baselines(table)
    for spec in specs:
        first, *others = resolve(spec, range(runs))
        together = tuple(replace(run, device=device) for run in (first, *others))
        examples = sum(run.sampling_rate * run.examples for run in together)
        printed = spec.published or Published()
        line = StepLine(
            name=spec.name,
            label=spec.label,
            run_key=first.key,
            engine=", ".join(map(str, first.engine.values())),
            device=device.partition(":")[0],
            device_name=device_name,
            threads=threads or usual_threads(spec, examples, device),
            runs=runs,
            dataset=spec.dataset.name,
            model=spec.model.name,
            parameters=sizes(spec).parameters,
            batch=first.sampling_rate * first.examples,
            epoch_steps=1 / first.sampling_rate,
            baseline=baselines[spec.name, spec.label],
            printed_seconds=_text(printed.seconds_per_epoch),
            printed_memory=_text(printed.memory_percent),
        )
        alone = _Row(replace(line, runs=1), together[:1]) if runs > 1 and device == "cpu" else None
        found.append(_Row(line, together, alone=alone))
    return found


def _text(number: Printed | None) -> str:
    return "" if number is None else number.text


def _round(row: _Row, data: Path | None, places_per_call: int | None, steps: int) -> None:
    """Some steps more, or the row's refusal."""
    try:
        if row.data is None:
            row.data = dataset_source(row.runs[0].spec).load(data)
        with on_threads(row.line.threads):
            last, seconds = _steps(row, places_per_call, steps)
    except Exception as error:  # noqa: BLE001 - a row may raise anything, as in training
        row.line = replace(row.line, refusal=" ".join(str(error).split())[:300] or type(error).__name__)
        return
    row.chosen = last.engine
    row.line = replace(row.line, engine=last.engine or row.line.engine, chunk=last.chunk)
    row.seconds += seconds


def at_expected_size(run: Run, seconds: Sequence[float]) -> list[float]:
    """Seconds of a run's steps, from its second one on, each as if its batch had the expected size.

    Of a few steps of one run the median batch may be 6 % smaller than a stack's, and so would be the time.
    """
    sample, hyper = getattr(build_mechanism(run.spec), "sample", None), hyperparameters([run], torch.device("cpu"))
    if sample is None or run.spec.randomness == "secure":  # whose draws never come again
        return list(seconds)
    expected = run.sampling_rate * run.examples
    drawn = (
        int(sample(hyper.keys_RS, torch.tensor([step]), hyper.sampling_rate_R, run.examples).mask_RB.sum())
        for step in range(1, len(seconds) + 1)
    )
    return [taken * expected / max(1, records) for taken, records in zip(seconds, drawn, strict=True)]


def _compiled_round(row: _Row, places_per_call: int | None, steps: int) -> None:
    """The same with the gradient by torch's compiler, or why there is none; the step that warms up compiles."""
    try:
        with on_threads(row.line.threads):
            row.compiled += _steps(row, places_per_call, steps, compiled=True)[1]
    except Exception as error:  # noqa: BLE001 - torch's compiler may raise anything for a model
        why = " ".join(str(error).split())[:300] or type(error).__name__
        row.line, row.compiled = replace(row.line, compiled_refusal=why), []


def _steps(row: _Row, places_per_call: int | None, steps: int, compiled: bool = False) -> tuple[Progress, list[float]]:
    """One step to warm up, then so many that are measured: the last progress, and their seconds.

    Where a step is the mean over several, those of a minute are enough.
    """
    first = row.runs[0]
    many = max(1, min(steps_of_a_call(first.device), first.steps // 2))
    taken, seen = 0, list[tuple[float, int, Progress]]()
    begun = time.perf_counter()

    def watch(progress: Progress) -> bool:
        nonlocal taken
        taken += 1
        since, before = seen[-1][:2] if seen else (begun, 0)
        if taken - before < many and time.perf_counter() - since < ENOUGH:
            return False
        _wait_for(row)
        seen.append((time.perf_counter(), taken, progress))
        return len(seen) > steps or (len(seen) > 1 and seen[-1][0] - seen[0][0] > ENOUGH)

    _train(row, places_per_call, watch, compiled)
    if len(seen) < 2:
        raise DpbenchError("the run has one step, which is taken to warm up")
    return seen[-1][2], [(after - before) / (to - of) for (before, of, _), (after, to, _) in pairwise(seen)]


def steps_of_a_call(device: str) -> int:
    """Over how many steps the time of one is the mean: on a GPU as many as have their batches' sizes drawn together.

    So that drawing is in it; the first ones compile, and record what goes as a graph.
    """
    return 1 if device == "cpu" else AHEAD


def _peak(row: _Row, places_per_call: int | None) -> tuple[int | None, Shares]:
    """The peak memory of the second step, and the operators of the third (none where it is not taken).

    Neither of a step that loops over time for longer than `LONGEST_PROFILED` on a CPU.
    """
    device = torch.device(row.runs[0].device)
    if device.type == "cpu" and min(row.seconds) > LONGEST_PROFILED and loops(builder(row.runs[0])()):
        return None, ()
    peak, operators = Peak(device), Operators(device)
    found: list[int] = []
    shares: list[Shares] = []

    def watch(progress: Progress) -> bool:
        del progress  # counted here
        _wait_for(row)
        if not begun:
            give_back_memory()
            peak.begin()
        elif len(begun) == 1:
            found.append(peak.end())
            operators.begin()
        else:
            shares.append(operators.end())
        begun.append(True)
        return bool(shares) or (row.long and bool(found))

    begun: list[bool] = []
    _train(row, places_per_call, watch)
    if len(begun) == 2:  # the run had no third step
        operators.end()
    return found[0], shares[0] if shares else ()


def _train(row: _Row, places_per_call: int | None, watch: Callable[[Progress], bool], compiled: bool = False) -> None:
    """Start the runs of a row anew and train them until `watch`, which is called after every step, says to stop."""
    assert row.data is not None
    first, done = row.runs[0], [False]

    def watched(progress: Progress) -> None:
        done[0] = watch(progress)

    mechanism: Any = build_mechanism(first.spec)
    if compiled:
        mechanism = replace(mechanism, rule=row.gradient)
    at_once = row.line.chunk if row.chosen else None
    execution = Execution(first.device, places_per_call, row.chosen or None, at_once)
    with contextlib.suppress(Interrupted):
        for outcome in train(
            row.runs,
            row.data,
            mechanism,
            builder(first),
            execution,
            at_the_end=True,  # an evaluation is no part of a step, and ends what is drawn together
            watch=watched,
            stop=lambda: done[0],
        ):
            if outcome.error is not None:
                raise DpbenchError(outcome.error)


def _wait_for(row: _Row) -> None:
    """Until a GPU has done what it was sent."""
    if row.runs[0].device.startswith("cuda"):
        torch.cuda.synchronize(row.runs[0].device)


def _machine(device: str) -> tuple[float, float]:
    """Operations a second of a product of large matrices, and bytes a second that a copy reads and writes."""
    one = torch.randn(1024, 1024, device=device)
    much = torch.ones(1 << 24, device=device)

    def fastest(call: Callable[[], object]) -> float:
        taken = []
        for _ in range(6):
            begin = time.perf_counter()
            call()
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - begin)
        return min(taken)

    return 2 * 1024**3 / fastest(lambda: one @ one), 2 * much.nbytes / fastest(much.clone)


def _floor(row: _Row, operations_a_second: float, bytes_a_second: float) -> float:
    """See `StepLine.floor`: a pass back takes about twice the operations of one forward."""
    spec = row.runs[0].spec
    forward, parameters, _ = sizes(spec)
    examples = row.line.runs * row.line.batch
    numbers = 2 * row.line.runs * parameters + examples * math.prod(dataset_source(spec).input_shape)
    return max(3 * examples * forward / operations_a_second, 4 * numbers / bytes_a_second)
