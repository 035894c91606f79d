"""Which cases a benchmark run measures: the default table, narrowed by what the user asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAMES: Final = ("write", "read", "write_notify", "write_pages", "read_pages", "register", "idle", "import")
PROVIDERS: Final = ("shm", "tcp")
_KI, _MI, _GI = 1 << 10, 1 << 20, 1 << 30
_SIZES: Final = (8, 8 * _KI, 1 * _MI, 64 * _MI)
_SMALL: Final = 64  # up to here it matters whether the target is awake
_PAGE_BYTES, _PAGES = 1 * _KI, 256
_OBJECTS_BYTES: Final = 512
_UNITS: Final = {"": 1, "k": 1000, "ki": _KI, "m": 10**6, "mi": _MI, "g": 10**9, "gi": _GI}


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; empty or None leaves a choice to the table."""

    names: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    src: str | None = None
    dst: str | None = None
    sizes: str | None = None
    batch: int | None = None
    wheel: Path | None = None
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One row to measure.

    Attributes:
        name: one of NAMES, or "wheel".
        provider: "shm", "tcp", or None where no transfer is measured.
        src: "host" or "sim": where the bytes come from.
        dst: where they go.
        bytes: of one operation, or of one page.
        batch: operations in flight, or pages in one operation.
        form: "mapped" (memory that `Context.alloc` gave), "ring" (any other host memory), "stream" (TCP) or "staged"
            (device memory).
        mode: how the callers wait ("result", "await", "await-asleep"), or "cold" and "cached".
        target: "polling" when the target's Python waits while its Context spins, "asleep" when everything there
            sleeps; None: as it comes.
    """

    name: str
    provider: str | None = None
    src: str | None = None
    dst: str | None = None
    bytes: int = 0
    batch: int = 1
    form: str | None = None
    mode: str | None = None
    target: str | None = None

    @property
    def memory_bytes(self) -> int:
        """What measuring it takes at least, in both processes together."""
        if self.provider is None:
            return self.bytes if self.name == "register" else 0
        # The source, the target and the payload that they are compared with; and an object or two per operation.
        objects = _OBJECTS_BYTES * self.batch if self.name in ("write", "read") else 0
        return 3 * self.bytes * self.batch + objects


def parse_sizes(text: str) -> tuple[int, ...]:
    """Reads "8,64Ki,64Mi": numbers above 0 with k, M, G (thousands) or Ki, Mi, Gi (1024).

    Raises:
        ValueError: something in it is no size.
    """
    sizes = []
    for word in text.split(","):
        number = word.strip().rstrip("kKmMgGiI")
        unit = word.strip()[len(number) :].lower()
        if not number.isdigit() or unit not in _UNITS or int(number) == 0:
            raise ValueError(f"{word.strip()!r} is not a size such as 8, 64Ki or 64Mi")
        sizes.append(int(number) * _UNITS[unit])
    return tuple(sizes)


def plan(request: Request) -> list[Case]:
    """Returns the cases to measure, in the order of the table.

    Raises:
        ValueError: the request names something unknown, or nothing would be measured.
    """
    for what, given, known in (("name", request.names, NAMES), ("provider", request.providers, PROVIDERS)):
        for word in given:
            if word not in known:
                raise ValueError(f"unknown {what} {word!r}; there are {', '.join(known)}")
    sizes = parse_sizes(request.sizes) if request.sizes else None
    names = request.names or NAMES
    cases = [case for name in NAMES if name in names for case in _of(name, request, sizes)]
    if request.wheel is not None:
        cases.append(Case("wheel", bytes=request.wheel.stat().st_size))
    if not cases:
        raise ValueError("no row of the benchmark fits these options")
    return cases


def _of(name: str, request: Request, sizes: tuple[int, ...] | None) -> Iterable[Case]:
    if name in ("idle", "import", "register"):
        return [] if request.providers or request.src or request.dst else _without_transfer(name, sizes)
    if name in ("write", "read"):
        cases = _transfers(name, sizes, mixed=request.src is not None or request.dst is not None)
    elif name == "write_notify":
        cases = _notified(sizes)
    else:
        cases = _page_lists(name, sizes)
    batch = request.batch
    return [
        replace(case, batch=batch) if batch is not None and name != "write_notify" else case
        for case in cases
        if (not request.providers or case.provider in request.providers)
        and request.src in (None, case.src)
        and request.dst in (None, case.dst)
    ]


def _transfers(name: str, sizes: tuple[int, ...] | None, *, mixed: bool) -> list[Case]:
    cases = []
    places = (("sim", "sim"), ("host", "sim"), ("sim", "host")) if mixed else (("sim", "sim"),)
    for nbytes in sizes or _SIZES:
        host = Case(name, "shm", "host", "host", nbytes)
        cases.append(replace(host, form="mapped"))
        small = nbytes <= _SMALL
        cases += [replace(host, form="ring", target=target) for target in (("polling", "asleep") if small else (None,))]
        cases.append(replace(host, provider="tcp", form="stream"))
    for nbytes in sizes or (1 * _MI, 64 * _MI):
        for provider in PROVIDERS:
            for src, dst in places:
                cases.append(Case(name, provider, src, dst, nbytes, form="staged"))
    return cases


def _notified(sizes: tuple[int, ...] | None) -> list[Case]:
    return [
        Case("write_notify", provider, "host", "host", nbytes, form=form, mode=mode)
        for nbytes in sizes or (8,)
        for provider, form in (("shm", "mapped"), ("shm", "ring"), ("tcp", "stream"))
        for mode in ("result", "await", "await-asleep")
    ]


def _page_lists(name: str, sizes: tuple[int, ...] | None) -> list[Case]:
    cases = []
    for nbytes in sizes or (_PAGE_BYTES,):
        host = Case(name, "shm", "host", "host", nbytes, batch=_PAGES)
        cases.append(replace(host, form="mapped"))
        cases.append(replace(host, form="ring"))
        cases.append(replace(host, provider="tcp", form="stream"))
    return cases


def _without_transfer(name: str, sizes: tuple[int, ...] | None) -> list[Case]:
    if name == "register":
        register = [Case(name, src="host", bytes=nbytes) for nbytes in sizes or (_GI,)]
        return [replace(case, mode=mode) for case in register for mode in ("cold", "cached")]
    return [Case(name)]
