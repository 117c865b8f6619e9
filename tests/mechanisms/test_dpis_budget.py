"""Internal: how DPIS allots its budget, epoch by epoch: never more than there is, and in the paper's two phases.

Whole runs have few epochs and slow steps; what an epoch is given follows from released numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Gaussian, SampledGaussian
from dpbench.mechanisms._dpis_epoch import Row, Run, open_epoch
from dpbench.mechanisms.dpis import mechanism
from dpbench.privacy.accountants.rdp_filter import RdpFilterAccountant

pytestmark = pytest.mark.usefixtures("one_thread")


# The budget


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(0.3, 20),
    delta=st.sampled_from([1e-6, 1e-5, 1e-3]),
    steps=st.integers(1, 60),
    rounds=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    fills=st.lists(st.floats(0, 1.5), min_size=60, max_size=60),
    quantile=st.sampled_from([None, 1.0]),
)
def test_the_ledger_never_exceeds_the_budget(
    epsilon: float,
    delta: float,
    steps: int,
    rounds: int,
    share: float,
    fills: Sequence[float],
    quantile: float | None,
) -> None:
    """By `rdp_filter`, after every epoch, on paths of K' that fall, jump and rise; or the run stops."""
    adaptive = {} if quantile is None else {"adaptive_clipping": True, "quantile": quantile}
    fixed = mechanism(oversampling=3.0, first_share=share, size_noise=40.0, sum_noise=40.0, **adaptive).fixed
    size, batch, step, stopped = 500.0, 12.0, 0, None
    rows: tuple[Row, ...] = ()
    while step < steps:
        run = Run(size, batch, 1.0, steps, epsilon, delta, step, rounds, rows)
        try:
            found = open_epoch(fixed, run, 1.0, fills[len(rows)] * size)
        except DpbenchError as error:
            stopped = str(error)
            break
        rows, step = (*rows, found.row), found.following
        assert found.gradient_sum >= 3 * batch
    ledger = fixed.charged(size, batch).ledger(rows, step)
    spent = RdpFilterAccountant().curve(ledger).epsilon(delta)
    assert spent.safe <= epsilon
    if stopped is None:
        assert sum(count for event, count in ledger.parts if isinstance(event, SampledGaussian)) == steps
    else:
        assert "privacy budget exhausted" in stopped
        assert epsilon < 2  # the sums of up to 60 epochs, at 40


def epoch_noises(share: float, fills: Sequence[float], epsilon: float = 4.0) -> tuple[list[float], float]:
    """σ_G of each epoch and the ε spent at the end."""
    fixed = mechanism(first_share=share, size_noise=1200.0, sum_noise=1200.0).fixed
    size, batch, noises = 60000.0, 256.0, []
    rows: tuple[Row, ...] = ()
    for epoch, fill in enumerate(fills):
        run = Run(size, batch, 1.0, 234 * len(fills), epsilon, 1e-5, 234 * epoch, 234, rows)
        found = open_epoch(fixed, run, 1.0, fill * size)
        rows = (*rows, found.row)
        noises.append(found.noise)
    ledger = fixed.charged(size, batch).ledger(rows, 234 * len(fills))
    return noises, RdpFilterAccountant().curve(ledger).epsilon(1e-5).value


def test_the_two_phases_of_the_allocation() -> None:
    """Section 4.2: planning with K̃ = ÑC keeps σ_G from rising; the second phase spends what was saved."""
    fills = [0.8, 0.6, 0.5, 0.5, 0.4]
    first, spent_first = epoch_noises(1.0, fills)
    assert all(later <= earlier for earlier, later in pairwise(first))
    second, spent_second = epoch_noises(0.0, fills)
    assert second[0] < first[0]
    both, spent_both = epoch_noises(0.6, fills)
    assert both[:3] == first[:3]
    assert both[3] < first[3]
    assert max(spent_first, spent_second, spent_both) <= 4.0
    assert min(spent_first, spent_second, spent_both) > 3.95  # the last epoch takes all; the grid of σ_G is 0.07 %
    rising, _ = epoch_noises(0.0, [0.3, 0.6, 0.9])
    assert rising[2] > rising[0]


def test_constant_norms_need_the_noise_of_dp_sgd() -> None:
    """K̃ = ÑC throughout: the noise of DP-SGD at the same budget, up to the releases of N and K and the grid."""
    noises, _ = epoch_noises(0.8, [1.0] * 5, epsilon=2.0)
    assert len(set(noises)) <= 2
    below_grid = noises[0] / 2 ** (2 / 1024)
    for noise, fits in ((noises[0], True), (below_grid, False)):
        whole = Composition(((Gaussian(1200.0), 6), (SampledGaussian(256 / 60000, noise), 5 * 234)))
        assert (RdpFilterAccountant().curve(whole).epsilon(1e-5).value <= 2.0) is fits


def test_the_printed_charges_hide_what_is_spent() -> None:
    """σ_K = 1, b/Ñ = 0.01: a printed run stays within (19), while its releases of K cost a hundred times the budget."""
    numbers = {"oversampling": 5.0, "first_share": 0.8, "size_noise": 40.0, "sum_noise": 1.0}
    fixed = mechanism(**numbers, variant="as_printed").fixed
    rows: tuple[Any, ...] = ()
    for epoch in range(3):
        run = Run(2000.0, 20.0, 1.0, 300, 4.0, 1e-5, 100 * epoch, 100, rows)
        rows = (*rows, open_epoch(fixed, run, 1.0, 1500.0).row)
    said, true = (found(2000.0, 20.0).ledger(rows, 300) for found in (fixed.charged, fixed.dominating))
    assert RdpFilterAccountant().curve(said).epsilon(1e-5).value <= 4.0
    assert RdpFilterAccountant().curve(true).epsilon(1e-5).value > 400
    proven = mechanism(**numbers).fixed
    with pytest.raises(DpbenchError, match="privacy budget exhausted"):
        open_epoch(proven, Run(2000.0, 20.0, 1.0, 300, 4.0, 1e-5, 0, 100, ()), 1.0, 1500.0)
