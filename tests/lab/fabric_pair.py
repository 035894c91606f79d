"""Two endpoints of one port, connected with each other, and memory of every kind for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zerohop as zh
from zerohop import fabric
from zerohop.fabric import Access, EndpointConfig

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from zerohop.fabric import Completion, DeviceContext, Endpoint, MemoryRegion, RemoteMemory

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
# The lab's processors are emulated.
TIMEOUT = 60.0
# Soon given up: 4 ms three times.
IMPATIENT = EndpointConfig(max_messages=16, timeout=10, retry_count=2, rnr_retry=2)


class Buffer:
    """Memory on the host or on a simulated GPU, registered for everything, with bytes of a known value around it."""

    GUARD = 64

    def __init__(self, context: zh.Context, device: DeviceContext, nbytes: int, place: str, fill: int) -> None:
        self.fill = fill
        self.memory = context.alloc(nbytes + 2 * self.GUARD, place)
        self.memory.fill(fill)
        self.region: MemoryRegion = device.register(self.memory[self.GUARD : self.GUARD + nbytes], ALL)

    def close(self) -> None:
        self.region.close()
        self.memory.close()

    def put(self, data: bytes, offset: int = 0) -> None:
        self.memory.write_bytes(self.GUARD + offset, data)

    def get(self) -> bytes:
        return self.memory.read_bytes(self.GUARD, self.region.length)

    def remote(self) -> RemoteMemory:
        return self.region.remote()

    def expect_guards(self) -> None:
        """Nothing was written beyond the region."""
        guard = bytes([self.fill]) * self.GUARD
        assert self.memory.read_bytes(0, self.GUARD) == guard
        assert self.memory.read_bytes(self.memory.nbytes - self.GUARD) == guard


class Lab:
    """What a module's tests share: an open device, and a Context whose memory they use. Opening takes seconds here."""

    def __init__(self) -> None:
        self.rdma = fabric.Context()
        self.device: DeviceContext = self.rdma.open("rxe0")
        self.context = zh.Context(sim_devices=2, listen=None, providers=["shm"])
        # What the first endpoint finds out.
        self.device.create_endpoint().close()

    def close(self) -> None:
        self.rdma.close()
        self.context.close()


class Pair:
    """Two endpoints, connected with each other, and their buffers."""

    def __init__(self, lab: Lab, config: EndpointConfig | None = None, *, connect: bool = True) -> None:
        self.lab = lab
        self.device, self.context = lab.device, lab.context
        self.a: Endpoint = self.device.create_endpoint(config)
        self.b: Endpoint = self.device.create_endpoint(config)
        self.buffers: list[Buffer] = []
        if connect:
            self.a.connect(self.b.handle)
            self.b.connect(self.a.handle)

    def buffer(self, nbytes: int, place: str = "host", fill: int = 0) -> Buffer:
        self.buffers.append(Buffer(self.context, self.device, nbytes, place, fill))
        return self.buffers[-1]

    def close(self) -> None:
        self.a.close()
        self.b.close()
        for buffer in self.buffers:
            buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def one(endpoint: Endpoint) -> Completion:
    """The next completion; it is the only one that is there, whether it succeeded or failed."""
    (completion,) = endpoint.wait(timeout=TIMEOUT, errors="return")
    return completion


def collect(endpoint: Endpoint, count: int) -> list[Completion]:
    """That many completions, whether they succeeded or failed."""
    found: list[Completion] = []
    while len(found) < count:
        found += endpoint.wait(count - len(found), timeout=TIMEOUT, errors="return")
    return found
