"""Protects control channels, and lanes if asked to, by TLS 1.3; its certificates both sides derive from the secret.

There is one certificate for the side that listens and one for the side that dials; each side trusts that of the other
role and nothing else, so that TLS itself refuses everybody who does not know the secret, in both directions.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop.config.protection import fix, why_not
from zerohop.core.base.importing import importing
from zerohop.errors import ProtocolError, Unsupported, from_os, out_of_descriptors

try:
    import ssl
except ImportError:  # a Python that was built without OpenSSL
    ssl = None  # type: ignore[assignment]  # Identity.tls is False then, and nothing here is used

if TYPE_CHECKING:
    import socket

_PIECE_BYTES: Final = 64 << 10
# Clocks may be wrong, and the secret has no date either.
_FROM: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_UNTIL: Final = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc)
# Names that OpenSSL gives the refusals of a certificate.
_REFUSED_HERE: Final = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "BAD_SIGNATURE")
_REFUSED_THERE: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_REQUIRED",
    "DECRYPT_ERROR",
    "CERTIFICATE_UNKNOWN",
)


class Distrusted(Exception):
    """Raised if the certificate of one side is not the one that the other derives from its secret."""


class Contexts(NamedTuple):
    """Holds what the side that listens and the side that dials need: for channels, and for the sockets of lanes.

    native/provider/tcp/tls_session.hpp explains the bytes that are for lanes. Each socket's name goes behind them.
    """

    listen: ssl.SSLContext
    dial: ssl.SSLContext
    listen_lane: bytes
    dial_lane: bytes

    def __repr__(self) -> str:
        """Return no key: logs and tracebacks have no business with them."""
        return "Contexts(<hidden>)"


def make_contexts(listen_seed: bytes, dial_seed: bytes) -> Contexts:
    """Make the certificates from their seeds of 32 bytes, and the settings that trust them; blocks for milliseconds.

    Raises:
        Unsupported: a library is missing, or the system refuses what it needs.
        LimitReached: this process is out of descriptors.
    """
    try:
        listen, dial = _certificate(listen_seed, "listens"), _certificate(dial_seed, "dials")
        return Contexts(
            _context(ssl.PROTOCOL_TLS_SERVER, listen, trusted=dial),
            _context(ssl.PROTOCOL_TLS_CLIENT, dial, trusted=listen),
            b"l" + _lane(listen, trusted=dial),
            b"d" + _lane(dial, trusted=listen),
        )
    except (ImportError, AttributeError, OSError) as error:
        if isinstance(error, OSError) and out_of_descriptors(error):
            raise from_os(error, operation="connect") from None
        why = why_not("control") or error
        raise Unsupported(f"TLS does not work here: {why}", fix=fix(), operation="connect") from None


class _Certificate(NamedTuple):
    seed: bytes
    key: bytes
    text: str
    der: bytes

    def __repr__(self) -> str:
        """Return no key, as that of ``Contexts``."""
        return "_Certificate(<hidden>)"


def _lane(own: _Certificate, trusted: _Certificate) -> bytes:
    return own.seed + len(own.der).to_bytes(2, "big") + own.der + trusted.der


def _certificate(seed: bytes, role: str) -> _Certificate:
    """Return the self-signed certificate of a role; the same seed gives the same bytes on every host."""
    # Imported here because a Context needs it for peers behind TCP only, and only with a secret.
    with importing():
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.x509.oid import NameOID

    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"zerohop, who {role}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, None)
    )
    return _Certificate(
        seed,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        certificate.public_bytes(serialization.Encoding.DER),
    )


def _context(protocol: int, own: _Certificate, trusted: _Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    # The certificate is known itself, so that the name in it says nothing more.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted.text)
    # A session that is resumed would not show its certificate again.
    context.options |= ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    # OpenSSL reads a key from a path only; this one leads to no disk.
    fd = os.memfd_create("zerohop-key")
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor has no Path
        file.write(own.key + own.text.encode())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    return context


class TlsStream:
    """Holds one side of a TLS connection whose bytes the caller sends and receives."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._heard = False

    def shake_hands(self) -> bool:
        """Go on with TLS's handshake; return whether this side has finished it.

        A side that dials finishes before the other has seen its certificate: its first ``receive`` tells.

        Raises:
            Distrusted: a certificate was refused; ``outgoing`` has the alert that says so.
            ProtocolError: the other side does not speak TLS 1.3.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _verdict(error) from None
        return True

    def feed(self, data: bytes) -> None:
        """Hand over bytes that the socket has received."""
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        """Return the bytes that the socket is to send now."""
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Return the bytes to send for ``data``.

        Raises:
            ProtocolError: TLS has failed before; ``outgoing`` has the alert that says so.
        """
        try:
            self._ssl.write(data)
        except ssl.SSLError as error:  # it is an OSError, too, which callers would take for one of the system's
            raise _verdict(error, refusable=False) from None
        return self._outgoing.read()

    def pending(self) -> bool:
        """Tell whether bytes were received that ``receive`` has not returned."""
        return bool(self._incoming.pending or self._ssl.pending())

    def receive(self, sock: socket.socket, nbytes: int) -> bytes:
        """Return up to so many decrypted bytes from a socket; none at the end of the stream.

        Raises:
            BlockingIOError: nothing has arrived, or nothing with content.
            OSError: the connection broke.
            Distrusted: the other side has refused the certificate of this one.
            ProtocolError: the bytes were changed on their way.
        """
        told_nothing = False
        while True:
            try:
                data = self._ssl.read(nbytes)
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as error:
                raise _verdict(error, refusable=not self._heard) from None
            else:
                self._heard = True
                return data
            if told_nothing:
                # Records without content: the caller lets others have their turn before it comes again.
                raise BlockingIOError
            told_nothing = True
            received = sock.recv(_PIECE_BYTES)
            if received:
                self._incoming.write(received)
            else:
                self._incoming.write_eof()


def _verdict(error: ssl.SSLError, *, refusable: bool = True) -> Exception:
    """Return the error for one of OpenSSL's."""
    reason = error.reason or str(error)
    if refusable and reason in _REFUSED_HERE:
        return Distrusted("the peer does not know the secret")
    if refusable and reason.endswith(_REFUSED_THERE):
        return Distrusted("refused by the peer: wrong secret")
    return ProtocolError(f"malformed: TLS failed: {reason.lower().replace('_', ' ')}")
