"""δ(ε) and ε(δ) by counting large losses (`_projections_jumps`): where a window is put, and the root."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpbench.accountants._direction import Value
from dpbench.accountants._loss_leaf import UNIT
from dpbench.accountants._projections_bracket import hit
from dpbench.accountants._projections_jumps import Jumps
from dpbench.accountants._projections_moment import Release
from dpbench.accountants._projections_transform import HeavyTransform

_SHARES = (0.1, 0.2, 0.35, 0.6, 1.0, 1.8, 4.0, 10.0, 30.0)  # of ε where a window is put, tried until one does well
_MIDDLE = 4  # the first of them
_WELL = 2e-10  # relative error of δ
_LEAST = math.log(1e-31)
_NEAR = 0.02  # relative change of ε up to which windows are kept
_ROUGH = 1e-6  # the same on the way to a root
_STEPS, _FAILURES, _MOST_BUILT = 40, 1, 14
_WORSE = 10.0  # times the least error: no use to go on
_HOPELESS = 1e6  # error relative to δ from which on no other ε is tried
_FALLS, _FALL = 5, 20.0
_UNTOLD = 0.01


@dataclass
class Rare:
    """δ and ε of one direction. Raises ArithmeticError where lines take too many nodes."""

    transform: HeavyTransform
    share: int = _MIDDLE  # which did well last
    built: int = 0
    ahead: float = 0.0  # log of how much smaller a δ has to be told as well

    def near(self, epsilon: float, log_target: float, well: float = _WELL) -> Jumps:
        """One that tells δ near ε to `well`, where it is about e^log_target, or the best that there is."""
        parts = tuple(
            (part.rate if isinstance(part, Release) else 1.0, part.law, count) for part, count in self.transform.parts
        )
        remove = self.transform.direction == "remove"
        best: Jumps | None = None
        least, failure = math.inf, ArithmeticError("no window serves")
        index, step, failed = self.share, 0, 0
        while 0 <= index < len(_SHARES):
            self.built += 1
            if self.built > _MOST_BUILT:
                failure = ArithmeticError("large losses take too many windows")
                break
            near, value, error = False, math.nan, math.inf
            try:
                aim = log_target - self.ahead
                found = Jumps(parts, self.transform.squared_mu, remove, epsilon, aim, _SHARES[index])
                value, _, error = found(epsilon)
                near = found.without(epsilon)[2] < error / 2
            except ArithmeticError as wrong:
                failure, failed = wrong, failed + 1
            if math.isfinite(value) and error < least:
                best, least, self.share = found, error, index
            if error <= well * max(value, math.exp(log_target)) or error > _WORSE * least:
                break
            if failed > 1:
                break
            if step and step != (1 if near else -1):  # one window is too near, the next one too far
                break
            step = 1 if near else -1
            index += step
        if best is None:
            raise failure
        if least > _HOPELESS * math.exp(log_target):
            raise ArithmeticError("large losses are not told apart")
        return best

    def delta(self, epsilon: float, log_most: float) -> tuple[Jumps, float, float]:
        """Who tells δ(ε), which is at most e^log_most, its value, and its error."""
        target = log_most
        found = self.near(epsilon, target)
        value, _, error = found(epsilon)
        for _ in range(_FALLS):
            if error <= _WELL * value or target < _LEAST:
                break
            before, target = target, min(math.log(value), target) if value > error else target - _FALL
            if target > before - 1:
                break
            try:
                closer = self.near(epsilon, target)
            except ArithmeticError:  # what there is has its error
                break
            if closer(epsilon)[2] < error:
                found = closer
                value, _, error = found(epsilon)
        return found, value, error

    def epsilon(self, log_delta: float) -> Value:
        """The root of δ(ε) = e^log_delta by Newton's method between ends that close in."""
        target = math.exp(log_delta)
        low, high = 0.0, self.transform.largest_loss
        epsilon = min(self.guess(log_delta), 0.9 * high)
        found: Jumps | None = None
        failures = 0
        for _ in range(_STEPS):
            if found is None or abs(epsilon / found.epsilon - 1) > _NEAR:
                try:
                    found = self.near(epsilon, log_delta, _ROUGH)
                except ArithmeticError:
                    failures += 1
                    if failures > _FAILURES:
                        raise
                    epsilon *= 0.7
                    continue
            value, slope, error = found(epsilon)
            # δ(0) − δ(ε) is at most e^ε − 1
            if value + error + math.expm1(min(epsilon, 1.0)) < target:
                return Value(0.0, 0.0)
            if value > target:
                low = max(low, epsilon)
            else:
                high = min(high, epsilon)
            if value > 2 * error and slope < 0:
                moved = epsilon - (math.log(value) - log_delta) * value / slope
            else:
                moved = (low + epsilon) / 2 if value <= target else 1.5 * epsilon
            if not low <= moved <= high:
                moved = (low + min(high, 4 * epsilon)) / 2
            done = abs(moved - epsilon) <= 1e-14 * epsilon
            epsilon = moved
            if done:
                break
        assert found is not None
        value, slope, error = found(epsilon)
        if error > _WELL * target:
            value, slope, error = self.near(epsilon, log_delta)(epsilon)
        if not (error < _UNTOLD * value and slope < 0 and abs(value - target) < _UNTOLD * target):
            raise ArithmeticError("large losses are not told apart")
        return Value(epsilon, (error + abs(value - target)) / abs(slope) + 4 * UNIT * epsilon)

    def guess(self, log_delta: float) -> float:
        """ε of a Gaussian with the variance of the small losses, or that of one large loss, about."""
        variance = self.transform.squared_mu
        for part, count in self.transform.parts:
            rate = part.rate if isinstance(part, Release) else 1.0
            own = part.law.sigma**-2
            variance += count * min(rate**2 * math.expm1(min(own, 50.0)), own)
        return max(variance / 2 + math.sqrt(2 * variance * max(-log_delta, 1.0)), hit(self.transform, log_delta))
