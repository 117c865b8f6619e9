"""Initial weights from a file, for example of a pre-trained model; some parameters may be frozen.

The file is a state dictionary of `torch.save`; it is read without running code. Its names are those of the model's
parameters and buffers. Parameters that are not in the file, such as a new last layer, are initialised by the seed. A
frozen parameter must be in the file, because no seed sets it and the run does not train it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.atomic import read_bytes
from dpbench.catalog import suggestion
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpbench.spec.keys import Spec


def weights_file(spec: Spec) -> Path:
    """Where the weights of a spec are; a relative path starts at the spec's folder."""
    assert spec.weights is not None
    return Path(spec.folder) / spec.weights.file


ABSENT = "0" * 64  # in place of the hash of a file that has still to be made


def still_to_make(spec: Spec) -> str | None:
    """Why a spec's runs cannot start: its file of weights is absent, and the spec says what makes it; else None."""
    if spec.weights is None or spec.weights.made_by is None or weights_file(spec).exists():
        return None
    return f"the weights {spec.weights.file} are not there; make them: {spec.weights.made_by}"


def weights_key(spec: Spec, build: Callable[[], nn.Module]) -> dict[str, Any]:
    """What the key of a run holds of its initial weights: the hash of the file, and the names of what is frozen.

    Raises DpbenchError where the file cannot be read, is not the spec's, or does not fit the model of `build`.
    """
    if spec.weights is None:
        return {}
    if still_to_make(spec) is not None:
        return {"weights": {"sha256": ABSENT, "frozen": []}}
    sha256 = _read(weights_file(spec))
    if spec.weights.sha256 not in (None, sha256):
        raise DpbenchError(f"weights.sha256 = {spec.weights.sha256}: the file {spec.weights.file} has {sha256}")
    module = with_weights(build, weights_file(spec), sha256, spec.weights.frozen)
    frozen = sorted(name for name, value in module.named_parameters() if not value.requires_grad)
    return {"weights": {"sha256": sha256, "frozen": frozen}}


def with_weights(build: Callable[[], nn.Module], path: Path, sha256: str, frozen: Sequence[str]) -> nn.Module:
    """A new module with the weights of a file, its frozen parameters without gradient.

    `sha256` is the file's hash; `frozen` are patterns of names, as of files: `features.*`. Raises DpbenchError for
    another file, for names, shapes or types that the model does not have, and for patterns that match nothing there.
    """
    import torch

    if _read(path) != sha256:
        raise DpbenchError(f"weights: {path.name} is another file than when the run was planned; plan it again")
    module = build()
    own = dict(module.state_dict())
    given = _content(path, sha256)
    parameters = dict(module.named_parameters())
    for name, value in given.items():
        if name not in own:
            raise DpbenchError(f"weights: {path.name} has {name!r}, which the model has not{suggestion(name, own)}")
        if own[name].shape != value.shape:
            raise DpbenchError(
                f"weights: {name!r} has the shape {tuple(value.shape)} in {path.name}, in the model"
                f" {tuple(own[name].shape)}"
            )
        if value.is_floating_point() != own[name].is_floating_point() or value.is_complex():
            raise DpbenchError(
                f"weights: {name!r} is of type {value.dtype} in {path.name}, in the model {own[name].dtype}"
            )
        if name in parameters and not bool(value.to(own[name].dtype).isfinite().all()):
            raise DpbenchError(f"weights: {name!r} in {path.name} holds numbers that are not finite")
    if not any(value.is_meta for value in own.values()):  # a module without values is only counted
        with torch.no_grad():
            module.load_state_dict(dict(given), strict=False)
    for name in frozen_names(parameters, given, frozen):
        parameters[name].requires_grad_(False)
    return module


def frozen_names(parameters: Mapping[str, Any], given: Mapping[str, Any], frozen: Sequence[str]) -> list[str]:
    """The names that match patterns, sorted. Raises DpbenchError for a pattern without a match in model and file.

    >>> frozen_names({"a.weight": 0, "b.weight": 0}, {"a.weight": 0}, ["a.*"])
    ['a.weight']
    """
    found: set[str] = set()
    for pattern in frozen:
        names = fnmatch.filter(parameters, pattern)
        if not names:
            raise DpbenchError(
                f"weights.frozen: {pattern!r} is no parameter of the model{suggestion(pattern, parameters)}"
            )
        absent = sorted(set(names) - set(given))
        if absent:
            raise DpbenchError(
                f"weights.frozen: {pattern!r} freezes {absent[0]!r}, which the file does not hold; expected parameters"
                " of the file"
            )
        found.update(names)
    if found and len(found) == len(parameters):
        raise DpbenchError("weights.frozen: freezes every parameter; expected one to train")
    return sorted(found)


_MOST_BYTES = 1 << 33  # of a file of weights, which is read into memory


@lru_cache(maxsize=64)
def _hash(path: Path, _modified: int, _size: int) -> str:
    return hashlib.sha256(read_bytes(path, _MOST_BYTES)).hexdigest()


def _read(path: Path) -> str:
    """The hash of a file. Raises DpbenchError where it cannot be read."""
    try:
        status = path.stat()
        return _hash(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise DpbenchError(f"weights.file = {path}: cannot be read ({error.strerror or error})") from error


@lru_cache(maxsize=4)
def _content(path: Path, sha256: str) -> Mapping[str, Tensor]:
    """The tensors of the file with this hash, by name."""
    import torch

    expected = "expected a state dictionary, as torch.save(model.state_dict(), file) writes it"
    try:
        content = read_bytes(path, _MOST_BYTES)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DpbenchError(f"weights: {path.name} changes while it is read")
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        if isinstance(error, DpbenchError):
            raise
        reason = " ".join(str(error).split())[:120]
        raise DpbenchError(f"weights.file = {path}: cannot be read ({reason}); {expected}") from error
    if not isinstance(found, Mapping) or not found:
        raise DpbenchError(f"weights.file = {path}: holds a {type(found).__name__}; {expected}")
    for name, value in found.items():
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"
        if not isinstance(name, str) or not plain or value.is_quantized:
            raise DpbenchError(f"weights.file = {path}: {name!r} is no plain tensor; {expected}")
    return found
