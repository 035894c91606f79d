"""Memory of another process, which files are read into and written from by this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from zerohop import storage

if TYPE_CHECKING:
    from pathlib import Path

    from support.buffers import Kind
    from support.fixtures import OpenContext, StartPeer

NBYTES = 3 * MIB + 5
PAGE = 4096


@pytest.mark.parametrize("kind", ["alloc", "sim"])
def test_there_and_back(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, kind: Kind) -> None:
    """Every byte, as an Operation and through a Ring, of slices, too; and the owner's processor does nothing."""
    there = pattern(4, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    peer = start_peer(Options())
    number = peer.call(Service.new, kind, NBYTES)
    handle = peer.call(Service.share, number, "rw")
    with storage.open_store(tmp_path, ctx=open_context(Options())) as store:
        with store.import_iov(handle).result(PATIENCE_S) as iov, store.open("data").result() as file:
            assert (iov.nbytes, iov.is_device, iov.readonly) == (NBYTES, kind == "sim", False)
            assert iov.export() == handle
            assert file.read_into(iov).result(PATIENCE_S) == NBYTES
            assert peer.call(Service.get, number, 0, NBYTES) == there.tobytes()
            ring = store.ring(4)
            ring.prepare_many(iov[7 : 7 + 3 * PAGE], file, [1, 100], [PAGE, 3], [2 * PAGE, 5], [8, 9])
            ring.submit()
            assert {each.userdata for each in ring.wait(min_results=2, timeout=PATIENCE_S)} == {8, 9}
            expected = there.copy()
            expected[7 + 2 * PAGE : 7 + 3 * PAGE] = there[1 : 1 + PAGE]
            expected[12:15] = there[100:103]
            assert peer.call(Service.get, number, 0, NBYTES) == expected.tobytes()
            with store.open("copy", "w").result() as copy:
                assert copy.write_from(iov[3:]).result(PATIENCE_S) == NBYTES - 3
        assert (tmp_path / "copy").read_bytes() == expected[3:].tobytes()
        with store.open("data").result() as file, pytest.raises(zh.Closed, match="the ImportedIov is closed"):
            file.read_into(iov)


def test_rights_and_the_owners_end(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(PAGE))
    peer = start_peer(Options())
    number = peer.call(Service.new, "alloc", PAGE)
    with storage.open_store(tmp_path, ctx=open_context(Options())) as store:
        reading = store.import_iov(peer.call(Service.share, number, "r")).result(PATIENCE_S)
        writing = store.import_iov(peer.call(Service.share, number, "w")).result(PATIENCE_S)
        with store.open("data", "r+").result() as file:
            with pytest.raises(ValueError, match="read-only memory"):
                file.read_into(reading)
            with pytest.raises(zh.AccessDenied, match="rights"):
                file.write_from(writing).result(PATIENCE_S)
            assert file.write_from(reading).result(PATIENCE_S) == PAGE
            assert file.read_into(writing).result(PATIENCE_S) == PAGE
            with pytest.raises(ValueError, match="does not lie within"):
                file.read_many(writing, [0], [PAGE], [1])
            peer.call(Service.close_memory, number)
            with pytest.raises(zh.AccessDenied, match="revoked"):
                file.read_into(writing).result(PATIENCE_S)
        with pytest.raises(zh.AccessDenied):
            store.import_iov(reading.export("r")).result(PATIENCE_S)
    peer.call(Service.drop, number)


def test_an_owner_that_dies(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(8 * MIB))
    peer = start_peer(Options())
    number = peer.call(Service.new, "alloc", 8 * MIB)
    with storage.open_store(tmp_path, ctx=open_context(Options())) as store:
        iov = store.import_iov(peer.call(Service.share, number, "rw")).result(PATIENCE_S)
        with store.open("data").result() as file:
            operations = [file.read_into(iov) for _ in range(20)]
            peer.kill()
            for operation in operations:
                try:
                    operation.result(PATIENCE_S)
                except zh.ZerohopError:
                    pass
            eventually(lambda: isinstance(file.read_into(iov).exception(PATIENCE_S), zh.ZerohopError), "it goes on")


def test_refused(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    peer = start_peer(Options())
    array = peer.call(Service.new, "numpy", PAGE)
    context = open_context(Options())
    with storage.open_store(tmp_path, ctx=context) as store:
        with pytest.raises(zh.Unsupported, match="does not reach the memory by itself, but over"):
            store.import_iov(peer.call(Service.share, array, "rw")).result(PATIENCE_S)
        with pytest.raises(zh.ProtocolError, match="malformed RemoteBuffer"):
            store.import_iov(b"nothing")
        with pytest.raises(TypeError):
            store.import_iov("text")  # type: ignore[arg-type]  # what the test is about
    server = storage.Server(tmp_path, ctx=open_context(Options()))
    with (
        server,
        storage.open_store(server.url, ctx=context) as remote,
        pytest.raises(zh.Unsupported, match="that asks"),
    ):
        remote.import_iov(b"nothing")
    with pytest.raises(zh.Closed):
        store.import_iov(b"nothing")
