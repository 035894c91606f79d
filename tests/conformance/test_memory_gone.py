"""Memory whose bytes are taken away beneath its registration: the operation fails and says so, both processes live."""

from __future__ import annotations

import mmap
import os
import secrets
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.files import MappedFile, Pages
from support.leaks import shared_memory_prefix
from support.options import Options, fewest_devices
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.sizes import GIB
from support.world import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

NBYTES = 1 << 20
SIZES = (1, 8, 200, 5000, NBYTES)
# In /dev/shm, which a peer on the host maps; elsewhere, which goes through the ring or a socket.
PLACES = ("shm", "tmp")
SHARED_MEMORY = Path("/dev/shm")


def _path(place: str, tmp_path: Path) -> Path:
    return (SHARED_MEMORY if place == "shm" else tmp_path) / (shared_memory_prefix() + secrets.token_hex(8))


# Not over NICs: they hold the pages that they know, also after the file has become shorter.
@pytest.fixture(params=["shm", "p2p", "tcp"])
def pair(request: pytest.FixtureRequest, open_context: OpenContext, start_peer: StartPeer) -> tuple[zh.Context, Peer]:
    options = Options(providers=(request.param,), sim_devices=fewest_devices(request.param))
    return open_context(options), start_peer(options)


@contextmanager
def _lane_goes_on(context: zh.Context, peer: Peer) -> Iterator[None]:
    """The same lane carries what comes after, and nothing that failed was announced."""
    target = Target(peer, "numpy", NBYTES)
    context.write(pattern(1, NBYTES), target.handle).result(PATIENCE_S)
    before = context.connections[0]
    yield
    context.write(pattern(2, NBYTES), target.handle, notify=9).result(PATIENCE_S)
    assert peer.call(Service.notification).value == 9
    target.expect(0, NBYTES, 2)
    assert context.connections[0] is before
    peer.call(Service.expect_no_notification)


def _expect_gone(posts: list[Callable[[], zh.Operation[int]]], words: str) -> None:
    for post in posts:
        with pytest.raises(zh.AccessDenied, match=words) as caught:
            post().result(PATIENCE_S)
        assert caught.value.fix


def _posts(
    context: zh.Context, local: zh.Memory | np.ndarray[tuple[int], np.dtype[np.uint8]], remote: zh.RemoteBuffer
) -> list[Callable[[], zh.Operation[int]]]:
    posts: list[Callable[[], zh.Operation[int]]] = []
    for nbytes in SIZES:
        posts.append(partial(context.write, local[:nbytes], remote[:nbytes], notify=1))
        posts.append(partial(context.read, remote[:nbytes], local[:nbytes]))
    posts.append(partial(context.write_pages, local, remote, [0, 7], [7, 0], page_bytes=4096))
    posts.append(partial(context.read_pages, remote, local, [0, 7], [7, 0], page_bytes=4096))
    return posts


@pytest.mark.parametrize("place", PLACES)
def test_the_owner_truncates_its_file(pair: tuple[zh.Context, Peer], place: str, tmp_path: Path) -> None:
    context, peer = pair
    path = _path(place, tmp_path)
    handle = zh.RemoteBuffer.from_bytes(peer.call(Service.map_file, str(path), NBYTES))
    local = np.zeros(NBYTES, np.uint8)
    context.read(handle, local).result(PATIENCE_S)
    with _lane_goes_on(context, peer):
        peer.call(Service.truncate_file, str(path), 0)
        _expect_gone(_posts(context, local, handle), "^[^:]*: memory gone")
        _expect_gone([partial(context.fetch_add, handle, 1)], "memory gone")
        _expect_gone([partial(context.compare_swap, handle, 1, 2)], "memory gone")
        peer.call(Service.truncate_file, str(path), NBYTES)  # empty, and there again
        context.write(pattern(3, NBYTES), handle).result(PATIENCE_S)
        context.read(handle, local).result(PATIENCE_S)
        assert local.tobytes() == pattern(3, NBYTES).tobytes()
    peer.call(Service.close_file, str(path))


@pytest.mark.parametrize("place", PLACES)
def test_the_initiator_truncates_its_file(pair: tuple[zh.Context, Peer], place: str, tmp_path: Path) -> None:
    context, peer = pair
    path = _path(place, tmp_path)
    target = Target(peer, "alloc", NBYTES)
    file = MappedFile(context, str(path), NBYTES)
    context.write(file.memory, target.handle).result(PATIENCE_S)
    with _lane_goes_on(context, peer):
        file.truncate(0)
        _expect_gone(_posts(context, file.memory, target.handle), "local memory gone")
    file.close()
    path.unlink()


def test_the_owner_frees_its_buffer(pair: tuple[zh.Context, Peer]) -> None:
    """A raw registration whose memory is unmapped, and a peer that goes on with its handle."""
    context, peer = pair
    handle = zh.RemoteBuffer.from_bytes(peer.call(Service.map_pages, NBYTES))
    local = np.zeros(NBYTES, np.uint8)
    context.write(local, handle).result(PATIENCE_S)
    with _lane_goes_on(context, peer):
        peer.call(Service.take_pages)
        _expect_gone(_posts(context, local, handle), "^[^:]*: memory gone")
    peer.call(Service.close_pages)


def test_the_initiator_frees_its_buffer(pair: tuple[zh.Context, Peer]) -> None:
    context, peer = pair
    target = Target(peer, "alloc", NBYTES)
    pages = Pages(context, NBYTES)
    context.write(pages.memory, target.handle).result(PATIENCE_S)
    with _lane_goes_on(context, peer):
        pages.take()
        _expect_gone(_posts(context, pages.memory, target.handle), "local memory gone")
        with pytest.raises(zh.AccessDenied, match="local memory gone"):
            pages.memory.read_bytes(0, 100)
    pages.close()


class TestCopiedByADevice:
    """One end is a device's memory, which its owner's device copies to or from the host memory itself."""

    @pytest.fixture
    def pair(self, open_context: OpenContext, start_peer: StartPeer) -> tuple[zh.Context, Peer]:
        options = Options(providers=("p2p",), sim_devices=1)
        return open_context(options), start_peer(options)

    def test_the_initiators_is_gone_before_its_first_use(self, pair: tuple[zh.Context, Peer]) -> None:
        """A hole of one page is enough: the driver does not take the memory, and the ring finds the hole."""
        context, peer = pair
        target, pages = Target(peer, "sim", NBYTES), Pages(context, NBYTES)
        pages.take(NBYTES // 2, 4096)
        with _lane_goes_on(context, peer):
            _expect_gone([partial(context.write, pages.memory, target.handle)], "local memory gone")
            _expect_gone([partial(context.read, target.handle, pages.memory)], "local memory gone")
        why = dict(context.explain(pages.memory, target.handle).rejected)["p2p (peer)"]
        assert why.startswith("the memory here: local memory gone")
        pages.close()

    def test_the_initiators_is_gone_later(self, pair: tuple[zh.Context, Peer]) -> None:
        context, peer = pair
        target, pages = Target(peer, "sim", NBYTES), Pages(context, NBYTES)
        context.write(pages.memory, target.handle).result(PATIENCE_S)
        assert context.explain(pages.memory, target.handle).direct
        with _lane_goes_on(context, peer):
            pages.take()
            _expect_gone(_posts(context, pages.memory, target.handle), "local memory gone")
        pages.close()

    def test_the_owners_is_gone_later(self, pair: tuple[zh.Context, Peer], tmp_path: Path) -> None:
        context, peer = pair
        path, local = _path("shm", tmp_path), context.alloc(NBYTES, "sim:0")
        handle = zh.RemoteBuffer.from_bytes(peer.call(Service.map_file, str(path), NBYTES))
        context.write(local, handle).result(PATIENCE_S)
        assert context.explain(local, handle).direct
        with _lane_goes_on(context, peer):
            peer.call(Service.truncate_file, str(path), 0)
            _expect_gone(_posts(context, local, handle), "^[^:]*: memory gone")
        peer.call(Service.close_file, str(path))


def test_a_message_between_a_peer_and_memory_that_is_gone(pair: tuple[zh.Context, Peer]) -> None:
    context, peer = pair
    pages = Pages(context, NBYTES)
    number = peer.call(Service.new, "numpy", NBYTES)
    connection = context.connect(peer.identity.url).result(PATIENCE_S)
    with _lane_goes_on(context, peer):
        pages.take()
        for nbytes in (100, NBYTES):
            received = connection.recv(pages.memory)
            sent = peer.call(Service.try_send, context.url, number, nbytes)
            assert sent.kind == "AccessDenied"
            assert "memory gone" in sent.text
            with pytest.raises(zh.AccessDenied, match="local memory gone"):
                received.result(PATIENCE_S)
    pages.close()


def test_a_file_without_room_is_refused(open_context: OpenContext, tmp_path: Path) -> None:
    """A SharedMemory has a size before it has bytes; where /dev/shm is small, a peer's write would find no page."""
    context = open_context(Options(sim_devices=0))
    room = os.statvfs(SHARED_MEMORY)
    path = _path("shm", tmp_path)
    with pytest.raises(zh.RegistrationFailed, match="out of shared memory") as caught:
        MappedFile(context, str(path), room.f_blocks * room.f_frsize + GIB, sparse=True)
    path.unlink()
    assert "--shm-size" in caught.value.fix


def test_the_holes_of_a_file_are_filled(open_context: OpenContext, tmp_path: Path) -> None:
    context = open_context(Options(sim_devices=0))
    path = _path("shm", tmp_path)
    file = MappedFile(context, str(path), NBYTES, sparse=True)
    assert path.stat().st_blocks * 512 == NBYTES
    assert not file.array.any()
    file.close()
    path.unlink()


def test_a_file_that_is_shorter_than_its_mapping_is_refused(open_context: OpenContext, tmp_path: Path) -> None:
    context = open_context(Options(sim_devices=0))
    path = _path("shm", tmp_path)
    with path.open("w+b") as file:
        file.truncate(NBYTES)
        with mmap.mmap(file.fileno(), NBYTES) as mapped:
            file.truncate(4096)
            view = np.frombuffer(mapped, np.uint8)
            with pytest.raises(zh.RegistrationFailed, match="memory gone"):
                context.register(view)
            del view
    path.unlink()


def test_rights_are_those_of_the_mapping(open_context: OpenContext, tmp_path: Path) -> None:
    """A file that its owner may write, and that is mapped for reading: nobody is given more."""
    context = open_context(Options(sim_devices=0))
    path = _path("shm", tmp_path)
    with path.open("w+b") as file:
        file.write(bytes(NBYTES))
    array = np.memmap(path, np.uint8, "r")
    raw = array.__array_interface__["data"][0], NBYTES, "host"
    for x in (array, raw):
        with pytest.raises(ValueError, match="read-only"):
            context.register(x, "rw")
        with context.register(x) as memory, pytest.raises(ValueError, match="r"):
            memory.share("rw")
    del array
    path.unlink()


@pytest.mark.parametrize("provider", ["shm", "p2p"])
def test_a_file_that_became_shorter_before_its_first_use(
    open_context: OpenContext, provider: str, tmp_path: Path
) -> None:
    context, owner = (open_context(Options(providers=(provider,), sim_devices=1)) for _ in range(2))
    path = _path("shm", tmp_path)
    file = MappedFile(owner, str(path), NBYTES)
    path.unlink()
    handle = file.memory.share("rw")
    file.truncate(4096)
    with pytest.raises(zh.AccessDenied, match="memory gone"):
        context.write(np.zeros(NBYTES, np.uint8), handle).result(PATIENCE_S)
    file.close()
