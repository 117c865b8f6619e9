"""Diabetes: how a disease went on within a year, for 442 patients; a regression that ships inside scikit-learn.

Needs no folder and no network. Ten numbers of each patient: age, sex, body mass index, blood pressure and six of the
blood serum; the target is a measure of the disease's progression, 25 to 346.

Inputs are (value - centre) / width with the round constants of `SCALES`, which we chose from what is usual of such
numbers and not from these records, so that scaling costs no privacy. (scikit-learn's own scaling uses the mean and the
deviation of all records; the ledger of a run would not cover that.) Targets are divided by 100, so an RMSE is in
hundreds of the measure.

The split is ours: every fifth record of the published order, beginning with the first, is a test record (89), the
others are training records (353).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import Array, Dataset, RemoteFile, build
from dpbench.tasks import Task

NUMERICS = 1

# Age, sex (1 or 2), body mass index, blood pressure; cholesterol, LDL, HDL, their ratio, log of triglycerides, glucose
SCALES: tuple[tuple[float, float], ...] = (
    *((50, 30), (1.5, 0.5), (25, 10), (90, 30)),
    *((200, 70), (120, 60), (50, 25), (4, 2), (4.5, 1), (90, 20)),
)
UNIT = 100


@dataclass(frozen=True)
class DiabetesSource:
    """The patients of scikit-learn's diabetes data as a regression; see the module for scaling and split."""

    name: str = "diabetes"
    title: str = "Progression of diabetes within a year from ten measurements, a part of scikit-learn"
    files: tuple[RemoteFile, ...] = ()
    train_size: int = 353
    test_size: int = 89
    classes: int = 1
    task: Task = "regression"
    input_shape: tuple[int, ...] = (10,)
    sha256: str = "6840cc71f127a47df3f6e657038c11944f993209438c7098610f686394d35a73"
    licence: str = "no formal licence; distributed with scikit-learn (BSD 3-Clause)"
    citation: str = (
        "B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Least angle regression, Annals of Statistics, 2004"
    )
    url: str = "https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html"
    real: bool = True

    def missing(self, folder: Path | None = None) -> tuple[RemoteFile, ...]:  # noqa: ARG002 (nothing is in a folder)
        """Always empty: the records are a part of an installed package."""
        return ()

    def load(self, folder: Path | None = None) -> Dataset:  # noqa: ARG002
        """The split data: inputs (N, 10) float32, targets (N,) float32 in hundreds; the folder is not used.

        Raises DatasetCorrupt when the installed scikit-learn ships other records than the pinned ones.

        >>> dataset.load().train_targets.dtype
        torch.float32
        """
        from sklearn.datasets import load_diabetes

        values, progress = load_diabetes(return_X_y=True, scaled=False)
        advice = "this scikit-learn ships other records: install the version that constraints.txt names"
        return build(self, *parts(values, progress), advice=advice)


def parts(values: Array, progress: Array) -> tuple[Array, Array, Array, Array]:
    """Scaled inputs and targets, float32: of the training part, then of the test part."""
    centre, width = np.array(SCALES, np.float64).T
    inputs = ((values - centre) / width).astype(np.float32)
    targets = (progress / UNIT).astype(np.float32)
    test = np.arange(len(targets)) % 5 == 0
    return inputs[~test], targets[~test], inputs[test], targets[test]


dataset = DiabetesSource()
