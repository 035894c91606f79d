"""
The data plane of zerohop: operations, lanes, shares and the engine that drives them.
"""

import enum
from collections.abc import Sequence
from typing import Any

import numpy
import numpy.typing

def interpreter_exits(limit_ns: int) -> None: ...
def interpreter_forked() -> None: ...

class Status(enum.IntEnum):
    """How an operation ended."""

    OK = 0

    PENDING = 1

    CLOSED = 2

    PEER_LOST = 3

    DEADLINE = 4

    ACCESS_DENIED = 5

    CANCELLED = 6

    UNSUPPORTED = 7

    PROTOCOL = 8

    NO_MEMORY = 9

    DEVICE_ERROR = 10

    WOULD_BLOCK = 11

class Reason(enum.IntEnum):
    """Why an operation ended so."""

    NONE = 0

    BOUNDS = 1

    RIGHTS = 2

    GENERATION = 3

    REVOKED = 4

    CAPABILITY = 5

    UNKNOWN_SHARE = 6

    PROCESS_DIED = 7

    HEARTBEAT = 8

    STREAM_CLOSED = 9

    LANE_CLOSED = 10

    WINDOW_FULL = 11

    NO_CREDIT = 12

    TRUNCATED = 13

    COPY_FAILED = 14

    DEVICE_LOST = 15

    ALLOC_FAILED = 16

    MALFORMED = 17

    OUT_OF_DESCRIPTORS = 18

    OUT_OF_SHARED_MEMORY = 19

    CONTEXT_CLOSED = 20

    USER = 21

    MISALIGNED = 22

    TOO_MANY_PAGES = 23

class NativeError(Exception):
    """An error known at once; args are (status, reason, text)."""

class CompletionQueue:
    """Tokens of operations that ended, with one event descriptor for all."""

    def __init__(self, engine: Engine) -> None: ...
    @property
    def fd(self) -> int: ...
    def drain(self) -> list[int]: ...
    def push(self, token: int) -> None: ...
    def wait(self, deadline_ns: int, spin_ns: int) -> list[int]: ...
    def close(self) -> None: ...

class LoopBell:
    """
    What an event loop watches: its queue, and on demand the next message of a peer.
    """

    def __init__(self, queue: CompletionQueue) -> None: ...
    @property
    def fd(self) -> int: ...
    def listen(self) -> None: ...
    def drain(self) -> list[int]: ...
    def close(self) -> None: ...

class Op:
    """An operation in flight. Dropping it never blocks and cancels nothing."""

    def done(self) -> bool: ...
    def wait(self, deadline_ns: int, spin_ns: int) -> bool: ...
    def spin(self, spin_ns: int) -> bool: ...
    @property
    def status(self) -> Status: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def bytes_done(self) -> int: ...
    @property
    def value(self) -> int: ...
    @property
    def started_ns(self) -> int: ...
    @property
    def finished_ns(self) -> int: ...
    def cancel(self) -> bool: ...
    def arm(self, queue: CompletionQueue, token: int) -> bool: ...
    def disarm(self, queue: CompletionQueue, token: int) -> None: ...
    def complete(self, status: Status, reason: Reason, value: int, bytes: int) -> None: ...

class Region:
    """A registered range of memory."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def shareable(self) -> bool: ...
    @property
    def fd(self) -> int: ...
    @property
    def fd_offset(self) -> int: ...
    @property
    def pins(self) -> int: ...
    def close(self) -> bool: ...
    def read(self, offset: int, nbytes: int) -> bytes: ...
    def write(self, offset: int, data: bytes) -> None: ...

class Mapping:
    """A peer's host memory, mapped here."""

    @property
    def nbytes(self) -> int: ...
    def close(self) -> bool: ...

class Endpoint:
    """One end of a lane."""

    @property
    def provider(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def limits(self) -> dict[str, float]: ...
    def address(self) -> tuple[bytes, list[int]]: ...
    def connect(self, data: bytes, fds: Sequence[int]) -> None: ...
    def close(self) -> None: ...
    def statistics(self) -> dict[str, int]: ...

def providers() -> list[tuple[str, bool, str, str]]:
    """Each provider of this build: (name, usable, reason, fix)."""

class Engine:
    """The engine of one Context."""

    def __init__(self, spin_ns: int, sim_devices: int, heartbeat_ns: int) -> None: ...
    @property
    def presence_fd(self) -> int: ...
    @property
    def doorbell_fd(self) -> int: ...
    def add_peer(self, presence_fd: int, doorbell_fd: int) -> int: ...
    def drop_peer(self, peer: int, status: Status, reason: Reason) -> None: ...
    def peer_status(self, peer: int) -> tuple[Status, Reason]: ...
    def endpoint(self, provider: str, peer: int) -> Endpoint: ...
    def register(
        self, address: int, nbytes: int, device: int, fd: int = -1, fd_offset: int = 0, readonly: bool = False
    ) -> Region: ...
    def alloc(self, nbytes: int, device: int) -> Region: ...
    def share(self, region: Region, offset: int, nbytes: int, rights: int, capability: bytes) -> int: ...
    def revoke(self, share_id: int, deadline_ns: int) -> bool: ...
    def map(self, fd: int, offset: int, nbytes: int, writable: bool) -> Mapping: ...
    def route(
        self,
        endpoint: Endpoint,
        region: Region,
        share_id: int,
        capability: bytes,
        remote_nbytes: int,
        rights: int,
        mapping: Mapping | None,
    ) -> int: ...
    def drop_route(self, route: int) -> None: ...
    def pop_notification(self, deadline_ns: int, spin_ns: int) -> tuple[int, int, int] | None: ...
    def arm_notification(self, queue: CompletionQueue, token: int) -> bool: ...
    def disarm_notification(self, queue: CompletionQueue, token: int) -> None: ...
    @property
    def events(self) -> CompletionQueue: ...
    def statistics(self) -> dict[str, int]: ...
    def new_op(self, deadline_ns: int) -> Op: ...
    def close(self, deadline_ns: int) -> bool: ...
    def abandon(self) -> None: ...
    def devices(self) -> list[dict[str, Any]]: ...
    def sim_inject(self, device: int, what: str, count: int) -> None: ...
    def sim_delay(self, device: int, ns_per_copy: int, bytes_per_us: int) -> None: ...
    def post(
        self,
        route: int,
        kind: int,
        local_offset: int,
        remote_offset: int,
        nbytes: int,
        notify: int,
        deadline_ns: int,
        nowait: bool = False,
    ) -> int | Op: ...
    def post_pages(
        self,
        route: int,
        kind: int,
        local_pages: numpy.typing.NDArray[numpy.int64],
        remote_pages: numpy.typing.NDArray[numpy.int64],
        page_bytes: int,
        notify: int,
        deadline_ns: int,
        nowait: bool,
        local_offset: int,
        remote_offset: int,
        local_nbytes: int,
    ) -> int | Op: ...
    def post_atomic(
        self,
        route: int,
        kind: int,
        remote_offset: int,
        operand: int,
        compare: int,
        deadline_ns: int,
        nowait: bool = False,
    ) -> tuple[int, int] | Op: ...
    def post_notify(self, endpoint: Endpoint, notify: int, deadline_ns: int, nowait: bool = False) -> int | Op: ...
    def post_send(
        self, endpoint: Endpoint, region: Region, offset: int, nbytes: int, deadline_ns: int, nowait: bool = False
    ) -> Op: ...
    def post_recv(
        self, endpoint: Endpoint, region: Region, offset: int, nbytes: int, deadline_ns: int, nowait: bool = False
    ) -> Op: ...
    def post_flush(self, endpoint: Endpoint, deadline_ns: int) -> int | Op: ...
