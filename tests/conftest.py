"""Fixtures of every test folder that wants them; conformance/ and failure/ check each of their tests for leaks."""

from support.fake_nics import heard, nic_pair
from support.fixtures import (
    no_leaks,
    open_context,
    pool,
    pytest_runtest_makereport,
    runtime_directory,
    start_peer,
    world,
)

__all__ = [
    "heard",
    "nic_pair",
    "no_leaks",
    "open_context",
    "pool",
    "pytest_runtest_makereport",
    "runtime_directory",
    "start_peer",
    "world",
]
