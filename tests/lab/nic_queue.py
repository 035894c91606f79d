"""`python -m lab.nic_queue FOLDER`, with software_mlx5.cpp preloaded: kernels write to the queue that a NIC reads.

It prints "ok", or ends with an error. FOLDER: for what is compiled.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import zerohop as zh
from lab.fabric_pair import TIMEOUT, Lab
from lab.kernel_sender import Sender, compiled
from zerohop.device import FAILED, OK


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


def main(folder: Path) -> None:
    lab = Lab()
    senders = [Sender(lab, 24_000) for _ in range(2)]
    many_threads(lab, senders[0], compiled(folder))
    a_wrong_key(lab, senders[1], compiled(folder))
    lab.context.close()
    print("ok", flush=True)
    os._exit(0)  # skip destructors: the NIC's thread polls the queues until the process ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
