"""Opacus's clipped sums beside ours, for `dpbench bench`: of the same model, parameters and examples, without noise.

Opacus trains a module with its own parameters and one run at a time, on a loss that torch's modules compute.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network
from dpbench.training._torch_step import own_module

WAYS = ("opacus hooks", "opacus ghost")


def installed() -> bool:
    """Whether Opacus can be imported."""
    return importlib.util.find_spec("opacus") is not None


def opacus(way: str, net: Network, theta_RP: Tensor, examples: Examples, clip: float) -> Callable[[], list[Tensor]]:
    """A function that computes the clipped sum of the first run by a way of `WAYS`: a tensor of each trained parameter.

    Raises DpbenchError for a loss other than cross-entropy, and whatever Opacus raises for a model.
    """
    if net.objective.loss != "cross_entropy":
        raise DpbenchError(f"loss = {net.objective.loss}: the comparison with Opacus is of cross-entropy alone")
    module = own_module(net, theta_RP).train()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    inputs, targets = examples.inputs[0], examples.targets[0]
    more = {"noise_multiplier": 0.0, "max_grad_norm": clip, "expected_batch_size": len(targets)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its noise is no noise
        optimizers: Any = importlib.import_module("opacus.optimizers")
        samples: Any = importlib.import_module("opacus.grad_sample")
        sgd = torch.optim.SGD(trained, lr=0.0)
        if way == "opacus hooks":
            wrapped: Any = samples.GradSampleModule(module, loss_reduction="sum")
            optimizer: Any = optimizers.DPOptimizer(sgd, **more, loss_reduction="sum")
            criterion: Any = nn.CrossEntropyLoss(reduction="sum")
        else:
            ghost: Any = importlib.import_module("opacus.utils.fast_gradient_clipping_utils")
            wrapped = samples.GradSampleModuleFastGradientClipping(module, max_grad_norm=clip, loss_reduction="sum")
            optimizer = optimizers.DPOptimizerFastGradientClipping(sgd, **more, loss_reduction="sum")
            criterion = ghost.DPLossFastGradientClipping(
                wrapped, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
            )

    def call() -> list[Tensor]:
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no input has a gradient
            criterion(wrapped(inputs), targets).backward()
        if way == "opacus hooks":
            optimizer.clip_and_accumulate()
        return [getattr(parameter, "summed_grad" if way == "opacus hooks" else "grad") for parameter in trained]

    return call
