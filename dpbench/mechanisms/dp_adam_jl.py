"""DP-Adam-JL (jl2021, Algorithm 3): DP-SGD-JL's noisy gradient, Adam's update.

The paper's β1, β2 are beta1, beta2; 10^−8 is offset, outside the root; m and u start at 0 (unsaid); the learning rate
is 0.001 in Section 3.3, Algorithm 3 has none; the other letters are in `dp_sgd_jl`.

Lines 2 to 12 are those of Algorithm 1: batch, projections, estimates, weights and noise are `dp_sgd_jl`'s, and so is
the ledger: the update uses the noisy gradient and its own memory alone (Appendix A, first paragraph). The paper prints
no bias correction; `bias_correction` adds it.

`variant: as_printed` differs twice:
- line 2 draws batches of exactly qN records, as in `dp_sgd_jl`, where the ledger's event is about Poisson sampling;
- the last lines have η_t = m_t/(√u_t + 10^−8) and θ_t = θ_{t−1} − η_t·g̃_t: the gradient once more, and no learning
  rate (learning_rate must be 1). The first step then has one sign whatever the gradient's is, and does not go
  downhill (papers/jl2021/claims.yaml, alg3-update). Adam's θ_t = θ_{t−1} − learning_rate·η_t is meant.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpbench.clipping._jl import Way
from dpbench.errors import DpbenchError
from dpbench.mechanisms._jl import ProjectedPipeline, Variant, projected
from dpbench.step.stages import Adam

NUMERICS = 1
ENGINE = ("way",)


@dataclass(frozen=True)
class PrintedAdam:
    """θ ← θ − m/(√u + ξ)·g, the last lines of Algorithm 3 as they are printed; the learning rate is unused."""

    beta1: float
    beta2: float
    offset: float
    memory: tuple[str, ...] = ("first_RP", "second_RP")

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del rate_R, step_R  # the print has neither
        first_RP = self.beta1 * memory["first_RP"] + (1 - self.beta1) * gradient_RP
        second_RP = self.beta2 * memory["second_RP"] + (1 - self.beta2) * gradient_RP * gradient_RP
        theta_RP = theta_RP - first_RP / (second_RP.sqrt() + self.offset) * gradient_RP
        return theta_RP, {"first_RP": first_RP, "second_RP": second_RP}


def mechanism(
    *,
    projections: int = 30,
    way: Way = "jvp",
    noise_decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
    variant: Variant = "proven",
) -> ProjectedPipeline:
    """`way` is how the projections are computed: forward mode, or reverse mode twice.

    >>> mechanism().update.beta2, mechanism(variant="as_printed").sample.sampler
    (0.999, 'without_replacement')
    """
    if variant != "as_printed":
        update = Adam(beta1, beta2, offset, bias_correction)
        return projected(projections, way, noise_decay, variant, update)
    if bias_correction:
        raise DpbenchError("bias_correction = True: Algorithm 3 as printed has none; expected False")
    return projected(projections, way, noise_decay, variant, PrintedAdam(beta1, beta2, offset), fixed_rate=1.0)
