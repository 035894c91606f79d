"""Parts of a Memory by offset or by address, what may be done with them, and by what keys they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern

if TYPE_CHECKING:
    from support.fixtures import OpenContext

NBYTES = 4096
HUGE = 1 << 63
kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.cuda] if kind == "cuda" else [])
        for kind in KINDS
        if kind != "shared_memory"
    ],
)


def _memory(context: zh.Context, kind: Kind) -> zh.Memory:
    if kind == "numpy":
        return context.register(np.zeros(NBYTES, np.uint8))
    return context.alloc(NBYTES, device="host" if kind == "alloc" else f"{kind}:0")


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(Options())


@kinds
class TestPlaces:
    def test_by_offset_and_by_address(self, context: zh.Context, kind: Kind) -> None:
        memory = _memory(context, kind)
        memory.write_bytes(0, pattern(1, NBYTES).tobytes())
        for offset, nbytes in ((0, NBYTES), (0, 1), (1, NBYTES - 1), (100, 7), (NBYTES, 0), (0, 0), (17, 0)):
            for view in (memory.view(offset, nbytes), memory.view_at(memory.address + offset, nbytes)):
                assert (view.address, view.nbytes, len(view)) == (memory.address + offset, nbytes, nbytes)
                assert view.device == memory.device
                assert view.memory is memory
                assert view.read_bytes() == pattern(1, NBYTES).tobytes()[offset : offset + nbytes]
            rest = memory.view(offset)
            assert (rest.address, rest.nbytes) == (memory.address + offset, NBYTES - offset)
        assert memory.view().nbytes == NBYTES
        memory.close()

    def test_of_a_view(self, context: zh.Context, kind: Kind) -> None:
        """A part of a part lies within that part."""
        memory = _memory(context, kind)
        part = memory.view(100, 200)
        inner = part.view(50, 20)
        assert (inner.address, inner.nbytes) == (memory.address + 150, 20)
        assert inner.memory is memory
        for offset, nbytes in ((0, 201), (200, 1), (201, 0), (-1, 1)):
            with pytest.raises(ValueError, match="do not lie within 200"):
                part.view(offset, nbytes)
            with pytest.raises(ValueError, match="do not lie within 200"):
                part.view_at(part.address + offset, nbytes)
        memory.close()

    @pytest.mark.parametrize(
        ("offset", "nbytes"),
        [
            (NBYTES + 1, None),
            (NBYTES + 1, 0),
            (0, NBYTES + 1),
            (NBYTES, 1),
            (1, NBYTES),
            (-1, None),
            (-1, 0),
            (0, -1),
            (1, (1 << 64) - 1),
            (1, HUGE),
            ((1 << 64) - 1, 2),
            (HUGE, HUGE),
        ],
    )
    def test_outside(self, context: zh.Context, kind: Kind, offset: int, nbytes: int | None) -> None:
        """Also where the sum of offset and length would overflow 64 bits."""
        memory = _memory(context, kind)
        with pytest.raises(ValueError, match="do not lie within 4096"):
            memory.view(offset, nbytes)
        with pytest.raises(ValueError, match="do not lie within 4096"):
            memory.view_at(memory.address + offset, nbytes)
        memory.close()

    def test_contains(self, context: zh.Context, kind: Kind) -> None:
        memory = _memory(context, kind)
        begin, end = memory.address, memory.address + NBYTES
        within = [(begin, NBYTES), (begin, 0), (end, 0), (end - 1, 1), (begin + 7, 100)]
        outside = [
            (begin - 1, 1),
            (begin - 1, 0),
            (end, 1),
            (end + 1, 0),
            (begin, NBYTES + 1),
            (begin, -1),
            (begin, HUGE),
        ]
        assert all(memory.contains(*place) for place in within)
        assert not any(memory.contains(*place) for place in outside)
        assert not any(memory.contains(place, (1 << 64) - 1) for place in (begin, end))
        part = memory[100:200]
        assert part.contains(begin + 100, 100)
        assert part.contains(begin + 200)
        assert not part.contains(begin + 99, 2)
        assert not part.contains(begin + 199, 2)
        memory.close()

    @pytest.mark.parametrize("what", [None, "0", 0.0, b"0"])
    def test_no_number(self, context: zh.Context, kind: Kind, what: object) -> None:
        memory = _memory(context, kind)
        with pytest.raises(TypeError):
            memory.view(what)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            memory.view_at(what)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            memory.contains(what)  # type: ignore[arg-type]
        memory.close()


@kinds
class TestReadOnly:
    def test_a_view_that_was_made_so(self, context: zh.Context, kind: Kind) -> None:
        """Nothing writes into it: no transfer, no write_bytes, no array, no peer."""
        memory = _memory(context, kind)
        view = memory.view(0, 64, readonly=True)
        assert view.readonly
        assert not memory.readonly
        for part in (view, view[:8], view.view(8, 8)):
            assert part.readonly
            with pytest.raises(ValueError, match="read-only"):
                part.write_bytes(0, b"1")
            with pytest.raises(ValueError, match="at most"):
                part.share("rw")
            assert part.share("r").rights == "r"
            with pytest.raises(ValueError, match="read-only"):
                context.read(memory[:8].share("r"), part[:8])
        assert view.rights == "r"
        if view.device == "host":
            assert not view.numpy().flags.writeable
        else:
            assert view.__cuda_array_interface__["data"] == (view.address, True)
        memory.close()

    def test_as_what_is_read_into_where_the_way_is_known(self, context: zh.Context, kind: Kind) -> None:
        memory, source = _memory(context, kind), context.alloc(128)
        source.write_bytes(0, pattern(1, 128).tobytes())
        handle = source.share("r")
        assert context.read(handle[:64], memory[:64]).result(PATIENCE_S) == 64
        for part in (memory.view(0, 64, readonly=True), memory.view(0, 128, readonly=True)[:64]):
            with pytest.raises(ValueError, match="read-only"):
                context.read(handle[64:], part)
        assert memory.read_bytes(0, 64) == pattern(1, 128)[:64].tobytes()
        memory.close()
        source.close()

    def test_as_what_is_written(self, context: zh.Context, kind: Kind) -> None:
        memory, target = _memory(context, kind), context.alloc(64)
        memory.write_bytes(0, pattern(1, 64).tobytes())
        assert context.write(memory.view(0, 64, readonly=True), target.share("rw")).result(PATIENCE_S) == 64
        assert target.read_bytes() == pattern(1, 64).tobytes()
        memory.close()
        target.close()


@pytest.mark.parametrize("made", [bytes(NBYTES), memoryview(bytes(NBYTES))], ids=["bytes", "memoryview"])
def test_what_cannot_be_written_to(context: zh.Context, made: object) -> None:
    """A View of it is read-only however it is made."""
    memory = context.register(made)
    assert memory.readonly
    assert memory.view(0, 8).readonly
    assert memory[:8].readonly
    memory.close()


@kinds
class TestKeys:
    def test_the_remote_key_is_a_handle(self, context: zh.Context, kind: Kind) -> None:
        """The same each time, with all rights, of the range alone, and gone with the Memory."""
        memory, data = _memory(context, kind), pattern(1, 64)
        key = memory.remote_key()
        assert key == memory.remote_key()
        remote = zh.RemoteBuffer.from_bytes(key)
        assert (remote.nbytes, remote.rights, remote.device) == (NBYTES, "rw", memory.device)
        part = zh.RemoteBuffer.from_bytes(memory.view(100, 64).remote_key())
        assert part.nbytes == 64
        assert context.write(data, part).result(PATIENCE_S) == 64
        assert memory.read_bytes(100, 64) == data.tobytes()
        memory.close()
        with pytest.raises(zh.Closed):
            memory.remote_key()

    def test_of_what_may_only_be_read(self, context: zh.Context, kind: Kind) -> None:
        memory = _memory(context, kind)
        assert zh.RemoteBuffer.from_bytes(memory.view(readonly=True).remote_key()).rights == "r"
        assert zh.RemoteBuffer.from_bytes(memory.remote_key()).rights == "rw"
        memory.close()


def test_a_key_that_was_revoked(context: zh.Context) -> None:
    """The next one is another, and works."""
    memory, source = context.alloc(8), context.register(np.ones(8, np.uint8))
    before = zh.RemoteBuffer.from_bytes(memory.remote_key())
    memory.revoke()
    with pytest.raises(zh.AccessDenied):
        context.write(source, before).result(PATIENCE_S)
    after = zh.RemoteBuffer.from_bytes(memory.remote_key())
    assert after != before
    assert context.write(source, after).result(PATIENCE_S) == 8
    assert memory.read_bytes() == bytes([1] * 8)


def test_of_what_may_only_be_written(context: zh.Context) -> None:
    """A read-only View of it is nothing that a peer may be let at; a write from it is none of a peer's business."""
    memory, target = context.register(np.zeros(64, np.uint8), "w"), context.alloc(64)
    view = memory.view(readonly=True)
    assert (memory.rights, view.rights) == ("w", "")
    with pytest.raises(ValueError, match="there is no handle"):
        view.remote_key()
    for rights in ("r", "w", "rw"):
        with pytest.raises(ValueError, match="with nobody"):
            view.share(rights)
    assert context.write(view, target.share("rw")).result(PATIENCE_S) == 64


def test_registration_reused(context: zh.Context) -> None:
    """Of what is registered already, whole or in part, the keys are the same; of what is not, they are others."""
    block, other = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    first = context.register(block)
    again, part = context.register(block), context.register(block[100:200])
    different = context.register(other)
    assert not first.reused_registration
    assert again.reused_registration
    assert part.reused_registration
    assert not different.reused_registration
    assert first.local_key == again.local_key == part.local_key == part.view().local_key
    assert different.local_key != first.local_key
    for memory in (first, again, part, different):
        memory.close()
    # What is kept for a while after its last Memory costs nothing either, and was somebody's.
    assert context.register(block).reused_registration
    arrays = [np.zeros(1 << 16, np.uint8) for _ in range(3)]
    assert [memory.reused_registration for memory in context.register(arrays)] == [False] * 3
    assert [memory.reused_registration for memory in context.register(arrays[::-1])] == [True] * 3
