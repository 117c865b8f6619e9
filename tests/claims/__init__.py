"""Claims, verdicts and what judges them."""

from __future__ import annotations

from functools import cache

from dpbench.claims.ledger import PAPERS, Read, read_ledgers


@cache
def shipped() -> Read:
    """The claims of all papers, read once: reading tries every negative control of every expression."""
    return read_ledgers([PAPERS])
