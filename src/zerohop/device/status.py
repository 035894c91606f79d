"""Declares what kernels get from a wait. `zerohop/device/layout.hpp` declares the same for C++."""

from __future__ import annotations

from typing import Final

OK: Final = 0
TIMED_OUT: Final = 1
PEER_LOST: Final = 2
FAILED: Final = 3  # an entry was refused, or its transfer failed: `Queue.check` tells why
CLOSED: Final = 4
