"""Views of records: against plain padding and cropping, the mean that is clipped, their draws, and what is refused.

That one record moves the sum by C, and that three faulty augmentations are found, is in tests/judging/faults.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpbench import randomness
from dpbench.clipping import loop, vmap
from dpbench.clipping.rules.jl import ProjectedSum
from dpbench.clipping.rules.none import Unclipped
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.judging.check_tools.problems import hyperparameters, reference
from dpbench.judging.check_tools.steps import shown
from dpbench.judging.checks.philox_vectors import block, uniform
from dpbench.mechanisms.pipeline import mechanism as pipeline
from dpbench.plan.planning import resolve
from dpbench.randomness import AUGMENTATION, SAMPLE
from dpbench.spec.loading import load_specs
from dpbench.step.augmentations.crop_and_flip import CropAndFlip
from dpbench.step.clipped_sum import Draw, Examples
from dpbench.step.functional import Network, augmented, evaluate, network
from dpbench.step.mechanism import Setting, State, step
from dpbench.tasks import Objective

pytestmark = pytest.mark.usefixtures("one_thread")

N, SHAPE = 10, (2, 4, 3)
STACK: dict[str, Any] = {
    "seeds": [5, 6],
    "sampling_rate": [0.4, 0.7],
    "learning_rate": [0.1, 0.5],
    "clip_norm": [1.0, 0.2],
    "noise_multiplier": [1.0, 2.0],
}
AUGMENT = {"name": "crop_and_flip", "parameters": {"views": 3, "padding": 2}}
IDENTITY = {"name": "crop_and_flip", "parameters": {"views": 1, "padding": 0, "flip": False}}
SMOOTH = {"name": "gaussian", "parameters": {"smoothing_samples": 2}}
COMBINED: dict[str, dict[str, Any]] = {
    "flat": {},
    "loop": {"engine": "loop"},
    "jl": {"clip": {"name": "jl", "parameters": {"projections": 3, "way": "jvp"}}},
    "jl in reverse": {"clip": {"name": "jl", "parameters": {"projections": 3, "way": "vjp"}}},
    "microbatches": {"clip": {"name": "microbatch", "parameters": {"microbatch_size": 2}}},
    "quantile, shuffled": {"clip": "quantile", "sample": "shuffled"},
    "smoothed": {"smooth": SMOOTH},
    "momentum, averaged": {"update": "momentum", "average": "exponential"},
    "prepared": {"prepare": "channel_statistics"},
    "without clipping": {"clip": "none", "noise": "none"},
}


def convolution() -> Network:
    """Convolution, then a linear layer, without kinks."""
    return network(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, *SHAPE, generator=generator, dtype=torch.float64), torch.arange(N) % 3


def drawn(index: list[int] | None = None, run: int = 5, at: int = 0) -> Draw:
    index_RB = torch.arange(N)[None] if index is None else torch.tensor([index])
    return Draw(randomness.table([run]), torch.tensor([at]), index_RB, torch.ones(1, dtype=torch.float64), N)


def plain_view(made: CropAndFlip, picture: Tensor, seed: list[int] | int, at: int, record: int, view: int) -> Tensor:
    """Padding by numpy, and whole numbers of plain Python."""
    mode: Any = {"zeros": "constant", "symmetric": "symmetric"}[made.padding_mode]
    p, (_, height, width) = made.padding, picture.shape
    padded = torch.from_numpy(np.pad(picture.numpy(), ((0, 0), (p, p), (p, p)), mode=mode))
    words = block(seed, AUGMENTATION, at, record + (view << 32))
    top, left = (word * (2 * p + 1) // 2**32 for word in words[:2])
    cropped = padded[:, top : top + height, left : left + width]
    return cropped.flip(2) if made.flip and words[2] >= 2**31 else cropped


def trained(made: Any, run: int | None = None, steps: int = 3, begun: State | None = None, chunk: int = 4) -> State:
    """A stack of two unlike runs, or one of them alone."""
    chosen = STACK if run is None else {name: values[run : run + 1] for name, values in STACK.items()}
    if not made.private:
        chosen = chosen | {"clip_norm": math.inf, "noise_multiplier": 0.0}
    if getattr(made.sample, "sampler", "") == "shuffled":
        chosen = chosen | {"sampling_rate": 0.5}
    net, (inputs, targets), stack = convolution(), data(), hyperparameters(**chosen)
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state = made.start(theta_P.repeat(len(chosen["seeds"]), 1), stack, inputs, targets) if begun is None else begun
    for _ in range(steps):
        state, _ = step(made, net, state, stack, inputs, targets, chunk)
    return state


# The views


@pytest.mark.parametrize("mode", ["zeros", "symmetric"])
@pytest.mark.parametrize(("padding", "flip"), [(0, True), (1, False), (2, True), (3, True)])
def test_views_are_crops_of_the_padded_picture(mode: Any, padding: int, flip: bool) -> None:
    made, (inputs, _) = CropAndFlip(4, padding, flip, mode), data()
    found = made(drawn(at=7), inputs[None])[0]
    assert found.shape == (N, 4, *SHAPE)
    for record in range(N):
        for view in range(4):
            assert torch.equal(found[record, view], plain_view(made, inputs[record], 5, 7, record, view))


def test_all_crops_and_both_sides_are_equally_likely() -> None:
    """Nine crops of a picture without symmetries, and nine flipped: a chi-square with a false alarm of 1e-9."""
    picture = torch.arange(1.0, 10.0).reshape(1, 1, 1, 3, 3)
    views = CropAndFlip(6000, 1)(drawn([3]), picture)[0, 0].flatten(1)
    _, count = views.unique(dim=0, return_counts=True)
    assert len(count) == 18
    assert stats.chisquare(count.numpy()).pvalue > 1e-9


def test_a_view_depends_on_seed_step_and_record_alone() -> None:
    made, (inputs, _) = CropAndFlip(4, 2), data()
    whole = made(drawn(), inputs[None])[0]
    order = [7, 2, 9]
    assert torch.equal(made(drawn(order), inputs[order][None])[0], whole[order])
    assert torch.equal(CropAndFlip(2, 2)(drawn(), inputs[None])[0], whole[:, :2]), "more views begin with the same"
    moved = inputs.clone()
    moved[3] += 1
    others = torch.arange(N) != 3
    assert torch.equal(made(drawn(), moved[None])[0, others], whole[others])
    same = [bool(torch.equal(one, whole)) for one in (made(drawn(at=1), inputs[None])[0],)]
    same += [bool(torch.equal(made(drawn(run=6), inputs[None])[0], whole))]
    assert not any(same)
    pictures = inputs[:1].expand(N, *SHAPE)
    assert len(made(drawn(), pictures[None])[0].flatten(2).flatten(0, 1).unique(dim=0)) > N, "unlike for each record"


def test_random_numbers_of_the_operating_system() -> None:
    """No keys: every view is a crop, and new each time."""
    picture = torch.arange(1.0, 10.0).reshape(1, 1, 1, 3, 3)
    secure = Draw(torch.empty(1, 0, dtype=torch.int64), torch.tensor([0]), torch.tensor([[3]]), torch.ones(1), 10)
    made = CropAndFlip(200, 1)
    one, other = (made(secure, picture)[0, 0].flatten(1) for _ in range(2))
    assert not torch.equal(one, other)
    known = {tuple(row) for row in CropAndFlip(6000, 1)(drawn([3]), picture)[0, 0].flatten(1).tolist()}
    assert {tuple(row) for row in one.tolist()} <= known


# Steps


@pytest.mark.parametrize("mode", ["zeros", "symmetric"])
def test_step_clips_the_mean_over_the_views(mode: Any) -> None:
    """Against one view and one ordinary backward pass at a time; rounding of float64 of gradients below 10.

    Clipping each view before the mean is another sum.
    """
    augment = {"name": "crop_and_flip", "parameters": {"views": 3, "padding": 2, "padding_mode": mode}}
    made, net, (inputs, targets) = pipeline(augment=augment, noise="none"), convolution(), data()
    stack = hyperparameters([5, 6], 0.6, clip_norm=[0.1, 1.0], noise_multiplier=0.0)
    theta_P = torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    differ = 0.0
    for at, one in enumerate(shown(made, net, theta_P.repeat(2, 1), stack, inputs, targets, 2)):
        for run, clip in enumerate((0.1, 1.0)):
            seed, wanted, early = stack.keys_RS[run].tolist(), torch.zeros(net.size), torch.zeros(net.size)
            for record in range(N):
                if uniform(seed, SAMPLE, at, record) >= math.floor(0.6 * 2**53):
                    continue
                views = [plain_view(made.augmentation, inputs[record], seed, at, record, k) for k in range(3)]
                part = Examples(torch.stack(views)[:, None], targets[record].expand(3, 1), torch.ones(3, 1) > 0)
                places_KP, most = theta_P.expand(3, -1), torch.full((3,), clip).double()
                mean_P = reference(net, places_KP, part, most * math.inf).sum_RP.mean(0)
                wanted = wanted + mean_P * min(1.0, clip / float(mean_P.norm()))
                early = early + reference(net, places_KP, part, most).sum_RP.mean(0)
            found_P = one.gradient_RP[run] * 0.6 * N
            assert float((found_P - wanted).abs().max()) < 1e-12
            differ = max(differ, float((found_P - early).abs().max()))
    assert differ > 1e-2


def test_engines_and_rules_without_clipping_agree() -> None:
    """The sums of the mean gradients and the losses; float64."""
    net, (inputs, targets) = convolution(), data()
    theta_1P = torch.randn(1, net.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    seen, draw, whole_R = CropAndFlip(3, 2)(drawn(), inputs[None]), drawn(), torch.tensor([math.inf]).double()
    examples = Examples(seen, targets[None], torch.ones(1, N) > 0)
    exact = loop.clipping(augmented(net), theta_1P, examples, whole_R, N)
    for found in (
        vmap.clipping(augmented(net), theta_1P, examples, whole_R, 3),
        Unclipped().summed(draw, augmented(net), theta_1P, examples, whole_R, 3),
        ProjectedSum(4).summed(draw, augmented(net), theta_1P, examples, whole_R, 3),
        ProjectedSum(4, "vjp").summed(draw, augmented(net), theta_1P, examples, whole_R, 3),
    ):
        assert torch.allclose(found.sum_RP, exact.sum_RP, rtol=0, atol=1e-12)
        assert torch.allclose(found.loss_RB, exact.loss_RB, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", COMBINED)
def test_one_view_of_the_whole_picture_is_no_augmentation_bit_for_bit(name: str) -> None:
    """JL by layers, which views do not go through, is another way to the same numbers: see the next but one."""
    one, other = trained(pipeline(augment=IDENTITY, **COMBINED[name])), trained(pipeline(**COMBINED[name]))
    assert torch.equal(one.theta_RP, other.theta_RP)


@pytest.mark.parametrize("name", COMBINED)
def test_with_other_stages_alone_in_a_stack_and_after_a_resume(name: str) -> None:
    """Rounding of float64 over three steps with parameters below 10, as in the contracts: 2e-10."""
    made, plain = pipeline(augment=AUGMENT, **COMBINED[name]), pipeline(**COMBINED[name])
    stacked = trained(made).theta_RP
    for run in range(2):
        assert float((trained(made, run).theta_RP[0] - stacked[run]).abs().max()) < 2e-10
    assert float((trained(made, chunk=N).theta_RP - stacked).abs().max()) < 2e-10
    assert torch.equal(trained(made, steps=2, begun=trained(made, steps=1)).theta_RP, stacked)
    assert float((trained(plain).theta_RP - stacked).abs().max()) > 1e-6
    asked = {"sampling_rate": 0.5, "noise_multiplier": 1.0 if made.private else None, "steps": 4}
    assert made.ledger(**asked) == plain.ledger(**asked)
    assert made.facts() == plain.facts()


def test_views_go_by_forward_mode_where_records_go_layer_by_layer() -> None:
    """float64, three steps, as in the contracts."""
    ways = [{"clip": {"name": "jl", "parameters": {"projections": 3, "way": way}}} for way in ("layers", "jvp")]
    one, other = (trained(pipeline(augment=AUGMENT, **way)).theta_RP for way in ways)
    assert torch.equal(one, other)
    one, other = trained(pipeline(augment=IDENTITY, **ways[0])).theta_RP, trained(pipeline(**ways[0])).theta_RP
    assert float((one - other).abs().max()) < 2e-10


def test_squared_errors_are_averaged_too() -> None:
    plain = network(nn.Sequential(nn.Flatten(), nn.Linear(24, 1)))
    net = Network(plain.module, plain.shapes, plain.size, objective=Objective("squared_error", "rmse"))
    named = {name: value[0].double() for name, value in net.split(torch.ones(1, net.size)).items()}
    views, target = CropAndFlip(3, 2)(drawn([0]), data()[0][:1][None])[0, 0], torch.tensor(0.5)
    each = [net.example_loss(named, view, target) for view in views]
    assert torch.allclose(augmented(net).example_loss(named, views, target), torch.stack(each).mean(), rtol=1e-14)
    both = augmented(net).example_losses(named, torch.stack([views, views]), target.expand(2))
    assert torch.allclose(both, torch.stack(each).mean().expand(2), rtol=1e-14)


def test_evaluation_sees_the_picture_itself() -> None:
    made, net, (inputs, targets) = pipeline(augment=AUGMENT), convolution(), data()
    state = trained(made)
    found = evaluate(net, state.theta_RP, inputs, targets, 4, lambda x: made.view(state, x))
    assert all(
        torch.equal(*pair) for pair in zip(found, evaluate(net, state.theta_RP, inputs, targets, 4), strict=True)
    )


# Keys, and what is refused


SPEC = """
kind: run
name: viewed
dataset: DATASET
model: {name: mlp, parameters: {hidden: [8]}}
mechanism: {name: pipeline, parameters: {PARAMETERS}}
budget: {noise_multiplier: 1.0, delta: 1e-4}
training: {batch_size: 64, epochs: 1, learning_rate: 0.1, clip_norm: 1.0}
seeds: 1
"""


def planned(folder: Path, parameters: str, dataset: str = "digits") -> Any:
    file = folder / "spec.yaml"
    file.write_text(SPEC.replace("PARAMETERS", parameters).replace("DATASET", dataset))
    return resolve(load_specs([file])[0], [0])[0]


def test_a_run_without_it_keeps_its_key(tmp_path: Path) -> None:
    plain = planned(tmp_path, "clip: flat")
    assert "augment" not in plain.resolved["mechanism"]["parameters"]
    assert planned(tmp_path, "augment: none").key == plain.key
    short, full = "augment: {name: crop_and_flip, parameters: {padding: 2}}", "views: 16, flip: true, padding: 2"
    viewed = planned(tmp_path, short)
    assert viewed.key != plain.key
    assert planned(tmp_path, f"augment: {{name: crop_and_flip, parameters: {{{full}}}}}").key == viewed.key


def test_records_that_are_no_pictures_are_refused_before_training(tmp_path: Path) -> None:
    words = r"augment: records of shape \(10,\); crop_and_flip takes pictures"
    with pytest.raises(DpbenchError, match=words):
        planned(tmp_path, "augment: crop_and_flip", "diabetes")
    with pytest.raises(DpbenchError, match=words):
        CropAndFlip()(drawn(), torch.ones(1, N, 10))
    with pytest.raises(DpbenchError, match="padding = 9: the pictures have 8 rows and 8 columns; expected no more"):
        planned(tmp_path, "augment: {name: crop_and_flip, parameters: {padding: 9}}")
    CropAndFlip().check(Setting(10, 0.1, 10, 0.1))  # their shape is not known


BAD = [("views", 0), ("views", 1.5), ("views", True), ("padding", -1), ("flip", 1), ("padding_mode", "reflect")]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_parameters_are_one_sentence(name: str, value: Any) -> None:
    with pytest.raises(DpbenchError, match=rf"^{name} = {value!r}: expected "):
        pipeline(augment={"name": "crop_and_flip", "parameters": {name: value}})


def test_ghost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError) as caught:
        planned(tmp_path, "augment: crop_and_flip, engine: ghost")
    assert any("of its views; expected vmap or loop" in problem.message for problem in caught.value.problems)
    named = {name: value[0] for name, value in convolution().split(torch.zeros(1, convolution().size)).items()}
    with pytest.raises(DpbenchError, match="not its views; expected vmap or loop"):
        augmented(convolution()).example_loss(named, data()[0].float(), data()[1][0], TorchFunctionMode())
