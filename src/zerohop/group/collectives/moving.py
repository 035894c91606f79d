"""Declares Moving, the collectives that move bytes and compute nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from zerohop.config.checks import as_int, check_int
from zerohop.group.collectives import local, nccl_requests, pairs, rings, trees
from zerohop.group.collectives.delegating import Delegating
from zerohop.group.collectives.meetings import Meeting
from zerohop.group.collectives.operands import (
    check_order,
    check_overlap,
    check_writable,
    is_tensor,
    put_bytes,
    synchronize,
    take_bytes,
    take_parts,
)
from zerohop.group.collectives.plan import algorithm_of
from zerohop.group.collectives.tags import tag_of

if TYPE_CHECKING:
    from zerohop.core.face import Local, Memory, Operation, View
    from zerohop.group.collectives.call import Call

T = TypeVar("T")

OWN_PART: Final = ", or exactly this rank's part"


class Moving(Delegating):
    """Passes the bytes of arrays between all ranks."""

    def broadcast(self, x: T, root: int = 0, *, backend: str = "zerohop", timeout: float | None = None) -> Operation[T]:
        """Copy an array of the root into that of each rank; value: ``x``.

        Args:
            x: what ``Context.register`` takes, of the host or a device, of as many bytes in all ranks.
            root: the rank whose array it is.
            backend: ``"nccl"`` hands CUDA tensors to NCCL, through torch; the same in all ranks.
            timeout: seconds; None: the Group's.

        Raises:
            Unsupported: this torch has no NCCL.
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        root = self._root(root)
        nccl = self._by_nccl(backend, x=x)
        view = self._bytes("x", x, written=self.rank != root)
        algorithm = algorithm_of("broadcast", view.nbytes, self.size)

        async def work(call: Call) -> T:
            if nccl is not None:
                await nccl.run(call, view.nbytes, lambda: nccl_requests.broadcast(x, root))
            elif algorithm == "tree":
                await trees.broadcast(call, view, root)
            elif algorithm != "copy":
                await trees.broadcast_in_parts(call, view, root)
            return x

        tag = tag_of("broadcast", root=root, nbytes=view.nbytes, backend=backend)
        return self._begin_collective(
            "broadcast",
            tag,
            timeout,
            work,
            nbytes=view.nbytes,
            keep=(x, view),
            path=nccl,
            value=x,
            meeting=Meeting(
                int(tag),
                view.nbytes,
                root,
                put=partial(put_bytes, view) if self.rank == root else None,
                take=None if self.rank == root else lambda slots: take_bytes(view, slots[root]),
            ),
        )

    def allgather(self, x: Local, out: T, *, backend: str = "zerohop", timeout: float | None = None) -> Operation[T]:
        """Copy the arrays of all ranks into ``out``, in the order of ranks, in all ranks; value: ``out``.

        Args:
            x: as for ``broadcast``. It may be this rank's part of ``out``, but share no other memory with it.
            out: as many times larger as there are ranks.
            backend: as for ``broadcast``.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        nccl = self._by_nccl(backend, x=x, out=out)
        source, target = self._bytes("x", x), self._bytes("out", out, written=True)
        each = source.nbytes
        self._check_parts("out", target, "x", each)
        check_overlap(source, target, self.rank * each, OWN_PART)
        algorithm = algorithm_of("allgather", each, self.size)
        rank, size = self.rank, self.size

        async def work(call: Call) -> T:
            if nccl is not None:
                await nccl.run(call, each, lambda: nccl_requests.allgather(x, out))
                return out
            if algorithm == "bruck":
                await pairs.allgather(call, source, target)
                return out
            await local.copy(call, target[rank * each : (rank + 1) * each], source)
            if algorithm == "ring":
                await rings.allgather(call, target, [each * block for block in range(size + 1)])
            return out

        tag = tag_of("allgather", nbytes=each, backend=backend)
        return self._begin_collective(
            "allgather",
            tag,
            timeout,
            work,
            nbytes=target.nbytes,
            keep=(x, source, out, target),
            path=nccl,
            value=out,
            meeting=Meeting(int(tag), each, 0, partial(put_bytes, source), partial(take_parts, target, slice(each))),
        )

    def alltoall(self, x: Local, out: T, *, backend: str = "zerohop", timeout: float | None = None) -> Operation[T]:
        """Copy part i of ``x`` of rank j into part j of ``out`` of rank i, for all ranks; value: ``out``.

        Args:
            x: as for ``broadcast``, with a part for each rank.
            out: as long as ``x``, with which it shares no memory.
            backend: as for ``broadcast``.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        nccl = self._by_nccl(backend, x=x, out=out)
        source, target = self._bytes("x", x), self._bytes("out", out, written=True)
        each, rest = divmod(source.nbytes, self.size)
        if rest:
            raise ValueError(f"x has {source.nbytes} bytes, which are no {self.size} parts of one length")
        self._check_parts("out", target, "a part of x", each)
        check_overlap(source, target)
        mine = slice(self.rank * each, (self.rank + 1) * each)

        async def work(call: Call) -> T:
            if nccl is not None:
                await nccl.run(call, each, lambda: nccl_requests.alltoall(x, out))
                return out
            await local.copy(call, target[mine], source[mine])
            await pairs.alltoall(call, source, target)
            return out

        tag = tag_of("alltoall", nbytes=each, backend=backend)
        return self._begin_collective(
            "alltoall",
            tag,
            timeout,
            work,
            nbytes=source.nbytes,
            keep=(x, source, out, target),
            path=nccl,
            value=out,
            meeting=Meeting(int(tag), each, 0, partial(put_bytes, source), partial(take_parts, target, mine)),
        )

    def _root(self, root: int) -> int:
        return check_int("root", as_int("root", root), 0, self.size - 1)

    def _bytes(self, name: str, x: Local, *, written: bool = False) -> Memory | View:
        """Return the memory of an argument."""
        check_order(name, x)
        if is_tensor(x):
            synchronize(x)
        self._check()
        view = self._view(x)
        if written:
            check_writable(name, x, view)
        return view

    def _check_parts(self, name: str, whole: Memory | View, part: str, nbytes: int) -> None:
        if whole.nbytes != nbytes * self.size:
            have, need = f"{name} has {whole.nbytes} bytes", f"{self.size} times the {nbytes} of {part}"
            raise ValueError(f"{have}, and needs {need}")
