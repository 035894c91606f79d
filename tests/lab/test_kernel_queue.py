"""Requests that kernels post, here threads of the host, to queue pairs of Soft-RoCE."""

from __future__ import annotations

import ctypes
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from lab.fabric_pair import IMPATIENT, TIMEOUT, Buffer, Lab
from zerohop.device import CLOSED, FAILED, OK, TIMED_OUT, include_dir
from zerohop.fabric import EndpointConfig, KernelQueue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KERNELS = """
#include "zerohop/device/work_queue.hpp"
using zerohop::device::Word;
using namespace zerohop::device::mlx5;
extern "C" Word send(const WorkQueue* queue, Word local, Word local_key, Word remote, Word remote_key, Word nbytes,
                     Word count) {
    Posted posted{};
    for (Word i = 0; i < count; ++i) {
        posted = PostWrite(queue, local + i * nbytes, static_cast<unsigned>(local_key), remote + i * nbytes,
                           static_cast<unsigned>(remote_key), nbytes);
        Word status = UpdateSendDbrRecord(queue, posted);
        status = status == 0 ? RingDoorbell(queue, posted) : status;
        if (status != 0) {
            return status;
        }
    }
    const Word status = PollCq(queue, posted);
    UpdateCqDbrRecord(queue);
    return status;
}
"""
CONFIG = EndpointConfig(max_messages=16, timeout=10, retry_count=2, rnr_retry=2, on_gpu=True)


@pytest.fixture(scope="module")
def lab(runtime_directory: None) -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def send(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library: Path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", include_dir(), "-x", "c++", "-"]
    subprocess.run([*command, "-o", str(library)], input=KERNELS, text=True, check=True, timeout=TIMEOUT)
    function: Any = ctypes.CDLL(str(library)).send
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_uint64] * 7
    return function


class Sender:
    """An endpoint for kernels, which is connected to one of the CPU's, with memory on both sides."""

    def __init__(self, lab: Lab, nbytes: int) -> None:
        self.near = lab.device.create_endpoint(CONFIG)
        self.far = lab.device.create_endpoint(IMPATIENT)
        self.near.connect(self.far.handle)
        self.far.connect(self.near.handle)
        self.source = Buffer(lab.context, lab.device, nbytes, "host", 0x11)
        self.target = Buffer(lab.context, lab.device, nbytes, "host", 0xA5)
        self.data = random.randbytes(nbytes)
        self.source.put(self.data)

    def arguments(self, offset: int, nbytes: int, count: int) -> tuple[int, ...]:
        there, region = self.target.remote(), self.source.region
        return region.addr + offset, region.lkey, there.addr + offset, there.rkey, nbytes, count

    def close(self) -> None:
        for each in (self.near, self.far, self.source, self.target):
            each.close()


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


def test_the_endpoint_closes_it(lab: Lab, sender: Sender, send: Any) -> None:
    queue = sender.near.kernel_queue(lab.context, timeout=TIMEOUT)
    sender.near.close()
    assert queue.closed
    assert send(queue.pointer, *sender.arguments(0, 8, 1)) == CLOSED
