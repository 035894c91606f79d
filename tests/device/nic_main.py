"""`python -m device.nic_main LANGUAGE DEVICE`: kernels write the requests of a NIC in software; it prints "ok"."""

from __future__ import annotations

import random
import secrets
import struct
import sys

from device.runners import Runner, runner
from device.software_nic import ADD, READ, SWAP, WRITE, Arena, NicQueue
from support.patience import patience
from zerohop.device import FAILED, OK, TIMED_OUT

NBYTES = 1 << 16
POISON = 0xA5
AT = NBYTES - 64  # of words
LIMIT_S = patience(20.0)


class Kernels:
    """Runs kernels on one Queue; each returns a status and a value."""

    def __init__(self, run: Runner, nic: NicQueue, device: str) -> None:
        self._run = run
        self.nic = nic
        self._report = Arena(16, device, near=True)
        nic.local.write(0, secrets.token_bytes(NBYTES))
        nic.remote.write(0, bytes([POISON]) * AT + bytes(64))

    def __call__(self, name: str, *arguments: int, blocks: int = 1) -> tuple[int, int]:
        self._report.write(0, bytes(16))
        self._run(name, self.nic.pointer, self._report.address, arguments, blocks)
        status, value = struct.unpack("<qq", self._report.read(0, 16))
        return status, value


def transfers(kernels: Kernels) -> None:
    nic = kernels.nic
    for nbytes, there, here in ((0, 0, 0), (1, 3, 5), (8, 8, 16), (1003, 17, 3), (AT - 64, 32, 16)):
        nic.remote.write(0, bytes([POISON]) * AT)
        assert kernels("put", 0, there, 0, here, nbytes) == (OK, 0)
        assert kernels("flush", 0) == (OK, 0)
        sent = nic.local.read(here, nbytes)
        assert nic.remote.read(0, AT) == bytes([POISON]) * there + sent + bytes([POISON]) * (AT - there - nbytes)
        nic.local.write(0, secrets.token_bytes(NBYTES))
        assert kernels("get", 0, there, 0, here, nbytes) == (OK, 0)
        assert nic.local.read(here, nbytes) == sent


def words(kernels: Kernels) -> None:
    nic = kernels.nic
    value = random.getrandbits(64)
    assert kernels("put_signal", 0, 0, 0, 0, 100, AT, value) == (OK, 0)
    assert kernels("flush", 0) == (OK, 0)
    assert nic.remote.read(0, 100) == nic.local.read(0, 100)
    assert nic.remote.read(AT, 8) == value.to_bytes(8, "little")
    begun = len(nic.opcodes)
    nic.remote.write(AT, (1 << 63 | 5).to_bytes(8, "little"))
    assert kernels("fetch_add", 0, AT, -7) == (OK, -(1 << 63) + 5)
    assert kernels("compare_swap", 0, AT, 3, 9) == (OK, (1 << 63) - 2)
    assert kernels("compare_swap", 0, AT, (1 << 63) - 2, -1) == (OK, (1 << 63) - 2)
    assert kernels("signal_add", 0, AT, 43) == (OK, 0)
    assert kernels("fence", 0) == (OK, 0)
    assert kernels("quiet") == (OK, 0)
    assert nic.remote.read(AT, 8) == (42).to_bytes(8, "little")
    assert nic.opcodes[begun:] == [READ, ADD, READ, SWAP, READ, SWAP, READ, ADD, READ, READ, READ]
    assert kernels("signal", 0, AT, -3) == (OK, 0)
    assert kernels("flush", 0) == (OK, 0)
    assert nic.remote.read(AT, 8) == (-3).to_bytes(8, "little", signed=True)
    assert nic.opcodes[-3:] == [READ, WRITE, READ]


def many_blocks(kernels: Kernels, blocks: int, count: int) -> None:
    """Post more requests than there are places, from all blocks at the same time."""
    nic, nbytes = kernels.nic, 24
    nic.remote.write(AT, bytes(8))
    assert kernels("put_blocks", nbytes, count, AT, blocks=blocks) == (OK, 0)
    total = blocks * count * nbytes
    assert nic.remote.read(0, total) == nic.local.read(0, total)
    assert nic.remote.read(AT, 8) == blocks.to_bytes(8, "little")


def failures(kernels: Kernels) -> None:
    """Have the NIC fail requests; it ends everything behind them."""
    kernels.nic.failed = True
    assert kernels("put", 0, 0, 0, 0, 8) == (OK, 0)
    assert kernels("flush", 0)[0] == FAILED
    assert kernels("fetch_add", 0, AT, 1)[0] == FAILED


def refusals(kernels: Kernels) -> None:
    """Make a call that the kernel itself refuses. No signal may follow it: it would tell of bytes that never moved."""
    assert kernels("put", 0, NBYTES - 7, 0, 0, 8) == (FAILED, 0)
    for name, *arguments in (("signal", 0, AT, 1), ("signal_add", 0, AT, 1), ("fence", 0), ("flush", 0)):
        assert kernels(name, *arguments)[0] == FAILED, name
    assert kernels("fetch_add", 0, AT, 1)[0] == FAILED
    assert kernels("put", 0, 0, 0, 0, 8)[0] == FAILED
    assert kernels("put", 0, 0, 0, 0, 0)[0] == OK
    assert not kernels.nic.begun


def main(language: str, device: str) -> None:
    run = runner(language, device)
    slow = (language, device) == ("triton", "host")
    with NicQueue(NBYTES, device, timeout=LIMIT_S) as nic:
        kernels = Kernels(run, nic, device)
        transfers(kernels)
        words(kernels)
        blocks, count = (3, 8) if slow else (16, 40) if device == "host" else (64, 20)
        many_blocks(kernels, blocks, count)
        assert nic.begun > 48  # several laps of the ring
        failures(kernels)
    with NicQueue(NBYTES, device, timeout=LIMIT_S) as nic:
        refusals(Kernels(run, nic, device))
    silent = NicQueue(NBYTES, device, timeout=0.3)  # nothing reads the requests
    kernels = Kernels(run, silent, device)
    assert kernels("put", 0, 0, 0, 0, 8) == (OK, 0)
    assert kernels("flush", 0)[0] == TIMED_OUT
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
