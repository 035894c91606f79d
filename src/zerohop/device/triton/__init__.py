"""Declares the functions that Triton kernels call on a Queue.

Import it as ``import zerohop.device.triton as zd`` and call ``zd.put(queue, ...)`` in a kernel that gets
``queue.pointer`` as an argument. It is plain Triton, 3.6 or later: no other file is linked in. ``TRITON_INTERPRET=1``
runs it on a machine without a GPU, for memory of the host.

- ``put(queue, peer, dst_offset, local, src_offset, nbytes)``
- ``get(queue, peer, src_offset, local, dst_offset, nbytes)``
- ``signal(queue, peer, offset, value, add=False)``
- ``put_signal(queue, peer, dst_offset, local, src_offset, nbytes, signal_offset, value, add=False)``
- ``wait_signal(queue, local, offset, value, peer=-1)``
- ``flush(queue, peer)``, ``quiet(queue)``, ``fence(queue, peer)``
- ``fetch_add(queue, peer, offset, value)``, ``compare_swap(queue, peer, offset, expected, desired)``

All programs of a grid may call these at the same time. Each call posts one request, whatever ``num_warps`` is. Offsets
and lengths are bytes; ``peer`` and ``local`` are indexes in the lists that the Queue was made of. Each function returns
a status: OK (0), TIMED_OUT (1), PEER_LOST (2), FAILED (3) or CLOSED (4); `fetch_add` and `compare_swap` return it and
the value that they have found. OK of a put, a get, a signal or a fence means that it was accepted; `flush` tells how it
has ended. Each takes ``status=``, a status from before: if that is not OK, the function does nothing and returns it.
Calls that are chained so need no condition, which would keep the compiler from reading the descriptor once for all
turns of a loop. ``block=`` of put and get, a power of two, is the number of elements that a program copies at a time.
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
