"""Claims: numbers, bounds, formulas, inequalities and lines of algorithms that somebody printed, and their verdicts.

| file | |
| --- | --- |
| `claim.py` | what a claim is |
| `grammar.py`, `reading.py` | files of `kind: claims` |
| `quantities.py`, `bounds.py` | judged from a composition of events; no code needed |
| `expressions.py` | judged by arithmetic with printed numbers; no code needed |
| `judges.py`, `search.py` | decorators of the functions that judge the rest, in `judging/papers/` |
| `controls.py` | negative controls: other printed numbers and planted mistakes, which have to change the verdict |
| `judge.py` | judges one claim |
| `judging.py` | judges many claims, in several processes, with records |
| `record.py`, `summary.py` | stored verdicts, and what the report shows of them |
"""
