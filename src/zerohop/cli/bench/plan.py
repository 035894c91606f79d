"""Plans the cases of a benchmark run: the default table, or the one between GPUs, narrowed by the user's request."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.device_plan import DEVICE_NAMES, kernel_cases
from zerohop.cli.bench.group_plan import GROUP_NAMES, group_cases
from zerohop.cli.bench.report import describe_case
from zerohop.cli.bench.rows import (
    ENCRYPTED,
    FLOWS,
    LIST,
    PAGES,
    RANGE_BYTES,
    RANGES,
    SEED_SIZES,
    TENSOR_BYTES,
    TOGETHER,
    Case,
    is_gpu,
    several_flows,
)
from zerohop.cli.bench.storage_plan import SERVED_NAMES, STORAGE_NAMES, file_reads, served_reads
from zerohop.cli.bench.tensors import has_torch
from zerohop.cli.sizes import parse_sizes
from zerohop.core.lanes.path_choice import PEER
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

NAMES: Final = (
    *("write", "read", "write_notify", "write_pages", "read_pages", "write_list", "read_list"),
    *("register", "views", "first_use", "raw", "idle", "import"),
    *("stream_wait", "all_pairs"),  # for GPUs only
    *("transport_write", "transport_read", "transport_write_many", "transport_register"),
)
# Rows that are measured only if somebody names them.
_NAMED: Final = (*STORAGE_NAMES, *DEVICE_NAMES, *GROUP_NAMES)
# Each requests all names that begin with it.
TRANSPORT: Final = "transport"
STORAGE: Final = "storage"
DEVICE: Final = "device"
GROUP: Final = "group"
MANY: Final = "transport_write_many"
PROVIDERS: Final = ("p2p", "shm", "tcp")
_HOST_PROVIDERS: Final = ("shm", "tcp")
_KI, _MI, _GI = 1 << 10, 1 << 20, 1 << 30
_SIZES: Final = (8, 8 * _KI, 1 * _MI, 64 * _MI)
# Providers and forms of transfers from host memory to host memory.
_BETWEEN_HOSTS: Final = (("shm", "mapped"), ("shm", "ring"), ("tcp", "stream"))
# Pairs of places with simulated devices: the first pair is measured even if nobody names a place.
_SIMULATED: Final = (("sim", "sim"), ("host", "sim"), ("sim", "host"))
_SIM_DEVICES: Final = 64  # a Context can have this many
_SMALL_WRITE: Final = 8 * _KI
_SMALL: Final = 64  # up to this size it matters whether the target is awake
_PAGE_BYTES, _PAGES = 1 * _KI, 256
_LISTS: Final = ("write_list", "read_list")
_ONE_BY_ONE: Final = ("write_notify", "first_use", "raw")
_FEW_RANGES: Final = 5000  # of a quick run
_VIEWS, _FEW_VIEWS, _VIEW_BYTES = (10_000, 20_000), (1000,), 64
_FIRST_BYTES: Final = 4 * _KI
_RAW_BYTES: Final = 64 * _KI
_GPU_PAGE_SIZES: Final = (1 * _KI, 4 * _KI, 16 * _KI, 64 * _KI)
ALL_GPUS: Final = "cuda:*"
_EXPANDABLE: Final = "expandable"


@dataclass(frozen=True, slots=True)
class Request:
    """Holds the user's request; empty or None leaves a choice to the table."""

    names: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    src: str | None = None
    dst: str | None = None
    sizes: str | None = None
    batch: int | None = None
    wheel: Path | None = None
    quick: bool = False
    filter: str | None = None
    folder: str | None = None


def parse_filter(text: str) -> re.Pattern[str]:
    """Parse the regular expression that rows are to match.

    Raises:
        ValueError: the text is none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what Python's may mean one day
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the filter {shown(text)} is no regular expression: {error}") from None


def plan(request: Request) -> list[Case]:
    """Return the cases to measure, in the order of the table.

    Raises:
        ValueError: the request names something unknown, or nothing would be measured.
    """
    for what, given, known in (
        ("name", request.names, (*NAMES, TRANSPORT, *_NAMED, STORAGE, DEVICE, GROUP)),
        ("provider", request.providers, PROVIDERS),
    ):
        for word in given:
            if word not in known:
                raise ValueError(f"unknown {what} {word!r}; there are {', '.join(known)}")
    request = replace(request, src=_place(request.src), dst=_place(request.dst))
    sizes = parse_sizes(request.sizes) if request.sizes else None
    names = request.names or NAMES
    known_names = (*NAMES, *_NAMED)
    for family in (TRANSPORT, STORAGE, DEVICE, GROUP):
        if family in names:
            names = (*names, *(name for name in known_names if name.startswith(family)))
    cases = [case for name in known_names if name in names for case in _cases_of(name, request, sizes)]
    if MANY not in request.names and request.batch is None:
        # Sizes are meant for the other rows: 10,000 writes of 1 MiB are not small, and do not fit into memory.
        cases = [case for case in cases if case.name != MANY or case.bytes <= _SMALL_WRITE]
    if request.wheel is not None:
        cases.append(Case("wheel", bytes=request.wheel.stat().st_size))
    if request.filter is not None:
        kept = parse_filter(request.filter)
        cases = [case for case in cases if any(map(kept.search, _texts(case)))]
    if not cases and set(names) <= {DEVICE, *DEVICE_NAMES}:
        raise ValueError("rows about kernels need GPUs, and these options; type --src cuda:0 --dst cuda:1")
    if not cases:
        raise ValueError("no row of the benchmark fits these options")
    return cases


def _texts(case: Case) -> set[str]:
    """Return the texts that a filter searches: as announced, and as in the table, with the form that p2p takes."""
    return {describe_case(case), describe_case(replace(case, form=case.form or (PEER if case.provider else None)))}


def _place(word: str | None) -> str | None:
    """Return the place that a word names; a kind of GPU stands for its first device, as does "sim"."""
    if word is None or word in ("host", "sim"):
        return word
    kind, colon, number = word.partition(":")
    if not (is_gpu(kind) or kind == "sim") or (colon and not number.isdecimal()):
        raise ValueError(f"{word!r} is no place; there are host, sim, sim:1, …, and GPUs such as cuda:0")
    if kind == "sim" and int(number) >= _SIM_DEVICES:
        raise ValueError(f"{word!r} is no place; there are sim:0 to sim:{_SIM_DEVICES - 1}")
    return f"{kind}:{int(number or 0)}"


def _cases_of(name: str, request: Request, sizes: tuple[int, ...] | None) -> Iterable[Case]:
    if name in SERVED_NAMES:
        cases = [] if request.src else served_reads(name, request.dst, request.batch, sizes)
        return [case for case in cases if not request.providers or case.provider in request.providers]
    if name in STORAGE_NAMES:
        return [] if request.providers or request.src else file_reads(name, request.dst, request.batch, sizes)
    src, dst = request.src or request.dst, request.dst or request.src
    if name in DEVICE_NAMES:
        cases = kernel_cases(name, src, dst, sizes)
        return [case for case in cases if not request.providers or case.provider in request.providers]
    if name in GROUP_NAMES:
        cases = group_cases(name, src, dst, sizes)
        return [case for case in cases if not request.providers or case.provider in request.providers]
    if src is not None and dst is not None and (is_gpu(src) or is_gpu(dst)):
        cases = list(_gpu_cases(name, src, dst, sizes, request))
        return [case for case in cases if not request.providers or case.provider in request.providers]
    if name in ("stream_wait", "all_pairs"):
        return []
    if name == "transport_register":
        # Simulated devices have no such row: a Context already knows the memory that it has allocated.
        return [] if request.providers else _registrations(("host",), sizes)
    if name in ("idle", "import", "register") and (request.providers or request.src or request.dst):
        return []
    if name in ("idle", "import"):
        return [Case(name)]
    if name == "register":
        modes = ("cold", "cached")
        return [Case(name, src="host", bytes=nbytes, mode=mode) for nbytes in sizes or (_GI,) for mode in modes]
    if name in ("write", "read"):
        cases = _transfers(name, sizes, mixed=request.src is not None or request.dst is not None)
    elif name == "write_notify":
        cases = _notified(sizes)
    elif name == "views":
        cases = _views(Case(name, "shm", "host", "host", form="mapped"), sizes, request)
    elif name == "first_use":
        cases = [Case(name, "shm", "host", "host", nbytes, form="ring") for nbytes in sizes or (_FIRST_BYTES,)]
    elif name == "raw":
        cases = [Case(name, "shm", "host", "host", nbytes, form="ring") for nbytes in sizes or (_RAW_BYTES,)]
    elif name.startswith(TRANSPORT):
        cases = _transport_cases(name, sizes, request)
    elif name in _LISTS:
        cases = _range_lists(name, sizes, _FEW_RANGES if request.quick else RANGES)
    else:
        cases = _page_lists(name, sizes)
    return [
        replace(
            case,
            src=request.src or case.src,
            dst=request.dst or case.dst,
            batch=case.batch if request.batch is None or name in _ONE_BY_ONE else request.batch,
        )
        for case in cases
        if (not request.providers or case.provider in request.providers)
        and _kind(request.src) in (None, case.src)
        and _kind(request.dst) in (None, case.dst)
    ]


def _kind(place: str | None) -> str | None:
    """Return the table's name of a place, without a number: "sim" stands for all simulated devices."""
    return None if place is None else place.partition(":")[0]


def _transfers(name: str, sizes: tuple[int, ...] | None, *, mixed: bool) -> list[Case]:
    cases = []
    places = _SIMULATED if mixed else _SIMULATED[:1]
    for nbytes in sizes or _SIZES:
        host = Case(name, "shm", "host", "host", nbytes)
        cases.append(replace(host, form="mapped"))
        small = nbytes <= _SMALL
        cases += [replace(host, form="ring", target=target) for target in (("polling", "asleep") if small else (None,))]
        stream = replace(host, provider="tcp", form="stream")
        cases += [replace(stream, target=target) for target in ((None, "asleep") if small else (None,))]
        if name == "write":
            cases.append(replace(stream, mode=ENCRYPTED))
    if sizes is None:
        cases += _with_flows(Case(name, "tcp", "host", "host", 256 * _MI, form="stream"), FLOWS[:1])
    for nbytes in sizes or (1 * _MI, 64 * _MI):
        for provider in _HOST_PROVIDERS:
            for src, dst in places:
                cases.append(Case(name, provider, src, dst, nbytes, form="staged"))
    return cases


def _with_flows(case: Case, several: Sequence[int] = FLOWS) -> list[Case]:
    """Return the case over one flow, and over several of them; machines with GPUs have processors for many."""
    return [case, *(replace(case, mode=several_flows(count)) for count in several)]


def _transport_cases(name: str, sizes: tuple[int, ...] | None, request: Request) -> list[Case]:
    """Return RdmaTransport's table over mapped memory; other paths if they are requested, or cost little."""
    many = name == MANY
    asked = {_kind(request.src), _kind(request.dst), *request.providers}
    every = many or sizes is not None
    cases = []
    for nbytes in sizes or ((8,) if many else SEED_SIZES):
        host = Case(name, "shm", "host", "host", nbytes, batch=LIST if many else 1)
        cases.append(replace(host, form="mapped"))
        if every:
            cases.append(replace(host, form="ring"))
        if every or "tcp" in asked:
            cases.append(replace(host, provider="tcp", form="stream"))
        if every or asked & {"sim", "p2p"}:
            places = _SIMULATED if "sim" in asked else _SIMULATED[:1]
            cases += [replace(host, provider="p2p", src=src, dst=dst) for src, dst in places]
    return cases


def _notified(sizes: tuple[int, ...] | None) -> list[Case]:
    return [
        Case("write_notify", provider, "host", "host", nbytes, form=form, mode=mode)
        for nbytes in sizes or (8,)
        for provider, form in _BETWEEN_HOSTS
        for mode in ("result", "await", "await-asleep")
    ]


def _views(case: Case, sizes: tuple[int, ...] | None, request: Request) -> list[Case]:
    counts = (request.batch,) if request.batch else _FEW_VIEWS if request.quick else _VIEWS
    return [replace(case, bytes=nbytes, batch=count) for nbytes in sizes or (_VIEW_BYTES,) for count in counts]


def _page_lists(name: str, sizes: tuple[int, ...] | None) -> list[Case]:
    return [
        Case(name, provider, "host", "host", nbytes, batch=_PAGES, form=form)
        for nbytes in sizes or (_PAGE_BYTES,)
        for provider, form in _BETWEEN_HOSTS
    ]


def _range_lists(name: str, sizes: tuple[int, ...] | None, count: int) -> list[Case]:
    return [
        # A tenth is enough where it takes much longer, and its floor knows nothing of ranges.
        Case(name, provider, "host", "host", nbytes, batch=count if form == "mapped" else count // 10, form=form)
        for nbytes in sizes or (RANGE_BYTES,)
        for provider, form in _BETWEEN_HOSTS
    ]


def _gpu_cases(name: str, src: str, dst: str, sizes: tuple[int, ...] | None, request: Request) -> Iterable[Case]:
    """Return the cases of one name between two places, at least one of which is a GPU."""
    batch = request.batch
    if name in ("write", "read"):
        return _gpu_transfers(name, src, dst, sizes, batch)
    if name in ("write_pages", "read_pages"):
        pages = Case(name, "p2p", src, dst, batch=batch or PAGES)
        cases = [replace(pages, bytes=nbytes) for nbytes in sizes or _GPU_PAGE_SIZES]
        return cases + [replace(case, mode=_EXPANDABLE) for case in cases if has_torch() and _both(src, dst)]
    if name in _LISTS:
        return [Case(name, "p2p", src, dst, nbytes, batch or RANGES) for nbytes in sizes or (RANGE_BYTES,)]
    if name == "write_notify":
        note = Case(name, "p2p", src, dst, mode="result")
        notes = [replace(note, bytes=nbytes) for nbytes in sizes or (8 * _KI,)]
        return notes + [replace(case, mode=_EXPANDABLE) for case in notes if has_torch() and _both(src, dst)]
    if name == "all_pairs" and _both(src, dst) and src != dst:
        return [Case(name, "p2p", ALL_GPUS, ALL_GPUS, nbytes) for nbytes in sizes or (256 * _MI,)]
    if name in ("transport_write", "transport_read"):
        return [Case(name, "p2p", src, dst, nbytes) for nbytes in sizes or SEED_SIZES]
    if name == "transport_write_many":
        return [Case(name, "p2p", src, dst, nbytes, batch or LIST) for nbytes in sizes or (8,)]
    if name == "transport_register":
        # The registered tensors are those of the first GPU of the two places.
        device = src if is_gpu(src) else dst
        return _registrations(("host", device) if has_torch() else ("host",), sizes)
    if not _both(src, dst):
        return []
    if name == "views":
        return _views(Case(name, "p2p", src, dst), sizes, request)
    if name == "first_use":
        first = Case(name, "p2p", src, dst)
        return [replace(first, bytes=n, mode=mode) for n in sizes or (_FIRST_BYTES,) for mode in ("known", "new")]
    if name == "raw":
        return [Case(name, "p2p", src, dst, nbytes) for nbytes in sizes or (_RAW_BYTES,)]
    if not has_torch():
        return []
    if name == "register":
        tensor = Case(name, src=src, bytes=TENSOR_BYTES)
        return [replace(tensor, mode="cached"), replace(tensor, mode="list", batch=LIST)]
    if name == "stream_wait":
        return [Case(name, src=src)]
    return []


def _registrations(places: Sequence[str], sizes: tuple[int, ...] | None) -> list[Case]:
    """Return the cases of `transport_register` for memory of these places."""
    return [
        Case("transport_register", src=place, bytes=nbytes, mode=mode)
        for place in places
        for nbytes in sizes or SEED_SIZES[:1]
        for mode in ("cached", "cold")
    ]


def _gpu_transfers(name: str, src: str, dst: str, sizes: tuple[int, ...] | None, batch: int | None) -> list[Case]:
    case = Case(name, "p2p", src, dst, batch=batch or 1)
    cases = [replace(case, bytes=nbytes) for nbytes in sizes or (8, *SEED_SIZES)]
    if sizes or batch:
        return cases
    if name == "write":
        cases.append(replace(case, bytes=8 * _KI, batch=TOGETHER))
    if _both(src, dst):
        if has_torch():
            cases += [replace(case, bytes=nbytes, mode=_EXPANDABLE) for nbytes in (8 * _KI, 1 * _MI, 256 * _MI)]
        staged = Case(name, "tcp", src, dst, 256 * _MI, form="staged")
        cases += _with_flows(staged) + _with_flows(replace(staged, src="host", dst="host", form="stream"))
    return cases


def _both(src: str, dst: str) -> bool:
    return is_gpu(src) and is_gpu(dst)
