"""Whether files can be read by io_uring, and what is in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zerohop._native import why_no_uring
from zerohop.machine.io_uring import IoUring, read_io_uring

NO_BUILD = "this build has no io_uring: liburing.h was not there (apt-get install liburing-dev)"
ALL, NO_ADMIN = 0x1FFFFFFFFFF, 0x1FFFFDFFFFF


def put(root: Path, *, disabled: int | None = None, seccomp: int | None = None, capabilities: int = NO_ADMIN) -> Path:
    """A /proc."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/sys/kernel").mkdir(parents=True)
    if disabled is not None:
        (root / "proc/sys/kernel/io_uring_disabled").write_text(f"{disabled}\n")
    lines = [f"CapEff:\t{capabilities:016x}", *([] if seccomp is None else [f"Seccomp:\t{seccomp}"])]
    (root / "proc/self/status").write_text("\n".join(lines))
    return root


def refusal(number: int) -> str:
    return f"io_uring_setup: {os.strerror(number)}"


@pytest.mark.parametrize(
    ("said", "proc", "cause", "why", "fix"),
    [
        (
            NO_BUILD,
            {"disabled": 2},
            "build",
            "built without liburing's headers",
            "apt-get install -y liburing-dev; # then",
        ),
        (
            refusal(errno.EPERM),
            {"disabled": 2, "seccomp": 2},
            "disabled",
            "io_uring_disabled is 2",
            "sysctl -w kernel.io_",
        ),
        (refusal(errno.EPERM), {"disabled": 1}, "restricted", "io_uring_disabled is 1", "sysctl -w kernel.io_uring_"),
        # Who has CAP_SYS_ADMIN is none of those users.
        (
            refusal(errno.EPERM),
            {"disabled": 1, "seccomp": 2, "capabilities": ALL},
            "filter",
            "a seccomp filter",
            "docker",
        ),
        (
            refusal(errno.EPERM),
            {"disabled": 0, "seccomp": 2},
            "filter",
            "a seccomp filter",
            "docker run --security-opt",
        ),
        (refusal(errno.ENOSYS), {"seccomp": 2}, "filter", "a seccomp filter", "docker run --security-opt seccomp=PROF"),
        (
            refusal(errno.EPERM),
            {"disabled": 0, "seccomp": 0},
            "other",
            "not permitted",
            "look at what a security module",
        ),
        (
            refusal(errno.EPERM),
            {},
            "other",
            "the system refuses it (io_uring_setup: Operation not permitted)",
            "look at",
        ),
        (refusal(errno.ENOSYS), {"seccomp": 0}, "kernel", "this kernel has no io_uring", "run Linux 5.1 or later"),
        (refusal(errno.ENOMEM), {"seccomp": 2}, "memlock", "may lock (io_uring_setup: Cannot", "ulimit -l unlimited"),
        (refusal(errno.EMFILE), {}, "descriptors", "no descriptor left (io_uring_setup: Too", "ulimit -n 65536"),
        (refusal(errno.EIO), {"disabled": 2}, "other", "the system refuses it", "look at what a security module"),
    ],
)
def test_what_is_in_the_way(tmp_path: Path, said: str, proc: dict[str, int], cause: str, why: str, fix: str) -> None:
    found = read_io_uring(put(tmp_path, **proc), said)
    assert (found.usable, found.cause) == (False, cause)
    assert why in found.why
    assert found.fix.startswith(fix)


def test_nothing_is(tmp_path: Path) -> None:
    assert read_io_uring(put(tmp_path, disabled=2), "") == IoUring(usable=True)


def test_this_process() -> None:
    """A Store of this process says the same."""
    found = read_io_uring()
    assert found.usable == (why_no_uring() == "")
    assert bool(found.why) == bool(found.fix) == (not found.usable)
    assert read_io_uring(Path("/nonexistent"), refusal(errno.EPERM)).cause == "other"
