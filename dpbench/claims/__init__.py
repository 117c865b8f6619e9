"""Claims: numbers, bounds, formulas, inequalities and lines of algorithms that somebody printed, and their verdicts.

| file | |
| --- | --- |
| `claim.py` | what a claim is |
| `ledger.py` | files of `kind: claims` |
| `quantities.py`, `bounds.py`, `renyi_bounds.py` | judged from a composition of events; no code needed |
| `computation.py`, `truth.py`, `formula.py`, `inequality.py`, `demonstration.py` | what a file in `papers/` holds |
| `judge.py` | one claim to its judgement |
| `judging.py` | many claims, in several processes, with records that are resumed |
| `record.py`, `summary.py` | what is written down, and what the report shows of it |
| `twins.py` | false versions of a claim, which must not pass |
"""
