"""Certified accounting: enclosures of δ(ε) and ε(δ) in Arb balls, proven from the definition of the event onwards.

>>> from dpbench.privacy.certified import certify
>>> from dpbench.events import Composition, SampledGaussian
>>> training = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
>>> certificate = certify(training, delta=1e-5)
>>> round(certificate.value, 6), certificate.direction, certificate.relative_width < 1e-9
(0.86454, 'remove', True)

Doubles choose where to look; between the definition and the ball there are only Arb's operations, exact fractions
and the inequalities that docs/certified.md proves. Importing this package does not load python-flint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.privacy.certified._certificate import Certificate

__all__ = ["Certificate", "certify", "certify_many"]


def certify(
    releases: Composition | Event,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    digits: int = 10,
    progress: Callable[[str], None] | None = None,
) -> Certificate:
    """A proven enclosure of δ at `epsilon`, or of the smallest ε >= 0 at `delta`; exactly one of the two is given.

    The number is that of the worse of the two directions, for the dominating pairs that the events state; all doubles
    are taken as the exact fractions that they are. `digits` (2 to 60) is the relative width that is worked towards,
    10^−digits, for ε near 0 the absolute one 10^(−digits−3); the certificate states what was reached. `progress` is
    called with each part of the work. Raises DpbenchError for bad input and for what is not covered: adaptive
    parameters, samplers other than Poisson, unlike neighbouring relations, too many atoms.

    >>> from dpbench.events import Laplace
    >>> round(certify(Laplace(2.0), epsilon=0.25, digits=15).value, 14)
    0.1175030974154
    """
    (found,) = certify_many(
        releases,
        epsilons=() if epsilon is None else (epsilon,),
        deltas=() if delta is None else (delta,),
        digits=digits,
        progress=progress,
        single=True,
    )
    return found


def certify_many(
    releases: Composition | Event,
    *,
    epsilons: Sequence[float] = (),
    deltas: Sequence[float] = (),
    digits: int = 10,
    progress: Callable[[str], None] | None = None,
    single: bool = False,
) -> tuple[Certificate, ...]:
    """`certify` for every one of `epsilons`, then for every one of `deltas`, sharing the work.

    >>> from dpbench.events import Gaussian
    >>> [round(found.value, 4) for found in certify_many(Gaussian(1.0), epsilons=[0.0, 1.0], deltas=[1e-5])]
    [0.3829, 0.1269, 4.3772]
    """
    from dpbench.privacy.certified._answer import Question  # loads python-flint

    try:
        return Question(releases, digits, progress).answer(epsilons, deltas, single)
    except (ArithmeticError, AssertionError, IndexError, ValueError) as error:
        # doubles that plan overflow or vanish at such numbers, or a condition of the proof could not be shown
        raise DpbenchError(
            "cannot certify: the mechanisms have parameters so large or so small that no proof was found; ask"
            " `dpbench account`"
        ) from error
