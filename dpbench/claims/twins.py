"""False versions of a claim, each with its judgement: none of them may pass, or the check could not have failed."""

from __future__ import annotations

from collections.abc import Iterator

from dpbench.claims.bounds import judge_bound
from dpbench.claims.claim import FAVOURABLE, Claim, Judgement, Printed
from dpbench.claims.computation import Computation
from dpbench.claims.controls import below
from dpbench.claims.demonstration import Demonstration
from dpbench.claims.judge import judgement, what_judges
from dpbench.claims.judges import Judge
from dpbench.claims.quantities import judge_number
from dpbench.claims.renyi_bounds import judge_renyi
from dpbench.claims.truth import Truth

TEN = 10


def twins(claim: Claim) -> Iterator[tuple[str, Judgement]]:
    """What each false version is, and the judgement that it gets; for claims whose verdict is favourable.

    Numbers move by ten units of the last printed place, up and down; bounds become the known truth less one unit;
    formulas, inequalities and demonstrations bring their own planted mistake.
    """
    if claim.verdict not in FAVOURABLE:
        return
    if not claim.by and claim.kind == "bound":
        name = "mu" if "mu" in claim.printed else "epsilon"
        if name == "mu":
            yield "a tenth of mu", judge_bound(claim, epsilon=Printed(f"{claim.printed['mu'].value / TEN:.9f}"))
            return
        if "rdp" in claim.printed:
            lower = judge_renyi(claim).evidence["lower"]
            yield "the truth less one unit", judge_renyi(claim, below(lower, claim.printed["rdp"]))
            return
        found = judge_bound(claim)
        yield "the truth less one unit", judge_bound(claim, epsilon=below(found.evidence["lower"], claim.printed[name]))
        return
    if not claim.by and claim.kind == "number":
        for units in (TEN, -TEN):
            yield f"{units:+d} units of the last place", judge_number(claim, claim.printed["value"].moved(units))
        return
    judge = what_judges(claim)
    if isinstance(judge, Computation):
        for units in (TEN, -TEN):
            printed = claim.printed["value"].moved(units)
            yield f"{units:+d} units of the last place", judge.judge(printed, claim.parameters)
    elif isinstance(judge, Truth):
        found = judgement(claim, False)
        numbers = {**claim.printed, judge.name: below(found.evidence["lower"], claim.printed[judge.name])}
        yield "the truth less one unit", judge.judge(numbers, claim.parameters, False)
    elif isinstance(judge, Demonstration):
        yield "planted mistake", judge.judge_twin(claim.parameters)
    elif not isinstance(judge, Judge):
        for name, twin in judge.twins().items():
            yield name, twin.judge()
