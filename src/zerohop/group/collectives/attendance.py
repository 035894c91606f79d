"""Declares Attendance, by which a rank whose time is up learns which ranks have not called the collective.

A rank waits for few others in a collective, and those may wait for the rank that is really missing. So it asks all of
them whether they have called it. Their control threads answer, whatever the program does meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop.errors import PeerLost, ZerohopError
from zerohop.group.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any

    from zerohop.group.collectives.turns import Turns
    from zerohop.group.notices import Notices

# Seconds in which a rank must answer. It has to be reached in them, too.
_ANSWER_S: Final = 0.3
# Ranks of the largest group of which all are asked. In a larger one those are that were reached before: to reach a rank
# takes time of processors, and all whose time is up ask at about the same moment.
_MOST_ASKED: Final = 64
# An answer says which collective it is about, by these bits of its number.
_NUMBER_BITS: Final = (1 << 28) - 1


class Missing(NamedTuple):
    """Says which ranks are missing, and why.

    Attributes:
        ranks: the ranks.
        text: the words.
    """

    ranks: tuple[int, ...]
    text: str


class Attendance:
    """Asks, and answers, which collectives a rank has called. On the control thread."""

    def __init__(self, notices: Notices, turns: Turns, rank: int, size: int) -> None:
        """Use the notices of a group; ``rank`` and ``size``: those of the group."""
        self._notices = notices
        self._turns = turns
        self._others = [each for each in range(size) if each != rank]
        self._answers: dict[tuple[int, int], asyncio.Future[bool]] = {}
        notices.handlers[Notice.ASKING] = self._asked
        notices.handlers[Notice.CALLED] = functools.partial(self._answered, called=True)
        notices.handlers[Notice.NOT_CALLED] = functools.partial(self._answered, called=False)

    async def missing(self, number: int, kind: str) -> Missing:
        """Return the ranks that have not called a collective, or do not answer."""
        number &= _NUMBER_BITS
        reached = self._notices.reached()
        few = len(self._others) < _MOST_ASKED
        asked = [each for each in self._others if few or each in reached]
        # Those that the question has come to. Where there is no room for it, nothing is known of a rank.
        told: set[int] = set()
        answers = await _each_in_time([self._ask(each, number, told) for each in asked])
        called = dict(zip(asked, answers, strict=True))
        reached = self._notices.reached()
        absent = [rank for rank in asked if called[rank] is False]
        unheard = [rank for rank in asked if called[rank] is None and (rank in told or rank not in reached)]
        silent = [rank for rank in unheard if self._notices.has_arrived(rank)]
        texts = [
            _text([rank for rank in unheard if rank not in silent], "has not arrived", "have not arrived"),
            _text(absent, f"has not called {kind}", f"have not called {kind}"),
            _text(silent, "does not answer", "do not answer"),
        ]
        return Missing(tuple(sorted([*unheard, *absent])), "; ".join(filter(None, texts)))

    async def _ask(self, rank: int, number: int, told: set[int]) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[rank, number] = answer
        try:
            await self._notices.send(rank, Notice.ASKING, number, _ANSWER_S)
            told.add(rank)
            return await answer
        except PeerLost:
            told.add(rank)  # it does not answer any more
            raise
        finally:
            if self._answers.get((rank, number)) is answer:
                del self._answers[rank, number]

    def _answered(self, rank: int, number: int, *, called: bool) -> None:
        answer = self._answers.get((rank, number))
        if answer is not None and not answer.done():
            answer.set_result(called)

    def _asked(self, rank: int, number: int) -> None:
        notice = Notice.CALLED if self._turns.has_taken(number, _NUMBER_BITS) else Notice.NOT_CALLED
        self._notices.begin(functools.partial(self._answer, rank, notice, number))

    async def _answer(self, rank: int, notice: Notice, number: int) -> None:
        try:
            await self._notices.send(rank, notice, number, _ANSWER_S)
        except ZerohopError:  # whoever has asked is gone, or the group is closed
            pass


async def _each_in_time(asks: Iterable[Coroutine[Any, Any, bool]]) -> list[bool | None]:
    """Return what each gives; None for one that fails, or takes too long."""
    tasks = [asyncio.ensure_future(each) for each in asks]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=_ANSWER_S)
    finally:
        for task in tasks:
            task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return [each if isinstance(each, bool) else None for each in outcomes]


def _text(ranks: list[int], one: str, several: str) -> str:
    if len(ranks) <= 1:
        return "".join(f"rank {rank} {one}" for rank in ranks)
    return f"ranks {', '.join(map(str, ranks))} {several}"
