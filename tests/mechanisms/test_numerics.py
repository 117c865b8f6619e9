"""The arithmetic of every mechanism, held to results stored under the versions of the code that made them.

Records are stale when a version is raised and not when a file changes; so a change of results must raise a version.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.mechanisms.numerics import TOLERANCE, built, choices, code_versions, difference, stored, trained

pytestmark = pytest.mark.usefixtures("one_thread")
STORED = stored()
CHOICES = {title: (name, parameters) for title, name, parameters in choices()}
AGAIN = "store the results again with: python -m tests.mechanisms.numerics"


def test_every_mechanism_and_stage_has_a_stored_result() -> None:
    assert CHOICES.keys() == STORED.keys(), AGAIN


@pytest.mark.parametrize("title", CHOICES)
def test_a_changed_result_raises_a_version(title: str) -> None:
    name, parameters = CHOICES[title]
    kept = STORED[title]
    assert code_versions(name, parameters) == kept["versions"], f"a version of {title} was raised: {AGAIN}"
    found = difference(trained(built(name, parameters)), kept["parameters"])
    assert found <= TOLERANCE, (
        f"{title} now gives parameters that differ by {found:.2g} from those stored under {kept['versions']}: raise"
        f" NUMERICS in the file whose arithmetic has changed, then {AGAIN}"
    )


@pytest.mark.parametrize("title", ["noisy_sgd", "noisy_adam", "dp_sgd_jl", "dpis sgd"])
def test_a_change_of_a_twentieth_is_found(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power of the comparison: five per cent more noise, or a learning rate five per cent larger."""
    from dpbench.step import pipeline

    name, parameters = CHOICES[title]
    mechanism = built(name, parameters)
    exact = pipeline.gaussian_noise

    def louder(value: Any, deviation: Any, *rest: Any) -> Any:
        return exact(value, 1.05 * deviation, *rest)

    module = "dpbench.mechanisms.dpis" if name == "dpis" else "dpbench.step.pipeline"
    monkeypatch.setattr(f"{module}.gaussian_noise", louder)
    assert difference(trained(mechanism), STORED[title]["parameters"]) > 3 * TOLERANCE
    monkeypatch.undo()

    @dataclasses.dataclass(frozen=True)
    class Faster:
        """The mechanism with a learning rate five per cent larger."""

        inner: Any

        def __getattr__(self, wanted: str) -> Any:
            return getattr(self.inner, wanted)

        def update(self, state: Any, rate_R: Any, released: Any) -> Any:
            return self.inner.update(state, 1.05 * rate_R, released)

    faster: Any = Faster(mechanism)
    assert difference(trained(faster), STORED[title]["parameters"]) > 3 * TOLERANCE
