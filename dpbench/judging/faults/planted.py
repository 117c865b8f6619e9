"""Faults that somebody could build in without noticing, and the checks that must find them.

`PLANTED` maps the name of a check to subjects that it must refute. Each is the real code with one thing wrong: single
parts (`parts`), NoisySGD (here), augmentation (`views`), mechanisms of other kinds (`mechanisms`), what shows only
along the way (`releases`), and PATE (`votes`). The frames that hold them are sound: `frames.Frame`, and the tables
`SOUND` of the last three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.faults.frames import Frame, Seen, noisy_sgd
from dpbench.judging.faults.mechanisms import (
    AUTOMATIC,
    DECAYING,
    DEPENDENT,
    IMPORTANCE,
    MICROBATCHED,
    PREPARED,
    PROJECTED,
    SCALED,
    SMOOTHED,
)
from dpbench.judging.faults.outputs import ENDING, PERTURBED
from dpbench.judging.faults.parts import (
    DIFFERENT,
    DISTRIBUTIONS,
    EPOCHS,
    GENERATORS,
    SAMPLERS,
    SENSITIVE,
    SMALL,
    FaultySampler,
    changed,
    clip_chunks,
    drop_last,
)
from dpbench.judging.faults.releases import LATE, LEAKING, LOW_RATES, RELEASED
from dpbench.judging.faults.views import AUGMENTED
from dpbench.judging.faults.votes import ANSWERS, PARTS
from dpbench.judging.faults.votes import LEAKING as LEAKING_VOTES
from dpbench.mechanisms.pidp_sgd import mechanism as pidp_sgd
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out
from dpbench.step.pipeline import Pipeline
from dpbench.step.samplers.poisson import PoissonSampler

# Noise and divisors


def _noise(change: Callable[[Seen], Tensor]) -> Frame:
    """`change` gives the noise itself, which is let out as if it had the stated deviation."""

    def draws(seen: Seen) -> Tensor:
        total_RP = seen.found.sum_RP
        return let_out(total_RP, total_RP + change(seen).to(total_RP.dtype), seen.deviation_R)

    return noisy_sgd(Frame, draws=draws)


def _normal(seen: Seen, step_R: Tensor | None = None) -> Tensor:
    """The standard normals of the step, or of another one."""
    place_R = seen.state.step_R if step_R is None else step_R
    return randomness.normal(seen.hyper.keys_RS, randomness.NOISE, place_R, seen.found.sum_RP.shape[1])


def _uniform(seen: Seen) -> Tensor:
    """Uniform numbers with mean 0 and variance 1."""
    place = (seen.hyper.keys_RS, randomness.NOISE, seen.state.step_R, seen.found.sum_RP.shape[1])
    return (randomness.uniform_bits(*place) * 2.0**-53 - 0.5) * 12**0.5


def _scale(seen: Seen) -> Tensor:
    return seen.deviation_R[:, None]


def _all_but_last(seen: Seen) -> Tensor:
    """Which coordinates are not the last one."""
    return torch.arange(seen.found.sum_RP.shape[1]) < seen.found.sum_RP.shape[1] - 1


def _sigma_squared(seen: Seen) -> Tensor:
    return (seen.hyper.noise_multiplier_R**2 * seen.hyper.clip_norm_R)[:, None]


DIVIDED: Mapping[str, Pipeline] = {
    "divided by the examples drawn": noisy_sgd(
        Frame, divides=lambda seen: seen.batch.mask_RB.sum(1).clamp_min(1).double()
    ),
    "divided by one example more": noisy_sgd(
        Frame, divides=lambda seen: seen.hyper.sampling_rate_R * (seen.examples + 1)
    ),
}
NOISES: Mapping[str, Pipeline] = {
    "forgets C": _noise(lambda seen: seen.hyper.noise_multiplier_R[:, None] * _normal(seen)),
    "forgets σ": _noise(lambda seen: seen.hyper.clip_norm_R[:, None] * _normal(seen)),
    "σ² for σ": _noise(lambda seen: _sigma_squared(seen) * _normal(seen)),
    "no noise": _noise(lambda seen: 0 * seen.found.sum_RP),
    "5 % less noise": _noise(lambda seen: 0.95 * _scale(seen) * _normal(seen)),
    "one draw for all coordinates": _noise(
        lambda seen: _scale(seen) * _normal(seen)[:, :1].expand_as(seen.found.sum_RP)
    ),
    "the same noise in every step": _noise(lambda seen: _scale(seen) * _normal(seen, seen.state.step_R * 0)),
    "the same noise in steps 2t and 2t+1": _noise(
        lambda seen: -((-1) ** seen.state.step_R[:, None]) * _scale(seen) * _normal(seen, seen.state.step_R // 2)
    ),
    "the same noise for every run": _noise(lambda seen: _scale(seen) * _normal(seen)[:1]),
    "the first run's scale for all": _noise(lambda seen: _scale(seen)[:1] * _normal(seen)),
    "no noise on the last coordinate": _noise(lambda seen: _scale(seen) * _normal(seen) * _all_but_last(seen)),
    "no noise on empty batches": _noise(lambda seen: _scale(seen) * _normal(seen) * seen.batch.mask_RB.any(1)[:, None]),
    "uniform noise": _noise(lambda seen: _scale(seen) * _uniform(seen)),
    **DIVIDED,
}

# A paper's own fault: with this radius no record's influence is large enough for noise.
BRANCHED: Mapping[str, Any] = {"noise for influential records only": pidp_sgd(variant="as_printed", radius=1e9)}

# Engines, samplers and rates within a mechanism


def _clip_in_twos(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Clips chunks of two places, however many are worked on at once."""
    del chunk
    return clip_chunks(net, theta_RP, examples, clip_R, 2)


INSENSITIVE: Mapping[str, Pipeline] = {
    name: noisy_sgd(Pipeline, engine=engine)
    for name, engine in SENSITIVE.items()
    if name not in ("ignores the mask", "clips chunks")  # with q = 1 every place is filled, and there is one chunk
} | {"clips chunks": noisy_sgd(Pipeline, engine=_clip_in_twos)}
BIASED: Mapping[str, Pipeline] = {
    **DIVIDED,
    "drops the last example": noisy_sgd(Pipeline, sample=FaultySampler(drop_last)),
    "drops the last example, without noise": noisy_sgd(Pipeline, sample=FaultySampler(drop_last), noise=None),
    "noise with a mean": _noise(lambda seen: _scale(seen) * (_normal(seen) + 0.2)),
    "not a number": _noise(lambda seen: seen.found.sum_RP * torch.nan),
    "clips at C / 10": noisy_sgd(Pipeline, engine=changed(lambda e, c: (e, c / 10))),
}
MOVED: Mapping[str, Pipeline] = {**INSENSITIVE, **PROJECTED, **MICROBATCHED, **AUTOMATIC, **DEPENDENT}
# Read off the gradients of a whole mechanism, with fewer draws than the check of a sampler alone has.
UNEVEN: Mapping[str, Any] = {
    **{name: noisy_sgd(Pipeline, sample=FaultySampler(draw)) for name, draw in SAMPLERS.items() if name not in SMALL},
    "rates a tenth too high": noisy_sgd(
        Pipeline,
        sample=FaultySampler(lambda seed, step, rate, n: PoissonSampler()(seed, step, (rate * 1.1).clamp_max(1), n)),
    ),
    "divided by the examples drawn": DIVIDED["divided by the examples drawn"],
    **{  # batches of ten examples, which they divide evenly
        name: noisy_sgd(Pipeline, sample=fault) for name, fault in EPOCHS.items() if name != "the last batch dropped"
    },
    **LOW_RATES,
    **IMPORTANCE,
}


def _subjects(kind: str, faults: Mapping[str, Any]) -> Mapping[str, Subject]:
    return {name: Subject(kind, name, value) for name, value in faults.items()}


PLANTED: Mapping[str, Mapping[str, Subject]] = {
    "philox_vectors": _subjects("generator", GENERATORS),
    "generator_distribution": _subjects("generator", DISTRIBUTIONS),
    "sampler_inclusion": _subjects("samplers", {name: FaultySampler(draw) for name, draw in SAMPLERS.items()}),
    "sampler_epochs": _subjects("samplers", EPOCHS),
    "clipping_sensitivity": _subjects("clipping", SENSITIVE),
    "clipping_reference": _subjects("clipping", DIFFERENT),
    "noise_scale": _subjects("mechanisms", {**NOISES, **DECAYING, **LATE, **BRANCHED}),
    "mechanism_releases": _subjects("mechanisms", {**RELEASED, **ANSWERS}),
    "mechanism_replay": _subjects("mechanisms", {**LEAKING, **LEAKING_VOTES}),
    "mechanism_sensitivity": _subjects(
        "mechanisms", {**INSENSITIVE, **PROJECTED, **MICROBATCHED, **AUTOMATIC, **SMOOTHED, **AUGMENTED, **DEPENDENT}
    ),
    "mechanism_inclusion": _subjects("mechanisms", UNEVEN),
    "objective_noise": _subjects("mechanisms", PERTURBED),
    "teacher_partition": _subjects("mechanisms", PARTS),
    "output_sensitivity": _subjects("mechanisms", ENDING),
    "preparation_release": _subjects("mechanisms", PREPARED),
    "gradient_unbiased": _subjects("mechanisms", {**BIASED, **SCALED}),
}
