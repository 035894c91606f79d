"""Declares Endpoint: a reliable connected queue pair with its own completion queue and receive queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop._native import NativeError
from zerohop.config.checks import check_int
from zerohop.core.base.deadlines import deadline_after
from zerohop.core.face import HOST
from zerohop.errors import DeadlineExceeded
from zerohop.fabric.completions import Completion, from_entry, translate
from zerohop.fabric.handle import LINK_CODES, LINK_LAYERS, MTU_CODES, MTUS, EndpointHandle
from zerohop.fabric.kernel_queue import Doorbell, KernelQueue
from zerohop.fabric.requests import CompareSwap, FetchAdd, Queue, Read, Receive, Send, SendRequest, Write
from zerohop.fabric.resource import Resource
from zerohop.shown import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from zerohop._native import FabricEndpoint, FabricReceive, FabricRequest
    from zerohop.core.face import Context
    from zerohop.fabric.config import EndpointConfig
    from zerohop.fabric.devices import OpenedDevice
    from zerohop.fabric.memory import RemoteMemory
    from zerohop.fabric.requests import Bytes, Local, MessageOptions, RequestOptions

    Errors = Literal["raise", "return"]

# A wait returns to Python this often, so that Ctrl-C has an effect.
_SLICE_NS: Final = 200_000_000


class Endpoint(Resource):
    """Posts work requests to a reliable connected (RC) queue pair; made by ``DeviceContext.create_endpoint``.

    Requests of one endpoint begin and complete in the order in which they were posted; so do receives. A request takes
    a place in its queue until its completion has been polled; an unsignalled request, until the completion of a later
    one has. A call that finds too few places raises WouldBlock and posts nothing: poll, and post again.

    A failed request ends the queue pair: all requests behind it are flushed, with a completion each. Make a new one.

    Regions that are used by requests in flight stay alive until the completions of these requests have been polled.

    The completion of a write says that the peer's device has the bytes, not that the peer's CPU or accelerator sees
    them. Only the peer's own completion of a send, or of a write with ``imm``, says that.

    Attributes:
        config: the configuration that it was made with.
        handle: the address for the peer's ``connect``.
        max_inline: number of bytes that a request may carry inline.
        max_message: number of bytes that a request may move.
    """

    __slots__ = (
        "_connected",
        "_device_context",
        "_lent",
        "_lock",
        "_ready",
        "_receives",
        "_sends",
        "config",
        "handle",
        "max_inline",
        "max_message",
    )

    _native: FabricEndpoint
    _kind = "Endpoint"
    _copy_refusal = "an Endpoint stays in its process, and is not copied; send endpoint.handle instead"

    def __init__(
        self, device_context: OpenedDevice, native: FabricEndpoint, config: EndpointConfig, max_message: int
    ) -> None:
        self._device_context = device_context
        self._connected = False
        self._lent = False  # to a KernelQueue, once: completions of an earlier one would be taken for its own
        # Guards both queues and the regions that they keep alive; no thread sleeps while holding it.
        self._lock = threading.Lock()
        self._sends: Queue[FabricRequest] = Queue("post", native.post, lambda: native.sends)
        self._receives: Queue[FabricReceive] = Queue("post_recv", native.post_receives, lambda: native.receives)
        # Completions that were polled and not returned yet: those behind a failure that was raised.
        self._ready: deque[Completion] = deque()
        self.config = config
        self.max_inline = native.max_inline
        self.max_message = max_message
        super().__init__(device_context, native)
        number, psn, lid, link, mtu, credit, gid = native.address()
        self.handle = EndpointHandle(
            qpn=number,
            psn=psn,
            port=device_context.port,
            lid=lid,
            gid=gid,
            mtu=MTUS[mtu],
            link_layer=LINK_LAYERS[link],
            read_credit=credit,
        )

    @property
    def device_context(self) -> Any:  # a DeviceContext, whose file imports this one
        """Return the DeviceContext that it was made from."""
        return self._device_context

    @property
    def qpn(self) -> int:
        """Return the queue pair number."""
        return self.handle.qpn

    @property
    def connected(self) -> bool:
        """Tell whether ``connect`` has succeeded."""
        return self._connected

    @property
    def outstanding(self) -> tuple[int, int]:
        """Return the number of places taken in the send queue and in the receive queue."""
        self._check_open()
        return self._native.sends, self._native.receives

    def connect(self, handle: EndpointHandle) -> None:
        """Connect to the peer's endpoint; the peer must call ``connect`` with the handle of this one.

        Nothing goes over the wire, so success does not prove that the peer is there. Post receives before
        the peer connects, so that each of its messages finds one.

        Raises:
            TypeError: ``handle`` is no EndpointHandle.
            ValueError: the endpoint is connected already.
            Unsupported: one end is on Ethernet and the other on InfiniBand, or the device refused the address.
            Closed: the endpoint is closed.
        """
        if not isinstance(handle, EndpointHandle):
            raise TypeError(f"an endpoint connects to an EndpointHandle, not to {type(handle).__name__}")
        self._check_open()
        with self._lock:
            if self._connected:
                raise ValueError("this endpoint is connected already; make a new one")
            try:
                self._native.connect(
                    number=handle.qpn,
                    psn=handle.psn,
                    lid=handle.lid,
                    link_layer=LINK_CODES[handle.link_layer],
                    mtu=MTU_CODES[handle.mtu],
                    read_credit=handle.read_credit,
                    gid=handle.gid,
                )
            except NativeError as error:
                raise translate(error, "connect") from None
            self._connected = True

    def kernel_queue(
        self,
        ctx: Context,
        device: str = HOST,
        *,
        timeout: float = 30.0,
        collapsed: bool = False,
        doorbell: Doorbell = "host",
    ) -> KernelQueue:
        """Return the send queue of an endpoint made with ``on_gpu=True``, for kernels; see KernelQueue.

        Args:
            ctx: the Context whose memory the queue takes. With ``doorbell="host"`` its progress thread posts the
                requests.
            device: the GPU that the kernels run on, such as ``"cuda:0"``; ``"host"``: threads of the host.
            timeout: seconds that a kernel's wait may take; an hour at most.
            collapsed: True: all completions are written to one place; False: to a ring. Only with ``doorbell="host"``.
            doorbell: ``"host"``: this process reads the requests, and posts them to any RDMA device. ``"nic"``: kernels
                write to the queue that an mlx5 NIC reads, and ring its doorbell; not verified on hardware.

        Raises:
            ValueError: the endpoint was made without ``on_gpu``, is not connected, or has had such a queue;
                ``device``, ``timeout`` or ``doorbell`` is not valid; ``collapsed=True`` with ``doorbell="nic"``.
            Unsupported: ``doorbell="nic"``, and the device is no mlx5 NIC, libmlx5 is not installed, the NIC's queues
                do not fit, or the GPU's driver refuses to map them or the doorbell.
            RegistrationFailed: there is no memory for it.
            Closed: the endpoint or the Context is closed.
        """
        self._check_open()
        if not self.config.on_gpu:
            raise ValueError("kernels post to endpoints that were made with EndpointConfig(on_gpu=True)")
        if not self._connected:
            raise ValueError("the endpoint is not connected yet")
        with self._lock:
            if self._lent:
                raise ValueError("this endpoint has had a KernelQueue already; use that one, or make a new endpoint")
            self._lent = True
        try:
            return KernelQueue(self, ctx, device, timeout, collapsed=collapsed, doorbell=doorbell)
        except BaseException:  # whatever it is, the next call may succeed
            self._lent = False
            raise

    # Posting

    def post_write(self, local: Local | Bytes, remote: RemoteMemory, **options: Unpack[MessageOptions]) -> None:
        """Post an RDMA write; see Write for the arguments, and ``post`` for the errors."""
        self.post(Write(local, remote, **options))

    def post_read(self, into: Local, remote: RemoteMemory, **options: Unpack[RequestOptions]) -> None:
        """Post an RDMA read; see Read and ``post``."""
        self.post(Read(into, remote, **options))

    def post_send(self, local: Local | Bytes = (), **options: Unpack[MessageOptions]) -> None:
        """Post a send; see Send and ``post``."""
        self.post(Send(local, **options))

    def post_fetch_add(self, into: Local, remote: RemoteMemory, add: int, **options: Unpack[RequestOptions]) -> None:
        """Post a fetch-and-add; see FetchAdd and ``post``."""
        self.post(FetchAdd(into, remote, add, **options))

    def post_compare_swap(
        self, into: Local, remote: RemoteMemory, compare: int, swap: int, **options: Unpack[RequestOptions]
    ) -> None:
        """Post a compare-and-swap; see CompareSwap and ``post``."""
        self.post(CompareSwap(into, remote, compare, swap, **options))

    def post(self, *requests: SendRequest) -> None:
        """Post requests to the send queue as one chain, with one doorbell: either all of them or none.

        Raises:
            TypeError: an argument is no request.
            ValueError: the endpoint is not connected; memory belongs to another device context; a request has more
                bytes, inline bytes or local ranges than the endpoint takes.
            WouldBlock: the send queue has too few free places; ``poll`` frees places.
            Unsupported: a request is an atomic, and the device has none.
            DeviceFailed: the device refused a request; the requests before it are posted.
            Closed: the endpoint or a region is closed.
        """
        self._check_for_cpu()
        for request in requests:
            if not isinstance(request, SendRequest):
                raise TypeError(f"what is posted is a Write, Read, Send or atomic, not {type(request).__name__}")
            request._check_for(self._device_context, self.config.max_sge)
            if request.nbytes > self.max_message:
                raise ValueError(f"{request.nbytes} bytes are more than the {self.max_message} that a message may have")
            if request.inline and request.nbytes > self.max_inline:
                raise ValueError(f"{request.nbytes} bytes are more than the {self.max_inline} that may go inline")
            if isinstance(request, (FetchAdd, CompareSwap)):
                self._device_context._check_atomics()
        if not self._connected:
            raise ValueError("the endpoint is not connected yet")
        with self._lock:
            self._sends.post(requests)

    def post_recv(self, into: Local = (), *, wr_id: int = 0) -> None:
        """Post a receive; see Receive, and ``post_recvs`` for the errors."""
        self.post_recvs(Receive(into, wr_id=wr_id))

    def post_recvs(self, *requests: Receive) -> None:
        """Post requests to the receive queue, either all of them or none; possible before the endpoint is connected.

        Raises:
            TypeError: an argument is no Receive.
            ValueError: memory is of another device context, or a request has more local ranges than the endpoint takes.
            WouldBlock: the receive queue has too few free places; ``poll`` frees the used ones.
            DeviceFailed: the device refused a request; the requests before it are posted.
            Closed: the endpoint or a region is closed.
        """
        self._check_for_cpu()
        for request in requests:
            if not isinstance(request, Receive):
                raise TypeError(f"what is posted is a Receive, not {type(request).__name__}")
            request._check_for(self._device_context, self.config.max_sge)
        with self._lock:
            self._receives.post(requests)

    # Completions

    def poll(self, limit: int = 16, *, errors: Errors = "raise") -> list[Completion]:
        """Return the completions that have arrived, in the order of their queues, without waiting.

        Args:
            limit: the largest number of completions to return.
            errors: ``"return"`` puts failures into the list, with their ``error``. ``"raise"`` raises the first
                failure. Completions before it are returned first, and those after it stay for the next call, so that no
                completion is lost.

        Raises:
            ZerohopError: the ``error`` of a completion.
            ValueError, TypeError: ``limit`` is no positive integer, or ``errors`` is neither of the two.
            Closed: the endpoint is closed.
        """
        _check_poll(limit, errors)
        return self._take(limit, errors)

    def wait(self, limit: int = 16, *, timeout: float = 30.0, errors: Errors = "raise") -> list[Completion]:
        """Return completions like ``poll``, but sleep until there is at least one. Other threads run meanwhile.

        Args:
            limit: as for ``poll``.
            timeout: seconds; ``math.inf``: none.
            errors: as for ``poll``.

        Raises:
            DeadlineExceeded: ``timeout`` seconds have passed; the requests are still in flight.
            ValueError, TypeError: as for ``poll``; also if ``timeout`` is negative, NaN or no number.
            Closed: as for ``poll``; also if another thread closes the endpoint meanwhile. Other errors as for ``poll``.
        """
        _check_poll(limit, errors)
        deadline = deadline_after(timeout)
        while True:
            if ended := self._take(limit, errors):
                return ended
            try:
                self._native.arm()
                # Completions that came before arm() wake nobody, so poll once more.
                if ended := self._take(limit, errors):
                    return ended
                now = time.monotonic_ns()
                if deadline and now >= deadline:
                    sends, receives = self.outstanding
                    raise DeadlineExceeded(
                        f"no completion in {timeout:g} s; {sends} requests and {receives} receives are outstanding",
                        fix="allow more time with timeout=, or look at why the peer does not answer",
                        provider="verbs",
                        operation="wait",
                    )
                self._native.sleep(min(deadline, now + _SLICE_NS) if deadline else now + _SLICE_NS)
            except NativeError as error:
                raise translate(error, "wait") from None

    def _check_for_cpu(self) -> None:
        self._check_open()
        if self.config.on_gpu:
            raise ValueError("the queues of this endpoint are for kernels; make another one with on_gpu=False")

    def _take(self, limit: int, errors: Errors) -> list[Completion]:
        self._check_for_cpu()
        with self._lock:
            try:
                polled = self._native.poll(max(0, limit - len(self._ready)))
            except NativeError as error:
                raise translate(error, "poll") from None
            self._sends.drop_completed()
            self._receives.drop_completed()
            self._ready.extend(map(from_entry, polled))
            ended: list[Completion] = []
            while self._ready and len(ended) < limit:
                failure = self._ready[0].error if errors == "raise" else None
                if failure is not None and ended:
                    break
                completion = self._ready.popleft()
                if failure is not None:
                    raise failure
                ended.append(completion)
            return ended

    def _release(self) -> None:
        super()._release()
        self._sends.clear()
        self._receives.clear()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "connected" if self._connected else "not connected"
        return f"<Endpoint: queue pair {self.qpn} of {self._device_context.name}, {state}>"


def _check_poll(limit: int, errors: str) -> None:
    check_int("limit", limit, 1)
    if errors not in ("raise", "return"):
        raise ValueError(f'errors must be "raise" or "return", not {shown(errors)}')
