"""Declares Communicator, which has NCCL carry out collectives of a group in their order, with deadlines.

Each collective has three steps. First all ranks agree, by a barrier whose messages say what they call: NCCL itself
would wait for ever for a rank that is missing or calls something else. Then NCCL works, on a thread of its own. At last
a second barrier tells all ranks that the others have their results; it also tells a rank whose NCCL still waits that
another rank has failed or is lost.
"""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from zerohop.errors import Closed, DeadlineExceeded, ProtocolError, Unsupported, ZerohopError
from zerohop.group.collectives import pairs
from zerohop.group.collectives.exchanging import exchange
from zerohop.group.collectives.failed import StepsFailed
from zerohop.group.collectives.nccl_library import NcclLibrary, failed
from zerohop.group.collectives.steps import First, until
from zerohop.group.collectives.tags import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zerohop.core.face import Operation
    from zerohop.group.collectives.call import Call, Transfer
    from zerohop.group.collectives.nccl_library import Issue
    from zerohop.group.collectives.nccl_store import LockstepStore

    # Calls a function on a thread of its own, until a deadline on the monotonic clock; 0: none.
    Start = Callable[[Callable[[], Any], int], Operation[Any]]

LIBRARY = NcclLibrary()
# NCCL itself ends later than the messages, whose errors name a rank.
_GRACE_NS: Final = 50_000_000
# Seconds in which an abort has ended all work, as a rule.
_ABORT_S: Final = 2.0
_NOT_ENDED: Final = "has not ended its part of NCCL's collective"
_MORE_TIME: Final = "allow more time with timeout=; with NCCL_DEBUG=INFO in the environment NCCL says more"
_ANOTHER: Final = "make a subgroup for the tensors of another GPU: each group has one communicator of NCCL"


class _Busy:
    """Calls a function, and tells whether it still runs, and with it NCCL."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.memory_in_use = False

    def __call__(self) -> Any:
        self.memory_in_use = True
        try:
            return self._function()
        finally:
            self.memory_in_use = False


class Communicator:
    """Has NCCL work for the ranks of one group, on one GPU of each. It is made by the first collective.

    Attributes:
        device: the GPU of this rank; None before the first collective.
    """

    def __init__(self, start: Start, library: Any = None) -> None:
        """Prepare; ``start`` calls functions that block."""
        self.device: Any = None
        self._start = start
        self._library = LIBRARY if library is None else library
        self._lock = threading.Lock()
        self._group: Any = None
        self._store: LockstepStore | None = None
        self._stopped = threading.Event()
        self._aborted = threading.Event()

    def check(self, name: str, x: Any) -> None:
        """Raise an error unless NCCL takes this tensor in this group.

        Raises:
            TypeError, ValueError, Unsupported: it does not; the text says why.
        """
        self._library.check(name, x)
        if self.device is not None and x.device != self.device:
            raise ValueError(f"{name} is on {x.device}, and this group's NCCL is on {self.device}. Fix: {_ANOTHER}")

    async def run(self, call: Call, device: Any, issue: Issue | None) -> None:
        """Carry out a collective on a GPU; ``issue`` hands it to NCCL, None: there are no bytes."""
        try:
            await pairs.barrier(call)
            if self.device is None:
                await self._connect(call, device)
            self._check_device(device)
            if issue is not None:
                await self._carry_out(call, issue)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End all work of NCCL for this group. Waits for nothing; any thread may call it again."""
        with self._lock:
            self._stopped.set()
            group, self._group = self._group, None
            store = self._store
        if store is not None:
            store.fail()
        if group is not None:
            self._give_back(group)

    def _check_device(self, device: Any) -> None:
        """Raise ZerohopError if an earlier collective, which had not begun at the call, has chosen another GPU."""
        if device != self.device:
            raise ZerohopError(f"this group's NCCL is on {self.device}, and not on {device}", fix=_ANOTHER)

    async def _connect(self, call: Call, device: Any) -> None:
        """Make the communicator, with all ranks."""
        from zerohop.group.collectives.nccl_store import LockstepStore

        self.device = device
        identities = await exchange(call, self._library.identity(device).encode())
        for first, second in combinations(range(call.size), 2):
            if identities[first] == identities[second]:
                text = f"ranks {first} and {second} are on one GPU, which NCCL refuses"
                fix = "give each rank a GPU of its own, or leave backend out"
                raise StepsFailed(Unsupported(text, fix=fix, ranks=(first, second)), Failure.OTHER, call.rank)
        store = LockstepStore()
        with self._lock:
            self._store = store
        if self._stopped.is_set():  # the group is closed
            store.fail()
        opening: Operation[Any] | None = self._begin(call, functools.partial(self._open, store, call.rank, call.size))
        while True:
            await self._wait(call, self._begin(call, store.until_round))
            new, ended = store.take_new()
            if ended and opening is not None:
                await self._wait(call, opening)
                opening = None
            found = [_unpacked(rank, each) for rank, each in enumerate(await exchange(call, _packed(new, ended=ended)))]
            if all(each for _, each in found):
                return
            if not any(values for values, _ in found):
                raise ZerohopError("NCCL waits for what no rank has said, while it connects the ranks")
            for values, _ in found:
                store.deliver(values)

    def _open(self, store: LockstepStore, rank: int, size: int) -> None:
        """Make the communicator of this rank, on a thread."""
        try:
            group = self._library.open(store, rank, size, self.device)
        except RuntimeError as error:
            raise failed(error) from None
        finally:
            store.end()
        with self._lock:
            if not self._stopped.is_set():
                self._group = group
                return
        self._library.abort(group)
        self._check_running()

    def _check_running(self) -> None:
        """Raise Closed if the communicator was aborted: what NCCL has done then is undefined."""
        if self._stopped.is_set():
            raise Closed("the communicator of NCCL was aborted")

    async def _carry_out(self, call: Call, issue: Issue) -> None:
        size, rank = call.size, call.rank
        distances = [1 << bit for bit in range((size - 1).bit_length())]
        call.partners.update((rank + distance) % size for distance in distances)
        # In place before NCCL begins, so that a rank that fails, or is lost, is heard of at once.
        ends = [call.signal_of((rank - distance) % size)._replace(if_late=_NOT_ENDED) for distance in distances]
        working = self._begin(call, functools.partial(self._work, self._group, issue))
        pending = await self._wait(call, working, ends)
        self._check_running()
        for distance, end in zip(distances, ends, strict=True):
            told = call.signal((rank + distance) % size)
            await call.wait(*([end] if end in pending else []), told)

    def _work(self, group: Any, issue: Issue) -> None:
        """Have NCCL work, on a thread. Return once it touches the memory no more, also if it is aborted."""
        try:
            self._library.carry_out(group, issue, self.device, self._stopped)
        finally:
            if self._stopped.is_set():
                self._aborted.wait(_ABORT_S)

    def _begin(self, call: Call, function: Callable[[], Any]) -> Operation[Any]:
        """Call a function on a thread. The memory of the collective is in use until it returns."""
        left_s = call.left_s
        deadline_ns = 0 if left_s == math.inf else time.monotonic_ns() + int(left_s * 1e9) + _GRACE_NS
        busy = _Busy(function)
        operation = self._start(busy, deadline_ns)
        made_of: Any = getattr(operation, "made_of", None)
        if made_of is not None:  # or the Context was closed meanwhile
            made_of([busy])
        call.in_flight.append(operation)
        return operation

    async def _wait(self, call: Call, operation: Operation[Any], ends: list[Transfer] | None = None) -> list[Transfer]:
        """Wait for what runs on a thread; return those of ``ends`` that have not come meanwhile.

        Raises:
            StepsFailed: one of ``ends`` says that a rank has failed; or the time is up.
        """
        pending = list(ends or [])
        while not operation.done() or any(each.operation.done() for each in pending):
            if not any(each.operation.done() for each in pending):
                await until(First([operation, *(each.operation for each in pending)]))
            for each in [each for each in pending if each.operation.done()]:
                await call.wait(each)
                pending.remove(each)
        call.in_flight.remove(operation)
        try:
            operation.result(0)
        except DeadlineExceeded:
            what = "worked" if self._group is not None else "connected the ranks"
            error = DeadlineExceeded(f"NCCL has not {what} in time", fix=_MORE_TIME)
            raise StepsFailed(error, Failure.LATE, call.rank) from None
        return pending

    def _give_back(self, group: Any) -> None:
        # No daemon: the interpreter waits for it at its end, or torch would be torn down under it.
        end = functools.partial(_quietly, self._library.abort, group, self._aborted)
        thread = threading.Thread(target=end, name="zerohop-nccl")
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, and starts no thread any more
            end()


def _quietly(abort: Callable[[Any], object], group: Any, aborted: threading.Event) -> None:
    try:
        abort(group)
    except RuntimeError:  # whatever it is, the group is of no use any more
        pass
    finally:
        aborted.set()


def _packed(new: Mapping[str, bytes], *, ended: bool) -> bytes:
    return json.dumps([{key: value.hex() for key, value in new.items()}, ended]).encode()


def _unpacked(rank: int, data: bytes) -> tuple[dict[str, bytes], bool]:
    try:
        values, ended = json.loads(data)
        return {str(key): bytes.fromhex(value) for key, value in values.items()}, bool(ended)
    except (ValueError, TypeError, AttributeError):
        error = ProtocolError(f"rank {rank}: what it says about NCCL does not parse", ranks=(rank,))
        raise StepsFailed(error, Failure.DIFFERS, rank) from None
