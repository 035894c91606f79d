"""Reads the words that kernels and the host share, and checks calls of kernels by them."""

from __future__ import annotations

import os
import time

import triton
import triton.language as tl
from triton.language.extra import cuda, hip
from triton.language.target_info import is_hip

from zerohop.device.triton.fields import (
    FAILURE,
    FIFO,
    LOCAL_BYTES,
    LOCALS_AT,
    MAX_LOCALS,
    MAX_PEERS,
    PEER_BYTES,
    PEER_COUNT,
    PEER_STATE,
    PEERS_AT,
    POSTED,
    STATE,
)

OK = tl.constexpr(0)
TIMED_OUT = tl.constexpr(1)
FAILED = tl.constexpr(3)
CLOSED = tl.constexpr(4)
# The mode of a peer whose memory kernels reach by themselves.
PEER = tl.constexpr(0)
# The mode of a peer that kernels reach by requests on a queue pair of their own.
MLX5 = tl.constexpr(2)
READ = tl.constexpr(1)
WRITE = tl.constexpr(2)

_MOST_THREADS = tl.constexpr(1024)  # of a program
# Triton 3.9 and later: atomics that only read.
HAS_ATOMIC_LOAD = tl.constexpr(hasattr(tl, "atomic_load"))

if os.environ.get("TRITON_INTERPRET", "0") == "1":

    def now() -> int:
        """Return nanoseconds of a clock."""
        return time.monotonic_ns()

    @triton.jit
    def agreed(number):
        """Return the number: one thread runs the program."""
        return number

    @triton.jit
    def _threads():
        """Return numbers from 0 on, two as `_state` wants them."""
        return tl.arange(0, 2)

    @triton.jit
    def _first_thread_looks(address):
        """Read a word that the host changes."""
        return tl.load(word(address, 0), volatile=True)

    @triton.jit
    def read_four(address):
        """Read the words of an entry, which nobody changes."""
        at = address.to(tl.pointer_type(tl.int64))
        return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)

    @triton.jit
    def read(address, index):
        """Read a word that nobody changes."""
        return tl.load((address + index * 8).to(tl.pointer_type(tl.int64)))

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
    def _threads():
        """Return the numbers of the program's threads, so that one of them can read for all."""
        if is_hip():
            numbers = tl.arange(0, _MOST_THREADS)
        else:
            numbers = tl.arange(0, cuda.num_threads())
        return numbers

    @triton.jit
    def _first_thread_looks(address):
        """Read a word that the host changes, in one thread; on NVIDIA's GPUs the read is an acquire."""
        thread = _threads()
        if is_hip():
            value = tl.load(word(address, 0) + thread * 0, mask=thread == 0, other=0, volatile=True)
        else:
            value = tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.eq.s32 p, $2, 0; mov.b64 $0, 0; @p ld.acquire.sys.global.b64 $0, [$1]; }",
                "=&l,l,r",
                [address + tl.zeros_like(thread), thread],
                dtype=tl.int64,
                is_pure=False,
                pack=1,
            )
        return tl.sum(value, 0)

    @triton.jit
    def read_four(address):
        """Read the words of an entry, which nobody changes, at once.

        An acquire empties the L1 cache, and the compiler loads a word where it is used: one after the other, words
        would each take 0.2 µs (H200). It keeps in registers, from one turn of a loop to the next, what it knows not to
        change; of `tl.load` it does not know that.
        """
        if is_hip():
            at = address.to(tl.pointer_type(tl.int64))
            first, second, third, fourth = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
        else:
            first, second, third, fourth = tl.inline_asm_elementwise(
                "ld.global.nc.v2.b64 {$0, $1}, [$4]; ld.global.nc.v2.b64 {$2, $3}, [$4+16];",
                "=&l,=&l,=&l,=&l,l",
                [address],
                dtype=(tl.int64, tl.int64, tl.int64, tl.int64),
                is_pure=True,
                pack=1,
            )
        return first, second, third, fourth

    @triton.jit
    def read(address, index):
        """Read a word that nobody changes."""
        at = address + index * 8
        if is_hip():
            value = tl.load(at.to(tl.pointer_type(tl.int64)))
        else:
            value = tl.inline_asm_elementwise(
                "ld.global.nc.b64 $0, [$1];", "=l,l", [at], dtype=tl.int64, is_pure=True, pack=1
            )
        return value


@triton.jit
def as_word(number):
    """Return a number with 64 bits and a sign. Triton takes ints from 2**63 on for unsigned ones."""
    return (tl.full((), 0, tl.int64) + number).to(tl.int64)


@triton.jit
def word(address, index):
    """Return a pointer to a word, counted from an address."""
    return (address + index * 8).to(tl.pointer_type(tl.int64))


@triton.jit
def look(address):
    """Read a word that others change; each thread of the program reads it by itself."""
    return tl.load(word(address, 0), volatile=True)


@triton.jit
def load_near(address):
    """Load a word of the GPU's own memory, as an acquire for the system; all threads get the same value.

    An atomic addition of 0 does that in every version of Triton. It is not for memory of the host: there it may be a
    read and a write, and undo what the host has written in between.
    """
    return tl.atomic_add(word(address, 0), 0, sem="acquire", scope="sys")


@triton.jit
def look_together(address):
    """Read a word that the host changes; all threads get the same value.

    The look is an acquire, except on AMD's GPUs before Triton 3.9, where `waits.py` acquires after its last look. One
    thread reads the word: reads of the host's memory follow one another, 0.7 µs apart (H200).
    """
    if HAS_ATOMIC_LOAD:
        value = tl.atomic_load(word(address, 0), sem="acquire", scope="sys")
    else:
        value = _first_thread_looks(address)
    return value


@triton.jit
def is_peer(queue, peer):
    """Tell whether there is a peer of this number."""
    return (peer >= 0) & (peer < read(queue, PEER_COUNT))


@triton.jit
def peer_of(queue, peer):
    """Return the address of a peer's entry; of some other one's if there is no such peer."""
    return queue + PEERS_AT + (as_word(peer) & (MAX_PEERS - 1)) * PEER_BYTES


@triton.jit
def local_of(queue, local):
    """Return the address of a local's entry; of some other one's if there is no such local."""
    return queue + LOCALS_AT + (as_word(local) & (MAX_LOCALS - 1)) * LOCAL_BYTES


@triton.jit
def peer_entry(queue, peer):
    """Return how a peer is reached, where its memory begins, its length and rights. No such peer has no rights."""
    mode, base, nbytes, rights = read_four(peer_of(queue, peer))
    number = as_word(peer)
    return mode, base, nbytes, tl.where((number >= 0) & (number < MAX_PEERS), rights, 0)


@triton.jit
def peer_counters(queue, peer):
    """Return the addresses of a peer's counters: of entries posted and ended, its state, and the copy of the second."""
    return read_four(peer_of(queue, peer) + POSTED * 8)


@triton.jit
def fifo_of(queue):
    """Return the address of the FIFO, its slots, and the addresses of its next index and of the copy of TAKEN."""
    return read_four(queue + FIFO * 8)


@triton.jit
def local_entry(queue, local):
    """Return where a local begins, its length, rights, and whether it is the host's. No such local has no rights."""
    base, nbytes, rights, on_host = read_four(local_of(queue, local))
    number = as_word(local)
    return base, nbytes, tl.where((number >= 0) & (number < MAX_LOCALS), rights, 0), on_host


@triton.jit
def _state(queue, peer, late):
    """Return the state of the Queue; if it is OK, that of a peer; if that is OK, whether the first thread is late."""
    thread = _threads()
    at = tl.where(thread == 0, read(queue, STATE), read(peer_of(queue, peer), PEER_STATE))
    mask = (thread == 0) | ((thread == 1) & (peer >= 0))
    found = tl.load(word(at, 0), mask=mask, other=0, volatile=True)
    # A state has less than 8 bits: one sum gives both to all threads.
    both = tl.sum(tl.where(thread == 0, found << 16 | late, found << 8), 0)
    of_peer = (both >> 8) & 0xFF
    return tl.where(both >> 16 != OK, both >> 16, tl.where(of_peer != OK, of_peer, both & 0xFF))


@triton.jit
def state_of(queue, peer):
    """Return why no wait can succeed any more: the state of the Queue, or of a peer; a negative one: of none."""
    return _state(queue, peer, as_word(OK))


@triton.jit
def state_by(queue, peer, until):
    """Return what `state_of` does; if that is OK and the time ``until``, of `now`, has passed: TIMED_OUT."""
    return _state(queue, peer, as_word((now() > until).to(tl.int32) * TIMED_OUT))


@triton.jit
def fits(offset, nbytes, limit):
    """Tell whether a range lies within so many bytes."""
    return (offset >= 0) & (nbytes >= 0) & (offset <= limit) & (nbytes <= limit - offset)


@triton.jit
def is_word(base, nbytes, rights, offset, wanted: tl.constexpr):
    """Tell whether memory has an aligned word at an offset, and gives the rights that are wanted."""
    return fits(offset, 8, nbytes) & ((base + offset) % 8 == 0) & ((rights & wanted) == wanted)


@triton.jit
def fail_peers(queue, first, last):
    """Have flushes of these peers look at the states."""
    while first < last:
        tl.atomic_or(word(read(peer_of(queue, first), POSTED), 0), FAILURE, sem="relaxed", scope="gpu")
        first += 1


@triton.jit
def refuse(queue, peer):
    """Note, for the host and for all waits, that a call of a kernel cannot be right; return FAILED."""
    at = read(queue, STATE)
    first, last = as_word(0), read(queue, PEER_COUNT)  # without such a peer flushes of all peers tell of it
    if is_peer(queue, peer):
        at = read(peer_of(queue, peer), PEER_STATE)
        first, last = as_word(peer), as_word(peer) + 1
    tl.store(word(at, 0), FAILED)
    fail_peers(queue, first, last)
    return as_word(FAILED)
