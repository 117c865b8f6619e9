"""Short fixed runs of every mechanism, and the results stored of them.

`python -m tests.mechanisms.numerics` stores the results again, in `numerics.json` beside this file. It refuses where a
result differs and no version of the code was raised: then raise `NUMERICS` in the file whose arithmetic has changed.

Letters: N examples, P parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench.atomic import write_text
from dpbench.catalog import STAGES, catalog, find
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.models import logistic
from dpbench.models.mlp import model
from dpbench.step.functional import initial_parameters, network
from dpbench.step.mechanism import Mechanism, acts_at_end, evaluated, step, with_public
from dpbench.store.run_key import mechanism_entries, versions
from dpbench.training.execution import on_threads

FILE = Path(__file__).with_name("numerics.json")
N, STEPS, SHAPE, CLASSES = 24, 6, (2, 4, 4), 3
# float32 has a unit roundoff u = 6e-8. A step sums at most N = 24 gradients, each from products of 32 terms, and noise:
# relative errors of some 100 u = 6e-6 of terms of size 1 or less, in STEPS = 6 steps with a learning rate of 0.2: 1e-5
# for parameters of size 1. Adam divides by the root of a mean square, which noise keeps of size 1. Ten times that:
TOLERANCE = 1e-4

# Parameters with which there is more to see, or that make a small problem quick.
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "decaying_sgd": {"noise_decay": 0.05},
    "dp_sgd_jl": {"projections": 3, "noise_decay": 0.05},
    "dp_adam_jl": {"projections": 3},
    "dpis": {"oversampling": 1.0, "size_noise": 2.0, "sum_noise": 2.0},
    "dplis": {"smoothing_samples": 3},
    "microbatched_sgd": {"microbatch_size": 2},
    "pidp_sgd": {  # Algorithm 1 itself; of the drawn records some meet noise, and it can be seen in the parameters
        "variant": "as_printed",
        "regularisation": 0.5,
        "damping": 2.0,
        "rounds": 2,
        "radius": 400.0,
        "noise_constant": 200.0,
    },
    "pate": {"teachers": 4, "threshold": 1.0, "public_examples": 10, "teacher_steps": 5, "smoothing_samples": 2},
}
OF_A_STAGE: Mapping[str, Mapping[str, Any]] = {
    "channel_statistics": {"mean_bound": 0.5},
    "crop_and_flip": {"views": 3, "padding": 1},
    "jl": {"projections": 3},
}


def choices() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Titles, mechanisms and their parameters: every mechanism, with each update that it offers, and every stage."""
    for name, entry in catalog("mechanisms").items():
        given = dict(PARAMETERS.get(name, {}))
        found = getattr(entry.load(), "__signature__", None)
        optimizer = None if found is None else found.parameters.get("optimizer")
        for choice in [None] if optimizer is None else optimizer.annotation.__args__:
            more = {} if choice is None else {"optimizer": choice}
            yield " ".join([name, *more.values()]), name, given | more
    for stage, kind in STAGES.items():
        for name in catalog(kind) if stage != "engine" else ():
            chosen = {"name": name, "parameters": dict(OF_A_STAGE.get(name, {}))}
            if kind == "rules" and name == "none":
                chosen_stages = {"clip": chosen, "noise": "none"}
            else:
                chosen_stages = {stage: chosen}
            yield f"pipeline {stage} {name}", "pipeline", chosen_stages


def code_versions(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of the code that a mechanism uses, and of the model of these runs."""
    return versions([*mechanism_entries(name, parameters), find("models", "mlp")])


def built(name: str, parameters: Mapping[str, Any]) -> Mechanism:
    made: Mechanism = find("mechanisms", name).load()(**parameters)
    return made


def examples() -> tuple[Tensor, Tensor]:
    """Inputs and targets from a formula: no generator of another library takes part."""
    count = N * math.prod(SHAPE)
    values = torch.tensor([math.sin(1.0 + 0.7 * i + 0.01 * i * i) for i in range(count)], dtype=torch.float64)
    return values.reshape(N, *SHAPE).float(), torch.arange(N) % CLASSES


def trained(mechanism: Mechanism) -> list[float]:
    """The parameters after a few steps of one run, on one thread."""

    def build() -> torch.nn.Module:
        if acts_at_end(mechanism):  # its proof is about convex losses
            return logistic.model(SHAPE, 2)
        return model(SHAPE, CLASSES, hidden=(4,), activation="tanh")

    inputs, targets = examples()
    mechanism = with_public(mechanism, inputs)
    if acts_at_end(mechanism):
        targets = targets % 2
    hyper = hyperparameters([3], 0.25, learning_rate=0.2, clip_norm=0.5, steps=STEPS)
    with on_threads(1):
        net = network(build())
        state = mechanism.start(initial_parameters(build, 3)[None], hyper, inputs, targets)
        for _ in range(STEPS):
            state, seen = step(mechanism, net, state, hyper, inputs, targets, N)
            assert not seen.stopped
    return [float(f"{value:.8g}") for value in evaluated(mechanism, state)[0].tolist()]


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two results, relative to parameters of size 1 or more."""
    if len(one) != len(other):
        return math.inf
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(one, other, strict=True))


def stored() -> dict[str, dict[str, Any]]:
    """The stored results by title, each with the versions of the code that made it."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def main() -> None:
    before, now = stored(), {}
    for title, name, parameters in choices():
        result, code = trained(built(name, parameters)), code_versions(name, parameters)
        old = before.get(title)
        if old is not None and difference(result, old["parameters"]) <= TOLERANCE:
            result = old["parameters"]  # rounding of another processor is no change
        elif old is not None and old["versions"] == code:
            raise SystemExit(f"{title}: the result differs, but no version was raised: raise NUMERICS where it changed")
        now[title] = {"versions": code, "parameters": result}
    lines = (f"{json.dumps(title)}: {json.dumps(value)}" for title, value in sorted(now.items()))
    write_text(FILE, "{\n" + ",\n".join(lines) + "\n}\n")
    print(f"wrote {FILE}: {len(now)} results")


if __name__ == "__main__":
    main()
