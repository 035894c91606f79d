"""Declares Channel: the messages that one use of a group has for itself, such as those of the program."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from zerohop.core.face import Mailbox, TaggedMessages, post_messages_natively, reach_natively, stop_posting
from zerohop.errors import ZerohopError, copy_of
from zerohop.group.messages import GroupReceive, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from zerohop.core.face import Connection, Link

_NUMBER_BYTES = 8


class Use(enum.IntEnum):
    """Tells the messages of a group apart by what they are for."""

    MESSAGES = 0
    COLLECTIVES = 1
    # To a completion object that the receiver has registered: active messages, and the ends of puts and gets.
    ACTIVE = 2
    SIGNALS = 3
    # That a rank has left the group.
    NOTICES = 4


class Team:
    """Says which ranks of the program a group has. They have numbers of their own in the group.

    Attributes:
        ranks: the number in the program of each rank.
        rank: this process's number in the group.
        name: tells the groups of a program apart; the same in all ranks. Empty: the group of all ranks.
    """

    def __init__(self, ranks: Sequence[int], rank: int, name: bytes = b"") -> None:
        self.ranks = ranks
        self.rank = rank
        self.name = name
        # A range finds a number by itself.
        self._numbers = None if isinstance(ranks, range) else {each: number for number, each in enumerate(ranks)}

    def number_of(self, rank: int) -> int | None:
        """Return the number in the group of a rank of the program; None if the group does not have it."""
        if self._numbers is not None:
            return self._numbers.get(rank)
        return rank if rank in self.ranks else None

    def named(self, error: ZerohopError, number: int) -> ZerohopError:
        """Return an error that names a rank by its number in the group, and not by that in the program."""
        here = f"rank {number}"
        if error.ranks:  # it begins with the rank already
            reason = here + error.reason.removeprefix(f"rank {self.ranks[number]}")
        else:
            reason = f"{here}: {error.reason}"
        return replace(error, reason=reason, ranks=(number,))


class Channel(TaggedMessages):
    """Addresses the messages of one use of a group, and receives those to this rank once it is open.

    ``post_send`` and ``post_recv`` are native, and give None where more has to be done than to post.

    Ranks are numbers of the group. Each rank has a mailbox for each use of each of its groups, whose numbers all follow
    from one secret, so that ranks need not exchange them.

    Attributes:
        team: the ranks.
        mailbox: where this rank receives, from ``open`` on.
        losses: why each lost rank is gone.
    """

    mailbox: Mailbox

    def __init__(
        self,
        core: Any,
        team: Team,
        use: Use,
        secret_of: Callable[[int], int],
        greeted: set[int],
        timeout_ns: int,
        number: int = 0,
    ) -> None:
        """Address the messages of a use.

        Args:
            core: the core of the Context.
            team: the ranks.
            use: what the messages are for.
            secret_of: returns the secret of a rank of the program that was reached.
            greeted: the ranks that know that this one may wait for them.
            timeout_ns: of a send whose caller names none; 0: no limit.
            number: that of a completion object.
        """
        self.team = team
        self.losses: dict[int, ZerohopError] = {}
        self._secret_of = secret_of
        self._label = team.name + bytes([use]) + number.to_bytes(_NUMBER_BYTES, "little")
        self._numbers: dict[int, tuple[int, int]] = {}
        post_messages_natively(
            core,
            self,
            GroupReceive,
            Message,
            self.losses,
            greeted,
            self._number(secret_of(team.ranks[team.rank])),
            team.rank,
            timeout_ns,
        )

    def open(self, core: Any) -> None:
        """Open the mailbox of this rank."""
        self.mailbox = Mailbox(core, self._number(self._secret_of(self.team.ranks[self.team.rank])))

    def envelope(self, number: int, tag: int) -> tuple[int, int, int]:
        """Return the envelope of a message to a rank that was reached. Any thread."""
        secret = self._secret_of(self.team.ranks[number])
        known = self._numbers.get(number)
        if known is None or known[0] != secret:  # a rank that was started again has another one
            known = self._numbers[number] = secret, self._number(secret)
        return known[1], self.team.rank, tag

    def reach(self, number: int, connection: Connection, queued: dict[Any, Any]) -> None:
        """Let the native methods send to a rank that was reached, unless messages to it are queued. Any thread."""
        reach_natively(self, number, connection, self.envelope(number, 0)[0], (queued, self.team.ranks[number]))

    def stop(self) -> None:
        """Send no more natively."""
        stop_posting(self)

    def close(self) -> None:
        """Receive no more, and send no more natively."""
        self.stop()
        self.mailbox.close()

    def forget(self, link: Link, ranks: set[int]) -> set[int]:
        """Forget a peer that is lost.

        Returns:
            those of its ranks, and of ``ranks``, with which no other peer sends, as numbers of the program.
        """
        numbers = [number for number in map(self.team.number_of, ranks) if number is not None]
        size = len(self.team.ranks)
        # A peer may have claimed any number.
        return {self.team.ranks[number] for number in self.mailbox.forget(link, numbers) if number < size}

    def lose(self, rank: int, error: ZerohopError) -> None:
        """End what waits for a rank of the program that is lost, if the group has it."""
        number = self.team.number_of(rank)
        if number is not None:
            self.losses[number] = self.team.named(copy_of(error), number)
            self.mailbox.lose(number)

    def restore(self, rank: int) -> None:
        """Let receives wait again for a rank of the program that was lost, and has been started again."""
        number = self.team.number_of(rank)
        if number is not None and self.losses.pop(number, None) is not None:
            self.mailbox.restore(number)

    def _number(self, secret: int) -> int:
        key = secret.to_bytes(_NUMBER_BYTES, "little")
        return int.from_bytes(hashlib.blake2b(self._label, key=key, digest_size=_NUMBER_BYTES).digest(), "little")
