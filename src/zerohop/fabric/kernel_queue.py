"""Declares KernelQueue: the send queue of an endpoint, to which kernels post by themselves."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from zerohop._native import FabricDirectQueue, FabricKernelQueue, NativeError
from zerohop.config.checks import check_flag
from zerohop.core.base.deadlines import nanoseconds_of
from zerohop.core.face import HOST, carry_out, is_open, region_of
from zerohop.core.memory.access import lend
from zerohop.errors import Closed, DeadlineExceeded, DeviceFailed, Unsupported, ZerohopError
from zerohop.fabric.completions import from_entry, translate
from zerohop.fabric.resource import Resource
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.core.face import Context, KernelWork

    _Native = FabricKernelQueue | FabricDirectQueue

Doorbell = Literal["host", "nic"]
NIC: Final = "nic"
_DOORBELLS: Final = (HOST, NIC)
# As zerohop/device/layout.hpp declares them.
TIMED_OUT: Final = 1
FAILED: Final = 3
CLOSED: Final = 4
LAYOUT: Final = 0x7A686D6C78350003  # of zerohop/device/queue_steps.hpp
_LONGEST_NS: Final = 3600 * 10**9  # of a kernel's wait: no kernel is to wait for ever
_MOST_SLOTS: Final = 1 << 15
_WORDS: Final = 15  # of the descriptor
_COUNTERS: Final = 3


class KernelQueue(Resource):
    """Lets kernels write RDMA requests into an endpoint's send queue, ring its doorbell, and poll its completions.

    Made by ``Endpoint.kernel_queue``. The functions for kernels are in ``zerohop/device/work_queue.hpp`` (the folder is
    ``zerohop.device.include_dir()``), and have MORI's names: ``PostWrite``, ``UpdateSendDbrRecord``, ``RingDoorbell``,
    ``PollCq``, ``UpdateCqDbrRecord``. Requests, doorbells and completions have the form of mlx5 NICs.

    With ``doorbell="host"`` this process reads the requests and posts them to the endpoint, on any RDMA device. It
    looks for them within ``with queue.active():``, without a pause, by the progress thread of ``ctx``. Verified on
    Soft-RoCE, **not verified on hardware**.

    With ``doorbell="nic"`` kernels write to the queue that an mlx5 NIC reads, and ring its doorbell, which a GPU's
    driver has to map. Nothing waits at the end of ``active()`` then: a kernel polls for what it has posted. The tests
    do that with a NIC in software; **not verified on hardware**.

    Keep the memory regions that kernels name, and end the kernels before the queue is dropped.

    Attributes:
        endpoint: the endpoint.
        pointer: address of its descriptor, an int: the argument of a kernel, a ``const
            zerohop::device::mlx5::WorkQueue*``.
    """

    __slots__ = ("_control", "_counters", "_descriptor", "_device", "_state_at", "_timeout_ns", "endpoint", "pointer")

    _native: _Native
    _kind = "KernelQueue"
    _copy_refusal = "a KernelQueue stays in its process, and is not copied"

    def __init__(
        self, endpoint: Any, ctx: Context, device: str, timeout: float, *, collapsed: bool, doorbell: Doorbell
    ) -> None:
        self.endpoint = endpoint
        self._device = device
        self._timeout_ns = nanoseconds_of(timeout)
        if timeout == 0:
            raise ValueError("timeout must be more than 0 seconds, such as timeout=30.0")
        if doorbell not in _DOORBELLS:
            raise ValueError(f'doorbell is "host" or "nic", not {shown(doorbell)}')
        if check_flag("collapsed", collapsed) and doorbell == NIC:
            raise ValueError('collapsed=True is for doorbell="host": a NIC writes its completions to a ring')
        self._counters = ctx.alloc(8 * _COUNTERS, device)
        self._counters.fill(0)
        self._descriptor = ctx.alloc(8 * _WORDS, device)
        try:
            opened = self._open_of_nic(ctx) if doorbell == NIC else self._open_of_host(ctx, collapsed=collapsed)
        except NativeError as error:
            raised = translate(error, "kernel_queue")
            if doorbell == NIC and isinstance(raised, Unsupported):
                raise Unsupported(raised.reason, fix='doorbell="host"', provider="verbs") from None
            raise raised from None
        native, places, state = opened
        super().__init__(endpoint, native)
        self._state_at = state - self._control.address
        counters = self._counters.address
        timeout_ns = min(self._timeout_ns or _LONGEST_NS, _LONGEST_NS)
        *places, most = places
        words = [LAYOUT, *places, counters, counters + 8, counters + 16, state, timeout_ns, most]
        self._descriptor.write_bytes(0, np.array(words, np.uint64).tobytes())
        self.pointer = self._descriptor.address

    def _open_of_host(self, ctx: Context, *, collapsed: bool) -> tuple[_Native, list[int], int]:
        """Return the native part, the descriptor's words that tell of the queue, and the address of the state."""
        slots = min(_MOST_SLOTS, 1 << (self.endpoint.config.max_messages.bit_length() - 1))
        completion_slots = 1 if collapsed else slots
        *offsets, nbytes = FabricKernelQueue.control_layout(slots, completion_slots)
        self._control = ctx.alloc(nbytes)
        native = FabricKernelQueue(
            endpoint=self.endpoint._native, slots=slots, completion_slots=completion_slots, **self._memory()
        )
        record, doorbell, completion_record, state, blocks, completions = (self._control.address + at for at in offsets)
        words = [self.endpoint.qpn, slots, blocks, record, doorbell, completions, completion_slots, completion_record]
        return native, [*words, slots], state

    def _open_of_nic(self, ctx: Context) -> tuple[_Native, list[int], int]:
        """Return the same for a queue that a NIC reads."""
        self._control = ctx.alloc(8)  # the state
        native = FabricDirectQueue(endpoint=self.endpoint._native, **self._memory())
        return native, list(native.parts), self._control.address

    def _memory(self) -> dict[str, Any]:
        _, _, engine = lend(self._control)
        own = [region_of(each) for each in (self._control, self._counters, self._descriptor)]
        return {"engine": engine, "control": own[0], "own": own, "on_device": self._device != HOST}

    @contextmanager
    def active(self) -> Iterator[KernelQueue]:
        """Let kernels use the queue until the end of the ``with`` block. Wait for the kernels within the block.

        With ``doorbell="host"`` this process looks for requests meanwhile, without a pause, and the end of the block
        waits until all requests whose doorbell was rung have completed. With ``doorbell="nic"`` the NIC reads the
        requests, and the end of the block waits for none: kernels call ``PollCq`` before they end.

        Raises:
            DeadlineExceeded: at the end, requests did not complete within the queue's ``timeout``.
            AccessDenied, PeerLost, DeviceFailed, DeadlineExceeded: at the end, those of `check`.
            Closed: the queue or the Context is closed.
        """
        timeout_ns = self._timeout_ns or _LONGEST_NS
        with carry_out(self._work(), self._device, timeout_ns, _late):
            yield self
        self.check()

    def _work(self) -> list[KernelWork]:
        """Return what this process carries out while kernels run: nothing if the NIC reads the requests.

        Raises:
            Closed: the queue or the Context is closed.
        """
        self._check_open()
        if not is_open(self._control):
            raise Closed("the Context that has the memory of this KernelQueue is closed", fix="make another endpoint")
        return [] if isinstance(self._native, FabricDirectQueue) else [self._native]

    def _end(self, status: int) -> None:
        """End the waits of kernels with a status."""
        # A GPU that is lost has no kernels to tell, and a Context that is closed meanwhile no memory.
        with suppress(ZerohopError):
            self._control.write_bytes(self._state_at, status.to_bytes(8, "little"))

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
        self._raise_failure()
        state = self._state()
        if state == FAILED:
            raise DeviceFailed(
                "a kernel's call was refused: Scope::warp in a warp that lacks threads, or in a queue of fewer than 64 "
                "requests; the queue has ended",
                fix="launch whole warps, and make a new endpoint, with max_messages=64 or more",
                provider="verbs",
            )
        if state == TIMED_OUT:
            within = "" if isinstance(self._native, FabricDirectQueue) else "run kernels within queue.active(), and "
            raise DeadlineExceeded(
                "a kernel has waited to post for longer than the queue's timeout, for a free place or for a thread "
                "that did not ring the doorbell; the queue has ended",
                fix=f"make a new endpoint, {within}have each thread that calls PostWrite call UpdateSendDbrRecord and "
                "RingDoorbell",
                provider="verbs",
            )

    def _raise_failure(self) -> None:
        """Raise the failure of a request, or of the device; return if there is none."""
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

    def _state(self) -> int:
        return int.from_bytes(self._control.read_bytes(self._state_at, 8), "little")

    def _release(self) -> None:
        if isinstance(self._native, FabricDirectQueue) and is_open(self._control):
            self._end(CLOSED)
            with suppress(ZerohopError):  # as in _end()
                self._descriptor.write_bytes(0, bytes(8))  # no kernel posts any more: it has another layout
        super()._release()

    def __repr__(self) -> str:
        return f"<KernelQueue of {self.endpoint!r}{', closed' if self.closed else ''}>"


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "what kernels have posted has not ended within the queue's timeout",
        fix="find out whether the peer's endpoint is connected, or allow more time",
        provider="verbs",
    )
