"""Declares Reducing, the collectives that combine the arrays of all ranks, element by element."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from zerohop.group.collectives import local, nccl_requests, pairs, rings, trees
from zerohop.group.collectives.meetings import Meeting
from zerohop.group.collectives.moving import OWN_PART
from zerohop.group.collectives.nccl_library import check_type
from zerohop.group.collectives.operands import check_overlap, check_writable, numbers_of, put_bytes
from zerohop.group.collectives.plan import algorithm_of
from zerohop.group.collectives.rooted import Rooted
from zerohop.group.collectives.tags import OPERATORS, tag_of
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop.core.face import Operation
    from zerohop.group.collectives.call import Call
    from zerohop.group.collectives.operands import Numbers

T = TypeVar("T")


class Reducing(Rooted):
    """Reduces arrays of NumPy and tensors of torch.

    A sum of floats depends on the number of ranks, on the length, and on whether all are on one host, but not on who
    comes first, and all ranks have the same bits.
    """

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        *,
        out: Any = None,
        backend: str = "zerohop",
        timeout: float | None = None,
    ) -> Operation[Any]:
        """Reduce the arrays of all ranks into one at the root; value: that, or None elsewhere.

        Args:
            x: an array or a tensor, on the host or a GPU, C-contiguous, of one type and as many elements in all ranks.
            root: the rank that gets the result.
            op: ``"sum"``, ``"prod"``, ``"min"`` or ``"max"``, as NumPy has them: sums of bool are or, products and.
            out: where the result goes, which is ``x`` or shares no memory with it; only the root's is used. None: ``x``
                of the root. That of other ranks stays as it is.
            backend: as for ``broadcast``. With ``"nccl"`` the bits of sums, and NaN in min and max, are NCCL's.
            timeout: seconds; None: the Group's.

        Raises:
            Unsupported: this torch has no NCCL.
            TypeError: the elements have no such operator, such as the smallest of complex numbers.
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        root = self._root(root)
        at_root = self.rank == root
        nccl = self._by_nccl(backend, x=x, out=out if at_root else None)
        source, target = self._operands(x, out if at_root else None, op, written=at_root, nccl=nccl is not None)
        result = x if out is None else out
        nbytes = source.view.nbytes

        async def work(call: Call) -> Any:
            if nccl is not None:
                into = result if at_root else x
                await nccl.run(call, nbytes, lambda: nccl_requests.reduce(x, into, root, op))
            elif call.size == 1:
                await local.copy_numbers(call, target, source)
            else:
                await trees.reduce(call, op, source, target if at_root else None, root)
            return result if at_root else None

        tag = tag_of("reduce", op, source.dtype, root, nbytes, backend)
        return self._begin_collective(
            "reduce",
            tag,
            timeout,
            work,
            nbytes=nbytes,
            keep=(source, target),
            path=nccl,
            value=result if at_root else None,
            meeting=Meeting(
                int(tag),
                nbytes,
                root,
                partial(put_bytes, source.view),
                partial(target.reduce_bytes, op, slice(nbytes)) if at_root else None,
            ),
        )

    def allreduce(
        self, x: T, op: str = "sum", *, out: Any = None, backend: str = "zerohop", timeout: float | None = None
    ) -> Operation[T]:
        """Reduce the arrays of all ranks, and give all the result; value: the array that has it.

        Args:
            x: as for ``reduce``.
            op: as for ``reduce``.
            out: where the result goes, of the type of ``x`` and as long. It is ``x``, or shares no memory with it.
                None: ``x``.
            backend: as for ``reduce``.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        nccl = self._by_nccl(backend, x=x, out=out)
        source, target = self._operands(x, out, op, written=True, nccl=nccl is not None)
        nbytes = source.view.nbytes
        result: Any = x if out is None else out

        async def work(call: Call) -> T:
            algorithm = algorithm_of("allreduce", nbytes, call.size)
            if nccl is not None:
                await nccl.run(call, nbytes, lambda: nccl_requests.allreduce(x, result, op))
            elif algorithm == "doubling":
                await pairs.allreduce(call, op, source, target)
            elif algorithm == "ring":
                await rings.allreduce(call, op, source, target)
            else:
                await local.copy_numbers(call, target, source)
            return result  # type: ignore[no-any-return]  # out is of the type of x

        tag = tag_of("allreduce", op, source.dtype, nbytes=nbytes, backend=backend)
        return self._begin_collective(
            "allreduce",
            tag,
            timeout,
            work,
            nbytes=nbytes,
            keep=(source, target),
            path=nccl,
            value=result,
            meeting=Meeting(
                int(tag), nbytes, 0, partial(put_bytes, source.view), partial(target.reduce_bytes, op, slice(nbytes))
            ),
        )

    def reduce_scatter(
        self, x: Any, out: T, op: str = "sum", *, backend: str = "zerohop", timeout: float | None = None
    ) -> Operation[T]:
        """Reduce the arrays of all ranks, and give each rank its part of the result; value: ``out``.

        Args:
            x: as for ``reduce``, with a part for each rank; what ``out`` is no part of stays as it is.
            out: of the type of ``x``, with a part of its elements. It may be this rank's part of ``x``, but share no
                other memory with it.
            op: as for ``reduce``.
            backend: as for ``reduce``.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as ``barrier``.
        """
        nccl = self._by_nccl(backend, x=x, out=out)
        check_operator(op)
        self._check()
        source, target = (numbers_of(name, each, op, self._view) for name, each in (("x", x), ("out", out)))
        _check_type(source, nccl=nccl is not None)
        self._check_target(source, target, out, self.size)
        nbytes = target.view.nbytes
        check_overlap(source.view, target.view, self.rank * nbytes, OWN_PART)

        async def work(call: Call) -> T:
            if nccl is not None:
                await nccl.run(call, nbytes, lambda: nccl_requests.reduce_scatter(x, out, op))
            elif call.size == 1:
                await local.copy_numbers(call, target, source)
            else:
                await rings.reduce_scatter(call, op, source, target)
            return out

        mine = slice(self.rank * nbytes, (self.rank + 1) * nbytes)

        tag = tag_of("reduce_scatter", op, source.dtype, nbytes=nbytes, backend=backend)
        return self._begin_collective(
            "reduce_scatter",
            tag,
            timeout,
            work,
            nbytes=nbytes,
            keep=(source, target),
            path=nccl,
            value=out,
            meeting=Meeting(
                int(tag), nbytes, 0, partial(put_bytes, source.view), partial(target.reduce_bytes, op, mine)
            ),
        )

    def _operands(self, x: Any, out: Any, op: str, *, written: bool, nccl: bool) -> tuple[Numbers, Numbers]:
        """Return the elements of the argument, and those where the result goes."""
        check_operator(op)
        self._check()
        source = numbers_of("x", x, op, self._view)
        _check_type(source, nccl=nccl)
        if out is None or out is x:
            if written:
                check_writable("x", x, source.view, ". Fix: pass out=")
            return source, source
        target = numbers_of("out", out, op, self._view)
        self._check_target(source, target, out, 1)
        check_overlap(source.view, target.view, 0, ", or exactly x")
        return source, target

    def _check_target(self, source: Numbers, target: Numbers, out: Any, parts: int) -> None:
        if (source.dtype, source.view.device) != (target.dtype, target.view.device):
            mine, other = f"{source.dtype} of {source.view.device}", f"{target.dtype} of {target.view.device}"
            raise ValueError(f"x is {mine}, out is {other}, and they must be the same")
        if type(source.flat) is not type(target.flat):
            raise ValueError("x and out must both be arrays, or both be tensors")
        if len(source) != len(target) * parts:
            times = f"{parts} times " if parts > 1 else ""
            raise ValueError(f"x has {len(source)} elements, and needs {times}the {len(target)} of out")
        check_writable("out", out, target.view)


def _check_type(source: Numbers, *, nccl: bool) -> None:
    if nccl:
        check_type("x", source.dtype)


def check_operator(op: str) -> None:
    """Raise ValueError if there is no such operator."""
    if op not in OPERATORS:
        raise ValueError(f'op is "sum", "prod", "min" or "max", not {shown(str(op))}')
