"""Which records the runs of a plan may have, and which specs the records of a report may be of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dpbench.catalog import is_code
from dpbench.spec.loading import Spec
from dpbench.store.run_key import FORMAT, plain
from dpbench.store.shapes import RunRecord


def parts(resolved: Any) -> tuple[str, ...] | None:
    """The names of dataset, model and mechanism, which the same or a similar run shares; None of another format."""
    try:
        return (
            None
            if resolved["format"] != FORMAT
            else tuple(str(resolved[part]["name"]) for part in ("dataset", "model", "mechanism"))
        )
    except (KeyError, TypeError, IndexError):
        return None


def about(specs: Iterable[Spec], records: Iterable[RunRecord]) -> list[Spec]:
    """The specs that a record may be of: with the dataset, model and mechanism of one, and all that name code."""
    known = {parts(record.resolved) for record in records}
    found = []
    for spec in specs:
        names = spec.dataset.name, spec.model.name, spec.mechanism.name
        if names in known or any(map(is_code, names)):
            found.append(spec)
    return found


def older_of(records: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Mapping[str, Any] | None]:
    """A function that finds, among what records resolved, the same run by other versions of code."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    found: dict[str, dict[str, Mapping[str, Any]]] = {}

    def numbers(resolved: Mapping[str, Any]) -> str:  # few runs have all of them in common, and they are soon compared
        return repr([resolved.get(name) for name in ("seed", "steps", "noise_multiplier", "learning_rate")])

    for resolved in records:
        alike.setdefault(numbers(resolved), []).append(resolved)

    def older(resolved: Mapping[str, Any]) -> Mapping[str, Any] | None:
        key = numbers(resolved)
        if key not in alike:
            return None
        if key not in found:
            found[key] = {_unversioned(one): one for one in alike[key]}
        return found[key].get(_unversioned(resolved))

    return older


def _unversioned(resolved: Mapping[str, Any]) -> str:
    """A resolved run of today's format without the versions of its code, as a string."""
    return json.dumps(plain({key: value for key, value in resolved.items() if key != "numerics"}), sort_keys=True)
