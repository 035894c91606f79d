"""The way past the page cache: what file systems want for it, what explain() says of it, and require="direct"."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop import storage
from zerohop.storage.alignment import USUAL, Alignment, alignment_in, alignment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zerohop.storage import File, Store

MIB = 1 << 20
PAGE = 4096
ON_DISK = "the folder for tests has no way past the page cache"


def alignment_here(folder: Path) -> Alignment:
    """What the folder's file system wants; the test is left out where it has no way past the cache."""
    with tempfile.TemporaryFile(dir=folder) as file:
        found = alignment_of(file.fileno())
    if found is None:
        pytest.skip(ON_DISK)
    return found


def facts(mask: int, memory: int, offset: int) -> bytes:
    """A struct statx."""
    filled = bytearray(256)
    struct.pack_into("I", filled, 0, mask)
    struct.pack_into("II", filled, 0x98, memory, offset)
    return bytes(filled)


@pytest.mark.parametrize(
    ("mask", "memory", "offset", "found"),
    [
        (0x2FFF, 4, 512, Alignment(4, 512)),
        (0x2FFF, 512, 4096, Alignment(512, 4096)),
        (0x2FFF, 4096, 65536, Alignment(4096, 65536)),
        (0x2FFF, 512, MIB, Alignment(512, MIB)),
        (0x2FFF, 512, 2 * MIB, None),  # native code's pieces are smaller
        (0x2FFF, 0, 0, None),  # the file has no such way
        (0x2FFF, 512, 0, None),
        (0x2FFF, 24, 512, None),
        (0x0FFF, 4, 512, USUAL),  # an older kernel, or a file system that does not say
    ],
)
def test_what_the_system_says(mask: int, memory: int, offset: int, found: Alignment | None) -> None:
    assert alignment_in(facts(mask, memory, offset)) == found


def test_files_in_memory_are_the_cache() -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        assert alignment_of(file.fileno()) is None
        assert alignment_of(10**6) == USUAL  # what opening does then tells why


def way(operation: zh.Operation[Any]) -> str:
    operation.result(PATIENCE_S)
    return operation.explain().way


def test_the_file_systems_own_alignment(
    local_store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    """Also what is no multiple of 4096 goes past the cache, where the file system takes it; every byte is right."""
    wanted = alignment_here(tmp_path)
    there = random_file("data", 8 * PAGE)
    step, start = wanted.offset, wanted.memory
    with local_store.open("data", direct=True).result() as file, local_store.iov(8 * PAGE) as block:
        assert file.alignment == wanted
        operation = file.read_into(block[start : start + 3 * step], step)
        assert way(operation) == "past the page cache"
        assert (block.memory.numpy()[start : start + 3 * step] == there[step : 4 * step]).all()
        # One byte off is right, too, and goes through the cache.
        for shift, offset, nbytes in ((start, step + 1, step), (start + 1, step, step), (start, step, step - 1)):
            operation = file.read_into(block[shift : shift + nbytes], offset)
            expected = "through" if shift == start or wanted.memory > 1 else "past"
            assert way(operation) == f"{expected} the page cache"
            assert (block.memory.numpy()[shift : shift + nbytes] == there[offset : offset + nbytes]).all()


def test_the_way_that_was_taken(local_store: Store, random_file: Callable[..., np.ndarray], tmp_path: Path) -> None:
    alignment_here(tmp_path)
    random_file("data", MIB + 10)
    engine = local_store.engine
    with local_store.iov(2 * MIB) as block, local_store.iov(MIB, "sim:0") as device:
        with local_store.open("data", direct=True).result() as file:
            past = file.read_into(block[:MIB])
            both = file.read_into(block, short=True)
            staged = file.read_into(device)
            assert way(past) == "past the page cache"
            assert str(past.explain()).startswith(f"file ({engine}) file→host past the page cache, 1.0 MiB in ")
            assert past.explain().direct
            assert way(both) == f"{MIB} bytes past the page cache and 10 through it"
            assert not both.explain().direct
            assert str(staged.explain()).startswith(f"file ({engine}) file→sim:0 staged, ")
            assert way(staged) == "staged, past the page cache"
            assert not staged.explain().direct
            assert dict(staged.explain().rejected)["GPUDirect Storage"] == "the memory is not that of an NVIDIA GPU"
            assert way(file.read_into(block, 2 * MIB, short=True)) == "no byte moved"
        with local_store.open("copy", "w", direct=False).result() as file:
            written = file.write_from(block[:MIB])
            assert way(written) == "through the page cache"
            assert not written.explain().direct
            assert way(file.read_into(block[:MIB])) == "through the page cache"
            assert way(file.read_into(device)) == "staged, through the page cache"


def test_bytes_that_the_cache_has_come_from_it(local_store: Store, random_file: Callable[..., np.ndarray]) -> None:
    random_file("data", MIB)
    with local_store.iov(MIB) as block, local_store.open("data").result() as file:
        assert way(file.read_into(block)) == "through the page cache"


@pytest.fixture(params=["auto", "threads"])
def strict(request: pytest.FixtureRequest, no_leaks: None, tmp_path: Path) -> Iterator[Store]:
    """A Store whose transfers must be direct."""
    alignment_here(tmp_path)
    with (
        Options(sim_devices=1).open() as context,
        storage.open_store(tmp_path, ctx=context, engine=request.param, require="direct") as store,
    ):
        yield store


class TestRequired:
    def test_direct_transfers(self, strict: Store, random_file: Callable[..., np.ndarray], tmp_path: Path) -> None:
        there = random_file("data", 3 * MIB)
        with strict.iov(3 * MIB) as block:
            with strict.open("data").result() as file:
                operation = file.read_into(block)
                assert way(operation) == "past the page cache"
                assert operation.explain().direct
                assert (block.memory.numpy() == there).all()
                assert file.read_many(block, [PAGE, 1], [PAGE, 0], [PAGE, 1]).result(PATIENCE_S) == PAGE
            with strict.open("copy", "w").result() as file:
                assert way(file.write_from(block)) == "past the page cache"
            fd = os.open(tmp_path / "copy", os.O_RDWR)
            try:
                with strict.file_of(fd).result() as file:
                    assert way(file.write_from(block[: 2 * MIB], 2 * MIB)) == "past the page cache"
            finally:
                os.close(fd)
        copied = np.fromfile(tmp_path / "copy", np.uint8)
        assert (copied == np.concatenate([there[: 2 * MIB], there[: 2 * MIB]])).all()

    @pytest.mark.parametrize(
        ("offset", "at", "nbytes", "said"),
        [
            (1, 0, PAGE, "offset 1 in the file is no multiple of "),
            (0, 0, PAGE + 1, f"{PAGE + 1} bytes are no multiple of "),
            (0, 1, PAGE, "the memory for it begins at no multiple of "),
            (MIB, 0, PAGE, f"bytes {MIB} to {MIB + PAGE} go behind the end of the file"),
        ],
    )
    def test_nothing_moves_otherwise(
        self,
        strict: Store,
        random_file: Callable[..., np.ndarray],
        tmp_path: Path,
        offset: int,
        at: int,
        nbytes: int,
        said: str,
    ) -> None:
        there = random_file("data", MIB + 10)
        with strict.iov(MIB) as block, strict.open("data", "r+").result() as file:
            if at and file.alignment is not None and file.alignment.memory == 1:
                pytest.skip("the file system takes every address")
            block.memory.numpy()[:] = 0xEE
            read = file.read_into(block[at : at + nbytes], offset, short=True)
            check_refused(read, said)
            # An aligned range before it does not help.
            check_refused(file.read_many(block, [0, offset], [PAGE, nbytes], [0, at], short=True), said)
            if "end" not in said:
                check_refused(file.write_from(block[at : at + nbytes], offset), said)
            for_read = strict.ring(4)
            with pytest.raises(zh.Unsupported, match=said):
                for_read.prepare(block[at : at + nbytes], file, offset)
            assert (block.memory.numpy() == 0xEE).all()
            assert file.native().moved == (0, 0)
        assert (np.fromfile(tmp_path / "data", np.uint8) == there).all()

    def test_a_ring(self, strict: Store, random_file: Callable[..., np.ndarray]) -> None:
        there = random_file("data", MIB)
        ring = strict.ring(8)
        with strict.iov(MIB) as block, strict.open("data").result() as file:
            ring.prepare_many(block, file, [PAGE, 0], [PAGE, PAGE], [0, PAGE])
            ring.submit()
            results = ring.wait(min_results=2, timeout=PATIENCE_S)
            assert [each.error for each in results] == [None, None]
            assert (block.memory.numpy()[:PAGE] == there[PAGE : 2 * PAGE]).all()
            assert file.native().moved == (2 * PAGE, 0)

    def test_memory_of_a_gpu(self, strict: Store, random_file: Callable[..., np.ndarray]) -> None:
        random_file("data", MIB)
        with strict.open("data").result() as file, strict.iov(MIB, "sim:0") as block:
            said = "between this file and sim:0 pass through host buffers"
            check_refused(file.read_into(block), said)
            with pytest.raises(zh.Unsupported, match=said):
                strict.ring(4).prepare(block, file, 0)
            assert file.native().moved == (0, 0)

    def test_a_file_is_asked_when_it_is_opened(self, no_leaks: None) -> None:
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
            storage.open_store(folder, require="direct") as store,
        ):
            path = Path(folder, "kept")
            path.write_bytes(b"kept")
            check_refused(store.open("kept", "w"), "the file system of 'kept' has no way past the page cache")
            assert path.read_bytes() == b"kept"
            for mode in ("w", "x"):
                check_refused(store.open("new", mode), "has no way past the page cache")
            assert not Path(folder, "new").exists()
            with path.open("rb") as file:
                check_refused(store.file_of(file.fileno()), "has no way past the page cache")

    def test_what_makes_no_sense(self, strict: Store, random_file: Callable[..., np.ndarray], tmp_path: Path) -> None:
        random_file("data", MIB)
        with pytest.raises(ValueError, match="direct=False: the store was opened with require"):
            strict.open("data", direct=False)
        with strict.open("data", direct=True).result() as file:
            assert file.size == MIB
        with pytest.raises(ValueError, match='require is "direct" or None'):
            storage.open_store(tmp_path, require="fast")  # type: ignore[arg-type]  # which is the point

    def test_a_server_is_refused(self, no_leaks: None, tmp_path: Path) -> None:
        with storage.Server(tmp_path) as server:
            with pytest.raises(zh.Unsupported, match="a server chooses how it reads its files") as caught:
                storage.open_store(server.url, require="direct")
            assert "on the server's machine" in caught.value.fix


def test_a_contexts_demand_is_about_host_buffers(
    no_leaks: None, random_file: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    random_file("data", MIB + 10)
    with (
        Options(sim_devices=1, require="direct").open() as context,
        storage.open_store(tmp_path, ctx=context) as store,
        store.open("data").result() as file,
    ):
        check_refused(file.read_into(context.alloc(MIB, "sim:0")), "pass through host buffers")
        assert file.read_into(np.empty(MIB + 10, np.uint8)).result(PATIENCE_S) == MIB + 10


def check_refused(operation: zh.Operation[int] | zh.Operation[File], said: str) -> None:
    with pytest.raises(zh.Unsupported, match=said) as caught:
        operation.result(PATIENCE_S)
    assert caught.value.fix
