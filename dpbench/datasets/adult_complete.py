"""Adult, the records without a missing value: 45,222 of UCI's census, is the income above 50,000 dollars a year?

What pidp2021 (Section 7) and before it Chaudhuri, Monteleoni and Sarwate (2011) count: adult.data and adult.test
together, without the records that have a `?`. The split is random there and unsaid; here a fifth are test records,
chosen by `_table.split` with seed 0.

105 inputs: 6 numbers, and one indicator for each category that adult.names lists (99, with one that no complete record
has). Numbers are scaled by the bounds below, which are round and from what the columns mean, then every record is
shortened to length 1 (L2). So each record is prepared alone, and nothing of it costs privacy. Chaudhuri and others
divide by the greatest value of each column instead, which depends on the data; pidp2021 does not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import Arrays, FileSource, RemoteFile, read_content
from dpbench.datasets._table import MISSING, Column, Numbers, Row, prepared, rows_of, split, words

NUMERICS = 1

_ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
TRAIN = RemoteFile(
    path="adult/adult.data",
    urls=(f"{_ADDRESS}/adult.data",),
    sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    size=3_974_305,
)
TEST = RemoteFile(
    path="adult/adult.test",
    urls=(f"{_ADDRESS}/adult.test",),
    sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    size=2_003_153,
)


def columns() -> list[Column]:
    """The 14 columns in their order, new and empty."""
    return [
        Numbers("age", 0, 100),
        words("workclass", "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay"
               " Never-worked"),
        Numbers("fnlwgt", 0, 1_500_000),  # people that the record stands for
        words("education", "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th"
               " Masters 1st-4th 10th Doctorate 5th-6th Preschool"),
        Numbers("education-num", 0, 16),
        words("marital-status", "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent"
               " Married-AF-spouse"),
        words("occupation", "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty"
               " Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv"
               " Protective-serv Armed-Forces"),
        words("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
        words("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
        words("sex", "Female Male"),
        Numbers("capital-gain", 0, 100_000),
        Numbers("capital-loss", 0, 5_000),
        Numbers("hours-per-week", 0, 100),
        words("native-country", "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc)"
               " India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico"
               " Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala"
               " Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"),
    ]  # fmt: skip


@dataclass(frozen=True)
class AdultCompleteSource(FileSource):
    """The complete records of Adult; see the module."""

    name: str = "adult_complete"
    title: str = "Adult (census income), the records without a missing value, of length 1"
    files: tuple[RemoteFile, ...] = (TRAIN, TEST)
    train_size: int = 36_178
    test_size: int = 9_044
    classes: int = 2
    input_shape: tuple[int, ...] = (105,)
    sha256: str = "92ec94efa17bd54d548c03c6518c128559f393db200c04ececc8714d1f2f79f3"
    licence: str = "CC BY 4.0"
    citation: str = "B. Becker, R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20"
    url: str = "https://archive.ics.uci.edu/dataset/2/adult"
    real: bool = True
    shared_records: int = 10  # test records that are equal to a training record, each once

    def arrays(self, place: Path) -> Arrays:
        rows = [row for file in self.files for row in complete_rows(read_content(self.name, file, place))]
        inputs = prepared(rows, columns(), 15, record_norm=1.0)
        targets = np.array([cells[-1].startswith(">50K") for _, cells in rows], np.int64)
        train, test = split(len(rows), self.test_size, seed=0)
        return inputs[train], targets[train], inputs[test], targets[test]


def complete_rows(content: bytes) -> Iterator[Row]:
    """The rows without a missing value; the first line of adult.test, which is none, is left out.

    >>> [cells for _, cells in complete_rows(b"|1x3 Cross validator\\n25, Private, <=50K.\\n38, ?, >50K.\\n\\n")]
    [['25', 'Private', '<=50K.']]
    """
    lines = (line for line in content.decode("ascii").splitlines() if not line.startswith("|"))
    return (row for row in rows_of(lines, ",") if not MISSING.intersection(row[1]))


dataset = AdultCompleteSource()
