"""Runs ``zerohop serve``: a server of files, until it is told to stop."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from typing import TYPE_CHECKING, Final

from rich.markup import escape

from zerohop.cli.console import human_bytes, make_console
from zerohop.cli.sizes import parse_sizes
from zerohop.errors import LimitReached, ZerohopError
from zerohop.machine.descriptors import OF_CLIENT, OF_FILE, open_descriptors
from zerohop.machine.host import read_limit
from zerohop.shown import shown
from zerohop.storage import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

# Descriptors without which a server is of no use: those of a client with a few files.
_LEAST_LEFT: Final = OF_CLIENT + 8 * OF_FILE
_ENOUGH: Final = 65536


def run(folder: str, *, listen: str, read_only: bool, threads: int | None, memory: str) -> int:
    """Serve until SIGINT or SIGTERM; return 0, or 2 if it cannot be served."""
    with _stopped() as stop:
        try:
            nbytes = _memory_of(memory)
            server = Server(folder, read_only=read_only, threads=threads, memory=nbytes, listen=listen)
            try:
                _check_descriptors()
            except BaseException:
                server.close()
                raise
        except (ZerohopError, ValueError) as error:
            make_console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
            return 2
        console = make_console()
        with server:
            how = "read only, " if read_only else ""
            _print(console, f"serving {server.folder} {how}by {server.engine}; Ctrl-C ends it")
            _print(console, f"from zerohop.storage import open_store; store = open_store({server.url!r})")
            stop.wait()
            done = server.statistics()
        read, written = human_bytes(done.bytes_read), human_bytes(done.bytes_written)
        console.print(f"{read} were read, {written} written")
    return 0


def _memory_of(text: str) -> int:
    """Return the bytes that --memory names; raise ValueError if it names none, or several."""
    try:
        (nbytes,) = parse_sizes(text)
    except ValueError:
        raise ValueError(f"--memory is one size such as 64Mi or 1Gi, not {shown(text)}") from None
    return nbytes


def _check_descriptors() -> None:
    """Raise LimitReached if a server that has begun has too few descriptors left for clients."""
    limit, taken = read_limit(resource.RLIMIT_NOFILE), open_descriptors()
    if limit.soft is None or taken is None or limit.soft - taken >= _LEAST_LEFT:
        return
    # A user may raise it up to the hard limit, and no further.
    allowed = limit.hard if limit.hard is not None and limit.hard >= taken + _LEAST_LEFT else _ENOUGH
    raise LimitReached(
        f"too few descriptors: {limit.soft - taken} are left (RLIMIT_NOFILE is {limit.soft}), and a client takes "
        f"{OF_CLIENT}, each of its files {OF_FILE}",
        limit="RLIMIT_NOFILE",
        value=limit.soft,
        fix=f"raise the limit: ulimit -n {min(allowed, _ENOUGH)}",
        operation="serve",
    )


def _print(console: Console, text: str) -> None:
    """Print a line that can be copied: neither broken nor changed, whatever characters it has."""
    console.print(text, soft_wrap=True, markup=False, emoji=False, highlight=False)


@contextlib.contextmanager
def _stopped() -> Iterator[threading.Event]:
    """Within, SIGINT and SIGTERM set an event, and nothing else."""
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
