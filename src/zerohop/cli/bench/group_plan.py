"""Names the rows about ranks, and plans them."""

from __future__ import annotations

from typing import Final

from zerohop.cli.bench.rows import Case

SEND: Final = "group_send"  # half a round trip of send and recv
AM: Final = "group_am"  # active messages of a batch, until the object that they are for has noticed all of them
IDLE: Final = "group_idle"  # a receive that waits
BARRIER: Final = "group_barrier"
ALLREDUCE: Final = "group_allreduce"  # a sum of float32
GROUP_NAMES: Final = (SEND, AM, IDLE, BARRIER, ALLREDUCE)
_KI, _MI = 1 << 10, 1 << 20
_SEND_BYTES: Final = (8, 1 * _MI, 64 * _MI)
_GPU_BYTES: Final = (8 * _KI, 1 * _MI, 256 * _MI)
_REDUCED_BYTES: Final = (64 * _KI, 32 * _MI)
_PROVIDERS: Final = ("shm", "tcp")
# How active messages are sent and received: by am, by am_many of one thread, and of eight, all to a Counter; and by
# am_many to a CompletionList, each of which Python handles.
ONE, MANY, THREADS, HANDLED = "am", "am_many", "am_many, 8 threads", "am_many, handled"
AM_BATCHES: Final = {ONE: 1000, MANY: 1_000_000, THREADS: 1_000_000, HANDLED: 1000}


def group_cases(name: str, src: str | None, dst: str | None, sizes: tuple[int, ...] | None) -> list[Case]:
    """Return the cases of a name, between two ranks: with memory of the host, or messages between devices."""
    if src is not None and dst is not None and {src, dst} != {"host"}:
        lengths = (sizes or _GPU_BYTES) if name == SEND else ()
        return [Case(name, "p2p", src, dst, nbytes, mode="result") for nbytes in lengths]
    cases = []
    for provider in _PROVIDERS:
        if name == SEND:
            for nbytes in sizes or _SEND_BYTES:
                modes = ("result", "await") if nbytes <= _KI else ("result",)
                cases += [Case(name, provider, "host", "host", nbytes, mode=mode) for mode in modes]
        elif name == ALLREDUCE:
            cases += [Case(name, provider, "host", "host", nbytes) for nbytes in sizes or _REDUCED_BYTES]
        elif name == AM:
            nbytes = sizes[0] if sizes else 8
            cases += [
                Case(name, provider, "host", "host", nbytes, mode=mode, batch=batch)
                for mode, batch in AM_BATCHES.items()
            ]
        else:
            cases.append(Case(name, provider, "host", "host"))
    return cases
