"""
The data plane of zerohop: operations, lanes, shares and the engine that drives them.
"""

import enum
import types
from collections.abc import Mapping as _Mapping
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

    LANE_RESET = 24

    REMOTE_ACCESS = 25

    NO_ANSWER = 26

    NOT_READY = 27

    LOCAL_ACCESS = 28

    REMOTE_ERROR = 29

    PORT_DOWN = 30

    MEMLOCK = 31

    NIC_FULL = 32

    NO_PEER_LINK = 33

    CAPTURING = 34

    HOST_REGISTERED = 35

    OWNER_CLOSED = 36

    PEER_CLOSED = 37

class NativeError(Exception):
    """An error known at once; args are (status, reason, text)."""

class Group:
    """
    Operations of one owner, which end together when that goes; Engine.end_group says so.
    """

    def __init__(self) -> None: ...

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

class InFlight:
    """
    What an Operation in flight is made of; see core/runtime/native_operation.py.
    """

    result: types.MethodDescriptorType = ...

    nbytes: types.MemberDescriptorType = ...

class Transfers:
    """Writes and reads natively wherever the path is known."""

    write: types.MethodDescriptorType = ...

    write_many: types.MethodDescriptorType = ...

    read: types.MethodDescriptorType = ...

class PairTransfers(Transfers):
    """
    Like Transfers, for one end of a pair; ``read`` takes the memory here first.
    """

    read: types.MethodDescriptorType = ...

def begin_posting(
    poster: object,
    engine: Engine | None,
    core: object,
    in_flight: object,
    finished: object,
    write: object,
    write_many: object,
    read: object,
    timeout_ns: int,
    link: object | None = None,
    queue: int = 0,
    group: Group | None = None,
) -> None:
    """
    Lets the native methods of an object post. The three functions do what the native methods cannot, and everything without an engine. A face that has one peer gives the link, the peer's queue and its group.
    """

def stop_posting(poster: object) -> None:
    """
    Sends everything to the three functions from now on, and lets go of the engine.
    """

def set_layout(range: object, remote: object) -> None:
    """
    Tells the classes of memory here and there. Once, before the first use.
    """

def buffer_start(x: object) -> tuple[int, bool]:
    """
    Address of a contiguous buffer, and whether it is read-only. Raises what its exporter does.
    """

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
    def known_to_devices(self) -> bool: ...
    @property
    def pins(self) -> int: ...
    def close(self, wait: bool = False) -> bool:
        """
        No operation begins with it any more; True once none is left that did before, and no device or NIC knows it. Call again then; with wait, devices are waited for.
        """

    def deregister(self, wait: bool = False) -> bool:
        """
        No device or NIC knows it any more, while it stays for those who hold it; False where one still does; with wait, they are waited for.
        """

    def read(self, offset: int, nbytes: int) -> bytes: ...
    def write(self, offset: int, data: bytes) -> None: ...

class Mapping:
    """A peer's host memory, mapped here."""

    @property
    def nbytes(self) -> int: ...
    def close(self) -> bool: ...

class PeerMemory:
    """A peer's memory that devices here read and write by themselves."""

    @property
    def nbytes(self) -> int: ...
    def close(self) -> bool:
        """
        No operation begins with it any more; True once none is left that did before, and it is not mapped here any more. Call again then.
        """

class Domain:
    """An opened device port of a provider that is made of devices."""

    @property
    def provider(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def lost(self) -> bool:
        """The device has failed for good: only a new Domain can use it again."""

    def retune(self, options: _Mapping[str, int]) -> None:
        """What it was opened with, for the lanes that are made from now on."""

    def facts(self) -> dict[str, int | float | str]: ...
    def close(self) -> None: ...

class RemoteKeys:
    """What reaches a peer's memory over a lane of NICs: a key for each rail."""

    def __init__(self, address: int, nbytes: int, rights: int, keys: Sequence[int], atomics: bool) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def close(self) -> bool:
        """
        No operation begins with it any more; True once none is left that did before.
        """

class Endpoint:
    """One end of a lane."""

    @property
    def provider(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def gone(self) -> bool:
        """Closed, and no device has anything of it any more."""

    @property
    def cause(self) -> tuple[Status, Reason]:
        """Why it is not usable any more."""

    @property
    def quiet(self) -> bool:
        """This end has nothing under way, receives that wait included."""

    @property
    def in_device(self) -> bool:
        """
        A device has not ended a transfer that it was given, or has, and nobody has looked since.
        """

    @property
    def limits(self) -> dict[str, float]: ...
    def address(self) -> tuple[bytes, list[int]]: ...
    def connect(self, data: bytes, fds: Sequence[int]) -> None: ...
    def close(self, reset: bool = False) -> None:
        """
        `reset`: the other end has failed, rather than that somebody here closed it.
        """

    def statistics(self) -> dict[str, int]: ...

def providers() -> list[tuple[str, bool, str, str]]:
    """Each provider of this build: (name, usable, reason, fix)."""

class Engine:
    """The engine of one Context."""

    def __init__(
        self, spin_ns: int, sim_devices: int, heartbeat_ns: int, sim_peermem: bool = True, gpus: bool = True
    ) -> None: ...
    @property
    def presence_fd(self) -> int: ...
    @property
    def doorbell_fd(self) -> int: ...
    def add_peer(self, presence_fd: int, doorbell_fd: int) -> int: ...
    def drop_peer(self, peer: int, status: Status, reason: Reason) -> None: ...
    def peer_status(self, peer: int) -> tuple[Status, Reason]: ...
    def endpoint(self, provider: str, peer: int, domains: Sequence[Domain] = []) -> Endpoint: ...
    def open_domain(self, provider: str, device: str, port: int, options: _Mapping[str, int]) -> Domain: ...
    def register_local(self, region: Region, domain: Domain) -> tuple[int, str]:
        """
        The key by which the domain's device knows the memory, and in words how it was registered.
        """

    def reach(self, share_id: int, domain: Domain, own: bool) -> tuple[int, int, str]:
        """
        Where a peer's NIC finds the share, by which key, and in words how it was registered.
        """

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
        keys: RemoteKeys | None = None,
        local_keys: Sequence[int] = [],
        peer_memory: PeerMemory | None = None,
    ) -> int: ...
    def drop_route(self, route: int) -> None: ...
    def pop_notification(self, deadline_ns: int, spin_ns: int, number: int = 0) -> tuple[int, int, int] | None: ...
    def arm_notification(self, queue: CompletionQueue, token: int, number: int = 0) -> bool: ...
    def disarm_notification(self, queue: CompletionQueue, token: int, number: int = 0) -> None: ...
    def end_group(self, group: Group, status: Status, reason: Reason) -> None:
        """
        Ends all that are in flight, and all that are posted for it from now on. The first call counts.
        """

    def open_queue(self) -> int: ...
    def take_from(self, number: int, peer: int) -> None: ...
    def close_queue(self, number: int) -> None: ...
    def end_queue(self, number: int) -> None: ...
    def catch_up(self, peer: int) -> None: ...
    @property
    def events(self) -> CompletionQueue: ...
    def statistics(self) -> dict[str, int]: ...
    def new_op(self, deadline_ns: int) -> Op: ...
    def close(self, deadline_ns: int) -> bool: ...
    def abandon(self) -> None: ...
    def devices(self) -> list[dict[str, Any]]: ...
    def check_stream(self, device: int, stream: int) -> None: ...
    def stream_reached(self, device: int, stream: int, deadline_ns: int) -> Op: ...
    def hold_stream(self, op: Op, lane: Endpoint | None, device: int, stream: int) -> None: ...
    def hold_stream_for_notification(self, op: Op, device: int, stream: int, number: int = 0) -> None: ...
    def describe(self, address: int, nbytes: int) -> tuple[int, int, int, int] | None: ...
    def allocation_id(self, address: int) -> int: ...
    def why_no_gpus(self) -> dict[str, str]: ...
    def load_kernels(self, device: int, image: bytes) -> None: ...
    def capability(self, device: int) -> int: ...
    def sim_inject(self, number: int, what: str, count: int) -> None: ...
    def sim_delay(self, number: int, ns_per_copy: int, bytes_per_us: int) -> None: ...
    def export_share(self, share_id: int) -> tuple[str, str, int, int, int, int, list[tuple[int, bytes]], list[int]]:
        """
        What a peer needs to map a share of device memory; the descriptors are the caller's.
        """

    def import_memory(
        self,
        form: str,
        device: str,
        process: int,
        address: int,
        offset: int,
        nbytes: int,
        pieces: list[tuple[int, bytes]],
        fds: Sequence[int],
        writable: bool,
    ) -> PeerMemory: ...
    def import_host(self, fd: int, offset: int, nbytes: int, writable: bool) -> PeerMemory:
        """Host memory of a peer, mapped here and known to the devices."""

    def reach_peer(self, region: Region, memory: PeerMemory) -> tuple[int, int]:
        """
        Which device copies between the two, and where the peer's memory begins for it; made ready by this call.
        """

    class DeviceMark:
        """A moment of a device."""

        @property
        def pending(self) -> bool: ...

    def part(self, region: Region, offset: int, nbytes: int) -> Region:
        """
        A part that is pinned and closed by itself, and registered as the whole is.
        """

    def mark_device(self, device: int) -> Engine.DeviceMark:
        """When all that is queued on the device by now has ended."""

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
        stream: int | None = None,
        group: Group | None = None,
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
        stream: int | None = None,
        group: Group | None = None,
    ) -> int | Op: ...
    def post_many(
        self,
        route: int,
        local: numpy.typing.NDArray[numpy.int64],
        remote: numpy.typing.NDArray[numpy.int64],
        lengths: numpy.typing.NDArray[numpy.int64],
        notify: int,
        deadline_ns: int,
        nowait: bool,
        group: Group | None = None,
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
    def post_notify(
        self, endpoint: Endpoint, notify: int, deadline_ns: int, nowait: bool = False, nbytes: int = 0
    ) -> int | Op: ...
    def post_send(
        self, endpoint: Endpoint, region: Region, offset: int, nbytes: int, deadline_ns: int, nowait: bool = False
    ) -> Op: ...
    def post_recv(
        self, endpoint: Endpoint, region: Region, offset: int, nbytes: int, deadline_ns: int, nowait: bool = False
    ) -> Op: ...
    def post_flush(self, endpoint: Endpoint, deadline_ns: int) -> int | Op: ...

def gpu_drivers() -> dict[str, str]:
    """
    The kinds of GPUs that this build has a driver for, and why its library cannot be used; empty where it can.
    """

class SimStream:
    """A stream of a simulated device."""

    def __init__(self, engine: Engine, number: int) -> None: ...
    def __cuda_stream__(self) -> tuple[int, int]: ...
    @property
    def zerohop_device(self) -> str: ...
    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Addresses of this process, of the host or the device."""

    def wait32(self, address: int, value: int) -> None:
        """Stands still until the word is that."""

    def capture(self, on: bool) -> None:
        """Looks as if it were being captured into a graph."""

    def close(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self, deadline_ns: int) -> bool:
        """Whether all that is queued has ended by then."""

def array_of_bytes(address: int, nbytes: int, device_type: int, device: int, readonly: bool, owner: object) -> object:
    """
    An object with DLPack's methods; the types and numbers of devices are DLPack's.
    """

class FabricRequest:
    """A work request for a send queue."""

    def __init__(
        self,
        id: int,
        opcode: int,
        flags: int,
        immediate: int,
        remote_address: int,
        remote_key: int,
        operand: int,
        compare: int,
        pieces: Sequence[tuple[int, int, int]],
        payload: bytes,
        nbytes: int,
    ) -> None: ...

class FabricReceive:
    """A work request for a receive queue."""

    def __init__(self, id: int, pieces: Sequence[tuple[int, int, int]]) -> None: ...

class FabricEndpoint:
    """A queue pair with queues of its own."""

    def address(self) -> tuple[int, int, int, int, int, int, bytes]:
        """Number, PSN, LID, link layer, MTU code, read credit, GID."""

    def connect(
        self, number: int, psn: int, lid: int, link_layer: int, mtu: int, read_credit: int, gid: bytes
    ) -> None: ...
    def post(self, chain: Sequence[FabricRequest]) -> None: ...
    def post_receives(self, chain: Sequence[FabricReceive]) -> None: ...
    def poll(self, most: int) -> list[tuple[int, int, int, int, int, int]]:
        """Id, opcode, status, bytes, immediate or -1, vendor's error of each."""

    def arm(self) -> None: ...
    def sleep(self, deadline_ns: int) -> None: ...
    @property
    def sends(self) -> int: ...
    @property
    def receives(self) -> int: ...
    @property
    def max_inline(self) -> int: ...
    def close(self) -> None: ...
    def abandon(self) -> None:
        """In a forked child."""

class FabricRegion:
    """Memory registered with a device."""

    @property
    def local_key(self) -> int: ...
    @property
    def remote_key(self) -> int: ...
    @property
    def how(self) -> str: ...
    def close(self) -> None:
        """Ends the registration."""

    def abandon(self) -> None: ...

class FabricDevice:
    """An opened port of a device, with a protection domain."""

    @staticmethod
    def open(name: str, port: int) -> FabricDevice: ...
    def register(self, engine: Engine | None, address: int, nbytes: int, access: int) -> FabricRegion:
        """`engine`: whose accelerator has the memory; None for host memory."""

    def endpoint(
        self, messages: int, receives: int, completions: int, sge: int, inline_bytes: int, options: _Mapping[str, int]
    ) -> FabricEndpoint: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...

def fabric_devices() -> list[dict[str, Any]]:
    """The RDMA devices of this machine, with what verbs says of them."""

def fabric_why_not_direct() -> str:
    """Why the queues of no device can be written directly."""
