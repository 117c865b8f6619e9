"""How tests ask the accounting verbs, and what about."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dpbench.cli import main
from dpbench.events import Composition, SampledGaussian

ROOT = Path(__file__).parents[2]
TRAINING = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
ROW_1 = "--n 60000 --batch 256 --sigma 1.3 --epochs 15 --delta 1e-5"
SMALL = "--sampling-rate 0.01 --steps 100 --sigma 1 --delta 1e-5"
UNLIKE = """\
kind: events
events:
  - {event: sampled_gaussian, sampling_rate: 0.01, noise_multiplier: 2, count: 500}
  - {event: gaussian, noise_multiplier: 20, count: 2}
"""
KEYS = {"accountant", "epsilon", "delta", "kind", "relative_error", "seconds"}


def call(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the program."""
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(line))
    assert isinstance(caught.value.code, int)
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def shown(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    status, out, err = call(f"{line} --json", capsys)
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def not_a_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")
