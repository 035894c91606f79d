"""A Queue on the host: what it takes, what it says, and what it leaves behind. No kernel runs here."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import ANSWER_S
from zerohop._native import Proxy
from zerohop.device import CLOSED, FAILED, OK, PEER_LOST, TIMED_OUT, Queue, descriptor, include_dir

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def contexts() -> Iterator[tuple[zh.Context, zh.Context]]:
    with zh.Context() as here, zh.Context() as there:
        yield here, there


def header(name: str) -> int:
    """A number of the header for C++."""
    layout = Path(include_dir()) / "zerohop" / "device" / "layout.hpp"
    found = re.search(rf"constexpr Word {name} = ([^;]+);", layout.read_text("utf-8"))
    assert found is not None
    return int(found[1], 0)


def test_python_and_the_header_agree() -> None:
    assert header("kLayout") == descriptor.LAYOUT
    assert (header("kPeer"), header("kProxy")) == (descriptor.PEER, descriptor.PROXY)
    names = ("kOk", "kTimedOut", "kPeerLost", "kFailed", "kClosed")
    assert [header(name) for name in names] == [OK, TIMED_OUT, PEER_LOST, FAILED, CLOSED]


def test_the_descriptor_says_what_it_was_made_of(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    far, near = there.alloc(1 << 20), here.alloc(4096)
    handle = far.share("rw")[100:1100]
    with Queue(here, [handle, far.share("w")], [near[8:16], np.zeros(5, np.uint8)], mode="proxy", slots=64) as queue:
        assert queue.modes == ("proxy", "proxy")
        words = queue._descriptor.numpy().view("u8")
        assert list(words[:3]) == [descriptor.LAYOUT, 2, 2]
        assert words[5] == 64
        peers = words[1040:1056].reshape(2, 8)
        assert list(peers[:, 0]) == [descriptor.PROXY] * 2
        assert list(peers[:, 2]) == [1000, 1 << 20]
        assert list(peers[:, 3]) == [3, 2]
        local = words[16:24].reshape(2, 4)
        assert list(local[:, 1]) == [8, 5]
        assert local[0, 0] == near.address + 8
        assert queue.taken == 0
        assert not queue._words.memory.numpy().any()


def test_it_says_which_way(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    handle = there.alloc(4096).share("rw")
    with Queue(here, [handle]) as queue:
        assert queue.modes == ("peer",)
        assert queue.explain().splitlines()[0] == "kernels on host"
        assert "peer 0: peer, shm (mapped) host→host direct" in queue.explain()
    with Queue(here, [there.register(np.zeros(4096, np.uint8)).share("rw")]) as queue:
        assert queue.modes == ("proxy",)
        assert "peer 0: proxy, shm (ring)" in queue.explain()
        assert "shm does not map memory of host for kernels" in queue.explain()


def test_memory_of_the_host_for_kernels_of_a_gpu() -> None:
    providers = ["p2p", "tcp"]
    with (
        zh.Context(sim_devices=1, providers=providers) as here,
        zh.Context(sim_devices=1, providers=providers) as there,
        Queue(here, [there.alloc(4096).share("rw")], [here.alloc(64, "sim:0")]) as queue,
    ):
        assert queue.modes == ("proxy",)
        assert "kernels on sim:0 do not reach memory of host" in queue.explain()


def test_what_kernels_do_not_reach(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    handle = there.register(np.zeros(4096, np.uint8)).share("rw")
    with pytest.raises(zh.Unsupported, match="no kernel on host reaches peer 0 by itself") as raised:
        Queue(here, [handle], mode="peer")
    assert 'mode="auto"' in str(raised.value)


def test_timeouts(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    handle = there.alloc(64).share("rw")
    for given, ns in ((0.5, 500_000_000), (1e12, 3600 * 10**9), (math.inf, 3600 * 10**9)):
        with Queue(here, [handle], timeout=given) as queue:
            assert queue._descriptor.numpy().view("u8")[10] == ns


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"peers": [b"handle"]}, TypeError, "peers[0] is no RemoteBuffer, but bytes"),
        ({"peers": []}, ValueError, "1 to 512 peers, not 0"),
        ({"mode": "fast"}, ValueError, 'mode is "auto", "peer", "proxy" or "mlx5"'),
        ({"slots": 100}, ValueError, "a power of two from 16 to 1048576"),
        ({"slots": "many"}, TypeError, "slots"),
        ({"device": "cuda:9"}, ValueError, "cuda:9"),
        ({"device": ""}, ValueError, "''"),
        ({"device": 0}, TypeError, "0"),
        ({"local": [3]}, TypeError, "int"),
        ({"local": [np.zeros(1, np.uint8)] * 257}, ValueError, "at most 256"),
        ({"timeout": -1}, ValueError, "-1"),
        ({"timeout": 0}, ValueError, "timeout is more than 0 seconds"),
        ({"local": np.zeros(8, np.uint8)}, TypeError, "local is a list, not ndarray. Fix: local=[...]"),
        ({"peers": "handle"}, TypeError, "peers is a list, not str"),
    ],
)
def test_what_cannot_be_right(
    contexts: tuple[zh.Context, zh.Context], arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    here, there = contexts
    given: dict[str, Any] = {"peers": [there.alloc(64).share("rw")], "local": [], **arguments}
    with pytest.raises(error, match=re.escape(words)):
        Queue(here, given.pop("peers"), given.pop("local"), **given)


def test_memory_of_two_gpus() -> None:
    with zh.Context(sim_devices=2) as here, zh.Context() as there:
        local = [here.alloc(64, "sim:0"), here.alloc(64, "sim:1")]
        with pytest.raises(ValueError, match="local has memory of sim:0 and of sim:1; make a Queue for each GPU"):
            Queue(here, [there.alloc(64).share("rw")], local)


def test_the_owner_is_gone(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    handle = there.alloc(64).share("rw")
    there.close()
    with pytest.raises(zh.PeerLost):
        Queue(here, [handle], timeout=5)


def test_after_close(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    queue = Queue(here, [there.alloc(64).share("rw")], mode="proxy")
    queue.close()
    queue.close()
    with pytest.raises(zh.Closed, match="this Queue is closed"):
        queue.check()
    with pytest.raises(zh.Closed), queue.active():
        pass


def test_memory_of_kernels_outlives_the_context() -> None:
    with zh.Context() as there:
        here = zh.Context()
        queue = Queue(here, [there.alloc(64).share("rw")], mode="proxy")
        here.close()
        # A kernel that still runs reads its descriptor, counts, and finds that the Queue is closed.
        words = (ctypes.c_uint64 * 13).from_address(queue.pointer)
        assert words[0] == descriptor.LAYOUT
        assert ctypes.c_uint64.from_address(words[6]).value == 0
        assert ctypes.c_uint64.from_address(words[9]).value == CLOSED


def test_a_peer_that_is_lost_while_the_queue_opens(
    contexts: tuple[zh.Context, zh.Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = contexts
    handle = there.alloc(64).share("rw")
    opened = Queue._open

    def open_and_lose(queue: Queue) -> None:
        opened(queue)
        there.close()
        with pytest.raises(zh.PeerLost):
            here.read(handle, into=np.zeros(64, np.uint8)).result(ANSWER_S)

    monkeypatch.setattr(Queue, "_open", open_and_lose)
    with Queue(here, [handle]) as queue, pytest.raises(zh.PeerLost):
        queue.check()


def test_a_context_of_its_own() -> None:
    with zh.Context() as there, Queue(None, [there.alloc(64).share("rw")]) as queue:
        assert queue.modes == ("peer",)


def test_a_program_of_asyncio(contexts: tuple[zh.Context, zh.Context]) -> None:
    """The loop goes on while a Queue opens in a thread; `async with` closes it."""
    here, there = contexts
    handle = there.alloc(64).share("rw")

    async def open_and_close() -> Queue:
        async with await asyncio.to_thread(Queue, here, [handle]) as queue:
            queue.check()
        return queue

    queue = asyncio.run(open_and_close())
    with pytest.raises(zh.Closed):
        queue.check()


def test_the_context_closes_first() -> None:
    with zh.Context() as there:
        here = zh.Context()
        queue = Queue(here, [there.alloc(64).share("rw")], mode="proxy")
        with queue.active():
            here.close()
        with pytest.raises(zh.Closed):
            queue.check()
        queue.close()


def test_a_lost_peer_is_told_of(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, there = contexts
    handle = there.alloc(64).share("rw")
    with Queue(here, [handle]) as queue:
        queue.check()
        there.close()
        with pytest.raises(zh.PeerLost):
            here.read(handle, into=np.zeros(64, np.uint8)).result(ANSWER_S)
        with pytest.raises(zh.PeerLost):
            queue.check()


def test_native_arguments(contexts: tuple[zh.Context, zh.Context]) -> None:
    here, _ = contexts
    from zerohop.core.face import region_of
    from zerohop.core.transfers.context_transfers import core_of

    small = region_of(here.alloc(64))
    with pytest.raises(ValueError, match="lies outside of this memory"):
        Proxy(core_of(here).engine, small, small, 64, [], [(0, 8, 3, [], False)], [], [], -1, 1)
    with pytest.raises(ValueError, match="power of two"):
        Proxy(core_of(here).engine, small, small, 3, [], [(0, 8, 3, [], False)], [], [], -1, 1)
    with pytest.raises(ValueError, match="not one route for each local"):
        Proxy(core_of(here).engine, small, small, 16, [], [(0, 8, 3, [1, 2], False)], [], [], -1, 1)


def test_there_is_no_memory_for_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with zh.Context() as here, zh.Context() as there:
        handle = there.alloc(64).share("rw")

        def fails(*_: object) -> zh.Memory:
            raise zh.RegistrationFailed("no memory")

        monkeypatch.setattr(zh.Context, "alloc", fails)
        with pytest.raises(zh.RegistrationFailed, match="no memory"):
            Queue(here, [handle])
        gc.collect()  # pytest fails if a destructor raises
