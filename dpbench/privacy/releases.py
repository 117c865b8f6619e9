"""From a description of a training, in the words of the command line, to its composition.

| said | meaning |
| --- | --- |
| `examples`, `batch`, `epochs` | N records, the expected batch size B, passes over the data E |
| `sampling_rate`, `steps` | q = B / N, T = ⌈E·N / B⌉ where not given themselves |
| `noise_multiplier` | σ relative to the clip norm, under every neighbouring relation |

Every mistake is one `DpbenchError` that names the option, its value and what was expected.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpbench.catalog import suggestion
from dpbench.errors import DpbenchError
from dpbench.events import EVENTS, Composition, Event
from dpbench.privacy.composition import MOST_RELEASES, steps_from_epochs

SHORT = {"group": "GroupSampledGaussian"}  # besides the class's name in any spelling
# 0.01, 1e-3 or 256/60000; at most three digits of exponent, as longer powers of ten would fill the memory
RATE_TEXT = r" *\+?([0-9][0-9 ]*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})? *(/ *[0-9][0-9 ]*)?"
RATE = ("batch", "examples", "epochs")  # options of sampled mechanisms only


@dataclass(frozen=True)
class Said:
    """The description, unchecked; None for what was not given. `parameters` are those of the event but for q and σ.

    `votes` among them may be a tuple of the votes of each query: then each query is an event.
    """

    event: str = "SampledGaussian"
    examples: int | None = None
    batch: int | None = None
    epochs: float | None = None
    sampling_rate: str | float | None = None  # also as a fraction, "256/60000"
    steps: int | None = None
    noise_multiplier: float | None = None
    adaptive: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Releases:
    """A composition, and in words where its q and T come from ("" where they were given as they are)."""

    composition: Composition
    said: Said | None = None
    rate_words: str = ""
    steps_words: str = ""
    file: Path | None = None

    @property
    def unrounded_steps(self) -> Fraction | None:
        """E·N / B before rounding; None where the number of steps was given."""
        return None if self.said is None or self.said.steps is not None else _unrounded(self.said)


def event_class(name: str) -> type[Any]:
    """The event of that name, as the class is written or as lower-case words: `RandomSensitivityGaussian`,
    `random_sensitivity_gaussian`, `random-sensitivity-gaussian`. Raises DpbenchError with a suggestion.

    >>> event_class("random_sensitivity_gaussian") is EVENTS["RandomSensitivityGaussian"]
    True
    """
    known = {_bare(known): known for known in EVENTS} | {_bare(short): full for short, full in SHORT.items()}
    if _bare(name) not in known:
        raise DpbenchError(f"event {name!r} is not known{suggestion(name, tuple(map(snake_case, EVENTS)))}")
    return EVENTS[known[_bare(name)]]


def spellings(name: str) -> str:
    """A regular expression of every spelling that `event_class` takes for that class's name.

    >>> re.search(spellings("Laplace"), "la-PLACE") is not None, re.search(spellings("Laplace"), "lapace") is None
    (True, True)
    """
    bare = [_bare(name), *(_bare(short) for short, full in SHORT.items() if full == name)]
    letters = ["[-_ ]*".join(f"[{letter}{letter.upper()}]" for letter in each) for each in bare]
    return f"^[-_ ]*({'|'.join(letters)})[-_ ]*$"


def _bare(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).casefold()


def snake_case(name: str) -> str:
    """A class's name in lower-case words.

    >>> snake_case("RandomSensitivityGaussian"), snake_case("ConfidentGNMax")
    ('random_sensitivity_gaussian', 'confident_gnmax')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def option(name: str) -> str:
    """The option that sets a parameter: `--noise-multiplier`; `examples` is `--n`."""
    return "--n" if name == "examples" else "--" + name.replace("_", "-")


def needs(name: str, parameter: str) -> bool:
    """Whether the event of that name has that parameter."""
    return any(slot.name == parameter for slot in fields(event_class(name)))


def releases(said: Said) -> Releases:
    """The composition that was described. Raises DpbenchError for the first mistake.

    >>> found = releases(Said(examples=60000, batch=256, epochs=15, noise_multiplier=1.3))
    >>> found.composition.parts[0][1], found.steps_words
    (3516, '⌈15 · 60000 / 256⌉ = ⌈3515.625⌉')
    """
    chosen = event_class(said.event)
    slots = {slot.name: slot for slot in fields(chosen)}
    given: dict[str, Any] = dict(said.parameters)
    if said.noise_multiplier is not None:
        given["noise_multiplier"] = said.noise_multiplier
    rate_words, steps_words = "", ""
    if "sampling_rate" in slots:
        given["sampling_rate"], rate_words = _rate(said)
        steps, steps_words = _steps(said)
    else:
        _none_of(said, chosen.__name__)
        steps = 1 if said.steps is None else said.steps
    if given.get("sampler") == "shuffled":  # with a record more the batches are others: no bound is known
        given.setdefault("adjacency", "zero_out")
    for name in given:
        if name not in slots:
            raise DpbenchError(
                f"{option(name)}: {chosen.__name__} has no {name}; it has " + ", ".join(map(option, slots))
            )
    for name, slot in slots.items():
        if name not in given and slot.default is MISSING:
            what = f" ({chosen.__name__} needs it)" if chosen.__name__ != "SampledGaussian" else ""
            raise DpbenchError(f"{option(name)} is missing{what}")
    parts: tuple[tuple[Event, int], ...]
    if is_array(given.get("votes")):
        if said.steps is not None:
            raise DpbenchError(
                "--steps: the array of votes has a row for each query; leave --steps (or --find steps) out"
            )
        # No accountant asks which class has which count.
        rows = Counter(sorted(tuple(sorted(row, reverse=True)) for row in given.pop("votes")))
        parts = tuple((event(chosen, {**given, "votes": row}), count) for row, count in rows.items())
    else:
        parts = ((event(chosen, given), steps),)
    return Releases(composed(parts, said.adaptive), said, rate_words, steps_words)


def is_array(votes: Any) -> bool:
    """Whether votes are those of many queries.

    >>> is_array(((240, 10), (200, 50))), is_array((240, 10)), is_array(None)
    (True, False, False)
    """
    return bool(votes) and isinstance(votes[0], tuple)


def event(chosen: type[Any], given: Mapping[str, Any]) -> Event:
    """The event with these parameters. Raises DpbenchError for a bad one."""
    try:
        made: Event = chosen(**given)
    except ValueError as error:
        raise DpbenchError(str(error)) from None
    return made


def composed(parts: tuple[tuple[Event, int], ...], adaptive: bool = False) -> Composition:
    """The composition. Raises DpbenchError for a count that is not whole, or more than 2^53 invocations in all."""
    try:
        made = Composition(parts, adaptive)
    except ValueError as error:
        raise DpbenchError(str(error).replace("count =", "steps =", 1)) from None
    _few_enough(sum(count for _, count in parts))
    return made


def _few_enough(total: int | Fraction) -> None:
    if total > MOST_RELEASES:
        shown = str(total) if total < 10**18 else f"{Decimal(math.floor(total)):.4g}"
        raise DpbenchError(f"steps = {shown}: expected at most 2^53 mechanism invocations in all")


def _none_of(said: Said, event_name: str) -> None:
    for name in ("sampling_rate", *RATE):
        if getattr(said, name) is not None:
            raise DpbenchError(
                f"{option(name)}: {event_name} takes every record, it has no sampling; give --steps, how often it is"
                " released"
            )


def _rate(said: Said) -> tuple[float, str]:
    if (said.sampling_rate is None) == (said.batch is None):
        both = "--batch and --sampling-rate say the same twice; " if said.batch is not None else ""
        raise DpbenchError(f"{both}give either --n and --batch, or --sampling-rate")
    _whole("examples", said.examples)
    _whole("batch", said.batch)
    if said.sampling_rate is not None:
        text = str(said.sampling_rate)
        return float(rate(said.sampling_rate)), text if "/" in text else ""
    assert said.batch is not None
    if said.examples is None:
        raise DpbenchError("--n is missing: --batch needs the number of records; or give --sampling-rate")
    if said.batch > said.examples:
        raise DpbenchError(f"--batch {said.batch}: expected at most --n, which is {said.examples}")
    return said.batch / said.examples, f"{said.batch}/{said.examples}"


def _steps(said: Said) -> tuple[int, str]:
    if (said.steps is None) == (said.epochs is None):
        both = "--epochs and --steps say the same twice; " if said.steps is not None else ""
        raise DpbenchError(f"{both}give either --epochs or --steps")
    if said.steps is not None:
        return said.steps, ""
    exact = _unrounded(said)
    assert exact is not None
    assert said.epochs is not None
    _few_enough(exact)
    if said.batch is not None and said.examples is not None:
        steps = steps_from_epochs(said.epochs, said.examples, said.batch)
        formula = f"{said.epochs:g} · {said.examples} / {said.batch}"
    else:
        steps = math.ceil(exact)
        formula = f"{said.epochs:g} / {said.sampling_rate}"
    unrounded = f"{exact}" if exact.denominator == 1 else f"{float(exact):.10g}"
    return steps, f"⌈{formula}⌉" + (f" = ⌈{unrounded}⌉" if exact.denominator != 1 else "")


def rate(value: str | float) -> Fraction:
    """A sampling rate exactly as it is written, as a decimal number or a fraction.

    Raises DpbenchError unless it is a number from 0 to 1, and where a number above 0 would be 0 as a double.

    >>> rate("256/60000") == Fraction(256, 60000), rate(0.1)
    (True, Fraction(1, 10))
    """
    found = Fraction(-1)
    if re.fullmatch(RATE_TEXT, str(value)):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            found = Fraction(str(value).replace(" ", ""))
    if not 0 <= found <= 1 or (found and not float(found)):
        raise DpbenchError(f"--sampling-rate {value}: expected a number from 0 to 1, such as 0.01 or 256/60000")
    return found


def _unrounded(said: Said) -> Fraction | None:
    """E·N / B, or E / q, from the numbers as they were written."""
    if said.epochs is None:
        return None
    if not 0 <= said.epochs < math.inf:
        raise DpbenchError(f"--epochs {said.epochs!r}: expected a finite number, 0 or more")
    epochs = Fraction(repr(float(said.epochs)))  # 0.1 is one tenth
    if said.batch is not None and said.examples is not None:
        return epochs * said.examples / said.batch
    if said.sampling_rate is None:
        return None
    sampling_rate = rate(said.sampling_rate)
    if sampling_rate == 0:
        raise DpbenchError("--sampling-rate 0 with --epochs: no number of steps makes an epoch; give --steps")
    return epochs / sampling_rate


def _whole(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise DpbenchError(f"{option(name)} {value}: expected a whole number, 1 or more")
