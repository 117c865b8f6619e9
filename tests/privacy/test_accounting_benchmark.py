"""Time of accounting and calibration (pytest-benchmark); in a normal run a few rounds, and the answers are checked."""

from __future__ import annotations

from typing import Any

import pytest

from dpbench import account, calibrate
from dpbench.events import Composition, SampledGaussian

TRAINING = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
UNLIKE = Composition(tuple((SampledGaussian(0.01, 1.0 + step / 400), 1) for step in range(400)))
# ε at δ = 1e-5 of row 1 of Table 1 in Bu et al. 2020; 0.83 is printed
EXPECTED = {"rdp": 0.954487, "gdp_clt": 0.834512}


@pytest.mark.parametrize("accountant", EXPECTED)
def test_account(benchmark: Any, accountant: str) -> None:
    [guarantee] = benchmark.pedantic(
        account, (TRAINING,), {"delta": 1e-5, "accountants": [accountant]}, rounds=3, iterations=1, warmup_rounds=1
    )
    assert guarantee.epsilon.value == pytest.approx(EXPECTED[accountant], abs=1e-6)


@pytest.mark.parametrize("accountant", EXPECTED)
def test_account_for_unlike_releases(benchmark: Any, accountant: str) -> None:
    [guarantee] = benchmark.pedantic(
        account, (UNLIKE,), {"delta": 1e-5, "accountants": [accountant]}, rounds=2, iterations=1
    )
    ends = [Composition(((SampledGaussian(0.01, noise), 400),)) for noise in (2.0, 1.0)]
    least, most = (account(end, delta=1e-5, accountants=[accountant])[0].epsilon for end in ends)
    assert least is not None
    assert most is not None
    assert least.value < guarantee.epsilon.value < most.value


@pytest.mark.parametrize("accountant", EXPECTED)
def test_calibrate(benchmark: Any, accountant: str) -> None:
    def make(noise: float) -> Composition:
        return Composition(((SampledGaussian(256 / 60000, noise), 3516),))

    noise = benchmark.pedantic(
        calibrate, (make,), {"epsilon": 3.0, "delta": 1e-5, "accountant": accountant}, rounds=3, iterations=1
    )
    [guarantee] = account(make(noise), delta=1e-5, accountants=[accountant])
    assert guarantee.epsilon is not None
    assert 3.0 - 1e-4 < guarantee.epsilon.value <= 3.0  # six digits of σ leave ε within about 3e-5
