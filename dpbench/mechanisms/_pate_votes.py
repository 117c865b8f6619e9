"""PATE's teachers and their votes: the partition, the training, the counts of votes, and counts from a file.

Shapes: R runs, N private examples, T teachers, B places of a teacher's batch, Q queries, C classes, P parameters.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from dpbench import randomness
from dpbench.atomic import read_bytes
from dpbench.errors import DpbenchError
from dpbench.step.functional import Network

NUMERICS = 1

_MOST_BYTES = 1 << 28  # of a file of votes, and of its array, which is read into memory
_QUERIES_AT_ONCE = 100  # of each teacher


@dataclass(frozen=True)
class Teachers:
    """How many teachers there are, and how each is trained: SGD from the run's initial parameters, without privacy."""

    count: int
    steps: int
    batch_size: int
    learning_rate: float


def owners(keys_RS: Tensor, examples: int, teachers: int) -> Tensor:
    """The teacher of every example, int64 (R, N): each is drawn by itself, all teachers equally likely.

    So the other examples' teachers do not depend on whether an example is there. A teacher may have none.

    >>> bool((owners(randomness.table([1]), 100, 3) < 3).all())
    True
    """
    step_R = torch.zeros(len(keys_RS), dtype=torch.int64, device=keys_RS.device)
    return _scaled(randomness.uniform_bits(keys_RS, randomness.GROUP, step_R, examples), teachers)


def _scaled(bits: Tensor, counts: Tensor | int) -> Tensor:
    """Whole numbers below `counts` (below 2^53), from uniform bits: ⌊u·n⌋, off by less than 2^-53·n of uniform."""
    share = bits.double() * 2.0**-53  # at most 1 − 2^-53, so that the product is below n or rounds to n
    whole = torch.as_tensor(counts, device=bits.device)
    return torch.minimum((share * whole).long(), (whole - 1).clamp_min(0))


def trained_teachers(
    how: Teachers,
    owner_RN: Tensor,
    net: Network,
    theta_RP: Tensor,
    keys_RS: Tensor,
    inputs: Tensor,
    targets: Tensor,
    chunk: int,
) -> Tensor:
    """The parameters of every teacher after its training, (R, T, P); `chunk` places of each run in one call.

    A batch is drawn with replacement from the teacher's own examples; which places of these depends on the teacher,
    the step and how many examples it has, on nothing else. A teacher without examples keeps its parameters.
    """
    runs, teachers, device = len(theta_RP), how.count, theta_RP.device
    order_RN = owner_RN.argsort(dim=1, stable=True)
    size_RT = torch.zeros(runs, teachers, dtype=torch.int64, device=device)
    size_RT.scatter_add_(1, owner_RN, torch.ones_like(owner_RN))
    first_RT = size_RT.cumsum(1) - size_RT
    theta_RTP = theta_RP[:, None].repeat(1, teachers, 1)
    gradients, together = vmap(grad(_mean_loss(net))), max(1, chunk // how.batch_size)
    for step in range(1, how.steps + 1):
        step_R = torch.full((runs,), step, dtype=torch.int64, device=device)
        bits_RB = randomness.uniform_bits(keys_RS, randomness.GROUP, step_R, teachers * how.batch_size)
        place_RTB = _scaled(bits_RB.reshape(runs, teachers, -1), size_RT[:, :, None])
        # An empty teacher reads some example and is not moved by it.
        at_RTB = (first_RT[:, :, None] + place_RTB).clamp_max(len(targets) - 1)
        index_RTB = order_RN.gather(1, at_RTB.flatten(1)).reshape(at_RTB.shape)
        for start in range(0, teachers, together):
            of = slice(start, start + together)
            theta_MP, index_MB = theta_RTP[:, of].flatten(0, 1), index_RTB[:, of].flatten(0, 1)
            gradient_MP = net.join(gradients(net.split(theta_MP), inputs[index_MB], targets[index_MB]))
            moved_MP = theta_MP - how.learning_rate * gradient_MP
            filled_M1 = size_RT[:, of].flatten()[:, None] > 0
            theta_RTP[:, of] = torch.where(filled_M1, moved_MP, theta_MP).reshape(runs, -1, theta_RP.shape[1])
    return theta_RTP


def _mean_loss(net: Network) -> Any:
    def loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net.outputs(named, inputs), targets)

    return loss


def counted_votes(net: Network, theta_RTP: Tensor, queries: Tensor, chunk: int) -> Tensor:
    """How many teachers give each query each class, int64 (R, Q, C); `queries` (Q, ...)."""
    runs, teachers = theta_RTP.shape[:2]
    at_once = min(chunk, _QUERIES_AT_ONCE)
    together, found = max(1, chunk // at_once), []
    with torch.no_grad():
        for start in range(0, len(queries), at_once):
            part, total = queries[start : start + at_once], torch.tensor(0, device=queries.device)
            for first in range(0, teachers, together):
                theta_MP = theta_RTP[:, first : first + together].flatten(0, 1)
                output_MQC = vmap(net.outputs, in_dims=(0, None))(net.split(theta_MP), part.clone())
                vote_MQC = nn.functional.one_hot(output_MQC.argmax(-1), output_MQC.shape[-1])
                total = total + vote_MQC.reshape(runs, -1, *vote_MQC.shape[1:]).sum(1)
            found.append(total)
    return torch.cat(found, 1)


def hash_of(path: Path) -> str:
    """The SHA-256 of a file. Raises DpbenchError where it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path, _MOST_BYTES)).hexdigest()
    except OSError as error:
        raise DpbenchError(f"votes_file = {path}: cannot be read ({error.strerror or error})") from error


@lru_cache(maxsize=4)
def read_votes(path: Path, sha256: str, teachers: int, queries: int) -> Tensor:
    """The counts of a file, int64 (Q, C): an array (queries, classes) of numpy's `.npy`, or alone in an `.npz`.

    Nothing of the file is run. Raises DpbenchError, with one sentence, for another file than that of the hash, for
    another array than counts, too few queries, and rows that do not add up to the number of teachers.
    """
    expected = "expected an array (queries, classes) of whole numbers, as numpy.save writes it"
    try:
        content = read_bytes(path, _MOST_BYTES)
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise DpbenchError(f"votes_sha256 = {sha256}: the file {path} has {found}")
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > _MOST_BYTES:
                raise DpbenchError(f"votes_file = {path}: unpacked {size:,} bytes; expected at most {_MOST_BYTES:,}")
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            if len(loaded.files) != 1:
                raise DpbenchError(f"votes_file = {path}: holds {len(loaded.files)} arrays; expected one")
            loaded = loaded[loaded.files[0]]
    except DpbenchError:
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:120]
        raise DpbenchError(f"votes_file = {path}: cannot be read ({reason}); {expected}") from error
    if loaded.ndim != 2 or loaded.dtype.kind not in "iu":
        raise DpbenchError(f"votes_file = {path}: holds {loaded.dtype} of shape {loaded.shape}; {expected}")
    if len(loaded) < queries:
        raise DpbenchError(f"queries = {queries}: the file {path} has the votes of {len(loaded)}; ask no more")
    counts = loaded[:queries].astype(np.int64)
    # A sum may wrap around where a count is above the number of teachers.
    wrong = np.flatnonzero(((counts < 0) | (counts > teachers)).any(1) | (counts.sum(1) != teachers))
    if len(wrong):
        row = int(wrong[0])
        raise DpbenchError(
            f"votes_file = {path}: query {row} has the counts {counts[row].tolist()}; expected counts of 0 or more that"
            f" add up to teachers = {teachers}"
        )
    return torch.from_numpy(counts)
