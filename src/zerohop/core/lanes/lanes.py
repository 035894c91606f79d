"""Keeps the lanes of one Connection: opens them, chooses the one for messages, replaces one that goes down.

One lane carries send, recv, notify and flush. Others are opened when a transfer wants their provider. A lane that goes
down ends the operations in flight on it, and no others. Both sides destroy their ends and report that. Only then
another lane of its provider is opened, so that no late data reaches memory in use again. On the control thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.config.providers import VERBS
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.base.log import logger
from zerohop.core.base.peer_text import quoted
from zerohop.core.control import wire
from zerohop.core.lanes import agreement, path_choice
from zerohop.core.lanes.lane import Lane, State, retrieve
from zerohop.core.lanes.lane_table import LaneTable
from zerohop.core.lanes.port_watch import LanePorts
from zerohop.core.runtime.served import seconds_left, wait_shared
from zerohop.errors import PeerLost, ProtocolError, ZerohopError, copy_of, from_native, silent_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.lane_core import LaneCore
    from zerohop.core.lanes.link import Link

# Seconds between two looks at an end that is being destroyed.
_GONE_PAUSE_S: Final = 0.001
# Number of lanes in a row that may break as soon as they are up; after that, opening fails.
_MAX_BREAKS: Final = 4
_MESSAGES: Final = "messages"


class Lanes(LaneTable):
    """Holds all lanes of one Connection; lane_setup.py sets up each of them."""

    def __init__(
        self, core: LaneCore, link: Link, channel: Channel, *, initiator: bool, first_up: Callable[[], None]
    ) -> None:
        """Hold no lane yet; call ``first_up()`` once the first lane for messages is up."""
        super().__init__(initiator=initiator)
        self._core = core
        self._link = link
        self._channel = channel
        self._first_up: Callable[[], None] | None = first_up
        # LaneSetup sets this: announces a lane, given provider, for messages or not, and the peer's NICs to avoid.
        self.begin: Callable[[str, bool, set[int]], Lane]
        # Tasks that open a lane, by provider or _MESSAGES. All operations that need the lane wait for the same task.
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._draining: set[asyncio.Task[None]] = set()
        # For operations here, once this side has asked the peer for a lane for messages.
        self._wanted: asyncio.Future[None] | None = None
        # Number of the last LaneWanted that this side has sent or received.
        self._asked = 0
        # Why the first lane could not be opened. The connection may end before those that wait for the lane are told.
        self.given_up: ZerohopError | None = None
        self.ports = LanePorts(core, link, channel, self, self.go_down)

    def agree(self, setup: wire.Setup) -> None:
        """Find out which providers both sides have; raise Unsupported if there is none."""
        self._link.their_nics = tuple(setup.nics)
        agreement.agree(self._core, self._link, setup, same_host=self._channel.unix)

    async def begin_messages(self) -> None:
        """Open the first lane for messages; this side has dialled."""
        await self._shared(_MESSAGES, self._open_for_messages, limit=None)

    async def open(self, provider: str) -> None:
        """Open a lane of this provider, or wait for one that is being opened.

        Raises:
            ZerohopError: the lane could not be opened; its provider counts as missing for a while if there are others.
            DeadlineExceeded: the peer does not answer before the operation's deadline; the opening goes on.
        """
        if self._link.lane_of(provider) is None:
            await self._shared(provider, lambda: self._open(provider, messages=False), limit=seconds_left())

    async def for_messages(self) -> None:
        """Wait for a lane for messages, and open one if this side does that.

        Raises:
            PeerLost: the lane for messages went down, and no other can be opened now. The next call tries again.
            DeadlineExceeded: the peer does not answer before the operation's deadline.
        """
        if self._link.message_lane is not None:
            return
        limit = seconds_left()
        if self.initiator:
            await self._shared(_MESSAGES, self._replace, limit=limit)
            return
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
            self._wanted.add_done_callback(retrieve)
            if self._first_up is None:
                self._asked += 1
                self._channel.post(wire.LaneWanted(text="there is something to send", number=self._asked))
        await wait_shared(self._wanted, self._link, limit)

    async def drained(self) -> None:
        """Wait until both sides have placed all that arrived over lanes that are down."""
        for lane in self.down():
            try:
                await wait_with_timeout(lane.drained.wait(), seconds_left())
            except TimeoutError:
                raise silent_error(self._link.peer, "the peer does not answer") from None

    @property
    def draining(self) -> bool:
        """Tell whether data of a lane that is down may still be placed; any thread may ask."""
        return bool(self._draining) or bool(self.down())

    def take_down_dead(self) -> None:
        """Take down the lanes that the data plane has found dead; it reports each once."""
        try:
            if self._core.engine.peer_status(self._link.native_id)[0] != Status.OK:
                return
        except NativeError:
            return
        for lane in list(self.all.values()):
            # A lane that the peer may already count as up must come up here, too, before it can go down.
            pending = lane.state is State.OPENING and lane.said_ready
            if lane.connected and lane.state is not State.DOWN and not pending and not lane.endpoint.alive:
                status, reason = lane.endpoint.cause
                error = from_native(status.value, reason.value, peer=self._link.peer, provider=lane.provider)
                if lane.state is State.UP:
                    self.go_down(lane, error.reason, warn=reason != Reason.CONTEXT_CLOSED)
                else:
                    self.fail(lane, error, tell=True)

    def came_up(self, lane: Lane) -> None:
        """Count a lane as up: both ends are connected."""
        link = self._link
        lane.state = State.UP
        self.given_up = None
        lane.cost = path_choice.lane_cost(lane.endpoint.limits)
        link.lanes = {**link.lanes, lane.number: lane}
        link.failed.record_success(lane.provider)
        if lane.messages:
            old, link.message_lane = link.message_lane, lane
            link.provider = lane.provider
            if old is not None:
                # The peer has opened a new lane, because it knew before this side that the old one is down.
                self.go_down(old, "the peer has replaced it")
            self._answer_wanted(None)
        if lane.provider == VERBS:
            link.reconsider()
        lane.up.set_result(None)
        logger.info("a lane over %s to %s is up", lane.provider, link.label)
        first_up, self._first_up = self._first_up, None if lane.messages else self._first_up
        if lane.messages and first_up is not None:
            first_up()
        self.take_down_dead()

    def fail(self, lane: Lane, error: ZerohopError, *, tell: bool) -> None:
        """Give up a lane that is being opened; ``tell`` the peer."""
        if lane.state is not State.OPENING:
            return
        lane.state = State.DOWN
        if not self._link.ready:
            self.given_up = error
        if tell:
            self._channel.post(wire.LaneFailed(number=lane.number, text=error.reason[:2000], fix=error.fix[:2000]))
        lane.close_end()
        if not lane.up.done():
            lane.up.set_exception(copy_of(error))
        self.remove(lane)

    def on_lane_down(self, message: wire.LaneDown) -> None:
        """Handle LaneDown: the peer's end of a lane is down and drained."""
        lane = self.find(message.number)
        if lane is None:
            return
        if lane.state is State.OPENING or lane.peer_done:
            raise ProtocolError("malformed: LaneDown of a lane that is not up")
        lane.peer_done = True
        if lane.state is State.UP:
            why = f"the peer says: {quoted(message.text)}" if message.text else "the peer has closed it"
            self.go_down(lane, why, warn=message.warn)
        elif lane.local_done:
            self.remove(lane)

    def on_lane_wanted(self, message: wire.LaneWanted) -> None:
        """Handle LaneWanted: the peer has something to send, and no lane for it."""
        if not self.initiator:
            raise ProtocolError("malformed: LaneWanted of the side that opens it")
        self._asked = message.number
        self.retry()

    def retry(self) -> None:
        """Try again to open a lane for messages if there is none and this side opens it."""
        if self.initiator and self._first_up is None and self._link.message_lane is None:
            self._start_shared(_MESSAGES, self._replace)

    def on_lane_missing(self, message: wire.LaneMissing) -> None:
        """Handle LaneMissing: the peer cannot open a lane for messages."""
        if self.initiator:
            raise ProtocolError("malformed: LaneMissing of the side that does not open it")
        if message.wanted != self._asked:
            # The attempt had begun before this side asked. The peer makes another one.
            return
        self._answer_wanted(self._none_for_messages(f"the peer says: {quoted(message.text)}"))

    def end(self, error: ZerohopError) -> None:
        """End all lanes of a lost Connection, whose ends the data plane has closed."""
        self.ports.end()
        for lane in list(self.all.values()):
            if lane.state is State.OPENING:
                self.fail(lane, error, tell=False)
            lane.state = State.DOWN
            lane.drained.set()
        self.all.clear()
        for task in [*self._tasks.values(), *self._draining]:
            task.cancel()
        self._answer_wanted(copy_of(error))

    def _answer_wanted(self, error: ZerohopError | None) -> None:
        """End the wait of the operations here that need a lane for messages."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            if error is None:
                wanted.set_result(None)
            else:
                wanted.set_exception(error)

    def _start_shared(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        task = self._tasks.get(key)
        if task is None or task.done():
            task = self._tasks[key] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """Lose the link if a task ended with an error, mostly lack of memory, that its opening does not handle."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ZerohopError | NativeError):
            self._link.step_failed(error)

    async def _shared(self, key: str, work: Callable[[], Coroutine[Any, Any, Any]], *, limit: float | None) -> None:
        await wait_shared(self._start_shared(key, work), self._link, limit)

    async def _open_for_messages(self) -> None:
        """Open a lane for messages: over shm if both sides have it, else over the first provider that works."""
        possible = self._link.possible
        failures: dict[str, ZerohopError] = {}
        for provider in ("shm",) if "shm" in possible else possible:
            try:
                await self._open(provider, messages=True)
            except ZerohopError as error:
                failures[provider] = error
            else:
                return
        *others, last = failures.values()
        if others:
            reason = "; ".join(f"{provider}: {error.reason}" for provider, error in failures.items())
            raise type(last)(**{**last._fields(), "reason": reason})
        raise last

    async def _replace(self) -> None:
        while True:
            asked = self._asked
            try:
                await self._open_for_messages()
            except ZerohopError as error:
                if asked != self._asked and self._link.lost is None:
                    # The peer has asked again meanwhile, and the obstacle may be gone.
                    continue
                self._channel.post(wire.LaneMissing(text=error.reason[:2000], wanted=asked))
                raise self._none_for_messages(error.reason) from None
            return

    def _none_for_messages(self, why: str) -> PeerLost:
        return PeerLost(
            f"the lane for messages is down, and none can be opened in its place: {why}",
            fix="post it again once the NIC's port is up, or allow tcp beside verbs",
            peer=self._link.peer,
        )

    async def _open(self, provider: str, *, messages: bool) -> None:
        without: set[int] = set()
        breaks = 0
        try:
            while True:
                for old in self.down():
                    if old.provider == provider:
                        await old.drained.wait()
                if not messages and await self._another(provider):
                    return
                lane = self.begin(provider, messages, without)
                try:
                    await asyncio.shield(lane.up)
                except ZerohopError:
                    if not messages and await self._another(provider):
                        return
                    blamed = set(lane.blamed) - without
                    if not blamed:
                        raise
                    without |= blamed
                    continue
                if lane.state is State.UP:
                    return
                # The lane broke before this task learned that it was up, and no other task replaces it.
                breaks += 1
                if breaks == _MAX_BREAKS:
                    raise PeerLost("lanes break as soon as they are up", provider=provider, peer=self._link.peer)
        except ZerohopError as error:
            if self._link.lost is None:
                self._link.failed.record_failure(provider, error.reason)
            raise

    async def _another(self, provider: str) -> bool:
        """Wait for another lane of this provider that is being opened; return whether it came up."""
        replacing = self._tasks.get(_MESSAGES)
        if replacing is not None:
            await asyncio.wait([replacing])
        for lane in list(self.all.values()):
            if lane.provider == provider and lane.state is not State.DOWN:
                try:
                    await asyncio.shield(lane.up)
                except ZerohopError:
                    continue
                return True
        return False

    def go_down(self, lane: Lane, why: str, *, warn: bool = True) -> None:
        """Take a lane down: it carries nothing any more. ``warn``, here and there, unless a Context is being closed."""
        link = self._link
        lane.state = State.DOWN
        link.lanes = {number: each for number, each in link.lanes.items() if each is not lane}
        if current := link.message_lane is lane:
            link.message_lane = None
        for route in list(link.routes):
            if route.lane == lane.number:
                route.drop()
        lane.close_end()
        if warn:
            said = "a lane over %s to %s went down: %s"
            self._core.control.warn_once(link.peer, "lane", said, lane.provider, link.label, why)
        down = wire.LaneDown(number=lane.number, text=why[:2000], warn=warn)
        task = asyncio.get_running_loop().create_task(self._say_down(lane, down))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)
        task.add_done_callback(self._task_ended)
        if current and self.initiator:
            self._start_shared(_MESSAGES, self._replace)

    async def _say_down(self, lane: Lane, message: wire.LaneDown) -> None:
        # The NIC destroys the end in its own time, and no event reports that.
        while not lane.endpoint.gone:  # noqa: ASYNC110
            await asyncio.sleep(_GONE_PAUSE_S)
        lane.local_done = True
        self._channel.post(message)
        if lane.peer_done:
            self.remove(lane)
