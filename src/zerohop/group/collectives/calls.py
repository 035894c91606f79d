"""Declares Collectives, what all ranks of a group do together."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.config.checks import as_int, check_int
from zerohop.group.collectives import pairs
from zerohop.group.collectives.exchanging import exchange
from zerohop.group.collectives.explaining import Explaining
from zerohop.group.collectives.meetings import Meeting
from zerohop.group.collectives.ordered import Weakly
from zerohop.group.collectives.tags import number_bits, tag_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from typing_extensions import Self

    from zerohop.core.face import Operation
    from zerohop.group.collectives.call import Call

# The message of split: whether there is a color, the color and the key.
_CHOICE: Final = struct.Struct("<?qq")
_MOST: Final = (1 << 63) - 1
_BARRIER: Final = tag_of("barrier")
_BARRIER_BITS: Final = int(_BARRIER)
_MEETING: Final = Meeting(_BARRIER_BITS)


class Collectives(Explaining):
    """Does what all ranks of a group do together.

    All ranks call the same methods in the same order, with arguments that agree; what is called first begins first. If
    one fails, later ones of this group fail at once: go on in a sub-group of the ranks that are left.
    """

    if TYPE_CHECKING:  # Group, a subclass, has it

        def _subgroup_of(self, members: tuple[int, ...], label: str, timeout: float | None) -> Any: ...

    def barrier(self, *, timeout: float | None = None) -> Operation[None]:
        """Wait until all ranks have called this.

        Args:
            timeout: seconds; None: the Group's.

        Raises:
            Closed: the Group is closed. From the Operation: PeerLost, whose text names the rank that is gone;
                DeadlineExceeded, whose text and ``ranks`` name those that have not called this, or do not answer;
                ProtocolError: a rank calls something else, or with arguments that do not agree; ZerohopError: an
                earlier collective of this group has failed.
        """
        return self._begin_collective(
            "barrier", _BARRIER, timeout, pairs.barrier, meeting=_MEETING, express=self._barrier_at_once
        )

    def _barrier_at_once(
        self, number: int, timeout: float | None
    ) -> Callable[[Call], Coroutine[Any, Any, None]] | None:
        """Take the steps of ``pairs.barrier``; return those that are left."""
        size, rank, tag = self.size, self.rank, _BARRIER_BITS | number_bits(number)
        distance = 1
        while distance < size:
            begun = self._signal_at_once((rank + distance) % size, (rank - distance) % size, tag, timeout)
            if begun is not True:
                return functools.partial(pairs.barrier, distance=distance, begun=begun)
            distance *= 2
        return None

    def exchange(self, data: bytes, *, timeout: float | None = None) -> Operation[list[bytes]]:
        """Give all ranks the bytes of all, which may differ in length; value: a list in the order of ranks.

        It serves for what is short, such as handles.

        Args:
            data: bytes, or another object with the buffer protocol.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, Closed: at once. From the Operation: as ``barrier``.
        """
        given = memoryview(data)
        if "O" in given.format and np.asarray(given).dtype.hasobject:
            raise TypeError("data holds pointers to Python objects, not data. Fix: pass pickle.dumps(...) of them")
        mine = bytes(given)

        async def work(call: Call) -> list[bytes]:
            return await exchange(call, mine)

        return self._begin_collective("exchange", tag_of("exchange"), timeout, work, nbytes=len(mine))

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Operation[Self | None]:
        """Make a group of the ranks with each color; value: that of this rank, or None without a color.

        Args:
            color: an int of 63 bits or less; None: this rank is in no group.
            key: orders the ranks of the new group; those with the same key are in the order of this group.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        chosen = 0 if color is None else check_int("color", as_int("color", color), -_MOST, _MOST)
        key = check_int("key", as_int("key", key), -_MOST, _MOST)
        mine = _CHOICE.pack(color is not None, chosen, key)
        subgroup_of = Weakly(self._subgroup_of)

        async def work(call: Call) -> Any:
            choices = [_CHOICE.unpack(each) for each in await exchange(call, mine)]
            if color is None:
                return None
            ranks = [rank for rank, (there, other, _) in enumerate(choices) if there and other == chosen]
            members = tuple(sorted(ranks, key=lambda rank: (choices[rank][2], rank)))
            # All ranks count their collectives alike, also if they make other groups meanwhile.
            return subgroup_of(members, f"split {call.number} color {chosen}", None)

        return self._begin_collective("split", tag_of("split"), timeout, work)
