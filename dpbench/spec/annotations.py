"""Tests values of a spec against annotations: dataclass fields and the signatures of catalog objects.

pydantic decides what fits (strictly: `true` is no number, "3" is no number, 3.0 is no whole number); this module words
the messages: where a value does not fit, and what is expected. The same annotations give the JSON Schema.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dpbench.catalog import KINDS, OfKind, closest
from dpbench.spec.yaml_loader import Listing, Node, Place, Scalar, Table, plain, resolve

NOTHING: Any = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Slot:
    """One named value: a key of a mapping or a parameter of a function.

    `annotation` may carry pydantic constraints; `default` is NOTHING if a value is required; `words` describe the
    expected value if the annotation alone does not.
    """

    name: str
    annotation: Any
    default: Any = NOTHING
    description: str = ""
    examples: tuple[Any, ...] = ()
    words: str = ""

    @property
    def required(self) -> bool:
        return self.default is NOTHING

    @property
    def expected(self) -> str:
        """The expected value, in words.

        >>> Slot("hidden", tuple[int, ...]).expected
        'a list of whole numbers'
        """
        of = of_kind(self)
        if of is not None and not self.words:
            return f"a {KINDS[of.kind]} by its name, or a mapping with name and parameters" + (", or none" * of.none)
        return self.words or in_words(self.annotation)

    @functools.cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """pydantic's validator. Raises TypeError for an annotation that no YAML value can satisfy."""
        own = _split(self.annotation)[0]
        carries_config = isinstance(own, type) and (
            dataclasses.is_dataclass(own) or typing.is_typeddict(own) or issubclass(own, BaseModel)
        )
        try:
            # pydantic takes no configuration beside types that may carry their own
            return TypeAdapter(self.annotation, config=None if carries_config else ConfigDict(strict=True))
        except PydanticUserError as error:
            message = f"the parameter {self.name!r} is {in_words(self.annotation)}, which YAML cannot express"
            raise TypeError(message) from error


Misfit = tuple[Place, str, str]  # a value that does not fit: its position, what is wrong, and what to do


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters that a callable takes by name; `open` if it takes any further ones (`**rest`)."""

    slots: Mapping[str, Slot]
    open: bool = False


def fields_of(kind: type[Any]) -> dict[str, Slot]:
    """The fields of a dataclass as slots by their names.

    `X | None` becomes `X`: a file omits an absent value and never writes null.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    slots = {}
    for item in dataclasses.fields(kind):
        annotation = _without_none(hints[item.name])
        absent = NOTHING if annotation is hints[item.name] else None
        default = absent if item.default is dataclasses.MISSING else item.default
        info = FieldInfo.from_annotation(annotation)
        slots[item.name] = Slot(item.name, annotation, default, info.description or "", tuple(info.examples or ()))
    return slots


def parameters_of(factory: Callable[..., Any], skip: int = 0) -> Parameters:
    """The parameters of a function or a class after the first `skip`. Raises TypeError if there is no signature.

    >>> def model(input_shape, classes, *, activation: Literal["relu", "tanh"] = "relu"): ...
    >>> parameters_of(model, skip=2).slots["activation"].expected
    "'relu' or 'tanh'"
    """
    try:
        signature = inspect.signature(factory, eval_str=True)
    except (NameError, ValueError) as error:
        raise TypeError(f"its signature cannot be read ({error})") from error
    slots = {}
    for name, parameter in list(signature.parameters.items())[skip:]:
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            annotation = Any if parameter.annotation is NOTHING else parameter.annotation
            about = FieldInfo.from_annotation(annotation).description or ""
            slots[name] = Slot(name, annotation, parameter.default, about)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    return Parameters(slots, inspect.Parameter.VAR_KEYWORD in kinds)


def of_kind(slot: Slot) -> OfKind | None:
    """The mark of a parameter that names an entry of the catalog; None for others."""
    marks = getattr(slot.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, OfKind)), None)


def fit(slot: Slot, node: Node) -> tuple[Any, list[Misfit]]:
    """The value of a node in the slot's type, and every place where it does not fit.

    Lists become tuples, and whole numbers become floats, if the annotation says so.
    """
    undefined = [_follow(node, slot.annotation, location) for location in _not_a_number(node)]
    if undefined:
        return None, [_misfit(at, wanted, slot.words if at is node else "") for _, at, wanted in undefined]
    try:
        return slot.adapter.validate_json(json.dumps(plain(node)), strict=True), []
    except ValidationError as error:
        places = [_follow(node, slot.annotation, problem["loc"]) for problem in error.errors(include_url=False)]
        deepest = max(depth for depth, _, _ in places)
        found = {id(at): (at, annotation) for depth, at, annotation in places if depth == deepest}
        return None, [_misfit(at, wanted, slot.words if at is node else "") for at, wanted in found.values()]


def _misfit(node: Node, annotation: Any, words: str) -> Misfit:
    """A message with the found and the expected value, by default in the words of the annotation."""
    value = plain(node)
    expected = words or in_words(annotation)
    if value == math.inf:
        expected = expected.replace("a number", "a finite number", 1)
    return node.place, f"found {shown(node)}; expected {expected}", _advice(node, annotation)


def shown(node: Node) -> str:
    """A value as written in the file, shortened, for a message."""
    if isinstance(node, Scalar):
        if node.value is None:
            return "nothing" if not node.text else node.text
        text = repr(node.text) if isinstance(node.value, str) else node.text
    elif isinstance(node, Listing):
        text = "[" + ", ".join(shown(item) for item in node.items[:8]) + (", ..." if len(node.items) > 8 else "") + "]"
    else:
        text = "a mapping" if node.entries else "an empty mapping"
    return text if len(text) <= 60 else text[:56] + " ..."


def in_words(annotation: Any) -> str:
    """An annotation in words.

    >>> from pydantic import Field
    >>> in_words(Annotated[float, Field(gt=0, lt=1)])
    'a number above 0 and below 1'
    >>> in_words(Annotated[int, Field(ge=1)] | None)
    'a whole number, 1 or more, or null'
    """
    base, limits = _split(annotation)
    origin = get_origin(base)
    if origin is Literal:
        return _either([f"{value!r}" if isinstance(value, str) else json.dumps(value) for value in get_args(base)])
    if origin in (Union, types.UnionType):
        return _either([in_words(choice) for choice in get_args(base)])
    if base in (int, float):
        return ("a whole number" if base is int else "a number") + _limits_in_words(limits)
    if base in (list, tuple, set, frozenset) or origin in (list, tuple, set, frozenset):
        return _list_in_words(base, limits)
    if base is str and "min_length" in limits:
        return "text that is not empty"
    simple = {str: "text", bool: "true or false", type(None): "null", None: "null", dict: "a mapping", Any: "a value"}
    if base in simple:
        return simple[base]
    if origin in (dict, collections.abc.Mapping):
        return "a mapping"
    return f"a {base.__name__}" if isinstance(base, type) else str(base)


def _limits_in_words(limits: Mapping[str, Any]) -> str:
    if "ge" in limits and "le" in limits:
        return f" from {limits['ge']:g} to {limits['le']}"
    strict = [f"{word} {limits[name]:g}" for name, word in (("gt", "above"), ("lt", "below")) if name in limits]
    text = " " + " and ".join(strict) if strict else ""
    text += f", {limits['ge']:g} or more" if "ge" in limits else ""
    return text + (f", at most {limits['le']:g}" if "le" in limits else "")


def _list_in_words(base: Any, limits: Mapping[str, Any]) -> str:
    inner = [choice for choice in get_args(base) if choice is not Ellipsis]
    fixed = (get_origin(base) or base) is tuple and inner and Ellipsis not in get_args(base)
    if fixed:
        return f"a list of {len(inner)}: " + ", ".join(in_words(choice) for choice in inner)
    end = ", not empty" if limits.get("min_length") else ""
    if not inner:
        return f"a list{end}"
    words = in_words(inner[0])
    for one, many in (("a whole number", "whole numbers"), ("a number", "numbers"), ("text", "texts")):
        if words.startswith(one):
            return f"a list of {many}{words.removeprefix(one)}{end}"
    return f"a list of {words}{end}"


def _either(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    comma = "," if any("," in word for word in words) or len(words) > 2 else ""
    return ", ".join(words[:-1]) + f"{comma} or {words[-1]}"


def _advice(node: Node, annotation: Any) -> str:
    """Advice: what was probably meant."""
    if not isinstance(node, Scalar):
        return ""
    choices, value = _choices(annotation), node.value
    if isinstance(value, float) and value.is_integer() and int in choices and abs(value) < 1e15:
        return f"write {int(value)}"
    if isinstance(value, str):
        bare = value.replace("_", "").replace(",", "").strip()
        meant = resolve(bare)
        if (int in choices or float in choices) and isinstance(meant, int | float) and not isinstance(meant, bool):
            return "write it without quotation marks" if bare == value else f"write {bare}"
        if bool in choices and value.lower() in ("yes", "no", "on", "off"):
            return "write true" if value.lower() in ("yes", "on") else "write false"
        words = tuple(word for choice in choices if get_origin(choice) is Literal for word in get_args(choice))
        if len(words) > 1 and all(isinstance(word, str) for word in words):
            close = closest(value, words)
            return f"did you mean {close!r}?" if close else ""
    if isinstance(value, int | float) and str in choices and not {int, float} & set(choices):
        return f'write "{node.text}"'
    is_list = any((get_origin(choice) or choice) in (list, tuple) for choice in choices)
    return f"write [{node.text}]" if is_list and value is not None else ""


def _choices(annotation: Any) -> list[Any]:
    """The plain types that an annotation allows."""
    base, _ = _split(annotation)
    if get_origin(base) in (Union, types.UnionType):
        return [choice for part in get_args(base) for choice in _choices(part)]
    return [base]


def _split(annotation: Any) -> tuple[Any, dict[str, Any]]:
    """The type without its annotations, and the limits that they set."""
    info = FieldInfo.from_annotation(annotation)
    names = ("gt", "ge", "lt", "le", "min_length")
    limits = {name: getattr(part, name, None) for part in info.metadata for name in names if hasattr(part, name)}
    return info.annotation, {name: limit for name, limit in limits.items() if limit is not None}


def _without_none(annotation: Any) -> Any:
    """The annotation without `None` as a choice; the same object if `None` is no choice."""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        bare = _without_none(base)
        return annotation if bare is base else Annotated[(bare, *metadata)]
    if type(None) in get_args(annotation):
        return functools.reduce(operator.or_, (part for part in get_args(annotation) if part is not type(None)))
    return annotation


def _follow(node: Node, annotation: Any, location: tuple[int | str, ...]) -> tuple[int, Node, Any]:
    """The node at pydantic's location, its depth, and the annotation there.

    pydantic puts the names of a union's members into locations; they are skipped.
    """
    depth = 0
    for step in location:
        if isinstance(node, Listing) and isinstance(step, int) and step < len(node.items):
            node, annotation = node.items[step], _inside(annotation, step)
        elif isinstance(node, Table) and isinstance(step, str) and step in node.entries:
            node, annotation = node.entries[step].value, _inside(annotation, -1)
        else:
            continue
        depth += 1
    return depth, node, annotation


def _inside(annotation: Any, index: int) -> Any:
    """The annotation of the member at `index` of a list or mapping type (-1: of a mapping's values)."""
    for choice in _choices(annotation):
        inner = get_args(choice)
        if not inner or get_origin(choice) is Literal:
            continue
        if index < 0:
            return inner[-1]
        if Ellipsis in inner or get_origin(choice) is not tuple:
            return inner[0]
        return inner[index] if index < len(inner) else Any
    return Any


def _not_a_number(node: Node, location: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """The positions of .nan in a node: it is never valid, whatever the annotation."""
    if isinstance(node, Scalar):
        if isinstance(node.value, float) and math.isnan(node.value):
            yield location
    elif isinstance(node, Listing):
        for index, item in enumerate(node.items):
            yield from _not_a_number(item, (*location, index))
    else:
        for key, entry in node.entries.items():
            yield from _not_a_number(entry.value, (*location, key))
