"""Raw limits of this machine: plain C++ that uses no zerohop code."""

from typing import Annotated

import numpy
from numpy.typing import NDArray

class SharedCopy:
    """memcpy between a local buffer and a MAP_SHARED mapping of `fd`."""

    def __init__(self, fd: int, nbytes: int) -> None: ...
    def write(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
    ) -> list[int]:
        """
        Copies `source` to the start of the mapping; returns the nanoseconds of each round.
        """

    def read(
        self, target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")], rounds: int
    ) -> list[int]:
        """
        Copies the start of the mapping into `target`; returns the nanoseconds of each round.
        """

    def write_pages(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        source_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        shared_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
    ) -> list[int]:
        """
        One memcpy per page; nanoseconds of each round. Round r moves batch r modulo the number of batches.
        """

    def read_pages(
        self,
        target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        shared_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
    ) -> list[int]:
        """
        One memcpy per page; nanoseconds of each round. Round r moves batch r modulo the number of batches.
        """

class Flag:
    """
    A flag in shared memory that two processes send to and fro, both spinning.
    """

    def __init__(self, fd: int) -> None: ...
    def reset(self) -> None:
        """Clears both flags. Call before either side starts."""

    def ping(self, rounds: int, seed: int, timeout: float) -> list[int]:
        """
        Returns the nanoseconds of each round trip. RuntimeError on a wrong payload or after `timeout` seconds.
        """

    def pong(self, rounds: int, seed: int, timeout: float) -> None:
        """The answering side of ping."""

FLAG_BYTES: int = 256

PAGES_KERNEL: str = ...

class GpuCopies:
    """Copies between memory of two GPUs of this process."""

    def __init__(self, source: int, target: int, nbytes: int) -> None: ...
    def fill(
        self, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> None:
        """Fills the source, and clears the target."""

    def take(self, target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]) -> None:
        """Copies what has arrived to `target`."""

    def copy(self, nbytes: int, rounds: int, pull: bool) -> list[int]:
        """A copy and a synchronisation of the stream; nanoseconds of each round."""

    def copy_word(self, nbytes: int, rounds: int) -> list[int]:
        """
        A copy and a word that the stream writes, until the host sees it; nanoseconds of each round.
        """

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
    ) -> list[int]:
        """
        One kernel per round, compiled from PAGES_KERNEL; nanoseconds of each round.
        """

def copy_all_pairs(gpus: int, nbytes: int, rounds: int) -> list[int]:
    """
    Every GPU copies to every other one at once; nanoseconds of each round.
    """

class Ring:
    """
    A single-producer single-consumer byte ring in a MAP_SHARED mapping of `fd`.
    """

    def __init__(self, fd: int, nbytes: int) -> None: ...
    def reset(self) -> None:
        """Empties the ring. Call before either side starts."""

    def write(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rounds: int,
        timeout: float,
    ) -> list[int]:
        """
        Sends `source` to offset 0 of the receiver; nanoseconds of each round, until the receiver placed it all.
        """

    def write_pages(
        self,
        source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        source_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        target_pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        page_bytes: int,
        batch: int,
        rounds: int,
        timeout: float,
    ) -> list[int]:
        """
        One record per page; nanoseconds of each round, until the receiver placed the last page.
        """

    def receive(
        self,
        target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        nbytes: int,
        timeout: float,
    ) -> None:
        """
        The other side: places records in `target` until `nbytes` payload bytes have come.
        """

def socket_ping(
    fd: int,
    payload: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    nbytes: int,
    rounds: int,
    timeout: float,
) -> list[int]:
    """
    Sends messages of `nbytes` taken in turn from `payload`, compares each echo; nanoseconds per round trip.
    """

def socket_pong(fd: int, nbytes: int, rounds: int, timeout: float) -> None:
    """Echoes `rounds` messages of `nbytes`."""

def socket_send(
    fd: int,
    source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rounds: int,
    timeout: float,
) -> list[int]:
    """
    Streams `source`, waits for one byte of answer; nanoseconds of each round.
    """

def socket_receive(
    fd: int,
    target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rounds: int,
    timeout: float,
) -> None:
    """
    Receives into `target` until it is full and answers with one byte, `rounds` times.
    """
