"""What a spec names, as objects: its dataset, model, mechanism and objective, and the numbers that follow from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from dpbench.catalog import FilePath, find, marked
from dpbench.datasets import DatasetSource, find_dataset
from dpbench.errors import DpbenchError
from dpbench.plan import trial
from dpbench.plan.cache import Cache
from dpbench.plan.weights import still_to_make, weights_file, weights_key, with_weights
from dpbench.privacy.composition import steps_from_epochs
from dpbench.spec.loading import Spec
from dpbench.store.run_key import plain
from dpbench.tasks import Objective, objective, task_of

if TYPE_CHECKING:
    from torch import nn

    from dpbench.step.mechanism import Mechanism


def rate_and_steps(spec: Spec, source: DatasetSource) -> tuple[float, int]:
    """The sampling rate q and the number of steps T of a spec's runs. Raises DpbenchError for too large a batch."""
    training, examples = spec.training, source.train_size
    batch, epochs = training.batch_size, training.epochs
    if batch is not None and batch > examples:
        raise DpbenchError(f"batch_size = {batch}: larger than the {examples} examples of {source.name}")
    rate = training.sampling_rate if batch is None else batch / examples
    assert rate is not None
    if training.steps is not None:
        return rate, training.steps
    assert epochs is not None
    if batch is not None:
        return rate, steps_from_epochs(epochs, examples, batch)
    return rate, math.ceil(Fraction(repr(epochs)) / Fraction(repr(rate)))


def dataset_source(spec: Spec, anew: bool = False) -> DatasetSource:
    """The spec's dataset, not loaded. What is made of the user's file is made `anew`, for the file may have changed."""
    key = (spec.dataset.name, json.dumps(plain(dict(spec.dataset.parameters)), sort_keys=True))
    if key not in _SOURCES or (anew and marked(find("datasets", spec.dataset.name).load(), FilePath)):
        _SOURCES[key] = find_dataset(spec.dataset.name, spec.dataset.parameters)
    return _SOURCES[key]


_SOURCES: dict[tuple[str, str], DatasetSource] = {}


def objective_of(spec: Spec, source: DatasetSource) -> Objective:
    """What a spec's runs train and measure. Raises DpbenchError where the loss or the metric does not fit the data."""
    return objective(task_of(source), spec.loss, spec.metric)


def outputs_of(spec: Spec, source: DatasetSource) -> int:
    """The number of outputs of a spec's model."""
    return objective_of(spec, source).outputs(source.classes)


def model_builder(spec: Spec, source: DatasetSource, sha256: str | None = None) -> Callable[[], nn.Module]:
    """A function that builds the spec's model anew for the shape and classes of its dataset, with its weights.

    `sha256` is the hash of the weights' file as it was planned; by default that of the file as it is now.
    """
    build = plain_builder(spec, source)
    if spec.weights is None or still_to_make(spec) is not None:
        return build
    found = sha256 or weights_key(spec, build)["weights"]["sha256"]
    return partial(with_weights, build, weights_file(spec), found, spec.weights.frozen)


def plain_builder(spec: Spec, source: DatasetSource) -> Callable[[], nn.Module]:
    """The same with the module's own initial weights."""
    factory = find("models", spec.model.name).load()
    return partial(factory, tuple(source.input_shape), outputs_of(spec, source), **spec.model.parameters)


def build_mechanism(spec: Spec) -> Mechanism:
    """The spec's mechanism with its parameters."""
    mechanism: Mechanism = find("mechanisms", spec.mechanism.name).load()(**spec.mechanism.parameters)
    return mechanism


def sizes(spec: Spec, kept: Cache | None = None) -> trial.Sizes:
    """The sizes of the spec's model."""
    source = dataset_source(spec)
    return trial.sizes(model_builder(spec, source), tuple(source.input_shape), outputs_of(spec, source), kept)
