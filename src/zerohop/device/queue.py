"""Declares Queue, through which kernels of a GPU reach the memory of other processes."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Proxy, Reason, Status
from zerohop.config.providers import VERBS
from zerohop.core.face import (
    HOST,
    Face,
    RemoteBuffer,
    carry_out,
    keep_reached,
    offset_of,
    region_of,
    start_of,
)
from zerohop.device import failures
from zerohop.device.arguments import check_counts, checked_handle, checked_list, checked_slots, device_of
from zerohop.device.descriptor import (
    DESCRIPTOR_BYTES,
    LocalEntry,
    counter_bytes,
    lay_out,
)
from zerohop.device.pairs import Pair
from zerohop.device.shared_words import SharedWords
from zerohop.device.status import FAILED
from zerohop.device.ways import MODES, Mode, Way, WayFinder
from zerohop.errors import Closed, copy_of, from_native
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zerohop.core.face import Context, KernelWork, Link, Local
    from zerohop.errors import ZerohopError

_RIGHTS: Final = {"r": 1, "w": 2, "rw": 3}
_LONGEST_NS: Final = 3600 * 10**9  # of a kernel's wait: no kernel is to wait for ever


class Queue(Face):
    """Gives kernels of one GPU the memory of peers: to put bytes there, get them, signal, and wait for signals.

    It is made of handles and registered memory; the other processes run no code for it. ``pointer`` is its one argument
    for a kernel. The functions for kernels name a peer, and memory of this side, by its place in the lists here.
    Kernels work within ``with queue.active():``, and on the same streams as always.

    Each peer is reached in one of three ways, which kernels do not see:

    - ``"peer"``: by the GPU's own loads and stores, where it reaches the memory.
    - ``"proxy"``: by entries in a FIFO, which this process takes out, checks, and posts over any provider. It looks for
      them only while the Queue is active.
    - ``"mlx5"``: by RDMA requests in the form of mlx5 NICs, which kernels write to a queue pair of their own. An mlx5
      NIC reads them if the GPU can ring its doorbell. Otherwise this process reads them while the Queue is active, and
      posts them to any RDMA device; ``explain`` says which. **Not verified on hardware**: ``mode="auto"`` does not
      take it.

    After a transfer through the proxy or a NIC has failed, nothing more goes to that peer; kernels get FAILED or
    PEER_LOST from their waits, and `check` raises the reason. A kernel that finds the FIFO full for longer than
    ``timeout`` ends the Queue for all kernels (TIMED_OUT); one that finds the send queue to a peer full, for that peer.

    Attributes:
        context: the Context that it uses.
        pointer: address of its descriptor, an int: the one argument of a kernel. The memory is there as long as the
            Queue, also after `close`: end the kernels before the Queue is dropped.
        modes: of each peer, ``"peer"``, ``"proxy"`` or ``"mlx5"``.
    """

    _copy_refusal = "a Queue stays in its process, and is not copied; make one there, of the same handles"

    def __init__(
        self,
        ctx: Context | None,
        peers: Sequence[RemoteBuffer],
        local: Sequence[Local] = (),
        *,
        mode: Mode = "auto",
        device: str | None = None,
        slots: int = 4096,
        timeout: float | None = None,
    ) -> None:
        """Connect to the owners of the handles as far as that is needed, and wait for it.

        Args:
            ctx: the Context; None: a new one, which is closed with the Queue.
            peers: the handles that kernels reach, which kernels name by their places here; 512 at most.
            local: memory of this side that kernels put from, get to or wait on, likewise; 256 at most. Arrays and
                tensors are registered.
            mode: how peers are reached; ``"auto"``: ``"peer"`` where that is possible, else ``"proxy"``.
            device: the GPU that the kernels run on; None: the one that has memory of ``local``, or the host.
            slots: entries of the FIFO, a power of two. A queue pair of the mode ``"mlx5"`` has 1,024 places, or as
                many as the NIC says.
            timeout: seconds that connecting, a kernel's wait and a transfer may take, more than 0; None: the Context's.
                A kernel waits for an hour at most.

        Raises:
            ValueError: no such ``mode``, ``slots``, ``device`` or ``timeout``; no peers, more than 512, or more than
                256 of ``local``; one with more than 1 TiB; ``local`` has memory of two GPUs.
            TypeError: ``peers`` or ``local`` is no list; ``peers`` has something that is no handle, ``local`` something
                that cannot be registered.
            Unsupported: ``mode="peer"``, and kernels of this GPU do not reach a handle's memory; ``mode="mlx5"``, and
                there can be no queue pair: the way is not RDMA by NICs, the handle does not allow reads, a NIC has no
                atomics, or the peer's version of zerohop makes none.
            RegistrationFailed, DeviceFailed, ProtocolError: ``mode="mlx5"``, and a queue pair could not be made.
            DeadlineExceeded, PeerLost, AccessDenied, Closed: the errors of ``Context.read``.
        """
        super().__init__(ctx, {}, timeout)
        self._closing: Closed | None = None
        if mode not in MODES:
            raise ValueError(f'mode is "auto", "peer", "proxy" or "mlx5", not {shown(mode)}')
        if timeout == 0:
            raise ValueError("timeout is more than 0 seconds")
        self._mode = mode
        self._slots = checked_slots(slots)
        self._handles = [checked_handle(number, each) for number, each in enumerate(checked_list("peers", peers))]
        self._local = [self._view(each) for each in checked_list("local", local)]
        self._device = device_of(self._local, device)
        check_counts(self._handles, self._local)
        core = self._core
        self._index = core.devices.index_of(self._device)
        allowed = core.timeout_ns if timeout is None else self._timeout_ns
        self._timeout_ns = min(allowed or _LONGEST_NS, _LONGEST_NS)
        self._losses: dict[int, ZerohopError] = {}
        self._pairs: dict[int, Pair] = {}
        self._ways: list[Way] = []
        self._given_up = False
        self._scratch = self.context.alloc(16 * max(1, len(self._handles)))
        self._counters = self.context.alloc(counter_bytes(len(self._handles)), self._device)
        self._counters.fill(0)
        try:
            self._defer("device.Queue", self._deadline(timeout), self._find_ways).result(math.inf)
            self.modes = tuple(way.mode for way in self._ways)
            self._open()
        except BaseException:  # the peers would keep their ends of the queue pairs
            self._given_up = True  # first: the control thread may still open some
            self._close_pairs()
            raise
        self._join_context()
        for number, way in enumerate(self._ways):  # a peer may have been lost before
            if (lost := way.routes[0].link.lost) is not None:
                self._lose(number, lost)

    def check(self) -> None:
        """Raise the error of the first peer in the list that has one; return if none has.

        Raises:
            PeerLost: a peer is gone.
            AccessDenied, DeadlineExceeded, DeviceFailed, ...: a transfer was refused or failed.
            Closed: the Queue is closed.
        """
        self._check()
        for number, handle in enumerate(self._handles):
            if number in self._losses:
                raise copy_of(self._losses[number])
            if number in self._pairs:
                self._pairs[number].check(number, handle.owner)
            status, reason = self._proxy.failure(number)
            refused = (status, reason) == (Status.ACCESS_DENIED.value, Reason.NONE.value)
            if refused or (status == Status.OK.value and self._state_of(number) == FAILED):
                raise failures.of_call(number, handle.owner)
            if status != Status.OK.value:
                raise from_native(status, reason, peer=handle.owner, operation="device.Queue")
        error = failures.of_queue(self._words.state, len(self._handles), len(self._local))
        if error is not None:
            raise error

    def _state_of(self, number: int) -> int:
        if number in self._pairs:
            return self._pairs[number].queue.state
        return self._words.state_of(number)

    @contextmanager
    def active(self) -> Iterator[Queue]:
        """Let kernels use the Queue until the end of the ``with`` block.

        Meanwhile this process looks for entries of the FIFO, and for requests of the mode ``"mlx5"`` that no NIC reads,
        without a pause. The end of the block waits until all that kernels have posted so by then has ended. It does not
        wait for requests that a NIC reads: call ``flush`` in the kernel. Wait for the kernels within the block, such as
        by ``torch.cuda.synchronize()``: what comes later waits until the Queue is active the next time.

        GPU memory that zerohop frees within the block is returned to the driver at the end of the block: the driver
        frees memory only when no kernel runs, and starts no copy while it waits for that.

        Raises:
            DeadlineExceeded: at the end, what was posted does not end within the Queue's ``timeout``.
            Closed: the Queue is closed.
        """
        self._check()
        works: list[KernelWork] = [work for pair in self._pairs.values() for work in pair.queue.work()]
        if "proxy" in self.modes:
            works.append(self._proxy)
        with carry_out(works, self._device, self._timeout_ns, self._late):
            yield self

    def _late(self) -> ZerohopError:
        self.check()
        return failures.late()

    def explain(self) -> str:
        """Return a line for each peer: how kernels reach it, and why not in a faster way."""
        lines = [f"kernels on {self._device}"]
        for number, way in enumerate(self._ways):
            pair = self._pairs.get(number)
            lines.append(f"  peer {number}: {way.told}{f'; {pair.queue.reader}' if pair is not None else ''}")
        return "\n".join(lines)

    @property
    def taken(self) -> int:
        """Return the number of entries that this process has taken out of the FIFO."""
        return self._words.taken

    def close(self) -> None:
        """Close the Queue; idempotent. Waits of kernels return CLOSED; what was not posted yet is dropped."""
        self._end_once(self._close)

    def __del__(self) -> None:
        if hasattr(self, "_pairs"):
            self._close_pairs()
        if hasattr(self, "_proxy"):
            self._proxy.close()
            self._drop_context()

    def _close(self) -> None:
        self._closing = Closed("this Queue is closed", fix="make another one")
        self._leave_context()
        self._close_pairs()  # first: the Proxy pins memory that NICs may still write to
        self._proxy.close()
        self._close_context()

    def _check(self) -> None:
        if self._closing is not None:
            raise copy_of(self._closing)
        self._core.check_open()

    async def _find_ways(self) -> None:
        views = [*self._local, self._scratch]
        finder = WayFinder(self._reach, self._mode, self._device, self._index, views, self._counters)
        for number, remote in enumerate(self._handles):
            self._ways.append(await finder.find(number, remote))
            if self._given_up:
                self._close_pairs()
                return

    def _close_pairs(self) -> None:
        if self._core.forked:
            return  # they are the parent's
        for pair in self._pairs.values():
            pair.close()
        for way in self._ways:
            if way.connected is not None:
                way.connected.pair.close()

    def _open(self) -> None:
        """Make the memory that kernels and this process share, and what takes the entries out."""
        ctx, count = self.context, len(self._handles)
        self._words = SharedWords(ctx, count, self._slots)
        locals_ = [(offset_of(view), view.nbytes, 1 if view.readonly else 3) for view in self._local]
        targets = [
            (
                start_of(remote),
                remote.nbytes,
                _RIGHTS[remote.rights],
                [route.id for route in way.routes] if way.mode == "proxy" else [],
                # A completion of a NIC does not say that the bytes can be seen, and two queue pairs keep no order.
                any(route.explanation.provider == VERBS for route in way.routes),
            )
            for remote, way in zip(self._handles, self._ways, strict=True)
        ]
        reached = [*(region_of(view) for view in self._local), *(way.reached for way in self._ways if way.reached)]
        self._kept = [keep_reached(route) for way in self._ways for route in way.routes]
        self._descriptor = ctx.alloc(DESCRIPTOR_BYTES, self._device)
        for number, way in enumerate(self._ways):
            if way.connected is not None:
                scratch = self._scratch.address + 16 * number
                self._pairs[number] = Pair(ctx, self._device, self._timeout_ns / 1e9, way.connected, scratch)
        engine = self._core.engine
        shared = region_of(self._words.memory), region_of(self._scratch)
        near = [self._counters, self._descriptor, *(pair.memory for pair in self._pairs.values())]
        own = [*shared, *(region_of(each) for each in near)]
        try:
            self._proxy = Proxy(
                engine, *shared, self._slots, locals_, targets, reached, own, self._index, self._timeout_ns
            )
        except NativeError as error:
            raise from_native(*error.args, operation="device.Queue") from None
        places = [address for _, address in self._proxy.places]
        of_peers = iter(places[len(self._local) :])
        peer_entries = [
            way.entry(remote, _RIGHTS[remote.rights], next(of_peers) if way.reached else 0, self._pairs.get(number))
            for number, (remote, way) in enumerate(zip(self._handles, self._ways, strict=True))
        ]
        local_entries = [
            LocalEntry(place + offset, size, rights, self._index >= 0 and view.device == HOST)
            for view, place, (offset, size, rights) in zip(self._local, places, locals_, strict=False)
        ]
        self.pointer = self._descriptor.address
        counters = self._counters.address
        told = lay_out(counters, self._words.control, self._slots, self._timeout_ns, peer_entries, local_entries)
        self._descriptor.write_bytes(0, told)

    def _peer_lost(self, link: Link, error: ZerohopError) -> None:
        """Tell the kernels that a peer is gone. On the control thread."""
        for number, remote in enumerate(self._handles):
            if remote.owner == link.peer:
                self._lose(number, error)

    def _lose(self, number: int, error: ZerohopError) -> None:
        """Note the loss of a peer for `check` and for kernels."""
        self._losses.setdefault(number, copy_of(error))
        self._proxy.lose(number)
        if number in self._pairs:
            self._pairs[number].queue.lose()
