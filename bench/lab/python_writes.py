"""Compares small writes from Python over verbs with PyPI's ``ibverbs``, and page lists with zerohop's single writes.

    python bench/lab/python_writes.py [--pairs 20] [--json FILE]

Time from post to done of one write of 8 bytes: ``write(…).result()`` in zerohop, ``post_send`` and ``poll`` until there
is a completion in the other library, the same loop around both; the median of a run. Both targets are memory that no
thread has to serve: another process's, and another queue pair's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import ibverbs as ib
import numpy as np
from pairs import DEVICE, GID_INDEX, arguments, compare, write

import zerohop as zh

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 300
PAGES, PAGE_BYTES = 256, 1024
PORT = 1
OPTIONS: dict[str, Any] = {"providers": ["verbs"], "nics": [DEVICE]}


def child() -> None:
    """Run the peer: share memory, and wait for the end."""
    with zh.Context(**OPTIONS) as context:
        memory = context.register(np.zeros(2 * PAGES * PAGE_BYTES, np.uint8))
        print(bytes(memory.share("rw")).hex(), flush=True)
        sys.stdin.read()


def timed(once: Callable[[], object]) -> float:
    """Return the median microseconds of a call."""
    times = []
    for _ in range(COUNT):
        began = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


class Theirs:
    """Connects two queue pairs of the other library to each other."""

    def __init__(self) -> None:
        device = next(device for device in ib.get_device_list() if device.name in (DEVICE, DEVICE.encode()))
        self.context = device.open()
        self.domain = self.context.alloc_pd()
        self.queue = self.context.create_cq(64)
        self.data = np.zeros(4096, np.uint8)
        flags = ib.AccessFlags
        access = flags.LOCAL_WRITE | flags.REMOTE_WRITE
        self.region = self.domain.reg_mr(self.data.ctypes.data, self.data.nbytes, access)
        wanted = ib.QPInitAttr(
            send_cq=self.queue, recv_cq=self.queue, qp_type=ib.QPType.RC, max_send_wr=32, max_recv_wr=1
        )
        self.pairs = [self.domain.create_qp(wanted) for _ in range(2)]
        port, gid = self.context.query_port(PORT), self.context.query_gid(PORT, GID_INDEX)
        infos = [ib.local_qp_info(pair, port, gid, port=PORT, psn=7) for pair in self.pairs]
        for pair, info in zip(self.pairs, reversed(infos), strict=True):
            pair.to_init(PORT, access)
            pair.to_rtr(info, sgid_index=GID_INDEX, mtu=info.mtu, max_dest_rd_atomic=1)
            pair.to_rts(7, retry_cnt=6, max_rd_atomic=1)
        self.request = ib.SendWR(
            wr_id=1,
            sg_list=[ib.SGE(self.region, 8)],
            opcode=ib.WROpcode.RDMA_WRITE,
            send_flags=ib.SendFlags.SIGNALED,
            remote_addr=self.data.ctypes.data + 2048,
            rkey=self.region.rkey,
        )

    def once(self) -> None:
        """Write once, from post to poll; the request was made beforehand."""
        self.pairs[0].post_send(self.request)
        while not (found := self.queue.poll(1)):
            pass
        found[0].raise_for_status()


def main() -> None:
    """Measure both rows, and check every byte at the end."""
    options = arguments(__doc__).parse_args()
    command = [sys.executable, __file__, "--child"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer,
        zh.Context(**OPTIONS) as context,
    ):
        assert peer.stdout is not None
        handle = zh.RemoteBuffer.from_bytes(bytes.fromhex(peer.stdout.readline().strip()))
        nbytes = PAGES * PAGE_BYTES
        data = np.random.default_rng().integers(0, 255, nbytes, np.uint8)
        source = context.register(data)
        local, remote, small, there = source[:nbytes], handle[:nbytes], source[:8], handle[:8]
        context.write(source, remote).result(30)
        path = context.explain(small, there)
        assert (path.provider, path.form, path.direct) == ("verbs", "rdma", True), path.details()
        theirs = Theirs()
        rows = [
            compare(
                "write 8 B from Python, to PyPI ibverbs",
                "us",
                lambda: timed(lambda: context.write(small, there).result()),
                lambda: timed(theirs.once),
                target=1.0,
                smaller=True,
                pairs=options.pairs,
            )
        ]

        numbers = np.random.default_rng().permutation(PAGES)
        places = np.random.default_rng().permutation(PAGES) + PAGES
        ends = [slice(k * PAGE_BYTES, (k + 1) * PAGE_BYTES) for k in range(2 * PAGES)]
        pages = [(source[ends[k]], handle[ends[m]]) for k, m in zip(numbers, places, strict=True)]

        def rate(once: Callable[[], object]) -> float:
            once()
            began = time.perf_counter_ns()
            for _ in range(5):
                once()
            return 5 * PAGES / (time.perf_counter_ns() - began) * 1e6

        def listed() -> None:
            context.write_pages(local, handle, numbers, places, page_bytes=PAGE_BYTES).result()

        def single() -> None:
            zh.wait_all([context.write(mine, yours) for mine, yours in pages], 30)

        rows.append(
            compare(
                f"write_pages {PAGES} x {PAGE_BYTES} B, to single writes",
                "k/s",
                lambda: rate(listed),
                lambda: rate(single),
                target=2.0,
                smaller=False,
                pairs=options.pairs,
            )
        )
        back = np.zeros(nbytes, np.uint8)
        context.read(handle[nbytes:], back).result(30)
        expected = np.zeros((PAGES, PAGE_BYTES), np.uint8)
        expected[places - PAGES] = data.reshape(PAGES, PAGE_BYTES)[numbers]
        assert np.array_equal(back, expected.reshape(-1)), "wrong bytes"
        write(options.json, rows)
        assert peer.stdin is not None
        peer.stdin.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        main()
