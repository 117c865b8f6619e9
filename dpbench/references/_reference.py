"""What every reference offers: enclosures of δ(ε) and ε(δ), and the Rényi divergence, of events and compositions.

A reference file says which events it covers and which law each has (`_release.Law`); the work is done by the law's pair
(one invocation, Arb), its quadrature (one invocation, mpmath), a closed form where a file has one, and `_lattice`
(other compositions). For add-or-remove neighbours δ is the larger of the two whole compositions' δ, all mechanisms in
the same direction: the record is there in all or in none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from flint import arb

from dpbench.events import Composition, Event
from dpbench.references import _lattice
from dpbench.references._enclosure import Ball, Enclosure, Real, ball, between, bits, largest, outward, rational
from dpbench.references._release import DIRECTIONS, Directed, Direction, Law, Releases, counted, hockey_stick_enclosure

Subject = Event | Composition | tuple[Event, int]
Which = Literal["both", "remove", "add"]
Closed = Callable[[Fraction, int], Enclosure]  # δ at an exact ε, to so many digits
CELLS = 1 << 16  # of the composed loss: some seconds for both directions of a thousand steps
HEAVY_EPSILON = 40  # the largest ε that a curve of losses with heavy tails is made for, unless given


def parts(subject: Subject) -> tuple[tuple[Event, int], ...]:
    """The events of a subject with their counts. Raises ValueError for adaptive compositions."""
    if isinstance(subject, Composition):
        if subject.adaptive:
            raise ValueError("adaptive = True: expected parameters fixed beforehand; no enclosure covers chosen ones")
        return subject.parts
    return Composition((subject if isinstance(subject, tuple) else (subject, 1),)).parts


def sampled(event: Event, kind: type, *ways: str) -> tuple[Fraction, Fraction] | None:
    """q and σ² of one event of that class; None where it has zero loss. Raises ValueError for what is not covered.

    `ways` are the neighbouring relation and the sampler, add-or-remove and Poisson where they are not given.
    """
    if not isinstance(event, kind):
        raise ValueError(f"event = {event!r}: expected a {kind.__name__}")
    made: Any = event
    expected, given = ways or ("add_or_remove", "poisson"), (made.adjacency, made.sampler)
    if given != expected:
        raise ValueError(f"adjacency, sampler = {', '.join(given)}: expected {', '.join(expected)}")
    rate = Fraction(made.sampling_rate)
    return (rate, Fraction(made.noise_multiplier) ** 2) if rate and math.isfinite(made.noise_multiplier) else None


def directions(which: str) -> tuple[Direction, ...]:
    """The directions to take the largest over. Raises ValueError for anything but both, remove and add."""
    if which == "both":
        return DIRECTIONS
    found = tuple(direction for direction in DIRECTIONS if direction == which)
    if not found:
        raise ValueError(f"direction = {which!r}: expected one of both, {', '.join(DIRECTIONS)}")
    return found


@dataclass(frozen=True)
class _Side:
    """One direction of a composition: its releases, its grid and what lies below and above it."""

    releases: tuple[tuple[Directed, int], ...]
    grid: _lattice.Grid
    lower: _lattice.Profile
    upper: _lattice.Profile

    def delta(self, epsilon: Fraction) -> Enclosure:
        with bits(self.grid.scale + 64):
            anchor = _lattice.anchor(self.releases)
            low, high = (_lattice.delta(sums, anchor, self.grid, epsilon) for sums in (self.lower, self.upper))
        step = float(self.grid.step)
        return outward(low, high, 20, f"lattice between two discrete releases, step {step:.3g}, exact convolution")


def _side(releases: tuple[tuple[Directed, int], ...], grid: _lattice.Grid) -> _Side:
    measures = [_lattice.compose(releases, grid, side) for side in ("lower", "upper")]
    with bits(grid.scale + 64):
        lower, upper = (_lattice.profile(measure, grid) for measure in measures)
    return _Side(releases, grid, lower, upper)


@dataclass(frozen=True)
class Curve:
    """δ(ε) of one composition for many ε: its mechanisms and, where no closed form is known, the lattice's sums."""

    releases: Releases
    sides: Mapping[Direction, _Side]
    closed: Mapping[Direction, Closed]

    def delta(self, epsilon: Real, digits: int = 30, *, direction: Which = "both") -> Enclosure:
        """An enclosure of δ(ε); `digits` matters where there is one invocation, none, or a closed form.

        Raises ValueError for an ε that is not finite or a direction that is not known.
        """
        exact = rational("epsilon", epsilon)
        return largest([self._one(exact, digits, way) for way in directions(direction)])

    def _one(self, epsilon: Fraction, digits: int, direction: Direction) -> Enclosure:
        if not self.releases:
            with bits(64 + 4 * digits):
                value = 1 - ball(epsilon).exp() if epsilon < 0 else arb(0)
                return outward(value, value, digits + 5, "both distributions are the same")
        if _beyond(self.releases, epsilon, direction):
            return Enclosure(Decimal(0), Decimal(0), f"no loss in the direction {direction} reaches epsilon")
        if direction in self.closed:
            return self.closed[direction](epsilon, digits)
        if sum(count for _, count in self.releases) > 1:
            if direction not in self.sides:
                raise ValueError(f"direction = {direction!r}: expected {', '.join(self.sides)}, made for this curve")
            return self.sides[direction].delta(epsilon)
        return hockey_stick_enclosure(self.releases[0][0].pair(direction), epsilon, digits)

    def epsilon(self, delta: Real, digits: int = 12, *, direction: Which = "both") -> Enclosure:
        """An enclosure of the smallest ε >= 0 with δ(ε) <= delta, by bisection of the ends of δ's enclosures.

        Raises ValueError unless 0 < delta < 1, and ArithmeticError when δ's enclosures never get below delta.
        """
        return inverse(lambda epsilon: self.delta(epsilon, digits + 5, direction=direction), delta, digits)


def inverse(enclosed: Callable[[Fraction], Enclosure], delta: Real, digits: int) -> Enclosure:
    """An enclosure of the smallest ε >= 0 with δ(ε) <= delta, from enclosures of δ.

    δ decreases in ε, so lower end(δ(ε)) > delta proves that ε is too small, and upper end(δ(ε)) <= delta that it is
    large enough. The ends are bisected to so many digits. Raises ValueError unless 0 < delta < 1, and
    ArithmeticError when δ's enclosures never get below delta.
    """
    target = rational("delta", delta)
    if not 0 < target < 1:
        raise ValueError(f"delta = {delta!r}: expected a number above 0 and below 1")
    method = f"bisection of δ(ε); {enclosed(Fraction(0)).method}"
    below, _ = _boundary(lambda epsilon: Fraction(enclosed(epsilon).lower) > target, digits)
    _, above = _boundary(lambda epsilon: Fraction(enclosed(epsilon).upper) > target, digits)
    return between(below, above, digits + 5, method)


def _beyond(releases: Releases, epsilon: Fraction, direction: Direction) -> bool:
    """Whether ε is certainly at or beyond the largest loss, where δ is 0."""
    with bits(128):
        total: Ball = arb(0)
        for law, count in releases:
            most = law.largest_loss(direction)
            if most is None:
                return False
            total += count * most
        return bool(ball(epsilon) >= total)


def _boundary(too_small: Callable[[Fraction], bool], digits: int) -> tuple[Fraction, Fraction]:
    """Two neighbouring ε, the first too small and the second not; both 0 when 0 is not too small."""
    low, high = Fraction(0), Fraction(1)
    if not too_small(low):
        return low, low
    while too_small(high):
        low, high = high, 2 * high
        if high > 2**60:
            raise ArithmeticError(f"epsilon = {float(high)!r}: δ's enclosure is still not below delta; refine the grid")
    while high - low > high / 10**digits:
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return low, high


def make_curve(
    releases: Releases,
    *,
    cells: int,
    epsilon: Real | None = None,
    smallest: float | None = None,
    largest_epsilon: Real | None = None,
    direction: Which = "both",
    refine: int = 0,
    close: Callable[[Releases, Direction], Closed | None] | None = None,
) -> Curve:
    """The curve of a composition; see `Reference.curve`. One invocation or none, or a closed form, needs no lattice."""
    ways = directions(direction)
    if cells < 64:
        raise ValueError(f"cells = {cells!r}: expected a whole number, 64 or more")
    if sum(count for _, count in releases) < 2:
        return Curve(releases, {}, {})
    sides: dict[Direction, _Side] = {}
    closed: dict[Direction, Closed] = {}
    at = None if epsilon is None else rational("epsilon", epsilon)
    cap = None
    if any(law.heavy for law, _ in releases):
        cap = rational("largest_epsilon", HEAVY_EPSILON if largest_epsilon is None else largest_epsilon)
        cap = cap if at is None else max(Fraction(0), at)
    for way in ways:
        if at is not None and _beyond(releases, at, way):
            continue
        known = close(releases, way) if close else None
        if known:
            closed[way] = known
            continue
        pairs = tuple((law.pair(way), count) for law, count in releases)
        grid = _lattice.plan(pairs, cells, at, smallest, largest=cap)
        sides[way] = _side(pairs, replace(grid, step=grid.step / 2**refine))
    return Curve(releases, sides, closed)


@dataclass(frozen=True)
class Reference:
    """One event's reference. A subject is an event, an event with a count, or a composition of covered events.

    `releases` turns a subject into laws with counts; it raises ValueError for what is not covered. `close` gives δ of
    a composition in closed form, or None where it has none.
    """

    event: str
    releases: Callable[[Subject], Releases]
    close: Callable[[Releases, Direction], Closed | None] | None = None

    def delta(
        self, subject: Subject, epsilon: Real, digits: int = 30, *, direction: Which = "both", cells: int = CELLS
    ) -> Enclosure:
        """An enclosure of δ(ε), the larger of both directions unless one is named; ε is any finite number.

        One invocation, or a closed form: `digits` significant digits. More: a lattice with about `cells` cells over the
        range of the composed loss; the relative width falls by about 4 when `cells` is doubled. Raises ValueError for
        what the reference does not cover.

        >>> from dpbench.references.sampled_gaussian import reference
        >>> from dpbench.events import SampledGaussian
        >>> reference.delta(SampledGaussian(0.01, 1.0), 0.5, digits=5).upper
        Decimal('2.214519014E-7')

        """
        found = make_curve(self.releases(subject), cells=cells, epsilon=epsilon, direction=direction, close=self.close)
        return found.delta(epsilon, digits, direction=direction)

    def epsilon(
        self, subject: Subject, delta: Real, digits: int = 12, *, direction: Which = "both", cells: int = CELLS
    ) -> Enclosure:
        """An enclosure of the smallest ε >= 0 with δ(ε) <= delta; raises ValueError unless 0 < delta < 1."""
        found = make_curve(
            self.releases(subject), cells=cells, smallest=float(delta), direction=direction, close=self.close
        )
        return found.epsilon(delta, digits, direction=direction)

    def curve(
        self,
        subject: Subject,
        *,
        smallest: float = 1e-10,
        largest_epsilon: Real | None = None,
        direction: Which = "both",
        cells: int = CELLS,
        refine: int = 0,
    ) -> Curve:
        """All of δ(ε) at once, its tails cut for a δ of size `smallest`; `refine` halves the step so many times.

        Where a loss has a heavy tail, the enclosures are narrow up to `largest_epsilon` only (40 unless given).
        """
        return make_curve(
            self.releases(subject),
            cells=cells,
            smallest=smallest,
            largest_epsilon=largest_epsilon,
            direction=direction,
            refine=refine,
            close=self.close,
        )

    def quadrature(self, event: Event, epsilon: Real, digits: int = 30, *, direction: Which = "both") -> Decimal:
        """δ(ε) of one invocation by mpmath from its densities, to `digits` significant digits.

        Not rigorous: two sets of panels must agree, else ArithmeticError. ValueError unless the event adds noise that
        is finite and samples at a rate above 0.
        """
        law, exact = self._single(event), rational("epsilon", epsilon)
        return max(law.quadrature(way, exact, digits) for way in directions(direction))

    def renyi(self, event: Event, order: Real, digits: int = 25, *, direction: Which = "both") -> Decimal:
        """The Rényi divergence of order α > 1 of one invocation by mpmath, infinite where it is; not rigorous."""
        exact = rational("order", order)
        if not exact > 1:
            raise ValueError(f"order = {order!r}: expected a number above 1")
        law = self._single(event)
        return max(law.renyi(way, exact, digits) for way in directions(direction))

    def _single(self, event: Event) -> Law:
        releases = self.releases(event)
        if not releases:
            raise ValueError(f"event = {event!r}: expected one with two different distributions")
        return releases[0][0]


def reference_of(
    event: str,
    law: Callable[[Event], Law | None],
    close: Callable[[Releases, Direction], Closed | None] | None = None,
) -> Reference:
    """The reference of events that each have a law of their own, None where they have zero loss."""

    def releases(subject: Subject) -> Releases:
        laws = ((law(made), count) for made, count in alike(parts(subject)))
        return counted((one, count) for one, count in laws if one)

    return Reference(event, releases, close)


def alike(found: tuple[tuple[Event, int], ...]) -> tuple[tuple[Event, int], ...]:
    """The same events. Raises ValueError unless they name one neighbouring relation."""
    relations = {event.adjacency for event, _ in found}
    if len(relations) > 1:
        raise ValueError(f"adjacency = {', '.join(sorted(relations))}: expected the same for all events")
    return found
