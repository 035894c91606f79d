"""Describes where a Context can be reached: its URL, the directory of its Unix socket, and its host."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import ipaddress
import os
import re
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from zerohop.core.base import sandbox
from zerohop.core.base.peer_text import printable
from zerohop.errors import Unsupported, out_of_descriptors
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEME: Final = "zerohop"
# sun_path has 108 bytes, the last of them 0.
MAX_SOCKET_PATH: Final = 107
MAX_URL: Final = 1024
SOCKET_NAME: Final = "s"
# Host and port, or host alone, to listen on.
_LISTEN: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]/?#@:\s]+))(?::([0-9]{0,5}))?")
_ZONE: Final = re.compile("%25(?=.)")
_LAST_PORT: Final = 65535
_CONTEXT_ID: Final = re.compile(r"[0-9a-f]{32}")
_HOST_ID: Final = re.compile(r"[0-9a-f]{32}")
# Name of the directory of a Context's Unix socket; the number is the id of the user who made it.
_FOLDER: Final = re.compile(r"zerohop-([0-9]+)-[a-z0-9_]+")
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SWEPT_AT_ONCE: Final = 64
_SHOWN: Final = 100  # characters of a URL that is too long
_LONGEST_LABEL: Final = 63  # bytes of one part of a host's name


class Address(NamedTuple):
    """Holds a parsed URL. Parts may be missing: ``zerohop://host:port`` reaches any Context that listens there."""

    host: str
    port: int
    context: str = ""
    host_id: str = ""
    socket_path: str = ""

    @property
    def listens(self) -> bool:
        """Tell whether the address can be reached by TCP."""
        return bool(self.host) and self.port != 0

    @property
    def place(self) -> str:
        """Return host and port as one writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def url(self) -> str:
        """Return the text form, of which ``parse`` makes the same Address."""
        where = self.place if self.listens else ""
        if ":" in self.host:  # the zone of an IPv6 address begins with a percent sign, which a URL encodes (RFC 6874)
            where = where.replace("%", "%25", 1)
        parts = [f"host={self.host_id}"] if self.host_id else []
        if self.socket_path:
            parts.append(f"unix={quote(self.socket_path, safe='/')}")
        query = f"?{'&'.join(parts)}" if parts else ""
        return f"{SCHEME}://{where}/{self.context}{query}"


def parse(url: str) -> Address:
    """Return the Address of a URL.

    Raises:
        TypeError: not a string.
        ValueError: not a zerohop URL, or one with a part that makes no sense.
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a string, not {type(url).__name__}")
    try:
        return _parse(url)
    except ValueError as error:
        given = url if len(url) <= MAX_URL else f"{url[:_SHOWN]}…"
        raise ValueError(
            f"{given!r} is no zerohop URL, such as the peer's context.url or {SCHEME}://HOST:PORT: {error}"
        ) from None


def _parse(url: str) -> Address:
    if len(url) > MAX_URL or not url.isprintable():
        raise ValueError(f"it has more than {MAX_URL} characters, or some that are not printed")
    parts = urlsplit(url)
    if parts.scheme != SCHEME:
        raise ValueError(f"it does not begin with {SCHEME}://")
    port = parts.port or 0
    query = dict(parse_qsl(parts.query))
    context = parts.path.strip("/")
    host = parts.hostname or ""
    if ":" in host:  # people also write its zone as they do elsewhere, after a bare percent sign
        host = _ZONE.sub("%", host, count=1)
    address = Address(host, port, context, query.get("host", ""), query.get("unix", ""))
    if context and not _CONTEXT_ID.fullmatch(context):
        raise ValueError(f"a Context's id is 32 hexadecimal digits, not {context!r}")
    if address.host_id and not _HOST_ID.fullmatch(address.host_id):
        raise ValueError("a host's id is 32 hexadecimal digits")
    path = address.socket_path
    # The codec is slow, and only these can be refused by it.
    if (len(host) > _LONGEST_LABEL or ".." in f".{host}" or not host.isascii()) and not _is_name(host):
        raise ValueError(f"{host!r} is no name of a host")
    if not path.isprintable():
        raise ValueError(f"the path of its Unix socket has characters that are not printed: {path!r}")
    if path and (not path.startswith("/") or len(os.fsencode(path)) > MAX_SOCKET_PATH):
        raise ValueError(f"a Unix socket's path is absolute and has at most {MAX_SOCKET_PATH} bytes")
    if bool(address.host) != bool(address.port):
        raise ValueError("it has a host without a port, or a port without a host")
    if not address.listens and not path:
        raise ValueError("it has neither host:port nor the path of a Unix socket")
    return address


def _is_name(host: str) -> bool:
    """Tell whether a host can be looked up at all."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def split_listen(listen: str, source: str = "listen") -> tuple[str, int]:
    """Return host and port of ``"host:port"``, ``"[v6]:port"`` or ``"host"``; ``source`` is its name in errors.

    Raises:
        ValueError: not of that form.
    """
    parts = _LISTEN.fullmatch(listen)
    v6, host, port = parts.groups(default="") if parts and listen.isprintable() else ("", "", "")
    if not (_is_v6(v6) if v6 else host and _is_name(host)) or int(port or 0) > _LAST_PORT:
        raise ValueError(f"{source}={shown(listen)} is not host:port, such as 127.0.0.1:0 or [::1]:0")
    return v6 or host, int(port or 0)


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@functools.cache
def host_id() -> str:
    """Return an id that all processes of one running kernel share, in containers too, and no other host has."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Without a boot id no other process counts as being on this host, which costs speed and nothing else.
        boot = sandbox.random_bytes(16).hex()
    return hashlib.sha256(f"zerohop host {boot}".encode()).hexdigest()[:32]


@contextlib.contextmanager
def make_directory(fill: Callable[[Path], None] = lambda _: None) -> Iterator[Path]:
    """Make a new 0700 directory for this Context's Unix socket, in $XDG_RUNTIME_DIR if that works, else in /tmp.

    ``fill`` puts the socket there; if it raises OSError, the next place is tried. Other processes leave the directory
    alone during the ``with`` block, and after it while somebody listens at its socket.

    Raises:
        Unsupported: no directory for temporary files can be used.
        OSError: this process is out of descriptors.
    """
    prefix = f"zerohop-{os.getuid()}-"
    directory, lock = _make_anywhere(prefix, fill)
    try:
        _sweep(directory.parent, prefix, directory)
        yield directory
    finally:
        sandbox.close(lock)


def _make_anywhere(prefix: str, fill: Callable[[Path], None]) -> tuple[Path, int]:
    """Make and fill a directory, locked, where the first of the directories for temporary files allows it."""
    # The 12 bytes leave room for 8 random characters, two slashes and the socket's name.
    room = MAX_SOCKET_PATH - len(prefix) - 12
    tried = {}
    environment = os.environ
    for parent in (environment.get("XDG_RUNTIME_DIR", ""), "/tmp", environment.get("TMPDIR", ""), "/var/tmp"):
        if not parent.startswith("/"):
            continue
        if not parent.isprintable():  # no peer would take a URL that names it
            tried[printable(parent)] = "its path has characters that are not printed, or is no UTF-8"
            continue
        if len(os.fsencode(parent)) > room:
            tried[parent] = f"longer than {room} bytes"
            continue
        try:
            return _make_filled(prefix, parent, fill)
        except OSError as error:
            if out_of_descriptors(error):
                raise
            tried[parent] = error.strerror or str(error)
    raise Unsupported(
        "no place for this Context's Unix socket: " + "; ".join(f"{where}: {why}" for where, why in tried.items()),
        fix=f"TMPDIR=/some/directory that this process may write to, of at most {room} bytes",
        operation="listen",
    )


def _make_filled(prefix: str, parent: str, fill: Callable[[Path], None]) -> tuple[Path, int]:
    directory, lock = _make_locked(prefix, parent)
    try:
        fill(directory)
    except BaseException:
        remove_directory(directory)
        sandbox.close(lock)
        raise
    return directory, lock


def _make_locked(prefix: str, parent: str) -> tuple[Path, int]:
    """Make a directory, and lock it so that no other process takes it for one that was left behind."""
    # Imported here because tempfile imports much, and only an opened Context needs it.
    import tempfile

    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(directory, _OPEN_DIRECTORY)
        except FileNotFoundError:  # another process has swept it already
            continue
        except OSError:
            remove_directory(directory)
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if directory.exists():
                return directory, lock
        except OSError:  # a file system without locks, where no process can lock it in order to sweep it either
            return directory, lock
        sandbox.close(lock)


def is_ours(path: str) -> bool:
    """Tell whether a path from a peer can be the Unix socket of a Context of this user, as make_directory places it.

    No other socket is connected to, because the peer could name any service of this user.
    """
    directory, name = os.path.split(path)
    if not path.startswith("/") or name != SOCKET_NAME or not _FOLDER.fullmatch(os.path.split(directory)[1]):
        return False
    try:
        status = os.lstat(directory)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def user_of(path: str) -> int | None:
    """Return the id of the user whose Context made a Unix socket, going by its path; None if that does not tell."""
    made = _FOLDER.fullmatch(Path(path).parent.name)
    return int(made[1]) if made else None


def remove_directory(directory: Path) -> None:
    """Remove a directory of make_directory; do nothing if it is gone already."""
    # shutil.rmtree would need a descriptor, and this process may have none left.
    try:
        (directory / SOCKET_NAME).unlink(missing_ok=True)
        directory.rmdir()
    except OSError:
        pass


def _sweep(parent: Path, prefix: str, own: Path) -> None:
    """Remove the directories that killed processes of this user have left behind."""
    try:
        entries = [entry for entry in parent.iterdir() if entry.name.startswith(prefix) and entry != own]
    except OSError:
        return
    bound = _bound_sockets() if entries else frozenset()
    left = _SWEPT_AT_ONCE
    for entry in entries:
        if str(entry / SOCKET_NAME) not in bound and left:
            left -= _remove_if_left(entry)


def _remove_if_left(directory: Path) -> bool:
    """Remove a directory if no Context uses it; return whether it was removed."""
    try:
        lock = os.open(directory, _OPEN_DIRECTORY)
    except OSError:
        return False
    try:
        # A Context that is just being made holds the lock. One that is made listens, here or in a container.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid != os.getuid() or _answers(directory / SOCKET_NAME):
            return False
    except OSError:
        return False
    else:
        remove_directory(directory)
        return True
    finally:
        sandbox.close(lock)


def _bound_sockets() -> frozenset[str]:
    """Return the paths of the kernel's Unix sockets, so that no living Context is disturbed by a connection."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(f"/{line.partition(' /')[2]}" for line in lines)


def _answers(path: Path) -> bool:
    """Tell whether a process still listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def connected_here(sock: socket.socket) -> bool:
    """Tell whether both ends of a TCP connection have addresses of this host."""
    try:
        own, peer = sock.getsockname()[0], sock.getpeername()[0]
    except OSError:
        return False
    # A host connects to an address of its own from the same address, but to all of 127.0.0.0/8 from 127.0.0.1.
    return own == peer or ipaddress.ip_address(peer).is_loopback


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket, as the kernel knows it."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
