"""A tcp lane of several flows: large transfers go in parts over several sockets, and are one operation all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

import zerohop as zh
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import ANSWER_S, PATIENCE_S
from support.pattern import expect_equal, pattern, poison
from support.raw_control import RawControl
from support.sizes import MIB
from zerohop.core.control import wire
from zerohop.core.lanes.lane_setup import LaneSetup

if TYPE_CHECKING:
    from support.fixtures import OpenContext

FLOWS: Final = 3
TCP: Final = Options(providers=("tcp",), sim_devices=1, tcp_flows=FLOWS)
# No multiple of a page or of the number of flows.
NBYTES: Final = 7 * MIB + 321


def _sockets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that each tcp lane adds the number of its sockets to."""
    seen: list[int] = []
    connect = LaneSetup._use_sockets

    def count(self: LaneSetup, lane: Any, sockets: Any, tls: bytes) -> None:
        seen.append(len(sockets))
        connect(self, lane, sockets, tls)

    monkeypatch.setattr(LaneSetup, "_use_sockets", count)
    return seen


@pytest.mark.parametrize("encryption", ["none", "all"])
@pytest.mark.parametrize(
    ("source", "target"), [("host", "host"), ("sim:0", "host"), ("host", "sim:0"), ("sim:0", "sim:0")]
)
def test_every_byte(open_context: OpenContext, source: str, target: str, encryption: Any) -> None:
    options = replace(TCP, secret="open sesame" if encryption == "all" else None, encryption=encryption)
    owner, friend = open_context(options), open_context(options)
    there, here = owner.alloc(NBYTES, target), friend.alloc(NBYTES, source)
    handle = there.share("rw")
    for seed, nbytes in enumerate((NBYTES, 2 * MIB, MIB, MIB - 1)):
        bytes_ = pattern(seed, nbytes)
        here.write_bytes(0, bytes_.tobytes())
        there.write_bytes(0, poison(NBYTES).tobytes())
        friend.write(here[:nbytes], handle[NBYTES - nbytes :], notify=seed).result(PATIENCE_S)
        told = owner.notification().result(PATIENCE_S)
        assert (told.value, told.nbytes) == (seed, nbytes)
        whole = np.frombuffer(there.read_bytes(), np.uint8)
        expect_equal(whole[NBYTES - nbytes :], bytes_, "written")
        expect_equal(whole[: NBYTES - nbytes], poison(NBYTES - nbytes), "beside it")
        here.write_bytes(0, poison(NBYTES).tobytes())
        friend.read(handle[NBYTES - nbytes :], here[:nbytes]).result(PATIENCE_S)
        whole = np.frombuffer(here.read_bytes(), np.uint8)
        expect_equal(whole[:nbytes], bytes_, "read")
        expect_equal(whole[nbytes:], poison(NBYTES - nbytes), "beside it")


@pytest.mark.parametrize(("mine", "theirs", "sockets"), [(1, 1, 1), (4, 1, 1), (2, 3, 3), (64, 64, 65)])
def test_both_sides_agree(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, mine: int, theirs: int, sockets: int
) -> None:
    """As many as both allow, and the lane's own socket beside several."""
    seen = _sockets(monkeypatch)
    owner = open_context(replace(TCP, tcp_flows=theirs))
    friend = open_context(replace(TCP, tcp_flows=mine))
    target = np.zeros(NBYTES, np.uint8)
    written = friend.write(pattern(1, NBYTES), owner.register(target).share("rw"))
    written.result(PATIENCE_S)
    expect_equal(target, pattern(1, NBYTES), "written")
    explained = written.explain()
    assert explained.flows == max(1, sockets - 1)
    told = "over one socket" if sockets == 1 else f"over {sockets - 1} sockets at once"
    assert told in explained.details()
    assert seen == [sockets, sockets]


@pytest.mark.parametrize("flows", [0, 65, -1, 2**70])
def test_too_few_or_too_many(flows: int) -> None:
    with pytest.raises(ValueError, match="tcp_flows must be from 1 to 64"):
        zh.Context(tcp_flows=flows)


def test_nothing_is_left(open_context: OpenContext) -> None:
    """Sockets go with the connection, and threads with the Context."""
    before = holdings()
    for _ in range(3):
        owner, friend = open_context(TCP), open_context(TCP)
        handle = owner.alloc(NBYTES).share("rw")
        operations = [friend.write(pattern(1, NBYTES), handle) for _ in range(4)]
        friend.close()
        for operation in operations:
            operation.exception(PATIENCE_S)
        owner.close()
    expect_given_back(before, holdings, "this process")


def test_a_cancelled_one_lets_go(open_context: OpenContext) -> None:
    """The memory is free soon after, and what comes later is right."""
    owner, friend = open_context(TCP), open_context(TCP)
    target = np.zeros(NBYTES, np.uint8)
    handle = owner.register(target).share("rw")
    source = friend.register(pattern(1, NBYTES).copy())
    friend.write(source, handle).result(PATIENCE_S)
    for _ in range(20):
        friend.write(source, handle).cancel()
    friend.connect(owner.url).result(PATIENCE_S).flush().result(PATIENCE_S)
    other = pattern(2, NBYTES).copy()
    friend.write(other, handle).result(PATIENCE_S)
    expect_equal(target, other, "written")


def test_many_tasks_and_threads(open_context: OpenContext) -> None:
    owner, friend = open_context(TCP), open_context(TCP)
    parts = 6
    target = np.zeros((parts, 2 * MIB), np.uint8)
    handles = [owner.register(part).share("rw") for part in target]

    async def transfer(place: int) -> None:
        for seed in range(4):
            data = pattern(10 * place + seed, 2 * MIB)
            await friend.write(data, handles[place])
            back = np.empty_like(data)
            await friend.read(handles[place], back)
            expect_equal(back, data, "read back")

    async def all_of(places: range) -> None:
        await asyncio.gather(*map(transfer, places))

    threads = [threading.Thread(target=asyncio.run, args=(all_of(range(at, at + 3)),)) for at in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for place, part in enumerate(target):
        expect_equal(part, pattern(10 * place + 3, 2 * MIB), "what is there in the end")


def test_an_invitation_of_too_many_sockets(open_context: OpenContext) -> None:
    """A peer that allows one flow, and invites several sockets, breaks the protocol."""
    context = open_context(TCP)
    client = RawControl(context.url, unix=True)
    try:
        client.shake_hands()
        client.send(wire.Setup(providers=["tcp"], url=f"{context.url}", name="hostile", tcp_flows=1))
        client.send(wire.Lane(number=0, provider="tcp", address=b"", messages=True))
        client.send(wire.LaneInvite(number=0, tokens=[bytes(16)] * 5))
        assert client.hung_up()
    finally:
        client.close()


@pytest.mark.parametrize("lacks", ["here", "there"])
def test_no_thread_left_for_flows(lacks: str) -> None:
    """A limit of this process, or of the peer's, and not its end; once it is raised, the next use works."""
    command = [sys.executable, "-c", _WITHOUT_ROOM, lacks]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    told = "LimitReached RLIMIT_AS\n" if lacks == "here" else "PeerLost no more threads can be started\n"
    assert (ended.returncode, ended.stdout) == (0, told), ended.stderr


# Its own child has the memory there. Either of them is left enough for Python to go on, and not for a thread's stack.
_WITHOUT_ROOM: Final = """
import resource, subprocess, sys
import numpy as np
import zerohop as zh

def limit(on):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = (pages + 700) * resource.getpagesize() if on else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

context = zh.Context(providers="tcp", tcp_flows=4)
if sys.argv[1] == "child":
    target = np.zeros(4 << 20, np.uint8)
    print(bytes(context.register(target).share("rw")).hex(), flush=True)
    for line in sys.stdin:
        limit(line == "limit\\n")
        print(int(target.sum()), flush=True)
    context.close()
    sys.exit()
command = [sys.executable, "-c", sys.orig_argv[2], "child"]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def ask(word):
    child.stdin.write(word + "\\n")
    child.stdin.flush()
    return int(child.stdout.readline())

handle = zh.RemoteBuffer.from_bytes(bytes.fromhex(child.stdout.readline()))
source = context.register(np.ones(4 << 20, np.uint8))
here = sys.argv[1] == "here"
limit(True) if here else ask("limit")
error = context.write(source, handle).exception(10)
limit(False) if here else ask("lift")
words = "no more threads can be started"
print(type(error).__name__, getattr(error, "limit", words if words in str(error) else error))
assert context.write(source, handle).result(10) == source.nbytes
assert ask("look") == source.nbytes
child.stdin.close()
child.wait(10)
context.close()
"""
