"""Waits, for a limited time, for words that the host or peers change."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import is_hip

from zerohop.device.triton.fields import HEAD, POLLED, TIMEOUT_NS
from zerohop.device.triton.words import (
    HAS_ATOMIC_LOAD,
    OK,
    TIMED_OUT,
    agreed,
    as_word,
    load_near,
    look_together,
    now,
    read,
    state_by,
    word,
)

# Looks between two at the clock and at words of the host, which take longer than a look at the GPU's own memory.
_SPINS = tl.constexpr(64)
_COUNT = tl.constexpr((1 << 62) - 1)


@triton.jit
def _acquire(queue):
    """Let the program see, from here on, what the host wrote before the words that it has looked at."""
    if is_hip():  # elsewhere each look does that
        load_near(read(queue, HEAD))


@triton.jit
def _has_reached(address, wanted, on_host):
    reached = tl.full((), 0, tl.int32)
    if HAS_ATOMIC_LOAD:
        reached = (look_together(address) >= wanted).to(tl.int32)
    elif on_host == 0:
        reached = (load_near(address) >= wanted).to(tl.int32)
    else:
        reached = (look_together(address) >= wanted).to(tl.int32)
    return reached


@triton.jit
def wait_for(queue, peer, address, number, on_host):
    """Wait until a word that others change is ``number`` or more, or no wait can succeed; return the status."""
    status = as_word(OK)
    wanted = as_word(number)
    until = now() + read(queue, TIMEOUT_NS)
    reached = tl.full((), 0, tl.int32)
    last = tl.full((), 0, tl.int32)
    # One look more after the reason to stop: what was waited for may have come with it.
    while (reached == 0) & (last == 0):
        last = (status != OK).to(tl.int32)
        spins = tl.full((), 0, tl.int32)
        while (reached == 0) & (spins < _SPINS):
            reached = _has_reached(address, wanted, on_host)
            spins += 1
        if (reached == 0) & (last == 0):
            status = state_by(queue, peer, until)
    if reached != 0:
        status = as_word(OK)
    if on_host != 0:
        _acquire(queue)
    tl.debug_barrier()
    return status


@triton.jit
def _reached_or_failed(value, wanted):
    """Tell whether a counter of the host has reached a number, or carries the failure bit."""
    return ((value < 0) | ((value & _COUNT) >= wanted)).to(tl.int32)


@triton.jit
def begin_count(copy):
    """Begin a wait for a counter of the host; return what `wait_for_count` has to be given."""
    return tl.atomic_or(word(copy, 0), POLLED, sem="acquire", scope="sys")


@triton.jit
def begin_flush(posted, copy):
    """Begin such a wait for all that was posted by now; return how many entries that are, and the same.

    One atomic does both: two would follow each other, 0.4 µs apart (H200).
    """
    which = tl.arange(0, 2)
    at = word(tl.where(which == 0, posted, copy), 0)
    found = tl.atomic_or(at, tl.where(which == 0, as_word(0), POLLED), sem="acquire", scope="sys")
    return tl.sum(tl.where(which == 0, found, 0), 0), tl.sum(tl.where(which == 1, found, 0), 0)


@triton.jit
def wait_for_count(queue, peer, host, copy, begun, number, timeout_ns, progress_restarts: tl.constexpr):
    """Wait until a counter of the host is ``number`` or more, or carries FAILURE; return the status and the counter.

    One of the programs that wait for the same counter polls the memory of the host. It copies the counter into memory
    of the GPU, where the others poll it: if all of them polled over PCIe, their reads would fill the link, and entries
    would not pass. ``begun``: from `begin_count`; ``progress_restarts``: the time begins again whenever the counter
    has grown.
    """
    status = as_word(OK)
    wanted = as_word(number)
    value = begun
    polls = ((value & POLLED) == 0).to(tl.int32)
    if _reached_or_failed(value & ~POLLED, wanted) == 0:
        last = value
        spins = tl.full((), 0, tl.int32)
        until = now() + timeout_ns
        while (_reached_or_failed(value & ~POLLED, wanted) == 0) & (status == OK):
            if polls != 0:
                found = look_together(host)
                if (found != value) & (_reached_or_failed(found, wanted) == 0):
                    tl.atomic_xchg(word(copy, 0), found | POLLED, sem="release", scope="gpu")
                value = found
            else:
                value = load_near(copy)
                if (value & POLLED) == 0:
                    before = tl.atomic_cas(word(copy, 0), value, value | POLLED, sem="acquire", scope="gpu")
                    polls = (before == value).to(tl.int32)
                    # The one before may have stopped for a reason that ends this wait as well.
                    spins = tl.where(polls != 0, _SPINS - 1, spins)
            spins += 1
            if spins == _SPINS:
                spins = tl.full((), 0, tl.int32)
                if progress_restarts:
                    if ((value ^ last) & ~POLLED) != 0:
                        last = value
                        until = now() + timeout_ns
                # Only the one that polls reads the states: they are in memory of the host as well.
                if polls != 0:
                    status = state_by(queue, peer, until)
                else:
                    status = as_word(agreed((now() > until).to(tl.int32) * TIMED_OUT))
        if status != OK:
            # One look more: what was waited for may have come with the reason to stop.
            value = look_together(host)
            if _reached_or_failed(value, wanted) != 0:
                status = as_word(OK)
    if polls != 0:
        tl.atomic_xchg(word(copy, 0), value & ~POLLED, sem="release", scope="gpu")
        _acquire(queue)
    tl.debug_barrier()
    return status, value & ~POLLED
