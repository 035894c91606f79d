from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

class SharedCopy:
    def __init__(self, fd: int, nbytes: int) -> None: ...
    def write(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
    ) -> list[int]: ...
    def read(
        self, target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")], rounds: int
    ) -> list[int]: ...
    def write_pages(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        source_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        shared_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
    ) -> list[int]: ...
    def read_pages(
        self,
        target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        shared_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
    ) -> list[int]: ...
    def write_ranges(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        source_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        shared_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
    ) -> list[int]: ...
    def read_ranges(
        self,
        target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        shared_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
    ) -> list[int]: ...

def echo_words(asked: int, answered: int, rounds: int, timeout: float) -> None: ...

class Flag:
    def __init__(self, fd: int) -> None: ...
    def reset(self) -> None: ...
    def ping(self, rounds: int, seed: int, timeout: float) -> list[int]: ...
    def pong(self, rounds: int, seed: int, timeout: float) -> None: ...

FLAG_BYTES: int = 256

KERNELS: str = ...

class GpuCopies:
    def __init__(self, source: int, target: int, nbytes: int) -> None: ...
    def fill(
        self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None: ...
    def take(self, target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]) -> None: ...
    def copy(self, nbytes: int, rounds: int, pull: bool) -> list[int]: ...
    def copy_word(self, nbytes: int, rounds: int) -> list[int]: ...
    def pages(
        self,
        image: bytes,
        source_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
        pull: bool,
        blocks: int,
    ) -> list[int]: ...
    def ranges(
        self,
        image: bytes,
        source_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
        pull: bool,
        blocks: int,
    ) -> list[int]: ...

def copy_all_pairs(gpus: int, nbytes: int, rounds: int) -> list[int]: ...

class FileToGpu:
    def __init__(self, path: str, device: int, block_bytes: int, threads: int) -> None: ...
    def read(self, seconds: float) -> tuple[int, int]: ...
    def take(
        self, target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> list[int]: ...

class GpuMemory:
    def __init__(self, device: int, nbytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    def fill(
        self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None: ...
    def handle(self) -> bytes: ...

def open_allocations(
    device: int,
    handles: Sequence[bytes],
    target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> list[int]: ...

class Ring:
    def __init__(self, fd: int, nbytes: int) -> None: ...
    def reset(self) -> None: ...
    def write(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
        timeout: float,
    ) -> list[int]: ...
    def write_pages(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        source_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
        timeout: float,
    ) -> list[int]: ...
    def receive(
        self,
        target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        nbytes: int,
        timeout: float,
    ) -> None: ...

def socket_ping(
    fd: int,
    payload: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    nbytes: int,
    rounds: int,
    timeout: float,
) -> list[int]: ...
def socket_pong(fd: int, nbytes: int, rounds: int, timeout: float) -> None: ...
def socket_ping_spinning(
    fd: int,
    payload: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    nbytes: int,
    rounds: int,
    timeout: float,
) -> list[int]: ...
def socket_pong_spinning(fd: int, nbytes: int, rounds: int, timeout: float) -> None: ...
def socket_send(
    fd: int,
    source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rounds: int,
    timeout: float,
) -> list[int]: ...
def socket_receive(
    fd: int,
    target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rounds: int,
    timeout: float,
) -> None: ...
def sockets_send(
    fds: Sequence[int],
    source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rounds: int,
    timeout: float,
) -> list[int]: ...
def sockets_receive(
    fds: Sequence[int],
    target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rounds: int,
    timeout: float,
) -> None: ...
def tls_why_not() -> str: ...
def tls_send(
    fd: int,
    source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rounds: int,
    timeout: float,
) -> list[int]: ...
def tls_receive(
    fd: int,
    target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rounds: int,
    certificate: bytes,
    key: bytes,
    timeout: float,
) -> None: ...
