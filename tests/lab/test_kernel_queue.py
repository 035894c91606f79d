"""Requests that kernels post, here threads of the host, to queue pairs of Soft-RoCE."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from lab.fabric_pair import TIMEOUT, Lab
from lab.kernel_sender import CONFIG, Sender, compiled
from zerohop.device import CLOSED, FAILED, OK, TIMED_OUT
from zerohop.fabric import KernelQueue

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def lab(runtime_directory: None) -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def send(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def sender(lab: Lab) -> Iterator[Sender]:
    sender = Sender(lab, 24_000)
    yield sender
    sender.close()


@pytest.mark.parametrize("collapsed", [False, True])
def test_many_threads_and_few_places(lab: Lab, sender: Sender, send: Any, collapsed: bool) -> None:
    threads, part = 4, 24
    each = len(sender.data) // threads
    queue = sender.near.kernel_queue(lab.context, timeout=TIMEOUT, collapsed=collapsed)
    with queue, queue.active(), ThreadPoolExecutor(threads) as pool:
        calls = [sender.arguments(number * each, part, each // part) for number in range(threads)]
        found = list(pool.map(lambda call: send(queue.pointer, *call), calls))
    assert found == [OK] * threads
    assert sender.target.get() == sender.data
    sender.target.expect_guards()


def test_a_wrong_key_is_a_status(lab: Lab, sender: Sender, send: Any) -> None:
    local, local_key, remote, remote_key, *_ = sender.arguments(0, 8, 1)
    with sender.near.kernel_queue(lab.context, timeout=TIMEOUT) as queue:
        calls = [(local, local_key, remote, key, 8, 1) for key in (remote_key ^ 0x100, remote_key)]
        with pytest.raises(zh.AccessDenied, match="REM_ACCESS_ERR"), queue.active():
            found = [send(queue.pointer, *call) for call in calls]
        assert found == [FAILED, FAILED]
        with pytest.raises(zh.AccessDenied):
            queue.check()
    assert sender.target.get() == bytes([0xA5]) * len(sender.data)


def test_waits_end(lab: Lab, sender: Sender, send: Any) -> None:
    with sender.near.kernel_queue(lab.context, timeout=0.5) as queue:
        assert send(queue.pointer, *sender.arguments(0, 8, 1)) == TIMED_OUT  # nobody looks
        queue.check()  # a longer wait may succeed
        assert send(queue.pointer, *sender.arguments(0, 8, 20)) == TIMED_OUT  # more than there are places
        with pytest.raises(zh.DeadlineExceeded, match="to post"):
            queue.check()
        queue.close()
        assert send(queue.pointer, *sender.arguments(0, 8, 1)) == CLOSED
        with pytest.raises(zh.Closed, match="KernelQueue"), queue.active():
            pass


def test_a_request_that_no_nic_takes(lab: Lab, sender: Sender, send: Any) -> None:
    with sender.near.kernel_queue(lab.context, timeout=TIMEOUT) as queue:
        # The number of the queue pair, which each request has, is the descriptor's second word.
        ctypes.c_uint64.from_address(queue.pointer + 8).value ^= 1
        with pytest.raises(zh.DeviceFailed, match="no NIC takes"), queue.active():
            assert send(queue.pointer, *sender.arguments(0, 8, 1)) == FAILED
    assert sender.target.get() == bytes([0xA5]) * len(sender.data)


def test_the_context_closes_first(sender: Sender, send: Any) -> None:
    context = zh.Context(listen=None, providers=["shm"])
    queue = sender.near.kernel_queue(context, timeout=TIMEOUT)
    context.close()
    assert send(queue.pointer, *sender.arguments(0, 8, 1)) == CLOSED
    with pytest.raises(zh.Closed, match="Context"), queue.active():
        pass
    queue.close()


def test_whose_the_queues_are(lab: Lab, sender: Sender) -> None:
    for call in (
        lambda: sender.near.post_write(sender.source.region, sender.target.remote()),
        lambda: sender.near.post_recv(),
        lambda: sender.near.poll(),
    ):
        with pytest.raises(ValueError, match="for kernels"):
            call()
    with pytest.raises(ValueError, match="on_gpu=True"):
        sender.far.kernel_queue(lab.context)
    with lab.device.create_endpoint(CONFIG) as alone, pytest.raises(ValueError, match="not connected"):
        alone.kernel_queue(lab.context)
    with sender.near.kernel_queue(lab.context) as queue:
        assert isinstance(queue, KernelQueue)
        with pytest.raises(ValueError, match="already"):
            sender.near.kernel_queue(lab.context)
    assert queue.closed
    with pytest.raises(ValueError, match="already"):  # completions of the first one would be taken for its own
        sender.near.kernel_queue(lab.context)
    with lab.device.create_endpoint(CONFIG) as other:
        other.connect(sender.far.handle)
        with pytest.raises(ValueError, match="more than 0"):
            other.kernel_queue(lab.context, timeout=0)
        with pytest.raises(ValueError, match='or "nic"'):
            other.kernel_queue(lab.context, doorbell="hca")  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValueError, match="to a ring"):
            other.kernel_queue(lab.context, doorbell="nic", collapsed=True)
        with pytest.raises(zh.Unsupported, match=re.escape('no mlx5 device. Fix: doorbell="host"')):
            other.kernel_queue(lab.context, doorbell="nic")
        other.kernel_queue(lab.context).close()  # as the error says


def test_the_endpoint_closes_it(lab: Lab, sender: Sender, send: Any) -> None:
    queue = sender.near.kernel_queue(lab.context, timeout=TIMEOUT)
    sender.near.close()
    assert queue.closed
    assert send(queue.pointer, *sender.arguments(0, 8, 1)) == CLOSED


def test_a_queue_that_a_nic_reads(tmp_path: Path) -> None:
    library = tmp_path / "libmlx5.so.1"
    source = Path(__file__).with_name("software_mlx5.cpp")
    command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wl,-soname,libmlx5.so.1", str(source)]
    subprocess.run([*command, "-o", str(library), "-libverbs"], check=True, timeout=TIMEOUT)
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "lab.nic_queue", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT * 2)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
