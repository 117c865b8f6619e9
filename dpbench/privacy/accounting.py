"""From a composition of mechanisms to guarantees, by every accountant that is asked.

Three lines are enough:

>>> from dpbench import account
>>> from dpbench.events import SampledGaussian
>>> answers = account(SampledGaussian(sampling_rate=0.01, noise_multiplier=0.5), delta=1e-6)
>>> {answer.accountant: round(answer.epsilon.value, 3) for answer in answers if answer.accountant == "gdp_clt"}
{'gdp_clt': 0.284}

Accountants are files in `dpbench/privacy/accountants/`; each answers for a whole `Composition` and says of which kind
its answer is. Importing this module imports neither torch, NumPy nor SciPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from dpbench.catalog import catalog, find
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.privacy.answers import (
    Accountant,
    Estimate,
    Guarantee,
    No,
    PrivacyCurve,
    check_delta,
    check_epsilon,
    no_answer,
)
from dpbench.privacy.composition import as_composition
from dpbench.privacy.groups import check_group, group_curve
from dpbench.privacy.guards import called, cross_checked, guarded

__all__ = ["account", "load_accountant"]


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
    records by the generic bound (`groups.py`). `progress` is called with the name of each accountant before it is
    asked. An `exact` answer that a bound of another accountant contradicts is withdrawn, and both are shown
    (`guards.cross_checked`). Raises DpbenchError unless exactly one of a `delta` in (0, 1) and a finite `epsilon` >= 0
    is given, and for an unknown accountant; an accountant that fails at this composition stands in the result as a
    refusal. Only `exact`, `certified` and `upper_bound` are promises.

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
    """The jobs of `account`: each accountant's name and the call that asks it. Raises DpbenchError like `account`."""
    composition = as_composition(releases)
    if (delta is None) == (epsilon is None):
        raise DpbenchError("give either delta, to ask for epsilon, or epsilon, to ask for delta")
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
        job = partial(
            guarantee, name, make_curve, delta=delta, epsilon=epsilon, version=find("accountants", name).version
        )
        found.append((name, job))
    return found


def _loaded_or_refusal(name: str) -> Accountant | No:
    """An accountant of the catalog; where it cannot be loaded (a package's own fault), the others still answer."""
    try:
        return load_accountant(name)
    except DpbenchError as error:
        return No(str(error))


def guarantee(
    name: str,
    make_curve: Callable[[], PrivacyCurve | No],
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    version: str | None = None,
) -> Guarantee:
    """The timed answer of a curve to one question (checked before); `name` and `version` say whose curve it is.

    A refusal and every error become a guarantee that says why there is no number; so does an answer that
    `guards.checked` rejects.
    """
    start = time.perf_counter()

    def refusal(reason: str) -> Guarantee:
        return no_answer(name, reason, time.perf_counter() - start, delta=delta, epsilon=epsilon, version=version)

    try:
        made = called(make_curve)
        if isinstance(made, No):
            return refusal(made.reason)
        curve = guarded(made)
        at = None if epsilon is None else curve.delta(epsilon)
        found = Estimate(epsilon, epsilon, epsilon) if epsilon is not None else None
        found = found if delta is None else curve.epsilon(delta)
    except DpbenchError as error:
        return refusal(str(error))
    seconds = time.perf_counter() - start
    stated = delta if at is None else at.value
    return Guarantee(name, curve.kind, curve.adjacency, stated, found, curve.mu, None, seconds, curve, at, version)


def curve_or_refusal(accountant: Accountant | No, composition: Composition, group_size: int = 1) -> PrivacyCurve | No:
    """The accountant's curve, for groups of `group_size` records by the generic bound; or why it refuses.

    The curve checks its own answers (`guards.py`). Raises DpbenchError in place of whatever the accountant raises.
    """
    if isinstance(accountant, No):
        return accountant
    answer = called(partial(accountant.supports, composition))
    if isinstance(answer, No):
        return answer
    curve = guarded(called(partial(accountant.curve, composition)))
    if group_size == 1:
        return curve
    return group_curve(curve, group_size)


def load_accountant(name: str) -> Accountant:
    """The accountant of that name, or the object that `package.module:attribute` names.

    Raises DpbenchError where there is none, with a suggestion, or where the object is not an accountant.
    """
    found = find("accountants", name).load()
    if not isinstance(found, Accountant):
        raise DpbenchError(f"accountant {name!r}: expected an object with name, kind, supports, curve; got {found!r}")
    return found
