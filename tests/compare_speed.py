"""Compare the speed of two commits: asv in interleaved rounds, suspects measured again, accepted slowdowns excused.

    python tests/compare_speed.py [BASE [HEAD]] [--bench REGEX] [--rounds 4] [--factor 1.3]

BASE is the newest commit that is known to have passed CI (tests/speed/last_passed.txt) unless it is given, HEAD the
last commit. Exit status: 0 nothing is slower, 1 something is, 2 asv failed. Where a clone without history lacks BASE,
nothing is compared: 0, but 2 under CI (the environment variable). Run it from the top of the checkout;
docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ACCEPTED = "tests/speed/accepted_slowdowns.txt"
PASSED = "tests/speed/last_passed.txt"
_LINE = re.compile(r"^(?P<factor>\d+(\.\d+)?)\s+(?P<benchmark>\S.*?)\s+#\s*(?P<reason>\S.*)$")


@dataclass(frozen=True)
class Accepted:
    """One line of the file of accepted slowdowns: up to `factor` times slower, and why."""

    factor: float
    benchmark: str
    reason: str

    def covers(self, benchmark: str, ratio: float) -> bool:
        """Brackets are no wildcards here, as names of benchmarks may contain them."""
        return ratio <= self.factor and fnmatch.fnmatchcase(benchmark, self.benchmark.replace("[", "[[]"))


def parse_accepted(text: str) -> tuple[Accepted, ...]:
    """The lines that are neither empty nor comments. Raises ValueError that names every bad one.

    >>> parse_accepted("1.6  draws.Poisson.*  # more bits")
    (Accepted(factor=1.6, benchmark='draws.Poisson.*', reason='more bits'),)
    """
    found, bad = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line.strip())
        if match is None or float(match["factor"]) <= 1:
            bad.append(f"line {number}: {line.strip()!r}: expected `FACTOR  BENCHMARK  # REASON` with a factor above 1")
        else:
            found.append(Accepted(float(match["factor"]), match["benchmark"], match["reason"]))
    if bad:
        raise ValueError(f"{ACCEPTED}: " + "; ".join(bad))
    return tuple(found)


def parse_slower(table: str) -> dict[str, float]:
    """The benchmarks that asv's table marks as slower (`+`) or as failing now (`!`), with their ratio (`!`: inf).

    >>> parse_slower("| + | 10.0±0.1ms | 20.1±0.1ms | 2.01 | training.MlpOnDigits.time_step(16) |")
    {'training.MlpOnDigits.time_step(16)': 2.01}
    """
    slower = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0] in ("+", "!"):
            slower[cells[4]] = float("inf") if cells[0] == "!" else float(cells[3])
    return slower


def excused(slower: Mapping[str, float], accepted: Sequence[Accepted]) -> dict[str, Accepted]:
    """Which of the slower benchmarks a line covers, and the line."""
    found = {}
    for benchmark, ratio in slower.items():
        line = next((line for line in accepted if line.covers(benchmark, ratio)), None)
        if line is not None:
            found[benchmark] = line
    return found


def git(*arguments: str) -> str | None:
    """What git prints, None where it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def last_passed() -> str:
    """The commit that PASSED names. Raises ValueError where it names none of this clone's."""
    lines = [line.split("#")[0].strip() for line in Path(PASSED).read_text(encoding="utf-8").splitlines()]
    named = [line for line in lines if line]
    if len(named) != 1 or git("cat-file", "-e", f"{named[0]}^{{commit}}") is None:
        raise ValueError(f"{PASSED}: expected one commit of this clone, found {', '.join(named) or 'none'}")
    return named[0]


def newly_accepted(base: str, head: str) -> tuple[Accepted, ...]:
    """The accepted slowdowns of `head` that `base` did not have."""
    before = parse_accepted(git("show", f"{base}:{ACCEPTED}") or "")
    return tuple(line for line in parse_accepted(git("show", f"{head}:{ACCEPTED}") or "") if line not in before)


def measure(base: str, head: str, *, bench: str | None, rounds: int, factor: float) -> dict[str, float]:
    """One `asv continuous`: the benchmarks that are slower in `head`. Raises RuntimeError when asv fails."""
    command = [sys.executable, "-m", "asv", "continuous", base, head, "--interleave-rounds", "--factor", str(factor)]
    command += ["--attribute", f"rounds={rounds}", *(["--bench", bench] if bench else [])]
    print("$", *command[2:], flush=True)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    table = "".join(lines)
    slower = parse_slower(table)
    if "PERFORMANCE DECREASED" not in table and process.returncode != 0:
        raise RuntimeError(f"asv ended with status {process.returncode}")
    return slower


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, measure the suspects again with twice the rounds, and say what is slower both times."""
    parser = argparse.ArgumentParser(description="Compare the speed of two commits.")
    parser.add_argument("base", nargs="?", help=f"the older commit; the one in {PASSED} unless given")
    parser.add_argument("head", nargs="?", default="HEAD", help="the newer commit; HEAD unless given")
    parser.add_argument("--bench", help="only benchmarks that match this regular expression")
    parser.add_argument("--rounds", type=int, default=4, help="of interleaved processes; fewer than 4 say little")
    parser.add_argument("--factor", type=float, default=1.3, help="a smaller ratio of times is no slowdown")
    chosen = parser.parse_args(arguments)
    try:
        base = chosen.base or last_passed()
    except ValueError as error:
        if os.environ.get("CI") or (git("rev-parse", "--is-shallow-repository") or "").strip() != "true":
            print(f"error: {error}", file=sys.stderr)
            return 2
        print("this clone has no history, so nothing is compared")
        return 0
    try:
        accepted = newly_accepted(base, chosen.head)
        slower = measure(base, chosen.head, bench=chosen.bench, rounds=chosen.rounds, factor=chosen.factor)
        if slower:
            suspects = "|".join(sorted({f"^{re.escape(name.partition('(')[0])}\\b" for name in slower}))
            again = measure(base, chosen.head, bench=suspects, rounds=2 * chosen.rounds, factor=chosen.factor)
            slower = {name: ratio for name, ratio in again.items() if name in slower}
    except (RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    fine = excused(slower, accepted)
    for name, ratio in slower.items():
        word = f"accepted ({fine[name].reason})" if name in fine else "SLOWER"
        print(f"{word}: {name}, {ratio:g} times")
    if len(slower) == len(fine):
        print(f"nothing else is slower than {chosen.factor:g} times" if fine else "nothing is slower")
        return 0
    print(f"If that is the price of something better, add a line to {ACCEPTED} in the same commit.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
