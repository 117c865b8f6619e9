"""For the ghost engine: every operator of a model that takes a parameter, its input, and a tap on its output.

A tap is a tensor of zeros that is added to the operator's output; the gradient with respect to the tap is the gradient
with respect to the output. The model's own Python code runs, and the operators that receive a parameter are recorded,
so a layer is known by what it computes, not by its class. A reshaped parameter is followed. An operator that is not
known is refused with its layer's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpbench.errors import DpbenchError
from dpbench.step.lstm import lstm

NUMERICS = 1

Kind = Literal["linear", "product", "convolution", "embedding", "scale", "shift"]


@dataclass(frozen=True)
class Use:
    """One use of one parameter: the number of the tap on the output, and the number of the recorded input.

    | kind | output | recorded input | `size` |
    | --- | --- | --- | --- |
    | linear | input · weightᵀ | (..., I) | (O, I) |
    | product | input · weight | (G, T, I) | (G, I, O) |
    | convolution | without padding | the padded input (N, C, *space) | (O, C/G, *kernel) |
    | embedding | rows of the weight | whole numbers | (rows, width) |
    | scale | input · weight | of the output's shape | any that broadcasts to it |
    | shift | input + bias | none | likewise |

    `size` is the shape in which the parameter is used: the same numbers in the same order.
    """

    kind: Kind
    parameter: str
    size: tuple[int, ...]
    tap: int
    input: int = -1
    groups: int = 1
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding_index: int | None = None


class Watch(TorchFunctionMode):
    """Runs the operators that take parameters, and keeps `uses`, their `inputs` and the shapes of the taps.

    `operators` maps each known operator to its replacement; `owners` names the layer of each parameter. Without `taps`
    nothing is added to the outputs; a first call without them gives the shapes.
    """

    def __init__(
        self,
        operators: Mapping[Any, Callable[..., Any]],
        owners: Mapping[str, str],
        named: Mapping[str, Tensor],
        taps: Sequence[Tensor] | None,
    ) -> None:
        super().__init__()
        self.operators = operators
        self.owners = owners
        self.names = {id(value): name for name, value in named.items()}
        self.taps = taps
        self.uses: list[Use] = []
        self.inputs: list[Tensor] = []
        self.versions: list[int] = []  # of the inputs when they were used
        self.tap_shapes: list[tuple[int, ...]] = []
        self._reshaped: list[Tensor] = []  # kept, so that no other tensor gets the id of one of them

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        touched = [leaf for leaf in tree_leaves((args, dict(kwargs))) if id(leaf) in self.names]
        if not touched:
            return func(*args, **kwargs)
        if func in self.operators:
            return self.operators[func](self, *args, **kwargs)
        result = func(*args, **kwargs)
        if _reshapes(func, args) and result.numel() == touched[0].numel():
            self._reshaped.append(result)
            self.names[id(result)] = self.names[id(touched[0])]
        elif any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.refuse(touched[0], f"used by the operator {getattr(func, '__name__', func)}, which is not known")
        return result  # else a question about shape, type or device

    def refuse(self, parameter: Tensor, why: str) -> NoReturn:
        """Raise DpbenchError that names the parameter and its layer."""
        name = self.names.get(id(parameter), "?")
        raise DpbenchError(
            f"clipping engine ghost: parameter {name!r} of {self.owners.get(name, 'the model')} is {why}; the engine"
            " takes linear, convolution, embedding, LayerNorm, RMSNorm, GroupNorm and recurrent layers, products, sums"
            " and matrix products: use the engine vmap or loop"
        )

    def inputs_are_kept(self) -> None:
        """Refuse a use whose input was written into afterwards: the engine needs the original input."""
        for use in self.uses:
            if use.input >= 0 and self.inputs[use.input]._version != self.versions[use.input]:
                raise DpbenchError(
                    f"clipping engine ghost: the input of {self.owners.get(use.parameter, 'the model')} is written into"
                    " after the layer has used it: compute on a copy (x = x + y, not x += y)"
                )

    def is_parameter(self, value: Any) -> bool:
        return id(value) in self.names

    def only_input(self, *values: Tensor | None) -> None:
        """Refuse a parameter in the place of an input."""
        for value in values:
            if value is not None and self.is_parameter(value):
                self.refuse(value, "used as an input")

    def reserve(self, shape: Sequence[int]) -> tuple[Tensor | None, int]:
        """The next tap, if there are any yet, and its number."""
        number = len(self.tap_shapes)
        self.tap_shapes.append(tuple(shape))
        return (None if self.taps is None else self.taps[number]), number

    def tapped(self, output: Tensor) -> tuple[Tensor, int]:
        """The output with the next tap added, and the tap's number."""
        tap, number = self.reserve(output.shape)
        return (output if tap is None else output + tap), number

    def record(self, kind: Kind, weight: Tensor | None, tap: int, value: Tensor, **more: Any) -> None:
        """Note a use of a weight, if it is a parameter."""
        if weight is not None and self.is_parameter(weight):
            more = {"size": tuple(weight.shape), **more}
            self.uses.append(Use(kind, self.names[id(weight)], tap=tap, input=len(self.inputs), **more))
            self.inputs.append(value)
            self.versions.append(value._version)

    def record_bias(self, bias: Tensor | None, tap: int, after: int = 0) -> None:
        """Note the use of a bias that `after` axes of the output follow, if it is a parameter."""
        if bias is not None and self.is_parameter(bias):
            self.uses.append(Use("shift", self.names[id(bias)], (*bias.shape, *[1] * after), tap))

    def linear(self, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        self.only_input(value)
        if weight.dim() != 2:
            self.refuse(weight, "a weight without an output axis")
        output, tap = self.tapped(F.linear(value, weight, bias))
        self.record("linear", weight, tap, value)
        self.record_bias(bias, tap)
        return output

    def lstm(self, driven_DNTG: Tensor, weight: Tensor) -> Tensor:
        """The hidden states (D, N, T, H) from zero on (`step/lstm.py`); `weight` (D, H, 4H) is a parameter."""
        with torch._C.DisableTorchFunction():
            self.only_input(driven_DNTG)
            output, tap = self.tapped(driven_DNTG.flatten(1, 2))
            zero_DNH = output.new_zeros(*driven_DNTG.shape[:2], weight.shape[1])
            states_DNTH, _ = lstm(output.reshape(driven_DNTG.shape), weight.detach(), zero_DNH, zero_DNH)
            before_DNTH = torch.cat([zero_DNH[:, :, None], states_DNTH[:, :, :-1]], 2)
            self.record("product", weight, tap, before_DNTH.flatten(1, 2))
        return states_DNTH


_RESHAPES = {
    *(getattr(torch, name) for name in ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze")),
    *(getattr(Tensor, name) for name in ("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze")),
}


def _reshapes(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the operator keeps the order of the parameter's numbers, if it keeps all of them."""
    if func is not Tensor.__getitem__:
        return func in _RESHAPES
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return all(part is None or part is Ellipsis or isinstance(part, slice) for part in index)
