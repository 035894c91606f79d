"""Makes the requests for NCCL: each function returns what hands one collective to a process group of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop.group.collectives.nccl_library import flat, flat_bytes

if TYPE_CHECKING:
    from zerohop.group.collectives.nccl_library import Issue

_OPERATORS: Final = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def _options(kind: str, *, root: int | None = None, op: str | None = None) -> Any:
    import torch.distributed as dist
    from torch._C import _distributed_c10d as of_torch  # some of these classes have no public name

    options = getattr(of_torch, kind)()
    if root is not None:
        options.rootRank = root
    if op is not None:
        options.reduceOp = getattr(dist.ReduceOp, _OPERATORS[op])
    if hasattr(options, "asyncOp"):
        options.asyncOp = True  # or no Work is returned
    return options


def broadcast(x: Any, root: int) -> Issue:
    """Copy the root's tensor into those of all."""
    tensor = flat_bytes(x)
    return lambda group: group.broadcast([tensor], _options("BroadcastOptions", root=root))


def reduce(x: Any, out: Any, root: int, op: str) -> Issue:
    """Reduce into ``out`` of the root; ``out`` of the others is their ``x``, which stays as it is."""
    source, target = flat(x), flat(out)

    def issue(group: Any) -> Any:
        _copy(target, source)
        return group.reduce([target], _options("ReduceOptions", root=root, op=op))

    return issue


def allreduce(x: Any, out: Any, op: str) -> Issue:
    """Reduce into ``out`` of all."""
    source, target = flat(x), flat(out)

    def issue(group: Any) -> Any:
        _copy(target, source)
        return group.allreduce([target], _options("AllreduceOptions", op=op))

    return issue


def reduce_scatter(x: Any, out: Any, op: str) -> Issue:
    """Reduce, and give each rank its part."""
    source, target = flat(x), flat(out)
    return lambda group: group._reduce_scatter_base(  # noqa: SLF001 - torch's own reduce_scatter_tensor calls it
        target, source, _options("ReduceScatterOptions", op=op)
    )


def allgather(x: Any, out: Any) -> Issue:
    """Put the tensors of all ranks behind each other."""
    source, target = flat_bytes(x), flat_bytes(out)
    return lambda group: group._allgather_base(  # noqa: SLF001 - torch's own all_gather_into_tensor calls it
        target, source, _options("AllgatherOptions")
    )


def gather(x: Any, out: Any, root: int, size: int) -> Issue:
    """Put the tensors of all ranks behind each other at the root; ``out`` of the others is None."""
    source = flat_bytes(x)
    parts = [] if out is None else [list(flat_bytes(out).chunk(size))]
    return lambda group: group.gather(parts, [source], _options("GatherOptions", root=root))


def scatter(x: Any, out: Any, root: int, size: int) -> Issue:
    """Give each rank its part of the root's tensor; ``x`` of the others is None."""
    target = flat_bytes(out)
    parts = [] if x is None else [list(flat_bytes(x).chunk(size))]
    return lambda group: group.scatter([target], parts, _options("ScatterOptions", root=root))


def alltoall(x: Any, out: Any) -> Issue:
    """Give each rank its part of the tensors of all."""
    source, target = flat_bytes(x), flat_bytes(out)
    return lambda group: group.alltoall_base(target, source, [], [], _options("AllToAllOptions"))


def _copy(target: Any, source: Any) -> None:
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)
