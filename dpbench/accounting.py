"""From a composition of releases to guarantees: what an accountant is, what it answers, and calibration against it.

Three lines are enough:

>>> from dpbench import account
>>> from dpbench.events import SampledGaussian
>>> answers = account(SampledGaussian(sampling_rate=0.01, noise_multiplier=0.5), delta=1e-6)
>>> {answer.accountant: round(answer.epsilon.value, 3) for answer in answers if answer.accountant == "gdp_clt"}
{'gdp_clt': 0.284}

Accountants are files in `dpbench/accountants/`; each answers for a whole `Composition` and says of which kind its
answer is. Importing this module imports neither torch, NumPy nor SciPy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, Protocol, runtime_checkable

from dpbench.catalog import catalog, find
from dpbench.compose import as_composition
from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition, Event
from dpbench.guards import cross_checked, guarded, said
from dpbench.guards import in_a_sentence as in_a_sentence

GuaranteeKind = Literal["exact", "certified", "upper_bound", "lower_bound", "approximation", "measured", "claimed"]
KINDS: tuple[str, ...] = ("exact", "certified", "upper_bound", "lower_bound", "approximation", "measured", "claimed")


@dataclass(frozen=True)
class Estimate:
    """A number and what is known about the true one.

    The truth is at least `lower` and at most `upper` where these are given; None means that nothing is claimed on
    that side. An upper bound has `upper == value`, an approximation neither. `reason` says why a value is infinite.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    reason: str | None = None

    @property
    def relative_error(self) -> float | None:
        """The greater distance to the two ends, relative to the value; None unless both ends are known."""
        if self.lower is None or self.upper is None or not math.isfinite(self.value):
            return None
        width = max(self.upper - self.value, self.value - self.lower)
        if width == 0:
            return 0.0
        return width / abs(self.value) if self.value else None

    @property
    def safe(self) -> float:
        """The end that a promise of privacy may use: `upper` where it is known, else the value."""
        return self.value if self.upper is None else self.upper


@dataclass(frozen=True)
class Yes:
    """The accountant's theorem covers this composition. True in a condition."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class No:
    """The accountant refuses this composition; `reason` is one sentence. False in a condition."""

    reason: str

    def __bool__(self) -> bool:
        return False


@runtime_checkable
class PrivacyCurve(Protocol):
    """δ as a function of ε and back, for one composition and one neighbouring relation."""

    @property
    def kind(self) -> GuaranteeKind:
        """What the answers are: exact, an upper bound, an approximation, ..."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation for which the answers hold."""
        ...

    @property
    def mu(self) -> float | None:
        """μ where the composition is (or is taken to be) μ-GDP; None where that does not make sense."""
        ...

    def delta(self, epsilon: float) -> Estimate:
        """δ in [0, 1] at `epsilon` >= 0. Raises DpbenchError for any other epsilon."""
        ...

    def epsilon(self, delta: float) -> Estimate:
        """ε in [0, inf] at `delta` in (0, 1). Raises DpbenchError for any other delta."""
        ...


@runtime_checkable
class Accountant(Protocol):
    """One way to account. It refuses what it cannot bound; it never warns and goes on."""

    @property
    def name(self) -> str:
        """Its name in the catalog."""
        ...

    @property
    def kind(self) -> GuaranteeKind:
        """The kind of its curves."""
        ...

    def supports(self, composition: Composition) -> Yes | No:
        """Whether its theorem covers the composition, and if not, why."""
        ...

    def curve(self, composition: Composition) -> PrivacyCurve:
        """The privacy curve. Raises DpbenchError with the reason where `supports` says no."""
        ...


@dataclass(frozen=True)
class Guarantee:
    """What one accountant says of one composition: ε at a given δ, or δ at a given ε.

    Either `epsilon`, `kind`, `adjacency` and `curve` are there, or `refused` holds the reason why not. Where δ was
    asked for, `delta_at` is the answer with its ends, `delta` its value and `epsilon` the number that was given.
    `seconds` is the wall time of the answer. `curve` answers for every other δ or ε.
    """

    accountant: str
    kind: GuaranteeKind | None
    adjacency: Adjacency | None
    delta: float | None
    epsilon: Estimate | None
    mu: float | None
    refused: str | None
    seconds: float
    curve: PrivacyCurve | None = field(default=None, repr=False, compare=False)
    delta_at: Estimate | None = None

    @property
    def answer(self) -> Estimate | None:
        """The number that was asked for: `delta_at` where δ was, else `epsilon`; None where refused."""
        return None if self.refused else self.delta_at or self.epsilon

    def to_json(self) -> dict[str, Any]:
        """Plain data without infinities: an infinite or missing number is null, and `reason` says why.

        `delta_lower` and `delta_upper` are there only where δ was asked for.
        """
        epsilon = self.epsilon or Estimate(math.nan)
        answer = self.answer or Estimate(math.nan)
        ends = self.delta_at and {"delta_lower": self.delta_at.lower, "delta_upper": self.delta_at.upper}
        return {
            "accountant": self.accountant,
            "kind": self.kind,
            "adjacency": self.adjacency,
            "delta": self.delta,
            "epsilon": _finite(epsilon.value),
            "epsilon_lower": _finite(epsilon.lower),
            "epsilon_upper": _finite(epsilon.upper),
            "relative_error": answer.relative_error,
            "mu": _finite(self.mu),
            "refused": self.refused,
            "reason": self.refused or answer.reason,
            "seconds": self.seconds,
        } | (ends or {})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def account(
    releases: Composition | Event,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    accountants: Sequence[str] | None = None,
    group_size: int = 1,
    progress: Callable[[str], None] | None = None,
) -> tuple[Guarantee, ...]:
    """ε at `delta`, or δ at `epsilon`, by every accountant that is asked for: by default all, refusals included.

    `releases` is a composition or a single event. With `group_size` g > 1 every answer is carried over to groups of g
    records by the generic bound (`group_privacy.py`). `progress` is told the name of each accountant before it is
    asked. An `exact` answer that a bound of another accountant contradicts is withdrawn, and both are shown
    (`guards.cross_checked`). Raises DpbenchError unless exactly one of a `delta` in (0, 1)
    and a finite `epsilon` >= 0 is given, and for an unknown accountant; an accountant that fails at this composition
    stands in the result as a refusal. Only `exact`, `certified` and `upper_bound` are promises.

    >>> from dpbench.events import Composition, SampledGaussian
    >>> training = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
    >>> [(answer.accountant, round(answer.epsilon.value, 2)) for answer in
    ...  account(training, delta=1e-5, accountants=["gdp_clt", "rdp"])]
    [('gdp_clt', 0.83), ('rdp', 0.95)]
    >>> round(account(training, epsilon=1.0, accountants="gdp_clt")[0].delta, 8)
    4.2e-07
    """
    found = []
    jobs = to_ask(releases, delta=delta, epsilon=epsilon, accountants=accountants, group_size=group_size)
    for name, job in jobs:
        if progress is not None:
            progress(name)
        found.append(job())
    return cross_checked(found)


def to_ask(
    releases: Composition | Event,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    accountants: Sequence[str] | None = None,
    group_size: int = 1,
) -> list[tuple[str, Callable[[], Guarantee]]]:
    """What `account` does, one accountant after the other: its name and what asks it. Raises DpbenchError as that."""
    composition = as_composition(releases)
    if (delta is None) == (epsilon is None):
        raise DpbenchError("give either delta, to ask for epsilon, or epsilon, to ask for delta")
    from dpbench.group_privacy import check_group  # which stands on this module

    group_size = check_group(composition, group_size)
    names = tuple(catalog("accountants")) if accountants is None else accountants
    names = (names,) if isinstance(names, str) else names
    if delta is not None:
        delta = check_delta(delta)
    else:
        epsilon = check_epsilon(epsilon)
    found: list[tuple[str, Callable[[], Guarantee]]] = []
    for name in names:
        accountant = load_accountant(name) if accountants is not None else _loaded_or_refusal(name)
        make_curve = partial(curve_or_refusal, accountant, composition, group_size)
        found.append((name, partial(guarantee, name, make_curve, delta=delta, epsilon=epsilon)))
    return found


def _loaded_or_refusal(name: str) -> Accountant | No:
    """An accountant of the catalog; where it cannot be loaded (a package's own fault), the others still answer."""
    try:
        return load_accountant(name)
    except DpbenchError as error:
        return No(str(error))


FAILURES = (DpbenchError, ArithmeticError, MemoryError)  # with which an accountant has no answer, for a reason


def guarantee(
    name: str,
    make_curve: Callable[[], PrivacyCurve | No],
    *,
    delta: float | None = None,
    epsilon: float | None = None,
) -> Guarantee:
    """The timed answer of a curve to one question (checked before); `name` says whose curve it is.

    A refusal and every error become a guarantee that says why there is no number; so does an answer that
    `guards.looked_at` does not let pass.
    """
    start = time.perf_counter()
    try:
        made = said(make_curve)
        if isinstance(made, No):
            return no_answer(name, made.reason, time.perf_counter() - start, delta=delta, epsilon=epsilon)
        curve = guarded(made)
        at = None if epsilon is None else curve.delta(epsilon)
        found = Estimate(epsilon, epsilon, epsilon) if epsilon is not None else None
        found = found if delta is None else curve.epsilon(delta)
    except DpbenchError as error:
        return no_answer(name, str(error), time.perf_counter() - start, delta=delta, epsilon=epsilon)
    seconds = time.perf_counter() - start
    stated = delta if at is None else at.value
    return Guarantee(name, curve.kind, curve.adjacency, stated, found, curve.mu, None, seconds, curve, at)


def no_answer(
    name: str, reason: str, seconds: float, *, delta: float | None = None, epsilon: float | None = None
) -> Guarantee:
    """A guarantee without a number, for a question that gave δ or ε, and why."""
    given = None if epsilon is None else Estimate(epsilon, epsilon, epsilon)
    return Guarantee(name, None, None, delta, given, None, reason, seconds)


def curve_or_refusal(accountant: Accountant | No, composition: Composition, group_size: int = 1) -> PrivacyCurve | No:
    """The accountant's curve, for groups of `group_size` records by the generic bound; or why it refuses.

    The curve looks at its own answers (`guards.py`). Raises DpbenchError in place of whatever the accountant raises.
    """
    if isinstance(accountant, No):
        return accountant
    answer = said(partial(accountant.supports, composition))
    if isinstance(answer, No):
        return answer
    curve = guarded(said(partial(accountant.curve, composition)))
    if group_size == 1:
        return curve
    from dpbench.group_privacy import group_curve

    return group_curve(curve, group_size)


def load_accountant(name: str) -> Accountant:
    """The accountant of that name, or the object that `package.module:attribute` names.

    Raises DpbenchError where there is none, with a suggestion, or where the object is not an accountant.
    """
    found = find("accountants", name).load()
    if not isinstance(found, Accountant):
        raise DpbenchError(f"accountant {name!r}: expected an object with name, kind, supports, curve; got {found!r}")
    return found


def calibrate(
    make_composition: Callable[[float], Composition | Event], *, epsilon: float, delta: float, accountant: str = "rdp"
) -> float:
    """The smallest noise multiplier of six significant digits with which `accountant` gives at most (epsilon, delta).

    `make_composition` takes a noise multiplier and returns what would then be released. The answer is rounded up:
    the accountant was asked at exactly the number that is returned, and the next smaller number of six digits misses
    the target (for an accountant that is not monotone, at least that neighbour does). Raises DpbenchError where the
    accountant refuses, where no noise suffices and where none is needed. `dpbench.calibration` finds the most steps,
    the largest rate and the largest batch as well.

    >>> from dpbench.events import Composition, SampledGaussian
    >>> def training(sigma):
    ...     return Composition(((SampledGaussian(256 / 60000, sigma), 3516),))
    >>> round(calibrate(training, epsilon=3.0, delta=1e-5), 2)
    0.77
    """
    from dpbench.calibration import solve  # which stands on this module

    return float(solve("noise_multiplier", make_composition, epsilon=epsilon, delta=delta, accountant=accountant).value)


def steps_from_epochs(epochs: float, examples: int, batch_size: int) -> int:
    """ceil(epochs · examples / batch_size), exactly: the number of steps that trainer and accountant both use.

    `epochs` is taken as the decimal number that was written, so 0.1 is one tenth. Raises DpbenchError for a negative
    or infinite `epochs` and for counts that are not whole or below 1.

    >>> steps_from_epochs(15, 60000, 256)
    3516
    >>> steps_from_epochs(0.1, 1000, 1)
    100
    """
    if not 0 <= as_real(epochs) < math.inf:
        raise DpbenchError(f"epochs = {epochs!r}: expected a finite number, 0 or more")
    for name, value in (("examples", examples), ("batch_size", batch_size)):
        if not is_whole(value, 1):
            raise DpbenchError(f"{name} = {value!r}: expected a whole number, 1 or more")
    return math.ceil(Fraction(str(epochs)) * int(examples) / int(batch_size))  # NumPy's float32 prints 0.1 as well


def check_delta(delta: float) -> float:
    """`delta` as a float. Raises DpbenchError unless it is a number above 0 and below 1."""
    found = as_real(delta)
    if not 0 < found < 1:
        raise DpbenchError(f"delta = {delta!r}: expected a number above 0 and below 1")
    return found


def check_epsilon(epsilon: float | None) -> float:
    """`epsilon` as a float. Raises DpbenchError unless it is a finite number, 0 or more."""
    found = as_real(epsilon)
    if not 0 <= found < math.inf:
        raise DpbenchError(f"epsilon = {epsilon!r}: expected a finite number, 0 or more")
    return found


def as_real(value: object) -> float:
    """A number of Python or NumPy as a float, infinite where it is too large; NaN for a bool and all else.

    >>> as_real(2), as_real(10**400), as_real(True), as_real("1")
    (2.0, inf, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    number: Any = value
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number of Python or NumPy, `least` or more.

    >>> is_whole(3, 1), is_whole(3.0, 1), is_whole(True, 1)
    (True, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
