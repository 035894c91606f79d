"""Makes what a peer sends that begins TLS's handshake and never comes to its end."""

from __future__ import annotations

CLIENT_HELLO, SERVER_HELLO = 1, 2
# OpenSSL refuses longer hellos of each kind, and does not count the heads of the records that they come in.
_LONGEST = {CLIENT_HELLO: 100_000, SERVER_HELLO: 20_000}
_RECORD = b"\x16\x03\x01\x00\x01"  # the head of a record with one byte of the handshake


def endless_hello(kind: int, nbytes: int) -> bytes:
    """Return the beginning of a hello that is said to be long, in records of one byte each: so many bytes at most.

    OpenSSL waits for the rest of it, and would take six times the hello's length before it gave up.
    """
    length = _LONGEST[kind]
    said = bytes([kind]) + length.to_bytes(3, "big") + bytes(length - 1)
    return b"".join(_RECORD + bytes([byte]) for byte in said[: nbytes // (len(_RECORD) + 1)])
