"""Servers in processes of their own: what they promise, refuse and survive."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.peer import Job, Peer, RemoteError
from support.service import Service
from support.sizes import MIB
from support.stores import open_remote, served
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.fixtures import OpenContext, StartPeer
    from zerohop.storage.file import Mode

WAYS = pytest.mark.parametrize("providers", [None, ("tcp",)], ids=["mapped", "tcp"])
PAGE = 4096
MODES: tuple[Mode, ...] = ("r", "w")


@WAYS
@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_every_byte_between_processes(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None, device: str
) -> None:
    """Unaligned ranges of allocated memory, arrays and devices, as one Operation and through a Ring."""
    peer, url = served(start_peer, tmp_path, providers)
    there = pattern(3, 5 * MIB + 77)
    (tmp_path / "data").write_bytes(there.tobytes())
    with open_remote(url, open_context(Options(providers=providers, sim_devices=1))) as store:
        iov = store.iov(6 * MIB, device)
        with store.open("data").result() as file:
            assert file.size == there.size
            part = iov[5 : 5 + there.size]
            operation = file.read_into(part)
            assert operation.result(PATIENCE_S) == there.size
            assert (np.frombuffer(part.read_bytes(), np.uint8) == there).all()
            offsets, lengths = np.array([7, 3 * MIB, 0]), np.array([PAGE + 1, MIB + 9, 3])
            at = np.array([2 * MIB, 1, 5 * MIB])
            assert file.read_many(iov, offsets, lengths, at).result(PATIENCE_S) == lengths.sum()
            for offset, length, place in zip(offsets, lengths, at, strict=True):
                assert iov[place : place + length].read_bytes() == there[offset : offset + length].tobytes()
        with store.open("copy", "w").result() as copy:
            assert copy.write_from(iov[1 : 1 + MIB + 9], 11).result(PATIENCE_S) == MIB + 9
            copy.fsync().result(PATIENCE_S)
        if device == "host" and providers is None:
            assert str(operation.explain()).startswith("server (mapped) file→host direct, 5.0 MiB in ")
        statistics = peer.call(Service.served)
        assert statistics.clients == 1
        assert statistics.bytes_written == MIB + 9
        assert statistics.memory_in_use == 0
    written = np.fromfile(tmp_path / "copy", np.uint8)
    assert (written[11:] == there[3 * MIB : 4 * MIB + 9]).all()
    assert not written[:11].any()


@WAYS
def test_a_server_that_dies(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None
) -> None:
    """Each operation ends with PeerLost, a ring's, too; and another server works."""
    peer, url = served(start_peer, tmp_path, providers)
    with (tmp_path / "data").open("wb") as file:
        file.truncate(1 << 30)
    context = open_context(Options(providers=providers))
    store = open_remote(url, context)
    opened = store.open("data").result(PATIENCE_S)
    target = np.zeros(64 * MIB, np.uint8)
    ring = store.ring(8)
    operations = [opened.read_into(target, place * 64 * MIB, timeout=60) for place in range(8)]
    ring.prepare(target[:MIB], opened, 0, 3)
    ring.submit()
    peer.kill()
    ended = 0
    for operation in operations:
        try:
            operation.result(PATIENCE_S)
        except zh.PeerLost:
            ended += 1
    assert ended
    (result,) = ring.wait(timeout=PATIENCE_S)
    assert result.userdata == 3
    assert result.error is None or isinstance(result.error, zh.PeerLost)
    for refused in (lambda: opened.read_into(target), lambda: store.listdir(), lambda: store.open("data")):
        with pytest.raises(zh.PeerLost):
            refused().result(PATIENCE_S)
    opened.close()
    store.close()
    _, another = served(start_peer, tmp_path, providers)
    with open_remote(another, context) as again, again.open("data").result() as file:
        assert file.read_into(target[:MIB]).result(PATIENCE_S) == MIB


@WAYS
@pytest.mark.parametrize("end", ["kill", "leave"])
def test_clients_that_go(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None, end: str
) -> None:
    """What a server kept for a client is given back, and the other client goes on."""
    there = open_context(Options(providers=providers))
    (tmp_path / "data").write_bytes(pattern(1, 8 * MIB).tobytes())
    with storage.Server(tmp_path, ctx=there) as server:
        with open_remote(server.url, open_context(Options(providers=providers))) as store:
            file = store.open("data").result(PATIENCE_S)
            for _ in range(3):
                peer = start_peer(Options(providers=providers))
                peer.call(Service.use_store, server.url)
                peer.call(Service.open_file, "data")
                assert server.statistics().files == 2
                work = peer.start(Service.read_file, 8 * MIB, 3 if end == "leave" else 1 << 30)
                target = np.zeros(8 * MIB, np.uint8)
                assert file.read_into(target).result(PATIENCE_S) == 8 * MIB
                if end == "kill":
                    peer.kill()
                else:
                    work.result()
                    peer.call(Service.leave_store)
                    peer.clear()
                eventually(lambda: server.statistics().files == 1, "the client's file stays open")
                assert file.read_into(target).result(PATIENCE_S) == 8 * MIB
                assert (target == pattern(1, 8 * MIB)).all()
            file.close()
        eventually(lambda: server.statistics().clients == 0, "a client stays")
        assert server.statistics().memory_in_use == 0


def test_a_client_that_stands_still(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """Its share of the server's memory may be taken, and the others' is not."""
    (tmp_path / "data").write_bytes(pattern(1, 64 * MIB).tobytes())
    there = open_context(Options(providers=("tcp",)))
    with storage.Server(tmp_path, ctx=there, memory=8 * MIB) as server:
        slow = start_peer(Options(providers=("tcp",)))
        slow.call(Service.use_store, server.url)
        slow.call(Service.open_file, "data")
        work = slow.start(Service.read_file, 64 * MIB, 1 << 30, timeout=60)
        eventually(lambda: server.statistics().bytes_read > 0, "it does not begin")
        slow.stop()
        with open_remote(server.url, open_context(Options(providers=("tcp",)))) as store:
            target = np.zeros(16 * MIB, np.uint8)
            with store.open("data").result(PATIENCE_S) as file:
                for _ in range(4):
                    assert file.read_into(target).result(PATIENCE_S) == 16 * MIB
            assert (target == pattern(1, 64 * MIB)[: 16 * MIB]).all()
            assert server.statistics().memory_in_use <= 8 * MIB
        slow.kill()
        del work
        eventually(lambda: server.statistics().memory_in_use == 0, "its memory is not given back")


def test_clients_that_stand_still_and_hold_every_block(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives one of them up, and tells it so, when another client can get no block."""
    monkeypatch.setattr("zerohop.storage.serving.blocks._PATIENCE_S", 0.5)
    monkeypatch.setattr("zerohop.storage.serving.blocks._LEAST_COUNT", 2)
    (tmp_path / "data").write_bytes(pattern(1, 64 * MIB).tobytes())
    there = open_context(Options(providers=("tcp",)))
    with storage.Server(tmp_path, ctx=there, memory=8 * MIB) as server:
        stopped: list[tuple[Peer, Job[Any]]] = []
        for _ in range(2):
            slow = start_peer(Options(providers=("tcp",)))
            slow.call(Service.use_store, server.url)
            slow.call(Service.open_file, "data")
            work = slow.start(Service.read_file, 64 * MIB, 1 << 30, timeout=60)
            eventually(lambda: server.statistics().memory_in_use >= 2 * MIB * (len(stopped) + 1), "it does not begin")
            slow.stop()
            stopped.append((slow, work))
        with open_remote(server.url, open_context(Options(providers=("tcp",)))) as store:
            target = np.zeros(16 * MIB, np.uint8)
            with store.open("data").result(PATIENCE_S) as file:
                assert file.read_into(target).result(PATIENCE_S) == 16 * MIB
            assert (target == pattern(1, 64 * MIB)[: 16 * MIB]).all()
        first, reading = stopped[0]
        first.resume()
        with pytest.raises(RemoteError, match=r"PeerLost: .*the server has given this client up: 2097152 bytes"):
            reading.result()
        for slow, _ in stopped:
            slow.kill()
        eventually(lambda: server.statistics().memory_in_use == 0, "their memory is not given back")


def test_read_only(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    _, url = served(start_peer, tmp_path, read_only=True)
    (tmp_path / "data").write_bytes(b"there")
    with open_remote(url, open_context(Options())) as store:
        changing: list[Callable[[], zh.Operation[Any]]] = [
            lambda: store.open("new", "x"),
            lambda: store.open("data", "r+"),
            lambda: store.mkdir("folder"),
            lambda: store.unlink("data"),
            lambda: store.rename("data", "other"),
            lambda: store.rmdir("folder"),
            lambda: store.utime("data"),
        ]
        for change in changing:
            with pytest.raises(zh.StorageError, match="read only") as caught:
                change().result(PATIENCE_S)
            assert caught.value.errno == errno.EROFS
        with store.open("data").result() as file:
            for write in (file.truncate(0), file.punch_hole(0, 1)):
                with pytest.raises(zh.StorageError):
                    write.result(PATIENCE_S)
    assert (tmp_path / "data").read_bytes() == b"there"


def test_no_path_leads_out(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"hidden")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("..")
    (folder / "proc").symlink_to("/proc/self")
    _, url = served(start_peer, folder)
    with open_remote(url, open_context(Options())) as store:
        for path in ("../secret", "link", "up/secret", "proc/environ", "a/../../secret", "/../secret"):
            for mode in MODES:
                with pytest.raises(zh.StorageError):
                    store.open(path, mode).result(PATIENCE_S)
        for change in (store.unlink("../secret"), store.rename("link", "../other")):
            with pytest.raises(zh.StorageError):
                change.result(PATIENCE_S)
    assert (tmp_path / "secret").read_bytes() == b"hidden"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["secret", "served"]


def test_a_long_listing(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """Names that no one answer has room for, some of them no UTF-8."""
    _, url = served(start_peer, tmp_path)
    names = {f"{number:04}" + "n" * 200 for number in range(1000)}
    for name in names:
        (tmp_path / name).touch()
    odd = os.fsdecode(b"odd\xff")
    (tmp_path / odd).touch()
    with open_remote(url, open_context(Options())) as store:
        found = store.listdir().result(PATIENCE_S)
        assert len(found) == len(set(found))
        assert set(found) == names | {odd}
        assert store.stat(odd).result(PATIENCE_S).st_size == 0


def test_what_is_served_where(open_context: OpenContext, tmp_path: Path) -> None:
    """One Server for a Context; none at all is said so; and after its end nothing is served."""
    there, here = open_context(Options()), open_context(Options())
    with pytest.raises(zh.Unsupported, match=r"serves no files.*zerohop serve"):
        open_remote(there.url, here)
    with storage.Server(tmp_path, ctx=there) as server:
        with pytest.raises(ValueError, match="has a Server already"):
            storage.Server(tmp_path, ctx=there)
        store = open_remote(server.url, here)
        (tmp_path / "data").write_bytes(bytes(PAGE))
        file = store.open("data").result(PATIENCE_S)
        with pytest.raises(zh.Unsupported, match="means nothing to the server"):
            store.file_of(0)
    with pytest.raises(zh.ZerohopError):
        file.read_into(np.zeros(PAGE, np.uint8)).result(PATIENCE_S)
    with pytest.raises(zh.Closed):
        server.statistics()
    file.close()
    store.close()
    with storage.Server(tmp_path, ctx=there) as server, open_remote(server.url, here) as store:
        assert store.listdir().result(PATIENCE_S) == ["data"]


@WAYS
def test_acknowledged_writes_outlive_the_server(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None
) -> None:
    """What was acknowledged is there, and what was never asked for is as it was."""
    before, count = pattern(2, 64 * MIB), 64
    (tmp_path / "data").write_bytes(before.tobytes())
    peer, url = served(start_peer, tmp_path, providers)
    context = open_context(Options(providers=providers))
    store = open_remote(url, context)
    file, source = store.open("data", "r+").result(PATIENCE_S), context.alloc(count * MIB)
    after = pattern(9, count * MIB)
    source.write_bytes(0, after.tobytes())
    asked, acknowledged = [], []
    for block in range(0, count, 2):
        asked.append((block, file.write_from(source[block * MIB : (block + 1) * MIB], block * MIB)))
        if block == 32:
            asked[8][1].result(PATIENCE_S)
            peer.kill()
    for block, operation in asked:
        try:
            operation.result(PATIENCE_S)
            acknowledged.append(block)
        except zh.PeerLost:
            pass
    found = np.fromfile(tmp_path / "data", np.uint8)
    assert len(acknowledged) > 0
    for block in range(count):
        part = slice(block * MIB, (block + 1) * MIB)
        if block in acknowledged:
            assert (found[part] == after[part]).all(), block
        elif block % 2:
            assert (found[part] == before[part]).all(), block
        else:
            assert ((found[part] == before[part]) | (found[part] == after[part])).all(), block
    file.close()
    store.close()


@WAYS
def test_a_server_that_stands_still(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None
) -> None:
    """Operations end at their deadline, and when it goes on, so does everything else."""
    (tmp_path / "data").write_bytes(pattern(1, 8 * MIB).tobytes())
    peer, url = served(start_peer, tmp_path, providers)
    target = np.zeros(8 * MIB, np.uint8)
    with open_remote(url, open_context(Options(providers=providers))) as store, store.open("data").result() as file:
        peer.stop()
        late: list[zh.Operation[Any]] = [file.read_into(target, timeout=0.2), store.open("data")]
        with pytest.raises(zh.DeadlineExceeded):
            late[0].result(PATIENCE_S)
        peer.resume()
        assert file.read_into(target).result(PATIENCE_S) == 8 * MIB
        assert (target == pattern(1, 8 * MIB)).all()
        opened = late[1].result(PATIENCE_S)
        opened.close()


def test_limits_of_the_server(open_context: OpenContext, start_peer: StartPeer, tmp_path: Path) -> None:
    """A limit of its process is said so, with what to type; and once there is room, the same call works."""
    (tmp_path / "data").write_bytes(bytes(PAGE))
    peer, url = served(start_peer, tmp_path)
    with open_remote(url, open_context(Options())) as store:
        first = store.open("data").result(PATIENCE_S)
        peer.call(Service.leave_descriptors, 0)
        with pytest.raises(zh.LimitReached, match=r"the server says: '.*descriptors.*ulimit -n") as caught:
            store.open("data").result(PATIENCE_S)
        assert caught.value.fix == r"the server says: 'raise the limit of the server\'s process: ulimit -n 65536'"
        assert first.read_into(np.zeros(PAGE, np.uint8)).result(PATIENCE_S) == PAGE
        peer.call(Service.lift_limits)
        store.open("data").result(PATIENCE_S).close()
        first.close()


@pytest.mark.slow
@WAYS
def test_many_clients_that_die(
    open_context: OpenContext, start_peer: StartPeer, tmp_path: Path, providers: tuple[str, ...] | None
) -> None:
    """Nothing of them stays in the server: no descriptor, mapping or block."""
    (tmp_path / "data").write_bytes(pattern(1, 8 * MIB).tobytes())
    there = open_context(Options(providers=providers))
    with storage.Server(tmp_path, ctx=there) as server:
        for _ in range(20):
            peers = [start_peer(Options(providers=providers)) for _ in range(3)]
            for peer in peers:
                peer.call(Service.use_store, server.url)
                peer.call(Service.open_file, "data")
            for peer in peers:
                peer.start(Service.read_file, 8 * MIB, 1 << 30)
            for peer in peers:
                peer.kill()
            eventually(lambda: server.statistics().clients == 0, "a client stays")
            eventually(lambda: server.statistics().memory_in_use == 0, "a block stays")
