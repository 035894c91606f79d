"""Reads and orders the words that kernels and the host share; what every other file here is made of."""

from __future__ import annotations

import os
import time

import triton
import triton.language as tl
from triton.language.extra import cuda, hip
from triton.language.target_info import is_hip

OK = tl.constexpr(0)
TIMED_OUT = tl.constexpr(1)
FAILED = tl.constexpr(3)
# The mode of a peer whose memory kernels reach by themselves.
PEER = tl.constexpr(0)

if os.environ.get("TRITON_INTERPRET", "0") == "1":

    def now() -> int:
        """Return nanoseconds of a clock."""
        return time.monotonic_ns()

else:

    @triton.jit
    def now():
        """Return nanoseconds of a clock."""
        ns = tl.full((), 0, tl.int64)
        if is_hip():
            ns = hip.memrealtime() * 10  # it counts at 100 MHz
        else:
            ns = cuda.globaltimer()
        return ns


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
    """Read a word that the host changes."""
    return tl.load(word(address, 0), volatile=True)


@triton.jit
def is_peer(queue, peer):
    """Tell whether there is a peer of this number."""
    return (peer >= 0) & (peer < read(queue, 1))


@triton.jit
def peer_of(queue, peer):
    """Return the address of a peer's entry; of the first one's if there is no such peer."""
    known = is_peer(queue, peer).to(tl.int64)
    return read(queue, 3) + peer * known * 64


@triton.jit
def is_local(queue, local):
    """Tell whether there is a local of this number."""
    return (local >= 0) & (local < read(queue, 2))


@triton.jit
def local_of(queue, local):
    """Return the address of a local's entry; of the first place for one if there is no such local."""
    known = is_local(queue, local).to(tl.int64)
    return read(queue, 4) + local * known * 32


@triton.jit
def state_of(queue, peer):
    """Return why no wait can succeed any more: the state of the Queue, or of a peer; a negative one: of none."""
    state = look(read(queue, 11))
    if state == OK:
        if peer >= 0:
            state = look(read(peer_of(queue, peer), 6))
    return state


@triton.jit
def order(peer_at):
    """Order everything that the program has done before everything that it does next, for the whole system."""
    tl.debug_barrier()
    tl.atomic_add(word(read(peer_at, 4), 0), 0, sem="acq_rel", scope="sys")


@triton.jit
def fits(offset, nbytes, limit):
    """Tell whether a range lies within so many bytes."""
    return (offset >= 0) & (nbytes >= 0) & (offset <= limit) & (nbytes <= limit - offset)


@triton.jit
def is_word(queue, peer, offset):
    """Tell whether there is an aligned word at an offset of a peer's memory, which may be written."""
    peer_at = peer_of(queue, peer)
    inside = is_peer(queue, peer) & fits(offset, 8, read(peer_at, 2)) & (offset % 8 == 0)
    return inside & ((read(peer_at, 3) & 2) != 0)


@triton.jit
def refuse(queue, peer):
    """Note, for the host and for all waits, that a request of a kernel cannot be right; return FAILED."""
    at = read(queue, 11)
    if is_peer(queue, peer):
        at = read(peer_of(queue, peer), 6)
    tl.atomic_xchg(word(at, 0), FAILED, sem="relaxed", scope="sys")
    return tl.full((), FAILED, tl.int64)
