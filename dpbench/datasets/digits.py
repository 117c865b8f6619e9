"""Digits: the 1,797 real images of handwritten digits, 8 x 8 pixels, that ship inside scikit-learn.

Needs no folder and no network. Pixels are 0..16 and become value / 16 as float32, which is exact.

The split is ours, because scikit-learn ships one part only. Sort the records by class, keeping their order within a
class; every fifth record of that row, beginning with the first, is a test record (360), the others are training
records (1,437); both parts keep the original order. So each class has a fifth of its records, up to one, in the
test part, and no random generator is involved. Writers are not marked in the data, so the same writer's digits may
stand on both sides: accuracies here say nothing about unseen writers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbench.datasets._base import Dataset, RemoteFile, build

NUMERICS = 1


@dataclass(frozen=True)
class DigitsSource:
    """The digits of scikit-learn as a dataset; see the module for scaling and split."""

    name: str = "digits"
    title: str = "Handwritten digits of 8 x 8 pixels, a part of scikit-learn"
    files: tuple[RemoteFile, ...] = ()
    train_size: int = 1_437
    test_size: int = 360
    classes: int = 10
    input_shape: tuple[int, ...] = (1, 8, 8)
    sha256: str = "a6b9b0940860e1c89e4eacb40e5ba46ef6cfd3379b0d66239ef6fc125943eeaa"
    licence: str = "CC BY 4.0"
    citation: str = (
        "E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,"
        " doi:10.24432/C50P49"
    )
    url: str = "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits"
    real: bool = True

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:  # noqa: ARG002 (nothing is in a folder)
        """Always empty: the images are a part of an installed package."""
        return ()

    def load(self, folder: Path | None = None) -> Dataset:  # noqa: ARG002
        """The split data: inputs (N, 1, 8, 8) float32 in [0, 1], targets (N,) int64; the folder is not used.

        Raises DatasetCorrupt when the installed scikit-learn ships other images than the pinned ones.

        >>> dataset.load().train_inputs.shape
        torch.Size([1437, 1, 8, 8])
        """
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        inputs = (pixels / 16).astype(np.float32).reshape(-1, *self.input_shape)
        targets = labels.astype(np.int64)
        train, test = split(targets)
        return build(
            self,
            *(inputs[train], targets[train], inputs[test], targets[test]),
            advice="this scikit-learn ships other images: install the version that constraints.txt names",
        )


def split(targets: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Indices of the training and the test records, each ascending; the rule is in the module's first lines.

    >>> [part.tolist() for part in split(np.array([1, 0, 1, 0, 1, 1]))]
    [[0, 2, 3, 4], [1, 5]]
    """
    by_class = np.argsort(targets, kind="stable")
    test = np.sort(by_class[::5])
    return np.setdiff1d(np.arange(len(targets)), test), test


dataset = DigitsSource()
