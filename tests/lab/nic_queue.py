"""`python -m lab.nic_queue FOLDER`, with software_mlx5.cpp preloaded: kernels write to the queue that a NIC reads.

It prints "ok", or ends with an error. FOLDER: for what is compiled.
"""

from __future__ import annotations

import os
import secrets
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import zerohop as zh
from device.runners import runner
from lab.fabric_pair import TIMEOUT, Lab
from lab.kernel_sender import Sender, compiled
from zerohop.device import FAILED, OK, Queue

# The NIC's thread looks at queue pairs until the process ends, so Queues are not closed.
KEPT: list[object] = []


def many_threads(lab: Lab, sender: Sender, send: Any) -> None:
    threads, part = 4, 24
    each = len(sender.data) // threads
    queue = sender.near.kernel_queue(lab.context, timeout=TIMEOUT, doorbell="nic")
    with queue, queue.active(), ThreadPoolExecutor(threads) as pool:
        calls = [sender.arguments(number * each, part, each // part) for number in range(threads)]
        found = list(pool.map(lambda call: send(queue.pointer, *call), calls))
    assert found == [OK] * threads, found
    assert sender.target.get() == sender.data
    sender.target.expect_guards()
    assert send(queue.pointer, *sender.arguments(0, 8, 1)) == FAILED  # it is closed


def a_wrong_key(lab: Lab, sender: Sender, send: Any) -> None:
    local, local_key, remote, remote_key, *_ = sender.arguments(0, 8, 1)
    with sender.near.kernel_queue(lab.context, timeout=TIMEOUT, doorbell="nic") as queue:
        with pytest.raises(zh.AccessDenied, match="REM_ACCESS_ERR"), queue.active():
            found = [send(queue.pointer, local, local_key, remote, key, 8, 1) for key in (remote_key ^ 256, remote_key)]
        assert found == [FAILED, FAILED], found
    assert sender.target.get() == bytes([0xA5]) * len(sender.data)


def a_queue_of_the_device_face() -> None:
    """Kernels put, signal and do atomics on a Queue whose requests the NIC reads."""
    nbytes = 100_000
    data = secrets.token_bytes(nbytes)
    run = runner("thread", "host")
    far, near = zh.Context(providers=["verbs"]), zh.Context(providers=["verbs"])
    there, here, report = far.alloc(nbytes + 16), near.alloc(nbytes), near.alloc(16)
    there.fill(0xA5)
    there.write_bytes(nbytes, bytes(16))
    here.write_bytes(0, data)
    queue = Queue(near, [there.share("rw")], [here], mode="mlx5", timeout=TIMEOUT)
    KEPT.append(queue)

    def expect(wanted: int, name: str, *arguments: int, blocks: int = 1) -> None:
        report.fill(0)
        with queue.active():
            run(name, queue.pointer, report.address, arguments, blocks)
        found = struct.unpack("qq", report.read_bytes())
        assert found == (OK, wanted), f"{name}: {found}"

    assert "the NIC reads the requests" in queue.explain(), queue.explain()
    expect(0, "put_signal", 0, 0, 0, 0, nbytes, nbytes, 40)
    expect(40, "fetch_add", 0, nbytes, 2)
    expect(42, "compare_swap", 0, nbytes, 42, 7)
    expect(0, "signal_add", 0, nbytes + 8, 1)
    expect(0, "put_blocks", 24, 50, nbytes + 8, blocks=8)
    expect(0, "quiet")
    queue.check()
    assert there.read_bytes(0, nbytes) == data
    assert there.read_bytes(nbytes, 16) == struct.pack("QQ", 7, 9)
    near.close()
    far.close()


def main(folder: Path) -> None:
    a_queue_of_the_device_face()
    lab = Lab()
    senders = [Sender(lab, 24_000) for _ in range(2)]
    many_threads(lab, senders[0], compiled(folder))
    a_wrong_key(lab, senders[1], compiled(folder))
    lab.context.close()
    print("ok", flush=True)
    os._exit(0)  # skip destructors: the NIC's thread polls the queues until the process ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
