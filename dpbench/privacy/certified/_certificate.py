"""What `certify` hands back: an enclosure, what was asked, and where its radius comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

from dpbench.catalog import Entry
from dpbench.events import Adjacency
from dpbench.privacy.answers import Estimate

Quantity = Literal["epsilon", "delta"]


@dataclass(frozen=True)
class Certificate:
    """A proven enclosure of ε at `asked` = δ, or of δ at `asked` = ε. `quantity` names the one enclosed.

    | field | |
    | --- | --- |
    | `lower`, `upper` | doubles, rounded outwards |
    | `lower_text`, `upper_text` | decimals, rounded outwards; tighter than the doubles where many digits are asked |
    | `ball` | the ball as Arb prints it, rounded outwards as well |
    | `direction` | which whole composition is the worse one; "undecided" where their enclosures overlap |
    | `directions` | the enclosure of each, in doubles rounded outwards |
    | `method`, `bits`, `nodes` | of the worse direction: how, in how many bits, with how many nodes in Im z |
    | `radius` | its shares in δ, approximately: aliasing, tail, moments (of the inner sums), rounding |
    | `attained` | whether every event's pair is attained; otherwise the enclosed number is that of a dominating pair |
    | `seconds` | wall time; for several answers at once, from the start to the end of each |

    >>> Certificate("delta", 1.0, 0.1, 0.2, "0.1", "0.2", "[0.15 +/- 0.051]", "add_or_remove", "remove",
    ...             {"remove": (0.1, 0.2)}, "closed form", 64, 0, {}, True, 0.0).contains(0.15)
    True
    """

    quantity: Quantity
    asked: float
    lower: float
    upper: float
    lower_text: str
    upper_text: str
    ball: str
    adjacency: Adjacency
    direction: str
    directions: Mapping[str, tuple[float, float]]
    method: str
    bits: int
    nodes: int
    radius: Mapping[str, float]
    attained: bool
    seconds: float
    kind: Literal["certified"] = "certified"

    @property
    def value(self) -> float:
        """A number in the middle, for people; only the ends are proven."""
        return float((Fraction(self.lower_text) + Fraction(self.upper_text)) / 2)

    @property
    def version(self) -> str:
        """Which code proved it, as an accountant's version says it."""
        return Entry("accountants", "certified", "dpbench.privacy.certified:certify", "dpbench").version

    @property
    def relative_width(self) -> float:
        """(upper − lower) / upper of the decimal ends; 0 for an enclosure of a single number."""
        lower, upper = Fraction(self.lower_text), Fraction(self.upper_text)
        return float((upper - lower) / upper) if upper > lower else 0.0

    def contains(self, value: float | Fraction) -> bool:
        """Whether a number lies within the decimal ends."""
        return Fraction(self.lower_text) <= Fraction(value) <= Fraction(self.upper_text)

    def estimate(self) -> Estimate:
        """The enclosure as an accountant would give it."""
        return Estimate(min(max(self.value, self.lower), self.upper), self.lower, self.upper)

    def to_json(self) -> dict[str, Any]:
        """Plain data; every number is finite."""
        fields = asdict(self)
        fields["directions"] = {name: list(pair) for name, pair in self.directions.items()}
        fields["radius"] = {name: share if math.isfinite(share) else None for name, share in self.radius.items()}
        fields |= {"relative_width": self.relative_width, "version": self.version}
        return fields
