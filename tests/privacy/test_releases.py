"""From what is said on the command line, or in a file of `kind: events`, to a composition; every mistake in words."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import (
    EVENTS,
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Gaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.composition import steps_from_epochs
from dpbench.privacy.event_files import load_events, parse_events
from dpbench.privacy.releases import Said, event_class, releases, snake_case
from dpbench.spec.loading import load_specs

TRAINING = Said(examples=60000, batch=256, epochs=15, noise_multiplier=1.3)


def said(**changes: Any) -> Said:
    return Said(**{**vars(TRAINING), **changes})


class TestSaid:
    def test_the_first_row_of_the_paper(self) -> None:
        found = releases(TRAINING)
        assert found.composition == Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
        assert found.unrounded_steps == Fraction(28125, 8)
        assert found.rate_words == "256/60000"

    @given(st.integers(1, 10**6), st.data())
    def test_steps_are_those_of_the_trainer(self, examples: int, data: Any) -> None:
        batch = data.draw(st.integers(1, examples))
        epochs = float(data.draw(st.decimals(0, 100, places=3)))
        found = releases(said(examples=examples, batch=batch, epochs=epochs))
        assert found.composition.parts[0][1] == steps_from_epochs(epochs, examples, batch)
        same = releases(said(examples=None, batch=None, sampling_rate=f"{batch}/{examples}", epochs=epochs))
        assert same.composition == found.composition

    def test_steps_may_be_given(self) -> None:
        found = releases(said(epochs=None, steps=3515))
        assert found.composition.parts[0][1] == 3515
        assert found.unrounded_steps is None
        assert found.steps_words == ""

    def test_a_rate_in_decimals(self) -> None:
        found = releases(Said(sampling_rate="0.1", epochs=0.3, noise_multiplier=1.0))
        assert found.composition == Composition(((SampledGaussian(0.1, 1.0), 3),))  # 0.3 / 0.1 in binary is below 3

    def test_events_without_a_sampler_are_released_once(self) -> None:
        assert releases(Said(event="laplace", noise_multiplier=2.0)).composition.parts == ((Laplace(2.0), 1),)
        assert releases(Said(event="Gaussian", noise_multiplier=2.0, steps=7)).composition.parts == (
            (Gaussian(2.0), 7),
        )

    def test_other_events(self) -> None:
        jl = Said(event="random_sensitivity_gaussian", sampling_rate=0.01, steps=5, noise_multiplier=1.0)
        (event, count) = releases(Said(**{**vars(jl), "parameters": {"projections": 4}})).composition.parts[0]
        assert (event, count) == (RandomSensitivityGaussian(0.01, 1.0, 4), 5)
        pair = Said(event="discrete_pair", parameters={"first": (0.75, 0.25), "second": (0.25, 0.75)})
        assert releases(pair).composition.parts[0][0] == DiscretePair((0.75, 0.25), (0.25, 0.75))
        query = {"threshold": 300.0, "selection_noise": 200.0, "answer_noise": 40.0, "votes": (140, 20)}
        found = releases(Said(event="confident-gnmax", parameters=query)).composition.parts[0][0]
        assert found == ConfidentGNMax(300.0, 200.0, 40.0, votes=(140, 20))

    @pytest.mark.parametrize("name", EVENTS)
    def test_every_event_has_two_spellings(self, name: str) -> None:
        assert event_class(name) is event_class(snake_case(name)) is EVENTS[name]
        assert snake_case(name) == snake_case(name).lower()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0: expected a number above 0"),
            ({"noise_multiplier": float("nan")}, "noise_multiplier = nan: expected a number"),
            ({"noise_multiplier": None}, "--noise-multiplier is missing"),
            ({"batch": None}, "give either --n and --batch, or --sampling-rate"),
            ({"examples": None}, "--n is missing: --batch needs the number of records; or give --sampling-rate"),
            ({"batch": 60001}, "--batch 60001: expected at most --n, which is 60000"),
            ({"batch": 0}, "--batch 0: expected a whole number, 1 or more"),
            ({"sampling_rate": "0.1"}, "--batch and --sampling-rate say the same twice; give either --n and --batch"),
            ({"batch": None, "sampling_rate": "1.01"}, "--sampling-rate 1.01: expected a number from 0 to 1"),
            ({"batch": None, "sampling_rate": "nan"}, "--sampling-rate nan: expected a number from 0 to 1"),
            ({"batch": None, "sampling_rate": "1/0"}, "--sampling-rate 1/0: expected a number from 0 to 1"),
            ({"batch": None, "sampling_rate": "0"}, "--sampling-rate 0 with --epochs: no number of steps"),
            ({"steps": 3}, "--epochs and --steps say the same twice; give either --epochs or --steps"),
            ({"epochs": None}, "give either --epochs or --steps"),
            ({"epochs": float("nan")}, "--epochs nan: expected a finite number, 0 or more"),
            ({"epochs": -1.0}, "--epochs -1.0: expected a finite number, 0 or more"),
            ({"epochs": 1e300}, "expected at most 2^53 mechanism invocations in all"),
            ({"epochs": None, "steps": -1}, "steps = -1: expected a whole number, 0 or more"),
            ({"event": "sampled_gausian"}, "event 'sampled_gausian' is not known; did you mean 'sampled_gaussian'?"),
            ({"event": "gaussian"}, "--batch: Gaussian takes every record, it has no sampling"),
            ({"event": "group"}, "--group-size is missing (GroupSampledGaussian needs it)"),
            ({"parameters": {"projections": 3}}, "--projections: SampledGaussian has no projections; it has"),
            ({"parameters": {"sampler": "poison"}}, "sampler = 'poison': expected one of poisson"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(DpbenchError) as caught:
            releases(said(**changes))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


EVERYTHING = """
kind: events
adaptive: true
events:
  - {event: sampled_gaussian, sampling_rate: 256/60000, noise_multiplier: 1.3, count: 3516}
  - event: SampledGaussian
    sampling_rate: 0.01
    noise_multiplier: .inf
    sampler: without_replacement
    adjacency: replace_one
    count: 1e3
  - {event: laplace, noise_multiplier: 20}
  - {event: discrete_pair, first: [0.75, 0.25], second: [0.25, 0.75], count: 2}
  - {event: confident_gnmax, threshold: 300, selection_noise: 200, answer_noise: 40, answered: false, votes: [9, 1]}
  - {event: group, sampling_rate: 0.1, noise_multiplier: 2, group_size: 3, count: 0}
"""


class TestFiles:
    def test_everything_that_can_be_said(self, tmp_path: Path) -> None:
        path = tmp_path / "events.yaml"
        path.write_text(EVERYTHING)
        composition = load_events(path).composition
        assert composition.adaptive
        assert composition.parts[0] == (SampledGaussian(256 / 60000, 1.3), 3516)
        assert [count for _, count in composition.parts] == [3516, 1000, 1, 2, 1, 0]
        assert composition.parts[3][0] == DiscretePair((0.75, 0.25), (0.25, 0.75))
        assert isinstance(composition.parts[4][0], ConfidentGNMax)
        assert composition.parts[4][0].votes == (9, 1)
        assert not composition.parts[4][0].answered

    def test_other_verbs_skip_it(self, tmp_path: Path) -> None:
        (tmp_path / "events.yaml").write_text(EVERYTHING)
        assert load_specs([tmp_path]) == ()

    @pytest.mark.parametrize(
        ("text", "place", "message"),
        [
            ("kind: run\nname: x", "1:7", "found kind: run; expected kind: events"),
            ("events: []", "1:1", "expected kind: events"),
            ("[1]", "1:1", "expected `key: value` lines"),
            ("", "1:1", "the file is empty"),
            ("kind: events", "1:1", "expected `events:` with a list"),
            ("kind: events\nevents: []\nevent: []", "3:1", "unknown key 'event' (did you mean 'events'?)"),
            ("kind: events\nadaptive: maybe\nevents: []", "2:11", "found 'maybe'; expected true or false"),
            ("kind: events\nevents: [3]", "2:10", "found 3; expected an event"),
            ("kind: events\nevents: [{count: 3}]", "2:10", "the key 'event' is missing"),
            ("kind: events\nevents: [{event: lapace}]", "2:18", "did you mean 'laplace'?"),
            ("kind: events\nevents: [{event: laplace}]", "2:10", "Laplace needs the parameter 'noise_multiplier'"),
            ("kind: events\nevents: [{event: laplace, noise_multiplier: 0}]", "2:45", "expected a number above 0"),
            ("kind: events\nevents: [{event: laplace, noise_multiplier: x}]", "2:45", "expected a number"),
            ("kind: events\nevents: [{event: laplace, noise: 1}]", "2:27", "Laplace has no parameter 'noise'"),
            ("kind: events\nevents: [{event: gaussian, noise_multiplier: 1, count: 1.5}]", "2:56", "count = 1.5"),
            ("kind: events\nevents: [{event: gaussian, noise_multiplier: 1, count: true}]", "2:56", "count = True"),
            ("kind: events\nevents: []\nkind: events", "3:1", "stands twice"),
            (
                "kind: events\nevents: [{event: sampled_gaussian, noise_multiplier: 1, sampling_rate: 2/1}]",
                "2:72",
                "sampling_rate 2/1: expected a number from 0 to 1",
            ),
        ],
    )
    def test_a_mistake_has_its_place(self, text: str, place: str, message: str) -> None:
        with pytest.raises(ProblemsError) as caught:
            parse_events(text, "events.yaml")
        assert message in str(caught.value)
        assert f"events.yaml:{place}:" in str(caught.value)

    def test_all_mistakes_come_together(self) -> None:
        items = ("{event: laplace}", "{event: gausian}", "{event: gaussian, noise_multiplier: -1}")
        text = "kind: events\nevents:\n" + "\n".join(f"  - {item}" for item in items)
        with pytest.raises(ProblemsError) as caught:
            parse_events(text)
        assert [problem.line for problem in caught.value.problems] == [3, 4, 5]

    def test_too_many_invocations(self) -> None:
        text = "{kind: events, events: [{event: gaussian, noise_multiplier: 1, count: 9007199254740993}]}"
        with pytest.raises(DpbenchError, match=r"expected at most 2\^53 mechanism invocations"):
            parse_events(text)

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(ProblemsError, match="cannot be read"):
            load_events(tmp_path / "nothing.yaml")
