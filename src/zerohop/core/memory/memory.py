"""Declares Memory and View, the registered ranges of this process's memory."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from zerohop._native import set_layout
from zerohop.config.checks import as_int, check_flag
from zerohop.core.base.deadlines import seconds_of
from zerohop.core.base.resource import Closeable
from zerohop.core.memory.contents import Contents
from zerohop.core.memory.layouts import BYTES, ROWS
from zerohop.core.memory.registration import Registration
from zerohop.core.memory.remote_buffer import RemoteBuffer, byte_range
from zerohop.core.memory.rights import RIGHTS, rights_bits
from zerohop.errors import CLOSED, MOVED, Closed, from_native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zerohop._native import BlockWatch
    from zerohop.core.memory.local_share import LocalShare
    from zerohop.core.memory.memory_core import MemoryCore
    from zerohop.core.memory.registration import RetainedBuffer
    from zerohop.core.memory.rights import Rights

_NAMES: Final[dict[int, Rights | Literal[""]]] = {0: "", 1: "r", 2: "w", 3: "rw"}
_NONE: Final[Mapping[tuple[Rights, bool], RemoteBuffer]] = MappingProxyType({})


class _Range(Contents):
    """Holds a range of bytes at which transfers begin or end: the common part of Memory and View."""

    __slots__ = ()

    def _home(self) -> Memory:
        raise NotImplementedError

    def _kept(self) -> object:
        return self._core.retention.kept_for(self._home())

    @property
    def rights(self) -> Rights | Literal[""]:
        """Return the rights that a handle may give at most.

        They are empty for a read-only View of memory that peers may only write to.
        """
        return _NAMES[self._bits]

    @property
    def local_key(self) -> int:
        """Return the number of the registration in this process; Memories that share a registration have the same."""
        return self._registration.number

    def remote_key(self) -> bytes:
        """Return the ``bytes`` of a handle of this range with all rights that it may have; the same at each call.

        The handle belongs to the Memory, and works until the Memory is closed or revokes it.

        Raises:
            ValueError: the range is a read-only View of memory that peers may only write to.
            Closed: the Memory or its Context is closed.
        """
        memory, rights = self._home(), self.rights
        memory._check_open()
        if not rights:
            raise ValueError("a read-only View of memory that peers may only write to: there is no handle of it")
        start = self._offset - memory._offset
        return bytes(self._core.shares.whole_of(memory, rights)[start : start + self.nbytes])

    def contains(self, address: int, nbytes: int = 0) -> bool:
        """Tell whether a range of addresses lies within this one; an empty range may lie at its end."""
        start, nbytes = as_int("address", address) - self.address, as_int("nbytes", nbytes)
        return 0 <= start <= self.nbytes and 0 <= nbytes <= self.nbytes - start

    def view(self, offset: int = 0, nbytes: int | None = None, *, readonly: bool = False) -> View:
        """Return a View by offset and length. Unlike a slice it is never cut short.

        Args:
            offset: offset of its first byte; an empty View may begin at the end.
            nbytes: length in bytes; None: up to the end.
            readonly: make transfers refuse to write to it.

        Raises:
            TypeError: ``offset`` or ``nbytes`` is no integer.
            ValueError: the View would not lie within this range.
        """
        offset, nbytes = self._within(offset, nbytes)
        return View(self._home(), self._offset + offset, nbytes, self.readonly or readonly)

    def view_at(self, address: int, nbytes: int | None = None, *, readonly: bool = False) -> View:
        """Return a View by the address of its first byte and its length; otherwise like ``view``."""
        return self.view(as_int("address", address) - self.address, nbytes, readonly=readonly)

    @property
    def _bits(self) -> int:
        """Return ``rights`` as bits."""
        return self._home()._rights

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, key: slice) -> View:
        start, stop = byte_range(key, self.nbytes)
        return View(self._home(), self._offset + start, stop - start, self.readonly)

    def share(self, rights: Rights = "r", *, revocable: bool = True) -> RemoteBuffer:
        """Return a handle with which other Contexts reach this range.

        The handle works until it is revoked, or the Memory or its Context is closed. Until then the Context keeps the
        Memory alive, whether or not you do. A write right does not imply a read right.

        Args:
            rights: ``"r"``, ``"w"`` or ``"rw"``; no more than the Memory has.
            revocable: whether ``revoke`` may take it back while the Memory lives.

        Raises:
            TypeError: ``revocable`` is not True or False.
            ValueError: the memory does not have these rights.
            Closed: the Memory or its Context is closed.
        """
        memory = self._home()
        bits = rights_bits(rights)
        if revocable is not True:
            check_flag("revocable", revocable)
        if bits & ~self._bits:
            raise self._beyond(rights)
        memory._check_open()
        try:
            return self._core.shares.add(memory, self._offset, self.nbytes, bits, revocable=revocable)
        except TypeError:  # the Context was closed meanwhile, and its region replaced
            memory._check_open()
            raise

    def _share_loosely(self, rights: Rights) -> RemoteBuffer:
        """Return a handle that ends with the Memory, and does not keep it alive."""
        memory, bits = self._home(), rights_bits(rights)
        if bits & ~self._bits:
            raise self._beyond(rights)
        memory._check_open()
        return self._core.shares.add(memory, self._offset, self.nbytes, bits, revocable=True, loose=True)

    def _beyond(self, rights: Rights) -> ValueError:
        most = f'with "{self.rights}" at most' if self.rights else "with nobody: it is a read-only View"
        return ValueError(f'this memory can be shared {most}, not with "{rights}"')

    def __repr__(self) -> str:
        closed = self._home()._closed or self._core.closed
        state = ", closed" if closed else ""
        return f"{type(self).__name__}({self.nbytes} bytes of {self.device}{state})"


class View(_Range):
    """Names a part of a Memory, made by slicing: ``memory[a:b]``, in bytes. Keeps the Memory alive.

    Attributes:
        memory: the Memory that it is part of.
        nbytes: length in bytes.
    """

    __slots__ = ("_readonly", "memory")

    _copy_refusal = "a View stays in its process, and is not copied; slice it anew, or send view.share()"

    def __init__(self, memory: Memory, offset: int, nbytes: int, readonly: bool) -> None:
        self.memory = memory
        self._readonly = readonly
        self._core = memory._core
        self._registration = memory._registration
        self._routes = memory._routes
        self._block = memory._block
        self._layout = memory._layout
        self._elements = None
        self._offset = offset
        self.nbytes = nbytes

    @property
    def readonly(self) -> bool:
        """Tell whether the memory is read-only, or the View was made so."""
        return self._readonly

    def _home(self) -> Memory:
        return self.memory

    def _check_open(self) -> None:
        self.memory._check_open()

    @property
    def _bits(self) -> int:
        return self.memory._rights & (RIGHTS["r"] if self._readonly else RIGHTS["rw"])


class Memory(Closeable, _Range):
    """Holds a registered range, made by ``Context.register`` or ``Context.alloc``.

    Keeps the tensor or buffer that it was made of alive until it is closed, which revokes its handles; or until it is
    dropped while it has no handles. Transfers in flight still end safely then: the library keeps the source alive until
    nothing can touch it any more. A Memory is a context manager that closes itself.

    Attributes:
        nbytes: length in bytes.
    """

    __slots__ = ("__weakref__", "_closed", "_closer", "_left", "_owned", "_readonly", "_rights", "_shares", "_whole")

    _copy_refusal = "a Memory stays in its process, and is not copied; send memory.share() instead"

    def __init__(
        self,
        core: MemoryCore,
        registration: Registration,
        offset: int,
        nbytes: int,
        rights: int,
        keep: object,
        layout: bytes = BYTES,
        block: BlockWatch | None = None,
        *,
        owned: bool = False,
        readonly: bool = False,
    ) -> None:
        # Tensors are registered by the ten thousand, so this makes no call that it does not need.
        self._core = core
        self._registration = registration
        # Other Memories of the registration have routes of their own, because close() empties these.
        self._routes = {}
        self._offset = offset
        self.nbytes = nbytes
        self._rights = rights
        self._layout = layout
        self._block = block
        self._owned = owned
        self._elements = None
        # The array may be read-only where the registration of its memory is not.
        self._readonly = readonly or registration.readonly
        # By the key of the handle; changed only under the lock of Shares. It is an empty tuple until the first share,
        # which saves an object.
        self._shares: dict[bytes, LocalShare] | tuple[()] = ()
        # The handles of all of the Memory that are made once (Shares.whole_of).
        self._whole: Mapping[tuple[Rights, bool], RemoteBuffer] = _NONE
        # The thread that closes the Memory, and what it has still to release: a signal may interrupt it anywhere.
        self._closer: int | None = None
        self._left: RetainedBuffer | None = None
        self._closed = False  # after all else that the destructor reads, which looks at this first
        core.retention.keep(self, registration, keep)  # last, because the destructor gives back what it keeps

    @property
    def reused_registration(self) -> bool:
        """Tell whether the memory was registered already, so that this Memory has cost nothing."""
        made_for = self._registration.made_for
        return made_for is not None and made_for() is not self

    @property
    def readonly(self) -> bool:
        """Tell whether transfers refuse to write to the range: its memory, or the array that shows it, is read-only."""
        return self._readonly

    def _home(self) -> Memory:
        return self

    def revoke(self, handle: RemoteBuffer | None = None, timeout: float | None = None) -> None:
        """Revoke one handle, or all; block until no peer can reach the memory through it any more.

        This side enforces it over tcp and the shm ring: from now on such operations end with AccessDenied at the peer,
        and those under way end or are cut short before this returns. It also enforces it over NICs: peers that have a
        key are asked to stop, and after half a second, or half of ``timeout``, the key is invalid. Peers on this host
        that have mapped the memory are asked to let go of it, and unmap it with the last handle; a lost peer has done
        so when its process has ended.

        Args:
            handle: the handle to revoke, or any slice of it; None: all handles of this Memory.
            timeout: seconds; None: the Context's.

        Raises:
            RevocationIncomplete: ``peers`` have not unmapped the memory in time. They may still write; the memory stays
                allocated until they unmap it or exit.
            TypeError: ``handle`` is no RemoteBuffer.
            ValueError: the handle is not of this Memory, or was shared with ``revocable=False``.
            Closed: the Memory is closed.
        """
        self._check_open()
        if handle is not None and not isinstance(handle, RemoteBuffer):
            raise TypeError(f"what is revoked is a RemoteBuffer that share() gave, not {type(handle).__name__}")
        if handle is None:
            chosen = self._core.shares.revocable(self)
        else:
            share = self._shares.get(handle._key) if self._shares else None
            if share is None:
                raise ValueError("the handle is not of this Memory, or has been revoked before")
            if not share.revocable:
                raise ValueError("the handle was shared with revocable=False")
            chosen = [share]
        self._core.shares.forget_whole(self, chosen)
        self._core.shares.revoke(chosen, self._core.deadline(timeout))
        self._core.shares.belong_no_more(chosen, self)

    def _revoke_at_once(self, handle: RemoteBuffer) -> None:
        share = self._shares.get(handle._key) if self._shares else None
        if share is not None:
            self._core.shares.withdraw([share], 0)
            self._core.shares.belong_no_more([share], self)

    def close(self, timeout: float = 1.0) -> None:
        """Revoke all handles and release the registration; idempotent. Views of the Memory raise Closed from now on.

        The user may free a raw pointer to host memory afterwards, so this waits for GPUs that have copied the memory:
        see docs/gpus.md on streams that wait.

        Args:
            timeout: seconds to wait at most for peers on this host to unmap the memory. Memory that a peer has not
                unmapped by then stays allocated until it has.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number; the Memory stays open.
        """
        if not self._closed or self._closer == threading.get_ident():
            self._close(seconds_of(timeout), by_user=True)

    def _close(self, unmap_s: float, *, by_user: bool = False, last: bool = False) -> None:
        core = self._core
        if core.forked:
            self._closed = True
            # The memory belongs to the parent. A lock may be held for ever by a thread that exists only in the parent.
            core.retention.forget(self)
            return
        # Each step can be taken again, so that a close() that was interrupted goes on where it is called next.
        buffer = core.shares.of_closing(self, last=last)
        self._routes.clear()
        if buffer is None:
            # Another thread closes the Memory, or the Context was closed.
            return
        if buffer.shares:
            # A Context that is being closed waits for the peers itself.
            core.shares.withdraw(buffer.shares, 0 if core.closed else unmap_s)
        # The shares keep the buffer alive, too.
        buffer.shares = ()
        core.retention.release_detached(buffer, owned=self._owned, closed=by_user)
        self._closer = self._left = None

    def _check_open(self) -> None:
        self._core.check_open()
        if self._closed:
            raise Closed("this Memory was closed", fix="register the memory again")
        if self._block is not None and self._block.moved:
            self._close(0)
            raise from_native(CLOSED, MOVED)

    def __del__(self) -> None:
        # If __init__ failed, there is nothing to close. Unlike close() this waits for nobody.
        if not getattr(self, "_closed", True) or getattr(self, "_closer", None) is not None:
            if self._shares and self._registration.region.pins and not self._core.closed:
                # Its shares are loose, and a peer may still use one for a transfer that this side has asked it for.
                self._core.retention.end_later(self)
                return
            try:
                # Most are Memories of single transfers, which have no shares.
                alone = self._closer is None and not (self._shares or self._owned)
                if not (alone and self._core.retention.drop(self, self._registration)):
                    self._close(0, last=True)
            except BaseException:  # of a signal's handler: nobody can close it again
                self._close(0, last=True)
                raise


set_layout(_Range, RemoteBuffer, Memory, View, Registration, ROWS)
