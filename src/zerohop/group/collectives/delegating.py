"""Declares Delegating, which hands collectives of CUDA tensors to NCCL where the caller asks for it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from zerohop.core.face import Explanation
from zerohop.group.collectives.nccl import Communicator
from zerohop.group.collectives.ordered import Ordered, Weakly
from zerohop.group.collectives.tags import BACKENDS
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Operation
    from zerohop.group.channel import Team
    from zerohop.group.collectives.call import Call
    from zerohop.group.collectives.nccl_library import Issue
    from zerohop.group.members import Members


class ByNccl(NamedTuple):
    """Carries out one collective by NCCL. It is also the path that its Operation explains.

    Attributes:
        communicator: that of the group.
        device: the GPU of this rank.
        size: the number of ranks.
        peer: empty; it is no operation with one peer.
    """

    communicator: Communicator
    device: Any
    size: int
    peer: str = ""

    @property
    def explanation(self) -> Explanation:
        """Return that NCCL does the work."""
        others = f"GPUs of {self.size} ranks" if self.size > 1 else str(self.device)
        return Explanation("nccl", "communicator", True, str(self.device), others, ())

    def endpoint(self) -> None:
        """Return None: no lane carries it out."""

    async def run(self, call: Call, nbytes: int, request: Callable[[], Issue]) -> None:
        """Carry out the steps; ``request`` makes what is handed to NCCL, unless there are no bytes."""
        await self.communicator.run(call, self.device, request() if nbytes else None)


class Delegating(Ordered):
    """Has one communicator of NCCL, which is connected by the first collective that uses it."""

    def _open(self, members: Members, team: Team) -> None:
        self._nccl = Communicator(Weakly(self._on_thread))
        super()._open(members, team)

    def _close_channels(self) -> None:
        self._nccl.abort()
        super()._close_channels()

    def _by_nccl(self, backend: str, **tensors: Any) -> ByNccl | None:
        """Return what carries a collective out if it is NCCL; the tensors that are None are not used.

        Raises:
            ValueError: no such backend; the tensors are on different GPUs, or not on that of the group's communicator.
            TypeError: NCCL does not take them.
            Unsupported: this torch has no NCCL.
            Closed: the Group is closed.
        """
        if backend not in BACKENDS:
            raise ValueError(f'backend is "zerohop" or "nccl", not {shown(str(backend))}')
        if backend == "zerohop":
            return None
        self._check()
        used = {name: x for name, x in tensors.items() if x is not None}
        for name, x in used.items():
            self._nccl.check(name, x)
        devices = [x.device for x in used.values()]
        if len(set(devices)) > 1:
            raise ValueError(f"x and out are on {' and '.join(map(str, devices))}, and must be on one GPU")
        return ByNccl(self._nccl, devices[0], self.size)

    def _on_thread(self, function: Callable[[], Any], deadline_ns: int) -> Operation[Any]:
        """Call a function that blocks on a thread of its own."""
        return self._defer("nccl", deadline_ns, functools.partial(Weakly(self._in_thread), function))
