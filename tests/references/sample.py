"""Write every k-th point of the stored tables: `python -m tests.references.sample OUT K`, for what is slow.

The first is the day's number modulo K, so that every point has its turn in K days.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

from dpbench.judging.enclosures import TABLES


def write(out: Path, every: int, first: int) -> int:
    """The tables with fewer points, in a folder; how many points these are."""
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(TABLES.glob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        table["points"] = table["points"][first::every]
        count += len(table["points"])
        (out / path.name).write_text(json.dumps(table), encoding="utf-8")
    return count


if __name__ == "__main__":
    out, every = Path(sys.argv[1]), int(sys.argv[2])
    print(f"{write(out, every, date.today().toordinal() % every)} points in {out}")
