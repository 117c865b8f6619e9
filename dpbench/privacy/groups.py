"""From one record to a group of g: the generic bound, which holds for any mechanism and any neighbouring relation.

Between two datasets that differ in g records lie g steps of one record each, D_0, D_1, ..., D_g. If a mechanism is
(ε, δ)-private for one record, then for every set S of outputs

    P_0(S) <= e^ε P_1(S) + δ <= e^2ε P_2(S) + (1 + e^ε) δ <= ... <= e^gε P_g(S) + δ (1 + e^ε + ... + e^((g−1)ε)),

so it is (gε, δ·(e^gε − 1)/(e^ε − 1))-private for the group. The geometric sum grows with ε while δ(ε) falls, so the
product may rise again where δ falls slowly (heavy tails). Whatever holds at a smaller ε holds at a larger one, hence
the curve here is the least product up to ε.

The bound is an upper bound and loose: an event that describes the group itself, such as `GroupSampledGaussian`, gives
less wherever it applies. Applied to an approximation it gives an approximation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition, GroupSampledGaussian
from dpbench.privacy.answers import (
    PROMISES,
    Estimate,
    GuaranteeKind,
    No,
    PrivacyCurve,
    check_delta,
    check_epsilon,
    is_whole,
)

_WIDTH = 1e-10  # of the bracket in which ε is found, relative; the end that meets δ is returned
_ROUNDING = 1e-12  # added to every logarithm: above the rounding of logarithms and sums up to 1e3
_STEP = 1e-6  # relative: the step at which the product is tested for a rise
_MOST_EPSILON = 1e6  # per record; beyond, the bound says nothing


def check_group(composition: Composition, group_size: int) -> int:
    """`group_size`. Raises DpbenchError unless it is whole, 1 or more, and no event speaks of groups already."""
    if not is_whole(group_size, 1):
        raise DpbenchError(f"group_size = {group_size!r}: expected a whole number, 1 or more")
    if group_size > 1 and any(isinstance(event, GroupSampledGaussian) for event, _ in composition.parts):
        raise DpbenchError(
            f"group_size = {group_size}: an event of this composition speaks of groups already;"
            " use SampledGaussian for the generic bound, or leave group_size out"
        )
    return int(group_size)


def group_curve(curve: PrivacyCurve, group_size: int) -> GroupCurve | No:
    """The curve for groups, or why there is none: a lower bound for one record bounds nothing for a group."""
    if curve.kind not in (*PROMISES, "approximation"):
        return No(f"the generic bound for groups needs an upper bound for one record, not kind {curve.kind!r}")
    return GroupCurve(curve, group_size)


@dataclass(frozen=True)
class GroupCurve:
    """The generic bound for groups of `group_size` records, from the curve of one record.

    >>> from dpbench.privacy.accountants._gaussian_curve import GaussianCurve
    >>> one = GaussianCurve(0.5, "exact")
    >>> round(GroupCurve(one, 3).delta(3.0).value / one.delta(1.0).value - (1 + math.e + math.e**2), 9)
    0.0
    """

    curve: PrivacyCurve
    group_size: int
    mu: None = field(default=None, init=False)

    @property
    def kind(self) -> GuaranteeKind:
        """An upper bound where the curve of one record is a promise, an approximation where it is one."""
        return "upper_bound" if self.curve.kind in PROMISES else "approximation"

    @property
    def adjacency(self) -> Adjacency:
        """The relation of a single step between neighbours; a group differs in `group_size` such steps."""
        return self.curve.adjacency

    def delta(self, epsilon: float) -> Estimate:
        """δ of the group at `epsilon`, in [0, 1]: the least product up to ε/g.

        Where the product rises at ε/g, its valley below is searched for; were there several, what is found would still
        be a bound.
        """
        epsilon = check_epsilon(epsilon)
        single = epsilon / self.group_size
        least = self._product(single)
        if least > self._product(single * (1 - _STEP)):
            from scipy.optimize import minimize_scalar

            within = {"bounds": (0.0, single), "options": {"xatol": 1e-8 * single}}
            least = min(least, self._product(0.0), minimize_scalar(self._product, method="bounded", **within).fun)
        return self._estimate(math.exp(least) if least < 0 else 1.0)

    def epsilon(self, delta: float) -> Estimate:
        """The least ε of the group at `delta` that the bound gives, to 1e-10 and rounded up; infinite where none."""
        log_target = math.log(check_delta(delta))
        missing = 0.0
        if self._product(missing) <= log_target:
            return self._estimate(0.0)
        # The sum is at least g, so a single ε is at least ε(δ/g); from there on the bracket doubles.
        start = self.curve.epsilon(delta / self.group_size)
        meeting = start.safe or 1e-6
        if not math.isfinite(meeting):
            return self._estimate(math.inf, start.reason)
        while not self._product(meeting) <= log_target:
            if meeting > _MOST_EPSILON:
                reason = (
                    start.reason or f"the generic bound for {self.group_size} records meets delta at no epsilon tried"
                )
                return self._estimate(math.inf, reason)
            missing, meeting = meeting, meeting * 1.25
        while meeting - missing > _WIDTH * meeting:
            middle = missing + (meeting - missing) / 2
            if self._product(middle) <= log_target:
                meeting = middle
            else:
                missing = middle
        return self._estimate(self.group_size * meeting)

    def _product(self, single: float) -> float:
        """log δ(ε) + log (1 + e^ε + ... + e^((g−1)ε)) at the ε of one record."""
        delta = self.curve.delta(single).safe
        if delta <= 0:
            return -math.inf
        return math.log(delta) + _log_sum(single, self.group_size) + _ROUNDING

    def _estimate(self, value: float, reason: str | None = None) -> Estimate:
        reason = reason or getattr(self.curve, "remark", None)  # a reservation about one record is one about a group
        return Estimate(value, None, value if self.kind == "upper_bound" else None, reason)


def _log_sum(epsilon: float, count: int) -> float:
    """log Σ_{i < count} e^(iε) = (count − 1) ε + log((1 − e^(−count·ε)) / (1 − e^(−ε)))."""
    if epsilon == 0:
        return math.log(count)
    return (count - 1) * epsilon + math.log(math.expm1(-count * epsilon) / math.expm1(-epsilon))
