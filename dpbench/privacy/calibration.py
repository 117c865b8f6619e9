"""How far a budget goes: the smallest noise, the most steps, the largest sampling rate or batch, by any accountant.

Each answer is rounded to the safe side. The accountant has been asked at exactly the number that is returned, which
meets the target, and at the next number, which misses it; a refusal is no miss. Three lines are enough:

>>> from dpbench.privacy.calibration import largest_steps
>>> from dpbench.events import SampledGaussian
>>> largest_steps(SampledGaussian(sampling_rate=0.01, noise_multiplier=4.0), epsilon=1.0, delta=1e-5) > 5000
True
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dpbench.catalog import catalog, find
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.privacy.accounting import account, curve_or_refusal, load_accountant
from dpbench.privacy.answers import (
    FAILURES,
    PROMISES,
    Accountant,
    Estimate,
    Guarantee,
    GuaranteeKind,
    No,
    as_real,
    check_delta,
)
from dpbench.privacy.composition import MOST_RELEASES, as_composition
from dpbench.privacy.guards import in_a_sentence
from dpbench.privacy.scaling import repeated
from dpbench.privacy.search import LARGEST, Found, largest_number, largest_whole, smallest_noise

__all__ = [
    "Calibrated",
    "Recalibrated",
    "calibrate",
    "largest_batch",
    "largest_rate",
    "largest_steps",
    "recalibrate",
    "solve",
]

MOST_EPSILON = 1e6  # of a target: beyond it accountants overflow, and slowly
WHOLE_SEQUENCE = ("noise_factor", "repetitions", "rate_factor")  # scale unlike mechanisms together, see scaling.py
FINDS = ("noise_multiplier", "steps", "epochs", "sampling_rate", "batch", *WHOLE_SEQUENCE)
WHOLE = ("steps", "batch", "repetitions")
TIGHTEST = ("exact", "lattice", "rdp")  # in this order, then the others in the catalog that give promises
Releases = Composition | Event


class Refused(DpbenchError):
    """An accountant cannot be calibrated with here; another one may."""


class TooLong(Refused):
    """A search has taken all the work that one may."""


@dataclass(frozen=True)
class Calibrated:
    """What was found: `value` meets the target, `neighbour` (None where the numbers end) is the next and misses it.

    `attained` is the accountant's ε at `value`, `neighbour_attained` its ε at the neighbour, infinite with a reason
    where no mechanism has that number (a rate above 1). `asked` counts the numbers that were tried, `seconds` is wall
    time. `because` says why this accountant, where none was named; `version` is the accountant's.
    """

    find: str
    value: Any  # an int for steps, repetitions and batch, else a float
    neighbour: Any
    attained: Estimate
    neighbour_attained: Estimate | None
    accountant: str
    kind: GuaranteeKind
    epsilon: float
    delta: float
    asked: int
    seconds: float
    adaptive: bool = False
    because: str = ""

    @property
    def version(self) -> str:
        """The accountant's package and number."""
        return find("accountants", self.accountant).version

    @property
    def promise(self) -> bool:
        """Whether the target is really met: the accountant's answers are exact, certified or an upper bound.

        Not where parameters depend on earlier outputs: there only a budget holds that was fixed beforehand.
        """
        return self.kind in PROMISES and not self.adaptive


def covering(composition: Composition) -> Iterator[tuple[str, str]]:
    """The accountants that promise something for a composition, the tightest first, each with why not one before it.

    >>> from dpbench.events import SampledGaussian
    >>> next(covering(as_composition(SampledGaussian(0.01, 1.0))))
    ('exact', 'exact covers these releases')
    """
    why: dict[str, list[str]] = {}
    known = catalog("accountants")
    for name in dict.fromkeys([*(name for name in TIGHTEST if name in known), *known]):
        try:
            accountant = load_accountant(name)
            if accountant.kind not in PROMISES:
                continue
            answer = accountant.supports(composition)
        except Exception:  # noqa: BLE001 - a plug-in's own fault; `dpbench account` shows it
            continue
        if answer:
            refuse = [f"{', '.join(of)} refuse{'s' * (len(of) == 1)} ({reason})" for reason, of in why.items()]
            yield name, "; ".join([*refuse, f"{name} covers these releases"])
        elif isinstance(answer, No) and name in TIGHTEST:
            why.setdefault(str(answer.reason), []).append(name)


def tightest(releases: Releases, delta: float) -> tuple[Guarantee, str]:
    """ε at `delta` by the first accountant of `covering`, and why this one; the refusal of `rdp` where none covers."""
    composition = as_composition(releases)
    name, because = next(covering(composition), ("rdp", ""))
    return account(composition, delta=delta, accountants=[name])[0], because


def calibrate(
    make_composition: Callable[[float], Composition | Event],
    *,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
) -> float:
    """The smallest noise multiplier of six significant digits with which `accountant` gives at most (epsilon, delta).

    `make_composition` takes a noise multiplier and returns what would then be released. The answer is rounded up:
    the accountant was asked at exactly the number that is returned, and the next smaller number of six digits misses
    the target (for an accountant that is not monotone, at least that neighbour does). Without `accountant` it is the
    tightest that answers (`covering`): `exact`, else `lattice`, else `rdp`, else another one. Raises DpbenchError where
    the accountant refuses, where no noise suffices and where none is needed. `solve` finds the most steps, the largest
    rate and the largest batch as well.

    >>> from dpbench.events import Composition, SampledGaussian
    >>> def training(sigma):
    ...     return Composition(((SampledGaussian(256 / 60000, sigma), 3516),))
    >>> round(calibrate(training, epsilon=3.0, delta=1e-5), 2)
    0.73
    """
    return float(solve("noise_multiplier", make_composition, epsilon=epsilon, delta=delta, accountant=accountant).value)


def solve(
    find: str,
    make_composition: Callable[[Any], Releases],
    *,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
    most: int | None = None,
    group_size: int = 1,
    hint: float | None = None,
) -> Calibrated:
    """The last value of one parameter that meets a target (epsilon, delta), and the first that misses it.

    `find` is one of `noise_multiplier`, `steps`, `epochs`, `sampling_rate`, `batch`, or for unlike mechanisms together
    (with `scaling.noise_scaled`, `repeated` and `rates_scaled`) `noise_factor`, `repetitions`, `rate_factor`. Noise is
    made as small as possible, all else as large. `make_composition` takes the number and returns what would then be
    released. Without `accountant` it is the first of `covering` that answers. `most` limits whole numbers (2^53 without
    it). With `group_size` g the target is for groups of g records, by the generic bound. A noise multiplier given as
    `hint` is the answer if it is found to be one, else without effect (for an accountant that is monotone). Raises
    DpbenchError where the accountant refuses or gives only lower bounds, where no number or every number meets the
    target, and where the accountant refuses the number beside the last that meets it; refusals elsewhere are skipped.

    >>> from dpbench.events import Gaussian
    >>> found = solve("noise_multiplier", Gaussian, epsilon=1.0, delta=1e-5, accountant="gdp")
    >>> found.value, found.neighbour, found.attained.value <= 1.0 < found.neighbour_attained.value
    (3.73064, 3.73063, True)
    """
    if not 0 < as_real(epsilon) < math.inf:
        raise DpbenchError(f"epsilon = {epsilon!r}: expected a finite number above 0")
    if as_real(epsilon) > MOST_EPSILON:
        raise DpbenchError(f"epsilon = {epsilon:g}: expected at most {MOST_EPSILON:g}; beyond, nothing is promised")
    most = None if most is None else int(most)
    if find not in FINDS:
        raise DpbenchError(f"find = {find!r}: expected one of {', '.join(FINDS)}")
    epsilon, delta = as_real(epsilon), check_delta(delta)
    first = as_composition(make_composition(1 if find in WHOLE else 1.0))
    if accountant is None:
        asked = {"epsilon": epsilon, "delta": delta, "most": most, "group_size": group_size, "hint": hint}
        return _by_the_tightest(find, make_composition, first, asked)
    chosen = load_accountant(accountant)
    adaptive, refusal = first.adaptive, chosen.supports(first)
    if refusal and hasattr(chosen, "supports_target"):  # of an accountant whose theorem is about some ε alone
        refusal = chosen.supports_target(epsilon / group_size)
    if isinstance(refusal, No):
        raise Refused(f"cannot calibrate with accountant {accountant!r}: {refusal.reason}")
    if chosen.kind not in (*PROMISES, "approximation"):
        raise DpbenchError(f"cannot calibrate with accountant {accountant!r}: its answers are of kind {chosen.kind!r}")

    from dpbench.privacy.accountants._work import MOST_OF_A_SEARCH, exhausted, granted

    start = time.perf_counter()

    refused: dict[Any, DpbenchError] = {}
    tried: list[Any] = []

    answers: dict[Any, Estimate] = {}

    def answer(value: Any) -> Estimate:
        tried.append(value)
        try:
            answers[value] = _attained(chosen, make_composition, value, delta, group_size)
        except DpbenchError as error:
            if exhausted():
                raise TooLong(
                    f"cannot calibrate with accountant {accountant!r}: after {len(tried)} numbers, the last {find} ="
                    f" {value!r}, the search for epsilon = {epsilon:g} has taken all the work that one may (about ten"
                    f" seconds); {_another(accountant, first)}, or give {find} and ask `dpbench account`"
                ) from error
            refused[value] = error
            answers[value] = Estimate(math.inf)  # for the search: nothing is promised there
        return answers[value]

    try:
        who = f"accountant {accountant!r} at delta = {delta:g}"
        with granted(MOST_OF_A_SEARCH):
            found = _search(find, lambda value: answer(value).safe, epsilon, who, most, hint)
    except TooLong:
        raise
    except DpbenchError as error:
        if not tried or tried[-1] not in refused:
            raise
        raise Refused(
            f"cannot calibrate with accountant {accountant!r}: no {find} is known to meet epsilon = {epsilon:g}, and it"
            f" refuses {find} = {tried[-1]!r} ({refused[tried[-1]]}); {_another(accountant, first)}"
        ) from error
    value, neighbour = found.value, found.neighbour
    attained = answer(value) if len(tried) > 2 else answers[value]  # once more, unless it is a hint just confirmed
    if not attained.safe <= epsilon:
        raise DpbenchError(
            f"accountant {accountant!r} gave two answers at {find} = {value!r}: it met epsilon = {epsilon:g} first and"
            f" then said {attained.safe:.9g}; it cannot be calibrated with"
        )
    beyond = None if neighbour is None else answers[neighbour]  # the search has asked about it
    if neighbour in refused:
        raise Refused(
            f"cannot calibrate with accountant {accountant!r}: {find} = {value!r} meets epsilon = {epsilon:g} (with"
            f" {attained.safe:.9g}), and the next, {neighbour!r}, it refuses ({refused[neighbour]}), so how far the"
            f" budget goes is not known; {_another(accountant, first)}"
        )
    seconds = time.perf_counter() - start
    kind: GuaranteeKind = "upper_bound" if group_size > 1 and chosen.kind in PROMISES else chosen.kind
    return Calibrated(
        find, value, neighbour, attained, beyond, accountant, kind, epsilon, delta, found.asked, seconds, adaptive
    )


def _by_the_tightest(
    find: str, make_composition: Callable[[Any], Releases], first: Composition, asked: dict[str, Any]
) -> Calibrated:
    """`solve` with the first accountant that covers the releases and answers. Raises the first refusal if none does.

    All together do the work that one search may. Where `exact` takes too long `lattice` is not asked, which takes
    longer still.
    """
    from dpbench.privacy.accountants._work import MOST_OF_A_SEARCH, granted

    refusals: list[Refused] = []
    with granted(MOST_OF_A_SEARCH):
        for name, because in covering(first):
            if name == "lattice" and any(isinstance(error, TooLong) for error in refusals):
                continue
            try:
                found = solve(find, make_composition, accountant=name, **asked)
            except Refused as error:
                refusals.append(error)
            else:
                return replace(found, because="; ".join([*map(str, refusals), because]))
    if refusals:
        raise refusals[0]
    return solve(find, make_composition, accountant="rdp", **asked)  # whose refusal gives the reason


def _attained(
    accountant: Accountant, make_composition: Callable[[Any], Releases], value: Any, delta: float, group_size: int
) -> Estimate:
    """ε at a number; infinite, with the reason, where no mechanism has it (a sampling rate above 1).

    Raises DpbenchError, with the reason, where the accountant has no answer.
    """
    try:
        made = as_composition(make_composition(value))
    except FAILURES as error:
        return Estimate(math.inf, reason=in_a_sentence(error))
    try:
        curve = curve_or_refusal(accountant, made, group_size)
        if not isinstance(curve, No):
            return curve.epsilon(delta)
    except FAILURES as error:
        raise DpbenchError(in_a_sentence(error)) from error
    raise DpbenchError(curve.reason)


def _another(accountant: str, composition: Composition) -> str:
    """What to do where an accountant refuses."""
    names = []
    for name in sorted(catalog("accountants"), key=lambda name: (name != "rdp", name != "lattice", name)):
        try:
            other = load_accountant(name)
        except DpbenchError:  # a plug-in's own fault; `dpbench account` shows it
            continue
        if name != accountant and other.kind in PROMISES and other.supports(composition):
            names.append(name)
    return f"use another --accountant ({', '.join(names[:3])})" if names else "ask for another epsilon or delta"


def _search(
    find: str, attained: Callable[[Any], float], target: float, who: str, most: int | None, hint: float | None
) -> Found:
    if find in ("noise_multiplier", "noise_factor"):
        return smallest_noise(attained, target, who, find.replace("_", " "), hint)
    if find == "sampling_rate":
        return largest_number(attained, target, 1.0, who, find)
    if find in ("epochs", "rate_factor"):
        found = largest_number(attained, target, LARGEST, who, find)
    else:
        found = largest_whole(attained, target, most or MOST_RELEASES, who, find)
    if most is None and found.neighbour is None:
        raise DpbenchError(
            f"epsilon = {target:g} sets no limit: {who} meets it with {find} = {found.value:g};"
            " check that the composition releases anything at all"
        )
    return found


def largest_steps(
    releases: Releases | Callable[[int], Releases],
    *,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
    most: int | None = None,
) -> int:
    """The most steps T with which `accountant` gives at most (epsilon, delta).

    `releases` is what one step releases, to be repeated T times, or a function from T to everything that is released.
    Raises DpbenchError as `solve` does.

    >>> from dpbench.events import Gaussian
    >>> largest_steps(Gaussian(20.0), epsilon=1.0, delta=1e-5, accountant="gdp")
    28
    """
    make = releases if callable(releases) else lambda steps: repeated(releases, steps)
    found = solve("steps", make, epsilon=epsilon, delta=delta, accountant=accountant, most=most)
    return int(found.value)


def largest_rate(
    make_composition: Callable[[float], Releases], *, epsilon: float, delta: float, accountant: str | None = None
) -> float:
    """The largest sampling rate q of six significant digits, at most 1, with at most (epsilon, delta); rounded down.

    >>> from dpbench.events import Composition, SampledGaussian
    >>> q = largest_rate(lambda q: Composition(((SampledGaussian(q, 1.3), 3516),)), epsilon=1.0, delta=1e-5)
    >>> round(q, 4)
    0.0049
    """
    found = solve("sampling_rate", make_composition, epsilon=epsilon, delta=delta, accountant=accountant)
    return float(found.value)


def largest_batch(
    make_composition: Callable[[int], Releases],
    *,
    examples: int,
    epsilon: float,
    delta: float,
    accountant: str | None = None,
) -> int:
    """The largest expected batch size, from 1 to `examples`, with at most (epsilon, delta).

    `make_composition` takes a batch size, so it decides whether steps or epochs stay as they are.

    >>> from dpbench.privacy.composition import steps_from_epochs
    >>> from dpbench.events import Composition, SampledGaussian
    >>> def fifteen_epochs(batch):
    ...     return Composition(((SampledGaussian(batch / 60000, 1.3), steps_from_epochs(15, 60000, batch)),))
    >>> largest_batch(fifteen_epochs, examples=60000, epsilon=1.0, delta=1e-5, accountant="gdp_clt")
    355
    """
    found = solve("batch", make_composition, epsilon=epsilon, delta=delta, accountant=accountant, most=examples)
    return int(found.value)


@dataclass(frozen=True)
class Recalibrated:
    """Less noise for the same stated ε: see `recalibrate`."""

    noise_multiplier: float  # σ
    epsilon: float  # ε_A(δ) at σ
    delta: float
    given_by: str  # A
    spent_by: str  # B
    mu: float | None  # μ at σ by B, where B has one
    recalibrated: Calibrated  # σ̃, and what B says there
    recalibrated_mu: float | None  # μ̃


def recalibrate(
    make_composition: Callable[[float], Releases],
    noise_multiplier: float,
    *,
    delta: float,
    given_by: str = "moments",
    spent_by: str = "gdp_clt",
) -> Recalibrated:
    """The noise σ̃ < σ that costs by one accountant what σ costs by another (Bu, Dong, Long, Su 2020, section 3.2).

    | here | in the paper |
    | --- | --- |
    | `noise_multiplier`, `recalibrated.value` | σ, σ̃ |
    | `given_by`, `spent_by` | the moments accountant MA, the central limit theorem CLT |
    | `mu`, `recalibrated_mu` | μ_CLT, μ̃_CLT |

    Equation (3.3) asks for μ̃ with δ(ε; μ̃) = δ_MA(ε), equation (3.4) for σ̃ with μ̃ = p√(T(e^(1/σ̃²) − 1)). At
    ε = ε_MA(δ) that is ε(δ; μ̃) = ε_MA(δ), and since (3.4) with (3.2) is the accountant `gdp_clt`, σ̃ is the smallest
    noise with which `gdp_clt` gives at most ε_MA(δ): six digits, rounded up. Any two accountants will do; but where
    `spent_by` is an approximation, σ̃ promises nothing: the true ε at σ̃ may be larger than what was given.

    >>> from dpbench.events import Composition, SampledGaussian
    >>> def training(sigma):
    ...     return Composition(((SampledGaussian(256 / 60000, sigma), 4688),))
    >>> found = recalibrate(training, 1.3, delta=1e-5)
    >>> round(found.epsilon, 2), found.recalibrated.value
    (1.35, 1.05598)
    """
    nothing = f"accountant {given_by!r} gives no epsilon at noise multiplier {noise_multiplier:g}"
    try:
        estimate = _attained(load_accountant(given_by), make_composition, noise_multiplier, delta, 1)
    except DpbenchError as error:
        raise DpbenchError(f"{nothing}: {error}") from error
    if not math.isfinite(estimate.safe):
        raise DpbenchError(f"{nothing}: {estimate.reason or 'it is infinite'}")
    found = solve("noise_multiplier", make_composition, epsilon=estimate.safe, delta=delta, accountant=spent_by)
    spender = load_accountant(spent_by)

    def mu(noise: float) -> float | None:
        return spender.curve(as_composition(make_composition(noise))).mu

    return Recalibrated(
        noise_multiplier, estimate.safe, delta, given_by, spent_by, mu(noise_multiplier), found, mu(found.value)
    )
