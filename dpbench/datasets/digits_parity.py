"""The digits of `digits`, with the same split and scaling, told apart as even (class 0) and odd (class 1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dpbench.datasets import digits
from dpbench.datasets._base import Dataset, RemoteFile, build

NUMERICS = 1
_OF = digits.dataset


@dataclass(frozen=True)
class DigitsParitySource:
    """The digits of scikit-learn as a dataset of two classes."""

    name: str = "digits_parity"
    title: str = "Even and odd handwritten digits of 8 x 8 pixels, a part of scikit-learn"
    files: tuple[RemoteFile, ...] = ()
    train_size: int = _OF.train_size
    test_size: int = _OF.test_size
    classes: int = 2
    input_shape: tuple[int, ...] = field(default=_OF.input_shape)
    sha256: str = "b5cf238b241b9ffe929e4b3f8588022f4337bbdb99e7188e1208fa7d972edb46"
    licence: str = _OF.licence
    citation: str = _OF.citation
    url: str = _OF.url
    real: bool = True

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:
        """Always empty: the images are a part of an installed package."""
        return _OF.missing(folder)

    def load(self, folder: Path | None = None) -> Dataset:
        """The split data: inputs (N, 1, 8, 8) float32 in [0, 1], targets (N,) int64, the digit modulo 2.

        Raises DatasetCorrupt when the installed scikit-learn ships other images than the pinned ones.

        >>> dataset.load().train_targets.unique().tolist()
        [0, 1]
        """
        data = _OF.load(folder)
        return build(
            self,
            *(data.train_inputs.numpy(), data.train_targets.numpy() % 2),
            *(data.test_inputs.numpy(), data.test_targets.numpy() % 2),
            advice="this scikit-learn ships other images: install the version that constraints.txt names",
        )


dataset = DigitsParitySource()
