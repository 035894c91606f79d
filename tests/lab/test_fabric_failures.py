"""The explicit API when something goes wrong: failed requests, waits that end otherwise, closing, and fork."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from lab.fabric_pair import ALL, IMPATIENT, TIMEOUT, Lab, Pair, collect, one
from zerohop import fabric
from zerohop.fabric import Access, EndpointConfig, EndpointHandle, Receive, RemoteMemory, Send, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zerohop.fabric import Completion


@pytest.fixture(scope="module")
def lab(runtime_directory: None) -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def pair(lab: Lab) -> Iterator[Pair]:
    with Pair(lab, IMPATIENT) as pair:
        yield pair


@pytest.fixture
def own_pair() -> Iterator[Pair]:
    """With nothing that other tests use."""
    lab = Lab()
    with Pair(lab, IMPATIENT) as pair:
        yield pair
    lab.close()


class TestRefusedByThePeer:
    """Each of these ends the queue pair: what comes after is flushed."""

    def expect(self, pair: Pair, kind: type[zh.ZerohopError], status: str) -> None:
        failed = one(pair.a)
        assert (failed.ok, failed.status, failed.byte_len) == (False, status, 0)
        assert type(failed.error) is kind
        with pytest.raises(kind, match=status):
            raise failed.error
        self.expect_flushed(pair)

    def expect_flushed(self, pair: Pair) -> None:
        pair.a.post_send(wr_id=77)
        flushed = one(pair.a)
        assert (flushed.wr_id, flushed.status) == (77, "WR_FLUSH_ERR")
        assert isinstance(flushed.error, zh.PeerLost)

    @pytest.mark.parametrize("change", ["key", "before", "beyond", "closed", "read only"])
    def test_write(self, pair: Pair, change: str) -> None:
        source, target = pair.buffer(4096, fill=1), bytearray(3 * 4096)
        rights = Access.REMOTE_READ if change == "read only" else ALL
        region = pair.device.register(memoryview(target)[4096:8192], rights)
        remote = region.remote()
        if change == "closed":
            region.close()
        remote = {
            "key": RemoteMemory(remote.addr, remote.rkey ^ 0x5500, remote.length),
            "before": RemoteMemory(remote.addr - 1, remote.rkey, remote.length),
            "beyond": RemoteMemory(remote.addr + 1, remote.rkey, remote.length),
        }.get(change, remote)
        pair.a.post_write(source.region, remote, wr_id=5)
        self.expect(pair, zh.AccessDenied, "REM_ACCESS_ERR")
        assert target == bytearray(3 * 4096)

    def test_read(self, pair: Pair) -> None:
        writable = pair.device.register(bytearray(64), Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        into = pair.buffer(64, fill=1)
        pair.a.post_read(into.region, writable.remote())
        self.expect(pair, zh.AccessDenied, "REM_ACCESS_ERR")
        assert into.get() == b"\1" * 64

    def test_atomic(self, pair: Pair) -> None:
        word = bytearray(8)
        plain = pair.device.register(word, Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)
        pair.a.post_fetch_add(pair.buffer(8).region, plain.remote(), 1)
        self.expect(pair, zh.AccessDenied, "REM_ACCESS_ERR")
        assert word == bytearray(8)

    def test_longer_than_the_receive(self, pair: Pair) -> None:
        inbox = pair.buffer(64, fill=1)
        pair.b.post_recv(inbox.region[:32], wr_id=6)
        pair.a.post_send(pair.buffer(33).region)
        # By the specification; this Soft-RoCE calls it a failed operation.
        assert one(pair.a).status in ("REM_INV_REQ_ERR", "REM_OP_ERR")
        failed = one(pair.b)
        assert (failed.wr_id, failed.opcode, failed.byte_len) == (6, "RECV", 0)
        assert failed.status in ("LOC_LEN_ERR", "LOC_QP_OP_ERR")
        self.expect_flushed(pair)
        assert inbox.get()[32:] == b"\1" * 32

    def test_no_receive(self, pair: Pair) -> None:
        pair.a.post_send(b"hello", inline=True)
        self.expect(pair, zh.PeerLost, "RNR_RETRY_EXC_ERR")

    def test_no_peer(self, pair: Pair) -> None:
        remote = pair.buffer(64).remote()
        pair.b.close()
        pair.a.post_write(pair.buffer(64).region, remote)
        self.expect(pair, zh.PeerLost, "RETRY_EXC_ERR")

    def test_own_region_closed_meanwhile(self, pair: Pair) -> None:
        """On the receiving side, whose request waits."""
        inbox = pair.buffer(64, fill=1)
        pair.b.post_recv(inbox.region)
        inbox.region.close()
        pair.a.post_send(pair.buffer(64).region)
        assert not one(pair.a).ok
        failed = one(pair.b)
        assert (failed.opcode, failed.byte_len) == ("RECV", 0)
        # By the specification; this Soft-RoCE blames the queue pair.
        assert failed.status in ("LOC_PROT_ERR", "LOC_QP_OP_ERR")
        assert inbox.memory.read_bytes() == b"\1" * (64 + 2 * inbox.GUARD)


class TestFailuresRaisedOrReturned:
    def fail_the_third_of_five(self, pair: Pair) -> None:
        local, remote = pair.buffer(8), pair.buffer(8).remote()
        wrong = RemoteMemory(remote.addr, remote.rkey ^ 0x5500, remote.length)
        pair.a.post(*[Write(local.region, wrong if i == 2 else remote, wr_id=i) for i in range(5)])

    def test_returned(self, pair: Pair) -> None:
        self.fail_the_third_of_five(pair)
        found = collect(pair.a, 5)
        assert [done.wr_id for done in found] == [0, 1, 2, 3, 4]
        assert [done.status for done in found] == ["SUCCESS"] * 2 + ["REM_ACCESS_ERR"] + ["WR_FLUSH_ERR"] * 2
        assert pair.a.outstanding == (0, 0)

    def test_raised(self, pair: Pair) -> None:
        """What succeeded before comes first, and each failure is raised once."""
        self.fail_the_third_of_five(pair)
        good: list[Completion] = []
        errors: list[zh.ZerohopError] = []
        while len(good) + len(errors) < 5:
            try:
                good += pair.a.wait(timeout=TIMEOUT)
            except zh.DeadlineExceeded:
                raise
            except zh.ZerohopError as error:
                errors.append(error)
                assert len(good) == 2
        assert [done.wr_id for done in good] == [0, 1]
        assert [type(error) for error in errors] == [zh.AccessDenied, zh.PeerLost, zh.PeerLost]
        assert ["wr_id 2" in errors[0].reason, "wr_id 4" in errors[2].reason] == [True, True]
        assert errors[0].operation == "RDMA_WRITE"
        assert pair.a.poll() == []

    def test_unsignalled_failures_are_told(self, pair: Pair) -> None:
        remote = pair.buffer(8).remote()
        wrong = RemoteMemory(remote.addr, remote.rkey ^ 0x5500, remote.length)
        pair.a.post_write(pair.buffer(8).region, wrong, wr_id=3, signalled=False)
        assert (one(pair.a).wr_id, pair.a.outstanding) == (3, (0, 0))

    def test_receives_are_flushed(self, pair: Pair) -> None:
        pair.b.post_recvs(*[Receive(wr_id=i) for i in range(3)])
        # One that is longer than the first receive ends both queue pairs.
        pair.a.post_send(b"1", inline=True)
        found = collect(pair.b, 3)
        assert [(done.wr_id, done.status) for done in found[1:]] == [(1, "WR_FLUSH_ERR"), (2, "WR_FLUSH_ERR")]
        assert pair.b.outstanding == (0, 0)


class TestConnecting:
    def test_before_it(self, lab: Lab) -> None:
        with Pair(lab, connect=False) as pair:
            assert (pair.a.connected, pair.b.connected) == (False, False)
            with pytest.raises(ValueError, match="not connected"):
                pair.a.post(Send())
            pair.b.post_recv(wr_id=8)
            pair.a.connect(pair.b.handle)
            pair.b.connect(EndpointHandle.from_bytes(bytes(pair.a.handle)))
            pair.a.post_send(imm=1)
            assert one(pair.b).wr_id == 8
            assert one(pair.a).ok

    def test_once_and_to_a_handle(self, pair: Pair) -> None:
        with pytest.raises(ValueError, match="connected already"):
            pair.a.connect(pair.b.handle)
        with pytest.raises(TypeError, match="EndpointHandle"):
            pair.a.connect(bytes(pair.b.handle))  # type: ignore[arg-type]

    def test_to_infiniband(self, lab: Lab) -> None:
        with Pair(lab, connect=False) as pair, pytest.raises(zh.Unsupported, match="InfiniBand"):
            pair.a.connect(EndpointHandle(qpn=5, psn=1, lid=3, link_layer="InfiniBand"))

    def test_what_is_no_request(self, pair: Pair) -> None:
        for wrong in (None, b"bytes", Receive()):
            with pytest.raises(TypeError):
                pair.a.post(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            pair.a.post_recvs(Send())  # type: ignore[arg-type]
        pair.a.post()
        pair.a.post_recvs()
        assert pair.a.outstanding == (0, 0)


class TestWaiting:
    def test_deadline(self, pair: Pair) -> None:
        pair.a.post_recv()
        for timeout in (0, 2):
            began, used = time.monotonic(), time.process_time()
            with pytest.raises(zh.DeadlineExceeded, match="1 receives are outstanding"):
                pair.a.wait(timeout=timeout)
            assert timeout <= time.monotonic() - began < TIMEOUT
            assert time.process_time() - used < 1, "a wait should sleep"
        assert pair.a.outstanding == (0, 1)

    @pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
    def test_timeouts_that_make_no_sense(self, pair: Pair, timeout: float, error: type[Exception]) -> None:
        with pytest.raises(error):
            pair.a.wait(timeout=timeout)

    def test_arguments(self, pair: Pair) -> None:
        for call in (pair.a.poll, pair.a.wait):
            with pytest.raises(ValueError, match="limit"):
                call(0)
            with pytest.raises(TypeError, match="limit"):
                call(1.5)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="errors"):
                call(1, errors="ignore")  # type: ignore[arg-type]

    def test_limit(self, pair: Pair) -> None:
        pair.a.post(*[Write(b"x", pair.buffer(1).remote(), inline=True, wr_id=i) for i in range(7)])
        found: list[int] = []
        while len(found) < 7:
            some = pair.a.wait(2, timeout=TIMEOUT)
            assert 1 <= len(some) <= 2
            found += [done.wr_id for done in some]
        assert found == list(range(7))

    def test_others_run_meanwhile_and_one_of_them_wakes_it(self, pair: Pair) -> None:
        pair.b.post_recv(wr_id=1)
        got: list[Completion] = []
        waiter = threading.Thread(target=lambda: got.extend(pair.b.wait(timeout=TIMEOUT)))
        waiter.start()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        assert waiter.is_alive()
        pair.a.post_send()
        waiter.join(TIMEOUT)
        assert [done.wr_id for done in got] == [1]
        assert one(pair.a).ok

    def test_several_waiters_share_what_comes(self, pair: Pair) -> None:
        got: list[int] = []
        lock = threading.Lock()

        def wait_for_four() -> None:
            for _ in range(4):
                (done,) = pair.b.wait(1, timeout=TIMEOUT)
                with lock:
                    got.append(done.wr_id)

        pair.b.post_recvs(*[Receive(wr_id=i) for i in range(12)])
        waiters = [threading.Thread(target=wait_for_four) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
        for _ in range(12):
            pair.a.post_send()
            assert one(pair.a).ok
        for waiter in waiters:
            waiter.join(TIMEOUT)
            assert not waiter.is_alive()
        assert sorted(got) == list(range(12))

    def test_ctrl_c(self, pair: Pair) -> None:
        timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        # In the background of a script it is ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)

        def wait() -> None:
            timer.start()
            pair.a.wait(timeout=TIMEOUT)

        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
        signal.signal(signal.SIGINT, before)
        pair.b.post_recv()
        pair.a.post_send()
        assert one(pair.a).ok


def test_two_threads_post_and_poll_at_once(pair: Pair) -> None:
    """Each request completes once, whoever polls it."""
    target = pair.buffer(8)
    rounds = 60
    done: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        mine = pair.buffer(8)
        for turn in range(rounds):
            while True:
                try:
                    pair.a.post_fetch_add(mine.region, target.remote(), 1, wr_id=number * rounds + turn)
                    break
                except zh.WouldBlock:
                    take(pair.a.poll())

    def take(completions: list[Completion]) -> None:
        with lock:
            done.extend(each.wr_id for each in completions)

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    while len(done) < 2 * rounds:
        take(pair.a.wait(timeout=TIMEOUT))
    assert sorted(done) == list(range(2 * rounds))
    assert target.get() == (2 * rounds).to_bytes(8, "little")


class TestClosing:
    def test_everything_below_it(self, own_pair: Pair) -> None:
        pair = own_pair
        region = pair.buffer(64).region
        pair.a.post_recv(region)
        pair.lab.rdma.close()
        pair.lab.rdma.close()
        assert all(each.closed for each in (pair.device, pair.a, pair.b, region))
        for use in (
            lambda: pair.device.create_endpoint(),
            lambda: pair.device.register(bytearray(8)),
            lambda: pair.a.connect(pair.b.handle),
            lambda: pair.a.post(Send()),
            pair.a.post_recv,
            pair.a.poll,
            pair.a.wait,
            lambda: pair.a.outstanding,
            region.remote,
        ):
            with pytest.raises(zh.Closed):
                use()
        assert "closed" in repr(pair.a)
        assert pair.a.handle.qpn == pair.a.qpn

    def test_a_wait_ends(self, pair: Pair) -> None:
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                pair.b.wait(timeout=TIMEOUT)
            except zh.Closed as error:
                errors.append(error)

        waiters = [threading.Thread(target=wait) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
        time.sleep(0.3)  # until all of them wait, of which there is no event
        pair.b.close()
        for waiter in waiters:
            waiter.join(TIMEOUT)
        assert len(errors) == 3

    def test_with_requests_in_flight(self, pair: Pair) -> None:
        """Nothing is written any more once the endpoint is closed."""
        inbox = pair.buffer(1 << 20, fill=1)
        source = pair.buffer(1 << 20, fill=2)
        pair.a.post(*[Write(source.region, inbox.remote()) for _ in range(8)])
        pair.a.close()
        pair.b.close()
        inbox.memory.fill(3)
        time.sleep(0.3)
        assert inbox.get() == b"\3" * (1 << 20)

    def test_children_keep_their_parents(self) -> None:
        rdma = fabric.Context()
        device = rdma.open("rxe0")
        a, b = device.create_endpoint(), device.create_endpoint()
        region = device.register(bytearray(64), ALL)
        del rdma, device
        gc.collect()
        a.connect(b.handle)
        b.connect(a.handle)
        a.post_write(b"x", region.remote()[:1], inline=True)
        assert one(a).ok

    def test_dropping_is_closing(self) -> None:
        def use() -> int:
            device = fabric.Context().open("rxe0")
            endpoint = device.create_endpoint(EndpointConfig(gid_index=1))
            endpoint.post_recv(device.register(bytearray(64)))
            return endpoint.qpn

        use()
        gc.collect()
        before = descriptors()
        for _ in range(2):
            use()
        gc.collect()
        assert descriptors() == before

    def test_many(self, pair: Pair) -> None:
        """As many as one likes, one after the other."""
        before = descriptors()
        for _ in range(30):
            with pair.device.create_endpoint(EndpointConfig(max_messages=8)) as endpoint:
                endpoint.post_recv(pair.device.register(bytearray(100)))
        assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def in_a_child(check: Callable[[], None]) -> None:
    """Run it in a forked child, which ends without its parent's exit handlers."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_fork(own_pair: Pair) -> None:
    """The child's copies are closed; and whatever it does with them, the parent's go on."""
    pair = own_pair
    region = pair.buffer(64).region
    pair.b.post_recv(region, wr_id=2)

    def check() -> None:
        for use in (pair.a.poll, pair.device.create_endpoint, pair.lab.rdma.devices, lambda: pair.a.post(Send())):
            with pytest.raises(zh.Closed, match=r"before fork\(\)"):
                use()
        pair.a.close()
        pair.lab.rdma.close()
        pair.lab.__dict__.clear()
        pair.__dict__.clear()
        gc.collect()

    in_a_child(check)
    pair.a.post_send(imm=1)
    assert one(pair.a).ok
    assert one(pair.b).wr_id == 2
