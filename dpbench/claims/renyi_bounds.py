"""A printed bound "is (α, ε)-RDP" against the Rényi divergence of its events, integrated from their definition."""

from __future__ import annotations

from dpbench.claims.bounds import Known, compare, shown_end
from dpbench.claims.claim import Claim, Judgement
from dpbench.compose import common_adjacency, merge
from dpbench.errors import DpbenchError

_RELATIVE = 1e-12  # fifteen digits are asked of the quadrature, which is no proof


def judge_renyi(claim: Claim, certified: bool = False) -> Judgement:  # noqa: ARG001
    """The verdict on ε at the order `at: {order: ...}`.

    Divergences of one order add up over releases; each direction is a composition of its own. The references integrate
    by mpmath, so the interval is as wide as their digits. Raises DpbenchError for a bad order and for releases that no
    reference covers.

    >>> from dpbench.claims.claim import Printed
    >>> from dpbench.events import Composition, Gaussian
    >>> claim = Claim("demo", "one", "here", "bound", "", "sound", "", {"rdp": Printed("0.5")}, at={"order": 4.0},
    ...               events=Composition(((Gaussian(2.0), 1),)))
    >>> judge_renyi(claim).verdict
    'sound'
    """
    from dpbench.references.unlike import reference

    assert claim.events is not None  # the ledger has seen to it
    printed = claim.printed["rdp"]
    order = claim.at.get("order", 0.0)
    if not order > 1:
        raise DpbenchError(
            f"{claim.name}: an RDP bound needs `at: {{order: ...}}` with an order above 1, got {order!r}"
        )
    if claim.events.adaptive or common_adjacency(claim.events) is None:
        raise DpbenchError(f"{claim.name}: expected releases with fixed parameters and one neighbouring relation")
    try:
        sums = {
            way: sum(
                count * float(reference.renyi(event, order, 15, direction=way)) for event, count in merge(claim.events)
            )
            for way in ("remove", "add")
        }
    except (ValueError, ArithmeticError) as error:
        raise DpbenchError(f"{claim.name}: {error}") from None
    value = max(sums.values())
    attained = all(event.attained for event, _ in claim.events.parts) if claim.attained is None else claim.attained
    known = Known(value * (1 - _RELATIVE), value * (1 + _RELATIVE), "quadrature of the definition", attained)
    verdict, reason = compare(known, printed, attained, f"Rényi divergence of order {order:g}")
    evidence = {"order": order, "lower": known.lower, "upper": known.upper, "attained": attained, **sums}
    return Judgement(verdict, reason, shown_end(verdict, known.lower, known.upper), evidence, {known.route: value})
