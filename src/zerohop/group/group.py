"""Declares Group, the ranks of one program."""

from __future__ import annotations

import hashlib
import secrets
import weakref
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import Reason, Status
from zerohop.config.checks import as_int, check_int
from zerohop.core.face import Face, seconds_of
from zerohop.errors import Closed
from zerohop.group.channel import Team
from zerohop.group.collectives.calls import Collectives
from zerohop.group.launchers import launch_of_process
from zerohop.group.posting import Posting
from zerohop.group.stores import Exchanged, allgather_of, counts_of, prefix_of, store_of
from zerohop.shown import shown

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from zerohop.core.face import Context
    from zerohop.group.members import Members
    from zerohop.group.stores import Store

# Seconds in which a launcher's store must answer.
_STORE_S: Final = 60.0
_MOST_RANKS: Final = 1 << 20
_LABEL_BYTES: Final = 16
_SHOWN: Final = 8  # ranks in a text


class Group(Collectives, Posting):
    """Represents this process as one of the ranks of a program. Thread-safe; a context manager, also an async one.

    Each rank makes its Group with the same store, and any rank reaches any other by its number. Nothing waits for ranks
    that are not used: connections are made at their first use, and making a Group takes as long whatever the size.

    Attributes:
        rank: this process's number, from 0.
        size: the number of ranks.
        ranks: their numbers in the program: those of ``Group`` itself are the same, those of a sub-group are others.
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
        prefix = prefix_of(name)
        self.launcher = "store"
        allgather = allgather_of(store, self.rank, self.size)
        found = Exchanged({}) if allgather else store_of(store)
        super().__init__(ctx, settings, timeout)
        try:
            # It needs asyncio, which comes with the first Context.
            from zerohop.group.members import Members
            from zerohop.group.roll import Entry, Roll

            entry = Entry(self.context.url, secrets.randbits(64))
            counts = counts_of(found)
            number = counts.get((name, self.rank), 0)
            roll = Roll(found, f"{prefix}/{number}")
            # Members must not keep this object alive, whose destructor ends it.
            in_thread = weakref.WeakMethod(self._in_thread)
            members = Members(self.context, roll, self.rank, entry.secret, in_thread)
            self._open(members, Team(range(self.size), self.rank))
            # The URLs are exchanged last: an error of one rank before that would leave the others waiting.
            for rank, each in enumerate(allgather(str(entry))) if allgather else ((self.rank, str(entry)),):
                roll.enter(rank, Entry.parse(each))
            counts[name, self.rank] = number + 1
            self._join_context()
        except BaseException:
            if hasattr(self, "_members"):
                self._close_channels()
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

    def subgroup(self, ranks: Sequence[int], *, timeout: float | None = None) -> Group:
        """Make a group of some of the ranks, which exchange nothing for it. Its ranks are numbered from 0, as listed.

        All of these ranks make this call, with the same list; the others do not. Groups of the same ranks are told
        apart by their order in each process. The group uses the connections of this one, and is over when this one's
        Context is closed. Ranks that are lost can be left out of it.

        Args:
            ranks: numbers in this group, each once, and this process's own among them.
            timeout: seconds for each operation unless the call says otherwise; None: this group's.

        Raises:
            ValueError: no such rank; one is there twice; this process's own is not there; ``timeout`` is negative or
                NaN.
            TypeError: no ints.
            Closed: the Group is closed.
        """
        members = tuple(check_int("rank", as_int("rank", rank), 0, self.size - 1) for rank in ranks)
        if len(set(members)) != len(members):
            raise ValueError(f"ranks has a rank twice: {shown(str(list(members)))}")
        if self.rank not in members:
            raise ValueError(f"ranks must have rank {self.rank}, which is this process; others do not make this call")
        self._check()
        return self._subgroup_of(members, f"{members} {next(self._subgroups[members])}", timeout)

    def _subgroup_of(self, members: tuple[int, ...], label: str, timeout: float | None) -> Group:
        """Make a group of ranks of this one. Its ranks have the same label, and no other group of this one has it."""
        name = hashlib.blake2b(label.encode(), key=self._team.name, digest_size=_LABEL_BYTES).digest()
        there = tuple(self._team.ranks[member] for member in members)
        team = Team(there, members.index(self.rank), name)
        return _Subgroup(self, self._members, team, self._timeout_s if timeout is None else timeout)

    def abort(self) -> None:
        """Leave the group at once, as ``close`` does, and wait for nothing: what is not on its way yet is lost.

        Any thread may call it while others wait; their operations end with Closed.
        """
        self._end_once(self._leave)
        self._close_context(0.0)

    def close(self, timeout: float = 5.0) -> None:
        """Leave the group: every later call raises Closed. Closes the Context if this Group has opened it. Idempotent.

        Any thread may call it while others wait; their operations end with Closed.

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
        some = ""
        if not isinstance(self._team.ranks, range):
            some = f", ranks {', '.join(map(str, self.ranks[:_SHOWN]))}{', ...' * (self.size > _SHOWN)} of the program"
        return f"<Group{name}, rank {self.rank} of {self.size}, by {self.launcher}{some}>"

    def _leave(self) -> None:
        error = Closed("this Group is closed", fix="make another one")
        if self._core.forked:
            self._operations.abandon(error)
        else:
            self._close_channels()
            self._operations.end(error, Status.CLOSED, Reason.OWNER_CLOSED)
            self._operations.close()
        self._leave_context()


class _Subgroup(Group):
    """Represents this process as one of some ranks of a program."""

    def __init__(self, parent: Group, members: Members, team: Team, timeout: float | None) -> None:
        """Open the mailboxes of this rank; ``parent`` stays alive, because its thread calls the store."""
        Face.__init__(self, parent.context, {}, timeout)
        self._parent = parent
        self.rank, self.size = team.rank, len(team.ranks)
        self.name, self.launcher = parent.name, parent.launcher
        self._open(members, team)
        self._join_context()
