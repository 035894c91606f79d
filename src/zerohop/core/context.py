"""Declares Context, this process's presence, from which users make everything else."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from zerohop._native import NativeError
from zerohop.config.settings import UNSET, Unset, resolve
from zerohop.core import opening
from zerohop.core.base.frameworks import check_unpatched
from zerohop.core.base.peer_text import printable
from zerohop.core.base.resource import NotCopyable
from zerohop.core.base.statistics import Statistics
from zerohop.core.base.uninterrupted import uninterrupted
from zerohop.core.control import address
from zerohop.core.lifecycle import Core
from zerohop.core.memory import register
from zerohop.core.memory.pool import Pool
from zerohop.core.memory.rights import length_of
from zerohop.core.runtime.deferred import defer
from zerohop.core.runtime.operation import Finished
from zerohop.core.transfers.connection import AcceptWait, Connection
from zerohop.core.transfers.notification import NotificationWait, iterate, take_now
from zerohop.core.transfers.strided import StridedTransfers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from zerohop.config.protection import Encryption
    from zerohop.config.settings import Settings
    from zerohop.config.verbs_options import VerbsOptions
    from zerohop.core.memory.memory import Memory
    from zerohop.core.memory.rights import Rights
    from zerohop.core.runtime.devices import Device
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.transfers.notification import Notification


class Context(StridedTransfers, NotCopyable):
    """Holds the accelerators, links and registered memory of this process, its listening address and its engine.

    There is no global state: two Contexts in one process work, and may talk to each other. All methods may be called
    from any thread. It is a context manager, with ``with`` and ``async with``. Close it when you are done; one that is
    dropped and not closed is closed by its finalizer, with a ResourceWarning, whatever else of it you have kept. After
    ``fork()`` the child's copy raises Closed, and never hangs.

    Each argument's default comes from ``ZEROHOP_<NAME>`` if that is set.

    Args:
        listen: ``"host:port"`` for peers on other hosts; port 0 takes a free one. None: no TCP listener, only peers
            on this host can connect. An address off loopback needs a secret.
        advertise: what peers are told to connect to, if that is not the address of ``listen``: a host, an address, or
            an interface such as ``"eth1"``. None: if ``listen`` is ``0.0.0.0`` or ``[::]``, the address by which this
            host reaches others; without a route, that of a card that is up.
        secret: a secret that peers must have, too; it is proved, and never sent.
        insecure: listen off loopback without a secret.
        encryption: ``"control"``, the default where there is a secret: what peers tell each other beside the data goes
            through TLS, which needs ``pip install 'zerohop[tls]'`` off loopback; the data itself is not encrypted.
            ``"all"``: tcp lanes go through TLS, too, and RDMA is for peers on this host only. ``"none"``, on a network
            that you trust: the secret is proved, and whoever is in between can then speak for the peer. Both sides
            must have the same.
        providers: names, such as ``["shm", "tcp"]`` or ``"shm,tcp"``; None: all that work here.
        require: ``"direct"`` makes a path through host buffers an error (Unsupported).
        nics: RDMA ports to use, as ``"mlx5_0,mlx5_1:1"`` or a list of names; ``"^mlx5_2"``: all but that one; None:
            those that are nearest (docs/nics.md).
        verbs: how RDMA lanes are made.
        sim_devices: number of simulated accelerators, ``sim:0`` and so on.
        sim_peermem: whether NICs can register the memory of simulated accelerators.
        tcp_flows: sockets that carry large transfers to a peer over TCP at once, 1 to 64, if both sides allow as many;
            each keeps a processor busy. None: one for each four processors, four at most.
        timeout: seconds until an operation ends with DeadlineExceeded, unless it says otherwise; 0: never.
        spin_us: microseconds of polling before a wait sleeps.
        heartbeat: seconds of silence until a peer on another host is lost; 0: never.
        name: the name that peers and logs use for the Context.

    Raises:
        ValueError, TypeError: an argument makes no sense, such as an interface that is not there; listening off
            loopback without a secret.
        Unsupported: a provider does not work here, ``nics`` names none of this machine, the address cannot be bound, or
            there is no TLS where it is needed; with the reason and the fix.
        RuntimeError: gevent has patched the threads or sockets of this process.
        LimitReached: this process has no descriptor, thread or memory left that it needs.
        RegistrationFailed: out of memory.
    """

    _copy_refusal = "a Context stays in its process, and is not copied; make one in each process, and send context.url"

    def __init__(
        self,
        *,
        listen: str | Unset | None = UNSET,
        advertise: str | Unset | None = UNSET,
        secret: str | bytes | Unset | None = UNSET,
        insecure: bool | Unset = UNSET,
        encryption: Encryption | Unset | None = UNSET,
        providers: Sequence[str] | Unset | None = UNSET,
        require: Literal["direct"] | Unset | None = UNSET,
        nics: str | Sequence[str] | Unset | None = UNSET,
        verbs: VerbsOptions | Unset = UNSET,
        sim_devices: int | Unset = UNSET,
        sim_peermem: bool | Unset = UNSET,
        tcp_flows: int | Unset | None = UNSET,
        timeout: float | Unset = UNSET,
        spin_us: float | Unset = UNSET,
        heartbeat: float | Unset = UNSET,
        name: str | Unset | None = UNSET,
    ) -> None:
        settings = resolve(
            {
                "listen": listen,
                "advertise": advertise,
                "secret": secret,
                "insecure": insecure,
                "encryption": encryption,
                "providers": providers,
                "require": require,
                "nics": nics,
                "verbs": verbs,
                "sim_devices": sim_devices,
                "sim_peermem": sim_peermem,
                "tcp_flows": tcp_flows,
                "timeout": timeout,
                "spin_us": spin_us,
                "heartbeat": heartbeat,
                "name": name,
            }
        )
        check_unpatched()
        uninterrupted(partial(self._open, settings), lambda _: self.close())
        # A signal's handler may raise at any of these lines; the destructor needs none of the names.
        core = self._core
        self.id: Final = core.id
        self.name: Final = core.name
        self.url: Final = core.url

    def _open(self, settings: Settings) -> None:
        try:
            super().__init__(Core(settings, Connection))
        except (ImportError, OSError) as error:
            raise opening.error_of_import(error) from None

    @overload
    def register(self, x: list[Any], rights: Rights | None = None, *, as_bytes: bool = False) -> list[Memory]: ...
    @overload
    def register(self, x: Any, rights: Rights | None = None, *, as_bytes: bool = False) -> Memory: ...
    def register(self, x: Any, rights: Rights | None = None, *, as_bytes: bool = False) -> Memory | list[Memory]:
        """Register the memory of ``x`` without a copy, and keep what owns it until the Memory is closed.

        ``x`` is a numpy array, a torch tensor, anything with DLPack, ``__cuda_array_interface__`` or the buffer
        protocol, or a raw ``(pointer, nbytes, device)``. It must be contiguous, its last axis innermost. The allocation
        behind it is registered once, and found again while its owner lives; a GPU's, while the driver gives it the same
        id. Raw pointers to host memory are registered each time. The device of a raw pointer may also be ``"device"``,
        the one whose driver knows the address, or ``"auto"``, the same, or the host if no driver knows it. Memory that
        processes on this host can map, from ``alloc``, ``multiprocessing.shared_memory`` or a shared tensor, is
        recognised.

        Freeing a raw pointer before the Memory is closed is the caller's error. A tensor of torch may get other memory
        (``p.data = x``, ``module.half()``): the Memory stays what it was. torch refuses to ``resize_`` a tensor on the
        host that was registered; where its bytes move in another way, the next call with the Memory raises Closed.

        Args:
            x: the memory; or a list of such, for as many Memories in the same order: all of them, or none.
            rights: the most that ``share`` may give out: ``"r"``, ``"w"`` or ``"rw"``; None: all that ``x`` allows.
            as_bytes: take an array whose axes lie in another order (transposed, channels last, a KV cache) as the bytes
                that it has in memory. Transfers then refuse an array at the other end that lies otherwise.

        Raises:
            TypeError: not memory.
            ValueError: not contiguous; rights that ``x`` does not have; no such device.
            Unsupported: memory of a device that this build has no driver for; managed memory, whose pages move; a
                range of a GPU that is not all allocated on one GPU of this process.
            RegistrationFailed: the system refused.
            LimitReached: a limit of this process is reached.
            Closed: the Context is closed.
        """
        if type(x) is list:
            return register.register_all(self._core, x, rights, as_bytes=as_bytes)
        return register.register(self._core, x, rights, as_bytes=as_bytes, lasting=True)

    def alloc(self, shape: int | Sequence[int], device: str = "host", *, dtype: Any = None) -> Memory:
        """Allocate memory. On the host it is zero-filled, page-aligned, and mappable by other processes on this host.

        ``memory.numpy()`` and ``torch.from_dlpack(memory)`` show it without a copy, with this shape and type.

        Args:
            shape: the lengths of the axes in elements, each at least 1, as a tuple or another sequence; or one length.
            device: ``"host"`` or a device's name, such as ``"sim:0"``; its contents are undefined.
            dtype: the type of the elements: a name such as ``"float16"``, ``"bfloat16"`` or ``"float8_e4m3fn"``, or a
                type of NumPy's or PyTorch's; None: bytes.

        Raises:
            TypeError: the lengths are no integers, ``device`` no name, or ``dtype`` no such type.
            ValueError: no such device, or no such length.
            RegistrationFailed: out of memory.
            LimitReached: a limit of this process is reached.
            Closed: the Context is closed.
        """
        return register.allocate(self._core, shape, device, dtype)

    def pool(self, device: str, *, chunk_bytes: int = 64 << 20, max_bytes: int | None = None) -> Pool:
        """Make a Pool of a device's memory, for many small Memories or tensors that cost no registration each.

        Args:
            device: ``"host"`` or a device's name, such as ``"cuda:0"``.
            chunk_bytes: least bytes that the pool takes from the device each time, first in ``alloc``.
            max_bytes: bytes that the pool never exceeds; None: all that the device has.

        Raises:
            TypeError: a number of bytes is no integer, or ``device`` no name.
            ValueError: no such device, or no such length.
            Closed: the Context is closed.
        """
        self._core.check_open()
        limit = None if max_bytes is None else length_of(max_bytes)
        return Pool(self._core, device, length_of(chunk_bytes), limit)

    def connect(self, url: str, *, timeout: float | None = None) -> Operation[Connection]:
        """Connect to the Context at a URL; value: the Connection. There is one Connection per peer.

        A URL with a Context's id reaches that Context and no other; ``zerohop://host:port``, whichever listens there.

        Raises:
            ValueError: not a zerohop URL.
            Closed: the Context is closed. From the Operation: PeerLost, AccessDenied (wrong secret), ProtocolError
                (another version), Unsupported (no provider in common), DeadlineExceeded.
        """
        core, where = self._core, address.parse(url)
        core.check_open()
        deadline_ns = core.deadline(timeout)
        existing = core.connected.get(where.context)
        if existing is not None and existing.alive:
            # Another thread may close the Context meanwhile, which clears the table.
            connection = core.connections.get(existing.native_id) or core.connection_of(existing.native_id)
            return Finished(core, "connect", None, 0, connection, 0)

        async def work() -> Connection:
            link = await core.peers.connect(where)
            connection: Connection = core.connection_of(link.native_id)
            return connection

        return defer(core, "connect", 0, deadline_ns, work, None)

    def accept(self, *, timeout: float | None = None) -> Operation[Connection]:
        """Wait for a peer that connects to this Context by itself; value: its Connection.

        Each Connection that a peer has made is given once, in the order in which they came up. One that is lost before
        it is asked for is left out, and one that this side has made is not given.

        Args:
            timeout: seconds, for the operation; None: none, it waits until a peer connects.
        """
        core = self._core
        core.check_open()
        return AcceptWait(core, 0 if timeout is None else core.deadline(timeout), core.arrivals)

    @property
    def connections(self) -> list[Connection]:
        """Return the Connections that are alive, whichever side made them."""
        core = self._core
        core.check_process()
        alive = [link.native_id for link in list(core.connected.values()) if link.alive]
        found = map(core.connections.get, alive)
        return [connection for connection in found if connection is not None]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Describe the accelerators of this Context."""
        self._core.check_open()
        return self._core.devices.described()

    def notification(self, timeout: float | None = None) -> Operation[Notification]:
        """Wait for a notification, or take the first that has arrived. ``timeout`` in seconds; None: no limit."""
        core = self._core
        # check_open() does the same, but each notification waits for the call of it.
        if core.closed or core.forked:
            raise core.closed_error()
        return NotificationWait(core, 0 if timeout is None else core.deadline(timeout))

    def notification_nowait(self) -> Notification:
        """Return a notification that has arrived; raise WouldBlock if there is none."""
        self._core.check_open()
        return take_now(self._core)

    def notifications(self) -> AsyncIterator[Notification]:
        """Yield all notifications, with ``async for``, until the Context is closed."""
        self._core.check_open()
        return iterate(self._core)

    def statistics(self) -> Statistics:
        """Return the current counters."""
        core = self._core
        core.check_open()
        core.retention.drain()
        try:
            engine = dict(core.engine.statistics())
        except NativeError:  # another thread has closed it meanwhile
            raise core.closed_error() from None
        links = list(core.connected.values())
        return Statistics(
            connections=len(links),
            registrations=len(core.registration_cache),
            pinned=core.retention.pinned,
            shares=len(core.shares),
            mapped=sum(len(link.imports) for link in links),
            routes=len(core.routes),
            engine=engine,
        )

    def close(self, timeout: float = 5.0) -> None:
        """End everything, in ``timeout`` seconds whatever the peers do; idempotent.

        Operations in flight end with Closed, those of the peers with PeerLost; handles of this Context are dead.
        Every Memory is closed. Arrays from ``Memory.numpy`` stay valid.

        Args:
            timeout: seconds; ``math.inf``: as long as it takes.

        Raises:
            ValueError: ``timeout`` is negative or NaN. The Context stays open.
            TypeError: it is not a number, None included. The Context stays open.
        """
        if hasattr(self, "_core"):  # or the constructor has raised, and a subclass closes what there is
            self._core.close(timeout)

    def __del__(self) -> None:
        # The constructor may have raised, and then there is no core.
        core = getattr(self, "_core", None)
        if core is None or core.gone:
            return
        was_open = not core.closed
        try:
            core.close_dropped()
        except BaseException:  # of a signal's handler: nobody can close it again
            core.close_dropped()
            raise
        if was_open:
            said = f"<Context {printable(core.name)} at {core.url}> was dropped and not closed"
            warnings.warn(said, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        core = getattr(self, "_core", None)
        if core is None:
            return "<Context, not open>"
        return f"<Context {printable(core.name)} at {core.url}{', closed' if core.closed else ''}>"
