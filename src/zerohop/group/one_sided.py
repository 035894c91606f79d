"""Declares OneSided: puts, gets and atomics of the memory of other ranks, which may tell completion objects there."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from zerohop.config.checks import as_int, check_int
from zerohop.core.face import RemoteBuffer
from zerohop.group.active import Active
from zerohop.group.channel import Use
from zerohop.group.deadlines import left_s
from zerohop.group.inbox import signal_of
from zerohop.group.of_rank import of_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Operation
    from zerohop.group.channel import Team
    from zerohop.group.members import Members


class OneSided(Active):
    """Reads and writes memory that other ranks have shared."""

    def put(
        self,
        source: Local,
        rank: int,
        remote: RemoteBuffer,
        *,
        offset: int = 0,
        target: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Write to memory of a rank; value: bytes written.

        Args:
            source: a Memory, a View, or any object that ``Context.register`` takes.
            rank: the owner of the memory.
            remote: what the owner's ``Memory.share`` gave.
            offset: where to write in it, in bytes.
            target: the number of a completion object of the owner, which is told when the bytes are visible there.
            tag: an int of 32 bits, for that object.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as of ``Context.write``.
        """
        self._check()
        view = self._view(source)
        there = range_of(remote, offset, view.nbytes)
        post = functools.partial(self.context.write, view, there)
        return self._transfer("put", rank, remote, post, view, target, tag, timeout)

    def get(
        self,
        into: Local,
        rank: int,
        remote: RemoteBuffer,
        *,
        offset: int = 0,
        target: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read memory of a rank; value: bytes read. Arguments and errors are those of ``put``.

        A completion object of the owner is told when its memory has been read, and may be changed.
        """
        self._check()
        view = self._view(into)
        there = range_of(remote, offset, view.nbytes)
        post = functools.partial(self.context.read, there, view)
        return self._transfer("get", rank, remote, post, view, target, tag, timeout)

    def fetch_add(
        self, remote: RemoteBuffer, value: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Add to 8 bytes of a rank's memory, as ``Context.fetch_add``; value: the number that was there."""
        self._check()
        operation = self.context.fetch_add(remote, value, offset=offset, timeout=self._timeout_of(timeout))
        return of_rank(operation, self._owner_of(remote), "fetch_add")

    def compare_swap(
        self, remote: RemoteBuffer, compare: int, swap: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Change 8 bytes of a rank's memory, as ``Context.compare_swap``; value: the number that was there."""
        self._check()
        operation = self.context.compare_swap(remote, compare, swap, offset=offset, timeout=self._timeout_of(timeout))
        return of_rank(operation, self._owner_of(remote), "compare_swap")

    def _transfer(
        self,
        kind: str,
        rank: int,
        remote: RemoteBuffer,
        post: Callable[..., Operation[int]],
        view: Any,
        target: int | None,
        tag: int,
        timeout: float | None,
    ) -> Operation[int]:
        rank, tag = self._checked(rank, tag)
        self._check()
        connected = self._check_owner(rank, remote)
        if target is None and connected:
            return of_rank(post(timeout=self._timeout_of(timeout)), rank, kind)
        channel = None if target is None else self._target(Use.SIGNALS, target)
        deadline_ns = self._deadline(timeout)

        async def work(operation: Any) -> int:
            connection = await self.connect(rank, timeout=left_s(deadline_ns))
            while not connection.alive:
                # The link was lost meanwhile. A write would dial the address in the handle, not where the rank says.
                connection = await self.connect(rank, timeout=left_s(deadline_ns))
            self._check_owner(rank, remote)

            def begin() -> Operation[int]:
                moving = post(timeout=left_s(deadline_ns))
                operation.made_of([moving])
                return moving

            moved: int = await operation.go_on(begin)
            if channel is None:
                return moved
            if kind == "put":
                await connection.flush(timeout=left_s(deadline_ns))
            await self._send(channel, signal_of(kind, moved), rank, tag, left_s(deadline_ns))
            return moved

        operation = self._defer(kind, deadline_ns, work, nbytes=view.nbytes, keep=view, wants_operation=True)
        self._operations.note(operation)
        return of_rank(operation, rank, kind)

    def _owner_of(self, remote: RemoteBuffer) -> Callable[[], int | None]:
        """Return what finds the rank that owns memory; None if no rank of this group is known to."""
        return functools.partial(_rank_of, self._members, self._team, remote.owner)

    def _check_owner(self, rank: int, remote: RemoteBuffer) -> bool:
        """Raise ValueError if memory is not of a rank; return False if the rank was not reached yet."""
        connection = self._members.known(self._team.ranks[rank])
        if connection is not None and connection.peer != remote.owner:
            raise ValueError(f"this memory is not of rank {rank}: pass the rank whose Memory.share() gave the handle")
        return connection is not None


def range_of(remote: RemoteBuffer, offset: int, nbytes: int) -> RemoteBuffer:
    """Return a part of remote memory; raise TypeError or ValueError if it is none, or too short."""
    if not isinstance(remote, RemoteBuffer):
        raise TypeError(
            f"remote is what Memory.share() gives, a RemoteBuffer, not {type(remote).__name__}. "
            "Fix: RemoteBuffer.from_bytes(x), of the bytes of one"
        )
    offset = check_int("offset", as_int("offset", offset), 0, remote.nbytes)
    if nbytes > remote.nbytes - offset:
        raise ValueError(f"{nbytes} bytes from {offset} on do not fit into remote memory of {remote.nbytes}")
    return remote[offset : offset + nbytes]


def _rank_of(members: Members, team: Team, owner: str) -> int | None:
    there = members.rank_of(owner)
    return None if there is None else team.number_of(there)
