"""The numbers of parameters that jl2021 prints, from the architectures that it names.

A layer is (kind, what comes in, what goes out, size): a convolution of size k × k has out·(in·k² + 1) numbers, a fully
connected layer out·(in + 1), an embedding in·out, an LSTM of width h on d inputs 4h(d + h + 1), twice where it runs
both ways.
"""

from __future__ import annotations

import math
from itertools import pairwise

from dpbench.judging.claims.judges import number

Layers = tuple[tuple[str, int, int, int], ...]


def _convolutions(size: int, *widths: int) -> Layers:
    return tuple(("convolution", a, b, size) for a, b in pairwise(widths))


def _full(*widths: int) -> Layers:
    return tuple(("full", a, b, 0) for a, b in pairwise(widths))


# 10 convolutions; 32 × 32 pixels are halved five times to 1 × 1 × 512
_VGG13 = _convolutions(3, 3, 64, 64, 128, 128, 256, 256, 512, 512, 512, 512)
NETWORKS: dict[str, Layers] = {
    # TensorFlow Privacy's tutorial, 28 × 28: 16 filters 8 × 8 by steps of 2, pool, 32 filters 4 × 4 by 2, pool: 4 × 4
    "mnist_cnn": (*_convolutions(8, 1, 16), *_convolutions(4, 16, 32), *_full(4 * 4 * 32, 32, 10)),
    # Papernot et al. 2020 as printed: 7 convolutions 3 × 3, three poolings (32 → 4), one fully connected layer
    "cifar_cnn": (*_convolutions(3, 3, 32, 32, 64, 64, 128, 128, 256), *_full(4 * 4 * 256, 10)),
    # TensorFlow's tutorial: 8185 subwords, 64 wide, LSTM both ways, a layer of 64, two classes
    "imdb_lstm": (("embedding", 8185, 64, 0), ("lstm", 64, 64, 2), *_full(128, 64, 2)),
    # Krizhevsky et al. 2012, ungrouped, on grey images that leave 1 × 1 × 256 before the fully connected layers
    "alexnet": (
        *_convolutions(11, 1, 96),
        *_convolutions(5, 96, 256),
        *_convolutions(3, 256, 384, 384, 256),
        *_full(256, 4096, 4096, 10),
    ),
    "vgg13": (*_VGG13, *_full(512, 4096, 4096, 10)),
    "vgg13_with_four": (*_VGG13, *_full(512, 4096, 4096, 1000, 10)),
}


@number()
def parameters(network: str) -> dict[str, float]:
    """By the formulas above, and by listing every array of weights with its shape."""
    formulas, shapes = 0, list[tuple[int, ...]]()
    for kind, into, out, size in NETWORKS[network]:
        if kind == "convolution":
            formulas += out * (into * size * size + 1)
            shapes += [(out, into, size, size), (out,)]
        elif kind == "full":
            formulas += out * (into + 1)
            shapes += [(out, into), (out,)]
        elif kind == "embedding":
            formulas += into * out
            shapes += [(into, out)]
        else:
            formulas += size * 4 * out * (into + out + 1)
            shapes += [(out, into), (out, out), (out,)] * 4 * size
    return {"formulas": formulas, "shapes": sum(map(math.prod, shapes))}
