"""Offers LCI's ranks, operations and completion objects, by its names, on `zerohop.Group`.

A buffer is an object that owns memory, such as a tensor, or an address. Memory of an address is registered with the
operation, as ``mr=`` says: ``MR_HOST``, ``MR_DEVICE``, or ``MR_UNKNOWN``, which finds out, and is the default; or it is
a part of a region from ``register_memory``. docs/group.md lists the differences from LCI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from zerohop.config.checks import as_int, check_int
from zerohop.core.memory.memory import Memory, View
from zerohop.core.memory.remote_buffer import RemoteBuffer
from zerohop.group import Completion, CompletionList, Counter, Ended, Group, Handler, Posted, State, Synchronizer

if TYPE_CHECKING:
    from collections.abc import Callable


ANY_SOURCE: Final = -1
ANY_TAG: Final = -1
C = TypeVar("C", bound="Completion")
_TURN_S: Final = 0.001  # for which sync_wait looks at one object alone


class _Hint(NamedTuple):
    """Says in which memory an address lies."""

    device: str


MR_HOST: Final = _Hint("host")
MR_DEVICE: Final = _Hint("device")
MR_UNKNOWN: Final = _Hint("auto")


class MR(NamedTuple):
    """Names a registered region."""

    memory: Memory


Mr: TypeAlias = MR | _Hint


class Status(NamedTuple):
    """Describes an operation, as LCI's ``status_t``.

    Attributes:
        state: what has become of the call; DONE for an operation that has ended.
        rank: the other rank.
        tag: the tag.
        buffer: the memory.
        size: bytes.
        user_context: what the caller has passed.
    """

    state: State
    rank: int = -1
    tag: int = 0
    buffer: Any = None
    size: int = 0
    user_context: Any = None

    def is_done(self) -> bool:
        """Tell whether the operation has ended; its completion object was not told if a call says so."""
        return self.state is State.DONE

    def is_posted(self) -> bool:
        """Tell whether the operation is under way."""
        return self.state is State.POSTED

    def is_retry(self) -> bool:
        """Tell whether the call has to be made again."""
        return self.state is State.RETRY


_runtimes: list[Group] = []


def g_runtime_init(group: Group | None = None) -> None:
    """Use a group for all that follows; None: that of the process's launcher."""
    _runtimes.append(Group.from_env() if group is None else group)


def g_runtime_fina() -> None:
    """Close the group that `g_runtime_init` was given, or has made."""
    group = _group()
    for comp in [each for each in _comps if each.context is group.context]:
        free_comp(comp)
    group.close()
    _runtimes.pop()


def get_rank_me() -> int:
    """Return this process's rank."""
    return _group().rank


def get_rank_n() -> int:
    """Return the number of ranks."""
    return _group().size


def register_memory(buffer: Any, size: int | None = None) -> MR:
    """Register memory, of which the driver tells whether it is a GPU's; ``size`` is needed for an address."""
    context = _group().context
    if isinstance(buffer, int):
        if size is None:
            raise TypeError("the memory at an address needs its size: register_memory(address, size)")
        return MR(context.register((buffer, size, MR_UNKNOWN.device)))
    memory = buffer if isinstance(buffer, Memory) else context.register(buffer)
    if size is not None and size > memory.nbytes:
        raise ValueError(f"the buffer has {memory.nbytes} bytes, not {size}")
    return MR(memory)


def deregister_memory(mr: MR) -> None:
    """Forget a region. Handles to it end."""
    mr.memory.close()


def get_rmr(mr: MR) -> RemoteBuffer:
    """Return the handle by which other ranks put to and get from a region."""
    return mr.memory.share("rw")


def allgather(value: RemoteBuffer | bytes) -> list[Any]:
    """Return what each rank has passed, by rank: handles, or bytes."""
    if isinstance(value, RemoteBuffer):
        return [RemoteBuffer.from_bytes(each) for each in _group().exchange(bytes(value)).result()]
    return _group().exchange(value).result()


def barrier() -> None:
    """Wait until all ranks have called this."""
    _group().barrier().result()


def progress() -> bool:
    """Run the handlers, and give memory to active messages; tell whether a handler ran. Nothing else needs a call."""
    ran = 0
    for comp in _comps.copy():  # a handler may make others
        comp.progress()
        ran += comp.run() if isinstance(comp, Handler) else 0
    return ran != 0


def alloc_sync(threshold: int = 1) -> Synchronizer:
    """Make a completion object that waits for ``threshold`` operations."""
    return _noted(Synchronizer(_group(), threshold))


def alloc_counter() -> Counter:
    """Make a completion object that counts."""
    return _noted(Counter(_group()))


def alloc_cq() -> CompletionList:
    """Make a completion object that keeps the operations that have ended."""
    return _noted(CompletionList(_group()))


def alloc_handler(function: Callable[[Status], object]) -> Handler:
    """Make a completion object that calls a function, in the thread that calls `progress` or `sync_wait`."""
    return _noted(Handler(_group(), lambda ended: function(_status(ended))))


def _noted(comp: C) -> C:
    _comps.append(comp)
    return comp


_comps: list[Completion] = []


def free_comp(comp: Completion) -> None:
    """Give a completion object back."""
    _comps.remove(comp)
    comp.close()


def sync_test(sync: Synchronizer) -> bool:
    """Tell whether the operations have ended."""
    return sync.test()


def sync_wait(sync: Synchronizer) -> list[Status]:
    """Wait for the operations, and return their statuses; raise the error of the first that failed.

    Meanwhile it does `progress`: two ranks may each wait for the other to give memory to an active message.
    """
    while not sync.test(_TURN_S):
        progress()
    return [_status(ended) for ended in sync.wait()]


def counter_get(counter: Counter) -> int:
    """Return how many operations have ended."""
    return counter.value


def cq_pop(cq: CompletionList) -> Status:
    """Take the oldest operation that has ended; a status of RETRY if there is none. Raises an operation's error."""
    ended = cq.poll()
    return Status(State.RETRY) if ended is None else _status(ended)


def register_rcomp(comp: Completion, **packets: Any) -> int:
    """Return the number by which other ranks name a completion object; ``packets``: as of ``Group.register``."""
    return _group().register(comp, **packets)


def deregister_rcomp(rcomp: int) -> None:
    """Let nobody name the object any more."""
    _group().deregister(rcomp)


def post_send(
    rank: int, buffer: Any, size: int, tag: int, comp: Completion | None, *, mr: Mr = MR_UNKNOWN, **more: Any
) -> Status:
    """Post a send; ``more``: ``user_context``, ``allow_done``, ``allow_posted``, ``allow_retry``."""
    view = _view(buffer, size, mr)
    return _result(_group().post_send(view, rank, tag=tag, **_told(comp, buffer, more)), buffer)


def post_recv(
    rank: int, buffer: Any, size: int, tag: int, comp: Completion | None, *, mr: Mr = MR_UNKNOWN, **more: Any
) -> Status:
    """Post a receive, from ``ANY_SOURCE`` or a rank, of ``ANY_TAG`` or a tag."""
    source = None if rank == ANY_SOURCE else rank
    wanted = None if tag == ANY_TAG else tag
    view = _view(buffer, size, mr)
    return _result(_group().post_recv(view, source, tag=wanted, **_told(comp, buffer, more)), buffer)


def post_am(
    rank: int,
    buffer: Any,
    size: int,
    comp: Completion | None,
    remote_comp: int,
    *,
    tag: int = 0,
    mr: Mr = MR_UNKNOWN,
    **more: Any,
) -> Status:
    """Post an active message to a completion object of another rank."""
    view = _view(buffer, size, mr)
    return _result(_group().post_am(view, rank, remote_comp, tag=tag, **_told(comp, buffer, more)), buffer)


def post_put(
    rank: int,
    buffer: Any,
    size: int,
    comp: Completion | None,
    remote_offset: int,
    rmr: RemoteBuffer,
    *,
    tag: int = 0,
    mr: Mr = MR_UNKNOWN,
    remote_comp: int | None = None,
    **more: Any,
) -> Status:
    """Post a put; a completion object of the other rank is told when the bytes are there."""
    view = _view(buffer, size, mr)
    told = _told(comp, buffer, more)
    return _result(
        _group().post_put(view, rank, rmr, offset=remote_offset, target=remote_comp, tag=tag, **told), buffer
    )


def post_get(
    rank: int,
    buffer: Any,
    size: int,
    comp: Completion | None,
    remote_offset: int,
    rmr: RemoteBuffer,
    *,
    tag: int = 0,
    mr: Mr = MR_UNKNOWN,
    remote_comp: int | None = None,
    **more: Any,
) -> Status:
    """Post a get; a completion object of the other rank is told when its memory has been read."""
    view = _view(buffer, size, mr)
    told = _told(comp, buffer, more)
    return _result(
        _group().post_get(view, rank, rmr, offset=remote_offset, target=remote_comp, tag=tag, **told), buffer
    )


def _group() -> Group:
    if not _runtimes:
        raise RuntimeError("there is no runtime yet; call g_runtime_init() first")
    return _runtimes[-1]


def _view(buffer: Any, size: int, mr: Mr) -> Any:
    """Return memory of ``size`` bytes that begins where a buffer does."""
    size = check_int("size", as_int("size", size), 0, 1 << 62)
    if isinstance(mr, MR):
        address = buffer if isinstance(buffer, int) else _group().context.register(buffer).address
        offset = address - mr.memory.address
        if offset < 0 or offset + size > mr.memory.nbytes:
            raise ValueError(
                f"the {size} bytes at {address:#x} are not in the region of {mr.memory.nbytes} bytes at "
                f"{mr.memory.address:#x}"
            )
        return mr.memory[offset : offset + size]
    if isinstance(buffer, int):
        return buffer, size, mr.device
    whole = buffer if isinstance(buffer, (Memory, View)) else _group().context.register(buffer)
    if size > whole.nbytes:
        raise ValueError(f"the buffer has {whole.nbytes} bytes, not {size}")
    return whole[:size]


class _Given(NamedTuple):
    """Holds what a caller has passed, for the status of the operation."""

    buffer: Any
    user_context: Any


def _told(comp: Completion | None, buffer: Any, more: dict[str, Any]) -> dict[str, Any]:
    return {"comp": comp, "context": _Given(buffer, more.pop("user_context", None)), **more}


def _status(ended: Ended) -> Status:
    if ended.error is not None:
        raise ended.error
    given = ended.context if isinstance(ended.context, _Given) else _Given(ended.data, ended.context)
    return Status(State.DONE, ended.rank, ended.tag, given.buffer, ended.nbytes, given.user_context)


def _result(posted: Posted, buffer: Any) -> Status:
    return Status(posted.state, buffer=buffer) if posted.ended is None else _status(posted.ended)
