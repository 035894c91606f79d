#!/usr/bin/env python3
"""Exchanges 1024 bytes between two GPUs over RDMA, in the eight steps of MORI's GPU data interchange example.

Sender and receiver have a queue pair and a buffer each, the buffers on two GPUs. The sender's queue pair writes into
the receiver's buffer, the device moves the bytes without a copy in host memory, and the receiver checks every byte.
Here the CPU posts the write; requests that a kernel posts are for a later version. The GPUs are simulated
(--device sim), with memory that the CPU cannot touch, or there are none (--device host).

    python examples/gpu_data_interchange.py [--device sim|host] [--nic mlx5_0:1]

Needs an RDMA device; Soft-RoCE will do (modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0). Without one it
says what is missing and exits with 1, as it does if a byte is wrong.
"""

from __future__ import annotations

import argparse
import sys

import zerohop as zh
from zerohop import fabric
from zerohop.fabric import Access

NBYTES = 1024
VALUE = 42


def main() -> int:
    arguments = parse()
    print("=== Simple GPU Data Interchange Example ===")
    print(f"Transferring {NBYTES} bytes with value {VALUE}\n")

    print("Step 1: Initializing RDMA context...")
    with zh.Context(sim_devices=2, listen=None) as gpus, fabric.Context("verbs") as rdma:
        error = interchange(rdma, gpus, arguments)
        if error is not None:
            print(f"Error: {error}", file=sys.stderr)
            return 1
        print("Step 8: Cleaning up resources...")
        # Leaving the block closes first the RDMA Context, with its regions, endpoints and devices.
    print("  Resources cleaned up\n")
    print("=== Example completed successfully! ===")
    return 0


def interchange(rdma: fabric.Context, gpus: zh.Context, arguments: argparse.Namespace) -> str | None:
    """Take the steps up to the check of every byte; return what is wrong, or None."""
    simulated = arguments.device == "sim"
    print(f"  Found {len(rdma.devices())} RDMA device(s)")

    print("Step 2: Getting RDMA devices...")
    print(f"  Found {len(rdma.active_ports())} active device port(s)")
    port = rdma.choose_port(arguments.nic)

    print("Step 3: Creating device contexts...")
    device_send = rdma.open(port)
    device_recv = rdma.open(port)
    print("  Device contexts created")
    print(f"  (both on {port.name}, {port.port.link_layer})")

    print("Step 4: Creating RDMA endpoints...")
    send = device_send.create_endpoint()
    recv = device_recv.create_endpoint()
    print(f"  Endpoints created (QPN: send={send.qpn}, recv={recv.qpn})")

    print("Step 5: Connecting endpoints...")
    # Two processes would send each other bytes(endpoint.handle).
    send.connect(recv.handle)
    recv.connect(send.handle)
    print("  Endpoints connected")

    print("Step 6: Allocating and registering GPU buffers...")
    places = ("sim:0", "sim:1") if simulated else ("host", "host")
    source = gpus.alloc(NBYTES, places[0])
    target = gpus.alloc(NBYTES, places[1])
    source.fill(VALUE)
    target.fill(0)
    source_region = device_send.register(source, Access.LOCAL_WRITE)
    target_region = device_recv.register(target, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    print("  Buffers allocated and registered")
    print(f"  (on {source.device} and {target.device}{', simulated GPUs' if simulated else ''})")

    print("Step 7: Posting an RDMA write for data interchange...")
    print("  (posted on the queue pair by the CPU; a kernel that posts it is for a later version)")
    # The immediate takes a receive of the other side, which so learns that the data is there.
    recv.post_recv()
    send.post_write(source_region, target_region.remote(), imm=VALUE)
    send.wait(timeout=10)
    (arrived,) = recv.wait(timeout=10)
    if arrived.imm != VALUE:
        return f"the notification carries {arrived.imm}, not {VALUE}"
    if arguments.corrupt:
        target.write_bytes(NBYTES // 2, bytes([VALUE ^ 1]))
    # The driver of the receiving device reads them from the device's memory.
    got = target.read_bytes()
    wrong = [place for place, value in enumerate(got) if value != VALUE]
    if wrong:
        return f"{len(wrong)} bytes are wrong, the first at {wrong[0]}: {got[wrong[0]]}"
    print(f"Success! All {len(got)} bytes verified with value {VALUE}")
    print("  Transfer completed")
    return None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two GPUs exchange 1024 bytes over RDMA.")
    parser.add_argument("--device", choices=("sim", "host"), default="sim", help="where the buffers are")
    parser.add_argument("--nic", help="such as mlx5_0:1; default: the best port that works")
    # For the test of this example: one byte is changed between the transfer and its verification.
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except zh.ZerohopError as error:
        sys.exit(f"Error: {error}")
