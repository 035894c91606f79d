"""Lays out the memory by which a kernel knows a Queue, as `zerohop/device/layout.hpp` declares it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

LAYOUT: Final = 0x7A65726F686F7006
PEER: Final = 0  # kernels reach the memory by loads and stores
PROXY: Final = 1  # the host takes entries out of the FIFO, and posts them
MLX5: Final = 2  # kernels write requests on a queue pair of their own

MAX_PEERS: Final = 1 << 9
MAX_LOCALS: Final = 1 << 8
MAX_BYTES: Final = (1 << 40) - 1  # of the memory of one peer or one local
_WORD: Final = 8
_QUEUE_WORDS: Final = 16
_PEER_WORDS: Final = 8
_LOCAL_WORDS: Final = 4
# The tables have one size, so that kernels know without a load where an entry lies.
_LOCALS_AT: Final = _QUEUE_WORDS
_PEERS_AT: Final = _LOCALS_AT + MAX_LOCALS * _LOCAL_WORDS
DESCRIPTOR_BYTES: Final = (_PEERS_AT + MAX_PEERS * _PEER_WORDS) * _WORD
# Places of the counters, in words. Kernels change several at the same time, so the head, the copy of `taken` and each
# peer have 64 bytes of their own; a peer's hold the number of entries posted, and the copy of `ended`.
_HEAD: Final = 0
_TAKEN_COPY: Final = 8
_FIRST_PEER: Final = 16
_PEER_STRIDE: Final = 8
_ENDED_COPY: Final = 4


class PeerEntry(NamedTuple):
    """Describes a peer's memory to kernels.

    Attributes:
        mode: PEER, PROXY or MLX5.
        base: where kernels reach it; where it begins in what the peer has shared; or its address there.
        nbytes: its length.
        rights: those of the handle, as bits.
        pair: address of the peer's Pair in the mode MLX5; 0 in others.
        state: address of the peer's state in the mode MLX5; 0: it is in the shared memory.
    """

    mode: int
    base: int
    nbytes: int
    rights: int
    pair: int = 0
    state: int = 0


class LocalEntry(NamedTuple):
    """Describes memory of this side to kernels; ``on_host``: it is the host's, and the kernels run on a GPU."""

    base: int
    nbytes: int
    rights: int
    on_host: bool


class Control(NamedTuple):
    """Holds the addresses of what the host and kernels share, in memory of the host."""

    taken: int
    state: int
    peers: int
    peer_bytes: int
    results: int
    fifo: int


def counter_bytes(peers: int) -> int:
    """Return the size of the counters that kernels count in."""
    return (_FIRST_PEER + peers * _PEER_STRIDE) * _WORD


def lay_out(
    counters: int,
    control: Control,
    slots: int,
    timeout_ns: int,
    peers: list[PeerEntry],
    locals_: list[LocalEntry],
) -> bytes:
    """Return the descriptor's bytes.

    Args:
        counters: address of the counters, which are zero.
        control: addresses of the shared memory.
        slots: entries of the FIFO.
        timeout_ns: of every wait of a kernel.
        peers: the peers' memory.
        locals_: the memory of this side.
    """
    words = np.zeros(DESCRIPTOR_BYTES // _WORD, np.uint64)
    words[:11] = (
        LAYOUT,
        len(peers),
        len(locals_),
        control.results,
        control.fifo,
        slots,
        counters + _HEAD * _WORD,
        counters + _TAKEN_COPY * _WORD,
        control.taken,
        control.state,
        timeout_ns,
    )
    for number, local in enumerate(locals_):
        start = _LOCALS_AT + number * _LOCAL_WORDS
        words[start : start + 4] = local
    for number, peer in enumerate(peers):
        shared = control.peers + number * control.peer_bytes
        posted = counters + (_FIRST_PEER + number * _PEER_STRIDE) * _WORD
        copy = posted + _ENDED_COPY * _WORD
        start = _PEERS_AT + number * _PEER_WORDS
        words[start : start + 8] = (*peer[:4], posted, peer.pair or shared, peer.state or shared + _WORD, copy)
    return words.tobytes()
