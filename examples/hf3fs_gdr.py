#!/usr/bin/env python3
"""Reads a file into memory of a GPU and back, by the C interface of 3FS with GPUDirect, on a folder.

    python examples/hf3fs_gdr.py                        # of a GPU where there is one, else of a simulated one
    python examples/hf3fs_gdr.py --folder /mnt/hf3fs    # or another folder; by default one that is removed afterwards

It takes the three ways of 3FS's documentation: memory that the library allocates, memory that a framework has, and
memory of another process: a second process reads a file into the GPU's memory of the first.

Exits with 1 if a byte is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from zerohop.compat.hf3fs import (
    hf3fs_cqe,
    hf3fs_dereg_fd,
    hf3fs_gdr_available,
    hf3fs_gdr_device_count,
    hf3fs_gpu_ipc_handle_t,
    hf3fs_ior,
    hf3fs_iorcreate4,
    hf3fs_iordestroy,
    hf3fs_iov,
    hf3fs_iov_export_gpu,
    hf3fs_iov_gpu_device,
    hf3fs_iov_import_gpu,
    hf3fs_iov_is_gpu,
    hf3fs_iovcreate_gpu,
    hf3fs_iovdestroy_gpu,
    hf3fs_iovsync_gpu,
    hf3fs_iovwrap_gpu,
    hf3fs_prep_io,
    hf3fs_reg_fd,
    hf3fs_submit_ios,
    hf3fs_wait_for_ios,
)

NBYTES = 1 << 20


def check(what: str, result: int) -> int:
    """Return a result that is no error. C programs look at each; the reason of an error is in the log."""
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


def move(iov: hf3fs_iov, path: Path, *, read: bool) -> int:
    """Read a file into all of an iov, or write it from there; return the bytes that were moved."""
    # A ring is the same for memory of GPUs and of the host.
    ior = hf3fs_ior()
    check("iorcreate", hf3fs_iorcreate4(ior, iov.mount_point, 64, read, 0, 0, -1, 0))
    fd = os.open(path, os.O_RDONLY if read else os.O_WRONLY | os.O_CREAT)
    try:
        # This function alone gives errors as numbers above 0.
        check("reg_fd", -max(0, hf3fs_reg_fd(fd, 0)))
        check("prep_io", hf3fs_prep_io(ior, iov, read, iov.base, fd, 0, iov.size, None))
        check("submit_ios", hf3fs_submit_ios(ior))
        cqe = hf3fs_cqe()
        check("wait_for_ios", hf3fs_wait_for_ios(ior, cqe, 1, 1, None))
        return check("I/O", cqe.result)
    finally:
        hf3fs_dereg_fd(fd)
        os.close(fd)
        hf3fs_iordestroy(ior)


def have_filled(iov: hf3fs_iov, path: Path) -> None:
    """Have another process read a file into all of an iov."""
    handle = hf3fs_gpu_ipc_handle_t()
    check("iov_export_gpu", hf3fs_iov_export_gpu(iov, handle))
    # The other process prints to the same place, after the lines that this one has printed.
    sys.stdout.flush()
    # The bytes of the handle may go any way. Who has them may write to the memory.
    command = [sys.executable, __file__, "--folder", str(path.parent), "--fill-from", path.name]
    subprocess.run(command, input=handle.data, timeout=60, check=True)


def fill(path: Path, data: bytes) -> None:
    """Read a file into all of an iov of another process, whose handle has these bytes."""
    iov = hf3fs_iov()
    check("iov_import_gpu", hf3fs_iov_import_gpu(iov, hf3fs_gpu_ipc_handle_t(data), str(path.parent)))
    print(f"imported by process {os.getpid()}: {move(iov, path, read=True)} bytes")
    hf3fs_iovdestroy_gpu(iov)


def run(folder: Path, gpu: int, *, corrupt: bool) -> bool:
    """Return whether every byte is right, there and back."""
    there = os.urandom(NBYTES)
    (folder / "file.bin").write_bytes(there)
    print(f"GDR available with {hf3fs_gdr_device_count()} GPUs")

    # The first way: the library allocates memory of the GPU.
    iov = hf3fs_iov()
    check("iovcreate_gpu", hf3fs_iovcreate_gpu(iov, str(folder), NBYTES, 0, gpu))
    assert iov.iovh is not None  # filled in by the call
    assert hf3fs_iov_is_gpu(iov)
    nbytes = move(iov, folder / "file.bin", read=True)
    print(f"created on {iov.iovh.device}, GPU {hf3fs_iov_gpu_device(iov)}: {nbytes} bytes")

    # The second: it exists already, here the second half of the same memory, as an address such as a tensor's.
    half, wrapped = NBYTES // 2, hf3fs_iov()
    pointer = iov.base + half
    check("iovwrap_gpu", hf3fs_iovwrap_gpu(wrapped, pointer, uuid.uuid4().bytes, str(folder), half, 0, gpu))
    if corrupt:
        (folder / "file.bin").write_bytes(bytes(half))
    print(f"wrapped: {move(wrapped, folder / 'file.bin', read=True)} bytes")
    hf3fs_iovdestroy_gpu(wrapped)  # which does not free what it did not allocate

    # The GPU finishes its work before its memory is written to a file.
    check("iovsync_gpu", hf3fs_iovsync_gpu(iov, 0))
    print(f"written: {move(iov, folder / 'copy.bin', read=False)} bytes")
    right = (folder / "copy.bin").read_bytes() == there[:half] * 2

    # The third: another process reads a file into the same memory.
    others = os.urandom(NBYTES)
    (folder / "other.bin").write_bytes(others)
    have_filled(iov, folder / "other.bin")
    move(iov, folder / "copy.bin", read=False)
    hf3fs_iovdestroy_gpu(iov)
    return right and (folder / "copy.bin").read_bytes() == others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="the folder to use as a mount point")
    parser.add_argument("--gpu", type=int, default=0, help="number of the GPU")
    parser.add_argument("--corrupt", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fill-from", help=argparse.SUPPRESS)  # for the second process
    arguments = parser.parse_args()
    # Without GPUs, two simulated ones stand for them.
    os.environ.setdefault("ZEROHOP_SIM_DEVICES", "2")
    if not hf3fs_gdr_available():
        print("no GPU, and no simulated one: set ZEROHOP_SIM_DEVICES=2", file=sys.stderr)
        return 1
    try:
        if arguments.fill_from:
            fill(arguments.folder / arguments.fill_from, sys.stdin.buffer.read())
            return 0
        with tempfile.TemporaryDirectory() as folder:
            right = run(arguments.folder or Path(folder), arguments.gpu, corrupt=arguments.corrupt)
    except (OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    print("every byte verified" if right else "BYTES ARE WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
