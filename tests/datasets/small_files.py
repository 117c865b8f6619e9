"""Small files for the datasets that are made of the user's own, with the parameters that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def table(folder: Path) -> dict[str, Any]:
    """Ten records of a number and a word; the class is whether the number is above 4."""
    rows = "".join(f"{number},{'ab'[number % 2]},{'no' if number < 5 else 'yes'}\n" for number in range(10))
    (folder / "table.csv").write_text(f"size,colour,bought\n{rows}", encoding="utf-8")
    return {
        "file": str(folder / "table.csv"),
        "target": "bought",
        "categorical": ["colour"],
        "test": 0.4,
        "split_seed": 1,
    }


def features(folder: Path) -> dict[str, Any]:
    """Nine training and three test records of four numbers, three classes."""
    numbers = np.linspace(-1, 1, 48).reshape(12, 4)
    classes = np.arange(12) % 3
    arrays = {"train_inputs": numbers[:9], "train_targets": classes[:9]}
    arrays |= {"test_inputs": numbers[9:], "test_targets": classes[9:]}
    np.savez(folder / "features.npz", **arrays)
    return {"file": str(folder / "features.npz"), "pretrained_on": "nothing, they are numbers of a test"}


def text(folder: Path) -> dict[str, Any]:
    """Twenty lines of three words, of which four are tested."""
    words = ["the", "of", "and", "to", "in", "that", "is", "was", "he", "for"] * 2
    lines = [f"{word.capitalize()} {words[at - 7]}, {words[at - 3]}!\n" for at, word in enumerate(words)]
    (folder / "lines.txt").write_text("".join(lines), encoding="utf-8")
    return {"file": str(folder / "lines.txt"), "places": 4}


MADE: Mapping[str, Callable[[Path], dict[str, Any]]] = {"csv": table, "features": features, "next_word": text}
