"""DP-SGD-JL (jl2021, Algorithm 1): NoisySGD with gradient norms estimated by random projections.

The paper's N, B, p are examples, qN, sampling_rate q; r is projections; P_ij and M_i are in `clipping._jl`; C_t is
clip_norm and η_t learning_rate, both constant; σ is noise_multiplier, relative to C; T is steps.

Line by line: 2 the batch (below); 3 to 10 the estimates M_i, `clipping._jl.ProjectedSum`; 11 the weights min{1, C/M_i},
which are numbers when the loss is differentiated; 12 noise σC/B for a divisor B; 13 the update.

Ledger: T `RandomSensitivityGaussian` (Theorem 4.1), add-or-remove neighbours, Poisson sampling. What its proof needs,
and where it is met:
- every record is in a batch independently with probability q: `stages.PoissonSampler`;
- the projections are standard normal, independent of the data and new at each step: stream PROJECTION, and
  θ_{t−1} depends on earlier steps alone;
- given the projections, what the other records add does not depend on the record: every estimate comes from its own
  loss alone, each example being a batch of one under vmap, and C is a constant;
- M_i/‖g_i‖ has the law of √(χ²_r/r): the derivatives are right ones, tried before training (`ProjectedSum.refuse`);
- the noise has σC in every coordinate of the sum, and what divides it is a constant: qN.
The projections are not released; the bound would hold if they were (the proof of Lemma 4.3 hands them out).

`variant: as_printed` draws batches of exactly B = qN records (Algorithm 1, line 2), of which Theorem 4.1 does not
speak: with them a new record displaces another (papers/jl2021/claims.yaml, alg1-sampling). Its ledger says so, and
every accountant refuses it. The rest of Algorithm 1 is what the proof needs, the divisor too: B is a constant there.

One projection is not enough for a meaningful ε: the first mistake listed in papers/jl2021/claims.yaml.
`noise_decay` k gives σ_t = σ_0·e^(−kt), t whole epochs, not in the paper; the ledger holds every σ_t.
"""

from __future__ import annotations

from dpbench.clipping._jl import Way
from dpbench.mechanisms._jl import ProjectedPipeline, Variant, projected
from dpbench.step.stages import Sgd

NUMERICS = 1
ENGINE = ("way",)


def mechanism(
    *, projections: int = 30, way: Way = "jvp", noise_decay: float = 0.0, variant: Variant = "proven"
) -> ProjectedPipeline:
    """`way` is how the projections are computed: forward mode, or reverse mode twice.

    >>> mechanism(projections=5).ledger(sampling_rate=0.01, noise_multiplier=1.0, steps=10).parts[0][0].projections
    5
    """
    return projected(projections, way, noise_decay, variant, Sgd())
