"""Run records and failures of the right shape, made up: for tests of what reads records. No result is a real one."""

from __future__ import annotations

import math
import random
from typing import Any

from dpbench.store.provenance import code_hash
from dpbench.store.run_key import run_key

ENVIRONMENT = {
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "dpbench": "0.1.0",
    "python": "3.11.7",
    "platform": "Linux-6.1-x86_64-with-glibc2.36",
    "machine": "x86_64",
    "processor": "Example processor",
    "cpus": 2,
    "torch": "2.13.0+cpu",
    "device": "cpu",
    "device_name": "Example processor",
    "threads": 2,
    "time_utc": "2026-11-21T01:00:00+00:00",
}


def printed(text: str) -> dict[str, Any]:
    """A printed number as a spec keeps it: half a unit of the last printed digit is half of 10^-decimals."""
    return {"text": text, "value": float(text), "half_unit": 0.5 * 10.0 ** -len(text.partition(".")[2])}


def run_json(
    name: str = "quick",
    label: str = "",
    seed: int = 0,
    *,
    accuracy: float = 0.95,
    sigma: float | None = 1.3,
    dataset: str = "mnist",
    examples: int = 60000,
    batch: float = 256.0,
    steps: int = 3516,
    epochs: int = 15,
    clip_norm: float | None = 1.5,
    learning_rate: float = 0.25,
    seconds: float = 80.0,
    context: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    versions: dict[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """One run record as plain data; `sigma` None makes it non-private. The key is made from the resolved part."""
    rate = batch / examples
    private = sigma is not None
    resolved = {
        "format": 2,
        "dataset": {"name": dataset, "parameters": {}, "sha256": "d" * 64},
        "model": {"name": "tfp_cnn", "parameters": {"activation": "relu"}},
        "mechanism": {"name": "noisy_sgd" if private else "non_private", "parameters": {}},
        "sampling_rate": rate,
        "steps": steps,
        "learning_rate": learning_rate,
        "clip_norm": clip_norm if private else None,
        "noise_multiplier": sigma,
        "seed": seed,
        "randomness": "own",
        "numerics": versions or {"step": 1},
        "sample": f"{name} {label}",  # specs and rows of one setting are different runs here
    }
    ledger = {
        "adaptive": False,
        "parts": [
            {
                "event": "SampledGaussian",
                "sampling_rate": rate,
                "noise_multiplier": sigma,
                "adjacency": "add_or_remove",
                "sampler": "poisson",
                "count": steps,
            }
        ],
    }
    draw = random.Random(f"{name} {label} {seed}")
    curve = []
    for epoch in range(1, epochs + 1):
        step = math.ceil(steps * epoch / epochs)
        reached = accuracy if epoch == epochs else accuracy * (1 - 0.5 * math.exp(-4 * epoch / epochs))
        reached = reached if epoch == epochs else min(1.0, max(0.0, reached + draw.gauss(0, 0.003)))
        curve.append(
            {
                "epoch": round(step * rate, 6),
                "step": step,
                "releases": step,
                "seconds": seconds * epoch / epochs,
                "train_loss": 2.3 * math.exp(-epoch / 4),
                "test_loss": 2.2 * math.exp(-epoch / 4),
                "test_accuracy": reached,
            }
        )
    return {
        "schema_version": 2,
        "type": "run",
        "run_key": run_key(resolved),
        "seed": seed,
        "resolved": resolved,
        "context": {
            "name": name,
            "label": label,
            "file": f"specs/{name}.yaml",
            "source": None,
            "published": None,
            "accountants": [],
            "needs": [],
            "reduced": None,
            "tuned": None,
            "delta": 1e-5 if private else None,
            "target_epsilon": None,
            "calibrate_with": None,
            **(context or {}),
        },
        "facts": {
            "private": private,
            "privacy_unit": "one training example" if private else None,
            "adjacency": "add_or_remove" if private else None,
            "sampler": "poisson",
            "normalisation": f"expected batch size {batch:g}",
            "expected_batch_size": batch,
            "examples": examples,
            "test_examples": 10000,
            "parameters": 26010,
            "generator": "Philox 4x32-10: benchmark grade, not for releasing models",
            "dtype": "float32",
            "dataset_real": True,
            **(facts or {}),
        },
        "ledger": ledger if private else None,
        "curve": curve,
        "result": {"test_accuracy": accuracy, "test_loss": curve[-1]["test_loss"]},
        "seconds": seconds * 2,
        "own_seconds": seconds,
        "stack_runs": 2,
        "resumed": False,
        "sources": {"dpbench.errors": code_hash("dpbench.errors")},
        "environment": {**ENVIRONMENT, **(environment or {})},
        **others,
    }


def failure_json(name: str = "quick", label: str = "", seed: int = 9, error: str = "not finite") -> dict[str, Any]:
    """One failure as plain data."""
    run = run_json(name, label, seed)
    kept = {part: run[part] for part in ("schema_version", "run_key", "seed", "resolved", "context", "environment")}
    return {**kept, "type": "failure", "error": error, "traceback": "Traceback ...\nValueError: not finite", "step": 17}


def example() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records and failures of two papers' worth of specs, with everything that a report has to show."""
    records: list[dict[str, Any]] = []
    # A paper's table: (label, lr, C, σ, epochs, printed accuracy, μ, ε by CLT, ε by moments, ours, scatter)
    table = [
        ("row 1", 0.25, 1.5, 1.3, 15, "95.0", "0.23", "0.83", "1.19", 0.951, 0.0015),
        ("row 2", 0.15, 1.0, 1.1, 60, "96.6", "0.57", "2.32", "3.01", 0.9655, 0.001),
        ("row 3", 0.25, 1.5, 0.7, 45, "97.0", "1.13", "5.07", "7.10", 0.9745, 0.0008),
        ("row 4", 0.25, 1.5, 0.6, 62, "97.6", "2.00", "9.98", "13.27", 0.9762, 0.0009),
    ]
    for label, rate, clip, sigma, epochs, accuracy, mu, clt, moments, ours, scatter in table:
        numbers = {
            "accuracy_percent": printed(accuracy),
            "averaged_over": 10,
            "mu": printed(mu),
            "epsilon": {"gdp_clt": printed(clt), "moments": printed(moments)},
        }
        draw = random.Random(label)
        for seed in range(1 if label == "row 4" else 5):
            records.append(
                run_json(
                    "table 1",
                    label,
                    seed,
                    accuracy=round(ours + draw.gauss(0, scatter), 4),
                    sigma=sigma,
                    steps=math.ceil(epochs * 60000 / 256),
                    epochs=epochs,
                    clip_norm=clip,
                    learning_rate=rate,
                    seconds=5.5 * epochs,
                    context={
                        "source": "Bu, Dong, Long, Su 2020, arXiv:1911.11607v3, Table 1",
                        "published": numbers,
                        "needs": ["gpu"],
                        "tuned": "learning rate and clip norm, as the paper gives them; its search is not described",
                    },
                )
            )
    draw = random.Random("quick")
    small: dict[str, Any] = {
        "dataset": "digits",
        "examples": 1437,
        "batch": 64.0,
        "steps": 450,
        "epochs": 20,
        "seconds": 3.0,
    }
    for seed in range(5):
        reached = round(0.96 + draw.gauss(0, 0.004), 4)
        records.append(run_json("non-private", "", seed, accuracy=reached, sigma=None, **small))
    for name, loss in (("noisy SGD", 0.0), ("noisy Adam", 0.012)):
        for epsilon, sigma, mean in ((1.0, 6.2, 0.83), (3.0, 2.5, 0.905), (8.0, 1.3, 0.932)):
            for seed in range(5):
                records.append(
                    run_json(
                        name,
                        f"epsilon={epsilon:g}",
                        seed,
                        accuracy=round(mean - loss + draw.gauss(0, 0.008), 4),
                        sigma=sigma,
                        context={"target_epsilon": epsilon, "calibrate_with": "rdp", "tuned": "nothing"},
                        environment={"dirty": name == "noisy Adam"},
                        versions={"step": 0} if epsilon == 8 and name == "noisy Adam" else None,
                        resumed=seed == 2,
                        **small,
                    )
                )
    return records, [failure_json("noisy SGD", "epsilon=1", 7, "the gradient of step 17: not finite")]
