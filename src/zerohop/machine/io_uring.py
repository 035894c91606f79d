"""Finds out whether files can be read by io_uring, and what is in the way: this build, the kernel, or a sandbox."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from zerohop.machine import files

Cause = Literal["", "build", "disabled", "restricted", "filter", "kernel", "memlock", "descriptors", "other"]

_SYS_ADMIN: Final = 21  # CAP_SYS_ADMIN in linux/capability.h
# Values of /proc/sys/kernel/io_uring_disabled (Linux 6.6): 0 for everybody.
_FOR_THE_FEW, _FOR_NOBODY = 1, 2
# The line "Seccomp" of /proc/self/status has this value for a process with a filter.
_FILTERED: Final = 2
# Native code says this of a build without io_uring (native/storage/uring.cpp).
_NO_BUILD: Final = "this build has no io_uring"
REBUILD: Final = ("apt-get install -y liburing-dev", "# then build zerohop again: make clean build")
CALLS: Final = "io_uring_setup, io_uring_enter and io_uring_register"


@dataclass(frozen=True, slots=True)
class IoUring:
    """Holds the answer.

    Attributes:
        usable: whether a Store of a folder reads and writes by io_uring here; otherwise threads do, and slower.
        cause: what is in the way; "" if nothing is.
        why: the same in words.
        fix: what to type, or "".
    """

    usable: bool
    cause: Cause = ""
    why: str = ""
    fix: str = ""


def read_io_uring(root: Path = Path("/"), said: str | None = None) -> IoUring:
    """Ask the system for io_uring, as a Store does, and find out why it refuses.

    Args:
        root: root of the file system, with /proc.
        said: what native code says of this process; None: it is asked now.
    """
    if said is None:
        from zerohop._native import why_no_uring

        said = why_no_uring()
    if not said:
        return IoUring(usable=True)
    cause = _cause(said, root)
    why, fix = {
        "build": ("this build of zerohop has no io_uring: it was built without liburing's headers", "; ".join(REBUILD)),
        "disabled": (
            "the kernel has turned it off (kernel.io_uring_disabled is 2)",
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        "restricted": (
            "the kernel has turned it off for users like this (kernel.io_uring_disabled is 1)",
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        "filter": (
            f"a seccomp filter of this process refuses it ({said})",
            f"docker run --security-opt seccomp=PROFILE.json with a profile that allows {CALLS}",
        ),
        "kernel": ("this kernel has no io_uring", "run Linux 5.1 or later, built with CONFIG_IO_URING=y"),
        "memlock": (
            f"its queues do not fit into the memory that this process may lock ({said})",
            "ulimit -l unlimited",
        ),
        "descriptors": (f"this process has no descriptor left ({said})", "ulimit -n 65536"),
        "other": (f"the system refuses it ({said})", "look at what a security module has refused: dmesg | tail"),
    }[cause]
    return IoUring(usable=False, cause=cause, why=why, fix=fix)


def _cause(said: str, root: Path) -> Cause:
    """Return what is behind native code's words: the call that was refused, and the system's text of the error."""
    if said.startswith(_NO_BUILD):
        return "build"
    status = files.fields(root / "proc/self/status", ":")
    filtered = _number(status.get("Seccomp", ""), 10) == _FILTERED
    disabled = files.number(root / "proc/sys/kernel/io_uring_disabled")
    refused = said.endswith(os.strerror(errno.EPERM))
    if refused and disabled == _FOR_NOBODY:
        return "disabled"
    if refused and disabled == _FOR_THE_FEW and not _number(status.get("CapEff", ""), 16) >> _SYS_ADMIN & 1:
        return "restricted"
    missing = said.endswith(os.strerror(errno.ENOSYS))  # filters answer with that, too
    if filtered and (refused or missing or said.endswith(os.strerror(errno.EACCES))):
        return "filter"
    if missing:
        return "kernel"
    if said.endswith(os.strerror(errno.ENOMEM)):  # the queues count as locked memory
        return "memlock"
    if said.endswith((os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))):
        return "descriptors"
    return "other"


def _number(text: str, base: int) -> int:
    try:
        return int(text.strip(), base)
    except ValueError:
        return 0
