"""What jl2021 says of its own tables, judged by the printed numbers; the numbers themselves are judged by runs."""

from __future__ import annotations

from dpbench.claims.demonstration import Demonstration, Shown

# Table 4, memory of AlexNet in percent of 16 GB
MEMORY = {"sgd": 12, "vanilla": 38, "outer": 75, "jl_jvp": 15, "jl_double_vjp": 22}
# seconds per epoch by jvp and by double vjp: Table 2, Table 4 (CNN, AlexNet), Table 5; r = 1 and 10
SECONDS = ((6.6, 78), (38, 657), (3, 14), (20, 22), (43, 26), (182, 105), (20, 212), (106, 1946))


def _ratio(more: float, less: float, stated: float, unit: float, slack: float) -> Shown:
    """Whether more/less, both rounded to `unit`, is about `stated`."""
    lowest, highest = (more - unit / 2) / (less + unit / 2), (more + unit / 2) / (less - unit / 2)
    middle = more / less
    evidence = {"ratio": middle, "lowest": lowest, "highest": highest, "stated": stated, "slack": slack}
    inside = abs(middle / stated - 1) <= slack
    possible = lowest <= stated * (1 + slack) and highest >= stated * (1 - slack)
    holds = True if inside else None if possible else False
    return Shown(holds, f"{more:g}/{less:g} = {middle:.4g}, stated is about {stated:g}", middle, evidence)


imdb_speedup = Demonstration(
    lambda: _ratio(13931, 38, 350, 1, 0.1), twin=lambda: _ratio(13931, 38, 35, 1, 0.1)
)  # Table 3
mnist_speedup = Demonstration(lambda: _ratio(50, 3, 20, 1, 0.05), twin=lambda: _ratio(50, 3, 40, 1, 0.05))  # Table 4
seconds_by_jvp = Demonstration(lambda: _ratio(106, 10, 11, 1, 0.1), twin=lambda: _ratio(106, 10, 20, 1, 0.1))  # Table 5
seconds_by_vjp = Demonstration(lambda: _ratio(1946, 10, 180, 1, 0.1), twin=lambda: _ratio(1946, 10, 90, 1, 0.1))


def _beyond_batch(more: float, less: float, batch: float) -> Shown:
    """Whether the printed speed-up exceeds the batch size, rounding included."""
    lowest = (more - 0.5) / (less + 0.5)
    return Shown(lowest > batch, f"at least {lowest:.4g}, the batch has {batch:g} records", lowest)


speedup_beyond_batch = Demonstration(
    lambda: _beyond_batch(13931, 38, 256), twin=lambda: _beyond_batch(13931, 100, 256)
)  # Table 3, r = 1; the twin is r = 4


def _memory(who: str, at_most: float, against: str) -> Shown:
    """Whether it takes at most `at_most` times the memory of `against`, rounding included."""
    factor, least = MEMORY[who] / MEMORY[against], (MEMORY[who] - 0.5) / (MEMORY[against] + 0.5)
    holds = False if least > at_most else factor <= at_most
    words = f"{MEMORY[who]} % against {MEMORY[against]} % of 16 GB, {factor:.3g} times as much"
    return Shown(
        holds, words, factor, {"least_with_rounding": least, "allowed": at_most}, {"printed": factor, "least": least}
    )


outer_saves_memory = Demonstration(
    lambda: _memory("outer", 1.0, "vanilla"), twin=lambda: _memory("jl_jvp", 1.0, "vanilla")
)
jl_memory_of_sgd = Demonstration(lambda: _memory("jl_jvp", 1.05, "sgd"), twin=lambda: _memory("sgd", 1.05, "sgd"))
outer_needs_more = Demonstration(
    lambda: Shown(MEMORY["outer"] > max(MEMORY["vanilla"], MEMORY["sgd"]), "75 % against 38 % and 12 %", 75 / 38),
    twin=lambda: Shown(MEMORY["jl_jvp"] > max(MEMORY["vanilla"], MEMORY["sgd"]), "15 % against 38 % and 12 %", 15 / 38),
)


def _usually(reverse: bool) -> Shown:
    faster = sum((b < a) if reverse else (a < b) for a, b in SECONDS)
    return Shown(faster > len(SECONDS) / 2, f"in {faster} of {len(SECONDS)} printed pairs", faster, {"pairs": SECONDS})


jvp_usually_faster = Demonstration(lambda: _usually(False), twin=lambda: _usually(True))


def _same_parameters(ours: tuple[float, ...]) -> Shown:
    """Batch, σ, C, learning rate, epochs against the first row of Table 1 of bu2020."""
    theirs = (256, 1.3, 1.5, 0.25, 15)
    return Shown(ours == theirs, f"{ours} against {theirs}", None, {"jl2021": list(ours), "bu2020": list(theirs)})


same_parameters = Demonstration(
    lambda: _same_parameters((256, 1.3, 1.5, 0.25, 15)), twin=lambda: _same_parameters((256, 1.1, 1.0, 0.15, 60))
)
