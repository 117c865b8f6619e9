"""The numbers of parameters that jl2021 prints, from the architectures that it names.

A layer is (kind, what comes in, what goes out, size): a convolution of size k × k has out·(in·k² + 1) numbers, a fully
connected layer out·(in + 1), an embedding in·out, an LSTM of width h on d inputs 4h(d + h + 1), twice where it runs
both ways. The second route lists every array of weights with its shape and counts its entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dpbench.claims.computation import Computation
from dpbench.claims.demonstration import Demonstration, Shown

Layer = tuple[str, int, int, int]

NETWORKS: dict[str, tuple[Layer, ...]] = {
    # TensorFlow Privacy's tutorial, 28 × 28: 16 filters 8 × 8 by steps of 2, pool, 32 filters 4 × 4 by 2, pool: 4 × 4
    "mnist_cnn": (
        ("convolution", 1, 16, 8),
        ("convolution", 16, 32, 4),
        ("full", 4 * 4 * 32, 32, 0),
        ("full", 32, 10, 0),
    ),
    # Papernot et al. 2020 as printed: 7 convolutions 3 × 3, three poolings (32 → 4), one fully connected layer
    "cifar_cnn": (
        *(
            ("convolution", a, b, 3)
            for a, b in ((3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256))
        ),
        ("full", 4 * 4 * 256, 10, 0),
    ),
    # TensorFlow's tutorial: 8185 subwords, 64 wide, LSTM both ways, a layer of 64, two classes
    "imdb_lstm": (("embedding", 8185, 64, 0), ("lstm", 64, 64, 2), ("full", 128, 64, 0), ("full", 64, 2, 0)),
    # Krizhevsky et al. 2012, ungrouped, on grey images that leave 1 × 1 × 256 before the fully connected layers
    "alexnet": (
        *(
            ("convolution", a, b, k)
            for a, b, k in ((1, 96, 11), (96, 256, 5), (256, 384, 3), (384, 384, 3), (384, 256, 3))
        ),
        *(("full", a, b, 0) for a, b in ((256, 4096), (4096, 4096), (4096, 10))),
    ),
}
_VGG_WIDTHS = (3, 64, 64, 128, 128, 256, 256, 512, 512, 512, 512)
VGG13 = tuple(("convolution", a, b, 3) for a, b in pairwise(_VGG_WIDTHS))


def count(layers: Sequence[Layer]) -> int:
    """The number of parameters, by the formulas above."""
    total = 0
    for kind, into, out, size in layers:
        if kind == "convolution":
            total += out * (into * size * size + 1)
        elif kind == "full":
            total += out * (into + 1)
        elif kind == "embedding":
            total += into * out
        else:
            total += size * 4 * out * (into + out + 1)
    return total


def listed(layers: Sequence[Layer]) -> int:
    """The same from the shapes of all arrays."""
    shapes: list[tuple[int, ...]] = []
    for kind, into, out, size in layers:
        if kind == "convolution":
            shapes += [(out, into, size, size), (out,)]
        elif kind == "full":
            shapes += [(out, into), (out,)]
        elif kind == "embedding":
            shapes += [(into, out)]
        else:
            shapes += [shape for _ in range(size) for _ in range(4) for shape in ((out, into), (out, out), (out,))]
    return sum(math.prod(shape) for shape in shapes)


parameters = Computation(lambda network: count(NETWORKS[network]), second=lambda network: listed(NETWORKS[network]))


def _vgg(printed: int, widths: Sequence[int]) -> Shown:
    """VGG13 on CIFAR-10: 32 × 32 is halved five times to 1 × 1 × 512."""
    full = tuple(("full", a, b, 0) for a, b in zip((512, *widths), widths, strict=False))
    layers = (*VGG13, *full)
    found, other = count(layers), listed(layers)
    four = count((*VGG13, *(("full", a, b, 0) for a, b in ((512, 4096), (4096, 4096), (4096, 1000), (1000, 10)))))
    evidence = {"printed": printed, "convolutions": len(VGG13), "fully_connected": len(full), "counted": found}
    evidence["with_four_fully_connected_layers_4096_4096_1000_10"] = four
    reason = f"{len(full)} fully connected layers on 10 convolutions have {found:,} parameters, printed is {printed:,}"
    return Shown(found == other == printed, reason, found, evidence, {"formula": found, "shapes": other})


vgg13 = Demonstration(lambda: _vgg(32_394_562, (4096, 4096, 10)), twin=lambda: _vgg(32_394_562, (4096, 4096, 1000, 10)))
