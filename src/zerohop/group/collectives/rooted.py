"""Declares Rooted, the collectives that take the parts of one array from all ranks, or give them to all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from zerohop.group.collectives import local, nccl_requests, trees
from zerohop.group.collectives.meetings import Meeting
from zerohop.group.collectives.moving import OWN_PART, Moving
from zerohop.group.collectives.operands import check_overlap, put_bytes, take_bytes, take_parts
from zerohop.group.collectives.plan import algorithm_of
from zerohop.group.collectives.tags import tag_of

if TYPE_CHECKING:
    from zerohop.core.face import Local, Operation
    from zerohop.group.collectives.call import Call

T = TypeVar("T")


class Rooted(Moving):
    """Passes the parts of an array between a root and all ranks."""

    def gather(
        self,
        x: Local,
        out: T | None = None,
        root: int = 0,
        *,
        backend: str = "zerohop",
        timeout: float | None = None,
    ) -> Operation[T | None]:
        """Copy the arrays of all ranks into ``out`` of the root, in the order of ranks; value: that, or None elsewhere.

        Args:
            x: as for ``broadcast``. At the root it may be its part of ``out``, but share no other memory with it.
            out: as many times larger as there are ranks; only the root's is used.
            root: the rank that gets all.
            backend: as for ``broadcast``.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        root, rank = self._root(root), self.rank
        nccl = self._by_nccl(backend, x=x, out=out if rank == root else None)
        source = self._bytes("x", x)
        each = source.nbytes
        target = None
        if rank == root:
            if out is None:
                raise ValueError("the root has to pass out, where the parts of all ranks go")
            target = self._bytes("out", out, written=True)
            self._check_parts("out", target, "x", each)
            check_overlap(source, target, rank * each, OWN_PART)
        algorithm = algorithm_of("gather", each, self.size)

        async def work(call: Call) -> T | None:
            if nccl is not None:
                into = out if rank == root else None
                await nccl.run(call, each, lambda: nccl_requests.gather(x, into, root, call.size))
                return into
            if algorithm == "tree":
                await trees.gather(call, source, target, root)
                return out if rank == root else None
            if target is not None:
                await local.copy(call, target[rank * each : (rank + 1) * each], source)
            if algorithm == "direct":
                await trees.gather_directly(call, source, target, root)
            return out if rank == root else None

        tag = tag_of("gather", root=root, nbytes=each, backend=backend)
        return self._begin_collective(
            "gather",
            tag,
            timeout,
            work,
            nbytes=each,
            keep=(x, source, out, target),
            path=nccl,
            value=out if rank == root else None,
            meeting=Meeting(
                int(tag),
                each,
                root,
                put=partial(put_bytes, source),
                take=None if target is None else partial(take_parts, target, slice(each)),
            ),
        )

    def scatter(
        self, x: Local | None, out: T, root: int = 0, *, backend: str = "zerohop", timeout: float | None = None
    ) -> Operation[T]:
        """Copy the parts of an array of the root into ``out`` of the ranks, in their order; value: ``out``.

        Args:
            x: as many times larger than ``out`` as there are ranks; only the root's is used, and others pass None.
            out: as ``x`` of ``broadcast``. At the root it may be its part of ``x``, but share no other memory with it.
            root: the rank that has all.
            backend: as for ``broadcast``.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        root, rank = self._root(root), self.rank
        nccl = self._by_nccl(backend, out=out, x=x if rank == root else None)
        target = self._bytes("out", out, written=True)
        each = target.nbytes
        source = None
        if rank == root:
            if x is None:
                raise ValueError("the root has to pass x, the parts of all ranks")
            source = self._bytes("x", x)
            self._check_parts("x", source, "out", each)
            check_overlap(source, target, rank * each, OWN_PART)
        algorithm = algorithm_of("scatter", each, self.size)

        async def work(call: Call) -> T:
            if nccl is not None:
                parts = x if rank == root else None
                await nccl.run(call, each, lambda: nccl_requests.scatter(parts, out, root, call.size))
                return out
            if algorithm == "tree":
                await trees.scatter(call, source, target, root)
                return out
            if source is not None:
                await local.copy(call, target, source[rank * each : (rank + 1) * each])
            if algorithm == "direct":
                await trees.scatter_directly(call, source, target, root)
            return out

        tag = tag_of("scatter", root=root, nbytes=each, backend=backend)
        return self._begin_collective(
            "scatter",
            tag,
            timeout,
            work,
            nbytes=each,
            keep=(x, source, out, target),
            path=nccl,
            value=out,
            meeting=Meeting(
                int(tag),
                each,
                root,
                put=None if source is None else partial(put_bytes, source),
                take=lambda slots: take_bytes(target, slots[root][rank * each :]),
            ),
        )
