"""Registered memory of every kind behind one set of tools: fill, read back, poisoned guards."""

from __future__ import annotations

import secrets
from multiprocessing import shared_memory
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from support.leaks import shared_memory_prefix
from support.pattern import POISON, Bytes, expect_equal, expect_poison, pattern, poison
from support.software_gpus import IN_SOFTWARE

if TYPE_CHECKING:
    import zerohop as zh

# numpy: any host memory, reached through the ring on shm. alloc and shared_memory: mapped by the peer on shm.
# cuda: of a real GPU, where there is one.
Kind = Literal["numpy", "alloc", "shared_memory", "sim", "cuda"]
# Real GPUs that this process sees, or those in software; 0 where there is none, and tests that need one are skipped.
GPUS = int(IN_SOFTWARE or 0) or len(list(Path("/dev").glob("nvidia[0-9]*")))
# Another one than the first, where there are several.
OTHER_GPU = f"cuda:{min(1, max(0, GPUS - 1))}"
ON_GPUS: tuple[Kind, ...] = ("cuda",) if GPUS else ()
KINDS: tuple[Kind, ...] = ("numpy", "alloc", "shared_memory", "sim", *ON_GPUS)
# Enough on each side of a target to catch an operation that is a page off.
GUARD = 4096


class Buffer:
    """One registered memory. It is all poison at first, and whoever writes to it poisons it again after checking."""

    def __init__(self, context: zh.Context, kind: Kind, nbytes: int, *, device: int = 0) -> None:
        self.kind = kind
        self.nbytes = nbytes
        self._shared: shared_memory.SharedMemory | None = None
        self._array: Bytes | None = None
        if kind == "numpy":
            self._array = poison(nbytes)
            self.memory = context.register(self._array)
        elif kind == "alloc":
            self.memory = context.alloc(nbytes)
            self._array = self.memory.numpy()
        elif kind == "shared_memory":
            name = shared_memory_prefix() + secrets.token_hex(8)
            self._shared = shared_memory.SharedMemory(name, create=True, size=nbytes)
            self._array = np.ndarray(nbytes, np.uint8, buffer=self._shared.buf)
            self.memory = context.register(self._array)
        else:
            self.memory = context.alloc(nbytes, device=f"{kind}:{device % GPUS if kind == 'cuda' else device}")
        self.poison(0, nbytes)

    @property
    def shared_name(self) -> str:
        """By which another process opens it; of shared memory only."""
        assert self._shared is not None
        return self._shared.name

    def put(self, offset: int, data: Bytes) -> None:
        if self._array is not None:
            self._array[offset : offset + data.nbytes] = data
        else:
            self.memory.write_bytes(offset, data.tobytes())

    def get(self, offset: int, nbytes: int) -> Bytes:
        """The bytes as they are now: a view for host memory, a copy for a device's."""
        if self._array is not None:
            return self._array[offset : offset + nbytes]
        return np.frombuffer(self.memory.read_bytes(offset, nbytes), np.uint8)

    def fill(self, offset: int, nbytes: int, seed: int) -> None:
        self.put(offset, pattern(seed, nbytes))

    def poison(self, offset: int, nbytes: int) -> None:
        if self._array is not None:
            self._array[offset : offset + nbytes] = POISON
        else:
            self.memory.write_bytes(offset, poison(nbytes).tobytes())

    def expect(self, offset: int, nbytes: int, seed: int) -> None:
        """The range holds the stream of `seed`."""
        expect_equal(self.get(offset, nbytes), pattern(seed, nbytes), f"{self.kind}[{offset}:{offset + nbytes}]")

    def expect_poison(self, start: int = 0, stop: int | None = None) -> None:
        stop = self.nbytes if stop is None else stop
        expect_poison(self.get(start, stop - start), f"{self.kind}[{start}:{stop}], which nobody may touch")

    def settle(self, offset: int, nbytes: int, seed: int) -> None:
        """The range holds the stream of `seed`, the guards around it are poison; poison the range again."""
        self.expect(offset, nbytes, seed)
        self.expect_poison(max(0, offset - GUARD), offset)
        self.expect_poison(offset + nbytes, min(self.nbytes, offset + nbytes + GUARD))
        self.poison(offset, nbytes)

    def settle_pages(self, offset: int, span: int, page_bytes: int, placed: list[tuple[int, int]], seed: int) -> None:
        """Page `to` holds page `origin` of the stream of `seed` for each (origin, to) of `placed`, the rest of the
        `span` bytes at `offset` is poison, and so are the guards; poison the span again."""
        stream = pattern(seed, span)
        expected = poison(span)
        for origin, to in placed:
            page = stream[origin * page_bytes : (origin + 1) * page_bytes]
            expected[to * page_bytes : (to + 1) * page_bytes] = page
        expect_equal(self.get(offset, span), expected, f"{self.kind}: pages of {page_bytes} from {offset}")
        self.expect_poison(max(0, offset - GUARD), offset)
        self.expect_poison(offset + span, min(self.nbytes, offset + span + GUARD))
        self.poison(offset, span)

    def close(self) -> None:
        """Give everything back. Nobody may use a view that `get` returned any more."""
        self._array = None
        self.memory.close()
        if self._shared is not None:
            self._shared.close()
            self._shared.unlink()
            self._shared = None
