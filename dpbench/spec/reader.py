"""Reads a point of a run file as a Spec: the rule of each key, then the rules between keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import InvalidOperation
from pathlib import Path
from typing import Any

from dpbench.catalog import advice, catalog
from dpbench.errors import DpbenchError
from dpbench.spec.annotations import shown
from dpbench.spec.keys import (
    DEVIATION,
    HIGHEST,
    HOMES,
    LOWEST,
    PUBLISHED,
    RUN,
    SECTIONS,
    VALUE,
    Budget,
    Choice,
    Printed,
    Published,
    Spec,
    Training,
    Weights,
)
from dpbench.spec.names import CatalogObjects, Chosen
from dpbench.spec.points import CHOICES, Mistakes, Point
from dpbench.spec.yaml_loader import Entry, Listing, Node, Place, Scalar, Table, plain
from dpbench.tasks import METRICS, Objective, objective, task_of


class SpecReader:
    """Reads the points of one file."""

    def __init__(self, mistakes: Mistakes, objects: CatalogObjects) -> None:
        self.mistakes, self.objects = mistakes, objects
        self.printed: dict[Place, Point] = {}

    def spec(self, tree: Table, point: Point | None) -> Spec | None:
        """The spec of a tree, None if anything is wrong; without a point, only the keys present are checked."""
        simple = {key: tree.entries[key] for key in _SIMPLE if key in tree.entries}
        read = self.mistakes.values(Table(tree.place, simple), {key: RUN[key] for key in _SIMPLE}, "", point)
        values: dict[str, Any] = read or {}
        for entry in simple.values():
            self.mistakes.without_repeats(entry.value)
        for key in ("dataset", "model", "mechanism", "budget", "training"):
            if key not in tree.entries and point is not None:
                expected = RUN[key].words or f"{RUN[key].description}, such as {RUN[key].examples[0]}"
                self.mistakes.missing(point, tree.place, key, f"is missing; expected {expected}")
        chosen = {
            key: self.objects.choice(key, node, self.mistakes, point) for key in CHOICES if (node := tree.get(key))
        }
        values |= {key: Choice(made.name, made.parameters) for key, made in chosen.items() if made}
        named = tree.get("accountants")
        for item in named.items if isinstance(named, Listing) else ():
            self._accountant(item)
        values |= self._budget(tree, chosen.get("mechanism"), point)
        values |= self._training(tree, chosen, point)
        measured = self._objective(tree, chosen.get("dataset"), values, point)
        values |= self._metrics(tree, point)
        asked = None if "metrics" in tree.entries and "metrics" not in values else values.get("metrics", ())
        values |= self._published(tree, chosen.get("dataset"), measured, asked, point)
        values |= self._weights(tree, point)
        if point is None or {"name", *CHOICES, "budget", "training"} - set(values):
            return None
        if isinstance(values.get("seeds"), int):
            values["seeds"] = tuple(range(values["seeds"]))
        line = point.place.line if point.in_row else tree.entries["name"].key.line
        folder = str(Path(self.mistakes.file).resolve().parent)
        return Spec(
            label=point.label,
            file=self.mistakes.file,
            line=line,
            number=point.number + 1,
            folder=folder,
            **{"source": "", **values},
        )

    def _section(self, key: str, node: Table, point: Point | None) -> dict[str, Any] | None:
        """The fields of a mapping, absent ones as their defaults; None if one is wrong."""
        values = self.mistakes.values(node, SECTIONS[key], key, point, homes=HOMES)
        if values is None:
            return None
        return {slot.name: slot.default for slot in SECTIONS[key].values() if not slot.required} | values

    def _exactly_one(self, key: str, node: Table, one: str, other: str, point: Point) -> None:
        first, second = node.entries.get(one), node.entries.get(other)
        if first is None and second is None:
            expected = f"{one} ({SECTIONS[key][one].expected}) or {other} ({SECTIONS[key][other].expected})"
            path = f"{key}.{one}"
            self.mistakes.missing(point, node.place, path, f"is missing; expected {expected}", also=(f"{key}.{other}",))
        elif first is not None and second is not None:
            later, earlier = (first, second) if first.key > second.key else (second, first)
            name, shared = (one, other) if later is first else (other, one)
            message = f"{name} excludes {shared} (line {earlier.key.line})"
            of_all = point.in_row and earlier.key.line < point.place.line
            hint = f"delete one, or write {shared} in the rows that have it, not for all" if of_all else "delete one"
            self.mistakes.add(later.key, f"{message}; expected exactly one of the two", hint, "both")

    def _budget(self, tree: Table, mechanism: Chosen | None, point: Point | None) -> dict[str, Any]:
        node = tree.get("budget")
        private = mechanism.made.private if mechanism else None
        name = mechanism.name if mechanism else ""
        if isinstance(node, Scalar) and node.value == "none":
            if private:
                message = f"found none, but {name} is private; expected epsilon or noise_multiplier, and delta"
                self.mistakes.add(node.place, message, kind="private")
            return {"budget": None}
        if not isinstance(node, Table):
            return self._no_mapping(node, RUN["budget"].words)
        values = self._section("budget", node, point)
        if accountant := node.get("calibrate_with"):
            self._accountant(accountant)
        if private is False:
            message = f"found a budget, but {name} is not private; expected none"
            self.mistakes.add(node.place, message, "write `budget: none`", "private")
        elif point is not None:
            self._exactly_one("budget", node, "epsilon", "noise_multiplier", point)
        return {"budget": Budget(**values)} if values is not None and point is not None else {}

    def _training(self, tree: Table, chosen: Mapping[str, Chosen | None], point: Point | None) -> dict[str, Any]:
        node = tree.get("training")
        if not isinstance(node, Table):
            return self._no_mapping(node, RUN["training"].words)
        values = self._section("training", node, point)
        mechanism, dataset = chosen.get("mechanism"), chosen.get("dataset")
        if point is not None:
            self._exactly_one("training", node, "batch_size", "sampling_rate", point)
            self._exactly_one("training", node, "epochs", "steps", point)
            clips = mechanism and mechanism.made.private and getattr(mechanism.made, "clips", True)
            if clips and "clip_norm" not in node.entries:
                message = "is missing; a private mechanism needs a finite number above 0"
                self.mistakes.missing(point, node.place, "training.clip_norm", message)
        batch = node.get("batch_size")
        size = plain(batch) if batch else None
        if batch and dataset and isinstance(size, int) and size > dataset.made.train_size:
            message = f"found {size}; expected at most {dataset.made.train_size}, the size of {dataset.name}"
            self.mistakes.add(batch.place, message)
        return {"training": Training(**values)} if values is not None and point is not None else {}

    def _published(
        self,
        tree: Table,
        dataset: Chosen | None,
        measured: Objective | None,
        metrics: Sequence[Choice] | None,
        point: Point | None,
    ) -> dict[str, Any]:
        entry = tree.entries.get("published")
        if entry is None:
            return {}
        node = entry.value
        if not isinstance(node, Table):
            return self._no_mapping(node, "a mapping of printed numbers")
        values = self._section("published", node, point)
        printed = {name: self._printed(given.value) for name, given in node.entries.items() if name in _SINGLE}
        several: dict[str, dict[str, Printed | None]] = {key: {} for key in _SEVERAL}
        for key in _SEVERAL:
            under = node.get(key)
            for name, each in (under.entries if isinstance(under, Table) else {}).items():
                several[key][name] = self._printed(each.value)
                self._expect_known(key, name, each, metrics, measured, point)
        spread = next((name for name in (DEVIATION, LOWEST, HIGHEST) if name in node.entries), None)
        of_one = values is not None and spread is not None and values["averaged_over"] == 1
        if of_one:
            at = node.entries["averaged_over"].value.place
            self.mistakes.add(at, "found 1; one run has no deviation", "write how many runs deviate", "deviation")
        there = [name for name in (LOWEST, HIGHEST) if name in node.entries]
        ends = [end for name in there if (end := printed[name]) is not None]
        if len(there) == 1 or (len(ends) == 2 and ends[0].value > ends[1].value):
            at = node.entries[there[0]].key
            self.mistakes.add(at, f"expected both {LOWEST} and {HIGHEST}, the lowest first", "write both", "range")
            return {}
        if point is not None:
            self._comparable(tree, entry, dataset, point)
            for metric in METRICS.values() if measured else ():
                other = metric.key if metric.key in node.entries or metric.name != "accuracy" else spread
                if other is not None and other in node.entries and measured and metric.name != measured.metric:
                    message = f"the metric of this run is {measured.metric}; expected {METRICS[measured.metric].key}"
                    self.mistakes.add(node.entries[other].key, message, f"add `metric: {metric.name}`", "metric")
        numbers = [number for found in several.values() for number in found.values()]
        if values is None or of_one or None in (*printed.values(), *numbers):
            return {}
        single = {PUBLISHED[name].name: number for name, number in printed.items()}
        return {"published": Published(**{**values, **single, **several})}

    def _expect_known(
        self,
        key: str,
        name: str,
        entry: Entry,
        metrics: Sequence[Choice] | None,
        measured: Objective | None,
        point: Point | None,
    ) -> None:
        """Report a name under `epsilon`, `epochs_to_reach` or `measured` for which nothing can be compared."""
        known, at = tuple(catalog("accountants")), entry.key
        if key == "epsilon" and name not in known:
            self.mistakes.add(at, f"unknown accountant {name!r}", advice(name, known), "unknown name")
        elif key == "epochs_to_reach":
            is_share = measured is not None and measured.metric == "accuracy"
            if not re.fullmatch(VALUE, name) or (is_share and float(name) > 100):
                message = f"found {name!r}; expected a value of the run's metric in its unit, such as 95"
                self.mistakes.add(at, message, kind="reached")
        elif key == "measured" and name in METRICS:
            self.mistakes.add(at, f"{name} is measured on test records", f"write `{METRICS[name].key}: ...`")
        elif key == "measured" and name == "sharpness":
            message = "sharpness gets no verdict: it depends on the search for the maximum"
            self.mistakes.add(at, message, "write `sharpness: ...` without `measured`")
        elif key == "measured" and point is not None and metrics is not None:
            count = sum(one.name == name for one in metrics)
            if count != 1:
                message = f"the run's `metrics` have {count} of the name {name!r}; expected one"
                self.mistakes.add(at, message, f"add `metrics: [{name}]`" if not count else "", "not measured")

    def _objective(
        self, tree: Table, dataset: Chosen | None, values: dict[str, Any], point: Point | None
    ) -> Objective | None:
        """The loss and the metric of a point; None where they are not known, after reporting why."""
        if dataset is None or point is None or any(key in tree.entries and key not in values for key in _OBJECTIVE):
            return None
        task = task_of(dataset.made)
        for given in ((values.get("loss"), None), (values.get("loss"), values.get("metric"))):
            try:
                found = objective(task, *given)
            except DpbenchError as error:
                key = "loss" if given[1] is None else "metric"
                place = tree.entries[key].value.place if key in tree.entries else tree.entries["dataset"].value.place
                self.mistakes.add(place, str(error).removeprefix(f"{key} = "), kind="task")
                return None
        return found

    def _metrics(self, tree: Table, point: Point | None) -> dict[str, Any]:
        node = tree.get("metrics")
        if node is None:
            return {}
        if not isinstance(node, Listing):
            message = f"found {shown(node)}; expected a list of metrics, such as [sharpness]"
            self.mistakes.add(node.place, message)
            return {}
        for item in node.items:
            if isinstance(item, Scalar) and item.text in METRICS:
                self.mistakes.add(
                    item.place, f"{item.text} is measured on test records", f"write `metric: {item.text}`"
                )
                return {}
        found = [self.objects.metric(item, self.mistakes, point) for item in node.items]
        return {"metrics": tuple(Choice(one.name, one.parameters) for one in found if one is not None)}

    def _weights(self, tree: Table, point: Point | None) -> dict[str, Any]:
        node = tree.get("weights")
        if not isinstance(node, Table):
            return self._no_mapping(node, RUN["weights"].words)
        values = self._section("weights", node, point)
        file = node.get("file")
        if isinstance(file, Scalar) and isinstance(file.value, str):
            folder = Path(self.mistakes.file).resolve().parent
            try:
                there = (folder / file.value).is_file()
            except OSError:  # a name that is longer than names may be, a folder that may not be entered
                there = False
            if not there and "made_by" not in node.entries:
                message = f"found {shown(file)}; there is no such file beside the spec"
                self.mistakes.add(file.place, message, kind="file")
        return {"weights": Weights(**values)} if values is not None and point is not None else {}

    def _printed(self, node: Node) -> Printed | None:
        """A number with its digits in the file; None after reporting that it is no number."""
        if not isinstance(node, Scalar) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
            return None
        try:
            return Printed.of(node.text)
        except (InvalidOperation, ValueError):
            message = f"found {shown(node)}; expected a number in decimal digits"
            self.mistakes.add(node.place, message, kind="misfit")
            return None

    def _no_mapping(self, node: Node | None, expected: str) -> dict[str, Any]:
        if node is not None:
            self.mistakes.add(node.place, f"found {shown(node)}; expected {expected}", kind="misfit")
        return {}

    def _comparable(self, tree: Table, entry: Entry, dataset: Chosen | None, point: Point) -> None:
        """Report printed numbers of a reduced setting, of data that are not real, or without a source."""
        if "reduced" in tree.entries:
            at = tree.entries["reduced"].key
            self.mistakes.add(at, "a reduced setting cannot stand beside published numbers", "delete one of the two")
        if dataset and not dataset.made.real:
            message = f"the dataset {dataset.name!r} is not real; its results never stand beside published numbers"
            self.mistakes.add(entry.key, message, "delete `published`", "real")
        if "source" not in tree.entries:
            hint = "add `source` with paper, version, table and page"
            self.mistakes.missing(point, tree.place, "source", "is missing; published numbers need a source", hint)
        assert isinstance(entry.value, Table)
        of_one_row = {**_RESULTS, "epochs_to_reach": "list of epochs", "measured": "list of values"}
        for key, name in of_one_row.items():
            printed = entry.value.entries.get(key)
            if printed and self.printed.setdefault(printed.key, point) is not point:
                message = (
                    f"this {name} would stand beside several settings; expected it in the one row that it belongs to"
                )
                self.mistakes.add(printed.key, message, "move `published` into `rows`", "several")

    def _accountant(self, node: Node) -> None:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            self.objects.check_name("accountants", node, self.mistakes)


_OBJECTIVE = ("loss", "metric")
_SIMPLE = (
    "name",
    "source",
    "seeds",
    "randomness",
    "accountants",
    "needs",
    "reduced",
    "tuned",
    "metrics_along",
    *_OBJECTIVE,
)
_RESULTS = {**{metric.key: metric.name.replace("rmse", "RMSE") for metric in METRICS.values()}, DEVIATION: "deviation"}
_SINGLE = (*_RESULTS, LOWEST, HIGHEST, "mu", "seconds_per_epoch", "memory_percent", "sharpness", "stated_epsilon")
_SEVERAL = ("epsilon", "epochs_to_reach", "measured")  # several numbers by name
