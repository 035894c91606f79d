"""With an independent library: an endpoint of ours and a queue pair of PyPI's ``ibverbs``, in both directions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ibverbs as ib
import numpy as np
import pytest

from lab.fabric_pair import ALL, TIMEOUT, Lab, one
from support.pattern import pattern
from zerohop.fabric import CompareSwap, EndpointHandle, FetchAdd, RemoteMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from zerohop.fabric import Endpoint, MemoryRegion

PORT, GID_INDEX = 1, 1
SIZES = (1, 64, 4096, 4097, 100_003)
ROOM = 1 << 17


class Theirs:
    """A queue pair of the other library, with memory."""

    def __init__(self) -> None:
        device = next(device for device in ib.get_device_list() if device.name in ("rxe0", b"rxe0"))
        self.context = device.open()
        self.domain = self.context.alloc_pd()
        self.queue = self.context.create_cq(64)
        self.pair = self.domain.create_qp(
            ib.QPInitAttr(send_cq=self.queue, recv_cq=self.queue, qp_type=ib.QPType.RC, max_send_wr=32, max_recv_wr=32)
        )
        self.data: NDArray[np.uint8] = np.zeros(ROOM, np.uint8)
        flags = ib.AccessFlags
        self.access = flags.LOCAL_WRITE | flags.REMOTE_WRITE | flags.REMOTE_READ | flags.REMOTE_ATOMIC
        self.region = self.domain.reg_mr(self.data.ctypes.data, ROOM, self.access)
        self.psn = 0x123456

    def handle(self) -> EndpointHandle:
        """What our side connects to: made from what the other library says of its queue pair."""
        port = self.context.query_port(PORT)
        info = ib.local_qp_info(self.pair, port, self.context.query_gid(PORT, GID_INDEX), port=PORT, psn=self.psn)
        return EndpointHandle(
            qpn=info.qp_num, psn=info.psn, lid=info.lid, gid=info.gid, mtu=128 << info.mtu, read_credit=4
        )

    def connect(self, handle: EndpointHandle) -> None:
        """To ours: made from the fields of our handle."""
        info = ib.QPInfo(
            qp_num=handle.qpn,
            psn=handle.psn,
            lid=handle.lid,
            gid=handle.gid,
            port=handle.port,
            mtu={256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[handle.mtu],
        )
        self.pair.to_init(PORT, self.access)
        self.pair.to_rtr(info, sgid_index=GID_INDEX, mtu=info.mtu, max_dest_rd_atomic=4)
        self.pair.to_rts(self.psn, retry_cnt=6, max_rd_atomic=4)

    def remote(self, start: int, stop: int) -> RemoteMemory:
        return RemoteMemory(self.data.ctypes.data, self.region.rkey, ROOM)[start:stop]

    def post(self, opcode: Any, start: int, stop: int, remote: RemoteMemory | None = None, **fields: Any) -> None:
        pieces = [ib.SGE(self.region, stop - start, offset=start)] if stop > start else []
        self.pair.post_send(
            ib.SendWR(
                wr_id=1,
                sg_list=pieces,
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=remote.addr if remote is not None else 0,
                rkey=remote.rkey if remote is not None else 0,
                **fields,
            )
        )

    def receive(self, start: int, stop: int) -> None:
        self.pair.post_recv(ib.RecvWR(wr_id=2, sg_list=[ib.SGE(self.region, stop - start, offset=start)]))

    def done(self) -> Any:
        """The next completion."""
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            if found := self.queue.poll(1):
                found[0].raise_for_status()
                return found[0]
        raise AssertionError("the other library's queue pair has no completion")

    def close(self) -> None:
        for each in (self.pair, self.region, self.queue, self.domain, self.context):
            each.close()


class Ours:
    """An endpoint, with memory."""

    def __init__(self, lab: Lab) -> None:
        self.endpoint: Endpoint = lab.device.create_endpoint()
        self.data: NDArray[np.uint8] = np.zeros(ROOM, np.uint8)
        self.region: MemoryRegion = lab.device.register(self.data, ALL)

    def remote(self, start: int, stop: int) -> RemoteMemory:
        return self.region[start:stop].remote()

    def done(self) -> None:
        completion = one(self.endpoint)
        assert completion.ok, completion.error

    def close(self) -> None:
        self.endpoint.close()
        self.region.close()


@pytest.fixture(scope="module")
def lab(runtime_directory: None) -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    theirs = Theirs()
    yield theirs
    theirs.close()


@pytest.fixture
def ours(lab: Lab, theirs: Theirs) -> Iterator[Ours]:
    ours = Ours(lab)
    ours.endpoint.connect(theirs.handle())
    theirs.connect(EndpointHandle.from_bytes(bytes(ours.endpoint.handle)))
    yield ours
    ours.close()


def expect_equal(ours: Ours, theirs: Theirs, filled: NDArray[np.uint8], nbytes: int) -> None:
    """The first bytes of both sides are those that were filled in, and behind them nothing was touched."""
    assert np.array_equal(ours.data[:nbytes], filled)
    assert np.array_equal(theirs.data[:nbytes], filled)
    assert not ours.data[nbytes:].any()
    assert not theirs.data[nbytes:].any()


@pytest.mark.parametrize("nbytes", SIZES)
class TestTransfers:
    def test_write_to_them(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        ours.data[:nbytes] = data = pattern(nbytes, nbytes)
        ours.endpoint.post_write(ours.region[:nbytes], theirs.remote(0, nbytes))
        ours.done()
        expect_equal(ours, theirs, data, nbytes)

    def test_write_to_us(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        theirs.data[:nbytes] = data = pattern(nbytes, nbytes)
        theirs.post(ib.WROpcode.RDMA_WRITE, 0, nbytes, ours.remote(0, nbytes))
        theirs.done()
        expect_equal(ours, theirs, data, nbytes)

    def test_read_from_them(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        theirs.data[:nbytes] = data = pattern(nbytes, nbytes)
        ours.endpoint.post_read(ours.region[:nbytes], theirs.remote(0, nbytes))
        ours.done()
        expect_equal(ours, theirs, data, nbytes)

    def test_read_from_us(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        ours.data[:nbytes] = data = pattern(nbytes, nbytes)
        theirs.post(ib.WROpcode.RDMA_READ, 0, nbytes, ours.remote(0, nbytes))
        theirs.done()
        expect_equal(ours, theirs, data, nbytes)

    def test_write_with_immediate_to_them(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        ours.data[:nbytes] = data = pattern(nbytes, nbytes)
        theirs.receive(0, 1)
        ours.endpoint.post_write(ours.region[:nbytes], theirs.remote(0, nbytes), imm=0xC0FFEE00)
        arrived = theirs.done()
        assert (arrived.imm_data, arrived.opcode) == (0xC0FFEE00, ib.WCOpcode.RECV_RDMA_WITH_IMM)
        expect_equal(ours, theirs, data, nbytes)
        ours.done()

    def test_write_with_immediate_to_us(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        theirs.data[:nbytes] = data = pattern(nbytes, nbytes)
        ours.endpoint.post_recv(wr_id=9)
        theirs.post(ib.WROpcode.RDMA_WRITE_WITH_IMM, 0, nbytes, ours.remote(0, nbytes), imm_data=0xC0FFEE00)
        arrived = one(ours.endpoint)
        assert (arrived.imm, arrived.opcode, arrived.wr_id) == (0xC0FFEE00, "RECV_RDMA_WITH_IMM", 9)
        expect_equal(ours, theirs, data, nbytes)
        theirs.done()

    def test_send_to_them(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        ours.data[:nbytes] = data = pattern(nbytes, nbytes)
        theirs.receive(0, ROOM)
        ours.endpoint.post_send(ours.region[:nbytes], imm=7)
        arrived = theirs.done()
        assert (arrived.byte_len, arrived.imm_data, arrived.opcode) == (nbytes, 7, ib.WCOpcode.RECV)
        expect_equal(ours, theirs, data, nbytes)
        ours.done()

    def test_send_to_us(self, ours: Ours, theirs: Theirs, nbytes: int) -> None:
        theirs.data[:nbytes] = data = pattern(nbytes, nbytes)
        ours.endpoint.post_recv(ours.region, wr_id=9)
        theirs.post(ib.WROpcode.SEND_WITH_IMM, 0, nbytes, imm_data=7)
        arrived = one(ours.endpoint)
        assert (arrived.byte_len, arrived.imm, arrived.opcode) == (nbytes, 7, "RECV")
        expect_equal(ours, theirs, data, nbytes)
        theirs.done()


def test_inline_write_to_them(ours: Ours, theirs: Theirs) -> None:
    ours.endpoint.post_write(b"twelve bytes", theirs.remote(100, 112), inline=True)
    ours.done()
    assert theirs.data[100:112].tobytes() == b"twelve bytes"
    assert np.count_nonzero(theirs.data) == 12


def words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return data[:16].view(np.uint64)


def test_atomics_on_their_memory(ours: Ours, theirs: Theirs) -> None:
    """The second word is what is worked on; the first one of ours gets what was there."""
    words(theirs.data)[1] = 5
    into, remote = ours.region[:8], theirs.remote(8, 16)
    for request, before, after in (
        (FetchAdd(into, remote, 37), 5, 42),
        (FetchAdd(into, remote, (1 << 64) - 2), 42, 40),
        (CompareSwap(into, remote, 41, 1), 40, 40),
        (CompareSwap(into, remote, 40, 1 << 63), 40, 1 << 63),
    ):
        ours.endpoint.post(request)
        ours.done()
        assert (words(ours.data)[0], words(theirs.data)[1]) == (before, after)
    assert words(theirs.data)[0] == words(ours.data)[1] == 0


def test_atomics_on_our_memory(ours: Ours, theirs: Theirs) -> None:
    words(ours.data)[1] = 5
    add, swap = ib.WROpcode.ATOMIC_FETCH_AND_ADD, ib.WROpcode.ATOMIC_CMP_AND_SWP
    for opcode, operands, before, after in (
        (add, {"compare_add": 37}, 5, 42),
        (add, {"compare_add": (1 << 64) - 2}, 42, 40),
        (swap, {"compare_add": 41, "swap": 1}, 40, 40),
        (swap, {"compare_add": 40, "swap": 1 << 63}, 40, 1 << 63),
    ):
        theirs.post(opcode, 0, 8, ours.remote(8, 16), **operands)
        theirs.done()
        assert (words(theirs.data)[0], words(ours.data)[1]) == (before, after)
    assert words(ours.data)[0] == words(theirs.data)[1] == 0
