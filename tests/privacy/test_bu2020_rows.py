"""The nine rows of Tables 1-4 of Bu et al. 2020: what they print, what accountants give, and ε with a proof."""

from __future__ import annotations

import contextlib
import io
import math
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import mpmath
import pytest

from dpbench.events import Composition, Event, Gaussian, SampledGaussian
from dpbench.privacy.accountants import gdp_clt, moments, rdp
from dpbench.privacy.accountants.exact import accountant as exact
from dpbench.privacy.answers import PrivacyCurve

Real = mpmath.mpf
DOCUMENT = Path(__file__).parents[2] / "docs" / "certified.md"


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def gdp_of(mu: float) -> PrivacyCurve:
    """The curve of μ-GDP, as one Gaussian release has it."""
    return gdp_clt.accountant.curve(times(Gaussian(1 / mu), 1))


# Tables 1-4 of Bu et al. 2020: p, σ, epochs, δ; printed μ, ε of the CLT column, ε of the moments accountant's column
ROWS = [
    pytest.param(256 / 60000, 1.3, 15, 1e-5, "0.23", "0.83", "1.19", id="table 1, row 1"),
    pytest.param(256 / 60000, 1.1, 60, 1e-5, "0.57", "2.32", "3.01", id="table 1, row 2"),
    pytest.param(256 / 60000, 0.7, 45, 1e-5, "1.13", "5.07", "7.10", id="table 1, row 3"),
    pytest.param(256 / 60000, 0.6, 62, 1e-5, "2.00", "9.98", "13.27", id="table 1, row 4"),
    pytest.param(256 / 60000, 0.55, 68, 1e-5, "2.76", "14.98", "18.72", id="table 1, row 5"),
    pytest.param(256 / 60000, 0.5, 100, 1e-5, "4.78", "31.12", "32.40", id="table 1, row 6"),
    pytest.param(256 / 29305, 0.55, 18, 1e-5, "2.03", "10.20", "14.70", id="table 2"),
    pytest.param(512 / 25000, 0.56, 9, 1e-5, "2.07", "10.43", "15.24", id="table 3"),
    pytest.param(1 / 80, 0.6, 20, 1e-6, "1.94", "10.61", "15.39", id="table 4"),
]


class TestPrintedNumbers:
    @pytest.mark.parametrize(("rate", "noise", "epochs", "delta", "mu", "clt", "accounted"), ROWS)
    def test_all_nine_rows(
        self, rate: float, noise: float, epochs: int, delta: float, mu: str, clt: str, accounted: str
    ) -> None:
        """T = epochs / p, not rounded, as the paper's note to Table 1 says."""
        event = SampledGaussian(rate, noise)
        curve = gdp_of(math.sqrt(epochs / rate * gdp_clt.squared_mu(event)))
        assert f"{curve.mu:.2f}" == mu
        assert f"{curve.epsilon(delta).value:.2f}" == clt
        unrounded = moments.accountant.curve_for(event, epochs / rate)
        assert f"{unrounded.epsilon(delta).value:.2f}" == accounted

    def test_a_whole_number_of_steps_changes_the_print_of_table_3_only(self) -> None:
        """439.45 steps against 440: 15.2406 against 15.2476."""
        changed = []
        for row in ROWS:
            rate, noise, epochs, delta, _, _, accounted = row.values
            whole = moments.accountant.curve(times(SampledGaussian(rate, noise), math.ceil(epochs / rate - 1e-9)))
            if f"{whole.epsilon(delta).value:.2f}" != accounted:
                changed.append(row.id)
        assert changed == ["table 3"]

    def test_the_text_to_figure_4_rounds_down(self) -> None:
        """It says 1.34 at epoch 20 for σ = 1.3 by the moments accountant and for 1.06 by the CLT: the first is 1.3498
        (1.3488 or more however T is taken), so 1.34 is cut off, not rounded; the second is 1.3412."""
        accounted = moments.accountant.curve_for(SampledGaussian(256 / 60000, 1.3), 20 * 60000 / 256)
        assert f"{accounted.epsilon(1e-5).value:.4f}" == "1.3498"
        mu = math.sqrt(20 * 60000 / 256 * gdp_clt.squared_mu(SampledGaussian(256 / 60000, 1.06)))
        assert f"{gdp_of(mu).epsilon(1e-5).value:.4f}" == "1.3412"

    @pytest.mark.parametrize(("rate", "noise", "epochs", "delta", "mu", "clt", "accounted"), ROWS[::4])
    def test_the_printed_numbers_by_fifty_digits(
        self, rate: float, noise: float, epochs: int, delta: float, mu: str, clt: str, accounted: str
    ) -> None:
        """The moments from their definition, integrated by mpmath at every order that could win; no code of ours."""
        del mu, clt
        with mpmath.workdps(30):
            q, s = Real(rate), Real(noise)
            best = mpmath.inf
            step = min(
                s / 3, mpmath.pi * s**2 / 16
            )  # trapezoidal: the zeros of the mixture stand πσ² off, e^−32 = 1e-14
            for order in (*(1 + k / 10 for k in range(5, 99, 1)), *range(12, 25)):
                total = Real(0)
                for k in range(int(-12 * s / step), int((order + 12 * s) / step) + 1):
                    x = k * step
                    ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))
                    total += mpmath.exp(-(x**2) / (2 * s**2)) * ratio**order
                moment = mpmath.log(total * step / (s * mpmath.sqrt(2 * mpmath.pi)))
                best = min(best, (epochs / q * moment - mpmath.log(Real(delta))) / (order - 1))
        assert f"{float(best):.2f}" == accounted
        ours = moments.accountant.curve_for(SampledGaussian(rate, noise), epochs / rate).epsilon(delta).value
        assert ours == pytest.approx(float(best), rel=1e-9)


@cache
def printed_by_the_document() -> tuple[list[str], list[str]]:
    """The lines of the table in docs/certified.md, and those that its program prints when it is run."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text[text.index("## The nine rows of Bu et al. 2020") :]
    program, table = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(DOCUMENT), "exec"), {})
    return table.splitlines(), printed.getvalue().splitlines()


def ends(line: str) -> tuple[Fraction, Fraction]:
    """The interval that a line of the table shows, exactly."""
    lower, upper = re.findall(r"\[(.*), (.*)\]", line)[0]
    return Fraction(lower), Fraction(upper)


class TestProvenNumbers:
    """About ten seconds in all: each row takes one."""

    def test_the_document_shows_what_its_program_prints(self) -> None:
        """The same questions; and intervals that meet, since another machine's plan moves their last digits."""
        shown, printed = printed_by_the_document()
        assert len(shown) == len(printed) == len(ROWS)
        for old, new in zip(shown, printed, strict=True):
            assert old.split()[:4] == new.split()[:4]
            assert max(ends(old)[0], ends(new)[0]) <= min(ends(old)[1], ends(new)[1])

    @pytest.mark.parametrize("index", range(9), ids=[row.id for row in ROWS])
    def test_the_exact_accountant_lies_inside(self, index: int) -> None:
        """Width at most 1e-9; ε of `exact` within, and its error bar meets the proof.

        The published promises are above the proven number; the CLT's number is below it but for σ = 0.5.
        """
        rate, noise, epochs, delta, _, clt, _ = ROWS[index].values
        line = printed_by_the_document()[1][index]
        quotient, sigma, count, at, *_ = line.split()
        assert (float(Fraction(quotient)), float(sigma), float(at)) == (rate, noise, delta)
        steps = math.ceil(epochs / Fraction(quotient))
        assert int(count) == steps
        lower, upper = ends(line)
        assert 0 < upper - lower <= Fraction(1, 10**9) * upper
        training = times(SampledGaussian(rate, noise), steps)
        found = exact.accountant.curve(training).epsilon(delta)
        assert found.lower is not None
        assert found.upper is not None
        assert lower <= found.value <= upper
        assert found.lower <= upper
        assert lower <= found.upper
        for promise in (rdp.accountant, moments.accountant):
            assert promise.curve(training).epsilon(delta).value > upper
        assert (float(clt) < lower) == (noise != 0.5)
