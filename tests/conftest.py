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
    same_gpu_context,
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
    "same_gpu_context",
    "start_peer",
    "world",
]


if IN_SOFTWARE:
    hide_bindings()  # before anything else looks at the environment


def pytest_configure(config: pytest.Config) -> None:
    """Report on the run; start the nursery in the lab; take the chance out of Hypothesis elsewhere.

    In the lab the nursery takes as long as pytest itself to import its modules, and may do so meanwhile. Elsewhere no
    example of Hypothesis has 200 ms to end in, and none is kept on disk for, or found by, another run.
    """
    report.register(config)
    if LAB:
        NURSERY.start()
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile("tests", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")
