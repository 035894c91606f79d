"""Calls services of the peer, and answers the peer's calls to services of this side. On the control thread.

A face that talks to its counterpart, as a Transport that joins another does, adds a service to its Context. A message
is bytes here; the service parses them, and nothing is executed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from zerohop._native import Reason, Status
from zerohop.core.base.peer_text import quoted
from zerohop.core.control import wire
from zerohop.core.peers import queue_pairs
from zerohop.core.peers.peer_link import NOTHING_AFTER, After
from zerohop.core.peers.service import Refusal
from zerohop.core.runtime import eager
from zerohop.core.runtime.served import seconds_left, wait_shared
from zerohop.errors import ProtocolError, from_native

if TYPE_CHECKING:
    from zerohop.core.control.channel import Channel
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Statuses with which a call may be refused.
_REFUSALS: Final = tuple(
    each.value for each in (Status.PEER_LOST, Status.ACCESS_DENIED, Status.UNSUPPORTED, Status.PROTOCOL)
)
# Number of calls to one peer that may wait for their answers; a face has one or two.
_MAX_CALLS: Final = 4096
_FAILED: Final = Refusal(Status.PROTOCOL, "the peer failed to answer; its log says how")


class _Pending:
    """Holds a call that the peer has not answered.

    Attributes:
        answer: what the caller waits for.
        after: what the caller has asked for beside the answer.
        left: whether the caller has stopped to wait.
    """

    def __init__(self, answer: asyncio.Future[bytes], after: After) -> None:
        self.answer = answer
        self.after = after
        self.left = False

    def leave(self) -> None:
        """Take it that the caller gets no answer, though the peer has the call."""
        if not self.answer.done():
            self.left = True
            if self.after.late is None and self.after.ended is None:
                self.answer.cancel()
        elif not self.answer.cancelled() and self.answer.exception() is None and self.after.late is not None:
            self.after.late(self.answer.result())

    def end(self, body: bytes) -> None:
        """Give the answer to the caller, or to what takes late ones."""
        take = self.after.late if self.left else self.after.then
        if take is not None:
            take(body)
        self.answer.set_result(body)


class Rpc:
    """Makes and answers the calls of one Connection."""

    def __init__(self, core: PeerCore, link: PeerLink, channel: Channel) -> None:
        self._core = core
        self._link = link
        self._channel = channel
        self._number = 0
        self._pending: dict[int, _Pending] = {}

    async def call(self, service: str, body: bytes, after: After = NOTHING_AFTER) -> bytes:
        """Call a service of the peer, and return its answer.

        Raises:
            ZerohopError: the service refused; Unsupported if the peer has no such service.
            PeerLost: the peer is gone.
            DeadlineExceeded: the peer does not answer before the operation's deadline.
        """
        if len(self._pending) >= _MAX_CALLS:
            raise from_native(Status.WOULD_BLOCK.value, Reason.WINDOW_FULL.value, peer=self._link.peer)
        number, self._number = self._number, self._number + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pending = self._pending[number] = _Pending(future, after)
        future.add_done_callback(lambda _: self._pending.pop(number, None))
        # The caller may be gone by then, and asyncio would warn of an exception that nobody fetched.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if after.ended is not None:
            ended = after.ended
            future.add_done_callback(lambda _: ended())
        try:
            self._channel.post(wire.Call(number=number, service=service, body=body))
        except BaseException:
            future.cancel()
            raise
        try:
            await wait_shared(future, self._link, seconds_left())
        except BaseException:
            pending.leave()
            raise
        return future.result()

    def send(self, service: str, body: bytes) -> None:
        """Call a service of the peer without waiting for the answer."""
        number, self._number = self._number, self._number + 1
        self._channel.post(wire.Call(number=number, service=service, body=body))

    def on_call(self, call: wire.Call) -> None:
        """Handle Call: answer it, at once or when the service has the answer."""
        service = self._core.services.get(call.service) or queue_pairs.SERVICES.get(call.service, _no_service)
        try:
            answer = service(self._link, call.body)
            begun = answer if isinstance(answer, bytes) else eager.begin(answer)
        except Exception as error:  # noqa: BLE001  # the peer waits for an answer, and gets the error as one
            self._refuse(call.number, error)
            return
        if isinstance(begun, eager.Rest):
            self._link.start(self._answer_later, call.number, begun)
        else:
            self._answer(call.number, begun)

    async def _answer_later(self, number: int, rest: eager.Rest[bytes]) -> None:
        try:
            body = await rest
        except Exception as error:  # noqa: BLE001  # the peer waits for an answer, and gets the error as one
            self._refuse(number, error)
        else:
            self._answer(number, body)

    def _answer(self, number: int, body: bytes) -> None:
        self._channel.post(wire.Answer(number=number, status=Status.OK.value, body=body))

    def _refuse(self, number: int, error: Exception) -> None:
        refusal = error if isinstance(error, Refusal) else _FAILED
        if refusal is _FAILED:
            self._core.control.warn_once.bug(error, "zerohop failed to answer a peer, in a way that it should not")
        status, reason = refusal.status.value, refusal.reason.value
        self._channel.post(wire.Answer(number=number, status=status, reason=reason, text=refusal.text))

    def on_answer(self, answer: wire.Answer) -> None:
        """Handle Answer: pass it to the caller of the service; drop it if nobody waits for it."""
        pending = self._pending.get(answer.number)
        if pending is None or pending.answer.done():
            return
        if answer.status == Status.OK.value:
            pending.end(answer.body)
            return
        if answer.status not in _REFUSALS:
            raise ProtocolError(f"malformed: an answer of status {answer.status}")
        said = quoted(answer.text) if answer.text else ""
        pending.answer.set_exception(from_native(answer.status, answer.reason, said, peer=self._link.peer))

    def end(self) -> None:
        """End all calls, because the Connection is lost."""
        for pending in list(self._pending.values()):
            pending.answer.cancel()


def _no_service(_link: PeerLink, _body: bytes) -> bytes:
    raise Refusal(Status.UNSUPPORTED, "the peer's Context has nothing of that kind")
