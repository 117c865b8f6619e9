"""Compare `exact` with other libraries on stored points: time, memory and error of one ε, each answer on one core.

    python tests/compare_peers.py [--points 60] [--seconds 60] [--gigabytes 6] [--json OUT.json]

The peers are dp_accounting's PLD, Opacus' PRV and prv_accountant, each on grids from coarse to fine until one reaches
1e-4 relative; who is not installed is named and left out. Every answer comes from a process of its own, with a cap on
memory and time. What is timed is the answer (processor time, the best of a few), not the import. The truth is the ε of
the certified table. Exit status: 0 done, 2 bad input. Run it from the top of the checkout; see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "dpbench" / "references" / "tables" / "certified.json"
REACHED = 1e-4  # the relative error that a peer's answer has to reach
SETTINGS: dict[str, tuple[float, ...]] = {
    "exact": (0.0,),
    "dp_accounting": (1e-3, 1e-4, 1e-5),  # the grid's step
    "opacus": (0.1, 0.01, 0.001, 1e-4),  # the error of ε that is asked for
    "prv_accountant": (0.1, 0.01, 0.001),
}
PEERS = tuple(name for name in SETTINGS if name != "exact")


@dataclass(frozen=True)
class Point:
    """ε at `delta` of sampled Gaussian releases (rate, noise multiplier, count); rate 1 is a plain Gaussian."""

    regime: str
    releases: tuple[tuple[float, float, int], ...]
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Answer:
    """What one library said: ε and the seconds it took, or why there is none."""

    library: str
    setting: float
    epsilon: float | None
    seconds: float
    failure: str | None = None

    def error(self, point: Point) -> float:
        """Relative to the certified ε; infinite without an answer."""
        return abs(self.epsilon / point.epsilon - 1) if self.epsilon is not None else float("inf")


def read_points(table: Mapping[str, Any]) -> list[Point]:
    """The points whose ε is not 0 and that all libraries could take: Gaussian and sampled Gaussian releases."""
    found = []
    for point in table["points"]:
        delta = float(point["upper"])
        releases = tuple(
            (float(part.get("sampling_rate", 1.0)), float(part["noise_multiplier"]), int(part["count"]))
            for part in point["composition"]["parts"]
        )
        plain = all(part.get("adjacency") == "add_or_remove" for part in point["composition"]["parts"])
        if plain and point["epsilon"] > 0 and 1e-31 < delta < 0.99:
            found.append(Point(point["regime"], releases, float(point["epsilon"]), delta))
    return found


def spread(points: Sequence[Point], count: int) -> list[Point]:
    """So many points, the same number of every regime as far as that goes, evenly over each regime's.

    >>> few = [Point(regime, ((1.0, 1.0, 1),), 1.0, 0.1) for regime in "aaaabb"]
    >>> [point.regime for point in spread(few, 4)]
    ['a', 'a', 'b', 'b']
    """
    regimes = list(dict.fromkeys(point.regime for point in points))
    chosen: list[Point] = []
    for place, regime in enumerate(regimes):
        like = [point for point in points if point.regime == regime]
        share = min(len(like), (count - len(chosen)) // (len(regimes) - place))
        chosen += [like[(2 * k + 1) * len(like) // (2 * share)] for k in range(share)]
    return chosen


# ---- in the child: one answer ----


def exact(point: Point, setting: float) -> Callable[[], float]:
    """`exact` of dpbench, on a new curve for every answer."""
    from dpbench.events import Composition, Gaussian, SampledGaussian
    from dpbench.privacy.accountants.exact.accountant import accountant

    del setting  # it has none
    composition = Composition(
        tuple((Gaussian(s) if q == 1 else SampledGaussian(q, s), count) for q, s, count in point.releases)
    )
    accountant.curve(Composition(((SampledGaussian(1e-3, 0.5), 1000),))).epsilon(1e-5)  # loads SciPy's functions
    return lambda: float(accountant.curve(composition).epsilon(point.delta).value)


def dp_accounting(point: Point, setting: float) -> Callable[[], float]:
    """dp_accounting's privacy loss distribution."""
    pld = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")

    def answer() -> float:
        whole: Any = None
        for rate, noise, count in point.releases:
            one = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=setting)
            many = one.self_compose(count)
            whole = many if whole is None else whole.compose(many)
        return float(whole.get_epsilon_for_delta(point.delta))

    return answer


def opacus(point: Point, setting: float) -> Callable[[], float]:
    """Opacus' PRV accountant, as its public call answers: the upper end, `setting` above its estimate."""
    library = importlib.import_module("opacus.accountants")

    def answer() -> float:
        accountant = library.PRVAccountant()
        accountant.history = [(noise, rate, count) for rate, noise, count in point.releases]
        return float(accountant.get_epsilon(point.delta, eps_error=setting))

    return answer


def prv_accountant(point: Point, setting: float) -> Callable[[], float]:
    """prv_accountant's estimate."""
    library = importlib.import_module("prv_accountant")

    def answer() -> float:
        counts = [count for _, _, count in point.releases]
        accountant = library.PRVAccountant(
            [library.PoissonSubsampledGaussianMechanism(rate, noise) for rate, noise, _ in point.releases],
            eps_error=setting,
            delta_error=point.delta / 1000,
            max_self_compositions=counts,
        )
        return float(accountant.compute_epsilon(point.delta, counts)[1])

    return answer


LIBRARIES = {"exact": exact, "dp_accounting": dp_accounting, "opacus": opacus, "prv_accountant": prv_accountant}


def child(library: str, setting: float, point: Point) -> dict[str, float]:
    """The answer and the processor time that it took, the best of three where one takes less than a second."""
    answer = LIBRARIES[library](point, setting)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        epsilon = answer()
        best = min(best, time.process_time() - start)
        if best > 1:
            break
    return {"epsilon": epsilon, "seconds": best}


# ---- in the parent ----


def ask(library: str, setting: float, point: Point, seconds: float, gigabytes: float) -> Answer:
    """One answer from a process of its own."""

    def capped() -> None:
        import resource  # there is none on Windows

        limit = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, __file__, "--child", json.dumps([library, setting, asdict(point)])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **threads},
            preexec_fn=capped,
        )
    except subprocess.TimeoutExpired:
        return Answer(library, setting, None, seconds, f"more than {seconds:g} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        memory = "Memory" in last or "allocate" in last or done.returncode < 0
        return Answer(library, setting, None, 0.0, f"more than {gigabytes:g} GB" if memory else last[:60])
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return Answer(library, setting, said["epsilon"], said["seconds"])


def compare(point: Point, libraries: Sequence[str], seconds: float, gigabytes: float) -> list[Answer]:
    """Every library's answers, from the coarsest setting to the first that reaches REACHED."""
    found = []
    for library in libraries:
        for setting in SETTINGS[library]:
            answer = ask(library, setting, point, seconds, gigabytes)
            found.append(answer)
            if answer.error(point) <= REACHED or answer.failure is not None:
                break  # a finer grid takes longer still
    return found


def ratio(point: Point, answers: Sequence[Answer]) -> float | None:
    """How many times longer than `exact` the fastest peer takes that reaches REACHED; None where none does.

    >>> point = Point("ordinary", ((0.01, 1.0, 100),), 1.0, 1e-5)
    >>> coarse, fine = Answer("opacus", 0.1, 1.01, 0.1), Answer("opacus", 0.01, 1.0, 2.0)
    >>> ratio(point, [Answer("exact", 0.0, 1.0, 0.01), coarse, fine])
    200.0
    """
    (ours,) = (answer for answer in answers if answer.library == "exact")
    peers = [answer.seconds for answer in answers if answer.library != "exact" and answer.error(point) <= REACHED]
    return min(peers) / ours.seconds if peers else None


def line(point: Point, answers: Sequence[Answer]) -> str:
    """One row of the table."""
    cells = []
    for answer in answers:
        name = answer.library if answer.library == "exact" else f"{answer.library} {answer.setting:g}"
        said = answer.failure or f"{answer.seconds:.4f} s, off by {answer.error(point):.0e}"
        cells.append(f"{name}: {said}")
    times = ratio(point, answers)
    rate, noise, count = point.releases[0]
    more = f" +{len(point.releases) - 1}" if len(point.releases) > 1 else ""
    where = f"{point.regime}: q={rate:g} sigma={noise:g} T={count}{more} delta={point.delta:.0e}"
    return f"{where} | {' | '.join(cells)} | {'no peer reaches 1e-4' if times is None else f'{times:.1f} times'}"


def summary(rows: Sequence[tuple[Point, Sequence[Answer]]]) -> str:
    """The medians, and how often a peer had no answer."""
    ratios = [times for point, answers in rows if (times := ratio(point, answers)) is not None]
    ours = [answer.seconds for _, answers in rows for answer in answers if answer.library == "exact"]
    lines = [
        f"{len(rows)} points; exact: median {statistics.median(ours) * 1e3:.1f} ms, worst {max(ours) * 1e3:.1f} ms"
    ]
    for library in dict.fromkeys(answer.library for _, answers in rows for answer in answers):
        told = [[(a, a.error(point)) for a in answers if a.library == library] for point, answers in rows]
        reached = sum(any(error <= REACHED for _, error in one) for one in told)
        failed = [a.failure for one in told for a, _ in one if a.failure is not None]
        lines.append(f"{library}: reaches 1e-4 at {reached} of {len(rows)} points; {len(failed)} without an answer")
    lines.append(f"points where no peer reaches 1e-4: {len(rows) - len(ratios)}")
    everywhere = statistics.median(ratios + [float("inf")] * (len(rows) - len(ratios)))
    lines.append(f"median over all points, where no peer does counting as infinite: {everywhere:.1f}")
    if ratios:
        lines.append(
            f"median over the others of (fastest peer that reaches 1e-4) / exact: {statistics.median(ratios):.1f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask everyone at every point, and print the table as it grows."""
    parser = argparse.ArgumentParser(description="Compare exact with other libraries.")
    parser.add_argument("--points", type=int, default=60, help="how many stored points, spread over the regimes")
    parser.add_argument("--seconds", type=float, default=60.0, help="cap of one answer")
    parser.add_argument("--gigabytes", type=float, default=6.0, help="cap of one process's memory")
    parser.add_argument("--json", type=Path, help="also write every answer there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        library, setting, fields = json.loads(chosen.child)
        fields["releases"] = tuple(tuple(release) for release in fields["releases"])
        print(json.dumps(child(library, setting, Point(**fields))))
        return 0
    if chosen.points < 1 or chosen.seconds <= 0 or chosen.gigabytes <= 0:
        print("error: --points, --seconds and --gigabytes are larger than 0", file=sys.stderr)
        return 2
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"{name} is not installed here: left out")
    libraries = [name for name in SETTINGS if name not in missing]
    rows: list[tuple[Point, list[Answer]]] = []
    for point in spread(read_points(json.loads(TABLE.read_text(encoding="utf-8"))), chosen.points):
        rows.append((point, compare(point, libraries, chosen.seconds, chosen.gigabytes)))
        print(line(*rows[-1]), flush=True)
        if chosen.json:
            told = [{"point": asdict(p), "answers": [asdict(answer) for answer in answers]} for p, answers in rows]
            chosen.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
