"""Names the rows about files, and plans them: reads in order and in random order, into host memory and a device's."""

from __future__ import annotations

from typing import Final

from zerohop.cli.bench.rows import Case, several_clients

# Blocks in order, and in random order. Their file is on a disk, and read past the page cache, or in memory.
IN_ORDER: Final = "storage_read"
RANDOM: Final = "storage_random"
DISK: Final = "disk"
TMPFS: Final = "tmpfs"
# On a disk, and all of it in the page cache.
CACHED: Final = "cached"
# These rows read a file in memory through a server in another process.
SERVED_IN_ORDER: Final = "storage_served_read"
SERVED_RANDOM: Final = "storage_served_random"
ALL_IN_ORDER: Final = (IN_ORDER, SERVED_IN_ORDER)
SERVED_NAMES: Final = (SERVED_IN_ORDER, SERVED_RANDOM)
# Measured only if somebody names them: they write a large file.
STORAGE_NAMES: Final = (IN_ORDER, RANDOM, *SERVED_NAMES)
# Numbers of client processes that read from one server at once, beside one.
CLIENTS: Final = (2, 4, 8)
# Bytes of a read, and reads under way at once.
IN_ORDER_BYTES: Final = 1 << 20
IN_ORDER_DEPTH: Final = 32
RANDOM_BYTES: Final = 4 << 10
RANDOM_DEPTH: Final = 64
_FILE_BLOCK: Final = 4 << 10  # reads past the page cache are of whole ones


def file_reads(name: str, dst: str | None, batch: int | None, sizes: tuple[int, ...] | None) -> list[Case]:
    """Return the cases of a name: into host memory, and in order also into a device's; into a GPU's from the cache.

    Args:
        name: one of STORAGE_NAMES.
        dst: the only place that is wanted, or None.
        batch: reads under way at once, or None for the table's.
        sizes: bytes of a read, of which those are taken that can go past the page cache; None for the table's.
    """
    in_order = name == IN_ORDER
    size, depth = (IN_ORDER_BYTES, IN_ORDER_DEPTH) if in_order else (RANDOM_BYTES, RANDOM_DEPTH)
    places = ["host", "sim"] if in_order else ["host"]
    if dst is not None:
        places = [dst] if in_order or dst == "host" else []
    return [
        Case(name, None, "file", place, nbytes, batch or depth, form=form)
        for nbytes in sizes or (size,)
        for place in places
        # The floor of the first is of CUDA's driver.
        for form in ([CACHED] if place.startswith("cuda") else [DISK] if in_order else [DISK, TMPFS])
        if nbytes % _FILE_BLOCK == 0
    ]


def is_gpu(place: str | None) -> bool:
    """Tell whether a place is a GPU's memory."""
    return place is not None and place.startswith(("cuda", "hip"))


def served_reads(name: str, dst: str | None, batch: int | None, sizes: tuple[int, ...] | None) -> list[Case]:
    """Return the cases of one of SERVED_NAMES: over shm, and in order also into a device, over tcp and by many clients.

    The arguments are those of ``file_reads``.
    """
    in_order = name == SERVED_IN_ORDER
    size, depth = (IN_ORDER_BYTES, IN_ORDER_DEPTH) if in_order else (RANDOM_BYTES, RANDOM_DEPTH)
    ways = [
        ("host", "shm", None),
        # A server reaches a device's memory by p2p alone, unless it passes through the client.
        (dst if dst not in (None, "host") else "sim", "p2p", None),
        ("host", "tcp", None),
        *(("host", "shm", several_clients(count)) for count in CLIENTS),
    ]
    return [
        Case(name, provider, "file", place, nbytes, batch or depth, form=TMPFS, mode=mode)
        for nbytes in sizes or (size,)
        for place, provider, mode in (ways if in_order else ways[:1])
        if nbytes % _FILE_BLOCK == 0 and dst in (None, place)
    ]
