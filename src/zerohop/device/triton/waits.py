"""Waits, for a limited time, for words that the host or peers change."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.fields import HEAD, RENEWED, TIMEOUT_NS
from zerohop.device.triton.words import (
    HAS_ATOMIC_LOAD,
    OK,
    TIMED_OUT,
    agreed,
    as_word,
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
    """Let the program see, from here on, what the host wrote before the words that the program has looked at."""
    tl.atomic_add(word(read(queue, HEAD), 0), 0, sem="acquire", scope="sys")


@triton.jit
def _has_reached(address, wanted, on_host):
    # Triton 3.6 makes a load of an addition of 0, and gives all threads what one has read. Where it makes no load, a
    # GPU's atomic may undo what the host writes.
    reached = tl.full((), 0, tl.int32)
    if HAS_ATOMIC_LOAD:
        reached = (look_together(address) >= wanted).to(tl.int32)
    elif on_host == 0:
        reached = (tl.atomic_add(word(address, 0), 0, sem="acquire", scope="sys") >= wanted).to(tl.int32)
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
def _says(value, wanted):
    """Tell whether a word in which the host counts says enough, or that something has failed."""
    return ((value < 0) | ((value & _COUNT) >= wanted)).to(tl.int32)


@triton.jit
def follow(queue, peer, host, copy, number, renews: tl.constexpr):
    """Wait until a word in which the host counts says enough; return the status, and what the word says.

    One of all programs that wait for the word looks at it. It keeps a copy in the memory of the GPU for the others:
    looks of them all over PCIe would leave no room for their entries. ``renews``: the time begins anew when the host
    has counted on.
    """
    status = as_word(OK)
    wanted = as_word(number)
    value = tl.atomic_or(word(copy, 0), RENEWED, sem="acquire", scope="sys")
    looks = ((value & RENEWED) == 0).to(tl.int32)
    if _says(value & ~RENEWED, wanted) == 0:
        begun_with = value
        spins = tl.full((), 0, tl.int32)
        until = now() + read(queue, TIMEOUT_NS)
        while (_says(value & ~RENEWED, wanted) == 0) & (status == OK):
            if looks != 0:
                found = look_together(host)
                if (found != value) & (_says(found, wanted) == 0):
                    tl.atomic_xchg(word(copy, 0), found | RENEWED, sem="release", scope="gpu")
                value = found
            else:
                value = tl.atomic_add(word(copy, 0), 0, sem="acquire", scope="sys")
                if (value & RENEWED) == 0:
                    before = tl.atomic_cas(word(copy, 0), value, value | RENEWED, sem="acquire", scope="gpu")
                    looks = (before == value).to(tl.int32)
            spins += 1
            if spins == _SPINS:
                spins = tl.full((), 0, tl.int32)
                if renews:
                    if ((value ^ begun_with) & ~RENEWED) != 0:
                        begun_with = value
                        until = now() + read(queue, TIMEOUT_NS)
                # One of them is enough to look at states, too.
                if looks != 0:
                    status = state_by(queue, peer, until)
                else:
                    status = as_word(agreed((now() > until).to(tl.int32) * TIMED_OUT))
        if status != OK:
            # One look more: what was waited for may have come with the reason to stop.
            value = look_together(host)
            if _says(value, wanted) != 0:
                status = as_word(OK)
    if looks != 0:
        tl.atomic_xchg(word(copy, 0), value & ~RENEWED, sem="release", scope="gpu")
        _acquire(queue)
    tl.debug_barrier()
    return status, value & ~RENEWED
