"""Names the words of a Queue's descriptor, as `zerohop/device/layout.hpp` declares them."""

from __future__ import annotations

import triton.language as tl

# These words are the Queue's. RESULTS, FIFO, HEAD, TAKEN and STATE are addresses. The four words from FIFO on are read
# together: the FIFO, SLOTS, HEAD and the copy of TAKEN.
PEER_COUNT = tl.constexpr(1)
RESULTS = tl.constexpr(3)
FIFO = tl.constexpr(4)
SLOTS = tl.constexpr(5)
HEAD = tl.constexpr(6)
TAKEN = tl.constexpr(8)
STATE = tl.constexpr(9)
TIMEOUT_NS = tl.constexpr(10)

# These are a peer's. POSTED, ENDED, PEER_STATE and ENDED_COPY are addresses, and are read together.
POSTED = tl.constexpr(4)
ENDED = tl.constexpr(5)
PEER_STATE = tl.constexpr(6)

# A bit of POSTED, ENDED and its copy: a call or a transfer has failed.
FAILURE = tl.constexpr(-(1 << 63))
# A bit of a copy of a counter of the host: one program polls that counter, and writes to the copy.
POLLED = tl.constexpr(1 << 62)

# Byte offsets of the tables in a descriptor, the size of an entry, and how many there is room for.
LOCALS_AT = tl.constexpr(128)
LOCAL_BYTES = tl.constexpr(32)
MAX_LOCALS = tl.constexpr(1 << 8)
PEERS_AT = tl.constexpr(128 + (1 << 8) * 32)
PEER_BYTES = tl.constexpr(64)
MAX_PEERS = tl.constexpr(1 << 9)
