"""A printed formula against the definition that it stands for, over a range of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench.claims.claim import Judgement

_BITS = 40  # decimal digits that mpmath works with, unless a formula asks for more


@dataclass(frozen=True)
class Formula:
    """`printed(**setting)` is the formula as printed, `definition(**setting)` an integral, a sum, a derivative, ...

    Both take mpmath numbers or what the settings hold. `settings` has the paper's own among them. The formula holds
    where every relative error is at most 10^−`digits` (relative to `scale(**setting)` where given, for formulas whose
    value passes through 0). `twin` is a formula that is wrong in the way that one gets it wrong (a sign, a factor 2)
    and must be refuted. `corrected` is the right formula where the printed one is wrong; it must hold.

    >>> area = Formula(lambda r: 3 * r**2, lambda r: __import__("mpmath").pi * r**2, ({"r": 1}, {"r": 5}),
    ...                twin=lambda r: 2 * r**2, corrected=lambda r: __import__("mpmath").pi * r**2)
    >>> area.judge().verdict, round(area.judge().evidence["worst_relative_error"], 3)
    ('refuted', 0.045)
    """

    printed: Callable[..., Any]
    definition: Callable[..., Any]
    settings: Sequence[Mapping[str, Any]]
    twin: Callable[..., Any]
    digits: float = 12
    scale: Callable[..., Any] | None = None
    corrected: Callable[..., Any] | None = None
    precision: int = _BITS

    def judge(self) -> Judgement:
        """Holds where it is right at every setting, else refuted; the worst setting is the evidence."""
        import mpmath

        worst, where, values, wrong = -1.0, dict(self.settings[0]), (0.0, 0.0), 0
        corrected, right = 0.0, 0.0
        allowed = 10.0**-self.digits
        with mpmath.workdps(self.precision):
            for setting in self.settings:
                true = self.definition(**setting)
                size = abs(self.scale(**setting)) if self.scale is not None else abs(true)
                error = self._error(self.printed(**setting), true, size)
                wrong += error > allowed
                if error > worst:
                    worst, where, values = error, dict(setting), (_plain(self.printed(**setting)), _plain(true))
                    right = _plain(self.corrected(**setting)) if self.corrected is not None else 0.0
                if self.corrected is not None:
                    corrected = max(corrected, self._error(self.corrected(**setting), true, size))
        evidence: dict[str, Any] = {
            "settings": len(self.settings),
            "wrong_at": wrong,
            "worst_relative_error": worst,
            "worst_at": {name: _plain(value) for name, value in where.items()},
            "printed_there": values[0],
            "definition_there": values[1],
            "allowed": allowed,
        }
        routes: dict[str, Any] = {"definition": values[1]}
        if self.corrected is not None:
            evidence["worst_relative_error_when_corrected"] = corrected
            routes["corrected formula"] = right
            if corrected > allowed:
                reason = f"the corrected formula is off as well, by {corrected:.2g}: the definition is in doubt"
                return Judgement("undecided", reason, None, evidence, routes)
        if not wrong:
            reason = f"equal to the definition at {len(self.settings)} settings, the worst relative error {worst:.1e}"
            return Judgement("holds", reason, worst, evidence, routes)
        reason = f"not the definition at {wrong} of {len(self.settings)} settings, the worst relative error {worst:.3g}"
        return Judgement("refuted", reason, worst, evidence, routes)

    def _error(self, value: Any, true: Any, size: Any) -> float:
        difference = abs(value - true)
        if difference == 0:
            return 0.0
        return float(difference / size) if size else float("inf")

    def twins(self) -> dict[str, Formula]:
        """False versions: a planted mistake, and the printed formula off by ten units of the last digit held."""
        off = 1 + 10 * 10.0**-self.digits
        return {
            "planted mistake": replace(self, printed=self.twin, corrected=None),
            "ten units of the last digit": replace(
                self, printed=lambda **setting: self.printed(**setting) * off, scale=None, corrected=None
            ),
        }


def _plain(value: Any) -> Any:
    """A JSON value: a float where it is a number."""
    if isinstance(value, bool | int | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
