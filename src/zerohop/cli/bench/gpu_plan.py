"""Plans the cases of a benchmark between GPUs, such as `--src cuda:0 --dst cuda:1`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KI, _MI = 1 << 10, 1 << 20
# Sizes in the table of RdmaTransport's documentation.
SEED_SIZES: Final = tuple(8 * _KI << power for power in range(16))
TOGETHER: Final = 1000
LIST: Final = 10_000
TENSOR_BYTES: Final = 200_000
PAGES: Final = 4096
_PAGE_SIZES: Final = (1 * _KI, 4 * _KI, 16 * _KI, 64 * _KI)
ALL_GPUS: Final = "cuda:*"
_EXPANDABLE: Final = "expandable"


def is_gpu(place: str | None) -> bool:
    """Tell whether a place is a real GPU."""
    return place is not None and place.partition(":")[0] in ("cuda", "hip")


def gpu_cases(name: str, src: str, dst: str, sizes: tuple[int, ...] | None, batch: int | None) -> Iterable[Case]:
    """Return the cases of one name between two places, at least one of which is a GPU."""
    if name in ("write", "read"):
        return _transfers(name, src, dst, sizes, batch)
    if name in ("write_pages", "read_pages"):
        pages = Case(name, "p2p", src, dst, batch=batch or PAGES)
        cases = [replace(pages, bytes=nbytes) for nbytes in sizes or _PAGE_SIZES]
        return cases + [replace(case, mode=_EXPANDABLE) for case in cases if _has_torch() and _both(src, dst)]
    if name == "write_notify":
        note = Case(name, "p2p", src, dst, mode="result")
        notes = [replace(note, bytes=nbytes) for nbytes in sizes or (8 * _KI,)]
        return notes + [replace(case, mode=_EXPANDABLE) for case in notes if _has_torch() and _both(src, dst)]
    if name == "all_pairs" and _both(src, dst) and src != dst:
        return [Case(name, "p2p", ALL_GPUS, ALL_GPUS, nbytes) for nbytes in sizes or (256 * _MI,)]
    if name in ("transport_write", "transport_read"):
        return [Case(name, "p2p", src, dst, nbytes) for nbytes in sizes or SEED_SIZES]
    if name == "transport_write_many":
        return [Case(name, "p2p", src, dst, nbytes, batch or LIST) for nbytes in sizes or (8,)]
    if name == "transport_register":
        # The registered tensors are those of the first GPU of the two places.
        device = src if is_gpu(src) else dst
        return registrations(("host", device) if _has_torch() else ("host",), sizes)
    if not _both(src, dst) or not _has_torch():
        return []
    if name == "register":
        tensor = Case(name, src=src, bytes=TENSOR_BYTES)
        return [replace(tensor, mode="cached"), replace(tensor, mode="list", batch=LIST)]
    if name == "stream_wait":
        return [Case(name, src=src)]
    return []


def registrations(places: Sequence[str], sizes: tuple[int, ...] | None) -> list[Case]:
    """Return the cases of `transport_register` for memory of these places."""
    return [
        Case("transport_register", src=place, bytes=nbytes, mode=mode)
        for place in places
        for nbytes in sizes or SEED_SIZES[:1]
        for mode in ("cached", "cold")
    ]


def _transfers(name: str, src: str, dst: str, sizes: tuple[int, ...] | None, batch: int | None) -> list[Case]:
    case = Case(name, "p2p", src, dst, batch=batch or 1)
    cases = [replace(case, bytes=nbytes) for nbytes in sizes or (8, *SEED_SIZES)]
    if sizes or batch:
        return cases
    if name == "write":
        cases.append(replace(case, bytes=8 * _KI, batch=TOGETHER))
    if _both(src, dst):
        if _has_torch():
            cases += [replace(case, bytes=nbytes, mode=_EXPANDABLE) for nbytes in (8 * _KI, 1 * _MI, 256 * _MI)]
        staged = Case(name, "tcp", src, dst, 256 * _MI, form="staged")
        cases += [staged, replace(staged, src="host", dst="host", form="stream")]
    return cases


def _both(src: str, dst: str) -> bool:
    return is_gpu(src) and is_gpu(dst)


@functools.cache
def _has_torch() -> bool:
    """Tell whether there is a torch that can use GPUs: some are built without."""
    if importlib.util.find_spec("torch") is None:
        return False
    return bool(importlib.import_module("torch").cuda.is_available())
