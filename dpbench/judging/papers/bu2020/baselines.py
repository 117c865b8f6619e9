"""Table 4's models without privacy: those of the Surprise library (Hug 2017) "in their default settings".

| printed | in the library |
| --- | --- |
| SVD | `SVD`: 100 factors and biases, 20 epochs |
| NMF | `NMF`: 15 factors, 50 epochs |
| user-based CF | `KNNBasic`: the 40 users with the least mean squared difference |
| global average | the mean of the training ratings; the library has no such model |

The paper draws a fifth of the ratings as test records and names no seed; its published code has one, which makes the
dataset's split, but whether the library's models were run with it is not known. So the fifth is drawn several times:
first as the dataset has it, on which the networks are trained and tested, then with other seeds.
The library predicts one rating at a time: `KNNBasic` takes about two minutes for one fifth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from dpbench.datasets import DatasetMissing, data_folder, find_dataset
from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.comparisons import difference
from dpbench.judging.claims.judges import CannotRun, Shown, shown
from dpbench.judging.reproduction import metric_verdict
from dpbench.spec.keys import Printed as PrintedResult
from dpbench.tasks import METRICS

AVERAGE, DRAWN = "average", ("SVD", "NMF")  # these have random initial values
PRIVATE = "private networks"
STARS = (1, 5)


@cache
def ratings() -> tuple[NDArray[np.int64], int]:
    """User, film and stars of all ratings, those of the dataset's training part first, and how many these are."""
    source = find_dataset("movielens")
    try:
        data = source.load(data_folder())
    except DatasetMissing as error:
        raise CannotRun(f"needs the ratings: {str(error).splitlines()[0]}") from None
    parts = [(data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)]
    rows = [np.column_stack([inputs.numpy(), targets.numpy() + 1]).astype(np.int64) for inputs, targets in parts]
    return np.concatenate(rows), len(rows[0])


def fifth(number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test ratings of one draw of the test records; number 0 is the dataset's."""
    every, first = ratings()
    order = np.random.RandomState(number).permutation(len(every)) if number else np.arange(len(every))
    return every[np.sort(order[:first])], every[np.sort(order[first:])]


def rmse_of(model: str, train: NDArray[np.int64], test: NDArray[np.int64], state: int = 0) -> float:
    """The RMSE, in stars, of a model that is fitted to some ratings (user, film, stars), on others."""
    if model == AVERAGE:
        return float(np.sqrt(np.mean((test[:, 2] - train[:, 2].mean()) ** 2)))
    try:
        surprise = import_module("surprise")
    except ModuleNotFoundError:
        raise CannotRun("needs the Surprise library: pip install 'dpbench[peers]'") from None
    whole = surprise.Dataset(surprise.Reader(rating_scale=STARS))
    fitted = getattr(surprise, model)(**({"random_state": state} if model in DRAWN else {"verbose": False}))
    fitted.fit(whole.construct_trainset([(*row, None) for row in train.tolist()]))
    found = fitted.test([(user, film, float(stars)) for user, film, stars in test.tolist()])
    return math.sqrt(math.fsum((one.r_ui - one.est) ** 2 for one in found) / len(found))


@cache
def of_draw(model: str, number: int, state: int) -> float:
    """The same for a draw of the test records."""
    return rmse_of(model, *fifth(number), state)


def _library(model: str) -> Mapping[str, str]:
    return {} if model == AVERAGE else {"library": f"scikit-surprise {version('scikit-surprise')}"}


@shown(control={"model": AVERAGE}, false_alarm=0.05)
def rmse(value: Printed, model: str, draws: int = 3) -> Shown:
    """Whether the printed RMSE lies in the 95 % prediction interval of several draws of the test records."""
    found = [of_draw(model, number, number) for number in range(draws)]
    verdict = metric_verdict(model, found, PrintedResult.of(value.text), None, metric=METRICS["rmse"])
    evidence = {**_library(model), "rmse_of_each_draw": found, **verdict.evidence}
    holds = {"holds": True, "refuted": False}.get(verdict.verdict)
    return Shown(holds, verdict.reason, math.fsum(found) / draws, evidence)


@shown(control={"results": {PRIVATE: (2.0, 2.01)}}, false_alarm=0.05)
def private_is_better(results: Mapping[str, Sequence[float]], model: str, states: int = 3) -> Shown:
    """Whether the private networks have the lower RMSE, on the test records on which they were measured.

    By Welch's 95 % interval, over our seeds and those of the model's initial values where it has some.
    """
    theirs = [of_draw(model, 0, state) for state in range(states if model in DRAWN else 1)]
    ours = results[PRIVATE]
    certain = theirs * 2 if len(theirs) == 1 else theirs  # one value without a deviation: twice the same
    gap, low, high = difference(certain, ours)
    evidence = {**_library(model), "rmse": theirs, "rmse_of_private_networks": list(ours), "low": low, "high": high}
    holds = None if low <= 0 <= high else low > 0
    reason = f"{model} less the private networks: {gap:+.4f} ({low:.4f} to {high:.4f})"
    return Shown(holds, reason, gap, evidence)
