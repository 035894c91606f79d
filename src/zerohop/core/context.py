"""Declares Context, this process's presence, of which everything else is made."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, overload

from zerohop.config.settings import UNSET, Unset, resolve
from zerohop.core.base.resource import NotCopyable
from zerohop.core.control import address
from zerohop.core.lifecycle import Lifecycle
from zerohop.core.memory import sources
from zerohop.core.memory.memory import Memory, View, length_of, rights_bits
from zerohop.core.memory.pool import Pool
from zerohop.core.runtime.native_operation import InFlight
from zerohop.core.runtime.operation import Finished, Operation
from zerohop.core.transfers import transfer, write_many
from zerohop.core.transfers.notification import Notification, NotificationWait, iterate, take_now
from zerohop.core.transfers.strided import Strided

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from zerohop.config.verbs_options import VerbsOptions
    from zerohop.core.lanes.paths import Explanation
    from zerohop.core.memory.memory import Rights
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.devices import Device
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.connection import Connection
    from zerohop.core.transfers.transfer import Local, Pages

_READ_ONLY: Final = 1
_READ_WRITE: Final = 3
_SCRATCH_BYTES: Final = 8
# How long a registration that another thread is closing is left alone before it is asked for again.
_LEAVING_S: Final = 0.001


class Statistics(NamedTuple):
    """Counters of a Context.

    Attributes:
        connections: peers that it is connected to.
        registrations: registered regions, cached ones included.
        pinned: Memories that are gone and whose memory transfers, peers or devices still use.
        shares: handles that can be used.
        mapped: peers' memories that are mapped here, or that a NIC here reaches by their keys.
        routes: pairs (memory, remote memory) whose path is chosen.
        engine: counters of the data plane, by name.
    """

    connections: int
    registrations: int
    pinned: int
    shares: int
    mapped: int
    routes: int
    engine: Mapping[str, int]


class Context(Lifecycle, Strided, NotCopyable):
    """Holds the accelerators, links and registered memory of this process, its listening address and its engine.

    There is no global state: two Contexts in one process work, and may talk to each other. All methods may be called
    from any thread. A context manager, with ``with`` and ``async with``. Close it when you are done; one that is not
    closed lives until the interpreter exits. After ``fork()`` the child's copy raises Closed, and never hangs.

    Each argument's default comes from ``ZEROHOP_<NAME>`` where that is set.

    Args:
        listen: ``"host:port"`` for peers on other hosts; port 0 takes a free one. None: no TCP listener, only peers
            on this host can connect. Off loopback a secret is needed.
        secret: what peers must have too; proved, never sent.
        insecure: listen off loopback without a secret.
        providers: names, such as ``["shm", "tcp"]``; None: all that work here.
        require: ``"direct"`` makes a path through host buffers an error (Unsupported).
        nics: RDMA ports to use, as ``"mlx5_0,mlx5_1:1"`` or a list of names; ``"^mlx5_2"``: all but that one; None:
            those that are nearest (docs/nics.md).
        verbs: how RDMA lanes are made.
        sim_devices: number of simulated accelerators, ``sim:0`` and so on.
        sim_peermem: whether NICs can register their memory.
        timeout: seconds until an operation ends with DeadlineExceeded, unless it says otherwise; 0: never.
        spin_us: microseconds of polling before a wait sleeps.
        heartbeat: seconds of silence until a peer on another host is lost; 0: never.
        name: what peers and logs call it.

    Raises:
        ValueError, TypeError: an argument makes no sense; listening off loopback without a secret.
        Unsupported: a provider does not work here, or the address cannot be had; with the reason and the fix.
        RegistrationFailed: out of descriptors or memory.
    """

    _copy_refusal = "a Context stays in its process, and is not copied; make one in each process, and send context.url"

    def __init__(
        self,
        *,
        listen: str | Unset | None = UNSET,
        secret: str | bytes | Unset | None = UNSET,
        insecure: bool | Unset = UNSET,
        providers: Sequence[str] | Unset | None = UNSET,
        require: Literal["direct"] | Unset | None = UNSET,
        nics: str | Sequence[str] | Unset | None = UNSET,
        verbs: VerbsOptions | Unset = UNSET,
        sim_devices: int | Unset = UNSET,
        sim_peermem: bool | Unset = UNSET,
        timeout: float | Unset = UNSET,
        spin_us: float | Unset = UNSET,
        heartbeat: float | Unset = UNSET,
        name: str | Unset | None = UNSET,
    ) -> None:
        settings = resolve(
            {
                "listen": listen,
                "secret": secret,
                "insecure": insecure,
                "providers": providers,
                "require": require,
                "nics": nics,
                "verbs": verbs,
                "sim_devices": sim_devices,
                "sim_peermem": sim_peermem,
                "timeout": timeout,
                "spin_us": spin_us,
                "heartbeat": heartbeat,
                "name": name,
            }
        )
        super().__init__(settings)
        self._begin_posting(
            self._engine, InFlight, Finished, transfer.write, write_many.write_many, transfer.read, self._timeout_ns
        )

    # Memory

    @overload
    def register(self, x: list[Any], rights: Rights | None = None) -> list[Memory]: ...
    @overload
    def register(self, x: Any, rights: Rights | None = None) -> Memory: ...
    def register(self, x: Any, rights: Rights | None = None) -> Memory | list[Memory]:
        """Register the memory of ``x`` without a copy; ``x`` is kept alive until the Memory is closed.

        ``x`` is a numpy array, a torch tensor, anything with DLPack, ``__cuda_array_interface__`` or the buffer
        protocol, or a raw ``(pointer, nbytes, device)``. It must be contiguous. The allocation behind it is registered
        once, and found again as long as the object that owns it lives, or for a GPU's memory as long as the driver
        still gives it the same id; raw pointers of host memory never are. Memory that other processes on this host can
        map, from ``alloc``, ``multiprocessing.shared_memory`` or a shared tensor, is recognised.

        Freeing a raw pointer before the Memory is closed is the caller's error.

        Args:
            x: the memory; or a list of such, for as many Memories in the same order: all of them, or none.
            rights: what ``share`` may give out at most: ``"r"``, ``"w"`` or ``"rw"``; None: what ``x`` allows.

        Raises:
            TypeError: not memory.
            ValueError: not contiguous; rights that ``x`` does not have; no such device.
            Unsupported: memory of a device that this build has no driver for; managed memory, whose pages move; a
                range of a GPU that is not all allocated on one GPU of this process.
            RegistrationFailed: the system refused.
            Closed: the Context is closed.
        """
        if type(x) is list:
            return self._register_all(x, rights)
        return self._register_one(x, rights)

    def _register_one(self, x: Any, rights: Rights | None) -> Memory:
        if self._closed or self._forked:
            raise self._closed_error()
        if rights is None and type(x) in sources.tensors_on_gpus:
            # What inputs.read finds out, for what it was found out about before: a tenth of its time.
            where = sources.on_gpu(x)
            if where is not None:
                address, nbytes = where
                registration = self._registry.known_on_device(address, nbytes)
                if registration is not None:
                    return Memory(self, registration, address - registration.address, nbytes, _READ_WRITE, x)
        if isinstance(x, (Memory, View)):
            raise TypeError("it is registered already")
        source = sources.read(x)
        possible = _READ_ONLY if source.readonly else _READ_WRITE
        bits = possible if rights is None else rights_bits(rights)
        if bits & ~possible:
            raise ValueError(f'{type(x).__name__} is read-only: rights can be "r" only')
        while True:
            registration, owned = self._registry.register(source)
            offset = source.address - registration.address
            memory = Memory(self, registration, offset, source.nbytes, bits, source.keep, owned)
            if not (registration.closed or registration.leaving):
                if registration.made_for is None:
                    registration.made_for = weakref.ref(memory)
                return memory
            # Another thread is closing what nobody had, and needs the interpreter for it.
            time.sleep(_LEAVING_S)

    def _register_all(self, many: list[Any], rights: Rights | None) -> list[Memory]:
        made: list[Memory] = []
        # An allocation that has been looked at in this call is not looked at again.
        start = stop = 0
        registration = None
        try:
            for x in many:
                where = sources.on_gpu(x) if rights is None and type(x) in sources.tensors_on_gpus else None
                if where is not None and start <= where[0] and where[0] + where[1] <= stop:
                    assert registration is not None  # with start and stop
                    made.append(Memory(self, registration, where[0] - start, where[1], _READ_WRITE, x))
                    continue
                memory = self._register_one(x, rights)
                made.append(memory)
                if where is not None:
                    registration = memory._registration
                    start, stop = registration.address, registration.address + registration.nbytes
        except BaseException:
            for memory in made:
                memory.close()
            raise
        return made

    def alloc(self, nbytes: int, device: str = "host") -> Memory:
        """Allocate memory. On the host it is zero-filled, page-aligned, and mappable by other processes on this host.

        Args:
            nbytes: length, at least 1.
            device: ``"host"`` or a device's name, such as ``"sim:0"``; its contents are undefined.

        Raises:
            TypeError: ``nbytes`` is no integer.
            ValueError: no such device, or no such length.
            RegistrationFailed: out of memory.
            Closed: the Context is closed.
        """
        self._check_open()
        nbytes = length_of(nbytes)
        registration = self._registry.allocate(nbytes, device)
        memory = Memory(self, registration, 0, nbytes, _READ_WRITE, None, True)
        registration.made_for = weakref.ref(memory)
        return memory

    def pool(self, device: str, *, chunk_bytes: int = 64 << 20, max_bytes: int | None = None) -> Pool:
        """Make a Pool of a device's memory, for many small Memories or tensors that cost no registration each.

        Args:
            device: ``"host"`` or a device's name, such as ``"cuda:0"``.
            chunk_bytes: what the pool takes of the device at once, at least; nothing before the first ``alloc``.
            max_bytes: what it never exceeds; None: what the device has.

        Raises:
            TypeError: a number of bytes is no integer.
            ValueError: no such device, or no such length.
            Closed: the Context is closed.
        """
        self._check_open()
        if not isinstance(device, str):
            raise TypeError(f'a device is a name such as "cuda:0", not {device!r}')
        limit = None if max_bytes is None else length_of(max_bytes)
        return Pool(self, device, length_of(chunk_bytes), limit)

    # Peers

    def connect(self, url: str, *, timeout: float | None = None) -> Operation[Connection]:
        """Connect to the Context at a URL; value: the Connection. There is one Connection per peer.

        A URL with a Context's id reaches that Context and no other; ``zerohop://host:port`` whichever is there.

        Raises:
            ValueError: not a URL of ours.
            Closed: the Context is closed. From the Operation: PeerLost, AccessDenied (wrong secret), ProtocolError
                (another version), Unsupported (no provider in common), DeadlineExceeded.
        """
        where = address.parse(url)
        self._check_open()
        existing = self._peers.connected.get(where.context)
        if existing is not None and existing.alive:
            return Finished(self, "connect", None, 0, existing, 0)
        from zerohop.core.runtime.deferred import defer

        return defer(self, "connect", 0, self._deadline(timeout), lambda: self._peers.connect(where), None)

    @property
    def connections(self) -> list[Connection]:
        """Return the Connections that are alive, whichever side made them."""
        self._check_process()
        return [connection for connection in list(self._peers.connected.values()) if connection.alive]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Describe the accelerators of this Context."""
        self._check_open()
        return self._devices.described()

    # Transfers

    if TYPE_CHECKING:

        def write(
            self,
            src: Local,
            dst: RemoteBuffer,
            *,
            notify: int | None = None,
            timeout: float | None = None,
            stream: Stream | None = None,
        ) -> Operation[int]:
            """Post natively; the documentation is in native/bind/transfers.cpp. transfer.write does the rest."""

        def write_many(
            self,
            pairs: Sequence[tuple[Local, RemoteBuffer]],
            *,
            notify: int | None = None,
            timeout: float | None = None,
        ) -> Operation[int]:
            """Post natively; the documentation is native, too. write_many.write_many does the rest."""

        def read(
            self, src: RemoteBuffer, into: Local, *, timeout: float | None = None, stream: Stream | None = None
        ) -> Operation[int]:
            """Post natively; the documentation is native, too. transfer.read does the rest."""

    def write_nowait(
        self, src: Local, dst: RemoteBuffer, *, notify: int | None = None, timeout: float | None = None
    ) -> Operation[int]:
        """Like ``write``, but raises WouldBlock, with nothing posted, where the lane is full or not ready yet."""
        return transfer.transfer(self, "write", src, dst, notify, timeout, nowait=True)

    def read_nowait(self, src: RemoteBuffer, into: Local, *, timeout: float | None = None) -> Operation[int]:
        """Like ``read``, but raises WouldBlock, with nothing posted, where the lane is full or not ready yet."""
        return transfer.transfer(self, "read", into, src, None, timeout, nowait=True)

    def write_pages(
        self,
        src: Local,
        dst: RemoteBuffer,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        notify: int | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Write page ``src_pages[i]`` of ``src`` to page ``dst_pages[i]`` of ``dst``, for all i, as one Operation.

        Page n of a range are its bytes ``n * page_bytes`` to ``(n + 1) * page_bytes``. The pages have no order among
        each other; ``notify`` comes after all of them. The index arrays may be reused when the call returns.
        Done and errors as for ``write``; pages outside the remote range are AccessDenied, from the Operation.

        Args:
            src: memory here; the lengths of ``src`` and ``dst`` need not be equal.
            dst: memory there.
            src_pages: one-dimensional array of integers.
            dst_pages: as many of them.
            page_bytes: length of a page, at least 1.
            notify: as for ``write``.
            timeout: as for ``write``.
            stream: as for ``write``.
        """
        return transfer.transfer_pages(
            self, "write_pages", src, dst, src_pages, dst_pages, page_bytes, notify, timeout, stream=stream
        )

    def write_pages_nowait(
        self,
        src: Local,
        dst: RemoteBuffer,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        notify: int | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Like ``write_pages``, but raises WouldBlock, with nothing posted, where the lane is full or not ready yet."""
        return transfer.transfer_pages(
            self, "write_pages", src, dst, src_pages, dst_pages, page_bytes, notify, timeout, nowait=True
        )

    def read_pages(
        self,
        src: RemoteBuffer,
        into: Local,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Read page ``src_pages[i]`` of ``src`` into page ``dst_pages[i]`` of ``into``, for all i; see write_pages."""
        return transfer.transfer_pages(
            self, "read_pages", into, src, dst_pages, src_pages, page_bytes, None, timeout, stream=stream
        )

    def read_pages_nowait(
        self,
        src: RemoteBuffer,
        into: Local,
        src_pages: Pages,
        dst_pages: Pages,
        *,
        page_bytes: int,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Like ``read_pages``, but raises WouldBlock, with nothing posted, where the lane is full or not ready yet."""
        return transfer.transfer_pages(
            self, "read_pages", into, src, dst_pages, src_pages, page_bytes, None, timeout, nowait=True
        )

    def fetch_add(
        self, dst: RemoteBuffer, value: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Add to the 8 bytes at ``offset``, an unsigned integer in the target's byte order that wraps around.

        The Operation's value is what was there before. Atomic against operations of the same provider on the same
        memory, and only those. Needs both rights.

        Raises:
            ValueError: not within ``dst``, or not aligned to 8 bytes. Else as for ``write``.
        """
        return transfer.atomic(self, "fetch_add", dst, value, 0, offset, timeout)

    def fetch_add_nowait(
        self, dst: RemoteBuffer, value: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Like ``fetch_add``, but raises WouldBlock, with nothing posted, where the lane is full or not ready yet."""
        return transfer.atomic(self, "fetch_add", dst, value, 0, offset, timeout, nowait=True)

    def compare_swap(
        self, dst: RemoteBuffer, compare: int, swap: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Put ``swap`` into the 8 bytes at ``offset`` if they are ``compare``; value: what was there before.

        It was put there if the value equals ``compare``. Atomicity and errors as for ``fetch_add``.
        """
        return transfer.atomic(self, "compare_swap", dst, swap, compare, offset, timeout)

    def compare_swap_nowait(
        self, dst: RemoteBuffer, compare: int, swap: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Like ``compare_swap``, but raises WouldBlock, nothing posted, where the lane is full or not ready yet."""
        return transfer.atomic(self, "compare_swap", dst, swap, compare, offset, timeout, nowait=True)

    def notify(self, target: Connection | RemoteBuffer, value: int, *, timeout: float | None = None) -> Operation[int]:
        """Give a peer, or the owner of a handle, a notification without data; value: 0. Errors as for ``write``."""
        return transfer.notify_peer(self, target, value, timeout)

    def notify_nowait(
        self, target: Connection | RemoteBuffer, value: int, *, timeout: float | None = None
    ) -> Operation[int]:
        """Like ``notify``, but raises WouldBlock, with nothing posted, where the lane is full or not ready yet."""
        return transfer.notify_peer(self, target, value, timeout, nowait=True)

    def flush(self, connection: Connection | None = None, *, timeout: float | None = None) -> Operation[int]:
        """Flush: done when all that was posted before, to one peer or to all, is visible there; value: 0."""
        return transfer.flush(self, connection, timeout)

    def explain(self, local: Local, remote: RemoteBuffer, *, timeout: float | None = None) -> Explanation:
        """Explain which path transfers between two memories take, and why no other; connect first if needed, and wait.

        Raises:
            Unsupported: there is none; the reason names every candidate. Other errors as for ``write``.
        """
        return transfer.explain(self, local, remote, timeout)

    # Notifications

    def notification(self, timeout: float | None = None) -> Operation[Notification]:
        """Wait for a notification, or take the first that has arrived. ``timeout`` in seconds; None: no limit."""
        self._check_open()
        return NotificationWait(self, 0 if timeout is None else self._deadline(timeout))

    def notification_nowait(self) -> Notification:
        """Return a notification that has arrived; raise WouldBlock if there is none."""
        self._check_open()
        return take_now(self)

    def notifications(self) -> AsyncIterator[Notification]:
        """Yield all notifications, with ``async for``, until the Context is closed."""
        self._check_open()
        return iterate(self)

    def statistics(self) -> Statistics:
        """Counters, as they are now."""
        self._check_open()
        self._retention.drain()
        connections = list(self._peers.connected.values())
        return Statistics(
            connections=len(connections),
            registrations=len(self._registry),
            pinned=self._retention.pinned,
            shares=len(self._shares),
            mapped=sum(len(connection._imports) for connection in connections),
            routes=len(self._routes),
            engine=dict(self._engine.statistics()),
        )

    # For the rest of the package

    def _view(self, x: Local) -> Memory | View:
        """Return the Memory or View that a transfer's local argument stands for."""
        if not isinstance(x, (Memory, View)):
            return self._register_one(x, None)
        if x._context is not self:
            raise ValueError("the memory was registered with another Context")
        self._check_open()
        x._home()._check_open()
        return x

    def _scratch_memory(self) -> Memory:
        """Return the memory at which the routes of atomic operations begin; nothing is ever written there."""
        if self._scratch is None:
            self._scratch = self.register(bytearray(_SCRATCH_BYTES))
        return self._scratch
