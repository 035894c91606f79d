"""A Queue whose one peer is behind a NIC in software, which a thread of this process is.

The NIC reads requests from a send queue, strictly, and moves bytes between two ranges of this process's memory.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from zerohop.device.descriptor import DESCRIPTOR_BYTES, MLX5, Control, LocalEntry, PeerEntry, counter_bytes, lay_out

if TYPE_CHECKING:
    from typing_extensions import Self

NUMBER = 0x00ABCDEF  # of the queue pair
LOCAL_KEY, REMOTE_KEY, SCRATCH_KEY = 0x1234, 0xFEDCBA98, 0x77
QUEUE_LAYOUT = 0x7A686D6C78350003
ALWAYS, FENCED = 0x08, 0x88
WRITE, READ, SWAP, ADD = 0x08, 0x10, 0x11, 0x12
PROTECTION, ACCESS, FLUSHED = 0x04, 0x13, 0x05  # syndromes
# Places of the words that the host and kernels share.
RECORD, DOORBELL, TAKEN, QUEUE_STATE, STATE, PEER = 0, 64, 128, 192, 256, 320
BLOCKS = 512
WORD = struct.Struct("<Q")


class Arena:
    """Memory for the host and kernels of a device, or near the device alone."""

    def __init__(self, nbytes: int, device: str, *, near: bool) -> None:
        self._keep: Any
        if device == "host":
            self._keep = np.zeros(nbytes, np.uint8)
            self.address = self._keep.ctypes.data
        else:
            import torch

            self._keep = torch.zeros(
                nbytes, dtype=torch.uint8, **({"device": device} if near else {"pin_memory": True})
            )
            self.address = self._keep.data_ptr()
        self._on_device = near and device != "host"

    def write(self, offset: int, data: bytes) -> None:
        if self._on_device:
            import torch

            self._keep[offset : offset + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        else:
            ctypes.memmove(self.address + offset, data, len(data))

    def read(self, offset: int, nbytes: int) -> bytes:
        if self._on_device:
            return bytes(self._keep[offset : offset + nbytes].cpu().numpy())
        return ctypes.string_at(self.address + offset, nbytes)


class NicQueue:
    """The Queue, its memory and its NIC. `local` and `remote` are the two ranges."""

    def __init__(self, nbytes: int, device: str = "host", slots: int = 16, timeout: float = 10.0) -> None:
        self.local, self.remote = (Arena(nbytes, device, near=False) for _ in range(2))
        self._scratch = Arena(16, device, near=False)
        self._slots = slots
        self._shared = Arena(BLOCKS + 2 * slots * 64, device, near=False)
        self._completions = BLOCKS + slots * 64
        self._shared.write(self._completions, b"\xff" * (slots * 64))
        timeout_ns = int(timeout * 1e9)
        near = Arena(4096, device, near=True)  # counters, the WorkQueue, the Pair, its lock and the key
        at, shared = near.address, self._shared.address
        work, pair, lock, keys = 1024, 2048, 2560, 2600
        words = [QUEUE_LAYOUT, NUMBER, slots, shared + BLOCKS, shared + RECORD, shared + DOORBELL]
        words += [shared + self._completions, slots, shared + TAKEN, at + 512, at + 576, at + 640]
        near.write(work, struct.pack("<15Q", *words, shared + QUEUE_STATE, timeout_ns, slots))
        scratch = self._scratch.address
        near.write(
            pair, struct.pack("<7Q", at + work, REMOTE_KEY, scratch, scratch + 8, SCRATCH_KEY, at + lock, at + keys)
        )
        near.write(keys, WORD.pack(LOCAL_KEY))
        assert counter_bytes(1) <= 512
        control = Control(shared + STATE, shared + STATE + 8, shared + PEER, 64, 0, 0)
        peer = PeerEntry(MLX5, self.remote.address, nbytes, 3, at + pair)
        local = LocalEntry(self.local.address, nbytes, 3, device != "host")
        self._near = near
        self._descriptor = Arena(DESCRIPTOR_BYTES, device, near=True)
        self._descriptor.write(0, lay_out(at, control, 16, timeout_ns, [peer], [local]))
        self.pointer = self._descriptor.address
        self.begun = self._ended = 0
        self.failed = False
        self.opcodes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        sys.setswitchinterval(1e-4)  # kernels of the interpreter, and the NIC, take turns
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(5e-3)

    def _run(self) -> None:
        while not self._stop.is_set():
            (bell,) = struct.unpack(">Q", self._shared.read(DOORBELL, 8))
            if bell:
                assert bell >> 8 & 0xFFFFFF == NUMBER
                (record,) = struct.unpack(">I", self._shared.read(RECORD + 4, 4))
                rung = (bell >> 40) + 1 & 0xFFFF
                assert (record - rung & 0xFFFF) <= self._slots, "the doorbell was rung before the record was written"
                while self.begun & 0xFFFF != rung:
                    self._carry_out(self._shared.read(BLOCKS + self.begun % self._slots * 64, 64))
            self._stop.wait(0.0001)  # the turn of the kernels

    def _carry_out(self, block: bytes) -> None:
        first, second, flags, immediate, remote, key, reserved = struct.unpack(">IIIIQII", block[:32])
        opcode, segments = first & 0xFF, second & 0xFF
        assert (first >> 8, second >> 8) == (self.begun & 0xFFFF, NUMBER), "another index or queue pair"
        assert flags in (ALWAYS, FENCED)
        assert immediate == reserved == 0
        self.opcodes.append(opcode)
        syndrome = FLUSHED if self.failed else self._move(opcode, segments, remote, key, block[32:])
        self.failed |= syndrome != 0
        lap = self.begun // self._slots & 1
        at = self._completions + self.begun % self._slots * 64
        self._shared.write(at, bytes(55) + bytes([syndrome]))
        last = struct.pack(">4xHBB", self.begun & 0xFFFF, 0, (13 if syndrome else 0) << 4 | lap)
        (taken,) = struct.unpack(">I", self._shared.read(TAKEN, 4))
        assert (self.begun - taken & 0xFFFFFF) < 2 * self._slots, "completions are overrun"
        ctypes.c_uint64.from_address(self._shared.address + at + 56).value = WORD.unpack(last)[0]
        self.begun += 1

    def _move(self, opcode: int, segments: int, remote: int, key: int, rest: bytes) -> int:
        length, local_key, local = struct.unpack(">IIQ", rest[16:] if opcode in (SWAP, ADD) else rest[:16])
        inline = bool(length >> 31)
        nbytes = length & 0x7FFFFFFF
        assert segments == (4 if opcode in (SWAP, ADD) else 2 + (4 + nbytes + 15) // 16 if inline else 3)
        assert nbytes > 0
        if not inline and not self._is_ours(local, local_key, nbytes):
            return PROTECTION
        if key != REMOTE_KEY or not _within(self.remote.address, 1 << 62, remote, nbytes):
            return ACCESS
        if opcode == WRITE:
            ctypes.memmove(remote, rest[4 : 4 + nbytes] if inline else local, nbytes)
        elif opcode == READ:
            ctypes.memmove(local, remote, nbytes)
        else:
            assert nbytes == 8
            operand, compare = struct.unpack(">QQ", rest[:16])
            word = ctypes.c_uint64.from_address(remote)
            found = word.value
            ctypes.c_uint64.from_address(local).value = found
            if opcode == ADD:
                word.value = found + operand
            elif found == compare:
                word.value = operand
        return 0

    def _is_ours(self, address: int, key: int, nbytes: int) -> bool:
        if key == SCRATCH_KEY:
            return _within(self._scratch.address, 16, address, nbytes)
        return key == LOCAL_KEY and _within(self.local.address, 1 << 62, address, nbytes)


def _within(begin: int, size: int, address: int, nbytes: int) -> bool:
    return begin <= address and address + nbytes <= begin + size
