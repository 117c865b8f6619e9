"""Which accountants a row asks: that of shuffled batches wherever there are some, and the one that set the noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpbench.events import Composition, Gaussian, SampledGaussian, to_json
from dpbench.privacy.shuffling import of_shuffled
from dpbench.reporting.guarantees import Accounts, guarantees
from dpbench.reporting.rendering.view import by

SHUFFLED = Composition(((SampledGaussian(0.1, 2.0, "zero_out", "shuffled"), 20),))
POISSON = Composition(((SampledGaussian(0.1, 2.0), 20),))


def lines(ledger: Composition, asked: tuple[str, ...] = (), calibrated: str | None = None) -> dict[str, Any]:
    run: Any = SimpleNamespace(ledger=to_json(ledger), facts=SimpleNamespace(claimed_by=None))
    context: Any = SimpleNamespace(accountants=asked, published=None, delta=1e-5, calibrate_with=calibrated)
    return {line.accountant: line for line in guarantees([run], context, Accounts())}


def test_the_line_has_both_ends_and_the_sentence() -> None:
    found = lines(SHUFFLED)
    assert list(found) == ["shuffled"]
    line, numbers = found["shuffled"], of_shuffled(SHUFFLED, delta=1e-5)
    assert numbers is not None
    assert (line.lower, line.safe, line.kind, line.adjacency) == (
        numbers.lower,
        numbers.upper,
        "upper_bound",
        "zero_out",
    )
    assert line.promise
    assert line.remark == numbers.sentence()
    assert "Poisson sampling at the same rates, noise and steps would have" in line.remark
    assert "not valid for these batches" in line.remark


@pytest.mark.parametrize("asked", [("rdp",), ("shuffled",), ("exact", "gdp_clt")])
def test_whatever_the_spec_asks_for_it_is_there(asked: tuple[str, ...]) -> None:
    found = lines(SHUFFLED, asked)
    assert found["shuffled"].remark
    assert all(line.refused for name, line in found.items() if name != "shuffled")


def test_other_neighbours_than_the_usual_ones_are_named_beside_the_number() -> None:
    assert by(lines(SHUFFLED)["shuffled"]) == "upper bound by shuffled, zero out"
    assert by(lines(POISSON)["exact"]) == "exact"
    replaced = Composition(((Gaussian(2.0, "replace_one", sensitivity=1.0), 1),))
    assert by(lines(replaced)["exact"]) == "exact, replace one"


def test_nothing_of_it_stands_beside_poisson_batches() -> None:
    found = lines(POISSON)
    assert "shuffled" not in found
    assert not any(line.remark for line in found.values())


def test_the_accountant_that_set_the_noise_is_asked_and_a_theorem_is_none() -> None:
    assert list(lines(POISSON, ("exact",), "lattice")) == ["exact", "lattice"]
    assert list(lines(POISSON, ("exact",), "exact")) == ["exact"]
    assert list(lines(POISSON, ("exact",), "pidp2021, Theorem 5")) == ["exact"]
