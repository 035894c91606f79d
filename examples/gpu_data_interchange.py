#!/usr/bin/env python3
"""Exchanges 1024 bytes between two GPUs over RDMA, in the eight steps of MORI's GPU data interchange example.

Sender and receiver have a queue pair and a buffer each, the buffers on two GPUs, here in one process or in two
(--processes 2). The sender's queue pair writes into the receiver's buffer, the device moves the bytes without a copy
in host memory, and the receiver checks every byte.

The CPU posts the write, or with --on-gpu a kernel: PostWrite, UpdateSendDbrRecord, RingDoorbell, PollCq,
UpdateCqDbrRecord. Kernels run on a GPU (--device cuda), and check the bytes there; or as threads of the host (--device
host), compiled by c++. Without --on-gpu the GPUs may be simulated (--device sim), with memory that the CPU cannot
touch. Kernels on GPUs have not run in this example yet: not verified on hardware.

    python examples/gpu_data_interchange.py [--device sim|host|cuda] [--on-gpu] [--processes 2] [--nic mlx5_0:1]

Needs an RDMA device; Soft-RoCE will do (modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0). Without one it
says what is missing and exits with 1, as it does if a byte is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zerohop as zh
from zerohop import fabric
from zerohop.device import include_dir
from zerohop.fabric import Access

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NBYTES = 1024
VALUE = 42
KERNELS = """
#include "zerohop/device/work_queue.hpp"
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__
#else
#define KERNEL extern "C"
#endif
using zerohop::device::Word;
using namespace zerohop::device::mlx5;

KERNEL void send(const WorkQueue* queue, Word local, Word local_key, Word remote, Word remote_key, Word nbytes,
                 Word* out) {
    Posted posted = PostWrite(queue, local, static_cast<unsigned>(local_key), remote,
                                    static_cast<unsigned>(remote_key), nbytes);
    Word status = UpdateSendDbrRecord(queue, posted);
    status = status == 0 ? RingDoorbell(queue, posted) : status;
    status = status == 0 ? PollCq(queue, posted) : status;
    UpdateCqDbrRecord(queue);
    *out = status;
}

KERNEL void verify(const unsigned char* bytes, Word nbytes, Word value, Word* out) {
    Word wrong = 0;
    for (Word i = 0; i < nbytes; ++i) {
        wrong += bytes[i] != value ? 1 : 0;
    }
    *out = wrong;
}
"""


class Kernels:
    """Compiles the kernels for a place, and runs them there, in one thread."""

    def __init__(self, gpus: zh.Context, place: str) -> None:
        self._place = place
        self._out = gpus.alloc(8, place)
        if place == "host":
            with tempfile.TemporaryDirectory() as folder:
                library = Path(folder) / "kernels.so"
                command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", "-I", include_dir(), "-x", "c++", "-"]
                subprocess.run([*command, "-o", str(library)], input=KERNELS, text=True, check=True)
                self._library = ctypes.CDLL(str(library))
        else:
            from cuda import core

            self._core: Any = core
            gpu: Any = core.Device(int(place.partition(":")[2]))
            gpu.set_current()
            self._gpu, self._stream = gpu, gpu.create_stream()
            options = core.ProgramOptions(std="c++17", arch=f"sm_{gpu.arch}", include_path=[include_dir()])
            self._code: Any = core.Program(KERNELS, "c++", options).compile("cubin")

    def __call__(self, name: str, *arguments: int) -> int:
        """Run a kernel, and return what it has written to its last argument."""
        words = [ctypes.c_uint64(each) for each in (*arguments, self._out.address)]
        if self._place == "host":
            getattr(self._library, name)(*words)
        else:
            self._gpu.set_current()
            kernel = self._code.get_kernel(name)
            self._core.launch(self._stream, self._core.LaunchConfig(grid=1, block=1), kernel, *words)
            self._stream.sync()
        return int.from_bytes(self._out.read_bytes(), "little")


class Receiver:
    """Has a queue pair and a buffer, into which the sender's queue pair writes."""

    def __init__(self, arguments: argparse.Namespace, opened: ExitStack, *, second: bool) -> None:
        self._arguments = arguments
        self._gpus = opened.enter_context(zh.Context(sim_devices=2, listen=None))
        rdma = opened.enter_context(fabric.Context("verbs"))
        self._device = rdma.open(rdma.choose_port(arguments.nic))
        self._place = place_of(arguments, second=second)
        self._endpoint = self._device.create_endpoint()

    def handle(self) -> fabric.EndpointHandle:
        """Return the address for the sender's endpoint."""
        return self._endpoint.handle

    def connect(self, handle: fabric.EndpointHandle) -> None:
        """Connect to the sender's endpoint."""
        self._endpoint.connect(handle)

    def allocate(self) -> tuple[fabric.RemoteMemory, str]:
        """Allocate and register the buffer; return how the sender names it, and where it is."""
        self._target = self._gpus.alloc(NBYTES, self._place)
        self._target.fill(0)
        self._region = self._device.register(self._target, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        if not self._arguments.on_gpu:
            self._endpoint.post_recv()
        return self._region.remote(), self._target.device

    def verify(self) -> str | None:
        """Return what is wrong with the bytes, or None."""
        if not self._arguments.on_gpu:
            (arrived,) = self._endpoint.wait(timeout=10)
            if arrived.imm != VALUE:
                return f"the notification carries {arrived.imm}, not {VALUE}"
        if self._arguments.corrupt:
            self._target.write_bytes(NBYTES // 2, bytes([VALUE ^ 1]))
        if self._arguments.on_gpu:
            count = Kernels(self._gpus, self._place)("verify", self._target.address, NBYTES, VALUE)
            if not count:
                return None
        # The driver of the receiving device reads them from the device's memory.
        got = self._target.read_bytes()
        wrong = [place for place, value in enumerate(got) if value != VALUE]
        return f"{len(wrong)} bytes are wrong, the first at {wrong[0]}: {got[wrong[0]]}" if wrong else None


class OtherReceiver:
    """Calls the same of a Receiver in a process of its own."""

    def __init__(self, arguments: argparse.Namespace, opened: ExitStack) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, arguments), daemon=True)
        process.start()
        theirs.close()
        opened.callback(process.join, 10)
        opened.callback(self._pipe.close)
        self._call("open")

    def _call(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        if not self._pipe.poll(30):
            raise zh.DeadlineExceeded(f"the receiver's process does not answer {name}")
        try:
            error, result = self._pipe.recv()
        except EOFError:
            raise zh.PeerLost("the receiver's process has ended") from None
        if error is not None:
            raise error
        return result

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._call(name, *arguments)


def serve(pipe: Connection, arguments: argparse.Namespace) -> None:
    """Do what the sender's process asks for, until it closes the pipe."""
    with ExitStack() as opened:
        receiver: Any = None
        while True:
            try:
                name, given = pipe.recv()
            except EOFError:
                return
            try:
                if name == "open":
                    receiver = Receiver(arguments, opened, second=True)
                pipe.send((None, None if name == "open" else getattr(receiver, name)(*given)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the sender's process is to tell it
                pipe.send((zh.PeerLost(f"in the receiver's process: {type(error).__name__}: {error}"), None))


def place_of(arguments: argparse.Namespace, *, second: bool) -> str:
    """Return where the sender's buffer is, or the receiver's."""
    if arguments.device == "host":
        return "host"
    if arguments.device == "sim":
        return f"sim:{int(second)}"
    with zh.Context(listen=None) as gpus:
        several = sum(device.name.startswith("cuda:") for device in gpus.devices) > 1
    return f"cuda:{int(second and several)}"


def main() -> int:
    arguments = parse()
    print("=== Simple GPU Data Interchange Example ===")
    print(f"Transferring {NBYTES} bytes with value {VALUE}\n")

    print("Step 1: Initializing RDMA context...")
    with ExitStack() as opened:
        gpus = opened.enter_context(zh.Context(sim_devices=2, listen=None))
        rdma = opened.enter_context(fabric.Context("verbs"))
        error = interchange(rdma, gpus, arguments, opened)
        if error is not None:
            print(f"Error: {error}", file=sys.stderr)
            return 1
        print("Step 8: Cleaning up resources...")
        # Leaving the block closes first the RDMA Context, with its regions, endpoints and devices.
    print("  Resources cleaned up\n")
    print("=== Example completed successfully! ===")
    return 0


def interchange(rdma: fabric.Context, gpus: zh.Context, arguments: argparse.Namespace, opened: ExitStack) -> str | None:
    """Take the steps up to the check of every byte; return what is wrong, or None."""
    print(f"  Found {len(rdma.devices())} RDMA device(s)")

    print("Step 2: Getting RDMA devices...")
    print(f"  Found {len(rdma.active_ports())} active device port(s)")
    port = rdma.choose_port(arguments.nic)

    print("Step 3: Creating device contexts...")
    device = rdma.open(port)
    two = arguments.processes == 2
    receiver: Any = OtherReceiver(arguments, opened) if two else Receiver(arguments, opened, second=True)
    print("  Device contexts created")
    print(f"  (both on {port.name}, {port.port.link_layer}{', in two processes' if two else ''})")

    print("Step 4: Creating RDMA endpoints...")
    send = device.create_endpoint(fabric.EndpointConfig(on_gpu=arguments.on_gpu))
    print(f"  Endpoints created (QPN: send={send.qpn}, recv={receiver.handle().qpn})")

    print("Step 5: Connecting endpoints...")
    send.connect(receiver.handle())
    receiver.connect(send.handle)
    print("  Endpoints connected")

    print("Step 6: Allocating and registering GPU buffers...")
    source = gpus.alloc(NBYTES, place_of(arguments, second=False))
    source.fill(VALUE)
    region = device.register(source, Access.LOCAL_WRITE)
    remote, where = receiver.allocate()
    print("  Buffers allocated and registered")
    print(f"  (on {source.device} and {where}{', simulated GPUs' if arguments.device == 'sim' else ''})")

    if arguments.on_gpu:
        print("Step 7: Launching GPU kernel for data interchange...")
        send_by_kernel(gpus, send, region, remote, source.device)
    else:
        print("Step 7: Posting an RDMA write for data interchange...")
        print("  (posted on the queue pair by the CPU; --on-gpu has a kernel post it)")
        # The immediate takes a receive of the other side, which so learns that the data is there.
        send.post_write(region, remote, imm=VALUE)
        send.wait(timeout=10)
    error: str | None = receiver.verify()
    if error is None:
        print(f"Success! All {NBYTES} bytes verified with value {VALUE}")
        print("  Kernel execution completed" if arguments.on_gpu else "  Transfer completed")
    return error


def send_by_kernel(
    gpus: zh.Context, send: fabric.Endpoint, region: fabric.MemoryRegion, remote: fabric.RemoteMemory, place: str
) -> None:
    """Have a kernel post the write, ring the doorbell, and wait for the completion."""
    kernels = Kernels(gpus, place)
    print(f"  (a kernel on {place} posts the request; this process reads its doorbell)")
    with send.kernel_queue(gpus, place, timeout=10) as queue:
        with queue.active():
            status = kernels("send", queue.pointer, region.addr, region.lkey, remote.addr, remote.rkey, remote.length)
        if status:
            raise zh.DeviceFailed(f"the kernel's request ended with status {status}", fix="look at the receiver's side")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two GPUs exchange 1024 bytes over RDMA.")
    parser.add_argument(
        "--device", choices=("sim", "host", "cuda"), help="where the buffers are; default: sim, or host"
    )
    parser.add_argument("--on-gpu", action="store_true", help="a kernel posts the write, and one checks the bytes")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1, help="2: the receiver has its own process")
    parser.add_argument("--nic", help="such as mlx5_0:1; default: the best port that works")
    # For the test of this example: one byte is changed between the transfer and its verification.
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device is None:
        arguments.device = "host" if arguments.on_gpu else "sim"
    if arguments.on_gpu and arguments.device == "sim":
        parser.error("no kernel runs on a simulated GPU; type --device host or --device cuda")
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (zh.ZerohopError, ValueError) as error:
        sys.exit(f"Error: {error}")
    except (ImportError, FileNotFoundError) as error:
        sys.exit(f"Error: {error}; kernels need c++ (--device host), or cuda-core and NVRTC: pip install zerohop[cuda]")
