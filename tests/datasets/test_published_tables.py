"""Internal: the published files are megabytes of other people's, for which rows written here stand in.

Published tables: each cell to its input by public bounds and categories, records of length 1, and damaged archives.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dpbench.datasets import DatasetCorrupt, DatasetMissing, adult_complete, bank, check, fetch, kddcup99
from dpbench.datasets._table import Categories, Numbers, lengths, prepared, rows_of
from dpbench.errors import DpbenchError

TABLES = (adult_complete, bank, kddcup99)
# Invented rows: the numbers are no record's.
ROW = {
    adult_complete: "33, Without-pay, 123456, 9th, 5, Widowed, Armed-Forces, Wife, Other, Male, 777, 0, 140, Peru,"
    " <=50K",
    bank: '20;"housemaid";"unknown";"illiterate";"no";"yes";"unknown";"telephone";"jan";"fri";7200;60;12;3;"failure";'
    '-1.5;95.5;-42;2.5;5000;"no"',
    kddcup99: "600,udp,X11,S3,181,200000,0,0,0,0,0,1,0,0,0,0,0,0,0,0,0,0,511,77"
    f"{',0.25' * 7},51,255{',0.75' * 8},normal.",
}


def inputs(module: ModuleType, text: str, **more: Any) -> np.ndarray:
    delimiter = ";" if module is bank else ","
    rows = list(rows_of([text], delimiter))
    columns = module.columns()
    return prepared(rows, columns, len(columns) + 1, **more)


@pytest.mark.parametrize("module", TABLES)
def test_a_row_becomes_its_numbers_within_bounds_and_one_indicator_a_category(module: ModuleType) -> None:
    """Each input stands where its column begins; a number is (x − low) / (high − low), cut to [0, 1]."""
    (found,) = inputs(module, ROW[module])
    assert found.shape == module.dataset.input_shape
    cells = next(rows_of([ROW[module]], ";" if module is bank else ","))[1]
    place = 0
    for column, cell in zip(module.columns(), cells, strict=False):
        if isinstance(column, Numbers):
            expected = [min(max((float(cell) - column.low) / (column.high - column.low), 0.0), 1.0)]
        else:
            expected = [float(category == cell) for category in column.categories]
            assert sum(expected) == 1
        assert found[place : place + len(expected)] == pytest.approx(expected, abs=1e-7)
        place += len(expected)
    assert place == len(found)


@pytest.mark.parametrize("module", TABLES)
def test_a_record_is_prepared_alone_and_has_length_1(module: ModuleType) -> None:
    (alone,) = inputs(module, ROW[module], record_norm=1.0)
    assert lengths(alone[None].astype(np.float64))[0] == pytest.approx(1.0, abs=1e-6)
    delimiter = ";" if module is bank else ","
    other = ROW[module].replace("Male", "Female").replace("housemaid", "admin.").replace("181", "99999")
    columns = module.columns()
    both = prepared(rows_of([ROW[module], other], delimiter), columns, len(columns) + 1, record_norm=1.0)
    assert both[0].tobytes() == alone.tobytes()
    assert both[1].tobytes() != alone.tobytes()


@pytest.mark.parametrize("module", TABLES)
def test_no_column_is_without_a_bound_or_a_list(module: ModuleType) -> None:
    """What is left to the data would be in no ε."""
    for column in module.columns():
        if isinstance(column, Categories):
            assert len(set(column.categories)) == len(column.categories) > 1
        else:
            assert math.isfinite(column.low) and math.isfinite(column.high) and column.low < column.high  # noqa: PT018


def test_an_unknown_category_is_refused() -> None:
    with pytest.raises(
        DpbenchError, match=r"1 cell is none of the values Female, Male, the first in line 1, .*'Other'"
    ):
        inputs(adult_complete, ROW[adult_complete].replace("Male", "Other"))


def test_rows_without_a_value_are_left_out_of_the_complete_records() -> None:
    text = f"|1x3 Cross validator\n{ROW[adult_complete]}.\n{ROW[adult_complete].replace('Peru', '?')}\n\n"
    (row,) = adult_complete.complete_rows(text.encode())
    assert row[1][-1] == "<=50K."


def packed(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


TABLE = b"a;y\n1;no\n"
INNER = packed(**{f"bank-additional/{bank.TABLE}": TABLE})
OUTER = packed(**{"bank.zip": b"other", "bank-additional.zip": INNER})


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("bank/bank+marketing.zip", OUTER),
        ("bank/bank-additional.zip", INNER),
        (f"bank/{bank.TABLE}", TABLE),
        (f"bank/bank-additional/{bank.TABLE}", TABLE),
    ],
)
def test_the_table_of_the_bank_is_verified_in_whatever_it_lies(path: str, content: bytes, tmp_path: Path) -> None:
    file = replace(bank.FILE, unpacked_sha256=hashlib.sha256(TABLE).hexdigest())
    assert file.locate(tmp_path) is None
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(content)
    found = file.locate(tmp_path)
    assert found == tmp_path / path
    assert file.table(found) == TABLE
    source = replace(bank.dataset, files=(file,))
    assert [status.state for status in check(source, tmp_path)] == ["ok"]
    assert fetch(source, tmp_path) == ()  # nothing is due
    assert [status.state for status in check(bank.dataset, tmp_path)] == ["corrupt"]
    with pytest.raises(DatasetCorrupt, match=r"SHA-256 of bank-additional-full\.csv"):
        bank.dataset.load(tmp_path)


@pytest.mark.parametrize("content", [b"PK\x03\x04", OUTER[:-9], packed(other=b"1"), b""])
def test_a_damaged_archive_of_the_bank_is_corrupt(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match="dpbench data fetch bank"):
        bank.dataset.load(tmp_path)
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "bank+marketing.zip").write_bytes(content)
    with pytest.raises(DatasetCorrupt, match="get it again with: dpbench data fetch bank"):
        bank.dataset.load(tmp_path)
    assert [status.state for status in check(bank.dataset, tmp_path)] == ["corrupt"]
