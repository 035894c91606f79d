"""Gives kernels in Triton what they call on a Queue: put, get, signals, waits and atomics.

Import it as ``import zerohop.device.triton as zd`` and call ``zd.put(queue, ...)`` in a kernel that gets
``queue.pointer`` as an argument. It is plain Triton: no other file is linked in. ``TRITON_INTERPRET=1`` runs it on a
machine without a GPU, for memory of the host.

All programs of a grid may call these at the same time. Each call posts one request, whatever ``num_warps`` is. Offsets
and lengths are bytes; ``peer`` and ``local`` are places in the lists that the Queue was made of. Every function returns
a status: OK (0), TIMED_OUT (1), PEER_LOST (2), FAILED (3) or CLOSED (4); `fetch_add` and `compare_swap` return it and
the value that they have found. A status other than OK says that nothing more is to be expected of that peer.
"""

from zerohop.device.triton.signals import compare_swap, fetch_add, put_signal, signal, wait_signal
from zerohop.device.triton.transfers import fence, flush, get, put, quiet

__all__ = [
    "compare_swap",
    "fence",
    "fetch_add",
    "flush",
    "get",
    "put",
    "put_signal",
    "quiet",
    "signal",
    "wait_signal",
]
