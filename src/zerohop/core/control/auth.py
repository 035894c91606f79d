"""Proves a shared secret without sending it: an HMAC-SHA256 challenge in both directions.

Each proof covers both nonces, both Context ids, the purpose of the socket and the side that proves, so that it can be
neither replayed, nor reflected, nor moved to another connection. Without a secret on either side the key is empty and
the exchange proves nothing; that is allowed on loopback and Unix sockets only (see listener.py).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Final, Literal, NamedTuple

NONCE_BYTES: Final = 32
CAPABILITY_BYTES: Final = 16
_LABEL: Final = b"zerohop proof 1"


class Transcript(NamedTuple):
    """Holds the values of a handshake that both sides have seen: nonces, ids, and the purpose of the socket."""

    client: str
    server: str
    client_nonce: bytes
    server_nonce: bytes
    purpose: str
    token: bytes

    def proof(self, secret: bytes | None, side: Literal["client", "server"]) -> bytes:
        """Return the proof that ``side`` knows the secret."""
        # The secret is hashed first, because HMAC pads a short key with zeros: "x" and "x\0" would be the same key.
        key = b"" if secret is None else hashlib.sha256(secret).digest()
        code = hmac.new(key, _LABEL, hashlib.sha256)
        for part in (
            side.encode(),
            self.client.encode(),
            self.server.encode(),
            self.client_nonce,
            self.server_nonce,
            self.purpose.encode(),
            self.token,
        ):
            # Each part goes in with its length, so that no two transcripts give the same bytes.
            code.update(len(part).to_bytes(4, "big"))
            code.update(part)
        return code.digest()

    def verify(self, secret: bytes | None, side: Literal["client", "server"], proof: bytes) -> bool:
        """Tell whether ``proof`` is right for ``side``, in a time that does not depend on where it is wrong."""
        return hmac.compare_digest(self.proof(secret, side), proof)


def new_nonce() -> bytes:
    """Return fresh random bytes for a handshake."""
    return os.urandom(NONCE_BYTES)


def new_capability() -> bytes:
    """Return 128 random bits, without which no peer reaches a share."""
    return os.urandom(CAPABILITY_BYTES)


def same(left: bytes, right: bytes) -> bool:
    """Compare in a time that does not depend on the content."""
    return hmac.compare_digest(left, right)
