"""Randomised smoothing of the loss by Gaussian shifts of the parameters (DPlis, dplis2021: Algorithm 2, equation (6)).

| paper | here |
| --- | --- |
| K | smoothing_samples, 10 (20 on Reddit) |
| R, the smoothing radius | smoothing_radius, 10 |
| ν_j ~ N(0, σ²C²I), j = 1..K | elements (j−1)P to jP of the stream SMOOTHING of (seed, step), times σC |
| η, L, σ, C | learning rate, expected batch size qN, noise multiplier of the step, clip norm |
| σ_smooth of equation (3) | RησC/L |

Algorithm 2 line by line, with the code of `step.pipeline.Pipeline.release`:
- the batch: every record with probability L/N (`sample: poisson`);
- compute gradient: g(x_i) = (1/K) Σ_j ∇𝓛(θ + R(η/L)ν_j, x_i), the gradient of `functional.Smoothed.example_loss`. The
  mean is taken before clipping, as printed;
- clip gradient: the mean is clipped at C (`clip: flat`; other rules get the same mean);
- add noise: N(0, σ²C²I) to the sum, then 1/L: one draw, of the stream NOISE, independent of all ν_j;
- descent: θ − η·g (`update: sgd`; other updates get the same g).

One set or many. Equation (6) has one set ν_1..ν_K in a step, for the loss of the whole batch; Algorithm 2, read
literally, draws N(0, σ²C²I) again for each record and each j. Here it is one set: (6) is the objective that the paper
says it implements, and K·P normals suffice for a step where the other reading needs K·P for each record of the batch.
The privacy is the same with both.

Privacy: the event of a step is that of the rule without smoothing, `SampledGaussian(q, σ)` with `flat`, for
add-or-remove neighbours. Proof. R, K, η, L, σ and C are numbers of the plan, the same for both neighbours: N is public,
as it is for the division by qN. The ν_j are new in every step, and independent of the data, of the batches and of the
noise: they have a stream of their own. Given θ and the ν_j, what a record adds is a function of that record alone: the
gradient of its own smoothed loss, clipped to norm C. So given the ν_j the noisy sum is a sampled Gaussian mechanism of
sensitivity C. That holds for every value of the ν_j, whose law is the same for both neighbours: so it holds for the
noisy sum together with the ν_j, and for the noisy sum alone, by post-processing. Nothing else is released. With `jl`
the same argument goes before its proof: its projections are independent of the ν_j, and its estimates are those of the
smoothed gradient. The ν_j are not published; the bound would hold if they were.

R = 0 is the loss itself, and with flat clipping NoisySGD, bit for bit. Which R is best depends on the data: the columns
R_best of the paper choose it by accuracies of private runs, which their ε leaves out.

With decaying noise σ is that of the step. The scale uses L = qN with every rule. The loss of a record in training's
diagnostics is its smoothed loss. One step costs K gradients for each record, and K times the activations; each run of a
stack is worked on by itself.
Shapes: R runs, K shifts, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.step.clipped_sum import Draw

NUMERICS = 1


@dataclass(frozen=True)
class GaussianSmoothing:
    """A `Smoothing`. Raises DpbenchError unless K is a whole number of 1 or more, and R is finite and 0 or more.

    >>> draw = Draw(randomness.table([1]), torch.tensor([0]), torch.tensor([[3]]), torch.tensor([0.5]).double(), 40)
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> GaussianSmoothing(smoothing_samples=4).shifts(draw, 0.1 * one, 2 * one, 7, torch.float32).shape
    torch.Size([1, 4, 7])
    """

    smoothing_samples: int = 10
    smoothing_radius: float = 10.0

    def __post_init__(self) -> None:
        count, radius = self.smoothing_samples, self.smoothing_radius
        wrong = []
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            wrong.append(f"smoothing_samples = {count!r}: expected a whole number, 1 or more")
        number = isinstance(radius, int | float) and not isinstance(radius, bool)
        if not number or not 0 <= radius < math.inf:
            wrong.append(f"smoothing_radius = {radius!r}: expected a finite number, 0 (no smoothing) or more")
        if wrong:
            raise DpbenchError("; ".join(wrong))

    def shifts(
        self, draw: Draw, learning_rate_R: Tensor, deviation_R: Tensor, size: int, dtype: torch.dtype
    ) -> Tensor | None:
        """R·(η/L)·ν_j (R, K, P), with `deviation_R` = σC; None for R = 0."""
        if self.smoothing_radius == 0:
            return None
        scale_R = self.smoothing_radius * learning_rate_R / (draw.rate_R * draw.examples) * deviation_R
        count = self.smoothing_samples
        drawn = randomness.normal(draw.keys_RS, randomness.SMOOTHING, draw.step_R, count * size, dtype=dtype)
        return drawn.reshape(-1, count, size).mul_(scale_R[:, None, None].to(dtype))


smoothing = GaussianSmoothing
