"""The explicit API over Soft-RoCE: every operation, with every byte checked, and what it finds on a machine."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from lab.fabric_pair import ALL, Lab, Pair, collect, one
from support.pattern import pattern
from zerohop import fabric
from zerohop.fabric import Access, CompareSwap, EndpointConfig, FetchAdd, Read, Receive, Send, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

# Around the inline limit, the MTU of 4096 and a page; several packets; the port's longest message.
SIZES = (0, 1, 63, 64, 65, 219, 220, 221, 4095, 4096, 4097, 65_537, 1 << 20)
PLACES = pytest.mark.parametrize(
    ("here", "there"), [("host", "host"), ("sim:0", "sim:1"), ("host", "sim:0"), ("sim:1", "host")]
)
MOST_64 = (1 << 64) - 1


@pytest.fixture(scope="module")
def lab(runtime_directory: None) -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def pair(lab: Lab) -> Iterator[Pair]:
    with Pair(lab) as pair:
        yield pair


class TestMachine:
    def test_devices(self) -> None:
        with fabric.Context() as rdma:
            found = {device.name: device for device in rdma.devices()}
            root = Path("/sys/class/infiniband")
            assert sorted(found) == sorted(entry.name for entry in root.iterdir())
            device = found["rxe0"]
            assert device.guid == (root / "rxe0/node_guid").read_text("ascii").strip()
            assert (device.why_not, device.limits.atomics) == ("", "hca")
            assert min(device.limits.requests, device.limits.sge, device.limits.completions, device.limits.regions) > 0
            (port,) = device.ports
            assert (port.number, port.state, port.link_layer, port.active_mtu) == (1, "ACTIVE", "Ethernet", 4096)
            assert "rxe0:1" in [active.name for active in rdma.active_ports()]

    def test_choosing(self) -> None:
        with fabric.Context() as rdma:
            assert rdma.choose_port("rxe0:1").name == "rxe0:1"
            assert rdma.choose_port().port.active
            with pytest.raises(zh.Unsupported, match="filter"):
                rdma.choose_port("^rxe*")
            with pytest.raises(ValueError, match="empty name"):
                rdma.choose_port("rxe0,,rxe1")

    def test_direct_says_that_this_is_no_mlx5(self) -> None:
        with pytest.raises(zh.Unsupported, match=r"libmlx5|mlx5.*rxe0"):
            fabric.Context("direct")

    def test_opening(self) -> None:
        with fabric.Context() as rdma:
            for chosen in ("rxe0", rdma.choose_port("rxe0"), rdma.choose_port("rxe0").device):
                with rdma.open(chosen) as device:
                    assert device.name == "rxe0:1"
            for name, port in (("rxe77", 1), ("rxe0", 2)):
                with pytest.raises(zh.Unsupported, match="rxe0"):
                    rdma.open(name, port)

    def test_endpoints_are_within_limits(self, pair: Pair) -> None:
        for config, what in (
            (EndpointConfig(max_messages=1 << 25), "max_messages"),
            (EndpointConfig(max_sge=1000), "max_sge"),
            (EndpointConfig(port=2), "port"),
            (EndpointConfig(gid_index=200), "GID"),
        ):
            with pytest.raises(ValueError, match=what):
                pair.device.create_endpoint(config)
        with pytest.raises(TypeError, match="EndpointConfig"):
            pair.device.create_endpoint({"max_sge": 1})  # type: ignore[arg-type]

    def test_handles(self, pair: Pair) -> None:
        handle = pair.a.handle
        assert (handle.qpn, handle.port, handle.link_layer, handle.mtu) == (pair.a.qpn, 1, "Ethernet", 4096)
        assert handle.address == "10.9.0.1"
        assert handle.psn != pair.b.handle.psn
        smaller = pair.device.create_endpoint(EndpointConfig(mtu=512, read_credit=3, gid_index=1)).handle
        assert (smaller.mtu, smaller.read_credit) == (512, 3)


@PLACES
class TestTransfers:
    def test_write(self, pair: Pair, here: str, there: str) -> None:
        source, target = pair.buffer(SIZES[-1], here), pair.buffer(SIZES[-1], there)
        for nbytes in SIZES:
            data = pattern(nbytes, nbytes).tobytes()
            source.put(data)
            target.memory.fill(0)
            pair.a.post_write(source.region[:nbytes], target.remote()[:nbytes], wr_id=nbytes)
            done = one(pair.a)
            assert (done.wr_id, done.opcode, done.ok, done.byte_len) == (nbytes, "RDMA_WRITE", True, nbytes)
            assert target.get() == data + bytes(SIZES[-1] - nbytes)
            target.expect_guards()

    def test_read(self, pair: Pair, here: str, there: str) -> None:
        into, source = pair.buffer(SIZES[-1], here), pair.buffer(SIZES[-1], there)
        for nbytes in SIZES:
            data = pattern(nbytes, nbytes).tobytes()
            source.put(data)
            into.memory.fill(0)
            pair.a.post_read(into.region[:nbytes], source.remote()[:nbytes], wr_id=nbytes)
            done = one(pair.a)
            assert (done.wr_id, done.opcode, done.ok, done.byte_len) == (nbytes, "RDMA_READ", True, nbytes)
            assert into.get() == data + bytes(SIZES[-1] - nbytes)
            into.expect_guards()

    def test_send(self, pair: Pair, here: str, there: str) -> None:
        source, target = pair.buffer(SIZES[-1], here), pair.buffer(SIZES[-1], there)
        for nbytes in SIZES:
            data = pattern(nbytes, nbytes).tobytes()
            source.put(data)
            target.memory.fill(0)
            pair.b.post_recv(target.region, wr_id=nbytes)
            pair.a.post_send(source.region[:nbytes], imm=nbytes)
            assert one(pair.a).opcode == "SEND"
            got = one(pair.b)
            assert (got.wr_id, got.opcode, got.byte_len, got.imm) == (nbytes, "RECV", nbytes, nbytes)
            assert target.get() == data + bytes(SIZES[-1] - nbytes)
            target.expect_guards()

    def test_atomics(self, pair: Pair, here: str, there: str) -> None:
        into, target = pair.buffer(64, here, fill=7), pair.buffer(64, there, fill=9)
        value = 5

        def before(request: FetchAdd | CompareSwap) -> int:
            pair.a.post(request)
            assert one(pair.a).ok
            return int.from_bytes(into.get()[8:16], "little")

        target.put(value.to_bytes(8, "little"), 16)
        word, remote = into.region[8:16], target.remote()[16:24]
        assert before(FetchAdd(word, remote, 37)) == 5
        assert before(FetchAdd(word, remote, MOST_64)) == 42
        assert before(CompareSwap(word, remote, compare=40, swap=1)) == 41
        assert before(CompareSwap(word, remote, compare=41, swap=MOST_64)) == 41
        assert before(FetchAdd(word, remote, 3)) == MOST_64
        assert target.get() == b"\x09" * 16 + (2).to_bytes(8, "little") + b"\x09" * 40
        assert into.get()[:8] + into.get()[16:] == b"\x07" * 56

    def test_write_with_immediate(self, pair: Pair, here: str, there: str) -> None:
        source, target = pair.buffer(5000, here), pair.buffer(5000, there)
        for imm, nbytes in ((0, 0), (1, 1), (0x8000_0000, 220), ((1 << 32) - 1, 5000)):
            data = pattern(imm & 0xFFFF, nbytes).tobytes()
            source.put(data)
            pair.b.post_recv(wr_id=imm)
            pair.a.post_write(source.region[:nbytes], target.remote()[:nbytes], imm=imm)
            got = one(pair.b)
            assert (got.wr_id, got.opcode, got.imm) == (imm, "RECV_RDMA_WITH_IMM", imm)
            assert target.get()[:nbytes] == data
            assert one(pair.a).ok


class TestInline:
    @pytest.mark.parametrize("registered", [False, True])
    def test_bytes_are_copied_when_posted(self, pair: Pair, registered: bool) -> None:
        target = pair.buffer(pair.a.max_inline)
        assert pair.a.max_inline >= 220
        for nbytes in (0, 1, 64, pair.a.max_inline):
            data = pattern(nbytes, nbytes).tobytes()
            mine = np.frombuffer(bytearray(data), np.uint8) if nbytes else np.zeros(0, np.uint8)
            local: Any = pair.device.register(mine) if registered and nbytes else bytearray(data)
            pair.a.post_write(local, target.remote()[:nbytes], inline=True)
            mine[:] = 0xEE
            assert one(pair.a).ok
            assert target.get()[:nbytes] == data

    def test_send(self, pair: Pair) -> None:
        inbox = pair.buffer(64)
        for data in (b"", b"x", b"several words"):
            pair.b.post_recv(inbox.region)
            pair.a.post_send(memoryview(data), inline=True, imm=3)
            got = one(pair.b)
            assert (got.byte_len, got.imm, inbox.get()[: len(data)]) == (len(data), 3, data)
            assert one(pair.a).ok

    def test_too_much(self, pair: Pair) -> None:
        with pytest.raises(ValueError, match=f"{pair.a.max_inline} that may go inline"):
            pair.a.post_send(bytes(pair.a.max_inline + 1), inline=True)
        assert pair.a.outstanding == (0, 0)


class TestSeveralRanges:
    def test_gather_and_scatter(self, lab: Lab) -> None:
        with Pair(lab, EndpointConfig(max_sge=4)) as pair:
            mine, theirs = pair.buffer(10_000), pair.buffer(10_000, "sim:1")
            other = pair.buffer(100, "sim:0")
            data, more = pattern(1, 10_000).tobytes(), pattern(2, 100).tobytes()
            mine.put(data)
            other.put(more)
            pieces = [mine.region[5000:], other.region, mine.region[1:1], mine.region[:900]]
            expected = data[5000:] + more + data[:900]
            pair.a.post_write(pieces, theirs.remote()[:6000])
            assert one(pair.a).byte_len == 6000
            assert theirs.get() == expected + bytes(4000)

            theirs.memory.fill(0)
            pair.b.post_recv([theirs.region[9000:], theirs.region[:5000]])
            pair.a.post_send(pieces)
            assert (one(pair.a).ok, one(pair.b).byte_len) == (True, 6000)
            assert theirs.get() == expected[1000:] + bytes(4000) + expected[:1000]

            mine.memory.fill(0)
            pair.a.post_read([mine.region[100:200], mine.region[:100]], theirs.remote()[:200])
            assert one(pair.a).ok
            assert mine.get()[:200] == expected[1100:1200] + expected[1000:1100]

    def test_more_than_the_endpoint_takes(self, pair: Pair) -> None:
        local = pair.buffer(64)
        two = [local.region[:1], local.region[:1]]
        with pytest.raises(ValueError, match="max_sge=1"):
            pair.a.post_send(two)
        with pytest.raises(ValueError, match="max_sge=1"):
            pair.a.post_recv(two)
        assert pair.a.outstanding == (0, 0)


class TestChains:
    def test_one_doorbell_for_requests_of_all_kinds(self, pair: Pair) -> None:
        local, remote, inbox = pair.buffer(64), pair.buffer(64), pair.buffer(64)
        local.put(bytes(range(64)))
        pair.b.post_recvs(Receive(inbox.region, wr_id=1), Receive(wr_id=2))
        pair.a.post(
            Write(local.region[:16], remote.remote()[:16], wr_id=10, signalled=False),
            FetchAdd(local.region[56:], remote.remote()[:8], 1, wr_id=11),
            Send(local.region[16:32], wr_id=12, signalled=False),
            Read(local.region[32:40], remote.remote()[:8], wr_id=13, fence=True),
            Write(b"end", remote.remote()[61:], wr_id=14, imm=5, inline=True),
        )
        assert [done.wr_id for done in collect(pair.a, 3)] == [11, 13, 14]
        assert [(got.wr_id, got.imm) for got in collect(pair.b, 2)] == [(1, None), (2, 5)]
        first = int.from_bytes(bytes(range(8)), "little")
        assert remote.get() == (first + 1).to_bytes(8, "little") + bytes(range(8, 16)) + bytes(45) + b"end"
        assert inbox.get()[:16] == bytes(range(16, 32))
        assert local.get()[32:40] == (first + 1).to_bytes(8, "little")
        assert local.get()[56:] == bytes(range(8))
        assert pair.a.outstanding == pair.b.outstanding == (0, 0)

    def test_completions_have_the_order_of_their_requests(self, pair: Pair) -> None:
        local, remote = pair.buffer(4096), pair.buffer(4096)
        pair.a.post(*[Write(local.region, remote.remote(), wr_id=i) for i in range(100)])
        assert [done.wr_id for done in collect(pair.a, 100)] == list(range(100))

    def test_the_same_request_again(self, pair: Pair) -> None:
        target = pair.buffer(8)
        request = FetchAdd(pair.buffer(8).region, target.remote(), 1, wr_id=4)
        pair.a.post(*[request] * 50)
        collect(pair.a, 50)
        pair.a.post(request)
        assert one(pair.a).wr_id == 4
        assert target.get() == (51).to_bytes(8, "little")

    def test_nothing_signalled_for_ever(self, lab: Lab) -> None:
        """The queue is never stuck: some are signalled all the same, and their completions are kept back."""
        for length in (1, 2, 3, 16):
            with Pair(lab, EndpointConfig(max_messages=length)) as pair:
                target = pair.buffer(8)
                request = FetchAdd(pair.buffer(8).region, target.remote(), 1, signalled=False)
                for _ in range(5 * length):
                    while True:
                        try:
                            pair.a.post(request)
                        except zh.WouldBlock:
                            assert pair.a.poll() == []
                        else:
                            break
                while pair.a.outstanding[0] == length:
                    assert pair.a.poll() == []
                pair.a.post_read(pair.buffer(8).region, target.remote(), wr_id=1)
                assert one(pair.a).wr_id == 1
                assert target.get() == (5 * length).to_bytes(8, "little")


class TestFullQueues:
    def test_send_queue(self, lab: Lab) -> None:
        with Pair(lab, EndpointConfig(max_messages=4)) as pair:
            local, remote = pair.buffer(8), pair.buffer(8)
            request = FetchAdd(local.region, remote.remote(), 1)
            with pytest.raises(zh.WouldBlock, match="4 are free, and 5 are needed"):
                pair.a.post(*[request] * 5)
            assert pair.a.outstanding == (0, 0)
            pair.a.post(*[request] * 3)
            with pytest.raises(zh.WouldBlock, match="1 are free, and 2 are needed") as caught:
                pair.a.post(request, request)
            assert "poll" in caught.value.fix
            assert pair.a.outstanding == (3, 0)
            pair.a.post(request)
            collect(pair.a, 4)
            pair.a.post(request)
            collect(pair.a, 1)
            assert remote.get() == (5).to_bytes(8, "little")

    def test_receive_queue(self, lab: Lab) -> None:
        with Pair(lab, EndpointConfig(max_messages=2, max_receives=3)) as pair:
            pair.b.post_recvs(Receive(), Receive())
            with pytest.raises(zh.WouldBlock, match="1 are free"):
                pair.b.post_recvs(Receive(), Receive())
            pair.b.post_recv()
            with pytest.raises(zh.WouldBlock):
                pair.b.post_recv()
            assert pair.b.outstanding == (0, 3)

    def test_places_are_used_again_and_again(self, lab: Lab) -> None:
        with Pair(lab, EndpointConfig(max_messages=3, max_receives=2)) as pair:
            inbox, outbox = pair.buffer(4), pair.buffer(4)
            for number in range(50):
                pair.b.post_recv(inbox.region, wr_id=number)
                outbox.put(number.to_bytes(4, "little"))
                pair.a.post_send(outbox.region, wr_id=number)
                assert one(pair.a).wr_id == one(pair.b).wr_id == number
                assert inbox.get() == number.to_bytes(4, "little")


class TestRegistration:
    def test_whatever_is_memory(self, pair: Pair) -> None:
        target = pair.buffer(4096)
        data = pattern(3, 4096)
        raw = data.copy()
        shared = pair.context.alloc(4096)
        shared.write_bytes(0, data.tobytes())
        mine = pair.context.register(data.copy())
        for source in (
            data,
            bytearray(data.tobytes()),
            data.tobytes(),
            memoryview(data.tobytes()),
            (raw.ctypes.data, raw.nbytes, "host"),
            shared,
            shared[:],
            mine,
        ):
            target.memory.fill(0)
            with pair.device.register(source) as region:
                pair.a.post_write(region, target.remote())
                assert one(pair.a).ok
                assert target.get() == data.tobytes(), type(source)
        shared.close()
        mine.close()

    def test_part_of_an_array_at_an_odd_address(self, pair: Pair) -> None:
        data = pattern(5, 9000)
        target = pair.buffer(5000)
        region = pair.device.register(data[1001:6001])
        assert (region.addr, region.length) == (data.ctypes.data + 1001, 5000)
        pair.a.post_write(region, target.remote())
        assert one(pair.a).ok
        assert target.get() == data[1001:6001].tobytes()

    def test_what_is_registered_is_kept(self, pair: Pair) -> None:
        data = np.ones(4096, np.uint8)
        gone = weakref.ref(data)
        region = pair.device.register(data)
        del data
        gc.collect()
        assert gone() is not None
        target = pair.buffer(4096)
        # Nobody but the request has it now.
        pair.a.post_write(region, target.remote())
        closing = weakref.ref(region)
        del region
        gc.collect()
        assert closing() is not None
        assert one(pair.a).ok
        assert closing() is None
        assert gone() is None
        assert target.get() == b"\1" * 4096

    def test_memory_of_a_context_stays_until_the_region_is_closed(self, pair: Pair) -> None:
        buffer, target = pair.buffer(4096, "sim:0", fill=3), pair.buffer(4096)
        address = buffer.memory.address
        buffer.memory.close()
        others = [pair.context.alloc(8192, "sim:0") for _ in range(8)]
        assert address not in [other.address for other in others]
        pair.a.post_write(buffer.region, target.remote())
        assert one(pair.a).ok
        assert target.get() == b"\3" * 4096
        for other in others:
            other.close()

    def test_memory_of_a_context_that_was_closed(self, pair: Pair) -> None:
        target = pair.buffer(4096)
        with zh.Context(sim_devices=1, listen=None) as context:
            memory = context.alloc(4096, "sim:0")
            memory.fill(3)
            region = pair.device.register(memory)
        pair.a.post_write(region, target.remote())
        assert one(pair.a).ok
        assert target.get() == b"\3" * 4096
        region.close()

    def test_access(self, pair: Pair) -> None:
        frozen = bytes(4096)
        assert pair.device.register(frozen).access == Access.NONE
        assert pair.device.register(bytearray(64)).access == Access.LOCAL_WRITE
        assert pair.device.register(frozen, Access.REMOTE_READ).remote().length == 4096
        pair.device.register(bytearray(64), ALL | Access.RELAXED_ORDERING)
        readable = pair.context.register(bytearray(64), rights="r")
        pair.device.register(readable, Access.LOCAL_WRITE | Access.REMOTE_READ)
        for memory, access in (
            (frozen, Access.LOCAL_WRITE),
            (frozen, Access.REMOTE_WRITE),
            (bytearray(64), Access.REMOTE_WRITE),
            (bytearray(64), Access.REMOTE_ATOMIC),
            (readable, Access.LOCAL_WRITE | Access.REMOTE_WRITE),
            (bytearray(0), None),
        ):
            with pytest.raises(ValueError, match=r"read-only|LOCAL_WRITE|rights|no bytes"):
                pair.device.register(memory, access)
        readable.close()
        wrong: tuple[tuple[Any, Any], ...] = ((None, None), (bytearray(64), 1), (bytearray(64), "rw"))
        for memory, access in wrong:
            with pytest.raises(TypeError):
                pair.device.register(memory, access)

    def test_what_cannot_be_registered(self, pair: Pair) -> None:
        with pytest.raises(zh.RegistrationFailed, match="plain address") as caught:
            pair.device.register((0x1000, 4096, "host"))
        assert caught.value.fix
        memory = pair.context.alloc(64, "sim:0")
        with pytest.raises(zh.Unsupported, match="sim:0"):
            pair.device.register((memory.address, 64, "sim:0"))
        memory.close()
        with pytest.raises(zh.Closed):
            pair.device.register(memory)

    def test_a_gpu_without_peermem(self, pair: Pair) -> None:
        with zh.Context(sim_devices=1, sim_peermem=False, listen=None) as context:
            with pytest.raises(zh.RegistrationFailed) as caught:
                pair.device.register(context.alloc(4096, "sim:0"))
            assert "dma-buf" in caught.value.reason
            assert "nvidia_peermem" in str(caught.value)

    def test_how(self, pair: Pair) -> None:
        assert pair.device.register(bytearray(64)).how == "plain address"
        how = pair.buffer(64, "sim:0").region.how
        assert how.startswith("alias address")
        assert "dma-buf: a simulated device exports none)" in how


def test_regions_of_another_device_context(pair: Pair) -> None:
    with pair.lab.rdma.open("rxe0") as other:
        foreign = other.register(bytearray(64), ALL)
        with pytest.raises(ValueError, match="another device context"):
            pair.a.post_send(foreign)
        with pytest.raises(ValueError, match="another device context"):
            pair.a.post_recv(foreign)
        # By its key it can be reached, though: that is what connects machines.
        assert foreign.remote().length == 64
    assert pair.a.outstanding == (0, 0)


def test_longest_message(pair: Pair) -> None:
    most = pair.a.max_message
    assert most == pair.device.device.ports[0].max_message
    source, target = np.frombuffer(os.urandom(most + 1), np.uint8), np.zeros(most + 1, np.uint8)
    local, written = pair.device.register(source), pair.device.register(target, ALL)
    remote = written.remote()
    pair.a.post_write(local[:most], remote[:most])
    assert one(pair.a).byte_len == most
    assert np.array_equal(source[:most], target[:most])
    assert target[most] == 0
    with pytest.raises(ValueError, match=f"more than the {most}"):
        pair.a.post_write(local, remote)
