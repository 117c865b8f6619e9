"""What every private mechanism must do: run what its ledger tells, and tell all that it runs.

The statistics are in the checks (false alarm 1e-9 per mechanism and check, seeds fixed); the rest is without chance.
"""

from __future__ import annotations

import dataclasses
import math
from inspect import signature
from typing import Any

import pytest

from dpbench import events
from dpbench.catalog import catalog
from dpbench.judging.check_tools.steps import (
    OwnSteps,
    has_event,
    preparation,
    released_events,
    sample_event,
    shown,
    shuffled,
)
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import (
    gradient_unbiased,
    mechanism_inclusion,
    mechanism_releases,
    mechanism_replay,
    mechanism_sensitivity,
    noise_scale,
    objective_noise,
    output_sensitivity,
    preparation_release,
    sampler_epochs,
    sampler_inclusion,
)
from dpbench.privacy.accounting import account
from dpbench.step.mechanism import acts_at_end
from dpbench.step.mechanism import step as one_step
from dpbench.store.check_records import SHIPPED, of_shipped
from tests.contracts.test_mechanisms import (
    MECHANISMS,
    PARAMETERS,
    begin,
    data,
    every_mechanism,
    every_poisson_mechanism,
    mixed,
    named,
)

pytestmark = pytest.mark.usefixtures("one_thread")

CHECKS: dict[str, Any] = {
    "noise_scale": noise_scale.check,
    "mechanism_sensitivity": mechanism_sensitivity.check,
    "gradient_unbiased": gradient_unbiased.check,
    "mechanism_inclusion": mechanism_inclusion.check,
    "preparation_release": preparation_release.check,
    "mechanism_releases": mechanism_releases.check,
    "mechanism_replay": mechanism_replay.check,
    "output_sensitivity": output_sensitivity.check,
    "objective_noise": objective_noise.check,
}
OF_THE_END = ("output_sensitivity", "objective_noise")
# What a mechanism prints against its own proof, and the check that shows it: (variant, parameters, check).
PRINTED: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    # Batches of one size, while the theorem needs independent draws.
    "dp_sgd_jl": [("as_printed", {}, "mechanism_inclusion")],
    "dp_adam_jl": [("as_printed", {}, "mechanism_inclusion")],
    # One example moves the sum by 2C, and C is accounted for.
    "microbatched_sgd": [("as_printed", {}, "mechanism_sensitivity")],
    # Divided by b twice; and with k above 1 the cap of the filter, which makes what is charged smaller than what runs.
    # Records of little influence meet no noise, nor do empty batches.
    "pidp_sgd": [("as_printed", {}, "noise_scale")],
    "dpis": [("as_printed", {}, "gradient_unbiased"), ("equation_7", {"oversampling": 5.0}, "noise_scale")],
}
every_private_mechanism = pytest.mark.parametrize("name", named(lambda mechanism: mechanism.private))
every_ledger_known_beforehand = pytest.mark.parametrize(
    "name", named(lambda mechanism: mechanism.private and not mechanism.spends_budget)
)
every_own_sampler = pytest.mark.parametrize("name", named(lambda mechanism: isinstance(mechanism, OwnSteps)))


def due(check: str, mechanism: Any) -> bool:
    """Whether a mechanism must stand up to a check."""
    if acts_at_end(mechanism) or check in OF_THE_END:
        perturbed = getattr(mechanism, "perturbs_objective", False)
        return acts_at_end(mechanism) and check == OF_THE_END[bool(perturbed)]
    if check == "preparation_release":
        return bool(mechanism.private) and preparation(mechanism) is not None
    if check == "mechanism_sensitivity":  # with steps of its own, `mechanism_inclusion` measures the reach
        return bool(mechanism.private) and not isinstance(mechanism, OwnSteps)
    return bool(mechanism.private) or check not in ("noise_scale", "mechanism_releases", "mechanism_replay")


# A mechanism that is another one with another update: what is released, drawn and clipped is the same code.
# The checks of that look at one of them by default.
SAME_BUT_FOR_THE_UPDATE = {"dp_lssgd": "noisy_sgd", "noisy_adam": "noisy_sgd", "pidp_sgd": "noisy_sgd"}
NOT_OF_THE_UPDATE = ("noise_scale", "mechanism_sensitivity", "mechanism_inclusion", "mechanism_releases")


@pytest.mark.parametrize(("name", "other"), SAME_BUT_FOR_THE_UPDATE.items())
def test_what_is_the_same_but_for_the_update(name: str, other: str) -> None:
    assert MECHANISMS[name] != MECHANISMS[other]
    assert dataclasses.replace(MECHANISMS[name], optimizer=MECHANISMS[other].optimizer) == MECHANISMS[other]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[pytest.mark.long] if twin and check in NOT_OF_THE_UPDATE else [])
        for check in CHECKS
        for name, twin in ((name, name in SAME_BUT_FOR_THE_UPDATE) for name in MECHANISMS)
    ],
)
def test_mechanism_passes_the_checks(name: str, check: str) -> None:
    """And no check leaves it out that it has to stand up to."""
    subject = Subject("mechanisms", name, MECHANISMS[name])
    assert CHECKS[check].applies(subject) is due(check, MECHANISMS[name])
    if due(check, MECHANISMS[name]):
        verdict = CHECKS[check](subject, seed=0)
        assert verdict.verdict == "holds", verdict


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in PRINTED.items() for case in cases])
def test_what_is_printed_fails_the_check_that_it_should_fail(name: str, case: tuple[str, dict[str, Any], str]) -> None:
    variant, parameters, check = case
    built = catalog("mechanisms")[name].load()(**PARAMETERS.get(name, {}) | parameters, variant=variant)
    subject = Subject("mechanisms", name, built)
    quick = dataclasses.replace(CHECKS[check], seeds=15) if check == "gradient_unbiased" else CHECKS[check]
    assert quick.applies(subject)
    verdict = quick(subject, seed=0)
    assert verdict.verdict == "refuted", verdict


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_of_a_step_judges_the_printed_pidp_sgd(check: str) -> None:
    """On a linear network where a deeper one is refused: what its branch spoils is refuted, nothing is undecided."""
    built = catalog("mechanisms")["pidp_sgd"].load()(variant="as_printed")
    subject = Subject("mechanisms", "pidp_sgd", built)
    if not due(check, built):
        assert not CHECKS[check].applies(subject)
        return
    expected = "refuted" if check in ("noise_scale", "mechanism_releases") else "holds"
    found = CHECKS[check](subject, seed=0)
    assert found.verdict == expected, found


@pytest.mark.parametrize("check", ["mechanism_releases", "mechanism_replay"])
def test_a_mechanism_that_refuses_the_network_of_a_check_is_not_refuted(check: str) -> None:
    """The damping allows a network whose Hessian it does not make positive definite: nothing was released."""
    built = catalog("mechanisms")["pidp_sgd"].load()(variant="as_printed", damping=0.01)
    found = CHECKS[check](Subject("mechanisms", "pidp_sgd", built), seed=0)
    assert found.verdict == "undecided", found
    if check == "mechanism_replay":  # the other one names the branch first, which is an event at the start
        assert "refused before training: the Hessian is not positive definite" in found.reason


@pytest.mark.parametrize("name", [name for name in PRINTED if name != "dpis"])
def test_no_epsilon_is_promised_of_what_is_printed(name: str) -> None:
    """It is withheld, or no accountant has one. (The ledger of `dpis` as printed dominates what it releases.)"""
    ((variant, _, check),) = PRINTED[name]
    parameters = PARAMETERS.get(name, {})
    assert of_shipped({"name": name, "parameters": parameters}) == SHIPPED
    found = of_shipped({"name": name, "parameters": {**parameters, "variant": variant}})
    if found.verdict == "refuted":
        assert found.reason.startswith(f"{check}: ")
        return
    built = catalog("mechanisms")[name].load()(**parameters, variant=variant)
    ledger = built.ledger(sampling_rate=0.1, noise_multiplier=1.0, steps=10)
    assert all(one.epsilon is None for one in account(ledger, delta=1e-5))


@pytest.mark.parametrize(("name", "variant"), [(name, case[0]) for name, cases in PRINTED.items() for case in cases])
def test_what_is_printed_is_never_said_to_be_checked(name: str, variant: str) -> None:
    found = of_shipped({"name": name, "parameters": {**PARAMETERS.get(name, {}), "variant": variant}})
    assert found.verdict in ("refuted", "unchecked")
    assert found.reason != SHIPPED.reason


def test_every_printed_variant_is_shown_to_fail() -> None:
    entries = catalog("mechanisms").items()
    assert {name for name, entry in entries if "variant" in signature(entry.load()).parameters} == set(PRINTED)


# The ledger tells what the code runs


@every_ledger_known_beforehand
def test_ledger_tells_what_runs(name: str) -> None:
    """What is released before training, then one event per step, with the rate and the sampler of the stage that draws.

    That the noise multipliers are those that run is in the check `noise_scale`.
    """
    mechanism = MECHANISMS[name]
    first = () if preparation(mechanism) is None else preparation(mechanism).releases
    for rate, sigma, count in ((0.01, 1.3, 7), (1.0, 0.5, 1), (256 / 60000, 2.0, 3516), (0.5, 1.0, 0)):
        ledger = mechanism.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=count)
        assert isinstance(ledger, events.Composition)
        assert ledger.parts[: len(first)] == first
        steps: Any = ledger.parts[len(first) :]
        assert sum(times for _, times in steps) == count
        for event, _ in steps:
            assert type(event) is type(sample_event(mechanism))
            assert (event.sampling_rate, event.sampler) == (rate, mechanism.sample.sampler)
            assert event.adjacency == ("zero_out" if event.sampler == "shuffled" else "add_or_remove")
        assert not ledger.adaptive
        assert events.from_json(events.to_json(ledger)) == ledger


@every_ledger_known_beforehand
def test_the_event_is_relative_to_the_noise(name: str) -> None:
    """Twice the noise is twice the noise multiplier: what one example may do does not depend on the noise."""
    mechanism = MECHANISMS[name]
    assert has_event(mechanism)
    for rate in (0.01, 0.5, 1.0):
        found = [mechanism.event(rate, sigma) for sigma in (1.0, 2.0, 0.25)]
        assert [event.noise_multiplier / found[0].noise_multiplier for event in found] == [1.0, 2.0, 0.25]
        assert found[0].noise_multiplier == sample_event(mechanism).noise_multiplier


@every_private_mechanism
def test_what_is_released_grows_step_by_step(name: str) -> None:
    """Each step adds to what was released; where the ledger is known beforehand, it is always its beginning."""
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    net, inputs, targets = data()
    begun = begin(mechanism, net, stack)
    wholes = [
        mechanism.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=5)
        for rate, sigma in zip(stack.sampling_rate_R.tolist(), stack.noise_multiplier_R.tolist(), strict=True)
    ]
    assert all((whole is None) is mechanism.spends_budget for whole in wholes)
    for step in shown(mechanism, net, begun.theta_RP, stack, inputs, targets, 5):
        assert len(step.events()) == 3, "one event at least for each run"
        around = (released_events(mechanism, state, stack) for state in (step.before, step.after))
        grown = [tuple(later[len(earlier) :]) for earlier, later in zip(*around, strict=True)]
        assert [step.released.events(run) for run in range(3)] == grown, "a step tells what the ledger grows by"
        so_far = mechanism.released(step.after, stack)
        for whole, found in zip(wholes, so_far, strict=True):
            assert found.adaptive is mechanism.spends_budget
            assert events.from_json(events.to_json(found)) == found
            assert whole is None or whole.prefix(sum(count for _, count in found.parts)) == found
    for whole, found in zip(wholes, so_far, strict=True):
        assert whole is None or whole == found
    first = 0 if preparation(mechanism) is None else sum(count for _, count in preparation(mechanism).releases)
    assert mechanism.spends_budget or {len(before) for before in released_events(mechanism, begun, stack)} == {first}


@every_poisson_mechanism
def test_the_sampler_that_the_ledger_names_is_the_one_that_runs(name: str) -> None:
    """The stage says `poisson`, the ledger repeats it, and the draws follow the law (false alarm 1e-9)."""
    mechanism = MECHANISMS[name]
    subject = Subject("samplers", name, mechanism.sample)
    assert sampler_inclusion.check.applies(subject)
    assert sampler_inclusion.check(subject, seed=3).verdict == "holds"
    assert mechanism.facts()["sampler"] == mechanism.sample.sampler == "poisson"


@pytest.mark.parametrize("name", named(shuffled))
def test_shuffled_batches_are_told_as_such(name: str) -> None:
    """And each example is once in each epoch, in a new and uniform order (false alarm 1e-9)."""
    mechanism = MECHANISMS[name]
    subject = Subject("samplers", name, mechanism.sample)
    assert sampler_epochs.check.applies(subject)
    assert sampler_epochs.check(subject, seed=3).verdict == "holds"
    assert mechanism.facts()["sampler"] == mechanism.sample.sampler == "shuffled"
    assert mechanism.facts()["adjacency"] == "zero_out"


@every_own_sampler
def test_own_sampling_is_told_as_poisson(name: str) -> None:
    """That each example is drawn by itself, with no more than the ledger's rate, is in `mechanism_inclusion`."""
    assert MECHANISMS[name].facts()["sampler"] == "poisson"


@every_ledger_known_beforehand
def test_ledger_needs_noise(name: str) -> None:
    for sigma in (None, 0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier"):
            MECHANISMS[name].ledger(sampling_rate=0.1, noise_multiplier=sigma, steps=3)


@every_mechanism
def test_facts_and_ledger_agree(name: str) -> None:
    mechanism, stack = MECHANISMS[name], mixed(0, 1, 2)
    facts = mechanism.facts()
    assert {"sampler", "adjacency", "privacy_unit", "normalisation"} <= set(facts)
    net, inputs, targets = data()
    state, _ = one_step(mechanism, net, begin(mechanism, net, stack), stack, inputs, targets, 5)
    for released in mechanism.released(state, stack):
        assert mechanism.private is (released is not None)
        if released is None:
            assert facts["adjacency"] is facts["privacy_unit"] is None
        else:
            assert {event.adjacency for event, _ in released.parts} == {facts["adjacency"]}
            assert facts["privacy_unit"]
