"""Fixtures that several test files share."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator

import pytest

from tests import parts, sampled

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; more threads than that only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# What planning remembers stays with these tests: nothing is taken from, or left in, the user's cache folder.
# The process that makes the folder removes it: workers of xdist and commands that tests start find its name.
if "DPBENCH_CACHE" not in os.environ:
    os.environ["DPBENCH_CACHE"] = tempfile.mkdtemp(prefix="dpbench-tests-")
    atexit.register(shutil.rmtree, os.environ["DPBENCH_CACHE"], ignore_errors=True)

# Data that no CI holds (GloVe vectors: 822 MB; SVHN; votes of PATE teachers); what reads them is tested on made ones.
NOT_IN_CI = ("imdb_glove", "svhn", "pate_votes")


def pytest_addoption(parser: pytest.Parser) -> None:
    chosen = ["auto", *map(str, range(parts.PARTS))]
    parser.addoption("--part", choices=chosen, help="of the long tests only this part; auto: today's")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.part == "auto":  # workers are told the number: midnight may pass before they start
        config.option.part = str(parts.todays())


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampled.mark(items)
    if config.option.part is not None:
        parts.keep(int(config.option.part), config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI nothing may be skipped for want of data or a browser: there both are supposed to be."""
    report = yield
    excused = any(f"Skipped: {name}: " in str(report.longrepr) for name in NOT_IN_CI)
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail") and not excused:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread: the tensors of tests are small, and threads only make them slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
