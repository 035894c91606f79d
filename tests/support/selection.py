"""Which of the collected tests run, and for how long each may."""

from __future__ import annotations

import os
import zlib

import pytest

from support.buffers import GPUS
from support.patience import SETTING


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply the settings ZEROHOP_TEST_… that concern tests; skip tests of GPUs where there is no GPU."""
    _keep_part(config, items, "ZEROHOP_TEST_SLICE", slow=True)
    _keep_part(config, items, "ZEROHOP_TEST_PART", slow=False)
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            # On real GPUs a path that is staged warns, which is not wrong.
            item.add_marker(pytest.mark.filterwarnings("ignore::zerohop.StagedPathWarning"))
            if not GPUS:
                item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU (no /dev/nvidia0)"))
        if SETTING != 1:
            own = item.get_closest_marker("timeout")
            limit = own.args[0] if own is not None else float(config.getoption("timeout") or config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(limit * SETTING), append=False)


def _keep_part(config: pytest.Config, items: list[pytest.Item], name: str, *, slow: bool) -> None:
    """Keep the K-th of N parts where this setting is K/N: of the tests marked slow, or of all others.

    Each test belongs to one part, by its name.
    """
    setting = os.environ.get(name)
    if not setting:
        return
    part, parts = (int(number) for number in setting.split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"{name}={setting}: type K/N with K from 1 to N, such as 1/8")

    def is_kept(item: pytest.Item) -> bool:
        is_slow = item.get_closest_marker("slow") is not None
        return is_slow != slow or zlib.crc32(item.nodeid.encode()) % parts == part - 1

    config.hook.pytest_deselected(items=[item for item in items if not is_kept(item)])
    items[:] = [item for item in items if is_kept(item)]
