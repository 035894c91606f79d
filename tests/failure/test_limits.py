"""Out of descriptors, out of shared memory, out of address space: the named error with a fix, and nothing leaks.

Each limit is set in a peer process of the test's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import Buffer, Kind
from support.calls import CALLS
from support.leaks import expect_given_back, holdings
from support.options import Options, fewest_devices
from support.outcomes import Outcome
from support.patience import ANSWER_S, PATIENCE_S, times
from support.pattern import pattern
from support.service import Service
from support.sizes import GIB, MIB
from support.world import PROVIDERS, Target
from zerohop import limits

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

pytestmark = pytest.mark.unprivileged

# More than any of the calls below needs at once.
ENOUGH = 40
# Number of writes in one list, whose native form takes tens of megabytes.
PAIRS = 4_000_000
PAGE = 4096


def _expect_named(outcome: Outcome, *words: str) -> None:
    """One of the library's own errors, which says what is missing and what to do."""
    assert hasattr(zh, outcome.kind), f"{outcome.kind}: {outcome.text}"
    assert issubclass(getattr(zh, outcome.kind), zh.ZerohopError)
    assert outcome.says(*words), outcome
    assert outcome.fix, outcome


class TestOutOfDescriptors:
    def test_opening_a_context(self, start_peer: StartPeer) -> None:
        """Whatever number of descriptors is left, opening works or fails by name, and gives back what it took."""
        options = Options()
        peer = start_peer(options)
        assert peer.call(Service.try_open, options).kind == "ok"
        before = peer.call(Service.holdings)
        failures = 0
        for free in range(ENOUGH):
            peer.call(Service.leave_descriptors, free)
            outcome = peer.call(Service.try_open, options)
            peer.call(Service.lift_limits)
            if outcome.kind != "ok":
                failures += 1
                _expect_named(outcome, "descriptor", "ulimit")
            expect_given_back(before, lambda: peer.call(Service.holdings), f"a process with {free} descriptors left")
        assert 5 <= failures < ENOUGH

    def test_allocating(self, start_peer: StartPeer) -> None:
        peer = start_peer(Options())
        for device in ("host", "sim:0"):
            assert peer.call(Service.try_alloc, MIB, device).kind == "ok"
            before = peer.call(Service.holdings)
            peer.call(Service.leave_descriptors, 0)
            outcome = peer.call(Service.try_alloc, MIB, device)
            peer.call(Service.lift_limits)
            assert outcome.kind == "LimitReached"
            _expect_named(outcome, "descriptor", "rlimit nofile", "ulimit -n 65536")
            expect_given_back(before, lambda: peer.call(Service.holdings), "the process")
            assert peer.call(Service.try_alloc, MIB, device).kind == "ok"

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_connecting(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        """As the one that connects: the operation fails by name, others can still connect to it afterwards."""
        options = Options(providers=(provider,))
        peer = start_peer(options)
        failures = 0
        for free in range(0, ENOUGH, 3):
            server = open_context(options)
            peer.call(Service.leave_descriptors, free)
            outcome = peer.call(Service.try_connect, server.url)
            peer.call(Service.lift_limits)
            if outcome.kind != "ok":
                failures += 1
                _expect_named(outcome, "descriptor")
            target = np.zeros(1000, np.uint8)
            memory = server.register(target)
            handle = bytes(memory.share("rw"))
            number = peer.call(Service.new, "numpy", 1000, 0)
            peer.call(Service.fill, number, 0, 1000, 4)
            assert peer.call(Service.try_write, handle, number, 1000).kind == "ok"
            assert target.tobytes() == pattern(4, 1000).tobytes()
            server.close()
            peer.clear()
            peer.open(options)
        assert failures > 0

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_being_connected_to(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        """As the one that listens: the other side gets an error in bounded time, and the listener lives on."""
        options = Options(providers=(provider,))
        peer = start_peer(options)
        for free in range(0, ENOUGH, 3):
            client = open_context(options)
            target = Target(peer, "numpy", 1000)
            peer.call(Service.leave_descriptors, free)
            error = client.connect(peer.identity.url).exception(ANSWER_S)
            assert isinstance(error, zh.ZerohopError | None), error
            assert not isinstance(error, zh.DeadlineExceeded), "by nothing better than the end of the time"
            assert error is None or "ulimit -n" in error.fix, error
            peer.call(Service.lift_limits)
            client.write(pattern(6, 1000), target.handle).result(PATIENCE_S)
            target.expect(0, 1000, 6)
            client.close()
            peer.clear()
            peer.open(options)

    @pytest.mark.parametrize("call", CALLS)
    def test_each_call(self, start_peer: StartPeer, call: str) -> None:
        """It works, or it fails by the limit's name."""
        peer = start_peer(Options())
        for free in range(3):
            outcome = peer.call(Service.try_call, call, free, Options(sim_devices=1))
            if outcome.kind not in ("ok", "DeadlineExceeded"):
                assert outcome.kind == "LimitReached", outcome
                _expect_named(outcome, "descriptor", "rlimit nofile", "ulimit -n 65536")


class TestOutOfSharedMemory:
    @pytest.mark.parametrize("device", ["host", "sim:0"])
    def test_files_too_small(self, start_peer: StartPeer, device: str) -> None:
        """RLIMIT_FSIZE bounds a memfd too: what it refuses looks like a full tmpfs."""
        peer = start_peer(Options())
        before = peer.call(Service.holdings)
        peer.call(Service.limit_file_bytes, MIB)
        outcome = peer.call(Service.try_alloc, 4 * MIB, device)
        assert outcome.kind == ("LimitReached" if device == "host" else "RegistrationFailed")
        _expect_named(outcome, "memory", *["rlimit fsize", "ulimit -f"] * (device == "host"))
        assert peer.call(Service.try_alloc, MIB // 2, device).kind == "ok"
        peer.call(Service.lift_limits)
        assert peer.call(Service.try_alloc, 4 * MIB, device).kind == "ok"
        expect_given_back(before, lambda: peer.call(Service.holdings), "the process")

    @pytest.mark.parametrize("device", ["host", "sim:0"])
    def test_address_space_too_small(self, start_peer: StartPeer, device: str) -> None:
        peer = start_peer(Options())
        before = peer.call(Service.holdings)
        peer.call(Service.limit_address_space, 256 * MIB)
        outcome = peer.call(Service.try_alloc, GIB, device)
        assert outcome.kind == ("LimitReached" if device == "host" else "RegistrationFailed")
        _expect_named(outcome, "memory", *["rlimit as", "ulimit -v"] * (device == "host"))
        peer.call(Service.lift_limits)
        assert peer.call(Service.try_alloc, 4 * MIB, device).kind == "ok"
        expect_given_back(before, lambda: peer.call(Service.holdings), "the process")

    @pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
    @pytest.mark.parametrize("extra", [0, PAGE, 64 << 10, MIB, 8 * MIB])
    def test_opening_without_address_space(self, start_peer: StartPeer, extra: int, again: bool) -> None:
        """A thread may get a stack and no memory for its first frame, and an import none for a module."""
        peer = start_peer(Options())
        if again:
            assert peer.call(Service.try_open, Options()).kind == "ok"
        peer.call(Service.limit_address_space, extra)
        outcome = peer.call(Service.try_open, Options())
        peer.call(Service.lift_limits)
        if outcome.kind != "ok":
            assert outcome.kind == "LimitReached", outcome
            _expect_named(outcome, "rlimit as", "ulimit -v")
        assert peer.call(Service.try_open, Options()).kind == "ok"

    @pytest.mark.parametrize("nbytes", [1 << 50, (1 << 62) + 1, (1 << 63) - 1])
    @pytest.mark.parametrize("device", ["host", "sim:0"])
    def test_more_than_any_machine_has(self, start_peer: StartPeer, device: str, nbytes: int) -> None:
        peer = start_peer(Options())
        before = peer.call(Service.holdings)
        outcome = peer.call(Service.try_alloc, nbytes, device)
        assert outcome.kind == "RegistrationFailed"
        _expect_named(outcome, "memory")
        expect_given_back(before, lambda: peer.call(Service.holdings), "the process")

    def test_lengths_that_make_no_sense(self, open_context: OpenContext) -> None:
        context = open_context(Options())
        for nbytes in (-1, 1 << 70):
            with pytest.raises((ValueError, OverflowError)):
                context.alloc(nbytes)
        with pytest.raises((ValueError, zh.Unsupported)):
            context.alloc(64, device="sim:9")
        with pytest.raises((ValueError, zh.Unsupported)):
            context.alloc(64, device="nonsense")

    def test_no_room_for_a_ring(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        """shm alone, and its ring cannot be made: an error by name on the side that lacks the memory."""
        options = Options(providers=("shm",))
        server, peer = open_context(options), start_peer(options)
        before = peer.call(Service.holdings)
        peer.call(Service.limit_file_bytes, 4096)
        outcome = peer.call(Service.try_connect, server.url)
        peer.call(Service.lift_limits)
        _expect_named(outcome, "memory")
        expect_given_back(before, lambda: peer.call(Service.holdings), "the process")
        assert peer.call(Service.try_connect, server.url).kind == "ok"

    def test_no_room_to_map_a_peers_memory(self, open_context: OpenContext, start_peer: StartPeer) -> None:
        """The bytes go another way, or the operation fails by name; a later one works."""
        options = Options(providers=("shm",))
        owner, peer = open_context(options), start_peer(options)
        with owner.alloc(GIB) as memory:
            handle = bytes(memory.share("rw"))
            number = peer.call(Service.new, "numpy", 1000, 0)
            assert peer.call(Service.try_connect, owner.url).kind == "ok"
            peer.call(Service.limit_address_space, 256 * MIB)
            outcome = peer.call(Service.try_write, handle, number, 1000)
            peer.call(Service.lift_limits)
            if outcome.kind != "ok":
                _expect_named(outcome, "memory")
            peer.call(Service.fill, number, 0, 1000, 3)
            assert peer.call(Service.try_write, handle, number, 1000).kind == "ok"
            assert memory.read_bytes(0, 1000) == pattern(3, 1000).tobytes()


# A provider by which a peer maps memory, and the memory.
MAPPED: list[tuple[str, Kind]] = [("shm", "alloc"), ("p2p", "sim")]


@pytest.mark.parametrize(("provider", "kind"), MAPPED)
class TestImportingMemory:
    """At a limit of either process: an error of its own, and the connection with all that it has goes on."""

    def test_thousands_of_views_with_few_descriptors_left(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind
    ) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        owner, peer = open_context(options), start_peer(options)
        owned = Buffer(owner, kind, 2000 * PAGE)
        owned.fill(0, owned.nbytes, 3)
        handles = [bytes(owned.memory[at : at + PAGE].share("r")) for at in range(0, owned.nbytes, PAGE)]
        number = peer.call(Service.new, kind, owned.nbytes, 0)
        assert peer.call(Service.try_connect, owner.url).kind == "ok"
        peer.call(Service.leave_descriptors, 12)
        assert peer.call(Service.try_read_parts, handles, number, PAGE) == Outcome("ok")
        peer.call(Service.lift_limits)
        peer.call(Service.expect, number, 0, owned.nbytes, 3)
        owned.close()

    def test_no_descriptor_at_the_importer(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind
    ) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        owner, peer = open_context(options), start_peer(options)
        known, new = Buffer(owner, kind, PAGE), Buffer(owner, kind, PAGE)
        first, second = bytes(known.memory.share("r")), bytes(new.memory.share("r"))
        number = peer.call(Service.new, kind, PAGE, 0)
        assert peer.call(Service.try_read, first, number, PAGE).kind == "ok"
        before = peer.call(Service.holdings)
        peer.call(Service.leave_descriptors, 0)
        outcome = peer.call(Service.try_read, second, number, PAGE)
        assert outcome.kind == "LimitReached"
        _expect_named(outcome, "descriptor", "rlimit nofile", "ulimit -n 65536")
        assert peer.call(Service.try_read, first, number, PAGE).kind == "ok"
        peer.call(Service.lift_limits)
        expect_given_back(before, lambda: peer.call(Service.holdings), "the importer")
        assert peer.call(Service.try_read, second, number, PAGE).kind == "ok"
        assert owner.statistics().connections == 1
        for owned in (known, new):
            owned.memory.revoke(timeout=PATIENCE_S)
            owned.close()

    def test_no_descriptor_at_the_owner(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: Kind
    ) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        here, peer = open_context(options), start_peer(options)
        known, new = (Target(peer, kind, PAGE) for _ in range(2))
        into = Buffer(here, kind, PAGE)
        assert here.read(known.handle, into.memory).result(PATIENCE_S) == PAGE
        peer.call(Service.leave_descriptors, 0)
        try:
            error = here.read(new.handle, into.memory).exception(PATIENCE_S)
            if provider == "shm":
                assert isinstance(error, zh.LimitReached)
                assert (error.limit, error.value) == ("RLIMIT_NOFILE", 0)
                assert "the peer's process: ulimit -n 65536" in error.fix
            else:
                assert error is None  # another path is taken
            assert here.read(known.handle, into.memory).result(PATIENCE_S) == PAGE
        finally:
            peer.call(Service.lift_limits)
        assert here.read(new.handle, into.memory).result(PATIENCE_S) == PAGE
        assert here.statistics().connections == 1
        into.close()


def test_a_thread_that_found_no_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of address space is named, also where some was given back since; where there is plenty it is not."""
    mapped = limits._bytes_of("VmSize")
    monkeypatch.setattr(limits, "_control_groups", list)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(limits, "_rlimit", lambda name: limits.Limit(name, 100, ""))
    for free, expected in ((0, "RLIMIT_AS"), (limits._stack_bytes() + 3 * MIB, "RLIMIT_AS"), (1 << 40, "RLIMIT_NPROC")):
        space = limits.Limit("RLIMIT_AS", mapped + free, "")
        monkeypatch.setattr(limits, "_finite", lambda name, space=space: space if name == space.name else None)
        assert limits.of_threads().name == expected


@pytest.mark.parametrize("face", ["Context", "Transport"])
def test_no_room_for_a_list_of_writes(face: str) -> None:
    """An error, where the native call cannot keep the list; in a process of its own, which it once ended."""
    program = (
        "import resource, zerohop as zh\n"
        f"one, other = (zh.{face}(providers=['shm'], timeout=30) for _ in range(2))\n"
        "here, there = (each if isinstance(each, zh.Context) else each.context for each in (one, other))\n"
        "if one is not here:\n"
        "    one.connect(other.bind()).result(30)\n"
        "pair = here.alloc(8), there.alloc(8).share('rw')\n"
        "one.write_many([pair]).result(30)\n"
        f"pairs = [pair] * {PAIRS}\n"
        "kinds, ended = (MemoryError, zh.LimitReached, zh.RegistrationFailed), None\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "hard = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {PAIRS} * 8, hard))\n"
        "try:\n"
        "    one.write_many(pairs)\n"
        "except kinds as error:\n"  # where there is hardly any memory: everything else is made before, or comes after
        "    ended = error\n"
        "resource.setrlimit(resource.RLIMIT_AS, (hard, hard))\n"
        "print('' if ended is None else type(ended).__name__)\n"
        "one.write_many([pair]).result(30)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=ANSWER_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip(), "there was room"


@pytest.mark.parametrize("provider", ["shm", "tcp"])
class TestOutOfMemoryForStaging:
    """Bytes of a device pass through host buffers that a lane makes at first use."""

    @pytest.mark.parametrize("nbytes", [8, MIB])
    @pytest.mark.parametrize("kind", ["write", "read", "fetch_add"])
    def test_at_the_owner(
        self, open_context: OpenContext, start_peer: StartPeer, provider: str, kind: str, nbytes: int
    ) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        here, peer = open_context(options), start_peer(options)
        known, target = Target(peer, "numpy", nbytes), Target(peer, "sim", nbytes)
        array = pattern(5, nbytes)
        assert here.write(array, known.handle).result(PATIENCE_S) == nbytes
        peer.call(Service.limit_address_space, MIB)
        operation: zh.Operation[int] = {
            "write": lambda: here.write(array, target.handle),
            "read": lambda: here.read(target.handle, array),
            "fetch_add": lambda: here.fetch_add(target.handle[:8], 1),
        }[kind]()
        error = operation.exception(ANSWER_S)
        peer.call(Service.lift_limits)
        assert isinstance(error, zh.RegistrationFailed)
        assert "the owner's process is out of memory" in error.reason
        before = here.connections[0]
        array[:] = pattern(6, nbytes)
        assert here.write(array, target.handle).result(PATIENCE_S) == nbytes
        target.expect(0, nbytes, 6)
        assert here.connections[0] is before

    def test_at_this_side(self, open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
        options = Options(providers=(provider,), sim_devices=1)
        owner, peer = open_context(options), start_peer(options)
        target = np.zeros(MIB, np.uint8)
        handle = bytes(owner.register(target).share("rw"))
        host, device = (peer.call(Service.new, kind, MIB, 0) for kind in ("numpy", "sim"))
        assert peer.call(Service.try_write, handle, host, MIB).kind == "ok"
        peer.call(Service.limit_address_space, MIB)
        outcome = peer.call(Service.try_write, handle, device, MIB)
        peer.call(Service.lift_limits)
        assert outcome.kind == "RegistrationFailed"
        _expect_named(outcome, "this process is out of memory")
        assert peer.call(Service.try_write, handle, device, MIB).kind == "ok"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_two_hundred_connections_leave_nothing(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Connect, use, close, again and again, from the side of the one that listens."""
    options = Options(providers=(provider,), sim_devices=fewest_devices(provider), timeout=ANSWER_S)
    server, peer = open_context(options), start_peer(options)
    target = np.zeros(5000, np.uint8)
    memory = server.register(target)
    handle = bytes(memory.share("rw"))
    peer.call(Service.swarm, handle, options, 0, 2, 1000)
    before, theirs = holdings(), peer.call(Service.holdings)
    for _ in range(times(40)):
        peer.call(Service.swarm, handle, options, 0, 5, 1000)
    expect_given_back(before, holdings, "the server")
    expect_given_back(theirs, lambda: peer.call(Service.holdings), "the process of the clients")
