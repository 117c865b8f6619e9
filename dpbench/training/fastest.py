"""How a stack is trained fastest on this machine: measured before training, where a spec leaves it open.

Tried are the clipping engines; on a CPU whether a stack goes whole or run by run (`BY_RUN`), for small work gains by
being stacked, because its calls cost more than its numbers, and larger work loses, because layers have faster kernels
for one run; and how much of a batch goes in one call, from what memory allows down to what the caches hold. Work that
takes long enough to pay for a compiler tries that too (`COMPILED`). Of a rule that sums itself in some `way` (JL) the
last two are tried, stack and chunk.

All of them compute the same sum up to rounding, with the same draws, so the choice is no part of a run's key; it is in
the record. It is made on copies of one test example, so what is trained on has no part in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.catalog import build, find
from dpbench.clipping import ghost
from dpbench.clipping.vmap import Compiled
from dpbench.errors import DpbenchError
from dpbench.plan.cache import Cache
from dpbench.plan.runs import Run
from dpbench.plan.stacks import engine_question
from dpbench.randomness import compile_words
from dpbench.step.clipped_sum import Clipped, Draw, Examples, RunByRun, Weight, clip_weight
from dpbench.step.functional import Network, augmented, smoothed
from dpbench.step.mechanism import Mechanism
from dpbench.step.pipeline import Pipeline
from dpbench.step.recurrent import loops
from dpbench.step.stages import OwnSum
from dpbench.store.run_key import BY_RUN, COMPILED, FASTEST, OWN_WAYS, PLAIN
from dpbench.training.courses import Course
from dpbench.training.execution import Execution, places_of_a_call
from dpbench.training.memory import bounded

ENGINES = ("vmap", "ghost")  # the first is taken where nothing is measured
MARGIN = 1.5  # another one must be so many times faster: what is about equal stays the same on every run
LONG = 900.0  # seconds of a stack from which on compiling is tried, which takes a minute or more
# As LONG, where a compiled sum is one graph in place of hundreds of operators; a guess, for none was measured.
LONG_ON_A_GPU = 300.0
SAME_ENGINE_MARGIN = 1.1  # as MARGIN: run by run, or with less at a time
COMPILED_MARGIN = 1.2  # as MARGIN: work that is so long is not repeated for its last bits
MANY_NORMALS = 3e9  # of a stack from which on to compile their bits saves more than the time that it takes
SHORT = 15.0  # seconds of a stack with the first engine in which nothing else is tried: short runs repeat bit for bit
NEAR = 2.0  # an engine that takes so many times the best one's seconds is not tried run by run
MOST_CALLS, ENOUGH = 6, 0.2  # of a sum that is timed: so many calls, or seconds
SHARE = 0.05  # of the work, after which nothing more is tried
LONGEST = 20.0  # seconds of a rule's own sum, which is that of a whole batch, that is not tried again
LEAST_CHUNK = 4  # places of a call below which less at a time is not tried
ALONE = 1 << 20  # parameters times places of a run, from which on a rule's own sum is first tried run by run
# What may be tried beside a way, by what it is tried beside.
_OTHER_WAYS = (*BY_RUN.items(), *((of, way) for way, of in BY_RUN.items() if of in OWN_WAYS))


@dataclass(frozen=True)
class Chosen:
    """The engine, and seconds of one clipped sum of those that were tried (none where the first is taken untried).

    `chunk` places of a run in a call are faster than all that memory allows; None where they are not. Where anything
    was compared, the `plain` pass without clipping stands beside the engines. Where torch could not compile, a sentence
    stands in place of the seconds. `made` is the engine if it is compiled.
    """

    engine: str
    seconds: Mapping[str, float | str] = field(default_factory=dict)
    made: Any = None
    chunk: int | None = None


def fastest(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    example: Tensor,
    target: Tensor,
    places: int,
    steps: int,
    chunk: Callable[[Any], int],
    *,
    compiles: bool = True,
    cuts: bool = True,
    secure: bool = False,
    engines: Sequence[str] = ENGINES,
) -> Chosen:
    """Try these engines on one batch of so many `places` a run, at most `chunk(engine)` of them in a call.

    `example` (no batch axis) and its `target` fill the places; no more are computed than two calls take, and the time
    is scaled; a rule's own sum, which draws, takes them all. An engine that cannot take the model is left out; where
    the stack's `steps` take little time with the first one, nothing else is tried. `compiles`: compiling may be tried;
    `cuts`: smaller chunks may.
    """
    runs, device = len(theta_RP), theta_RP.device
    shifts = getattr(mechanism, "places_of_a_record", 1)
    of_all, own, on_cpu = slice(0, runs), own_way(mechanism), device.type == "cpu"
    # A smoothed loss is that of one run at a time.
    each = [slice(run, run + 1) for run in range(runs)] if shifts > 1 else [of_all]
    trained = smoothed(net, theta_RP.new_zeros(shifts, net.size)) if shifts > 1 else net
    weight = weight_of(mechanism)
    weighted = () if weight is clip_weight else (weight,)  # an engine of another package may know clipping alone

    def timed(summing: Any, at_once: int, some: int, parts: Sequence[slice], net: Network) -> float:
        """Seconds of a sum from `some` places, the least of a few calls after one that does not count."""
        filled = torch.ones(runs, some, dtype=torch.bool, device=device)
        inputs, targets = (value.expand(runs, some, *value.shape).clone() for value in (example, target))
        # A rule's own sum does not look: rounding errors of equal examples add up, and would be mended one by one.
        examples = Examples(inputs, targets, filled, looks=not own)
        clip_R = torch.ones(runs, dtype=torch.float64, device=device)
        taken: list[float] = []
        # A GPU's first call compiles, the second records a graph, later ones replay it.
        least = 2 if on_cpu else 4
        while len(taken) < least or (len(taken) < MOST_CALLS and sum(taken[1:]) < ENOUGH):
            begin = time.perf_counter()
            for of in parts:
                summing(net, theta_RP[of], examples.runs(of), clip_R[of], at_once, *weighted)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - begin)
            if own and taken[0] > LONGEST:
                raise DpbenchError("it takes too long to be tried")
        return min(taken[1:]) * places / some

    seconds: dict[str, float] = {}
    smaller: dict[str, int] = {}
    until = math.inf

    def may_be_cut(name: str) -> bool:
        return min(chunk(_own_sum(mechanism, name)), places) >= 2 * LEAST_CHUNK

    def try_(name: str, cut: bool) -> None:
        """The seconds of an engine with its chunk, or with a smaller one that is faster; none where it raises."""
        try:
            engine = _own_sum(mechanism, name, secure) if own else engine_named(name, net, weight)
            first = at_once = min(chunk(engine), places)
            some = places if own else min(places, 2 * at_once)
            seconds[name] = timed(engine, at_once, some, each, trained)
            while cut and at_once >= 2 * LEAST_CHUNK and time.perf_counter() < until:
                at_once = -(-at_once // 2)
                taken = timed(engine, at_once, some, each, trained)
                if SAME_ENGINE_MARGIN * taken >= seconds[name]:
                    break
                seconds[name], smaller[name] = taken, at_once
            if name in smaller:  # the first calls of a process take longer than later ones
                again = timed(engine, first, some, each, trained)
                if SAME_ENGINE_MARGIN * seconds[name] >= again:
                    seconds[name] = again
                    del smaller[name]
        except Exception:  # noqa: BLE001 - it says so if it is the one that trains
            return

    if own and (not on_cpu or SHARE * steps < 2):  # nothing to choose, or two sums are too much of the work
        return Chosen(engines[0])
    for name in engines:
        try_(name, False)
        if seconds.get(name, math.inf) * steps < SHORT:
            break
    short = set(seconds) <= {engines[0]} and seconds.get(engines[0], 0.0) * steps < SHORT
    if short or (own and not seconds):
        return Chosen(engines[0], seconds)
    least = min(seconds.values(), default=math.inf)
    near = [name for name in seconds if seconds[name] < NEAR * least]
    others = {way: of for way, of in _OTHER_WAYS if of in near} if runs > 1 and on_cpu and shifts == 1 else {}
    if on_cpu and least * steps >= SHORT:
        until = time.perf_counter() + SHARE * least * steps
        for name in [*others, *(near if cuts else [])]:
            if time.perf_counter() < until and (name in others or not own or may_be_cut(name)):
                try_(name, cuts)
    best = _best(seconds, engines, others)
    none: Any = build("rules", "none")
    with suppress(Exception):
        some = min(places, 2 * chunk(none))
        seconds[PLAIN] = timed(lambda *call: none.summed(None, *call[:5]), chunk(none), some, [of_all], net)
    # To compile a loop over time takes minutes.
    long = LONG if on_cpu or loops(net.module) else LONG_ON_A_GPU
    if not (compiles and seconds.get(best, 0.0) * steps >= long and shifts == 1):
        return Chosen(best, seconds, chunk=smaller.get(best))
    made = Compiled(net, weight)
    try:
        at_once = chunk(made)
        taken = timed(made, at_once, min(places, 3 * at_once), each, trained)
    except Exception:  # noqa: BLE001 - as above
        return Chosen(best, {**seconds, COMPILED: made.refusal or "it failed"}, chunk=smaller.get(best))
    if made.refusal:
        return Chosen(best, {**seconds, COMPILED: made.refusal}, chunk=smaller.get(best))
    found = {**seconds, COMPILED: taken}
    faster = COMPILED_MARGIN * taken < seconds[best]
    return Chosen(COMPILED, found, made) if faster else Chosen(best, found, chunk=smaller.get(best))


def _best(seconds: Mapping[str, float], engines: Sequence[str], others: Mapping[str, str]) -> str:
    """The engine to take, whole or run by run; the first one where none is faster by its margin."""
    ways = {name: name for name in engines if name in seconds}
    for name, of in others.items():
        if SAME_ENGINE_MARGIN * seconds.get(name, math.inf) < seconds[of]:
            ways[of] = name
    best = min(ways.values(), key=seconds.__getitem__, default=engines[0])
    usual = ways.get(engines[0], best)
    return usual if usual in seconds and seconds[usual] < MARGIN * seconds[best] else best


def own_way(mechanism: Any) -> str:
    """The way of a pipeline's rule that sums itself in one of several ways; "" of any other mechanism."""
    rule = mechanism.rule if isinstance(mechanism, Pipeline) else None
    way = getattr(rule, "way", "")
    return way if isinstance(rule, OwnSum) and way in OWN_WAYS else ""


@dataclass(frozen=True)
class _OwnSum:
    """A rule's own sum in the form of an engine, with numbers drawn for the trial, as `secure` as in training."""

    rule: Any
    secure: bool

    def numbers(self, net: Network, example: Tensor, target: Tensor) -> int:
        return int(self.rule.numbers(net, example, target))

    def __call__(
        self, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, _: Weight = clip_weight
    ) -> Clipped:
        (runs, places), device = examples.mask_RB.shape, theta_RP.device
        keys_RS = randomness.table(range(runs))[:, : 0 if self.secure else None].to(device)
        zero_R = torch.zeros(runs, dtype=torch.int64, device=device)
        draw = Draw(keys_RS, zero_R, torch.arange(places, device=device).repeat(runs, 1), zero_R.double(), places)
        found: Clipped = self.rule.summed(draw, net, theta_RP, examples, clip_R, chunk)
        return found


def _own_sum(mechanism: Any, name: str, secure: bool = False) -> Any:
    summed = _OwnSum(mechanism.rule, secure)
    return RunByRun(summed) if name in BY_RUN else summed


def _usual(own: str, mechanism: Any, runs: Sequence[Run], net: Network, execution: Execution, one: Any) -> str:
    """The way of such a rule where nothing is measured: large work run by run unless one call has room to spare."""
    places, stacked = expected_places(runs), _ways(own)
    at_once = chunks(execution, runs, mechanism, net, one)(mechanism.rule)
    shifts = getattr(mechanism, "places_of_a_record", 1)
    large = net.size * places >= ALONE and 2 * at_once < 3 * places
    return stacked[large and len(runs) > 1 and shifts == 1 and not execution.device.startswith("cuda")]


def weight_of(mechanism: Any) -> Weight:
    """How much of a gradient of some norm the mechanism's rule takes."""
    weight: Weight = getattr(getattr(mechanism, "rule", None), "weight", clip_weight)
    return weight


def engine_named(name: str, net: Network, weight: Weight = clip_weight) -> Any:
    """The clipping engine of a name, for training this network with this weight."""
    if name in BY_RUN:
        return RunByRun(find("clipping", BY_RUN[name]).load())
    return Compiled(net, weight) if name == COMPILED else find("clipping", name).load()


def with_engine(
    mechanism: Mechanism,
    courses: Sequence[Course],
    net: Network,
    theta_RP: Tensor,
    execution: Execution,
    smoke: bool,
    one: tuple[Tensor, Tensor],
    cache: Cache,
) -> tuple[Mechanism, Chosen]:
    """The mechanism with the engine that is to sum its gradients, and what was tried.

    An engine that the spec names stays, and so does the way of a rule that sums itself, but it may go run by run and
    with less at a time. A run goes on as its checkpoint says, but not compiled where nothing is to be. What was tried
    before on this machine (`cache`) is not tried again; nothing is in a smoke test.
    """
    runs = [course.run for course in courses]
    made: Any = mechanism
    own = own_way(made)
    named = "" if FASTEST in runs[0].engine.values() else next(map(str, runs[0].engine.values()), "")
    if own:
        named = _usual(own, made, runs, net, execution, one)
    has_one = is_dataclass(made) and (own or getattr(made, "engine", None)) is not None
    told = execution.engine if _fits(execution.engine or "", own) else None
    begun = next((course for course in courses if _fits(course.engine, own)), None)
    chosen, on_cpu = Chosen(""), theta_RP.device.type == "cpu"
    begun_chunk = next((course.chunk[0] for course in courses if course.chunk and course.chunk[1] == len(runs)), None)
    if not has_one or (told is None and not own and named not in ("", *ENGINES)):
        chosen = Chosen("", chunk=begun_chunk)
    elif told is not None:
        same = begun is not None and (begun.engine == told or bounded(begun.memory))
        chosen = Chosen(told, chunk=execution.at_once or (begun_chunk if same else None))
    elif begun is not None:
        engine = ENGINES[0] if begun.engine == COMPILED and not execution.compiles else begun.engine
        # Run by run a GPU would wait.
        chosen = Chosen(engine if on_cpu else BY_RUN.get(engine, engine), chunk=begun_chunk)
    elif smoke:
        chosen = Chosen(named or ENGINES[0])
    else:
        chosen = _measured(made, runs, named, net, theta_RP, execution, one, cache)
    lacked = any(bounded(course.memory) for course in courses)
    if execution.places_per_call is not None or not (on_cpu or lacked):
        chosen = replace(chosen, chunk=None)
    for course in courses:
        course.engine = chosen.engine
        course.chunk = None if chosen.chunk is None else (chosen.chunk, len(runs))
    if not chosen.engine:
        return mechanism, chosen
    if own:
        return replace(made, run_by_run=chosen.engine in BY_RUN), chosen
    return replace(made, engine=chosen.made or engine_named(chosen.engine, net, weight_of(made))), chosen


def _ways(own: str) -> tuple[str, ...]:
    """The ways of such a rule: with a stack whole, and run by run."""
    return (own, *(way for way, of in BY_RUN.items() if of == own))


def _fits(engine: str, own: str) -> bool:
    """Whether an engine is one of the ways of such a rule, or of a mechanism that takes an engine none of a rule's."""
    return engine in _ways(own) if own else engine != "" and BY_RUN.get(engine, engine) not in OWN_WAYS


def _measured(
    mechanism: Any,
    runs: Sequence[Run],
    named: str,
    net: Network,
    theta_RP: Tensor,
    execution: Execution,
    one: tuple[Tensor, Tensor],
    cache: Cache,
) -> Chosen:
    """The fastest way, remembered or tried now."""
    augmentation = getattr(mechanism, "augmentation", None)  # which only the first engine takes, and no compiler
    engines = (named,) if named else ENGINES[: 1 if augmentation is not None else None]
    compiles = execution.compiles and not named and augmentation is None  # a way of its own is named
    question = engine_question(runs, torch.get_num_threads())
    known = cache.engine(question)
    usable = {*engines, *(way for way, of in _OTHER_WAYS if of in engines)}
    example, target = one
    if known is not None and known["engine"] in (*usable, *[COMPILED] * compiles):
        with suppress(DpbenchError):  # code of others may have changed beyond what is hashed of it
            if BY_RUN.get(known["engine"], known["engine"]) == "ghost":
                ghost.refuse(net.module, example)
            return Chosen(known["engine"], known["seconds"], chunk=known["chunk"])
    seen = net if augmentation is None else augmented(net)
    if augmentation is not None:
        example = example.expand(getattr(augmentation, "views", 1), *example.shape)
    chunk, places = chunks(execution, runs, mechanism, net, one), expected_places(runs)
    steps, cuts = max(run.steps for run in runs), execution.places_per_call is None
    chosen = fastest(
        mechanism,
        seen,
        theta_RP,
        example,
        target,
        places,
        steps,
        chunk,
        compiles=compiles,
        cuts=cuts,
        secure=runs[0].spec.randomness == "secure",
        engines=engines,
    )
    if (execution.compiles or named) and cuts and len(chosen.seconds) > 1:
        of = _own_sum(mechanism, chosen.engine) if own_way(mechanism) else chosen.made
        at_once = chosen.chunk or chunk(of or engine_named(chosen.engine, net))
        found = {"engine": chosen.engine, "chunk": at_once, "seconds": dict(chosen.seconds)}
        cache.remember_engine(question, found)
        cache.write()
    return chosen


def compile_draws(mechanism: Any, parameters: int, runs: Sequence[Run]) -> str:
    """Have torch compile random numbers where the stack draws many of them; they stay the same bits.

    Returns why torch could not, "" where it could or nothing was to be compiled.
    """
    shifts = getattr(mechanism, "places_of_a_record", 1)
    each = (
        mechanism.private + (shifts if shifts > 1 else 0) + getattr(getattr(mechanism, "rule", None), "projections", 0)
    )
    if each * parameters * sum(run.steps for run in runs) >= MANY_NORMALS:
        return compile_words()
    return ""


def chunks(
    execution: Execution, runs: Sequence[Run], mechanism: Any, net: Network, one: tuple[Tensor, Tensor]
) -> Callable[[Any], int]:
    """`places_of_a_call` of these runs, by what sums the gradients."""
    shifts = getattr(mechanism, "places_of_a_record", 1)
    together = 1 if getattr(mechanism, "run_by_run", False) else len(runs)
    return lambda of: places_of_a_call(execution, together, of, net, one, expected_places(runs), shifts)


def expected_places(runs: Sequence[Run]) -> int:
    """The places that the largest batch of these runs is expected to fill."""
    return max(math.ceil(run.sampling_rate * run.examples) for run in runs)
