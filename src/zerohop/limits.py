"""Finds the limit of this process, or of its machine, behind a call that failed, and the command that raises it."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path
from typing import Final, NamedTuple

_NOFILE: Final = "RLIMIT_NOFILE"
_GROUPS: Final = Path("/sys/fs/cgroup")
_MEMBER_OF: Final = Path("/proc/self/cgroup")
_COMMANDS: Final = {
    _NOFILE: "ulimit -n 65536",
    "RLIMIT_MEMLOCK": "ulimit -l unlimited",
    "RLIMIT_AS": "ulimit -v unlimited",
    "RLIMIT_DATA": "ulimit -d unlimited",
    "RLIMIT_FSIZE": "ulimit -f unlimited",
    "RLIMIT_NPROC": "ulimit -u unlimited",
    "fs.file-max": "sysctl -w fs.file-max=1000000",
    "fs.epoll.max_user_watches": "sysctl -w fs.epoll.max_user_watches=1000000",
    "vm.max_map_count": "sysctl -w vm.max_map_count=1048576",
    "kernel.threads-max": "sysctl -w kernel.threads-max=1000000",
    "pids.max": "raise pids.max of the control group (docker run --pids-limit)",
}
# The limit that a peer means, by the number of the reason that it gives.
_USUAL: Final = {18: _NOFILE, 31: "RLIMIT_MEMLOCK", 46: "fs.epoll.max_user_watches"}
# Mappings, or files, below a limit at which it counts as reached: the kernel counts some that it does not list.
_NEAR: Final = 16
# Bytes of a thread's stack if neither Python nor a limit says how many (glibc on x86-64).
_LEAST_STACK: Final = 2 << 20
# Address space that whatever has failed may have given back before it is looked at: a block of Python's, of 1 MiB, and
# what the C library keeps for a thread, and other threads for theirs.
_GIVEN_BACK: Final = 16 << 20


class Limit(NamedTuple):
    """Names a limit, with its value in this process and the command that raises it."""

    name: str
    value: int
    command: str


def behind(reason: int, text: str) -> Limit | None:
    """Return the limit behind a native reason, whose text ends with the words of errno; None if it is no limit."""
    if reason == 18:
        return _of_descriptors()
    if reason == 31:
        return _rlimit("RLIMIT_MEMLOCK")
    if reason == 46:
        return _sysctl("fs.epoll.max_user_watches")
    if os.strerror(errno.EFBIG) in text:
        return _finite("RLIMIT_FSIZE")
    return of_memory() if os.strerror(errno.ENOMEM) in text else None


def usual(reason: int) -> Limit | None:
    """Return the limit that a reason usually means, without a value; None if it means none."""
    name = _USUAL.get(reason)
    return Limit(name, 0, _COMMANDS[name]) if name is not None else None


def of_memory() -> Limit | None:
    """Return the limit behind memory that this process did not get; None if there is none: the machine is full."""
    return _of_mappings() or _finite("RLIMIT_AS")


def of_threads() -> Limit:
    """Return the limit behind a thread that could not be started."""
    for name, used in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        space = _finite(name)
        if space is not None and _bytes_of(used) + _stack_bytes() + _GIVEN_BACK > space.value:
            return space
    for group in _control_groups():
        allowed = _number(group / "pids.max")
        if allowed and _number(group / "pids.current") >= allowed - 1:
            return Limit("pids.max", allowed, _COMMANDS["pids.max"])
    threads = _rlimit("RLIMIT_NPROC")
    # The system does not hold root to this one.
    return threads if threads.value > 0 and os.geteuid() != 0 else _sysctl("kernel.threads-max")


def _of_descriptors() -> Limit:
    try:
        used, _, most = map(int, Path("/proc/sys/fs/file-nr").read_text(encoding="ascii").split())
    except (OSError, ValueError):  # there is not even a descriptor for this
        return _rlimit(_NOFILE)
    return _rlimit(_NOFILE) if used < most - _NEAR else Limit("fs.file-max", most, _COMMANDS["fs.file-max"])


def _of_mappings() -> Limit | None:
    limit = _sysctl("vm.max_map_count")
    try:
        with Path("/proc/self/maps").open("rb") as maps:
            used = sum(1 for _ in maps)
    except OSError:
        return None
    return limit if limit.value and used >= limit.value - _NEAR else None


def _finite(name: str) -> Limit | None:
    limit = _rlimit(name)
    return limit if limit.value >= 0 else None


def _rlimit(name: str) -> Limit:
    return Limit(name, resource.getrlimit(getattr(resource, name))[0], _COMMANDS[name])


def _sysctl(name: str) -> Limit:
    return Limit(name, _number(Path("/proc/sys") / name.replace(".", "/")), _COMMANDS[name])


def _bytes_of(name: str) -> int:
    """Return a size of this process's, as /proc/self/status names it; 0 if that cannot be read."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def _stack_bytes() -> int:
    """Return the address space that a new thread needs."""
    return threading.stack_size() or max(resource.getrlimit(resource.RLIMIT_STACK)[0], _LEAST_STACK)


def _control_groups() -> list[Path]:
    try:
        lines = _MEMBER_OF.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            # A group's own limit counts, and those of the groups that it is in.
            group = Path(path.lstrip("/"))
            found += [_GROUPS / controllers / each for each in (group, *group.parents)]
    return found


def _number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
