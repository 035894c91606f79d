"""Random programs of messages between the ranks of one process, which a model follows."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import zerohop as zh
from support.message_model import SHORT_BYTES, Asked, MailboxModel, Sent
from support.patience import PATIENCE_S
from support.pattern import Bytes, expect_equal, pattern, poison
from zerohop.group import CompletionList
from zerohop.group.messages import MOST_TAG, Arrival

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_RANKS: Final = 4
TAGS: Final = (0, 1, MOST_TAG)
# A message's length is the first of its kind's that no other of its rank and tag has, so lengths tell them apart.
LENGTHS: Final = (
    (0, 1, 8, 256, 257, *range(300, 400)),
    (8192, 8191, 8000, *range(7000, 7100)),
    (8193, 65_536, 65_537, *range(66_000, 66_100)),
)
# The second and the third are too small for some messages.
ROOMS: Final = (70_000, 0, 8192)
# The groups of a program: that of all ranks, the same in another order, and one of two ranks.
SPACES: Final = 3
# Messages of the program's end, behind all others of a rank.
_FENCE_TAG: Final = 1000
_LAST_TAG: Final = 1001
_GUARD: Final = 16


class Send(NamedTuple):
    space: int
    source: int
    target: int
    tag: int
    kind: int


class Recv(NamedTuple):
    """``source`` and ``tag``: None: any. ``room``: which of ROOMS; None: a probe."""

    space: int
    target: int
    source: int | None
    tag: int | None
    room: int | None


class Claim(NamedTuple):
    """Receive what a probe has found."""

    which: int


class Drop(NamedTuple):
    """Give back what a probe has found, or end it."""

    which: int


class Cancel(NamedTuple):
    which: int


class Tell(NamedTuple):
    """Send an active message."""

    source: int
    target: int
    kind: int


class Look(NamedTuple):
    """Notice which receives have ended, and what the completion objects were told."""


Action = Send | Recv | Claim | Drop | Cancel | Tell | Look


@dataclass(eq=False)
class Pending:
    """A receive or a probe. ``memory``: None: a probe. ``expected``: the message, if the receive is of an Arrival."""

    mailbox: int
    asked: Asked
    operation: Any
    memory: Bytes | None
    arrival: Arrival | None = None
    expected: Sent | None = None


class Program:
    """The ranks of one program, and what is known of their messages."""

    def __init__(self, folder: Path, contexts: Sequence[zh.Context], name: str) -> None:
        self._closing = ExitStack()
        self.size = size = len(contexts)
        members = [tuple(range(size)), tuple(reversed(range(size))), (size - 1, 0)]
        self.all: list[zh.Group] = []
        self._tick = 0
        with ExitStack() as opening:
            for rank, context in enumerate(contexts):
                group = zh.Group(rank, size, folder, name=name, ctx=context, timeout=PATIENCE_S)
                self.all.append(opening.enter_context(group))
            self.spaces = [self.all]
            for ranks in members[1:]:
                some = [opening.enter_context(self.all[rank].subgroup(ranks)) for rank in ranks]
                self.spaces.append(some)
            self._closing = opening.pop_all()
        self.groups = [group for space in self.spaces for group in space]
        self.models = [MailboxModel() for _ in self.groups]
        self.pending: list[Pending] = []
        self.sends: list[tuple[int, Sent, Bytes, Any]] = []
        self.seeds: dict[Sent, int] = {}
        self.lists = [CompletionList(group) for group in self.all]
        for group, told in zip(self.all, self.lists, strict=True):
            assert group.register(told) == 0
        self.told: dict[tuple[int, int], list[int]] = {}
        self.heard: dict[tuple[int, int], list[int]] = {}
        self.tells: list[Any] = []

    def close(self) -> None:
        self._closing.close()

    def run(self, actions: Sequence[Action], *, leaves: bool) -> None:
        """Do the actions, then receive everything. ``leaves``: the last rank leaves its group before the others do."""
        for action in actions:
            self._do(action)
        self._end()
        if leaves:
            self._leave()

    # Actions

    def _do(self, action: Action) -> None:
        probes = [each for each in self.pending if each.memory is None]
        match action:
            case Send(space, source, target, tag, kind):
                number, here = self._mailbox(space, target)
                self._send(space % SPACES, source % here.size, number, here.rank, TAGS[tag], LENGTHS[kind])
            case Recv(space, target, source, tag, room):
                number, here = self._mailbox(space, target)
                wanted = None if source is None else source % here.size
                self._receive(number, wanted, None if tag is None else TAGS[tag], None if room is None else ROOMS[room])
            case Claim(which) if probes:
                self._claim(probes[which % len(probes)])
            case Drop(which) if probes:
                self._drop(probes[which % len(probes)])
            case Cancel(which) if self.pending:
                self._cancel(self.pending[which % len(self.pending)])
            case Tell(source, target, kind):
                self._tell(source % self.size, target % self.size, kind)
            case Look():
                self._look()
            case _:
                pass

    def _mailbox(self, space: int, target: int) -> tuple[int, zh.Group]:
        groups = self.spaces[space % SPACES]
        group = groups[target % len(groups)]
        return self.groups.index(group), group

    def _now(self) -> int:
        self._tick += 1
        return self._tick

    def _send(self, space: int, source: int, mailbox: int, target: int, tag: int, lengths: Sequence[int]) -> None:
        model = self.models[mailbox]
        nbytes = next(each for each in lengths if (source, tag, each) not in model.sent)
        seed = len(self.sends)
        data = pattern(seed, nbytes)
        sent = model.send(source, tag, nbytes, self._now())
        self.seeds[sent] = seed
        self.sends.append((mailbox, sent, data, self.spaces[space][source].send(data, target, tag=tag)))

    def _receive(self, mailbox: int, source: int | None, tag: int | None, room: int | None) -> Pending:
        asked = self.models[mailbox].ask(source, tag, MOST_TAG if room is None else room, self._now())
        group = self.groups[mailbox]
        if room is None:
            pending = Pending(mailbox, asked, group.probe(source, tag=tag), None)
        else:
            memory = poison(room + 2 * _GUARD)
            operation = group.recv(memory[_GUARD : _GUARD + room], source, tag=tag)
            pending = Pending(mailbox, asked, operation, memory)
        self.pending.append(pending)
        return pending

    def _claim(self, probe: Pending) -> None:
        """Receive what a probe has found, if it has."""
        self._notice(probe)
        if probe.arrival is None or probe.asked.took is None:
            return
        memory = poison(probe.arrival.nbytes + 2 * _GUARD)
        operation = probe.arrival.recv(memory[_GUARD : len(memory) - _GUARD])
        self.pending.remove(probe)
        expected = probe.asked.took[0]
        self.pending.append(Pending(probe.mailbox, probe.asked, operation, memory, expected=expected))

    def _drop(self, probe: Pending) -> None:
        now = self._now()
        probe.operation.cancel()
        self.pending.remove(probe)
        self._notice(probe, cancelled_at=now)
        if probe.arrival is not None:
            self.models[probe.mailbox].release(probe.asked, self._now())
        probe.arrival = probe.operation = None  # nobody else has them

    def _cancel(self, receive: Pending) -> None:
        if receive.memory is None:
            self._drop(receive)
        elif receive.expected is None:
            now = self._now()
            receive.operation.cancel()
            self._notice(receive, cancelled_at=now)

    def _tell(self, source: int, target: int, kind: int) -> None:
        """Send an active message, whose tag is its number among those of its rank to that object."""
        told = self.told.setdefault((source, target), [])
        nbytes = LENGTHS[kind][len(told) % 3]
        self.tells.append(self.all[source].am(pattern(len(told), nbytes), target, 0, tag=len(told)))
        told.append(nbytes)

    def _look(self) -> None:
        for pending in list(self.pending):
            self._notice(pending)
        for target, told in enumerate(self.lists):
            while (ended := told.poll()) is not None:
                self._hear(target, ended)

    def _hear(self, target: int, ended: Any) -> None:
        """Check an active message, and that short ones of a rank come in order."""
        assert ended.error is None
        sent, heard = self.told[ended.rank, target], self.heard.setdefault((ended.rank, target), [])
        assert (ended.kind, ended.nbytes) == ("am", sent[ended.tag])
        expect_equal(np.frombuffer(ended.data, np.uint8), pattern(ended.tag, ended.nbytes), "an active message")
        assert ended.tag not in heard
        if ended.nbytes <= SHORT_BYTES:
            assert all(tag < ended.tag for tag in heard if sent[tag] <= SHORT_BYTES)
        heard.append(ended.tag)

    # What has come of it

    def _notice(self, pending: Pending, *, cancelled_at: int | None = None) -> None:
        """Note how a receive or a probe has ended, if it has. ``cancelled_at``: it was cancelled, so it must have."""
        if pending.arrival is not None or (cancelled_at is None and not pending.operation.done()):
            return
        model, asked = self.models[pending.mailbox], pending.asked
        try:
            found = pending.operation.result(PATIENCE_S)
        except CancelledError:
            assert cancelled_at is not None, f"{asked} was cancelled by nobody"
            model.cancel(asked, cancelled_at)
        except zh.ProtocolError as error:
            model.truncate(asked, error.reason)
        else:
            if pending.memory is None:
                model.take(asked, found.source, found.tag, found.nbytes, self._now())
                pending.arrival = found
                return
            sent = pending.expected
            if sent is None:
                sent = model.take(asked, found.source, found.tag, found.nbytes, self._now())
            assert found == (sent.source, sent.tag, sent.nbytes)
            expected = poison(len(pending.memory))
            expected[_GUARD : _GUARD + sent.nbytes] = pattern(self.seeds[sent], sent.nbytes)
            expect_equal(pending.memory, expected, f"{asked}")
        if pending in self.pending:
            self.pending.remove(pending)

    # The end

    def _end(self) -> None:
        """Receive everything, and compare with the model."""
        for number in range(len(self.groups)):
            self._fence(number)
        self._expect_no_wait()
        for probe in [each for each in self.pending if each.memory is None]:
            self._drop(probe)
        self._expect_no_wait()
        for receive in list(self.pending):
            self._cancel(receive)
        for number in range(len(self.groups)):
            self._drain(number)
        failed = self._end_sends()
        for target, told in enumerate(self.lists):
            while any(
                len(self.heard.get(pair, ())) < len(sent) for pair, sent in self.told.items() if pair[1] == target
            ):
                self._hear(target, told.pop(PATIENCE_S))
            assert told.poll() is None
        for operation in self.tells:
            operation.result(PATIENCE_S)
        for model in self.models:
            model.check(failed)

    def _fence(self, mailbox: int) -> None:
        """Wait until all messages to a mailbox have arrived, by later ones: one goes past all other receives."""
        group = self.groups[mailbox]
        for source in range(group.size):
            here = [each.asked for each in self.pending if each.mailbox == mailbox]
            count = sum(asked.tag is None and asked.source in (None, source) for asked in here)
            for _ in range(count + 1):
                self._send_from(mailbox, source, _FENCE_TAG)
            self._wait(self._receive(mailbox, source, _FENCE_TAG, ROOMS[0]))

    def _drain(self, mailbox: int) -> None:
        for source in range(self.groups[mailbox].size):
            self._send_from(mailbox, source, _LAST_TAG)
            tag = None
            while tag != _LAST_TAG:
                receive = self._receive(mailbox, source, None, ROOMS[0])
                self._wait(receive)
                assert receive.asked.took is not None
                tag = receive.asked.took[0].tag

    def _send_from(self, mailbox: int, source: int, tag: int) -> None:
        space = next(each for each, groups in enumerate(self.spaces) if self.groups[mailbox] in groups)
        self._send(space, source, mailbox, self.groups[mailbox].rank, tag, range(10, 200))

    def _wait(self, pending: Pending) -> None:
        pending.operation.exception(PATIENCE_S)
        self._notice(pending)

    def _expect_no_wait(self) -> None:
        """Wait until no receive waits for a message that has arrived: its bytes may still move."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            self._look()
            hanging = [(each.asked, sent) for each in self.pending for sent in self._due(each)]
            if not hanging:
                return
            assert time.monotonic() < limit, f"these receives hang: {hanging}"
            time.sleep(0.001)  # bytes move, and which operation ends next is not known

    def _due(self, pending: Pending) -> list[Sent]:
        """Return the messages of which a receive must get one, unless another receive gets them."""
        if pending.expected is not None:
            return [pending.expected]
        if pending.arrival is not None:
            return []
        model = self.models[pending.mailbox]
        over = {sent for _, sent, _, operation in self.sends if operation.done() and sent.nbytes > SHORT_BYTES}
        return [sent for sent in model.waits_for(pending.asked) if sent not in over and not model.may_be_gone(sent)]

    def _end_sends(self) -> set[Sent]:
        """Return the messages whose sends have failed; all must have ended."""
        failed = set()
        for _, sent, _, operation in self.sends:
            error = operation.exception(PATIENCE_S)
            if error is None:
                assert operation.result() == sent.nbytes
            else:
                assert isinstance(error, zh.ProtocolError | zh.PeerLost), error
                assert sent.nbytes > SHORT_BYTES
                failed.add(sent)
        return failed

    def _leave(self) -> None:
        """Close the last rank's group, of which the others learn; what it has sent before is there."""
        *staying, leaving = self.all
        gone = leaving.rank
        short, long = pattern(1, 500), pattern(2, 50_000)
        memory: Bytes
        waiting = []
        for group in staying:
            leaving.send(short, group.rank, tag=1).result(PATIENCE_S)
            leaving.send(long, group.rank, tag=2)
            named, of_any = group.recv(bytearray(9), gone, tag=3), group.recv(bytearray(9), tag=3)
            waiting.append((named, of_any, group.recv(bytearray(9), group.rank, tag=4)))
        leaving.close()
        for group, (named, of_any, other) in zip(staying, waiting, strict=True):
            for lost in (named, of_any):
                assert isinstance(lost.exception(PATIENCE_S), zh.PeerLost)
                assert f"rank {gone}: " in str(lost.exception())
            memory = poison(short.nbytes)
            assert group.recv(memory, gone, tag=1).result(PATIENCE_S) == (gone, 1, short.nbytes)
            expect_equal(memory, short, "what a rank has sent before it left")
            memory = poison(long.nbytes)
            last = group.recv(memory, gone, tag=2)
            if last.exception(PATIENCE_S) is None:
                expect_equal(memory, long, "a long message of a rank that has left")
            else:
                assert isinstance(last.exception(), zh.PeerLost)
            assert isinstance(group.send(long, gone, tag=2).exception(PATIENCE_S), zh.PeerLost)
            assert not other.done()
            group.send(b"still", group.rank, tag=4).result(PATIENCE_S)
            assert other.result(PATIENCE_S) == (group.rank, 4, 5)
        # It is still in the others of its groups.
        reversed_ranks = self.spaces[1]
        received = reversed_ranks[-1].recv(bytearray(9), 0)
        reversed_ranks[0].send(b"still", self.size - 1).result(PATIENCE_S)
        assert received.result(PATIENCE_S) == (0, 0, 5)
