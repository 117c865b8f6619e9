"""Checkpoints: the state of one unfinished run as a file that is validated before it is used.

A file is a line that names the format, a line with the SHA-256 of the rest, a line of JSON (`Store.steps_done` reads
it, too), then the bytes of the tensors one after the other. Nothing in it is code, and it has exactly the size of the
state that the mechanism starts with; any other file is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from dpbench.atomic import read_bytes, writing
from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.step.mechanism import State
from dpbench.store.reading import parse_json
from dpbench.store.records import MOST_FACTS, finite, restored
from dpbench.store.run_key import UNNAMED
from dpbench.store.shapes import CurvePoint

FORMAT = 3
HEAD = f"dpbench checkpoint {FORMAT}\n".encode()
MOST_NOTED = 1000  # characters of a note about memory


@dataclass(frozen=True)
class Place:
    """What a checkpoint belongs to: run key, hashes of the code, sampling rate, and the steps of the evaluations."""

    run_key: str
    sources: Mapping[str, str]
    sampling_rate: float
    stops: Sequence[int]


def write_checkpoint(path: Path, place: Place, facts: Mapping[str, Any], state: State) -> None:
    """Write a run's facts (step, curve and so on) and its state (R = 1), whole or not at all.

    There may be too little memory for a second copy of the state, so none is made of a state on the processor.
    """
    tensors = [tensor.detach().cpu().contiguous() for _, tensor in _tensors(state)]
    content = {"run_key": place.run_key, "sources": dict(place.sources), "tensors": _layout(state), **facts}
    line = json.dumps(finite(content), allow_nan=False).encode() + b"\n"
    parts: list[Any] = [line, *(tensor.flatten().view(torch.uint8).numpy() for tensor in tensors)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    with writing(path) as file:
        file.writelines([HEAD, digest.hexdigest().encode(), b"\n", *parts])


def read_checkpoint(path: Path, place: Place, fresh: State) -> tuple[dict[str, Any], State] | None:
    """The facts and the state of a checkpoint, in the form of the state `fresh`; None where there is no file.

    Raises DpbenchError with one sentence for a file that is not a checkpoint of this run, or contradicts itself.
    """
    if not path.exists() and not path.is_symlink():
        return None
    size = sum(tensor.nbytes for _, tensor in _tensors(fresh))
    content = read_bytes(path, size + MOST_FACTS)
    if not content.startswith(HEAD):
        raise DpbenchError(f"{path}: no checkpoint of format {FORMAT}")
    whole, begin = memoryview(content), len(HEAD) + 65  # parts of it are no copies
    if content[len(HEAD) : begin] != hashlib.sha256(whole[begin:]).hexdigest().encode() + b"\n":
        raise DpbenchError(f"{path}: its SHA-256 is not that of its content")
    line = content[begin : content.find(b"\n", begin)]
    data = whole[begin + len(line) + 1 :]
    try:
        facts = restored(parse_json(line.decode("utf-8")))
    except ValueError as error:
        raise DpbenchError(f"{path}: its facts are no JSON ({error})") from error
    wrong = _wrong(facts, place, fresh) or (f"has {len(data)} bytes, not {size}" if len(data) != size else "")
    if wrong:
        raise DpbenchError(f"{path}: {wrong}")
    state = _filled(data, facts["step"], fresh)
    for (name, tensor), (_, start) in zip(_tensors(state), _tensors(fresh), strict=True):
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise DpbenchError(f"{path}: {name} holds a byte that is neither true nor false")
        # What is finite at the start stays so, else the run has failed and fails again.
        if start.is_floating_point() and bool(start.isfinite().all()) and not bool(tensor.isfinite().all()):
            raise DpbenchError(f"{path}: {name} is not finite")
    return facts, state


def _tensors(state: State) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state in the order of the file; the step is among the facts."""
    yield "theta", state.theta_RP
    for part in ("memory", "private"):
        for name, tensor in sorted(getattr(state, part).items()):
            yield f"{part}.{name}", tensor


def _layout(state: State) -> list[list[Any]]:
    return [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in _tensors(state)]


def _filled(data: memoryview, step: int, fresh: State) -> State:
    """The state `fresh` with the values in `data`."""
    found: dict[str, Tensor] = {}
    begin = 0
    for name, tensor in _tensors(fresh):
        part = bytearray(data[begin : begin + tensor.nbytes])
        begin += tensor.nbytes
        found[name] = torch.frombuffer(part, dtype=tensor.dtype).reshape(tensor.shape) if part else tensor.cpu()
    memory, private = (
        {name: found[f"{part}.{name}"] for name in getattr(fresh, part)} for part in ("memory", "private")
    )
    return State(found["theta"], memory, torch.tensor([step]), private)


def _wrong(facts: Any, place: Place, fresh: State) -> str:
    """What is wrong with the facts of a checkpoint; "" where they fit the run."""
    expected = {"run_key": place.run_key, "sources": dict(place.sources), "tensors": _layout(fresh)}
    for name, value in expected.items():
        if facts.get(name) != value:
            return f"its {name} {'is' if name == 'run_key' else 'are'} not those of this run"
    step, bad = facts.get("step"), facts.get("bad")
    if type(step) is not int or not 0 < step < place.stops[-1]:
        return f"step = {step!r}: expected one from 1 to {place.stops[-1] - 1}"
    if type(bad) is not int or bad != -1:  # a run whose gradient was not finite has failed, and is not saved
        return f"bad = {bad!r}: expected -1"
    known = ("", *catalog("clipping"), *UNNAMED)
    if (engine := facts.get("engine", "")) not in known:
        return f"engine = {engine!r}: expected one of {', '.join(known[1:])}"
    if (chunk := facts.get("chunk")) is not None and not _is_chunk(chunk):
        return f"chunk = {chunk!r}: expected places of a call and runs of the stack, 1 or more each"
    for name in ("memory", "stack"):
        if type(note := facts.get(name, "")) is not str or len(note) > MOST_NOTED:
            return f"{name} = {str(note)[:40]!r}: expected a text of a line"
    for name in ("seconds", "share", "drawn", "loss", "clipped"):
        value = facts.get(name)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            return f"{name} = {value!r}: expected a number, 0 or more"
    if facts["share"] > facts["seconds"] * (1 + 1e-9):
        return "its own share is more than the seconds of its stack"
    return _wrong_curve(facts.get("curve"), step, facts["seconds"], place)


def _is_chunk(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int and one >= 1 for one in value)


def _wrong_curve(curve: Any, step: int, seconds: float, place: Place) -> str:
    try:
        points = _POINTS.validate_json(json.dumps(curve), strict=True)
    except (ValidationError, TypeError, ValueError):
        return "its curve is no list of evaluations"
    if [point.step for point in points] != [stop for stop in place.stops if stop <= step]:
        return f"its curve is not that of a run after {step} steps"
    for point in points:
        if point.epoch != round(point.step * place.sampling_rate, 6):
            return f"epoch {point.epoch} of its curve is not that of step {point.step}"
    times = [0.0, *(point.seconds for point in points), seconds + 1e-3]
    counts = [point.releases for point in points if point.releases is not None]
    if times != sorted(times) or counts != sorted(counts):
        return "its curve goes back in time"
    return ""


_POINTS = TypeAdapter(list[CurvePoint])
