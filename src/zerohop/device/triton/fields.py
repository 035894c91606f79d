"""Names the words of a Queue's descriptor, as `zerohop/device/layout.hpp` declares them."""

from __future__ import annotations

import triton.language as tl

# These words are the Queue's. FIFO, RESULTS, HEAD, SEEN, TAKEN and STATE are addresses.
PEER_COUNT = tl.constexpr(1)
LOCAL_COUNT = tl.constexpr(2)
SLOTS = tl.constexpr(3)
FIFO = tl.constexpr(4)
RESULTS = tl.constexpr(5)
HEAD = tl.constexpr(6)
SEEN = tl.constexpr(7)
TAKEN = tl.constexpr(8)
STATE = tl.constexpr(9)
TIMEOUT_NS = tl.constexpr(10)

# These are a local's, and then a peer's. POSTED, ENDED and PEER_STATE are addresses.
LOCAL_BASE = tl.constexpr(0)
LOCAL_NBYTES = tl.constexpr(1)
LOCAL_RIGHTS = tl.constexpr(2)
LOCAL_ON_HOST = tl.constexpr(3)
MODE = tl.constexpr(0)
BASE = tl.constexpr(1)
NBYTES = tl.constexpr(2)
RIGHTS = tl.constexpr(3)
POSTED = tl.constexpr(4)
ENDED = tl.constexpr(5)
PEER_STATE = tl.constexpr(6)

# Byte offsets of the tables in a descriptor, the size of an entry, and how many there is room for.
LOCALS_AT = tl.constexpr(128)
LOCAL_BYTES = tl.constexpr(32)
MAX_LOCALS = tl.constexpr(1 << 8)
PEERS_AT = tl.constexpr(128 + (1 << 8) * 32)
PEER_BYTES = tl.constexpr(64)
MAX_PEERS = tl.constexpr(1 << 9)
