"""Declares the errors, told apart by their cause, and the one table that maps native outcomes to them.

A bad argument is ``ValueError`` or ``TypeError``, raised by the call before anything is posted. Every other failure is
a ``ZerohopError``. ``result()`` or ``await`` of the Operation raises it; a call without an Operation raises it itself.
"""

from __future__ import annotations

import errno
import functools
import os
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from zerohop import limits

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False, repr=False)
class ZerohopError(Exception):
    """Carries the facts of a failure; the base of all errors of this library.

    Attributes:
        reason: what happened, in words.
        fix: what to do about it; empty if there is no general advice.
        peer: id of the other Context; empty if none is involved.
        provider: the provider that was in use, such as ``"shm"``; empty if none was.
        operation: ``"write"``, ``"connect"``, ...; empty if it is no operation.
        bytes_done: bytes that the other side had accepted before the failure. Their content is as written; the content
            of all others is undefined.
        memory_in_use: whether the operation had ended before its bytes had stopped to move: before you use its memory
            for something else, wait for ``flush()``. ``Operation.memory_in_use`` says how it is by now.
        ranks: the ranks of a Group that the error is about, as numbers of that Group: the one that is lost, or those
            that are missing. Empty if none is known, or no Group is involved.
    """

    reason: str = ""
    _: KW_ONLY
    fix: str = ""
    peer: str = ""
    provider: str = ""
    operation: str = ""
    bytes_done: int = 0
    memory_in_use: bool = False
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__init__(str(self))

    def __str__(self) -> str:
        where = self.operation
        if self.provider:
            where += f" over {self.provider}" if where else self.provider
        if self.peer:
            where += f" with peer {self.peer[:12]}" if where else f"peer {self.peer[:12]}"
        text = f"{where}: {self.reason}" if where else self.reason
        if self.bytes_done:
            text += f" ({self.bytes_done} bytes were done)"
        return f"{text}. Fix: {self.fix}" if self.fix else text

    def __repr__(self) -> str:
        # The fields may have changed since the constructor.
        return f"{type(self).__name__}({str(self)!r})"

    def _fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._fields()), ()


class Closed(ZerohopError):
    """Raised if you have closed the Context, Connection, Transport or Memory, not if the other side has closed one."""


class PeerLost(ZerohopError, ConnectionError):
    """Raised if the other side or the wire is gone, or was never reached. A slow peer is a DeadlineExceeded instead."""


class DeadlineExceeded(ZerohopError, TimeoutError):
    """Raised if the time that you allowed has passed.

    With the operation's own ``timeout=``, the operation has ended, and its buffers stay pinned until nothing can touch
    them any more. With ``result(timeout)`` only the wait has ended, and the operation is still in flight.
    """


class WouldBlock(ZerohopError):
    """Raised only by ``_nowait`` calls that cannot go on at once; nothing was posted."""


class AccessDenied(ZerohopError):
    """Raised if the memory's owner forbids the access: bounds, rights, generation, capability, revoked, secret."""


class RegistrationFailed(ZerohopError):
    """Raised if memory could not be allocated, registered or mapped."""


@dataclass(eq=False, repr=False)
class LimitReached(ZerohopError):
    """Raised if a limit of a process or its machine ends what was asked for: descriptors, mappings, threads, memory.

    Everything else goes on: connections that are well stay, and the same call works once there is room. ``fix`` has the
    command that raises the limit.

    Attributes:
        limit: the limit's name, such as ``"RLIMIT_NOFILE"``.
        value: its value in this process; 0: not known, or it is a limit of the peer's process.
    """

    limit: str = field(default="", kw_only=True)
    value: int = field(default=0, kw_only=True)


@dataclass(eq=False, repr=False)
class RevocationIncomplete(ZerohopError):
    """Raised if peers that had mapped memory did not give it back within the timeout; the memory stays allocated.

    Attributes:
        peers: ids of the Contexts that stayed silent.
    """

    peers: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self.peers = tuple(self.peers)
        super().__post_init__()


class Unsupported(ZerohopError):
    """Raised if this build, machine or pair of memories cannot do it; ``reason`` says why, ``fix`` what helps."""


class ProtocolError(ZerohopError):
    """Raised for malformed bytes, such as a handle that does not parse, and for a peer of another version."""


class DeviceFailed(ZerohopError):
    """Raised if an accelerator or a NIC refused or lost its work; the data of the operation is undefined."""


@dataclass(eq=False, repr=False)
class StorageError(ZerohopError, OSError):
    """Raised if a file, or its file system, refuses: no such file, no room left, a path that leaves the store.

    Attributes:
        errno: number of the system's error, as in Python's module ``errno``.
        filename: path of the file in its store; empty if none is involved.
    """

    errno: int = field(default=0, kw_only=True)
    filename: str = field(default="", kw_only=True)


class EndOfFile(StorageError, EOFError):
    """Raised if a file ends before all that was asked for is read; ``bytes_done`` were, from the start."""


class StagedPathWarning(RuntimeWarning):
    """Warns that a path goes through host buffers despite real accelerators at its ends; once per kind of path."""


class _Words(NamedTuple):
    reason: str
    fix: str = ""


CANCELLED = 6
CLOSED, PEER_LOST, DEADLINE, NO_MEMORY = 2, 3, 4, 9
_ACCESS_DENIED, _UNSUPPORTED, _PROTOCOL, _DEVICE_FAILED = 5, 7, 8, 10
OUT_OF_DESCRIPTORS, OUT_OF_SHARED_MEMORY, LANE_RESET, MEMLOCK, MOVED, NOT_ALLOWED = 18, 19, 24, 31, 41, 42
OUT_OF_WATCHES, NOT_DIRECT = 46, 47

_MORE_MEMORY = "free memory of this machine, or of this container, or ask for less"
# Keyed by the number of `Status` in native/base/status.hpp. CANCELLED has no error here: it becomes CancelledError. The
# words are used if a reason has none of its own, or if there is no reason.
_BY_STATUS: dict[int, tuple[type[ZerohopError], _Words]] = {
    CLOSED: (Closed, _Words("closed on this side")),
    PEER_LOST: (PeerLost, _Words("the peer is lost")),
    DEADLINE: (
        DeadlineExceeded,
        _Words("the deadline passed", "allow more time with timeout=, or look at why the peer does not answer"),
    ),
    _ACCESS_DENIED: (AccessDenied, _Words("access denied")),
    _UNSUPPORTED: (Unsupported, _Words("not supported")),
    _PROTOCOL: (ProtocolError, _Words("the peer sent something malformed")),
    NO_MEMORY: (RegistrationFailed, _Words("out of memory", _MORE_MEMORY)),
    _DEVICE_FAILED: (DeviceFailed, _Words("the device failed")),
    11: (WouldBlock, _Words("cannot go on at once", "try again later, or use the call without _nowait")),
    12: (StorageError, _Words("the file system refused")),
}
_NEW_HANDLE = "ask the owner for a new handle"
_THERE_AGAIN = "ask the owner for a new handle, once it is there again"
_SAME_VERSION = "use the same version of zerohop on both sides"
# Keyed by the number of `Reason`; the first words repeat the reason's name, so that one can search for it.
_BY_REASON: dict[int, _Words] = {
    1: _Words("out of bounds: the range does not lie within the shared memory", "check offset and length"),
    2: _Words(
        "rights: the handle does not give the right to do this",
        'ask the owner to share with "w" or "rw" for writing, "r" or "rw" for reading',
    ),
    3: _Words("old generation: the handle belongs to an earlier share", _NEW_HANDLE),
    4: _Words("revoked: the owner revoked the handle, or closed or dropped its Memory", _NEW_HANDLE),
    5: _Words("capability: the handle was not made by the owner of the memory", _NEW_HANDLE),
    6: _Words("unknown share: the owner has no such memory, or has closed it", _NEW_HANDLE),
    7: _Words("the peer process died", "start it again and ask for a new handle"),
    8: _Words("the peer's heartbeat stopped", "check the network, or allow more with heartbeat="),
    9: _Words("stream closed: the connection to the peer broke", _THERE_AGAIN),
    10: _Words("lane closed: the link to the peer was closed", _THERE_AGAIN),
    11: _Words("the lane is full: its window is used up", "wait for operations in flight"),
    12: _Words("the peer takes no more notifications or messages for now", "let it receive those it has"),
    13: _Words("truncated: the message is longer than the buffer that it was to go into", "receive into a larger one"),
    14: _Words("a copy failed"),
    15: _Words("device lost: the accelerator is gone", "restart the process once the device is back"),
    16: _Words("allocation failed", "free memory of the device, or ask for less"),
    17: _Words("malformed: what arrived does not parse", _SAME_VERSION),
    OUT_OF_DESCRIPTORS: _Words("out of file descriptors", "raise the limit: ulimit -n 65536"),
    19: _Words("out of shared memory", "raise the memory or file-size limit of the process, or free shared memory"),
    20: _Words("the Context is closed"),
    21: _Words("ended by the application"),
    22: _Words(
        "misaligned: the word does not lie at a multiple of 8 bytes in its owner's memory",
        "have the owner share memory that begins at a multiple of 8",
    ),
    23: _Words("too many pages: one read over this lane takes 8388608 at most", "split the list"),
    24: _Words("lane reset: the link that carried it broke", "post it again; the lane is replaced"),
    25: _Words(
        "remote access: the peer's NIC refused the key or the range; the memory was revoked, or is closed",
        _NEW_HANDLE,
    ),
    26: _Words("no answer: the peer's NIC does not reply", "check cable, switch and addresses: zerohop doctor"),
    27: _Words("not ready: the peer takes nothing in", "let it receive what it has, or look at why it stands still"),
    28: _Words("local access: this side's NIC may not reach the memory", "register the memory again"),
    29: _Words("remote error: the peer's NIC could not do it"),
    30: _Words("port down: the NIC's port, or its link, is not up", "bring the port up, or allow tcp beside verbs"),
    31: _Words("memlock: the process may lock no more memory", "raise the limit: ulimit -l unlimited"),
    32: _Words(
        "NIC full: it, or the memory of this machine, has no room for more",
        "close what is not needed of it, or ask for smaller queues",
    ),
    33: _Words(
        "no peer link: this process's devices cannot reach the memory of the peer's",
        "see nvidia-smi topo -p2p w, or let the bytes go through host memory",
    ),
    34: _Words(
        "the stream is being captured into a graph: a transfer cannot be captured yet",
        "post the transfer outside of the capture",
    ),
    35: _Words(
        "host memory registered in part: somebody else in this process has registered some of it with the GPU's driver",
        "have all of it registered there, or none of it; or take memory from ctx.alloc",
    ),
    36: _Words("its owner, such as a Transport, was closed or aborted"),
    37: _Words("the peer closed its end, such as its Transport or its Connection", "connect again"),
    38: _Words(
        "memory gone: bytes of the owner's memory are not there any more; its file was truncated or has no room, or it "
        "was freed",
        "have the owner keep the memory while it is registered, and /dev/shm large enough; then ask for a new handle",
    ),
    39: _Words(
        "local memory gone: bytes of this side's memory are not there any more; its file was truncated or has no room, "
        "or it was freed",
        "keep the memory as long as it is used, and /dev/shm large enough; then register it again",
    ),
    40: _Words(
        "out of memory: this process could not keep what the peer asked of it, and closed the link",
        "give the process more memory, or have the peer read fewer page lists at once",
    ),
    MOVED: _Words(
        "moved: its library has moved the bytes since (share_memory_(), resize_(), ctypes.resize() or the like)",
        "register it again, and share it anew",
    ),
    NOT_ALLOWED: _Words(
        "not allowed: the system refuses a call that this needs, as a sandbox does",
        "allow the call: in a container, docker run --security-opt seccomp=PROFILE.json with a profile that has it",
    ),
    43: _Words(
        "no staging: the owner's process is out of memory for the host buffers that bytes of its device pass through",
        "free memory there, or raise its limits (ulimit -v, the container's memory)",
    ),
    44: _Words(
        "local no staging: this process is out of memory for the host buffers that bytes of its device pass through",
        "free memory, or raise the limits (ulimit -v, the container's memory)",
    ),
    45: _Words(
        "given up: the other side has cancelled this message, or had no time left; the buffer holds a part of it",
        "send the message again, and receive again",
    ),
    OUT_OF_WATCHES: _Words(
        "out of watches: this user may watch no more descriptors",
        "raise the limit: sysctl -w fs.epoll.max_user_watches=1000000",
    ),
    NOT_DIRECT: _Words(
        'not direct: bytes would go through the page cache or host buffers, and require="direct" forbids that',
        'look at file.alignment, file.size and explain().rejected, or leave require="direct" out',
    ),
}
# The words of reasons that mean the peer where the status says that it is lost, and this side otherwise.
_OF_LOST_PEER: dict[int, _Words] = {20: _Words("the peer closed its Context", _THERE_AGAIN)}
# The words of reasons that mean this side's own memory where the status says that something here is closed.
_OF_CLOSED: dict[int, _Words] = {
    4: _Words("the memory of a transfer was closed", "keep it open until its transfers have ended"),
}
_NO_WORDS = _Words("")
# How native code's words end where a chroot or a container has no /proc, and the fix.
_NO_PROC, _MOUNT_PROC = f"(open /proc/self/fd): {os.strerror(errno.ENOENT)}", "mount -t proc proc /proc"
# How fixes of limits begin, and what the reason of one ends with that the peer has told of its own process.
_RAISE = "raise the limit"
_RAISE_PEERS = f"{_RAISE} of the peer's process: "
_SAID_BY_PEER = "said by the peer"
# Statuses that a peer may report of its own process.
_OF_PEERS = (PEER_LOST, _ACCESS_DENIED, _UNSUPPORTED, _PROTOCOL, NO_MEMORY, _DEVICE_FAILED)
# Reasons behind which there may be a limit of this process.
_OF_LIMITS = (OUT_OF_DESCRIPTORS, OUT_OF_SHARED_MEMORY, MEMLOCK, OUT_OF_WATCHES)


def from_native(status: int, reason: int, text: str = "", **fields: Any) -> ZerohopError:
    """Return the error for a native outcome; ``text`` comes from native code, ``fields`` are those of ZerohopError."""
    special = _OF_LOST_PEER if status == PEER_LOST else _OF_CLOSED if status == CLOSED else {}
    words = special.get(reason) or _BY_REASON.get(reason, _NO_WORDS)
    kind, general = _BY_STATUS.get(status) or _of_unknown(status)
    said = words.reason or general.reason
    if not text and (status, reason, fields.get("provider")) == (PEER_LOST, NOT_ALLOWED, "tcp"):
        text = "sendmsg or recvmsg"  # the calls of a lane over tcp, which has no words of its own
    if text and text != said:
        said = f"{said}: {text}" if said else text
    hit = limits.behind(reason, text) if reason in _OF_LIMITS and status in (NO_MEMORY, PEER_LOST) else None
    if hit is not None:
        return _of_limit(hit, said, fields)
    fields.setdefault("fix", _MOUNT_PROC if text.endswith(_NO_PROC) else words.fix or general.fix)
    return kind(said, **fields)


def status_of(error: ZerohopError) -> int:
    """Return the number of a status whose error is of this class."""
    return next((status for status, (kind, _) in _BY_STATUS.items() if type(error) is kind), _DEVICE_FAILED)


def reason_of(error: ZerohopError) -> int:
    """Return the number of a reason whose words an error has; 0: none."""
    return next((reason for reason, words in _BY_REASON.items() if error.reason == words.reason), 0)


def _of_unknown(status: int) -> tuple[type[ZerohopError], _Words]:
    """Return what is raised for a status without an error; one that is none of this version's came from a peer."""
    if status in (0, 1, CANCELLED):
        return ZerohopError, _NO_WORDS
    words = _Words(f"the peer reports status {status}, which this version does not know", _SAME_VERSION)
    return ProtocolError, words


def said_by_peer(status: int, reason: int, **fields: Any) -> ZerohopError:
    """Return the error for an outcome that the peer reports of its own process.

    A status that says nothing about a peer, such as one of this side's deadline, is the peer's fault.
    """
    if status not in _OF_PEERS:
        return ProtocolError(f"malformed: an answer of status {status}", **fields)
    if status == NO_MEMORY and (hit := limits.usual(reason)) is not None:
        fields["fix"] = f"{_RAISE_PEERS}{hit.command}"
        return LimitReached(f"{_BY_REASON[reason].reason}: {_SAID_BY_PEER}", limit=hit.name, **fields)
    return from_native(status, reason, _SAID_BY_PEER, **fields)


def limit_for(error: LimitReached, here: str, there: str) -> tuple[str, str]:
    """Return reason and fix of a limit for the peer, which knows this process as ``here`` and its own as ``there``.

    Otherwise it would raise the limit of the wrong process.
    """
    if error.fix.startswith(_RAISE_PEERS):
        said = error.reason.removesuffix(f": {_SAID_BY_PEER}")
        return f"{said}, in {there}", f"{_RAISE} of {there}: {error.fix.removeprefix(_RAISE_PEERS)}"
    if error.fix.startswith(f"{_RAISE}: "):
        return error.reason, f"{_RAISE} of {here}{error.fix.removeprefix(_RAISE)}"
    return error.reason, error.fix


def too_many_threads(operation: str = "") -> LimitReached:
    """Return the error for a thread that could not be started."""
    return _of_limit(limits.of_threads(), "no more threads can be started", {"operation": operation})


def out_of_memory(error: MemoryError) -> ZerohopError:
    """Return the error for a MemoryError, which mostly has no words of its own."""
    said = f"out of memory: {error}" if str(error) else "out of memory"
    hit = limits.of_memory()
    return RegistrationFailed(said, fix=_MORE_MEMORY) if hit is None else _of_limit(hit, said, {})


def named(error: BaseException) -> BaseException:
    """Return the library's error for one of Python's behind which there is a limit, or the error itself."""
    if isinstance(error, MemoryError):
        return out_of_memory(error)
    if not isinstance(error, OSError) or isinstance(error, ZerohopError):
        return error
    if out_of_descriptors(error):
        return from_os(error)
    return out_of_memory(MemoryError(error.strerror)) if error.errno == errno.ENOMEM else error


def _of_limit(hit: limits.Limit, said: str, fields: dict[str, Any]) -> LimitReached:
    fields.setdefault("fix", f"{_RAISE}: {hit.command}")
    return LimitReached(f"{said} ({hit.name} is {hit.value})", limit=hit.name, value=hit.value, **fields)


def copy_of(error: ZerohopError) -> ZerohopError:
    """Return a copy of an error, so that raising it to several callers does not grow one traceback."""
    return type(error)(**error._fields())


def silent_error(peer: str, text: str) -> ZerohopError:
    """Return the error for a peer that answers nobody in time; it may be stopped rather than dead."""
    return from_native(DEADLINE, 0, text, peer=peer)


def from_os(error: OSError, **fields: Any) -> ZerohopError:
    """Return the error for a call of the operating system that had to do with the connection to a peer."""
    if out_of_descriptors(error):
        return from_native(NO_MEMORY, OUT_OF_DESCRIPTORS, **fields)
    return PeerLost(f"the connection to the peer broke: {error.strerror or error}", **fields)


def of_sandbox(error: OSError, call: str, **fields: Any) -> ZerohopError | None:
    """Return the error for a call that the system refuses as such; None if it failed for another reason."""
    if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return None
    return from_native(_UNSUPPORTED, NOT_ALLOWED, f"{call}: {error.strerror or error}", **fields)


def out_of_descriptors(error: OSError) -> bool:
    """Tell whether the process, or the system, has no file descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
