"""Fixtures of every test folder that wants them; conformance/ and failure/ check each of their tests for leaks."""

from support.fake_nics import heard, nic_pair
from support.fixtures import (
    link,
    no_leaks,
    open_context,
    pool,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
    runtime_directory,
    start_peer,
    world,
)
from support.nursery import NURSERY
from support.patience import LAB
from support.progress import pytest_runtest_protocol
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
    "pytest_runtest_protocol",
    "runtime_directory",
    "start_peer",
    "world",
]


if IN_SOFTWARE:
    hide_bindings()  # before anything else looks at the environment


def pytest_configure() -> None:
    """In the lab the nursery takes as long as pytest itself to import what it needs, and may do so meanwhile."""
    if LAB:
        NURSERY.start()
