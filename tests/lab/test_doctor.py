"""The doctor where RDMA works: what it says of it, and that it finds what is then taken away."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.nobody import as_nobody
from support.sizes import KIB
from support.wire import cut

pytestmark = pytest.mark.timeout(200)
# What has to be well here. That Soft-RoCE is slow, and that two NICs are in one network, is worth a warning anywhere.
WELL = (
    "rdma-device",
    "kernel-modules",
    "device-node",
    "transport",
    "libibverbs",
    "provider-library",
    "verbs",
    "port-state",
    "mtu",
    "gid",
    "pkey",
    "memlock",
)


def _doctor(*prefix: str, locked: int | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """Its status, and what it says by the name of the check; with so many bytes that may be locked."""

    def lower() -> None:
        if locked is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (locked, locked))

    command = [*prefix, str(Path(sys.executable).with_name("zerohop")), "doctor", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, preexec_fn=lower)
    assert ran.stdout.startswith("{"), ran.stderr
    return ran.returncode, {check["name"]: check for check in json.loads(ran.stdout)["checks"]}


def test_a_machine_that_is_well() -> None:
    status, checks = _doctor()
    assert {name: checks[name]["state"] for name in WELL} == dict.fromkeys(WELL, "OK")
    assert checks["soft-roce"]["state"] == "WARN"
    assert [check for check in checks.values() if check["state"] == "FAIL"] == []
    assert status == 0


def test_a_link_that_is_down() -> None:
    with cut():
        _, checks = _doctor()
    state = checks["port-state"]
    assert state["state"] in ("WARN", "FAIL"), state
    assert "rxea" in state["found"], state
    assert any("ip link set va up" in line for line in state["fix"]), state


def test_what_a_user_may_not() -> None:
    """Open a device, or lock memory."""
    node = Path("/dev/infiniband/uverbs0")
    mode = node.stat().st_mode
    node.chmod(0o600)
    try:
        status, checks = _doctor(*as_nobody(), locked=64 * KIB)
    finally:
        node.chmod(mode)
    assert status != 0
    assert checks["device-node"]["state"] in ("WARN", "FAIL"), checks["device-node"]
    assert checks["device-node"]["fix"]
    assert checks["memlock"]["state"] == "FAIL", checks["memlock"]
    assert any("ulimit -l" in line or "memlock" in line for line in checks["memlock"]["fix"]), checks["memlock"]
