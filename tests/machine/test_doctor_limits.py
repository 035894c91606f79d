"""The doctor's family "limits", each check in its states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.doctor import UNLIMITED, check, guest, look, process, read
from zerohop.machine.doctor import State, System
from zerohop.machine.host import Limit

if TYPE_CHECKING:
    from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30


def limited(root: Path, soft: int, hard: int | None, *, container: str = "", locks_freely: bool = False) -> System:
    """A machine with a software device, on which a process may lock this much."""
    guest(root)
    system = read(root, process(memlock=Limit(soft, hard), locks_freely=locks_freely))
    return replace(system, container=container)


@pytest.mark.parametrize(
    ("soft", "state", "found"),
    [
        (64 << 10, State.FAIL, "64 KiB may be locked: not enough"),
        (8 * MIB, State.FAIL, "8 MiB may be locked: not enough"),
        (64 * MIB - 1, State.FAIL, "64 MiB may be locked: not enough"),
        (64 * MIB, State.WARN, "64 MiB may be locked, all registered memory"),
        (32 * GIB, State.WARN, "32 GiB may be locked, all registered memory"),
    ],
)
def test_a_limit_of_locked_memory(tmp_path: Path, soft: int, state: State, found: str) -> None:
    result = look("memlock", limited(tmp_path, soft, soft))
    assert result.state is state
    assert result.found.startswith(found)


def test_locked_memory_without_a_limit_that_holds(tmp_path: Path) -> None:
    found = look("memlock", limited(tmp_path, 8 * MIB, 8 * MIB, locks_freely=True))
    assert (found.state, found.found) == (
        State.OK,
        "8 MiB may be locked, and this process may exceed it (CAP_IPC_LOCK)",
    )
    assert check("memlock", tmp_path, process(memlock=UNLIMITED)).found == "unlimited"


@pytest.mark.parametrize(
    ("hard", "container", "fix"),
    [
        (None, "", "ulimit -l unlimited"),
        (None, "docker", "ulimit -l unlimited"),
        (MIB, "docker", "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK …"),
        (MIB, "podman", "podman run --ulimit memlock=-1 --cap-add=IPC_LOCK …"),
        (MIB, "kubernetes", '# in the pod: securityContext: {capabilities: {add: ["IPC_LOCK"]}}'),
        (MIB, "", "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' >/etc/security/limits.d/rdma.conf"),
    ],
)
def test_how_the_limit_of_locked_memory_is_raised(tmp_path: Path, hard: int | None, container: str, fix: str) -> None:
    found = look("memlock", limited(tmp_path, MIB, hard, container=container))
    assert found.fix[0] == fix
    assert any("LimitMEMLOCK=infinity" in line for line in found.fix) is (hard is None or not container)


def test_without_a_device_nothing_locks_memory(tmp_path: Path) -> None:
    found = check("memlock", tmp_path, process(memlock=Limit(0, 0)))
    assert (found.state, found.found) == (State.NOT_HERE, "this machine has no RDMA device: nothing locks memory")


@pytest.mark.parametrize(
    ("limit", "container", "state", "fix"),
    [
        (UNLIMITED, "", State.OK, ()),
        (Limit(1024, 1024), "", State.OK, ()),
        (Limit(1023, 4096), "", State.WARN, ("ulimit -n 4096",)),
        (Limit(256, None), "", State.WARN, ("ulimit -n 65536",)),
        (Limit(256, 256), "docker", State.WARN, ("docker run --ulimit nofile=65536 …",)),
    ],
)
def test_descriptors(tmp_path: Path, limit: Limit, container: str, state: State, fix: tuple[str, ...]) -> None:
    found = look("descriptors", replace(read(tmp_path, process(descriptors=limit)), container=container))
    assert (found.state, found.fix) == (state, fix)


def test_descriptors_that_only_root_can_raise(tmp_path: Path) -> None:
    found = check("descriptors", tmp_path, process(descriptors=Limit(256, 256)))
    assert found.found == "256 descriptors: connections to about 60 peers"
    assert found.fix[0] == "echo '* hard nofile 65536' >/etc/security/limits.d/nofile.conf"


@pytest.mark.parametrize(
    ("total", "free", "container", "state", "found", "fix"),
    [
        (64 * GIB, 60 * GIB, "", State.OK, "/dev/shm has 64 GiB, 60 GiB of it free", ()),
        (64 * MIB, 64 * MIB, "docker", State.WARN, "/dev/shm has 64 MiB", ("docker run --shm-size=16g …",)),
        (GIB - 1, GIB - 1, "", State.WARN, "/dev/shm has 1", ("mount -o remount,size=50% /dev/shm",)),
        (64 * GIB, 6 * GIB, "", State.WARN, "/dev/shm has 64 GiB, 6 GiB of it free: nearly full", ("ls -lt /dev/shm",)),
        (None, None, "", State.WARN, "there is no /dev/shm", ("mount -t tmpfs -o mode=1777 tmpfs /dev/shm",)),
    ],
)
def test_shared_memory(
    tmp_path: Path,
    total: int | None,
    free: int | None,
    container: str,
    state: State,
    found: str,
    fix: tuple[str, ...],
) -> None:
    system = read(tmp_path)
    system = replace(system, container=container, memory=replace(system.memory, shared_total=total, shared_free=free))
    result = look("shared-memory", system)
    assert result.state is state
    assert result.found.startswith(found)
    assert result.fix[: len(fix)] == fix


@pytest.mark.parametrize(
    ("limit", "state", "fix"),
    [
        (UNLIMITED, State.OK, ""),
        (Limit(64 * GIB, None), State.WARN, "ulimit -v unlimited"),
        (Limit(64 * GIB, 64 * GIB), State.WARN, "# remove the limit `as` from /etc/security/limits.conf"),
    ],
)
def test_address_space(tmp_path: Path, limit: Limit, state: State, fix: str) -> None:
    found = check("address-space", tmp_path, process(address_space=limit))
    assert found.state is state
    assert "".join(found.fix).startswith(fix)
