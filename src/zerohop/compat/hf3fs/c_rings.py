"""Offers the functions of 3FS's C interface for rings and descriptors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zerohop.compat.hf3fs import descriptors, io
from zerohop.compat.hf3fs.c_iovs import hf3fs_iov, memory_of
from zerohop.compat.hf3fs.codes import coded, structured
from zerohop.compat.hf3fs.io_ring import IoRing
from zerohop.compat.hf3fs.rings import ioring
from zerohop.config.checks import check_int, check_list, check_seconds

if TYPE_CHECKING:
    from typing import TypeAlias

    # Seconds since 1970, as time.time() counts them, or such seconds and nanoseconds, as a timespec has.
    When: TypeAlias = float | tuple[int, int]


@dataclass(eq=False)
class hf3fs_ior:  # noqa: N801 - 3FS's name
    """Describes a ring; functions of this module fill it in.

    Attributes:
        iov: memory of the ring in 3FS; empty here.
        iorh: the ring itself; None before ``hf3fs_iorcreate4`` and after ``hf3fs_iordestroy``.
        mount_point: the mount point that it was made for.
        for_read: whether it reads.
        io_depth: the size of its batches.
        priority: 0.
        timeout: milliseconds after which a batch begins that is not full.
        flags: as they were given.
    """

    iov: hf3fs_iov = field(default_factory=hf3fs_iov)
    iorh: IoRing | None = None
    mount_point: str = ""
    for_read: bool = True
    io_depth: int = 0
    priority: int = 0
    timeout: int = 0
    flags: int = 0


@dataclass(eq=False)
class hf3fs_cqe:  # noqa: N801 - 3FS's name
    """Holds how one transfer has ended.

    Attributes:
        index: what ``hf3fs_prep_io`` returned.
        reserved: 0.
        result: the bytes that were moved, or -errno.
        userdata: what ``hf3fs_prep_io`` was given.
    """

    index: int = 0
    reserved: int = 0
    result: int = 0
    userdata: Any = None


@coded
def hf3fs_iorcreate4(
    ior: hf3fs_ior,
    hf3fs_mount_point: str,
    entries: int,
    for_read: bool,
    io_depth: int,
    timeout: int,
    numa: int,
    flags: int,
) -> int:
    """Make a ring; arguments as for ``make_ioring``. Results: 0, -EINVAL, -ENOENT (no such mount point)."""
    ior.iorh = IoRing(hf3fs_mount_point, entries, for_read, io_depth, timeout, numa, flags)
    ior.mount_point, ior.for_read, ior.io_depth = hf3fs_mount_point, for_read, io_depth
    ior.priority, ior.timeout, ior.flags = 0, timeout, flags
    return 0


@structured
def hf3fs_iordestroy(ior: hf3fs_ior) -> None:
    """End a ring: what was not begun is dropped, results are lost. Without effect the second time."""
    ring, ior.iorh = ior.iorh, None
    if ring is not None:
        ring.destroy()


def hf3fs_ior_size(entries: int) -> int:
    """Return how much shared memory 3FS takes for such a ring, about."""
    return ioring.size_for_entries(entries)


@coded
def hf3fs_io_entries(ior: hf3fs_ior) -> int:
    """Return the number of entries. Results: that, or -EINVAL."""
    return _ring(ior).entries


def hf3fs_reg_fd(fd: int, flags: int) -> int:
    """Make a descriptor known, as ``register_fd``. Results: 0 or less, which stands for the descriptor; or an errno."""
    code = _hf3fs_reg_fd(fd, flags)
    # This function alone gives errors as numbers above 0.
    return -code if code < 0 else -fd


@coded
def _hf3fs_reg_fd(fd: int, flags: int) -> int:
    descriptors.register_fd(fd, flags)
    return 0


def hf3fs_dereg_fd(fd: int) -> None:
    """Forget a descriptor, as ``deregister_fd``."""
    descriptors.deregister_fd(fd)


@coded
def hf3fs_prep_io(
    ior: hf3fs_ior,
    iov: hf3fs_iov,
    read: bool,
    ptr: int,
    fd: int,
    off: int,
    len: int,  # noqa: A002 - 3FS's name
    userdata: Any,
) -> int:
    """Add a transfer of ``len`` bytes between ``ptr``, within the memory of ``iov``, and a file. Thread-safe.

    Results: its index; -EINVAL (a range, a direction, or something that was destroyed), -EBADF (the descriptor is not
    registered, or is another file's by now), -EACCES (it does not read, or write), -EAGAIN (the ring is full).
    """
    ring = _ring(ior)
    if iov.iovh is None:
        raise ValueError("the iov was not created, or was destroyed")
    # The handle's memory, and not iov.base, which the program may have changed.
    memory = memory_of(iov.iovh)
    at = check_int("ptr", ptr, 0) - memory.address
    return ring.add(memory, at, len, read=read, fd=fd, offset=off, payload=userdata)


@coded
def hf3fs_submit_ios(ior: hf3fs_ior) -> int:
    """Begin transfers, in batches as the ring's ``io_depth`` says. Results: 0, -EINVAL."""
    _ring(ior).submit()
    return 0


@coded
def hf3fs_wait_for_ios(
    ior: hf3fs_ior,
    cqes: hf3fs_cqe | Sequence[hf3fs_cqe],
    cqec: int,
    min_results: int,
    abs_timeout: When | None,
) -> int:
    """Begin what was prepared, wait for results, and fill them in. Results: how many these are, or -EINVAL.

    Args:
        ior: the ring.
        cqes: objects that are filled in; for one, also that itself.
        cqec: their number.
        min_results: results to wait for, ``cqec`` at most; fewer come where no more can.
        abs_timeout: until when: seconds since 1970, or (seconds, nanoseconds); None: no limit.
    """
    ring = _ring(ior)
    places = cqes if isinstance(cqes, Sequence) else [cqes]
    most = check_int("cqec", cqec, 1, len(places))
    done = ring.wait(most, min(most, check_int("min_results", min_results, 0)), _seconds_until(abs_timeout))
    for place, (index, result, payload) in zip(places, done, strict=False):
        place.index, place.result, place.userdata = index, result, payload
    return len(done)


@coded
def hf3fs_hardlink(target: str, link_name: str) -> int:
    """Give a file another name. Results: 0, -errno."""
    io.hardlink(target, link_name)
    return 0


@coded
def hf3fs_punchhole(fd: int, n: int, start: Sequence[int], end: Sequence[int], flags: int) -> int:
    """Make holes of the first ``n`` ranges from ``start[i]`` to ``end[i]``. Results: 0, -errno."""
    check_int("n", n, 0, min(len(check_list("start", start)), len(check_list("end", end))))
    io.punch_hole(fd, start[:n], end[:n], flags)
    return 0


def _ring(ior: hf3fs_ior) -> IoRing:
    if ior.iorh is None:
        raise ValueError("the ring was not created, or was destroyed: use hf3fs_iorcreate4")
    return ior.iorh


def _seconds_until(when: When | None) -> float | None:
    if when is None:
        return None
    seconds, nanoseconds = when if isinstance(when, tuple) else (when, 0)
    return check_seconds("abs_timeout, counted from now,", max(0.0, seconds + nanoseconds / 1e9 - time.time()))
