"""What `dpbench account --trade-off` adds: type II against type I errors, total variation and the tangent Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpbench.privacy.answers import Estimate, Guarantee, PrivacyCurve

ALPHAS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def trade_off(one: Guarantee, curve: PrivacyCurve) -> dict[str, Any]:
    """Alpha, f for both directions together and each alone, total variation, and two values of μ.

    `tangent_mu`: the Gaussian trade-off function that is tangent at the guarantee's own ε. `smallest_mu`: the smallest
    μ whose Gaussian trade-off function lies nowhere above f, down to δ = 1e-12; it is tangent at the ε `touches_at`.
    """
    from dpbench.privacy.trade_off import smallest_mu, tangent_mu, trade_off_table

    assert one.epsilon is not None
    table = trade_off_table(curve, ALPHAS)
    mu, at = smallest_mu(curve)
    return {
        "kind": one.kind,
        "alpha": list(table.alpha),
        "both": _values(table.both),
        "remove": None if table.remove is None else _values(table.remove),
        "add": None if table.add is None else _values(table.add),
        "total_variation": table.total_variation.value,
        "tangent_mu": tangent_mu(curve, epsilon=one.epsilon.value).value,
        "smallest_mu": mu,
        "touches_at": at,
    }


def _values(estimates: Sequence[Estimate]) -> list[float]:
    return [estimate.value for estimate in estimates]


def show_trade_offs(found: dict[str, dict[str, Any]]) -> None:
    """A table per accountant, and a sentence."""
    from rich.table import Table

    from dpbench.cli.console import console, say
    from dpbench.privacy.formatting import words

    out = console()
    for name, data in found.items():
        if "refused" in data:
            say(out, f"Trade-off function by {name}: none ({data['refused']}).")
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        ways = [way for way in ("both", "remove", "add") if data[way] is not None]
        for heading in ("type I error", *(f"type II error, {way}" for way in ways)):
            table.add_column(heading, no_wrap=True)
        for place, alpha in enumerate(data["alpha"]):
            table.add_row(f"{alpha:g}", *(f"{data[way][place]:.8g}" for way in ways))
        out.print(f"\nTrade-off function by {name} ({words(data['kind'])}); an upper bound of ε bounds it from below:")
        out.print(table)
        say(
            out,
            f"Total variation {data['total_variation']:.8g}. The Gaussian that is tangent at this ε has mu"
            f" {data['tangent_mu']:.8g}; down to delta = 1e-12 the releases are mu-GDP with mu ="
            f" {data['smallest_mu']:.6g}, tangent at epsilon = {data['touches_at']:.4g}.",
        )
