"""KDD Cup 1999: network connections, is one a part of a denial-of-service attack?

70,000 connections as pidp2021 counts them (Section 7). It says neither which they are nor which classes; its number is
that of Chaudhuri, Monteleoni and Sarwate (2011), which it cites, and from there are the two classes: an attack of
denial of service (back, land, neptune, pod, smurf, teardrop), or anything else. Here they are drawn at random, by
`_table.split` with seed 0, of the 494,021 connections of `kddcup.data_10_percent.gz`, and a fifth of them, with seed 1,
are test records. Both are ours.

118 inputs: 38 numbers, and one indicator for each of 3 protocols, 66 services and 11 states, those of the published
file. (Chaudhuri and others have 119.) Numbers are scaled by the bounds below, which are round: the windows of the
features have at most 511 and 255 connections, rates are shares, the others are cut. Then every record is shortened to
length 1 (L2). So each record is prepared alone. Many connections are equal, so that test records are training records
too; `shared_records` counts the different ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbench.datasets._base import Arrays, FileSource, RemoteFile, read_content
from dpbench.datasets._table import Column, Numbers, prepared, rows_of, split, words

NUMERICS = 1

SIZE = 70_000
DENIAL_OF_SERVICE = frozenset({"back.", "land.", "neptune.", "pod.", "smurf.", "teardrop."})
FILE = RemoteFile(
    path="kddcup99/kddcup.data_10_percent.gz",
    urls=(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/kddcup99-mld/kddcup.data_10_percent.gz",
        "http://kdd.ics.uci.edu/databases/kddcup99/kddcup.data_10_percent.gz",
        "https://ndownloader.figshare.com/files/5976042",
    ),
    sha256="8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
    size=2_144_903,
    unpacked_path="kddcup99/kddcup.data_10_percent",
    unpacked_sha256="f8c8267ebcd9c0ed1fd7d6277fe5bfff8732e9b7db8e61b873542b2a534b6f9a",
)
_SERVICES = (
    "IRC X11 Z39_50 auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs exec finger ftp"
    " ftp_data gopher hostnames http http_443 imap4 iso_tsap klogin kshell ldap link login mtp name netbios_dgm"
    " netbios_ns netbios_ssn netstat nnsp nntp ntp_u other pm_dump pop_2 pop_3 printer private red_i remote_job rje"
    " shell smtp sql_net ssh sunrpc supdup systat telnet tftp_u tim_i time urh_i urp_i uucp uucp_path vmnet whois"
)


def columns() -> list[Column]:
    """The 41 columns of the inputs in the order of kddcup.names, new and empty."""
    return [
        Numbers("duration", 0, 60_000),  # seconds
        words("protocol_type", "icmp tcp udp"),
        words("service", _SERVICES),
        words("flag", "OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH"),
        Numbers("src_bytes", 0, 100_000),
        Numbers("dst_bytes", 0, 100_000),
        Numbers("land", 0, 1),
        Numbers("wrong_fragment", 0, 3),
        Numbers("urgent", 0, 10),
        Numbers("hot", 0, 100),
        Numbers("num_failed_logins", 0, 5),
        Numbers("logged_in", 0, 1),
        Numbers("num_compromised", 0, 100),
        Numbers("root_shell", 0, 1),
        Numbers("su_attempted", 0, 2),
        Numbers("num_root", 0, 100),
        Numbers("num_file_creations", 0, 100),
        Numbers("num_shells", 0, 10),
        Numbers("num_access_files", 0, 10),
        Numbers("num_outbound_cmds", 0, 10),
        Numbers("is_host_login", 0, 1),
        Numbers("is_guest_login", 0, 1),
        *(Numbers(name, 0, 511) for name in ("count", "srv_count")),
        *(Numbers(f"{name}_rate", 0, 1) for name in ("serror", "srv_serror", "rerror", "srv_rerror", "same_srv",
                                                     "diff_srv", "srv_diff_host")),
        *(Numbers(name, 0, 255) for name in ("dst_host_count", "dst_host_srv_count")),
        *(Numbers(f"dst_host_{name}_rate", 0, 1) for name in ("same_srv", "diff_srv", "same_src_port", "srv_diff_host",
                                                              "serror", "srv_serror", "rerror", "srv_rerror")),
    ]  # fmt: skip


@dataclass(frozen=True)
class KddCup99Source(FileSource):
    """The network connections; see the module."""

    name: str = "kddcup99"
    title: str = "KDD Cup 1999, 70,000 network connections, denial of service or not, records of length 1"
    files: tuple[RemoteFile, ...] = (FILE,)
    train_size: int = 56_000
    test_size: int = 14_000
    classes: int = 2
    input_shape: tuple[int, ...] = (118,)
    sha256: str = "710f5e73f2ec64adb8dd423e52032ce52810be139c6552898e0a3b89eb5a5a62"
    licence: str = "CC BY 4.0"
    citation: str = (
        "S. Stolfo, W. Fan, W. Lee, A. Prodromidis, P. Chan, KDD Cup 1999 Data, UCI Machine Learning Repository, 1999,"
        " doi:10.24432/C51C7N"
    )
    url: str = "https://archive.ics.uci.edu/dataset/130/kdd+cup+1999+data"
    real: bool = True
    shared_records: int = 1_032  # test records that are equal to a training record, each once

    def arrays(self, place: Path) -> Arrays:
        lines = read_content(self.name, FILE, place).decode("ascii").splitlines()
        _, chosen = split(len(lines), SIZE, seed=0)
        rows = list(rows_of((lines[place] for place in chosen), ","))
        inputs = prepared(rows, columns(), 42, record_norm=1.0)
        targets = np.array([cells[-1] in DENIAL_OF_SERVICE for _, cells in rows], np.int64)
        train, test = split(SIZE, self.test_size, seed=1)
        return inputs[train], targets[train], inputs[test], targets[test]


dataset = KddCup99Source()
