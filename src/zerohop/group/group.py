"""Declares Group, the ranks of one program."""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from zerohop._native import Reason, Status
from zerohop.config.checks import as_int, check_int
from zerohop.core.face import Face, Mailbox, OperationGroup, seconds_of, send_to_mailbox
from zerohop.errors import Closed
from zerohop.group.launchers import launch_of_process
from zerohop.group.messages import MOST_TAG, GroupReceive
from zerohop.group.stores import Exchanged, Store, folder_store
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Connection, Context, Link, Local, Operation
    from zerohop.errors import ZerohopError
    from zerohop.group.messages import Message

# Seconds in which a launcher's store must answer.
_STORE_S: Final = 60.0
_MOST_RANKS: Final = 1 << 20
# The search for a rank, and what follows, keep a deadline by themselves, with errors that name the rank. An operation
# ends without them only if a busy machine holds them up for longer than this.
_GRACE_NS: Final = 2 * 10**9
# Keys are names of files and names within PMIx, whose length is limited.
_LONGEST_NAME: Final = 128
# How many Groups of each name and rank this process has made over a store: their keys have that number.
_made: Final[weakref.WeakKeyDictionary[Any, dict[tuple[str, int], int]]] = weakref.WeakKeyDictionary()


class Group(Face):
    """Represents this process as one of the ranks of a program. Thread-safe; a context manager, also an async one.

    Each rank makes its Group with the same store, and any rank reaches any other by its number. Nothing waits for ranks
    that are not used: connections are made at their first use, and making a Group takes as long whatever the size.

    Attributes:
        rank: this process's number, from 0.
        size: the number of ranks.
        name: the name of the group.
        launcher: what has started the ranks: ``"torchrun"``, ``"zerohop run"``; ``"pmix"`` or ``"mpi4py"`` for mpirun
            and srun; ``"store"`` if the caller has passed a store, ``"none"`` for a process that was started by itself.
        context: the Context that it uses.
    """

    _copy_refusal = "a Group stays in its process, and is not copied; make one in each process"

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store | str | os.PathLike[str] | Any,
        *,
        name: str = "",
        ctx: Context | None = None,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        """Take this process's place in a group.

        Args:
            rank: this process's number, from 0 to ``size - 1``; each is taken once.
            size: the number of ranks, the same in all.
            store: where the ranks find each other: any object with ``set``, ``get`` and ``wait`` as torch's TCPStore
                and FileStore have them; a folder that all ranks reach, empty at first; or a communicator of mpi4py, all
                of whose ranks make this call.
            name: tells groups apart that use one store. Groups of one name over one store are told apart by their order
                in each process.
            ctx: the Context, which stays open. None: a new one, which is closed with the Group.
            timeout: seconds for each operation unless the call says otherwise, ``math.inf`` for none; None: the
                Context's. The constructor itself takes as long as the store does.
            settings: arguments of Context, for a new one, such as ``listen`` and ``secret`` for ranks on several hosts.

        Raises:
            ValueError: ``rank`` or ``size`` is out of range or not that of the communicator; the folder has this rank
                already; ``name`` is too long; settings beside a Context.
            TypeError: not a store, or not a Context.
            OSError: the folder cannot be made.
            PeerLost: the store refuses.
            Closed: the Context is closed.
            Unsupported, RegistrationFailed: the errors of Context.
        """
        self.size = check_int("size", as_int("size", size), 1, _MOST_RANKS)
        self.rank = check_int("rank", as_int("rank", rank), 0, self.size - 1)
        self.name = name
        prefix = _prefix(name)
        self.launcher = "store"
        allgather = _allgather_of(store, self.rank, self.size)
        found = Exchanged({}) if allgather else _store_of(store)
        super().__init__(ctx, settings, timeout)
        try:
            # It needs asyncio, which comes with the first Context.
            from zerohop.group.members import Members
            from zerohop.group.roll import Entry, Roll

            self._mailbox = Mailbox(self._core)
            entry = Entry(self.context.url, self._mailbox.number)
            self._operations = OperationGroup(self._core)
            counts = _counts_of(found)
            number = counts.get((name, self.rank), 0)
            roll = Roll(found, f"{prefix}/{number}")
            # Members must not keep this object alive, whose destructor ends it.
            in_thread = weakref.WeakMethod(self._in_thread)
            self._members = Members(self.context, roll, self._mailbox, self.rank, in_thread)
            # The URLs are exchanged last: an error of one rank before that would leave the others waiting.
            for rank, each in enumerate(allgather(str(entry))) if allgather else ((self.rank, str(entry)),):
                roll.enter(rank, Entry.parse(each))
            counts[name, self.rank] = number + 1
            self._join_context()
        except BaseException:
            if hasattr(self, "_mailbox"):
                self._mailbox.close()
            self._close_context()
            raise

    @classmethod
    def from_env(
        cls, *, name: str = "", ctx: Context | None = None, timeout: float | None = None, **settings: Any
    ) -> Group:
        """Take the place that the launcher of this process has given it.

        Known are torchrun, whose store is used through torch; ``zerohop run``; and mpirun and srun, through their PMIx
        or mpi4py. A process that none of them has started is a group of one.

        Args:
            name: as in the constructor.
            ctx: as in the constructor.
            timeout: as in the constructor. A launcher's store has to answer within 60 seconds.
            settings: as in the constructor.

        Raises:
            Unsupported: there are other ranks, and no way to find them; the error says what to install or to type.
            PeerLost: the launcher's store does not answer.
            ValueError: a variable of the launcher's has no number, or one out of range.
            TypeError, Closed, ...: as in the constructor.
        """
        launch = launch_of_process(_STORE_S)
        group = cls(launch.rank, launch.size, launch.store, name=name, ctx=ctx, timeout=timeout, **settings)
        group.launcher = launch.launcher
        return group

    def connect(self, rank: int, *, timeout: float | None = None) -> Operation[Connection]:
        """Connect to the Context of a rank; value: the Connection, of which there is one per rank.

        It waits until that rank has made its Group. Errors of the Operation name the rank.

        Args:
            rank: the number of the rank, which may be this one's.
            timeout: seconds; None: the Group's.

        Raises:
            ValueError: no such rank.
            Closed: the Group is closed. From the Operation: DeadlineExceeded (the rank has not arrived, or does not
                answer), PeerLost (it is gone, or the store is); other errors are those of ``Context.connect``.
        """
        rank = check_int("rank", as_int("rank", rank), 0, self.size - 1)
        self._check()
        deadline_ns = self._deadline(timeout)
        known = self._members.known(rank)
        if known is not None:
            return self._finished("connect", known)

        work = functools.partial(self._members.reach, rank, deadline_ns)
        operation = self._defer("connect", _with_grace(deadline_ns), work)
        self._operations.note(operation)
        return operation

    def send(self, source: Local, rank: int, *, tag: int = 0, timeout: float | None = None) -> Operation[int]:
        """Send a message to a rank, which ``recv`` there takes; value: bytes sent.

        Done means that the source may be reused. A message of host memory of up to 8 KiB is then on its way, or waits
        at the receiver; a longer one, and one of GPU memory, has been received. Of two messages of one rank to another
        that a receive could take, it takes the earlier one. The first message connects. 256 messages between two
        Contexts may wait to be received; then a call waits for room, or on an event loop its Operation does.

        Args:
            source: a Memory, a View, or any object that ``Context.register`` takes, of the host or a GPU, of 0 bytes or
                more. A registered Memory is used as it is.
            rank: the number of the receiver, which may be this rank.
            tag: an int of 32 bits that the receiver can select by.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: PeerLost, also if the receiver closes its Group
            before it receives the message; DeadlineExceeded: it has not arrived, or not received; ProtocolError: the
            message is longer than the memory of the receive; others as of ``Connection.send``.
        """
        rank = check_int("rank", as_int("rank", rank), 0, self.size - 1)
        tag = check_int("tag", as_int("tag", tag), 0, MOST_TAG)
        self._check()
        view = self._view(source)
        members = self._members
        connection = members.ready(rank)
        if connection is not None:
            return send_to_mailbox(connection, view, members.envelope(rank, tag), self._timeout_of(timeout))
        deadline_ns = self._deadline(timeout)
        end = members.queue(rank)
        work = functools.partial(members.send_queued, view, rank, tag, deadline_ns, end)
        try:
            operation = self._defer("send", _with_grace(deadline_ns), work, nbytes=view.nbytes, keep=view, at_end=end)
        except BaseException:
            end()
            raise
        self._operations.note(operation)
        return operation

    def recv(
        self, into: Local, source: int | None = None, *, tag: int | None = None, timeout: float | None = None
    ) -> Operation[Message]:
        """Receive a message of this Group; value: a Message, which says its source, tag and length.

        A message goes to the oldest receive that admits it, and a receive takes the oldest message that it admits. What
        has arrived stays when its sender is gone. Waiting takes no time of a processor.

        Args:
            into: a Memory, a View, or any object that ``Context.register`` takes, of the host or a GPU, with room for
                the message.
            source: the rank that it is from; None: any.
            tag: its tag; None: any.
            timeout: seconds; None: none, it waits until a message comes or the rank is gone.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: PeerLost, whose text names the rank: its process
            has ended or its Context is closed, and there is no message of it, or it has given up a message that was
            being received; a receive from any rank ends so once for each rank that is lost. DeadlineExceeded;
            ProtocolError: the message is longer than ``into``; Closed: the Group is closed.
        """
        if source is not None:
            source = check_int("source", as_int("source", source), 0, self.size - 1)
        if tag is not None:
            tag = check_int("tag", as_int("tag", tag), 0, MOST_TAG)
        self._check()
        deadline_ns = 0 if timeout is None else self._deadline(timeout)
        operation = self._mailbox.receive(GroupReceive(source, self._members.losses), into, source, tag, deadline_ns)
        if source is not None and self._members.wants_watch(source):
            self._operations.note(self._defer("connect", 0, functools.partial(self._members.watch, source)))
        return operation

    def _peer_lost(self, link: Link, error: ZerohopError) -> None:
        """End what waits for a rank that is lost. On the control thread."""
        self._members.peer_lost(link, error)

    def close(self, timeout: float = 5.0) -> None:
        """Leave the group: every later call raises Closed. Closes the Context if this Group has opened it. Idempotent.

        Args:
            timeout: seconds to wait at most.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number; the Group stays open.
        """
        seconds = seconds_of(timeout)
        self._end_once(self._leave)
        self._close_context(seconds)

    def __del__(self) -> None:
        # If __init__ failed, there is nothing to end.
        if hasattr(self, "_members") and not self._core.forked:
            self._end_once(self._leave)
            self._drop_context()

    def __repr__(self) -> str:
        name = f" {shown(self.name)}" if self.name else ""
        return f"<Group{name}, rank {self.rank} of {self.size}, by {self.launcher}>"

    def _leave(self) -> None:
        error = Closed("this Group is closed", fix="make another one")
        if self._core.forked:
            self._operations.abandon(error)
        else:
            self._mailbox.close()
            self._operations.end(error, Status.CLOSED, Reason.OWNER_CLOSED)
            self._operations.close()
        self._leave_context()

    def _check(self) -> None:
        self._core.check_process()
        self._operations.check()
        self._core.check_open()


def _with_grace(deadline_ns: int) -> int:
    """Return a later deadline; 0 stands for none."""
    return deadline_ns + _GRACE_NS if deadline_ns else 0


def _allgather_of(store: Any, rank: int, size: int) -> Callable[[str], list[str]] | None:
    """Return how a communicator of mpi4py exchanges values; None if the store is another one.

    Raises:
        ValueError: the rank or the size of the communicator is another.
    """
    if isinstance(store, Store) or not (hasattr(store, "allgather") and hasattr(store, "Get_rank")):
        return None
    there = store.Get_rank(), store.Get_size()
    if there != (rank, size):
        raise ValueError(f"this is rank {rank} of {size}, and the communicator says rank {there[0]} of {there[1]}")
    exchange: Callable[[str], list[str]] = store.allgather
    return exchange


def _store_of(store: Any) -> Store:
    """Return the store that an argument names: itself, or the folder at a path."""
    if isinstance(store, (str, os.PathLike)):
        return folder_store(store)
    if isinstance(store, Store):
        return store
    raise TypeError(
        "store is an object with set, get and wait, such as torch's TCPStore; a folder; or a communicator of mpi4py; "
        f"not {type(store).__name__}"
    )


def _counts_of(store: Store) -> dict[tuple[str, int], int]:
    """Return how many Groups of each name and rank this process has made over a store."""
    try:
        return _made.setdefault(store, {})
    except TypeError as error:
        raise TypeError(f"a store must be hashable and allow weak references: {error}") from None


def _prefix(name: str) -> str:
    """Return what the keys of the groups of a name begin with; raise TypeError or ValueError if it is no name."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        raise ValueError(f"name has characters that cannot be encoded: {shown(name)}") from None
    if len(quoted) > _LONGEST_NAME:
        raise ValueError(
            f"name must have {_LONGEST_NAME} characters at most, with %XX for special ones, not {len(quoted)}"
        )
    return f"zerohop/{quoted}"
