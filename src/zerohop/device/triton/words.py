"""Reads, orders and waits for the words that kernels and the host share."""

from __future__ import annotations

import os
import time

import triton
import triton.language as tl
from triton.language.extra import cuda, hip
from triton.language.target_info import is_hip

from zerohop.device.triton.fields import (
    BASE,
    LOCAL_BYTES,
    LOCAL_COUNT,
    LOCALS_AT,
    MAX_LOCALS,
    MAX_PEERS,
    NBYTES,
    PEER_BYTES,
    PEER_COUNT,
    PEER_STATE,
    PEERS_AT,
    POSTED,
    RIGHTS,
    SEEN,
    STATE,
    TIMEOUT_NS,
)

OK = tl.constexpr(0)
TIMED_OUT = tl.constexpr(1)
FAILED = tl.constexpr(3)
# The mode of a peer whose memory kernels reach by themselves.
PEER = tl.constexpr(0)
READ = tl.constexpr(1)
WRITE = tl.constexpr(2)

# Looks between two at the clock and at words of the host, which take longer than a look at the GPU's own memory.
_SPINS = tl.constexpr(64)
_MOST_THREADS = tl.constexpr(1024)  # of a program

if os.environ.get("TRITON_INTERPRET", "0") == "1":

    def now() -> int:
        """Return nanoseconds of a clock."""
        return time.monotonic_ns()

    @triton.jit
    def agreed(number):
        """Return the number: one thread runs the program."""
        return number

else:

    @triton.jit
    def now():
        """Return nanoseconds of a clock; each thread of the program looks at it by itself."""
        ns = tl.full((), 0, tl.int64)
        if is_hip():
            ns = hip.memrealtime() * 10  # it counts at 100 MHz
        else:
            ns = cuda.globaltimer()
        return ns

    @triton.jit
    def agreed(number):
        """Return the largest of the numbers that the threads of the program have.

        Threads that found different ones would take different branches, and wait for each other at different barriers.
        """
        if is_hip():
            largest = tl.max(number + tl.zeros((_MOST_THREADS,), number.dtype), 0)
        else:
            largest = tl.max(number + tl.zeros((cuda.num_threads(),), number.dtype), 0)
        return largest


@triton.jit
def as_word(number):
    """Return a number with 64 bits and a sign. Triton takes ints from 2**63 on for unsigned ones."""
    return (tl.full((), 0, tl.int64) + number).to(tl.int64)


@triton.jit
def word(address, index):
    """Return a pointer to a word, counted from an address."""
    return (address + index * 8).to(tl.pointer_type(tl.int64))


@triton.jit
def read(address, index):
    """Read a word that nobody changes."""
    return tl.load(word(address, index))


@triton.jit
def look(address):
    """Read a word that the host changes; each thread of the program reads it by itself."""
    return tl.load(word(address, 0), volatile=True)


@triton.jit
def is_peer(queue, peer):
    """Tell whether there is a peer of this number."""
    return (peer >= 0) & (peer < read(queue, PEER_COUNT))


@triton.jit
def peer_of(queue, peer):
    """Return the address of a peer's entry; of some other one's if there is no such peer."""
    return queue + PEERS_AT + (as_word(peer) & (MAX_PEERS - 1)) * PEER_BYTES


@triton.jit
def is_local(queue, local):
    """Tell whether there is a local of this number."""
    return (local >= 0) & (local < read(queue, LOCAL_COUNT))


@triton.jit
def local_of(queue, local):
    """Return the address of a local's entry; of some other one's if there is no such local."""
    return queue + LOCALS_AT + (as_word(local) & (MAX_LOCALS - 1)) * LOCAL_BYTES


@triton.jit
def _state_of(queue, peer):
    state = look(read(queue, STATE))
    if state == OK:
        if peer >= 0:
            state = look(read(peer_of(queue, peer), PEER_STATE))
    return state.to(tl.int32)


@triton.jit
def state_of(queue, peer):
    """Return why no wait can succeed any more: the state of the Queue, or of a peer; a negative one: of none."""
    return as_word(agreed(_state_of(queue, peer)))


@triton.jit
def state_by(queue, peer, until):
    """Do the same; TIMED_OUT if there is no reason but that a time has come."""
    state = _state_of(queue, peer)
    late = (now() > until).to(tl.int32)
    return as_word(agreed(tl.where(state == OK, late * TIMED_OUT, state)))


@triton.jit
def order(peer_at):
    """Order all that the program has done before all that it does next, for the whole system.

    Returns:
        the number of entries that were posted to the peer by now.
    """
    tl.debug_barrier()
    return tl.atomic_add(word(read(peer_at, POSTED), 0), 0, sem="acq_rel", scope="sys")


@triton.jit
def fits(offset, nbytes, limit):
    """Tell whether a range lies within so many bytes."""
    return (offset >= 0) & (nbytes >= 0) & (offset <= limit) & (nbytes <= limit - offset)


@triton.jit
def is_word(queue, peer, offset, rights: tl.constexpr):
    """Tell whether a peer has an aligned word at an offset, and the handle gives these rights."""
    peer_at = peer_of(queue, peer)
    inside = is_peer(queue, peer) & fits(offset, 8, read(peer_at, NBYTES)) & ((read(peer_at, BASE) + offset) % 8 == 0)
    return inside & ((read(peer_at, RIGHTS) & rights) == rights)


@triton.jit
def refuse(queue, peer):
    """Note, for the host and for all waits, that a call of a kernel cannot be right; return FAILED."""
    at = read(queue, STATE)
    if is_peer(queue, peer):
        at = read(peer_of(queue, peer), PEER_STATE)
    tl.store(word(at, 0), FAILED)
    return as_word(FAILED)


@triton.jit
def _has_reached(address, wanted, on_host):
    # Triton makes a load of an addition of 0, and gives all threads what one has read. Where it makes no load, a GPU's
    # atomic may undo what the host writes.
    reached = tl.full((), 0, tl.int32)
    if on_host == 0:
        reached = (tl.atomic_add(word(address, 0), 0, sem="acquire", scope="sys") >= wanted).to(tl.int32)
    else:
        reached = agreed((look(address) >= wanted).to(tl.int32))
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
        tl.atomic_add(word(read(queue, SEEN), 0), 0, sem="acq_rel", scope="sys")
    tl.debug_barrier()
    return status
