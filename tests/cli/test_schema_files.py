"""The JSON Schemas of files of kind events and claims: what the readers take is valid, mistakes are refused by both."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dpbench.catalog import catalog
from dpbench.cli import cli
from dpbench.cli.schemas import claims_schema, events_schema
from dpbench.errors import ProblemsError
from dpbench.events import EVENTS, PARAMETERS
from dpbench.judging.claims.claim import BOUND_VERDICTS, KINDS
from dpbench.judging.claims.grammar import CLAIM
from dpbench.judging.claims.reading import PAPERS, read_claims
from dpbench.privacy.event_files import parse_events
from dpbench.privacy.releases import event_class, snake_case, spellings
from dpbench.spec.yaml_loader import parse, plain
from dpbench.verdicts import VERDICTS

ROOT = Path(__file__).parents[2]
EVENTS_FILE = Draft202012Validator(events_schema())
CLAIMS_FILE = Draft202012Validator(claims_schema())


def data(text: str) -> Any:
    document = parse(text, "f.yaml")
    assert document.root is not None
    return plain(document.root)


def blocks(page: str, kind: str) -> list[str]:
    """The examples of that kind on a page of the documentation."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if f"kind: {kind}" in block]


def valid(schema: Draft202012Validator, value: Any) -> bool:
    return not list(schema.iter_errors(value))


def events_read(value: Any) -> bool:
    try:
        parse_events(json.dumps(value, ensure_ascii=False))
    except ProblemsError:
        return False
    return True


@pytest.fixture(scope="module")
def claims_read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], bool]:
    path = tmp_path_factory.mktemp("claims") / "mine.yaml"

    def taken(value: Any) -> bool:
        path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        return not read_claims([path], allow_code=True).problems

    return taken


@pytest.mark.parametrize(("make", "kind"), [(events_schema, "events"), (claims_schema, "claims")])
def test_they_are_json_schemas_and_plain_json(make: Callable[[], dict[str, Any]], kind: str) -> None:
    schema = make()
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    assert schema["examples"]
    assert all(valid(Draft202012Validator(schema), example) for example in schema["examples"])
    found = CliRunner().invoke(cli, ["schema", kind])
    assert found.exit_code == 0
    assert json.loads(found.output) == schema
    references = re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(schema))
    assert references
    assert set(references) <= set(schema["$defs"])


@pytest.mark.parametrize("path", sorted(PAPERS.glob("*/claims.yaml")), ids=lambda path: path.parent.name)
def test_the_papers_claims_are_valid(path: Path) -> None:
    assert [error.message for error in CLAIMS_FILE.iter_errors(data(path.read_text(encoding="utf-8")))] == []


def test_the_documented_examples_are_valid() -> None:
    events, claims = blocks("accounting.md", "events"), blocks("claims.md", "claims")
    assert events
    assert claims
    assert all(valid(EVENTS_FILE, data(text)) for text in events)
    assert all(valid(CLAIMS_FILE, data(text)) for text in claims)


def test_every_key_parameter_and_choice_is_there_and_described() -> None:
    rules = events_schema()["$defs"]["event"]["allOf"]
    assert len(rules) == len(EVENTS)
    for rule in rules:
        properties = rule["then"]["properties"]
        assert all(
            properties[name]["description"] == PARAMETERS[name].about for name in properties if name in PARAMETERS
        )
    claim = claims_schema()["$defs"]["claim"]
    assert list(claim["properties"]) == list(CLAIM)
    assert all(found["description"] for found in claim["properties"].values())
    assert claim["properties"]["kind"]["enum"] == list(KINDS)
    assert set(claim["properties"]["verdict"]["enum"]) == {*VERDICTS, *BOUND_VERDICTS}
    assert claim["properties"]["accountant"]["anyOf"][0]["enum"] == list(catalog("accountants"))


@given(st.data())
def test_every_spelling_of_an_event_is_known_to_both(draw: st.DataObject) -> None:
    name = draw.draw(st.sampled_from([*EVENTS, *map(snake_case, EVENTS), "group"]))
    between = st.sampled_from(["", "", "-", "_", " "])
    text = "".join(draw.draw(st.sampled_from([c.lower(), c.upper()])) + draw.draw(between) for c in name)
    chosen = event_class(text)
    assert [each for each in EVENTS if re.search(spellings(each), text)] == [chosen.__name__]


# ---- events: what is right, and what is planted ----

noises = st.one_of(st.floats(1e-3, 1e3), st.integers(1, 100))
rates = st.one_of(st.floats(0, 1), st.sampled_from([0, 1, "256/60000", "0.5", " 1 / 3", "1e-3", ".5"]))
counts = st.fixed_dictionaries({}, optional={"count": st.one_of(st.integers(0, 10**6), st.just(1e6))})
adjacencies = st.fixed_dictionaries(
    {}, optional={"adjacency": st.sampled_from(["add_or_remove", "replace_one", "zero_out"])}
)
sampled = {"sampling_rate": rates, "noise_multiplier": noises}
samplers = {"sampler": st.sampled_from(["poisson", "without_replacement", "shuffled"])}
_votes = {
    "votes": st.one_of(st.none(), st.lists(st.integers(0, 500), min_size=2, max_size=4)),
    "answered": st.booleans(),
}
shapes: list[st.SearchStrategy[dict[str, Any]]] = [
    st.fixed_dictionaries({"event": st.sampled_from(["gaussian", "Laplace"]), "noise_multiplier": noises}),
    st.fixed_dictionaries(
        {"event": st.sampled_from(["SampledGaussian", "sampled-gaussian"]), **sampled}, optional=samplers
    ),
    st.fixed_dictionaries(
        {"event": st.just("random_sensitivity_gaussian"), **sampled, "projections": st.integers(1, 9)},
        optional=samplers,
    ),
    st.fixed_dictionaries(
        {"event": st.sampled_from(["group", "group_sampled_gaussian"]), **sampled, "group_size": st.integers(1, 9)}
    ),
    st.fixed_dictionaries(
        {
            "event": st.just("discrete_pair"),
            "first": st.sampled_from([[0.5, 0.5], [1, 0]]),
            "second": st.sampled_from([[0.25, 0.75], [0, 1]]),
        }
    ),
    st.fixed_dictionaries(
        {
            "event": st.just("confident_gnmax"),
            "threshold": st.floats(-1e3, 1e3),
            "selection_noise": noises,
            "answer_noise": noises,
        },
        optional=_votes,
    ),
]
events = st.tuples(st.one_of(shapes), counts, adjacencies).map(lambda parts: {**parts[0], **parts[1], **parts[2]})
event_files = st.builds(
    lambda listed, more: {"kind": "events", **more, "events": listed},
    st.lists(events, min_size=1, max_size=3),
    st.fixed_dictionaries({}, optional={"adaptive": st.booleans()}),
)
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.floats(-2, 2),
        st.sampled_from(["", "x", "poisson", "2/1", "-1", "1e-5", "bound"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["event", "value", "x"]), inner, max_size=2)
    ),
    max_leaves=3,
)
_WRONG: dict[str, tuple[Any, ...]] = {
    "number": (-1, 0, "x", True, None, [1], {}),
    "finite": ("x", True, None, [1]),
    "whole": (0, -3, 1.5, "2", True, None),
    "name": ("near", 3, None, True, ["poisson"]),
    "flag": (1, "yes", None),
}


def wrong_for(name: str) -> tuple[Any, ...]:
    """Values that the parameter does not take."""
    values = PARAMETERS[name]
    if values.length is not None:
        return (3, "x", [], [-1] * 3, ["a", "b"], [True, False])
    if name == "sampling_rate":
        return (-0.1, 1.1, "x", "1:2", True, None, [0.5])
    return _WRONG[values.form]


@given(event_files)
@settings(max_examples=100, deadline=None)
def test_a_right_file_of_events_is_taken_by_both(value: Any) -> None:
    assert events_read(value)
    assert valid(EVENTS_FILE, value)


@given(event_files, st.data())
@settings(max_examples=200, deadline=None)
def test_a_planted_mistake_in_events_is_refused_by_both(value: Any, draw: st.DataObject) -> None:
    """One mistake: a parameter that is wrong, unknown or absent, a count, a name, a key at the top."""
    value = copy.deepcopy(value)
    one = draw.draw(st.sampled_from(value["events"]))
    kind = draw.draw(st.sampled_from(["wrong", "unknown", "absent", "count", "name", "top", "kind", "shape"]))
    if kind == "wrong":
        name = draw.draw(st.sampled_from([each for each in one if each in PARAMETERS]))
        bad = draw.draw(st.sampled_from(wrong_for(name)))
        one[name] = {} if name == "votes" and bad is None else bad
    elif kind == "unknown":
        one[draw.draw(st.sampled_from(["sigma", "noise", "q", "steps"]))] = 1
    elif kind == "absent":
        needed = [each for each in one if each not in ("adjacency", "sampler", "count", "votes", "answered")]
        del one[draw.draw(st.sampled_from(needed))]
    elif kind == "count":
        one["count"] = draw.draw(st.sampled_from([-1, 1.5, "3", True, None, [1], "15*60000/256"]))
    elif kind == "name":
        one["event"] = draw.draw(st.sampled_from(["gausian", "", 3, None, ["gaussian"], "sampled"]))
    elif kind == "top":
        value[draw.draw(st.sampled_from(["event", "claims", "name"]))] = 1
    elif kind == "kind":
        value["kind"] = draw.draw(st.sampled_from(["event", "run", "claims", None, 1]))
    else:
        field = draw.draw(st.sampled_from(["events", "adaptive"]))
        value[field] = draw.draw(st.sampled_from([3, "x", {}, None, [3]]))
    assert not events_read(value), value
    assert not valid(EVENTS_FILE, value), value


@given(event_files, anything, st.data())
@settings(max_examples=300, deadline=None)
def test_what_the_reader_of_events_takes_is_valid(value: Any, other: Any, draw: st.DataObject) -> None:
    """Whatever stands in one place: the schema refuses nothing that the reader takes."""
    value = copy.deepcopy(value)
    one = draw.draw(st.sampled_from([value, *value["events"]]))
    one[draw.draw(st.sampled_from([*one, *PARAMETERS]))] = other
    if events_read(value):
        assert valid(EVENTS_FILE, value), value


# ---- claims ----

PAIR: list[dict[str, Any]] = [{"event": "gaussian", "noise_multiplier": 1, "count": 3}]
HEAD = {"place": "page 1", "says": "it is private", "because": "it is"}
CLAIMS: list[dict[str, Any]] = [
    {"kind": "bound", "printed": {"epsilon": 0.9, "delta": 1e-5}, "events": PAIR, "verdict": "sound", "attained": True},
    {"kind": "bound", "printed": {"mu": "0.50"}, "events": PAIR, "verdict": "loose"},
    {"kind": "bound", "printed": {"rdp": 0.5}, "at": {"order": 8}, "events": PAIR, "verdict": "refuted"},
    {"kind": "bound", "printed": 3, "by": "bounds:mine", "verdict": "undecided", "parameters": {"r": [1, 2]}},
    {
        "kind": "number",
        "printed": 1.19,
        "quantity": "epsilon",
        "accountant": "moments",
        "verdict": "holds",
        "at": {"delta": 1e-5},
        "events": [{"event": "gaussian", "noise_multiplier": 1, "count": "15*60000/256"}],
    },
    {
        "kind": "number",
        "printed": {"value": "1e-5"},
        "quantity": "delta",
        "accountant": "mine:exact",
        "verdict": "refuted",
        "events": PAIR,
    },
    {"kind": "number", "printed": {"a": 1, "b": 2}, "by": "tables:row", "verdict": "holds"},
    {"kind": "formula", "text": "x = y", "by": "formulas:one", "verdict": "holds"},
    {"kind": "inequality", "by": "mine.judges:margin", "verdict": "refuted"},
    {"kind": "algorithm", "by": "lines:eight", "verdict": "undecided"},
    {"kind": "comparison", "verdict": "not_run"},
    {"kind": "comparison", "by": "lines:faster", "verdict": "holds"},
    {"kind": "utility", "verdict": "not_run"},
    {"kind": "utility", "verdict": "holds", "runs": ["specs/mine.yaml"], "printed": 95.0},
    {"kind": "utility", "verdict": "refuted", "runs": "specs/mine.yaml"},
]


def named(claims: list[Any]) -> list[Any]:
    return [{"id": f"claim-{place}", **HEAD, **claim} for place, claim in enumerate(claims)]


claim_files = st.builds(
    lambda claims, more: {"kind": "claims", "paper": "mine", "claims": named(claims), **more},
    st.lists(st.sampled_from(CLAIMS), min_size=1, max_size=3),
    st.fixed_dictionaries(
        {},
        optional={
            "title": st.sampled_from(["mine", 2026]),
            "source": st.just("here"),
            "coverage": st.just([{"place": "a", "claims": ["claim-0"]}, {"place": "b", "no_claim": "no number"}]),
            "mistakes": st.just(
                [{**dict.fromkeys(("title", "printed", "true", "demonstration", "instead"), "x"), "claims": "claim-0"}]
            ),
        },
    ),
)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['kind']}-{claim['verdict']}")
def test_a_right_claim_is_taken_by_both(claim: Any, claims_read: Callable[[Any], bool]) -> None:
    value = {"kind": "claims", "paper": "mine", "claims": named([claim])}
    assert claims_read(value)
    assert [error.message for error in CLAIMS_FILE.iter_errors(value)] == []


@given(claim_files)
@settings(max_examples=50, deadline=None)
def test_a_right_file_of_claims_is_taken_by_both(claims_read: Callable[[Any], bool], value: Any) -> None:
    assert claims_read(value)
    assert valid(CLAIMS_FILE, value)


WRONG_AT_THE_TOP: list[tuple[str, Any]] = [
    ("claim", 1),
    ("kind", "events"),
    ("claims", {}),
    ("title", ""),
    ("coverage", {}),
    ("coverage", [{"place": "a"}]),
    ("coverage", [{"claims": ["claim-0"]}]),
    ("coverage", [{"place": "a", "claims": []}]),
    ("coverage", [{"place": "a", "claims": ["claim-0"], "no_claim": "x"}]),
    ("mistakes", [3]),
    ("mistakes", [{"title": "x"}]),
]
WRONG_IN_A_CLAIM: list[tuple[str, Any]] = [
    ("printed", "much"),
    ("printed", [1]),
    ("printed", {"epsilon": "x"}),
    ("printed", True),
    ("at", {"sigma": 1}),
    ("at", {"delta": "x"}),
    ("at", 3),
    ("parameters", [1]),
    ("runs", [3]),
    ("runs", 3),
]
WRONG_EVENTS: list[Any] = [
    *([], {}, "x", None, [3], [{"event": "gausian"}]),
    *([{**PAIR[0], "count": -1}], [{**PAIR[0], "count": "x"}]),
]


def _plant(value: Any, one: Any, draw: Callable[[Any], Any]) -> None:
    """One mistake in a file of claims."""
    kinds = ["absent", "unknown", "kind", "verdict", "text", "id", "paper", "event", "top", "choice", "shape", "needs"]
    kind = draw(st.sampled_from(kinds))
    if kind == "absent":
        del one[draw(st.sampled_from(["id", "place", "kind"]))]
    elif kind == "unknown":
        one[draw(st.sampled_from(["claim", "epsilon", "event"]))] = "x"
    elif kind == "kind":
        one["kind"] = draw(st.sampled_from(["bond", "", None, ["bound"]]))
    elif kind == "verdict":
        one["verdict"] = "holds" if one["kind"] == "bound" else draw(st.sampled_from(["sound", "loose", "true", None]))
    elif kind == "text":
        one[draw(st.sampled_from(["place", "says", "because", "text", "by"]))] = draw(
            st.sampled_from(["", " ", [], {}, None])
        )
    elif kind == "id":
        one["id"] = draw(st.sampled_from(["Front Page", "-a", "", "a/b", None, -3]))
    elif kind == "paper":
        value["paper"] = draw(st.sampled_from(["My Paper", "", None, []]))
    elif kind == "event":
        one["events"] = draw(st.sampled_from(WRONG_EVENTS))
    elif kind == "top":
        field, bad = draw(st.sampled_from(WRONG_AT_THE_TOP))
        value[field] = bad
    elif kind == "choice":
        field = draw(st.sampled_from(["quantity", "accountant", "attained"]))
        one[field] = draw(st.sampled_from(["epsilom", "rpd", 3]))
    elif kind == "shape":
        field, bad = draw(st.sampled_from(WRONG_IN_A_CLAIM))
        one[field] = bad
    else:  # what its kind needs
        if one["verdict"] == "not_run":
            one["verdict"] = "holds"
        for key in ("by", "runs", "events"):
            one.pop(key, None)


@given(claim_files, st.data())
@settings(max_examples=250, deadline=None)
def test_a_planted_mistake_in_claims_is_refused_by_both(
    claims_read: Callable[[Any], bool], value: Any, draw: st.DataObject
) -> None:
    value = copy.deepcopy(value)
    _plant(value, draw.draw(st.sampled_from(value["claims"])), draw.draw)
    assert not claims_read(value), value
    assert not valid(CLAIMS_FILE, value), value


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (0, {"printed": {"epsilon": 0.9}}),
        (0, {"printed": {"epsilon": 0.9, "delta": 2}}),
        (0, {"printed": {"epsilon": 0.9, "delta": 1e-5, "mu": 1}}),
        (0, {"printed": 3}),
        (0, {"printed": {}}),
        (3, {"printed": {"delta": 0, "epsilon": 1}}),
        (4, {"printed": {"epsilon": 1.19}}),
        (4, {"printed": {}}),
        (6, {"printed": {}}),
        (13, {"runs": []}),
    ],
)
def test_what_a_kind_prints(place: int, change: dict[str, Any], claims_read: Callable[[Any], bool]) -> None:
    value = {"kind": "claims", "paper": "mine", "claims": named([{**CLAIMS[place], **change}])}
    assert not claims_read(value)
    assert not valid(CLAIMS_FILE, value)


@pytest.mark.parametrize(("place", "key"), [(4, "quantity"), (4, "accountant"), (4, "printed"), (0, "printed")])
def test_what_a_kind_needs(place: int, key: str, claims_read: Callable[[Any], bool]) -> None:
    claim = {name: value for name, value in CLAIMS[place].items() if name != key}
    value = {"kind": "claims", "paper": "mine", "claims": named([claim])}
    assert not claims_read(value)
    assert not valid(CLAIMS_FILE, value)


@given(claim_files, anything, st.data())
@settings(max_examples=300, deadline=None)
def test_what_the_reader_of_claims_takes_is_valid(
    claims_read: Callable[[Any], bool], value: Any, other: Any, draw: st.DataObject
) -> None:
    value = copy.deepcopy(value)
    one = draw.draw(st.sampled_from([value, *value["claims"]]))
    one[draw.draw(st.sampled_from([*one, *CLAIM]))] = other
    if claims_read(value):
        assert valid(CLAIMS_FILE, value), value
