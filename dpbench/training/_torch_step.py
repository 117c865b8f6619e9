"""torch's own step beside ours, for `dpbench bench`: the module is called as it is, then its loss, then `backward`.

What `plain` names is dpbench's own pass without clipping, so only this says what dpbench adds to torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.step import losses
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network


def own_module(net: Network, theta_RP: Tensor) -> nn.Module:
    """A copy of the network's module, in its mode, with the trained parameters of the first run as its own."""
    module = copy.deepcopy(net.module)
    with torch.no_grad():
        named = net.split(theta_RP[:1])
        for name, parameter in module.named_parameters():
            if name in named:
                parameter.copy_(named[name][0])
    return module


def torch_step(net: Network, theta_RP: Tensor, examples: Examples) -> Callable[[], nn.Module]:
    """A function that leaves the gradients of the summed loss of the first run in a module, which it returns.

    The function raises DpbenchError where torch cannot train the module by itself.
    """
    module = own_module(net, theta_RP)
    inputs, targets = examples.inputs[0], examples.targets[0]

    def call() -> nn.Module:
        module.zero_grad()
        try:
            losses.loss(net.objective.loss, module(inputs), targets, "sum").backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise DpbenchError(f"the module does not run by torch alone ({' '.join(str(error).split())})") from error
        return module

    return call
