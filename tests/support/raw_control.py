"""A client of the control plane that is no Context: it says what it is told to say, well-formed or not."""

from __future__ import annotations

import array
import errno
import functools
import os
import socket
from typing import TYPE_CHECKING

from support.patience import PATIENCE_S
from zerohop.core.control import address, auth, wire
from zerohop.core.control.secret import derive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zerohop.core.control.wire import Message

ANSWER_S = PATIENCE_S
_FD_SPACE = socket.CMSG_SPACE(wire.MAX_FDS * array.array("i").itemsize)


@functools.cache
def proof_key(secret: bytes | None) -> bytes:
    """The key of proofs that a Context derives; the empty one without a secret."""
    return b"" if secret is None else derive(secret).proof


class RawControl:
    """A socket to a Context's listener."""

    def __init__(self, url: str, *, unix: bool, source: str = "") -> None:
        """Connect; over TCP from this address, if one is given."""
        self.where = address.parse(url)
        if unix:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(ANSWER_S)
            self.socket.connect(self.where.socket_path)
        else:
            self.socket = socket.create_connection((self.where.host, self.where.port), ANSWER_S, (source, 0))

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        frame = wire.encode(message)
        if fds:
            socket.send_fds(self.socket, [frame], list(fds))
        else:
            self.socket.sendall(frame)

    def send_together(self, messages: Iterable[Message]) -> None:
        """In one piece: the Context may hang up at the first of them, and no more could be sent then."""
        self.socket.sendall(b"".join(wire.encode(message) for message in messages))

    def shout(self, data: bytes) -> None:
        """Send the bytes and say that no more come; the Context may hang up before it has heard everything."""
        try:
            self.socket.sendall(data)
            self.socket.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            return
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors; None when the Context has hung up."""
        header, fds = self._read(wire.HEADER.size)
        if header is None:
            return None
        body, more = self._read(wire.body_length(header, wire.MAX_FRAME))
        assert body is not None, "hung up in the middle of a message"
        return wire.decode(body), fds + more

    def hello(self, **changes: object) -> wire.Hello:
        """A Hello as a Context without OpenSSL sends it, but for the changes."""
        said: dict[str, object] = {
            "version": wire.VERSION,
            "magic": "zerohop",
            "context": os.urandom(16).hex(),
            "host": address.host_id(),
            "pid": os.getpid(),
            "name": "raw",
            "purpose": "control",
            "nonce": auth.new_nonce(),
            "has_secret": False,
            "encryption": "control" if changes.get("has_secret") else "none",
            "tls": False,
            "token": b"",
        }
        return wire.Hello(**{**said, **changes})  # type: ignore[arg-type]

    def shake_hands(self, secret: bytes | None = None) -> wire.Hello:
        """The whole handshake; AssertionError when it is refused."""
        hello = self.hello(has_secret=secret is not None)
        seen = self.introduce(hello)
        key = proof_key(secret)
        self.send(wire.Prove(proof=seen.proof(key, "client")))
        accepted = self.receive()
        assert accepted is not None
        assert isinstance(accepted[0], wire.Accept), accepted[0]
        assert seen.verify(key, "server", accepted[0].proof)
        return hello

    def introduce(self, hello: wire.Hello) -> auth.Transcript:
        """The handshake up to the proof; AssertionError when it is refused."""
        self.send(hello)
        challenged = self.receive()
        assert challenged is not None
        challenge = challenged[0]
        assert isinstance(challenge, wire.Challenge), challenge
        return auth.Transcript(hello, challenge)

    def hung_up(self) -> bool:
        """Whether the Context ends the connection, whatever it says before."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()

    def _read(self, nbytes: int) -> tuple[bytes | None, list[int]]:
        data = bytearray()
        fds = array.array("i")
        while len(data) < nbytes:
            try:
                piece, ancillary, _, _ = self.socket.recvmsg(nbytes - len(data), _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError:
                piece, ancillary = b"", []
            for _, _, payload in ancillary:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
            if not piece:
                return None, list(fds)
            data += piece
        return bytes(data), list(fds)
