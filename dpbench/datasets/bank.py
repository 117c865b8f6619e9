"""Bank: 41,188 telephone calls of a Portuguese bank, did the client subscribe a deposit? (`bank-additional-full.csv`)

What pidp2021 counts (Section 7). Its split is random and unsaid; here a fifth are test records, chosen by
`_table.split` with seed 0. The 20 columns include `duration`, which is known only after the call and says much about
its end; the paper does not say that it is left out.

65 inputs: 10 numbers, and one indicator for each category that bank-additional-names.txt lists (all twelve months, of
which ten occur; `unknown` is a category). Numbers are scaled by the bounds below, which are round and from what the
columns mean, then every record is shortened to length 1 (L2). So each record is prepared alone, and nothing of it costs
privacy; pidp2021 does not say how it prepares them.

UCI's archive holds an archive that holds the table. A `bank-additional.zip`, packed by whomever, or the table itself in
the same folder are read too: what is verified is the SHA-256 of the table.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import (
    Arrays,
    DatasetCorrupt,
    DatasetMissing,
    FileSource,
    RemoteFile,
    fetch_command,
    read_file,
)
from dpbench.datasets._table import Column, Numbers, prepared, rows_of, split, words

NUMERICS = 1

TABLE = "bank-additional-full.csv"
_TABLE_SHA256 = "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8"


@dataclass(frozen=True)
class NestedZip(RemoteFile):
    """A table inside an archive inside an archive; it is verified itself, whoever packed it.

    `inside` are the names of the table's archives and of the table, from the outermost one; `others` are paths in the
    data folder of what else may lie there, from the published file to the table.
    """

    inside: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def locate(self, folder: Path) -> Path | None:
        found = super().locate(folder)
        return found or next((folder / path for path in self.others if (folder / path).is_file()), None)

    def pinned_sha256(self, found: Path) -> str:
        del found
        return self.unpacked_sha256

    def digest(self, found: Path) -> str:
        try:
            return hashlib.sha256(self.table(found)).hexdigest()
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
            return "no whole archive of the table"

    def table(self, found: Path) -> bytes:
        """The table's bytes; those of an archive that does not hold it. Raises BadZipFile for a damaged archive."""
        content = read_file(found)
        for name in self.inside:
            if content.startswith(b"PK"):
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    content = archive.read(name) if name in archive.namelist() else content
        return content


FILE = NestedZip(
    path="bank/bank+marketing.zip",
    urls=("https://archive.ics.uci.edu/static/public/222/bank+marketing.zip",),
    sha256="e0bf5f5de5b846e2f18e9d90606637267d46dfa260e0f17bb12e605db5efbeb4",
    size=1_023_843,
    unpacked_path=f"bank/{TABLE}",
    unpacked_sha256=_TABLE_SHA256,
    inside=("bank-additional.zip", f"bank-additional/{TABLE}"),
    others=("bank/bank-additional.zip", f"bank/bank-additional/{TABLE}"),
)


def columns() -> list[Column]:
    """The 20 columns of the inputs in their order, new and empty."""
    return [
        Numbers("age", 0, 100),
        words("job", "admin. blue-collar entrepreneur housemaid management retired self-employed services student"
               " technician unemployed unknown"),
        words("marital", "divorced married single unknown"),
        words("education", "basic.4y basic.6y basic.9y high.school illiterate professional.course university.degree"
               " unknown"),
        words("default", "no yes unknown"),
        words("housing", "no yes unknown"),
        words("loan", "no yes unknown"),
        words("contact", "cellular telephone"),
        words("month", "jan feb mar apr may jun jul aug sep oct nov dec"),
        words("day_of_week", "mon tue wed thu fri"),
        Numbers("duration", 0, 3_600),  # seconds
        Numbers("campaign", 0, 50),  # calls
        Numbers("pdays", 0, 999),  # days since the last campaign, 999 for none
        Numbers("previous", 0, 10),
        words("poutcome", "failure nonexistent success"),
        Numbers("emp.var.rate", -5, 5),  # the last five are published statistics of the country
        Numbers("cons.price.idx", 90, 100),
        Numbers("cons.conf.idx", -100, 0),
        Numbers("euribor3m", 0, 10),
        Numbers("nr.employed", 4_500, 5_500),
    ]  # fmt: skip


@dataclass(frozen=True)
class BankSource(FileSource):
    """The bank's calls; see the module."""

    name: str = "bank"
    title: str = "Bank marketing, telephone calls with their outcome, records of length 1"
    files: tuple[RemoteFile, ...] = (FILE,)
    train_size: int = 32_950
    test_size: int = 8_238
    classes: int = 2
    input_shape: tuple[int, ...] = (65,)
    sha256: str = "506b11613b7222b363c1fb37172651580acb6c130cb7d0ce113785be08eb2095"
    licence: str = "CC BY 4.0"
    citation: str = (
        "S. Moro, P. Cortez, P. Rita, A data-driven approach to predict the success of bank telemarketing, Decision"
        " Support Systems 62, 2014; UCI Machine Learning Repository, doi:10.24432/C5K306"
    )
    url: str = "https://archive.ics.uci.edu/dataset/222/bank+marketing"
    real: bool = True
    shared_records: int = 1  # test records that are equal to a training record, each once

    def arrays(self, place: Path) -> Arrays:
        found = FILE.locate(place)
        if found is None:
            raise DatasetMissing(self.name, self.files, place)
        if (digest := FILE.digest(found)) != _TABLE_SHA256:
            again = f"get it again with: {fetch_command(self.name, place)}"
            raise DatasetCorrupt(self.name, str(found), f"SHA-256 of {TABLE}", _TABLE_SHA256, digest, again)
        lines = FILE.table(found).decode("ascii").splitlines()
        rows = list(rows_of(lines[1:], ";"))
        inputs = prepared(rows, columns(), 21, record_norm=1.0)
        targets = np.array([cells[-1] == "yes" for _, cells in rows], np.int64)
        train, test = split(len(rows), self.test_size, seed=0)
        return inputs[train], targets[train], inputs[test], targets[test]


dataset = BankSource()
