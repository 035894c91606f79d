"""Says whether the messages that one rank has received are those that the rules of a Group allow.

The rules: messages of one rank arrive in their order; a message goes to the oldest receive that admits it; a receive
takes the oldest message that it admits; a message that a probe has found is nobody else's until the probe gives it
back, and then it is there again in its place. Messages of different ranks may arrive in any order. So what was
observed is right if there is an order of all arrivals that explains it. Each rule that was at work says that something
came before something else, and there is such an order if these do not go round in a circle.

A program's calls have numbers, their ticks. Arrivals have none: they are what an order is looked for.
"""

from __future__ import annotations

import graphlib
import itertools
from dataclasses import dataclass, field
from typing import Any, Final

# What a short message's sender does not wait for.
SHORT_BYTES: Final = 8192


@dataclass(eq=False)
class Claim:
    """One receive that a message went to.

    ``since``: the tick that gave it back to the mailbox; None: it has just arrived. ``observed``: when the program
    learned of it; None: never.
    """

    by: Asked
    since: int | None
    observed: int | None = None
    released: int | None = None


@dataclass(eq=False)
class Sent:
    """One message."""

    source: int
    tag: int
    nbytes: int
    at: int
    claims: list[Claim] = field(default_factory=list)

    @property
    def is_there(self) -> bool:
        """Tell whether no receive is known to have taken it for good."""
        return not self.claims or self.claims[-1].released is not None

    def __repr__(self) -> str:
        return f"<message of {self.nbytes} bytes of rank {self.source}, tag {self.tag}, sent at {self.at}>"


@dataclass(eq=False)
class Asked:
    """One receive, or one probe. ``truncated``: its message was too long for it."""

    source: int | None
    tag: int | None
    room: int
    at: int
    took: tuple[Sent, Claim] | None = None
    cancelled: int | None = None
    truncated: bool = False

    def admits(self, sent: Sent) -> bool:
        return self.source in (None, sent.source) and self.tag in (None, sent.tag)

    def __repr__(self) -> str:
        return f"<receive of rank {self.source}, tag {self.tag}, posted at {self.at}>"


class WrongError(AssertionError):
    """What was observed cannot be."""


class MailboxModel:
    """The messages to one rank in one group, and its receives. No two of one rank and tag have the same length."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int, int], Sent] = {}
        self.asked: list[Asked] = []

    def send(self, source: int, tag: int, nbytes: int, at: int) -> Sent:
        assert (source, tag, nbytes) not in self.sent
        sent = self.sent[source, tag, nbytes] = Sent(source, tag, nbytes, at)
        return sent

    def ask(self, source: int | None, tag: int | None, room: int, at: int) -> Asked:
        self.asked.append(Asked(source, tag, room, at))
        return self.asked[-1]

    def take(self, asked: Asked, source: int, tag: int, nbytes: int, at: int) -> Sent:
        """Note which message a receive has, or a probe has found."""
        sent = self.sent.get((source, tag, nbytes))
        if sent is None or not asked.admits(sent) or not sent.is_there:
            raise WrongError(f"{asked} has {nbytes} bytes of rank {source}, tag {tag}, which is {sent}")
        _claim(sent, asked, at)
        return sent

    def release(self, asked: Asked, at: int) -> None:
        """Note that what a probe has found was given back."""
        assert asked.took is not None
        asked.took[1].released = at

    def cancel(self, asked: Asked, at: int) -> None:
        """Note that a receive was cancelled before it had a message."""
        asked.cancelled = at

    def truncate(self, asked: Asked, reason: str) -> None:
        """Note that a message was too long for a receive; ``reason``: that of the error."""
        if asked.took is not None:
            raise WrongError(f"{asked} has {asked.took[0]}, whose memory was made for it: {reason}")
        if asked.source is not None and not reason.startswith(f"rank {asked.source}: "):
            raise WrongError(f"{asked} does not say whose message was too long: {reason}")
        asked.truncated = True

    def waits_for(self, asked: Asked) -> list[Sent]:
        """Return the messages that a receive could take."""
        return [sent for sent in self.sent.values() if sent.is_there and asked.admits(sent)]

    def may_be_gone(self, sent: Sent) -> bool:
        """Tell whether a message may have been too long for a receive."""
        return any(asked.truncated and asked.admits(sent) and asked.room < sent.nbytes for asked in self.asked)

    def check(self, failed: set[Sent]) -> None:
        """Raise WrongError unless the rules explain all that was observed; each message has gone somewhere.

        A message that nobody has was too long for a receive, or its transfer was cancelled; then the send is one of
        those that have ``failed``. Which receive it was is not observed, so one is looked for that explains it.
        """
        gone = [sent for sent in self.sent.values() if sent.is_there]
        takers = [asked for asked in self.asked if asked.took is None]
        must = [asked for asked in takers if asked.truncated]
        may = [[asked for asked in takers if _may_have_ended(asked, sent, failed)] for sent in gone]
        error = WrongError(f"nobody has {gone}, and {must} were too small")
        for choice in itertools.islice(itertools.product(*may), 2000):
            if len(set(map(id, choice))) == len(choice) and all(asked in choice for asked in must):
                for sent, asked in zip(gone, choice, strict=True):
                    _claim(sent, asked)
                try:
                    self._explain()
                except WrongError as wrong:
                    error = wrong
                else:
                    return
                for sent, asked in zip(gone, choice, strict=True):
                    sent.claims.pop()
                    asked.took = None
        raise error

    def _explain(self) -> None:
        """Raise WrongError unless there is an order of arrivals that explains which receive has which message."""
        order = _Order()
        last: dict[int, Sent] = {}
        for sent in self.sent.values():
            order.add(sent.at, sent, "it was sent")
            if sent.source in last:
                order.add(last[sent.source], sent, "they are of one rank")
            last[sent.source] = sent
            for claim in sent.claims:
                if claim.observed is not None:
                    order.add(sent, claim.observed, "it was observed")
                for asked in self.asked:
                    if asked.at < claim.by.at and asked.admits(sent):
                        _explain_older(order, asked, sent, claim)
        order.check()


def _explain_older(order: _Order, asked: Asked, sent: Sent, claim: Claim) -> None:
    """Add why a receive did not take a message, though it admits it and is older than the one that did.

    Messages and receives are paired a moment after both are there. A receive may be cancelled in that moment, or a
    message given back, and the receive takes the older one.
    """
    why = f"{claim.by} has {sent}, and not {asked}, which is older"
    if asked.took is None:
        if asked.cancelled is None or (claim.observed is not None and claim.observed < asked.cancelled):
            raise WrongError(f"{why} and waits")
        return
    other, taken = asked.took
    if claim.since is None or asked.at > claim.since:
        order.add(other, sent, why)  # it took an older one
    elif taken.since is None:
        order.add(other, claim.since, why)  # it had one when this one was given back
    elif taken.since > claim.since:
        order.add(other, sent, why)


def _claim(sent: Sent, asked: Asked, observed: int | None = None) -> None:
    claim = Claim(asked, sent.claims[-1].released if sent.claims else None, observed)
    sent.claims.append(claim)
    asked.took = sent, claim


def _may_have_ended(asked: Asked, sent: Sent, failed: set[Sent]) -> bool:
    """Tell whether a message may be gone with this receive."""
    if not asked.admits(sent):
        return False
    if asked.truncated:
        return asked.room < sent.nbytes
    return asked.cancelled is not None and sent.nbytes > SHORT_BYTES and sent in failed


class _Order:
    """What came before what: ticks, and arrivals of messages."""

    def __init__(self) -> None:
        self._why: dict[tuple[Any, Any], str] = {}

    def add(self, first: Sent | int, second: Sent | int, why: str) -> None:
        if first == second:
            raise WrongError(why)
        self._why.setdefault((first, second), why)

    def check(self) -> None:
        """Raise WrongError if it goes round in a circle."""
        ticks = sorted({each for pair in self._why for each in pair if isinstance(each, int)})
        for pair in itertools.pairwise(ticks):
            self._why.setdefault(pair, "time")
        before: dict[Any, set[Any]] = {}
        for first, second in self._why:
            before.setdefault(second, set()).add(first)
        try:
            graphlib.TopologicalSorter(before).prepare()
        except graphlib.CycleError as error:
            circle = error.args[1]
            steps = [f"{each} -> {then}: {self._why[each, then]}" for each, then in itertools.pairwise(circle)]
            raise WrongError("no order of arrivals explains this:\n" + "\n".join(steps)) from None
