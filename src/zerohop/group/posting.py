"""Declares Posting: the calls of a group that say whether an operation is done, posted, or to be retried."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from zerohop.errors import WouldBlock, ZerohopError
from zerohop.group.active import header_of
from zerohop.group.channel import Use
from zerohop.group.completion import Completion, Ended
from zerohop.group.deadlines import left_s
from zerohop.group.messages import Message
from zerohop.group.of_rank import of_rank
from zerohop.group.one_sided import OneSided, range_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Operation, RemoteBuffer


class State(enum.Enum):
    """Says what has become of a call that posts."""

    DONE = "done"
    POSTED = "posted"
    RETRY = "retry"


class Posted(NamedTuple):
    """Says what has become of a call that posts.

    Attributes:
        state: DONE: the operation has ended, and its completion object is not told. POSTED: it is under way, and the
            object is told of its end. RETRY: there is no room, and nothing was done.
        ended: of DONE: what the object would have been told.
        reason: of RETRY: what there is no room in.
        operation: of DONE and POSTED: the operation, for a caller who gave no object.
    """

    state: State
    ended: Ended | None = None
    reason: str = ""
    operation: Operation[Any] | None = None

    def is_done(self) -> bool:
        """Tell whether the operation has ended."""
        return self.state is State.DONE

    def is_posted(self) -> bool:
        """Tell whether the operation is under way."""
        return self.state is State.POSTED

    def is_retry(self) -> bool:
        """Tell whether the call has to be made again."""
        return self.state is State.RETRY


class Posting(OneSided):
    """Posts operations without waiting, and has completion objects told of their ends.

    The calls take the arguments of ``send``, ``recv``, ``am``, ``put`` and ``get``, and these:

    Args:
        comp: the completion object that is told of the end. None: the caller uses ``Posted.operation``.
        context: any object, for ``Ended.context``.
        allow_done: False: an operation that has ended at once is told to the object, too, and the call says POSTED.
        allow_posted: False: the call waits until the operation has ended, and says DONE.
        allow_retry: False: where there is no room, the operation waits for it, and the call says POSTED.

    An operation that has failed at once raises its error, unless ``allow_done`` is False. Other errors are in
    ``Ended.error``.
    """

    def post_send(
        self,
        source: Local,
        rank: int,
        *,
        tag: int = 0,
        comp: Completion | None = None,
        context: Any = None,
        timeout: float | None = None,
        **allow: bool,
    ) -> Posted:
        """Post a ``send``."""
        rank, tag = self._checked(rank, tag)
        post = functools.partial(self._send, self._messages, source, rank, tag, timeout)
        return self._post(Ended("send", rank, tag, 0, source, context), post, comp, allow)

    def post_recv(
        self,
        into: Local,
        source: int | None = None,
        *,
        tag: int | None = None,
        comp: Completion | None = None,
        context: Any = None,
        timeout: float | None = None,
        **allow: bool,
    ) -> Posted:
        """Post a ``recv``; it never says RETRY."""
        post = functools.partial(self._receive_now, into, source, tag, timeout)
        return self._post(
            Ended("recv", -1 if source is None else source, tag or 0, 0, into, context), post, comp, allow
        )

    def post_am(
        self,
        source: Local,
        rank: int,
        target: int,
        *,
        tag: int = 0,
        header: bytes = b"",
        comp: Completion | None = None,
        context: Any = None,
        timeout: float | None = None,
        **allow: bool,
    ) -> Posted:
        """Post an active message."""
        rank, tag = self._checked(rank, tag)
        channel, made = self._target(Use.ACTIVE, target), header_of(header)
        post = functools.partial(self._send, channel, source, rank, tag, timeout, header=made)
        return self._post(Ended("am", rank, tag, 0, source, context), post, comp, allow)

    def post_put(
        self,
        source: Local,
        rank: int,
        remote: RemoteBuffer,
        *,
        offset: int = 0,
        target: int | None = None,
        tag: int = 0,
        comp: Completion | None = None,
        context: Any = None,
        timeout: float | None = None,
        **allow: bool,
    ) -> Posted:
        """Post a ``put``."""
        rank, tag = self._checked(rank, tag)
        told = functools.partial(self.put, source, rank, remote, offset=offset, target=target, tag=tag, timeout=timeout)
        post = self._poster(rank, source, remote, offset, timeout, "put") if target is None else _without_hints(told)
        return self._post(Ended("put", rank, tag, 0, source, context), post, comp, allow)

    def post_get(
        self,
        into: Local,
        rank: int,
        remote: RemoteBuffer,
        *,
        offset: int = 0,
        target: int | None = None,
        tag: int = 0,
        comp: Completion | None = None,
        context: Any = None,
        timeout: float | None = None,
        **allow: bool,
    ) -> Posted:
        """Post a ``get``."""
        rank, tag = self._checked(rank, tag)
        told = functools.partial(self.get, into, rank, remote, offset=offset, target=target, tag=tag, timeout=timeout)
        post = self._poster(rank, into, remote, offset, timeout, "get") if target is None else _without_hints(told)
        return self._post(Ended("get", rank, tag, 0, into, context), post, comp, allow)

    def _receive_now(
        self,
        into: Local,
        source: int | None,
        tag: int | None,
        timeout: float | None,
        *,
        nowait: bool,  # noqa: ARG002 - a receive always finds room
    ) -> Operation[Message]:
        return self.recv(into, source, tag=tag, timeout=timeout)

    def _poster(
        self, rank: int, memory: Local, remote: RemoteBuffer, offset: int, timeout: float | None, kind: str
    ) -> Callable[..., Operation[int]]:
        """Return what posts a put or a get, or leaves it to the control thread, where it can wait for room."""
        self._check()
        view = self._view(memory)
        there = range_of(remote, offset, view.nbytes)
        connected = self._check_owner(rank, remote)
        context, ends = self.context, (view, there) if kind == "put" else (there, view)

        def post(*, nowait: bool = False, **_: bool) -> Operation[int]:
            if nowait and connected:
                now = context.write_nowait if kind == "put" else context.read_nowait
                return now(*ends, timeout=self._timeout_of(timeout))
            deadline_ns = self._deadline(timeout)

            async def work(operation: Any) -> int:
                if not connected:
                    await self.connect(rank, timeout=left_s(deadline_ns))
                    self._check_owner(rank, remote)
                wait = context.write if kind == "put" else context.read
                moved: int = await operation.carry(lambda: wait(*ends, timeout=left_s(deadline_ns)))
                return moved

            operation = self._defer(kind, deadline_ns, work, nbytes=view.nbytes, keep=view, wants_operation=True)
            self._operations.note(operation)
            return operation

        return post

    def _post(
        self, about: Ended, post: Callable[..., Operation[Any]], comp: Completion | None, allow: dict[str, bool]
    ) -> Posted:
        """Post an operation; ``about`` describes it but for what is known at its end."""
        unknown = allow.keys() - {"allow_done", "allow_posted", "allow_retry"}
        if unknown:
            raise TypeError(f"there is no argument {sorted(unknown)[0]}")
        may_be_done, may_be_posted, may_retry = (
            allow.get(f"allow_{each}", True) for each in ("done", "posted", "retry")
        )
        if not may_be_done and not may_be_posted:
            raise ValueError(
                "allow_done and allow_posted are both False; an operation that does not fail is one of both"
            )
        if not may_be_done and comp is None:
            raise ValueError("with allow_done=False a completion object is told of each end; pass it as comp=")
        if comp is not None:
            if not isinstance(comp, Completion):
                raise TypeError(f"comp is a completion object, such as a Counter, not {type(comp).__name__}")
            comp.check(self.context)
        try:
            operation = post(nowait=True)
        except WouldBlock as error:
            if may_retry:
                return Posted(State.RETRY, reason=error.reason)
            operation = post(later=True)
        if about.kind != "recv":
            operation = of_rank(operation, about.rank, about.kind)
        if may_be_done and (operation.done() or not may_be_posted):
            value = operation.result()
            return Posted(State.DONE, _with_value(about, value), operation=operation)
        if comp is not None:
            comp.watch(operation, functools.partial(_ended, about))
        return Posted(State.POSTED, operation=operation)


def _without_hints(post: Callable[[], Operation[int]]) -> Callable[..., Operation[int]]:
    """Return a call that always finds room, because its steps are posted one after the other, and later."""
    return lambda **_: post()


def _ended(about: Ended, operation: Operation[Any]) -> Ended:
    try:
        return _with_value(about, operation.result(0))
    except ZerohopError as error:
        return about._replace(error=error)


def _with_value(about: Ended, value: Any) -> Ended:
    if isinstance(value, Message):
        return about._replace(rank=value.source, tag=value.tag, nbytes=value.nbytes)
    return about._replace(nbytes=value)
