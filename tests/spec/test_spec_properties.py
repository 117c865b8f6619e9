"""Specs under Hypothesis: a valid spec survives a round trip, and its mutations bring nothing but clean problems."""

from __future__ import annotations

import copy
import itertools
import json
import string
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dpbench.cli.schemas import json_schema
from dpbench.errors import ProblemsError, visible
from dpbench.spec.loading import Budget, Choice, Printed, Published, Spec, Training, load_specs
from dpbench.spec.yaml_loader import parse, plain
from tests.spec.spec_writer import Verbatim, dump, to_yaml

# Loading the first spec imports torch, which takes seconds: no deadline.
relaxed = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

positive = st.floats(1e-300, 1e300, allow_nan=False)
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=30)
texts = texts.filter(lambda text: visible(text) == text)  # those of direction are no category of their own
names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=30).filter(
    lambda text: text[0].isalnum()
)
one_line = texts.filter(lambda text: text.isprintable() and text == text.strip())


@st.composite
def printed(draw: st.DrawFn, most: int = 10**6) -> Printed:
    places = draw(st.integers(0, 6))
    number = Decimal(draw(st.integers(1, most * 10**places))).scaleb(-places)
    text = format(number, "f")
    if draw(st.booleans()) and most > 100:
        text += f"e{draw(st.integers(-20, 20))}"
    return Printed.of(text)


models = st.one_of(
    st.just(Choice("logistic")),
    st.builds(lambda activation: Choice("tfp_cnn", {"activation": activation}), st.sampled_from(["relu", "tanh"])),
    st.builds(lambda hidden: Choice("mlp", {"hidden": tuple(hidden)}), st.lists(st.integers(1, 10**6), max_size=4)),
)
private = st.one_of(
    st.just(Choice("noisy_sgd")),
    st.builds(lambda clipping: Choice("noisy_sgd", {"clipping": clipping}), st.sampled_from(["vmap", "loop"])),
    st.builds(lambda beta: Choice("noisy_adam", {"beta1": beta}), st.floats(0, 1, exclude_max=True)),
)
not_private = st.builds(
    lambda optimizer: Choice("non_private", {"optimizer": optimizer}), st.sampled_from(["sgd", "adam"])
)
published = st.builds(
    Published,
    accuracy_percent=st.none() | printed(100),
    averaged_over=st.none() | st.integers(1, 1000),
    mu=st.none() | printed(),
    epsilon=st.dictionaries(st.sampled_from(["rdp", "gdp_clt", "moments", "exact"]), printed()),
)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    spends = draw(st.booleans())
    calibrated, by_batch, by_epochs = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    budget = Budget(
        draw(positive) if calibrated else None,
        None if calibrated else draw(positive),
        draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        draw(st.sampled_from(["rdp", "gdp_clt"])),
    )
    training = Training(
        draw(st.integers(1, 1437)) if by_batch else None,
        None if by_batch else draw(st.floats(0, 1, exclude_min=True)),
        draw(positive) if by_epochs else None,
        None if by_epochs else draw(st.integers(1, 10**9)),
        draw(positive),
        draw(positive) if spends else None,
    )
    numbers = draw(st.none() | published)
    return Spec(
        name=draw(names),
        label=draw(st.just("") | one_line),
        file="",
        line=0,
        number=0,
        source=draw(texts),
        dataset=Choice(draw(st.sampled_from(["digits", "mnist"]))),
        model=draw(models),
        mechanism=draw(private if spends else not_private),
        budget=budget if spends else None,
        training=training,
        seeds=tuple(draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5, unique=True)))
        if draw(st.booleans())
        else tuple(range(draw(st.integers(1, 50)))),
        accountants=tuple(draw(st.lists(st.sampled_from(["rdp", "gdp_clt"]), unique=True))),
        randomness=draw(st.sampled_from(["own", "common", "secure"])),
        needs=draw(st.sampled_from([(), ("gpu",)])),
        published=numbers,
        reduced=draw(st.none() | texts) if numbers is None else None,
        tuned=draw(st.none() | texts),
        metrics_along=draw(st.integers(1, 100)),
    )


def load(content: bytes) -> tuple[Spec, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_bytes(content)
        return load_specs([path])


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(json_schema())


@relaxed
@given(spec=specs())
def test_round_trip(spec: Spec, validator: Draft202012Validator) -> None:
    """What `to_yaml` writes is read back as an equal spec, and the JSON Schema takes it too."""
    text = to_yaml(spec)
    assert load(text.encode()) == (spec,), text
    root = parse(text, "spec.yaml").root
    assert root is not None
    assert [error.message for error in validator.iter_errors(plain(root))] == []


@st.composite
def expanding(draw: st.DrawFn) -> tuple[Any, list[tuple[float, Any, float]]]:
    """A file with rows, zip and grid, and what its points must hold: learning rate, model, delta, in order."""
    tree = plain_tree(draw(specs().filter(lambda spec: spec.budget is not None)))
    tree.pop("published", None)
    tree.pop("rows", None)
    rates = draw(st.lists(positive, min_size=1, max_size=3))
    widths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
    deltas = draw(st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), min_size=1, max_size=3, unique=True))
    if draw(st.booleans()):
        del tree["training"]["learning_rate"]
    tree["rows"] = [
        {"label": f"label {number}", "training": {"learning_rate": rate}} for number, rate in enumerate(rates)
    ]
    tree["model"] = "mlp"
    tree["zip"] = {"model.parameters.hidden": [[width] for width in widths], "training.clip_norm": widths}
    tree["grid"] = {"budget.delta": deltas}
    points = itertools.product(rates, widths, deltas)
    return tree, [(rate, Choice("mlp", {"hidden": (width,)}), delta) for rate, width, delta in points]


@settings(relaxed, max_examples=60)
@given(case=expanding())
def test_every_point_is_its_own_spec(case: tuple[Any, list[tuple[float, Any, float]]], validator: Any) -> None:
    """Rows outermost, then zip, then grid; distinct labels; each point alone is the same spec; the schema takes it."""
    tree, expected = case
    found = load(dump(tree).encode())
    assert [(spec.training.learning_rate, spec.model, spec.budget and spec.budget.delta) for spec in found] == expected
    assert all(spec.training.clip_norm == spec.model.parameters["hidden"][0] for spec in found)
    assert len({spec.label for spec in found}) == len(found)
    for spec in found[:3]:
        assert load(to_yaml(spec).encode()) == (spec,)
    assert [error.message for error in validator.iter_errors(tree)] == []


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**7),
    st.floats(),
    st.sampled_from(
        ["none", "rdp", "noisy_sgd", "non_private", "mlp", "digits", "run", "claims", "", "math:pi", "1e-5", "yes"]
    ),
    texts,
    st.lists(st.integers(-1, 3), max_size=3),
    st.dictionaries(st.sampled_from(["name", "parameters", "epsilon", "label", "x"]), st.integers(-1, 3), max_size=2),
)
keys = (
    st.sampled_from(
        [
            "kind",
            "name",
            "budget",
            "training",
            "epsilon",
            "learnin_rate",
            "budget.epsilon",
            "rows",
            "grid",
            "zip",
            "<<",
            "",
            "x",
        ]
    )
    | texts
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a tree, but for the root."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in inside for found in ((*path, key), *places(value, (*path, key)))]


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def delete(tree: Any, path: tuple[Any, ...], _: st.DrawFn) -> None:
    del at(tree, path[:-1])[path[-1]]


def replace(tree: Any, path: tuple[Any, ...], draw: st.DrawFn) -> None:
    at(tree, path[:-1])[path[-1]] = draw(values)


def rename(tree: Any, path: tuple[Any, ...], draw: st.DrawFn) -> None:
    parent, key = at(tree, path[:-1]), path[-1]
    if isinstance(parent, dict):
        mistyped = [key[:-1], key[1:], key + "s", key.upper()] if isinstance(key, str) else []
        parent[draw(st.sampled_from(mistyped) | keys) if mistyped else draw(keys)] = parent.pop(key)


def add(tree: Any, path: tuple[Any, ...], draw: st.DrawFn) -> None:
    parent = at(tree, path[:-1])
    if isinstance(parent, dict):
        parent[draw(keys)] = draw(values)
    else:
        parent.append(draw(values))


def wrap(tree: Any, path: tuple[Any, ...], draw: st.DrawFn) -> None:
    value = copy.deepcopy(at(tree, path))
    at(tree, path[:-1])[path[-1]] = draw(st.sampled_from([[value], {"name": value}, [value, value], str(value)]))


def expand(tree: Any, path: tuple[Any, ...], draw: st.DrawFn) -> None:
    kind = draw(st.sampled_from(["grid", "zip", "rows"]))
    if kind == "rows":
        tree["rows"] = [{path[0]: draw(values)}, {path[0]: copy.deepcopy(tree[path[0]])}, draw(values)]
    else:
        choice = [draw(values), copy.deepcopy(at(tree, path))]
        tree.setdefault(kind, {})
        if isinstance(tree[kind], dict):
            tree[kind][".".join(map(str, path))] = choice


TREE_MUTATIONS: list[Callable[[Any, tuple[Any, ...], st.DrawFn], None]] = [delete, replace, rename, add, wrap, expand]


@st.composite
def mutated_trees(draw: st.DrawFn) -> bytes:
    """The text of a valid spec after one to three changes of its keys and values."""
    tree = json.loads(json.dumps(plain_tree(draw(specs()))))
    for _ in range(draw(st.integers(1, 3))):
        found = places(tree)
        if found:
            draw(st.sampled_from(TREE_MUTATIONS))(tree, draw(st.sampled_from(found)), draw)
    return dump(tree).encode()


def plain_tree(spec: Spec) -> Any:
    root = parse(to_yaml(spec), "spec.yaml").root
    assert root is not None
    return plain(root)


@st.composite
def mutated_texts(draw: st.DrawFn) -> bytes:
    """The bytes of a valid spec after one to four changes that know nothing of YAML."""
    content = to_yaml(draw(specs())).encode()
    for _ in range(draw(st.integers(1, 4))):
        lines = content.splitlines(keepends=True)
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 12)))
        row = draw(st.integers(0, max(len(lines) - 1, 0)))
        junk = draw(st.binary(min_size=1, max_size=3) | st.sampled_from([*JUNK]))
        content = draw(
            st.sampled_from(
                [
                    content[:start],  # truncate
                    content[:start] + content[end:],  # delete
                    content[:start] + junk + content[start:],  # insert
                    content[:start] + junk + content[end:],  # replace
                    content[:end] + content[start:],  # repeat
                    b"".join([*lines[: row + 1], *lines[row:]]),  # duplicate a line
                    b"".join([*lines[:row], *lines[row + 1 :]]),  # lose a line
                    b"".join([*lines[:row], b" " + (lines[row] if lines else b""), *lines[row + 1 :]]),  # indent a line
                ]
            )
        )
    return content


JUNK = [
    *(
        b"\t",
        b"\n",
        b"\r",
        b": ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"'",
        b'"',
        b"#",
        b"&a ",
        b"*a",
        b"!!int ",
        b"!x ",
        b"|\n",
    ),
    *(
        b">\n",
        b"%",
        b"@",
        b"? ",
        b"---\n",
        b"...\n",
        b"\x00",
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"<<: ",
        b"~",
    ),
    *(
        b"\\",
        b'"\\UFFFFFFFF"',
        b'"\\ud800"',
        b".nan",
        b"-.inf",
        b"1e999",
        b"0x",
        b"\xef\xbb\xbf",
        b"&a [*a]",
        b"true",
        b"\n\n",
    ),
]


def check_clean(content: bytes) -> tuple[Spec, ...]:
    """The file loads, or every problem names the file, a line that it has, and says in one line what is wrong."""
    try:
        found = load(content)
    except ProblemsError as error:
        lines = content.decode("utf-8", errors="replace").splitlines() or [""]
        for problem in error.problems:
            assert problem.file.endswith("spec.yaml")
            assert 1 <= problem.line <= len(lines) + 1
            assert problem.column >= 1
            assert problem.message
            assert len(str(problem).splitlines()) == 1
        event(f"{min(len(error.problems), 5)} problems")
        return ()
    event("loads")
    return found


@relaxed
@given(content=mutated_trees())
def test_any_change_of_keys_and_values_gives_clean_problems(content: bytes, validator: Draft202012Validator) -> None:
    if check_clean(content):
        root = parse(content.decode(), "spec.yaml").root
        assert root is not None
        assert [error.message for error in validator.iter_errors(plain(root))] == []


@settings(relaxed, max_examples=300)
@given(content=mutated_texts())
def test_any_change_of_the_text_gives_clean_problems(content: bytes) -> None:
    check_clean(content)


@relaxed
@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", errors="surrogatepass"))
)
def test_any_bytes_give_clean_problems(content: bytes) -> None:
    check_clean(content)


printed = st.text(max_size=10).filter(lambda text: visible(text) == text)  # without control characters
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), printed,
    st.sampled_from(["1e-5", "yes", "0o7", "0x1", ".inf", "~", "null", "1_0", "-", "?", "<<", "=", "1:2", "2001-1-1"]),
)  # fmt: skip
printable = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(printed | st.just("1e5"), inner, max_size=3),
    max_leaves=10,
).filter(lambda value: "\\u" not in json.dumps(value) or json.dumps(value, ensure_ascii=False).isprintable())


@relaxed
@given(value=st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=5), printable, min_size=1))
def test_dump_and_parse_are_inverse(value: Any) -> None:
    document = parse(dump(value), "f.yaml")
    assert document.problems == ()
    assert document.root is not None
    assert plain(document.root) == value


@given(number=st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=3))
def test_printed_digits_bound_the_printed_value(number: Decimal) -> None:
    """The half unit is half of the last printed digit; `Verbatim` keeps every digit."""
    text = format(number, "f")
    kept = Printed.of(text)
    assert kept.half_unit == 0.0005
    assert abs(Decimal(kept.value) - number) <= Decimal("1e-9")  # the value is a double: 10^6 has an ulp of 1.2e-10
    assert dump({"x": Verbatim(text)}) == f"x: {text}\n"
