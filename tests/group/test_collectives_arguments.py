"""Arguments of collectives: types and operators, what is refused before anything is sent, and memory in common."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.groups import groups
from support.patience import PATIENCE_S
from zerohop.group.collectives import plan, tags
from zerohop.group.collectives.operands import numbers_of
from zerohop.group.collectives.plan import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import zerohop as zh


def in_all(ranks: list[zh.Group], call: Callable[[int, zh.Group], zh.Operation[Any]]) -> list[Any]:
    """Make a call in all ranks, and return the values."""
    return [operation.result(PATIENCE_S) for operation in [call(rank, group) for rank, group in enumerate(ranks)]]


def floats(count: int, dtype: Any = np.float32) -> Any:
    return np.ones(count, dtype)


ANY: Any = "text"
OBJECTS: Any = np.zeros(2, [("a", "O")])
READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False
ACROSS = np.zeros((4, 4))[:, 0]
WRONG: list[tuple[Callable[[zh.Group], Any], type[Exception], str]] = [
    (lambda g: g.broadcast(floats(4), 2), ValueError, "root must be from 0 to 1, not 2"),
    (lambda g: g.broadcast(READ_ONLY, 1), ValueError, "x is read-only"),
    (lambda g: g.broadcast("text"), TypeError, "str"),
    (lambda g: g.broadcast(ACROSS), ValueError, r"numpy.ascontiguousarray\(x\)"),
    (lambda g: g.allreduce(ACROSS), ValueError, r"numpy.ascontiguousarray\(x\)"),
    (lambda g: g.allreduce(READ_ONLY), ValueError, "read-only"),
    (lambda g: g.allreduce(floats(4), "mean"), ValueError, "op is"),
    (lambda g: g.allreduce([1, 2]), TypeError, "list"),
    (lambda g: g.allreduce(np.zeros(4, "O")), TypeError, "object"),
    (lambda g: g.allreduce(np.zeros(4, ">f4")), TypeError, "byte order"),
    (lambda g: g.allreduce(np.zeros(4, "M8[s]")), TypeError, r"datetime64.*view\(numpy.int64\)"),
    (lambda g: g.allreduce(np.zeros(4, "m8[7s]")), TypeError, r"timedelta64.*view\(numpy.int64\)"),
    (lambda g: g.allreduce(np.zeros(4, [("a", "i4")])), TypeError, r"view\(numpy.int64\)"),
    (lambda g: g.allreduce(np.ma.MaskedArray(np.zeros(4), mask=True)), TypeError, "masked"),
    (lambda g: g.exchange(OBJECTS), TypeError, "pointers"),
    (lambda g: g.exchange(OBJECTS["a"]), TypeError, "pointers"),
    (lambda g: g.allreduce(floats(4), out=floats(5)), ValueError, "x has 4 elements, and needs the 5 of out"),
    (lambda g: g.allreduce(floats(4), out=floats(4, np.int32)), ValueError, "float32 .*int32"),
    (lambda g: g.allreduce(floats(4), out=READ_ONLY.astype(np.float32)[::2]), ValueError, r"ascontiguousarray\(out\)"),
    (lambda g: g.reduce(floats(4), -1), ValueError, "root"),
    (lambda g: g.reduce_scatter(floats(4), floats(4)), ValueError, "needs 2 times the 4 of out"),
    (lambda g: g.allgather(floats(4), floats(4)), ValueError, "out has 16 bytes, and needs 2 times the 16 of x"),
    (lambda g: g.gather(floats(4)), ValueError, "root has to pass out"),
    (lambda g: g.scatter(None, floats(4)), ValueError, "root has to pass x"),
    (lambda g: g.scatter(floats(4), floats(4)), ValueError, "x has 16 bytes"),
    (lambda g: g.alltoall(np.zeros(3, np.uint8), np.zeros(3, np.uint8)), ValueError, "no 2 parts of one length"),
    (lambda g: g.exchange(ANY), TypeError, "str"),
    (lambda g: g.split(1 << 70), ValueError, "color"),
    (lambda g: g.split(ANY), TypeError, "color"),
    (lambda g: g.barrier(timeout=-1), ValueError, "timeout"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(two: list[zh.Group], number: int) -> None:
    """They are refused at once, and count as no call."""
    call, error, text = WRONG[number]
    with pytest.raises(error, match=text):
        call(two[0])
    for operation in [group.barrier() for group in two]:
        operation.result(PATIENCE_S)


OVER = np.zeros(12, np.float32)
OVERLAPS: dict[str, Callable[[zh.Group], Any]] = {
    "allreduce": lambda g: g.allreduce(OVER[:4], out=OVER[1:5]),
    "reduce": lambda g: g.reduce(OVER[:4], out=OVER[3:7]),
    "reduce_scatter": lambda g: g.reduce_scatter(OVER[:8], OVER[4:8]),
    "reduce_scatter beside the part": lambda g: g.reduce_scatter(OVER[:8], OVER[1:5]),
    "allgather": lambda g: g.allgather(OVER[3:7], OVER[:8]),
    "allgather of another part": lambda g: g.allgather(OVER[4:8], OVER[:8]),
    "gather": lambda g: g.gather(OVER[1:5], OVER[:8]),
    "scatter": lambda g: g.scatter(OVER[:8], OVER[7:11]),
    "alltoall": lambda g: g.alltoall(OVER[:8], OVER[:8]),
    "alltoall of ends": lambda g: g.alltoall(OVER[:8], OVER[4:]),
}


@pytest.mark.parametrize("what", OVERLAPS)
def test_overlaps_are_refused(two: list[zh.Group], what: str) -> None:
    with pytest.raises(ValueError, match=r"x and out share memory\. Fix: pass memory of its own"):
        OVERLAPS[what](two[0])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_rank_may_pass_its_own_part(tmp_path: Path, size: int) -> None:
    with groups(tmp_path, size) as ranks:
        for each in (1, 5, 9000, 200_000):
            for kind in ("allgather", "gather", "scatter", "reduce_scatter", "allreduce", "reduce"):
                whole = [np.arange(each * size) * (rank + 1) for rank in range(size)]
                before = [array.copy() for array in whole]
                part = [array[rank * each : (rank + 1) * each] for rank, array in enumerate(whole)]
                calls: dict[str, Callable[[int, zh.Group], Any]] = {
                    "allgather": lambda rank, g: g.allgather(part[rank], whole[rank]),  # noqa: B023
                    "gather": lambda rank, g: g.gather(part[rank], whole[rank]),  # noqa: B023
                    "scatter": lambda rank, g: g.scatter(whole[rank], part[rank]),  # noqa: B023
                    "reduce_scatter": lambda rank, g: g.reduce_scatter(whole[rank], part[rank]),  # noqa: B023
                    "allreduce": lambda rank, g: g.allreduce(whole[rank], out=whole[rank][:]),  # noqa: B023
                    "reduce": lambda rank, g: g.reduce(whole[rank], out=whole[rank][:]),  # noqa: B023
                }
                in_all(ranks, calls[kind])
                parts = [array[rank * each : (rank + 1) * each] for rank, array in enumerate(before)]
                total = sum(before[1:], start=before[0])
                for rank in range(size):
                    mine = slice(rank * each, (rank + 1) * each)
                    if kind == "allgather" or (kind == "gather" and rank == 0):
                        assert (whole[rank] == np.concatenate(parts)).all()
                    elif kind == "scatter":
                        assert (part[rank] == before[0][mine]).all()
                    elif kind == "reduce_scatter":
                        assert (part[rank] == total[mine]).all()
                        assert (np.delete(whole[rank], mine) == np.delete(before[rank], mine)).all()
                    elif kind == "allreduce" or rank == 0:
                        assert (whole[rank] == total).all()
                    else:
                        assert (whole[rank] == before[rank]).all()


def test_types_have_numbers_of_their_own() -> None:
    """Two types with one number would be reduced with each other, which no error would tell."""
    assert len(set(tags.TYPES)) == len(tags.TYPES) <= 64
    kinds = {np.dtype(each) for each in (*np.typecodes["All"], "m8[3s]", "m8[4s]", "M8[ns]", "V4", "S3", "U3", "i1,i2")}
    for dtype in kinds - {np.dtype("O")}:
        if dtype.name not in tags.TYPES:
            with pytest.raises(TypeError, match="cannot be reduced"):
                numbers_of("x", np.empty(1, dtype), "sum", memoryview)  # type: ignore[arg-type]


def test_tags_tell_kinds_operators_types_and_roots_apart() -> None:
    types = ("bool", "int32", "float32", "bfloat16", "complex64", "uint8", "float16", "float8_e5m2")
    cases = itertools.product(KINDS, tags.OPERATORS, types, range(8))
    made = {int(tags.tag_of(kind, op, dtype, root, 1000)) for kind, op, dtype, root in cases}
    assert len(made) == len(KINDS) * len(tags.OPERATORS) * len(types) * 8
    for bits in list(made)[:50]:
        assert int(tags.parsed(bits)) == bits
    for reason in tags.Failure:
        found = tags.parsed(tags.failure_tag(300, reason, 77))
        assert (found.number, found.failure) == (300 % 256, (reason, 77))


OPERATORS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
TYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 longdouble complex64 complex128"


def numbers(rank: int, count: int, dtype: Any) -> Any:
    chosen = np.random.default_rng(rank).uniform(-2, 2, count)
    if np.dtype(dtype).kind in "iub":
        return (chosen * 60).astype(np.int64).astype(dtype)
    return (chosen + 1j * chosen[::-1] if np.dtype(dtype).kind == "c" else chosen).astype(dtype)


def reduced_alike(found: list[Any], arrays: list[Any], op: str) -> None:
    # A longdouble has bytes that belong to no number.
    bits = {
        str(each.tolist()) if each.dtype.itemsize == 16 and each.dtype.kind == "f" else each.tobytes() for each in found
    }
    assert len(bits) == 1, "the ranks have different bits"
    expected = arrays[0]
    for array in arrays[1:]:
        expected = OPERATORS[op](expected, array)
    assert found[0].dtype == expected.dtype
    if expected.dtype.kind in "iub":
        assert (found[0] == expected).all()
    else:
        kind = np.complex128 if expected.dtype.kind == "c" else np.longdouble
        limit = 0.1 if expected.dtype.itemsize == 2 else 1e-4
        assert np.allclose(found[0].astype(kind), expected.astype(kind), rtol=limit, atol=limit)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_type_and_operator(tmp_path: Path, size: int) -> None:
    types: list[Any] = [np.dtype(name) for name in TYPES.split()]
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        types.append(np.dtype(ml_dtypes.bfloat16))
    with groups(tmp_path, size) as ranks:
        for dtype in types:
            for op in OPERATORS:
                if dtype.kind == "c" and op in ("min", "max"):
                    with pytest.raises(TypeError, match="no order"):
                        ranks[0].allreduce(np.zeros(1, dtype), op)
                    continue
                for nbytes in (400, plan.DOUBLING + 1600):
                    arrays = [numbers(rank, nbytes // dtype.itemsize, dtype) for rank in range(size)]
                    outs = [np.empty_like(array) for array in arrays]
                    in_all(ranks, lambda rank, group: group.allreduce(arrays[rank], op, out=outs[rank]))  # noqa: B023
                    reduced_alike(outs, arrays, op)


def test_special_numbers_are_the_same_in_all_ranks(tmp_path: Path) -> None:
    """NaN, infinities and zeros with signs, whose result depends on the order, and large ones that overflow."""
    special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 3e38, 1e-40], np.float32)
    with groups(tmp_path, 5) as ranks:
        for op in OPERATORS:
            for count in (64, 40_000):
                arrays = [np.random.default_rng(rank).choice(special, count) for rank in range(5)]
                in_all(ranks, lambda rank, group: group.allreduce(arrays[rank], op))  # noqa: B023
                assert len({each.tobytes() for each in arrays}) == 1


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
def test_tensors(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype, threads = getattr(torch, name), torch.get_num_threads()
    torch.set_num_threads(1)  # or it starts threads of its own, which look like leaked ones
    with ExitStack() as opened:
        opened.callback(torch.set_num_threads, threads)
        ranks = opened.enter_context(groups(tmp_path, 3))
        for shape in ((5, 7), (70_000,)):
            tensors = [(torch.arange(np.prod(shape)).reshape(shape) % 7 + rank).to(dtype) for rank in range(3)]
            total = tensors[0] + tensors[1] + tensors[2]
            copies = [tensor.clone() for tensor in tensors]
            for value in in_all(ranks, lambda rank, group: group.allreduce(copies[rank])):  # noqa: B023
                assert torch.equal(value, total)
            outs = [torch.zeros((3, *shape), dtype=dtype) for _ in ranks]
            in_all(ranks, lambda rank, group: group.allgather(tensors[rank], outs[rank]))  # noqa: B023
            assert all(torch.equal(out, torch.stack(tensors)) for out in outs)
            parts = [torch.zeros(shape, dtype=dtype) for _ in ranks]
            in_all(ranks, lambda rank, group: group.reduce_scatter(outs[rank], parts[rank], "max"))  # noqa: B023
            assert all(torch.equal(part, tensor) for part, tensor in zip(parts, tensors, strict=True))


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("count", [8, 100_000])
def test_a_matrix(two: list[zh.Group], count: int) -> None:
    matrices = [np.matrix(np.arange(count)) for _ in two]
    for operation in [group.allreduce(matrix) for group, matrix in zip(two, matrices, strict=True)]:
        assert (np.asarray(operation.result(PATIENCE_S)).ravel() == 2 * np.arange(count)).all()
    assert isinstance(matrices[0], np.matrix)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_tensors_that_are_refused(two: list[zh.Group]) -> None:
    torch = pytest.importorskip("torch")
    conjugate, plain = torch.ones(4, dtype=torch.complex64).conj(), torch.ones(4)
    negative: Any = torch.ones(1, dtype=torch.complex64).conj().imag
    sparse_of: Any = torch.sparse_coo_tensor
    sparse = sparse_of([[0]], [1.0], (4,), check_invariants=True)
    leaf = torch.ones(4, requires_grad=True)
    group = two[0]
    for x, error, text in (
        (conjugate, ValueError, "resolve_conj"),
        (negative, ValueError, "resolve_neg"),
        (sparse, TypeError, "to_dense"),
        (leaf, ValueError, r"detach\(\).*no_grad"),
    ):
        with pytest.raises(error, match=text):
            group.allreduce(x)
        with pytest.raises(error, match=text):
            group.broadcast(x, 1)
    for op, dtype in (("sum", torch.complex32), ("min", torch.complex64), ("sum", torch.float8_e5m2)):
        with pytest.raises(TypeError, match=str(dtype)):
            group.allreduce(torch.zeros(4, dtype=dtype), op)
    with pytest.raises(ValueError, match="out requires a gradient"):
        group.allreduce(plain, out=leaf)
    # What is only read may require one, and so may what is written to under no_grad.
    with torch.no_grad():
        operations = [group.allreduce(leaf), two[1].allreduce(torch.ones(4, requires_grad=True), out=torch.zeros(4))]
    for operation in operations:
        assert operation.result(PATIENCE_S).tolist() == [2.0] * 4
