"""Fixtures of every test folder that wants them; conformance/ and failure/ check each of their tests for leaks."""

import pytest

from support import report
from support.fake_nics import heard, nic_pair
from support.fixtures import (
    link,
    no_leaks,
    open_context,
    pool,
    pytest_runtest_makereport,
    runtime_directory,
    start_peer,
    world,
)
from support.nursery import NURSERY
from support.patience import LAB
from support.selection import pytest_collection_modifyitems
from support.software_gpus import IN_SOFTWARE, hide_bindings

__all__ = [
    "heard",
    "link",
    "nic_pair",
    "no_leaks",
    "open_context",
    "pool",
    "pytest_collection_modifyitems",
    "pytest_runtest_makereport",
    "runtime_directory",
    "start_peer",
    "world",
]


if IN_SOFTWARE:
    hide_bindings()  # before anything else looks at the environment


def pytest_configure(config: pytest.Config) -> None:
    """Report on the run; in the lab, start the nursery, which takes as long as pytest itself to import its modules."""
    report.register(config)
    if LAB:
        NURSERY.start()
