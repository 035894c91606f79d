"""Declares KernelQueue: the send queue of an endpoint, to which kernels post by themselves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import FabricKernelQueue, NativeError
from zerohop.config.checks import check_flag
from zerohop.core.base.deadlines import nanoseconds_of
from zerohop.core.face import HOST, carry_out, is_open, region_of
from zerohop.core.memory.access import lend
from zerohop.errors import Closed, DeadlineExceeded, DeviceFailed
from zerohop.fabric.completions import from_entry, translate
from zerohop.fabric.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.core.face import Context

TIMED_OUT: Final = 1  # of `zerohop/device/layout.hpp`
LAYOUT: Final = 0x7A686D6C78350002  # of zerohop/device/work_queue.hpp
_LONGEST_NS: Final = 3600 * 10**9  # of a kernel's wait: no kernel is to wait for ever
_MOST_SLOTS: Final = 1 << 15
_WORDS: Final = 14  # of the descriptor
_COUNTERS: Final = 3


class KernelQueue(Resource):
    """Lets kernels write RDMA requests into an endpoint's send queue, ring its doorbell, and poll its completions.

    Made by ``Endpoint.kernel_queue``. The functions for kernels are in ``zerohop/device/work_queue.hpp`` (the folder is
    ``zerohop.device.include_dir()``), and have MORI's names: ``PostWrite``, ``UpdateSendDbrRecord``, ``RingDoorbell``,
    ``PollCq``, ``UpdateCqDbrRecord``. Requests, doorbells and completions have the form of mlx5 NICs.

    The doorbell is this process's: it reads the requests and posts them to the endpoint, on any RDMA device. It looks
    for them within ``with queue.active():``, without a pause, by the progress thread of ``ctx``. Queues that a NIC
    reads by itself are not there yet. **Not verified on hardware**; verified on Soft-RoCE.

    Keep the memory regions that kernels name, and end the kernels before the queue is dropped.

    Attributes:
        endpoint: the endpoint.
        pointer: address of its descriptor, an int: the argument of a kernel, a ``const
            zerohop::device::mlx5::WorkQueue*``.
    """

    __slots__ = ("_control", "_counters", "_descriptor", "_device", "_state_at", "_timeout_ns", "endpoint", "pointer")

    _native: FabricKernelQueue
    _kind = "KernelQueue"
    _copy_refusal = "a KernelQueue stays in its process, and is not copied"

    def __init__(self, endpoint: Any, ctx: Context, device: str, timeout: float, *, collapsed: bool) -> None:
        self.endpoint = endpoint
        self._device = device
        self._timeout_ns = nanoseconds_of(timeout)
        if timeout == 0:
            raise ValueError("timeout is more than 0 seconds")
        slots = min(_MOST_SLOTS, 1 << (endpoint.config.max_messages.bit_length() - 1))
        completion_slots = 1 if check_flag("collapsed", collapsed) else slots
        *places, nbytes = FabricKernelQueue.control_layout(slots, completion_slots)
        self._control = ctx.alloc(nbytes)
        self._counters = ctx.alloc(8 * _COUNTERS, device)
        self._counters.fill(0)
        self._descriptor = ctx.alloc(8 * _WORDS, device)
        _, _, engine = lend(self._control)
        own = [region_of(each) for each in (self._control, self._counters, self._descriptor)]
        try:
            native = FabricKernelQueue(
                engine=engine,
                endpoint=endpoint._native,
                control=own[0],
                own=own,
                slots=slots,
                completion_slots=completion_slots,
                on_device=device != HOST,
            )
        except NativeError as error:
            raise translate(error, "kernel_queue") from None
        super().__init__(endpoint, native)
        record, doorbell, completion_record, state, blocks, completions = (self._control.address + at for at in places)
        self._state_at = state - self._control.address
        counters = self._counters.address
        timeout_ns = min(self._timeout_ns or _LONGEST_NS, _LONGEST_NS)
        words = [LAYOUT, endpoint.qpn, slots, blocks, record, doorbell, completions, completion_slots]
        words += [completion_record, counters, counters + 8, counters + 16, state, timeout_ns]
        self._descriptor.write_bytes(0, np.array(words, np.uint64).tobytes())
        self.pointer = self._descriptor.address

    @contextmanager
    def active(self) -> Iterator[KernelQueue]:
        """Have this process look for requests of kernels, without a pause, until the end of the ``with`` block.

        The end of the block waits until everything that kernels have rung the doorbell for has ended. Wait for the
        kernels within the block.

        Raises:
            DeadlineExceeded: at the end, that does not end within the queue's ``timeout``.
            AccessDenied, PeerLost, DeviceFailed, DeadlineExceeded: at the end, those of `check`.
            Closed: the queue or the Context is closed.
        """
        self._check_open()
        if not is_open(self._control):
            raise Closed("the Context that has the memory of this KernelQueue is closed", fix="make another endpoint")
        with carry_out(self._native, self._device, self._timeout_ns or _LONGEST_NS, _late):
            yield self
        self.check()

    def check(self) -> None:
        """Raise the first failure of what kernels have posted; return if there is none.

        The endpoint, and so the queue, is over then: requests behind a failed one are not carried out.

        Raises:
            AccessDenied: a key, a range or a right of a request was refused, here or at the peer.
            PeerLost: the peer does not answer.
            DeviceFailed: the device or this process refused a request of a kernel.
            DeadlineExceeded: a kernel could not post within the queue's ``timeout``.
            Closed: the queue is closed.
        """
        self._check_open()
        text, completion = self._native.failure()
        error = from_entry(completion).error if completion is not None else None
        if error is not None:
            raise error
        if text:
            raise DeviceFailed(
                text,
                fix="post by PostWrite, UpdateSendDbrRecord and RingDoorbell, in this order; and make a new endpoint",
                provider="verbs",
            )
        if int.from_bytes(self._control.read_bytes(self._state_at, 8), "little") == TIMED_OUT:
            raise DeadlineExceeded(
                "a kernel has waited for longer than the queue's timeout to post, and has ended the queue",
                fix="run kernels within `with queue.active():`, let each ring the doorbell, and make a new endpoint",
                provider="verbs",
            )

    def __repr__(self) -> str:
        return f"<KernelQueue of {self.endpoint!r}{', closed' if self.closed else ''}>"


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "what kernels have posted has not ended within the queue's timeout",
        fix="find out whether the peer's endpoint is connected, or allow more time",
        provider="verbs",
    )
